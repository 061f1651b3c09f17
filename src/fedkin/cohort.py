"""A stack of clients on one device: the only training loop and the only evaluation loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from . import machine, streams
from .augment import Augmentation
from .execution import Batch, Execution, batch_weights
from .optimisers import Extra, Local, Optimiser
from .state import State
from .task import Metric, Task
from .weights import Layout


@dataclass(frozen=True, repr=False)
class Samples:
    """The samples of several clients on one device: client i's are x[starts[i] : starts[i] + counts[i]]."""

    x: Tensor
    y: Tensor
    starts: tuple[int, ...]
    counts: tuple[int, ...]

    @staticmethod
    def of(parts: Sequence[tuple[Tensor, Tensor]], device: torch.device) -> Samples:
        counts = tuple(len(y) for _, y in parts)
        starts = tuple(sum(counts[:i]) for i in range(len(counts)))
        x = torch.cat([x for x, _ in parts]).to(device)
        y = torch.cat([y for _, y in parts]).to(device)
        return Samples(x, y, starts, counts)

    def __len__(self) -> int:
        return len(self.counts)

    def take(self, clients: Sequence[int]) -> Samples:
        """Some clients; the data itself is not copied."""
        chosen = list(clients)
        return replace(self, starts=tuple(self.starts[i] for i in chosen), counts=tuple(self.counts[i] for i in chosen))


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


class SeveralRates(RuntimeError):
    """One learning rate was asked for where rows have their own; who trains a stack of grid values answers it."""


