"""`fedkin papers` and `fedkin reproduce`: the papers' tables, and the runs behind them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from ..engines.simulation import Interrupted
from ..papers import published
from ..studies import reproduce as study
from ..studies.reproduced import Reproduced
from .app import Out, app
from .terminal import err, interruptible, out


class Scale(StrEnum):
    paper = "paper"
    small = "small"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


@app.command()
def papers(
    name: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="One of them, with all that is open.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the result files.")] = study.RESULTS,
) -> None:
    """The papers' tables that can be reproduced, and how much of each is done."""
    found = Reproduced(results, lambda said: err.print(said, style="yellow", markup=False, highlight=False))
    if not found.results:
        out.print(f"There are no results in {results.resolve()}; --results names another folder.", markup=False)
    if name is None:
        right = [Column(head, justify="right", no_wrap=True) for head in ("cells done", "runs done")]
        table = Table(Column("table", no_wrap=True), "what", "source", *right)
        for each in published.names():
            whole, counts = published.table(each), (found.done(each), found.runs_done(each))
            table.add_row(
                each, escape(whole.title), escape(whole.source), *(f"{done} of {all_}" for done, all_ in counts)
            )
        out.print(table)
        out.print("A cell is done as soon as one of its seeds is; the queue wants up to five of them.")
        out.print("One of them: `fedkin papers fedamp-table3`. What is missing: `fedkin reproduce fedamp-table3`.")
        return
    whole = published.table(name)
    out.print(f"[bold]{escape(whole.title)}[/]\n{escape(whole.source)}.\n")
    out.print(f"columns: {escape(', '.join(whole.columns))}\nruns: {escape(', '.join(whole.runs))}")
    for column, about in whole.columns.items():
        if about.unavailable:
            out.print(f"{column} cannot be had here: {escape(about.unavailable)}")
    out.print("\nWhat the paper leaves open, and what we chose:")
    for said in whole.open:
        out.print(f"- {escape(said)}")
    out.print(f"\n{study.told(study.Wanted(name, out=results), found)}", markup=False)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="Of all tables if none is named.")] = None,
    only: Annotated[str, typer.Option(help="Columns, runs, or both as emnist/fedamp, with commas between.")] = "",
    seeds: Annotated[int | None, typer.Option(min=1, help="So many for each cell; else as the queue says.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Another number: another experiment.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="After which a run is put aside for next time.")] = None,
    scale: Annotated[Scale, typer.Option(help="small: minutes on a laptop, and not the paper's experiment.")] = (
        Scale.paper
    ),
    folder: Out = None,
    device: Device = Device.auto,
) -> None:
    """Runs what is missing of the papers' tables, the most telling first, and shows ours beside theirs.

    A run that time cuts short is kept, and goes on when the same command is given again on this machine. Result files
    go to results/; those of a small scale or of other rounds, which are other experiments, to runs/reproduce/results/.
    """
    wanted = study.Wanted(name, only, seeds, rounds, minutes, scale.value, folder, device.value)
    with interruptible() as stop:
        found = study.reproduce(wanted, lambda said: out.print(escape(said), soft_wrap=True, highlight=False), stop)
        stopped = stop()
    out.print(f"\n{study.told(wanted, found)}", markup=False, soft_wrap=True, highlight=False)
    left = [job for job in wanted.jobs if not found.has(job)]
    if left:
        out.print(f"\n{len(left)} of {len(wanted.jobs)} runs are still to do.", highlight=False)
    if stopped:
        raise Interrupted("Stopped. What was done is kept; the same command goes on.")
