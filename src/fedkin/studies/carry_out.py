"""Carrying a plan out: stack after stack in this process, or several at a time in processes of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..base import given
from ..engines import start
from ..engines.lockstep import run_together
from ..engines.simulation import Diverged, Simulation
from ..errors import FedkinError
from ..runs.checkpoint import Checkpoint
from ..runs.folder import RunFolder, Writer
from . import workers
from .plan import Cell, Listeners, Stack
from .supply import Supply


def refuse_jobs(jobs: int) -> None:
    if jobs < 1:
        raise FedkinError(f"jobs = {jobs} cannot be: it is how many runs go on at a time, 1 or more.")


def carry_out(
    stacks: Sequence[Stack],
    supply: Supply,
    objects: Mapping[str, Any],
    listener: Listeners | None = None,
    *,
    jobs: int = 1,
    spare_diverged: bool = False,
) -> None:
    """Runs what is not complete; runs that were begun go on from their checkpoints.

    With `jobs`, so many stacks at a time in processes of their own. `spare_diverged`: a run that was told to stop when
    training diverges is left as it is, and the others go on.
    """
    pending = []
    for stack in stacks:
        for cell in stack:
            if cell.complete and listener:  # it is counted all the same
                listener(cell)
        pending.append([cell for cell in stack if not cell.complete])
    _side_by_side_or_not(pending, supply, objects, listener, jobs, spare_diverged)
    _side_by_side_or_not(as_long_as_the_longest(stacks), supply, objects, listener, jobs, spare_diverged)


def _side_by_side_or_not(
    stacks: Sequence[Stack],
    supply: Supply,
    objects: Mapping[str, Any],
    listener: Listeners | None,
    jobs: int,
    spare_diverged: bool,
) -> None:
    pending = [stack for stack in stacks if stack]
    if jobs > 1 and sum(map(len, pending)) > 1:
        _refuse_what_is_only_here([cell for stack in pending for cell in stack])
        supply.clear()  # each worker reads what it needs
        workers.side_by_side(workers.spread(pending, jobs), objects, listener, jobs, spare_diverged)
        return
    for stack in pending:
        run_stack(stack, supply, listener, spare_diverged)


def as_long_as_the_longest(stacks: Sequence[Stack]) -> list[Stack]:
    """Of runs that end by validation data, those that ended before the longest of their comparison, to go on to where
    that did: a method that had more rounds than another may owe its lead to that."""
    ended: dict[Path, dict[Path, int]] = {}
    for cell in (cell for stack in stacks for cell in stack):
        if cell.config.patience and cell.complete:
            ended.setdefault(cell.comparison, {})[cell.path] = RunFolder(cell.path).summary.rounds
    return [
        [
            replace(cell, upto=longest, name=f"{cell.of_seeds}, on to round {longest}, seed {cell.config.seed}")
            for cell in stack
            if (own := ended.get(cell.comparison, {})) and own.get(cell.path, 0) < (longest := max(own.values()))
        ]
        for stack in stacks
    ]


def _refuse_what_is_only_here(cells: Sequence[Cell]) -> None:
    for name in dict.fromkeys(name for cell in cells for name in (cell.config.method, cell.config.data.name)):
        if given.only_here(name):
            raise FedkinError(
                f"With several jobs every class and function has to be found by other processes, and {name!r} cannot: "
                "define it in a module that can be imported, or take jobs = 1."
            )


def run_stack(stack: Stack, supply: Supply, listener: Listeners | None, spare_diverged: bool) -> None:
    """Runs these to their ends, those that were begun from their checkpoints."""
    begun: list[tuple[Simulation, Checkpoint | None]] = []
    try:
        for cell in stack:
            ready, told = supply.assembled(cell.config), listener(cell) if listener else None
            if cell.complete:  # and to go on
                Writer(cell.path).reopen(ready.config)
            begun.append(start.opened(ready, cell.path, told, supply.attentions))
            begun[-1][0].server.upto = cell.upto
        stopped = run_together([s for s, _ in begun], [c for _, c in begun])
    except FedkinError:  # a method that breaks its contract in the first round, for one
        for simulation, checkpoint in begun:
            if checkpoint is None:
                simulation.writer.discard()
        raise
    finally:
        for cell in stack:
            supply.release(cell.config)
    for i, error in stopped.items():
        if not (spare_diverged and isinstance(error, Diverged)):
            raise type(error)(f"{stack[i].path}: {error}") from None  # which of them it was
