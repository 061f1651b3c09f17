"""How fast fedkin is, beside plain torch and beside what the machine could do: every figure of docs/performance.md.

    python benchmarks/speed.py                                  on the CPU, about ten minutes on two cores
    python benchmarks/speed.py --device cuda                    on a GPU; EMNIST and CIFAR-100 from $FEDKIN_DATA
    python benchmarks/speed.py --sections step,round            these alone; the others stay as they were
    python benchmarks/performance_page.py                       puts the numbers into docs/performance.md

Each section is written to benchmarks/results/speed-cpu.json or speed-cuda.json as soon as it is done, with machine,
versions, commit and date. `fedkin bench` is the short form of this.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from fedkin import bench
from fedkin.base.machine import chosen_device

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--sections", default="", help=f"separated by commas: {', '.join(bench.SECTIONS)}")
    parser.add_argument("--size", default="full", choices=["tiny", "short", "full"])
    parser.add_argument("--out", type=Path, help="benchmarks/results/speed-DEVICE.json by default")
    parser.add_argument("--commit", help="where the source tree comes without its history")
    options = parser.parse_args()
    target = options.out or RESULTS / f"speed-{options.device}.json"
    plan = bench.Plan(
        chosen_device(options.device), options.size, lambda what: print(what, file=sys.stderr, flush=True)
    )
    command = shlex.join(["python", "benchmarks/speed.py", *sys.argv[1:]])
    failed = []
    for name in bench.chosen(options.sections):
        try:
            found = bench.measured(name, plan, command, options.commit)
        except Exception:  # the other sections are still worth their time
            traceback.print_exc()
            failed.append(name)
            continue
        before = bench.record.read(target)
        before[name] = found
        bench.record.write(target, {each: before[each] for each in bench.SECTIONS if each in before})
        print(f"\n{bench.title(name)} [{name}, {found['seconds']:.0f} s]\n{text(*bench.table(name, found['rows']))}")
        print("\n".join(f"Not measured. {sentence}" for sentence in bench.skipped(found["rows"])), flush=True)
    if failed:
        raise SystemExit(f"These failed: {', '.join(failed)}.")


def text(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Columns side by side."""
    widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in [heads, *lines])


if __name__ == "__main__":
    main()
