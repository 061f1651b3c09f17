"""Traffic speeds: a road sensor a client, each predicting its next hour from the last (METR-LA, PEMS-BAY).

A sample observes 12 steps of five minutes and predicts the 12 after them (Li et al., DCRNN, 2018; Meng et al., CNFGNN,
2021). It holds all 24: (24, features), the speed first, then the time of day as a fraction of the day. The speeds of
the steps to predict are zeros there, unless a teacher is to tell them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from ..base.task import LOSSES, METRICS, Task
from . import federation, windows
from .federation import Client, Federation
from .files import DataError
from .preprocessing import Scaled
from .roads import Roads

OBSERVED = OUTPUTS = 12
SPLITS = ("chronological", "random")
DEFAULTS: dict[str, Any] = {
    "rounds": 150,
    "data": {"split": "chronological"},
    "model": {"name": "gru", "settings": {"hidden": 32}},
    "local": {"steps": 10, "batch_size": 32, "optimiser": "adam", "lr": 1e-3},
}
LEAKS = (
    "Random split: a test window shares most of its steps with training windows, so errors are smaller than any "
    "forecast's; the chronological split has none of that."
)
TOLD = (
    "Teacher forcing: at every step the model is told the true speed of the step before, in testing too, so these are "
    "errors of one step ahead, not of a forecast of twelve."
)


class Settings(BaseModel):
    """How windows are cut and speeds prepared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    masked: Annotated[
        bool, Field(description="leave missing readings out of loss and score; false: they are zeros")
    ] = True
    time_of_day: Annotated[bool, Field(description="a second feature: the time of day, from 0 to 1")] = True
    scaling: Annotated[
        Literal["minmax", "zscore"],
        Field(description="of speeds, alike for all clients: minmax to 0 to 1, zscore to mean 0 and deviation 1"),
    ] = "minmax"
    stride: Annotated[int, Field(ge=1, description="keep every so-many-th training window")] = 1
    test_stride: Annotated[int, Field(ge=1, description="keep every so-many-th validation and test window")] = 1
    steps: Annotated[int, Field(ge=0, description="use the first so many steps of five minutes; 0: all")] = 0
    teacher_forcing: Annotated[
        bool, Field(description="tell true speeds of the steps to predict; goes with model.settings.teacher")
    ] = False


@dataclass(frozen=True)
class Parts:
    """The starts of a client's training, validation and test windows; no validation windows where lots decide."""

    train: Tensor
    test: Tensor
    validation: Tensor | None = None


def federate(roads: Roads, split: str, settings: Settings, seed: int, clients: int | None) -> Federation:
    """A client for each sensor, all scaled alike: by what the training windows observe, and nothing else (trap T21)."""
    roads = roads.first(settings.steps, clients)
    steps = len(roads.speed)
    parts = [parted(split, steps, settings, seed, name) for name in roads.sensors]
    smallest = min(len(at) for each in parts for at in (each.train, each.test, each.validation) if at is not None)
    if not smallest:
        raise DataError(
            f"{steps} steps are too few: the {split} split leaves a part without any window of {OBSERVED} observed and "
            f"{OUTPUTS} predicted steps. Take data.settings.steps = {_enough(split)} at least."
        )
    speed = torch.from_numpy(roads.speed.T.copy())
    mean, scale = fitted(speed, [each.train for each in parts], settings.scaling)
    time_of_day = torch.from_numpy(roads.time_of_day)
    features = 2 if settings.time_of_day else 1
    scaled = Scaled((OBSERVED + OUTPUTS, features), (mean, 0.0)[:features], (scale, 1.0)[:features])

    def samples(series: Tensor, target: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        x = windows.cut(series, at, OBSERVED + OUTPUTS)
        if not settings.teacher_forcing:
            x[:, OBSERVED:, 0] = 0
        return x, windows.cut(target, at + OBSERVED, OUTPUTS)

    members = []
    for name, readings, each in zip(roads.sensors, speed, parts, strict=True):
        series = scaled.module()(torch.stack([readings, time_of_day], 1)[:, :features])
        gaps = (readings == 0) & settings.masked
        target = torch.where(gaps, torch.nan, series[:, 0])
        held = None if each.validation is None else samples(series, target, each.validation)
        train, test = samples(series, target, each.train), samples(series, target, each.test)
        members.append(Client(name, train, test, held, preprocessing=scaled, test_rows=each.test))
    kind = "masked_mse" if settings.masked else "mse"
    task = Task(
        "regression",
        scaled.shape,
        OUTPUTS,
        LOSSES[kind],
        METRICS[kind],
        target_mean=mean,
        target_scale=scale,
        scaled_errors=True,
    )
    told = (LEAKS,) * (split == "random") + (TOLD,) * settings.teacher_forcing
    return Federation(
        roads.name, tuple(members), task, torch.from_numpy(roads.graph.copy()), split, notes=(*roads.notes, *told)
    )


def parted(split: str, steps: int, settings: Settings, seed: int, client: str) -> Parts:
    """Which windows of a series a client trains on and is tested on.

    chronological: 70, 10 and 20 % of the time. A window belongs to the part in which all of its predicted steps lie,
    and those over a border to none, so no training window holds a step that is predicted in validation or testing.
    random: a fifth of all windows by lot is for testing.
    """
    if split == "random":
        every = windows.starts(0, steps, OBSERVED, OUTPUTS)
        if len(every) < 2:
            return Parts(every[:0], every[:0])
        rest, held = (part.sort().values for part in federation.test_part(len(every), 0.2, seed, client))
        return Parts(every[rest][:: settings.stride], every[held][:: settings.test_stride])
    train, validation, test = (windows.starts(first, stop, OBSERVED, OUTPUTS) for first, stop in _periods(steps))
    return Parts(train[:: settings.stride], test[:: settings.test_stride], validation[:: settings.test_stride])


def _periods(steps: int) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    first, second = round(0.7 * steps), round(0.8 * steps)
    return (0, first), (first, second), (second, steps)


def _enough(split: str) -> int:
    """The fewest steps of which every part has a window."""
    return 10 * OUTPUTS if split == "chronological" else OBSERVED + OUTPUTS + 1


def fitted(speed: Tensor, train: list[Tensor], scaling: str) -> tuple[float, float]:
    """By what all speeds (m, T) are moved and divided, from the steps that training windows (starts) observe.

    Missing readings are among them as zeros, which is what a model reads there.
    """
    seen = torch.cat([s[windows.touched(len(s), at, OBSERVED)] for s, at in zip(speed, train, strict=True)])
    if scaling == "minmax":
        low, scale = seen.min(), seen.max() - seen.min()
    else:
        low, scale = seen.mean(), seen.std(correction=0)
    return float(low), float(scale) or 1.0
