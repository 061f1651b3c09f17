"""Reports and figures of runs: `write_report` for one HTML page, `write_figures` for print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..evidence.comparison import Run
from ..evidence.findings import Findings

__all__ = ["write_figures", "write_report"]


def write_report(
    runs: Sequence[Run] | Findings,
    path: Path,
    title: str | None = None,
    comparison: Mapping[str, Any] | None = None,
) -> Path:
    """Write one self-contained HTML file about a run or a comparison, and return its path.

    comparison: what is known of the comparison as a whole. `reference` names the row to test against (default: the
    best), `notes` is a list of sentences to print, `references` are rows without federated learning
    (`fedkin.evidence.references.rows`); all else is listed with the settings.
    """
    from .page import write_page

    return write_page(Findings.of(runs), path, title, comparison)


def write_figures(runs: Sequence[Run] | Findings, folder: Path, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Write the figures for print, at the width of a column, and return their paths."""
    from . import paper

    return paper.write_figures(Findings.of(runs), folder, formats)
