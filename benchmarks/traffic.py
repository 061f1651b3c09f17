"""METR-LA, all 207 sensors: the clean protocol and the leaky one, masked and unmasked, every method.

    python benchmarks/traffic.py --jobs 6                    all cells; a GPU is advisable
    python benchmarks/traffic.py --clients 20 --rounds 20    a small trial

clean: chronological 70/10/20, free-running decoder, scaler fitted on training data. leaky: windows split by lot and a
decoder that is told the true speed of the step before, which is the only way we know to come near the paper's numbers.
Runs what is missing in runs/traffic and writes benchmarks/results/traffic.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from panacea import METHODS

import fedkin
from fedkin.base.machine import chosen_device, device_name
from fedkin.engines import start, summary
from fedkin.evidence.comparison import at_best
from fedkin.evidence.references import rows as yardsticks
from fedkin.studies import references

CELLS: dict[str, dict[str, Any]] = {
    f"{name}{' unmasked' * (not masked)}": {
        "data": {"split": split, "settings": {"masked": masked, "teacher_forcing": told}},
        "model": {"name": "gru", "settings": {"hidden": 32, "teacher": told}},
    }
    for masked in (True, False)
    for name, split, told in (("clean", "chronological", False), ("leaky", "random", True))
}
YARDSTICKS = ["persistence", "autoregression"]
HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--clients", type=int, help="the first so many sensors")
    parser.add_argument("--test-stride", type=int, default=12, help="score every so-many-th test window")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--out", type=Path, default=Path("runs/traffic"))
    parser.add_argument("--results", type=Path, default=HERE / "results" / "traffic.json")
    parser.add_argument("--commit", help="where the source tree comes without its history")
    parser.add_argument("--one", nargs=2, metavar=("CELL", "METHOD"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        carry_out(options, *options.one)
        return
    wanted = [(cell, method) for cell in options.cells.split(",") for method in [*options.methods.split(","), "rows"]]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda each: child(*each), wanted))
    before = json.loads(options.results.read_text(encoding="utf-8"))["cells"] if options.results.exists() else {}
    record = {
        "command": " ".join(["python", "benchmarks/traffic.py", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {device_name(chosen_device('auto'))}",
        "versions": summary.versions(),
        "commit": options.commit or summary.commit(),
        "rounds": options.rounds,
        "clients": options.clients or 207,
        "test_stride": options.test_stride,
        "cells": before | {cell: measured(options.out / place(cell)) for cell in options.cells.split(",")},
    }
    options.results.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for cell, rows in record["cells"].items():
        print(f"\n{cell}, mean squared error x 1e-3\n{table(rows)}")


def child(cell: str, method: str) -> None:
    """A run in a process of its own: so several share a GPU that one alone would leave idle."""
    done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--one", cell, method], check=False)
    print(f"{cell}: {method} {'done' if done.returncode == 0 else 'FAILED'}", file=sys.stderr, flush=True)


def carry_out(options: argparse.Namespace, cell: str, method: str) -> None:
    settings = CELLS[cell]
    data = {"name": "metr_la", "clients": options.clients, **settings["data"]}
    data["settings"] = {**data["settings"], "test_stride": options.test_stride}
    raw = {"data": data, "model": settings["model"], "rounds": options.rounds, "seed": options.seed}
    folder = options.out / place(cell)
    if method == "rows":
        found = references.compute(start.prepare(raw, method="fedavg"), YARDSTICKS)
        folder.mkdir(parents=True, exist_ok=True)
        told = [{"row": row.name, "mean": row.mean, "std_clients": row.std_clients} for row in yardsticks(found)]
        (folder / "rows.json").write_text(json.dumps(told), encoding="utf-8")
        return
    if method == "perfedavg":  # a step on all of 24,000 windows at every scoring would take longer than all else
        raw["settings"] = {"adaptation": "batch"}
    path = folder / f"{method}-seed{options.seed}"
    if (path / "config.toml").exists():
        fedkin.resume(path)
    else:
        fedkin.run(raw, method=method, out=path)


def place(cell: str) -> str:
    return cell.replace(" ", "-")


def measured(folder: Path) -> list[dict[str, Any]]:
    """The rows of a cell, the best first, the yardsticks last."""
    paths = [path.parent for path in sorted(folder.glob("*/summary.json"))]
    rows = []
    results = fedkin.Results([fedkin.Run(path) for path in paths], folder) if paths else None
    for each in results.rows() if results else []:
        row = at_best(each, results.findings.seeds(each))
        kept = ("headline", "bmta", "std_clients", "last", "validated")
        (run,) = [fedkin.Run(path) for path in paths if path.name.startswith(f"{row.method}-seed")]
        speed = run.summary["seconds"] / run.summary["rounds"]
        rows.append({"row": row.name, **{key: getattr(row, key) for key in kept}, "seconds_a_round": speed})
    beside = folder / "rows.json"
    return rows + (json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else [])


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown, in the papers' unit."""
    lines = ["| row | best | ± sensors | last | validated |", "|---|---|---|---|---|"]
    for row in rows:
        best = row.get("bmta", row.get("mean"))
        values = (best, row["std_clients"], row.get("last"), row.get("validated"))
        cells = ["" if value is None else f"{1e3 * value:.2f}" for value in values]
        lines.append(
            f"| {'**' * row.get('headline', False)}{row['row']}{'**' * row.get('headline', False)} | "
            + " | ".join(cells)
            + " |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
