"""How far a run has come: what validation data say of going on, of having stopped, and of which round to take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .records import Line

GAIN = 1e-3
"""Of the best validation loss: what is less is no gain."""
FALLS = 0.01
"""Of the lowest validation loss before: what it has to fall by in the last fifth of the rounds, to be falling still."""
FIFTHS = 5


def losses(lines: Sequence[Line], model: str) -> list[float]:
    """The validation loss of a model in each round, the closing exchange left out; empty where it is not known."""
    found = []
    for line in lines:
        if line.final or line.novel or model not in line.models:
            continue
        held = line.models[model].validation
        if held is None or held.loss is None:
            return []
        found.append(held.loss)
    return found


def exhausted(lines: Sequence[Line], patience: int) -> bool:
    """Whether no model has had a better validation loss for so many rounds. Without validation data nobody knows."""
    models = {name for line in lines for name in line.models}
    each = [found for model in models if (found := losses(lines, model))]
    return bool(each) and all(_since_best(found) >= patience for found in each)


def _since_best(found: Sequence[float]) -> int:
    """Rounds since the last gain."""
    best, at = found[0], 0
    for k, loss in enumerate(found):
        if loss < best - GAIN * abs(best):
            best, at = loss, k
    return len(found) - 1 - at


def still_improving(lines: Sequence[Line], model: str) -> bool | None:
    """Whether the validation loss came lower in the last fifth of the rounds than in any before; None where there are
    too few rounds to tell, or no validation data."""
    found = losses(lines, model)
    width = len(found) // FIFTHS
    if not width:
        return None
    before = min(found[:-width])
    return min(found[-width:]) < before - FALLS * abs(before)


WITHIN = 0.05
"""Of the lowest validation loss: rounds whose loss is no further above cannot be told apart by it."""
OF_ERRORS = 0.01
"""The same where the score is an error (lower is better): what the loss is higher by the error is larger by, and a
twentieth takes overfitted rounds of noisy numbers. Of right answers a twentieth has rather more: surer models have a
higher loss, and may be right as often (`benchmarks/taken_round.py`)."""
CLEARLY = 2.0
"""Standard errors by which an earlier round has to be better than the last one to be taken in its place."""


def within(higher: bool) -> float:
    """The share of the lowest validation loss by which another may be above it; `higher`: whether a higher score is
    better."""
    return WITHIN if higher else OF_ERRORS


def as_good(loss: float, lowest: float, higher: bool) -> bool:
    """Whether a loss is the lowest, to what validation data can tell. It is the latest of such rounds that is taken: of
    few rows the lowest loss is often an early one's, of models that have yet to learn the rest."""
    return loss <= lowest + within(higher) * abs(lowest)


def chosen(lines: Sequence[Line], model: str, higher: bool, patience: int) -> int:
    """The place among these lines of the round that a model is taken from, by validation data alone.

    In a run that ends by validation data, the latest whose loss over all validation samples is as good as the lowest:
    clients are handed the models of that round. Otherwise they are handed those of the last, and it is the last, unless
    over clients the one with the best mean score is clearly better: a few samples a client would choose a lucky round.
    Without validation data it is the last.
    """
    held = [line.models[model].validation for line in lines]
    if patience and all(each is not None and each.loss is not None for each in held):
        found = [each.loss for each in held if each is not None and each.loss is not None]
        return max(k for k, loss in enumerate(found) if as_good(loss, min(found), higher))
    if not held or any(each is None for each in held):
        return len(lines) - 1
    table = np.array([each.clients for each in held if each is not None], dtype=np.float64) * (1 if higher else -1)
    known = table[:, ~np.isnan(table).any(axis=0)]
    if not known.shape[1]:
        return len(lines) - 1
    best = int(known.mean(axis=1).argmax())
    gain = known[best] - known[-1]
    error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else np.inf
    return best if gain.mean() > CLEARLY * error else len(lines) - 1
