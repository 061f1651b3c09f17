"""The row that needs no training, against counts and means by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import toy
from made_runs import make

import fedkin
from fedkin.base.task import METRICS, Metric, Task
from fedkin.data.federation import Federation
from fedkin.evidence.comparison import Run
from fedkin.evidence.findings import Findings
from fedkin.evidence.references import rows
from fedkin.evidence.untrained import untrained

SETTINGS = {"rounds": 1, "model": {"name": "mlp", "settings": {"hidden": [4]}}}


def scores(federation: Federation, metric: Metric) -> list[float | None]:
    found = untrained(replace(federation.task, metric=metric), ((c.train, c.test) for c in federation.clients))
    assert found is not None
    return list(found.clients)


def test_the_most_frequent_class_is_counted_by_hand() -> None:
    federation = toy((30, 12, 5), tests=25)
    for client, score in zip(federation.clients, scores(federation, METRICS["accuracy"]), strict=True):
        often = Counter(client.train[1].tolist())
        answer = min(often, key=lambda c: (-often[c], c))
        assert score == pytest.approx(np.mean([y == answer for y in client.test[1].tolist()]))
    assert scores(federation, METRICS["auc"]) == [0.5] * 3, "who says the same of everybody tells nobody apart"
    for client, loss in zip(federation.clients, scores(federation, METRICS["log_loss"]), strict=True):
        count = np.bincount(client.train[1], minlength=3) + 1
        assert loss == pytest.approx(-np.log(count / count.sum())[client.test[1]].mean())


def test_the_mean_target_is_scored_in_its_own_units() -> None:
    y, tested = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([3.0, 5.0])
    task = replace(Task.regression((2,), 1), metric=METRICS["rmse"].in_units(10.0))
    x = torch.zeros(3, 2)
    found = untrained(task, [((x, y), (x[:2], tested)), ((x[:0], y[:0]), (x[:2], tested))])
    assert found is not None and found.name == "mean"
    assert found.clients[0] == pytest.approx(10 * np.sqrt((0 + 4) / 2))
    assert np.isnan(found.clients[1]), "without training data there is nothing to say"  # type: ignore[arg-type]


def test_a_function_that_does_not_take_it_makes_no_row() -> None:
    def refuses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("all answers are the same")

    federation = toy()
    own = replace(federation.task, metric=Metric("mine:refuses", refuses, True, False))
    assert untrained(own, ((c.train, c.test) for c in federation.clients)) is None


def test_every_comparison_has_the_row_and_it_is_no_contender(tmp_path: Path) -> None:
    federation = toy((30, 20, 10), tests=25)
    asked = {"methods": ["separate", "fedavg"], "seeds": 2, "federation": federation, "out": tmp_path, **SETTINGS}
    results = fedkin.compare(**asked)  # type: ignore[arg-type]
    reopened = Findings([fedkin.Run(run.path) for run in results.runs])
    (row,) = rows(reopened.untrained)
    assert (row.name, row.seeds) == ("majority", (0, 1))
    held = [federation.with_validation(0.1, seed) for seed in (0, 1)]
    assert row.mean == pytest.approx(np.mean([scores(each, METRICS["accuracy"]) for each in held]))
    assert {each.method for each in reopened.rows} == {"separate", "fedavg"}
    assert reopened.best_joint[0] == "fedavg" and len(reopened.tests()) == 1


def test_runs_of_an_older_version_have_no_such_row(tmp_path: Path) -> None:
    old: Run = make(tmp_path / "run")
    assert Findings([old]).untrained == []
