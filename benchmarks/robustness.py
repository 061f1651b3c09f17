"""Dirty labels and dropped clients: FedAMP, HeurFedAMP, FedAvg and Separate over the levels, in one picture.

    python benchmarks/robustness.py                          Fashion-MNIST, practical, 20 clients
    python benchmarks/robustness.py --data digits --split relabelled --rounds 20 --epochs 5
    python benchmarks/robustness.py --attention              dirty labels, FedAMP's weight on others by attention alone

Runs what is missing and writes benchmarks/results/robustness-DATA.json and docs/images/robustness-DATA.png. The
numbers in the documentation come from this script; the JSON says on which machine and at which commit. `--attention`
writes robustness-DATA-attention.json and no picture: what trust in others costs where labels are wrong.
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

METHODS = ["fedamp", "heurfedamp", "fedavg", "separate"]
ATTENTIVE = ["fedamp", "heurfedamp"]
LEVELS = {"corruption.labels": [0, 0.2, 0.4, 0.6], "participation.dropped": [0, 0.1, 0.3, 0.5]}
HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fmnist")
    parser.add_argument("--split", default="practical")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--model", help="the data set's own by default; mlp is faster on a CPU")
    parser.add_argument("--attention", action="store_true", help='weight_on_others = "attention"')
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", help="where the source tree comes without its history")
    options = parser.parse_args()
    settings: dict[str, object] = {
        "data": {"name": options.data, "split": options.split, "clients": options.clients},
        "rounds": options.rounds,
        "local": {"epochs": options.epochs},
    }
    if options.model:
        settings["model"] = {"name": options.model}
    name = f"robustness-{options.data}" + ("-attention" if options.attention else "")
    methods, scale = METHODS, LEVELS
    if options.attention:
        settings["settings"] = {"weight_on_others": "attention"}
        methods, scale = ATTENTIVE, {"corruption.labels": LEVELS["corruption.labels"]}
    out = options.out or Path("runs") / name
    levels = fedkin.vary(settings, levels=scale, methods=methods, seeds=options.seeds, out=out, listener=tell)
    runs = [run for level in levels.levels for run in level.results.runs]
    record = {
        "command": " ".join(["python", "benchmarks/robustness.py", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {runs[0].summary['device']}",
        "versions": summary.versions(),
        "commit": options.commit or summary.commit(),
        "settings": settings,
        "seeds": options.seeds,
        "seconds": sum(run.summary["seconds"] for run in {run.path: run for run in runs}.values()),
        "rows": [row.flat() for row in levels.rows()],
    }
    target = HERE / "results" / f"{name}.json"
    target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for setting in levels.settings:
        print(f"\n{setting}\n{table(levels, setting)}")
    if options.attention:
        return
    drawn, *_ = levels.figures(formats=["png"])
    (HERE.parent / "docs" / "images" / f"{name}.png").write_bytes(drawn.read_bytes())
    levels.report()


def tell(level: str, method: str, seed: int) -> fedkin.Listener:
    print(f"{level}: {method}, seed {seed}", file=sys.stderr)
    return fedkin.Listener()


def table(levels: fedkin.Levels, setting: str) -> str:
    """The headline rows as Markdown, in per cent; in brackets clients with clean labels, and those hit."""
    rows = [row for row in levels.rows() if row.setting == setting]
    values = list(dict.fromkeys(row.value for row in rows))
    lines = [f"| method:model | {' | '.join(map(str, values))} |", "|---|" + "---|" * len(values)]
    for name in dict.fromkeys(row.name for row in rows if row.headline):
        cells = []
        for row in (r for r in rows if r.name == name):
            best = row.best
            apart = f" ({100 * best.clean.mean:.1f}, {100 * best.hit.mean:.1f})" if best.clean and best.hit else ""
            cells.append(f"{100 * best.all.mean:.1f}{apart}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
