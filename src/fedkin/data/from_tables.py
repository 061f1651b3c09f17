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
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..base import files
from ..base.task import Task
from . import cells, duplicates, events, record_numbers, sentinels, subjects, targets
from .columns import (
    Rows,
    at_most,
    look_alikes,
    marks,
    notes,
    of_reading,
    refuse_gaps,
    refuse_unknown,
    understand,
)
from .dealt import Dealt
from .federation import AsRead, Client, Federation
from .folders import arrays, entries
from .parts import NAMES
from .preprocessing import Column, Number, Statistics, TablePreprocessing, TableSettings, fitted
from .ranges import with_ranges
from .subjects import Subjects
from .table import SUFFIXES, Numbers, Table, TableError, joined, read

# Of a table nothing is known but that it is small: a rate at which training comes to its end, a little weight decay
# (scikit-learn's logistic regression has as much, C = 1, with a hundred rows), and validation data say when it is done.
DEFAULTS: dict[str, Any] = {
    "data": {"split": "natural"},
    "rounds": "auto",
    "model": {"name": "mlp", "settings": {"hidden": [32]}},
    "local": {"epochs": 2, "batch_size": 16, "optimiser": "adam", "lr": 1e-2, "weight_decay": 1e-2},
}


def is_table(name: str) -> bool:
    """Whether a name that is no data set's is the path of a table or a folder."""
    return name.lower().endswith(SUFFIXES) or "/" in name or Path(name).exists()


def has_tables(path: Path) -> bool:
    """Whether a path is that of a table, or of a folder with some; not of a folder of arrays."""
    return not path.is_dir() or any(file.suffix.lower() in SUFFIXES for file in path.rglob("*"))


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
    validation: Any = 0.1,
    seed: int = 0,
    name: str | None = None,
) -> Federation:
    """A client for each value of the column `settings.client`; rows for testing and validation from further tables, as
    the column `settings.fold` says, or by lot; then `validation` is a share."""
    share, held = (validation, None) if isinstance(validation, Real) else (0.0, validation)
    given = {"test": test, "validation": held}
    tables = {"": read(table), **{p: read(rows, f"the {p} table") for p, rows in given.items() if rows is not None}}
    parts = list(tables.values())
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
    part = np.repeat(list(tables), [len(each) for each in parts])
    stem = Path(table).stem if isinstance(table, str | Path) else parts[0].name.removeprefix("the ")
    silos = _Silos(whole, Dealt(whole, np.array(owners, dtype=np.str_), _folds(whole, part, settings)), settings)
    return silos.federation(name or stem, test_fraction, float(share), seed)


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
        roles = sorted({*settings.roles} - {"client", "target"})
        if roles:
            raise TableError(
                f"table.{roles[0]} names a column of a table, and {path} holds arrays: put it beside x and y as an "
                "array of its own (group, weight), or give the parts as x_test, y_test, x_validation and y_validation."
            )
        return Federation.from_arrays(given_arrays, task, test_fraction=test_fraction, seed=seed, name=named)
    tables, owners, parts = [], list[str](), list[str]()
    for client, entry in found.items():
        for part, file in entry.tables.items():
            table = read(file)
            tables.append(table if file.stem == client else _within(table, client))
            owners += [client] * len(table)
            parts += ["" if part == "train" else part] * len(table)
    refuse_unknown(path.name, dict.fromkeys(column for table in tables for column in table.columns), settings)
    whole = joined(path.name, tables, settings.ignore)
    silos = _Silos(whole, Dealt(whole, np.array(owners), _folds(whole, np.array(parts), settings)), settings)
    return silos.federation(name or path.absolute().name, test_fraction, validation, seed)


def _folds(table: Table, part: NDArray[np.str_], settings: TableSettings) -> NDArray[np.str_]:
    """(n,) what each row is for, as files or the column `settings.fold` say: "test", "validation", or "" for training
    and for what is drawn by lot."""
    if settings.fold is None:
        return part
    if (part != "").any():
        raise TableError(
            f"Either files or tables of their own say which rows are for testing and validation, or table.fold = "
            f"{settings.fold!r} does: leave one of them out."
        )
    said = cells.categories(table, settings.fold, marks(settings, settings.fold))
    refuse_gaps(table, settings.fold, said, "fold")
    meant = {word: NAMES.get(str(word).lower()) for word in set(said)}
    for row, word in enumerate(said) if None in meant.values() else ():
        if meant[word] is None:
            raise TableError(
                f"{table.where(row)}: the fold, column {settings.fold!r}, is {word!r}. It has to be train, validation "
                "(or val, valid, dev) or test."
            )
    return np.array([{"train": ""}.get(str(meant[word]), str(meant[word])) for word in said], dtype=np.str_)


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


