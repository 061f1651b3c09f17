"""Which way to run clients is taken for a model, and why: `choose` tries it on a few samples, in float64."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..base.task import Loss
from ..base.weights import Layout
from ..base.wording import first_line
from ..gpu.cuda_graphs import aligned
from .execution import CONVOLUTIONS, Batch, Layered, OneByOne, Stacked, has_batch_statistics
from .layers import Unknown


def draws_random_numbers(module: nn.Module, x: Tensor) -> bool:
    """Whether a training-mode pass draws torch's random numbers (dropout and the like), however rarely it shows."""
    module = copy.deepcopy(module).to(x.device).train()
    devices = [x.device] if x.device.type == "cuda" else []

    def state() -> list[Tensor]:
        return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]

    with torch.no_grad(), torch.random.fork_rng(devices):
        before = state()
        module(x)
        return not all(map(torch.equal, before, state()))


def remembers(module: nn.Module, x: Tensor) -> bool:
    """Whether a training-mode pass changes what the module holds besides tensors, such as a count of its calls."""
    module = copy.deepcopy(module).to(x.device).train()
    before = copy.deepcopy([_held(part) for part in module.modules()])
    with torch.no_grad(), torch.random.fork_rng([x.device] if x.device.type == "cuda" else []):
        module(x)
    try:
        return not all(map(_alike, before, [_held(part) for part in module.modules()]))
    except Exception:  # what cannot be compared may have changed
        return True


def _held(part: nn.Module) -> dict[str, object]:
    tensors = ("_parameters", "_buffers", "_modules")
    return {n: v for n, v in vars(part).items() if n not in tensors and not isinstance(v, Tensor)}


def _alike(a: object, b: object) -> bool:
    """Equal, or of one kind and holding equal things: an object need not say when it equals another."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_alike(a[n], b[n]) for n in a)
    return bool(a == b) or (
        type(a) is type(b) and hasattr(a, "__dict__") and bool(vars(a)) and _alike(vars(a), vars(b))
    )


@dataclass(frozen=True)
class Choice:
    """How clients are run, and the reason in words; recorded so that a resumed run does not decide again."""

    execution: OneByOne | Stacked
    reason: str
    random_layers: bool = field(default=False)


def choose(
    module: nn.Module,
    layout: Layout,
    loss: Loss,
    x: Tensor,
    y: Tensor,
    wanted: str = "auto",
    products: str = "float32",
) -> Choice:
    """Decides between 'stacked' and 'one-by-one' by this rule (x, y: a few samples of one client).

    1. Layers that draw random numbers: one-by-one.
    2. Stacked layer by layer where all layers with weights are known, else by vmap; each only if gradient *and* forward
       pass give the numbers of separate modules, and with products in half precision only if that can be done at all.
       Otherwise one-by-one.
    3. Convolutions on a CPU: one-by-one, which is as fast there and needs less memory.
    4. Otherwise stacked.
    """
    plain = OneByOne(module, layout, loss, x.device)
    plain.products = products
    if draws_random_numbers(module, x):
        return Choice(plain, "the model has layers that draw random numbers (such as dropout)", True)
    probe, few, targets = _in_double_precision(module, x, y)
    live = remembers(module, x)
    kind, word = _way_to_stack(probe, layout, loss, few, targets, live)
    if kind is None:
        return Choice(plain, word)
    stacked = kind(module, layout, loss, x.device)
    stacked.products = products
    if products == "bf16" and (error := _error(stacked, module, x, y)) is not None:
        return Choice(plain, f"torch cannot stack this model in bf16 ({error})")
    if live:
        stacked.player = None
    exact = loss.may_be_padded and not has_batch_statistics(module)
    stacked.pads = exact and _padding_is_exact(kind(probe, layout, loss, x.device), probe, few, targets)
    if wanted == "stacked":
        return Choice(stacked, "as configured")
    if wanted == "one-by-one":
        return Choice(plain, "as configured")
    if x.device.type == "cpu" and any(isinstance(m, CONVOLUTIONS) for m in module.modules()):
        return Choice(plain, "convolutions on a CPU are as fast a client at a time, in less memory")
    return Choice(stacked, word)


def _way_to_stack(
    module: nn.Module, layout: Layout, loss: Loss, x: Tensor, y: Tensor, live: bool
) -> tuple[type[Stacked] | None, str]:
    """How this model can be stacked, if at all, and a word on it: a sentence's end. `live`: its passes change it."""
    try:
        if live:
            raise Unknown("its forward pass changes what it holds")
        if len(x) < 2:
            raise Unknown("one sample cannot show whether samples depend on each other")
        trouble = _trouble(Layered(module, layout, loss, x.device), module, x, y)
    except Unknown as unknown:
        trouble = str(unknown)
    if trouble is None:
        return Layered, "clients are stacked layer by layer"
    if (trouble_of_vmap := _trouble(Stacked(module, layout, loss, x.device), module, x, y)) is not None:
        return None, trouble_of_vmap
    return Stacked, f"clients are stacked by vmap ({trouble})"


