"""pFedMe against its steps for one client at a time, and against the proximal problem that they solve."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Watched, accuracy, at, close, gradient, normed, ready, simulate
from torch import Tensor, nn

from fedkin.base.settings import ConfigError
from fedkin.base.state import State
from fedkin.base.task import Task
from fedkin.data.federation import Client, Federation
from fedkin.runs.config import resolve
from fedkin.training.cohort import Cohort

DEFAULTS: dict[str, Any] = {
    "strength": 2.0,
    "inner_steps": 5,
    "eta": 0.45,
    "personal_lr": 0.1,
    "beta": 1.0,
    "decay": 0.0,
    "proximal": "exact",
}
PUBLISHED = {"strength": 15.0, "eta": 0.005, "personal_lr": 0.05, "iterations": 20}


def batches(a: Any, i: int, k: int, steps: int) -> list[tuple[Tensor, Tensor]]:
    return [(b.x[0], b.y[0]) for b in a.cohort.take([i]).batches(at(k), steps=steps)]


def one_round(a: Any, i: int, k: int, w: Tensor, steps: int, s: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """A client's w_i and theta_i: a mini-batch after the other, some steps of theta on each, then one of w_i."""
    theta = w
    for batch in batches(a, i, k, steps):
        for _ in range(int(s["inner_steps"])):
            slope, rate, strength = gradient(a, theta, *batch) + s["decay"] * theta, s["personal_lr"], s["strength"]
            if s["proximal"] == "gradient":
                theta = theta - rate * (slope + strength * (theta - w))
            else:
                theta = (theta - rate * slope + rate * strength * w) / (1 + rate * strength)
        w = w - s["eta"] * s["strength"] * (w - theta)
    return w, theta


def follows(run: Watched, s: dict[str, Any], weighted: bool = False) -> None:
    a, w = run.a, run.problem.initial
    personal = [w] * len(a.problem)
    for k in range(1, a.config.rounds + 1):
        assert close(run.rows(k, "global"), w.expand(len(personal), -1))
        uploads = []
        for i in run.took_part(k):
            steps = max(1, a.config.local.epochs * -(-a.federation.clients[i].samples // 4) // int(s["inner_steps"]))
            up, personal[i] = one_round(a, i, k, w, steps, s)
            uploads.append(up)
        n = [a.federation.clients[i].samples if weighted else 1 for i in run.took_part(k)]
        mean = sum((c * up for c, up in zip(n, uploads, strict=True)), torch.zeros_like(w)) / sum(n)
        w = (1 - s["beta"]) * w + s["beta"] * mean
        assert close(run.servers[k].w, w), f"w after round {k}"
        assert close(run.rows(k, "personal"), torch.stack(personal)), f"theta_i of round {k}"
        assert close(run.memories[k].personal, torch.stack(personal))


@pytest.mark.parametrize("sample", [1.0, 0.5])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strength": 2.0, "eta": 0.3, "personal_lr": 0.2, "inner_steps": 2},
        {"beta": 2.0, "decay": 0.1},
        {"proximal": "gradient", "decay": 0.1},
    ],
    ids=["as it comes", "others", "beyond the mean, with decay", "as published"],
)
def test_every_round_is_the_papers_algorithm(tmp_path: Path, settings: dict[str, Any], sample: float) -> None:
    local, participation = {"epochs": 4}, {"sample": sample}
    run = simulate(tmp_path, method="pfedme", settings=settings, local=local, participation=participation, rounds=4)
    follows(run, DEFAULTS | settings)


def test_the_mean_may_be_weighed_by_samples(tmp_path: Path) -> None:
    run = simulate(tmp_path, method="pfedme", settings={"weighted": True}, participation={"sample": 0.5}, rounds=3)
    follows(run, DEFAULTS, weighted=True)


# ---- what theta is ----


