"""Windows cut from series in time: so many observed steps, then as many as are to be predicted.

A window is known by its start: it observes steps start, ..., start + observed - 1 and predicts the `outputs` that
follow.
"""

from __future__ import annotations

import torch
from torch import Tensor


def starts(first: int, stop: int, observed: int, outputs: int) -> Tensor:
    """The starts of all windows whose predicted steps lie in first, ..., stop - 1.

    What a window observes may lie before `first`: by then it is known.
    """
    begin = max(0, first - observed)
    return torch.arange(begin, max(begin, stop - observed - outputs + 1))


def cut(series: Tensor, at: Tensor, length: int) -> Tensor:
    """(n, length, ...) the windows of a series (T, ...) that start at the steps `at` (n,)."""
    every = series.unfold(0, length, 1).movedim(-1, 1)  # a view: only what is taken from it takes room
    return every[at]


def touched(steps: int, at: Tensor, length: int) -> Tensor:
    """(steps,) which steps of a series lie in any of the windows that start at the steps `at` (n,)."""
    found = torch.zeros(steps, dtype=torch.bool)
    for offset in range(length):
        found[at + offset] = True
    return found


def observed(x: Tensor, outputs: int) -> Tensor:
    """(n, observed) of each sample the observed steps of what is predicted, as scaled as it is there.

    A sample is either these steps and nothing else, (n, observed), or (n, observed + outputs, features) as `gru` reads
    it: what is predicted comes first among the features, and the last `outputs` steps are the ones to predict.
    """
    return x if x.ndim == 2 else x[:, :-outputs, 0]
