"""A stack of clients on one device: the only training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from ..base import streams
from ..base.round import Round
from ..base.state import State
from ..base.task import Task
from ..base.weights import Layout
from .augment import Augmentation
from .execution import Batch, Execution, batch_weights
from .ledger import Ledger
from .optimisers import Extra, Local, Optimiser, SomeColumns, Whole


@dataclass(frozen=True, repr=False)
class Samples:
    """The samples of several clients on one device: client i's are x[starts[i] : starts[i] + counts[i]]."""

    x: Tensor
    y: Tensor
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    weight: Tensor | None = None
    """(n,) how much each sample counts in the training loss; None: all alike."""

    @staticmethod
    def of(parts: Sequence[tuple[Tensor, Tensor]], device: torch.device, weight: Tensor | None = None) -> Samples:
        counts = tuple(len(y) for _, y in parts)
        starts = tuple(sum(counts[:i]) for i in range(len(counts)))
        x = torch.cat([x for x, _ in parts]).to(device)
        y = torch.cat([y for _, y in parts]).to(device)
        return Samples(x, y, starts, counts, None if weight is None else weight.to(device))

    def __len__(self) -> int:
        return len(self.counts)

    def targets(self, i: int) -> Tensor:
        """Those of client i."""
        return self.y[self.starts[i] : self.starts[i] + self.counts[i]]

    def take(self, clients: Sequence[int]) -> Samples:
        """Some clients; the data itself is not copied."""
        chosen = list(clients)
        return replace(self, starts=tuple(self.starts[i] for i in chosen), counts=tuple(self.counts[i] for i in chosen))


class SeveralRates(RuntimeError):
    """One learning rate was asked for where rows have their own; who trains a stack of grid values answers it."""


