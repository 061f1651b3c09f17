"""SGD and Adam over rows: one elementwise expression for all clients, with torch.optim's formulas.

Clients that have run out of batches stand still: a step touches the first k rows only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from ..base.state import State
from ..base.weights import Layout
from ..gpu import launching, layer_kernels
from ..gpu.cuda_graphs import aligned


class Local(BaseModel):
    """How a client trains in a round."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: Annotated[int, Field(ge=1, description="passes over the client's data in a round")] = 10
    batch_size: Annotated[int, Field(ge=1)] = 100
    steps: Annotated[int, Field(ge=0, description="mini-batches in a round, in place of whole passes; 0: epochs")] = 0
    optimiser: Literal["adam", "sgd"] = "adam"
    lr: Annotated[float, Field(gt=0, description="learning rate")] = 1e-3
    momentum: Annotated[float, Field(ge=0, lt=1, description="for sgd")] = 0.0
    nesterov: bool = False
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    betas: Annotated[tuple[float, float], Field(description="for adam")] = (0.9, 0.999)
    eps: Annotated[float, Field(gt=0, description="for adam")] = 1e-8
    clip: Annotated[float, Field(ge=0, description="largest norm of a client's gradient; 0 is no limit")] = 0.0
    schedule: Literal["constant", "step", "cosine"] = "constant"
    schedule_every: Annotated[int, Field(ge=1, description="rounds between steps of the step schedule")] = 30
    schedule_factor: Annotated[float, Field(gt=0, le=1)] = 0.1
    class_weights: Annotated[
        Literal["none", "balanced"] | list[float],
        Field(description="'balanced' by each client's own labels, or a weight a class"),
    ] = "none"
    persist_optimiser: Annotated[bool, Field(description="keep the optimiser's state between rounds")] = False

    @property
    def words(self) -> str:
        """The optimiser and its rate: `Adam 0.001`, `SGD 0.05 with momentum 0.9`."""
        momentum = f" with momentum {self.momentum:g}" if self.optimiser == "sgd" and self.momentum else ""
        return f"{'Adam' if self.optimiser == 'adam' else 'SGD'} {self.lr:g}{momentum}"

    def lr_at(self, round: int, rounds: int) -> float:
        """The learning rate of a round (from 1) of `rounds`; later ones (newcomers) have the last round's."""
        return self.lr * self.factor_at(round, rounds)

    def factor_at(self, round: int, rounds: int) -> float:
        """What the schedule makes of any learning rate in a round."""
        at = min(max(round, 1), max(rounds, 1)) - 1
        if self.schedule == "step":
            return self.schedule_factor ** (at // self.schedule_every)
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * at / max(rounds, 1)))
        return 1.0


Extra = Callable[[Tensor, int], Tensor]
"""f(w, k): what is added to the gradient of the first k rows; w (k, d) are their parameters."""


@dataclass(frozen=True, repr=False)
class Proximal:
    """The term ||w - anchor||^2 / (2 beta), for clients with anchors (m, ·) and beta (m, 1) of their own.

    exact: each step of the optimiser, of whatever kind and by the loss alone, is followed by the term's own,
    w <- argmin ||x - w||^2 / (2 rate) + ||x - anchor||^2 / (2 beta) = w + a / (1 + a) (anchor - w), a = rate / beta,
    which cannot overshoot. Otherwise the term's gradient is added to the loss's: an `extra` like any other, but one
    that Adam can add while it has the weights in hand.
    """

    anchor: Tensor
    beta: Tensor
    exact: bool = True

    def __call__(self, w: Tensor, k: int) -> Tensor:
        """The gradient, where it is asked for."""
        return (w - self.anchor[:k, : w.shape[1]]) / self.beta[:k]

    def share(self, lr: float | Tensor) -> Tensor:
        """(m, 1) a / (1 + a); lr is one rate or (m, 1)."""
        # Not lr / (...): with a number above, torch takes the reciprocal first, with a column it divides.
        return ((self.beta.double() + lr).reciprocal() * lr).to(self.beta.dtype)


