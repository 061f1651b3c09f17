"""Intervals of C-indices: that they hold the truth, and that few gains are found where there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedkin.base.survival import c_index
from fedkin.base.task import METRICS
from fedkin.evidence import concordance, estimates, repeated_samples
from fedkin.evidence.outputs import Outputs

C = METRICS["c_index"]


def patients(rng: np.random.Generator, n: int, effect: float = 1.5) -> tuple[Tensor, Tensor]:
    """Log risks (n, 1) as they are in truth, and (time, event), two thirds of them censored."""
    x = rng.normal(size=n)
    time, end = rng.exponential(size=n) * np.exp(-effect * x), 0.3 * rng.exponential(size=n)
    target = np.stack([np.minimum(time, end) + 1e-9, time <= end], axis=1)
    return torch.from_numpy(x)[:, None], torch.from_numpy(target.astype(np.float64))


def blurred(rng: np.random.Generator, risk: Tensor, noise: float) -> Tensor:
    return risk + noise * torch.from_numpy(rng.normal(size=risk.shape))


def test_a_draw_is_the_c_index_of_the_patients_drawn() -> None:
    rng = np.random.default_rng(0)
    risk, targets = patients(rng, 30)
    risk = risk.round(decimals=1)  # some are equal
    times = rng.multinomial(30, np.full(30, 1 / 30), size=20)
    found = concordance.weighted(risk, targets)(times.astype(np.float64))
    for often, value in zip(times, found, strict=True):
        again = torch.from_numpy(often)
        expected = c_index(risk.repeat_interleave(again, 0), targets.repeat_interleave(again, 0))
        assert value == pytest.approx(float(expected))


def test_what_patients_contribute_varies_as_the_c_index_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond MOST_PATIENTS pairs are not drawn: what is taken instead gives nearly the same interval."""
    rng = np.random.default_rng(1)
    risk, targets = patients(rng, 400)
    worse = blurred(rng, risk, 1.0)
    assert concordance.contributions(risk, targets).mean() == pytest.approx(float(c_index(risk, targets)))
    exact = np.array(concordance.of_gain(worse, risk, targets)(0.95))
    monkeypatch.setattr(concordance, "MOST_PATIENTS", 10)
    linear = concordance.of_gain(worse, risk, targets)
    np.testing.assert_allclose(linear(0.95), exact, atol=0.15 * np.ptp(exact))
    assert linear(0.5)[0] > linear(0.95)[0] > linear(0.99)[0]


@pytest.mark.parametrize("n", [20, 60])
def test_95_of_100_intervals_hold_the_truth(n: int) -> None:
    rng = np.random.default_rng(2)
    risk, targets = patients(rng, 20_000)
    truth, held, known = float(c_index(risk, targets)), 0, 0
    for _ in range(200):
        found = estimates.estimate(C, *patients(rng, n))
        known += not np.isnan(found.value)
        held += found.low <= truth <= found.high
    assert known > 150
    assert held >= 0.93 * known


@pytest.mark.parametrize("n", [20, 60])
def test_a_true_gain_is_mostly_found_and_none_where_there_is_none(n: int) -> None:
    rng = np.random.default_rng(3)
    wrong = found = known = 0
    for _ in range(60):
        risk, targets = patients(rng, n)
        if float(targets[:, 1].sum()) < 2:
            continue
        known += 1
        equally_good = estimates.gain(C, blurred(rng, risk, 1.0), blurred(rng, risk, 1.0), targets)
        wrong += equally_good.low > 0 or equally_good.high < 0
        reversed_ = estimates.gain(C, -risk, risk, targets)
        found += reversed_.low > 0
    assert wrong <= 0.08 * known
    assert found >= (0.5 if n == 20 else 0.95) * known


