"""The command line: what is typed is understood or answered, and what is printed can be read by people and pipes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import Said

from fedkin import __version__, methods
from fedkin.cli import terminal
from fedkin.studies.run import Run

SMALL = ["--clients", "5", "--epochs", "1", "--rounds", "2"]
LEAST = ["--clients", "5", "--epochs", "1", "--rounds", "1"]


@pytest.fixture
def fedkin(monkeypatch, capsys, tmp_path, command) -> Callable[..., Said]:
    """The command in this process, typed in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def type_(*words: str | Path) -> Said:
        code, printed = command(*words), capsys.readouterr()
        return Said(code, printed.out, printed.err)

    return type_


def process(*words: str | Path, cwd: Path, **environment: str) -> Said:
    """The command as a process of its own, without a terminal."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(
        [sys.executable, "-m", "fedkin", *map(str, words)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def story(run: Path) -> list[dict[str, Any]]:
    """The lines of rounds.jsonl without the time they took."""
    records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


# ---- as processes ----


def test_a_run_without_a_terminal_prints_plain_lines(tmp_path):
    said = process("run", "--method", "fedamp", "--split", "relabelled", *SMALL, cwd=tmp_path)
    assert said.code == 0, said.err
    assert "\x1b" not in said.out + said.err, "no escape codes"
    assert "\r" not in said.out + said.err, "no progress bar"
    lines = said.err.splitlines()
    assert re.fullmatch(r"fedamp on digits \(relabelled\), 5 clients, 4,810 parameters, cpu; .*", lines[0])
    assert re.fullmatch(r"round 1/2  cloud 0\.\d{4,5}  personal 0\.\d{4,5}  \d+\.\d\d s", lines[1])
    assert lines[2].startswith("round 2/2  ")
    assert lines[3].startswith("final  cloud ")
    assert len(lines) == 4
    assert "Run: runs/digits-relabelled-fedamp-seed0 " in said.out
    assert (tmp_path / "runs" / "digits-relabelled-fedamp-seed0" / "summary.json").exists()


def test_a_mistake_ends_the_process_with_code_2_and_one_line(tmp_path):
    said = process("run", "--method", "fedampp", "--out", "here", cwd=tmp_path)
    assert "Did you mean 'fedamp'?" in said.sentence()
    assert not list(tmp_path.iterdir()), "nothing was written"


def test_ones_own_loss_metric_and_model_are_found_where_the_command_is_typed(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch.nn.functional as F\n"
        "from torch import nn\n"
        "def loss(outputs, targets):\n"
        "    return 3 * F.cross_entropy(outputs, targets)\n"
        "def top2_accuracy(outputs, targets):\n"
        "    return (outputs.topk(2).indices == targets[:, None]).any(1).double()\n"
        "def model(inputs, outputs):\n"
        "    return nn.Linear(*inputs, outputs)\n"
    )
    own = ["--loss", "mine:loss", "--metric", "mine:top2_accuracy", "--model", "mine:model"]
    said = process("run", *own, *LEAST, "--out", "own", cwd=tmp_path)
    assert said.code == 0, said.err
    summary = Run(tmp_path / "own").summary
    assert (summary["metric"], summary["parameters"]) == ("mine:top2_accuracy", 650)
    assert "%" in said.out, "a share is printed in per cent"


# ---- mistakes ----


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--method", "fedampp"], "There is no method 'fedampp'. Did you mean 'fedamp'?"),
        (["--methd", "fedamp"], "There is no setting 'methd'. Did you mean 'method'?"),
        (["--local.epoch", "3"], "Did you mean 'local.epochs'?"),
        (["--split", "practicl"], "Did you mean 'practical'?"),
        (["--split", "natural"], "it has no natural split"),
        (["--data", "digit"], "There is no data set 'digit'. Did you mean 'digits'?"),
        (["--rounds", "0"], "rounds = 0 cannot be: input should be greater than or equal to 1"),
        (["--rounds", "three"], "rounds = 'three' cannot be: input should be a valid integer"),
        (["--rounds"], "The option --rounds needs a value"),
        (["--rounds", "--seed", "1"], "The option --rounds needs a value"),
        (["--alpha", "0.5"], "'alpha' could be data.alpha or settings.alpha; write it in full"),
        (["--clients", "7"], "7 clients cannot be dealt to them equally. Take a multiple of 5"),
        (["--clients", "1000"], "Ask for fewer clients"),
        (["--model", "mlpp"], "There is no model 'mlpp' (perhaps 'mlp' is meant)"),
        (["--model.settings.hiden", "[3]"], "perhaps 'hidden' is meant"),
        (["--loss", "cross_entrpy"], "did you mean 'cross_entropy'?"),
        (["--metric", "nowhere_at_all:f"], "could not be imported"),
        (["--class-weights", "[1, 2]"], "local.class_weights needs 10 numbers"),
        (["--method", "groups", "--split", "iid"], "averages inside known groups, and this federation has none"),
        (["--method", "scaffold", "--optimiser", "adam"], "SCAFFOLD needs plain SGD"),
        (["--participation.novel", "0.01"], "is nobody; take a larger share"),
        (["settings=3"], "settings is a table of settings, not 3"),
        (["fedamp"], "'fedamp' is neither a configuration file (.toml) nor a setting (key=value)"),
        (["absent.toml"], "There is no configuration file absent.toml"),
    ],
)
def test_a_mistake_is_answered_with_what_would_be_right_and_nothing_is_written(fedkin, tmp_path, words, answer):
    assert answer in fedkin("run", *words, "--out", "here").sentence()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--methods", "fedavg,fedprocks"], "There is no method 'fedprocks'. Did you mean 'fedprox'?"),
        (["--methods", ","], "at least one method and one seed"),
        (["--methods", "fedavg", "--figures", "svg"], "png or pdf, not as 'svg'"),
        (["--methods", "fedavg", "--lr", "-1"], "local.lr = -1 cannot be"),
        (["--methods", "separate,fedavg", "--mu", "1"], "'mu' is a setting of fedprox, not of the method chosen here"),
        (["--methods", "fedavg", "methods.fedamp.rounds=3"], "it is not among the methods compared"),
    ],
)
def test_a_mistake_in_a_comparison_is_found_before_anything_is_run(fedkin, tmp_path, words, answer):
    assert answer in fedkin("compare", *words, "--out", "here").sentence()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["rounds = ", "rounds = 1\nrounds = 2", "[local\nlr = 1"])
def test_a_file_that_is_not_toml_is_refused_with_its_name(fedkin, tmp_path, content):
    (tmp_path / "own.toml").write_text(content)
    assert "own.toml is not valid TOML" in fedkin("run", "own.toml", "--out", "here").sentence()
    assert not (tmp_path / "here").exists()


def test_a_folder_that_is_taken_is_left_alone(fedkin, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("do not touch")
    (tmp_path / "file").write_text("do not touch")
    assert fedkin("run", *LEAST, "--out", "mine").code == 0
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    for out, what in (
        ("mine", "holds another run"),
        ("full", "is not empty"),
        ("file", "is not a folder"),
        ("file/below", "cannot be made"),
    ):
        assert what in fedkin("run", *LEAST, "--out", out).sentence()
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def test_a_word_that_is_no_command_is_answered(fedkin):
    said = fedkin("runn")
    assert said.code == 2
    assert "No such command 'runn'" in said.err


# ---- fedkin run ----


def test_every_spelling_of_the_settings_gives_the_same_run(fedkin, tmp_path):
    spelt = {
        "a": [
            "--method",
            "fedprox",
            "--batch-size",
            "8",
            "--data.clients",
            "5",
            "--epochs=1",
            "rounds=1",
            "--mu",
            "0.1",
        ],
        "b": ["method=fedprox", "local.batch_size=8", "clients=5", "local.epochs=1", "--rounds=1", "settings.mu=0.1"],
    }
    for name, words in spelt.items():
        assert fedkin("run", *words, "--out", name).code == 0
    assert (tmp_path / "a" / "config.toml").read_text() == (tmp_path / "b" / "config.toml").read_text()
    assert story(tmp_path / "a") == story(tmp_path / "b")


@pytest.mark.parametrize(
    "words",
    [
        ["--method", "fedamp", "--split", "relabelled"],
        ["--method", "scaffold", "participation.lost=0.3", "participation.dropped=0.2", "participation.sample=0.7"],
        ["--method", "apfl", "--participation.novel", "0.4", "--model", "logistic"],
    ],
)
def test_the_configuration_that_a_run_leaves_repeats_it(fedkin, tmp_path, words):
    assert fedkin("run", *words, *SMALL, "--seed", "3", "--out", "first").code == 0
    assert fedkin("run", "first/config.toml", "--out", "again").code == 0
    assert story(tmp_path / "again") == story(tmp_path / "first")
    assert (tmp_path / "again" / "config.toml").read_text() == (tmp_path / "first" / "config.toml").read_text()
    assert fedkin("run", "first/config.toml", "--seed", "4", "--out", "other").code == 0
    assert story(tmp_path / "other") != story(tmp_path / "first")


def test_a_run_shows_every_model_and_what_became_of_newcomers(fedkin):
    said = fedkin("run", "--method", "fedavg", "--participation.novel", "0.4", *SMALL)
    assert said.code == 0
    newcomers = ("fedavg:global", "fedavg:finetuned", "known clients", "Held out")
    for word in ("global", "finetuned", "best test", "validated", *newcomers):
        assert word in said.out


def test_the_closing_exchange_is_no_round_of_its_own_in_the_table(fedkin):
    """FedAvg's global model is best after its only round; there is no round 2 of 1."""
    said = fedkin("run", "--method", "fedavg", *LEAST, "--epochs", "20", "--out", "here")
    assert Run("here").summary["models"]["global"]["bmta_round"] == 2
    row = next(line for line in said.out.splitlines() if "global" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")][4] == "final"


def test_a_run_that_cannot_stack_its_clients_says_why(fedkin, tmp_path):
    (tmp_path / "leaky_units.py").write_text(
        "from torch import nn\n"
        "def dropping(inputs, outputs):\n"
        "    return nn.Sequential(nn.Linear(*inputs, 8), nn.Dropout(0.5), nn.Linear(8, outputs))\n"
    )
    said = fedkin("run", "--model", "leaky_units:dropping", "--execution", "stacked", *LEAST)
    assert said.code == 0
    assert "Clients cannot be stacked: " in said.err


# ---- fedkin compare ----


COMPARE = ["compare", "--methods", "separate,fedavg,fedamp", *SMALL, "--seeds", "2", "--split", "relabelled"]


def test_a_comparison_prints_a_row_for_each_model_and_writes_a_report(fedkin, tmp_path):
    said = fedkin(*COMPARE, "--out", "c", "--figures", "png,pdf")
    assert said.code == 0, said.err
    rows = ["separate:personal", "fedavg:global", "fedavg:finetuned", "fedamp:cloud", "fedamp:personal"]
    for row in rows:
        line = next(line for line in said.out.splitlines() if line.strip().startswith(row))
        assert len(re.findall(r"\d+\.\d %", line)) == 6, "mean, worst, two deviations, last, validated"
    assert "Was it worth joining?" in said.out
    assert len(re.findall(r"^(Joining|Whether joining) ", said.out, re.MULTILINE)) == 1, "answered once"
    assert f"Report: {tmp_path / 'c' / 'report.html'}" in said.out
    page = (tmp_path / "c" / "report.html").read_text()
    assert all(row in page for row in rows)
    kinds = {p.suffix for p in (tmp_path / "c" / "figures").iterdir()}
    assert kinds == {".png", ".pdf"}
    assert sorted(p.name for p in (tmp_path / "c").glob("*-seed*")) == [
        f"{m}-seed{s}" for m in ("fedamp", "fedavg", "separate") for s in (0, 1)
    ]
    assert "\x1b" not in said.out + said.err


def test_the_table_of_a_comparison_fits_a_terminal_of_eighty_columns(fedkin, monkeypatch):
    from rich.console import Console

    fedkin("compare", "--methods", "heurfedamp,fedavg", *LEAST, "--out", "c")
    monkeypatch.setattr(terminal, "out", Console(width=80))
    said = fedkin("compare", "--methods", "heurfedamp,fedavg", *LEAST, "--out", "c")
    for row in ("heurfedamp:personal", "fedavg:finetuned"):
        line = next(line for line in said.out.splitlines() if line.strip().startswith(row))
        assert len(line) <= 80
        assert len(re.findall(r"\d+\.\d %", line)) == 5, "nothing is cut off"


def test_the_same_comparison_again_runs_nothing_and_prints_the_same(fedkin, tmp_path):
    first = fedkin(*COMPARE, "--out", "c")
    files = sorted((tmp_path / "c").rglob("*-seed*/*"))
    before = [f.stat().st_mtime_ns for f in files]
    again = fedkin(*COMPARE, "--out", "c")
    assert (again.code, again.out) == (0, first.out)
    assert [f.stat().st_mtime_ns for f in files] == before


def test_a_comparison_goes_on_with_what_is_unfinished(fedkin, tmp_path):
    first = fedkin(*COMPARE, "--out", "c")
    path = tmp_path / "c" / "fedamp-seed1"
    expected = story(path)
    (path / "summary.json").unlink()
    lines = (path / "rounds.jsonl").read_text().splitlines(keepends=True)
    (path / "rounds.jsonl").write_text("".join(lines[:2]) + lines[2][:40])
    again = fedkin(*COMPARE, "--out", "c")
    assert (again.code, again.out) == (0, first.out)
    assert story(path) == expected


@pytest.mark.parametrize(
    ("words", "tried"),
    [
        (["--tune", "--lr", "0.01"], ["x0.1", "x0.3", "x1", "x3", "x10"]),
        (["--lr", "0.01", "--tune"], ["x0.1", "x0.3", "x1", "x3", "x10"]),
        (["--tune", "own.toml"], ["x0.1", "x0.3", "x1", "x3", "x10"]),
        (["--tune", "seed=3"], ["x0.1", "x0.3", "x1", "x3", "x10"]),
        (["--tune", "0.01,0.1"], ["0.01", "0.1"]),
        (["--tune", "x1, x3"], ["x1", "x3"]),
        (["--tune=x2"], ["x2"]),
    ],
)
def test_tune_stands_alone_or_has_rates(fedkin, tmp_path, monkeypatch, words, tried):
    from fedkin.studies import compare as comparing

    asked = []
    (tmp_path / "own.toml").write_text("rounds = 1\n")
    monkeypatch.setattr(comparing, "compare", lambda raw, **given: asked.append(given["tune"]) or sys.exit(7))
    assert fedkin("compare", "--methods", "fedavg", *words).code == 7
    assert asked == [tried]


@pytest.mark.parametrize("word", ["abc", "x", "true,0.1", "0"])
def test_what_is_no_rate_to_tune_is_told_what_would_be(fedkin, tmp_path, word):
    said = fedkin("compare", "--methods", "fedavg", "--tune", word, "--out", "c").sentence()
    assert "A rate to try is a number above 0 such as 0.01, or a factor on a method's own such as x0.3" in said
    assert not (tmp_path / "c").exists()


def test_a_tuned_comparison_says_what_was_tried_and_chosen_and_a_report_says_it_again(fedkin, tmp_path):
    words = [
        "--methods",
        "separate,scaffold",
        *SMALL,
        "--split",
        "relabelled",
        "--tune",
        "0.0001,0.001,0.01",
        "--out",
        "c",
    ]
    said = fedkin("compare", *words)
    assert said.code == 0, said.err
    assert "[6/6] " in said.err and "scaffold, lr=" in said.err
    table = said.out[said.out.index("Each method's rate") :].splitlines()
    assert table[2].split() == ["method", "rate", "0.0001", "0.001", "0.01", "chosen"]
    for method in ("separate", "scaffold"):
        line = next(line for line in table if line.split()[:1] == [method])
        assert line.split()[1] == "local.lr" and line.count("%") == 3
    assert "The largest rate that was tried is the best for separate (local.lr = 0.01)" in said.out
    assert re.search(r"Trained with: Adam .* \(separate\); SGD .* \(scaffold\)", said.out)
    page = (tmp_path / "c" / "report.html").read_text()
    assert "What was tuned" in page and "trained with" in page
    again = fedkin("compare", *words)
    assert (again.code, again.out) == (0, said.out)
    assert fedkin("report", "c", "--out", "again.html").code == 0
    assert "What was tuned" in (tmp_path / "again.html").read_text()
    other = fedkin("compare", "--methods", "separate,scaffold", *SMALL, "--split", "relabelled", "--out", "c")
    assert "another kind, a comparison with rates tuned" in other.sentence()


def test_rates_are_tuned_under_every_combination_by_the_command(fedkin, tmp_path):
    words = ["--methods", "separate,scaffold", *LEAST, "--cross", "data.split=practical,relabelled", "--out", "c"]
    said = fedkin("compare", *words, "--tune", "x1,x3")
    assert said.code == 0, said.err
    assert "[8/8] " in said.err
    assert "Trained with: " in said.out
    assert said.out.count("local.lr ") >= 4
    page = (tmp_path / "c" / "report.html").read_text()
    assert "What was tuned" in page and "split = relabelled" in page
    assert fedkin("report", "c/data.split=practical").code == 0
    assert "What was tuned" in (tmp_path / "c" / "data.split=practical" / "report.html").read_text()


def test_a_comparison_refuses_a_folder_with_other_settings(fedkin, tmp_path):
    fedkin("compare", "--methods", "fedavg", *LEAST, "--out", "c")
    before = story(tmp_path / "c" / "fedavg-seed0")
    said = fedkin("compare", "--methods", "separate,fedavg", *LEAST, "--lr", "0.1", "--out", "c")
    assert "c/fedavg-seed0 holds a run with other settings" in said.sentence()
    assert story(tmp_path / "c" / "fedavg-seed0") == before
    assert not (tmp_path / "c" / "separate-seed0").exists()


def test_a_comparison_takes_a_file_seeds_and_settings_for_one_method(fedkin, tmp_path):
    (tmp_path / "own.toml").write_text(
        "rounds = 1\n[data]\nclients = 5\n[local]\nepochs = 1\n[methods.fedprox.settings]\nmu = 0.25\n"
    )
    said = fedkin("compare", "own.toml", "--methods", "fedavg, fedprox", "--seed", "4", "--out", "c")
    assert said.code == 0, said.err
    assert sorted(p.name for p in (tmp_path / "c").glob("*-seed*")) == ["fedavg-seed4", "fedprox-seed4"]
    assert Run(tmp_path / "c" / "fedprox-seed4").config["settings"] == {"mu": 0.25, "proximal": "exact"}
    assert fedkin("compare", "own.toml", "seed=6", "--methods", "fedprox", "--seeds", "2", "--out", "d").code == 0
    assert sorted(p.name for p in (tmp_path / "d").glob("*-seed*")) == ["fedprox-seed6", "fedprox-seed7"]


# ---- fedkin report ----


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two finished runs of one comparison and one that is not finished; tests only read them."""
    import shutil

    import fedkin

    folder = tmp_path_factory.mktemp("reported") / "runs"
    settings: dict[str, Any] = {"rounds": 1, "data": {"clients": 5}, "local": {"epochs": 1}}
    results = fedkin.compare(settings, methods=["separate", "fedamp"], out=folder)
    shutil.copytree(results.runs[0].path, folder / "unfinished")
    (folder / "unfinished" / "summary.json").unlink()
    return folder


def test_a_report_of_one_run_stands_in_its_folder(fedkin, runs):
    said = fedkin("report", runs / "fedamp-seed0", "--figures", "png")
    assert said.code == 0, said.err
    assert f"Report: {runs / 'fedamp-seed0' / 'report.html'}" in said.out
    assert "fedamp" in (runs / "fedamp-seed0" / "report.html").read_text()
    assert list((runs / "fedamp-seed0" / "figures").glob("*.png"))


def test_a_report_of_a_folder_compares_its_finished_runs_and_names_the_others(fedkin, runs, tmp_path):
    said = fedkin("report", runs, "--out", tmp_path / "sub" / "page.html")
    assert said.code == 0, said.err
    page = (tmp_path / "sub" / "page.html").read_text()
    assert "separate:personal" in page
    assert "fedamp:cloud" in page
    assert f"{runs / 'unfinished'} is not finished and is left out" in said.err


def test_several_runs_can_be_reported_side_by_side(fedkin, runs, tmp_path):
    said = fedkin("report", runs / "fedamp-seed0", runs / "separate-seed0")
    assert said.code == 0, said.err
    assert "separate:personal" in (tmp_path / "report.html").read_text()


def test_what_cannot_be_reported_is_answered_in_a_sentence(fedkin, runs, tmp_path):
    assert "is not finished; continue it with" in fedkin("report", runs / "unfinished").sentence()
    assert "is neither a run folder nor a folder of finished runs" in fedkin("report", tmp_path).sentence()
    assert "is neither a run folder" in fedkin("report", "absent").sentence()
    assert "png or pdf, not as 'gif'" in fedkin("report", runs, "--figures", "gif").sentence()
    fedkin("run", *LEAST, "--split", "iid", "--out", "other")
    said = fedkin("report", runs / "fedamp-seed0", "other")
    assert "Only runs with the same data, split and metric can be compared" in said.sentence()


# ---- what there is ----


def test_every_method_is_listed_in_a_sentence(fedkin):
    said = fedkin("methods")
    assert said.code == 0
    for name in methods.names():
        assert re.search(rf"\b{name}\b", said.out)
        sentence = (methods.find(name).__doc__ or "").split("\n\n")[0]
        assert sentence.rstrip().endswith(".") and "Models:" not in sentence
        assert len(sentence.split()) <= 40


@pytest.mark.parametrize("name", methods.names())
def test_a_method_shows_its_settings_in_full(fedkin, name):
    said = fedkin("methods", name)
    assert said.code == 0
    for field in methods.find(name).model_fields:
        assert f"settings.{field} " in said.out
    assert "…" not in said.out, "nothing is cut off"


def test_an_unknown_method_has_no_settings_to_show(fedkin):
    assert "Did you mean 'fedamp'?" in fedkin("methods", "fedam").sentence()


def test_the_version_and_the_help_are_told(fedkin):
    assert fedkin("--version") == Said(0, f"fedkin {__version__}\n", "")
    said = fedkin("--help")
    assert said.code == 0
    for command in ("demo", "run", "compare", "resume", "report", "methods", "doctor"):
        assert re.search(rf"\b{command}\b", said.out)
        assert fedkin(command, "--help").code == 0
    assert "Usage" in fedkin().out + fedkin().err, "without a word it helps"


def test_the_doctor_tries_a_small_run_and_leaves_nothing(fedkin, tmp_path):
    said = fedkin("doctor")
    assert said.code == 0, said.out
    for word in ("torch", "GPU", "plotly", "two rounds of FedAMP on digits"):
        assert word in said.out
    assert "look here" not in said.out
    assert not list(tmp_path.iterdir())


def test_a_doctor_who_finds_something_says_so_and_fails(fedkin, monkeypatch):
    from fedkin.studies import run

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no luck today")

    monkeypatch.setattr(run, "run", broken)
    said = fedkin("doctor")
    assert said.code == 1
    assert "RuntimeError: no luck today" in said.out
    assert "look here" in said.out


@pytest.mark.slow
def test_the_demo_runs_in_an_empty_folder(tmp_path):
    said = process("demo", "--seeds", "1", cwd=tmp_path)
    assert said.code == 0, said.err
    for row in ("separate:personal", "fedavg:global", "fedamp:cloud", "heurfedamp:cloud", "groups:cloud"):
        assert row in said.out
    assert "FedAMP was not told the groups" in said.out
    assert "\x1b" not in said.out + said.err
    assert (tmp_path / "runs" / "demo" / "report.html").exists()


def test_every_setting_is_listed_with_its_default(fedkin):
    said = fedkin("settings")
    assert said.code == 0
    for line in ("local.lr", "participation.dropped", "data.split", "model.settings", "rounds"):
        assert line in said.out


def test_in_a_comparison_a_methods_own_setting_goes_to_those_that_have_it(fedkin):
    assert fedkin("compare", "--methods", "separate,fedprox", "--mu", "0.5", *LEAST, "--out", "c").code == 0
    assert Run(Path("c/fedprox-seed0")).config["settings"]["mu"] == 0.5
    refused = fedkin("compare", "--methods", "separate,fedprox", "--sigma", "1", *LEAST, "--out", "d")
    assert refused.code == 2
    assert not Path("d").exists()


# ---- what is worth knowing of a table ----


def strange(folder: Path) -> list[str]:
    """A table with codes for a gap in a column of an unusual name, a record number and a rare class."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"silo": ["a", "b"] * 60, "age": rng.normal(60, 9, 120).round(2), "record": np.arange(120)})
    frame["glucose [mmol]"] = np.where(rng.random(120) < 0.1, -999, rng.normal(6, 1, 120).round(2))
    frame.assign(ill=np.where(np.arange(120) % 15 < 1, "yes", "no")).to_csv(folder / "t.csv", index=False)
    return ["--data", "t.csv", "--client", "silo", "--target", "ill", "--rounds", "1"]


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--method", "fedavg"],
        ["compare", "--methods", "separate,fedavg", "--seeds", "2"],
        ["tune", "--method", "fedavg", "--grid", "lr=0.01,0.02"],
    ],
)
def test_notes_are_told_whole_and_once_and_as_they_can_be_typed(fedkin, tmp_path, words):
    """A name in brackets was taken for a style and left out, and of a grid the first note alone was told."""
    said = fedkin(*words, *strange(tmp_path), "--out", "runs").err
    lines = said.splitlines()
    for note in (
        "Column 'glucose [mmol]' is -999 in ",
        """--missing-in '{"glucose [mmol]" = [-999]}' (table.missing_in = {"glucose [mmol]" = [-999]}).""",
        "--ignore record (table.ignore = ['record']) leaves it out.",
        "Of all rows 93 % are of the class 'no': a model that always says so has this accuracy, and has learned",
    ):
        assert sum(note in line for line in lines) == 1, said


def test_what_the_notes_advise_leaves_nothing_to_tell(fedkin, tmp_path):
    words = ["compare", "--methods", "separate,fedavg", *strange(tmp_path), "--out", "runs"]
    advised = ["--missing-in", '{"glucose [mmol]" = [-999]}', "--ignore", "record", "--metric", "auc"]
    said = fedkin(*words, *advised)
    assert said.code == 0
    assert not [line for line in said.err.splitlines() if "olumn" in line or "Of all rows" in line]
    notes = json.loads((tmp_path / "runs" / "fedavg-seed0" / "summary.json").read_text())["notes"]
    assert not [note for note in notes if "record" in note or "-999" in note or "Of all rows" in note]
