"""Digits, both splits, all methods, five seeds: when broad and when selective collaboration pays.

    python benchmarks/digits.py            runs what is missing and writes benchmarks/results/digits.json
    python benchmarks/digits.py --page     also rewrites the tables of docs/when-collaboration-pays.md

The numbers in the documentation come from this script; the JSON says on which machine and at which commit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path

import fedkin
from fedkin.engines import summary
from fedkin.evidence.comparison import at_best

METHODS = ["separate", "fedavg", "fedprox", "scaffold", "apfl", "fedamp", "heurfedamp", "groups"]
HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "when-collaboration-pays.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-digits"))
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    results = {split: measure(split, options.seeds, options.out / split) for split in ("relabelled", "practical")}
    record = {
        "command": "python benchmarks/digits.py",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": summary.versions(),
        "commit": summary.commit(),
        "seeds": options.seeds,
        "splits": results,
    }
    target = HERE / "results" / "digits.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for split, measured in results.items():
        print(f"\n{split}\n{table(measured)}\n\n{margins(measured)}")
    if options.page:
        write_page(record)
        draw(options.out / "relabelled")


def measure(split: str, seeds: int, out: Path) -> dict[str, object]:
    """Runs all methods and returns the rows and, seed by seed, each model's best mean and the within-group share."""

    def tell(method: str, seed: int) -> fedkin.Listener:
        print(f"{split}: {method}, seed {seed}", file=sys.stderr)
        return fedkin.Listener()

    results = fedkin.compare(data={"split": split}, methods=METHODS, seeds=seeds, out=out, listener=tell)
    by_seed: dict[str, list[float]] = {}
    shares: dict[str, list[float]] = {}
    for run in results.runs:
        s = run.summary
        for model, scores in s["models"].items():
            by_seed.setdefault(f"{s['method']}:{model}", []).append(round(scores["bmta"], 6))
        if s["collaboration"]:
            shares.setdefault(s["method"], []).append(round(s["collaboration"]["within_group"], 4))
    rows = [
        {
            "row": row.name,
            "headline": row.headline,
            "mean": row.bmta,
            "worst_client": row.worst,
            "std_clients": row.std_clients,
            "std_seeds": row.std_seeds,
            "last": row.last,
            "validated": row.validated,
            "trained_with": results.findings.trained_with.get(row.method, ""),
        }
        for row in (at_best(each, results.findings.seeds(each)) for each in results.rows())
    ]
    worse = {name: [client for client, _, _ in clients] for name, clients in results.worse_than_alone().items()}
    seconds = sum(run.summary["seconds"] for run in results.runs)
    return {"rows": rows, "by_seed": by_seed, "within_group": shares, "worse_than_alone": worse, "seconds": seconds}


def table(measured: dict[str, object]) -> str:
    """The rows as Markdown, in per cent."""
    lines = [
        "| method:model | mean | worst client | ± clients | ± seeds | last | validated | trained with |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in measured["rows"]:
        name = f"**{row['row']}**" if row["headline"] else row["row"]
        keys = ("mean", "worst_client", "std_clients", "std_seeds", "last", "validated")
        cells = [f"{100 * row[k]:.1f}" if row[k] is not None else "" for k in keys]
        lines.append(f"| {name} | {' | '.join(cells)} | {row.get('trained_with', '')} |")
    return "\n".join(lines)


def margins(measured: dict[str, object]) -> str:
    """How far the cloud models are from groups, Separate and FedAvg: mean over seeds and the least favourable seed."""
    by_seed = measured["by_seed"]
    lines = [
        "| points of | to `groups` | to `separate` | to `fedavg:global` | within-group share |",
        "|---|---|---|---|---|",
    ]
    for method in ("fedamp", "heurfedamp"):
        cells = []
        for other in ("groups:cloud", "separate:personal", "fedavg:global"):
            gaps = [100 * (a - b) for a, b in zip(by_seed[f"{method}:cloud"], by_seed[other], strict=True)]
            cells.append(f"{sum(gaps) / len(gaps):+.1f} (worst seed {min(gaps):+.1f})")
        share = measured["within_group"][method]
        lines.append(f"| {method}:cloud | {' | '.join(cells)} | {min(share):.2f} to {max(share):.2f} |")
    return "\n".join(lines)


def draw(folder: Path) -> None:
    """The README's two pictures: accuracy over rounds of the demo's methods, and who listens to whom."""
    runs = [fedkin.Run(path.parent) for path in sorted(folder.glob("*/config.toml"))]
    shown = [run for run in runs if run.summary["method"] in ("separate", "fedavg", "fedamp", "heurfedamp", "groups")]
    images = PAGE.parent / "images"
    drawn = {path.stem: path for path in fedkin.Results(shown, folder).figures(folder / "figures", ["png"])}
    images.mkdir(exist_ok=True)
    for target, source in (("curves", "curves"), ("collaboration", "collaboration-fedamp")):
        (images / f"{target}.png").write_bytes(drawn[source].read_bytes())


def write_page(record: dict[str, object]) -> None:
    """Puts the tables between the page's markers."""
    text = PAGE.read_text(encoding="utf-8")
    for split, measured in record["splits"].items():
        for kind, make in (("table", table), ("margins", margins)):
            begin, end = f"<!-- {split} {kind} -->", f"<!-- end {split} {kind} -->"
            if begin in text:
                head, rest = text.split(begin, 1)
                text = f"{head}{begin}\n{make(measured)}\n{end}{rest.split(end, 1)[1]}"
    begin, end = "<!-- origin -->", "<!-- end origin -->"
    head, rest = text.split(begin, 1)
    versions = record["versions"]
    origin = (
        f"Measured by `python benchmarks/digits.py`, {record['seeds']} seeds, {record['machine']}, "
        f"torch {versions['torch']}, Python {versions['python']}, commit {record['commit']}."
    )
    PAGE.write_text(f"{head}{begin}\n{origin}\n{end}{rest.split(end, 1)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