@dataclass(repr=False)
class Cohort:
    """Clients of one device, sorted by falling number of training samples: those still training at a step are a prefix.

    Their training and validation data, never their test data. `seed` is the training seed.
    """

    names: tuple[str, ...]
    train: Samples
    validation: Samples
    task: Task
    layout: Layout
    execution: Execution
    local: Local
    seed: int
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
    now: Round | None = None
    """The round in which a method is asked."""
    ledger: Ledger = field(default_factory=Ledger)
    """Where it is written what training costs; whose is for the site to know."""

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
            ledger=Ledger(),
        )

    def _seed(self, i: int) -> int:
        return self.seed if self.seeds is None else self.seeds[i]

    def rng(self, purpose: str) -> list[torch.Generator]:
        """The random numbers of this round for a purpose: a generator for each row."""
        if self.now is None:
            raise RuntimeError("Random numbers are a round's, and this cohort is in none.")
        number = self.now.number
        return [streams.generator(self._seed(i), name, number, purpose) for i, name in enumerate(self.names)]

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
        round: Round,
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
            if self.train.weight is not None:
                own = _gathered(self.train.weight, chosen)
                weight = own if weight is None else weight * own
            seeds = self._layer_seeds(round, stream, step) if self.random_layers else None
            yield Batch(x, y, active, weight, seeds, None if sizes is None else sizes[step, :k])

    def _sizes(self, counts: list[list[int]]) -> Tensor:
        """(steps, m) batch sizes, 0 for those that have done: on a GPU once a round, not once a step."""
        return torch.tensor([active + [0] * (len(self) - len(active)) for active in counts])

    def _moves(self, round: Round, stream: str, index: Tensor, counts: list[list[int]]) -> Tensor | None:
        """(steps, m, width, 3) how each image of a schedule is moved, as each client's own stream has it."""
        if self.augmentation is None or stream == "full":
            return None
        moves = torch.zeros(*index.shape, 3, dtype=torch.uint8)
        for i, (name, n) in enumerate(zip(self.names, self.samples, strict=True)):
            steps, width = sum(i < len(active) for active in counts), min(n, index.shape[2])
            source = streams.generator(self._seed(i), name, round.number, f"augmentation/{stream}")
            moves[:steps, i, :width] = self.augmentation.draw((steps, width), source)
        return moves.to(self.train.x.device, non_blocking=True)

    def _layer_seeds(self, round: Round, stream: str, step: int) -> Callable[[int], int]:
        return lambda i: streams.number(self._seed(i), self.names[i], round.number, f"layers/{stream}/{step}")

    def _schedule(
        self, round: Round, stream: str, epochs: int, size: int, steps: Sequence[int] | None
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
            source = streams.generator(self._seed(i), self.names[i], round.number, f"batches/{stream}")
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
        self.ledger.derived(len(batch), len(self), W)
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
        G = self._grad(pair, both, batch, models=2)
        moved = pair.layout.rest(both)
        for side, rows in sides.items():
            for name, statistics in self.layout.rest(rows).items():
                statistics.copy_(moved[f"{side}.{name}"])
        return G[:, :d], G[:, d:]

    def _grad(
        self, execution: Execution, W: Tensor, batch: Batch, out: Tensor | None = None, models: int = 1
    ) -> Tensor:
        G, losses, rest = execution.grad(W, batch, out)
        if rest is not None:
            W[: len(batch), execution.layout.parameters :] = rest
        self.ledger.gradient(losses.to(W.dtype), len(self), models)
        return G

    def lr(self, round: Round) -> float:
        """The learning rate of a round, where all rows have the same."""
        if self.rates is not None:
            raise SeveralRates("The rows of this cohort have learning rates of their own; ask for them with `lrs`.")
        return self.local.lr_at(round.number, round.of)

    def lrs(self, round: Round) -> Tensor:
        """(m, 1) each row's learning rate of a round, in float64: what `Optimiser.step` takes."""
        rates = self.rates or (self.local.lr,) * len(self)
        column = torch.tensor(rates, dtype=torch.float64, device=self.train.x.device)[:, None]
        return column * self.local.factor_at(round.number, round.of)

    def optimiser(self, W: Tensor, state: State | None = None) -> Optimiser:
        return Optimiser(self.local, W, self.layout.parameters, state)

    def fit(
        self,
        W: Tensor,
        round: Round,
        *,
        extra: Extra | None = None,
        columns: Tensor | None = None,
        epochs: int | None = None,
        stream: str = "train",
        optimiser: Optimiser | None = None,
    ) -> Tensor:
        """Local training from rows W (m, D); returns new rows. `extra(w, k)` is added to the first k gradients.

        With `columns`, their numbers or a mask, as `layout.columns` and `layout.split` give them, only these parameters
        move, as if the optimiser knew no others: decay, momentum, clipping and the proximal term are theirs alone, and
        the others keep their bits. Float buffers (BatchNorm's statistics) move as in any training pass if they are
        among the columns or any parameter of their module is, and otherwise stay; what the pass itself computes with
        is the batch's own statistics either way.
        """
        rows, memory = self.execution.workspace(W)
        main = stream == "train" and optimiser is None
        kept = self.ledger.optimiser if main else None
        lr = self.lr(round) if self.rates is None else self.lrs(round)
        moved: Whole | SomeColumns
        if columns is None:
            moved = Whole(optimiser or self.optimiser(rows, kept), rows, extra)
        else:
            local, kept = (optimiser.local, optimiser.state) if optimiser else (self.local, kept)
            moved = SomeColumns(local, rows, self.layout, columns, kept, extra)
        for batch in self.batches(round, stream=stream, epochs=epochs):
            G = self._grad(self.execution, rows, batch, memory)
            moved.step(G, lr)
        state = moved.close()
        if main and self.ledger.optimiser is not None:
            self.ledger.optimiser = state
        return self.execution.finished(rows)

    def full_grad(self, W: Tensor, round: Round) -> Tensor:
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

    # ---- without gradients ----

    def loss(self, W: Tensor, part: Literal["train", "validation"] = "train") -> Tensor:
        """(m,) each client's mean loss on its training or validation part at its row of W (m, D), in evaluation mode;
        NaN for one without samples.

        Training samples count by the weights of classes and samples with which they are trained on, validation samples
        all alike, as where they choose a round. Images are as they are, not augmented.
        """
        from .evaluation import losses  # it knows `Samples`

        samples = self.train if part == "train" else replace(self.validation, weight=None)
        self.ledger.looked(samples.counts)
        found = losses(self.execution, samples, W, self.task.loss, self.class_weight if part == "train" else None)
        return found.to(W)


def _gathered(samples: Tensor, index: Tensor) -> Tensor:
    """samples[index], for whole samples: they are copied in one piece each."""
    return samples.index_select(0, index.flatten()).view(*index.shape, *samples.shape[1:])
