"""What a run may take of the machine: how many clients train at a time, and on how many CPU threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from ..base import machine, mapped_rows, spinning
from ..base.state import State, Upload
from ..errors import FedkinError
from ..methods._problem import Problem
from ..runs.config import Config
from ..training.execution import CONVOLUTIONS
from .assembly import Assembly
from .requests import RanOut, within_memory

SHARE = {"cpu": 0.5, "cuda": 0.8}
"""Of the free memory, what training may take: a machine without memory ends processes, a GPU only says so."""
UNSEEN = {"cpu": 1.65, "cuda": 1.0}
"""What training takes for each byte that is seen. On a CPU what operators take for themselves is not, nor what the
allocator cannot give back: with a CNN and a ResNet-18, stacked and one by one, the process grew by 1.2 to 1.65."""
ROWS = 12
"""Rows of weights a client, where what it needs could not be seen."""
ENOUGH = 1 << 29
"""Bytes of training where clients run one by one: more of them at a time would bring nothing."""
PLENTY = 1 / 8
"""Of the free memory: what needs less, reckoned high, is not worth a look."""
MOST = 1024
"""Numbers that a model makes of each of its inputs while it trains, reckoned high: a ResNet-18 makes some 700."""


class OutOfMemory(FedkinError):
    """Memory ran out, with one client at a time; the sentence says what to do."""


@dataclass(frozen=True)
class Room:
    """How many clients train at a time, and why, in words."""

    clients: int
    reason: str
    short: bool = False
    """Whether it is memory that sets the number."""

    def first(self, clients: list[int]) -> list[int]:
        """Those to train first: no more than there is room for, in chunks as equal as can be."""
        chunks = -(-len(clients) // self.clients)
        return clients[: -(-len(clients) // chunks)]


def for_all(compute: Callable[[], State], config: Config, problem: Problem, shelf: mapped_rows.Shelf | None) -> State:
    """What is made of all clients' rows, where they are kept; or a sentence, where memory runs out for it."""
    with shelf or nullcontext():
        state = within_memory(compute)
    if isinstance(state, RanOut):
        device = problem.initial.device.type
        on_disk = "weights = 'disk', " if device == "cpu" and shelf is None else ""
        raise OutOfMemory(
            f"Memory ran out for the weights of all {len(problem)} clients ({state.said}). Take {on_disk}"
            f"fewer clients, a smaller model, a precision that needs less (now {config.precision!r}), or a "
            f"device with more memory (now {device!r})."
        )
    return state


class Capacity:
    """How many clients of a site train at a time: decided before the first training, fewer where memory runs out."""

    def __init__(self, assembly: Assembly, tell: Callable[[str], None]) -> None:
        self.a, self.tell = assembly, tell
        self.room = Room(assembly.config.chunk, "as configured") if assembly.config.chunk else None
        """None until the first training shows what one takes."""
        self.beside = 1
        """Runs that share the memory of this process."""

    def next(self, clients: list[int], done: int, one_step: Callable[[list[int]], Upload]) -> list[int]:
        """The clients to train next, of those that are left. `one_step` trains some for a step: what does it take?"""
        left = clients[done:]
        if self.room is None and len(clients) > 1:
            self.room = self._decided(clients, one_step)
            if self.room.short and self.room.clients < len(clients):
                self.tell(f"{self.room.clients} of {len(clients)} clients train at a time: {self.room.reason}.")
        return left if self.room is None else self.room.first(left)

    def _decided(self, clients: list[int], one_step: Callable[[list[int]], Upload]) -> Room:
        if plenty(self.a, len(self.a.problem) * self.beside):  # all are scored, whoever trains
            return Room(len(self.a.problem), "memory is plenty")
        return measured(self.a, len(clients), lambda count: one_step(clients[:count]), self.beside)

    def fewer(self, clients: list[int], said: str) -> None:
        """Half as many from here on; nothing has changed, so these train again from where they stood."""
        a, config = self.a, self.a.config
        a.execution.forget()
        machine.tidy(a.device)
        if len(clients) == 1:
            raise OutOfMemory(
                f"Memory ran out while client {a.problem.names[clients[0]]!r} was alone in it ({said}). Take a smaller "
                f"local.batch_size (now {config.local.batch_size}), a smaller model, a precision that needs less (now "
                f"{config.precision!r}), or a device with more memory (now {a.device.type!r})."
            )
        self.room = half_of(len(clients))
        self.tell(f"Memory ran out with {len(clients)} clients at a time; from here on there are {self.room.clients}.")


