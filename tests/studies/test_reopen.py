"""A study that was run before opens again from its folder: the same numbers, and nothing is run or imported."""

from __future__ import annotations

import sys
from typing import Any

import pandas as pd
import pytest
from helpers import toy

import fedkin
from fedkin.engines.simulation import Simulation
from fedkin.errors import FedkinError

SMALL: dict[str, Any] = {"data": {"name": "digits", "clients": 5}, "rounds": 2, "local": {"epochs": 1}}


@pytest.fixture
def idle(monkeypatch):
    """From here on no run may be begun."""

    def forbid() -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise AssertionError("something was run")

        monkeypatch.setattr(Simulation, "run", refuse)

    return forbid


def same(one: Any, other: Any) -> None:
    pd.testing.assert_frame_equal(one.frame(), other.frame())


def test_a_comparison_reopens_with_its_table_its_verdict_its_report_and_its_figures(tmp_path, idle):
    before = fedkin.compare(SMALL, methods=["separate", "fedavg"], seeds=2, out=tmp_path / "both")
    idle()
    after = fedkin.open(tmp_path / "both")
    assert isinstance(after, fedkin.Results) and after.path == before.path
    assert [run.path for run in after.runs] == [run.path for run in before.runs], "in the order of the methods"
    same(before, after)
    pd.testing.assert_frame_equal(before.worth_joining().frame(), after.worth_joining().frame())
    assert after.tests() == before.tests()
    assert after.report(tmp_path / "page.html").exists()
    assert [path.suffix for path in after.figures(tmp_path / "figures", ["png"])]


def test_a_comparison_of_python_objects_reopens_too(tmp_path, idle):
    settings = {"rounds": 2, "local": {"epochs": 1}}
    before = fedkin.compare(settings, methods=["separate", "fedavg"], federation=toy(), out=tmp_path / "both")
    idle()
    after = fedkin.open(str(tmp_path / "both"))
    pd.testing.assert_frame_equal(before.frame().sort_index(), after.frame().sort_index())  # equal rows have no order


def test_a_tuned_comparison_reopens_with_the_rates_that_were_tried(tmp_path, idle):
    before = fedkin.compare(SMALL, methods=["fedavg"], tune=["x1", "x3"], out=tmp_path / "tuned")
    idle()
    after = fedkin.open(tmp_path / "tuned")
    same(before, after)
    assert [t.validation for t in after.tuned["fedavg"].trials] == [t.validation for t in before.tuned["fedavg"].trials]


def test_levels_combinations_and_a_grid_reopen(tmp_path, idle):
    """Two levels that come to the same settings are one folder."""
    levels = {"corruption.labels": [0, 0.4], "participation.dropped": [0.0]}
    varied = fedkin.vary(SMALL, levels=levels, methods=["fedavg"], out=tmp_path / "levels")
    crossed = fedkin.cross(SMALL, over={"lr": [0.001, 0.01]}, methods=["separate", "fedavg"], out=tmp_path / "crossed")
    grid = fedkin.tune(SMALL, grid={"lr": [0.001, 0.01]}, method="fedavg", out=tmp_path / "grid")
    idle()
    again = fedkin.open(tmp_path / "levels")
    assert isinstance(again, fedkin.Levels) and len(again.levels) == 3
    same(varied, again)
    assert [level.path for level in again.levels] == [level.path for level in varied.levels]
    same(crossed, fedkin.open(tmp_path / "crossed"))
    reopened = fedkin.open(tmp_path / "grid")
    assert isinstance(reopened, fedkin.Tuned)
    same(grid, reopened)
    assert reopened.values == grid.values and reopened.at_the_edge() == grid.at_the_edge()
    for each in (again, reopened):
        assert each.report(tmp_path / "page.html").exists()


def test_a_run_folder_is_a_run(tmp_path):
    fedkin.run(method="fedavg", out=tmp_path / "one", **SMALL)
    assert isinstance(fedkin.open(tmp_path / "one"), fedkin.Run)


def test_a_run_that_is_not_finished_is_left_out_with_a_word(tmp_path):
    fedkin.compare(SMALL, methods=["separate", "fedavg"], out=tmp_path / "both")
    (tmp_path / "both" / "fedavg-seed0" / "summary.json").unlink()
    with pytest.warns(UserWarning, match="fedavg-seed0 is not finished and is left out"):
        found = fedkin.open(tmp_path / "both")
    assert [run.summary.method for run in found.runs] == ["separate"]


def test_a_folder_without_runs_is_refused_in_a_sentence(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(FedkinError, match="is neither a run folder nor a folder of finished runs"):
            fedkin.open(path)
    fedkin.compare(SMALL, methods=["separate"], out=tmp_path / "deep" / "both")
    with pytest.raises(FedkinError, match="Folders of runs in it: both"):
        fedkin.open(tmp_path / "deep")
    with pytest.raises(FedkinError, match="is not a run folder"):
        fedkin.Run(tmp_path / "deep" / "both")


def test_opening_and_reporting_imports_no_code_that_a_folder_names(tmp_path, monkeypatch):
    (tmp_path / "stranger_method.py").write_text(
        "from fedkin.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    'Mine.'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    fedkin.compare(SMALL, methods=["separate", "stranger_method:Mine"], out=tmp_path / "both")
    fedkin.tune(SMALL, grid={"lr": [0.001, 0.01]}, method="stranger_method:Mine", out=tmp_path / "grid")
    sys.modules.pop("stranger_method")
    assert len(fedkin.open(tmp_path / "both").rows()) > 1
    fedkin.open(tmp_path / "both").report()
    fedkin.open(tmp_path / "grid").report()
    assert "stranger_method" not in sys.modules
