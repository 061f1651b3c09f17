"""Whole rounds through the engine: their time, the first one's, their memory, and what bf16 does to accuracy."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..base.weights import Layout
from ..data.federation import Federation
from ..engines.simulation import Interrupted, Listener, Simulation
from ..engines.start import prepare
from ..errors import FedkinError
from ..evidence.records import Line
from ..runs.folder import Writer
from ..studies import compare
from ..studies import demo as demonstration
from .steps import Workload, cnn, mlp
from .timing import Arithmetic, Peak, Plan, Row, alone, forget, nothing_compiled, set_for_fedkin, setting, settle

DIGITS: dict[str, Any] = {"method": "fedamp", "data": {"name": "digits", "split": "relabelled"}}
EMNIST: dict[str, Any] = {"method": "fedamp", "data": {"name": "emnist", "split": "practical", "validation": 0.0}}
CIFAR: dict[str, Any] = {"method": "fedamp", "data": {"name": "cifar100", "split": "practical", "validation": 0.0}}


@dataclass(frozen=True)
class Rounds:
    """What some rounds came to."""

    prepared: float
    """Seconds before the first round: data are read, the way to stack is chosen, kernels are compiled for that."""
    seconds: list[float]
    """Of each round, evaluation of every model included, from the end of the one before."""
    scores: dict[str, list[float]]
    """For each model the mean over clients after each round."""
    clients: int
    samples: int
    way: str
    cuda: bool
    peak_bytes: int | None

    @property
    def first(self) -> float:
        return self.seconds[0]

    @property
    def later(self) -> list[float]:
        return self.seconds[1:] or self.seconds


def carried_out(
    settings: Mapping[str, Any], rounds: int, device: torch.device, federation: Federation | None = None
) -> Rounds:
    """The first rounds of a run; it is stopped before it would save models."""
    forget(device)
    peak = Peak(device)
    started = time.perf_counter()
    ready = prepare({**settings, "device": device.type, "rounds": rounds}, federation=federation)
    ends: list[float] = []
    scores: dict[str, list[float]] = {}

    def on_round(record: Line) -> None:
        settle(device)
        ends.append(time.perf_counter())
        for name, model in record.models.items():
            scores.setdefault(name, []).append(float("nan") if model.mean is None else model.mean)

    listener = Listener(on_round=on_round, stop=lambda: len(ends) >= rounds)
    with tempfile.TemporaryDirectory() as folder:
        simulation = Simulation(ready, Writer.create(Path(folder) / "run", ready.config), listener)
        simulation.recorder.saves = False  # its folder gets a line a round and nothing else
        settle(device)
        began = time.perf_counter()
        with suppress(Interrupted):
            simulation.run()
    seconds = [end - start for start, end in zip([began, *ends], ends, strict=False)]
    samples = sum(ready.cohort.samples)
    return Rounds(
        began - started,
        seconds,
        scores,
        len(ready.problem),
        samples,
        ready.execution.name,
        peak.device.type == "cuda",
        peak.bytes,
    )


def told(found: Rounds) -> Row:
    taken = {"peak_bytes": found.peak_bytes} if found.cuda else {}  # of a process that did other things, it says little
    return {
        "clients": found.clients,
        "samples": found.samples,
        "way": found.way,
        "seconds": statistics.median(found.later),
        "seconds_low": min(found.later),
        "seconds_high": max(found.later),
        "prepare_seconds": found.prepared,
        "first_seconds": found.first,
        "rounds": len(found.seconds),
        **taken,
    }


def _tried(
    what: str, settings: Mapping[str, Any], rounds: int, device: torch.device, name: Arithmetic
) -> tuple[Row, Rounds | None]:
    """A row of rounds, or why there is none; and the rounds."""
    row: Row = {"workload": what, "precision": name, "set": set_for_fedkin(name, device)}
    try:
        found = carried_out({**settings, "precision": setting(name, device)}, rounds, device)
    except FedkinError as error:  # a data set that is not here
        return {**row, "skipped": str(error).rstrip(".")}, None
    return {**row, **told(found)}, found


# ---- sections ----


def round(plan: Plan) -> list[Row]:
    """Seconds of a whole round: download, training, evaluation of every model, collaboration."""
    if not plan.cuda or plan.size != "full":
        return _digits_rounds(plan)
    rows, what = [], "practical EMNIST, CNN"
    runs: list[tuple[Arithmetic, str, int]] = [("bf16", "auto", 8), ("tf32", "auto", 5), ("tf32", "one-by-one", 2)]
    for name, way, rounds in runs:
        plan.tell(f"{what}: rounds in {name}, {way}")
        rows.append(_tried(what, {**EMNIST, "execution": way}, rounds, plan.device, name)[0])
    slow = rows[-1].get("seconds")
    for row in rows:
        if slow is not None and row["precision"] == rows[-1]["precision"]:
            row["times_one_by_one"] = slow / row["seconds"]
    return rows


def _digits_rounds(plan: Plan) -> list[Row]:
    """The demo's federation, all clients at once and one by one, in turns."""
    turns, rounds = plan.sized((1, 2), (2, 4), (3, 6))
    name: Arithmetic = "tf32" if plan.cuda else "float32"
    seconds: dict[str, list[float]] = {"stacked": [], "one-by-one": []}
    firsts: dict[str, float] = {}
    last: dict[str, Rounds] = {}
    for turn in range(turns):
        for way, found in seconds.items():
            plan.tell(f"digits, FedAMP, {way}: turn {turn + 1} of {turns}")
            last[way] = carried_out(
                {**DIGITS, "execution": way, "precision": setting(name, plan.device)}, rounds, plan.device
            )
            found += last[way].later
            firsts.setdefault(way, last[way].first)
    slow = statistics.median(seconds["one-by-one"])
    rows = []
    for way, found in seconds.items():
        about = {"workload": "digits, MLP", "precision": name, "set": set_for_fedkin(name, plan.device)}
        row = {**about, **told(last[way])}
        row |= {"seconds": statistics.median(found), "seconds_low": min(found), "seconds_high": max(found)}
        rows.append({**row, "first_seconds": firsts[way], "times_one_by_one": slow / row["seconds"]})
    return rows


