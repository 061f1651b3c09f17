"""Gradients as CUDA graphs: what a GPU does for a batch is recorded once for each shape, and from then on played.

A step of small layers is a few hundred kernels, which Python starts more slowly than a GPU runs them. A recording
starts them all at once. It reads and writes fixed places of memory, so training works in a `workspace`: one piece of
memory for the rows of weights, one for their gradients. Rows that lie elsewhere are copied in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..base import machine
from ..base.wording import first_line

Step = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor, Tensor | None]]
"""(W (k, D), x (k, b, ...), y, weights of samples, G (k, d) to write into) -> G, losses, what is left in buffers."""

MOST = 48
"""Shapes that are recorded; a federation in which no two clients have as many samples has too many to keep."""


@dataclass(repr=False)
class Place:
    """Memory for rows of weights and for their gradients."""

    W: Tensor
    G: Tensor


@dataclass(repr=False)
class Recording:
    graph: torch.cuda.CUDAGraph
    given: tuple[Tensor, ...]
    losses: Tensor
    left: Tensor | None


class Player:
    """Runs a step, the first time for a shape as it is and later as a recording."""

    def __init__(self, step: Step, parameters: int) -> None:
        self.step, self.d = step, parameters
        self.places: dict[str, Place] = {}
        self.recordings: dict[object, Recording] = {}
        self.seen: Counter[object] = Counter()
        self.pool: Any = None
        self.trouble: str | None = None
        """Why nothing is recorded, if that was tried and failed."""

    def forget(self) -> None:
        """Gives back all memory; what was recorded would be recorded anew."""
        self.recordings.clear()
        self.places.clear()
        self.pool = None

    def workspace(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """A copy of rows (m, D) to train on, and memory (m, d) for their gradients: the same memory in every round."""
        place = self._place("training", rows)
        return place.W[: len(rows)], place.G[: len(rows)]

    def _place(self, name: str, rows: Tensor) -> Place:
        place = self.places.get(name)
        if place is None or len(place.W) < len(rows):
            self.recordings = {key: own for key, own in self.recordings.items() if name not in key}  # type: ignore[operator]
            self.places.pop(name, None)
            m, size = rows.shape
            place = self.places[name] = Place(aligned(rows, m, size), aligned(rows, m, self.d))
        place.W[: len(rows)].copy_(rows)
        return place

    def __call__(
        self, W: Tensor, x: Tensor, y: Tensor, weight: Tensor | None, out: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """As the step; `out` is the workspace's G, or None for a new one."""
        if self.trouble is not None:
            return self.step(W, x, y, weight, _new(W, self.d) if out is None else out)
        name, k = "training", len(W)
        place = self.places.get(name)
        if place is None or out is None or W.data_ptr() != place.W.data_ptr() or out.data_ptr() != place.G.data_ptr():
            name = "elsewhere"
        key = (name, k, tuple(x.shape), tuple(y.shape), x.dtype, weight is None)
        self.seen[key] += 1
        if self.seen[key] == 1 or (key not in self.recordings and len(self.recordings) >= MOST):
            return self.step(W, x, y, weight, _new(W, self.d) if out is None else out)
        if name == "elsewhere":
            place = self._place(name, W)
        assert place is not None
        given = (x, y) if weight is None else (x, y, weight)
        if key not in self.recordings and not self._record(key, place.W[:k], place.G[:k], given):
            return self.step(W, x, y, weight, _new(W, self.d) if out is None else out)
        recording = self.recordings[key]
        for fixed, tensor in zip(recording.given, given, strict=True):
            fixed.copy_(tensor)
        recording.graph.replay()
        left = None if recording.left is None else recording.left.clone()
        if name == "training":
            return place.G[:k], recording.losses.clone(), left
        G = place.G[:k].clone() if out is None else out.copy_(place.G[:k])
        return G, recording.losses.clone(), left

    def _record(self, key: object, W: Tensor, G: Tensor, given: tuple[Tensor, ...]) -> bool:
        torch.cuda.empty_cache()  # what the first, unrecorded pass used would else be kept beside the recording's own
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        fixed = tuple(tensor.clone() for tensor in given)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool):
                _, losses, left = self.step(W, fixed[0], fixed[1], fixed[2] if len(fixed) > 2 else None, G)
        except RuntimeError as error:
            if machine.ran_out(error):
                raise
            self.trouble = (
                f"The GPU's work could not be recorded as a graph ({first_line(error)}); it is started step by step."
            )
            self.recordings.clear()
            return False
        self.recordings[key] = Recording(graph, fixed, losses, left)
        return True


def _new(W: Tensor, d: int) -> Tensor:
    return W.new_empty(len(W), d)


def aligned(like: Tensor, m: int, d: int) -> Tensor:
    """(m, d) zeros; on a GPU every row begins where it can read several numbers at once."""
    return like.new_zeros(m, -(-d // 32) * 32 if like.is_cuda else d)[:, :d]
