"""A method of one's own in one file: every client moves half way to the plain mean of all.

fedkin run --method own_method:HalfWay --data digits --split practical        (in this folder)
python own_method.py
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

import fedkin
from fedkin.method import Cohort, Memory, Message, Method, Model, Problem, Round, Server, State, Upload


class HalfWay(Method):
    """Each client's cloud model is half its own and half the mean of all."""

    headline = "cloud"

    share: Annotated[float, Field(ge=0, le=1, description="how far to go to the mean")] = 0.5

    def begin(self, problem: Problem, round: Round) -> Server:
        return State(W=problem.initial.repeat(len(problem), 1))

    def enlist(self, problem: Problem, clients: torch.Tensor, round: Round) -> Memory:
        return State(personal=problem.initial.repeat(len(clients), 1))

    def download(self, problem: Problem, server: Server, clients: torch.Tensor, round: Round) -> Message:
        return State(u=(1 - self.share) * server.W[clients] + self.share * server.W.mean(0))

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> tuple[Upload, Memory]:
        W = cohort.fit(message.u, round)
        return State(W=W), State(personal=W)

    def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
        return {"cloud": message.u, "personal": memory.personal}

    def update(self, problem: Problem, server: Server, clients: torch.Tensor, upload: Upload, round: Round) -> Server:
        server.W[clients] = upload.W
        return server

    def welcome(self, problem: Problem, server: Server, round: Round) -> Server:
        new = len(problem) - problem.known
        return State(W=torch.cat([server.W, server.W.mean(0).repeat(new, 1)]))


if __name__ == "__main__":
    results = fedkin.compare(
        methods=["separate", "fedavg", "own_method:HalfWay"],
        rounds=10,
        data={"split": "practical"},
        out="runs/own-method",
    )
    for row in results.rows():
        print(f"{row.name:28} {row.score:.1%}")
