"""Rows of a table without federated learning: what a method has to beat to be worth its messages.

`climatology`     what a client's training data have on average in this season (the calendar month)
`persistence`     the last observed value, repeated
`least_squares`   each client's own linear regression on all inputs and a constant
`autoregression`  the same on the observed steps, and on what is known of the first step to predict (the time of day)
`pooled_least_squares`  one linear regression on everyone's data
`pooled`          one model of the configured kind on everyone's data, trained for as many rounds as the methods, or
                  until validation data show no further gain, where those end so

The last two are no private learning: they show what one model for all could come to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from pydantic import TypeAdapter
from torch import Tensor

from .. import data
from ..base import machine
from ..base.round import Round
from ..base.task import class_weights
from ..base.wording import did_you_mean
from ..data import windows
from ..data.federation import Client, Pair
from ..engines.assembly import Assembly
from ..engines.scores import Scores, scored
from ..engines.simulation import Interrupted, Listener
from ..errors import FedkinError
from ..evidence.progress import chosen, exhausted
from ..evidence.records import Line
from ..evidence.references import Reference
from ..runs.checkpoint import digest
from ..runs.folder import replace_file
from ..training.cohort import Samples
from ..training.execution import OneByOne
from ..training.ledger import Ledger
from ..training.optimisers import Optimiser

FILE = "references.json"


class NoReference(FedkinError):
    """A row cannot be made of this data; the sentence says why."""


# ---- computing ----


def compute(ready: Assembly, names: Sequence[str], listener: Listener | None = None) -> list[Reference]:
    """Rows of a run that is ready to start: trained on what its clients train on, tested on what they are tested on.

    Newcomers are left out. Of the method that is ready nothing is used but the local training's settings.
    """
    check(ready, names)
    return [_computed(ready, name, listener or Listener()) for name in dict.fromkeys(names)]


def check(ready: Assembly, names: Sequence[str]) -> None:
    """Refuses names that are unknown, or that mean nothing for this task."""
    federation, series = ready.federation, ready.federation.split not in data.POOLED
    for name in names:
        if name not in NAMES:
            hint = did_you_mean(name, NAMES)
            raise NoReference(f"There is no reference {name!r}. {hint}Known are {', '.join(NAMES)}.")
        if name != "pooled" and federation.task.kind == "classification":
            raise NoReference(f"The reference {name!r} predicts numbers, and here classes are; 'pooled' is for both.")
        if name != "pooled" and federation.task.kind == "survival":
            raise NoReference(f"The reference {name!r} predicts numbers, and no risks; 'pooled' is for survival, too.")
        if name in ("persistence", "autoregression") and not series:
            raise NoReference(
                f"The reference {name!r} is for series in time, and the clients of {data.short(federation.name)} have "
                "none."
            )
        if name == "climatology" and any(client.seasons is None for client in federation.clients):
            raise NoReference(
                f"The reference 'climatology' needs to know in which season a target lies, and "
                f"{data.short(federation.name)} does not say."
            )


def _computed(ready: Assembly, name: str, listener: Listener) -> Reference:
    clients, metric = ready.federation.clients[: ready.problem.known], ready.problem.task.metric
    if name == "pooled":
        scores, last, note = _pooled(ready, listener)
    else:
        outputs = PREDICTED[name](clients, ready.problem.task.outputs)
        scores = last = torch.stack(
            [
                torch.as_tensor(metric(own, client.test[1].double().reshape(len(own), -1)), dtype=torch.float64).mean()
                for own, client in zip(outputs, clients, strict=True)
            ]
        )
        note = ""
    return Reference(
        name=name,
        seed=ready.config.seed,
        metric=metric.name,
        higher_is_better=metric.higher_is_better,
        clients=tuple(client.name for client in clients),
        scores=tuple(scores.tolist()),
        last=tuple(last.tolist()),
        note=note,
        settings=digest(ready.config),
    )


def climatology(clients: Sequence[Client], outputs: int) -> list[Tensor]:
    """A client's mean training target of the season; of all seasons where it has none of this one."""
    predictions = []
    for client in clients:
        seasons = client.seasons
        assert seasons is not None
        steps = torch.arange(outputs)
        train, test = ((first[:, None] + steps) % seasons.period for first in (seasons.train, seasons.test))
        y = client.train[1].double().reshape(-1, outputs)
        known = ~y.isnan()
        sums, counts = (
            torch.zeros(seasons.period, dtype=torch.float64).index_add(0, train[known], values)
            for values in (y[known], torch.ones_like(y[known]))
        )
        overall = y[known].mean() if known.any() else torch.zeros((), dtype=torch.float64)
        predictions.append(torch.where(counts > 0, sums / counts, overall)[test])
    return predictions


def persistence(clients: Sequence[Client], outputs: int) -> list[Tensor]:
    return [windows.observed(c.test[0].double(), outputs)[:, -1:].expand(-1, outputs) for c in clients]


def least_squares(clients: Sequence[Client], outputs: int) -> list[Tensor]:
    return [_regression(c.train, c.test[0], outputs, _everything) for c in clients]


def autoregression(clients: Sequence[Client], outputs: int) -> list[Tensor]:
    return [_regression(c.train, c.test[0], outputs, _past) for c in clients]


def pooled_least_squares(clients: Sequence[Client], outputs: int) -> list[Tensor]:
    taught = [c.train for c in clients if not c.silent]
    pool = torch.cat([x for x, _ in taught]), torch.cat([y for _, y in taught])
    together = _regression(pool, torch.cat([c.test[0] for c in clients]), outputs, _everything)
    return list(torch.split(together, [len(c.test[1]) for c in clients]))


