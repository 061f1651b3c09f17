"""Where tests compute; small federations, watched runs, and one client trained the plain way."""

from __future__ import annotations

import copy
import importlib.util
import math
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedkin.base import streams
from fedkin.base.round import Round
from fedkin.base.state import Message, State
from fedkin.base.task import Task
from fedkin.data.federation import Client, Federation
from fedkin.engines.assembly import Assembly
from fedkin.engines.simulation import Listener, Simulation
from fedkin.engines.start import prepare
from fedkin.methods._problem import Problem
from fedkin.runs.config import merge
from fedkin.runs.folder import Writer
from fedkin.studies.run import Run
from fedkin.training.evaluation import Model, Predictor

ROOT = Path(__file__).resolve().parents[1]
"""The repository."""
SHARED = ROOT.parent / "shared" / "data"
"""Real data, where they lie beside it."""
DEVICE = torch.device(os.environ.get("DEVICE", "cpu"))
"""Where numerical tests compute: on a CPU, or with DEVICE=cuda on a GPU. Random numbers come from the CPU always."""
ON_CPU = DEVICE.type == "cpu"
CPU_BITS = {} if ON_CPU else {"precision": "float64"}
"""Settings of runs that are compared bit by bit on a CPU: on a GPU they agree to rounding, which has to be small."""

cpu_only = pytest.mark.skipif(not ON_CPU, reason="says something about CPUs alone")

SIZES = (13, 9, 6, 4)
"""Unequal, and in batches of four: a last batch of one, of one, of two, and none that is short."""

BASE: dict[str, Any] = {
    "rounds": 3,
    "precision": "float64",
    "device": DEVICE.type,
    "execution": "stacked",
    "model": {"name": "mlp", "settings": {"hidden": [5]}},
    "local": {"epochs": 2, "batch_size": 4, "lr": 0.02},
    "data": {"validation": 0.0},
}


def toy(
    sizes: Sequence[int] = SIZES, groups: Sequence[int] | None = None, *, tests: int = 40, classes: int = 3
) -> Federation:
    """Clients named a, b, c, ... whose data come from their names alone; each group has a labelling of its own."""
    members = []
    for i, n in enumerate(sizes):
        name, group = chr(ord("a") + i), 0 if groups is None else groups[i]
        x = torch.randn(n + tests, 4, generator=streams.generator("x", name), dtype=torch.float64)
        rule = torch.randn(4, classes, generator=streams.generator("rule", group), dtype=torch.float64)
        y = (x @ rule).argmax(1)
        members.append(Client(name, (x[:n], y[:n]), (x[n:], y[n:]), group=group if groups is not None else None))
    return Federation("toy", tuple(members), Task.classification((4,), classes))


def at(number: int, of: int = 10, seed: int | None = None) -> Round:
    """A round by its number."""
    return Round(number, of, seed)


