"""Labels made wrong on purpose: dirty labels (Huang et al., preprint, section 4.3) and label-flipping clients.

Training and validation labels alone; test labels stay clean. Who is hit and which labels are lies depends on the seed
and the client's name, and the lots are nested: at a higher level the same clients and labels are wrong, and more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ..base import streams
from .federation import Client, Federation, FederationError

Kind = Literal["dirty", "random", "flip", "silent"]


def corrupt(
    federation: Federation, *, labels: float, clients: float = 0.4, kind: Kind = "dirty", seed: int = 0
) -> Federation:
    """A federation in which a share `clients` of the clients has a share `labels` of its training labels made wrong.

    kind: `dirty`, another class drawn uniformly; `random`, any class drawn uniformly (so a label may stay what it is);
    `flip`, class y becomes C - 1 - y. Targets of a regression are exchanged among those hit (dirty), drawn from the
    client's own (random), or mirrored at their mean (flip); those of survival too, where mirrored times are those of
    who lived longest for those of who lived shortest. `silent` tells no lies: those hit never train, whatever
    `labels` is above 0. floor(clients * m) clients are hit, spread evenly over the known groups.
    """
    hit = set(chosen(federation, clients, seed))
    if labels == 0:
        return federation
    if kind == "silent" and len(hit) == len(federation):
        raise FederationError("With corruption.kind = 'silent' every client would be silent, and nobody would train.")
    members = [_corrupted(c, federation, labels, kind, seed) if c.name in hit else c for c in federation.clients]
    return replace(federation, clients=tuple(members))


def chosen(federation: Federation, share: float, seed: int) -> list[str]:
    """The names of those hit: lots decide inside each group, and no group is passed over while another is hit twice."""
    lot = {c.name: streams.number(seed, c.name, "corrupted") for c in federation.clients}
    groups: dict[int | None, list[str]] = {}
    for client in federation.clients:
        groups.setdefault(None if federation.groups is None else client.group, []).append(client.name)
    # The i-th of a group of n stands at (i + 1/2) / n of the queue: any beginning of it is spread over the groups.
    queue = []
    for members in groups.values():
        for place, name in enumerate(sorted(members, key=lambda n: lot[n])):
            queue.append(((place + 0.5) / len(members), lot[name], name))
    return [name for *_, name in sorted(queue)[: int(share * len(federation) + 1e-9)]]


def _corrupted(client: Client, federation: Federation, share: float, kind: Kind, seed: int) -> Client:
    if kind == "silent":
        return replace(client, corrupted=True, silent=True)
    parts = [client.train] if client.validation is None else [client.train, client.validation]
    y = torch.cat([y for _, y in parts])
    order = torch.randperm(len(y), generator=streams.generator(seed, client.name, 0, "corrupted labels"))
    at = order[: int(share * len(y) + 0.5)]
    source = streams.generator(seed, client.name, 0, f"corrupted labels/{kind}")
    wrong = {"classification": _classes, "regression": _numbers, "survival": _lives}[federation.task.kind]
    lies = y.clone()
    lies[at] = wrong(y, order, federation.task.outputs, kind, source)[: len(at)]
    cut = torch.split(lies, [len(y) for _, y in parts])
    pairs = [(x, new) for (x, _), new in zip(parts, cut, strict=True)]
    return replace(client, train=pairs[0], validation=pairs[1] if len(pairs) > 1 else None, corrupted=True)


def _classes(y: Tensor, order: Tensor, classes: int, kind: Kind, source: torch.Generator) -> Tensor:
    """Wrong labels for all samples in this order, so that a longer beginning holds the shorter one."""
    if kind == "flip":
        return classes - 1 - y[order]
    if kind == "random" or classes == 1:
        return torch.randint(classes, (len(y),), generator=source)
    return (y[order] + torch.randint(1, classes, (len(y),), generator=source)) % classes


def _numbers(y: Tensor, order: Tensor, outputs: int, kind: Kind, source: torch.Generator) -> Tensor:
    if kind == "flip":
        return 2 * y.nanmean(0) - y[order]
    if kind == "random":
        return y[torch.randint(len(y), (len(y),), generator=source)]
    return y[order.roll(1)]  # each gets the target of the one before it in the lot


def _lives(y: Tensor, order: Tensor, outputs: int, kind: Kind, source: torch.Generator) -> Tensor:
    """Times mirrored stay above 0, and an event stays one."""
    if kind == "flip":
        return torch.stack([y[:, 0].amin() + y[:, 0].amax() - y[order, 0], y[order, 1]], 1)
    return _numbers(y, order, outputs, kind, source)
