"""A report that cannot be written is told in a sentence, and the one that was there before stays."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import matplotlib.figure
import pytest
from made_runs import several

from fedkin import report
from fedkin.errors import FedkinError
from fedkin.report import html
from fedkin.report.writing import whole


def full(*arguments: Any, **named: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def half_written(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content[: len(content) // 2])
    full()


def test_a_failing_write_leaves_the_old_report_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, target = several(tmp_path / "runs", ["separate", "fedamp"], [0]), tmp_path / "report.html"
    before = report.write_report(runs, target).read_bytes()
    monkeypatch.setattr(Path, "write_bytes", half_written)
    with pytest.raises(FedkinError) as told:
        report.write_report(runs, target, title="Another")
    assert str(told.value) == (
        f"{target} cannot be written: No space left on device. What stood there before is as it was; make room, or "
        "choose another place."
    )
    assert target.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "runs"], "nothing half written lies about"


def test_a_failing_figure_leaves_the_old_one_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, folder = several(tmp_path / "runs", ["separate"], [0]), tmp_path / "figures"
    paths = report.write_figures(runs, folder)
    before = {path: path.read_bytes() for path in paths}
    monkeypatch.setattr(
        matplotlib.figure.Figure, "savefig", lambda self, place, **named: half_written(place, b"%PDF-1.4")
    )
    with pytest.raises(FedkinError, match=r"curves\.png cannot be written: No space left on device"):
        report.write_figures(runs, folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_place_that_cannot_be_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FedkinError, match=r"file/below/report\.html cannot be written: Not a directory\."):
        html.write(tmp_path / "file" / "below" / "report.html", "A title", [], [])
    with pytest.raises(FedkinError, match="cannot be written: Is a directory"), whole(tmp_path / "folder") as new:
        new.write_text("a page")
    assert (tmp_path / "file").read_text() == "mine"
