"""The GPU's kernels give torch's numbers. Without a GPU they run in Triton's interpreter, in single precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE
from torch import Tensor, nn

pytest.importorskip("triton")

from fedkin.base.task import LOSSES
from fedkin.base.weights import Layout
from fedkin.gpu import launching, layer_kernels, pairs_of_rows
from fedkin.maths import collaboration as co
from fedkin.training import models
from fedkin.training.execution import Batch, Layered, OneByOne, tf32
from fedkin.training.optimisers import Local, Optimiser, Proximal


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(launching, "INTERPRETED", DEVICE.type == "cpu")
    torch.manual_seed(0)
    with tf32(False):
        yield


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape).to(DEVICE).requires_grad_()


def assert_near(found: Tensor, expected: Tensor, tolerance: float = 2e-6) -> None:
    assert found.shape == expected.shape
    found, expected = found.detach().double(), expected.detach()
    assert float((found - expected).norm()) <= tolerance * float(expected.norm()) + 1e-30


def as_double(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if t is None else t.detach().double().requires_grad_() for t in tensors]


CONVOLUTIONS = {
    # clients, images, channels, height, width, filter, stride, padding, dilation, outputs, bias
    "one channel": (3, 2, 1, 8, 7, (5, 5), (1, 1), (2, 2), (1, 1), 5, True),
    "colours": (2, 2, 3, 9, 8, (3, 3), (2, 2), (1, 1), (1, 1), 16, False),
    "a stem": (2, 2, 3, 12, 11, (7, 7), (2, 2), (3, 3), (1, 1), 8, True),
    "few channels": (3, 2, 32, 6, 6, (3, 3), (1, 1), (1, 1), (1, 1), 20, True),
    "many channels": (2, 2, 64, 5, 6, (3, 3), (1, 1), (1, 1), (1, 1), 17, True),
    "many channels, a stride": (2, 2, 64, 5, 6, (3, 3), (2, 2), (1, 1), (1, 1), 64, False),
    "one pixel, a stride": (2, 2, 64, 7, 9, (1, 1), (2, 2), (0, 0), (1, 1), 8, False),
    "odd channels": (2, 2, 5, 6, 7, (4, 4), (1, 1), (1, 2), (1, 1), 3, True),
    "dilated": (2, 2, 4, 9, 9, (3, 2), (1, 1), (2, 1), (2, 1), 8, True),
    "uneven strides": (2, 2, 4, 9, 9, (3, 3), (3, 2), (1, 0), (1, 1), 8, True),
    "a stride beyond the image": (2, 3, 8, 1, 1, (1, 1), (2, 2), (0, 0), (1, 1), 4, False),
    "a stride beyond one side": (2, 2, 4, 2, 5, (1, 2), (3, 2), (0, 0), (1, 1), 4, True),
    "one pixel, a filter beyond it": (2, 3, 64, 1, 1, (3, 3), (1, 1), (1, 1), (1, 1), 32, False),
    "two pixels, a filter beyond them": (2, 2, 32, 2, 1, (3, 3), (2, 2), (1, 1), (1, 1), 16, True),
    "places far beyond the image": (2, 2, 32, 3, 4, (3, 3), (1, 1), (4, 4), (4, 4), 8, False),
    "no place but one column": (2, 2, 32, 4, 1, (2, 4), (1, 1), (1, 3), (1, 1), 8, False),
    "a wide stem": (2, 2, 3, 12, 11, (7, 7), (2, 2), (3, 3), (1, 1), 8, False),
    "one pixel, a stride, places with a gap": (2, 2, 64, 1, 1, (3, 3), (2, 2), (2, 2), (1, 1), 8, False),
    "few pixels, a long stride, places with a gap": (1, 2, 64, 2, 2, (4, 4), (3, 3), (3, 3), (1, 1), 8, True),
    "one pixel of 96 channels": (2, 2, 96, 3, 4, (1, 1), (1, 1), (0, 0), (1, 1), 24, True),
    "one pixel of 160 channels, a stride": (2, 2, 160, 3, 4, (1, 1), (2, 2), (0, 0), (1, 1), 8, False),
    "many pixels": (1, 2, 64, 20, 20, (3, 3), (1, 1), (1, 1), (1, 1), 8, False),
    "wide": (1, 1, 128, 3, 3, (3, 3), (1, 1), (1, 1), (1, 1), 130, False),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("into", ["new tensors", "the matrix of gradients"])
def test_a_stacked_convolution_is_one_for_each_client(case: str, into: str) -> None:
    k, n, channels, height, width, size, stride, padding, dilation, outputs, biased = CONVOLUTIONS[case]
    x, weight = drawn(k * n, channels, height, width), drawn(k, outputs, channels, *size)
    bias = drawn(k, outputs) if biased else None
    written: set[str] = set()
    G = torch.full((k, weight[0].numel() + 7), 99.0, device=DEVICE)
    sink = layer_kernels.Sink(G[:, 3 : 3 + weight[0].numel()].view(weight.shape), "weight", written)
    given = sink if into == "the matrix of gradients" else None
    y = layer_kernels.Convolution.apply(x, weight, bias, given, None, (stride, padding, dilation))
    slope = torch.randn_like(y)
    asked = [x, weight] if bias is None else [x, weight, bias]
    dx, dw, *db = torch.autograd.grad(y, asked, slope, allow_unused=True)
    X, Wd, B = as_double(x, weight, bias)
    assert X is not None and Wd is not None
    each = [
        F.conv2d(own, Wd[i], None if B is None else B[i], stride, padding, dilation) for i, own in enumerate(X.chunk(k))
    ]
    expected = torch.cat(each)
    ex, ew, *eb = torch.autograd.grad(expected, [t for t in (X, Wd, B) if t is not None], slope.double())
    assert_near(y, expected)
    assert_near(dx, ex)
    if given is None:
        assert_near(dw, ew)
    else:
        assert dw is None and written == {"weight"}
        assert_near(sink.gradient, ew)
        assert (G[:, :3] == 99).all() and (G[:, 3 + weight[0].numel() :] == 99).all()
    for found, wanted in zip(db, eb, strict=True):
        assert_near(found, wanted)


@pytest.mark.parametrize("case", ["one channel", "few channels", "many channels, a stride"])
def test_half_precision_rounds_products_and_not_their_sums(case: str) -> None:
    """In float16, which the interpreter knows; bfloat16 is rounded more coarsely by the same code."""
    k, n, channels, height, width, size, stride, padding, dilation, outputs, _ = CONVOLUTIONS[case]
    x = drawn(k * n, channels, height, width).detach().half().requires_grad_()
    weight = drawn(k, outputs, channels, *size)
    y = layer_kernels.Convolution.apply(x, weight, None, None, None, (stride, padding, dilation))
    slope = torch.randn_like(y)
    dw = torch.autograd.grad(y, weight, slope)[0]
    X, Wd = as_double(x, weight.detach().half())
    assert X is not None and Wd is not None
    expected = torch.cat([F.conv2d(own, Wd[i], None, stride, padding, dilation) for i, own in enumerate(X.chunk(k))])
    assert y.dtype == torch.float16 and dw.dtype == torch.float32
    assert_near(y, expected, 1e-3)
    assert_near(dw, torch.autograd.grad(expected, Wd, slope.double())[0])


@pytest.mark.parametrize(("height", "width", "side"), [(6, 8, 2), (7, 9, 2), (7, 5, 3)])
def test_relu_and_pooling_in_one(height: int, width: int, side: int) -> None:
    x = drawn(5, 3, height, width)
    y, expected = layer_kernels.ReluPool.apply(x, side), F.max_pool2d(torch.relu(x), side)
    slope = torch.randn_like(expected)
    assert torch.equal(y, expected)
    assert torch.equal(torch.autograd.grad(y, x, slope)[0], torch.autograd.grad(expected, x, slope)[0])


def test_pooling_takes_the_first_of_equals_and_nothing_below_zero() -> None:
    x = torch.tensor([[2.0, 2.0, -1.0, -2.0], [2.0, 1.0, -3.0, -1.0]], device=DEVICE).view(1, 1, 2, 4).requires_grad_()
    y = layer_kernels.ReluPool.apply(x, 2)
    assert y.flatten().tolist() == [2.0, 0.0]
    assert torch.autograd.grad(y.sum(), x)[0].flatten().tolist() == [1, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("shape", [(4, 5, 7, 9), (2, 70, 3, 3), (6, 3, 20, 20)])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_statistics_are_each_clients_own(shape: tuple[int, ...], affine: bool) -> None:
    """Far from zero too, where a sum of squares would lose the variance."""
    k, channels = 2, shape[1]
    x = (drawn(*shape).detach() + 300).requires_grad_()
    weight, bias = (drawn(k, channels), drawn(k, channels)) if affine else (None, None)
    y, mean, var = layer_kernels.BatchNorm.apply(x, weight, bias, k, 1e-5, None, False)
    slope = torch.randn_like(y)
    X, Wd, B = as_double(x, weight, bias)
    assert X is not None
    each = [
        F.batch_norm(own, None, None, None if Wd is None else Wd[i], None if B is None else B[i], True, 0.0, 1e-5)
        for i, own in enumerate(X.chunk(k))
    ]
    expected = torch.cat(each)
    assert_near(y, expected, 1e-4)
    spread = X.detach().view(k, -1, *shape[1:])
    assert_near(mean, spread.mean((1, 3, 4)))
    assert_near(var, spread.var((1, 3, 4), correction=0), 1e-4)
    found = torch.autograd.grad(y, [t for t in (x, weight, bias) if t is not None], slope)
    wanted = torch.autograd.grad(expected, [t for t in (X, Wd, B) if t is not None], slope.double())
    for a, b in zip(found, wanted, strict=True):
        assert_near(a, b, 1e-3)


@pytest.mark.parametrize("added", [True, False])
def test_a_shortcut_and_a_relu_go_with_the_statistics(added: bool) -> None:
    k, x, weight, bias = 2, drawn(4, 5, 3, 6), drawn(2, 5), drawn(2, 5)
    other = drawn(4, 5, 3, 6) if added else None
    y, _, _ = layer_kernels.BatchNorm.apply(x, weight, bias, k, 1e-5, other, True)
    slope = torch.randn_like(y)
    X, Wd, B, Z = as_double(x, weight, bias, other)
    assert X is not None and Wd is not None and B is not None
    each = [F.batch_norm(own, None, None, Wd[i], B[i], True, 0.0, 1e-5) for i, own in enumerate(X.chunk(k))]
    expected = torch.relu(torch.cat(each) if Z is None else torch.cat(each) + Z)
    assert_near(y, expected)
    found = torch.autograd.grad(y, [t for t in (x, weight, bias, other) if t is not None], slope)
    wanted = torch.autograd.grad(expected, [t for t in (X, Wd, B, Z) if t is not None], slope.double())
    for a, b in zip(found, wanted, strict=True):
        assert_near(a, b, 1e-5)


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip


def small_resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        models.BasicBlock(4, 4), models.BasicBlock(4, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


class Twice(nn.Module):
    """A layer that is called twice, and one that is called for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.idle, self.head = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(8, 8), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        self.idle(x)
        return self.head(self.conv(torch.tanh(self.conv(x))).flatten(1))


