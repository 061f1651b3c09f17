"""A study is planned in one place: nothing is read, assembled or run twice, and several jobs give the same numbers."""

from __future__ import annotations

import csv
import gc
import json
import os
import random
import subprocess
import sys
import tomllib
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import fedkin
from fedkin import FedkinError, Listener
from fedkin.base.state import State
from fedkin.data import from_tables
from fedkin.engines import participation
from fedkin.engines.simulation import Interrupted
from fedkin.methods.fedavg import FedAvg
from fedkin.runs.folder import RunError
from fedkin.studies import plan, study_file, supply, workers

METHODS = ["separate", "fedavg", "fedamp"]
SMALL: dict[str, Any] = {"rounds": 2, "local": {"epochs": 1}, "model": {"settings": {"hidden": [4]}}}


def patients(folder: Path) -> Path:
    """Four clinics with forty patients each, whose risk depends on age in two ways."""
    lots, path = random.Random(0), folder / "patients.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["clinic", "age", "pressure", "ill"])
        for clinic in range(4):
            for _ in range(40):
                age, pressure = lots.gauss(50, 15), lots.gauss(120, 20)
                ill = (age > 50) == (clinic < 2) if lots.random() < 0.9 else lots.random() < 0.5
                writer.writerow([f"clinic-{clinic}", f"{age:.1f}", f"{pressure:.1f}", "yes" if ill else "no"])
    return path


def table(folder: Path) -> dict[str, Any]:
    return {**SMALL, "data": str(patients(folder)), "table": {"client": "clinic", "target": "ill"}}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often tables are read, runs assembled and rounds run."""
    counts: Counter[str] = Counter()

    def watch(module: Any, name: str, as_name: str) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def counting(*given: Any, **further: Any) -> Any:
            counts[as_name] += 1
            return real(*given, **further)

        monkeypatch.setattr(module, name, counting)

    watch(from_tables, "read", "readings")
    watch(supply, "assemble", "assemblies")
    watch(supply, "load_federation", "loads")
    watch(participation.Attendance, "reached", "rounds")
    return counts


def contents(folder: Path) -> dict[str, Any]:
    """Everything that the runs in a folder wrote, but for seconds and machines."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.parent != folder):
        name = str(path.relative_to(folder))
        if path.suffix == ".safetensors":
            found[name] = {key: tensor.tobytes() for key, tensor in load_file(path).items()}
        elif path.suffix == ".npy":
            found[name] = np.load(path).tobytes()
        elif path.name == "rounds.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
        elif path.name == "summary.json":
            summary = json.loads(path.read_text())
            found[name] = {k: v for k, v in summary.items() if k not in ("seconds", "peak_bytes")}
        else:
            found[name] = path.read_text()
    return found


# ---- once ----


def test_three_methods_and_three_seeds_are_nine_assemblies_and_three_readings(tmp_path: Path, counted: Counter[str]):
    results = fedkin.compare(table(tmp_path), methods=METHODS, seeds=3, out=tmp_path / "runs")
    assert counted == {"readings": 3, "loads": 3, "assemblies": 9, "rounds": 18}
    assert len(results.runs) == 9


def test_levels_of_what_is_not_about_the_data_read_them_once_a_seed(tmp_path: Path, counted: Counter[str]):
    levels = {"corruption.labels": [0, 0.4], "local.lr": [0.02, 0.1]}
    fedkin.vary(table(tmp_path), levels=levels, methods=["separate", "fedavg"], seeds=2, out=tmp_path / "runs")
    assert (counted["readings"], counted["assemblies"]) == (2, 16)


def test_a_grid_reads_once_and_assembles_a_point_once(tmp_path: Path, counted: Counter[str]):
    grid = {"lr": [0.001, 0.01], "sigma": ["auto", 10.0]}
    fedkin.tune(table(tmp_path), grid=grid, method="fedamp", out=tmp_path / "runs")
    assert (counted["readings"], counted["assemblies"]) == (1, 4)


def test_what_is_complete_is_neither_read_nor_run_again(tmp_path: Path, counted: Counter[str]):
    settings = table(tmp_path)
    first = fedkin.compare(settings, methods=METHODS, seeds=2, out=tmp_path / "runs")
    counted.clear()
    again = fedkin.compare(settings, methods=METHODS, seeds=2, out=tmp_path / "runs")
    assert counted == {}
    assert [run.path for run in again.runs] == [run.path for run in first.runs]
    fedkin.compare(settings, methods=METHODS, seeds=3, out=tmp_path / "runs")
    assert counted == {"readings": 1, "loads": 1, "assemblies": 3, "rounds": 6}, "the third seed alone"


