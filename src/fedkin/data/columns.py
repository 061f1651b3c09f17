"""What a table's columns mean: which are numbers, which categories; what of it is refused, and what only told.

Columns stand in the order of their names, so that it does not matter how a silo orders them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.wording import did_you_mean, nearest
from . import cells
from . import table as reading
from .preprocessing import Category, Column, Number, TableSettings
from .table import Numbers, Table, TableError

FEW = 20
"""Up to so many different whole numbers are classes; more different texts than that, most of them unique, are none."""
MOST = 5
"""Names or notes of one kind that are told one by one."""

DATE = re.compile(r"(\d{4}([-./])\d\d?\2\d\d?|\d\d?([-./])\d\d?\3(\d{4}|\d\d))(?![\w./-])|\d{4}-\d\d-\d\dT\d")
"""A text that begins with a day: 2024-03-31, 31.3.2024 or 3/31/24, with or without a time."""

Rows = NDArray[np.int64]


def understand(table: Table, settings: TableSettings, train: Rows) -> list[Column]:
    """The inputs: columns of numbers, yet to be fitted, and columns with the categories of the training rows."""
    left_out = {settings.client, settings.target, *settings.ignore}
    names = sorted(column for column in table.columns if column not in left_out)
    columns = [_column(table, name, settings, train) for name in names]
    if not any(isinstance(column, Number) or column.categories for column in columns):
        raise TableError(f"{table.name} has no column left to learn from.")
    return columns


def _column(table: Table, name: str, settings: TableSettings, train: Rows) -> Column:
    missing, declared = marks(settings, name), name in settings.categorical
    found = cells.values(table, name, missing)
    if isinstance(found, np.ndarray) and not declared:
        _refuse_uninformative(name, found, np.isnan(found), gaps_tell=settings.indicators)
        return Number(name, missing, indicator=settings.indicators and bool(np.isnan(found[train]).any()))
    if not declared:
        _refuse_text_among_numbers(table, name, found, settings.missing)
    named = np.array(cells.categories(table, name, missing), dtype=object)
    empty = np.array([value is None for value in named])
    _refuse_uninformative(name, named, empty, gaps_tell=True)
    if not declared:
        _refuse_free_text(name, named[~empty])
    return Category(name, missing, tuple(sorted(set(named[train]) - {None}, key=_in_order)))


def marks(settings: TableSettings, column: str) -> tuple[cells.Mark, ...]:
    """What stands for a missing value in a column."""
    return (*settings.missing, *settings.missing_in.get(column, ()))


def _in_order(category: str) -> tuple[float, str]:
    """Numbers by their size, then texts."""
    value = cells.number(category)
    return (np.inf if value is None else value), category


# ---- what is refused ----


def refuse_unknown(name: str, columns: Collection[str], settings: TableSettings) -> None:
    """The names in the settings have to be columns of the table."""
    if settings.target is None:
        raise TableError(
            f"Which column of {name} is to be predicted? Say it with target = … (--target); "
            f"the columns are {', '.join(columns)}."
        )
    asked = [("client", settings.client), ("target", settings.target), *(("ignore", c) for c in settings.ignore)]
    asked += [*(("categorical", c) for c in settings.categorical), *(("missing_in", c) for c in settings.missing_in)]
    for setting, column in asked:
        if column is not None and column not in columns:
            hint = did_you_mean(column, columns, 0.6).rstrip() or f"The columns are {', '.join(columns)}."
            raise TableError(f"{name} has no column {column!r}, which table.{setting} names. {hint}")
    for role, column in (("target", settings.target), ("client", settings.client)):
        if column in settings.ignore:
            raise TableError(f"Column {column!r} is the {role} and cannot be in table.ignore as well.")
    if settings.client == settings.target:
        raise TableError(f"Column {settings.target!r} cannot be both the client and the target.")


def refuse_gaps(table: Table, column: str, found: reading.Cells, role: str) -> None:
    rows = [i for i, value in enumerate(found) if value is None or value != value]
    if rows:
        more = f", and in {len(rows) - 1} more rows" if len(rows) > 1 else ""
        raise TableError(
            f"{table.where(rows[0])}: the {role}, column {column!r}, is missing{more}. Fill it in, or remove such rows."
        )


def _refuse_text_among_numbers(table: Table, column: str, found: reading.Cells, declared: Sequence[cells.Mark]) -> None:
    """A column mostly of numbers is not taken for categories because of some texts in it."""
    known = [value for value in found if value is not None]
    texts = [i for i, value in enumerate(found) if isinstance(value, str | bool)]
    words = ("nan", "inf", "infinity")
    numbers = sum(isinstance(v, float) or str(v).lstrip("+-").lower() in words for v in known)
    if numbers <= len(known) / 2:
        return
    different = list(dict.fromkeys(str(found[i]) for i in texts))
    told = f": {some([repr(word) for word in different])}" if len(different) > 1 else ""
    more = f" ({len(texts)} such cells{told})" if len(texts) > 1 else ""
    what = "they mean missing, declare them" if len(different) > 1 else "that means missing, declare it"
    raise TableError(
        f"{table.where(texts[0])}: column {column!r} is {found[texts[0]]!r} where most cells are numbers{more}. "
        f"If {what}: {_declaration([*declared, *different[:MOST]])}; if the column's values are categories: "
        f"table.categorical = [{column!r}]."
    )


def _declaration(missing: Sequence[cells.Mark]) -> str:
    """All that stands for a gap, as an option and as a setting: --missing "NA,-" (table.missing = ["NA", "-"])."""
    words = [mark if isinstance(mark, str) else cells.category(float(mark)) for mark in missing]
    pairs = zip(missing, words, strict=True)
    listed = ", ".join(json.dumps(word, ensure_ascii=False) if isinstance(mark, str) else word for mark, word in pairs)
    # A word with a comma would be taken for two, and a shell or TOML has its own mind about quotes.
    plain = not any(re.search(r"[,\"'\\$`!]", word) for word in words)
    return f'--missing "{",".join(words)}" (table.missing = [{listed}])' if plain else f"table.missing = [{listed}]"


def _refuse_uninformative(column: str, found: NDArray[Any], empty: NDArray[np.bool_], gaps_tell: bool) -> None:
    """`gaps_tell`: whether a gap is an input of its own, so that one value and gaps are two."""
    different = set(found[~empty])
    if not different:
        raise TableError(f"Column {column!r} is empty in all silos; table.ignore = [{column!r}] leaves it out.")
    if len(different) == 1 and not (gaps_tell and empty.any()):
        value = cells.category(different.pop())
        raise TableError(f"Column {column!r} is {value} in all silos; table.ignore = [{column!r}] leaves it out.")


def _refuse_free_text(column: str, texts: NDArray[Any]) -> None:
    different = len(set(texts))
    if different > FEW and different > len(texts) / 2:
        dates = sum(DATE.match(text) is not None for text in texts) > len(texts) / 2
        hint = "If they are dates, turn them into numbers (days, say)." if dates else ""
        raise TableError(
            f"Column {column!r} has {different} different texts in {len(texts)} rows, such as {texts[0]!r}: as "
            f"categories they say nothing. table.ignore = [{column!r}] leaves it out, table.categorical = [{column!r}] "
            f"takes it all the same. {hint or 'If they are numbers, write them with a point.'}"
        )


# ---- what is told ----


def notes(columns: Sequence[Column], raw: Numbers, train: Mapping[str, Rows]) -> list[str]:
    """Columns that say nothing in a silo, though they do elsewhere. raw: (n, columns); train: each silo's rows."""
    if len(train) == 1:
        return []
    return at_most([note for i, column in enumerate(columns) for note in _one_value(column, raw[:, i], train)])


