"""Layers of stacked clients on a GPU: convolutions and BatchNorm by Triton kernels, linear layers by batched products.

Each is an autograd function of samples side by side (k b, ...) and weights (k, ...), which may be views of the one
matrix of weights. Where a layer is given a `sink`, a view of the matrix of gradients, its weights' gradient is written
there and nowhere else. `usable` says where all this applies; elsewhere `layers` computes the same with torch alone.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton's interpreter runs these kernels on a CPU, slowly: for tests."""


@cache
def installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def usable(x: Tensor) -> bool:
    """Whether these functions can take x: on a GPU, in a precision that its matrix units know, with Triton there."""
    return (x.is_cuda or INTERPRETED) and x.dtype in (torch.float32, torch.bfloat16, torch.float16) and installed()


def convolves(layer: nn.Conv2d) -> bool:
    """Whether `Convolution` knows this layer."""
    plain = layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return plain and (tuple(layer.stride) == (1, 1) or tuple(layer.dilation) == (1, 1))


def _tile(size: int, most: int, least: int = 16) -> int:
    """The power of two that holds `size`, between these bounds."""
    tile = least
    while tile < min(size, most):
        tile *= 2
    return tile


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _precision(x: Tensor) -> str:
    """Products of float32 follow torch's switch: TF32 where it is allowed."""
    allowed = torch.backends.cudnn.conv.fp32_precision == "tf32" or torch.backends.cuda.matmul.allow_tf32  # type: ignore[attr-defined]
    return "tf32" if x.dtype != torch.float32 or allowed else "ieee"


@dataclass(frozen=True, repr=False)
class Sink:
    """Where a gradient belongs; who writes it there signs for it."""

    gradient: Tensor
    name: str
    written: set[str]

    def take(self) -> Tensor:
        self.written.add(self.name)
        return self.gradient


def _deliver(gradient: Tensor | None, sink: Sink | None) -> Tensor | None:
    """Writes a gradient where it belongs; what is left for autograd."""
    if gradient is None or sink is None:
        return gradient
    sink.take().copy_(gradient)
    return None


