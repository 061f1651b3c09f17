"""Starting Triton's kernels: where they can run, how work is cut for them, and compiling many of them side by side."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..base.wording import first_line

INTERPRETED = False
"""Whether Triton's interpreter runs these kernels on a CPU, slowly: for tests, with TRITON_INTERPRET=1."""


@cache
def installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def usable(x: Tensor) -> bool:
    """Whether these functions can take x: on a GPU, in a precision that its matrix units know, with Triton there."""
    fits = _shared(x.device) >= 96 << 10 if x.is_cuda else INTERPRETED
    return fits and x.dtype in (torch.float32, torch.bfloat16, torch.float16) and installed()


def roomy(x: Tensor) -> bool:
    """Whether `gram` and `mix` can take x, too: they need more of a processor's own memory."""
    return usable(x) and (not x.is_cuda or _shared(x.device) >= 224 << 10)


@cache
def _shared(device: torch.device) -> int:
    """Bytes of memory of its own that a program may have; 0 on processors that do not know bfloat16."""
    about = torch.cuda.get_device_properties(device)
    return int(getattr(about, "shared_memory_per_block_optin", 0)) if about.major >= 8 else 0


# ---- cutting work ----

PROCESSORS = 132
"""Of an H100 or H200. With other numbers of them, some wait a little at the end."""

ENOUGH = 4 * PROCESSORS
"""Programs that keep them busy."""


def tile(size: int, most: int, least: int = 16) -> int:
    """The power of two that holds `size`, between these bounds."""
    tile = least
    while tile < min(size, most):
        tile *= 2
    return tile


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


# ---- starting kernels ----


@dataclass(frozen=True, repr=False)
class Start:
    """A kernel that a step would have started, and with what: in place of each tensor one of its kind."""

    kernel: Any
    given: tuple[Any, ...]
    further: dict[str, Any]


class Rehearsal:
    """Inside, kernels are noted, one for each that Triton would compile, and none is started."""

    def __init__(self) -> None:
        self.noted: dict[object, Start] = {}

    def __enter__(self) -> Rehearsal:
        global _going_on
        if _going_on is not None:
            raise RuntimeError("A rehearsal is going on already, and there can be one at a time.")
        _going_on = self
        return self

    def __exit__(self, *error: object) -> None:
        global _going_on
        _going_on = None

    def note(self, kernel: Any, given: tuple[Any, ...], further: dict[str, Any]) -> None:
        key = (kernel, _kinds(kernel, given), tuple(sorted(further.items())))
        if key not in self.noted:
            self.noted[key] = Start(kernel, tuple(map(_stand_in, given)), further)


_going_on: Rehearsal | None = None
"""The rehearsal that `launch` consults. It is the whole process's: those who start the kernels of a backward pass are
torch's own threads, which know nothing of the caller's."""


def launch(kernel: Any, grid: tuple[int, ...], *given: Any, **further: Any) -> None:
    """Starts a kernel; in a rehearsal it is noted."""
    if _going_on is None:
        kernel[grid](*given, **further)
    else:
        _going_on.note(kernel, given, further)


def _kinds(kernel: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """What Triton compiles a kernel for: another one for each. Of some numbers it was told that any will do."""
    names, plain = getattr(kernel, "arg_names", ()), getattr(kernel, "do_not_specialize", ())
    return tuple(_kind(value, any_will_do=i < len(names) and names[i] in plain) for i, value in enumerate(given))


def _kind(value: Any, any_will_do: bool = False) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % ALIGNED
    if not isinstance(value, int):
        return value
    long = value >= 1 << 31
    return (long,) if any_will_do else (long, value == 1, value % ALIGNED == 0)


ALIGNED = 16
"""Bytes; Triton compiles another kernel for memory that begins elsewhere. torch's own always begins so."""


def _stand_in(value: Any) -> Any:
    """For a tensor, a small one of its type that begins as it does: the step's memory is not to be held."""
    if not isinstance(value, Tensor):
        return value
    beyond = value.data_ptr() % ALIGNED // value.element_size()
    return value.new_empty(beyond + 1)[beyond:]


# ---- compiling ahead ----


@dataclass(frozen=True)
class Rehearsed:
    """What came of a rehearsal: kernels that are ready, and why others are not, each with its name."""

    compiled: int
    refused: tuple[str, ...] = ()
    broken_off: str | None = None
    """What the step failed with, if it did; kernels that it would have come to were not seen."""

    @property
    def trouble(self) -> str | None:
        """What is slower for it; a sentence."""
        told = [f"the step was broken off: {self.broken_off}"] if self.broken_off else []
        if self.refused:
            every, reasons = self.compiled + len(self.refused), "; ".join(dict.fromkeys(self.refused))
            told.append(f"{len(self.refused)} of {every} failed: {reasons}")
        return f"Some kernels are compiled when they are needed, not ahead ({'; '.join(told)})." if told else None


def rehearse(step: Callable[[], object]) -> Rehearsed:
    """Compiles the kernels of a step, as many at a time as there are processors. The step runs once without them, on
    whatever lies in memory, to see which they are; it must not keep what it computes.

    A kernel takes half a second, and a ResNet has thirty. What cannot be compiled here will be when it is needed, and
    what fails here fails there, too, where it is raised; here it is told. No other thread may start kernels meanwhile,
    but for torch's own of the step.
    """
    broken_off = None
    with Rehearsal() as rehearsal:
        try:
            step()
        except Exception as error:  # of a user's model it may be any; the step itself follows, and will raise it
            broken_off = first_line(error)
    return _compiled(list(rehearsal.noted.values()), broken_off)


def _compiled(starts: Sequence[Start], broken_off: str | None = None) -> Rehearsed:
    """Compiles these side by side in threads: for most of it, Triton leaves Python."""
    if torch.cuda.is_available():
        from triton.runtime import driver

        assert driver.active  # made when it is first asked for, which threads must not do at the same time
    firsts = {start.kernel: start for start in reversed(starts)}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = {kernel: pool.submit(_compile, start) for kernel, start in firsts.items()}
        variants = [start for start in starts if start is not firsts[start.kernel]]
        work = [*zip(firsts.values(), made.values(), strict=True)]
        work += [(start, pool.submit(_compile, start, made[start.kernel])) for start in variants]
        errors = [(start, done.exception()) for start, done in work]
    refused = [f"{start.kernel.__name__}: {first_line(error)}" for start, error in errors if error is not None]
    return Rehearsed(len(work) - len(refused), tuple(refused), broken_off)


def _compile(start: Start, before: Future[None] | None = None) -> None:
    """By Triton's `warmup`, into its cache (Triton 3.6 to 3.9 were looked at). A kernel's first variant comes before
    the others, so that what is made once for each kernel is there."""
    if before is not None:
        wait([before])
    tensors = [value for value in start.given if isinstance(value, Tensor)]
    with torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]  # each thread has a device of its own
        ready = start.kernel.warmup(*start.given, grid=(1,), **start.further)
        # What starts a kernel is compiled and loaded when it is asked for, and else not before the first start.
        _ = None if ready is None else ready.run
