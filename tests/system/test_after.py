"""`fedkin predict` and `fedkin export`: what a silo does with its model, typed as a person would."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from helpers import Said
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import tensor

import fedkin as package
from fedkin.cli import after
from fedkin.data.preprocessing import Category, Number, TablePreprocessing
from fedkin.studies.run import Run

LEAST = {"rounds": 1, "data": {"clients": 5}, "local": {"epochs": 1}}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with a finished run, and pixels of new digits."""
    folder = tmp_path_factory.mktemp("made")
    package.run(method="fedamp", out=folder / "run", **LEAST)
    pixels = np.random.default_rng(0).integers(0, 17, (30, 64))
    np.save(folder / "new.npy", pixels)
    np.savez(folder / "new.npz", x=pixels)
    return folder


@pytest.fixture
def fedkin(monkeypatch, capsys, tmp_path, made, command) -> Callable[..., Said]:
    """The command in this process, typed in a folder with a run and new rows."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)

    def type_(*words: str | Path) -> Said:
        code, printed = command(*words), capsys.readouterr()
        return Said(code, printed.out, printed.err)

    return type_


def process(*words: str | Path, cwd: Path, bytes_a_file: int = resource.RLIM_INFINITY) -> Said:
    """The command as a process of its own, without a terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "fedkin", *map(str, words)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_a_file, bytes_a_file)),
    )
    return Said(done.returncode, done.stdout, done.stderr)


