"""A module as a row of numbers: nothing lost, nothing copied, and every column knows its layer."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from helpers import DEVICE
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedkin.base.weights import Layout
from fedkin.training import models


def normed() -> nn.Module:
    """Layers `body`, `norm` and `head`; BatchNorm brings two float buffers and a counter."""
    network = nn.Sequential()
    network.add_module("body", nn.Linear(3, 4))
    network.add_module("norm", nn.BatchNorm1d(4))
    network.add_module("head", nn.Linear(4, 2))
    return network.to(DEVICE)


class Tied(nn.Module):
    """One matrix used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3, bias=False)
        self.outer = nn.Linear(3, 3)
        self.outer.weight = self.inner.weight


class Bare(nn.Module):
    """Parameters without a layer: a scalar and a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.shift = nn.Parameter(torch.ones(2, 3))


FACTORIES: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: models.mlp((5,), 3, hidden=(4,)),
    "cnn": lambda: models.cnn((1, 4, 4), 3),
    "gru": lambda: models.gru((5, 2), 2, hidden=3),
    "batchnorm": normed,
    "tied": Tied,
    "bare": Bare,
}


def state_of(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


def randomised(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for tensor in state_of(module).values():
            if tensor.is_floating_point():
                tensor.normal_()
    return module


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_a_module_survives_the_way_to_a_row_and_back(factory: Callable[[], nn.Module]) -> None:
    module, other = randomised(factory().to(DEVICE)), randomised(factory().to(DEVICE))
    layout = Layout.of(module)
    row = layout.row(module)
    assert row.shape == (layout.size,)
    assert layout.load(other, row) is other
    for (name, a), b in zip(state_of(module).items(), state_of(other).values(), strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(layout.row(other), row)


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_fields_lie_side_by_side_parameters_first(factory: Callable[[], nn.Module]) -> None:
    module = factory()
    layout = Layout.of(module)
    ends = [f.stop for f in layout.fields]
    assert [f.start for f in layout.fields] == [0, *ends[:-1]] and ends[-1] == layout.size
    assert layout.parameters == sum(p.numel() for p in module.parameters())
    assert [f.name for f in layout.fields][: len(list(module.parameters()))] == [
        n for n, _ in module.named_parameters()
    ]


def test_a_row_is_a_copy_and_may_have_another_precision() -> None:
    module = normed()
    layout = Layout.of(module)
    before = layout.row(module)
    row = layout.row(module, torch.float64)
    assert row.dtype == torch.float64 and torch.equal(row.float(), before)
    before.fill_(9.0)
    assert torch.equal(layout.row(module), row.float())
    assert not layout.row(module).requires_grad


def test_counters_never_lie_in_rows_but_keep_their_starting_values() -> None:
    module = normed()
    module.get_submodule("norm").num_batches_tracked.fill_(5)
    layout = Layout.of(module)
    assert layout.size == 12 + 4 + 4 + 4 + 8 + 2 + 4 + 4
    assert all("num_batches_tracked" not in f.name for f in layout.fields)
    ((name, start),) = layout.counters
    assert name == "norm.num_batches_tracked" and start == 5
    module(torch.randn(3, 3).to(DEVICE))
    assert start == 5
    layout.load(module, torch.zeros(layout.size))
    assert module.get_submodule("norm").num_batches_tracked == 6


def test_frozen_parameters_travel_but_are_not_among_the_trained() -> None:
    module = normed()
    module.get_submodule("body").weight.requires_grad_(False)
    layout = Layout.of(module)
    assert layout.parameters == 4 + 4 + 4 + 8 + 2 and layout.size == 42
    W = torch.stack([layout.row(module)] * 2)
    assert "body.weight" not in layout.trained(W) and "body.bias" in layout.trained(W)
    assert list(layout.rest(W)) == ["body.weight", "norm.running_mean", "norm.running_var"]
    assert torch.equal(layout.rest(W)["body.weight"][1], module.get_submodule("body").weight)


@settings(max_examples=20, deadline=None)
@given(lead=st.lists(st.integers(1, 3), max_size=3))
def test_tensors_are_views_of_rows_of_any_leading_shape(lead: list[int]) -> None:
    layout = Layout.of(normed())
    W = torch.randn(*lead, layout.size).to(DEVICE)
    tensors = layout.tensors(W)
    assert tensors["body.weight"].shape == (*lead, 4, 3)
    for tensor in tensors.values():
        tensor.fill_(3.0)
    assert (W == 3.0).all()


def test_trained_and_rest_are_views_too_and_flat_is_their_inverse() -> None:
    layout = Layout.of(normed())
    W = torch.randn(3, layout.size).to(DEVICE)
    columns = torch.cat([layout.flat(layout.trained(W)), layout.flat(layout.rest(W))], 1)
    assert torch.equal(columns, W)
    assert torch.equal(layout.flat(layout.rest(W[0]), lead=0), W[0, layout.parameters :])
    for tensor in (layout.trained(W) | layout.rest(W)).values():
        tensor.zero_()
    assert not W.any()


def test_rows_shared_by_all_clients_need_no_copy() -> None:
    layout = Layout.of(normed())
    row = torch.randn(layout.size).to(DEVICE)
    tensors = layout.tensors(row.expand(5, -1))
    assert all(t.data_ptr() == row[f.start :].data_ptr() for t, f in zip(tensors.values(), layout.fields, strict=True))


def test_a_matrix_used_twice_lies_in_a_row_once() -> None:
    module = Tied()
    layout = Layout.of(module)
    assert layout.size == 9 + 3
    layout.load(module, torch.arange(12.0))
    assert module.outer.weight is module.inner.weight
    assert torch.equal(module.outer.weight.flatten(), torch.arange(9.0))


# Columns of layers


def columns(module: nn.Module, *layers: str) -> list[int]:
    """Where named layers' parameters lie, found by loading a row of column numbers."""
    layout = Layout.of(module)
    numbered = layout.load(copy.deepcopy(module), torch.arange(float(layout.size)))
    own = [p.flatten() for n, p in numbered.named_parameters() if n.rpartition(".")[0] in layers]
    return torch.cat(own).int().tolist()


