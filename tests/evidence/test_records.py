"""What a run wrote down: types that read as the files read, and lose nothing of them."""

from __future__ import annotations

import json
import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from helpers import ROOT, simulate, toy

from fedkin import Run
from fedkin.evidence.records import Line, ModelScores, Summary, Validation

OLD = {
    "method": "fedamp", "data": "digits", "split": "iid", "seed": 0, "rounds": 3, "clients": ["a", "b"],
    "metric": "accuracy", "headline": "cloud", "models": {"cloud": {"bmta": 0.9, "bmta_round": 2}},
}  # fmt: skip
"""A summary of the days when there was less to say."""


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    """To the letter: the same names, in the same order, with the same values."""
    path = simulate(tmp_path, toy(groups=[0, 0, 1, 1]), method="fedamp", participation={"novel": 0.25}).writer.path
    run = Run(path)
    summary = json.loads((path / "summary.json").read_text())
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    assert json.dumps(dict(run.summary)) == json.dumps(summary)
    assert [json.dumps(dict(line)) for line in run.rounds] == [json.dumps(line) for line in lines]
    assert run.summary == summary and run.rounds == lines
    assert list(summary) == [
        "method", "data", "split", "seed", "rounds", "preset", "clients", "groups", "samples", "corrupted", "metric",
        "higher_is_better", "headline", "models", "kept", "collaboration", "novel", "untrained", "linear", "notes",
        "ended", "diverged", "withheld", "bytes_down", "bytes_up", "gradients", "passes", "seconds", "peak_bytes",
        "parameters", "execution", "versions", "commit", "device",
    ]  # fmt: skip
    ordinary = ["round", "seconds", "bytes_down", "bytes_up", "participants", "gradients", "passes", "train_loss"]
    ordinary += ["diverged", "models"]
    assert [list(line) for line in lines[:3]] == [ordinary] * 3
    assert list(lines[3]) == [*ordinary[:-1], "final", "models"]
    assert [list(line) for line in lines[4:]] == [["round", "novel", "models"]] * len(lines[4:]) != []
    assert list(lines[0]["models"]["cloud"]) == ["mean", "std", "clients", "validation"]
    assert list(summary["execution"])[-2:] == ["threads", "threads_reason"]
    assert summary["kept"] == ["personal"]
    assert run.summary.models["cloud"].bmta == summary["models"]["cloud"]["bmta"]


def test_a_record_is_a_mapping_of_plain_tables_and_lists() -> None:
    scores = ModelScores(mean=0.5, std=0.1, clients=(0.4, 0.6), validation=Validation(mean=1.0, clients=(1.0, None)))
    line = Line(round=3, participants=("a", "b"), peak_bytes=7, models={"cloud": scores})
    assert line["models"]["cloud"]["validation"]["clients"] == [1.0, None]
    assert isinstance(line["models"]["cloud"], dict) and line["participants"] == ["a", "b"]
    assert line.get("final", "no") == "no" and "final" not in line and line["peak_bytes"] == 7
    assert line == json.loads(json.dumps(dict(line)))
    with pytest.raises(KeyError):
        line["seed"]
    with pytest.raises(FrozenInstanceError):
        line.round = 4  # type: ignore[misc]


def test_an_old_summary_can_be_read_and_a_newer_one_keeps_what_is_not_known_here() -> None:
    old = Summary.read(OLD)
    assert (old.corrupted, old.novel, old.groups, old.higher_is_better) == ((), None, None, True)
    assert old.models["cloud"].validated is None
    newer = Summary.read(OLD | {"weather": {"rain": True}, "models": {"cloud": OLD["models"]["cloud"] | {"auc": 0.7}}})  # type: ignore[index]
    assert newer["weather"] == {"rain": True} and newer["models"]["cloud"]["auc"] == 0.7
    assert json.loads(json.dumps(dict(newer)))["weather"] == {"rain": True}


@pytest.mark.parametrize("lost", ["method", "models", "seed"])
def test_what_is_not_a_record_is_refused_in_words(lost: str) -> None:
    with pytest.raises(ValueError, match=f"it is not a summary: there is no '{lost}'"):
        Summary.read({name: value for name, value in OLD.items() if name != lost})
    with pytest.raises(ValueError, match="it is not a line"):
        Line.read([])
    with pytest.raises(ValueError, match="its models are not a table"):
        Line.read({"round": 1, "models": []})


def test_fedkin_itself_reads_records_by_their_attributes() -> None:
    """A string in brackets is not seen by a type checker."""
    by_string = re.compile(r"""\b(summary|record|line|novel|execution)(\[["']|\.get\(["'])""")
    found = [
        f"{path.relative_to(ROOT)}: {text.strip()}"
        for path in (ROOT / "src" / "fedkin").rglob("*.py")
        if path.name != "records.py"
        for text in path.read_text(encoding="utf-8").splitlines()
        if by_string.search(text)
    ]
    assert found == []
