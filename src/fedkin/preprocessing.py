"""From what people have (tables with gaps, pixels) to what models read; saved with the model and applied again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from .errors import FedkinError


class PreprocessingError(FedkinError):
    """Rows cannot be prepared; the sentence says which, why, and what would be right."""


class TableSettings(BaseModel):
    """How a table is read and prepared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    client: Annotated[str | None, Field(description="the column that names the silo")] = None
    target: Annotated[str | None, Field(description="the column to predict")] = None
    task: Annotated[
        Literal["auto", "classification", "regression"],
        Field(description="auto: numbers with a fraction, or many different ones, mean regression"),
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
        Literal["shared", "own"], Field(description="means and deviations of all silos together, or each its own")
    ] = "shared"


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
        if tuple(x.shape) == self.shape:
            x = x[None]
        if x.ndim == len(self.shape) and self.shape[0] == 1 and tuple(x.shape[1:]) == self.shape[1:]:
            x = x[:, None]  # grey images without their one channel
        if tuple(x.shape[1:]) != self.shape:
            raise PreprocessingError(f"Samples of shape {self.shape} are needed, not an array of {tuple(x.shape)}.")
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise PreprocessingError("There are NaN or infinite pixels.")
        return x

    def module(self) -> nn.Module:
        return _Pixels(self)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "pixels", **asdict(self)}


class _Pixels(nn.Module):
    """(n, *shape) pixels of any type -> (n, *shape) float32."""

    mean: Tensor
    std: Tensor

    def __init__(self, pixels: Pixels) -> None:
        super().__init__()
        self.divide = pixels.divide
        width = (-1,) + (1,) * (len(pixels.shape) - 1) if len(pixels.shape) > 1 else (-1,)
        self.register_buffer("mean", torch.tensor(pixels.mean, dtype=torch.float32).view(width))
        self.register_buffer("std", torch.tensor(pixels.std, dtype=torch.float32).view(width))

    def forward(self, x: Tensor) -> Tensor:
        return (x.float() / self.divide - self.mean) / self.std


def from_json(saved: dict[str, Any]) -> Preprocessing:
    """What `to_json` wrote."""
    if saved.get("kind") == "pixels":
        return Pixels(tuple(saved["shape"]), saved["divide"], tuple(saved["mean"]), tuple(saved["std"]))
    raise PreprocessingError(f"There is no preprocessing of kind {saved.get('kind')!r}; the file is of a newer fedkin.")
