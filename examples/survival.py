"""Times until an event: five hospitals whose hazards are known, as they are made up here; one has the opposite effects.

python survival.py
fedkin compare --data patients.csv --client hospital --time days --event died --methods separate,fedavg,fedamp   (then)
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

import fedkin

EFFECTS = 0.3 * np.array([1, -1] * 8)
"""Of sixteen laboratory values on the log hazard. In the south all of them mean the opposite."""
PATIENTS = {"north": 160, "south": 200, "east": 120, "west": 100, "coast": 80}


def hospital(name: str, patients: int, rng: np.random.Generator) -> list[list[object]]:
    """Rows of the hospital, sixteen values, days and died; about half of the patients are alive when last seen."""
    values = rng.normal(size=(patients, len(EFFECTS))).round(2)
    hazard = np.exp(values @ EFFECTS * (-1 if name == "south" else 1)) / 400
    dies, leaves = rng.exponential(size=patients) / hazard, rng.exponential(500, size=patients)
    days = np.maximum(0.5, np.minimum(dies, leaves).round(1))
    return [[name, *row, time, int(died)] for row, time, died in zip(values, days, dies <= leaves, strict=True)]


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    with Path("patients.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hospital", *(f"value_{k}" for k in range(len(EFFECTS))), "days", "died"])
        for name, patients in PATIENTS.items():
            writer.writerows(hospital(name, patients, rng))

    results = fedkin.compare(
        methods=["separate", "fedavg", "fedamp"],
        data="patients.csv",
        table={"client": "hospital", "time": "days", "event": "died"},
        seeds=3,
        out="runs/survival",
    )
    for row in results.rows():
        print(f"{row.name}: a C-index of {row.last:.3f} on average, {row.worst:.3f} at the worst hospital")
    joining = results.worth_joining()
    print(f"Was it worth joining, with {joining.method}?")
    for silo in joining.silos:
        print(f"  {silo.client}: alone {silo.alone.value:.3f}, joined {silo.personal.value:.3f}; {silo.verdict}")

    run = fedkin.Run("runs/survival/fedamp-seed0")
    found = run.predict("north", {f"value_{k}": [-1.0, 0.0, 1.0] for k in range(len(EFFECTS))})
    for log_risk, risk in zip(found.values, found.risks, strict=True):
        print(f"log risk {log_risk:+.2f}: {risk:.2f} times the hazard of the north's median patient")
