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
    """What its validation score still gained over so many last rounds: more than twice its noise, and a tenth of the
    gap."""
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
    oracle = next((row for row in heads if row.method == ORACLE and sign * (row.bmta - alone.bmta) > 0), None)
    p_values = {pair.second: pair.p_greater for pair in pairs if pair.first == alone.name}
    found = []
    for row in heads:
        gap, p = sign * (alone.bmta - row.bmta), p_values.get(row.name, 1.0)
        if gap <= 0 or not p < CHANCE:
            continue
        runs, rates = members[row.method], tuned.get(row.method)
        others = [each for each in rows if each.method == row.method and not each.headline]
        best = max(others, key=lambda each: sign * each.bmta, default=None)
        other = best if best is not None and sign * (best.bmta - row.bmta) >= HALF * gap else None
        split = row.model == "global" and other is not None  # a loss that one model for all cannot but have
        found.append(
            Below(
                row,
                gap,
                p,
                other=other,
                rate=rates if rates is not None and rates.edge is not None else None,
                rise=_rise(runs, row.model, gap, sign),
                trained=_differently(trained.get(row.method), trained.get(alone.method), rates is not None),
                loss=None if split else _loss(runs, members[alone.method]),
                elsewhere=_elsewhere(runs, oracle),
                diverged=sum(len(line.diverged) for run in runs for line in run.rounds),
            )
        )
    return found


def _rise(runs: Sequence[Run], model: str, gap: float, sign: int) -> tuple[float, int] | None:
    """Of a line through the last fifth of the validation curve, mean over seeds."""
    curves = [_validation(run, model) for run in runs]
    if any(curve is None for curve in curves) or len({len(curve) for curve in curves if curve is not None}) > 1:
        return None
    y = sign * np.mean([curve for curve in curves if curve is not None], axis=0)
    if len(y) < FEWEST or not np.isfinite(y).all():
        return None
    last = y[-max(5, len(y) // 5) :]
    steps = np.arange(len(last))
    slope, height = np.polyfit(steps, last, 1)
    noise = float(np.sqrt(np.sum((last - height - slope * steps) ** 2) / (len(last) - 2)))
    rise = float(slope * (len(last) - 1))
    return (rise, len(last)) if rise > max(2 * noise, gap / 10) else None


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
