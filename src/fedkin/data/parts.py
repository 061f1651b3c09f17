"""Which of a client's rows are for training, for validation and for testing.

By lot, from the seed and the client's name alone; stratified, so that a rare class is on both sides; and by subject,
where a subject has several rows: all of them on one side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..base import streams

Purpose = Literal["test part", "validation part"]
Labels = NDArray[Any] | Tensor | Sequence[Any]

NAMES = {"train": "train", "training": "train", "test": "test", "testing": "test"}
NAMES |= dict.fromkeys(("validation", "val", "valid", "dev"), "validation")
"""What people call the parts, in small letters, and what they are."""
ENOUGH = 5
"""Validation rows from which on they decide which model a client gets."""


def stratified_part(
    labels: Labels | None, groups: Labels | None, share: float, seed: int, client: str, purpose: Purpose = "test part"
) -> tuple[Tensor, Tensor]:
    """The numbers of the rows that stay, and of those that are set aside: round(share * n), at least one of each.

    labels: (n,) classes, or events of a survival; each is split in proportion and is on both sides if it has two rows
    and there is room. groups: (n,) whose each row is; then n counts subjects, whose rows stay together, and a subject
    is of its rarest label. None: no strata, or each row its own subject. A validation part needs five, else there is
    none. With n = 1 nothing is set aside.
    """
    given = groups if groups is not None else labels
    if given is None:
        raise ValueError("Either labels or groups have to be given; the number of rows is theirs.")
    rows = np.arange(len(given))
    if groups is not None and len(np.unique(np.asarray(groups))) < len(rows):
        rows = np.unique(np.asarray(groups), return_inverse=True)[1]
    units = int(rows.max()) + 1 if len(rows) else 0
    strata = np.zeros(units, np.int64) if labels is None else _strata(np.asarray(labels), rows, units)
    order = torch.randperm(units, generator=streams.generator(seed, client, 0, purpose)).numpy()
    strata = _by_lot(strata, order)
    by_stratum = order[np.argsort(strata[order], kind="stable")]
    sizes = np.bincount(strata, minlength=1)
    taken = _apportioned(sizes, _held(units, share, purpose))
    place = np.arange(units) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = np.zeros(units, np.bool_)
    chosen[by_stratum] = place < np.repeat(taken, sizes)
    if units == len(rows) and purpose == "test part":  # in the order of the lot, as test rows have always been
        return torch.from_numpy(order[~chosen[order]]), torch.from_numpy(order[chosen[order]])
    held = chosen[rows]
    return torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))


def _by_lot(strata: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Strata numbered as they come in a lot, so that what is left over after proportions goes to any of them alike."""
    _, first, codes = np.unique(strata[order], return_index=True, return_inverse=True)
    numbered = np.empty_like(strata)
    numbered[order] = np.argsort(np.argsort(first))[codes]
    return numbered


def _held(units: int, share: float, purpose: Purpose) -> int:
    if purpose == "validation part" and (units < 5 or not share):
        return 0
    return max(0, min(max(1, round(share * units)), units - 1))


def _strata(labels: NDArray[Any], rows: NDArray[np.int64], units: int) -> NDArray[np.int64]:
    """(units,) the rarest label among each unit's rows, as a number."""
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    rarest_first = np.empty(len(counts), np.int64)
    rarest_first[np.argsort(counts, kind="stable")] = np.arange(len(counts))
    found = np.full(units, len(counts), np.int64)
    np.minimum.at(found, rows, rarest_first[codes])
    strata: NDArray[np.int64] = np.unique(found, return_inverse=True)[1].astype(np.int64)
    return strata


def _apportioned(counts: NDArray[np.int64], held: int) -> NDArray[np.int64]:
    """How many of each stratum are among the `held`: in proportion, and of two or more neither none nor all, if there
    is room for that."""
    quota = held * counts / max(1, counts.sum())
    low, high = np.minimum(counts // 2, 1), np.maximum(counts - 1, 0)
    taken: NDArray[np.int64] = np.clip(np.floor(quota).astype(np.int64), low, high)
    while taken.sum() < held:
        room = taken < (high if (taken < high).any() else counts)
        taken[np.where(room, quota - taken, -np.inf).argmax()] += 1
    while taken.sum() > held:
        spare = taken > (low if (taken > low).any() else 0)
        taken[np.where(spare, taken - quota, -np.inf).argmax()] -= 1
    return taken


def too_small(
    held: Mapping[str, NDArray[Any]], known: Mapping[str, NDArray[Any]] | None, given: bool = False
) -> list[str]:
    """Sentences on validation parts that nothing can be chosen by.

    held: the labels of each client's validation rows; known: those of its training rows, where they are classes.
    given: whether somebody chose them, so that no share of the rows is to be larger.
    """
    told = []
    few = {client: len(labels) for client, labels in held.items() if len(labels) < ENOUGH}
    if few:
        listed = _listed([f"{client} ({n})" for client, n in few.items()])
        told.append(f"Fewer than {ENOUGH} validation rows, too few to choose a model by: {listed}.")
        told[-1] += "" if given else " A larger share, such as --validation 0.3, or more rows would help."
    if known is not None:
        lacking = {
            client: sorted(set(known[client].tolist()) - set(labels.tolist()))
            for client, labels in held.items()
            if client not in few
        }
        without = [f"{client} ({', '.join(map(str, names))})" for client, names in lacking.items() if names]
        if without:
            told.append(
                f"The validation rows lack a class: {_listed(without)}. What is chosen by them does not see it."
            )
    return told


def _listed(words: list[str], most: int = 5) -> str:
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
