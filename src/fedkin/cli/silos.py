"""The table that answers silos in a terminal: with as much in it as there is room for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len

from ..evidence.estimates import Estimate
from ..evidence.verdicts import Joining, Silo

Cells = tuple[list[str], list[list[str]]]
"""Heads, and for each silo its cells; the first is its name, the last the verdict."""


def fitting(found: Joining, width: int) -> Cells:
    """All there is, if it fits; else without the intervals of scores, as the one of the gain is what matters; else
    without why it cannot be told, and at last without what silos have with nothing."""
    for intervals, reasons in ((True, True), (False, True), (False, False)):
        made = cells(found, intervals, reasons)
        if _width(made) <= width:
            return made
    return cells(found, intervals=False, reasons=False, more=False)


def cells(found: Joining, intervals: bool, reasons: bool, more: bool = True) -> Cells:
    from ..report.words import estimate_text, gain_text, score_text

    plain, by_subject = any(silo.common for silo in found.silos), more and any(silo.subjects for silo in found.silos)
    beside = found.baselines if more else []
    heads = ["silo", "test\nsamples", *(["test\nsubjects"] if by_subject else []), *beside]
    heads += ["alone", *(["global"] if plain else []), found.method, "gain", "worth joining?"]

    def told(score: Estimate | None) -> str:
        return estimate_text(score, found.metric) if intervals else score_text(score and score.value, found.metric)

    rows = []
    for silo in found.silos:
        scores = (silo.alone, silo.common, silo.personal) if plain else (silo.alone, silo.personal)
        row = [silo.client, f"{silo.samples:,}", *([f"{silo.subjects or silo.samples:,}"] if by_subject else [])]
        row += [score_text(silo.beside.get(name), found.metric).replace(" %", "") for name in beside]
        row += [told(score).replace(" %", "") for score in scores]
        rows.append([*row, gain_text(silo.gain, found.metric), _verdict(silo, reasons)])
    return heads, rows


def _verdict(silo: Silo, reasons: bool) -> str:
    """Why it cannot be told is said in a few words of silos that are too small, or held back by what stands in a
    column."""
    why = f": {silo.held_back} is no worse" if silo.held_back else ""
    if silo.samples and not silo.telling.enough and not np.isnan(silo.gain.value):
        why = f": only {silo.telling.least:,} {silo.telling.brief}"
    return silo.verdict.partition(":")[0] + (why if reasons else "")


def _width(made: Cells) -> int:
    heads, rows = made
    columns = zip(heads, *rows, strict=True)
    return sum(_widest(column) for column in columns) + len(heads) + 1


def _widest(column: Sequence[str]) -> int:
    return max(cell_len(line) for cell in column for line in cell.split("\n"))
