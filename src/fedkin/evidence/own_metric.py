"""A metric of one's own, a function that a report cannot import: what a run keeps of it, so that gains have intervals.

At the closing exchange, where the run has the function, it is asked about every client's test samples, and about
samples drawn from these with replacement. What is drawn depends on the client's test samples alone, so that the draws
of two methods on the same samples are pairs, and a gain's interval is that of their differences.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..base.task import Metric
from ..maths import statistics
from .estimates import NAN, Array, Estimate, Gain, gain_over_seeds, over_seeds

DRAWS = 400
FEWEST = 100
"""Draws that are made however long they take, and without which there is no interval."""
SECONDS = 30.0
"""After which no more than these are made."""
Part = tuple[Mapping[str, Tensor], Tensor]
"""A client's answers by model, each (n, ...), and its targets (n, ...)."""


@dataclass(frozen=True, repr=False)
class OwnMetric:
    """A metric by its name, its direction, and what it said: {model: (clients, 1 + draws)}, of all samples first."""

    name: str
    higher_is_better: bool
    values: Mapping[str, Tensor]

    def of(self, client: int) -> OwnMetric:
        return replace(self, values={name: each[client : client + 1] for name, each in self.values.items()})


def asked(metric: Metric, clients: Sequence[Part], subjects: Sequence[Tensor] | None = None) -> OwnMetric:
    """The metric of every client's samples, and of samples drawn from them; NaN where it is not defined. subjects: of
    each client (n,) whose sample it is: then subjects are drawn, with all of their samples."""
    rows = [[[_value(metric, own, targets) for own in models.values()] for models, targets in clients]]
    whose = subjects if subjects is not None else [torch.arange(len(targets)) for _, targets in clients]
    drawn = [_drawing(targets, own) for (_, targets), own in zip(clients, whose, strict=True)]
    started = time.monotonic()
    while len(rows) <= DRAWS and (len(rows) <= FEWEST or time.monotonic() - started < SECONDS):
        rows.append(
            [
                [_value(metric, own[index], targets[index]) for own in models.values()]
                for (models, targets), index in ((part, draw()) for part, draw in zip(clients, drawn, strict=True))
            ]
        )
    table = torch.tensor(rows, dtype=torch.float64)  # (1 + draws, clients, models)
    names = list(clients[0][0]) if clients else []
    return OwnMetric(metric.name, metric.higher_is_better, {n: table[:, :, i].T for i, n in enumerate(names)})


def _value(metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    if not len(targets):
        return NAN
    try:
        return float(torch.as_tensor(metric(outputs, targets), dtype=torch.float64).mean())
    except Exception:  # of somebody's own function on samples that it was not made for: all of one class, no event
        return NAN


def _drawing(targets: Tensor, subjects: Tensor) -> Callable[[], Tensor]:
    """Draws subjects with replacement, by a generator that the targets (n, ...) alone decide: the places of their
    samples. subjects: (n,) whose sample it is."""
    found = hashlib.sha256(targets.contiguous().numpy().tobytes()).digest()
    sizes = np.unique(subjects.numpy(), return_counts=True)[1].tolist()
    rng, n = np.random.default_rng(list(found)), len(sizes)
    if n == len(subjects):
        return lambda: torch.from_numpy(rng.integers(max(n, 1), size=n))
    samples = torch.split(subjects.argsort(stable=True), sizes)
    return lambda: torch.cat([samples[i] for i in rng.integers(n, size=n).tolist()])


def estimate(seeds: Sequence[tuple[OwnMetric, int]], model: str) -> Estimate:
    """A model's score at a client; seeds: what each kept of this client, and of how many test samples, or subjects."""
    each = []
    for own, samples in seeds:
        value, *draws = own.values[model][0].tolist()
        each.append(Estimate(value, *_interval(np.array(draws), samples)(0.95)))
    return over_seeds(each)


def gain(before: Sequence[tuple[OwnMetric, int]], after: Sequence[tuple[OwnMetric, int]], model: str) -> Estimate:
    """How much better `after` is than `before` at a client, seed by seed on the same samples; positive is better."""
    each: list[Estimate] = []
    for (first, _), (second, samples) in zip(before, after, strict=True):
        sign = 1 if second.higher_is_better else -1
        a, b = first.values[model][0].numpy(), second.values[model][0].numpy()
        value, *draws = (sign * (b[: len(a)] - a[: len(b)])).tolist()
        each.append(Estimate(NAN) if np.isnan(value) else Gain.of(value, _interval(np.array(draws), samples)))
    return gain_over_seeds(each)


def _interval(draws: Array, samples: int) -> statistics.Interval:
    """Percentiles of draws, moved outwards as few samples need it; unknown where draws are few, or do not spread."""
    known = draws[np.isfinite(draws)]
    if len(known) < max(FEWEST, len(draws) / 2) or samples < 2 or not known.var() > 0:
        return lambda level: (NAN, NAN)
    drawn = float(known.var())
    squared, freedom = np.array([drawn * samples / (samples - 1)]), np.array([samples - 1.0])
    return lambda level: statistics.widened(known, squared, freedom, drawn, level)
