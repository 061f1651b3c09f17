"""Panacea and Panacea-GN: against the algorithm with torch's modules and optimisers, and in their limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import DEVICE, Watched, at, close, copied, normed, ready, same, simulate, toy, trained
from torch import Tensor, nn

from fedkin.base import streams
from fedkin.base.round import Round
from fedkin.base.settings import ConfigError
from fedkin.base.state import Server, State
from fedkin.data.federation import Federation
from fedkin.engines.assembly import Assembly
from fedkin.maths.hypernetworks import GraphHypernetwork
from fedkin.methods._method import Method
from fedkin.methods._problem import Problem
from fedkin.methods.panacea import Panacea
from fedkin.methods.panacea_gn import PanaceaGN
from fedkin.runs.config import resolve

SIX = (13, 9, 8, 6, 5, 4)
EDGES = ((0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (0, 4), (4, 5))
BOTH = ("panacea", "panacea_gn")
SMALL: dict[str, Any] = {"hidden": 16, "embedding": 4, "server_optimiser": "sgd", "server_lr": 0.01, "server_steps": 1}
SERVER: dict[str, Any] = {"server_lr": 0.05, "server_momentum": 0.9, "server_weight_decay": 0.01}


def related(edges: Any = EDGES, weights: bool = False, sizes: tuple[int, ...] = SIX) -> Federation:
    """Six clients, and who is related to whom."""
    graph = torch.zeros(len(sizes), len(sizes), dtype=torch.float64)
    for number, (u, v) in enumerate(edges):
        graph[u, v] = graph[v, u] = 1 + 0.5 * number if weights else 1.0
    return replace(toy(sizes), graph=graph)


def moment(a: Assembly, round: int = 0) -> Round:
    return at(round, a.config.rounds, a.config.seeds[2])


def everyone(problem: Problem) -> Tensor:
    return torch.arange(len(problem), device=DEVICE)


def begun(a: Assembly) -> Server:
    return a.method.begin(a.known_problem(), moment(a))


def generated(a: Assembly, server: Server) -> Tensor:
    """(m, n) what the server writes for all known clients."""
    problem = a.known_problem()
    return a.method.download(problem, server, everyone(problem), moment(a, 1)).generated


def updated(a: Assembly, server: Server, wanted: Tensor, clients: Tensor | None = None) -> Server:
    problem = a.known_problem()
    clients = everyone(problem) if clients is None else clients
    return a.method.update(problem, copied(server), clients, State(theta=wanted), moment(a, 1))


def answers(a: Assembly, server: Server) -> Tensor:
    """Models near those written, as clients could send them."""
    theta = generated(a, server)
    noise = torch.randn(theta.shape, generator=streams.generator("answers"), dtype=theta.dtype)
    return theta + 0.1 * noise.to(DEVICE)


# ---- the algorithm, with torch's modules and optimisers ----


class Oracle:
    """The server of Algorithm 1: modules, autograd on the losses as printed, an optimiser of torch's."""

    def __init__(self, a: Assembly, server: Server) -> None:
        self.a, self.method = a, a.method
        assert isinstance(self.method, PanaceaGN)
        self.network: GraphHypernetwork = self.method.network(SMALL["embedding"], len(server.offset)).to(server.psi)
        nn.utils.vector_to_parameters(server.psi[0].clone(), self.network.parameters())
        self.h = nn.Parameter(server.embeddings.clone(), requires_grad=self.method.train_embeddings)
        self.offset = server.offset.clone()
        s = self.method
        rate = s.server_lr if s.embedding_lr == "same" else s.embedding_lr
        groups: list[dict[str, Any]] = [{"params": list(self.network.parameters())}]
        if s.train_embeddings:
            groups.append({"params": [self.h], "lr": rate})
        self.optimiser: torch.optim.Optimizer
        if s.server_optimiser == "adam":
            self.optimiser = torch.optim.Adam(groups, s.server_lr, weight_decay=s.server_weight_decay)
        else:
            self.optimiser = torch.optim.SGD(groups, s.server_lr, s.server_momentum, weight_decay=s.server_weight_decay)

    def theta(self) -> Tensor:
        return self.network(self.h, self.a.known_problem().graph)[0] + self.offset

    def step(self, clients: list[int], wanted: Tensor) -> None:
        """K_s steps on L_GH + lambda_d L_d."""
        graph, s = self.a.known_problem().graph, self.method
        m = len(graph)
        for _ in range(s.server_steps):
            theta, logits = self.network(self.h, graph)
            loss = 0.5 * (wanted - (theta + self.offset)[clients]).square().sum() / len(clients)
            if isinstance(s, Panacea) and s.generator_weight:
                pairs = [(u, v) for u in range(m) for v in range(m) if u != v]
                chance = torch.stack([logits[u, v] for u, v in pairs]).sigmoid()
                edge = torch.tensor([float(graph[u, v] > 0) for u, v in pairs], dtype=torch.float64, device=DEVICE)
                each = nn.functional.binary_cross_entropy(chance, edge, reduction="none")
                mean = (each[edge > 0].mean() + each[edge == 0].mean()) / 2 if s.balance == "grda" else each.mean()
                loss = loss + s.generator_weight * mean
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("panacea", {}),
    "adam, five steps": ("panacea", {"server_optimiser": "adam", "server_lr": 0.01, "server_steps": 5}),
    "three steps": ("panacea", {"server_steps": 3}),
    "no generator": ("panacea_gn", {}),
    "generator of weight zero": ("panacea", {"generator_weight": 0.0}),
    "strong generator": ("panacea", {"generator_weight": 2.0}),
    "identity": ("panacea", {"generator": "identity"}),
    "shared": ("panacea", {"generator": "shared"}),
    "balanced": ("panacea", {"balance": "grda"}),
    "means": ("panacea", {"normalisation": "mean"}),
    "fixed embeddings": ("panacea", {"train_embeddings": False}),
    "embeddings at their own rate": ("panacea", {"embedding_lr": 0.3}),
    "unscaled": ("panacea", {"scaled": False}),
    "plain": ("panacea_gn", {"server_momentum": 0.0, "server_weight_decay": 0.0}),
}


