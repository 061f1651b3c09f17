"""The training loop and the evaluation loop, against plain modules trained and scored a client at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, ON_CPU, at, same
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedkin.base import streams
from fedkin.base.state import State
from fedkin.base.task import LOSSES, METRICS, Loss, Task, class_weights, loss_named, metric_named
from fedkin.base.weights import Layout
from fedkin.training import evaluation, models
from fedkin.training.choose import choose
from fedkin.training.cohort import Cohort, Samples
from fedkin.training.evaluation import Predictor, evaluate
from fedkin.training.execution import Batch, OneByOne, has_batch_statistics
from fedkin.training.optimisers import Extra, Local, Optimiser, Proximal

CLASSES = 3
SIZES = (23, 16, 7, 7, 3)
"""Batches of five: a single sample left over, another one, two equal clients, and one smaller than a batch."""
WAYS = ("stacked", "one-by-one")
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: models.mlp((4,), CLASSES, hidden=(6,)), (4,)),
    "batch-norm": (lambda: normed(6), (4,)),
    "gru": (lambda: models.gru((5, 2), CLASSES, hidden=4), (5, 2)),
    "cnn": (lambda: models.cnn((1, 12, 12), CLASSES), (1, 12, 12)),
    "resnet18": (lambda: models.resnet18((1, 8, 8), CLASSES), (1, 8, 8)),
    "frozen": (lambda: frozen(), (4,)),
    "dropout": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4), nn.Linear(8, CLASSES)), (4,)),
}


def normed(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width, bias=False), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, CLASSES))


def frozen() -> nn.Module:
    module = models.mlp((4,), CLASSES, hidden=(6,))
    module.get_submodule("hidden1").requires_grad_(False)
    return module


def data(name: str, n: int, inputs: tuple[int, ...], kind: str = "classification") -> tuple[Tensor, Tensor]:
    """A client's samples, made from its name alone."""
    generator = streams.generator("data", name)
    x = torch.randn(n, *inputs, generator=generator, dtype=torch.float64)
    if kind == "regression":
        return x.to(DEVICE), torch.randn(n, CLASSES, generator=generator, dtype=torch.float64).to(DEVICE)
    return x.to(DEVICE), torch.randint(0, CLASSES, (n,), generator=generator).to(DEVICE)


def made(
    network: str | nn.Module = "mlp",
    sizes: Sequence[int] = SIZES,
    way: str = "stacked",
    *,
    local: Local | None = None,
    kind: str = "classification",
    loss: Loss | None = None,
    names: Sequence[str] | None = None,
    dtype: torch.dtype = torch.float64,
    weights: Sequence[Sequence[float]] | str | None = None,
    seed: int = 1,
) -> tuple[Cohort, Tensor, nn.Module]:
    """A cohort, one starting row for all of its clients, expanded, and the module."""
    torch.manual_seed(0)
    inputs: tuple[int, ...] = (4,)
    if isinstance(network, str):
        factory, inputs = NETWORKS[network]
        network = factory()
    module = network.to(DEVICE, dtype)
    names = names or [f"client-{i}" for i in range(len(sizes))]
    parts = [data(name, n, inputs, kind) for name, n in zip(names, sizes, strict=True)]
    parts = [(x.to(dtype), y) if kind == "classification" else (x.to(dtype), y.to(dtype)) for x, y in parts]
    make = Task.classification if kind == "classification" else Task.regression
    task = make(inputs, CLASSES)
    layout = Layout.of(module)
    choice = choose(module, layout, loss or task.loss, parts[0][0][:4], parts[0][1][:4], way)
    class_weight = None
    if weights == "balanced":
        class_weight = torch.stack([class_weights(y, CLASSES) for _, y in parts]).to(dtype)
    elif weights is not None:
        class_weight = torch.tensor(weights, dtype=dtype, device=DEVICE)
    cohort = Cohort(
        names=tuple(names),
        train=Samples.of(parts, DEVICE),
        validation=Samples.of([(x[:0], y[:0]) for x, y in parts], DEVICE),
        task=task,
        layout=layout,
        execution=choice.execution,
        local=local or Local(epochs=3, batch_size=5, lr=0.01),
        seed=seed,
        class_weight=class_weight,
        merge_single=has_batch_statistics(module),
        random_layers=choice.random_layers,
    )
    return cohort, layout.row(module).expand(len(sizes), -1), module


def batches_of(cohort: Cohort, i: int, round: int, **options: Any) -> list[tuple[Tensor, Tensor]]:
    """The mini-batches of one client; that they are right is shown in the tests of batches below."""
    return [(b.x[i, : b.counts[i]], b.y[i, : b.counts[i]]) for b in cohort.batches(at(round), **options) if i < len(b)]


def trained_plainly(
    module: nn.Module,
    row: Tensor,
    batches: list[tuple[Tensor, Tensor]],
    local: Local,
    criterion: Callable[[Tensor, Tensor], Tensor],
    lr: float | None = None,
    penalty: Callable[[list[nn.Parameter]], Tensor] | None = None,
) -> tuple[Tensor, float]:
    """The loop that any user of torch would write: (row after it, mean loss)."""
    layout = Layout.of(module)
    own = layout.load(copy.deepcopy(module), row).train()
    parameters = [p for p in own.parameters() if p.requires_grad]
    lr = lr or local.lr
    optimiser: torch.optim.Optimizer
    if local.optimiser == "adam":
        optimiser = torch.optim.Adam(parameters, lr, local.betas, local.eps, local.weight_decay, foreach=False)
    else:
        optimiser = torch.optim.SGD(
            parameters, lr, local.momentum, weight_decay=local.weight_decay, nesterov=local.nesterov, foreach=False
        )
    total = 0.0
    for x, y in batches:
        optimiser.zero_grad()
        loss = criterion(own(x), y)
        total += loss.item()
        if penalty is not None:
            loss = loss + penalty(parameters)
        loss.backward()
        if local.clip:
            nn.utils.clip_grad_norm_(parameters, local.clip)
        optimiser.step()
    return layout.row(own), total / len(batches)


