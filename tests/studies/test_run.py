"""A run in Python: settings reach training, own objects are as good as ours, and what is saved can be used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedkin
from fedkin import Federation, FedkinError, Listener, Method, Run
from fedkin.engines import start
from fedkin.engines.simulation import Interrupted
from fedkin.methods.fedavg import FedAvg
from fedkin.runs.config import Config, merge
from fedkin.training import models

SMALL: dict[str, Any] = {"rounds": 2, "data": {"clients": 5}, "local": {"epochs": 1}}

DOCUMENTED = {
    "method", "data", "split", "seed", "rounds", "clients", "headline", "models", "collaboration",
    "bytes_down", "bytes_up", "seconds", "peak_bytes", "versions", "commit", "device",
}  # fmt: skip


def small(out: Path, **settings: Any) -> Run:
    """A run of FedAvg on five silos with digits, of two rounds."""
    objects = {k: settings.pop(k) for k in ("federation", "model", "loss", "metric") if callable(settings.get(k))}
    return fedkin.run(merge({"method": "fedavg", **SMALL}, settings), out=out, **objects)


def weights(run: Run) -> Tensor:
    """FedAvg's global model after the last round."""
    return load_file(run.path / "checkpoint" / "state.safetensors")["server/w"]


def silos(sizes: tuple[int, ...] = (30, 24, 18), tests: int = 40) -> Federation:
    """Three silos with four measurements a sample and three classes, from arrays."""
    rng = np.random.default_rng(0)
    rule = rng.normal(size=(4, 3))
    clients = {}
    for name, n in zip(("north", "south", "east"), sizes, strict=True):
        x, x_test = rng.normal(size=(n, 4)), rng.normal(size=(tests, 4))
        clients[name] = (x, (x @ rule).argmax(1), x_test, (x_test @ rule).argmax(1))
    return Federation.from_arrays(clients, name="measurements")


# What users bring.


def network(inputs: tuple[int, ...], outputs: int, width: int = 6) -> nn.Module:
    return nn.Sequential(
        nn.Linear(*inputs, width, bias=False), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, outputs)
    )


def twice_the_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return 2 * nn.functional.cross_entropy(outputs, targets)


def hits(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).double().mean()


def misses(outputs: Tensor, targets: Tensor) -> Tensor:
    return 1 - hits(outputs, targets)


misses.lower_is_better = True  # type: ignore[attr-defined]


# ---- the summary ----


@pytest.mark.parametrize(
    "method", ["separate", "fedavg", "fedprox", "fedamp", "heurfedamp", "scaffold", "apfl", "groups"]
)
def test_every_methods_summary_has_the_documented_keys_and_fractions(tmp_path, method):
    run = small(tmp_path / "run", method=method)
    summary = json.loads((run.path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert set(summary) >= DOCUMENTED
    assert (summary["method"], summary["data"], summary["split"]) == (method, "digits", "practical")
    assert (summary["seed"], summary["rounds"], len(summary["clients"])) == (0, 2, 5)
    assert summary["headline"] in summary["models"]
    for scores in summary["models"].values():
        assert set(scores) >= {"bmta", "bmta_round", "last", "last10", "validated", "std"}
        assert 1 <= scores["bmta_round"] <= 3
        assert 0 <= scores["last"] <= scores["bmta"] <= 1
        assert 0 <= scores["validated"] <= scores["bmta"]
        assert 0 <= scores["last10"] <= scores["bmta"]
        assert 0 <= scores["std"] <= 0.5
    has_xi = method in ("fedamp", "heurfedamp", "groups")
    assert summary["collaboration"] is None, "in groups of one there is nothing to stay within"
    assert (run.collaboration() is not None) == has_xi
    assert (summary["bytes_up"] == 0) == (method == "separate")
    assert summary["seconds"] > 0
    assert summary["peak_bytes"] > 1 << 20


def test_without_validation_data_nothing_is_validated(tmp_path):
    run = small(tmp_path / "run", data={"validation": 0.0})
    assert {m["validated"] for m in run.summary["models"].values()} == {None}
    assert run.summary["samples"] == [60, 50, 40, 30, 20]


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        ({"a": 2}, "There is one client only, 'a': it has nobody to learn from."),
        ({"a": 2, "b": 1}, "1 of 2 clients have one class to learn from: b."),
    ],
)
def test_what_may_surprise_is_told_and_the_run_goes_on(tmp_path, clients, said):
    x = np.random.default_rng(0).normal(size=(60, 3))
    arrays = {name: (x, np.arange(60) % classes, x, np.arange(60) % 2) for name, classes in clients.items()}
    heard: list[str] = []
    federation = Federation.from_arrays(arrays)
    run = fedkin.run(
        federation=federation, rounds=2, out=tmp_path / "run", listener=fedkin.Listener(on_warning=heard.append)
    )
    assert heard == [said]
    assert run.summary["models"]["cloud"]["last"] >= 0


