"""EMNIST's practical split on made-up files in the official layout, large enough to deal every class alike."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from fedkin import FedkinError, data
from fedkin.data import load

TRAIN = np.concatenate([np.full(10, 700), np.full(26, 450), np.full(26, 330)]) + 2 * np.arange(62)
"""Images of each class: more of a digit than of a letter, and no two classes of one size."""
DOMINATING = (range(10), range(10, 36), range(36, 62))


def write(folder: Path, part: str, counts: np.ndarray) -> None:
    labels = np.repeat(np.arange(62, dtype=np.uint8), counts)
    images = np.zeros((len(labels), 28, 28), dtype=np.uint8)
    for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
        head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        name = f"emnist-byclass-{part}-{kind}-ubyte.gz"
        (folder / name).write_bytes(gzip.compress(head + array.tobytes(), 1))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    (tmp_path / "emnist").mkdir()
    write(tmp_path / "emnist", "train", TRAIN)
    write(tmp_path / "emnist", "test", np.full(62, 70))
    return tmp_path / "emnist"


def spread(counts: torch.Tensor) -> int:
    return int(counts.max() - counts.min())


def test_uniform_over_classes_deals_every_class_alike_and_the_default_by_samples(folder: Path) -> None:
    """Half of the paper's clients: 80 % uniformly from the group's classes, 20 % uniformly from all others."""
    dealt = {}
    for classes in ("uniform", "default"):
        federation = load("emnist", "practical", clients=31, verify=False, classes=classes)
        spreads = []
        for client in federation.clients:
            assert client.group is not None
            inside = torch.zeros(62, dtype=torch.bool)
            inside[list(DOMINATING[client.group])] = True
            sizes = (1000, 700, 400)[client.group], 100
            for (_, y), size in zip((client.train, client.test), sizes, strict=True):
                counts = torch.bincount(y, minlength=62)
                assert (int(counts[inside].sum()), int(counts.sum())) == (round(0.8 * size), size)
                spreads += [spread(counts[inside]), spread(counts[~inside])]
        dealt[classes] = max(spreads)
    assert dealt["uniform"] == 1 < 5 < dealt["default"]


def test_a_class_that_has_too_few_is_named(folder: Path) -> None:
    few = TRAIN.copy()
    few[61] = 100
    write(folder, "train", few)
    said = r"data\.classes = 'uniform' cannot be had of these files of emnist\. Too few samples of class 61 in"
    with pytest.raises(FedkinError, match=said):
        load("emnist", "practical", clients=31, verify=False, classes="uniform")
    assert len(load("emnist", "practical", clients=31, verify=False)) == 31


def test_only_splits_by_groups_can_be_uniform_over_classes(folder: Path) -> None:
    with pytest.raises(data.UnknownData, match="is for the practical and relabelled splits, not for 'iid'"):
        load("emnist", "iid", verify=False, classes="uniform")
