"""CSV files as people have them: pyarrow and the careful reader agree, and what is not plain is told."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.data import delimited
from fedkin.data.cells import categories, number, values
from fedkin.data.federation import Federation
from fedkin.data.table import Table, TableError, read

CELLS = st.one_of(
    st.text(st.sampled_from("ab é\"'.,;|\t+-_01e "), max_size=5),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(
        ["", " ", "007", "+5", "1_000", "0x10", "nan", "inf", "-Infinity", "1e999", "1e5", ".5", "5.", "1,5"]
    ),
)


def cells(table: Table, column: str) -> list[str | None]:
    return list(table[column])


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=8), quoting=st.sampled_from([0, 1]))
@settings(max_examples=60, deadline=None)
def test_cells_are_those_that_pythons_own_reader_finds(separator, rows, quoting, tmp_path_factory):
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, quoting=quoting, lineterminator="\n")
    writer.writerow(("first", "second"))
    writer.writerows(rows)
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    found = read(path)
    expected = list(csv.reader(io.StringIO(text.getvalue()), delimiter=separator))[1:]
    expected = [row for row in expected if row]
    for i, column in enumerate(("first", "second")):
        assert cells(found, column) == [row[i].strip() or None for row in expected]


@given(st.lists(CELLS.map(str.strip), min_size=1, max_size=8))
@settings(max_examples=200, deadline=None)
def test_numbers_of_a_file_are_those_of_its_cells_one_by_one(texts):
    import pyarrow as pa

    fast = delimited.Texts(pa.array(texts)).numbers([])
    slow = [number(text) if text else np.nan for text in texts]
    if fast is not None:
        np.testing.assert_array_equal(fast, np.array(slow, dtype=float))
    elif None not in slow:
        table = read({"a": texts})
        np.testing.assert_array_equal(values(table, "a"), slow)


def written(folder: Path, text: str, encoding: str = "utf-8", name: str = "t.csv") -> Path:
    (folder / name).write_bytes(text.encode(encoding))
    return folder / name


@pytest.mark.parametrize(
    ("header", "row", "separator"),
    [
        ("a;b;c", "1,5;2;3", ";"),
        ("a\tb\tc", "1,5\t2\t3", "\t"),
        ("a|b|c", "1,5|2|3", "|"),
        ("a,b;x,c", "1,2,3", ","),
        ("name (a;b;c;d),b", "x,2", ","),
        ('"a;b;c;d;e",b', "x,2", ","),
        ("a", "1", ","),
    ],
)
def test_what_parts_cells_is_seen_in_the_header_and_told(header, row, separator, tmp_path):
    found = read(written(tmp_path, f"{header}\n{row}\n{row}\n"))
    assert len(found.columns) == len(next(csv.reader([header], delimiter=separator)))
    words = {";": "semicolons", "\t": "tabs", "|": "bars"}
    told = (f"t.csv: cells are parted by {words[separator]}, as the header's are.",) if separator != "," else ()
    assert found.notes == told


def test_tabs_of_a_tsv_are_no_surprise(tmp_path):
    assert read(written(tmp_path, "a,x\tb,y\n1\t2\n", name="t.tsv")).notes == ()
    assert list(read(written(tmp_path, "a;b\n1;2\n", name="t.tsv")).columns) == ["a", "b"]


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1"])
def test_western_european_files_are_read_and_that_is_told_with_a_word_to_judge_by(encoding, tmp_path):
    found = read(written(tmp_path, "town,n\nBern,1\nZürich,2\nGenève,3\n", encoding))
    assert categories(found, "town") == ["Bern", "Zürich", "Genève"]
    assert found.notes == (
        "t.csv is not UTF-8; it was read as Windows-1252, in which line 3 has 'Zürich'. If that is not right, save the "
        "file in UTF-8.",
    )


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_utf_8_is_no_surprise(encoding, tmp_path):
    found = read(written(tmp_path, "town,n\nZürich,2\n東京,3\n", encoding))
    assert (list(found.columns), categories(found, "town"), found.notes) == (["town", "n"], ["Zürich", "東京"], ())


def test_utf_16_as_excel_writes_it_is_read_and_told(tmp_path):
    found = read(written(tmp_path, "town\tn\nZürich\t2\n東京\t3\n", "utf-16"))
    assert categories(found, "town") == ["Zürich", "東京"]
    assert found.notes[0] == "t.csv was read as UTF-16."


def test_a_file_in_utf_8_with_a_broken_character_is_not_taken_for_another_encoding(tmp_path):
    whole = "town\nZürich\nGenève\n".encode()
    (tmp_path / "t.csv").write_bytes(whole.replace("è".encode(), b"\xc3"))
    with pytest.raises(TableError, match=r"line 3 is not UTF-8 text \(byte 0xc3\)"):
        read(tmp_path / "t.csv")


def test_lines_are_told_as_they_are_in_the_file_also_where_some_are_empty(tmp_path):
    found = read(written(tmp_path, "a,b\n\n1,2\n\n\n3,4\n"))
    assert [found.where(i) for i in range(2)] == ["t.csv, line 3", "t.csv, line 6"]
    found = read(written(tmp_path, 'a,b\n1,"x\ny"\n3,4\n'))
    assert [found.where(i) for i in range(2)] == ["t.csv, line 2", "t.csv, line 4"]


def plainly(path: Path) -> float:
    """Seconds that Python takes to read a file's cells and numbers, and nothing else: the measure of a machine."""
    started = time.process_time()
    with path.open(newline="") as file:
        rows = [
            [float(cell) if i in range(1, 7) else cell for i, cell in enumerate(row)]
            for row in list(csv.reader(file))[1:]
        ]
    assert rows
    return time.process_time() - started


