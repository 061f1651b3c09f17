"""Two ways to run the same mathematics over rows of weights: all clients at once, or a plain module at a time.

Both give the same numbers. `choose` says which one is taken and why.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap

from ..base.task import LOSSES, Loss
from ..base.weights import Layout
from ..gpu import launching
from ..gpu.cuda_graphs import Player
from .layers import Plan, Rows


@dataclass(frozen=True, repr=False)
class Batch:
    """One mini-batch for each of the first k clients.

    x (k, b, ...) and y (k, b, ...); client i has `counts[i]` samples, what follows in its row is padding.
    `weight` (k, b) are weights of classes and samples, `seeds` the random streams of layers that draw numbers.
    """

    x: Tensor
    y: Tensor
    counts: Sequence[int]
    weight: Tensor | None = None
    seeds: Callable[[int], int] | None = None
    sizes: Tensor | None = None
    """`counts` on the device, where they are at hand."""

    def __len__(self) -> int:
        return len(self.counts)

    def rows(self, chosen: list[int], size: int) -> Batch:
        """The batch of some clients, cut to `size` samples."""
        weight = None if self.weight is None else self.weight[chosen, :size]
        return Batch(self.x[chosen, :size], self.y[chosen, :size], [size] * len(chosen), weight)


class Execution(Protocol):
    """Gradient and forward pass over rows of weights."""

    name: str
    layout: Layout
    products: str
    pads: bool

    @property
    def trouble(self) -> str | None:
        """What is slower than it might be, and why; a sentence."""

    def forget(self) -> None:
        """Gives back the memory that is kept from call to call."""

    def grad(self, W: Tensor, batch: Batch, out: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Of the first k rows of W (·, D): gradients (k, d), losses (k,), what the pass left in buffers (k, D - d).

        The gradients are new, or written into the first rows of `out` (·, d).
        """

    def workspace(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """A copy of rows (m, D) to train on, and memory for their gradients (m, d): until the next call."""

    def finished(self, rows: Tensor) -> Tensor:
        """Rows of the workspace that were trained, to keep."""

    def curvature(self, W: Tensor, V: Tensor, batch: Batch) -> Tensor:
        """(k, d) the Hessian of each client's loss at its row of W, times its row of V (k, d). Buffers stay."""

    def outputs(self, W: Tensor, x: Tensor) -> Tensor:
        """(k, b, ...) outputs of rows W (k, D) in evaluation mode."""

    @property
    def mixture(self) -> Execution:
        """The same over rows of a `Mixture`: two models and how much the first counts."""


class Mixture(nn.Module):
    """Two modules of one kind whose outputs are mixed: alpha v(x) + (1 - alpha) w(x)."""

    alpha: Tensor

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.v, self.w = copy.deepcopy(module), copy.deepcopy(module)
        self.register_buffer("alpha", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.alpha * self.v(x) + (1 - self.alpha) * self.w(x)
        return mixed


class _Executor:
    pads = False
    trouble: str | None = None

    def __init__(self, module: nn.Module, layout: Layout, loss: Loss, device: torch.device) -> None:
        self.layout = layout
        self.loss = loss
        self.device = device
        self.products = "float32"
        """How weights are multiplied, as `precision` in the configuration: on a GPU float32 means TF32."""
        self.training = copy.deepcopy(module).to(device).train()
        self.evaluating = copy.deepcopy(module).to(device).eval()
        self.counters = {name: start.to(device) for name, start in layout.counters}
        self.buffered = layout.size > layout.parameters

    def workspace(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows.clone(), rows.new_empty(len(rows), self.layout.parameters)

    def finished(self, rows: Tensor) -> Tensor:
        return rows

    def forget(self) -> None:
        pass

    def _evaluate(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(self.evaluating, {**tensors, **self.counters}, (x,))  # type: ignore[no-any-return]

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def _switches(self) -> AbstractContextManager[None]:
        """Inside, a GPU multiplies float32 as `products` says. It belongs around a backward pass as much as around the
        forward pass before it: layers look at torch's switches in both, and none remembers what it saw."""
        return tf32(self.products != "float32-strict") if self.on_gpu else nullcontext()

    def _autocast(self) -> AbstractContextManager[object]:
        """Inside, bf16 is what is multiplied, if `products` says so: around forward passes. A backward pass has the
        precisions that its forward pass chose. (vmap derives in one go, and so inside.)"""
        half = self.products == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False) if half else nullcontext()

    @cached_property
    def mixture(self) -> Stacked | OneByOne:
        module = Mixture(self.training)
        kind = OneByOne if isinstance(self, OneByOne) else Stacked
        pair = kind(module, Layout.of(module), self.loss, self.device)
        pair.pads, pair.products = self.pads, self.products
        if isinstance(self, Stacked) and isinstance(pair, Stacked) and self.player is None:
            pair.player = None
        return pair


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Inside, a GPU multiplies float32 in TF32, or does not, on whichever thread: torch's switches are everybody's.
    Never leave it on for Gram matrices and mixing (T26)."""
    cudnn: Any = torch.backends.cudnn
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "tf32" if allowed else "ieee"
    try:
        yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision


@contextmanager
def _without_cudnn() -> Iterator[None]:
    """`torch.backends.cudnn.flags` would allow TF32 on the way."""
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


class OneByOne(_Executor):
    """A plain module at a time."""

    name = "one-by-one"

    def grad(self, W: Tensor, batch: Batch, out: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        k, d = len(batch), self.layout.parameters
        G, losses = W.new_empty(k, d) if out is None else out[:k], W.new_empty(k)
        rest = W[:k, d:].clone() if self.buffered else None
        with self._switches():
            for i in range(k):
                trained, given, loss = self._pass(W[i], batch, i)
                torch.cat(_slopes(loss, trained), out=G[i])
                losses[i] = loss.detach()
                if rest is not None:
                    # From `given`: a buffer that was assigned to, not written into, is new there.
                    rest[i] = self.layout.flat({n: given[n].detach() for n in self.layout.rest(W[i])}, lead=0)
        return G, losses, rest

    def curvature(self, W: Tensor, V: Tensor, batch: Batch) -> Tensor:
        H = torch.zeros_like(V)
        recurrent = any(isinstance(m, nn.RNNBase) for m in self.training.modules())
        # cuDNN cannot derive recurrent layers twice.
        with self._switches(), _without_cudnn() if recurrent else nullcontext():
            for i in range(len(batch)):
                trained, _, loss = self._pass(W[i], batch, i)
                with torch.enable_grad():
                    along = (torch.cat(_slopes(loss, trained, again=True)) * V[i]).sum()
                if along.requires_grad:  # not where the loss is linear in the weights
                    torch.cat(_slopes(along, trained), out=H[i])
        return H

    def _pass(self, w: Tensor, batch: Batch, i: int) -> tuple[list[Tensor], dict[str, Tensor], Tensor]:
        """A training-mode pass of client i at its row: the weights to derive by, all that it was given, the loss."""
        trained = {n: t.requires_grad_() for n, t in self.layout.trained(w.detach()).items()}
        fixed = {n: t.clone() for n, t in self.layout.rest(w.detach()).items()}
        given = {**trained, **fixed, **{n: c.clone() for n, c in self.counters.items()}}
        count = batch.counts[i]
        weight = None if batch.weight is None else batch.weight[i, :count]
        with torch.enable_grad(), _stream(batch, i, w.device), self._autocast():
            outputs = functional_call(self.training, given, (batch.x[i, :count],))
            loss = self.loss(outputs.to(w.dtype), batch.y[i, :count], weight)
        return list(trained.values()), given, loss

    def outputs(self, W: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad(), self._switches(), self._autocast():
            each = [self._evaluate(self.layout.tensors(w), samples) for w, samples in zip(W, x, strict=True)]
        return torch.stack(each).to(W.dtype)


class Stacked(_Executor):
    """All clients at once: vmap over the rows."""

    name = "stacked"

    def __init__(self, module: nn.Module, layout: Layout, loss: Loss, device: torch.device, pads: bool = False) -> None:
        super().__init__(module, layout, loss, device)
        self.pads = pads
        """Whether short batches may be padded with samples of weight zero; otherwise there is a call a batch size."""
        # A recording would not call a user's own loss again, which may compute something else the next time.
        recorded = device.type == "cuda" and loss in LOSSES.values()
        self.player = Player(self._call, layout.parameters) if recorded else None

    def workspace(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return super().workspace(rows) if self.player is None else self.player.workspace(rows)

    @property
    def _players(self) -> list[Player]:
        """Its own, and that of the mixture if there was one."""
        each = [self.player, getattr(self.__dict__.get("mixture"), "player", None)]
        return [player for player in each if player is not None]

    @property
    def trouble(self) -> str | None:  # type: ignore[override]
        return next((player.trouble for player in self._players if player.trouble), None)

    def forget(self) -> None:
        for player in self._players:
            player.forget()

    def finished(self, rows: Tensor) -> Tensor:
        return rows if self.player is None else rows.clone()  # the next round is trained in the same memory

    def grad(self, W: Tensor, batch: Batch, out: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        k, d = len(batch), self.layout.parameters
        sizes = sorted(set(batch.counts))
        if len(sizes) == 1 or self.pads:
            size = sizes[-1]
            weight = batch_weights(batch, W) if len(sizes) > 1 else _cut(batch.weight, size)
            step = self._call if self.player is None else self.player
            return step(W[:k], batch.x[:, :size], batch.y[:, :size], weight, None if out is None else out[:k])
        G, losses = W.new_empty(k, d) if out is None else out[:k], W.new_empty(k)
        left = W.new_empty(k, self.layout.size - d) if self.buffered else None
        for size in sizes:
            chosen = [i for i, count in enumerate(batch.counts) if count == size]
            part = batch.rows(chosen, size)
            G[chosen], losses[chosen], own = self._call(W[chosen], part.x, part.y, part.weight, None)
            if left is not None and own is not None:
                left[chosen] = own
        return G, losses, left

    def _call(
        self, W: Tensor, x: Tensor, y: Tensor, weight: Tensor | None, out: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Gradients, losses and buffers of k clients whose batches are of one size; weights (k, b) of samples."""
        step = vmap(grad_and_value(self._loss, has_aux=True), in_dims=(0, 0, 0, 0, None if weight is None else 0))
        with self._switches(), self._autocast():
            grads, (losses, rest) = step(self.layout.trained(W), self.layout.rest(W), x, y, weight)
        return self.layout.flat(grads, out=out), losses, self.layout.flat(rest) if self.buffered else None

    def _loss(
        self, trained: dict[str, Tensor], rest: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        # functional_call writes into the buffers it is given, even into the caller's stack (trap T24): clone them here.
        rest = {n: t.clone() for n, t in rest.items()}
        counters = {n: c.clone() for n, c in self.counters.items()}
        given = {**trained, **rest, **counters}
        outputs = functional_call(self.training, given, (x,))
        # From `given`: a buffer that was assigned to, not written into, is new there.
        kind = next(iter(trained.values())).dtype
        return self.loss(outputs.to(kind), y, weight), {n: given[n] for n in rest}

    def curvature(self, W: Tensor, V: Tensor, batch: Batch) -> Tensor:
        H = torch.empty_like(V)
        for size in sorted(set(batch.counts)):
            chosen = [i for i, count in enumerate(batch.counts) if count == size]
            part = batch.rows(chosen, size)
            along = vmap(grad(self._slope), in_dims=(0, 0, 0, 0, 0, None if part.weight is None else 0))
            rows, directions = W[chosen], self.layout.trained(V[chosen])
            with self._switches(), self._autocast():
                curved = along(
                    self.layout.trained(rows), directions, self.layout.rest(rows), part.x, part.y, part.weight
                )
            H[chosen] = self.layout.flat(curved)
        return H

    def _slope(
        self,
        trained: dict[str, Tensor],
        along: dict[str, Tensor],
        rest: dict[str, Tensor],
        x: Tensor,
        y: Tensor,
        weight: Tensor | None,
    ) -> Tensor:
        """The loss's slope at `trained` in a direction; its gradient is the Hessian times that direction."""
        slopes, _ = grad(self._loss, has_aux=True)(trained, rest, x, y, weight)
        return torch.stack([(slopes[n] * along[n]).sum() for n in slopes]).sum()

    def outputs(self, W: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad(), self._switches(), self._autocast():
            return vmap(self._evaluate, in_dims=(0, 0))(self.layout.tensors(W), x).to(W.dtype)


class Layered(Stacked):
    """All clients at once, layer by layer, without vmap: for modules whose layers with weights `layers` knows."""

    def __init__(self, module: nn.Module, layout: Layout, loss: Loss, device: torch.device, pads: bool = False) -> None:
        super().__init__(module, layout, loss, device, pads)
        self.plan, self.evaluation = Plan.of(self.training), Plan.of(self.evaluating)
        self.statistics = {name for name, _ in self.training.named_buffers()}
        self.rehearsed: set[torch.Size] = set()
        self.rehearsals: list[launching.Rehearsed] = []

    @property
    def trouble(self) -> str | None:  # type: ignore[override]
        told = [super().trouble, *(rehearsal.trouble for rehearsal in self.rehearsals)]
        return " ".join(dict.fromkeys(filter(None, told))) or None

    def _call(
        self, W: Tensor, x: Tensor, y: Tensor, weight: Tensor | None, out: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        k, d = len(W), self.layout.parameters
        G = W.new_empty(k, d) if out is None else out
        if self._rehearses(W, x):
            self.rehearsed.add(x.shape)
            self.rehearsals.append(launching.rehearse(lambda: self._call(W, x, y, weight, G)))
        trained = {n: t.requires_grad_() for n, t in self.layout.trained(W.detach()).items()}
        left = W[:, d:].detach().clone() if self.buffered else None
        tensors = trained
        if left is not None:  # frozen weights as they are: autograd would notice that the statistics beside them move
            frozen = {n: t for n, t in self.layout.rest(W.detach()).items() if n not in self.statistics}
            tensors = {**trained, **self.layout.rest(left, d), **frozen}
        slots = self.layout.trained(G)
        rows = Rows(tensors, k, {n: slot for n, slot in slots.items() if self.plan.called_once(n)})
        with torch.enable_grad(), self._switches():
            with self._autocast():
                outputs = self.plan(rows, x.bfloat16() if self._halves(x) else x)
            losses = self.loss.each(outputs.to(W.dtype), y, weight)
            slopes: Sequence[Tensor | None] = torch.autograd.grad(
                losses.sum(), list(trained.values()), allow_unused=True
            )
        for (name, slot), slope in zip(slots.items(), slopes, strict=True):
            if slope is not None:
                slot.copy_(slope)
            elif name not in rows.written:
                slot.zero_()
        return G, losses.detach(), left

    def _rehearses(self, W: Tensor, x: Tensor) -> bool:
        """Whether the kernels for batches of this shape are to be compiled ahead. The first shape is that of the few
        samples by which this was chosen. A user's own loss is not called in vain."""
        new = x.shape not in self.rehearsed and len(self.rehearsed) < 2
        return new and self.loss in LOSSES.values() and W.is_cuda and launching.usable(W)

    def _halves(self, x: Tensor) -> bool:
        return self.products == "bf16" and x.is_floating_point()

    def outputs(self, W: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad(), self._switches(), self._autocast():
            outputs = self.evaluation(Rows(self.layout.tensors(W), len(W)), x.bfloat16() if self._halves(x) else x)
        return outputs.to(W.dtype)


def _cut(weight: Tensor | None, size: int) -> Tensor | None:
    return None if weight is None else weight[:, :size]


def batch_weights(batch: Batch, like: Tensor) -> Tensor:
    """(k, b) weights in which padding weighs nothing."""
    counts = torch.tensor(batch.counts, device=batch.x.device) if batch.sizes is None else batch.sizes
    real = (torch.arange(max(batch.counts), device=batch.x.device) < counts[:, None]).to(like.dtype)
    return real if batch.weight is None else real * batch.weight[:, : real.shape[1]]


def _slopes(value: Tensor, weights: list[Tensor], again: bool = False) -> list[Tensor]:
    """Flat derivatives of a value by each tensor of weights; `again`: to be derived once more."""
    with torch.enable_grad():
        slopes = torch.autograd.grad(value, weights, create_graph=again, allow_unused=True, materialize_grads=True)
        return [slope.reshape(-1) for slope in slopes]


class _stream:
    """Inside, layers that draw random numbers (dropout) draw them from the client's own stream."""

    def __init__(self, batch: Batch, client: int, device: torch.device) -> None:
        self.seed = None if batch.seeds is None else batch.seeds(client)
        self.fork = torch.random.fork_rng([device] if device.type == "cuda" else [])

    def __enter__(self) -> None:
        if self.seed is not None:
            self.fork.__enter__()
            torch.manual_seed(self.seed)

    def __exit__(self, *error: object) -> None:
        if self.seed is not None:
            self.fork.__exit__(None, None, None)


CONVOLUTIONS = (nn.modules.conv._ConvNd,)
BATCH_STATISTICS = (nn.modules.batchnorm._BatchNorm,)


def has_batch_statistics(module: nn.Module) -> bool:
    return any(isinstance(m, BATCH_STATISTICS) for m in module.modules())
