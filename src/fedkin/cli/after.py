"""After training: `fedkin predict | export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Column, Table

from ..errors import FedkinError
from ..runs import export as exporting
from ..runs.folder import file_name
from ..runs.saved_model import Prediction, Saved
from ..studies.run import Run
from .app import app
from .terminal import err, out

SHOWN = 20
"""Rows that a terminal shows."""
CARRIED = 3
"""Columns of the given table that it shows beside the answers."""
CLASSES = 10
"""Classes up to which it shows a probability for each."""

Place = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or one client's model file (.safetensors).")]
Own = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="PACKAGE.MODULE:FACTORY", help="The network, if it is your own.", show_default=False
    ),
]


@app.command()
def predict(
    place: Place,
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="New rows: .csv, .tsv or .parquet for tables; .npy, or x in a .npz."),
    ],
    client: Annotated[str | None, typer.Option(help="Whose model, in a run folder.", show_default=False)] = None,
    target: Annotated[
        Path | None, typer.Option("--out", help="A new file, .csv or .parquet.", show_default=False)
    ] = None,
    model: Own = None,
) -> None:
    """Ask a client's model about new rows: `fedkin predict runs/mine --client north new.csv`.

    RUN is a run folder, or one client's model file; DATA a table (.csv, .tsv,
    .parquet) or an array (.npy, or x in a .npz), which is prepared as the rows
    were that the model was trained on. Columns that the model does not read, such
    as identifiers, stand beside its answers. Into a pipe, CSV is printed.
    """
    if target is not None:
        if target.suffix not in (".csv", ".parquet"):
            raise FedkinError(f"Predictions are written as .csv or .parquet; {target} is neither.")
        exporting.refuse_existing([target])
    found = _chosen(place, client, model).predict(data)
    for note in found.notes:
        err.print(note, style="yellow", highlight=False, soft_wrap=True, markup=False)
    if target is not None:
        exporting.write_new({target: exporting.prediction_file(found, target.suffix)})
        err.print(f"{len(found):,} rows: {target}", highlight=False, soft_wrap=True, markup=False)
    elif out.is_terminal:
        _show(found, data)
    else:
        sys.stdout.write(exporting.prediction_file(found, ".csv").decode())


@app.command()
def export(
    place: Place,
    format: Annotated[str, typer.Option(help="onnx: the complete model; state_dict: the network's tensors.")] = "onnx",
    client: Annotated[
        str | None, typer.Option(metavar="NAME|all", help="Whose model, in a run folder.", show_default=False)
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder to write to; `exported` in RUN if not given.")
    ] = None,
    model: Own = None,
) -> None:
    """Write a client's model for use elsewhere, or everyone's: `fedkin export runs/mine --client all`."""
    suffix = exporting.suffix_of(format)
    everyone = client == "all" and place.is_dir()
    names = Run(place).modelled if everyone else [client]
    where = folder or (place if place.is_dir() else place.parent) / "exported"
    if everyone:  # one that is in the way should not be met after half the others are written
        exporting.refuse_existing([where / f"{file_name(name)}{suffix}" for name in names if name])
    for name in names:
        saved = _chosen(place, name, model)
        path = saved.export(where / f"{file_name(saved.client)}{suffix}", format)
        out.print(str(path), highlight=False, soft_wrap=True, markup=False)


def _chosen(place: Path, client: str | None, model: str | None) -> Saved:
    """The model of a client in a run folder, or the one that a file holds."""
    if not place.is_dir():
        saved = Saved.load(place, model)
        if client not in (None, saved.client):
            raise FedkinError(f"{place} is the model of {saved.client!r}, not of {client!r}.")
        return saved
    run = Run(place)
    if client is None:
        raise FedkinError(f"Whose model? Say it with --client; in {place} are {', '.join(run.modelled) or 'none yet'}.")
    return run.saved(client, model)


def _show(prediction: Prediction, data: Path) -> None:
    """The first rows as a table, with whom they are about; of many classes the likeliest alone."""
    columns = prediction.columns()
    if prediction.probabilities is not None and len(columns) > 1 + CLASSES:
        columns = {"prediction": columns["prediction"], "probability": prediction.probabilities.max(1)}
    carried = dict(list(prediction.beside().items())[:CARRIED])
    heads = [*map(escape, carried), *(escape(name.removeprefix("probability_")) for name in columns)]
    table = Table(*(Column(head, justify="right") for head in ["row", *heads]), box=SIMPLE_HEAD, padding=0)
    digits = ".3f" if prediction.values is None else ".6g"
    known = [column[:SHOWN].to_pylist() for column in carried.values()]
    answers = [column[:SHOWN] for column in columns.values()]
    for number, row in enumerate(zip(*known, *answers, strict=True), 1):
        cells = (f"{cell:{digits}}" if isinstance(cell, np.floating) else _cell(cell) for cell in row)
        table.add_row(str(number), *cells)
    out.print(table)
    more = []
    if len(prediction) > SHOWN:
        more.append(f"{len(prediction) - SHOWN:,} more rows")
    if len(prediction.carried) > CARRIED:
        more.append(f"{len(prediction.carried) - CARRIED} more columns of {data.name}")
    if more:
        out.print(f"and {' and '.join(more)}; --out FILE.csv writes them all", style="dim", highlight=False)


def _cell(value: object) -> str:
    return "" if value is None else escape(str(value))
