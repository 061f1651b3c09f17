"""A loss and a metric of one's own: the focal loss (Lin et al. 2017), and the F1 score averaged over classes.

fedkin run --loss own_loss:focal --metric own_loss:macro_f1 --data digits        (in this folder)
python own_loss.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import fedkin


def focal(outputs: Tensor, targets: Tensor, gamma: float = 2.0) -> Tensor:
    """(b,) a value a sample, so that class weights and padding work; one number for the batch would do too."""
    loss = F.cross_entropy(outputs, targets, reduction="none")
    return (1 - torch.exp(-loss)) ** gamma * loss


def macro_f1(outputs: Tensor, targets: Tensor) -> Tensor:
    """One number from all of a client's outputs (n, classes) and targets (n,): the mean F1 of the classes present.

    Higher is better; a function with the attribute `lower_is_better = True` is minimised.
    """
    guess = outputs.argmax(1)
    scores = []
    for c in targets.unique():
        hits = ((guess == c) & (targets == c)).sum()
        scores.append(2 * hits / ((guess == c).sum() + (targets == c).sum()))
    return torch.stack(scores).mean()


if __name__ == "__main__":
    results = fedkin.compare(
        methods=["separate", "fedavg", "fedamp"],
        data={"name": "digits", "split": "practical"},
        loss=focal,
        metric=macro_f1,
        rounds=10,
        out="runs/own-loss",
    )
    for row in results.rows():
        print(f"{row.name:20} {row.score:.3f}")
