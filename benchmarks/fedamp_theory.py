"""FedAMP's Theorems 1 and 2: how fast theory mode gets to the minimum, with constant and with falling steps.

    python benchmarks/fedamp_theory.py                 runs, table and picture; a minute on one core
    python benchmarks/fedamp_theory.py page            table and picture anew from what is kept

The problems and the iteration are those of tests/claims/test_theorems.py, and three more. Writes
benchmarks/results/fedamp-theory.json, docs/images/fedamp-theory.png and the tables of docs/fedamp-theory.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedkin.engines import summary
from fedkin.maths.attention import NegativeExponential, TamedSquareRoot

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from claims.test_theorems import (  # noqa: E402
    LogisticRegression,
    Objective,
    Quadratics,
    constant,
    diminishing,
    drawn,
    gradient,
    iterate,
    largest_gradient,
)

ROUNDS = (16, 64, 256, 1024, 4096)
STARTS = 9
"""Further starts of the solver where a problem may have several minima."""
NOISE = 1e-12
"""Below this, differences of G are rounding."""
RESULTS = HERE / "results" / "fedamp-theory.json"
PAGE = HERE.parent / "docs" / "fedamp-theory.md"
PICTURE = HERE.parent / "docs" / "images" / "fedamp-theory.png"
COLOURS = ("#0072b2", "#e69f00", "#009e73")
Found = dict[str, Any]


# ---- the problems ----


class Unregularised(LogisticRegression):
    """Eight clients, no ridge: gradients are bounded everywhere, as Assumption 1 asks, and G is not strongly convex."""

    ridge = 0.0


class Flat:
    """Ten clients with one wish c, F_i(w) = ||w - c||^p / p: convex, flat at c. All start on the same side of it."""

    p = 10

    def __init__(self, m: int = 10, d: int = 4) -> None:
        generator = torch.Generator().manual_seed(4)
        self.centre = drawn(generator, d)
        self.start = self.centre + 0.6 + drawn(generator, m, d) / 10

    def loss(self, W: Tensor) -> Tensor:
        return (W - self.centre).square().sum(-1).pow(self.p / 2).sum(-1) / self.p

    def prox(self, U: Tensor, beta: float) -> Tensor:
        """On the way from u to c, where r^(p - 1) + (r - |u - c|) / beta = 0: Newton's method from above."""
        away = U - self.centre
        most = away.norm(dim=1)
        r = most
        for _ in range(100):
            move = (beta * r ** (self.p - 1) + r - most) / (beta * (self.p - 1) * r ** (self.p - 2) + 1)
            r = r - move
            if move.abs().max() < 1e-15:
                return self.centre + away * (r / most.clamp_min(1e-300))[:, None]
        raise AssertionError("Newton's method did not converge in 100 steps")


class Neurons:
    """Six clients in two groups, 40 samples each: F_i(w) = mean of (y - tanh(w x))^2 / 2, which is not convex."""

    def __init__(self, m: int = 6, d: int = 3, samples: int = 40) -> None:
        generator = torch.Generator().manual_seed(5)
        truth = 2 * drawn(generator, 2, d)[torch.arange(m) % 2]
        self.inputs = drawn(generator, m, samples, d)
        clean = (self.inputs @ truth[:, :, None])[:, :, 0].tanh()
        self.targets = (clean + 0.3 * drawn(generator, m, samples)).clamp(-1, 1)
        self.start = drawn(generator, m, d)

    @property
    def lipschitz(self) -> float:
        """|tanh'| <= 1, |tanh''| <= 4 / (3 sqrt 3), errors are at most 2."""
        moments = self.inputs.mT @ self.inputs / self.inputs.shape[1]
        return (1 + 8 / (3 * 3**0.5)) * torch.linalg.eigvalsh(moments).max().item()

    def loss(self, W: Tensor) -> Tensor:
        said = torch.einsum("ina,...ia->...in", self.inputs, W).tanh()
        return (self.targets - said).square().mean(-1).sum(-1) / 2

    def prox(self, U: Tensor, beta: float) -> Tensor:
        """Newton's method to 1e-12; that the second derivative is positive says that it is a minimum."""
        W, (samples, d) = U, self.inputs.shape[1:]
        for _ in range(100):
            said = (self.inputs @ W[:, :, None]).tanh()
            error, slope = self.targets[:, :, None] - said, 1 - said**2
            down = -(error * slope * self.inputs).sum(1) / samples + (W - U) / beta
            bend = self.inputs.mT @ ((slope**2 + 2 * error * said * slope) * self.inputs) / samples
            bend = bend + torch.eye(d, dtype=W.dtype) / beta
            assert torch.linalg.eigvalsh(bend).min() > 0
            if down.abs().max() < 1e-12:
                return W
            W = W - torch.linalg.solve(bend, down)
        raise AssertionError("Newton's method did not converge in 100 steps")


