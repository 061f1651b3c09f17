"""Test samples that come in clusters: several visits of one patient, readings of one machine.

What a subject's samples say alike they say once. So the variance of a mean is taken over subjects: if sample j has the
share a_j in it, of value z_j and mean m,

    V = k / (k - 1) · sum over the k subjects of (sum over a subject's samples of a_j (z_j - m))²

and samples are worth as many independent ones as would have that variance, n = var(z) / V: their number over Kish's
design effect (1965). Wilson's, Bonett and Price's and Newcombe's intervals are then of so many, as Korn and Graubard
(1998) have it for shares, and Dean and Pagano (2015) for Wilson's. It is never more than the samples, and never less
than subjects are worth all of whose samples are alike, which is also taken where there is no spread to see. Of few
wrong answers nobody can tell whether they cluster: so for Wilson's a quarter of a subject is made up that is always
right, and a quarter of one that is always wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .estimates import Array

Places = NDArray[np.int64]
MADE_UP = 0.25
"""Of a subject, on either side."""


class Values(NamedTuple):
    """What a mean over seeds of a seed's mean is of, seed by seed: (n,) values, which samples and which subjects."""

    values: Sequence[Array]
    rows: Sequence[Places]
    subjects: Sequence[Places]

    @property
    def mean(self) -> float:
        return float(np.mean([own.mean() for own in self.values]))

    def deviations(self, centre: float, count: int) -> Array:
        """(count,) for each subject the sum of its samples' deviations from the centre, each by its share."""
        total = np.zeros(count)
        for own, subjects in zip(self.values, self.subjects, strict=True):
            total += np.bincount(subjects, (own - centre) / (len(own) * len(self.values)), count)
        return total


def shares(patients: Sequence[Places]) -> Array:
    """For each patient that is tested: the share in the mean over seeds of a seed's mean. They sum to 1."""
    share = np.concatenate([np.full(len(own), 1 / (len(own) * len(patients))) for own in patients])
    total = np.bincount(np.concatenate(patients), share)
    return np.asarray(total[total > 0], dtype=np.float64)


def worth(patients: Sequence[Places]) -> float:
    """How many patients would say as much, if all were tested equally often."""
    return float(1 / np.square(shares(patients)).sum())


def effective(found: Values, made_up: float = 0.0) -> float:
    """How many independent samples would say as much of the mean; made_up: so much of a subject all of whose values are
    0, and of one all of whose values are 1."""
    fewest, most = worth(found.subjects), worth(found.rows)
    subjects = len(np.unique(np.concatenate(found.subjects)))
    if subjects < 2:
        return fewest
    each = made_up / subjects
    whole, count = 1 + 2 * each, subjects + 2 * made_up
    centre = (found.mean + each) / whole
    spread = np.mean([np.square(own - centre).mean() for own in found.values])
    beyond = (1 - centre) ** 2 + centre**2
    squared = np.square(found.deviations(centre, _count(found))).sum() + made_up * beyond / subjects**2
    if not squared > 0:
        return fewest
    one = (spread + each * beyond) / whole
    return float(np.clip(one / (squared / whole**2 * count / (count - 1)) / whole, fewest, most))


def inflation(parts: Sequence[Values]) -> float:
    """How much larger the variance of a mean of means is than if they were independent, as subjects have samples in
    several of them: in two classes, say. Not less than 1."""
    count = max(map(_count, parts))
    each = np.array([part.deviations(part.mean, count) for part in parts])
    apart = np.square(each).sum()
    return max(1.0, float(np.square(each.sum(axis=0)).sum() / apart)) if apart > 0 else 1.0


def stretched(value: float, interval: tuple[float, float], by: float) -> tuple[float, float]:
    """An interval around a value, of a variance so many times as large."""
    low, high = interval
    return value - by**0.5 * (value - low), value + by**0.5 * (high - value)


def _count(found: Values) -> int:
    return 1 + max(int(own.max()) for own in found.subjects)
