"""How much models know of a client's own samples: one number for each model, whatever the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..base.task import METRICS, Loss, Metric, Task
from .cohort import Samples
from .evaluation import all_outputs, evaluate_all
from .execution import Execution

MOST = 256
"""Samples of a client that are looked at, drawn by lot; a loss of one's own may look at every two of them."""
DEALS = 8
"""Wrong pairings of outputs and targets of which the mean is taken."""
SHARPNESS = (1.0, 3.0, 10.0, 30.0)
"""By which outputs are multiplied before they become probabilities of classes."""
LEAST = 1e-3
"""Of the loss of wrong pairings: a loss below that is none."""


def skills(execution: Execution, samples: Samples, models: Sequence[Tensor], task: Task) -> Tensor:
    """(models, m) how much each client's models know of its own samples: 0 is nothing, below that worse.

    The last model is the client's own. For classes it is the probability of the right one, above that of the same
    outputs dealt to the wrong samples: who always says what is frequent knows nothing. How sure a model is does not
    count, as a mean of models is less sure than each of them: of some degrees the best is taken. For numbers it is the
    logarithm of the loss beside that of the client's own outputs dealt to the wrong samples, so that it has no upper
    end: of the part of the loss that is explained, the mean of two strangers would have half, and look like kin. For
    times until an event it is Somers' D, 2 C - 1 of the C-index: of Cox's likelihood nearly all is the number of
    patients, whatever a model knows. Not finite counts as nothing.
    """
    return known(execution, samples, models, task)[0]


def known(execution: Execution, samples: Samples, models: Sequence[Tensor], task: Task) -> tuple[Tensor, Tensor]:
    """`skills`, and (models, m) of classes how often a model is right: one that tells a rare class from the others, and
    calls the frequent one by another name, has skill, and is of no use. For other tasks the skills again."""
    some = by_lot(samples)
    if task.kind == "classification":
        labels, shares = _with_shares(some, task.outputs)
        above = Metric("above", partial(_above_what_is_frequent, shares), True, True)
        mean = evaluate_all(execution, replace(some, y=labels), models, above)
        mean = mean.view(*mean.shape[:2], -1)  # without samples there is but one value, which is NaN
        found = mean[..., : len(SHARPNESS)].amax(2) / (1 - shares.square().sum(1)).cpu()
        return _finite(found), _finite(mean[..., -1])
    if task.kind == "survival":
        found = 2 * evaluate_all(execution, some, models, METRICS["c_index"]) - 1
    else:
        outputs = [all_outputs(execution, some, model) for model in models]
        targets = [some.y[at : at + n] for at, n in zip(some.starts, some.counts, strict=True)]
        each = [_beside_wrong_pairs(task.loss, list(own), y) for *own, y in zip(*outputs, targets, strict=True)]
        found = torch.stack(each, 1)
    return _finite(found), _finite(found)


def _finite(found: Tensor) -> Tensor:
    return torch.where(found.isfinite(), found, 0.0)


def _above_what_is_frequent(shares: Tensor, outputs: Tensor, labels: Tensor) -> Tensor:
    """(n, degrees + 1) the probability that a sample's own class is given, less what it would be with another sample's
    class, of outputs that are made surer by each of SHARPNESS; and whether that class is the likeliest."""
    client, right = labels // shares.shape[1], labels % shares.shape[1]
    sharper = outputs.new_tensor(SHARPNESS)[:, None]
    given = (outputs[:, None] * sharper).softmax(2)
    own = given.gather(2, right[:, None, None].expand(-1, len(SHARPNESS), 1))[:, :, 0]
    above = own - (shares[client].to(given)[:, None] * given).sum(2)
    return torch.cat([above, (outputs.argmax(1) == right).to(above)[:, None]], 1)


def _with_shares(samples: Samples, classes: int) -> tuple[Tensor, Tensor]:
    """(n,) client * classes + class of each sample, and (m, classes) the shares of classes of each client's samples."""
    labels = _owners(samples.starts, samples.counts, len(samples.y)).to(samples.y.device) * classes + samples.y
    shares = [
        torch.bincount(samples.y[at : at + n], minlength=classes)
        for at, n in zip(samples.starts, samples.counts, strict=True)
    ]
    counted = torch.stack(shares).double()
    return labels, counted / counted.sum(1, keepdim=True).clamp(min=1)


def _beside_wrong_pairs(loss: Loss, outputs: Sequence[Tensor], targets: Tensor) -> Tensor:
    """(models,) log(loss(own outputs of other samples, targets) / loss(outputs, targets)), in clients' own units.

    A loss of one's own that can be negative has no ratio: there, the difference of the two, beside the larger.
    """
    if not len(targets):
        return torch.zeros(len(outputs), dtype=torch.float64)
    given = [each.to(targets.device) for each in outputs]
    source = torch.Generator().manual_seed(len(targets))
    deals = [torch.randperm(len(targets), generator=source) for _ in range(DEALS)]
    wrong = torch.stack([loss(given[-1][deal], targets, None) for deal in deals]).mean()
    right = torch.stack([loss(each, targets, None) for each in given])
    if wrong > 0 and (right >= 0).all():
        found = (wrong / torch.maximum(right, LEAST * wrong)).log()
    else:
        found = (wrong - right) / torch.maximum(wrong.abs(), right.abs()).clamp(min=torch.finfo(right.dtype).tiny)
    return found.double().cpu()


def by_lot(samples: Samples) -> Samples:
    """At most MOST samples of each client."""
    if max(samples.counts, default=0) <= MOST:
        return samples
    index, starts, counts = _lot(samples.starts, samples.counts)
    index = index.to(samples.y.device)
    return Samples(samples.x[index], samples.y[index], starts, counts)


def _lot(starts: tuple[int, ...], counts: tuple[int, ...]) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
    """Which samples, and where each client's then are; the same lot for a client, whoever is beside it."""
    chosen = [
        at + (torch.randperm(n, generator=torch.Generator().manual_seed(n))[:MOST] if n > MOST else torch.arange(n))
        for at, n in zip(starts, counts, strict=True)
    ]
    fewer = tuple(len(each) for each in chosen)
    return torch.cat(chosen), tuple(sum(fewer[:i]) for i in range(len(fewer))), fewer


def _owners(starts: tuple[int, ...], counts: tuple[int, ...], total: int) -> Tensor:
    """(total,) whose each sample is."""
    owners = torch.zeros(total, dtype=torch.long)
    for i, (at, n) in enumerate(zip(starts, counts, strict=True)):
        owners[at : at + n] = i
    return owners
