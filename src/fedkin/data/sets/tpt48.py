"""TPT-48: monthly mean temperatures of the 48 contiguous states of the USA, 2008 to 2019 (NOAA nClimDiv; as in GRDA, Xu
et al., ICLR 2022). A state is a client: from six months it predicts the next six. States that share a border are
related: 105 edges.

Windows start in every month, 133 of 144 months; Panacea's paper says 125, which are here the first 125. It does not say
how temperatures were scaled: errors as large as its own are what numbers between 0 and 1 have, with one minimum and
maximum for all states (`minmax`, by default) or in units of 100 degrees (`hundred`); GRDA has mean 0 and deviation 1
(`zscore`). Whatever is fitted is fitted to months that occur in training or validation windows. Errors are told as the
papers tell them, of scaled temperatures; what a saved model predicts is in degrees Fahrenheit.

Two splits. `random`, as in the papers: a fifth of each state's windows is for testing; windows overlap, so nearly every
month that is asked for has been seen in training. `chronological`: training windows lie inside the first 80 % of the
months, and what test windows ask for lies after them; the few windows across that border are in neither. Validation
windows are cut off the training months' end in the same way.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from ...base.task import Task
from .. import windows
from ..cells import number
from ..federation import Client, Federation, FederationError, Pair, Seasons, test_part
from ..files import DataError, need
from ..preprocessing import Scaled

STATES, MONTHS = 48, 144
OBSERVED = OUTPUTS = 6
LENGTH = OBSERVED + OUTPUTS
WINDOWS = MONTHS - LENGTH + 1
YEAR = 12
TEST_SHARE, VALIDATION_SHARE = 0.2, 0.1
SPLITS = ("random", "chronological")
DEFAULTS: dict[str, Any] = {
    "rounds": 150,
    "model": {"name": "mlp", "settings": {"hidden": [32, 32]}},
    "local": {"epochs": 4, "batch_size": 32, "optimiser": "adam", "lr": 3e-3},
    "data": {"split": "random"},
}


class Settings(BaseModel):
    """Which windows, and how temperatures are scaled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    windows: Annotated[int, Field(ge=2, le=WINDOWS, description="a state, the first ones; the paper has 125")] = WINDOWS
    scaling: Annotated[
        Literal["minmax", "hundred", "zscore"],
        Field(
            description="alike for all states: minmax to 0 to 1, hundred in hundreds of degrees, zscore to mean 0 and "
            "deviation 1"
        ),
    ] = "minmax"


def federate(
    *, split: str = "random", settings: Settings, seed: int = 0, clients: int | None = None, verify: bool = True
) -> Federation:
    if clients not in (None, STATES):
        raise FederationError(f"tpt48 has {STATES} clients, the states: leave out data.clients = {clients}.")
    files = need("tpt48", verify)
    states, temperatures = read_temperatures(files["tpt48_2008_2019.csv"])
    graph = read_borders(files["state_adjacency.csv"], states)
    later, count = split == "chronological", settings.windows
    parts = [_chronological(count) if later else _random(count, seed, state) for state in states]
    seen = np.stack([windows.touched(MONTHS, torch.cat([train, held]), LENGTH).numpy() for train, held, _ in parts], 1)
    scaled = fitted(settings.scaling, temperatures[seen])
    members = []
    for name, series, (train, held, test) in zip(states, temperatures.T, parts, strict=True):
        numbers = scaled.module()(torch.from_numpy(series.copy()))
        members.append(
            Client(
                name,
                _pair(numbers, train),
                _pair(numbers, test),
                validation=_pair(numbers, held) if later else None,  # by lot it is cut later, as of other data
                preprocessing=scaled,
                test_rows=test,
                seasons=Seasons(YEAR, (train + OBSERVED) % YEAR, (test + OBSERVED) % YEAR),  # month 0 is a January
            )
        )
    task = replace(
        Task.regression((OBSERVED,), OUTPUTS),
        target_mean=scaled.mean[0],
        target_scale=scaled.scale[0],
        scaled_errors=True,
    )
    return Federation("tpt48", tuple(members), task, graph, split, _notes(split))