def accuracy(plan: Plan) -> list[Row]:
    """Best mean accuracy of FedAMP on practical EMNIST in float32 and in bf16, over seeds."""
    if not plan.cuda and plan.size != "tiny":
        return [{"skipped": "a GPU's question: on a CPU there is float32 alone"}]
    settings, what = (EMNIST, "practical EMNIST, CNN") if plan.size == "full" else (DIGITS, "digits, MLP")
    rounds, seeds = plan.sized((2, 1), (10, 2), (40, 3))
    names: tuple[Arithmetic, ...] = ("float32", "bf16")
    rows: list[Row] = []
    for seed in range(seeds):
        for name in names:
            plan.tell(f"{what}: {rounds} rounds in {name}, seed {seed}")
            row, found = _tried(what, {**settings, "seed": seed}, rounds, plan.device, name)
            best = {f"best_{model}": max(values) for model, values in found.scores.items()} if found else {}
            rows.append({**row, "seed": seed, **best})
    return [*rows, *(_mean(rows, name) for name in names)]


def _mean(rows: list[Row], name: Arithmetic) -> Row:
    """Over the seeds of a precision."""
    own = [row for row in rows if row["precision"] == name]
    kept = [key for key in own[0] if key.startswith("best_") or key in ("seconds", "skipped")]
    row = {"workload": own[0]["workload"], "precision": name, "seed": "mean"}
    return row | {key: own[0][key] if key == "skipped" else statistics.fmean(r[key] for r in own) for key in kept}


def warmup(plan: Plan) -> list[Row]:
    """The first round, with what is read, chosen and compiled before it, beside a later one, in a new process."""
    runs: list[tuple[str, dict[str, Any], int]] = [("digits, MLP", DIGITS, plan.sized(2, 4, 6))]
    if plan.cuda and plan.size == "full":
        runs = [("practical CIFAR-100, ResNet-18", CIFAR, 2), ("practical EMNIST, CNN", EMNIST, 4)]
    rows = []
    for what, settings, rounds in runs:
        name: Arithmetic = "bf16" if plan.cuda else "float32"
        with nothing_compiled():
            for kernels in ("compiled now", "compiled before") if plan.cuda else ("none",):
                plan.tell(f"{what}: the first round and later ones, in a new process, kernels: {kernels}")
                row, _ = alone(_tried, what, settings, rounds, plan.device, name)
                if "seconds" in row:
                    whole = row["prepare_seconds"] + row["first_seconds"]
                    row["warmup_rounds"] = (whole - row["seconds"]) / row["seconds"]
                rows.append({**row, "kernels": kernels})
    return rows


def memory(plan: Plan) -> list[Row]:
    """The most memory that a round of FedAMP takes, one step a client, as many clients at once as the engine takes."""
    if plan.size == "tiny":
        loads = [mlp(3, 2, steps=1)]
    elif plan.cuda:
        loads = [cnn(1000, steps=1)]  # a hundred ResNet-18: see the warm-up, which is such a run
    else:
        loads = [cnn(200, 20, steps=1)]
    rows = []
    for load in loads:
        for name in plan.arithmetics[-1:]:
            plan.tell(f"{load.name}, {load.clients} clients, {name}: memory of a round")
            row = {"workload": load.name, "clients": load.clients, "batch": load.batch, "precision": name}
            row["set"] = set_for_fedkin(name, plan.device)
            rows.append({**row, **alone(_memory_of, load, plan.device, name)})
    return rows


def _memory_of(load: Workload, device: torch.device, name: Arithmetic) -> Row:
    """In bytes and in times W; two rounds, of which the second must not take more."""
    settings = {
        "method": "fedamp",
        "model": {"name": load.model, "settings": dict(load.settings)},
        "data": {"validation": 0.0},
        "local": {"steps": load.steps, "batch_size": load.batch},
        "precision": setting(name, device),
    }
    weights = 4 * load.clients * Layout.of(load.module()).size
    try:
        found = carried_out(settings, 2, device, load.federation())
    except FedkinError as error:
        return {"skipped": str(error).rstrip(".")}
    except torch.OutOfMemoryError:
        return {"skipped": "out of memory"}
    peak = found.peak_bytes
    row = {"way": found.way, "seconds": found.later[0], "weights_bytes": weights, "peak_bytes": peak}
    return row if peak is None else {**row, "times_weights": peak / weights}


def demo(plan: Plan) -> list[Row]:
    """`fedkin demo`: its five methods and three seeds, without the report."""
    if plan.cuda:
        return [{"skipped": "the demo is measured on a CPU"}]
    seeds, settings = plan.sized((1, {"rounds": 2}), (1, {}), (3, {}))
    plan.tell(f"the demo: {len(demonstration.METHODS)} methods, seeds: {seeds}")
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        results = compare.compare(
            {"data": DIGITS["data"], "device": "cpu", **settings},
            methods=list(demonstration.METHODS),
            seeds=seeds,
            out=Path(folder) / "runs",
        )
        wall = time.perf_counter() - started
        computing = sum(run.summary.seconds or 0.0 for run in results.runs)
    return [
        {
            "workload": "fedkin demo",
            "methods": len(demonstration.METHODS),
            "seeds": seeds,
            "seconds": wall,
            "in_rounds": computing,
        }
    ]