# ---- settings reach training ----


def test_the_same_settings_give_the_same_weights_and_another_seed_others(tmp_path):
    first, second, other = (small(tmp_path / str(i), seed=s) for i, s in enumerate((1, 1, 2)))
    assert torch.equal(weights(first), weights(second))
    assert not torch.equal(weights(first), weights(other))


@pytest.mark.parametrize("which", ["split_seed", "init_seed", "training_seed"])
def test_each_of_the_three_seeds_changes_the_outcome(tmp_path, which):
    assert not torch.equal(weights(small(tmp_path / "a")), weights(small(tmp_path / "b", **{which: 1})))


def test_which_samples_are_kept_for_validation_is_a_matter_of_the_split_seed(tmp_path):
    def held(**seeds: int) -> list[float]:
        return start.prepare(seeds, federation=silos()).cohort.validation.x.flatten().tolist()

    assert held() == held(init_seed=1, training_seed=2)
    assert held() != held(split_seed=1)


@pytest.mark.parametrize(
    ("local", "idle"),
    [
        ({"clip": 0.01}, {"clip": 1e9}),
        ({"schedule": "step", "schedule_every": 1}, {"schedule": "step", "schedule_every": 2}),
        ({"schedule": "cosine"}, {"schedule": "constant"}),
        ({"class_weights": "balanced"}, {"class_weights": "none"}),
        ({"class_weights": [5.0, *[1.0] * 9]}, {"class_weights": [2.0] * 10}),
        ({"weight_decay": 0.1}, {"weight_decay": 0.0}),
        ({"lr": 0.001}, {"lr": 0.01}),
        ({"batch_size": 8}, {"batch_size": 16}),
        ({"persist_optimiser": True}, {"persist_optimiser": False}),
        ({"optimiser": "sgd", "momentum": 0.9}, {}),
    ],
)
def test_a_setting_of_local_training_changes_the_weights_unless_it_has_no_effect(tmp_path, local, idle):
    default = weights(small(tmp_path / "default"))
    assert not torch.allclose(weights(small(tmp_path / "changed", local=local)), default, atol=1e-4)
    torch.testing.assert_close(weights(small(tmp_path / "idle", local=idle)), default, rtol=1e-4, atol=1e-6)


def test_a_clipped_step_of_plain_sgd_is_never_longer_than_the_rate_times_the_limit(tmp_path):
    local = {"optimiser": "sgd", "lr": 0.5, "clip": 0.01, "epochs": 1, "batch_size": 100}
    run = small(tmp_path / "run", method="separate", local=local, rounds=1)
    rows = load_file(run.path / "checkpoint" / "state.safetensors")["memory/personal"]
    moved = (rows - start.prepare(run.path / "config.toml").problem.initial).norm(dim=1)
    torch.testing.assert_close(moved, torch.full_like(moved, 0.5 * 0.01), rtol=1e-2, atol=0)


def test_in_double_precision_the_saved_models_are_double(tmp_path):
    single, double = small(tmp_path / "single"), small(tmp_path / "double", precision="float64")
    tensors, _ = double.model("silo-00")
    assert {t.dtype for t in tensors.values()} == {torch.float64}
    # Adam turns rounding of tiny gradients into steps, so only the rough picture is the same.
    torch.testing.assert_close(weights(single).double(), weights(double), rtol=0, atol=2e-2)
    assert not torch.equal(weights(single).double(), weights(double))


def test_a_share_of_clients_takes_part_and_uploads_get_lost(tmp_path):
    run = small(tmp_path / "run", participation={"sample": 0.4}, rounds=3)
    assert [len(line["participants"]) for line in run.rounds] == [2, 2, 2, 3], "at the end the others, for themselves"
    lossless = small(tmp_path / "all")
    lossy = small(tmp_path / "lost", participation={"lost": 0.7})
    assert not torch.equal(weights(lossless), weights(lossy))


