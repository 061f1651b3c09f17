"""FedAvg (McMahan et al., 2017): one global model, the average of the clients' by their numbers of samples."""

from __future__ import annotations

from ..maths.collaboration import mix
from ._method import Cohort, Memory, Message, Method, Model, Problem, Rng, Server, State, Tensor, Upload


class FedAvg(Method):
    """One global model for all: w = sum_i n_i w_i / sum_i n_i over those that took part.

    Models: `global` as received, and `finetuned` (FedAvg-FT): what a client's local training makes of it.
    """

    headline = "global"
    training = frozenset()

    def begin(self, problem: Problem, rng: Rng) -> Server:
        return State({"w": problem.initial.clone()})

    def enlist(self, problem: Problem, clients: Tensor, rng: Rng) -> Memory:
        return State(finetuned=problem.initial.repeat(len(clients), 1))

    def download(self, problem: Problem, server: Server, clients: Tensor, round: int, rng: Rng) -> Message:
        return State({"w": server.w})

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: int) -> tuple[Upload, Memory]:
        W = cohort.fit(message.w, round)
        return State(W=W), State(finetuned=W)

    def models(self, cohort: Cohort, message: Message, memory: Memory, round: int) -> dict[str, Model]:
        return {"global": message.w, "finetuned": memory.finetuned}

    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: int, rng: Rng) -> Server:
        n = problem.samples[clients].double()
        return server.replace(w=mix((n / n.sum())[None], upload.W)[0])
