"""Panacea and all it is compared with, on FL-60, TPT-48 and digits: tables, newcomers, attackers, graphs, sizes.

    python benchmarks/panacea.py tables       FL-60 and TPT-48, native and equal budget, with rows without federation
    python benchmarks/panacea.py novel        a fifth of the clients held out
    python benchmarks/panacea.py attack       0 to 50 % of the clients lie; controls with other graphs
    python benchmarks/panacea.py graphs       a graph inferred by HeurFedAMP beside the given one
    python benchmarks/panacea.py sizes        FL-30 to FL-480: does the generator pay more with more clients?
    python benchmarks/panacea.py tuned        baselines with rates tuned on validation data
    python benchmarks/panacea.py inferred     how many edges of an inferred graph are right

Each runs what is missing in runs/panacea-STUDY and writes benchmarks/results/panacea-STUDY.json. The numbers in the
documentation come from this script; the JSON says on which machine and at which commit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

import fedkin
from fedkin.engines import inferred_graph, start, summary
from fedkin.engines.assembly import Assembly
from fedkin.evidence import references
from fedkin.evidence.comparison import at_best
from fedkin.maths.collaboration import mix
from fedkin.training.evaluation import evaluate

METHODS = [
    "panacea",
    "panacea_gn",
    "pfedhn",
    "fedavg",
    "perfedavg",
    "pfedme",
    "sfl",
    "fedamp",
    "heurfedamp",
    "separate",
]
CURVE = (20, 50, 100, 150)
"""Rounds at which the headline's mean is told."""
HERE = Path(__file__).parent
Rows = list[dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--only", default="", help="cells whose name contains this; the others stay as they were")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--results", type=Path, help="benchmarks/results/panacea-STUDY.json by default")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", help="where the source tree comes without its history")
    options = parser.parse_args()
    target = options.results or HERE / "results" / f"panacea-{options.study}.json"
    before = json.loads(target.read_text(encoding="utf-8"))["cells"] if target.exists() else {}
    out = options.out or Path(f"runs/panacea-{options.study}")
    bench = Bench(out, options.seeds, options.rounds, options.only, options.device)
    STUDIES[options.study](bench)
    order = dict.fromkeys([*before, *bench.cells])
    record = {
        "command": " ".join(["python", "benchmarks/panacea.py", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": summary.versions(),
        "commit": options.commit or summary.commit(),
        "seeds": options.seeds,
        "rounds": options.rounds,
        "cells": {cell: bench.cells.get(cell, before.get(cell)) for cell in order},
    }
    target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for cell, rows in bench.cells.items():
        print(f"\n{cell}\n{table(rows)}")


class Bench:
    """Comparisons by name, each a cell of the study: rows of `method:model`."""

    def __init__(self, out: Path, seeds: int, rounds: int, only: str, device: str) -> None:
        self.out, self.seeds, self.rounds, self.only, self.device = out, seeds, rounds, only, device
        self.cells: dict[str, Rows] = {}

    def compare(
        self,
        cell: str,
        methods: Sequence[str],
        *,
        beside: Sequence[str] = (),
        seeds: int | None = None,
        **more: Any,
    ) -> None:
        """`beside`: rows without federated learning."""
        if self.only not in cell:
            return

        def tell(method: str, seed: int) -> fedkin.Listener:
            print(f"{cell}: {method}, seed {seed}", file=sys.stderr)
            return fedkin.Listener()

        results = fedkin.compare(
            {"rounds": self.rounds, "device": self.device, **more},
            methods=methods,
            seeds=seeds or self.seeds,
            out=self.out / cell.replace(" ", "-"),
            listener=tell,
            references=list(beside),
        )
        self.cells[cell] = measured(results)


# ---- the studies ----


def tables(bench: Bench) -> None:
    told = ["climatology", "least_squares", "pooled_least_squares", "persistence"]
    for budget in ("native", "equal"):
        bench.compare(f"fl60 {budget}", METHODS, data={"name": "fl60"}, budget=budget)
    bench.compare("fl60 unscaled", BOTH, data={"name": "fl60"}, budget="native", settings={"scaled": False})
    for split, budget in (("random", "native"), ("random", "equal"), ("chronological", "equal")):
        data = {"name": "tpt48", "split": split}
        bench.compare(f"tpt48 {split} {budget}", METHODS, data=data, budget=budget, beside=told)
    for split in ("random", "chronological"):  # a round of the pooled model is 48 clients' worth of steps
        data = {"name": "tpt48", "split": split}
        bench.compare(f"tpt48 {split} pooled", ["fedavg"], data=data, beside=["pooled"], rounds=30, seeds=3)


def novel(bench: Bench) -> None:
    for name, data in DATA.items():
        bench.compare(name, METHODS, data=data, participation={"novel": 0.2})


def attack(bench: Bench) -> None:
    """Labels drawn uniformly from all classes, once a run; and, as a control, attackers who send nothing."""
    for ratio in (0.4, 0.0, 0.1, 0.2, 0.3, 0.5):
        bench.compare(f"{ratio:.0%}", METHODS, **lies(ratio))
        for name, settings in ADAM.items() if ratio in (0.0, 0.4, 0.5) else ():
            bench.compare(f"{ratio:.0%} {name}", BOTH, settings=settings, **lies(ratio))
        if f"{ratio:.0%}" in bench.cells:
            bench.cells[f"{ratio:.0%}"].append(averaged(bench.out / f"{ratio:.0%}"))
    for source in ("complete", "permuted", "empty"):
        bench.compare(f"40% graph {source}", BOTH, graph={"source": source}, **lies(0.4))
    bench.compare("40% skip", BOTH, settings={"skip": True}, **lies(0.4))
    bench.compare("40% silent", METHODS, **lies(0.4, "silent"))


def averaged(folder: Path) -> dict[str, Any]:
    """Separate, and at the end every model averaged with its neighbours' on the graph, once: no learning together."""
    runs, scores = [fedkin.Run(path.parent) for path in sorted(folder.glob("separate-*/summary.json"))], []
    for run in runs:
        ready = start.assembled(run.resolved())
        A = ready.federation.graph
        rows = [load_file(run.model_file(name)) for name in ready.problem.names]
        fields = [field.name for field in ready.problem.layout.fields]
        W = torch.stack([torch.cat([row[name].flatten() for name in fields]) for row in rows])
        G = A.double() + torch.eye(len(A), dtype=torch.float64)
        found = evaluate(ready.execution, ready.test, mix(G / G.sum(1, keepdim=True), W), ready.problem.task.metric)
        scores.append(dict(zip(ready.problem.names, found.tolist(), strict=True)))
    last = mean([mean(list(each.values())) for each in scores])
    return {"row": "separate, averaged over the graph", "headline": False, "last": last, **sides(runs, scores)}


def graphs(bench: Bench) -> None:
    data = {"fl60": DATA["fl60"], "tpt48 random": DATA["tpt48 random"]}
    data["digits practical"] = {"name": "digits", "split": "practical"}
    for name, each in data.items():
        for source in ("given", "inferred", "permuted") if name == "fl60" else ("given", "inferred"):
            bench.compare(f"{name} {source}", BOTH, data=each, graph={"source": source}, seeds=3)
    for source in ("given", "inferred"):
        bench.compare(f"fl60 40% {source}", BOTH, graph={"source": source}, **lies(0.4))


def sizes(bench: Bench) -> None:
    """The larger ones are for a GPU: --only FL-480 --device cuda."""
    for clients in (30, 60, 120, 240, 480):
        data = {"name": "fl60", "clients": clients, "settings": {"variant": "generated"}}
        bench.compare(f"FL-{clients} clean", BOTH, data=data)
        bench.compare(f"FL-{clients} novel", BOTH, data=data, participation={"novel": 0.2})
        bench.compare(f"FL-{clients} 40%", BOTH, **(lies(0.4) | {"data": data}))


def tuned(bench: Bench) -> None:
    """Each grid on seed 0; the chosen values on all seeds. Rates that differ from method to method have no common grid:
    these are all that was tried."""
    for name, (method, data, grid, more) in GRIDS.items():
        if bench.only not in name:
            continue
        found = fedkin.tune(
            {"method": method, "data": data, "rounds": bench.rounds, "device": bench.device, **more},
            grid=grid,
            out=bench.out / f"grid-{name.replace(' ', '-')}",
        )
        chosen: dict[str, Any] = dict(more)
        for key, value in found.values.items():
            table, _, setting = key.partition(".")
            chosen[table] = {**chosen.get(table, {}), setting: value}
        bench.compare(name, [method], data=data, **chosen)
        for row in bench.cells[name]:
            row["chosen"], row["grid"] = found.values, grid


def inferred(bench: Bench) -> None:
    """Against the given graph, or the known groups; the rule and its numbers were chosen on the same data."""
    for name, (data, more) in INFERRED.items():
        if bench.only not in name:
            continue
        found: dict[str, list[float]] = {"precision": [], "recall": [], "degree": [], "chance": []}
        for seed in range(bench.seeds):
            ready = start.prepare(
                method="panacea", data=data, seed=seed, device="cpu", graph={"source": "inferred"}, **more
            )
            true = related(ready, fedkin.load(**data, seed=seed))
            drawn, pairs = inferred_graph.graph(ready) > 0, ~torch.eye(len(true), dtype=torch.bool)
            found["precision"].append(float(true[drawn].double().mean()))
            found["recall"].append(float(drawn[true].double().mean()))
            found["degree"].append(float(drawn.sum(1).double().mean()))
            found["chance"].append(float(true[pairs].double().mean()))
        bench.cells[name] = [{"row": key, "headline": False, "best": mean(values)} for key, values in found.items()]


def related(ready: Assembly, federation: fedkin.Federation) -> torch.Tensor:
    """(m, m) who is of one known group, or has an edge in the given graph."""
    if federation.groups is not None and ready.problem.groups is not None:
        return (ready.problem.groups[:, None] == ready.problem.groups).fill_diagonal_(False)
    order = [federation.names.index(name) for name in ready.problem.names]
    return federation.graph[order][:, order] > 0


BOTH = ["panacea", "panacea_gn"]
GRIDS: dict[str, tuple[str, dict[str, Any], dict[str, list[Any]], dict[str, Any]]] = {
    "tpt48 random fedavg": (
        "fedavg",
        {"name": "tpt48", "split": "random"},
        {"local.lr": [0.1, 0.2, 0.5], "local.epochs": [1, 4]},
        {"local": {"optimiser": "sgd"}},
    ),
    "tpt48 chronological fedavg": (
        "fedavg",
        {"name": "tpt48", "split": "chronological"},
        {"local.lr": [0.1, 0.2, 0.5], "local.epochs": [1, 4]},
        {"local": {"optimiser": "sgd"}},
    ),
    "fl60 perfedavg": (
        "perfedavg",
        {"name": "fl60"},
        {"settings.alpha": [0.1, 0.3], "settings.beta": [0.1, 0.3]},
        {},
    ),
    "fl60 pfedme": (
        "pfedme",
        {"name": "fl60"},
        {"settings.strength": [0.1, 1.0, 15.0], "settings.eta": [0.005, 0.05]},
        {},
    ),
}
LIES = {"labels": 1.0, "clients": 0.4, "kind": "random"}
INFERRED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "FL-60": ({"name": "fl60"}, {}),
    "FL-60, 40 % of the clients with random labels": ({"name": "fl60"}, {"corruption": LIES}),
    "TPT-48, random split": ({"name": "tpt48", "split": "random"}, {}),
    "digits, practical": ({"name": "digits", "split": "practical"}, {}),
    "digits, practical, 40 % of the clients with random labels": (
        {"name": "digits", "split": "practical"},
        {"corruption": LIES},
    ),
}
DATA = {"fl60": {"name": "fl60"}, "tpt48 random": {"name": "tpt48", "split": "random"}}
ADAM = {
    "adam": {"server_optimiser": "adam", "server_lr": 1e-3},
    "adam 5 steps": {"server_optimiser": "adam", "server_lr": 1e-3, "server_steps": 5},
}
STUDIES: dict[str, Callable[[Bench], None]] = {
    f.__name__: f for f in (tables, novel, attack, graphs, sizes, tuned, inferred)
}


def lies(ratio: float, kind: str = "random") -> dict[str, Any]:
    corruption = {"labels": 1.0, "clients": ratio, "kind": kind}
    return {"data": {"name": "fl60"}, "corruption": corruption}


# ---- what they came to ----


def measured(results: fedkin.Results) -> Rows:
    """A row for each `method:model`, and for each reference."""
    rows: Rows = []
    for each in results.rows():
        row = at_best(each, results.findings.seeds(each))
        runs = [run for run in results.runs if run.summary["method"] == row.method]
        last = [line(run, row.model) for run in runs]
        rows.append(
            {
                "row": row.name,
                "headline": row.headline,
                "best": row.bmta,
                "std_clients": row.std_clients,
                "std_seeds": row.std_seeds,
                "last": row.last,
                "validated": row.validated,
                "rounds": {k: mean([at(run, row.model, k) for run in runs]) for k in CURVE},
                **sides(runs, last),
                **newcomers(runs, row.model),
                "seconds_a_round": mean([run.summary["seconds"] / run.summary["rounds"] for run in runs]),
            }
        )
    named = {row["row"] for row in rows}
    for run in results.runs:  # models that newcomers alone have
        for model in (run.summary.get("novel") or {}).get("models", {}):
            name = f"{run.summary['method']}:{model}"
            if name not in named:
                named.add(name)
                runs = [r for r in results.runs if r.summary["method"] == run.summary["method"]]
                rows.append({"row": name, "headline": False, **newcomers(runs, model)})
    for found in references.rows(results.references()):
        spread = {"std_clients": found.std_clients, "std_seeds": found.std_seeds}
        rows.append({"row": found.name, "headline": False, "best": found.mean, "last": found.last, **spread})
    return rows


def line(run: fedkin.Run, model: str) -> dict[str, float]:
    """{client: score} of the closing exchange."""
    final = next(each for each in reversed(run.rounds) if each.get("final"))
    return dict(zip(run.summary["clients"], final["models"][model]["clients"], strict=True))


def at(run: fedkin.Run, model: str, round: int) -> float | None:
    found = [each for each in run.rounds if each["round"] == round and not each.get("novel")]
    return found[0]["models"][model]["mean"] if found else None


def sides(runs: Sequence[fedkin.Run], last: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """At the end: the means over benign and over attacked clients, and of the attacked the lowest and highest seed."""
    means: dict[str, list[float]] = {"benign": [], "attacked": []}
    for run, scores in zip(runs, last, strict=True):
        hit = set(run.summary["corrupted"])
        for side, inside in (("benign", False), ("attacked", True)):
            chosen = [score for name, score in scores.items() if (name in hit) is inside]
            if chosen:
                means[side].append(float(np.mean(chosen)))
    if not means["attacked"]:
        return {}
    spread = [min(means["attacked"]), max(means["attacked"])]
    return {side: mean(values) for side, values in means.items()} | {"attacked_range": spread}


def newcomers(runs: Sequence[fedkin.Run], model: str) -> dict[str, Any]:
    held = [(run.summary.get("novel") or {}).get("models", {}).get(model) for run in runs]
    if not all(held):
        return {}
    means = [each["mean"] for each in held]
    spread = float(np.std(means, ddof=1)) if len(means) > 1 else None
    return {"novel": mean(means), "novel_std_clients": mean([each["std"] for each in held]), "novel_std_seeds": spread}


def mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def table(rows: Rows) -> str:
    """As Markdown."""
    keys = ["best", "std_clients", "std_seeds", "last", "benign", "attacked", "novel", "novel_std_clients"]
    shown = [key for key in keys if any(row.get(key) is not None for row in rows)]
    lines = [f"| row | {' | '.join(shown)} | at {', '.join(map(str, CURVE))} |", "|---|" + "---|" * (len(shown) + 1)]
    for row in rows:
        cells = ["" if row.get(key) is None else f"{row[key]:.4g}" for key in shown]
        curve = ", ".join("" if v is None else f"{v:.3g}" for v in row.get("rounds", {}).values())
        name = f"**{row['row']}**" if row["headline"] else row["row"]
        lines.append(f"| {name} | {' | '.join(cells)} | {curve} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
