"""What a table's cells mean: a number, a category, or nothing; the same in training and in prediction."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from . import dates
from .table import Numbers, Table, TableError, Texts

Mark = str | float
"""What stands for a missing value: a text, or a number however it is written."""


COMMA = re.compile(r"[+-]?(\d+,\d*|\d*,\d+)")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


class Marks:
    """What stands for a missing value in a column."""

    def __init__(self, marks: Iterable[Mark]) -> None:
        given = [mark.strip() if isinstance(mark, str) else float(mark) for mark in marks]
        self.texts = {mark for mark in given if isinstance(mark, str)}
        values = (_without_commas([mark], [_read(mark)])[0] for mark in given)
        self.numbers = {value for value in values if isinstance(value, float)}

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


def _read(cell: Any) -> Any:
    """A text that is a number as this number; all else as it is."""
    value = number(cell) if isinstance(cell, str) else None
    return cell if value is None else value


def values(table: Table, column: str, missing: Sequence[Mark] = ()) -> Numbers | list[Any]:
    """float64 with NaN as missing where all cells are numbers; else numbers, texts and truths, with None as missing.

    Numbers may have a decimal comma, if all of a column's do that have a fraction.
    """
    cells, marks = table[column], Marks(missing)
    if isinstance(cells, np.ndarray):
        if np.isinf(cells).any():
            _refuse_infinity(table, column, int(np.isinf(cells).argmax()))
        return np.where(np.isin(cells, list(marks.numbers)), np.nan, cells)
    if isinstance(cells, Texts):
        plain = cells.numbers(sorted(marks.texts))
        if plain is not None:
            return np.where(np.isin(plain, list(marks.numbers)), np.nan, plain)
    different, codes = coded(cells)
    for i, cell in enumerate(different):
        if isinstance(cell, float) and math.isinf(cell):
            _refuse_infinity(table, column, int((codes == i).argmax()))
    meant = _meant(different, marks)
    if all(value is None or isinstance(value, float) for value in meant):
        return np.array([*(np.nan if value is None else value for value in meant), np.nan])[codes]
    return _chosen([*meant, None], codes)


def coded(cells: Texts | list[Any]) -> tuple[list[Any], NDArray[np.int64]]:
    """The different cells, and for each cell the place of its own; -1 where it is missing."""
    if isinstance(cells, Texts):
        return cells.coded[0], cells.coded[1]
    places: dict[tuple[type, Any], int] = {}
    codes = [-1 if cell is None else places.setdefault((type(cell), cell), len(places)) for cell in cells]
    return [cell for _, cell in places], np.array(codes, dtype=np.int64)


def _chosen(different: Sequence[Any], codes: NDArray[np.int64]) -> list[Any]:
    """different[code] for each code; the last, where there is none."""
    table = np.empty(len(different), dtype=object)
    table[:] = different
    return table[codes].tolist()  # type: ignore[no-any-return]


def _meant(different: Sequence[Any], marks: Marks) -> list[Any]:
    """What each of a column's different cells is: a number, None for a gap, or what it was. A number stands for a gap
    also where it has a decimal comma, '-999,0' for -999: which is known only when the whole column was looked at."""
    meant = _without_commas(different, [None if cell in marks else _read(cell) for cell in different])
    return [None if value in marks else value for value in meant]


def _without_commas(different: Sequence[Any], meant: list[Any]) -> list[Any]:
    """Texts such as '3,5' as numbers, if that is how the column writes them: all are, none has a point, and they cannot
    all be thousands, as '1,234' may be."""
    texts = [value for value in meant if isinstance(value, str)]
    if not texts or not all(COMMA.fullmatch(text) for text in texts) or all(THOUSANDS.fullmatch(t) for t in texts):
        return meant
    pairs = zip(different, meant, strict=True)
    if any(isinstance(cell, bool) or (isinstance(value, float) and "." in str(cell)) for cell, value in pairs):
        return meant
    return [float(value.replace(",", ".")) if isinstance(value, str) else value for value in meant]


def has_commas(table: Table, column: str) -> bool:
    """Whether a column of numbers is written with decimal commas."""
    cells = table[column]
    if isinstance(cells, Texts):
        return cells.some(",")
    return isinstance(cells, list) and any(isinstance(cell, str) and "," in cell for cell in cells)


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


def days(table: Table, column: str, form: str, missing: Sequence[Mark] = ()) -> Numbers:
    """(n,) a column of dates as days since 1970-01-01; NaN where missing."""
    found = values(table, column, missing)
    different, codes = coded(list(found) if not isinstance(found, np.ndarray) else [_none(v) for v in found.tolist()])
    known = [dates.days(cell, form) if isinstance(cell, str) else None for cell in different]
    if None in known:
        at = known.index(None)
        raise TableError(
            f"{table.where(int((codes == at).argmax()))}: column {column!r} is {different[at]!r}, but it was a column "
            f"of dates in training, written {form}. Leave a cell empty where a value is missing."
        )
    return np.array([*(np.nan if value is None else value for value in known), np.nan])[codes]


def _none(value: float) -> float | None:
    return None if value != value else value


def categories(table: Table, column: str, missing: Sequence[Mark] = ()) -> list[str | None]:
    """(n,) the names of a column's categories; None where missing."""
    names, codes = coded_categories(table, column, missing)
    return _chosen([*names, None], codes)


def coded_categories(
    table: Table, column: str, missing: Sequence[Mark] = ()
) -> tuple[list[str | None], NDArray[np.int64]]:
    """A column's categories, some perhaps twice, None for what stands for a gap; and (n,) for each cell the place of
    its own, -1 where it is empty."""
    marks, cells = Marks(missing), table[column]
    if isinstance(cells, np.ndarray):
        known, codes = np.unique(cells, return_inverse=True)
        different: list[Any] = [_none(value) for value in known.tolist()]
    else:
        different, codes = coded(cells)
    names: list[str | None] = []
    for i, (cell, meant) in enumerate(zip(different, _meant(different, marks), strict=True)):
        if meant is None or cell != cell:
            names.append(None)
            continue
        if isinstance(cell, float) and math.isinf(cell):
            _refuse_infinity(table, column, int((codes == i).argmax()))
        if isinstance(cell, str) and cell.lower() == "nan":
            raise TableError(
                f"{table.where(int((codes == i).argmax()))}: column {column!r} is {cell!r}. If that means missing, add "
                f"{cell!r} to what stands for a gap: table.missing (--missing)."
            )
        names.append(category(cell))
    return names, codes


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