@dataclass(repr=False)
class Cohort:
    """Clients of one device, sorted by falling number of training samples: those still training at a step are a prefix.

    Their training and validation data, never their test data. `seed` is the training seed, `rounds` the length of the
    run (for learning-rate schedules).
    """

    names: tuple[str, ...]
    train: Samples
    validation: Samples
    task: Task
    layout: Layout
    execution: Execution
    local: Local
    seed: int
    rounds: int
    class_weight: Tensor | None = None
    """(m, classes)"""
    merge_single: bool = False
    """Whether a last batch of one sample joins the one before: BatchNorm has no statistics of a single sample."""
    random_layers: bool = False
    augmentation: Augmentation | None = None
    """Of the images that clients train with; of none that they are scored on."""
    rates: tuple[float, ...] | None = None
    """A learning rate for each row in place of `local.lr`, where rows are the values of a grid."""
    seeds: tuple[int, ...] | None = None
    """A training seed for each row in place of `seed`, where rows are of several runs."""
    carried: State | None = None
    """The optimiser's state from the last round, where it is kept; `fit` leaves the new one here."""
    loss_sum: Tensor | None = None
    loss_count: Tensor | None = None

    def __len__(self) -> int:
        return len(self.names)

    @property
    def samples(self) -> tuple[int, ...]:
        """n_i: training samples without the validation part."""
        return self.train.counts

    def take(self, clients: Sequence[int]) -> Cohort:
        """Some of the clients, in rising order of their numbers, so that the prefix rule holds; any may be repeated."""
        return replace(
            self,
            names=tuple(self.names[i] for i in clients),
            train=self.train.take(clients),
            validation=self.validation.take(clients),
            class_weight=None if self.class_weight is None else self.class_weight[list(clients)],
            rates=None if self.rates is None else tuple(self.rates[i] for i in clients),
            seeds=None if self.seeds is None else tuple(self.seeds[i] for i in clients),
            loss_sum=None,
            loss_count=None,
        )

    def _seed(self, i: int) -> int:
        return self.seed if self.seeds is None else self.seeds[i]

    # ---- batches ----

    def steps_of(self, n: int, size: int) -> int:
        """Mini-batches of a pass over n samples."""
        full, left = divmod(n, size)
        merged = self.merge_single and left == 1 and full > 0
        return full + (left > 0) - merged

    def step_counts(self) -> list[int]:
        """Mini-batches of each client in a round of local training: the budget of a method, in gradients."""
        local = self.local
        return [local.steps or local.epochs * self.steps_of(n, local.batch_size) for n in self.samples]

    def batches(
        self,
        round: int,
        *,
        stream: str = "train",
        epochs: int | None = None,
        size: int | None = None,
        steps: int | Sequence[int] | None = None,
    ) -> Iterator[Batch]:
        """Reshuffled passes over each client's data, the last partial batch kept; other streams are independent.

        With `steps`, every client takes that many batches (or as many as its own number says), starting over as often
        as needed. By default the local training's passes, or its steps.
        """
        size = size or self.local.batch_size
        if steps is None and epochs is None and self.local.steps:
            steps = self.local.steps
        passes = self.local.epochs if epochs is None else epochs
        wanted = [steps] * len(self) if isinstance(steps, int) else steps
        index, counts = self._schedule(round, stream, passes, size, wanted)
        moves = self._moves(round, stream, index, counts)
        index = index.to(self.train.x.device, non_blocking=True)
        uneven = any(min(active) < max(active) for active in counts)
        sizes = self._sizes(counts).to(self.train.x.device, non_blocking=True) if uneven else None
        for step, active in enumerate(counts):
            k = len(active)
            chosen = index[step, :k, : max(active)]
            x, y = _gathered(self.train.x, chosen), _gathered(self.train.y, chosen)
            if self.augmentation is not None and moves is not None:
                x = self.augmentation(x, moves[step, :k, : max(active)])
            weight = None
            if self.class_weight is not None:
                weight = self.class_weight[:k].gather(1, y)
            seeds = self._layer_seeds(round, stream, step) if self.random_layers else None
            yield Batch(x, y, active, weight, seeds, None if sizes is None else sizes[step, :k])

    def _sizes(self, counts: list[list[int]]) -> Tensor:
        """(steps, m) batch sizes, 0 for those that have done: on a GPU once a round, not once a step."""
        return torch.tensor([active + [0] * (len(self) - len(active)) for active in counts])

    def _moves(self, round: int, stream: str, index: Tensor, counts: list[list[int]]) -> Tensor | None:
        """(steps, m, width, 3) how each image of a schedule is moved, as each client's own stream has it."""
        if self.augmentation is None or stream == "full":
            return None
        moves = torch.zeros(*index.shape, 3, dtype=torch.uint8)
        for i, (name, n) in enumerate(zip(self.names, self.samples, strict=True)):
            steps, width = sum(i < len(active) for active in counts), min(n, index.shape[2])
            source = streams.generator(self._seed(i), name, round, f"augmentation/{stream}")
            moves[:steps, i, :width] = self.augmentation.draw((steps, width), source)
        return moves.to(self.train.x.device, non_blocking=True)

    def _layer_seeds(self, round: int, stream: str, step: int) -> Callable[[int], int]:
        return lambda i: streams.number(self._seed(i), self.names[i], round, f"layers/{stream}/{step}")

    def _schedule(
        self, round: int, stream: str, epochs: int, size: int, steps: Sequence[int] | None
    ) -> tuple[Tensor, list[list[int]]]:
        """Sample numbers (steps, m, width) and, for each step, the batch sizes of the clients still training.

        What follows a short batch repeats its first sample.
        """
        per_pass = [self.steps_of(n, size) for n in self.samples]
        totals = [epochs * s for s in per_pass] if steps is None else list(steps)
        if sorted(totals, reverse=True) != totals:
            raise ValueError("Clients of a cohort have to be sorted by falling number of samples; these are not.")
        width = min(size + self.merge_single, max(self.samples))
        index = torch.zeros(max(totals), len(self), width, dtype=torch.int64)
        counts: list[list[int]] = [[] for _ in range(max(totals))]
        for i, (n, start) in enumerate(zip(self.samples, self.train.starts, strict=True)):
            source = streams.generator(self._seed(i), self.names[i], round, f"batches/{stream}")
            cuts = [size] * (per_pass[i] - 1) + [n - size * (per_pass[i] - 1)]
            passes = -(-totals[i] // per_pass[i])
            order = torch.stack([torch.randperm(n, generator=source) for _ in range(passes)]) + start
            padded = torch.empty(passes, per_pass[i], width, dtype=torch.int64)
            if per_pass[i] > 1:
                whole = order[:, : size * (per_pass[i] - 1)].view(passes, -1, size)
                padded[:, :-1, :size] = whole
                padded[:, :-1, size:] = whole[:, :, :1]
            padded[:, -1] = order[:, n - cuts[-1], None]
            padded[:, -1, : cuts[-1]] = order[:, n - cuts[-1] :]
            index[: totals[i], i] = padded.view(-1, width)[: totals[i]]
            for step in range(totals[i]):
                counts[step].append(cuts[step % per_pass[i]])
        return index, counts

    # ---- training ----

    def grad(self, W: Tensor, batch: Batch) -> Tensor:
        """(k, d) gradients of the batch's k clients at the first rows of W.

        As in any training-mode pass, BatchNorm's running statistics move: they are written into W[:k, d:].
        """
        return self._grad(self.execution, W, batch)

    def curvature(self, W: Tensor, V: Tensor, batch: Batch) -> Tensor:
        """(k, d) Hessians of the batch's k clients at the first rows of W, times the first rows of V (·, d)."""
        return self.execution.curvature(W[: len(batch)], V[: len(batch)], batch)

    def mixed_grad(self, V: Tensor, W: Tensor, alpha: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """(k, d) gradients of the loss of alpha v(x) + (1 - alpha) w(x), with respect to v and with respect to w.

        BatchNorm's running statistics move in both models.
        """
        k, d, pair = len(batch), self.layout.parameters, self.execution.mixture
        sides = {"v": V[:k], "w": W[:k]}
        named = {f"{side}.{n}": t for side, rows in sides.items() for n, t in self.layout.tensors(rows).items()}
        named["alpha"] = alpha[:k]
        both = torch.cat([named[field.name].reshape(k, -1) for field in pair.layout.fields], dim=1)
        G = self._grad(pair, both, batch)
        moved = pair.layout.rest(both)
        for side, rows in sides.items():
            for name, statistics in self.layout.rest(rows).items():
                statistics.copy_(moved[f"{side}.{name}"])
        return G[:, :d], G[:, d:]

    def _grad(self, execution: Execution, W: Tensor, batch: Batch, out: Tensor | None = None) -> Tensor:
        G, losses, rest = execution.grad(W, batch, out)
        if rest is not None:
            W[: len(batch), execution.layout.parameters :] = rest
        if self.loss_sum is None or self.loss_count is None:
            self.loss_sum, self.loss_count = W.new_zeros(len(self)), W.new_zeros(len(self))
        self.loss_sum[: len(batch)] += losses
        self.loss_count[: len(batch)] += 1
        return G

    def mean_loss(self) -> Tensor | None:
        """(m,) mean training loss over all gradients taken since the cohort was made."""
        if self.loss_sum is None or self.loss_count is None:
            return None
        return self.loss_sum / self.loss_count

    def lr(self, round: int) -> float:
        """The learning rate of a round, where all rows have the same."""
        if self.rates is not None:
            raise SeveralRates("The rows of this cohort have learning rates of their own; ask for them with `lrs`.")
        return self.local.lr_at(round, self.rounds)

    def lrs(self, round: int) -> Tensor:
        """(m, 1) each row's learning rate of a round, in float64: what `Optimiser.step` takes."""
        rates = self.rates or (self.local.lr,) * len(self)
        column = torch.tensor(rates, dtype=torch.float64, device=self.train.x.device)[:, None]
        return column * self.local.factor_at(round, self.rounds)

    def optimiser(self, W: Tensor, state: State | None = None) -> Optimiser:
        return Optimiser(self.local, W, self.layout.parameters, state)

    def fit(
        self,
        W: Tensor,
        round: int,
        *,
        extra: Extra | None = None,
        epochs: int | None = None,
        stream: str = "train",
        optimiser: Optimiser | None = None,
    ) -> Tensor:
        """Local training from rows W (m, D); returns new rows. `extra(w, k)` is added to the first k gradients."""
        rows, memory = self.execution.workspace(W)
        main = stream == "train" and optimiser is None
        optimiser = optimiser or self.optimiser(rows, self.carried if main else None)
        lr = self.lr(round) if self.rates is None else self.lrs(round)
        for batch in self.batches(round, stream=stream, epochs=epochs):
            G = self._grad(self.execution, rows, batch, memory)
            optimiser.step(rows, G, lr, extra)
        if main and self.carried is not None:
            self.carried = optimiser.state
        return self.execution.finished(rows)

    def full_grad(self, W: Tensor, round: int) -> Tensor:
        """(m, d) gradients over all of each client's training samples at once (in passes of a batch).

        As in `grad`, BatchNorm's running statistics move in W.
        """
        total = W.new_zeros(len(self), self.layout.parameters)
        weight = W.new_zeros(len(self), 1)
        for batch in self.batches(round, stream="full", epochs=1):
            each = batch_weights(batch, W)
            if self.task.loss.masks:  # a mean over known targets, not over samples
                each = each * (~batch.y[:, : each.shape[1]].isnan()).reshape(*each.shape, -1).sum(2)
            share = each.sum(1, keepdim=True)
            total[: len(batch)] += self.grad(W, batch) * share
            weight[: len(batch)] += share
        return total / weight.clamp(min=torch.finfo(weight.dtype).tiny)


def _gathered(samples: Tensor, index: Tensor) -> Tensor:
    """samples[index], for whole samples: they are copied in one piece each."""
    return samples.index_select(0, index.flatten()).view(*index.shape, *samples.shape[1:])


# ---- evaluation ----

NUMBERS_AT_ONCE = 1 << 24
"""Input numbers of one evaluation pass; bounds its memory."""
BYTES_AT_ONCE = 1 << 30
"""Of what a stack of models makes of the inputs of one evaluation pass."""
SAMPLES_AT_ONCE = 256
"""Samples of a client in one evaluation pass; clients that have no more are left out of the next."""
SMALL_ROWS = 1 << 22
"""Weights up to which several models are put below each other to be run at once: copying them costs less than calls."""


def evaluate(execution: Execution, samples: Samples, model: Model, metric: Metric) -> Tensor:
    """(m,) each client's metric on its own samples; NaN for one without samples, or where it is undefined."""
    return evaluate_all(execution, samples, [model], metric)[0]


def evaluate_all(execution: Execution, samples: Samples, models: Sequence[Model], metric: Metric) -> Tensor:
    """(models, m) `evaluate` of several models of the same clients, in one pass where rows are small enough.

    Rows that several models share are run once.
    """
    found: dict[int | tuple[object, ...], Tensor] = {}
    keys = [_same(model) for model in models]
    distinct = dict(zip(keys, models, strict=True))
    rows = {key: model for key, model in distinct.items() if isinstance(model, Tensor)}
    together = execution.name == "stacked" and sum(model.numel() for model in rows.values()) <= SMALL_ROWS
    if together and len(rows) > 1:
        beside = samples.take(list(range(len(samples))) * len(rows))
        scores = _scores(execution, beside, torch.cat(list(rows.values())), metric)
        found = dict(zip(rows, scores.view(len(rows), -1), strict=True))
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
        values = metric(outputs.flatten(0, 1), samples.y[part.index].flatten(0, 1))
        values = values.view(len(part.clients), -1).double()
        sums[part.rows] += torch.where(part.real, values, 0.0).sum(1)
    return sums.cpu() / torch.tensor(samples.counts, dtype=torch.float64)  # 0 / 0 is NaN: nothing to score


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
