"""Random numbers by name: a stream depends on the seed, the client's name, the round and the purpose, on nothing else.

So results do not change with the order, stacking, chunking or distribution of clients, and a resumed run needs no
saved generator.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def number(*parts: int | str) -> int:
    """A 63-bit number from a list of words and numbers; the same on every machine and in every Python."""
    text = "\x1f".join(f"{type(p).__name__}:{p}" for p in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """A torch generator, always on the CPU, so that a GPU run draws what a CPU run draws."""
    return torch.Generator().manual_seed(number(*parts))


def numpy_generator(*parts: int | str) -> np.random.Generator:
    return np.random.default_rng(number(*parts))


def chance(seed: int, name: str, round: int, purpose: str) -> float:
    """A uniform number in [0, 1) for one client, round and purpose (dropping, sampling, losing uploads)."""
    return number(seed, name, round, purpose) / 2**63
