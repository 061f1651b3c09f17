"""What a verdict stands on: not all test samples say something.

Of an AUC and of a balanced accuracy it is the rarer class: two positives among two hundred rows are two, whatever the
two hundred say. Of a C-index it is the events. Where several samples are one subject's, subjects count.

In `python benchmarks/fewest.py` two equally good models are told apart by AUC, where 5 of 100 are meant, in 4 to 8 with
ten positives, and in up to 17 with two. By the C-index it is 6 to 9 with fifteen events and up to 34 with two; at the
level that one of twenty silos needs, where a quarter of 1 is meant, 2 with ten events and less than 1 with fifteen. A
balanced accuracy errs the other way, as its intervals are wide: few positives hardly ever tell it apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from . import concordance

if TYPE_CHECKING:
    from .outputs import Outputs

FEWEST_SAMPLES = 10
"""Test samples, or subjects, or of the rarer class, below which a silo gets no verdict, whatever they show."""
FEWEST_EVENTS = 15
CLASSES = ("auc", "balanced_accuracy")


@dataclass(frozen=True)
class Telling:
    """How many tell something of a silo's models. `count` is held against `fewest`, `least` is told: the number of the
    rarest class, where several classes count together."""

    count: float
    least: int
    fewest: int = FEWEST_SAMPLES
    one: str = "test sample"
    many: str = "test samples"
    brief: str = "test samples"
    """What there are so many of, where there is little room."""

    @property
    def enough(self) -> bool:
        return self.count >= self.fewest

    @property
    def words(self) -> str:
        """41 test samples, 1 event."""
        return f"{self.least:,} {self.one if self.least == 1 else self.many}"


def telling(metric: str, seeds: Sequence[Outputs]) -> Telling:
    """Of one silo in all seeds, each sample (or subject) counted once; where samples have no numbers, the mean over
    seeds."""
    by_subject = any(several(each) for each in seeds)
    word = "test subject" if by_subject else "test sample"
    if metric == "c_index":
        told = [concordance.sizes(each.targets)[0] for each in seeds]
        number = _different(seeds, told)
        return Telling(number, round(number), FEWEST_EVENTS, "test event", "test events", "test events")
    if metric not in CLASSES:
        number = _different(seeds, [np.ones(len(each.targets), dtype=np.bool_) for each in seeds])
        return Telling(number, round(number), FEWEST_SAMPLES, word, f"{word}s", f"{word}s")
    present = sorted({c for each in seeds for c in each.targets.tolist()})
    sizes = [_different(seeds, [(each.targets == c).numpy() for each in seeds]) for c in present]
    which = "rarest" if len(present) > 2 else "rarer"
    least = round(min(sizes, default=0))
    rare = f"of the {which} class"
    return Telling(_together(sizes), least, FEWEST_SAMPLES, f"{word} {rare}", f"{word}s {rare}", rare)


def several(outputs: Outputs) -> bool:
    """Whether some of a silo's test samples are one subject's."""
    return outputs.subjects is not None and len(np.unique(outputs.subjects)) < len(outputs.subjects)


def _together(sizes: Sequence[float]) -> float:
    """One more than Welch's degrees of freedom of a mean over classes: at least the rarest class, at most all."""
    n = np.array([size for size in sizes if size > 1], dtype=np.float64)
    if len(n) < max(2, len(sizes)):
        return min(sizes, default=0.0)
    return float(1 + (1 / n).sum() ** 2 / (1 / (n**2 * (n - 1))).sum())


def _different(seeds: Sequence[Outputs], these: Sequence[NDArray[np.bool_]]) -> float:
    """How many different subjects, or samples, are among these; of seeds that do not number them, the mean."""
    by_subject = any(several(each) for each in seeds)
    found = []
    for each, some in zip(seeds, these, strict=True):
        numbers = each.subjects if by_subject else each.rows
        found.append((np.arange(len(some)) if numbers is None else numbers.numpy())[some])
    if all(each.rows is not None for each in seeds):
        return float(len(np.unique(np.concatenate(found)))) if found else 0.0
    return float(round(np.mean([len(np.unique(own)) for own in found])))
