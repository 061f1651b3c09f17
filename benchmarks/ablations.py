"""FedAMP's, HeurFedAMP's and Panacea's settings, a few at a time: what each does on digits and on FL-60.

    python benchmarks/ablations.py            about ten minutes on a core; writes benchmarks/results/ablations.json
    python benchmarks/ablations.py --page     rewrites the tables and the picture of docs/ablations.md from that JSON

What is complete in --out is kept. The numbers in the documentation come from this script; the JSON says on which
machine and at which commit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fedkin
from fedkin.engines import summary

SEEDS = [100, 101, 102]
BOTH = ["fedamp", "heurfedamp"]
SPLITS = ["relabelled", "practical"]
MODELS = {"fedamp": ["cloud", "personal"], "heurfedamp": ["cloud", "personal"], "panacea": ["generated", "personal"]}

WEIGHTS = [0, 0.25, 0.5, 0.65, 0.75, 0.85, 0.95, "auto", "attention"]
SIGMAS = [0.1, 1, 3, 10, 30, 100, 1000, 10000, "auto"]
KNOWN_WEIGHT = 0.75
"""1 - 1 / (N + 1) for the three kin that each of the twenty clients has."""
BETAS = [0.01, 0.1, 1, 100, 10000]
DECAYS = {"stays": (1.0, 30), "every 30": (0.1, 30), "every 10": (0.1, 10)}
BETA_ROUNDS = 60
FUNCTIONS: dict[str, tuple[str, list[float]]] = {
    "negative_exponential": ("sigma", [1, 3, 10]),
    "tamed_square_root": ("sigma", [0.3, 3, 10]),
    "mcp": ("gamma", [3, 10, 30]),
    "scad": ("height", [1, 3, 10]),
}
STRENGTHS = [0.1, 0.3, 1, 3, 10]
STARTS = ["common", "independent", "pretrained"]
PANACEA: dict[str, list[float]] = {
    "settings.server_steps": [1, 2, 5, 10],
    "settings.embedding": [3, 10, 30, 100, 300],
    "settings.layers": [1, 2, 3, 5],
    "settings.hidden": [10, 30, 100, 300],
    "participation.sample": [0.2, 0.5, 1.0],
}
PANACEA_ROUNDS = 50
EARLY = 20
ATTACK = {"labels": 1.0, "kind": "random", "clients": 0.4}

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "ablations.json"
PAGE = HERE.parent / "docs" / "ablations.md"
PICTURE = HERE.parent / "docs" / "images" / "ablations-sigma.png"
Found = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-ablations"))
    parser.add_argument("--page", action="store_true", help="run nothing, rewrite the page from the JSON")
    options = parser.parse_args()
    if not options.page:
        RESULTS.write_text(json.dumps(measured(options.out), indent=1) + "\n", encoding="utf-8")
    record = json.loads(RESULTS.read_text(encoding="utf-8"))
    if options.page:
        draw(record)
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables(record)), encoding="utf-8")
    else:
        print("\n\n".join(tables(record).values()))


# ---- runs ----


def measured(out: Path) -> Found:
    began, commit = time.perf_counter(), summary.commit()
    studies = {
        "beside": beside(out),
        "weight": crossed(out, "weight", BOTH, {"settings.weight_on_others": WEIGHTS}),
        "sigma": crossed(
            out, "sigma", BOTH, {"settings.sigma": SIGMAS, "settings.weight_on_others": [KNOWN_WEIGHT, "auto"]}
        ),
        "beta": betas(out),
        "practice": functions(out),
        "theory": theory(out),
        "starts": crossed(out, "starts", BOTH, {"settings.init": STARTS, "settings.init_from": ["cloud", "local"]}),
        "panacea": panacea(out),
    }
    return {
        "command": "python benchmarks/ablations.py",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": summary.versions(),
        "commit": commit,
        "seconds": round(time.perf_counter() - began),
        "seeds": SEEDS,
        "studies": studies,
    }


def tell(where: str, method: str, seed: int) -> fedkin.Listener:
    print(f"{where}: {method}, seed {seed}", file=sys.stderr)
    return fedkin.Listener()


def crossed(
    out: Path, name: str, methods: Sequence[str], over: Mapping[str, Sequence[Any]], **settings: Any
) -> list[Found]:
    """Digits under every combination of these settings, in both splits."""
    found = fedkin.cross(
        over={"data.split": SPLITS, **over},
        methods=methods,
        seeds=SEEDS,
        data="digits",
        out=out / name,
        listener=tell,
        **settings,
    )
    return [row for each in found.crossings for row in rows_of(each.results, plain(each.values))]


def beside(out: Path) -> list[Found]:
    """Training alone, one model for all, and one for each true group."""
    return crossed(out, "beside", ["separate", "fedavg", "groups"], {})


def betas(out: Path) -> list[Found]:
    rows = []
    for decay, (factor, every) in DECAYS.items():
        settings = {"beta_decay": factor, "beta_every": every}
        name = f"beta-{decay.replace(' ', '-')}"
        own = crossed(out, name, BOTH, {"settings.beta": BETAS}, settings=settings, rounds=BETA_ROUNDS)
        rows += [{**row, "values": {**row["values"], "decay": decay}} for row in own]
    return rows


def functions(out: Path) -> list[Found]:
    """The four attention functions in practice mode, each over its width."""
    rows = []
    for name, (width, values) in FUNCTIONS.items():
        over = {f"settings.{width}": values}
        own = crossed(out, f"practice-{name}", ["fedamp"], over, settings={"attention": name})
        rows += [{**row, "values": {**row["values"], "attention": name}} for row in own]
    return rows


def theory(out: Path) -> list[Found]:
    """The same as steps down the gradient of equation (1), each at its middle width, over lambda."""
    rows = []
    for name, (width, values) in FUNCTIONS.items():
        # Theory mode asks for a sigma, and does not look at it where the function has none.
        settings = {"attention": name, "mode": "theory", "sigma": 1, width: values[1]}
        own = crossed(out, f"theory-{name}", ["fedamp"], {"settings.strength": STRENGTHS}, settings=settings)
        rows += [{**row, "values": {**row["values"], "attention": name}} for row in own]
    return rows


def panacea(out: Path) -> list[Found]:
    """FL-60, one setting at a time: clean, and with clients that train on random labels."""
    rows = []
    for world, corruption in {"clean": {}, "attacked": ATTACK}.items():
        found = fedkin.vary(
            levels=PANACEA,
            methods=["panacea"],
            seeds=SEEDS,
            data="fl60",
            rounds=PANACEA_ROUNDS,
            corruption=corruption,
            out=out / f"panacea-{world}",
            listener=tell,
        )
        for level in found.levels:
            values = {"world": world, "setting": level.setting.rpartition(".")[2], "value": level.value}
            rows += rows_of(level.results, values)
    return rows


def plain(values: Mapping[str, Any]) -> Found:
    """Settings by their last names."""
    return {name.rpartition(".")[2]: value for name, value in values.items()}


def rows_of(results: fedkin.Results, values: Found) -> list[Found]:
    """A row for each model: the chosen round, its deviation over seeds, the last round; and what attention was."""
    found = []
    for row in results.rows():
        runs = [run for run in results.runs if run.summary.method == row.method]
        shares = [run.summary.collaboration.within_group for run in runs if run.summary.collaboration is not None]
        own = {
            "values": values,
            "method": row.method,
            "model": row.model,
            "headline": row.headline,
            "score": round(row.score, 6),
            "std_seeds": None if row.std_seeds is None else round(row.std_seeds, 6),
            "last": round(row.last, 6),
            "within_group": mean(round(share, 6) for share in shares if share is not None),
        }
        if row.method == "panacea":
            own |= parts(runs, row.model)
        found.append(own)
    return found


def parts(runs: Sequence[fedkin.Run], model: str) -> Found:
    """The mean score early on, and at the end that of clients with true labels and of those without."""
    early, told = [], {"benign": [], "attacked": []}
    for run in runs:
        early += [line.models[model].mean for line in run.rounds if line.round == EARLY]
        hit = set(run.summary.corrupted)
        for name, score in zip(run.summary.clients, run.rounds[-1].models[model].clients, strict=True):
            told["attacked" if name in hit else "benign"].append(score)
    return {"early": mean(early), **{who: mean(scores) for who, scores in told.items()}}


def mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return round(sum(known) / len(known), 6) if known else None


# ---- tables ----


def tables(record: Found) -> dict[str, str]:
    """What stands between the page's markers, by their names."""
    studies = record["studies"]
    made = {"beside": beside_table(studies["beside"])}
    for split in SPLITS:
        own = {name: [r for r in rows if r["values"].get("split") == split] for name, rows in studies.items()}
        made[f"weight, {split}"] = by_settings(own["weight"], ["weight_on_others"], BOTH)
        made[f"sigma, {split}"] = by_settings(own["sigma"], ["weight_on_others", "sigma"], BOTH)
        made[f"starts, {split}"] = by_settings(own["starts"], ["init", "init_from"], BOTH)
        made[f"beta, {split}"] = by_settings(own["beta"], ["beta", "decay"], BOTH, share=False)
    for mode in ("practice", "theory"):
        made[mode] = functions_table(studies[mode])
    made["panacea"] = panacea_table(studies["panacea"])
    made["origin"] = (
        f"Measured by `{record['command']}`, seeds {', '.join(map(str, record['seeds']))}, {record['machine']}, torch "
        f"{record['versions']['torch']}, commit {record['commit']}, {record['seconds'] / 60:.0f} minutes."
    )
    return made


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(each) + " |" for each in [heads, ["---"] * len(heads), *lines])


