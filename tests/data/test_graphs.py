"""Relation graphs from distances, by lot and from attention come to the edges that they should, and the page about
graphs is true."""

from __future__ import annotations

import itertools
import math
import re

import networkx as nx
import numpy as np
import pytest
import torch
from helpers import ROOT
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedkin.data import graphs
from fedkin.data.graphs import GraphError

# ---- from places ----


def kernel(distances: list[list[float]], width: float, threshold: float) -> list[list[float]]:
    """The thresholded Gaussian kernel, entry by entry."""
    weights = [[math.exp(-((d / width) ** 2)) for d in row] for row in distances]
    return [[0.0 if i == j or w < threshold else w for j, w in enumerate(row)] for i, row in enumerate(weights)]


def test_distances_become_weights_by_a_gaussian_and_little_ones_are_cut():
    rng = np.random.default_rng(0)
    distances = rng.uniform(0, 10, (6, 6))
    distances[1, 4] = distances[2, 0] = np.inf
    finite = [d for row in distances.tolist() for d in row if d < math.inf]
    mean = sum(finite) / len(finite)
    deviation = math.sqrt(sum((d - mean) ** 2 for d in finite) / len(finite))
    found = graphs.from_distances(distances)
    assert np.allclose(found.numpy(), kernel(distances.tolist(), deviation, 0.1), atol=1e-12)
    found = graphs.from_distances(distances, width=3.0, threshold=0.4)
    assert np.allclose(found.numpy(), kernel(distances.tolist(), 3.0, 0.4), atol=1e-12)
    assert 0 < found.count_nonzero() < 30


def test_places_in_a_plane_are_as_far_apart_as_pythagoras_says():
    points = [(0.0, 0.0), (3.0, 4.0), (0.0, 1.0)]
    distances = [[math.dist(a, b) for b in points] for a in points]
    found = graphs.from_coordinates(points, width=4.0)
    assert np.allclose(found.numpy(), kernel(distances, 4.0, 0.1), atol=1e-12)


def test_places_on_the_earth_are_as_far_apart_as_they_are():
    berlin, paris, sydney = (52.52, 13.405), (48.8566, 2.3522), (-33.8688, 151.2093)
    found = graphs.from_coordinates([berlin, paris, sydney], "earth", width=1000.0, threshold=0.0)
    far = 1000.0 * (-found.log()).sqrt()
    assert float(far[0, 1]) == pytest.approx(878, abs=2)  # as atlases have it
    assert float(graphs.from_coordinates([(0.0, 179.0), (0.0, -179.0)], "earth", 1000.0)[0, 1]) == pytest.approx(
        math.exp(-((2 * math.pi * 6371.0088 / 180 / 1000) ** 2))
    ), "two degrees over the date line"
    assert float(far[0, 2]) == pytest.approx(16090, abs=10)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: graphs.from_distances(np.zeros((2, 3))), "a row and a column for each client"),
        (lambda: graphs.from_distances([[0, -1], [1, 0]]), "row 0 and column 1 is -1"),
        (lambda: graphs.from_distances([[0, math.nan], [1, 0]]), "is nan"),
        (lambda: graphs.from_distances(np.ones((3, 3))), "All distances are equal"),
        (lambda: graphs.from_distances(np.full((3, 3), np.inf)), "All distances are equal"),
        (lambda: graphs.from_distances(np.eye(3), width=0.0), "The width is 0"),
        (lambda: graphs.from_coordinates([1.0, 2.0]), "a row for each client"),
        (lambda: graphs.from_coordinates([[1.0, math.nan]]), "finite"),
        (lambda: graphs.from_coordinates([[1.0], [2.0]], "moon"), "'plane' or 'earth'"),
        (lambda: graphs.from_coordinates([[91.0, 0.0]], "earth"), "latitude from -90 to 90"),
        (lambda: graphs.from_coordinates([[1.0, 0.0, 2.0]], "earth"), "latitude, longitude"),
    ],
)
def test_distances_and_places_that_cannot_be_are_refused(make, said):
    with pytest.raises(GraphError, match=said) as caught:
        make()
    assert str(caught.value).endswith(".")


