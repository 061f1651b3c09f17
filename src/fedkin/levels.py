"""`vary`: methods over levels of a setting (dirty labels, dropped clients, attackers), one setting at a time.

Every level is an ordinary comparison in a folder of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
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
class LevelRow:
    """What a `method:model` came to at a level: the best mean over rounds, as in a comparison's table.

    `low` and `high` are the lowest and the highest seed. `clean` and `hit` are means over the clients whose labels were
    left alone and over those whose labels were made wrong, at the same round; None where nobody was hit.
    """

    setting: str
    value: Any
    method: str
    model: str
    headline: bool
    mean: float
    low: float
    high: float
    clean: float | None
    hit: float | None
    last: float
    validated: float | None
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.method}:{self.model}"


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
        return [row for level in self.levels for row in _rows(level)]

    def frame(self) -> Any:
        """The rows as a pandas frame."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows()])

    def report(self, path: Path | str | None = None) -> Path:
        """Writes the HTML report: one picture, a panel for each setting, and the table."""
        from .report.levels import write_page

        return write_page(self, Path(path) if path is not None else self.path / "report.html")

    def figures(self, folder: Path | str | None = None, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
        """Writes the picture for print."""
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
        higher = comparison.higher_is_better(runs)
        means = [statistics.best_mean(comparison.scores(run, row.model), higher)[1] for run in runs]
        clean, hit = _apart(runs, row.model)
        rows.append(
            LevelRow(
                level.setting,
                level.value,
                method=row.method,
                model=row.model,
                headline=row.headline,
                mean=row.bmta,
                low=min(means),
                high=max(means),
                clean=clean,
                hit=hit,
                last=row.last,
                validated=row.validated,
                seeds=row.seeds,
            )
        )
    return rows


def _apart(runs: Sequence[comparison.Run], model: str) -> tuple[float | None, float | None]:
    """The mean over clients whose labels were left alone, and over those whose labels were made wrong."""
    means: list[tuple[float, float]] = []
    for run in runs:
        hit, scores = set(run.summary.get("corrupted") or ()), comparison.at_best(run, model)
        sides = [[score for name, score in scores.items() if (name in hit) is side] for side in (False, True)]
        if not all(sides):
            return None, None
        means.append((float(np.nanmean(sides[0])), float(np.nanmean(sides[1]))))
    clean, hit_ones = np.mean(means, axis=0).tolist()
    return clean, hit_ones
