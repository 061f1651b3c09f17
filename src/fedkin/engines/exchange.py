"""What passes between the server and a site: named tensors and a few numbers, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from ..base.round import Round
from ..base.state import Message, State, Upload
from .scores import Found, joined


@dataclass(frozen=True, repr=False)
class Hello:
    """What a site says of its clients before the first round: counts and what the initial model comes to, no data."""

    clients: list[int]
    validation: Tensor
    """(k,) validation samples."""
    telling: Tensor
    """(k,) those of them that say something: of survival, with the event."""
    losses: Tensor
    """(k,) the initial model's loss on training samples: what is far beyond it has exploded."""
    initial: Found
    """The initial model's scores, where some clients may not be reached in the first round; else nothing."""


@dataclass(frozen=True, repr=False)
class Parcel:
    """An exchange, down: what the server sends to some clients, and what they are to do with it.

    Rows of the message are those of `clients`, numbers in the problem.
    """

    round: Round
    message: Message
    clients: list[int]
    train: list[int]
    score: list[int]
    epochs: int = 1
    """Times the usual local training (newcomers)."""
    sent: bool = True
    """Whether what was trained is sent back."""
    spare: bool = False
    """Whether those whose training diverged are left out of the scoring: they have scores to carry forward."""
    bounds: tuple[float, ...] = ()
    """Of each of `clients` the loss beyond which its training has exploded."""
    save: bool = False
    """Whether the model that each client should use is saved."""
    chosen: bool = False
    """Whether these are not the models of now, but of the rounds that validation data chose."""
    ahead: dict[str, float] = field(default_factory=dict)
    """By how much each model is ahead of the headline over all clients, where that is clear."""

    @property
    def bytes(self) -> int:
        return len(self.clients) * self.message.bytes_per_client()

    def rows(self, clients: Sequence[int]) -> Message:
        """What some of them got: a copy, as a method may write into it."""
        return self.message.take(self._places(clients)).for_clients(len(clients))

    def _places(self, clients: Sequence[int]) -> Tensor:
        """The rows of some clients, where the message lies."""
        rows = {client: row for row, client in enumerate(self.clients)}
        device = next((tensor.device for _, tensor in self.message.items()), torch.device("cpu"))
        return torch.tensor([rows[c] for c in clients], device=device, dtype=torch.long)

    def of(self, clients: Sequence[int]) -> Parcel:
        """The part of some clients."""
        mine = [c for c in self.clients if c in set(clients)]
        places = self._places(mine)
        return Parcel(
            round=self.round,
            message=self.message.take(places),
            clients=mine,
            train=[c for c in self.train if c in mine],
            score=[c for c in self.score if c in mine],
            epochs=self.epochs,
            sent=self.sent,
            spare=self.spare,
            bounds=tuple(self.bounds[i] for i in places.tolist()),
            save=self.save,
            chosen=self.chosen,
            ahead=self.ahead,
        )


@dataclass(frozen=True, repr=False)
class Handed:
    """What a site says of the models it has saved."""

    withheld: list[int] = field(default_factory=list)
    """Clients all of whose models have exploded: they are handed none."""
    clients: list[int] = field(default_factory=list)
    untrained: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """What needs no federation scores at each of `clients`, by name."""


@dataclass(frozen=True, repr=False)
class Reply:
    """An exchange, up. Rows of the upload, and losses, are those of the parcel's `train`."""

    train: list[int]
    upload: Upload
    losses: Tensor
    """(k,) mean training losses."""
    good: list[bool]
    """Whether a client's training came to a finite end; of others the upload says nothing."""
    scored: list[int]
    found: Found
    gradients: int = 0
    passes: int = 0
    aside: float = 0.0
    """Seconds that were no part of the round."""
    handed: Handed | None = None


@dataclass(frozen=True)
class News:
    """What the server knows when a round has ended; a site hears it at once, or with the next parcel."""

    held: dict[int, int]
    """Of each client the round of its last upload that the server holds."""
    keep: tuple[str, ...] = ()
    """Models of which this round's are the ones to keep, as validation data have it so far."""


