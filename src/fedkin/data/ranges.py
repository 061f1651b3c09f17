"""Between which numbers a silo's training rows lay, and new rows that are far outside: what no model learned about.

A smallest or largest number is some one row's. It is for the silo's own model file and its own eyes, and not shared.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import numpy as np
from numpy.typing import NDArray

from .dates import FIRST
from .preprocessing import Column, Number, TablePreprocessing
from .table import Table

FAR = 0.5
"""Of the range of a silo's training rows, how much beyond it a number is far outside."""
MANY = 1 / 3
"""Of the rows, how many beyond that range at all are worth a word: then it may be another unit, or other patients."""


def with_ranges(prepared: TablePreprocessing, raw: NDArray[np.float64]) -> TablePreprocessing:
    """With the smallest and the largest number of each column of (n, columns), as `read` gives them."""
    return TablePreprocessing(tuple(_ranging(column, raw[:, i]) for i, column in enumerate(prepared.columns)))


def without_ranges(prepared: TablePreprocessing) -> TablePreprocessing:
    """For others."""
    return TablePreprocessing(
        tuple(replace(c, low=None, high=None) if isinstance(c, Number) else c for c in prepared.columns)
    )


def outside(prepared: TablePreprocessing, table: Table) -> list[str]:
    """Numbers far outside those of the training rows, in a sentence a column; those with most of them first."""
    found = [_far_outside(table, column) for column in prepared.columns if isinstance(column, Number)]
    return [sentence for _, sentence in sorted(filter(None, found), key=lambda each: -each[0])]


def _ranging(column: Column, numbers: NDArray[np.float64]) -> Column:
    known = numbers[~np.isnan(numbers)]
    if not isinstance(column, Number) or not len(known):
        return column
    return replace(column, low=float(known.min()), high=float(known.max()))


def _far_outside(table: Table, column: Number) -> tuple[int, str] | None:
    """How many rows, and a sentence, if a number is beyond those of the training rows by more than FAR of their range,
    or more than MANY of the rows are beyond them at all."""
    if column.low is None or column.high is None:
        return None
    found = TablePreprocessing((column,)).read(table)[:, 0].numpy()
    beyond = np.maximum(column.low - found, found - column.high)  # of a gap it is NaN, which is not above anything
    out, far = (np.flatnonzero(beyond > share * (column.high - column.low)) for share in (0, FAR))
    chosen = out if len(out) > MANY * len(table) >= 1 else far
    if not len(chosen):
        return None
    low, high = _word(column, column.low), _word(column, column.high)
    had = f"{low} to {high}" if column.low < column.high else f"{low} alone"
    most = int(chosen[beyond[chosen].argmax()])
    return len(chosen), (
        f"Column {column.name!r}: {len(chosen)} of {len(table)} rows {'lies' if len(chosen) == 1 else 'lie'} "
        f"{'far ' if len(far) else ''}outside the training rows, which had {had}, such as "
        f"{_word(column, float(found[most]))} in {table.where(most)}"
        f"{'.' if column.dates else '; is it in the same unit?'}"
    )


def _word(column: Number, value: float) -> str:
    """A number as a person has it: a day as a date."""
    return str(date.fromordinal(FIRST + int(value))) if column.dates else f"{value:g}"
