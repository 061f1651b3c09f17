"""The report: one HTML file about a run or a comparison, section by section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..base.task import METRICS
from ..evidence import comparison as compare
from ..evidence import references
from ..evidence.comparison import Pair, Row, Run
from ..evidence.findings import Findings
from ..evidence.newcomers import Served
from ..evidence.worth_joining import Scorecard
from ..maths import statistics
from . import figures, graph, html, silos, training
from .html import escaped
from .verdicts import joining_told
from .words import (
    caveats,
    checked_xi,
    chosen_round,
    colours,
    contenders,
    difference_text,
    estimate_text,
    finding,
    metric_name,
    older_models,
    p_cell,
    plural,
    round_rule,
    score_text,
    signed_text,
    tests_told,
    xi_groups,
)


def write_page(
    found: Findings, path: Path, title: str | None = None, comparison: Mapping[str, Any] | None = None
) -> Path:
    """Write the page about a run or a comparison; see `fedkin.report.write_report`."""
    about = dict(comparison or {})
    reference, notes = about.pop("reference", None), list(about.pop("notes", []))
    without = [*references.rows(found.untrained), *about.pop("references", [])]
    spread = f"Each point is a client {chosen_round(found)}, mean over seeds; hover over it for the client’s name."
    parts = [
        _finding(found, reference, notes),
        _results(found, reference),
        training.rates_section({"": found}),
        _references(without, found.metric),
        silos.section(found),
        html.section("Over the rounds", _curve_words(found), html.embed("curves", figures.curves(found))),
        html.section("The spread over clients", spread, html.embed("distribution", figures.distribution(found))),
        _clients(found),
        _scorecard(found.scorecard),
        _newcomers(found),
        _graph(found),
        _collaboration(found),
        _settings(found, about),
    ]
    return html.write(path, title or _title(found), chips(found), parts)


def _finding(found: Findings, reference: str | None, notes: Sequence[str]) -> str:
    first, *others = finding(found, reference)
    lead, *more = (escaped(sentence) for sentence in [first, *joining_told(found), *others])
    tiles = "".join(
        f'<div class="tile"><span>{escaped(label)}</span><b>{escaped(value)}</b><span>{escaped(below)}</span></div>'
        for label, value, below in _tiles(found)
    )
    warned = "".join(f"<li>{escaped(note)}</li>" for note in _caveats(found, notes))
    return f"""<section class="finding"><p class="lead">{lead}</p>{"".join(f"<p>{sentence}</p>" for sentence in more)}
