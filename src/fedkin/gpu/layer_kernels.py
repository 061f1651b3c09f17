"""Layers of stacked clients on a GPU: convolutions and BatchNorm by Triton kernels, linear layers by batched products.

Each is an autograd function of samples side by side (k b, ...) and weights (k, ...), which may be views of the one
matrix of weights. Where a layer is given a `sink`, a view of the matrix of gradients, its weights' gradient is written
there and nowhere else. `usable` says where Triton's kernels apply; elsewhere `layers` does the same with torch alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .launching import ENOUGH, cdiv, launch, tile, usable


def convolves(layer: nn.Conv2d) -> bool:
    """Whether `Convolution` knows this layer."""
    plain = layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return plain and (tuple(layer.stride) == (1, 1) or tuple(layer.dilation) == (1, 1))


def _precision(x: Tensor) -> str:
    """Products of float32 follow torch's switch: TF32 where it is allowed."""
    allowed = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "tf32" if x.dtype != torch.float32 or allowed else "ieee"


def call(function: type[torch.autograd.Function], *given: Any) -> Any:
    """`apply`, which torch leaves without types."""
    return function.apply(*given)  # type: ignore[no-untyped-call]


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
    """(k, b, inputs) -> (k, b, outputs): x w^T + bias, the product in x's precision; on any device."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sink: Sink | None, shift: Sink | None
    ) -> Tensor:
        w = _rounded(weight, x.dtype)
        ctx.save_for_backward(x, w)
        ctx.sink, ctx.shift, ctx.biased, ctx.kind = sink, shift, bias is not None, weight.dtype
        if bias is None:
            return torch.bmm(x, w.mT)
        return torch.baddbmm(bias.to(x.dtype).unsqueeze(1), x, w.mT)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        dy = dy.contiguous()  # in another order, products are rounded otherwise
        dx = torch.bmm(dy, w) if ctx.needs_input_grad[0] else None
        db = dy.sum(1, dtype=ctx.kind) if ctx.biased else None
        dw = _product(dy.mT, x, torch.empty_like(w, dtype=ctx.kind) if ctx.sink is None else ctx.sink.take())
        return dx, dw if ctx.sink is None else None, _deliver(db, ctx.shift), None, None


def _rounded(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """`weight.to(dtype)`, faster where each client's part is one piece of a row."""
    from . import triton_kernels

    if weight.dtype == dtype or not usable(weight) or not weight[0].is_contiguous():
        return weight.to(dtype)

    y = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    n = weight[0].numel()
    launch(triton_kernels.rounded, (cdiv(n, 2048), len(weight)), weight, y, n, weight.stride(0), BLOCK=2048)
    return y


def _product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """a b, in the precision of `out`: sums of half-precision products are not rounded on the way."""
    if a.dtype == out.dtype and (a.is_cuda or out.is_contiguous()):
        return torch.bmm(a, b, out=out)
    if a.is_cuda:
        torch.ops.aten.bmm.dtype_out(a, b, out.dtype, out=out)
        return out
    return out.copy_(torch.bmm(a, b))  # a CPU would go through rows that lie apart one at a time


Pair = tuple[int, int]


