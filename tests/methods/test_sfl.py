"""SFL against clients trained one at a time and models that are averaged with neighbours, step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import DEVICE, Watched, at, close, normed, ready, same, same_record, simulate, toy, trained, watched
from torch import Tensor, nn

import fedkin
from fedkin.base.settings import ConfigError
from fedkin.base.state import State
from fedkin.data.federation import Federation
from fedkin.engines.assembly import Assembly
from fedkin.engines.simulation import Interrupted
from fedkin.methods import sfl
from fedkin.runs.config import resolve
from fedkin.studies.run import Run

SIX = (9, 8, 7, 6, 5, 4)
WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "squared": lambda apart: apart.square().sum() / 2,
    # The square root has no slope at zero; a number this small gives it the slope zero there and changes no digit.
    "norm": lambda apart: (apart.square().sum() + 1e-40).sqrt(),
    "none": lambda apart: 0 * apart.sum(),
}


def related(edges: dict[tuple[int, int], float], sizes: tuple[int, ...] = SIX) -> Federation:
    """Clients with some edges between them."""
    graph = torch.zeros(len(sizes), len(sizes), dtype=torch.float64)
    for (i, j), weight in edges.items():
        graph[i, j] = graph[j, i] = weight
    return replace(toy(sizes), graph=graph)


PATH = {(0, 1): 1.0, (1, 2): 1.0, (2, 3): 1.0, (3, 4): 1.0, (4, 5): 1.0}
APART = {(0, 1): 1.0, (1, 2): 0.5, (3, 4): 2.0}
"""Two components, and client 5 that is related to nobody."""


def spread(V: list[Tensor], graph: Tensor, power: int, alpha: float) -> list[Tensor]:
    """Each step every model becomes the mean of its own and its neighbours', by the weights of the edges."""
    U = V
    for _ in range(power):
        U = [
            (U[i] + sum((graph[i, j] * U[j] for j in range(len(U))), torch.zeros_like(U[i]))) / (1 + graph[i].sum())
            for i in range(len(U))
        ]
    return [alpha * u + (1 - alpha) * v for u, v in zip(U, V, strict=True)]


def trained_near(
    a: Assembly,
    i: int,
    g: Tensor,
    u: Tensor,
    k: int,
    *,
    way: str = "squared",
    strength: float = 0.3,
    form: str = "exact",
) -> Tensor:
    """A client that starts at g and is held near both g and u."""
    if way == "squared" and form == "exact":
        # lambda / 2 (||w - u||^2 + ||w - g||^2) is lambda ||w - (u + g) / 2||^2 and a constant.
        return trained(a, i, g, k, near=((u + g) / 2, 1 / (2 * strength)))
    return trained(a, i, g, k, penalty=lambda w: strength * (WAYS[way](w - u) + WAYS[way](w - g)))


def follows(run: Watched, *, way: str, strength: float, power: int, alpha: float, form: str = "exact") -> None:
    a, graph = run.a, run.a.problem.graph
    assert graph is not None
    g = a.problem.initial
    U = personal = [g] * len(a.problem)
    for k in range(1, a.config.rounds + 1):
        V, personal = list(U), list(personal)
        for i in run.took_part(k):
            V[i] = personal[i] = trained_near(a, i, g, U[i], k, way=way, strength=strength, form=form)
        assert close(run.rows(k, "cloud"), torch.stack(U)), f"u_i of round {k}"
        assert close(run.rows(k, "global"), g.expand(len(U), -1)), f"g of round {k}"
        assert close(run.rows(k, "personal"), torch.stack(personal)), f"v_i of round {k}"
        U = spread(V, graph, power, alpha)
        g = torch.stack(U).mean(0)
    assert close(run.rows(a.config.rounds + 1, "cloud"), torch.stack(U))
    assert close(run.rows(a.config.rounds + 1, "global"), g.expand(len(U), -1))


@pytest.mark.parametrize("sample", [1.0, 0.5])
@pytest.mark.parametrize("way", WAYS)
def test_every_round_is_the_algorithm(tmp_path: Path, way: str, sample: float) -> None:
    """Those that did not train enter with the model that was spread to them last."""
    settings = {"regulariser": way, "strength": 0.7}
    run = simulate(
        tmp_path, related(APART), method="sfl", settings=settings, participation={"sample": sample}, rounds=4
    )
    follows(run, way=way, strength=0.7, power=3, alpha=1.0)
    assert run.method.headline == "cloud"