<div class="tiles">{tiles}</div>{f'<ul class="caveats">{warned}</ul>' if warned else ""}</section>"""


def _caveats(found: Findings, notes: Sequence[str]) -> list[str]:
    return [*notes, *training.unequal_sentences({"": found}), *caveats(found)]


def _tiles(found: Findings) -> list[tuple[str, str, str]]:
    """The numbers to remember, as (label, value, of what)."""
    table = contenders(found)
    metric, best = found.metric, table[0]
    joining = _chosen_round_tiles(found, table) if found.joined is None else silos.tiles(found.joined)
    label = "Best mean" if len(table) > 1 else "Mean"
    return [
        (f"{label} {metric_name(metric)}", score_text(best.score, metric), best.name),
        *joining,
        ("Worst client", score_text(best.worst, metric), best.name),
    ]


def _chosen_round_tiles(found: Findings, table: Sequence[Row]) -> list[tuple[str, str, str]]:
    """What joining came to in the chosen rounds, for runs that kept no outputs; none without `separate`."""
    metric, both, worse = found.metric, found.joining, found.worse_than_alone
    row = next((row for row in table if row.name in both), None)
    if row is None:
        return []
    alone, together = (float(np.mean(list(each.values()))) for each in both[row.name])
    gained = together == alone or (together > alone) == found.higher_is_better
    label, count = "Gained by joining" if gained else "Lost by joining", len(both[row.name][1])
    return [
        (label, difference_text(together - alone, metric), f"{row.method}, mean over clients"),
        ("Clients better off alone", f"{len(worse[row.name])} of {count}", f"than with {row.method}"),
    ]


def _results(found: Findings, reference: str | None) -> str:
    table, headlines, metric, colour = found.rows, found.headlines, found.metric, colours(found)
    against = compare.find_row(headlines, reference) if reference else headlines[0]
    pairs = found.tests(reference)
    beside = [(pair, pair.second if pair.first == against.name else pair.first) for pair in pairs]
    order = {other: pair.p for pair, other in beside if against.name in (pair.first, pair.second)}
    chosen = all(row.validated is not None for row in table)
    heads = ["method:model", "chosen round" if chosen else "last round", "worst client", "± over clients"]
    heads += ["± over seeds", *(["last round"] if chosen else []), "last ten", "best test round"]
    heads += [f"p against {against.method}"] if pairs else []
    trained, spent = found.trained_with, found.spent
    asked = any(each.passes for each in spent.values())
    heads += [*(["gradients"] if spent else []), *(["passes"] if asked else [])]
    more = html.text_head("trained with") if trained else ""
    lines = []
    for row in table:
        last = [row.last] if chosen else []
        values = (row.score, row.worst, row.std_clients, row.std_seeds, *last, row.last10, row.bmta)
        cells = [html.cell(score_text(value, metric), value) for value in values]
        if pairs:
            text = "reference" if row is against else p_cell(order[row.name]) if row.name in order else "–"
            cells.append(html.cell(text, order.get(row.name)))
        own = spent.get(row.method)
        amounts = [own.gradients if own else None] * bool(spent) + [own.passes if own else None] * asked
        cells += [html.cell("–" if value is None else training.amount_text(value), value) for value in amounts]
        cells += [html.text_cell(trained[row.method])] if trained else []
        kind = "best" if row is table[0] and len(headlines) > 1 else "" if row.headline else "other"
        lines.append(html.row(row.name, cells, kind, colour[row.method]))
    stands = (
        f"The round of a run is chosen by validation data: {round_rule(found)}; all columns up to “± over seeds”, the "
        "tests and the sentences are of it."
        if chosen
        else "These runs kept no validation data to choose a round by, so everything stands on the last one."
    )
    note = f"""{stands} “Best test round” is what papers report: it is picked on the test data themselves, which
flatters some rows more than others. “± over clients” says how unequal clients are within a run, “± over seeds” how far
the mean varies from run to run: they are different things. {escaped(tests_told(found))}"""
    if spent:
        note += " “Gradients” are of mini-batches, a client and round; all of a method’s models come of them."
    if asked:
        note += " “Passes” are samples that models were asked about besides, without a gradient."
    note += "".join(f"<br>{escaped(sentence)}" for sentence in older_models(found))
    direction = "higher" if found.higher_is_better else "lower"
    about = f"Test {escaped(metric_name(metric))}, mean over clients and seeds; {direction} is better."
    tested = html.fold("All paired tests", _all_tests(pairs, metric)) if pairs else ""
    if found.tuned:
        about += f" {escaped(training.CHOSEN)}"
    shown = f'{html.table(html.head(heads, more), lines)}<p class="note">{note}</p>'
    return html.section("Results", about, shown + training.below_list({"": found}) + tested)


def _references(rows: Sequence[references.Row], metric: str) -> str:
    """Rows that are no method's, in a table of their own."""
    if not rows:
        return ""
    heads = ["row", "mean", "worst client", "± over clients", "± over seeds", "last round"]
    lines = []
    for row in rows:
        values = (row.mean, row.worst, row.std_clients, row.std_seeds, row.last)
        cells = [html.cell(score_text(value, metric), value) for value in values]
        lines.append(html.row(row.name, cells))
    about = "What can be had without a federation, and what it has to beat."
    if any(row.name.startswith("pooled") for row in rows):
        about += (
            """ The pooled rows are one model for all, of everyone’s data in one place, which nobody would share."""
        )
    trained = "".join(f'<p class="note">{escaped(row.name)}: {escaped(row.note)}.</p>' for row in rows if row.note)
    return html.section(
        "For comparison, without federated learning", about, html.table(html.head(heads), lines) + trained
    )


