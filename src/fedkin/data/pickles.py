"""Pickles read without running them: containers, numbers, text, and numpy arrays of bytes.

A pickle is a program that may call any function it names. Here it may name four things of numpy's, and calls
stand-ins for them that only keep what they are told.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .files import DataError
from .idx import damaged


def read(content: bytes, path: Path, member: str) -> dict[str, Any]:
    """The table in a pickle, which is a member of the archive `path`; its arrays are `Array`s."""
    try:
        table = _Unpickler(content, path, member).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle surfaces as any of many exceptions
        raise damaged(path, f"cannot be read in its member {member}", error) from None
    if not isinstance(table, dict):
        raise damaged(path, f"holds no table in its member {member}")
    return {text(key): value for key, value in table.items()}


def text(words: object) -> str:
    """Python 2 made no difference between text and bytes."""
    return words.decode("latin1") if isinstance(words, bytes) else str(words)


class Array:
    """Stands for a numpy array. An array of other things than bytes has no `values`."""

    values: NDArray[np.uint8] | None = None

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, by_columns, content = state
        if isinstance(dtype, _Dtype) and dtype.code == "u1":
            self.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_columns else "C")


class _Dtype:
    """Stands for the type of an array's numbers, such as u1."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = text(code)

    def __setstate__(self, state: object) -> None: ...


STAND_INS: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): Array,
    ("numpy._core.multiarray", "_reconstruct"): Array,
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): _Dtype,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, path: Path, member: str) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.path, self.member = path, member

    def find_class(self, module: str, name: str) -> type:
        if (module, name) not in STAND_INS:
            refused = (
                f"asks in its member {self.member} for {module}.{name}, which no images need; nothing of it was run"
            )
            raise damaged(self.path, refused)
        return STAND_INS[module, name]
