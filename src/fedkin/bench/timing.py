"""How things are timed: warmed up, in turns, several times; and how fast this machine could be at best."""

from __future__ import annotations

import gc
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from ..base import machine
from ..training import execution

Row = dict[str, Any]
"""A measurement: plain values under plain names, as they stand in the JSON."""
Size = Literal["tiny", "short", "full"]
Arithmetic = Literal["float32", "tf32", "bf16"]
T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """What to measure on, how much of it, and whom to tell what is being measured.

    tiny: every line of code in seconds, numbers without meaning; short: a minute; full: what the documentation shows.
    """

    device: torch.device
    size: Size = "short"
    tell: Callable[[str], None] = lambda what: None

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def sized(self, tiny: T, short: T, full: T) -> T:
        return {"tiny": tiny, "short": short, "full": full}[self.size]

    @property
    def arithmetics(self) -> tuple[Arithmetic, ...]:
        """The precisions of training that differ on this device."""
        return ("float32", "tf32", "bf16") if self.cuda else ("float32",)


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, several times; `first` is the first call of all, which compiles, captures and tunes."""

    seconds: tuple[float, ...]
    first: float

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Half of the calls lie between these."""
        if len(self.seconds) < 3:
            return min(self.seconds), max(self.seconds)
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high

    def row(self, calls: float = 1.0) -> Row:
        """Milliseconds of what a call does `calls` times."""
        low, high = self.quartiles
        values = {"ms": self.median, "ms_low": low, "ms_high": high}
        told = {key: 1e3 * value / calls for key, value in values.items()}
        return {**told, "repeats": len(self.seconds), "first_seconds": self.first}


def clocked(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call, from an idle device until it is idle again."""
    settle(device)
    started = time.perf_counter()
    call()
    settle(device)
    return time.perf_counter() - started


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def interleaved(ways: Mapping[str, Callable[[], object]], plan: Plan) -> dict[str, Timing]:
    """Times of several ways in turns, so that what else the machine does hits all of them alike."""
    least, seconds = plan.sized((2, 0.0), (3, 2.0), (3, 1.5) if plan.cuda else (5, 4.0))
    firsts = {name: clocked(call, plan.device) for name, call in ways.items()}
    found: dict[str, list[float]] = {name: [] for name in ways}
    began, turns = time.perf_counter(), 0
    while turns < least or (turns < 50 and time.perf_counter() - began < seconds):
        for name, call in ways.items():
            found[name].append(clocked(call, plan.device))
        turns += 1
    return {name: Timing(tuple(found[name]), firsts[name]) for name in ways}


# ---- precision ----


def setting(name: Arithmetic, device: torch.device) -> str:
    """The value of `precision` in a configuration that makes fedkin compute so."""
    if device.type == "cpu" and name != "bf16":
        return "float32"
    return {"float32": "float32-strict", "tf32": "float32", "bf16": "bf16"}[name]


def plain_torch(name: Arithmetic) -> AbstractContextManager[None]:
    """Inside, plain torch multiplies float32 on a GPU exact to rounding ('float32') or in TF32 (else).

    For opponents and bounds alone: fedkin is told by its configuration, as users tell it, and has to do the rest."""
    return execution.tf32(name != "float32")


def set_for_torch(name: Arithmetic) -> str:
    """In words, for the record."""
    switches = f"fp32_precision = {'ieee' if name == 'float32' else 'tf32'!r}"
    return f"{switches}, autocast to bfloat16" if name == "bf16" else switches


def set_for_fedkin(name: Arithmetic, device: torch.device) -> str:
    return f"precision = {setting(name, device)!r}"


# ---- memory ----


class Peak:
    """The most memory that was taken beyond what was in use at the beginning; None where the system does not tell."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            self.mark = machine.Watermark(device)
            self.before: int | None = torch.cuda.memory_allocated(device)
        else:
            self.before = _resident("VmRSS")
            try:
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew from here
            except OSError:
                self.before = None

    @property
    def bytes(self) -> int | None:
        if self.device.type == "cuda":
            now: int | None = self.mark.bytes()
        else:
            now = _resident("VmHWM")
        return None if now is None or self.before is None else max(0, now - self.before)


def _resident(key: str) -> int | None:
    """Bytes of this process in memory, now (VmRSS) or at most (VmHWM); only Linux tells."""
    with suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return int(dict(line.split(":", 1) for line in lines)[key].split()[0]) * 1024
    return None


def forget(device: torch.device) -> None:
    """Gives back what nobody holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def alone(function: Callable[..., T], *arguments: object) -> T:
    """The function's value from a process of its own: nothing was compiled there, and its memory is its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_with_threads, torch.get_num_threads(), function, *arguments).result()


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """Inside, new processes find no kernels that earlier ones compiled, but those of each other."""
    key = "TRITON_CACHE_DIR"
    before = os.environ.get(key)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[key] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[key]
            else:
                os.environ[key] = before


def _with_threads(threads: int, function: Callable[..., T], *arguments: object) -> T:
    with machine.threads(threads):
        return function(*arguments)


# ---- what the machine could do at best ----


def ceilings(plan: Plan) -> list[Row]:
    """The fastest large product, and the fastest large copy: what lower bounds are counted with."""
    rows: list[Row] = []
    for name in plan.arithmetics:
        rows.append(
            {"what": f"matrix product, {name}", "flop_per_second": flop_per_second(plan.device, plan.size, name)}
        )
    return [*rows, {"what": "copy, read and written", "bytes_per_second": bytes_per_second(plan.device, plan.size)}]


@cache
def flop_per_second(device: torch.device, size: Size, name: Arithmetic) -> float:
    plan = Plan(device, size)
    n = plan.sized(128, 1024, 2048) if not plan.cuda else plan.sized(256, 8192, 8192)
    dtype = torch.bfloat16 if name == "bf16" else torch.float32
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    with plain_torch(name):
        return 2 * n**3 / _fastest(lambda: torch.mm(a, b, out=out), device)


@cache
def bytes_per_second(device: torch.device, size: Size) -> float:
    """Bytes read and bytes written together."""
    plan = Plan(device, size)
    count = plan.sized(1 << 16, 1 << 25, 1 << 26) * (16 if plan.cuda else 1)
    source = torch.ones(count, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _fastest(lambda: target.copy_(source), device)


def _fastest(call: Callable[[], object], device: torch.device, times: int = 7) -> float:
    return min(clocked(call, device) for _ in range(times))
