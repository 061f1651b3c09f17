"""From settings and Python objects to a run that goes on: prepared, begun in a folder of its own, or taken up again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from .. import data, methods
from ..base import given as given_by_name
from ..base.task import reference_of
from ..data.federation import Federation, FederationError
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


Silos = Federation | Callable[..., Federation] | Mapping[str, Any]
"""A federation, a function that makes one (from `seed` and `clients` if it takes them), or {client: (x, y)}."""


def prepare(
    config: Settings | Config | Path | str | None = None,
    *,
    federation: Silos | None = None,
    model: Network | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
    **settings: Any,
) -> Assembly:
    """Everything up to the first round, without writing anything."""
    raw, objects = understood(config, settings, federation=federation, model=model, loss=loss, metric=metric)
    return assembled(configured(raw, **objects), **objects)


def understood(
    config: Settings | Config | Path | str | None, settings: Settings, *, federation: Silos | None, **objects: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings with names in them, and the Python objects that are no more than objects.

    A method may be given as a class, or as an object of one, whose settings count; a function that makes a federation
    is a data set by its name, so that it is called anew for every seed.
    """
    raw = merge(table(config), settings)
    if "method" in raw:
        name, own = methods.name_of(raw["method"])
        raw = merge({"settings": own} if own else {}, raw | {"method": name})
    found = silos(federation)
    if found is not None and not isinstance(found, Federation):
        raw, found = merge(raw, {"data": {"name": given_by_name.remembered(found)}}), None
    return raw, {"federation": found, **objects}


def again(config: Settings, method: methods.Named | None, federation: Silos | None) -> Federation | None:
    """What a run that goes on is given anew: a class and a function are known by the names that the run has for them,
    and a federation is returned."""
    if method is not None and methods.name_of(method)[0] != config.get("method"):
        raise RunError(f"The run is of the method {config.get('method')!r}, not of {methods.name_of(method)[0]!r}.")
    found = silos(federation)
    if found is None or isinstance(found, Federation):
        return found
    if config.get("data", {}).get("given"):
        return cast(Federation, found())
    name = given_by_name.remembered(found)
    if name != config.get("data", {}).get("name"):
        raise RunError(f"The run is on the data {config.get('data', {}).get('name')!r}, not on {name!r}.")
    return None


def silos(given: Any) -> Any:
    """Of arrays or datasets by client, their federation; a federation, or a function that makes one, as it is."""
    if isinstance(given, Mapping):
        parts = [part for each in given.values() for part in (each if isinstance(each, tuple | list) else [each])]
        datasets = any(isinstance(part, Dataset) for part in parts)
        return Federation.from_datasets(given) if datasets else Federation.from_arrays(given)
    if given is None or isinstance(given, Federation) or callable(given):
        return given
    table = hasattr(given, "columns")
    raise FederationError(
        "`federation` takes a fedkin.Federation, a function that gives one, or {client: (x, y)}, not "
        + ("a table: fedkin.Federation.from_table(table, client, target) makes one of it." if table else "")
        + ("" if table else f"{given!r}; a data set, a file or a folder is named by `data`.")
    )


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
        _refuse_other_statistics(raw, federation)
        own["data"] = {"name": federation.name, "given": True}
        if "split" not in raw.get("data", {}):
            own["data"]["split"] = federation.split
    if name is not None:
        own["model"] = {"name": name}
    for key, given in (("loss", loss), ("metric", metric)):
        if given is not None:
            own.setdefault("learning", {})[key] = reference_of(given)
    return resolve(merge(raw, own), None if federation is None else federation.suited)


def _refuse_other_statistics(raw: Settings, federation: Federation) -> None:
    """What was said when a table was prepared cannot be said again otherwise."""
    said, made = table(raw).get("table", {}), federation.statistics
    wanted = said.get("statistics", "auto") if isinstance(said, Mapping) else "auto"
    if made in ("shared", "own") and wanted not in ("auto", made):
        raise FederationError(
            f"table.statistics = {wanted!r}, but the federation was made with statistics={made!r}: say it there, or "
            "there not at all."
        )


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


def lengthened(run: RunFolder, rounds: int) -> Config | None:
    """The configuration of a run with so many rounds in all; None where it is complete with these. A run cannot be made
    shorter than it is."""
    config = run.resolved()
    done = max((line.round for line in run.rounds if not (line.final or line.novel)), default=0)
    if rounds < done:
        raise RunError(f"The run in {run.path} has {done} rounds; with --rounds {rounds} it would lose some of them.")
    if run.complete and rounds == done:
        return None
    if run.complete and not Writer(run.path).checkpoint.exists():
        raise RunError(f"The run in {run.path} has no checkpoint to go on from; run it again with --rounds {rounds}.")
    return config.model_copy(update={"rounds": max(rounds, config.rounds) if config.patience else rounds})


def lengthen(run: RunFolder, config: Config, listener: Listener | None = None) -> None:
    """Makes a run unfinished, with more rounds to go, and tells in what it differs from one that had them at once."""
    before = run.resolved()
    Checkpoint.load(Writer(run.path).checkpoint, config)  # which is refused before anything is changed
    differs = []
    if config.local.schedule == "cosine":
        differs.append(f"local.schedule = 'cosine' fell by {before.rounds} rounds until now, and by {config.rounds} on")
    if config.settings.get("mode") == "theory" and config.settings.get("alpha") == "auto":
        differs.append(f"settings.alpha = 'auto' went by {before.rounds} rounds until now, and by {config.rounds} on")
    if differs and listener:
        listener.on_warning(f"This is not what a run of {config.rounds} rounds would be: {'; '.join(differs)}.")
    Writer(run.path).reopen(config)


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
