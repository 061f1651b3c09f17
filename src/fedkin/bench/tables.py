"""Measurements as tables: which values of a row are shown, under which head, and in which words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .steps import WAYS
from .timing import Row


class Column(NamedTuple):
    head: str
    words: Callable[[Row], str]


def _text(key: str) -> Callable[[Row], str]:
    return lambda row: str(row.get(key, ""))


def _number(key: str, form: str = "{:.3g}", scale: float = 1.0) -> Callable[[Row], str]:
    """Three digits; nothing where it was not measured."""

    def words(row: Row) -> str:
        value = row.get(key)
        return "" if value is None else plain(form.format(scale * value))

    return words


def plain(number: str) -> str:
    """1.44e+03 as 1,440."""
    return f"{float(number):,.0f}" if "e+" in number else number


def _spread(key: str) -> Callable[[Row], str]:
    """A median and, behind it, the quartiles."""

    def words(row: Row) -> str:
        if row.get(key) is None:
            return ""
        values = [plain(f"{row[k]:.3g}") for k in (key, f"{key}_low", f"{key}_high") if k in row]
        return values[0] if len(values) == 1 else f"{values[0]} ({values[1]}–{values[2]})"

    return words


def _times(key: str) -> Callable[[Row], str]:
    number = _number(key)
    return lambda row: f"{number(row)} ×" if row.get(key) is not None else ""


def _count(key: str) -> Callable[[Row], str]:
    return lambda row: "" if row.get(key) is None else f"{row[key]:,}"


def _percent(key: str, digits: int = 0) -> Callable[[Row], str]:
    return lambda row: "" if row.get(key) is None else f"{100 * row[key]:.{digits}f} %"


def size(count: float | None) -> str:
    """Bytes in words."""
    if count is None:
        return ""
    for unit, bound in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= bound:
            return f"{plain(f'{count / bound:.3g}')} {unit}"
    return f"{count:.0f} B"


def _bytes(key: str) -> Callable[[Row], str]:
    return lambda row: size(row.get(key))


def _way(row: Row) -> str:
    return WAYS.get(row.get("way", ""), str(row.get("way", "")))


TOGETHER = ("vmap", "default")
"""Ways whose memory is that of all clients. The others may be timed on a few and counted up."""

CLIENTS, PRECISION = Column("clients", _count("clients")), Column("precision", _text("precision"))
WORKLOAD = Column("model", _text("workload"))
MILLISECONDS = Column("ms", _spread("ms"))

COLUMNS: dict[str, Sequence[Column]] = {
    "ceilings": (
        Column("at best", _text("what")),
        Column("GFLOP/s", _number("flop_per_second", scale=1e-9)),
        Column("GB/s", _number("bytes_per_second", scale=1e-9)),
    ),
    "step": (
        WORKLOAD,
        CLIENTS,
        PRECISION,
        Column("way", _way),
        Column("ms, all clients", _spread("ms")),
        Column("ms a client", _number("ms_per_client")),
        Column("samples/s", _number("images_per_second")),
        Column("memory", lambda row: size(row.get("peak_bytes")) if row["way"] in TOGETHER else ""),
        Column("to plain", _times("times_plain")),
        Column("to fairest", _times("times_fairest")),
        Column("of the bound", _percent("share_of_bound", 1)),
    ),
    "round": (
        Column("federation", _text("workload")),
        CLIENTS,
        PRECISION,
        Column("way", _text("way")),
        Column("s a round", _spread("seconds")),
        Column("first round, s", _number("first_seconds")),
        Column("to one by one", _times("times_one_by_one")),
        Column("memory", _bytes("peak_bytes")),
    ),
    "accuracy": (
        Column("federation", _text("workload")),
        PRECISION,
        Column("seed", _text("seed")),
        Column("best cloud", _percent("best_cloud", 2)),
        Column("best personal", _percent("best_personal", 2)),
        Column("s a round", _number("seconds")),
    ),
    "collaboration": (
        CLIENTS,
        Column("parameters", _count("parameters")),
        Column("weights", _bytes("bytes")),
        Column("", _text("way")),
        MILLISECONDS,
        Column("to a copy", _times("times_copy")),
        Column("beyond W and result", _percent("beyond", 1)),
    ),
    "growth": (
        Column("along", _text("along")),
        Column("", _count("value")),
        WORKLOAD,
        Column("way", _way),
        MILLISECONDS,
        Column("ms a client", _number("ms_per_client")),
        Column("to plain", _times("times_plain")),
    ),
    "checkpoint": (
        WORKLOAD,
        CLIENTS,
        Column("", _text("way")),
        Column("size", _bytes("bytes")),
        MILLISECONDS,
        Column("to plain", _times("times_plain")),
    ),
    "memory": (
        WORKLOAD,
        CLIENTS,
        PRECISION,
        Column("weights", _bytes("weights_bytes")),
        Column("at most", _bytes("peak_bytes")),
        Column("times the weights", _number("times_weights")),
        Column("s a round", _number("seconds")),
    ),
    "demo": (
        Column("", _text("workload")),
        Column("methods", _count("methods")),
        Column("seeds", _count("seeds")),
        Column("seconds", _number("seconds")),
        Column("of these in rounds", _number("in_rounds")),
    ),
    "warmup": (
        Column("federation", _text("workload")),
        PRECISION,
        Column("kernels", _text("kernels")),
        Column("before it, s", _number("prepare_seconds")),
        Column("first round, s", _number("first_seconds")),
        Column("a later one, s", _spread("seconds")),
        Column("warm-up in rounds", _number("warmup_rounds")),
        Column("memory", _bytes("peak_bytes")),
    ),
}


def table(section: str, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Heads and lines of what was measured, without columns in which nothing stands; see `skipped` for the rest."""
    shown = [row for row in rows if "skipped" not in row]
    columns = COLUMNS[section]
    lines = [[column.words(row) for column in columns] for row in shown]
    used = [i for i in range(len(columns)) if any(line[i] for line in lines)]
    return [columns[i].head for i in used], [[line[i] for i in used] for line in lines]


def skipped(rows: Sequence[Row]) -> list[str]:
    """What was not measured, and why, in sentences."""
    told: list[str] = []
    for row in rows:
        if "skipped" in row:
            parts: list[Any] = [row.get("workload"), row.get("precision"), WAYS.get(row.get("way", ""))]
            parts += [f"{row['clients']} clients"] if "clients" in row else []
            what = ", ".join(str(part) for part in parts if part)
            told.append(f"{what}: {row['skipped']}." if what else f"{row['skipped'][0].upper()}{row['skipped'][1:]}.")
    return list(dict.fromkeys(told))