@dataclass(frozen=True)
class Shape:
    """A convolution of k clients' images (k b, H, W, C) by filters (k, O, R, S, C)."""

    clients: int
    images: int
    sides: Pair
    channels: int
    outputs: int
    filter: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @property
    def results(self) -> Pair:
        """Sides of the result."""
        return tuple(  # type: ignore[return-value]
            (side + 2 * pad - step * (size - 1) - 1) // move + 1
            for side, pad, step, size, move in zip(
                self.sides, self.padding, self.dilation, self.filter, self.stride, strict=True
            )
        )

    @property
    def taps(self) -> int:
        """Numbers that a filter sees at once."""
        return self.filter[0] * self.filter[1] * self.channels

    @property
    def whole(self) -> bool:
        """Whether there are enough channels to go through a filter place by place."""
        return self.channels % (32 if self.filter == (1, 1) else 64) == 0

    @property
    def tiny(self) -> bool:
        """Whether what a filter sees is so little that it is written down for every pixel."""
        return self.taps <= 192 and self.channels % 16 != 0

    def unfolded(self) -> Shape:
        """The same as a filter of one pixel over images of what the filter sees."""
        width, one, none = 32 if self.taps <= 32 else cdiv(self.taps, 64) * 64, (1, 1), (0, 0)
        return replace(self, sides=self.results, channels=width, filter=one, stride=one, padding=none, dilation=one)

    @property
    def reach(self) -> tuple[Pair, Pair]:
        """Along each side the first place of the filter that meets the image, and how many there are to the last.

        On an image of one pixel, eight places of nine of a filter that goes one beyond it see zeros alone."""
        found = []
        for side, result, pad, size, step, move in zip(
            self.sides, self.results, self.padding, self.filter, self.dilation, self.stride, strict=True
        ):
            seen = [r for r in range(size) if any(0 <= o * move - pad + r * step < side for o in range(result))]
            found.append((seen[0], seen[-1] - seen[0] + 1) if seen else (0, 0))  # there may be gaps between them
        return tuple(zip(*found, strict=True))  # type: ignore[return-value]

    def padded(self) -> Shape:
        """The same over images that have their zeros around them."""
        sides = (self.sides[0] + 2 * self.padding[0], self.sides[1] + 2 * self.padding[1])
        return replace(self, sides=sides, padding=(0, 0))


class Convolution(torch.autograd.Function):
    """(k b, C, H, W) -> (k b, C', H', W'), channels last; the weights are (k, C', C, R, S)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        sink: Sink | None,
        shift: Sink | None,
        moves: tuple[Pair, Pair, Pair],
    ) -> Tensor:
        k, outputs, channels, r, s = weight.shape
        image = x.permute(0, 2, 3, 1).contiguous()
        shape = Shape(k, len(x) // k, (x.shape[2], x.shape[3]), channels, outputs, (r, s), *moves)
        seen, left = _prepared(image, shape)
        ctx.save_for_backward(seen, weight)
        ctx.sink, ctx.shift, ctx.biased, ctx.shape, ctx.left = sink, shift, bias is not None, shape, left
        filters = _turned(weight.flatten(3), x.dtype).flatten(2)  # (k, C', R S C)
        return _convolved(seen, left, filters, bias).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        seen, weight = ctx.saved_tensors
        slope = dy.permute(0, 2, 3, 1).contiguous()
        dx = _back_to_images(slope, weight, ctx.shape) if ctx.needs_input_grad[0] else None
        dw = _back_to_weights(seen, ctx.left, slope, ctx.shape, ctx.sink)
        db = slope.view(len(weight), -1, slope.shape[-1]).sum(1, dtype=weight.dtype) if ctx.biased else None
        return dx, dw, _deliver(db, ctx.shift), None, None, None


def _prepared(image: Tensor, shape: Shape) -> tuple[Tensor, Shape]:
    """Images (n, H, W, C) as the kernels like them best, and the convolution that is left to do."""
    from . import triton_kernels

    if shape.tiny:
        left, (oh, ow) = shape.unfolded(), shape.results
        seen = torch.empty(len(image), oh, ow, left.channels, dtype=image.dtype, device=image.device)
        pixels = len(image) * oh * ow
        launch(
            triton_kernels.patches, (cdiv(pixels, 64), left.channels // 32),
            image, seen, pixels, *shape.padding,
            *shape.sides, shape.channels, ow, oh * ow, shape.taps, shape.filter[1], *shape.stride, *shape.dilation,
            WIDTH=left.channels, BP=64, BW=32,
        )  # fmt: skip
        return seen, left
    if shape.whole or not any(shape.padding):
        return image, shape
    (h, w) = shape.padding
    return F.pad(image, (0, 0, w, w, h, h)), shape.padded()


def _turned(x: Tensor, dtype: torch.dtype) -> Tensor:
    """(k, n, R, C) -> (k, n, C, R), laid out anew in this precision; x may be a view of rows."""
    k, parts, rows, columns = x.shape
    return _turn(x, torch.empty(k, parts, columns, rows, dtype=dtype, device=x.device))


def _turn(x: Tensor, y: Tensor) -> Tensor:
    """Writes x (k, n, R, C) into y (k, n, C, R); both may be views of rows, a client's matrices in one piece."""
    from . import triton_kernels

    k, parts, rows, columns = x.shape
    if rows == 1 or columns == 1:
        return y.copy_(x.reshape(y.shape))
    assert x[0].is_contiguous() and y[0].is_contiguous()
    br, bc = (128, 16) if columns <= 16 else (16, 128) if rows <= 16 else (64, 64)
    grid = (cdiv(rows, br) * cdiv(columns, bc), parts, k)
    launch(triton_kernels.turned, grid, x, y, rows, columns, x.stride(0), y.stride(0), BR=br, BC=bc)
    return y


