"""FedRep (Collins et al., ICML 2021): a body that all share, and a head for each client that never leaves it.

fedkin run --method fedrep:FedRep --data digits --split practical        (in this folder)
python fedrep.py
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

import fedkin
from fedkin.method import Cohort, Memory, Message, Method, Model, Problem, Round, Server, State, Tensor, Upload


class FedRep(Method):
    """Clients first train their own head on the body they got, then the body under their head; the server averages
    bodies alone."""

    headline = "personal"
    training = frozenset({"head_epochs"})
    head_epochs: Annotated[int, Field(ge=1, description="passes of the head, before one of the body")] = 4

    def begin(self, problem: Problem, round: Round) -> Server:
        return State({"body": problem.initial[problem.layout.split()[0]].clone()})

    def enlist(self, problem: Problem, clients: Tensor, round: Round) -> Memory:
        return State(head=problem.initial[problem.layout.split()[1]].repeat(len(clients), 1))

    def download(self, problem: Problem, server: Server, clients: Tensor, round: Round) -> Message:
        return State({"body": server.body})

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> tuple[Upload, Memory]:
        body, head = cohort.layout.split()
        W = self._whole(cohort, message, memory)
        W = cohort.fit(W, round, columns=head, epochs=self.head_epochs, stream="head")
        W = cohort.fit(W, round, columns=body, epochs=1)
        return State(body=W[:, body]), State(head=W[:, head])

    def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
        return {"personal": self._whole(cohort, message, memory)}

    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        n = problem.samples[clients].to(upload.body)
        return server.replace(body=(n / n.sum()) @ upload.body)

    def _whole(self, cohort: Cohort, message: Message, memory: Memory) -> Tensor:
        body, head = cohort.layout.split()
        W = torch.empty(len(cohort), cohort.layout.size).to(memory.head)
        W[:, body], W[:, head] = message.body, memory.head
        return W


if __name__ == "__main__":
    results = fedkin.compare(methods=["separate", "fedavg", "fedrep:FedRep"], rounds=10, out="runs/fedrep")
    for row in results.rows():
        print(f"{row.name:28} {row.score:.1%}")
