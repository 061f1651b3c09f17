"""The page about combinations of settings: a panel for each, and every `method:model` in one table."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..evidence.crossed import Crossed
from ..runs import options
from . import figures, html, training
from .html import escaped
from .words import colours, metric_name, named, plural, score_text

ACROSS = 3
"""Panels in a row."""


def write_page(crossed: Crossed, path: Path) -> Path:
    """Write the page, self-contained as any other report."""
    members = crossed.crossings[0].findings.members
    data = dict.fromkeys(run.summary.data for each in crossed.crossings for run in each.runs)
    chips = [f"data: {', '.join(data)}", plural(len(crossed.crossings), "combination")]
    chips += [plural(len(members), "method"), plural(max(map(len, members.values())), "seed")]
    drawn = html.embed("crossed", picture(crossed))
    found = {named(each.values): each.findings for each in crossed.crossings}
    parts = [html.section("Under every combination", _about(crossed), drawn), _table(crossed)]
    parts.append(training.rates_section(found))
    return html.write(path, f"{plural(len(members), 'method')} over {' x '.join(crossed.settings)}", chips, parts)


def chosen(crossed: Crossed) -> bool:
    """Whether validation data chose the round of every run that scores are of; else that is the last of some."""
    return all(row.row.validated is not None for row in crossed.rows())


def picture(crossed: Crossed) -> go.Figure:
    """Headline models over the last setting, a panel for each combination of the others."""
    *others, last = crossed.settings
    panels = list(product(*(crossed.settings[name] for name in others)))
    across = min(ACROSS, len(panels))
    titles = [named(dict(zip(others, panel, strict=True))) for panel in panels]
    figure = make_subplots(
        rows=-(-len(panels) // across),
        cols=across,
        subplot_titles=[figures.plain(title) for title in titles] if others else None,
        shared_yaxes=len({row.metric for row in crossed.rows()}) == 1,
        horizontal_spacing=0.05,
    )
    first = crossed.crossings[0].findings
    colour = colours(first)
    for number, panel in enumerate(panels):
        place = {"row": number // across + 1, "col": number % across + 1}
        here = dict(zip(others, panel, strict=True))
        rows = [r for r in crossed.rows() if r.row.headline and all(r.values[n] == v for n, v in here.items())]
        findings = next(c.findings for c in crossed.crossings if all(c.values[n] == v for n, v in here.items()))
        for method in dict.fromkeys(row.row.method for row in rows):
            line = [row for row in rows if row.row.method == method]
            figure.add_scatter(
                x=[options.word(row.values[last]) for row in line],
                y=[row.row.score for row in line],
                name=figures.plain(line[0].row.name),
                mode="lines+markers",
                line={"color": colour.get(method, figures.INK), "width": 2.5},
                legendgroup=method,
                showlegend=number == 0,
                **place,
            )
        values = [options.word(value) for value in crossed.settings[last]]
        axis: dict[str, Any] = figures.axis(figures.plain(last)) | {"type": "category", "categoryarray": values}
        figure.update_xaxes(axis, **place)
        figure.update_yaxes(figures.score_axis(findings, f"test {metric_name(rows[0].metric)}"), **place)
        if number % across:  # said once a row
            figure.update_yaxes(title=None, **place)
    figure.update_layout(
        figures.layout(120 + 340 * (-(-len(panels) // across))),
        legend=figures.legend() | ({"y": 1.09} if others else {}),
    )
    return figure


def _about(crossed: Crossed) -> str:
    moment = "in the round that validation data chose" if chosen(crossed) else "in the last round"
    return f"The headline model of each method, mean over clients and seeds, {moment}."


def _table(crossed: Crossed) -> str:
    heads = [*map(_leaf, crossed.settings), "method:model", "chosen round", "worst client"]
    heads += ["last round", "best test round"]
    differ = any(each.findings.trained_with for each in crossed.crossings)
    lines = []
    for each in crossed.rows():
        first, *rest = (options.word(value) for value in each.values.values())
        scores = (each.row.score, each.row.worst, each.row.last, each.row.bmta)
        cells = "".join(f"<td>{escaped(value)}</td>" for value in (*rest, each.row.name))
        cells += "".join(html.cell(score_text(score, each.metric), score) for score in scores)
        cells += html.text_cell(each.trained_with) if differ else ""
        lines.append(f'<tr class="{"" if each.row.headline else "other"}"><th>{escaped(first)}</th>{cells}</tr>')
    about = (
        "The chosen round is the one that validation data chose, without them the last; the best test round, as papers "
        "report it, is picked on test data, which flatters some rows more than others. Every combination has a folder "
        "of its own, with a report of its own if asked: fedkin report."
    )
    texts = len(crossed.settings) + 1  # the columns that are words
    words = "".join(f'<th data-sort="text">{escaped(each)}</th>' for each in heads[1:texts])
    numbers = "".join(f'<th data-sort="number">{escaped(each)}</th>' for each in heads[texts:])
    numbers += html.text_head("trained with") if differ else ""
    table = html.table(html.head(heads[:1], words + numbers), lines)
    conditions = {named(each.values): each.findings for each in crossed.crossings}
    below = training.spent_list(conditions) + training.below_list(conditions)
    return html.section("All combinations", about, table + below)


def _leaf(setting: str) -> str:
    return setting.rpartition(".")[2]
