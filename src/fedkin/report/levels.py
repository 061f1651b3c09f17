"""The page and the pictures about levels: the metric over a setting, a line a method.

Where clients are hit, a panel each for all clients, those left alone and those hit; at the last round, at the one that
validation data choose, and at the best of the test data.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..evidence import comparison
from ..evidence.findings import Findings
from ..evidence.levels import LevelRow, Levels, Sides, Span
from ..runs import options
from ..runs.config import Config
from . import figures, html, training
from .html import escaped
from .page import chips
from .words import OTHERS, colours, is_share, metric_name, named, plural, score_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Panel = tuple[str, str]
"""A setting and whose scores over it: `all`, `clean` or `hit`."""
MOMENTS = {"last": "last round", "chosen": "chosen round", "best": "best test round"}
CHOSEN = "The chosen round of a run is that of the best mean validation score, without validation data the last."


def write_page(levels: Levels, path: Path) -> Path:
    """Write the page, self-contained as any other report."""
    found = levels.levels[0].findings
    parts = [_overview(levels)] if len(levels.settings) > 1 else []
    parts += [_setting(levels, setting) for setting in levels.settings]
    conditions = {named({each.setting: each.value}): each.findings for each in levels.levels}
    parts += [training.trained_section(conditions), training.rates_section(conditions)]
    title = f"{plural(len(found.members), 'method')} over {' and '.join(levels.settings)}"
    return html.write(path, f"{title}: {found.runs[0].summary.data}", chips(found), parts)


def lines(levels: Levels, setting: str) -> dict[str, list[LevelRow]]:
    """{method: its headline's rows over the levels of a setting}, the best at the first level first."""
    found: dict[str, list[LevelRow]] = {}
    for row in levels.rows():
        if row.setting == setting and row.headline:
            found.setdefault(row.method, []).append(row)
    return found


def places(line: Sequence[LevelRow]) -> list[Any]:
    """Where levels stand on the axis: numbers at their values, all else side by side."""
    values = [row.value for row in line]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    return values if numbers else [options.word(v) for v in values]


def meaning(setting: str) -> str:
    """What a setting is, in words; empty where the configuration does not say."""
    known = {path: info.description for path, info in options.described(Config)}
    return known.get(setting) or ""


def _panels(levels: Levels, setting: str) -> list[Panel]:
    return [(setting, side) for side in levels.sides(setting)]


def _everyone(levels: Levels) -> list[Panel]:
    return [(setting, "all") for setting in levels.settings]


def _points(line: Sequence[LevelRow], moment: str, side: str) -> tuple[list[Any], list[Span]]:
    """Where a line has points, and what it has there: at a level at which nobody is hit those hit have none."""
    found = [(at, getattr(getattr(row, moment), side)) for at, row in zip(places(line), line, strict=True)]
    return [at for at, span in found if span], [span for _, span in found if span]


# ---- the pictures of the page ----


def picture(levels: Levels, panels: Sequence[Panel], moment: str) -> go.Figure:
    """Headline models' metric over settings, a panel each; the band spans the seeds. moment: one of MOMENTS."""
    found = levels.levels[0].findings
    colour, symbols = colours(found), _symbols(found, figures.SYMBOLS)
    titles = [f"<b>{levels.sides(setting)[side]}</b>" for setting, side in panels] if _of_one(panels) else None
    figure = make_subplots(cols=len(panels), shared_yaxes=True, horizontal_spacing=0.035, subplot_titles=titles)
    for number, (setting, side) in enumerate(panels, 1):
        drawn = lines(levels, setting)
        for size, (method, line) in zip(_sizes(len(drawn), 7, 13), drawn.items(), strict=True):
            x, spans = _points(line, moment, side)
            common = {"legendgroup": method, "row": 1, "col": number}
            if len(line[0].seeds) > 1:
                figure.add_scatter(
                    x=[*x, *x[::-1]],
                    y=[*(span.high for span in spans), *(span.low for span in reversed(spans))],
                    mode="lines",
                    fill="toself",
                    fillcolor=figures.faded(colour[method], 0.15),
                    line={"width": 0},
                    hoverinfo="skip",
                    showlegend=False,
                    **common,
                )
            figure.add_scatter(
                x=x,
                y=[span.mean for span in spans],
                name=figures.plain(line[0].name),
                mode="lines+markers",
                line={"color": colour[method], "width": 2.5},
                marker={"symbol": symbols[method], "size": size},
                showlegend=number == 1,
                **common,
            )
        figure.update_xaxes(_level_axis(drawn, setting), row=1, col=number)
        figure.update_yaxes(figures.score_axis(found, ""), title=None, row=1, col=number)
        if _of_one(panels) and number != 2:  # said once, in the middle
            figure.update_xaxes(title=None, row=1, col=number)
    figure.update_layout(
        figures.layout(480), hovermode="x unified", legend=figures.legend() | ({"y": 1.09} if titles else {})
    )
    figure.update_annotations(font={"size": 14, "color": figures.INK})
    what = f"mean test {metric_name(found.metric)}, {MOMENTS[moment]}"
    figure.update_yaxes(figures.score_axis(found, what), row=1, col=1)
    return figure


def _of_one(panels: Sequence[Panel]) -> bool:
    """Whether several panels are about one setting."""
    return len(panels) > 1 and len({setting for setting, _ in panels}) == 1


def _sizes(count: int, least: float, most: float) -> list[float]:
    """Falling sizes of marks, so that one line under another still shows."""
    return [most - (most - least) * i / max(count - 1, 1) for i in range(count)]


def _axis_title(setting: str) -> str:
    words = meaning(setting)
    return f"{words}\n({setting})" if words else setting


def _level_axis(drawn: dict[str, list[LevelRow]], setting: str) -> dict[str, Any]:
    axis = figures.axis(figures.plain(_axis_title(setting)).replace("\n", "<br>"))
    values = places(next(iter(drawn.values())))
    if any(isinstance(value, str) for value in values):
        return axis | {"type": "category", "categoryarray": values, "range": [-0.3, len(values) - 0.7]}
    return axis | {"tickvals": values, "range": _limits(values)}


def _limits(values: Sequence[float]) -> list[float]:
    """The same in every panel, though those hit have no point at a level at which nobody is."""
    edge = 0.06 * (max(values) - min(values) or 1)
    return [min(values) - edge, max(values) + edge]


def _symbols(found: Findings, symbols: Sequence[str]) -> dict[str, str]:
    return {method: symbols[i % len(symbols)] for i, method in enumerate(sorted(found.members))}


# ---- the sections of the page ----


def _overview(levels: Levels) -> str:
    about = (
        "The headline model of each method, mean over all clients. One setting is varied at a time; the others stay "
    )
    about += f"as they are. {_band(levels)}"
    drawn = html.embed("levels", picture(levels, _everyone(levels), "chosen"))
    return html.section("Over the levels", f"{about} {CHOSEN}", drawn)


def _setting(levels: Levels, setting: str) -> str:
    """A setting's pictures and tables, at the last round, at the chosen one or at the best of the test data.

    Where clients are hit the last comes first, as what lies do to a method shows at the end of its training.
    """
    hit = len(levels.sides(setting)) > 1
    about = f"{escaped(meaning(setting).capitalize() or setting)}. {_band(levels)}"
    if hit:
        about = f"<b>{escaped(finding(levels, setting))}</b> {about}"
        about += " Who is hit is drawn by lot in each seed"
        about += "; whoever is hit at one level is hit at every higher one." if setting.startswith("corrupt") else "."
        about += f" {OTHERS}"
    about += f" {CHOSEN} The best test round, as papers report it, is picked on test data."
    shown = {}
    for moment in MOMENTS if hit else ("chosen", "last", "best"):
        drawn = picture(levels, _panels(levels, setting), moment)
        body = html.embed(f"{escaped(setting)}-{moment}", drawn)
        body += "".join(_table(levels, setting, side, moment) for side in levels.sides(setting))
        shown[MOMENTS[moment].capitalize()] = body
    return html.section(escaped(setting), about, html.switch(setting, shown))


def finding(levels: Levels, setting: str) -> str:
    """What became of those hit at the highest level, in a sentence: under the best method, and under the worst."""
    found = levels.levels[0].findings
    metric, name = found.metric, levels.sides(setting)["hit"]
    level = next(row for row in reversed(levels.rows()) if row.setting == setting and row.last.hit).value
    here = [row for row in levels.rows() if row.setting == setting and row.value == level and row.headline]
    here = [row for row in here if _contends(row)] or here
    ends = [(row.last.hit.mean, row.method) for row in here if row.last.hit]
    ends.sort(reverse=found.higher_is_better)
    (best, leader), (worst, tail) = ends[0], ends[-1]
    text = f"With {_leaf(setting)} = {options.word(level)}, {name} end at {score_text(best, metric)}"
    if len(ends) == 1:
        return f"{text}."
    return f"{text} under the best method ({leader}) and at {score_text(worst, metric)} under the worst ({tail})."


def _contends(row: LevelRow) -> bool:
    return row.headline and row.method != comparison.ORACLE


def _leaf(setting: str) -> str:
    return setting.rpartition(".")[2]


def _band(levels: Levels) -> str:
    seeds = len(levels.rows()[0].seeds)
    return f"The band spans the {seeds} seeds." if seeds > 1 else "There is one seed only, so no range is shown."


def _table(levels: Levels, setting: str, side: str, moment: str) -> str:
    """A line for each `method:model`, a column for each level; the best contender of a column in bold."""
    found = levels.levels[0].findings
    metric, colour = found.metric, colours(found)
    here = [row for row in levels.rows() if row.setting == setting]
    values = list(dict.fromkeys(options.word(row.value) for row in here))
    spans = {(row.name, options.word(row.value)): _span(row, moment, side) for row in here}
    better = max if found.higher_is_better else min
    best = {
        value: better((span.mean for row in here if _contends(row) and (span := spans[row.name, value])), default=None)
        for value in values
    }
    body = []
    for row in (row for row in here if options.word(row.value) == values[0]):
        cells = [_cell(spans[row.name, value], best[value] if _contends(row) else None, metric) for value in values]
        body.append(html.row(row.name, cells, "" if row.headline else "other", colour[row.method]))
    heads = [levels.sides(setting)[side], *(f"{_leaf(setting)} = {value}" for value in values)]
    return html.table(html.head(heads), body, "levels")


def _span(row: LevelRow, moment: str, side: str) -> Span | None:
    sides: Sides = getattr(row, moment)
    return getattr(sides, side)  # type: ignore[no-any-return]


def _cell(span: Span | None, best: float | None, metric: str) -> str:
    """The mean, and in small print the range of the seeds."""
    if span is None:
        return "<td>–</td>"
    text = score_text(span.mean, metric).replace(" ", "&nbsp;")
    if span.low < span.high:
        low, high = (score_text(end, metric).removesuffix(" %") for end in (span.low, span.high))
        text += f" <small>{low}–{high}</small>"
    return f'<td data-value="{span.mean!r}"{" class=top" if span.mean == best else ""}>{text}</td>'


# ---- the pictures for print ----


def write_figures(levels: Levels, folder: Path, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Write the pictures for print and return their paths: all clients over each setting, chosen round; and for a
    setting under which clients are hit all of them, those left alone and those hit, at every moment."""
    import matplotlib

    from . import paper

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(paper.STYLE)
        drawn = {"levels": _print(levels, _everyone(levels), ["chosen"])}
        for setting in levels.settings:
            if len(levels.sides(setting)) > 1:
                name = f"levels-{paper.file_name(setting)}"
                drawn[name] = _print(levels, _panels(levels, setting), list(MOMENTS))
        return [paper.save(figure, folder / f"{name}.{kind}") for name, figure in drawn.items() for kind in formats]


def _print(levels: Levels, panels: Sequence[Panel], moments: Sequence[str]) -> Figure:
    """A row a moment, at the width of a column for one panel, of the page for more."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    from . import paper

    found = levels.levels[0].findings
    colour, markers, metric = colours(found), _symbols(found, paper.MARKERS), found.metric
    extent = (min(len(panels), 2) * paper.COLUMN, 0.6 + 1.9 * len(moments))
    figure = Figure(figsize=extent, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(moments), len(panels), sharey="row", sharex="col", squeeze=False)
    for moment, row in zip(moments, grid, strict=True):
        for axes, (setting, side) in zip(row, panels, strict=True):
            drawn = lines(levels, setting)
            for size, (method, line) in zip(_sizes(len(drawn), 3.0, 6.0), drawn.items(), strict=True):
                x, spans = _points(line, moment, side)
                style = {"color": colour[method], "marker": markers[method], "markersize": size}
                axes.plot(x, [span.mean for span in spans], linewidth=1.3, label=method, **style)
                if len(line[0].seeds) > 1:
                    low, high = [span.low for span in spans], [span.high for span in spans]
                    axes.fill_between(x, low, high, color=colour[method], alpha=0.15, linewidth=0)
            values = places(next(iter(drawn.values())))
            if not any(isinstance(value, str) for value in values):
                axes.set_xticks(values, [options.word(value) for value in values])
                axes.set_xlim(_limits(values))
            if _of_one(panels) and moment == moments[0]:
                axes.set_title(levels.sides(setting)[side], fontsize=8)
            axes.grid(axis="y")
        if is_share(metric):
            row[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        row[0].set_ylabel(f"mean test {metric_name(metric)}" + (f",\n{MOMENTS[moment]}" if len(moments) > 1 else ""))
    if _of_one(panels):
        figure.supxlabel(_axis_title(panels[0][0]), fontsize=8)
    else:
        for axes, (setting, _) in zip(grid[-1], panels, strict=True):
            axes.set_xlabel(_axis_title(setting))
    handles, names = grid[0][0].get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside upper center", ncols=min(len(names), 3 * min(len(panels), 2)), handlelength=1.8
    )
    return figure
