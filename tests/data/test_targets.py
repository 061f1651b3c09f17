"""How a target was taken is told where nobody said it: amounts that silently become classes."""

from __future__ import annotations

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
