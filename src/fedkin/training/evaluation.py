"""Models of a method on each client's own samples: the only evaluation loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..base import machine
from ..base.state import State
from ..base.task import Loss, Metric
from .cohort import Samples
from .execution import Execution

NUMBERS_AT_ONCE = 1 << 24
"""Input numbers of one evaluation pass; bounds its memory."""
BYTES_AT_ONCE = 1 << 30
"""Of what a stack of models makes of the inputs of one evaluation pass."""
SAMPLES_AT_ONCE = 256
"""Samples of a client in one evaluation pass; clients that have no more are left out of the next."""
SMALL_ROWS = 1 << 22
"""Weights up to which several models are put below each other to be run at once: copying them costs less than calls."""


@dataclass(frozen=True)
class Predictor:
    """A model that is more than one row: named rows, and the name of a function of these and x (see PREDICTORS)."""

    function: str
    rows: State

    def outputs(self, execution: Execution, x: Tensor) -> Tensor:
        return PREDICTORS[self.function](execution.outputs, self.rows, x)

    def take(self, clients: Tensor) -> Predictor:
        return Predictor(self.function, self.rows.take(clients))


def _mixed_outputs(outputs: Callable[[Tensor, Tensor], Tensor], rows: State, x: Tensor) -> Tensor:
    """APFL's public code mixes outputs: alpha v(x) + (1 - alpha) w(x)."""
    own = outputs(rows.v, x)
    alpha = rows.alpha.reshape(-1, *[1] * (own.ndim - 1))
    return alpha * own + (1 - alpha) * outputs(rows.w, x)


PREDICTORS: dict[str, Callable[[Callable[[Tensor, Tensor], Tensor], State, Tensor], Tensor]] = {
    "mixed_outputs": _mixed_outputs,
}

Model = Tensor | Predictor


def evaluate(execution: Execution, samples: Samples, model: Model, metric: Metric) -> Tensor:
    """(m,) each client's metric on its own samples; NaN for one without samples, or where it is undefined."""
    return evaluate_all(execution, samples, [model], metric)[0]


def evaluate_all(execution: Execution, samples: Samples, models: Sequence[Model], metric: Metric) -> Tensor:
    """(models, m) `evaluate` of several models of the same clients, in one pass where rows are small enough.

    Rows that several models share are run once. Of a metric with several values a sample it is (models, m, values).
    """
    found: dict[int | tuple[object, ...], Tensor] = {}
    keys = [_same(model) for model in models]
    distinct = dict(zip(keys, models, strict=True))
    rows = {key: model for key, model in distinct.items() if isinstance(model, Tensor)}
    together = execution.name == "stacked" and sum(model.numel() for model in rows.values()) <= SMALL_ROWS
    if together and len(rows) > 1:
        beside = samples.take(list(range(len(samples))) * len(rows))
        scores = _scores(execution, beside, torch.cat(list(rows.values())), metric)
        found = dict(zip(rows, scores.view(len(rows), len(samples), *scores.shape[1:]), strict=True))
    for key, model in distinct.items():
        if key not in found:
            found[key] = _scores(execution, samples, model, metric)
    return torch.stack([found[key] for key in keys])


def _same(model: Model) -> int | tuple[object, ...]:
    """Equal for models that are the same rows in memory."""
    return (model.data_ptr(), model.shape, model.stride()) if isinstance(model, Tensor) else id(model)


def _scores(execution: Execution, samples: Samples, model: Model, metric: Metric) -> Tensor:
    if not metric.per_sample:
        scores = torch.full((len(samples),), torch.nan, dtype=torch.float64)
        for i, outputs in enumerate(all_outputs(execution, samples, model)):
            if len(outputs):
                start = samples.starts[i]
                value = metric(outputs, samples.y[start : start + len(outputs)].cpu())
                scores[i] = torch.as_tensor(value, dtype=torch.float64).mean()
        return scores
    sums = torch.zeros(len(samples), dtype=torch.float64, device=samples.x.device)
    for part, outputs in _passes(execution, samples, model):
        values = metric(outputs.flatten(0, 1), samples.y[part.index].flatten(0, 1)).double()
        if values.ndim > sums.ndim:  # several values a sample
            sums = sums.new_zeros(len(samples), values.shape[1])
        real = part.real.view(*part.real.shape, *values.shape[1:] and [1])
        sums[part.rows] += torch.where(real, values.view(*part.real.shape, *values.shape[1:]), 0.0).sum(1)
    counts = torch.tensor(samples.counts, dtype=torch.float64)
    return sums.cpu() / counts.view(-1, *[1] * (sums.ndim - 1))  # 0 / 0 is NaN: nothing to score


