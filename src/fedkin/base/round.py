"""The moment in which a method is asked: which round it is, of how many, and its random numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import streams


@dataclass(frozen=True, eq=False)
class Round:
    """A round of a run.

    0 is before the first, where servers begin and clients enlist; what is not counted comes at 0 and below. The closing
    exchange has the number after the last, those of newcomers follow.
    """

    number: int
    of: int
    """How many the run has, at most."""
    seed: int | None = None
    """The training seed; None where clients train, whose rows may belong to several runs."""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):  # as a method of the contract's first edition would ask, and never be told yes
            raise TypeError(f"A round is not a number: ask for round.number == {other}.")
        return isinstance(other, Round) and (self.number, self.of, self.seed) == (other.number, other.of, other.seed)

    def rng(self, purpose: str, name: str = "") -> torch.Generator:
        """The random numbers of this round for a purpose, and for a client by its name."""
        if self.seed is None:
            raise RuntimeError(
                "In `train` and `models` rows may belong to runs of several seeds: cohort.rng(purpose) gives a "
                "generator for each row."
            )
        return streams.generator(self.seed, name, self.number, purpose)
