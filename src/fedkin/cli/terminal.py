"""What the terminal shows: tables, progress, and how Ctrl-C is answered."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from ..data import short
from ..engines.assembly import Assembly
from ..engines.capacity import threads
from ..engines.simulation import Interrupted, Listener
from ..evidence import references
from ..evidence.crossed import Crossed
from ..evidence.findings import Findings
from ..evidence.levels import Span
from ..evidence.records import Line
from ..studies import compare
from ..studies.run import Run
from ..studies.tune import Tuned
from ..studies.vary import Levels
from . import silos


def _console(stderr: bool = False) -> Console:
    """On a terminal as wide as that; elsewhere lines are not broken, and tables have room."""
    if (sys.stderr if stderr else sys.stdout).isatty():
        return Console(stderr=stderr)
    return Console(stderr=stderr, soft_wrap=True, width=int(os.environ.get("COLUMNS", "120")))


MOST_SILOS = 12
"""Silos that a table in the terminal is made for."""
COLOURS = {"yes": "green", "no": "red", "cannot tell": "dim"}

out = _console()
err = _console(stderr=True)


def show_comparison(results: compare.Results) -> None:
    """The table in the terminal; the same rows as in the report."""
    from ..report.words import (
        chosen_round,
        ends,
        finding,
        metric_name,
        older_models,
        p_cell,
        plural,
        score_text,
        tests_told,
    )

    found = results.findings
    rows, metric = found.rows, found.metric
    reference = next((r for r in rows if r.headline), rows[0])
    pairs = {p: t for t in found.tests() for p in ((t.first, t.second), (t.second, t.first))}
    count = len(reference.seeds)
    better = "higher" if found.higher_is_better else "lower"
    title = f"Mean test {metric_name(metric)} {chosen_round(found)} ({better} is better), {plural(count, 'seed')}"
    table = Table(Column("method:model", no_wrap=True), title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    for head in ("mean", "worst\nclient", "±\nclients", "±\nseeds", "last", "best\ntest", "p"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        test = pairs.get((reference.name, row.name))
        table.add_row(
            f"[bold]{escape(row.name)}[/]" if row.headline else escape(row.name),
            *(score_text(v, metric) for v in (row.score, row.worst, row.std_clients, row.std_seeds)),
            *(score_text(v, metric) for v in (row.last, row.bmta)),
            p_cell(test.p) if test else "",
        )
    out.print(table)
    out.print(
        "Headline models first (bold). Worst client: of each seed, then the mean. `best test` is the best round of the "
        "test data, as papers report it: picked on test data, it flatters some rows more than others."
        + (f" {tests_told(found)}" if pairs else "")
        + (f" In this table against {reference.name}." if any(t.p is not None for t in pairs.values()) else ""),
        style="dim",
        highlight=False,
    )
    show_training({"": found})
    for sentence in older_models(found):
        out.print(sentence, style="dim", highlight=False)
    show_references(results)
    show_newcomers(found)
    for sentence in [*finding(found), *ends(found)]:
        out.print(sentence, highlight=False)
    show_joining(found)


def show_training(conditions: Mapping[str, Findings], below: bool = True) -> None:
    """By what methods were trained where that differs, what they spent, the rates that were tried, and why one is below
    training alone: under each condition, of which a comparison has one without a name."""
    from ..report.training import (
        below_sentences,
        edge_sentences,
        rate_table,
        spent_sentences,
        trained_sentences,
        unequal_sentences,
    )
    from ..report.words import score_text

    for sentence in [*trained_sentences(conditions), *spent_sentences(conditions)]:
        out.print(sentence, highlight=False, markup=False)
    for sentence in unequal_sentences(conditions):
        out.print(sentence, style="yellow", highlight=False, markup=False)
    words, lines = rate_table(conditions)
    if lines:
        title = "Each method's rate, chosen on validation data (bold); test data had no say"
        named = ["condition"] if any(conditions) else []
        table = Table(*named, "method", "rate", title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
        for head in (*words, "chosen"):
            table.add_column(head, justify="right", no_wrap=True)
        for name, found, rates, trials in lines:
            scores = [score_text(trial.validation if trial else None, found.metric) for trial in trials]
            cells = [f"[bold]{s}[/]" if t is rates.best else s for s, t in zip(scores, trials, strict=True)]
            first = [escape(name)] if named else []
            table.add_row(*first, escape(rates.method), escape(rates.setting), *cells, f"{rates.rate:g}")
        out.print(table)
    for sentence in edge_sentences(conditions):
        out.print(sentence, style="yellow", highlight=False, markup=False)
    for sentence in below_sentences(conditions) if below else []:
        out.print(sentence, highlight=False, markup=False)


def show_references(results: compare.Results) -> None:
    """The rows without federated learning: what needs no training, and those that were asked for."""
    from ..report.words import score_text, unbeaten

    found, metric = results.findings, results.findings.metric
    lines = [*references.rows(found.untrained), *references.rows(results.references())]
    if lines:
        title = "For comparison, without federated learning"
        table = Table(Column("row", no_wrap=True), title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
        for head in ("mean", "worst\nclient", "±\nclients", "±\nseeds", "last"):
            table.add_column(head, justify="right", no_wrap=True)
        for row in lines:
            values = (row.mean, row.worst, row.std_clients, row.std_seeds, row.last)
            table.add_row(row.name, *(score_text(value, metric) for value in values))
        out.print(table)
    for sentence in unbeaten(found):
        out.print(sentence, style="yellow", highlight=False, markup=False)


def show_joining(findings: Findings) -> None:
    """Whether it was worth joining: a table where silos are few, and what they come to."""
    from ..report.verdicts import joining_told, joining_words
    from ..report.words import is_share, metric_name

    found = findings.joined
    if found is not None and len(found.silos) <= MOST_SILOS:
        title = f"Was it worth joining? Test {metric_name(found.metric)}{' in %' if is_share(found.metric) else ''}"
        table = Table("silo", title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
        (_, *heads, last), rows = silos.fitting(found, out.width)
        for head in heads:
            table.add_column(head, justify="right")
        table.add_column(last, no_wrap=True)
        for silo, (name, *cells, verdict) in zip(found.silos, rows, strict=True):
            table.add_row(escape(name), *cells, f"[{COLOURS[silo.answer]}]{escape(verdict)}[/]")
        out.print(table)
        out.print(joining_words(found), style="dim", highlight=False)
    for sentence in joining_told(findings):
        out.print(sentence, style="bold", highlight=False, markup=False)


def show_newcomers(found: Findings) -> None:
    """What clients got that were held out of training, beside those that were not; deviations apart."""
    from ..report.words import metric_name, score_text, signed_text

    served, metric = found.newcomers, found.metric
    if not served:
        return
    title = f"Newcomers: test {metric_name(metric)} beside known clients at the end"
    table = Table(Column("method:model", no_wrap=True), title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    spreads = ("±\nclients", "±\nseeds")
    for head in ("known\nclients", *spreads, "newcomers", *spreads, "difference"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in served:
        cells = [
            score_text(value, metric)
            for each in (row.known, row.newcomers)
            for value in ((each.mean, each.std_clients, each.std_seeds) if each else (None, None, None))
        ]
        name = f"[bold]{escape(row.name)}[/]" if row.headline else escape(row.name)
        table.add_row(name, *cells, signed_text(row.difference, metric) or "–")
    out.print(table)
    seed, novel = next((run.summary.seed, run.summary.novel) for run in found.runs if run.summary.novel)
    names = novel.clients
    who = f"{', '.join(names[:8])}{', …' if len(names) > 8 else ''}"
    out.print(f"Held out of training, {len(names)} clients (seed {seed}): {who}.", highlight=False)


def show_run(finished: Run) -> None:
    from ..report.words import ends, older_models, score_text

    summary = finished.summary
    table = Table("model", "validated", "last", "best test", "its round", "± clients there")
    for name, m in summary.models.items():
        label = f"[bold]{name}[/]" if name == summary.headline else name
        scores = [score_text(score, summary.metric) for score in (m.validated, m.last, m.bmta, m.std)]
        at = str(m.bmta_round) if m.bmta_round <= summary.rounds else "final"
        table.add_row(label, *scores[:3], at, scores[3])
    out.print(table)
    found = Findings([finished])
    if summary.ended == "validation":
        out.print(
            f"It ended after {summary.rounds} rounds, as validation data showed no further gain.", highlight=False
        )
    for sentence in [*older_models(found), *ends(found)]:
        out.print(sentence, style="dim", highlight=False)
    kin = summary.collaboration
    if kin and kin.within_group is not None:
        out.print(
            f"Within the known groups: {kin.within_group:.1%} of the attention; "
            f"groups read off xi agree with adjusted Rand index {kin.adjusted_rand:.2f}.",
            highlight=False,
        )
    show_newcomers(found)
    out.print(f"Run: [bold]{finished.path}[/]   Report: fedkin report {finished.path}", soft_wrap=True)


@contextmanager
def bar() -> Iterator[Progress | None]:
    """A progress bar on a terminal, None elsewhere."""
    if not err.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=err, transient=True) as progress:
        yield progress


def warn(sentence: str) -> None:
    """As it stands: what is advised can be typed, and columns may be called [mmol]."""
    err.print(sentence, style="yellow", highlight=False, soft_wrap=True, markup=False)


@contextmanager
def listening(rounds: int, path: Path) -> Iterator[Listener]:
    """A listener that shows the rounds: a bar on a terminal, plain lines elsewhere (about forty of them)."""
    with interruptible() as stop, bar() as progress:
        task = progress.add_task("rounds", total=rounds, note="") if progress else None
        every = max(1, rounds // 40)

        def on_start(ready: Assembly) -> None:
            a, new = ready, len(ready.problem) - ready.problem.known
            err.print(
                f"{a.config.method} on {short(a.config.data.name)} ({a.config.data.split}), {a.problem.known} clients"
                f"{f' and {new} newcomers' if new else ''}, "
                f"{a.problem.layout.parameters:,} parameters, {a.device.type}; {a.execution.name}: {a.reason}"
                f"{_on_threads(a)}{_unusual(a)}. "
                f"Writing to {path}.",
                highlight=False,
            )

        def on_round(record: Line) -> None:
            means = {name: model.mean for name, model in record.models.items()}
            note = "  ".join(f"{name} {'–' if mean is None else f'{mean:#.4g}'}" for name, mean in means.items())
            if progress and task is not None:
                progress.update(task, completed=min(record.round, rounds), note=note)
            elif record.round % every == 0 or record.final:
                what = "final" if record.final else f"round {record.round}/{rounds}"
                err.print(f"{what}  {note}  {record.seconds:.2f} s", highlight=False)

        try:
            yield Listener(on_start, on_round, warn, stop)
        except Interrupted as error:
            raise Interrupted(f"{error} Go on with `fedkin resume {path}`.") from None


def _on_threads(ready: Assembly) -> str:
    """Of a CPU the number of threads, as the rule has it."""
    count = threads(ready)[0]
    return f"; {count} {'thread' if count == 1 else 'threads'}" if ready.device.type == "cpu" else ""


def _unusual(ready: Assembly) -> str:
    """What is not as it is unless told otherwise."""
    config = ready.config
    words = [f"precision {config.precision}"] if config.precision != "float32" else []
    words += [f"{config.chunk} clients at a time"] if config.chunk else []
    words += ["weights on disk"] if config.weights == "disk" else []
    return "".join(f"; {word}" for word in words)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C asks to stop after the round; a second one stops at once."""
    asked = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:  # said here, as typer turns a KeyboardInterrupt into a silent exit code 130
            err.print(
                "Stopped at once. The last checkpoint stays: `fedkin resume` goes on from it, and a study by the same "
                "command."
            )
            raise KeyboardInterrupt
        asked = True
        err.print("\nStopping after this round and saving; once more stops at once (the last checkpoint stays).")

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def show_tuned(tuned: Tuned) -> None:
    """Every point of a grid with its validation score, and the test score of the chosen one alone."""
    from ..report.tuning import round_text
    from ..report.words import metric_name, score_text
    from ..runs.options import word

    metric = tuned.best.run.summary.metric
    title = f"Mean validation {metric_name(metric)} around the round that is taken"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    for head in (*tuned.grid, "validation", "round", "test"):
        table.add_column(head, justify="right", no_wrap=True)
    for trial in tuned.trials:
        chosen = trial is tuned.best
        values, test = map(word, trial.values.values()), score_text(tuned.test, metric) if chosen else ""
        scores = score_text(trial.validation, metric), round_text(trial), test
        table.add_row(*values, *scores, style="bold" if chosen else None)
    out.print(table)
    out.print("Chosen on validation data (bold); test data had no say.", style="dim", highlight=False)
    for sentence in tuned.at_the_edge():
        out.print(sentence, style="yellow", highlight=False)


