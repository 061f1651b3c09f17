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
from .federation import Client, Federation, FederationError, test_part


def from_arrays(
    clients: Mapping[str, Sequence[object]],
    task: Task | Literal["classification", "regression"] | None,
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
    built = []
    for client, arrays in clients.items():
        parts = [_tensor(a, client) for a in arrays]
        if len(parts) not in (2, 4):
            raise FederationError(f"Client {client!r} has {len(parts)} arrays; give (x, y) or four, with test data.")
        for a, b in zip(parts[::2], parts[1::2], strict=True):
            if len(a) != len(b):
                raise FederationError(f"Client {client!r} has {len(a)} samples but {len(b)} targets.")
        if len(parts) == 2:
            x, y = parts
            if len(y) == 1:
                raise FederationError(
                    f"Client {client!r} has one sample; with (x, y) it needs two at least, one of them to test on."
                )
            rest, held = test_part(len(y), test_fraction, seed, client)
            parts = [x[rest], y[rest], x[held], y[held]]
        else:
            held = torch.arange(len(parts[3]))
        x, x_test = (p if p.is_floating_point() else p.float() for p in parts[::2])
        y, y_test = (_target(p, task) for p in parts[1::2])
        group = (groups or {}).get(client)
        built.append(Client(client, (x, y), (x_test, y_test), group=group, test_rows=held))
    if not built:
        raise FederationError("A federation needs at least one client; none was given.")
    return Federation(name, tuple(built), task if isinstance(task, Task) else _guessed(built))


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
        tensor = torch.as_tensor(array.detach().cpu() if isinstance(array, Tensor) else np.asarray(array))
    except (TypeError, ValueError):
        tensor = torch.empty(())
    if tensor.ndim == 0:
        raise FederationError(
            f"Client {client!r}: give arrays of numbers, with a row for each sample; classes as numbers from 0 on."
        )
    return tensor


def _target(y: Tensor, task: Task | str | None) -> Tensor:
    """Targets as floating-point numbers or as int64 classes, whichever they are or the task wants."""
    if task == "regression" or (isinstance(task, Task) and task.kind == "regression"):
        return y if y.is_floating_point() else y.float()
    whole = not y.is_floating_point() or (task == "classification" and bool((y == y.round()).all()))
    return y.long() if whole else y


def _guessed(clients: Sequence[Client]) -> Task:
    inputs = tuple(clients[0].train[0].shape[1:])
    if clients[0].train[1].is_floating_point():
        shape = clients[0].train[1].shape[1:]
        return Task.regression(inputs, int(np.prod(shape)) if shape else 1)
    top = max((int(y.max()) for c in clients for _, y in (c.train, c.test) if len(y)), default=0)
    return Task.classification(inputs, max(top, 0) + 1)
