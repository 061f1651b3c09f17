"""How often is a silo told that joining helped or harmed when it did neither, and how often is a true gain found?

    python benchmarks/intervals.py                      200 silos a cell, about five minutes on one core

Silos with 30 to 300 patients, five seeds of which each tests a quarter. `equal`: two learners of the same kind, each on
its own half of the findings, fitted anew for each seed; neither is better. `better`: the second's findings tell more.
Writes benchmarks/results/intervals.json; the numbers in docs/python.md come from it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedkin.engines import summary
from fedkin.evidence import repeated_samples
from fedkin.evidence.outputs import Outputs

METRICS = ("accuracy", "balanced_accuracy", "auc", "log_loss")
SIZES = (30, 60, 120, 300)
SEEDS = 5
HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--silos", type=int, default=200, help="in each cell")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    rows = []
    for n in SIZES:
        for kind, better in (("equal", 0.0), ("better", 0.2)):
            told = {metric: {"by patient": 0, "averaged": 0} for metric in METRICS}
            for _ in range(options.silos):
                before, after = silo(n, better, rng)
                for metric in METRICS:
                    told[metric]["by patient"] += answered(metric, before, after)
                    told[metric]["averaged"] += answered(
                        metric, *(list(map(unnamed, each)) for each in (before, after))
                    )
            shares = {m: {way: count / options.silos for way, count in ways.items()} for m, ways in told.items()}
            rows.append({"patients": n, "models": kind, "told apart": shares})
            cells = (f"{metric} {100 * ways['by patient']:.1f} %" for metric, ways in shares.items())
            print(f"{n} patients, {kind}: {', '.join(cells)}", flush=True)
    record = {
        "command": f"python benchmarks/intervals.py --silos {options.silos}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": summary.versions(),
        "commit": summary.commit(),
        "seeds": SEEDS,
        "rows": rows,
    }
    (HERE / "results" / "intervals.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def silo(n: int, better: float, rng: np.random.Generator) -> tuple[list[Outputs], list[Outputs]]:
    """What two ways of learning answer on the test patients of each seed."""
    y = (rng.random(n) < 0.4).astype(np.int64)
    y[:4] = 0, 0, 1, 1
    x = rng.normal(size=(n, 8)) + (2 * y[:, None] - 1) * np.r_[np.full(4, 0.35), np.full(4, 0.35 + better)]
    ways: tuple[list[Outputs], list[Outputs]] = [], []
    for _ in range(SEEDS):
        order = rng.permutation(n)
        test, train = order[: n // 4], order[n // 4 :]
        for way, findings in zip(ways, (x[:, :4], x[:, 4:]), strict=True):
            z = np.c_[findings, np.ones(n)]
            w = np.linalg.solve(z[train].T @ z[train] + np.eye(5), z[train].T @ (2.0 * y[train] - 1))
            way.append(outputs(3 * z[test] @ w, y[test], test))
    return ways


def outputs(score: NDArray[np.float64], y: NDArray[np.int64], rows: NDArray[np.int64]) -> Outputs:
    answers = {"chosen": torch.as_tensor(np.stack([-score / 2, score / 2], 1))}
    targets, numbers = torch.as_tensor(y), torch.as_tensor(rows)
    return Outputs(("silo",), (len(y),), ("chosen",), answers, targets, "classification", rows=numbers)


def unnamed(each: Outputs) -> Outputs:
    return replace(each, rows=None)


def answered(metric: str, before: list[Outputs], after: list[Outputs]) -> bool:
    gain = repeated_samples.gain(metric, before, after, "chosen")
    return bool(gain.low > 0 or gain.high < 0)


if __name__ == "__main__":
    main()
