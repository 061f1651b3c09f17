"""No baseline is a straw man: with its defaults each learns in the rounds there are.

The rates were chosen on validation data, by benchmarks/digits_rate.py and benchmarks/baseline_rates.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedkin
from fedkin.runs.config import resolve

RELABELLED = {"data": {"name": "digits", "split": "relabelled"}, "rounds": 10}


def last(tmp_path: Path, settings: dict[str, Any], method: str, model: str) -> float:
    return float(fedkin.run(settings, method=method, out=tmp_path / method).summary.models[model].last)


@pytest.mark.parametrize(
    ("method", "model", "learnt"),
    [
        ("groups", "cloud", 0.86),
        ("pfedhn", "generated", 0.75),
        ("panacea", "generated", 0.75),
        ("perfedavg", "adapted", 0.65),
        ("pfedme", "personal", 0.65),
        ("apfl", "global", 0.5),
    ],
)
def test_ten_rounds_on_digits_teach_every_method_something(
    tmp_path: Path, method: str, model: str, learnt: float
) -> None:
    assert last(tmp_path, RELABELLED, method, model) > learnt


def test_scaffold_learns_a_data_set_that_trains_with_momentum(tmp_path: Path) -> None:
    spiral = {"data": {"name": "fl60", "clients": 12, "settings": {"variant": "generated"}}, "rounds": 30}
    assert resolve(spiral).local.momentum == 0.9
    assert last(tmp_path, spiral, "scaffold", "personal") > 0.85
