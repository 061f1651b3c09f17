"""Measurements on disk: sections by name, each with where its numbers come from."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ..base import files
from ..engines import summary
from ..errors import FedkinError
from .timing import Plan, Row


def origin(plan: Plan, command: str, commit: str | None = None) -> dict[str, Any]:
    """Where numbers come from: machine, versions, commit, date, and how busy the machine was."""
    return {
        "command": command,
        "size": plan.size,
        "machine": {
            "cpu": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name(plan.device) if plan.cuda else None,
        },
        "versions": {**summary.versions(), "triton": _triton()},
        "commit": commit or summary.commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "load_average": _load(),
    }


def section(rows: Sequence[Row], seconds: float, where_from: Mapping[str, Any]) -> dict[str, Any]:
    """A section as it stands in the file."""
    return {"origin": dict(where_from), "seconds": _short(seconds), "rows": [_short(row) for row in rows]}


def read(path: Path) -> dict[str, Any]:
    """Sections by name; none where there is no file yet."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["sections"]) if path.exists() else {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedkinError(f"{path} does not hold measurements ({error}); name another file.") from None


def write(path: Path, sections: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    text = json.dumps({"sections": sections}, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    try:
        files.write({path: text.encode()})
    except OSError as error:
        raise FedkinError(
            f"{path} cannot be written: {error.strerror}. Name a file in a folder that is there."
        ) from None


def _short(value: Any) -> Any:
    """Six digits: no clock is better than that."""
    if isinstance(value, Mapping):
        return {key: _short(each) for key, each in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _triton() -> str | None:
    """Triton's version; None where it is not installed."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


def _load() -> float | None:
    """Processes that wanted to run, on average over the last minute."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None
