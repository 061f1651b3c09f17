"""Federations from tables: one with a client column, or a folder with a table for each client.

Rows are first split into training, validation and test rows; then the columns are understood, and prepared by what the
training rows alone say.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..base import files
from ..base.task import METRICS, Task
from . import cells
from .columns import FEW, MOST, Rows, at_most, look_alikes, marks, notes, refuse_gaps, refuse_unknown, understand
from .federation import Client, Federation, FederationError, Pair, test_part, validation_part
from .folders import arrays, entries
from .preprocessing import Column, Number, Statistics, TablePreprocessing, TableSettings, fitted
from .table import SUFFIXES, Numbers, Table, TableError, joined, read

DEFAULTS: dict[str, Any] = {
    "data": {"split": "natural"},
    "rounds": 30,
    "model": {"name": "mlp", "settings": {"hidden": [32]}},
    "local": {"epochs": 2, "batch_size": 16, "optimiser": "adam", "lr": 1e-3},
}
MOST_CLASSES = 1000


def is_table(name: str) -> bool:
    """Whether a name that is no data set's is the path of a table or a folder."""
    return name.lower().endswith(SUFFIXES) or "/" in name or Path(name).exists()


def located(name: str) -> str:
    """The absolute path, so that a run finds its data from anywhere."""
    return str(Path(name).expanduser().absolute())


def load(
    place: str,
    settings: TableSettings,
    *,
    seed: int = 0,
    test_fraction: float = 0.25,
    validation: float = 0.1,
    digest: str | None = None,
) -> Federation:
    """The federation of a table's or a folder's path; `digest` is what it has to have, if it was read before."""
    path = Path(place).expanduser()
    if digest is not None and digest != digest_of(path):
        raise TableError(
            f"{path} is not the file this run began with: its content has changed. Put the old one back; or, to run on "
            "it as it is now, begin a new run without data.digest."
        )
    build = from_folder if path.is_dir() else from_table
    return build(path, settings, test_fraction=test_fraction, validation=validation, seed=seed)


