"""FedAMP's theory mode, Algorithm 1 of the paper: one step alpha for all, and beta = alpha / lambda."""

from __future__ import annotations

from ..maths.attention import Attention
from ..maths.collaboration import theory_weights
from ._method import Tensor
from ._shared import Auto


def step(alpha: Auto | float, strength: float, rounds: int) -> float:
    """alpha: as given, or the theorems' lambda / sqrt(K)."""
    return strength / rounds**0.5 if alpha == "auto" else alpha


def xi(distances: Tensor, attention: Attention, alpha: Auto | float, strength: float, rounds: int) -> Tensor:
    """(m, m) equation (5): U = xi @ W is a step alpha down the gradient of the sum of all A(||w_i - w_j||^2 / 2)."""
    return theory_weights(distances, attention, step(alpha, strength, rounds))


def beta(alpha: Auto | float, strength: float, rounds: int) -> float:
    """beta = alpha / lambda."""
    return step(alpha, strength, rounds) / strength


def check(mode: str, attention: str, sigma: Auto | float, top: int) -> None:
    """Raises ValueError where settings of practice mode are asked of theory mode, or the reverse."""
    if sigma == "auto" and (mode == "theory" or attention == "tamed_square_root"):
        raise ValueError("An automatic sigma is for practice mode with negative_exponential; give sigma a number.")
    if top and mode == "theory":
        raise ValueError("Attention to the top nearest only is for practice mode; theory mode steps along them all.")
