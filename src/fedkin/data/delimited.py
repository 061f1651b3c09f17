"""CSV and TSV files: their characters, what parts their cells, and their rows.

pyarrow reads them, a million rows in a second. What it refuses, and files with quotation marks inside cells, go to a
careful reader, which says in which line something is wrong.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ..errors import FedkinError

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
WESTERN = "cp1252"
Record = tuple[int, list[str]]
"""The line in which a row begins, and its cells."""


class TableError(FedkinError):
    """A table cannot be used; the sentence says where, why, and what would be right."""


class Texts(Sequence[str | None]):
    """A column of texts as Arrow keeps them, without spaces around them; None where a cell is empty."""

    def __init__(self, column: Any) -> None:
        self.column = column

    def __len__(self) -> int:
        return len(self.column)

    @overload
    def __getitem__(self, at: int) -> str | None: ...
    @overload
    def __getitem__(self, at: slice) -> list[str | None]: ...
    def __getitem__(self, at: int | slice) -> str | list[str | None] | None:
        return self.cells[at]

    def __iter__(self) -> Iterator[str | None]:
        return iter(self.cells)

    @cached_property
    def cells(self) -> list[str | None]:
        return self.trimmed.to_pylist()  # type: ignore[no-any-return]

    @cached_property
    def trimmed(self) -> Any:
        import pyarrow as pa
        from pyarrow import compute

        column = compute.utf8_trim_whitespace(self.column)
        return compute.if_else(compute.equal(column, ""), pa.scalar(None, column.type), column)

    @cached_property
    def coded(self) -> tuple[list[str], NDArray[np.int64]]:
        """The different texts, and (n,) for each cell the place of its own; -1 where it is empty."""
        import pyarrow as pa

        column = self.trimmed
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        found = whole.dictionary_encode()
        codes = found.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return found.dictionary.to_pylist(), codes

    def numbers(self, gaps: Sequence[str]) -> NDArray[np.float64] | None:
        """(n,) the numbers that the texts are, NaN where a cell is empty or one of `gaps`; None if any is no finite
        number as everybody writes it, and so has to be looked at more closely."""
        import pyarrow as pa
        from pyarrow import compute

        column = self.trimmed
        if gaps:
            marked = compute.is_in(column, value_set=pa.array(gaps, column.type))
            column = compute.if_else(marked, pa.scalar(None, column.type), column)
        try:
            found = compute.cast(column, pa.float64())
        except pa.ArrowInvalid:
            return None
        values = np.array(found, dtype=np.float64)
        known = len(values) - found.null_count
        return values if np.isfinite(values).sum() == known else None

    def some(self, pattern: str) -> bool:
        """Whether any cell has this pattern."""
        from pyarrow import compute

        return bool(compute.any(compute.match_substring_regex(self.trimmed, pattern)).as_py())


def below(parts: Sequence[Texts]) -> Texts:
    """Columns below one another."""
    import pyarrow as pa

    chunks = [part.column for part in parts]
    flat = [c for chunk in chunks for c in (chunk.chunks if isinstance(chunk, pa.ChunkedArray) else [chunk])]
    return Texts(pa.chunked_array([c.cast(pa.string()) for c in flat], pa.string()))


@dataclass(frozen=True, eq=False)
class Delimited:
    """A file's columns by the names in its header, how many rows there are, in which line one begins, and notes."""

    names: list[str]
    columns: list[Texts]
    rows: int
    line: Callable[[int], int]
    notes: tuple[str, ...]


def read(path: Path) -> Delimited:
    """A CSV or TSV file."""
    text, notes = decoded(path)
    separator = separator_of(path, text)
    if separator != _usual(path):
        notes = (*notes, f"{path.name}: cells are parted by {SEPARATORS[separator]}, as the header's are.")
    fast = _fast(text, separator)
    if fast is not None:

        @cache
        def lines() -> list[int]:
            return [line for line, _ in _cut(path, text, separator)[1:]]

        return Delimited(*fast, len(fast[1][0]), lambda row: lines()[row], notes)
    import pyarrow as pa

    (_, header), *rest = _cut(path, text, separator)
    for line, row in rest:
        if len(row) != len(header):
            raise TableError(
                f"{path.name}, line {line} has {_count(len(row), 'cell')}, but the header names "
                f"{_count(len(header), 'column')}."
            )
    columns = [Texts(pa.array(column, pa.string())) for column in zip(*(row for _, row in rest), strict=True)]
    return Delimited([name.strip() for name in header], columns, len(rest), lambda row: rest[row][0], notes)


def records(path: Path) -> list[Record]:
    """The rows of a CSV or TSV file, the header first, each with the line in which it begins."""
    text, _ = decoded(path)
    return _cut(path, text, separator_of(path, text))


# ---- characters ----


