"""CIFAR-100 (Krizhevsky, 2009): 50,000 + 10,000 colour photographs of 32 x 32 pixels, 100 classes in 20 superclasses.

Either as arrays without pickles, or from the original archive, whose pickles are read without running them. Both forms
give the same samples in the same order.
"""

from __future__ import annotations

import csv
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import read_array
from numpy.typing import NDArray

from .. import pickles
from ..files import need
from ..idx import damaged
from ..preprocessing import Pixels
from ..source import Files, Source, remembering
from ..split import Group

DEFAULTS: dict[str, Any] = {
    "rounds": 100,
    "data": {"augment": True},  # without it no method comes near the paper's values
    "model": {"name": "resnet18", "settings": {"stem": "cifar"}},
    "local": {"epochs": 10, "batch_size": 100, "optimiser": "adam", "lr": 1e-3},
}
PIXELS = Pixels((3, 32, 32), 255, mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))
CLASSES, SUPERCLASSES = 100, 20
ARCHIVE = "cifar-100-python.tar.gz"

Bytes = NDArray[np.uint8]


def load(verify: bool = True) -> Source:
    return _read(need("cifar100", verify))


@dataclass(frozen=True)
class _Pool:
    """Pixels x (n, 3, 32, 32), channels red, green, blue; classes `fine` (n,) and superclasses `coarse` (n,)."""

    x: Bytes
    fine: Bytes
    coarse: Bytes


@remembering
def _read(files: Files) -> Source:
    train, test, names = _from_archive(files[ARCHIVE]) if ARCHIVE in files else _from_arrays(files)
    return Source(
        "cifar100",
        torch.from_numpy(train.x),
        torch.from_numpy(train.fine.astype(np.int64)),
        classes=CLASSES,
        clients=100,
        groups=_groups(train),
        x_test=torch.from_numpy(test.x),
        y_test=torch.from_numpy(test.fine.astype(np.int64)),
        preprocessing=PIXELS,
        class_names=names,
    )


