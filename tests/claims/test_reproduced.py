"""The papers' tables: docs/results.md is what the results say, and so are the answers to claims that stand on them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from helpers import ROOT

from fedkin.papers import published
from fedkin.studies.reproduced import Reproduced

FOUND = Reproduced(ROOT / "results")
TABLE = published.table("fedamp-table3")
AGAINST = [row for row, about in TABLE.rows.items() if about.published and about.run not in ("fedamp", "heurfedamp")]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_page", ROOT / "benchmarks" / "results_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_results_say(script: ModuleType) -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert page == script.page(FOUND), "`python benchmarks/results_page.py` makes it anew"


def test_a_page_of_nothing_says_of_each_table_what_would_fill_it(script: ModuleType, tmp_path: Path) -> None:
    page = script.page(Reproduced(tmp_path))
    for name in published.names():
        assert f"Not reached yet: `fedkin reproduce {name}`." in page


def test_every_cell_and_every_picture_of_the_page_is_there(script: ModuleType) -> None:
    page = script.page(FOUND)
    links = re.findall(r"\]\(([^)#]+)\)", page)
    assert len(links) > 200
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


@pytest.mark.parametrize("column", ["mnist", "fmnist", "emnist"])
@pytest.mark.parametrize("row", ["fedamp", "fedamp-personal", "heurfedamp", "heurfedamp-personal"])
def test_both_methods_are_at_or_above_the_papers_values_in_the_practical_split(row: str, column: str) -> None:
    cell = FOUND.cell("fedamp-table3", row, column)
    assert cell is not None and cell.published is not None and cell.ours >= cell.published


def counts(script: ModuleType, ours: str, column: str) -> dict[str, tuple[int, int]]:
    mine = FOUND.cell("fedamp-table3", ours, column)
    others = {row: FOUND.cell("fedamp-table3", row, column) for row in AGAINST}
    assert mine is not None
    return {row: script.counted(mine, other) for row, other in others.items() if other is not None}


def test_how_many_clients_are_better(script: ModuleType) -> None:
    """Claim 20, as src/fedkin/papers/claims.toml answers it."""
    for ours, better, worse in (("fedamp", 47, 28), ("heurfedamp", 45, 33)):
        found = counts(script, ours, "fmnist")
        assert len(found) == len(AGAINST)
        assert (min(b for b, _ in found.values()), max(w for _, w in found.values())) == (better, worse)
        found = counts(script, ours, "emnist")
        assert [row for row, (b, w) in found.items() if b <= w] == (["scaffold"] if ours == "fedamp" else [])
    assert counts(script, "fedamp", "emnist")["scaffold"] == (27, 29)


def test_the_blocks_of_emnist(script: ModuleType) -> None:
    """Claims 23 and 24: digits, upper case, lower case."""
    for run in ("fedamp", "heurfedamp", "fedamp-auto", "heurfedamp-auto"):
        [result] = FOUND.of("fedamp-table3", "emnist", run)
        within = script.inside(result)
        if run == "fedamp":
            assert within[0] == pytest.approx(0.52, abs=0.005) and min(within[1:]) > 0.96
        else:
            assert min(within) >= 0.995, "a share of 1.00"
        upper = np.array(result["groups"]) == 1
        xi = np.array(result["xi"]["thousandths"])
        assert xi[upper][:, ~upper].max() < 1 and xi[~upper][:, upper].max() < 1, "a weight of 0.001 or more"