def show_levels(levels: Levels) -> None:
    """For each setting a table: a line for each `method:model`, a column for each level.

    Where clients are hit, a table each for all clients, those left alone and those hit, of headline models and of the
    last round, as what lies do to a method shows at the end of its training.
    """
    from ..report.words import OTHERS, is_share, metric_name, named, score_text
    from ..runs.options import word

    metric = levels.levels[0].findings.metric
    unit = " in %" if is_share(metric) else ""

    def told(first: Span | None, second: Span | None) -> str:
        """On a narrow terminal without the second."""
        texts = [score_text(span.mean, metric).removesuffix(" %") for span in (first, second) if span]
        return " ".join([texts[0], *(f"({text})" for text in texts[1:] if out.width >= 100)]) if texts else "–"

    for setting in levels.settings:
        here, sides = [row for row in levels.rows() if row.setting == setting], levels.sides(setting)
        hit = len(sides) > 1
        values = list(dict.fromkeys(word(row.value) for row in here))
        moments = "last round" if hit else "chosen round"
        moments += f" (in brackets: {'chosen' if hit else 'last'} round)" if out.width >= 100 else ""
        title = f"Mean test {metric_name(metric)}{unit} over {setting}, {moments}"
        out.print(title, style="italic", highlight=False)
        for side, name in sides.items():
            table = Table(Column(name, no_wrap=True), box=SIMPLE_HEAD, padding=(0, 1))
            for value in values:
                table.add_column(value, justify="right")
            for row in (r for r in here if word(r.value) == values[0] and (r.headline or not hit)):
                own = [r for r in here if r.name == row.name]
                chosen, last = ([getattr(getattr(r, moment), side) for r in own] for moment in ("chosen", "last"))
                cells = map(told, *((last, chosen) if hit else (chosen, last)))
                label = escape(row.name)
                table.add_row(f"[bold]{label}[/]" if row.headline else label, *cells)
            out.print(table)
        if hit:
            out.print(OTHERS, style="dim", highlight=False)
        if hit and any(not row.headline for row in here):
            out.print("Headline models; the methods' other models are in the report.", style="dim", highlight=False)
    # Which methods fell below training alone is what levels are about: the pictures show it, the page says why.
    show_training({named({each.setting: each.value}): each.findings for each in levels.levels}, below=False)


def show_crossed(crossed: Crossed) -> None:
    """A line for each combination and headline model, with the settings' values before the scores."""
    from ..report.words import metric_name, named, score_text
    from ..runs.options import word

    metrics = list(dict.fromkeys(metric_name(row.metric) for row in crossed.rows()))
    title = f"Mean test {' and '.join(metrics)} under every combination; headline models"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    for name in crossed.settings:
        table.add_column(name.rpartition(".")[2])
    table.add_column("method:model", no_wrap=True)
    for head in ("chosen\nround", "worst\nclient", "last", "best\ntest"):
        table.add_column(head, justify="right", no_wrap=True)
    for each in crossed.rows():
        if each.row.headline:
            scores = (each.row.score, each.row.worst, each.row.last, each.row.bmta)
            texts = [score_text(score, each.metric) for score in scores]
            table.add_row(*map(escape, map(word, each.values.values())), escape(each.row.name), *texts)
    out.print(table)
    out.print(
        "The chosen round is the one that validation data chose, without them the last; `best test` is picked on test "
        "data, which flatters some rows more than others.",
        style="dim",
        highlight=False,
    )
    show_training({named(each.values): each.findings for each in crossed.crossings})
