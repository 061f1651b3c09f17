"""Numbers that stand for a gap are told before a run, and what ends a column by nature is not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator

from fedkin.data import sentinels
from fedkin.data.federation import Federation
from fedkin.data.preprocessing import from_json
from fedkin.engines import start
from fedkin.runs import options


def clinics(rows: int = 200, seed: int = 0, **columns: Any) -> pd.DataFrame:
    """Two clinics, with a measurement that is worth no note."""
    rng = np.random.default_rng(seed)
    frame = {"clinic": ["north", "south"] * (rows // 2), "age": rng.normal(50, 12, rows).round(1)}
    return pd.DataFrame({**frame, **columns, "ill": rng.choice(["no", "yes"], rows)})


def chol(rows: int = 200, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(240, 50, rows).round().clip(126, 564)


def with_code(values: np.ndarray, code: float, share: float = 0.06, seed: int = 2) -> np.ndarray:
    """So many of the cells, by lot, are the code."""
    at = np.random.default_rng(seed).permutation(len(values))[: round(share * len(values))]
    coded = np.asarray(values, dtype=float).copy()
    coded[at] = code
    return coded


def notes(frame: pd.DataFrame | Path, **more: Any) -> list[str]:
    return [note for note in Federation.from_table(frame, "clinic", "ill", **more).notes if "missing" in note]


def test_a_code_is_told_with_its_column_how_often_and_what_to_type():
    """It was scaled as a number: the mean fell by a third, and no word was said."""
    frame = clinics(chol=with_code(chol(), -999))
    (note,) = notes(frame)
    low, high = frame["chol"][frame["chol"] > 0].agg(["min", "max"])
    assert note == (
        f"Column 'chol' is -999 in 12 of 200 rows, and {low:g} to {high:g} in the others. If that means missing, "
        "declare it: --missing-in '{chol = [-999]}' (table.missing_in = {chol = [-999]})."
    )


@pytest.mark.parametrize("declared", [["--missing", "-999"], ["--missing-in", "{chol = [-999], dose = [-999]}"]])
def test_a_code_with_a_decimal_comma_is_declared_by_the_same_words(tmp_path, declared):
    """As pandas writes it, decimal=',': '-999,0'. It was trained on, and the note advised what had been typed."""
    frame = clinics(chol=with_code(chol() + 0.5, -999.0), dose=with_code(chol(seed=4) / 7, -999.0))
    frame.to_csv(tmp_path / "commas.csv", sep=";", decimal=",", index=False)
    assert ";-999,0" in (tmp_path / "commas.csv").read_text()
    (note,) = notes(tmp_path / "commas.csv")
    typed = re.search(r"--missing-in '(.*?)' \(", note)
    assert typed
    for words in (declared, ["--missing-in", typed[1]]):
        said = options.parse(words)["table"]
        assert notes(tmp_path / "commas.csv", **said) == []
        tables = (tmp_path / "commas.csv", frame)
        found, plain = (Federation.from_table(table, "clinic", "ill", **said) for table in tables)
        for ours, theirs in zip(found.clients, plain.clients, strict=True):
            torch.testing.assert_close(ours.train, theirs.train)
        prepared = from_json(json.loads(json.dumps(found.clients[0].preprocessing.to_json())))
        asked = [prepared.read({"age": ["60"], "chol": [gap], "dose": ["20,5"]}) for gap in ("-999,0", "-999", None)]
        assert [row.isnan().tolist() for row in asked] == 3 * [[[False, True, False]]], "also in new rows"


def test_what_is_advised_can_be_typed_and_leaves_nothing_to_tell():
    frame = clinics(chol=with_code(chol(), -999), **{"white cells": with_code(chol(seed=4), 9999)})
    (note,) = notes(frame, missing_in={"age": [-7.5, "?"]})
    assert note.startswith(
        "2 columns have a number that repeats apart from all others, as codes for a gap do: chol (-999 in 12 rows), "
        "white cells (9999 in 12 rows). If they mean missing, declare them: --missing-in '"
    )
    typed = re.search(r"--missing-in '(.*?)' \(", note)
    assert typed
    raw = options.parse(["--missing-in", typed[1]])
    assert raw["table"]["missing_in"] == {"age": [-7.5, "?"], "chol": [-999], "white cells": [9999]}, "and what was"
    assert notes(frame, **raw["table"]) == []
    marked = Federation.from_table(frame, "clinic", "ill", **raw["table"])
    assert {"chol missing", "white cells missing"} <= set(marked.clients[0].preprocessing.inputs)


def test_the_same_code_in_many_columns_is_one_sentence_with_one_short_advice():
    frame = clinics(**{f"lab_{i}": with_code(chol(seed=i), -999, seed=i) for i in range(12)})
    (note,) = notes(frame)
    assert note.startswith("12 columns have a number that repeats apart from all others")
    assert "lab_0 (-999 in 12 rows)" in note and " and 7 more. " in note
    assert note.endswith('declare them: --missing "-999" (table.missing = [-999]).')
    assert notes(frame, **options.parse(["--missing", "-999"])["table"]) == []
    elsewhere = frame.assign(height=np.append([-999.0], np.linspace(-2000, 2000, 199)))
    (note,) = notes(elsewhere)
    assert "--missing-in '{lab_0 = [-999], lab_1 = [-999]," in note, "a column has it as a number of its own"


AGES = np.random.default_rng(3).integers(18, 91, 300).astype(float)
COUNTS = np.random.default_rng(3).poisson(0.7, 300) * np.random.default_rng(4).integers(1, 15, 300)
CODED: dict[str, tuple[np.ndarray, list[float]]] = {
    "-999 among amounts": (with_code(chol(300), -999), [-999]),
    "-99 among amounts": (with_code(chol(300), -99), [-99]),
    "-9999 among temperatures": (with_code(np.random.default_rng(5).normal(8, 9, 300), -9999), [-9999]),
    "-99 among temperatures": (with_code(np.random.default_rng(5).normal(8, 9, 300), -99), [-99]),
    "999 among amounts": (with_code(chol(300), 999), [999]),
    "9999 among years": (with_code(np.random.default_rng(5).integers(1950, 2021, 300), 9999), [9999]),
    "99 among grades": (with_code(np.random.default_rng(5).integers(0, 11, 300), 99), [99]),
    "999.9 among pressures": (with_code(np.random.default_rng(5).normal(80, 9, 300).round(1), 999.9), [999.9]),
    "999 among ages": (with_code(AGES, 999), [999]),
    "-1 among ages": (with_code(AGES, -1), [-1]),
    "-9 among ages": (with_code(AGES, -9), [-9]),
    "-1 among visits, most of them none": (with_code(COUNTS, -1), [-1]),
    "-1 for never, mostly": (with_code(np.random.default_rng(5).integers(1, 500, 300), -1, 0.8), [-1]),
    "-1 among grades": (with_code(np.random.default_rng(5).integers(0, 11, 300), -1), [-1]),
    "-1 among amounts with a tail": (with_code(np.exp(np.random.default_rng(5).normal(1, 1, 300)).round(1), -1), [-1]),
    "-9 among flags": (with_code(np.random.default_rng(5).integers(0, 2, 300), -9), [-9]),
    "9 among answers": (with_code(np.random.default_rng(5).integers(1, 3, 300), 9), [9]),
    "-1 among answers from 1 to 4": (with_code(np.random.default_rng(5).integers(1, 5, 300), -1), [-1]),
    "unknown and refused": (with_code(with_code(AGES, -9), -8, seed=7), [-9, -8]),
    "both ends": (with_code(with_code(chol(300), -999), 9999, 0.02, seed=7), [-999, 9999]),
    "with gaps beside": (with_code(with_code(chol(300), np.nan, 0.3), -999), [-999]),
    "among z-scores": (with_code(np.random.default_rng(5).normal(0, 1, 300), -99), [-99]),
    "the largest short number": (with_code(chol(300), 32767), [32767]),
}


@pytest.mark.parametrize("case", CODED)
def test_codes_that_people_use_are_found(case: str):
    values, codes = CODED[case]
    assert [code.value for code in sentinels.of_column("x", values)] == codes


# ---- what is no code ----

ORDINARY: dict[str, Callable[[Generator, int], np.ndarray]] = {
    "ages, some of 99": lambda r, n: np.append(r.integers(0, 100, n), [99.0] * 5),
    "ages of the old": lambda r, n: np.append(r.normal(88, 4, n).round(), [99.0] * 3),
    "hours, 99 at most": lambda r, n: r.normal(45, 18, n).round().clip(1, 99),
    "scores of -1, 0 and 1": lambda r, n: r.integers(-1, 2, n),
    "scores from -1 to 1": lambda r, n: r.uniform(-1.4, 1.4, n).clip(-1, 1).round(2),
    "changes of few steps": lambda r, n: r.poisson(2, n) - 1,
    "changes of many steps": lambda r, n: r.normal(9, 5, n).round(),
    "temperatures": lambda r, n: r.normal(5, 8, n).round(),
    "temperatures to a tenth": lambda r, n: r.normal(-3, 4, n).round(1),
    "flags": lambda r, n: r.integers(0, 2, n),
    "rare flags": lambda r, n: r.random(n) < 0.03,
    "detected from a limit on": lambda r, n: np.exp(r.normal(-2, 1.5, n)).clip(0.09, None).round(2),
    "detected up to 999": lambda r, n: np.exp(r.normal(4, 1.5, n)).clip(None, 999).round(),
    "detected up to 99.9": lambda r, n: np.exp(r.normal(2, 1.2, n)).clip(None, 99.9).round(1),
    "z-scores": lambda r, n: r.normal(0, 1, n),
    "whole z-scores": lambda r, n: r.normal(0, 3, n).round(),
    "answers from 1 to 5": lambda r, n: r.integers(1, 6, n),
    "answers from 0 to 9": lambda r, n: r.integers(0, 10, n),
    "saturations": lambda r, n: (100 - r.exponential(2, n)).round().clip(70, 99),
    "percentages": lambda r, n: r.beta(5, 1, n).round(2) * 100,
    "counts": lambda r, n: r.poisson(2, n),
    "counts with a tail": lambda r, n: r.negative_binomial(0.5, 0.02, n),
    "amounts with a tail": lambda r, n: (r.pareto(1.2, n) * 1000).round(),
    "mostly nothing": lambda r, n: np.where(r.random(n) < 0.9, 0, r.lognormal(7, 1, n).round()),
    "prices": lambda r, n: r.choice([9.99, 19.99, 29.99, 49.99, 99.99, 199.99], n),
    "years": lambda r, n: r.integers(1990, 2000, n),
    "balances": lambda r, n: r.normal(0, 5000, n).round(2),
    "doses": lambda r, n: r.choice([0, 50, 100, 200], n),
}


@pytest.mark.parametrize("kind", ORDINARY)
@given(st.integers(0, 2**32 - 1), st.sampled_from([60, 100, 400, 3000]))
@settings(max_examples=40, deadline=None, derandomize=True)  # of a thousand ordinary columns one may seem strange
def test_nothing_is_told_of_ordinary_columns(kind: str, seed: int, rows: int):
    values = np.asarray(ORDINARY[kind](np.random.default_rng(seed), rows), dtype=float)
    assert sentinels.of_column("x", values) == []


def test_a_number_that_is_there_once_or_twice_is_no_code():
    assert notes(clinics(chol=with_code(chol(), -999, 0.01))) == []


def test_declared_gaps_dates_and_categories_are_not_looked_at():
    days = pd.Series(pd.Timestamp("2024-01-01") + pd.to_timedelta(with_code(np.arange(200.0), -9999), unit="D"))
    frame = clinics(day=days.dt.strftime("%Y-%m-%d"), cp=with_code(np.arange(200) % 4, -9))
    assert notes(frame, categorical="cp") == []


# ---- once ----


def test_a_silo_that_is_full_of_a_code_is_told_of_once():
    frame = clinics()
    frame["chol"] = np.where(frame["clinic"] == "south", -999.0, chol())
    told = [note for note in Federation.from_table(frame, "clinic", "ill").notes if "chol" in note]
    assert len(told) == 1 and "is -999 in 100 of 200 rows" in told[0], "neither as one value, nor as another unit"


def test_a_gap_in_the_target_is_told_as_such():
    frame = clinics(stay=with_code(np.random.default_rng(6).integers(1, 40, 200), -999)).drop(columns="ill")
    found = Federation.from_table(frame, "clinic", "stay").notes
    assert any(
        note.startswith("The target 'stay' is -999 in 12 of 200 rows, and 1 to 39 in the others. If that means")
        for note in found
    )


def test_it_is_told_before_a_run(tmp_path):
    clinics(chol=with_code(chol(), -999)).to_csv(tmp_path / "t.csv", index=False)
    words = ["--data", str(tmp_path / "t.csv"), "--client", "clinic", "--target", "ill", "--method", "separate"]
    assert any("'chol' is -999" in warning for warning in start.prepare(options.parse(words)).warnings)