def _pair(layout: Layout, module: nn.Module, x: Tensor) -> Tensor:
    """Two rows that differ a little, to probe with; they lie in memory as those do that will be trained."""
    row = layout.row(module, x.dtype if x.is_floating_point() else None).to(x.device)
    return aligned(row, 2, len(row)).copy_(torch.stack([row, row * 1.01]))


def _in_double_precision(module: nn.Module, x: Tensor, y: Tensor) -> tuple[nn.Module, Tensor, Tensor]:
    """Model and samples in float64, where a GPU's TF32 cannot be taken for a difference; as they are if that fails."""
    twin = copy.deepcopy(module).double()
    wide, target = (t.double() if t.is_floating_point() else t for t in (x, y))
    try:
        with torch.no_grad():
            copy.deepcopy(twin).to(x.device).eval()(wide)
    except RuntimeError:  # a model with float32 constants of its own
        return module, x, y
    return twin, wide, target


def _trouble(stacked: Stacked, module: nn.Module, x: Tensor, y: Tensor) -> str | None:
    """Why this model cannot be stacked in that way: a sentence's end, or None."""
    layout = stacked.layout
    plain = OneByOne(module, layout, stacked.loss, x.device)
    W = _pair(layout, module, x)
    # The second client has other samples, between the first's: a mean over all must not be the same for both.
    other = torch.arange(len(x), device=x.device) // 2
    between = (x + x[:1]) / 2 if x.is_floating_point() else x[other]
    batch = Batch(torch.stack([x, between]), torch.stack([y, y[other]]), [len(x)] * 2)
    expected = (*plain.grad(W, batch), plain.outputs(W, batch.x))
    try:
        found = (*stacked.grad(W, batch), stacked.outputs(W, batch.x))
    except Exception as error:  # whatever vmap cannot do surfaces as any of many exceptions
        return f"torch cannot stack this model ({first_line(error)})"
    for a, b in zip(expected, found, strict=True):
        if a is not None and b is not None and (a.shape != b.shape or not _close(a, b)):
            return "stacking this model does not give the numbers of separate modules"
    return None


def _error(stacked: Stacked, module: nn.Module, x: Tensor, y: Tensor) -> str | None:
    """What a gradient or a forward pass of two clients fails with, if it does."""
    W, batch = _pair(stacked.layout, module, x), Batch(torch.stack([x, x]), torch.stack([y, y]), [len(x)] * 2)
    try:
        stacked.grad(W, batch, aligned(W, 2, stacked.layout.parameters))
        stacked.outputs(W, batch.x)
    except Exception as error:
        return first_line(error)
    return None


def _padding_is_exact(stacked: Stacked, module: nn.Module, x: Tensor, y: Tensor) -> bool:
    if len(x) < 2:  # a batch of one cannot show whether samples depend on each other
        return False
    W = _pair(stacked.layout, module, x)
    batch = Batch(torch.stack([x, x]), torch.stack([y, y]), [len(x), len(x) - 1])
    separate = stacked.grad(W, batch)
    stacked.pads = True
    padded = stacked.grad(W, batch)
    stacked.pads = False
    return all(a is None or b is None or _close(a, b) for a, b in zip(separate, padded, strict=True))


def _close(a: Tensor, b: Tensor) -> bool:
    """Equal to rounding, measured against the size of the whole."""
    tolerance = 1e-2 if a.dtype != torch.float64 else 1e-6
    return bool((a - b).norm() <= tolerance * a.norm() + torch.finfo(a.dtype).tiny)
