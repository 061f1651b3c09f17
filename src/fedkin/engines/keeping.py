"""The models of the rounds that validation data choose: what clients of a run that ends by validation are handed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from ..base.state import State
from ..evidence.progress import as_good
from ..evidence.records import Line
from ..training.evaluation import Model, Predictor
from .assembly import Assembly

APART = "/"
"""Between a model and the name of its rows, where it has several."""


@dataclass
class Keeper:
    """Of each model, the rows of all clients in the round that validation data choose so far: `progress.chosen`."""

    assembly: Assembly
    lowest: dict[str, float] = field(default_factory=dict)
    best: dict[str, State] = field(default_factory=dict)
    """By model, its rows: `row`, or by their names where it is a Predictor."""
    now: dict[str, State] = field(default_factory=dict)

    def add(self, clients: list[int], models: dict[str, Model]) -> None:
        """Models of some clients, as they were scored in this round."""
        for name, model in models.items():
            rows = model.rows if isinstance(model, Predictor) else State(row=model)
            self.now.setdefault(name, self._start(rows)).put(torch.tensor(clients, device=self.assembly.device), rows)

    def _start(self, rows: State) -> State:
        """Room for all clients; one that is never scored has the initial model."""
        room, initial = rows.room_for(len(self.assembly.known_problem())), self.assembly.problem.initial
        for _, tensor in room.items():
            tensor.copy_(initial) if tensor.shape[1:] == initial.shape else tensor.zero_()
        return room

    def settle(self, record: Line) -> set[str]:
        """After a round is scored: what is as good as the best, or better, is kept; returns the names of these."""
        kept, higher = set[str](), self.assembly.problem.task.metric.higher_is_better
        for name, rows in self.now.items():
            held = record.models[name].validation
            loss = held.loss if held is not None else None
            if loss is None:
                continue
            self.lowest[name] = min(loss, self.lowest.get(name, math.inf))
            if as_good(loss, self.lowest[name], higher):
                self.best[name] = State(**{key: tensor.clone() for key, tensor in rows.items()})
                kept.add(name)
        return kept

    def of(self, clients: list[int], models: dict[str, Model]) -> dict[str, Model]:
        """What these clients are handed: of the chosen rounds; as they are where nothing was chosen."""
        numbers, handed = torch.tensor(clients, device=self.assembly.device), dict(models)
        for name, rows in self.best.items():
            own, model = rows.take(numbers), models[name]
            handed[name] = Predictor(model.function, own) if isinstance(model, Predictor) else own.row
        return handed

    # ---- in a checkpoint ----

    def state(self) -> State:
        rows = {f"{name}{APART}{key}": t for name, state in self.best.items() for key, t in state.items()}
        lowest = {
            f"{name}{APART}lowest": torch.tensor([loss], dtype=torch.float64) for name, loss in self.lowest.items()
        }
        return State({**rows, **lowest})

    def restore(self, state: State) -> None:
        for key, tensor in state.items():
            name, _, own = key.rpartition(APART)
            if own == "lowest":
                self.lowest[name] = float(tensor)
            else:
                before = dict(self.best[name].items()) if name in self.best else {}
                self.best[name] = State(**before, **{own: tensor.to(self.assembly.device, copy=True)})
