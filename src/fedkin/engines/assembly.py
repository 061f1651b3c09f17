"""From a configuration to what a method needs: problem and cohort, on a stock of data and model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from .. import papers
from ..base.settings import ConfigError
from ..base.task import Task, class_weights
from ..base.wording import did_you_mean
from ..data import graphs
from ..data.federation import Federation, FederationError
from ..data.preprocessing import Pixels
from ..methods._method import Method
from ..methods._problem import Problem
from ..runs.config import Config, Graph
from ..training.augment import Augmentation
from ..training.cohort import Cohort, Samples
from ..training.execution import OneByOne, Stacked, has_batch_statistics
from .stock import Objects, Stock, stocked

FEW = 5
"""Training samples below which a client's part in the means deserves a word."""
FEW_EVENTS = 10
"""In a batch, below which Cox's likelihood has too few to compare."""
GRAPHS = ("given", "none", "empty", "complete", "permuted", "groups", "inferred")


@dataclass(frozen=True, repr=False)
class Assembly:
    """A run, ready to start. Rows from `problem.known` on are newcomers; `test` is for the engine alone."""

    config: Config
    method: Method
    federation: Federation
    problem: Problem
    cohort: Cohort
    test: Samples
    execution: OneByOne | Stacked
    device: torch.device
    reason: str
    warnings: tuple[str, ...] = ()

    @property
    def infers(self) -> bool:
        """Whether the graph is still to be inferred; until then it has no edges."""
        return self.method.uses_graph and self.config.graph.source == "inferred"

    def with_graph(self, graph: Tensor) -> Assembly:
        """The same run on another graph (m, m), in the order of the rows."""
        return replace(self, problem=replace(self.problem, graph=graph.to(self.problem.initial)))

    def known_problem(self) -> Problem:
        """The problem without the newcomers."""
        p, k = self.problem, self.problem.known
        return replace(
            p,
            names=p.names[:k],
            samples=p.samples[:k],
            groups=None if p.groups is None else p.groups[:k],
            graph=None if p.graph is None else p.graph[:k, :k],
        )


def assemble(config: Config, objects: Objects | None = None, stock: Stock | None = None) -> Assembly:
    """A run from its configuration, on a stock of data and model that it may share with others. Writes nothing.

    The returned configuration records what `auto` decided, so that a resumed run does not decide again.
    """
    method = config.built_method()
    config = config.model_copy(update={"graph": located(config.graph)})
    stock = stock or stocked(config, objects or Objects())
    everyone = _with_graph(stock, config, method)
    if config.local.nesterov and not config.local.momentum:
        raise ConfigError("local.nesterov = true needs a momentum: set local.momentum, for example to 0.9.")
    if has_batch_statistics(stock.module):
        _check_batch_statistics(config, everyone)
    problem = Problem(
        task=stock.task,
        layout=stock.layout,
        names=everyone.names,
        samples=torch.tensor(stock.train.counts, device=stock.device),
        initial=stock.initial.clone(),  # a run's own: a method may write into what its server keeps
        rounds=config.rounds,
        known=stock.known,
        fresh=stock.fresh,
        groups=None if everyone.groups is None else everyone.groups.to(stock.device),
        graph=None if everyone.graph is None else everyone.graph.to(stock.device, stock.dtype, copy=True),
    )
    try:  # before anything is tried with the model: what does not fit is to be told, not killed
        method.check(problem, config.local)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    choice = stock.choice
    warnings = _worth_knowing(config, method, everyone)
    if config.execution == "stacked" and not isinstance(choice.execution, Stacked):
        warnings.append(f"Clients cannot be stacked: {choice.reason}. They run one by one.")
    config = config.model_copy(update={"execution": choice.execution.name, "device": stock.device.type})
    if not config.data.given:
        own = config.data.model_copy(update={"digest": stock.digest})
        config = config.model_copy(update={"data": own})
    cohort = Cohort(
        names=everyone.names,
        train=stock.train,
        validation=stock.validation,
        task=stock.task,
        layout=stock.layout,
        execution=choice.execution,
        local=config.local,
        seed=config.seeds[2],
        class_weight=_class_weights(config, stock.task, everyone, stock.dtype, stock.device),
        merge_single=has_batch_statistics(stock.module),
        random_layers=choice.random_layers,
        augmentation=_augmentation(everyone) if config.data.augment else None,
    )
    return Assembly(
        config=config,
        method=method,
        federation=everyone,
        problem=problem,
        cohort=cohort,
        test=stock.test,
        execution=choice.execution,
        device=stock.device,
        reason=choice.reason,
        warnings=tuple(warnings),
    )


def _with_graph(stock: Stock, config: Config, method: Method) -> Federation:
    """All clients, newcomers last, with the graph that the method is to look at: its own, or the federation's."""
    if not method.uses_graph:
        return stock.federation
    related = _related(stock.related, config.graph, config.seeds[0])
    return related.without(stock.federation.names[stock.known :])[1]


def located(graph: Graph) -> Graph:
    """With the absolute path, if a file is named, so that a run finds it from anywhere."""
    source = graph.source
    if source in GRAPHS:
        return graph
    if not source.lower().endswith(graphs.SUFFIXES):
        hint = did_you_mean(source, GRAPHS, 0.5)
        raise ConfigError(
            f"There is no graph {source!r}. {hint}Known are {', '.join(GRAPHS)}; or name a file that ends in "
            f"{', '.join(graphs.SUFFIXES)}."
        )
    return graph.model_copy(update={"source": str(Path(source).expanduser().absolute())})


