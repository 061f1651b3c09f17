"""Who helps whom: xi from the clients' weights, and the cloud models xi @ W.

Everything reads W (m, d) in blocks of columns and sums in float64, so W may be larger than what else fits in memory,
and models that almost agree keep their distances (trap T14). TF32 is never used here (trap T26).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .attention import Attention

BLOCK = 1 << 21
"""Numbers of W that are worked on at a time."""

SAME = 1e-10
"""A median below this (relative to the squared norm) means that the models agree: rounding, not distance (trap T27)."""


@contextmanager
def full_precision() -> Iterator[None]:
    """TF32 and bfloat16 off, by torch's newer switches: the older ones raise an error where a caller set the newer."""
    switches = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "ieee"
    try:
        yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision


def _blocks(W: Tensor, columns: Tensor | None) -> Iterator[Tensor]:
    """W's columns (or the chosen ones) as float64 blocks (m, width)."""
    width = max(1, BLOCK // max(1, len(W)))
    total = W.shape[1] if columns is None else len(columns)
    for at in range(0, total, width):
        stop = min(at + width, total)
        block = W[:, at:stop] if columns is None else W[:, columns[at:stop].to(W.device)]
        yield block.double()


def squared_distances(W: Tensor, columns: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(m, m) squared distances between rows and (m,) their squared norms, in float64.

    From the Gram matrix of rows centred on their mean: uncentred, models that almost agree would lose all digits.
    """
    m = len(W)
    gram = torch.zeros(m, m, dtype=torch.float64, device=W.device)
    norms = torch.zeros(m, dtype=torch.float64, device=W.device)
    for block in _blocks(W, columns):
        norms += block.square().sum(1)
        centred = block - block.mean(0)
        gram += centred @ centred.T
    return _distances_of(gram), norms


def cosine_distances(W: Tensor, columns: Tensor | None = None, origin: Tensor | None = None) -> Tensor:
    """(m, m) 1 - cos(w_i, w_j) in float64, as half the squared distance of the rows scaled to length one.

    With `origin` (d,) of w_i - origin instead. A row of zeros has no direction: its distance to others is one half.
    """
    m = len(W)
    squares = torch.zeros(m, dtype=torch.float64, device=W.device)
    for block in _moved(W, columns, origin):
        squares += block.square().sum(1)
    scale = torch.where(squares > 0, squares.rsqrt(), 0.0)[:, None]
    gram = torch.zeros(m, m, dtype=torch.float64, device=W.device)
    for block in _moved(W, columns, origin):
        unit = block * scale
        unit = unit - unit.mean(0)
        gram += unit @ unit.T
    return _distances_of(gram) / 2


def _moved(W: Tensor, columns: Tensor | None, origin: Tensor | None) -> Iterator[Tensor]:
    if origin is None:
        yield from _blocks(W, columns)
    else:
        for block, centre in zip(_blocks(W, columns), _blocks_like(origin, len(W), columns), strict=True):
            yield block - centre


def _blocks_like(row: Tensor, m: int, columns: Tensor | None) -> Iterator[Tensor]:
    """Blocks of one row, as wide as those of an (m, d) matrix."""
    return _blocks(row.expand(m, -1), columns)


def _distances_of(gram: Tensor) -> Tensor:
    squares = gram.diagonal()
    distances = squares[:, None] + squares[None, :] - 2 * gram
    return ((distances + distances.T) / 2).clamp_(min=0).fill_diagonal_(0)


def median_of_pairs(distances: Tensor) -> float:
    """The median over pairs i < j; 0 with fewer than two clients."""
    m = len(distances)
    if m < 2:
        return 0.0
    i, j = torch.triu_indices(m, m, 1, device=distances.device)
    return float(distances[i, j].quantile(0.5)) if m * (m - 1) // 2 < 1 << 24 else float(distances[i, j].median())


def softmax_of_others(logits: Tensor) -> Tensor:
    """(m, m) weights of the others: rows sum to one, zeros on the diagonal. A row of -inf stays zero."""
    logits = logits.clone().fill_diagonal_(-torch.inf)
    top = logits.amax(1, keepdim=True)
    weights = (logits - torch.where(top.isfinite(), top, 0.0)).exp()
    total = weights.sum(1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)


def automatic_weight_on_others(others: Tensor) -> Tensor:
    """(m,) tau_i = 1 - 1 / (1 + n_i), n_i = exp(entropy of row i): the effective number of kin.

    Where attention finds N similar clients this is 1 - 1 / (N + 1), the papers' rule, without knowing N.
    """
    kin = torch.special.entr(others).sum(1).exp()
    return torch.where(others.sum(1) > 0, 1 - 1 / (1 + kin), 0.0)


def with_self(others: Tensor, tau: Tensor | float) -> Tensor:
    """xi in practice mode (preprint, equation 11): tau_i on the others, 1 - tau_i on oneself.

    A client that attends to nobody keeps its own model.
    """
    tau = torch.as_tensor(tau, dtype=others.dtype, device=others.device).expand(len(others))
    tau = torch.where(others.sum(1) > 0, tau, 0.0)
    return others * tau[:, None] + torch.diag(1 - tau)


def theory_weights(distances: Tensor, attention: Attention, alpha: float, c: float = 0.5) -> Tensor:
    """xi in theory mode (Algorithm 1, equation 5): xi_ij = 2 c alpha A'(c ||w_i - w_j||^2), rows sum to one.

    The diagonal may be negative if alpha is large; the convergence theorems do not mind.
    """
    xi = 2 * c * alpha * attention.slope(c * distances)
    xi.fill_diagonal_(0)
    return xi + torch.diag(1 - xi.sum(1))


def objective(W: Tensor, attention: Attention, c: float = 0.5) -> Tensor:
    """The sum over pairs i < j of A(c ||w_i - w_j||^2): what equation (1) multiplies by lambda."""
    distances, _ = squared_distances(W)
    i, j = torch.triu_indices(len(W), len(W), 1)
    return attention.value(c * distances[i, j]).sum()


def mix(xi: Tensor, W: Tensor, out: Tensor | None = None) -> Tensor:
    """The cloud models U = xi @ W (m, D), in blocks of columns; `out` may be W itself.

    With xi the identity this is W, bit for bit, so it must not see a row that is not finite: 0 x NaN is NaN (trap T25).
    """
    weights = xi.to(W.dtype)
    result = W.new_empty(len(xi), W.shape[1]) if out is None else out
    width = max(1, BLOCK // max(1, len(W)))
    with full_precision():
        for at in range(0, W.shape[1], width):
            result[:, at : at + width] = weights @ W[:, at : at + width]
    return result


def gaussian_logits(distances: Tensor, norms: Tensor, sigma: float | None) -> Tensor:
    """(m, m) -||w_i - w_j||^2 / (2 sigma): FedAMP's attention before normalising (preprint, equation 9).

    Without sigma it is 0.05 times the median squared distance. Models that agree attend to each other uniformly.
    """
    if sigma is None:
        median = median_of_pairs(distances)
        if median <= SAME * float(norms.mean()):
            return torch.zeros_like(distances)
        sigma = 0.05 * median
    return -distances / (2 * sigma)


def cosine_logits(distances: Tensor, sigma: float | None) -> Tensor:
    """(m, m) sigma cos(w_i, w_j), less the constant sigma: HeurFedAMP's attention before normalising.

    Without sigma it is 10 over the median of 1 - cos. Models that agree attend to each other uniformly.
    """
    if sigma is None:
        median = median_of_pairs(distances)
        if median <= SAME:
            return torch.zeros_like(distances)
        sigma = 10 / median
    return -sigma * distances