def assert_same(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> None:
    """For each client, ||difference|| <= tolerance * ||weights||."""
    assert a.shape == b.shape
    assert ((a - b).norm(dim=1) <= tolerance * b.norm(dim=1)).all(), (a - b).norm(dim=1) / b.norm(dim=1)


def assert_weights_and_statistics_same(cohort: Cohort, a: Tensor, b: Tensor) -> None:
    """Parameters and buffers apart: large weights must not hide wrong statistics."""
    d = cohort.layout.parameters
    assert_same(a[:, :d], b[:, :d])
    if cohort.layout.size > d:
        assert_same(a[:, d:], b[:, d:])


# Batches


def numbered(sizes: Sequence[int], merge: bool = False, **settings: int) -> Cohort:
    """A cohort whose samples are (client, number)."""
    cohort, _, _ = made("mlp", sizes, local=Local(**settings))
    parts = []
    for i, n in enumerate(sizes):
        x = torch.stack([torch.full((n,), i), torch.arange(n)], 1)
        parts.append((x, torch.arange(n) % CLASSES))
    cohort.train, cohort.merge_single = Samples.of(parts, DEVICE), merge
    return cohort


def seen(cohort: Cohort, i: int, round: int = 1, **options: Any) -> list[list[int]]:
    """The numbers of client i's samples, batch by batch."""
    found = []
    for batch in cohort.batches(at(round), **options):
        if i < len(batch):
            own = batch.x[i, : batch.counts[i]]
            assert (own[:, 0] == i).all()
            found.append(own[:, 1].tolist())
    return found


clients = st.lists(st.integers(1, 17), min_size=1, max_size=5).map(lambda n: sorted(n, reverse=True))


@settings(max_examples=40, deadline=None)
@given(clients, st.integers(1, 8), st.integers(1, 3), st.booleans())
def test_a_pass_takes_each_sample_once_in_whole_batches_with_the_rest_last(
    sizes: list[int], size: int, epochs: int, merge: bool
) -> None:
    cohort = numbered(sizes, merge, batch_size=size, epochs=epochs)
    for i, n in enumerate(sizes):
        found = seen(cohort, i)
        steps = cohort.steps_of(n, size)
        assert len(found) == epochs * steps
        for epoch in range(epochs):
            own = found[epoch * steps : (epoch + 1) * steps]
            assert sorted(chain.from_iterable(own)) == list(range(n))
            lengths = [len(b) for b in own]
            whole, left = divmod(n, size)
            expected = [size] * whole + [left] * (left > 0)
            if merge and left == 1 and whole:
                expected = [size] * (whole - 1) + [size + 1]
            assert lengths == expected


@settings(max_examples=30, deadline=None)
@given(clients, st.integers(1, 6), st.booleans())
def test_those_still_training_are_the_first_rows_and_padding_is_the_clients_own(
    sizes: list[int], size: int, merge: bool
) -> None:
    cohort = numbered(sizes, merge, batch_size=size, epochs=2)
    found = list(cohort.batches(at(1)))
    assert all(len(a) >= len(b) for a, b in pairwise(found))
    for batch in found:
        assert batch.x.shape[:2] == batch.y.shape == (len(batch), max(batch.counts))
        assert (batch.x[:, :, 0].cpu() == torch.arange(len(batch))[:, None]).all()


@settings(max_examples=30, deadline=None)
@given(clients, st.integers(1, 6), st.integers(1, 9))
def test_a_number_of_steps_is_taken_by_everyone_starting_over_as_often_as_needed(
    sizes: list[int], size: int, steps: int
) -> None:
    cohort = numbered(sizes, batch_size=size)
    for i, n in enumerate(sizes):
        found = seen(cohort, i, steps=steps)
        assert len(found) == steps
        per_pass = cohort.steps_of(n, size)
        for first in range(0, steps - per_pass + 1, per_pass):
            assert sorted(chain.from_iterable(found[first : first + per_pass])) == list(range(n))
        assert len(set(chain.from_iterable(found[:per_pass]))) == sum(map(len, found[:per_pass]))


@settings(max_examples=30, deadline=None)
@given(clients, st.integers(1, 6), st.integers(1, 3), st.integers(0, 9), st.booleans())
def test_the_budget_is_the_number_of_batches_of_a_round(
    sizes: list[int], size: int, epochs: int, steps: int, merge: bool
) -> None:
    """Of whole passes, or of the steps that are taken in their place."""
    cohort = numbered(sizes, merge, batch_size=size, epochs=epochs, steps=steps)
    found = [len(seen(cohort, i)) for i in range(len(sizes))]
    assert cohort.step_counts() == found
    if steps:
        assert found == [steps] * len(sizes)


@settings(max_examples=30, deadline=None)
@given(clients, st.integers(1, 6), st.lists(st.integers(1, 9), min_size=5, max_size=5))
def test_every_client_may_take_a_number_of_steps_of_its_own(sizes: list[int], size: int, some: list[int]) -> None:
    """The batches are those that it would have had with more or fewer."""
    steps = sorted(some[: len(sizes)], reverse=True)
    cohort = numbered(sizes, batch_size=size, steps=2)
    for i in range(len(sizes)):
        assert seen(cohort, i, steps=steps) == seen(cohort, i, steps=9)[: steps[i]]
    assert [len(batch) for batch in cohort.batches(at(1), steps=steps)] == [
        sum(s > at for s in steps) for at in range(max(steps))
    ]


def test_steps_that_rise_with_the_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="sorted by falling number"):
        next(numbered([9, 9], batch_size=4).batches(at(1), steps=[2, 3]))


def test_passes_that_are_asked_for_go_before_steps() -> None:
    cohort = numbered([10], batch_size=4, steps=7)
    assert [len(b) for b in seen(cohort, 0, epochs=1)] == [4, 4, 2]
    assert len(seen(cohort, 0, steps=2)) == 2 and len(seen(cohort, 0)) == 7


def test_passes_rounds_and_streams_are_shuffled_anew() -> None:
    cohort = numbered([20, 20], batch_size=20, epochs=2)
    one, two = seen(cohort, 0)
    orders = [one, two, seen(cohort, 0, 2)[0], seen(cohort, 0, stream="other")[0], seen(cohort, 1)[0], list(range(20))]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])
    assert seen(cohort, 0) == [one, two]
    cohort.seed += 1
    assert seen(cohort, 0)[0] not in orders


def test_a_clients_batches_depend_on_its_name_and_on_no_one_else() -> None:
    cohort = numbered([20, 14, 9, 9], batch_size=4, epochs=2)
    expected = batches_of(cohort, 2, 1)
    for others, place in (([2], 0), ([0, 2], 1), ([1, 2, 3], 1), ([2, 3], 0)):
        for (x, y), (a, b) in zip(batches_of(cohort.take(others), place, 1), expected, strict=True):
            assert torch.equal(x, a) and torch.equal(y, b)
    cohort.names = ("client-0", "client-1", "someone else", "client-3")
    assert any(not torch.equal(a, b) for (a, _), (b, _) in zip(batches_of(cohort, 2, 1), expected, strict=True))


def test_batch_size_and_passes_may_be_asked_for() -> None:
    cohort = numbered([10], batch_size=4, epochs=3)
    assert [len(b) for b in seen(cohort, 0, size=6, epochs=1)] == [6, 4]


def test_every_sample_has_the_weight_of_its_class_at_its_client() -> None:
    weights = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    cohort, _, _ = made("mlp", (7, 4), weights=weights)
    for part, rows in ((cohort, weights), (cohort.take([1]), weights[1:])):
        for batch in part.batches(at(1)):
            assert batch.weight is not None
            for i, count in enumerate(batch.counts):
                assert batch.weight[i, :count].tolist() == [rows[i][c] for c in batch.y[i, :count]]


# Training, against the loop anyone would write

