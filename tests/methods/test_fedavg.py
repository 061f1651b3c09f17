"""Separate, FedAvg, FedProx and FedAvg inside groups, against clients trained one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import SIZES, Watched, close, cpu_only, normed, ready, same, simulate, toy, trained
from torch import Tensor

from fedkin.base.settings import ConfigError

GROUPS = (0, 1, 1, 0, 1, 2)


def averaged(run: Watched, k: int, rows: list[Tensor]) -> Tensor:
    """The mean of uploads by the numbers of training samples, over those that took part."""
    n = [run.a.federation.clients[i].samples for i in run.took_part(k)]
    return sum((share * row for share, row in zip(n, rows, strict=True)), torch.zeros_like(rows[0])) / sum(n)


# ---- Separate ----


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_separate_is_every_client_training_alone(tmp_path: Path, optimiser: str) -> None:
    run = simulate(tmp_path, method="separate", local={"optimiser": optimiser})
    for i in range(len(SIZES)):
        w = run.problem.initial
        for k in (1, 2, 3):
            w = trained(run.a, i, w, k)
            assert close(run.rows(k, "personal")[i], w)


def test_training_alone_sends_nothing(tmp_path: Path) -> None:
    run = simulate(tmp_path, method="separate")
    assert {line["bytes_down"] + line["bytes_up"] for line in run.lines.values()} == {0}


# ---- FedAvg ----


@pytest.mark.parametrize("sample", [1.0, 0.5])
def test_fedavg_is_the_mean_of_separate_trainings_by_their_samples(tmp_path: Path, sample: float) -> None:
    run = simulate(tmp_path, method="fedavg", participation={"sample": sample}, rounds=4)
    w = run.problem.initial
    for k in range(1, 5):
        assert close(run.rows(k, "global"), w.expand(4, -1)), f"what was received in round {k}"
        tuned = [trained(run.a, i, w, k) for i in run.took_part(k)]
        assert close(run.rows(k, "finetuned")[run.took_part(k)], torch.stack(tuned))
        w = averaged(run, k, tuned)
        assert close(run.servers[k].w, w)


def test_fedavg_averages_running_statistics_like_the_rest(tmp_path: Path) -> None:
    run = simulate(tmp_path, model=normed, method="fedavg", rounds=2)
    for k in (1, 2):
        expected = averaged(run, k, list(run.memories[k].finetuned))
        assert close(run.servers[k].w, expected, 1e-12)
    assert run.servers[2].w.shape[0] > run.problem.layout.parameters


# ---- FedProx ----


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
@pytest.mark.parametrize("mu", [0.01, 2.0, 400.0])
def test_fedprox_pulls_clients_to_the_global_model_while_they_train(tmp_path: Path, mu: float, optimiser: str) -> None:
    """Also where SGD's rate times mu is 8, and the gradient of the pull would diverge."""
    run = simulate(tmp_path, method="fedprox", settings={"mu": mu}, local={"optimiser": optimiser})
    w = run.problem.initial
    for k in (1, 2, 3):
        w = averaged(run, k, [trained(run.a, i, w, k, near=(w, 1 / mu)) for i in range(4)])
        assert close(run.servers[k].w, w)


@pytest.mark.parametrize("mu", [0.01, 2.0])
def test_fedprox_in_the_papers_form_adds_the_gradient_of_the_pull(tmp_path: Path, mu: float) -> None:
    run = simulate(tmp_path, method="fedprox", settings={"mu": mu, "proximal": "gradient"})
    w = run.problem.initial
    for k in (1, 2, 3):
        centre = w
        rows = [trained(run.a, i, w, k, penalty=lambda x, c=centre: mu / 2 * (x - c).square().sum()) for i in range(4)]
        w = averaged(run, k, rows)
        assert close(run.servers[k].w, w)


