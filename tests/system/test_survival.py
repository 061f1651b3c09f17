"""Survival from a CSV to a verdict and a risk, typed as a person would."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from helpers import Said
from safetensors.torch import load_file

import fedkin as package
from fedkin.base.survival import c_index
from fedkin.data.table import read
from fedkin.training import models

NAMED = ("--data", "patients.csv", "--client", "hospital", "--time", "days", "--event", "died")


def written(path: Path, n: int = 420) -> None:
    """Three hospitals, in which the old die early; the south's findings say the opposite of the others'."""
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hospital", "age", "ward", "finding", "days", "died"])
        for i in range(n):
            silo, age, finding = ("north", "south", "west")[i % 3], rng.normal(60, 10), rng.normal()
            log_risk = (age - 60) / 10 + (-2 if silo == "south" else 2) * finding
            time, end = rng.exponential() * np.exp(-log_risk), rng.exponential() * 2
            row = [silo, round(age, 1), rng.choice(["a", "b"]), round(finding, 3)]
            writer.writerow([*row, round(100 * min(time, end) + 1, 1), "yes" if time <= end else "no"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("survival")
    written(folder / "patients.csv")
    table = {"client": "hospital", "time": "days", "event": "died"}
    package.compare(
        methods=["separate", "fedavg"], data=str(folder / "patients.csv"), table=table, seeds=2, out=folder / "runs"
    )
    return folder


@pytest.fixture
def fedkin(monkeypatch: Any, capsys: Any, tmp_path: Path, made: Path, command: Any) -> Callable[..., Said]:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)

    def type_(*words: str | Path) -> Said:
        code, printed = command(*words), capsys.readouterr()
        return Said(code, printed.out, printed.err)

    return type_


def test_a_comparison_speaks_of_c_indices_and_tells_the_odd_one_to_stay_alone(fedkin: Callable[..., Said]) -> None:
    words = ("compare", *NAMED, "--task", "survival", "--methods", "separate,fedavg", "--rounds", "20")
    said = fedkin(*words, "--out", "here")
    assert said.code == 0
    assert "Test C-index" in said.out
    (south,) = [line for line in said.out.splitlines() if line.strip().startswith("south") and "alone" in line]
    assert "no, better alone" in south
    page = Path("here/report.html").read_text()
    assert "C-index" in page
    for wrong in ("c_index", "RMSE", "of one class", "accuracy"):
        assert wrong not in page.split("<script")[0], wrong


def test_the_same_from_python(made: Path) -> None:
    runs = [package.Run(made / "runs" / f"{method}-seed{seed}") for method in ("separate", "fedavg") for seed in (0, 1)]
    assert {run.summary.metric for run in runs} == {"c_index"}
    outputs = runs[0].outputs()
    assert outputs is not None and outputs.fitting == ("c_index",)
    for i, client in enumerate(outputs.clients):
        own = outputs.of(client)
        expected = float(c_index(own.models["personal"].double(), own.targets))
        assert runs[0].rounds[-1].models["personal"].clients[i] == pytest.approx(expected, abs=1e-6)


def test_a_risk_is_beside_that_of_the_silos_median_training_patient(made: Path) -> None:
    run = package.Run(made / "runs" / "separate-seed0")
    found = run.predict("north", made / "patients.csv")
    np.testing.assert_allclose(np.log(found.risks), found.values, rtol=1e-4, atol=1e-6)
    ready = package.engines.start.assembled(run.resolved())
    client = next(c for c in ready.federation.clients if c.name == "north")
    rows = run.saved("north").network(client.train[0]).detach().double().flatten()
    assert run.saved("north").task.target_mean == pytest.approx(-float(rows.median()), abs=1e-5)


def test_predict_and_both_exports_agree(fedkin: Callable[..., Said]) -> None:
    run = Path("runs/fedavg-seed0")
    said = fedkin("predict", run, "--client", "west", "patients.csv", "--out", "risks.csv")
    assert said.code == 0, said.err
    with Path("risks.csv").open() as file:
        told = list(csv.DictReader(file))
    assert list(told[0])[-2:] == ["log_risk", "risk"] and next(iter(told[0])) == "row"
    log_risk = np.array([float(row["log_risk"]) for row in told])
    assert fedkin("export", run, "--client", "west", "--out", "over").code == 0
    session = onnxruntime.InferenceSession("over/west.onnx")
    assert [output.name for output in session.get_outputs()] == ["log_risk"]
    saved = package.Saved.load(run / "models" / "west.safetensors")
    rows = saved.read(read("patients.csv"))
    (answers,) = session.run(None, {"inputs": rows.numpy()})
    np.testing.assert_allclose(answers[:, 0], log_risk, rtol=1e-4, atol=1e-5)
    assert fedkin("export", run, "--client", "west", "--format", "state_dict", "--out", "over").code == 0
    about = json.loads(Path("over/west.json").read_text())
    assert about["task"] == "survival"
    told_of = about["architecture"]
    network = models.build(told_of["name"], tuple(told_of["inputs"]), told_of["outputs"], told_of["settings"])
    network.load_state_dict(load_file("over/west.safetensors"))
    outputs = network(saved.module.prepare(rows).float()).detach().numpy()[:, 0] + about["target"]["mean"]
    np.testing.assert_allclose(outputs, log_risk, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--data", "patients.csv", "--client", "hospital", "--time", "days"), "event = … (--event)"),
        ((*NAMED, "--target", "age"), "in place of a target"),
        ((*NAMED, "--metric", "auc"), "is for classification"),
        (("--data", "digits", "--time", "days", "--event", "died"), "table.time and table.event are for tables"),
    ],
)
def test_what_cannot_be_meant_is_answered_in_a_sentence(
    fedkin: Callable[..., Said], words: tuple[str, ...], sentence: str
) -> None:
    said = fedkin("run", *words)
    assert said.code == 2
    assert sentence in " ".join(said.err.split())
