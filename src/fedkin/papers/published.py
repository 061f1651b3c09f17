"""The papers' tables: what was published, and the runs that stand behind each cell, from the files in `tables`.

A table has columns (a data set, or a level of one), runs (a method and its settings) and rows (one model of a run). A
cell is a row in a column; several rows may look at one run, as FedAvg and FedAvg-FT do. `queue.toml` says in which
order cells are run. It is data: nothing of fedkin's methods is needed to read it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..base.settings import ConfigError, validated
from ..base.wording import did_you_mean

Settings = dict[str, Any]
Unit = Literal["%", "1e-3", "1"]
SCALE: Mapping[str, float] = {"%": 100.0, "1e-3": 1000.0, "1": 1.0}
"""By what a score is multiplied to be shown in its unit."""
SCORED: Mapping[str, str] = {
    "best": "at its best round on test data",
    "validated": "at the round that validation data chose",
    "last": "in the last round",
    "novel": "of newcomers, after the last round",
}
"""When a table's scores are taken, in words."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Column(_Strict):
    """What the numbers of a column are of; `unavailable` says why there are none of ours."""

    label: str
    unit: Unit | None = None
    settings: Settings = {}
    unavailable: str | None = None


class Behind(_Strict):
    """A run behind cells: a method. With `factors`, its rate times each, of which validation data choose one."""

    method: str
    settings: Settings = {}
    by_column: Annotated[dict[str, Settings], Field(description="more settings, for one column")] = {}
    factors: tuple[float, ...] = ()


class Row(_Strict):
    """One model of a run, and what was published for it by column."""

    label: str
    run: str
    model: str
    published: dict[str, float] = {}


class Small(_Strict):
    """An experiment like it that a laptop can do, and in which words it differs."""

    columns: tuple[str, ...]
    settings: Settings
    by_column: dict[str, Settings] = {}
    said: str


class Table(_Strict):
    """A table, or the numbers behind a figure. `open`: what the paper does not say, and what we chose. `account`: why
    ours differ from theirs, as far as it is known."""

    title: str
    source: str
    open: tuple[str, ...] = ()
    account: tuple[str, ...] = ()
    unit: Unit = "%"
    score: Annotated[
        Literal["best", "validated", "last", "novel"],
        Field(description="at the best round on test data; at that which validation chose; the last; of newcomers"),
    ] = "best"
    figure: bool = False
    precision: Annotated[Literal["float32", "bf16"], Field(description="on a GPU")] = "float32"
    settings: Settings = {}
    columns: dict[str, Column]
    runs: dict[str, Behind]
    rows: dict[str, Row]
    small: Small | None = None

    def unit_of(self, column: str) -> Unit:
        return self.columns[column].unit or self.unit


class Step(_Strict):
    """Cells of the queue: of a table, of all where none is named."""

    said: str
    table: str | None = None
    columns: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    seeds: Annotated[int, Field(ge=1)] = 1
    precision: Literal["float32"] | None = None


class Queue(_Strict):
    step: tuple[Step, ...]


@dataclass(frozen=True, order=True)
class Job:
    """One run: of a table, in a column, with a seed; `factor` on its rate. `precision`: not the machine's usual one."""

    table: str
    column: str
    run: str
    seed: int = 0
    factor: float | None = None
    precision: str | None = None

    @property
    def name(self) -> str:
        """The name of its file."""
        rate = "" if self.factor is None else f"-rate{self.factor:g}"
        return f"{self.column}-{self.run}{rate}-seed{self.seed}" + (f"-{self.precision}" if self.precision else "")


def names() -> list[str]:
    """The names of all tables, in the order of the alphabet."""
    files = (each.name for each in (resources.files(__package__) / "tables").iterdir())
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml") and name != "queue.toml")


@cache
def table(name: str) -> Table:
    """A table by its name, held against what a table is."""
    if name not in names():
        raise ConfigError(
            f"There is no table {name!r}. {did_you_mean(name, names(), 0.5).rstrip()} Known are {', '.join(names())}."
        )
    found = validated(Table, _read(name), "")
    for row, each in found.rows.items():
        if each.run not in found.runs:
            raise ConfigError(f"{name}: the row {row!r} looks at a run {each.run!r}, which there is not.")
        for column in each.published:
            if column not in found.columns:
                raise ConfigError(f"{name}: the row {row!r} has a value in a column {column!r}, which there is not.")
    return found


@cache
def queue() -> tuple[Step, ...]:
    steps = validated(Queue, _read("queue"), "").step
    for step in steps:
        whole = None if step.table is None else table(step.table)
        if whole is not None:
            _known(step.columns, whole.columns, f"The step {step.said!r}, a column of {step.table}")
            _known(step.runs, whole.runs, f"The step {step.said!r}, a run of {step.table}")
    return steps


def jobs(of: str | None = None, seeds: int | None = None, only: str = "", small: bool = False) -> list[Job]:
    """Every run in the queue's order, each once; of one table if it is named. `seeds`: so many of each, whatever the
    queue says. `only`: columns, runs, or both as column/run, with commas between."""
    wanted = [each.strip() for each in only.split(",") if each.strip()]
    known = {part for name in ([of] if of else names()) for part in (*table(name).columns, *table(name).runs)}
    _known([part for each in wanted for part in each.split("/")], known, "--only")
    found: dict[Job, None] = {}
    for step in queue():
        for name in [step.table] if step.table else names():
            if of in (None, name):
                found.update(dict.fromkeys(_of_step(step, name, seeds or step.seeds, small)))
    return [job for job in found if not wanted or {job.column, job.run, f"{job.column}/{job.run}"} & set(wanted)]


def left_out(of: str | None = None, only: str = "", small: bool = False) -> list[str]:
    """Why columns that were asked for have no runs, a sentence each."""
    asked = {part for each in only.split(",") for part in each.strip().split("/")}
    found: dict[str, None] = {}
    for name in [of] if of else names():
        whole = table(name)
        if small and whole.small is None:
            found |= {f"{name} has no small scale.": None} if of else {}
            continue
        there = whole.small.columns if small and whole.small else tuple(whole.columns)
        for column in (column for column in whole.columns if column in asked):
            if why := whole.columns[column].unavailable:
                found[f"{column} cannot be had here: {why}"] = None
            elif column not in there:
                found[f"The small scale of {name} has {', '.join(there)}, and no {column}."] = None
    return list(found)


def _of_step(step: Step, name: str, seeds: int, small: bool) -> Iterator[Job]:
    whole = table(name)
    columns = [column for column in step.columns or whole.columns if not whole.columns[column].unavailable]
    if small:
        columns = [column for column in columns if whole.small and column in whole.small.columns]
    for seed in range(seeds):
        for column in columns:
            for run in step.runs or whole.runs:
                for factor in whole.runs[run].factors or (None,):
                    if not (small and step.precision):
                        yield Job(name, column, run, seed, factor, step.precision)


def _known(given: Any, known: Any, what: str) -> None:
    for each in given:
        if each not in known:
            raise ConfigError(f"{what}: there is no {each!r}. Known are {', '.join(sorted(known))}.")


def _read(name: str) -> dict[str, Any]:
    file = resources.files(__package__) / "tables" / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))
