"""What was reproduced of the papers' tables: result files, cells of ours beside theirs, and a table to look at.

A result is one run, a JSON file of at most 100 kB: `results/TABLE/COLUMN-RUN-seed0.json`. Scores are fractions or
errors as the run has them; cells are in their column's unit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.settings import ConfigError
from ..papers import published
from ..papers.published import SCALE, SCORED, Job, Row, Table
from ..runs.folder import RunFolder, replace_file

LARGEST = 100_000
"""Bytes of a result."""
Result = Mapping[str, Any]


# ---- a run as a result ----


def result(job: Job, run: RunFolder, origin: Mapping[str, Any]) -> dict[str, Any]:
    """A finished run in few bytes: each model's curve (its last value is the closing exchange's), clients' scores at
    its best, its last and its chosen round, and xi at the headline's best round, in thousandths."""
    summary = run.summary
    lines = [line for line in run.rounds if not line.novel]
    places = {line.round: place for place, line in enumerate(lines)}
    models = {}
    for name, about in summary.models.items():
        scores = np.array([line.models[name].clients for line in lines], dtype=np.float64)
        models[name] = {
            "curve": _short(scores.mean(1), 5),
            "best_round": about.bmta_round,
            "best": _short(scores[places[about.bmta_round]], 5),
            "last": _short(scores[-1], 5),
        }
        if about.validated_round is not None:
            held = [line.models[name].validation for line in lines]
            models[name] |= {
                "validation": _short([np.nan if each is None else each.mean for each in held], 5),
                "validated_round": about.validated_round,
                "validated": _short(scores[places[about.validated_round]], 5),
            }
    novel = summary.novel
    made: dict[str, Any] = {
        "table": job.table,
        "column": job.column,
        "run": job.run,
        "seed": job.seed,
        "factor": job.factor,
        **origin,
        "seconds": round(summary.seconds or 0.0, 1),
        "rounds": summary.rounds,
        "first_round": lines[0].round,
        "metric": summary.metric,
        "higher_is_better": summary.higher_is_better,
        "clients": len(summary.clients),
        "groups": None if summary.groups is None else list(summary.groups),
        "samples": None if summary.samples is None else list(summary.samples),
        "corrupted": [summary.clients.index(name) for name in summary.corrupted],
        "diverged": list(summary.diverged),
        "headline": summary.headline,
        "models": models,
        "novel": None if novel is None else {n: _short(each.clients, 5) for n, each in novel.models.items()},
    }
    taken = summary.models[summary.headline].bmta_round
    recorded = [each for each in run.recorded if each <= taken] or run.recorded[:1]
    xi = run.collaboration(recorded[-1]) if recorded else None
    if xi is not None:
        whole = {**made, "xi": {"round": recorded[-1], "thousandths": np.rint(xi * 1000).astype(int).tolist()}}
        made = whole if len(text(whole)) <= LARGEST else {**made, "xi": "left out: too many clients"}
    return made


def _short(values: Any, digits: int) -> list[float | None]:
    return [round(float(v), digits) if np.isfinite(v) else None for v in np.asarray(values, dtype=np.float64)]


def text(made: Result) -> str:
    """A line for each entry: a change of one number is a change of one line."""
    lines = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in made.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(root: Path, job: Job, made: Result) -> Path:
    content = text(made).encode()
    if len(content) > LARGEST:
        raise ConfigError(f"The result {job.name} has {len(content)} bytes; {LARGEST} are the most.")
    path = place(root, job)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
    return path


def place(root: Path, job: Job) -> Path:
    return root / job.table / f"{job.name}.json"


# ---- cells ----


@dataclass(frozen=True)
class Cell:
    """A row in a column: ours (the mean over seeds, in the column's unit), theirs, and the runs it comes from."""

    ours: float
    published: float | None
    clients: NDArray[np.float64]
    """(m,) each client's score, the mean over seeds, in the column's unit"""
    results: tuple[Result, ...]

    @property
    def difference(self) -> float | None:
        return None if self.published is None else self.ours - self.published

    @property
    def precision(self) -> str:
        return str(self.results[0]["precision"])


