"""The command itself, to which every file beside this one adds its part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from ..terminal import out

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
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write to.", show_default=False)]


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show:
        out.print(f"fedkin {__version__}")
        raise typer.Exit
