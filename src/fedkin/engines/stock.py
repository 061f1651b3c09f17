"""What runs have in common, whatever their method: the clients' data, the model, and how clients are run.

It is the larger part of a run in memory and in the time that it takes to get ready: reading and dealing the data, and
trying the model. Nothing in it changes while runs go on, so the methods of a comparison share one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from .. import data
from ..base import streams
from ..base.machine import chosen_device
from ..base.settings import ConfigError
from ..base.survival import comparable_with
from ..base.task import LOSSES, METRICS, Task, loss_named, metric_named
from ..base.weights import Layout
from ..data.corrupt import corrupt
from ..data.federation import Federation, FederationError, Pair
from ..data.preprocessing import TableSettings
from ..runs.config import Config
from ..training import models
from ..training.choose import Choice, choose
from ..training.cohort import Samples

DTYPES = {
    "float32": torch.float32,
    "float32-strict": torch.float32,
    "bf16": torch.float32,  # weights stay in single precision; products of them do not
    "float64": torch.float64,
}

Function = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Objects:
    """What was given as Python objects instead of by name."""

    federation: Federation | None = None
    model: Callable[..., nn.Module] | None = None
    loss: Function | None = None
    metric: Function | None = None


@dataclass(frozen=True, repr=False)
class Stock:
    """Clients with their samples on a device, and the model they train. Newcomers are the clients from `known` on.

    `federation` has the clients in that order and with their validation part, `related` all of them as they were before
    newcomers were drawn, sorted: the order in which graphs are drawn.
    """

    related: Federation
    federation: Federation
    known: int
    task: Task
    module: nn.Module
    layout: Layout
    initial: Tensor
    fresh: Callable[[torch.Generator], Tensor]
    train: Samples
    validation: Samples
    test: Samples
    device: torch.device
    dtype: torch.dtype
    execution: str
    precision: str
    digest: str | None
    """Of a user's own files, as they were when they were read."""

    @cached_property
    def choice(self) -> Choice:
        """How clients are run; tried when it is first asked for."""
        x, y = self.federation.clients[0].train
        if self.task.kind == "survival":  # patients without the event have no gradient, which would show nothing
            x, y = max(
                (client.train for client in self.federation.clients), key=lambda pair: self.task.telling(pair[1])
            )
            late = y[:, 1].argsort(descending=True, stable=True)
            x, y = x[late], y[late]
        first = _cast(x, self.dtype)[:4].to(self.device), _cast(y, self.dtype)[:4].to(self.device)
        return choose(self.module, self.layout, self.task.loss, *first, self.execution, self.precision)

    @property
    def tried(self) -> bool:
        """Whether the model has been tried already."""
        return "choice" in self.__dict__

    @property
    def samples_bytes(self) -> int:
        """What the samples take on the device."""
        return sum(t.nbytes for samples in (self.train, self.validation, self.test) for t in (samples.x, samples.y))

    @property
    def federation_bytes(self) -> int:
        """What the clients' own tensors take in memory."""
        return federation_bytes(self.federation)


def federation_bytes(federation: Federation) -> int:
    pairs = [pair for c in federation.clients for pair in (c.train, c.test, c.validation) if pair]
    read = [c.as_read.raw for c in federation.clients if c.as_read]
    return sum(tensor.nbytes for each in (*pairs, *read) for tensor in each)


def data_key(config: Config) -> str:
    """Equal for configurations that read the same data and deal them alike."""
    read = config.model_copy(update={"table": _as_read(config)})
    parts = read.model_dump(mode="json", include={"data", "table"})
    return json.dumps([parts, config.seeds[0]])


def key(config: Config, ways: str | None = "auto") -> str:
    """Equal for configurations whose runs can share a stock. `ways`: the federation's `statistics`: where these are no
    longer open, what a run wants of them makes no difference."""
    shared = {"data", "table", "corruption", "model", "learning", "precision", "device", "execution"}
    parts = config.model_dump(mode="json", include=shared)
    if ways != "auto":
        parts["table"]["statistics"] = ways
    return json.dumps([parts, config.participation.novel, config.seeds[:2]])


