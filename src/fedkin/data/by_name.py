"""Data sets by name, and how they are dealt to clients. A file a source: `data/sets/digits.py` is data set `digits`."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import nn

from ..base import streams
from ..base.task import Task
from ..base.wording import did_you_mean
from ..errors import FedkinError
from . import from_tables, mixed, own, sets
from . import split as splitting
from .federation import Client, Federation
from .preprocessing import TableSettings
from .source import Source
from .table import SUFFIXES

SPLITS = ("iid", "pathological", "practical", "dirichlet", "natural", "relabelled", "mixed", "random", "chronological")
POOLED = SPLITS[:7]
"""Splits of a pool of samples; the others are of series in time."""
USED_BY = {
    "alpha": ("dirichlet",),
    "classes_per_client": ("pathological",),
    "dominating": ("practical", "relabelled", "mixed"),
    "shift": ("relabelled", "mixed"),
    **dict.fromkeys(("agreeing", "relabelled", "lone"), ("mixed",)),
}
"""The splits that a setting is for."""


class UnknownData(FedkinError):
    """There is no such data set or split; the sentence names the nearest."""


def names() -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules(sets.__path__))


def is_path(name: str) -> bool:
    """Whether it is the path of a table or of a folder, not the name of a data set."""
    return name not in names() and from_tables.is_table(name)


def is_table(name: str) -> bool:
    """Whether it is what `table` settings are about: the path of a table or a folder, or a data set such as heart."""
    return is_path(name) or hasattr(_module(name), "table")


def may_be_prepared(name: str) -> bool:
    """Whether inputs may be prepared by means and deviations: those of a table, and of whatever a function makes.
    Arrays are taken as they are."""
    if is_path(name):
        return from_tables.has_tables(Path(name).expanduser())
    return own.may_be_a_table(name) if ":" in name else is_table(name)


def settings_of(name: str) -> type[BaseModel] | None:
    """What settings of its own a data set has, or None where it has none and takes any (a user's own)."""
    if name not in names():
        return None
    kind: type[BaseModel] = getattr(_module(name), "Settings", NoSettings)
    return kind


def splits(name: str) -> tuple[str, ...]:
    """The splits that a data set of ours has, its usual one first."""
    own = getattr(_module(name), "SPLITS", ("natural",) if is_table(name) else None)
    return tuple(own) if own else ("practical", *(s for s in POOLED if s not in ("practical", "natural")))


def description(name: str) -> str:
    """What a data set of ours is, as its file says."""
    if name not in names():
        source(name)
    return inspect.getdoc(_module(name)) or ""


class NoSettings(BaseModel):
    """A data set without settings of its own."""


def located(name: str) -> str:
    """The name by which data is found from anywhere: of a path, the absolute one."""
    return from_tables.located(name) if is_path(name) else name


def digest(name: str) -> str | None:
    """SHA-256 of a user's own files; our data sets have checksums of their own."""
    return from_tables.digest_of(Path(name)) if is_path(name) else None


def short(name: str) -> str:
    """What people call it: patients, for /home/ada/patients.csv; for a file name, too."""
    return (Path(name).stem if Path(name).suffix in SUFFIXES else Path(name).name).replace(":", ".")


def source(name: str, verify: bool = True) -> Source:
    """The samples of a data set; `verify`: hold its files against their checksums."""
    if name not in names():
        hint = did_you_mean(name, names())
        raise UnknownData(f"There is no data set {name!r}. {hint}Known are {', '.join(names())}.")
    if hasattr(_module(name), "federate"):
        raise UnknownData(f"Data set {name!r} has clients of its own; fedkin.load gives its federation.")
    if not hasattr(_module(name), "load"):
        raise UnknownData(f"Data set {name!r} is a table, not a pool of samples; fedkin.load gives its federation.")
    return _module(name).load(verify)  # type: ignore[no-any-return]


def defaults(name: str) -> dict[str, Any]:
    """The settings with which a data set is run unless told otherwise, without reading its files."""
    if is_path(name):
        return dict(from_tables.DEFAULTS)
    if ":" in name:
        return own.defaults(name)
    source_names = names()
    if name not in source_names:
        source(name)
    return dict(importlib.import_module(f"{sets.__name__}.{name}").DEFAULTS)


def load(
    name: str,
    split: str | None = None,
    *,
    clients: int | None = None,
    seed: int = 0,
    alpha: float = 0.3,
    least: int = 8,
    classes_per_client: int = 2,
    dominating: float = 0.8,
    classes: str = "default",
    test_fraction: float = 0.25,
    shift: int = 2,
    agreeing: float = 12,
    relabelled: float = 8,
    lone: float = 3,
    validation: float = 0.1,
    verify: bool = True,
    digest: str | None = None,
    table: TableSettings | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Federation:
    """A federation: a data set dealt to clients.

    `split`: iid; pathological (few classes a client); practical (groups with dominating classes); dirichlet; natural
    (the data's own owners); relabelled (practical, and group g's label is (y + shift g) mod classes: concept shift);
    mixed (clients that agree, that are relabelled in two groups, and loners with labels of their own, in these parts).
    By default natural for tables, else practical. `classes`: "uniform" deals, inside both parts of a practical client,
    as many samples of every class, also of data whose classes are of different size, "drawn" as many as are drawn.
    `least`: training samples that a dirichlet split gives every client. `table`: how a table is read and
    prepared. Data sets that bring their clients (fl60, tpt48, metr_la) have splits of their own, random and
    chronological; `settings` are theirs.
    """
    if split is None:
        split = str(defaults(name).get("data", {}).get("split", "practical"))
    if split not in SPLITS:
        hint = did_you_mean(split, SPLITS)
        raise UnknownData(f"There is no split {split!r}. {hint}Known are {', '.join(SPLITS)}.")
    given = {"alpha": alpha, "classes_per_client": classes_per_client, "dominating": dominating, "shift": shift}
    told = _without_effect(split, {**given, "agreeing": agreeing, "relabelled": relabelled, "lone": lone})
    if is_table(name):
        _refuse_dealing(name, split, clients)
        parts: dict[str, Any] = {"seed": seed, "test_fraction": test_fraction, "validation": validation}
        if is_path(name):
            return _telling(from_tables.load(name, table or TableSettings(), digest=digest, **parts), told)
        chosen = table or TableSettings(**defaults(name)["table"])
        return _telling(from_tables.from_table(_module(name).table(verify), chosen, name=name, **parts), told)
    if hasattr(_module(name), "federate"):
        found = _federated(name, split, dict(settings or {}), seed=seed, clients=clients, verify=verify)
        return _telling(replace(found, split_seed=seed if split == "random" else None), told)
    if split not in POOLED:
        raise UnknownData(f"The split {split!r} is for series in time, and {short(name)} is none.")
    asked = {**(settings or {}), "seed": seed, "clients": clients, "test_fraction": test_fraction, "verify": verify}
    data = own.make(name, asked) if ":" in name else source(name, verify)
    if isinstance(data, Federation):
        _refuse_dealing(name, split, None)
        return _telling(data, told)
    if classes != "default":
        data = _dealt(data, split, classes)
    rng = streams.numpy_generator(seed, name, split)
    count = data.clients if clients is None else clients
    if split in ("practical", "relabelled"):
        groups = _groups(data, count)
        data = _filled(data, groups, dominating, rng) if data.balanced else data
    labels = data.y.numpy()
    test_labels = None if data.y_test is None else data.y_test.numpy()
    own_names, words = None, None
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
            labels, count, rng, alpha=alpha, test_fraction=test_fraction, test_labels=test_labels, least=least
        )
    elif split == "natural":
        if data.owners is None:
            raise UnknownData(f"Data set {name!r} does not say whose its samples are: it has no natural split.")
        own_names, shares = splitting.natural(data.owners, rng, test_fraction=test_fraction)
    elif split == "mixed":
        kinds = mixed.Kinds(agreeing, relabelled, lone)
        shares, words = mixed.deal(
            data, count, kinds, rng, shift=shift, dominating=dominating, test_fraction=test_fraction
        )
    else:
        try:
            shares = splitting.practical(
                labels, groups, rng, dominating=dominating, balanced=data.balanced, test_labels=test_labels
            )
        except splitting.SplitError as error:
            raise _not_uniform(name, error) if classes == "uniform" else error from None
        if split == "relabelled":
            names_of = np.arange(data.classes)
            words = [splitting.relabel(names_of, np.full_like(names_of, s.group), data.classes, shift) for s in shares]
    width = max(2, len(str(len(shares) - 1)))
    x_test, y_test = (data.x, data.y) if data.x_test is None or data.y_test is None else (data.x_test, data.y_test)
    if split == "natural":  # owners are those of the one pool, of which every client's own test part is cut
        x_test, y_test = data.x, data.y
    prepared = nn.Identity() if data.preprocessing is None else data.preprocessing.module()
    members = []
    for i, share in enumerate(shares):
        train = (prepared(data.x[share.train]), data.y[share.train])
        test = (prepared(x_test[share.test]), y_test[share.test])
        if words is not None:
            train, test = ((x, torch.from_numpy(words[i])[y]) for x, y in (train, test))
        named = own_names[i] if own_names else f"silo-{i:0{width}d}"
        tested = None
        if split == "natural":  # its samples are the same whatever the seed
            tested = torch.from_numpy(np.searchsorted(np.union1d(share.train, share.test), share.test))
        members.append(
            Client(named, train, test, group=share.group, preprocessing=data.preprocessing, test_rows=tested)
        )
    # Relabelled, a number means another class in every group.
    named_classes = data.class_names if words is None else ()
    task = Task.classification(tuple(members[0].train[0].shape[1:]), data.classes, named_classes)
    return Federation(name, tuple(members), task, split=split, notes=(*data.notes, *told), split_seed=seed)


def _without_effect(split: str, given: Mapping[str, float]) -> list[str]:
    """A sentence on each setting of another split that was changed here."""
    usual = inspect.signature(load).parameters
    return [
        f"data.{name} = {value} has no effect with the split {split!r}: it is for {' and '.join(USED_BY[name])}."
        for name, value in given.items()
        if value != usual[name].default and split not in USED_BY[name]
    ]


def _telling(federation: Federation, notes: Sequence[str]) -> Federation:
    return replace(federation, notes=(*federation.notes, *notes)) if notes else federation


def _federated(name: str, split: str, settings: dict[str, Any], **asked: Any) -> Federation:
    """A data set that brings its clients, and perhaps their graph."""
    module = _module(name)
    if split not in module.SPLITS:
        raise UnknownData(
            f"{name} has clients of its own and the split {' or '.join(map(repr, module.SPLITS))}, not {split!r}."
        )
    federation: Federation = module.federate(split=split, settings=settings_of(name)(**settings), **asked)  # type: ignore[misc]
    return federation


def _module(name: str) -> Any:
    """The file of a data set of ours, or None."""
    return importlib.import_module(f"{sets.__name__}.{name}") if name in names() else None


def _refuse_dealing(name: str, split: str, clients: int | None) -> None:
    if split != "natural":
        raise UnknownData(f"{short(name)} has clients of its own: leave out data.split = {split!r}, or say 'natural'.")
    if clients is not None:
        raise UnknownData(f"{short(name)} has clients of its own: leave out data.clients = {clients}.")


def _groups(data: Source, clients: int) -> list[splitting.Group]:
    """The data set's practical table, its groups resized in proportion to this number of clients."""
    if not data.groups:
        raise UnknownData(f"Data set {data.name!r} has no table of groups: it has no practical or relabelled split.")
    sizes = [g.clients for g in data.groups]
    step = sum(sizes) // math.gcd(*sizes)
    if clients % step:
        listed = str(sizes[0]) if len(set(sizes)) == 1 else f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}"
        raise UnknownData(
            f"The practical split of {data.name!r} has {len(sizes)} groups of {listed} clients; {clients} clients "
            f"cannot be dealt to them equally. Take a multiple of {step}."
        )
    return [replace(g, clients=g.clients * clients // sum(sizes)) for g in data.groups]


def _dealt(data: Source, split: str, classes: str) -> Source:
    """The data set with its classes dealt alike, or as they are drawn."""
    if split not in ("practical", "relabelled"):
        raise UnknownData(f"data.classes = {classes!r} is for the practical and relabelled splits, not for {split!r}.")
    return replace(data, balanced=classes == "uniform")


def _not_uniform(name: str, error: splitting.SplitError) -> splitting.SplitError:
    fault = str(error).partition(" Ask for ")[0]
    return splitting.SplitError(
        f"data.classes = 'uniform' cannot be had of these files of {short(name)}. {fault} Ask for fewer clients, or "
        "leave it out: then the frequencies of classes follow the data."
    )


def _filled(data: Source, groups: Sequence[splitting.Group], dominating: float, rng: np.random.Generator) -> Source:
    """Test images that a class lacks for the groups' needs, moved there from the training pool by lot.

    MNIST has 892 to 1,135 test images of a digit, and the papers' table takes 1,000 of each.
    """
    if data.x_test is None or data.y_test is None:
        return data
    need = np.zeros(data.classes)
    for g in groups:
        inside, own = np.isin(np.arange(data.classes), g.classes), round(dominating * g.test)
        need += g.clients * np.where(inside, own / inside.sum(), (g.test - own) / max(1, (~inside).sum()))
    lacking = np.ceil(need - 1e-6).astype(np.int64) - np.bincount(data.y_test, minlength=data.classes)
    if (lacking <= 0).all() or (lacking > np.bincount(data.y, minlength=data.classes)).any():
        return data  # enough, or hopelessly few: the split says so, with the numbers
    moved = [rng.permutation(np.flatnonzero(data.y == c))[:n] for c, n in enumerate(lacking) if n > 0]
    gone = np.sort(np.concatenate(moved))
    kept = np.setdiff1d(np.arange(len(data.y)), gone)
    return replace(
        data,
        x=data.x[kept],
        y=data.y[kept],
        x_test=torch.cat([data.x_test, data.x[gone]]),
        y_test=torch.cat([data.y_test, data.y[gone]]),
    )
