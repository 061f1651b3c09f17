"""Arrays of numbers and names from .npy and .npz files; nothing that such a file holds is ever run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

STARTS = {".npy": b"\x93NUMPY", ".npz": b"PK"}
"""How the files begin; an .npz is a zip archive."""


def read(path: Path) -> dict[str, NDArray[Any]]:
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
            why = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise ValueError("it holds Python objects, not numbers" if "pickle" in why else why) from None
