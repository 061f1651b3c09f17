"""What a comparison is going to run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from ..base.settings import ConfigError, unknown_key
from ..engines import inferred_graph
from ..engines.assembly import Assembly
from ..engines.capacity import SMALL
from ..engines.lockstep import run_together
from ..engines.simulation import Listener, Simulation
from ..engines.start import Settings, opened, prepare, refuse_other_settings
from ..errors import FedkinError
from ..methods import find
from ..runs.checkpoint import Checkpoint
from ..runs.config import Config, merge, resolve
from .run import Run

FEW_NUMBERS = 1 << 25
"""Inputs of all clients, as many as are worth copying to train seeds side by side."""


@dataclass(frozen=True)
class Planned:
    """A run of a comparison: tried, but not yet begun."""

    method: str
    seed: int
    raw: Settings
    config: Config
    path: Path

    @property
    def complete(self) -> bool:
        return (self.path / "summary.json").exists()


def planned(
    raw: Settings, methods: Sequence[str], seeds: int | Sequence[int], folder: Path, objects: Settings
) -> list[Planned]:
    """The runs of a comparison. All are tried before any is run: a wrong setting of the last would cost an hour."""
    by_method: Settings = raw.get("methods", {})
    if not isinstance(by_method, Mapping):
        raise ConfigError(
            "`methods` in a configuration is a table of each method's settings, such as methods.fedamp.settings.sigma; "
            "which methods are compared is said beside it (--methods)."
        )
    for name in by_method:
        if name not in methods:
            raise ConfigError(f"There are settings for methods.{name}, but it is not among the methods compared.")
    first = resolve({"seed": raw.get("seed", 0)}).seed
    numbers = list(range(first, first + seeds)) if isinstance(seeds, int) else list(dict.fromkeys(seeds))
    if not methods or not numbers:
        raise ConfigError("A comparison needs at least one method and one seed.")
    plan = []
    common = {key: value for key, value in raw.items() if key != "methods"}
    for method, one in _for_each(dict.fromkeys(methods), common).items():
        for seed in numbers:
            settings = merge(merge(one, by_method.get(method, {})), {"method": method, "seed": seed})
            path = folder / f"{method.replace(':', '.')}-seed{seed}"
            config = prepare(settings, **objects).config
            refuse_other_settings(path, config)
            plan.append(Planned(method, seed, settings, config, path))
    return plan


def _for_each(methods: Iterable[str], raw: Settings) -> dict[str, dict[str, Any]]:
    """The settings for each method: of `settings`, those that the method has."""
    common = raw.get("settings", {})
    fields = {name: find(name).model_fields for name in methods}
    if not isinstance(common, Mapping):
        return {name: dict(raw) for name in fields}
    for key in common:
        if not any(key in own for own in fields.values()):
            known = [f"settings.{k}" for own in fields.values() for k in own]
            raise ConfigError(unknown_key(f"settings.{key}", dict.fromkeys(known)))
    return {name: {**raw, "settings": {k: v for k, v in common.items() if k in own}} for name, own in fields.items()}


@inferred_graph.remembering()
def carried_out(
    plan: Sequence[Planned], objects: Settings, listener: Callable[[str, int], Listener] | None = None
) -> list[Run]:
    """The runs of a plan; complete ones are kept, unfinished ones resumed."""
    for _, seeds in groupby(plan, key=lambda each: each.method):
        pending = []
        for each in seeds:
            if not each.complete:
                pending.append(each)
            elif listener:  # it is counted all the same
                listener(each.method, each.seed)
        ready = ((each, prepare(each.raw, **objects)) for each in pending)
        for stack in _stacks(ready):
            _side_by_side(stack, listener)
    return [Run(each.path) for each in plan]


def _stacks(ready: Iterable[tuple[Planned, Assembly]]) -> Iterator[list[tuple[Planned, Assembly]]]:
    """Seeds of a method in stacks: where models are small, many at a time cost little more than one."""
    stack: list[tuple[Planned, Assembly]] = []
    room = 0
    for each, assembly in ready:
        numbers = len(assembly.problem) * assembly.problem.layout.size
        small = assembly.execution.name == "stacked" and assembly.device.type == "cpu" and numbers < SMALL
        room -= 1
        if stack and (room < 0 or not small):
            yield stack
            stack = []
        if not stack:
            room = min(SMALL // numbers, FEW_NUMBERS // assembly.cohort.train.x.numel()) if small else 0
        stack.append((each, assembly))
    if stack:
        yield stack


def _side_by_side(stack: list[tuple[Planned, Assembly]], listener: Callable[[str, int], Listener] | None) -> None:
    """Runs these to their ends, those that were begun from their checkpoints."""
    begun: list[tuple[Simulation, Checkpoint | None]] = []
    try:
        for each, assembly in stack:
            told = listener(each.method, each.seed) if listener else None
            begun.append(opened(assembly, each.path, told))
        stopped = run_together([s for s, _ in begun], [c for _, c in begun])
    except FedkinError:  # a method that breaks its contract in the first round, for one
        for simulation, checkpoint in begun:
            if checkpoint is None:
                simulation.writer.discard()
        raise
    for error in stopped.values():
        raise error
