"""Where data files live, what they should be, and whether they are.

`need("mnist")` gives a loader its files, whole and with the right checksums, or says what is wrong and what to do.
What there is stands in `catalogue.py`.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..base.files import read_arrays
from ..base.wording import did_you_mean
from ..errors import FedkinError
from . import catalogue
from .catalogue import DataSet, File, Form

MISSING = "missing"
BRING = "bring it yourself"


class DataError(FedkinError):
    """A data file is not there, is not what it should be, or cannot be had."""


def folder() -> Path:
    """The data folder: $FEDKIN_DATA, else `fedkin/data` in the user's cache folder."""
    given = os.environ.get("FEDKIN_DATA", "")
    try:
        return Path(given).expanduser().absolute() if given else _cache() / "fedkin" / "data"
    except RuntimeError:
        raise DataError(
            "This user has no home folder to keep data in: set FEDKIN_DATA to the folder for data files."
        ) from None


def find(name: str) -> DataSet:
    """The catalogue's entry; for an unknown name an error that says the nearest."""
    known = catalogue.CATALOGUE
    if name not in known:
        hint = did_you_mean(name, known)
        raise DataError(f"There is no data set {name!r} that has files. {hint}Known are {', '.join(known)}.")
    return known[name]


def place(name: str) -> Path:
    """The folder of one data set."""
    return folder() / find(name).directory


def need(name: str, verify: bool = True) -> dict[str, Path]:
    """The files of a data set by name, or a DataError that says what is wrong with them and what to do.

    They are those of the first form that is complete: every file there, of the right size and checksum. `verify=False`
    takes any content, so that a copy packed in another way can be used.
    """
    where = place(name)
    faults: dict[Form, dict[str, str]] = {}
    for form in find(name).forms:
        found = {file.name: fault(where / file.name, file, verify) for file in form.files}
        faults[form] = {each: wrong for each, wrong in found.items() if wrong is not None}
        if not faults[form]:
            return {file.name: where / file.name for file in form.files}
    raise DataError(_complaint(name, faults[begun(name)], where))


def arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a data set's .npz file."""
    try:
        return read_arrays(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as arrays ({error}).") from None


def begun(name: str) -> Form:
    """The form of which the largest part is there; the first one, if nothing is."""
    where = place(name)

    def share(form: Form) -> float:
        return sum((where / file.name).is_file() for file in form.files) / len(form.files)

    return max(find(name).forms, key=share)


def state(name: str) -> str:
    """Whether a data set is here, in a word or two, by the names and sizes of its files alone."""
    where = place(name)
    for form in find(name).forms:
        if all((where / f.name).is_file() and not wrong_size(where / f.name, f) for f in form.files):
            return "here"
    form = begun(name)
    there = [file for file in form.files if (where / file.name).is_file()]
    if not there:
        return BRING if find(name).bring else MISSING
    if any(wrong_size(where / file.name, file) for file in there):
        return "damaged"
    return f"incomplete, {len(there)} of {len(form.files)} files"


def fault(path: Path, file: File, verify: bool = True) -> str | None:
    """What is wrong with a copy of a file, to be read after its name; None if it is fine.

    `verify=False` looks whether it is there and no further.
    """
    try:
        if not path.exists():
            return MISSING
        if not path.is_file():
            return "not a file"
        if not verify:
            return None
        return wrong_size(path, file) or _wrong_checksum(path, file)
    except OSError as error:
        return f"not readable ({error.strerror})"


def wrong_size(path: Path, file: File) -> str | None:
    """The fault in a file's size, if there is one."""
    size = path.stat().st_size
    if file.bytes is None or size == file.bytes:
        return None
    if size < file.bytes:
        return f"truncated ({size:,} of {file.bytes:,} bytes)"
    return f"of other content ({size:,} bytes instead of {file.bytes:,})"


_verified: set[tuple[Path, int, int, str]] = set()
"""What this process has hashed and found right: path, size, time of change in ns, checksum."""


def _wrong_checksum(path: Path, file: File) -> str | None:
    """The fault in a file's content, if there is one. A file that was right and has not changed is not read again."""
    kind, right = ("sha256", file.sha256) if file.sha256 else ("md5", file.md5)
    if right is None:
        return None
    state = path.stat()
    key = (path.absolute(), state.st_size, state.st_mtime_ns, right)
    if key in _verified:
        return None
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    if found != right:
        return f"of other content ({kind} {found} instead of {right})"
    _verified.add(key)
    return None


def _complaint(name: str, faults: dict[str, str], where: Path) -> str:
    """What is wrong with a data set's files, where they were looked for, and what to do."""
    given = os.environ.get("FEDKIN_DATA", "")
    looked = f"FEDKIN_DATA is {given}" if given else "the default, as FEDKIN_DATA is not set"
    if not where.parent.is_dir():
        looked += "; there is no such folder"
    absent = [each for each, wrong in faults.items() if wrong == MISSING]
    damaged = [f"{each} is {wrong}" for each, wrong in faults.items() if wrong != MISSING]
    listed = [f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} missing"] if absent else []
    todo = find(name).bring.rstrip(".") or f"`fedkin data fetch {name}` downloads what is missing or damaged"
    if absent:
        todo += f"; or set FEDKIN_DATA to the folder that holds {where.name}/"
    if damaged:
        todo += "; or, if this copy is the one you want, set data.verify = false"
    return f"Data set {name!r} is not complete in {where} ({looked}): {'; '.join(listed + damaged)}. {todo}."


def _cache() -> Path:
    """The user's folder for what can be had again, as each system has it."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return given if given.is_absolute() else Path.home() / ".cache"  # the specification ignores relative ones
