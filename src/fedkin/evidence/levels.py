"""Methods over levels of a setting: what each came to, of all clients, of those left alone and of those hit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..maths import statistics
from . import comparison
from .findings import Findings


@dataclass(frozen=True)
class Span:
    """A mean over seeds, and the lowest and the highest seed."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Sides:
    """Means over clients at one round: all of them, those left alone and those hit; None where there is nobody."""

    all: Span
    clean: Span | None
    hit: Span | None


@dataclass(frozen=True)
class LevelRow:
    """What a `method:model` came to at a level.

    `chosen` is at the round that validation data choose, as in a comparison's table; `best` at the round of the best
    mean over all clients on test data; `last` at the closing one.
    """

    setting: str
    value: Any
    method: str
    model: str
    headline: bool
    chosen: Sides
    best: Sides
    last: Sides
    validated: float | None
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.method}:{self.model}"

    def flat(self) -> dict[str, Any]:
        """One level of keys, for tables: `best_all`, `best_all_low`, …, `last_hit_high`; None where there is nobody."""
        found: dict[str, Any] = {}
        for name, value in vars(self).items():
            if not isinstance(value, Sides):
                found[name] = value
                continue
            for side, span in vars(value).items():
                for part in ("mean", "low", "high"):
                    key = f"{name}_{side}" if part == "mean" else f"{name}_{side}_{part}"
                    found[key] = None if span is None else getattr(span, part)
        return found


@dataclass(frozen=True)
class Level:
    """Runs with one setting at one value."""

    setting: str
    value: Any
    runs: Sequence[comparison.Run]

    @cached_property
    def findings(self) -> Findings:
        return Findings(self.runs)


@dataclass(frozen=True)
class Levels:
    """Runs at several levels of one or more settings."""

    levels: Sequence[Level]

    @property
    def settings(self) -> list[str]:
        return list(dict.fromkeys(level.setting for level in self.levels))

    def rows(self) -> list[LevelRow]:
        """A row for each setting, value and `method:model`; headline models first within a level."""
        return list(self._rows)

    @cached_property
    def _rows(self) -> list[LevelRow]:
        return [row for level in self.levels for row in _rows(level)]

    def sides(self, setting: str) -> dict[str, str]:
        """What to call `all` clients, the `clean` and the `hit` ones; the first alone where nobody is ever hit."""
        runs = [run for level in self.levels if level.setting == setting for run in level.runs]
        clean, hit = comparison.sides(runs) or ("", "")
        apart = {"clean": f"{clean} clients", "hit": f"{hit} clients"} if hit else {}
        return {"all": "all clients"} | apart


def _rows(level: Level) -> list[LevelRow]:
    rows = []
    for row in level.findings.rows:
        seeds = level.findings.seeds(row)
        runs = [seed.run for seed in seeds]
        rows.append(
            LevelRow(
                level.setting,
                level.value,
                method=row.method,
                model=row.model,
                headline=row.headline,
                chosen=_sides(runs, [seed.table[seed.chosen] for seed in seeds]),
                best=_sides(runs, [seed.table[seed.best] for seed in seeds]),
                last=_sides(runs, [seed.table[-1] for seed in seeds]),
                validated=row.validated,
                seeds=row.seeds,
            )
        )
    return rows


def _sides(runs: Sequence[comparison.Run], scores: Sequence[NDArray[np.float64]]) -> Sides:
    """scores: for each run (clients,), at the round in question."""
    hit = [np.isin(run.summary.clients, run.summary.corrupted) for run in runs]
    left = [each[~own] for each, own in zip(scores, hit, strict=True)]
    struck = [each[own] for each, own in zip(scores, hit, strict=True)]
    clean, hurt = (_span(side) if all(map(len, side)) else None for side in (left, struck))
    return Sides(_span(scores), clean, hurt)


def _span(scores: Sequence[NDArray[np.float64]]) -> Span:
    means = [float(statistics.client_means([each])[0]) for each in scores]
    return Span(float(np.mean(means)), min(means), max(means))
