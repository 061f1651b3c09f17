"""Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): 60,000 + 10,000 pictures of clothes, of 28 x 28 pixels."""

from __future__ import annotations

from dataclasses import replace

from ..files import need
from ..preprocessing import Pixels
from ..source import Files, Source, remembering
from . import mnist

DEFAULTS = mnist.DEFAULTS
PIXELS = Pixels((1, 28, 28), 255, mean=(0.2860,), std=(0.3530,))
# Huang et al. (AAAI 2021): the groups of MNIST, a hundred training samples more for each client.
GROUPS = tuple(replace(group, train=group.train + 100) for group in mnist.GROUPS)
NAMES = "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"


def load(verify: bool = True) -> Source:
    return _read(need("fmnist", verify))


@remembering
def _read(files: Files) -> Source:
    """The files are those of MNIST in name and form."""
    return replace(mnist.read(files), name="fmnist", groups=GROUPS, preprocessing=PIXELS, class_names=NAMES)
