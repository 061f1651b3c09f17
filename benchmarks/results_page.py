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
from fedkin.studies.reproduced import Cell, Reproduced, Result, number, signed

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
`--scale small` is for a laptop, and not the papers' experiment. Files of commits 3209ca0, 86fbd5d and 53e996e were
measured while this was being written; those steps went into the repository together, as its next commit after 6e2e9cd.

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
        if whole.account:
            yield "Where ours differ, and why as far as we know:\n\n" + "\n".join(f"- {said}" for said in whole.account)
        if name == "fedamp-table3":
            yield from (
                order(found),
                ways(found),
                significance(found),
                precision(found),
                pictures(found),
                blocks(found),
            )
        if name == "panacea-table1":
            yield from (traffic(), picture("results-convergence.png", CONVERGENCE))
        if name == "panacea-attack":
            yield from (apart(found), picture("results-attack.png", ATTACK))
        if whole.figure and name in CURVES:
            yield picture(f"results-{name.removeprefix('fedamp-')}.png", "Mean test accuracy over rounds.")
        seeds = sorted({len(each.results) for each in cells(found, name)})
        if seeds[-1] > 1:
            runs = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
            yield f"Means over {runs} seeds; the link leads to the first."
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
    return ours if theirs is None else f"{ours} ({behind}, {signed(cell.ours - theirs)})"


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
        leads = [f"{lead(v):+.1f}" for v in (ours, theirs)]
        lines += [
            f"- {about.label}: {told[0]}. Paper: {told[1]}. The better of FedAMP and HeurFedAMP is {leads[0]} points "
            f"from the best of the others; in the paper, of the same rows, {leads[1]}."
        ]
    return "\n".join(lines)


def lead(values: dict[str, float]) -> float:
    own = [row for row in ("fedamp", "heurfedamp") if row in values]
    return max(values[row] for row in own) - max(value for row, value in values.items() if row not in own)


