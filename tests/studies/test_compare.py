"""Comparisons in Python: rows, tests and reports of several methods and seeds, each of which is run once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
import torch
from helpers import normed, toy
from safetensors.torch import load_file
from torch import Tensor, nn

import fedkin
from fedkin import FedkinError, Listener, Run
from fedkin.data.federation import Federation
from fedkin.engines import start
from fedkin.engines.start import prepare
from fedkin.evidence.findings import Findings
from fedkin.runs.config import merge
from fedkin.studies import compare, plan

SMALL: dict[str, Any] = {"rounds": 2, "data": {"clients": 5}, "local": {"epochs": 1}}


def weights(run: Run) -> Tensor:
    """FedAvg's global model after the last round."""
    return load_file(run.path / "checkpoint" / "state.safetensors")["server/w"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> compare.Results:
    """Three methods, two seeds; tests only read it."""
    folder = tmp_path_factory.mktemp("compared")
    return fedkin.compare(SMALL, methods=["separate", "fedavg", "fedamp"], seeds=2, out=folder)


def test_a_comparison_has_a_row_for_each_model_headlines_first_and_the_best_on_top(compared):
    rows = compared.rows()
    assert {row.name for row in rows} == {
        "separate:personal", "fedavg:global", "fedavg:finetuned", "fedamp:cloud", "fedamp:personal",
    }  # fmt: skip
    assert [row.headline for row in rows] == [True] * 3 + [False] * 2
    assert [row.bmta for row in rows[:3]] == sorted((row.bmta for row in rows[:3]), reverse=True)
    for row in rows:
        runs = [r for r in compared.runs if r.summary["method"] == row.method]
        assert row.seeds == (0, 1)
        assert row.bmta == pytest.approx(np.mean([r.summary["models"][row.model]["bmta"] for r in runs]))
        assert row.validated == pytest.approx(np.mean([r.summary["models"][row.model]["validated"] for r in runs]))


def test_the_frame_of_a_comparison_is_its_table(compared):
    frame = compared.frame()
    assert list(frame.index) == [row.name for row in compared.rows()]
    assert frame.loc["fedamp:cloud", "bmta"] == next(r.bmta for r in compared.rows() if r.name == "fedamp:cloud")


def test_tests_and_losers_speak_of_the_same_rows(compared):
    pairs = {frozenset((t.first, t.second)) for t in compared.tests()}
    heads = [row.name for row in compared.rows() if row.headline]
    assert pairs == {frozenset((a, b)) for a in heads for b in heads if a != b}
    assert len(compared.tests("separate")) == 2
    assert set(compared.worse_than_alone()) == {"fedavg:global", "fedamp:cloud"}


def test_a_comparison_can_be_reported_and_drawn(compared, tmp_path):
    page = compared.report(tmp_path / "page.html", title="Who helps whom?", notes=["A remark of mine."])
    text = page.read_text()
    assert all(said in text for said in ("Who helps whom?", "A remark of mine.", "fedamp:cloud"))
    assert compared.report() == compared.path / "report.html"
    drawn = compared.figures(tmp_path / "figures", formats=["png"])
    assert drawn
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in drawn)


def test_a_run_can_be_drawn(compared):
    by_method = {r.summary["method"]: r for r in compared.runs}
    for figure in (by_method["fedamp"].plot_rounds(), by_method["fedamp"].plot_clients()):
        assert isinstance(figure, go.Figure)
        assert len(figure.data) > 0
    assert isinstance(by_method["fedamp"].plot_collaboration(), go.Figure)
    assert by_method["fedavg"].plot_collaboration() is None, "it has no xi"


def test_all_methods_start_from_the_same_weights_and_the_same_data(compared):
    by_seed: dict[int, set[bytes]] = {}
    for run in compared.runs:
        ready = start.prepare(run.path / "config.toml")
        mark = ready.problem.initial.numpy().tobytes() + ready.cohort.train.x.numpy().tobytes()
        by_seed.setdefault(run.summary["seed"], set()).add(mark)
    assert [len(marks) for marks in by_seed.values()] == [1, 1]
    assert by_seed[0] != by_seed[1]


