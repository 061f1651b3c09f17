"""Do two commits give the same numbers? Every method on digits, FL-60 and heart, in both, on one CPU thread.

    python benchmarks/same_numbers.py 6176844            # that commit beside the working tree
    python benchmarks/same_numbers.py 6176844 main --rounds 5 --only fedamp,sfl

Each commit is laid out in a folder of its own and run by the same short script, through `fedkin.run`, `fedkin.compare`
and `fedkin.tune`, as users do. Then everything that the runs wrote is held against each other: the lines of
rounds.jsonl, the models that clients were handed and their answers, xi, the last checkpoint and the summary, number by
number and bit by bit. Seconds, peak memory, versions and fields that the older commit did not write are left aside.
A run that the older commit refuses (`groups` where no groups are known) has to be refused by the newer one, too.

The data of FL-60 and heart are looked for in $FEDKIN_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

ROOT = Path(__file__).resolve().parent.parent
METHODS = ["separate", "fedavg", "fedprox", "fedamp", "heurfedamp", "scaffold", "apfl", "groups", "perfedavg", "pfedme"]
METHODS += ["sfl", "pfedhn", "panacea", "panacea_gn"]
WORLDS: dict[str, dict[str, Any]] = {
    "digits": {"data": {"name": "digits", "split": "relabelled"}},
    "digits-troubled": {
        "data": {"name": "digits", "split": "practical"},
        "participation": {"sample": 0.6, "dropped": 0.1, "lost": 0.2, "novel": 0.2},
        "seed": 1,
    },
    "fl60": {"data": {"name": "fl60"}},
    "heart": {"data": {"name": "heart"}, "graph": {"source": "inferred", "infer_rounds": 2, "top": 2}},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "fedamp-theory": {"method": "fedamp", "settings": {"mode": "theory", "sigma": 100.0}},
    "fedamp-mcp-top": {"method": "fedamp", "settings": {"attention": "mcp", "sigma": 10.0, "top": 3}},
    "fedamp-pretrained": {"method": "fedamp", "settings": {"init": "pretrained", "similarity": "head"}},
    "heurfedamp-independent": {
        "method": "heurfedamp",
        "settings": {"init": "independent", "similarity": "updates", "init_from": "local"},
    },
    "fedamp-paper": {"method": "fedamp", "preset": "paper", "settings": {"weight_on_others": 0.7}},
    "fedavg-momentum": {
        "method": "fedavg",
        "local": {"optimiser": "sgd", "lr": 0.05, "momentum": 0.9, "persist_optimiser": True},
    },
    "perfedavg-native": {"method": "perfedavg", "budget": "native"},
    "pfedme-native": {"method": "pfedme", "budget": "native"},
    "panacea-native": {"method": "panacea", "budget": "native"},
}
"""Ways through the methods that their defaults do not take."""
ASIDE = {"seconds", "peak_bytes", "versions", "commit", "execution", "device"}
"""Of lines and summaries: what may differ from run to run."""

WORKER = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import fedkin
plan = json.loads(Path(sys.argv[1]).read_text())
out = Path(sys.argv[2])
refused = {}
def tried(name, call):
    try:
        call(out / name)
    except ValueError as error:
        refused[name] = str(error)
    print(name, "refused" if name in refused else "done", flush=True)
for name, settings in plan["runs"].items():
    tried(name, lambda path: fedkin.run(settings, out=path))
for name, case in plan["compare"].items():
    tried(name, lambda path: fedkin.compare(case["settings"], methods=case["methods"], seeds=2, out=path))
for name, case in plan["tune"].items():
    tried(name, lambda path: fedkin.tune(case["settings"], grid=case["grid"], out=path))
(out / "refused.json").write_text(json.dumps(refused))
"""


def main() -> None:
    options = arguments()
    plan = planned(options.rounds, options.only.split(",") if options.only else METHODS)
    with tempfile.TemporaryDirectory(prefix="same-numbers-") as place:
        folders = []
        for commit in (options.old, options.new):
            folder = options.keep / (commit or "working-tree") if options.keep else Path(place) / f"{len(folders)}"
            if not (folder / "refused.json").exists():
                folder.mkdir(parents=True, exist_ok=True)
                execute(laid_out(commit, Path(place)), plan, folder)
            folders.append(folder)
        found = {name: differences(name, *folders) for name in names(plan)}
    report(options, plan, found)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Hold the numbers of two commits against each other.")
    parser.add_argument("old", help="a commit")
    parser.add_argument("new", nargs="?", help="a commit; the working tree if left out")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", default="", help="methods, separated by commas; all if left out")
    parser.add_argument("--keep", type=Path, help="a folder for the runs of both; what is there is not run again")
    parser.add_argument("--json", type=Path, help="where to write what was found")
    return parser.parse_args()


