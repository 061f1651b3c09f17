"""The moment in which a method is asked: which round it is, of how many, and its random numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import streams


@dataclass(frozen=True)
class Round:
    """A round of a run.

    0 is before the first, where servers begin and clients enlist; what is not counted comes at 0 and below. The closing
    exchange is `of` + 1, those of newcomers follow.
    """

    number: int
    of: int
    """How many the run has, at most."""
    seed: int | None = None
    """The training seed; None where clients train, whose rows may belong to several runs."""

    def rng(self, purpose: str, name: str = "") -> torch.Generator:
        """The random numbers of this round for a purpose, and for a client by its name."""
        if self.seed is None:
            raise RuntimeError(
                "In `train` and `models` rows may belong to runs of several seeds: cohort.rng(purpose) gives a "
                "generator for each row."
            )
        return streams.generator(self.seed, name, self.number, purpose)
