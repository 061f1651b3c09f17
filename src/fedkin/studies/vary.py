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
from ..engines.simulation import Listener
from ..engines.start import Network, Settings, table
from ..evidence import levels as evidence
from ..runs import options
from ..runs.config import Config, merge
from .carry_out import carry_out
from .compare import Results
from .kept import keep
from .plan import Cell, Listeners, compared, seeds_together
from .run import Run
from .supply import Supply

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
    config: Settings | Config | Path | str | None = None,
    *,
    levels: Mapping[str, Sequence[Any]],
    methods: Sequence[str],
    seeds: int | Sequence[int] = 1,
    federation: Federation | None = None,
    model: Network | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
    out: Path | str = "runs/levels",
    jobs: int = 1,
    listener: Callable[[str, str, int], Listener] | None = None,
    **settings: Any,
) -> Levels:
    """Compares methods at each level of each setting, the other settings as they are.

    `levels`: `{"corruption.labels": [0, 0.2, 0.4], "participation.dropped": [0, 0.3]}`. What is already complete in
    `out` is kept, as in `compare`. Levels that come to the same settings are run once. `listener` is given the level,
    the method and the seed; `jobs` is as for `compare`.
    """
    folder, raw = Path(out), merge(table(config), settings)
    objects: dict[str, Any] = {"federation": federation, "model": model, "loss": loss, "metric": metric}
    chosen = options.by_full_name(levels, methods)
    if not chosen:
        raise ConfigError("There is no setting to vary: name one and its levels, such as corruption.labels=0,0.2,0.4.")
    refuse_fixed(chosen)
    planned: list[tuple[str, Any, list[Cell]]] = []
    for name, values in chosen.items():
        for value in values:
            place = folder / options.label({name: value}, full=True)
            cells = compared(options.laid_over(raw, {name: value}), methods, seeds, place, objects)
            same = (earlier for *_, earlier in planned if [c.config for c in earlier] == [c.config for c in cells])
            planned.append((name, value, next(same, cells)))
    study = {"methods": list(methods), "seeds": seeds, "vary": chosen}
    run_levels([cells for *_, cells in planned], objects, listener, jobs, lambda: keep(folder, raw, study, objects))
    return Levels([Level(name, value, *_runs(cells)) for name, value, cells in planned], folder)


def refuse_fixed(chosen: Mapping[str, Any]) -> None:
    for name in FIXED & set(chosen):
        raise ConfigError(f"{name} cannot be varied: at every level methods and seeds are compared by one metric.")


def run_levels(
    levels: Sequence[list[Cell]],
    objects: Mapping[str, Any],
    listener: Callable[[str, str, int], Listener] | None,
    jobs: int,
    tried: Callable[[], None],
) -> None:
    """Runs several comparisons as one plan; one that stands there twice is run once. `tried` is called when all runs
    have been tried, and none is begun."""
    supply = Supply(objects)
    everyone = [cell for level in levels for cell in level]
    stacks = seeds_together(list({cell.path: cell for cell in everyone}.values()), supply)
    tried()
    told: Listeners | None = None
    if listener is not None:
        told = partial(_of_a_cell, listener)
    carry_out(stacks, supply, objects, told, jobs=jobs)
    for i, cell in enumerate(everyone):
        if told is not None and cell in everyone[:i]:  # it is counted all the same
            told(cell)


def _of_a_cell(listener: Callable[[str, str, int], Listener], cell: Cell) -> Listener:
    return listener(cell.path.parent.name, cell.config.method, cell.config.seed)


def _runs(cells: Sequence[Cell]) -> tuple[list[Run], Path]:
    return [Run(cell.path) for cell in cells], cells[0].path.parent
