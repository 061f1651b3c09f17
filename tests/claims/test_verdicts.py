"""Silos whose truth is known are told it: the draws of benchmarks/verdicts.py, and the results kept of them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verdicts", BENCHMARKS / "verdicts.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_kept_of_forty_draws_says_so_and_the_page_is_made_of_it() -> None:
    verdicts = script()
    found = json.loads((BENCHMARKS / "results" / "verdicts.json").read_text())
    assert len(found["draws"]) == 40 and found["rows"] == verdicts.ROWS
    assert len({number for number, _ in verdicts.wrong(found)}) <= 4
    answers = verdicts.large_gains(found)
    assert len(answers) >= 30 and answers.count("yes") >= 0.8 * len(answers)
    page = BENCHMARKS.parent / "docs" / "verdicts.md"
    assert page.read_text() == verdicts.page(found)


def test_a_verdict_against_the_truth_is_counted_as_wrong() -> None:
    def told(answer: str, truth: float) -> dict[str, object]:
        return {"answer": answer, "truth": truth}

    draws = [
        {"silos": {"coin": told("yes", 0.01), "small": told("yes", 0.2), "opposite": told("no", -0.1)}},
        {"silos": {"coin": told("cannot tell", 0.0), "small": told("no", 0.2), "opposite": told("yes", -0.1)}},
    ]
    assert sorted(script().wrong({"draws": draws})) == [(0, "coin"), (1, "opposite"), (1, "small")]
    assert script().large_gains({"draws": draws}) == ["yes", "no"]


@pytest.mark.slow
def test_eight_new_draws_are_told_the_truth() -> None:
    verdicts = script()
    found = {"draws": [verdicts.one(number) for number in range(1000, 1008)]}
    assert len({number for number, _ in verdicts.wrong(found)}) <= 1
    answers = verdicts.large_gains(found)
    assert len(answers) >= 5 and answers.count("yes") >= 0.75 * len(answers)