def test_the_papers_form_adds_the_gradient_of_the_regulariser(tmp_path: Path) -> None:
    run = simulate(tmp_path, related(APART), method="sfl", settings={"proximal": "gradient", "strength": 0.7})
    follows(run, way="squared", strength=0.7, power=3, alpha=1.0, form="gradient")


def test_a_regulariser_whose_gradient_diverges_under_sgd_is_refused() -> None:
    settings, local = {"proximal": "gradient", "strength": 75.0}, {"optimiser": "sgd"}
    with pytest.raises(ConfigError, match=r"1 / \(2 strength\) is 0\.00666667, a ratio of 3\."):
        ready(related(PATH), method="sfl", settings=settings, local=local)
    for other in ({"proximal": "exact"}, {"regulariser": "norm"}, {"strength": 45.0}):
        ready(related(PATH), method="sfl", settings={**settings, **other}, local=local)


@pytest.mark.parametrize(("power", "alpha"), [(1, 1.0), (2, 0.4)])
def test_steps_over_the_graph_and_their_share_may_be_chosen(tmp_path: Path, power: int, alpha: float) -> None:
    run = simulate(tmp_path, related(PATH), method="sfl", settings={"power": power, "alpha": alpha})
    follows(run, way="squared", strength=0.3, power=power, alpha=alpha)


# ---- trap T1: the regulariser has a gradient ----


@pytest.mark.parametrize("way", ["squared", "norm"])
def test_clients_are_held_near_what_they_received(way: str) -> None:
    """In the authors' code the term is made of detached copies, and clients train as if it were not there."""
    ends = {}
    for regulariser, strength in ((way, 0.0), (way, 0.2), (way, 1.0), ("none", 1.0)):
        settings = {"regulariser": regulariser, "strength": strength}
        a = ready(related(PATH), method="sfl", settings=settings, local={"optimiser": "sgd"})
        g, u = a.problem.initial.expand(6, -1), 1.1 * a.problem.initial.expand(6, -1)
        upload, _ = a.method.train(a.cohort, State(g=g, u=u), State(), at(1))
        ends[regulariser, strength] = (upload.V - u).norm(dim=1) + (upload.V - g).norm(dim=1)
    assert (ends[way, 1.0] < ends[way, 0.2]).all() and (ends[way, 0.2] < ends[way, 0.0]).all()
    assert same(ends["none", 1.0], ends[way, 0.0])


# ---- limits ----


def test_without_a_share_of_the_graph_clouds_are_the_clients_own_models(tmp_path: Path) -> None:
    run = simulate(tmp_path, related(PATH), method="sfl", settings={"alpha": 0.0})
    lonely = simulate(tmp_path, related({}), method="sfl")
    for k in (2, 3, 4):
        assert torch.equal(run.rows(k, "cloud"), run.memories[k - 1].personal)
        assert same(run.rows(k, "cloud"), lonely.rows(k, "cloud")), "nor does an empty graph spread anything"


def test_a_complete_graph_without_regulariser_is_fedavg_for_clients_of_one_size(tmp_path: Path) -> None:
    sizes = (8, 8, 8)
    federation = related({(0, 1): 1.0, (0, 2): 1.0, (1, 2): 1.0}, sizes)
    run = simulate(tmp_path, federation, method="sfl", settings={"regulariser": "none"})
    average = simulate(tmp_path, toy(sizes), method="fedavg")
    assert close(run.rows(4, "cloud"), average.rows(4, "global"))
    assert close(run.rows(4, "global"), average.rows(4, "global"))


def test_models_go_as_far_as_there_are_steps_and_never_from_component_to_component() -> None:
    for power in (1, 2, 3):
        a = ready(related(PATH), method="sfl", settings={"power": power})
        xi = a.method.begin(a.problem, at(0, seed=0)).xi
        apart = (torch.arange(6)[:, None] - torch.arange(6)).abs()
        assert torch.equal(xi.cpu() > 0, apart <= power)
    a = ready(related(APART), method="sfl", settings={"power": 9})
    xi = a.method.begin(a.problem, at(0, seed=0)).xi
    component = torch.tensor([0, 0, 0, 1, 1, 2])
    assert torch.equal(xi.cpu() > 0, component[:, None] == component)
    assert xi[5, 5] == 1, "who is related to nobody keeps to itself"
    assert close(xi.sum(1), torch.ones(6, dtype=torch.float64), 1e-14)


@pytest.mark.parametrize("learned", [False, True])
def test_the_collaboration_recorded_in_a_round_is_the_one_that_made_its_clouds(tmp_path: Path, learned: bool) -> None:
    run = simulate(tmp_path, related(APART), method="sfl", settings={"learned": learned, "alpha": 0.7})
    for k in (2, 3, 4):
        xi = torch.from_numpy(Run(run.writer.path).collaboration(k)).double().to(DEVICE)
        assert close(xi @ run.memories[k - 1].personal, run.rows(k, "cloud"), 1e-6)
        assert close(run.rows(k, "global")[0], run.rows(k, "cloud").mean(0), 1e-14)


