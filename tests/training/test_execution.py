"""All clients at once, or a plain module at a time: the numbers are those of separate modules either way."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, ON_CPU, cpu_only, same
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedkin.base.task import LOSSES, Loss, loss_named
from fedkin.base.weights import Layout
from fedkin.gpu.cuda_graphs import Player
from fedkin.training import models
from fedkin.training.choose import Choice, choose, draws_random_numbers, remembers
from fedkin.training.execution import Batch, Layered, OneByOne, Stacked, has_batch_statistics

CROSS_ENTROPY = LOSSES["cross_entropy"]


class Centred(nn.Module):
    """Subtracts the batch's mean: every sample's output depends on the others."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        return self.head(h - h.mean(0))


class Undecided(nn.Module):
    """Takes one way or the other, as the data are."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if x.sum() > 0 else self.b(x)


class Watching(nn.Module):
    """Keeps a running mean of its inputs that its outputs do not use; written in place, or by assignment."""

    seen: Tensor

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.in_place = in_place
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.head(x)
        if self.in_place:
            self.seen.mul_(0.9).add_(0.1 * x.mean(0))
        else:
            self.seen = 0.9 * self.seen + 0.1 * x.mean(0)
        return self.head(x)


class Sometimes(nn.Module):
    """Stochastic depth: leaves a layer out, once in ten times."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.body(x) if not self.training or torch.rand(()) > 0.1 else x)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell = kind(2, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x.unflatten(1, (2, 2)))[0][:, -1])


class Words(nn.Module):
    """Reads whole numbers, with one matrix for coming in and going out and a temperature of no dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(6, 3)
        self.out = nn.Linear(3, 6, bias=False)
        self.out.weight = self.words.weight
        self.temperature = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.words(x).mean(1)) / self.temperature


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def frozen() -> nn.Module:
    """The first layer is kept as it is."""
    module = models.mlp((4,), 3, hidden=(5,))
    module.get_submodule("hidden1").requires_grad_(False)
    return module


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.Flatten(), nn.Linear(27, 3))


STACKABLE: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: models.mlp((4,), 3, hidden=(5,)),
    "layer-norm": lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3)),
    "convolutions": convolutions,
    "batch-norm": normed,
    "centred": Centred,
    "watching": lambda: Watching(True),
    "watching-by-assignment": lambda: Watching(False),
    "frozen": frozen,
    "words": Words,
}
ONLY_ALONE: dict[str, Callable[[], nn.Module]] = {
    "gru": lambda: Recurrent(nn.GRU),
    "lstm": lambda: Recurrent(nn.LSTM),
    "undecided": Undecided,
}
EVERY = STACKABLE | ONLY_ALONE
LAYER_BY_LAYER = ["mlp", "layer-norm", "convolutions", "batch-norm", "frozen"]
IN_BOTH_WAYS = [
    *[(n, way) for n in STACKABLE for way in ("stacked", "one-by-one")],
    *[(n, "one-by-one") for n in ONLY_ALONE],
    *[(n, "layered") for n in LAYER_BY_LAYER],
]
WAYS = {"stacked": Stacked, "layered": Layered, "one-by-one": OneByOne}


def built(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(3)
    return EVERY[name]().to(DEVICE, dtype)


def rows(module: nn.Module, m: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Different weights and statistics for m clients; variances stay positive."""
    row = Layout.of(module).row(module, dtype)
    noise = torch.rand(m, len(row), dtype=dtype, generator=torch.Generator().manual_seed(m))
    return row * (1 + 0.3 * noise.to(row.device))


def samples(name: str, m: int, b: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(m + b)
    x = torch.randn(m, b, 4, dtype=dtype, generator=generator)
    y = torch.randint(0, 3, (m, b), generator=generator)
    if name == "words":
        x = torch.randint(0, 6, (m, b, 4), generator=generator)
    return x.to(DEVICE), y.to(DEVICE)


def executor(module: nn.Module, way: str, loss: Loss = CROSS_ENTROPY) -> OneByOne | Stacked:
    return WAYS[way](module, Layout.of(module), loss, DEVICE)


def separately(
    module: nn.Module, W: Tensor, batch: Batch, weight: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """What a module of its own for each client computes: gradients, losses, and the row after the pass."""
    layout, found = Layout.of(module), []
    for i, count in enumerate(batch.counts):
        own = layout.load(copy.deepcopy(module), W[i]).train()
        values = F.cross_entropy(own(batch.x[i, :count]), batch.y[i, :count], reduction="none")
        w = W.new_ones(count) if weight is None else weight[i, :count]
        loss = (values * w).sum() / w.sum()
        loss.backward()
        trained = [p for p in own.parameters() if p.requires_grad]
        gradient = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained])
        found.append((gradient, loss.detach(), layout.row(own)))
    gradients, losses, after = zip(*found, strict=True)
    return torch.stack(gradients), torch.stack(losses), torch.stack(after)