def linear(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Linear(*inputs, outputs)


def test_with_many_steps_theta_solves_the_proximal_problem_and_w_descends_the_moreau_envelope() -> None:
    """On a quadratic, whose solution is known: (H + lambda) theta = X^T y + lambda w."""
    source = torch.Generator().manual_seed(0)
    x, y = (torch.randn(7, n, generator=source, dtype=torch.float64) for n in (4, 1))
    federation = Federation("one", (Client("a", (x, y), (x, y)),), Task.regression((4,), 1))
    strength, eta = 3.0, 0.1
    settings = {"strength": strength, "eta": eta, "inner_steps": 400, "iterations": 1}
    a = ready(federation, model=linear, method="pfedme", settings=settings, local={"batch_size": 7})
    w = a.problem.initial
    upload, memory = a.method.train(a.cohort, State(w=w[None]), State(), at(1))
    w = w.cpu()
    X = torch.cat([x, torch.ones(7, 1, dtype=x.dtype)], 1)
    H = 2 / 7 * X.T @ X
    theta = torch.linalg.solve(H + strength * torch.eye(5).double(), 2 / 7 * (X.T @ y)[:, 0] + strength * w)
    assert close(memory.personal[0], theta, 1e-10)
    envelope = H @ theta - 2 / 7 * (X.T @ y)[:, 0]  # the gradient at theta is the envelope's at w
    assert close(strength * (w - theta), envelope, 1e-10)
    assert close(upload.W[0], w - eta * envelope, 1e-10)


def test_a_leash_of_no_length_keeps_theta_at_w(tmp_path: Path) -> None:
    settings = {"strength": 1e6, "eta": 1e-7}
    run = simulate(tmp_path, method="pfedme", settings=settings)
    assert close(run.memories[3].personal, run.problem.initial.expand(4, -1), 1e-4)


def test_theta_is_a_model_of_its_own_and_the_one_that_is_scored(tmp_path: Path) -> None:
    """Trap T9: in the authors' code it is an alias of what w_i overwrites."""
    a = ready(method="pfedme")
    upload, memory = a.method.train(a.cohort, State(w=a.problem.initial.expand(4, -1)), State(), at(1))
    assert memory.personal.untyped_storage().data_ptr() != upload.W.untyped_storage().data_ptr()
    held = memory.personal.clone()
    upload.W.zero_()
    assert torch.equal(memory.personal, held)
    run = simulate(tmp_path, method="pfedme", settings={"personal_lr": 0.1, "strength": 1.0}, local={"epochs": 20})
    theta = run.memories[3].personal
    for i in range(4):
        assert run.lines[3]["models"]["personal"]["clients"][i] == accuracy(run.a, i, theta[i])
        assert (theta[i] - run.servers[3].w).norm() > 0.1
    assert run.method.headline == "personal"


# ---- budget, refusals, newcomers, statistics ----


@pytest.mark.parametrize("local", [{"epochs": 5}, {"steps": 12}, {"epochs": 1}], ids=str)
@pytest.mark.parametrize("inner", [5, 2])
def test_a_round_spends_no_more_gradients_than_local_training(
    inner: int, local: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, spent, plain = ready(method="pfedme", settings={"inner_steps": inner}, local=local), Counter[int](), Cohort.grad

    def counting(self: Cohort, W: Tensor, batch: Any) -> Tensor:
        spent.update(range(len(batch)))
        return plain(self, W, batch)

    monkeypatch.setattr(Cohort, "grad", counting)
    a.method.train(a.cohort, State(w=a.problem.initial.expand(4, -1)), State(), at(1))
    for i, n in enumerate((13, 9, 6, 4)):
        budget = local.get("steps") or local["epochs"] * -(-n // 4)
        assert spent[i] == max(1, budget // inner) * inner


def test_the_papers_own_local_training() -> None:
    config = resolve({"method": "pfedme", "data": "digits", "budget": "native"})
    assert config.local.batch_size == 20
    assert config.settings == {**DEFAULTS, **PUBLISHED, "weighted": False}


def test_a_step_that_overshoots_is_refused_with_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"needs eta \* strength < 1.*0\.6 \* 2 is 1\.2\. Take a smaller"):
        ready(method="pfedme", settings={"eta": 0.6})
    with pytest.raises(ConfigError, match="overshoots"):
        ready(method="pfedme", settings={"eta": 0.5, "strength": 2.0})
    ready(method="pfedme", settings={"eta": 0.1, "strength": 9.9})


def test_a_leash_whose_gradient_diverges_is_refused() -> None:
    settings = {"strength": 15.0, "eta": 0.005, "personal_lr": 0.2, "proximal": "gradient"}
    with pytest.raises(
        ConfigError, match=r"the rate is 0\.2 and 1 / strength is 0\.0666667, a ratio of 3\..*at most 0\.13"
    ):
        ready(method="pfedme", settings=settings)
    ready(method="pfedme", settings={**settings, "proximal": "exact"})
    ready(method="pfedme", settings={**settings, "personal_lr": 0.13})


def test_newcomers_train_a_personal_model_near_the_global_one(tmp_path: Path) -> None:
    participation = {"novel": 0.25, "novel_exchanges": 2}
    run = simulate(tmp_path, method="pfedme", participation=participation, local={"epochs": 5})
    w = run.servers[4].w
    assert torch.equal(run.rows(5, "global")[0], w) and torch.equal(run.server.state.w, w)
    steps = 3 * run.a.cohort.step_counts()[3] // 5
    assert close(run.rows(5, "personal")[0], one_round(run.a, 3, 5, w, steps, DEFAULTS)[1])


def test_running_statistics_are_those_of_thetas_passes_and_are_averaged_whatever_beta(tmp_path: Path) -> None:
    """With beta = 2 a variance could become negative."""
    settings = {**PUBLISHED, "beta": 2.0, "inner_steps": 2, "iterations": 3}
    run = simulate(tmp_path, model=normed, method="pfedme", settings=settings, rounds=1)
    layout, d, initial = run.problem.layout, run.problem.layout.parameters, run.problem.initial
    rows, uploads = [], []
    for i in range(4):
        module = layout.load(copy.deepcopy(run.a.execution.training), initial)
        optimiser, w = torch.optim.SGD(module.parameters(), lr=0.05), initial[:d]
        for x, y in batches(run.a, i, 1, 3):
            for _ in range(2):
                optimiser.zero_grad()
                nn.functional.cross_entropy(module(x), y).backward()
                optimiser.step()
                theta = nn.utils.parameters_to_vector(module.parameters()).detach()
                nn.utils.vector_to_parameters((theta + 0.75 * w) / 1.75, module.parameters())
            w = w - 0.075 * (w - nn.utils.parameters_to_vector(module.parameters()).detach())
        rows.append(layout.row(module))
        uploads.append(w)
    assert close(run.memories[1].personal, torch.stack(rows))
    assert close(run.servers[1].w[:d], 2 * torch.stack(uploads).mean(0) - initial[:d])
    assert close(run.servers[1].w[d:], torch.stack(rows)[:, d:].mean(0))
    assert (run.servers[1].w[d:] - initial[d:]).abs().max() > 0.05
