"""`compare --tune`: every method has the same grid on its own rate, and validation data alone choose."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import BASE, toy

import fedkin
from fedkin import FedkinError, Listener, methods
from fedkin.engines import start
from fedkin.engines.simulation import Interrupted
from fedkin.evidence.comparison import flat_settings
from fedkin.evidence.grid import at_the_edge
from fedkin.methods.fedavg import FedAvg
from fedkin.runs.config import merge
from fedkin.runs.folder import RunError
from fedkin.studies import rates
from fedkin.studies import tune as grids
from fedkin.studies.plan import compared
from fedkin.studies.supply import Supply

SIZES, GROUPS = (40, 36, 30, 24), (0, 1, 0, 1)
TABLE = merge(BASE, {"data": {"validation": 0.25}, "precision": "float32", "rounds": 2})
METHODS = ["separate", "scaffold", "perfedavg"]
GRID = ["x0.3", "x1", "x3"]


class Restless(FedAvg):
    """Has no rate."""

    rate = ()


class Misled(FedAvg):
    """Says that its rate is a setting it does not have."""

    rate = ("settings.speed",)


def tuned(out: Path, names: list[str] = METHODS, tune: rates.Wanted = GRID, **more: Any) -> fedkin.Results:
    seeds = more.pop("seeds", 2)
    table = merge(TABLE, more.pop("settings", {}))
    return fedkin.compare(table, methods=names, seeds=seeds, federation=toy(SIZES, GROUPS), tune=tune, out=out, **more)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> fedkin.Results:
    """Three methods, two seeds, three factors; tests only read it."""
    return tuned(tmp_path_factory.mktemp("tuned"))


def stamps(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("summary.json")}


# ---- what is tried ----


@pytest.mark.parametrize("name", methods.names())
def test_every_method_says_which_setting_is_its_rate_and_has_it(name: str) -> None:
    config = start.configured({"method": name})
    settings = flat_settings(config.model_dump(mode="json"))
    first, *others = methods.find(name).rate
    assert settings[first] > 0
    assert set(others) <= set(settings)


def test_every_method_has_the_same_factors_on_its_own_rate(found: fedkin.Results) -> None:
    assert list(found.tuned) == METHODS
    for method, own in found.tuned.items():
        default = flat_settings(start.configured(merge(TABLE, {"method": method})).model_dump())
        assert [t.name for t in own.trials] == GRID
        for trial, factor in zip(own.trials, (0.3, 1, 3), strict=True):
            for name in methods.find(method).rate:
                assert trial.values[name] == pytest.approx(factor * default[name])
                for run in trial.runs:
                    assert flat_settings(run.config)[name] == trial.values[name]
            assert [run.summary.seed for run in trial.runs] == [0, 1]


def test_given_rates_are_the_rates_of_every_method_and_further_ones_keep_their_ratio(tmp_path: Path) -> None:
    results = tuned(tmp_path, ["separate", "perfedavg"], [0.02, 0.04], seeds=1)
    own = start.configured(merge(TABLE, {"method": "perfedavg"})).settings
    assert [t.values["local.lr"] for t in results.tuned["separate"].trials] == [0.02, 0.04]
    for trial, rate in zip(results.tuned["perfedavg"].trials, (0.02, 0.04), strict=True):
        assert trial.values["settings.beta"] == rate
        assert trial.values["settings.alpha"] == pytest.approx(rate * own["alpha"] / own["beta"])


def test_a_rate_that_is_asked_for_twice_is_tried_once(tmp_path: Path) -> None:
    lr = start.configured(merge(TABLE, {"method": "separate"})).local.lr
    results = tuned(tmp_path, ["separate"], ["x1", lr, "x2"], seeds=1)
    assert [t.name for t in results.tuned["separate"].trials] == ["x1", "x2"]


def test_a_run_is_what_it_would_be_by_itself(found: fedkin.Results, tmp_path: Path) -> None:
    for own in found.tuned.values():
        for run in (own.trials[0].runs[1], own.trials[2].runs[0]):
            table = {key: value for key, value in run.config.items() if key != "data"}
            alone = fedkin.run(
                merge(TABLE, table), federation=toy(SIZES, GROUPS), out=tmp_path / own.method / run.path.name
            )
            assert [line["models"] for line in alone.rounds] == [line["models"] for line in run.rounds]


def cells(folder: Path, method: str) -> tuple[list[Any], Supply]:
    objects = {"federation": toy(SIZES, GROUPS)}
    return rates.rated(compared(TABLE, [method], 2, folder, objects), GRID), Supply(objects)


@pytest.mark.parametrize(("method", "apart"), [("separate", [3, 3]), ("perfedavg", [1] * 6)])
def test_small_models_are_one_stack_of_seeds_and_rates_and_others_share_their_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, apart: list[int]
) -> None:
    assert [len(stack) for stack in rates.stacks(*cells(tmp_path, method))] == [6]
    monkeypatch.setattr("fedkin.studies.plan.SMALL", 0)
    found = rates.stacks(*cells(tmp_path, method))
    assert [len(stack) for stack in found] == apart
    assert all(len({cell.config.seed for cell in stack}) == 1 for stack in found)


# ---- what is chosen ----


def by_client(run: Any) -> Any:
    """By hand, from the files: (clients,) the headline model's validation scores in the round that is taken. These runs
    are so short that it has no neighbours."""
    lines = [json.loads(line) for line in (run.path / "rounds.jsonl").read_text().splitlines()]
    taken = run.summary.models[run.summary.headline].validated_round
    scores = [line["models"][run.summary.headline]["validation"]["clients"] for line in lines if line["round"] == taken]
    return np.array(scores[-1], dtype=float)


def chosen_by_hand(trials: Any) -> int:
    """The nearest to the second, which is the method's own, of those that are not worse than the best by more than a
    standard error of the difference over clients and seeds."""
    each = [np.concatenate([by_client(run) for run in trial.runs]) for trial in trials]
    top = max(range(len(each)), key=lambda i: np.nanmean(each[i]))
    near = [
        i
        for i, own in enumerate(each)
        if i == top or np.nanmean(each[top] - own) <= 1.000001 * np.nanstd(each[top] - own, ddof=1) / len(own) ** 0.5
    ]
    return min(near, key=lambda i: (abs(i - 1), -np.nanmean(each[i])))


def test_validation_data_choose_by_the_mean_over_seeds_and_the_best_runs_are_compared(found: fedkin.Results) -> None:
    paths = {run.path for run in found.runs}
    for own in found.tuned.values():
        scores = [np.mean([np.nanmean(by_client(run)) for run in trial.runs]) for trial in own.trials]
        assert [trial.validation for trial in own.trials] == pytest.approx(scores)
        best = own.trials[chosen_by_hand(own.trials)]
        assert own.best is best
        assert {run.path for run in best.runs} <= paths
    assert len(paths) == 2 * len(METHODS)
    assert {row.method for row in found.rows()} == set(METHODS)


@pytest.mark.parametrize(
    ("scores", "grid", "said"),
    [
        (
            [0.5, 0.6, 0.7],
            ["x0.3", "x1", "x3"],
            "largest .* fedavg .local.lr = 0.3., apfl .*: a larger one .* --tune x0.3,x1,x3,x9;",
        ),
        ([0.7, 0.6, 0.5], ["x0.1", "x0.3", "x1"], "smallest rate .* smaller one .* --tune x0.03,x0.1,x0.3,x1;"),
        ([0.5, 0.6, 0.7], ["0.01", "0.1", "1"], "largest .* --tune 0.01,0.1,1,10;"),
        ([0.5, 0.7, 0.6], ["x0.3", "x1", "x3"], None),
        ([0.5, 0.7, None], ["x0.3", "x1", "x3"], None),  # the one above diverged: no edge
        ([0.5, 0.7, 0.7], ["x0.1", "x0.3", "x3"], None),  # as good within: nothing speaks for going further
    ],
)
def test_a_choice_at_the_edge_is_told_with_the_way_to_go(
    scores: list[float | None], grid: list[str], said: str | None, found: fedkin.Results
) -> None:
    import re

    run = found.runs[0]
    values = [0.1 * float(word[1:]) if word.startswith("x") else float(word) for word in grid]
    trials = [rates.Trial(w, {"local.lr": v}, [run], s, 1) for w, v, s in zip(grid, values, scores, strict=True)]
    told = at_the_edge([rates.Rates({"local.lr": values}, trials, name, 0.1) for name in ("fedavg", "apfl")])
    assert len(told) == (said is not None)
    assert said is None or re.fullmatch(f"The {said} what is done stays.", told[0])


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ([0.7, 0.7, 0.7], "x1"),
        ([0.7, 0.6, 0.7], "x3"),
        ([0.7, 0.6, 0.6], "x0.1"),
        ([None, 0.6, 0.6], "x1"),
    ],
)
def test_of_rates_that_are_as_good_the_nearest_to_the_methods_own_is_taken(
    scores: list[float | None], chosen: str, found: fedkin.Results
) -> None:
    """The first that was tried, an edge, says nothing."""
    grid = ["x0.1", "x1", "x3"]
    trials = [
        rates.Trial(word, {"local.lr": 0.1 * float(word[1:])}, [found.runs[0]], score, 1)
        for word, score in zip(grid, scores, strict=True)
    ]
    assert rates.Rates({"local.lr": [0.01, 0.1, 0.3]}, trials, "fedavg", 0.1).best.name == chosen


@pytest.mark.parametrize(
    ("gains", "chosen"),
    [
        ([0.05, 0.00, 0.06], "x1"),  # better by chance
        ([0.05, 0.00, 0.90], "x3"),  # better for sure
        ([0.85, 0.00, 0.90], "x3"),  # both are, and equally near: the better one
        ([0.90, 0.00, 0.02], "x0.3"),
    ],
)
def test_another_rate_has_to_be_better_by_more_than_its_standard_error(
    gains: list[float], chosen: str, found: fedkin.Results
) -> None:
    grid, values, noise = ["x0.3", "x1", "x3"], [0.03, 0.1, 0.3], np.random.default_rng(0).normal(size=(3, 12))
    noise -= noise.mean(1, keepdims=True)
    trials = [
        rates.Trial(word, {"local.lr": value}, [found.runs[0]], gain, 1, tuple(gain + own))
        for word, value, gain, own in zip(grid, values, gains, noise, strict=True)
    ]
    own = rates.Rates({"local.lr": values}, trials, "fedavg", 0.1)
    assert own.best.name == chosen
    assert (own.edge is None) == (chosen == "x1" or gains[0] == 0.85), "the other edge is as good: no way to go"


def test_a_lucky_round_chooses_no_rate(tmp_path: Path) -> None:
    """Two rates whose scores are the same on average: one steady, one that jumps up and down with every round."""
    steady, jagged = ([0.5] * 60, [0.5 + 0.2 * (-1) ** k for k in range(60)])
    for scores in (steady, jagged):
        assert grids.around(np.array(scores)[:, None], 30) == pytest.approx([0.5], abs=0.02)
    assert grids.around(np.arange(10.0)[:, None], 9) == pytest.approx([8.5]), "of ten rounds one neighbour a side"
    assert grids.around(np.arange(3.0)[:, None], 2) == pytest.approx([2.0])
    assert np.isnan(grids.around(np.array([[0.5, np.nan]] * 3), 1)[1])


# ---- going on ----


def test_the_same_call_keeps_what_is_complete_and_more_rates_add_to_it(tmp_path: Path) -> None:
    first = tuned(tmp_path, ["separate"])
    before = stamps(tmp_path)
    again = tuned(tmp_path, ["separate"], [*GRID, "x0.1"])
    assert before.items() <= stamps(tmp_path).items()
    assert [t.name for t in again.tuned["separate"].trials] == [*GRID, "x0.1"]
    assert [t.validation for t in again.tuned["separate"].trials[:3]] == [
        t.validation for t in first.tuned["separate"].trials
    ]


def test_an_interrupted_one_goes_on_and_ends_the_same(found: fedkin.Results, tmp_path: Path) -> None:
    heard = []

    def listener(method: str, seed: int) -> Listener:
        return Listener(on_round=lambda line: heard.append(method), stop=lambda: len(heard) > 8)

    with pytest.raises(Interrupted):
        tuned(tmp_path, listener=listener)
    results = tuned(tmp_path)
    for method, own in results.tuned.items():
        assert [t.validation for t in own.trials] == [t.validation for t in found.tuned[method].trials]


def test_a_folder_says_what_was_chosen_in_it(found: fedkin.Results) -> None:
    read = rates.read(found.path)
    assert read is not None
    runs, table = read
    assert [run.path for run in runs] == [run.path for run in found.runs]
    assert {m: (r.rate, r.own) for m, r in table.items()} == {m: (r.rate, r.own) for m, r in found.tuned.items()}
    assert rates.read(found.runs[0].path) is None


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / rates.FILE).write_text('{"fedavg": {"own": 1}}')
    with pytest.raises(RunError, match="is damaged .*'trials'"):
        rates.read(tmp_path)


def test_a_method_that_diverges_at_every_rate_is_named(tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match="separate: Training diverged at every"):
        tuned(tmp_path, ["separate"], [1e30, 1e31], settings={"on_divergence": "stop"})


# ---- several conditions, and files ----


def test_rates_are_chosen_under_every_combination(tmp_path: Path) -> None:
    over = {"local.epochs": [1, 2]}
    common: dict[str, Any] = {"methods": ["separate", "fedavg"], "federation": toy(SIZES, GROUPS), "tune": ["x1", "x3"]}
    crossed = fedkin.cross(TABLE, over=over, out=tmp_path / "crossed", **common)
    assert [list(each.tuned) for each in crossed.crossings] == [["separate", "fedavg"]] * 2
    alone = tuned(tmp_path / "one", ["separate", "fedavg"], ["x1", "x3"], seeds=1, settings={"local": {"epochs": 2}})
    second = crossed.crossings[1].tuned
    assert {m: r.best.validation for m, r in second.items()} == {m: r.best.validation for m, r in alone.tuned.items()}
    assert crossed.report().exists()
    levels = fedkin.vary(TABLE, levels=over, out=tmp_path / "levels", **common)
    assert levels.levels[1].tuned["fedavg"].best.validation == second["fedavg"].best.validation


def test_a_study_file_tunes_and_a_comparison_leaves_one_that_repeats_it(tmp_path: Path) -> None:
    table = {"rounds": 1, "data": {"name": "digits", "clients": 5}, "study": {"methods": ["separate"], "tune": True}}
    first = fedkin.study(table, out=tmp_path)
    assert isinstance(first, fedkin.Results)
    assert [t.name for t in first.tuned["separate"].trials] == list(rates.FACTORS)
    before = stamps(tmp_path)
    assert tomllib.loads((tmp_path / "study.toml").read_text())["study"]["tune"] == list(rates.FACTORS)
    again = fedkin.study(tmp_path / "study.toml")
    assert isinstance(again, fedkin.Results) and again.tuned["separate"].rate == first.tuned["separate"].rate
    assert stamps(tmp_path) == before
    with pytest.raises(RunError, match="another kind, a comparison with rates tuned, not a comparison"):
        fedkin.compare(rounds=1, data={"name": "digits", "clients": 5}, methods=["separate"], out=tmp_path)


# ---- what cannot be ----


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tune": []}, "Rates to try are a list"),
        ({"tune": ["fast"]}, "'fast' is neither"),
        ({"tune": [0.1, -1]}, "-1 is neither"),
        ({"tune": ["x0"]}, "'x0' is neither"),
        ({"names": [f"{__name__}:Restless"]}, "has no learning rate to tune"),
        ({"names": [f"{__name__}:Misled"]}, "its learning rate is settings.speed, but that is no setting"),
        ({"settings": {"data": {"validation": 0}}}, "Tuning chooses on validation data, and no client has any"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(FedkinError, match=said):
        tuned(tmp_path / "out", **{"names": ["fedavg"], **change})
    assert not (tmp_path / "out").exists()


def test_a_grid_is_tuned_already() -> None:
    with pytest.raises(FedkinError, match="study.grid is tuned already"):
        fedkin.study({"study": {"grid": {"lr": [0.1]}, "tune": True}})