def ways(found: Reproduced) -> str:
    """How each row came to its number: when it was best, where it ended, and when it had the paper's value."""
    whole = published.table("fedamp-table3")
    lines = [
        "| data | row | best | in round | at the end | paper | reached in round |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for column, about in whole.columns.items():
        for row, each in whole.rows.items():
            cell = found.cell("fedamp-table3", row, column)
            if cell is None:
                continue
            first, model = cell.results[0], cell.results[0]["models"][each.model]
            curve = 100 * np.array(model["curve"], dtype=float)
            theirs = each.published.get(column)
            there = [] if theirs is None else np.flatnonzero(curve >= theirs)
            reached = "" if theirs is None else str(there[0] + first["first_round"]) if len(there) else "never"
            best = f"{np.nanmax(curve):.1f} | {model['best_round']} | {curve[-1]:.1f}"
            lost = f" ({len(first['diverged'])} clients diverged)" if first["diverged"] else ""
            printed = "" if theirs is None else f"{theirs:g}"
            lines.append(f"| {about.label} | {each.label}{lost} | {best} | {printed} | {reached} |")
    said = (
        "Of the first seed. The paper does not say after how many rounds it stopped: a value that is reached in round "
        "3 of 100 says that theirs, or their rate, was another. What falls from its best to the end is flattered by "
        "the best test round."
    )
    head = "<details><summary>When each row was best, and when it had the paper’s value</summary>"
    return f"{head}\n\n{said}\n\n" + "\n".join(lines) + "\n\n</details>"


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
                    better, worse = counted(mine, other)
                    told = f"{mine.ours - other.ours:+.1f} | {better} / {worse}"
                    pairs.append((ours, row, told, tested.greater))
        for (ours, row, told, p), held in zip(pairs, statistics.holm([p for *_, p in pairs]), strict=True):
            labels = [whole.rows[each].label for each in (ours, row)]
            lines.append(
                f"| {whole.columns[column].label} | {labels[0]} | {labels[1]} | {told} | {p:.1e} | {held:.1e} |"
            )
    if not lines:
        return ""
    head = (
        "| data | ours | against | points | clients better / worse | p | p, Holm |\n|---|---|---|---:|---:|---:|---:|\n"
    )
    said = (
        "Wilcoxon’s signed-rank test over clients, each row at its best round, as the paper does on these data sets "
        "(it reports p < 1e-4 against every rival); Holm’s correction over all pairs of a data set is ours. Clients "
        "that share test images, and one seed, make these p smaller than they should be."
    )
    return f"<details><summary>Significance</summary>\n\n{said}\n\n{head}" + "\n".join(lines) + "\n\n</details>"


def counted(mine: Cell, other: Cell) -> tuple[int, int]:
    """Clients that are better, and worse."""
    gap = mine.clients - other.clients
    return int((gap > 1e-9).sum()), int((gap < -1e-9).sum())


def blocks(found: Reproduced) -> str:
    """The paper's Figure 3 in numbers: how much of a client's weights stays in its own group."""
    lines = ["| EMNIST, xi at the best round | round | digits | upper case | lower case |", "|---|---:|---:|---:|---:|"]
    labels = {"fedamp": "FedAMP", "heurfedamp": "HeurFedAMP"}
    labels |= {f"{run}-auto": f"{label}, automatic" for run, label in labels.items()}
    for run, label in labels.items():
        for result in found.of("fedamp-table3", "emnist", run)[:1]:
            told = [f"{within:.2f}" for within in inside(result)]
            lines.append(f"| {label} | {result['xi']['round']} | " + " | ".join(told) + " |")
    return "Share of a client’s weights that lies inside its group, the mean over the group:\n\n" + "\n".join(lines)


def inside(result: Result) -> list[float]:
    """For each group the mean over its clients of the weight that stays in it; weights sum to one."""
    xi, groups = np.array(result["xi"]["thousandths"], dtype=float), np.array(result["groups"])
    xi /= xi.sum(1, keepdims=True)
    return [float(xi[groups == g][:, groups == g].sum(1).mean()) for g in np.unique(groups)]


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


# ---- pictures of other tables ----

CONVERGENCE = (
    "Panacea’s Figure 2: mean over clients by round, of five seeds (each method’s own local training; errors of TPT-48 "
    "on a logarithmic scale)."
)
ATTACK = "Honest and attacked clients at the end, by the share of clients whose training labels are drawn by lot."
CURVES = ("fedamp-dirty", "fedamp-dropped")


def picture(file: str, said: str) -> str:
    return f"![{said.split(':')[0].split(',')[0]}](images/{file})\n\n{said}"


def among(found: Reproduced, row: str, column: str, attacked: bool) -> float | None:
    """Per cent of the attacked clients, whose test labels are right, or of the honest, in the last round."""
    about, means = published.table("panacea-attack").rows[row], []
    for result in found.of("panacea-attack", column, about.run):
        last = np.array(result["models"][about.model]["last"], dtype=float)
        chosen = last[result["corrupted"]] if attacked else np.delete(last, result["corrupted"])
        means += [float(chosen.mean())] if len(chosen) else []
    return 100 * float(np.mean(means)) if means else None


def apart(found: Reproduced) -> str:
    """Honest and attacked clients by themselves."""
    whole = published.table("panacea-attack")
    shown = [column for column in whole.columns if among(found, next(iter(whole.rows)), column, True) is not None]
    said = (
        "The same, honest / attacked clients. The honest are little harmed by anybody’s lies (alone they have 100 %); "
        "the attacked trained on labels drawn by lot and are tested on true ones:"
    )
    lines = ["| |" + "".join(f" {whole.columns[c].label} |" for c in shown), "|---|" + "---:|" * len(shown)]
    for row, about in whole.rows.items():
        pairs = [[among(found, row, column, attacked) for attacked in (False, True)] for column in shown]
        told = [" / ".join("–" if each is None else f"{each:.1f}" for each in pair) for pair in pairs]
        lines.append(f"| {about.label} |" + "".join(f" {each} |" for each in told))
    return f"{said}\n\n" + "\n".join(lines)


# ---- METR-LA, whose runs are older than this page ----


def traffic() -> str:
    """Of benchmarks/traffic.py, all 207 sensors: the protocol that tells no answers, and the one that does."""
    record = json.loads((ROOT / "benchmarks" / "results" / "traffic.json").read_text(encoding="utf-8"))
    names = [name for name in ("clean", "leaky") if name in record["cells"]]
    ours = {cell: {row["row"]: row["bmta"] for row in record["cells"][cell] if "bmta" in row} for cell in names}
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
        cells = (each.replace("|", "\\|") for each in (claim.claim, claim.source, answer.word, because))
        lines.append(f"| {claim.number} | " + " | ".join(cells) + " |")
    yield "\n".join(lines)


def relative(where: str) -> str:
    return where.removeprefix("docs/") if where.startswith("docs/") else f"../{where}"


# ---- pictures ----


SHOWN = (
    *("separate", "fedavg", "fedavg-ft", "fedprox-ft", "scaffold", "apfl", "fedamp", "heurfedamp"),
    *("fedamp-auto", "heurfedamp-auto"),
)
GRAPHED = ("separate", "fedavg", "fedavg-ft", "perfedavg", "pfedme", "sfl", "pfedhn", "panacea-gn", "panacea", "fedamp")


def draw(found: Reproduced) -> None:
    import matplotlib

    matplotlib.use("Agg")
    if pictures(found):
        over_rounds(found, "fedamp-table3", "results-rounds.png", SHOWN)
        over_clients(found)
        attention(found)
    if found.done("panacea-table1")[0]:
        over_rounds(found, "panacea-table1", "results-convergence.png", GRAPHED)
    if found.done("panacea-attack")[0]:
        by_share(found)
    for name in CURVES:
        if found.done(name)[0]:
            over_rounds(found, name, f"results-{name.removeprefix('fedamp-')}.png", SHOWN)


def reached(found: Reproduced, name: str) -> list[str]:
    whole = published.table(name)
    return [column for column in whole.columns if any(found.cell(name, row, column) for row in whole.rows)]


def axes_for(columns: list[str]):  # type: ignore[no-untyped-def]
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(columns), figsize=(5 * len(columns), 4), squeeze=False)
    return figure, axes[0]


