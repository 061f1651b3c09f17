"""A module read layer by layer: what is done together, what is known, and what is left to vmap."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import DEVICE
from torch import Tensor, nn

from fedkin.base.task import LOSSES
from fedkin.base.weights import Layout
from fedkin.training import models
from fedkin.training.execution import Batch, Layered, OneByOne
from fedkin.training.layers import Plan, Unknown


class Shared(nn.Module):
    """One pooling after a relu and after none, one relu for two places, a norm whose output is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.norm1, self.norm2 = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.relu, self.pool, self.head = nn.ReLU(), nn.MaxPool2d(2), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.pool(self.relu(self.conv1(x)))
        normed = self.norm1(h)
        h = self.relu(normed) + normed
        h = torch.relu(self.norm2(self.conv2(h)) + h)
        return self.head(self.pool(-h).flatten(1))


class InPlace(nn.Module):
    """A relu that overwrites what is used afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu, self.pool = nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        self.head = nn.Linear(48 + 192, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        small = self.pool(self.relu(h))
        return self.head(torch.cat([small.flatten(1), h.flatten(1)], 1))


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Linear(144, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sigmoid(self.norm(self.conv(x))).reshape(x.size(0), -1))


class Tokens(nn.Module):
    """Linear layers and a LayerNorm over the last of several dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.norm, self.head = nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lift(x.squeeze(1))
        return self.head(self.norm(h + h.flip(1)).mean(1))


def frozen(*layers: nn.Module) -> nn.Module:
    """A network whose first convolution and norm are not trained."""
    module = nn.Sequential(*layers)
    for parameter in list(module.parameters())[:3]:
        parameter.requires_grad_(False)
    return module


KNOWN: dict[str, Callable[[], nn.Module]] = {
    "cnn": lambda: models.cnn((1, 8, 8), 3),
    "residual": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        models.BasicBlock(4, 4),
        models.BasicBlock(4, 8, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    ),
    "shared": Shared,
    "in place": InPlace,
    "grouped": Grouped,
    "tokens": Tokens,
    "frozen": lambda: frozen(models.BasicBlock(1, 4, 2), nn.Flatten(), nn.Linear(64, 3)),
    "a large pool": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.Upsample(scale_factor=4),
        nn.ReLU(),
        nn.MaxPool2d(16),
        nn.Flatten(),
        nn.Linear(8, 3),
    ),
    "statistics of the batch alone": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5, affine=False, track_running_stats=False), nn.Linear(5, 3)
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_each_clients_numbers_are_those_of_its_own_module(name: str) -> None:
    torch.manual_seed(0)
    module = KNOWN[name]().double()
    layout, loss = Layout.of(module), LOSSES["cross_entropy"]
    row = layout.row(module)
    W = (row * (1 + 0.3 * torch.rand(3, len(row), dtype=torch.float64))).to(DEVICE)
    x, y = torch.randn(3, 5, 1, 8, 8, dtype=torch.float64).to(DEVICE), torch.randint(0, 3, (3, 5)).to(DEVICE)
    together, alone = (kind(module, layout, loss, DEVICE) for kind in (Layered, OneByOne))
    found = (*together.grad(W, Batch(x, y, [5] * 3)), together.outputs(W, x))
    expected = (*alone.grad(W, Batch(x, y, [5] * 3)), alone.outputs(W, x))
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert a.shape == b.shape and float((a - b).norm()) <= 1e-10 * float(b.norm())


def steps(module: nn.Module) -> list[str]:
    return [str(node.target) for node in Plan.of(module).forward.graph.nodes if node.op == "call_module"]


def test_a_relu_goes_with_the_pooling_and_the_statistics_beside_it() -> None:
    assert [s.startswith("together") for s in steps(models.cnn((1, 8, 8), 3))] == [
        False, True, False, True, False, False, False, False,
    ]  # fmt: skip
    assert sum(s.startswith("together") for s in steps(models.BasicBlock(4, 8, 2))) == 2
    # One pooling follows a relu, one norm has one user: a sum and a relu. The rest stays apart.
    assert sum(s.startswith("together") for s in steps(Shared())) == 2
    assert not any(s.startswith("together") for s in steps(InPlace()))
    for side, together in ((15, True), (16, False)):  # a byte says which of the pixels is the largest
        pooled = nn.Sequential(nn.ReLU(), nn.MaxPool2d(side), nn.Flatten(), nn.Linear(4, 3))
        assert any(s.startswith("together") for s in steps(pooled)) == together


@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.BatchNorm1d(6), nn.Identity()])
def test_half_precision_rounds_products_and_nothing_else(norm: nn.Module) -> None:
    """Inputs far from zero: a variance of halves would be of rounding."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 6), norm, nn.Linear(6, 3))
    layout, loss = Layout.of(module), LOSSES["cross_entropy"]
    W = (layout.row(module) * (1 + 0.3 * torch.rand(3, 1))).to(DEVICE)
    x, y = (torch.randn(3, 40, 8) + 3).to(DEVICE), torch.randint(0, 3, (3, 40)).to(DEVICE)
    together, exact = (Layered(module, layout, loss, DEVICE) for _ in range(2))
    together.products, exact.products = "bf16", "float32-strict"
    batch = Batch(x, y, [40] * 3)
    G, expected = together.grad(W, batch)[0], exact.grad(W, batch)[0]
    assert 0 < float((G - expected).norm()) <= 0.03 * float(expected.norm())


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) if x.sum() > 0 else -self.head(x)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.factor = nn.Linear(4, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * self.factor


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(input=x)))


class Own(nn.Linear):
    """A layer of one's own kind may do anything."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("module", "word"),
    [
        (Branching(), "layer by layer"),
        (Scaled(), "factor"),
        (nn.Sequential(nn.Embedding(4, 3), nn.Flatten()), "Embedding"),
        (nn.Sequential(Own(4, 3)), "Own|outside of a layer"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, groups=2)), "Conv2d"),
        (nn.Sequential(nn.BatchNorm1d(4, momentum=None)), "BatchNorm1d"),
        (nn.Bilinear(2, 2, 2), "."),
        (Named(), "norm with named arguments"),
    ],
)
def test_what_is_not_known_is_said(module: nn.Module, word: str) -> None:
    with pytest.raises(Unknown, match=word):
        Plan.of(module)
