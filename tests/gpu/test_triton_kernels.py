"""The GPU's kernels compile for an H100 without one, and as they should. The interpreter, which runs them elsewhere in
the tests, takes what the compiler refuses, and knows nothing of memory."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from typing import Any

import pytest
from helpers import ROOT

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="Triton brings its compiler for Linux on x86"
)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    plain = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, str(ROOT / "benchmarks" / "compiled.py"), "--json"]
    done = subprocess.run(command, env=plain, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_kernel_is_compiled(rows: list[dict[str, Any]]) -> None:
    from fedkin.gpu import triton_kernels

    kernels = {
        name for name, value in vars(triton_kernels).items() if hasattr(value, "fn") and not name.startswith("_")
    }
    assert len(kernels) > 10 and {row["kernel"].partition(",")[0] for row in rows} == kernels


def test_loops_with_products_fetch_ahead(rows: list[dict[str, Any]]) -> None:
    """Otherwise they wait for memory in every turn, with the same numbers and several times as slowly."""
    multiplying = [row for row in rows if row["products"]]
    assert len(multiplying) == 14
    for row in multiplying:
        assert row["ahead"] > 0 and row["waits"] == 0, row


def test_half_precision_fits_in_registers(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert row["spilled_bytes"] <= 16 or "fp32" in row["kernel"], row


def test_kernels_fit_in_the_memory_that_is_asked_for(rows: list[dict[str, Any]]) -> None:
    """launching.usable and launching.roomy."""
    for row in rows:
        assert row["shared_bytes"] <= (224 if row["kernel"] in ("gram", "mix") else 96) << 10, row
