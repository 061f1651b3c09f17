"""A folder with a file or a sub-folder for each client, with tables or arrays in them.

clinics/north.csv, clinics/south.csv            a table a client (.csv, .tsv, .parquet); or its arrays (.npz)
clinics/north/train.csv, clinics/north/test.csv  test rows apart; validation.csv, if there are validation rows
clinics/north/x.npy, clinics/north/y.npy         arrays; x_test.npy and y_test.npy, if there are test samples, and
                                                 x_validation.npy and y_validation.npy, if there are validation samples
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..base.files import read_arrays
from . import parts
from .table import SUFFIXES, TableError

ALIASES = {f"{side}_{said}": f"{side}_{part}" for side in "xy" for said, part in parts.NAMES.items() if part != "train"}
NAMES = {"x": "x", "y": "y", **ALIASES, "group": "group", "weight": "weight"}
"""What arrays may be called, and what they are."""


@dataclass(frozen=True)
class Entry:
    """A client's tables, by the part that their rows are for ("": all); or its arrays: one .npz file, or .npy files by
    name."""

    tables: Mapping[str, Path] = field(default_factory=dict)
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
    if len(files) > 1 and all(file.stem.lower() in parts.NAMES for file in files):
        raise TableError(
            f"The folder {path} holds {', '.join(file.name for file in files)}, which are parts and not clients: put "
            "them into a sub-folder for each client, or give one table with a client column and a column that names "
            "the part: table.fold (--fold)."
        )
    found: dict[str, Entry] = {}
    for file in files:
        if file.stem in found:
            raise TableError(f"The folder {path} has two files for client {file.stem!r}, one of them {file.name}.")
        found[file.stem] = Entry(packed=file) if file.suffix.lower() == ".npz" else Entry({"": file})
    found |= {folder.name: _inside(folder) for folder in folders}
    if len({bool(entry.tables) for entry in found.values()}) > 1:
        raise TableError(f"{path} holds tables for some clients and arrays for others; give the same for all.")
    return found


def _inside(folder: Path) -> Entry:
    inside = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    folders = [p for p in inside if p.is_dir() and p.name.lower() in parts.NAMES]
    inside = [p for p in inside if p.is_file()]
    tables = [p for p in inside if p.suffix.lower() in SUFFIXES]
    packed, single = ([p for p in inside if p.suffix.lower() == suffix] for suffix in (".npz", ".npy"))
    named = {parts.NAMES.get(p.stem.lower(), p.name): p for p in tables}
    arrays = {NAMES.get(p.stem, p.name): p for p in single}
    ours = all(part in parts.NAMES.values() for part in named) and all(name in NAMES.values() for name in arrays)
    alone = len(named) == len(tables) and len(arrays) == len(single) and len(packed) < 2
    whole = sum(map(bool, (tables, packed, single))) == 1 and not folders and (not tables or "train" in named)
    if not whole or not ours or not alone:
        held = [*tables, *packed, *single, *folders]
        found = f"it holds {', '.join(p.name for p in held)}" if held else "it holds no such file"
        raise TableError(
            f"The folder {folder} of client {folder.name!r} should hold one of: train.csv (and validation.csv, "
            "test.csv), or .tsv or .parquet instead; x.npy and y.npy (and x_test.npy, y_test.npy, x_validation.npy, "
            f"y_validation.npy, group.npy, weight.npy); one .npz file with such arrays. But {found}."
        )
    return Entry(named) if tables else Entry(packed=packed[0]) if packed else Entry(arrays=arrays)


def arrays(entry: Entry) -> dict[str, NDArray[Any]]:
    """x, y and perhaps those for testing and for validation, groups and weights, by name."""
    found: dict[str, NDArray[Any]] = {}
    if entry.packed is not None:
        place, packed = entry.packed, _loaded(entry.packed)
        for name in packed:
            if name not in NAMES and name[:2] in ("x_", "y_"):
                raise TableError(
                    f"{place} has an array {name!r}; known are {', '.join(dict.fromkeys(NAMES.values()))}."
                )
        found = {NAMES[name]: array for name, array in packed.items() if name in NAMES}
    else:
        files = entry.arrays or {}
        place = next(iter(files.values())).parent
        for name, path in files.items():
            found[name] = _loaded(path)[""]
    for part in ("", "_test", "_validation"):
        lacking = [name for name in (f"x{part}", f"y{part}") if name not in found]
        if len(lacking) == 1 or (lacking and not part):
            raise TableError(f"{place} has no array {lacking[0]!r}.")
    return found


def _loaded(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays in a file, never with objects in them; a single one has no name."""
    try:
        return read_arrays(path)
    except (OSError, ValueError) as error:
        raise TableError(f"{path} cannot be read as plain arrays ({error}).") from None
