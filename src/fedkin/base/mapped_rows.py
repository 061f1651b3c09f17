"""Rows of weights in files that are mapped into memory, so that W may be larger than the memory there is.

`create` and `open_rows` are for safetensors files, which any reader of these opens and which cannot run code. `Shelf`
is where a run keeps its rows with weights = "disk".
"""

from __future__ import annotations

import json
import math
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..errors import FedkinError
from .files import replacing
from .state import State

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The types of numbers that are read and written, by their names in the format."""

LONGEST_HEADER = 100_000_000
"""Bytes; the format's own limit."""

# What is mapped privately is not set aside in advance: a file may be larger than memory. Python has the name from 3.13.
_UNRESERVED = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class StorageError(FedkinError):
    """A file of rows cannot be made or read; the sentence says why."""


# ---- safetensors files ----


def create(path: str | Path, tensors: Mapping[str, tuple[Sequence[int], torch.dtype]]) -> dict[str, Tensor]:
    """A new file with room for these tensors (shape, type), all zeros; writing into them writes into the file.

    The space is taken at once, so that a full disk shows here and not while numbers are written.
    """
    path = Path(path)
    header, total = _header(tensors)
    try:
        with replacing(path) as new, new.open("wb") as file:
            file.write(header)
            file.flush()
            _reserve(file, len(header) + total)
    except OSError as error:
        raise StorageError(f"{path} cannot be made ({_gigabytes(total)}): {error.strerror}.") from None
    return open_rows(path, writable=True)


def open_rows(path: str | Path, *, writable: bool = False) -> dict[str, Tensor]:
    """The tensors of a safetensors file, mapped: nothing is read before it is looked at.

    Unless `writable`, what is written into them stays in memory, and the file as it is.
    """
    return read(Path(path), writable=writable)[0]


def read(path: Path, *, writable: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, mapped, and its metadata."""
    try:
        with path.open("r+b" if writable else "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start, entries = _entries(path, file, size)
            mapped = _mapped(file, size, writable) if size else None
    except OSError as error:
        raise StorageError(f"{path} cannot be opened: {error.strerror}.") from None
    metadata = entries.pop("__metadata__", {})
    return {name: _tensor(mapped, *place) for name, place in _places(path, entries, start, size)}, metadata


def _header(tensors: Mapping[str, tuple[Sequence[int], torch.dtype]]) -> tuple[bytes, int]:
    """The head of a file, and how many bytes follow it. Each tensor lies at a multiple of its numbers' size, wide ones
    first, and the first as torch would place it in memory: elsewhere sums may be rounded otherwise."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    entries, at = {}, 0
    for name, (shape, dtype) in sorted(tensors.items(), key=lambda item: -item[1][1].itemsize):
        end = at + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": names[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return len(text).to_bytes(8, "little") + text, at


def _entries(path: Path, file: IO[bytes], size: int) -> tuple[int, dict[str, Any]]:
    """Where the numbers of a file start, and what its head says of them."""
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, LONGEST_HEADER):
        raise StorageError(f"{path} is not a safetensors file, or was cut short: its head does not fit into it.")
    try:
        entries = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path} is not a safetensors file: its head is not JSON ({error}).") from None
    if not isinstance(entries, dict):
        raise StorageError(f"{path} is not a safetensors file: its head is not a table.")
    metadata = entries.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise StorageError(f"{path}: its metadata are not a table of texts.")
    return 8 + length, entries


def _places(
    path: Path, entries: Mapping[str, Any], start: int, size: int
) -> list[tuple[str, tuple[int, tuple[int, ...], torch.dtype]]]:
    """For each tensor where it starts in the file, its shape and type; together they have to be the file."""
    found, at = [], start
    for name, entry in sorted(entries.items(), key=lambda item: _begin(path, *item)):
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if kind not in DTYPES:
            raise StorageError(f"{path}: tensor {name!r} is of type {kind!r}; known are {', '.join(DTYPES)}.")
        if start + end > size:
            raise StorageError(
                f"{path} was cut short: tensor {name!r} ends {start + end - size} bytes behind the file's end."
            )
        numbers, overflows = math.prod(shape), math.prod(filter(None, shape)) >> 48
        if start + begin != at or end - begin != numbers * DTYPES[kind].itemsize or overflows:
            raise StorageError(f"{path}: tensor {name!r} of shape {shape} does not fit the bytes {begin} to {end}.")
        found.append((name, (at, tuple(shape), DTYPES[kind])))
        at = start + end
    if at != size:
        raise StorageError(f"{path} has {size - at} bytes that belong to no tensor.")
    return found


def _begin(path: Path, name: str, entry: Any) -> tuple[int, int]:
    """The bytes of a tensor, by which tensors are sorted; refused if the entry is not of the right form."""

    def whole(key: str) -> bool:
        return isinstance(entry.get(key), list) and all(type(n) is int and n >= 0 for n in entry[key])

    known = isinstance(entry, dict) and isinstance(entry.get("dtype"), str) and whole("shape") and whole("data_offsets")
    if not known or len(entry["data_offsets"]) != 2:
        raise StorageError(f"{path}: what its head says of tensor {name!r} is not a type, a shape and a place.")
    begin, end = entry["data_offsets"]
    return begin, end


