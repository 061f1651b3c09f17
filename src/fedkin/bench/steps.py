"""One optimiser step for all clients: in plain torch one after another, and in fedkin's ways."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..base import machine
from ..base.round import Round
from ..base.settings import ConfigError
from ..base.task import Task
from ..base.weights import Layout
from ..data.federation import Client, Federation
from ..engines import capacity
from ..engines.assembly import Assembly
from ..engines.start import prepare
from ..training import models
from ..training.cohort import Cohort
from ..training.execution import OneByOne, Stacked
from .opponents import Fairest, Plain, learn
from .timing import (
    Arithmetic,
    Peak,
    Plan,
    Row,
    bytes_per_second,
    flop_per_second,
    forget,
    interleaved,
    plain_torch,
    set_for_fedkin,
    set_for_torch,
    setting,
    settle,
)

LR = 1e-3
WAYS = {
    "plain": "plain torch",
    "fairest": "fairest torch",
    "one-by-one": "one by one",
    "vmap": "stacked by vmap",
    "default": "fedkin's choice",
}
MOVED = 10
"""Numbers that a step moves at least for each weight: it is read forward and backward, its gradient is written, and
Adam reads it, the gradient and two moments and writes all but the gradient."""


@dataclass(frozen=True)
class Workload:
    """Clients that all have the same number of batches.

    `steps` are timed in one call of a stacked way; ways that go one by one are timed on the first `few` clients, with
    `few_steps` each, and counted up: their times are the sum of their clients'.
    """

    name: str
    model: str
    inputs: tuple[int, ...]
    classes: int
    clients: int
    batch: int
    steps: int = 10
    few: int = 1 << 30
    few_steps: int = 2
    ways: tuple[str, ...] = tuple(WAYS)
    arithmetics: tuple[Arithmetic, ...] = ("float32", "tf32", "bf16")
    settings: tuple[tuple[str, Any], ...] = ()

    def module(self) -> nn.Module:
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            return models.build(self.model, self.inputs, self.classes, dict(self.settings))

    def federation(self) -> Federation:
        """Random samples with random labels: `steps` batches for each client."""
        source = torch.Generator().manual_seed(0)
        count = self.steps * self.batch
        members = []
        for i in range(self.clients):
            x = torch.randn(count, *self.inputs, generator=source)
            y = torch.randint(self.classes, (count,), generator=source)
            members.append(Client(f"client-{i:04d}", (x, y), (x[:1], y[:1])))
        return Federation("random", tuple(members), Task.classification(self.inputs, self.classes))


def mlp(clients: int, batch: int = 32, hidden: int = 64, **more: Any) -> Workload:
    width = (("hidden", (hidden,)),)
    return Workload("digits MLP", "mlp", (64,), 10, clients, batch, settings=width, **more)


def cnn(clients: int, batch: int = 100, **more: Any) -> Workload:
    return Workload("papers' CNN", "cnn", (1, 28, 28), 62, clients, batch, **more)


def resnet(stem: str, clients: int, batch: int = 100, **more: Any) -> Workload:
    name = {"cifar": "ResNet-18, CIFAR stem", "imagenet": "ResNet-18, ImageNet stem"}[stem]
    return Workload(name, "resnet18", (3, 32, 32), 100, clients, batch, settings=(("stem", stem),), **more)


# ---- the ways ----


class Unavailable(Exception):
    """A way that cannot be measured here; the sentence says why."""


@dataclass(frozen=True)
class Way:
    """A call, and how many steps of all clients it is worth."""

    call: Callable[[], object]
    steps: float
    how: str
    rows: Callable[[], Tensor]
    """(few, D) what the last call made of the first clients' weights."""
    told: str
    """What was set for it, so that it computes in the precision that is measured."""


