"""From what people have (tables with gaps, pixels) to what models read; saved with the model and applied again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn

from ..base.wording import nearest
from ..errors import FedkinError
from . import cells
from . import table as reading


class PreprocessingError(FedkinError):
    """Rows cannot be prepared; the sentence says which, why, and what would be right."""


class TableSettings(BaseModel):
    """How a table is read and prepared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    client: Annotated[str | None, Field(description="the column that names the silo")] = None
    target: Annotated[str | None, Field(description="the column to predict")] = None
    group: Annotated[
        str | None,
        Field(description="the column that names the patient (or household, machine): its rows stay together"),
    ] = None
    fold: Annotated[str | None, Field(description="the column that says train, validation or test")] = None
    weight: Annotated[str | None, Field(description="the column that says how much a row counts in training")] = None
    task: Annotated[
        Literal["auto", "classification", "regression", "survival"],
        Field(description="auto: numbers with a fraction, or many different ones, mean regression; a time, survival"),
    ] = "auto"
    time: Annotated[
        str | None, Field(description="survival: the column of times, to the event or to the last look")
    ] = None
    event: Annotated[str | None, Field(description="survival: the column that says whether the event was seen")] = None
    event_value: Annotated[
        bool | float | str | None,
        Field(description="survival: what the event column says where it was seen, if not 1, true or yes"),
    ] = None
    scale_target: Annotated[
        Literal["auto", "standard", "none"],
        Field(description="of a regression, to mean 0 and deviation 1; auto: unless the loss is your own"),
    ] = "auto"
    ignore: Annotated[list[str], Field(description="columns that are left out")] = []
    categorical: Annotated[list[str], Field(description="columns of numbers that mean categories")] = []
    missing: Annotated[
        list[str | float], Field(description="what stands for a missing value, besides an empty cell")
    ] = []
    missing_in: Annotated[
        dict[str, list[str | float]], Field(description="the same for single columns, such as {chol = [0]}")
    ] = {}
    fill: Annotated[Literal["mean", "median"], Field(description="what missing numbers become")] = "mean"
    indicators: Annotated[bool, Field(description="a further input that says where a number was missing")] = True
    scale: Annotated[Literal["standard", "none"], Field(description="numbers to mean 0 and deviation 1")] = "standard"
    statistics: Annotated[
        Literal["auto", "shared", "own"],
        Field(
            description="means and deviations: shared by all silos, or each its own; auto: shared, and own where silos "
            "train alone"
        ),
    ] = "auto"

    @property
    def roles(self) -> dict[str, str]:
        """What single columns are for, by the setting's name: none of these is an input."""
        named = ("client", "target", "time", "event", "group", "fold", "weight")
        return {role: column for role in named if (column := getattr(self, role)) is not None}

    @property
    def survival(self) -> bool:
        """Whether times and events are to be learned."""
        return self.task == "survival" or (self.task == "auto" and not (self.time is self.event is None))

    @field_validator("ignore", "categorical", "missing", mode="before")
    @classmethod
    def _one_is_a_list_of_one(cls, value: Any) -> Any:
        return [value] if type(value) in (str, int, float) else value


class Preprocessing(Protocol):
    """Fitted on a client's training rows (or on shared statistics), saved as JSON with its model.

    `read` turns what a person brings into numbers; `module` turns those numbers into the model's inputs, in torch, so
    that it is exported with the model.
    """

    def read(self, rows: Any) -> Tensor: ...
    def module(self) -> nn.Module: ...
    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Pixels:
    """Pixels (x / divide - mean) / std, with mean and std of each channel; a sample has this shape, channels first.

    A flat sample has one channel.
    """

    shape: tuple[int, ...]
    divide: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def black(self) -> Tensor:
        """(channels,) what a pixel of value 0 becomes."""
        return -torch.tensor(self.mean) / torch.tensor(self.std)

    def read(self, rows: Any) -> Tensor:
        """(n, *shape) from an array of pixels, of one sample or of several."""
        x = torch.as_tensor(rows if isinstance(rows, Tensor) else np.asarray(rows))
        if x.ndim == len(self.shape) and self.shape[0] == 1 and tuple(x.shape[1:]) == self.shape[1:]:
            x = x[:, None]  # grey images without their one channel
        return _samples(x, self.shape, "pixels")

    def module(self) -> nn.Module:
        return _Pixels(self)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "pixels", **asdict(self)}