def half_of(tried: int) -> Room:
    """Half as many as there was no memory for."""
    return Room(max(1, tried // 2), f"memory ran out with {tried}", True)


def plenty(assembly: Assembly, clients: int) -> bool:
    """Whether so many clients can train at once beyond doubt."""
    cohort, row = assembly.cohort, assembly.problem.layout.size * assembly.problem.initial.element_size()
    samples = min(max(cohort.samples), cohort.local.batch_size)
    inputs = samples * cohort.train.x[:1].numel() * assembly.problem.initial.element_size()
    return clients * (2 * ROWS * row + MOST * inputs) < PLENTY * machine.free_bytes(assembly.device)


def measured(assembly: Assembly, clients: int, train: Callable[[int], Upload], beside: int = 1) -> Room:
    """As many of these clients as memory has room for, by what one and two of them are seen to take.

    `train(k)` trains the first k clients for one step, to see what that takes, and returns what they would send: of
    all clients that is kept until the end of the round. What a server takes meanwhile is not: a hypernetwork learns
    after clients have trained. `beside`: runs that share the memory.
    """
    device = assembly.device
    seen: list[float] = []
    try:
        for count in (1, 2):
            with machine.measured(device) as used:
                upload = train(count)
            seen.append(used() * UNSEEN[device.type])
    except Exception as error:
        machine.tidy(device)
        if machine.ran_out(error):
            return Room(1, f"memory ran out with {'two' if seen else 'one'}", True)
        return reckoned(assembly)  # what is wrong will show when clients train
    row = assembly.problem.layout.size * assembly.problem.initial.element_size()
    each = max(seen[1] - seen[0], 2.0 * row)
    common = max(0.0, seen[0] - each)  # what is needed once, however many there are
    free = machine.free_bytes(device) / beside
    sent = 0 if assembly.config.weights == "disk" else clients * upload.bytes_per_client()
    left = SHARE[device.type] * (free - sent - common)
    if assembly.execution.name == "one-by-one" and left > ENOUGH:
        return Room(max(1, int(ENOUGH // each)), f"one takes {_size(each)}, and more at a time would bring nothing")
    words = f"one takes {_size(each)}, and of {_size(free)} that are free {_size(max(0.0, left))} are for training"
    return Room(max(1, int(left // each)), words, True)


def reckoned(assembly: Assembly) -> Room:
    """By rows of weights alone."""
    row = ROWS * assembly.problem.layout.size * assembly.problem.initial.element_size()
    free = machine.free_bytes(assembly.device)
    words = f"{ROWS} rows of weights for one take {_size(row)}, and {_size(free)} are free"
    return Room(max(1, int(SHARE[assembly.device.type] * free // row)), words, True)


def _size(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


# ---- threads ----

SMALL = 1 << 21
"""Weights of all clients together up to which runs are better off side by side, and threads that spin do harm."""
EACH = 1 << 17
"""Weights of all clients together that keep one CPU thread busy (measured: the digits' MLP, from 12 to 200 clients)."""


def threads(assembly: Assembly) -> tuple[int, str]:
    """CPU threads, and why, in words. By this rule, where the configuration leaves it open:

    1. Models with convolutions: as many as torch would take. A CNN is 1.8 times as fast with two.
    2. Others: as many as torch would take, but no more than one for every EACH weights of all clients together. On two
       idle cores two make a step of 100 of the digits' MLP 1.2 to 1.5 times as fast, one of 25 not.
    3. Where torch was loaded before fedkin, its threads may spin while they wait (see `spinning`), and others that
       have fewer than SMALL weights take one: with both cores busy, two can be many times as slow.

    Results depend on the number in their last digits: a library may add up in another order. So a resumed run keeps
    to the number it had, and runs side by side have the one that each has alone.
    """
    if assembly.config.threads:
        return assembly.config.threads, "as configured"
    numbers, available = len(assembly.problem) * assembly.problem.layout.size, torch.get_num_threads()
    if any(isinstance(layer, CONVOLUTIONS) for layer in assembly.execution.training.modules()):
        return available, "all that torch has"
    if numbers < 2 * EACH:
        return 1, "small models are faster on one than on several that wait for each other"
    if numbers < SMALL and not spinning.BOUNDED:
        return 1, "torch was loaded before fedkin, and its threads would be in each other's way on a busy machine"
    if numbers // EACH < available:
        return numbers // EACH, f"one for every {EACH:,} weights of all clients together"
    return available, "all that torch has"
