"""Which round should be taken: the latest whose validation loss is within which share of the lowest?

    python benchmarks/taken_round.py                    sixteen draws a world, some minutes on one core
    python benchmarks/taken_round.py --draws 3          a first look

Small tables drawn by lot: four silos of 60 to 150 rows, with a law that is half straight and half bent, the fourth
silo's with another sign in part, and `rounds = auto`. Prints, for each share, the mean test score over draws and silos,
and what it gains over a share of 0.05 with its standard error over draws. Writes benchmarks/results/taken-round.json;
`OF_ERRORS` in `evidence/progress.py` is what it is by that, and by tables that strangers brought.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import fedkin
from fedkin.engines import summary

HERE = Path(__file__).parent
SHARES = (0.05, 0.03, 0.02, 0.01, 0.0)
METHODS = ("separate", "fedavg", "fedamp")
ROWS = {"north": 150, "south": 110, "east": 80, "west": 60}
WORLDS = {"numbers": (0.7, ("rmse",)), "noisy numbers": (1.5, ("rmse",)), "classes": (0.7, ("accuracy", "log_loss"))}
"""By name: the noise, beside a law that is about one, and the metrics."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=16)
    options = parser.parse_args()
    began, rows = time.perf_counter(), []
    for world, (_, metrics) in WORLDS.items():
        for metric in metrics:
            found = np.array([draw(world, metric, number) for number in range(options.draws)])
            for place, method in enumerate(METHODS):
                rows.append({"world": world, "metric": metric, "method": method} | told(found[:, place], metric))
                print(json.dumps(rows[-1]), flush=True)
    record = {
        "command": f"python benchmarks/taken_round.py --draws {options.draws}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": summary.versions(),
        "commit": summary.commit(),
        "seconds": round(time.perf_counter() - began),
        "rows": rows,
    }
    (HERE / "results" / "taken-round.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def told(scores: Any, metric: str) -> dict[str, Any]:
    """Of (draws, shares): means, and gains over the first share with their standard errors."""
    gains = (scores - scores[:, :1]) * (1 if metric == "accuracy" else -1)
    errors = gains.std(axis=0, ddof=1) / np.sqrt(len(gains))
    return {
        "score": {str(share): round(float(mean), 4) for share, mean in zip(SHARES, scores.mean(axis=0), strict=True)},
        "gain": {
            str(share): [round(float(gain), 4), round(float(error), 4)]
            for share, gain, error in zip(SHARES, gains.mean(axis=0), errors, strict=True)
        },
    }


def draw(world: str, metric: str, number: int) -> list[list[float]]:
    """For each method and share, the mean test score over silos of the round that would be taken."""
    rng = np.random.default_rng([29, number])
    law, bent = rng.normal(size=(2, 8)) / np.sqrt(8)
    tables = []
    for silo, count in ROWS.items():
        x = rng.normal(size=(count, 8))
        own = np.where(np.arange(8) < 3, -law, law) if silo == "west" else law
        y = x @ own + np.abs(x) @ bent + WORLDS[world][0] * rng.normal(size=count)
        target = y if "numbers" in world else np.where(y > 0, "ill", "well")
        tables.append(pd.DataFrame(x, columns=[f"x{i}" for i in range(8)]).assign(silo=silo, target=target))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        pd.concat(tables).to_csv(path, index=False)
        settings = {
            "data": {"name": str(path)},
            "table": {"client": "silo", "target": "target"},
            "learning": {"metric": metric},
            "seed": number,
        }
        results = fedkin.compare(settings, methods=METHODS, out=Path(folder) / "runs")
        return [[taken(run, share) for share in SHARES] for run in results.runs]


def taken(run: fedkin.Run, share: float) -> float:
    lines = [line.models[run.summary.headline] for line in run.rounds if not line.novel]
    losses = np.array([line.validation.loss for line in lines if line.validation], dtype=float)
    at = int(np.flatnonzero(losses <= losses.min() + share * abs(losses.min()))[-1])
    return float(np.nanmean(np.array(lines[at].clients, dtype=float)))


if __name__ == "__main__":
    main()