def losses(
    execution: Execution, samples: Samples, model: Model, loss: Loss, class_weight: Tensor | None = None
) -> Tensor:
    """(m,) each client's mean loss on its own samples, which count by their weights and by those of their classes
    (m, classes); NaN for one without samples."""
    if samples.weight is None and class_weight is None:
        return evaluate(execution, samples, model, loss.as_metric(samples.x.device))
    found = torch.full((len(samples),), torch.nan, dtype=torch.float64)
    for i, outputs in enumerate(all_outputs(execution, samples, model)):
        if len(outputs):
            own, y = slice(samples.starts[i], samples.starts[i] + len(outputs)), samples.targets(i)
            weight = None if class_weight is None else class_weight[i][y]
            if samples.weight is not None:
                weight = samples.weight[own] if weight is None else weight * samples.weight[own]
            found[i] = loss(outputs.to(y.device), y, weight).detach()
    return found


def all_outputs(execution: Execution, samples: Samples, model: Model) -> list[Tensor]:
    """For each client (n_i, ...) the outputs of its model on its own samples, on the CPU."""
    parts: list[list[Tensor]] = [[] for _ in range(len(samples))]
    for part, outputs in _passes(execution, samples, model):
        for i, own, n in zip(part.clients, outputs.cpu(), part.counts, strict=True):
            parts[i].append(own[:n])
    return [torch.cat(part) if part else torch.empty(0) for part in parts]


@dataclass(frozen=True, repr=False)
class _Part:
    """Some samples of several clients (k), side by side."""

    clients: list[int]
    counts: list[int]
    """Of each, how many of its samples are here."""
    rows: slice | Tensor
    """The clients again, as what picks their rows: without a copy where they follow each other."""
    index: Tensor
    """(k, b) numbers of their samples."""
    real: Tensor
    """(k, b) which of them are real and not padding."""


def _passes(execution: Execution, samples: Samples, model: Model) -> Iterator[tuple[_Part, Tensor]]:
    """All samples once, those of several clients side by side, and (k, b, ...) the outputs of their models."""
    longest = max(samples.counts, default=0)
    if not longest:
        return
    numbers = max(1, samples.x[:1].numel())
    width = min(longest, SAMPLES_AT_ONCE, max(1, NUMBERS_AT_ONCE // numbers))
    most = NUMBERS_AT_ONCE // numbers
    if execution.name == "stacked":  # else there is but one client's at a time
        most = min(most, BYTES_AT_ONCE // _bytes_per_sample(execution, samples, model))
        width = min(width, max(1, most))
    for part in _parts(samples.starts, samples.counts, width, max(1, most // width), samples.x.device):
        yield part, _outputs(execution, _some(model, part.rows), samples.x[part.index])


def _some(model: Model, rows: slice | Tensor) -> Model:
    return Predictor(model.function, model.rows.take(rows)) if isinstance(model, Predictor) else model[rows]


def _outputs(execution: Execution, model: Model, x: Tensor) -> Tensor:
    """(k, b, ...) outputs of all clients' models."""
    return model.outputs(execution, x) if isinstance(model, Predictor) else execution.outputs(model, x)


@lru_cache(maxsize=16)
def _parts(
    starts: tuple[int, ...], counts: tuple[int, ...], width: int, clients: int, device: torch.device
) -> tuple[_Part, ...]:
    """All samples in parts of at most so many of a client, and of so many clients; kept from round to round."""
    parts = []
    for at in range(0, max(counts), width):
        active = [i for i, n in enumerate(counts) if n > at]
        for first in range(0, len(active), clients):
            some = active[first : first + clients]
            left = torch.tensor([counts[i] - at for i in some])[:, None]
            positions = torch.arange(min(width, max(counts) - at))
            index = torch.tensor([starts[i] + at for i in some])[:, None] + torch.minimum(positions, left - 1)
            follow = some[-1] - some[0] == len(some) - 1
            parts.append(
                _Part(
                    clients=some,
                    counts=left.squeeze(1).clamp(max=width).tolist(),
                    rows=slice(some[0], some[-1] + 1) if follow else torch.tensor(some, device=device),
                    index=index.to(device),
                    real=(positions < left).to(device),
                )
            )
    return tuple(parts)


_SAMPLE_BYTES: WeakKeyDictionary[Execution, int] = WeakKeyDictionary()


def _bytes_per_sample(execution: Execution, samples: Samples, model: Model) -> int:
    """What a model makes of one sample takes, seen once for each execution: by how much three take more than one."""
    if execution not in _SAMPLE_BYTES:
        one, seen = _some(model, slice(0, 1)), []
        with suppress(Exception):  # a model that cannot score so few is none that could be measured
            for count in (1, 3):
                with machine.tensor_bytes() as used:
                    _outputs(execution, one, samples.x[:1].expand(count, *samples.x.shape[1:])[None].clone())
                seen.append(used())
        _SAMPLE_BYTES[execution] = max(1, (seen[1] - seen[0]) // 2) if len(seen) == 2 else 1
    return _SAMPLE_BYTES[execution]
