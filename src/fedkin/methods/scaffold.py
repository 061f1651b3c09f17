"""SCAFFOLD (Karimireddy et al., 2020): control variates correct the drift of local training."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from ._method import Cohort, Local, Memory, Message, Method, Model, Problem, Round, Server, State, Tensor, Upload


class Scaffold(Method):
    """FedAvg with the drift of local training taken out: clients step along g_i(y) - c_i + c.

    The server averages their moves, and keeps c, the mean of all c_i.

    Models: `global` x, and `personal` y_i, the client's own after training. Plain SGD: with any other optimiser option
    II's (x - y) / (K lr) is no gradient.
    """

    headline = "personal"
    remembers = "personal"
    training = frozenset({"option"})
    newcomers_change = frozenset({"c"})
    local = {"optimiser": "sgd", "lr": 0.05, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "clip": 0.0}

    option: Annotated[Literal["I", "II"], Field(description="I: full gradient at x; II: from the steps taken")] = "II"
    server_lr: Annotated[float, Field(gt=0)] = 1.0

    def check(self, problem: Problem, local: Local) -> None:
        if local.optimiser != "sgd" or local.momentum or local.weight_decay or local.clip:
            raise ValueError(
                "SCAFFOLD needs plain SGD: set local.optimiser = 'sgd' and local.momentum, local.weight_decay and "
                "local.clip to 0."
            )

    def begin(self, problem: Problem, round: Round) -> Server:
        x = problem.initial.clone()
        return State({"x": x, "c": torch.zeros_like(x[: problem.layout.parameters])})

    def enlist(self, problem: Problem, clients: Tensor, round: Round) -> Memory:
        own = super().enlist(problem, clients, round)
        return own.replace(c=torch.zeros_like(own.personal[:, : problem.layout.parameters]))

    def download(self, problem: Problem, server: Server, clients: Tensor, round: Round) -> Message:
        return State({"x": server.x, "c": server.c})

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> tuple[Upload, Memory]:
        d = cohort.layout.parameters
        x, correction = message.x, message.c - memory.c
        y = cohort.fit(x, round, extra=lambda w, k: correction[:k])
        if self.option == "I":
            c = cohort.full_grad(x.clone(), round)
        else:
            # K_i counts mini-batch steps, not epochs (trap T7).
            length = torch.tensor(cohort.step_counts(), dtype=x.dtype, device=x.device)[:, None] * cohort.lrs(round).to(
                x
            )
            c = memory.c - message.c + (x[:, :d] - y[:, :d]) / length
        return State(move=y - x, change=c - memory.c), State(personal=y, c=c)

    def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
        return {"global": message.x, "personal": memory.personal}

    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        d, move = problem.layout.parameters, upload.move.mean(0)
        move[:d] *= self.server_lr  # buffers are averaged, whatever the server's rate
        # Divided by all clients, not by those that took part: c stays the mean of all c_i (trap T7).
        return server.replace(x=server.x + move, c=server.c + upload.change.sum(0) / len(problem))

    def welcome(self, problem: Problem, server: Server, round: Round) -> Server:
        """Newcomers bring c_i = 0, so the mean over all shrinks."""
        return server.replace(c=server.c * (problem.known / len(problem)))
