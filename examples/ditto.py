"""Ditto (Li et al., ICML 2021): FedAvg, and beside it a model of each client's own that is held near the global one.

fedkin run --method ditto:Ditto --data digits --split practical        (in this folder)
python ditto.py
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

import fedkin
from fedkin.method import (
    Cohort,
    Memory,
    Message,
    Method,
    Model,
    Problem,
    Proximal,
    Round,
    Server,
    State,
    Tensor,
    Upload,
)


class Ditto(Method):
    """A personal model that persists from round to round, trained near the global one; the global one is FedAvg's."""

    headline = "personal"
    remembers = "personal"
    training = frozenset({"strength"})
    strength: Annotated[float, Field(gt=0, description="lambda: how near")] = 10.0

    def begin(self, problem: Problem, round: Round) -> Server:
        return State({"w": problem.initial.clone()})

    def download(self, problem: Problem, server: Server, clients: Tensor, round: Round) -> Message:
        return State({"w": server.w})

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> tuple[Upload, Memory]:
        near = Proximal(message.w, torch.full_like(message.w[:, :1], 1 / self.strength))
        personal = cohort.fit(memory.personal, round, extra=near, stream="personal")
        return State(W=cohort.fit(message.w, round)), State(personal=personal)

    def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
        return {"personal": memory.personal, "global": message.w}

    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        n = problem.samples[clients].to(upload.W)
        return server.replace(w=(n / n.sum()) @ upload.W)


if __name__ == "__main__":
    results = fedkin.compare(methods=["separate", "fedavg", "ditto:Ditto"], rounds=10, out="runs/ditto")
    for row in results.rows():
        print(f"{row.name:28} {row.score:.1%}")
