"""Several runs side by side. Trainings that differ only where a stack may differ are one call of `train`.

The stack has a row for each client and run: client 0 of every run, then client 1 of every run, and so on, so that rows
are still sorted by falling number of samples. A row's random streams come from its run's seed and its client's name; on
a CPU each run ends with the bits it would have had alone. Runs may be points of a grid, on the same data, or seeds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

import torch

from ..base import machine
from ..base.state import State
from ..methods._method import Method
from ..runs.checkpoint import Checkpoint
from ..training.cohort import Cohort, Samples, SeveralRates
from ..training.ledger import Ledger
from ..training.optimisers import Local
from .requests import RanOut, Request, Trained, advance, within_memory
from .simulation import Diverged, Interrupted, Simulation


class Apart(Exception):
    """This method's training cannot be stacked, which only shows when it is tried."""


def kind(method: Method, local: Local) -> str:
    """Trainings of one kind may share a stack: alike but for the learning rate and settings that `train` ignores."""
    ours, declared = type(method), vars(type(method)).get("training")
    looked_at = method.model_dump(mode="json", include=None if declared is None else set(declared))
    return json.dumps([f"{ours.__module__}:{ours.__qualname__}", looked_at, local.model_dump(exclude={"lr"})])


def run_together(
    simulations: Sequence[Simulation], checkpoints: Sequence[Checkpoint | None]
) -> dict[int, Diverged | Interrupted]:
    """Runs all to their ends, each from its checkpoint or from the start; returns those that stopped early, and why.

    Runs that are behind go first, until they stand in the same round as the others.
    """
    stopped: dict[int, Diverged | Interrupted] = {}
    asked: dict[int, Request] = {}
    since = [time.perf_counter()] * len(simulations)
    ends = ExitStack()  # whatever one of them raises, the others are over, too
    rounds = [ends.enter_context(closing(s.rounds(c))) for s, c in zip(simulations, checkpoints, strict=True)]
    apart: set[type[Method]] = set()
    pool = Pool()

    def go_on(i: int, reply: list[Trained] | None, share: float) -> None:
        """Gives a run its reply, and its share of the seconds that the training took; it comes to its next request."""
        simulations[i].server.idle += time.perf_counter() - since[i] - share
        try:
            request = advance(rounds[i], reply)
        except (Diverged, Interrupted) as error:
            stopped[i] = error
        else:
            if request is not None:
                asked[i] = request
        since[i] = time.perf_counter()

    for simulation, checkpoint in zip(simulations, checkpoints, strict=True):
        simulation.beside = len(simulations)
        simulation.take_up(checkpoint)
    with ends, machine.threads(max(s.threads[0] for s in simulations)):
        for i in range(len(simulations)):
            go_on(i, None, 0.0)
        while asked:
            first = min(asked, key=lambda i: (asked[i].round.number, i))
            group = [i for i in asked if _alike(asked[i], asked[first])][: pool.runs]
            requests = [asked.pop(i) for i in group]
            began = time.perf_counter()
            replies = _answers(requests, apart, pool)
            share = (time.perf_counter() - began) / len(group)
            del requests
            for i in group:
                go_on(i, [replies.pop(0)], share)
    return stopped


def _alike(a: Request, b: Request) -> bool:
    """Whether two trainings are of one kind, of as many clients with as many samples in the same round, from states of
    one form. The clients' data and seeds may differ; that the modules are of one kind is for the caller to know."""
    first, second = a.cohort, b.cohort
    return a is b or (
        a.round == b.round
        and first.samples == second.samples
        and first.layout.fields == second.layout.fields
        and type(first.execution) is type(second.execution)
        and (first.execution.products, first.execution.pads) == (second.execution.products, second.execution.pads)
        and (first.task.loss, first.augmentation) == (second.task.loss, second.augmentation)
        and kind(a.method, first.local) == kind(b.method, second.local)
        and _form(a.message) == _form(b.message)
        and _form(a.memory) == _form(b.memory)
    )


def _form(state: State) -> list[tuple[str, torch.Size]]:
    return [(name, tensor.shape[1:]) for name, tensor in state.items()]


