"""At which weight and of which kind does Panacea's graph generator draw the graph, and what is that worth on FL-60?

    python benchmarks/generator.py search     kinds and weights on seeds 100 to 102, scored on validation data
    python benchmarks/generator.py study      five other seeds: generator x server, with and without attackers
    python benchmarks/generator.py page       the tables of docs/panacea.md, from the JSON alone

Each of the first two runs what is missing in runs/generator, two cells at a time, and writes its part of
benchmarks/results/panacea-generator.json. The search takes two minutes of two cores, the study eight; `seconds`
are those of all runs together. Attackers' validation labels are lies as well, so the search looks at the benign
clients' alone.

Edge loss: the cross-entropy between the graph and what the generator makes of it after the last round, the mean over
all pairs whatever the balance in training. Guessing is the entropy of the edges' frequency: what is below it has learnt
which pairs are related. AUC: the chance that an edge is given a larger logit than a pair without.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

import fedkin
from fedkin.engines import start, summary
from fedkin.maths.hypernetworks import generator_loss
from fedkin.methods.panacea import Panacea
from fedkin.runs.checkpoint import Checkpoint
from fedkin.runs.folder import Writer

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "panacea-generator.json"
PAGE = HERE.parent / "docs" / "panacea.md"
Found = dict[str, Any]

SEARCHED, STUDIED = (100, 101, 102), (0, 1, 2, 3, 4)
WEIGHTS = (0.1, 1, 3, 10, 30)
SERVERS: dict[str, Found] = {
    "SGD 0.01": {"server_optimiser": "sgd", "server_lr": 0.01, "server_steps": 1},
    "SGD 0.015": {"server_optimiser": "sgd", "server_lr": 0.015, "server_steps": 1},
    "SGD 0.02": {"server_optimiser": "sgd", "server_lr": 0.02, "server_steps": 1},
    "SGD 0.03": {"server_optimiser": "sgd", "server_lr": 0.03, "server_steps": 1},
    "Adam 0.001": {"server_optimiser": "adam", "server_lr": 1e-3, "server_steps": 1},
    "Adam 0.001, 5 steps": {"server_optimiser": "adam", "server_lr": 1e-3, "server_steps": 5},
}
KINDS: dict[str, Found] = {
    "own": {"generator": "own", "balance": "none"},
    "own, balanced": {"generator": "own", "balance": "grda"},
    "identity": {"generator": "identity", "balance": "none"},
    "shared": {"generator": "shared", "balance": "none"},
}
FL60 = {"name": "fl60"}
TPT48 = {"name": "tpt48", "split": "random"}
EXPLODED = 10.0
"""Edge loss of a generator that has diverged: guessing by halves is 0.69."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["search", "study", "page"])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/generator"))
    options = parser.parse_args()
    found: Found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    if options.part != "page":
        with ProcessPoolExecutor(options.jobs) as pool:
            work = partial(measured, options.out / options.part)
            rows = list(pool.map(work, search() if options.part == "search" else study()))
        found[options.part] = {
            "command": f"python benchmarks/generator.py {options.part}",
            "machine": f"{os.cpu_count()} cores, {platform.machine()}",
            "versions": summary.versions(),
            "commit": summary.commit(),
            "seconds": round(sum(row["seconds"] for row in rows)),
            "rows": rows,
        }
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


# ---- what is run ----


def cell(server: str, kind: str, weight: float, seeds: Sequence[int], **more: Any) -> Found:
    """`more`: data, rounds, the share of attackers, that of newcomers."""
    base = {"data": FL60, "rounds": 150, "attackers": 0.0, "novel": 0.0}
    return base | {"server": server, "kind": kind, "weight": weight, "seeds": list(seeds)} | more


def search() -> list[Found]:
    """On FL-60 with its own server; and on TPT-48 with its, to see that what is found does no harm there."""
    kinds = [("none", 0.0), *((kind, weight) for kind in KINDS for weight in WEIGHTS)]
    fl60 = [cell("SGD 0.01", kind, weight, SEARCHED, attackers=0.4) for kind, weight in kinds]
    tpt48 = [
        cell("Adam 0.001, 5 steps", kind, weight, SEARCHED, data=TPT48)
        for kind, weight in (("none", 0), ("own", 0.1), ("own", 1), ("own", 10), ("identity", 10))
    ]
    return [*fl60, *tpt48]


