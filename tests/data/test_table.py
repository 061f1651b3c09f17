"""Tables as people have them: the same cells from every form, and a sentence with the place where one is broken."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fedkin.data import table as reading
from fedkin.data.cells import categories, numbers, values
from fedkin.data.table import Table, TableError, joined, read

CSV = "age,sex,smokes,note\n63,f,True,\n41.5,m,False,fine\n,f,True,?\n"
COLUMNS = {
    "age": [63.0, 41.5, None],
    "sex": ["f", "m", "f"],
    "smokes": [True, False, True],
    "note": [None, "fine", "?"],
}


def written(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def parquet(folder: Path, table: pa.Table) -> Path:
    pq.write_table(table, folder / "t.parquet")
    return folder / "t.parquet"


FORMS = {
    "csv": lambda folder: written(folder, CSV),
    "csv with a byte order mark and Windows lines": lambda folder: written(
        folder, b"\xef\xbb\xbf" + CSV.replace("\n", "\r\n").encode()
    ),
    "csv with the lines of an old Mac": lambda folder: written(folder, CSV.replace("\n", "\r")),
    "csv with bars": lambda folder: written(folder, CSV.replace(",", "|")),
    "csv in UTF-16": lambda folder: written(folder, CSV.encode("utf-16")),
    "csv with semicolons": lambda folder: written(folder, CSV.replace(",", ";")),
    "csv with quotes, spaces and empty lines": lambda folder: written(
        folder, '\nage, sex ,smokes,note\n"63", f,True,\n\n41.5,"m",False,"fine"\n ,f,True,?\n\n'
    ),
    "tsv": lambda folder: written(folder, CSV.replace(",", "\t"), "t.tsv"),
    "parquet": lambda folder: parquet(folder, pa.table(COLUMNS)),
    "parquet with dictionaries": lambda folder: parquet(
        folder, pa.table({**COLUMNS, "sex": pa.array(["f", "m", "f"]).dictionary_encode()})
    ),
    "parquet of pandas with an index": lambda folder: parquet(
        folder, pa.Table.from_pandas(pd.DataFrame(COLUMNS, index=["x", "y", "z"]))
    ),
    "pandas": lambda _: pd.DataFrame(COLUMNS),
    "pandas with its own types": lambda _: pd.DataFrame(COLUMNS).convert_dtypes(),
    "pandas of objects": lambda _: pd.DataFrame(COLUMNS, dtype=object),
    "pandas with categories": lambda _: pd.DataFrame(COLUMNS).astype({"sex": "category"}),
    "pandas with an index": lambda _: pd.DataFrame(COLUMNS, index=[9, 9, 9]),
    "polars": lambda _: pl.DataFrame(COLUMNS),
    "polars with categories": lambda _: pl.DataFrame(COLUMNS).with_columns(pl.col("sex").cast(pl.Categorical)),
    "polars with NaN": lambda _: pl.DataFrame(COLUMNS).with_columns(pl.col("age").fill_null(math.nan)),
    "arrow": lambda _: pa.table(COLUMNS),
    "columns": lambda _: COLUMNS,
    "columns as arrays": lambda _: {**COLUMNS, "age": np.array([63, 41.5, np.nan]), "sex": np.array(["f", "m", "f"])},
    "columns as tensors": lambda _: {**COLUMNS, "age": torch.tensor([63, 41.5, math.nan])},
    "rows": lambda _: [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)],
    "decimals": lambda _: {**COLUMNS, "age": [Decimal("63"), Decimal("41.5"), None]},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_numbers_and_categories(form, tmp_path):
    table = read(FORMS[form](tmp_path))
    assert list(table.columns) == list(COLUMNS)
    assert len(table) == 3
    np.testing.assert_array_equal(numbers(table, "age"), [63, 41.5, np.nan])
    assert categories(table, "sex") == ["f", "m", "f"]
    assert categories(table, "smokes") == ["true", "false", "true"]
    assert categories(table, "note", ["?"]) == [None, "fine", None]


def test_one_row_is_a_table_too():
    table = read({"age": 63, "sex": "f"})
    assert len(table) == 1
    assert numbers(table, "age").tolist() == [63]


# ---- broken files ----

BROKEN = {
    "too few cells": ("a,b\n1,2\n3\n", r"t\.csv, line 3 has 1 cell, but the header names 2 columns"),
    "too many cells": ("a,b\n\n1,2\n3,4,5\n", r"t\.csv, line 4 has 3 cells"),
    "a row after one of several lines": ('a,b\n1,"x\ny"\n3\n', r"line 4 has 1 cell"),
    "an unclosed quote": ('a,b\n1,2\n3,"4\n5,6\n', r"the row that begins in line 3 cannot be read"),
    "text after a quote": ('a,b\n1,"2"3\n', r"the row that begins in line 2"),
    "a broken character": ("a,b\n1,caf\u00e9\n2,".encode() + b"\xc3\n", r"line 3 is not UTF-8 text \(byte 0xc3\)"),
    "no text": (b"a,b\n1,\x81\x02\n", r"line 2 is not UTF-8 text \(byte 0x81\)"),
    "nothing": ("", r"t\.csv is empty"),
    "empty lines": ("\n\n", r"t\.csv is empty"),
    "a header alone": ("a,b\n", r"has a header but no rows"),
    "a name twice": ("a,b,a\n1,2,3\n", r"more than one column named 'a'"),
    "a column without a name": (",a\n0,1\n", r"column 1 of 2 has no name.*index=False"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_csv_is_refused_with_the_line(case, tmp_path):
    content, sentence = BROKEN[case]
    with pytest.raises(TableError, match=sentence):
        read(written(tmp_path, content))


@pytest.mark.parametrize("cut", [0, 4, 100, -1, -9])
def test_a_truncated_parquet_file_is_refused(cut, tmp_path):
    whole = parquet(tmp_path, pa.table({"a": list(range(1000)), "b": [str(i) for i in range(1000)]}))
    whole.write_bytes(whole.read_bytes()[:cut])
    with pytest.raises(TableError, match=r"t\.parquet is not a whole Parquet file"):
        read(whole)


def test_a_corrupted_parquet_file_is_refused(tmp_path):
    whole = parquet(tmp_path, pa.table({"a": np.random.default_rng(0).normal(size=1000)}))
    content = bytearray(whole.read_bytes())
    content[4:60] = b"\xff" * 56  # the first page's header
    whole.write_bytes(content)
    with pytest.raises(TableError, match=r"t\.parquet is not a whole Parquet file"):
        read(whole)


def test_files_that_are_not_there_or_no_tables_are_refused(tmp_path):
    for suffix in reading.SUFFIXES:
        with pytest.raises(TableError, match=r"There is no file .*none\.[a-z]+\."):
            read(tmp_path / f"none{suffix}")
    with pytest.raises(TableError, match=r"\.xlsx is not a table: \.csv, \.tsv, \.parquet"):
        read(written(tmp_path, "x", "t.xlsx"))
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(TableError, match="is a folder"):
        read(tmp_path / "d.csv")


# ---- frames and the like ----

DAY = datetime.date(2020, 1, 1)
DATED = {
    "pandas": pd.DataFrame({"a": [1, 2], "when": pd.to_datetime(["2020-01-01", "2020-01-02"])}),
    "pandas objects": pd.DataFrame({"a": [1, 2], "when": pd.Series([DAY, DAY], dtype=object)}),
    "polars": pl.DataFrame({"a": [1, 2], "when": [DAY, DAY]}),
    "columns": {"a": [1, 2], "when": [DAY, DAY]},
    "lists": pl.DataFrame({"a": [1, 2], "when": [[1], [2]]}),
    "timedelta": {"a": [1, 2], "when": [np.timedelta64(1, "D")] * 2},
}


@pytest.mark.parametrize("form", DATED)
def test_other_types_are_refused_but_only_where_they_are_needed(form):
    table = read(DATED[form])
    assert numbers(table, "a").tolist() == [1, 2]
    if form not in ("lists", "timedelta"):
        assert all(str(day).startswith("2020-01-0") for day in values(table, "when")), "dates are texts"
        return
    with pytest.raises(TableError, match=r"olumn 'when' holds values of type .*table\.ignore = \['when'\]"):
        values(table, "when")


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (3, "A int is not a table"),
        (pd.DataFrame({"a": []}), "The table has no rows"),
        ({"a": [1, 2], "b": [1]}, "different lengths: a 2, b 1"),
        ([{"a": 1, "b": 2}, {"a": 1}], r"Row 1 \(the first is 0\) has no 'b'; give None"),
        ([{"a": 1}, {"a": 1, "b": 2}], r"Row 0 \(the first is 0\) has no 'b'"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "more than one column named 'a'"),
        ([], "no rows"),
    ],
)
def test_what_is_no_table_is_refused(rows, sentence):
    with pytest.raises(TableError, match=sentence):
        read(rows)


# ---- tables below one another ----


def test_joined_tables_keep_their_rows_places_and_the_columns_of_the_first(tmp_path):
    one = read(written(tmp_path, "a,b\n1,x\n2,y\n", "one.csv"))
    two = read({"b": ["z"], "a": [3]})
    both = joined("both", [one, two])
    assert list(both.columns) == ["a", "b"]
    assert numbers(both, "a").tolist() == [1, 2, 3]
    assert categories(both, "b") == ["x", "y", "z"]
    assert both.where(1) == "one.csv, line 3"
    assert both.where(2) == "the table, row 0 (the first is 0)"


@pytest.mark.parametrize("flip", [False, True])
def test_tables_with_different_columns_are_refused_unless_those_are_ignored(flip):
    tables: list[Table] = [read({"age": [1], "chol": [2]}, "one"), read({"age": [1], "Chol": [3]}, "two")]
    if flip:
        tables.reverse()
    with pytest.raises(TableError, match=r"(one|two) has no column '[cC]hol', which .* Did you mean '[cC]hol'"):
        joined("both", tables)
    assert list(joined("both", tables, ["chol", "Chol"]).columns) == ["age"]
