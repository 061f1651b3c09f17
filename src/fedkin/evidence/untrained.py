"""What needs no training: to say, at every silo, what its own training data say most often, or have on average.

A row beside every comparison: a method that does not beat it has learnt nothing, whatever its accuracy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..base.task import Task
from .comparison import Run
from .records import Untrained
from .references import Reference

Pair = tuple[Tensor, Tensor]
NAMES = {"classification": "majority", "regression": "mean"}
NAN = float("nan")


def untrained(task: Task, clients: Iterable[tuple[Pair, Pair]]) -> Untrained | None:
    """Scores in the task's metric, of each client's (training, test) samples; None where nothing can be said so.

    Classes are answered by their shares in the training data, each counted once more, so that none is impossible: the
    most frequent one is the answer, and ranks say nothing (an AUC of 0.5).
    """
    if task.kind not in NAMES:
        return None
    scores = tuple(_score(task, train[1], test[1]) for train, test in clients)
    known = any(score == score for score in scores)
    return Untrained(name=NAMES[task.kind], clients=scores) if known else None


def _score(task: Task, train: Tensor, test: Tensor) -> float:
    if not len(train) or not len(test):
        return NAN
    if task.kind == "classification":
        shares = torch.bincount(train.cpu().long(), minlength=task.outputs).double() + 1
        answer = (shares / shares.sum()).log()
    else:
        answer = train.cpu().double().reshape(len(train), -1).nanmean(0)
        if len(answer) != task.outputs:
            return NAN
    targets = test.cpu()
    try:
        value = task.metric(
            answer.expand(len(targets), -1), targets if task.kind == "classification" else targets.double()
        )
        return float(torch.as_tensor(value, dtype=torch.float64).mean())
    except Exception:  # of somebody's own metric, which may not be made for answers that are all the same
        return NAN


def beside(runs: Sequence[Run]) -> list[Reference]:
    """A row a seed, as the runs have it; of runs that do not, none."""
    found: dict[int, Reference] = {}
    for run in runs:
        own, summary = run.summary.untrained, run.summary
        if own is not None and summary.seed not in found:
            scores = tuple(NAN if score is None else score for score in own.clients)
            found[summary.seed] = Reference(
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
}
