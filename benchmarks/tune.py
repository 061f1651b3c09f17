"""Eight learning rates on the digits' MLP: as one stack, and one after another, in the same process.

    python benchmarks/tune.py        writes benchmarks/results/tune.json

Both ways end with the same scores, bit for bit on a CPU; the script checks it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

import fedkin
from fedkin.engines import summary

RATES = [0.0001, 0.0003, 0.001, 0.002, 0.003, 0.005, 0.01, 0.03]
HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["fedamp"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    settings = {"data": {"split": "relabelled"}, "rounds": options.rounds, "device": options.device}
    methods = {method: measure(method, settings, options.repeat) for method in options.methods}
    record = {
        "command": " ".join(["python", "benchmarks/tune.py", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "versions": summary.versions(),
        "commit": summary.commit(),
        "rates": RATES,
        "rounds": options.rounds,
        "methods": methods,
    }
    target = HERE / "results" / ("tune.json" if options.device == "cpu" else f"tune-{options.device}.json")
    target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(methods, indent=1))


def measure(method: str, settings: dict[str, object], repeat: int) -> dict[str, object]:
    """Seconds of both ways, and how many times faster the stack was: the median of pairs taken in turn.

    `whole` is all the time that passes, `processor` the time of the process alone (the better one on a busy machine),
    `rounds` that of the rounds (training, scoring, aggregating, writing).
    """
    pairs: dict[str, list[tuple[float, float]]] = {"whole": [], "processor": [], "rounds": []}
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            began = time.perf_counter(), time.process_time()
            one_by_one = [
                fedkin.run(settings, method=method, local={"lr": lr}, out=out / "alone" / str(lr)) for lr in RATES
            ]
            between = time.perf_counter(), time.process_time()
            tuned = fedkin.tune(settings, method=method, grid={"lr": RATES}, out=out / "stack")
            ended = time.perf_counter(), time.process_time()
            for i, what in enumerate(("whole", "processor")):
                pairs[what].append((between[i] - began[i], ended[i] - between[i]))
            stacked = [trial.run for trial in tuned.trials]
            both = [sum(run.summary["seconds"] for run in runs) for runs in (one_by_one, stacked)]
            pairs["rounds"].append((both[0], both[1]))
            for alone, other in zip(one_by_one, stacked, strict=True):
                same = [r["models"] for r in alone.rounds] == [r["models"] for r in other.rounds]
                assert same or settings["device"] != "cpu", f"lr = {alone.config['local']['lr']} came out differently"
    return {
        what: {
            "one_after_another_seconds": round(statistics.median(a for a, _ in measured), 3),
            "one_stack_seconds": round(statistics.median(b for _, b in measured), 3),
            "times_faster": round(statistics.median(a / b for a, b in measured), 2),
        }
        for what, measured in pairs.items()
    }


if __name__ == "__main__":
    main()
