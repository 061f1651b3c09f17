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
from ..base.task import METRICS, Task
from . import cells, events, subjects
from .columns import (
    FEW,
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
from .federation import Client, Federation, Pair
from .folders import arrays, entries
from .parts import NAMES
from .preprocessing import Column, Number, Statistics, TablePreprocessing, TableSettings, fitted
from .ranges import with_ranges
from .table import SUFFIXES, Numbers, Table, TableError, joined, read

# Of a table nothing is known but that it is small: a rate at which training comes to its end, a little weight decay
# (scikit-learn's logistic regression has as much, C = 1, with a hundred rows), and validation data say when it is done.
DEFAULTS: dict[str, Any] = {
    "data": {"split": "natural"},
    "rounds": "auto",
    "model": {"name": "mlp", "settings": {"hidden": [32]}},
    "local": {"epochs": 2, "batch_size": 16, "optimiser": "adam", "lr": 1e-2, "weight_decay": 1e-2},
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
        strata = _strata(self.table, self.settings) if lived is None else lived[:, 1].long().numpy()
        parts = self.rows.parts(test_fraction, validation, seed, strata, found)
        train = {client: part.train for client, part in parts.items()}
        everyone = np.concatenate(list(train.values()))
        y, task = _learned(self.table, self.settings, everyone) if lived is None else (lived, Task.survival(()))
        weight = _weights(self.table, self.settings)
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
                preprocessing=with_ranges(fits[c], raw.numpy()[p.train]),
                test_rows=torch.from_numpy(np.searchsorted(self.rows.own[c], p.test)),
                test_subjects=None if found is None else torch.from_numpy(found.codes[p.test]),
                weight=None if weight is None else weight[torch.from_numpy(p.train)],
            )
            for c, p in parts.items()
        ]
        told = at_most(list(look_alikes(Counter(self.rows.sizes)).values()))
        told += of_reading(self.table, columns)
        told += subjects.notes(self.table, self.settings, found, self.rows.codes, columns)
        told += [*notes(columns, raw.numpy(), train), *unfitted.notes(self.table)]
        known = strata is not None and lived is None
        labels = (np.array(task.class_names)[strata] if task.class_names else strata) if known else None
        told += self.rows.notes(parts, test_fraction, validation, labels)
        told += _alike(task.class_names)
        task = replace(task, inputs=(len(unfitted.inputs),))
        return Federation(name, tuple(members), task, notes=tuple(told))


def _alike(classes: Sequence[str]) -> list[str]:
    """Classes that differ only in capitals or spaces."""
    found: dict[str, list[str]] = {}
    for name in classes:
        found.setdefault(" ".join(name.split()).lower(), []).append(name)
    twins = [repr(name) for names in found.values() if len(names) > 1 for name in names]
    return (
        [f"The classes {', '.join(twins)} differ only in capitals or spaces, and count as different."] if twins else []
    )


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
    `table.statistics` says of inputs: weights are mixed, so an output has to mean the same everywhere. Where nobody
    said so, a loss of one's own gets them as they were (`Task.scaled_unasked`).
    """
    target = _target(table, settings)
    different = sorted(set(target)) if isinstance(target, list) else np.unique(target).tolist()
    if len(different) == 1:
        value = cells.category(different[0])
        raise TableError(f"The target {settings.target!r} is {value} in all rows of all silos: nothing can be learned.")
    if _are_classes(target, settings):
        if len(different) > MOST_CLASSES or len(different) == len(target):
            raise TableError(
                f"The target {settings.target!r} has {len(different)} different values in {len(target)} rows, too many "
                "for classes. If they are amounts, say table.task = 'regression'; otherwise choose another target."
            )
        y = torch.from_numpy(np.unique(np.array(target), return_inverse=True)[1].astype(np.int64))
        return y, Task.classification((), len(different), tuple(cells.category(value) for value in different))
    if isinstance(target, list):
        raise TableError(
            f"{table.where(0)}: the target {settings.target!r} is {target[0]!r}, but table.task = 'regression' needs "
            "numbers."
        )
    task = replace(Task.regression((), 1), metric=METRICS["rmse"])
    if settings.scale_target == "none":
        return torch.from_numpy(target), task
    statistics = Statistics.of(target[train, None])
    mean, scale = float(statistics.mean[0]), float(statistics.deviation[0])
    y = torch.from_numpy((target - mean) / scale)  # in double precision: a loss of one's own gets them back
    unasked = settings.scale_target == "auto"
    return y, replace(task, target_mean=mean, target_scale=scale, scaled_unasked=unasked)


def _strata(table: Table, settings: TableSettings) -> Rows | None:
    """(n,) each row's class by number, in which splits have their share of every class; None for a regression."""
    target = _target(table, settings)
    if not _are_classes(target, settings):
        return None
    different, codes = np.unique(np.array(target), return_inverse=True)
    return codes.astype(np.int64) if len(different) <= MOST_CLASSES else None  # too many are refused later


def _are_classes(target: Numbers | list[Any], settings: TableSettings) -> bool:
    if settings.task != "auto" or isinstance(target, list):
        return settings.task != "regression"
    different = np.unique(target)
    return len(different) <= FEW and bool((different == np.floor(different)).all())


def _weights(table: Table, settings: TableSettings) -> Tensor | None:
    """(n,) how much each row counts in the training loss."""
    if settings.weight is None:
        return None
    found = cells.values(table, settings.weight, marks(settings, settings.weight))
    bad = [i for i, value in enumerate(found) if not isinstance(value, float) or not value > 0]
    if bad:
        value = found[bad[0]] if isinstance(found, list) else float(found[bad[0]])
        shown = "missing" if value is None or value != value else repr(value)
        raise TableError(
            f"{table.where(bad[0])}: the weight, column {settings.weight!r}, is {shown}; it has to be a number above 0 "
            "in every row."
        )
    return torch.from_numpy(np.asarray(found, dtype=np.float64)).float()


def _target(table: Table, settings: TableSettings) -> Numbers | list[Any]:
    """The target's values: all numbers, all texts or all truths."""
    assert settings.target is not None
    found = cells.values(table, settings.target, marks(settings, settings.target))
    refuse_gaps(table, settings.target, found, "target")
    if isinstance(found, np.ndarray):
        return found
    kinds = list(map(type, found))
    if len(set(kinds)) > 1:
        here, there = 0, next(i for i, kind in enumerate(kinds) if kind is not kinds[0])
        raise TableError(
            f"The target {settings.target!r} mixes types: it is {found[here]!r} in {table.where(here)}, and "
            f"{found[there]!r} in {table.where(there)}. Give numbers only, or texts only."
        )
    return list(cells.categories(table, settings.target, marks(settings, settings.target)))
