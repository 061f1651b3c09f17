"""The page and the picture about levels: the metric over a setting, a line a method, a panel a setting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fedkin import comparison, options
from fedkin.config import Config
from fedkin.levels import LevelRow, Levels
from fedkin.report import colours, figures, is_share, metric_name, page, plural, score_text


def write_page(levels: Levels, path: Path) -> Path:
    """Write the page, self-contained as any other report."""
    runs = levels.levels[0].results.runs
    summary, rows = runs[0].summary, levels.rows()
    parts = [page._section("Over the levels", _words(levels), figures.embed("levels", picture(levels)))]
    parts += [_table(levels, rows, setting) for setting in levels.settings]
    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"{plural(len(comparison.by_method(runs)), 'method')} over {' and '.join(levels.settings)}"
    chips = page._chips(runs)
    path.write_text(page._page(f"{title}: {summary['data']}", chips, "\n".join(parts)), encoding="utf-8", newline="\n")
    return path


def picture(levels: Levels) -> go.Figure:
    """Headline models' metric over each setting; the band spans the seeds."""
    settings, runs = levels.settings, levels.levels[0].results.runs
    colour, symbols = colours(runs), _symbols(runs, figures.SYMBOLS)
    figure = make_subplots(rows=1, cols=len(settings), shared_yaxes=True, horizontal_spacing=0.035)
    for panel, setting in enumerate(settings, 1):
        drawn = lines(levels, setting)
        for size, (method, line) in zip(_sizes(len(drawn), 7, 13), drawn.items(), strict=True):
            x = places(line)
            common = {"legendgroup": method, "row": 1, "col": panel}
            if len(line[0].seeds) > 1:
                figure.add_scatter(
                    x=[*x, *x[::-1]],
                    y=[*(r.high for r in line), *(r.low for r in reversed(line))],
                    mode="lines",
                    fill="toself",
                    fillcolor=figures._faded(colour[method], 0.15),
                    line={"width": 0},
                    hoverinfo="skip",
                    showlegend=False,
                    **common,
                )
            figure.add_scatter(
                x=x,
                y=[r.mean for r in line],
                name=figures._plain(line[0].name),
                mode="lines+markers",
                line={"color": colour[method], "width": 2.5},
                marker={"symbol": symbols[method], "size": size},
                showlegend=panel == 1,
                **common,
            )
        figure.update_xaxes(_level_axis(levels, setting), row=1, col=panel)
        figure.update_yaxes({"gridcolor": figures.GRID, "zeroline": False, "automargin": True}, row=1, col=panel)
    figure.update_layout(figures._layout(460), hovermode="x unified", legend=figures._legend())
    what = f"mean test {metric_name(runs[0].summary['metric'])}"
    figure.update_yaxes(figures._score_axis(runs, what), row=1, col=1)
    return figure


