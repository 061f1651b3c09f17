"""Files that are whole or not there: the one atomic write; and arrays from files, of which nothing is ever run."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .wording import first_line

# ---- writing ----


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file is written whole or not at all: to the neighbour given here, to the disk, then renamed over the old one.

    If anything goes wrong the neighbour is removed, the old file stays as it is, and the error is passed on. A link
    stays a link, and a file keeps its permissions; what is no file, such as /dev/stdout, is written to as it is.
    """
    with _replacing([path]) as (new,):
        yield new


def write(files: Mapping[Path, bytes]) -> None:
    """Writes files; all of them lie on the disk before the first takes its name."""
    with _replacing(list(files)) as neighbours:
        for new, content in zip(neighbours, files.values(), strict=True):
            new.write_bytes(content)


@contextmanager
def _replacing(paths: Sequence[Path]) -> Iterator[list[Path]]:
    targets = [Path(os.path.realpath(path)) if path.is_symlink() else path for path in paths]
    devices = [path.exists() and not path.is_file() and not path.is_dir() for path in paths]
    if any(devices):
        yield list(paths)
        return
    neighbours = [path.with_name(f"{path.name}.new") for path in targets]
    try:
        yield neighbours
        for path, new in zip(targets, neighbours, strict=True):
            if path.exists():
                new.chmod(stat.S_IMODE(path.stat().st_mode))
            _to_disk(new)
        for path, new in zip(targets, neighbours, strict=True):
            new.replace(path)
    except BaseException:
        for new in neighbours:
            with suppress(OSError):
                new.unlink(missing_ok=True)
        raise


def _to_disk(path: Path) -> None:
    with path.open("rb") as file:
        try:
            os.fsync(file.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), str(path)) from None  # which file it was


# ---- reading ----

STARTS = {".npy": b"\x93NUMPY", ".npz": b"PK"}
"""How files of arrays begin; an .npz is a zip archive."""


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz by name; the one of an .npy is called ''.

    Raises ValueError, which says in half a sentence why it cannot be, and OSError where the file cannot be opened.
    """
    with path.open("rb") as file:
        if not file.read(8).startswith(STARTS[path.suffix.lower()]):
            raise ValueError("it does not begin as such a file does")
        file.seek(0)
        try:
            found = np.load(file, allow_pickle=False)
            return {"": found} if isinstance(found, np.ndarray) else {name: found[name] for name in found.files}
        except Exception as error:  # a damaged file surfaces as any of many exceptions
            why = first_line(error)
            raise ValueError("it holds Python objects, not numbers" if "pickle" in why else why) from None
