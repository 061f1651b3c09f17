"""The models of the rounds that validation data choose: what clients of a run that ends by validation are handed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..base.state import State
from ..evidence.progress import as_good
from ..evidence.records import Line
from ..training.evaluation import Model, Predictor

APART = "/"
"""Between a model and the name of its rows, where it has several."""


@dataclass
class Chooser:
    """At the server: the lowest validation loss of each model so far, and of which models a round is as good."""

    higher: bool
    """Whether a higher score is better."""
    lowest: dict[str, float] = field(default_factory=dict)

    def settle(self, record: Line) -> set[str]:
        """After a round is scored: the models that are as good as their best, or better."""
        kept = set[str]()
        for name, model in record.models.items():
            loss = model.validation.loss if model.validation is not None else None
            if loss is None:
                continue
            self.lowest[name] = min(loss, self.lowest.get(name, math.inf))
            if as_good(loss, self.lowest[name], self.higher):
                kept.add(name)
        return kept


@dataclass
class Keeper:
    """At a site: of each model, the rows of its clients in the round that validation data choose so far."""

    clients: Sequence[int]
    """Known ones, by their numbers."""
    initial: Tensor
    """(D,) the row of one that is never scored."""
    best: dict[str, State] = field(default_factory=dict)
    """By model, its rows: `row`, or by their names where it is a Predictor."""
    now: dict[str, State] = field(default_factory=dict)

    def add(self, clients: list[int], models: dict[str, Model]) -> None:
        """Models of some clients, as they were scored in this round."""
        for name, model in models.items():
            rows = model.rows if isinstance(model, Predictor) else State(row=model)
            self.now.setdefault(name, self._start(rows)).put(self._places(clients), rows)

    def _places(self, clients: Sequence[int]) -> Tensor:
        return torch.tensor([self.clients.index(c) for c in clients], device=self.initial.device)

    def _start(self, rows: State) -> State:
        """Room for all clients; one that is never scored has the initial model."""
        room = rows.room_for(len(self.clients))
        for _, tensor in room.items():
            tensor.copy_(self.initial) if tensor.shape[1:] == self.initial.shape else tensor.zero_()
        return room

    def keep(self, names: Sequence[str]) -> None:
        """Of these models the rows of the last round are the ones to keep."""
        for name in names:
            if name in self.now:
                self.best[name] = State(**{key: tensor.clone() for key, tensor in self.now[name].items()})

    def of(self, clients: list[int], models: dict[str, Model]) -> dict[str, Model]:
        """What these clients are handed: of the chosen rounds; as they are where nothing was chosen."""
        places, handed = self._places(clients), dict(models)
        for name, rows in self.best.items():
            own, model = rows.take(places), models[name]
            handed[name] = Predictor(model.function, own) if isinstance(model, Predictor) else own.row
        return handed

    # ---- in a checkpoint ----

    def state(self, now: bool) -> State:
        """What is kept; and, where clients may not be scored in the next round, what would be kept of them."""
        parts = {"best": self.best, **({"now": self.now} if now else {})}
        return State(
            {
                APART.join((part, name, key)): tensor
                for part, models in parts.items()
                for name, state in models.items()
                for key, tensor in state.items()
            }
        )

    def restore(self, state: State) -> None:
        for path, tensor in state.items():
            part, name, key = path.split(APART)
            rows = self.best if part == "best" else self.now
            before = dict(rows[name].items()) if name in rows else {}
            rows[name] = State(**before, **{key: tensor.to(self.initial.device, copy=True)})
