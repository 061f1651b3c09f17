"""Survival from a table: a column of times, and one that says whether a time ended with the event."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import cells
from .columns import marks, refuse_gaps
from .preprocessing import TableSettings
from .table import Numbers, Table, TableError

WHOLE = 100_000
"""A batch that is a silo's whole data: patients are compared with those of their batch alone."""
DEFAULTS: dict[str, Any] = {
    "model": {"name": "logistic", "settings": {}},
    "local": {"epochs": 10, "batch_size": WHOLE, "optimiser": "adam", "lr": 0.01},
}
"""Cox's own model, a sum of the inputs times weights, in ten steps a round, each on the whole silo."""
SEEN = {"1": 1.0, "true": 1.0, "yes": 1.0, "0": 0.0, "false": 0.0, "no": 0.0}


def targets(table: Table, settings: TableSettings) -> Tensor:
    """(n, 2) time and event."""
    assert settings.time is not None and settings.event is not None
    found = np.stack([_times(table, settings.time, settings), _events(table, settings.event, settings)], axis=1)
    if not found[:, 1].any():
        raise TableError(f"The event {settings.event!r} was seen in no row of any silo: nothing can be learned.")
    return torch.from_numpy(found).float()


def _times(table: Table, column: str, settings: TableSettings) -> Numbers:
    found = cells.values(table, column, marks(settings, column))
    refuse_gaps(table, column, found, "time")
    for i, value in enumerate(found):
        if not isinstance(value, float) or value <= 0:
            shown = cells.category(value) if isinstance(value, float) else repr(value)
            raise TableError(
                f"{table.where(i)}: the time, column {column!r}, is {shown}. Times are numbers above 0, such as days "
                "from the beginning on; who had the event at once may have half a day."
            )
    return np.asarray(found, dtype=np.float64)


def _events(table: Table, column: str, settings: TableSettings) -> Numbers:
    """1 where the event was seen, 0 where not: from 1 and 0, truths, yes and no, or what `event_value` says."""
    words = cells.categories(table, column, marks(settings, column))
    refuse_gaps(table, column, words, "event")
    different = sorted(set(filter(None, words)))
    listed = ", ".join(different[:5]) + (", …" if len(different) > 5 else "")
    if settings.event_value is not None:
        meant = cells.category(settings.event_value)
        if meant not in different:
            raise TableError(
                f"table.event_value = {meant!r} occurs in no row: the event, column {column!r}, is {listed}."
            )
        return np.array([float(word == meant) for word in words])
    strange = next((i for i, word in enumerate(words) if str(word).lower() not in SEEN), None)
    if strange is not None:
        raise TableError(
            f"{table.where(strange)}: the event, column {column!r}, is {words[strange]!r}. It should be 1 or 0, true "
            f"or false, yes or no; or say which of {listed} means that the event was seen: --event-value "
            f"{different[-1]} (table.event_value)."
        )
    return np.array([SEEN[str(word).lower()] for word in words])
