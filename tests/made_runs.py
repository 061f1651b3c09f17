"""Run folders made by hand, so that no training is needed: what stands in them is known, and what has to follow."""

from __future__ import annotations

import json
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkin.evidence.comparison import round_taken
from fedkin.evidence.outputs import Outputs
from fedkin.evidence.records import Line, Summary

GROUPS = [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
LEVEL = {"separate": 0.74, "fedavg": 0.80, "fedamp": 0.91, "heurfedamp": 0.90}
MODELS = {
    "separate": ["personal"],
    "fedavg": ["global", "finetuned"],
    "fedamp": ["cloud", "personal"],
    "heurfedamp": ["cloud", "personal"],
}


class Folder:
    """What is read of a run, straight from its folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answered: Outputs | None = None

    @cached_property
    def summary(self) -> Summary:
        return Summary.read(json.loads((self.path / "summary.json").read_text()))

    def change(self, **values: Any) -> None:
        """As if the summary said otherwise."""
        self.summary = Summary.read({**self.summary, **values})

    @cached_property
    def config(self) -> dict[str, Any]:
        return tomllib.loads((self.path / "config.toml").read_text())

    @cached_property
    def rounds(self) -> list[Line]:
        return [Line.read(json.loads(line)) for line in (self.path / "rounds.jsonl").read_text().splitlines()]

    @property
    def graph(self) -> Any:
        path = self.path / "graph.npy"
        return np.load(path) if path.exists() else None

    @property
    def recorded(self) -> list[int]:
        return sorted(int(file.stem[6:]) for file in (self.path / "collaboration").glob("round-*.npy"))

    def collaboration(self, round: int | None = None) -> Any:
        if not self.recorded:
            return None
        taken = round_taken(self)
        chosen = round if round is not None else min(self.recorded, key=lambda k: abs(k - taken))
        return np.load(self.path / "collaboration" / f"round-{chosen:04d}.npy")

    def outputs(self, client: str | None = None) -> Outputs | None:
        return self.answered


def answered(
    run: Folder, share: dict[str, float], tests: int = 40, beside: dict[str, dict[str, float]] | None = None
) -> Folder:
    """The run with test outputs: of each client's samples, of class 0 and 1 in turn, this share is answered rightly;
    beside: {name: shares} of what needs no federation."""
    y, count = torch.arange(tests) % 2, len(run.summary["clients"])

    def answers(right: dict[str, float]) -> torch.Tensor:
        parts = [torch.where(torch.arange(tests) < right[name] * tests, y, 1 - y) for name in run.summary["clients"]]
        return 2.0 * torch.nn.functional.one_hot(torch.cat(parts), 2)

    outputs, model = answers(share), run.summary["headline"]
    names, counts, handed = tuple(run.summary["clients"]), (tests,) * count, (model,) * count
    untrained = {name: answers(right) for name, right in (beside or {}).items()}
    models = {"chosen": outputs, model: outputs}
    run.answered = Outputs(names, counts, handed, models, y.repeat(count), "classification", beside=untrained)
    return run


def make(
    folder: Path,
    method: str = "fedamp",
    seed: int = 0,
    rounds: int = 12,
    groups: list[int] | None = GROUPS,
    clients: list[str] | None = None,
    metric: str = "accuracy",
    validation: bool = True,
    settings: str = "",
    vectors: dict[str, list[list[float]]] | None = None,
) -> Folder:
    """A run folder. Accuracies are multiples of 2 %; `vectors` {model: (rounds, clients)} sets them by hand."""
    rng = np.random.default_rng([seed, *method.encode()])
    world = np.random.default_rng(seed)
    names = clients or [f"silo-{i:02d}" for i in range(len(groups or GROUPS))]
    m, higher = len(names), metric == "accuracy"
    hardness = world.normal(0, 0.05, m)
    lines: list[dict[str, Any]] = []
    for k in range(1, rounds + 2):
        models = {}
        for place, model in enumerate(MODELS[method]):
            level = LEVEL[method] - 0.03 * place - 0.6 * np.exp(-k / (2 + place))
            score = np.clip(level + hardness + rng.normal(0, 0.02, m), 0.02, 1)
            values = np.round(score * 50) / 50 if higher else (1 - score) ** 2 * 0.1
            if vectors is not None:
                values = np.array(vectors[model][k - 1])
            checked = (values[1:] + rng.normal(0, 0.01, m - 1)).tolist()
            models[model] = {
                "mean": values.mean(),
                "std": values.std(),
                "clients": values.tolist(),
                "validation": {"mean": float(np.mean(checked)), "clients": [None, *checked]} if validation else None,
            }
        lines.append({"round": k, "seconds": 0.4, "bytes_down": 10, "bytes_up": 10, "participants": names,
                      "train_loss": 1 / k, "models": models} | ({"final": True} if k > rounds else {}))  # fmt: skip
    novel = {model: {"mean": 0.99, "std": 0.0, "clients": [0.99], "validation": None} for model in MODELS[method]}
    lines.append({"round": rounds + 2, "participants": ["newcomer"], "models": novel, "novel": True})
    known = {}
    for model in MODELS[method]:
        means = [line["models"][model]["mean"] for line in lines[:-1]]
        best = int(np.argmax(means) if higher else np.argmin(means))
        known[model] = {"bmta": means[best], "bmta_round": best + 1, "last": means[-1], "validated": None}
    summary = {
        "method": method, "data": "digits", "split": "relabelled", "seed": seed, "rounds": rounds, "clients": names,
        "groups": groups, "samples": [100 + 10 * i for i in range(m)], "metric": metric, "higher_is_better": higher,
        "headline": MODELS[method][0], "models": known, "collaboration": None, "bytes_down": 6_200_000 * rounds,
        "bytes_up": 6_100_000 * rounds, "seconds": 21.5, "peak_bytes": 812_000_000, "device": "cpu",
        "versions": {"torch": "2.13.0", "numpy": "2.4.6"}, "commit": "0123abc", "execution": {"way": "stacked"},
    }  # fmt: skip
    (folder / "collaboration").mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    training = "[training]\nepochs = 3\nbatch = 32\n"
    (folder / "config.toml").write_text(f'seed = {seed}\n[method]\nname = "{method}"\n{settings}\n{training}')
    if "amp" in method:
        same = np.equal.outer(*[np.array(groups if groups is not None else GROUPS[:m])] * 2)
        for k in range(1, rounds + 1, 2):
            weight = np.where(same, 1.0, np.exp(-k / 3)) * rng.uniform(0.9, 1.1, (m, m))
            np.fill_diagonal(weight, 0)
            xi = 0.8 * weight / weight.sum(axis=1, keepdims=True) + 0.2 * np.eye(m)
            np.save(folder / "collaboration" / f"round-{k:04d}.npy", xi.astype(np.float32))
    return Folder(folder)


def several(folder: Path, methods: list[str], seeds: list[int], **options: Any) -> list[Folder]:
    return [make(folder / f"{method}-{seed}", method, seed, **options) for method in methods for seed in seeds]


def welcomed(run: Folder, scores: dict[str, list[float | None]]) -> Folder:
    """The run with newcomers: {model: their scores}."""
    names = [f"new-{i}" for i in range(len(next(iter(scores.values()))))]
    run.change(novel={"clients": names, "models": {model: {"clients": each} for model, each in scores.items()}})
    return run
