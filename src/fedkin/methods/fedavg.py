"""FedAvg (McMahan et al., 2017): one global model, the average of the clients' by their numbers of samples."""

from __future__ import annotations

from ._method import Cohort, Memory, Message, Model, Problem, Round, Server, State, Tensor, Upload
from ._shared import GlobalModel, weighted_mean


class FedAvg(GlobalModel):
    """One global model for all: w = sum_i n_i w_i / sum_i n_i over those that took part.

    Models: `global` as received, and `finetuned` (FedAvg-FT): what a client's local training makes of it.
    """

    headline = "global"
    remembers = "finetuned"
    training = frozenset()

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> tuple[Upload, Memory]:
        W = cohort.fit(message.w, round)
        return State(W=W), State(finetuned=W)

    def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
        return {"global": message.w, "finetuned": memory.finetuned}

    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        return server.replace(w=weighted_mean(problem.samples[clients], upload.W))
