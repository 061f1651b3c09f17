"""What every model scored at every client, and which model a client should use."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..base.weights import Layout
from ..evidence.outputs import CHOSEN, MOST_BYTES, Outputs
from ..evidence.records import ModelScores, Validation
from ..runs.folder import Writer
from ..training.evaluation import Model, Predictor, all_outputs, evaluate, evaluate_all
from .assembly import Assembly

ENOUGH = 5
"""Validation samples from which on they decide which model a client gets."""


@dataclass
class Scores:
    """Each model's latest score of each client, on test and on validation data: (clients,) by name of the model.

    A client that is not scored in a round keeps the score it had.
    """

    assembly: Assembly
    test: dict[str, Tensor] = field(default_factory=dict)
    validation: dict[str, Tensor] = field(default_factory=dict)

    @property
    def direction(self) -> int:
        return 1 if self.assembly.problem.task.metric.higher_is_better else -1

    def add(self, clients: list[int], models: dict[str, Model]) -> None:
        """Scores the models (rows of these clients) on each client's own data."""
        a = self.assembly
        for book, samples in ((self.test, a.test), (self.validation, a.cohort.validation)):
            found = evaluate_all(a.execution, samples.take(clients), list(models.values()), a.problem.task.metric)
            for name, scores in zip(models, found, strict=True):
                vector = book.setdefault(name, torch.full((len(a.problem),), torch.nan, dtype=torch.float64))
                vector[clients] = scores

    def fill(self, count: int) -> None:
        """Of the first `count` clients, one that was never scored has the initial model's score."""
        a = self.assembly
        for book, samples in ((self.test, a.test), (self.validation, a.cohort.validation)):
            has_samples = torch.tensor(samples.counts[:count]) > 0
            for vector in book.values():
                missing = (vector[:count].isnan() & has_samples).nonzero().squeeze(1).tolist()
                if missing:
                    rows = a.problem.initial.expand(len(missing), -1)
                    vector[missing] = evaluate(a.execution, samples.take(missing), rows, a.problem.task.metric)

    def table(self, start: int, stop: int) -> dict[str, ModelScores]:
        """For each model its mean, deviation and vector over clients start to stop, and the same of validation."""
        table = {}
        for name, vector in self.test.items():
            test, held = vector[start:stop], self.validation[name][start:stop]
            seen, present = held[~held.isnan()], test[~test.isnan()]
            own = Validation(mean=float(seen.mean()), clients=tuple(held.tolist())) if len(seen) else None
            table[name] = ModelScores(
                mean=float(present.mean()) if len(present) else None,
                std=float(present.std(correction=0)) if len(present) else None,
                clients=tuple(test.tolist()),
                validation=own,
            )
        return table

    def best_model(self, client: int) -> str:
        """The model that is best on the client's validation data; a tie, or fewer than five samples: the headline."""
        headline = self.assembly.method.headline
        if self.assembly.cohort.validation.counts[client] < ENOUGH:
            return headline
        score = {n: float(vector[client]) * self.direction for n, vector in self.validation.items()}
        known = {n: s for n, s in score.items() if not math.isnan(s)}
        top = max(known, key=lambda n: known[n], default=headline)
        return top if headline in known and known[top] > known[headline] else headline


