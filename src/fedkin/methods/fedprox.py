"""FedProx (Li et al., 2020): FedAvg whose clients are held near the global model."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ._method import Cohort, Local, Memory, Message, Problem, Round, State, Upload
from ._shared import Form, check_proximal, held_near
from .fedavg import FedAvg


class FedProx(FedAvg):
    """FedAvg with (mu / 2) ||w_i - w||^2 added to each client's loss.

    `finetuned` (FedProx-FT) takes a further pass of its own, without the proximal term.
    """

    training = frozenset({"mu", "proximal"})

    mu: Annotated[float, Field(ge=0, description="strength of the proximal term; the paper tunes 0.001 to 1")] = 0.01
    proximal: Form = "exact"

    def check(self, problem: Problem, local: Local) -> None:
        super().check(problem, local)
        if self.mu:
            check_proximal(self.proximal, local, problem.rounds, lambda k: 1 / self.mu, "1 / mu")

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> tuple[Upload, Memory]:
        W = cohort.fit(message.w, round, extra=held_near(message.w, self.mu, self.proximal))
        return State(W=W), State(finetuned=cohort.fit(message.w, round, stream="finetune"))