class Linear(torch.autograd.Function):
    """(k, b, inputs) -> (k, b, outputs): x w^T + bias, the product in x's precision."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sink: Sink | None, shift: Sink | None
    ) -> Tensor:
        w = weight.to(x.dtype)
        ctx.save_for_backward(x, w)
        ctx.sink, ctx.shift, ctx.biased, ctx.kind = sink, shift, bias is not None, weight.dtype
        if bias is None:
            return torch.bmm(x, w.mT)
        return torch.baddbmm(bias.to(x.dtype).unsqueeze(1), x, w.mT)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, w = ctx.saved_tensors
        dx = torch.bmm(dy, w) if ctx.needs_input_grad[0] else None
        db = dy.sum(1, dtype=ctx.kind) if ctx.biased else None
        dw = _product(dy.mT, x, torch.empty_like(w, dtype=ctx.kind) if ctx.sink is None else ctx.sink.take())
        return dx, dw if ctx.sink is None else None, _deliver(db, ctx.shift), None, None


def _product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """a b, in the precision of `out`: sums of half-precision products are not rounded on the way."""
    if a.dtype == out.dtype:
        return torch.bmm(a, b, out=out)
    if a.is_cuda:
        return torch.ops.aten.bmm.dtype_out(a, b, out.dtype, out=out)  # type: ignore[no-any-return]
    return out.copy_(torch.bmm(a, b))


class Convolution(torch.autograd.Function):
    """(k b, C, H, W) -> (k b, C', H', W'), channels last; the weights are (k, C', C, R, S)."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        sink: Sink | None,
        shift: Sink | None,
        shape: tuple[tuple[int, int], tuple[int, int], tuple[int, int]],
    ) -> Tensor:
        from . import _triton

        (stride, padding, dilation), k = shape, len(weight)
        _, outputs, channels, r, s = weight.shape
        n, _, height, width = x.shape
        padded = _padded(x, padding, padding)
        oh, ow = (
            (side + 2 * pad - step * (size - 1) - 1) // move + 1
            for side, pad, step, size, move in zip((height, width), padding, dilation, (r, s), stride, strict=True)
        )
        w = weight.permute(0, 1, 3, 4, 2).to(x.dtype).contiguous()  # (k, C', R, S, C)
        y = torch.empty(n, oh, ow, outputs, dtype=x.dtype, device=x.device)
        pixels, taps = n // k * oh * ow, r * s * channels
        bm, bn, bk, warps, stages = tiles(outputs, channels, taps, x.dtype)
        grid = (_cdiv(pixels, bm) * _cdiv(outputs, bn), k)
        _triton.convolve[grid](
            padded, w, None if bias is None else bias.contiguous(), y,
            n // k, pixels, outputs, taps, channels, s, ow, oh * ow,
            *padded.stride()[:3], *stride, *dilation,
            BIASED=bias is not None, ALIGNED=channels % bk == 0, PRECISION=_precision(x), BM=bm, BN=bn, BK=bk,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
        ctx.save_for_backward(padded, weight)
        ctx.sink, ctx.shift, ctx.biased, ctx.shape, ctx.sides = sink, shift, bias is not None, shape, (height, width)
        return y.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        padded, weight = ctx.saved_tensors
        slope = dy.permute(0, 2, 3, 1).contiguous()
        dx = _back_to_images(slope, weight, ctx.shape, ctx.sides) if ctx.needs_input_grad[0] else None
        dw = _back_to_weights(padded, slope, weight, ctx.shape)
        db = slope.view(len(weight), -1, slope.shape[-1]).sum(1, dtype=weight.dtype) if ctx.biased else None
        return dx, _deliver(dw, ctx.sink), _deliver(db, ctx.shift), None, None, None


def tiles(outputs: int, channels: int, taps: int, dtype: torch.dtype) -> tuple[int, int, int, int, int]:
    """Pixels, outputs and inputs that one program works on at a time, its warps and its stages."""
    bn = _tile(outputs, 128)
    wide = 64 if dtype != torch.float32 else 32
    bk = next((size for size in (wide, wide // 2) if channels % size == 0), _tile(taps, 32))
    return 128, bn, bk, 8 if bn >= 128 else 4, 3


def _padded(x: Tensor, before: tuple[int, int], behind: tuple[int, int]) -> Tensor:
    """(n, C, H, W) as (n, H', W', C), contiguous, with zeros around."""
    image = x.permute(0, 2, 3, 1)
    if not any(before) and not any(behind):
        return image.contiguous()
    return F.pad(image, (0, 0, before[1], behind[1], before[0], behind[0])).contiguous()


def _back_to_images(slope: Tensor, weight: Tensor, shape: Any, sides: tuple[int, int]) -> Tensor:
    """dx (k b, C, H, W) from dy (k b, H', W', C')."""
    from . import _triton

    stride, padding, dilation = shape
    k, outputs, channels, *filter = weight.shape
    n = len(slope)
    # A pixel u of the padded input hears from the results u // stride - j dilation, j counting rows of the filter.
    front = tuple((_cdiv(size, move) - 1) * step for size, move, step in zip(filter, stride, dilation, strict=True))
    behind = tuple(
        max(0, (pad + side - 1) // move + 1 - own)
        for pad, side, move, own in zip(padding, sides, stride, slope.shape[1:3], strict=True)
    )
    around = F.pad(slope, (0, 0, front[1], behind[1], front[0], behind[0])).contiguous()
    w = weight.permute(0, 2, 3, 4, 1).to(slope.dtype).contiguous()  # (k, C, R, S, C')
    dx = torch.empty(n, *sides, channels, dtype=slope.dtype, device=slope.device)
    bm, bn, bk, warps, stages = tiles(channels, outputs, outputs, slope.dtype)
    most = n // k * _cdiv(sides[0], stride[0]) * _cdiv(sides[1], stride[1])
    grid = (_cdiv(most, bm) * _cdiv(channels, bn), k, stride[0] * stride[1])
    _triton.convolve_back[grid](
        around, w, dx,
        n // k, *sides, channels, outputs, *filter, *padding, *front,
        *around.stride()[:3], *dilation,
        STRIDE_H=stride[0], STRIDE_W=stride[1], ALIGNED=outputs % bk == 0, PRECISION=_precision(slope),
        BM=bm, BN=bn, BK=bk, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return dx.permute(0, 3, 1, 2)


def _back_to_weights(padded: Tensor, slope: Tensor, weight: Tensor, shape: Any) -> Tensor:
    """dw (k, C', C, R, S) from the padded images and dy (k b, H', W', C')."""
    from . import _triton

    stride, _, dilation = shape
    k, outputs, channels, r, s = weight.shape
    n, oh, ow, _ = slope.shape
    pixels, taps = n // k * oh * ow, r * s * channels
    bo, bn, bk = _tile(outputs, 64, 32), _tile(taps, 128, 32), 64 if slope.dtype != torch.float32 else 32
    programs = k * _cdiv(outputs, bo) * _cdiv(taps, bn)
    splits = min(_cdiv(ENOUGH, programs), _cdiv(pixels, 16 * bk))
    per_split = _cdiv(_cdiv(pixels, splits), bk) * bk
    splits = _cdiv(pixels, per_split)
    dw = torch.empty(k, splits, outputs, taps, dtype=torch.float32, device=slope.device)
    grid = (_cdiv(outputs, bo) * _cdiv(taps, bn), k, splits)
    _triton.convolve_weights[grid](
        padded, slope, dw,
        n // k, pixels, outputs, taps, s, ow, oh * ow, splits, per_split,
        *padded.stride()[:3], *stride, *dilation,
        C=channels, PRECISION=_precision(slope), BO=bo, BN=bn, BK=bk, num_warps=4, num_stages=3,
    )  # fmt: skip
    total = dw.sum(1) if splits > 1 else dw.squeeze(1)
    return total.view(k, outputs, r, s, channels).permute(0, 1, 4, 2, 3)


ENOUGH = 528
"""Programs that keep a GPU's processors busy: four for each of 132."""


class ReluPool(torch.autograd.Function):
    """relu, then the largest of each p x p pixels: (n, C, H, W) -> (n, C, H // p, W // p), channels last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: int) -> Tensor:  # type: ignore[override]
        from . import _triton

        image = x.permute(0, 2, 3, 1).contiguous()
        n, height, width, channels = image.shape
        y = torch.empty(n, height // p, width // p, channels, dtype=x.dtype, device=x.device)
        where = torch.empty(y.shape, dtype=torch.uint8, device=x.device)
        shape = (height // p, width // p, height, width, channels)
        _triton.pool[(_cdiv(y.numel(), 1024),)](image, y, where, y.numel(), *shape, P=p, BLOCK=1024)
        ctx.save_for_backward(where)
        ctx.shape, ctx.p = (n, *shape), p
        return y.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        from . import _triton

        (where,) = ctx.saved_tensors
        n, *shape = ctx.shape
        slope = dy.permute(0, 2, 3, 1).contiguous()
        dx = torch.empty(n, *shape[2:], dtype=dy.dtype, device=dy.device)
        _triton.pool_back[(_cdiv(dx.numel(), 1024),)](slope, where, dx, dx.numel(), *shape, P=ctx.p, BLOCK=1024)
        return dx.permute(0, 3, 1, 2), None


class BatchNorm(torch.autograd.Function):
    """(k b, C, H, W), channels last, with the statistics of each client's batch; also returns these, (k, C) each."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, k: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        from . import _triton

        image = x.permute(0, 2, 3, 1).contiguous()
        channels = image.shape[-1]
        rows = image.numel() // k // channels
        bc, bp, splits, per_split = _shares(k, rows, channels)
        mean = torch.empty(k, splits, channels, dtype=torch.float32, device=x.device)
        spread = torch.empty_like(mean)
        grid = (k, _cdiv(channels, bc), splits)
        _triton.moments[grid](image, mean, spread, rows, channels, splits, per_split, BP=bp, BC=bc)
        centre, var = _together(mean, spread, rows, per_split)
        scale = (var + eps).rsqrt()
        factor = (scale if weight is None else scale * weight).contiguous()
        summand = (-centre * factor if bias is None else bias - centre * factor).contiguous()
        y = torch.empty_like(image)
        _triton.scaled[(k, _cdiv(rows, bp), _cdiv(channels, bc))](
            image, factor, summand, y, rows, channels, BP=bp, BC=bc
        )
        ctx.save_for_backward(image, centre, scale, factor)
        ctx.given = weight is not None, bias is not None
        ctx.mark_non_differentiable(centre, var)
        return y.permute(0, 3, 1, 2), centre, var

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        from . import _triton

        image, centre, scale, factor = ctx.saved_tensors
        slope = dy.permute(0, 2, 3, 1).contiguous()
        k, channels = centre.shape
        rows = image.numel() // k // channels
        bc, bp, splits, per_split = _shares(k, rows, channels)
        parts = torch.empty(2, k, splits, channels, dtype=torch.float32, device=dy.device)
        grid = (k, _cdiv(channels, bc), splits)
        _triton.slopes[grid](
            image, slope, centre, parts[0], parts[1], rows, channels, splits, per_split, BP=bp, BC=bc
        )
        plain, along = parts.sum(2)
        of_x = -factor * scale.square() * along / rows
        summand = -factor * plain / rows - of_x * centre
        dx = torch.empty_like(image)
        _triton.scaled_back[(k, _cdiv(rows, bp), _cdiv(channels, bc))](
            image, slope, factor, of_x, summand, dx, rows, channels, BP=bp, BC=bc
        )
        weighed, biased = ctx.given
        return dx.permute(0, 3, 1, 2), along * scale if weighed else None, plain if biased else None, None, None


def _shares(k: int, rows: int, channels: int) -> tuple[int, int, int, int]:
    """Channels and rows of a program at a time, how many programs share a client's rows, and how many rows each has."""
    bc = _tile(channels, 64)
    bp = 2048 // bc
    splits = max(1, min(_cdiv(4 * ENOUGH, k * _cdiv(channels, bc)), _cdiv(rows, 4 * bp)))
    per_split = _cdiv(_cdiv(rows, splits), bp) * bp
    return bc, bp, _cdiv(rows, per_split), per_split


def _together(mean: Tensor, spread: Tensor, rows: int, per_split: int) -> tuple[Tensor, Tensor]:
    """(k, C) mean and variance of all rows from those of their splits (k, splits, C)."""
    splits = mean.shape[1]
    counts = torch.full((splits, 1), float(per_split), device=mean.device)
    counts[-1] = rows - (splits - 1) * per_split
    centre = (mean * counts).sum(1) / rows
    around = (mean - centre.unsqueeze(1)).square() * counts
    return centre, (spread + around).sum(1) / rows


class Near(Protocol):
    """What a proximal term holds: see `optimisers.Proximal`."""

    anchor: Tensor
    beta: Tensor


def adam(
    w: Tensor,
    G: Tensor,
    first: Tensor,
    second: Tensor,
    size: Tensor,
    root: Tensor,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    near: Near | None,
) -> None:
    """A step of Adam for the rows of w (k, d), in place; `size` and `root` (k, 1): see `Optimiser.step`."""
    from . import _triton

    k, d = G.shape
    _triton.adam[(_cdiv(d, 1024), k)](
        w, G, first, second, near and near.anchor, size, root, near and near.beta,
        d, w.stride(0), G.stride(0), first.stride(0), near.anchor.stride(0) if near else 0,
        1 - betas[0], betas[1], 1 - betas[1], eps, decay,
        ANCHORED=near is not None, DECAYED=decay != 0, BLOCK=1024,
    )  # fmt: skip
