"""What the papers claim about experiments, from claims.toml, and whether it holds here.

A claim has a `rule`, comparisons of cells of reproduced tables that are judged as soon as the cells exist, or an
`answer` that a page or a test of the repository gives, or both: then the answer stands alone until a cell is reached,
and beside the rule's from then on. Words such as "clearly" or "level" have become numbers in the rules: those are ours.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from itertools import product
from typing import Any, Literal, get_args

from ..errors import FedkinError

Word = Literal["holds", "does not hold", "holds in part", "cannot be tested here", "not reached yet"]
WORDS: tuple[Word, ...] = get_args(Word)
Lookup = Callable[[str, str, str], float | None]
"""Our value of (table, row, column): in per cent, errors in units of 1e-3; None where it is not reached."""

IMAGES = ("mnist", "fmnist", "emnist", "cifar100")
GRAPHS = ("fl60", "compcars", "tpt48", "metr_la", "pems_bay")
ERRORS = ("tpt48", "metr_la", "pems_bay")
"""Columns in which less is better."""
UNAVAILABLE = ("compcars", "pems_bay")
"""Data that are not here."""
TABLES: dict[str, tuple[str, ...]] = {
    "fedamp-table1": IMAGES,  # IID
    "fedamp-table2": IMAGES,  # pathological
    "fedamp-table3": IMAGES,  # practical
    "fedamp-dirty": tuple(f"{data}-{share}" for data in IMAGES for share in (20, 40, 60)),
    "fedamp-dropped": tuple(f"{data}-{share}" for data in IMAGES for share in (10, 30, 50)),
    "panacea-table1": GRAPHS,
    "panacea-table2": GRAPHS,  # novel clients
    "panacea-attack": tuple(f"{data}-{share}" for data in ("fl60", "compcars") for share in (30, 40)),
}
"""The columns of each; a number behind a data set is the share in per cent of what was made wrong or dropped."""
ROWS = (
    *("separate", "fedavg", "fedavg-ft", "fedprox", "fedprox-ft", "scaffold", "apfl", "fedamp", "heurfedamp"),
    *("perfedavg", "pfedme", "sfl", "pfedhn", "panacea-gn", "panacea"),
)
PAPERS = ("fedamp", "panacea", "review")
NEEDED = {"id", "paper", "claim", "source"}
KEYS = NEEDED | {"rule", "enough", "note", "answer", "because", "where"}
RULE_KEYS = {"table", "row", "column", "above", "than", "by", "level", "within", "least", "most", "any"}


@dataclass(frozen=True)
class Comparison:
    """In each column every row, or with `any` the best of them, is above all others by more than `by`; or `within` so
    many points of each; or at least, or at most, a number. Above is better: lower, where a column has errors."""

    table: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    above: tuple[str, ...] = ()
    than: str = ""
    """The table in which those of `above` stand, if it is another one."""
    by: float = 0.0
    level: tuple[str, ...] = ()
    within: float = 0.0
    least: float | None = None
    most: float | None = None
    any: bool = False


@dataclass(frozen=True)
class Answer:
    word: Word
    because: str
    where: tuple[str, ...] = ()
    """Files of the repository that say so."""


@dataclass(frozen=True)
class Claim:
    number: int
    id: str
    paper: str
    claim: str
    source: str
    rule: tuple[Comparison, ...] = ()
    enough: int | None = None
    """How many columns of the rule must hold for the claim to hold; None: all."""
    note: str = ""
    """What the rule leaves out."""
    answer: Answer | None = None


def claims() -> list[Claim]:
    """All of them, in the papers' order."""
    return parsed((resources.files(__package__) / "claims.toml").read_text(encoding="utf-8"))


def answered(claim: Claim, lookup: Lookup) -> Answer:
    """By the rule, as far as its cells are reached, and by what the file says; else not reached yet.

    Where the two do not agree the claim holds in part, and both say why. By its rule a claim holds if all columns do
    (or `enough`), and does not if none of those that are reached does; otherwise, and where all that are reached hold
    but some are missing, it holds in part.
    """
    found = [(column, each.rows, _judged(each, column, lookup)) for each in claim.rule for column in each.columns]
    reached = [(column, *judged) for column, _, judged in found if judged is not None]
    if not reached:
        none = "No cell of the tables that would tell is reached."
        if claim.answer is None:
            return Answer("not reached yet", none)
        return replace(claim.answer, because=f"{claim.answer.because} {none}") if claim.rule else claim.answer
    right = [f"{column} ({told})" for column, holds, told in reached if holds]
    wrong = [f"{column} ({told})" for column, holds, told in reached if not holds]
    there = {column for column, *_ in reached}
    empty = {column + (f" ({', '.join(rows)})" if column in there else "") for column, rows, j in found if j is None}
    closed = sorted(column for column in empty if column.startswith(UNAVAILABLE))
    missing = sorted(empty - set(closed))
    enough = len(found) if claim.enough is None else claim.enough
    word: Word = "holds" if len(right) >= enough else "holds in part" if right else "does not hold"
    parts = [("so it is on", right), ("not on", wrong), ("not reached:", missing), ("not to be had here:", closed)]
    because = "; ".join(f"{said} {', '.join(each)}" for said, each in parts if each)
    because = f"{because[0].upper()}{because[1:]}." + (f" {claim.note}" if claim.note else "")
    if claim.answer is None or claim.answer.word in ("not reached yet", "cannot be tested here"):
        return Answer(word, because)
    agreed: Word = word if word == claim.answer.word else "holds in part"
    return Answer(agreed, f"{because} {claim.answer.because}", claim.answer.where)


