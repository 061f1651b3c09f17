"""A run in Python: settings reach training, own objects are as good as ours, and what is saved can be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fedkin
from fedkin import Federation, FedkinError, Listener, Run
from fedkin.engines import start
from fedkin.engines.simulation import Interrupted
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
    x = np.random.default_rng(0).normal(size=(40, 3))
    arrays = {name: (x, np.arange(40) % classes, x, np.arange(40) % 2) for name, classes in clients.items()}
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
