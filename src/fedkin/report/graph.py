"""Who is related to whom: the relation graph of a comparison, drawn, and in words.

A graph too large to be drawn is shown as a matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ..evidence import comparison
from ..evidence.comparison import Run
from ..evidence.findings import Findings
from . import figures
from .words import GREY, NAMED_UP_TO, PALETTE, metric_name, plural, score_text

MOST_CLIENTS, MOST_EDGES = 150, 3000
"""More than that is a ball of wool."""
ACROSS = 20
"""Clients without neighbours in a row."""


@dataclass(frozen=True)
class Relations:
    """The graph of a run. weights: (m, m) symmetric, zero diagonal; newcomers last, beyond `known`.

    kinds: for each client what its colour stands for, such as its group; empty where there is nothing to tell apart.
    """

    run: Run
    weights: NDArray[np.float64]
    names: list[str]
    known: int
    kinds: list[str]

    @property
    def edges(self) -> NDArray[np.int64]:
        """(edges, 2), each once."""
        return np.argwhere(np.triu(self.weights, 1) > 0)

    @property
    def degrees(self) -> NDArray[np.int64]:
        """(m,): how many neighbours a client has."""
        return np.asarray(np.count_nonzero(self.weights, axis=1))

    @property
    def crowded(self) -> bool:
        return len(self.names) > MOST_CLIENTS or len(self.edges) > MOST_EDGES


def relations(findings: Findings) -> Relations | None:
    """The graph of the best method that has one, of its first seed; None where none has."""
    ranked = [run for row in findings.headlines for run in findings.members[row.method]]
    return next((found for found in map(_of, ranked) if found is not None), None)


def _of(run: Run) -> Relations | None:
    weights = run.graph
    if weights is None:
        return None
    known = len(run.summary.clients)
    names = [*run.summary.clients, *(run.summary.novel.clients if run.summary.novel else ())]
    m = len(names)
    if weights.shape != (m, m):
        raise ValueError(f"The graph in {run.path} has shape {weights.shape}, but the run has {m} clients.")
    return Relations(run, np.asarray(weights, dtype=np.float64), names, known, _kinds(run, names, known))


def _kinds(run: Run, names: Sequence[str], known: int) -> list[str]:
    """Attacked or not, where somebody was; else the known group."""
    sides, groups = comparison.sides([run]), run.summary.groups
    if sides:
        found = [sides[name in run.summary.corrupted] for name in names[:known]]
    elif groups and 1 < len(set(groups)) < known:
        found = [f"group {group}" for group in groups]
    else:
        found = ["known"] * known if known < len(names) else []
    return found + ["newcomer"] * (len(names) - known) if found else []


def words(found: Relations, runs: Sequence[Run]) -> str:
    """Edges, neighbours, those who have none, and how many edges stay within the known groups."""
    m, edges, degrees = len(found.names), found.edges, found.degrees
    counted = f"{len(edges):,} {'edge' if len(edges) == 1 else 'edges'}"
    text = f"{counted} among {plural(m, 'client')}, {degrees.mean():.1f} neighbours each on average"
    alone = [name for name, degree in zip(found.names, degrees, strict=True) if not degree]
    listed = f"{', '.join(alone[:6])}{', …' if len(alone) > 6 else ''}"
    text += f"; {plural(len(alone), 'client')} without any ({listed})." if alone else "; nobody is without one."
    groups = found.run.summary.groups
    if groups and len(set(groups)) > 1 and len(edges):
        label = np.array(groups)
        inside = edges[(edges < found.known).all(axis=1)]
        same = np.equal.outer(label, label)[np.triu_indices(found.known, 1)]
        if len(inside):
            share = float((label[inside[:, 0]] == label[inside[:, 1]]).mean())
            text += f" Within the known groups lie {share:.0%} of the edges (of all pairs: {same.mean():.0%})."
    text += f" Shown is the graph of {found.run.summary.method}, seed {found.run.summary.seed}"
    return f"{text}; others of these runs have another one." if _differ(runs) else f"{text}."


def _differ(runs: Sequence[Run]) -> bool:
    """Whether the same clients are related otherwise in another run; who is a newcomer does not matter."""
    seen = set()
    for found in filter(None, map(_of, runs)):
        order = np.argsort(found.names)
        seen.add((tuple(sorted(found.names)), found.weights[np.ix_(order, order)].tobytes()))
    return len(seen) > 1


def picture(found: Relations, findings: Findings) -> go.Figure:
    """The graph drawn where it is small enough, else as a matrix."""
    return _matrix(found) if found.crowded else _drawn(found, findings)


def _drawn(found: Relations, findings: Findings) -> go.Figure:
    at, edges = _layout(found), found.edges
    figure = go.Figure()
    ends = np.full((len(edges), 3, 2), np.nan)  # a gap after each edge
    ends[:, :2] = at[edges]
    figure.add_scatter(
        x=ends[..., 0].ravel(),
        y=ends[..., 1].ravel(),
        mode="lines",
        line={"color": figures.faded(GREY, 0.45 if len(edges) < 600 else 0.25), "width": 1},
        hoverinfo="skip",
        showlegend=False,
    )
    told, short = _told(found, findings), max(map(len, found.names)) <= 3
    named = short or len(found.names) <= NAMED_UP_TO
    kinds = found.kinds or [""] * len(found.names)
    for kind, colour in _palette(kinds).items():
        own = [i for i, each in enumerate(kinds) if each == kind]
        figure.add_scatter(
            x=at[own, 0],
            y=at[own, 1],
            mode="markers+text" if named else "markers",
            name=kind,
            text=[figures.plain(found.names[i]) for i in own],
            textposition="middle center" if short else "top center",
            textfont={"size": 10, "color": "#ffffff" if short else figures.INK},
            customdata=[told[i] for i in own],
            hovertemplate="%{customdata}<extra></extra>",
            marker={"color": colour, "size": 22 if short else 13, "line": {"color": "#ffffff", "width": 1.5}},
            showlegend=bool(found.kinds),
        )
    hidden = {"visible": False}
    figure.update_layout(
        figures.layout(560),
        xaxis=hidden,
        yaxis=hidden | {"scaleanchor": "x"},
        legend=figures.legend(),
        hovermode="closest",
    )
    return figure


def _layout(found: Relations) -> NDArray[np.float64]:
    """(m, 2): springs among those who have neighbours, the same in every report; the others in rows below."""
    at, linked = np.zeros((len(found.names), 2)), np.flatnonzero(found.degrees)
    if len(linked):
        graph = nx.from_numpy_array((found.weights / found.weights.max())[np.ix_(linked, linked)])
        # Springs alone often end in a tangle; distances within the graph are a good place to start from.
        begin = nx.kamada_kawai_layout(graph, weight=None)
        springs = nx.spring_layout(graph, pos=begin, iterations=20, seed=0)
        at[linked] = _lying([springs[i] for i in range(len(linked))])
    alone = np.flatnonzero(found.degrees == 0)
    row, column = np.divmod(np.arange(len(alone)), ACROSS)
    at[alone] = np.stack([(column + 0.5) * 2 / ACROSS - 1, at[:, 1].min() - 0.2 * (row + 1)], axis=1)
    return at


def _lying(points: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """(n, 2) turned so that the longer side lies across the page."""
    centred = np.array(points) - np.mean(points, axis=0)
    axes = np.linalg.svd(centred, full_matrices=False)[2]
    return np.asarray(centred @ (axes * np.sign(axes[:, :1])).T)


def _told(found: Relations, findings: Findings) -> list[str]:
    """For each client its name, its neighbours, and its score under the best headline model of that seed."""
    seed, metric = found.run.summary.seed, found.run.summary.metric
    row = next(row for row in findings.headlines if seed in row.seeds)
    scores = next(each.at_chosen for each in findings.seeds(row) if each.seed == seed)
    told = []
    for i, (name, degree) in enumerate(zip(found.names, found.degrees, strict=True)):
        kind = f", {found.kinds[i]}" if found.kinds else ""
        text = f"<b>{figures.plain(name)}</b>{kind}<br>{plural(int(degree), 'neighbour')}"
        if name in scores:
            score = f"{metric_name(metric)} {score_text(scores[name], metric)}"
            text += f"<br>{figures.plain(f'{score} with {row.name}')}"
        told.append(text)
    return told


def _palette(kinds: Sequence[str]) -> dict[str, str]:
    fixed = {"": PALETTE[0], "known": PALETTE[0], "newcomer": GREY, "attacked": PALETTE[1], "hit": PALETTE[1]}
    fixed |= {"benign": PALETTE[0], "clean": PALETTE[0]}
    names = sorted(set(kinds), key=lambda kind: (kind == "newcomer", len(kind), kind))
    return {name: fixed.get(name, PALETTE[i % len(PALETTE)]) for i, name in enumerate(names)}


def _matrix(found: Relations) -> go.Figure:
    groups = found.run.summary.groups
    order = [*comparison.client_order(found.names[: found.known], groups), *range(found.known, len(found.names))]
    names = [figures.plain(found.names[i]) for i in order]
    figure = go.Figure()
    figure.add_heatmap(
        z=found.weights[np.ix_(order, order)],
        x=names,
        y=names,
        colorscale=figures.WEIGHTS,
        zmin=0,
        colorbar={"title": {"text": "weight"}, "thickness": 12, "outlinewidth": 0, "len": 0.8},
        hovertemplate="%{y} – %{x}: %{z:.3f}<extra></extra>",
    )
    axis: dict[str, Any] = {"type": "category", "showgrid": False, "showticklabels": False, "constrain": "domain"}
    axis |= {"showline": True, "mirror": True, "linecolor": figures.GRID, "ticks": ""}
    figure.update_layout(figures.layout(680), xaxis=axis, yaxis=axis | {"autorange": "reversed", "scaleanchor": "x"})
    return figure
