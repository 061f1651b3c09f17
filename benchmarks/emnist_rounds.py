"""A round of practical EMNIST as a user starts it, of two sources beside each other: seconds in bf16 and in float32.

    python benchmarks/emnist_rounds.py --old OLD/src --new src --commits 6176844,HEAD      on a GPU, under five minutes
    python benchmarks/emnist_rounds.py --old OLD/src --new src --data digits/relabelled --rounds 3 --turns 1    anywhere

Each source and precision is a whole run in a process of its own, `fedkin.run` with nothing set but what the table below
says, FedAMP and the data set's own model; and they take turns, so that whatever else the machine does hits all of them.
The seconds are those that the run itself wrote into rounds.jsonl: download, training, evaluation of every model and
collaboration. The first rounds, which compile and record, are left out. EMNIST is looked for in $FEDKIN_DATA.

What has to hold: bf16 within 5 % of the older source, and float32 at most 2.5 times bf16.

A source is a folder with the package `fedkin`: `git archive COMMIT src | tar -x -C OLD` lays one out.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedkin.base.machine import chosen_device
from fedkin.bench import record
from fedkin.bench.timing import Plan, Row

RESULTS = Path(__file__).parent / "results" / "emnist-rounds.json"
SECTION = "emnist-rounds"
NO_SLOWER, AT_MOST = 1.05, 2.5
"""Of bf16 to the older source's, and of float32 to bf16."""

WORKER = """
import json, sys, time
from pathlib import Path
settings, out, source = json.loads(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
started = time.perf_counter()
import fedkin
assert Path(fedkin.__file__).is_relative_to(source), f"fedkin comes from {fedkin.__file__} and not from {source}."
fedkin.run(settings, out=out)
wall = time.perf_counter() - started
lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
print(json.dumps({
    "seconds": [line["seconds"] for line in lines if not line.get("final")],
    "wall_seconds": wall,
    "clients": len(summary["clients"]),
    "way": summary["execution"]["way"],
    "reason": summary["execution"]["reason"],
    "trouble": summary["execution"]["trouble"],
    "last": summary["models"][summary["headline"]]["last"],
    "device": summary["device"],
}))
"""


def main() -> None:
    options = arguments()
    began = time.perf_counter()
    plan = Plan(chosen_device(options.device), "full")
    commits = options.commits.split(",") if options.commits else [None, None]
    origin = record.origin(plan, shlex.join(["python", "benchmarks/emnist_rounds.py", *sys.argv[1:]]), commits[1])
    runs: list[Row] = []
    for run in carried_out(options, began):
        runs.append(run)
        rows = summed_up(runs, options.warm_up, dict(zip(("old", "new"), commits, strict=True)))
        section = record.section(rows, time.perf_counter() - began, origin)
        record.write(options.out, {SECTION: {**section, "settings": settings(options), "runs": runs}})
    print("\n" + text(rows))
    print("\n".join(judged(rows)))
    if failed := [run for run in runs if "failed" in run]:
        raise SystemExit(f"Processes that failed: {len(failed)} of {len(runs)}.")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, help="the folder src of the older commit")
    parser.add_argument("--new", type=Path, required=True, help="the folder src of the newer one")
    parser.add_argument("--commits", help="their names, OLD,NEW: the sources may come without their history")
    parser.add_argument("--precisions", default="bf16,float32")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--warm-up", type=int, default=2, help="rounds that are left out at the beginning")
    parser.add_argument("--turns", type=int, default=3, help="processes for each source and precision")
    parser.add_argument("--seconds", type=float, default=270, help="no turn is begun that would end after so many")
    parser.add_argument("--data", default="emnist/practical", help="NAME/SPLIT")
    parser.add_argument("--clients", type=int, help="if not the data set's own number")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.rounds <= options.warm_up:
        parser.error(f"--rounds has to be more than --warm-up ({options.warm_up}), or nothing is left.")
    for source in (options.old, options.new):
        if not (source / "fedkin" / "__init__.py").exists():
            parser.error(f"{source} holds no package fedkin; name the folder src of a commit.")
    return options


def settings(options: argparse.Namespace) -> Row:
    """What every run is given, but for its precision."""
    name, _, split = options.data.partition("/")
    data = {"name": name, "split": split} | ({"clients": options.clients} if options.clients else {})
    return {"method": "fedamp", "data": data, "rounds": options.rounds, "device": options.device}


# ---- runs ----


