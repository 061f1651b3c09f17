"""Figures for print (matplotlib): the same pictures as in the page, legible at the width of a column.

Figures are built without pyplot and under a local style, so nothing of the caller's matplotlib changes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..evidence import comparison
from ..evidence.comparison import Row, Run
from ..evidence.findings import Findings
from ..evidence.verdicts import Joining
from .words import (
    ANSWERS,
    BOX_FROM,
    NAMED_UP_TO,
    checked_xi,
    colours,
    is_share,
    metric_name,
    xi_groups,
)
from .writing import whole

try:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter, StrMethodFormatter
except ImportError as error:
    raise ImportError("Figures for print need matplotlib, which is not installed: pip install matplotlib.") from error

MARKERS = "osD^X*"
COLUMN = 3.4  # inches, the width of a column in the usual two-column styles
STYLE: dict[Any, Any] = {  # Any: newer matplotlib types the keys, older ones do not
    "font.size": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#444444",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.color": "#e3e6ea",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "text.parse_math": False,  # a client may be called $x$
    "pdf.fonttype": 42,  # embedded as TrueType, which journals ask for
    "savefig.dpi": 300,
}


def write_figures(found: Findings, folder: Path, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Write curves, distribution, the gains of joining (beside `separate`) and, for each method that has one, xi of its
    chosen round; return the paths."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        figures = {"curves": curves(found), "distribution": distribution(found)}
        if found.joined is not None:
            figures["joining"] = joining(found.joined)
        for method, members in found.members.items():
            drawn = collaboration(members[0])
            if drawn is not None:
                figures[_unused(f"collaboration-{file_name(method)}", figures)] = drawn
        return [save(figure, folder / f"{name}.{kind}") for name, figure in figures.items() for kind in formats]


def curves(found: Findings) -> Figure:
    """Mean over clients by round with the range of the seeds as a band."""
    figure, axes = _blank(COLUMN, 2.35)
    members, colour, shown = found.members, colours(found), _shown(found)
    values = []
    for place, row in reversed(list(enumerate(shown))):  # the best is drawn last, on top
        line = found.curve(row)
        values += [line.low, line.high]
        style: dict[str, Any] = {"color": colour[row.method], "linestyle": "-" if row.headline else "--"}
        step = max(1, len(line.rounds) // 8)
        # Each method marks other rounds, so that one line under another still shows.
        style |= {
            "marker": MARKERS[sorted(members).index(row.method) % len(MARKERS)],
            "markevery": (place % step, step),
            "markersize": 3,
        }
        axes.plot(line.rounds, line.mean, linewidth=1.3, **style)
        if len(row.seeds) > 1:
            axes.fill_between(line.rounds, line.low, line.high, color=colour[row.method], alpha=0.15, linewidth=0)
    every = np.concatenate(values)
    if not found.higher_is_better and every.min() > 0 and every.max() > 20 * every.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif is_share(found.metric):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set(xlabel="round", ylabel=f"mean test {metric_name(found.metric)}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y")
    handles = list(reversed(axes.get_lines()))
    axes.legend(handles, [_label(row, shown) for row in shown], loc="best", handlelength=1.6, labelspacing=0.25)
    return figure


def distribution(found: Findings) -> Figure:
    """Each client's score in the chosen round, mean over seeds: a strip, and a box where there are enough clients."""
    shown, colour = _shown(found), colours(found)
    figure, axes = _blank(COLUMN, 0.75 + 0.27 * len(shown))
    spread = np.random.default_rng(0)
    for place, row in enumerate(shown):
        values = np.array(list(found.clients(row).values()))
        paint = colour[row.method]
        if len(values) >= BOX_FROM:
            low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
            inside = values[(values >= low - 1.5 * (high - low)) & (values <= high + 1.5 * (high - low))]
            axes.hlines([place, place], [inside.min(), high], [low, inside.max()], color=paint, linewidth=0.9)
            axes.barh(place, high - low, 0.6, low, facecolor="none", edgecolor=paint, linewidth=0.9)
            axes.vlines(median, place - 0.3, place + 0.3, color=paint, linewidth=1.6)
        height = place + spread.uniform(-0.16, 0.16, len(values))
        axes.scatter(values, height, s=6, color=paint, alpha=0.55, linewidths=0)
    axes.set_yticks(range(len(shown)), [_label(row, shown) for row in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    if is_share(found.metric):
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel(f"test {metric_name(found.metric)} of a client")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    return figure


def joining(found: Joining) -> Figure:
    """Each silo's gain over training alone with its 95 % interval, the largest on top; filled where it is clear."""
    silos = sorted((s for s in found.silos if not np.isnan(s.gain.value)), key=lambda silo: silo.gain.value)
    figure, axes = _blank(COLUMN, 0.75 + (0.19 if len(silos) <= NAMED_UP_TO else 0.08) * len(silos))
    factor = 100 if is_share(found.metric) else 1
    for place, silo in enumerate(silos):
        value, low, high = (factor * number for number in silo.gain)
        paint = ANSWERS[silo.answer]
        if not np.isnan(low):
            axes.hlines(place, low, high, color=paint, linewidth=1.2)
        face = "white" if silo.answer == "cannot tell" else paint
        axes.plot(value, place, "o", markersize=4, color=paint, markerfacecolor=face, markeredgewidth=1)
    axes.axvline(0, color="#444444", linewidth=0.8)
    axes.set_yticks(
        range(len(silos)), [silo.client for silo in silos] if len(silos) <= NAMED_UP_TO else [""] * len(silos)
    )
    axes.set_ylim(-0.7, len(silos) - 0.3)
    unit = " in points" if factor == 100 else ""
    axes.set_xlabel(f"gain in test {metric_name(found.metric)} over training alone{unit}")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    return figure


def collaboration(run: Run) -> Figure | None:
    """xi of the chosen round, clients in order of group, then name; None where the method has no xi."""
    found = run.collaboration(None)
    if found is None:
        return None
    xi = checked_xi(run, found)
    groups, known = xi_groups(run, xi)
    order = comparison.client_order(run.summary.clients, groups)
    figure, axes = _blank(COLUMN, 2.9)
    largest = float((xi - np.diag(np.diag(xi))).max()) or 1.0
    image = axes.imshow(xi[np.ix_(order, order)], cmap="Blues", vmin=0, vmax=largest, interpolation="nearest")
    for at in np.flatnonzero(np.diff(groups[order])) + 0.5 if known or len(set(groups.tolist())) < len(order) else []:
        for draw in (axes.axhline, axes.axvline):
            draw(at, color="#D55E00", linewidth=0.7, linestyle="-" if known else ":")
    if len(order) <= NAMED_UP_TO:
        names = [run.summary.clients[i] for i in order]
        size = 6 if len(order) <= 20 else 4.5
        axes.set_xticks(range(len(order)), names, rotation=90, fontsize=size)
        axes.set_yticks(range(len(order)), names, fontsize=size)
    else:
        axes.set(xticks=[], yticks=[])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="gives", ylabel="takes", title="")
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=28, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2)
    bar.set_label(f"weight in round {_nearest(run)}")
    return figure


def _nearest(run: Run) -> int:
    taken = comparison.round_taken(run)
    return min(run.recorded, key=lambda k: abs(k - taken), default=taken)


def _shown(found: Findings) -> list[Row]:
    """All models of a single method; beside others, headlines only."""
    return found.rows if len(found.members) == 1 else found.headlines


def _label(row: Row, shown: Sequence[Row]) -> str:
    return row.name if sum(other.method == row.method for other in shown) > 1 else row.method


def _blank(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def save(figure: Figure, path: Path) -> Path:
    """Writes a figure and returns its path; one that was there before stays if that fails."""
    # Without the date the same runs give the same file.
    metadata = {"CreationDate": None} if path.suffix == ".pdf" else None
    with whole(path) as new:
        figure.savefig(new, format=path.suffix.removeprefix("."), metadata=metadata)
    return path


def file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", text).strip("-.") or "method"


def _unused(name: str, taken: dict[str, Figure]) -> str:
    number = 2
    wanted = name
    while name in taken:
        name, number = f"{wanted}-{number}", number + 1
    return name
