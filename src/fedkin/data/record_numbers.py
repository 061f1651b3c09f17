"""Columns that number the rows or say when they were written: no measurement, and so nothing to learn from.

What is whole and different in every row is not yet one of them: so is a weight in grams of thirty newborns. It is where
so many numbers so close together would have met by chance, where they rise with the rows, or where the column is named
as identifiers are. (Those whose values repeat within a silo may name a patient: `subjects`.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import table as reading
from .columns import Rows, some
from .preprocessing import Column, Number
from .subjects import is_named_so
from .table import Numbers

ROWS = 20
"""From which on a column is looked at."""
TIES = 10.0
"""Rows that would have met another of their silo's by chance, from which on it says something that none did."""


def of_table(columns: Sequence[Column], raw: Numbers, owners: Rows) -> list[str]:
    """The names of such columns. raw: (n, columns); owners: (n,) the number of each row's silo."""
    order = np.argsort(owners, kind="stable")
    inside = np.diff(owners[order]) == 0
    found = []
    for i, column in enumerate(columns):
        if isinstance(column, Number) and not column.dates and len(raw) >= ROWS:
            values = raw[order, i]
            if (values == np.floor(values)).all() and _numbers_rows(column.name, values, owners[order], inside):
                found.append(column.name)
    return found


def notes(found: Sequence[str]) -> list[str]:
    """One sentence on all of them."""
    if not found:
        return []
    one = len(found) == 1
    which = f"Column {found[0]!r} has" if one else f"Columns {some([repr(name) for name in found])} have"
    return [
        f"{which} another whole number in every row of a silo, as record numbers and time stamps do. As an input "
        f"{'it says' if one else 'they say'} nothing of new rows, and may give the answer away if rows are in order: "
        f"{reading.ignoring(found)} leaves {'it' if one else 'them'} out."
    ]


def _numbers_rows(name: str, values: Numbers, owners: Rows, inside: NDArray[np.bool_]) -> bool:
    """values: (n,) whole numbers, silo by silo in the order of the rows; inside: (n - 1,) whether a row and the next
    are of one silo."""
    for some_rows in (slice(1000), slice(None)):  # most columns have two alike soon
        by_size = values[some_rows][np.lexsort((values[some_rows], owners[some_rows]))]
        if (np.diff(by_size)[inside[: len(by_size) - 1]] == 0).any():
            return False
    everyone = np.sort(values)
    steps = np.diff(values)[inside]
    if (np.diff(everyone) > 0).all():  # of a measurement by which rows were sorted some would be alike
        if len(steps) >= ROWS and ((steps > 0).all() or (steps < 0).all()):
            return True
        if _met_by_chance(len(values), everyone[-1] - everyone[0]) >= TIES:
            return True
    ends = np.flatnonzero(np.append(~inside, True))
    sizes = np.diff(ends, prepend=-1)
    return bool(_met_by_chance(sizes, by_size[ends] - by_size[ends - sizes + 1]).sum() >= TIES) or is_named_so(name)


def _met_by_chance(rows: Any, width: Any) -> Any:
    """How many pairs of so many whole numbers, drawn from a range of this width, are expected to be alike."""
    return rows * (rows - 1) / (2 * (width + 1))
