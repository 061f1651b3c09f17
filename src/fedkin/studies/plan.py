"""What a study is going to run: its cells, each tried before any is begun, and the stacks they are trained in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, ParamSpec

from ..base.settings import ConfigError, unknown_key
from ..data.federation import Federation
from ..engines.assembly import Assembly
from ..engines.capacity import SMALL
from ..engines.simulation import Listener
from ..engines.start import Settings, configured, refuse_other_settings
from ..methods import Named, find, name_of
from ..runs.config import Config, merge, resolve
from .supply import Supply


@dataclass(frozen=True)
class Cell:
    """A run of a study: what it is called, its settings and its folder."""

    name: str
    config: Config
    path: Path
    upto: int | None = field(default=None, kw_only=True)
    """Rounds to go on to, where it had ended before others did."""

    @property
    def of_seeds(self) -> str:
        """What it is called but for its seed."""
        return self.name.removesuffix(f", seed {self.config.seed}")

    @property
    def comparison(self) -> Path:
        """The folder of the comparison that it is a part of."""
        return self.path.parent

    @property
    def complete(self) -> bool:
        return (self.path / "summary.json").exists()


@dataclass(frozen=True)
class Point(Cell):
    """A point of a grid: the run that tries it, and the values of its settings by their full names."""

    values: dict[str, Any]


Stack = list[Cell]
"""Cells that are trained at the same time, as further rows of one stack where that can be."""
Listeners = Callable[[Cell], Listener]
P = ParamSpec("P")


def for_each(listener: Listener | Callable[P, Listener] | None) -> Callable[P, Listener] | None:
    """What gives every run its listener; one that is given as it is hears of all of them."""
    if isinstance(listener, Listener):
        return lambda *run, **named: listener
    return listener


def tried(cell: Cell, supply: Supply) -> Assembly | None:
    """The run of a cell, refused if it cannot be or if its folder holds a run with other settings; None where it is
    complete. All cells of a study are tried before any is run: a wrong setting of the last would cost an hour."""
    if cell.complete and cell.config.execution != "stacked":  # which may have come to something else
        refuse_other_settings(cell.path, cell.config)
        return None
    ready = supply.assembled(cell.config)
    refuse_other_settings(cell.path, ready.config)
    return None if cell.complete else ready


# ---- methods x seeds ----


def named(methods: Sequence[Named], raw: Settings) -> tuple[list[str], dict[str, Any]]:
    """Methods by their names, whether they were given so, as classes or as objects; and the settings, with those of the
    objects for their methods alone."""
    if isinstance(methods, str):
        raise ConfigError(f"`methods` is a list, such as ['separate', 'fedamp'], not the word {methods!r}.")
    own: dict[str, dict[str, Any]] = {}
    kinds: dict[str, Any] = {}
    for method in methods:
        name, settings = name_of(method)
        kind = method if isinstance(method, str) else (find(name), settings)
        if kinds.setdefault(name, kind) != kind and not isinstance(kind, str):
            raise ConfigError(
                f"Two methods are called {name!r}. Give classes different names; to compare the settings of one, use "
                "`fedkin.cross` or `fedkin.tune`."
            )
        if settings:
            own[name] = {"settings": settings}
    return list(kinds), merge({"methods": own}, raw) if own else dict(raw)


def of_one_split(objects: Settings, seeds: int | Sequence[int]) -> dict[str, Any]:
    """The objects; a federation that was split when it was made, and is to have several seeds, with a note on that."""
    federation: Federation | None = objects.get("federation")
    count = seeds if isinstance(seeds, int) else len(set(seeds))
    if federation is None or federation.split_seed is None or count < 2:
        return dict(objects)
    note = (
        f"All {count} seeds test the same samples, as the federation was split when it was made: what is said over "
        "seeds says nothing of other test samples. Give a function that makes it, and each seed has a split of its "
        "own, as in federation=lambda seed: Federation.from_table(table, client, target, seed=seed)."
    )
    return {**objects, "federation": replace(federation, notes=(*federation.notes, note))}


def compared(
    raw: Settings, methods: Sequence[str], seeds: int | Sequence[int], folder: Path, objects: Settings
) -> list[Cell]:
    """The cells of a comparison, method by method."""
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
    common = {key: value for key, value in raw.items() if key != "methods"}
    cells = []
    for method, one in _for_each(dict.fromkeys(methods), common).items():
        for seed in numbers:
            settings = merge(merge(one, by_method.get(method, {})), {"method": method, "seed": seed})
            path = folder / f"{method.replace(':', '.')}-seed{seed}"
            cells.append(Cell(f"{method}, seed {seed}", configured(settings, **objects), path))
    return cells


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


FEW_NUMBERS = 1 << 25
"""Inputs of all clients, as many as are worth copying to train seeds side by side."""


def seeds_together(
    cells: Sequence[Cell], supply: Supply, check: Callable[[Assembly], None] | None = None
) -> list[Stack]:
    """The cells in stacks, each of one method's seeds; every cell is tried, and checked beside."""
    stacks: list[Stack] = []
    for _, members in groupby(cells, key=lambda cell: (cell.path.parent, cell.config.method)):
        pending = []
        for cell in members:
            ready = tried(cell, supply)
            if ready is None:
                stacks.append([cell])
            else:
                if check is not None:
                    check(ready)
                pending.append((cell, _size(ready)))
            del ready  # its data are large: supply decides how long they are kept
        stacks += list(_small_together(pending))
    return stacks


@dataclass(frozen=True)
class _Size:
    """Of a run: the weights of all clients, the numbers of their inputs, and whether several fit into one stack."""

    weights: int
    inputs: int
    small: bool


def _size(ready: Assembly) -> _Size:
    weights = len(ready.problem) * ready.problem.layout.size
    small = ready.execution.name == "stacked" and ready.device.type == "cpu" and weights < SMALL
    return _Size(weights, ready.cohort.train.x.numel(), small)


def _small_together(cells: Sequence[tuple[Cell, _Size]]) -> Iterator[Stack]:
    """Where models are small, many at a time cost little more than one."""
    stack: Stack = []
    room = 0
    for cell, size in cells:
        room -= 1
        if stack and (room < 0 or not size.small):
            yield stack
            stack = []
        if not stack:
            room = min(SMALL // size.weights, FEW_NUMBERS // size.inputs) if size.small else 0
        stack.append(cell)
    if stack:
        yield stack
