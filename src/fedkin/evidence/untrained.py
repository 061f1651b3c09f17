"""What a silo has with nothing: what its own training data say most often, or have on average; and a linear model.

Rows beside every comparison: a method that does not beat the first has learnt nothing, and a network that does not beat
the second, trained alone, is no yardstick for joining. All of it stands on a silo's own training rows alone: validation
and test data have no say, and inputs are scaled by these rows.

The linear model is a logistic regression, of numbers a ridge regression, of times until an event Cox's model. Its
penalty is 3 on standardised inputs (C = 1/3): on the heart-disease hospitals and on drawn tables that was better than 1
or 10, and better than what a tenth of the rows, kept for validation, choose of seven. Of numbers no penalty suits all,
as the noise has no unit: there rows that are left out choose, one at a time. It is for flat inputs, at most 256 of
them, and one number, class or risk a sample: not for pictures, series, or targets wider than outputs, nor where loss
and metric are both the user's own, as nobody else knows what outputs mean there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..base.task import Task
from ..maths import linear
from .comparison import Run
from .records import Untrained
from .references import Reference

Pair = tuple[Tensor, Tensor]
Array = NDArray[np.float64]
Answers = dict[str, list[Tensor]]
"""By name, for each client (n_test, outputs) in double precision; NaN where there is no answer."""
NAMES = {"classification": "majority", "regression": "mean"}
LINEAR = "linear"
PENALTY = 3.0
PENALTIES = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
MOST_INPUTS = 256
MOST_NUMBERS = 1 << 26
"""Inputs of all training rows of a silo: of more, fitting would take more than seconds."""
NAN = float("nan")


class Own(NamedTuple):
    """A silo's own samples, and how much each training sample counts (n,), if not all alike."""

    train: Pair
    test: Pair
    weight: Tensor | None = None


def answers(task: Task, clients: Iterable[Own]) -> Answers:
    """What needs no federation answers on each client's test samples; empty where nothing can be said so."""
    everyone = list(clients)
    found: Answers = {}
    if task.kind in NAMES:
        found[NAMES[task.kind]] = [_constant(task, own) for own in everyone]
    if _flat(task):
        found[LINEAR] = [_linear(task, own) for own in everyone]
    return {name: each for name, each in found.items() if any(not own.isnan().all() for own in each)}


def scored(task: Task, found: Mapping[str, Sequence[Tensor]], clients: Iterable[Own]) -> dict[str, Untrained]:
    """Scores in the task's metric; NaN for a client without answer, and nothing where no client has one."""
    targets = [own.test[1].cpu() for own in clients]
    scores = {name: tuple(map(lambda o, y: _score(task, o, y), each, targets)) for name, each in found.items()}
    return {
        name: Untrained(name=name, clients=each)
        for name, each in scores.items()
        if any(score == score for score in each)
    }


def _score(task: Task, outputs: Tensor, targets: Tensor) -> float:
    if not len(targets) or outputs.isnan().any():
        return NAN
    try:
        value = task.metric(outputs, targets if task.kind == "classification" else targets.double())
        return float(torch.as_tensor(value, dtype=torch.float64).mean())
    except Exception:  # of somebody's own metric, which may not be made for answers that are all the same
        return NAN


# ---- one answer for all ----


def _constant(task: Task, own: Own) -> Tensor:
    """Classes are answered by their shares in the training data, each counted once more, so that none is impossible:
    the most frequent one is the answer, and ranks say nothing (an AUC of 0.5)."""
    y, count = own.train[1].cpu(), len(own.test[1])
    answer = torch.full((task.outputs,), NAN, dtype=torch.float64)
    if len(y) and task.kind == "classification":
        shares = torch.bincount(y.long(), minlength=task.outputs).double() + 1
        answer = (shares / shares.sum()).log()
    elif len(y) and y[0].numel() == task.outputs:
        answer = y.double().reshape(len(y), -1).nanmean(0)
    return answer.expand(count, -1)


# ---- a linear model ----


def _flat(task: Task) -> bool:
    if task.kind != "classification" and (task.outputs > 1 or not (task.loss.ours or task.metric.kind is not None)):
        return False
    return len(task.inputs) == 1 and 0 < task.inputs[0] <= MOST_INPUTS


LARGEST = 1e100
"""Of inputs: what is beyond, or not finite, has no squares to be told."""