def _all_tests(pairs: Sequence[Pair], metric: str) -> str:
    heads = ["test", "clients", "wins / ties / losses", "median advantage", "p", "seeds"]
    lines = []
    for pair in pairs:
        r = pair.result
        sign = "−" if r.median < 0 else ""
        cells = [html.cell(str(r.pairs), r.pairs), html.cell(f"{r.wins} / {r.ties} / {r.losses}", r.wins - r.losses)]
        cells += [
            html.cell(sign + difference_text(r.median, metric), r.median),
            html.cell(p_cell(pair.p), pair.p),
        ]
        cells.append(html.cell(", ".join(map(str, pair.seeds)), len(pair.seeds)))
        lines.append(html.row(f"{pair.first} over {pair.second}", cells))
    return html.table(html.head(heads), lines)


def _curve_words(found: Findings) -> str:
    band = " The band spans the seeds." if len({run.summary.seed for run in found.runs}) > 1 else ""
    hidden = " Dashed lines are the methods’ other models; click a name in the legend to show or hide its line."
    return f"The mean over all clients in each round; the last point is the closing exchange.{band}{hidden}"


def _clients(found: Findings) -> str:
    """The table of clients: alone against each headline model, worse ones marked."""
    members, colour = found.members, colours(found)
    columns = [row for row in found.rows if row.headline or len(members) == 1]
    lonely = next((row for row in columns if members[row.method][0].summary.method == compare.ALONE), None)
    columns.sort(key=lambda row: row is not lonely)
    summary = (members[lonely.method] if lonely else found.runs)[0].summary
    groups, samples = summary.groups, summary.samples
    both, worse = found.joining, found.worse_than_alone
    scores = {row.name: found.clients(row) for row in columns}
    scores |= {name: together for name, (_, together) in both.items()}
    lines = []
    for i in compare.client_order(summary.clients, groups):
        client = summary.clients[i]
        cells = [html.cell(str(groups[i]), groups[i])] if groups else []
        cells += [html.cell(f"{samples[i]:,}", samples[i])] if samples else []
        for row in columns:
            alone = both[row.name][0].get(client) if row.name in both else None
            lost = any(client == loser for loser, _, _ in worse.get(row.name, []))
            cells.append(_score_cell(scores[row.name].get(client), alone, lost, summary.metric))
        lines.append(html.row(client, cells))
    names = ((row, "alone" if row is lonely else row.name) for row in columns)
    named = "".join(f'<th data-sort="number">{html.dot(colour[row.method])}{escaped(name)}</th>' for row, name in names)
    heads = html.head(["client", *(["group"] if groups else []), *(["training samples"] if samples else [])], named)
    about = f"Every client’s score {chosen_round(found)}, mean over seeds. "
    if found.joined is not None:
        about += """Shown is each method’s headline model; “Was it worth joining?” speaks of the models handed out at
the end, so signs may differ. """
    about += "Click a heading to sort. "
    if not both:
        about += "Include the method <code>separate</code> in the comparison to see for whom joining was worth it."
        return html.section("Client by client", about, html.table(heads, lines))
    counts = "; ".join(f"{escaped(name)} {len(each)} of {len(both[name][1])}" for name, each in worse.items())
    about += f"Small figures are the change from training alone; ▼ worse than alone: {counts}."
    about += "" if found.higher_is_better else " Lower is better here, so a minus is a gain."
    return html.section("Client by client", about, html.table(heads, lines))


def _scorecard(found: Scorecard | None) -> str:
    """All metrics that fit the task, of the models that silos are handed, with intervals."""
    if found is None:
        return ""
    names = list(next(iter(found.silos.values())))
    lines = []
    for client, scores in found.silos.items():
        cells = [html.interval_cell(estimate_text(scores[name], name), scores[name]) for name in names]
        lines.append(html.row(client, cells))
    which = f", {found.chosen_by}" if found.chosen_by else ""
    seeds = f"; means over {len(found.seeds)} seeds" if len(found.seeds) > 1 else ""
    about = f"""The test scores of the models that silos are handed at the end, with 95 % intervals{seeds}. Method:
{escaped(found.method)}{which}."""
    if "auc" in names:
        about += " A dash: an AUC is not defined where all test samples are of one class."
    if "c_index" in names:
        about += " A dash: a C-index is not defined where no two test samples can be compared."
    arrows = [f"{metric_name(name)} {'↑' if METRICS[name].higher_is_better else '↓'}" for name in names]
    return html.section("By other measures", about, html.table(html.head(["silo", *arrows]), lines))


