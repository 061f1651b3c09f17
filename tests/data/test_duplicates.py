"""Copies of rows are told where there are many more than chance would give, inside silos and between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator

from fedkin.data import duplicates
from fedkin.data.federation import Federation


def clinics(rows: int = 300, seed: int = 0) -> pd.DataFrame:
    """Two clinics with measurements, a flag and a diagnosis."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "clinic": ["north", "south"] * (rows // 2),
            "age": rng.normal(60, 9, rows).round(3),
            "chol": rng.normal(240, 50, rows).round(1),
            "smokes": rng.integers(0, 2, rows),
            "ill": rng.choice(["no", "yes"], rows),
        }
    )


def told(frame: Any, **more: Any) -> list[str]:
    notes = Federation.from_table(frame, "clinic", "ill", **more).notes
    return [note for note in notes if "columns that are read" in note]


def test_copies_inside_silos_are_told_with_their_number_and_a_place(tmp_path):
    """They fell on both sides of the split, and no word was said."""
    frame = clinics()
    copied = pd.concat([frame, frame[frame["clinic"] == "north"][:20], frame[frame["clinic"] == "south"][:7]])
    copied.to_csv(tmp_path / "patients.csv", index=False)
    (note,) = told(tmp_path / "patients.csv")
    assert note == (
        "27 rows are copies of another row of their silo, in all columns that are read: north (20 of 170), south (7 of "
        "157); one is patients.csv, line 302. Copies fall on both sides of a split, and a model is praised for what it "
        "remembers: remove them, or name the column that says whose rows they are (--group)."
    )


def test_rows_that_two_silos_have_are_told():
    frame = clinics()
    lent = frame[frame["clinic"] == "north"][:12].assign(clinic="south")
    (note,) = told(pd.concat([frame, lent], ignore_index=True))
    assert note == (
        "24 rows are in several silos, equal in all columns that are read: north (12 of 150), south (12 of 162); one "
        "is the table, row 0 (the first is 0). What one silo is tested on another has learned, which praises joining: "
        "keep each row in one silo."
    )


def test_a_number_of_its_own_makes_no_row_another():
    frame = clinics()
    numbered = pd.concat([frame, frame[:20]], ignore_index=True).assign(row=np.arange(320))
    assert len(told(numbered)) == 1


def test_gaps_are_equal_and_columns_that_are_left_out_do_not_matter():
    frame = clinics().assign(chol=lambda f: f["chol"].where(f["smokes"] == 1))
    again = pd.concat([frame, frame[:20]], ignore_index=True).assign(typed_by=np.arange(320) % 7)
    assert told(again) == []
    assert len(told(again, ignore="typed_by")) == 1


def test_copies_of_one_subject_stay_together_and_are_not_told():
    frame = clinics().assign(patient=[f"P{i}" for i in range(300)])
    assert told(pd.concat([frame, frame[:20]], ignore_index=True), group="patient") == []
    others = pd.concat([frame, frame[:20].assign(patient=[f"Q{i}" for i in range(20)])], ignore_index=True)
    (note,) = told(others, group="patient")
    assert note.startswith("20 rows are copies") and note.endswith("remove them.")


def test_a_few_are_not_told_of():
    frame = clinics(1000)
    assert told(pd.concat([frame, frame[:2]], ignore_index=True)) == []
    assert told(frame) == []


# ---- by chance ----


def _answers(r: Generator, n: int) -> np.ndarray:
    """Twenty questions that most people answer with no, the ill with more yes."""
    return r.random((n, 20)) < np.where(r.random(n) < 0.6, 0.002, 0.2)[:, None]


def _chained(r: Generator, n: int) -> np.ndarray:
    """Each column is mostly what the one before is."""
    x = r.integers(0, 6, (n, 8))
    for k in range(1, 8):
        x[:, k] = np.where(r.random(n) < 0.9, x[:, k - 1], x[:, k])
    return x


def _aged(r: Generator, n: int) -> np.ndarray:
    """An age, the year of birth that goes with it, a sex and a diagnosis."""
    age = r.integers(20, 80, n)
    return np.stack([age, 2024 - age, r.integers(0, 2, n), r.integers(0, 2, n)], 1)


BY_CHANCE: dict[str, Callable[[Generator, int], np.ndarray]] = {
    "five flags": lambda r, n: r.integers(0, 2, (n, 5)),
    "twelve answers of three": lambda r, n: r.integers(0, 3, (n, 12)),
    "eight of four": lambda r, n: r.integers(0, 4, (n, 8)),
    "mostly no": _answers,
    "columns that hang together": _chained,
    "a column twice": _aged,
    "one of ten, as flags": lambda r, n: np.eye(10)[r.integers(0, 10, n)],
    "mostly nothing": lambda r, n: np.where(r.random((n, 4)) < 0.95, 0, r.lognormal(3, 1, (n, 4)).round(1)),
    "an age and counts": lambda r, n: np.concatenate([r.normal(60, 9, (n, 1)).round(), r.poisson(1, (n, 4))], 1),
    "measurements": lambda r, n: r.normal(size=(n, 5)),
}


@pytest.mark.parametrize("kind", BY_CHANCE)
@given(st.integers(0, 2**32 - 1), st.sampled_from([200, 1000, 4000]))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_rows_that_are_alike_by_chance_are_not_told(kind: str, seed: int, rows: int):
    rng = np.random.default_rng(seed)
    keys, owners = BY_CHANCE[kind](rng, rows).astype(float), rng.integers(0, 3, rows)
    assert not any(found.many for found in duplicates.of_rows(list(keys.T), owners) if found is not None)


@pytest.mark.parametrize("kind", ["measurements", "twelve answers of three"])
@given(st.integers(0, 2**32 - 1))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_copies_among_rows_that_are_hardly_alike_by_chance_are_told(kind: str, seed: int):
    """A tenth of 400 rows."""
    rng = np.random.default_rng(seed)
    keys = BY_CHANCE[kind](rng, 400).astype(float)
    keys[:40] = keys[40:80]
    inside, _ = duplicates.of_rows(list(keys.T), np.zeros(400, np.int64))
    assert inside is not None and inside.many and inside.rows[0] >= 40


@pytest.mark.parametrize("kind", ["measurements", "twelve answers of three"])
def test_a_million_rows_take_seconds(kind: str):
    rng = np.random.default_rng(0)
    keys, owners = BY_CHANCE[kind](rng, 1_000_000).astype(float), rng.integers(0, 12, 1_000_000)
    keys[:60_000] = keys[60_000:120_000]
    columns, spent = list(np.ascontiguousarray(keys.T)), time.process_time()
    duplicates.of_rows(columns, owners)
    assert time.process_time() - spent < 5
