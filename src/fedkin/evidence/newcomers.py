"""Newcomers: what clients got that were held out of training, beside those that were not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .comparison import Members, Name, Run, Scored
from .records import Novel


@dataclass(frozen=True)
class Spread:
    """A mean over clients, then over seeds; the deviations as in a `Row`, over clients and over seeds apart."""

    mean: float
    std_clients: float
    std_seeds: float | None


@dataclass(frozen=True)
class Served:
    """What a `method:model` gave to newcomers, beside what known clients had at the closing exchange.

    `known` is None for a way of serving that newcomers alone are given. counts: newcomers in each seed.
    """

    method: str
    model: str
    headline: bool
    known: Spread | None
    newcomers: Spread
    counts: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.method}:{self.model}"

    @property
    def difference(self) -> float:
        """Newcomers less known clients; NaN where no known client has that model."""
        return self.newcomers.mean - self.known.mean if self.known else float("nan")


def newcomers(members: Members, found: Mapping[Name, Sequence[Scored]], higher: bool) -> list[Served]:
    """What newcomers got from each `method:model`: the method that serves them best first, its headline model on top.

    Seeds without newcomers are left out. A way of serving that newcomers alone are given has no known clients.
    """
    served: list[list[Served]] = []
    sign = -1 if higher else 1
    for method, runs in members.items():
        held = {run.summary.seed: run.summary.novel for run in runs if run.summary.novel}
        models = next(iter(held.values())).models if held else ()
        own = [_served(method, model, runs[0], held, found.get((method, model), ())) for model in models]
        served.append(sorted(own, key=lambda each: (not each.headline, _rank(each, sign))))
    served.sort(key=lambda own: _rank(own[0], sign) if own else np.inf)
    return [each for own in served for each in own]


def _served(method: str, model: str, first: Run, held: Mapping[int, Novel], seeds: Sequence[Scored]) -> Served:
    """held: {seed: its newcomers}; seeds: that model of known clients, if they have it."""
    tables = [novel.models[model].clients for novel in held.values()]
    known = [seed.table[-1] for seed in seeds if seed.seed in held]
    return Served(
        method=method,
        model=model,
        headline=model == first.summary.headline,
        known=_spread(known) if known else None,
        newcomers=_spread([np.array(table, dtype=np.float64) for table in tables]),
        counts=tuple(len(table) for table in tables),
    )


def _spread(clients: Sequence[NDArray[np.float64]]) -> Spread:
    """clients: for each seed its clients' scores; a seed in which none has one is left out."""
    scored = [each for each in clients if not np.isnan(each).all()]
    if not scored:
        return Spread(float("nan"), float("nan"), None)
    means = np.array([np.nanmean(each) for each in scored])
    return Spread(
        mean=float(means.mean()),
        std_clients=float(np.mean([np.nanstd(each) for each in scored])),
        std_seeds=float(means.std(ddof=1)) if len(means) > 1 else None,
    )


def _rank(served: Served, sign: int) -> float:
    mean = served.newcomers.mean
    return np.inf if np.isnan(mean) else sign * mean
