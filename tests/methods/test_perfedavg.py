"""Per-FedAvg against its equations for one client at a time, with whole Hessians; and never a look at test data."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import DEVICE, Watched, at, close, gradient, normed, ready, same, simulate, toy, trained
from torch import Tensor, nn
from torch.func import functional_call

from fedkin.base.state import State
from fedkin.base.task import Task
from fedkin.data.federation import Client, Federation
from fedkin.runs.config import resolve
from fedkin.training.cohort import Cohort

ALPHA, BETA = 0.2, 0.3
RATES = {"alpha": ALPHA, "beta": BETA}
HESSIANS = ("first-order", "difference", "exact")
COST = {"first-order": 2, "difference": 4, "exact": 3}


def loss_at(a: Any, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The loss as a function of a row of parameters, to be derived as often as one likes."""
    x, y = x.to(DEVICE), y.to(DEVICE)
    named, at = {name: buffer.clone() for name, buffer in a.execution.training.named_buffers()}, 0
    for name, p in a.execution.training.named_parameters():
        named[name] = w[at : at + p.numel()].view(p.shape)
        at += p.numel()
    outputs = functional_call(a.execution.training, named, (x,))
    return nn.functional.mse_loss(outputs, y) if y.is_floating_point() else nn.functional.cross_entropy(outputs, y)


