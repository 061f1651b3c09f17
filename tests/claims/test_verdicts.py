"""Silos whose truth is known are told it: the draws of benchmarks/verdicts.py, and the results kept of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import script

import fedkin
from fedkin.report.verdicts import joining_told

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_what_is_kept_of_forty_draws_says_so_and_the_page_is_made_of_it() -> None:
    verdicts = script("verdicts")
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
    assert sorted(script("verdicts").wrong({"draws": draws})) == [(0, "coin"), (1, "opposite"), (1, "small")]
    assert script("verdicts").large_gains({"draws": draws}) == ["yes", "no"]


@pytest.mark.slow
def test_eight_new_draws_are_told_the_truth() -> None:
    verdicts = script("verdicts")
    found = {"draws": [verdicts.one(number) for number in range(1000, 1008)]}
    assert len({number for number, _ in verdicts.wrong(found)}) <= 1
    answers = verdicts.large_gains(found)
    assert len(answers) >= 5 and answers.count("yes") >= 0.75 * len(answers)


def test_a_network_that_is_no_good_alone_is_no_reason_to_join(tmp_path: Path) -> None:
    """Numbers by a linear law, the same at all silos, and a network that overfits forty rows: joining is better than
    that, for sure and in truth, and a line of the silo's own is better than both. Nobody is told yes."""
    rng = np.random.default_rng(5)
    law = rng.normal(size=12)
    silos = {}
    for name in ("north", "south", "east", "west", "coast"):
        x = rng.normal(size=(440, 12))
        y = x @ law + 0.5 * rng.normal(size=440)
        silos[name] = (x[:40], y[:40], x[40:], y[40:])
    settings = {
        "rounds": 30,
        "model": {"name": "mlp", "settings": {"hidden": [64, 64]}},
        "local": {"lr": 0.01, "epochs": 2, "batch_size": 8, "optimiser": "adam"},
        "learning": {"metric": "rmse"},
    }
    results = fedkin.compare(settings, methods=["separate", "fedavg"], federation=silos, out=tmp_path)
    found = results.worth_joining()
    for silo in found.silos:
        assert silo.surely == "yes" and silo.gain.low > 0
        assert silo.beside["linear"] < silo.personal.value < silo.alone.value < silo.beside["mean"]
        assert silo.verdict.startswith("cannot tell: a linear model of its own scores 0.")
    told = " ".join(joining_told(results.findings))
    assert "helped" not in told.replace("Whether joining with fedavg helped cannot be told", "")
    assert "the network alone is no good yardstick here. Try --model logistic, alone and joined." in told
    line = fedkin.compare(
        settings | {"model": {"name": "logistic"}}, methods=["separate", "fedavg"], federation=silos, out=tmp_path / "l"
    )
    joined = line.worth_joining()
    assert all(silo.personal.value < 1.1 * 0.5 for silo in joined.silos), (
        "as was suggested: the noise is all that is left"
    )
