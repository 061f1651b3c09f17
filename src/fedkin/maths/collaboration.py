"""Who helps whom: xi from the clients' weights, and the cloud models xi @ W.

Everything reads W (m, d) in blocks of columns and sums in float64, so W may be larger than what else fits in memory, or
lie in a file (mapped_rows.py), and models that almost agree keep their distances (trap T14). Large matrices on a GPU go
through kernels that are exact enough (pairs_of_rows.py), or are looked at in float64 all the same. TF32 is never used
here (trap T26).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from ..gpu import launching, pairs_of_rows
from .attention import Attention

LARGE = 1 << 26
"""Numbers of W from which on a GPU has kernels of its own for all this: its float64 products would take longer."""

MANY = 1 << 14
"""Clients up to which they are used: the square of their number is counted in 32 bits."""

BLOCK = 1 << 19
"""Numbers of W that are worked on at a time on a CPU: in float64 they stay in its cache (measured: 2^18 to 2^20)."""

GPU_BLOCK = 1 << 25
"""The same on a GPU, where few launches matter; in float64 a quarter of a GiB."""

GROUP = 64
"""Rows of a Gram matrix that are made at a time, up to the diagonal only: the other half is their mirror."""

BLURRED = 1e-3
"""Pairs whose squared distance is below this, relative to their squared distances from the mean, are looked at in
float64: a GPU's kernels are exact to 1e-7 of the latter."""

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


def _by_kernel(W: Tensor) -> bool:
    fits = W.numel() >= LARGE and len(W) <= MANY and W.stride(1) == 1
    return fits and W.dtype == torch.float32 and launching.roomy(W)


# ---- W in blocks of columns ----


