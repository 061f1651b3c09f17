"""All models of a method scored in one pass: the same scores as one after the other, with fewer calls and in bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import DEVICE, ready, same, toy
from torch import Tensor, nn

from fedkin.base.state import State
from fedkin.base.task import Task, metric_named
from fedkin.data.federation import Client, Federation
from fedkin.engines.assembly import Assembly
from fedkin.engines.scores import Scores, scored
from fedkin.training import evaluation
from fedkin.training.cohort import Samples
from fedkin.training.evaluation import Model, Predictor, evaluate, evaluate_all

SIZES = (30, 26, 20, 14, 9)
TESTS = (300, 3, 257, 40, 1)
"""More than a pass has of a client, and fewer."""


def federation(kind: str = "classification") -> Federation:
    source = torch.Generator().manual_seed(5)

    def client(i: int) -> Client:
        n, tests = SIZES[i], TESTS[i]
        x = torch.randn(n + tests, 4, generator=source, dtype=torch.float64)
        y = x[:, :3].argmax(1) if kind == "classification" else x[:, :3].sin() + 0.1
        return Client(f"c{i}", (x[:n], y[:n]), (x[n:], y[n:]))

    task = Task.classification((4,), 3) if kind == "classification" else Task.regression((4,), 3)
    return Federation("toy", tuple(map(client, range(5))), task)


def assembled(kind: str = "classification", way: str = "stacked", **settings: Any) -> Assembly:
    settings = {"precision": "float32", "execution": way, "data": {"validation": 0.3}, **settings}
    return ready(federation(kind), method="fedavg", **settings)


def rows(a: Assembly, seed: int) -> Tensor:
    noise = torch.randn(len(a.problem), a.problem.layout.size, generator=torch.Generator().manual_seed(seed))
    return a.problem.initial + 0.5 * noise.to(a.problem.initial)


def mixed(a: Assembly, seed: int) -> Predictor:
    alpha = torch.linspace(0, 1, len(a.problem)).to(a.problem.initial)
    return Predictor("mixed_outputs", State(v=rows(a, seed), w=rows(a, seed + 1), alpha=alpha))


MODELS: dict[str, Callable[[Assembly], dict[str, Model]]] = {
    "one": lambda a: {"personal": rows(a, 1)},
    "two": lambda a: {"cloud": rows(a, 1), "personal": rows(a, 2)},
    "three": lambda a: {"cloud": rows(a, 1), "global": a.problem.initial.expand(5, -1), "personal": rows(a, 2)},
    "with a predictor": lambda a: {"mixed": mixed(a, 1), "own": rows(a, 3), "global": rows(a, 4)},
}


def one_by_one(a: Assembly, samples: Samples, model: Model) -> Tensor:
    """A model at a time, all clients beside each other, in passes of 256 samples, added up in double precision."""
    sums, metric = torch.zeros(len(samples), dtype=torch.float64), a.problem.task.metric
    for at in range(0, max(samples.counts), 256):
        active = [i for i, n in enumerate(samples.counts) if n > at]
        width = min(256, max(samples.counts) - at)
        index = torch.tensor(
            [[samples.starts[i] + min(at + j, samples.counts[i] - 1) for j in range(width)] for i in active]
        )
        x, y = samples.x[index.to(DEVICE)], samples.y[index.to(DEVICE)]
        chosen = torch.tensor(active, device=DEVICE)
        if isinstance(model, Predictor):
            outputs = model.take(chosen).outputs(a.execution, x)
        else:
            outputs = a.execution.outputs(model[chosen], x)
        values = metric(outputs.flatten(0, 1), y.flatten(0, 1)).view(len(active), -1).double().cpu()
        real = torch.tensor([[at + j < samples.counts[i] for j in range(width)] for i in active])
        sums[active] += torch.where(real, values, 0.0).sum(1)
    return sums / torch.tensor(samples.counts, dtype=torch.float64)


@pytest.mark.parametrize("clients", [[0, 1, 2, 3, 4], [0, 2, 3], [4, 1]], ids=["all", "some", "few"])
@pytest.mark.parametrize("models", MODELS)
@pytest.mark.parametrize("way", ["stacked", "one-by-one"])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_all_models_together_have_the_scores_of_each_by_itself(
    kind: str, way: str, models: str, clients: list[int]
) -> None:
    a = assembled(kind, way)
    chosen = torch.tensor(clients, device=DEVICE)
    own = {n: m[chosen] if isinstance(m, Tensor) else m.take(chosen) for n, m in MODELS[models](a).items()}
    scores = Scores(a.problem, torch.tensor(a.cohort.validation.counts))
    scores.add(clients, scored(a, clients, own))
    books = scores.books
    for book, samples in ((books["test"], a.test), (books["validation"], a.cohort.validation)):
        assert list(book) == list(own)
        for name, model in own.items():
            assert same(book[name][clients], one_by_one(a, samples.take(clients), model))
            others = [i for i in range(5) if i not in clients]
            assert book[name][others].isnan().all()


def test_a_metric_of_all_outputs_is_the_same_too() -> None:
    a = assembled()
    metric = metric_named("auc", "classification")
    models = list(MODELS["three"](a).values())
    together = evaluate_all(a.execution, a.test, models, metric)
    for model, found in zip(models, together, strict=True):
        assert torch.equal(found.nan_to_num(-1), evaluate(a.execution, a.test, model, metric).nan_to_num(-1))


def counted(a: Assembly, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes (clients, samples) of all calls of a run's models."""
    calls: list[tuple[int, ...]] = []
    inner = a.execution.outputs

    def outputs(W: Tensor, x: Tensor) -> Tensor:
        calls.append(tuple(x.shape[:2]))
        return inner(W, x)

    monkeypatch.setattr(a.execution, "outputs", outputs)
    return calls


