"""`tune`: a grid over settings of method, training and model. Validation data choose; test data have no say.

Points of the grid that differ only where a stack may differ are trained as further rows of one stack (see
`engines.lockstep`); each is an ordinary run folder all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor

from ..base import machine
from ..base.settings import ConfigError
from ..data.federation import Federation
from ..engines import inferred_graph, lockstep, start
from ..engines.assembly import Assembly
from ..engines.simulation import Interrupted, Listener
from ..evidence import grid
from ..evidence.comparison import flat_settings
from ..evidence.grid import Trial
from ..maths import statistics
from ..runs import options
from ..runs.config import Config, merge
from ..runs.folder import replace_file
from .run import Run

TUNED = ("settings.", "local.", "model.")
"""What a grid may be over: whatever leaves the validation data as they are."""


@dataclass(frozen=True)
class Point:
    """A point of the grid: the values of its settings by their full names, and the run that tries them."""

    name: str
    values: dict[str, Any]
    config: Config
    path: Path

    @property
    def complete(self) -> bool:
        return (self.path / "summary.json").exists()


@dataclass(frozen=True)
class Plan:
    """A grid whose points were all tried, but none begun; each stack is trained at once."""

    grid: dict[str, list[Any]]
    points: list[Point]
    stacks: list[list[Point]]
    path: Path
    objects: Mapping[str, Any]


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
    federation: Federation | None = None,
    model: start.Network | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
    out: Path | str = "runs/tune",
    listener: Callable[[str], Listener] | None = None,
    **settings: Any,
) -> Tuned:
    """Tries every combination of the grid's values and chooses on validation data.

    `grid`: `{"local.lr": [0.001, 0.01], "sigma": ["auto", 10]}`, or a table `grid` in the configuration. Points that
    are already complete in `out` are kept, unfinished ones resumed. `out/best.toml` is the configuration of the best.
    """
    objects = {"federation": federation, "model": model, "loss": loss, "metric": metric}
    return carry_out(plan(merge(start.table(config), settings), grid or {}, Path(out), objects), listener)


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
    for values in (dict(zip(chosen, each, strict=True)) for each in product(*chosen.values())):
        name = _unused(options.label(values), {p.name for p in points})
        config = start.configured(options.laid_over(common, values), **objects)
        points.append(Point(name, values, config, out / name))
    return Plan(chosen, points, _stacks(points, _Bench(objects)), out, objects)


def _stacks(points: list[Point], bench: _Bench) -> list[list[Point]]:
    """The points in stacks, as far as they are alike and memory allows; each point is tried, and refused if wrong."""
    stacks: dict[str, list[list[Point]]] = {}
    bases = {_base(p.config): None for p in points}
    for point in sorted(points, key=lambda p: list(bases).index(_base(p.config))):  # those that share data in a row
        ready = bench.assembled(point.config)
        start.refuse_other_settings(point.path, ready.config)
        _refuse_without_validation(ready)
        alike = stacks.setdefault(_base(point.config) + lockstep.kind(ready.method, ready.config.local), [[]])
        if len(alike[-1]) >= _points_at_once(ready):
            alike.append([])
        alike[-1].append(point)
    return [stack for alike in stacks.values() for stack in alike]


class _Bench:
    """Assembles points; those that differ only in the learning rate or the method's settings share data and model."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self.objects = objects
        self.last: tuple[str, Assembly] | None = None

    def assembled(self, config: Config) -> Assembly:
        base = _base(config)
        if self.last is None or self.last[0] != base:
            self.last = base, start.assembled(config, **self.objects)
        return _sibling(self.last[1], config)


def _base(config: Config) -> str:
    """All of a configuration but what siblings may differ in, and what `auto` has decided."""
    table = config.model_dump(mode="json", exclude={"settings", "execution", "device"})
    return json.dumps(table | {"local": {**table["local"], "lr": None}})


def _sibling(ready: Assembly, config: Config) -> Assembly:
    """The same run with another learning rate and other settings of the method; nothing is copied."""
    config = ready.config.model_copy(update={"settings": config.settings, "local": config.local})
    method = config.built_method()
    try:
        method.check(ready.problem, config.local)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return replace(ready, config=config, method=method, cohort=replace(ready.cohort, local=config.local))


def _refuse_without_validation(ready: Assembly) -> None:
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


@inferred_graph.remembering()
def carry_out(plan: Plan, listener: Callable[[str], Listener] | None = None) -> Tuned:
    """Trains what is not complete, stack by stack, and chooses."""
    bench = _Bench(plan.objects)
    for stack in plan.stacks:
        _train([point for point in stack if not point.complete], bench, listener)
    tuned = Tuned(plan.grid, [_trial(point) for point in plan.points], plan)
    chosen = ", ".join(f"{name} = {value}" for name, value in tuned.values.items())
    text = f"# Chosen on validation data from a grid of {len(plan.points)} points: {chosen}\n\n"
    text += (tuned.best.run.path / "config.toml").read_text(encoding="utf-8")
    replace_file(plan.path / "best.toml", text.encode())
    return tuned


def _train(stack: list[Point], bench: _Bench, listener: Callable[[str], Listener] | None) -> None:
    simulations, checkpoints = [], []
    for point in stack:
        ready, told = bench.assembled(point.config), listener(point.name) if listener else None
        simulation, checkpoint = start.opened(ready, point.path, told)
        simulations.append(simulation)
        checkpoints.append(checkpoint)
    if stack:
        for error in lockstep.run_together(simulations, checkpoints).values():
            if isinstance(error, Interrupted):  # the others have come to the end of their rounds, and are saved
                raise error


def _trial(point: Point) -> Trial:
    run = Run(point.path)
    if not point.complete:
        return Trial(point.name, point.values, run, None, None)
    try:
        index, best = statistics.best_mean(run.scores(part="validation"), run.summary.higher_is_better)
    except ValueError:  # never a finite score
        return Trial(point.name, point.values, run, None, None)
    at = [line.round for line in run.rounds if not line.novel][index]
    return Trial(point.name, point.values, run, best, at)


def _possible(config: Config, name: str, value: float) -> bool:
    try:
        start.configured(options.laid_over(config.model_dump(mode="json"), {name: value}))
    except ConfigError:
        return False
    return True