GENERATORS = (("none", 0), ("own", 0.1), ("own", 10), ("identity", 1), ("identity", 10))
"""Of the study: Panacea-GN, and what the search made worth a look."""


def study() -> list[Found]:
    """SGD at 0.015 came last, when the other servers had been seen: is there a rate between that does as much?"""
    rows = []
    for server in ("SGD 0.01", "SGD 0.015", "SGD 0.02", "SGD 0.03", "Adam 0.001"):
        for kind, weight in GENERATORS:
            for attackers in (0.0, 0.4):
                for rounds in (50, 150):
                    rows.append(cell(server, kind, weight, STUDIED, rounds=rounds, attackers=attackers))
            rows.append(cell(server, kind, weight, STUDIED, rounds=50, novel=0.2))
    return rows


def measured(out: Path, row: Found) -> Found:
    """The cell with what its runs came to: means over seeds."""
    settings = dict(SERVERS[row["server"]])
    if row["weight"]:
        settings |= {**KINDS[row["kind"]], "generator_weight": row["weight"]}
    keys = ("server", "kind", "weight", "rounds", "attackers", "novel")
    name = "-".join(str(part) for part in (row["data"]["name"], *(row[key] for key in keys)))
    name = name.replace(" ", "").replace(",", "")
    print(name, file=sys.stderr)
    results = fedkin.compare(
        {
            "rounds": row["rounds"],
            "device": "cpu",
            "data": row["data"],
            "settings": settings,
            "corruption": {"labels": 1.0 if row["attackers"] else 0.0, "clients": row["attackers"], "kind": "random"},
            "participation": {"novel": row["novel"]},
        },
        methods=["panacea" if row["weight"] else "panacea_gn"],
        seeds=row["seeds"],
        out=out / name,
    )
    found = [scores(run) | (edges(run) if row["weight"] else {}) for run in results.runs]
    return {**row, "seconds": round(sum(run.summary["seconds"] for run in results.runs), 1), **means(found)}


def scores(run: fedkin.Run) -> Found:
    """Of the models that the server wrote, at the closing exchange; benign clients' validation data in round 50 too."""
    final = next(line for line in reversed(run.rounds) if line.get("final"))
    early = next(line for line in run.rounds if line["round"] == 50)
    hit, names = set(run.summary["corrupted"]), run.summary["clients"]
    own = dict(zip(names, final["models"]["generated"]["clients"], strict=True))
    attacked = [score for name, score in own.items() if name in hit]
    novel = run.summary.get("novel")
    return {
        "validation_50": validation(early, names, hit),
        "validation": validation(final, names, hit),
        "all": float(np.mean(list(own.values()))),
        "attacked": float(np.mean(attacked)) if attacked else None,
        "newcomers": novel["models"]["generated"]["mean"] if novel else None,
    }


def validation(line: Any, names: Sequence[str], hit: set[str]) -> float:
    kept = line["models"]["generated"]["validation"]["clients"]
    return float(np.mean([score for name, score in zip(names, kept, strict=True) if name not in hit]))


def edges(run: fedkin.Run) -> Found:
    """How well the generator draws the graph of the clients that it was trained with, after the last round."""
    ready = start.assembled(run.resolved())
    method, problem = ready.method, ready.known_problem()
    assert isinstance(method, Panacea) and problem.graph is not None
    server = Checkpoint.load(Writer(run.path).checkpoint, ready.config).states["server"]
    known = server.replace(embeddings=server.embeddings[: len(problem)])
    return drawn(method.edges(problem, known), problem.graph)


