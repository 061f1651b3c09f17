"""The model that each client should use: chosen, saved with what is needed to load it, and asked about test samples."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..base.weights import Layout
from ..evidence import untrained
from ..evidence.outputs import CHOSEN, GLOBAL, MOST_BYTES, Outputs, joined
from ..evidence.own_metric import OwnMetric, asked
from ..evidence.untrained import Answers, Own
from ..runs.folder import Writer
from ..training.evaluation import Model, Predictor, all_outputs
from . import explosion
from .assembly import Assembly
from .scores import Found, scored

ENOUGH = 5
"""Validation samples of a client from which on they have a say in which model it gets; of survival, with the event."""
GUESS = 10
"""Validation samples of a client that weigh as much as what all clients together have seen of a model."""


@dataclass
class HandOut:
    """Saves for each client the model to use, with what is needed to load it; a few clients at a time, and in the end
    what the models of clients that trained answer on the test samples."""

    assembly: Assembly
    writer: Writer
    bounds: Tensor
    """(m,) losses beyond which a model has exploded, and is handed to nobody."""
    ahead: Mapping[str, float]
    """By how much each model is ahead of the headline over all clients, where that is clear."""
    clients: list[int] = field(default_factory=list)
    handed: list[str] = field(default_factory=list)
    answers: dict[str, list[Tensor]] = field(default_factory=dict)
    """By model, a tensor (n_i, ...) a client."""
    seconds: float = 0.0
    """That this has taken, which are no part of a round."""
    withheld: list[int] = field(default_factory=list)
    """Clients all of whose models have exploded: they are handed none."""

    def add(self, clients: list[int], models: dict[str, Model], found: Found | None = None) -> None:
        """The models (rows of these clients), and what they score on validation data; scored here where that is not
        known."""
        a, started = self.assembly, time.perf_counter()
        held = (found or scored(a, clients, models))["validation"]
        exploded = self._exploded(clients, models)
        lost = [c for c, own in zip(clients, exploded, strict=True) if len(own) == len(models)]
        handed = [
            self._best(client, {n: float(each[i]) for n, each in held.items()}, () if client in lost else own)
            for i, (client, own) in enumerate(zip(clients, exploded, strict=True))
        ]
        told = self._asked(clients, models, handed) if clients[-1] < a.problem.known else {}
        for i, (client, chosen) in enumerate(zip(clients, handed, strict=True)):
            if client not in lost:
                self.writer.model(a.problem.names[client], *self._saved(client, i, chosen, models[chosen]))
        # Only now, as memory may run out before: then these clients come again.
        self.clients += clients
        self.handed += handed
        self.withheld += lost
        for name, parts in told.items():
            self.answers.setdefault(name, []).extend(parts)
        self.seconds += time.perf_counter() - started

    def _exploded(self, clients: list[int], models: dict[str, Model]) -> list[list[str]]:
        """For each client the models whose loss on its training samples is beyond all bounds."""
        found = explosion.losses(self.assembly, clients, list(models.values()))
        bounds = self.bounds[clients]
        return [[name for name, bad in zip(models, own, strict=True) if bad] for own in (found > bounds).T.tolist()]

    def _best(self, client: int, held: dict[str, float], exploded: Sequence[str] = ()) -> str:
        """The model that is best on validation data, of those that did not explode at the client; of equals the
        headline.

        On the client's own, and on everybody's where these clearly tell (`ahead`): what all clients have seen of a
        model then counts as much as so many samples of its own (`GUESS`). A few samples do not tell which of two models
        is better for one client, but all of them together tell which one is better for most.
        """
        sound = [name for name in held if name not in exploded]
        headline = self.assembly.method.headline if self.assembly.method.headline in sound else sound[0]
        gains = {name: self._gain(name, headline, client, held) for name in sound if name != headline}
        top = max(gains, key=lambda name: gains[name], default=headline)
        return top if gains.get(top, 0.0) > 0 else headline

    def _gain(self, name: str, headline: str, client: int, held: dict[str, float]) -> float:
        """By how much a model is expected to be better than the headline at a client."""
        task, validation = self.assembly.problem.task, self.assembly.cohort.validation
        everyone = self.ahead.get(name, 0.0) - self.ahead.get(headline, 0.0)
        own = (held[name] - held[headline]) * (1 if task.metric.higher_is_better else -1)
        n = task.telling(validation.targets(client))
        return everyone if n < ENOUGH or math.isnan(own) else (n * own + GUESS * everyone) / (n + GUESS)

    def end(self) -> dict[str, tuple[float, ...]]:
        """Writes what the models answered; returns what needs no federation scores at each of these clients."""
        a, own = self.assembly, own_samples(self.assembly, self.clients)
        beside = untrained.answers(a.problem.task, own)
        if self.answers:
            self.writer.outputs(self._outputs(beside))
        scores = untrained.scored(a.problem.task, beside, own)
        return {name: tuple(math.nan if s is None else s for s in each.clients) for name, each in scores.items()}

    def _saved(self, client: int, i: int, chosen: str, model: Model) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A client's model, the i-th of these rows, as named tensors, and what is needed to load it."""
        a = self.assembly
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
        a = self.assembly
        if a.problem.task.kind != "survival":
            return a.problem.task.target_mean
        own = model.take(torch.tensor([i])) if isinstance(model, Predictor) else model[i : i + 1]
        (risks,) = all_outputs(a.execution, a.cohort.train.take([client]), own)
        middle = -float(risks.double().median())
        return middle if math.isfinite(middle) else 0.0

    def _asked(self, clients: list[int], models: dict[str, Model], handed: list[str]) -> dict[str, list[Tensor]]:
        """What these models answer on the test samples: all models, if that does not take much."""
        a = self.assembly
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

    def _outputs(self, beside: Answers) -> Outputs:
        a = self.assembly
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
            beside=_few(beside),
            rows=torch.cat(rows).long() if len(rows) == len(self.clients) else None,
            subjects=torch.cat(subjects).long() if len(subjects) == len(self.clients) else None,
        )
        return outputs if task.metric.kind is not None else replace(outputs, own=self._own(outputs))

    def _own(self, outputs: Outputs) -> OwnMetric:
        """What a metric of the user's own says of the models handed out, and of the one for all where there is one."""
        models = dict(outputs.models)
        if CHOSEN not in models:
            models[CHOSEN] = joined(models, outputs.counts, outputs.handed)
        names, counts = [name for name in (CHOSEN, GLOBAL) if name in models], list(outputs.counts)
        kept = [torch.split(models[name], counts) for name in names]
        parts = zip(torch.split(outputs.targets, counts), *kept, strict=True)
        metric = self.assembly.problem.task.metric
        subjects = None if outputs.subjects is None else torch.split(outputs.subjects, counts)
        return asked(metric, [(dict(zip(names, own, strict=True)), targets) for targets, *own in parts], subjects)


def _few(beside: Answers) -> dict[str, Tensor]:
    """What needs no federation answered, as the models' answers are kept; nothing where that takes much."""
    found = {name: torch.cat(list(each)).float() for name, each in beside.items()}
    return found if sum(each.nbytes for each in found.values()) <= MOST_BYTES else {}


def own_samples(a: Assembly, clients: Sequence[int]) -> list[Own]:
    """Of these clients what each trains and is tested on, and how much each of its samples counts in training."""
    found = []
    for i in clients:
        client, of_class = a.federation.clients[i], a.cohort.class_weight
        weight = client.weight
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
