"""Several test samples of one subject: what they are worth, and that intervals are right as often as they claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.base.task import metric_named
from fedkin.evidence import own_metric, repeated_samples
from fedkin.evidence.by_subject import Values, effective, inflation
from fedkin.evidence.estimates import score
from fedkin.evidence.outputs import Outputs
from fedkin.maths.statistics import accuracy_interval, paired_interval

METRICS = ("accuracy", "balanced_accuracy", "auc", "log_loss")
Pair = tuple[list[Outputs], list[Outputs]]


def outputs(odds: np.ndarray, y: np.ndarray, rows: np.ndarray, subjects: np.ndarray | None) -> Outputs:
    logit = torch.as_tensor(odds)
    return Outputs(
        ("a",), (len(y),), ("m",), {"chosen": torch.stack([-logit / 2, logit / 2], 1)}, torch.as_tensor(y),
        "classification", rows=torch.as_tensor(rows), subjects=None if subjects is None else torch.as_tensor(subjects),
    )  # fmt: skip


def silo(
    rng: np.random.Generator, patients: int, icc: float, *, visits: float = 4, one_class: bool = True, seeds: int = 1
) -> Pair:
    """Two models that are equally good, of patients with one visit and more; `icc` is how much of what makes a visit
    hard it shares with the patient's others. A patient is of one class, or each visit of its own."""
    whose = np.repeat(np.arange(patients), 1 + rng.poisson(visits, patients))
    y = (rng.random(patients) < 0.4)[whose] if one_class else rng.random(len(whose)) < 0.4

    def noise() -> np.ndarray:
        return icc**0.5 * rng.normal(size=patients)[whose] + (1 - icc) ** 0.5 * rng.normal(size=len(whose))

    hard, own = noise(), (noise(), noise())
    ways: Pair = [], []
    for _ in range(seeds):
        tested = rng.permutation(patients)[: patients if seeds == 1 else patients // 3]
        rows = np.flatnonzero(np.isin(whose, tested))
        for each, way in zip(own, ways, strict=True):
            odds = (2.0 * y - 1 + hard + each)[rows]
            way.append(outputs(odds, y[rows].astype(np.int64), rows, whose[rows]))
    return ways


def by_row(seeds: Sequence[Outputs]) -> list[Outputs]:
    return [replace(each, subjects=None) for each in seeds]


# ---- no false certainty ----


@pytest.mark.parametrize(
    ("icc", "one_class", "seeds", "fails"),
    [(0.6, True, 1, True), (0.8, False, 1, True), (0.6, True, 3, True), (0.0, True, 1, False), (0.0, False, 1, False)],
)
def test_95_of_100_intervals_hold_the_truth_and_those_by_row_do_not(
    icc: float, one_class: bool, seeds: int, fails: bool
) -> None:
    """Of scores, whose truth is that of very many patients, and of gains, whose truth is nothing."""
    rng, times, patients = np.random.default_rng(7), 100 // seeds + 60, 25 if seeds == 1 else 75
    (many,) = silo(rng, 20_000, icc, one_class=one_class)[1]
    truth = {name: score(many.metric(name), many.models["chosen"], many.targets) for name in METRICS}
    held = {(name, what, way): 0 for name in METRICS for what in ("score", "gain") for way in ("subject", "row")}
    for _ in range(times):
        before, after = silo(rng, patients, icc, one_class=one_class, seeds=seeds)
        for name in METRICS:
            for way, (a, b) in {"subject": (before, after), "row": (by_row(before), by_row(after))}.items():
                found = repeated_samples.estimate(name, b, "chosen")
                gain = repeated_samples.gain(name, a, b, "chosen")
                held[name, "score", way] += found.low <= truth[name] <= found.high
                held[name, "gain", way] += gain.low <= 0 <= gain.high
    for (name, what, way), count in held.items():
        if way == "subject":
            assert count >= 0.91 * times, f"{what} in {name}: {count} of {times}"  # 95 % less two errors and more
            if fails:
                by_rows = held[name, what, "row"]
                assert by_rows < count and by_rows < 0.93 * times, f"{what} in {name} by row: {by_rows}"


@pytest.mark.parametrize("share", [0.6, 0.85, 0.95])
@pytest.mark.parametrize("icc", [0.0, 0.3, 0.9])
def test_wilsons_intervals_of_patients_hold_the_share_whether_answers_cluster_or_not(share: float, icc: float) -> None:
    rng, times, held = np.random.default_rng(3), 1000, 0
    for _ in range(times):
        whose = np.repeat(np.arange(20), 1 + rng.poisson(4, 20))
        mean = np.full(20, share) if not icc else rng.beta(*(np.array([share, 1 - share]) * (1 - icc) / icc), 20)
        right = (rng.random(len(whose)) < mean[whose]).astype(np.float64)
        n = effective(Values([right], [np.arange(len(whose))], [whose]), made_up=0.25)
        low, high = accuracy_interval(right.mean() * n, n)
        held += low <= share <= high
    assert 0.925 <= held / times <= 0.995


# ---- what samples are worth ----


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2**32), st.integers(2, 12), st.integers(1, 3))
def test_samples_are_worth_no_more_than_they_are_and_no_less_than_their_subjects(
    seed: int, patients: int, seeds: int
) -> None:
    rng = np.random.default_rng(seed)
    whose = np.repeat(np.arange(patients), rng.integers(1, 5, patients))
    values = [rng.integers(0, 2, len(whose)).astype(float) for _ in range(seeds)]
    found = Values(values, [np.arange(len(whose))] * seeds, [whose] * seeds)
    shares = np.bincount(whose) / len(whose)
    for made_up in (0.0, 0.25):
        assert 1 / (shares**2).sum() <= effective(found, made_up) * (1 + 1e-12)
        assert effective(found, made_up) <= len(whose) * (1 + 1e-12)


