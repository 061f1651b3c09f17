"""What a table's columns mean: which are numbers, which categories; what of it is refused, and what only told.

Columns stand in the order of their names, so that it does not matter how a silo orders them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..base.wording import did_you_mean, nearest
from . import cells, dates
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
    left_out = {*settings.roles.values(), *settings.ignore}
    names = sorted(column for column in table.columns if column not in left_out)
    columns, silent = list[Column](), dict[str, str]()
    for name in names:
        found, says = _column(table, name, settings, train)
        columns.append(found)
        if says:
            silent[name] = says
    _refuse_uninformative(silent)
    if not any(isinstance(column, Number) or column.categories for column in columns):
        raise TableError(f"{table.name} has no column left to learn from.")
    return columns


def _column(table: Table, name: str, settings: TableSettings, train: Rows) -> tuple[Column, str]:
    """What a column is, and why it says nothing, if that is so."""
    missing, declared = marks(settings, name), name in settings.categorical
    found = cells.values(table, name, missing)
    if isinstance(found, np.ndarray) and not declared:
        says = _uninformative(np.unique(found), gaps_tell=settings.indicators)
        return Number(name, missing, indicator=settings.indicators and bool(np.isnan(found[train]).any())), says
    if not declared:
        form = _date_form(name, found)
        if form:
            days = cells.days(table, name, form, missing)
            says = _uninformative(np.unique(days), gaps_tell=settings.indicators)
            says = says and next((text for text in found if text is not None), "empty")
            gaps = settings.indicators and bool(np.isnan(days[train]).any())
            return Number(name, missing, indicator=gaps, dates=form), says
        _refuse_text_among_numbers(table, name, found, settings.missing)
    names, codes = cells.coded_categories(table, name, missing)
    named = np.array([*names, None], dtype=object)
    counts = np.bincount(codes + 1, minlength=len(names) + 1)
    if not declared:
        _refuse_free_text(
            name, [name for name, n in zip(names, counts[1:], strict=True) if name is not None and n], found
        )
    trained = {named[code] for code in np.unique(codes[train])} - {None}
    everyone = np.array([np.nan if named[c] is None else names.index(named[c]) for c in np.unique(codes)])
    shown = _uninformative(everyone, gaps_tell=True, names=names)
    return Category(name, missing, tuple(sorted(trained, key=_in_order))), shown


def _date_form(name: str, found: reading.Cells) -> str:
    """How the dates of a column are written; empty, where it is not one of dates."""
    first = next((value for value in found if value is not None), None)
    if not isinstance(first, str) or not DATE.match(first):
        return ""
    texts = set(found) - {None}
    forms = dates.forms(texts) if all(isinstance(text, str) for text in texts) else []
    if len(forms) > 1:
        raise TableError(
            f"Column {name!r} holds dates such as {first!r}, in which day and month cannot be told apart. Write them "
            f"year first, as 2024-03-31, or leave the column out: {reading.ignoring([name])}."
        )
    return forms[0] if forms else ""


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
    _refuse_half_a_survival(name, columns, settings)
    if settings.target is None and not settings.survival:
        raise TableError(
            f"Which column of {name} is to be predicted? Say it with target = … (--target); "
            f"the columns are {', '.join(columns)}."
        )
    roles = settings.roles
    asked = [*roles.items(), *(("ignore", c) for c in settings.ignore)]
    asked += [*(("categorical", c) for c in settings.categorical), *(("missing_in", c) for c in settings.missing_in)]
    for setting, column in asked:
        if column not in columns:
            hint = did_you_mean(column, columns, 0.6).rstrip() or f"The columns are {', '.join(columns)}."
            raise TableError(f"{name} has no column {column!r}, which table.{setting} names. {hint}")
    first: dict[str, str] = {}
    for role, column in roles.items():
        if column in settings.ignore:
            raise TableError(f"Column {column!r} is the {role} and cannot be in table.ignore as well.")
        if first.setdefault(column, role) != role:
            raise TableError(f"Column {column!r} cannot be both the {first[column]} and the {role}.")


def _refuse_half_a_survival(name: str, columns: Collection[str], settings: TableSettings) -> None:
    """A time goes with an event, and both with no target."""
    if not settings.survival:
        if settings.time is not None or settings.event is not None:
            raise TableError(f"table.time and table.event are for survival, but table.task = {settings.task!r}.")
        return
    lacking = [role for role in ("time", "event") if getattr(settings, role) is None]
    if lacking:
        what = " and ".join(f"{role} = … (--{role})" for role in lacking)
        raise TableError(
            f"Survival needs a column of times and one that says whether the event was seen. Say which of {name} it is "
            f"with {what}; the columns are {', '.join(columns)}."
        )
    if settings.target is not None:
        raise TableError("Survival has a time and an event in place of a target: leave out table.target (--target).")


def refuse_gaps(table: Table, column: str, found: reading.Cells, role: str) -> None:
    if isinstance(found, np.ndarray):
        rows = np.flatnonzero(np.isnan(found)).tolist()
    else:
        rows = [i for i, value in enumerate(found) if value is None] if None in found else []
    if rows:
        more = f", and in {len(rows) - 1} more rows" if len(rows) > 1 else ""
        raise TableError(
            f"{table.where(rows[0])}: the {role}, column {column!r}, is missing{more}. Fill it in, or remove such rows."
        )


def _refuse_text_among_numbers(table: Table, column: str, found: reading.Cells, declared: Sequence[cells.Mark]) -> None:
    """A column mostly of numbers is not taken for categories because of some texts in it."""
    kinds = Counter(map(type, found))
    words = ("nan", "inf", "infinity")
    numbers = kinds[float]
    if str in kinds:
        numbers += sum(n for text, n in Counter(found).items() if str(text).lstrip("+-").lower() in words)
    if numbers <= (len(found) - kinds[type(None)]) / 2:
        return
    texts = [i for i, value in enumerate(found) if isinstance(value, str | bool)]
    different = list(dict.fromkeys(str(found[i]) for i in texts))
    told = f": {some([repr(word) for word in different])}" if len(different) > 1 else ""
    more = f" ({len(texts)} such cells{told})" if len(texts) > 1 else ""
    what = "they mean missing, declare them" if len(different) > 1 else "that means missing, declare it"
    raise TableError(
        f"{table.where(texts[0])}: column {column!r} is {found[texts[0]]!r} where most cells are numbers{more}. "
        f"If {what}: {declaring_for_all([*declared, *different[:MOST]])}; if the column's values are categories: "
        f"{reading.naming('categorical', [column])}."
    )


def declaring_for_all(missing: Sequence[cells.Mark]) -> str:
    """All that stands for a gap, as an option and as a setting: --missing "NA,-" (table.missing = ["NA", "-"])."""
    words = [mark if isinstance(mark, str) else cells.category(float(mark)) for mark in missing]
    pairs = zip(missing, words, strict=True)
    listed = ", ".join(json.dumps(word, ensure_ascii=False) if isinstance(mark, str) else word for mark, word in pairs)
    # A word with a comma would be taken for two, and a shell or TOML has its own mind about quotes.
    plain = not any(re.search(r"[,\"'\\$`!]", word) for word in words)
    return f'--missing "{",".join(words)}" (table.missing = [{listed}])' if plain else f"table.missing = [{listed}]"


def declaring(settings: TableSettings, found: Mapping[str, Sequence[float]]) -> str:
    """What stands for a gap in single columns, beside what was declared: --missing-in '{chol = [0]}' (…)."""
    marked = []
    for column in dict.fromkeys([*settings.missing_in, *found]):
        key = column if re.fullmatch(r"[A-Za-z0-9_-]+", column) else json.dumps(column, ensure_ascii=False)
        words = [
            json.dumps(mark, ensure_ascii=False) if isinstance(mark, str) else cells.category(float(mark))
            for mark in (*settings.missing_in.get(column, ()), *found.get(column, ()))
        ]
        marked.append(f"{key} = [{', '.join(words)}]")
    table = "{" + ", ".join(marked) + "}"
    return f"--missing-in '{table}' (table.missing_in = {table})" if "'" not in table else f"table.missing_in = {table}"


def _uninformative(different: Numbers, gaps_tell: bool, names: Sequence[str | None] = ()) -> str:
    """What a column is in all rows, empty or one value; nothing, if it varies.

    different: its values, NaN among them where there are gaps, or the places of its categories among `names`.
    `gaps_tell`: whether a gap is an input of its own, so that one value and gaps are two.
    """
    known = sorted(set(different[~np.isnan(different)].tolist()))
    if not known:
        return "empty"
    if len(known) > 1 or (gaps_tell and np.isnan(different).any()):
        return ""
    return str(names[int(known[0])]) if names else cells.category(known[0])


def _refuse_uninformative(silent: Mapping[str, str]) -> None:
    """All at once, so that nobody has to ask again for each."""
    if len(silent) == 1:
        ((column, value),) = silent.items()
        raise TableError(f"Column {column!r} is {value} in all silos; {reading.ignoring([column])} leaves it out.")
    if silent:
        listed = some([f"{column!r} ({value})" for column, value in silent.items()])
        raise TableError(
            f"{len(silent)} columns are empty or have one value in all silos: {listed}. "
            f"{reading.ignoring(list(silent))} leaves them out."
        )


def _refuse_free_text(column: str, different: Sequence[str], found: reading.Cells) -> None:
    rows = len(found) - (0 if isinstance(found, np.ndarray) else found.count(None))
    if len(different) <= FEW or len(different) <= rows / 2:
        return
    hint = "If they are numbers, write them with a point."
    if sum(DATE.match(text) is not None for text in different) > len(different) / 2:
        hint = "If they are dates, write all of them as 2024-03-31."
    elif len(different) < rows:
        hint = f"If it names whose a row is, such as the patient, {grouping(column)} keeps a subject's rows together."
    raise TableError(
        f"Column {column!r} has {len(different)} different texts in {rows} rows, such as {different[0]!r}: as "
        f"categories they say nothing. {reading.ignoring([column])} leaves it out, "
        f"{reading.naming('categorical', [column])} takes it all the same. {hint}"
    )


def grouping(column: str) -> str:
    """How to say that a column names the subject."""
    plain = reading.naming("group", [column])
    return plain.replace(f"[{column!r}]", repr(column))


# ---- what is told ----


def notes(
    columns: Sequence[Column],
    raw: Numbers,
    train: Mapping[str, Rows],
    settings: TableSettings,
    coded: Collection[str] = (),
) -> list[str]:
    """Columns that say nothing in a silo, though they do elsewhere. raw: (n, columns); train: each silo's rows; coded:
    columns with codes for a gap, which are told of elsewhere.

    A sentence a kind: for columns that are empty, that are 0, and that have another value. Where 0 and 1 are all there
    is, 0 means no.
    """
    if len(train) == 1:
        return []
    kinds: dict[str, dict[str, list[str]]] = {"empty": {}, "zero": {}, "flag": {}, "constant": {}}
    values: dict[str, str] = {}
    for i, column in enumerate(columns):
        flag = isinstance(column, Category) or bool((np.isnan(raw[:, i]) | np.isin(raw[:, i], (0, 1))).all())
        for value, clients in _one_value(raw[:, i], train).items():
            shown = column.categories[int(value)] if isinstance(column, Category) and value == value else ""
            kind = "empty" if value != value else "flag" if flag else "zero" if value == 0 else "constant"
            if kind == "constant" and column.name in coded:
                continue
            kinds[kind].setdefault(column.name, []).extend(clients)
            values[column.name] = shown or ("empty" if value != value else cells.category(value))
    told = [_silent(kind, found, values, settings) for kind, found in kinds.items() if found]
    return told + at_most(_other_units(columns, raw, train, coded))


APART = 5.0
"""Times the other silos' deviation, or its inverse, from which on a silo may have another unit."""
SEVERAL = 10
"""Different values, and rows of a silo, from which on that is looked at."""


