"""Rows that are there twice: in a silo they fall on both sides of a split, in two silos one tests what another learned.

Of a few categories rows are alike by chance, and nothing is told then. How many would be is seen from rows that differ
in one column or in two: where values meet by chance there are many of those as well, and of copies there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from .columns import Rows, some
from .table import Numbers, Table

SHARE, FEWEST = 0.01, 3
"""Of a silo's rows, and how many at least: fewer change no score. So many different ones: a single row that many have,
such as no in all answers, is no copy."""
MORE = 5.0
"""Times as many pairs as chance would give."""
ENOUGH = 50_000
"""Rows, by lot, from which chance is estimated."""
TRIED = 6
"""Columns that are asked two by two: those in which alone most pairs differ."""

Hashes = NDArray[np.uint64]
Keys = Sequence[Numbers]
"""Columns of (n,) numbers; rows are equal where all of them are, gaps too."""


@dataclass(frozen=True, eq=False)
class Copies:
    """How many rows of each silo are copies, of how many different ones, one of them, and the numbers of pairs: found,
    and expected by chance."""

    rows: Rows
    sizes: Rows
    different: int
    example: int
    pairs: float
    chance: float

    @property
    def many(self) -> bool:
        enough = (self.rows >= np.maximum(FEWEST, SHARE * self.sizes)).any()
        return bool(enough) and self.different >= FEWEST and self.pairs > MORE * self.chance

    def listed(self, silos: Sequence[str]) -> str:
        """'north (60 of 1,000), south (12 of 300)'."""
        found = np.flatnonzero(self.rows)
        return some([f"{silos[i]} ({self.rows[i]:,} of {self.sizes[i]:,})" for i in found.tolist()])


def notes(table: Table, keys: Keys, owners: Rows, silos: Sequence[str], subjects: Rows | None) -> list[str]:
    """keys: all that is read of the rows; owners: (n,) the number of each row's silo; subjects: (n,) whose each is,
    where that is known: rows of one are kept together."""
    told, kept = [], np.arange(len(owners))
    if subjects is not None:
        whole = _hashed([owners.astype(np.float64), subjects.astype(np.float64), *keys])
        kept = np.sort(np.unique(whole, return_index=True)[1])
        keys, owners = [key[kept] for key in keys], owners[kept]
    inside, across = of_rows(keys, owners)
    if inside is not None and inside.many:
        subject = "" if subjects is not None else ", or name the column that says whose rows they are (--group)"
        told.append(
            f"{inside.rows.sum():,} rows are copies of another row of their silo, in all columns that are read: "
            f"{inside.listed(silos)}; one is {table.where(int(kept[inside.example]))}. Copies fall on both sides of a "
            f"split, and a model is praised for what it remembers: remove them{subject}."
        )
    if across is not None and across.many:
        told.append(
            f"{across.rows.sum():,} rows are in several silos, equal in all columns that are read: "
            f"{across.listed(silos)}; one is {table.where(int(kept[across.example]))}. What one silo is tested on "
            "another has learned, which praises joining: keep each row in one silo."
        )
    return told


def of_rows(keys: Keys, owners: Rows) -> tuple[Copies | None, Copies | None]:
    """Copies inside silos, and between them; None where there is none."""
    key, sizes = _hashed(keys), np.bincount(owners)
    if (np.diff(np.sort(key)) != 0).all():  # as in most tables
        return None, None
    silo = _hashed([owners.astype(np.float64)], salt=-1)
    _, first, counts = np.unique(key + silo, return_index=True, return_counts=True)
    inside = across = None
    if len(first) < len(owners):
        rows = np.bincount(owners[first], weights=counts - 1, minlength=len(sizes)).astype(np.int64)
        copied = first[counts > 1]
        second = int(np.flatnonzero(key + silo == (key + silo)[copied.min()])[1])
        inside = Copies(rows, sizes, len(np.unique(key[copied])), second, *_expected(keys, owners, across=False))
    _, place, silos = np.unique(key[first], return_inverse=True, return_counts=True)
    shared = silos[place] > 1
    if shared.any():
        rows = np.bincount(owners[first][shared], weights=counts[shared], minlength=len(sizes)).astype(np.int64)
        different, example = int((silos > 1).sum()), int(first[shared].min())
        across = Copies(rows, sizes, different, example, *_expected(keys, owners, across=True))
    return inside, across


def _expected(keys: Keys, owners: Rows, across: bool) -> tuple[float, float]:
    """Pairs of equal rows, but for the row that most have, and how many are expected by chance; of some rows where
    there are very many.

    With columns that know nothing of each other, a pair is equal with the product over columns of the chance q that two
    rows have the same there. But columns hang together, and so pairs are asked that are equal in all columns but one:
    each goes with q / (1 - q) equal ones; and in all but two: if these two go their own ways there, as many are equal
    as (differ in the one) (differ in the other) / (differ in both). None of these is a copy. What gives most is
    believed.
    """
    if len(owners) > ENOUGH:
        lot = np.sort(np.random.default_rng(0).permutation(len(owners))[:ENOUGH])
        keys, owners = [key[lot] for key in keys], owners[lot]
    own = [_hashed([key], salt=c) for c, key in enumerate(keys)]
    key, silo = _hashed(keys), _hashed([owners.astype(np.float64)], salt=-1)
    _, first, counts = np.unique(key + silo, return_index=True, return_counts=True)
    own, key, silo = [each[first] for each in own], key[first], silo[first]

    def pairs(each: Hashes) -> float:
        within = _squares(each + silo, counts)
        return (_squares(each, counts) - within) / 2 if across else (within - counts.sum()) / 2

    equal, possible = pairs(key), pairs(np.zeros_like(key))
    same = [pairs(each) / possible for each in own]
    differ = {c: pairs(key - each) - equal for c, each in enumerate(own)}
    chance = max([possible * float(np.prod(same)), *(differ[c] * q / (1 - q) for c, q in enumerate(same) if q < 1)])
    for c, d in combinations(sorted(differ, key=lambda c: -differ[c])[:TRIED], 2):
        both = pairs(key - own[c] - own[d]) - equal - differ[c] - differ[d]
        chance = max(chance, differ[c] * differ[d] / max(1.0, both))
    alike = np.unique(key, return_inverse=True)[1]
    every, within = np.bincount(alike, weights=counts), np.bincount(alike, weights=counts**2)
    most_frequent = float(np.max(every**2 - within if across else within - every)) / 2
    return equal - most_frequent, chance


def _squares(each: Hashes, counts: Rows) -> float:
    """The sum of squared numbers of rows that are alike."""
    place = np.unique(each, return_inverse=True)[1]
    return float(np.square(np.bincount(place, weights=counts)).sum())


def _hashed(keys: Keys, salt: int = 0) -> Hashes:
    """(n,) a number of 64 bits for each row: a sum over columns, from which one can be taken away. Columns are numbered
    from `salt` on."""
    found = np.zeros(len(keys[0]), np.uint64)
    for c, key in enumerate(keys):
        bits = np.where(np.isnan(key), np.nan, key + 0.0).view(np.uint64)  # one kind of gap, and of 0
        bits = bits + np.uint64((c + salt + 2) * 0x9E3779B97F4A7C15 % 2**64)  # splitmix64 (Steele and others, 2014)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found += bits ^ (bits >> np.uint64(31))
    return found
