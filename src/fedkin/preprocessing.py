"""From what people have (tables with gaps, pixels) to what models read; saved with the model and applied again."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn


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