def test_a_perfect_order_of_few_is_not_certain() -> None:
    targets = torch.tensor([[1.0, 1], [2, 1], [3, 1], [4, 0], [5, 0]], dtype=torch.float64)
    risk = torch.arange(5, 0, -1, dtype=torch.float64)[:, None]
    perfect = estimates.estimate(C, risk, targets)
    assert (perfect.value, perfect.high) == (1, 1)
    assert perfect.low < 0.75
    assert estimates.gain(C, -risk, risk, targets).low < 1


def test_the_same_order_is_no_gain_and_a_gain_is_a_loss_mirrored() -> None:
    risk, targets = patients(np.random.default_rng(6), 40)
    assert estimates.gain(C, risk, 2 * risk + 1, targets) == (0, 0, 0)
    there, back = estimates.gain(C, -risk, risk, targets), estimates.gain(C, risk, -risk, targets)
    assert there == pytest.approx((-back.value, -back.high, -back.low))


def test_without_comparable_patients_there_is_nothing_to_say() -> None:
    risk, targets = patients(np.random.default_rng(0), 6)
    targets[:, 1] = 0
    assert np.isnan(estimates.estimate(C, risk, targets)).all()
    assert np.isnan(estimates.gain(C, risk, -risk, targets)).all()


def seeds(rng: np.random.Generator, noise: float, several: int = 4) -> tuple[list[Outputs], list[Outputs]]:
    """Two models of several seeds, the second without noise; each seed tests a part of the same patients."""
    risk, targets = patients(rng, 120)
    found: tuple[list[Outputs], list[Outputs]] = ([], [])
    for _ in range(several):
        rows = torch.from_numpy(rng.permutation(120)[:40])
        for into, wrong in zip(found, (noise, 0.0), strict=True):
            answers = {"chosen": blurred(rng, risk[rows], wrong)}
            into.append(Outputs(("a",), (40,), ("m",), answers, targets[rows], "survival", rows=rows))
    return found


def test_seeds_are_put_together_by_patient() -> None:
    rng = np.random.default_rng(4)
    before, after = seeds(rng, 2.0)
    assert repeated_samples.same_patients(after)
    score, gained = (
        repeated_samples.estimate("c_index", after, "chosen"),
        repeated_samples.gain("c_index", before, after, "chosen"),
    )
    each = [float(c_index(o.models["chosen"], o.targets)) for o in after]
    assert score.value == pytest.approx(np.mean(each))
    assert score.low < score.value < score.high
    assert 0 < gained.low < gained.value < gained.high
    nameless = [[replace(o, rows=None) for o in part] for part in (before, after)]
    averaged = repeated_samples.gain("c_index", *nameless, "chosen")
    assert gained.value == pytest.approx(averaged.value)
    assert gained.high - gained.low < averaged.high - averaged.low  # more patients say more
    wide = repeated_samples.estimate("c_index", nameless[1], "chosen")
    assert score.high - score.low < wide.high - wide.low


def test_the_same_seed_again_is_no_new_evidence() -> None:
    before, after = seeds(np.random.default_rng(5), 1.0, several=1)
    once = repeated_samples.gain("c_index", before, after, "chosen")
    twice = repeated_samples.gain("c_index", before * 2, after * 2, "chosen")
    assert twice.high - twice.low == pytest.approx(once.high - once.low, rel=0.1)
    score, again = (repeated_samples.estimate("c_index", own, "chosen") for own in (after, after * 2))
    assert again == pytest.approx(score, rel=1e-6)


def test_seeds_in_which_all_changed_alike_leave_doubt() -> None:
    targets = torch.tensor([[1.0, 1], [2, 1], [3, 1], [4, 0], [5, 0]], dtype=torch.float64)
    risk, rows = torch.arange(5, 0, -1, dtype=torch.float64)[:, None], torch.arange(5)
    bad, good = (Outputs(("a",), (5,), ("m",), {"chosen": r}, targets, "survival", rows=rows) for r in (-risk, risk))
    found = repeated_samples.gain("c_index", [bad] * 2, [good] * 2, "chosen")
    assert found.value == 1
    assert found.low < 0.9
