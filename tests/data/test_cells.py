"""Cells mean the same however they are written, and what means nothing is refused with its place."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkin.data.cells import categories, category, number, numbers, values
from fedkin.data.table import TableError, read


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_read_as_python_writes_it_and_names_the_same_category(value):
    assert number(repr(value)) == value
    assert category(repr(value)) == category(value)
    assert float(category(value)) == value


@given(st.integers(-(2**53), 2**53))
def test_a_whole_number_is_the_same_category_with_and_without_a_point(value):
    assert category(str(value)) == category(float(value)) == category(f"{value}.0") == str(value)


@pytest.mark.parametrize("text", ["", "x", "1_000", "1,5", "0x10", "nan", "inf", "-Infinity", "1e999"])
def test_words_and_what_is_not_finite_are_no_numbers(text):
    assert number(text) is None


def test_codes_with_leading_zeros_stay_what_they_are():
    assert [category(code) for code in ("007", "7", "0.5", "0", "-07")] == ["007", "7", "0.5", "0", "-07"]


@pytest.mark.parametrize("mark", ["?", " ? "])
def test_a_mark_is_a_text(mark):
    assert categories(read({"a": ["?", "b"]}), "a", [mark]) == [None, "b"]


@pytest.mark.parametrize("mark", [0, 0.0, "0"])
@pytest.mark.parametrize("cells", [["0", "0.0", "12"], [0, 0, 12], np.array([0, 0, 12])])
def test_a_number_is_a_mark_however_it_is_written(mark, cells):
    np.testing.assert_array_equal(numbers(read({"a": cells}), "a", [mark]), [np.nan, np.nan, 12])
    assert categories(read({"a": cells}), "a", [mark]) == [None, None, "12"]


@pytest.mark.parametrize("mark", [-999, "-999", "-999.0", "-999,0"])
@pytest.mark.parametrize("gap", ["-999,0", "-999", "-999,000"])
def test_a_number_is_a_mark_where_numbers_have_decimal_commas(mark, gap):
    table = read({"a": ["3,5", gap, "0,125", "2"]})
    np.testing.assert_array_equal(numbers(table, "a", ["NA", mark]), [3.5, np.nan, 0.125, 2])
    assert categories(table, "a", [mark]) == ["3,5", None, "0,125", "2"]
    np.testing.assert_array_equal(numbers(read({"a": [gap, "1,5"]}), "a", [mark]), [np.nan, 1.5])


def test_a_gap_alone_is_one_as_new_rows_may_have_it():
    np.testing.assert_array_equal(numbers(read({"a": ["-999,0"]}), "a", [-999]), [np.nan])
    assert categories(read({"a": ["-999,0"]}), "a", [-999]) == [None]


def test_a_mark_is_none_where_commas_may_part_thousands_or_words():
    assert values(read({"a": ["1,234", "5,678"]}), "a", [1.234]) == ["1,234", "5,678"]
    assert categories(read({"a": ["1,5", "a,b"]}), "a", [1.5]) == ["1,5", "a,b"]


def test_a_column_that_is_not_all_numbers_keeps_its_texts_and_truths():
    assert values(read({"a": ["1", "b", None, True]}), "a") == [1.0, "b", None, True]


@pytest.mark.parametrize("ask", [values, numbers, categories])
@pytest.mark.parametrize("cells", [[1.0, math.inf], np.array([1.0, -math.inf])])
def test_infinity_is_refused_with_its_place(ask, cells):
    with pytest.raises(TableError, match=r"the table, row 1 \(the first is 0\): column 'a' is infinite"):
        ask(read({"a": cells}), "a")


def test_the_word_nan_is_no_category_unless_it_is_declared_missing():
    table = read({"a": ["x", "NaN", "y"]})
    with pytest.raises(TableError, match=r"row 1 .*'a' is 'NaN'.*add 'NaN' to .*table\.missing \(--missing\)"):
        categories(table, "a")
    assert categories(table, "a", ["NaN"]) == ["x", None, "y"]


def test_text_where_the_model_learned_numbers_is_refused_with_its_place(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,high\n")
    table = read(tmp_path / "t.csv")
    with pytest.raises(TableError, match=r"t\.csv, line 3: column 'b' is 'high', but it was a column of numbers"):
        numbers(table, "b")