def test_newcomers_are_left_out_of_training_and_get_their_models_at_the_end(tmp_path):
    run = small(tmp_path / "run", participation={"novel": 0.4}, method="fedamp")
    assert len(run.summary["clients"]) == 3
    newcomers = run.summary["novel"]["clients"]
    assert len(newcomers) == 2
    assert not {n for line in run.rounds for n in line.get("participants", [])} & set(newcomers)
    assert {p.stem for p in (run.path / "models").iterdir()} == {*run.summary["clients"], *newcomers}


# ---- own objects ----


def test_a_loss_of_ones_own_trains(tmp_path):
    """Twice the loss at half the rate is the loss, for plain SGD."""
    ours = small(tmp_path / "ours", local={"optimiser": "sgd", "lr": 0.1})
    own = small(tmp_path / "own", local={"optimiser": "sgd", "lr": 0.05}, loss=twice_the_loss)
    torch.testing.assert_close(weights(own), weights(ours), rtol=1e-4, atol=1e-6)
    assert own.config["learning"]["loss"] == f"{__name__}:twice_the_loss"
    faster = small(tmp_path / "faster", local={"optimiser": "sgd", "lr": 0.1}, loss=twice_the_loss)
    assert not torch.allclose(weights(faster), weights(ours), atol=1e-3)
    by_name = small(
        tmp_path / "name", local={"optimiser": "sgd", "lr": 0.05}, learning={"loss": f"{__name__}:twice_the_loss"}
    )
    assert torch.equal(weights(by_name), weights(own))


def test_a_metric_of_ones_own_is_what_is_reported(tmp_path):
    ours, own = small(tmp_path / "ours"), small(tmp_path / "own", metric=hits)
    assert own.summary["metric"] == f"{__name__}:hits"
    np.testing.assert_allclose(own.scores(), ours.scores())
    assert torch.equal(weights(own), weights(ours)), "a metric has no say in training"


def test_a_metric_that_should_be_low_is_best_where_it_is_lowest(tmp_path):
    ours, own = small(tmp_path / "ours"), small(tmp_path / "own", metric=misses)
    assert own.summary["higher_is_better"] is False
    for name, scores in own.summary["models"].items():
        assert scores["bmta"] == pytest.approx(1 - ours.summary["models"][name]["bmta"])
        assert scores["bmta"] <= scores["last"]


def test_a_federation_from_arrays_and_a_model_of_ones_own_run(tmp_path):
    run = fedkin.run(
        federation=silos(), model=network, method="fedamp", rounds=8, local={"lr": 0.05}, out=tmp_path / "run"
    )
    assert (run.summary["data"], run.summary["split"]) == ("measurements", "natural")
    assert run.summary["clients"] == ["north", "south", "east"]
    assert run.summary["samples"] == [27, 22, 16]
    assert run.summary["models"]["cloud"]["last"] > 0.6, "it learns"
    assert run.config["model"] == {"name": f"{__name__}:network"}


def test_a_model_of_ones_own_takes_settings(tmp_path):
    def parameters(table: dict[str, Any]) -> int:
        ready = start.prepare({"model": table}, federation=silos(), model=network)
        return ready.problem.layout.parameters

    assert parameters({}) == parameters({"settings": {"width": 6}}) == 4 * 6 + 2 * 6 + 3 * 6 + 3
    assert parameters({"settings": {"width": 9}}) == 4 * 9 + 2 * 9 + 3 * 9 + 3
    with pytest.raises(FedkinError, match="has no setting 'wdth'"):
        parameters({"settings": {"wdth": 9}})


def test_a_regression_is_scored_by_its_squared_error(tmp_path):
    rng = np.random.default_rng(0)
    clients = {}
    for name in "abc":
        x = rng.normal(size=(60, 3))
        clients[name] = (x, x @ np.array([1.0, -2.0, 0.5]))
    run = fedkin.run(
        federation=Federation.from_arrays(clients), method="fedavg", rounds=10, local={"lr": 0.02}, out=tmp_path / "run"
    )
    scores = run.summary["models"]["global"]
    assert (run.summary["metric"], run.summary["higher_is_better"]) == ("mse", False)
    assert scores["bmta"] <= scores["last"] < run.scores()[0].mean() / 2


