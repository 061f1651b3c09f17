"""APFL against its steps written for one client at a time, for both ways of mixing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import (
    DEVICE,
    SIZES,
    Watched,
    accuracy,
    at,
    batches,
    close,
    gradient,
    module_at,
    normed,
    ready,
    simulate,
    toy,
)
from torch import Tensor, nn

from fedkin.base.state import State
from fedkin.runs.config import resolve
from fedkin.training.evaluation import Predictor

LR = 0.2
WAYS = ("parameters", "outputs")


Settings = dict[str, Any]
PAPER: Settings = {"mix": "parameters", "order": "paper", "alpha_decay": 0.0, "adaptive": True}
"""As in the paper, all of a step's gradients are taken at v and w before they move."""


def one_round(a: Any, i: int, k: int, s: Settings, w: Tensor, v: Tensor, alpha: float) -> tuple[Tensor, Tensor, float]:
    """A client's round: w_i and v_i step on the same batches; alpha steps once, with the first."""
    for number, (x, y) in enumerate(batches(a, i, k)):
        new_w = w - LR * gradient(a, w, x, y)
        met = new_w if s["order"] == "code" else w  # the w that the mixture is made of
        if s["mix"] == "parameters":
            along = gradient(a, alpha * v + (1 - alpha) * met, x, y)
            new_v = v - LR * alpha * along
        else:
            own, other = module_at(a, v), module_at(a, met)
            nn.functional.cross_entropy(alpha * own(x) + (1 - alpha) * other(x), y).backward()
            G_v, G_w = (torch.cat([p.grad.reshape(-1) for p in net.parameters()]) for net in (own, other))
            along = alpha * G_v + (1 - alpha) * G_w
            new_v = v - LR * G_v
        gap = new_v - new_w if s["order"] == "code" else v - w
        w, v = new_w, new_v
        if s["adaptive"] and number == 0:
            alpha = min(1.0, max(0.0, alpha - LR * (float(gap @ along) + s["alpha_decay"] * alpha)))
    return w, v, alpha


def by_hand(run: Watched, s: Settings, alpha: float) -> dict[int, dict[str, Tensor]]:
    a, m = run.a, len(run.a.problem)
    w = a.problem.initial.clone()
    v, weight = [w.clone() for _ in range(m)], [alpha] * m
    history = {}
    for k in range(1, a.config.rounds + 1):
        uploads = []
        for i in range(m):
            up, v[i], weight[i] = one_round(a, i, k, s, w, v[i], weight[i])
            uploads.append(up)
        received, w = w, torch.stack(uploads).mean(0)
        history[k] = {"w": w, "v": torch.stack(v), "alpha": torch.tensor(weight, dtype=w.dtype), "received": received}
    return history


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"adaptive": False},
        {"mix": "outputs"},
        {"mix": "outputs", "adaptive": False},
        {"alpha_decay": 0.5},
        {"order": "code"},
        {"order": "code", "mix": "outputs", "alpha_decay": 0.02},
    ],
)
def test_every_round_is_the_algorithm(tmp_path: Path, other: Settings) -> None:
    """The paper's, by default: the mixture is formed with w before its step, and nothing shrinks alpha."""
    run = simulate(tmp_path, method="apfl", settings={"alpha": 0.3, **other}, local={"lr": LR}, rounds=4)
    for k, expected in by_hand(run, PAPER | other, 0.3).items():
        assert close(run.servers[k].w, expected["w"]), f"w after round {k}"
        assert close(run.memories[k].v, expected["v"]), f"v_i of round {k}"
        assert close(run.memories[k].alpha, expected["alpha"]), f"alpha_i of round {k}"
    alpha = run.memories[4].alpha
    assert len(set(alpha.tolist())) == (4 if other.get("adaptive", True) else 1)


def test_mixing_outputs_is_not_mixing_parameters_once_the_model_is_not_linear(tmp_path: Path) -> None:
    """For a linear model the two are the same, but for the weight of the gradient in alpha's step."""
    apart = {}
    for name, model in (("linear", {"name": "logistic", "settings": {}}), ("not linear", None)):
        runs = [
            simulate(tmp_path, model=model, method="apfl", settings={"mix": mix, "adaptive": False}, local={"lr": LR})
            for mix in WAYS
        ]
        apart[name] = float((runs[0].memories[3].v - runs[1].memories[3].v).norm())
    assert apart["linear"] < 1e-12 and apart["not linear"] > 1e-3


