"""The examples run as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", sorted(p.name for p in EXAMPLES.glob("*.py")))
def test_an_example_runs_as_it_stands(name, tmp_path):
    asked = subprocess.run(
        [sys.executable, EXAMPLES / name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert asked.returncode == 0, asked.stderr
    assert len(asked.stdout.splitlines()) >= 3


def test_a_method_of_ones_own_is_run_by_its_place_in_python(tmp_path):
    asked = subprocess.run(
        [sys.executable, "-m", "fedkin", "run", "--method", "own_method:HalfWay", "--rounds", "2", "--share", "0.3"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert asked.returncode == 0, asked.stderr
    assert "cloud" in asked.stdout
