"""What is said about scores: the best round, paired tests, intervals, and groups read off xi.

Scores come as (rounds, clients). A NaN is a client without data to be scored on; means leave it out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

# A tie in attention is a rounding error away from kinship, so kin must stand out from the uniform share by a quarter.
KIN_FACTOR = 1.25


def best_mean(scores: ArrayLike, higher: bool = True) -> tuple[int, float]:
    """BMTA: the round (its index; the earliest of equals) with the best mean over clients, and that mean.

    scores: (rounds, clients) on test data. The round is chosen on the data it is scored on, so the value is
    optimistic: see `validated` for the honest one.
    """
    means = client_means(scores)
    index = _best(means, higher)
    if index is None:
        raise ValueError("There is no best round: the scores hold no finite value.")
    return index, float(means[index])


def last(scores: ArrayLike) -> float:
    """Mean over clients in the last round; scores: (rounds, clients)."""
    return float(client_means(scores)[-1])


def last10(scores: ArrayLike) -> float:
    """Mean of the last ten rounds' means (of all rounds where there are fewer); scores: (rounds, clients)."""
    return float(_mean(client_means(scores)[-10:]))


def validated(test: ArrayLike, validation: ArrayLike | None, higher: bool = True) -> float | None:
    """Test mean at the round with the best mean validation score; None without validation data.

    test, validation: (rounds, clients); clients without validation data are NaN and have no say in the choice.
    """
    if validation is None:
        return None
    tested = client_means(test)
    if len(np.asarray(validation)) != len(tested):
        raise ValueError(
            f"There are {len(tested)} rounds of test scores but {len(np.asarray(validation))} of validation scores."
        )
    index = validated_round(validation, higher)
    return None if index is None else float(tested[index])


def validated_round(validation: ArrayLike, higher: bool = True) -> int | None:
    """The round (its index; the earliest of equals) with the best mean validation score; None where none is finite."""
    return _best(client_means(validation), higher)


def client_means(scores: ArrayLike) -> NDArray[np.float64]:
    """(rounds, clients) -> (rounds,): the unweighted mean over clients, NaN where no client has a score."""
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(f"Scores must be a table of rounds by clients and not empty; these have shape {table.shape}.")
    return np.array([_mean(row) for row in table])


@dataclass(frozen=True)
class Comparison:
    """Wilcoxon's signed-rank test of a against b over n pairs; all values speak for a.

    `median` is the median advantage of a, positive where a is better, whichever way the metric points.
    `greater` and `two_sided` are p-values that rank zero differences (Pratt); the `wilcox_` ones drop them.
    """

    pairs: int
    median: float
    wins: int
    ties: int
    losses: int
    greater: float
    two_sided: float
    wilcox_greater: float
    wilcox_two_sided: float


def wilcoxon(a: ArrayLike, b: ArrayLike, higher: bool = True, decimals: int = 6) -> Comparison:
    """Is a better than b? a, b: (pairs,); `higher` says whether more is better. Pairs with a NaN are left out.

    Differences are rounded to `decimals` first: 0.93 - 0.92 and 0.13 - 0.12 differ in the last bit, and ranks
    would break a tie that is one.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"Paired scores must be vectors of one length; these have {first.shape} and {second.shape}.")
    known = ~(np.isnan(first) | np.isnan(second) | ((first == second) & np.isinf(first)))
    first, second = first[known], second[known]
    difference = np.round(first - second if higher else second - first, decimals)
    if not len(difference):
        raise ValueError("There is no pair to compare: in every pair at least one score is missing.")
    return Comparison(
        pairs=len(difference),
        median=float(np.median(difference)),
        wins=int((difference > 0).sum()),
        ties=int((difference == 0).sum()),
        losses=int((difference < 0).sum()),
        greater=_signed_rank(difference, "pratt", "greater"),
        two_sided=_signed_rank(difference, "pratt", "two-sided"),
        wilcox_greater=_signed_rank(difference, "wilcox", "greater"),
        wilcox_two_sided=_signed_rank(difference, "wilcox", "two-sided"),
    )


def _signed_rank(difference: NDArray[np.float64], zeros: str, alternative: str) -> float:
    if not difference.any():
        return 1.0  # SciPy gives NaN here with the normal approximation, and a false small p with the exact one
    # "exact" is invalid with ties and zeros; "approx" is also understood by the versions that say "asymptotic".
    result = stats.wilcoxon(difference, zero_method=zeros, alternative=alternative, method="approx")
    return float(result.pvalue)


def holm(p_values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's step-down adjustment, (tests,) -> (tests,), in the order given; to be held against the level."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    steps = p[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def interval(values: ArrayLike, level: float = 0.95) -> tuple[float, float] | None:
    """Student's t interval for the mean of independent values (seeds, not clients); None for a single one."""
    sample = np.asarray(values, dtype=np.float64)
    if len(sample) < 2:
        return None
    half = stats.t.ppf(0.5 + level / 2, len(sample) - 1) * sample.std(ddof=1) / np.sqrt(len(sample))
    return float(sample.mean() - half), float(sample.mean() + half)


