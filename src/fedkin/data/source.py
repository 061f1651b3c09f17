"""What a data set's file provides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .preprocessing import Preprocessing
from .split import Group


@dataclass(frozen=True, repr=False)
class Source:
    """A pool of samples, perhaps with an official test pool, and the papers' table of groups.

    `preprocessing` turns x and x_test, kept as they were read, into what models read; it is applied when clients are
    dealt. `owners` says whose each sample is, where the data knows; `clients` is the usual number of clients;
    `balanced` whether classes are dealt evenly inside each part of the practical split; `notes` are told before a run.
    """

    name: str
    x: Tensor
    y: Tensor
    classes: int
    clients: int
    groups: tuple[Group, ...] = ()
    x_test: Tensor | None = None
    y_test: Tensor | None = None
    owners: NDArray[np.str_] | None = None
    balanced: bool = True
    preprocessing: Preprocessing | None = None
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


Files = dict[str, Path]


def remembering(read: Callable[[Files], Source]) -> Callable[[Files], Source]:
    """The last source that was read, unless one of its files has changed: a comparison prepares every run twice."""

    @lru_cache(maxsize=1)
    def once(stamps: tuple[tuple[str, Path, int, int], ...]) -> Source:
        return read({name: path for name, path, *_ in stamps})

    def source(files: Files) -> Source:
        states = {name: path.stat() for name, path in files.items()}
        return once(tuple((n, files[n], state.st_size, state.st_mtime_ns) for n, state in states.items()))

    return source