def over_rounds(found: Reproduced, name: str, file: str, rows: tuple[str, ...]) -> None:
    """A picture a column: each row's mean over clients by round, the mean of its seeds."""
    whole, columns = published.table(name), reached(found, name)
    figure, axes = axes_for(columns)
    for axis, column in zip(axes, columns, strict=True):
        share = whole.unit_of(column) == "%"
        for place, row in enumerate(rows):
            cell = found.cell(name, row, column)
            if cell is None:
                continue
            curves = [each["models"][whole.rows[row].model]["curve"] for each in cell.results]
            values = published.SCALE[whole.unit_of(column)] * np.mean(np.array(curves, dtype=float), axis=0)
            rounds = np.arange(len(values)) + cell.results[0]["first_round"]
            axis.plot(rounds, values, color=f"C{place % 10}", label=whole.rows[row].label, linewidth=1.2)
        axis.set_title(whole.columns[column].label)
        axis.set_xlabel("round")
        axis.set_ylabel("mean test accuracy, %" if share else "mean squared error, 1e-3")
        if share:
            axis.set_ylim(bottom=50)
        else:
            axis.set_yscale("log")
    axes[0].legend(fontsize=7)
    save(figure, file)


def over_clients(found: Reproduced) -> None:
    """The paper's Figure 2: clients' accuracies, sorted."""
    whole, columns = published.table("fedamp-table3"), reached(found, "fedamp-table3")
    figure, axes = axes_for(columns)
    for axis, column in zip(axes, columns, strict=True):
        for place, row in enumerate(SHOWN):
            cell = found.cell("fedamp-table3", row, column)
            if cell is not None:
                values = np.sort(cell.clients)
                label = whole.rows[row].label
                axis.plot(np.linspace(0, 1, len(values)), values, color=f"C{place}", label=label, linewidth=1.2)
        axis.set_title(whole.columns[column].label)
        axis.set_xlabel("share of clients")
        axis.set_ylabel("test accuracy, %")
        axis.set_ylim(bottom=50)
    axes[0].legend(fontsize=7)
    save(figure, "results-clients.png")


def by_share(found: Reproduced) -> None:
    """Honest and attacked clients of FL-60, by the share attacked."""
    whole = published.table("panacea-attack")
    shares = {column: float(column.rpartition("-")[2]) for column in whole.columns}
    figure, axes = axes_for(["honest", "attacked"])
    for place, row in enumerate(row for row in GRAPHED if row in whole.rows):
        for axis, attacked in zip(axes, (False, True), strict=True):
            values = {c: value for c in shares if (value := among(found, row, c, attacked)) is not None}
            xs = [shares[column] for column in values]
            axis.plot(
                xs, list(values.values()), "o-", color=f"C{place % 10}", label=whole.rows[row].label, markersize=3
            )
    for axis, title in zip(axes, ("honest clients", "attacked clients"), strict=True):
        axis.set_title(title)
        axis.set_xlabel("clients attacked, %")
        axis.set_ylabel("mean test accuracy, %")
    axes[1].legend(fontsize=7)
    save(figure, "results-attack.png")


def attention(found: Reproduced) -> None:
    """The paper's Figure 3: xi at the best round."""
    runs = {"fedamp": "FedAMP", "heurfedamp": "HeurFedAMP", "fedamp-auto": "FedAMP, automatic", "fedavg": "FedAvg"}
    there = [run for run in runs if found.of("fedamp-table3", "emnist", run)]
    figure, axes = axes_for(there)
    for axis, run in zip(axes, there, strict=True):
        result = found.of("fedamp-table3", "emnist", run)[0]
        if run == "fedavg":
            n = np.array(result["samples"], dtype=float)
            xi = np.tile(n / n.sum(), (len(n), 1))
        else:
            xi = np.array(result["xi"]["thousandths"]) / 1000
        axis.imshow(np.sqrt(xi), cmap="viridis", vmin=0, vmax=0.5)
        axis.set_title(runs[run])
    save(figure, "results-xi.png")


def save(figure, name: str) -> None:  # type: ignore[no-untyped-def]
    figure.tight_layout()
    figure.savefig(IMAGES / name, dpi=90)


if __name__ == "__main__":
    main()
