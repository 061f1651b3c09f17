"""Scores and gains over several seeds, where it is known which patient a test sample is.

Every seed draws its test part from the same patients of a silo. What a seed adds is the patients whom the others did
not test; one who is tested in several seeds counts once. So patients are taken to be independent, not tests:

| metric | of a score | of a gain |
|---|---|---|
| accuracy | Wilson, of as many as the patients are worth | Bonett and Price, by patient |
| balanced accuracy | the same of each recall, put together | the same of each class, put together |
| AUC | Newcombe, of as many as the patients are worth | bootstrap over patients, class by class |
| C-index | the same, of events against those comparable with them | bootstrap over patients, of all their pairs |
| log loss, RMSE, MAE, MSE | bootstrap over patients | the same, both models on one draw |

A draw of the bootstrap takes patients with replacement. Every seed's metric is then of its test samples, each as often
as its patient was drawn, and the mean is over the seeds in which it is defined. Percentiles are moved outwards to what
patients' own differences say, with Student's t. If u is a patient's share in the mean over seeds, patients are worth
1 / sum of u² (Kish): their number, if all are tested equally often. Intervals speak of the models of these seeds, as
that of one seed speaks of its model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..base.task import ROOTS, Metric, against_the_rest, classes_in, correct, log_odds, told_apart
from ..maths import statistics
from . import concordance, estimates
from .estimates import NAN, Array, Estimate, Gain, gain_over_seeds, over_seeds, within
from .outputs import Outputs

Places = NDArray[np.int64]
WeightedMetric = Callable[[Array], Array]
"""(draws, n) how often each sample was drawn -> (draws,) the metric of these; NaN where it is not defined."""


class Test(NamedTuple):
    """A seed's test of one model, or of two: their answers (n, ...), targets (n, ...), and which patients these are:
    (n,) places among the patients of all seeds."""

    metric: Metric
    answers: tuple[Tensor, ...]
    targets: Tensor
    patients: Places

    @property
    def scores(self) -> Array:
        return np.array([estimates.score(self.metric, answers, self.targets) for answers in self.answers])

    def right(self, model: int = 0) -> Array:
        """(n,) 1 where the answer is right, else 0."""
        found: Array = correct(self.answers[model].double(), self.targets).numpy()
        return found

    def of_class(self, c: int) -> Test:
        own = self.targets == c
        return Test(self.metric, tuple(a[own] for a in self.answers), self.targets[own], self.patients[own.numpy()])


def same_patients(seeds: Sequence[Outputs]) -> bool:
    """Whether a silo's test samples have numbers in all seeds, and a number means one patient: has one target."""
    rows = [each.rows for each in seeds if each.rows is not None]
    if len(rows) < len(seeds):
        return False
    targets = torch.cat([each.target_mean + each.target_scale * each.targets.double() for each in seeds])
    _, first, place = np.unique(torch.cat(rows).numpy(), return_index=True, return_inverse=True)
    # Seeds scale targets by their own training data, in single precision.
    close = 1e-5 * float(targets.nan_to_num().abs().max()) if len(targets) else 0.0
    return torch.allclose(targets[first][place], targets, rtol=0, atol=close, equal_nan=True)


def estimate(metric: str, seeds: Sequence[Outputs], model: str) -> Estimate:
    """A model's score on a silo's patients; of one seed, or without numbers of patients, as `estimates` has it."""
    tests = _tests(metric, [(each.models[model],) for each in seeds], seeds)
    if tests is None:
        return over_seeds([estimates.estimate(each.metric(metric), each.models[model], each.targets) for each in seeds])
    value = float(np.mean([test.scores[0] for test in tests]))
    if metric == "accuracy":
        return Estimate(value, *_wilson(tests)[1:])
    if metric == "balanced_accuracy":
        return _holding(value, *statistics.mover([_wilson(own) for own in _by_class(tests)]))
    if metric == "auc":
        return _holding(value, *_newcombe(tests))
    if metric == "c_index":
        return _holding(value, *_of_concordance(tests))
    low, high = _bootstrap(tests, np.ones(1))(0.95)
    return Estimate(value, max(low, 0.0), high)