def _other_units(
    columns: Sequence[Column], raw: Numbers, train: Mapping[str, Rows], coded: Collection[str]
) -> list[str]:
    """Columns of numbers that spread far more, or far less, in one silo than in the others: statistics that silos share
    are then right for nobody."""
    told = []
    for i, column in enumerate(columns):
        if isinstance(column, Category) or column.name in coded:
            continue
        far, others = apart(raw[:, i], train)
        if far:
            theirs = some([f"{deviation:.3g} in {client}" for client, deviation in far.items()])
            told.append(
                f"Column {column.name!r} has a deviation of {theirs}, and of {others:.3g} in other silos. If that is "
                "another unit, bring it to one; --statistics own scales each by itself."
            )
    return told


def apart(values: Numbers, train: Mapping[str, Rows]) -> tuple[dict[str, float], float]:
    """The silos in whose training rows numbers spread far more, or far less, than in the others: their deviations, and
    the others' median one. values: (n,), NaN where missing."""
    own = {client: values[rows][~np.isnan(values[rows])] for client, rows in train.items()}
    spread = {client: float(np.std(known)) for client, known in own.items() if len(np.unique(known)) > SEVERAL}
    spread = {client: deviation for client, deviation in spread.items() if 0 < deviation < np.inf}
    usual = float(np.median(list(spread.values()))) if spread else 1.0
    far = {c: deviation for c, deviation in spread.items() if not 1 / APART < deviation / usual < APART}
    return far, float(np.median([deviation for c, deviation in spread.items() if c not in far] or [usual]))


