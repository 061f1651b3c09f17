"""Methods over levels of a setting: each level is a comparison of its own, and the rows say what it came to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import BASE, toy

import fedkin
from fedkin import FedkinError
from fedkin.cli import terminal
from fedkin.data.federation import Federation
from fedkin.report.levels import finding, lines, picture, places
from fedkin.report.words import OTHERS
from fedkin.runs.config import merge
from fedkin.runs.folder import RunError
from fedkin.studies.run import Run

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
    assert {row.name: pytest.approx((row.bmta, row.last, row.validated)) for row in alone.rows()} == {
        name: (row.best.all.mean, row.last.all.mean, row.validated) for name, row in rows.items()
    }


def vector(run: fedkin.Run, model: str, moment: str) -> dict[str, float]:
    """{client: score} at the best mean over all or at the closing exchange, from the lines on disk."""
    records = [json.loads(line) for line in (run.path / "rounds.jsonl").read_text().splitlines()]
    vectors = [r["models"][model]["clients"] for r in records]
    best = max if run.summary["higher_is_better"] else min
    assert records[-1]["final"]
    return dict(zip(run.summary["clients"], best(vectors, key=sum) if moment == "best" else vectors[-1], strict=True))


def expected(runs: list[fedkin.Run], model: str, moment: str) -> dict[str, tuple[float, float, float] | None]:
    """{side: mean over seeds, lowest and highest seed}, with nothing of fedkin's but the runs' files."""
    means: dict[str, list[float]] = {"all": [], "clean": [], "hit": []}
    for run in runs:
        scores, hit = vector(run, model, moment), set(run.summary["corrupted"])
        for side, members in {"all": set(scores), "clean": set(scores) - hit, "hit": set(scores) & hit}.items():
            if members:
                means[side].append(sum(scores[name] for name in members) / len(members))
    return {side: (sum(each) / len(each), min(each), max(each)) if each else None for side, each in means.items()}


def told(sides: Any) -> dict[str, Any]:
    spans = {side: getattr(sides, side) for side in ("all", "clean", "hit")}
    return {side: span and pytest.approx((span.mean, span.low, span.high)) for side, span in spans.items()}


@pytest.mark.parametrize("moment", ["best", "last"])
def test_rows_have_all_clean_and_hit_clients_apart_each_with_the_range_of_the_seeds(
    found: fedkin.Levels, moment: str
) -> None:
    for level in found.levels:
        for row in (r for r in found.rows() if (r.setting, r.value) == (level.setting, level.value)):
            runs = [r for r in level.results.runs if r.summary["method"] == row.method]
            assert expected(runs, row.model, moment) == told(getattr(row, moment))
            hit = row.setting == "corruption.labels" and row.value > 0
            assert (row.last.hit is not None) is hit
            assert {len(run.summary["corrupted"]) for run in runs} == {2 if hit else 0}  # floor(0.4 x 6)
            if not hit:
                assert row.last.clean == row.last.all, "everyone is left alone"
    assert {r.name for r in found.rows()} >= {"fedamp:cloud", "fedamp:personal", "fedavg:global", "fedavg:finetuned"}
    rows = [row for row in found.rows() if row.last.hit is not None]
    assert any(row.best != row.last for row in rows)
    assert any(row.last.hit.low < row.last.hit.high for row in rows if row.last.hit)


def test_where_lower_is_better_the_best_round_is_the_lowest_and_so_is_the_leader(tmp_path: Path) -> None:
    levels = varied(tmp_path, {"corruption.labels": [0, 1.0]}, learning={"metric": "log_loss"})
    for level in levels.levels:
        for row in (r for r in levels.rows() if r.value == level.value):
            runs = [r for r in level.results.runs if r.summary["method"] == row.method]
            assert expected(runs, row.model, "best") == told(row.best)
    last = {row.method: row.last.hit.mean for row in levels.rows() if row.headline and row.last.hit}
    best, worst = min(last, key=last.__getitem__), max(last, key=last.__getitem__)
    said = finding(levels, "corruption.labels")
    assert f"under the best method ({best})" in said and f"under the worst ({worst})" in said
    page = levels.report(tmp_path / "page.html").read_text()
    assert f'data-value="{last[best]!r}" class=top' in page and f'data-value="{last[worst]!r}" class=top' not in page


def test_everyone_may_be_hit_and_then_nobody_is_left_alone(tmp_path: Path) -> None:
    levels = varied(tmp_path, {"corruption.clients": [0, 1]}, corruption={"labels": 0.5}, methods=["fedavg"], seeds=1)
    for row in levels.rows():
        assert (row.last.hit if row.value else row.last.clean) == row.last.all
        assert (row.last.clean if row.value else row.last.hit) is None
    assert levels.report().exists() and all(path.exists() for path in levels.figures(formats=["png"]))


@pytest.mark.parametrize(
    ("kind", "words"),
    [("dirty", ("clean", "hit")), *((kind, ("benign", "attacked")) for kind in ("random", "flip", "silent"))],
)
def test_liars_are_attackers_and_dirt_is_not(tmp_path: Path, kind: str, words: tuple[str, str]) -> None:
    corruption = {"labels": 1.0, "kind": kind}
    levels = varied(
        tmp_path, {"corruption.clients": [0, 0.4]}, corruption=corruption, methods=["separate"], seeds=1, rounds=1
    )
    clean, hit = words
    expected = {"all": "all clients", "clean": f"{clean} clients", "hit": f"{hit} clients"}
    assert levels.sides("corruption.clients") == expected
    assert f"With clients = 0.4, {hit} clients end at " in finding(levels, "corruption.clients")


def test_where_nobody_is_hit_nobody_is_set_apart(found: fedkin.Levels) -> None:
    assert found.sides("participation.dropped") == {"all": "all clients"}
    assert list(found.sides("corruption.labels")) == ["all", "clean", "hit"]


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


# ---- the pictures ----


def drawn_points(drawn: Any, names: dict[str, Any]) -> dict[tuple[Any, str, Any], float]:
    """{(what the panel is about, method, level): score} of the lines."""
    lines = [trace for trace in drawn.data if trace.name]
    return {(names[t.xaxis], t.legendgroup, x): y for t in lines for x, y in zip(t.x, t.y, strict=True)}


def test_the_picture_has_a_panel_a_setting_and_a_line_a_method_at_the_levels_values(found: fedkin.Levels) -> None:
    drawn = picture(found, [(setting, "all") for setting in found.settings], "best")
    scores = {(r.setting, r.method, r.value): r.best.all.mean for r in found.rows() if r.headline}
    assert drawn_points(drawn, {"x": "corruption.labels", "x2": "participation.dropped"}) == scores
    bands = [t for t in drawn.data if not t.name]
    assert len(bands) == 2 * len(METHODS), "the range of two seeds"
    assert all(t.mode == "lines" for t in bands)
    colours = {t.legendgroup: t.line.color for t in drawn.data if t.name}
    assert len(set(colours.values())) == len(METHODS)
    assert sum(bool(t.showlegend) for t in drawn.data) == len(METHODS)


@pytest.mark.parametrize("moment", ["best", "last"])
def test_clients_left_alone_and_those_hit_have_panels_of_their_own(found: fedkin.Levels, moment: str) -> None:
    sides = ("all", "clean", "hit")
    drawn = picture(found, [("corruption.labels", side) for side in sides], moment)
    scores = {}
    for row in (r for r in found.rows() if r.headline and r.setting == "corruption.labels"):
        for side in sides:
            span = getattr(getattr(row, moment), side)
            scores |= {(side, row.method, row.value): span.mean} if span else {}
    assert drawn_points(drawn, {"x": "all", "x2": "clean", "x3": "hit"}) == scores
    assert not any(side == "hit" and level == 0 for side, _, level in scores), "at level 0 nobody is"
    assert [note.text for note in drawn.layout.annotations] == [f"<b>{side} clients</b>" for side in sides]
    assert drawn.layout.xaxis.range == drawn.layout.xaxis3.range, "levels stand below each other"
    (band,) = [t for t in drawn.data if t.xaxis == "x3" and not t.name and t.legendgroup == "fedavg"]
    row = next(r for r in found.rows() if r.method == "fedavg" and r.headline and r.value == 0.5)
    span = getattr(row, moment).hit
    assert sorted(band.y) == [span.low, span.high]


def test_levels_that_are_no_numbers_stand_side_by_side(tmp_path: Path) -> None:
    kinds = varied(
        tmp_path, {"corruption.kind": ["dirty", "flip"]}, corruption={"labels": 0.5}, methods=["fedavg"], seeds=1
    )
    assert places(lines(kinds, "corruption.kind")["fedavg"]) == ["dirty", "flip"]
    assert picture(kinds, [("corruption.kind", "hit")], "last").layout.xaxis.type == "category"
    assert all(row.last.hit is not None for row in kinds.rows())
    assert kinds.sides("corruption.kind")["hit"] == "hit clients"
    assert all(path.stat().st_size > 1000 for path in kinds.figures(formats=["png"]))


def test_the_page_and_the_figures_are_written(found: fedkin.Levels, tmp_path: Path) -> None:
    page = found.report(tmp_path / "page.html").read_text()
    assert "default-src 'none'" in page
    for text in ("corruption.labels", "participation.dropped", "fedavg:finetuned", "labels = 0.5"):
        assert text in page
    written = found.figures(tmp_path / "figures", ["png", "pdf"])
    stems = ["levels", "levels-corruption.labels"]  # under the other setting nobody is hit
    assert [p.name for p in written] == [f"{stem}.{kind}" for stem in stems for kind in ("png", "pdf")]
    assert written[0].read_bytes().startswith(b"\x89PNG") and written[1].read_bytes().startswith(b"%PDF")
    frame = found.frame()
    assert len(frame) == len(found.rows()) and set(frame["setting"]) == set(LEVELS)
    rows = found.rows()
    assert frame["last_all"].tolist() == [row.last.all.mean for row in rows]
    assert frame["best_clean_high"].tolist() == [row.best.clean.high for row in rows if row.best.clean]
    assert frame["last_hit_low"].dropna().tolist() == [row.last.hit.low for row in rows if row.last.hit]


def test_it_is_told_that_clean_clients_are_others_from_level_to_level(
    found: fedkin.Levels, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = found.report(tmp_path / "page.html").read_text()
    assert page.count(OTHERS) == 1, "where clients are hit, and there alone"
    terminal.show_levels(found)
    assert " ".join(capsys.readouterr().out.split()).count(OTHERS) == 1


def test_the_page_opens_at_the_last_round_where_clients_are_hit_and_has_a_table_a_side(
    found: fedkin.Levels, tmp_path: Path
) -> None:
    page = found.report(tmp_path / "page.html").read_text()
    shown = re.findall(r'<button data-panel="panel-([a-z.]+)-\d" aria-pressed="(\w+)">([^<]+)</button>', page)
    assert shown == [
        ("corruption.labels", "true", "Last round"),
        ("corruption.labels", "false", "Chosen round"),
        ("corruption.labels", "false", "Best test round"),
        ("participation.dropped", "true", "Chosen round"),
        ("participation.dropped", "false", "Last round"),
        ("participation.dropped", "false", "Best test round"),
    ]
    panels = page.split('<div class="panel" id="panel-')[1:]
    heads = [re.findall(r'<th data-sort="text">([^<]+)</th>', panel) for panel in panels]
    sides = ["all clients", "clean clients", "hit clients"]
    assert heads == [sides, sides, sides, ["all clients"], ["all clients"], ["all clients"]]
    rows = {(r.value, r.name): r for r in found.rows() if r.setting == "corruption.labels"}
    for panel, moment in zip(panels, ("last", "chosen", "best"), strict=False):
        for table, side in zip(panel.split("<thead>")[1:], ("all", "clean", "hit"), strict=True):
            line = next(line for line in table.split("<tr ") if "fedamp:personal</th>" in line)
            spans = [getattr(getattr(rows[value, "fedamp:personal"], moment), side) for value in (0, 0.5)]
            cells = re.findall(r'data-value="([^"]+)"', line)
            assert cells == [repr(span.mean) for span in spans if span]


def test_the_terminal_shows_the_last_round_first_where_clients_are_hit_else_the_chosen(
    found: fedkin.Levels, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedkin.cli import terminal

    terminal.show_levels(found)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    tables = {"corruption.labels": ("last", "chosen"), "participation.dropped": ("chosen", "last")}
    apart = 0
    for row in (r for r in found.rows() if r.headline and r.value == 0.5):
        before = next(r for r in found.rows() if (r.setting, r.name, r.value) == (row.setting, row.name, 0))
        for side in ("all", "clean", "hit") if row.setting == "corruption.labels" else ("all",):
            cells = [row.name]
            for each in (before, row):
                spans = [getattr(getattr(each, moment), side) for moment in tables[row.setting]]
                texts = [f"{100 * span.mean:.1f}" for span in spans if span]
                cells += [texts[0], f"({texts[1]})"] if texts else ["–"]
                apart += len(set(texts)) > 1
            assert cells in shown
    assert apart > 1, "the two rounds differ often enough to be mistaken for each other"


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


def test_the_command_writes_pictures_and_a_table_a_setting_and_side(
    tmp_path: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--methods", "fedavg,separate", "--data", "digits", "--split", "relabelled", "--rounds", "1"]
    words += ["--epochs", "1", "--vary", "corruption.labels=0,0.4", "--vary", "dropped=0,0.3", "--figures", "png"]
    assert command("compare", *words, "--out", tmp_path / "out") == 0
    said = capsys.readouterr()
    assert "[6/8] participation.dropped=0.3: separate, seed 0" in said.err
    assert "[8/8]" in said.err, "the level without lies or losses is run once and counted twice"
    assert "Mean test accuracy in % over corruption.labels, last round (in brackets: chosen round)" in said.out
    assert "Mean test accuracy in % over participation.dropped, chosen round (in brackets: last round)" in said.out
    heads = [line.split()[:2] for line in said.out.splitlines() if re.match(r"\s*\w+ clients ", line)]
    assert heads == [["all", "clients"], ["clean", "clients"], ["hit", "clients"], ["all", "clients"]]
    rows = [line.split()[1:] for line in said.out.splitlines() if "fedavg:global" in line]
    assert [len(row) for row in rows] == [4, 4, 3, 4] and rows[2][0] == "–", "nobody is hit at level 0"
    runs = [Run(tmp_path / "out" / f"corruption.labels={level}" / "fedavg-seed0") for level in (0, 0.4)]
    for row, side in zip(rows[:3], ("all", "clean", "hit"), strict=True):
        ends = [expected([run], "global", "last")[side] for run in runs]
        assert [cell for cell in row if "(" not in cell] == [
            "–" if end is None else f"{100 * end[0]:.1f}" for end in ends
        ]
    assert said.out.count("fedavg:finetuned") == 1, "other models stand where nobody is hit"
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
    assert command("compare", "--methods", "fedavg,separate", *words, "--out", tmp_path / "out") == 2
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