# ---- by lot ----

MANY = [f"silo-{i:03d}" for i in range(120)]
GROUPS = [i % 4 for i in range(120)]


def test_edges_inside_and_across_groups_are_as_frequent_as_asked():
    graph = graphs.of_groups(GROUPS, MANY, 0.6, 0.05, seed=3)
    assert torch.equal(graph, graph.T) and not graph.diagonal().any()
    assert set(graph.unique().tolist()) == {0.0, 1.0}
    kin = torch.tensor(GROUPS)[:, None] == torch.tensor(GROUPS)
    inside, across = graph[kin.clone().fill_diagonal_(False)], graph[~kin]
    # 1,740 pairs inside and 5,400 across: four standard errors.
    assert float(inside.mean()) == pytest.approx(0.6, abs=4 * math.sqrt(0.24 / 1740))
    assert float(across.mean()) == pytest.approx(0.05, abs=4 * math.sqrt(0.0475 / 5400))


def test_chances_of_one_and_none_are_certain():
    kin = (torch.tensor(GROUPS)[:, None] == torch.tensor(GROUPS)).float().fill_diagonal_(0)
    assert torch.equal(graphs.of_groups(GROUPS, MANY, 1, 0, seed=0), kin)
    assert torch.equal(graphs.of_groups(GROUPS, MANY, 0, 1, seed=0), graphs.complete(120) - kin)


@given(st.permutations(range(12)), st.integers(2, 12))
def test_a_pairs_lot_depends_on_the_two_names_and_the_seed_alone(order, count):
    names, groups = MANY[:12], GROUPS[:12]
    whole = graphs.of_groups(groups, names, 0.6, 0.3, seed=1)
    part = order[:count]
    found = graphs.of_groups([groups[i] for i in part], [names[i] for i in part], 0.6, 0.3, seed=1)
    assert torch.equal(found, whole[part][:, part])


def test_another_seed_draws_other_edges_and_a_higher_chance_more_of_the_same():
    one, two = (graphs.of_groups(GROUPS, MANY, 0.6, 0.05, seed=s) for s in (0, 1))
    assert not torch.equal(one, two)
    assert bool((graphs.of_groups(GROUPS, MANY, 0.8, 0.2, seed=0) >= one).all())


def test_complete_and_empty():
    assert graphs.complete(3).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    assert graphs.empty(2).tolist() == [[0, 0], [0, 0]]


@given(st.integers(3, 7), st.integers(0, 50), st.randoms())
def test_permuted_is_the_same_graph_with_other_names_whatever_the_order(m, seed, random):
    names = [f"silo-{i}" for i in range(m)]
    graph = torch.arange(float(m * m)).view(m, m).triu(1)
    graph = graph + graph.T  # all weights differ, so that any other order shows
    found = graphs.permuted(graph, names, seed)
    assert not torch.equal(found, graph)
    assert nx.is_isomorphic(
        *(nx.from_numpy_array(g.numpy()) for g in (graph, found)), edge_match=lambda a, b: a["weight"] == b["weight"]
    )
    assert torch.equal(found, graphs.permuted(graph, names, seed))
    order = list(range(m))
    random.shuffle(order)
    again = graphs.permuted(graph[order][:, order], [names[i] for i in order], seed)
    assert torch.equal(again, found[order][:, order])


def test_one_client_cannot_change_places():
    assert graphs.permuted(torch.zeros(1, 1), ["a"], 0).tolist() == [[0.0]]


# ---- from attention ----


def blocks(sizes: list[int], strangers: float = 0.01) -> tuple[Tensor, Tensor]:
    """xi with equal attention inside each block and little outside, and who is kin of whom."""
    group = torch.tensor([g for g, n in enumerate(sizes) for _ in range(n)])
    kin = group[:, None] == group
    xi = torch.where(kin, 1.0, strangers).double()
    return xi / xi.sum(1, keepdim=True), kin.float().fill_diagonal_(0)