def test_a_run_with_own_objects_goes_on_when_they_are_given_again(tmp_path):
    def local_model(inputs: tuple[int, ...], outputs: int) -> nn.Module:
        return network(inputs, outputs)

    objects: dict[str, Any] = {"federation": silos(), "model": local_model, "loss": twice_the_loss}
    settings: dict[str, Any] = {"method": "fedavg", "rounds": 3, "local": {"epochs": 1}}
    whole = fedkin.run(settings, **objects, out=tmp_path / "whole")
    with pytest.raises(Interrupted):
        fedkin.run(settings, **objects, out=tmp_path / "run", listener=Listener(stop=lambda: True))
    with pytest.raises(FedkinError, match="'measurements', was given as a Python object"):
        fedkin.resume(tmp_path / "run")
    run = fedkin.resume(tmp_path / "run", **objects)
    assert torch.equal(weights(run), weights(whole))


# ---- what is saved can be used ----


def accuracy(outputs: Tensor, y: Tensor) -> float:
    return float((outputs.argmax(1) == y).double().mean())


@pytest.mark.parametrize("method", ["separate", "fedavg", "fedamp", "scaffold", "apfl"])
def test_a_saved_model_in_a_plain_module_scores_what_the_closing_line_says(tmp_path, method):
    run = small(tmp_path / "run", method=method, local={"epochs": 5})
    federation = fedkin.load("digits", "practical", clients=5)
    closing = run.rounds[-1]["models"]
    chosen = set()
    for client in federation.clients:
        tensors, about = run.model(client.name)
        built, task = about["model"], about["task"]
        module = models.build(built["name"], tuple(task["inputs"]), task["outputs"], built["settings"])
        module.load_state_dict(tensors)
        x, y = client.test
        at = run.summary["clients"].index(client.name)
        assert about["client"] == client.name
        with torch.no_grad():
            assert accuracy(module.eval()(x), y) == pytest.approx(closing[about["chosen"]]["clients"][at])
        chosen.add(about["chosen"])
    assert chosen <= set(run.summary["models"])


def test_a_saved_model_with_running_statistics_scores_what_the_closing_line_says(tmp_path):
    run = fedkin.run(federation=silos(), model=network, method="fedamp", rounds=3, out=tmp_path / "run")
    for client in silos().clients:
        tensors, about = run.model(client.name)
        module = network((4,), 3)
        module.load_state_dict(tensors)
        x, y = client.test
        at = run.summary["clients"].index(client.name)
        with torch.no_grad():
            scored = accuracy(module.eval()(x.float()), y)
        assert scored == pytest.approx(run.rounds[-1]["models"][about["chosen"]]["clients"][at])


def test_a_saved_mixture_of_outputs_scores_what_the_closing_line_says(tmp_path):
    run = small(tmp_path / "run", method="apfl", settings={"mix": "outputs"}, data={"validation": 0.0})
    for client in fedkin.load("digits", "practical", clients=5).clients:
        tensors, about = run.model(client.name)
        assert (about["chosen"], about["predictor"]) == ("personal", "mixed_outputs")
        parts = {}
        for row in ("v", "w"):
            module = models.build(about["model"]["name"], (64,), 10, about["model"]["settings"])
            module.load_state_dict(
                {n.removeprefix(f"{row}."): t for n, t in tensors.items() if n.startswith(f"{row}.")}
            )
            parts[row] = module
        x, y = client.test
        with torch.no_grad():
            outputs = tensors["alpha"] * parts["v"](x) + (1 - tensors["alpha"]) * parts["w"](x)
        at = run.summary["clients"].index(client.name)
        assert accuracy(outputs, y) == pytest.approx(run.rounds[-1]["models"]["personal"]["clients"][at])


def test_the_model_that_is_saved_is_the_best_on_the_clients_validation_data(tmp_path):
    run = small(tmp_path / "run", data={"validation": 0.3})
    closing = run.rounds[-1]["models"]
    for at, name in enumerate(run.summary["clients"]):
        held = {model: closing[model]["validation"]["clients"][at] for model in closing}
        chosen = run.model(name)[1]["chosen"]
        assert held[chosen] == max(held.values())
        if held["global"] == held["finetuned"]:
            assert chosen == "global", "a tie goes to the headline"


# ---- ways to say what to run ----