@pytest.mark.parametrize("mix", WAYS)
def test_alpha_stays_between_nothing_and_all(mix: str) -> None:
    a = ready(method="apfl", settings={"mix": mix}, local={"lr": LR})
    noise = torch.randn(4, a.problem.layout.size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    w, v = a.problem.initial.expand(4, -1), a.problem.initial + 4 * noise.to(DEVICE)
    seen = []
    for start in (0.02, 0.98):
        memory = State(v=v, alpha=torch.full((4,), start, dtype=torch.float64, device=DEVICE))
        upload, after = a.method.train(a.cohort.take(range(4)), State(w=w), memory, at(1))
        for i in range(4):
            expected = one_round(a, i, 1, PAPER | {"mix": mix}, w[i], v[i], start)
            assert close(upload.w[i], expected[0]) and close(after.v[i], expected[1], 1e-8)
            assert abs(float(after.alpha[i]) - expected[2]) < 1e-9
        seen += after.alpha.tolist()
        assert torch.equal(memory.v, v) and memory.alpha.tolist() == [start] * 4, "memory is not written into"
    assert 0.0 in seen or 1.0 in seen
    assert all(0 <= value <= 1 for value in seen)


def test_alpha_steps_once_a_round(tmp_path: Path) -> None:
    """In round 1 v and w agree, so that only the term of the authors' code moves it, if that is asked for."""
    for decay in (0.0, 0.02):
        settings = {"alpha": 0.4, "alpha_decay": decay}
        run = simulate(tmp_path, method="apfl", settings=settings, local={"lr": LR, "epochs": 3})
        assert close(run.memories[1].alpha, torch.full((4,), 0.4 * (1 - decay * LR), dtype=torch.float64), 1e-14)


# ---- trap T10: the mixture is alpha v + (1 - alpha) w ----


def test_the_personal_model_mixes_the_clients_own_with_what_it_received(tmp_path: Path) -> None:
    run = simulate(tmp_path, method="apfl", settings={"alpha": 0.3})
    for k in (1, 2, 3, 4):
        v, alpha = run.memories[k].v, run.memories[k].alpha[:, None]
        w = run.servers[k - 1].w if k > 1 else run.problem.initial
        assert close(run.rows(k, "personal"), alpha * v + (1 - alpha) * w, 1e-14)
        assert torch.equal(run.rows(k, "global"), w.expand(4, -1))


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("mix", WAYS)
def test_a_client_that_counts_on_itself_alone_trains_alone(tmp_path: Path, mix: str, optimiser: str) -> None:
    local = {"optimiser": optimiser, "lr": 0.02}
    settings = {"mix": mix, "alpha": 1.0, "adaptive": False}
    run = simulate(tmp_path, method="apfl", settings=settings, local=local)
    alone = simulate(tmp_path, method="separate", local=local)
    assert close(run.memories[3].v, alone.memories[3].personal)
    assert run.lines[3]["models"]["personal"]["clients"] == alone.lines[3]["models"]["personal"]["clients"]


@pytest.mark.parametrize("mix", WAYS)
def test_a_client_that_counts_on_the_others_alone_has_the_global_model(tmp_path: Path, mix: str) -> None:
    """And with clients of one size that is FedAvg's."""
    equal = toy((8, 8, 8))
    settings = {"mix": mix, "alpha": 0.0, "adaptive": False}
    run = simulate(tmp_path, equal, method="apfl", settings=settings)
    average = simulate(tmp_path, equal, method="fedavg", local={"optimiser": "sgd"})
    assert close(run.servers[3].w, average.servers[3].w)
    models = run.lines[4]["models"]
    assert models["personal"]["clients"] == models["global"]["clients"]


# ---- the model that mixes outputs ----


def test_a_model_of_mixed_outputs_is_scored_and_saved_whole(tmp_path: Path) -> None:
    run = simulate(tmp_path, method="apfl", settings={"mix": "outputs", "alpha": 0.3}, local={"lr": LR})
    personal = run.scored[4][1]["personal"]
    assert isinstance(personal, Predictor)
    for i, client in enumerate(run.a.federation.clients):
        x, y = (part.to(DEVICE) for part in client.test)
        v, alpha = run.memories[3].v[i], float(run.memories[3].alpha[i])
        with torch.no_grad():
            mixed = alpha * module_at(run.a, v)(x) + (1 - alpha) * module_at(run.a, run.server.state.w)(x)
        right = int((mixed.argmax(1) == y).sum())
        assert run.lines[4]["models"]["personal"]["clients"][i] == right / len(y)
        assert run.lines[4]["models"]["global"]["clients"][i] == accuracy(run.a, i, run.server.state.w)


@pytest.mark.parametrize("mix", WAYS)
def test_running_statistics_stay_with_the_model_that_made_them(tmp_path: Path, mix: str) -> None:
    """Stacked or one by one; v's statistics are the client's own and are not mixed with w's."""
    runs = [
        simulate(tmp_path, model=normed, method="apfl", settings={"mix": mix}, local={"lr": LR}, execution=way)
        for way in ("stacked", "one-by-one")
    ]
    d, initial = runs[0].problem.layout.parameters, runs[0].problem.initial
    for name in ("v", "alpha"):
        first, second = (dict(run.memories[3].items())[name] for run in runs)
        assert close(first, second)
    assert close(runs[0].servers[3].w, runs[1].servers[3].w)
    v = runs[0].memories[3].v[:, d:]
    assert all((v[i] - initial[d:]).abs().max() > 0.05 for i in range(len(SIZES)))
    if mix == "parameters":
        assert torch.equal(runs[0].rows(3, "personal")[:, d:], v)


def test_plain_sgd_goes_with_its_rate_whatever_the_data_set_has_and_the_user_may_say_more() -> None:
    local = resolve({"method": "apfl", "data": "fl60"}).local
    assert (local.optimiser, local.lr, local.momentum) == ("sgd", 0.03, 0)
    own = resolve({"method": "apfl", "data": "fl60", "local": {"optimiser": "adam", "lr": 1e-3, "momentum": 0.5}}).local
    assert (own.optimiser, own.lr, own.momentum) == ("adam", 1e-3, 0.5)
