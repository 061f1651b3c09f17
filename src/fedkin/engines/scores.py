"""What every model scored at every client, and which model a client should use."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..base.weights import Layout
from ..evidence import progress, untrained
from ..evidence.outputs import CHOSEN, GLOBAL, MOST_BYTES, Outputs, joined
from ..evidence.own_metric import OwnMetric, asked
from ..evidence.records import Line, ModelScores, Validation
from ..evidence.untrained import Answers, Own
from ..runs.folder import Writer
from ..training.cohort import Samples
from ..training.evaluation import Model, Predictor, all_outputs, evaluate_all
from . import explosion
from .assembly import Assembly

ENOUGH = 5
"""Validation samples of a client from which on they have a say in which model it gets; of survival, with the event."""
GUESS = 10
"""Validation samples of a client that weigh as much as what all clients together have seen of a model."""


@dataclass
class Scores:
    """Each model's latest score of each client, on test and on validation data: (clients,) by name of the model.

    A client that is not scored in a round keeps the score it had.
    """

    assembly: Assembly
    test: dict[str, Tensor] = field(default_factory=dict)
    validation: dict[str, Tensor] = field(default_factory=dict)
    losses: dict[str, Tensor] = field(default_factory=dict)
    """On validation data."""
    ahead: dict[str, float] = field(default_factory=dict)
    """`look_back`, before the closing exchange: what the server knows when it sends the last models."""

    @property
    def direction(self) -> int:
        return 1 if self.assembly.problem.task.metric.higher_is_better else -1

    def add(self, clients: list[int], models: dict[str, Model]) -> None:
        """Scores the models (rows of these clients) on each client's own data."""
        for (book, _), found in zip(self._books(), self._scored(clients, list(models.values())), strict=True):
            for name, scores in zip(models, found, strict=True):
                vector = book.setdefault(name, torch.full((len(self.assembly.problem),), torch.nan, dtype=scores.dtype))
                vector[clients] = scores

    def fill(self, count: int) -> None:
        """Of the first `count` clients, one that was never scored has the initial model's score."""
        a = self.assembly
        for i, (book, samples) in enumerate(self._books()):
            has_samples = torch.tensor(samples.counts[:count]) > 0
            for vector in book.values():
                missing = (vector[:count].isnan() & has_samples).nonzero().squeeze(1).tolist()
                if missing:
                    vector[missing] = self._scored(missing, [a.problem.initial.expand(len(missing), -1)])[i][0]

    def _books(self) -> tuple[tuple[dict[str, Tensor], Samples], ...]:
        held = self.assembly.cohort.validation
        return (self.test, self.assembly.test), (self.validation, held), (self.losses, held)

    def _scored(self, clients: list[int], models: list[Model]) -> tuple[Tensor, Tensor, Tensor]:
        """(models, clients) on test data, on validation data, and the loss on these."""
        a = self.assembly
        metric, loss = a.problem.task.metric, a.problem.task.loss.as_metric(a.device)
        test, held = a.test.take(clients), a.cohort.validation.take(clients)
        tested = evaluate_all(a.execution, test, models, metric)
        if metric.per_sample and loss.per_sample:  # both in one pass
            both = evaluate_all(a.execution, held, models, metric.beside(loss))
            both = both.view(*both.shape[:2], -1)  # without samples there is but one value, which is NaN
            return tested, both[..., 0], both[..., -1]
        return tested, evaluate_all(a.execution, held, models, metric), evaluate_all(a.execution, held, models, loss)

    def table(self, start: int, stop: int) -> dict[str, ModelScores]:
        """For each model its mean, deviation and vector over clients start to stop, and the same of validation."""
        table = {}
        for name, vector in self.test.items():
            test, held = vector[start:stop], self.validation[name][start:stop]
            seen, present = held[~held.isnan()], test[~test.isnan()]
            own = None
            if len(seen):
                loss = self._pooled(self.losses[name], start, stop) if name in self.losses else None
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
        counts = torch.tensor(self.assembly.cohort.validation.counts[start:stop], dtype=losses.dtype)
        known = counts > 0
        mean = (losses[start:stop] * counts)[known].sum() / counts[known].sum()
        return float(mean) if mean.isfinite() else None

    def look_back(self, lines: Sequence[Line]) -> dict[str, float]:
        """By how much each model is ahead of the headline over all clients, where that is clear, in the rounds so far:
        in the last, or in the one that validation data choose where the run ends by them."""
        a, headline = self.assembly, self.assembly.method.headline
        higher, patience = a.problem.task.metric.higher_is_better, a.config.patience
        told = [a.problem.task.telling(a.cohort.validation.targets(i)) for i in range(a.problem.known)]
        counts, seen = torch.tensor(told, dtype=torch.float64), dict[str, Tensor]()
        for name in lines[-1].models if lines else ():
            at = progress.chosen(lines, name, higher, patience) if patience else -1
            held = lines[at].models[name].validation
            if held is not None:
                seen[name] = torch.from_numpy(np.array(held.clients, dtype=np.float64)) * self.direction
        if headline not in seen:
            return {}
        gains = {name: scores - seen[headline] for name, scores in seen.items()}
        return {name: _clear_mean(gain, counts * ~gain.isnan()) for name, gain in gains.items()}

    def best_model(self, client: int, exploded: Sequence[str] = ()) -> str:
        """The model that is best on validation data, of those that did not explode at the client; of equals the
        headline.

        On the client's own, and on everybody's where these clearly tell (`ahead`): what all clients have seen of a
        model then counts as much as so many samples of its own (`GUESS`). A few samples do not tell which of two models
        is better for one client, but all of them together tell which one is better for most.
        """
        sound = [name for name in self.validation if name not in exploded]
        headline = self.assembly.method.headline if self.assembly.method.headline in sound else sound[0]
        gains = {name: self._gain(name, headline, client) for name in sound if name != headline}
        top = max(gains, key=lambda name: gains[name], default=headline)
        return top if gains.get(top, 0.0) > 0 else headline

    def _gain(self, name: str, headline: str, client: int) -> float:
        """By how much a model is expected to be better than the headline at a client."""
        everyone = self.ahead.get(name, 0.0) - self.ahead.get(headline, 0.0)
        own = float(self.validation[name][client] - self.validation[headline][client]) * self.direction
        n = self.assembly.problem.task.telling(self.assembly.cohort.validation.targets(client))
        return everyone if n < ENOUGH or math.isnan(own) else (n * own + GUESS * everyone) / (n + GUESS)


