"""`vary`: methods over levels of a setting (dirty labels, dropped clients, attackers), one setting at a time.

Every level is an ordinary comparison in a folder of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from . import api, comparison, options, statistics
from .config import Config, ConfigError, merge
from .engines.simulation import Listener
from .federation import Federation

FIXED = {"method", "seed", "learning.metric"}
"""What does not change from level to level; methods and seeds are varied at every level."""


@dataclass(frozen=True)
class Level:
    """A comparison with one setting at one value."""

    setting: str
    value: Any
    results: api.Results


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

    `best` is at the round of the best mean over all clients, as in a comparison's table; `last` at the closing one.
    """

    setting: str
    value: Any
    method: str
    model: str
    headline: bool
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
class Levels:
    """Comparisons at several levels of one or more settings."""

    levels: list[Level]
    path: Path

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
        runs = [run for level in self.levels if level.setting == setting for run in level.results.runs]
        clean, hit = comparison.sides(runs) or ("", "")
        apart = {"clean": f"{clean} clients", "hit": f"{hit} clients"} if hit else {}
        return {"all": "all clients"} | apart

    def frame(self) -> Any:
        """The rows as a pandas frame."""
        import pandas as pd

        return pd.DataFrame([row.flat() for row in self.rows()])

    def report(self, path: Path | str | None = None) -> Path:
        """Writes the HTML report: pictures over the levels, and tables."""
        from .report.levels import write_page

        return write_page(self, Path(path) if path is not None else self.path / "report.html")

    def figures(self, folder: Path | str | None = None, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
        """Writes the pictures for print."""
        from .report.levels import write_figures

        return write_figures(self, Path(folder) if folder is not None else self.path / "figures", formats)


def vary(
    config: api.Settings | Config | Path | str | None = None,
    *,
    levels: Mapping[str, Sequence[Any]],
    methods: Sequence[str],
    seeds: int | Sequence[int] = 1,
    federation: Federation | None = None,
    model: api.Network | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
    out: Path | str = "runs/levels",
    listener: Callable[[str, str, int], Listener] | None = None,
    **settings: Any,
) -> Levels:
    """Compares methods at each level of each setting, the other settings as they are.

    `levels`: `{"corruption.labels": [0, 0.2, 0.4], "participation.dropped": [0, 0.3]}`. What is already complete in
    `out` is kept, as in `compare`. Levels that come to the same settings are run once. `listener` is given the level,
    the method and the seed.
    """
    folder, raw = Path(out), merge(api.table(config), settings)
    objects = {"federation": federation, "model": model, "loss": loss, "metric": metric}
    chosen = options.by_full_name(levels, methods)
    if not chosen:
        raise ConfigError("There is no setting to vary: name one and its levels, such as corruption.labels=0,0.2,0.4.")
    for name in FIXED & set(chosen):
        raise ConfigError(f"{name} cannot be varied: at every level methods and seeds are compared by one metric.")
    plans: list[tuple[str, Any, list[api.Planned]]] = []
    for name, values in chosen.items():
        for value in values:
            place = folder / options.label({name: value}, full=True)
            plan = api.planned(options.laid_over(raw, {name: value}), methods, seeds, place, objects)
            same = (earlier for *_, earlier in plans if [p.config for p in earlier] == [p.config for p in plan])
            plans.append((name, value, next(same, plan)))
    found = []
    for name, value, plan in plans:
        told = None if listener is None else partial(listener, plan[0].path.parent.name)
        runs = api.carried_out(plan, objects, told)
        found.append(Level(name, value, api.Results(runs, plan[0].path.parent)))
    return Levels(found, folder)


def _rows(level: Level) -> list[LevelRow]:
    members = comparison.by_method(level.results.runs)
    rows = []
    for row in level.results.rows():
        runs = members[row.method]
        tables = [comparison.scores(run, row.model) for run in runs]
        best = [statistics.best_mean(table, comparison.higher_is_better(runs))[0] for table in tables]
        rows.append(
            LevelRow(
                level.setting,
                level.value,
                method=row.method,
                model=row.model,
                headline=row.headline,
                best=_sides(runs, [table[index] for table, index in zip(tables, best, strict=True)]),
                last=_sides(runs, [table[-1] for table in tables]),
                validated=row.validated,
                seeds=row.seeds,
            )
        )
    return rows


def _sides(runs: Sequence[comparison.Run], scores: Sequence[NDArray[np.float64]]) -> Sides:
    """scores: for each run (clients,), at the round in question."""
    hit = [np.isin(run.summary["clients"], run.summary.get("corrupted") or []) for run in runs]
    left = [each[~own] for each, own in zip(scores, hit, strict=True)]
    struck = [each[own] for each, own in zip(scores, hit, strict=True)]
    clean, hurt = (_span(side) if all(map(len, side)) else None for side in (left, struck))
    return Sides(_span(scores), clean, hurt)


def _span(scores: Sequence[NDArray[np.float64]]) -> Span:
    means = [float(statistics.client_means([each])[0]) for each in scores]
    return Span(float(np.mean(means)), min(means), max(means))
