"""The page about a grid: validation scores over its settings, and every point in a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..evidence.grid import Trial, Tuned
from ..evidence.records import Summary
from ..runs import options
from . import figures, html
from .html import escaped
from .words import is_share, metric_name, plural, score_text


def write_page(tuned: Tuned, path: Path, notes: Sequence[str] = ()) -> Path:
    """Write the page, self-contained as any other report."""
    summary = tuned.best.run.summary
    told = [f"data: {summary.data}", f"split: {summary.split}", plural(len(tuned.trials), "point")]
    grid = html.section("Over the grid", _words(tuned), _figure(tuned))
    title = f"{summary.method} tuned on {summary.data} ({summary.split})"
    return html.write(path, title, told, [_choice(tuned, notes), grid, _points(tuned)])


def landscape(tuned: Tuned) -> go.Figure:
    """Validation score over the grid: a heat map of two settings; of one, or of more than two, a panel for each, in
    which a value has the best score that was reached with it."""
    return _heat_map(tuned) if len(tuned.grid) == 2 else _panels(tuned)


def _heat_map(tuned: Tuned) -> go.Figure:
    (down, rows), (across, columns) = tuned.grid.items()
    metric = tuned.best.run.summary.metric
    scores = np.array([_number(trial) for trial in tuned.trials]).reshape(len(rows), len(columns))
    figure = go.Figure()
    figure.add_heatmap(
        z=scores,
        x=[figures.plain(options.word(v)) for v in columns],
        y=[figures.plain(options.word(v)) for v in rows],
        text=[[score_text(score, metric) for score in row] for row in scores],
        texttemplate="%{text}",
        colorscale=figures.WEIGHTS,
        reversescale=not tuned.best.run.summary.higher_is_better,
        xgap=2,
        ygap=2,
        colorbar={"thickness": 12, "outlinewidth": 0, **({"tickformat": ".0%"} if is_share(metric) else {})},
        hovertemplate=f"{figures.plain(down)} %{{y}}<br>{figures.plain(across)} %{{x}}<br>%{{text}}<extra></extra>",
    )
    axis = {"type": "category", "showgrid": False, "title_standoff": 14}
    figure.update_layout(
        figures.layout(150 + 52 * len(rows)),
        xaxis=figures.axis(figures.plain(across)) | axis,
        yaxis=figures.axis(figures.plain(down)) | axis | {"autorange": "reversed"},
    )
    return figure


def _panels(tuned: Tuned) -> go.Figure:
    grid, summary = tuned.grid, tuned.best.run.summary
    pick = np.nanmax if summary.higher_is_better else np.nanmin
    figure = make_subplots(rows=1, cols=len(grid), shared_yaxes=True, horizontal_spacing=0.04)
    for i, (name, values) in enumerate(grid.items(), 1):
        reached = [[_number(t) for t in tuned.trials if t.values[name] == value] for value in values]
        best = [pick(scores) if np.isfinite(scores).any() else np.nan for scores in map(np.array, reached)]
        chosen = [value == tuned.values[name] for value in values]
        figure.add_scatter(
            x=[figures.plain(options.word(v)) for v in values],
            y=best,
            mode="lines+markers",
            line={"color": "#0072B2", "width": 2.5},
            marker={
                "opacity": 1,
                "size": [13 if c else 8 for c in chosen],
                "color": ["#D55E00" if c else "#0072B2" for c in chosen],
            },
            showlegend=False,
            row=1,
            col=i,
        )
        figure.update_xaxes(figures.axis(figures.plain(name)) | {"type": "category"}, row=1, col=i)
        figure.update_yaxes({"gridcolor": figures.GRID, "zeroline": False, "automargin": True}, row=1, col=i)
    figure.update_layout(figures.layout(380))
    figure.update_yaxes(_score_axis(summary), row=1, col=1)
    return figure


def _score_axis(summary: Summary) -> dict[str, Any]:
    better = "higher is better" if summary.higher_is_better else "lower is better"
    axis = figures.axis(figures.plain(f"validation {metric_name(summary.metric)} ({better})"))
    return axis | ({"tickformat": ".0%", "hoverformat": ".1%"} if is_share(summary.metric) else {})


def _number(trial: Trial) -> float:
    return np.nan if trial.validation is None else trial.validation


def _choice(tuned: Tuned, notes: Sequence[str]) -> str:
    summary = tuned.best.run.summary
    values = ", ".join(f"{name} = {options.word(value)}" for name, value in tuned.values.items())
    score, test = score_text(tuned.best.validation, summary.metric), score_text(tuned.test, summary.metric)
    more = f"Mean validation {metric_name(summary.metric)} {score}; on test data, which had no say, {test}."
    warned = "".join(f"<li>{escaped(sentence)}</li>" for sentence in notes)
    listed = f'<ul class="caveats">{warned}</ul>' if warned else ""
    return f'<section class="finding"><p class="lead">{escaped(values)}</p><p>{escaped(more)}</p>{listed}</section>'


def _words(tuned: Tuned) -> str:
    if len(tuned.grid) <= 2:
        return "The mean over clients on validation data around the round that is taken, for each point of the grid."
    return "For each value the best score that was reached with it, whatever the other settings were."


def _figure(tuned: Tuned) -> str:
    return html.embed("grid", landscape(tuned))


def _points(tuned: Tuned) -> str:
    summary = tuned.best.run.summary
    heads, lines = [*tuned.grid, "validation", "round", "test"], []
    for trial in tuned.trials:
        first, *rest = map(options.word, trial.values.values())
        cells = [f"<td>{escaped(text)}</td>" for text in rest]
        cells.append(html.cell(score_text(trial.validation, summary.metric), trial.validation))
        cells.append(html.cell(round_text(trial), trial.round))
        cells.append(html.cell(score_text(tuned.test, summary.metric) if trial is tuned.best else "", None))
        kind = "best" if trial is tuned.best else ""
        lines.append(html.row(first, cells, kind))
    about = "Test data are scored for the chosen point alone, at the round that validation data chose."
    return html.section("All points", about, html.table(html.head(heads), lines))


def round_text(trial: Trial) -> str:
    """The round of the best validation score; `final` is the closing exchange after the last."""
    if trial.round is None:
        return "diverged"
    return str(trial.round) if trial.round <= trial.run.summary.rounds else "final"