def decoded(path: Path) -> tuple[str, tuple[str, ...]]:
    """A file's text, and a note where it is not UTF-8: then it is what Excel writes, UTF-16 or Windows-1252."""
    content = path.read_bytes()
    try:
        if content.startswith((b"\xff\xfe", b"\xfe\xff")):
            return content.decode("utf-16"), (f"{path.name} was read as UTF-16.",)
        return content.decode("utf-8-sig"), ()
    except UnicodeDecodeError as error:
        text = None if _damaged(content) else _western(content)
        if text is None:
            line = content.count(b"\n", 0, error.start) + 1
            raise TableError(
                f"{path.name}, line {line} is not UTF-8 text (byte {content[error.start]:#04x}). "
                "Save the file as CSV in UTF-8."
            ) from None
    seen = re.search(r"[^\W\d_]*[^\x00-\x7f]\w*", text)
    assert seen is not None
    line = text.count("\n", 0, seen.start()) + 1
    return text, (
        f"{path.name} is not UTF-8; it was read as Windows-1252, in which line {line} has {seen.group()!r}. If that is "
        "not right, save the file in UTF-8.",
    )


def _damaged(content: bytes) -> bool:
    """Whether what is not ASCII is mostly UTF-8: then the file is broken, not written in another way."""
    tried = content.decode("utf-8", errors="replace")
    bad = tried.count("\ufffd")
    return sum(tried.count(c) for c in set(tried) if c > "\x7f") - bad >= bad


def _western(content: bytes) -> str | None:
    """As Windows-1252, of which Latin-1 is a part; None where that gives no text."""
    try:
        text = content.decode(WESTERN)
    except UnicodeDecodeError:
        return None
    return None if re.search(r"[\x00-\x08\x0e-\x1f]", text) else text


# ---- cells ----


def _usual(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","


def separator_of(path: Path, text: str) -> str:
    """What parts the cells: of commas, semicolons, tabs and bars the most frequent in the header, those first of which
    the next line has as many."""
    lines = [re.sub(r'"[^"]*"', "", line) for line in re.split(r"[\r\n]", text[:100_000]) if line.strip()]
    first, second = (*lines, "", "")[:2]
    usual = _usual(path)
    if path.suffix.lower() == ".tsv" and usual in first:
        return usual
    found = [s for s in SEPARATORS if s in first]
    return max(found, key=lambda s: (first.count(s) == second.count(s), first.count(s), s == usual), default=usual)


def _fast(text: str, separator: str) -> tuple[list[str], list[Texts]] | None:
    """Names and columns as pyarrow reads them; None where that would not be certain."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    content = _of_arrow(text.encode())
    if not _plainly_quoted(np.frombuffer(content, np.uint8), separator):
        return None
    first = re.split(r"[\r\n]", text.lstrip("\r\n"), maxsplit=1)[0]
    try:
        (header,) = csv.reader([first], delimiter=separator, strict=True)
        kinds = {f"f{i}": pa.string() for i in range(len(header))}
        found = arrow.read_csv(
            pa.BufferReader(content),
            arrow.ReadOptions(autogenerate_column_names=True),
            arrow.ParseOptions(delimiter=separator),
            arrow.ConvertOptions(column_types=kinds, strings_can_be_null=False),
        )
    except (ValueError, csv.Error, pa.ArrowInvalid):
        return None
    if len(found) < 2 or [column[0].as_py() for column in found.columns] != header:
        return None
    return [name.strip() for name in header], [Texts(column) for column in found.slice(1).columns]


def _of_arrow(content: bytes) -> Any:
    """A copy in memory that is Arrow's own, and not Python's.

    `read_csv` returns before its threads have let go of what they read. To let go of what is Python's, a thread waits
    for its turn in Python, and if Python ends meanwhile, as it does right after a refusal, the process is aborted: exit
    code 134 in place of 2. apache/arrow's issue 49942 describes it; pyarrow 26.0.1 still does it.
    """
    import pyarrow as pa

    copy = pa.allocate_buffer(len(content))
    np.frombuffer(copy, np.uint8)[:] = np.frombuffer(content, np.uint8)
    return copy


def _plainly_quoted(data: NDArray[np.uint8], separator: str) -> bool:
    """Whether quotation marks, if there are any, stand around whole cells of one line: nothing to differ about."""
    marks = np.flatnonzero(data == ord('"'))
    if not len(marks) or len(marks) % 2:
        return not len(marks)
    opening, closing = marks[::2], marks[1::2]
    ends = np.array([ord(separator), ord("\r"), ord("\n")], np.uint8)
    before, after = data[opening[opening > 0] - 1], data[closing[closing < len(data) - 1] + 1]
    lines = np.flatnonzero((data == ord("\n")) | (data == ord("\r")))
    one_line = (np.searchsorted(lines, opening) == np.searchsorted(lines, closing)).all()
    return bool(np.isin(before, ends).all() and np.isin(after, ends).all() and one_line)


def _cut(path: Path, text: str, separator: str) -> list[Record]:
    """Records with the lines in which they begin, the header first; empty lines are passed over."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    records, begun = [], 1
    try:
        for row in reader:
            if row:
                records.append((begun, row))
            begun = reader.line_num + 1
    except csv.Error as error:
        raise TableError(
            f"{path.name}: the row that begins in line {begun} cannot be read ({error}); "
            "perhaps a quotation mark is never closed."
        ) from None
    if not records:
        raise TableError(f"{path.name} is empty.")
    if len(records) == 1:
        raise TableError(f"{path.name} has a header but no rows.")
    return records


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