def _one_value(column: Column, values: Numbers, train: Mapping[str, Rows]) -> list[str]:
    empty, constant = [], dict[float, list[str]]()
    for client, rows in train.items():
        own = values[rows]
        if len(own) > 1 and np.isnan(own).all():
            empty.append(client)
        elif len(own) > 1 and (own == own[0]).all():
            constant.setdefault(float(own[0]), []).append(client)
    told = [f"Column {column.name!r} is empty in all training rows of {some(empty)}."] if empty else []
    for value, clients in constant.items():
        shown = column.categories[int(value)] if isinstance(column, Category) else cells.category(value)
        note = f"Column {column.name!r} is {shown} in all training rows of {some(clients)}, and varies elsewhere."
        if value == 0 and isinstance(column, Number):
            note += f" If 0 means missing there, declare it: table.missing_in = {{{column.name} = [0]}}."
        told.append(note)
    return told


def look_alikes(rows: Mapping[str, int], refused: Collection[str] = ()) -> dict[str, str]:
    """Clients with few rows, or too few, whose names may be another's misspelt, and a sentence on each.

    rows: how many each client has. Names that differ in a digit, as silo-1 and silo-2, are different on purpose.
    """
    largest, told = max(rows.values()), {}
    for client, own in rows.items():
        if 10 * own >= largest and client not in refused:
            continue
        digits = re.findall(r"\d", client)
        others = sorted((n, other) for other, n in rows.items() if n > own and re.findall(r"\d", other) == digits)
        stripped = {other.strip(): other for _, other in others}
        near = nearest(client.strip(), stripped, 0.8)
        if near is not None:
            other = stripped[near]
            mine = "1 row" if own == 1 else f"{own} rows"
            told[client] = f"{client!r} ({mine}) looks like {other!r} ({rows[other]:,} rows): the same silo?"
    return told


def at_most(sentences: Sequence[str]) -> list[str]:
    rest = len(sentences) - MOST
    return [*sentences[:MOST], *([f"There are {rest} more notes of this kind."] if rest > 0 else [])]


def some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more
