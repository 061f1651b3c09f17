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
torch.set_num_threads(1)  # products this small wait longer for a second core than they gain from it


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`fedkin …` in this process; its exit code."""
    from fedkin import cli

    monkeypatch.setattr(sys, "path", [*sys.path])

    def typed(*words: str | Path) -> int:
        monkeypatch.setattr(sys, "argv", ["fedkin", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    return typed
