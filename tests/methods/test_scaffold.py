"""SCAFFOLD against its equations in plain loops, also where clients are sampled and uploads get lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Watched, batches, close, gradient, normed, ready, simulate, toy
from torch import Tensor

from fedkin.base.settings import ConfigError
from fedkin.runs.config import resolve

SGD = {"optimiser": "sgd", "lr": 0.1}


def by_hand(run: Watched, option: str, server_lr: float, rates: dict[int, float]) -> dict[int, dict[str, Tensor]]:
    """All rounds with the participants of `run` and with its lost uploads: x, c and each client's y_i and c_i.

    A client whose upload was lost goes back to the c_i that the server knows of.
    """
    a, m = run.a, len(run.a.problem)
    x = a.problem.initial.clone()
    c, own = torch.zeros_like(x), [torch.zeros_like(x) for _ in range(m)]
    y = [x.clone() for _ in range(m)]
    history = {}
    for k in range(1, a.config.rounds + 1):
        moves, changes, after = [], [], list(own)
        for i in run.took_part(k):
            y[i] = x.clone()
            steps = batches(a, i, k)
            for inputs, targets in steps:
                y[i] = y[i] - rates[k] * (gradient(a, y[i], inputs, targets) - own[i] + c)
            if option == "I":
                new = gradient(a, x, *a.federation.clients[i].train)
            else:
                new = own[i] - c + (x - y[i]) / (len(steps) * rates[k])
            if i not in run.lost[k]:
                moves.append(y[i] - x)
                changes.append(new - own[i])
                after[i] = new
        if moves:
            x = x + server_lr * sum(moves) / len(moves)
            c = c + sum(changes) / m
        own = after
        history[k] = {"x": x.clone(), "c": c.clone(), "personal": torch.stack(y), "own": torch.stack(own)}
    return history


def follows(run: Watched, history: dict[int, dict[str, Tensor]]) -> None:
    for k, expected in history.items():
        assert close(run.servers[k].x, expected["x"]), f"x after round {k}"
        assert close(run.servers[k].c, expected["c"]), f"c after round {k}"
        assert close(run.memories[k].personal, expected["personal"]), f"y_i of round {k}"
        assert close(run.acknowledged(k, "c"), expected["own"]), f"c_i of round {k}"


@pytest.mark.parametrize("server_lr", [1.0, 0.6])
@pytest.mark.parametrize("option", ["I", "II"])
def test_every_round_is_the_papers_algorithm(tmp_path: Path, option: str, server_lr: float) -> None:
    settings = {"option": option, "server_lr": server_lr}
    run = simulate(tmp_path, method="scaffold", settings=settings, local=SGD, rounds=4)
    follows(run, by_hand(run, option, server_lr, dict.fromkeys(range(1, 5), 0.1)))


@pytest.mark.parametrize("option", ["I", "II"])
def test_k_counts_the_steps_where_these_take_the_place_of_passes(tmp_path: Path, option: str) -> None:
    run = simulate(tmp_path, method="scaffold", settings={"option": option}, local={**SGD, "steps": 5}, rounds=3)
    assert {len(batches(run.a, i, 1)) for i in range(4)} == {5}
    follows(run, by_hand(run, option, 1.0, dict.fromkeys(range(1, 4), 0.1)))


@pytest.mark.parametrize("option", ["I", "II"])
def test_sampling_lost_uploads_and_a_falling_learning_rate_change_none_of_it(tmp_path: Path, option: str) -> None:
    """c is divided by all clients, also by those that were not sampled (trap T7)."""
    run = simulate(
        tmp_path,
        toy((9, 7, 6, 5, 4, 4)),
        method="scaffold",
        settings={"option": option},
        local={**SGD, "schedule": "step", "schedule_every": 3, "schedule_factor": 0.5},
        participation={"sample": 0.7, "lost": 0.4},
        rounds=6,
    )
    assert 3 < sum(len(lost) for lost in run.lost.values()) < 15
    follows(run, by_hand(run, option, 1.0, {k: 0.1 if k <= 3 else 0.05 for k in range(1, 7)}))


@pytest.mark.parametrize("option", ["I", "II"])
def test_the_servers_c_is_the_mean_of_the_clients_whatever_gets_lost(tmp_path: Path, option: str) -> None:
    run = simulate(
        tmp_path,
        toy((9, 7, 6, 5, 4, 4, 4)),
        method="scaffold",
        settings={"option": option},
        participation={"sample": 0.6, "lost": 0.5, "dropped": 0.2},
        rounds=10,
    )
    assert any(run.lost[k] for k in run.lost) and run.servers[10].c.abs().max() > 1e-3
    for k in range(1, 11):
        assert close(run.servers[k].c, run.acknowledged(k, "c").mean(0), 1e-13)
    apart = (run.memories[k].c.mean(0) - run.servers[k].c for k in range(1, 11))
    assert max(float(gap.abs().max()) for gap in apart) > 1e-4, "the test needs clients that went ahead of the server"


def test_a_clients_first_c_is_the_mean_of_the_gradients_of_its_mini_batches(tmp_path: Path) -> None:
    """K counts mini-batches: epochs would make it several times larger (trap T7)."""
    run = simulate(tmp_path, method="scaffold", local=SGD, rounds=1)
    for i in range(4):
        w, seen = run.problem.initial.clone(), []
        for x, y in batches(run.a, i, 1):
            seen.append(gradient(run.a, w, x, y))
            w = w - 0.1 * seen[-1]
        assert close(run.memories[1].c[i], torch.stack(seen).mean(0))


def test_with_batchnorm_k_counts_the_steps_taken_and_statistics_are_averaged_whatever_the_servers_rate(
    tmp_path: Path,
) -> None:
    """A last batch of one sample joins the one before; the server's rate is for what is trained."""
    run = simulate(tmp_path, model=normed, method="scaffold", settings={"server_lr": 0.5}, local=SGD, rounds=1)
    d, initial, y = run.problem.layout.parameters, run.problem.initial, run.memories[1].personal
    for i, n in enumerate((13, 9, 6, 4)):
        steps = len(batches(run.a, i, 1))
        assert steps == 2 * {13: 3, 9: 2, 6: 2, 4: 1}[n]
        assert close(run.memories[1].c[i], (initial - y[i])[:d] / (steps * 0.1))
    assert close(run.servers[1].x[d:], y[:, d:].mean(0))
    assert close(run.servers[1].x[:d], initial[:d] + 0.5 * (y[:, :d] - initial[:d]).mean(0))


@pytest.mark.parametrize(
    "local", [{"optimiser": "adam"}, {"momentum": 0.9}, {"weight_decay": 1e-4}, {"clip": 1.0}], ids=str
)
def test_anything_but_plain_sgd_is_refused_with_a_sentence(local: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"SCAFFOLD needs plain SGD: set local\.optimiser = 'sgd'"):
        ready(method="scaffold", local=local)


@pytest.mark.parametrize("data", ["digits", "fl60"])
def test_plain_sgd_is_what_scaffold_takes_whatever_the_data_set_has(data: str) -> None:
    local = resolve({"method": "scaffold", "data": data}).local
    assert (local.optimiser, local.momentum, local.weight_decay, local.clip) == ("sgd", 0, 0, 0)
    assert resolve({"method": "scaffold", "data": data, "local": {"momentum": 0.5}}).local.momentum == 0.5


def test_the_models_are_x_as_received_and_the_clients_own(tmp_path: Path) -> None:
    run = simulate(tmp_path, method="scaffold")
    for k in (2, 3):
        assert torch.equal(run.rows(k, "global"), run.servers[k - 1].x.expand(4, -1))
        assert torch.equal(run.rows(k, "personal"), run.memories[k].personal)
    assert run.method.headline == "personal"
