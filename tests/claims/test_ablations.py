"""What docs/ablations.md says is what benchmarks/results/ablations.json holds."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import helpers
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PAGE = BENCHMARKS.parent / "docs" / "ablations.md"
FOUND = json.loads((BENCHMARKS / "results" / "ablations.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return helpers.script("ablations")


def accuracy(study: str, method: str, model: str, **values: Any) -> float:
    """In per cent, in the chosen round, of the one row with these values."""
    [row] = [
        row
        for row in FOUND["studies"][study]
        if (row["method"], row["model"]) == (method, model)
        and all(row["values"][name] == value for name, value in values.items())
    ]
    return 100 * float(row["score"])


def test_the_tables_of_the_page_are_made_from_what_is_kept(script: ModuleType) -> None:
    page = PAGE.read_text(encoding="utf-8")
    made = script.tables(FOUND)
    assert page.count("<!-- end ") == len(made)
    assert script.filled(page, made) == page


def test_every_value_of_the_script_was_run_with_every_seed(script: ModuleType) -> None:
    studies = FOUND["studies"]
    assert FOUND["seeds"] == script.SEEDS
    assert len(studies["weight"]) == len(script.WEIGHTS) * 2 * 2 * 2, "splits, methods, models"
    assert len(studies["sigma"]) == len(script.SIGMAS) * 2 * 2 * 2 * 2
    assert len(studies["beta"]) == len(script.BETAS) * len(script.DECAYS) * 2 * 2 * 2
    assert len(studies["panacea"]) == sum(map(len, script.PANACEA.values())) * 2 * 2
    assert FOUND["commit"] is not None and not FOUND["commit"].endswith("+"), "files differed from the commit"


def test_a_last_round_that_was_not_chosen_stands_in_brackets(script: ModuleType) -> None:
    row = {"score": 0.9, "last": 0.85, "std_seeds": 0.01}
    assert script.score(row) == "90.0 ± 1.0 (85.0)"
    assert script.score({**row, "last": 0.90001}) == "90.0 ± 1.0"


# ---- what the page says in words ----

METHODS, SPLITS = ("fedamp", "heurfedamp"), ("relabelled", "practical")
ALONE = {split: accuracy("beside", "separate", "personal", split=split) for split in SPLITS}


def cloud(study: str, method: str, split: str, **values: Any) -> float:
    return accuracy(study, method, "cloud", split=split, **values)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("method", METHODS)
def test_listening_counts_and_how_much_hardly(method: str, split: str) -> None:
    at = {weight: cloud("weight", method, split, weight_on_others=weight) for weight in (0.25, 0.5, 0.65, 0.75, 0.95)}
    own = cloud("weight", method, split, weight_on_others="auto")
    assert abs(cloud("weight", method, split, weight_on_others=0) - ALONE[split]) < 0.05
    assert at[0.25] - ALONE[split] > (own - ALONE[split]) / 2
    assert max(at[w] for w in at if w > 0.25) - min(at[w] for w in at if w > 0.25) < 1.5
    assert abs(own - at[0.75]) < 1


@pytest.mark.parametrize("method, wide", [("fedamp", 1000), ("heurfedamp", 0.1)])
def test_wide_attention_fails_where_groups_disagree_and_wins_where_they_do_not(method: str, wide: float) -> None:
    relabelled, practical = (
        {w: cloud("sigma", method, split, sigma=wide, weight_on_others=w) for w in (0.75, "auto")} for split in SPLITS
    )
    assert relabelled[0.75] < ALONE["relabelled"] - 5
    assert abs(relabelled["auto"] - ALONE["relabelled"]) < 1
    assert cloud("sigma", method, "relabelled", sigma="auto", weight_on_others="auto") > ALONE["relabelled"] + 4
    for weight, found in practical.items():
        gain = found - cloud("sigma", method, "practical", sigma="auto", weight_on_others=weight)
        assert 2.5 < gain < 5.5
        assert found > accuracy("beside", "fedavg", "global", split="practical") - 1


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("method", METHODS)
def test_beta_shows_only_where_it_is_stiff_early(method: str, split: str) -> None:
    weak = [
        cloud("beta", method, split, beta=beta, decay=decay)
        for beta in (1, 100, 10000)
        for decay in ("stays", "every 30", "every 10")
    ]
    assert max(weak) - min(weak) < 1
    stays, falls = (cloud("beta", method, split, beta=0.01, decay=decay) for decay in ("stays", "every 10"))
    assert stays - falls > 8


def test_theory_mode_is_no_better_than_alone_where_groups_disagree() -> None:
    rows = [r for r in FOUND["studies"]["theory"] if r["values"]["split"] == "relabelled"]
    assert max(100 * row["score"] for row in rows) < ALONE["relabelled"] + 1


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("method", METHODS)
def test_where_clients_and_rounds_start(method: str, split: str) -> None:
    start = {init: cloud("starts", method, split, init=init, init_from="cloud") for init in ("common", "pretrained")}
    assert abs(start["common"] - start["pretrained"]) < 0.5
    assert 1.5 < start["common"] - cloud("starts", method, split, init="independent", init_from="cloud") < 6.5
    for init in ("common", "independent", "pretrained"):
        assert cloud("starts", method, split, init=init, init_from="local") < ALONE[split] + 0.5


def test_panacea_is_faster_with_more_steps_fewer_convolutions_and_wider_layers() -> None:
    early = {
        (row["values"]["setting"], row["values"]["value"]): row["early"]
        for row in FOUND["studies"]["panacea"]
        if row["model"] == "generated" and row["values"]["world"] == "clean"
    }
    own = early["server_steps", 1]
    assert all(early[key] > own + 0.1 for key in (("server_steps", 2), ("layers", 1), ("hidden", 300)))
    trained = [r for r in FOUND["studies"]["panacea"] if r["model"] == "personal" and r["values"]["world"] == "clean"]
    assert min(row["score"] for row in trained) > 0.9985