def _as_read(config: Config) -> TableSettings:
    """How a table is read, whichever statistics a run wants: one reading serves both. But of medians each silo has
    only its own."""
    only_own = config.table.fill == "median"
    return config.table if only_own else config.table.model_copy(update={"statistics": "auto"})


def load_federation(config: Config) -> Federation:
    """The data that a configuration names, dealt to clients; a table's are yet to be `prepared`."""
    if config.data.given:
        raise ConfigError(
            f"The federation of this configuration, {config.data.name!r}, was given as a Python object: give it again, "
            "as in fedkin.resume(path, federation=...) or fedkin.run(config, federation=...)."
        )
    settings = config.data.model_dump(exclude={"name", "given", "split", "augment"})
    return data.load(config.data.name, config.data.split, seed=config.seeds[0], table=_as_read(config), **settings)


def stocked(config: Config, objects: Objects, federation: Federation | None = None) -> Stock:
    """Data and model of a configuration; the federation is read, unless it is at hand."""
    split_seed, init_seed, _ = config.seeds
    federation = objects.federation or federation or load_federation(config)
    federation = federation.prepared(config.table.statistics)
    dtype, device = DTYPES[config.precision], chosen_device(config.device)
    federation = _as_the_loss_wants(federation, config, objects)
    federation = federation.with_validation(config.data.validation, split_seed)
    federation = corrupt(federation, seed=split_seed, **config.corruption.model_dump())
    newcomers = _newcomers(federation, config.participation.novel, split_seed)
    known, everyone = federation.without(newcomers)
    _refuse_what_has_no_score(known)
    task = federation.task

    def drawn(seed: int) -> nn.Module:
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            return models.build(objects.model or config.model.name, task.inputs, task.outputs, config.model.settings)

    def fresh(generator: torch.Generator) -> Tensor:
        seed = int(torch.randint(2**62, (1,), generator=generator))
        return layout.row(drawn(seed), dtype).to(device)

    module = drawn(streams.number(init_seed, "initial weights"))
    models.check(module, task.inputs, task.outputs)
    _refuse_what_no_one_can_average(module)
    module = module.to(dtype)
    layout = Layout.of(module)
    if layout.parameters == 0:
        raise models.ModelError("The model has no parameter that could be trained.")

    def samples(pairs: list[tuple[Tensor, Tensor]], weight: Tensor | None = None) -> Samples:
        return Samples.of([(_cast(x, dtype), _cast(y, dtype)) for x, y in pairs], device, weight)

    return Stock(
        related=federation,
        federation=everyone,
        known=len(known),
        task=task,
        module=module,
        layout=layout,
        initial=layout.row(module, dtype).to(device),
        fresh=fresh,
        train=samples([c.train for c in everyone.clients], _sample_weights(everyone, dtype)),
        validation=samples([c.validation or (c.train[0][:0], c.train[1][:0]) for c in everyone.clients]),
        test=samples([c.test for c in everyone.clients]),
        device=device,
        dtype=dtype,
        execution=config.execution,
        precision=config.precision,
        digest=None if config.data.given else data.digest(config.data.name),
    )


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
    mean, scale = task.units
    return replace(task, metric=task.metric.in_units(scale, mean))


def _as_the_loss_wants(federation: Federation, config: Config, objects: Objects) -> Federation:
    """The federation with its loss and metric; its targets as they were, where these were scaled for our losses and the
    loss is a user's own."""
    task = federation.task
    own_loss = not task.loss.ours if config.learning.loss == "default" else config.learning.loss not in LOSSES
    if task.scaled_unasked and own_loss:
        mean, scale = task.target_mean, task.target_scale

        def as_it_was(pair: Pair) -> Pair:
            return pair[0], _to_twelve_digits(mean + scale * pair[1].double())

        federation = replace(
            federation,
            clients=tuple(
                replace(
                    client,
                    train=as_it_was(client.train),
                    test=as_it_was(client.test),
                    validation=client.validation and as_it_was(client.validation),
                )
                for client in federation.clients
            ),
            task=replace(task, target_mean=0.0, target_scale=1.0, scaled_unasked=False),
        )
    task = _task(federation.task, config, objects.loss, objects.metric)
    _refuse_what_does_not_fit(task, federation)
    federation = replace(federation, task=task)
    return replace(federation, notes=(*federation.notes, *_said_by_all(federation)))


