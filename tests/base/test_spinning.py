"""How long threads spin is set before torch is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fedkin.base import spinning


@pytest.mark.parametrize(
    ("first", "given", "expected"),
    [
        ("fedkin", {}, "True 3000"),
        ("torch", {}, "False None"),
        ("fedkin", {"GOMP_SPINCOUNT": "7"}, "True 7"),
        ("fedkin", {"OMP_WAIT_POLICY": "PASSIVE"}, "True None"),
        ("fedkin", {"OMP_WAIT_POLICY": "active"}, "False None"),
        ("torch", {"GOMP_SPINCOUNT": "7"}, "True 7"),
    ],
)
def test_how_long_threads_spin_is_set_before_torch_is_loaded(first: str, given: dict[str, str], expected: str) -> None:
    script = f"import {first}, os, fedkin; print(fedkin.base.spinning.BOUNDED, os.environ.get('GOMP_SPINCOUNT'))"
    plain = {name: value for name, value in os.environ.items() if name not in spinning.SET}
    done = subprocess.run([sys.executable, "-c", script], env=plain | given, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