def joined_replies(parts: Sequence[Reply], parcel: Parcel) -> Reply:
    """One reply of several sites', in the order of the parcel."""
    trained = [c for part in parts for c in part.train]
    order = torch.tensor([trained.index(c) for c in parcel.train], dtype=torch.long)
    uploads = [part.upload for part in parts if part.upload]
    upload = State()
    if uploads:
        upload = State.join(uploads)
        if order.tolist() != list(range(len(order))):
            upload = upload.take(order)
    scored = [c for part in parts for c in part.scored]
    at = sorted(range(len(scored)), key=lambda i: scored[i])
    found = joined([part.found for part in parts if part.found])
    good = [fine for part in parts for fine in part.good]
    handed = [part.handed for part in parts if part.handed is not None]
    return Reply(
        train=list(parcel.train),
        upload=upload,
        losses=torch.cat([part.losses for part in parts])[order],
        good=[good[i] for i in order.tolist()],
        scored=[scored[i] for i in at],
        found={book: {n: each[at] for n, each in models.items()} for book, models in found.items()},
        gradients=sum(part.gradients for part in parts),
        passes=sum(part.passes for part in parts),
        aside=max((part.aside for part in parts), default=0.0),
        handed=joined_hands(handed) if handed else None,
    )


def joined_hands(parts: Sequence[Handed]) -> Handed:
    clients = [c for part in parts for c in part.clients]
    names = dict.fromkeys(name for part in parts for name in part.untrained)
    nothing = float("nan")
    scores = {
        name: [s for part in parts for s in part.untrained.get(name, (nothing,) * len(part.clients))] for name in names
    }
    order = sorted(range(len(clients)), key=lambda i: clients[i])
    return Handed(
        withheld=sorted(c for part in parts for c in part.withheld),
        clients=[clients[i] for i in order],
        untrained={name: tuple(each[i] for i in order) for name, each in scores.items()},
    )


def joined_hellos(parts: Sequence[Hello]) -> Hello:
    clients = [c for part in parts for c in part.clients]
    order = torch.tensor(sorted(range(len(clients)), key=lambda i: clients[i]), dtype=torch.long)
    found = joined([part.initial for part in parts if part.initial])
    return Hello(
        clients=sorted(clients),
        validation=torch.cat([part.validation for part in parts])[order],
        telling=torch.cat([part.telling for part in parts])[order],
        losses=torch.cat([part.losses for part in parts])[order],
        initial={book: {n: each[order] for n, each in models.items()} for book, models in found.items()},
    )


# ---- as bytes ----


def to_bytes(what: Hello | Parcel | Reply | Handed | News) -> bytes:
    """As a safetensors file, whose metadata hold everything that is no tensor."""
    tensors: dict[str, Tensor] = {}
    told = {"kind": type(what).__name__, **{name: _told(value, name, tensors) for name, value in vars(what).items()}}
    apart = {n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}  # no two may share their memory
    return bytes(save(apart, {"told": json.dumps(told)}))


def from_bytes(content: bytes, device: torch.device | None = None) -> Any:
    """What `to_bytes` was given; nothing in it can run code."""
    length = int.from_bytes(content[:8], "little")
    told = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["told"])
    tensors = {n: t if device is None else t.to(device) for n, t in load(content).items()}
    kinds: dict[str, Any] = {kind.__name__: kind for kind in (Hello, Parcel, Reply, Handed, News)}
    kind = kinds[told.pop("kind")]
    return kind(**{name: _read(value, tensors) for name, value in told.items()})


def _told(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON; its tensors go beside it, under their path."""
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"tensor": path}
    if isinstance(value, State):
        own = {name: f"{path}/{name}" for name in value}
        tensors |= {own[name]: tensor for name, tensor in value.items()}
        return {"state": own, "shared": sorted(value.shared)}
    if isinstance(value, Round):
        return {"round": [value.number, value.of]}
    if isinstance(value, Handed):
        return {"handed": {name: _told(own, f"{path}/{name}", tensors) for name, own in vars(value).items()}}
    if isinstance(value, dict):
        return {"dict": [[key, _told(own, f"{path}/{key}", tensors)] for key, own in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_told(own, f"{path}/{i}", tensors) for i, own in enumerate(value)]}
    return value  # lists of numbers, numbers, words, None


def _read(told: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(told, dict):
        return told
    ((kind, value),) = [(k, v) for k, v in told.items() if k != "shared"]
    if kind == "tensor":
        return tensors[value]
    if kind == "state":
        once = {name: tensors[path] for name, path in value.items() if name in told["shared"]}
        return State(once, **{name: tensors[path] for name, path in value.items() if name not in once})
    if kind == "round":
        return Round(*value)
    if kind == "handed":
        return Handed(**{name: _read(own, tensors) for name, own in value.items()})
    if kind == "dict":
        return {key: _read(own, tensors) for key, own in value}
    return tuple(_read(own, tensors) for own in value)
