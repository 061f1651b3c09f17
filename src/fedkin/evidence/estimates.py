"""A client's score with its 95 % interval, and the gain of one model over another on the same samples with its own.

| metric | of a score | of a gain |
|---|---|---|
| accuracy | Wilson | Bonett and Price |
| balanced accuracy | Wilson of each recall, put together | Bonett and Price of each class, put together |
| AUC | Newcombe; of several classes the mean of the bounds | bootstrap of placement values, class by class |
| C-index | Newcombe, of events against those comparable with them | paired bootstrap over samples, of all their pairs |
| log loss, RMSE, MAE, MSE | bootstrap over samples | paired bootstrap over samples |

A bootstrap of right and wrong answers would be certain where all are right, and too sure where few differ; so what
counts answers has its own. Everything is seeded: the same outputs give the same interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from torch import Tensor

from ..base.task import ROOTS, Metric, against_the_rest, classes_in, correct
from ..maths import statistics
from . import concordance

Array = NDArray[np.float64]
NAN = float("nan")


class Estimate(NamedTuple):
    """A number and its 95 % interval; NaN where there is none."""

    value: float
    low: float = NAN
    high: float = NAN

    @property
    def p(self) -> float:
        """How likely a number so far from 0 is where there is nothing: as a normal distribution with this interval has
        it; NaN where there is none."""
        near = self.value - self.low if self.value > 0 else self.high - self.value
        if np.isnan(near) or not near > 0:
            return NAN if np.isnan(near) else float(self.low <= 0 <= self.high)
        return float(2 * norm.sf(norm.ppf(0.975) * abs(self.value) / near))


class Gain(Estimate):
    """A difference of two scores, whose interval can be made at any level."""

    interval: statistics.Interval

    @staticmethod
    def of(value: float, interval: statistics.Interval) -> Gain:
        found = Gain(value, *interval(0.95))
        found.interval = interval
        return found

    @property
    def p(self) -> float:
        """The smallest alpha at which the interval leaves 0 out."""
        return statistics.p_value(self.interval)


def estimate(metric: Metric, outputs: Tensor, targets: Tensor) -> Estimate:
    """A model's score on a client's samples: outputs (n, ...), targets (n, ...)."""
    value = score(metric, outputs, targets)
    if not np.isfinite(value):
        return Estimate(value)
    if metric.name == "accuracy":
        return Estimate(value, *statistics.accuracy_interval(int(correct(outputs, targets).sum()), len(targets)))
    if metric.name == "balanced_accuracy":
        classes = _by_class(correct(outputs, targets), targets)
        right, sizes = [int(own.sum()) for own in classes], [len(own) for own in classes]
        return Estimate(value, *statistics.balanced_interval(right, sizes))
    if metric.name == "auc":
        parts = [(float(own.mean()), len(own), len(rest)) for _, own, rest in against_the_rest(outputs, targets)]
        # Classes share their samples: whatever their correlation, the mean is no less certain than this.
        low, high = np.mean([statistics.auc_interval(*part) for part in parts], axis=0).tolist()
        return Estimate(value, low, high)
    if metric.name == "c_index":
        return Estimate(value, *concordance.of_score(value, targets))
    values = values_of(metric, outputs, targets)[:, None]
    low, high = statistics.percentiles(statistics.resampled([values])[:, 0], [values[:, 0]])
    low = max(low, 0.0)
    return Estimate(value, *((low**0.5, high**0.5) if metric.name in ROOTS else (low, high)))


def gain(metric: Metric, before: Tensor, after: Tensor, targets: Tensor) -> Estimate:
    """How much better `after` is than `before` on the same samples; positive is better, whichever way the metric
    points."""
    sign = 1 if metric.higher_is_better else -1
    value = sign * (score(metric, after, targets) - score(metric, before, targets))
    if not np.isfinite(value):
        return Estimate(NAN)
    if metric.name in ("accuracy", "balanced_accuracy"):
        answers = correct(after, targets) - correct(before, targets)
        classes = [answers.numpy()] if metric.name == "accuracy" else _by_class(answers, targets)
        counts = [(int((own > 0).sum()), int((own < 0).sum()), len(own)) for own in classes]

        def put_together(level: float) -> tuple[float, float]:
            parts = [((more - less) / n, *statistics.paired_interval(more, less, n, level)) for more, less, n in counts]
            return statistics.mover(parts)

        return Gain.of(value, put_together)
    if metric.name == "auc":
        strata = _by_class(torch.from_numpy(placements(after, targets) - placements(before, targets)), targets)
        draws = statistics.resampled([own[:, None] for own in strata])[:, 0] - value
        if not any(own.var() for own in strata):  # all samples changed alike, or none did: no spread, but not certain
            return Gain.of(value, partial(_auc_difference, before, after, targets))
        return Gain.of(value, lambda level: within(-1.0, statistics.percentiles(draws, strata, level), 1.0))
    if metric.name == "c_index":
        return Gain.of(value, concordance.of_gain(before, after, targets))
    pair = np.stack([values_of(metric, outputs, targets) for outputs in (before, after)], axis=1)
    both, slope = statistics.resampled([pair]), np.ones(2)
    if metric.name in ROOTS:  # the root of a mean; to first order a mean of these
        slope = root_slope(pair.mean(axis=0))
        both = np.sqrt(both)
    change, drawn = sign * np.diff(pair * slope, axis=1)[:, 0], sign * np.diff(both, axis=1)[:, 0]
    return Gain.of(value, lambda level: statistics.percentiles(drawn, [change], level))


def _auc_difference(before: Tensor, after: Tensor, targets: Tensor, level: float) -> tuple[float, float]:
    """Of two AUCs as if on different samples, which is the more cautious (Zou and Donner 2008)."""

    def with_ends(outputs: Tensor) -> Array:
        parts = [(float(own.mean()), len(own), len(rest)) for _, own, rest in against_the_rest(outputs, targets)]
        ends = [(part[0], *statistics.auc_interval(*part, level)) for part in parts]
        return np.asarray(np.mean(ends, axis=0), dtype=np.float64)

    (was, low_before, high_before), (now, low, high) = with_ends(before), with_ends(after)
    value = now - was
    ends = value - np.hypot(now - low, high_before - was), value + np.hypot(high - now, was - low_before)
    return within(-1.0, (float(ends[0]), float(ends[1])), 1.0)


def within(least: float, interval: tuple[float, float], most: float) -> tuple[float, float]:
    """What of an interval lies where its number can lie."""
    low, high = interval
    return max(low, least), min(high, most)


def gain_over_seeds(each: Sequence[Estimate]) -> Estimate:
    """`over_seeds` of gains, at any level; those that are no `Gain` have no other level."""
    known = [gain for gain in each if isinstance(gain, Gain)]
    if len(known) < sum(not np.isnan(gain.value) for gain in each):
        return over_seeds(each)
    if not known:
        return Estimate(NAN)

    def mean(level: float) -> tuple[float, float]:
        found = over_seeds([Estimate(gain.value, *gain.interval(level)) for gain in known])
        return found.low, found.high

    return Gain.of(over_seeds(known).value, mean)


def over_seeds(each: Sequence[Estimate]) -> Estimate:
    """Means over seeds of the value and of both ends, where they are known.

    The interval is not narrowed for there being several: seeds share the silo's patients, so they are no new evidence
    about it.
    """
    table = np.array(each, dtype=np.float64).reshape(-1, 3)
    return Estimate(
        *(float(column[~np.isnan(column)].mean()) if (column == column).any() else NAN for column in table.T)
    )


def score(metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    """In double precision; NaN where there are no samples."""
    if not len(targets):
        return NAN
    return float(torch.as_tensor(metric(outputs.double(), _exact(targets))).mean())


def values_of(metric: Metric, outputs: Tensor, targets: Tensor) -> Array:
    """(n,) what the metric is the mean of (RMSE: the root of the mean of)."""
    function, power = (ROOTS[metric.name], 2) if metric.name in ROOTS else (metric.function, 1)
    values: Array = function(outputs.double(), _exact(targets)).numpy() * metric.scale**power
    return values


def _exact(targets: Tensor) -> Tensor:
    return targets.double() if targets.is_floating_point() else targets


def _by_class(values: Tensor, targets: Tensor) -> list[Array]:
    return [values[targets == c].double().numpy() for c in classes_in(targets)]


def root_slope(mean: ArrayLike) -> Array:
    """How the root of a mean changes with the mean."""
    return 0.5 / np.sqrt(np.maximum(mean, np.finfo(float).tiny))


def placements(outputs: Tensor, targets: Tensor) -> Array:
    """(n,) a number for each sample; the sum over classes of their means is twice the AUC, and how it varies when
    samples of a class are drawn anew is how the AUC varies (DeLong)."""
    size = Counter(targets.tolist())
    parts = list(against_the_rest(outputs, targets))
    total = torch.zeros(len(targets), dtype=torch.float64)
    for c, own, rest in parts:
        total[targets == c] += own
        share = torch.tensor([size[k] / len(rest) for k in targets[targets != c].tolist()], dtype=torch.float64)
        total[targets != c] += rest * share
    found: Array = (total / len(parts)).numpy()
    return found
