"""Cox's regression over silos with known truth: as good as on pooled data, and who differs is told to stay alone."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import fedkin
from fedkin import data
from fedkin.data.preprocessing import TableSettings
from fedkin.evidence.worth_joining import worth_joining

Array = NDArray[np.float64]
EFFECTS = np.array([0.8, -0.6, 0.5, 0.0, 0.3, 0.0])
"""Of six findings on the log hazard; other silos have other baselines."""
SIZES = {"north": 160, "south": 120, "east": 90, "west": 70, "coast": 50}
SETTINGS = {"client": "hospital", "time": "days", "event": "died"}


def table(folder: Path, seed: int, reversed_: str | None = None) -> Path:
    """A CSV of patients, about half of them censored; in one silo, if asked for, of twice as many patients, hazards are
    the reverse."""
    rng = np.random.default_rng(seed)
    path = folder / f"patients-{seed}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hospital", *(f"finding_{k}" for k in range(len(EFFECTS))), "days", "died"])
        for silo, size in SIZES.items():
            n = 2 * size if silo == reversed_ else size
            x = rng.normal(size=(n, len(EFFECTS)))
            hazard = np.exp(x @ EFFECTS * (-1 if silo == reversed_ else 1)) * rng.uniform(0.5, 2)
            time, end = rng.exponential(size=n) / hazard, rng.exponential(size=n)
            for row, days, died in zip(x, np.minimum(time, end) * 300 + 0.5, time <= end, strict=True):
                writer.writerow([silo, *row.round(4), round(days, 1), int(died)])
    return path


def newton(x: Array, time: Array, event: Array, steps: int = 12) -> Array:
    """Cox's regression by Newton's method (Breslow's ties), the plain way: (columns,) effects."""
    beta = np.zeros(x.shape[1])
    for _ in range(steps):
        weight = np.exp(x @ beta)
        slope, curvature = np.zeros_like(beta), 1e-6 * np.eye(len(beta))
        for i in np.flatnonzero(event):
            at_risk = time >= time[i]
            share = weight[at_risk] / weight[at_risk].sum()
            mean = share @ x[at_risk]
            slope += x[i] - mean
            curvature += (share[:, None] * x[at_risk]).T @ x[at_risk] - np.outer(mean, mean)
        beta = beta + np.linalg.solve(curvature, slope)
    return beta


def concordance(risk: Array, time: Array, event: Array) -> float:
    first = (time[:, None] < time[None, :]) & (event[:, None] > 0)
    won = (risk[:, None] > risk[None, :]) + 0.5 * (risk[:, None] == risk[None, :])
    return float((first * won).sum() / first.sum())


def pooled(path: Path, seed: int) -> float:
    """The mean C-index over silos of one fit on everybody's training rows, those kept for validation left out."""
    federation = data.load(str(path), table=TableSettings(**SETTINGS), seed=seed)
    x, y = (np.concatenate([c.train[k].double().numpy() for c in federation.clients]) for k in (0, 1))
    beta = newton(x, *y.T)
    tested = [(c.test[0].double().numpy(), c.test[1].double().numpy()) for c in federation.clients]
    return float(np.mean([concordance(own @ beta, *y.T) for own, y in tested]))


def test_newtons_method_finds_the_effects() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 6))
    beta = newton(x, rng.exponential(size=1500) / np.exp(x @ EFFECTS), np.ones(1500))
    np.testing.assert_allclose(beta, EFFECTS, atol=0.12)


@pytest.mark.slow
def test_fedavg_ranks_patients_as_well_as_a_pooled_fit(tmp_path: Path) -> None:
    """Nothing is said but which columns are which. Every draw may be off by 0.02, and all together by 0.01."""
    below = []
    for seed in range(5):
        path = table(tmp_path, seed)
        run = fedkin.run(method="fedavg", data=str(path), table=SETTINGS, seed=seed, out=tmp_path / f"run-{seed}")
        assert run.summary.metric == "c_index"
        below.append(pooled(path, seed) - run.summary.models["global"].last)
    assert max(below) <= 0.02, below
    assert np.mean(below) <= 0.01, below


@pytest.mark.slow
def test_a_silo_whose_hazards_are_reversed_is_told_to_stay_alone(tmp_path: Path) -> None:
    """FedAvg costs it dearly, and it is told so; FedAMP leaves it at its own level, and costs nobody much."""
    gained = []
    for seed in range(3):
        path = table(tmp_path, seed, "south")
        found = fedkin.compare(
            methods=["separate", "fedavg", "fedamp"],
            data=str(path),
            table=SETTINGS,
            seed=seed,
            out=tmp_path / f"{seed}",
        ).findings
        answers = {silo.client: silo for silo in worth_joining(found.members, ("fedavg", "")).silos}
        assert answers["south"].verdict == "no, better alone"
        assert answers["south"].gain.value < -0.2
        assert not [silo for silo in answers.values() if silo.answer == "no" and silo.client != "south"]
        mixed = {silo.client: silo for silo in worth_joining(found.members, ("fedamp", "")).silos}
        assert mixed["south"].personal.value > mixed["south"].alone.value - 0.02
        gained.append(np.mean([silo.gain.value for silo in mixed.values()]))
    assert np.mean(gained) > -0.01
