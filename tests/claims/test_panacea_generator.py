"""Panacea's generator draws the graph with the settings that benchmarks/generator.py found, and not at its default."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import helpers
import pytest
import torch

import fedkin

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SPIRAL = {"data": {"name": "fl60", "clients": 24, "settings": {"variant": "generated"}}, "rounds": 60}


@pytest.fixture
def generator() -> ModuleType:
    return helpers.script("generator")


def found(generator: ModuleType) -> dict[str, Any]:
    return dict(json.loads(generator.RESULTS.read_text(encoding="utf-8")))


def test_the_page_is_its_json(generator: ModuleType) -> None:
    text, kept = generator.PAGE.read_text(encoding="utf-8"), found(generator)
    assert generator.rewritten(text, kept) == text, "python benchmarks/generator.py page makes it anew"
    assert {"command", "machine", "versions", "commit", "seconds"} <= set(kept["search"]) & set(kept["study"])


def test_what_was_searched_and_what_was_studied_share_no_seed(generator: ModuleType) -> None:
    seeds = [{seed for row in found(generator)[part]["rows"] for seed in row["seeds"]} for part in ("search", "study")]
    assert not seeds[0] & seeds[1] and len(seeds[1]) == 5


def test_edges_are_scored_beside_guessing(generator: ModuleType) -> None:
    graph = torch.tensor([[0.0, 2.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    share = torch.tensor(1 / 3)
    frequency = generator.drawn(torch.full((3, 3), float(share.logit())), graph)
    assert frequency["edge_loss"] == pytest.approx(frequency["guessing"], abs=1e-6) and frequency["auc"] == 0.5
    right = generator.drawn(torch.where(graph > 0, 5.0, -5.0), graph)
    assert right["auc"] == 1 and right["edge_loss"] < 0.01
    assert generator.drawn(torch.full((3, 3), torch.nan), graph)["edge_loss"] is None


@pytest.mark.parametrize(("kind", "weight"), [("identity", 10.0), ("own", 10.0)])
def test_with_weight_ten_edges_are_drawn_and_at_the_default_they_are_not(
    tmp_path: Path, generator: ModuleType, kind: str, weight: float
) -> None:
    settings = {"generator": kind, "generator_weight": weight}
    working = generator.edges(fedkin.run(SPIRAL, method="panacea", settings=settings, out=tmp_path / "working"))
    assert working["edge_loss"] < 0.8 * working["guessing"] and working["auc"] > 0.8
    default = generator.edges(fedkin.run(SPIRAL, method="panacea", out=tmp_path / "default"))
    assert default["edge_loss"] > default["guessing"]
