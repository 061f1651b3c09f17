"""A federation from arrays or torch datasets in memory: what a person has becomes tensors, a task is guessed, and a
sentence says what cannot be used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from ..base.task import Task
from ..base.wording import did_you_mean
from .federation import Client, Federation, FederationError
from .parts import stratified_part

FEW = 20
"""Classes up to which whole numbers are taken for such without a word; a table has no more unless told."""
NAMES = ("x", "y", "x_test", "y_test", "x_validation", "y_validation")


def from_arrays(
    clients: Mapping[str, Sequence[object] | Mapping[str, object]],
    task: Task | Literal["classification", "regression", "survival"] | None,
    test_fraction: float,
    groups: Mapping[str, int] | None,
    name: str,
    seed: int,
) -> Federation:
    """See `Federation.from_arrays`."""
    if not 0 < test_fraction < 1:
        raise FederationError(f"test_fraction is {test_fraction}, but has to lie between 0 and 1, both excluded.")
    strangers = sorted(set(groups or {}) - set(clients))
    if strangers:
        raise FederationError(f"`groups` names {', '.join(strangers)}, of whom there are no arrays.")
    kind = task.kind if isinstance(task, Task) else task
    built = [_client(client, given, kind, test_fraction, groups or {}, seed) for client, given in clients.items()]
    if not built:
        raise FederationError("A federation needs at least one client; none was given.")
    learned = task if isinstance(task, Task) else _guessed(built, kind)
    drawn = any("x_test" not in _named(client, given) for client, given in clients.items())
    notes = _counted(learned) if task is None else ()
    return Federation(name, tuple(built), learned, notes=notes, split_seed=seed if drawn else None)


def _client(
    client: str,
    given: Sequence[object] | Mapping[str, object],
    kind: str | None,
    test_fraction: float,
    groups: Mapping[str, int],
    seed: int,
) -> Client:
    arrays = _named(client, given)
    if "group" in arrays:
        arrays["group"] = _numbered(arrays["group"], client)
    if kind == "survival":
        arrays |= {name: _side_by_side(arrays[name]) for name in NAMES[1::2] if name in arrays}
    parts = {name: _tensor(array, client) for name, array in arrays.items()}
    for inputs, targets in zip(NAMES[::2], NAMES[1::2], strict=True):
        if inputs in parts and len(parts[inputs]) != len(parts[targets]):
            raise FederationError(
                f"Client {client!r} has {len(parts[inputs])} samples but {len(parts[targets])} targets."
            )
    for name in ("group", "weight"):
        if name in parts and parts[name].shape != (len(parts["y"]),):
            raise FederationError(
                f"Client {client!r}: {name!r} should have one entry for each of {len(parts['y'])} samples."
            )
    y = _target(parts["y"], kind)
    subjects = parts.get("group", torch.arange(len(y)))
    rest = torch.arange(len(y))
    if "x_test" in parts:
        held = torch.arange(len(parts["y_test"]))
        test = parts["x_test"], _target(parts["y_test"], kind)
    else:
        if len(set(subjects.tolist())) == 1:
            what = "one sample" if len(y) == 1 else "samples of one subject only"
            raise FederationError(
                f"Client {client!r} has {what}; without test data it needs two at least, one of them to test on."
            )
        labels = None if y.is_floating_point() or y.ndim > 1 else y
        if kind == "survival" and y.ndim == 2 and y.shape[1] == 2:
            labels = y[:, 1]
        rest, held = stratified_part(labels, subjects, test_fraction, seed, client)
        test = parts["x"][held], y[held]
    pairs = [(parts["x"][rest], y[rest]), test]
    if "x_validation" in parts:
        pairs.append((parts["x_validation"], _target(parts["y_validation"], kind)))
    train, test, *validation = [(x if x.is_floating_point() else x.float(), target) for x, target in pairs]
    return Client(
        client,
        train,
        test,
        validation[0] if validation else None,
        group=groups.get(client),
        test_rows=held,
        subjects=subjects[rest],
        test_subjects=subjects[held] if "group" in parts and "x_test" not in parts else None,
        weight=parts["weight"][rest].float() if "weight" in parts else None,
    )


def _named(client: str, given: Sequence[object] | Mapping[str, object]) -> dict[str, object]:
    """A client's arrays by name, from a mapping or in the order of `NAMES`."""
    if not isinstance(given, Mapping):
        if len(given) not in (2, 4, 6):
            raise FederationError(
                f"Client {client!r} has {len(given)} arrays; give (x, y) or four, with test data, or six, with test "
                "and then validation data; or a dict of arrays by name."
            )
        return dict(zip(NAMES, given, strict=False))
    for name in given:
        if name not in (*NAMES, "group", "weight"):
            hint = did_you_mean(str(name), (*NAMES, "group", "weight"), 0.6)
            raise FederationError(
                f"Client {client!r} has an array {name!r}. {hint}Known are {', '.join(NAMES)}, group and weight."
            )
    for x, y in zip(NAMES[::2], NAMES[1::2], strict=True):
        lacking = [name for name in (x, y) if name not in given]
        if len(lacking) == 1 or (lacking and x == "x"):
            raise FederationError(f"Client {client!r} has no array {lacking[0]!r}.")
    return dict(given)