def test_a_file_a_table_and_a_configuration_say_the_same(tmp_path):
    first = small(tmp_path / "first")
    again = fedkin.run(first.path / "config.toml", out=tmp_path / "file")
    table = fedkin.run(again.config, out=tmp_path / "table")
    config = fedkin.run(Config.model_validate(again.config), out=tmp_path / "config")
    for run in (again, table, config):
        assert run.config == first.config
        assert torch.equal(weights(run), weights(first))
    assert fedkin.run(first.path / "config.toml", rounds=1, out=tmp_path / "over").summary["rounds"] == 1


def test_a_run_without_a_place_finds_a_free_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [fedkin.run(SMALL, rounds=1).path for _ in range(2)]
    assert [str(p) for p in paths] == ["runs/digits-practical-fedamp-seed0", "runs/digits-practical-fedamp-seed0-2"]


def test_nothing_is_written_where_a_setting_is_wrong(tmp_path):
    for wrong in ({"method": "fedampp"}, {"rounds": 0}, {"model": {"name": "mpl"}}, {"data": {"clients": 7}}):
        with pytest.raises(FedkinError):
            fedkin.run(merge(SMALL, wrong), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_listener_hears_of_the_start_and_of_every_round(tmp_path):
    heard: list[Any] = []
    listener = Listener(lambda ready: heard.append(ready.config.method), lambda record: heard.append(record["round"]))
    fedkin.run(SMALL, method="fedavg", out=tmp_path / "run", listener=listener)
    assert heard == ["fedavg", 1, 2, 3]


# ---- methods and federations as a Python user has them ----


class Halfway(FedAvg):
    """FedAvg that goes a part of the way."""

    part: float = 0.5

    def update(self, problem: Any, server: Any, clients: Any, upload: Any, round: Any) -> Any:
        before = server.w.clone()
        after = super().update(problem, server, clients, upload, round)
        return after.replace(w=before + self.part * (after.w - before))


def test_a_method_is_a_name_a_class_or_an_object(tmp_path):
    by_name = small(tmp_path / "name", method="fedavg")
    by_class = small(tmp_path / "class", method=FedAvg)
    assert by_class.config == by_name.config and by_name.config["method"] == "fedavg"
    assert torch.equal(weights(by_class), weights(by_name))
    own = small(tmp_path / "own", method=Halfway(part=0.25))
    again = small(tmp_path / "again", method=f"{__name__}:Halfway", settings={"part": 0.25})
    assert own.config == again.config and own.config["settings"]["part"] == 0.25
    assert torch.equal(weights(own), weights(again))
    assert not torch.equal(weights(own), weights(small(tmp_path / "default", method=Halfway)))
    assert (
        small(tmp_path / "both", method=Halfway(part=0.25), settings={"part": 0.75}).config["settings"]["part"] == 0.75
    )


def a_method(name: str = "Mine") -> type[Method]:
    """A class that no other process can import."""
    return type(name, (FedAvg,), {"__module__": __name__, "__qualname__": f"a_method.<locals>.{name}"})


def test_a_class_that_exists_here_alone_runs_and_its_folder_says_its_name(tmp_path):
    mine = a_method()
    run = small(tmp_path / "run", method=mine)
    assert run.config["method"] == run.summary.method == f"{__name__}:Mine"
    assert torch.equal(weights(run), weights(small(tmp_path / "fedavg", method="fedavg")))


NOTEBOOK = """
import fedkin, sys
from fedkin.methods.fedavg import FedAvg
class Mine(FedAvg):
    "Mine."
settings = {"rounds": 2, "data": {"clients": 5}, "local": {"epochs": 1}}
def stop(_):
    raise KeyboardInterrupt
{}
"""


def in_a_notebook(lines: str, cwd: Path) -> str:
    """What Python says to lines that are no file, as in a notebook."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-"]
    text = NOTEBOOK.replace("{}", lines)
    done = subprocess.run(words, input=text, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def test_a_notebooks_class_runs_compares_and_is_asked_for_again_elsewhere(tmp_path):
    said = in_a_notebook(
        "print(fedkin.compare(settings, methods=['separate', Mine], out='both').frame().index.tolist())\n"
        "try:\n    fedkin.run(settings, method=Mine, out='cut', listener=fedkin.Listener(on_round=stop))\n"
        "except KeyboardInterrupt:\n    print('stopped')\n"
        "try:\n    fedkin.compare(settings, methods=['separate', Mine], out='jobs', jobs=2)\n"
        "except fedkin.FedkinError as error:\n    print(error)\n",
        tmp_path,
    )
    assert "__main__:Mine:global" in said and "stopped" in said
    assert "'__main__:Mine' cannot: define it in a module that can be imported, or take jobs = 1." in said
    assert Run(tmp_path / "cut").config["method"] == "__main__:Mine"
    assert not (tmp_path / "both" / "study.toml").exists(), "no file could repeat it"
    with pytest.raises(
        FedkinError, match=r"'__main__:Mine' could not be imported: .* fedkin\.resume\(path, method=…\)"
    ):
        fedkin.resume(tmp_path / "cut")
    said = in_a_notebook("print(fedkin.resume('cut', method=Mine).summary.rounds)", tmp_path)
    assert said.strip() == "2"
    with pytest.raises(FedkinError, match="The run is of the method '__main__:Mine', not of 'fedavg'"):
        fedkin.resume(cut(tmp_path / "cut"), method="fedavg")


def cut(path: Path) -> Path:
    """A run that is not finished any more."""
    (path / "summary.json").unlink()
    return path


def test_methods_of_a_comparison_may_be_classes_and_objects(tmp_path):
    given = ["separate", FedAvg, Halfway(part=0.25), a_method("Other")]
    found = fedkin.compare(SMALL, methods=given, out=tmp_path / "all")
    names = [run.summary.method for run in found.runs]
    assert names == ["separate", "fedavg", f"{__name__}:Halfway", f"{__name__}:Other"]
    assert [run.config.get("settings", {}).get("part") for run in found.runs] == [None, None, 0.25, None]
    tuned = fedkin.tune(SMALL, grid={"part": [0.25, 0.5]}, method=Halfway, out=tmp_path / "tune")
    assert [trial.values["settings.part"] for trial in tuned.trials] == [0.25, 0.5]
    for twice in ([Halfway(part=0.1), Halfway(part=0.2)], [a_method(), a_method()]):
        with pytest.raises(FedkinError, match="Two methods are called"):
            fedkin.compare(SMALL, methods=twice, out=tmp_path / "twice")
    with pytest.raises(FedkinError, match="`methods` is a list"):
        fedkin.compare(SMALL, methods="fedavg", out=tmp_path / "word")


class Half(Method):
    """A class that is not done yet."""


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Half, "'Half' is not whole: it has no begin, download, models, train, update."),
        (dict, "A method is a name such as 'fedamp', a subclass of fedkin.Method, or an object of one; <class 'dict'>"),
        (3, "or an object of one; 3 is none of these."),
    ],
)
def test_what_is_no_method_is_refused_in_a_sentence(tmp_path, method, said):
    with pytest.raises(FedkinError) as caught:
        small(tmp_path / "run", method=method)
    assert said in str(caught.value)
    assert not (tmp_path / "run").exists()


FIRST_EDITION = {
    "begin": lambda self, problem, rng: ...,
    "enlist": lambda self, problem, clients, rng: ...,
    "download": lambda self, problem, server, clients, round, rng: ...,
    "update": lambda self, problem, server, clients, upload, round, rng: ...,
    "welcome": lambda self, problem, server, rng: ...,
}
"""The functions of a method that took `rng`, as they did."""


@pytest.mark.parametrize("function", FIRST_EDITION)
def test_a_method_of_the_contracts_first_edition_is_told_what_to_write(tmp_path, monkeypatch, function):
    body = {"__module__": __name__, "__qualname__": "Earlier", function: FIRST_EDITION[function]}
    earlier = type("Earlier", (FedAvg,), body)
    monkeypatch.setattr(sys.modules[__name__], "Earlier", earlier, raising=False)
    own = f"{__name__}:Earlier"
    for method, label in ((earlier, "Earlier"), (earlier(), "Earlier"), (own, own)):
        with pytest.raises(FedkinError) as caught:
            small(tmp_path / "run", method=method)
        said = str(caught.value)
        assert said.startswith(f"The method {label!r} is of the contract's first edition: its `{function}` takes `rng`")
        assert "`round` is `round.number`" in said and "`rng(purpose, name)` is `round.rng(purpose, name)`" in said
        assert not (tmp_path / "run").exists()


def made(seed: int = 0) -> Federation:
    """Silos that depend on the seed."""
    rng = np.random.default_rng(seed)
    return Federation.from_arrays({name: (rng.normal(size=(40, 3)), np.arange(40) % 2) for name in "ab"})


def test_a_federation_may_be_a_function_which_is_called_for_every_seed(tmp_path):
    common = {"methods": ["separate"], "rounds": 2, "out": tmp_path / "two"}
    found = fedkin.compare(federation=made, seeds=2, **common)
    for seed, run in enumerate(found.runs):
        itself = fedkin.run(method="separate", federation=made(seed), seed=seed, rounds=2, out=tmp_path / f"one{seed}")
        assert itself.summary["models"] == run.summary["models"]
        assert run.config["data"]["name"] == f"{__name__}:made"
    assert (tmp_path / "two" / "study.toml").exists(), "it can be imported, so a file can repeat it"
    again = fedkin.compare(data=f"{__name__}:made", seeds=2, **common)
    assert [run.path for run in again.runs] == [run.path for run in found.runs], "by its name it is the same"


def test_a_federation_may_be_a_function_that_exists_here_alone(tmp_path):
    federation = silos()
    run = fedkin.run(method="fedavg", federation=lambda: federation, rounds=2, out=tmp_path / "run")
    itself = fedkin.run(method="fedavg", federation=federation, rounds=2, out=tmp_path / "itself")
    assert run.summary["models"] == itself.summary["models"]
    assert fedkin.resume(cut(run.path), federation=lambda: federation).complete
    with pytest.raises(FedkinError, match=r"The run is on the data '.*:lambda', not on '.*:made'"):
        fedkin.resume(cut(run.path), federation=made)


@pytest.mark.parametrize("argument", ["model", "loss", "metric", "federation"])
def test_what_was_defined_in_a_notebook_is_asked_for_again_by_its_argument(tmp_path, argument):
    lines = {
        "model": "def given(inputs, outputs):\n    import torch\n    return torch.nn.Linear(*inputs, outputs)",
        "loss": "def given(o, y):\n    import torch\n    return torch.nn.functional.cross_entropy(o, y)",
        "metric": "def given(o, y):\n    return (o.argmax(1) == y).double().mean()",
        "federation": "def given():\n    return fedkin.load('digits', clients=5)",
    }
    ends = f"{lines[argument]}\nif {argument == 'federation'}:\n    settings.pop('data')\n"
    started = f"{ends}fedkin.run(settings, method='fedavg', {argument}=given, out='cut')\nprint('done')"
    assert "done" in in_a_notebook(started, tmp_path)
    cut(tmp_path / "cut")
    with pytest.raises(FedkinError, match=rf"fedkin\.resume\(path, {argument}=…\)"):
        fedkin.resume(tmp_path / "cut")
    assert "2" in in_a_notebook(f"{ends}print(fedkin.resume('cut', {argument}=given).summary.rounds)", tmp_path)


def test_a_federation_may_be_arrays_or_datasets_by_client(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {name: (rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2) for name in "ab"}
    sets = {name: TensorDataset(*map(torch.as_tensor, pair)) for name, pair in arrays.items()}
    plain = {name: (x.tolist(), y.tolist()) for name, (x, y) in arrays.items()}
    expected = start.prepare(federation=Federation.from_arrays(arrays))
    for given in (arrays, sets, plain):
        found = start.prepare(federation=given)
        assert torch.equal(found.cohort.train.x, expected.cohort.train.x)
        assert found.problem.names == expected.problem.names


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (pd.DataFrame({"a": [1]}), "not a table: fedkin.Federation.from_table(table, client, target) makes one of it."),
        ("patients.csv", "not 'patients.csv'; a data set, a file or a folder is named by `data`."),
    ],
    ids=["frame", "path"],
)
def test_what_is_no_federation_is_refused_with_what_would_do(given, said):
    with pytest.raises(FedkinError) as caught:
        start.prepare(federation=given)
    assert said in str(caught.value)


def test_a_longer_run_of_a_class_that_is_given_again_finds_it(tmp_path):
    hidden = "def hidden():\n    class Hidden(FedAvg):\n        'Inside a function.'\n    return Hidden\n"
    first = f"{hidden}print(fedkin.run(settings, method=hidden(), out='run').summary.rounds)"
    assert in_a_notebook(first, tmp_path).strip().endswith("2")
    said = in_a_notebook(f"{hidden}print(fedkin.resume('run', method=hidden(), rounds=3).summary.rounds)", tmp_path)
    assert said.strip().endswith("3")
