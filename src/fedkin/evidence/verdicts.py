"""What a silo is told of joining, and what all silos come to.

A yes or no needs its p-value to hold after Holm's correction over the silos, on enough that tells something
(`telling`). A yes needs more: that the joined model also beats what the silo has with nothing (`untrained`), its most
frequent class or its mean, and its own linear model. Else the gain is over a network that was no good alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from ..errors import FedkinError
from ..maths import statistics
from .estimates import Estimate
from .telling import Telling

CHANCE = 0.05
SMALLEST = 0.001
"""The share of the score that a gain or a loss has to be."""
NOTHING = 1e-12
"""A difference that is rounding."""
MOST_NAMED = 4
"""Silos that a sentence names; more are counted."""
WITH_NOTHING = {
    "linear": "a linear model of its own",
    "majority": "the most frequent of its own labels",
    "mean": "the mean of its own targets",
}
"""What a silo has without joining and without a network."""


class JoiningError(FedkinError):
    """There is no answer; the sentence says what is missing."""


@dataclass(frozen=True)
class Silo:
    """One silo's answer. Scores are in the metric's own direction; a positive gain is for the better always."""

    client: str
    samples: int
    """Different test samples in all seeds; where they have no numbers, the mean over seeds."""
    alone: Estimate
    common: Estimate | None
    """The plain global model's, where `fedavg` is among the runs."""
    personal: Estimate
    gain: Estimate
    """Of personal over alone, on the same samples."""
    handed: str
    """Which of the method's models it was handed."""
    subjects: int | None = None
    """Whose these samples are, where some are one subject's."""
    undefined: str = "all test samples are of one class"
    """Why the metric is not defined, where it is not."""
    p: float = float("nan")
    """Of the gain, after Holm's correction over the silos that can have a verdict; NaN for one that cannot."""
    told_by: Telling | None = None
    """What the verdict stands on; None: all test samples."""
    beside: Mapping[str, float] = field(default_factory=dict)
    """What the silo has with nothing, by name: `majority` or `mean`, and `linear`; those that are known."""
    no_worse: tuple[str, ...] = ()
    """Those of them that score as well as the joined model, or better; the best first."""
    ahead: Estimate | None = None
    """How much better its linear model is than the network alone, on the same test samples; None where the runs did not
    keep what it answered."""

    @cached_property
    def telling(self) -> Telling:
        return self.told_by or Telling(self.samples, self.samples)

    @property
    def large_enough(self) -> bool:
        """Whether its test samples allow a verdict at all."""
        return self.telling.enough and not np.isnan(self.gain.low)

    @property
    def matters(self) -> bool:
        """Whether the gain is a thousandth of the score, or more; what is less is no reason to join or to stay away,
        however sure it is."""
        return abs(self.gain.value) >= SMALLEST * max(abs(self.alone.value), abs(self.personal.value))

    @property
    def alike(self) -> bool:
        """Whether both models score the same on the test samples."""
        return abs(self.gain.value) <= NOTHING * max(1.0, abs(self.alone.value))

    @property
    def surely(self) -> Literal["yes", "no", "cannot tell"]:
        """Whether the joined model is better than the one trained alone, and no more than that."""
        if not (self.p < CHANCE and self.matters):
            return "cannot tell"
        return "yes" if self.gain.low > 0 else "no" if self.gain.high < 0 else "cannot tell"

    @property
    def held_back(self) -> str | None:
        """What the silo has with nothing, and is no worse, where joining is surely better than the network alone."""
        return self.no_worse[0] if self.no_worse and self.surely == "yes" else None

    @property
    def answer(self) -> Literal["yes", "no", "cannot tell"]:
        return "cannot tell" if self.held_back else self.surely

    @property
    def verdict(self) -> str:
        return self.verdict_with(lambda score: f"{score:.3g}")

    def verdict_with(self, text: Callable[[float], str]) -> str:
        """The verdict, with scores written like this."""
        if self.answer != "cannot tell":
            return "yes" if self.answer == "yes" else "no, better alone"
        return f"cannot tell: {self._why(text)}"

    def _why(self, text: Callable[[float], str]) -> str:
        count = f"{self.samples:,} test sample{'' if self.samples == 1 else 's'}"
        if not self.samples:
            return "there are no test samples"
        if np.isnan(self.gain.value):
            return self.undefined
        if not self.telling.enough:
            return f"{self.telling.words} {'is' if self.telling.least == 1 else 'are'} too few for a verdict"
        if np.isnan(self.gain.low):
            return f"{count} show no spread to judge by"
        if self.held_back:
            return f"{WITH_NOTHING[self.held_back]} scores {text(self.beside[self.held_back])}, which is no worse"
        if self.alike:
            return f"its {count} show{'s' if self.samples == 1 else ''} no difference"
        if self.p < CHANCE and not self.matters:
            return "the difference is less than a thousandth of the score"
        if self.gain.low > 0 or self.gain.high < 0:
            return "as several silos are tested, it could be chance"
        return f"with {self.telling.words} the difference could be chance"


