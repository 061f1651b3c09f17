"""What methods of one table spent: gradients of mini-batches, and samples that models were asked about without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..training.optimisers import Local
from .comparison import Members, Run
from .records import Line

APART = 0.05
"""Of the lesser of two numbers of gradients: what is less is no difference."""


@dataclass(frozen=True)
class Spent:
    """A client and round: the mean over those who trained, over rounds and seeds, without the closing exchange."""

    gradients: float
    passes: float
    """Samples that models were asked about while clients trained, without a gradient."""
    budget: float | None = None
    """Gradients of the local training that most methods of the table have, for the same clients and rounds; None where
    runs do not say it."""

    @property
    def factor(self) -> float | None:
        return self.gradients / self.budget if self.budget else None


def spent(members: Members) -> dict[str, Spent]:
    """{method: what it spent}, without those whose runs do not say it, as an older version did not."""
    found: dict[str, Spent] = {}
    local = _most(members)
    merged = _merges(members, local)
    for method, runs in members.items():
        lines = [line for run in runs for line in _rounds(run)]
        clients, gradients = sum(len(line.participants) for line in lines), sum(line.gradients for line in lines)
        if clients and gradients:
            budget = _budget(runs, local, merged)
            per = None if budget is None else budget / clients
            found[method] = Spent(gradients / clients, sum(line.passes for line in lines) / clients, per)
    return found


def unequal(members: Members, found: Mapping[str, Spent]) -> bool:
    """Whether methods that were to spend alike (budget = "equal") did not."""
    if any(run.config.get("budget", "equal") != "equal" for runs in members.values() for run in runs):
        return False
    factors = [each.factor for each in found.values() if each.factor is not None]
    values = factors if len(factors) == len(found) else [each.gradients for each in found.values()]
    return len(values) > 1 and max(values) > (1 + APART) * min(values)


def _rounds(run: Run) -> list[Line]:
    return [line for line in run.rounds if not line.novel and not line.final]


def _most(members: Members) -> Local | None:
    """How long most methods train in a round, of equals the first: the data set's, or what was asked for."""
    each = [local for runs in members.values() for run in runs[:1] if (local := _local(run)) is not None]
    lengths = Counter((local.epochs, local.batch_size, local.steps) for local in each)
    if not lengths:
        return None
    epochs, size, steps = lengths.most_common(1)[0][0]
    return Local(epochs=epochs, batch_size=size, steps=steps)


def _local(run: Run) -> Local | None:
    told = run.config.get("local")
    try:
        return Local.model_validate(dict(told)) if isinstance(told, Mapping) else None
    except ValueError:  # written by another version
        return None


def _merges(members: Members, local: Local | None) -> bool:
    """Whether last batches of one sample join those before, as where a model has BatchNorm, which runs do not say: by
    what methods spent."""
    if local is None:
        return False

    def nearest(merged: bool) -> float:
        gaps = []
        for runs in members.values():
            budget, gradients = _budget(runs, local, merged), sum(line.gradients for r in runs for line in _rounds(r))
            gaps.append(abs(gradients / budget - 1) if budget else 1.0)
        return min(gaps)

    return nearest(True) < nearest(False)


def _budget(runs: Sequence[Run], local: Local | None, merged: bool) -> int | None:
    """Gradients of the local training of all who trained, in all rounds of these runs."""
    total = 0
    for run in runs:
        if local is None or run.summary.samples is None:
            return None
        each = dict(zip(run.summary.clients, run.summary.samples, strict=True))
        for name in (name for line in _rounds(run) for name in line.participants):
            if name not in each:
                return None
            total += local.steps or local.epochs * _batches(each[name], local.batch_size, merged)
    return total


def _batches(samples: int, size: int, merged: bool) -> int:
    full, left = divmod(samples, size)
    return full + (left > 0) - (merged and left == 1 and full > 0)
