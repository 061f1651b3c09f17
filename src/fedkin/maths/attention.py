"""Attention-inducing functions A (Definition 1 of the FedAMP paper) and their derivatives A'.

Each is increasing and concave with A(0) = 0 and a finite A'(0+), and is applied to t = c ||w_i - w_j||^2. MCP and SCAD
are penalties of t itself, not of its root: of the root, A' would be infinite at 0 (trap T11).

The factor c settles a conflict in the papers. With D(x, y) = A(||x - y||^2) the gradient has a factor 2 that equation
(5) drops, and the preprint's kernel has 2 sigma where its A has sigma. Both vanish with c = 1/2, our default; c = 1 is
the literal reading with the factor restored. Either way xi_ij = 2 c alpha A'(t_ij) is an exact gradient step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor


class Attention(ABC):
    """A function A of t >= 0, elementwise."""

    @abstractmethod
    def value(self, t: Tensor) -> Tensor:
        """A(t)."""

    @abstractmethod
    def slope(self, t: Tensor) -> Tensor:
        """A'(t)."""

    def log_slope(self, t: Tensor) -> Tensor:
        """log A'(t), -inf where it is zero; for normalising without underflow."""
        return self.slope(t).log()

    @property
    @abstractmethod
    def lipschitz(self) -> float:
        """max over t of |A'| and |A' + 2 t A''|: the gradient of A(c ||x||^2) is Lipschitz with 2 c times that."""


@dataclass(frozen=True)
class NegativeExponential(Attention):
    """A(t) = 1 - exp(-t / sigma): the papers' choice."""

    sigma: float = 1.0

    def value(self, t: Tensor) -> Tensor:
        return -torch.expm1(-t / self.sigma)

    def slope(self, t: Tensor) -> Tensor:
        return (-t / self.sigma).exp() / self.sigma

    def log_slope(self, t: Tensor) -> Tensor:
        return -t / self.sigma - torch.tensor(self.sigma, dtype=t.dtype).log()

    @property
    def lipschitz(self) -> float:
        return 1 / self.sigma


@dataclass(frozen=True)
class TamedSquareRoot(Attention):
    """t / (2 sigma) up to sigma^2, then sqrt(t) - sigma / 2: Huber's function of the distance, the convex choice."""

    sigma: float = 1.0

    def value(self, t: Tensor) -> Tensor:
        near = t <= self.sigma**2
        return torch.where(near, t / (2 * self.sigma), t.clamp(min=self.sigma**2).sqrt() - self.sigma / 2)

    def slope(self, t: Tensor) -> Tensor:
        return 1 / (2 * t.clamp(min=self.sigma**2).sqrt())

    @property
    def lipschitz(self) -> float:
        return 1 / (2 * self.sigma)


@dataclass(frozen=True)
class MCP(Attention):
    """Minimax concave penalty in t: slope `height` at 0, falling to nothing at gamma * height."""

    height: float = 1.0
    gamma: float = 2.0

    def value(self, t: Tensor) -> Tensor:
        t = t.clamp(max=self.gamma * self.height)
        return self.height * t - t.square() / (2 * self.gamma)

    def slope(self, t: Tensor) -> Tensor:
        return (self.height - t / self.gamma).clamp(min=0)

    @property
    def lipschitz(self) -> float:
        return 2 * self.height


@dataclass(frozen=True)
class SCAD(Attention):
    """Smoothly clipped absolute deviation in t: slope `height` up to t = height, falling to nothing at a * height."""

    height: float = 1.0
    a: float = 3.7

    def value(self, t: Tensor) -> Tensor:
        h, a = self.height, self.a
        t = t.clamp(max=a * h)
        return torch.where(t <= h, h * t, (2 * a * h * t - t.square() - h**2) / (2 * (a - 1)))

    def slope(self, t: Tensor) -> Tensor:
        h, a = self.height, self.a
        return torch.where(t <= h, torch.full_like(t, h), ((a * h - t) / (a - 1)).clamp(min=0))

    @property
    def lipschitz(self) -> float:
        return 2 * self.a * self.height / (self.a - 1)


Kind = Literal["negative_exponential", "tamed_square_root", "mcp", "scad"]
FUNCTIONS: dict[Kind, type[NegativeExponential | TamedSquareRoot | MCP | SCAD]] = {
    "negative_exponential": NegativeExponential,
    "tamed_square_root": TamedSquareRoot,
    "mcp": MCP,
    "scad": SCAD,
}


def named(kind: Kind, settings: Mapping[str, Any]) -> Attention:
    """A function by its name, with those of the settings that it takes."""
    function = FUNCTIONS[kind]
    return function(**{name: settings[name] for name in function.__dataclass_fields__})