class Ways:
    """The ways to train one workload in one precision. All start from the same weights and see the same batches."""

    def __init__(self, workload: Workload, device: torch.device, name: Arithmetic) -> None:
        self.workload, self.device, self.name = workload, device, name
        self.module = workload.module()
        self.ready = self._prepared()
        self.few = min(workload.few, workload.clients)
        self.few_steps = min(workload.few_steps, workload.steps)

    def _prepared(self) -> Assembly:
        w = self.workload
        settings = {
            "method": "separate",
            "device": self.device.type,
            "precision": setting(self.name, self.device),
            "data": {"validation": 0.0},
            "local": {"steps": w.steps, "batch_size": w.batch, "optimiser": "adam", "lr": LR},
        }
        try:
            return prepare(settings, federation=w.federation(), model=lambda: copy.deepcopy(self.module))
        except ConfigError as error:
            raise Unavailable(str(error).rstrip(".")) from error

    def made(self, name: str) -> Way:
        if name in ("plain", "fairest"):
            return self._opponent(Plain if name == "plain" else Fairest)
        execution, how = self.ready.execution, self.ready.reason
        if name != "default":
            kind, how = (OneByOne, "a module at a time") if name == "one-by-one" else (Stacked, "vmap")
            execution = kind(self.module, execution.layout, execution.loss, self.device)
            execution.products = self.ready.execution.products
        if execution.name == "one-by-one":
            return self._ours(execution, self.few, self.few_steps, how)
        return self._ours(execution, self.workload.clients, self.workload.steps, how)

    def _opponent(self, kind: type[Plain] | type[Fairest]) -> Way:
        cohort = self._cohort(self.few, self.few_steps)
        batches = list(islice(cohort.batches(Round(1, 1)), self.few_steps))
        with plain_torch(self.name):  # what is captured keeps it
            trained = kind(self.module, self.few, batches, LR, self.name)

        def call() -> None:
            with plain_torch(self.name):
                trained()

        def rows() -> Tensor:
            return torch.stack([cohort.layout.row(module) for module in trained.modules])

        steps = self.few_steps * self.few / self.workload.clients
        return Way(call, steps, trained.how, rows, set_for_torch(self.name))

    def _ours(self, execution: OneByOne | Stacked, clients: int, steps: int, how: str) -> Way:
        """`Cohort.fit`, as methods call it, with the threads that the engine would take."""
        cohort = replace(self._cohort(clients, steps), execution=execution)
        threads = capacity.threads(self.ready)[0]
        start = self.ready.problem.initial.expand(clients, -1)
        last = [start]

        def call() -> None:
            with machine.threads(threads):
                last[0] = cohort.fit(start, Round(1, 1))

        told = set_for_fedkin(self.name, self.device)
        return Way(call, steps * clients / self.workload.clients, how, lambda: last[0][: self.few], told)

    def _cohort(self, clients: int, steps: int) -> Cohort:
        cohort = self.ready.cohort.take(range(clients))
        cohort.local = cohort.local.model_copy(update={"steps": steps})
        return cohort


# ---- measuring ----


def compared(workload: Workload, plan: Plan, name: Arithmetic) -> list[Row]:
    """A row for each way, with its ratio to the plain one and to the fairest, and its share of the lower bound."""
    about = {"workload": workload.name, "clients": workload.clients, "batch": workload.batch, "precision": name}
    rows: dict[str, Row] = {}
    made: dict[str, Way] = {}
    try:
        ways = Ways(workload, plan.device, name)
    except Unavailable as error:
        return [{**about, "way": "default", "skipped": str(error)}]
    for each in workload.ways:
        plan.tell(f"{workload.name}, {workload.clients} clients, {name}: {WAYS[each]}")
        way, row = _built(ways, each)
        rows[each] = {**about, "way": each, **row}
        if way is not None:
            made[each] = way
        forget(plan.device)
    timings = interleaved({each: way.call for each, way in made.items()}, plan)
    bound = lower_bound(ways, plan)
    for each, timing in timings.items():
        first = rows[each]["first_seconds"]  # with what was built, compiled and captured
        rows[each] |= {**timing.row(made[each].steps), "first_seconds": first}
        rows[each] |= _told(rows[each], workload, bound)
    _compare(rows)
    del ways, made
    forget(plan.device)
    return list(rows.values())


def _built(ways: Ways, name: str) -> tuple[Way | None, Row]:
    """A way after its first call, with the seconds and, on a GPU, the memory that took; or why there is none."""
    peak, started = Peak(ways.device), time.perf_counter()
    try:
        way = ways.made(name)
        way.call()
        settle(ways.device)
    except Unavailable as error:
        return None, {"skipped": str(error)}
    except torch.OutOfMemoryError:
        return None, {"skipped": "out of memory"}
    except Exception as error:  # one way that breaks must not cost what else a dear hour on a GPU would show
        return None, {"skipped": f"failed ({type(error).__name__}: {str(error).partition(chr(10))[0]})"}
    taken = {"peak_bytes": peak.bytes} if ways.device.type == "cuda" else {}
    return way, {"how": way.how, "set": way.told, "first_seconds": time.perf_counter() - started, **taken}


def _told(row: Row, workload: Workload, bound: float) -> Row:
    return {
        "ms_per_client": row["ms"] / workload.clients,
        "images_per_second": 1e3 * workload.clients * workload.batch / row["ms"],
        "bound_ms": 1e3 * bound,
        "share_of_bound": 1e3 * bound / row["ms"],
    }