def test_the_design_effect_is_that_of_the_formula() -> None:
    rng = np.random.default_rng(0)
    whose = np.repeat(np.arange(30), rng.integers(2, 7, 30))
    patient = rng.normal(size=30)
    values = 0.7 * patient[whose] + rng.normal(size=len(whose))
    mean, n, k = values.mean(), len(values), 30
    total = sum((sum(v - mean for v, w in zip(values, whose, strict=True) if w == i) / n) ** 2 for i in range(k))
    expected = values.var() / (k / (k - 1) * total)
    assert 30 < expected < n
    assert effective(Values([values], [np.arange(n)], [whose])) == pytest.approx(expected)


def test_a_patient_whose_visits_are_all_alike_counts_once() -> None:
    """Thirty patients, each four times over: intervals are those of thirty samples."""
    rng = np.random.default_rng(2)
    y = (np.arange(30) % 2).astype(np.int64)
    first, second = (2 * y - 1 + rng.normal(0, 1.5, 30) for _ in range(2))
    once = [[outputs(odds, y, np.arange(30), None)] for odds in (first, second)]
    whose = np.repeat(np.arange(30), 4)
    often = [[outputs(odds[whose], y[whose], np.arange(120), whose)] for odds in (first, second)]
    for name in METRICS:
        for found, expected in (
            (repeated_samples.estimate(name, often[1], "chosen"), repeated_samples.estimate(name, once[1], "chosen")),
            (repeated_samples.gain(name, *often, "chosen"), repeated_samples.gain(name, *once, "chosen")),
        ):
            width = 1e-9 if "accuracy" in name else 0.1  # two bootstraps, or one closed form
            assert tuple(found) == pytest.approx(tuple(expected), abs=width * (expected.high - expected.low))


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("seeds", [1, 3])
def test_where_nobody_has_two_samples_nothing_changes_by_a_bit(name: str, seeds: int) -> None:
    before, after = silo(np.random.default_rng(1), 60, 0.5, visits=0, seeds=seeds)
    assert repeated_samples.estimate(name, after, "chosen") == repeated_samples.estimate(name, by_row(after), "chosen")
    one = repeated_samples.gain(name, before, after, "chosen")
    other = repeated_samples.gain(name, by_row(before), by_row(after), "chosen")
    assert one == other and one.p == other.p