def digest_of(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of all files in a folder."""
    try:
        if not path.is_dir():
            return hashlib.sha256(path.read_bytes()).hexdigest()
        files = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
        listed = [f"{p.relative_to(path).as_posix()} {digest_of(p)}" for p in files]
        return hashlib.sha256("\n".join(listed).encode()).hexdigest()
    except FileNotFoundError:
        raise TableError(f"There is no file or folder {path}.") from None
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror}.") from None


def from_table(
    table: Any,
    settings: TableSettings,
    *,
    test: Any = None,
    test_fraction: float = 0.25,
    validation: float = 0.1,
    seed: int = 0,
    name: str | None = None,
) -> Federation:
    """A client for each value of the column `settings.client`; test rows from a second table, or by lot."""
    parts = [read(table)] if test is None else [read(table), read(test, "the test table")]
    columns = dict.fromkeys(column for part in parts for column in part.columns)
    if settings.client is None:
        raise TableError(
            f"Which column of {parts[0].name} names the silo? Say it with client = … (--client); "
            f"the columns are {', '.join(columns)}."
        )
    refuse_unknown(parts[0].name, columns, settings)
    whole = joined(parts[0].name, parts, settings.ignore)
    owners = cells.categories(whole, settings.client, marks(settings, settings.client))
    refuse_gaps(whole, settings.client, owners, "client")
    given = np.arange(len(whole)) >= len(parts[0])
    stem = Path(table).stem if isinstance(table, str | Path) else parts[0].name.removeprefix("the ")
    return _Silos(whole, np.array(owners), given, settings).federation(name or stem, test_fraction, validation, seed)


def from_folder(
    folder: Path | str,
    settings: TableSettings,
    *,
    test_fraction: float = 0.25,
    validation: float = 0.1,
    seed: int = 0,
    name: str | None = None,
) -> Federation:
    """A client for each file or sub-folder, named after it, with tables or arrays in it."""
    path = Path(folder).expanduser()
    found = entries(path)
    if settings.client is not None:
        raise TableError(
            f"In the folder {path} the name of a file or sub-folder is the client; leave out table.client."
        )
    if not all(entry.tables for entry in found.values()):
        given_arrays = {client: arrays(entry) for client, entry in found.items()}
        task = None if settings.task == "auto" else settings.task
        named = name or path.absolute().name
        return Federation.from_arrays(given_arrays, task, test_fraction=test_fraction, seed=seed, name=named)
    parts, owners, given = [], list[str](), list[bool]()
    for client, entry in found.items():
        for at, file in enumerate(entry.tables):
            part = read(file)
            parts.append(part if file.stem == client else _within(part, client))
            owners += [client] * len(part)
            given += [at == 1] * len(part)
    refuse_unknown(path.name, dict.fromkeys(column for part in parts for column in part.columns), settings)
    silos = _Silos(joined(path.name, parts, settings.ignore), np.array(owners), np.array(given), settings)
    return silos.federation(name or path.absolute().name, test_fraction, validation, seed)


def _within(table: Table, folder: str) -> Table:
    """A table that sentences call 'north/train.csv'."""
    return replace(table, name=f"{folder}/{table.name}", where=lambda i: f"{folder}/{table.where(i)}")


def _put(path: Path, content: bytes) -> None:
    try:
        files.write({path: content})
    except OSError as error:
        raise TableError(f"{path} cannot be written: {error.strerror or error}. Nothing was left there.") from None


def export(name: str, path: Path | str) -> Path:
    """Writes a built-in table as one CSV, TSV or Parquet file with its client column; missing cells are empty."""
    from .. import data

    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise TableError(f"A table is written to a {', '.join(SUFFIXES)} file, not to {target.name}.")
    if name not in data.names():
        data.source(name)  # which says the nearest name
    make = getattr(importlib.import_module(f"{__package__}.sets.{name}"), "table", None)
    if make is None:
        raise TableError(f"Data set {name!r} is not a table and cannot be written as one.")
    table: Table = make()
    columns = {column: [_written(cell) for cell in table[column]] for column in table.columns}
    if target.suffix.lower() == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        buffer = io.BytesIO()
        pq.write_table(pa.table(columns), buffer)
        _put(target, buffer.getvalue())
        return target
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t" if target.suffix.lower() == ".tsv" else ",", lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    _put(target, text.getvalue().encode())
    return target


def _written(cell: Any) -> Any:
    """Missing as None; whole numbers without a point."""
    if cell is None or cell != cell:
        return None
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


# ---- from rows to clients ----


@dataclass(frozen=True)
class _Parts:
    """The numbers of a client's rows: for training, for validation and for testing."""

    train: Rows
    validation: Rows
    test: Rows


@dataclass(frozen=True, eq=False)
class _Silos:
    """A table and whose its rows are. owners: (n,) names of clients; given: (n,) whether a row is given for testing."""

    table: Table
    owners: NDArray[np.str_]
    given: NDArray[np.bool_]
    settings: TableSettings

    def federation(self, name: str, test_fraction: float, validation: float, seed: int) -> Federation:
        parts = self._parts(test_fraction, validation, seed)
        train = {client: part.train for client, part in parts.items()}
        everyone = np.concatenate(list(train.values()))
        y, task = _learned(self.table, self.settings, everyone)
        columns = understand(self.table, self.settings, everyone)
        unfitted = TablePreprocessing(tuple(columns))
        raw = unfitted.read(self.table)
        fits = _fits(columns, raw.numpy(), self.settings, train)

        def pair(client: str, rows: Rows) -> Pair:
            at = torch.from_numpy(rows)
            return fits[client].module()(raw[at]), y[at]

        members = [
            Client(
                c,
                pair(c, p.train),
                pair(c, p.test),
                pair(c, p.validation),
                preprocessing=fits[c],
                test_rows=torch.from_numpy(np.searchsorted(np.flatnonzero(self.owners == c), p.test)),
            )
            for c, p in parts.items()
        ]
        told = at_most(list(look_alikes(Counter(self.owners.tolist())).values()))
        told += [*notes(columns, raw.numpy(), train), *unfitted.notes(self.table)]
        task = replace(task, inputs=(len(unfitted.inputs),))
        return Federation(name, tuple(members), task, notes=tuple(told))

    def _parts(self, test_fraction: float, validation: float, seed: int) -> dict[str, _Parts]:
        """Each client's rows, test rows as given or by lot; clients in the order of their names."""
        if not 0 < test_fraction < 1:
            raise FederationError(f"test_fraction is {test_fraction}, but has to lie between 0 and 1, both excluded.")
        if not 0 <= validation < 1:
            raise FederationError(f"validation is {validation}, but has to be at least 0 and below 1.")
        parts, lacking = {}, dict[str, str]()
        for client in sorted(set(self.owners.tolist())):
            own, test = (np.flatnonzero((self.owners == client) & part) for part in (~self.given, self.given))
            if self.given.any() and not (len(own) and len(test)):
                lacking[client] = f"{client!r} has {len(own)} for training and {len(test)} for testing"
                continue
            if not self.given.any():
                if len(own) < 2:
                    lacking[client] = f"{client!r} has {len(own)} in all"
                    continue
                rest, held = test_part(len(own), test_fraction, seed, client)
                own, test = own[rest.numpy()], own[held.numpy()]
            rest, held = validation_part(len(own), validation, seed, client)
            parts[client] = _Parts(own[rest.numpy()], own[held.numpy()], test)
        if lacking:
            more = f"; {len(lacking) - MOST} more clients have too few" if len(lacking) > MOST else ""
            listed = ", ".join(list(lacking.values())[:MOST])
            alike = look_alikes(Counter(self.owners.tolist()), lacking)
            hints = [f" {alike[client]}" for client in lacking if client in alike]
            raise FederationError(
                f"A client needs at least one row for training and one for testing: {listed}{more}. "
                f"Give more rows, or leave the client's out.{''.join(hints[:MOST])}"
            )
        return parts


def _fits(
    columns: Sequence[Column], raw: Numbers, settings: TableSettings, train: Mapping[str, Rows]
) -> dict[str, TablePreprocessing]:
    """Each client's preprocessing, from its own statistics or from those of all."""
    if settings.statistics == "shared" and settings.fill == "median":
        raise TableError(
            "table.fill = 'median' needs table.statistics = 'own': the medians of single silos do not give that of all."
        )
    numbers = raw[:, [isinstance(column, Number) for column in columns]]
    own = {client: Statistics.of(numbers[rows]) for client, rows in train.items()}
    shared = reduce(Statistics.merge, own.values())
    if not np.isfinite(shared.m2).all():
        at = [c.name for c in columns if isinstance(c, Number)][int((~np.isfinite(shared.m2)).argmax())]
        raise TableError(f"Column {at!r} has numbers that are too large to square; give it in another unit.")
    if settings.statistics == "shared":
        return dict.fromkeys(train, fitted(columns, shared, settings))
    return {
        client: fitted(columns, own[client], settings, _medians(numbers[rows]) if settings.fill == "median" else None)
        for client, rows in train.items()
    }


def _medians(numbers: Numbers) -> list[float]:
    """Of (n, k) numbers; 0 where a column is empty."""
    known = [column[~np.isnan(column)] for column in numbers.T]
    return [float(np.median(column)) if len(column) else 0.0 for column in known]


# ---- what is learned ----


def _learned(table: Table, settings: TableSettings, train: Rows) -> tuple[Tensor, Task]:
    """(n,) the targets as models are trained on them, and the task, whose inputs are yet unknown.

    Classes are those of all rows. Numbers are scaled by the training rows of all silos together, whatever
    `table.statistics` says of inputs: weights are mixed, so an output has to mean the same everywhere.
    """
    target = _target(table, settings)
    different = sorted(set(target))
    if len(different) == 1:
        value = cells.category(different[0])
        raise TableError(f"The target {settings.target!r} is {value} in all rows of all silos: nothing can be learned.")
    few = isinstance(target, list) or (len(different) <= FEW and all(value.is_integer() for value in different))
    if settings.task == "classification" or (settings.task == "auto" and few):
        if len(different) > MOST_CLASSES or len(different) == len(target):
            raise TableError(
                f"The target {settings.target!r} has {len(different)} different values in {len(target)} rows, too many "
                "for classes. If they are amounts, say table.task = 'regression'; otherwise choose another target."
            )
        place = {value: i for i, value in enumerate(different)}
        y = torch.tensor([place[value] for value in target])
        return y, Task.classification((), len(different), tuple(cells.category(value) for value in different))
    if isinstance(target, list):
        raise TableError(
            f"{table.where(0)}: the target {settings.target!r} is {target[0]!r}, but table.task = 'regression' needs "
            "numbers."
        )
    statistics = Statistics.of(target[train, None])
    mean, scale = float(statistics.mean[0]), float(statistics.deviation[0])
    y = torch.from_numpy((target - mean) / scale).float()
    return y, replace(Task.regression((), 1), metric=METRICS["rmse"], target_mean=mean, target_scale=scale)


def _target(table: Table, settings: TableSettings) -> Numbers | list[Any]:
    """The target's values: all numbers, all texts or all truths."""
    assert settings.target is not None
    found = cells.values(table, settings.target, marks(settings, settings.target))
    refuse_gaps(table, settings.target, found, "target")
    if isinstance(found, np.ndarray):
        return found
    first: dict[type, int] = {}
    for i, value in enumerate(found):
        first.setdefault(type(value), i)
    if len(first) > 1:
        here, there, *_ = first.values()
        raise TableError(
            f"The target {settings.target!r} mixes types: it is {found[here]!r} in {table.where(here)}, and "
            f"{found[there]!r} in {table.where(there)}. Give numbers only, or texts only."
        )
    return list(cells.categories(table, settings.target, marks(settings, settings.target)))
