"""docs/results.md and its pictures, from the files in results/: `python benchmarks/results_page.py`.

The page is made anew from the result files alone; a test holds it to them. What has not been run yet is a dash, with
the command that runs it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedkin.maths import statistics
from fedkin.papers import published
from fedkin.papers.claims import answered, claims
from fedkin.studies.reproduced import Cell, Reproduced, number

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results.md"
IMAGES = ROOT / "docs" / "images"
ORDER = (
    *("fedamp-table3", "fedamp-table2", "fedamp-table1", "fedamp-dirty", "fedamp-dropped", "fedamp-table3-tuned"),
    *("fedamp-cifar100", "panacea-table1", "panacea-table2", "panacea-attack"),
)
TESTED = ("fmnist", "emnist", "cifar100")
"""Where the paper tests for significance."""
OURS = ("fedamp", "fedamp-personal", "heurfedamp", "heurfedamp-personal")
HEAD = """# The papers' tables, reproduced

<!-- Made by python benchmarks/results_page.py from the files in results/: do not edit by hand. -->

Our numbers beside those of the FedAMP papers (Huang et al., AAAI 2021, and its preprint) and of Panacea (ICLR 2024
submission). In each cell ours is bold and leads to its result file, which has the machine, versions, commit, seed,
seconds, every model's curve and every client's scores; behind it, in brackets, the published value and the difference.
A dash was not run yet. `fedkin reproduce TABLE` runs what is missing, `fedkin papers` says how much that is;
`--scale small` is for a laptop, and not the papers' experiment.

The FedAMP tables follow the papers: no validation part, and **the best round on test data**, which flatters every row
and the unsteady ones most. Rows named *automatic* are our defaults (sigma and the weight on others found by the method,
exact proximal step, common start), scored in the same way. On a GPU these runs multiply in bfloat16; the last column
of the table of precision has float32 beside it. One seed unless a cell says otherwise, so that differences of half a
point mean nothing. EMNIST is a subset cut from the official test part: its classes are not balanced, and a client's
samples are drawn uniformly over images, not over classes ([data](data.md)).
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    options = parser.parse_args()
    found = Reproduced(options.results)
    PAGE.write_text(page(found), encoding="utf-8")
    draw(found)


def page(found: Reproduced) -> str:
    parts = [HEAD, contents(found)]
    for name in ORDER:
        parts += section(found, name)
    parts += claimed(found)
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def contents(found: Reproduced) -> str:
    lines = ["| table | what | cells done |", "|---|---|---:|"]
    for name in ORDER:
        done, cells = found.done(name)
        lines.append(f"| [{name}](#{name}) | {published.table(name).title} | {done} of {cells} |")
    return "\n".join(lines)


def section(found: Reproduced, name: str) -> Iterator[str]:
    whole = published.table(name)
    yield f"## {name}"
    yield f"{sentence(whole.title)} {sentence(whole.source)}"
    if found.done(name)[0]:
        yield table(found, name)
        if name == "fedamp-table3":
            yield from (order(found), significance(found), precision(found), pictures(found))
        if name == "panacea-table1":
            yield traffic()
        if any(len(each.results) > 1 for each in cells(found, name)):
            yield "Means over the seeds that were run; the link leads to the first."
    yield "\n".join(missing(found, name))
    for column in whole.columns.values():
        if column.unavailable:
            yield f"{column.label.split(',')[0]} cannot be had here. {column.unavailable}"
    opened = "\n".join(f"- {said}" for said in whole.open)
    yield f"<details><summary>What is open, and what we chose</summary>\n\n{opened}\n\n</details>"


def sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


def cells(found: Reproduced, name: str) -> list[Cell]:
    whole = published.table(name)
    every = [found.cell(name, row, column) for row in whole.rows for column in whole.columns]
    return [each for each in every if each is not None]


def table(found: Reproduced, name: str) -> str:
    whole = published.table(name)
    shown = [
        column
        for column in whole.columns
        if any(found.cell(name, row, column) for row in whole.rows)
        or any(column in row.published for row in whole.rows.values())
    ]
    lines = ["| |" + "".join(f" {whole.columns[c].label} |" for c in shown), "|---|" + "---:|" * len(shown)]
    for row, about in whole.rows.items():
        told = [linked(found.cell(name, row, column), about.published.get(column)) for column in shown]
        lines.append(f"| {about.label} |" + "".join(f" {each} |" for each in told))
    return "\n".join(lines)


def linked(cell: Cell | None, theirs: float | None) -> str:
    behind = "" if theirs is None else f"{theirs:g}"
    if cell is None:
        return f"– ({behind})" if behind else "–"
    ours = f"[**{number(cell.ours)}**](../results/{place(cell)})"
    return ours if theirs is None else f"{ours} ({behind}, {cell.ours - theirs:+.1f})"


def place(cell: Cell) -> str:
    first = cell.results[0]
    job = published.Job(first["table"], first["column"], first["run"], first["seed"], first["factor"])
    return f"{job.table}/{job.name}.json"


