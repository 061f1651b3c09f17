"""A table's rows: whose each is, and what for: training, validation or testing, as given or by lot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import MOST, Rows, look_alikes, some
from .federation import FederationError
from .parts import Purpose, stratified_part, too_small
from .subjects import Subjects
from .table import Table

TEST_FRACTION, VALIDATION = 0.25, 0.1
"""The shares that are set aside where nobody says another."""


@dataclass(frozen=True)
class Parts:
    """The numbers of a client's rows: for training, for validation and for testing."""

    train: Rows
    validation: Rows
    test: Rows


@dataclass(frozen=True, eq=False)
class Dealt:
    """A table and whose its rows are. owners: (n,) names of clients; given: (n,) "test" or "validation" where a row is
    given for that, else ""."""

    table: Table
    owners: NDArray[np.str_]
    given: NDArray[np.str_]

    @cached_property
    def codes(self) -> Rows:
        """(n,) the number of each row's client, in the order of their names."""
        return np.unique(self.owners, return_inverse=True)[1].astype(np.int64)

    @cached_property
    def own(self) -> dict[str, Rows]:
        """Each client's rows, in rising order; clients in the order of their names."""
        ends = np.cumsum(np.bincount(self.codes))[:-1]
        rows = np.split(np.argsort(self.codes, kind="stable"), ends)
        return dict(zip(np.unique(self.owners).tolist(), rows, strict=True))

    @property
    def sizes(self) -> dict[str, int]:
        return {client: len(rows) for client, rows in self.own.items()}

    def parts(
        self,
        test_fraction: float,
        validation: float,
        seed: int,
        strata: Rows | None,
        found: Subjects | None,
    ) -> dict[str, Parts]:
        """Each client's rows, as given or by lot; clients in the order of their names. strata: (n,) labels of which
        every part is to have its share; found: whose rows have to stay together."""
        if not 0 < test_fraction < 1:
            raise FederationError(f"test_fraction is {test_fraction}, but has to lie between 0 and 1, both excluded.")
        if not 0 <= validation < 1:
            raise FederationError(f"validation is {validation}, but has to be at least 0 and below 1.")

        def cut(rows: Rows, share: float, client: str, purpose: Purpose) -> tuple[Rows, Rows]:
            labels = np.zeros(len(rows)) if strata is None else strata[rows]
            groups = None if found is None else found.codes[rows]
            rest, held = stratified_part(labels, groups, share, seed, client, purpose)
            return rows[rest.numpy()], rows[held.numpy()]

        parts, lacking = {}, dict[str, str]()
        tested, validated = (bool((self.given == part).any()) for part in ("test", "validation"))
        for client, every in self.own.items():
            own, held, test = (every[self.given[every] == part] for part in ("", "validation", "test"))
            if tested and not (len(own) and len(test)):
                lacking[client] = f"{client!r} has {len(own)} for training and {len(test)} for testing"
                continue
            if not tested:
                alone = found is not None and len(np.unique(found.codes[own])) < 2 <= len(own)
                if len(own) < 2 or alone:
                    of_one = f" of one {found.column}" if found is not None and alone else ""
                    lacking[client] = f"{client!r} has {len(own)} in all{of_one}"
                    continue
                own, test = cut(own, test_fraction, client, "test part")
            if not validated:
                own, held = cut(own, validation, client, "validation part")
            parts[client] = Parts(own, held, test)
            if found is not None:
                sides = {"training": own, "validation": held, "testing": test}
                found.refuse_both_sides(self.table, client, sides)
        if lacking:
            more = f"; {len(lacking) - MOST} more clients have too few" if len(lacking) > MOST else ""
            listed = ", ".join(list(lacking.values())[:MOST])
            alike = look_alikes(Counter(self.sizes), lacking)
            hints = [f" {alike[client]}" for client in lacking if client in alike]
            raise FederationError(
                f"A client needs at least one row for training and one for testing: {listed}{more}. "
                f"Give more rows, or leave the client's out.{''.join(hints[:MOST])}"
            )
        return parts

    def notes(
        self, parts: Mapping[str, Parts], test_fraction: float, validation: float, labels: NDArray[Any] | None
    ) -> list[str]:
        """What is without effect as rows are given, and whether those kept for validation are enough to choose by.

        labels: (n,) classes, where there are some.
        """
        tested, given = (bool((self.given == part).any()) for part in ("test", "validation"))
        told = []
        if tested and test_fraction != TEST_FRACTION:
            told.append(f"data.test_fraction = {test_fraction} has no effect: the rows to test on are given.")
        if given and validation not in (VALIDATION, 0):
            told.append(f"data.validation = {validation} has no effect: the validation rows are given.")
        if not given and not validation:
            return told
        lacking = [client for client, part in parts.items() if given and not len(part.validation)]
        if lacking:
            told.append(f"Validation rows are given, but none of {some(lacking)}.")
        known = np.zeros(len(self.table)) if labels is None else labels
        held = {c: known[p.validation] for c, p in parts.items() if c not in lacking}
        trained = None if labels is None else {c: known[p.train] for c, p in parts.items()}
        return told + too_small(held, trained, given)
