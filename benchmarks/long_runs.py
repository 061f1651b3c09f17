"""Digits, 300 rounds: what is left of FedAMP's best round at the end, when beta has fallen to 1e-5.

    python benchmarks/long_runs.py            six minutes on a core; writes benchmarks/results/long-runs.json
    python benchmarks/long_runs.py --page     also rewrites the tables of docs/attention.md

The practical split: FedAMP and HeurFedAMP under Adam and under SGD, with both forms of the proximal term, and with a
beta that stays. And the mixed one, with silos that resemble nobody, beside training alone: each kind of silo.
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
BESIDE = ["separate", "groups", *METHODS]
MIXED = {"name": "digits", "split": "mixed", "clients": 23, "agreeing": 12, "relabelled": 8, "lone": 3}
KINDS = {"agreeing": slice(0, 12), "relabelled": slice(12, 20), "lone": slice(20, 23)}
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
        "mixed": mixed(options),
    }
    target = HERE / "results" / "long-runs.json"
    target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table(rows) + "\n\n" + by_kind(record["mixed"]))
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


def mixed(options: argparse.Namespace) -> dict[str, Any]:
    """By method the mean accuracy of each kind of silo, seed by seed: in its best round, and at the closing one."""
    config = {"data": MIXED, "rounds": options.rounds}
    results = fedkin.compare(config, methods=BESIDE, seeds=options.seeds, out=options.out / "mixed")
    found: dict[str, Any] = {}
    for method in BESIDE:
        runs = [run for run in results.runs if run.summary["method"] == method]
        found[method] = {
            kind: {
                "best": [round(max(_curve(run, part)), 6) for run in runs],
                "last": [round(_curve(run, part)[-1], 6) for run in runs],
            }
            for kind, part in {"all": slice(0, 23), **KINDS}.items()
        }
    return found


def _curve(run: fedkin.Run, part: slice) -> list[float]:
    """Over rounds, the mean score of these silos' headline models."""
    own = [line.models[run.summary["headline"]].clients[part] for line in run.rounds if not line.get("novel")]
    return [sum(each) / len(each) for each in own]


def by_kind(found: dict[str, Any]) -> str:
    lines = ["| method | " + " | ".join(f"{kind}: best | last" for kind in next(iter(found.values()))) + " |"]
    lines.append("|---" * lines[0].count(" | ") + "|---|")
    for method, kinds in found.items():
        cells = [f"{100 * sum(kinds[k][at]) / len(kinds[k][at]):.1f}" for k in kinds for at in ("best", "last")]
        lines.append(f"| {' | '.join([method, *cells])} |")
    return "\n".join(lines)


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
    """Puts the tables between the page's markers."""
    origin = (
        f"Measured by `{record['command']}`, {record['seeds']} seeds, {record['machine']}, "
        f"torch {record['versions']['torch']}, commit {record['commit']}."
    )
    text = PAGE.read_text(encoding="utf-8")
    for name, content in (
        ("long runs", f"{table(record['rows'])}\n\n{origin}"),
        ("long runs, mixed", by_kind(record["mixed"])),
    ):
        head, rest = text.split(f"<!-- {name} -->", 1)
        text = f"{head}<!-- {name} -->\n{content}\n<!-- end {name} -->{rest.split(f'<!-- end {name} -->', 1)[1]}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