Interval = Callable[[float], tuple[float, float]]
"""level -> (low, high): a way to make an interval, at any level."""
SURE = 1e-9
"""No p-value is told to be smaller."""


def p_value(interval: Interval) -> float:
    """The smallest alpha at which the interval of level 1 - alpha leaves 0 out: below 0.05 where that of 95 % does. NaN
    where the interval is not known."""

    def outside(alpha: float) -> bool:
        low, high = interval(1 - alpha)
        return low > 0 or high < 0

    if np.isnan(interval(0.95)).any():
        return float("nan")
    inside, out = (SURE, 0.05) if outside(0.05) else (0.05, 1 - SURE)
    if not outside(out):
        return 1.0
    if outside(inside):
        return inside
    for _ in range(40):
        middle = float(np.sqrt(inside * out))
        inside, out = (inside, middle) if outside(middle) else (middle, out)
    return out


def accuracy_interval(correct: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval for an accuracy of `correct` out of `n` samples; sound near 0, near 1 and for few samples."""
    if not 0 <= correct <= n or n == 0:
        raise ValueError(f"An accuracy needs 0 <= correct <= n and n > 0; here correct = {correct} and n = {n}.")
    z = float(stats.norm.ppf(0.5 + level / 2))
    share = correct / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At the ends the bound is 0 or 1 exactly; rounding would leave it a hair away.
    return (0.0 if correct == 0 else float(centre - half)), (1.0 if correct == n else float(centre + half))


def balanced_interval(correct: Sequence[int], n: Sequence[int], level: float = 0.95) -> tuple[float, float]:
    """For the mean recall over classes, correct[c] out of n[c]: Wilson's interval of each, put together by `mover`."""
    return mover([(k / m, *accuracy_interval(k, m, level)) for k, m in zip(correct, n, strict=True)])


def mover(parts: Sequence[tuple[float, float, float]], weights: Sequence[float] | None = None) -> tuple[float, float]:
    """An interval for the mean of independent estimates, each (value, low, high), plain or with these weights: what
    they deviate downwards is added in squares, and upwards likewise (Zou and Donner 2008). It holds the mean and stays
    within the means of the ends."""
    value, low, high = np.array(parts, dtype=np.float64).T
    share = np.ones(len(value)) if weights is None else np.asarray(weights, dtype=np.float64)
    down, up = (float(np.sqrt(((share * side) ** 2).sum())) for side in (value - low, high - value))
    middle, total = float((share * value).sum()), float(share.sum())
    return (middle - down) / total, (middle + up) / total


def auc_interval(auc: float, positives: float, negatives: float, level: float = 0.95) -> tuple[float, float]:
    """Newcombe's interval for an AUC (2006, method 5): all values that lie no further from it than their own standard
    error (Hanley and McNeil's) allows, as Wilson's does for a share; sound for a handful of positives and at 1."""
    z = float(stats.norm.ppf(0.5 + level / 2))
    spread = (positives + negatives) / 2 - 1

    def excess(theta: float) -> float:
        inflation = 1 + spread * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return (theta - auc) ** 2 - z * z * theta * (1 - theta) * inflation / (positives * negatives)

    inside = min(max(auc, 1e-12), 1 - 1e-12)  # at 0 and at 1 the excess is 0, which is not the end looked for
    if not excess(inside) < 0:  # of a level next to nothing, the interval is the value
        return auc, auc
    low = 0.0 if auc == 0 else float(optimize.brentq(excess, 0.0, inside))
    return low, 1.0 if auc == 1 else float(optimize.brentq(excess, inside, 1.0))


def paired_interval(gained: float, lost: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """For (gained - lost) / n, the difference of two shares of the same n samples: Bonett and Price's (2012).

    Two samples are made up, one for each side. Without them four samples gained and none lost of thirty would pass for
    certain, which tossing a coin brings about once in eight times; a bootstrap has that fault too.
    """
    more, less, size = (gained + 1) / (n + 2), (lost + 1) / (n + 2), n + 2
    half = float(stats.norm.ppf(0.5 + level / 2)) * np.sqrt((more + less - (more - less) ** 2) / size)
    estimate = (gained - lost) / n
    return max(-1.0, min(estimate, float(more - less - half))), min(1.0, max(estimate, float(more - less + half)))


def clustered_interval(
    differences: Sequence[NDArray[np.float64]], patients: Sequence[NDArray[np.int64]], level: float = 0.95
) -> tuple[float, float]:
    """`paired_interval` for the mean over seeds of a seed's mean difference, where seeds share patients.

    differences: for each seed (n,) of 1 (gained), 0 and -1 (lost); patients: for each seed (n,) who was tested. A
    patient's differences in all seeds vary together. The two who are made up are tested as often as one is on average:
    a part of each in every seed. With one seed it is `paired_interval`.
    """
    count = np.unique(np.concatenate(patients)).size
    often = sum(len(own) for own in patients) / (len(patients) * count)
    centre = float(np.mean([own.sum() / (len(own) + 2 * often) for own in differences]))
    total, made_up = np.zeros(max(int(own.max()) for own in patients) + 1), np.zeros(2)
    for own, tested in zip(differences, patients, strict=True):
        share = 1 / (len(patients) * (len(own) + 2 * often))
        total += np.bincount(tested, (own - centre) * share, len(total))
        made_up += often * (np.array([1, -1]) - centre) * share
    half = float(stats.norm.ppf(0.5 + level / 2)) * np.sqrt((total**2).sum() + (made_up**2).sum())
    estimate = float(np.mean([own.mean() for own in differences]))
    return max(-1.0, min(estimate, float(centre - half))), min(1.0, max(estimate, float(centre + half)))


RESAMPLES = 2000
DRAWN_AT_ONCE = 1 << 22


def resampled(values: Sequence[ArrayLike], seed: int = 0) -> NDArray[np.float64]:
    """(2000, k) bootstrap: sums over strata of the means of resampled rows; values: for each stratum (n, k)."""
    rng = np.random.default_rng(seed)
    total = np.zeros((RESAMPLES, np.shape(values[0])[1]))
    for stratum in values:
        rows = np.asarray(stratum, dtype=np.float64)
        at_once = max(1, DRAWN_AT_ONCE // rows.size)
        for at in range(0, RESAMPLES, at_once):
            part = total[at : at + at_once]
            part += rows[rng.integers(len(rows), size=(len(part), len(rows)))].mean(axis=1)
    return total


def percentiles(draws: NDArray[np.float64], values: Sequence[ArrayLike], level: float = 0.95) -> tuple[float, float]:
    """The interval that bootstrap draws (resamples,) of a sum of means of strata (n,) give.

    Few samples spread too little when drawn anew, and their spread is itself uncertain; the percentiles are moved
    outwards as Student's t would have it (Hesterberg 2015), with Welch's degrees of freedom for several strata. Where
    that is further than draws reach (four samples and fewer), the interval is Student's. A stratum of a single sample
    has no spread that could be seen, and leaves the interval unknown.
    """
    sizes = np.array([len(np.asarray(stratum)) for stratum in values])
    if sizes.min() < 2:
        return float("nan"), float("nan")
    squared = np.array([np.var(np.asarray(stratum), ddof=1) for stratum in values]) / sizes
    return widened(draws, squared, sizes - 1, float((squared * (sizes - 1) / sizes).sum()), level)


def widened(
    draws: NDArray[np.float64],
    squared: NDArray[np.float64],
    freedom: NDArray[np.float64],
    drawn: float,
    level: float = 0.95,
) -> tuple[float, float]:
    """Percentiles of draws (resamples,), moved outwards to what they should spread by Student's t.

    squared: (strata,) the squared standard errors, whose sum the draws should have for their variance; freedom:
    (strata,) degrees of freedom of each; drawn: the variance that draws have instead.
    """
    if not squared.sum() > 0:
        return (float(draws[0]),) * 2
    narrow = max(1.0, np.sqrt(squared.sum() / max(drawn, np.finfo(float).tiny)))
    t = stats.t.ppf(0.5 + level / 2, squared.sum() ** 2 / (squared**2 / freedom).sum())
    tail = stats.norm.cdf(-narrow * t)
    if tail < 1 / len(draws):
        half = t * np.sqrt(squared.sum())
        return float(draws.mean() - half), float(draws.mean() + half)
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(low), float(high)


def within_group_share(xi: ArrayLike, groups: Sequence[int]) -> float | None:
    """Share of the off-diagonal weight of xi (m, m) that stays within groups (m,).

    None where it says nothing: there is no such weight, or no two clients share a group.
    """
    others = _off_diagonal(xi)
    group = np.asarray(groups)
    if group.shape != (len(others),):
        raise ValueError(f"xi is about {len(others)} clients but there are {group.size} group labels.")
    total = others.sum()
    if total <= 0 or len(np.unique(group)) == len(group):
        return None
    return float(others[group[:, None] == group[None, :]].sum() / total)


def kin(xi: ArrayLike) -> NDArray[np.int64]:
    """Groups read off xi (m, m), as labels (m,) numbered by first appearance.

    i and j are kin if each gives the other more than 1.25 times its uniform share, the mean of its weights on
    others; groups are the connected components. Uniform attention makes everyone a group of its own.
    """
    others = _off_diagonal(xi)
    uniform = others.sum(axis=1, keepdims=True) / max(len(others) - 1, 1)
    attends = others > KIN_FACTOR * uniform
    _, labels = connected_components(csr_matrix(attends & attends.T), directed=False)
    return np.asarray(labels, dtype=np.int64)


def adjusted_rand(labels: ArrayLike, groups: ArrayLike) -> float:
    """Adjusted Rand index of two partitions (m,) and (m,): 1 for equal ones, about 0 for unrelated ones."""
    _, first = np.unique(np.asarray(labels), return_inverse=True)
    _, second = np.unique(np.asarray(groups), return_inverse=True)
    if first.shape != second.shape:
        raise ValueError(f"Two partitions must be of the same clients; these are of {first.size} and of {second.size}.")
    table = np.zeros((first.max() + 1, second.max() + 1))
    np.add.at(table, (first, second), 1)
    together, in_first, in_second = _pairs(table), _pairs(table.sum(axis=1)), _pairs(table.sum(axis=0))
    all_pairs = _pairs(np.array([first.size]))
    expected = in_first * in_second / all_pairs if all_pairs else 0.0
    most = (in_first + in_second) / 2
    return 1.0 if most == expected else (together - expected) / (most - expected)


def _pairs(counts: NDArray[np.float64]) -> float:
    return float((counts * (counts - 1) / 2).sum())


def _off_diagonal(xi: ArrayLike) -> NDArray[np.float64]:
    weights = np.array(xi, dtype=np.float64)
    if weights.ndim != 2 or weights.shape[0] != weights.shape[1]:
        raise ValueError(f"xi must be a square matrix, clients by clients; this one has shape {weights.shape}.")
    np.fill_diagonal(weights, 0.0)
    return weights


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _best(means: NDArray[np.float64], higher: bool) -> int | None:
    """Index of the best mean; a NaN or an infinite one (a diverged round) is never the best."""
    finite = np.isfinite(means)
    if not finite.any():
        return None
    return int(np.argmax(np.where(finite, means if higher else -means, -np.inf)))
