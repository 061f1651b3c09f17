"""`vary`: methods over levels of a setting (dirty labels, dropped clients, attackers), one setting at a time.

Every level is an ordinary comparison in a folder of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from ..base.settings import ConfigError
from ..data.federation import Federation
from ..engines import start
from ..engines.simulation import Listener
from ..evidence import levels as evidence
from ..runs import options
from ..runs.config import Config, merge
from .compare import Results
from .plan import Planned, carried_out, planned
from .run import Run

FIXED = {"method", "seed", "learning.metric"}
"""What does not change from level to level; methods and seeds are varied at every level."""


@dataclass(frozen=True)
class Level(evidence.Level):
    """A comparison with one setting at one value, in a folder of its own."""

    runs: list[Run]
    path: Path

    @property
    def results(self) -> Results:
        return Results(self.runs, self.path)


@dataclass(frozen=True)
class Levels(evidence.Levels):
    """Comparisons at several levels of one or more settings."""

    levels: list[Level]
    path: Path

    def frame(self) -> Any:
        """The rows as a pandas frame."""
        import pandas as pd

        return pd.DataFrame([row.flat() for row in self.rows()])

    def report(self, path: Path | str | None = None) -> Path:
        """Writes the HTML report: pictures over the levels, and tables."""
        from ..report.levels import write_page

        return write_page(self, Path(path) if path is not None else self.path / "report.html")

    def figures(self, folder: Path | str | None = None, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
        """Writes the pictures for print."""
        from ..report.levels import write_figures

        return write_figures(self, Path(folder) if folder is not None else self.path / "figures", formats)


def vary(
    config: start.Settings | Config | Path | str | None = None,
    *,
    levels: Mapping[str, Sequence[Any]],
    methods: Sequence[str],
    seeds: int | Sequence[int] = 1,
    federation: Federation | None = None,
    model: start.Network | None = None,
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
    folder, raw = Path(out), merge(start.table(config), settings)
    objects = {"federation": federation, "model": model, "loss": loss, "metric": metric}
    chosen = options.by_full_name(levels, methods)
    if not chosen:
        raise ConfigError("There is no setting to vary: name one and its levels, such as corruption.labels=0,0.2,0.4.")
    for name in FIXED & set(chosen):
        raise ConfigError(f"{name} cannot be varied: at every level methods and seeds are compared by one metric.")
    plans: list[tuple[str, Any, list[Planned]]] = []
    for name, values in chosen.items():
        for value in values:
            place = folder / options.label({name: value}, full=True)
            plan = planned(options.laid_over(raw, {name: value}), methods, seeds, place, objects)
            same = (earlier for *_, earlier in plans if [p.config for p in earlier] == [p.config for p in plan])
            plans.append((name, value, next(same, plan)))
    found = []
    for name, value, plan in plans:
        told = None if listener is None else partial(listener, plan[0].path.parent.name)
        runs = carried_out(plan, objects, told)
        found.append(Level(name, value, runs, plan[0].path.parent))
    return Levels(found, folder)
