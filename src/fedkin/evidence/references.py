"""Rows of a table without federated learning: what they scored, and their means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Reference:
    """What one row scored at the clients, in the task's metric; `settings` is the digest of the configuration.

    `scores` (m,) are those of the round that validation data choose, where there are rounds, as in the tables of
    methods; `last` those of the last one.
    """

    name: str
    seed: int
    metric: str
    higher_is_better: bool
    clients: tuple[str, ...]
    scores: tuple[float, ...]
    last: tuple[float, ...]
    note: str
    settings: str


@dataclass(frozen=True)
class Row:
    """A line of the table, as `comparison.Row` has it: means over clients, then over seeds."""

    name: str
    mean: float
    worst: float
    std_clients: float
    std_seeds: float | None
    last: float
    note: str
    seeds: tuple[int, ...]


def rows(references: Sequence[Reference]) -> list[Row]:
    """A row for each name, the best mean first."""
    named: dict[str, list[Reference]] = {}
    for each in references:
        named.setdefault(each.name, []).append(each)
    table = [_row(members) for members in named.values()]
    higher = bool(references) and references[0].higher_is_better
    return sorted(table, key=lambda row: -row.mean if higher else row.mean)


def _row(members: Sequence[Reference]) -> Row:
    worst = np.nanmin if members[0].higher_is_better else np.nanmax
    means = np.array([np.nanmean(each.scores) for each in members])
    return Row(
        name=members[0].name,
        mean=float(means.mean()),
        worst=float(np.mean([worst(each.scores) for each in members])),
        std_clients=float(np.mean([np.nanstd(each.scores) for each in members])),
        std_seeds=float(means.std(ddof=1)) if len(means) > 1 else None,
        last=float(np.mean([np.nanmean(each.last) for each in members])),
        note=members[0].note,
        seeds=tuple(each.seed for each in members),
    )
