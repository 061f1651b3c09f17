"""The machine this runs on: its device, threads and memory."""

from __future__ import annotations

import os
import resource
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..errors import FedkinError


def chosen_device(wanted: str) -> torch.device:
    """'cpu', 'cuda', or 'auto': a GPU where torch sees one."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise FedkinError("device = 'cuda' was asked for, but torch sees no GPU here. Take device = 'cpu' or 'auto'.")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Inside, torch uses this many CPU threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# ---- memory ----


def free_bytes(device: torch.device) -> int:
    """Memory that can still be taken; four GiB where the system does not say."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch's own, to be used again
        return torch.cuda.mem_get_info(device)[0] + kept
    with suppress(OSError, ValueError, KeyError):  # Linux alone tells
        # What holds copies of files counts as free here; to sysconf it is taken.
        facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        return min(int(facts["MemAvailable"].split()[0]) * 1024, _free_in_container())
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 4 << 30


def _free_in_container(folder: Path = Path("/sys/fs/cgroup")) -> int:
    """What a container's own limit leaves, which /proc/meminfo does not know; without a limit, no bound."""
    with suppress(OSError, ValueError, KeyError):
        limit, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
        facts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, limit - used + int(facts["inactive_file"]))  # copies of files give way
    return sys.maxsize


def peak_bytes(device: torch.device) -> int:
    """The most memory that was in use so far: of the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Watermark:
    """The most memory that was in use since it was made: of the GPU; or of this process, since that began.

    Several may be open at a time: torch has but one, so whoever sets it back tells all the others first.
    """

    _open: weakref.WeakSet[Watermark] = weakref.WeakSet()

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            self._told()
        self._highest = 0
        Watermark._open.add(self)

    def bytes(self) -> int:
        """Up to now."""
        if self.device.type != "cuda":
            return peak_bytes(self.device)
        self._told()
        return self._highest

    def _told(self) -> None:
        peak = torch.cuda.max_memory_allocated(self.device)
        for mark in Watermark._open:
            if mark.device == self.device:
                mark._highest = max(mark._highest, peak)
        torch.cuda.reset_peak_memory_stats(self.device)


@contextmanager
def measured(device: torch.device) -> Iterator[Callable[[], int]]:
    """Inside, memory is watched; the function that is given says how many bytes were in use beyond those before.

    On a GPU, by torch's own accounts. On a CPU by the tensors that operators return: what an operator takes for itself
    and gives back at once is not seen, nor what the system's allocator keeps.
    """
    if device.type == "cuda":
        before, mark = torch.cuda.memory_allocated(device), Watermark(device)
        yield lambda: max(0, mark.bytes() - before)
    else:
        with tensor_bytes() as used:
            yield used


@contextmanager
def tensor_bytes() -> Iterator[Callable[[], int]]:
    """Inside, tensors are counted, wherever they lie; the function that is given says how many bytes new ones had at
    most at a time."""
    with _Tensors() as tensors:
        yield lambda: tensors.most


class _Tensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the bytes of new tensors as they come and go."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes a second and more

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self.seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if id(storage) not in given and storage not in self.seen:
                    self._add(storage)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        self.seen.add(storage)
        size = storage.nbytes()
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._remove, size)

    def _remove(self, size: int) -> None:
        self.now -= size


def ran_out(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, of the GPU or of the machine."""
    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in RAN_OUT)


RAN_OUT = (
    "can't allocate memory",
    "not enough memory",
    "CUDA error: out of memory",
    "[CUDA]: out of memory",
    "STATUS_ALLOC_FAILED",
)
"""What errors say that have no class of their own: torch's CPU allocator, CUDA, Triton, libraries."""


def tidy(device: torch.device) -> None:
    """Gives back what torch has kept of a GPU's memory for later, in pieces that may be too small."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