@dataclass(frozen=True)
class Joining:
    """The answers of all silos, for the best joint method."""

    metric: str
    higher_is_better: bool
    method: str
    chosen_by: str
    """Why this method, in words."""
    seeds: tuple[int, ...]
    silos: tuple[Silo, ...]
    by_patient: bool = False
    """Whether there are several seeds, and it is known which of a silo's samples each tested."""
    same_samples: bool = False
    """Whether it is, and they are the same in all seeds, as where a column says which rows are for testing."""

    @property
    def together(self) -> Estimate:
        """The mean gain over the silos that have one with an interval, each counted by its test samples, or by what of
        them tells something: three do not outvote three hundred, nor two positives among three hundred thirty among
        forty. Their samples are not the same, so errors add as squares."""
        known = [silo for silo in self.silos if not np.isnan(silo.gain).any()]
        if not known:
            return Estimate(float("nan"))
        weights = [silo.telling.count for silo in known]
        mean = float(np.average([silo.gain.value for silo in known], weights=weights))
        return Estimate(mean, *statistics.mover([silo.gain for silo in known], weights))

    @property
    def counted_by(self) -> Telling:
        """What silos count by, in words."""
        return next((silo.telling for silo in self.silos if silo.subjects), self.silos[0].telling)

    @property
    def held_back(self) -> list[Silo]:
        """Silos that gain for sure over the network alone, but not over what they have with nothing."""
        return [silo for silo in self.silos if silo.held_back]

    @property
    def baselines(self) -> list[str]:
        """What silos have with nothing, by name, as far as it is known of any."""
        return [name for name in reversed(WITH_NOTHING) if any(name in silo.beside for silo in self.silos)]

    def mean_beside(self, name: str) -> tuple[float, float, float] | None:
        """The means over silos of what they have with nothing, with the network alone and joined, each counted as in
        the mean gain; None where that is known of none."""
        known = [silo for silo in self.silos if name in silo.beside and not np.isnan(silo.gain.value)]
        if not known:
            return None
        rows = [(silo.beside[name], silo.alone.value, silo.personal.value) for silo in known]
        with_nothing, alone, joined = np.average(rows, axis=0, weights=[silo.telling.count for silo in known])
        return float(with_nothing), float(alone), float(joined)

    @property
    def no_yardstick(self) -> bool:
        """Whether a linear model of each silo's own is clearly better on average than the network alone, silos counted
        as in the mean gain: that its 95 % interval leaves out 0."""
        sign = 1 if self.higher_is_better else -1
        parts = [(_ahead(silo, sign), silo.telling.count) for silo in self.silos if "linear" in silo.beside]
        known = [(part, count) for part, count in parts if not np.isnan(part).any()]
        return bool(known) and statistics.mover(*map(list, zip(*known, strict=True)))[0] > 0

    def frame(self) -> Any:
        """A pandas frame with a row for each silo."""
        try:
            import pandas as pd
        except ImportError:
            raise JoiningError("A frame needs pandas: `pip install pandas`.") from None
        rows = [
            {
                "silo": silo.client,
                "test samples": silo.samples,
                **({"test subjects": silo.subjects} if any(each.subjects for each in self.silos) else {}),
                **{name: silo.beside.get(name, float("nan")) for name in self.baselines},
                "alone": silo.alone.value,
                "global": silo.common.value if silo.common else float("nan"),
                "joined": silo.personal.value,
                "gain": silo.gain.value,
                "low": silo.gain.low,
                "high": silo.gain.high,
                "p": silo.p,
                "verdict": silo.verdict,
                "handed out": silo.handed,
            }
            for silo in self.silos
        ]
        return pd.DataFrame(rows).set_index("silo")

    @property
    def sentence(self) -> str:
        """Joining with fedamp helped north and east, harmed west, and for 2 of 5 silos it cannot be told."""
        answers = ("yes", "no", "cannot tell")
        helped, harmed, unclear = ([s.client for s in self.silos if s.answer == answer] for answer in answers)
        count, start = len(self.silos), f"Joining with {self.method}"
        if len(unclear) == count:
            which = f"at {unclear[0]}" if count == 1 else f"for any of the {count} silos"
            return f"Whether joining with {self.method} helped cannot be told {which}."
        for verb, those in (("helped", helped), ("harmed", harmed)):
            if len(those) == count:
                return f"{start} {verb} {f'all {count} silos' if count > 1 else those[0]}."
        text = f"{start} helped {_those(helped, count)}"
        if not unclear:
            return f"{text} and harmed {_those(harmed, count)}."
        return f"{text}, harmed {_those(harmed, count)}, and for {_those(unclear, count)} it cannot be told."


def _ahead(silo: Silo, sign: int) -> Estimate:
    """How much better the linear model is than the network alone; where it is not known on which samples, as if the
    interval of the network's score were all that is uncertain."""
    if silo.ahead is not None:
        return silo.ahead
    linear, alone = silo.beside["linear"], silo.alone
    return Estimate(sign * (linear - alone.value), *sorted((sign * (linear - alone.low), sign * (linear - alone.high))))


def _those(clients: Sequence[str], count: int) -> str:
    """Silos by their names where they are few, else how many."""
    if not clients:
        return "none"
    if len(clients) > MOST_NAMED:
        return f"{len(clients)} of {count} silos"
    *others, last = clients
    return f"{', '.join(others)} and {last}" if others else last
