"""Columns that number the rows are told before a run; measurements that are whole and different are not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator

from fedkin.data.federation import Federation
from fedkin.data.table import TableError
from fedkin.runs import options


def table(column: Any, rows: int = 120, name: str = "x", silos: int = 3, seed: int = 0) -> pd.DataFrame:
    """Silos in turn, with an age, one column and a diagnosis."""
    rng = np.random.default_rng(seed)
    frame = {"clinic": [f"c{i % silos}" for i in range(rows)], "age": rng.normal(60, 9, rows).round(1), name: column}
    return pd.DataFrame({**frame, "ill": rng.choice(["no", "yes"], rows)})


def told(frame: pd.DataFrame, **more: Any) -> list[str]:
    notes = Federation.from_table(frame, "clinic", "ill", **more).notes
    return [note for note in notes if "in every row of a silo" in note]


def test_a_record_number_is_told_with_what_leaves_it_out():
    frame = table(np.arange(1, 121), name="record")
    (note,) = told(frame)
    assert note == (
        "Column 'record' has another whole number in every row of a silo, as record numbers and time stamps do. As an "
        "input it says nothing of new rows, and may give the answer away if rows are in order: --ignore record "
        "(table.ignore = ['record']) leaves it out."
    )
    typed = re.search(r"(--ignore) (\S+)", note)
    assert typed
    assert told(frame, **options.parse([typed[1], typed[2]])["table"]) == []


def test_several_are_one_sentence():
    frame = table(np.arange(120), name="row").assign(written=1_700_000_000 + 977 * np.arange(120))
    (note,) = told(frame)
    assert note.startswith("Columns 'row', 'written' have another whole number in every row")
    assert "--ignore row,written (table.ignore = ['row', 'written']) leaves them out." in note


RNG = np.random.default_rng(1)
NUMBERS: dict[str, tuple[Any, str]] = {
    "rows that are counted": (np.arange(120), "x"),
    "counted in each silo": (np.arange(120) // 3, "x"),
    "in any order": (RNG.permutation(120), "x"),
    "from a register of three times as many": (RNG.permutation(360)[:120], "x"),
    "seconds": (1_700_000_000 + np.cumsum(RNG.integers(1, 9000, 120)), "x"),
    "the newest first": (1_700_000_000 - np.cumsum(RNG.integers(1, 9000, 120)), "x"),
    "a register of millions, by its name": (RNG.permutation(10_000_000)[:120], "patient_id"),
    "texts of digits": ([f"{i}" for i in RNG.permutation(120)], "x"),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_what_numbers_the_rows_is_found(case: str):
    values, name = NUMBERS[case]
    assert len(told(table(values, name=name))) == 1


INNOCENT: dict[str, Callable[[Generator, int], Any]] = {
    "weights in grams": lambda r, n: r.normal(3400, 450, n).round(),
    "platelets": lambda r, n: r.normal(250_000, 60_000, n).round(),
    "different weights in a wide range": lambda r, n: r.permutation(n * n * 10)[:n],
    "sorted, with ties": lambda r, n: np.sort(r.integers(18, 90, n)),
    "sorted, with decimals": lambda r, n: np.sort(r.normal(140, 20, n)),
    "sorted, with decimals and all different": lambda r, n: np.arange(n) + 0.5,
    "years": lambda r, n: np.sort(r.integers(2001, 2020, n)),
    "with gaps": lambda r, n: np.where(r.random(n) < 0.3, np.nan, r.integers(0, 300, n)),
    "counts": lambda r, n: r.poisson(3, n),
    "flags": lambda r, n: r.integers(0, 2, n),
}


@pytest.mark.parametrize("kind", INNOCENT)
@given(st.integers(0, 2**32 - 1), st.sampled_from([12, 30, 120]))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_nothing_is_told_of_measurements(kind: str, seed: int, rows: int):
    values = np.asarray(INNOCENT[kind](np.random.default_rng(seed), rows), dtype=float)
    assert told(table(values, rows, seed=seed)) == []


def test_an_identifier_that_repeats_is_told_as_one_and_not_as_a_record_number():
    notes = Federation.from_table(table(np.arange(240)[:120] // 6, name="patient_id"), "clinic", "ill").notes
    about = [note for note in notes if "patient_id" in note]
    assert len(about) == 1 and "--group patient_id" in about[0]


def test_dates_categories_and_what_is_left_out_are_not_told_of():
    days = pd.date_range("2024-01-01", periods=120).strftime("%Y-%m-%d")
    assert told(table(days)) == []
    assert told(table(np.arange(120)), ignore="x") == []
    assert told(table(np.arange(120)), group="x") == []


def test_texts_that_are_all_different_are_refused_as_before():
    with pytest.raises(TableError, match="120 different texts in 120 rows"):
        told(table([f"P{i:04d}" for i in range(120)]))
