"""Data sets by name, and how they are dealt to clients. A file a source: `data/digits.py` is data set `digits`."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from .. import streams
from ..errors import FedkinError
from ..federation import Client, Federation
from ..preprocessing import TableSettings
from ..task import Task
from . import split as splitting
from .source import Source

HELPERS = {"source", "split", "corrupt", "graphs", "files", "fetch", "idx", "tables"}
SPLITS = ("iid", "pathological", "practical", "dirichlet", "natural", "relabelled")


class UnknownData(FedkinError):
    """There is no such data set or split; the sentence names the nearest."""


def names() -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in HELPERS)


def source(name: str) -> Source:
    """The samples of a data set and its defaults."""
    if name not in names():
        near = difflib.get_close_matches(name.lower(), names(), 1, 0.4)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise UnknownData(f"There is no data set {name!r}. {hint}Known are {', '.join(names())}.")
    return importlib.import_module(f"{__name__}.{name}").load()  # type: ignore[no-any-return]


def defaults(name: str) -> dict[str, Any]:
    """The settings with which a data set is run unless told otherwise, without reading its files."""
    source_names = names()
    if name not in source_names:
        source(name)
    return dict(importlib.import_module(f"{__name__}.{name}").DEFAULTS)


def load(
    name: str,
    split: str = "practical",
    *,
    clients: int | None = None,
    seed: int = 0,
    alpha: float = 0.3,
    classes_per_client: int = 2,
    dominating: float = 0.8,
    test_fraction: float = 0.25,
    shift: int = 2,
    validation: float = 0.1,
    verify: bool = True,
    digest: str | None = None,
    table: TableSettings | None = None,
) -> Federation:
    """A federation: a data set dealt to clients.

    `split`: iid; pathological (few classes a client); practical (groups with dominating classes); dirichlet; natural
    (the data's own owners); relabelled (practical, and group g's label is (y + shift g) mod classes: concept shift).
    """
    if split not in SPLITS:
        near = difflib.get_close_matches(split.lower(), SPLITS, 1, 0.4)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise UnknownData(f"There is no split {split!r}. {hint}Known are {', '.join(SPLITS)}.")
    data = source(name)
    rng = streams.numpy_generator(seed, name, split)
    labels = data.y.numpy()
    test_labels = None if data.y_test is None else data.y_test.numpy()
    count = data.clients if clients is None else clients
    own_names = None
    if split == "iid":
        shares = splitting.iid(labels, count, rng, test_fraction=test_fraction, test_labels=test_labels)
    elif split == "pathological":
        shares = splitting.pathological(
            labels,
            count,
            rng,
            classes_per_client=classes_per_client,
            test_fraction=test_fraction,
            test_labels=test_labels,
        )
    elif split == "dirichlet":
        shares = splitting.dirichlet(
            labels, count, rng, alpha=alpha, test_fraction=test_fraction, test_labels=test_labels
        )
    elif split == "natural":
        if data.owners is None:
            raise UnknownData(f"Data set {name!r} does not say whose its samples are: it has no natural split.")
        own_names, shares = splitting.natural(data.owners, rng, test_fraction=test_fraction)
    else:
        groups = _groups(data, count)
        shares = splitting.practical(
            labels, groups, rng, dominating=dominating, balanced=data.balanced, test_labels=test_labels
        )
    width = max(2, len(str(len(shares) - 1)))
    members = []
    for i, share in enumerate(shares):
        x_test, y_test = (data.x, data.y) if data.x_test is None or data.y_test is None else (data.x_test, data.y_test)
        train = (data.x[share.train], data.y[share.train])
        test = (x_test[share.test], y_test[share.test])
        if split == "relabelled" and share.group is not None:
            train, test = (
                (x, torch.from_numpy(splitting.relabel(y.numpy(), np.full(len(y), share.group), data.classes, shift)))
                for x, y in (train, test)
            )
        named = own_names[i] if own_names else f"silo-{i:0{width}d}"
        members.append(Client(named, train, test, group=share.group))
    task = Task.classification(tuple(data.x.shape[1:]), data.classes)
    return Federation(name, tuple(members), task, split=split)


def _groups(data: Source, clients: int) -> list[splitting.Group]:
    """The data set's practical table, its groups resized to this number of clients."""
    if not data.groups:
        raise UnknownData(f"Data set {data.name!r} has no table of groups: it has no practical or relabelled split.")
    table = sum(g.clients for g in data.groups)
    if clients == table:
        return list(data.groups)
    if clients % len(data.groups) or len({g.clients for g in data.groups}) > 1:
        raise UnknownData(
            f"The practical split of {data.name!r} has {len(data.groups)} groups of {data.groups[0].clients} clients; "
            f"{clients} clients cannot be dealt to them equally. Take a multiple of {len(data.groups)}."
        )
    return [replace(g, clients=clients // len(data.groups)) for g in data.groups]