LOCALS = {
    "adam": Local(epochs=3, batch_size=5, lr=0.01),
    "adam-decay": Local(epochs=3, batch_size=5, lr=0.01, weight_decay=0.05),
    "sgd": Local(epochs=3, batch_size=5, optimiser="sgd", lr=0.1),
    "nesterov-clipped": Local(
        epochs=3, batch_size=5, optimiser="sgd", lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, clip=0.3
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("network", ["mlp", "batch-norm", "frozen"])
@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
def test_a_round_is_what_a_plain_loop_a_client_gives(local: Local, network: str, way: str) -> None:
    cohort, W, module = made(network, local=local, way=way)
    found = cohort.fit(W, at(4))
    assert cohort.execution.name == way
    expected, losses = [], []
    for i in range(len(cohort)):
        row, loss = trained_plainly(module, W[i], batches_of(cohort, i, 4), local, nn.CrossEntropyLoss())
        expected.append(row)
        losses.append(loss)
    assert_weights_and_statistics_same(cohort, found, torch.stack(expected))
    mean = cohort.ledger.mean_loss()
    assert mean is not None and mean.tolist() == pytest.approx(losses, rel=1e-9)


@pytest.mark.parametrize("way", WAYS)
def test_single_precision_is_close_to_a_plain_loop(way: str) -> None:
    cohort, W, module = made(way=way, dtype=torch.float32)
    found = cohort.fit(W, at(1))
    plain = [
        trained_plainly(module, W[i], batches_of(cohort, i, 1), cohort.local, nn.CrossEntropyLoss())[0]
        for i in range(len(cohort))
    ]
    assert_same(found, torch.stack(plain), 1e-4 if ON_CPU else 1e-2)  # stacked on a GPU, products are in TF32


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("weights", ["balanced", [[1.0, 2.0, 0.5]] * 5], ids=["balanced", "given"])
def test_class_weights_are_those_of_torchs_loss(weights: str | list[list[float]], way: str) -> None:
    cohort, W, module = made(way=way, weights=weights)
    found, expected = cohort.fit(W, at(1)), []
    for i, n in enumerate(SIZES):
        labels = data(cohort.names[i], n, (4,))[1].tolist()
        own = weights[i]
        if weights == "balanced":
            own = [n / (len(set(labels)) * labels.count(c)) if c in labels else 0.0 for c in range(CLASSES)]
        criterion = nn.CrossEntropyLoss(weight=torch.tensor(own, dtype=torch.float64, device=DEVICE))
        expected.append(trained_plainly(module, W[i], batches_of(cohort, i, 1), cohort.local, criterion)[0])
    assert_same(found, torch.stack(expected))
    plain, _, _ = made(way=way)
    assert (found - plain.fit(W, at(1))).norm(dim=1).min() > 1e-4


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("classes", [None, [[1.0, 2.0, 0.5]] * 5], ids=["alone", "with class weights"])
def test_samples_count_by_their_weight_times_that_of_their_class(classes: list[list[float]] | None, way: str) -> None:
    cohort, W, module = made(way=way, weights=classes)
    weight = torch.linspace(0.1, 3, sum(SIZES), dtype=torch.float64, device=DEVICE)
    cohort.train = replace(cohort.train, weight=weight)
    place = {tuple(x.tolist()): i for i, x in enumerate(cohort.train.x)}

    def criterion(outputs: Tensor, samples: Tensor) -> Tensor:
        y = cohort.train.y[samples]
        own = weight[samples] * (1 if classes is None else torch.tensor(classes[0], device=DEVICE).double()[y])
        return (F.cross_entropy(outputs, y, reduction="none") * own).sum() / own.sum()

    expected = []
    for i in range(len(SIZES)):
        numbered = [
            (x, torch.tensor([place[tuple(each.tolist())] for each in x], device=DEVICE))
            for x, _ in batches_of(cohort, i, 1)
        ]
        expected.append(trained_plainly(module, W[i], numbered, cohort.local, criterion)[0])
    found = cohort.fit(W, at(1))
    assert_same(found, torch.stack(expected))
    plain, _, _ = made(way=way, weights=classes)
    assert (found - plain.fit(W, at(1))).norm(dim=1).min() > 1e-4


def smoothed(outputs: Tensor, targets: Tensor) -> Tensor:
    """A user's loss that sees the whole batch: the mean and the largest value count."""
    values = F.cross_entropy(outputs, targets, reduction="none")
    return values.mean() + 0.5 * values.max()


@pytest.mark.parametrize("way", WAYS)
def test_a_users_loss_of_the_whole_batch_is_minimised_as_in_a_plain_loop(way: str) -> None:
    cohort, W, module = made(way=way, loss=loss_named(smoothed))
    plain = [
        trained_plainly(module, W[i], batches_of(cohort, i, 1), cohort.local, smoothed)[0] for i in range(len(cohort))
    ]
    assert_same(cohort.fit(W, at(1)), torch.stack(plain))


@pytest.mark.parametrize("way", WAYS)
def test_regression_is_what_a_plain_loop_gives(way: str) -> None:
    cohort, W, module = made(way=way, kind="regression")
    plain = [
        trained_plainly(module, W[i], batches_of(cohort, i, 1), cohort.local, nn.MSELoss())[0]
        for i in range(len(cohort))
    ]
    assert_same(cohort.fit(W, at(1)), torch.stack(plain))


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_looks_at_the_whole_batch_trains_as_in_a_plain_loop(way: str) -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x - x.mean(0))

    cohort, W, module = made(Centred(), way=way)
    plain = [
        trained_plainly(module, W[i], batches_of(cohort, i, 1), cohort.local, nn.CrossEntropyLoss())[0]
        for i in range(len(cohort))
    ]
    assert cohort.execution.name == way
    assert_same(cohort.fit(W, at(1)), torch.stack(plain))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("network", ["mlp", "batch-norm"])
def test_the_proximal_gradient_is_the_distance_to_the_cloud_model_over_beta(network: str, way: str) -> None:
    """Trap T1: (w - u) / beta, the gradient of (1 / (2 beta)) ||w - u||^2, and it moves the result."""
    cohort, W, module = made(network, way=way)
    d, beta = cohort.layout.parameters, 0.5
    noise = torch.randn(len(cohort), d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    U = W[:, :d] + 0.1 * noise.to(DEVICE)
    found = cohort.fit(W, at(1), extra=lambda w, k: (w - U[:k]) / beta)
    expected = []
    for i in range(len(cohort)):

        def penalty(parameters: list[nn.Parameter], u: Tensor = U[i]) -> Tensor:
            return (torch.cat([p.flatten() for p in parameters]) - u).square().sum() / (2 * beta)

        batches = batches_of(cohort, i, 1)
        expected.append(trained_plainly(module, W[i], batches, cohort.local, nn.CrossEntropyLoss(), penalty=penalty)[0])
    assert_weights_and_statistics_same(cohort, found, torch.stack(expected))
    found, without = found[:, :d], cohort.fit(W, at(1))[:, :d]
    assert (found - without).norm(dim=1).min() > 1e-3
    assert ((found - U).norm(dim=1) < (without - U).norm(dim=1)).all()


@pytest.mark.parametrize("way", WAYS)
def test_what_is_added_to_a_gradient_sees_parameters_only(way: str) -> None:
    """Trap T12: never the running statistics; and of the first k clients, those still training."""
    cohort, W, _ = made("batch-norm", way=way)
    active = [len(b) for b in cohort.batches(at(1))]
    shapes = []

    def extra(w: Tensor, k: int) -> Tensor:
        shapes.append((tuple(w.shape), k))
        return torch.zeros_like(w)

    found = cohort.fit(W, at(1), extra=extra)
    assert shapes == [((k, cohort.layout.parameters), k) for k in active]
    assert same(found, cohort.fit(W, at(1)))


def test_the_learning_rate_is_the_rounds() -> None:
    local = Local(epochs=1, batch_size=5, optimiser="sgd", lr=0.1, schedule="step", schedule_every=3)
    cohort, W, module = made(local=local)
    for round, lr in ((3, 0.1), (4, 0.01), (7, 0.001), (99, 0.0001)):
        plain, _ = trained_plainly(module, W[0], batches_of(cohort, 0, round), local, nn.CrossEntropyLoss(), lr=lr)
        assert_same(cohort.fit(W, at(round))[:1], plain[None])


def test_passes_may_be_asked_for() -> None:
    cohort, W, module = made()
    batches = batches_of(cohort, 1, 1, epochs=1)
    assert len(batches) == 4
    plain, _ = trained_plainly(module, W[1], batches, cohort.local, nn.CrossEntropyLoss())
    assert_same(cohort.fit(W, at(1), epochs=1)[1:2], plain[None])


@pytest.mark.parametrize("way", WAYS)
def test_a_round_may_be_a_number_of_steps(way: str) -> None:
    """The smallest client starts over four times, the largest does not get through its data."""
    local = Local(epochs=3, batch_size=5, steps=4, lr=0.01)
    cohort, W, module = made(local=local, way=way)
    expected = []
    for i in range(len(cohort)):
        batches = batches_of(cohort, i, 1)
        assert len(batches) == 4
        expected.append(trained_plainly(module, W[i], batches, local, nn.CrossEntropyLoss())[0])
    assert_same(cohort.fit(W, at(1)), torch.stack(expected))


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_kept_optimiser_goes_on_where_each_client_stopped(optimiser: str) -> None:
    """Two rounds are one long run of torch's optimiser; clients have taken different numbers of steps."""
    local = Local(epochs=2, batch_size=5, optimiser=optimiser, lr=0.05, momentum=0.5 if optimiser == "sgd" else 0.0)
    cohort, W, module = made(local=local)
    kept: Optimiser = cohort.optimiser(W)
    found = cohort.fit(cohort.fit(W, at(1), optimiser=kept), at(2), optimiser=kept)
    plain = [
        trained_plainly(module, W[i], batches_of(cohort, i, 1) + batches_of(cohort, i, 2), local, nn.CrossEntropyLoss())
        for i in range(len(cohort))
    ]
    assert_same(found, torch.stack([row for row, _ in plain]))
    afresh = cohort.fit(cohort.fit(W, at(1)), at(2))
    assert (afresh - found).norm(dim=1).min() > 1e-4


def test_a_state_carried_from_round_to_round_is_a_kept_optimiser() -> None:
    """And side trainings, on streams of other names, neither use nor change it."""
    cohort, W, _ = made()
    kept = cohort.optimiser(W)
    expected = cohort.fit(cohort.fit(W, at(1), optimiser=kept), at(2), optimiser=kept)
    cohort.ledger.optimiser = Optimiser.fresh(cohort.local, W, cohort.layout.parameters)
    first = cohort.fit(W, at(1))
    aside = cohort.fit(first, at(2), stream="aside")
    assert same(cohort.fit(first, at(2)), expected)
    assert all(same(t, getattr(kept.state, n)) for n, t in cohort.ledger.optimiser.items())
    cohort.ledger.optimiser = None
    assert same(cohort.fit(first, at(2), stream="aside"), aside)
    assert cohort.ledger.optimiser is None


def test_a_round_leaves_its_start_alone_and_models_share_no_memory() -> None:
    """Trap T12: all start from one row, kept once; afterwards a change to one model touches no other."""
    cohort, W, _ = made("batch-norm")
    assert W.stride(0) == 0
    before = W.clone()
    found = cohort.fit(W, at(1))
    assert torch.equal(W, before)
    again = found.clone()
    found[1].zero_()
    assert torch.equal(found[[0, 2, 3, 4]], again[[0, 2, 3, 4]])
    assert len({row.data_ptr() for row in found}) == len(cohort)


@pytest.mark.parametrize("way", WAYS)
def test_frozen_parameters_stay_as_they_are_bit_for_bit(way: str) -> None:
    cohort, W, module = made("frozen", way=way)
    found = cohort.fit(W, at(1), extra=lambda w, k: w)
    layout = cohort.layout
    kept = layout.rest(found)
    assert set(kept) == {"hidden1.weight", "hidden1.bias"}
    for name, tensor in kept.items():
        assert torch.equal(tensor, module.get_parameter(name).detach().expand_as(tensor))
    assert (found[:, : layout.parameters] != W[:, : layout.parameters]).any(1).all()


# Running statistics


@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_moves_the_running_statistics_in_the_rows_it_was_given(way: str) -> None:
    """As in any training-mode pass; and only there, only of those in the batch (traps T12 and T24)."""
    cohort, W, module = made("batch-norm", way=way)
    W, d = W.clone(), cohort.layout.parameters
    before = W.clone()
    own = [copy.deepcopy(module).train() for _ in range(len(cohort))]
    for batch in cohort.batches(at(1)):
        held = W.clone()
        cohort.grad(W, batch)
        assert torch.equal(W[len(batch) :], held[len(batch) :])
        for i, count in enumerate(batch.counts):
            own[i](batch.x[i, :count])
    assert torch.equal(W[:, :d], before[:, :d])
    expected = torch.stack([cohort.layout.row(m) for m in own])
    assert (W[:, d:] != before[:, d:]).any(1).all()
    assert_same(W[:, d:], expected[:, d:], 1e-10)


@pytest.mark.parametrize("way", WAYS)
def test_a_single_sample_left_over_joins_the_batch_before_where_there_are_batch_statistics(way: str) -> None:
    cohort, W, module = made("batch-norm", (11, 6, 5), way=way)
    assert [list(b.counts) for b in cohort.batches(at(1), epochs=1)] == [[5, 6, 5], [6]]
    found = cohort.fit(W, at(1))
    plain = [
        trained_plainly(module, W[i], batches_of(cohort, i, 1), cohort.local, nn.CrossEntropyLoss())[0]
        for i in range(3)
    ]
    assert_weights_and_statistics_same(cohort, found, torch.stack(plain))
    cohort.merge_single = False
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        cohort.fit(W, at(1))


def test_without_batch_statistics_a_single_sample_is_a_batch() -> None:
    cohort, _, _ = made("mlp", (11, 6, 5))
    assert [list(b.counts) for b in cohort.batches(at(1), epochs=1)] == [[5, 5, 5], [5, 1], [1]]


# Random numbers of a method's own


def draws(cohort: Cohort, purpose: str = "noise") -> list[tuple[float, ...]]:
    """What each row draws."""
    return [tuple(torch.rand(5, generator=own, dtype=torch.float64).tolist()) for own in cohort.rng(purpose)]


def test_every_row_has_random_numbers_by_its_seed_and_name_in_each_round_for_each_purpose() -> None:
    cohort = replace(made("mlp", (9, 7, 5))[0], now=at(2))
    own = draws(cohort)
    others = [
        draws(cohort, "mask"),
        draws(replace(cohort, now=at(3))),
        draws(replace(cohort, seed=cohort.seed + 1)),
        draws(replace(cohort, names=("x", "y", "z"))),
    ]
    assert len(set(chain(own, *others))) == 15
    assert draws(cohort) == draws(replace(cohort, now=at(2, of=80))) == own
    assert [draws(cohort.take([i])) for i in range(3)] == [[row] for row in own]


def test_rows_of_several_seeds_draw_what_they_draw_alone() -> None:
    cohort = replace(made("mlp", (9, 7))[0], now=at(2))
    both = replace(cohort.take([0, 0, 1, 1]), seeds=(3, 4, 3, 4))
    alone = [draws(replace(cohort, seed=seed)) for seed in (3, 4)]
    assert draws(both) == [alone[0][0], alone[1][0], alone[0][1], alone[1][1]]
    assert draws(both.take([1, 2])) == [alone[1][0], alone[0][1]]


def test_outside_of_a_round_there_are_no_random_numbers() -> None:
    cohort, _, _ = made()
    with pytest.raises(RuntimeError, match="Random numbers are a round's, and this cohort is in none"):
        cohort.rng("noise")


# All at once or one by one, all together or in parts


@pytest.mark.parametrize("network", ["mlp", "batch-norm", "gru"])
def test_after_a_round_both_ways_have_the_same_weights_and_statistics(network: str) -> None:
    kind = "regression" if network == "gru" else "classification"
    local = Local(epochs=4, batch_size=5, lr=0.01)
    results = []
    for way in WAYS:
        cohort, W, _ = made(network, way=way, local=local, kind=kind)
        assert cohort.execution.name == way
        results.append(cohort.fit(W, at(1)))
        assert (results[-1] - W).norm(dim=1).min() > 1e-2
    assert_weights_and_statistics_same(cohort, results[0], results[1])


@pytest.mark.parametrize(("network", "sizes"), [("cnn", (9, 6, 3)), ("resnet18", (7, 5))])
def test_after_three_steps_on_images_both_ways_have_the_same_weights_and_statistics(
    network: str, sizes: tuple[int, ...]
) -> None:
    cohort, start, module = made(network, sizes, "stacked", local=Local(batch_size=4))
    alone = OneByOne(module, cohort.layout, cohort.task.loss, DEVICE)
    results = []
    for execution in (cohort.execution, alone):
        cohort, W = replace(cohort, execution=execution), start.clone()
        optimiser = cohort.optimiser(W)
        for batch in cohort.batches(at(1), steps=3):
            optimiser.step(W, cohort.grad(W, batch), cohort.local.lr)
        assert (W - start).norm(dim=1).min() > 1e-2
        results.append(W)
    assert_weights_and_statistics_same(cohort, results[0], results[1])


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=5, max_size=5), st.sampled_from(["mlp", "batch-norm"]))
def test_clients_train_alike_however_they_are_divided(part: list[int], network: str) -> None:
    """Five clients in up to three chunks, in both ways."""
    for way in WAYS:
        cohort, W, _ = made(network, way=way, weights="balanced", local=Local(epochs=2, batch_size=5, lr=0.01))
        together = cohort.fit(W, at(2))
        for p in set(part):
            chunk = [i for i in range(5) if part[i] == p]
            alone = cohort.take(chunk).fit(W[chunk], at(2))
            assert_weights_and_statistics_same(cohort, alone, together[chunk])