def slope(a: Any, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.func.grad(lambda v: loss_at(a, v, x, y))(w)


def hessian(a: Any, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Backward twice: torch's forward mode, as in torch.func.hessian, gives other numbers for BatchNorm."""
    return torch.autograd.functional.hessian(lambda v: loss_at(a, v, x, y), w)


def batches(a: Any, i: int, k: int, stream: str, steps: int) -> list[tuple[Tensor, Tensor]]:
    alone = a.cohort.take([i])
    return [(b.x[0], b.y[0]) for b in alone.batches(at(k), stream=stream, steps=steps)]


def one_round(a: Any, i: int, k: int, w: Tensor, kind: str, steps: int, delta: float = 1e-3) -> Tensor:
    streams = (batches(a, i, k, stream, steps) for stream in ("train", "meta", "curvature"))
    for D, D2, D3 in zip(*streams, strict=True):
        g = slope(a, w - ALPHA * slope(a, w, *D), *D2)
        if kind == "exact":
            g = g - ALPHA * hessian(a, w, *D3) @ g
        elif kind == "difference":
            g = g - ALPHA * (slope(a, w + delta * g, *D3) - slope(a, w - delta * g, *D3)) / (2 * delta)
        w = w - BETA * g
    return w


def iterations(a: Any, i: int, kind: str) -> int:
    """Two passes in batches of four, shared among the gradients of an iteration."""
    return max(1, 2 * -(-a.federation.clients[i].samples // 4) // COST[kind])


def quadratic() -> Federation:
    """Linear regression: losses are quadratic in the weights."""
    members = []
    for i, n in enumerate((12, 9, 5)):
        source = torch.Generator().manual_seed(i)
        x = torch.randn(n + 5, 4, generator=source, dtype=torch.float64)
        y = x @ torch.randn(4, 2, generator=source, dtype=torch.float64)
        members.append(Client("abc"[i], (x[:n], y[:n]), (x[n:], y[n:])))
    return Federation("quadratic", tuple(members), Task.regression((4,), 2))


def linear(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Linear(*inputs, outputs)


# ---- training ----


@pytest.mark.parametrize("kind", HESSIANS)
@pytest.mark.parametrize("sample", [1.0, 0.5])
def test_every_round_is_the_papers_algorithm(tmp_path: Path, kind: str, sample: float) -> None:
    settings = {"hessian": kind, **RATES}
    run = simulate(tmp_path, method="perfedavg", settings=settings, participation={"sample": sample}, rounds=4)
    w = run.problem.initial
    for k in range(1, 5):
        assert close(run.rows(k, "global"), w.expand(4, -1))
        present = run.took_part(k)
        assert len(present) == 4 * sample
        w = torch.stack([one_round(run.a, i, k, w, kind, iterations(run.a, i, kind)) for i in present]).mean(0)
        assert close(run.servers[k].w, w), f"w after round {k}"


def test_with_one_batch_the_exact_step_is_the_gradient_of_the_loss_after_adaptation() -> None:
    """By deriving through the adaptation itself: the three batches are then the same samples."""
    a = ready(toy((4, 4)), method="perfedavg", settings={"hessian": "exact", "iterations": 1, **RATES})
    upload, _ = a.method.train(a.cohort, State(w=a.problem.initial.expand(2, -1)), State(), at(1))
    for i, client in enumerate(a.federation.clients):
        w = a.problem.initial.clone().requires_grad_()
        inner = torch.autograd.grad(loss_at(a, w, *client.train), w, create_graph=True)[0]
        loss_at(a, w - ALPHA * inner, *client.train).backward()
        assert w.grad is not None
        assert close(upload.W[i], w.detach() - BETA * w.grad, 1e-12)


def test_on_a_quadratic_loss_a_difference_of_gradients_is_exact_and_the_first_order_is_not(tmp_path: Path) -> None:
    ends = {}
    for kind in HESSIANS:
        settings = {"hessian": kind, "iterations": 3, "alpha": 0.1, "beta": 0.1}
        run = simulate(tmp_path, quadratic(), model=linear, method="perfedavg", settings=settings)
        ends[kind] = run.servers[3].w
    assert close(ends["difference"], ends["exact"], 1e-10)
    assert (ends["first-order"] - ends["exact"]).norm() > 1e-2


def test_elsewhere_the_difference_misses_the_exact_product_by_the_square_of_delta() -> None:
    def end(**settings: Any) -> Tensor:
        model = {"name": "mlp", "settings": {"hidden": []}}
        a = ready(model=model, method="perfedavg", settings={"iterations": 2, "alpha": 1.0, "beta": 1.0, **settings})
        return a.method.train(a.cohort, State(w=a.problem.initial.expand(4, -1)), State(), at(1))[0].W

    exact = end(hessian="exact")
    misses = [float((end(delta=delta) - exact).norm()) for delta in (0.4, 0.04)]
    assert 80 < misses[0] / misses[1] < 120


def test_without_adaptation_it_is_plain_descent_on_the_second_batches(tmp_path: Path) -> None:
    settings = {"hessian": "first-order", "alpha": 0.0, "beta": 0.02, "iterations": 2}
    run = simulate(tmp_path, toy((8, 8)), method="perfedavg", settings=settings, local={"epochs": 1}, rounds=1)
    sgd = ready(toy((8, 8)), method="fedavg", local={"epochs": 1, "optimiser": "sgd"})
    expected = torch.stack([trained(sgd, i, sgd.problem.initial, 1, stream="meta") for i in range(2)])
    assert close(run.servers[1].w, expected.mean(0))
    assert torch.equal(run.rows(1, "adapted"), run.rows(1, "global"))


@pytest.mark.parametrize("local", [{"epochs": 3}, {"steps": 9}, {"epochs": 1}], ids=str)
@pytest.mark.parametrize("kind", HESSIANS)
def test_a_round_spends_no_more_gradients_than_local_training(
    kind: str, local: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not a whole iteration less; but one iteration at least."""
    a = ready(method="perfedavg", settings={"hessian": kind}, local=local)
    spent: Counter[int] = Counter()

    def counted(plain: Any) -> Any:
        def counting(self: Cohort, *arguments: Any) -> Tensor:
            spent.update(range(len(arguments[-1])))
            return plain(self, *arguments)

        return counting

    for name in ("grad", "curvature"):
        monkeypatch.setattr(Cohort, name, counted(getattr(Cohort, name)))
    a.method.train(a.cohort, State(w=a.problem.initial.expand(4, -1)), State(), at(1))
    for i, n in enumerate((13, 9, 6, 4)):
        budget = local.get("steps") or local["epochs"] * -(-n // 4)
        assert spent[i] == max(1, budget // COST[kind]) * COST[kind]


def test_a_number_of_iterations_may_be_asked_for() -> None:
    a = ready(method="perfedavg", settings={"hessian": "exact", "iterations": 7, **RATES})
    upload, _ = a.method.train(a.cohort, State(w=a.problem.initial.expand(4, -1)), State(), at(2))
    for i in range(4):
        assert close(upload.W[i], one_round(a, i, 2, a.problem.initial, "exact", 7))


def test_the_papers_own_local_training() -> None:
    config = resolve({"method": "perfedavg", "data": "digits", "budget": "native"})
    assert config.local.batch_size == 20 and config.settings["iterations"] == 20
    assert (config.settings["alpha"], config.settings["beta"], config.settings["delta"]) == (0.01, 0.001, 1e-3)


# ---- the adapted model ----


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("how", ["full", "batch"])
def test_every_client_is_scored_with_the_model_it_adapts_to_its_training_data(
    tmp_path: Path, how: str, steps: int
) -> None:
    """Also those that did not train in the round, and in the closing exchange."""
    settings = {"adaptation": how, "adaptation_steps": steps, **RATES}
    run = simulate(tmp_path, method="perfedavg", settings=settings, participation={"sample": 0.5})
    for k in range(1, 5):
        w = run.servers[k - 1].w if k > 1 else run.problem.initial
        for i, client in enumerate(run.a.federation.clients):
            own = w
            for batch in batches(run.a, i, k, "adaptation", steps):
                own = own - ALPHA * gradient(run.a, own, *(client.train if how == "full" else batch))
            assert close(run.rows(k, "adapted")[i], own)
    assert run.method.headline == "adapted"


@pytest.mark.parametrize("how", ["full", "batch"])
def test_test_data_change_scores_and_nothing_else(tmp_path: Path, how: str) -> None:
    """Trap T8: the usual reference code adapts on the very batches that it scores."""
    federation = toy(tests=30)
    poisoned = replace(
        federation,
        clients=tuple(replace(c, test=(100 * c.test[0].flip(0), (c.test[1] + 1) % 3)) for c in federation.clients),
    )
    runs = [
        simulate(tmp_path, each, method="perfedavg", settings={"adaptation": how, **RATES})
        for each in (federation, poisoned)
    ]
    for k in range(1, 5):
        for name in ("adapted", "global"):
            assert same(runs[0].rows(k, name), runs[1].rows(k, name))
            assert runs[0].lines[k]["models"][name]["clients"] != runs[1].lines[k]["models"][name]["clients"]


def test_a_client_that_cannot_adapt_keeps_what_it_received() -> None:
    a = ready(method="perfedavg", settings={"alpha": 1e300, "adaptation_steps": 3})
    w = a.problem.initial.expand(4, -1)
    found = a.method.models(a.cohort, State(w=w), State(), at(1))["adapted"]
    assert isinstance(found, Tensor) and torch.equal(found, w)


def test_newcomers_get_the_global_model_and_adapt_it(tmp_path: Path) -> None:
    run = simulate(tmp_path, method="perfedavg", settings=RATES, participation={"novel": 0.25})
    w, x, y = run.servers[4].w, *run.a.federation.clients[3].train
    assert torch.equal(run.rows(5, "global")[0], w)
    assert close(run.rows(5, "adapted")[0], w - ALPHA * gradient(run.a, w, x, y))
    assert torch.equal(run.server.state.w, w)


# ---- running statistics ----


def test_running_statistics_follow_the_passes_at_w(tmp_path: Path) -> None:
    """Neither the adapted point nor the ends of a difference leave a trace in them."""
    runs: dict[str, Watched] = {}
    for kind in HESSIANS:
        settings = {"hessian": kind, "iterations": 3, "delta": 1e-5, **RATES}
        runs[kind] = simulate(tmp_path, model=normed, method="perfedavg", settings=settings, rounds=1)
        run, d = runs[kind], runs[kind].problem.layout.parameters
        rows = []
        for i in range(4):
            module = run.problem.layout.load(copy.deepcopy(run.a.execution.training), run.problem.initial)
            for D, D2, D3 in zip(*(batches(run.a, i, 1, s, 3) for s in ("train", "meta", "curvature")), strict=True):
                w = nn.utils.parameters_to_vector(module.parameters()).detach()
                g = slope(run.a, w - ALPHA * slope(run.a, w, *D), *D2)
                if kind != "first-order":
                    g = g - ALPHA * hessian(run.a, w, *D3) @ g
                module(D[0])
                nn.utils.vector_to_parameters(w - BETA * g, module.parameters())
            rows.append(run.problem.layout.row(module))
        expected = torch.stack(rows).mean(0)
        assert close(run.servers[1].w[:d], expected[:d], 1e-7)
        assert close(run.servers[1].w[d:], expected[d:], 1e-8)
        assert (expected[d:] - run.problem.initial[d:]).abs().max() > 0.05


def test_the_adapted_model_has_the_statistics_of_the_passes_that_adapted_it(tmp_path: Path) -> None:
    settings = {"adaptation_steps": 2, **RATES}
    run = simulate(tmp_path, model=normed, method="perfedavg", settings=settings, rounds=1)
    d = run.problem.layout.parameters
    for i, client in enumerate(run.a.federation.clients):
        module = run.problem.layout.load(copy.deepcopy(run.a.execution.training), run.servers[1].w)
        optimiser = torch.optim.SGD(module.parameters(), lr=ALPHA)
        for _ in range(2):
            optimiser.zero_grad()
            for batch in run.a.cohort.take([i]).batches(at(2), stream="full", epochs=1):
                loss = nn.functional.cross_entropy(module(batch.x[0]), batch.y[0], reduction="sum")
                (loss / client.samples).backward()
            optimiser.step()
        assert close(run.rows(2, "adapted")[i], run.problem.layout.row(module))
        assert (run.rows(2, "adapted")[i, d:] - run.servers[1].w[d:]).abs().max() > 0.05
