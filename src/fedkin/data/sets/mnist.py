"""MNIST (LeCun, Cortes and Burges): 60,000 + 10,000 handwritten digits of 28 x 28 pixels."""

from __future__ import annotations

from typing import Any

from .. import idx
from ..files import need
from ..preprocessing import Pixels
from ..source import Files, Source, remembering
from ..split import Group

DEFAULTS: dict[str, Any] = {
    "rounds": 100,
    "model": {"name": "cnn"},
    "local": {"epochs": 10, "batch_size": 100, "optimiser": "adam", "lr": 1e-3},
}
PIXELS = Pixels((1, 28, 28), 255, mean=(0.1307,), std=(0.3081,))
# Huang et al. (AAAI 2021): five groups of twenty clients, with 500, 400, ... 100 training samples each.
GROUPS = tuple(Group((2 * g, 2 * g + 1), clients=20, train=500 - 100 * g, test=100) for g in range(5))


def load(verify: bool = True) -> Source:
    return _read(need("mnist", verify))


def read(files: Files) -> Source:
    x, y = idx.samples(files["train-images-idx3-ubyte.gz"], files["train-labels-idx1-ubyte.gz"], 10)
    x_test, y_test = idx.samples(files["t10k-images-idx3-ubyte.gz"], files["t10k-labels-idx1-ubyte.gz"], 10)
    return Source(
        "mnist",
        x,
        y,
        classes=10,
        clients=100,
        groups=GROUPS,
        x_test=x_test,
        y_test=y_test,
        preprocessing=PIXELS,
        class_names=tuple("0123456789"),
    )


_read = remembering(read)