def missing(found: Reproduced, name: str) -> list[str]:
    whole = published.table(name)
    empty = [
        column
        for column, about in whole.columns.items()
        if not about.unavailable and any(found.cell(name, row, column) is None for row in whole.rows)
    ]
    if not empty:
        return []
    if not found.done(name)[0]:
        return [f"Not reached yet: `fedkin reproduce {name}`."]
    return ["Cells not reached yet: " + ", ".join(f"`fedkin reproduce {name} --only {each}`" for each in empty) + "."]


# ---- Table 3 ----


def order(found: Reproduced) -> str:
    """The order of the methods beside the paper's, by the better of a method's models."""
    whole = published.table("fedamp-table3")
    lines = ["The order of the papers' rows, the best first (our cloud models, SCAFFOLD's and APFL's own):", ""]
    rows = [row for row, about in whole.rows.items() if about.published and not row.endswith(("-personal", "-global"))]
    for column, about in whole.columns.items():
        ours = {row: cell.ours for row in rows if (cell := found.cell("fedamp-table3", row, column))}
        if len(ours) < 3:
            continue
        theirs = {row: whole.rows[row].published[column] for row in ours}
        told = [", ".join(f"{row} {v[row]:.1f}" for row in sorted(v, key=lambda r, v=v: -v[r])) for v in (ours, theirs)]
        lines += [f"- {about.label}: {told[0]}. Paper: {told[1]}."]
    return "\n".join(lines)


def significance(found: Reproduced) -> str:
    """Wilcoxon over clients at each row's best round, as the paper does; Holm over all pairs of a data set."""
    whole, lines = published.table("fedamp-table3"), []
    for column in TESTED:
        pairs = []
        for ours in OURS:
            mine = found.cell("fedamp-table3", ours, column)
            for row in whole.rows:
                other = found.cell("fedamp-table3", row, column)
                if mine and other and whole.rows[row].run not in ("fedamp", "heurfedamp") and "auto" not in row:
                    tested = statistics.wilcoxon(mine.clients, other.clients)
                    pairs.append((ours, row, mine.ours - other.ours, tested.greater))
        for (ours, row, gap, p), held in zip(pairs, statistics.holm([p for *_, p in pairs]), strict=True):
            labels = [whole.rows[each].label for each in (ours, row)]
            lines.append(
                f"| {whole.columns[column].label} | {labels[0]} | {labels[1]} | {gap:+.1f} | {p:.1e} | {held:.1e} |"
            )
    if not lines:
        return ""
    head = "| data | ours | against | points | p | p, Holm |\n|---|---|---|---:|---:|---:|\n"
    said = (
        "Wilcoxon’s signed-rank test over clients, each row at its best round, as the paper does on these data sets "
        "(it reports p < 1e-4 against every rival); Holm’s correction over all pairs of a data set is ours. Clients "
        "that share test images, and one seed, make these p smaller than they should be."
    )
    return f"<details><summary>Significance</summary>\n\n{said}\n\n{head}" + "\n".join(lines) + "\n\n</details>"


def precision(found: Reproduced) -> str:
    whole, lines = published.table("fedamp-table3"), []
    for column in whole.columns:
        for row, about in whole.rows.items():
            usual = found.cell("fedamp-table3", row, column)
            exact = found.cell("fedamp-table3", row, column, "float32")
            if usual and exact:
                shown = f"{number(usual.ours)} | {number(exact.ours)} | {exact.ours - usual.ours:+.2f}"
                lines.append(f"| {whole.columns[column].label} | {about.label} | {usual.precision} | {shown} |")
    if not lines:
        return "Every run so far is in bfloat16; float32 beside three of them is next in the queue, not reached yet."
    return "| data | row | precision | ours | float32 | difference |\n|---|---|---|---:|---:|---:|\n" + "\n".join(lines)


def pictures(found: Reproduced) -> str:
    if found.cell("fedamp-table3", "fedamp", "emnist") is None:
        return ""
    return (
        "![Mean test accuracy over rounds](images/results-rounds.png)\n\nMean test accuracy over rounds, Table 3.\n\n"
        "![Clients’ accuracies](images/results-clients.png)\n\nThe clients’ accuracies at each row’s best round, "
        "sorted (the paper’s Figure 2).\n\n![Attention](images/results-xi.png)\n\nWho collaborates with whom on "
        "EMNIST, at the best round (the paper’s Figure 3): clients 0-9 have digits, 10-35 upper case, 36-61 lower "
        "case. FedAvg gives every row n_j / n."
    )


# ---- METR-LA, whose runs are older than this page ----