def _numbered(groups: object, client: str) -> Tensor:
    """Subjects, whatever they are called, as numbers."""
    named = np.asarray(groups.detach().cpu() if isinstance(groups, Tensor) else groups)
    if named.dtype.kind == "O" and all(isinstance(name, str) for name in named.flat):
        named = named.astype(np.str_)
    if named.ndim != 1 or named.dtype.kind not in "biufUS" or (named.dtype.kind == "f" and np.isnan(named).any()):
        raise FederationError(f"Client {client!r}: 'group' should name the subject of each sample, by text or number.")
    return torch.from_numpy(np.unique(named, return_inverse=True)[1])


def of_datasets(clients: Mapping[str, object]) -> dict[str, list[Tensor]]:
    """The arrays of each client's dataset, or of its training and its test set."""
    arrays: dict[str, list[Tensor]] = {}
    for client, given in clients.items():
        both = list(given) if isinstance(given, tuple | list) else [given]
        if len(both) > 2:
            raise FederationError(f"Client {client!r} has {len(both)} datasets; give one, or training and test.")
        arrays[client] = [tensor for dataset in both for tensor in _samples(dataset, client)]
    return arrays


def _samples(dataset: Any, client: str) -> tuple[Tensor, Tensor]:
    """All of a dataset's inputs, and all of its targets."""
    where = f"Client {client!r}, dataset {type(dataset).__name__}"
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return dataset.tensors[0], dataset.tensors[1]
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise FederationError(f"{where}: it has no length, or no samples by number; collect its samples first.")
    inputs, targets = list[Tensor](), list[Tensor]()
    for i in range(len(dataset)):
        item = dataset[i]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise FederationError(f"{where}: sample {i} is not a pair (x, y), but a {type(item).__name__}.")
        x, y = (_number(part, f"{where}, sample {i}") for part in item)
        if inputs and (x.shape, y.shape) != (inputs[0].shape, targets[0].shape):
            raise FederationError(
                f"{where}: sample {i} has the shapes {tuple(x.shape)} and {tuple(y.shape)}, the first has "
                f"{tuple(inputs[0].shape)} and {tuple(targets[0].shape)}. All have to be alike."
            )
        inputs.append(x)
        targets.append(y)
    if not inputs:
        raise FederationError(f"{where}: it has no samples.")
    return torch.stack(inputs), torch.stack(targets)


def _number(value: object, where: str) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise FederationError(
            f"{where} holds a {type(value).__name__}, which is no number or array; let a transform make it one."
        ) from None


def _tensor(array: object, client: str) -> Tensor:
    try:
        # A frame's array may be read-only, which torch warns of.
        tensor = torch.as_tensor(
            array.detach().cpu() if isinstance(array, Tensor) else np.require(array, requirements="W")
        )
    except (TypeError, ValueError):
        tensor = torch.empty(())
    if tensor.ndim == 0:
        raise FederationError(
            f"Client {client!r}: give arrays of numbers, with a row for each sample; classes as numbers from 0 on."
        )
    return tensor


def _side_by_side(lived: Any) -> Any:
    """(n, 2) of a tuple of times and events."""
    if isinstance(lived, tuple) and len(lived) == 2 and all(np.ndim(part) == 1 for part in lived):
        times, events = (np.asarray(part, dtype=np.float64) for part in lived)
        return np.stack([times, events], axis=1) if len(times) == len(events) else lived
    return lived


def _target(y: Tensor, kind: str | None) -> Tensor:
    """Targets as floating-point numbers or as int64 classes, whichever they are or the task wants."""
    if kind in ("regression", "survival"):
        return y if y.is_floating_point() else y.float()
    whole = not y.is_floating_point() or (kind == "classification" and bool((y == y.round()).all()))
    return y.long() if whole else y


def _guessed(clients: Sequence[Client], kind: str | None) -> Task:
    inputs = tuple(clients[0].train[0].shape[1:])
    if kind == "survival":
        return Task.survival(inputs)
    if clients[0].train[1].is_floating_point():
        shape = clients[0].train[1].shape[1:]
        return Task.regression(inputs, int(np.prod(shape)) if shape else 1)
    top = max((int(y.max()) for c in clients for _, y in (c.train, c.test) if len(y)), default=0)
    return Task.classification(inputs, max(top, 0) + 1)


def _counted(task: Task) -> tuple[str, ...]:
    """Classes of which there are so many that they may be amounts, as costs and days are."""
    if task.kind != "classification" or task.outputs <= FEW:
        return ()
    return (
        f"Targets are whole numbers up to {task.outputs - 1:,}, which are taken as {task.outputs:,} classes. If they "
        "are amounts, say task='regression' (--task regression); if they are classes, task='classification' says so.",
    )