@settings(max_examples=6, deadline=None)
@given(st.permutations(["ada", "ben", "cleo", "dora"]))
def test_equal_clients_train_alike_in_whatever_order_they_stand(names: list[str]) -> None:
    first, W, _ = made("batch-norm", (8,) * 4, names=["ada", "ben", "cleo", "dora"])
    other, _, _ = made("batch-norm", (8,) * 4, names=names)
    rows = [first.names.index(n) for n in other.names]
    assert_weights_and_statistics_same(first, other.fit(W, at(1)), first.fit(W, at(1))[rows])


def test_dropout_depends_on_name_round_and_step_and_on_no_one_else() -> None:
    cohort, W, _ = made("dropout", (12, 12, 7), way="auto")
    assert cohort.execution.name == "one-by-one" and cohort.random_layers
    torch.manual_seed(11)
    together = cohort.fit(W, at(1))
    torch.manual_seed(22)
    before = torch.get_rng_state()
    for i in range(3):
        assert same(cohort.take([i]).fit(W[:1], at(1))[0], together[i])
    assert same(cohort.take([1, 2]).fit(W[:2], at(1)), together[1:])
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_is_drawn_anew_for_every_name_round_stream_and_step() -> None:
    cohort, W, _ = made("dropout", (5, 5), way="auto", local=Local(epochs=2, batch_size=5))
    x, y = cohort.train.x[None, :5], cohort.train.y[None, :5]

    def drawn(cohort: Cohort, round: int, stream: str, step: int) -> tuple[float, ...]:
        """What is dropped, seen in the gradient of one fixed batch."""
        batch = list(cohort.batches(at(round), stream=stream))[step]
        G = cohort.execution.grad(W, Batch(x, y, [5], seeds=batch.seeds))[0]
        return tuple(G[0].tolist())

    settings = [(1, "train", 0), (2, "train", 0), (1, "other", 0), (1, "train", 1)]
    found = [drawn(cohort, *s) for s in settings] + [drawn(cohort.take([1]), 1, "train", 0)]
    assert len(set(found)) == len(found)
    assert drawn(cohort, 1, "train", 0) == found[0]