def test_a_federation_without_a_graph_is_answered_with_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"a graph of the clients, and this federation has none: .*--graph inferred"):
        ready(toy(), method="sfl")


def test_the_papers_own_local_training() -> None:
    local = resolve({"method": "sfl", "data": "digits", "budget": "native"}).local
    assert (local.epochs, local.steps, local.batch_size) == (20, 0, 128)
    assert (local.optimiser, local.momentum, local.nesterov, local.weight_decay) == ("sgd", 0.9, True, 5e-4)


# ---- running statistics ----


@pytest.mark.parametrize("way", ["squared", "norm"])
def test_running_statistics_are_spread_like_the_rest_and_not_held(tmp_path: Path, way: str) -> None:
    """Trap T12: statistics far from those of u and g change nothing for the weights."""
    settings = {"regulariser": way}
    run = simulate(tmp_path, related(APART), model=normed, method="sfl", settings=settings, rounds=2)
    d = run.problem.layout.parameters
    assert close(run.rows(3, "cloud"), run.server.state.xi @ run.memories[2].personal, 1e-12)
    a = run.a
    g = a.problem.initial.repeat(6, 1)
    far = g.clone()
    far[:, d:] += 100
    ends = [a.method.train(a.cohort.take(range(6)), State(g=g, u=u), State(), at(1))[0].V for u in (g, far)]
    assert same(ends[0], ends[1])


# ---- newcomers ----


def test_newcomers_get_the_mean_of_the_neighbours_that_were_there_or_the_global_model(tmp_path: Path) -> None:
    names = ready(toy(SIX), method="fedavg", participation={"novel": 0.34}).problem.names
    rank = {name: i for i, name in enumerate(toy(SIX).names)}
    first, second = (rank[name] for name in names[4:])
    others = [rank[name] for name in names[:4]]
    edges = {(first, others[0]): 1.0, (first, others[2]): 3.0, (first, second): 5.0, (others[0], others[1]): 1.0}
    run = simulate(tmp_path, related(edges), method="sfl", participation={"novel": 0.34, "novel_exchanges": 0})
    U, g = run.servers[4].U, run.servers[4].g
    assert len(U) == 4 and run.problem.names == names
    expected = torch.stack([(U[0] + 3 * U[2]) / 4, g])
    assert close(run.rows(5, "cloud"), expected, 1e-12)
    assert torch.equal(run.rows(5, "global"), g.expand(2, -1))
    assert close(run.server.state.xi[4:], torch.tensor([[0.25, 0, 0.75, 0, 0, 0], [0.25] * 4 + [0, 0]]).double(), 1e-14)
    for i in range(2):
        assert close(run.rows(5, "personal")[i], trained_near(run.a, 4 + i, g, expected[i], 5))


# ---- SFL*: the learned graph ----


class Learner(nn.Module):
    """The graph as a module, which torch trains."""

    def __init__(self, server: State) -> None:
        super().__init__()
        self.one, self.two = (nn.Embedding.from_pretrained(e.clone(), freeze=False) for e in embeddings(server))
        self.first, self.second = (nn.Linear(40, 40).to(DEVICE, torch.float64) for _ in range(2))
        for layer, place in ((self.first, "1"), (self.second, "2")):
            layer.weight.data.copy_(getattr(server, f"weight{place}"))
            layer.bias.data.copy_(getattr(server, f"bias{place}"))

    def forward(self) -> Tensor:
        everyone = torch.arange(self.one.num_embeddings, device=DEVICE)
        a, b = torch.tanh(3 * self.first(self.one(everyone))), torch.tanh(3 * self.second(self.two(everyone)))
        return torch.relu(torch.tanh(3 * (a @ b.T - b @ a.T)))


def embeddings(server: State) -> tuple[Tensor, Tensor]:
    return server.embedding1, server.embedding2


