"""Named tensors with the client as first dimension: what servers keep, what travels, and what clients remember."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor


class State:
    """Named tensors. Each has the client as its first dimension, but for those in `shared`, which are the same for
    all clients and kept once (FedAvg's w, SCAFFOLD's c).

    Engines send, save and restore any state without knowing the method that made it.
    """

    __slots__ = ("_tensors", "shared")
    shared: frozenset[str]
    _tensors: dict[str, Tensor]

    def __init__(self, shared: Mapping[str, Tensor] | None = None, /, **rows: Tensor) -> None:
        once = dict(shared or {})
        self.shared = frozenset(once)
        self._tensors = {**rows, **once}

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_"):  # asked by copy and pickle before there are tensors
            raise AttributeError(name)
        try:
            return self._tensors[name]
        except KeyError:
            have = ", ".join(self._tensors) or "nothing"
            raise AttributeError(f"This state has no tensor {name!r}; it has {have}.") from None

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __bool__(self) -> bool:
        return bool(self._tensors)

    def __repr__(self) -> str:
        inner = ", ".join(f"{'*' if n in self.shared else ''}{n}{tuple(t.shape)}" for n, t in self._tensors.items())
        return f"State({inner})"

    def items(self) -> Iterable[tuple[str, Tensor]]:
        return self._tensors.items()

    def _rebuilt(self, tensors: Mapping[str, Tensor]) -> State:
        return State(
            {n: t for n, t in tensors.items() if n in self.shared},
            **{n: t for n, t in tensors.items() if n not in self.shared},
        )

    def replace(self, **tensors: Tensor) -> State:
        """The same state with some tensors exchanged or added; a name keeps its being shared or not."""
        return self._rebuilt({**self._tensors, **tensors})

    def take(self, clients: Tensor | slice) -> State:
        """The rows of some clients: a copy, or a view of those in a slice; shared tensors as they are."""
        return self._rebuilt({n: t if n in self.shared else t[clients] for n, t in self.items()})

    def put(self, clients: Tensor | slice, other: State) -> None:
        """Writes another state's rows over those of some clients."""
        for name, tensor in self.items():
            if name in self.shared:
                tensor.copy_(other._tensors[name])
            else:
                tensor[clients] = other._tensors[name]

    def for_clients(self, count: int) -> State:
        """As `count` clients see it: shared tensors expanded, never repeated, so that all have the client first."""
        return State(**{n: t.expand(count, *t.shape) if n in self.shared else t for n, t in self.items()})

    def to(self, device: torch.device, copy: bool = False) -> State:
        return self._rebuilt({n: t.to(device, copy=copy) for n, t in self.items()})

    def finite(self, count: int) -> Tensor:
        """(count,) whether everything a client has here is finite."""
        good = torch.ones(count, dtype=torch.bool)
        for name, tensor in self.items():
            if tensor.is_floating_point() and name not in self.shared and tensor[:1].numel():
                lowest, highest = tensor[:, None].flatten(1).aminmax(dim=1)  # NaN if any is; needs no further memory
                good &= (lowest.isfinite() & highest.isfinite()).cpu()
        return good

    def bytes_per_client(self) -> int:
        """What one client's part weighs on the wire; a shared tensor has to reach every client."""
        total = 0
        for name, tensor in self.items():
            numbers = tensor.numel() if name in self.shared else tensor[:1].numel()
            total += numbers * tensor.element_size()
        return total

    def room_for(self, count: int) -> State:
        """The same names with space for the rows of `count` clients, yet to be put there; shared tensors are copied."""
        return self._rebuilt(
            {n: t.clone() if n in self.shared else t.new_empty(count, *t.shape[1:]) for n, t in self.items()}
        )

    @staticmethod
    def join(parts: list[State]) -> State:
        """Clients of several states below each other; shared tensors are taken from the first."""
        first = parts[0]
        if len(parts) == 1:
            return first
        return first._rebuilt(
            {n: t if n in first.shared else torch.cat([p._tensors[n] for p in parts]) for n, t in first.items()}
        )


# Four words for the four places in which a state lives.
Server = State
Message = State
Upload = State
Memory = State