# Two models whose outputs are mixed


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("network", ["mlp", "batch-norm", "frozen"])
def test_the_gradients_of_mixed_outputs_are_those_of_two_modules(network: str, way: str) -> None:
    """Of the loss of alpha v(x) + (1 - alpha) w(x), for v and for w; the running statistics of both move."""
    cohort, start, module = made(network, way=way)
    layout, d = cohort.layout, cohort.layout.parameters
    V, W = start * 1.1, start * 0.9
    alpha = torch.linspace(0.2, 0.8, len(cohort), dtype=torch.float64, device=DEVICE)
    pairs = [[layout.load(copy.deepcopy(module), row).train() for row in rows] for rows in zip(V, W, strict=True)]
    for batch in cohort.batches(at(1), epochs=1):
        of_v, of_w = cohort.mixed_grad(V, W, alpha, batch)
        for i, count in enumerate(batch.counts):
            v, w = pairs[i]
            x, y = batch.x[i, :count], batch.y[i, :count]
            loss = F.cross_entropy(alpha[i] * v(x) + (1 - alpha[i]) * w(x), y)
            trained = [p for m in (v, w) for p in m.parameters() if p.requires_grad]
            expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained)])
            assert_same(torch.cat([of_v[i], of_w[i]])[None], expected[None])
    for rows, side in ((V, 0), (W, 1)):
        assert_weights_and_statistics_same(cohort, rows, torch.stack([layout.row(p[side]) for p in pairs]))
    assert torch.equal(V[:, :d], start[:, :d] * 1.1)


# The gradient over everything


@pytest.mark.parametrize("way", WAYS)
def test_the_full_gradient_is_that_of_all_of_a_clients_samples(way: str) -> None:
    cohort, W, module = made(way=way)
    before = W.clone()
    found = cohort.full_grad(W, at(1))
    assert torch.equal(W, before)
    for i, n in enumerate(SIZES):
        own = copy.deepcopy(module)
        x, y = data(cohort.names[i], n, (4,))
        F.cross_entropy(own(x), y).backward()
        expected = torch.cat([p.grad.flatten() for p in own.parameters() if p.grad is not None])
        assert_same(found[i : i + 1], expected[None])


@pytest.mark.parametrize("way", WAYS)
def test_the_full_gradient_of_a_masked_loss_is_the_mean_over_known_targets(way: str) -> None:
    """Batches with few known targets count less; a client that knows none stands still."""
    cohort, W, module = made(way=way, kind="regression", loss=LOSSES["masked_mse"])
    cohort.task = replace(cohort.task, loss=LOSSES["masked_mse"])
    gaps = torch.rand(cohort.train.y.shape, generator=torch.Generator().manual_seed(0)) < 0.6
    gaps[cohort.train.starts[2] :][: SIZES[2]] = True
    cohort.train.y[gaps] = torch.nan
    found = cohort.full_grad(W.clone(), at(1))
    for i, n in enumerate(SIZES):
        own, start = copy.deepcopy(module), cohort.train.starts[i]
        x, y = cohort.train.x[start : start + n], cohort.train.y[start : start + n]
        known = ~y.isnan()
        expected = torch.zeros(cohort.layout.parameters, dtype=torch.float64, device=DEVICE)
        if known.any():
            (own(x)[known] - y[known]).square().mean().backward()
            expected = torch.cat([p.grad.flatten() for p in own.parameters() if p.grad is not None])
        assert_same(found[i : i + 1], expected[None])