def score(row: Found) -> str:
    """The chosen round in per cent, ± over seeds; the last one in brackets, where it reads otherwise."""
    chosen, last = f"{100 * row['score']:.1f}", f"{100 * row['last']:.1f}"
    deviation = "" if row["std_seeds"] is None else f" ± {100 * row['std_seeds']:.1f}"
    return chosen + deviation + (f" ({last})" if last != chosen else "")


def share(row: Found) -> str:
    return "" if row["within_group"] is None else f"{row['within_group']:.2f}"


def one(rows: Iterable[Found], method: str, model: str) -> Found:
    return next(row for row in rows if (row["method"], row["model"]) == (method, model))


def cells(rows: Sequence[Found], methods: Sequence[str], shares: bool = True) -> list[str]:
    """Each method's models, the headline first, and the share of attention inside the groups."""
    made = []
    for method in methods:
        own = [one(rows, method, model) for model in MODELS[method]]
        made += [score(row) for row in own] + ([share(own[0])] if shares else [])
    return made


def heads(methods: Sequence[str], shares: bool = True) -> list[str]:
    return [h for m in methods for h in [*(f"{m}:{model}" for model in MODELS[m]), *(["share"] if shares else [])]]


def together(rows: Sequence[Found], names: Sequence[str]) -> dict[tuple[Any, ...], list[Found]]:
    """Rows by the values of these settings, in the order in which they were run."""
    found: dict[tuple[Any, ...], list[Found]] = {}
    for row in rows:
        found.setdefault(tuple(row["values"][name] for name in names), []).append(row)
    return found


