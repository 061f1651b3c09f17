"""`fedkin bench`: how fast this machine is with fedkin."""

from __future__ import annotations

import shlex
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from .. import bench as measuring
from ..base.machine import chosen_device, device_name
from ..errors import FedkinError
from .app import app
from .terminal import err, out


@app.command()
def bench(
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU where torch sees one.")] = "auto",
    sections: Annotated[
        str, typer.Option(help=f"What to measure, separated by commas: {', '.join(measuring.SECTIONS)}.")
    ] = "",
    full: Annotated[bool, typer.Option("--full", help="All of docs/performance.md, which takes minutes.")] = False,
    target: Annotated[
        Path | None, typer.Option("--json", help="Also write the numbers to this file.", show_default=False)
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", hidden=True)] = False,
) -> None:
    """Measure how fast fedkin is here, beside plain torch and beside what the machine could do: a minute or two.

    One optimiser step for all clients in every way there is, whole rounds, attention and mixing,
    growth with clients and parameters, checkpoints. How to read it: docs/performance.md.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise FedkinError(f"--device {device} cannot be: there are auto, cpu and cuda.")
    if target is not None:
        if not target.name or target.is_dir():
            raise FedkinError(f"--json {target} is a folder: name a file to write the numbers to.")
        if not target.absolute().parent.is_dir():
            raise FedkinError(f"{target} cannot be written: the folder {target.absolute().parent} is not there.")
        measuring.record.read(target)  # nothing else is overwritten
    size: Literal["tiny", "short", "full"] = "tiny" if tiny else "full" if full else "short"
    names = measuring.chosen(sections, tuple(measuring.SECTIONS) if full else measuring.SHORT)
    place = chosen_device(device)
    plan = measuring.Plan(place, size, lambda what: err.print(what, style="dim", highlight=False))
    command = shlex.join(["fedkin", *sys.argv[1:]])
    found: dict[str, Any] = {}
    if target is not None:
        measuring.record.write(target, found)  # what cannot be written is told before minutes are spent
    try:
        for name in names:
            found[name] = measuring.measured(name, plan, command)
            show(name, found[name]["rows"])
            if target is not None:
                measuring.record.write(target, found)
    except KeyboardInterrupt:
        where = f" What was measured so far is in {target}." if target is not None and found else ""
        raise FedkinError(f"Stopped before everything was measured.{where}") from None
    about = found[names[0]]["origin"]
    told = f"{device_name(place)}, " if plan.cuda else ""
    out.print(
        f"{told}{about['machine']['cpu']}, {about['machine']['cores']} cores, torch {about['versions']['torch']}, "
        f"{sum(each['seconds'] for each in found.values()):.0f} s in all.",
        highlight=False,
    )
    if (about["load_average"] or 0) > 0.5 * (about["machine"]["cores"] or 1):
        out.print(
            f"The machine was busy with other things (load average {about['load_average']}): ratios are rough, too.",
            highlight=False,
        )
    if target is not None:
        out.print(f"Numbers: [bold]{escape(str(target))}[/]", soft_wrap=True)


def show(section: str, rows: list[measuring.Row]) -> None:
    """A section's table, and what could not be measured."""
    heads, lines = measuring.table(section, rows)
    if lines:
        table = Table(title=measuring.title(section), title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False)
        for i, head in enumerate(heads):
            numbers = all(line[i][:1].isdigit() for line in lines if line[i])
            table.add_column(textwrap.fill(head, 10), justify="right" if numbers else "left")
        for line in lines:
            table.add_row(*map(escape, line))
        out.print(table)
    for sentence in measuring.skipped(rows):
        out.print(f"Not measured. {sentence}", style="dim", highlight=False, markup=False)