def left(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


# ---- predict ----


def test_a_pipe_gets_csv_with_every_row(fedkin):
    said = fedkin("predict", "run", "--client", "silo-01", "new.npy")
    assert (said.code, said.err) == (0, "")
    frame = pd.read_csv(io.StringIO(said.out))
    assert list(frame.columns[:2]) == ["row", "prediction"] and frame.shape == (30, 12)
    assert list(frame["row"]) == list(range(1, 31))
    expected = Run("run").predict("silo-01", np.load("new.npy"))
    assert np.allclose(frame.iloc[:, 2:], expected.probabilities, rtol=1e-6)
    assert [str(label) for label in frame["prediction"]] == [str(label) for label in expected.labels]
    assert np.allclose(frame.iloc[:, 2:].sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(("name", "read"), [("out.csv", pd.read_csv), ("deep/out.parquet", pd.read_parquet)])
def test_a_file_gets_every_row(fedkin, name, read):
    said = fedkin("predict", "run", "new.npz", "--client", "silo-01", "--out", name)
    assert (said.code, said.out) == (0, "")
    assert said.err == f"30 rows: {name}\n"
    assert read(name).shape == (30, 12)


def test_a_silo_needs_nothing_but_its_own_file(fedkin, tmp_path):
    expected = fedkin("predict", "run", "--client", "silo-02", "new.npy").out
    (tmp_path / "hospital").mkdir()
    shutil.move("run/models/silo-02.safetensors", "hospital/ours.safetensors")
    shutil.rmtree("run")
    said = fedkin("predict", "hospital/ours.safetensors", "new.npy")
    assert (said.code, said.out) == (0, expected)
    assert fedkin("predict", "hospital/ours.safetensors", "new.npy", "--client", "silo-02").out == expected
    other = fedkin("predict", "hospital/ours.safetensors", "new.npy", "--client", "silo-03")
    assert "is the model of 'silo-02', not of 'silo-03'" in other.sentence()


def test_a_terminal_shows_the_first_rows_as_a_table(fedkin, monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(after, "out", Console(file=shown, force_terminal=True, width=80, no_color=True))
    assert fedkin("predict", "run", "--client", "silo-01", "new.npy").code == 0
    lines = [line for line in shown.getvalue().splitlines() if line.strip()]
    assert "…" not in shown.getvalue(), "it fits"
    assert "and 10 more rows; --out FILE.csv writes them all" in lines[-1]
    assert len(lines) == 23, "two lines of head, twenty rows, a word"


def test_ones_own_network_is_named_again(fedkin, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef model(inputs, outputs):\n    return nn.Linear(*inputs, outputs)\n"
    )
    assert fedkin("run", "--model", "mine:model", "--clients", "5", "--rounds", "1", "--out", "own").code == 0
    words = ["predict", "own", "--client", "silo-00", "new.npy"]
    sentence = fedkin(*words).sentence()
    assert "'mine:model'" in sentence and "--model package.module:factory" in sentence
    assert len(fedkin(*words, "--model", "mine:model").out.splitlines()) == 31
    assert "has no 'modl' (perhaps 'model' is meant)" in fedkin(*words, "--model", "mine:modl").sentence()
    said = fedkin("export", "own", "--client", "silo-00", "--format", "state_dict", "--model", "mine:model")
    assert set(load_file(said.out.strip())) == {"weight", "bias"}


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["predict", "run", "new.npy"], "Whose model? Say it with --client; in run are silo-00, silo-01, silo-02"),
        (["predict", "run", "new.npy", "--client", "silo-9"], "There is no model of a client 'silo-9' in run"),
        (["predict", "absent", "new.npy"], "There is no model file absent"),
        (["predict", ".", "new.npy", "--client", "a"], ". is not a run folder"),
        (["predict", "new.npy", "new.npy"], "new.npy cannot be read as safetensors"),
        (["predict", "run", "absent.npy", "--client", "silo-01"], "There is no file absent.npy"),
        (["predict", "run", "run/config.toml", "--client", "silo-01"], "read from a .npy or a .npz"),
        (["predict", "run", "new.npy", "--client", "silo-01", "--out", "out.xlsx"], "written as .csv or .parquet"),
        (["predict", "run", "new.npy", "--client", "silo-01", "--out", "new.csv"], "new.csv exists already"),
        (["export", "run"], "Whose model?"),
        (["export", "run", "--client", "silo-01", "--format", "pickle"], "exported as onnx or state_dict, not as"),
        (["export", "run", "--client", "silo-01", "--out", "new.npy"], "cannot be written"),
        (["export", "absent.safetensors"], "There is no model file absent.safetensors"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_one_sentence_and_nothing_is_written(fedkin, tmp_path, words, answer):
    (tmp_path / "new.csv").write_text("precious")
    before = left(tmp_path)
    assert answer in fedkin(*words).sentence()
    assert left(tmp_path) == before
    assert (tmp_path / "new.csv").read_text() == "precious"


def table_model(low: float | None = None, high: float | None = None) -> None:
    """A model of a table, by hand, in north.safetensors: 100 + 5 (age - 50) / 10, and 10 for women, 20 for men."""
    columns = (Number("age", mean=50.0, scale=10.0, low=low, high=high), Category("sex", categories=("f", "m")))
    about = {
        "client": "north",
        "method": "fedavg",
        "chosen": "global",
        "model": {"name": "logistic"},
        "task": {"kind": "regression", "inputs": [3], "outputs": 1},
        "target": {"mean": 100.0, "scale": 5.0},
        "preprocessing": TablePreprocessing(columns).to_json(),
    }
    weights = {"head.weight": tensor([[1.0, 2.0, 4.0]]), "head.bias": tensor([0.0])}
    save_file(weights, "north.safetensors", {"fedkin": json.dumps(about)})


def test_a_table_goes_in_and_notes_come_out(fedkin, tmp_path):
    """What the rows hold that training did not is told, and does not stop anything."""
    table_model(low=20, high=80)
    Path("new.csv").write_text("sex,age\nm,60\nf,50\nx,40\nf,630\n")
    said = fedkin("predict", "north.safetensors", "new.csv")
    assert said.out == "row,prediction\n1,125\n2,110\n3,95\n4,400\n"
    assert "'x' did not occur in any training row" in said.err and said.code == 0
    assert "which had 20 to 80, such as 630 in new.csv, line 5; is it in the same unit?" in said.err
    assert len(said.err.splitlines()) == 2


def test_identifiers_stay_beside_the_answers_in_every_kind_of_output(fedkin, monkeypatch):
    table_model()
    Path("new.csv").write_text('id,age,"name, first",sex,note\n0007,60,"Doe, ""J""",m,\n12,50,Roe,f,x\n')
    expected = 'row,id,"name, first",note,prediction\n1,0007,"Doe, ""J""",,125\n2,12,Roe,x,110\n'
    assert fedkin("predict", "north.safetensors", "new.csv").out == expected
    assert fedkin("predict", "north.safetensors", "new.csv", "--out", "out.csv").code == 0
    assert Path("out.csv").read_text() == expected
    fedkin("predict", "north.safetensors", "new.csv", "--out", "out.parquet")
    assert list(pd.read_parquet("out.parquet")["id"]) == ["0007", "12"]
    shown = io.StringIO()
    monkeypatch.setattr(after, "out", Console(file=shown, force_terminal=True, width=80, no_color=True))
    assert fedkin("predict", "north.safetensors", "new.csv").code == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue())
    lines = [line.split() for line in plain.splitlines() if line.strip()]
    assert lines[0] == ["row", "id", "name,", "first", "note", "prediction"]
    assert lines[2] == ["1", "0007", "Doe,", '"J"', "125"]


def test_a_terminal_shows_of_many_columns_the_first(fedkin, monkeypatch):
    table_model()
    Path("new.csv").write_text("age,sex," + ",".join(f"c{i}" for i in range(30)) + "\n60,m" + ",1" * 30 + "\n")
    shown = io.StringIO()
    monkeypatch.setattr(after, "out", Console(file=shown, force_terminal=True, width=80, no_color=True))
    assert fedkin("predict", "north.safetensors", "new.csv").code == 0
    assert "c0" in shown.getvalue() and "c29" not in shown.getvalue()
    assert "and 27 more columns of new.csv" in " ".join(shown.getvalue().split())


# ---- export ----


def test_everyones_models_are_exported_in_one_go(fedkin, tmp_path):
    said = fedkin("export", "run", "--client", "all", "--format", "state_dict")
    assert said.code == 0 and said.err == ""
    paths = [Path(line) for line in said.out.splitlines()]
    assert paths == [Path(f"run/exported/silo-0{i}.safetensors") for i in range(5)]
    for path in paths:
        assert json.loads(path.with_suffix(".json").read_text())["client"] == path.stem
    paths[3].with_suffix(".json").unlink()
    for path in paths[:3]:
        path.unlink()
        path.with_suffix(".json").unlink()
    before = left(tmp_path)
    assert (
        "silo-03.safetensors exists already"
        in fedkin("export", "run", "--client", "all", "--format", "state_dict").sentence()
    )
    assert left(tmp_path) == before, "not even those before it"


def test_a_file_is_exported_to_a_folder_of_ones_choice(fedkin):
    said = fedkin("export", "run/models/silo-03.safetensors", "--out", "elsewhere")
    assert (said.code, said.out, said.err) == (0, "elsewhere/silo-03.onnx\n", "")
    session = onnxruntime.InferenceSession("elsewhere/silo-03.onnx")
    pixels = np.load("new.npy")
    (found,) = session.run(["probabilities"], {"inputs": pixels.astype(np.float32)})
    assert np.allclose(found, Run("run").predict("silo-03", pixels).probabilities, rtol=1e-4, atol=1e-7)


# ---- as processes ----


def test_predict_and_export_as_processes_say_what_they_should(made, tmp_path):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    said = process("predict", "run", "--client", "silo-01", "new.npy", cwd=tmp_path)
    assert (said.code, said.err, len(said.out.splitlines())) == (0, "", 31)
    said = process("export", "run", "--client", "silo-01", cwd=tmp_path)
    assert said == Said(0, "run/exported/silo-01.onnx\n", ""), "the exporter's chatter does not reach anyone"


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "run", "new.npy", "--client", "silo-01", "--out", "deep/out.csv"],
        ["export", "run", "--client", "silo-01", "--format", "state_dict"],
    ],
    ids=lambda words: words[0],
)
def test_no_room_for_the_file_is_one_sentence_and_leaves_no_part_of_it(made, tmp_path, words):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    before = left(tmp_path)
    said = process(*words, cwd=tmp_path, bytes_a_file=1000)
    assert "cannot be written: File too large" in said.sentence()
    assert left(tmp_path) == before