def fitted(scaling: str, temperatures: NDArray[np.float64]) -> Scaled:
    """What scales the observed months, and the predicted ones; from temperatures that no test window alone has."""
    if scaling == "hundred":
        mean, scale = 0.0, 100.0
    elif scaling == "zscore":
        mean, scale = temperatures.mean(), temperatures.std()
    else:
        mean, scale = temperatures.min(), np.ptp(temperatures)
    return Scaled((OBSERVED,), (float(mean),), (float(scale),))


def read_temperatures(path: Path) -> tuple[list[str], NDArray[np.float64]]:
    """The states, and (144, 48) degrees Fahrenheit."""
    head, *rows = _cells(path)
    months = [[str(2008 + i // YEAR), str(1 + i % YEAR)] for i in range(MONTHS)]
    if not len(head) == len(set(head)) == 2 + STATES or [row[:2] for row in rows] != months:
        raise DataError(f"{path} is not a table of {STATES} states and the {MONTHS} months of 2008 to 2019.")
    for line, row in enumerate(rows, 2):
        if len(row) != len(head):
            raise DataError(f"{path}, line {line} has {len(row)} cells, but the first line has {len(head)}.")
        for state, cell in zip(head[2:], row[2:], strict=True):
            if number(cell) is None:
                raise DataError(f"{path}, line {line}: {cell!r} in column {state!r} is no temperature.")
    return head[2:], np.array([row[2:] for row in rows], dtype=np.float64)


def read_borders(path: Path, states: list[str]) -> Tensor:
    """(48, 48) ones where two states share a border."""
    _, *rows = _cells(path)
    graph, place = torch.zeros(len(states), len(states)), {name: i for i, name in enumerate(states)}
    for line, row in enumerate(rows, 2):
        if len(row) != 2 or not set(row) <= set(states) or row[0] == row[1]:
            raise DataError(f"{path}, line {line} does not name two of the {len(states)} states: {','.join(row)!r}.")
        i, j = place[row[0]], place[row[1]]
        graph[i, j] = graph[j, i] = 1
    return graph


def _cells(path: Path) -> list[list[str]]:
    with path.open(encoding="ascii", errors="replace", newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    if not rows:
        raise DataError(f"{path} is empty; `fedkin data check tpt48` looks at it.")
    return rows


def _pair(series: Tensor, at: Tensor) -> Pair:
    whole = windows.cut(series, at, LENGTH)
    return whole[:, :OBSERVED], whole[:, OBSERVED:]


Parts = tuple[Tensor, Tensor, Tensor]
"""The starts of a state's training, validation and test windows."""


def _random(count: int, seed: int, state: str) -> Parts:
    rest, held = test_part(count, TEST_SHARE, seed, state)
    return rest, rest[:0], held


def _chronological(count: int) -> Parts:
    """Training, validation and test ask for months one after the other, and no training window reaches further."""
    border = round((1 - TEST_SHARE) * MONTHS)
    early, test = windows.starts(0, border, OBSERVED, OUTPUTS), windows.starts(border, MONTHS, OBSERVED, OUTPUTS)
    test = test[test < count]
    if not len(test):
        raise FederationError(
            f"data.settings.windows = {count} leaves no window to test on: under the chronological split test windows "
            f"ask for months after the first {border}. Take more than {border - OBSERVED}."
        )
    held = early[len(early) - round(VALIDATION_SHARE * len(early)) :]
    train = windows.starts(0, int(held[0]) + OBSERVED, OBSERVED, OUTPUTS)
    return train, held, test


def _notes(split: str) -> tuple[str, ...]:
    if split == "chronological":
        return ()
    return (
        "Windows of tpt48 overlap, so under the random split nearly every month asked for in testing was seen in "
        "training, and scores flatter; data.split = 'chronological' tests on later months.",
    )
