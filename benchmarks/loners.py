"""Who is hurt by joining? FedAMP and HeurFedAMP in worlds with and without silos that resemble nobody.

    python benchmarks/loners.py                     digits, ten seeds that nothing was developed on; about ten minutes
    python benchmarks/loners.py --only fmnist       Fashion-MNIST, a small world ($FEDKIN_DATA)

Runs what is missing and writes benchmarks/results/loners.json and docs/loners.md, which is made from the JSON alone
(`--page-only` makes it again). `before` is FedAMP as it was: weight_on_others = "attention", proximal = "gradient".
In `mixed` and `one loner` each method's rate is chosen on validation data of the same grid; in the other worlds all
have the data set's, so that before and after differ in nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fedkin
from fedkin.engines import summary

HERE = Path(__file__).parent
SEEDS = range(100, 110)
BEFORE = {"weight_on_others": "attention", "proximal": "gradient"}
KINDS = ("agreeing", "relabelled", "lone")
MIXED = {"split": "mixed", "agreeing": 12, "relabelled": 8, "lone": 3, "clients": 23}
SMALL = {
    "rounds": 15,
    "model": {"name": "mlp", "settings": {"hidden": [100]}},
    "local": {"epochs": 3, "batch_size": 50},
}
WORLDS: dict[str, dict[str, Any]] = {
    "mixed": {"data": {"name": "digits", **MIXED}},
    "one loner": {"data": {"name": "digits", **MIXED, "lone": 1, "clients": 21}},
    "practical": {"data": {"name": "digits", "split": "practical"}},
    "relabelled": {"data": {"name": "digits", "split": "relabelled"}},
    "iid": {"data": {"name": "digits", "split": "iid"}},
    "fmnist": {"data": {"name": "fmnist", **MIXED}, **SMALL},
}
TUNED = ("mixed", "one loner", "fmnist")
METHODS = ("separate", "groups", "fedavg", "fedamp", "heurfedamp")
Found = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(WORLDS), help="worlds, separated by commas")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-loners"))
    parser.add_argument("--results", type=Path, default=HERE / "results" / "loners.json")
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs" / "loners.md")
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args()
    found: Found = json.loads(options.results.read_text(encoding="utf-8")) if options.results.exists() else {}
    for name in [] if options.page_only else options.only.split(","):
        print(name, file=sys.stderr)
        found[name] = world(name, options)
        options.results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    options.page.write_text(page(found), encoding="utf-8")


# ---- measuring ----


def world(name: str, options: argparse.Namespace) -> Found:
    """Closing scores of every method in one world, by kind of client."""
    began = time.perf_counter()
    seeds = [*SEEDS][: 3 if name == "fmnist" else options.seeds]
    names = [method for method in METHODS if not (name == "iid" and method == "groups")]
    folder = options.out / name.replace(" ", "-")
    plans = {"": (names, {}), "before": (["fedamp", "heurfedamp"], BEFORE)}
    if name not in TUNED:
        plans["proximal"] = (["fedamp", "heurfedamp"], {"weight_on_others": "attention"})
    rows: Found = {}
    for label, (methods, settings) in plans.items():
        results = fedkin.compare(
            WORLDS[name] | {"settings": settings},
            methods=methods,
            seeds=seeds,
            tune=name in TUNED,
            out=folder / (label or "now"),
            jobs=options.jobs,
        )
        for method in methods:
            runs = [run for run in results.runs if run.summary.method == method]
            rows[" ".join(filter(None, [method, label]))] = {
                "headline": runs[0].summary.headline,
                "trained_with": trained_with(runs[0]),
                "scores": {str(run.summary.seed): scores(run) for run in runs},
            }
    return {
        "command": f"python benchmarks/loners.py --only {name!r}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": summary.versions(),
        "commit": summary.commit(),
        "seconds": round(time.perf_counter() - began),
        "settings": WORLDS[name],
        "kinds": kinds(WORLDS[name]["data"]),
        "rows": rows,
    }


def trained_with(run: fedkin.Run) -> str:
    config = run.resolved()
    return config.built_method().trained_with(config.local)


def scores(run: fedkin.Run) -> dict[str, dict[str, float]]:
    """By model and client, at the closing exchange."""
    line = run.rounds[-1]
    return {
        model: {name: round(float(v), 4) for name, v in zip(run.summary.clients, each.clients, strict=True)}
        for model, each in line.models.items()
    }


def kinds(data: Found) -> dict[str, str]:
    """Of each client."""
    if data["split"] != "mixed":
        return {}
    clients = fedkin.load(**data, validation=0.1).clients
    largest = max(c.group for c in clients) - data["lone"]
    return {c.name: KINDS[0] if c.group == 0 else KINDS[1] if c.group <= largest else KINDS[2] for c in clients}


# ---- the page ----


def page(found: Found) -> str:
    parts = [INTRODUCTION]
    for name, own in found.items():
        parts.append(f"## {name.capitalize()}\n\n{_about(name, own)}\n")
        parts.append(_by_kind(own) if own["kinds"] else _plain(own))
    return "\n".join(parts)


INTRODUCTION = """# Who is hurt by joining

