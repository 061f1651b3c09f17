"""Several runs side by side. Trainings that differ only where a stack may differ are one call of `train`.

The stack has a row for each client and run: client 0 of every run, then client 1 of every run, and so on, so that rows
are still sorted by falling number of samples. Rows of one client have one name, hence the same random streams; on a
CPU each run ends with the bits it would have had alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from .. import machine
from ..cohort import Cohort, SeveralRates
from ..method import Method
from ..optimisers import Local
from ..runs import Checkpoint
from ..state import State
from .simulation import Diverged, Interrupted, Reply, Request, Simulation, advance


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
    rounds = [s.rounds(c) for s, c in zip(simulations, checkpoints, strict=True)]
    apart: set[type[Method]] = set()

    def go_on(i: int, reply: Reply | None, share: float) -> None:
        """Gives a run its reply, and its share of the seconds that the training took; it comes to its next request."""
        simulations[i].idle += time.perf_counter() - since[i] - share
        try:
            request = advance(rounds[i], reply)
        except (Diverged, Interrupted) as error:
            stopped[i] = error
        else:
            if request is not None:
                asked[i] = request
        since[i] = time.perf_counter()

    with machine.threads(max(s.threads for s in simulations)):
        for i, simulation in enumerate(simulations):
            simulation.beside = len(simulations)
            go_on(i, None, 0.0)
        while asked:
            first = min(asked, key=lambda i: (asked[i].round, i))
            group = [i for i in asked if _alike(asked[i], asked[first])]
            requests = [asked.pop(i) for i in group]
            began = time.perf_counter()
            replies = _answers(requests, apart)
            share = (time.perf_counter() - began) / len(group)
            for i, reply in zip(group, replies, strict=True):
                go_on(i, reply, share)
    return stopped


def _alike(a: Request, b: Request) -> bool:
    """Whether two trainings are of one kind, of the same clients in the same round, from states of one form."""
    return a is b or (
        a.round == b.round
        and a.cohort.names == b.cohort.names
        and a.cohort.train.x is b.cohort.train.x
        and a.cohort.train.starts == b.cohort.train.starts
        and (a.cohort.seed, a.cohort.rounds) == (b.cohort.seed, b.cohort.rounds)
        and kind(a.method, a.cohort.local) == kind(b.method, b.cohort.local)
        and _form(a.message) == _form(b.message)
        and _form(a.memory) == _form(b.memory)
    )


def _form(state: State) -> list[tuple[str, torch.Size]]:
    return [(name, tensor.shape[1:]) for name, tensor in state.items()]


def _answers(requests: list[Request], apart: set[type[Method]]) -> list[Reply]:
    method = type(requests[0].method)
    if len(requests) > 1 and method not in apart:
        try:
            return _stacked(requests)
        except (Apart, SeveralRates):
            apart.add(method)
    return [request.answer() for request in requests]


def _stacked(requests: list[Request]) -> list[Reply]:
    """One training for all, taken apart again."""
    first, count = requests[0], len(requests)
    clients = len(first.cohort)
    side_by_side = torch.arange(count * clients).view(count, clients).T.flatten()

    def joined(states: list[State]) -> State:
        return State.join(states).take(side_by_side)

    cohort = _cohort([r.cohort for r in requests])
    carried = [r.cohort.carried for r in requests]
    cohort.carried = joined([c for c in carried if c is not None]) if first.cohort.carried is not None else None
    message, memory = joined([r.message for r in requests]), joined([r.memory for r in requests])
    upload, memory = first.method.train(cohort, message, memory, first.round)
    for state in (upload, memory):
        if state.shared or any(t.ndim == 0 or len(t) != len(cohort) for _, t in state.items()):
            raise Apart
    replies = []
    for i, request in enumerate(requests):
        own = torch.arange(i, len(cohort), count)
        request.cohort.carried = None if cohort.carried is None else cohort.carried.take(own)
        request.cohort.loss_sum = None if cohort.loss_sum is None else cohort.loss_sum[own]
        request.cohort.loss_count = None if cohort.loss_count is None else cohort.loss_count[own]
        replies.append((upload.take(own), memory.take(own)))
    return replies


def _cohort(cohorts: list[Cohort]) -> Cohort:
    """Every client once for each run; the data are not copied."""
    first, rates = cohorts[0], tuple(c.local.lr for c in cohorts)
    stack = first.take([i for i in range(len(first)) for _ in cohorts])
    return replace(stack, rates=rates * len(first) if len(set(rates)) > 1 else None)