@pytest.mark.parametrize("neighbours", [30, 2])
def test_the_learned_graph_is_a_few_steps_towards_the_distances_mixed_into_the_given_one(
    tmp_path: Path, neighbours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sfl, "NEIGHBOURS", neighbours)
    settings = {"learned": True, "power": 2, "alpha": 0.6}
    run = simulate(tmp_path, related(PATH), method="sfl", settings=settings, participation={"sample": 0.7}, rounds=3)
    graph = run.a.problem.graph
    assert graph is not None
    given = (graph + torch.eye(6, device=DEVICE)) / (graph.sum(1, keepdim=True) + 1)
    begun = ready(related(PATH), method="sfl", settings=settings)
    learner = Learner(begun.method.begin(begun.problem, at(0, seed=0)))
    for k in (1, 2, 3):
        V = run.rows(k, "cloud").clone()
        V[run.took_part(k)] = run.memories[k].personal[run.took_part(k)]
        distances = torch.stack([torch.stack([(v - w).norm() for w in V]) for v in V])
        target = distances / distances.norm(dim=1, keepdim=True)
        optimiser = torch.optim.SGD(learner.parameters(), lr=0.01)
        for _ in range(10):
            optimiser.zero_grad()
            found = learner()
            nn.functional.mse_loss(found / found.norm(dim=1, keepdim=True).clamp(min=1e-12), target).backward()
            optimiser.step()
        found = learner().detach()
        for row in found:
            row[row.argsort(descending=True)[neighbours:]] = 0
        for i in range(6):
            if not found[i].any():
                found[i, i] = 1
        A = 0.95 * given + 0.05 * found / found.sum(1, keepdim=True)  # every round anew: nothing is forgotten
        assert close(run.servers[k].xi, 0.6 * A @ A + 0.4 * torch.eye(6, dtype=torch.float64, device=DEVICE), 1e-9)
        assert close(run.servers[k].U, run.servers[k].xi @ V, 1e-9)
        assert close(run.servers[k].embedding1, learner.one.weight.detach(), 1e-9)


def learner_of(m: int) -> State:
    a = ready(related({}, (3,) * m), method="sfl", settings={"learned": True})
    return a.method.begin(a.problem, at(0, seed=0))


def test_learning_brings_the_relations_nearer_to_the_distances() -> None:
    server = learner_of(12)
    points = torch.randn(12, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(DEVICE)
    distances = torch.cdist(points, points)

    def miss(server: State) -> float:
        unit = nn.functional.normalize
        return float(nn.functional.mse_loss(unit(sfl.relations(server)), unit(distances)))

    before = copy_of(server)
    losses = [miss(server)]
    for _ in range(20):
        server = sfl.fitted(server, distances)
        losses.append(miss(server))
    assert losses[-1] < losses[0] - 1e-4
    assert all(torch.equal(t, dict(before.items())[n]) for n, t in learner_of(12).items()), "nothing is written into"
    assert not any(t.requires_grad for _, t in server.items())


def copy_of(server: State) -> State:
    return server.replace(**{n: t.clone() for n, t in server.items()})


def test_a_relation_goes_one_way_and_of_each_client_the_strongest_count() -> None:
    A = sfl.relations(learner_of(40))
    assert not (A * A.T).any() and not A.diagonal().any() and A.min() >= 0 and A.max() <= 1
    many = torch.rand(40, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    many[3] = 0
    many[4, 7:] = 0
    kept = sfl.strongest(many)
    assert (kept > 0).sum(1).tolist() == [30, 30, 30, 1, 7, *[30] * 35]
    assert kept[3, 3] == 1, "who has no relation keeps to itself"
    for i in (0, 39):
        left_out = many[i][kept[i] == 0]
        assert many[i][kept[i] > 0].min() >= left_out.max()
        assert close(kept[i], torch.where(kept[i] > 0, many[i], 0.0) / many[i].topk(30).values.sum(), 1e-14)


def test_an_interrupted_run_that_learns_its_graph_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "method": "sfl",
        "settings": {"learned": True},
        "participation": {"lost": 0.5, "sample": 0.7},
        "rounds": 6,
    }
    whole = simulate(tmp_path, related(PATH), **settings)
    part = watched(tmp_path, related(PATH), **settings)
    part.listener.stop = lambda: len(part.lines) == 3
    with pytest.raises(Interrupted):
        part.run()
    done = fedkin.resume(part.writer.path, federation=related(PATH))
    for line, expected in zip(done.rounds, whole.lines.values(), strict=True):
        assert same_record(line, expected)


def test_newcomers_come_to_a_learned_graph_by_the_given_one(tmp_path: Path) -> None:
    run = simulate(tmp_path, related(PATH), method="sfl", settings={"learned": True}, participation={"novel": 0.34})
    assert torch.equal(run.server.state.xi[:4, :4], run.servers[4].xi) and torch.equal(
        run.server.state.U[:4], run.servers[4].U
    )
    assert close(run.server.state.xi.sum(1), torch.ones(6, dtype=torch.float64), 1e-12)
