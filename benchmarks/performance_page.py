"""Puts speed-cpu.json, speed-cuda.json and emnist-rounds.json of benchmarks/results into docs/performance.md, and draws
its pictures.

python benchmarks/performance_page.py
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkin import bench
from fedkin.bench.tables import plain

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
PICTURES = PAGE.parent / "performance"
DEVICES = {"cpu": "a CPU", "cuda": "a GPU"}
Row = dict[str, Any]
Sections = Mapping[str, Any]
HEADS = {
    "ceilings": "What the machine could do",
    "step": "One optimiser step for all clients",
    "round": "A whole round",
    "emnist-rounds": "A round as a user starts it",
    "warmup": "The first round",
    "accuracy": "Accuracy in float32 and in bf16",
    "collaboration": "Attention and mixing",
    "growth": "Growth",
    "memory": "Memory",
    "checkpoint": "Checkpoints",
    "demo": "The demo",
}


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(rewritten(text, results()), encoding="utf-8")
    draw(results())


def results() -> dict[str, Sections]:
    """Sections by device; a device that was not measured has none."""
    found = {device: bench.record.read(HERE / "results" / f"speed-{device}.json") for device in DEVICES}
    return {**found, "cuda": {**found["cuda"], **bench.record.read(HERE / "results" / "emnist-rounds.json")}}


def rewritten(text: str, found: Mapping[str, Sections]) -> str:
    """The page with what lies between its markers made anew."""
    for device, sections in found.items():
        begin, end = f"<!-- {device} -->", f"<!-- end {device} -->"
        before, _, rest = text.partition(begin)
        _, there, after = rest.partition(end)
        if not there:
            raise SystemExit(f"{PAGE} has no markers {begin} and {end}.")
        text = f"{before}{begin}\n\n{chapter(device, sections)}\n\n{end}{after}"
    return text


def chapter(device: str, sections: Sections) -> str:
    if not sections:
        return f"Not measured on {DEVICES[device]} yet: `python benchmarks/speed.py --device {device}`."
    parts = [glance(sections)] if glance(sections) else []
    for name, head in HEADS.items():
        if name in sections and table(name, sections[name]["rows"])[1]:
            parts += [f"### {head}", *told(device, name, sections[name])]
    return "\n\n".join(parts)


def told(device: str, name: str, section: Mapping[str, Any]) -> Iterator[str]:
    """A section in Markdown: what it is, its table, what is missing from it, its picture, its origin."""
    yield bench.title(name) if name in bench.SECTIONS else of_users(section["settings"])
    yield markdown(*table(name, section["rows"]))
    missing = bench.skipped(section["rows"])
    if missing:
        yield "Not measured: " + " ".join(missing)
    if name in FIGURES and FIGURES[name][1](section["rows"]):
        yield f"![{FIGURES[name][0]}](performance/{name}-{device}.svg)"
    yield f"<sub>{origin(section)}</sub>"


def table(name: str, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    if name in bench.SECTIONS:
        return bench.table(name, rows)
    heads = ["precision", "commit", "runs", "s a round", "first round, s", "to that commit", "to bf16", "last accuracy"]
    return heads, [
        [
            row["precision"],
            row["commit"] or row["source"],
            str(row["processes"]),
            f"{row['seconds']:.3f} ({row['seconds_low']:.3f}–{row['seconds_high']:.3f})",
            f"{row['first_seconds']:.2f}",
            f"{row['times_old']:.2f} ×" if "times_old" in row else "",
            f"{row['times_bf16']:.2f} ×" if "times_bf16" in row else "",
            f"{row['last']:.2%}".replace("%", " %"),
        ]
        for row in rows
    ]


def of_users(settings: Mapping[str, Any]) -> str:
    data = settings["data"]
    return (
        f"Whole runs of FedAMP on {data['split']} {data['name'].upper()}, {settings['rounds']} rounds, with nothing "
        "set but the precision (`float32` is TF32 on a GPU): each in a process of its own, an older commit and this one"
        " in turns. The seconds are those that a run wrote into its rounds.jsonl, without the first rounds: the median "
        "of all with its quartiles. The columns of ratios count time: below 1 is faster."
    )


def origin(section: Mapping[str, Any]) -> str:
    about = section["origin"]
    machine = about["machine"]
    parts = [
        f"`{about['command']}`",
        *([machine["gpu"]] if machine["gpu"] else []),
        f"{machine['cpu']}, cores: {machine['cores']}, threads: {machine['threads']}",
        f"torch {about['versions']['torch']}",
        f"commit {about['commit']}",
        about["date"],
        f"load average {about['load_average']}",
        f"{section['seconds']:.0f} s",
    ]
    return " · ".join(parts)


def markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(each) + " |" for each in [heads, ["---"] * len(heads), *lines])


# ---- at a glance ----


def glance(sections: Sections) -> str:
    """What was aimed at, and what was measured."""
    lines = [[what, asked, value(sections)] for what, asked, value in CLAIMS]
    lines = [line for line in lines if line[2]]
    return markdown(["at a glance", "aim", "measured"], lines) if lines else ""


def one(sections: Sections, section: str, key: str, form: str, **wanted: Any) -> str:
    """A value of the only row with these values; nothing where it was not measured."""
    rows = [r for r in sections.get(section, {}).get("rows", []) if all(r.get(k) == v for k, v in wanted.items())]
    values = [form.format(row[key]).replace("%", " %") for row in rows if row.get(key) is not None]
    return values[0] if len(values) == 1 else ""


def claim(section: str, key: str, form: str, **wanted: Any) -> Callable[[Sections], str]:
    return lambda sections: one(sections, section, key, form, **wanted)


def by_precision(section: str, key: str, form: str, **wanted: Any) -> Callable[[Sections], str]:
    """The value in each precision that was measured."""

    def value(sections: Sections) -> str:
        pairs = [(n, one(sections, section, key, form, precision=p, **wanted)) for p, n in NAMES.items()]
        return ", ".join(f"{each} ({name})" for name, each in pairs if each)

    return value


def as_started(sections: Sections) -> str:
    """Seconds of a round that a user starts, and how many times bf16's float32 takes."""
    rows = {r["precision"]: r for r in sections.get("emnist-rounds", {}).get("rows", []) if r["source"] == "new"}
    if not {"bf16", "float32"} <= rows.keys():
        return ""
    seconds = ", ".join(f"{rows[name]['seconds']:.2f} ({name})" for name in ("float32", "bf16"))
    return f"{seconds}: {rows['float32']['times_bf16']:.2f} ×"


