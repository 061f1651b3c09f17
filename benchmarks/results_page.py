"""docs/results.md and its pictures, from the files in results/: `python benchmarks/results_page.py`.

The page is made anew from the result files alone; a test holds it to them. What has not been run yet is a dash, with
the command that runs it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedkin.maths import statistics
from fedkin.papers import published
from fedkin.papers.claims import answered, claims
from fedkin.studies.reproduced import Cell, Reproduced, Result, bold, markdown, number

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results.md"
IMAGES = ROOT / "docs" / "images"
ORDER = (
    *("fedamp-table3", "fedamp-table2", "fedamp-table1", "fedamp-dirty", "fedamp-dropped", "fedamp-table3-tuned"),
    *("fedamp-cifar100", "panacea-table1", "panacea-table2", "panacea-attack"),
)
TESTED = ("fmnist", "emnist", "cifar100")
"""Where the paper tests for significance."""
CLEAR = 1e-4
"""The paper's p."""
OWN = ("fedamp", "heurfedamp")
OURS = ("fedamp", "fedamp-personal", "heurfedamp", "heurfedamp-personal")
TITLE = """# The papers' tables, reproduced

<!-- Made by python benchmarks/results_page.py from the files in results/: do not edit by hand. -->
"""
HEAD = """
Our numbers beside those of the FedAMP papers (Huang et al., AAAI 2021, and its preprint) and of Panacea (ICLR 2024
submission). In each cell ours is bold and leads to its result file, which has the machine, versions, commit, seed,
seconds, every model's curve and every client's scores; behind it, in brackets, the published value and the difference.
A dash was not run yet. `fedkin reproduce TABLE` runs what is missing, `fedkin papers` says how much that is;
`--scale small` is for a laptop, and not the papers' experiment. Files of commits 3209ca0, 86fbd5d and 53e996e were
measured while this was being written; those steps went into the repository together, as its next commit after 6e2e9cd.

The FedAMP tables follow the papers: no validation part, and **the best round on test data**, which flatters every row
and the unsteady ones most. Rows named *automatic* are our defaults (sigma and the weight on others found by the method,
exact proximal step, common start), scored in the same way. On a GPU these runs multiply in bfloat16. One seed unless a
table says otherwise, so that differences of half a point mean nothing. A round 101 of 100 is the closing exchange, in
which everybody's model is made and scored once more. EMNIST is a subset cut from the official test part: its classes
are not balanced, and a client's samples are drawn uniformly over images, not over classes ([data](data.md)).
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    options = parser.parse_args()
    found = Reproduced(options.results)
    PAGE.write_text(page(found), encoding="utf-8")
    draw(found)


def page(found: Reproduced) -> str:
    parts = [TITLE, verdict(found), HEAD, contents(found)]
    for name in ORDER:
        parts += section(found, name)
    parts += claimed(found)
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def contents(found: Reproduced) -> str:
    lines = ["| table | what | cells done | runs done, of all seeds |", "|---|---|---:|---:|"]
    for name in ORDER:
        told = " | ".join(f"{done} of {wanted}" for done, wanted in (found.done(name), found.runs_done(name)))
        lines.append(f"| [{name}](#{name}) | {published.table(name).title} | {told} |")
    return "\n".join(lines)


def verdict(found: Reproduced) -> str:
    """What holds, what does not and what is missing, before all tables."""
    begun = [name for name in ORDER if found.done(name)[0]]
    if not begun:
        return "Nothing is reached yet."
    parts = []
    for name in begun:
        seeds = sorted({len(each.results) for each in cells(found, name)})
        labels = [published.table(name).columns[column].label.split(",")[0] for column in reached(found, name)]
        shown = listed(labels) if len(labels) < 5 else f"{labels[0]} to {labels[-1]}"
        parts.append(f"{name} ({shown}; {'one seed' if seeds == [1] else f'{seeds[-1]} seeds'})")
    told = [f"**Reached**, in whole or in part, {len(begun)} of {len(ORDER)} tables: {listed(parts)}."]
    if "fedamp-table3" in begun:
        told += practical(found)
    rest = [name for name in ORDER if name not in begun]
    short = [name for name in begun if found.done(name)[0] < found.done(name)[1]]
    gaps = [f"all of {listed(rest)}"] * bool(rest) + [f"cells of {listed(short)}"] * bool(short)
    told += [f"**Missing**: {', and '.join(gaps)}; CompCars and PEMS-BAY cannot be had here."] if gaps else []
    return "\n\n".join(told)


def practical(found: Reproduced) -> list[str]:
    """Table 3 in two sentences."""
    whole = published.table("fedamp-table3")
    label = {column: about.label for column, about in whole.columns.items()}
    ranked = {column: values for column in whole.columns if len(values := compared(found, column)) >= 3}
    ours = {column: [found.cell("fedamp-table3", row, column) for row in OURS] for column in ranked}
    above = [
        c for c, each in ours.items() if all(x and x.published is not None and x.ours >= x.published for x in each)
    ]
    top = [
        label[column] + ("" if lead(values) >= 0.5 else " (by less than half a point)")
        for column, values in ranked.items()
        if set(OWN) == set(sorted(values, key=lambda row, v=values: -v[row])[:2])  # type: ignore[misc]
    ]
    rivals = [
        (v, whole.rows[row].published[c]) for c, each in ranked.items() for row, v in each.items() if row not in OWN
    ]
    stronger = sum(mine > theirs for mine, theirs in rivals)
    printed = {c: {row: whole.rows[row].published[c] for row in values} for c, values in ranked.items()}
    leads = [f"{label[c]} {lead(values):+.1f}, in the paper {lead(printed[c]):+.1f}" for c, values in ranked.items()]
    missed = {
        each.row: bracketed(whole.rows[each.row].label)
        for c in TESTED
        for each in tested(found, c)
        if each.held >= CLEAR
    }
    lost = listed(list(missed.values())) or "nobody"
    holds = f"at or above the paper's values on {listed([label[c] for c in above]) or 'no set'}"
    return [
        f"**What holds** of the practical split: FedAMP and HeurFedAMP are {holds}, and are the two best methods on "
        f"{listed(top) or 'no set'}.",
        f"**What does not**: the rivals are stronger here ({stronger} of {len(rivals)} of their values are above the "
        f"paper's, of SCAFFOLD and APFL the own models'), so that the lead over the next best is smaller "
        f"({'; '.join(leads)}), and the paper's p < 1e-4 against every rival is missed against {lost}.",
    ]


def listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def section(found: Reproduced, name: str) -> Iterator[str]:
    whole = published.table(name)
    yield f"## {name}"
    yield (
        f"{sentence(whole.title)} {sentence(whole.source)} In each cell the mean over clients "
        f"{published.SCORED[whole.score]}, then over seeds."
    )
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
                kept(found),
            )
        if name == "panacea-table1":
            yield from (traffic(), picture("results-convergence.png", CONVERGENCE), by_round(found))
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
    return markdown(found, name, shown, linked)


def linked(cell: Cell) -> str:
    return f"[{bold(cell)}](../results/{place(cell)})"


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
    for column, about in whole.columns.items():
        ours = compared(found, column)
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


def compared(found: Reproduced, column: str) -> dict[str, float]:
    """Ours of the papers' rows: cloud models, SCAFFOLD's and APFL's own."""
    whole = published.table("fedamp-table3")
    rows = [row for row, about in whole.rows.items() if about.published and not row.endswith(("-personal", "-global"))]
    return {row: cell.ours for row in rows if (cell := found.cell("fedamp-table3", row, column))}


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


