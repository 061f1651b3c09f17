"""How many scores are of older models: counted against who is written down as having trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import simulate, toy

from fedkin import Results, Run
from fedkin.cli import terminal
from fedkin.evidence.findings import Findings
from fedkin.evidence.older import Older
from fedkin.report import words

EIGHT = (11, 9, 8, 7, 6, 5, 5, 4)


def made(folder: Path, method: str, **settings: Any) -> Run:
    return Run(simulate(folder, toy(EIGHT), method=method, **settings).writer.path)


def test_who_does_not_take_part_is_scored_with_an_older_model(tmp_path: Path) -> None:
    """A quarter of eight train: six are scored with what they had, in each of three rounds of two seeds."""
    quarter = {"sample": 0.25}
    runs = [made(tmp_path, "fedavg", participation=quarter, seed=seed) for seed in (0, 1)]
    (found,) = Findings(runs).older
    assert found == Older("fedavg", "finetuned", 3, 2 * 3 * 6, 2 * 3 * 8, 0, 2 * 8), "in the end all are new"
    assert words.older_models(Findings(runs)) == [
        "fedavg:finetuned: 36 of 48 scores of rounds 1 to 3 are of models trained in an earlier round, or not yet."
    ]
    (other,) = Findings([made(tmp_path, "fedamp", participation=quarter)]).older
    assert other == Older("fedamp", "personal", 3, 18, 24, 6, 8), "its cloud models are everyone's in every round"


@pytest.mark.parametrize("method", ["fedavg", "fedamp", "separate", "perfedavg"])
def test_where_everyone_trains_there_is_nothing_to_say(tmp_path: Path, method: str) -> None:
    assert Findings([made(tmp_path, method, participation={"lost": 0.5})]).older == []


def test_pfedme_says_what_its_paper_does_with_those_not_sampled(tmp_path: Path) -> None:
    (sentence,) = words.older_models(Findings([made(tmp_path, "pfedme", participation={"sample": 0.25})]))
    assert sentence.startswith("pfedme:personal: 18 of 24 scores") and "at the end 6 of 8" in sentence
    assert "In its paper all clients train in every round" in sentence


def test_it_stands_under_the_table_on_the_page_and_in_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [made(tmp_path, method, participation={"sample": 0.25}) for method in ("separate", "fedavg")]
    said = "fedavg:finetuned: 18 of 24 scores of rounds 1 to 3 are of models trained in an earlier round, or not yet."
    page = Results(runs, tmp_path).report(tmp_path / "page.html")
    assert said in page.read_text()
    terminal.show_comparison(Results(runs, tmp_path))
    terminal.show_run(runs[1])
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count(said) == 2