@dataclass(frozen=True)
class Case:
    """A problem, and what is known of it."""

    name: str
    G: Objective
    minimum: Callable[[Objective], tuple[float, Tensor]]
    """G* and W*, by something that is not FedAMP."""


def solved(G: Objective) -> tuple[float, Tensor]:
    return G.minimum()


def solved_from_many(G: Objective) -> tuple[float, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return G.minimum([3 * drawn(generator, *G.problem.start.shape) for _ in range(STARTS)])


def on_paper(G: Objective) -> tuple[float, Tensor]:
    """All at c: both parts of G are zero there."""
    assert isinstance(G.problem, Flat)
    return 0.0, G.problem.centre.expand_as(G.problem.start)


def cases() -> dict[str, list[Case]]:
    quadratics, narrow = Quadratics(), NegativeExponential(4.0)
    return {
        "convex": [
            Case("least squares", Objective(quadratics, TamedSquareRoot(1.0)), solved),
            Case("logistic", Objective(Unregularised(), TamedSquareRoot(0.5), strength=0.5), solved),
            Case("flat", Objective(Flat(), TamedSquareRoot(1.0), strength=0.1), on_paper),
        ],
        "smooth": [
            Case("least squares", Objective(quadratics, narrow), solved_from_many),
            Case("neurons", Objective(Neurons(), NegativeExponential(1.0), strength=0.2), solved_from_many),
        ],
    }


# ---- the runs ----


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("all", "page"), default="all")
    if parser.parse_args().what == "all":
        RESULTS.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
    record = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables(record)), encoding="utf-8")
    draw(record)


def measured() -> Found:
    torch.set_default_dtype(torch.float64)
    began = time.perf_counter()
    record: Found = {
        "command": "python benchmarks/fedamp_theory.py",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": summary.versions(),
        "commit": summary.commit(),
        "rounds": list(ROUNDS),
        "falling": "alpha_k = lambda / (2 k^0.75)",
    }
    for theorem, of in cases().items():
        record[theorem] = [studied(case, theorem) for case in of]
    return {**record, "seconds": round(time.perf_counter() - began, 1)}


def studied(case: Case, theorem: str) -> Found:
    """Runs of every length with the theorem's step, one of the greatest length with falling steps."""
    G, (m, d) = case.G, case.G.problem.start.shape
    least, best = case.minimum(G)
    away = (G.problem.start - best).square().sum().item()
    steep = G.strength * m * 2 * G.c * G.attention.lipschitz  # lambda L_A
    found: Found = {
        "problem": case.name,
        "clients": m,
        "numbers a client": d,
        "lambda": G.strength,
        "G at the start": G(G.problem.start).item(),
        "G*": least,
        "gradient at W*": gradient(G, best).norm().item(),
        "|W0 - W*|^2": away,
        "lambda L_A": steep,
        "at": seen(max(ROUNDS)),
        "constant": [],
    }
    for rounds in ROUNDS:
        path = iterate(G, constant(G, rounds))
        B = largest_gradient(G, path)
        gaps, squares = along(G, path, least)
        row: Found = {"K": rounds, "B": B, "gap": min(gaps[:-1]), "squared gradient": min(squares[:-1])}
        if theorem == "convex":
            row["bound"] = (away + 5 * B**2) / math.sqrt(rounds)
            small_enough = rounds >= steep**2
            row["bound of the proximal gradient"] = (
                away * math.sqrt(rounds) / (2 * (rounds - 1)) if small_enough else None
            )
        else:
            L = max(G.problem.lipschitz, steep)  # type: ignore[attr-defined]
            row["L"] = L
            row["bound"] = (18 * gaps[0] + 360 * L * B**2) / math.sqrt(rounds) + 1152 * (L * B) ** 2 / rounds
        found["constant"].append(row)
    found["constant over rounds"] = traces(gaps, squares, found["at"])
    gaps, squares = along(G, iterate(G, diminishing(G, max(ROUNDS))), least)
    found["falling"] = [{"K": k, "gap": min(gaps[:k]), "squared gradient": min(squares[:k])} for k in ROUNDS]
    found["falling over rounds"] = traces(gaps, squares, found["at"])
    ends = found["constant"][-1], found["falling"][-1]
    print(f"{theorem}, {case.name}: gap {ends[0]['gap']:.2e} constant, {ends[1]['gap']:.2e} falling", flush=True)
    return found


def along(G: Objective, path: Tensor, least: float) -> tuple[list[float], list[float]]:
    """G(W^k) - G* and ||grad G(W^k)||^2, for k = 0, ..., K."""
    return (G(path) - least).tolist(), gradient(G, path).square().sum((1, 2)).tolist()


def seen(rounds: int) -> list[int]:
    """Rounds that are kept, evenly on a logarithmic scale."""
    return sorted({0, rounds, *(round(2 ** (i / 4)) for i in range(int(4 * math.log2(rounds))))})


