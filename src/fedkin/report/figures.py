"""Interactive figures (plotly): accuracy over rounds, distribution over clients, the collaboration matrix.

Plotly reads a subset of HTML in every text, so whatever comes from a run goes through `plain`.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..evidence import comparison
from ..evidence.comparison import Row, Run
from ..evidence.estimates import Estimate
from ..evidence.findings import Findings
from ..evidence.verdicts import Joining
from ..maths import statistics
from .verdicts import verdict_text
from .words import (
    ANSWERS,
    BOX_FROM,
    GREY,
    NAMED_UP_TO,
    PALETTE,
    colours,
    estimate_text,
    gain_text,
    is_share,
    metric_name,
    recorded_xi,
    score_text,
    xi_groups,
)

try:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots
except ImportError as error:
    raise ImportError("Reports need plotly, and it is not installed here: pip install plotly.") from error

INK, GRID, FONT = "#1f2933", "#e6e9ee", "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
WEIGHTS = [[0.0, "#ffffff"], [0.15, "#deebf7"], [0.4, "#9ecae1"], [0.7, "#3182bd"], [1.0, "#08306b"]]
SMALL = "<span style='font-size:13px'>"
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
# Rows of the picture of silos; beyond that the table says it.
MOST_SILOS = 100
# A page with more matrix entries than this becomes slow to open; rounds are thinned to stay below.
MOST_ENTRIES = 1_200_000
MOST_ROUNDS = 25


def curves(found: Findings) -> go.Figure:
    """Mean over clients by round, a line for each `method:model` with the range of the seeds as a band.

    Headline models are solid; others are dashed and, beside other methods, hidden until asked for in the legend.
    """
    figure = go.Figure()
    members, colour = found.members, colours(found)
    lowest, highest = np.inf, -np.inf
    for row in found.rows:
        line = found.curve(row)
        if not len(line.rounds):
            continue
        lowest, highest = min(lowest, float(line.low.min())), max(highest, float(line.high.max()))
        common = {"legendgroup": row.name, "visible": _visible(row, members)}
        if len(row.seeds) > 1:
            figure.add_scatter(
                x=np.concatenate([line.rounds, line.rounds[::-1]]),
                y=np.concatenate([line.high, line.low[::-1]]),
                mode="lines",
                fill="toself",
                fillcolor=faded(colour[row.method], 0.15),
                line={"width": 0},
                hoverinfo="skip",
                showlegend=False,
                **common,
            )
        figure.add_scatter(
            x=line.rounds,
            y=line.mean,
            name=plain(row.name),
            mode="lines+markers",
            line={"color": colour[row.method], "width": 2.5, "dash": "solid" if row.headline else "dash"},
            marker={"symbol": _symbol(row, members), "size": 8, "maxdisplayed": 12},
            **common,
        )
    scale = score_axis(found, f"mean test {metric_name(found.metric)}")
    if not found.higher_is_better and lowest > 0 and highest > 20 * lowest:
        scale |= {"type": "log", "dtick": "D2", "tickformat": ".4~g"}
    figure.update_layout(layout(440), hovermode="x unified", legend=legend(), xaxis=axis("round"), yaxis=scale)
    return figure


def distribution(found: Findings) -> go.Figure:
    """Each client's score in the chosen round, mean over seeds: a strip a `method:model`; hover names clients."""
    figure = go.Figure()
    members, colour, metric, table = found.members, colours(found), found.metric, found.rows
    for row in reversed(table):  # the first category of a vertical axis is at the bottom
        values = found.clients(row)
        boxed = len(values) >= BOX_FROM
        figure.add_box(
            x=list(values.values()),
            y=[plain(row.name)] * len(values),
            name=plain(row.name),
            orientation="h",
            boxpoints="all",
            jitter=0.55 if boxed else 0.25,
            pointpos=0,
            boxmean=boxed,
            width=0.62,
            line={"color": colour[row.method] if boxed else "rgba(0,0,0,0)", "width": 1.5},
            fillcolor=faded(colour[row.method], 0.14 if boxed else 0.0),
            marker={"color": faded(colour[row.method], 0.75), "size": 6, "symbol": _symbol(row, members)},
            text=[f"{plain(name)}: {score_text(value, metric)}" for name, value in values.items()],
            hovertemplate="%{text}<extra></extra>",
            hoveron="points",
            visible=_visible(row, members),
        )
    shown = sum(_visible(row, members) is True for row in table)
    figure.update_layout(
        layout(150 + 58 * shown),
        xaxis=score_axis(found, f"test {metric_name(metric)} of a client"),
        yaxis={"automargin": True, "showgrid": False, "ticksuffix": "  ", "type": "category"},
        legend=legend() | {"traceorder": "reversed"},
        showlegend=shown < len(table),
    )
    return figure