def assert_same(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> None:
    """Each client's vector equals the other's, measured against its length."""
    assert a.shape == b.shape
    assert ((a - b).flatten(1).norm(dim=1) <= tolerance * b.flatten(1).norm(dim=1) + 1e-14).all()


# The numbers of separate modules


@pytest.mark.parametrize(("name", "way"), IN_BOTH_WAYS)
def test_gradients_losses_and_statistics_are_those_of_separate_modules(name: str, way: str) -> None:
    """Unequal batches, more rows than clients in the batch, and statistics to 1e-8 (they agree to 1e-10)."""
    module = built(name)
    layout, W, (x, y) = Layout.of(module), rows(module, 5), samples(name, 4, 6)
    if name == "undecided":
        x[0], x[1] = x[0].abs(), -x[1].abs()
    batch = Batch(x, y, [6, 6, 4, 2])
    G, losses, rest = executor(module, way).grad(W, batch)
    gradients, expected, after = separately(module, W, batch)
    assert_same(G, gradients)
    assert_same(losses[:, None], expected[:, None])
    if layout.size == layout.parameters:
        assert rest is None
    else:
        assert rest is not None
        assert_same(rest, after[:, layout.parameters :])


def test_a_parameter_that_was_not_used_has_a_gradient_of_zero() -> None:
    module = built("undecided")
    layout, W, (x, y) = Layout.of(module), rows(module, 2), samples("undecided", 2, 5)
    x[0], x[1] = x[0].abs(), -x[1].abs()
    G, _, _ = executor(module, "one-by-one").grad(W, Batch(x, y, [5, 5]))
    parts = layout.trained(G)
    assert parts["a.weight"][0].any() and not parts["b.weight"][0].any()
    assert parts["b.weight"][1].any() and not parts["a.weight"][1].any()


@pytest.mark.parametrize(("name", "way"), [p for p in IN_BOTH_WAYS if p[0] in ("mlp", "batch-norm", "centred")])
def test_samples_are_weighed_alike_in_both_ways(name: str, way: str) -> None:
    module = built(name)
    W, (x, y) = rows(module, 3), samples(name, 3, 6)
    weight = torch.rand(3, 6, dtype=torch.float64).to(DEVICE) + 0.1
    for counts in ([6, 6, 6], [6, 5, 3], [4, 4, 4]):
        batch = Batch(x, y, counts, weight)
        gradients, losses, _ = separately(module, W, batch, weight)
        G, found, _ = executor(module, way).grad(W, batch)
        assert_same(G, gradients)
        assert_same(found[:, None], losses[:, None])


@pytest.mark.parametrize(("name", "way"), [p for p in IN_BOTH_WAYS if p != ("gru", "stacked")])
def test_outputs_are_those_of_separate_modules_in_evaluation(name: str, way: str) -> None:
    module = built(name)
    W, (x, _) = rows(module, 3), samples(name, 3, 4)
    found = executor(module, way).outputs(W, x)
    for i in range(3):
        expected = Layout.of(module).load(copy.deepcopy(module), W[i]).eval()(x[i])
        torch.testing.assert_close(found[i], expected.detach(), rtol=1e-10, atol=1e-10)
    assert not found.requires_grad


@pytest.mark.parametrize("way", list(WAYS))
def test_one_row_may_serve_all_clients_without_a_copy(way: str) -> None:
    module = built("batch-norm")
    row, (x, y) = rows(module, 1), samples("batch-norm", 3, 4)
    wide, long = row.expand(3, -1), row.repeat(3, 1)
    run = executor(module, way)
    torch.testing.assert_close(run.outputs(wide, x), run.outputs(long, x))
    for a, b in zip(run.grad(wide, Batch(x, y, [4] * 3)), run.grad(long, Batch(x, y, [4] * 3)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("way", ["stacked", "one-by-one"])
@pytest.mark.parametrize("name", ["batch-norm", "watching", "watching-by-assignment", "frozen"])
def test_a_gradient_leaves_the_callers_rows_alone(name: str, way: str) -> None:
    """Trap T24: functional_call under vmap writes running statistics into the stack it was given."""
    module = built(name)
    W, (x, y) = rows(module, 3), samples(name, 3, 5)
    before, run = W.clone(), executor(module, way)
    for counts in ([5, 5, 5], [5, 4, 2]):
        _, _, rest = run.grad(W, Batch(x, y, counts))
        assert torch.equal(W, before)
        assert rest is not None and not rest.requires_grad
        changed = rest != W[:, Layout.of(module).parameters :]
        assert changed.all() if name != "frozen" else not changed.any()


@pytest.mark.parametrize("way", list(WAYS))
def test_a_gradient_leaves_the_users_module_alone(way: str) -> None:
    module = built("batch-norm")
    before = copy.deepcopy(module.state_dict())
    run, (x, y) = executor(module, way), samples("batch-norm", 2, 4)
    for _ in range(2):
        run.grad(rows(module, 2), Batch(x, y, [4, 4]))
    assert all(torch.equal(a, b) for a, b in zip(module.state_dict().values(), before.values(), strict=True))
    assert all(p.grad is None for p in module.parameters())
    assert module.training


# Curvature: the Hessian times a direction


class Idle(nn.Module):
    """Has a layer that it never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.used(x))


def directions(module: nn.Module, m: int) -> Tensor:
    d = Layout.of(module).parameters
    return torch.randn(m, d, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).to(DEVICE)


def by_difference(run: OneByOne | Stacked, W: Tensor, V: Tensor, batch: Batch, h: float = 1e-6) -> Tensor:
    """How much the gradient turns along V, from its values on both sides."""
    ends = []
    for step in (h, -h):
        moved = W.clone()
        moved[:, : V.shape[1]] += step * V
        ends.append(run.grad(moved, batch)[0])
    return (ends[0] - ends[1]) / (2 * h)


@pytest.mark.parametrize(("name", "way"), IN_BOTH_WAYS)
@pytest.mark.parametrize("counts", [[6, 6, 6, 6], [6, 6, 4, 2]], ids=str)
def test_curvature_is_how_the_gradient_turns_along_a_direction(name: str, way: str, counts: list[int]) -> None:
    if name in ("gru", "lstm") and not ON_CPU:
        pytest.skip("cuDNN's recurrent layers cannot be derived twice")
    module = built(name)
    W, V, (x, y) = rows(module, 4), directions(module, 4), samples(name, 4, 6)
    if name == "undecided":
        x[0], x[1] = x[0].abs(), -x[1].abs()
    run, batch = executor(module, way), Batch(x, y, counts)
    found = run.curvature(W, V, batch)
    assert not found.requires_grad and found.norm(dim=1).min() > 1e-4
    assert_same(found, by_difference(run, W, V, batch), 1e-6)
    assert_same(found, executor(module, "one-by-one").curvature(W, V, batch))


@pytest.mark.parametrize("way", list(WAYS))
def test_curvature_is_the_whole_hessian_times_a_direction(way: str) -> None:
    module = built("mlp")
    layout, W, V, (x, y) = Layout.of(module), rows(module, 2), directions(module, 2), samples("mlp", 2, 5)
    found = executor(module, way).curvature(W, V, Batch(x, y, [5, 3]))
    for i, count in enumerate((5, 3)):

        def loss(w: Tensor, i: int = i, count: int = count) -> Tensor:
            outputs = torch.func.functional_call(module, layout.trained(w), (x[i, :count],))
            return F.cross_entropy(outputs, y[i, :count])

        H = torch.autograd.functional.hessian(loss, W[i])
        assert_same(found[i : i + 1], (H @ V[i])[None])


@pytest.mark.parametrize("way", list(WAYS))
def test_curvature_weighs_samples_as_the_gradient_does_and_sees_no_padding(way: str) -> None:
    module = built("mlp")
    W, V, (x, y) = rows(module, 3), directions(module, 3), samples("mlp", 3, 6)
    weight = torch.rand(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(6)).to(DEVICE) + 0.1
    run, batch = executor(module, way), Batch(x, y, [6, 6, 3], weight)
    found = run.curvature(W, V, batch)
    assert_same(found, by_difference(run, W, V, batch), 1e-6)
    assert (found - run.curvature(W, V, Batch(x, y, [6, 6, 3]))).norm(dim=1).min() > 1e-3
    x[2, 3:], y[2, 3:], weight[2, 3:] = 1e3, 0, 50.0
    assert_same(run.curvature(W, V, batch), found)


@pytest.mark.parametrize("way", ["stacked", "one-by-one"])
@pytest.mark.parametrize("name", ["batch-norm", "watching", "watching-by-assignment", "frozen"])
def test_curvature_leaves_rows_directions_and_module_alone(name: str, way: str) -> None:
    module = built(name)
    W, V, (x, y) = rows(module, 3), directions(module, 3), samples(name, 3, 5)
    before, along, run, state = W.clone(), V.clone(), executor(module, way), copy.deepcopy(module.state_dict())
    for counts in ([5, 5, 5], [5, 4, 2]):
        first = run.curvature(W, V, Batch(x, y, counts))
        assert same(first, run.curvature(W, V, Batch(x, y, counts)))
    assert torch.equal(W, before) and torch.equal(V, along)
    assert all(torch.equal(a, b) for a, b in zip(module.state_dict().values(), state.values(), strict=True))
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize("way", ["stacked", "one-by-one"])
def test_what_is_not_used_and_what_is_linear_has_no_curvature(way: str) -> None:
    torch.manual_seed(3)
    module = Idle().to(DEVICE, torch.float64)
    layout, W, V, (x, y) = Layout.of(module), rows(module, 2), directions(module, 2), samples("mlp", 2, 5)
    H = layout.trained(executor(module, way).curvature(W, V, Batch(x, y, [5, 4])))
    assert H["used.weight"].flatten(1).any(1).all() and not H["idle.weight"].any() and not H["idle.bias"].any()
    plain = nn.Linear(4, 3).to(DEVICE, torch.float64)
    mean = loss_named(lambda outputs, targets: outputs.mean())
    assert not executor(plain, way, mean).curvature(rows(plain, 2), directions(plain, 2), Batch(x, y, [5, 4])).any()


def test_curvature_draws_what_the_gradient_drew() -> None:
    """Dropout: both are of the same loss."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 3)).to(DEVICE, torch.float64)
    W, V, (x, y) = rows(module, 2), directions(module, 2), samples("mlp", 2, 6)
    run = executor(module, "one-by-one")
    found = [run.curvature(W, V, Batch(x, y, [6, 6], seeds=lambda i, at=at: 10 * at + i)) for at in (1, 2)]
    assert_same(found[0], by_difference(run, W, V, Batch(x, y, [6, 6], seeds=lambda i: 10 + i)), 1e-6)
    assert (found[0] - found[1]).norm(dim=1).min() > 1e-3


# Short batches


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.booleans())
def test_padding_calling_by_size_and_one_by_one_agree(counts: list[int], weighted: bool) -> None:
    module = built("mlp")
    m = len(counts)
    W, (x, y) = rows(module, m), samples("mlp", m, 6)
    weight = torch.rand(m, 6, dtype=torch.float64).to(DEVICE) + 0.1 if weighted else None
    batch = Batch(x, y, counts, weight)
    padded = Stacked(module, Layout.of(module), CROSS_ENTROPY, DEVICE, pads=True).grad(W, batch)
    by_size = Stacked(module, Layout.of(module), CROSS_ENTROPY, DEVICE, pads=False).grad(W, batch)
    alone = executor(module, "one-by-one").grad(W, batch)
    for a, b, c in zip(padded, by_size, alone, strict=True):
        if c is not None:
            assert_same(a[:, None], c[:, None])
            assert_same(b[:, None], c[:, None])


def test_what_lies_in_the_padding_does_not_matter() -> None:
    module = built("mlp")
    W, (x, y) = rows(module, 2), samples("mlp", 2, 6)
    run = Stacked(module, Layout.of(module), CROSS_ENTROPY, DEVICE, pads=True)
    G, losses, _ = run.grad(W, Batch(x, y, [6, 2]))
    x[1, 2:], y[1, 2:] = 1e3, 0
    again, same, _ = run.grad(W, Batch(x, y, [6, 2]))
    assert_same(again, G)
    assert_same(same[:, None], losses[:, None])


# Which way, and why


def chosen(name: str, wanted: str = "auto", loss: Loss = CROSS_ENTROPY, b: int = 5) -> Choice:
    module = built(name)
    x, y = samples(name, 1, b)
    return choose(module, Layout.of(module), loss, x[0], y[0], wanted)


def test_a_plain_network_is_stacked_and_padded() -> None:
    choice = chosen("mlp")
    assert choice.execution.name == "stacked" and choice.execution.pads
    assert choice.reason == "clients are stacked layer by layer"
    assert not choice.random_layers


@pytest.mark.parametrize("name", ["batch-norm", "centred", "watching", "watching-by-assignment"])
def test_a_model_that_looks_at_the_whole_batch_is_stacked_but_never_padded(name: str) -> None:
    choice = chosen(name)
    assert choice.execution.name == "stacked" and not choice.execution.pads


@pytest.mark.parametrize("name", STACKABLE)
def test_the_way_that_was_chosen_is_right_for_short_batches(name: str) -> None:
    module = built(name)
    W, (x, y) = rows(module, 3), samples(name, 3, 6)
    batch = Batch(x, y, [6, 3, 2])
    gradients, _, after = separately(module, W, batch)
    for wanted in ("auto", "stacked"):
        G, _, rest = chosen(name, wanted).execution.grad(W, batch)
        assert_same(G, gradients)
        if rest is not None:
            assert_same(rest, after[:, Layout.of(module).parameters :])


def test_one_sample_is_too_few_to_trust_padding() -> None:
    """A model that subtracts the batch's mean cannot be told from others by a batch of one."""
    choice = chosen("centred", b=1)
    assert choice.execution.name == "one-by-one" or not choice.execution.pads


def test_two_samples_are_enough_to_choose_for_a_model_with_batch_statistics() -> None:
    """Which a probe with a batch of one would break."""
    assert chosen("batch-norm", b=2).execution.name == "stacked"


def scalar(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, label_smoothing=0.1)


def test_a_users_loss_is_never_padded() -> None:
    choice = chosen("mlp", loss=loss_named(scalar))
    assert choice.execution.name == "stacked" and not choice.execution.pads


@cpu_only
def test_convolutions_on_a_cpu_run_a_client_at_a_time() -> None:
    choice = chosen("convolutions")
    assert choice.execution.name == "one-by-one"
    assert "convolutions" in choice.reason


@pytest.mark.parametrize("name", ["mlp", "convolutions", "batch-norm", "words"])
def test_what_was_asked_for_is_done_where_it_can_be(name: str) -> None:
    for wanted in ("stacked", "one-by-one"):
        choice = chosen(name, wanted)
        assert choice.execution.name == wanted and choice.reason == "as configured"


@pytest.mark.parametrize("wanted", ["auto", "stacked", "one-by-one"])
@pytest.mark.parametrize(
    ("name", "word"),
    [*(pytest.param(n, n, marks=cpu_only) for n in ("gru", "lstm")), ("undecided", "control flow")],
)
def test_what_torch_cannot_stack_runs_one_by_one_with_torchs_reason(name: str, word: str, wanted: str) -> None:
    choice = chosen(name, wanted)
    assert choice.execution.name == "one-by-one"
    assert choice.reason.startswith("torch cannot stack this model (") and word in choice.reason
    assert "\n" not in choice.reason


@cpu_only
def test_torchs_gru_can_be_stacked_for_gradients_only() -> None:
    """So a probe of the gradient alone would promise too much."""
    module = built("gru")
    W, (x, y) = rows(module, 2), samples("gru", 2, 3)
    G, _, _ = executor(module, "stacked").grad(W, Batch(x, y, [3, 3]))
    assert_same(G, separately(module, W, Batch(x, y, [3, 3]))[0])
    with pytest.raises(RuntimeError, match="gru"):
        executor(module, "stacked").outputs(W, x)


class Wrong(nn.Module):
    """Doubles its output wherever vmap runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.factor = nn.Linear(4, 3), nn.Parameter(torch.ones(()))  # outside of a layer: vmap has to do it

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * self.factor * (2 if torch._C._functorch.maybe_current_level() else 1)


def test_a_model_that_looks_at_the_whole_batch_is_left_to_vmap() -> None:
    """Samples of all clients in one batch would be centred on a mean over all of them."""
    choice = chosen("centred")
    assert type(choice.execution) is Stacked and "does not give the numbers" in choice.reason
    module = built("centred")
    W, (x, y) = rows(module, 2), samples("centred", 2, 5)
    alone = executor(module, "one-by-one").grad(W, Batch(x, y, [5, 5]))[0]
    together = executor(module, "layered").grad(W, Batch(x, y, [5, 5]))[0]
    assert (alone - together).norm() > 1e-3 * alone.norm()


@pytest.mark.parametrize("name", LAYER_BY_LAYER)
def test_known_layers_are_stacked_without_vmap(name: str) -> None:
    module, (x, y) = built(name), samples(name, 1, 5)
    choice = choose(module, Layout.of(module), CROSS_ENTROPY, x[0], y[0], "stacked")
    assert type(choice.execution) is Layered


@pytest.mark.parametrize(("name", "word"), [("watching", "seen"), ("words", "Embedding")])
def test_what_is_not_known_is_stacked_by_vmap_with_a_word(name: str, word: str) -> None:
    choice = chosen(name)
    assert type(choice.execution) is Stacked and "by vmap" in choice.reason and word in choice.reason


class Counting(nn.Module):
    """Counts its calls, and computes something else after the first few."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.calls, self.told = nn.Linear(4, 3), 0, [0]

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head(x) * (1 if self.calls < 20 else 2)


class Telling(Counting):
    def forward(self, x: Tensor) -> Tensor:
        self.told.append(len(self.told))
        return self.head(x)


@pytest.mark.parametrize("module", [Counting(), Telling()])
def test_a_model_that_its_passes_change_is_called_in_every_pass(module: nn.Module) -> None:
    """Read once, it would be frozen in the state it had then."""
    module = module.double()
    x, y = samples("mlp", 1, 5)
    choice = choose(module, Layout.of(module), CROSS_ENTROPY, x[0], y[0])
    assert remembers(module, x[0]) and type(choice.execution) is Stacked and "changes what it holds" in choice.reason
    assert choice.execution.player is None
    assert not remembers(built("mlp"), x[0]) and not remembers(built("batch-norm"), x[0])


class Settings:
    """An object that equals none but itself."""

    def __init__(self) -> None:
        self.width, self.inner = 3, {"deep": [1, 2]}


def test_settings_that_a_model_holds_are_no_memory() -> None:
    module = built("mlp")
    module.settings, module.activation = Settings(), torch.tanh  # type: ignore[assignment]
    assert not remembers(module, samples("mlp", 1, 5)[0][0])


def test_a_model_that_computes_something_else_when_stacked_runs_one_by_one() -> None:
    module, (x, y) = Wrong().double(), samples("mlp", 1, 5)
    choice = choose(module, Layout.of(module), CROSS_ENTROPY, x[0], y[0], "stacked")
    assert choice.execution.name == "one-by-one"
    assert choice.reason == "stacking this model does not give the numbers of separate modules"


class LateNorm(nn.Module):
    """Read by vmap alone, which has no half precision for what follows the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.norm, self.head = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(input=self.lift(x)))


@pytest.mark.parametrize("wanted", ["auto", "stacked"])
def test_what_cannot_be_stacked_in_half_precision_runs_one_by_one(wanted: str) -> None:
    module, (x, y) = LateNorm(), samples("mlp", 1, 5)
    given = CROSS_ENTROPY, x[0].float(), y[0], wanted
    assert choose(module, Layout.of(module), *given).execution.name == "stacked"
    choice = choose(module, Layout.of(module), *given, "bf16")
    assert choice.execution.products == "bf16"
    choice.execution.grad(Layout.of(module).row(module)[None].to(x.device), Batch(x.float(), y, [5]))
    if ON_CPU:
        assert choice.execution.name == "one-by-one" and "cannot stack this model in bf16" in choice.reason


def test_a_mixture_is_recorded_where_its_modules_are_and_its_memory_is_given_back_with_theirs() -> None:
    module = built("mlp")
    own = Stacked(module, Layout.of(module), CROSS_ENTROPY, DEVICE)
    own.player = None
    assert isinstance(own.mixture, Stacked) and own.mixture.player is None
    played = Stacked(module, Layout.of(module), CROSS_ENTROPY, DEVICE)
    played.player, pair = Player(played._call, 3), played.mixture
    assert isinstance(pair, Stacked)
    pair.player = Player(pair._call, 3)
    pair.player.trouble = "It was not recorded."
    pair.player.workspace(torch.zeros(2, 4, device=DEVICE))
    assert played.trouble == "It was not recorded."
    played.forget()
    assert not pair.player.places


# Precision: what a GPU is told holds for the backward pass, too


SWITCHES = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)


def told() -> tuple[str, ...]:
    return tuple(switch.fp32_precision for switch in SWITCHES)


class Products(TorchDispatchMode):
    """Notes what a GPU would have been told at every product, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward"):
            self.seen.append(told())
        return func(*args, **(kwargs or {}))


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, ...]]:
    """What somebody else has asked of a GPU: for each switch another thing than its default."""
    before, asked = told(), ("tf32", "ieee", "ieee")
    for switch, precision in zip(SWITCHES, asked, strict=True):
        switch.fp32_precision = precision
    yield asked
    for switch, precision in zip(SWITCHES, before, strict=True):
        switch.fp32_precision = precision