def test_without_any_spread_patients_count_and_not_their_visits() -> None:
    y, whose = np.tile([0, 1], 20), np.repeat(np.arange(10), 4)
    sure = [outputs(3.0 * (2 * y - 1), y, np.arange(40), whose)]
    assert repeated_samples.estimate("accuracy", sure, "chosen").low == pytest.approx(accuracy_interval(10, 10)[0])
    gain = repeated_samples.gain("accuracy", sure, sure, "chosen")
    assert (gain.low, gain.high) == pytest.approx(paired_interval(0, 0, 10)) and gain.p == 1
    assert repeated_samples.estimate("auc", sure, "chosen").low < 0.85
    assert repeated_samples.gain("auc", sure, sure, "chosen").p == 1


def test_a_patient_who_is_ill_at_one_visit_and_well_at_another_is_drawn_as_a_whole() -> None:
    rng = np.random.default_rng(0)
    before, after = silo(rng, 12, 0.5, one_class=False)
    for name in ("auc", "balanced_accuracy"):
        found = repeated_samples.gain(name, before, after, "chosen")
        assert np.isfinite(found).all() and found.low < found.value < found.high
    whose = np.repeat(np.arange(20), 2)
    alike = np.repeat(rng.normal(size=20), 2)
    parts = [Values([alike[k::2]], [np.arange(20)], [whose[k::2]]) for k in range(2)]
    assert inflation(parts) == pytest.approx(2), "two recalls that are one"
    apart = [Values([alike[::2][k::2]], [np.arange(10)], [np.arange(20)[k::2]]) for k in range(2)]
    assert inflation(apart) == pytest.approx(1)


# ---- other metrics ----


def test_a_c_index_and_errors_are_by_subject_too() -> None:
    rng = np.random.default_rng(4)
    whose = np.repeat(np.arange(40), 4)
    own = rng.normal(size=(40, 2))[whose]
    lived = torch.tensor(np.stack([rng.exponential(size=40)[whose] + 0.1, (rng.random(40) < 0.7)[whose]], 1))
    numbers = torch.tensor(rng.normal(size=40)[whose])
    for kind, targets, names in (("survival", lived, ["c_index"]), ("regression", numbers, ["rmse", "mae", "mse"])):
        ways = [
            [
                Outputs(
                    ("a",), (160,), ("m",), {"chosen": torch.tensor(own[:, k : k + 1])}, targets, kind,
                    rows=torch.arange(160), subjects=torch.tensor(whose),
                )
            ]
            for k in range(2)
        ]  # fmt: skip
        for name in names:
            for found, plain in (
                (
                    repeated_samples.gain(name, *ways, "chosen"),
                    repeated_samples.gain(name, *map(by_row, ways), "chosen"),
                ),
                (repeated_samples.estimate(name, ways[0], "chosen"), ways[0][0].of("a")),
            ):
                if isinstance(plain, Outputs):
                    plain = repeated_samples.estimate(name, by_row(ways[0]), "chosen")
                assert found.value == pytest.approx(plain.value)
                assert 1.5 < (found.high - found.low) / (plain.high - plain.low) < 2.6, "four alike are one"


def test_a_metric_of_ones_own_is_asked_about_whole_patients() -> None:
    whose = torch.arange(30).repeat_interleave(4)
    y = torch.randn(30, 1, generator=torch.Generator().manual_seed(0))[whose]
    answers = y + torch.randn(30, 1, generator=torch.Generator().manual_seed(1))[whose]
    seen: list[list[int]] = []

    def error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        _, counts = targets.unique(return_counts=True)
        seen.append(counts.tolist())
        return (outputs - targets).abs().mean()

    drawn = own_metric.asked(metric_named(error), [({"chosen": answers}, y)], [whose])
    assert len(seen) == 1 + own_metric.DRAWS and all(count % 4 == 0 for each in seen for count in each)
    plain = own_metric.asked(metric_named(error), [({"chosen": answers}, y)])
    wide, narrow = own_metric.estimate([(drawn, 30)], "chosen"), own_metric.estimate([(plain, 120)], "chosen")
    assert wide.value == narrow.value and wide.high - wide.low > 1.6 * (narrow.high - narrow.low)
