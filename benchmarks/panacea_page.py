"""Rewrites the tables and the picture of docs/panacea.md from benchmarks/results/panacea-*.json and traffic.json.

python benchmarks/panacea_page.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from panacea import METHODS

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "panacea.md"
PICTURE = PAGE.parent / "images" / "panacea-attack.png"
Row = dict[str, Any]
# Panacea's paper, Tables 1 and 2: FL-60 in %, TPT-48 and METR-LA in 1e-3; known clients, and newcomers.
PAPER = {
    "fedavg:global": ("97.9 ± 9.7", "2.6 ± 0.9", "112.4 ± 43.2", "99.2 ± 2.9", "2.8 ± 1.0"),
    "fedavg:finetuned": ("100.0 ± 0.0", "2.6 ± 1.0", "20.0 ± 7.8", "100.0 ± 0.0", "2.8 ± 0.8"),
    "perfedavg:adapted": ("87.7 ± 24.2", "2.6 ± 0.9", "289.5 ± 89.9", "80.8 ± 22.3", "2.8 ± 1.0"),
    "pfedme:personal": ("100.0 ± 0.0", "2.5 ± 0.8", "315.8 ± 81.3", "42.5 ± 37.5", "3.5 ± 1.5"),
    "sfl:cloud": ("73.3 ± 33.7", "2.9 ± 1.0", "73.2 ± 23.0", "62.5 ± 37.0", "3.3 ± 1.2"),
    "pfedhn:generated": ("100.0 ± 0.0", "2.2 ± 0.5", "3.2 ± 1.7", "82.5 ± 32.8", "2.5 ± 0.7"),
    "panacea_gn:generated": ("100.0 ± 0.0", "2.5 ± 0.8", "3.2 ± 1.4", "100.0 ± 0.0", "2.6 ± 0.9"),
    "panacea:generated": ("100.0 ± 0.0", "2.6 ± 0.7", "1.0 ± 0.2", "100.0 ± 0.0", "2.8 ± 0.9"),
}
FL, TPT, METR, FL_NEW, TPT_NEW = range(5)
RATIOS = ("0%", "10%", "20%", "30%", "40%", "50%")


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, make in TABLES.items():
        begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise SystemExit(f"{PAGE} has no markers {begin} and {end}.")
        text = f"{before}{begin}\n{make()}\n{end}{after}"
    PAGE.write_text(text, encoding="utf-8")
    draw()


def cells(study: str) -> dict[str, list[Row]]:
    return json.loads((HERE / "results" / f"panacea-{study}.json").read_text(encoding="utf-8"))["cells"]


def named(rows: Sequence[Row]) -> dict[str, Row]:
    return {row["row"]: row for row in rows}


def markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(["| " + " | ".join(each) + " |" for each in [heads, ["---"] * len(heads), *lines]])


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def thousandths(value: float | None) -> str:
    return "" if value is None else f"{1e3 * value:.2f}"


def spread(row: Row, unit: Callable[[float | None], str], keys: tuple[str, str, str]) -> str:
    """mean ± over clients ± over seeds."""
    value, *around = (unit(row.get(key)) for key in keys)
    return " ± ".join([value, *(each for each in around if each)]) if value else ""


BEST = ("best", "std_clients", "std_seeds")
NOVEL = ("novel", "novel_std_clients", "novel_std_seeds")


def bold(name: str, row: Row) -> str:
    return f"**{name}**" if row.get("headline") else name


def fl60() -> str:
    native, equal = named(cells("tables")["fl60 native"]), named(cells("tables")["fl60 equal"])
    tried = {name.split(" ", 1)[1]: named(rows) for name, rows in cells("tuned").items() if name.startswith("fl60")}
    lines = []
    for name, row in native.items():
        rounds = [percent(row["rounds"][k]) for k in ("20", "50", "150")]
        found = tried.get(name.split(":")[0], {}).get(name, {})
        paper = PAPER.get(name, ("",) * 5)[FL]
        lines.append(
            [
                bold(name, row),
                paper,
                spread(row, percent, BEST),
                *rounds,
                spread(equal[name], percent, BEST),
                spread(found, percent, BEST),
            ]
        )
    heads = ["method:model", "paper", "native, best round", "at 20", "at 50", "at 150", "equal budget", "tuned"]
    return markdown(heads, lines)


def tpt48() -> str:
    found, tried = cells("tables"), cells("tuned")
    shown = ("tpt48 random native", "tpt48 random equal", "tpt48 chronological equal")
    native, equal, ahead = (named(found[cell]) for cell in shown)
    lines = []
    for name, row in equal.items():
        paper = PAPER.get(name, ("",) * 5)[TPT]
        lines.append(
            [
                bold(name, row),
                paper,
                *(spread(each.get(name, {}), thousandths, BEST) for each in (native, equal, ahead)),
            ]
        )
    for model in ("global", "finetuned"):
        tuned = [named(tried[f"tpt48 {split} fedavg"])[f"fedavg:{model}"] for split in ("random", "chronological")]
        lines.append([f"fedavg:{model}, tuned", "", "", *(spread(row, thousandths, BEST) for row in tuned)])
    pooled = [named(found[f"tpt48 {split} pooled"])["pooled"] for split in ("random", "chronological")]
    lines.append(
        ["pooled (one model on all data, 30 rounds)", "", "", *(spread(row, thousandths, BEST) for row in pooled)]
    )
    return markdown(
        ["method:model", "paper", "random, native", "random, equal budget", "chronological, equal budget"], lines
    )


def traffic() -> str:
    found = json.loads((HERE / "results" / "traffic.json").read_text(encoding="utf-8"))["cells"]
    tables = {cell: named(rows) for cell, rows in found.items()}
    lines = []
    for name, row in tables["clean"].items():
        paper = PAPER.get(name, ("",) * 5)[METR]
        numbers = []
        for cell in ("clean", "clean unmasked", "leaky", "leaky unmasked"):
            other = tables[cell].get(name, {})
            numbers.append(spread({**other, "best": other.get("bmta", other.get("mean"))}, thousandths, BEST))
        lines.append([bold(name, row), paper, *numbers])
    return markdown(["method:model", "paper", "clean", "clean, unmasked", "leaky", "leaky, unmasked"], lines)


def novel() -> str:
    studies = cells("novel")
    tables = {cell: named(rows) for cell, rows in studies.items()}
    rows = dict.fromkeys(name for table in tables.values() for name in table)
    order = sorted(rows, key=lambda name: METHODS.index(name.split(":")[0]))
    lines = []
    for name in order:
        paper = PAPER.get(name, ("",) * 5)
        told = [paper[FL_NEW]]
        for cell, unit in (("fl60", percent), ("tpt48 random", thousandths)):
            row = tables[cell].get(name, {})
            told += [unit(row.get("last")), spread(row, unit, NOVEL)]
            told += [paper[TPT_NEW]] if cell == "fl60" else []
        lines.append([bold(name, tables["fl60"].get(name, {})), *told])
    heads = [
        "method:model",
        "FL-60, paper",
        "known",
        "new",
        "TPT-48, paper",
        "known",
        "new",
    ]
    return markdown(heads, lines)


def attack() -> str:
    found = cells("attack")
    tables = {ratio: named(found[ratio]) for ratio in RATIOS}
    lines = []
    order = [name for name, row in tables["40%"].items() if row["headline"]]
    for name in [*order, "panacea:personal", "fedavg:finetuned", "separate, averaged over the graph"]:
        numbers = []
        for ratio in RATIOS:
            row = tables[ratio].get(name, {})
            sides = [percent(row.get(side)) for side in ("benign", "attacked")]
            numbers.append(" / ".join(sides) if all(sides) else percent(row.get("last")))
        lines.append([bold(name, tables["40%"][name]), *numbers])
    for label in ("adam", "adam 5 steps"):
        for method in ("panacea:generated", "panacea_gn:generated"):
            numbers = []
            for ratio in RATIOS:
                row = named(found.get(f"{ratio} {label}", [])).get(method, {})
                sides = [percent(row.get(side)) for side in ("benign", "attacked")]
                numbers.append(" / ".join(sides) if all(sides) else percent(row.get("last")))
            lines.append([f"{method}, server {label}", *numbers])
    return markdown(["at the end, benign / attacked", *RATIOS], lines)


def controls() -> str:
    found = cells("attack")
    lines = []
    for cell, words in CONTROLS.items():
        for method in ("panacea:generated", "panacea_gn:generated"):
            row = named(found[cell])[method]
            low, high = row["attacked_range"]
            lines.append(
                [words, method, percent(row["benign"]), percent(row["attacked"]), f"{percent(low)} to {percent(high)}"]
            )
    row = named(found["40%"])["separate, averaged over the graph"]
    low, high = row["attacked_range"]
    lines.append(
        [
            "Separate, then one average over the graph",
            "",
            percent(row["benign"]),
            percent(row["attacked"]),
            f"{percent(low)} to {percent(high)}",
        ]
    )
    return markdown(["40 % attacked", "", "benign", "attacked", "seeds"], lines)


CONTROLS = {
    "40%": "the given graph",
    "40% graph complete": "the complete graph",
    "40% graph permuted": "the given graph, clients exchanged by lot",
    "40% graph empty": "no edge",
    "40% skip": "the given graph, residual connections",
    "40% adam": "the given graph, server Adam",
    "40% adam 5 steps": "the given graph, server Adam, five steps a round",
    "40% silent": "the given graph; attackers send nothing",
}


def graphs() -> str:
    lines = []
    for cell, rows in cells("graphs").items():
        unit = thousandths if cell.startswith("tpt48") else percent
        for method in ("panacea", "panacea_gn"):
            row, own = named(rows)[f"{method}:generated"], named(rows)[f"{method}:personal"]
            sides = " / ".join(unit(row.get(side)) for side in ("benign", "attacked")) if "attacked" in row else ""
            lines.append([cell, method, spread(row, unit, BEST), unit(row["last"]), unit(own["last"]), sides])
    return markdown(
        ["data, graph", "", "generated, best", "generated, last", "personal, last", "benign / attacked"], lines
    )


def sizes() -> str:
    found = cells("sizes")
    lines = []
    for clients in (30, 60, 120, 240, 480):
        for method in ("panacea", "panacea_gn"):
            clean, new, lied = (
                named(found[f"FL-{clients} {cell}"])[f"{method}:generated"] for cell in ("clean", "novel", "40%")
            )
            rounds = [percent(clean["rounds"][k]) for k in ("20", "50", "150")]
            told = [percent(lied["rounds"]["50"]), percent(lied["benign"]), percent(lied["attacked"])]
            lines.append([f"FL-{clients}", method, *rounds, percent(new["novel"]), *told])
    return markdown(
        ["", "", "at 20", "at 50", "at 150", "newcomers", "40 % attacked: at 50", "benign", "attacked"], lines
    )


def inferred() -> str:
    lines = []
    for cell, rows in cells("inferred").items():
        values = {row["row"]: row["best"] for row in rows}
        lines.append(
            [
                cell,
                f"{values['precision']:.2f}",
                f"{values['recall']:.2f}",
                f"{values['degree']:.1f}",
                f"{values['chance']:.2f}",
            ]
        )
    return markdown(["", "precision", "recall", "edges a client", "precision by chance"], lines)


TABLES = {f.__name__: f for f in (fl60, tpt48, traffic, novel, attack, controls, graphs, sizes, inferred)}


def draw() -> None:
    """Benign and attacked clients over the share of attackers, a line a method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = cells("attack")
    lines = {method: f"{method}:{model}" for method, model in HEADLINES.items()}
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    shares = [int(ratio.removesuffix("%")) for ratio in RATIOS]
    for axes, side, words in zip(panels, ("benign", "attacked"), ("benign clients", "attacked clients"), strict=True):
        for i, (method, row) in enumerate(lines.items()):
            values = [named(found[ratio])[row].get(side) for ratio in RATIOS]
            if side == "benign":
                values[0] = named(found["0%"])[row]["last"]
            known = [(x, 100 * y) for x, y in zip(shares, values, strict=True) if y is not None]
            axes.plot(
                *zip(*known, strict=True),
                label=method,
                marker="osv^D*Xph8"[i],
                markersize=5,
                linewidth=1.5,
                color=f"C{i}",
            )
        axes.set_title(words, loc="left")
        axes.set_xlabel("clients that train on random labels, %")
        axes.grid(axis="y", color="#e5e5e5")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("accuracy of the headline model\nafter 150 rounds, %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(PICTURE, dpi=150)


HEADLINES = {
    "panacea": "generated",
    "panacea_gn": "generated",
    "pfedhn": "generated",
    "fedavg": "global",
    "perfedavg": "adapted",
    "pfedme": "personal",
    "sfl": "cloud",
    "fedamp": "cloud",
    "heurfedamp": "cloud",
    "separate": "personal",
}


if __name__ == "__main__":
    main()
