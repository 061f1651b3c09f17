"""What every model scored at every client: measured at a site, kept at the server."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..evidence import progress
from ..evidence.records import Line, ModelScores, Validation
from ..methods._problem import Problem
from ..training.evaluation import Model, evaluate_all
from .assembly import Assembly

BOOKS = ("test", "validation", "losses")
"""Scores on test data, on validation data, and the loss on these."""
Found = dict[str, dict[str, Tensor]]
"""By book and model, (k,) of the clients that were scored."""


def scored(a: Assembly, clients: list[int], models: Mapping[str, Model]) -> Found:
    """Models (rows of these clients) on each client's own data."""
    rows = list(models.values())
    metric, loss = a.problem.task.metric, a.problem.task.loss.as_metric(a.device)
    test, held = a.test.take(clients), a.cohort.validation.take(clients)
    tested = evaluate_all(a.execution, test, rows, metric)
    if metric.per_sample and loss.per_sample:  # both in one pass
        both = evaluate_all(a.execution, held, rows, metric.beside(loss))
        both = both.view(*both.shape[:2], -1)  # without samples there is but one value, which is NaN
        found = tested, both[..., 0], both[..., -1]
    else:
        found = tested, evaluate_all(a.execution, held, rows, metric), evaluate_all(a.execution, held, rows, loss)
    return {book: dict(zip(models, each, strict=True)) for book, each in zip(BOOKS, found, strict=True)}


def joined(parts: Sequence[Found]) -> Found:
    """Those of some clients, and behind them those of others."""
    if not parts:
        return {}
    return {b: {name: torch.cat([part[b][name] for part in parts]) for name in each} for b, each in parts[0].items()}


@dataclass
class Scores:
    """Each model's latest score of each client, by book: (clients,) by name of the model.

    A client that is not scored in a round keeps the score it had.
    """

    problem: Problem
    counts: Tensor
    """(m,) validation samples of each client."""
    books: Found = field(default_factory=lambda: {book: {} for book in BOOKS})

    @property
    def test(self) -> dict[str, Tensor]:
        return self.books["test"]

    @property
    def direction(self) -> int:
        return 1 if self.problem.task.metric.higher_is_better else -1

    def add(self, clients: list[int], found: Found) -> None:
        for book, models in found.items():
            for name, own in models.items():
                if name not in self.books[book]:
                    self.books[book][name] = torch.full((len(self.problem),), torch.nan, dtype=own.dtype)
                self.books[book][name][clients] = own

    def fill(self, count: int, initial: Found) -> None:
        """Of the first `count` clients, one that was never scored has the initial model's score (m,)."""
        for book, models in self.books.items():
            start = next(iter(initial[book].values())) if initial else None
            for vector in models.values():
                missing = vector[:count].isnan().nonzero().squeeze(1)
                if start is not None and len(missing):
                    vector[missing] = start[missing].to(vector.dtype)

    def table(self, start: int, stop: int) -> dict[str, ModelScores]:
        """For each model its mean, deviation and vector over clients start to stop, and the same of validation."""
        table = {}
        for name, vector in self.test.items():
            test, held = vector[start:stop], self.books["validation"][name][start:stop]
            seen, present = held[~held.isnan()], test[~test.isnan()]
            own = None
            if len(seen):
                losses = self.books["losses"]
                loss = self._pooled(losses[name], start, stop) if name in losses else None
                own = Validation(mean=float(seen.mean()), clients=tuple(held.tolist()), loss=loss)
            table[name] = ModelScores(
                mean=float(present.mean()) if len(present) else None,
                std=float(present.std(correction=0)) if len(present) else None,
                clients=tuple(test.tolist()),
                validation=own,
            )
        return table

    def _pooled(self, losses: Tensor, start: int, stop: int) -> float | None:
        """The mean over all validation samples of these clients; None where it is not finite."""
        counts = self.counts[start:stop].to(losses.dtype)
        known = counts > 0
        mean = (losses[start:stop] * counts)[known].sum() / counts[known].sum()
        return float(mean) if mean.isfinite() else None

    def look_back(self, lines: Sequence[Line], headline: str, patience: int, telling: Tensor) -> dict[str, float]:
        """By how much each model is ahead of the headline over all clients, where that is clear, in the rounds so far:
        in the last, or in the one that validation data choose where the run ends by them.

        telling: (m,) validation samples of each client that say something.
        """
        higher, seen = self.problem.task.metric.higher_is_better, dict[str, Tensor]()
        counts = telling[: self.problem.known].double()
        for name in lines[-1].models if lines else ():
            at = progress.chosen(lines, name, higher, patience) if patience else -1
            held = lines[at].models[name].validation
            if held is not None:
                seen[name] = torch.from_numpy(np.array(held.clients, dtype=np.float64)) * self.direction
        if headline not in seen:
            return {}
        gains = {name: scores - seen[headline] for name, scores in seen.items()}
        return {name: _clear_mean(gain, counts * ~gain.isnan()) for name, gain in gains.items()}


def _clear_mean(values: Tensor, weights: Tensor) -> float:
    """The weighted mean of (n,) values where it is clearly not 0, by `progress.CLEARLY` standard errors; else 0."""
    values, weights = values[weights > 0], weights[weights > 0]
    if len(values) < 2:
        return 0.0
    share = weights / weights.sum()
    mean = float((share * values).sum())
    error = float((share * (values - mean)).square().sum().sqrt()) * math.sqrt(len(values) / (len(values) - 1))
    return mean if abs(mean) > progress.CLEARLY * error else 0.0
