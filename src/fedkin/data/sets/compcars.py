"""CompCars: which of four types a car is, from a photograph (Yang et al., 2015); brought by you, under its licence.

30 clients: five viewpoints, the front (F), the front and a side (FS), a side (S), the rear and a side (RS), the rear
(R), each of cars made in 2009 to 2014. Cars of other years or types, and uncertain viewpoints, are left out.

Either `features.npz`, with arrays `x` (n, 512), the features of a frozen ResNet-18, `type`, `viewpoint` and `year`
(n,), numbered as in the original; or the original folders `data/image`, `data/label` and `data/misc`, whose photographs
are read at 64 x 64 pixels, for a `cnn`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from ...base.task import Task
from ...base.wording import first_line
from ..federation import Client, Federation, FederationError, test_part
from ..files import DataError, arrays, need
from ..preprocessing import Pixels

TYPES = ("MPV", "SUV", "sedan", "hatchback")
"""In the original's order, from 1 on."""
VIEWS = {1: "F", 4: "FS", 3: "S", 5: "RS", 2: "R"}
"""The original's number of each viewpoint, in the order in which one walks round a car."""
YEARS = range(2009, 2015)
CLIENTS = tuple((view, year) for view in VIEWS for year in YEARS)
SIDE = 64
SPLITS = ("random",)
DEFAULTS: dict[str, Any] = {
    "rounds": 100,
    "data": {"split": "random"},
    "model": {"name": "mlp", "settings": {"hidden": [64]}},
    "local": {"epochs": 2, "batch_size": 32, "optimiser": "adam", "lr": 1e-3},
}


class Settings(BaseModel):
    """Which clients are related."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    graph: Annotated[
        Literal["literal", "both", "grid"],
        Field(
            description="literal: viewpoint or year the same or next (as published); both: both of them; "
            "grid: one the same, one next"
        ),
    ] = "literal"


Samples = tuple[Tensor, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Inputs (n, ...), and of each the type, the viewpoint and the year as the original numbers them."""


def federate(
    *, split: str = "random", settings: Settings, seed: int = 0, clients: int | None = None, verify: bool = True
) -> Federation:
    if clients not in (None, len(CLIENTS)):
        raise FederationError(f"compcars has {len(CLIENTS)} clients: leave out data.clients = {clients}.")
    ((_, path),) = need("compcars", verify).items()
    features = path.suffix == ".npz"
    x, kind, view, year = _features(path) if features else _photographs(path)
    pixels = None if features else Pixels((3, SIDE, SIDE), 255.0, (0.5,) * 3, (0.5,) * 3)
    prepared = x if pixels is None else pixels.module()(x)
    members = []
    for v, y in CLIENTS:
        name = f"{VIEWS[v]}-{y}"
        (own,) = np.nonzero((view == v) & (year == y) & (kind >= 1) & (kind <= len(TYPES)))
        if len(own) < 2:
            raise DataError(f"{path} has {len(own)} samples of client {name}; every client needs two at least.")
        inputs, labels = prepared[own], torch.from_numpy(kind[own] - 1)
        rest, held = test_part(len(own), 0.2, seed, name)
        train, test = (inputs[rest], labels[rest]), (inputs[held], labels[held])
        members.append(Client(name, train, test, preprocessing=pixels, test_rows=held))
    task = Task.classification(tuple(prepared.shape[1:]), len(TYPES), TYPES)
    return Federation("compcars", tuple(members), task, graph(settings.graph), split)


def graph(kind: str) -> Tensor:
    """(30, 30) ones where two of CLIENTS are related: 315 pairs if literal, 89 if both, 49 on the grid."""
    views, years = list(VIEWS), list(YEARS)
    place = torch.tensor([(views.index(view), years.index(year)) for view, year in CLIENTS])
    apart = (place[:, None] - place).abs()
    near = apart <= 1
    related = {"literal": near.any(2), "both": near.all(2), "grid": apart.sum(2) == 1}[kind]
    return related.float().fill_diagonal_(0)


# ---- features ----


