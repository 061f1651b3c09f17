"""How a target was taken is told where nobody said it: amounts that silently become classes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedkin.data.federation import Federation
from fedkin.engines import start
from fedkin.runs import options


def stays(values: Any, rows: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    target = rng.permutation((list(values) * rows)[:rows])
    return pd.DataFrame({"ward": ["a", "b"] * (rows // 2), "age": rng.normal(60, 9, rows).round(1), "stay": target})


def told(values: Any, **more: Any) -> list[str]:
    return [note for note in Federation.from_table(stays(values), "ward", "stay", **more).notes if "stay" in note]


def test_days_of_a_stay_that_become_classes_are_told():
    """Days from 0 to 14 were fifteen classes, and no word was said."""
    assert told(range(15)) == [
        "The target 'stay' has 15 different whole numbers, 0 to 14, which are taken as classes. If they are amounts: "
        "--task regression (table.task = 'regression'); if they are classes, --task classification says so."
    ]


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_nothing_is_told_of_what_was_said(task: str):
    assert told(range(15), task=task) == []


@pytest.mark.parametrize("values", [[0, 1], [1, 2], ["a", "b", "c"], [True, False], range(40), [0.5, 1.5, 2.5]])
def test_nothing_is_told_of_two_classes_of_names_and_of_what_is_a_regression_anyway(values: Any):
    assert told(values) == []


def test_what_is_advised_can_be_typed(tmp_path: Path):
    stays(range(15)).to_csv(tmp_path / "t.csv", index=False)
    words = ["--data", str(tmp_path / "t.csv"), "--client", "ward", "--target", "stay", "--method", "separate"]
    ready = start.prepare(options.parse(words))
    assert ready.problem.task.outputs == 15 and any("taken as classes" in warning for warning in ready.warnings)
    for task in ("regression", "classification"):
        ready = start.prepare(options.parse([*words, "--task", task]))
        assert ready.problem.task.kind == task
        assert not any("taken as classes" in warning for warning in ready.warnings)


def doses(units: dict[str, float], rows: int = 60, code: float | None = None) -> pd.DataFrame:
    """Silos of one law, whose amounts to predict are multiplied."""
    rng = np.random.default_rng(0)
    silo, x = np.repeat(list(units), rows), rng.normal(size=rows * len(units))
    dose = (150 + 70 * x + rng.normal(0, 30, len(x))) * np.repeat(list(units.values()), rows)
    if code is not None:
        dose[rows // 2 : rows] = code
    return pd.DataFrame({"silo": silo, "x": x, "dose": dose})


@pytest.mark.parametrize("scale_target", ["auto", "none"])
def test_a_target_in_another_unit_is_told_with_the_silo_and_the_factor(scale_target: str):
    """Glucose in mmol/l in one silo: alone, too, it suffered by the scale of the others, and no word was said."""
    found = Federation.from_table(
        doses({"mmol": 0.0555, "north": 1, "south": 1, "west": 1}), "silo", "dose", scale_target=scale_target
    )
    (note,) = [note for note in found.notes if "'dose'" in note]
    words = re.fullmatch(
        r"The target 'dose' has a deviation of ([\d.]+) in mmol \(([\d.]+) times less\), and of ([\d.]+) in other "
        r"silos\. If that is another unit, bring it to one: amounts to predict have one scale for all silos, also "
        r"alone and with --statistics own, and those of the smaller unit are hardly learned\.",
        note,
    )
    assert words, note
    own, factor, others = map(float, words.groups())
    assert others / own == pytest.approx(factor, rel=0.01) and factor == pytest.approx(1 / 0.0555, rel=0.25)


def test_all_silos_with_another_unit_are_named():
    units = {"a": 0.05, "b": 1, "c": 1, "d": 30, "e": 1}
    (note,) = [n for n in Federation.from_table(doses(units), "silo", "dose").notes if "'dose'" in n]
    assert re.search(r"of [\d.]+ in a \([\d.]+ times less\), [\d.e+]+ in d \([\d.]+ times more\), and of", note)


@pytest.mark.parametrize("units", [{"a": 1}, {"a": 1, "b": 1}, {"a": 0.5, "b": 1, "c": 2}])
def test_nothing_is_told_of_targets_in_one_unit(units: dict[str, float]):
    assert not any("'dose'" in note for note in Federation.from_table(doses(units), "silo", "dose").notes)


def test_codes_for_a_gap_are_not_told_as_another_unit():
    (note,) = [
        n for n in Federation.from_table(doses({"a": 1, "b": 1}, code=-9999), "silo", "dose").notes if "'dose'" in n
    ]
    assert "is -9999 in 30 of 120 rows" in note


def test_whole_numbers_of_arrays_that_a_table_would_take_for_amounts_are_told():
    """Arrays say by their type what they are; yet a cost of 5,000 would be one of 5,001 classes."""
    rng = np.random.default_rng(0)

    def arrays(top: int) -> dict[str, Any]:
        return {name: (rng.normal(size=(60, 2)), np.append(rng.integers(0, top, 59), top)) for name in "ab"}

    (note,) = Federation.from_arrays(arrays(5000)).notes
    assert note == (
        "Targets are whole numbers up to 5,000, which are taken as 5,001 classes. If they are amounts, say "
        "task='regression' (--task regression); if they are classes, task='classification' says so."
    )
    for found in (arrays(9), arrays(19)):
        assert Federation.from_arrays(found).notes == ()
    for task in ("regression", "classification"):
        assert Federation.from_arrays(arrays(5000), task).notes == ()
