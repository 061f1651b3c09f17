"""Tables as people have them: CSV, TSV and Parquet files, pandas and polars frames, columns or rows in Python.

A table is read into columns of plain cells; what a cell means (a number, a category, nothing) is asked of it later, in
`cells`. Nothing that is opened here can run code.
"""

from __future__ import annotations

import datetime
import numbers as kinds
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..base.wording import did_you_mean
from . import delimited
from .delimited import TableError, Texts, records

__all__ = ["SUFFIXES", "Cells", "Numbers", "Table", "TableError", "Texts", "joined", "read", "records"]
SUFFIXES = (".csv", ".tsv", ".parquet")
Numbers = NDArray[np.float64]
Cells = Numbers | Texts | list[Any]
"""A column: float64 with NaN where a value is missing, texts and None, or a list of texts, truths, numbers and None.
Days are texts, as 2024-03-31."""


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length, each read when it is asked for: `table["age"]`; so what nobody needs may be anything.

    `where(i)` tells a person which row i is, as 'patients.csv, line 17'.
    """

    name: str
    columns: Mapping[str, Callable[[], Cells]]
    rows: int
    where: Callable[[int], str]
    notes: tuple[str, ...] = ()
    """How it was read, where that may surprise, in sentences."""

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, column: str) -> Cells:
        return self.columns[column]()


def read(rows: Any, place: str = "the table") -> Table:
    """A table from a file's path, a pandas, polars or Arrow table, a dict of columns, or a list of dicts, one a row.

    `place` is what errors call a table that is not a file.
    """
    if isinstance(rows, Table):
        return rows
    if isinstance(rows, str | Path):
        return _file(Path(rows).expanduser())
    libraries = {kind.__module__.partition(".")[0] for kind in type(rows).__mro__}
    if "pandas" in libraries and hasattr(rows, "iloc") and hasattr(rows, "columns"):
        names = [str(name) for name in rows.columns]
        return _frame(names, [partial(_pandas, rows.iloc[:, i]) for i in range(len(names))], len(rows), place)
    if "polars" in libraries and hasattr(rows, "get_columns"):
        return _frame(
            list(rows.columns), [partial(_arrow, series.to_arrow()) for series in rows.get_columns()], len(rows), place
        )
    if "pyarrow" in libraries and hasattr(rows, "column_names"):
        return _frame(rows.column_names, [partial(_arrow, column) for column in rows.columns], len(rows), place)
    if isinstance(rows, Mapping):
        return _columns(rows, place)
    if isinstance(rows, list | tuple) and all(isinstance(row, Mapping) for row in rows):
        return _records(rows, place)
    raise TableError(
        f"A {type(rows).__name__} is not a table. Give the path of a {', '.join(SUFFIXES)} file, a pandas or polars "
        "frame, a dict of columns, or a list of dicts with a row each."
    )


def joined(name: str, tables: Sequence[Table], ignore: Iterable[str] = ()) -> Table:
    """Tables below one another; all need the same columns, but for those ignored, in any order. One that is ignored is
    kept where all have it."""
    first, left_out = tables[0], set(ignore)
    common = set.intersection(*(set(table.columns) for table in tables))
    wanted = [column for column in first.columns if column in common or column not in left_out]
    for table in tables[1:]:
        for has, lacks in ((first, table), (table, first)):
            for column in has.columns:
                if column not in left_out and column not in lacks.columns:
                    hint = did_you_mean(column, lacks.columns, 0.6)
                    raise TableError(
                        f"{lacks.name} has no column {column!r}, which {has.name} has. {hint}"
                        "All need the same columns, but for those in table.ignore."
                    )
    ends = np.cumsum([len(table) for table in tables])

    def where(row: int) -> str:
        at = int(np.searchsorted(ends, row, side="right"))
        return tables[at].where(row - int(ends[at]) + len(tables[at]))

    columns = {c: cache(partial(_below, tables, c)) for c in wanted}
    return Table(name, columns, int(ends[-1]), where, tuple(note for table in tables for note in table.notes))


def _below(tables: Sequence[Table], column: str) -> Cells:
    parts = [table[column] for table in tables]
    numbers = [cells for cells in parts if isinstance(cells, np.ndarray)]
    texts = [cells for cells in parts if isinstance(cells, Texts)]
    if len(numbers) == len(parts):
        return np.concatenate(numbers)
    if len(texts) == len(parts):
        return delimited.below(texts)
    return [None if c is None or c != c else c for cells in parts for c in cells]


# ---- files ----


def _file(path: Path) -> Table:
    if path.suffix.lower() not in SUFFIXES:
        raise TableError(f"{path} is not a table: {', '.join(SUFFIXES)} files are read. Save it as one of these.")
    if path.is_dir():
        raise TableError(f"{path} is a folder, not a table.")
    try:
        return _parquet(path) if path.suffix.lower() == ".parquet" else _text(path)
    except FileNotFoundError:
        raise TableError(f"There is no file {path}.") from None
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror or error}.") from None


def _text(path: Path) -> Table:
    """CSV and TSV."""
    found = delimited.read(path)
    names = _refuse_bad_names(found.names, path.name)
    columns: dict[str, Callable[[], Cells]] = {n: partial(_same, c) for n, c in zip(names, found.columns, strict=True)}
    return Table(path.name, columns, found.rows, lambda i: f"{path.name}, line {found.line(i)}", found.notes)


def _same(cells: Cells) -> Cells:
    return cells


def _parquet(path: Path) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            found = file.read()
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"{path.name} is not a whole Parquet file ({str(error).strip().rstrip('.')}).") from None
    # pandas writes the labels of rows as a column of this name; they are no measurement.
    kept = [i for i, name in enumerate(found.column_names) if not re.fullmatch(r"__index_level_\d+__", name)]
    return _frame(
        [found.column_names[i] for i in kept], [partial(_arrow, found.column(i)) for i in kept], len(found), path.name
    )


# ---- frames, columns and rows ----

Reader = Callable[[Callable[[int], str], str], Cells]
"""(where, name) -> the cells of a column."""


def _frame(names: Sequence[str], readers: Sequence[Reader], rows: int, place: str) -> Table:
    def where(row: int) -> str:
        return f"{place}, row {row} (the first is 0)"

    if rows == 0:
        raise TableError(f"{place[0].upper()}{place[1:]} has no rows.")
    names = _refuse_bad_names(list(names), place)
    columns = {n: cache(partial(reader, where, n)) for n, reader in zip(names, readers, strict=True)}
    return Table(place, columns, rows, where)


def _pandas(series: Any, where: Callable[[int], str], name: str) -> Cells:
    kind = series.dtype.kind
    if kind in "iuf":
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    if kind == "m":
        _refuse_type(name, str(series.dtype))
    return _plain(series.astype(object).tolist(), where, name)


def _arrow(column: Any, where: Callable[[int], str], name: str) -> Cells:
    import pyarrow as pa
    from pyarrow import types

    kind = column.type
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind):
        return np.array(column.cast(pa.float64(), safe=False), dtype=np.float64)
    if types.is_date(kind) or types.is_timestamp(kind):
        return Texts(column.cast(pa.string()))
    if str(kind) in ("string", "large_string", "string_view"):
        return Texts(column.cast(pa.string()))
    if not types.is_boolean(kind):
        _refuse_type(name, str(kind))
    return _plain(column.to_pylist(), where, name)


def _columns(columns: Mapping[Any, Any], place: str) -> Table:
    """From {name: values}, or one row as {name: value}."""
    single = all(isinstance(v, str | bytes) or not hasattr(v, "__len__") or np.ndim(v) == 0 for v in columns.values())
    lists = {str(name): [v] if single else v for name, v in columns.items()}
    lengths = {len(v) for v in lists.values()}
    if len(lengths) > 1:
        raise TableError(
            "The columns are of different lengths: " + ", ".join(f"{n} {len(v)}" for n, v in lists.items()) + "."
        )

    def reader(values: Any) -> Reader:
        array = np.asarray(values) if hasattr(values, "__array__") else None
        if array is not None and array.dtype.kind in "iuf":
            return lambda where, name: array.astype(np.float64)
        return partial(_plain, list(values))

    return _frame([str(n) for n in columns], [reader(v) for v in lists.values()], max(lengths, default=0), place)


def _records(rows: Sequence[Mapping[str, Any]], place: str) -> Table:
    names = list(rows[0]) if rows else []
    for i, row in enumerate(rows):
        for name in [*names, *row]:
            if name not in row or name not in names:
                other = 0 if name in row else i
                raise TableError(f"Row {other} (the first is 0) has no {name!r}; give None where a value is missing.")
    return _frame(names, [partial(_plain, [row[name] for row in rows]) for name in names], len(rows), place)


def _plain(cells: Iterable[Any], where: Callable[[int], str], name: str) -> list[Any]:
    """Cells as texts, truths and numbers, and None where there is nothing (None, NaN, NaT, NA, an empty text)."""
    plain: list[Any] = []
    for i, cell in enumerate(cells):
        if isinstance(cell, str):
            plain.append(cell.strip() or None)
        elif cell is None or type(cell).__name__ in ("NAType", "NaTType"):
            plain.append(None)
        elif isinstance(cell, bool | np.bool_):
            plain.append(bool(cell))
        elif isinstance(cell, datetime.date):
            plain.append(cell.isoformat())
        elif isinstance(cell, np.datetime64):
            plain.append(None if np.isnat(cell) else str(cell))
        elif isinstance(cell, np.timedelta64) or not isinstance(cell, kinds.Real | Decimal | np.number):
            _refuse_type(name, type(cell).__name__, where(i))
        else:
            plain.append(None if cell != cell else float(cell))
    return plain


def _refuse_type(name: str, kind: str, place: str = "") -> NoReturn:
    raise TableError(
        f"{place + ': column' if place else 'Column'} {name!r} holds values of type {kind}, which are neither numbers, "
        f"texts, days nor truths. Turn them into numbers, or leave it out: {ignoring([name])}."
    )


def _refuse_bad_names(names: list[str], place: str) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1 and name})
    if twice:
        raise TableError(f"{place} has more than one column named {', '.join(map(repr, twice))}.")
    if not all(names):
        raise TableError(
            f"{place}: column {names.index('') + 1} of {len(names)} has no name. If it counts the rows, leave it out "
            "(pandas: to_csv(index=False)); otherwise name it in the header."
        )
    return names


def ignoring(columns: Sequence[str]) -> str:
    """How to leave columns out, as an option and as a setting, to be typed as it stands."""
    return naming("ignore", columns)


def naming(setting: str, columns: Sequence[str]) -> str:
    """How to say which columns a setting is about: --ignore a,b (table.ignore = ['a', 'b'])."""
    listed = ", ".join(map(repr, columns))
    # A name with a comma would be taken for two, and a shell has its own mind about quotes.
    plain = not any(re.search(r"[,\s\"'\\$`!;&|<>(){}*?#~\[\]]", column) for column in columns)
    option = f"--{setting.replace('_', '-')} {','.join(columns)} (" if plain else ""
    return f"{option}table.{setting} = [{listed}]{')' if plain else ''}"
