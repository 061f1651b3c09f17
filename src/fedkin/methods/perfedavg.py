"""Per-FedAvg (Fallah et al., 2020): a global model from which one gradient step on a client's data leads far."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from ..training.execution import Batch
from ._method import Cohort, Local, Memory, Message, Model, Problem, Round, Server, State, Tensor, Upload
from ._shared import GlobalModel

STREAMS = ("train", "meta", "curvature")
"""Three independent sequences of mini-batches: D, D' and D'' of the paper."""
GRADIENTS = {"first-order": 2, "difference": 4, "exact": 3}
"""What an iteration costs; a product with the Hessian counts as one."""


class PerFedAvg(GlobalModel):
    """A global model trained for what one gradient step on a client's own data makes of it.

    Clients descend along the gradient of f_i(w - alpha grad f_i(w)); the server takes the mean of their models.

    Models: `adapted`, what a step of size alpha on the client's training data makes of the model received, and that
    model itself, `global`. Steps are plain SGD with rates alpha and beta: the local optimiser and its learning rate
    are not used. alpha and beta are by benchmarks/baseline_rates.py, on validation data: 0.01 and 0.001, as published
    (`--native`), learn next to nothing in the few iterations that an equal number of gradients allows.
    BatchNorm's statistics follow the passes at w, in training and in adaptation; all other passes only try a point.
    """

    headline = "adapted"
    # Both rates at once: alpha alone, at a beta that does not learn, or beta at an alpha that diverges, says nothing.
    rate = ("settings.beta", "settings.alpha")
    training = frozenset({"hessian", "alpha", "beta", "delta", "iterations", "adaptation", "adaptation_steps"})

    hessian: Annotated[
        Literal["first-order", "difference", "exact"],
        Field(description="left out (FO), from a difference of gradients (HF), or exact products with it"),
    ] = "difference"
    alpha: Annotated[float, Field(ge=0, description="rate of a client's adaptation")] = 0.03
    beta: Annotated[float, Field(gt=0, description="rate of the global model's steps")] = 0.1
    delta: Annotated[float, Field(gt=0, description="half the length, in gradients, of HF's difference")] = 1e-3
    iterations: Annotated[int, Field(ge=0, description="a round; 0: as many as local training has gradients for")] = 0
    adaptation: Annotated[
        Literal["full", "batch"], Field(description="adapt on all of a client's training data, or on a mini-batch")
    ] = "full"
    adaptation_steps: Annotated[int, Field(ge=1, description="the paper takes one")] = 1

    def trained_with(self, local: Local) -> str:
        return f"SGD {self.beta:g}, adaptation {self.alpha:g}"

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> tuple[Upload, Memory]:
        d, w = cohort.layout.parameters, message.w.clone()
        cost = GRADIENTS[self.hessian]
        steps = [self.iterations or max(1, budget // cost) for budget in cohort.step_counts()]
        streams = STREAMS[:2] if self.hessian == "first-order" else STREAMS
        for inner, outer, *third in zip(
            *(cohort.batches(round, stream=stream, steps=steps) for stream in streams), strict=True
        ):
            k = len(inner)
            G = cohort.grad(w, inner)
            step = cohort.grad(_moved(w[:k], -self.alpha * G), outer)
            for batch in third:
                step = step - self.alpha * self._curvature(cohort, w[:k], step, batch)
            w[:k, :d] -= self.beta * step
        return State(W=w), State()

    def _curvature(self, cohort: Cohort, w: Tensor, g: Tensor, batch: Batch) -> Tensor:
        """(k, d) the Hessian at w times g."""
        if self.hessian == "exact":
            return cohort.curvature(w, g, batch)
        ahead, behind = (cohort.grad(_moved(w, by * g), batch) for by in (self.delta, -self.delta))
        return (ahead - behind) / (2 * self.delta)

    def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
        return {"adapted": self._adapted(cohort, message.w, round), "global": message.w}

    def _adapted(self, cohort: Cohort, w: Tensor, round: Round) -> Tensor:
        """w - alpha grad f_i(w), of training data alone (trap T8). Where that is not finite, w."""
        d, W = cohort.layout.parameters, w.clone()
        if self.adaptation == "full":
            for _ in range(self.adaptation_steps):
                W[:, :d] -= self.alpha * cohort.full_grad(W, round)
        else:
            for batch in cohort.batches(round, stream="adaptation", steps=self.adaptation_steps):
                W[:, :d] -= self.alpha * cohort.grad(W, batch)
        return torch.where(W.isfinite().all(1, keepdim=True), W, w)

    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        return server.replace(w=upload.W.mean(0))


def _moved(w: Tensor, by: Tensor) -> Tensor:
    """Rows w (k, D) with their parameters moved by (k, d); a copy."""
    w = w.clone()
    w[:, : by.shape[1]] += by
    return w