def gain(metric: str, before: Sequence[Outputs], after: Sequence[Outputs], model: str) -> Estimate:
    """How much better `after` is than `before` on the same patients, seed by seed; positive is better."""
    pairs = list(zip(before, after, strict=True))
    tests = _tests(metric, [(a.models[model], b.models[model]) for a, b in pairs], after)
    if tests is None:
        return gain_over_seeds(
            [estimates.gain(b.metric(metric), a.models[model], b.models[model], b.targets) for a, b in pairs]
        )
    change = np.array([-1.0, 1.0]) * (1 if tests[0].metric.higher_is_better else -1)
    value = float(np.mean([change @ test.scores for test in tests]))
    if metric in ("accuracy", "balanced_accuracy"):
        classes = [tests] if metric == "accuracy" else list(_by_class(tests))
        return Gain.of(
            value,
            lambda level: _holding(value, *statistics.mover([_bonett_price(own, level) for own in classes]))[1:],
        )
    bootstrap = _bootstrap(tests, change)
    if metric == "auc":
        low, high = bootstrap(0.95)
        if low == high:  # all patients changed alike, or none did: that shows no spread, but is not certain
            bootstrap = partial(_newcombe_difference, tests)
        return Gain.of(value, lambda level: within(-1.0, bootstrap(level), 1.0))
    if metric == "c_index":
        low, high = bootstrap(0.95)
        if low == high != 0:
            bootstrap = partial(_concordance_difference, tests)
        return Gain.of(value, lambda level: concordance.within(*bootstrap(level)))
    return Gain.of(value, bootstrap)


def _tests(metric: str, answers: Sequence[tuple[Tensor, ...]], seeds: Sequence[Outputs]) -> list[Test] | None:
    """The seeds in which the metric is defined; None where these are not several seeds of known patients."""
    rows = [each.rows for each in seeds if each.rows is not None]
    if len(rows) < len(seeds):
        return None
    _, place = np.unique(torch.cat(rows).numpy(), return_inverse=True)
    places = np.split(place, np.cumsum([len(each) for each in rows])[:-1])
    everyone = zip(seeds, answers, places, strict=True)
    tests = [Test(each.metric(metric), models, each.targets, own) for each, models, own in everyone]
    defined = [test for test in tests if not np.isnan(test.scores).any()]
    return defined if len(defined) > 1 and all(np.isfinite(test.scores).all() for test in defined) else None


def _by_class(tests: Sequence[Test]) -> Iterator[list[Test]]:
    """For each class the tests that have samples of it, cut down to these."""
    for c in classes_in(torch.cat([test.targets for test in tests])):
        yield [test.of_class(c) for test in tests if (test.targets == c).any()]


def _shares(patients: Sequence[Places]) -> Array:
    """For each patient that is tested: the share in the mean over seeds of a seed's mean. They sum to 1."""
    share = np.concatenate([np.full(len(own), 1 / (len(own) * len(patients))) for own in patients])
    total = np.bincount(np.concatenate(patients), share)
    return np.asarray(total[total > 0], dtype=np.float64)


def _worth(patients: Sequence[Places]) -> float:
    """How many patients would say as much, if all were tested equally often."""
    return float(1 / np.square(_shares(patients)).sum())


def _holding(value: float, low: float, high: float) -> Estimate:
    """Where a seed lacks a class, the value is not quite the mean over classes that the interval is of."""
    return Estimate(value, min(low, value), max(high, value))


def _wilson(tests: Sequence[Test]) -> tuple[float, float, float]:
    value, worth = float(np.mean([test.right().mean() for test in tests])), _worth([test.patients for test in tests])
    return value, *statistics.accuracy_interval(value * worth, worth)