def _tensor(mapped: mmap.mmap | None, at: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    count = math.prod(shape)
    if not count or mapped is None:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=at).view(shape)


def _mapped(file: IO[bytes], size: int, writable: bool) -> mmap.mmap:
    flags = mmap.MAP_SHARED if writable else mmap.MAP_PRIVATE | _UNRESERVED
    return mmap.mmap(file.fileno(), size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _reserve(file: IO[bytes], size: int) -> None:
    """Takes the space: writing to a mapped file on a full disk would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, max(1, size))
    os.truncate(file.fileno(), size)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


# ---- a run's rows ----


def shelf_for(weights: str, folder: Path, device: torch.device) -> Shelf | None:
    """Where a run keeps its rows: on a shelf in its folder with weights = 'disk', else in memory."""
    if weights == "disk" and device.type != "cpu":
        raise StorageError(
            f"weights = 'disk' is for device = 'cpu': what lies in files cannot be worked on by {device.type!r}. Take "
            "weights = 'memory', or device = 'cpu'."
        )
    return Shelf(folder) if weights == "disk" else None


class Shelf(TorchFunctionMode):
    """While this is in force, copies of many rows lie in files of a folder instead of in memory.

    What a method's server does with all clients' rows is to repeat, copy, take, join and mix them: those results lie
    in a file each, if they have `LEAST` bytes or more. The numbers are the same. A file loses its name as soon as it
    is mapped, so it goes when the tensor goes, however the run ends.
    """

    LEAST = 1 << 24

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Room in a file: zeros, until something is written there."""
        size = math.prod(shape) * dtype.itemsize
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                _reserve(file, size)
                return _tensor(_mapped(file, size, writable=True), 0, tuple(shape), dtype)
        except OSError as error:
            raise StorageError(
                f"There is no room for {_gigabytes(size)} of weights in {self.folder}: {error.strerror}. Make room, "
                "put the run elsewhere with --out, or take weights = 'memory'."
            ) from None

    def keep(self, state: State) -> State:
        """A copy of a state that lies here."""
        with self:
            return state.replace(**{name: tensor.clone() for name, tensor in state.items()})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kept = _KEPT.get(func)
        found = kept(self, *args, **(kwargs or {})) if kept is not None else None
        return func(*args, **(kwargs or {})) if found is None else found

    def _wants(self, like: Tensor, shape: Sequence[int]) -> bool:
        size = math.prod(shape) * like.element_size()
        return size >= self.LEAST and like.device.type == "cpu" and not like.requires_grad

    # What follows returns None where the tensor is for memory, or asked for in a way that is not known here.

    def _new_empty(self, like: Tensor, *size: Any, **more: Any) -> Tensor | None:
        shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        return None if more or not self._wants(like, shape) else self.empty(shape, like.dtype)

    def _zeros_like(self, like: Tensor, **more: Any) -> Tensor | None:
        return None if more or not self._wants(like, like.shape) else self.empty(like.shape, like.dtype)

    def _clone(self, of: Tensor, **more: Any) -> Tensor | None:
        return None if more or not self._wants(of, of.shape) else self.empty(of.shape, of.dtype).copy_(of)

    def _repeat(self, row: Tensor, *sizes: Any) -> Tensor | None:
        """Of a row, times (m, 1)."""
        if row.ndim != 1 or len(sizes) != 2 or sizes[1] != 1 or not self._wants(row, (sizes[0], len(row))):
            return None
        return self.empty((sizes[0], len(row)), row.dtype).copy_(row)

    def _cat(self, tensors: Sequence[Tensor], dim: int = 0, **more: Any) -> Tensor | None:
        """Below each other."""
        first, forms = tensors[0], {(t.dtype, t.shape[1:], t.requires_grad) for t in tensors}
        shape = (sum(len(t) for t in tensors if t.ndim), *first.shape[1:])
        if more or dim or len(forms) > 1 or not first.ndim or not self._wants(first, shape):
            return None
        return torch.cat(list(tensors), out=self.empty(shape, first.dtype))

    def _getitem(self, rows: Tensor, index: Any) -> Tensor | None:
        """Rows by their numbers."""
        numbered = isinstance(index, Tensor) and index.dtype == torch.int64 and index.ndim == 1
        if not numbered or not rows.ndim or not self._wants(rows, (len(index), *rows.shape[1:])):
            return None
        found = self.empty((len(index), *rows.shape[1:]), rows.dtype)
        return torch.index_select(rows, 0, torch.where(index < 0, index + len(rows), index), out=found)


_KEPT: dict[Any, Callable[..., Tensor | None]] = {
    Tensor.new_empty: Shelf._new_empty,
    Tensor.new_zeros: Shelf._new_empty,
    torch.zeros_like: Shelf._zeros_like,
    Tensor.clone: Shelf._clone,
    Tensor.repeat: Shelf._repeat,
    torch.cat: Shelf._cat,
    Tensor.__getitem__: Shelf._getitem,
}