def normed(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """A model with running statistics; no bias in front of them, whose gradient would be rounding alone."""
    return nn.Sequential(nn.Linear(*inputs, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, outputs))


class Watched(Simulation):
    """A run that keeps, for each round, what was sent, what was scored, and server and memory after it. It sees what
    the method is asked, and hears when a round has ended."""

    def __init__(self, assembly: Assembly, writer: Writer, listener: Listener | None = None) -> None:
        self.sent: dict[int, tuple[list[int], Message]] = {}
        self.scored: dict[int, tuple[list[int], dict[str, Model]]] = {}
        self.servers: dict[int, State] = {}
        self.memories: dict[int, State] = {}
        self.holds: dict[int, dict[int, State]] = {}
        self.lost: dict[int, set[int]] = defaultdict(set)
        self.warnings: list[str] = []
        self.before: tuple[State, State] = State(), State()
        """Server and memory before newcomers come."""
        super().__init__(replace(assembly, method=_overheard(assembly.method, self)), writer, listener)
        self.listener.on_warning = self.warnings.append
        told = self.server.on_round

        def on_round(line: Any) -> None:
            self._ended(line.round)
            told(line)

        self.server.on_round = on_round

    def _ended(self, round: int) -> None:
        self.servers[round], self.memories[round] = copied(self.server.state), copied(self.site.memory)
        if round <= self.config.rounds:
            if self.lines[round]["bytes_up"]:
                self.lost[round] |= {c for c in self.took_part(round) if self.server.attendance.loses(c, round)}
            held = self.server.held
            pending = self.site.before.items()
            self.holds[round] = {c: copied(m) for c, (at, m, _) in pending if held.get(c, at - 1) < at}

    @property
    def problem(self) -> Problem:
        return self.server.problem

    @property
    def method(self) -> Any:
        return self.a.method

    @property
    def memory(self) -> State:
        return self.site.memory

    @property
    def lines(self) -> dict[int, dict[str, Any]]:
        """The lines of rounds.jsonl by round."""
        return {line["round"]: line for line in Run(self.writer.path).rounds}

    def took_part(self, round: int) -> list[int]:
        return [self.problem.names.index(name) for name in self.lines[round]["participants"]]

    def acknowledged(self, round: int, name: str) -> Tensor:
        """What clients remember as far as the server knows: of the last upload that arrived."""
        rows = dict(self.memories[round].items())[name].clone()
        for client, memory in self.holds[round].items():
            rows[client] = dict(memory.items())[name][0]
        return rows

    def rows(self, round: int, name: str) -> Tensor:
        """(m, D) the rows of a model as they were scored."""
        rows = self.scored[round][1][name]
        assert isinstance(rows, Tensor)
        return rows


def _overheard(method: Any, run: Watched) -> Any:
    """The same method, whose downloads and models are kept."""

    class Overheard(type(method)):  # type: ignore[misc]
        def download(self, problem: Any, server: Any, clients: Tensor, round: Round) -> Message:
            message = super().download(problem, server, clients, round)
            run.sent[round.number] = (clients.tolist(), copied(message))
            return message

        def welcome(self, problem: Any, server: Any, round: Round) -> Any:
            run.before = copied(server), copied(run.memory)
            return super().welcome(problem, server, round)

        def update(self, problem: Any, server: Any, clients: Any, upload: Any, round: Round) -> Any:
            server = super().update(problem, server, clients, upload, round)
            if round.number < 1:  # of which no line tells
                run.servers[round.number], run.memories[round.number] = copied(server), copied(run.memory)
                run.holds[round.number] = {}
            return server

        def models(self, cohort: Any, message: Any, memory: Any, round: Round) -> dict[str, Model]:
            models = super().models(cohort, message, memory, round)
            clients = [run.a.problem.names.index(name) for name in cohort.names]
            before, parts = run.scored.get(round.number, ([], {}))
            if not set(clients) & set(before):
                joined = {n: _below(parts[n], model) if n in parts else model for n, model in models.items()}
                run.scored[round.number] = (before + clients, joined)
            return models

    Overheard.__name__, Overheard.__qualname__ = type(method).__name__, type(method).__qualname__
    Overheard.__module__ = type(method).__module__
    return Overheard(**dict(method))


def _below(model: Model, other: Model) -> Model:
    """The models of some clients, and below them those of others."""
    if isinstance(model, Predictor) and isinstance(other, Predictor):
        return Predictor(model.function, State.join([model.rows, other.rows]))
    assert isinstance(model, Tensor) and isinstance(other, Tensor)
    return torch.cat([model, other])


def copied(state: State) -> State:
    return state.replace(**{name: tensor.clone() for name, tensor in state.items()})


def ready(federation: Federation | None = None, *, model: Any = None, loss: Any = None, **settings: Any) -> Assembly:
    """An assembly of the toy federation unless told otherwise; settings are laid over BASE.

    `model`: a factory, or the table of settings.
    """
    federation = toy() if federation is None else federation
    table = {key: value for key, value in BASE.items() if key != "model" or model is None}
    if isinstance(model, dict):
        table["model"], model = model, None
    return prepare(merge(table, settings), federation=federation, model=model, loss=loss)


def watched(folder: Path, federation: Federation | None = None, **settings: Any) -> Watched:
    """A run that has not started yet, in a new folder."""
    assembly = ready(federation, **settings)
    path = folder / f"run-{len(list(folder.iterdir()))}"
    return Watched(assembly, Writer.create(path, assembly.config))


def simulate(folder: Path, federation: Federation | None = None, **settings: Any) -> Watched:
    """A run from beginning to end."""
    run = watched(folder, federation, **settings)
    run.run()
    return run


# ---- one client, the plain way ----


def module_at(assembly: Assembly, row: Tensor) -> nn.Module:
    """A module of its own with these parameters (for models without buffers)."""
    module = copy.deepcopy(assembly.execution.training)
    vector_to_parameters(row.clone(), module.parameters())
    return module


def vector_of(module: nn.Module) -> Tensor:
    return parameters_to_vector(module.parameters()).detach().clone()


def batches(assembly: Assembly, client: int, round: int, stream: str = "train") -> list[tuple[Tensor, Tensor]]:
    """One client's mini-batches of a round; that these are right is the business of the tests of cohorts."""
    alone = assembly.cohort.take([client])
    return [(batch.x[0], batch.y[0]) for batch in alone.batches(at(round), stream=stream)]


def trained(
    assembly: Assembly,
    client: int,
    row: Tensor,
    round: int,
    *,
    penalty: Callable[[Tensor], Tensor] | None = None,
    near: tuple[Tensor, float] | None = None,
    stream: str = "train",
    passes: int = 1,
) -> Tensor:
    """Local training of one client with torch.optim and autograd on the loss plus `penalty(w)`.

    near: an anchor u and beta; each step is followed by w <- argmin ||x - w||^2 / (2 lr) + ||x - u||^2 / (2 beta).
    """
    module, local = module_at(assembly, row), assembly.config.local
    kind = torch.optim.Adam if local.optimiser == "adam" else torch.optim.SGD
    optimiser = kind(module.parameters(), lr=local.lr)
    for _ in range(passes):
        for x, y in batches(assembly, client, round, stream):
            loss = nn.functional.cross_entropy(module(x), y)
            if penalty is not None:
                loss = loss + penalty(parameters_to_vector(module.parameters()))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if near is not None:
                (u, beta), lr = near, local.lr
                w = (vector_of(module) / lr + u / beta) / (1 / lr + 1 / beta)
                vector_to_parameters(w, module.parameters())
    return vector_of(module)


def gradient(assembly: Assembly, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the mean loss at a row, by autograd."""
    module = module_at(assembly, row)
    nn.functional.cross_entropy(module(x.to(row.device)), y.to(row.device)).backward()
    return torch.cat([p.grad.reshape(-1) for p in module.parameters()])  # type: ignore[union-attr]


def accuracy(assembly: Assembly, client: int, row: Tensor) -> float:
    """A client's share of test samples that a row gets right."""
    x, y = (part.to(row.device) for part in assembly.federation.clients[client].test)
    with torch.no_grad():
        right = module_at(assembly, row).eval()(x).argmax(1) == y
    return int(right.sum()) / len(right)  # a GPU's mean multiplies by the reciprocal


def close(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> bool:
    """Equal to a tolerance, elementwise, relative to the larger of one and the number; wherever the two are kept."""
    b = b.to(a.device)
    return a.shape == b.shape and bool(((a - b).abs() <= tolerance * b.abs().clamp(min=1)).all())


# ---- the same bits, where there can be ----


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bit by bit on a CPU. A GPU's libraries sum in another order where there are more rows: equal to rounding,
    relative to the length of the whole."""
    if ON_CPU or not a.is_floating_point():
        return torch.equal(a, b)
    a, b = a.cpu(), b.cpu()
    rounding = 1e-9 if a.dtype == torch.float64 else 1e-4
    return a.shape == b.shape and a.dtype == b.dtype and bool((a - b).norm() <= rounding * b.norm())


def same_record(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Two lines of rounds.jsonl, but for what they cost: every number equal, and on a GPU to rounding."""
    return _same_values(*({key: value for key, value in line.items() if key not in COSTS} for line in (a, b)))


COSTS = ("seconds", "peak_bytes")


def _same_values(a: Any, b: Any) -> bool:
    if ON_CPU or type(a) is not type(b):
        return bool(a == b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same_values(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same_values, a, b))
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) if isinstance(a, float) else bool(a == b)


# ---- the benchmarks ----


def script(name: str) -> ModuleType:
    """A file of benchmarks/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


# ---- the command ----


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    def sentence(self) -> str:
        """The one line that a mistake is answered with."""
        assert self.code == 2, self
        assert self.out == ""
        assert self.err.startswith("fedkin: ")
        assert self.err.count("\n") == 1
        return self.err