class Reproduced:
    """The results in a folder, by table, row and column. What is damaged is told, and left out; without `tell` it is an
    error."""

    def __init__(self, root: Path | str, tell: Callable[[str], None] | None = None) -> None:
        self.root, self.tell = Path(root), tell

    def has(self, job: Job) -> bool:
        return place(self.root, job).exists()

    @cached_property
    def results(self) -> dict[Job, Result]:
        return dict(self._read())

    def _read(self) -> Iterator[tuple[Job, Result]]:
        for name in published.names():
            for path in sorted((self.root / name).glob("*.json")):
                try:
                    yield _opened(name, path)
                except ConfigError as error:
                    if self.tell is None:
                        raise
                    self.tell(str(error))

    def of(self, name: str, column: str, run: str, precision: str | None = None) -> list[Result]:
        """The results behind a cell, a seed each; of several rates those that validation data chose."""
        mine = {
            job: found
            for job, found in self.results.items()
            if (job.table, job.column, job.run, job.precision) == (name, column, run, precision)
        }
        factors = published.table(name).runs[run].factors
        if not factors:
            return list(mine.values())
        chosen = []
        for seed in sorted({job.seed for job in mine}):
            tried = [found for job, found in mine.items() if job.seed == seed]
            if len(tried) == len(factors):
                chosen.append(max(tried, key=_validated))
        return chosen

    def cell(self, name: str, row: str, column: str, precision: str | None = None) -> Cell | None:
        """None where nothing was run yet."""
        whole = published.table(name)
        about = whole.rows[row]
        results = [
            found for found in self.of(name, column, about.run, precision) if scores(whole, about, found) is not None
        ]
        if not results:
            return None
        each = [scores(whole, about, found) for found in results]
        scale = SCALE[whole.unit_of(column)]
        means = [float(np.nanmean(one)) * scale for one in each if one is not None]
        alike = len({len(one) for one in each if one is not None}) == 1
        clients = np.mean(np.array(each), axis=0) * scale if alike else np.array([])
        return Cell(float(np.mean(means)), about.published.get(column), clients, tuple(results))

    def lookup(self, name: str, row: str, column: str) -> float | None:
        """Ours, for a claim."""
        found = self.cell(name, row, column)
        return None if found is None else found.ours

    def done(self, name: str) -> tuple[int, int]:
        """How many of a table's cells have a number, and how many could."""
        whole = published.table(name)
        cells = [(row, col) for row in whole.rows for col, each in whole.columns.items() if not each.unavailable]
        return sum(self.cell(name, *cell) is not None for cell in cells), len(cells)

    def runs_done(self, name: str) -> tuple[int, int]:
        """How many of a table's runs are there, and how many the queue wants, all seeds counted."""
        wanted = published.jobs(name)
        return sum(job in self.results for job in wanted), len(wanted)


def scores(whole: Table, row: Row, found: Result) -> NDArray[np.float64] | None:
    """(m,) what a cell is the mean of; None where the run has no such model."""
    if whole.score == "novel":
        novel = (found.get("novel") or {}).get(row.model)
        return None if novel is None else np.array(novel, dtype=np.float64)
    model = found["models"].get(row.model)
    if model is None:
        return None
    values = model.get(whole.score)
    return None if values is None else np.array(values, dtype=np.float64)


def _validated(found: Result) -> float:
    """The headline's best mean on validation data, higher being better."""
    held = np.array(found["models"][found["headline"]].get("validation") or [np.nan], dtype=np.float64)
    sign = 1 if found["higher_is_better"] else -1
    return float(np.nanmax(sign * held)) if np.isfinite(held).any() else -np.inf


def mean_score(job: Job, found: Result) -> str:
    """A run's headline, or else its first row, in words and by the score of its table."""
    whole = published.table(job.table)
    rows = [row for row in whole.rows.values() if row.run == job.run]
    row = next((row for row in rows if row.model == found["headline"]), rows[0])
    values, unit = scores(whole, row, found), whole.unit_of(job.column)
    if values is None:
        return f"{row.label} without a score"
    return f"{row.label} {number(float(np.nanmean(values)) * SCALE[unit])} {unit} {SCORED[whole.score]}"


def _opened(name: str, path: Path) -> tuple[Job, Result]:
    """A result file and the run it is of, as far as tables look into it; ConfigError where it is damaged."""
    advice = "Delete it, and its cell is run again."
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"The result {path} cannot be read ({error}). {advice}") from None
    precision = "float32" if path.stem.endswith("-float32") else None
    try:
        job = Job(name, found["column"], found["run"], found["seed"], found["factor"], precision)
        says = job.name
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{path} is no result: column, run, seed or factor is missing. {advice}") from None
    if says != path.stem:
        raise ConfigError(f"{path} says that it is {says}: a file was renamed or changed. {advice}")
    if not _scored(found):
        raise ConfigError(f"{path} is no result: its models have no scores. {advice}")
    return job, found


def _scored(found: Mapping[str, Any]) -> bool:
    models, novel = found.get("models"), found.get("novel") or {}
    if not (isinstance(models, dict) and isinstance(novel, dict) and str(found.get("headline")) in models):
        return False
    lists = [each.get(key) if isinstance(each, dict) else None for each in models.values() for key in KEPT]
    return all(
        isinstance(values, list) and all(v is None or isinstance(v, int | float) for v in values)
        for values in (*lists, *novel.values())
    )


KEPT = ("curve", "best", "last")
"""What every model of a result has."""


# ---- to look at ----


def bold(cell: Cell) -> str:
    return f"**{number(cell.ours)}**"


def markdown(
    found: Reproduced, name: str, columns: Sequence[str] | None = None, ours: Callable[[Cell], str] = bold
) -> str:
    """The table as `ours (paper, difference)`; what was not reached is a dash. Without columns: all that can be had."""
    whole = published.table(name)
    there = [column for column, about in whole.columns.items() if not about.unavailable]
    shown = there if columns is None else columns
    lines = ["| |" + "".join(f" {whole.columns[c].label} |" for c in shown), "|---|" + "---:|" * len(shown)]
    for row, about in whole.rows.items():
        cells = [_told(found.cell(name, row, column), about.published.get(column), ours) for column in shown]
        lines.append(f"| {about.label} |" + "".join(f" {cell} |" for cell in cells))
    return "\n".join(lines)


def _told(cell: Cell | None, published: float | None, ours: Callable[[Cell], str]) -> str:
    theirs = "" if published is None else f"{published:g}"
    if cell is None:
        return f"– ({theirs})" if theirs else "–"
    return ours(cell) if published is None else f"{ours(cell)} ({theirs}, {signed(cell.ours - published)})"


def number(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def signed(difference: float) -> str:
    """+1.2, -0.3, or 0.0 without a sign."""
    told = f"{difference:+.1f}"
    return told[1:] if float(told) == 0 else told