def stamps(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def test_the_same_comparison_again_runs_nothing_new_and_goes_on_with_what_is_unfinished(tmp_path):
    folder, settings = tmp_path / "c", {"methods": ["separate", "fedavg"], "seeds": [4], "out": tmp_path / "c"}
    results = fedkin.compare(SMALL, **settings)
    before = stamps(folder)
    fedkin.compare(SMALL, **settings)
    assert stamps(folder) == before
    # As if it had been killed before the end of its second run.
    fedavg = results.runs[1]
    expected, summary = weights(fedavg), fedavg.path / "summary.json"
    summary.unlink()
    again = fedkin.compare(SMALL, **settings)
    assert torch.equal(weights(again.runs[1]), expected)
    assert {k for k, v in stamps(folder).items() if v != before[k]} <= {
        k for k in before if k.startswith("fedavg-seed4")
    }
    assert summary.exists()


def test_a_folder_with_other_settings_is_refused_before_anything_is_run(tmp_path):
    fedkin.compare(SMALL, methods=["fedavg"], out=tmp_path / "c")
    before = stamps(tmp_path / "c")
    with pytest.raises(FedkinError, match="fedavg-seed0 holds a run with other settings"):
        fedkin.compare(SMALL, methods=["separate", "fedavg"], rounds=3, out=tmp_path / "c")
    assert stamps(tmp_path / "c") == before


def test_a_run_of_before_its_method_had_a_setting_is_not_taken_for_one_with_its_default(tmp_path):
    """FedProx once had the term's gradient alone, and its configuration does not say so."""
    (run,) = fedkin.compare(SMALL, methods=["fedprox"], out=tmp_path / "c").runs
    file = run.path / "config.toml"
    older = "".join(line for line in file.open(encoding="utf-8") if not line.startswith("proximal"))
    file.write_text(older, encoding="utf-8")
    with pytest.raises(FedkinError, match=r"fedprox-seed0 .* earlier version of fedkin, .* settings\.proximal"):
        fedkin.compare(SMALL, methods=["fedprox"], out=tmp_path / "c")


def test_a_wrong_setting_of_the_last_method_is_found_before_the_first_is_run(tmp_path):
    with pytest.raises(FedkinError, match="Did you mean 'fedprox'"):
        fedkin.compare(SMALL, methods=["separate", "fedprocks"], out=tmp_path / "c")
    with pytest.raises(FedkinError, match=r"Method 'fedprox': settings\.mu = -1"):
        own = {"fedprox": {"settings": {"mu": -1}}}
        fedkin.compare(merge(SMALL, {"methods": own}), methods=["separate", "fedprox"], out=tmp_path / "c")
    with pytest.raises(FedkinError, match=r"There is no setting 'settings\.mu', nor any other here"):
        fedkin.compare(SMALL, methods=["fedavg", "separate"], settings={"mu": 1}, out=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_settings_can_be_for_one_method_of_a_comparison(tmp_path):
    config = merge(SMALL, {"methods": {"fedprox": {"settings": {"mu": 0.5}, "rounds": 1}}})
    runs = fedkin.compare(config, methods=["fedavg", "fedprox"], out=tmp_path / "c").runs
    assert [r.config["rounds"] for r in runs] == [2, 1]
    assert runs[1].config["settings"]["mu"] == 0.5
    with pytest.raises(FedkinError, match="settings for methods.fedprox, but it is not among the methods compared"):
        fedkin.compare(config, methods=["fedavg"], out=tmp_path / "c")
    with pytest.raises(FedkinError, match="is a table of each method's settings"):
        fedkin.compare(merge(SMALL, {"methods": ["fedavg"]}), methods=["fedavg"], out=tmp_path / "d")


def test_seeds_are_counted_from_the_configured_one_or_named_and_none_is_run_twice(tmp_path):
    def seeds(config: dict[str, Any], seeds: Any, place: str) -> list[int]:
        runs = fedkin.compare(merge(SMALL, config), methods=["separate"], seeds=seeds, rounds=1, out=tmp_path / place)
        return [r.summary["seed"] for r in runs.runs]

    assert seeds({}, 2, "a") == [0, 1]
    assert seeds({"seed": 5}, 2, "b") == [5, 6]
    assert seeds({"seed": 5}, [3, 1, 3], "c") == [3, 1]
    with pytest.raises(FedkinError, match="at least one method and one seed"):
        seeds({}, 0, "d")
    with pytest.raises(FedkinError, match="seed = 'x'"):
        seeds({"seed": "x"}, 2, "d")


def test_a_comparison_takes_own_data_and_an_own_model(tmp_path):
    results = fedkin.compare(
        {"rounds": 2}, methods=["separate", "fedamp"], federation=toy(), model=normed, out=tmp_path / "c"
    )
    assert {r.summary["data"] for r in results.runs} == {"toy"}
    assert {r.config["model"]["name"] for r in results.runs} == {"helpers:normed"}


# ---- what a user would expect ----


def test_a_module_may_be_given_as_it_is_and_every_client_starts_from_its_weights(tmp_path):
    torch.manual_seed(3)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    ready = prepare(SMALL, model=module)
    assert torch.equal(ready.problem.initial, torch.cat([p.detach().reshape(-1) for p in module.parameters()]))
    assert fedkin.run(SMALL, model=module, out=tmp_path / "run").complete


def test_a_metric_of_ones_own_can_be_one_where_less_is_better(tmp_path):
    def error(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs.argmax(1) != y).double()

    run = fedkin.run(SMALL, metric=error, learning={"lower_is_better": True}, out=tmp_path / "run")
    means = [line["models"][run.summary["headline"]]["mean"] for line in run.rounds]
    assert run.summary["higher_is_better"] is False
    assert run.summary["models"][run.summary["headline"]]["bmta"] == pytest.approx(min(means))


def test_a_setting_given_by_its_last_name_is_told_its_full_one():
    for said, full in (({"lr": 0.1}, "local.lr"), ({"sigma": 1.0, "method": "fedamp"}, "settings.sigma")):
        with pytest.raises(FedkinError, match=full):
            prepare(said)


def test_data_and_model_may_be_named_by_a_word():
    config = prepare(data="digits", model={"name": "logistic"}, rounds=1).config
    assert (config.data.name, config.model.name) == ("digits", "logistic")


def test_clients_with_hardly_any_data_are_mentioned(tmp_path):
    arrays = {"large": (np.zeros((20, 2)), np.arange(20) % 2), "small": (np.zeros((4, 2)), np.arange(4) % 2)}
    ready = prepare(federation=fedkin.Federation.from_arrays(arrays), model={"name": "logistic"})
    assert any("small" in sentence and "large" not in sentence for sentence in ready.warnings)


def test_newcomers_stand_beside_known_clients_in_table_and_report(tmp_path):
    """Others are held out in each seed, so a silo is known in some seeds only."""
    settings = merge(SMALL, {"participation": {"novel": 0.4}})
    results = fedkin.compare(settings, methods=["separate", "fedamp"], seeds=2, out=tmp_path / "c")
    held = [set(run.summary["novel"]["clients"]) for run in results.runs]
    assert held[0] != held[1] and held[:2] == held[2:]
    served = {each.name: each for each in Findings(results.runs).newcomers}
    assert set(served) == {"separate:personal", "fedamp:cloud", "fedamp:personal"}
    for method in ("separate", "fedamp"):
        runs = [run for run in results.runs if run.summary["method"] == method]
        headline = runs[0].summary["headline"]
        means = [run.rounds[-1]["models"][headline]["mean"] for run in runs]
        assert served[f"{method}:{headline}"].newcomers.mean == pytest.approx(sum(means) / 2)
    known = {client for run in results.runs for client in run.summary["clients"]}
    joining = results.worth_joining()
    assert {silo.client for silo in joining.silos} == known
    for silo in joining.silos:
        runs = [run for run in results.runs if run.summary["method"] == "separate"]
        own = [run.outputs(silo.client) for run in runs if silo.client in run.summary["clients"]]
        right = [(each.models["chosen"].argmax(1) == each.targets).double().mean().item() for each in own]
        assert silo.alone.value == pytest.approx(sum(right) / len(right))
    page = results.report().read_text()
    assert all(client in page.partition("Newcomers")[2] for client in results.runs[0].summary["novel"]["clients"])


# ---- one split for several seeds ----


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"silo": ["a", "b"] * 40, "x": rng.normal(size=80), "y": rng.choice(["no", "yes"], 80)})


