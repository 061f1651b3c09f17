"""Panacea's linear theory: risk against the share of attacked clients, by formula and by random draws.

    python benchmarks/panacea_theory.py                 two minutes on one core

Needs the files of fl60 and tpt48 (`fedkin data list` says where). For each graph, depth and number of attacked clients:
means over random choices of whom, of the formulas and of random W*, V* and V0, each learnt to the end. Writes
benchmarks/results/panacea-theory.json and docs/images/panacea-theory.png; the numbers in docs/panacea-theory.md come
from it.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.base import streams
from fedkin.data import files
from fedkin.engines import summary
from fedkin.maths.theory import aggregation, consistent, drawn_risks, expected_risk

D, K = 20, 4
LAYERS = (1, 2, 3)
KINDS = ("pfedhn", "panacea", "panacea consistent")
SHARES = [i / 10 for i in range(1, 10)]
HERE = Path(__file__).parent
COLOURS = {
    "empty": "#7a828c",
    "star": "#cc79a7",
    "ring": "#e69f00",
    "TPT-48": "#0072b2",
    "FL-60": "#009e73",
    "clique": "#1f2933",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--choices", type=int, default=100, help="of the attacked clients, for each share")
    parser.add_argument("--draws", type=int, default=20, help="for each choice")
    options = parser.parse_args()
    began = time.perf_counter()
    rows = []
    for name, A in graphs().items():
        for layers in LAYERS:
            for share in SHARES:
                m = min(round(share * len(A)), len(A) - K)  # the theorems' premise: n - m >= k
                row = risks(name, A, layers, m, options.choices, options.draws)
                rows.append({"graph": name, "clients": len(A), "layers": layers, "attacked": m, **row})
            half = rows[-5]  # at a share of one half
            cells = (f"{kind} {half[kind]['formula']:.3g}, drawn {half[kind]['drawn']:.3g}" for kind in KINDS)
            print(f"{name}, L = {layers}, {half['attacked']} attacked: {'; '.join(cells)}", flush=True)
    record = {
        "command": f"python benchmarks/panacea_theory.py --choices {options.choices} --draws {options.draws}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": summary.versions(),
        "commit": summary.commit(),
        "seconds": round(time.perf_counter() - began, 1),
        "d": D,
        "k": K,
        "rows": rows,
    }
    (HERE / "results" / "panacea-theory.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    draw(rows, HERE.parent / "docs" / "images" / "panacea-theory.png")


def graphs() -> dict[str, Tensor]:
    """Adjacency matrices (n, n)."""
    n = 60
    try:
        fl60, tpt48 = files.need("fl60"), files.need("tpt48")
    except files.DataError as error:
        raise SystemExit(str(error)) from None
    with tpt48["state_adjacency.csv"].open(newline="", encoding="utf-8") as lines:
        borders = list(csv.reader(lines))[1:]
    states = sorted({state for border in borders for state in border})
    return {
        "empty": edges(n, []),
        "star": edges(n, [(0, leaf) for leaf in range(1, n)]),
        "ring": edges(n, [(i, (i + 1) % n) for i in range(n)]),
        "TPT-48": edges(len(states), [(states.index(a), states.index(b)) for a, b in borders]),
        "FL-60": torch.as_tensor(np.load(fl60["dg60.npz"], allow_pickle=False)["adjacency"], dtype=torch.float64),
        "clique": edges(n, [(i, j) for i in range(n) for j in range(i)]),
    }


def edges(n: int, pairs: list[tuple[int, int]]) -> Tensor:
    A = torch.zeros(n, n, dtype=torch.float64)
    for i, j in pairs:
        A[i, j] = A[j, i] = 1
    return A


def risks(name: str, A: Tensor, layers: int, m: int, choices: int, draws: int) -> dict[str, Any]:
    """Of pFedHN; of Panacea with independent and with consistent V*; `zero`: of weights of zero, V* independent."""
    n = len(A)
    rng = streams.generator("panacea theory", name, layers, m)
    G, alone = aggregation(A, layers), torch.eye(n, dtype=torch.float64)
    cases = list(zip(KINDS, ((alone, None), (G, None), (G, consistent(A))), strict=True))
    formulas: dict[str, list[float]] = {kind: [] for kind in KINDS}
    errors: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    sizes = []
    for _ in range(choices):
        attacked = torch.zeros(n, dtype=torch.bool)
        attacked[torch.randperm(n, generator=rng)[:m]] = True
        sizes.append(D * K / n * G[:, attacked].square().sum().item())
        for kind, (matrix, R) in cases:
            formulas[kind].append(expected_risk(matrix, attacked, D, K, R))
            errors[kind].append(drawn_risks(matrix, attacked, D, K, draws, rng, R) - formulas[kind][-1])
    answer: dict[str, Any] = {}
    for kind, formula in formulas.items():
        error = torch.cat(errors[kind])
        answer[kind] = {
            "formula": fmean(formula),
            "drawn": fmean(formula) + error.mean().item(),
            "standard error": error.std().item() / len(error) ** 0.5,
            "over choices": [min(formula), max(formula)],
        }
    return {**answer, "zero": fmean(sizes)}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Three panels: the risk; the risk beside the size of what is asked for; how far the paper's formula is off."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import PercentFormatter

    def column(graph: str, layers: int, kind: str, which: str = "formula") -> Any:
        chosen = [row for row in rows if row["graph"] == graph and row["layers"] == layers]
        return np.array([row[kind][which] if kind != "zero" else row[kind] for row in chosen])

    ink, size = "#444444", {"lw": 1.8}
    with rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(11.5, 4.3), layout="constrained")
        risk, relative, off = figure.subplots(1, 3)
        for graph, colour in COLOURS.items():
            shares = [row["attacked"] / row["clients"] for row in rows if (row["graph"], row["layers"]) == (graph, 1)]
            risk.plot(shares, column(graph, 1, "panacea") / (2 * D * K), color=colour, **size)
            risk.plot(shares, column(graph, 1, "panacea", "drawn") / (2 * D * K), "o", color=colour, ms=4)
            for layers, line in ((1, "-"), (3, ":")):
                if graph != "clique":  # zero, up to rounding
                    asked = column(graph, layers, "zero")
                    relative.plot(shares, column(graph, layers, "panacea") / asked, line, color=colour, **size)
                    relative.plot(shares, column(graph, layers, "panacea", "drawn") / asked, "o", color=colour, ms=3)
                if graph not in ("clique", "empty"):
                    ratio = column(graph, layers, "panacea consistent") / column(graph, layers, "panacea")
                    off.plot(shares, ratio, line, color=colour, **size)
        risk.text(0.58, 0.66, "pFedHN", color=COLOURS["empty"], ha="right")
        risk.set_title("Risk with one layer, in units of 2dk", loc="left")
        relative.axhline(1, color=ink, lw=0.8)
        relative.text(0.1, 1.05, "weights of zero do as well", color=ink, va="bottom")
        relative.text(0.1, 1.95, "pFedHN", color=COLOURS["empty"], va="top")
        relative.set_title("Risk / size of the weights asked for", loc="left")
        off.axhline(1, color=ink, lw=0.8)
        off.text(0.1, 1.02, "the paper's formula", color=ink, va="bottom")
        off.set_ylim(bottom=0)
        off.set_title("True risk / formula, where V*G = V*", loc="left")
        lines = [Line2D([], [], color=ink, ls=line, lw=1.5) for line in ("-", ":")]
        for axes, corner in ((relative, (0.0, 0.76)), (off, (0.0, 0.84))):
            axes.legend(lines, ["one layer", "three layers"], frameon=False, loc=corner)
        for axes in (risk, relative, off):
            axes.set_xlabel("share of clients attacked")
            axes.set_xticks(SHARES[::2])
            axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            axes.grid(axis="y", color="#e3e6ea", lw=0.6)
        keys = [Line2D([], [], color=colour, marker="o", ms=4, **size) for colour in COLOURS.values()]
        names = ["no edges" if graph == "empty" else graph for graph in COLOURS]
        figure.legend(keys, names, loc="outside upper center", ncols=len(keys), frameon=False)
        figure.savefig(path, dpi=160)


if __name__ == "__main__":
    main()
