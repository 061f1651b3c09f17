"""`tune`: a grid over settings of method, training and model. Validation data choose; test data have no say.

Points of the grid that differ only where a stack may differ are trained as further rows of one stack (see
`engines.lockstep`); each is an ordinary run folder all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..base import machine
from ..base.settings import ConfigError
from ..engines import lockstep, start
from ..engines.assembly import Assembly
from ..engines.simulation import Listener
from ..engines.start import Settings
from ..evidence import grid
from ..evidence.comparison import flat_settings
from ..evidence.grid import Trial
from ..runs import options
from ..runs.config import Config
from ..runs.folder import replace_file
from .carry_out import carry_out, refuse_jobs
from .plan import Cell, Listeners, Point, Stack, for_each, tried
from .run import Run
from .study_file import keep
from .supply import Supply

TUNED = ("settings.", "local.", "model.")
"""What a grid may be over: whatever leaves the validation data as they are."""
NEIGHBOURS = 5
"""Rounds before and after the one that is taken whose validation scores count for a point of a grid."""


@dataclass(frozen=True)
class Plan:
    """A grid whose points were all tried, but none begun; each stack is trained at once."""

    grid: dict[str, list[Any]]
    points: list[Point]
    stacks: list[Stack]
    path: Path
    raw: Settings
    objects: Mapping[str, Any]
    supply: Supply


@dataclass(frozen=True)
class Tuned(grid.Tuned):
    """A grid that was tried out, in the order of its points."""

    plan: Plan

    @property
    def path(self) -> Path:
        return self.plan.path

    def at_the_edge(self) -> list[str]:
        """Where the best value is the first or last of its kind: sentences that say which way the grid should grow."""
        config = next(point.config for point in self.plan.points if point.name == self.best.name)
        return [edge.sentence for edge in self.edges() if _possible(config, edge.setting, edge.beyond)]

    def frame(self) -> Any:
        """A pandas frame with a row for each point."""
        import pandas as pd

        rows = [{**t.values, "validation": t.validation, "round": t.round} for t in self.trials]
        return pd.DataFrame(rows, index=[t.name for t in self.trials])

    def report(self, path: Path | str | None = None) -> Path:
        """Writes the HTML report, by default beside the runs."""
        from ..report.tuning import write_page

        target = Path(path) if path is not None else self.path / "report.html"
        return write_page(self, target, self.at_the_edge())


def tune(
    config: start.Settings | Config | Path | str | None = None,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    federation: start.Silos | None = None,
    model: start.Network | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
    out: Path | str = "runs/tune",
    jobs: int = 1,
    listener: Listener | Callable[[str], Listener] | None = None,
    **settings: Any,
) -> Tuned:
    """Tries every combination of the grid's values and chooses on validation data.

    `grid`: `{"local.lr": [0.001, 0.01], "sigma": ["auto", 10]}`, or a table `grid` in the configuration. Points that
    are already complete in `out` are kept, unfinished ones resumed. `out/best.toml` is the configuration of the best;
    `jobs` is as for `compare`. `listener` hears of all points, or is a function of a point's name.
    """
    given = {"model": model, "loss": loss, "metric": metric}
    raw, objects = start.understood(config, settings, federation=federation, **given)
    return tried_out(plan(raw, grid or {}, Path(out), objects), listener, jobs)


# ---- before anything runs ----


def plan(raw: start.Settings, grid: Mapping[str, Sequence[Any]], out: Path, objects: Mapping[str, Any]) -> Plan:
    """Checks the grid and every point of it."""
    wanted = raw.get("grid", {})
    if not isinstance(wanted, Mapping):
        raise ConfigError(
            "`grid` in a configuration is a table of settings and their values, such as lr = [0.01, 0.1]."
        )
    method = str(raw.get("method", Config().method))
    chosen = options.by_full_name(flat_settings(wanted) | dict(grid), [method])
    if not chosen:
        raise ConfigError(
            "The grid is empty: name at least one setting and its values, such as --grid lr=0.001,0.003,0.01, or in "
            "a table [grid] of the configuration file."
        )
    for name in chosen:
        if not name.startswith(TUNED):
            raise ConfigError(
                f"{name} cannot be tuned: a grid is over settings of the method (settings.*), of local training "
                "(local.*) and of the model (model.*). To see how methods fare under other conditions, use "
                f"`fedkin compare --vary {name}=…`."
            )
    common = {key: value for key, value in raw.items() if key != "grid"}
    points: list[Point] = []
    for name, values in named(chosen):
        config = start.configured(options.laid_over(common, values), **objects)
        points.append(Point(name, config, out / name, values))
    supply = Supply(objects)
    return Plan(chosen, points, stacks(points, supply), out, common, objects, supply)


def named(grid: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The points of a grid, each with the name of its folder."""
    taken: set[str] = set()
    for each in product(*grid.values()):
        values = dict(zip(grid, each, strict=True))
        name = _unused(options.label(values), taken)
        taken.add(name)
        yield name, values


