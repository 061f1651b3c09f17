"""On how few can a verdict stand? Two equally good models of few positives, or events: how often are they told apart?

    python benchmarks/fewest.py                      500 silos a cell, about twenty minutes on one core
    python benchmarks/fewest.py --silos 100          a first look

`alike` and `unlike` are two noisy readings of one truth, `coin` is one model that says the same of all beside one that
draws lots, `coarse` has many ties. A cell says in how many of 100 silos the p-value of the gain is below 0.05, 0.01 and
0.0025, the last being what a silo needs among twenty (Holm). Writes benchmarks/results/fewest.json; the
numbers in `evidence/telling.py` come from it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.base.task import METRICS
from fedkin.engines import summary
from fedkin.evidence import estimates

HERE = Path(__file__).parent
LEVELS = (0.05, 0.01, 0.0025)
FEW = (2, 3, 5, 7, 10, 15)
OTHERS = (40, 200)
"""Negatives beside the positives; patients in all, beside the events."""
Pair = tuple[Tensor, Tensor, Tensor]
"""What two models answer, and the targets."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--silos", type=int, default=500, help="in each cell")
    options = parser.parse_args()
    began, rng, rows = time.perf_counter(), np.random.default_rng(0), []
    for metric, kinds, draw in (
        ("auc", ("alike", "unlike", "coin", "coarse"), ranked),
        ("balanced_accuracy", ("alike", "unlike"), ranked),
        ("c_index", ("alike", "unlike", "coin"), lived),
    ):
        for others in OTHERS:
            for few in FEW:
                told = {kind: told_apart(metric, kind, few, others, draw, options.silos, rng) for kind in kinds}
                rows.append({"metric": metric, "few": few, "others": others, "told apart in 100": told})
                cells = (f"{kind} {' / '.join(map(str, shares))}" for kind, shares in told.items())
                print(f"{metric}, {few} among {others}: {', '.join(cells)}", flush=True)
    record = {
        "command": f"python benchmarks/fewest.py --silos {options.silos}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": summary.versions(),
        "commit": summary.commit(),
        "seconds": round(time.perf_counter() - began),
        "levels": LEVELS,
        "rows": rows,
    }
    (HERE / "results" / "fewest.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def told_apart(
    metric: str, kind: str, few: int, others: int, draw: Callable[..., Pair], silos: int, rng: np.random.Generator
) -> list[float]:
    """In how many of 100 silos the p-value is below each level; where there is none, it is not."""
    found = np.zeros(len(LEVELS))
    for _ in range(silos):
        before, after, targets = draw(kind, few, others, rng)
        found += estimates.gain(METRICS[metric], before, after, targets).p < np.array(LEVELS)
    return (100 * found / silos).round(1).tolist()


def ranked(kind: str, positives: int, negatives: int, rng: np.random.Generator) -> Pair:
    y = np.repeat([1, 0], [positives, negatives])
    hard = rng.normal(size=len(y))

    def reading() -> np.ndarray[Any, Any]:
        noise = {"alike": 0.5, "unlike": 1.5, "coarse": 1.0}[kind]
        odds = 0.7 * (2 * y - 1) + hard + noise * rng.normal(size=len(y))
        return 1.5 * np.round(odds / 1.5) if kind == "coarse" else odds

    first, second = (np.zeros(len(y)), rng.normal(size=len(y))) if kind == "coin" else (reading(), reading())
    before, after = (torch.tensor(np.stack([-odds / 2, odds / 2], 1)) for odds in (first, second))
    return before, after, torch.tensor(y)


def lived(kind: str, events: int, patients: int, rng: np.random.Generator) -> Pair:
    risk = rng.normal(size=patients)
    times, seen = rng.exponential(np.exp(-0.8 * risk)) + 0.01, np.zeros(patients)
    seen[rng.permutation(patients)[:events]] = 1

    def reading() -> np.ndarray[Any, Any]:
        return 0.6 * risk + {"alike": 0.5, "unlike": 1.5}[kind] * rng.normal(size=patients)

    answers = (np.zeros(patients), rng.normal(size=patients)) if kind == "coin" else (reading(), reading())
    before, after = (torch.tensor(each)[:, None] for each in answers)
    return before, after, torch.tensor(np.stack([times, seen], 1))


if __name__ == "__main__":
    main()
