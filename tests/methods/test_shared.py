"""What methods share: means by weights, settings for each client, the common start."""

from __future__ import annotations

import pytest
import torch
from helpers import DEVICE, at, close, ready, same, toy

from fedkin import methods
from fedkin.base.streams import generator
from fedkin.methods._shared import GlobalModel, check_per_client, check_proximal, per_client, weighted_mean
from fedkin.training.optimisers import Local, Optimiser, Proximal

GROUPS = (0, 1, 1, 0)


def test_the_mean_of_clients_is_that_of_their_samples() -> None:
    W = torch.randn(3, 5, generator=generator("rows"), dtype=torch.float64)
    assert close(weighted_mean(torch.tensor([3, 1, 2]), W), W[[0, 0, 0, 1, 2, 2]].mean(0), 1e-15)
    assert same(weighted_mean(torch.tensor([7]), W[:1]), W[0])


def test_a_setting_is_one_number_for_all_or_one_a_client() -> None:
    names, own = ("a", "b", "c"), {"c": 3.0, "a": 1.0, "b": 2.0}
    assert per_client(0.5, names).tolist() == [0.5, 0.5, 0.5]
    assert per_client(own, names).tolist() == [1.0, 2.0, 3.0]
    assert per_client(own, names, torch.tensor([2, 0])).tolist() == [3.0, 1.0]
    check_per_client(names, "auto", 0.5, own)
    with pytest.raises(ValueError, match="A value for each client was begun, but a, c has none"):
        check_per_client(names, 0.5, {"b": 1.0})


@pytest.mark.parametrize("name", methods.names())
def test_clients_remember_the_common_start_before_the_first_round_and_the_same_names_after_training(name: str) -> None:
    run = ready(toy(groups=GROUPS), method=name)
    method, problem, clients = run.method, run.problem, torch.arange(4, device=DEVICE)
    memory = method.enlist(problem, clients, at(0, seed=0))
    server = method.begin(problem, at(0, seed=0))
    message = method.download(problem, server, clients, at(1, seed=0)).for_clients(4)
    _, after = method.train(run.cohort, message, memory, at(1))
    assert {n: t.shape for n, t in memory.items()} == {n: t.shape for n, t in after.items()}
    if method.remembers:
        assert same(dict(memory.items())[method.remembers], problem.initial.expand(4, -1))
    else:
        assert not memory


@pytest.mark.parametrize("name", [n for n in methods.names() if issubclass(methods.find(n), GlobalModel)])
def test_a_server_with_one_model_starts_with_a_copy_of_the_common_start_and_sends_it_once_for_all(name: str) -> None:
    run = ready(method=name)
    server = run.method.begin(run.problem, at(0, seed=0))
    assert same(server.w, run.problem.initial)
    assert server.w.data_ptr() != run.problem.initial.data_ptr(), "update may write into what the server has"
    message = run.method.download(run.problem, server, torch.arange(4, device=DEVICE), at(1, seed=0))
    assert message.shared == {"w"} and message.w is server.w


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.5, False), (0.9, False), (0.5, True), (0.9, True)])
def test_a_proximal_gradient_is_refused_where_steps_on_it_alone_go_astray(momentum: float, nesterov: bool) -> None:
    """The optimiser itself is the oracle: 3,000 steps on the term's gradient, from a distance of one."""
    verdicts = set()
    for ratio in (1.2, 1.3, 1.4, 1.9, 2.1, 2.9, 3.1, 3.7, 3.9):
        local = Local(optimiser="sgd", lr=ratio, momentum=momentum, nesterov=nesterov)
        w = torch.ones(1, 1, dtype=torch.float64)
        steps, near = Optimiser(local, w, 1), Proximal(torch.zeros_like(w), torch.ones_like(w), exact=False)
        for _ in range(3000):
            steps.step(w, torch.zeros_like(w), ratio, near)
        verdicts.add(astray := not w.abs() < 1)
        if astray:
            with pytest.raises(ValueError, match="first in round 1"):
                check_proximal("gradient", local, 1, lambda k: 1.0)
        else:
            check_proximal("gradient", local, 1, lambda k: 1.0)
    assert verdicts == {True, False}
