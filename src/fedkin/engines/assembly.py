"""From a configuration to what a method needs: federation, model, problem, cohort."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from .. import data, papers
from ..base import streams
from ..base.machine import chosen_device
from ..base.settings import ConfigError
from ..base.task import Task, class_weights, loss_named, metric_named
from ..base.weights import Layout
from ..base.wording import did_you_mean
from ..data import graphs
from ..data.corrupt import corrupt
from ..data.federation import Federation, FederationError
from ..data.preprocessing import Pixels
from ..methods._method import Method
from ..methods._problem import Problem
from ..runs.config import Config, Graph
from ..training import models
from ..training.augment import Augmentation
from ..training.choose import Choice, choose
from ..training.cohort import Cohort, Samples
from ..training.execution import OneByOne, Stacked, has_batch_statistics

FEW = 5
"""Training samples below which a client's part in the means deserves a word."""
DTYPES = {
    "float32": torch.float32,
    "float32-strict": torch.float32,
    "bf16": torch.float32,  # weights stay in single precision; products of them do not
    "float64": torch.float64,
}
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


Function = Callable[[Tensor, Tensor], Tensor]


def assemble(
    config: Config,
    federation: Federation | None = None,
    *,
    model: Callable[..., nn.Module] | None = None,
    loss: Function | None = None,
    metric: Function | None = None,
) -> Assembly:
    """Loads the data, builds the model and decides how clients are run. Writes nothing.

    The returned configuration records what `auto` decided, so that a resumed run does not decide again.
    """
    split_seed, init_seed, training_seed = config.seeds
    method = config.built_method()
    config = config.model_copy(update={"graph": _located(config.graph)})
    if federation is None:
        federation = load_federation(config)
    dtype, device = DTYPES[config.precision], chosen_device(config.device)
    federation = replace(federation, task=_task(federation.task, config, loss, metric))
    federation = federation.with_validation(config.data.validation, split_seed)
    federation = corrupt(federation, seed=split_seed, **config.corruption.model_dump())
    if method.uses_graph:
        federation = _related(federation, config.graph, split_seed)
    newcomers = _newcomers(federation, config.participation.novel, split_seed)
    known, everyone = federation.without(newcomers)
    _refuse_what_has_no_score(known)
    task = federation.task

    def drawn(seed: int) -> nn.Module:
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            return models.build(model or config.model.name, task.inputs, task.outputs, config.model.settings)

    def fresh(generator: torch.Generator) -> Tensor:
        seed = int(torch.randint(2**62, (1,), generator=generator))
        return layout.row(drawn(seed), dtype).to(device)

    module = drawn(streams.number(init_seed, "initial weights"))
    models.check(module, task.inputs, task.outputs)
    _refuse_what_no_one_can_average(module)
    module = module.to(dtype)
    layout = Layout.of(module)
    if config.local.nesterov and not config.local.momentum:
        raise ConfigError("local.nesterov = true needs a momentum: set local.momentum, for example to 0.9.")
    if layout.parameters == 0:
        raise models.ModelError("The model has no parameter that could be trained.")
    if has_batch_statistics(module):
        _check_batch_statistics(config, everyone)

    parts = [(_cast(c.train[0], dtype), _cast(c.train[1], dtype)) for c in everyone.clients]
    held = [c.validation or (c.train[0][:0], c.train[1][:0]) for c in everyone.clients]
    tests = [(_cast(c.test[0], dtype), _cast(c.test[1], dtype)) for c in everyone.clients]
    train = Samples.of(parts, device)
    problem = Problem(
        task=task,
        layout=layout,
        names=everyone.names,
        samples=torch.tensor(train.counts, device=device),
        initial=layout.row(module, dtype).to(device),
        rounds=config.rounds,
        known=len(known),
        fresh=fresh,
        groups=None if everyone.groups is None else everyone.groups.to(device),
        graph=None if everyone.graph is None else everyone.graph.to(device, dtype),
    )
    try:  # before anything is tried with the model: what does not fit is to be told, not killed
        method.check(problem, config.local)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    first = parts[0][0][:4].to(device), parts[0][1][:4].to(device)
    choice: Choice = choose(module, layout, task.loss, *first, config.execution, config.precision)
    warnings = _worth_knowing(config, method, everyone)
    if config.execution == "stacked" and not isinstance(choice.execution, Stacked):
        warnings.append(f"Clients cannot be stacked: {choice.reason}. They run one by one.")
    config = config.model_copy(update={"execution": choice.execution.name, "device": device.type})
    if not config.data.given:
        own = config.data.model_copy(update={"digest": data.digest(config.data.name)})
        config = config.model_copy(update={"data": own})
    cohort = Cohort(
        names=everyone.names,
        train=train,
        validation=Samples.of([(_cast(x, dtype), _cast(y, dtype)) for x, y in held], device),
        task=task,
        layout=layout,
        execution=choice.execution,
        local=config.local,
        seed=training_seed,
        rounds=config.rounds,
        class_weight=_class_weights(config, task, everyone, dtype, device),
        merge_single=has_batch_statistics(module),
        random_layers=choice.random_layers,
        augmentation=_augmentation(everyone) if config.data.augment else None,
    )
    test = Samples.of(tests, device)
    execution, reason = choice.execution, choice.reason
    return Assembly(config, method, everyone, problem, cohort, test, execution, device, reason, tuple(warnings))