def test_what_is_complete_under_other_settings_is_refused(tmp_path: Path):
    settings = table(tmp_path)
    fedkin.compare(settings, methods=["separate"], out=tmp_path / "runs")
    for other in ({"rounds": 3}, {"local": {"lr": 0.5}}, {"execution": "one-by-one"}, {"precision": "float64"}):
        with pytest.raises(RunError, match="other settings"):
            fedkin.compare({**settings, **other}, methods=["separate"], out=tmp_path / "runs")


def test_data_that_memory_cannot_hold_for_all_runs_are_read_again_with_the_same_numbers(
    tmp_path: Path, counted: Counter[str], monkeypatch: pytest.MonkeyPatch
):
    settings = table(tmp_path)
    fedkin.compare(settings, methods=METHODS, seeds=2, out=tmp_path / "plenty" / "runs")
    assert counted["loads"] == 2
    counted.clear()
    monkeypatch.setattr(supply, "SHARE", 0)
    fedkin.compare(settings, methods=METHODS, seeds=2, out=tmp_path / "short" / "runs")
    assert counted["loads"] > 2
    assert contents(tmp_path / "short") == contents(tmp_path / "plenty")


def test_methods_share_samples_and_model_and_nothing_that_changes(tmp_path: Path):
    settings = fedkin.engines.start.table(table(tmp_path))
    shop = supply.Supply({})
    one, other, seed = (
        shop.assembled(fedkin.engines.start.configured({**settings, **own}))
        for own in ({"method": "fedavg"}, {"method": "scaffold"}, {"method": "fedavg", "seed": 1})
    )
    assert one.cohort.train is other.cohort.train and one.execution is other.execution
    assert one.cohort is not other.cohort and one.cohort.local != other.cohort.local
    assert seed.cohort.train is not one.cohort.train


def assembled(settings: dict[str, Any], objects: dict[str, Any], methods: tuple[str, ...]) -> list[Any]:
    shop = supply.Supply(objects)
    return [shop.assembled(fedkin.engines.start.configured({**settings, "method": m}, **objects)) for m in methods]


@pytest.mark.parametrize("given", [False, True])
def test_who_trains_alone_has_samples_of_its_own_where_a_table_is_prepared_for_it(tmp_path: Path, given: bool):
    settings, objects = table(tmp_path), dict[str, Any]()
    if given:
        objects = {"federation": fedkin.Federation.from_table(settings.pop("data"), **settings.pop("table"))}
    alone, one, other = assembled(settings, objects, ("separate", "fedavg", "scaffold"))
    assert one.cohort.train is other.cohort.train and alone.cohort.train is not one.cohort.train
    assert alone.cohort.train.x.shape == one.cohort.train.x.shape and not torch.equal(
        alone.cohort.train.x, one.cohort.train.x
    )
    assert torch.equal(alone.test.y, one.test.y) and torch.equal(alone.problem.initial, one.problem.initial)


def drawn(seed: int) -> fedkin.Federation:
    rng = np.random.default_rng(seed)
    return fedkin.Federation.from_arrays({name: (rng.normal(size=(20, 3)), rng.integers(0, 2, 20)) for name in "ab"})


@pytest.mark.parametrize("data", ["digits", f"{__name__}:drawn"])
def test_data_that_are_prepared_in_one_way_are_there_once_whoever_trains(tmp_path: Path, data: str):
    alone, joined = assembled({**SMALL, "data": data}, {}, ("separate", "fedavg"))
    assert alone.cohort.train is joined.cohort.train and alone.execution is joined.execution


def test_a_federation_whose_statistics_are_open_reaches_other_processes(tmp_path: Path):
    settings = table(tmp_path)
    federation = fedkin.Federation.from_table(settings.pop("data"), **settings.pop("table"))
    for jobs in (1, 2):
        fedkin.compare(
            settings,
            methods=["separate", "fedavg"],
            federation=federation,
            out=tmp_path / f"{jobs}" / "runs",
            jobs=jobs,
        )
    assert contents(tmp_path / "2") == contents(tmp_path / "1")