def _clear_mean(values: Tensor, weights: Tensor) -> float:
    """The weighted mean of (n,) values where it is clearly not 0, by `progress.CLEARLY` standard errors; else 0."""
    values, weights = values[weights > 0], weights[weights > 0]
    if len(values) < 2:
        return 0.0
    share = weights / weights.sum()
    mean = float((share * values).sum())
    error = float((share * (values - mean)).square().sum().sqrt()) * math.sqrt(len(values) / (len(values) - 1))
    return mean if abs(mean) > progress.CLEARLY * error else 0.0


@dataclass
class HandOut:
    """Saves for each client the model to use, with what is needed to load it; a few clients at a time, and in the end
    what the models of clients that trained answer on the test samples."""

    scores: Scores
    writer: Writer
    bounds: Tensor | None = None
    """(m,) losses beyond which a model has exploded, and is handed to nobody."""
    clients: list[int] = field(default_factory=list)
    handed: list[str] = field(default_factory=list)
    answers: dict[str, list[Tensor]] = field(default_factory=dict)
    """By model, a tensor (n_i, ...) a client."""
    seconds: float = 0.0
    """That this has taken, which are no part of a round."""
    beside: Answers = field(default_factory=dict)
    """What needs no federation answers on the test samples, once it is asked at the end."""
    withheld: list[int] = field(default_factory=list)
    """Clients all of whose models have exploded: they are handed none."""

    def add(self, clients: list[int], models: dict[str, Model]) -> None:
        """The models (rows of these clients), once they are scored."""
        a, started = self.scores.assembly, time.perf_counter()
        exploded = self._exploded(clients, models)
        lost = [c for c, own in zip(clients, exploded, strict=True) if len(own) == len(models)]
        handed = [
            self.scores.best_model(client, () if client in lost else own)
            for client, own in zip(clients, exploded, strict=True)
        ]
        found = self._asked(clients, models, handed) if clients[-1] < a.problem.known else {}
        for i, (client, chosen) in enumerate(zip(clients, handed, strict=True)):
            if client not in lost:
                self.writer.model(a.problem.names[client], *self._saved(client, i, chosen, models[chosen]))
        # Only now, as memory may run out before: then these clients come again.
        self.clients += clients
        self.handed += handed
        self.withheld += lost
        for name, parts in found.items():
            self.answers.setdefault(name, []).extend(parts)
        self.seconds += time.perf_counter() - started

    def _exploded(self, clients: list[int], models: dict[str, Model]) -> list[list[str]]:
        """For each client the models whose loss on its training samples is beyond all bounds."""
        a = self.scores.assembly
        found = explosion.losses(a, clients, list(models.values()))
        bounds = self.bounds[clients] if self.bounds is not None else torch.full((len(clients),), torch.inf)
        return [[name for name, bad in zip(models, own, strict=True) if bad] for own in (found > bounds).T.tolist()]

    def end(self) -> None:
        a = self.scores.assembly
        self.beside = untrained.answers(a.problem.task, own_samples(a))
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
            "target": {"mean": self._zero(client, i, model), "scale": task.target_scale},
            "preprocessing": None if preprocessing is None else preprocessing.to_json(),
        }
        return _named(model, i, a.problem.layout), about

    def _zero(self, client: int, i: int, model: Model) -> float:
        """What is added to outputs: of survival less the median of the client's training patients, as a log risk means
        something only beside another."""
        a = self.scores.assembly
        if a.problem.task.kind != "survival":
            return a.problem.task.target_mean
        own = model.take(torch.tensor([i])) if isinstance(model, Predictor) else model[i : i + 1]
        (risks,) = all_outputs(a.execution, a.cohort.train.take([client]), own)
        middle = -float(risks.double().median())
        return middle if math.isfinite(middle) else 0.0

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
        whose = [a.federation.clients[client].test_subjects for client in self.clients]
        subjects = [own for own in whose if own is not None]
        parts = zip(samples.starts, samples.counts, strict=True)
        y = torch.cat([samples.y[start : start + n] for start, n in parts]).cpu()
        outputs = Outputs(
            clients=tuple(a.problem.names[c] for c in self.clients),
            counts=samples.counts,
            handed=tuple(self.handed),
            models={name: torch.cat([own for own in parts if len(own)]) for name, parts in self.answers.items()},
            targets=y.float() if y.is_floating_point() else y,
            kind=task.kind,
            target_mean=task.units[0],
            target_scale=task.units[1],
            class_names=task.class_names,
            beside=self._beside(),
            rows=torch.cat(rows).long() if len(rows) == len(self.clients) else None,
            subjects=torch.cat(subjects).long() if len(subjects) == len(self.clients) else None,
        )
        return outputs if task.metric.kind is not None else replace(outputs, own=self._own(outputs))

    def _beside(self) -> dict[str, Tensor]:
        """What needs no federation answered, as the models' answers are kept; nothing where that takes much."""
        found = {name: torch.cat([each[c] for c in self.clients]).float() for name, each in self.beside.items()}
        return found if sum(each.nbytes for each in found.values()) <= MOST_BYTES else {}

    def _own(self, outputs: Outputs) -> OwnMetric:
        """What a metric of the user's own says of the models handed out, and of the one for all where there is one."""
        models = dict(outputs.models)
        if CHOSEN not in models:
            models[CHOSEN] = joined(models, outputs.counts, outputs.handed)
        names, counts = [name for name in (CHOSEN, GLOBAL) if name in models], list(outputs.counts)
        kept = [torch.split(models[name], counts) for name in names]
        parts = zip(torch.split(outputs.targets, counts), *kept, strict=True)
        metric = self.scores.assembly.problem.task.metric
        subjects = None if outputs.subjects is None else torch.split(outputs.subjects, counts)
        return asked(metric, [(dict(zip(names, own, strict=True)), targets) for targets, *own in parts], subjects)


def own_samples(a: Assembly) -> list[Own]:
    """Of each known client what it trains and is tested on, and how much each of its samples counts in training."""
    found = []
    for i, client in enumerate(a.federation.clients[: a.problem.known]):
        weight, of_class = client.weight, a.cohort.class_weight
        if of_class is not None:
            own = of_class[i].cpu()[client.train[1].long()]
            weight = own if weight is None else own * weight
        found.append(Own(client.train, client.test, weight))
    return found


def _named(model: Model, i: int, layout: Layout) -> dict[str, Tensor]:
    """One client's model as named tensors; those of a Predictor stand behind the name of their row."""
    if not isinstance(model, Predictor):
        return layout.tensors(model[i])
    tensors: dict[str, Tensor] = {}
    for name, rows in model.rows.items():
        is_model = rows.ndim == 2 and rows.shape[1] == layout.size
        tensors |= {f"{name}.{n}": t for n, t in layout.tensors(rows[i]).items()} if is_model else {name: rows[i]}
    return tensors