def carried_out(run: OneByOne | Stacked, module: nn.Module, name: str, task: str) -> list[tuple[str, ...]]:
    """What a GPU was told at each product of a task for three clients."""
    W, (x, y) = rows(module, 3, torch.float32), samples(name, 3, 6, torch.float32)
    with Products() as products:
        if task == "grad":
            run.grad(W, Batch(x, y, [6, 6, 6]))
        elif task == "curvature":
            run.curvature(W, directions(module, 3).float(), Batch(x, y, [6, 6, 4]))
        else:
            run.outputs(W, x)
    return products.seen


MULTIPLYING = [
    *[(name, way) for name in ("mlp", "convolutions") for way in WAYS],
    ("gru", "one-by-one"),
    ("centred", "stacked"),
]


@cpu_only
@pytest.mark.parametrize(("precision", "meaning"), [("float32", "tf32"), ("float32-strict", "ieee"), ("bf16", "tf32")])
@pytest.mark.parametrize("task", ["grad", "curvature", "outputs"])
@pytest.mark.parametrize(("name", "way"), MULTIPLYING)
def test_a_gpu_is_told_the_precision_of_every_product_forward_and_backward(
    name: str, way: str, task: str, precision: str, meaning: str, elsewhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if precision == "bf16" and (way, task) == ("stacked", "curvature"):
        pytest.skip("vmap cannot derive all of this twice in half precision")
    module = built(name, torch.float32)
    run = executor(module, way)
    run.products = precision
    monkeypatch.setattr(type(run), "on_gpu", True)
    found = carried_out(run, module, name, task)
    assert set(found) == {(meaning,) * 3}
    assert told() == elsewhere, "what others asked for holds again afterwards"
    if task != "outputs":
        assert len(found) > len(carried_out(run, module, name, "outputs")), "no product of a backward pass was seen"


@cpu_only
@pytest.mark.parametrize("way", list(WAYS))
def test_on_a_cpu_nobody_touches_what_a_gpu_was_told(way: str, elsewhere: tuple[str, ...]) -> None:
    module = built("mlp", torch.float32)
    run = executor(module, way)
    for task in ("grad", "curvature", "outputs"):
        assert set(carried_out(run, module, "mlp", task)) == {elsewhere}


@pytest.mark.parametrize(("way", "task"), [("layered", "grad"), ("one-by-one", "grad"), ("one-by-one", "curvature")])
def test_a_backward_pass_has_the_precisions_that_its_forward_pass_chose(
    way: str, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autocast is for forward passes: around a backward pass it would choose once more."""
    own, seen = torch.autograd.grad, []

    def derived(*given: Any, **further: Any) -> Any:
        seen.append(torch.is_autocast_enabled(DEVICE.type))
        return own(*given, **further)

    monkeypatch.setattr(torch.autograd, "grad", derived)
    module = built("mlp", torch.float32)
    run = executor(module, way)
    run.products = "bf16"
    carried_out(run, module, "mlp", task)
    assert seen and not any(seen)


@cpu_only
@pytest.mark.parametrize("way", list(WAYS))
def test_an_error_in_a_pass_does_not_change_what_a_gpu_was_told(
    way: str, elsewhere: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = built("mlp", torch.float32)
    run = executor(module, way)
    monkeypatch.setattr(type(run), "on_gpu", True)
    with pytest.raises((RuntimeError, IndexError)):
        run.grad(rows(module, 2, torch.float32), Batch(torch.zeros(2, 5, 7), torch.zeros(2, 5), [5, 5]))
    assert told() == elsewhere


RANDOM: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
    "rare-dropout": lambda: nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.001), nn.Linear(2, 3)),
    "stochastic-depth": Sometimes,
    "noise": lambda: nn.Sequential(nn.Linear(4, 8), nn.RReLU(), nn.Linear(8, 3)),
}


@pytest.mark.parametrize("wanted", ["auto", "stacked", "one-by-one"])
@pytest.mark.parametrize("factory", RANDOM.values(), ids=RANDOM)
def test_layers_that_draw_random_numbers_run_one_by_one(factory: Callable[[], nn.Module], wanted: str) -> None:
    """However rarely a number drawn changes anything."""
    torch.manual_seed(0)
    module, (x, y) = factory().double(), samples("mlp", 1, 3)
    choice = choose(module, Layout.of(module), CROSS_ENTROPY, x[0], y[0], wanted)
    assert choice.execution.name == "one-by-one" and choice.random_layers
    assert "random numbers" in choice.reason and "dropout" in choice.reason


def test_dropout_that_drops_nothing_is_not_random() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0))
    assert not draws_random_numbers(module, torch.randn(3, 4))


def test_looking_for_random_layers_uses_up_no_random_numbers() -> None:
    before = torch.get_rng_state()
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    torch.set_rng_state(before)
    assert draws_random_numbers(module, torch.randn(3, 4, generator=torch.Generator()))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_clients_stream_decides_what_its_layers_draw() -> None:
    torch.manual_seed(0)
    module = RANDOM["dropout"]().to(DEVICE, torch.float64)
    run, W, (x, y) = executor(module, "one-by-one"), rows(module, 1).repeat(3, 1), samples("mlp", 1, 4)
    x, y = x.expand(3, -1, -1), y.expand(3, -1)
    before = torch.get_rng_state()
    G, _, _ = run.grad(W, Batch(x, y, [4] * 3, seeds=lambda i: [7, 8, 7][i]))
    assert torch.equal(G[0], G[2]) and not torch.equal(G[0], G[1])
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(8)
    assert_same(G[1:2], separately(module, W[1:], Batch(x[1:], y[1:], [4]))[0])


def test_batch_statistics_are_recognised() -> None:
    assert has_batch_statistics(normed()) and has_batch_statistics(models.resnet18((1, 8, 8), 3))
    assert not has_batch_statistics(models.cnn((1, 8, 8), 3))


def test_choosing_leaves_the_users_module_alone() -> None:
    module = built("batch-norm")
    before = copy.deepcopy(module.state_dict())
    x, y = samples("batch-norm", 1, 4)
    choose(module, Layout.of(module), CROSS_ENTROPY, x[0], y[0])
    assert all(torch.equal(a, b) for a, b in zip(module.state_dict().values(), before.values(), strict=True))


def test_a_part_of_a_batch_is_that_of_the_chosen_clients() -> None:
    x, y = samples("mlp", 3, 4)
    weight = torch.rand(3, 4).to(DEVICE)
    part = Batch(x, y, [4, 2, 2], weight).rows([1, 2], 2)
    assert len(part) == 2 and list(part.counts) == [2, 2]
    assert torch.equal(part.x, x[1:, :2]) and torch.equal(part.y, y[1:, :2])
    assert part.weight is not None and torch.equal(part.weight, weight[1:, :2])
