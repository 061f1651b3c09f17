"""What docs/fedamp-theory.md says is what benchmarks/results/fedamp-theory.json holds."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import helpers
import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FOUND = json.loads((BENCHMARKS / "results" / "fedamp-theory.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return helpers.script("fedamp_theory")


def of(theorem: str, problem: str) -> dict[str, Any]:
    [found] = [each for each in FOUND[theorem] if each["problem"] == problem]
    return dict(found)


def at(theorem: str, problem: str, rounds: int, kind: str = "constant") -> dict[str, Any]:
    [row] = [row for row in of(theorem, problem)[kind] if row["K"] == rounds]
    return dict(row)


def test_the_tables_of_the_page_are_made_from_what_is_kept(script: ModuleType) -> None:
    page = script.PAGE.read_text(encoding="utf-8")
    made = script.tables(FOUND)
    assert page.count("<!-- end ") == len(made)
    assert script.filled(page, made) == page
    assert script.PICTURE.is_file()
    assert {"command", "machine", "versions", "commit", "seconds"} <= set(FOUND)
    assert FOUND["commit"] is not None and not FOUND["commit"].endswith("+"), "files differed from the commit"
    assert FOUND["rounds"] == list(script.ROUNDS)


def test_what_is_kept_is_what_the_script_finds(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shorter runs once more; random numbers and float64 are the same everywhere but for rounding."""
    monkeypatch.setattr(script, "ROUNDS", (16, 64))
    kept = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        again = {theorem: [script.studied(case, theorem) for case in each] for theorem, each in script.cases().items()}
    finally:
        torch.set_default_dtype(kept)
    for theorem, each in again.items():
        for found in each:
            for kind in ("constant", "falling"):
                for row in found[kind]:
                    for name, value in at(theorem, found["problem"], row["K"], kind).items():
                        assert row[name] == (value if value is None else pytest.approx(value, rel=1e-6))


@pytest.mark.parametrize("problem", ["flat", "neurons"])
def test_the_new_problems_take_proximal_steps(script: ModuleType, problem: str) -> None:
    """Nothing near the answer has a lower F + |w - u|^2 / (2 beta)."""
    made, beta = {"flat": script.Flat, "neurons": script.Neurons}[problem](), 0.25
    U = made.start
    W = made.prox(U, beta)

    def cost(W: torch.Tensor) -> torch.Tensor:
        return made.loss(W) + (W - U).square().sum((-2, -1)) / (2 * beta)

    moves = torch.randn(200, *W.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for size in (1.0, 0.1, 1e-3):
        assert (cost(W + size * moves) > cost(W)).all()


def test_every_minimum_is_one() -> None:
    for found in (*FOUND["convex"], *FOUND["smooth"]):
        assert found["gradient at W*"] < 1e-6
        assert all(gap > -1e-12 for kind in ("constant", "falling") for gap in found[f"{kind} over rounds"]["gap"])


# ---- what the page says in words ----


def test_both_theorems_hold_and_theirs_are_not_the_best_bounds() -> None:
    ratios = []
    for found in FOUND["convex"]:
        for row in found["constant"]:
            assert row["gap"] <= row["bound"] / 2, "what the proof gives"
            own = row["bound of the proximal gradient"]
            assert (own is None) == (row["K"] < found["lambda L_A"] ** 2)
            if own is not None:
                assert row["gap"] <= own < row["bound"]
                ratios.append(row["bound"] / own)
    assert min(ratios) == pytest.approx(2.4, abs=0.05) and max(ratios) == pytest.approx(600, rel=0.01)
    assert all(row["squared gradient"] <= row["bound"] for found in FOUND["smooth"] for row in found["constant"])


def test_how_loose_they_are() -> None:
    loose = {
        (theorem, found["problem"], row["K"]): row["bound"] / max(row[which], 1e-300)
        for theorem, which in (("convex", "gap"), ("smooth", "squared gradient"))
        for found in FOUND[theorem]
        for row in found["constant"]
    }
    convex = {key: value for key, value in loose.items() if key[0] == "convex"}
    smooth = {key: value for key, value in loose.items() if key[0] == "smooth"}
    assert min(convex, key=convex.__getitem__) == ("convex", "logistic", 16)
    assert min(convex.values()) == pytest.approx(17, abs=0.5)
    assert loose["convex", "logistic", 4096] == pytest.approx(22_000, rel=0.03)
    assert min(smooth, key=smooth.__getitem__) == ("smooth", "neurons", 16)
    assert min(smooth.values()) == pytest.approx(4200, rel=0.02)


def test_slopes_steepen_where_the_minimum_is_curved_and_are_what_is_expected_where_it_is_flat(
    script: ModuleType,
) -> None:
    for problem, last in (("least squares", 3), ("logistic", 4)):
        slopes = [script.slope(of("convex", problem)["constant"], "gap", i) for i in range(1, last + 1)]
        assert slopes == sorted(slopes, reverse=True) and slopes[0] < -0.5
    flat = of("convex", "flat")["constant"]
    assert script.Flat.p / (script.Flat.p - 2) / 2 == 0.625
    assert [script.slope(flat, "gap", i) for i in (3, 4)] == pytest.approx([-0.63, -0.63], abs=0.005)


def test_falling_steps_are_ahead_early_and_behind_at_the_end() -> None:
    for found in FOUND["convex"]:
        ahead, behind = (found[f"{kind} over rounds"]["gap"] for kind in ("falling", "constant"))
        assert ahead[found["at"].index(4)] < behind[found["at"].index(4)]
        assert ahead[-1] > behind[-1]
    assert sum(0.5 / k**0.75 for k in range(1, 4097)) == pytest.approx(14, abs=0.5) and math.sqrt(4096) == 64
    for problem, times in (("flat", 7), ("logistic", 2200)):
        ends = at("convex", problem, 4096, "falling")["gap"] / at("convex", problem, 4096)["gap"]
        assert ends == pytest.approx(times, rel=0.05)
    slow = at("smooth", "neurons", 4096, "falling")["squared gradient"]
    assert slow == pytest.approx(at("smooth", "neurons", 256)["squared gradient"], rel=0.05)


def test_gradients_may_rise_while_the_objective_falls() -> None:
    neurons = of("smooth", "neurons")
    rounds, squares = neurons["at"], neurons["constant over rounds"]["squared gradient"]
    assert squares[rounds.index(1218)] / squares[rounds.index(861)] == pytest.approx(5.6, abs=0.1)
    for found in (*FOUND["convex"], *FOUND["smooth"]):
        gaps = found["constant over rounds"]["gap"]
        assert all(later <= before + 1e-12 for before, later in pairwise(gaps))


def test_a_stationary_point_need_not_be_the_lowest() -> None:
    assert [row["gap"] for row in of("smooth", "least squares")["constant"][1:]] == pytest.approx([4.03] * 4, abs=0.005)
    assert at("smooth", "neurons", 1024)["gap"] < 1e-6 < 0.1 < at("smooth", "neurons", 256)["gap"]