@pytest.mark.parametrize("sample", [1.0, 0.5], ids=["everyone", "half"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_round_is_the_algorithm(tmp_path: Path, variant: str, sample: float) -> None:
    method, own = VARIANTS[variant]
    run = simulate(
        tmp_path,
        related(weights=True),
        method=method,
        settings={**SMALL, **SERVER, **own},
        participation={"sample": sample},
        rounds=4,
    )
    oracle = Oracle(run.a, begun(run.a))
    personal = run.problem.initial.repeat(6, 1)
    for k in range(1, 5):
        theta = oracle.theta().detach()
        assert close(run.rows(k, "generated"), theta), f"written in round {k}"
        clients = run.took_part(k)
        for i in clients:
            personal[i] = trained(run.a, i, theta[i], k)
        assert close(run.rows(k, "personal"), personal), f"trained in round {k}"
        oracle.step(clients, personal[clients])
        psi = nn.utils.parameters_to_vector(oracle.network.parameters())
        assert close(run.servers[k].psi[0], psi.detach()), f"the hypernetwork after round {k}"
        assert close(run.servers[k].embeddings, oracle.h.detach()), f"the embeddings after round {k}"


@pytest.mark.parametrize("method", BOTH)
def test_a_step_towards_models_with_tensors_that_started_constant(method: str) -> None:
    a = ready(related(), model=normed, method=method, settings={**SMALL, **SERVER, "server_steps": 2})
    begin = begun(a)
    wanted, oracle = answers(a, begin), Oracle(a, begin)
    assert begin.offset.any()
    oracle.step(list(range(6)), wanted)
    assert close(generated(a, updated(a, begin, wanted)), oracle.theta().detach())


@pytest.mark.parametrize("method", BOTH)
def test_a_small_step_brings_the_written_weights_nearer_and_the_printed_sign_takes_them_away(method: str) -> None:
    """Trap T6."""
    settings = {**SMALL, "server_lr": 1e-4, "server_momentum": 0.0}
    if method == "panacea":
        settings["generator_weight"] = 0.0
    a = ready(related(), method=method, settings=settings)
    before = begun(a)
    wanted = answers(a, before)
    after = updated(a, before, wanted)
    printed = before.replace(
        psi=2 * before.psi - after.psi, embeddings=2 * before.embeddings - after.embeddings
    )  # as far, the other way
    apart = [float((generated(a, server) - wanted).norm()) for server in (after, before, printed)]
    assert apart[0] < apart[1] < apart[2]


def test_several_steps_are_as_many_updates_with_the_same_answers() -> None:
    """Theta is written anew at each, and the answers stay: gradient descent on equation (4)."""
    a, one = (ready(related(), method="panacea", settings={**SMALL, **SERVER, "server_steps": k}) for k in (4, 1))
    begin = begun(a)
    wanted = answers(a, begin)
    by_hand = begin
    for _ in range(4):
        by_hand = updated(one, by_hand, wanted)
    together = updated(a, begin, wanted)
    for name, tensor in together.items():
        assert same(tensor, dict(by_hand.items())[name]), name


def test_enough_steps_write_what_clients_answered() -> None:
    settings = {**SMALL, "hidden": 30, "server_optimiser": "adam", "server_lr": 5e-3, "server_steps": 400}
    a = ready(related(), method="panacea_gn", settings=settings)
    begin = begun(a)
    wanted = answers(a, begin)
    left = float((generated(a, updated(a, begin, wanted)) - wanted).norm())
    assert left < 0.05 * float((generated(a, begin) - wanted).norm())


def test_what_the_generator_makes_of_pairs_is_the_networks() -> None:
    a = ready(related(weights=True), method="panacea", settings=SMALL)
    begin = begun(a)
    method = a.method
    assert isinstance(method, Panacea)
    _, logits = Oracle(a, begin).network(begin.embeddings, a.known_problem().graph)
    assert close(method.edges(a.known_problem(), begin), logits.detach())
    without = ready(related(), method="panacea", settings={**SMALL, "generator_weight": 0.0})
    assert isinstance(without.method, Panacea)
    with pytest.raises(ValueError, match="Without a generator"):
        without.method.edges(without.known_problem(), begun(without))


# ---- who moves ----


def test_everyone_moves_with_those_who_took_part() -> None:
    """Neighbours by the gradient, clients too far away by weight decay alone, and nothing moves what is fixed."""
    path = related([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)])
    plain = {**SMALL, "server_momentum": 0.0, "server_lr": 0.1}
    lone = torch.tensor([0], device=DEVICE)
    for decay in (0.0, 0.1):
        a = ready(path, method="panacea_gn", settings={**plain, "server_weight_decay": decay})
        before = begun(a)
        after = updated(a, before, answers(a, before)[:1], lone)
        moved = after.embeddings - before.embeddings
        assert (moved[:4].norm(dim=1) > 0).all(), "within three steps on the graph"
        assert close(moved[4:], -0.1 * decay * before.embeddings[4:], 1e-12)
    a = ready(path, method="panacea_gn", settings={**plain, "train_embeddings": False, "server_weight_decay": 0.1})
    before = begun(a)
    after = updated(a, before, answers(a, before)[:1], lone)
    assert torch.equal(after.embeddings, before.embeddings) and not torch.equal(after.psi, before.psi)


def test_momentum_moves_the_embedding_of_a_client_that_is_no_longer_there() -> None:
    a = ready(related([]), method="panacea_gn", settings={**SMALL, "server_momentum": 0.5, "server_lr": 0.1})
    begin = begun(a)
    wanted = answers(a, begin)
    first = updated(a, begin, wanted)
    second = updated(a, first, wanted[:1], torch.tensor([0], device=DEVICE))
    step = first.embeddings - begin.embeddings
    assert close((second.embeddings - first.embeddings)[1:], 0.5 * step[1:], 1e-12)


# ---- the graph's limits ----


def test_on_a_complete_graph_all_clients_get_the_same_weights(tmp_path: Path) -> None:
    run = simulate(tmp_path, related(), method="panacea", settings=SMALL, graph={"source": "complete"})
    for k in (1, 2, 3, 4):
        rows = run.rows(k, "generated")
        assert close(rows, rows[:1].expand(6, -1), 1e-12)
    assert not close(run.rows(1, "generated"), run.rows(4, "generated"), 1e-6)


def test_without_edges_a_client_is_written_to_by_its_own_embedding_alone() -> None:
    """A hypernetwork as pFedHN's: another client's embedding makes no difference."""
    a = ready(related(), method="panacea_gn", settings=SMALL, graph={"source": "empty"})
    server = begun(a)
    other = server.replace(embeddings=server.embeddings.clone())
    other.embeddings[1] += 1
    changed = (generated(a, server) - generated(a, other)).norm(dim=1)
    assert changed[1] > 1e-3 and not changed[[0, 2, 3, 4, 5]].any()


def test_panacea_and_panacea_gn_start_with_the_same_weights() -> None:
    first, second = (ready(related(), method=method, settings=SMALL) for method in BOTH)
    assert same(generated(first, begun(first)), generated(second, begun(second)))


@pytest.mark.parametrize("method", BOTH)
def test_without_a_graph_there_is_a_sentence(method: str) -> None:
    with pytest.raises(ConfigError, match=r"no graph: use --graph inferred, --graph groups"):
        ready(toy(), method=method)


# ---- the start ----


def test_written_weights_start_as_wide_as_the_initial_models() -> None:
    a = ready(related(), method="panacea", settings=SMALL)
    theta, initial = generated(a, begun(a)), a.problem.initial
    for name, part in a.problem.layout.tensors(initial).items():
        own = a.problem.layout.tensors(theta)[name]
        assert abs(float(own.std(correction=0) / part.std(correction=0)) - 1) < 1e-6, name


def test_batchnorms_scale_and_shift_start_near_one_and_zero() -> None:
    a = ready(related(), model=normed, method="panacea", settings=SMALL)
    server = begun(a)
    rows = torch.cat([generated(a, server), a.problem.initial[None, a.problem.layout.parameters :].expand(6, -1)], 1)
    tensors = a.problem.layout.tensors(rows)
    for name, value in (("1.weight", 1.0), ("1.bias", 0.0)):
        off = tensors[name] - value
        assert abs(float(off.square().mean().sqrt()) - 0.01) < 1e-6 and off.any()


def test_an_embedding_comes_from_the_clients_name_alone() -> None:
    whole, part = (ready(related(sizes=SIX[:n], edges=[]), method="panacea", settings=SMALL) for n in (6, 4))
    rows = [dict(zip(a.problem.names, begun(a).embeddings.tolist(), strict=True)) for a in (whole, part)]
    assert all(rows[0][name] == row for name, row in rows[1].items())
    assert len({tuple(row) for row in rows[0].values()}) == 6


# ---- what stays with the client ----


def test_running_statistics_stay_with_the_client(tmp_path: Path) -> None:
    """Trap T12: parameters travel, BatchNorm's buffers are each client's own."""
    run = simulate(tmp_path, related(), model=normed, method="panacea", settings=SMALL, participation={"sample": 0.5})
    d = run.problem.layout.parameters
    assert d < run.problem.layout.size
    own = run.problem.initial[d:].repeat(6, 1)
    for k in (1, 2, 3):
        assert run.sent[k][1].generated.shape == (6, d)
        assert run.lines[k]["bytes_up"] == 3 * d * 8
        before, after = own, run.memories[k].personal[:, d:]
        own = after.clone()
        for i in range(6):
            assert torch.equal(after[i], before[i]) != (i in run.took_part(k))
        assert torch.equal(run.rows(k, "generated")[:, d:], after), "what was trained with last"
    assert len(run.server.state.offset) == d


# ---- newcomers ----


def with_newcomers(folder: Path, federation: Federation, **settings: Any) -> Watched:
    return simulate(folder, federation, participation={"novel": 0.34, "novel_exchanges": 0}, **settings)


def held_out(federation: Federation) -> list[int]:
    """The numbers, among all six, of the two that `with_newcomers` holds out."""
    a = ready(federation, method="separate", participation={"novel": 0.34})
    return [federation.names.index(name) for name in a.problem.names[4:]]


@pytest.mark.parametrize("method", BOTH)
def test_training_knows_nothing_of_who_is_held_out(tmp_path: Path, method: str) -> None:
    """Trap T15: whatever edges newcomers have, the known end bit by bit as in a federation without them."""
    federation = related()
    new = held_out(federation)
    assert federation.graph is not None
    other = federation.graph.clone()
    for i in new:
        other[i] = other[:, i] = (torch.arange(6) != i).double() * 3
    first = with_newcomers(tmp_path, federation, method=method, settings=SMALL)
    second = with_newcomers(tmp_path, replace(federation, graph=other), method=method, settings=SMALL)
    names = [federation.names[i] for i in new]
    alone = simulate(tmp_path, federation.without(names)[0], method=method, settings=SMALL)
    for k in (1, 2, 3):
        for one in (second, alone):
            for name, tensor in first.servers[k].items():
                assert same(tensor, dict(one.servers[k].items())[name]), name
    assert not torch.equal(first.rows(5, "generated"), second.rows(5, "generated")), "newcomers do see their edges"


def test_newcomers_are_served_in_four_ways(tmp_path: Path) -> None:
    federation = related(weights=True)
    run = with_newcomers(tmp_path, federation, method="panacea", settings={**SMALL, **SERVER})
    method, before, problem = run.a.method, run.before[0], run.a.problem
    assert isinstance(method, Panacea) and problem.graph is not None
    network = method.network(SMALL["embedding"], len(before.offset)).to(before.psi)
    nn.utils.vector_to_parameters(before.psi[0], network.parameters())
    fresh = ready(federation, method="panacea", settings=SMALL)
    rows = dict(zip(fresh.problem.names, begun(fresh).embeddings, strict=True))
    untrained = torch.stack([rows[name] for name in problem.names[4:]])
    assert torch.equal(run.server.state.embeddings[4:], untrained), "as if they had been there from the start"
    means, blends = [], []
    with torch.no_grad():
        theta = network(before.embeddings, problem.graph[:4, :4])[0] + before.offset
        for i in (4, 5):
            share = problem.graph[i, :4] / problem.graph[i, :4].sum()
            means.append(sum(share[j] * before.embeddings[j] for j in range(4)))
            blends.append(sum(share[j] * theta[j] for j in range(4)))
        expected = {"neighbours": torch.stack(blends)}
        starts = {"generated": untrained, "generated-mean": torch.stack(means)}
        for name, start in (starts | {"generated-zero": torch.zeros(2, 4, device=DEVICE)}).items():
            whole, _ = network(torch.cat([before.embeddings, start]), problem.graph)
            expected[name] = (whole + before.offset)[4:]
    for name, value in expected.items():
        assert close(run.rows(5, name), value), name
    novel = run.lines[5]["models"]
    assert set(novel) == {"personal", *expected}
    assert all(set(run.lines[k]["models"]) == {"generated", "personal"} for k in (1, 2, 3, 4))
    for place, i in enumerate((4, 5)):
        assert close(run.rows(5, "personal")[place], trained(run.a, i, run.rows(5, "generated")[place], 5))


def test_a_newcomer_without_a_known_neighbour_gets_the_mean_over_all(tmp_path: Path) -> None:
    federation = related()
    new = held_out(federation)
    assert federation.graph is not None
    graph = federation.graph.clone()
    for i in new:
        graph[i] = graph[:, i] = 0
    graph[new[0], new[1]] = graph[new[1], new[0]] = 1
    run = with_newcomers(tmp_path, replace(federation, graph=graph), method="panacea", settings=SMALL)
    four = torch.arange(4, device=DEVICE)
    known = run.a.method.download(run.a.problem, run.server.state, four, moment(run.a, 5)).generated
    assert close(run.rows(5, "neighbours"), known.mean(0).expand(2, -1))


def test_known_clients_keep_their_weights_when_newcomers_are_there(tmp_path: Path) -> None:
    """Alone, or asked for beside newcomers; and they have no variants of their own."""
    run = with_newcomers(tmp_path, related(), method="panacea", settings=SMALL)
    last = run.rows(4, "generated")
    method, problem, now = run.a.method, run.a.problem, moment(run.a, 5)
    known = method.download(problem, run.server.state, torch.tensor([1, 3], device=DEVICE), now)
    assert list(known) == ["generated"] and same(known.generated, last[[1, 3]])
    mixed = method.download(problem, run.server.state, torch.tensor([0, 2, 5], device=DEVICE), now)
    for name, rows in mixed.items():
        assert same(rows[:2], last[[0, 2]]), name
        assert same(rows[2], run.rows(5, name)[1]), name
    for name, tensor in run.before[0].items():
        now = dict(run.server.state.items())[name]
        assert torch.equal(now if name in run.before[0].shared else now[:4], tensor), name


# ---- what fits, and what suits ----


def test_a_hypernetwork_that_does_not_fit_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """ResNet-18: 11 million weights take 1.1 billion parameters, and these, gradient and Adam's moments 21.0 GiB."""
    monkeypatch.setattr("fedkin.base.machine.free_bytes", lambda device: 4 << 30)
    images = torch.zeros(6, 3, 8, 8)
    labels = torch.arange(6) % 2
    federation = Federation.from_arrays({"a": (images, labels), "b": (images, labels)})
    federation = replace(federation, graph=torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    with pytest.raises(ConfigError) as caught:
        ready(federation, model={"name": "resnet18"}, precision="float32", method="panacea")
    sentence = str(caught.value)
    weights = 11_169_858
    parts = (f"{weights:,} weights", f"{weights * 101 + 70_700:,} parameters", "21.0 GiB", "4.0 GiB are free", "hidden")
    assert all(part in sentence for part in parts), sentence
    monkeypatch.setattr("fedkin.base.machine.free_bytes", lambda device: 1 << 20)
    ready(related(), method="panacea", settings=SMALL)


@pytest.mark.parametrize("method", BOTH)
def test_the_server_is_slower_where_that_withstands_liars(method: str) -> None:
    slow = resolve({"method": method, "data": "fl60"}).settings
    fast = resolve({"method": method, "data": "tpt48"})
    assert (slow["server_optimiser"], slow["server_lr"], slow["server_steps"]) == ("sgd", 1e-2, 1)
    chosen = fast.settings
    assert (chosen["server_optimiser"], chosen["server_lr"], chosen["server_steps"]) == ("adam", 1e-3, 5)
    assert fast.local.steps == 0, "at equal budget the local training is the data set's"
    own = resolve({"method": method, "data": "tpt48", "settings": {"server_steps": 2}}).settings
    assert (own["server_optimiser"], own["server_steps"]) == ("adam", 2)
    native = resolve({"method": method, "data": "fl60", "budget": "native"}).local
    assert (native.optimiser, native.lr, native.momentum, native.steps, native.batch_size) == ("sgd", 0.05, 0.9, 10, 32)
    native = resolve({"method": method, "data": "tpt48", "budget": "native"}).local
    assert (native.optimiser, native.lr, native.steps, native.batch_size) == ("adam", 3e-3, 10, 32)


def test_panacea_is_a_method_whose_training_looks_at_no_setting() -> None:
    assert Panacea.training == PanaceaGN.training == frozenset() and issubclass(Panacea, Method)