NEARLY_ALL = 0.9
"""Of all rows, the share of one class from which on accuracy says little."""


def _said_by_all(federation: Federation) -> list[str]:
    """Where one class is so frequent that a model which always says it seems right."""
    task = federation.task
    if task.kind != "classification" or task.metric.name != "accuracy":
        return []
    pairs = [pair for client in federation.clients for pair in (client.train, client.validation, client.test) if pair]
    counts = torch.bincount(torch.cat([y for _, y in pairs]), minlength=task.outputs)
    most, rows = int(counts.argmax()), int(counts.sum())
    share = int(counts[most]) / rows
    if share < NEARLY_ALL or int((counts > 0).sum()) < 2:
        return []
    name, two = task.class_names[most] if task.class_names else str(most), task.outputs == 2
    metric, tells = ("auc", "tells whether the other is seen") if two else ("balanced_accuracy", "counts all alike")
    told = min(99.9, round(100 * share, 0 if share < 0.985 else 1))
    return [
        f"Of all rows {told:g} % are of the class {name!r}: a model that always says so has this accuracy, and has "
        f"learned nothing. --metric {metric} (learning.metric = {metric!r}) {tells}."
    ]


def _to_twelve_digits(values: Tensor) -> Tensor:
    """Rounded there, so that a 0 or a 3 that was scaled is a 0 or a 3 again."""
    largest = float(values.nan_to_num().abs().max()) if len(values) else 0.0
    return values.round(decimals=12 - math.ceil(math.log10(largest))) if largest else values


def _refuse_what_does_not_fit(task: Task, federation: Federation) -> None:
    survival = task.kind == "survival"
    if task.loss.ours and survival != (task.loss.name == "cox"):
        fitting = "cox" if survival else "another"
        raise ConfigError(
            f"The loss {task.loss.name!r} is not for {task.kind}; take {fitting}, or your own as "
            "'package.module:function'."
        )
    if task.kind != "regression":
        return
    target = federation.clients[0].train[1]
    width = target[0].numel()
    for what in (task.loss if task.loss.ours else None, task.metric if task.metric.name in METRICS else None):
        if what is not None and width != task.outputs:
            raise ConfigError(
                f"{what.name} compares outputs with targets one by one, and here there are {task.outputs} and {width} "
                "of a sample. Where targets are wider than outputs, give a loss and a metric of your own."
            )


def _newcomers(federation: Federation, share: float, seed: int) -> list[str]:
    """Names held out as newcomers, by lot."""
    count = round(share * len(federation))
    if share and not count:
        raise ConfigError(f"participation.novel = {share} of {len(federation)} clients is nobody; take a larger share.")
    lots = sorted(federation.names, key=lambda name: streams.number(seed, name, "newcomer"))
    return lots[:count]


def _refuse_what_has_no_score(federation: Federation) -> None:
    if federation.task.metric.name == "c_index" and not any(
        comparable_with(client.test[1]).any() for client in federation.clients
    ):
        raise FederationError(
            "No client's test data has two patients who can be compared, one of whom had the event first, so nobody "
            "would have a C-index; set more samples aside for testing (data.test_fraction)."
        )
    if federation.task.metric.name != "auc":
        return
    if all(len(set(client.test[1].tolist())) < 2 for client in federation.clients):
        raise FederationError(
            "No client's test data has samples of two classes, so nobody would have an AUC; choose another metric, "
            "such as learning.metric = 'accuracy', or set more samples aside for testing."
        )


def _refuse_what_no_one_can_average(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats and layer.momentum is None:
            raise models.ModelError(
                f"Layer {name!r} is a BatchNorm with momentum=None, whose average needs a count of batches that cannot "
                "be mixed between clients. Give it a momentum, such as 0.1."
            )


def _sample_weights(federation: Federation, dtype: torch.dtype) -> Tensor | None:
    """(n,) of all clients' training samples; 1 where a client brings none, None where nobody does."""
    if all(client.weight is None for client in federation.clients):
        return None
    each = [torch.ones(c.samples) if c.weight is None else c.weight for c in federation.clients]
    return torch.cat(each).to(dtype)


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype) if values.is_floating_point() else values