def load_federation(config: Config) -> Federation:
    if config.data.given:
        raise ConfigError(
            f"The federation of this configuration, {config.data.name!r}, was given as a Python object: give it again, "
            "as in fedkin.resume(path, federation=...) or fedkin.run(config, federation=...)."
        )
    settings = config.data.model_dump(exclude={"name", "given", "split", "augment"})
    return data.load(config.data.name, config.data.split, seed=config.seeds[0], table=config.table, **settings)


def _task(task: Task, config: Config, loss: Function | None, metric: Function | None) -> Task:
    """The task with the loss and the metric that were asked for, by name or as Python functions."""
    try:
        if config.learning.loss != "default":
            task = replace(task, loss=loss_named(loss or config.learning.loss))
        if config.learning.metric != "default":
            task = replace(task, metric=metric_named(metric or config.learning.metric, task.kind))
        if config.learning.lower_is_better:
            task = replace(task, metric=replace(task.metric, higher_is_better=False))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return replace(task, metric=task.metric.in_units(task.units[1]))


def _located(graph: Graph) -> Graph:
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


def _refuse_what_has_no_score(federation: Federation) -> None:
    if federation.task.metric.name != "auc":
        return
    if all(len(set(client.test[1].tolist())) < 2 for client in federation.clients):
        raise FederationError(
            "No client's test data has samples of two classes, so nobody would have an AUC; choose another metric, "
            "such as learning.metric = 'accuracy', or set more samples aside for testing."
        )


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
    if config.preset == "paper" and not papers.paper(type(method), config.data.name, config.data.split):
        place = f"{config.data.name} ({config.data.split})"
        told.append(f"preset = 'paper' changes nothing: {config.method} has no published values for {place}.")
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


def _newcomers(federation: Federation, share: float, seed: int) -> list[str]:
    """Names held out as newcomers, by lot."""
    count = round(share * len(federation))
    if share and not count:
        raise ConfigError(f"participation.novel = {share} of {len(federation)} clients is nobody; take a larger share.")
    lots = sorted(federation.names, key=lambda name: streams.number(seed, name, "newcomer"))
    return lots[:count]


def _class_weights(
    config: Config, task: Task, federation: Federation, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    wanted = config.local.class_weights
    if wanted == "none":
        return None
    if task.kind != "classification":
        raise ConfigError("local.class_weights are for classification; this task is a regression.")
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


def _refuse_what_no_one_can_average(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats and layer.momentum is None:
            raise models.ModelError(
                f"Layer {name!r} is a BatchNorm with momentum=None, whose average needs a count of batches that cannot "
                "be mixed between clients. Give it a momentum, such as 0.1."
            )


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype) if values.is_floating_point() else values
