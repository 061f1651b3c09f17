"""What every model scored at every client, and which model a client should use."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..assembly import Assembly
from ..cohort import Model, Predictor, all_outputs, evaluate
from ..outputs import CHOSEN, MOST_BYTES, Outputs
from ..runs import Writer
from ..weights import Layout

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

    def add(self, name: str, clients: list[int], model: Model) -> None:
        """Scores the models (rows of these clients) on each client's own data."""
        a = self.assembly
        for book, samples in ((self.test, a.test), (self.validation, a.cohort.validation)):
            vector = book.setdefault(name, torch.full((len(a.problem),), torch.nan, dtype=torch.float64))
            vector[clients] = evaluate(a.execution, samples.take(clients), model, a.problem.task.metric)

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

    def table(self, start: int, stop: int) -> dict[str, Any]:
        """For each model its mean, deviation and vector over clients start to stop, and the same of validation."""
        table = {}
        for name, vector in self.test.items():
            test, held = vector[start:stop], self.validation[name][start:stop]
            seen, present = held[~held.isnan()], test[~test.isnan()]
            table[name] = {
                "mean": float(present.mean()) if len(present) else None,
                "std": float(present.std(correction=0)) if len(present) else None,
                "clients": test.tolist(),
                "validation": {"mean": float(seen.mean()), "clients": held.tolist()} if len(seen) else None,
            }
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

    def hand_out(self, writer: Writer, clients: list[int], models: dict[str, Model]) -> None:
        """Saves for each client the model to use, with what is needed to load it; and of the clients that trained what
        their models answer on the test samples."""
        a = self.assembly
        task = a.problem.task
        handed = [self.best_model(client) for client in clients]
        if clients[-1] < a.problem.known:
            writer.outputs(self._outputs(clients, models, handed))
        for i, (client, chosen) in enumerate(zip(clients, handed, strict=True)):
            model, preprocessing = models[chosen], a.federation.clients[client].preprocessing
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
            writer.model(a.problem.names[client], _named(model, i, a.problem.layout), about)

    def _outputs(self, clients: list[int], models: dict[str, Model], handed: list[str]) -> Outputs:
        """What the models of these clients answer on their test samples: all models, if that does not take much."""
        a, samples = self.assembly, self.assembly.test.take(clients)
        task, counts, headline = a.problem.task, samples.counts, a.method.headline

        def answers(model: Model) -> list[Tensor]:
            return [outputs.float() for outputs in all_outputs(a.execution, samples, model)]

        found = {headline: answers(models[headline])}
        takes = sum(own.nbytes for own in found[headline])
        found |= {name: answers(model) for name, model in models.items() if name in handed and name != headline}
        if len(models) * takes <= MOST_BYTES:
            kept = {name: found.get(name) or answers(model) for name, model in models.items()}
        else:
            kept = {headline: found[headline], CHOSEN: [found[name][i] for i, name in enumerate(handed)]}
        tested = [a.federation.clients[client].test_rows for client in clients]
        rows = [own for own in tested if own is not None]
        y = torch.cat([samples.y[start : start + n] for start, n in zip(samples.starts, counts, strict=True)]).cpu()
        return Outputs(
            clients=tuple(a.problem.names[c] for c in clients),
            counts=counts,
            handed=tuple(handed),
            models={name: torch.cat([own for own in parts if len(own)]) for name, parts in kept.items()},
            targets=y.float() if y.is_floating_point() else y,
            kind=task.kind,
            target_mean=task.units[0],
            target_scale=task.units[1],
            class_names=task.class_names,
            rows=torch.cat(rows).long() if len(rows) == len(clients) else None,
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
