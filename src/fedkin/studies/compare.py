"""fedkin in Python: `run`, `compare`, `resume`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import comparison, data, inference, joining, references
from .assembly import Assembly, assemble
from .config import Config, ConfigError, merge, read_toml, resolve, unknown_key
from .engines.lockstep import run_together
from .engines.room import SMALL
from .engines.simulation import Listener, Simulation
from .errors import FedkinError
from .federation import Federation
from .methods import find
from .runs import GRAPH, Checkpoint, Run, RunError, Writer
from .task import reference_of

Settings = Mapping[str, Any]
Network = Callable[..., nn.Module] | nn.Module | str | Settings
"""A function or class that builds a module (from `inputs` and `outputs` if it takes them), a module to copy, or one of
ours by its name or its table of settings."""


@dataclass(frozen=True)
class Results:
    """Runs of several methods and seeds, side by side."""

    runs: list[Run]
    path: Path

    def rows(self) -> list[comparison.Row]:
        """The table: a row for each `method:model`."""
        return comparison.rows(self.runs)

    def tests(self, reference: str | None = None) -> list[comparison.Pair]:
        """Wilcoxon's signed-rank test between headline models, corrected by Holm."""
        return comparison.tests(self.runs, reference)

    def worse_than_alone(self) -> dict[str, list[tuple[str, float, float]]]:
        """For each headline, the clients for whom joining was worse than alone: (name, alone, joined)."""
        return comparison.worse_than_alone(self.runs)

    def worth_joining(self, metric: str | None = None) -> joining.Joining:
        """For each silo: alone, with one global model, with its own from joining, and whether that was worth it.

        In the runs' metric, or another that fits the task (`metric="auc"`).
        """
        return joining.worth_joining(self.runs, metric)

    def references(self) -> list[references.Reference]:
        """What was scored without federated learning, where that was asked for; `fedkin.references.rows` of it."""
        metric = self.runs[0].summary["metric"]
        return [each for each in references.read(self.path) if each.metric == metric]

    def frame(self) -> Any:
        """The table as a pandas frame."""
        import pandas as pd

        return pd.DataFrame([vars(row) | {"row": row.name} for row in self.rows()]).set_index("row")

    def report(self, path: Path | str | None = None, title: str | None = None, notes: Sequence[str] = ()) -> Path:
        """Writes the HTML report, by default beside the runs."""
        from .report import write_report

        target = Path(path) if path is not None else self.path / "report.html"
        without = references.rows(self.references())
        return write_report(self.runs, target, title, {"notes": list(notes), "references": without})

    def figures(self, folder: Path | str | None = None, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
        """Writes the figures for print."""
        from .report import write_figures

        return write_figures(self.runs, Path(folder) if folder is not None else self.path / "figures", formats)


def run(
    config: Settings | Config | Path | str | None = None,
    *,
    federation: Federation | None = None,
    model: Network | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
    out: Path | str | None = None,
    listener: Listener | None = None,
    **settings: Any,
) -> Run:
    """Runs one method and returns its run folder.

    `config`: a TOML file or a table; `settings` are laid over it (`method="fedamp"`, `rounds=10`,
    `data={"split": "iid"}`). `federation`, `model`, `loss` and `metric` may be given as Python objects.
    """
    ready = prepare(config, federation=federation, model=model, loss=loss, metric=metric, **settings)
    path = Path(out) if out is not None else free_folder(ready.config)
    return start(ready, path, listener)


def prepare(
    config: Settings | Config | Path | str | None = None,
    *,
    federation: Federation | None = None,
    model: Network | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
    **settings: Any,
) -> Assembly:
    """Everything up to the first round, without writing anything."""
    objects: dict[str, Any] = {"federation": federation, "model": model, "loss": loss, "metric": metric}
    return assembled(configured(merge(table(config), settings), **objects), **objects)


def configured(
    raw: Settings,
    *,
    federation: Federation | None = None,
    model: Network | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Config:
    """The complete configuration of settings and of what is given as Python objects."""
    own: dict[str, Any] = {}
    if isinstance(model, str | Mapping):  # one of ours, by its name and settings
        raw, model = merge(raw, {"model": {"name": model} if isinstance(model, str) else model}), None
    name = None if model is None else reference_of(model)
    if federation is not None:
        own["data"] = {"name": federation.name, "given": True}
        if "split" not in raw.get("data", {}):
            own["data"]["split"] = federation.split
    if name is not None:
        own["model"] = {"name": name}
    for key, given in (("loss", loss), ("metric", metric)):
        if given is not None:
            own.setdefault("learning", {})[key] = reference_of(given)
    return resolve(merge(raw, own))


def assembled(
    config: Config,
    *,
    federation: Federation | None = None,
    model: Network | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Assembly:
    """A complete configuration and the Python objects it speaks of, ready to run."""
    return assemble(config, federation, model=_factory(model), loss=loss, metric=metric)


def start(ready: Assembly, path: Path, listener: Listener | None = None) -> Run:
    """Runs what was prepared, in a new folder."""
    simulation = created(ready, path, listener)
    try:
        simulation.run()
    except FedkinError:  # a method that breaks its contract in the first round, for one
        simulation.writer.discard()
        raise
    return Run(path)


def created(ready: Assembly, path: Path, listener: Listener | None = None) -> Simulation:
    """What was prepared, in a new folder and not yet begun."""
    writer = Writer.create(path, ready.config)
    _announce(ready, listener)
    try:
        return Simulation(_with_its_graph(ready, writer, listener), writer, listener)
    except FedkinError:
        writer.discard()
        raise


def reopened(ready: Assembly, path: Path, listener: Listener | None = None) -> tuple[Simulation, Checkpoint | None]:
    """What was prepared, in its own unfinished folder, and where it goes on from."""
    writer = Writer(path)
    checkpoint = Checkpoint.load(writer.checkpoint, ready.config) if writer.checkpoint.exists() else None
    ready = _with_its_graph(ready, writer, listener)  # first, as a run whose graph is damaged stays as it is
    writer.cut_back(checkpoint.round if checkpoint else 0)
    _announce(ready, listener)
    return Simulation(ready, writer, listener), checkpoint


def opened(ready: Assembly, path: Path, listener: Listener | None = None) -> tuple[Simulation, Checkpoint | None]:
    """What was prepared: in its own folder, if it was begun there, else in a new one."""
    if (path / "config.toml").exists():
        return reopened(ready, path, listener)
    return created(ready, path, listener), None


def _with_its_graph(ready: Assembly, writer: Writer, listener: Listener | None) -> Assembly:
    """With the graph that the run began with, if it has begun; else its graph is inferred if need be, and kept."""
    if not ready.method.uses_graph:
        return ready
    kept = Run(writer.path).graph
    if kept is not None:
        if kept.shape != (len(ready.problem), len(ready.problem)):
            raise RunError(
                f"{writer.path / GRAPH} is of {len(kept)} clients, but the run has {len(ready.problem)}. Remove it, "
                "and it is made again."
            )
        return ready.with_graph(torch.from_numpy(kept))
    if ready.infers:
        ready = ready.with_graph(inference.graph(ready, listener))
    if ready.problem.graph is not None:
        writer.graph(ready.problem.graph, ready.problem.names)
    return ready


def resume(
    path: Path | str,
    *,
    federation: Federation | None = None,
    model: Network | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
    listener: Listener | None = None,
) -> Run:
    """Goes on with an unfinished run from its last checkpoint; a finished one is returned as it is.

    Python objects that the run was started with have to be given again.
    """
    run = Run(path)
    if run.complete:
        return run
    ready = assembled(run.resolved(), federation=federation, model=model, loss=loss, metric=metric)
    simulation, checkpoint = reopened(ready, run.path, listener)
    simulation.run(checkpoint)
    return Run(path)


def compare(
    config: Settings | Path | str | None = None,
    *,
    methods: Sequence[str],
    seeds: int | Sequence[int] = 1,
    federation: Federation | None = None,
    model: Network | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
    references: Sequence[str] = (),
    out: Path | str = "runs/comparison",
    listener: Callable[[str, int], Listener] | None = None,
    **settings: Any,
) -> Results:
    """Runs methods x seeds under the same settings and compares them.

    Runs that are already complete in `out` with the same settings are kept, unfinished ones are resumed: the same call
    again goes on where the last one ended. `seeds`: how many, from the configuration's `seed` on, or which.

    A method's own settings go to those methods that have them. A table `methods.NAME` in the configuration is laid over
    it for that method alone. `references` are rows without federated learning (`fedkin.references`).
    """
    folder = Path(out)
    objects: dict[str, Any] = {"federation": federation, "model": model, "loss": loss, "metric": metric}
    raw = merge(table(config), settings)
    plan = planned(raw, methods, seeds, folder, objects)
    write_references = _without_learning(raw, plan, references, folder, objects, listener)
    results = Results(carried_out(plan, objects, listener), folder)
    write_references()
    return results


def _without_learning(
    raw: Settings,
    plan: Sequence[Planned],
    names: Sequence[str],
    folder: Path,
    objects: Settings,
    listener: Callable[[str, int], Listener] | None,
) -> Callable[[], None]:
    """What writes these rows beside the runs of a plan; that they can be made is tried here, before any run."""
    common = {key: value for key, value in raw.items() if key not in ("methods", "settings")}

    def ready(seed: int) -> Assembly:
        return prepare(merge(common, {"method": "separate", "seed": seed, "graph": {"source": "none"}}), **objects)

    if names:
        references.check(ready(plan[0].seed), names)

    def write() -> None:
        for seed in dict.fromkeys(each.seed for each in plan) if names else ():
            references.beside(folder, ready(seed), names, listener("references", seed) if listener else None)

    return write


@dataclass(frozen=True)
class Planned:
    """A run of a comparison: tried, but not yet begun."""

    method: str
    seed: int
    raw: Settings
    config: Config
    path: Path

    @property
    def complete(self) -> bool:
        return (self.path / "summary.json").exists()


def planned(
    raw: Settings, methods: Sequence[str], seeds: int | Sequence[int], folder: Path, objects: Settings
) -> list[Planned]:
    """The runs of a comparison. All are tried before any is run: a wrong setting of the last would cost an hour."""
    by_method: Settings = raw.get("methods", {})
    if not isinstance(by_method, Mapping):
        raise ConfigError(
            "`methods` in a configuration is a table of each method's settings, such as methods.fedamp.settings.sigma; "
            "which methods are compared is said beside it (--methods)."
        )
    for name in by_method:
        if name not in methods:
            raise ConfigError(f"There are settings for methods.{name}, but it is not among the methods compared.")
    first = resolve({"seed": raw.get("seed", 0)}).seed
    numbers = list(range(first, first + seeds)) if isinstance(seeds, int) else list(dict.fromkeys(seeds))
    if not methods or not numbers:
        raise ConfigError("A comparison needs at least one method and one seed.")
    plan = []
    common = {key: value for key, value in raw.items() if key != "methods"}
    for method, one in _for_each(dict.fromkeys(methods), common).items():
        for seed in numbers:
            settings = merge(merge(one, by_method.get(method, {})), {"method": method, "seed": seed})
            path = folder / f"{method.replace(':', '.')}-seed{seed}"
            config = prepare(settings, **objects).config
            refuse_other_settings(path, config)
            plan.append(Planned(method, seed, settings, config, path))
    return plan


@inference.remembering()
def carried_out(
    plan: Sequence[Planned], objects: Settings, listener: Callable[[str, int], Listener] | None = None
) -> list[Run]:
    """The runs of a plan; complete ones are kept, unfinished ones resumed."""
    for _, seeds in groupby(plan, key=lambda each: each.method):
        pending = []
        for each in seeds:
            if not each.complete:
                pending.append(each)
            elif listener:  # it is counted all the same
                listener(each.method, each.seed)
        ready = ((each, prepare(each.raw, **objects)) for each in pending)
        for stack in _stacks(ready):
            _side_by_side(stack, listener)
    return [Run(each.path) for each in plan]


FEW_NUMBERS = 1 << 25
"""Inputs of all clients, as many as are worth copying to train seeds side by side."""


def _stacks(ready: Iterable[tuple[Planned, Assembly]]) -> Iterator[list[tuple[Planned, Assembly]]]:
    """Seeds of a method in stacks: where models are small, many at a time cost little more than one."""
    stack: list[tuple[Planned, Assembly]] = []
    room = 0
    for each, assembly in ready:
        numbers = len(assembly.problem) * assembly.problem.layout.size
        small = assembly.execution.name == "stacked" and assembly.device.type == "cpu" and numbers < SMALL
        room -= 1
        if stack and (room < 0 or not small):
            yield stack
            stack = []
        if not stack:
            room = min(SMALL // numbers, FEW_NUMBERS // assembly.cohort.train.x.numel()) if small else 0
        stack.append((each, assembly))
    if stack:
        yield stack


def _side_by_side(stack: list[tuple[Planned, Assembly]], listener: Callable[[str, int], Listener] | None) -> None:
    """Runs these to their ends, those that were begun from their checkpoints."""
    begun: list[tuple[Simulation, Checkpoint | None]] = []
    try:
        for each, assembly in stack:
            told = listener(each.method, each.seed) if listener else None
            begun.append(opened(assembly, each.path, told))
        stopped = run_together([s for s, _ in begun], [c for _, c in begun])
    except FedkinError:  # a method that breaks its contract in the first round, for one
        for simulation, checkpoint in begun:
            if checkpoint is None:
                simulation.writer.discard()
        raise
    for error in stopped.values():
        raise error


def _for_each(methods: Iterable[str], raw: Settings) -> dict[str, dict[str, Any]]:
    """The settings for each method: of `settings`, those that the method has."""
    common = raw.get("settings", {})
    fields = {name: find(name).model_fields for name in methods}
    if not isinstance(common, Mapping):
        return {name: dict(raw) for name in fields}
    for key in common:
        if not any(key in own for own in fields.values()):
            known = [f"settings.{k}" for own in fields.values() for k in own]
            raise ConfigError(unknown_key(f"settings.{key}", dict.fromkeys(known)))
    return {name: {**raw, "settings": {k: v for k, v in common.items() if k in own}} for name, own in fields.items()}


def refuse_other_settings(path: Path, config: Config) -> None:
    """The same command goes on with its own runs, and with no one else's."""
    if (path / "config.toml").exists() and Run(path).resolved() != config:
        raise RunError(f"{path} holds a run with other settings; choose another folder with --out, or remove it.")


def free_folder(config: Config, parent: Path = Path("runs")) -> Path:
    """runs/digits-practical-fedamp-seed0, with a number behind it if that is taken."""
    stem = f"{data.short(config.data.name)}-{config.data.split}-{config.method.replace(':', '.')}-seed{config.seed}"
    taken, path = 1, parent / stem
    while path.exists():
        taken += 1
        path = parent / f"{stem}-{taken}"
    return path


def _announce(ready: Assembly, listener: Listener | None) -> None:
    if listener:
        for sentence in ready.warnings:
            listener.on_warning(sentence)
        listener.on_start(ready)


def _factory(model: Network | None) -> Callable[..., nn.Module] | None:
    """A module given as it is becomes a factory of its copies: all clients start from its weights."""
    if isinstance(model, nn.Module):
        return lambda: copy.deepcopy(model)
    return None if isinstance(model, str | Mapping) else model


def table(config: Settings | Config | Path | str | None) -> dict[str, Any]:
    """Settings as a table, whatever they came as."""
    if config is None:
        return {}
    if isinstance(config, Config):
        return config.model_dump(mode="json")
    return dict(config) if isinstance(config, Mapping) else read_toml(Path(config))