def stacks(points: Sequence[Point], supply: Supply) -> list[Stack]:
    """The points in stacks, as far as they are alike and memory allows; each point is tried, and refused if wrong."""
    found: dict[str, list[Stack]] = {}
    bases = list(dict.fromkeys(_base(p.config) for p in points))
    for point in sorted(points, key=lambda p: bases.index(_base(p.config))):  # those that share data in a row
        ready = tried(point, supply)
        if ready is not None:
            refuse_without_validation(ready)
        method = point.config.built_method()
        alike = found.setdefault(_base(point.config) + lockstep.kind(method, point.config.local), [[]])
        if ready is not None and len(alike[-1]) >= _points_at_once(ready):
            alike.append([])
        alike[-1].append(point)
    return [stack for alike in found.values() for stack in alike]


def _base(config: Config) -> str:
    """All of a configuration but what points of one stack may differ in."""
    table = config.model_dump(mode="json", exclude={"settings"})
    return json.dumps(table | {"local": {**table["local"], "lr": None}})


def refuse_without_validation(ready: Assembly) -> None:
    if not any(ready.cohort.validation.counts[: ready.problem.known]):
        share = ready.config.data.validation
        raise ConfigError(
            "Tuning chooses on validation data, and no client has any: "
            + ("set data.validation to a share, such as 0.1." if not share else f"{share:g} of so few samples is none.")
        )


def _points_at_once(ready: Assembly) -> int:
    """As many points as half of the free memory holds: about four rows of weights a client kept, twelve in training."""
    clients = len(ready.problem)
    rows = 4 * clients + 12 * min(clients, ready.config.chunk or clients)
    row = ready.problem.layout.size * ready.problem.initial.element_size()
    return max(1, machine.free_bytes(ready.device) // 2 // (rows * row))


def _unused(name: str, taken: set[str]) -> str:
    number, wanted = 2, name
    while name in taken:
        name, number = f"{wanted}-{number}", number + 1
    return name


# ---- running, and choosing ----


def tried_out(plan: Plan, listener: Listener | Callable[[str], Listener] | None = None, jobs: int = 1) -> Tuned:
    """Trains what is not complete, stack by stack, and chooses."""
    refuse_jobs(jobs)
    keep(plan.path, plan.raw, {"grid": plan.grid}, plan.objects)
    heard = for_each(listener)
    told: Listeners | None = None
    if heard is not None:
        told = partial(_of_a_cell, heard)
    carry_out(plan.stacks, plan.supply, plan.objects, told, jobs=jobs, spare_diverged=True)
    tuned = Tuned(plan.grid, [trial([point]) for point in plan.points], plan)
    chosen = ", ".join(f"{name} = {value}" for name, value in tuned.values.items())
    text = f"# Chosen on validation data from a grid of {len(plan.points)} points: {chosen}\n\n"
    text += (tuned.best.run.path / "config.toml").read_text(encoding="utf-8")
    replace_file(plan.path / "best.toml", text.encode())
    return tuned


def _of_a_cell(listener: Callable[[str], Listener], cell: Cell) -> Listener:
    return listener(cell.name)


def trial(points: Sequence[Point], name: str | None = None) -> Trial:
    """What a point came to, of which there is a run for each seed."""
    runs, values = [Run(point.path) for point in points], points[0].values
    name = name or points[0].name
    taken = [_taken(run) for run in runs if run.complete]
    known = [each for each in taken if each is not None]
    if len(known) < len(runs):
        return Trial(name, values, runs, None, None)
    clients = [scores for scores, _ in known]
    mean = float(np.mean([np.nanmean(scores) for scores in clients]))
    return Trial(name, values, runs, mean, known[0][1], tuple(np.concatenate(clients).tolist()))


def _taken(run: Run) -> tuple[NDArray[np.float64], int] | None:
    """(clients,) the validation scores around the round that is taken, and that round; None where none is finite."""
    rounds = [line.round for line in run.rounds if not line.novel]
    taken = run.summary.models[run.summary.headline].validated_round
    if taken not in rounds:
        return None
    scores = around(run.scores(part="validation"), rounds.index(taken))
    return (scores, taken) if np.isfinite(scores).any() else None


def around(scores: NDArray[np.float64], at: int) -> NDArray[np.float64]:
    """(clients,) of (rounds, clients): the means over the round at this place and its neighbours, as far as they are
    finite: a tenth of the rounds before and after, `NEIGHBOURS` at most.

    The round was taken as its score on these very rows was good: of few rows and many rounds that is luck, and the more
    of it the more the scores jump from round to round. Its neighbours had no such luck."""
    width = min(NEIGHBOURS, len(scores) // 10)
    near = np.where(np.isfinite(scores), scores, np.nan)[max(0, at - width) : at + width + 1]
    counts = np.isfinite(near).sum(axis=0)
    return np.where(counts > 0, np.nansum(near, axis=0) / np.maximum(counts, 1), np.nan)


def _possible(config: Config, name: str, value: float) -> bool:
    if ":" in config.method or ":" in config.data.name:  # no code is imported for a remark on a folder that names it
        return True
    try:
        start.configured(options.laid_over(config.model_dump(mode="json"), {name: value}))
    except ConfigError:
        return False
    return True
