"""Which learning rate the digits should have by default: five of them, five methods, three worlds, three seeds.

    python benchmarks/digits_rate.py       runs what is missing and writes benchmarks/results/digits-rate.json

A cell is a method in a world, and its score what `fedkin tune` chooses by: the best mean validation score of the
headline model, here the mean over seeds, on a fifth of the training data. Test data have no say.

One rate has to serve all cells. So what counts is what it costs a cell beside the cell's own best rate, and the rate
is chosen that costs the worst served cell least. The mean over cells stands beside it in the JSON: it would take 0.03,
half a point ahead of 0.01, which pays for FedAMP's gain where all clients are alike with four points of Separate, and
is next to 0.1, at which training breaks.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from baseline_rates import record, tried

RATES = [0.001, 0.003, 0.01, 0.03, 0.1]
METHODS = ["separate", "fedavg", "fedamp", "heurfedamp", "groups"]
SPLITS = ["practical", "relabelled", "iid"]
ROUNDS = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-digits-rate"))
    options = parser.parse_args()
    cells = {
        f"{split} {method}": tried(
            {"method": method, "data": {"split": split}, "rounds": ROUNDS},
            {"local.lr": RATES},
            options.seeds,
            options.out / split / method,
        )
        for split in SPLITS
        for method in METHODS
        if (split, method) != ("iid", "groups")  # there is no group to be told of
    }
    scores = {name: [point["validation"] for point in cell] for name, cell in cells.items()}
    rates = []
    for i, rate in enumerate(RATES):
        costs = {name: max(score) - score[i] for name, score in scores.items()}
        worst = max(costs, key=lambda name: costs[name])
        mean = sum(score[i] for score in scores.values()) / len(scores)
        rates.append({"lr": rate, "cost": round(costs[worst], 5), "worst": worst, "mean": round(mean, 5)})
    chosen = min(rates, key=lambda each: each["cost"])["lr"]
    record("digits-rate", options.seeds, {"rounds": ROUNDS, "chosen": chosen, "rates": rates, "cells": cells})
    print(json.dumps({"chosen": chosen, "rates": rates}, indent=1))


if __name__ == "__main__":
    main()