class Tested(NamedTuple):
    """Wilcoxon's test over clients of one of our rows against a rival: p two-sided, and after Holm."""

    ours: str
    row: str
    told: str
    p: float
    held: float


def tested(found: Reproduced, column: str) -> list[Tested]:
    """Every pair of a data set, each row at its best round, as the paper does; Holm over all of them."""
    whole, pairs = published.table("fedamp-table3"), []
    for ours in OURS:
        mine = found.cell("fedamp-table3", ours, column)
        for row in whole.rows:
            other = found.cell("fedamp-table3", row, column)
            if mine and other and whole.rows[row].run not in ("fedamp", "heurfedamp") and "auto" not in row:
                better, worse = counted(mine, other)
                medians = f"{np.median(mine.clients):.1f} / {np.median(other.clients):.1f}"
                told = f"{mine.ours - other.ours:+.1f} | {medians} | {better} / {worse}"
                pairs.append((ours, row, told, statistics.wilcoxon(mine.clients, other.clients).two_sided))
    held = statistics.holm([p for *_, p in pairs]) if pairs else []
    return [Tested(*pair, float(after)) for pair, after in zip(pairs, held, strict=True)]


def significance(found: Reproduced) -> str:
    whole, lines, verdicts = published.table("fedamp-table3"), [], []
    for column in TESTED:
        pairs, label = tested(found, column), whole.columns[column].label
        for each in pairs:
            labels = [whole.rows[row].label for row in (each.ours, each.row)]
            lines.append(
                f"| {label} | {labels[0]} | {labels[1]} | {each.told} | {p_text(each.p)} | {p_text(each.held)} |"
            )
        if pairs:
            verdicts.append(f"- {label}: {met(pairs)}")
    if not lines:
        return ""
    head = (
        "| data | ours | against | points | medians, ours / theirs | clients better / worse | p | p, Holm |\n"
        "|---|---|---|---:|---:|---:|---:|---:|\n"
    )
    said = (
        "Wilcoxon’s signed-rank test over clients, two-sided, each row at its best round; Holm’s correction over all "
        "pairs of a data set is ours. The paper tests on these data sets and reports p < 1e-4 against every rival. "
        "Here, after Holm:"
    )
    more = "Clients that share test images, and one seed, make these p smaller than they should be."
    closed = f"<details><summary>Significance, pair by pair</summary>\n\n{head}" + "\n".join(lines) + "\n\n</details>"
    return f"{said}\n\n" + "\n".join(verdicts) + f"\n\n{more}\n\n{closed}"


