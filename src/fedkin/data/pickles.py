"""Pickles read without running them: containers, numbers, text, and numpy arrays of bytes or floating-point numbers.

A pickle is a program that may call any function it names. Here it may name four things of numpy's, and one by which
Python 3 writes bytes for Python 2, and calls stand-ins for them that only keep what they are told.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .files import DataError
from .idx import damaged


def read(content: bytes, path: Path, member: str) -> dict[str, Any]:
    """The table in a pickle, which is a member of the archive `path`; its arrays are `Array`s."""
    table = load(content, path, f" in its member {member}")
    if not isinstance(table, dict):
        raise damaged(path, f"holds no table in its member {member}")
    return {text(key): value for key, value in table.items()}


def load(content: bytes, path: Path, inside: str = "") -> Any:
    """What is in a pickle, which is `path`, or lies `inside` it; its arrays are `Array`s."""
    try:
        return _Unpickler(content, path, inside).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle surfaces as any of many exceptions
        raise damaged(path, f"cannot be read{inside}", error) from None


def text(words: object) -> str:
    """Python 2 made no difference between text and bytes."""
    return words.decode("latin1") if isinstance(words, bytes) else str(words)


class Array:
    """Stands for a numpy array. An array of other things than bytes and floating-point numbers has no `values`."""

    values: NDArray[Any] | None = None

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, by_columns, content = state
        if isinstance(dtype, _Dtype) and dtype.code in ("u1", "f4", "f8"):
            kind = np.dtype(dtype.order + dtype.code)
            self.values = np.frombuffer(content, kind).reshape(shape, order="F" if by_columns else "C")


class _Dtype:
    """Stands for the type of an array's numbers, such as u1, and the order of their bytes."""

    order = "<"

    def __init__(self, code: object, *_: object) -> None:
        self.code = text(code)

    def __setstate__(self, state: Any) -> None:
        self.order = ">" if text(state[1]) == ">" else "<"


def _encoded(letters: object, *_: object) -> bytes:
    """Stands for `codecs.encode(letters, "latin1")`: so Python 3 writes bytes where Python 2 shall read them."""
    return str(letters).encode("latin1")


STAND_INS: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy.core.multiarray", "_reconstruct"): Array,
    ("numpy._core.multiarray", "_reconstruct"): Array,
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encoded,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, path: Path, inside: str) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.path, self.inside = path, inside

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        if (module, name) not in STAND_INS:
            refused = f"asks{self.inside} for {module}.{name}, which no arrays need; nothing of it was run"
            raise damaged(self.path, refused)
        return STAND_INS[module, name]
