"""Who helps whom, of large matrices on a GPU: products of all pairs of rows, and mixtures of rows.

Matrix units multiply bfloat16. Numbers are taken apart into parts that these hold exactly, and products of the parts
are added up, so that little is lost that float32 would have kept.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .launching import PROCESSORS, cdiv, launch, tile


def gram(W: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(m, m) products of the rows of W (m, d), times scale (m,) and less their mean; and (m,) squares of these rows
    before the mean is taken off; in float64. Errors are of 1e-7 of the squared lengths of the centred rows."""
    from . import triton_kernels

    m, d = W.shape
    bm = tile(m, 128)
    tiles = cdiv(m, bm)
    M = tiles * bm
    per_split = max(PER_SPLIT, cdiv(d * M * M * 4, 1 << 30))
    per_split = cdiv(per_split, 64) * 64
    splits = cdiv(d, per_split)
    out = torch.zeros(splits, M, M, device=W.device) if tiles > 1 else torch.empty(splits, M, M, device=W.device)
    squares = torch.empty(splits, M, device=W.device)
    factor = None if scale is None else scale.to(W.dtype)
    mean = None
    if tiles > 1:
        mean = W.mean(0) if factor is None else (factor / m) @ W
    unit = math.gcd(4, d, W.stride(0))
    launch(
        triton_kernels.gram, (splits, tiles, tiles),
        W, factor, mean, out, squares, m, d // unit, W.stride(0) // unit, M, per_split,
        UNIT=unit, SCALED=factor is not None, SINGLE=tiles == 1, HALF=W.is_cuda,
        BM=bm, BK=64, num_warps=8, num_stages=3,
    )  # fmt: skip
    products = out.sum(0, dtype=torch.float64)[:m, :m]
    lower = products.tril() if tiles > 1 else ((products + products.T) / 2).tril()
    return lower + lower.tril(-1).T, squares.sum(0, dtype=torch.float64)[:m]


PER_SPLIT = 4096
"""Columns that are summed in single precision; these sums are summed in double precision."""


def mix(xi: Tensor, W: Tensor, out: Tensor) -> None:
    """out (r, D) = xi W, as exact as single precision; `out` may be W itself if it has at most 128 rows."""
    from . import triton_kernels

    (r, m), D, single = xi.shape, W.shape[1], xi.shape[1] <= 128
    bm, bn, bk = tile(r, 128), 64 if single else 128, tile(m, 128) if single else 32
    rows, columns = cdiv(r, bm) * bm, cdiv(m, bk) * bk
    parts = torch.zeros(3, rows, columns, dtype=torch.bfloat16 if W.is_cuda else torch.float32, device=W.device)
    rest = xi.float()
    for part in parts:
        top = (rest.view(torch.int32) & -65536).view(torch.float32)
        part[:r, :m] = top
        rest = rest - top
    unit, tiles = math.gcd(4, D, W.stride(0), out.stride(0)), cdiv(D, bn)
    launch(
        triton_kernels.mix, (min(tiles, PROCESSORS) if single else tiles, rows // bm),
        parts, W, out, r, m, D // unit, W.stride(0) // unit, out.stride(0) // unit, rows, columns, tiles,
        UNIT=unit, SINGLE=single, BM=bm, BN=bn, BK=bk, num_warps=8, num_stages=3,
    )  # fmt: skip