def _one_value(values: Numbers, train: Mapping[str, Rows]) -> dict[float, list[str]]:
    """The silos in which a column has one value, by the value; NaN: empty."""
    found: dict[float, list[str]] = {}
    for client, rows in train.items():
        own = values[rows]
        if len(own) > 1 and np.isnan(own).all():
            found.setdefault(np.nan, []).append(client)
        elif len(own) > 1 and (own == own[0]).all():
            found.setdefault(float(own[0]), []).append(client)
    return found


def _silent(kind: str, found: Mapping[str, Sequence[str]], values: Mapping[str, str], settings: TableSettings) -> str:
    """One sentence on the columns of one kind, with what to do."""
    elsewhere = "" if kind == "empty" else ", and varies elsewhere"
    if len(found) == 1:
        ((column, clients),) = found.items()
        value = "0" if kind == "zero" else "empty" if kind == "empty" else values[column]
        note = f"Column {column!r} is {value} in all training rows of {some(clients)}{elsewhere}."
    else:
        what = {"empty": "empty", "zero": "0", "flag": "always the same", "constant": "always the same"}[kind]
        kept = [f"{column} ({some(clients)})" for column, clients in found.items()]
        ones = " of 0 and 1 or of categories" if kind == "flag" else ""
        vary = "" if kind == "empty" else ", though they vary elsewhere"
        note = f"{len(found)} columns{ones} are {what} in all training rows of a silo{vary}: {some(kept)}."
    if kind == "zero":
        note += f" If 0 means missing there, declare it: {declaring(settings, {column: [0.0] for column in found})}."
    return note


def of_reading(table: Table, columns: Sequence[Column]) -> list[str]:
    """How the table was read, where that may surprise: separators, encodings, decimal commas, dates."""
    numbers = [column for column in columns if isinstance(column, Number)]
    dated = [column for column in numbers if column.dates]
    told = at_most(table.notes)
    commas = [repr(c.name) for c in numbers if not c.dates and cells.has_commas(table, c.name)]
    if commas:
        told.append(f"Numbers are written with decimal commas, '3,5' for 3.5, in {some(commas)}.")
    if dated:
        forms = [f"{column.name!r} ({column.dates})" for column in dated]
        told.append(
            f"Dates are inputs as days since 1970-01-01: {some(forms)}. {reading.ignoring([c.name for c in dated])} "
            "leaves them out."
        )
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