NAMES = {"float32": "float32", "tf32": "TF32", "bf16": "bf16"}
CIFAR, IMAGENET = "ResNet-18, CIFAR stem", "ResNet-18, ImageNet stem"
EMNIST, RESNET = "practical EMNIST, CNN", "practical CIFAR-100, ResNet-18"
CLAIMS: list[tuple[str, str, Callable[[Sections], str]]] = [
    (
        "digits MLP, 100 clients: how many times as fast as plain torch",
        "10",
        claim("step", "times_plain", "{:.1f}", workload="digits MLP", way="default", precision="float32"),
    ),
    (
        "papers' CNN, 10 clients on a CPU: how many times as fast as plain torch",
        "1",
        claim("step", "times_plain", "{:.2f}", workload="papers' CNN", clients=10, way="default"),
    ),
    ("`fedkin demo`, seconds of computing", "under 60", claim("demo", "seconds", "{:.0f}")),
    (
        "attention and mixing, 1,000 clients, 1.7 M parameters: memory beyond W and the result",
        "10 %",
        claim("collaboration", "beyond", "{:.1%}", along="at scale"),
    ),
    (
        "papers' CNN, 62 clients: ms a step for all",
        "8.5 (goal 4)",
        by_precision("step", "ms", "{:.2f}", workload="papers' CNN", clients=62, way="default"),
    ),
    (
        "the same: how many times as fast as plain torch",
        "10",
        by_precision("step", "times_plain", "{:.1f}", workload="papers' CNN", clients=62, way="default"),
    ),
    (
        "the same: how many times as fast as the fairest torch",
        "",
        by_precision("step", "times_fairest", "{:.1f}", workload="papers' CNN", clients=62, way="default"),
    ),
    (
        "practical EMNIST, 10 epochs: s a round, of 40 and three seeds",
        "0.6 (goal 0.3)",
        by_precision("accuracy", "seconds", "{:.2f}", workload=EMNIST, seed="mean"),
    ),
    (
        "the same as a user starts it, `precision` set alone (`float32` is TF32): s a round",
        "float32 at most 2.5 × bf16",
        as_started,
    ),
    (
        "the same: best mean accuracy of the cloud models, three seeds",
        "within 0.3 points",
        by_precision("accuracy", "best_cloud", "{:.2%}", workload=EMNIST, seed="mean"),
    ),
    (
        "ResNet-18, CIFAR stem, 100 clients: ms a client and step",
        "4.5 (goal 2)",
        by_precision("step", "ms_per_client", "{:.2f}", workload=CIFAR, clients=100, way="default"),
    ),
    (
        "ResNet-18, ImageNet stem, 100 clients: ms a client and step",
        "3.2 (goal 0.5)",
        by_precision("step", "ms_per_client", "{:.2f}", workload=IMAGENET, clients=100, way="default"),
    ),
    (
        "attention and mixing, 100 clients with ResNet-18 (11.2 M): copies of W in the same time",
        "5",
        claim("collaboration", "times_copy", "{:.1f}", parameters=11_229_732, way="distances and mixing"),
    ),
    (
        "warm-up of ResNet-18 in rounds, with reading the data and compiling",
        "3",
        claim("warmup", "warmup_rounds", "{:.1f}", workload=RESNET, kernels="compiled now"),
    ),
]


