"""Several seeds that test the same silo's patients: what is counted, and that few answers are false."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedkin.evidence import estimates, repeated_samples
from fedkin.evidence.estimates import over_seeds
from fedkin.evidence.outputs import Outputs
from fedkin.maths.statistics import accuracy_interval, clustered_interval, interval, paired_interval

CLASSES = ("accuracy", "balanced_accuracy", "auc", "log_loss")
NUMBERS = ("rmse", "mae", "mse")
Pair = tuple[list[Outputs], list[Outputs]]


def one_seed(outputs: Tensor, targets: Tensor, rows: Sequence[int] | Tensor | None, scale: float = 1.0) -> Outputs:
    """One seed at one silo."""
    kind = "regression" if targets.is_floating_point() else "classification"
    numbers = None if rows is None else torch.as_tensor(rows)
    count = (len(targets),)
    return Outputs(("a",), count, ("m",), {"chosen": outputs}, targets, kind, target_scale=scale, rows=numbers)


def nameless(seeds: Sequence[Outputs]) -> list[Outputs]:
    return [replace(each, rows=None) for each in seeds]


def silo(
    rng: np.random.Generator, n: int, seeds: int = 5, better: float = 0.0, own: float = 0.7, noise: float = 0.5
) -> Pair:
    """Two models, the second better by this much, at n patients of two classes, a quarter of whom each seed tests.

    Patients are hard for both models alike; `own` is how much they are so for one of them in all seeds, and `noise` for
    one in one seed.
    """
    y = torch.as_tensor(rng.random(n) < 0.4).long()
    y[:4] = torch.tensor([0, 0, 1, 1])
    hard, models = rng.normal(size=n), rng.normal(0, own, size=(2, n))
    found: Pair = [], []
    for _ in range(seeds):
        rows = rng.permutation(n)[: round(n / 4)]
        for which, (gained, into) in enumerate(zip((0, better), found, strict=True)):
            logit = (1 + gained) * (2 * y[rows].numpy() - 1) + hard[rows] + models[which, rows]
            logit = torch.as_tensor(logit + rng.normal(0, noise, len(rows)))
            into.append(one_seed(torch.stack([-logit / 2, logit / 2], dim=1), y[rows], rows))
    return found


def numbers(rng: np.random.Generator, n: int = 40, seeds: int = 4) -> Pair:
    truth = torch.as_tensor(rng.normal(size=n))
    found: Pair = [], []
    for _ in range(seeds):
        rows = rng.permutation(n)[: n // 4]
        for spread, into in zip((1.0, 0.5), found, strict=True):
            into.append(
                one_seed(truth[rows, None] + torch.as_tensor(rng.normal(0, spread, (len(rows), 1))), truth[rows], rows)
            )
    return found


def both(name: str, seed: int = 0) -> Pair:
    rng = np.random.default_rng(seed)
    return silo(rng, 60, better=1.0) if name in CLASSES else numbers(rng)


# ---- what stays as it was ----


@pytest.mark.parametrize("name", [*CLASSES, *NUMBERS])
def test_one_seed_is_as_it_was(name: str) -> None:
    before, after = (each[:1] for each in both(name))
    metric = after[0].metric(name)
    answers = after[0].models["chosen"], after[0].targets
    assert repeated_samples.estimate(name, after, "chosen") == estimates.estimate(metric, *answers)
    expected = estimates.gain(metric, before[0].models["chosen"], *answers)
    assert repeated_samples.gain(name, before, after, "chosen") == expected


@pytest.mark.parametrize("name", [*CLASSES, *NUMBERS])
def test_without_numbers_of_patients_seeds_are_averaged(name: str) -> None:
    before, after = map(nameless, both(name))
    found = [estimates.estimate(o.metric(name), o.models["chosen"], o.targets) for o in after]
    assert repeated_samples.estimate(name, after, "chosen") == over_seeds(found)
    gains = [
        estimates.gain(b.metric(name), a.models["chosen"], b.models["chosen"], b.targets)
        for a, b in zip(before, after, strict=True)
    ]
    assert repeated_samples.gain(name, before, after, "chosen") == over_seeds(gains)


# ---- a patient counts once ----


@pytest.mark.parametrize("name", [*CLASSES, *NUMBERS])
def test_the_value_is_the_mean_over_seeds_and_inside_its_interval(name: str) -> None:
    before, after = both(name)
    for found, plain in (
        (repeated_samples.estimate(name, after, "chosen"), repeated_samples.estimate(name, nameless(after), "chosen")),
        (
            repeated_samples.gain(name, before, after, "chosen"),
            repeated_samples.gain(name, nameless(before), nameless(after), "chosen"),
        ),
    ):
        assert found.value == pytest.approx(plain.value, rel=1e-12)
        assert found.low <= found.value <= found.high
        assert found.high - found.low < plain.high - plain.low


@pytest.mark.parametrize("name", [*CLASSES, *NUMBERS])
def test_the_same_test_again_is_no_new_evidence(name: str) -> None:
    before, after = both(name)
    once = repeated_samples.gain(name, before[:1], after[:1], "chosen")
    again = repeated_samples.gain(name, before[:1] * 5, after[:1] * 5, "chosen")
    assert again.value == pytest.approx(once.value)
    assert again.high - again.low == pytest.approx(once.high - once.low, rel=0.12)  # two bootstraps, or one closed form
    scores = [repeated_samples.estimate(name, after[:1] * k, "chosen") for k in (1, 5)]
    assert scores[1] == pytest.approx(scores[0], rel=0.12)


def errors(*seeds: tuple[Sequence[int], Sequence[float]]) -> list[Outputs]:
    """Seeds that test these patients, with these absolute errors."""
    return [
        one_seed(torch.as_tensor(error, dtype=torch.float64)[:, None], torch.zeros(len(rows)).double(), rows)
        for rows, error in seeds
    ]


def test_seeds_that_differ_widen_the_interval_though_patients_of_one_are_alike() -> None:
    """Drawn anew, patients of each seed would be what they were; but ten patients differ, five from five."""
    before = errors((range(5), [2.0] * 5), (range(5, 10), [2.0] * 5))
    after = errors((range(5), [1.0] * 5), (range(5, 10), [2.0] * 5))
    found = repeated_samples.gain("mae", before, after, "chosen")
    assert (found.low, found.high) == pytest.approx(interval([1.0] * 5 + [0.0] * 5))


def test_what_a_patient_gains_in_one_seed_and_loses_in_another_cancels() -> None:
    rng = np.random.default_rng(0)
    gained, net = rng.exponential(5, 40), rng.normal(0.1, 0.1, 40)
    order = rng.permutation(40)
    before = errors((range(40), 1 + gained), (order, np.ones(40)))
    after = errors((range(40), np.ones(40)), (order, (1 + gained - net)[order]))
    found = repeated_samples.gain("mae", before, after, "chosen")
    assert (found.low, found.high) == pytest.approx(interval(net / 2), abs=0.01)


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy"])
def test_counted_answers_of_one_test_again_have_the_same_interval(name: str) -> None:
    before, after = both(name)
    found = [repeated_samples.gain(name, before[:1] * k, after[:1] * k, "chosen") for k in (1, 5)]
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    assert repeated_samples.estimate(name, after[:1] * 5, "chosen") == pytest.approx(
        repeated_samples.estimate(name, after[:1], "chosen"), rel=1e-9
    )


@pytest.mark.parametrize("name", CLASSES)
def test_different_patients_are_as_good_as_all_in_one_test(name: str) -> None:
    """Four seeds that test a quarter of the patients each, nobody twice, know as much as one that tests all."""
    rng = np.random.default_rng(0)
    (whole,), (better,) = (list(each) for each in silo(rng, 4 * 200, 1, better=0.5))
    order = torch.arange(200)[torch.argsort(whole.targets, stable=True)]
    parts = [order[k::4] for k in range(4)]  # classes alike in all

    def cut(outputs: Outputs) -> list[Outputs]:
        return [one_seed(outputs.models["chosen"][p], outputs.targets[p], p) for p in parts]

    one, four = (
        repeated_samples.gain(name, a, b, "chosen") for a, b in (([whole], [better]), (cut(whole), cut(better)))
    )
    assert four.high - four.low == pytest.approx(one.high - one.low, rel=0.15)
    one, four = (repeated_samples.estimate(name, each, "chosen") for each in ([better], cut(better)))
    assert four.high - four.low == pytest.approx(one.high - one.low, rel=0.15)


def test_by_patient_with_one_seed_is_bonett_and_price() -> None:
    for gained, lost, n in ((0, 0, 30), (4, 0, 30), (7, 3, 50), (12, 0, 12), (1, 5, 8)):
        differences = np.repeat([1.0, -1.0, 0.0], [gained, lost, n - gained - lost])
        for seeds in (1, 3):
            found = clustered_interval([differences] * seeds, [np.arange(n)] * seeds)
            assert found == pytest.approx(paired_interval(gained, lost, n), rel=1e-12)


# ---- no false certainty ----


def answering(right: Sequence[float], y: Tensor) -> Tensor:
    """(n, 2) answers with this log odds for the true class."""
    logit = torch.as_tensor(right, dtype=torch.float64) * (2 * y - 1)
    return torch.stack([-logit / 2, logit / 2], dim=1)


def test_all_right_is_not_certain() -> None:
    y = torch.arange(20) % 2
    rows = [torch.arange(0, 10), torch.arange(5, 15), torch.arange(10, 20)]
    seeds = [one_seed(answering([3.0] * 10, y[r]), y[r], r) for r in rows]
    for name in ("accuracy", "balanced_accuracy", "auc"):
        score = repeated_samples.estimate(name, seeds, "chosen")
        assert score.value == score.high == 1 and score.low < 0.95
        gain = repeated_samples.gain(name, seeds, seeds, "chosen")
        assert gain.value == 0 and gain.low < -0.02 and gain.high > 0.02
    shares = np.bincount(torch.cat(rows)) / 30
    worth = 1 / (shares**2).sum()
    assert 15 < worth < 20
    assert repeated_samples.estimate("accuracy", seeds, "chosen").low == pytest.approx(
        accuracy_interval(worth, worth)[0]
    )


def test_patients_who_all_change_alike_leave_doubt() -> None:
    y = torch.arange(6) % 2
    rows = [torch.arange(0, 4), torch.arange(2, 6)]
    before = [one_seed(answering([-2.0] * 4, y[r]), y[r], r) for r in rows]
    after = [one_seed(answering([2.0] * 4, y[r]), y[r], r) for r in rows]
    for name in ("accuracy", "balanced_accuracy", "auc"):
        gain = repeated_samples.gain(name, before, after, "chosen")
        assert gain.value == 1 and gain.low < 0.75 and gain.high == 1


def test_four_gained_and_none_lost_of_thirty_is_no_answer() -> None:
    """A coin does that once in eight times; a plain bootstrap would be certain."""
    y = torch.arange(30) % 2
    before = answering([-1.0 if i < 4 else 1.0 for i in range(30)], y)
    parts = [torch.arange(0, 30, 2), torch.arange(1, 30, 2)]
    seeds = [[one_seed(a[p], y[p], p) for p in parts] for a in (before, answering([1.0] * 30, y))]
    found = repeated_samples.gain("accuracy", *seeds, "chosen")
    assert found.value == pytest.approx(4 / 30) and found.low < 0


def test_seeds_of_one_class_are_left_out() -> None:
    y = torch.tensor([0, 1, 0, 1, 0, 1, 0, 0])
    logits = torch.linspace(-1, 1, 8)
    answers = torch.stack([-logits, logits], dim=1)
    rows = [torch.arange(4), torch.arange(2, 6), torch.tensor([0, 2, 4, 6])]
    seeds = [one_seed(answers[r], y[r], r) for r in rows]
    assert repeated_samples.estimate("auc", seeds, "chosen") == repeated_samples.estimate("auc", seeds[:2], "chosen")
    alone = repeated_samples.estimate("auc", [seeds[0], seeds[2]], "chosen")
    assert alone == repeated_samples.estimate("auc", seeds[:1], "chosen")
    assert np.isnan(repeated_samples.estimate("auc", [seeds[2], seeds[2]], "chosen")).all()


def answered(make: Callable[[np.random.Generator], Pair], name: str, times: int) -> tuple[float, float]:
    """The shares of silos of which it is said that the second model is better, or worse."""
    rng = np.random.default_rng(times)
    gains = [repeated_samples.gain(name, *make(rng), "chosen") for _ in range(times)]
    return float(np.mean([g.low > 0 for g in gains])), float(np.mean([g.high < 0 for g in gains]))


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("n", [30, 120])
def test_of_two_equally_good_models_few_are_told_apart(name: str, n: int) -> None:
    better, worse = answered(lambda rng: silo(rng, n), name, 150)
    assert better + worse <= 0.08  # 5 % and nearly two standard errors


@pytest.mark.parametrize("name", CLASSES)
def test_a_better_model_is_found_more_often_than_by_averaging(name: str) -> None:
    def bare(rng: np.random.Generator) -> Pair:
        before, after = silo(rng, 100, better=0.7)
        return nameless(before), nameless(after)

    found, worse = answered(lambda rng: silo(rng, 100, better=0.7), name, 60)
    assert worse == 0
    assert found > answered(bare, name, 60)[0] + 0.2


# ---- who is who ----


def test_a_number_with_two_targets_is_not_one_patient() -> None:
    rng = np.random.default_rng(0)
    before, after = silo(rng, 40)
    assert repeated_samples.same_patients([*before, *after])
    assert not repeated_samples.same_patients([*before, *nameless(after[:1])])
    strange = replace(after[0], targets=1 - after[0].targets)
    assert not repeated_samples.same_patients([*before, strange])


def test_targets_that_seeds_scale_by_their_own_are_the_same_patients() -> None:
    y, rows = torch.tensor([310.0, 250.0, 420.0]), torch.arange(3)
    seeds = []
    for mean, scale in ((300.0, 81.0), (293.0, 77.5)):
        scaled = ((y - mean) / scale).float()
        seeds.append(replace(one_seed(scaled[:, None] + 0.1, scaled, rows, scale), target_mean=mean))
    assert repeated_samples.same_patients(seeds)
    assert repeated_samples.estimate("mae", seeds, "chosen").value == pytest.approx((8.1 + 7.75) / 2, rel=1e-4)
    assert not repeated_samples.same_patients([seeds[0], replace(seeds[1], target_mean=280.0)])
