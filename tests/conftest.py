"""For all tests: the helpers at hand, one thread, and the command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
os.environ["COLUMNS"] = "120"  # as elsewhere without a terminal; workers that share the tests have 80
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: its kernels then run here too, where tests ask
torch.set_num_threads(1)  # products this small wait longer for a second core than they gain from it


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("DEVICE", "cpu") != "cpu" and not torch.cuda.is_available():
        pytest.exit(f"DEVICE={os.environ['DEVICE']} was asked for, but torch sees no GPU here.", returncode=2)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`fedkin …` in this process; its exit code."""
    for needed in ("typer", "rich"):
        pytest.importorskip(needed)
    from fedkin import cli

    monkeypatch.setattr(sys, "path", [*sys.path])

    def typed(*words: str | Path) -> int:
        monkeypatch.setattr(sys, "argv", ["fedkin", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    return typed