def _judged(comparison: Comparison, column: str, lookup: Lookup) -> tuple[bool, str] | None:
    """Whether it holds in a column, and the numbers that decide; None where a cell is missing."""
    c, better = comparison, -1 if column in ERRORS else 1
    own = {row: lookup(c.table, row, column) for row in c.rows}
    others = {row: lookup(c.than or c.table, row, column) for row in (*c.above, *c.level)}
    if None in own.values() or None in others.values():
        return None
    values = {row: value for row, value in own.items() if value is not None}
    against = {row: value for row, value in others.items() if value is not None}
    if c.any:
        best = max(values, key=lambda row: better * values[row])
        values = {best: values[best]}
    # Each as (how much there is to spare, what is told); the tightest one decides.
    spare: list[tuple[float, str]] = []
    for (row, value), (other, beside) in product(values.items(), against.items()):
        if row == other and not c.than:
            continue
        elsewhere = f" in {c.than}" if c.than else ""
        margin = better * (value - beside) - c.by if c.above else c.within - abs(value - beside)
        spare.append((margin, f"{row} {value:.2f}, {other}{elsewhere} {beside:.2f}"))
    for row, value in values.items():
        spare += [(value - c.least, f"{row} {value:.2f}, at least {c.least:g} asked")] if c.least is not None else []
        spare += [(c.most - value, f"{row} {value:.2f}, at most {c.most:g} asked")] if c.most is not None else []
    margin, told = min(spare)
    margin = round(margin, 6)  # 1.2 - 1.1 is not more than 0.1
    return (margin > 0 if c.above else margin >= 0), told


# ---- reading ----


def parsed(text: str) -> list[Claim]:
    """The claims of a file; FedkinError where something in it is wrong."""
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FedkinError(f"The file of claims is not TOML: {error}.") from None
    if set(told) != {"claim"} or not isinstance(told["claim"], list):
        raise FedkinError("The file of claims holds tables [[claim]] and nothing else.")
    found = [_claim(number, each) for number, each in enumerate(told["claim"], 1)]
    seen: set[str] = set()
    for claim in found:
        if claim.id in seen:
            raise FedkinError(f"Two claims have the id {claim.id!r}; give one of them another.")
        seen.add(claim.id)
    return found


def _claim(number: int, told: Mapping[str, Any]) -> Claim:
    where = f"Claim {number} ({told.get('id', 'without an id')})"
    _known(where, "key", set(told), KEYS)
    for key in sorted(NEEDED):
        if not isinstance(told.get(key), str) or not told[key]:
            raise FedkinError(f"{where} needs {key!r}, a text.")
    _known(where, "paper", {told["paper"]}, PAPERS)
    if "rule" not in told and "answer" not in told:
        raise FedkinError(f"{where} has neither a rule nor an answer; one is needed, if only 'not reached yet'.")
    rules = told.get("rule", [])
    rule = tuple(_comparison(where, each) for each in (rules if isinstance(rules, list) else [rules]))
    columns, enough = sum(len(each.columns) for each in rule), told.get("enough")
    if enough is not None and not (isinstance(enough, int) and 1 <= enough <= columns):
        raise FedkinError(f"{where} says that {enough!r} columns are enough, and its rule has {columns}.")
    given = {key: told[key] for key in NEEDED}
    return Claim(number, **given, rule=rule, enough=enough, note=told.get("note", ""), answer=_answer(where, told))


def _answer(where: str, told: Mapping[str, Any]) -> Answer | None:
    if "answer" not in told:
        if "because" in told or "where" in told:
            raise FedkinError(f"{where} says why or where, and gives no answer.")
        return None
    _known(where, "answer", {told["answer"]}, WORDS)
    because, places = told.get("because", ""), told.get("where", [])
    if not because:
        raise FedkinError(f"{where} answers {told['answer']!r} and does not say because of what.")
    if not isinstance(places, list) or (not places and told["answer"] != "not reached yet"):
        raise FedkinError(f"{where} answers {told['answer']!r}; 'where' has to list the pages or results that say so.")
    return Answer(told["answer"], because, tuple(places))


def _comparison(where: str, told: Mapping[str, Any]) -> Comparison:
    where = f"{where}, in its rule,"
    _known(where, "key", set(told), RULE_KEYS)
    if not {"table", "row", "column"} <= set(told):
        raise FedkinError(f"{where} needs table, row and column.")
    asked = [key for key in ("above", "level", "least", "most") if key in told]
    if not asked or (len(asked) > 1 and asked != ["least", "most"]):
        raise FedkinError(f"{where} needs one of above, level, or least and most; it has {', '.join(asked) or 'none'}.")
    if ("by" in told and "above" not in told) or ("within" in told) != ("level" in told):
        raise FedkinError(f"{where} has numbers that do not fit: 'by' goes with above, 'within' with level.")
    rows, columns, above, level = (_names(told.get(key, [])) for key in ("row", "column", "above", "level"))
    tables = {told["table"], told.get("than", told["table"])}
    _known(where, "table", tables, TABLES)
    _known(where, "row", {*rows, *above, *level}, ROWS)
    for table in sorted(tables):
        _known(f"{where} of {table},", "column", set(columns), TABLES[table])
    if not rows or not columns:
        raise FedkinError(f"{where} names no row or no column.")
    rest = {key: told[key] for key in ("than", "by", "within", "least", "most", "any") if key in told}
    return Comparison(told["table"], rows, columns, above=above, level=level, **rest)


def _names(told: Any) -> tuple[str, ...]:
    return (told,) if isinstance(told, str) else tuple(told)


def _known(where: str, kind: str, told: set[str], known: Any) -> None:
    if strange := sorted(told - set(known)):
        raise FedkinError(f"{where} has the {kind} {strange[0]!r}; known are {', '.join(sorted(known))}.")
