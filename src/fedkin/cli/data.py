"""Data sets: `fedkin data list | describe | check | fetch | export`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column, Table

from .. import data
from ..data import catalogue, files
from ..data.catalogue import File
from ..data.fetch import Listener, fetch
from ..data.files import DataError
from ..engines.simulation import Interrupted
from .app import app, paragraphs, table_of
from .terminal import err, out

commands = typer.Typer(help="The data sets: which there are, whether their files are right, how to get them.")
app.add_typer(commands, name="data", no_args_is_help=True)

DIGITS = "Digits: handwritten digits, 8 x 8\n[dim]1,797 images, 10 classes; comes with scikit-learn[/]"
Names = Annotated[list[str], typer.Argument(metavar="NAME…", help="Data sets, as `fedkin data list` names them.")]


@commands.command("list")
def list_() -> None:
    """List the data sets, and whether their files are here."""
    table = Table(Column("name", no_wrap=True), "what it is", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("state")
    table.add_column("folder", no_wrap=True)
    table.add_row("digits", DIGITS, "", "built in", "")
    for name, entry in catalogue.CATALOGUE.items():
        state = files.state(name)
        colour = {"here": "green", files.MISSING: "dim", files.BRING: "dim"}.get(state, "red")
        what = f"{entry.title}\n[dim]{entry.content}; {entry.licence}[/]"
        table.add_row(name, what, _size(name), f"[{colour}]{state}[/]", entry.directory)
    out.print(table)
    out.print(f"Data folder: {files.folder()} (set FEDKIN_DATA for another).", highlight=False, soft_wrap=True)
    out.print(
        "`fedkin data describe NAME` tells more, with its settings; `fedkin data fetch NAME` downloads it, or says "
        "what to bring; `fedkin data check` looks at the checksums.",
        highlight=False,
    )


@commands.command()
def describe(name: Annotated[str, typer.Argument(help="A data set, as `fedkin data list` names it.")]) -> None:
    """Tell what a data set is, how it can be split, what it is run with, and its own settings."""
    out.print(paragraphs(data.description(name)), "", sep="\n", highlight=False)
    usual, *others = data.splits(name)
    facts = {"Splits": ", ".join([f"{usual} (unless told otherwise)" if others else usual, *others])}
    facts["Run with"] = ", ".join(f"{key} = {json.dumps(value)}" for key, value in _flat(data.defaults(name)))
    if name in catalogue.CATALOGUE:
        entry = files.find(name)
        facts["Licence"], facts["Source"] = entry.licence, entry.source
        facts["Files"] = f"{files.state(name)} ({files.place(name)})"
    for what, fact in facts.items():
        out.print(f"[bold]{what}[/]: {escape(fact)}.", highlight=False)
    kind = data.settings_of(name)
    fields = kind.model_fields if kind else {}
    if fields:
        out.print()
        out.print(table_of((f"data.settings.{field}", info) for field, info in fields.items()))


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their full names."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@commands.command()
def check(names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]…", show_default=False)] = None) -> None:
    """Hold every file against its checksum; without names, of the data sets that are here.

    Ends with exit code 2 if a file is damaged, or if a data set that was named is not complete.
    """
    absent = (files.MISSING, files.BRING)
    chosen = names or [name for name in catalogue.CATALOGUE if files.state(name) not in absent]
    if not chosen:
        out.print(f"There are no data files in {files.folder()}.", highlight=False, soft_wrap=True)
    wrong = [name for name in dict.fromkeys(chosen) if not _check(name, complete=names is not None)]
    if wrong:
        mend = f"`fedkin data fetch {' '.join(wrong)}` mends that, or says what to bring."
        err.print(f"Not in order: {', '.join(wrong)}. {mend}", style="red")
        raise typer.Exit(2)


@commands.command("fetch")
def fetch_(
    names: Names,
    mirror: Annotated[
        str | None,
        typer.Option(
            help="A server or folder (http, https, file) laid out like the data folder, instead of the public hosts.",
            envvar="FEDKIN_MIRROR",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Download what is missing or damaged. A download that broke off goes on where it ended."""
    for name in dict.fromkeys(names):
        files.find(name)
    for name in dict.fromkeys(names):
        with _listening() as listener:
            new = fetch(name, mirror=mirror, listener=listener)
        count = f"{len(new)} file{'s' if len(new) > 1 else ''} fetched and verified" if new else "nothing to fetch"
        out.print(f"{name} is complete in {files.place(name)}: {count}.", highlight=False, soft_wrap=True)


@commands.command()
def export(
    name: Annotated[str, typer.Argument(help="A data set that is a table, such as heart.")],
    target: Annotated[Path, typer.Argument(metavar="FILE", help="A .csv, .tsv or .parquet file to write.")],
) -> None:
    """Write a table data set as one table with a client column: the form in which to bring your own."""
    if not files.find(name).table:
        tables = ", ".join(each for each, entry in catalogue.CATALOGUE.items() if entry.table)
        raise DataError(f"Data set {name!r} is not a table, so it cannot be exported as one; {tables} can be.")
    from ..data.from_tables import export as write

    write(name, target)
    out.print(f"Table: {target}", highlight=False, soft_wrap=True)


def _check(name: str, complete: bool) -> bool:
    """A line for each file; whether none is damaged and, if `complete`, one form is whole."""
    where, entry = files.place(name), files.find(name)
    forms = [form for form in entry.forms if any((where / file.name).exists() for file in form.files)]
    whole, damaged = False, False
    for form in forms or entry.forms[:1]:
        faults = {file.name: files.fault(where / file.name, file) for file in form.files}
        for each, fault in faults.items():
            line = f"{where / each}  {fault or 'fine'}"
            out.print(line, style="red" if fault else None, highlight=False, soft_wrap=True)
        whole |= not any(faults.values())
        damaged |= any(fault not in (None, files.MISSING) for fault in faults.values())
    return not damaged and (whole or not complete)


def _size(name: str) -> str:
    """Of the form that is here or begun; of the one that can be fetched, if nothing is."""
    forms = files.find(name).forms
    fetched = next((f for f in forms if f.archive or all(file.urls for file in f.files)), forms[0])
    form = fetched if files.state(name) in (files.MISSING, files.BRING) else files.begun(name)
    parts = [form.archive] if form.archive else form.files
    size = sum(file.bytes or 0 for file in parts)
    if not size:
        return ""
    return f"{size / 1e6:.1f} MB" if size > 1e5 else f"{size / 1e3:.0f} kB"


@contextmanager
def _listening() -> Iterator[Listener]:
    """A bar a file on a terminal, plain lines elsewhere. Ctrl-C leaves what has arrived for the next time."""

    def note(sentence: str) -> None:
        err.print(sentence, highlight=False, markup=False, soft_wrap=True)

    tenths: dict[str, int] = {}

    def line(file: File, here: int) -> None:
        """The tenths of a large file."""
        tenth = 10 * here // file.bytes if file.bytes and file.bytes > 10_000_000 else 0
        if tenth > tenths.setdefault(file.name, 0):
            tenths[file.name] = tenth
            note(f"{file.name}: {tenth * 10} %")

    try:
        if not err.is_terminal:
            yield Listener(line, note)
            return
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=err, transient=True) as progress:
            tasks: dict[str, TaskID] = {}

            def bar(file: File, here: int) -> None:
                if file.name not in tasks:
                    tasks[file.name] = progress.add_task(file.name, total=file.bytes)
                progress.update(tasks[file.name], completed=here)

            yield Listener(bar, note)
    except KeyboardInterrupt:
        raise Interrupted("Stopped. What has arrived is kept: the same command goes on from there.") from None