@dataclass
class HandOut:
    """Saves for each client the model to use, with what is needed to load it; a few clients at a time, and in the end
    what the models of clients that trained answer on the test samples."""

    scores: Scores
    writer: Writer
    clients: list[int] = field(default_factory=list)
    handed: list[str] = field(default_factory=list)
    answers: dict[str, list[Tensor]] = field(default_factory=dict)
    """By model, a tensor (n_i, ...) a client."""
    seconds: float = 0.0
    """That this has taken, which are no part of a round."""

    def add(self, clients: list[int], models: dict[str, Model]) -> None:
        """The models (rows of these clients), once they are scored."""
        a, started = self.scores.assembly, time.perf_counter()
        handed = [self.scores.best_model(client) for client in clients]
        found = self._asked(clients, models, handed) if clients[-1] < a.problem.known else {}
        for i, (client, chosen) in enumerate(zip(clients, handed, strict=True)):
            self.writer.model(a.problem.names[client], *self._saved(client, i, chosen, models[chosen]))
        # Only now, as memory may run out before: then these clients come again.
        self.clients += clients
        self.handed += handed
        for name, parts in found.items():
            self.answers.setdefault(name, []).extend(parts)
        self.seconds += time.perf_counter() - started

    def end(self) -> None:
        if self.answers:
            self.writer.outputs(self._outputs())

    def _saved(self, client: int, i: int, chosen: str, model: Model) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A client's model, the i-th of these rows, as named tensors, and what is needed to load it."""
        a = self.scores.assembly
        task, preprocessing = a.problem.task, a.federation.clients[client].preprocessing
        about = {
            "version": 1,
            "client": a.problem.names[client],
            "method": a.config.method,
            "chosen": chosen,
            "predictor": model.function if isinstance(model, Predictor) else None,
            "model": a.config.model.model_dump(mode="json"),
            "task": {"kind": task.kind, "inputs": list(task.inputs), "outputs": task.outputs},
            "classes": list(task.class_names),
            "target": {"mean": task.target_mean, "scale": task.target_scale},
            "preprocessing": None if preprocessing is None else preprocessing.to_json(),
        }
        return _named(model, i, a.problem.layout), about

    def _asked(self, clients: list[int], models: dict[str, Model], handed: list[str]) -> dict[str, list[Tensor]]:
        """What these models answer on the test samples: all models, if that does not take much."""
        a = self.scores.assembly
        samples, headline = a.test.take(clients), a.method.headline

        def answers(name: str) -> list[Tensor]:
            return [outputs.float() for outputs in all_outputs(a.execution, samples, models[name])]

        asked, everyone = sum(samples.counts), sum(a.test.counts[: a.problem.known])
        if not asked:
            return {}
        found = {headline: answers(headline)}
        takes = sum(own.nbytes for own in found[headline]) / asked * everyone
        if len(models) * takes <= MOST_BYTES:
            found = {name: found[name] if name in found else answers(name) for name in models}
        else:
            found |= {name: answers(name) for name in dict.fromkeys(handed) if name != headline}
            found = {headline: found[headline], CHOSEN: [found[name][i] for i, name in enumerate(handed)]}
        return found

    def _outputs(self) -> Outputs:
        a = self.scores.assembly
        task, samples = a.problem.task, a.test.take(self.clients)
        tested = [a.federation.clients[client].test_rows for client in self.clients]
        rows = [own for own in tested if own is not None]
        parts = zip(samples.starts, samples.counts, strict=True)
        y = torch.cat([samples.y[start : start + n] for start, n in parts]).cpu()
        return Outputs(
            clients=tuple(a.problem.names[c] for c in self.clients),
            counts=samples.counts,
            handed=tuple(self.handed),
            models={name: torch.cat([own for own in parts if len(own)]) for name, parts in self.answers.items()},
            targets=y.float() if y.is_floating_point() else y,
            kind=task.kind,
            target_mean=task.units[0],
            target_scale=task.units[1],
            class_names=task.class_names,
            rows=torch.cat(rows).long() if len(rows) == len(self.clients) else None,
        )


def _named(model: Model, i: int, layout: Layout) -> dict[str, Tensor]:
    """One client's model as named tensors; those of a Predictor stand behind the name of their row."""
    if not isinstance(model, Predictor):
        return layout.tensors(model[i])
    tensors: dict[str, Tensor] = {}
    for name, rows in model.rows.items():
        is_model = rows.ndim == 2 and rows.shape[1] == layout.size
        tensors |= {f"{name}.{n}": t for n, t in layout.tensors(rows[i]).items()} if is_model else {name: rows[i]}
    return tensors
