"""The command itself, to which every file beside this one adds its part."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from pydantic.fields import FieldInfo
from rich.markup import escape
from rich.table import Column, Table

from ..runs import options
from ..version import __version__
from .terminal import out

app = typer.Typer(
    help="Personalised federated learning for silos: each ends with a model of its own, trained with its kin.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)

FREE = {"allow_extra_args": True, "ignore_unknown_options": True}
"""For commands that take any setting as an option."""
Words = Annotated[list[str] | None, typer.Argument(metavar="[CONFIG.toml] [SETTINGS]…", hidden=True)]
Native = Annotated[
    bool, typer.Option("--native", help="Each method's own local training, in place of an equal budget for all.")
]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at a time, each in a process of its own.")]
SinkWords = Annotated[
    list[str] | None,
    typer.Option(
        "--sink", help="Tell rounds as they end: jsonl:PATH (a file or a named pipe), tensorboard:FOLDER; repeatable."
    ),
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write to.", show_default=False)]


def table_of(settings: Iterable[tuple[str, FieldInfo]]) -> Table:
    """Settings by their full names, with defaults and meanings."""
    table = Table(Column("setting", no_wrap=True), Column("default", overflow="fold"), "meaning")
    for name, info in settings:
        default = "" if info.default is None or info.is_required() else json.dumps(info.default)
        table.add_row(name, escape(default), escape(options.meaning(info)))
    return table


def paragraphs(text: str) -> str:
    """A docstring for a terminal of any width: a line a paragraph."""
    return escape("\n\n".join(" ".join(part.split()) for part in text.split("\n\n")))


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show:
        out.print(f"fedkin {__version__}")
        raise typer.Exit
