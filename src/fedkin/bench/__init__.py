"""How fast, and how near to what the machine could do: what `fedkin bench` and benchmarks/speed.py measure.

Each section is a function of a `Plan` that returns rows of plain values. Times are medians of several repetitions after
a warm-up; ways that are compared take turns in one process, so that their ratio holds on a busy machine too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ..base.wording import did_you_mean
from ..errors import FedkinError
from . import matrices, record, rounds, steps, timing
from .steps import WAYS
from .tables import skipped, table
from .timing import Plan, Row

__all__ = ["SECTIONS", "SHORT", "WAYS", "Plan", "Row", "chosen", "measured", "record", "skipped", "table", "title"]

SECTIONS: dict[str, Callable[[Plan], list[Row]]] = {
    "ceilings": timing.ceilings,
    "step": steps.step,
    "round": rounds.round,
    "accuracy": rounds.accuracy,
    "collaboration": matrices.collaborations,
    "growth": steps.growth,
    "checkpoint": matrices.checkpoints,
    "memory": rounds.memory,
    "demo": rounds.demo,
    "warmup": rounds.warmup,
}
SHORT = ("ceilings", "step", "round", "collaboration", "growth", "checkpoint")
"""What a user sees in a minute."""


def chosen(names: str, usual: Sequence[str] = tuple(SECTIONS)) -> list[str]:
    """Sections by their names, separated by commas; the usual ones if none is named."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in SECTIONS:
            hint = did_you_mean(name, SECTIONS, 0.5).rstrip() or f"There are {', '.join(SECTIONS)}."
            raise FedkinError(f"There is no section {name!r} to measure. {hint}")
    return [name for name in SECTIONS if name in wanted] if wanted else list(usual)


def title(section: str) -> str:
    """What a section measures, in a sentence."""
    return " ".join((SECTIONS[section].__doc__ or "").partition("\n\n")[0].split())


def measured(section: str, plan: Plan, command: str, commit: str | None = None) -> dict[str, Any]:
    """A section's rows with where they come from, as `record` keeps them."""
    where_from = record.origin(plan, command, commit)  # how busy the machine was before this made it so
    started = time.perf_counter()
    rows = SECTIONS[section](plan)
    with suppress(RuntimeError):  # of a GPU that does nothing more
        timing.forget(plan.device)
    return record.section(rows, time.perf_counter() - started, where_from)