def _newcomers(found: Findings) -> str:
    """What clients got that were held out of training, beside those that were not; nothing where none was."""
    served, metric, colour = found.newcomers, found.metric, colours(found)
    if not served:
        return ""
    lines = []
    for row in served:
        cells = [
            html.cell(score_text(value, metric), None if value is None or np.isnan(value) else value)
            for each in (row.known, row.newcomers)
            for value in ((each.mean, each.std_clients, each.std_seeds) if each else (None, None, None))
        ]
        difference = None if np.isnan(row.difference) else row.difference
        cells.append(html.cell(signed_text(row.difference, metric) or "–", difference))
        kind = "head" if row.headline else "other"
        lines.append(html.row(row.name, cells, kind, colour[row.method]))
    spreads = ["± over clients", "± over seeds"]
    heads = html.head(["method:model", "known clients", *spreads, "newcomers", *spreads, "difference"])
    return html.section("Newcomers", _newcomer_words(found, served), html.table(heads, lines, "newcomers"))


def _newcomer_words(found: Findings, served: Sequence[Served]) -> str:
    runs = found.runs
    first, novel = next((run.summary, run.summary.novel) for run in runs if run.summary.novel)
    names, counts = novel.clients, sorted({count for row in served for count in row.counts})
    several = " (others in other seeds)" if len({run.summary.seed for run in runs}) > 1 else ""
    text = f"""{" or ".join(map(str, counts))} of {len(first.clients) + len(names)} clients were held out of training
and joined at the end; in seed {first.seed}{several} these were {escaped(", ".join(names))}. All methods gave them equal
local epochs. Known clients are scored at the closing exchange. Best method on top, its headline model in bold; what
newcomers alone are given has no known clients. The difference is newcomers less known clients, who are others, so part
of it may be the luck of the draw."""
    return text if found.higher_is_better else f"{text} Lower is better here, so a minus is a gain."


def _graph(found: Findings) -> str:
    """Who is related to whom, where a method looks at that."""
    related = graph.relations(found)
    if related is None:
        return ""
    drawn = html.embed("graph", graph.picture(related, found), square=related.crowded)
    return html.section("Who is related to whom", escaped(graph.words(related, found.runs)), drawn)


def _score_cell(value: float | None, alone: float | None, lost: bool, metric: str) -> str:
    if value is None:
        return "<td>–</td>"
    change = ""
    if alone is not None:
        change = f"<small>{signed_text(value - alone, metric)}</small>"
    kind = ' class="worse" title="worse than alone"' if lost else ""
    return f'<td data-value="{value!r}"{kind}>{"▼ " if lost else ""}{score_text(value, metric)}{change}</td>'


