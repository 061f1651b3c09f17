"""What everyone may know of a federation: server, clients and methods; no data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.task import Task
from ..base.weights import Layout


@dataclass(frozen=True)
class Problem:
    """What everyone may know: the task, the weights' layout, the clients' names and sample counts; no data.

    Rows from `known` on are newcomers, whom the federation has not trained with. `initial` (D,) is the row from which
    all methods of a comparison start.
    """

    task: Task
    layout: Layout
    names: tuple[str, ...]
    samples: Tensor
    initial: Tensor
    rounds: int
    known: int
    fresh: Callable[[torch.Generator], Tensor]
    """Another starting row (D,), drawn as `initial` was."""
    groups: Tensor | None = None
    graph: Tensor | None = None

    def __len__(self) -> int:
        return len(self.names)
