"""Methods under every combination of several settings: what each came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from . import comparison
from .findings import Findings


@dataclass(frozen=True)
class Crossing:
    """Runs under one combination: the values of the settings by their full names."""

    values: dict[str, Any]
    runs: Sequence[comparison.Run]

    @cached_property
    def findings(self) -> Findings:
        return Findings(self.runs)


@dataclass(frozen=True)
class CrossedRow:
    """What a `method:model` came to under one combination; `row` is as in the table of a comparison."""

    values: dict[str, Any]
    metric: str
    row: comparison.Row
    trained_with: str = ""
    """`Adam 0.001`, where methods were not all trained alike."""

    def flat(self) -> dict[str, Any]:
        """One level of keys, for tables."""
        return {**self.values, "metric": self.metric, **vars(self.row)}


@dataclass(frozen=True)
class Crossed:
    """Runs under every combination of the values of several settings, in the order of the combinations."""

    settings: dict[str, list[Any]]
    crossings: Sequence[Crossing]

    def rows(self) -> list[CrossedRow]:
        """A row for each combination and `method:model`; headline models first, the best on top."""
        return list(self._rows)

    @cached_property
    def _rows(self) -> list[CrossedRow]:
        return [
            CrossedRow(each.values, each.findings.metric, row, each.findings.trained_with.get(row.method, ""))
            for each in self.crossings
            for row in each.findings.rows
        ]
