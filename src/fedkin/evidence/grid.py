"""A grid of settings that was tried out: what each point came to on validation data, and which is the best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from ..base.settings import ConfigError
from .comparison import Run

ROUNDING = 1e-9
"""Where one client alone differs, the difference is its standard error, and that is no reason to choose."""


@dataclass(frozen=True)
class Trial:
    """What a point came to: the headline model's mean validation score around the round that is taken, the mean over
    its runs' seeds, and that round, of the first.

    None where there is no such score: a run was told to stop when training diverges, and it did. `values` are those
    of the grid's settings, by their full names.
    """

    name: str
    values: dict[str, Any]
    runs: Sequence[Run]
    validation: float | None
    round: int | None
    clients: tuple[float, ...] = ()
    """The score of each client in each run, in one row; NaN where there is none, and empty where they are not known."""

    @property
    def run(self) -> Run:
        return self.runs[0]


@dataclass(frozen=True)
class Edge:
    """A setting whose best value is the first or last of its kind, and the next number beyond."""

    setting: str
    chosen: float
    side: str
    beyond: float

    @property
    def sentence(self) -> str:
        return (
            f"{self.setting} = {self.chosen} is the {self.side} value of the grid: a {self.side[:-2]}r one may be "
            f"better. Add one, such as {self.beyond:g}; what is done stays."
        )


@dataclass(frozen=True)
class Tuned:
    """A grid that was tried out, in the order of its points."""

    grid: dict[str, list[Any]]
    trials: Sequence[Trial]

    @cached_property
    def best(self) -> Trial:
        """The point with the best validation score; the first of equals."""
        scored = [t for t in self.trials if t.validation is not None]
        if not scored:
            raise ConfigError("Training diverged at every point of the grid; try smaller learning rates (local.lr).")
        sign = 1 if scored[0].run.summary.higher_is_better else -1
        return max(scored, key=lambda t: sign * (t.validation or 0.0))

    @property
    def values(self) -> dict[str, Any]:
        """The chosen values by the settings' full names."""
        return self.best.values

    @property
    def test(self) -> float:
        """The chosen point's mean test score in the chosen round."""
        found = [run.summary.models[run.summary.headline].validated for run in self.best.runs]
        known = [score for score in found if score is not None]
        assert len(known) == len(found), "the point was chosen by its validation score"
        return sum(known) / len(known)

    def edges(self) -> list[Edge]:
        """Where the grid should grow."""
        found = []
        for name, values in self.grid.items():
            numbers = sorted(v for v in values if isinstance(v, int | float) and not isinstance(v, bool))
            chosen = self.values[name]
            if len(numbers) < 2 or chosen not in (numbers[0], numbers[-1]) or isinstance(chosen, str):
                continue
            side, further = ("largest", numbers) if chosen == numbers[-1] else ("smallest", numbers[::-1])
            found.append(Edge(name, chosen, side, _next(further)))
        return found


@dataclass(frozen=True)
class Rates(Tuned):
    """The rates that were tried for a method; `own` is the one that it would have had. A trial's name is the word by
    which its rate was asked for, such as x0.3. The grid has the one setting that is the method's rate."""

    method: str
    own: float

    @cached_property
    def best(self) -> Trial:
        """Of the rates that are as good as the best on validation data, the one nearest to the method's own, and of two
        that are as near the better one."""
        sign = 1 if super().best.run.summary.higher_is_better else -1

        def distance(trial: Trial) -> tuple[float, float]:
            powers = abs(math.log10(float(trial.values[self.setting]) / self.own))
            return round(powers, 1), -sign * (trial.validation or 0.0)  # x3 is as near as x0.3

        return min(self.as_good, key=distance)

    @cached_property
    def as_good(self) -> list[Trial]:
        """The rate with the best validation score, and those that are not worse by more than a standard error of the
        difference, over clients and seeds: of a few rows the best of five is luck (Breiman's one-standard-error rule).
        """
        best = super().best
        scored = [trial for trial in self.trials if trial.validation is not None]
        return [trial for trial in scored if trial is best or _gap(best, trial) <= _error(best, trial) * (1 + ROUNDING)]

    @property
    def setting(self) -> str:
        return next(iter(self.grid))

    @property
    def rate(self) -> float:
        """The chosen one."""
        return float(self.values[self.setting])

    @property
    def edge(self) -> Edge | None:
        """Where the chosen rate is the first or last that was tried, and clearly better than every other."""
        return next(iter(self.edges()), None) if len(self.as_good) == 1 else None


def _gap(best: Trial, other: Trial) -> float:
    return abs((best.validation or 0.0) - (other.validation or 0.0))


def _error(one: Trial, other: Trial) -> float:
    """The standard error of the difference of two trials, paired by client and seed; 0 where that is not known."""
    if len(one.clients) != len(other.clients):
        return 0.0
    apart = np.array(one.clients) - np.array(other.clients)
    known = apart[~np.isnan(apart)]
    return float(known.std(ddof=1) / np.sqrt(len(known))) if len(known) > 1 else 0.0


def at_the_edge(tuned: Iterable[Rates]) -> list[str]:
    """Which methods' rates lie at the edge of what was tried, in a sentence for each way in which to look further."""
    found: dict[tuple[str, str], list[str]] = {}
    for rates in tuned:
        tried = [t.name for t in rates.trials]
        if rates.edge is not None:
            factor = f"x{float(f'{rates.edge.beyond / rates.own:.1g}'):g}"
            further = factor if rates.best.name.startswith("x") else f"{rates.edge.beyond:g}"
            chosen = f"{rates.method} ({rates.setting} = {rates.rate:g})"
            all_told = [*tried, further] if rates.edge.side == "largest" else [further, *tried]
            found.setdefault((rates.edge.side, ",".join(all_told)), []).append(chosen)
    return [
        f"The {side} rate that was tried is the best for {', '.join(chosen)}: a {side[:-2]}r one may be better. "
        f"Try --tune {all_told}; what is done stays."
        for (side, all_told), chosen in found.items()
    ]


def _next(numbers: Sequence[float]) -> float:
    """The number after the last: by the last ratio if all are positive and grow by more than half, else by the step."""
    before, last = list(pairwise(numbers))[-1]
    ratio = last / before if min(numbers) > 0 else 1.0
    return float(f"{last * ratio if not 2 / 3 < ratio < 1.5 else 2 * last - before:.3g}")