def _groups(pool: _Pool) -> tuple[Group, ...]:
    """A group of five clients for each superclass; Huang et al. (AAAI 2021): 500 training samples for each of the first
    twenty clients, 400 for each of the next, down to 100."""
    return tuple(
        Group(tuple(np.unique(pool.fine[pool.coarse == g]).tolist()), clients=5, train=500 - 100 * (g // 4), test=100)
        for g in range(SUPERCLASSES)
    )


def _checked(path: Path, x: Bytes, fine: Bytes, coarse: Bytes) -> _Pool:
    """Samples that fit together, or the sentence."""
    if not len(x) == len(fine) == len(coarse) > 0:
        raise damaged(path, f"holds {len(x)} images, but {len(fine)} classes and {len(coarse)} superclasses")
    for what, labels, count in (("class", fine, CLASSES), ("superclass", coarse, SUPERCLASSES)):
        if labels.max() >= count:
            raise damaged(path, f"holds an image of {what} {labels.max()}, but there are only 0 to {count - 1}")
    torn = [c for c in np.unique(fine) if len(np.unique(coarse[fine == c])) > 1]
    if torn:
        raise damaged(path, f"puts images of class {torn[0]} into more than one superclass")
    return _Pool(x, fine, coarse)


# ---- arrays without pickles ----


def _from_arrays(files: Files) -> tuple[_Pool, _Pool, tuple[str, ...]]:
    parts = [_pool(files[f"train-{i}.npz"]) for i in range(5)]
    train = _Pool(*(np.concatenate([getattr(p, a) for p in parts]) for a in ("x", "fine", "coarse")))
    return train, _pool(files["test.npz"]), _names(files["labels.csv"])


def _pool(path: Path) -> _Pool:
    """`delta` holds (R - G, G, B - G), of which each pixel is stored as the difference from the one to its left."""
    arrays = _npz(path)
    x = np.cumsum(arrays["delta"], axis=-1, dtype=np.uint8)
    x[:, 0] += x[:, 1]
    x[:, 2] += x[:, 1]
    return _checked(path, x, arrays["fine"], arrays["coarse"])


def _npz(path: Path) -> dict[str, Bytes]:
    sides = {"delta": (3, 32, 32), "fine": (), "coarse": ()}
    try:
        with zipfile.ZipFile(path) as stored:
            kept = [name for name in sides if f"{name}.npy" in stored.namelist()]
            arrays = {name: read_array(stored.open(f"{name}.npy"), allow_pickle=False) for name in kept}
    except Exception as error:  # a damaged header surfaces as any of many exceptions
        raise damaged(path, "cannot be read as arrays", error) from None
    for name, shape in sides.items():
        if name not in arrays:
            raise damaged(path, f"holds no array {name!r}")
        if arrays[name].dtype != np.uint8 or arrays[name].ndim == 0 or arrays[name].shape[1:] != shape:
            found = f"{arrays[name].dtype} of shape {arrays[name].shape}"
            raise damaged(path, f"holds {found} as {name!r} instead of uint8 of shape {('n', *shape)}")
    return arrays


def _names(path: Path) -> tuple[str, ...]:
    """The classes' names, of a table with the columns `fine` and `fine_name`."""
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            named = {row["fine"]: row["fine_name"] for row in csv.DictReader(stream)}
        return tuple(named[str(c)] for c in range(CLASSES))
    except (KeyError, UnicodeDecodeError, csv.Error, OSError) as error:
        raise damaged(path, f"does not name classes 0 to {CLASSES - 1} in its column 'fine_name'", error) from None


# ---- the original archive ----


def _from_archive(path: Path) -> tuple[_Pool, _Pool, tuple[str, ...]]:
    members = _members(path)
    train, test = (_archived(path, name, members[name]) for name in ("train", "test"))
    names = members["meta"].get("fine_label_names")
    if not isinstance(names, list) or len(names) != CLASSES or not all(isinstance(n, bytes | str) for n in names):
        raise damaged(path, f"does not name {CLASSES} classes in its member meta")
    # The arrays' order of test images: the first of each class, by class, then the second of each, and so on.
    rank = np.zeros(len(test.fine), dtype=np.int64)
    for c in np.unique(test.fine):
        (mine,) = np.nonzero(test.fine == c)
        rank[mine] = np.arange(len(mine))
    order = np.lexsort((test.fine, rank))
    test = _Pool(test.x[order], test.fine[order], test.coarse[order])
    return train, test, tuple(map(pickles.text, names))


def _members(path: Path) -> dict[str, dict[str, Any]]:
    """The contents of train, test and meta, read in one pass; nothing is unpacked to disk."""
    found: dict[str, dict[str, Any]] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                folder, _, name = member.name.partition("/")
                stream = archive.extractfile(member) if folder == "cifar-100-python" and member.isfile() else None
                if name in ("train", "test", "meta") and stream is not None:
                    found[name] = pickles.read(stream.read(), path, name)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise damaged(path, "cannot be unpacked", error) from None
    missing = [name for name in ("train", "test", "meta") if name not in found]
    if missing:
        raise damaged(path, f"has no member cifar-100-python/{missing[0]}")
    return found


def _archived(path: Path, name: str, content: dict[str, Any]) -> _Pool:
    """A member's samples: `data` holds for each image 1,024 bytes of red, row by row, then green, then blue."""
    data = content.get("data")
    x = data.values if isinstance(data, pickles.Array) else None
    if x is None or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3072:
        raise damaged(path, f"has no array 'data' of bytes, 3,072 for each image, in its member {name}")
    labels = []
    for key in ("fine_labels", "coarse_labels"):
        given = content.get(key)
        if not isinstance(given, list) or not all(type(label) is int and 0 <= label < 256 for label in given):
            raise damaged(path, f"has no list {key!r} of numbers from 0 on in its member {name}")
        labels.append(np.array(given, dtype=np.uint8))
    return _checked(path, x.reshape(-1, 3, 32, 32).copy(), *labels)
