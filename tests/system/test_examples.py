"""The examples run as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

EXAMPLES = ROOT / "examples"


def typed(folder: Path, *words: str | Path) -> list[str]:
    """The lines that a Python command prints, typed in an empty folder with the examples at hand."""
    env = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    asked = subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert asked.returncode == 0, asked.stderr
    return asked.stdout.splitlines()


@pytest.mark.parametrize("name", sorted(p.name for p in EXAMPLES.glob("*.py")))
def test_an_example_runs_as_it_stands(name, tmp_path):
    assert len(typed(tmp_path, EXAMPLES / name)) >= 3


def test_a_method_of_ones_own_is_run_by_its_place_in_python(tmp_path):
    words = ("-m", "fedkin", "run", "--method", "own_method:HalfWay", "--rounds", "2", "--share", "0.3")
    assert any("cloud" in line for line in typed(tmp_path, *words))


@pytest.mark.parametrize(
    "words",
    [
        ("--model", "own_model:Residual", "--model.settings.width", "8"),
        ("--loss", "own_loss:focal", "--metric", "own_loss:macro_f1"),
        ("--data", "own_data_set:load", "--clients", "3"),
    ],
)
def test_a_model_a_loss_and_a_data_set_of_ones_own_are_named_likewise(tmp_path, words):
    assert any("cloud" in line for line in typed(tmp_path, "-m", "fedkin", "run", "--rounds", "2", *words))