@pytest.mark.parametrize("way", WAYS)
def test_the_full_gradient_is_one_pass_whatever_local_training_does_and_moves_running_statistics(way: str) -> None:
    cohort, start, module = made("batch-norm", way=way, local=Local(batch_size=5, steps=2))
    W, d = start.clone(), cohort.layout.parameters
    found = cohort.full_grad(W, at(1))
    for i, n in enumerate(SIZES):
        own = copy.deepcopy(module).train()
        for x, y in batches_of(cohort, i, 1, stream="full", epochs=1):
            (F.cross_entropy(own(x), y, reduction="sum") / n).backward()
        expected = torch.cat([p.grad.flatten() for p in own.parameters() if p.grad is not None])
        assert_same(found[i : i + 1], expected[None])
        assert_same(W[i : i + 1, d:], cohort.layout.row(own)[None, d:])
    assert torch.equal(W[:, :d], start[:, :d])


@pytest.mark.parametrize("way", WAYS)
def test_curvature_is_of_the_first_rows_those_in_the_batch(way: str) -> None:
    cohort, W, _ = made(way=way, weights="balanced")
    V = torch.randn(5, cohort.layout.parameters, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    V = V.to(DEVICE)
    batch = list(cohort.batches(at(1)))[-1]
    assert len(batch) == 1
    found = cohort.curvature(W, V, batch)
    turned = [cohort.grad(W + step * V, batch) for step in (1e-6, -1e-6)]
    assert_same(found, (turned[0] - turned[1]) / 2e-6, 1e-6)


def test_there_is_no_mean_loss_before_a_gradient() -> None:
    cohort, W, _ = made()
    assert cohort.ledger.mean_loss() is None
    cohort.fit(W, at(1))
    assert cohort.take([0]).ledger.mean_loss() is None


# Some columns alone

FEW = {
    "adam": Local(epochs=3, batch_size=5, lr=0.01, weight_decay=0.05),
    "adam-clipped": Local(epochs=3, batch_size=5, lr=0.01, clip=0.2),
    "nesterov-clipped": LOCALS["nesterov-clipped"],
    "heavy-ball": Local(epochs=3, batch_size=5, optimiser="sgd", lr=0.1, momentum=0.9, weight_decay=0.05),
}
CHOSEN: dict[str, Callable[[Cohort], Tensor | None]] = {
    "head": lambda cohort: cohort.layout.columns("head"),
    "body": lambda cohort: cohort.layout.split()[0],
    "apart": lambda cohort: (
        cohort.layout.columns([cohort.layout.fields[0].name, cohort.layout.fields[-1].name])
        if cohort.layout.size == cohort.layout.parameters
        else cohort.layout.columns(["0", "3"])
    ),
}


def moved_plainly(
    cohort: Cohort,
    module: nn.Module,
    W: Tensor,
    i: int,
    columns: Tensor,
    added: Callable[[Tensor], Tensor] | None = None,
    near: Proximal | None = None,
    rounds: Sequence[int] = (1,),
) -> Tensor:
    """A loop over one module, with torch's optimiser of one vector: the moving parameters, which are all it knows.

    Whose statistics move is for the tests to say.
    """
    local, layout = cohort.local, cohort.layout
    own = layout.load(copy.deepcopy(module), W[i]).train()
    columns = columns[columns < layout.parameters].to(DEVICE)
    vector = nn.Parameter(layout.row(own)[columns])
    optimiser: torch.optim.Optimizer
    if local.optimiser == "adam":
        optimiser = torch.optim.Adam([vector], local.lr, local.betas, local.eps, local.weight_decay, foreach=False)
    else:
        momentum, decay = local.momentum, local.weight_decay
        optimiser = torch.optim.SGD([vector], local.lr, momentum, weight_decay=decay, nesterov=local.nesterov)
    for x, y in chain.from_iterable(batches_of(cohort, i, k) for k in rounds):
        own.zero_grad()
        F.cross_entropy(own(x), y).backward()
        slope = torch.cat([p.grad.flatten() for p in own.parameters() if p.grad is not None])
        vector.grad = slope[columns]
        if added is not None:
            vector.grad += added(layout.row(own)[: layout.parameters])[columns]
        if local.clip:
            nn.utils.clip_grad_norm_([vector], local.clip)
        optimiser.step()
        if near is not None:
            a = local.lr / near.beta[i]
            vector.data += a / (1 + a) * (near.anchor[i, columns] - vector.data)
        row = layout.row(own)
        row[columns] = vector.data
        layout.load(own, row)
    return layout.row(own)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("network", ["mlp", "batch-norm"])
@pytest.mark.parametrize("chosen", CHOSEN)
@pytest.mark.parametrize("local", FEW.values(), ids=FEW)
@pytest.mark.parametrize("pull", ["none", "gradient", "exact", "any"])
def test_some_columns_train_as_by_an_optimiser_that_knows_no_others(
    pull: str, local: Local, chosen: str, network: str, way: str
) -> None:
    cohort, W, module = made(network, local=local, way=way, sizes=(13, 6, 3))
    d, columns = cohort.layout.parameters, CHOSEN[chosen](cohort)
    assert columns is not None
    source = torch.Generator().manual_seed(1)
    U = W + 0.3 * torch.randn(W.shape, dtype=torch.float64, generator=source).to(DEVICE)
    near = Proximal(U, torch.tensor([[0.5], [0.2], [1.0]], dtype=torch.float64, device=DEVICE), pull == "exact")
    extra: Extra | None = None if pull == "none" else near
    if pull == "any":  # one that needs to see parameters that stay
        extra = lambda w, k: w.flip(1) + w.sum(1, keepdim=True)  # noqa: E731
    found = cohort.fit(W, at(1), extra=extra, columns=columns)
    expected = []
    for i in range(len(cohort)):

        def added(w: Tensor, i: int = i) -> Tensor:
            return (w - U[i, :d]) / near.beta[i] if pull == "gradient" else w.flip(0) + w.sum()

        term = added if pull in ("gradient", "any") else None
        expected.append(moved_plainly(cohort, module, W, i, columns, term, near if pull == "exact" else None))
    plain = torch.stack(expected)
    assert_same(found[:, :d], plain[:, :d])
    fixed = torch.ones(d, dtype=torch.bool, device=DEVICE)
    fixed[columns[columns < d].to(DEVICE)] = False
    assert fixed.any() and torch.equal(found[:, :d][:, fixed], W[:, :d][:, fixed])
    assert (found[:, :d][:, ~fixed] != W[:, :d][:, ~fixed]).float().mean() > 0.5
    if network == "batch-norm":
        if chosen == "body":
            assert_same(found[:, d:], plain[:, d:])
        else:
            assert torch.equal(found[:, d:], W[:, d:]) and not same(plain[:, d:], W[:, d:])


@pytest.mark.parametrize("way", WAYS)
def test_all_columns_are_all_of_it(way: str) -> None:
    cohort, W, _ = made("batch-norm", way=way)
    everything = cohort.fit(W, at(1))
    for columns in (torch.arange(cohort.layout.parameters), torch.ones(cohort.layout.size, dtype=torch.bool), None):
        assert same(cohort.fit(W, at(1), columns=columns), everything)


def test_a_mask_numbers_and_numbers_said_twice_are_the_same_columns() -> None:
    cohort, W, _ = made()
    columns = cohort.layout.columns("head")
    assert columns is not None
    mask = torch.zeros(cohort.layout.parameters, dtype=torch.bool)
    mask[columns] = True
    found = cohort.fit(W, at(1), columns=columns)
    for other in (mask, columns.flip(0), columns.repeat(2), columns.to(DEVICE, torch.int32)):
        assert torch.equal(cohort.fit(W, at(1), columns=other), found)


@pytest.mark.parametrize("chosen", CHOSEN)
@pytest.mark.parametrize("local", [FEW["adam"], FEW["heavy-ball"]], ids=["adam", "heavy-ball"])
def test_columns_go_on_with_a_kept_optimiser_and_leave_the_rest_of_its_state(local: Local, chosen: str) -> None:
    """Given, or carried by the ledger from round to round."""
    cohort, W, module = made(local=local, sizes=(13, 6))
    columns = CHOSEN[chosen](cohort)
    assert columns is not None
    kept = cohort.optimiser(W)
    found = cohort.fit(cohort.fit(W, at(1), columns=columns, optimiser=kept), at(2), columns=columns, optimiser=kept)
    plain = [moved_plainly(cohort, module, W, i, columns, rounds=(1, 2)) for i in range(2)]
    assert_same(found, torch.stack(plain))
    fixed = torch.ones(cohort.layout.parameters, dtype=torch.bool)
    fixed[columns] = False
    moments = [t for name, t in kept.state.items() if name != "steps"]
    assert moments and all(not t[:, fixed].any() and t[:, ~fixed].any() for t in moments)
    cohort.ledger.optimiser = Optimiser.fresh(local, W, cohort.layout.parameters)
    assert same(cohort.fit(cohort.fit(W, at(1), columns=columns), at(2), columns=columns), found)
    assert all(same(t, getattr(kept.state, n)) for n, t in cohort.ledger.optimiser.items())


@pytest.mark.parametrize("chosen", CHOSEN)
@pytest.mark.parametrize("pull", ["none", "gradient", "exact"])
def test_the_fast_ways_move_some_columns_alike(monkeypatch: pytest.MonkeyPatch, pull: str, chosen: str) -> None:
    """In single precision: the kernel on a GPU, torch's own Adam on a CPU."""
    monkeypatch.setattr("fedkin.training.optimisers.LONG", 1)
    cohort, W, _ = made(dtype=torch.float32, sizes=(13, 6))
    exactly, V, _ = made(sizes=(13, 6))
    columns = CHOSEN[chosen](cohort)
    beta = torch.tensor([[0.5], [0.2]], device=DEVICE)
    near = None if pull == "none" else Proximal(W + 0.1, beta, pull == "exact")
    wide = None if near is None else Proximal(V + 0.1, beta.double(), pull == "exact")
    found, expected = (
        cohort.fit(W, at(1), columns=columns, extra=near),
        exactly.fit(V, at(1), columns=columns, extra=wide),
    )
    assert_same(found.double(), expected, 1e-4)
    still = (expected == V).all(0)
    assert still.any() and torch.equal(found[:, still], W[:, still])


def test_statistics_go_with_their_module_and_those_asked_for_move() -> None:
    """Of a module without parameters of its own they go with that around it."""
    inner = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, affine=False))
    module = nn.Sequential(inner, nn.ReLU(), nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES))
    cohort, W, _ = made(module)
    statistics = {f.name: slice(f.start, f.stop) for f in cohort.layout.fields if "running" in f.name}

    def moved(columns: Tensor | None) -> set[str]:
        found = cohort.fit(W, at(1), columns=columns)
        return {name for name, at in statistics.items() if not torch.equal(found[:, at], W[:, at])}

    first, second = ({f"{name}.running_mean", f"{name}.running_var"} for name in ("0.1", "3"))
    assert moved(cohort.layout.columns("4")) == set()
    assert moved(cohort.layout.columns("3")) == second
    assert moved(cohort.layout.columns("0")) == first
    assert moved(cohort.layout.split()[0]) == first | second
    asked = torch.arange(statistics["0.1.running_var"].start, statistics["0.1.running_var"].stop)
    assert moved(torch.cat([torch.arange(3), asked])) == first
    assert moved(torch.cat([cohort.layout.columns("4"), asked])) == {"0.1.running_var"}  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (torch.arange(0), "nothing to train"),
        (torch.zeros(3, dtype=torch.bool), "has shape \\(3,\\)"),
        (torch.tensor([0, 10_000]), "from 0 to 10000"),
        (torch.tensor([-1]), "from -1 to -1"),
    ],
)
def test_columns_that_cannot_be_are_answered_in_a_sentence(columns: Tensor, said: str) -> None:
    cohort, W, _ = made()
    with pytest.raises(ValueError, match=said):
        cohort.fit(W, at(1), columns=columns)


