"""What is learned: the task, its loss and its metric."""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .survival import c_index, cox
from .wording import give_again, nearest

Kind = Literal["classification", "regression", "survival"]
SampleLoss = Callable[[Tensor, Tensor], Tensor]
"""(outputs (b, ...), targets (b, ...)) -> (b,) losses."""


NARROW = 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8
"""Numbers that a CPU takes at once: of fewer classes, torch computes the softmax one number at a time."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    few = outputs.ndim == 2 and outputs.shape[1] < NARROW and outputs.dtype == torch.float32
    if few and targets.ndim == 1 and outputs.numel() >= 1 << 13 and not outputs.is_cuda:
        # The same bits with the samples last, where torch takes many of them at once; a remainder it would not.
        rest = -len(outputs) % NARROW
        samples, classes = F.pad(outputs, (0, 0, 0, rest)), F.pad(targets, (0, rest))
        return F.cross_entropy(samples.T[None], classes[None], reduction="none")[0, : len(outputs)]
    return F.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.flatten(1) - targets.reshape(len(targets), -1)).square().mean(1)


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.flatten(1) - targets.reshape(len(targets), -1)).abs().mean(1)


def root_mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return squared_error(outputs.double(), targets.double()).mean().sqrt()


def known_errors(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(b, k) outputs less targets, 0 where a target is missing (NaN); and (b, k) which are known."""
    targets = targets.reshape(len(targets), -1)
    known = ~targets.isnan()
    return torch.where(known, outputs.flatten(1) - targets, 0), known


def masked_mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The sum of squared errors over a batch's known targets, over their number; 0 where none is known."""
    errors, known = known_errors(outputs, targets)
    return errors.square().sum() / known.sum().clamp(min=1)


def masked_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """(n,) values whose mean is the mean squared error over all known targets; NaN where none is known."""
    errors, known = known_errors(outputs.double(), targets.double())
    return errors.square().sum(1) / known.double().sum(1).mean()


def masked_absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """(n,) values whose mean is the mean absolute error over all known targets; NaN where none is known."""
    errors, known = known_errors(outputs.double(), targets.double())
    return errors.abs().sum(1) / known.double().sum(1).mean()


def masked_root_mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return masked_squared_error(outputs, targets).mean().sqrt()


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).to(outputs.dtype)


def classes_in(targets: Tensor) -> list[int]:
    return sorted(set(targets.tolist()))


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean recall over the classes present."""
    right = correct(outputs, targets).double()
    return torch.stack([right[targets == c].mean() for c in classes_in(targets)]).mean()


def auc(outputs: Tensor, targets: Tensor) -> Tensor:
    """The chance that a sample of a class is given a higher probability of it than one of another class; ties are half.

    Of two classes, that of class 1; of more, the plain mean over those present, each against the rest. NaN where all
    samples are of one class.
    """
    values = [above.mean() for _, above, _ in against_the_rest(outputs, targets)]
    return torch.stack(values).mean() if values else torch.tensor(torch.nan, dtype=torch.float64)


def against_the_rest(outputs: Tensor, targets: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each class that `auc` is a mean over: (class, for each of its samples the share of the other samples that lie
    below, for each other sample the share of the class that lies above): DeLong's placement values."""
    for c in told_apart(outputs, targets):
        odds = log_odds(outputs, c)
        own, rest = odds[targets == c], odds[targets != c]
        yield c, _share_below(own, rest), 1 - _share_below(rest, own)


def told_apart(outputs: Tensor, targets: Tensor) -> list[int]:
    """The classes that `auc` is a mean over: class 1 of two, else those present; none where there is but one."""
    present = classes_in(targets)
    if len(present) < 2:
        return []
    return [1] if outputs.shape[1] == 2 else present


def log_odds(outputs: Tensor, c: int) -> Tensor:
    """(n,) of class c. They have the order of probabilities, but do not run together at 0 and 1 as those do in floating
    point; summed in order of size, so that ties are ties."""
    others = outputs.double()[:, torch.arange(outputs.shape[1]) != c] - outputs.double()[:, [c]]
    return -others.sort(1).values.logsumexp(1)


def _share_below(values: Tensor, reference: Tensor) -> Tensor:
    """For each value the share of the reference below it, equal ones counted half; NaN where any is NaN."""
    ordered = reference.sort().values
    below, not_above = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    share = (below + not_above).double() / (2 * len(reference))
    return torch.where(values.isnan() | reference.isnan().any(), torch.nan, share)


