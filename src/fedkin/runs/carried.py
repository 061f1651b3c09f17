"""Columns of new rows that a model does not read, such as identifiers: carried over to its answers as they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..data.table import Table


def carried(rows: Any, table: Table, read: Iterable[str]) -> dict[str, Any]:
    """{name: Arrow column} of all columns but those that are read, in their order; `table` are the same rows, open."""
    known = set(read)
    return {name: _arrow(rows, table, name) for name in table.columns if name not in known}


def _arrow(rows: Any, table: Table, name: str) -> Any:
    """A column as it was given: `table` has numbers for a model, in which large ones lose their last digits."""
    if isinstance(rows, str | Path):
        path = Path(rows).expanduser()
        if path.suffix.lower() == ".parquet":
            import pyarrow.parquet as pq

            return _single(pq.read_table(path, columns=[name])[name])
        return _made(list(table[name]))
    if isinstance(rows, Mapping):
        values = next(values for key, values in rows.items() if str(key) == name)
        return _made(
            [values] if len(table) == 1 and (isinstance(values, str) or not hasattr(values, "__len__")) else values
        )
    if isinstance(rows, list | tuple):
        return _made([row[name] for row in rows])
    if hasattr(rows, "iloc"):
        return _made(rows.iloc[:, [str(column) for column in rows.columns].index(name)])
    if hasattr(rows, "get_columns"):
        return _single(rows[name].to_arrow())
    return _single(rows[name]) if hasattr(rows, "column_names") else _made(table[name])


def _single(column: Any) -> Any:
    """One array, of a kind that any file can hold."""
    import pyarrow as pa

    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    whole = whole.cast(whole.type.value_type) if pa.types.is_dictionary(whole.type) else whole
    return _texts(whole.to_pylist()) if pa.types.is_nested(whole.type) else whole


def _made(values: Any) -> Any:
    """As Arrow holds them; texts of what it cannot hold in one column."""
    import pyarrow as pa

    try:
        found = _single(pa.array(values, from_pandas=True))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return _texts(values)
    return _texts(values) if found.type in (pa.binary(), pa.large_binary()) else found


def _texts(values: Iterable[Any]) -> Any:
    import pyarrow as pa

    return pa.array([None if value is None or value is not value else str(value) for value in values], pa.string())
