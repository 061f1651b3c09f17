"""Numbers that may stand for a gap, as -999 does, though nobody declared them.

Such a number repeats at one end of its column, apart from all others, and is one of those that people use. What ends a
column by nature is none: the oldest patient of 99, the limit of a detector, a score of -1 on a scale that has it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import cells
from .columns import MOST, declaring, declaring_for_all, some
from .preprocessing import Column, Number, TableSettings
from .table import Numbers

LIMITS = {32767.0, -32768.0, 2147483647.0, -2147483648.0}
"""What is left in a file of whole numbers where there was none."""
ROWS = 20
"""Known numbers of a column, from which on it is looked at."""
REPEATS = 3
"""Cells that have a code, at least."""
UNLIKELY = 1e-3
"""Chance with which a tail as heavy as any would leave so many numbers at its end, and none before them."""


@dataclass(frozen=True)
class Code:
    """A number that may stand for a gap: in how many of the known numbers, and between which the others lie."""

    column: str
    value: float
    count: int
    known: int
    low: float
    high: float

    @property
    def sentence(self) -> str:
        """'is -999 in 12 of 200 rows, and 126 to 564 in the others'."""
        others = f"{self.low:g} to {self.high:g}" if self.low < self.high else f"{self.low:g}"
        return f"is {cells.category(self.value)} in {self.count:,} of {self.known:,} rows, and {others} in the others"


def of_table(columns: Sequence[Column], raw: Numbers) -> list[Code]:
    """The codes of all columns of numbers. raw: (n, columns)."""
    numbers = [(i, column.name) for i, column in enumerate(columns) if isinstance(column, Number) and not column.dates]
    return [code for i, name in numbers for code in of_column(name, raw[:, i])]


def of_column(name: str, values: Numbers) -> list[Code]:
    """The codes of a column: (n,) numbers, NaN where one is missing."""
    known = values[~np.isnan(values)]
    if len(known) < ROWS:
        return []
    rest, above = _peeled(known, high=True)
    rest, below = _peeled(rest, high=False)
    found = []
    for value, count in [*reversed(above), *reversed(below)]:  # the next to the others first: it may be one of them
        if len(rest) and rest.min() < rest.max() and _apart(value, count, rest):
            found.append((value, count))
        else:
            rest = np.append(rest, np.full(count, value))
    return [Code(name, *each, len(known), float(rest.min()), float(rest.max())) for each in sorted(found)]


def notes(codes: Sequence[Code], columns: Sequence[Column], raw: Numbers, settings: TableSettings) -> list[str]:
    """One sentence on all of them, and how to declare them."""
    if not codes:
        return []
    found: dict[str, list[float]] = {}
    for code in codes:
        found.setdefault(code.column, []).append(code.value)
    if len(codes) == 1:
        return [
            f"Column {codes[0].column!r} {codes[0].sentence}. If that means missing, declare it: "
            f"{declaring(settings, found)}."
        ]
    listed = [f"{code.column} ({cells.category(code.value)} in {code.count:,} rows)" for code in codes]
    told = "One column has numbers" if len(found) == 1 else f"{len(found)} columns have a number"
    same, everywhere = {value for values in found.values() for value in values}, declaring(settings, found)
    # Shorter, and the same, where no other column has these numbers.
    others = [i for i, column in enumerate(columns) if column.name not in found and isinstance(column, Number)]
    alike = all(set(values) == same for values in found.values())
    if len(found) > MOST and alike and not np.isin(raw[:, others], sorted(same)).any():
        everywhere = declaring_for_all([*settings.missing, *sorted(same)])
    return [
        f"{told} that repeat{'' if len(found) == 1 else 's'} apart from all others, as codes for a gap do: "
        f"{some(listed)}. If they mean missing, declare them: {everywhere}."
    ]


def of_the_target(column: str, values: Numbers) -> list[str]:
    """The same of amounts to predict: such rows cannot be learned from."""
    return [
        f"The target {column!r} {code.sentence}. If that means missing, remove such rows: they are learned as they are."
        for code in of_column(column, values)
    ]


def _peeled(known: Numbers, high: bool) -> tuple[Numbers, list[tuple[float, int]]]:
    """The numbers without those at one end that may be codes; and these, the outermost first, with how many there
    are."""
    found: list[tuple[float, int]] = []
    while len(known):
        value = float(known.max() if high else known.min())
        here = known == value
        if not _like_a_code(value) or here.sum() < REPEATS:
            break
        found.append((value, int(here.sum())))
        known = known[~here]
    return known, found


def _like_a_code(value: float) -> bool:
    """-1, or all sevens, eights or nines, as -9, 99, 888 and 999.9."""
    digits = cells.category(abs(value)).replace(".", "")
    return value == -1 or value in LIMITS or bool(re.fullmatch(r"7+|8+|9+", digits) and abs(value) >= 7)


def _apart(value: float, count: int, rest: Numbers) -> bool:
    """Whether so many of a number at one end of the rest would be strange, were it a measurement as they are."""
    low, high, middle = float(rest.min()), float(rest.max()), float(np.median(rest))
    if value < 0 <= low:
        return value < -1 or _in_place_of_a_count(count, rest)
    if 0 < value < 10:  # a grade, unless the grades end long before it
        whole = low >= 0 and high <= 5 and bool((rest == np.floor(rest)).all())
        return whole and value - high >= max(3.0, high - low)
    if value > 0 and _end_in_nine(rest):  # prices
        return False
    nearest = low if value < low else high
    if abs(value - nearest) < max((high - low) / 2, 2 * _step(np.unique(rest))):
        return False
    # Of a tail that falls as 1 / x, this share of what is beyond `nearest` is beyond `value`: all of them are.
    share = abs(nearest - middle) / abs(value - middle)
    return share**count <= UNLIKELY


def _step(different: Numbers) -> float:
    """From one number to the next, as is usual."""
    return float(np.median(np.diff(different)))


def _in_place_of_a_count(count: int, rest: Numbers) -> bool:
    """Whether so many -1 below numbers of 0 and more are no numbers. On a scale from -1 on they would be: a third of
    worse, equal and better, or the last of a tail."""
    different, counts = np.unique(rest, return_counts=True)
    whole = bool((different == np.floor(different)).all())
    if len(different) < 10:  # answers that are numbered from 1 on have no 0 that would lie between
        return whole and bool(different[0] == 1)
    # Fractions that go below 0 hardly skip all up to -1 itself.
    width = 0.1 * (different[-1] - different[0]) if whole else 0.0
    far = different[0] + 1 >= max(5 * _step(different), width)
    frequent = count > 3 * counts[:5].max()
    begins = bool(different[0] == 0 and counts[0] == counts.max() and different[-1] >= 20)
    # A tail that has so many of -1 would have some of -2.
    ends = whole and count >= 12 and different[-1] >= 10
    return bool(far) or bool(frequent) or begins or ends


def _end_in_nine(rest: Numbers) -> bool:
    different = np.unique(rest)[:1000]
    return sum(cells.category(float(value)).endswith("9") for value in different) >= 0.3 * len(different)