def _convolved(image: Tensor, shape: Shape, filters: Tensor, bias: Tensor | None) -> Tensor:
    """(k b, H', W', C')"""
    from . import triton_kernels

    if filters.shape[2] < shape.taps:
        filters = F.pad(filters, (0, shape.taps - filters.shape[2]))
    oh, ow = shape.results
    y = torch.empty(len(image), oh, ow, shape.outputs, dtype=image.dtype, device=image.device)
    pixels = shape.images * oh * ow
    bm, bn, bk, warps, stages = tiles(shape.outputs, image.dtype)
    bk = min(bk, 32) if shape.channels % 64 and shape.whole else bk
    (top, left), (down, across) = shape.reach
    steps = down * across * (shape.channels // bk) if shape.whole else cdiv(shape.taps, bk)
    launch(
        triton_kernels.convolve, (cdiv(pixels, bm) * cdiv(shape.outputs, bn), shape.clients),
        image, filters, None if bias is None else bias.contiguous(), y,
        shape.images, *shape.sides, ow, oh * ow, pixels, shape.outputs, shape.taps, shape.filter[1],
        steps, top, left, across, *shape.stride, *shape.padding, *shape.dilation,
        C=shape.channels, BIASED=bias is not None, WHOLE=shape.whole, PRECISION=_precision(image),
        BM=bm, BN=bn, BK=bk, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y


Tiles = tuple[int, int, int, int, int]


def tiles(outputs: int, dtype: torch.dtype) -> Tiles:
    """How a product is cut for one program: pixels, outputs and inputs at a time; its warps and its stages."""
    return 128, tile(outputs, 128), 64 if dtype != torch.float32 else 32, 4, 3


def tiles_of_weights(shape: Shape, dtype: torch.dtype) -> Tiles:
    """The same for a product that sums over pixels: outputs, inputs and pixels at a time."""
    bn = (32 if shape.channels % 64 else 64) if shape.whole else tile(shape.taps, 128, 32)
    return tile(shape.outputs, 128 if bn <= 64 else 64, 32), bn, 64 if dtype != torch.float32 else 32, 4, 3


def _back_to_images(slope: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    """dx (k b, C, H, W) from dy (k b, H', W', C')."""
    from . import triton_kernels

    filters = _turned(weight.flatten(2).unsqueeze(1), slope.dtype)  # (k, 1, C R S, C')
    dx = torch.empty(len(slope), *shape.sides, shape.channels, dtype=slope.dtype, device=slope.device)
    bm, bn, bk, warps, stages = tiles(shape.channels, slope.dtype)
    (height, width), (down, across) = shape.sides, shape.stride
    most = shape.images * cdiv(height, down) * cdiv(width, across)
    launch(
        triton_kernels.convolve_back, (cdiv(most, bm) * cdiv(shape.channels, bn), shape.clients, down * across),
        slope, filters, dx,
        shape.images, *shape.sides, *shape.results, shape.channels, shape.outputs, *shape.filter,
        *shape.padding, *shape.dilation,
        STRIDE_H=down, STRIDE_W=across, EVEN=shape.outputs % bk == 0, PRECISION=_precision(slope),
        BM=bm, BN=bn, BK=bk, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return dx.permute(0, 3, 1, 2)


def _back_to_weights(image: Tensor, shape: Shape, slope: Tensor, plain: Shape, sink: Sink | None) -> Tensor | None:
    """dw (k, C', C, R, S) from prepared images and dy (k b, H', W', C'), written into the sink if there is one."""
    from . import triton_kernels

    (oh, ow), k, (r, s) = shape.results, shape.clients, plain.filter
    pixels = shape.images * oh * ow
    bo, bn, bk, warps, stages = tiles_of_weights(shape, slope.dtype)
    programs = cdiv(shape.outputs, bo) * cdiv(shape.taps, bn)
    splits = min(cdiv(ENOUGH, k * programs), cdiv(pixels, 16 * bk))
    per_split = cdiv(cdiv(pixels, splits), bk) * bk
    splits = cdiv(pixels, per_split)
    dw = torch.empty(k, splits, shape.outputs, shape.taps, device=slope.device)
    launch(
        triton_kernels.convolve_weights, (programs, k, splits),
        image, slope, dw,
        shape.images, *shape.sides, pixels, shape.outputs, shape.taps, shape.filter[1], per_split,
        *shape.stride, *shape.padding, *shape.dilation, dw.stride(0), dw.stride(1),
        C=shape.channels, OW=ow, OHW=oh * ow,
        WHOLE=shape.whole, BEYOND=shape.whole and shape.reach[1] != shape.filter, PRECISION=_precision(slope),
        PARTS=slope.dtype == torch.float32 and _precision(slope) == "tf32", HALF=slope.is_cuda,
        BO=bo, BN=bn, BK=bk, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    total = dw.sum(1) if splits > 1 else dw[:, 0]
    if shape.channels != plain.channels:  # what the filter saw in one piece, and zeros
        total = total[..., : plain.taps].contiguous()
    gradient = torch.empty(k, plain.outputs, plain.channels, r, s, device=slope.device) if sink is None else sink.take()
    _turn(total.view(k, plain.outputs, r * s, plain.channels), gradient.flatten(3))
    return gradient if sink is None else None


class ReluPool(torch.autograd.Function):
    """relu, then the largest of each p x p pixels: (n, C, H, W) -> (n, C, H // p, W // p), channels last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: int) -> Tensor:

        from . import triton_kernels

        image = x.permute(0, 2, 3, 1).contiguous()
        n, height, width, channels = image.shape
        oh, ow = height // p, width // p
        y = torch.empty(n, oh, ow, channels, dtype=x.dtype, device=x.device)
        where = torch.empty(y.shape, dtype=torch.uint8, device=x.device)
        bc = tile(channels, 64)
        bv = max(1, 1024 // bc)
        ctx.grid, ctx.shape = (bv, bc), (ow, oh, height, width, channels, p)
        launch(
            triton_kernels.pool, (n * oh, cdiv(ow, bv), cdiv(channels, bc)), image, y, where, *ctx.shape, BV=bv, BC=bc
        )
        ctx.save_for_backward(where)
        return y.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:

        from . import triton_kernels

        (where,), (bv, bc) = ctx.saved_tensors, ctx.grid
        _, _, height, width, channels, p = ctx.shape
        slope = dy.permute(0, 2, 3, 1).contiguous()
        dx = torch.empty(len(dy), height, width, channels, dtype=dy.dtype, device=dy.device)
        grid = (len(dy) * cdiv(height, p), cdiv(cdiv(width, p), bv), cdiv(channels, bc))
        launch(triton_kernels.pool_back, grid, slope, where, dx, *ctx.shape, BV=bv, BC=bc)
        return dx.permute(0, 3, 1, 2), None


class BatchNorm(torch.autograd.Function):
    """(k b, C, H, W), channels last, with the statistics of each client's batch; also returns these, (k, C) each.

    If asked to it adds `other`, of x's shape, and takes the relu, in the same look at the data.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        k: int,
        eps: float,
        other: Tensor | None,
        relu: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:

        from . import triton_kernels

        image = x.permute(0, 2, 3, 1).contiguous()
        beside = None if other is None else other.permute(0, 2, 3, 1).to(x.dtype).contiguous()
        channels = image.shape[-1]
        rows = image.numel() // k // channels
        bc, bp, splits, per_split = _shares(k, rows, channels)
        mean = torch.empty(k, splits, channels, dtype=torch.float32, device=x.device)
        spread = torch.empty_like(mean)
        grid = (k, cdiv(channels, bc), splits)
        launch(triton_kernels.moments, grid, image, mean, spread, rows, channels, splits, per_split, BP=bp, BC=bc)
        centre, var = _together(mean, spread, rows, per_split)
        scale = (var + eps).rsqrt()
        factor = (scale if weight is None else scale * weight).contiguous()
        summand = (-centre * factor if bias is None else bias - centre * factor).contiguous()
        y = torch.empty_like(image)
        launch(
            triton_kernels.scaled,
            (cdiv(rows, bp), k, cdiv(channels, bc)),
            image,
            factor,
            summand,
            beside,
            y,
            rows,
            channels,
            ADDED=other is not None,
            RELU=relu,
            BP=bp,
            BC=bc,
        )
        ctx.save_for_backward(image, centre, scale, factor, *([y] if relu else []))
        ctx.given = weight is not None, bias is not None, other is not None, relu
        ctx.mark_non_differentiable(centre, var)
        return y.permute(0, 3, 1, 2), centre, var

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        from . import triton_kernels

        image, centre, scale, factor, *result = ctx.saved_tensors
        weighed, biased, added, relu = ctx.given
        y = result[0] if relu else None
        slope = dy.permute(0, 2, 3, 1).contiguous()
        k, channels = centre.shape
        rows = image.numel() // k // channels
        bc, bp, splits, per_split = _shares(k, rows, channels)
        parts = torch.empty(2, k, splits, channels, dtype=torch.float32, device=dy.device)
        launch(
            triton_kernels.slopes,
            (k, cdiv(channels, bc), splits),
            image,
            slope,
            y,
            centre,
            parts[0],
            parts[1],
            rows,
            channels,
            splits,
            per_split,
            RELU=relu,
            BP=bp,
            BC=bc,
        )
        plain, along = parts.sum(2)
        of_x = -factor * scale.square() * along / rows
        summand = -factor * plain / rows - of_x * centre
        dx, beside = torch.empty_like(image), torch.empty_like(image) if added else None
        launch(
            triton_kernels.scaled_back, (cdiv(rows, bp), k, cdiv(channels, bc)),
            image, slope, y, factor, of_x, summand, dx, beside, rows, channels,
            ADDED=added, RELU=relu, BP=bp, BC=bc,
        )  # fmt: skip
        return (
            dx.permute(0, 3, 1, 2),
            along * scale if weighed else None,
            plain if biased else None,
            None,
            None,
            None if beside is None else beside.permute(0, 3, 1, 2),
            None,
        )


def _shares(k: int, rows: int, channels: int) -> tuple[int, int, int, int]:
    """Channels and rows of a program at a time, how many programs share a client's rows, and how many rows each has."""
    bc = tile(channels, 64)
    bp = 2048 // bc
    splits = max(1, min(cdiv(4 * ENOUGH, k * cdiv(channels, bc)), cdiv(rows, 4 * bp)))
    per_split = cdiv(cdiv(rows, splits), bp) * bp
    return bc, bp, cdiv(rows, per_split), per_split


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

    @property
    def anchor(self) -> Tensor: ...

    @property
    def beta(self) -> Tensor: ...


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
    share: Tensor | None,
) -> None:
    """A step of Adam for the rows of w (k, d), in place; `size`, `root` (k, 1): see `Optimiser.step`.

    With `share` (·, 1) weights then go that share of their way to the anchor; without, `near` adds to the gradient."""
    from . import triton_kernels

    k, d = G.shape
    anchored = [] if near is None else [near.anchor]
    assert all(tensor.stride(1) == 1 for tensor in (w, G, first, second, *anchored)), "rows lie in one piece each"
    pull = share if share is not None or near is None else near.beta
    launch(
        triton_kernels.adam, (cdiv(d, 1024), k),
        w, G, first, second, near and near.anchor, size, root, pull,
        d, w.stride(0), G.stride(0), first.stride(0), second.stride(0), near.anchor.stride(0) if near else 0,
        1 - betas[0], betas[1], 1 - betas[1], eps, decay,
        ANCHORED=near is not None, EXACT=share is not None, DECAYED=decay != 0, BLOCK=1024,
    )  # fmt: skip
