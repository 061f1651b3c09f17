"""The machine this runs on: its device, threads and memory."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from .errors import FedkinError


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


def free_bytes(device: torch.device) -> int:
    """Memory that can still be taken; four GiB where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with suppress(OSError, ValueError, KeyError):  # Linux alone tells
        # What holds copies of files counts as free here; to sysconf it is taken.
        facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        return int(facts["MemAvailable"].split()[0]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 4 << 30


def peak_bytes(device: torch.device) -> int:
    """The most memory that was in use so far: of the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
