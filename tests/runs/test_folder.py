"""Run folders: what is written is whole or not there, and what is damaged is said to be."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fedkin
from fedkin.engines import start
from fedkin.engines.simulation import Interrupted, Listener
from fedkin.runs.config import read_toml, resolve
from fedkin.runs.folder import RunError, Writer, file_name, read_lines, replace_file
from fedkin.studies.run import Run

CONFIG = resolve({"rounds": 3, "data": {"clients": 5}, "local": {"epochs": 1}})
STRICT: dict[str, Any] = {"parse_constant": lambda word: pytest.fail(f"{word} is not JSON")}


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Run:
    """A small finished run; tests only read it."""
    return fedkin.run(CONFIG, out=tmp_path_factory.mktemp("runs") / "finished")


def unfinished(path: Path) -> Run:
    """A run that was asked to stop after its first round."""
    with pytest.raises(Interrupted):
        start.start(start.prepare(CONFIG), path, Listener(stop=lambda: True))
    return Run(path)


# ---- files ----


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    replace_file(path, b"old")

    def fail(*_: object) -> None:
        raise OSError("the power went")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(RunError, match="the power went. Nothing that was saved before is lost"):
            replace_file(path, b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("file", b"old")]
    replace_file(path, b"newer")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("file", b"newer")]


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(NAMES, NAMES)
def test_different_clients_have_different_files_in_the_same_folder(one, other):
    for name in (one, other):
        path = Path("models") / f"{file_name(name)}.safetensors"
        assert path.parent == Path("models")
        assert file_name(name).isascii()
        assert not file_name(name).startswith(".")
    assert (file_name(one) == file_name(other)) == (one == other)


# ---- writing ----


def test_a_new_run_goes_into_a_new_or_an_empty_folder_alone(tmp_path):
    Writer.create(tmp_path / "deep" / "new", CONFIG)
    (tmp_path / "empty").mkdir()
    Writer.create(tmp_path / "empty", CONFIG)
    assert resolve(read_toml(tmp_path / "empty" / "config.toml")) == CONFIG
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("do not touch")
    (tmp_path / "file").write_text("do not touch")
    for name, said in (("empty", "holds an unfinished run"), ("other", "is not empty"), ("file", "is not a folder")):
        with pytest.raises(RunError, match=f"{name} {said}.*; choose another folder"):
            Writer.create(tmp_path / name, CONFIG)
    with pytest.raises(RunError, match="cannot be made: Not a directory"):
        Writer.create(tmp_path / "file" / "below", CONFIG)
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["thesis.tex"]


def test_what_a_run_killed_at_birth_leaves_is_no_hindrance(tmp_path):
    (tmp_path / "config.toml.new").write_text("method = ")
    Writer.create(tmp_path, CONFIG)
    assert [p.name for p in tmp_path.iterdir()] == ["config.toml"]


def test_what_is_no_number_is_null_in_the_files(tmp_path):
    writer = Writer.create(tmp_path / "run", CONFIG)
    odd = {"mean": float("nan"), "clients": torch.tensor([1.0, float("inf")]), "deep": [{"x": float("-inf")}]}
    writer.line(odd)
    writer.summary(odd)
    for name in ("rounds.jsonl", "summary.json"):
        found = json.loads((writer.path / name).read_text(), **STRICT)
        assert found == {"mean": None, "clients": [1.0, None], "deep": [{"x": None}]}


def lines_of(writer: Writer, *rounds: int) -> None:
    for number in rounds:
        writer.line({"round": number, "models": {}})


def test_a_line_that_a_crash_cut_short_is_not_read(tmp_path):
    writer = Writer.create(tmp_path / "run", CONFIG)
    lines_of(writer, 1, 2)
    path = writer.path / "rounds.jsonl"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        first = whole.index(b"\n")
        assert [r["round"] for r in read_lines(path)] == [1, 2][: (length >= first) + (length >= len(whole) - 1)]
    path.write_bytes(whole + b"\0\0\0\0")
    assert len(read_lines(path)) == 2


def test_going_back_to_a_round_drops_what_came_after_it(tmp_path):
    writer = Writer.create(tmp_path / "run", CONFIG)
    lines_of(writer, 1, 2, 3)
    writer.line({"round": 4, "final": True, "models": {}})
    writer.line({"round": 5, "novel": True, "models": {}})
    for number in (1, 2, 3, 4):
        writer.collaboration(number, torch.eye(2) * number)
    assert [r["round"] for r in writer.cut_back(2)] == [1, 2]
    assert [r["round"] for r in Run(writer.path).rounds] == [1, 2]
    assert Run(writer.path).recorded == [1, 2]
    writer.line({"round": 3, "models": {}})
    assert [r["round"] for r in Run(writer.path).rounds] == [1, 2, 3]
    assert writer.cut_back(0) == []
    assert Run(writer.path).recorded == []


def test_what_a_kill_left_half_written_does_not_pile_up(tmp_path):
    """safetensors writes to .tmpXXXXXX first, which may be as large as all clients' weights."""
    run = unfinished(tmp_path / "run")
    (run.path / "models").mkdir()
    for name in ("checkpoint/.tmpCFXxlQ", "checkpoint/state.safetensors.new", "models/.tmpAbCdEf"):
        (run.path / name).write_bytes(b"half")
    fedkin.resume(run.path)
    assert not [p for p in run.path.rglob("*") if p.name.startswith(".") or p.name.endswith(".new")]


