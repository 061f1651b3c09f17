"""What a proximal term adds to an optimiser's step: the exact step, its gradient, and none, in turns.

    python benchmarks/proximal_step.py                      on a CPU, one thread; about a minute
    python benchmarks/proximal_step.py --device cuda        on a GPU
    python benchmarks/proximal_step.py --page               only rewrites the table of docs/how-it-works.md

Writes its section of benchmarks/results/proximal-step.json. Gradients are at hand: only `Optimiser.step` is timed, and
ratios are between medians of one run of this script.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedkin import bench
from fedkin.base import machine
from fedkin.bench.timing import Plan, clocked, forget
from fedkin.training.optimisers import Local, Optimiser, Proximal

HERE = Path(__file__).parent
TARGET, PAGE = HERE / "results" / "proximal-step.json", HERE.parent / "docs" / "how-it-works.md"
SHAPES = {
    "cpu": {"digits' MLP": (100, 4_810, 20), "the papers' CNN": (4, 1_663_370, 2)},
    "cuda": {"digits' MLP": (100, 4_810, 20), "the papers' CNN": (100, 1_663_370, 3), "ResNet-18": (20, 11_220_132, 3)},
}
"""Clients, weights of each, and steps that are timed together."""
LOCALS = {"Adam": Local(lr=1e-3), "SGD": Local(optimiser="sgd", lr=0.05)}
BETA = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--commit", help="where the source tree comes without its history")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        write_page()
        return
    device, began = machine.chosen_device(options.device), time.perf_counter()
    rows = []
    with machine.threads(options.threads):
        for name, (clients, weights, steps) in SHAPES[device.type].items():
            for optimiser, local in LOCALS.items():
                found = measured(local, clients, weights, steps, device, options.turns)
                rows.append({"model": name, "clients": clients, "weights": weights, "optimiser": optimiser, **found})
                print(rows[-1], file=sys.stderr, flush=True)
        command = " ".join(["python", "benchmarks/proximal_step.py", *sys.argv[1:]])
        origin = bench.record.origin(Plan(device, "full"), command, options.commit)
    section = bench.record.section(rows, time.perf_counter() - began, origin)
    bench.record.write(TARGET, {**bench.record.read(TARGET), device.type: section})
    print(table(rows))


def measured(
    local: Local, clients: int, weights: int, steps: int, device: torch.device, turns: int
) -> dict[str, dict[str, float]]:
    """Milliseconds of a step for each form, and how many times as long as without a proximal term."""
    source = torch.randn(steps, clients, weights, device=device)
    G, anchor = torch.empty_like(source), torch.randn(clients, weights, device=device)
    beta = torch.full((clients, 1), BETA, device=device)
    forms = {"none": None, "gradient": Proximal(anchor, beta, exact=False), "exact": Proximal(anchor, beta)}
    ways = {name: way(local, anchor.clone(), G, near) for name, near in forms.items()}
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for turn in range(turns + 2):
        for name, call in ways.items():
            G.copy_(source)  # a step may overwrite its gradients
            took = clocked(call, device)
            if turn >= 2:
                seconds[name].append(took)
    forget(device)
    ms = {name: 1e3 * statistics.median(each) / steps for name, each in seconds.items()}
    return {"ms": ms, "ratio": {name: value / ms["none"] for name, value in ms.items()}}


def way(local: Local, W: Tensor, G: Tensor, near: Proximal | None) -> Callable[[], object]:
    optimiser = Optimiser(local, W, W.shape[1])

    def call() -> None:
        for each in G:
            optimiser.step(W, each, local.lr, near)

    return call


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| step of | optimiser | no term, ms | gradient | exact |", "|---|---|---|---|---|"]
    for row in rows:
        ratio = row["ratio"]
        cells = [f"{row['clients']} x {row['model']}", row["optimiser"], f"{row['ms']['none']:.3g}"]
        lines.append(f"| {' | '.join(cells)} | {ratio['gradient']:.2f} x | {ratio['exact']:.2f} x |")
    return "\n".join(lines)


def write_page() -> None:
    """Puts what was measured, on whichever devices, between the page's markers."""
    begin, end = "<!-- proximal step -->", "<!-- end proximal step -->"
    head, rest = PAGE.read_text(encoding="utf-8").split(begin, 1)
    parts = []
    for section in bench.record.read(TARGET).values():
        where = section["origin"]
        on = where["machine"]["gpu"] or f"{where['machine']['cpu']}, one thread"
        told = (
            f"Measured by `{where['command']}` on {on}, torch {where['versions']['torch']}, commit {where['commit']}."
        )
        parts += [table(section["rows"]), told]
    text = "\n\n".join(parts)
    PAGE.write_text(f"{head}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
