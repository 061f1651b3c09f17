"""Attention to the k nearest clients only: what it does to accuracy on digits, and what it saves when models are mixed.

    python benchmarks/top.py            runs what is missing, writes benchmarks/results/top.json and prints the tables
    python benchmarks/top.py --page     also rewrites the tables of docs/attention.md

The numbers in the documentation come from this script; the JSON says on which machine and at which commit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import fedkin
from fedkin.engines import summary
from fedkin.maths import collaboration

METHODS = ["fedamp", "heurfedamp"]
TOP = [1, 3, 5, 9, 0]
MODELS = (1000, 50_000)
"""Clients and parameters of the models that are mixed to take the time; it grows with the parameters."""
HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "attention.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-top"))
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    record = {
        "command": "python benchmarks/top.py",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": summary.versions(),
        "commit": summary.commit(),
        "seeds": options.seeds,
        "splits": {split: accuracies(split, options.seeds, options.out) for split in ("relabelled", "practical")},
        "mixing": times(),
    }
    (HERE / "results" / "top.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{accuracy_table(record)}\n\n{time_table(record)}")
    if options.page:
        write_page(record)


def accuracies(split: str, seeds: int, out: Path) -> list[dict[str, object]]:
    """For each method and each k, seed by seed: the cloud models' best mean, and the share of kin in attention."""

    def tell(method: str, seed: int) -> fedkin.Listener:
        print(f"{split}: {method}, top {top}, seed {seed}", file=sys.stderr)
        return fedkin.Listener()

    rows = []
    for top in TOP:
        data, folder = {"name": "digits", "split": split}, out / f"{split}-{top}"
        results = fedkin.compare(
            data=data, methods=METHODS, seeds=seeds, settings={"top": top}, out=folder, listener=tell
        )
        for method in METHODS:
            found = [run.summary for run in results.runs if run.summary["method"] == method]
            rows.append(
                {
                    "method": method,
                    "top": top,
                    "cloud": [round(s["models"]["cloud"]["bmta"], 6) for s in found],
                    "personal": [round(s["models"]["personal"]["bmta"], 6) for s in found],
                    "within_group": [round(s["collaboration"]["within_group"], 4) for s in found],
                }
            )
    return rows


def times() -> dict[str, object]:
    """CPU seconds that mixing takes with attention to the k nearest, and in copies of W; one thread, best of three."""
    torch.set_num_threads(1)
    m, d = MODELS
    W = torch.randn(m, d, generator=torch.Generator().manual_seed(0))
    U = W.clone()
    logits = torch.randn(m, m, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    copy = best_of_three(lambda: U.copy_(W))
    rows = []
    for top in [10, 30, 100, 0]:
        others = collaboration.softmax_of_others(collaboration.only_nearest(logits, top))
        xi = collaboration.with_self(others, collaboration.automatic_weight_on_others(others))
        seconds = best_of_three(lambda xi=xi: collaboration.mix(xi, W, out=U))
        rows.append({"top": top, "seconds": round(seconds, 4), "copies": round(seconds / copy, 1)})
    return {"clients": m, "parameters": d, "copy": round(copy, 4), "rows": rows}


def best_of_three(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(3):
        started = time.process_time()  # other programs of the machine do not count
        work()
        seconds.append(time.process_time() - started)
    return min(seconds)


# ---- tables ----


def accuracy_table(record: dict[str, object]) -> str:
    """A line for each k: mean over seeds in per cent (lowest to highest seed), and the share inside the groups."""
    lines = [
        "| k | relabelled: fedamp | share | heurfedamp | share | practical: fedamp | share | heurfedamp | share |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for top in TOP:
        cells = []
        for rows in record["splits"].values():
            for row in (r for method in METHODS for r in rows if (r["method"], r["top"]) == (method, top)):
                scores, shares = [100 * s for s in row["cloud"]], row["within_group"]
                cells.append(f"{sum(scores) / len(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})")
                cells.append(f"{sum(shares) / len(shares):.2f}")
        lines.append(f"| {top or 'all'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def time_table(record: dict[str, object]) -> str:
    rows = record["mixing"]["rows"]
    cells = [f"{row['seconds']:.2f} s, {row['copies']:.0f} copies" for row in rows]
    return "\n".join(
        [
            f"| k | {' | '.join(str(row['top'] or 'all') for row in rows)} |",
            f"|---|{'---|' * len(rows)}",
            f"| mixing | {' | '.join(cells)} |",
        ]
    )


def write_page(record: dict[str, object]) -> None:
    """Puts the tables between the page's markers."""
    mixing, versions = record["mixing"], record["versions"]
    origin = (
        f"Measured by `python benchmarks/top.py`, {record['seeds']} seeds, {record['machine']}, torch "
        f"{versions['torch']}, commit {record['commit']}; mixing {mixing['clients']:,} models of "
        f"{mixing['parameters']:,} numbers with one thread."
    )
    text = PAGE.read_text(encoding="utf-8")
    parts = {"top accuracy": accuracy_table(record), "top time": time_table(record), "top origin": origin}
    for name, part in parts.items():
        head, rest = text.split(f"<!-- {name} -->", 1)
        text = f"{head}<!-- {name} -->\n{part}\n<!-- end {name} -->{rest.split(f'<!-- end {name} -->', 1)[1]}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
