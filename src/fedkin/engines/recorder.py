"""What a run writes down while it goes on: a line a round, who listened to whom, and checkpoints now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from ..evidence.records import Line
from ..runs.checkpoint import Checkpoint
from ..runs.config import Config
from ..runs.folder import Writer

MOST_XI = 200
"""Clients up to which xi is kept of every round."""


@dataclass
class Recorder:
    """Writes into a run's folder."""

    writer: Writer
    clients: int
    direction: int
    """1 if a higher score is better, else -1."""
    headline: str
    best: tuple[int, float] | None = None
    """The round that validation data would choose so far, and the headline's score on these in it."""
    saved_at: float = field(default_factory=time.monotonic)
    save_cost: float = 0.0
    saves: bool = True
    """Whether there are checkpoints."""

    def line(self, record: Line, xi: Tensor | None, kept: set[str] | None, last: int) -> None:
        """A round that has ended. kept: the models of which it is the one to keep, where that is decided so; last: the
        latest round of training."""
        self.writer.line(record)
        held = record.models[self.headline].validation
        score = None if held is None else held.mean
        better = score is not None and (self.best is None or (score - self.best[1]) * self.direction > 0)
        better = better if kept is None else self.headline in kept
        if xi is not None:
            self._keep_xi(record.round, xi, better, last)
        if better and score is not None:
            self.best = (record.round, score)

    def _keep_xi(self, round: int, xi: Tensor, better: bool, last: int) -> None:
        """Every round of so many clients, every tenth beyond; the last always, and the one that validation data would
        choose in its place so far."""
        every = 1 if self.clients <= MOST_XI else 10
        if round % every == 0 or better or round > last:
            self.writer.collaboration(round, xi)
        if better and self.best and self.best[0] % every:
            self.writer.forget_collaboration(self.best[0])

    def save(self, checkpoint: Callable[[], Checkpoint], config: Config, last: bool, beside: int) -> None:
        """Every round, or at least every minute where that would cost more than a tenth of the time. beside: runs that
        share the time of this process."""
        since = time.monotonic() - self.saved_at
        if not self.saves or (not last and since < min(60.0, 9 * self.save_cost * beside)):
            return
        started = time.monotonic()
        checkpoint().save(self.writer.checkpoint, config)
        self.saved_at = time.monotonic()
        self.save_cost = self.saved_at - started