def traffic() -> str:
    """Of benchmarks/traffic.py, all 207 sensors: the protocol that tells no answers, and the one that does."""
    record = json.loads((ROOT / "benchmarks" / "results" / "traffic.json").read_text(encoding="utf-8"))
    names = [name for name in ("clean", "leaky") if name in record["cells"]]
    ours = {cell: {row["row"]: row["best"] for row in record["cells"][cell] if "best" in row} for cell in names}
    whole = published.table("panacea-table1")
    lines = ["| METR-LA, 1e-3 | paper |" + "".join(f" {name} |" for name in names), "|---|---:|" + "---:|" * len(names)]
    for about in whole.rows.values():
        key = f"{whole.runs[about.run].method}:{about.model}"
        told = [f"{1000 * ours[name][key]:.1f}" if key in ours[name] else "–" for name in names]
        theirs = about.published.get("metr_la")
        lines.append(
            f"| {about.label} | {'' if theirs is None else f'{theirs:g}'} |" + "".join(f" {t} |" for t in told)
        )
    said = (
        "METR-LA was measured by `python benchmarks/traffic.py` before this page was there, one seed, mean squared "
        f"error over all {record['clients']} sensors ([numbers](../benchmarks/results/traffic.json), commit "
        f"{record['commit']}): *clean* splits in time and lets the decoder run free, *leaky* deals windows by lot and "
        "tells the decoder the true speed of the step before, the only way we know to come near the paper’s errors. "
        "[Panacea, measured](panacea.md) has the rest."
    )
    return f"{said}\n\n" + "\n".join(lines)


# ---- claims ----


def claimed(found: Reproduced) -> Iterator[str]:
    told = [(claim, answered(claim, found.lookup)) for claim in claims()]
    counts = {word: sum(answer.word == word for _, answer in told) for word in dict.fromkeys(a.word for _, a in told)}
    yield "## The papers’ claims"
    yield (
        f"All {len(told)}: "
        + ", ".join(f"{n} {word}" for word, n in counts.items())
        + ". Words such as “clearly” have "
        "become numbers in our rules (`src/fedkin/papers/claims.toml`); those are ours."
    )
    lines = ["| | claim | source | here | because |", "|---:|---|---|---|---|"]
    for claim, answer in told:
        links = ", ".join(f"[{Path(each.partition('#')[0]).name}]({relative(each)})" for each in answer.where)
        because = answer.because + (f" ({links})" if links else "")
        lines.append(f"| {claim.number} | {claim.claim} | {claim.source} | {answer.word} | {because} |")
    yield "\n".join(lines)


def relative(where: str) -> str:
    return where.removeprefix("docs/") if where.startswith("docs/") else f"../{where}"


# ---- pictures ----


def draw(found: Reproduced) -> None:
    if not pictures(found):
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    whole = published.table("fedamp-table3")
    columns = [c for c in whole.columns if any(found.cell("fedamp-table3", row, c) for row in whole.rows)]
    shown = [
        *("separate", "fedavg", "fedavg-ft", "fedprox-ft", "scaffold", "apfl", "fedamp", "heurfedamp"),
        *("fedamp-auto", "heurfedamp-auto"),
    ]
    for kind in ("rounds", "clients"):
        figure, axes = plt.subplots(1, len(columns), figsize=(5 * len(columns), 4), squeeze=False)
        for axis, column in zip(axes[0], columns, strict=True):
            for place, row in enumerate(shown):
                cell = found.cell("fedamp-table3", row, column)
                if cell is None:
                    continue
                about = cell.results[0]["models"][whole.rows[row].model]
                style = {"color": f"C{place}", "label": whole.rows[row].label, "linewidth": 1.2}
                if kind == "rounds":
                    values = 100 * np.array(about["curve"], dtype=float)
                    axis.plot(np.arange(len(values)) + cell.results[0]["first_round"], values, **style)
                else:
                    values = np.sort(cell.clients)
                    axis.plot(np.linspace(0, 1, len(values)), values, **style)
            axis.set_title(whole.columns[column].label)
            axis.set_xlabel("round" if kind == "rounds" else "share of clients")
            axis.set_ylabel("mean test accuracy, %" if kind == "rounds" else "test accuracy, %")
            axis.set_ylim(bottom=50)
        axes[0][0].legend(fontsize=7)
        save(figure, f"results-{kind}.png")
    runs = [
        ("fedamp", "FedAMP"),
        ("heurfedamp", "HeurFedAMP"),
        ("fedamp-auto", "FedAMP, automatic"),
        ("fedavg", "FedAvg"),
    ]
    figure, axes = plt.subplots(1, len(runs), figsize=(4 * len(runs), 4))
    for axis, (run, label) in zip(axes, runs, strict=True):
        result = found.of("fedamp-table3", "emnist", run)
        if not result:
            continue
        if run == "fedavg":
            n = np.array(result[0]["samples"], dtype=float)
            xi = np.tile(n / n.sum(), (len(n), 1))
        else:
            xi = np.array(result[0]["xi"]["thousandths"]) / 1000
        axis.imshow(np.sqrt(xi), cmap="viridis", vmin=0, vmax=0.5)
        axis.set_title(label)
    save(figure, "results-xi.png")


def save(figure, name: str) -> None:  # type: ignore[no-untyped-def]
    figure.tight_layout()
    figure.savefig(IMAGES / name, dpi=90)


if __name__ == "__main__":
    main()
