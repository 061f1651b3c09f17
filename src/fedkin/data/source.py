"""What a data set's file provides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .split import Group


@dataclass(frozen=True)
class Source:
    """A pool of samples, perhaps with an official test pool, and the papers' table of groups.

    `owners` says whose each sample is, where the data knows; `clients` is the usual number of clients; `balanced`
    whether classes are dealt evenly inside each part of the practical split.
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
