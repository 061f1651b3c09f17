"""Files of arrays: what was saved is read, whatever is wrong with a file is a ValueError, and nothing in it is run."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from fedkin.base import files

GRAPH, NAMES = np.arange(12.0).reshape(3, 4), np.array(["a", "b", "ü"])


def saved(folder: Path, kind: str) -> Path:
    path = folder / f"file{'.npy' if kind == 'npy' else '.npz'}"
    if kind == "npy":
        np.save(path, GRAPH)
    else:
        (np.savez_compressed if kind == "packed" else np.savez)(path, graph=GRAPH, names=NAMES)
    return path


KINDS = ("npy", "npz", "packed")


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_saved_is_read(kind, tmp_path):
    found = files.read_arrays(saved(tmp_path, kind))
    if kind == "npy":
        assert list(found) == [""] and np.array_equal(found[""], GRAPH)
    else:
        assert np.array_equal(found["graph"], GRAPH) and np.array_equal(found["names"], NAMES)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_wrong_with_a_file_is_a_value_error_that_says_something(kind, tmp_path):
    """Cut anywhere, or one to three bytes changed anywhere: numpy and zipfile let a dozen kinds of errors through."""
    path, lot, told = saved(tmp_path, kind), random.Random(1), 0
    whole = path.read_bytes()
    for attempt in range(600):
        damaged = bytearray(whole[: lot.randrange(len(whole))] if attempt % 2 else whole)
        for _ in range(lot.randint(1, 3) if damaged and attempt % 3 else 0):
            damaged[lot.randrange(len(damaged))] = lot.randrange(256)
        path.write_bytes(damaged)
        try:
            files.read_arrays(path)  # some bytes do not matter, and some are the numbers themselves
        except ValueError as error:
            told += 1
            assert str(error) and "\n" not in str(error)
            assert "unsafe" not in str(error), "numpy's advice to trust the file is not passed on"
    assert told > 250, "most of these were wrong"


class Trap:
    def __reduce__(self):
        return Path.touch, (Path("sprung"),)


@pytest.mark.parametrize("name", ["trap.npy", "trap.npz"])
def test_objects_are_refused_and_nothing_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trap = np.array([Trap()], dtype=object)
    if name.endswith("y"):
        np.save(name, trap, allow_pickle=True)
    else:
        np.savez(name, trap=trap)
    with pytest.raises(ValueError, match="Python objects"):
        files.read_arrays(Path(name))
    assert not Path("sprung").exists()


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("content", [b"", b"<html>", b"\x80\x04N."], ids=["nothing", "a web page", "a pickle"])
def test_what_is_no_such_file_is_told_apart_from_one_with_objects(suffix, content, tmp_path):
    path = tmp_path / f"file{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="does not begin"):
        files.read_arrays(path)


def test_each_kind_by_its_own_name(tmp_path):
    renamed = saved(tmp_path, "npz").rename(tmp_path / "file.npy")
    with pytest.raises(ValueError, match="does not begin"):
        files.read_arrays(renamed)


def test_a_file_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.read_arrays(tmp_path / "file.npy")


# ---- writing ----


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "file"
    for content in (b"first", b"second"):
        files.write({path: content})
        assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_link_stays_a_link_and_a_file_keeps_its_permissions(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to(target)
    files.write({link: b"new"})
    assert link.is_symlink() and target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o600


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write({pipe: b"through"})
    assert os.read(end, 100) == b"through"
    os.close(end)
    assert not pipe.is_file()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("no")])
def test_what_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(type(error)), files.replacing(path) as new:
        new.write_bytes(b"half")
        raise error
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_none_of_several_files_takes_its_name_before_all_are_on_the_disk(tmp_path, monkeypatch):
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path in paths:
        path.write_bytes(b"old")
    real, seen = Path.write_bytes, []

    def full(self, content):
        seen.append(self.name)
        if len(seen) == 3:
            raise OSError(28, "No space left on device")
        return real(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        files.write(dict.fromkeys(paths, b"new"))
    assert [path.read_bytes() for path in paths] == [b"old"] * 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "c"]
