"""Digits, practical, 300 rounds: what is left of FedAMP's best round at the end, when beta has fallen to 1e-5.

    python benchmarks/long_runs.py            three minutes on a core; writes benchmarks/results/long-runs.json
    python benchmarks/long_runs.py --page     also rewrites the table of docs/attention.md

FedAMP and HeurFedAMP under Adam and under SGD, with both forms of the proximal term, and with a beta that stays.
The numbers in the documentation come from this script; the JSON says on which machine and at which commit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import fedkin
from fedkin.engines import summary

METHODS = ["fedamp", "heurfedamp"]
OPTIMISERS: dict[str, dict[str, Any]] = {"Adam": {}, "SGD 0.05": {"optimiser": "sgd", "lr": 0.05}}
WAYS: dict[str, dict[str, Any]] = {
    "exact": {"proximal": "exact"},
    "gradient": {"proximal": "gradient"},
    "exact, beta stays": {"proximal": "exact", "beta_decay": 1.0},
}
HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "attention.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-long-runs"))
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    rows = [
        row
        for optimiser, local in OPTIMISERS.items()
        for way, settings in WAYS.items()
        for row in measure(optimiser, way, local, settings, options)
    ]
    record = {
        "command": "python benchmarks/long_runs.py",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": summary.versions(),
        "commit": summary.commit(),
        "rounds": options.rounds,
        "seeds": options.seeds,
        "rows": rows,
    }
    target = HERE / "results" / "long-runs.json"
    target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table(rows))
    if options.page:
        write_page(record)


def measure(
    optimiser: str, way: str, local: dict[str, Any], settings: dict[str, Any], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """A row for each method: best and last mean accuracy of the cloud models, seed by seed; or why there is none."""
    about = {"optimiser": optimiser, "proximal": way}
    config = {
        "data": {"name": "digits", "split": "practical"},
        "rounds": options.rounds,
        "local": local,
        "methods": {method: {"settings": settings} for method in METHODS},
    }

    def tell(method: str, seed: int) -> fedkin.Listener:
        print(f"{optimiser}, {way}: {method}, seed {seed}", file=sys.stderr)
        return fedkin.Listener()

    out = options.out / f"{optimiser}-{way}".replace(" ", "-").replace(",", "")
    try:
        results = fedkin.compare(config, methods=METHODS, seeds=options.seeds, out=out, listener=tell)
    except fedkin.FedkinError as refused:
        return [{**about, "method": method, "refused": str(refused)} for method in METHODS]
    rows = []
    for method in METHODS:
        runs = [run for run in results.runs if run.summary["method"] == method]
        cloud = [run.summary["models"]["cloud"] for run in runs]
        seconds = sum(run.summary["seconds"] for run in runs)
        rows.append(
            {
                **about,
                "method": method,
                "best": [round(c["bmta"], 6) for c in cloud],
                "best_round": [c["bmta_round"] for c in cloud],
                "last": [round(c["last"], 6) for c in cloud],
                "seconds": round(seconds, 1),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Mean over seeds, in per cent, and the largest loss of a seed from its best round to its last."""
    lines = ["| method | optimiser | proximal term | best | last | largest fall |", "|---|---|---|---|---|---|"]
    for row in rows:
        cells = [row["method"], row["optimiser"], row["proximal"]]
        if "refused" in row:
            lines.append(f"| {' | '.join(cells)} | refused | | |")
            continue
        mean = [f"{100 * sum(row[k]) / len(row[k]):.1f}" for k in ("best", "last")]
        fall = max(100 * (b - a) for b, a in zip(row["best"], row["last"], strict=True))
        lines.append(f"| {' | '.join([*cells, *mean])} | {fall:.1f} |")
    return "\n".join(lines)


def write_page(record: dict[str, Any]) -> None:
    """Puts the table between the page's markers."""
    begin, end = "<!-- long runs -->", "<!-- end long runs -->"
    head, rest = PAGE.read_text(encoding="utf-8").split(begin, 1)
    origin = (
        f"Measured by `{record['command']}`, {record['seeds']} seeds, {record['machine']}, "
        f"torch {record['versions']['torch']}, commit {record['commit']}."
    )
    text = f"{head}{begin}\n{table(record['rows'])}\n\n{origin}\n{end}{rest.split(end, 1)[1]}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
