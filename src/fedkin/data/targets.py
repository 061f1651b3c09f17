"""What a table's target is: classes or amounts, as it was said or as it looks; and how much each row counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..base.task import METRICS, Task
from . import cells, sentinels
from .columns import FEW, Rows, apart, marks, refuse_gaps, some
from .preprocessing import Statistics, TableSettings
from .table import Numbers, Table, TableError

MOST_CLASSES = 1000


def learned(table: Table, settings: TableSettings, train: Rows) -> tuple[Tensor, Task]:
    """(n,) the targets as models are trained on them, and the task, whose inputs are yet unknown.

    Classes are those of all rows. Numbers are scaled by the training rows of all silos together, whatever
    `table.statistics` says of inputs: weights are mixed, so an output has to mean the same everywhere. Where nobody
    said so, a loss of one's own gets them as they were (`Task.scaled_unasked`).
    """
    target = _target(table, settings)
    different = sorted(set(target)) if isinstance(target, list) else np.unique(target).tolist()
    if len(different) == 1:
        value = cells.category(different[0])
        raise TableError(f"The target {settings.target!r} is {value} in all rows of all silos: nothing can be learned.")
    if _are_classes(target, settings):
        if len(different) > MOST_CLASSES or len(different) == len(target):
            raise TableError(
                f"The target {settings.target!r} has {len(different)} different values in {len(target)} rows, too many "
                "for classes. If they are amounts, say table.task = 'regression'; otherwise choose another target."
            )
        y = torch.from_numpy(np.unique(np.array(target), return_inverse=True)[1].astype(np.int64))
        return y, Task.classification((), len(different), tuple(cells.category(value) for value in different))
    if isinstance(target, list):
        raise TableError(
            f"{table.where(0)}: the target {settings.target!r} is {target[0]!r}, but table.task = 'regression' needs "
            "numbers."
        )
    task = replace(Task.regression((), 1), metric=METRICS["rmse"])
    if settings.scale_target == "none":
        return torch.from_numpy(target), task
    statistics = Statistics.of(target[train, None])
    mean, scale = float(statistics.mean[0]), float(statistics.deviation[0])
    y = torch.from_numpy((target - mean) / scale)  # in double precision: a loss of one's own gets them back
    unasked = settings.scale_target == "auto"
    return y, replace(task, target_mean=mean, target_scale=scale, scaled_unasked=unasked)


def strata(table: Table, settings: TableSettings) -> Rows | None:
    """(n,) each row's class by number, in which splits have their share of every class; None for a regression."""
    target = _target(table, settings)
    if not _are_classes(target, settings):
        return None
    different, codes = np.unique(np.array(target), return_inverse=True)
    return codes.astype(np.int64) if len(different) <= MOST_CLASSES else None  # too many are refused later


def _are_classes(target: Numbers | list[Any], settings: TableSettings) -> bool:
    if settings.task != "auto" or isinstance(target, list):
        return settings.task != "regression"
    different = np.unique(target)
    return len(different) <= FEW and bool((different == np.floor(different)).all())


def weights(table: Table, settings: TableSettings) -> Tensor | None:
    """(n,) how much each row counts in the training loss."""
    if settings.weight is None:
        return None
    found = cells.values(table, settings.weight, marks(settings, settings.weight))
    bad = [i for i, value in enumerate(found) if not isinstance(value, float) or not value > 0]
    if bad:
        value = found[bad[0]] if isinstance(found, list) else float(found[bad[0]])
        shown = "missing" if value is None or value != value else repr(value)
        raise TableError(
            f"{table.where(bad[0])}: the weight, column {settings.weight!r}, is {shown}; it has to be a number above 0 "
            "in every row."
        )
    return torch.from_numpy(np.asarray(found, dtype=np.float64)).float()


def _target(table: Table, settings: TableSettings) -> Numbers | list[Any]:
    """The target's values: all numbers, all texts or all truths."""
    assert settings.target is not None
    found = cells.values(table, settings.target, marks(settings, settings.target))
    refuse_gaps(table, settings.target, found, "target")
    if isinstance(found, np.ndarray):
        return found
    kinds = list(map(type, found))
    if len(set(kinds)) > 1:
        here, there = 0, next(i for i, kind in enumerate(kinds) if kind is not kinds[0])
        raise TableError(
            f"The target {settings.target!r} mixes types: it is {found[here]!r} in {table.where(here)}, and "
            f"{found[there]!r} in {table.where(there)}. Give numbers only, or texts only."
        )
    return list(cells.categories(table, settings.target, marks(settings, settings.target)))


# ---- what is told ----


def notes(table: Table, settings: TableSettings, task: Task, train: Mapping[str, Rows]) -> list[str]:
    """What may surprise: classes that may be amounts, classes that are nearly the same, gaps among amounts, amounts in
    another unit. train: each silo's rows."""
    assert settings.target is not None
    if task.kind == "regression":
        amounts = np.asarray(_target(table, settings), dtype=np.float64)
        return sentinels.of_the_target(settings.target, amounts) or _other_units(settings.target, amounts, train)
    return _counted(task.class_names, settings) + _alike(task.class_names)


def _other_units(target: str, amounts: Numbers, train: Mapping[str, Rows]) -> list[str]:
    """Silos whose amounts spread far more, or far less, than those of the others."""
    far, others = apart(amounts, train)
    if not far:
        return []
    factors = {c: f"{max(others / d, d / others):.3g} times {'less' if d < others else 'more'}" for c, d in far.items()}
    theirs = some([f"{deviation:.3g} in {client} ({factors[client]})" for client, deviation in far.items()])
    return [
        f"The target {target!r} has a deviation of {theirs}, and of {others:.3g} in other silos. If that is another "
        "unit, bring it to one: amounts to predict have one scale for all silos, also alone and with --statistics own, "
        "and those of the smaller unit are hardly learned."
    ]


def _counted(classes: Sequence[str], settings: TableSettings) -> list[str]:
    """Numbers that nobody said are classes: days of a stay, number of children."""
    if settings.task != "auto" or len(classes) < 3 or not all(cells.number(name) is not None for name in classes):
        return []
    return [
        f"The target {settings.target!r} has {len(classes)} different whole numbers, {classes[0]} to {classes[-1]}, "
        "which are taken as classes. If they are amounts: --task regression (table.task = 'regression'); if they are "
        "classes, --task classification says so."
    ]


def _alike(classes: Sequence[str]) -> list[str]:
    """Classes that differ only in capitals or spaces."""
    found: dict[str, list[str]] = {}
    for name in classes:
        found.setdefault(" ".join(name.split()).lower(), []).append(name)
    twins = [repr(name) for names in found.values() if len(names) > 1 for name in names]
    return (
        [f"The classes {', '.join(twins)} differ only in capitals or spaces, and count as different."] if twins else []
    )