class _Pixels(nn.Module):
    """(n, *shape) pixels of any type -> (n, *shape) float32; rounded once, at the end."""

    mean: Tensor
    std: Tensor

    def __init__(self, pixels: Pixels) -> None:
        super().__init__()
        self.divide = pixels.divide
        width = (-1,) + (1,) * (len(pixels.shape) - 1) if len(pixels.shape) > 1 else (-1,)
        self.register_buffer("mean", torch.tensor(pixels.mean, dtype=torch.float64).view(width))
        self.register_buffer("std", torch.tensor(pixels.std, dtype=torch.float64).view(width))

    def forward(self, x: Tensor) -> Tensor:
        return ((x.double() / self.divide - self.mean) / self.std).float()


@dataclass(frozen=True)
class Scaled:
    """Numbers (x - mean) / scale; a sample has this shape, and mean and scale are of each of its last axis, or one for
    all."""

    shape: tuple[int, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    def read(self, rows: Any) -> Tensor:
        """(n, *shape) from an array of numbers, of one sample or of several."""
        return _samples(torch.as_tensor(rows if isinstance(rows, Tensor) else np.asarray(rows)), self.shape, "numbers")

    def module(self) -> nn.Module:
        return _Scaled(self)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "scaled", **asdict(self)}


class _Scaled(nn.Module):
    """(n, *shape) numbers of any type -> (n, *shape) float32; rounded once, at the end."""

    mean: Tensor
    scale: Tensor

    def __init__(self, scaled: Scaled) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(scaled.mean, dtype=torch.float64))
        self.register_buffer("scale", torch.tensor(scaled.scale, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return ((x.double() - self.mean) / self.scale).float()


def _samples(x: Tensor, shape: tuple[int, ...], what: str) -> Tensor:
    """(n, *shape), of one sample or of several."""
    if tuple(x.shape) == shape:
        x = x[None]
    if tuple(x.shape[1:]) != shape:
        raise PreprocessingError(f"Samples of shape {shape} are needed, not an array of {tuple(x.shape)}.")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise PreprocessingError(f"There are NaN or infinite {what}.")
    return x


# ---- tables ----


@dataclass(frozen=True)
class Number:
    """A column of numbers: a missing one becomes `fill`, then (x - mean) / scale.

    `indicator`: a further input that is 1 where the number was missing. `missing`: what stands for a missing value,
    besides an empty cell. `dates`: how dates are written that become numbers, as days since 1970-01-01. `low` and
    `high`: the smallest and the largest of the silo's own training rows, where known; they are for its own file and its
    own eyes, and not shared.
    """

    name: str
    missing: tuple[cells.Mark, ...] = ()
    indicator: bool = False
    mean: float = 0.0
    scale: float = 1.0
    fill: float = 0.0
    dates: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Category:
    """A column of categories, an input each; all are 0 where the category is missing or not among these."""

    name: str
    missing: tuple[cells.Mark, ...] = ()
    categories: tuple[str, ...] = ()


Column = Number | Category
MOST = 5
"""Names of missing columns that a sentence has."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """What a silo shares of its training rows so that all scale alike, and nothing else.

    Of each column of numbers, (k,): how many there are, their mean, and the sum of squared deviations from it.
    """

    count: NDArray[np.int64]
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]

    @staticmethod
    def of(numbers: NDArray[np.float64]) -> Statistics:
        """Of (n, k) numbers; NaN is no number."""
        known = ~np.isnan(numbers)
        count = known.sum(0)
        mean = np.where(known, numbers, 0).sum(0) / np.maximum(count, 1)
        with np.errstate(over="ignore"):
            return Statistics(count, mean, np.square(np.where(known, numbers - mean, 0)).sum(0))

    def merge(self, other: Statistics) -> Statistics:
        """Those of both silos' rows together (Chan, Golub and LeVeque, 1979)."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        apart = other.mean - self.mean
        with np.errstate(over="ignore"):
            m2 = self.m2 + other.m2 + np.square(apart) * self.count * share
        return Statistics(count, self.mean + apart * share, m2)

    @property
    def deviation(self) -> NDArray[np.float64]:
        """(k,) by which numbers are divided: 1 where there is none, or where all are equal up to rounding."""
        variance = self.m2 / np.maximum(self.count, 1)
        epsilon = np.finfo(np.float64).eps
        rounding = self.count * epsilon * variance + np.square(self.count * epsilon * self.mean)
        return np.where(variance > rounding, np.sqrt(variance), 1.0)


def fitted(
    columns: Sequence[Column], statistics: Statistics, settings: TableSettings, medians: Sequence[float] | None = None
) -> TablePreprocessing:
    """Columns with means, deviations and what fills gaps; `statistics` and `medians` are of the columns of numbers."""
    fill = statistics.mean if medians is None else medians
    standard = settings.scale == "standard"
    rows = zip(statistics.mean.tolist(), statistics.deviation.tolist(), map(float, fill), strict=True)
    done: list[Column] = []
    for column in columns:
        if isinstance(column, Number):
            mean, scale, gap = next(rows)
            column = replace(column, fill=gap, mean=mean if standard else 0.0, scale=scale if standard else 1.0)
        done.append(column)
    return TablePreprocessing(tuple(done))


@dataclass(frozen=True)
class TablePreprocessing:
    """From rows of a table to a model's inputs: numbers scaled, where they were missing, then categories as 0 and 1."""

    columns: tuple[Column, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the model's inputs, in their order."""
        scaled = [c for c in self.columns if isinstance(c, Number)]
        gaps = [f"{c.name} missing" for c in scaled if c.indicator]
        each = [f"{c.name}={value}" for c in self.columns if isinstance(c, Category) for value in c.categories]
        return (*(c.name for c in scaled), *gaps, *each)

    def read(self, rows: Any) -> Tensor:
        """(n, columns) float64 from a table in any form that `reading.read` takes; other columns are passed over.

        Numbers as they are, categories by their place among those known; NaN where missing or unknown.
        """
        table = reading.read(rows, "the rows")
        missing = [column.name for column in self.columns if column.name not in table.columns]
        if missing:
            raise PreprocessingError(_what_would_do(table, missing, [column.name for column in self.columns]))
        return torch.from_numpy(np.stack([_numbers(table, column) for column in self.columns], axis=1))

    def notes(self, rows: Any) -> list[str]:
        """What may surprise in these rows, in sentences: categories that the training rows did not have."""
        table = reading.read(rows, "the rows")
        told = []
        for column in self.columns:
            if isinstance(column, Category):
                names, codes = cells.coded_categories(table, column.name, column.missing)
                found = {names[code] for code in np.unique(codes) if code >= 0} - {None}
                new = sorted(str(name) for name in found - set(column.categories))
                if new:
                    listed = ", ".join(map(repr, new[:5])) + (" and more" if len(new) > 5 else "")
                    told.append(
                        f"Column {column.name!r}: {listed} did not occur in any training row and counts as no category."
                    )
        return told

    def module(self) -> nn.Module:
        return _Table(self.columns)

    def to_json(self) -> dict[str, Any]:
        kinds = {Number: "number", Category: "category"}
        told = [{"kind": kinds[type(c)], **asdict(c)} for c in self.columns]
        return {"kind": "table", "columns": [{k: v for k, v in column.items() if v is not None} for column in told]}


def _what_would_do(table: reading.Table, missing: Sequence[str], needed: Sequence[str]) -> str:
    """That columns are missing, in sentences: which, what they may be called here, and what would do in their place."""
    spare = [name for name in table.columns if name not in needed]
    near = {name: nearest(name, spare, 0.6) for name in missing}
    listed = [repr(name) + (f" (is it {near[name]!r}?)" if near[name] else "") for name in missing[:MOST]]
    listed += [f"{len(missing) - MOST} more"] if len(missing) > MOST else []
    which = f"column {listed[0]}" if len(listed) == 1 else f"columns {', '.join(listed[:-1])} and {listed[-1]}"
    return (
        f"{table.name} has no {which}, which the model reads; its columns are {_first(table.columns)}. The model "
        f"needs {_first(needed)}, in any order; where a value is not known, a column of empty cells will do."
    )


def _first(names: Iterable[str], most: int = 30) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def _numbers(table: reading.Table, column: Column) -> NDArray[np.float64]:
    if isinstance(column, Number):
        if column.dates:
            return cells.days(table, column.name, column.dates, column.missing)
        return cells.numbers(table, column.name, column.missing)
    place: dict[str | None, float] = {name: float(i) for i, name in enumerate(column.categories)}
    names, codes = cells.coded_categories(table, column.name, column.missing)
    return np.array([*(place.get(name, np.nan) for name in names), np.nan])[codes]


class _Table(nn.Module):
    """(n, columns) float64 as `TablePreprocessing.read` gives them -> (n, inputs) float32."""

    at: Tensor
    mean: Tensor
    scale: Tensor
    fill: Tensor
    indicated: Tensor
    category_at: Tensor
    codes: Tensor

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__()
        numbers = [(i, c) for i, c in enumerate(columns) if isinstance(c, Number)]
        codes = [(i, j) for i, c in enumerate(columns) if isinstance(c, Category) for j in range(len(c.categories))]
        self.register_buffer("at", torch.tensor([i for i, _ in numbers], dtype=torch.int64))
        for name in ("mean", "scale", "fill"):
            values = [getattr(c, name) for _, c in numbers]
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))
        gaps = [k for k, (_, c) in enumerate(numbers) if c.indicator]
        self.register_buffer("indicated", torch.tensor(gaps, dtype=torch.int64))
        self.register_buffer("category_at", torch.tensor([i for i, _ in codes], dtype=torch.int64))
        self.register_buffer("codes", torch.tensor([j for _, j in codes], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        parts = []
        if len(self.at):
            numbers = x[:, self.at]
            missing = torch.isnan(numbers)
            parts.append((torch.where(missing, self.fill, numbers) - self.mean) / self.scale)
            if len(self.indicated):
                parts.append(missing[:, self.indicated].double())
        if len(self.codes):
            parts.append((x[:, self.category_at] == self.codes).double())
        return torch.cat(parts, 1).float()


# ---- files ----


def from_json(saved: dict[str, Any]) -> Preprocessing:
    """What `to_json` wrote."""
    try:
        if saved["kind"] == "pixels":
            return Pixels(tuple(saved["shape"]), saved["divide"], tuple(saved["mean"]), tuple(saved["std"]))
        if saved["kind"] == "scaled":
            return Scaled(tuple(saved["shape"]), tuple(saved["mean"]), tuple(saved["scale"]))
        if saved["kind"] == "table":
            return TablePreprocessing(tuple(_column(**column) for column in saved["columns"]))
    except (KeyError, TypeError) as error:
        raise PreprocessingError(f"The preprocessing of this model cannot be read ({error!r}).") from None
    raise PreprocessingError(f"There is no preprocessing of kind {saved['kind']!r}; the file is of a newer fedkin.")


def _column(kind: str, **values: Any) -> Column:
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return Number(**plain) if kind == "number" else Category(**plain)