PREDICTED: dict[str, Callable[[Sequence[Client], int], list[Tensor]]] = {
    "climatology": climatology,
    "persistence": persistence,
    "least_squares": least_squares,
    "autoregression": autoregression,
    "pooled_least_squares": pooled_least_squares,
}
"""(clients, outputs) -> for each client (n_test, outputs) in float64."""
POOLED = "pooled"
NAMES = (*PREDICTED, POOLED)
TOGETHER = ("pooled_least_squares", POOLED)
"""Those made of everyone's data, which have to be prepared alike."""


def _regression(train: Pair, x: Tensor, outputs: int, columns: Callable[[Tensor, int], Tensor]) -> Tensor:
    """(n, outputs) at x, by the linear function of the columns and a constant that fits best; of several that fit
    equally well, the one of smallest norm. Missing targets (NaN) have no say."""

    def design(x: Tensor) -> Tensor:
        found = columns(x.double(), outputs)
        return torch.cat([found, torch.ones(len(found), 1, dtype=torch.float64)], 1)

    def fit(A: Tensor, B: Tensor) -> Tensor:
        found: Tensor = torch.linalg.lstsq(A, B, driver="gelsd").solution
        return found

    A, B = design(train[0]), train[1].double().reshape(-1, outputs)
    known = ~B.isnan()
    if known.all():
        return design(x) @ fit(A, B)
    targets = zip(B.T, known.T, strict=True)
    return design(x) @ torch.cat([fit(A[here], b[here, None]) for b, here in targets], 1)


def _everything(x: Tensor, outputs: int) -> Tensor:
    return x.flatten(1)


def _past(x: Tensor, outputs: int) -> Tensor:
    ahead = [x[:, -outputs, 1:]] if x.ndim == 3 else []
    return torch.cat([windows.observed(x, outputs), *ahead], 1)


def _pooled(ready: Assembly, listener: Listener) -> tuple[Tensor, Tensor, str]:
    """Scores (m,) at the round that validation data choose and at the last, of one model on all training data, with the
    same local training, and the rules of the methods for when it ends and which round is taken."""
    config, train, task = ready.config, ready.cohort.train, ready.problem.task
    taught = [i for i, client in enumerate(ready.federation.clients[: ready.problem.known]) if not client.silent]
    index = torch.cat([torch.arange(train.starts[i], train.starts[i] + train.counts[i]) for i in taught])
    own_weight = None if train.weight is None else train.weight[index]
    everyone = Samples.of([(train.x[index], train.y[index])], ready.device, own_weight)
    weight = ready.cohort.class_weight
    if weight is not None:
        own = class_weights(everyone.y, task.outputs) if config.local.class_weights == "balanced" else weight[0]
        weight = own.to(weight)[None]
    W = ready.problem.initial[None].clone()
    fresh = Optimiser.fresh(config.local, W, ready.problem.layout.parameters)
    cohort = replace(
        ready.cohort,
        names=("everyone",),
        train=everyone,
        validation=everyone,
        class_weight=weight,
        execution=OneByOne(ready.execution.training, ready.problem.layout, task.loss, ready.device),  # there is but one
        ledger=Ledger(optimiser=fresh if config.local.persist_optimiser else None),
    )
    lines, known = list[Line](), list(range(ready.problem.known))
    scores = Scores(ready.problem, torch.tensor(ready.cohort.validation.counts))
    with machine.threads(config.threads or 1):
        while len(lines) < config.rounds and not _done(lines, config.patience):
            W = cohort.fit(W, Round(len(lines) + 1, config.rounds))
            scores.add(known, scored(ready, known, {POOLED: W.expand(len(known), -1)}))
            lines.append(Line(round=len(lines) + 1, models=scores.table(0, len(known))))
            listener.on_round(lines[-1])
            if listener.stop():
                raise Interrupted(f"Stopped in round {len(lines)} of the pooled model, which has to be begun again.")
    found = [torch.tensor(line.models[POOLED].clients, dtype=torch.float64) for line in lines]
    at = chosen(lines, POOLED, task.metric.higher_is_better, config.patience)
    if not found[at].isfinite().any():
        raise NoReference("The pooled model's training is no longer finite; take a smaller local.lr.")
    steps = cohort.step_counts()[0]
    taken = f"round {at + 1}, as validation data choose" if at + 1 < len(lines) else "the last"
    return found[at], found[-1], f"{len(lines)} rounds of {steps:,} mini-batches, scored after {taken}"


def _done(lines: Sequence[Line], patience: int) -> bool:
    """Whether validation data show no further gain, where that is asked."""
    return bool(patience) and len(lines) >= patience and exhausted(lines, patience)


# ---- as a file ----


def read(folder: Path) -> list[Reference]:
    """Those that stand in a comparison's folder, if any."""
    path = folder / FILE
    if not path.exists():
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["references"]
        return TypeAdapter(list[Reference]).validate_python(found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoReference(f"{path} cannot be read ({error}); remove it, and have it made again.") from None


def write(folder: Path, references: Sequence[Reference]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"references": [asdict(each) for each in references]}, indent=1)
    replace_file(folder / FILE, text.encode())


def beside(folder: Path, ready: Assembly, names: Sequence[str], listener: Listener | None = None) -> None:
    """Writes rows of one seed to a comparison's folder; those that are there with the same settings are kept."""
    done, settings = read(folder), digest(ready.config)
    there = {each.name for each in done if each.settings == settings}
    new = [name for name in names if name not in there]
    stale = [each for each in done if each.name in new and each.seed == ready.config.seed]
    write(folder, [each for each in done if each not in stale] + compute(ready, new, listener))