def _bonett_price(tests: Sequence[Test], level: float) -> tuple[float, float, float]:
    differences = [test.right(1) - test.right(0) for test in tests]
    value = float(np.mean([own.mean() for own in differences]))
    return value, *statistics.clustered_interval(differences, [test.patients for test in tests], level)


def _newcombe(tests: Sequence[Test], model: int = 0, level: float = 0.95) -> tuple[float, float]:
    found: dict[int, list[tuple[float, Places, Places]]] = {}
    for test in tests:
        for c, own, _ in against_the_rest(test.answers[model], test.targets):
            mine = (test.targets == c).numpy()
            found.setdefault(c, []).append((float(own.mean()), test.patients[mine], test.patients[~mine]))
    bounds = []
    for parts in found.values():
        values, own_patients, others = zip(*parts, strict=True)
        bounds.append(statistics.auc_interval(float(np.mean(values)), _worth(own_patients), _worth(others), level))
    low, high = np.mean(bounds, axis=0).tolist()
    return low, high


def _newcombe_difference(tests: Sequence[Test], level: float) -> tuple[float, float]:
    """Of two AUCs as if on different patients, which is the more cautious (Zou and Donner 2008)."""
    (before, low_before, high_before), (after, low, high) = (
        (float(np.mean([test.scores[model] for test in tests])), *_newcombe(tests, model, level)) for model in (0, 1)
    )
    value = after - before
    return value - float(np.hypot(after - low, high_before - before)), value + float(
        np.hypot(high - after, before - low_before)
    )


def _of_concordance(tests: Sequence[Test], model: int = 0, level: float = 0.95) -> tuple[float, float]:
    """Newcombe's interval: events are worth as many as their patients are, and those comparable with them rise with the
    patients of all seeds."""
    told, others = zip(*(concordance.sizes(test.targets) for test in tests), strict=True)
    events = _worth([test.patients[own] for test, own in zip(tests, told, strict=True)])
    more = _worth([test.patients for test in tests]) / np.mean([len(test.patients) for test in tests])
    value = float(np.mean([test.scores[model] for test in tests]))
    return statistics.auc_interval(value, events, float(np.mean(others) * more), level)


def _concordance_difference(tests: Sequence[Test], level: float) -> tuple[float, float]:
    """Of two C-indices as if on different patients."""
    before, after = np.mean([test.scores for test in tests], axis=0).tolist()
    return concordance.apart(before, _of_concordance(tests, 0, level), after, _of_concordance(tests, 1, level))


# ---- bootstrap ----


def _bootstrap(tests: Sequence[Test], change: Array) -> statistics.Interval:
    """Intervals of the mean over seeds of the models' scores times `change` (models,), all of the same draws."""
    count = 1 + max(int(test.patients.max()) for test in tests)
    stratum = np.full(count, -1)
    for test in tests:
        stratum[test.patients] = test.targets.numpy() if test.metric.name == "auc" else 0
    strata = [np.flatnonzero(stratum == each) for each in np.unique(stratum[stratum >= 0])]
    if min(len(own) for own in strata) < 2:
        return lambda level: (NAN, NAN)
    terms = [
        np.stack([_terms(test.metric, answers, test.targets) for answers in test.answers], axis=1) @ change
        for test in tests
    ]
    squared, freedom = np.array([_spread(own, tests, terms, count) for own in strata]).T
    draws = _draws(tests, strata, count) @ change
    draws = draws[~np.isnan(draws)]
    return partial(statistics.widened, draws, squared, freedom, float(draws.var()))