def rows_of(results: compare.Results) -> list[tuple[int, ...]]:
    """Who was tested in each run."""
    return [tuple(run.outputs("a").rows.tolist()) for run in results.runs]


ONE_SPLIT = (
    "All 3 seeds test the same samples, as the federation was split when it was made: what is said over seeds says "
    "nothing of other test samples. Give a function that makes it, and each seed has a split of its own, as in "
    "federation=lambda seed: Federation.from_table(table, client, target, seed=seed)."
)


def test_seeds_of_a_federation_that_was_split_when_it_was_made_test_the_same_and_that_is_told_once(tmp_path):
    heard = []
    results = compare.compare(
        methods=["separate", "fedavg"],
        federation=Federation.from_table(table(), "silo", "y"),
        seeds=3,
        rounds=1,
        out=tmp_path,
        listener=lambda method, seed: Listener(on_warning=heard.append),
    )
    assert len(set(rows_of(results))) == 1, "which is what the note is about"
    assert set(filter(lambda told: "seeds" in told, heard)) == {ONE_SPLIT}
    assert results.report().read_text().count("seeds test the same samples") == 1


def test_a_function_of_the_seed_gives_each_seed_a_split_of_its_own(tmp_path):
    """As the note advises."""
    results = compare.compare(
        methods=["separate", "fedavg"],
        federation=lambda seed: Federation.from_table(table(), "silo", "y", seed=seed),
        seeds=3,
        rounds=1,
        out=tmp_path,
    )
    rows = rows_of(results)
    assert len(set(rows)) == 3 and rows[:3] == rows[3:], "the same for both methods"
    assert not any("seeds" in note for run in results.runs for note in run.summary.notes)


def test_nothing_is_told_of_one_seed_or_where_the_test_rows_are_given():
    split = {"federation": Federation.from_table(table(), "silo", "y")}
    given = {"federation": Federation.from_table(table()[:60], "silo", "y", test=table()[60:])}
    for objects, seeds in ((split, 1), (split, [4]), (given, 5), ({}, 5), ({"federation": None}, 5)):
        assert plan.of_one_split(objects, seeds) == objects
    arrays = {"a": (np.zeros((8, 1)), [0, 1] * 4)}
    for federation in (Federation.from_arrays(arrays), fedkin.load("digits")):
        (*_, note) = plan.of_one_split({"federation": federation}, range(3))["federation"].notes
        assert note == ONE_SPLIT
    whole = {"a": (np.zeros((8, 1)), [0, 1] * 4, np.zeros((2, 1)), [0, 1])}
    assert plan.of_one_split({"federation": Federation.from_arrays(whole)}, 3)["federation"].notes == ()