def _answers(requests: list[Request], apart: set[type[Method]], pool: Pool) -> list[Trained]:
    method = type(requests[0].method)
    if len(requests) > 1 and method not in apart:
        try:
            replies = within_memory(lambda: _stacked(requests, pool))
        except (Apart, SeveralRates):
            apart.add(method)
        else:
            if not isinstance(replies, RanOut):
                return replies
            requests[0].cohort.execution.forget()
            machine.tidy(requests[0].cohort.train.x.device)
            pool.runs = half = len(requests) // 2
            return _answers(requests[:half], apart, pool) + _answers(requests[half:], apart, pool)
    return [request.answer() for request in requests]


def _stacked(requests: list[Request], pool: Pool) -> list[Trained]:
    """One training for all, taken apart again."""
    first, count = requests[0], len(requests)
    clients = len(first.cohort)
    side_by_side = torch.arange(count * clients).view(count, clients).T.flatten()

    def joined(states: list[State]) -> State:
        return State.join(states).take(side_by_side)

    cohort = _cohort([r.cohort for r in requests], pool)
    kept = [r.cohort.ledger.optimiser for r in requests]
    cohort.ledger.optimiser = joined([each for each in kept if each is not None]) if kept[0] is not None else None
    message, memory = joined([r.message for r in requests]), joined([r.memory for r in requests])
    upload, memory = first.method.train(cohort, message, memory, first.round)
    for state in (upload, memory):
        if state.shared or any(t.ndim == 0 or len(t) != len(cohort) for _, t in state.items()):
            raise Apart
    every = [torch.arange(i, len(cohort), count) for i in range(count)]
    replies: list[Trained] = [(upload.take(own), memory.take(own)) for own in every]
    ledgers = [cohort.ledger.take(own) for own in every]
    for request, ledger in zip(requests, ledgers, strict=True):  # from here on nothing needs memory
        vars(request.cohort.ledger).update(vars(ledger))
    return replies


class Pool:
    """The samples of several runs as one; runs on the same data share it, others' are copied below each other once."""

    def __init__(self) -> None:
        self.copies: dict[tuple[int, ...], tuple[list[Samples], Samples]] = {}
        self.runs: int | None = None
        """How many runs one stack may have: fewer, after memory ran out; None is no limit."""

    def __call__(self, parts: list[Samples]) -> Samples:
        """Client 0 of every part, then client 1 of every part, and so on."""
        distinct = list({id(part.x): part for part in parts}.values())
        whole, offsets = distinct[0], {id(distinct[0].x): 0}
        if len(distinct) > 1:
            key = tuple(map(id, (part.x for part in distinct)))
            if key not in self.copies:  # the parts are kept with the copy: an id is theirs as long as they live
                x, y = torch.cat([part.x for part in distinct]), torch.cat([part.y for part in distinct])
                weights = [part.weight for part in distinct if part.weight is not None]
                self.copies[key] = distinct, Samples(x, y, (), (), torch.cat(weights) if weights else None)
            whole, at = self.copies[key][1], 0
            for part in distinct:
                offsets[id(part.x)] = at
                at += len(part.x)
        order = [(i, part) for i in range(len(parts[0])) for part in parts]
        starts = tuple(part.starts[i] + offsets[id(part.x)] for i, part in order)
        return Samples(whole.x, whole.y, starts, tuple(part.counts[i] for i, part in order), whole.weight)


def _cohort(cohorts: list[Cohort], pool: Pool) -> Cohort:
    """Every client of every run; the data are not copied, or once where runs have their own."""
    first, rates, seeds = cohorts[0], tuple(c.local.lr for c in cohorts), tuple(c.seed for c in cohorts)
    weights = [c.class_weight for c in cohorts if c.class_weight is not None]
    return replace(
        first,
        names=tuple(name for beside in zip(*(c.names for c in cohorts), strict=True) for name in beside),
        train=pool([c.train for c in cohorts]),
        validation=pool([c.validation for c in cohorts]),
        class_weight=torch.stack(weights, 1).flatten(0, 1) if weights else None,
        rates=rates * len(first) if len(set(rates)) > 1 else None,
        seeds=seeds * len(first) if len(set(seeds)) > 1 else None,
        ledger=Ledger(),
    )
