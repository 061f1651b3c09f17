"""Every table says what methods spent; where an equal budget was not kept to, a sentence names who did not."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pytest
from helpers import BASE, toy
from made_runs import Folder, several

import fedkin
from fedkin.evidence.findings import Findings
from fedkin.report import training
from fedkin.runs.config import merge

SIZES = (20, 16, 9)
"""With two epochs in batches of four: 10, 8 and 6 gradients, 8 on average."""
ALL = ["fedavg", "separate", "fedprox", "apfl", "perfedavg"]


@pytest.fixture(scope="module")
def different(tmp_path_factory: pytest.TempPathFactory) -> fedkin.Results:
    folder = tmp_path_factory.mktemp("different")
    return fedkin.compare(merge(BASE, {"rounds": 2}), methods=ALL, federation=toy(SIZES), seeds=2, out=folder)


def shown(results: fedkin.Results, capsys: pytest.CaptureFixture[str]) -> str:
    from fedkin.cli.terminal import show_comparison

    show_comparison(results)
    return " ".join(capsys.readouterr().out.split())


def test_what_methods_spent_is_a_mean_over_clients_and_rounds_beside_the_budget(different: fedkin.Results) -> None:
    """Per-FedAvg takes four gradients an iteration: 2, 2 and 1 of these."""
    found = different.findings.spent
    expected = {"fedavg": 8, "separate": 8, "fedprox": 16, "apfl": 16, "perfedavg": pytest.approx(20 / 3)}
    assert {method: each.gradients for method, each in found.items()} == expected
    assert all(each.budget == 8 and each.passes == 0 for each in found.values())
    assert {method: each.factor for method, each in found.items()}["perfedavg"] == pytest.approx(5 / 6)
    assert different.findings.unequal


def test_who_did_not_keep_to_the_budget_is_named_on_the_page_and_in_the_terminal(
    different: fedkin.Results, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = (
        "The budget is 8 gradients a client and round, which not all methods keep to: fedprox 2 times that (16), "
        "apfl 2 times that (16) and perfedavg 0.833 times that (6.67); fedavg and separate did."
    )
    said = shown(different, capsys)
    assert sentence in said
    assert "Gradients a client and round: 8 (fedavg, separate); 16 (fedprox, apfl); 6.67 (perfedavg)." in said
    page = html.unescape(different.report().read_text())
    assert sentence in page
    assert ">gradients</th>" in page and ">passes</th>" not in page and '<td data-value="16.0">16</td>' in page


def test_where_all_spent_the_same_the_number_stands_there_and_no_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = fedkin.compare(BASE, methods=["fedavg", "separate"], federation=toy(SIZES), out=tmp_path)
    said = shown(results, capsys)
    assert not results.findings.unequal and "budget" not in said
    assert "Gradients a client and round: 8 (fedavg, separate)." in said
    assert "The budget is" not in results.report().read_text()


@pytest.mark.parametrize("raw", [{"budget": "native"}, {"participation": {"sample": 0.5}}])
def test_native_budgets_are_not_held_to_one_and_those_who_stay_away_spend_nothing(
    tmp_path: Path, raw: dict[str, Any]
) -> None:
    table = merge(BASE, raw)
    results = fedkin.compare(table, methods=["fedavg", "fedprox"], federation=toy(SIZES, (0, 1, 1)), out=tmp_path)
    found = results.findings
    assert found.unequal == (raw.get("budget") != "native")
    assert found.spent["fedprox"].gradients == pytest.approx(2 * found.spent["fedavg"].gradients)
    if "participation" in raw:
        assert found.spent["fedavg"].factor == 1


def test_passes_have_a_column_where_there_are_any(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FedAMP's clients ask three models about all of their samples, 15 of each on average; validation data there are
    none."""
    results = fedkin.compare(BASE, methods=["fedamp", "separate"], federation=toy(SIZES), out=tmp_path)
    assert results.findings.spent["fedamp"].passes == 45
    assert "asked about besides, without a gradient: 45 (fedamp)." in shown(results, capsys)
    page = results.report().read_text()
    assert ">passes</th>" in page and '<td data-value="45.0">45</td>' in page and '<td data-value="0.0">0</td>' in page


def test_a_last_batch_of_one_that_joined_the_one_before_is_within_the_budget(tmp_path: Path) -> None:
    """As where a model has BatchNorm; 9 samples are two batches then, of four and of five."""
    table = BASE | {"model": {"name": "helpers:normed"}}
    results = fedkin.compare(table, methods=["fedavg", "separate"], federation=toy((9, 9)), out=tmp_path)
    assert {each.factor for each in results.findings.spent.values()} == {1}
    assert results.findings.spent["fedavg"].gradients == 4


def test_steps_in_place_of_passes_are_the_budget(tmp_path: Path) -> None:
    table = merge(BASE, {"local": {"steps": 3}})
    results = fedkin.compare(table, methods=["fedavg", "fedprox"], federation=toy(SIZES), out=tmp_path)
    assert [each.budget for each in results.findings.spent.values()] == [3, 3]


def test_of_several_conditions_what_is_the_same_is_said_once(different: fedkin.Results) -> None:
    found = different.findings
    assert len(training.spent_sentences({"a": found, "b": found})) == 1
    alone = Findings([run for run in found.runs if run.summary.method == "fedavg"])
    assert [s.partition(":")[0] for s in training.spent_sentences({"a": found, "b": alone})] == ["a", "b"]
    told = training.unequal_sentences({"a": found, "b": alone})
    assert len(told) == 1 and told[0].startswith("a: The budget is 8")


def test_runs_that_do_not_say_it_are_left_out_and_without_a_budget_there_are_the_numbers(
    tmp_path: Path, different: fedkin.Results
) -> None:
    older = Findings(several(tmp_path, ["separate", "fedamp"], [0]))
    assert older.spent == {} and not older.unequal and training.spent_sentences({"": older}) == []
    runs = [Folder(run.path) for run in different.runs if run.summary.method in ("fedavg", "apfl")]
    for run in runs:
        run.change(samples=None)
    assert training.unequal_sentences({"": Findings(runs)}) == [
        "Methods did not spend the same number of gradients a client and round: fedavg 8 and apfl 16."
    ]
