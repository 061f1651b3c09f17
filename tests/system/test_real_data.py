"""What must be seen on real data: four hospitals from files and from one table; dirt and dropouts in one picture."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from helpers import SHARED

from fedkin.studies.run import Run

DATA = SHARED
METHODS = ["--methods", "separate,fedavg,fedamp"]
SHORT = ["--rounds", "4", "--seeds", "2"]
DECLARED = ["--client", "hospital", "--target", "disease", "--categorical", '["cp", "restecg", "slope", "thal"]']
DECLARED += ["--missing-in", "{chol = [0], trestbps = [0]}"]
HOSPITALS = {"cleveland", "hungary", "switzerland", "va"}


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (DATA / name).exists(), reason=f"the files of {name} are not at hand")


@pytest.fixture
def fedkin(tmp_path, monkeypatch, capsys, command):
    """The command, typed in an empty folder; what it prints."""

    def typed(*words: str) -> str:
        code, said = command(*words), capsys.readouterr()
        assert code == 0, said.err
        return said.out

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDKIN_DATA", str(DATA))
    return typed


def scores(folder: Path) -> dict[str, list[object]]:
    return {run.name: Run(run).scores().tolist() for run in sorted(folder.iterdir()) if run.is_dir()}


@needs("heart-disease")
def test_four_hospitals_in_one_command_and_the_same_from_one_table(fedkin, tmp_path):
    said = fedkin("compare", "--data", "heart", *METHODS, *SHORT, "--out", "here")
    table = [line.split() for line in said.splitlines() if line.split()[:1] and line.split()[0] in HOSPITALS]
    assert {row[0] for row in table} == HOSPITALS, "an answer for each hospital"
    assert "Was it worth joining?" in said
    assert (tmp_path / "here" / "report.html").stat().st_size > 100_000
    fedkin("data", "export", "heart", "patients.csv")
    fedkin("compare", "--data", "patients.csv", *DECLARED, *METHODS, *SHORT, "--out", "there")
    assert scores(tmp_path / "there") == scores(tmp_path / "here"), "number for number"


@needs("heart-disease")
def test_a_hospital_predicts_for_new_patients_with_its_own_file_alone(fedkin, tmp_path):
    fedkin("run", "--data", "heart", "--rounds", "4", "--out", "run")
    fedkin("data", "export", "heart", "patients.csv")
    rows = list(csv.DictReader((tmp_path / "patients.csv").open()))
    some = [row for row in rows if row["hospital"] == "hungary"][:20]
    assert any(value == "" for row in some for value in row.values()), "gaps and all"
    with (tmp_path / "new.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [name for name in some[0] if name not in ("hospital", "disease")])
        writer.writeheader()
        writer.writerows({name: row[name] for name in writer.fieldnames} for row in some)
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "run" / "models" / "hungary.safetensors").rename(home / "hungary.safetensors")
    answers = list(csv.DictReader(io.StringIO(fedkin("predict", "home/hungary.safetensors", "new.csv"))))
    right = sum(answer["prediction"] == row["disease"] for answer, row in zip(answers, some, strict=True))
    assert right >= 14, "better than a coin, on patients most of whom it was trained with"
    assert all(0 <= float(a["probability_yes"]) <= 1 for a in answers)


@pytest.mark.slow
@needs("fashion-mnist")
def test_dirty_labels_and_dropped_clients_in_one_command_and_one_picture(fedkin, tmp_path):
    words = ["--data", "fmnist", "--clients", "5", "--model", "mlp", "--rounds", "3", "--epochs", "1"]
    words += ["--methods", "fedamp,heurfedamp,fedavg,separate", "--figures", "png", "--out", "dirt"]
    levels = ["--vary", "corruption.labels=0,0.6", "--vary", "participation.dropped=0,0.4"]
    said = fedkin("compare", *words, *levels)
    for method in ("fedamp", "heurfedamp", "fedavg", "separate"):
        assert method in said
    assert (tmp_path / "dirt" / "figures" / "levels.png").stat().st_size > 10_000
    assert "corruption.labels" in (tmp_path / "dirt" / "report.html").read_text()
    dirty = json.loads((tmp_path / "dirt" / "corruption.labels=0.6" / "fedamp-seed0" / "summary.json").read_text())
    assert len(dirty["corrupted"]) == 2, "two of five"