class Careless(FedAvg):
    """Keeps the common start itself at the server, and writes into it."""

    def begin(self, problem, round):  # type: ignore[no-untyped-def]
        return State({"w": problem.initial})

    def update(self, problem, server, clients, upload, round):  # type: ignore[no-untyped-def]
        server.w.copy_(super().update(problem, server, clients, upload, round).w)
        return server


def test_a_method_that_writes_into_what_it_was_given_changes_no_other_ones_numbers(tmp_path: Path):
    settings = table(tmp_path)
    alone = fedkin.compare(settings, methods=["fedavg"], out=tmp_path / "alone")
    beside = fedkin.compare(settings, methods=[f"{__name__}:Careless", "fedavg"], out=tmp_path / "beside")
    assert [r["models"] for r in beside.runs[1].rounds] == [r["models"] for r in alone.runs[0].rounds]


def test_no_more_data_are_held_while_runs_are_tried_than_the_limit_allows(tmp_path: Path, monkeypatch):
    held: list[weakref.ref[Any]] = []
    most = 0
    real = supply.assemble

    def watched(config, objects, stock):  # type: ignore[no-untyped-def]
        nonlocal most
        if not any(each() is stock.train.x for each in held):
            held.append(weakref.ref(stock.train.x))
        gc.collect()
        most = max(most, sum(each() is not None for each in held))
        return real(config, objects, stock)

    monkeypatch.setattr(supply, "assemble", watched)
    monkeypatch.setattr(supply, "SHARE", 0)
    settings = table(tmp_path)
    cells = plan.compared(settings, METHODS, 4, tmp_path / "runs", {})
    assert len(plan.seeds_together(cells, supply.Supply({}))) == 3
    assert len(held) > 4 and most <= 2


def test_levels_that_would_share_a_folder_are_refused(tmp_path: Path):
    long = ["x" * 130 + end for end in "ab"]
    with pytest.raises(FedkinError, match="Two levels would lie in one folder"):
        fedkin.vary(
            {**table(tmp_path), "graph": {"source": "none"}},
            levels={"graph.source": [f"/{name}.npz" for name in long]},
            methods=["separate"],
            out=tmp_path / "runs",
        )


# ---- several jobs ----


def test_two_jobs_give_the_numbers_of_one(tmp_path: Path):
    settings = table(tmp_path)
    fedkin.compare(settings, methods=METHODS, seeds=3, out=tmp_path / "one" / "runs", jobs=1)
    told: list[tuple[str, int]] = []
    rounds: Counter[tuple[str, int]] = Counter()

    def listener(method: str, seed: int) -> Listener:
        told.append((method, seed))
        return Listener(on_round=lambda record: rounds.update([(method, seed)]))

    results = fedkin.compare(
        settings, methods=METHODS, seeds=3, out=tmp_path / "two" / "runs", jobs=2, listener=listener
    )
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert sorted(told) == sorted((m, s) for m in METHODS for s in range(3))
    assert set(rounds.values()) == {3}, "two rounds and the closing exchange of every run"
    assert [run.summary["seed"] for run in results.runs] == [0, 1, 2] * 3


def test_a_run_has_the_threads_it_would_have_alone_in_a_job_of_its_own(tmp_path: Path):
    """Also where torch was loaded before fedkin, which bounds how long threads wait for each other."""
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, fedkin\n"
        "if __name__ == '__main__':\n"
        "    torch.set_num_threads(2)\n"
        "    for jobs in (1, 2):\n"
        "        found = fedkin.compare(data='digits', rounds=1, local={'steps': 1}, methods=['separate', 'fedavg'],\n"
        "            model={'name': 'mlp', 'settings': {'hidden': [200, 200]}}, jobs=jobs, out=f'runs/{jobs}')\n"
        "        print([run.summary.execution.threads for run in found.runs])\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    one, two = done.stdout.splitlines()
    assert one == two


def test_runs_that_nobody_began_before_the_wish_to_stop_are_told():
    class Told:
        events = [(0, None, "done", None), (1, None, "left", None)]

        def get(self, timeout: float) -> Any:
            return self.events.pop(0)

    with pytest.raises(Interrupted, match="before all runs were begun"):
        workers._listen([[], []], [], Told(), lambda: None, None)


