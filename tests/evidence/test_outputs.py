"""What models answered on test samples: kept at the end of a run, and read again to make any metric of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import BASE, toy
from safetensors import safe_open

import fedkin
from fedkin.base.task import METRICS, Task
from fedkin.data.federation import Client, Federation
from fedkin.engines import handing
from fedkin.errors import FedkinError
from fedkin.evidence.outputs import Outputs
from fedkin.runs.config import merge
from fedkin.runs.folder import RunError
from fedkin.studies.run import Run

SETTINGS = merge(BASE, {"precision": "float32", "data": {"validation": 0.3}})


def numbers(scale: float = 1.0, mean: float = 0.0) -> Federation:
    """Three silos whose targets, before they were scaled, lie around 300."""
    rng = np.random.default_rng(0)
    members = []
    for name, n in (("a", 40), ("b", 30), ("c", 20)):
        x = rng.normal(size=(n, 4)).astype(np.float32)
        y = (300 + 40 * x @ np.array([1, -1, 2, 0.5]) + rng.normal(0, 20, n)).astype(np.float32)
        x, y = torch.as_tensor(x), torch.as_tensor((y - mean) / scale)
        members.append(Client(name, (x[10:], y[10:]), (x[:10], y[:10])))
    task = Task.regression((4,), 1)
    return Federation("numbers", tuple(members), Task(*task_fields(task), (), mean, scale))


def task_fields(task: Task) -> tuple[object, ...]:
    return task.kind, task.inputs, task.outputs, task.loss, task.metric


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Run:
    """A small run on digits; tests only read it."""
    settings = {"method": "fedamp", "rounds": 2, "data": {"clients": 5}, "local": {"epochs": 1}}
    return fedkin.run(settings, out=tmp_path_factory.mktemp("runs") / "digits")


def test_the_outputs_score_what_the_closing_line_says(digits: Run) -> None:
    found = digits.outputs()
    assert found is not None
    assert list(found.clients) == digits.summary["clients"]
    assert set(found.models) == {"chosen", *digits.summary["models"]}
    for model in digits.summary["models"]:
        for client, score in zip(found.clients, digits.scores(model)[-1], strict=True):
            own = found.of(client)
            assert float(METRICS["accuracy"](own.models[model], own.targets).mean()) == pytest.approx(score)


def test_chosen_is_what_each_client_was_handed(digits: Run) -> None:
    found = digits.outputs()
    assert found is not None
    for client, handed in zip(found.clients, found.handed, strict=True):
        own = found.of(client)
        assert digits.model(client)[1]["chosen"] == handed
        assert torch.equal(own.models["chosen"], own.models[handed])
        assert own.models["chosen"].dtype == torch.float32


def test_metrics_are_of_every_client_and_model_with_intervals(digits: Run) -> None:
    found = digits.metrics()
    assert list(found) == digits.summary["clients"]
    for models in found.values():
        assert set(models) == {"chosen", "cloud", "personal"}
        for metrics in models.values():
            assert list(metrics) == ["accuracy", "balanced_accuracy", "auc", "log_loss"]
            for each in metrics.values():
                assert each.low <= each.value <= each.high


def test_clients_without_test_samples_are_there_with_nothing() -> None:
    y = torch.tensor([0, 1, 1])
    models = {"global": torch.eye(2)[y], "personal": torch.eye(2)[1 - y]}
    about = {"clients": ["a", "b", "c"], "counts": [2, 0, 1], "chosen": ["global", "global", "personal"]}
    about |= {"kind": "classification", "target": {"mean": 0.0, "scale": 1.0}, "classes": []}
    found = Outputs.from_file({"targets": y} | {f"models/{name}": t for name, t in models.items()}, about)
    assert found.of("b").models["chosen"].shape == (0, 2)
    accuracy = {client: models["chosen"]["accuracy"].value for client, models in found.metrics().items()}
    assert (accuracy["a"], accuracy["c"]) == (1, 0) and np.isnan(accuracy["b"])


def test_newcomers_do_not_replace_the_known_clients(tmp_path: Path) -> None:
    run = fedkin.run(SETTINGS, method="fedamp", participation={"novel": 0.25}, federation=toy(), out=tmp_path / "run")
    found = run.outputs()
    assert found is not None and list(found.clients) == run.summary["clients"]
    assert len(found.clients) == 3


def test_a_predictor_answers_too(tmp_path: Path) -> None:
    run = fedkin.run(SETTINGS, method="apfl", federation=toy(), out=tmp_path / "run")
    found = run.outputs()
    assert found is not None
    for model in run.summary["models"]:
        for client, score in zip(found.clients, run.scores(model)[-1], strict=True):
            own = found.of(client)
            assert float(METRICS["accuracy"](own.models[model], own.targets).mean()) == pytest.approx(score)


def test_much_is_cut_to_the_headline_and_what_was_handed_out(tmp_path: Path, monkeypatch) -> None:
    federation = toy((90, 80, 70, 60), [0, 0, 0, 1])  # who disagrees with the majority prefers a model tuned to itself

    def outputs(most: int) -> Outputs:
        monkeypatch.setattr(handing, "MOST_BYTES", most)
        run = fedkin.run(SETTINGS, method="fedavg", seed=2, federation=federation, out=tmp_path / str(most))
        found = run.outputs()
        assert found is not None
        return found

    both = 2 * 160 * 3 * 4  # models, test samples, outputs, bytes
    whole, cut = outputs(both), outputs(both - 1)
    assert set(whole.handed) == {"global", "finetuned"}
    assert set(whole.models) == {"chosen", "global", "finetuned"}
    assert set(cut.models) == {"chosen", "global"}
    for client, handed in zip(cut.clients, cut.handed, strict=True):
        assert torch.equal(cut.of(client).models["chosen"], whole.of(client).models[handed])


# ---- regression ----


def test_errors_of_targets_in_the_hundreds(tmp_path: Path) -> None:
    own = {c.name: (c.train[0], c.train[1], *c.test) for c in numbers().clients}
    federation = fedkin.Federation.from_arrays(own)
    run = fedkin.run(SETTINGS, method="fedavg", federation=federation, learning={"metric": "rmse"}, out=tmp_path / "r")
    assert run.summary["metric"] == "rmse" and not run.summary["higher_is_better"]
    for client, found in run.metrics().items():
        outputs = run.outputs(client)
        assert outputs is not None
        error = outputs.models["global"][:, 0].double() - outputs.targets.double()
        assert found["global"]["rmse"].value == pytest.approx(float(error.square().mean().sqrt()), rel=1e-5)
        assert found["global"]["mae"].value == pytest.approx(float(error.abs().mean()), rel=1e-5)
        assert found["global"]["rmse"].value > 50


@pytest.mark.parametrize("metric", ["default", "rmse", "mae", "mse"])
def test_scores_of_scaled_targets_are_in_the_targets_own_units(tmp_path: Path, metric: str) -> None:
    run = fedkin.run(
        SETTINGS, method="fedavg", federation=numbers(80.0, 300.0), learning={"metric": metric}, out=tmp_path / "run"
    )
    found = run.outputs()
    assert found is not None and (found.target_mean, found.target_scale) == (300.0, 80.0)
    assert run.model("a")[1]["target"] == {"mean": 300.0, "scale": 80.0}
    for client, score in zip(found.clients, run.scores("global")[-1], strict=True):
        own = found.of(client)
        outputs, y = (300 + 80 * t.double() for t in (own.models["global"][:, 0], own.targets))
        error = {"rmse": (outputs - y).square().mean().sqrt(), "mae": (outputs - y).abs().mean()}
        expected = error.get(metric, (outputs - y).square().mean())
        assert score == pytest.approx(float(expected), rel=1e-5)
        for name, value in error.items():
            assert run.metrics()[client]["global"][name].value == pytest.approx(float(value), rel=1e-5)


def test_a_metric_of_ones_own_sees_a_tables_targets_as_they_are(tmp_path: Path) -> None:
    """Amounts of which many are 0 or whole, scaled for our loss: a share within two days, and whether a 0 is a 0."""
    source, seen = np.random.default_rng(0), []
    rows = {f"x{i}": source.normal(size=160) for i in range(3)}
    y = np.maximum(0, np.round(30 + 20 * rows["x0"] + 5 * source.normal(size=160)))
    frame = pd.DataFrame({**rows, "y": y, "silo": np.repeat(["a", "b"], 80)})

    def within_two(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append(set(targets.flatten().tolist()))
        return ((outputs.flatten() - targets.flatten()).abs() <= 2).double().mean()

    federation = fedkin.Federation.from_table(frame, "silo", "y", task="regression")
    run = fedkin.run({"rounds": 5}, federation=federation, metric=within_two, out=tmp_path / "run")
    assert all(values <= set(y.tolist()) for values in seen if values), "to the last digit"
    for client, score in zip(run.summary.clients, run.rounds[-1].models["cloud"].clients, strict=True):
        own = run.outputs(client)
        assert own is not None and own.target_scale != 1
        given, true = (
            own.target_mean + own.target_scale * each.double() for each in (own.models["cloud"], own.targets)
        )
        assert score == pytest.approx(float(((given.flatten() - true).abs() <= 2).double().mean()))


def test_a_metric_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match="'auc' is for classification, but this task is regression"):
        fedkin.run(SETTINGS, federation=numbers(), learning={"metric": "auc"}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- files ----


def test_the_file_says_what_it_holds(digits: Run) -> None:
    with safe_open(digits.path / "outputs.safetensors", "pt") as file:
        about = json.loads(file.metadata()["fedkin"])
        names = set(file.keys())
    assert names == {"targets", "models/cloud", "models/personal", "beside/majority", "beside/linear"}
    assert about["clients"] == digits.summary["clients"]
    assert about["kind"] == "classification" and about["target"] == {"mean": 0.0, "scale": 1.0}
    assert len(about["counts"]) == len(about["chosen"]) == 5


def test_the_file_says_who_was_tested_if_that_is_known(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    silos = {name: (rng.normal(size=(n, 4)).astype(np.float32), np.arange(n) % 2) for name, n in (("a", 30), ("b", 40))}
    federation = Federation.from_arrays(silos)
    run = fedkin.run(SETTINGS, method="fedavg", federation=federation, out=tmp_path / "run")
    for client in federation.clients:
        found = run.outputs(client.name)
        assert found is not None and found.rows is not None and client.test_rows is not None
        assert found.rows.tolist() == client.test_rows.tolist()
        assert found.targets.tolist() == silos[client.name][1][found.rows].tolist()
    with safe_open(run.path / "outputs.safetensors", "pt") as file:
        assert "rows" in file.keys()  # noqa: SIM118


def test_a_file_from_before_there_were_numbers_is_read(digits: Run) -> None:
    found = digits.outputs()
    assert found is not None and found.rows is None and found.of("silo-00").rows is None
    numbered = replace(found, rows=torch.arange(len(found.targets)))
    assert torch.equal(numbered.of(found.clients[1]).rows[:1], torch.tensor([found.counts[0]]))
    tensors, about = numbered.to_file()
    again = Outputs.from_file(tensors, about)
    assert again.rows is not None and torch.equal(again.rows, torch.arange(len(found.targets)))
    assert Outputs.from_file({k: t for k, t in tensors.items() if k != "rows"}, about).rows is None


def test_runs_from_before_there_were_outputs_are_read(digits: Run, tmp_path: Path) -> None:
    for name in ("config.toml", "summary.json", "rounds.jsonl"):
        (tmp_path / name).write_bytes((digits.path / name).read_bytes())
    old = Run(tmp_path)
    assert old.outputs() is None and old.outputs("silo-00") is None
    with pytest.raises(RunError, match="kept no outputs to make metrics of"):
        old.metrics()


@pytest.mark.parametrize("content", [b"", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ", b"nonsense" * 20])
def test_a_damaged_file_is_said_to_be(digits: Run, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.toml").write_bytes((digits.path / "config.toml").read_bytes())
    (tmp_path / "outputs.safetensors").write_bytes(content)
    with pytest.raises(RunError, match=r"outputs.safetensors is damaged \(.+\); remove it"):
        Run(tmp_path).outputs()


def test_a_stranger_and_a_stranger_metric_are_named(digits: Run) -> None:
    found = digits.outputs()
    assert isinstance(found, Outputs)
    with pytest.raises(FedkinError, match="no test outputs of a client 'nobody'; clients are silo-00"):
        digits.outputs("nobody")
    with pytest.raises(FedkinError, match="'rmse' is for regression"):
        found.metric("rmse")
    with pytest.raises(FedkinError, match="a metric of your own"):
        found.metric("package.module:function")
    assert repr(found).startswith("Outputs(5 clients, ")
