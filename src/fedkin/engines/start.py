"""From settings and Python objects to a run that goes on: prepared, begun in a folder of its own, or taken up again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import data
from ..base.task import reference_of
from ..data.federation import Federation
from ..errors import FedkinError
from ..runs.checkpoint import Checkpoint
from ..runs.config import Config, merge, read_toml, resolve
from ..runs.folder import GRAPH, RunError, RunFolder, Writer
from . import inferred_graph
from .assembly import Assembly, assemble, located
from .inferred_graph import Attentions
from .simulation import Listener, Simulation
from .stock import Objects

Settings = Mapping[str, Any]
Network = Callable[..., nn.Module] | nn.Module | str | Settings
"""A function or class that builds a module (from `inputs` and `outputs` if it takes them), a module to copy, or one of
ours by its name or its table of settings."""


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
    return assemble(config, given(federation=federation, model=model, loss=loss, metric=metric))


def given(
    *,
    federation: Federation | None = None,
    model: Network | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Objects:
    """What runs are made of beside their configuration."""
    return Objects(federation, _factory(model), loss, metric)


def table(config: Settings | Config | Path | str | None) -> dict[str, Any]:
    """Settings as a table, whatever they came as."""
    if config is None:
        return {}
    if isinstance(config, Config):
        return config.model_dump(mode="json")
    return dict(config) if isinstance(config, Mapping) else read_toml(Path(config))


def _factory(model: Network | None) -> Callable[..., nn.Module] | None:
    """A module given as it is becomes a factory of its copies: all clients start from its weights."""
    if isinstance(model, nn.Module):
        return lambda: copy.deepcopy(model)
    return None if isinstance(model, str | Mapping) else model


def start(ready: Assembly, path: Path, listener: Listener | None = None) -> None:
    """Runs what was prepared, in a new folder."""
    simulation = created(ready, path, listener)
    try:
        simulation.run()
    except FedkinError:  # a method that breaks its contract in the first round, for one
        simulation.writer.discard()
        raise


def created(
    ready: Assembly, path: Path, listener: Listener | None = None, known: Attentions | None = None
) -> Simulation:
    """What was prepared, in a new folder and not yet begun."""
    writer = Writer.create(path, ready.config)
    _announce(ready, listener)
    try:
        return Simulation(_with_its_graph(ready, writer, listener, known), writer, listener)
    except FedkinError:
        writer.discard()
        raise


def reopened(
    ready: Assembly, path: Path, listener: Listener | None = None, known: Attentions | None = None
) -> tuple[Simulation, Checkpoint | None]:
    """What was prepared, in its own unfinished folder, and where it goes on from."""
    writer = Writer(path)
    checkpoint = Checkpoint.load(writer.checkpoint, ready.config) if writer.checkpoint.exists() else None
    ready = _with_its_graph(ready, writer, listener, known)  # first, as a run whose graph is damaged stays as it is
    writer.cut_back(checkpoint.round if checkpoint else 0)
    _announce(ready, listener)
    return Simulation(ready, writer, listener), checkpoint


def opened(
    ready: Assembly, path: Path, listener: Listener | None = None, known: Attentions | None = None
) -> tuple[Simulation, Checkpoint | None]:
    """What was prepared: in its own folder, if it was begun there, else in a new one. `known`: see `inferred_graph`."""
    if (path / "config.toml").exists():
        return reopened(ready, path, listener, known)
    return created(ready, path, listener, known), None


def _announce(ready: Assembly, listener: Listener | None) -> None:
    if listener:
        for sentence in ready.warnings:
            listener.on_warning(sentence)
        listener.on_start(ready)


def _with_its_graph(ready: Assembly, writer: Writer, listener: Listener | None, known: Attentions | None) -> Assembly:
    """With the graph that the run began with, if it has begun; else its graph is inferred if need be, and kept."""
    if not ready.method.uses_graph:
        return ready
    kept = RunFolder(writer.path).graph
    if kept is not None:
        if kept.shape != (len(ready.problem), len(ready.problem)):
            raise RunError(
                f"{writer.path / GRAPH} is of {len(kept)} clients, but the run has {len(ready.problem)}. Remove it, "
                "and it is made again."
            )
        return ready.with_graph(torch.from_numpy(kept))
    if ready.infers:
        ready = ready.with_graph(inferred_graph.graph(ready, listener, known))
    if ready.problem.graph is not None:
        writer.graph(ready.problem.graph, ready.problem.names)
    return ready


def refuse_other_settings(path: Path, config: Config) -> None:
    """The same command goes on with its own runs, and with no one else's.

    What `auto` decides is as it was decided, where the run is complete: nothing needs to be read to know it again.
    """
    if not (path / "config.toml").exists():
        return
    run = RunFolder(path)
    found = run.resolved()
    wanted = _as_decided(config, found) if run.complete else config
    if found != wanted and found == wanted.model_copy(update={"data": found.data}):
        one, other = (c.data.model_dump(exclude={"digest"}) for c in (found, wanted))
        if one == other:
            raise RunError(
                f"{path} holds a run on these data as they were before: {config.data.name} has changed since. Put the "
                "old file back, or choose another folder with --out."
            )
    if found != wanted:
        raise RunError(f"{path} holds a run with other settings; choose another folder with --out, or remove it.")
    said = run.config.get("settings", {})
    new = [f"settings.{name}" for name, value in wanted.settings.items() if value is not None and name not in said]
    if new:  # the default of today need not be what was done then
        raise RunError(
            f"{path} holds a run of an earlier version of fedkin, which did not have {', '.join(new)}; choose another "
            "folder with --out, or remove it."
        )


def _as_decided(config: Config, found: Config) -> Config:
    decided: dict[str, Any] = {"graph": located(config.graph)}
    if config.device == "auto":
        decided["device"] = found.device
    if config.execution == "auto":
        decided["execution"] = found.execution
    if not config.data.given:
        decided["data"] = config.data.model_copy(update={"digest": data.digest(config.data.name)})
    return config.model_copy(update=decided)


def free_folder(config: Config, parent: Path = Path("runs")) -> Path:
    """runs/digits-practical-fedamp-seed0, with a number behind it if that is taken."""
    stem = f"{data.short(config.data.name)}-{config.data.split}-{config.method.replace(':', '.')}-seed{config.seed}"
    taken, path = 1, parent / stem
    while path.exists():
        taken += 1
        path = parent / f"{stem}-{taken}"
    return path