def text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:,g}" if value < 1e6 else f"{value:g}"


def by_settings(rows: Sequence[Found], names: Sequence[str], methods: Sequence[str], share: bool = True) -> str:
    found = together(rows, names)
    order = {name: list(dict.fromkeys(row["values"][name] for row in rows)) for name in names}
    keys = sorted(found, key=lambda key: [order[name].index(value) for name, value in zip(names, key, strict=True)])
    lines = [[*map(text, key), *cells(found[key], methods, share)] for key in keys]
    return markdown([*(f"`{name}`" if name != "decay" else name for name in names), *heads(methods, share)], lines)


def beside_table(rows: Sequence[Found]) -> str:
    names = dict.fromkeys((row["method"], row["model"]) for row in rows)
    found = together(rows, ["split"])
    lines = [[":".join(name), *(score(one(found[(split,)], *name)) for split in SPLITS)] for name in names]
    return markdown(["method:model", *SPLITS], lines)


def functions_table(rows: Sequence[Found]) -> str:
    """Both splits side by side; what varies is the function's width or, in theory mode, lambda."""
    lines: dict[tuple[str, str], list[str]] = {}
    for split in SPLITS:
        for row in rows:
            values = row["values"]
            if values["split"] == split and row["headline"]:
                name, value = next((k, v) for k, v in values.items() if k not in ("split", "attention"))
                same = [r for r in rows if r["values"] == values]
                key = (f"`{values['attention']}`", f"`{name}` {text(value)}")
                lines.setdefault(key, []).extend(cells(same, ["fedamp"]))
    sides = [f"{split}: {models}" for split in SPLITS for models in ("cloud", "personal", "share")]
    return markdown(["function", "at", *sides], [[*key, *made] for key, made in lines.items()])


