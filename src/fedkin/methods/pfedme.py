"""pFedMe (Dinh et al., 2020): personal models on a leash, and a global one that follows them."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from ..training.optimisers import Optimiser
from ._method import Cohort, Local, Memory, Message, Model, Problem, Round, Server, State, Tensor, Upload
from ._shared import Form, GlobalModel, check_proximal, held_near, weighted_mean


class PFedMe(GlobalModel):
    """Each client trains a personal model on a leash to its copy of the global one, and the copy follows.

    theta_i minimises f_i(theta) + (lambda / 2) ||theta - w_i||^2 by a few steps a mini-batch; w_i goes towards it.

    Who is not sampled does not train, and keeps its theta_i: in the paper all clients train in every round, and those
    sampled are averaged.

    Models: `personal` theta_i and `global` w. Steps are plain SGD with the rates given here: the local optimiser and
    its learning rate are not used. BatchNorm's statistics are those of theta's passes, also in the w_i that is sent.
    """

    headline = "personal"
    remembers = "personal"
    rate = ("settings.personal_lr",)  # eta has its limit in the leash: eta lambda < 1
    training = frozenset({"strength", "inner_steps", "iterations", "eta", "personal_lr", "decay", "proximal"})

    # strength, eta and personal_lr by benchmarks/baseline_rates.py, on validation data: w_i has to go most of its way,
    # so eta is near 1 / strength. The paper's 15, 0.005 and 0.05 are `--native`.
    strength: Annotated[float, Field(gt=0, description="lambda: how short the leash is")] = 2.0
    inner_steps: Annotated[int, Field(ge=1, description="K: theta's steps on a mini-batch")] = 5
    iterations: Annotated[
        int, Field(ge=0, description="R: mini-batches a round; 0: as many as local training has gradients for")
    ] = 0
    eta: Annotated[float, Field(gt=0, description="rate of w_i, which goes the share eta lambda of its way")] = 0.45
    personal_lr: Annotated[float, Field(gt=0, description="rate of theta")] = 0.1
    proximal: Form = "exact"
    beta: Annotated[float, Field(gt=0, description="how far the server follows the clients' mean; may exceed 1")] = 1.0
    decay: Annotated[float, Field(ge=0, description="of theta: not in the paper, 0.001 in its authors' code")] = 0.0
    weighted: Annotated[bool, Field(description="the mean by samples, as in the authors' code")] = False

    def check(self, problem: Problem, local: Local) -> None:
        if self.eta * self.strength >= 1:
            raise ValueError(
                f"pFedMe needs eta * strength < 1, or w_i overshoots theta_i: {self.eta:g} * {self.strength:g} is "
                f"{self.eta * self.strength:g}. Take a smaller settings.eta or settings.strength."
            )
        check_proximal(self.proximal, self._of_theta, 1, lambda k: 1 / self.strength, "1 / strength")

    @property
    def _of_theta(self) -> Local:
        return Local(optimiser="sgd", lr=self.personal_lr, weight_decay=self.decay)

    def trained_with(self, local: Local) -> str:
        return f"SGD {self.personal_lr:g}"

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> tuple[Upload, Memory]:
        d = cohort.layout.parameters
        # Two tensors: in the authors' code theta is an alias that w_i overwrites before it is scored (trap T9).
        w, theta = message.w.clone(), message.w.clone()
        steps, near = Optimiser(self._of_theta, theta, d), held_near(w, self.strength, self.proximal)
        batches = [self.iterations or max(1, budget // self.inner_steps) for budget in cohort.step_counts()]
        for batch in cohort.batches(round, steps=batches):
            k = len(batch)
            for _ in range(self.inner_steps):
                steps.step(theta, cohort.grad(theta, batch), self.personal_lr, near)
            w[:k, :d] -= self.eta * self.strength * (w[:k, :d] - theta[:k, :d])
        w[:, d:] = theta[:, d:]
        return State(W=w), State(personal=theta)

    def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
        return {"personal": memory.personal, "global": message.w}

    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        n = problem.samples[clients] if self.weighted else torch.ones_like(clients)
        w, d = weighted_mean(n, upload.W), problem.layout.parameters
        w[:d].sub_(server.w[:d]).mul_(self.beta).add_(server.w[:d])  # buffers are averaged, whatever beta
        return server.replace(w=w)