Attention says who is nearest; it does not say that anyone is near. Until trust in others was built in, FedAMP and
HeurFedAMP with their automatic weight put 0.9 on others for a silo that resembles nobody, and ruined it. Now each
client says, in one number, how far it trusts the others, by what their models know of its own data beside what it knows
itself, and the automatic weight is multiplied by that. [Attention](attention.md#trust-in-others) has the rule, and
where it fails: silos that differ from the others in part are not spared as those are that differ in everything.

Mean test accuracy at the closing exchange, of each method's headline model, over seeds that nothing was developed on.
“Before” is `weight_on_others = "attention"`, `proximal = "gradient"`: FedAMP as it was. “Hurt” are the silos that end
more than eight points below training alone, a seed at a time: two of 25 test samples, so that some are by chance.
Made by `python benchmarks/loners.py` from `benchmarks/results/loners.json`.
"""


def _about(name: str, own: Found) -> str:
    seeds = len(next(iter(own["rows"].values()))["scores"])
    counts = {kind: list(own["kinds"].values()).count(kind) for kind in KINDS}
    who = ", ".join(f"{n} {kind}" for kind, n in counts.items() if n)
    rates = "each method's rate chosen on validation data" if name in TUNED else "the data set's rate for all"
    what = own["settings"]["data"]["name"]
    return (
        f"{what}{f': {who} clients' if who else ''}; {rates}; {seeds} seeds; commit `{str(own['commit'])[:12]}`, "
        f"{own['machine']}, {own['seconds'] / 60:.0f} minutes for what was not there yet."
    )


def _values(row: Found, kind: str | None, own: Found, model: str | None = None) -> list[float]:
    """One a seed and client."""
    named = model or row["headline"]
    return [
        score
        for each in row["scores"].values()
        for client, score in each[named].items()
        if kind is None or own["kinds"][client] == kind
    ]


def _gaps(row: Found, own: Found, kind: str) -> Iterator[float]:
    alone = own["rows"]["separate"]
    yield from (a - b for a, b in zip(_values(row, kind, own), _values(alone, kind, own), strict=True))


def _by_kind(own: Found) -> str:
    present = [kind for kind in KINDS if kind in own["kinds"].values()]
    heads = ["method", "trained with", "all", *present, *(f"hurt, {kind}" for kind in present)]
    lines = []
    for name, row in own["rows"].items():
        means = [_percent(_values(row, kind, own)) for kind in (None, *present)]
        hurt = []
        for kind in present:
            gaps = list(_gaps(row, own, kind))
            hurt.append("" if name == "separate" else f"{sum(g < -0.08 for g in gaps)} of {len(gaps)}")
        lines.append([f"{name}:{row['headline']}", row["trained_with"], *means, *hurt])
    return _markdown(heads, lines)


def _plain(own: Found) -> str:
    heads = ["method", "closing", "± seeds", "against before, same seeds"]
    lines = []
    for name, row in own["rows"].items():
        by_seed = {seed: statistics.fmean(each[row["headline"]].values()) for seed, each in row["scores"].items()}
        spread = f"{100 * statistics.stdev(by_seed.values()):.1f}" if len(by_seed) > 1 else ""
        before = own["rows"].get(f"{name} before")
        gap = ""
        if before is not None:
            gaps = [by_seed[s] - statistics.fmean(e[before["headline"]].values()) for s, e in before["scores"].items()]
            error = statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0
            gap = f"{100 * statistics.fmean(gaps):+.2f} ± {100 * error:.2f}"
        lines.append([f"{name}:{row['headline']}", _percent(list(_values(row, None, own))), spread, gap])
    return _markdown(heads, lines)


def _percent(values: Sequence[float]) -> str:
    return f"{100 * statistics.fmean(values):.1f}"


def _markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(["| " + " | ".join(each) + " |" for each in [heads, ["---"] * len(heads), *lines]]) + "\n"


if __name__ == "__main__":
    main()
