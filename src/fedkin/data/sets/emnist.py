"""EMNIST by class (Cohen et al., 2017): handwritten digits, capital and small letters of 28 x 28 pixels.

Either the official files, 697,932 + 116,323 images, or our subset of their test part, 54,948 + 12,133.
"""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase, digits

from .. import idx
from ..files import need
from ..preprocessing import Pixels
from ..source import Files, Source, remembering
from ..split import Group
from . import mnist

DEFAULTS = mnist.DEFAULTS
PIXELS = Pixels((1, 28, 28), 255, mean=(0.1736,), std=(0.3317,))
# Huang et al. (AAAI 2021): the digits' clients, the capital letters', the small letters'.
GROUPS = (
    Group(tuple(range(10)), clients=10, train=1000, test=100),
    Group(tuple(range(10, 36)), clients=26, train=700, test=100),
    Group(tuple(range(36, 62)), clients=26, train=400, test=100),
)
SUBSET = "emnist-byclass-subset"
NOTE = (
    "This EMNIST is 54,948 + 12,133 images of the official test part. The official files hold 697,932 + 116,323: with "
    "them, clients of an IID or pathological split have twelve times as many training samples."
)


def load(verify: bool = True) -> Source:
    return _read(need("emnist", verify))


@remembering
def _read(files: Files) -> Source:
    subset = f"{SUBSET}-train-images-idx3-ubyte.gz" in files
    kind = SUBSET if subset else "emnist-byclass"
    (x, y), (x_test, y_test) = (
        idx.samples(files[f"{kind}-{part}-images-idx3-ubyte.gz"], files[f"{kind}-{part}-labels-idx1-ubyte.gz"], 62)
        for part in ("train", "test")
    )
    if not subset:  # the official images lie on their side, mirrored
        x, x_test = x.mT.contiguous(), x_test.mT.contiguous()
    return Source(
        "emnist",
        x,
        y,
        classes=62,
        clients=62,
        groups=GROUPS,
        x_test=x_test,
        y_test=y_test,
        balanced=False,  # classes are of very different size: those of the subset too small to be dealt evenly
        preprocessing=PIXELS,
        class_names=tuple(digits + ascii_uppercase + ascii_lowercase),
        notes=(NOTE,) if subset else (),
    )