def _width(W: Tensor, rows: int) -> int:
    """Columns of a block of so many rows; the more rows, the fewer."""
    return max(1, (GPU_BLOCK if W.is_cuda else BLOCK) // max(1, rows))


def _spans(total: int, width: int) -> Iterator[slice]:
    return (slice(at, min(at + width, total)) for at in range(0, total, width))


def _blocks(
    W: Tensor, columns: Tensor | None, rows: Tensor | None, origin: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks (m, width) of the chosen columns and rows of W, less the origin's part; views where they can be.

    With each comes room for it in float64 with a row to spare: (m + 1, width), the same memory every time.
    """
    m = len(W) if rows is None else len(rows)
    chosen = None if columns is None else columns.to(W.device)
    total = W.shape[1] if chosen is None else len(chosen)
    width = min(_width(W, m), total)
    room = W.new_empty((m + 1) * width, dtype=torch.float64)
    for span in _spans(total, width):
        where = span if chosen is None else chosen[span]
        block = W[:, where] if rows is None else W[rows if chosen is None else rows[:, None], where]
        if origin is not None:
            block = block - origin[where].double()
        yield block, room[: (m + 1) * block.shape[1]].view(m + 1, -1)


def _centre(block: Tensor, room: Tensor) -> None:
    """Writes the rows less their mean into `room`, in float64, and the mean as its last row."""
    rows, mean = room[:-1], room[-1]
    if block.is_cuda:  # every pass over memory counts
        torch.sub(block, torch.mean(block, 0, dtype=torch.float64, out=mean), out=rows)
    else:  # the block stays in the cache, and what counts is that no pass mixes types
        rows.copy_(block)
        rows -= torch.mean(rows, 0, out=mean)


def _add_products(gram: Tensor, rows: Tensor) -> None:
    """Adds rows @ rows.T to the lower half of `gram`; what lies above the diagonal is not all written."""
    for at in range(0, len(rows), GROUP):
        upto = at + GROUP
        gram[at:upto, :upto].addmm_(rows[at:upto], rows[:upto].T)


def _mirrored(gram: Tensor) -> Tensor:
    return gram.tril() + gram.tril(-1).T


# ---- distances ----


def squared_distances(W: Tensor, columns: Tensor | None = None, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(m, m) squared distances between rows of W, or between some of them, and (m,) their squared norms, in float64.

    From the Gram matrix of rows centred on their mean: uncentred, models that almost agree would lose all digits.
    """
    if columns is None and rows is None and _by_kernel(W):
        gram, norms = pairs_of_rows.gram(W)
        distances = _distances_of(gram)
        if _sharp(distances, gram):
            return distances, norms
    m = len(W) if rows is None else len(rows)
    gram = torch.zeros(m + 1, m + 1, dtype=torch.float64, device=W.device)
    for block, room in _blocks(W, columns, rows):
        _centre(block, room)
        _add_products(gram, room)
    gram = _mirrored(gram)
    # The mean c is the last row: ||w||^2 = ||w - c||^2 + 2 (w - c) c + ||c||^2 costs no further look at W.
    norms = gram.diagonal()[:m] + 2 * gram[m, :m] + gram[m, m]
    return _distances_of(gram[:m, :m]), norms.clamp_(min=0)


def cosine_distances(
    W: Tensor, columns: Tensor | None = None, origin: Tensor | None = None, rows: Tensor | None = None
) -> Tensor:
    """(m, m) 1 - cos(w_i, w_j) in float64, as half the squared distance of the rows scaled to length one.

    With `origin` (d,) of w_i - origin instead. A row of zeros has no direction: its distance to others is one half.
    """
    if columns is None and rows is None and origin is None and _by_kernel(W):
        # In float32: lengths that are off by e change 1 - cos by e of it, and by the square of e.
        lengths = torch.linalg.vector_norm(W, dim=1)
        with full_precision():
            gram, _ = pairs_of_rows.gram(W, torch.where(lengths > 0, 1 / lengths, 0.0))
        distances = _distances_of(gram)
        if _sharp(distances, gram):
            return distances / 2
    m = len(W) if rows is None else len(rows)
    squares = torch.zeros(m, dtype=torch.float64, device=W.device)
    for block, _ in _blocks(W, columns, rows, origin):
        squares += torch.linalg.vector_norm(block, dim=1, dtype=torch.float64).square_()
    scale = torch.where(squares > 0, squares.rsqrt(), 0.0)[:, None]
    gram = torch.zeros(m, m, dtype=torch.float64, device=W.device)
    for block, room in _blocks(W, columns, rows, origin):
        unit = torch.mul(block, scale, out=room[:m])
        unit -= torch.mean(unit, 0, out=room[m])
        _add_products(gram, unit)
    return _distances_of(_mirrored(gram)) / 2


def _sharp(distances: Tensor, gram: Tensor) -> bool:
    """Whether distances that came from a Gram matrix in single precision are much larger than its errors."""
    squares = gram.diagonal()
    return bool((2 * distances >= BLURRED * (squares[:, None] + squares[None, :])).fill_diagonal_(True).all())


def _distances_of(gram: Tensor) -> Tensor:
    squares = gram.diagonal()
    return (squares[:, None] + squares[None, :] - 2 * gram).clamp_(min=0).fill_diagonal_(0)


# ---- from distances to weights ----


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


def only_nearest(logits: Tensor, top: int) -> Tensor:
    """(m, m) logits of the `top` others that are nearest to each client, -inf elsewhere; with `top` 0 of all.

    Of others that are equally near, the first are taken.
    """
    if not 0 < top < len(logits) - 1:
        return logits
    others = logits.clone().fill_diagonal_(-torch.inf)
    nearest = others.argsort(dim=1, descending=True, stable=True)[:, :top]
    return torch.full_like(logits, -torch.inf).scatter_(1, nearest, others.gather(1, nearest))


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


# ---- cloud models ----


def mix(xi: Tensor, W: Tensor, out: Tensor | None = None) -> Tensor:
    """The cloud models U = xi @ W (m, D), in blocks of columns; `out` may be W itself.

    With xi the identity this is W, bit for bit. Unless attention is sparse it must not see a row that is not finite:
    0 x NaN is NaN (trap T25).
    """
    weights = xi.to(W.dtype)
    result = W.new_empty(len(xi), W.shape[1]) if out is None else out
    width = _width(W, len(W))
    in_place = result.untyped_storage().data_ptr() == W.untyped_storage().data_ptr()
    with full_precision():
        if _sparse(weights):
            _mix_few(weights, W, result, width)
        elif _by_kernel(W) and result.stride(1) == 1 and (len(xi) <= 128 or not in_place):
            pairs_of_rows.mix(xi, W, result)
        else:
            _mix_all(weights, W, result, width, in_place)
    return result


def _mix_all(weights: Tensor, W: Tensor, result: Tensor, width: int, in_place: bool) -> None:
    room = W.new_empty(len(weights) * min(width, W.shape[1])) if in_place else None
    for span in _spans(W.shape[1], width):
        target = result[:, span]
        if room is None:
            torch.matmul(weights, W[:, span], out=target)
        else:
            target.copy_(torch.matmul(weights, W[:, span], out=room[: target.numel()].view(target.shape)))


def _sparse(weights: Tensor) -> bool:
    """Whether it pays to skip zeros: measured, up to one weight in eight of many clients."""
    return weights.shape[1] >= GROUP and 8 * int(weights.count_nonzero()) <= weights.numel()


def _mix_few(weights: Tensor, W: Tensor, result: Tensor, width: int) -> None:
    """Weighted sums of the few rows that each cloud model is made of: m k D products in place of m m D."""
    i, j = weights.nonzero(as_tuple=True)
    bags = torch.searchsorted(i, torch.arange(len(weights), device=i.device))
    used, places = torch.unique(j, return_inverse=True)
    room = W.new_empty(len(used) * min(width, W.shape[1]))
    for span in _spans(W.shape[1], width):
        block = W[:, span]
        rows = torch.index_select(block, 0, used, out=room[: len(used) * block.shape[1]].view(len(used), -1))
        result[:, span] = F.embedding_bag(places, rows, bags, mode="sum", per_sample_weights=weights[i, j])


# ---- attention before normalising ----


def gaussian_logits(distances: Tensor, norms: Tensor, sigma: float | None) -> Tensor:
    """(m, m) -||w_i - w_j||^2 / (2 sigma): FedAMP's attention before normalising (preprint, equation 9).

    Without sigma it is 0.05 times the median squared distance, less where groups are clear. Models that agree attend
    to each other uniformly.
    """
    if sigma is None:
        median = median_of_pairs(distances)
        if median <= SAME * float(norms.mean()):
            return torch.zeros_like(distances)
        sigma = 0.05 * median * narrowed(distances, median)
    return -distances / (2 * sigma)


def cosine_logits(distances: Tensor, sigma: float | None) -> Tensor:
    """(m, m) sigma cos(w_i, w_j), less the constant sigma: HeurFedAMP's attention before normalising.

    Without sigma it is 10 over the median of 1 - cos, more where groups are clear. Models that agree attend to each
    other uniformly.
    """
    if sigma is None:
        median = median_of_pairs(distances)
        if median <= SAME:
            return torch.zeros_like(distances)
        sigma = 10 / (median * narrowed(distances, median))
    return -sigma * distances


CLEAR, NARROWEST = 0.01, 0.3
"""Of the median distance: how near kin are where groups are clear; and how narrow attention then becomes."""


def narrowed(distances: Tensor, median: float) -> float:
    """1; where the distance to those that a client attends to (the median of clients) is below CLEAR, less.

    Without it, long runs merge groups: some grow away from the others, the median with them, and what is left leaks
    into each other, little by little.
    """
    kin = (softmax_of_others(-10 * distances / median) * distances).sum(1).median()
    return min(1.0, max(NARROWEST, float(kin) / (CLEAR * median)))