def traces(gaps: list[float], squares: list[float], at: Iterable[int]) -> Found:
    at = list(at)
    return {"gap": [gaps[k] for k in at], "squared gradient": [squares[k] for k in at]}


# ---- the page ----


def tables(record: Found) -> dict[str, str]:
    made = {theorem: table(record[theorem], theorem) for theorem in ("convex", "smooth")}
    made["origin"] = (
        f"Measured by `{record['command']}`, {record['machine']}, torch {record['versions']['torch']}, commit "
        f"{record['commit']}, {record['seconds']:.0f} seconds."
    )
    return made


def table(of: list[Found], theorem: str) -> str:
    which = "gap" if theorem == "convex" else "squared gradient"
    what = "best G − G*" if theorem == "convex" else "smallest ‖∇G‖²"
    own = ["of the proximal gradient"] if theorem == "convex" else []
    lines = [["problem", "K", f"constant: {what}", "slope", "falling: the same", "slope", "the theorem's bound", *own]]
    lines.append(["---"] * len(lines[0]))
    for found in of:
        constants, fallings = (slopes(found[kind], which) for kind in ("constant", "falling"))
        for row, fall, first, second in zip(found["constant"], found["falling"], constants, fallings, strict=True):
            cells = [found["problem"], f"{row['K']:,}", told(row[which]), first, told(fall[which]), second]
            cells.append(told(row["bound"]))
            lines.append(cells + [told(row[f"bound {each}"]) for each in own])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def slope(rows: list[Found], which: str, i: int) -> float | None:
    """d log / d log K between the i-th K and the one before; none where there is only rounding."""
    if not i or rows[i][which] < NOISE:
        return None
    return math.log(rows[i][which] / rows[i - 1][which]) / math.log(rows[i]["K"] / rows[i - 1]["K"])


def slopes(rows: list[Found], which: str) -> list[str]:
    found = [slope(rows, which, i) for i in range(len(rows))]
    return ["" if each is None else f"{each:.2f}".replace("-", "−") for each in found]


def told(value: float | None) -> str:
    if value is None:
        return ""
    if value < NOISE:
        return "below 1e-12"
    return f"{value:.1e}" if value < 1e-2 else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def filled(page: str, made: Mapping[str, str]) -> str:
    """The page with what stands between <!-- name --> and <!-- end name --> made anew."""
    for name, content in made.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- end {name} -->)", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise SystemExit(f"The page has no place for {name}, or more than one.")
        page = pattern.sub(lambda match, content=content: match[1] + content + match[2], page)
    return page


def draw(record: Found) -> None:
    """Above the convex problems, below the others; left what runs of K rounds come to, right what runs go through."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    ink, line = "#444444", {"lw": 1.8}
    with rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(9.5, 7.2), layout="constrained")
        panels = figure.subplots(2, 2)
        for (ends, ways), theorem, which in zip(panels, ("convex", "smooth"), ("gap", "squared gradient"), strict=True):
            what = "G − G*" if theorem == "convex" else "‖∇G‖²"
            for found, colour in zip(record[theorem], COLOURS, strict=False):
                rounds = [row["K"] for row in found["constant"]]
                ends.plot(rounds, visible(row[which] for row in found["constant"]), "o-", color=colour, ms=4, **line)
                ends.plot(rounds, [row["bound"] for row in found["constant"]], "--", color=colour, lw=1)
                for kind, dash in (("constant", "-"), ("falling", ":")):
                    values = visible(found[f"{kind} over rounds"][which])
                    ways.plot([k + 1 for k in found["at"]], values, dash, color=colour, **line)
            theorem_name = "Theorem 1, convex" if theorem == "convex" else "Theorem 2, smooth"
            ends.set_title(f"{theorem_name}: smallest {what} of a run of K rounds", loc="left")
            ways.set_title(f"{what} along a run of {max(record['rounds']):,} rounds", loc="left")
            ends.set_xlabel("K, with step λ/√K")
            ways.set_xlabel("round + 1")
            keys = [Line2D([], [], color=colour, **line) for colour in COLOURS[: len(record[theorem])]]
            names = [found["problem"] for found in record[theorem]]
            bound = Line2D([], [], color=ink, ls="--", lw=1)
            ends.legend([*keys, bound], [*names, "bound"], frameon=False, loc="lower left")
            kinds = [Line2D([], [], color=ink, ls=dash, lw=1.5) for dash in ("-", ":")]
            ways.legend(kinds, ["constant step", "falling steps"], frameon=False, loc="lower left")
            for axes in (ends, ways):
                axes.set(xscale="log", yscale="log")
                axes.set_ylim(bottom=NOISE)
                axes.grid(axis="y", color="#e3e6ea", lw=0.6)
        figure.savefig(PICTURE, dpi=150, metadata={"Software": None})


def visible(values: Iterable[float]) -> list[float]:
    """What is more than rounding; the rest is left out of the picture."""
    return [value if value > NOISE else math.nan for value in values]


if __name__ == "__main__":
    main()
