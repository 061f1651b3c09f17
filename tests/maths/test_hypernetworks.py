"""Hypernetworks against their formulas written out, and in their limits: no edges, all edges."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers import DEVICE, same
from torch import Tensor, nn

from fedkin.base import streams
from fedkin.base.weights import Layout
from fedkin.maths.hypernetworks import SMALL, GraphHypernetwork, MLPHypernetwork, drawn, generator_loss, scale

CLIENTS, EMBEDDING, HIDDEN, OUTPUTS = 7, 5, 6, 11


def numbers(*shape: int, of: str = "numbers") -> Tensor:
    return torch.randn(*shape, generator=streams.generator(of), dtype=torch.float64).to(DEVICE)


def related(m: int = CLIENTS, *, weighted: bool = False) -> Tensor:
    """A symmetric graph with zeros on its diagonal, in which the last client has no neighbour."""
    edges = (numbers(m, m, of="edges") > 0.2).double().triu(1)
    edges[:, -1] = 0
    if weighted:
        edges = edges * numbers(m, m, of="weights").abs()
    return edges + edges.T


def graph_network(**options: Any) -> GraphHypernetwork:
    """Small, in float64, with biases that are not zero, as a trained one has."""
    network = drawn(lambda: GraphHypernetwork(EMBEDDING, HIDDEN, 3, OUTPUTS, **options), streams.generator("network"))
    for layer in network.encoder:
        nn.init.normal_(layer.bias, generator=streams.generator("biases"))
    return network.to(DEVICE, torch.float64)


def propagation(graph: Tensor, normalisation: str) -> Tensor:
    """Number by number: a_uv / sqrt(d_u d_v), or a_uv / d_u, of A + I."""
    m = len(graph)
    A = [[float(graph[u, v]) + (u == v) for v in range(m)] for u in range(m)]
    degree = [sum(row) for row in A]
    if normalisation == "mean":
        rows = [[A[u][v] / degree[u] for v in range(m)] for u in range(m)]
    else:
        rows = [[A[u][v] / math.sqrt(degree[u] * degree[v]) for v in range(m)] for u in range(m)]
    return torch.tensor(rows, dtype=torch.float64, device=DEVICE)


def encoded(network: GraphHypernetwork, h: Tensor, S: Tensor, skip: bool = False) -> Tensor:
    """The encoder's output z by the formula."""
    for at, layer in enumerate(network.encoder):
        z = S @ h @ layer.lin.weight.T + layer.bias
        z = z.clamp(min=0) if at < 2 else z
        h = h + z if skip and h.shape == z.shape else z
    return h


# ---- the MLP ----


def test_the_mlp_writes_weights_layer_by_layer() -> None:
    network, v = MLPHypernetwork(EMBEDDING, HIDDEN, 3, OUTPUTS).to(DEVICE, torch.float64), numbers(CLIENTS, EMBEDDING)
    linear = [layer for layer in network.trunk if isinstance(layer, nn.Linear)]
    assert len(linear) == 4
    z = v @ linear[0].weight.T + linear[0].bias
    for layer in linear[1:]:
        z = z.clamp(min=0) @ layer.weight.T + layer.bias
    theta, logits = network(v, None)
    assert logits is None
    torch.testing.assert_close(theta, z @ network.head.weight.T + network.head.bias)


def test_the_mlp_is_as_large_as_the_authors() -> None:
    """50 clients, their CNN with 121,182 weights: a head of 101 numbers a weight, and four layers before."""
    with torch.device("meta"):
        network = MLPHypernetwork(13, 100, 3, 121_182)
    assert Layout.of(network).size == 121_182 * 101 + (13 + 1) * 100 + 3 * 101 * 100


def test_heads_side_by_side_are_drawn_as_heads_apart() -> None:
    """torch draws from U(-1, 1) / sqrt(fan-in), weights and biases: the width of the layer does not enter."""
    network = drawn(lambda: MLPHypernetwork(3, 100, 0, 40_000), streams.generator("heads"))
    for started in (network.head.weight.detach(), network.head.bias.detach()):
        assert started.abs().max() <= 0.1 and abs(float(started.std()) - 0.1 / math.sqrt(3)) < 1e-3


# ---- the graph ----


