"""Methods over levels of a setting: each level is a comparison of its own, and the rows say what it came to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import BASE, toy

import fedkin
from fedkin import FedkinError
from fedkin.config import merge
from fedkin.federation import Federation
from fedkin.report.levels import lines, picture, places
from fedkin.runs import RunError

METHODS = ["fedamp", "fedavg", "separate"]
LEVELS = {"corruption.labels": [0, 0.5], "participation.dropped": [0, 0.5]}
TABLE = merge(BASE, {"precision": "float32", "data": {"validation": 0.25}, "local": {"lr": 0.2}})


def federation() -> Federation:
    return toy((20, 18, 16, 14, 12, 10), (0, 1, 0, 1, 0, 1))


def varied(out: Path, levels: dict[str, Any] | None = None, **settings: Any) -> fedkin.Levels:
    arguments: dict[str, Any] = {"methods": METHODS, "seeds": 2, "federation": federation(), "out": out}
    return fedkin.vary(TABLE, levels=levels or LEVELS, **(arguments | settings))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> fedkin.Levels:
    return varied(tmp_path_factory.mktemp("levels"))


def test_every_level_is_a_comparison_of_its_own_and_the_same_settings_are_run_once(found: fedkin.Levels) -> None:
    runs = sorted(f"{method}-seed{seed}" for method in METHODS for seed in (0, 1))
    folders = {p.name: sorted(q.name for q in p.iterdir()) for p in found.path.iterdir()}
    assert folders == dict.fromkeys(["corruption.labels=0", "corruption.labels=0.5", "participation.dropped=0.5"], runs)
    assert [(level.setting, level.value) for level in found.levels] == [(s, v) for s, vs in LEVELS.items() for v in vs]
    for level in found.levels:
        for run in level.results.runs:
            table, key = level.setting.split(".")
            assert run.config[table][key] == level.value
            others = {"corruption": "participation", "participation": "corruption"}[table]
            assert run.config[others]["dropped" if others == "participation" else "labels"] == 0
    first, shared = found.levels[0], found.levels[2]
    assert [r.path for r in first.results.runs] == [r.path for r in shared.results.runs]


def test_a_level_is_what_compare_gives_with_that_setting(found: fedkin.Levels, tmp_path: Path) -> None:
    alone = fedkin.compare(
        merge(TABLE, {"corruption": {"labels": 0.5}}), methods=METHODS, seeds=2, federation=federation(), out=tmp_path
    )
    rows = {row.name: row for row in found.rows() if (row.setting, row.value) == ("corruption.labels", 0.5)}
    assert {row.name: (row.bmta, row.last, row.validated) for row in alone.rows()} == {
        name: (row.mean, row.last, row.validated) for name, row in rows.items()
    }


def best_vector(run: fedkin.Run, model: str) -> dict[str, float]:
    """{client: score} at the best mean, from the lines on disk."""
    records = [json.loads(line) for line in (run.path / "rounds.jsonl").read_text().splitlines()]
    vectors = [r["models"][model]["clients"] for r in records]
    return dict(zip(run.summary["clients"], max(vectors, key=sum), strict=True))


def test_rows_have_the_range_of_the_seeds_and_clean_and_hit_clients_apart(found: fedkin.Levels) -> None:
    for level in found.levels:
        for row in (r for r in found.rows() if (r.setting, r.value) == (level.setting, level.value)):
            runs = [r for r in level.results.runs if r.summary["method"] == row.method]
            vectors = [best_vector(run, row.model) for run in runs]
            means = [sum(v.values()) / len(v) for v in vectors]
            assert (row.low, row.high) == pytest.approx((min(means), max(means)))
            assert row.mean == pytest.approx(sum(means) / 2)
            if row.value == 0 or row.setting == "participation.dropped":
                assert row.clean is None and row.hit is None
                continue
            sides: dict[bool, list[float]] = {True: [], False: []}
            for run, vector in zip(runs, vectors, strict=True):
                hit = run.summary["corrupted"]
                assert len(hit) == 2  # floor(0.4 x 6)
                for side in sides:
                    own = [score for name, score in vector.items() if (name in hit) is side]
                    sides[side].append(sum(own) / len(own))
            assert row.hit == pytest.approx(sum(sides[True]) / 2)
            assert row.clean == pytest.approx(sum(sides[False]) / 2)
    assert {r.name for r in found.rows()} >= {"fedamp:cloud", "fedamp:personal", "fedavg:global", "fedavg:finetuned"}


def test_the_summary_names_who_was_hit(found: fedkin.Levels) -> None:
    from fedkin.data.corrupt import chosen

    for level in found.levels:
        for run in level.results.runs:
            lied_to = chosen(federation(), 0.4, run.summary["seed"]) if run.config["corruption"]["labels"] else []
            assert sorted(run.summary["corrupted"]) == sorted(lied_to)


def test_the_same_call_goes_on_and_other_settings_are_refused(found: fedkin.Levels) -> None:
    before = {p: p.stat().st_mtime_ns for p in found.path.rglob("rounds.jsonl")}
    again = varied(found.path)
    assert again.rows() == found.rows()
    assert {p: p.stat().st_mtime_ns for p in found.path.rglob("rounds.jsonl")} == before
    with pytest.raises(RunError, match="holds a run with other settings"):
        varied(found.path, rounds=4)


# ---- the picture ----


def test_the_picture_has_a_panel_a_setting_and_a_line_a_method_at_the_levels_values(found: fedkin.Levels) -> None:
    drawn = picture(found)
    scores = {(r.setting, r.method, r.value): r.mean for r in found.rows() if r.headline}
    assert any(r.mean != r.last for r in found.rows() if r.headline)
    seen = {}
    for trace in drawn.data:
        if trace.name:
            setting = {"x": "corruption.labels", "x2": "participation.dropped"}[trace.xaxis]
            seen |= {(setting, trace.legendgroup, x): y for x, y in zip(trace.x, trace.y, strict=True)}
    assert seen == scores
    bands = [t for t in drawn.data if not t.name]
    assert len(bands) == 2 * len(METHODS), "the range of two seeds"
    assert all(t.mode == "lines" for t in bands)
    colours = {t.legendgroup: t.line.color for t in drawn.data if t.name}
    assert len(set(colours.values())) == len(METHODS)


def test_levels_that_are_no_numbers_stand_side_by_side(tmp_path: Path) -> None:
    kinds = varied(
        tmp_path, {"corruption.kind": ["dirty", "flip"]}, corruption={"labels": 0.5}, methods=["fedavg"], seeds=1
    )
    assert places(lines(kinds, "corruption.kind")["fedavg"]) == ["dirty", "flip"]
    assert picture(kinds).layout.xaxis.type == "category"
    assert all(row.hit is not None for row in kinds.rows())
    assert kinds.figures(formats=["png"])[0].stat().st_size > 1000


def test_the_page_and_the_figures_are_written(found: fedkin.Levels, tmp_path: Path) -> None:
    page = found.report(tmp_path / "page.html").read_text()
    assert "default-src 'none'" in page
    for text in ("corruption.labels", "participation.dropped", "fedavg:finetuned", "labels = 0.5"):
        assert text in page
    written = found.figures(tmp_path / "figures", ["png", "pdf"])
    assert [p.name for p in written] == ["levels.png", "levels.pdf"]
    assert written[0].read_bytes().startswith(b"\x89PNG") and written[1].read_bytes().startswith(b"%PDF")
    frame = found.frame()
    assert len(frame) == len(found.rows()) and set(frame["setting"]) == set(LEVELS)


# ---- what is refused, before anything is run ----


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ({}, "There is no setting to vary"),
        ({"corruption.labels": []}, "corruption.labels needs a list of values"),
        ({"corruption.label": [0]}, "There is no setting 'corruption.label'. Did you mean 'corruption.labels'"),
        ({"corruption.labels": [0, 1.5]}, "corruption.labels = 1.5 cannot be: input should be less than or equal to 1"),
        ({"participation.dropped": [0, 1]}, "participation.dropped = 1 cannot be: input should be less than 1"),
        ({"corruption.kind": ["dirty", "dirt"]}, "corruption.kind = 'dirt' cannot be.* Did you mean 'dirty'"),
        ({"corruption.labels": [0, 0.2, 0]}, "the value 0 twice"),
        ({"participation.novel": [0, 0.01]}, "is nobody; take a larger share"),
        ({"method": ["fedavg"]}, "method cannot be varied"),
        ({"seed": [1, 2]}, "seed cannot be varied"),
        ({"learning.metric": ["accuracy"]}, "learning.metric cannot be varied"),
        ({"settings.mu": [1]}, "'mu' is a setting of fedprox"),
    ],
)
def test_a_level_that_cannot_be_is_refused_before_anything_runs(tmp_path: Path, levels: Any, said: str) -> None:
    with pytest.raises(FedkinError, match=said):
        fedkin.vary(TABLE, levels=levels, methods=METHODS, federation=federation(), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- the command ----


def test_the_command_writes_one_picture_and_one_table_a_setting(
    tmp_path: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--methods", "fedavg,separate", "--data", "digits", "--split", "relabelled", "--rounds", "1"]
    words += ["--epochs", "1", "--vary", "corruption.labels=0,0.4", "--vary", "dropped=0,0.3", "--figures", "png"]
    assert command("compare", *words, "--out", tmp_path / "out") == 0
    said = capsys.readouterr()
    assert "[8/8] participation.dropped=0.3: separate, seed 0" in said.err
    assert "over corruption.labels (in brackets: of clients with clean labels, of those hit)" in said.out
    assert "over participation.dropped" in said.out
    row = next(line for line in said.out.splitlines() if "fedavg:global" in line)
    assert row.count("%") == 2 and row.count("(") == 1, "nobody is hit at level 0"
    assert (tmp_path / "out" / "report.html").exists()
    assert (tmp_path / "out" / "figures" / "levels.png").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--vary", "corruption.labels"], "does not say which values to take"),
        (["--vary", "labels=0,0.2", "--vary", "labels=0.4"], "--vary labels=… is given twice"),
        (["--vary", "labels=0,2"], "corruption.labels = 2 cannot be"),
        (["--vary", "clients=7,20"], "could be data.clients or corruption.clients|cannot be dealt to them equally"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence_with_exit_code_2(
    tmp_path: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    import re

    assert command("compare", "--methods", "fedavg,separate", *words, "--out", tmp_path / "out") == 2
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
