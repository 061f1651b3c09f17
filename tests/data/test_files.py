"""Data files are found where they should be, and what is not as published is never taken for it."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest
from webserver import BODIES, file, made_up

from fedkin.data import catalogue, files
from fedkin.data.catalogue import DataSet, File, Form
from fedkin.data.fetch import fetch
from fedkin.data.files import DataError
from fedkin.errors import FedkinError


@pytest.fixture
def toys(monkeypatch, tmp_path) -> Path:
    """The folder of a made-up data set `toys` whose files are all in order."""
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    monkeypatch.setattr(catalogue, "CATALOGUE", {"toys": made_up()})
    (tmp_path / "toys").mkdir()
    for name, body in BODIES.items():
        (tmp_path / "toys" / name).write_bytes(body)
    return tmp_path / "toys"


def refusal(name: str, verify: bool = True) -> str:
    with pytest.raises(DataError) as caught:
        files.need(name, verify)
    assert isinstance(caught.value, FedkinError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- where ----


def test_the_data_folder_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path / "here"))
    assert files.folder() == tmp_path / "here"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FEDKIN_DATA", "~/there")
    assert files.folder() == tmp_path / "there"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDKIN_DATA", "near")
    assert files.folder() == tmp_path / "near"


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {}, "~/.cache/fedkin/data"),
        ("linux", {"XDG_CACHE_HOME": "/var/tmp/cache"}, "/var/tmp/cache/fedkin/data"),
        ("linux", {"XDG_CACHE_HOME": "relative/ignored"}, "~/.cache/fedkin/data"),
        ("darwin", {"XDG_CACHE_HOME": "/var/tmp/cache"}, "~/Library/Caches/fedkin/data"),
        ("win32", {}, "~/AppData/Local/fedkin/data"),
        ("win32", {"LOCALAPPDATA": "/users/x/local"}, "/users/x/local/fedkin/data"),
    ],
)
def test_without_a_word_it_is_in_the_users_cache(monkeypatch, tmp_path, platform, environment, expected):
    for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in {**environment, "HOME": str(tmp_path), "FEDKIN_DATA": ""}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert files.folder() == Path(expected.replace("~", str(tmp_path)))


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    monkeypatch.setenv("FEDKIN_DATA", "")

    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(DataError, match="set FEDKIN_DATA"):
        files.folder()


# ---- whether ----


def test_files_in_order_are_given_by_name(toys):
    assert files.need("toys") == {name: toys / name for name in BODIES}
    assert files.state("toys") == "here"


def test_a_missing_file_is_named_with_the_place_and_the_cure(toys):
    (toys / "two.bin").unlink()
    said = refusal("toys")
    assert f"in {toys} (FEDKIN_DATA is {toys.parent})" in said
    assert "two.bin is missing." in said
    assert "one.bin" not in said
    assert "`fedkin data fetch toys`" in said
    assert "set FEDKIN_DATA to the folder that holds toys/" in said
    assert "data.verify" not in said, "there is nothing to take as it is"
    assert files.state("toys") == "incomplete, 1 of 2 files"


def test_a_missing_folder_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path / "nowhere"))
    said = refusal("mnist")
    assert f"FEDKIN_DATA is {tmp_path / 'nowhere'}; there is no such folder" in said
    for name in ("train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        assert name in said
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FEDKIN_DATA")
    assert "the default, as FEDKIN_DATA is not set" in refusal("mnist")
    assert files.state("mnist") == "missing"
    assert not list(tmp_path.iterdir()), "looking makes nothing"


def test_a_truncated_file_is_told_with_its_bytes(toys):
    (toys / "one.bin").write_bytes(BODIES["one.bin"][:1234])
    said = refusal("toys")
    assert "one.bin is truncated (1,234 of 100,000 bytes)" in said
    assert "set data.verify = false" in said
    assert files.state("toys") == "damaged"


def test_one_changed_bit_is_noticed_and_both_sums_are_told(toys):
    body = bytearray(BODIES["one.bin"])
    body[77_777] ^= 1
    (toys / "one.bin").write_bytes(body)
    said = refusal("toys")
    assert hashlib.sha256(body).hexdigest() in said
    assert hashlib.sha256(BODIES["one.bin"]).hexdigest() in said
    assert files.state("toys") == "here", "its size alone does not tell"


def test_a_longer_file_is_another_one(toys):
    (toys / "two.bin").write_bytes(BODIES["two.bin"] + b"x")
    assert "two.bin is of other content (101 bytes instead of 100)" in refusal("toys")


def test_a_folder_in_the_place_of_a_file_is_told(toys):
    (toys / "two.bin").unlink()
    (toys / "two.bin").mkdir()
    assert "two.bin is not a file" in refusal("toys")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_told(toys):
    (toys / "one.bin").chmod(0)
    assert "one.bin is not readable (Permission denied)" in refusal("toys")


def test_without_verification_any_content_is_taken_but_not_none(toys):
    (toys / "one.bin").write_bytes(b"packed in another way")
    assert files.need("toys", verify=False)["one.bin"] == toys / "one.bin"
    (toys / "one.bin").unlink()
    assert "one.bin is missing" in refusal("toys", verify=False)


def test_where_only_md5_was_published_that_is_held_to(toys, monkeypatch):
    right = File("two.bin", md5=hashlib.md5(BODIES["two.bin"]).hexdigest())
    monkeypatch.setitem(catalogue.CATALOGUE, "toys", DataSet("", "", "toys", "", "", (Form("", (right,)),)))
    assert list(files.need("toys")) == ["two.bin"]
    (toys / "two.bin").write_bytes(b"other")
    assert f"md5 {hashlib.md5(b'other').hexdigest()} instead of {right.md5}" in refusal("toys")


def test_a_file_is_hashed_once_and_again_when_it_has_changed(toys, monkeypatch):
    read: list[str] = []
    digest = hashlib.file_digest

    def counting(stream, *rest):
        read.append(Path(stream.name).name)
        return digest(stream, *rest)

    monkeypatch.setattr(hashlib, "file_digest", counting)
    files.need("toys")
    files.need("toys")
    assert sorted(read) == ["one.bin", "two.bin"]
    (toys / "two.bin").write_bytes(b"TWO\n" * 25)
    os.utime(toys / "two.bin", ns=(1, 1))
    refusal("toys")
    refusal("toys")
    assert sorted(read) == ["one.bin", "two.bin", "two.bin", "two.bin"], "only what was right is remembered"


def test_an_unknown_name_is_answered_with_the_nearest(toys):
    said = refusal("toy")
    assert "There is no data set 'toy'" in said
    assert "Did you mean 'toys'?" in said


# ---- several forms ----


@pytest.fixture
def forms(toys, monkeypatch) -> Path:
    """The data set also comes as one file; nothing of it is here."""
    whole = Form("one file", (file("all.bin", body=b"all"),))
    data = made_up()
    monkeypatch.setitem(catalogue.CATALOGUE, "toys", DataSet("", "", "toys", "", "", (*data.forms, whole)))
    for name in BODIES:
        (toys / name).unlink()
    return toys


def test_the_first_complete_form_is_taken(forms):
    (forms / "all.bin").write_bytes(b"all")
    assert list(files.need("toys")) == ["all.bin"]
    (forms / "one.bin").write_bytes(BODIES["one.bin"])
    assert list(files.need("toys")) == ["all.bin"], "the other is not complete"
    (forms / "two.bin").write_bytes(b"TWO\n" * 25)
    assert list(files.need("toys")) == ["all.bin"], "the other is damaged"
    (forms / "two.bin").write_bytes(BODIES["two.bin"])
    os.utime(forms / "two.bin", ns=(1, 1))
    assert list(files.need("toys")) == list(BODIES)


def test_the_form_that_is_begun_is_complained_about(forms):
    assert "one.bin, two.bin are missing" in refusal("toys"), "the first, if nothing is here"
    (forms / "two.bin").write_bytes(BODIES["two.bin"])
    said = refusal("toys")
    assert "one.bin is missing" in said
    assert "all.bin" not in said
    (forms / "all.bin").write_bytes(b"al")
    said = refusal("toys")
    assert "all.bin is truncated (2 of 3 bytes)" in said
    assert "one.bin" not in said


# ---- what users bring ----


def test_what_users_bring_is_asked_for_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    brought = DataSet(
        "", "", "cars", "", "", (Form("", (File("a.npz"),)), Form("", (File("b/c.txt"),))), bring="Ask X."
    )
    monkeypatch.setattr(catalogue, "CATALOGUE", {"cars": brought})
    assert files.state("cars") == "bring it yourself"
    said = refusal("cars")
    assert str(tmp_path / "cars") in said and "a.npz is missing. Ask X;" in said and "fetch" not in said
    (tmp_path / "cars" / "b").mkdir(parents=True)
    (tmp_path / "cars" / "b" / "c.txt").write_text("anything")
    assert files.state("cars") == "here"
    assert files.need("cars") == {"b/c.txt": tmp_path / "cars" / "b" / "c.txt"}


def test_fetching_what_users_bring_says_what_to_ask_for(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    for name, word in (("compcars", "mmlab.ie.cuhk.edu.hk"), ("pems_bay", "DCRNN")):
        with pytest.raises(DataError, match=word) as raised:
            fetch(name)
        assert str(tmp_path) in str(raised.value) and "downloads" not in str(raised.value)
        assert not list(tmp_path.iterdir())