def _collaboration(found: Findings) -> str:
    """A heat map a method, of its first seed, one shown at a time."""
    first = [(method, members[0]) for method, members in found.members.items()]
    first = [(method, run) for method, run in first if run.collaboration(None) is not None]
    limit = max(4, 3 * figures.MOST_ROUNDS // max(3, len(first)))
    panels: list[str] = []
    options: list[str] = []
    for number, (method, run) in enumerate(first):
        figure = figures.collaboration(run, limit)
        if figure is not None:
            hidden = " hidden" if panels else ""
            drawn = html.embed(f"xi-{number}", figure, square=True)
            panels.append(f'<div class="panel" id="panel-{number}"{hidden}>{drawn}{_kin(run)}</div>')
            options.append(
                f'<option value="panel-{number}">{escaped(method)}, seed {escaped(run.summary.seed)}</option>'
            )
    if not panels:
        return ""
    choice = f"<p><label>Method <select data-panels>{''.join(options)}</select></label></p>" if len(panels) > 1 else ""
    lines = "the known groups" if first[0][1].summary.groups else "groups read off the matrix in the chosen round"
    about = f"""How much each client’s model (column) counts in the model made for another (row). Clients are in order
of group, then name; orange lines mark {lines}. Shown first is the round that the scores stand on. The scale ends at the
largest weight on another client, so a client’s own weight on the diagonal may lie beyond it."""
    return html.section("Who learns from whom", about, choice + "".join(panels))


def _kin(run: Run) -> str:
    """What the matrix of the chosen round says in words."""
    found = run.collaboration(None)
    assert found is not None
    xi, clients = checked_xi(run, found), run.summary.clients
    labels, (groups, known) = statistics.kin(xi), xi_groups(run, xi)
    order = compare.client_order(clients, None)
    families = [[clients[i] for i in order if labels[i] == label] for label in np.unique(labels)]
    families = [family for family in families if len(family) > 1]
    if not families:
        return '<p class="note">In the chosen round no clients clearly prefer each other.</p>'
    index = ""
    if known and len(set(groups.tolist())) < len(groups):
        index = f"; adjusted Rand index {statistics.adjusted_rand(labels, groups):.2f} with the known ones"
    items = "".join(f"<li>{escaped(', '.join(family))}</li>" for family in families)
    about = '<p class="note">Clients that give each other clearly more than the uniform share:</p>'
    return html.fold(f"Groups found in the chosen round: {len(families)}{index}", f"{about}<ul>{items}</ul>")


def _settings(found: Findings, about: Mapping[str, Any]) -> str:
    members, runs = found.members, found.runs
    first = {method: compare.flat_settings(each[0].config) for method, each in members.items()}
    differ = compare.differing(list(first.values()))
    varying = compare.differing([compare.flat_settings(run.config) for run in runs])  # seeds among them
    same = {key: value for key, value in next(iter(first.values())).items() if key not in varying}
    varied = [[key, *(each.get(key, "–") for each in first.values())] for key in differ]
    costs = []
    for method, each in members.items():
        told = [run.summary for run in each]
        seconds = _average([s.seconds for s in told])
        down, up = _average([s.bytes_down for s in told]), _average([s.bytes_up for s in told])
        sizes = down, up, _average([s.peak_bytes for s in told])
        costs.append([method, "–" if seconds is None else f"{seconds:,.1f} s", *map(_size, sizes)])
    machine: dict[str, dict[str, None]] = {}
    for run in runs:
        summary = run.summary
        facts = {"commit": summary.commit, "device": summary.device, "execution": summary.execution}
        for key, value in compare.flat_settings(facts | dict(summary.versions)).items():
            machine.setdefault(key, {})[str(value)] = None
    head = html.head(["method", "time", "sent to clients", "sent by clients", "peak memory"])
    settings = (
        f"<h3>By method</h3>{html.table(html.head(['setting', *first]), html.lines(varied), 'wrap')}" if varied else ""
    )
    settings += "<h3>The same in all runs</h3>" if len(runs) > 1 else ""
    settings += html.table("", html.lines([*same.items(), *compare.flat_settings(about).items()]), "wrap")
    body = html.fold("Time and traffic of a whole run, means over seeds", html.table(head, html.lines(costs)))
    body += html.fold("Settings", settings)
    versions = [[key, ", ".join(values)] for key, values in machine.items()]
    body += html.fold("Versions and machine", html.table("", html.lines(versions), "wrap"))
    return html.section("Behind the numbers", "", body)


def _average(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _size(value: float | None) -> str:
    if not value:
        return "–" if value is None else "0 B"
    power = min(int(np.log10(value)) // 3, 4)
    return f"{value / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def _title(found: Findings) -> str:
    summary, methods = found.runs[0].summary, found.members
    what = next(iter(methods)) if len(methods) == 1 else f"{len(methods)} methods compared"
    return f"{what} on {summary.data} ({summary.split})"


def chips(found: Findings) -> list[str]:
    runs = found.runs
    summary, seeds = runs[0].summary, sorted({run.summary.seed for run in runs})
    told = [f"data: {summary.data}", f"split: {summary.split}", plural(len(summary.clients), "client")]
    if summary.groups:
        told.append(plural(len(set(summary.groups)), "known group"))
    told.append(f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}")
    return [*told, plural(max(run.summary.rounds for run in runs), "round")]
