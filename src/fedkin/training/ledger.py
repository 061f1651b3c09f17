"""What training costs and leaves behind: losses, gradients, passes, and the optimiser's state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..base.state import State


@dataclass(repr=False)
class Ledger:
    """Of a cohort's rows, since it was opened; a site keeps it, cohorts write into it."""

    losses: Tensor | None = None
    """(m,) the sum of the training losses of all mini-batches."""
    batches: Tensor | None = None
    """(m,) how many losses that is the sum of."""
    gradients: Tensor | None = None
    """(m,) mini-batch gradients; a product with the Hessian is one, the two of a mixture are two."""
    passes: Tensor | None = None
    """(m,) samples that a model was asked about without a gradient."""
    optimiser: State | None = None
    """The optimiser's state from the last round, where it is kept; `fit` leaves the new one here."""

    def gradient(self, losses: Tensor, clients: int, count: int = 1) -> None:
        """So many gradients of each of the first clients, and the losses (k,) of their batches."""
        if self.losses is None or self.batches is None:
            self.losses, self.batches = losses.new_zeros(clients), losses.new_zeros(clients)
        self.losses[: len(losses)] += losses
        self.batches[: len(losses)] += 1
        self.derived(len(losses), clients, losses, count)

    def derived(self, k: int, clients: int, like: Tensor, count: int = 1) -> None:
        """So many gradients of each of the first k clients, with no loss to tell."""
        if self.gradients is None:
            self.gradients = like.new_zeros(clients)
        self.gradients[:k] += count

    def looked(self, samples: tuple[int, ...], models: int = 1) -> None:
        """So many models were asked about each client's samples."""
        more = models * torch.tensor(samples, dtype=torch.float64)
        self.passes = more if self.passes is None else self.passes + more

    def mean_loss(self) -> Tensor | None:
        """(m,) mean training loss over all mini-batches."""
        return None if self.losses is None or self.batches is None else self.losses / self.batches

    def take(self, rows: Tensor) -> Ledger:
        """The books of some rows."""
        return Ledger(
            None if self.losses is None else self.losses[rows],
            None if self.batches is None else self.batches[rows],
            None if self.gradients is None else self.gradients[rows],
            None if self.passes is None else self.passes[rows.cpu()],
            None if self.optimiser is None else self.optimiser.take(rows),
        )
