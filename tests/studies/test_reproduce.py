"""`fedkin reproduce`: what is missing is run, what time cuts short goes on, and a result is what its run was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import ROOT, SHARED

from fedkin.base.settings import ConfigError
from fedkin.engines import start
from fedkin.engines.simulation import Interrupted, Listener
from fedkin.papers import published
from fedkin.papers.published import Job
from fedkin.runs.folder import RunError
from fedkin.studies import reproduce as study
from fedkin.studies.reproduce import Wanted, command, config_of, reproduce, told
from fedkin.studies.reproduced import LARGEST, Reproduced, markdown, place
from fedkin.studies.run import Run

needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="the data do not lie beside the repository")
TABLE = "panacea-table1"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDKIN_DATA", str(SHARED))
    return tmp_path


def heard() -> tuple[list[str], Callable[[str], None]]:
    lines: list[str] = []
    return lines, lines.append


# ---- what is run ----


@pytest.mark.parametrize("name", published.names())
def test_every_run_of_a_table_has_settings_that_are_taken(name: str) -> None:
    for job in published.jobs(name, 1):
        config = config_of(job, Wanted(name, device="cpu"))
        whole = published.table(name)
        assert config.method == whole.runs[job.run].method and config.seed == 0
        assert config.precision == "float32", "bf16 is for GPUs"
        if name.startswith("fedamp") and whole.score == "best":
            assert config.rounds == 100 and config.data.validation == 0


def test_the_papers_runs_are_the_papers_preset_and_the_automatic_ones_ours() -> None:
    paper = config_of(Job("fedamp-table3", "emnist", "fedamp"), Wanted())
    ours = config_of(Job("fedamp-table3", "emnist", "fedamp-auto"), Wanted())
    assert (paper.preset, paper.settings["sigma"], paper.settings["proximal"]) == ("paper", 10.0, "gradient")
    assert (ours.preset, ours.settings["sigma"], ours.settings["proximal"]) == ("ours", "auto", "exact")
    assert paper.rounds == ours.rounds and not ours.data.augment


def test_a_factor_is_on_the_methods_own_rate() -> None:
    job = Job("fedamp-table3-tuned", "mnist", "fedavg")
    rates = [
        config_of(Job(*(job.table, job.column, job.run, 0), factor), Wanted()).local.lr for factor in (0.1, 1.0, 10.0)
    ]
    assert rates == pytest.approx([0.0001, 0.001, 0.01])


@needs_data
def test_what_is_missing_is_run_and_what_is_there_is_not(here: Path) -> None:
    lines, tell = heard()
    wanted = Wanted(TABLE, "fl60/fedavg,fl60/separate", seeds=1, rounds=2, device="cpu", commit="abc")
    found = reproduce(wanted, tell)
    assert lines[0] == "0 of 2 runs are there, 2 are missing."
    files = sorted(path.name for path in wanted.results.rglob("*.json"))
    assert files == ["fl60-fedavg-seed0.json", "fl60-separate-seed0.json"]
    assert wanted.results == Path("runs/reproduce/results/2-rounds"), "other rounds are another experiment"
    assert not any((here / "runs" / "reproduce" / "unfinished").rglob("config.toml")), "of a run its result stays"
    cell = found.cell(TABLE, "fedavg", "fl60")
    assert cell is not None and 0 < cell.ours <= 100 and cell.published == 97.9
    text = told(wanted, found)
    assert "**Not the paper's experiment**: 2 rounds." in text and f"(97.9, {cell.ours - 97.9:+.1f})" in text
    lines, tell = heard()
    reproduce(wanted, tell)
    assert lines == ["2 of 2 runs are there, 0 are missing."]


@needs_data
def test_a_result_is_what_its_run_was(here: Path) -> None:
    wanted = Wanted("fedamp-dirty", "mnist-40/fedamp", seeds=1, rounds=2, device="cpu", commit="abc")
    job = wanted.jobs[0]
    small = {"model": {"name": "mlp", "settings": {"hidden": [4]}}, "data": {"clients": 10}, "local": {"epochs": 1}}
    config = start.configured({**_raw(config_of(job, wanted)), **_merged(config_of(job, wanted), small)})
    start.start(start.assembled(config), here / "run")
    run = Run(here / "run")
    made = study.result(job, run, {"command": command(job, wanted)})
    assert made["command"] == "fedkin reproduce fedamp-dirty --only mnist-40/fedamp --rounds 2"
    assert len(json.dumps(made)) < LARGEST and made["clients"] == 10 and made["rounds"] == 2
    lines = [line for line in run.rounds if not line.novel]
    for name, about in made["models"].items():
        clients = np.array([line.models[name].clients for line in lines])
        np.testing.assert_allclose(about["curve"], clients.mean(1), atol=1e-5)
        np.testing.assert_allclose(about["last"], clients[-1], atol=1e-5)
        best = int(clients.mean(1).argmax())
        assert about["best_round"] == lines[best].round
        np.testing.assert_allclose(about["best"], clients[best], atol=1e-5)
    assert [run.summary.clients[i] for i in made["corrupted"]] == list(run.summary.corrupted)
    assert len(made["corrupted"]) == 4, "two of five"
    xi = np.array(made["xi"]["thousandths"])
    np.testing.assert_allclose(xi / 1000, run.collaboration(made["xi"]["round"]), atol=0.0006)


def _raw(config: Any) -> dict[str, Any]:
    return dict(config.model_dump(mode="json", exclude_defaults=True))


def _merged(config: Any, more: dict[str, Any]) -> dict[str, Any]:
    from fedkin.runs.config import merge

    return dict(merge(_raw(config), more))


@needs_data
def test_a_run_that_time_cuts_short_goes_on_and_ends_the_same(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Wanted(TABLE, "fl60/fedavg", seeds=1, rounds=6, device="cpu", minutes=1.0)
    now = [0.0]
    monkeypatch.setattr(study.time, "monotonic", lambda: now[0])

    def later(said: str) -> None:
        lines.append(said)

    lines: list[str] = []
    ticking = study._progress

    def progress(config: Any, tell: Any) -> Callable[[Any], None]:
        inner = ticking(config, tell)

        def on_round(line: Any) -> None:
            now[0] += 20.0  # so that the third round ends at one minute
            inner(line)

        return on_round

    monkeypatch.setattr(study, "_progress", progress)
    reproduce(wanted, later)
    assert not list(wanted.results.rglob("*.json")) and "The same command goes on with it." in lines[-1]
    kept = here / "runs/reproduce/unfinished/6-rounds" / TABLE / "fl60-fedavg-seed0"
    assert (kept / "checkpoint").exists()
    now[0], begun = 0.0, len(lines)
    reproduce(Wanted(TABLE, "fl60/fedavg", seeds=1, rounds=6, device="cpu"), later)
    assert any("goes on after round" in line for line in lines[begun:]) and not kept.exists()
    parts = json.loads(place(wanted.results, wanted.jobs[0]).read_text())
    whole = Wanted(TABLE, "fl60/fedavg", seeds=1, rounds=6, device="cpu", out=here / "whole")
    reproduce(whole)
    at_once = json.loads(place(whole.results, whole.jobs[0]).read_text())
    assert parts["models"] == at_once["models"]


@needs_data
def test_no_minutes_run_nothing(here: Path) -> None:
    lines, tell = heard()
    reproduce(Wanted(TABLE, "fl60/fedavg", seeds=1, rounds=2, device="cpu", minutes=0.0), tell)
    assert lines[-1] == "The time is over; 1 runs are left. The same command goes on."


@needs_data
def test_a_run_begun_with_other_settings_is_run_anew(here: Path) -> None:
    wanted = Wanted(TABLE, "fl60/fedavg", seeds=1, rounds=3, device="cpu")
    folder = here / "runs/reproduce/unfinished/3-rounds" / TABLE / "fl60-fedavg-seed0"
    start.start(start.assembled(config_of(wanted.jobs[0], Wanted(TABLE, rounds=2, device="cpu"))), folder)
    lines, tell = heard()
    reproduce(wanted, tell)
    assert any("has other settings or is damaged, and it is run anew" in line for line in lines)
    assert json.loads(place(wanted.results, wanted.jobs[0]).read_text())["rounds"] == 3


@needs_data
def test_a_run_whose_result_was_not_written_any_more_is_taken_as_it_is(here: Path) -> None:
    wanted = Wanted(TABLE, "fl60/fedavg", seeds=1, rounds=2, device="cpu")
    folder = here / "runs/reproduce/unfinished/2-rounds" / TABLE / "fl60-fedavg-seed0"
    start.start(start.assembled(config_of(wanted.jobs[0], wanted)), folder)
    seconds = Run(folder).summary.seconds
    reproduce(wanted)
    assert json.loads(place(wanted.results, wanted.jobs[0]).read_text())["seconds"] == round(seconds or 0, 1)
    assert not folder.exists()


@needs_data
def test_a_damaged_checkpoint_is_no_reason_to_stop(here: Path) -> None:
    wanted = Wanted(TABLE, "fl60/fedavg", seeds=1, rounds=4, device="cpu", minutes=1.0)
    folder = here / "runs/reproduce/unfinished/4-rounds" / TABLE / "fl60-fedavg-seed0"
    begun = iter([False, False, True])
    with pytest.raises(Interrupted):
        ready = start.assembled(config_of(wanted.jobs[0], wanted))
        start.start(ready, folder, Listener(stop=lambda: next(begun, True)))
    for path in (folder / "checkpoint").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:10])
    lines, tell = heard()
    reproduce(wanted, tell)
    assert any("is damaged, and it is run anew" in line for line in lines)
    assert json.loads(place(wanted.results, wanted.jobs[0]).read_text())["rounds"] == 4


def test_where_data_are_missing_their_column_is_left_out(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKIN_DATA", str(here / "nothing"))
    lines, tell = heard()
    with pytest.raises(RunError, match="None of these runs could be done"):
        reproduce(Wanted("fedamp-table3", "mnist", seeds=1, rounds=1, device="cpu"), tell)
    assert len(lines) == 2 and "Its column is left out." in lines[1], "said once, not for each method"


@needs_data
def test_a_run_that_is_refused_takes_no_other_with_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = study.config_of

    def refused(job: Job, wanted: Wanted) -> Any:
        if job.run == "separate":
            raise ConfigError("This one is wrong.")
        return plain(job, wanted)

    monkeypatch.setattr(study, "config_of", refused)
    lines, tell = heard()
    wanted = Wanted(TABLE, "fl60/separate,fl60/fedavg", seeds=1, rounds=1, device="cpu")
    found = reproduce(wanted, tell)
    assert any("This one is wrong. It is left out." in line for line in lines)
    assert found.cell(TABLE, "fedavg", "fl60") is not None


# ---- what was found ----


def made_up(root: Path, job: Job, **more: Any) -> None:
    model = {"curve": [0.5], "best_round": 1, "best": [0.5, 0.7], "last": [0.4, 0.6]}
    held: dict[str, Any] = {
        "table": job.table,
        "column": job.column,
        "run": job.run,
        "seed": job.seed,
        "factor": job.factor,
        "precision": "float32",
        "higher_is_better": True,
        "headline": "global",
        "corrupted": [1],
        "models": {"global": {**model, **more}},
    }
    path = place(root, job)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(held), encoding="utf-8")


def test_of_several_rates_validation_data_choose_and_not_before_all_are_there(tmp_path: Path) -> None:
    name, factors = "fedamp-table3-tuned", published.table("fedamp-table3-tuned").runs["fedavg"].factors
    for factor in factors[:-1]:
        made_up(tmp_path, Job(name, "mnist", "fedavg", 0, factor), validation=[0.1], validated=[0.9, 0.9])
    assert Reproduced(tmp_path).cell(name, "fedavg", "mnist") is None
    made_up(tmp_path, Job(name, "mnist", "fedavg", 0, factors[-1]), validation=[0.2], validated=[0.1, 0.3])
    cell = Reproduced(tmp_path).cell(name, "fedavg", "mnist")
    assert cell is not None and cell.ours == pytest.approx(20.0), "the better on validation data, though not on test"


def test_a_cell_is_the_mean_over_seeds_of_the_mean_over_clients(tmp_path: Path) -> None:
    for seed, best in enumerate(([0.5, 0.7], [0.7, 0.9])):
        made_up(tmp_path, Job("fedamp-table3", "mnist", "fedavg", seed), best=best)
    cell = Reproduced(tmp_path).cell("fedamp-table3", "fedavg", "mnist")
    assert cell is not None and cell.ours == pytest.approx(70.0) and cell.clients == pytest.approx([60.0, 80.0])
    assert cell.difference == pytest.approx(70.0 - 81.82)
    assert "**70.0** (81.82, -11.8)" in markdown(Reproduced(tmp_path), "fedamp-table3")


def test_float32_beside_bfloat16_is_a_cell_of_its_own(tmp_path: Path) -> None:
    made_up(tmp_path, Job("fedamp-table3", "emnist", "fedavg"))
    made_up(tmp_path, Job("fedamp-table3", "emnist", "fedavg", 0, None, "float32"), best=[0.1, 0.1])
    found = Reproduced(tmp_path)
    usual, exact = (found.cell("fedamp-table3", "fedavg", "emnist", each) for each in (None, "float32"))
    assert usual is not None and exact is not None
    assert (usual.ours, exact.ours) == (pytest.approx(60.0), pytest.approx(10.0))


def test_under_attack_the_last_round_counts(tmp_path: Path) -> None:
    made_up(tmp_path, Job("panacea-attack", "fl60-30", "fedavg"))
    cell = Reproduced(tmp_path).cell("panacea-attack", "fedavg", "fl60-30")
    assert cell is not None and cell.ours == pytest.approx(50.0)


GOOD = '"column": "mnist", "run": "fedavg", "seed": 0, "factor": null, "precision": "float32", "headline": "global"'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read"),
        ("{}", "is no result: column, run, seed or factor is missing"),
        ('{"column": "emnist", "run": "fedavg", "seed": 0, "factor": null}', "says that it is emnist-fedavg-seed0"),
        (f'{{{GOOD}, "models": 3}}', "is no result: its models have no scores"),
        (f'{{{GOOD}, "models": {{}}}}', "is no result: its models have no scores"),
        (f'{{{GOOD}, "models": {{"global": {{"curve": 0.5}}}}}}', "is no result: its models have no scores"),
        (
            f'{{{GOOD}, "models": {{"global": {{"curve": [1], "best": ["x"], "last": [1]}}}}}}',
            "is no result: its models have no scores",
        ),
    ],
)
def test_a_damaged_result_is_named(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "fedamp-table3" / "mnist-fedavg-seed0.json"
    path.parent.mkdir()
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=said) as error:
        Reproduced(tmp_path).cell("fedamp-table3", "fedavg", "mnist")
    assert str(path) in str(error.value) and "Delete it, and its cell is run again." in str(error.value)


def test_where_one_is_told_a_damaged_result_is_left_out(tmp_path: Path) -> None:
    made_up(tmp_path, Job("fedamp-table3", "mnist", "fedavg"))
    (tmp_path / "fedamp-table3" / "emnist-fedavg-seed0.json").write_text('{"models": 3}', encoding="utf-8")
    lines, tell = heard()
    found = Reproduced(tmp_path, tell)
    assert found.cell("fedamp-table3", "fedavg", "mnist") is not None
    assert found.cell("fedamp-table3", "fedavg", "emnist") is None
    assert len(lines) == 1 and "emnist-fedavg-seed0.json is no result" in lines[0]


def test_cells_and_runs_are_counted(tmp_path: Path) -> None:
    """A cell has a number as soon as one of its seeds is there; the queue may want more."""
    made_up(tmp_path, Job("panacea-attack", "fl60-30", "fedavg"))
    found = Reproduced(tmp_path)
    assert found.done("panacea-attack") == (1, 66)
    assert found.runs_done("panacea-attack") == (1, 6 * 10 * 5)


# ---- the results of the repository ----

KEPT = sorted((ROOT / "results").rglob("*.json"))


def test_the_results_of_the_repository_are_whole() -> None:
    found = Reproduced(ROOT / "results").results
    assert len(found) == len(KEPT) > 400
    for job, result in found.items():
        path = place(ROOT / "results", job)
        assert path.stat().st_size <= LARGEST
        assert {"machine", "versions", "commit", "seconds", "settings", "precision"} <= set(result), path
        expected = command(job, Wanted()).removesuffix(f" --seeds {job.seed + 1}")
        assert result["command"].startswith(expected), path
        for model in result["models"].values():
            assert len(model["best"]) == len(model["last"]) == result["clients"], path
            assert len(model["curve"]) == result["rounds"] + 2 - result["first_round"], path


# ---- the commands ----


@needs_data
def test_the_command_shows_ours_beside_theirs(command: Callable[..., int], here: Path, capsys: Any) -> None:
    assert command("reproduce", TABLE, "--only", "fl60/fedavg", "--seeds", "1", "--rounds", "1") == 0
    said = capsys.readouterr().out
    assert "Not the paper's experiment" in said and "(97.9, " in said
    assert command("papers") == 0
    said = capsys.readouterr().out
    assert all(name in said for name in published.names()) and "0 of 68" in said
    assert f"There are no results in {here / 'results'}" in said.replace("\n", "")
    assert command("papers", TABLE) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "What the paper leaves open" in said and "compcars cannot be had here" in said
    assert command("papers", "fedamp-table33") == 2
    assert command("reproduce", TABLE, "--only", "fl61") == 2


def test_papers_counts_runs_and_goes_on_where_a_result_is_damaged(
    command: Callable[..., int], here: Path, capsys: Any
) -> None:
    made_up(here / "results", Job("panacea-attack", "fl60-30", "fedavg"))
    (here / "results" / "panacea-attack" / "fl60-40-fedavg-seed0.json").write_text("{", encoding="utf-8")
    assert command("papers") == 0
    said, warned = capsys.readouterr()
    assert "1 of 66" in said and "1 of 300" in said and "There are no results" not in said
    assert "fl60-40-fedavg-seed0.json cannot be read" in warned


@pytest.mark.parametrize("place", ["a-file", "a-file/inside"])
def test_a_folder_that_cannot_be_made_is_told_before_anything_is_run(
    command: Callable[..., int], here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (here / "a-file").write_text("here", encoding="utf-8")
    monkeypatch.setattr(study, "_carry_out", lambda *given: pytest.fail("it was run"))
    assert command("reproduce", TABLE, "--only", "fl60/fedavg", "--out", here / place) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"The folder {here / place} cannot be made" in said and "--out" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((TABLE, "--only", "compcars"), "compcars cannot be had here: The pictures are given out on request only"),
        (("--only", "compcars"), "compcars cannot be had here: The pictures are given out on request only"),
        (("fedamp-table3", "--scale", "small", "--only", "cifar100"), "has mnist, fmnist, emnist, and no cifar100"),
        (("fedamp-cifar100", "--scale", "small"), "fedamp-cifar100 has no small scale"),
    ],
)
def test_where_there_is_nothing_to_run_it_is_said_why(
    command: Callable[..., int], here: Path, capsys: Any, words: tuple[str, ...], said: str
) -> None:
    assert command("reproduce", *words) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "There is nothing to run" in told and said in told


@needs_data
def test_a_column_without_data_among_others_is_told(here: Path) -> None:
    lines, tell = heard()
    reproduce(Wanted(TABLE, "fl60/fedavg,compcars", seeds=1, rounds=1, device="cpu"), tell)
    assert any("compcars cannot be had here" in line for line in lines)


@needs_data
def test_the_line_of_a_run_has_the_score_of_its_table(here: Path) -> None:
    lines, tell = heard()
    found = reproduce(Wanted("panacea-attack", "fl60-30/fedavg", seeds=1, rounds=3, device="cpu"), tell)
    cell = found.cell("panacea-attack", "fedavg", "fl60-30")
    assert cell is not None
    assert any(f"FedAvg {cell.ours:.1f} % in the last round" in line for line in lines), lines


@needs_data
def test_stopped_by_hand_what_was_done_is_kept_and_said(
    command: Callable[..., int], here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticking = study._progress

    def progress(config: Any, tell: Any) -> Callable[[Any], None]:
        def on_round(line: Any) -> None:
            if line.round == 2:
                os.kill(os.getpid(), signal.SIGINT)

        return on_round

    monkeypatch.setattr(study, "_progress", progress)
    words = ("reproduce", TABLE, "--only", "fl60/fedavg,fl60/separate", "--seeds", "1", "--rounds", "4")
    assert command(*words) == 130
    said = " ".join(" ".join(capsys.readouterr()).split())
    assert "Stopped after round 2 of 4; everything is saved." in said and "the same command goes on" in said
    monkeypatch.setattr(study, "_progress", ticking)
    assert command(*words) == 0
    assert "goes on after round 2" in " ".join(capsys.readouterr().out.split())


@needs_data
def test_the_same_without_the_command_lines_libraries(here: Path) -> None:
    """On GPU machines there is no plotly; typer and rich are not needed either."""
    script = (
        "import sys\n"
        "for name in ('typer', 'plotly', 'rich', 'matplotlib', 'flwr'): sys.modules[name] = None\n"
        "from fedkin.studies.reproduce import main\n"
        f"main(['{TABLE}', '--only', 'fl60/fedavg', '--seeds', '1', '--rounds', '1', '--device', 'cpu'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=here, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "(97.9, " in done.stdout and "1 are missing" in done.stderr