def test_a_checkpoint_later_than_the_lines_is_refused(tmp_path):
    """Lines that were lost cannot be written again: the run would have a hole."""
    run = unfinished(tmp_path / "run")
    (run.path / "rounds.jsonl").write_text("")
    with pytest.raises(RunError, match="is of round 1, but the whole lines of rounds.jsonl end with round 0"):
        fedkin.resume(run.path)
    assert not run.complete


def test_a_model_comes_back_with_what_it_is(tmp_path):
    writer = Writer.create(tmp_path / "run", CONFIG)
    tensors = {"head.weight": torch.randn(4, 3).t(), "head.bias": torch.randn(3)}
    writer.model("St. Mary's / North", tensors, {"chosen": "cloud", "score": float("nan")})
    found, about = Run(writer.path).model("St. Mary's / North")
    assert about == {"chosen": "cloud", "score": None}
    assert {n: bits(t) for n, t in found.items()} == {n: bits(t) for n, t in tensors.items()}


# ---- reading ----


def test_a_folder_without_a_configuration_is_no_run(tmp_path):
    with pytest.raises(RunError, match="is not a run folder: it has no config.toml"):
        Run(tmp_path)


def test_an_unfinished_run_says_how_to_go_on(tmp_path):
    run = unfinished(tmp_path / "run")
    assert not run.complete
    assert [r["round"] for r in run.rounds] == [1]
    with pytest.raises(RunError, match="fedkin resume"):
        _ = run.summary


@pytest.mark.parametrize("content", [b"", b"{", b'{"method": "fedamp"', b"\xff\xfe", b"[]", b"{}", b"null"])
def test_a_damaged_summary_is_said_to_be_damaged(tmp_path, content):
    run = unfinished(tmp_path / "run")
    (run.path / "summary.json").write_bytes(content)
    with pytest.raises(RunError, match=r"summary\.json is damaged .*remove it"):
        _ = Run(run.path).summary


def test_a_finished_runs_files_are_strict_json(finished):
    json.loads((finished.path / "summary.json").read_text(), **STRICT)
    for line in (finished.path / "rounds.jsonl").read_text().splitlines():
        json.loads(line, **STRICT)


def test_scores_are_a_row_for_each_round_and_one_for_the_closing_exchange(finished):
    m = len(finished.summary["clients"])
    scores = finished.scores()
    assert scores.shape == (4, m)
    assert finished.rounds[-1]["final"] is True
    assert np.isclose(scores[-1].mean(), finished.summary["models"]["cloud"]["last"])
    assert np.isclose(np.nanmax(scores.mean(1)), finished.summary["models"]["cloud"]["bmta"])
    assert finished.scores("personal").shape == (4, m)
    assert finished.scores(part="validation").shape == (4, m)
    with pytest.raises(RunError, match="has no model 'global'; it has cloud, personal"):
        finished.scores("global")


def test_a_frame_has_a_row_for_each_round_model_and_client(finished):
    frame = finished.frame()
    assert list(frame.columns) == ["round", "model", "client", "score"]
    assert len(frame) == 4 * 2 * 5
    last = frame[(frame["round"] == 4) & (frame["model"] == "cloud")].set_index("client")["score"]
    assert last.to_dict() == dict(zip(finished.summary["clients"], finished.scores()[-1], strict=True))


def test_collaboration_is_that_of_the_chosen_round_unless_told_otherwise(finished):
    chosen = finished.summary["models"]["cloud"]["validated_round"]
    assert finished.recorded == [1, 2, 3, 4]
    assert np.array_equal(finished.collaboration(), finished.collaboration(chosen))
    assert np.array_equal(finished.collaboration(1), np.eye(5)), "before anyone was heard"
    assert np.allclose(finished.collaboration(4).sum(1), 1)
    with pytest.raises(RunError, match=r"round 9 was not recorded; recorded are \[1, 2, 3, 4\]"):
        finished.collaboration(9)


def test_a_model_of_a_stranger_is_not_there(finished):
    with pytest.raises(RunError, match="no model of a client 'nobody'.*Clients are silo-00"):
        finished.model("nobody")


def test_there_is_a_model_for_every_client_and_nothing_unfinished_beside_it(finished):
    names = sorted(p.name for p in (finished.path / "models").iterdir())
    assert names == sorted(f"{client}.safetensors" for client in finished.summary["clients"])
    assert not list(finished.path.rglob("*.new"))