def _related(federation: Federation, graph: Graph, seed: int) -> Federation:
    """The federation with the graph that its method is to look at; one that will be inferred has no edges yet."""
    source, names, groups = graph.source, federation.names, federation.groups
    given = federation.graph
    if given is None and groups is not None:
        given = graphs.of_groups(groups.tolist(), names, graph.inside, graph.across, seed)
    if source == "given":
        return replace(federation, graph=given)
    if source == "none":
        return replace(federation, graph=None)
    if source in ("empty", "inferred"):
        return replace(federation, graph=graphs.empty(len(names)))
    if source == "complete":
        return replace(federation, graph=graphs.complete(len(names)))
    if source == "groups":
        if groups is None:
            raise ConfigError("graph.source = 'groups' draws edges by known groups, and here they are not known.")
        drawn = graphs.of_groups(groups.tolist(), names, graph.inside, graph.across, seed)
        return replace(federation, graph=drawn)
    if source == "permuted":
        if given is None:
            raise ConfigError("graph.source = 'permuted' exchanges the clients of a graph, and here there is none.")
        return replace(federation, graph=graphs.permuted(given, names, seed))
    return federation.with_graph(Path(source))


def _worth_knowing(config: Config, method: Method, federation: Federation) -> list[str]:
    """What is not wrong but may surprise, in sentences."""
    told = list(federation.notes)
    few = [c.name for c in federation.clients if c.samples < FEW]
    if few:
        told.append(f"{len(few)} of {len(federation)} clients have fewer than {FEW} training samples: {_some(few)}.")
    if len(federation) == 1:
        told.append(f"There is one client only, {federation.names[0]!r}: it has nobody to learn from.")
    if federation.task.kind == "classification":
        single = [c.name for c in federation.clients if len(set(c.train[1].tolist())) == 1]
        if single:
            told.append(f"{len(single)} of {len(federation)} clients have one class to learn from: {_some(single)}.")
    if federation.task.kind == "survival":
        told += _of_survival(federation, config.local.batch_size)
    return told + (_of_the_papers(config, method) if config.preset == "paper" else [])


def _of_survival(federation: Federation, batch: int) -> list[str]:
    """Who has no event to learn from, and batches that are too small for Cox's likelihood."""
    events = {c.name: int(c.train[1][:, 1].sum()) for c in federation.clients}
    told, none = [], [name for name, count in events.items() if not count]
    if none:
        told.append(f"{len(none)} of {len(federation)} clients have no event to learn from: {_some(none)}.")
    inside = {c.name: batch * events[c.name] / c.samples for c in federation.clients if batch < c.samples}
    small = [name for name, count in inside.items() if count < FEW_EVENTS]
    if small and federation.task.loss.name == "cox":
        told.append(
            f"With local.batch_size = {batch} a batch of {small[0]!r} has {inside[small[0]]:.1f} events on average, "
            "and Cox's likelihood compares patients with those of their batch alone: leave the setting out, and a "
            "batch is the whole silo."
        )
    return told


def _of_the_papers(config: Config, method: Method) -> list[str]:
    """What the papers' setting does not settle."""
    told, place = [], (config.data.name, config.data.split)
    if config.rounds == papers.preset()["rounds"]:
        told.append(f"preset = 'paper': the papers do not say how many rounds they had; here it is {config.rounds}.")
    always = method.paper("any", "any")
    if type(method).model_fields and method.paper(*place) == always:
        given = "; it has " + ", ".join(f"{name} = {value!r}" for name, value in always.items()) if always else ""
        told.append(
            f"preset = 'paper': {config.method} has no values that were published for {place[0]} ({place[1]}){given}, "
            "and what no paper gives is as by default."
        )
    return told


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (" and more" if len(names) > 5 else "")


def _augmentation(federation: Federation) -> Augmentation:
    """Crops after padding by four black pixels, and flips: the usual ones for CIFAR (He et al., 2016)."""
    shape, pixels = federation.task.inputs, federation.clients[0].preprocessing
    if len(shape) != 3:
        raise ConfigError(
            "data.augment = true crops and flips images of shape (channels, height, width), but one sample here has "
            f"shape {shape}. Set it to false."
        )
    black = pixels.black.tolist() if isinstance(pixels, Pixels) else [0.0] * shape[0]
    return Augmentation(pad=4, flip=True, fill=tuple(black))


def _class_weights(
    config: Config, task: Task, federation: Federation, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    wanted = config.local.class_weights
    if wanted == "none":
        return None
    if task.kind != "classification":
        raise ConfigError("local.class_weights are for classification; this task is not.")
    if wanted == "balanced":
        rows = [class_weights(c.train[1], task.outputs) for c in federation.clients]
        return torch.stack(rows).to(device, dtype)
    if len(wanted) != task.outputs or min(wanted) < 0 or max(wanted) == 0:
        raise ConfigError(f"local.class_weights needs {task.outputs} numbers of at least 0, one a class, not all 0.")
    return torch.tensor([wanted] * len(federation), device=device, dtype=dtype)


def _check_batch_statistics(config: Config, federation: Federation) -> None:
    if config.local.batch_size == 1:
        raise ConfigError(
            "local.batch_size = 1 cannot be: a single sample has no statistics for BatchNorm. Take 2 or more."
        )
    for client in federation.clients:
        if client.samples < 2:
            raise FederationError(f"Client {client.name!r} has one training sample, and BatchNorm needs at least two.")
