"""Intervals of the C-index, and of the gain of one model over another on the same patients, by a bootstrap over these.

If patients are drawn t times each, the C-index of these is t'Mt / t'Pt: P says which pairs can be compared, M what they
count. Of very many patients the first order of that is taken, a mean of what each patient contributes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..base.survival import c_index, comparable_with, pairs, pairs_of_each
from ..maths import statistics

Array = NDArray[np.float64]
Ends = tuple[float, float]
MOST_PATIENTS = 2000
"""Up to so many, all pairs of them are drawn anew."""


def contributions(outputs: Tensor, targets: Tensor) -> Array:
    """(n,) numbers whose mean is the C-index, and which vary as it does, to first order, if patients are drawn anew."""
    comparable, won = pairs_of_each(outputs, targets)
    value = won.sum() / comparable.sum()
    found: Array = (value + 2 * len(targets) * (won - value * comparable) / comparable.sum()).numpy()
    return found


def weighted(outputs: Tensor, targets: Tensor) -> Callable[[Array], Array]:
    """(draws, n) how often each patient was drawn -> (draws,) the C-index of these; NaN where it is not defined."""
    if len(targets) > MOST_PATIENTS:
        values = contributions(outputs, targets)
        return lambda times: times @ values / times.sum(axis=1)
    events = (targets[:, 1] > 0).nonzero().squeeze(1)
    comparable, won = (table.numpy() for table in pairs(outputs, targets, events))

    def concordance(times: Array) -> Array:
        own = times[:, events.numpy()]
        with np.errstate(invalid="ignore"):
            found: Array = ((own @ won) * times).sum(axis=1) / ((own @ comparable) * times).sum(axis=1)
        return found

    return concordance


def sizes(targets: Tensor) -> tuple[NDArray[np.bool_], float]:
    """(n,) who had the event and can be compared with somebody, and with how many each of them on average."""
    comparable = comparable_with(targets)
    told = (comparable > 0).numpy()
    return told, float(comparable.sum()) / max(1, int(told.sum()))


def of_score(value: float, targets: Tensor, level: float = 0.95) -> Ends:
    """Newcombe's interval of an AUC, of those who had the event against as many as they can be compared with: sound for
    few events, and at 1, where a bootstrap would be certain."""
    told, others = sizes(targets)
    return statistics.auc_interval(value, int(told.sum()), others, level)


def apart(before: float, of_before: tuple[float, float], after: float, of_after: tuple[float, float]) -> Ends:
    """Of the difference of two scores as if on different patients, which is the more cautious (Zou and Donner 2008)."""
    (low_before, high_before), (low, high) = of_before, of_after
    down, up = np.hypot(after - low, high_before - before), np.hypot(high - after, before - low_before)
    return within(float(after - before - down), float(after - before + up))


def within(low: float, high: float) -> Ends:
    """What of an interval lies where a difference of C-indices can lie."""
    return max(low, -1.0), min(high, 1.0)


def of_gain(before: Tensor, after: Tensor, targets: Tensor) -> Callable[[float], Ends]:
    """The interval at any level, of both models on one draw of patients."""
    rng, n = np.random.default_rng(0), len(targets)
    made = [weighted(outputs, targets) for outputs in (before, after)]
    draws, at_once = [], max(1, statistics.DRAWN_AT_ONCE // n)
    for at in range(0, statistics.RESAMPLES, at_once):
        count = min(at_once, statistics.RESAMPLES - at)
        times = rng.multinomial(n, np.full(n, 1 / n), size=count).astype(np.float64)
        draws.append(made[1](times) - made[0](times))
    found = np.concatenate(draws)
    change = contributions(after, targets) - contributions(before, targets)
    scores = [float(c_index(outputs, targets)) for outputs in (before, after)]

    def interval(level: float) -> Ends:
        low, high = statistics.percentiles(found[~np.isnan(found)], [change], level)
        if low == high != 0:  # all patients changed alike: that shows no spread, but is not certain
            return apart(scores[0], of_score(scores[0], targets, level), scores[1], of_score(scores[1], targets, level))
        return within(low, high)

    return interval