@pytest.mark.parametrize("quoted", [False, True])
def test_a_large_file_becomes_a_federation_in_about_the_time_that_python_takes_to_read_it(quoted, tmp_path):
    """200,000 rows, in half a second; cell by cell they took nearly three times as long as Python here."""
    rows = 200_000
    rng = np.random.default_rng(0)
    words = rng.choice(['"a"', '"b"'] if quoted else ["a", "b"], rows)
    numbers = rng.normal(size=(rows, 6)).round(4).astype(str)
    lines = [",".join((words[i], *numbers[i], "no" if i % 3 else "yes")) for i in range(rows)]
    path = written(tmp_path, "who,n0,n1,n2,n3,n4,n5,ill\n" + "\n".join(lines) + "\n")
    allowed = 1.5 * plainly(path)
    started = time.process_time()
    found = Federation.from_table(path, "who", "ill")
    seconds = time.process_time() - started
    assert sum(c.samples for c in found.clients) > 130_000
    assert seconds < allowed


# ---- what is left to Arrow's threads ----


def table_of(rows: int, path: Path) -> Path:
    path.write_text("site,age,ill\n" + "".join(f"{'abc'[i % 3]},{i},{i % 2}\n" for i in range(rows)))
    return path


def test_arrows_threads_read_memory_that_is_arrows_own(tmp_path, monkeypatch):
    """They let go of it when they like, also when Python is about to end; of Python's own memory they could not."""
    path, before, held = table_of(100_000, tmp_path / "t.csv"), pa.total_allocated_bytes(), []
    real = pyarrow.csv.read_csv

    def watched(source, *rest):
        held.append(pa.total_allocated_bytes() - before)
        return real(source, *rest)

    monkeypatch.setattr(pyarrow.csv, "read_csv", watched)
    assert delimited.read(path).rows == 100_000
    assert len(held) == 1 and held[0] >= path.stat().st_size


@pytest.mark.slow
def test_a_process_that_ends_right_after_reading_ends_as_it_wants_to(tmp_path):
    """As after a refusal; it takes several to meet the moment, each a process that reads for the first time."""
    path = table_of(3000, tmp_path / "t.csv")
    ends = "import sys; from pathlib import Path; from fedkin.data import delimited; delimited.read(Path(sys.argv[1]))"
    typed = [sys.executable, "-c", f"{ends}; sys.exit(2)", str(path)]
    ended = [subprocess.run(typed, capture_output=True, text=True, timeout=120) for _ in range(10)]
    assert [(process.returncode, process.stderr) for process in ended] == [(2, "")] * 10