class Optimiser:
    """The state of one optimiser for all rows of W, and its step.

    `state` has the client first: momentum, or Adam's two moments and each client's own number of steps.
    """

    def __init__(self, local: Local, W: Tensor, parameters: int, state: State | None = None) -> None:
        self.local, self.d = local, parameters
        self.state = state if state else self.fresh(local, W, parameters)
        self._share: tuple[Proximal, float | Tensor, Tensor] | None = None

    @staticmethod
    def fresh(local: Local, W: Tensor, parameters: int) -> State:
        m = len(W)
        if local.optimiser == "adam":
            # Counted in float64: 1 - 0.999 ** t loses four digits in float32 at t = 1.
            steps = torch.zeros(m, 1, dtype=torch.float64, device=W.device)
            return State(steps=steps, first=aligned(W, m, parameters), second=aligned(W, m, parameters))
        return State(momentum=aligned(W, m, parameters)) if local.momentum else State()

    def step(self, W: Tensor, G: Tensor, lr: float | Tensor, extra: Extra | None = None) -> None:
        """Moves the first k = len(G) rows of W along their gradients G (k, d), which may be overwritten.

        lr: one rate, or (m, 1) in float64, a rate for each row of W; equal rates give equal bits either way.
        extra(w, k) is added to the gradients first, unless it is an exact `Proximal`, whose step comes last.
        """
        k, local = len(G), self.local
        near = extra if isinstance(extra, Proximal) else None
        share = self.share(near, lr) if near is not None and near.exact else None
        lr = lr[:k] if isinstance(lr, Tensor) else lr
        w = W[:k, : self.d]
        fused = local.optimiser == "adam" and not local.clip and w.dtype == torch.float32 and launching.usable(w)
        if extra is not None and share is None and not (fused and near is not None):
            G.add_(extra(w, k))
        if local.clip:
            norm = torch.linalg.vector_norm(G, dim=1, keepdim=True)
            G.mul_((local.clip / (norm + 1e-6)).clamp(max=1.0))
        if local.weight_decay and not fused:
            G.add_(w, alpha=local.weight_decay)
        if local.optimiser == "adam":
            beta1, beta2 = local.betas
            steps, first, second = self.state.steps[:k], self.state.first[:k], self.state.second[:k]
            steps += 1
            if not fused and w.device.type == "cpu" and w.dtype == torch.float32 and self.d >= LONG:
                _adam(w, G, first, second, steps, lr, local)
            else:
                # Not lr / (...): see `Proximal.share`.
                size = ((1 - _power(beta1, steps)).reciprocal() * lr).to(W.dtype)
                root = (1 - _power(beta2, steps)).sqrt().to(W.dtype)
                if fused:
                    numbers = local.betas, local.eps, local.weight_decay
                    layer_kernels.adam(w, G, first, second, size, root, *numbers, near, share)
                    return
                first.lerp_(G, 1 - beta1)
                second.mul_(beta2).addcmul_(G, G, value=1 - beta2)
                # G is done with and takes the denominator, so that a step needs no further memory of W's size.
                w.addcdiv_(first, torch.sqrt(second, out=G).div_(root).add_(local.eps).div_(size), value=-1.0)
        elif local.momentum:
            velocity = self.state.momentum[:k]
            velocity.mul_(local.momentum).add_(G)
            _descend(w, G.add_(velocity, alpha=local.momentum) if local.nesterov else velocity, lr)
        else:
            _descend(w, G, lr)
        if near is not None and share is not None:
            w.lerp_(near.anchor[:k, : self.d], share[:k])

    def share(self, near: Proximal, lr: float | Tensor) -> Tensor:
        """`near.share(lr)`, worked out once for all steps with these two: five calls that a GPU would wait for."""
        if self._share is None or self._share[0] is not near or self._share[1] is not lr:
            self._share = near, lr, near.share(lr)
        return self._share[2]


@dataclass(frozen=True, repr=False)
class Whole:
    """An optimiser, the rows that it moves, all of their parameters, and what is added to their gradients."""

    optimiser: Optimiser
    W: Tensor
    extra: Extra | None

    def step(self, G: Tensor, lr: float | Tensor) -> None:
        self.optimiser.step(self.W, G, lr, self.extra)

    def close(self) -> State:
        """The optimiser's state."""
        return self.optimiser.state


