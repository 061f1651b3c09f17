"""Runs of a method on a small federation in float64 on a CPU, in the ways in which it may be run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import methods
from ..base import streams
from ..base.state import Memory, Server
from ..base.task import Task
from ..base.wording import first_line
from ..data.federation import Client, Federation
from ..engines import lockstep
from ..engines.assembly import Assembly, assemble
from ..engines.contract import MethodError
from ..engines.simulation import Interrupted, Listener, Simulation
from ..engines.start import configured
from ..engines.stock import Objects, Stock, stocked
from ..methods._method import Method
from ..runs.checkpoint import Checkpoint
from ..runs.config import merge
from ..runs.folder import Writer, read_lines
from .post import Post, Side, by_post
from .watching import TOLERANCE, Watch, differences, watched

SIZES = (13, 12, 9, 9, 7, 6, 5, 4)
"""Unequal, two alike, and in batches of four with and without a short one."""
ROUNDS = 4
BASE: dict[str, Any] = {
    "rounds": ROUNDS,
    "precision": "float64",
    "device": "cpu",
    "execution": "stacked",
    "chunk": len(SIZES),
    "threads": 1,
    "model": {"name": "mlp", "settings": {"hidden": [5]}},
    "local": {"epochs": 1, "batch_size": 4, "lr": 0.02},
    "data": {"validation": 0.0},
}
TROUBLED = {"sample": 0.7, "dropped": 0.2, "lost": 0.4, "novel": 0.25}


class Failed(Exception):
    """A run did not come to its end; the sentence says where. `inside`: in a function of the method itself."""

    def __init__(self, sentence: str, inside: bool = True) -> None:
        super().__init__(sentence)
        self.inside = inside


def federation(sizes: Sequence[int] = SIZES) -> Federation:
    """Clients a, b, c, ... of two groups, each of which has a labelling of its own. A method that looks at a graph has
    one drawn by groups."""
    members = []
    for i, n in enumerate(sizes):
        name, group = chr(ord("a") + i), i % 2
        x = torch.randn(n + 6, 4, generator=streams.generator("x", name), dtype=torch.float64)
        rule = torch.randn(4, 3, generator=streams.generator("rule", group), dtype=torch.float64)
        y = (x @ rule).argmax(1)
        members.append(Client(name, (x[:n], y[:n]), (x[n:], y[n:]), group=group))
    return Federation("small", tuple(members), Task.classification((4,), 3))


@dataclass
class Seen:
    """What a run came to."""

    names: tuple[str, ...]
    known: int
    watch: Watch
    server: Server
    memory: dict[str, Memory]
    """What each client remembers."""
    diverged: tuple[tuple[int, str], ...] = ()
    """Whose training came to no sound end, and in which round."""

    def unlike(self, other: Seen, tolerance: float = TOLERANCE) -> str | None:
        """The first thing in which two runs differ, in words; of rounds that both were watched in."""
        theirs = other.watch.rows
        for (round, client, model), rows in sorted(self.watch.rows.items(), key=lambda each: each[0][0]):
            if (round, client, model) in theirs:
                for _, far in differences(rows, theirs[round, client, model], tolerance):
                    return f"the model {model!r} of client {client!r} in round {round} differs ({far})"
        for client, memory in self.memory.items():
            for name, far in differences(memory, other.memory[client], tolerance):
                return f"what client {client!r} remembers as {name!r} differs in the end ({far})"
        for name, far in differences(self.server, other.server, tolerance):
            return f"the server's {name!r} differs in the end ({far})"
        return None


@dataclass
class Trials:
    """A method, and what it came to in runs that several checks look at."""

    name: str
    settings: dict[str, Any]
    others: Mapping[str, Any]
    """Settings of a run, laid over those of the small federation."""
    folder: Path
    told: dict[str, str] = field(default_factory=dict)
    """What strict runs tell."""
    stocks: dict[str, Stock] = field(default_factory=dict)
    """Data and models of runs that have them alike."""
    known: dict[str, Seen | Failed] = field(default_factory=dict)
    participation: dict[str, float] = field(default_factory=lambda: dict(TROUBLED))
    """Of the runs that are compared."""

    @property
    def kind(self) -> type[Method]:
        return methods.find(self.name)

    def prepared(self, watch: Watch, **settings: Any) -> Assembly:
        clients = federation()
        table = merge(merge(BASE, self.others), {"method": self.name, "settings": self.settings})
        config = configured(merge(table, settings), federation=clients)
        key = repr((config.execution, config.seeds, config.participation.novel))
        if key not in self.stocks:
            self.stocks[key] = stocked(config, Objects(clients))
        a = assemble(config, stock=self.stocks[key])
        return replace(a, method=watched(a.method, watch))

    def new(self) -> Path:
        path = self.folder / str(len(list(self.folder.iterdir())))
        path.mkdir()
        return path

    @contextmanager
    def going(self, how: str, watch: Watch, seed: int = 0) -> Iterator[None]:
        """What goes wrong inside is told in a sentence; `seed`: of random numbers that are nobody's."""
        try:
            with _global_seed(seed):
                yield
        except Failed:
            raise
        except MethodError as error:
            raise Failed(f"{how}: {first_line(error)}") from error
        except Exception as error:
            said = first_line(error) or "it says no more"
            where = watch.asked if watch.asking_now else f"what follows {watch.asked}"
            sentence = f"{how}: {where} fails with {type(error).__name__}: {said.rstrip('.')}."
            raise Failed(sentence, watch.asking_now) from error

    # ---- ways to run ----

    def reference(self) -> Seen:
        """The run that others are compared with."""
        return self.once("reference", lambda: self.run("With some clients away", participation=self.participation))

    def once(self, key: str, run: Callable[[], Seen]) -> Seen:
        if key not in self.known:
            try:
                self.known[key] = run()
            except Failed as failed:
                self.known[key] = failed
        found = self.known[key]
        if isinstance(found, Failed):
            raise found
        return found

    def run(
        self,
        how: str,
        *,
        strict: bool = False,
        global_seed: int = 0,
        **settings: Any,
    ) -> Seen:
        """A simulation from beginning to end."""
        watch = Watch(strict, self.told)
        with self.going(how, watch, global_seed):
            simulation = self._simulation(watch, **settings)
            simulation.run()
        return seen(simulation, watch)

    def _simulation(self, watch: Watch, **settings: Any) -> Simulation:
        a = self.prepared(watch, **settings)
        simulation = Simulation(a, Writer.create(self.new() / "run", a.config))
        watch.remembered = lambda: simulation.site.memory
        return simulation

    def resumed(self, how: str, after: int) -> Seen:
        """Stopped after a round, and taken up again from its checkpoint by a method that was made anew."""
        first, watch = Watch(), Watch()
        with self.going(how, first):
            simulation = self._simulation(first, participation=self.participation)
            simulation.listener = Listener(stop=lambda: simulation.server.last >= after)
            with suppress(Interrupted):
                simulation.run()
        with self.going(how, watch):
            a = self.prepared(watch, participation=self.participation)
            writer = simulation.writer
            checkpoint = Checkpoint.load(writer.checkpoint, a.config)
            writer.cut_back(checkpoint.round)
            again = Simulation(a, writer)
            watch.remembered = lambda: again.site.memory
            again.run(checkpoint)
        return seen(again, watch)

    def posted(self, how: str, sites: Callable[[Assembly], list[list[int]]], side: Side | None = None) -> Seen:
        """By letters; with `side`, that one comes up anew after the second round."""
        watch = Watch()
        with self.going(how, watch):
            a = self.prepared(watch, participation=self.participation)
            again = None if side is None else 2
            post = by_post(
                *(a, self.new(), sites(a)),
                again_after=again,
                side=side or "both",
                apart=lambda: self.prepared(watch, participation=self.participation),
            )
        return _seen_by_post(post, watch)

    def together(self, how: str, seeds: Sequence[int]) -> list[Seen]:
        """Runs of several seeds in one stack."""
        watches = [Watch() for _ in seeds]
        with self.going(how, watches[0]):
            runs = [self._simulation(w, seed=seed) for w, seed in zip(watches, seeds, strict=True)]
            stopped = lockstep.run_together(runs, [None] * len(runs))
            for error in stopped.values():
                raise error
        return [seen(run, watch) for run, watch in zip(runs, watches, strict=True)]


def seen(run: Simulation, watch: Watch) -> Seen:
    problem = run.server.problem
    memory = {name: run.site.memory.take(slice(i, i + 1)) for i, name in enumerate(problem.names)}
    lines = read_lines(run.writer.path / "rounds.jsonl")
    diverged = tuple((line.round, client) for line in lines for client in line.diverged)
    return Seen(problem.names, problem.known, watch, run.server.state, memory, diverged)


def _seen_by_post(post: Post, watch: Watch) -> Seen:
    problem, memory = post.server.problem, {}
    for site in post.sites:
        for i, client in enumerate(site.clients):
            memory[problem.names[client]] = site.memory.take(slice(i, i + 1))
    return Seen(problem.names, problem.known, watch, post.server.state, memory)


@contextmanager
def _global_seed(seed: int) -> Iterator[None]:
    """The random numbers that belong to nobody start here, and go on afterwards as if nothing had been."""
    kept = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        yield
    finally:
        torch.set_rng_state(kept[0])
        np.random.set_state(kept[1])  # noqa: NPY002
        random.setstate(kept[2])
