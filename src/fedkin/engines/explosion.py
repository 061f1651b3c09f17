"""Training that explodes: numbers that are still finite, and mean nothing any more."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..training.evaluation import Model, evaluate_all
from ..training.skill import by_lot
from .assembly import Assembly

BEYOND = 100.0
"""Times the loss that the initial model has: who is further off than that has not learned, but exploded."""
AT_ONCE = 1 << 22
"""Weights of clients that are looked at together: all of them may be more than fits into memory."""


def bounds(found: Tensor) -> Tensor:
    """(m,) the loss of each client beyond which its training has exploded, by what the initial model's (m,) is there,
    and not less than at half of the clients: one may happen to be right from the start. A loss that is not positive, as
    one of a user's own may be, says nothing: then there is none."""
    known = found[found.isfinite()]
    if not len(known) or (known <= 0).any():
        return torch.full_like(found, torch.inf)
    return BEYOND * torch.maximum(torch.where(found.isfinite(), found, 0.0), known.median())


def at_first(a: Assembly, clients: Sequence[int]) -> Tensor:
    """(k,) the initial model's losses."""
    everyone, at_once = list(clients), max(1, AT_ONCE // a.problem.layout.size)
    some = [everyone[at : at + at_once] for at in range(0, len(everyone), at_once)]
    return torch.cat([losses(a, own, [a.problem.initial.expand(len(own), -1)])[0] for own in some])


def losses(a: Assembly, clients: list[int], models: Sequence[Model]) -> Tensor:
    """(models, clients) the losses on some of each client's training samples."""
    some = by_lot(a.cohort.train.take(clients))
    return evaluate_all(a.execution, some, models, a.problem.task.loss.as_metric(a.device))
