"""The mixed world: some clients agree, some form groups with other labels, and some resemble nobody.

What a silo meets in practice: most others mean the same by a label but have other classes in plenty, a few have a
convention of their own in common, and a loner's labels are nobody else's. Who joins such a federation should gain, or
at least lose nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from .source import Source
from .split import Group, Numbers, Share, SplitError, practical

SKEWS = 3
"""Parts of the classes, each of which dominates with a third of those that agree."""
DRAWS = 1000


@dataclass(frozen=True)
class Kinds:
    """How many clients agree, are relabelled and are alone; given as parts, which need not add up to anything."""

    agreeing: float
    relabelled: float
    lone: float

    def of(self, clients: int) -> tuple[int, int, int]:
        """Whole numbers, by largest remainders."""
        parts = np.array([self.agreeing, self.relabelled, self.lone], dtype=float)
        if parts.sum() <= 0:
            raise SplitError("The mixed split needs clients of some kind: data.agreeing, relabelled or lone above 0.")
        exact = parts / parts.sum() * clients
        counts = np.floor(exact).astype(int)
        for i in np.argsort(counts - exact, kind="stable")[: clients - counts.sum()]:
            counts[i] += 1
        return int(counts[0]), int(counts[1]), int(counts[2])


def deal(
    data: Source, clients: int, kinds: Kinds, rng: Generator, *, shift: int, dominating: float, test_fraction: float
) -> tuple[list[Share], list[Numbers]]:
    """Each client's share, and (classes,) its labels' new names: a sample of class c has the label names[c] there.

    Groups are the truth about labels: those that agree are one group, whatever their classes; each relabelled
    convention is one; each loner is one by itself. Every client has as many samples as the data set's practical table
    gives on average, or as the pool allows.
    """
    agreeing, relabelled, lone = kinds.of(clients)
    train, test = _sizes(data, clients, test_fraction)
    cuts = np.array_split(np.arange(data.classes), min(SKEWS, max(1, data.classes // 2), max(1, agreeing)))
    members = [len(part) for part in np.array_split(np.arange(agreeing), len(cuts))]
    groups = [
        Group(tuple(map(int, cut)), count, train, test, None if len(cuts) > 1 else 1.0)
        for cut, count in zip(cuts, members, strict=True)
        if count
    ]
    if relabelled + lone:
        groups.append(Group(tuple(range(data.classes)), relabelled + lone, train, test, 1.0))
    labels = data.y.numpy()
    tested = None if data.y_test is None else data.y_test.numpy()
    shares = practical(labels, groups, rng, dominating=dominating, balanced=False, test_labels=tested)
    others = [len(part) for part in np.array_split(np.arange(relabelled), 2 if relabelled > 3 else 1) if len(part)]
    of_clients = [0] * agreeing + [1 + g for g, count in enumerate(others) for _ in range(count)]
    of_clients += [1 + len(others) + i for i in range(lone)]
    names = conventions(data.classes, len(others), lone, shift, rng)
    dealt = [Share(share.train, share.test, group) for share, group in zip(shares, of_clients, strict=True)]
    return dealt, [names[group] for group in of_clients]


def conventions(classes: int, relabelled: int, lone: int, shift: int, rng: Generator) -> list[Numbers]:
    """(classes,) label names for each group: the usual ones, (y + shift g) mod classes, and a loner's own by lot.

    No two agree about more than a quarter of the classes.
    """
    found = [(np.arange(classes) + shift * g) % classes for g in range(1 + relabelled)]
    if any(_alike(a, b) for i, a in enumerate(found) for b in found[:i]):
        raise SplitError(
            f"With data.shift = {shift}, relabelled groups of {classes} classes have the same labels. Take a shift of "
            "which no small multiple is a multiple of the number of classes."
        )
    for _ in range(lone):
        for _ in range(DRAWS):
            own = rng.permutation(classes)
            if not any(_alike(own, other) for other in found):
                found.append(own)
                break
        else:
            raise SplitError(
                f"{classes} classes are too few for {lone} loners, none of whom agrees with anyone. Take fewer "
                "(data.lone), or a data set with more classes."
            )
    return found


def _alike(a: Numbers, b: Numbers) -> bool:
    return bool(np.sum(a == b) > len(a) // 4)


def _sizes(data: Source, clients: int, test_fraction: float) -> tuple[int, int]:
    """Training and test samples of each client: the practical table's means where the pool has that many."""
    pool = len(data.y) // clients
    test = max(1, round(test_fraction * pool)) if data.y_test is None else len(data.y_test) // clients
    train = pool - test if data.y_test is None else pool
    if data.groups:
        number = sum(g.clients for g in data.groups)
        usual = sum(g.clients * g.train for g in data.groups) // number
        tested = sum(g.clients * g.test for g in data.groups) // number
        if data.y_test is not None:
            train, test = min(train, usual), min(test, tested)
        elif usual + tested <= pool:
            train, test = usual, tested
    if min(train, test) < 1:
        raise SplitError(f"{len(data.y)} samples are too few for {clients} clients. Ask for fewer (data.clients).")
    return train, test
