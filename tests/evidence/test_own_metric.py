"""A metric of one's own: what runs keep of it gives the intervals that the metric's own formula would, without it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from helpers import toy
from torch import Tensor

import fedkin
from fedkin.base.task import METRICS, metric_named
from fedkin.evidence import estimates, own_metric
from fedkin.evidence.findings import Findings
from fedkin.evidence.own_metric import asked


def error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean absolute error, which fedkin has too: an oracle."""
    return (outputs.flatten(1) - targets.reshape(len(targets), -1)).abs().mean()


error.lower_is_better = True  # type: ignore[attr-defined]


def concordance(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of all pairs with different targets, the share that the outputs order alike; fails where there is none."""
    apart = targets.reshape(-1, 1) < targets.reshape(1, -1)
    if not apart.any():
        raise ValueError("no pair can be compared")
    risk = outputs[:, -1]
    return (risk.reshape(-1, 1) < risk.reshape(1, -1))[apart].double().mean()


def kept(before: Tensor, after: Tensor, y: Tensor, function=error) -> list[list[tuple[own_metric.OwnMetric, int]]]:
    metric = metric_named(function)
    return [[(asked(metric, [({"chosen": answers}, y)]), len(y))] for answers in (before, after)]


@pytest.mark.parametrize("n", [12, 60, 400])
def test_intervals_are_those_of_the_formula(n: int) -> None:
    """Of the mean absolute error as somebody's own function, and as ours: the same numbers, intervals alike."""
    rng = torch.Generator().manual_seed(n)
    y = torch.randn(n, 1, generator=rng, dtype=torch.float64)
    before, after = y + torch.randn(n, 1, generator=rng), y + 0.6 * torch.randn(n, 1, generator=rng)
    first, then = kept(before, after, y)
    ours = estimates.gain(METRICS["mae"], before, after, y)
    own = own_metric.gain(first, then, "chosen")
    assert own.value == pytest.approx(ours.value) and own.value > 0
    width = ours.high - ours.low
    assert (own.low, own.high) == pytest.approx((ours.low, ours.high), abs=0.15 * width)
    assert own.p == pytest.approx(ours.p, rel=3, abs=0.02)
    score, expected = own_metric.estimate(then, "chosen"), estimates.estimate(METRICS["mae"], after, y)
    assert score.value == pytest.approx(expected.value)
    assert (score.low, score.high) == pytest.approx(expected[1:], abs=0.15 * (expected.high - expected.low))


def test_draws_of_two_methods_are_pairs() -> None:
    """A model that is better by the same everywhere is better in every draw, though each score varies."""
    y = torch.randn(50, 1, generator=torch.Generator().manual_seed(0))
    noise = torch.rand(50, 1, generator=torch.Generator().manual_seed(1)) + 0.5
    (first, _), (then, _) = (each[0] for each in kept(y + noise, y + noise - 0.25, y))
    a, b = first.values["chosen"][0], then.values["chosen"][0]
    assert len(a) == 1 + own_metric.DRAWS and a.std() > 0.01
    assert (a - b).numpy() == pytest.approx(np.full(len(a), 0.25), abs=1e-5)


def test_a_draw_that_the_function_cannot_answer_is_left_out() -> None:
    """Of four samples with one that differs, a draw is often without it."""
    y = torch.tensor([0.0, 0.0, 0.0, 1.0] * 3)[:, None]
    outputs = torch.arange(12.0)[:, None]
    ((one, n),), _ = kept(outputs, outputs, y, concordance)
    missing = one.values["chosen"].isnan().sum()
    assert 0 < missing < 200 and np.isfinite(own_metric.estimate([(one, n)], "chosen")).all()
    alike = asked(metric_named(concordance), [({"chosen": outputs}, torch.zeros(12, 1))])
    assert np.isnan(own_metric.estimate([(alike, 12)], "chosen")).all()


def test_a_comparison_is_told_in_the_users_metric_without_the_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("clinic_metrics")
    function = type(concordance)(concordance.__code__, globals(), "concordance")
    function.__module__ = module.__name__
    module.concordance = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    settings = {"rounds": 3, "model": {"name": "mlp", "settings": {"hidden": [4]}}, "data": {"validation": 0.0}}
    results = fedkin.compare(
        settings, methods=["separate", "fedavg"], seeds=2, federation=toy((60, 50, 40)), metric=function, out=tmp_path
    )
    monkeypatch.delitem(sys.modules, module.__name__)
    runs = [fedkin.Run(run.path) for run in results.runs]
    found = Findings(runs)
    joined = found.worth_joining()
    assert joined.metric == "clinic_metrics:concordance" and joined.higher_is_better
    scores = {
        method: np.mean([run.scores(model)[-1] for run in runs if run.summary.method == method], axis=0)
        for method, model in (("separate", "personal"), ("fedavg", "global"))
    }
    for silo in joined.silos:
        place = runs[0].summary.clients.index(silo.client)
        assert silo.alone.value == pytest.approx(scores["separate"][place])
        assert silo.common is not None and silo.common.value == pytest.approx(scores["fedavg"][place])
        assert silo.personal.value == silo.common.value
        assert silo.gain.value == pytest.approx(silo.personal.value - silo.alone.value)
        assert silo.gain.low <= silo.gain.value <= silo.gain.high
    assert found.joined is joined and found.untold is None
    assert found.scorecard is not None, "other measures stand beside it"
    assert found.worth_joining("accuracy").metric == "accuracy"


def test_what_a_silo_has_with_nothing_is_told_in_it_too_unless_nobody_knows_what_outputs_mean(tmp_path: Path) -> None:
    common = {"methods": ["separate", "fedavg"], "seeds": 2, "rounds": 1, "data": {"validation": 0.0}}
    federation = toy((60, 50, 40))
    for loss in (None, torch.nn.functional.cross_entropy):
        results = fedkin.compare(
            federation=federation, metric=right, loss=loss, out=tmp_path / str(loss is None), **common
        )
        summaries = [run.summary for run in results.runs if run.summary.method == "fedavg"]
        for silo in results.worth_joining().silos:
            place = summaries[0].clients.index(silo.client)
            expected = [summary.linear.clients[place] for summary in summaries if summary.linear is not None]
            assert len(expected) == 2
            if loss is None:
                assert silo.beside["linear"] == pytest.approx(np.mean(expected)) and "majority" in silo.beside
            else:
                assert silo.beside == {}
        assert "linear" in results.worth_joining("accuracy").silos[0].beside, "of ours it is known"


def right(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).double().mean()