def test_small_models_are_run_in_one_pass_and_rows_that_are_shared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    a = assembled()
    evaluate(a.execution, a.test, rows(a, 1), a.problem.task.metric)  # what a sample takes is looked at once
    calls = counted(a, monkeypatch)
    first, second = rows(a, 1), rows(a, 2)
    evaluate_all(a.execution, a.test, [first, second, first, first.view_as(first)], a.problem.task.metric)
    assert calls == [(10, 256), (4, 44)], "two models of five clients, of whom two have more than 256 samples"
    calls.clear()
    monkeypatch.setattr(evaluation, "SMALL_ROWS", first.numel())
    evaluate_all(a.execution, a.test, [first, second], a.problem.task.metric)
    assert calls == [(5, 256), (2, 44)] * 2, "large ones are not copied"


class Wide(nn.Module):
    """Makes a thousand numbers of each of its inputs on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x[..., None].repeat_interleave(1000, -1).mean(-1))


def test_what_models_make_of_their_inputs_bounds_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    a = ready(federation(), model=Wide, method="fedavg", data={"validation": 0.3})
    monkeypatch.setattr(evaluation, "BYTES_AT_ONCE", 10 << 20)
    unbounded = evaluate(
        ready(federation(), model=Wide, method="fedavg").execution, a.test, rows(a, 1), a.problem.task.metric
    )
    calls = counted(a, monkeypatch)
    found = evaluate(a.execution, a.test, rows(a, 1), a.problem.task.metric)
    assert calls[:2] == [(1, 1), (1, 3)], "one sample, and three, to see what one takes"
    a_sample = 4 * 1000 * 8
    assert max(m * n for m, n in calls) <= (10 << 20) / a_sample
    assert max(m * n for m, n in calls) >= (10 << 20) / a_sample / 8
    torch.testing.assert_close(found, unbounded)
    calls.clear()
    evaluate(a.execution, a.test, rows(a, 2), a.problem.task.metric)
    assert (1, 3) not in calls


def test_one_by_one_only_inputs_bound_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    a = ready(federation(), model=Wide, method="fedavg", execution="one-by-one")
    monkeypatch.setattr(evaluation, "BYTES_AT_ONCE", 1 << 20)
    calls = counted(a, monkeypatch)
    evaluate(a.execution, a.test, rows(a, 1), a.problem.task.metric)
    assert calls == [(5, 256), (2, 44)]


def test_where_samples_lie_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    a = assembled()
    models = [rows(a, 1), rows(a, 2)]
    evaluate_all(a.execution, a.test, models, a.problem.task.metric)
    before = evaluation._parts.cache_info()
    evaluate_all(a.execution, a.test, models, a.problem.task.metric)
    after = evaluation._parts.cache_info()
    assert (after.misses, after.hits) == (before.misses, before.hits + 1)


def test_a_model_that_cannot_be_looked_at_is_scored_all_the_same() -> None:
    """It wants more samples than are tried."""
    armed = False

    class Picky(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if armed and len(x) < 4:
                raise ValueError("not with so few")
            return super().forward(x)

    a = ready(toy((8, 8), tests=8), model=lambda inputs, outputs: Picky(4, 3), method="fedavg", execution="stacked")
    assert a.execution.name == "stacked"
    armed = True
    assert not evaluate(a.execution, a.test, rows(a, 1), a.problem.task.metric).isnan().any()
