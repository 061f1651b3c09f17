"""Digits: 1,797 real handwritten digits of 8 x 8 pixels (Alpaydin and Kaynak, UCI), which come with scikit-learn."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits

from ..preprocessing import Pixels
from ..source import Source
from ..split import Group

# The rate is by benchmarks/digits_rate.py, on validation data: of five, the one that costs no method much in 30 rounds.
DEFAULTS: dict[str, Any] = {
    "rounds": 30,
    "model": {"name": "mlp", "settings": {"hidden": [64]}},
    "local": {"epochs": 5, "batch_size": 16, "optimiser": "adam", "lr": 1e-2},
}
# Pixels of 0 to 16, to about mean zero and deviation one: x / 16 alone costs FedAMP three points.
PIXELS = Pixels((64,), 16, mean=(0.3,), std=(0.38,))
GROUPS = tuple(Group((2 * g, 2 * g + 1), clients=4, train=60 - 10 * g, test=25) for g in range(5))


def load(verify: bool = True) -> Source:
    """There are no files of ours to verify."""
    raw = load_digits()
    return Source(
        "digits",
        torch.tensor(raw.data, dtype=torch.uint8),
        torch.tensor(raw.target, dtype=torch.int64),
        classes=10,
        clients=20,
        groups=GROUPS,
        preprocessing=PIXELS,
        class_names=tuple("0123456789"),
    )