class SomeColumns:
    """The optimiser of some columns of rows W (m, D), as if a model had no other parameters: these keep their bits,
    their momentum and their moments, and count in no norm; buffers move as `Layout.moving` says.

    `kept`: the state of an optimiser of all parameters, to go on from; `close` leaves there what it came to. Adam has
    but one number of steps for a client, whichever columns they moved.
    """

    def __init__(
        self, local: Local, W: Tensor, layout: Layout, columns: Tensor, kept: State | None, extra: Extra | None
    ) -> None:
        found = layout.moving(columns)
        moving, still = (each.to(W.device) if isinstance(each, Tensor) else each for each in found)
        self.W, self.moving, self.still, self.kept = W, moving, still, kept or State()
        self.rows = W[:, moving]
        """(m, c) what moves: a view of W where it lies side by side, else a copy."""
        self.before = W[:, still].clone()
        own = {name: t if name == "steps" else t[:, moving] for name, t in self.kept.items()}
        self.optimiser = Optimiser(local, self.rows, self.rows.shape[1], State(**own))
        self.extra = extra
        if isinstance(extra, Proximal):
            self.extra = replace(extra, anchor=extra.anchor[:, moving])
        elif extra is not None:
            self.extra = lambda w, k: extra(W[:k, : layout.parameters], k)[:, moving]

    def step(self, G: Tensor, lr: float | Tensor) -> None:
        """`Optimiser.step` of these columns, by gradients G (k, d) of all parameters."""
        k = len(G)
        if self.before.shape[1]:
            self.W[:k, self.still] = self.before[:k]
        self.optimiser.step(self.rows, G[:, self.moving], lr, self.extra)
        if isinstance(self.moving, Tensor):
            self.W[:k, self.moving] = self.rows[:k]

    def close(self) -> State:
        """The state of all parameters, if one was given."""
        if isinstance(self.moving, Tensor):
            for name, t in self.kept.items():
                if name != "steps":
                    t[:, self.moving] = getattr(self.optimiser.state, name)
        return self.kept


LONG = 1 << 16
"""Weights of a client that are worth a call of torch's own Adam, on a CPU: it goes through memory once."""


def _adam(w: Tensor, G: Tensor, first: Tensor, second: Tensor, steps: Tensor, lr: float | Tensor, local: Local) -> None:
    """As torch.optim.Adam(fused=True), each row of w (k, d) as a tensor of its own."""
    rates = lr[:, 0].tolist() if isinstance(lr, Tensor) else [lr]
    for i, rate in enumerate(rates):
        chosen = slice(None) if len(rates) == 1 else slice(i, i + 1)
        torch._fused_adam_(
            w[chosen].unbind(),
            G[chosen].unbind(),
            first[chosen].unbind(),
            second[chosen].unbind(),
            [],
            steps[chosen, 0].float().unbind(),
            lr=rate,
            beta1=local.betas[0],
            beta2=local.betas[1],
            weight_decay=0.0,  # it is in G
            eps=local.eps,
            amsgrad=False,
            maximize=False,
        )


def _power(beta: float, steps: Tensor) -> Tensor:
    """beta ** steps, in float64. Looked up: torch's own rounds by a number's place in memory (a whole vector is not
    computed as what is left of one), and results would depend on how many clients are stacked."""
    powers = _powers(beta, steps.device)
    return beta**steps if powers is None else powers[steps.long().clamp_(max=len(powers) - 1)]


@lru_cache(maxsize=16)
def _powers(beta: float, device: torch.device) -> Tensor | None:
    """(n,) beta ** 0, 1, 2, … until one less that power is one; None where these are too many (beta next to one)."""
    count = math.ceil(54 * math.log(0.5) / math.log(beta)) + 1 if 0 < beta < 1 else 2
    if beta >= 1 or count > 1 << 20:
        return None
    return torch.tensor([beta**t for t in range(count)], dtype=torch.float64, device=device)


def _descend(w: Tensor, direction: Tensor, lr: float | Tensor) -> None:
    """w - lr direction, in place. `addcmul_` rounds once, as `add_` does; a product by itself would round twice."""
    if isinstance(lr, Tensor):
        w.addcmul_(direction, lr.to(w.dtype), value=-1.0)
    else:
        w.add_(direction, alpha=-lr)
