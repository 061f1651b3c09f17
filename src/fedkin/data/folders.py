"""A folder with a file or a sub-folder for each client, with tables or arrays in them.

clinics/north.csv, clinics/south.csv            a table a client (.csv, .tsv, .parquet); or its arrays (.npz)
clinics/north/train.csv, clinics/north/test.csv  test rows apart
clinics/north/x.npy, clinics/north/y.npy         arrays; x_test.npy and y_test.npy, if there are test samples
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..base.files import read_arrays
from .table import SUFFIXES, TableError

NAMES = ("x", "y", "x_test", "y_test")


@dataclass(frozen=True)
class Entry:
    """A client's tables, training rows first; or its arrays: one .npz file, or .npy files by name."""

    tables: tuple[Path, ...] = ()
    packed: Path | None = None
    arrays: Mapping[str, Path] | None = None


def entries(path: Path) -> dict[str, Entry]:
    """{client: its files}, in the order of names; all have tables or all have arrays."""
    try:
        inside = sorted(p for p in path.iterdir() if not p.name.startswith("."))
    except FileNotFoundError:
        raise TableError(f"There is no folder {path}.") from None
    except OSError as error:
        raise TableError(f"The folder {path} cannot be read: {error.strerror}.") from None
    files = [p for p in inside if p.is_file() and p.suffix.lower() in (*SUFFIXES, ".npz")]
    folders = [p for p in inside if p.is_dir()]
    if not files and not folders:
        raise TableError(
            f"The folder {path} holds no data: it needs a {', '.join(SUFFIXES)} or .npz file for each client, or a "
            "sub-folder."
        )
    if files and folders:
        raise TableError(
            f"The folder {path} holds both files ({files[0].name}) and sub-folders ({folders[0].name}); a client is "
            "either a file or a sub-folder."
        )
    found: dict[str, Entry] = {}
    for file in files:
        if file.stem in found:
            raise TableError(f"The folder {path} has two files for client {file.stem!r}, one of them {file.name}.")
        found[file.stem] = Entry(packed=file) if file.suffix.lower() == ".npz" else Entry((file,))
    found |= {folder.name: _inside(folder) for folder in folders}
    if len({bool(entry.tables) for entry in found.values()}) > 1:
        raise TableError(f"{path} holds tables for some clients and arrays for others; give the same for all.")
    return found


def _inside(folder: Path) -> Entry:
    def tables(stem: str) -> list[Path]:
        return [folder / f"{stem}{suffix}" for suffix in SUFFIXES if (folder / f"{stem}{suffix}").is_file()]

    train, test, packed = tables("train"), tables("test"), sorted(folder.glob("*.npz"))
    arrays = {name: folder / f"{name}.npy" for name in NAMES if (folder / f"{name}.npy").is_file()}
    if sum(map(bool, (train, packed, arrays))) != 1 or max(map(len, (train, test, packed))) > 1:
        raise TableError(
            f"The folder {folder} of client {folder.name!r} should hold one of: train.csv (and test.csv), or .tsv or "
            ".parquet instead; x.npy and y.npy (and x_test.npy, y_test.npy); one .npz file with such arrays."
        )
    return Entry((*train, *test)) if train else Entry(packed=packed[0]) if packed else Entry(arrays=arrays)


def arrays(entry: Entry) -> list[NDArray[Any]]:
    """x, y and perhaps x_test, y_test."""
    found: dict[str, NDArray[Any]] = {}
    if entry.packed is not None:
        place, found = entry.packed, _loaded(entry.packed)
    else:
        files = entry.arrays or {}
        place = next(iter(files.values())).parent
        for name, path in files.items():
            found[name] = _loaded(path)[""]
    for x, y in (NAMES[:2], NAMES[2:]):
        lacking = [name for name in (x, y) if name not in found]
        if len(lacking) == 1 or (lacking and x == "x"):
            raise TableError(f"{place} has no array {lacking[0]!r}.")
    return [found[name] for name in NAMES if name in found]


def _loaded(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays in a file, never with objects in them; a single one has no name."""
    try:
        return read_arrays(path)
    except (OSError, ValueError) as error:
        raise TableError(f"{path} cannot be read as plain arrays ({error}).") from None