def _draws(tests: Sequence[Test], strata: Sequence[Places], count: int) -> Array:
    """(2000, models) the mean over seeds of the metric, of patients drawn anew from each stratum; NaN where no seed has
    one."""
    rng = np.random.default_rng(0)
    made = [[weighted(test.metric, answers, test.targets) for answers in test.answers] for test in tests]
    at_once = max(1, statistics.DRAWN_AT_ONCE // count)
    found = []
    for at in range(0, statistics.RESAMPLES, at_once):
        times = np.zeros((min(at_once, statistics.RESAMPLES - at), count))
        for own in strata:
            drawn = rng.integers(len(own), size=(len(times), len(own))) + len(own) * np.arange(len(times))[:, None]
            times[:, own] = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)
        seeds = np.array(
            [[metric(times[:, t.patients]) for metric in models] for t, models in zip(tests, made, strict=True)]
        )
        found.append(_mean_of_known(seeds))
    return np.concatenate(found, axis=1).T


def _spread(own: Places, tests: Sequence[Test], terms: Sequence[Array], count: int) -> tuple[float, float]:
    """Of a stratum of patients (n,): the squared standard error of the mean over seeds of the means of its terms, and
    the degrees of freedom of that."""
    inside = [np.isin(test.patients, own) for test in tests]
    parts = [
        (test.patients[here], each[here]) for test, each, here in zip(tests, terms, inside, strict=True) if here.any()
    ]
    centre = np.mean([each.mean() for _, each in parts])
    total = np.zeros(count)
    for patients, each in parts:
        total += np.bincount(patients, (each - centre) / (len(each) * len(parts)), count)
    shares = _shares([patients for patients, _ in parts])
    freedom = np.square(shares).sum() ** 2 / (shares**4).sum() - 1
    return float(np.square(total).sum()) * len(own) / (len(own) - 1), float(freedom)


def _terms(metric: Metric, answers: Tensor, targets: Tensor) -> Array:
    """(n,) what the score is the mean of, to first order: how it varies with these is how the score varies."""
    if metric.name == "auc":
        return estimates.placements(answers, targets)
    if metric.name == "c_index":
        return concordance.contributions(answers, targets)
    values = estimates.values_of(metric, answers, targets)
    return values * estimates.root_slope(values.mean()) if metric.name in ROOTS else values


def weighted(metric: Metric, answers: Tensor, targets: Tensor) -> WeightedMetric:
    """The metric as a function of how often samples are drawn; of those that are bootstrapped."""
    if metric.name == "auc":
        classes = [
            _weighted_auc(log_odds(answers, c).numpy(), (targets == c).numpy()) for c in told_apart(answers, targets)
        ]
        return lambda times: _mean_of_known(np.stack([auc(times) for auc in classes]))
    if metric.name == "c_index":
        return concordance.weighted(answers, targets)
    values = estimates.values_of(metric, answers, targets)

    def mean(times: Array) -> Array:
        with np.errstate(invalid="ignore"):
            found: Array = times @ values / times.sum(axis=1)
        return np.sqrt(found) if metric.name in ROOTS else found

    return mean


def _weighted_auc(odds: Array, own: NDArray[np.bool_]) -> WeightedMetric:
    """Of the samples that are `own` (n,) against the rest: for each of them the weight of the rest that lies below,
    ties half, from sums of weights in the order of the odds (n,)."""
    order = np.argsort(odds, kind="stable")
    ranked, mine = odds[order], own[order]
    rest = order[~mine]
    below, not_above = (np.searchsorted(odds[rest], ranked[mine], side=side) for side in ("left", "right"))

    def auc(times: Array) -> Array:
        summed = np.zeros((len(times), len(rest) + 1))
        np.cumsum(times[:, rest], axis=1, out=summed[:, 1:])
        weights = times[:, order[mine]]
        pairs = weights.sum(axis=1) * summed[:, -1]
        with np.errstate(invalid="ignore"):
            found: Array = (weights * (summed[:, below] + summed[:, not_above])).sum(axis=1) / (2 * pairs)
        return found

    return auc


def _mean_of_known(values: Array) -> Array:
    """(k, ...) -> (...): the mean over those that are not NaN; NaN where all are."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        found: Array = np.where(known, values, 0).sum(axis=0) / known.sum(axis=0)
    return found