@pytest.mark.parametrize("weighted", [False, True], ids=["edges", "weights"])
@pytest.mark.parametrize("skip", [False, True], ids=["plain", "skip"])
@pytest.mark.parametrize("normalisation", ["symmetric", "mean"])
def test_the_graph_network_is_its_formula(normalisation: str, skip: bool, weighted: bool) -> None:
    network = graph_network(normalisation=normalisation, skip=skip)
    h, graph = numbers(CLIENTS, EMBEDDING), related(weighted=weighted)
    z = encoded(network, h, propagation(graph, normalisation), skip)
    theta, logits = network(h, graph)
    assert logits is None
    first, _, second, _ = network.trunk
    inner = (z @ first.weight.T + first.bias).clamp(min=0)
    inner = (inner @ second.weight.T + second.bias).clamp(min=0)
    torch.testing.assert_close(theta, inner @ network.head.weight.T + network.head.bias)


def test_the_encoder_is_torch_geometrics_over_a_list_of_edges() -> None:
    from torch_geometric.nn import GCNConv

    network, h, graph = graph_network(), numbers(CLIENTS, EMBEDDING), related(weighted=True)
    edges = graph.nonzero().T
    z = h
    for at, layer in enumerate(network.encoder):
        sparse = GCNConv(layer.in_channels, layer.out_channels).to(DEVICE, torch.float64)
        sparse.lin.weight, sparse.bias = layer.lin.weight, layer.bias
        z = sparse(z, edges, graph[edges[0], edges[1]])
        z = z.relu() if at < 2 else z
    torch.testing.assert_close(network.encode(h, graph), z)


@pytest.mark.parametrize("normalisation", ["symmetric", "mean"])
def test_without_edges_it_is_an_mlp_of_six_layers(normalisation: str) -> None:
    """ReLU behind layers 1, 2, 4 and 5, none between encoder and M: each client's weights from its own embedding."""
    network, h = graph_network(normalisation=normalisation), numbers(CLIENTS, EMBEDDING)
    layers: list[nn.Module] = []
    for at, convolution in enumerate(network.encoder):
        linear = nn.Linear(convolution.in_channels, convolution.out_channels).to(DEVICE, torch.float64)
        linear.weight, linear.bias = convolution.lin.weight, convolution.bias
        layers += [linear, nn.ReLU()] if at < 2 else [linear]
    plain = nn.Sequential(*layers, network.trunk[0], nn.ReLU(), network.trunk[2], nn.ReLU(), network.head)
    torch.testing.assert_close(network(h, torch.zeros(CLIENTS, CLIENTS).to(h))[0], plain(h))


@pytest.mark.parametrize("normalisation", ["symmetric", "mean"])
def test_members_of_a_clique_of_their_own_get_the_same_weights(normalisation: str) -> None:
    network, h = graph_network(normalisation=normalisation), numbers(CLIENTS, EMBEDDING)
    cliques = torch.block_diag(*(torch.ones(n, n) - torch.eye(n) for n in (4, 3))).to(h)
    theta, _ = network(h, cliques)
    torch.testing.assert_close(theta[:4], theta[:1].expand(4, -1))
    torch.testing.assert_close(theta[4:], theta[4:5].expand(3, -1))
    assert (theta[0] - theta[4]).norm() > 1e-3


def test_a_client_hears_of_others_as_far_as_the_encoder_has_layers() -> None:
    """On a path, the first client's weights depend on the embeddings of the next three, and of no one behind."""
    network, h = graph_network(), numbers(CLIENTS, EMBEDDING)
    path = torch.diag(torch.ones(CLIENTS - 1), 1).to(h)
    (slope,) = torch.autograd.grad(network(h.requires_grad_(), path + path.T)[0][0].sum(), h)
    assert (slope[:4].norm(dim=1) > 0).all() and not slope[4:].any()


# ---- the generator ----


def by_loop(logits: Tensor, graph: Tensor, balanced: bool) -> float:
    """L_d pair by pair, from chances."""
    losses: dict[bool, list[float]] = {True: [], False: []}
    for u in range(len(graph)):
        for v in range(len(graph)):
            chance = 1 / (1 + math.exp(-float(logits[u, v])))
            edge = float(graph[u, v]) > 0
            if u != v:
                losses[edge].append(-math.log(chance if edge else 1 - chance))
    if balanced:
        return sum(sum(own) / len(own) / 2 for own in losses.values() if own)
    return sum(sum(own) for own in losses.values()) / sum(len(own) for own in losses.values())


@pytest.mark.parametrize("balanced", [False, True], ids=["exact", "balanced"])
@pytest.mark.parametrize("edges", ["edges", "weights", "none"])
def test_the_generators_loss_is_that_of_each_pair(edges: str, balanced: bool) -> None:
    logits = numbers(CLIENTS, CLIENTS, of="logits")
    graph = torch.zeros_like(logits) if edges == "none" else related(weighted=edges == "weights")
    found = generator_loss(logits, graph, balanced=balanced)
    assert math.isclose(float(found), by_loop(logits, graph, balanced), rel_tol=1e-12)