@dataclass(frozen=True)
class Loss:
    """A loss. Most of ours give a value a sample; a user's own may give one for the batch, and is then never padded."""

    name: str
    function: Callable[..., Tensor]
    """Of outputs and targets; of samples' weights too, if it `weighs`."""
    per_sample: bool
    masks: bool = False
    """Whether targets may be missing, as NaN, and are then left out."""
    weighs: bool = False
    """Whether it gives one value for the batch, but leaves out samples of weight zero, and so may be padded."""

    @property
    def ours(self) -> bool:
        return LOSSES.get(self.name) is self

    @property
    def may_be_padded(self) -> bool:
        return self.per_sample or self.weighs

    def __call__(self, outputs: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        """The batch's loss: the mean over samples with these weights (b,), or the plain mean."""
        if self.weighs:
            return self.function(outputs, targets, weight)
        values = self.function(outputs, targets)
        if values.ndim == 0:
            if weight is not None:
                raise ValueError(
                    "Weights of classes or samples need a loss that gives a value a sample; "
                    f"{self.name} gives one a batch."
                )
            return values
        if weight is None:
            return values.mean()
        return (values * weight).sum() / weight.sum().clamp(min=torch.finfo(values.dtype).tiny)

    def as_metric(self, device: torch.device) -> Metric:
        """To be scored by; one of a user's own is asked where clients train, as it may hold tensors."""
        if self.per_sample:
            return Metric(self.name, self.function, False, True)
        function = self.function
        return Metric(self.name, lambda o, y: function(o.to(device), y.to(device)).detach().cpu(), False, False)

    def each(self, outputs: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        """(k,) the losses of k clients' batches: outputs and targets (k, b, ...), weights (k, b) or none."""
        if not self.per_sample:
            return torch.vmap(self, in_dims=(0, 0, None if weight is None else 0))(outputs, targets, weight)
        values = self.function(outputs.flatten(0, 1), targets.flatten(0, 1)).view(len(outputs), -1)
        if weight is None:
            return values.mean(1)
        return (values * weight).sum(1) / weight.sum(1).clamp(min=torch.finfo(values.dtype).tiny)


@dataclass(frozen=True)
class Metric:
    """What is reported of a client's outputs and targets, all at once: one number, or a value a sample, whose mean is
    meant. Only a metric that says `per_sample` may be asked about some of the samples at a time."""

    name: str
    function: Callable[[Tensor, Tensor], Tensor]
    higher_is_better: bool
    per_sample: bool
    kind: Kind | None = None
    """The tasks it is for; None: a user's own, for any."""
    degree: int = 0
    """How it grows with the target: 1, in the target's units; 2, in their square."""
    masks: bool = False
    """Whether it leaves out missing targets, which are NaN."""
    scale: float = 1.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.function(outputs, targets) * self.scale

    def beside(self, other: Metric) -> Metric:
        """Both at once, two values a sample."""
        name = f"{self.name} and {other.name}"
        return Metric(name, lambda o, y: torch.stack([self(o, y), other(o, y)], 1), self.higher_is_better, True)

    def in_units(self, target_scale: float, target_mean: float = 0.0) -> Metric:
        """The same of targets that were scaled, told in the target's own units: an error of ours grows with them; a
        user's own function is given outputs and targets as they were."""
        if self.kind is not None or (target_mean, target_scale) == (0.0, 1.0):
            return replace(self, scale=target_scale**self.degree)
        function = self.function

        def as_they_were(outputs: Tensor, targets: Tensor) -> Tensor:
            given, true = (target_mean + target_scale * each.double() for each in (outputs, targets))
            return function(given, _to_six_digits(true))

        return replace(self, function=as_they_were)


def _to_six_digits(values: Tensor) -> Tensor:
    """Rounded there, which single precision holds, so that a 0 or a 3 that was scaled is a 0 or a 3 again."""
    largest = float(values.nan_to_num().abs().max()) if values.numel() else 0.0
    return values.round(decimals=6 - math.ceil(math.log10(largest))) if largest else values


LOSSES = {
    "cross_entropy": Loss("cross_entropy", cross_entropy, True),
    "mse": Loss("mse", squared_error, True),
    "masked_mse": Loss("masked_mse", masked_mean_squared_error, False, masks=True),
    "cox": Loss("cox", cox, False, weighs=True),
}
METRICS = {
    "accuracy": Metric("accuracy", correct, True, True, "classification"),
    "balanced_accuracy": Metric("balanced_accuracy", balanced_accuracy, True, False, "classification"),
    "auc": Metric("auc", auc, True, False, "classification"),
    "log_loss": Metric("log_loss", cross_entropy, False, True, "classification"),
    "rmse": Metric("rmse", root_mean_squared_error, False, False, "regression", degree=1),
    "mae": Metric("mae", absolute_error, False, True, "regression", degree=1),
    "mse": Metric("mse", squared_error, False, True, "regression", degree=2),
    "masked_rmse": Metric("masked_rmse", masked_root_mean_squared_error, False, False, "regression", 1, masks=True),
    "masked_mae": Metric("masked_mae", masked_absolute_error, False, False, "regression", 1, masks=True),
    "masked_mse": Metric("masked_mse", masked_squared_error, False, False, "regression", 2, masks=True),
    "c_index": Metric("c_index", c_index, True, False, "survival"),
}
ROOTS: dict[str, SampleLoss] = {"rmse": squared_error, "masked_rmse": masked_squared_error}
"""The metrics that are the root of a mean, and what the mean is of."""


def metrics_for(kind: Kind, masked: bool = False) -> dict[str, Metric]:
    """Those of METRICS that fit a task of this kind; `masked`: one some of whose targets are missing."""
    return {name: metric for name, metric in METRICS.items() if metric.kind == kind and metric.masks == masked}


def _imported(reference: str, what: str) -> Callable[[Tensor, Tensor], Tensor]:
    module, _, attribute = reference.partition(":")
    try:
        found = operator.attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"The {what} {reference!r} could not be imported: {error}. {give_again(what)}") from error
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


def metric_named(name: str | Callable[[Tensor, Tensor], Tensor], kind: Kind | None = None) -> Metric:
    """One of METRICS that fits the kind of task, or a user's own; a function with the attribute
    `lower_is_better = True` is minimised."""
    if not callable(name) and name in METRICS:
        if kind is not None and METRICS[name].kind != kind:
            raise ValueError(
                f"The metric {name!r} is for {METRICS[name].kind}, but this task is {kind}; for that there are "
                f"{', '.join(metrics_for(kind))}, or your own as 'package.module:function'."
            )
        return METRICS[name]
    if callable(name) or ":" in name:
        function = name if callable(name) else _imported(name, "metric")
        label = reference_of(name) if callable(name) else name
        return Metric(label, function, not getattr(function, "lower_is_better", False), False)
    fitting = METRICS if kind is None else metrics_for(kind)
    raise ValueError(f"There is no metric {name!r}; {_nearest(name, fitting)}")


def _nearest(name: str, known: dict[str, Loss] | dict[str, Metric]) -> str:
    near = nearest(name, known)
    hint = f"did you mean {near!r}? " if near else ""
    return f"{hint}known are {', '.join(known)}, or your own as 'package.module:function'."


def reference_of(function: object) -> str:
    """'package.module:name' of a Python callable, so that a configuration can name it again."""
    return f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__qualname__)}"


