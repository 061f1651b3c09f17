"""Whose rows these are: patients with several visits, households, machines; and columns that may name them unsaid."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import cells
from .columns import DATE, FEW, MOST, at_most, grouping, marks, refuse_gaps
from .preprocessing import Category, Column, TableSettings
from .table import Cells, Table, TableError

Codes = NDArray[np.int64]
NAMED = re.compile(
    r"(?i)(.*[_\W])?(id|pid|uid|mrn|patients?|subject|person|participant|household|case|animal|machine|device)"
    r"([_\W]?(id|no|nr|num|number|code|key|name))?"
)
CAMEL = re.compile(r".*[a-z](ID|Id)")
"""Names of columns that say whose a row is: patient, patient_id, subject-no, patientID."""


def is_named_so(column: str) -> bool:
    """Whether a column has the name of an identifier."""
    return bool(NAMED.fullmatch(column) or CAMEL.fullmatch(column))


@dataclass(frozen=True, eq=False)
class Subjects:
    """The column that names whose each row is; (n,) the number of each row's subject, and the subjects' names."""

    column: str
    codes: Codes
    names: list[str]

    def refuse_both_sides(self, table: Table, client: str, parts: Mapping[str, Codes]) -> None:
        """A subject whose rows were given for two parts. parts: a client's rows by what they are for."""
        seen: dict[int, str] = {}
        for part, rows in parts.items():
            for code in np.unique(self.codes[rows]).tolist():
                if seen.setdefault(code, part) != part:
                    row = int(rows[(self.codes[rows] == code).argmax()])
                    raise TableError(
                        f"{table.where(row)}: {self.column} {self.names[code]!r} of {client} is there for {part}, and "
                        f"has other rows for {seen[code]}. Give all rows of one {self.column} for the same, or leave "
                        "out table.group."
                    )


def of(table: Table, settings: TableSettings) -> Subjects | None:
    """As the column `settings.group` names them; None without."""
    if settings.group is None:
        return None
    named = cells.categories(table, settings.group, marks(settings, settings.group))
    refuse_gaps(table, settings.group, named, "group")
    names, codes = np.unique(np.array(named, dtype=np.str_), return_inverse=True)
    return Subjects(settings.group, codes.astype(np.int64), names.tolist())


def notes(
    table: Table, settings: TableSettings, found: Subjects | None, owners: Codes, columns: Sequence[Column]
) -> list[str]:
    """What is worth knowing of subjects. owners: (n,) the number of each row's silo; columns: the inputs."""
    if found is None:
        return _unsaid(table, settings, owners, columns)
    told = []
    pairs = np.unique(owners * len(found.names) + found.codes)
    shared = int((np.bincount(pairs % len(found.names)) > 1).sum())
    if shared:
        told.append(
            f"{shared:,} values of the group {found.column!r} occur in several silos, and count as another subject "
            "in each. If they are the same, say with table.fold which rows are for training and for testing."
        )
    return told


def _unsaid(table: Table, settings: TableSettings, owners: Codes, columns: Sequence[Column]) -> list[str]:
    """Columns that are left out, or look like identifiers, and have a value several times within a silo."""
    told = []
    numbered = {c.name for c in columns if isinstance(c, Category) and _like_numbers(c.categories)}
    for column in sorted(set(table.columns) - set(settings.roles.values())):
        left_out = column in settings.ignore
        if not left_out and column not in numbered and not is_named_so(column):
            continue
        codes = _identities(table, column)
        if codes is None:
            continue
        known = codes >= 0
        rows, different = int(known.sum()), len(np.unique(codes[known]))
        several = len(np.unique(owners[known] * len(codes) + codes[known])) < rows
        if several and different > max(MOST, rows / 50):
            what = "is left out" if left_out else "looks like an identifier"
            leave = f"--ignore {column} leaves it out"
            told.append(
                f"Column {column!r} {what} and has {different:,} different values in {rows:,} rows. If it names whose "
                f"a row is, such as the patient, one subject's rows are trained and tested on: {grouping(column)} "
                "keeps them together."
                + ("" if left_out else f" As it stands it is an input, and its values are told to all silos; {leave}.")
            )
    return at_most(told)


def _like_numbers(categories: Sequence[str]) -> bool:
    """Whether there are many, and they are told apart by digits, as P0017 and P0018 are."""
    return len(categories) > FEW and sum(bool(re.search(r"\d", name)) for name in categories) > len(categories) / 2


def _identities(table: Table, column: str) -> Codes | None:
    """(n,) numbers of a column's values, -1 where missing; None where these are fractions, truths, dates or unreadable,
    and so nobody's."""
    try:
        found: Cells = table[column]
    except TableError:
        return None
    if isinstance(found, np.ndarray):
        known = ~np.isnan(found)
        if not known.any() or not (np.isfinite(found[known]) & (found[known] == np.floor(found[known]))).all():
            return None
        return np.where(known, np.unique(found, return_inverse=True)[1], -1).astype(np.int64)
    different, codes = cells.coded(found)
    texts = [cell for cell in different if isinstance(cell, str)]
    values = [
        cell if isinstance(cell, float) else cells.number(cell) for cell in different if not isinstance(cell, bool)
    ]
    fractions = any(value is not None and not value.is_integer() for value in values)
    if not different or len(values) < len(different) or fractions or (texts and DATE.match(texts[0])):
        return None
    return codes
