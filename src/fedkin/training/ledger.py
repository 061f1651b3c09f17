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
    """(m,) the sum of the training losses of all gradients."""
    gradients: Tensor | None = None
    """(m,) mini-batch gradients; a product with the Hessian is one."""
    passes: Tensor | None = None
    """(m,) samples that a model was asked about without a gradient."""
    optimiser: State | None = None
    """The optimiser's state from the last round, where it is kept; `fit` leaves the new one here."""

    def gradient(self, losses: Tensor, clients: int) -> None:
        """Gradients of the first clients, and the losses (k,) of their batches."""
        if self.losses is None or self.gradients is None:
            self.losses, self.gradients = losses.new_zeros(clients), losses.new_zeros(clients)
        self.losses[: len(losses)] += losses
        self.gradients[: len(losses)] += 1

    def looked(self, samples: tuple[int, ...], models: int = 1) -> None:
        """So many models were asked about each client's samples."""
        more = models * torch.tensor(samples, dtype=torch.float64)
        self.passes = more if self.passes is None else self.passes + more

    def mean_loss(self) -> Tensor | None:
        """(m,) mean training loss over all gradients."""
        return None if self.losses is None or self.gradients is None else self.losses / self.gradients

    def take(self, rows: Tensor) -> Ledger:
        """The books of some rows."""
        return Ledger(
            None if self.losses is None else self.losses[rows],
            None if self.gradients is None else self.gradients[rows],
            None if self.passes is None else self.passes[rows.cpu()],
            None if self.optimiser is None else self.optimiser.take(rows),
        )