@dataclass(frozen=True)
class Task:
    """What every client learns: classification of `outputs` classes, regression of `outputs` numbers, or survival, the
    log risk of an event, from targets (time, event)."""

    kind: Kind
    inputs: tuple[int, ...]
    outputs: int
    loss: Loss
    metric: Metric
    class_names: tuple[str, ...] = ()
    target_mean: float = 0.0
    target_scale: float = 1.0
    """Of a regression whose targets were scaled: y = target_mean + target_scale * output. Errors in the target's own
    units (rmse, mae, mse) are told, losses are of scaled targets."""
    scaled_unasked: bool = False
    """Whether targets were scaled because that suits our losses, and nobody asked for it: a loss of one's own gets them
    as they were."""
    scaled_errors: bool = False
    """Whether errors, too, are told of scaled targets, as the papers about some data sets have them."""

    @property
    def units(self) -> tuple[float, float]:
        """(mean, scale) of the units in which errors are told: (0, 1) where they are those of scaled targets."""
        return (0.0, 1.0) if self.scaled_errors else (self.target_mean, self.target_scale)

    def strata(self, targets: Tensor) -> Tensor | None:
        """(n,) what every part of a client's samples should have in the same shares: of survival, the event."""
        return targets[:, 1] if self.kind == "survival" else None

    def telling(self, targets: Tensor) -> int:
        """How many of the samples say something of a model: of survival those with the event, else all."""
        return int(targets[:, 1].sum()) if self.kind == "survival" else len(targets)

    @staticmethod
    def classification(inputs: tuple[int, ...], classes: int, names: tuple[str, ...] = ()) -> Task:
        loss, metric = LOSSES["cross_entropy"], METRICS["accuracy"]
        return Task("classification", inputs, classes, loss, metric, names)

    @staticmethod
    def regression(inputs: tuple[int, ...], outputs: int) -> Task:
        return Task("regression", inputs, outputs, LOSSES["mse"], METRICS["mse"])

    @staticmethod
    def survival(inputs: tuple[int, ...]) -> Task:
        return Task("survival", inputs, 1, LOSSES["cox"], METRICS["c_index"])


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """(classes,) balanced weights n / (C n_c) of one client's labels; a class it lacks weighs nothing."""
    counts = torch.bincount(labels, minlength=classes).double()
    return torch.where(counts > 0, labels.numel() / (int((counts > 0).sum()) * counts.clamp(min=1)), 0.0)