@pytest.mark.parametrize("top", [3, 5, 9, 50])
def test_blocks_of_attention_become_cliques_however_many_may_be_kept(top):
    xi, kin = blocks([4, 4, 4])
    assert torch.equal(graphs.from_collaboration(xi, top), kin)


def test_no_more_than_the_first_few_are_kept_and_either_side_suffices():
    # 0 attends to 1 more than to 2; everybody attends to 0.
    xi = torch.tensor([[0.0, 0.6, 0.3, 0.1], [1.0, 0, 0, 0], [0.9, 0.1, 0, 0], [0.8, 0.1, 0.1, 0]])
    assert graphs.from_collaboration(xi, 1).tolist() == [[0, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]


def test_attention_has_to_be_returned_to_come_first():
    # 0 attends to 1 most, but 1 and 3 have only each other in mind, and 2 has 0.
    xi = torch.tensor([[0.0, 0.5, 0.4, 0.1], [0.1, 0, 0, 0.9], [0.9, 0.1, 0, 0], [0, 0.9, 0.1, 0]])
    assert graphs.from_collaboration(xi, 1).tolist() == [[0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]]


def test_attention_below_ones_average_is_no_edge():
    xi = torch.tensor([[0.1, 0.5, 0.39, 0.01], [0.5, 0.1, 0.39, 0.01], [0.45, 0.45, 0.09, 0.01], [0.3, 0.3, 0.3, 0.1]])
    found = graphs.from_collaboration(xi, 3)
    mutual = ((xi + xi.T) / 2).fill_diagonal_(0)
    for i, j in itertools.combinations(range(4), 2):
        wanted = any(float(mutual[i, j]) >= float(mutual[k].sum()) / 3 for k in (i, j))
        assert bool(found[i, j]) == bool(found[j, i]) == wanted


def test_attention_that_tells_nobody_apart_relates_all_and_none_relates_none():
    assert torch.equal(graphs.from_collaboration(torch.full((5, 5), 0.2), 2), graphs.complete(5))
    assert torch.equal(graphs.from_collaboration(torch.eye(5), 2), graphs.empty(5))
    assert torch.equal(graphs.from_collaboration(torch.ones(1, 1), 2), graphs.empty(1))


@given(st.integers(0, 1000), st.permutations(range(8)), st.integers(1, 8))
def test_inferred_edges_follow_their_clients(seed, order, top):
    xi = torch.rand(8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    graph = graphs.from_collaboration(xi, top)
    assert torch.equal(graph, graph.T) and not graph.diagonal().any()
    assert bool((graph.sum(1) >= 1).all()), "everybody has somebody"
    assert torch.equal(graphs.from_collaboration(xi[order][:, order], top), graph[order][:, order])


@given(st.integers(0, 1000), st.integers(1, 6))
def test_newcomers_change_nothing_among_the_known_and_know_each_other_not(seed, top):
    xi = torch.rand(8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    graph = graphs.from_collaboration(xi, top, known=6)
    assert torch.equal(graph[:6, :6], graphs.from_collaboration(xi[:6, :6], top))
    assert not graph[6:, 6:].any()
    assert torch.equal(graph, graph.T)
    for row, attention in zip(graph[6:, :6], xi[6:, :6], strict=True):
        kept = row.nonzero().flatten().tolist()
        least = attention.sort(descending=True).values[:top][-1]
        assert 1 <= len(kept) <= top
        assert all(attention[j] >= max(least, attention.mean()) for j in kept)


# ---- the page about them ----


def test_the_pages_examples_run_and_print_what_they_say(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "graphs.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    notes, shape = capsys.readouterr().out.splitlines()
    assert f"print(federation.notes)  # {notes}\n" in code
    assert f"# {shape}, in the order" in code


def test_who_pays_others_next_to_nothing_has_no_kin_and_no_edges() -> None:
    xi = torch.full((5, 5), 0.25)
    xi[4] = torch.tensor([0.001, 0.001, 0.001, 0.001, 0.996])
    graph = graphs.from_collaboration(xi, top=9)
    assert graph[4].sum() == graph[:, 4].sum() == 0
    assert (graph[:4, :4].sum(1) == 3).all()