@pytest.mark.parametrize("network", [small_cnn, small_resnet, Twice])
def test_a_gradient_through_the_kernels_is_that_of_separate_modules(network: type[nn.Module]) -> None:
    """Gradients written where they belong, added up where a layer is called twice, zero where it has no effect."""
    module = network()
    layout, loss = Layout.of(module), LOSSES["cross_entropy"]
    W = torch.stack([layout.row(module) * (1 + 0.1 * i) for i in range(3)]).to(DEVICE)
    batch = Batch(torch.randn(3, 4, 1, 8, 8).to(DEVICE), torch.randint(0, 5, (3, 4)).to(DEVICE), [4] * 3)
    layered = Layered(module, layout, loss, DEVICE)
    layered.products = "float32-strict"
    found = layered.grad(W, batch, torch.full((3, layout.parameters), 99.0).to(DEVICE))
    wide = Batch(batch.x.double(), batch.y, batch.counts)
    expected = OneByOne(module.double(), layout, loss, DEVICE).grad(W.double(), wide)
    for a, b in zip(found, expected, strict=True):
        if b is not None:
            assert a is not None
            assert_near(a, b, 1e-5)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("near", ["exact", "gradient", None])
@pytest.mark.parametrize("rates", [1e-2, [1e-2, 1e-3, 5e-2]], ids=["one rate", "a rate a row"])
def test_adam_takes_the_steps_of_the_plain_formula(
    decay: float, near: str | None, rates: float | list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of different lengths in memory, clients that stop earlier, and a proximal term."""
    lr = torch.tensor(rates, dtype=torch.float64)[:, None].to(DEVICE) if isinstance(rates, list) else rates
    start, anchor = torch.randn(3, 50).to(DEVICE), torch.randn(3, 60).to(DEVICE)
    G = torch.randn(4, 3, 40).to(DEVICE)
    beta = torch.tensor([[1e-3], [1.0], [0.2]]).to(DEVICE)
    rows = []
    for fused in (True, False):
        monkeypatch.setattr(launching, "usable", lambda x, fused=fused: fused)
        W = start.clone()
        optimiser = Optimiser(Local(weight_decay=decay), W, 40)
        for step in range(4):
            extra = Proximal(anchor, beta, near == "exact") if near else None
            optimiser.step(W, G[step, : 3 - step // 2].clone(), lr, extra)
        rows.append(W)
    assert torch.allclose(rows[0], rows[1], rtol=1e-6, atol=1e-7)
    assert torch.equal(rows[0][:, 40:], start[:, 40:])
    assert float((rows[0] - start).abs().max()) > 1e-2


def test_these_kernels_are_for_matrix_units_alone() -> None:
    assert launching.usable(torch.zeros(1, device=DEVICE))
    assert not launching.usable(torch.zeros(1, device=DEVICE, dtype=torch.float64))
    assert not launching.usable(torch.zeros(1, device=DEVICE, dtype=torch.int64))
    assert layer_kernels.convolves(nn.Conv2d(2, 2, 3, stride=2)) and layer_kernels.convolves(
        nn.Conv2d(2, 2, 3, dilation=2)
    )
    for other in (
        nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(2, 2, 3, padding="same"),
        nn.Conv2d(2, 2, 3, stride=2, dilation=2),
    ):
        assert not layer_kernels.convolves(other)


# Compiled ahead


def test_a_rehearsal_notes_each_kernel_once_and_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    monkeypatch.setattr(launching, "_compile", lambda start, before=None: noted.append(start.kernel.__name__))
    x, weight = drawn(4, 64, 5, 5), drawn(2, 8, 64, 3, 3)
    G = torch.full(weight.shape, 99.0, device=DEVICE)

    def step() -> Tensor:
        sink = layer_kernels.Sink(G, "weight", set())
        y = layer_kernels.Convolution.apply(x, weight, None, sink, None, ((1, 1), (1, 1), (1, 1)))
        y.sum().backward()
        return y

    def twice() -> None:
        step()
        step()

    assert launching.rehearse(twice) == launching.Rehearsed(5)
    assert sorted(noted) == ["convolve", "convolve_back", "convolve_weights", "turned", "turned"]
    assert (G == 99).all(), "something was started"
    assert torch.equal(step(), step()) and not (G == 99).any()


# Who helps whom


@pytest.mark.parametrize(("m", "d"), [(5, 300), (20, 64), (130, 70)])
@pytest.mark.parametrize("scaled", [True, False])
def test_products_of_centred_rows(m: int, d: int, scaled: bool) -> None:
    """Rows that almost agree keep their distances (trap T14), in one tile and in several."""
    W = (1 + 1e-3 * torch.randn(m, d)).to(DEVICE)
    scale = torch.rand(m).to(DEVICE) * 1e-4 + 1 if scaled else None
    found, squares = pairs_of_rows.gram(W[:, : d - 3], scale)
    rows = W[:, : d - 3].double() * (1 if scale is None else scale.double()[:, None])
    # The centre is rounded, but it is the same for all. A scaled row is rounded for itself.
    assert_near(_distances(found), torch.cdist(rows, rows).square(), 3e-4 if scaled else 1e-5)
    assert_near(squares, rows.square().sum(1))
    assert torch.equal(found, found.T)


def _distances(gram: Tensor) -> Tensor:
    return gram.diagonal()[:, None] + gram.diagonal()[None, :] - 2 * gram


def test_rows_that_agree_have_no_distance() -> None:
    found, _ = pairs_of_rows.gram(torch.randn(1, 500).to(DEVICE).repeat(7, 1))
    assert not _distances(found).any()


@pytest.mark.parametrize(("r", "m", "d"), [(4, 7, 300), (20, 20, 129), (150, 40, 50), (30, 150, 200)])
def test_mixing_is_exact_to_the_last_digits(r: int, m: int, d: int) -> None:
    xi, W = torch.softmax(torch.randn(r, m), 1).to(DEVICE), torch.randn(m, d).to(DEVICE)
    U = torch.empty(r, d + 5, device=DEVICE)[:, :d]
    pairs_of_rows.mix(xi, W, U)
    assert_near(U, xi.double() @ W.double(), 2e-7)


def test_mixing_with_the_identity_changes_no_bit() -> None:
    """Trap T26, of large and small numbers; and in place."""
    W = torch.randn(9, 400).to(DEVICE) * 10.0 ** torch.randint(-20, 20, (9, 400)).to(DEVICE)
    U = torch.empty_like(W)
    pairs_of_rows.mix(torch.eye(9, device=DEVICE, dtype=torch.float64), W, U)
    assert torch.equal(U, W)
    pairs_of_rows.mix(torch.eye(9, device=DEVICE, dtype=torch.float64).flip(0), W, W)
    assert torch.equal(W, U.flip(0))


def test_large_matrices_are_left_to_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same distances and cloud models; of some rows or columns, or from an origin, as ever."""
    W = (1 + 0.1 * torch.randn(12, 700)).to(DEVICE)
    W[3] = 0
    xi = torch.softmax(torch.randn(12, 12, dtype=torch.float64), 1).to(DEVICE)
    plain = (*co.squared_distances(W), co.cosine_distances(W), co.mix(xi, W))
    monkeypatch.setattr(co, "LARGE", 0)
    called = []
    for name in ("gram", "mix"):
        own = getattr(pairs_of_rows, name)
        monkeypatch.setattr(pairs_of_rows, name, lambda *given, own=own, name=name: called.append(name) or own(*given))
    found = (*co.squared_distances(W), co.cosine_distances(W), co.mix(xi, W))
    assert called == ["gram", "gram", "mix"]
    for a, b in zip(found, plain, strict=True):
        assert_near(a, b.double(), 1e-5)
    assert not found[0].diagonal().any() and float(found[2][3, 0]) == pytest.approx(0.5, abs=1e-5)
    co.squared_distances(W, columns=torch.arange(5))
    co.cosine_distances(W, origin=W[0])
    assert len(called) == 3


def test_a_pair_much_nearer_than_the_others_is_looked_at_in_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside models that are far away, single precision would blur what tells two of them apart (trap T14)."""
    W = (10 * torch.randn(12, 700)).to(DEVICE)
    W[5] = W[4] + 1e-4 * torch.randn(700).to(DEVICE)
    plain = co.squared_distances(W)[0], co.cosine_distances(W)
    monkeypatch.setattr(co, "LARGE", 0)
    assert torch.equal(co.squared_distances(W)[0], plain[0]) and torch.equal(co.cosine_distances(W), plain[1])
    exact = W.double()
    assert float(plain[0][4, 5]) == pytest.approx(float((exact[4] - exact[5]).square().sum()), rel=1e-5)


@pytest.mark.parametrize("case", ["few channels", "many channels, a stride", "one channel"])
def test_weights_gradients_with_tf32_have_more_digits_than_that(case: str) -> None:
    k, n, channels, height, width, size, stride, padding, dilation, outputs, _ = CONVOLUTIONS[case]
    x, weight = drawn(k * n, channels, height, width), drawn(k, outputs, channels, *size)
    with tf32(True):
        y = layer_kernels.Convolution.apply(x, weight, None, None, None, (stride, padding, dilation))
        slope = torch.randn_like(y)
        dw = torch.autograd.grad(y, weight, slope)[0]
    X, Wd = as_double(x, weight)
    assert X is not None and Wd is not None
    expected = torch.cat([F.conv2d(own, Wd[i], None, stride, padding, dilation) for i, own in enumerate(X.chunk(k))])
    found = torch.autograd.grad(expected, Wd, slope.double())[0]
    assert_near(dw, found, 2e-5)
    assert float((dw - found).norm()) > 3e-7 * float(found.norm()), "as exact as float32: not in parts"


@pytest.mark.parametrize(("precision", "meaning"), [("float32", "tf32"), ("float32-strict", "ieee")])
def test_kernels_of_a_backward_pass_multiply_as_those_of_the_forward_pass_do(
    precision: str, meaning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told when they are started, by switches that somebody else may have set otherwise."""
    started: dict[str, set[str]] = {}

    def launch(kernel: Any, grid: Any, *given: Any, **further: Any) -> None:
        if "PRECISION" in further:
            started.setdefault(kernel.__name__, set()).add(further["PRECISION"])
        launching.launch(kernel, grid, *given, **further)

    monkeypatch.setattr(layer_kernels, "launch", launch)
    monkeypatch.setattr(Layered, "on_gpu", True)
    module = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    layout = Layout.of(module)
    run = Layered(module, layout, LOSSES["cross_entropy"], DEVICE)
    run.products = precision
    x, y = torch.randn(2, 3, 1, 6, 6).to(DEVICE), torch.randint(3, (2, 3)).to(DEVICE)
    with tf32(meaning != "tf32"):
        run.grad(layout.row(module).to(DEVICE).repeat(2, 1), Batch(x, y, [3, 3]))
    assert started == {name: {meaning} for name in ("convolve", "convolve_back", "convolve_weights")}


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0x7FC00000, -1])
def test_what_is_not_a_number_stays_so(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a GPU's own bits, too: a gradient that is lost would hide that a training diverged."""
    nan = torch.tensor(bits, dtype=torch.int32).view(torch.float32).to(DEVICE)
    x, weight = drawn(2, 64, 3, 3).detach(), drawn(2, 8, 64, 3, 3)
    for there in (x, slope := drawn(2, 8, 3, 3).detach()):
        there[1, 2, 1, 1] = nan
        with tf32(True):
            y = layer_kernels.Convolution.apply(x, weight, None, None, None, ((1, 1), (1, 1), (1, 1)))
            dw = torch.autograd.grad(y, weight, slope)[0]
        assert dw[1].isnan().any() and not dw[0].isnan().any()
        there[1, 2, 1, 1] = 1.0
    W = drawn(5, 200).detach()
    W[3, 7] = nan
    monkeypatch.setattr(co, "LARGE", 0)
    assert co.squared_distances(W)[0][3, :3].isnan().all()
    assert pairs_of_rows.gram(W)[0][3].isnan().all()


@pytest.mark.parametrize("d", [640, 642, 643])
def test_rows_may_begin_anywhere(d: int) -> None:
    """In memory that is read four numbers at a time, two, or one."""
    W = torch.randn(6, d).to(DEVICE)[:, : d - 4]
    found, _ = pairs_of_rows.gram(W)
    assert_near(_distances(found), torch.cdist(W.double(), W.double()).square(), 1e-5)
    xi, U = torch.softmax(torch.randn(6, 6), 1).to(DEVICE), torch.empty(6, d, device=DEVICE)[:, : d - 4]
    pairs_of_rows.mix(xi, W, U)
    assert_near(U, xi.double() @ W.double(), 2e-7)