def write_figures(levels: Levels, folder: Path, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Write the picture for print and return its paths."""
    import matplotlib

    from fedkin.report import paper

    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(paper.STYLE)
        drawn = _print(levels)
        return [paper._save(drawn, folder / f"levels.{kind}") for kind in formats]


def _print(levels: Levels) -> Any:
    """The picture at the width of a column for one panel, of the page for more."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    from fedkin.report import paper

    settings, runs = levels.settings, levels.levels[0].results.runs
    colour, markers = colours(runs), _symbols(runs, paper.MARKERS)
    width = paper.COLUMN if len(settings) == 1 else 2 * paper.COLUMN
    figure = Figure(figsize=(width, 2.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    for axes, setting in zip(panels, settings, strict=True):
        drawn = lines(levels, setting)
        for size, (method, line) in zip(_sizes(len(drawn), 3.0, 6.0), drawn.items(), strict=True):
            x, style = places(line), {"color": colour[method], "marker": markers[method], "markersize": size}
            axes.plot(x, [r.mean for r in line], linewidth=1.3, label=method, **style)
            if len(line[0].seeds) > 1:
                low, high = [r.low for r in line], [r.high for r in line]
                axes.fill_between(x, low, high, color=colour[method], alpha=0.15, linewidth=0)
        values = places(next(iter(drawn.values())))
        if not any(isinstance(value, str) for value in values):
            axes.set_xticks(values, [options.word(value) for value in values])
        axes.set_xlabel(_axis_title(setting))
        axes.grid(axis="y")
    metric = runs[0].summary["metric"]
    if is_share(metric):
        panels[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    panels[0].set_ylabel(f"mean test {metric_name(metric)}")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside upper center", ncols=min(len(names), 3 * len(settings)), handlelength=1.8
    )
    return figure


def lines(levels: Levels, setting: str) -> dict[str, list[LevelRow]]:
    """{method: its headline's rows over the levels of a setting}, the best at the first level first."""
    found: dict[str, list[LevelRow]] = {}
    for row in levels.rows():
        if row.setting == setting and row.headline:
            found.setdefault(row.method, []).append(row)
    return found


def _sizes(count: int, least: float, most: float) -> list[float]:
    """Falling sizes of marks, so that one line under another still shows."""
    return [most - (most - least) * i / max(count - 1, 1) for i in range(count)]


def places(line: Sequence[LevelRow]) -> list[Any]:
    """Where levels stand on the axis: numbers at their values, all else side by side."""
    values = [row.value for row in line]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    return values if numbers else [options.word(v) for v in values]


def meaning(setting: str) -> str:
    """What a setting is, in words; empty where the configuration does not say."""
    known = {path: info.description for path, info in options.described(Config)}
    return known.get(setting) or ""


def _axis_title(setting: str) -> str:
    words = meaning(setting)
    return f"{words}\n({setting})" if words else setting


def _level_axis(levels: Levels, setting: str) -> dict[str, Any]:
    axis = figures._axis(figures._plain(_axis_title(setting)).replace("\n", "<br>"))
    values = places(next(iter(lines(levels, setting).values())))
    if any(isinstance(value, str) for value in values):
        return axis | {"type": "category"}
    return axis | {"tickvals": values}


def _symbols(runs: Sequence[comparison.Run], symbols: Sequence[str]) -> dict[str, str]:
    return {method: symbols[i % len(symbols)] for i, method in enumerate(sorted(comparison.by_method(runs)))}


def _words(levels: Levels) -> str:
    seeds = len(levels.levels[0].results.rows()[0].seeds)
    band = f" The band spans the {seeds} seeds." if seeds > 1 else " There is one seed only, so no range is shown."
    several = " One setting is varied at a time; the others stay as they are." if len(levels.settings) > 1 else ""
    return f"The headline model of each method: best mean over the rounds, mean over seeds.{band}{several}"


def _table(levels: Levels, rows: Sequence[LevelRow], setting: str) -> str:
    """A line for each `method:model`, a column for each level."""
    runs = levels.levels[0].results.runs
    metric, colour = runs[0].summary["metric"], colours(runs)
    here = [row for row in rows if row.setting == setting]
    values = list(dict.fromkeys(options.word(row.value) for row in here))
    hit = any(row.hit is not None for row in here)
    body = []
    for row in (r for r in here if options.word(r.value) == values[0]):
        cells = ""
        for other in (r for r in here if r.name == row.name):
            cells += f'<td data-value="{other.mean!r}">{score_text(other.mean, metric)}{_sides(other, metric)}</td>'
        kind = "" if row.headline else "other"
        head = f"<th>{page._dot(colour[row.method])}{page._e(row.name)}</th>"
        body.append(f'<tr class="{kind}">{head}{cells}</tr>')
    about = page._e(meaning(setting).capitalize())
    if hit:
        about += ". Small figures: mean over clients with clean labels / over those hit"
    heads = ["method:model", *(f"{setting.rpartition('.')[2]} = {value}" for value in values)]
    return page._section(page._e(setting), f"{about}.", page._table(page._head(heads), body))


def _sides(row: LevelRow, metric: str) -> str:
    if row.clean is None or row.hit is None:
        return ""
    return f"<br><small>{score_text(row.clean, metric)} / {score_text(row.hit, metric)}</small>"