def chosen(layout: Layout, layers: str | list[str]) -> list[int]:
    found = layout.columns(layers)
    assert found is not None
    return found.tolist()


def test_all_columns_are_none() -> None:
    assert Layout.of(normed()).columns() is None
    assert Layout.of(normed()).columns("all") is None


@pytest.mark.parametrize("name", ["mlp", "cnn", "gru", "batchnorm"])
def test_the_head_is_the_last_layer(name: str) -> None:
    module = FACTORIES[name]()
    assert chosen(Layout.of(module), "head") == columns(module, "head")


def test_the_head_needs_no_name() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    assert chosen(Layout.of(module), "head") == columns(module, "2")


def test_layers_are_found_by_name_in_the_order_of_the_row() -> None:
    module = normed()
    layout = Layout.of(module)
    assert chosen(layout, "body") == columns(module, "body")
    assert chosen(layout, ["norm"]) == columns(module, "norm")
    assert chosen(layout, ["head", "body"]) == columns(module, "body", "head")
    assert chosen(layout, "body.bias") == list(range(12, 16))


def test_a_layers_name_names_all_it_holds_and_nothing_that_merely_begins_like_it() -> None:
    module = nn.Sequential()
    module.add_module("block", nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    module.add_module("block2", nn.Linear(2, 2))
    assert chosen(Layout.of(module), "block") == columns(module, "block.0", "block.1")


def test_an_unknown_layer_is_answered_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"The model has no layer 'tail'; its layers are body, head, norm\."):
        Layout.of(normed()).columns(["head", "tail"])


@pytest.mark.parametrize("head", ["head", "norm", ["body", "head"], "all"])
def test_body_and_head_are_all_columns_once_and_buffers_belong_to_the_body(head: str | list[str]) -> None:
    layout = Layout.of(normed())
    body, last = layout.split(head)
    assert sorted([*body.tolist(), *last.tolist()]) == list(range(layout.size))
    assert set(range(layout.parameters, layout.size)) <= set(body.tolist())
    expected = range(layout.parameters) if head == "all" else chosen(layout, head)
    assert last.tolist() == list(expected)
