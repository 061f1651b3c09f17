"""What a table's cells mean: a number, a category, or nothing; the same in training and in prediction."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from .table import Cells, Numbers, Table, TableError

Mark = str | float
"""What stands for a missing value: a text, or a number however it is written."""


class Marks:
    """What stands for a missing value in a column."""

    def __init__(self, marks: Iterable[Mark]) -> None:
        given = list(marks)
        self.texts = {mark.strip() for mark in given if isinstance(mark, str)}
        values = (number(mark) if isinstance(mark, str) else float(mark) for mark in given)
        self.numbers = {value for value in values if value is not None}

    def __contains__(self, cell: object) -> bool:
        if isinstance(cell, str):
            return cell in self.texts or (bool(self.numbers) and number(cell) in self.numbers)
        return isinstance(cell, float) and cell in self.numbers


def number(text: str) -> float | None:
    """The finite number that a text is, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in text else None


def values(table: Table, column: str, missing: Sequence[Mark] = ()) -> Cells:
    """float64 with NaN as missing where all cells are numbers; else numbers, texts and truths, with None as missing."""
    cells, marks = table[column], Marks(missing)
    if isinstance(cells, np.ndarray):
        if np.isinf(cells).any():
            _refuse_infinity(table, column, int(np.isinf(cells).argmax()))
        return np.where(np.isin(cells, list(marks.numbers)), np.nan, cells)
    found: list[Any] = []
    for i, cell in enumerate(cells):
        if isinstance(cell, float) and math.isinf(cell):
            _refuse_infinity(table, column, i)
        if isinstance(cell, str):
            as_number = number(cell)
            found.append(None if cell in marks else cell if as_number is None else as_number)
        else:
            found.append(None if cell in marks else cell)
    if all(value is None or isinstance(value, float) for value in found):
        return np.array([np.nan if value is None else value for value in found])
    return found


def numbers(table: Table, column: str, missing: Sequence[Mark] = ()) -> Numbers:
    """(n,) the numbers of a column that was one of numbers in training; NaN where missing."""
    found = values(table, column, missing)
    if isinstance(found, np.ndarray):
        return found
    at = next(i for i, value in enumerate(found) if value is not None and not isinstance(value, float))
    raise TableError(
        f"{table.where(at)}: column {column!r} is {found[at]!r}, but it was a column of numbers in training. "
        "Leave a cell empty where a value is missing."
    )


def categories(table: Table, column: str, missing: Sequence[Mark] = ()) -> list[str | None]:
    """(n,) the names of a column's categories; None where missing."""
    marks = Marks(missing)
    found: list[str | None] = []
    for i, cell in enumerate(table[column]):
        if cell is None or cell != cell or cell in marks:
            found.append(None)
            continue
        if isinstance(cell, float) and math.isinf(cell):
            _refuse_infinity(table, column, i)
        if isinstance(cell, str) and cell.lower() == "nan":
            raise TableError(
                f"{table.where(i)}: column {column!r} is {cell!r}. If that means missing, add {cell!r} to what stands "
                "for a gap: table.missing (--missing)."
            )
        found.append(category(cell))
    return found


def category(cell: str | float | bool) -> str:
    """The name of a category, however it is written: 1, 1.0 and '1' are one, True and 'true' too; '01' is another."""
    if isinstance(cell, str):
        value = None if re.match(r"[+-]?0\d", cell) else number(cell)
        if value is None:
            return cell.lower() if cell.lower() in ("true", "false") else cell
        cell = value
    if isinstance(cell, bool):
        return str(cell).lower()
    return str(int(cell)) if cell.is_integer() else repr(float(cell))


def _refuse_infinity(table: Table, column: str, row: int) -> NoReturn:
    raise TableError(f"{table.where(row)}: column {column!r} is infinite. Correct it, or remove it if it is missing.")