def panacea_table(rows: Sequence[Found]) -> str:
    columns = [f"at {EARLY}", "generated", "personal"]
    attacked = [f"at {EARLY}", "benign", "attacked", "personal, benign", "attacked"]
    lines = []
    for (setting, value), own in together(rows, ["setting", "value"]).items():
        made = [f"`{setting}`", text(value)]
        for world in ("clean", "attacked"):
            here = [row for row in own if row["values"]["world"] == world]
            written, trained = one(here, "panacea", "generated"), one(here, "panacea", "personal")
            made.append(per_cent(written["early"]))
            if world == "clean":
                made += [score(written), score(trained)]
            else:
                made += [per_cent(row[who]) for row in (written, trained) for who in ("benign", "attacked")]
        lines.append(made)
    return markdown(["setting", "", *columns, *(f"40 %: {attacked[0]}", *attacked[1:])], lines)


def per_cent(value: float) -> str:
    return f"{100 * value:.1f}"


def filled(page: str, made: Mapping[str, str]) -> str:
    """The page with what was made between its markers."""
    for name, content in made.items():
        head, rest = page.split(f"<!-- {name} -->", 1)
        page = f"{head}<!-- {name} -->\n{content}\n<!-- end {name} -->{rest.split(f'<!-- end {name} -->', 1)[1]}"
    return page


# ---- the picture ----


def draw(record: Found) -> None:
    """Accuracy of the cloud models over sigma, a panel for each split."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        for split, axes in zip(SPLITS, figure.subplots(1, 2, sharey=True), strict=True):
            panel(axes, split, record["studies"])
        figure.savefig(PICTURE, dpi=150, metadata={"Software": None})


def panel(axes: Any, split: str, studies: Found) -> None:
    for method, colour in zip(BOTH, ("#0072b2", "#d55e00"), strict=True):
        for weight, style in ((KNOWN_WEIGHT, "--"), ("auto", "-")):
            own = {
                row["values"]["sigma"]: 100 * row["score"]
                for row in studies["sigma"]
                if (row["method"], row["model"]) == (method, "cloud")
                and (row["values"]["split"], row["values"]["weight_on_others"]) == (split, weight)
            }
            fixed = [sigma for sigma in SIGMAS if sigma != "auto"]
            label = f"{method}, weight on others {weight}"
            axes.plot(fixed, [own[sigma] for sigma in fixed], style, color=colour, marker=".", label=label)
            if weight == "auto":
                axes.axhline(own["auto"], color=colour, linewidth=0.7, linestyle=":", label=f"{method}, both auto")
    for row in studies["beside"]:
        if row["headline"] and row["values"]["split"] == split and row["method"] == "separate":
            axes.axhline(100 * row["score"], color="#888888", linewidth=0.7, label="separate")
    axes.set(xscale="log", xlabel="sigma", title=split)
    if split == SPLITS[0]:
        axes.set_ylabel("accuracy of cloud models, %")
        axes.figure.legend(loc="outside right center", frameon=False, handles=axes.get_lines())


if __name__ == "__main__":
    main()
