"""Where methods train with different optimisers or rates, a comparison says so; where they train alike, it does not."""

from __future__ import annotations

import html
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import BASE, toy
from made_runs import Folder, several

import fedkin
from fedkin import methods, report
from fedkin.engines import start
from fedkin.evidence.findings import Findings
from fedkin.runs.config import merge
from fedkin.training.optimisers import Local

ADAM = {"optimiser": "adam", "lr": 0.002}
TABLE = merge(BASE, {"rounds": 1, "methods": {"scaffold": {"local": {"optimiser": "sgd", "lr": 0.07}}}, "local": ADAM})


@pytest.fixture(scope="module")
def different(tmp_path_factory: pytest.TempPathFactory) -> fedkin.Results:
    folder = tmp_path_factory.mktemp("different")
    return fedkin.compare(TABLE, methods=["fedavg", "scaffold"], federation=toy((20, 16), (0, 1)), out=folder)


def test_a_table_of_scaffold_and_fedavg_says_by_what_they_trained(
    different: fedkin.Results, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from fedkin.cli.terminal import show_comparison

    show_comparison(different)
    said = " ".join(capsys.readouterr().out.split())
    assert "Trained with: Adam 0.002 (fedavg); SGD 0.07 (scaffold)." in said
    page = different.report(tmp_path / "page.html").read_text()
    assert "trained with</th>" in page
    assert ">Adam 0.002</td>" in page and ">SGD 0.07</td>" in page


def test_where_all_train_alike_nothing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedkin.cli.terminal import show_comparison

    table = merge(BASE, {"rounds": 1, "local": ADAM})
    results = fedkin.compare(table, methods=["fedavg", "separate"], federation=toy((20, 16), (0, 1)), out=tmp_path)
    assert results.findings.trained_with == {}
    show_comparison(results)
    assert "rained with" not in capsys.readouterr().out
    assert "rained with" not in results.report(tmp_path / "page.html").read_text()


def test_runs_that_do_not_say_how_they_trained_are_not_told_apart(tmp_path: Path) -> None:
    assert Findings(several(tmp_path, ["separate", "fedamp"], [0])).trained_with == {}


def test_a_method_that_can_no_longer_be_imported_is_told_by_its_local_training(
    different: fedkin.Results, tmp_path: Path
) -> None:
    own = Folder(different.runs[0].path)
    own.change(method="gone.away:Method")
    found = Findings([own, *different.runs[1:]])
    assert found.trained_with == {"gone.away:Method": "Adam 0.002", "scaffold": "SGD 0.07"}
    report.write_report(found, tmp_path / "page.html")


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("fedamp", {}, "SGD 0.05 with momentum 0.9"),
        ("perfedavg", {"beta": 0.02, "alpha": 0.3}, "SGD 0.02, adaptation 0.3"),
        ("pfedme", {"personal_lr": 0.04}, "SGD 0.04"),
        (
            "pfedhn",
            {"server_optimiser": "sgd", "server_lr": 0.03, "server_momentum": 0.0},
            "SGD 0.05 with momentum 0.9, hypernetwork SGD 0.03",
        ),
    ],
)
def test_methods_with_rates_of_their_own_say_them(name: str, settings: dict[str, float], said: str) -> None:
    method = methods.find(name)(**settings)
    assert method.trained_with(Local(optimiser="sgd", lr=0.05, momentum=0.9)) == said


def test_every_method_says_by_what_it_trains() -> None:
    for name in methods.names():
        config = start.configured({"method": name})
        assert config.built_method().trained_with(config.local)


def test_a_page_says_by_whose_statistics_a_table_was_scaled_where_methods_differ(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"silo": ["a", "b"] * 30, "x": rng.normal(size=60), "y": ["no", "yes", "yes"] * 20})
    for said in ({}, {"statistics": "own"}):
        federation = fedkin.Federation.from_table(frame, "silo", "y", **said)
        folder = tmp_path / f"{len(said)}"
        results = fedkin.compare(methods=["separate", "fedavg", "fedamp"], federation=federation, rounds=1, out=folder)
        sentence = (
            "Inputs are scaled by each silo's own means and deviations under separate, as it is alone there, and by "
            "those of all silos together under fedavg and fedamp."
        )
        assert (html.escape(sentence, quote=False) in html.unescape(results.report().read_text())) == (not said)
    toys = fedkin.compare(BASE, methods=["fedavg", "separate"], federation=toy((20, 16), (0, 1)), out=tmp_path / "toy")
    assert "are scaled by" not in toys.report().read_text(), "arrays are taken as they are"