def _features(path: Path) -> Samples:
    found = arrays(path)
    lacking = [name for name in ("x", "type", "viewpoint", "year") if name not in found]
    if lacking:
        raise DataError(f"{path} has no array `{lacking[0]}`; its arrays are {', '.join(found) or 'none'}.")
    x, *numbers = (found[name] for name in ("x", "type", "viewpoint", "year"))
    if x.ndim != 2 or x.dtype.kind != "f" or not np.isfinite(x).all():
        raise DataError(f"{path} has an `x` that is not a row of finite features for each image: shape {x.shape}.")
    for name, column in zip(("type", "viewpoint", "year"), numbers, strict=True):
        if column.shape != (len(x),) or column.dtype.kind not in "iu":
            raise DataError(f"{path} has a `{name}` that is not {len(x)} whole numbers, one for each row of `x`.")
    kind, view, year = (column.astype(np.int64) for column in numbers)
    return torch.from_numpy(x.astype(np.float32)), kind, view, year


# ---- photographs ----


def _photographs(attributes: Path) -> Samples:
    """All photographs that belong to a client, (n, 3, 64, 64) bytes, in the order of their paths."""
    opened = _opener()
    types, root = _types(attributes), attributes.parents[1]
    chosen = list(_chosen(root, types))
    x = np.zeros((len(chosen), 3, SIDE, SIDE), dtype=np.uint8)
    for i, (path, *_) in enumerate(chosen):
        try:
            with opened(path) as image:
                x[i] = np.asarray(image.convert("RGB").resize((SIDE, SIDE))).transpose(2, 0, 1)
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(f"{path} cannot be read as an image ({first_line(error)}).") from None
    numbers = np.array([row[1:] for row in chosen], dtype=np.int64).reshape(-1, 3)
    kind, view, year = numbers.T
    return torch.from_numpy(x), kind, view, year


def _opener() -> Callable[..., Any]:
    try:
        from PIL import Image
    except ImportError:
        raise DataError("Reading photographs needs Pillow: `pip install pillow`.") from None
    return Image.open


def _chosen(root: Path, types: dict[str, int]) -> Iterator[tuple[Path, int, int, int]]:
    """Paths of photographs with type, viewpoint and year: image/make/model/year/name.jpg and its label beside."""
    for path in sorted((root / "image").glob("*/*/*/*.jpg")):
        _, model, year, _ = path.relative_to(root / "image").parts
        kind = types.get(model, 0)
        if year not in map(str, YEARS) or not 1 <= kind <= len(TYPES):
            continue
        label = root / "label" / path.relative_to(root / "image").with_suffix(".txt")
        view = _viewpoint(label)
        if view in VIEWS:
            yield path, kind, view, int(year)


def _viewpoint(label: Path) -> int:
    """The first line of a label: 1 to 5, or -1 where it is uncertain."""
    try:
        first = label.read_text(encoding="ascii", errors="replace").split()[:1]
    except OSError as error:
        raise DataError(f"{label}, which tells a photograph's viewpoint, cannot be read: {error.strerror}.") from None
    if not first or first[0] not in ("-1", *map(str, VIEWS)):
        raise DataError(f"{label} does not begin with a viewpoint from 1 to 5, or -1: {' '.join(first)!r}.")
    return int(first[0])


def _types(attributes: Path) -> dict[str, int]:
    """The type of each model, by its number as text."""
    lines = attributes.read_text(encoding="ascii", errors="replace").splitlines()
    head = lines[0].split() if lines else []
    if not {"model_id", "type"} <= set(head):
        raise DataError(f"{attributes} does not begin with a line that names model_id and type.")
    found = {}
    for number, line in enumerate(lines[1:], 2):
        cells = line.split()
        if not cells:
            continue
        row = dict(zip(head, cells, strict=False))
        if len(cells) != len(head) or not row["type"].lstrip("-").isdecimal():
            raise DataError(f"{attributes}, line {number} is not a row of {', '.join(head)}: {line[:60]!r}.")
        found[row["model_id"]] = int(row["type"])
    return found