def test_one_listener_hears_of_all_runs_of_any_study(tmp_path: Path):
    settings, two = table(tmp_path), ["separate", "fedavg"]
    heard: list[int] = []
    listener = Listener(on_round=lambda line: heard.append(line.round))

    def runs(study: Callable[[], object]) -> int:
        heard.clear()
        study()
        assert set(heard) == {1, 2, 3}, "two rounds and the closing exchange"
        return heard.count(3)

    more = {"listener": listener, "methods": two}
    grid = {"lr": [0.01, 0.1]}
    assert runs(lambda: fedkin.compare(settings, out=tmp_path / "c", **more)) == 2
    assert runs(lambda: fedkin.compare(settings, out=tmp_path / "j", jobs=2, **more)) == 2
    assert runs(lambda: fedkin.vary(settings, levels=grid, out=tmp_path / "v", **more)) == 4
    assert runs(lambda: fedkin.cross(settings, over=grid, out=tmp_path / "x", **more)) == 4
    assert runs(lambda: fedkin.tune(settings, grid=grid, out=tmp_path / "t", listener=listener)) == 2
    for name, count in (("c", 2), ("v", 4), ("t", 2)):
        again = {"out": tmp_path / f"{name}-again", "listener": listener}
        assert runs(lambda: fedkin.study(tmp_path / name / "study.toml", **again)) == count  # noqa: B023


def test_one_method_is_spread_over_the_jobs():
    stacks = [[1, 2, 3, 4, 5]]
    assert workers.spread(stacks, 2) == [[1, 2, 3], [4, 5]]  # type: ignore[arg-type]
    assert workers.spread(stacks, 9) == [[1], [2], [3], [4], [5]]  # type: ignore[arg-type]
    assert workers.spread([[1], [2, 3]], 2) == [[1], [2, 3]]  # type: ignore[arg-type]


def network() -> nn.Module:
    return nn.Linear(2, 2)


def test_what_cannot_reach_another_process_is_told(tmp_path: Path):
    settings = {key: value for key, value in table(tmp_path).items() if key != "model"}
    with pytest.raises(FedkinError, match=r"has to reach another process.*jobs = 1"):
        fedkin.compare(
            settings, methods=["separate", "fedavg"], model=lambda: nn.Linear(2, 2), out=tmp_path / "runs", jobs=2
        )
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").glob("*/config.toml"))
    fedkin.compare(settings, methods=["separate", "fedavg"], model=network, out=tmp_path / "more", jobs=2)


def test_a_wish_to_stop_reaches_all_jobs_and_the_same_call_goes_on(tmp_path: Path):
    settings = {**table(tmp_path), "rounds": 200}
    seen: list[int] = []

    def listener(method: str, seed: int) -> Listener:
        return Listener(on_round=lambda record: seen.append(record["round"]), stop=lambda: len(seen) > 3)

    with pytest.raises(Interrupted, match="everything is saved"):
        fedkin.compare(settings, methods=["separate", "fedavg"], out=tmp_path / "runs", jobs=2, listener=listener)
    assert 3 < len(seen) < 390
    with pytest.raises(FedkinError, match=r"jobs = 0 cannot be"):
        fedkin.compare(settings, methods=["separate", "fedavg"], out=tmp_path / "runs", jobs=0)
    fedkin.compare(settings, methods=["separate", "fedavg"], out=tmp_path / "runs")
    fedkin.compare(settings, methods=["separate", "fedavg"], out=tmp_path / "whole" / "runs")
    ended = {k: v for k, v in contents(tmp_path).items() if k.startswith("runs/") and "models/" in k}
    whole = contents(tmp_path / "whole")
    assert ended and all(value == whole[key] for key, value in ended.items())


