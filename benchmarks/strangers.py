"""Tables that nobody prepared FedAMP for: which silos are worse off than alone, and do those with kin gain?

    python benchmarks/strangers.py                        all worlds, four seeds, under two minutes
    python benchmarks/strangers.py --only units,directions --seeds 12 --settings rounds=100

In each world silos called kin agree, and the others differ in part or in everything. FedAMP with its defaults beside
Separate, in the rounds that validation data choose, in points of accuracy or per cent of RMSE; above 0 is better. It
prints a table and keeps nothing: these worlds were found by people who tried to break trust in others, and are here to
be tried again.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets

import fedkin

Silos = dict[str, tuple[Any, Any]]
LETTERS = np.array(list("abcdefghij"))


def renamed() -> Silos:
    """Digits; six silos give some of the ten classes each other's names."""
    source, (x, y) = np.random.default_rng(1), datasets.load_digits(return_X_y=True)
    x, order = x[:, x.std(0) > 0.5], source.permutation(len(y))
    silos: Silos = {}
    for i in range(14):
        part = order[110 * i : 110 * (i + 1)]
        names = np.arange(10)
        if i >= 8:
            some = source.permutation(10)[: [2, 3, 4, 5, 7, 10][i - 8]]
            names[some] = np.roll(some, 1)
        silos[f"kin{i}" if i < 8 else f"renamed{len(some)}"] = (x[part], LETTERS[names[y[part]]])
    return silos


def permuted() -> Silos:
    """Iris; every silo has another permutation of the three classes."""
    x, y = datasets.load_iris(return_X_y=True)
    order = np.random.default_rng(7).permutation(150)
    return {
        "".join(map(str, names)): (x[order[i::6]], LETTERS[np.array(names)[y[order[i::6]]]])
        for i, names in enumerate(itertools.permutations(range(3)))
    }


def rare() -> Silos:
    """Three in ten are positive; three loners have directions of their own."""
    return {
        name: (x, np.where(at > np.quantile(at, 0.7), "yes", "no"))
        for name, (x, at) in directed([[1.5, 1, -1, 0.5, 0, 0]] * 6, 200, LONERS).items()
    }


LONERS = {"contrary": [-1.5, -1, 1, -0.5, 0, 0], "other": [0, 0, 0, 0, 1.5, 1.5], "third": [0, -1.5, 0, 1, 0, -1.0]}


def directions() -> Silos:
    """Numbers; four silos have one direction, eight others have eight that are orthogonal to it and to each other."""
    found = np.linalg.qr(np.random.default_rng(31).normal(size=(12, 12)))[0]
    return directed([found[0]] * 4, 100, {f"lone{i}": found[i] for i in range(1, 9)}, noise=0.4)


def units() -> Silos:
    """Numbers; seven silos that have another unit, origin, sign or scale."""
    silos = directed([[1, -0.8, 0.6, 0.5, -0.4, 0.3, 0, 0]] * 8, 60, {})
    more = directed([[1, -0.8, 0.6, 0.5, -0.4, 0.3, 0, 0]] * 6, 60, {}, start=20)
    changes: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
        "double": lambda x, y: (x, 2 * y),
        "half": lambda x, y: (x, y / 2),
        "origin": lambda x, y: (x, y + 3),
        "sign": lambda x, y: (x, -y),
        "scale": lambda x, y: (3 * x, y),
        "shift": lambda x, y: (x + 2, y),
    }
    return silos | {name: change(*own) for (name, change), own in zip(changes.items(), more.values(), strict=True)}


def directed(kin: list[Any], rows: int, others: dict[str, Any], noise: float = 0.3, start: int = 0) -> Silos:
    """Silos whose targets are inputs along a direction, and noise."""
    silos: Silos = {}
    for i, (name, direction) in enumerate({**{f"kin{j}": each for j, each in enumerate(kin)}, **others}.items()):
        source = np.random.default_rng(start + i)
        x = source.normal(size=(rows, len(direction)))
        silos[name] = (x, np.round(x @ np.array(direction) + noise * source.normal(size=rows), 4))
    return silos


WORLDS = {f.__name__: f for f in (renamed, permuted, rare, directions, units)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(WORLDS), help="worlds, separated by commas")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--method", default="fedamp")
    parser.add_argument("--settings", default="", help="more, such as rounds=100,local.lr=0.01")
    options = parser.parse_args()
    print("| world | kin | others | hurt by more than 10 | worst |\n|---|---|---|---|---|")
    for name in options.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            print(row(name, Path(folder), options), flush=True)


def row(name: str, folder: Path, options: argparse.Namespace) -> str:
    table = folder / f"{name}.csv"
    parts = [pd.DataFrame(x).add_prefix("f").assign(y=y, silo=silo) for silo, (x, y) in WORLDS[name]().items()]
    pd.concat(parts).to_csv(table, index=False)
    config: dict[str, Any] = {"data": {"name": str(table)}, "table": {"client": "silo", "target": "y"}}
    for setting in filter(None, options.settings.split(",")):
        key, value = setting.split("=")
        place = config
        *path, last = key.split(".")
        for part in path:
            place = place.setdefault(part, {})
        place[last] = float(value) if "." in value else int(value)
    results = fedkin.compare(config, methods=["separate", options.method], seeds=options.seeds, out=folder / "runs")
    rows = {row.method: row for row in results.rows() if row.headline}
    clients = results.runs[0].summary.clients
    alone, joined = (
        np.array([[seed.at_chosen[name] for name in clients] for seed in results.findings.seeds(rows[method])])
        for method in ("separate", options.method)
    )
    gain = 100 * ((alone - joined) / alone if name in ("directions", "units") else joined - alone)
    kin = np.array([silo.startswith("kin") for silo in clients])
    others = gain[:, ~kin]
    at = np.unravel_index(np.argmin(others), others.shape)
    who = np.array(clients)[~kin][at[1]]
    mean = f"{gain[:, kin].mean():+.1f}" if kin.any() else ""
    hurt = f"{(others < -10).sum()} of {others.size}"
    return f"| {name} | {mean} | {others.mean():+.1f} | {hurt} | {others.min():+.0f}, {who} |"


if __name__ == "__main__":
    main()
