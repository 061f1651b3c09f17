"""A client's score with its 95 % interval, and the gain of one model over another on the same samples with its own.

| metric | of a score | of a gain |
|---|---|---|
| accuracy | Wilson | Bonett and Price |
| balanced accuracy | Wilson of each recall, put together | Bonett and Price of each class, put together |
| AUC | Newcombe; of several classes the mean of the bounds | bootstrap of placement values, class by class |
| log loss, RMSE, MAE, MSE | bootstrap over samples | paired bootstrap over samples |

A bootstrap of right and wrong answers would be certain where all are right, and too sure where few differ; so what
counts answers has its own. Everything is seeded: the same outputs give the same interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..base.task import ROOTS, Metric, against_the_rest, classes_in, correct
from ..maths import statistics

Array = NDArray[np.float64]
NAN = float("nan")


class Estimate(NamedTuple):
    """A number and its 95 % interval; NaN where there is none."""

    value: float
    low: float = NAN
    high: float = NAN


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
        parts = []
        for own in classes:
            gained, lost = int((own > 0).sum()), int((own < 0).sum())
            interval = statistics.paired_interval(gained, lost, len(own))
            parts.append(((gained - lost) / len(own), *interval))
        return Estimate(value, *statistics.mover(parts))
    if metric.name == "auc":
        strata = _by_class(torch.from_numpy(placements(after, targets) - placements(before, targets)), targets)
        draws = statistics.resampled([own[:, None] for own in strata])[:, 0] - value
        low, high = statistics.percentiles(draws, strata)
        return Estimate(value, max(low, -1.0), min(high, 1.0))
    pair = np.stack([values_of(metric, outputs, targets) for outputs in (before, after)], axis=1)
    draws, slope = statistics.resampled([pair]), np.ones(2)
    if metric.name in ROOTS:  # the root of a mean; to first order a mean of these
        slope = root_slope(pair.mean(axis=0))
        draws = np.sqrt(draws)
    change = sign * np.diff(pair * slope, axis=1)[:, 0]
    return Estimate(value, *statistics.percentiles(sign * np.diff(draws, axis=1)[:, 0], [change]))


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
