"""Images and labels in idx files (LeCun), gzipped or plain: a magic number, the sides, then a byte for each number."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..base.wording import first_line
from .files import DataError

SIDES = (28, 28)


def samples(images: Path, labels: Path, classes: int) -> tuple[Tensor, Tensor]:
    """Pixels (n, 1, 28, 28) uint8 and classes (n,) int64, from two files that belong together."""
    x, y = read(images, 3), read(labels, 1)
    if x.shape[1:] != SIDES:
        raise damaged(images, f"holds images of {x.shape[1]} x {x.shape[2]} pixels instead of {SIDES[0]} x {SIDES[1]}")
    if len(x) != len(y):
        raise damaged(labels, f"holds {len(y)} labels, but {images.name} beside it {len(x)} images")
    if not len(y):
        raise damaged(labels, "holds no labels")
    if y.max() >= classes:
        raise damaged(labels, f"holds the label {y.max()}, but there are only classes 0 to {classes - 1}")
    return torch.from_numpy(x[:, None].copy()), torch.from_numpy(y.astype(np.int64))


def read(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The numbers of a file: an array of so many dimensions."""
    content, start = _content(path), 4 + 4 * dimensions
    kind = struct.pack(">I", 0x0800 + dimensions)  # 08: unsigned bytes
    if content[:4] != kind:
        begins = f"begins with {content[:4].hex(' ')}" if content else "is empty"
        raise damaged(path, f"{begins} instead of {kind.hex(' ')}, as an idx file of {dimensions} dimensions does")
    if len(content) < start:
        raise damaged(path, "ends within its first line of numbers")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(shape):
        sides = " x ".join(map(str, shape))
        raise damaged(path, f"says that it holds {sides} bytes of data, but holds {len(content) - start}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def damaged(path: Path, what: str, cause: Exception | None = None) -> DataError:
    """The error for a file that is not what it should be; `what` continues the sentence after its name."""
    reason = "" if cause is None else f" ({first_line(cause)})"
    return DataError(f"{path} {what}{reason}. Replace it by a sound copy; data.verify = true tells whether it is one.")


def _content(path: Path) -> bytes:
    """What is in a file, unpacked if it is packed, whatever its name says."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, "cannot be unpacked", error) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
