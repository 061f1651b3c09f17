"""Digits: 1,797 real handwritten digits of 8 x 8 pixels (Alpaydin and Kaynak, UCI), which come with scikit-learn."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits

from .source import Source
from .split import Group

DEFAULTS: dict[str, Any] = {
    "rounds": 30,
    "model": {"name": "mlp", "settings": {"hidden": [64]}},
    "local": {"epochs": 5, "batch_size": 16, "optimiser": "adam", "lr": 1e-3},
}


def load() -> Source:
    """Pixels as (x / 16 - 0.3) / 0.38: about mean zero and deviation one (x / 16 alone costs FedAMP three points)."""
    raw = load_digits()
    x = torch.tensor((raw.data / 16 - 0.3) / 0.38, dtype=torch.float32)
    y = torch.tensor(raw.target, dtype=torch.int64)
    groups = tuple(Group((2 * g, 2 * g + 1), clients=4, train=60 - 10 * g, test=25) for g in range(5))
    return Source("digits", x, y, classes=10, clients=20, groups=groups)
