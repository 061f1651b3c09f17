"""FedProx (Li et al., 2020): FedAvg whose clients are held near the global model."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ._method import Cohort, Memory, Message, State, Upload
from .fedavg import FedAvg


class FedProx(FedAvg):
    """FedAvg with (mu / 2) ||w_i - w||^2 added to each client's loss.

    `finetuned` (FedProx-FT) takes a further pass of its own, without the proximal term.
    """

    training = frozenset({"mu"})

    mu: Annotated[float, Field(ge=0, description="strength of the proximal term; the paper tunes 0.001 to 1")] = 0.01

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: int) -> tuple[Upload, Memory]:
        centre = message.w[:, : cohort.layout.parameters]
        W = cohort.fit(message.w, round, extra=lambda w, k: self.mu * (w - centre[:k]))
        return State(W=W), State(finetuned=cohort.fit(message.w, round, stream="finetune"))
