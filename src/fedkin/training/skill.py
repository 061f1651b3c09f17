"""How much models know of a client's own samples: one number for each model, whatever the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..base.task import Loss, Metric, Task
from .cohort import Samples
from .evaluation import all_outputs, evaluate_all
from .execution import Execution

MOST = 512
"""Samples of a client that are looked at, drawn by lot; a loss of one's own may look at every two of them."""
DEALS = 8
"""Wrong pairings of outputs and targets of which the mean is taken."""


def skills(execution: Execution, samples: Samples, models: Sequence[Tensor], task: Task) -> Tensor:
    """(models, m) how much each client's models know of its own samples: 1 everything, 0 nothing, below that worse.

    The last model is the client's own. For classes it is the probability of the right one, above that of the same
    outputs dealt to the wrong samples: who always says what is frequent knows nothing. For any other task it is the
    loss, beside that of the client's own outputs dealt to the wrong samples: who has another unit or another origin
    knows less. Not finite counts as nothing.
    """
    some = _by_lot(samples)
    if task.kind == "classification":
        labels, shares = _with_shares(some, task.outputs)
        above = Metric("above", partial(_above_what_is_frequent, shares), True, True)
        found = evaluate_all(execution, replace(some, y=labels), models, above) / (1 - shares.square().sum(1)).cpu()
    else:
        outputs = [all_outputs(execution, some, model) for model in models]
        targets = [some.y[at : at + n] for at, n in zip(some.starts, some.counts, strict=True)]
        each = [_beside_wrong_pairs(task.loss, list(own), y) for *own, y in zip(*outputs, targets, strict=True)]
        found = torch.stack(each, 1)
    return torch.where(found.isfinite(), found, 0.0)


def _above_what_is_frequent(shares: Tensor, outputs: Tensor, labels: Tensor) -> Tensor:
    """(n,) the probability that a sample's own class is given, less what it would be with another sample's class."""
    client, right = labels // shares.shape[1], labels % shares.shape[1]
    given = outputs.softmax(1)
    return given.gather(1, right[:, None])[:, 0] - (shares[client].to(given) * given).sum(1)


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
    """(models,) 1 - loss(outputs, targets) / loss(own outputs of other samples, targets), where clients train."""
    if not len(targets):
        return torch.zeros(len(outputs), dtype=torch.float64)
    given = [each.to(targets.device) for each in outputs]
    source = torch.Generator().manual_seed(len(targets))
    deals = [torch.randperm(len(targets), generator=source) for _ in range(DEALS)]
    wrong = torch.stack([loss(given[-1][deal], targets, None) for deal in deals]).mean()
    right = torch.stack([loss(each, targets, None) for each in given])
    found = (wrong - right) / torch.maximum(wrong.abs(), right.abs()).clamp(min=torch.finfo(right.dtype).tiny)
    return found.double().cpu()


def _by_lot(samples: Samples) -> Samples:
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