def _compare(rows: dict[str, Row]) -> None:
    """How many times as fast as the plain way, and as the fairest opponent."""
    for opponent in ("plain", "fairest"):
        slow = rows.get(opponent, {}).get("ms")
        for row in rows.values():
            if slow is not None and "ms" in row:
                row[f"times_{opponent}"] = slow / row["ms"]


def lower_bound(ways: Ways, plan: Plan) -> float:
    """Seconds that a step of all clients needs at least: its arithmetic at the speed of the fastest large product, or
    the numbers it has to move at the speed of the fastest large copy, whichever takes longer."""
    w = ways.workload
    flop = w.clients * flop_of_a_step(ways.module, w)
    moved = 4 * w.clients * MOVED * Layout.of(ways.module).parameters
    speed = flop_per_second(plan.device, plan.size, ways.name)
    return max(flop / speed, moved / bytes_per_second(plan.device, plan.size))


def flop_of_a_step(module: nn.Module, workload: Workload) -> int:
    """Of one client: forward and backward, as torch counts them. The same on every device; counted on the CPU."""
    module = copy.deepcopy(module).train()
    x, y = torch.zeros(2, *workload.inputs), torch.zeros(2, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        learn(module, torch.optim.SGD(module.parameters()), x, y, "float32")
    return int(counter.get_total_flops()) * workload.batch // 2


def measured(workloads: Iterable[Workload], plan: Plan) -> list[Row]:
    rows: list[Row] = []
    for workload in workloads:
        for name in plan.arithmetics:
            if name not in workload.arithmetics:
                continue
            try:
                rows += compared(workload, plan, name)
            except RuntimeError as error:  # of a GPU that does nothing more; what was measured before stays
                why = f"failed ({str(error).partition(chr(10))[0]})"
                rows.append({"workload": workload.name, "clients": workload.clients, "precision": name, "skipped": why})
    return rows


# ---- sections ----


def step(plan: Plan) -> list[Row]:
    """One optimiser step for all clients: one after another in plain torch, and in fedkin's ways."""
    return measured(_of_step(plan), plan)


def _of_step(plan: Plan) -> Sequence[Workload]:
    if plan.size == "tiny":
        return [mlp(3, 4, 8, steps=2), cnn(2, 2, steps=1)]
    if not plan.cuda:
        images = cnn(10, steps=5, few_steps=5) if plan.size == "full" else cnn(4, 32, steps=2)
        return [mlp(100, steps=20, few_steps=20), images]
    if plan.size == "short":
        return [mlp(100, steps=20), cnn(62, steps=20)]
    half: tuple[Arithmetic, ...] = ("bf16",)
    ways = tuple(way for way in WAYS if way != "vmap")  # which nobody would take for these
    deep = [resnet(stem, 100, steps=5, few=4, ways=ways, arithmetics=half) for stem in ("cifar", "imagenet")]
    return [cnn(62, steps=20, arithmetics=("tf32", "bf16")), *deep, mlp(100, steps=20, arithmetics=("float32",))]


def growth(plan: Plan) -> list[Row]:
    """A step's time over the number of clients, over the width of the model, and a pass over the number of samples."""
    rows: list[Row] = []
    ways = ("plain", "default")
    names: tuple[Arithmetic, ...] = ("float32",) if not plan.cuda else ("tf32",)

    def add(along: str, value: int, workload: Workload) -> None:
        for row in measured([replace(workload, ways=ways, arithmetics=names)], plan):
            rows.append({"along": along, "value": value, **row})

    for clients in plan.sized((1, 2), (10, 100, 1000), (10, 30, 100, 300, 1000)):
        add("clients", clients, mlp(clients, 4 if plan.size == "tiny" else 32, steps=5, few=100))
    if plan.cuda and plan.size == "full":
        for clients in (10, 30, 100, 300):
            add("clients", clients, cnn(clients, steps=5, few=30))
    for hidden in plan.sized((4,), (64, 512), (16, 64, 256, 1024)):
        workload = mlp(plan.sized(2, 100, 100), plan.sized(4, 32, 32), hidden, steps=5, few=20)
        add("parameters", Layout.of(workload.module()).parameters, workload)
    for batches in plan.sized((1,), (), (1, 2, 4, 8, 16, 32)):
        workload = mlp(plan.sized(2, 100, 100), plan.sized(4, 32, 32), steps=batches, few=20, few_steps=batches)
        for row in measured([replace(workload, ways=ways, arithmetics=names)], plan):
            whole: Row = {key: batches * value for key, value in row.items() if key.split("_")[0] == "ms"}
            rows.append({"along": "samples", "value": batches * workload.batch, **row, **whole})
    return rows