def drawn(logits: torch.Tensor, graph: torch.Tensor) -> Found:
    pairs = ~torch.eye(len(graph), dtype=torch.bool)
    edge, logit = (graph > 0)[pairs], logits[pairs]
    share = float(edge.double().mean())
    guessing = -share * math.log(share) - (1 - share) * math.log(1 - share)
    if not logit.isfinite().all():
        return {"edge_loss": None, "guessing": guessing, "auc": None}
    loss = float(generator_loss(logits.double(), graph))
    return {"edge_loss": loss, "guessing": guessing, "auc": float(roc_auc_score(edge.numpy(), logit.numpy()))}


def means(found: Sequence[Found]) -> Found:
    """Over seeds; None where a seed has none."""
    table: Found = {}
    for key in found[0]:
        values = [each[key] for each in found]
        missing = any(value is None or not math.isfinite(value) for value in values)
        table[key] = None if missing else round(float(np.mean(values)), 5)
    return table | {
        "lowest": {k: round(min(f[k] for f in found), 5) for k in ("all", "attacked") if table[k] is not None}
    }


# ---- the page ----


def rewritten(text: str, found: Found) -> str:
    """The page with the tables that the JSON makes."""
    for (name, make), part in zip(TABLES.items(), ("search", "study"), strict=True):
        if part not in found:
            continue
        begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        before, opened, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (opened and closed):
            raise SystemExit(f"{PAGE} has no markers {begin} and {end}.")
        text = f"{before}{begin}\n{make(found)}\n{end}{after}"
    return text


def markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(["| " + " | ".join(each) + " |" for each in [heads, ["---"] * len(heads), *lines]])


def number(value: float | None, digits: int = 2, factor: float = 1.0) -> str:
    return "" if value is None else f"{factor * value:.{digits}f}"


def named(row: Found) -> str:
    return f"{row['kind']}, {row['weight']:g}" if row["weight"] else "none (Panacea-GN)"


def beside(row: Found) -> list[str]:
    """Edge loss and AUC; a generator whose logits have exploded says so."""
    if not row["weight"]:
        return ["", ""]
    if row["edge_loss"] is None or row["edge_loss"] > EXPLODED:
        return ["diverged", ""]
    return [number(row["edge_loss"]), number(row["auc"])]


def searched(found: Found) -> str:
    lines = []
    for row in found["search"]["rows"]:
        tpt48 = row["data"]["name"] == "tpt48"
        unit = partial(number, digits=2, factor=1e3) if tpt48 else partial(number, digits=1, factor=100)
        loss, auc = beside(row)
        told = [loss, number(row.get("guessing")), auc, unit(row["validation_50"]), unit(row["validation"])]
        lines.append(["TPT-48" if tpt48 else "FL-60, 40 % attacked", named(row), *told])
    return markdown(["", "generator, weight", "edge loss", "guessing", "AUC", "validation at 50", "at 150"], lines)


def studied(found: Found) -> str:
    keys = ("server", "kind", "weight", "attackers", "novel", "rounds")
    rows = {tuple(row[key] for key in keys): row for row in found["study"]["rows"]}
    lines = []
    for key in dict.fromkeys(key[:3] for key in rows):
        early, late, lied, end = (rows[*key, share, 0.0, k] for share in (0.0, 0.4) for k in (50, 150))
        lines.append(
            [
                key[0],
                named(early),
                " / ".join(filter(None, [beside(early)[0], beside(late)[0]])),
                " / ".join(filter(None, [beside(early)[1], beside(late)[1]])),
                *(number(row["all"], 1, 100) for row in (early, late)),
                number(rows[*key, 0.0, 0.2, 50]["newcomers"], 1, 100),
                *(" / ".join(number(row[side], 1, 100) for side in ("all", "attacked")) for row in (lied, end)),
                number(end["lowest"].get("attacked"), 1, 100),
            ]
        )
    heads = ["server", "generator, weight", "edge loss at 50 / 150", "AUC", "at 50", "at 150", "newcomers at 50"]
    heads += ["40 %: all / attacked at 50", "at 150", "worst seed, attacked"]
    return markdown(heads, lines)


TABLES = {"generator search": searched, "generator study": studied}


if __name__ == "__main__":
    main()