# ---- pictures ----


def bars(rows: Sequence[Row]) -> list[Any]:
    """For each workload, ms a step for all clients of each way: with most clients, and as anyone would train them."""
    most = {row["workload"]: max(r["clients"] for r in rows if r["workload"] == row["workload"]) for row in rows}
    usual = {row["precision"] for row in rows} - {"float32"} or {"float32"}
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        if "ms" in row and row["clients"] == most[row["workload"]] and row["precision"] in usual:
            label = f"{row['workload']}\n{row['clients']} clients, {row['precision']}"
            groups.setdefault(label, {})[row["way"]] = row["ms"]
    return [[label, ways] for label, ways in groups.items() if len(ways) > 1]


def over_clients(rows: Sequence[Row]) -> list[Any]:
    """For each workload and way, (clients, ms a step for all)."""
    lines: dict[str, list[list[float]]] = {}
    for row in rows:
        if row["along"] == "clients" and "ms" in row:
            label = f"{row['workload']}: {bench.WAYS[row['way']]}"
            lines.setdefault(label, []).append([row["value"], row["ms"]])
    return [[label, points] for label, points in lines.items() if len(points) > 1]


def beside_copies(rows: Sequence[Row]) -> list[Any]:
    """For each way, (clients, ms) where the number of clients varies."""
    lines: dict[str, list[list[float]]] = {}
    for row in rows:
        if row["along"] == "clients" and "ms" in row:
            label = f"{row['way']}, {row['parameters']:,} parameters a client"
            lines.setdefault(label, []).append([row["clients"], row["ms"]])
    return [[label, points] for label, points in lines.items() if len(points) > 1]


FIGURES: dict[str, tuple[str, Callable[[Sequence[Row]], list[Any]]]] = {
    "step": ("Milliseconds of one step for all clients, by way", bars),
    "growth": ("Milliseconds of one step over the number of clients", over_clients),
    "collaboration": ("Attention and mixing beside a copy of the same bytes", beside_copies),
}


def digest(values: Any) -> str:
    """Tells which numbers a picture was drawn from; it stands in the file."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def draw(found: Mapping[str, Sections]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams |= {"svg.hashsalt": "fedkin", "svg.fonttype": "none", "font.size": 9}
    PICTURES.mkdir(exist_ok=True)
    for device, sections in found.items():
        for name, (title, values_of) in FIGURES.items():
            values = values_of(sections[name]["rows"]) if name in sections else []
            if not values:
                continue
            figure = (draw_bars if name == "step" else draw_lines)(pyplot, values, title)
            about = {"Date": None, "Description": f"drawn from {digest(values)}"}
            figure.savefig(PICTURES / f"{name}-{device}.svg", metadata=about)
            pyplot.close(figure)


def draw_bars(pyplot: Any, groups: Sequence[Any], title: str) -> Any:
    """A panel a workload, each with a scale of its own: a bar's length is time."""
    columns = min(2, len(groups))
    lines = -(-len(groups) // columns)
    figure, panels = pyplot.subplots(
        lines, columns, figsize=(8, 0.6 + 1.7 * lines), squeeze=False, layout="constrained"
    )
    figure.suptitle(title, x=0.01, ha="left")
    order = list(bench.WAYS)
    for axes in panels.flat[len(groups) :]:
        axes.axis("off")
    for axes, (label, ways) in zip(panels.flat, groups, strict=False):
        names = [way for way in order if way in ways]
        drawn = axes.barh(
            [bench.WAYS[way] for way in names],
            [ways[way] for way in names],
            color=[COLOURS[way] for way in names],
        )
        axes.bar_label(drawn, [f" {plain(f'{ways[way]:.3g}')}" for way in names])
        axes.invert_yaxis()
        axes.set_title(label, loc="left", fontsize=9)
        axes.set_xlim(0, 1.18 * max(ways.values()))
        axes.set_xticks([])
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    return figure


COLOURS = {"plain": "#b0b0b0", "fairest": "#808080", "one-by-one": "#a6c8e0", "vmap": "#5b9bc9", "default": "#0b5394"}


def draw_lines(pyplot: Any, lines: Sequence[Any], title: str) -> Any:
    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    for i, (label, points) in enumerate(lines):
        axes.loglog(*zip(*points, strict=True), marker="osv^"[i % 4], markersize=5, linewidth=1.5, label=label)
    axes.set_title(title, loc="left")
    axes.set_xlabel("clients")
    axes.set_ylabel("ms")
    axes.grid(color="#e5e5e5")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


if __name__ == "__main__":
    main()