def test_a_worker_that_dies_is_told_and_what_was_saved_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "deadly.py").write_text(
        "import os\nfrom fedkin.methods.separate import Separate\n\n\n"
        "class Deadly(Separate):\n"
        '    """Ends its process in the second round."""\n\n'
        "    def train(self, cohort, message, memory, round):\n"
        "        if round.number == 2:\n"
        "            os._exit(9)\n"
        "        return super().train(cohort, message, memory, round)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(workers.LostWorker, match=r"exit code 9.*the same command goes on"):
        fedkin.compare(table(tmp_path), methods=["deadly:Deadly", "separate"], out=tmp_path / "runs", jobs=2)
    assert (tmp_path / "runs" / "deadly.Deadly-seed0" / "checkpoint" / "state.safetensors").exists()


# ---- every combination ----


def test_every_combination_is_a_comparison_of_its_own(tmp_path: Path):
    over = {"local.lr": [0.01, 0.1], "participation.sample": [0.5, 1.0]}
    found = fedkin.cross(table(tmp_path), over=over, methods=["separate", "fedavg"], out=tmp_path / "runs")
    assert [each.values for each in found.crossings] == [
        {"local.lr": lr, "participation.sample": share} for lr in (0.01, 0.1) for share in (0.5, 1.0)
    ]
    alone = fedkin.compare(
        {**table(tmp_path), "participation": {"sample": 0.5}},
        methods=["separate", "fedavg"],
        out=tmp_path / "alone",
        local={"lr": 0.1, "epochs": 1},
    )
    assert [vars(row) for row in found.crossings[2].results.rows()] == [vars(row) for row in alone.rows()]
    assert len(found.rows()) == 4 * 3 and {"local.lr", "method", "validated"} <= set(found.frame().columns)
    page = found.report().read_text()
    assert "local.lr" in page and "fedavg:finetuned" in page


def test_what_cannot_be_crossed_is_refused(tmp_path: Path):
    for over, said in (
        ({}, "nothing to cross"),
        ({"seed": [0, 1]}, "seed cannot be varied"),
        ({"local.lr": [0.1], "lr": [0.2]}, "given twice"),
        ({"local.lrr": [0.1]}, "Did you mean 'local.lr'"),
    ):
        with pytest.raises(FedkinError, match=said):
            fedkin.cross(table(tmp_path), over=over, methods=["separate"], out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


# ---- one file ----


def test_a_comparison_leaves_a_file_that_repeats_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    settings = {**table(tmp_path), "data": "patients.csv", "methods": {"fedamp": {"settings": {"sigma": 3.0}}}}
    fedkin.compare(settings, methods=METHODS, seeds=[3, 5], out="first/runs")
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    again = fedkin.study(tmp_path / "first" / "runs" / "study.toml", out=tmp_path / "second" / "runs")
    assert isinstance(again, fedkin.Results)
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    (same,) = {run.path.parent for run in fedkin.study(tmp_path / "first" / "runs" / "study.toml").runs}  # type: ignore[union-attr]
    assert same == tmp_path / "first" / "runs", "beside its runs it goes on with them"


def test_a_folder_holds_one_study_and_a_part_of_it_leaves_its_file(tmp_path: Path):
    settings = table(tmp_path)
    fedkin.compare(settings, methods=METHODS, seeds=2, out=tmp_path / "runs")
    whole = (tmp_path / "runs" / "study.toml").read_text()
    fedkin.compare(settings, methods=["fedavg"], seeds=[1], out=tmp_path / "runs")
    assert (tmp_path / "runs" / "study.toml").read_text() == whole
    with pytest.raises(RunError, match="holds a study of another kind, a comparison, not levels of settings"):
        fedkin.vary(settings, levels={"rounds": [1, 2]}, methods=["fedavg"], out=tmp_path / "runs")
    fedkin.compare(settings, methods=["fedavg"], seeds=3, out=tmp_path / "runs")
    assert (tmp_path / "runs" / "study.toml").read_text() != whole


def test_a_damaged_file_of_a_study_is_told_in_a_sentence(tmp_path: Path):
    settings = table(tmp_path)
    fedkin.compare(settings, methods=["separate"], out=tmp_path / "runs")
    path = tmp_path / "runs" / "study.toml"
    path.write_text(path.read_text() + "[half a li")
    with pytest.raises(FedkinError, match="study.toml is not valid TOML"):
        fedkin.compare(settings, methods=["separate", "fedavg"], out=tmp_path / "runs")


def test_data_that_have_changed_are_told_apart_from_other_settings(tmp_path: Path):
    settings = table(tmp_path)
    fedkin.compare(settings, methods=["separate"], out=tmp_path / "runs")
    path = tmp_path / "patients.csv"
    path.write_text(path.read_text() + "clinic-0,50,120,yes\n")
    with pytest.raises(RunError, match=r"patients.csv has changed since"):
        fedkin.compare(settings, methods=["separate"], out=tmp_path / "runs")


def test_the_page_of_several_conditions_is_the_studys_own(tmp_path: Path, command: Any, capsys: Any):
    fedkin.cross(table(tmp_path), over={"rounds": [1, 2]}, methods=["separate"], out=tmp_path / "runs")
    assert command("report", tmp_path / "runs", "--out", tmp_path / "page.html") == 0
    assert (tmp_path / "page.html").read_text() == (fedkin.open(tmp_path / "runs").report()).read_text()
    assert command("report", tmp_path / "runs", tmp_path / "runs" / "rounds=1") == 2
    assert "holds a study over several settings; its report is its own" in capsys.readouterr().err
    assert command("report", tmp_path / "runs" / "rounds=1") == 0
    assert command("study", tmp_path / "runs" / "study.toml") == 0
    assert "rounds" in capsys.readouterr().out


def test_a_file_of_ones_own_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    patients(tmp_path)
    text = """# my own words
rounds = 1
data = "patients.csv"
table = { client = "clinic", target = "ill" }

[study]
methods = ["separate"]
out = "."
"""
    Path("study.toml").write_text(text)
    fedkin.study("study.toml")
    assert Path("study.toml").read_text() == text
    Path("study.toml").write_text(text.replace('out = "."\n', ""))
    found = fedkin.study("study.toml")
    assert found.path == Path("runs/study"), "there are runs beside it, but fedkin did not write it"


def test_what_no_file_can_hold_leaves_none_that_tells_of_another_study(tmp_path: Path):
    settings = table(tmp_path)
    fedkin.compare(settings, methods=["separate"], seeds=range(2), out=tmp_path / "runs")
    assert "seeds = [0, 1]" in (tmp_path / "runs" / "study.toml").read_text()
    fedkin.compare({**settings, "data": {"name": settings["data"], "clients": None}}, methods=["separate"],
                   seeds=range(2), out=tmp_path / "runs")  # fmt: skip
    assert not (tmp_path / "runs" / "study.toml").exists()


def test_paths_of_graphs_and_data_are_kept_absolute_wherever_they_stand(tmp_path: Path):
    raw = {"data": "a.csv", "methods": {"sfl": {"graph": {"source": "g.npz"}}}}
    study_file.keep(tmp_path, raw, {"methods": ["sfl"], "cross": {"data.name": ["b.csv", "digits"]}}, {})
    found = tomllib.loads((tmp_path / "study.toml").read_text())
    assert Path(found["data"]).is_absolute() and Path(found["methods"]["sfl"]["graph"]["source"]).is_absolute()
    first, second = found["study"]["cross"]["data.name"]
    assert Path(first).is_absolute() and second == "digits"


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"methods": ["separate"], "vary": {"local": {"lr": [0.01, 0.1]}}}, fedkin.Levels),
        ({"methods": ["separate"], "cross": {"local.lr": [0.01], "rounds": [1, 2]}}, fedkin.Crossed),
        ({"methods": ["fedamp"], "grid": {"sigma": [1.0, 2.0]}}, fedkin.Tuned),
        ({"methods": ["separate"], "seeds": 2, "jobs": 2}, fedkin.Results),
    ],
)
def test_a_study_is_whatever_its_table_says(tmp_path: Path, said: dict[str, Any], kind: type):
    found = fedkin.study({**table(tmp_path), "study": said}, out=tmp_path / "runs")
    assert isinstance(found, kind)
    again = fedkin.study(tmp_path / "runs" / "study.toml", out=tmp_path / "again")
    assert contents(tmp_path / "runs").keys() == contents(tmp_path / "again").keys()
    assert isinstance(again, kind)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (None, r"has no table \[study\]"),
        ({}, "study.methods is empty"),
        ({"method": ["fedamp"]}, "Did you mean 'study.methods'"),
        ({"methods": ["fedamp"], "seeds": 0}, "study.seeds = 0 cannot be"),
        ({"methods": ["fedamp"], "vary": {"lr": [1]}, "cross": {"lr": [1]}}, "two studies"),
        ({"methods": ["fedamp"], "vary": {"lr": [1]}, "references": ["pooled"]}, "leave one out"),
        ({"methods": ["fedamp", "fedavg"], "grid": {"lr": [1]}}, "one method"),
        ({"methods": ["fedamp"], "vary": {"local.lr": 0.1}}, "local.lr needs a list of values"),
        ({"methods": ["fedamp"], "grid": {"lr": [1]}, "seeds": 3}, "study.seeds are for comparisons"),
        ({"methods": ["fedamp"], "seeds": True}, "study.seeds = true cannot be"),
    ],
)
def test_a_study_that_cannot_be_is_refused_in_a_sentence(tmp_path: Path, said: Any, answer: str):
    with pytest.raises(FedkinError, match=answer):
        fedkin.study({**table(tmp_path), **({} if said is None else {"study": said})}, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
