"""Comparisons under several conditions: each in a folder of its own, all of them in one table and on one page."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from ..base.settings import ConfigError
from ..engines.simulation import Listener
from ..evidence.findings import Findings
from . import rates
from .carry_out import carry_out, refuse_jobs
from .compare import Results
from .plan import Cell, Listeners, for_each
from .rates import Rated, Tuned
from .run import Run
from .supply import Supply

FIXED = {"method", "seed", "learning.metric"}
"""What is the same under all conditions; methods and seeds are varied under each."""


class Flat(Protocol):
    def flat(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Condition:
    """A comparison under one condition."""

    runs: list[Run]
    path: Path
    tuned: Tuned = field(default_factory=dict)

    @cached_property
    def results(self) -> Results:
        return Results(self.runs, self.path, self.tuned)

    @property
    def findings(self) -> Findings:
        return self.results.findings


class Several:
    """Comparisons under several conditions, and the folder that holds them."""

    path: Path

    @abstractmethod
    def rows(self) -> Sequence[Flat]:
        """A row for each condition and `method:model`."""

    @abstractmethod
    def write_page(self, path: Path) -> Path:
        """Writes the page to this place."""

    def frame(self) -> Any:
        """The rows as a pandas frame."""
        import pandas as pd

        return pd.DataFrame([row.flat() for row in self.rows()])

    def report(self, path: Path | str | None = None) -> Path:
        """Writes the HTML report, pictures and tables, by default beside the runs."""
        return self.write_page(Path(path) if path is not None else self.path / "report.html")


def refuse_fixed(chosen: Mapping[str, Any]) -> None:
    for name in FIXED & set(chosen):
        raise ConfigError(f"{name} cannot be varied: the same methods and seeds are compared by one metric throughout.")


def run_all(
    conditions: Sequence[list[Cell]],
    objects: Mapping[str, Any],
    listener: Listener | Callable[[str, str, int], Listener] | None,
    jobs: int,
    tried: Callable[[], None],
) -> None:
    """Runs several comparisons as one plan; one that stands there twice is run once. `tried` is called when all runs
    have been tried, and none is begun. `listener` is given the condition, the method and the seed."""
    refuse_jobs(jobs)
    supply = Supply(objects)
    everyone = [cell for cells in conditions for cell in cells]
    stacks = rates.stacks(list({cell.path: cell for cell in everyone}.values()), supply)
    tried()
    heard = for_each(listener)
    told: Listeners | None = None
    if heard is not None:
        told = partial(_of_a_cell, heard)
    carry_out(stacks, supply, objects, told, jobs=jobs, spare_diverged=any(isinstance(c, Rated) for c in everyone))
    for i, cell in enumerate(everyone):
        if told is not None and cell in everyone[:i]:  # it is counted all the same
            told(cell)


def _of_a_cell(listener: Callable[[str, str, int], Listener], cell: Cell) -> Listener:
    return listener(cell.comparison.name, cell.of_seeds, cell.config.seed)


def run_of(cells: Sequence[Cell]) -> tuple[list[Run], Path, Tuned]:
    """The runs of a comparison, its folder, and the rates that were tried."""
    runs, tuned = rates.chosen(cells)
    return runs, cells[0].comparison, tuned
