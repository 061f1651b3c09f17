"""Who is related to whom: relation graphs from distances, by lot and from attention; and as people have them.

What people have is read in `given_graphs`; its functions are offered here, too, so that this is the one place to look.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..base import streams
from .given_graphs import (
    ROUNDING,
    SUFFIXES,
    Given,
    GraphError,
    checked,
    from_edges,
    from_matrix,
    from_networkx,
    in_order,
    numbers,
    of,
    read,
)

__all__ = [
    "SUFFIXES",
    "Given",
    "GraphError",
    "checked",
    "complete",
    "empty",
    "from_collaboration",
    "from_coordinates",
    "from_distances",
    "from_edges",
    "from_matrix",
    "from_networkx",
    "in_order",
    "of",
    "of_groups",
    "permuted",
    "read",
]

EARTH = 6371.0088
"""The Earth's mean radius in kilometres."""


# ---- from places and distances ----


def from_distances(distances: Any, width: float | None = None, threshold: float = 0.1) -> Tensor:
    """exp(-(d / s)^2), 0 below the threshold and on the diagonal: a matrix of distances (m, m) as one of weights.

    Infinite: no way. `width` s is by default the deviation of all finite distances (Li et al., DCRNN, ICLR 2018).
    """
    d = numbers(distances).double()
    if d.ndim != 2 or d.shape[0] != d.shape[1]:
        raise GraphError(f"Distances are a matrix with a row and a column for each client, not {tuple(d.shape)}.")
    bad = (d.isnan() | (d < 0)).nonzero()
    if len(bad):
        i, j = bad[0].tolist()
        raise GraphError(f"The distance in row {i} and column {j} is {d[i, j]:g}; it should be 0 or more, or infinite.")
    finite = d[d.isfinite()]
    s = width if width is not None else float(finite.std(correction=0)) if len(finite) else 0.0
    if not s > 0 or math.isinf(s):
        said = "All distances are equal, so they say nothing of a width" if width is None else f"The width is {width:g}"
        raise GraphError(f"{said}; give one above 0.")
    weights = (-(d / s).square()).exp()
    return torch.where(weights < threshold, 0.0, weights).fill_diagonal_(0)


def from_coordinates(
    points: Any, kind: Literal["plane", "earth"] = "plane", width: float | None = None, threshold: float = 0.1
) -> Tensor:
    """The same from places (m, k): in a plane or space, or on the Earth as (latitude, longitude) in degrees; then
    distances are along its surface, and `width` is in kilometres."""
    x = numbers(points).double()
    if x.ndim != 2 or not torch.isfinite(x).all():
        raise GraphError("Coordinates are finite numbers, a row for each client.")
    if kind == "plane":
        return from_distances(torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist"), width, threshold)
    if kind != "earth":
        raise GraphError(f"kind = {kind!r} cannot be: it is 'plane' or 'earth'.")
    if x.shape[1] != 2 or bool((x.abs() > torch.tensor([90.0, 360.0])).any()):
        raise GraphError("On the Earth a place is (latitude, longitude) in degrees, the latitude from -90 to 90.")
    latitude, longitude = x.deg2rad().T
    half = (latitude[:, None] - latitude).div(2).sin().square()
    half = half + latitude.cos()[:, None] * latitude.cos() * (longitude[:, None] - longitude).div(2).sin().square()
    return from_distances(2 * EARTH * half.clamp(0, 1).sqrt().asin(), width, threshold)


# ---- by lot, and controls ----


def of_groups(groups: Iterable[int], names: Sequence[str], inside: float, across: float, seed: int) -> Tensor:
    """Edges by lot: with the chance `inside` within a group, `across` between groups.

    A pair's lot comes from the two names and the seed alone; so edges stay as they are whoever else takes part.
    """
    kin = torch.tensor([int(g) for g in groups])
    chance = torch.where(kin[:, None] == kin, inside, across)
    graph = torch.zeros(len(names), len(names))
    for i, a in enumerate(names):
        for j, b in enumerate(names[:i]):
            first, second = sorted((a, b))
            graph[i, j] = graph[j, i] = streams.chance(seed, first, 0, f"edge to {second}") < chance[i, j]
    return graph


def complete(m: int) -> Tensor:
    """Everyone is related to everyone."""
    return torch.ones(m, m).fill_diagonal_(0)


def empty(m: int) -> Tensor:
    """Nobody is related to anybody."""
    return torch.zeros(m, m)


def permuted(graph: Tensor, names: Sequence[str], seed: int) -> Tensor:
    """The same graph with its clients exchanged by lot: how much of a method is knowledge of the graph?

    With three clients or more at least two change places.
    """
    m = len(names)
    order = sorted(range(m), key=lambda i: names[i])
    source = streams.generator(seed, "permuted graph")
    lots = torch.randperm(m, generator=source).tolist()
    while m > 1 and lots == sorted(lots):
        lots = torch.randperm(m, generator=source).tolist()
    takes = [0] * m
    for place, lot in enumerate(lots):
        takes[order[place]] = order[lot]
    return graph[takes][:, takes]


# ---- from attention ----


ALONE = 0.1
"""Attention to others, in all, below which a client has no kin: with one of its kind it would be a half."""


def from_collaboration(xi: Tensor, top: int, known: int | None = None) -> Tensor:
    """Edges of weight 1 from xi (m, m), how much each client attends to each other.

    Among the known clients attention is made mutual, (xi + xi^T) / 2. Each keeps at most `top` others, those with most
    of it, and of these only whom it pays more than its average: who has three kin is not given six strangers. There is
    an edge if either keeps the other, so that nobody is left alone for being everyone's tenth.

    Newcomers, rows from `known` on, keep known clients by the same rule, and nobody known keeps them: who is related to
    whom among the known does not depend on who comes later. Equal attention is kept or left together: where it tells
    nobody apart, all are related. Who pays others next to nothing has no kin among them and no edges.
    """
    known = len(xi) if known is None else known
    alone = xi[:, :known].sum(1) - xi.diagonal() * (torch.arange(len(xi), device=xi.device) < known) < ALONE
    xi = torch.where(alone[:, None] | alone, 0.0, xi)
    graph = torch.zeros(xi.shape, dtype=torch.float32, device=xi.device)
    mutual = ((xi + xi.T) / 2)[:known, :known].clone().fill_diagonal_(0)
    graph[:known, :known] = _most(mutual, top, known - 1).float()
    graph[known:, :known] = _most(xi[known:, :known], top, known).float()
    return torch.maximum(graph, graph.T)


def _most(attention: Tensor, top: int, others: int) -> Tensor:
    """Which entries are positive, among the `top` largest of their row, and not below its average over the others."""
    if not len(attention) or not others:
        return attention > 0
    least = attention.topk(min(top, others)).values[:, -1:]
    average = attention.sum(1, keepdim=True) / others
    return (attention > 0) & (attention >= least) & (attention >= (1 - ROUNDING) * average)
