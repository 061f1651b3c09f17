"""Why a method came out below training alone, as far as its records show it.

A method is below where its headline model is worse than `separate` over the same clients by more than chance explains,
by the comparison's own tests. Each reason is a fact of the records, told only where it is seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .comparison import ALONE, ORACLE, Members, Pair, Row, Run
from .grid import Rates

CHANCE = 0.05
HALF = 0.5
FEWEST = 10
"""Rounds below which nothing is said of how a curve ends."""


@dataclass(frozen=True)
class Below:
    """A headline row below training alone: by how much (a positive number), how likely by chance, and what is seen."""

    row: Row
    gap: float
    p: float
    other: Row | None = None
    """Another of its models, which makes up at least half of the gap."""
    rate: Rates | None = None
    """The rates tried for it, where the chosen one is the first or last."""
    rise: tuple[float, int] | None = None
    """What its validation score still gained over so many last rounds: more than twice its noise, and so much more
    than training alone that as many rounds again would make up half of the gap, if it went on slowing down as it did.
    What is harmed beyond that is harmed by something that more rounds do not cure."""
    trained: tuple[str, str] | None = None
    """By what it was trained and what training alone was, where it is another optimiser, or a rate nobody chose."""
    loss: tuple[float, float, float] | None = None
    """Its training loss in the first round, in the last ones, and that of training alone: more than half of the first
    is left, and more than twice of what is left alone."""
    elsewhere: tuple[float, Row] | None = None
    """The share of weight that goes to other groups, over a half, where staying inside them is better than alone."""
    diverged: int = 0
    """Trainings of a client that were no longer finite."""


def below_alone(
    rows: Sequence[Row],
    pairs: Sequence[Pair],
    members: Members,
    tuned: Mapping[str, Rates],
    trained: Mapping[str, str],
    higher: bool,
) -> list[Below]:
    """The headline rows below training alone, in the order of the table."""
    heads, sign = [row for row in rows if row.headline], 1 if higher else -1
    alone = next((row for row in heads if members[row.method][0].summary.method == ALONE), None)
    if alone is None:
        return []
    oracle = next((row for row in heads if row.method == ORACLE and sign * (row.score - alone.score) > 0), None)
    p_values = {pair.second: pair.p for pair in pairs if pair.first == alone.name}
    found = []
    for row in heads:
        gap, p = sign * (alone.score - row.score), p_values.get(row.name)
        if not gap > 0 or p is None or not p < CHANCE:
            continue
        runs, rates = members[row.method], tuned.get(row.method)
        others = [each for each in rows if each.method == row.method and not each.headline]
        best = max(others, key=lambda each: sign * each.score, default=None)
        other = best if best is not None and sign * (best.score - row.score) >= HALF * gap else None
        split = row.model == "global" and other is not None  # a loss that one model for all cannot but have
        found.append(
            Below(
                row,
                gap,
                p,
                other=other,
                rate=rates if rates is not None and rates.edge is not None else None,
                rise=_rise(runs, row.model, (members[alone.method], alone.model), gap, sign),
                trained=_differently(trained.get(row.method), trained.get(alone.method), rates is not None),
                loss=None if split else _loss(runs, members[alone.method]),
                elsewhere=_elsewhere(runs, oracle),
                diverged=sum(len(line.diverged) for run in runs for line in run.rounds),
            )
        )
    return found


def _rise(
    runs: Sequence[Run], model: str, alone: tuple[Sequence[Run], str], gap: float, sign: int
) -> tuple[float, int] | None:
    own, other = _ending(runs, model, sign), _ending(*alone, sign)
    if own is None:
        return None
    rise, noise, last, coming = own
    caught_up = coming - max(0.0, other[3] if other else 0.0)
    return (rise, last) if rise > 2 * noise and caught_up >= HALF * gap else None


def _ending(runs: Sequence[Run], model: str, sign: int) -> tuple[float, float, int, float] | None:
    """Of the validation curve, mean over seeds: what a line through its last fifth rises, the noise around that line,
    how many rounds these are, and what as many rounds as there were would bring, were they to slow down from fifth to
    fifth as the last two did."""
    curves = [_validation(run, model) for run in runs]
    if any(curve is None for curve in curves) or len({len(curve) for curve in curves if curve is not None}) > 1:
        return None
    y = sign * np.mean([curve for curve in curves if curve is not None], axis=0)
    if len(y) < FEWEST or not np.isfinite(y).all():
        return None
    count = max(5, len(y) // 5)
    (before, _), (slope, noise) = _line(y[-2 * count : -count]), _line(y[-count:])
    slower = min(1.0, max(0.0, slope / before)) if before > 0 else 1.0
    coming = sum(slope * count * slower**k for k in range(1, 1 + len(y) // count))
    return slope * (count - 1), noise, count, coming


def _line(y: NDArray[np.float64]) -> tuple[float, float]:
    """The slope of a line through y, and the noise around it."""
    steps = np.arange(len(y))
    slope, height = np.polyfit(steps, y, 1)
    return float(slope), float(np.sqrt(np.sum((y - height - slope * steps) ** 2) / (len(y) - 2)))


def _validation(run: Run, model: str) -> NDArray[np.float64] | None:
    """(rounds,) the mean validation scores; None where there are none."""
    parts = [line.models[model].validation for line in run.rounds if not line.novel and model in line.models]
    means = [part.mean for part in parts if part is not None and part.mean is not None]
    return np.array(means, dtype=np.float64) if means and len(means) == len(parts) else None


def _differently(own: str | None, alone: str | None, chosen: bool) -> tuple[str, str] | None:
    if own is None or alone is None or own == alone or "–" in (own, alone):
        return None
    return None if chosen and own.split()[0] == alone.split()[0] else (own, alone)


def _loss(runs: Sequence[Run], alone: Sequence[Run]) -> tuple[float, float, float] | None:
    (first, last), (_, others) = _losses(runs), _losses(alone)
    return (first, last, others) if last > HALF * first and last > 2 * others else None


def _losses(runs: Sequence[Run]) -> tuple[float, float]:
    """The training loss in the first round and over the last fifth, means over seeds; NaN where it is not known."""
    ends = []
    for run in runs:
        each = [line.train_loss for line in run.rounds if line.train_loss is not None and not line.novel]
        ends.append((each[0], float(np.mean(each[-max(1, len(each) // 5) :]))) if each else (np.nan, np.nan))
    first, last = np.mean(ends, axis=0)
    return float(first), float(last)


def _elsewhere(runs: Sequence[Run], oracle: Row | None) -> tuple[float, Row] | None:
    inside = [run.summary.collaboration.within_group for run in runs if run.summary.collaboration is not None]
    known = [share for share in inside if share is not None]
    if oracle is None or not known:
        return None
    share = 1 - float(np.mean(known))
    return (share, oracle) if share > HALF else None
