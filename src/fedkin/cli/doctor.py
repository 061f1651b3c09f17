"""What `fedkin doctor` looks at."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Check:
    what: str
    state: str
    fine: bool = True


def diagnose() -> Iterator[Check]:
    yield Check("Python", platform.python_version())
    yield Check("torch", f"{torch.__version__}, uses {torch.get_num_threads()} of {os.cpu_count()} cores")
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        yield Check("GPU", f"{torch.cuda.get_device_name()}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free")
    else:
        yield Check("GPU", "none; runs use the CPU")
    for name, why in (("plotly", "report pages"), ("matplotlib", "figures as PNG and PDF"), ("pandas", "frames")):
        there = importlib.util.find_spec(name) is not None
        yield Check(name, "installed" if there else f"not installed; needed for {why}", there or name == "pandas")
    folder = Path(os.environ.get("FEDKIN_DATA", Path.home() / ".cache" / "fedkin"))
    yield Check("data folder", f"{folder}: {'there' if folder.is_dir() else 'not there; only digits is built in'}")
    free_bytes = shutil.disk_usage(Path.cwd()).free
    yield Check("disk", f"{free_bytes / 2**30:.1f} GiB free here", free_bytes > 1 << 30)
    yield _small_run()


def _small_run() -> Check:
    from ..studies import run

    try:
        with tempfile.TemporaryDirectory() as folder:
            done = run.run(method="fedamp", rounds=2, data={"split": "relabelled"}, out=Path(folder) / "run")
            return Check("a small run", f"two rounds of FedAMP on digits in {done.summary.seconds:.1f} s")
    except Exception as error:  # a doctor reports, whatever it is
        return Check("a small run", f"failed: {type(error).__name__}: {error}", False)