def joining(found: Joining) -> go.Figure:
    """For each silo, the largest gain on top: alone and personal with their intervals, joined by a line; beside it the
    gain with its own interval, in the colour of the answer."""
    silos = sorted(found.silos, key=lambda silo: (not np.isnan(silo.gain.value), silo.gain.value))
    names, metric, points = [plain(silo.client) for silo in silos], found.metric, is_share(found.metric)
    figure = make_subplots(cols=2, shared_yaxes=True, horizontal_spacing=0.04, column_widths=[0.58, 0.42])
    lines_x: list[float | None] = []
    lines_y: list[float | None] = []
    for i, silo in enumerate(silos):
        lines_x += [silo.alone.value, silo.personal.value, None]
        lines_y += [i + 0.14, i - 0.14, None]
    tie = {"color": "#b9c2cc", "width": 1.5}
    figure.add_scatter(x=lines_x, y=lines_y, mode="lines", line=tie, hoverinfo="skip", showlegend=False)
    sides = [("alone", 0.14, GREY, "circle-open", [silo.alone for silo in silos])]
    if any(silo.common for silo in silos):
        shared = [silo.common or Estimate(np.nan) for silo in silos]
        sides.append(("one global model", 0.0, "#B58900", "diamond-open", shared))
    sides.append((f"with {plain(found.method)}", -0.14, PALETTE[0], "circle", [silo.personal for silo in silos]))
    for name, shift, colour, symbol, scores in sides:
        whiskers = None if symbol == "diamond-open" else _whiskers(scores, colour)
        figure.add_scatter(
            x=[score.value for score in scores],
            y=[i + shift for i in range(len(silos))],
            error_x=whiskers,
            mode="markers",
            name=name,
            marker={
                "color": colour,
                "symbol": symbol,
                "size": 7 if whiskers is None else 9,
                "line": {"width": 2, "color": colour},
            },
            text=[f"{silo}, {name}: {estimate_text(score, metric)}" for silo, score in zip(names, scores, strict=True)],
            hovertemplate="%{text}<extra></extra>",
        )
    factor = 100 if points else 1
    for answer, colour in ANSWERS.items():
        chosen = [i for i, silo in enumerate(silos) if silo.answer == answer and not np.isnan(silo.gain.value)]
        gains = [Estimate(*(factor * number for number in silos[i].gain)) for i in chosen]
        figure.add_scatter(
            x=[each.value for each in gains],
            y=chosen,
            error_x=_whiskers(gains, colour),
            mode="markers",
            marker={"color": colour, "size": 9, "symbol": "square"},
            text=[
                f"{names[i]}: {gain_text(silos[i].gain, metric)}<br>{verdict_text(silos[i], metric)}" for i in chosen
            ],
            hovertemplate="%{text}<extra></extra>",
            showlegend=False,
            row=1,
            col=2,
        )
    better = "higher is better" if found.higher_is_better else "lower is better"
    scale = {"tickformat": ".0%"} if points else {}
    rows = {"tickvals": list(range(len(silos))), "ticktext": names, "range": [-0.6, len(silos) - 0.4]}
    rows |= {"showgrid": False, "zeroline": False, "automargin": True, "ticks": "", "ticksuffix": "  "}
    unit = " in points" if points else ""
    figure.update_layout(
        layout(max(170, 110 + (34 if len(silos) <= 30 else 20) * len(silos))),
        legend=legend(),
        xaxis=axis(plain(f"test {metric_name(metric)} ({better})")) | scale,
        xaxis2=axis(f"gain over training alone{unit}") | {"zeroline": True, "zerolinecolor": INK, "zerolinewidth": 1.5},
        yaxis=rows,
        yaxis2=rows | {"showticklabels": False},
        shapes=_stripes(len(silos)),
    )
    return figure


def _whiskers(scores: Sequence[Estimate], colour: str) -> dict[str, Any]:
    known = [score if not np.isnan(score.low) else Estimate(score.value, score.value, score.value) for score in scores]
    bars = {"array": [s.high - s.value for s in known], "arrayminus": [s.value - s.low for s in known]}
    return bars | {"type": "data", "symmetric": False, "color": colour, "thickness": 1.6, "width": 0}


def _stripes(count: int) -> list[dict[str, Any]]:
    """A pale band behind every other row, across both panels."""
    band = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "layer": "below", "fillcolor": "#f6f8fa"}
    return [band | {"y0": i - 0.5, "y1": i + 0.5, "line": {"width": 0}} for i in range(0, count, 2)]


