"""Cox's likelihood and Harrell's C-index beside what their definitions say, one pair at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers import DEVICE
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedkin.base.survival import c_index, comparable_with, cox, pairs, pairs_of_each
from fedkin.base.task import LOSSES, Task, metric_named

quick = settings(deadline=None, max_examples=60)


def drawn(seed: int, n: int, events: float = 0.5, times: int = 8, risks: int = 0) -> tuple[Tensor, Tensor]:
    """Log risks (n, 1) and (time, event), with ties in time and, if asked for, in risk."""
    rng = np.random.default_rng(seed)
    risk = rng.integers(risks, size=n).astype(float) if risks else rng.normal(size=n)
    target = np.stack([rng.integers(1, times + 1, size=n), rng.random(n) < events], axis=1).astype(float)
    return torch.from_numpy(risk)[:, None].to(DEVICE), torch.from_numpy(target).to(DEVICE)


def likelihood(risk: list[float], target: list[list[float]], weight: list[float] | None = None) -> float:
    """By the definition, Breslow's ties."""
    often = weight or [1.0] * len(risk)
    total = 0.0
    for i, (time, event) in enumerate(target):
        if event:
            at_risk = sum(often[j] * math.exp(risk[j]) for j in range(len(risk)) if target[j][0] >= time)
            total += often[i] * (math.log(at_risk) - risk[i])
    return total / sum(often)


def harrell(risk: list[float], target: list[list[float]]) -> float:
    won = comparable = 0.0
    for i, (time, event) in enumerate(target):
        for j, (other, also) in enumerate(target):
            if event and (other > time or (other == time and not also)):
                comparable += 1
                won += 1 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0
    return won / comparable if comparable else math.nan


@quick
@given(st.integers(0, 10**6), st.integers(1, 25), st.integers(1, 30))
def test_the_loss_is_breslows_partial_likelihood(seed: int, n: int, times: int) -> None:
    outputs, targets = drawn(seed, n, times=times)
    expected = likelihood(outputs[:, 0].tolist(), targets.tolist())
    assert float(cox(outputs, targets)) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@quick
@given(st.integers(0, 10**6), st.integers(1, 15), st.integers(0, 10))
def test_weights_count_samples_so_often_and_none_of_weight_zero(seed: int, n: int, padding: int) -> None:
    outputs, targets = drawn(seed, n)
    often = torch.from_numpy(np.random.default_rng(seed).integers(1, 4, size=n).astype(float)).to(DEVICE)
    more, stranger = drawn(seed + 1, padding)
    found = cox(
        torch.cat([outputs, more]), torch.cat([targets, stranger]), torch.cat([often, often.new_zeros(padding)])
    )
    assert float(found) == pytest.approx(likelihood(outputs[:, 0].tolist(), targets.tolist(), often.tolist()))
    written_out = often.long()
    again = cox(outputs.repeat_interleave(written_out, 0), targets.repeat_interleave(written_out, 0))
    assert float(found) == pytest.approx(float(again))


@pytest.mark.parametrize("weighted", [False, True])
def test_its_gradient_is_that_of_finite_differences(weighted: bool) -> None:
    outputs, targets = drawn(3, 20, times=9)
    weight = torch.linspace(0.0, 2.0, 20, dtype=torch.float64, device=DEVICE) if weighted else None
    assert torch.autograd.gradcheck(lambda h: cox(h, targets, weight), outputs.requires_grad_())
    slope = torch.func.grad(lambda h: cox(h, targets, weight))
    along = torch.linspace(-1, 1, 20, dtype=torch.float64, device=DEVICE)[:, None]
    curved = torch.func.grad(lambda h: (slope(h) * along).sum())(outputs.detach())
    differences = (slope(outputs.detach() + 1e-6 * along) - slope(outputs.detach() - 1e-6 * along)) / 2e-6
    torch.testing.assert_close(curved, differences, rtol=1e-6, atol=1e-9)


def test_a_batch_without_events_is_nothing_and_moves_nothing() -> None:
    outputs, targets = drawn(0, 6, events=0.0)
    loss = cox(outputs.requires_grad_(), targets)
    (slope,) = torch.autograd.grad(loss, outputs)
    assert float(loss.detach()) == 0
    assert torch.equal(slope, torch.zeros_like(slope))


def test_risks_far_apart_overflow_nothing_in_single_precision() -> None:
    """exp(300) is infinite in float32, and exp(-300) nothing; the likelihood is neither."""
    risk = torch.tensor([[-300.0], [0.0], [300.0]], device=DEVICE, requires_grad=True)
    targets = torch.tensor([[3.0, 1.0], [2.0, 1.0], [1.0, 1.0]], device=DEVICE)
    loss = cox(risk, targets)
    (slope,) = torch.autograd.grad(loss, risk)
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-5)
    assert torch.isfinite(slope).all()
    assert float(cox(-risk.detach(), targets)) == pytest.approx(300.0, rel=1e-5)  # (300 + 600) / 3


def test_side_by_side_it_is_what_it_is_alone() -> None:
    parts = [drawn(seed, 12) for seed in range(4)]
    outputs, targets = (torch.stack(each) for each in zip(*parts, strict=True))
    found = LOSSES["cox"].each(outputs, targets, None)
    torch.testing.assert_close(found, torch.stack([cox(*part) for part in parts]), rtol=1e-12, atol=0)


@quick
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
def test_the_c_index_is_harrells(seed: int, n: int, times: int, risks: int) -> None:
    outputs, targets = (each.cpu() for each in drawn(seed, n, times=times, risks=risks))
    expected = harrell(outputs[:, 0].tolist(), targets.tolist())
    assert float(c_index(outputs, targets)) == pytest.approx(expected, nan_ok=True, abs=1e-12)
    comparable, won = pairs(outputs, targets, torch.arange(n))
    if comparable.any():
        assert float(won.sum() / comparable.sum()) == pytest.approx(expected)
    assert comparable_with(targets).tolist() == comparable.sum(1).tolist()
    of_each = pairs_of_each(outputs, targets)
    for table, sums in zip((comparable, won), of_each, strict=True):
        torch.testing.assert_close(table.sum(0) + table.sum(1), sums)


def test_a_risk_that_is_no_number_has_no_c_index() -> None:
    outputs, targets = (each.cpu() for each in drawn(1, 10))
    outputs[3] = torch.nan
    assert c_index(outputs, targets).isnan()


def test_a_large_silo_takes_no_table_of_pairs() -> None:
    """40,000 patients would be 1.6e9 pairs: 13 GB as numbers. What the two halves say of each other is known."""
    n = 40_000
    risk = torch.arange(n, 0, -1, dtype=torch.float64)[:, None]
    targets = torch.stack([torch.arange(1, n + 1, dtype=torch.float64), torch.ones(n, dtype=torch.float64)], 1)
    assert float(c_index(risk, targets)) == 1
    assert float(c_index(-risk, targets)) == 0


def test_the_task_is_one_of_its_own() -> None:
    task = Task.survival((3,))
    assert (task.outputs, task.loss.name, task.metric.name) == (1, "cox", "c_index")
    with pytest.raises(ValueError, match="is for survival, but this task is regression"):
        metric_named("c_index", "regression")
    with pytest.raises(ValueError, match="for that there are c_index"):
        metric_named("rmse", "survival")
