"""CPU threads of small models wait for each other: how long they may spin meanwhile, on an idle and a busy machine.

    python benchmarks/threads.py        about two minutes on two cores; writes benchmarks/results/threads.json

One optimiser step of 100 of the digits' MLP, in a process of its own for each number of threads and each bound: torch's
own (libgomp spins for milliseconds) and fedkin's (`fedkin._spinning`). Busy means that as many other programs as there
are cores never rest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from fedkin import bench
from fedkin.base import machine, spinning
from fedkin.bench.steps import Ways, mlp
from fedkin.bench.timing import Plan, interleaved

RESULT = Path(__file__).parent / "results" / "threads.json"
TORCHS = str(300_000)
"""libgomp's own count, where threads are no more than cores."""


def main() -> None:
    if len(sys.argv) > 1:
        print(milliseconds(int(sys.argv[1])))
        return
    rows, began = [], time.perf_counter()
    for others in (0, os.cpu_count() or 1):
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
        try:
            for threads, spins in ((1, spinning.SPINS), (2, spinning.SPINS), (2, TORCHS)):
                rows.append({"other_programs": others, "threads": threads, "spins": int(spins)})
                rows[-1]["ms"] = float(alone(threads, spins))
                print(rows[-1], flush=True)
        finally:
            for program in busy:
                program.kill()
                program.wait()
    plan, seconds = Plan(machine.chosen_device("cpu"), "full"), time.perf_counter() - began
    origin = bench.record.origin(plan, "python benchmarks/threads.py")
    bench.record.write(RESULT, {"threads": bench.record.section(rows, seconds, origin)})


def alone(threads: int, spins: str) -> str:
    environment = {**os.environ, "GOMP_SPINCOUNT": spins}
    command = [sys.executable, __file__, str(threads)]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def milliseconds(threads: int) -> float:
    """Of a step, the median of many."""
    device = machine.chosen_device("cpu")
    ways = Ways(mlp(100, steps=20), device, "float32")
    ways.ready = replace(ways.ready, config=ways.ready.config.model_copy(update={"threads": threads}))
    way = ways.made("default")
    return 1e3 * interleaved({"step": way.call}, Plan(device, "full"))["step"].median / way.steps


if __name__ == "__main__":
    main()