def collaboration(run: Run, limit: int = MOST_ROUNDS) -> go.Figure | None:
    """xi as a heat map with a slider over at most about `limit` recorded rounds; None where the method has no xi.

    Clients are in order of group, then name. Lines mark the known groups; where none are known, dotted ones mark
    those read off xi in the round that scores stand on, which is the one shown first.
    """
    matrices = recorded_xi(run, max(2, min(limit, MOST_ENTRIES // len(run.summary.clients) ** 2)))
    if not matrices:
        return None
    shown = min(matrices, key=lambda k: abs(k - comparison.round_taken(run)))
    groups, known = xi_groups(run, matrices[shown])
    order = comparison.client_order(run.summary.clients, groups)
    names = [plain(run.summary.clients[i]) for i in order]
    largest = max(float((xi - np.diag(np.diag(xi))).max()) for xi in matrices.values())
    figure = go.Figure()
    steps = []
    for i, (k, xi) in enumerate(matrices.items()):
        figure.add_heatmap(
            z=xi[np.ix_(order, order)],
            x=names,
            y=names,
            visible=k == shown,
            zmin=0,
            zmax=largest or 1.0,
            colorscale=WEIGHTS,
            colorbar={"title": {"text": "weight"}, "thickness": 12, "outlinewidth": 0, "len": 0.8},
            hovertemplate="%{y} takes %{z:.3f}<br>of its model from %{x}<extra></extra>",
            xgap=1 if len(order) <= NAMED_UP_TO else 0,
            ygap=1 if len(order) <= NAMED_UP_TO else 0,
        )
        visible = [j == i for j in range(len(matrices))]
        title = {"title.text": _share(k, xi, groups if known else None)}
        steps.append({"method": "update", "label": str(k), "args": [{"visible": visible}, title]})
    figure.update_yaxes(scaleanchor="x")
    named = len(order) <= NAMED_UP_TO
    axis = {"type": "category", "showgrid": False, "zeroline": False, "showticklabels": named, "automargin": True}
    axis |= {"tickfont": {"size": 11 if len(order) <= 20 else 9}, "ticks": "", "dtick": 1, "constrain": "domain"}
    axis |= {"showline": True, "mirror": True, "linecolor": GRID}
    figure.update_layout(
        layout(680),
        title={"text": _share(shown, matrices[shown], groups if known else None), "font": {"size": 15}, "x": 0.5},
        shapes=_group_lines(groups[order], known),
        xaxis=axis
        | {"title": {"text": "the client that gives", "standoff": 12, "font": {"size": 13}}, "tickangle": -60},
        yaxis=axis
        | {"title": {"text": "the client that takes", "standoff": 12, "font": {"size": 13}}, "autorange": "reversed"},
        margin={"l": 10, "r": 10, "t": 64, "b": 10},
    )
    if len(steps) > 1:
        slider = {"active": list(matrices).index(shown), "steps": steps, "currentvalue": {"prefix": "Round "}}
        slider |= {"pad": {"t": 70 if not named else 110}, "len": 0.92, "x": 0.04, "tickcolor": GRID}
        figure.update_layout(sliders=[slider])
    return figure


def _share(k: int, xi: NDArray[np.float32], groups: NDArray[np.int64] | None) -> str:
    share = None if groups is None else statistics.within_group_share(xi, groups.tolist())
    words = "" if share is None else f"<br>{SMALL}{share:.0%} of the weight on others stays within the group</span>"
    return f"Round {k}{words}"


def _group_lines(ordered: NDArray[np.int64], known: bool) -> list[dict[str, Any]]:
    """A line between neighbours of different groups, across and down; ordered: (m,) labels."""
    style = {"color": "#D55E00", "width": 1.5, "dash": "solid" if known else "dot"}
    shapes: list[dict[str, Any]] = []
    ends = [-0.5, len(ordered) - 0.5]
    if not known and len(set(ordered.tolist())) == len(ordered):
        return shapes
    for i in np.flatnonzero(np.diff(ordered)) + 0.5:
        at = float(i)
        shapes.append({"type": "line", "x0": at, "x1": at, "y0": ends[0], "y1": ends[1], "line": style})
        shapes.append({"type": "line", "y0": at, "y1": at, "x0": ends[0], "x1": ends[1], "line": style})
    return shapes


def _visible(row: Row, members: dict[str, list[Run]]) -> bool | str:
    return True if row.headline or len(members) == 1 else "legendonly"


def _symbol(row: Row, members: dict[str, list[Run]]) -> str:
    return SYMBOLS[sorted(members).index(row.method) % len(SYMBOLS)]


def score_axis(found: Findings, what: str) -> dict[str, Any]:
    better = "higher is better" if found.higher_is_better else "lower is better"
    scale = axis(plain(f"{what} ({better})"))
    if is_share(found.metric):
        return scale | {"tickformat": ".0%", "hoverformat": ".1%"}
    # Left to itself plotly writes 0.0005 as 500μ.
    return scale | {"exponentformat": "none", "hoverformat": ".4g"}


def axis(title: str) -> dict[str, Any]:
    return {"title": {"text": title, "font": {"size": 13}}, "gridcolor": GRID, "zeroline": False, "automargin": True}


def legend() -> dict[str, Any]:
    return {"orientation": "h", "x": 0, "y": 1.03, "yanchor": "bottom", "itemwidth": 36}


def layout(height: int) -> dict[str, Any]:
    return {
        "template": "none",
        "height": height,
        "font": {"family": FONT, "size": 13, "color": INK},
        "margin": {"l": 10, "r": 16, "t": 16, "b": 10},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "hoverlabel": {"bgcolor": "#ffffff", "font": {"family": FONT, "size": 12.5}, "namelength": -1},
    }


def faded(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def plain(text: str) -> str:
    return html.escape(text, quote=False)
