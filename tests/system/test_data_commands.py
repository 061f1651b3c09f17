"""`fedkin data`: what is here, whether it is right, and how to get it; for people and for pipes."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers import SHARED
from webserver import BODIES, MIRRORED, PUBLIC, Site, made_up, serving

from fedkin import cli
from fedkin import data as data_sets
from fedkin.data import catalogue, files
from fedkin.runs.config import resolve

real = pytest.mark.skipif(not SHARED.is_dir(), reason="the real data files are not beside the repository")


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


@pytest.fixture
def data(monkeypatch, capsys, tmp_path) -> Callable[..., Said]:
    """`fedkin data …` in this process, in an empty folder, with an empty data folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path / "data"))
    for variable in ("FEDKIN_MIRROR", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)

    def type_(*words: str | Path) -> Said:
        monkeypatch.setattr(sys, "argv", ["fedkin", "data", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        printed = capsys.readouterr()
        return Said(int(caught.value.code or 0), printed.out, printed.err)

    return type_


@pytest.fixture
def site() -> Iterator[Site]:
    with serving({**PUBLIC, **MIRRORED}) as running:
        yield running


@pytest.fixture
def toys(monkeypatch, tmp_path, site) -> Path:
    """The folder for a made-up data set that the site has."""
    monkeypatch.setattr(catalogue, "CATALOGUE", {"toys": made_up(site.url)})
    return tmp_path / "data" / "toys"


def process(*words: str | Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedkin", "data", *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "no_proxy": "127.0.0.1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # it is ignored where tests run in background
    )


def finished(*words: str | Path, **environment: str) -> Said:
    with process(*words, **environment) as running:
        out, err = running.communicate(timeout=60)
    return Said(running.returncode, out, err)


# ---- list ----


def row(table: str, name: str) -> str:
    return next(line for line in table.splitlines() if line.strip().startswith(name + " "))


def test_every_data_set_is_listed(data, tmp_path):
    said = data("list")
    assert said.code == 0
    assert "built in" in row(said.out, "digits")
    for name, entry in catalogue.CATALOGUE.items():
        line = row(said.out, name)
        assert entry.title.split(":")[0] in line
        assert ("bring it yourself" if entry.bring else "missing") in line
        assert entry.directory in line
    assert "11.6 MB" in row(said.out, "mnist")
    assert "169.0 MB" in row(said.out, "cifar100"), "what would be downloaded"
    assert f"Data folder: {tmp_path / 'data'}" in said.out
    assert not (tmp_path / "data").exists()


def test_the_list_tells_what_is_here_incomplete_and_damaged(data, toys):
    toys.mkdir(parents=True)
    (toys / "one.bin").write_bytes(BODIES["one.bin"])
    assert "incomplete, 1 of 2 files" in row(data("list").out, "toys")
    (toys / "two.bin").write_bytes(b"short")
    assert "damaged" in row(data("list").out, "toys")
    (toys / "two.bin").write_bytes(BODIES["two.bin"])
    assert " here " in row(data("list").out, "toys")


def test_the_list_fits_a_terminal_of_eighty_columns(data, monkeypatch):
    from rich.console import Console

    from fedkin.cli import data as commands

    monkeypatch.setattr(commands, "out", Console(width=80))
    said = data("list")
    assert max(map(len, said.out.split("Data folder:")[0].splitlines())) <= 80
    for name, entry in catalogue.CATALOGUE.items():
        assert entry.directory in row(said.out, name), "nothing is cut off"


# ---- describe ----


@pytest.mark.parametrize("name", data_sets.names())
def test_a_data_set_tells_what_it_is_how_it_is_run_and_its_own_settings_without_its_files(data, name):
    said = data("describe", name)
    assert said.code == 0, said.err
    flat = " ".join(said.out.split())
    for split in data_sets.splits(name):
        assert re.search(rf"Splits: .*\b{split}\b", flat)
    assert f"rounds = {json.dumps(data_sets.defaults(name)['rounds'])}" in flat
    kind = data_sets.settings_of(name)
    for field, info in kind.model_fields.items():
        assert f"data.settings.{field} " in said.out
        assert info.description, "every setting says what it means"
    if name in catalogue.CATALOGUE:
        assert catalogue.CATALOGUE[name].licence in flat
    assert "…" not in said.out, "nothing is cut off"


def test_brackets_in_a_description_are_no_markup(data):
    assert "U[0, 2 pi)" in data("describe", "fl60").out and "[a, b]" in data("describe", "fl60").out


@pytest.mark.parametrize("name", data_sets.names())
def test_the_first_split_that_is_told_is_the_usual_one(name):
    assert data_sets.splits(name)[0] == resolve({"data": name}).data.split


def test_what_cannot_be_described_is_answered_with_the_nearest(data):
    said = data("describe", "fl6")
    assert said.code == 2 and "Did you mean 'fl60'?" in said.err


# ---- check ----


def test_a_check_has_a_line_for_each_file(data, toys):
    assert data("fetch", "toys").code == 0
    said = data("check", "toys")
    assert said == Said(0, f"{toys / 'one.bin'}  fine\n{toys / 'two.bin'}  fine\n", "")
    body = bytearray(BODIES["one.bin"])
    body[5] ^= 8
    (toys / "one.bin").write_bytes(body)
    (toys / "two.bin").write_bytes(b"two\n")
    said = data("check", "toys")
    assert said.code == 2
    assert re.search(r"one.bin  of other content \(sha256 [0-9a-f]{64} instead of [0-9a-f]{64}\)\n", said.out)
    assert "two.bin  truncated (4 of 100 bytes)\n" in said.out
    assert "fedkin data fetch toys" in said.err
    (toys / "one.bin").unlink()
    said = data("check", "toys")
    assert said.code == 2
    assert "one.bin  missing\n" in said.out


def test_without_names_what_is_here_is_checked(data, toys):
    said = data("check")
    assert said == Said(0, f"There are no data files in {toys.parent}.\n", "")
    toys.mkdir(parents=True)
    (toys / "one.bin").write_bytes(BODIES["one.bin"])
    said = data("check")
    assert said.code == 0, "nobody asked for all of it"
    assert "one.bin  fine" in said.out
    assert data("check", "toys").code == 2
    (toys / "one.bin").write_bytes(b"damaged")
    assert data("check").code == 2


def test_an_unknown_name_is_answered_with_the_nearest(data, tmp_path):
    for words in (["check", "minst"], ["fetch", "heart", "minst"], ["export", "minst", "t.csv"]):
        said = data(*words)
        assert said.code == 2
        assert said.out == ""
        assert said.err.startswith("fedkin: There is no data set 'minst'")
        assert "Did you mean 'mnist'?" in said.err
    assert not (tmp_path / "data").exists(), "nothing was begun before the names were looked at"


# ---- fetch ----


def test_a_fetch_without_a_terminal_prints_plain_lines(data, toys, site):
    said = data("fetch", "toys")
    assert said.code == 0
    assert said.out == f"toys is complete in {toys}: 2 files fetched and verified.\n"
    host = site.url.removeprefix("http://")
    assert said.err == f"one.bin: 100,000 bytes from {host}.\ntwo.bin: 100 bytes from {host}.\n"
    assert data("fetch", "toys").out == f"toys is complete in {toys}: nothing to fetch.\n"


def test_what_cannot_be_fetched_ends_with_code_2_and_instructions(data, toys, site):
    site.content.clear()
    said = data("fetch", "toys")
    assert said.code == 2
    assert "404 Not Found" in said.err
    assert f"curl -L -O {site.url}/pub/one.bin  # 100,000 bytes" in said.err
    assert "fedkin data check toys" in said.err
    assert "Traceback" not in said.err


def test_a_mirror_is_named_by_option_or_environment(data, toys, site, monkeypatch):
    assert data("fetch", "toys", "--mirror", f"{site.url}/mirror").code == 0
    (toys / "one.bin").unlink()
    monkeypatch.setenv("FEDKIN_MIRROR", f"{site.url}/mirror")
    assert data("fetch", "toys").code == 0
    assert site.asked() == ["/mirror/toys/one.bin", "/mirror/toys/two.bin", "/mirror/toys/one.bin"]
    assert "begins with http://" in data("fetch", "toys", "--mirror", "ftp://x").err


def test_a_bar_on_a_terminal(data, toys, monkeypatch):
    import io

    from rich.console import Console

    from fedkin.cli import data as commands

    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(commands, "err", screen)
    assert data("fetch", "toys").code == 0
    assert "100.0/100.0 kB" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.file.getvalue())  # type: ignore[attr-defined]


# ---- export ----


@pytest.mark.parametrize("name", ["mnist", "cifar100"])
def test_pictures_are_not_exported_as_a_table(data, tmp_path, name):
    said = data("export", name, "table.csv")
    assert said.code == 2
    assert f"Data set '{name}' is not a table" in said.err
    assert "heart can be" in said.err
    assert not (tmp_path / "table.csv").exists()


@real
def test_the_hospitals_are_exported_as_one_table(data, monkeypatch, tmp_path):
    """As many rows as UCI counts, and a column that says whose each is."""
    monkeypatch.setenv("FEDKIN_DATA", str(SHARED))
    assert data("export", "heart", "heart.csv") == Said(0, "Table: heart.csv\n", "")
    with (tmp_path / "heart.csv").open() as stream:
        rows = list(csv.reader(stream))[1:]
    whose = Counter(row[0] for row in rows)
    assert sorted(whose.values()) == [123, 200, 294, 303]


# ---- as processes ----


@real
def test_the_real_command_fetches_the_hospitals_from_a_mirror(tmp_path):
    """All of it over HTTP, from a server that has the real files in the layout of the data folder."""
    names = [file.name for file in files.find("heart").forms[0].files]
    content = {f"/heart-disease/{name}": (SHARED / "heart-disease" / name).read_bytes() for name in names}
    with serving(content, cuts=[5_000]) as hospital:
        said = finished("fetch", "heart", "--mirror", hospital.url, FEDKIN_DATA=str(tmp_path / "data"))
        assert said.code == 0, said.err
        assert hospital.ranges_asked()[:2] == [None, "bytes=5000-"]
    assert {p.name: p.read_bytes() for p in (tmp_path / "data" / "heart-disease").iterdir()} == {
        name: content[f"/heart-disease/{name}"] for name in names
    }
    assert "broke off after 5,000 of 18,461 bytes; asking again in 1 s." in said.err
    assert "\x1b" not in said.out + said.err
    said = finished("check", "heart", FEDKIN_DATA=str(tmp_path / "data"))
    assert said.code == 0
    assert said.out.count("  fine\n") == len(names)


def test_the_real_command_without_a_network_says_what_to_do(tmp_path):
    """A proxy that is not there stands for a network that is not there."""
    away = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    said = finished("fetch", "mnist", FEDKIN_DATA=str(tmp_path), FEDKIN_MIRROR="", **away)
    assert said.code == 2
    assert said.err.count("refuses the connection") >= 2, "one sentence for each host"
    assert "# 9,912,422 bytes" in said.err
    assert f"into {tmp_path / 'mnist'}; then\n  fedkin data check mnist" in said.err
    assert "Traceback" not in said.err


def test_ctrl_c_keeps_what_has_arrived(tmp_path):
    """The server falls silent in the middle; the command is interrupted, and the next one goes on."""
    body = bytes(range(256)) * 72 + bytes(29)
    with serving({"/heart-disease/processed.cleveland.data": body}, holds=7_000) as slow:
        with process("fetch", "heart", "--mirror", slow.url, FEDKIN_DATA=str(tmp_path)) as running:
            part = tmp_path / "heart-disease" / "processed.cleveland.data.part"
            assert running.stderr is not None
            assert "18,461 bytes from" in running.stderr.readline()
            while not part.exists():
                time.sleep(0.01)
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=60)
        assert running.returncode == 130
        assert "the same command goes on from there" in said
        assert "Traceback" not in said
        arrived = part.read_bytes()
        assert arrived == body[: len(arrived)]
