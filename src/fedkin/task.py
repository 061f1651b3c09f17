"""What is learned: the task, its loss and its metric."""

from __future__ import annotations

import difflib
import importlib
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

SampleLoss = Callable[[Tensor, Tensor], Tensor]
"""(outputs (b, ...), targets (b, ...)) -> (b,) losses."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.flatten(1) - targets.reshape(len(targets), -1)).square().mean(1)


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).to(outputs.dtype)


@dataclass(frozen=True)
class Loss:
    """A loss. Ours give a value a sample; a user's own may give one for the batch, and is then never padded."""

    name: str
    function: Callable[[Tensor, Tensor], Tensor]
    per_sample: bool

    def __call__(self, outputs: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        """The batch's loss: the mean over samples with these weights (b,), or the plain mean."""
        values = self.function(outputs, targets)
        if values.ndim == 0:
            if weight is not None:
                raise ValueError(
                    f"Class weights need a loss that gives a value a sample; {self.name} gives one a batch."
                )
            return values
        if weight is None:
            return values.mean()
        return (values * weight).sum() / weight.sum().clamp(min=torch.finfo(values.dtype).tiny)


@dataclass(frozen=True)
class Metric:
    """What is reported. A metric of ours gives a value a sample; a user's own gets all of a client's outputs at once
    and may give one number or a value a sample."""

    name: str
    function: Callable[[Tensor, Tensor], Tensor]
    higher_is_better: bool
    per_sample: bool


LOSSES = {
    "cross_entropy": Loss("cross_entropy", cross_entropy, True),
    "mse": Loss("mse", squared_error, True),
}
METRICS = {
    "accuracy": Metric("accuracy", correct, True, True),
    "mse": Metric("mse", squared_error, False, True),
}


def _imported(reference: str, what: str) -> Callable[[Tensor, Tensor], Tensor]:
    module, _, attribute = reference.partition(":")
    try:
        found = operator.attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"The {what} {reference!r} could not be imported: {error}.") from error
    if not callable(found):
        raise ValueError(f"The {what} {reference!r} is not a function of outputs and targets.")
    return found  # type: ignore[no-any-return]


def loss_named(name: str | Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """One of LOSSES, or a user's own as 'package.module:function' or a callable."""
    if callable(name):
        return Loss(reference_of(name), name, False)
    if name in LOSSES:
        return LOSSES[name]
    if ":" in name:
        return Loss(name, _imported(name, "loss"), False)
    raise ValueError(f"There is no loss {name!r}; {_nearest(name, LOSSES)}")


def metric_named(name: str | Callable[[Tensor, Tensor], Tensor]) -> Metric:
    """One of METRICS, or a user's own; a function with the attribute `lower_is_better = True` is minimised."""
    if not callable(name) and name in METRICS:
        return METRICS[name]
    if callable(name) or ":" in name:
        function = name if callable(name) else _imported(name, "metric")
        label = reference_of(name) if callable(name) else name
        return Metric(label, function, not getattr(function, "lower_is_better", False), False)
    raise ValueError(f"There is no metric {name!r}; {_nearest(name, METRICS)}")


def _nearest(name: str, known: dict[str, Loss] | dict[str, Metric]) -> str:
    near = difflib.get_close_matches(name, known, 1, 0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}known are {', '.join(known)}, or your own as 'package.module:function'."


def reference_of(function: object) -> str:
    """'package.module:name' of a Python callable, so that a configuration can name it again."""
    return f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__qualname__)}"


@dataclass(frozen=True)
class Task:
    """What every client learns: classification of `outputs` classes, or regression of `outputs` numbers."""

    kind: Literal["classification", "regression"]
    inputs: tuple[int, ...]
    outputs: int
    loss: Loss
    metric: Metric
    class_names: tuple[str, ...] = ()
    target_mean: float = 0.0
    target_scale: float = 1.0
    """Of a regression whose targets were scaled: y = target_mean + target_scale * output. Errors in the target's own
    units (rmse, mae, mse) are told, losses are of scaled targets."""

    @staticmethod
    def classification(inputs: tuple[int, ...], classes: int, names: tuple[str, ...] = ()) -> Task:
        loss, metric = LOSSES["cross_entropy"], METRICS["accuracy"]
        return Task("classification", inputs, classes, loss, metric, names)

    @staticmethod
    def regression(inputs: tuple[int, ...], outputs: int) -> Task:
        return Task("regression", inputs, outputs, LOSSES["mse"], METRICS["mse"])


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """(classes,) balanced weights n / (C n_c) of one client's labels; a class it lacks weighs nothing."""
    counts = torch.bincount(labels, minlength=classes).double()
    return torch.where(counts > 0, labels.numel() / (int((counts > 0).sum()) * counts.clamp(min=1)), 0.0)
