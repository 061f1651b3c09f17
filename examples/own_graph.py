"""Who is related to whom, from a map: clinics learn with their neighbours, and new ones are served from the first day.

python own_graph.py
"""

from __future__ import annotations

import math

import numpy as np

import fedkin
from fedkin.data import graphs

CLINICS, PATIENTS = 40, 30


def clinic(place: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two measurements a patient, and who is ill. What makes ill turns as one goes east: clinics at the two ends of the
    map would teach each other the very opposite."""
    rng = np.random.default_rng(seed)
    angle = math.pi * place[0] / 100
    x = rng.normal(size=(PATIENTS, 2))
    score = np.cos(angle) * x[:, 0] + np.sin(angle) * x[:, 1]
    return x, (score + 0.2 * rng.normal(size=PATIENTS) > 0).astype(int)


if __name__ == "__main__":
    # Each clinic has a name, a place on a map of 100 x 100 km, and data that it keeps to itself.
    places = np.random.default_rng(0).uniform(0, 100, size=(CLINICS, 2))
    names = [f"clinic-{i:02d}" for i in range(CLINICS)]
    data = {name: clinic(place, seed) for seed, (name, place) in enumerate(zip(names, places, strict=True))}

    # The nearer, the more related: exp(-(distance / 15 km)^2), and no edge where that is below 0.1.
    near = graphs.from_coordinates(places, width=15)
    federation = fedkin.Federation.from_arrays(data, name="map", graph=near, test_fraction=0.5)
    edges = int(near.count_nonzero()) // 2
    print(f"{CLINICS} clinics, {PATIENTS // 2} patients each to learn from, {edges} pairs of neighbours.\n")

    # Panacea's hypernetwork writes every clinic's model from its place in this graph. A fifth of the clinics come when
    # training is over. Panacea writes models for them, too, and FedAvg has its one model: neither asks them to train.
    # Who stays alone (separate) has to, and here has had one round of it.
    results = fedkin.compare(
        methods=["separate", "fedavg", "panacea"],
        federation=federation,
        model={"name": "mlp", "settings": {"hidden": [16]}},
        local={"epochs": 4, "batch_size": 8, "optimiser": "sgd", "lr": 0.05, "momentum": 0.9},
        participation={"novel": 0.2, "novel_exchanges": 0},
        rounds=60,
        out="runs/map",
    )
    for row in results.findings.newcomers:
        if row.headline:
            known = row.known.mean if row.known else math.nan
            print(f"{row.method:8}  known clinics {known:.0%}, newcomers {row.newcomers.mean:.0%} right")
    print(f"\nReport, with the graph: {results.report().resolve()}")
