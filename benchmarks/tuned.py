"""Digits in several worlds, every method with the same grid on its own learning rate, chosen on validation data.

    python benchmarks/tuned.py                                            all methods, three worlds, three seeds
    python benchmarks/tuned.py --worlds practical --methods separate,fedavg --results here --page here/page.md

Runs what is missing, writes benchmarks/results/tuned.json, a page with pictures beside the runs (report.html), and
docs/tuned.md, which is made from the JSON alone (`--page-only` makes it again).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fedkin
from fedkin import methods
from fedkin.engines import summary
from fedkin.report import training
from fedkin.report.words import score_text

HERE = Path(__file__).parent
WORLDS = {
    "practical": "label skew: groups see different digits, and nobody disagrees",
    "relabelled": "conflict: groups call the same digits by different names",
    "mixed": "clients that agree, groups that call digits by other names, and loners who resemble nobody",
}
Found = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--methods", default=",".join(methods.names()))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="the data set's own by default")
    parser.add_argument("--tune", default="", help="rates or factors, separated by commas; x0.1,x0.3,x1,x3,x10")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-tuned"))
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs" / "tuned.md")
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args()
    target = options.results / "tuned.json"
    if not options.page_only:
        options.results.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(measured(options), indent=1) + "\n", encoding="utf-8")
    options.page.write_text(page(json.loads(target.read_text(encoding="utf-8"))), encoding="utf-8")


def measured(options: argparse.Namespace) -> Found:
    """Compares all methods in every world; runs that are complete are kept."""
    began = time.perf_counter()

    def tell(world: str, method: str, seed: int) -> fedkin.Listener:
        print(f"{world}: {method}, seed {seed}", file=sys.stderr)
        return fedkin.Listener()

    settings: dict[str, Any] = {"data": {"name": "digits"}, "graph": {"source": "inferred"}}
    settings |= {"rounds": options.rounds} if options.rounds else {}
    crossed = fedkin.cross(
        settings,
        over={"data.split": options.worlds.split(",")},
        methods=options.methods.split(","),
        seeds=options.seeds,
        tune=options.tune.split(",") if options.tune else True,
        out=options.out,
        jobs=options.jobs,
        listener=tell,
    )
    crossed.report()
    for each in crossed.crossings:
        each.results.report()
    return {
        "command": "python benchmarks/tuned.py",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": summary.versions(),
        "commit": summary.commit(),
        "seconds": round(time.perf_counter() - began),
        "seeds": options.seeds,
        "rounds": crossed.crossings[0].runs[0].summary.rounds,
        "worlds": {each.values["data.split"]: world(each) for each in crossed.crossings},
    }


def world(each: Any) -> Found:
    """What was found in one world: rows, the rates that were tried, and sentences."""
    found, conditions = each.findings, {"": each.findings}
    p_values = {pair.second: pair.p for pair in found.tests("separate")} if "separate" in found.members else {}
    rows = [
        {
            "row": row.name,
            "headline": row.headline,
            "best": row.bmta,
            "worst": row.worst,
            "std_seeds": row.std_seeds,
            "validated": row.validated,
            "p": p_values.get(row.name),
            "trained_with": found.trained_with.get(row.method, ""),
        }
        for row in found.rows
    ]
    tried = {
        method: {
            "rate": rates.setting,
            "own": rates.own,
            "chosen": rates.rate,
            "edge": rates.edge is not None,
            "tried": {t.name: [t.values[rates.setting], t.validation] for t in rates.trials},
        }
        for method, rates in found.tuned.items()
    }
    below, edges = training.below_sentences(conditions), training.edge_sentences(conditions)
    clients = len(found.runs[0].summary.clients)
    return {"clients": clients, "metric": found.metric, "rows": rows, "tuned": tried, "below": below, "edges": edges}


# ---- the page ----


def page(record: Found) -> str:
    """docs/tuned.md."""
    minutes = record["seconds"] / 60
    parts = [
        "# Every method at its best rate\n",
        f"Digits, {record['rounds']} rounds, {record['seeds']} seeds. Each method has the same grid of "
        "factors on its own learning rate ([`compare --tune`](tune.md#comparisons-without-straw-men)), and validation "
        "data choose; test data have no say. Local training is otherwise the data set's, with the same number of "
        "gradients for all.\n",
        f"Made by `{record['command']}` from `benchmarks/results/tuned.json` at commit `{str(record['commit'])[:12]}` "
        f"({record['machine']}, {minutes:.0f} minutes for what was not there yet).\n",
        "“Validated” is the honest column: the test mean of the round that validation data chose. “Best” is the best "
        "round on test data. p: Wilcoxon’s signed-rank test over clients and seeds against Separate, two-sided, after "
        "Holm. A rate in bold lies at the edge of what was tried.\n",
        _across(record["worlds"]),
    ]
    for name, found in record["worlds"].items():
        parts.append(
            f"## {name.capitalize()}\n\n{found['clients']} clients; {WORLDS.get(name, 'a split of the digits')}.\n"
        )
        parts.append(_rows(found))
        parts.append("### Below Separate, and why\n\n" + (_listed(found["below"]) or "No method is.\n"))
        parts.append("### What was tried\n\nValidation scores; the chosen one is bold.\n\n" + _tried(found))
        if found["edges"]:
            parts.append(_listed(found["edges"]))
    return "\n".join(parts)


def _markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(["| " + " | ".join(each) + " |" for each in [heads, ["---"] * len(heads), *lines]]) + "\n"


def _listed(sentences: Sequence[str]) -> str:
    return "".join(f"- {sentence}\n" for sentence in sentences)


def _across(worlds: Found) -> str:
    """Headline models in all worlds, at the round that validation data chose."""
    scores = {
        world: {row["row"]: row["validated"] for row in found["rows"] if row["headline"]}
        for world, found in worlds.items()
    }
    names = sorted({name for own in scores.values() for name in own}, key=lambda n: -sum(_known(scores, n)))
    metric = next(iter(worlds.values()))["metric"]
    best = {world: max((v for v in own.values() if v is not None), default=None) for world, own in scores.items()}
    lines = []
    for name in names:
        cells = [(scores[world].get(name), best[world]) for world in worlds]
        lines.append([name, *(_bold(score_text(v, metric), v is not None and v == top) for v, top in cells)])
    return _markdown(["validated", *worlds], lines)


def _known(scores: Found, name: str) -> list[float]:
    return [own[name] for own in scores.values() if own.get(name) is not None]


def _bold(text: str, so: bool) -> str:
    return f"**{text}**" if so else text


def _rows(found: Found) -> str:
    metric = found["metric"]
    lines = []
    for row in found["rows"]:
        method = row["row"].partition(":")[0]
        edge = found["tuned"][method]["edge"]
        scores = [score_text(row[key], metric) for key in ("validated", "best", "worst", "std_seeds")]
        p = "" if row["p"] is None else f"{row['p']:.2g}"
        lines.append([_bold(row["row"], row["headline"]), *scores, p, _bold(row["trained_with"], edge)])
    return _markdown(["method:model", "validated", "best", "worst client", "± seeds", "p", "trained with"], lines)


def _tried(found: Found) -> str:
    words = list(dict.fromkeys(word for own in found["tuned"].values() for word in own["tried"]))
    lines = []
    for method, own in found["tuned"].items():
        cells = []
        for word in words:
            rate, score = own["tried"].get(word, (None, None))
            told = "" if rate is None else "diverged" if score is None else score_text(score, found["metric"])
            cells.append(_bold(told, rate == own["chosen"]))
        lines.append([method, f"`{own['rate']}`", *cells, f"{own['chosen']:g}"])
    return _markdown(["method", "rate", *words, "chosen"], lines)


if __name__ == "__main__":
    main()
