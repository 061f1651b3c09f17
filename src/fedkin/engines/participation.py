"""Who takes part in a round: by lot of names, so that the order of clients does not matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..base import streams
from ..evidence.records import Line
from ..runs.config import Participation


@dataclass(frozen=True)
class Attendance:
    """Draws, for each round, who is dropped, who is sampled and whose upload gets lost.

    In exchanges before round 1, which are not counted, nobody is spared and nothing is lost.
    """

    settings: Participation
    names: tuple[str, ...]
    seed: int
    silent: frozenset[int] = frozenset()
    """Clients that never train."""

    def reached(self, round: int) -> list[int]:
        """Clients that are not dropped: a random share of all; at least one is reached."""
        everyone = range(len(self.names))
        if round < 1:
            return list(everyone)
        count = min(round_half_up(self.settings.dropped * len(self.names)), len(self.names) - 1)
        dropped = set(self._lots(everyone, round, "dropped")[:count])
        return [c for c in everyone if c not in dropped]

    def sampled(self, reached: list[int], round: int) -> list[int]:
        """Those of the reached that train: a random share, less the silent."""
        count = max(1, round_half_up(self.settings.sample * len(reached))) if round >= 1 else len(reached)
        return sorted(c for c in self._lots(reached, round, "sampled")[:count] if c not in self.silent)

    def loses(self, client: int, round: int) -> bool:
        """Whether this client's upload never arrives."""
        return round >= 1 and streams.chance(self.seed, self.names[client], round, "lost upload") < self.settings.lost

    def behind(self, last: Line) -> list[int]:
        """Clients that did not train in that round, or not to a finite end; the silent do not train at all."""
        trained = set(last.participants) - set(last.diverged)
        return [c for c, name in enumerate(self.names) if name not in trained and c not in self.silent]

    def _lots(self, clients: Sequence[int], round: int, purpose: str) -> list[int]:
        names = self.names
        return sorted(clients, key=lambda c: (streams.chance(self.seed, names[c], round, purpose), names[c]))


def round_half_up(value: float) -> int:
    return int(value + 0.5)
