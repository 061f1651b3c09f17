"""Tuning: every point of the grid is an ordinary run, and validation data alone choose among them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import BASE, toy

import fedkin
from fedkin import FedkinError, Listener
from fedkin.base.settings import ConfigError
from fedkin.engines import lockstep, start
from fedkin.engines.simulation import Interrupted
from fedkin.runs import options
from fedkin.runs.config import merge
from fedkin.runs.folder import RunError
from fedkin.studies import tune
from fedkin.studies.supply import Supply

SIZES, GROUPS = (40, 36, 30, 24), (0, 1, 0, 1)
TABLE = merge(BASE, {"data": {"validation": 0.25}, "precision": "float32", "method": "fedamp"})


def tuned(out: Path, grid: dict[str, Any], **settings: Any) -> fedkin.Tuned:
    federation = settings.pop("federation", None) or toy(SIZES, GROUPS)
    return fedkin.tune(merge(TABLE, settings), grid=grid, federation=federation, out=out)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# ---- what is tried ----


def test_every_combination_is_a_run_with_its_values(tmp_path: Path) -> None:
    found = tuned(tmp_path, {"lr": [0.01, 0.1], "settings.sigma": ["auto", 2.0, 5]})
    expected = [(lr, sigma) for lr in (0.01, 0.1) for sigma in ("auto", 2.0, 5)]
    assert [tuple(t.values.values()) for t in found.trials] == expected
    names = [f"lr={lr},sigma={sigma}" for lr, sigma in expected]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*names, "best.toml"])
    for name, (lr, sigma) in zip(names, expected, strict=True):
        run = fedkin.Run(tmp_path / name)
        assert run.complete
        assert (run.config["local"]["lr"], run.config["settings"]["sigma"]) == (lr, sigma)


def test_a_point_is_the_run_that_it_would_be_by_itself(tmp_path: Path) -> None:
    found = tuned(tmp_path / "grid", {"lr": [0.01, 0.1], "beta": [1.0, 1e4]})
    for trial in found.trials:
        own = {
            "local": {"lr": trial.values["local.lr"]},
            "settings": {"beta": trial.values["settings.beta"]},
        }
        alone = fedkin.run(merge(TABLE, own), federation=toy(SIZES, GROUPS), out=tmp_path / trial.name)
        assert alone.config == trial.run.config
        assert [r["models"] for r in alone.rounds] == [r["models"] for r in trial.run.rounds]


def test_points_that_train_alike_share_a_stack_and_the_others_come_one_after_another(tmp_path: Path) -> None:
    grid = {"lr": [0.01, 0.1], "sigma": ["auto", 2.0], "beta": [1.0, 1e4], "model.settings.hidden": [[5], [3]]}
    plan = tune.plan(TABLE, grid, tmp_path, {"federation": toy(SIZES, GROUPS)})
    kinds = [{(p.values["settings.beta"], tuple(p.values["model.settings.hidden"])) for p in s} for s in plan.stacks]
    assert [len(stack) for stack in plan.stacks] == [4, 4, 4, 4]
    assert all(len(kind) == 1 for kind in kinds) and len(set.union(*kinds)) == 4
    assert not list(tmp_path.iterdir())


def test_stacks_are_no_larger_than_memory_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = toy(SIZES, GROUPS)
    row = 4 * (4 * 5 + 5 + 5 * 3 + 3)  # float32, four inputs, five hidden, three classes
    for fits, expected in ((3.5, [3, 3, 1]), (0.1, [1] * 7), (100, [7])):
        room = int(fits * 2 * row * 16 * len(SIZES))
        monkeypatch.setattr("fedkin.base.machine.free_bytes", lambda device, room=room: room)
        plan = tune.plan(TABLE, {"lr": [0.01 * i for i in range(1, 8)]}, tmp_path, {"federation": federation})
        assert [len(stack) for stack in plan.stacks] == expected


def test_settings_are_called_by_their_full_or_last_name_in_a_file_or_beside_it(tmp_path: Path) -> None:
    objects = {"federation": toy(SIZES, GROUPS)}
    plan = tune.plan({**TABLE, "grid": {"lr": [1.0], "settings": {"sigma": [3]}}}, {}, tmp_path, objects)
    assert plan.grid == {"local.lr": [1.0], "settings.sigma": [3]}
    plan = tune.plan({**TABLE, "grid": {"lr": [1.0]}}, {"lr": [2.0, 3.0]}, tmp_path, objects)
    assert plan.grid == {"local.lr": [2.0, 3.0]}, "what is said beside the file wins"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["lr=0.001,0.01"], {"lr": [0.001, 0.01]}),
        (["--lr=1e-3, 1"], {"lr": [0.001, 1]}),
        (["sigma=auto,10", "nesterov=true,false"], {"sigma": ["auto", 10], "nesterov": [True, False]}),
        (["model.settings.hidden=[32],[64,32]"], {"model.settings.hidden": [[32], [64, 32]]}),
        (["weight-decay=0"], {"weight_decay": [0]}),
        (['a="x,y",z'], {"a": ['"x', 'y"', "z"]}),
    ],
)
def test_values_are_read_as_toml_where_they_are_toml_and_else_are_words(words: list[str], found: Any) -> None:
    assert options.chosen("--grid", words) == found


def test_folders_are_told_apart_whatever_the_values() -> None:
    assert options.label({"local.lr": 1e-05, "settings.sigma": "auto"}) == "lr=1e-05,sigma=auto"
    assert options.label({"model.settings.hidden": [64, 32]}) == "hidden=64-32"
    assert options.label({"local.alpha": 1, "settings.alpha": 2}) == "local.alpha=1,settings.alpha=2"
    assert options.label({"model.name": "../evil model"}) == "name=..-evil-model"
    assert tune._unused("a", {"a", "a-2"}) == "a-3"


# ---- what is chosen ----


def validation_means(run: fedkin.Run) -> list[float]:
    """The mean validation score by round, from the lines on disk."""
    lines = [json.loads(line) for line in (run.path / "rounds.jsonl").read_text().splitlines()]
    vectors = [line["models"][run.summary["headline"]]["validation"]["clients"] for line in lines]
    return [sum(v) / len(v) for v in vectors]


def test_the_best_mean_on_validation_data_is_chosen_and_the_test_score_is_of_that_round(tmp_path: Path) -> None:
    """These runs are so short that the round that is taken has no neighbours."""
    found = tuned(tmp_path, {"lr": [0.0001, 0.03, 0.1]})
    means = [validation_means(t.run) for t in found.trials]
    taken = [t.run.summary.models["cloud"].validated_round or 0 for t in found.trials]
    scores = [own[at - 1] for own, at in zip(means, taken, strict=True)]
    assert [t.validation for t in found.trials] == pytest.approx(scores)
    assert [t.round for t in found.trials] == taken
    top = max(range(3), key=lambda i: scores[i])
    assert found.best is found.trials[top] and found.values == {"local.lr": [0.0001, 0.03, 0.1][top]}
    line = found.best.run.rounds[taken[top] - 1]["models"]["cloud"]["clients"]
    assert found.test == pytest.approx(sum(line) / len(line))


def test_test_data_have_no_say(tmp_path: Path) -> None:
    federation = toy(SIZES, GROUPS)
    source = torch.Generator().manual_seed(0)
    lied = tuple(
        replace(c, test=(c.test[0], c.test[1][torch.randperm(len(c.test[1]), generator=source)]))
        for c in federation.clients
    )
    honest = tuned(tmp_path / "honest", {"lr": [0.0001, 0.03, 0.1]})
    other = tuned(tmp_path / "other", {"lr": [0.0001, 0.03, 0.1]}, federation=replace(federation, clients=lied))
    assert [t.validation for t in honest.trials] == [t.validation for t in other.trials]
    assert honest.values == other.values
    assert honest.test != other.test


def test_of_equals_the_first_is_chosen(tmp_path: Path) -> None:
    found = tuned(tmp_path, {"settings.gamma": [4.0, 2.0, 3.0]})  # of mcp, which is not used here
    assert len({t.validation for t in found.trials}) == 1
    assert found.values == {"settings.gamma": 4.0}


def test_where_lower_is_better_the_lowest_is_chosen(tmp_path: Path) -> None:
    found = tuned(tmp_path, {"lr": [0.0001, 0.05]}, learning={"metric": "log_loss"})
    assert not found.best.run.summary["higher_is_better"]
    assert found.best.validation == min(t.validation for t in found.trials if t.validation is not None)


def test_best_toml_is_the_best_run_again(tmp_path: Path) -> None:
    fedkin.tune(data={"split": "relabelled"}, rounds=2, grid={"lr": [0.0001, 0.01]}, out=tmp_path / "grid")
    table = tomllib.loads((tmp_path / "grid" / "best.toml").read_text())
    assert table["local"]["lr"] == 0.01
    again = fedkin.run(tmp_path / "grid" / "best.toml", out=tmp_path / "again")
    best = fedkin.Run(tmp_path / "grid" / "lr=0.01")
    assert [r["models"] for r in again.rounds] == [r["models"] for r in best.rounds]


def test_a_point_that_diverged_and_was_told_to_stop_is_out_of_the_running(tmp_path: Path) -> None:
    local = {"optimiser": "sgd"}
    found = tuned(tmp_path, {"lr": [0.05, 1e30]}, method="fedavg", on_divergence="stop", local=local)
    assert [t.validation is None for t in found.trials] == [False, True]
    assert found.values == {"local.lr": 0.05}
    with pytest.raises(ConfigError, match="diverged at every point"):
        tuned(tmp_path / "all", {"lr": [1e20, 1e30]}, method="fedavg", on_divergence="stop", local=local)


# ---- the edge of the grid ----


def at_the_edge(grid: dict[str, list[Any]], chosen: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    config = start.configured(TABLE)
    points = [tune.Point("p", config, Path(), chosen)]
    found = tune.Tuned(grid, [], tune.Plan(grid, points, [list(points)], Path(), {}, {}, Supply({})))
    monkeypatch.setitem(found.__dict__, "best", tune.Trial("p", chosen, [], 0.5, 1))
    return found.at_the_edge()


@pytest.mark.parametrize(
    ("name", "values", "chosen", "said"),
    [
        (
            "local.lr",
            [0.001, 0.01, 0.1],
            0.1,
            "0.1 is the largest value of the grid: a larger one may be better. .* as 1;",
        ),
        ("local.lr", [0.1, 0.001, 0.01], 0.001, "0.001 is the smallest value .* smaller one .* as 0.0001;"),
        ("local.lr", [0.001, 0.01, 0.1], 0.01, None),
        ("local.lr", [0.1], 0.1, None),
        ("local.epochs", [4, 5, 6], 6, "such as 7;"),
        ("settings.sigma", ["auto", 10, 100], "auto", None),
        ("settings.sigma", ["auto", 10, 100], 100, "such as 1000;"),
        ("local.momentum", [0.0, 0.5, 0.9], 0.0, None),  # there is none below
        ("settings.weight_on_others", [0.5, 1.0], 1.0, None),  # nor above
        ("local.nesterov", [False, True], True, None),
    ],
)
def test_a_best_value_at_the_edge_is_told_with_the_way_to_go(
    name: str, values: list[Any], chosen: Any, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import re

    told = at_the_edge({name: values}, {name: chosen}, monkeypatch)
    assert len(told) == (said is not None)
    assert said is None or re.search(said, told[0])


# ---- going on ----


def test_the_same_call_keeps_what_is_complete_and_more_values_add_to_it(tmp_path: Path) -> None:
    tuned(tmp_path, {"lr": [0.01, 0.1]})
    before = files(tmp_path)
    tuned(tmp_path, {"lr": [0.01, 0.1]})
    assert files(tmp_path) == before
    found = tuned(tmp_path, {"lr": [0.01, 0.05, 0.1]})
    after = files(tmp_path)
    assert {name: after[name] for name in before if name != "best.toml"} == {
        name: content for name, content in before.items() if name != "best.toml"
    }
    assert len(found.trials) == 3


def test_an_interrupted_grid_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    grid = {"lr": [0.01, 0.1], "beta": [1.0, 100.0]}
    whole = tuned(tmp_path / "whole", grid)
    seen = 0

    def stop() -> bool:
        nonlocal seen
        seen += 1
        return seen > 2  # in the second round of the first stack

    arguments: dict[str, Any] = {"grid": grid, "federation": toy(SIZES, GROUPS), "out": tmp_path / "parts"}
    with pytest.raises(Interrupted):
        fedkin.tune(TABLE, listener=lambda name: Listener(stop=stop), **arguments)
    assert not (tmp_path / "parts" / "best.toml").exists()
    assert len(list((tmp_path / "parts").iterdir())) == 2, "the second stack had not begun"
    found = fedkin.tune(TABLE, **arguments)
    assert [t.validation for t in found.trials] == [t.validation for t in whole.trials]
    assert (tmp_path / "parts" / "best.toml").read_text() == (tmp_path / "whole" / "best.toml").read_text()


def test_other_settings_in_the_same_folder_are_refused(tmp_path: Path) -> None:
    tuned(tmp_path, {"lr": [0.01, 0.1]})
    before = files(tmp_path)
    with pytest.raises(RunError, match="holds a run with other settings"):
        tuned(tmp_path, {"lr": [0.05, 0.1]}, rounds=4)
    assert files(tmp_path) == before


def test_listeners_are_told_of_every_point(tmp_path: Path) -> None:
    told: dict[str, int] = {}

    def listener(name: str) -> Listener:
        def on_round(record: dict[str, Any]) -> None:
            told[name] = told.get(name, 0) + 1

        return Listener(on_round=on_round)

    fedkin.tune(TABLE, grid={"lr": [0.01, 0.1]}, federation=toy(SIZES, GROUPS), out=tmp_path, listener=listener)
    assert told == {"lr=0.01": 4, "lr=0.1": 4}


# ---- what is refused, before anything is run ----


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({}, "The grid is empty"),
        ({"lr": []}, "local.lr needs a list of values"),
        ({"lr": 0.1}, "local.lr needs a list of values"),
        ({"lr": "0.1,0.2"}, "local.lr needs a list of values"),
        ({"lrr": [0.1]}, "There is no setting 'lrr'. Did you mean 'lr'?"),
        ({"mu": [0.1]}, "'mu' is a setting of fedprox, not of the method chosen here"),
        ({"lr": [0.1, -1]}, "local.lr = -1 cannot be: input should be greater than 0"),
        ({"lr": [0.1, "fast"]}, "local.lr = 'fast' cannot be"),
        ({"sigma": ["auto", "large"]}, "settings.sigma = 'large' cannot be"),
        ({"attention": ["mcp", "tamed_square_root"]}, "An automatic sigma is for practice mode"),
        ({"lr": [0.1, 0.2, 0.1]}, "local.lr is to have the value 0.1 twice"),
        ({"lr": [0.1], "local.lr": [0.2]}, "The values of local.lr are given twice"),
        ({"data.split": ["iid", "practical"]}, "data.split cannot be tuned.*fedkin compare --vary data.split="),
        ({"corruption.labels": [0, 0.2]}, "corruption.labels cannot be tuned"),
        ({"rounds": [1, 2]}, "rounds cannot be tuned"),
        ({"method": ["fedavg", "fedamp"]}, "method cannot be tuned"),
        ({"methods.fedamp.sigma": [1]}, "methods.fedamp.sigma cannot be tuned"),
        ({"local": [1]}, "'local' is a table; its settings are local.epochs"),
        ({"model.settings.hiden": [[1]]}, "hiden"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_before_anything_runs(tmp_path: Path, grid: dict[str, Any], said: str) -> None:
    with pytest.raises(FedkinError, match=said.replace("?", r"\?")):
        tuned(tmp_path / "out", grid)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("sizes", "share", "said"),
    [((40, 36), 0.0, "set data.validation to a share"), ((4, 3), 0.1, "0.1 of so few samples is none")],
)
def test_without_validation_data_nothing_can_be_chosen(
    tmp_path: Path, sizes: tuple[int, ...], share: float, said: str
) -> None:
    with pytest.raises(ConfigError, match=f"no client has any: {said}"):
        tuned(tmp_path / "out", {"lr": [0.1, 0.2]}, data={"validation": share}, federation=toy(sizes))
    assert not (tmp_path / "out").exists()


# ---- the command, and what it shows ----

Fedkin = Callable[..., int]


def test_the_command_shows_every_point_and_the_test_score_of_the_chosen_alone(
    tmp_path: Path, command: Fedkin, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", "digits", "--split", "relabelled", "--rounds", "2", "--epochs", "1"]
    grid = ["--grid", "lr=0.0001,0.01", "--grid", "sigma=auto,10"]
    assert command("tune", *words, *grid, "--out", tmp_path / "out") == 0
    said = capsys.readouterr()
    assert "4 points of the grid; 4 are trained in one stack." in said.err
    lines = [line.split() for line in said.out.splitlines() if line.strip().startswith("0.")]
    assert [line[:2] for line in lines] == [["0.0001", "auto"], ["0.0001", "10"], ["0.01", "auto"], ["0.01", "10"]]
    tests = [line.count("%") - 1 for line in lines]
    assert sum(tests) == 1, "one test score, of the chosen point"
    assert "local.lr = 0.01 is the largest value of the grid" in said.out
    page = (tmp_path / "out" / "report.html").read_text()
    assert "local.lr = 0.01" in page and "default-src 'none'" in page
    assert command("tune", *words, *grid, "--out", tmp_path / "out") == 0
    assert "4 points of the grid, 4 of them complete already." in capsys.readouterr().err


def test_the_command_takes_a_grid_from_the_file(tmp_path: Path, command: Fedkin) -> None:
    file = tmp_path / "grid.toml"
    file.write_text('rounds = 1\nmethod = "fedprox"\n[local]\nepochs = 1\n[grid]\nlr = [0.01, 0.02]\nmu = [0.1, 1.0]\n')
    assert command("tune", file, "--out", tmp_path / "out") == 0
    assert {p.name for p in (tmp_path / "out").iterdir() if p.is_dir()} == {
        f"lr={lr},mu={mu}" for lr in (0.01, 0.02) for mu in (0.1, 1.0)
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "The grid is empty"),
        (["--grid", "lr"], "does not say which values to take"),
        (["--grid", "lr="], "does not say which values to take"),
        (["--grid", "lr=1", "--grid", "lr=2"], "--grid lr=… is given twice"),
        (["--grid", "larning_rate=1"], "There is no setting 'larning_rate'"),
        (["--grid", "lr=0.1,0"], "local.lr = 0 cannot be"),
        (["--grid", "data.split=iid,practical"], "data.split cannot be tuned"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence_with_exit_code_2(
    tmp_path: Path, command: Fedkin, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert command("tune", *words, "--out", tmp_path / "out") == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("settings", [1, 2, 3])
def test_the_page_draws_the_grid_whatever_its_dimension(tmp_path: Path, settings: int) -> None:
    grid = dict(list({"lr": [0.01, 0.1], "sigma": ["auto", 2.0], "beta": [1.0, 1e4]}.items())[:settings])
    found = tuned(tmp_path, grid)
    from fedkin.report.tuning import landscape

    drawn = landscape(found)
    best = found.best.validation
    if settings == 2:
        cells = [list(row) for row in drawn.data[0].z]
        assert [cell for row in cells for cell in row] == [t.validation for t in found.trials]
    else:
        assert len(drawn.data) == settings
        assert all(max(panel.y) == best for panel in drawn.data)
    assert found.report().stat().st_size > 1000
    assert list(found.frame()["validation"]) == [t.validation for t in found.trials]


def test_kinds_of_training_do_not_depend_on_the_order_of_settings() -> None:
    from fedkin.methods.fedamp import FedAMP
    from fedkin.training.optimisers import Local

    assert lockstep.kind(FedAMP(beta=1, mode="practice"), Local()) == lockstep.kind(
        FedAMP(mode="practice", beta=1), Local(lr=9)
    )
    assert lockstep.kind(FedAMP(beta=1), Local()) != lockstep.kind(FedAMP(beta=2), Local())
    assert lockstep.kind(FedAMP(), Local()) != lockstep.kind(FedAMP(), Local(epochs=3))