def test_fedprox_refuses_a_pull_whose_gradient_diverges_under_sgd() -> None:
    settings, local = {"mu": 150.0, "proximal": "gradient"}, {"optimiser": "sgd"}
    words = r"first in round 1: the rate is 0\.02 and 1 / mu is 0\.00666667, a ratio of 3\..*at most 0\.0133333\."
    with pytest.raises(ConfigError, match=words):
        ready(method="fedprox", settings=settings, local=local)
    ready(method="fedprox", settings={**settings, "mu": 99.0}, local=local)
    ready(method="fedprox", settings=settings)


def test_running_statistics_are_not_pulled_to_the_global_model(tmp_path: Path) -> None:
    run = simulate(tmp_path, model=normed, method="fedprox", settings={"mu": 1e9}, rounds=1)
    moved, d = (run.servers[1].w - run.problem.initial).abs(), run.problem.layout.parameters
    assert moved[:d].max() < 1e-6 and moved[d:].max() > 0.1


def test_fedprox_finetuned_is_a_plain_pass_of_its_own(tmp_path: Path) -> None:
    """From the model received, without the pull, on batches of its own."""
    run = simulate(tmp_path, method="fedprox", settings={"mu": 2.0})
    for k in (1, 2, 3):
        w = run.servers[k - 1].w if k > 1 else run.problem.initial
        expected = [trained(run.a, i, w, k, stream="finetune") for i in range(4)]
        assert close(run.rows(k, "finetuned"), torch.stack(expected))


def test_fedprox_without_pull_is_fedavg(tmp_path: Path) -> None:
    prox = simulate(tmp_path, method="fedprox", settings={"mu": 0.0})
    average = simulate(tmp_path, method="fedavg")
    assert same(prox.servers[3].w, average.servers[3].w)


# ---- FedAvg inside known groups ----


@pytest.mark.parametrize("precision", ["float64", pytest.param("float32", marks=cpu_only)])
def test_groups_is_fedavg_run_on_each_group_alone(tmp_path: Path, precision: str) -> None:
    everyone = toy((13, 9, 8, 6, 5, 4), GROUPS)
    run = simulate(tmp_path, everyone, method="groups", precision=precision)
    tolerance = 1e-12 if precision == "float64" else 1e-5
    for group in (0, 1, 2):
        members = [i for i in range(6) if GROUPS[i] == group]
        rest = [name for i, name in enumerate(everyone.names) if i not in members]
        own = simulate(tmp_path, everyone.without(rest)[0], method="fedavg", precision=precision)
        for k in (1, 2, 3, 4):
            assert close(run.rows(k, "cloud")[members], own.rows(k, "global"), tolerance)
            assert close(run.rows(k, "finetuned")[members], own.rows(k, "finetuned"), tolerance)
            clients = torch.tensor(run.lines[k]["models"]["cloud"]["clients"])[members]
            assert close(clients, torch.tensor(own.lines[k]["models"]["global"]["clients"]), 1e-6)


def test_the_collaboration_of_groups_is_what_their_averages_weigh(tmp_path: Path) -> None:
    run = simulate(tmp_path, toy((13, 9, 8, 6, 5, 4), GROUPS), method="groups", rounds=2)
    xi, uploads = run.server.state.xi, run.memories[2].finetuned
    assert close(xi.sum(1), torch.ones(6, dtype=torch.float64), 1e-14)
    assert close(xi @ uploads, run.rows(3, "cloud"), 1e-12)


def test_a_group_nobody_of_whom_took_part_keeps_its_model(tmp_path: Path) -> None:
    run = simulate(tmp_path, toy((13, 9, 8, 6, 5, 4), GROUPS), method="groups", participation={"sample": 0.3}, rounds=5)
    idle = 0
    for k in range(1, 6):
        before = run.servers[k - 1].models if k > 1 else run.problem.initial.expand(3, -1)
        present = {GROUPS[i] for i in run.took_part(k)}
        for group in range(3):
            stays = torch.equal(run.servers[k].models[group], before[group])
            assert stays == (group not in present)
            idle += stays
    assert idle


def test_groups_that_nobody_knows_are_asked_for_with_a_sentence() -> None:
    with pytest.raises(ConfigError, match="averages inside known groups, and this federation has none"):
        ready(toy(), method="groups")