@dataclass(frozen=True, eq=False)
class _Silos:
    """A table, whose its rows are and what for, and how it is to be prepared."""

    table: Table
    rows: Dealt
    settings: TableSettings

    def federation(self, name: str, test_fraction: float, validation: float, seed: int) -> Federation:
        lived = events.targets(self.table, self.settings) if self.settings.survival else None
        found = subjects.of(self.table, self.settings)
        strata = targets.strata(self.table, self.settings) if lived is None else lived[:, 1].long().numpy()
        parts = self.rows.parts(test_fraction, validation, seed, strata, found)
        train = {client: part.train for client, part in parts.items()}
        everyone = np.concatenate(list(train.values()))
        y, task = targets.learned(self.table, self.settings, everyone) if lived is None else (lived, Task.survival(()))
        weight = targets.weights(self.table, self.settings)
        columns = understand(self.table, self.settings, everyone)
        unfitted = TablePreprocessing(tuple(columns))
        raw = unfitted.read(self.table)
        fits, alone = _fits(columns, raw.numpy(), self.settings, train)
        members = []
        for client, part in parts.items():
            rows = [torch.from_numpy(own) for own in (part.train, part.test, part.validation)]
            read, ranging = tuple(raw[at] for at in rows), raw.numpy()[part.train]
            pairs = [(fits[client].module()(x), y[at]) for x, at in zip(read, rows, strict=True)]
            inputs = tuple(x for x, _ in pairs)
            members.append(
                Client(
                    client,
                    pairs[0],
                    pairs[1],
                    pairs[2],
                    preprocessing=with_ranges(fits[client], ranging),
                    test_rows=torch.from_numpy(np.searchsorted(self.rows.own[client], part.test)),
                    test_subjects=None if found is None else torch.from_numpy(found.codes[part.test]),
                    weight=None if weight is None else weight[rows[0]],
                    as_read=AsRead(read, inputs, with_ranges(alone[client], ranging)) if alone else None,
                )
            )
        numbering = record_numbers.of_table(columns, raw.numpy(), self.rows.codes)
        told = self._notes(columns, raw.numpy(), train, found, numbering)
        measured = [raw[:, i] for i, column in enumerate(columns) if column.name not in numbering]
        told += self._copies([*measured, *y.reshape(len(y), -1).T, *([] if weight is None else [weight])], found)
        told += unfitted.notes(self.table)
        known = strata is not None and lived is None
        labels = (np.array(task.class_names)[strata] if task.class_names else strata) if known else None
        told += self.rows.notes(parts, test_fraction, validation, labels)
        told += targets.notes(self.table, self.settings, task, train) if lived is None else []
        task = replace(task, inputs=(len(unfitted.inputs),))
        return Federation(
            name,
            tuple(members),
            task,
            notes=tuple(told),
            statistics=self.settings.statistics,
            split_seed=None if (self.rows.given == "test").any() else seed,
        )

    def _notes(
        self,
        columns: Sequence[Column],
        raw: Numbers,
        train: Mapping[str, Rows],
        found: Subjects | None,
        numbering: Sequence[str],
    ) -> list[str]:
        """What may surprise in silos and columns. raw: (n, columns); train: each silo's rows."""
        told = at_most(list(look_alikes(Counter(self.rows.sizes)).values()))
        told += of_reading(self.table, columns)
        told += subjects.notes(self.table, self.settings, found, self.rows.codes, columns)
        told += record_numbers.notes(numbering)
        codes = sentinels.of_table(columns, raw)
        told += sentinels.notes(codes, columns, raw, self.settings)
        return told + notes(columns, raw, train, self.settings, {code.column for code in codes})

    def _copies(self, read: Sequence[Tensor], found: Subjects | None) -> list[str]:
        """Rows that are there twice, as far as they are read; a number of its own makes no row another."""
        keys, whose = [each.double().numpy() for each in read], None if found is None else found.codes
        return duplicates.notes(self.table, keys, self.rows.codes, list(self.rows.own), whose)


Fits = dict[str, TablePreprocessing]


def _fits(
    columns: Sequence[Column], raw: Numbers, settings: TableSettings, train: Mapping[str, Rows]
) -> tuple[Fits, Fits | None]:
    """Each client's preprocessing, from its own statistics or from those of all; and, where that is open, the one that
    it has by itself."""
    if settings.statistics != "own" and settings.fill == "median":
        raise TableError(
            "table.fill = 'median' needs table.statistics = 'own' (--statistics own): the medians of single silos do "
            "not give that of all."
        )
    numbers = raw[:, [isinstance(column, Number) for column in columns]]
    own = {client: Statistics.of(numbers[rows]) for client, rows in train.items()}
    shared = reduce(Statistics.merge, own.values())
    if not np.isfinite(shared.m2).all():
        at = [c.name for c in columns if isinstance(c, Number)][int((~np.isfinite(shared.m2)).argmax())]
        raise TableError(f"Column {at!r} has numbers that are too large to square; give it in another unit.")
    together = dict.fromkeys(train, fitted(columns, shared, settings))
    if settings.statistics == "shared":
        return together, None
    alone = {
        client: fitted(columns, own[client], settings, _medians(numbers[rows]) if settings.fill == "median" else None)
        for client, rows in train.items()
    }
    return (together, alone) if settings.statistics == "auto" else (alone, None)


def _medians(numbers: Numbers) -> list[float]:
    """Of (n, k) numbers; 0 where a column is empty."""
    known = [column[~np.isnan(column)] for column in numbers.T]
    return [float(np.median(column)) if len(column) else 0.0 for column in known]