def met(pairs: list[Tested]) -> str:
    """Against whom all of our rows have the paper's p, and against whom not."""
    rows = published.table("fedamp-table3").rows
    by_row = {row: [each.held for each in pairs if each.row == row] for row in dict.fromkeys(e.row for e in pairs)}
    labels = {row: bracketed(rows[row].label) for row in by_row}
    clear = [labels[row] for row, held in by_row.items() if max(held) < CLEAR]
    rest = [
        f"{labels[row]} ({sum(p < CLEAR for p in held) or 'none'} of them, p up to {p_text(max(held))})"
        for row, held in by_row.items()
        if max(held) >= CLEAR
    ]
    told = f"met by all four of our rows against {listed(clear) or 'nobody'}"
    return told + (f"; missed against {listed(rest)}." if rest else ".")


def bracketed(label: str) -> str:
    """SCAFFOLD, own: SCAFFOLD (own), for lists with commas."""
    name, _, model = label.partition(", ")
    return f"{name} ({model})" if model else name


def p_text(p: float) -> str:
    return f"{p:.1e}" if p < 1e-3 else f"{p:.3f}"


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


def kept(found: Reproduced) -> str:
    """Of each data set, how much of the weight on others stays inside the group, beside chance."""
    whole = published.table("fedamp-table3")
    runs = {"fedamp": "FedAMP", "heurfedamp": "HeurFedAMP"}
    runs |= {f"{run}-auto": f"{label}, automatic" for run, label in runs.items()}
    lines = [f"| share of the weight on others | {' | '.join(runs.values())} | chance |", "|---|" + "---:|" * 5]
    uniform: list[str] = []
    for column, about in whole.columns.items():
        results = {run: found.of("fedamp-table3", column, run)[:1] for run in runs}
        both = {run: shares(each[0]) for run, each in results.items() if each}
        if both:
            told = " | ".join(f"{both[run][0]:.2f}" if run in both else "–" for run in runs)
            chance = next(iter(both.values()))[1]
            lines.append(f"| {about.label} | {told} | {chance:.2f} |")
            flat = [runs[run] for run, (within, _) in both.items() if abs(within - chance) < 0.005]
            uniform += (
                [f"on {about.label} {' and '.join(flat)} give every other client the same weight"] if flat else []
            )
    said = "How much of a client’s weight on others stays in its own group, at the best round, beside chance:"
    more = (
        f"So {'; '.join(uniform)}, to within a thousandth: with the preprint’s sigma no group is found there, "
        "and but for a client’s own share these rows are one mean for all."
    )
    return f"{said}\n\n" + "\n".join(lines) + (f"\n\n{more}" if uniform else "")


def shares(result: Result) -> tuple[float, float]:
    """The share of the weight on others that lies inside the group, the mean over clients; and that of chance."""
    xi, groups = np.array(result["xi"]["thousandths"], dtype=float), np.array(result["groups"])
    np.fill_diagonal(xi, 0.0)
    alike = groups[:, None] == groups
    np.fill_diagonal(alike, False)
    return float(((xi * alike).sum(1) / xi.sum(1)).mean()), float(alike.sum() / (len(groups) * (len(groups) - 1)))


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


def by_round(found: Reproduced) -> str:
    """The same in numbers, at a few rounds."""
    whole = published.table("panacea-table1")
    rounds, shown = (5, 20, 50, 100, 150), reached(found, "panacea-table1")
    heads = [f"{whole.columns[column].label.split(',')[0]}, {each}" for column in shown for each in rounds]
    lines = [f"| in round | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for row, about in whole.rows.items():
        told = []
        for column in shown:
            cell = found.cell("panacea-table1", row, column)
            if cell is None:
                told += ["–"] * len(rounds)
                continue
            curve = np.mean([each["models"][about.model]["curve"] for each in cell.results], axis=0)
            first, scale = cell.results[0]["first_round"], published.SCALE[whole.unit_of(column)]
            told += [number(scale * float(curve[each - first])) for each in rounds]
        lines.append(f"| {about.label} | {' | '.join(told)} |")
    return "\n".join(lines)


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


def legend(axes) -> None:  # type: ignore[no-untyped-def]
    """In the first picture, of all rows that any of them has."""
    there = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    axes[0].legend(there.values(), there, fontsize=7)


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
    legend(axes)
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
    legend(axes)
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