# Evaluation

TESTS = (6, 0, 11, 1, 4)


def scored(
    way: str, network: str = "batch-norm", kind: str = "classification"
) -> tuple[Cohort, Tensor, Samples, nn.Module]:
    """Five clients with weights and statistics of their own and test samples of unequal number."""
    cohort, W, module = made(network, way=way, kind=kind)
    noise = torch.rand(W.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    W = W * (1 + 0.5 * noise.to(DEVICE))
    samples = Samples.of([data(f"test-{n}", n, (4,), kind) for n in TESTS], DEVICE)
    return cohort, W, samples, module


def plainly(module: nn.Module, row: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        return Layout.of(module).load(copy.deepcopy(module), row).eval()(x)


def parts(samples: Samples) -> list[tuple[Tensor, Tensor]]:
    return [(samples.x[s : s + n], samples.y[s : s + n]) for s, n in zip(samples.starts, samples.counts, strict=True)]


narrow = pytest.mark.parametrize("numbers", [1 << 24, 45, 1], ids=["one pass", "some at once", "one at once"])


@narrow
@pytest.mark.parametrize("way", WAYS)
def test_accuracy_is_the_share_of_right_answers_of_each_clients_own_model(
    way: str, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "NUMBERS_AT_ONCE", numbers)
    cohort, W, samples, module = scored(way)
    found = evaluate(cohort.execution, samples, W, METRICS["accuracy"])
    expected = [
        (plainly(module, W[i], x).argmax(1) == y).double().mean().item() for i, (x, y) in enumerate(parts(samples))
    ]
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(expected, nan_ok=True)
    assert found.isnan().tolist() == [n == 0 for n in TESTS]


@narrow
@pytest.mark.parametrize("way", WAYS)
def test_the_error_is_the_mean_over_a_clients_own_samples(
    way: str, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "NUMBERS_AT_ONCE", numbers)
    cohort, W, samples, module = scored(way, kind="regression")
    found = evaluate(cohort.execution, samples, W, METRICS["mse"])
    expected = [F.mse_loss(plainly(module, W[i], x), y).item() for i, (x, y) in enumerate(parts(samples)) if len(y)]
    assert found[~found.isnan()].tolist() == pytest.approx(expected, rel=1e-12)


def spread(outputs: Tensor, targets: Tensor) -> float:
    """A metric of all outputs at once, which a mean over parts would get wrong."""
    return float(outputs.std(unbiased=False) + targets.double().std(unbiased=False)) + len(outputs)


@narrow
@pytest.mark.parametrize("way", WAYS)
def test_a_users_metric_sees_all_of_a_clients_outputs_at_once(
    way: str, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "NUMBERS_AT_ONCE", numbers)
    cohort, W, samples, module = scored(way)
    found = evaluate(cohort.execution, samples, W, metric_named(spread))
    for i, (x, y) in enumerate(parts(samples)):
        if len(y):
            assert found[i].item() == pytest.approx(spread(plainly(module, W[i], x), y), rel=1e-12)
        else:
            assert found[i].isnan()


def test_a_users_metric_may_give_a_value_a_sample() -> None:
    cohort, W, samples, _ = scored("stacked")
    found = evaluate(cohort.execution, samples, W, metric_named(METRICS["accuracy"].function))
    expected = evaluate(cohort.execution, samples, W, METRICS["accuracy"])
    assert found.tolist() == pytest.approx(expected.tolist(), nan_ok=True)


@pytest.mark.parametrize("way", WAYS)
def test_one_model_for_all_is_scored_without_being_repeated(way: str) -> None:
    cohort, W, samples, _ = scored(way)
    shared = W[0].expand(5, -1)
    assert shared.stride(0) == 0
    found = evaluate(cohort.execution, samples, shared, METRICS["accuracy"])
    expected = evaluate(cohort.execution, samples, W[0].repeat(5, 1), METRICS["accuracy"])
    assert found.tolist() == pytest.approx(expected.tolist(), nan_ok=True)


@narrow
@pytest.mark.parametrize("way", WAYS)
def test_two_models_can_be_mixed_by_their_outputs(way: str, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """APFL: alpha v(x) + (1 - alpha) w(x), with an alpha a client and one w for all."""
    monkeypatch.setattr(evaluation, "NUMBERS_AT_ONCE", numbers)
    cohort, V, samples, module = scored(way, kind="regression")
    alpha, w = torch.linspace(0, 1, 5, dtype=torch.float64, device=DEVICE), V.mean(0)
    mixed = Predictor("mixed_outputs", State({"w": w}, v=V, alpha=alpha).for_clients(5))
    found = evaluate(cohort.execution, samples, mixed, METRICS["mse"])
    some = torch.tensor([2, 4])
    part = evaluate(cohort.execution, samples.take([2, 4]), mixed.take(some), METRICS["mse"])
    for i, (x, y) in enumerate(parts(samples)):
        if len(y):
            outputs = alpha[i] * plainly(module, V[i], x) + (1 - alpha[i]) * plainly(module, w, x)
            assert found[i].item() == pytest.approx(F.mse_loss(outputs, y).item(), rel=1e-12)
    assert part.tolist() == pytest.approx(found[some].tolist())


def test_evaluation_changes_no_statistics() -> None:
    for way in WAYS:
        cohort, W, samples, _ = scored(way)
        before = W.clone()
        evaluate(cohort.execution, samples, W, METRICS["accuracy"])
        assert torch.equal(W, before)


def test_clients_without_any_samples_have_no_score() -> None:
    cohort, W, _, _ = scored("stacked")
    assert evaluate(cohort.execution, cohort.validation, W, METRICS["accuracy"]).isnan().all()


def test_taking_clients_copies_no_data() -> None:
    samples = Samples.of([data(f"c{n}", n, (4,)) for n in (5, 3, 2)], DEVICE)
    some = samples.take([2, 0])
    assert some.counts == (2, 5) and len(some) == 2
    assert some.x.data_ptr() == samples.x.data_ptr()
    for (x, y), i in zip(parts(some), (2, 0), strict=True):
        assert torch.equal(x, parts(samples)[i][0]) and torch.equal(y, parts(samples)[i][1])


# The loss without a gradient, and what is counted


@narrow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("network", ["batch-norm", "dropout"])
def test_the_loss_of_a_part_is_that_of_plain_modules_in_evaluation_mode(
    network: str, way: str, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cohort, W, held, module = scored(way, network)
    cohort.validation = held
    monkeypatch.setattr(evaluation, "NUMBERS_AT_ONCE", numbers)
    for part, samples in (("train", cohort.train), ("validation", held)):
        found = cohort.loss(W, part)  # type: ignore[arg-type]
        expected = [F.cross_entropy(plainly(module, w, x), y) for w, (x, y) in zip(W, parts(samples), strict=True)]
        assert found.tolist() == pytest.approx(torch.stack(expected).tolist(), rel=1e-9, nan_ok=True)
        assert found.isnan().tolist() == [n == 0 for n in samples.counts]
        assert (found.dtype, found.device) == (W.dtype, W.device)
    assert cohort.ledger.passes is not None
    assert cohort.ledger.passes.tolist() == [n + t for n, t in zip(SIZES, TESTS, strict=True)]
    assert cohort.ledger.gradients is None and cohort.ledger.mean_loss() is None


@pytest.mark.parametrize("way", WAYS)
def test_training_samples_count_in_the_loss_as_in_training_and_others_alike(way: str) -> None:
    """By their classes' weights and by their own: over one batch of everything it is the loss that is minimised."""
    weights = [[1.0, 2.0, 3.0], [4.0, 0.5, 6.0]]
    cohort, W, module = made(way=way, sizes=(9, 6), weights=weights, local=Local(epochs=1, batch_size=9))
    own = torch.rand(15, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    cohort.train = cohort.validation = replace(cohort.train, weight=own)
    found, held = cohort.loss(W), cohort.loss(W, "validation")
    for i, (x, y) in enumerate(parts(cohort.train)):
        values = F.cross_entropy(plainly(module, W[i], x), y, reduction="none")
        weight = torch.tensor(weights[i], device=DEVICE, dtype=torch.float64)[y] * own[9 * i : 9 * i + len(y)]
        assert found[i].item() == pytest.approx(((values * weight).sum() / weight.sum()).item())
        assert held[i].item() == pytest.approx(values.mean().item())
    cohort.grad(W.clone(), next(iter(cohort.batches(at(1)))))
    mean = cohort.ledger.mean_loss()
    assert mean is not None and mean.tolist() == pytest.approx(found.tolist())
    cohort.class_weight = None
    assert (cohort.loss(W) - found).abs().min() > 1e-4


def test_a_loss_of_all_samples_at_once_is_asked_about_all_of_them() -> None:
    cohort, W, module = made(loss=loss_named(smoothed))
    cohort.task = replace(cohort.task, loss=loss_named(smoothed))
    expected = [smoothed(plainly(module, w, x), y) for w, (x, y) in zip(W, parts(cohort.train), strict=True)]
    assert cohort.loss(W).tolist() == pytest.approx(torch.stack(expected).tolist())


@pytest.mark.parametrize("way", WAYS)
def test_products_with_the_hessian_count_as_gradients_and_a_mixture_as_two(way: str) -> None:
    """Of those in the batch; a product has no loss to tell, so that the mean is over the others."""
    cohort, W, _ = made(way=way)
    W, batch = W.clone(), list(cohort.batches(at(1)))[-1]
    k, V = len(batch), torch.ones(5, cohort.layout.parameters, dtype=torch.float64, device=DEVICE)

    def spent() -> list[float]:
        assert cohort.ledger.gradients is not None
        return cohort.ledger.gradients.tolist()

    cohort.curvature(W, V, batch)
    assert spent() == [1] * k + [0] * (5 - k) and cohort.ledger.mean_loss() is None
    cohort.grad(W, batch)
    told = cohort.ledger.mean_loss()
    cohort.curvature(W, V, batch)
    again = cohort.ledger.mean_loss()
    assert spent()[:k] == [3] * k and told is not None and again is not None and torch.equal(told[:k], again[:k])
    cohort.mixed_grad(W.clone(), W, torch.full((5,), 0.5, dtype=torch.float64, device=DEVICE), batch)
    assert spent() == [5] * k + [0] * (5 - k)
    whole = cohort.ledger.take(torch.tensor([0]))
    assert whole.gradients is not None and whole.gradients.tolist() == [5]
    mean = whole.mean_loss()
    assert mean is not None and mean.tolist() == pytest.approx(told[:1].tolist())
    cohort.fit(W, at(1), columns=cohort.layout.columns("head"))
    assert spent() == [5 * (i < k) + n for i, n in enumerate(cohort.step_counts())]
