"""A metric that some clients do not have: an AUC of test or validation samples that are of one class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import BASE, ready, toy

import fedkin
from fedkin import Run
from fedkin.data.federation import Client, Federation
from fedkin.data.preprocessing import Pixels
from fedkin.engines.handing import HandOut
from fedkin.engines.scores import Scores
from fedkin.errors import FedkinError
from fedkin.evidence.records import Line, ModelScores, Validation
from fedkin.runs.config import merge
from fedkin.runs.folder import Writer

SETTINGS = merge(BASE, {"learning": {"metric": "auc"}, "data": {"validation": 0.3}})


def one_class(names: str, tests: int = 40) -> Federation:
    """The toy federation in which the test samples of the clients named are all of class 0."""
    members = []
    for client in toy((30, 26, 20, 14), tests=tests).clients:
        x, y = client.test
        members.append(Client(client.name, client.train, (x, torch.zeros_like(y)) if client.name in names else (x, y)))
    return Federation("toy", tuple(members), toy().task)


def test_a_client_without_score_is_left_out_of_everything(tmp_path: Path) -> None:
    results = fedkin.compare(
        SETTINGS, methods=["separate", "fedavg", "fedamp"], seeds=2, federation=one_class("b"), out=tmp_path / "runs"
    )
    for run in results.runs:
        lines = [json.loads(line) for line in (run.path / "rounds.jsonl").read_text().splitlines()]
        for line in lines:
            for scores in line["models"].values():
                assert scores["clients"][1] is None
                rest = [score for i, score in enumerate(scores["clients"]) if i != 1]
                assert scores["mean"] == pytest.approx(np.mean(rest))
                assert scores["std"] == pytest.approx(np.std(rest))
        for model in run.summary["models"].values():
            assert 0 < model["last"] <= model["bmta"] <= 1 and model["validated"] is not None
        assert np.isnan(run.metrics()["b"]["chosen"]["auc"]).all()
        assert run.metrics()["b"]["chosen"]["accuracy"].value >= 0
    assert all(0 < row.worst <= row.score for row in results.rows())
    assert all((pair.result.pairs, pair.p) == (3, None) for pair in results.tests()), "of four clients"
    answers = {silo.client: silo for silo in results.worth_joining().silos}
    assert answers["b"].verdict == "cannot tell: all test samples are of one class"
    assert np.isfinite(answers["a"].gain).all()
    for drawn_with in ("plotly", "matplotlib", "rich"):
        pytest.importorskip(drawn_with)
    from fedkin.cli.terminal import show_comparison

    page = results.report().read_text()
    assert "all test samples are of one class" in page
    assert len(results.figures(formats=["png"])) == 4
    show_comparison(results)


def test_newcomers_without_score_do_not_stop_a_comparison(tmp_path: Path, capsys) -> None:
    federation = one_class("")
    lots = ready(federation, participation={"novel": 0.25}).problem.names[3]
    run = fedkin.run(
        SETTINGS, method="fedavg", participation={"novel": 0.25}, federation=one_class(lots), out=tmp_path / "run"
    )
    assert run.summary["novel"]["models"]["global"]["mean"] is None
    for drawn_with in ("plotly", "rich"):
        pytest.importorskip(drawn_with)
    from fedkin.cli.terminal import show_comparison

    results = fedkin.Results([Run(run.path)], tmp_path)
    results.report()
    show_comparison(results)
    assert "newcomers" in capsys.readouterr().out


def test_where_nobody_has_a_score_nothing_is_run(tmp_path: Path) -> None:
    with pytest.raises(
        FedkinError, match="No client's test data has samples of two classes, so nobody would have an AUC"
    ):
        fedkin.run(SETTINGS, federation=one_class("abcd"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def chosen(folder: Path, **validation: list[float]) -> list[str]:
    """The models that four clients with so many validation samples are handed, by their scores on these."""
    a = ready(toy((30, 26, 20, 14)), method="fedavg", data={"validation": 0.3})
    counts = torch.tensor(a.cohort.validation.counts)
    assert counts.tolist() == [9, 8, 6, 4]
    held = {name: Validation(mean=0.0, clients=tuple(values)) for name, values in validation.items()}
    models = {name: ModelScores(clients=(0.0,) * 4, validation=each) for name, each in held.items()}
    ahead = Scores(a.problem, counts).look_back([Line(round=1, models=models)], "global", 0, counts)
    hand_out = HandOut(a, Writer.create(folder / "run", a.config), torch.full((4,), torch.inf), ahead)
    rows = {name: a.problem.initial.repeat(4, 1) for name in validation}
    found = {"validation": {name: torch.tensor(values) for name, values in validation.items()}}
    hand_out.add([0, 1, 2, 3], dict(rows), found)
    return hand_out.handed


def test_the_best_on_validation_data_is_handed_out_and_what_has_no_score_is_not(tmp_path: Path) -> None:
    nan = float("nan")
    own: dict[str, Any] = {"global": [0.5, 0.5, nan, 0.9], "finetuned": [0.7, 0.5, 0.8, nan]}
    assert chosen(tmp_path / "own", **own) == ["finetuned", "global", "global", "global"]


def test_who_has_few_validation_samples_is_handed_what_is_clearly_better_for_all(tmp_path: Path) -> None:
    """FedAvg's one model where labels disagree: 46 %, where the fine-tuned have 79 %, and it was handed out."""
    everywhere: dict[str, Any] = {"global": [0.4, 0.5, 0.5, 0.5], "finetuned": [0.8, 0.8, 0.9, 0.5]}
    assert chosen(tmp_path / "everywhere", **everywhere) == ["finetuned"] * 4
    mixed: dict[str, Any] = {"global": [0.4, 0.9, 0.5, 0.0], "finetuned": [0.8, 0.6, 0.6, 1.0]}
    assert chosen(tmp_path / "mixed", **mixed) == ["finetuned", "global", "finetuned", "global"], (
        "four samples tell nothing"
    )


def test_a_client_whose_own_samples_say_so_keeps_what_is_worse_for_the_others(tmp_path: Path) -> None:
    own: dict[str, Any] = {"global": [0.9, 0.5, 0.5, 0.5], "finetuned": [0.4, 0.6, 0.6, 0.6]}
    assert chosen(tmp_path / "own", **own) == ["global", "finetuned", "finetuned", "global"]


def test_models_are_saved_with_their_preprocessing(tmp_path: Path) -> None:
    pixels = Pixels((4,), 255.0, (0.5,), (0.2,))
    clients = [Client(c.name, c.train, c.test, preprocessing=pixels if c.name == "c" else None) for c in toy().clients]
    federation = Federation("toy", tuple(clients), toy().task)
    run = fedkin.run(BASE, method="fedavg", federation=federation, out=tmp_path / "run")
    assert run.model("c")[1]["preprocessing"] == json.loads(json.dumps(pixels.to_json()))
    assert run.model("a")[1]["preprocessing"] is None
    assert run.model("a")[1]["target"] == {"mean": 0.0, "scale": 1.0}