def planned(rounds: int, methods: list[str]) -> dict[str, Any]:
    """Runs by name, and a comparison and a grid, whose seeds and points are trained in stacks."""
    common = {"rounds": rounds, "threads": 1}
    runs = {f"{world}/{m}": {**s, **common, "method": m} for world, s in WORLDS.items() for m in methods}
    runs |= {
        f"digits/{name}": {**WORLDS["digits"], **common, **own}
        for name, own in VARIANTS.items()
        if own["method"] in methods
    }
    both = [m for m in ("fedamp", "scaffold", "panacea") if m in methods]
    return {
        "runs": runs,
        "compare": {"compare": {"settings": {**WORLDS["digits"], **common}, "methods": both}} if both else {},
        "tune": {
            f"tune-{m}": {"settings": {**WORLDS["digits"], **common, "method": m}, "grid": {"local.lr": [0.001, 0.01]}}
            for m in both[:2]
        },
    }


def names(plan: dict[str, Any]) -> list[str]:
    return [name for kind in ("runs", "compare", "tune") for name in plan[kind]]


def laid_out(commit: str | None, place: Path) -> Path:
    """A folder with the source of a commit."""
    if commit is None:
        return ROOT
    folder = place / f"source-{commit}"
    folder.mkdir()
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def execute(source: Path, plan: dict[str, Any], folder: Path) -> None:
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    (folder / "worker.py").write_text(WORKER, encoding="utf-8")
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = {**os.environ, **one, "PYTHONPATH": str(source / "src"), "CUDA_VISIBLE_DEVICES": ""}
    # -P: not this script's folder, nor the one it is started from, but the source that was laid out.
    command = [sys.executable, "-P", str(folder / "worker.py"), str(folder / "plan.json"), str(folder)]
    subprocess.run(command, env=environment, check=True)


# ---- holding runs against each other ----


def differences(name: str, old: Path, new: Path) -> list[str]:
    """What is not the same, in words; nothing if all is."""
    before, after = (json.loads((each / "refused.json").read_text(encoding="utf-8")) for each in (old, new))
    if name in before or name in after:
        same = before.get(name) == after.get(name)
        return [] if same else [f"refused: {before.get(name)!r} before, {after.get(name)!r} now"]
    told: list[str] = []
    for file in sorted(p for p in (old / name).rglob("*") if p.is_file()):
        twin = new / name / file.relative_to(old / name)
        if file.suffix not in (".json", ".jsonl", ".npy", ".safetensors") or file.name == "references.json":
            continue
        if not twin.exists():
            told.append(f"{file.relative_to(old / name)} is missing")
        else:
            told += [f"{file.relative_to(old / name)}: {what}" for what in _unlike(file, twin)]
    return told


def _unlike(a: Path, b: Path) -> Iterator[str]:
    if a.suffix == ".npy":
        if np.load(a).tobytes() != np.load(b).tobytes():
            yield "other numbers"
    elif a.suffix == ".safetensors":
        yield from _tensors(a, b)
    else:
        texts = [path.read_text(encoding="utf-8") for path in (a, b)]
        first, second = (
            [json.loads(line) for line in text.splitlines()] if a.suffix == ".jsonl" else json.loads(text)
            for text in texts
        )
        yield from _values(first, second, "")


def _tensors(a: Path, b: Path) -> Iterator[str]:
    with safe_open(a, "np") as first, safe_open(b, "np") as second:
        there = set(second.keys())
        for name in first.keys():  # noqa: SIM118
            if name not in there:
                yield f"tensor {name} is missing"
            elif first.get_tensor(name).tobytes() != second.get_tensor(name).tobytes():
                gap = np.abs(first.get_tensor(name).astype(float) - second.get_tensor(name).astype(float)).max()
                yield f"tensor {name} differs by up to {gap:.3g}"


def _values(a: Any, b: Any, place: str) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in a.keys() - ASIDE:
            if key not in b:
                yield f"{place}{key} is missing"
            else:
                yield from _values(a[key], b[key], f"{place}{key}.")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from _values(one, other, f"{place}{i}.")
    elif a != b or type(a) is not type(b):
        yield f"{place[:-1]} was {a!r:.60}, is {b!r:.60}"


def report(options: argparse.Namespace, plan: dict[str, Any], found: dict[str, list[str]]) -> None:
    other = {name: told for name, told in found.items() if told}
    for name, told in other.items():
        print(f"{name}: {len(told)} differences; {told[0]}")
    print(
        f"{len(found) - len(other)} of {len(found)} the same, bit for bit: {options.old} and {options.new or 'here'}."
    )
    if options.json:
        described = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
        here = subprocess.run(described, capture_output=True, text=True, check=True).stdout.strip()
        facts = {"old": options.old, "new": options.new or here, "rounds": options.rounds, "cells": list(found)}
        options.json.write_text(json.dumps({**facts, "differences": other}, indent=2) + "\n", encoding="utf-8")
    sys.exit(bool(other))


if __name__ == "__main__":
    main()
