"""What Panacea is said to do on FL-60, as runs that can fail: it learns, it withstands liars, it serves newcomers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import SHARED

import fedkin

DATA = SHARED
SEEDS = 2
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (DATA / "dg" / "dg60.npz").exists():
        pytest.skip("FL-60's file is not beside this repository, in ../shared/data")
    monkeypatch.setenv("FEDKIN_DATA", str(DATA))


def compared(folder: Path, methods: list[str], **settings: Any) -> dict[str, list[fedkin.Run]]:
    results = fedkin.compare({"data": "fl60", "device": "cpu", **settings}, methods=methods, seeds=SEEDS, out=folder)
    return {method: [run for run in results.runs if run.summary["method"] == method] for method in methods}


def at_the_end(run: fedkin.Run, attacked: bool) -> float:
    """The generated models' mean over attacked or over benign clients in the closing exchange."""
    final = next(line for line in reversed(run.rounds) if line.get("final"))
    hit = set(run.summary["corrupted"])
    scores = zip(run.summary["clients"], final["models"]["generated"]["clients"], strict=True)
    return float(np.mean([score for name, score in scores if (name in hit) is attacked]))


def test_with_their_own_local_training_both_reach_the_papers_accuracy(tmp_path: Path) -> None:
    for runs in compared(tmp_path, ["panacea", "panacea_gn"], budget="native").values():
        assert np.mean([run.summary["models"]["generated"]["bmta"] for run in runs]) >= 0.995


def test_clients_that_lie_get_models_from_their_neighbours_truth(tmp_path: Path) -> None:
    lies = {"labels": 1.0, "clients": 0.4, "kind": "random"}
    found = compared(tmp_path / "sgd", ["panacea", "panacea_gn", "pfedhn"], corruption=lies)
    attacked = {method: np.mean([at_the_end(run, True) for run in runs]) for method, runs in found.items()}
    for method in ("panacea", "panacea_gn"):
        assert attacked[method] > 0.95
        assert attacked[method] > attacked["pfedhn"] + 0.15
        assert np.mean([at_the_end(run, False) for run in found[method]]) > 0.97
    # A hypernetwork that fits faster fits the lies: what the graph protects, Adam gives away.
    fast = {"server_optimiser": "adam", "server_lr": 1e-3, "server_steps": 5}
    eroded = compared(tmp_path / "adam", ["panacea"], corruption=lies, settings=fast)["panacea"]
    assert np.mean([at_the_end(run, True) for run in eroded]) < attacked["panacea"] - 0.1


def test_newcomers_are_served_without_training(tmp_path: Path) -> None:
    found = compared(tmp_path, ["panacea", "pfedhn"], participation={"novel": 0.2})
    novel = {method: [run.summary["novel"]["models"] for run in runs] for method, runs in found.items()}
    for model in ("generated", "generated-mean", "generated-zero", "neighbours"):
        assert np.mean([each[model]["mean"] for each in novel["panacea"]]) > 0.97
    assert np.mean([each["generated"]["mean"] for each in novel["pfedhn"]]) < 0.95
