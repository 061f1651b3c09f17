"""Folders with a file or a sub-folder for each client: arrays as from memory, and sentences for what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin.data.federation import Federation
from fedkin.data.table import TableError


def arrays(seed: int, n: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)).astype(np.float32), np.arange(n) % 3


def test_arrays_in_a_folder_give_the_federation_of_the_arrays(tmp_path):
    clients = {name: (*arrays(i), *arrays(10 + i, 6)) for i, name in enumerate("abc")}
    expected = Federation.from_arrays(clients, name="x")
    for how in ("npy", "npz", "npz in folders"):
        folder = tmp_path / how
        for name, own in clients.items():
            named = dict(zip(("x", "y", "x_test", "y_test"), own, strict=True))
            (folder / name).mkdir(parents=True)
            if how == "npy":
                for key, array in named.items():
                    np.save(folder / name / f"{key}.npy", array)
            elif how == "npz":
                (folder / name).rmdir()
                np.savez(folder / f"{name}.npz", **named)
            else:
                np.savez(folder / name / "data.npz", **named)
        found = Federation.from_folder(folder)
        assert found.names == expected.names
        assert found.task == expected.task
        for one, other in zip(found.clients, expected.clients, strict=True):
            for a, b in zip((*one.train, *one.test), (*other.train, *other.test), strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_arrays_without_test_samples_are_cut_and_may_be_a_regression(tmp_path):
    for i, name in enumerate("ab"):
        x, y = arrays(i)
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    found = Federation.from_folder(tmp_path, task="regression", seed=4)
    assert found.task.kind == "regression"
    assert [len(c.test[1]) for c in found.clients] == [3, 3]


def file(folder: Path, name: str, content: str = "a,y\n1,0\n2,1\n3,1\n") -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:300])


FOLDERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing": (lambda f: None, "holds no data: it needs a .csv, .tsv, .parquet or .npz file for each client"),
    "files and folders": (
        lambda f: (file(f, "a.csv"), file(f, "b/train.csv")),
        r"both files \(a.csv\) and sub-folders \(b\)",
    ),
    "two files for a client": (
        lambda f: (file(f, "a.csv"), file(f, "a.tsv")),
        "two files for client 'a', one of them a.tsv",
    ),
    "an empty sub-folder": (lambda f: (f / "a").mkdir(), "of client 'a' should hold one of: train.csv"),
    "test rows alone": (lambda f: file(f, "a/test.csv"), "of client 'a' should hold one of: train.csv"),
    "two tables to train on": (lambda f: (file(f, "a/train.csv"), file(f, "a/train.tsv")), "should hold one of"),
    "tables and arrays": (
        lambda f: (file(f, "a.csv"), np.savez(f / "b.npz", x=[1], y=[1])),
        "tables for some clients and arrays for others",
    ),
    "other columns": (
        lambda f: (file(f, "a.csv"), file(f, "b.csv", "b,y\n1,0\n2,1\n")),
        "b.csv has no column 'a', which a.csv has",
    ),
    "a broken table": (lambda f: file(f, "a/train.csv", "a,y\n1,0\n2\n"), "line 3 has 1 cell"),
    "text in a table": (
        lambda f: file(f, "a/train.csv", "a,y\n1,0\n2,1\nx,1\n"),
        "a/train.csv, line 4: column 'a' is 'x'",
    ),
    "no y": (lambda f: np.savez(f / "a.npz", x=[[1.0]]), "a.npz has no array 'y'"),
    "no y for testing": (lambda f: np.savez(f / "a.npz", x=[[1.0]], y=[1], x_test=[[1.0]]), "no array 'y_test'"),
    "no x": (lambda f: ((f / "a").mkdir(), np.save(f / "a" / "y.npy", [1])), "a has no array 'x'"),
    "a truncated array": (
        lambda f: ((f / "a").mkdir(), np.save(f / "a" / "x.npy", np.ones(99)), cut(f / "a" / "x.npy")),
        "x.npy cannot be read as plain arrays",
    ),
    "a truncated archive": (
        lambda f: (np.savez(f / "a.npz", x=np.ones(99), y=np.ones(99)), cut(f / "a.npz")),
        "a.npz cannot be read as plain arrays",
    ),
    "text for an archive": (lambda f: file(f, "a.npz"), "a.npz cannot be read as plain arrays"),
    "an array for an archive": (
        lambda f: (np.save(f / "a.npy", [1]), (f / "a.npy").rename(f / "a.npz")),
        "a.npz cannot be read as plain arrays",
    ),
    "objects that could run code": (
        lambda f: np.savez(f / "a.npz", x=np.array([{}], dtype=object), y=[1]),
        "cannot be read as plain arrays",
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_that_cannot_be_used_is_refused(case, tmp_path):
    make, sentence = FOLDERS[case]
    make(tmp_path)
    with pytest.raises(TableError, match=sentence):
        Federation.from_folder(tmp_path, "y")


def test_a_folder_that_is_not_there_or_has_a_client_column_is_refused(tmp_path):
    with pytest.raises(TableError, match=r"There is no folder .*nowhere"):
        Federation.from_folder(tmp_path / "nowhere", "y")
    file(tmp_path, "a.csv")
    with pytest.raises(TableError, match=r"the name of a file or sub-folder is the client; leave out table\.client"):
        Federation.from_folder(tmp_path, "y", client="a")
    with pytest.raises(TableError, match="Which column of .* is to be predicted"):
        Federation.from_folder(tmp_path)