def carried_out(options: argparse.Namespace, began: float) -> Iterator[Row]:
    """The runs in turns; the source that comes first changes from turn to turn. What failed is not tried again."""
    longest, failed = 0.0, set[tuple[str, str]]()
    for turn in range(options.turns):
        started = time.perf_counter()
        if turn and started - began + longest > options.seconds:
            print(f"After {turn} turns there is no time for another.", flush=True)
            return
        for precision in options.precisions.split(","):
            for which in ("old", "new") if turn % 2 == 0 else ("new", "old"):
                if (which, precision) in failed:
                    continue
                own = {**settings(options), "precision": precision}
                found = in_a_process(getattr(options, which).resolve(), own, options.seconds)
                failed |= {(which, precision)} if "failed" in found else set()
                told = found.get("failed") or " ".join(f"{seconds:.3f}" for seconds in found["seconds"])
                print(f"turn {turn + 1}, {which}, {precision}: {told}", flush=True)
                yield {"turn": turn, "source": which, "precision": precision, **found}
        longest = max(longest, time.perf_counter() - started)


def in_a_process(source: Path, settings: Row, seconds: float) -> Row:
    """What a run of this source came to in so many seconds, or how it failed."""
    behind = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), *([behind] if behind else [])])}
    with tempfile.TemporaryDirectory(prefix="emnist-rounds-") as place:
        # -P: the package comes from the source that is named, never from the folder that this is started in.
        command = [sys.executable, "-P", "-c", WORKER, json.dumps(settings), str(Path(place) / "run"), str(source)]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return {"failed": f"It was not done after {seconds:.0f} s."}
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr, flush=True)
        return {"failed": (done.stderr.strip().splitlines() or ["no word"])[-1]}
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


# ---- what they come to ----


def summed_up(runs: Sequence[Row], warm_up: int, commits: dict[str, str | None]) -> list[Row]:
    """A row for each source and precision: the median of its rounds, half of which lie between the other two."""
    rows: list[Row] = []
    for precision in dict.fromkeys(run["precision"] for run in runs):
        for which in ("old", "new"):
            own = [r for r in runs if (r["source"], r["precision"]) == (which, precision) and "failed" not in r]
            if own:
                rows.append({"source": which, "commit": commits[which], "precision": precision, **summed(own, warm_up)})
    median = {(row["source"], row["precision"]): row["seconds"] for row in rows}
    for row in rows:
        which, precision = row["source"], row["precision"]
        if which == "new" and ("old", precision) in median:
            row["times_old"] = row["seconds"] / median["old", precision]
        if precision != "bf16" and (which, "bf16") in median:
            row["times_bf16"] = row["seconds"] / median[which, "bf16"]
    return rows


def summed(runs: Sequence[Row], warm_up: int) -> Row:
    later = [run["seconds"][warm_up:] for run in runs]
    rounds = sorted(seconds for each in later for seconds in each)
    low, _, high = statistics.quantiles(rounds, n=4, method="inclusive") if len(rounds) > 1 else rounds * 3
    return {
        "clients": runs[0]["clients"],
        "way": runs[0]["way"],
        "processes": len(runs),
        "rounds": len(rounds),
        "seconds": statistics.median(rounds),
        "seconds_low": low,
        "seconds_high": high,
        "medians": [statistics.median(each) for each in later],
        "first_seconds": statistics.median(run["seconds"][0] for run in runs),
        "wall_seconds": statistics.median(run["wall_seconds"] for run in runs),
        "last": statistics.fmean(run["last"] for run in runs),
        "trouble": next((run["trouble"] for run in runs if run["trouble"]), None),
    }


def judged(rows: Sequence[Row]) -> Iterator[str]:
    """Whether that holds which has to."""
    for row in rows:
        if row["precision"] == "bf16" and "times_old" in row:
            yield said("bf16, new to old", row["times_old"], NO_SLOWER)
        if row["source"] == "new" and row["precision"] == "float32" and "times_bf16" in row:
            yield said("float32 to bf16, both new", row["times_bf16"], AT_MOST)


def said(what: str, found: float, bound: float) -> str:
    return f"{what}: {found:.3f} times, {'within' if found <= bound else 'NOT within'} {bound}."


def text(rows: Sequence[Row]) -> str:
    """Columns side by side."""
    heads = ["source", "commit", "precision", "way", "clients", "s a round", "first", "process", "last score"]
    lines: list[list[Any]] = [heads]
    for row in rows:
        spread = f"{row['seconds']:.3f} ({row['seconds_low']:.3f}–{row['seconds_high']:.3f})"
        seconds = [spread, f"{row['first_seconds']:.2f}", f"{row['wall_seconds']:.1f}", f"{row['last']:.4f}"]
        facts = [row["source"], row["commit"] or "?", row["precision"], row["way"], str(row["clients"])]
        lines.append([*facts, *seconds])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


if __name__ == "__main__":
    main()
