"""APFL (Deng et al., 2020): each client mixes a model of its own with the global one, and learns how much."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from ..training.evaluation import Predictor
from ..training.execution import Batch
from ._method import Cohort, Local, Memory, Message, Model, Problem, Round, Server, State, Tensor, Upload
from ._shared import GlobalModel


class APFL(GlobalModel):
    """Each client mixes a model of its own with the global one: alpha_i v_i + (1 - alpha_i) w.

    On each mini-batch w and v step along the gradients at w and at the mixture, both taken before either steps.

    Models: `personal` (that mixture) and `global` w. The authors' code differs from their paper: there w steps first,
    alpha's step looks at both models after theirs (`order = "code"`) and shrinks alpha (`alpha_decay = 0.02`), and what
    is mixed, in training too, are outputs (`mix = "outputs"`).
    """

    headline = "personal"
    remembers = "v"
    training = frozenset({"adaptive", "alpha_decay", "mix", "order"})
    local = {"optimiser": "sgd", "lr": 0.03, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "clip": 0.0}

    alpha: Annotated[float, Field(ge=0, le=1, description="weight of the client's own model at the start")] = 0.5
    adaptive: Annotated[bool, Field(description="learn alpha, once a round")] = True
    alpha_decay: Annotated[float, Field(ge=0, description="not in the paper; 0.02 in the authors' code")] = 0.0
    mix: Annotated[Literal["parameters", "outputs"], Field(description="what is mixed")] = "parameters"
    order: Annotated[
        Literal["paper", "code"], Field(description="of a mini-batch's steps: all at once, or w's before the others")
    ] = "paper"

    def check(self, problem: Problem, local: Local) -> None:
        if local.persist_optimiser:
            raise ValueError(
                "APFL trains two models and starts both optimisers anew: set local.persist_optimiser = false."
            )

    def enlist(self, problem: Problem, clients: Tensor, round: Round) -> Memory:
        own = super().enlist(problem, clients, round)
        return own.replace(alpha=torch.full_like(own.v[:, 0], self.alpha))

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> tuple[Upload, Memory]:
        d, lr = cohort.layout.parameters, cohort.lrs(round)
        w, v, alpha = message.w.clone(), memory.v.clone(), memory.alpha.clone()
        step_w, step_v = cohort.optimiser(w), cohort.optimiser(v)
        for number, batch in enumerate(cohort.batches(round)):
            k = len(batch)
            gap = v[:k, :d] - w[:k, :d]
            G_w = cohort.grad(w, batch)
            if self.order == "code":
                step_w.step(w, G_w, lr)
            along, G_v = self._at_the_mixture(cohort, v, w, alpha, batch)
            if self.order == "paper":
                step_w.step(w, G_w, lr)
            step_v.step(v, G_v, lr)
            if self.adaptive and number == 0:
                if self.order == "code":
                    gap = v[:k, :d] - w[:k, :d]
                slope = (gap * along).sum(1) + self.alpha_decay * alpha[:k]
                alpha[:k] = (alpha[:k] - lr[:k, 0].to(alpha) * slope).clamp(0, 1)
        return State(w=w), State(v=v, alpha=alpha)

    def _at_the_mixture(
        self, cohort: Cohort, v: Tensor, w: Tensor, alpha: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """(k, d) twice: the gradient at the mixture, along which alpha's slope is taken, and that of v."""
        k, d = len(batch), cohort.layout.parameters
        own = alpha[:k, None]
        if self.mix == "outputs":
            G_v, G_w = cohort.mixed_grad(v, w, alpha, batch)
            return own * G_v + (1 - own) * G_w, G_v
        mixed = self._mixed(v[:k], w[:k], alpha[:k], d)
        G = cohort.grad(mixed, batch)
        v[:k, d:] = mixed[:, d:]
        return G, own * G

    @staticmethod
    def _mixed(v: Tensor, w: Tensor, alpha: Tensor, d: int) -> Tensor:
        """alpha v + (1 - alpha) w; the mixture's BatchNorm statistics are those that v carries."""
        own = alpha[:, None]
        return torch.cat([own * v[:, :d] + (1 - own) * w[:, :d], v[:, d:]], dim=1)

    def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
        personal: Model
        if self.mix == "outputs":
            personal = Predictor("mixed_outputs", State(v=memory.v, w=message.w, alpha=memory.alpha))
        else:
            personal = self._mixed(memory.v, message.w, memory.alpha, cohort.layout.parameters)
        return {"personal": personal, "global": message.w}

    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        return server.replace(w=upload.w.mean(0))
