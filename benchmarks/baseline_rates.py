"""At which rates the baselines train under the equal budget: grids on validation data, three seeds.

    python benchmarks/baseline_rates.py [METHOD ...]     runs what is missing and writes results/baseline-rates.json

A point's score is the mean over seeds and worlds of what `fedkin tune` chooses by: the best mean validation score of
the headline model, on a fifth of the training data. Chosen is the first point of a grid, which begins with the most
cautious, within a point of the best. Test data have no say.

Per-FedAvg and SCAFFOLD are more cautious by default than what is chosen here, at 0.1 and 0.05: with the papers' CNN on
practical EMNIST (ten rounds, one seed, an H200) Per-FedAvg has 74 % at 0.1 and diverges at 0.3, and SCAFFOLD's global
model ends at 73 % with 0.05 and falls from 74 to 49 % with 0.1.

The hypernetworks' server is chosen on more than this: several steps are what it takes here, by SGD or by Adam. Adam is
the default, as forecasts call for it, and FL-60 has one step of SGD, as that withstands liars (docs/panacea.md).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import fedkin
from fedkin.engines import summary

HERE = Path(__file__).parent


def tried(settings: dict[str, Any], grid: dict[str, list[Any]], seeds: int, out: Path) -> list[dict[str, Any]]:
    """The grid's points in order: means over seeds of the chosen round's validation and test score, in shares."""
    settings = {**settings, "data": {"validation": 0.2, **settings["data"]}}
    by_seed = []
    for seed in range(seeds):
        print(f"{out}, seed {seed}", file=sys.stderr)
        by_seed.append(fedkin.tune({**settings, "seed": seed}, grid=grid, out=out / f"seed{seed}").trials)
    points = []
    for trials in zip(*by_seed, strict=True):
        models = [trial.run.summary.models[trial.run.summary.headline] for trial in trials]
        points.append(
            {
                "values": trials[0].values,
                "validation": round(sum(trial.validation or 0.0 for trial in trials) / seeds, 5),
                "test": round(sum(model.validated or 0.0 for model in models) / seeds, 5),
            }
        )
    return points


def record(name: str, seeds: int, found: dict[str, Any]) -> None:
    """Writes benchmarks/results/NAME.json."""
    head = {
        "command": f"python benchmarks/{name.replace('-', '_')}.py",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": summary.versions(),
        "commit": summary.commit(),
        "seeds": seeds,
    }
    text = json.dumps({**head, **found}, indent=1) + "\n"
    (HERE / "results" / f"{name}.json").write_text(text, encoding="utf-8")


WORLDS: dict[str, dict[str, Any]] = {
    "digits practical": {"data": {"name": "digits", "split": "practical"}, "rounds": 30},
    "digits relabelled": {"data": {"name": "digits", "split": "relabelled"}, "rounds": 30},
    "fl60": {"data": {"name": "fl60"}, "rounds": 50},
}
HYPERNETWORK = [
    {"server_optimiser": ["sgd"], "server_lr": [1e-2], "server_steps": [1, 5], "server_weight_decay": [0.0]},
    {"server_optimiser": ["adam"], "server_lr": [1e-3], "server_steps": [1, 5], "server_weight_decay": [0.0]},
]
GRIDS: dict[str, list[dict[str, list[Any]]]] = {
    "scaffold": [{"local.lr": [0.02, 0.05, 0.1, 0.2, 0.5]}],
    "apfl": [{"local.lr": [0.01, 0.03, 0.1, 0.3, 1.0]}],
    "perfedavg": [{"settings.alpha": [0.01, 0.03, 0.1, 0.3], "settings.beta": [0.01, 0.03, 0.1, 0.3]}],
    # eta is bounded by 1 / strength.
    "pfedme": [
        {"strength": [2], "eta": [0.2, 0.45], "personal_lr": [0.1, 0.3]},
        {"strength": [5], "eta": [0.02, 0.06, 0.18], "personal_lr": [0.03, 0.1]},
        {"strength": [15], "eta": [0.005, 0.02, 0.06], "personal_lr": [0.03, 0.1]},
    ],
    "pfedhn": [{**grid, "scaled": [False, True]} for grid in HYPERNETWORK],
    "panacea": HYPERNETWORK,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=f"of {', '.join(GRIDS)}; all if none is named")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-baseline-rates"))
    options = parser.parse_args()
    found: dict[str, Any] = {}
    chosen: dict[str, Any] = {}
    for method in options.methods or GRIDS:
        found[method] = {
            world: [
                point
                for i, grid in enumerate(GRIDS[method])
                for point in tried(
                    {**settings, "method": method}, grid, options.seeds, options.out / f"{method}-{i}" / world
                )
            ]
            for world, settings in WORLDS.items()
        }
        print(method)
        by_point = list(zip(*found[method].values(), strict=True))
        means = [sum(point["validation"] for point in points) / len(points) for points in by_point]
        first = next(i for i, mean in enumerate(means) if mean >= max(means) - 0.01)
        chosen[method] = by_point[first][0]["values"]
        for i, points in enumerate(by_point):
            scores = "  ".join(f"{100 * point['validation']:5.1f} ({100 * point['test']:5.1f})" for point in points)
            print(f"{'*' if i == first else ' '} {scores}  {points[0]['values']}")
    record("baseline-rates", options.seeds, {"worlds": WORLDS, "chosen": chosen, "grids": found})


if __name__ == "__main__":
    main()
