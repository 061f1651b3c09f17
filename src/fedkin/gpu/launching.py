"""Starting Triton's kernels: where they can run, how work is cut for them, and compiling many of them side by side."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor

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

Noted = dict[Any, tuple[Any, list[Any], dict[str, Any]]]
_noted: Noted | None = None
"""The kernels that a rehearsal came by; None outside of one."""


def launch(kernel: Any, grid: tuple[int, ...], *given: Any, **further: Any) -> None:
    """Starts a kernel; in a rehearsal it is noted."""
    if _noted is None:
        kernel[grid](*given, **further)
        return
    key = (kernel, tuple(map(_kind, given)), tuple(sorted(further.items())))
    _noted.setdefault(key, (kernel, [_stand_in(value) for value in given], further))


def _kind(value: Any) -> Any:
    """What Triton compiles a kernel for: one for each kind."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16
    return (value == 1, value % 16 == 0, value >= 1 << 31) if isinstance(value, int) else value


def _stand_in(value: Any) -> Any:
    """For a tensor, one of its type without its memory."""
    if not isinstance(value, Tensor):
        return value
    from triton.runtime.jit import MockTensor

    mock, offset = MockTensor(value.dtype), value.data_ptr() % 16
    mock.data_ptr = lambda: offset
    return mock


def rehearse(step: Callable[[], object]) -> None:
    """Compiles the kernels of a step, as many at a time as there are processors. The step runs once without them, on
    whatever lies in memory, to see which they are; it must not keep what it computes.

    A kernel takes half a second, and a ResNet has thirty. What cannot be compiled here will be when it is needed, and
    what fails here fails there, too. No other thread may start kernels meanwhile, but for torch's own of the step.
    """
    global _noted
    noted: Noted = {}
    _noted = noted
    try:
        with suppress(Exception):
            step()
    finally:
        _noted = None
    with suppress(Exception):
        _compile(list(noted.values()))


def _compile(noted: list[tuple[Any, list[Any], dict[str, Any]]]) -> int:
    """How many of these kernels are ready to start now."""
    from triton.runtime._async_compile import AsyncCompileMode, active_mode

    device = torch.cuda.current_device()  # which is each thread's own

    def load(kernel: Any) -> None:
        with torch.cuda.device(device):
            kernel._init_handles()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            with AsyncCompileMode(pool, ignore_errors=True):
                made = [kernel.warmup(*given, grid=(1,), **further) for kernel, given, further in noted]
        finally:
            active_mode.set(None)
        # What starts a kernel is compiled by itself, and else not before the first start.
        results = [each.result(True) if hasattr(each, "result") else each for each in made]
        ready = [each for each in results if each is not None]
        list(pool.map(load, ready))
    return len(ready)
