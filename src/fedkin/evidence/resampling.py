"""A seed's test of one model, or of two, on patients who are known: what these are worth, and drawing them anew.

A draw takes patients with replacement. Every seed's metric is then of its test samples, each as often as its patient
was drawn, and the mean is over the seeds in which it is defined. Percentiles are moved outwards to what patients' own
differences say, with Student's t.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..base.task import ROOTS, Metric, correct, log_odds, told_apart
from ..maths import statistics
from . import concordance, estimates
from .by_subject import Places, shares
from .estimates import NAN, Array

WeightedMetric = Callable[[Array], Array]
"""(draws, n) how often each sample was drawn -> (draws,) the metric of these; NaN where it is not defined."""


class Test(NamedTuple):
    """A seed's test of one model, or of two: their answers (n, ...), targets (n, ...), and which patients these are:
    (n,) places among the patients of all seeds. Where patients have several samples, `rows` (n,) are the places of
    these among the samples of all seeds."""

    metric: Metric
    answers: tuple[Tensor, ...]
    targets: Tensor
    patients: Places
    rows: Places | None = None

    @property
    def scores(self) -> Array:
        return np.array([estimates.score(self.metric, answers, self.targets) for answers in self.answers])

    def right(self, model: int = 0) -> Array:
        """(n,) 1 where the answer is right, else 0."""
        found: Array = correct(self.answers[model].double(), self.targets).numpy()
        return found

    def of_class(self, c: int) -> Test:
        own = self.targets == c
        rows = None if self.rows is None else self.rows[own.numpy()]
        return Test(
            self.metric, tuple(a[own] for a in self.answers), self.targets[own], self.patients[own.numpy()], rows
        )


def bootstrap(tests: Sequence[Test], change: Array) -> statistics.Interval:
    """Intervals of the mean over seeds of the models' scores times `change` (models,), all of the same draws."""
    count = 1 + max(int(test.patients.max()) for test in tests)
    by_class = tests[0].metric.name == "auc" and not _in_several_classes(tests)
    stratum = np.full(count, -1)
    for test in tests:
        stratum[test.patients] = test.targets.numpy() if by_class else 0
    strata = [np.flatnonzero(stratum == each) for each in np.unique(stratum[stratum >= 0])]
    if min(len(own) for own in strata) < 2:
        return lambda level: (NAN, NAN)
    terms = [
        np.stack([_terms(test.metric, answers, test.targets, by_class) for answers in test.answers], axis=1) @ change
        for test in tests
    ]
    squared, freedom = np.array([_spread(own, tests, terms, count) for own in strata]).T
    draws = _draws(tests, strata, count) @ change
    draws = draws[~np.isnan(draws)]
    return partial(statistics.widened, draws, squared, freedom, float(draws.var()))


def _in_several_classes(tests: Sequence[Test]) -> bool:
    """Whether a patient has samples of several classes: ill at one visit, and well at another."""
    if tests[0].rows is None:
        return False
    both = np.concatenate([np.stack([test.patients, test.targets.numpy()], axis=1) for test in tests])
    return len(np.unique(both, axis=0)) > len(np.unique(both[:, 0]))


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
    own_shares = shares([patients for patients, _ in parts])
    freedom = np.square(own_shares).sum() ** 2 / (own_shares**4).sum() - 1
    return float(np.square(total).sum()) * len(own) / (len(own) - 1), float(freedom)


def _terms(metric: Metric, answers: Tensor, targets: Tensor, by_class: bool) -> Array:
    """(n,) what the score is the mean of, to first order: how it varies with these is how the score varies. Of an AUC
    these are means class by class, unless classes are to be drawn together."""
    if metric.name == "auc":
        found = estimates.placements(answers, targets)
        return found if by_class else _of_all_classes(found, targets.numpy())
    if metric.name == "c_index":
        return concordance.contributions(answers, targets)
    values = estimates.values_of(metric, answers, targets)
    return values * estimates.root_slope(values.mean()) if metric.name in ROOTS else values


def _of_all_classes(values: Array, targets: NDArray[np.int64]) -> Array:
    """(n,) numbers whose mean varies as the sum of the classes' means does."""
    found = np.zeros(len(values))
    for c in np.unique(targets):
        own = targets == c
        found[own] = (values[own] - values[own].mean()) * len(values) / own.sum()
    return found


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