def test_one_client_has_no_pair_to_lose_on() -> None:
    assert float(generator_loss(torch.ones(1, 1), torch.zeros(1, 1))) == 0


@pytest.mark.parametrize(
    ("generator", "reached"),
    [("own", {"encoder", "generator"}), ("identity", {"encoder"}), ("shared", {"encoder", "trunk"})],
)
def test_the_generators_loss_reaches_the_encoder_and_what_makes_its_logits(generator: Any, reached: set[str]) -> None:
    """By default not M: equation (8) of the paper."""
    network = graph_network(generator=generator)
    _, logits = network(numbers(CLIENTS, EMBEDDING), related())
    generator_loss(logits, related()).backward()
    moved = {name.split(".")[0] for name, p in network.named_parameters() if p.grad is not None and p.grad.any()}
    assert moved == reached


@pytest.mark.parametrize("generator", ["own", "identity", "shared"])
def test_logits_are_inner_products(generator: Any) -> None:
    network, h, graph = graph_network(generator=generator), numbers(CLIENTS, EMBEDDING), related()
    z = network.encode(h, graph)
    seen = {"identity": z, "shared": network.trunk(z)}.get(generator)
    if seen is None:
        first, _, second = network.generator
        seen = (z @ first.weight.T + first.bias).clamp(min=0) @ second.weight.T + second.bias
    each = seen.detach().unbind()
    expected = torch.tensor([[float(a @ b) for b in each] for a in each], dtype=torch.float64, device=DEVICE)
    torch.testing.assert_close(network(h, graph)[1], expected)


def test_with_a_generator_all_else_starts_as_without() -> None:
    with_one, without = graph_network(generator="own"), graph_network()
    assert len(list(with_one.parameters())) == len(list(without.parameters())) + 4
    first, second = (network(numbers(CLIENTS, EMBEDDING), related())[0] for network in (with_one, without))
    assert same(first, second)


# ---- the start ----


def test_a_hypernetwork_is_drawn_from_its_own_stream_alone() -> None:
    def build() -> MLPHypernetwork:
        return MLPHypernetwork(EMBEDDING, HIDDEN, 1, OUTPUTS)

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = drawn(build, streams.generator("a"))
    assert torch.equal(torch.get_rng_state(), before), "nobody else's numbers change"
    torch.manual_seed(2)
    again, other = drawn(build, streams.generator("a")), drawn(build, streams.generator("b"))
    assert torch.equal(first.head.weight, again.head.weight) and not torch.equal(first.head.weight, other.head.weight)


def test_each_tensor_starts_as_wide_as_in_the_initial_model() -> None:
    """Also narrow beside wide ones; constant ones and single numbers start near what they were."""
    parts = {
        "wide": numbers(5, of="wide") * 3,
        "narrow": numbers(8, of="narrow") * 1e-3 + 2,
        "ones": torch.ones(4, dtype=torch.float64, device=DEVICE),
        "zeros": torch.zeros(3, dtype=torch.float64, device=DEVICE),
        "single": torch.tensor([7.5], dtype=torch.float64, device=DEVICE),
    }
    initial = torch.cat(list(parts.values()))
    head, inner = nn.Linear(HIDDEN, len(initial)).to(initial), numbers(CLIENTS, HIDDEN)
    offset = scale(head, head(inner), initial, [len(p) for p in parts.values()])
    written = (head(inner) + offset).detach().split([len(p) for p in parts.values()], dim=1)
    for (name, part), theta, own in zip(parts.items(), written, offset.split([5, 8, 4, 3, 1]), strict=True):
        if name in ("wide", "narrow"):
            assert math.isclose(float(theta.std(correction=0)), float(part.std(correction=0)), rel_tol=1e-9)
            assert not own.any()
        else:
            apart = theta - part
            assert math.isclose(float(apart.square().mean().sqrt()), SMALL, rel_tol=1e-9) and torch.equal(own, part)


def test_scaling_changes_the_width_and_not_the_direction() -> None:
    head, inner = nn.Linear(HIDDEN, 9).to(DEVICE, torch.float64), numbers(CLIENTS, HIDDEN)
    before = head(inner).detach()
    scale(head, before, numbers(9, of="initial"), [4, 5])
    ratio = head(inner).detach() / before
    torch.testing.assert_close(ratio[:, :4], ratio[:1, :1].expand(CLIENTS, 4))
    torch.testing.assert_close(ratio[:, 4:], ratio[:1, 4:5].expand(CLIENTS, 5))