class _Fit(NamedTuple):
    """What a silo's linear model answered, and of what it was made beside the inputs of its training rows."""

    task: tuple[str, int]
    targets: Tensor
    asked: Tensor
    weight: Tensor | None
    answers: Tensor

    def of(self, task: Task, own: Own) -> bool:
        alike = self.task == (task.kind, task.outputs) and self.targets is own.train[1] and self.asked is own.test[0]
        if self.weight is None or own.weight is None:
            return alike and self.weight is own.weight
        return alike and torch.equal(self.weight, own.weight)


_fits: MutableMapping[Tensor, _Fit] = WeakTensorKeyDictionary()
"""By the training rows, as long as these are kept: the runs of a comparison share them."""


def _linear(task: Task, own: Own) -> Tensor:
    """(n_test, outputs) by the silo's linear model; what is known of the same rows is not fitted again."""
    known = _fits.get(own.train[0])
    if known is None or not known.of(task, own):
        made = (task.kind, task.outputs), own.train[1], own.test[0], own.weight, _fitted(task, own)
        known = _fits[own.train[0]] = _Fit(*made)
    return known.answers


def _fitted(task: Task, own: Own) -> Tensor:
    """(n_test, outputs) by the linear model of the training rows, each input scaled by these."""
    x, y = own.train[0].cpu().double().numpy(), own.train[1].cpu().numpy()
    asked = own.test[0].cpu().double().numpy()
    weight = np.ones(len(y)) if own.weight is None else own.weight.cpu().double().numpy()
    if task.kind == "regression":
        if y.size != len(y):
            return _unknown(task, own)
        y = y.reshape(len(y)).astype(np.float64)
    counted = (weight > 0) & ~(np.isnan(y) if y.ndim == 1 else np.isnan(y).any(axis=1))
    x, y, weight = (part[counted] for part in (x, y, weight))
    if not len(y) or x.size > MOST_NUMBERS or not all((np.abs(part) < LARGEST).all() for part in (x, asked)):
        return _unknown(task, own)
    middle, width = x.mean(axis=0), x.std(axis=0)
    width = np.where(width > 1e-9 * np.abs(x).max(axis=0, initial=0.0), width, np.inf)  # what is constant says nothing
    rows, asked = (x - middle) / width, (asked - middle) / width
    weight = weight / weight.mean()
    if task.kind == "regression":
        b = linear.ridge(rows, y, weight, linear.left_out(rows, y, weight, PENALTIES))
        return torch.from_numpy(b[0] + asked @ b[1:])[:, None]
    if task.kind == "survival":
        return torch.from_numpy(asked @ linear.cox(rows, y.astype(np.float64), weight, PENALTY))[:, None]
    return torch.from_numpy(_classes(rows, y, weight, asked, task.outputs))


def _classes(rows: Array, y: NDArray[np.int64], weight: Array, asked: Array, outputs: int) -> Array:
    """(n, outputs) log probabilities. Of a class that the training rows lack there might have been one more row."""
    present, codes = np.unique(y, return_inverse=True)
    logits = np.zeros((len(asked), len(present)))
    if len(present) == 2:
        b = linear.logistic(rows, codes == 1, weight, PENALTY)
        logits[:, 1] = b[0] + asked @ b[1:]
    elif len(present) > 2:
        b = linear.multinomial(rows, codes, len(present), weight, PENALTY)
        logits = b[0] + asked @ b[1:]
    found = np.full((len(asked), outputs), -np.log(len(y) + outputs))
    logits -= np.logaddexp.reduce(logits, axis=1, keepdims=True)
    found[:, present] = logits + np.log((len(y) + len(present)) / (len(y) + outputs))
    return found


def _unknown(task: Task, own: Own) -> Tensor:
    return torch.full((len(own.test[1]), task.outputs), NAN, dtype=torch.float64)


# ---- beside a comparison ----


def beside(runs: Sequence[Run]) -> list[Reference]:
    """Rows of each seed, as the runs have them; of runs that do not, none."""
    found: dict[tuple[str, int], Reference] = {}
    for run in runs:
        summary = run.summary
        for own in (summary.untrained, summary.linear):
            if own is not None and (own.name, summary.seed) not in found:
                scores = tuple(NAN if score is None else score for score in own.clients)
                found[own.name, summary.seed] = Reference(
                    name=own.name,
                    seed=summary.seed,
                    metric=summary.metric,
                    higher_is_better=summary.higher_is_better,
                    clients=summary.clients,
                    scores=scores,
                    last=scores,
                    note=NOTES.get(own.name, ""),
                    settings="",
                )
    return list(found.values())


NOTES = {
    "majority": "what each silo’s own training labels say most often, and nothing else",
    "mean": "the mean of each silo’s own training targets, and nothing else",
    LINEAR: "each silo’s own linear model with a ridge penalty, of its own training rows and nothing else",
}
