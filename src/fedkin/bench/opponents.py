"""One client after another in plain torch: what fedkin is measured against.

A module and an optimiser for each client; a call trains each of them on its own batches. `Plain` is what everybody
writes first. `Fairest` is the best that one client at a time can be: fused Adam, the faster memory format, on a GPU one
CUDA graph a client, on a CPU as many threads as pay. Both have their data on the device and never wait for a value.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..base import machine
from ..training import execution
from .timing import Arithmetic, clocked

Batches = Sequence[execution.Batch]


class Plain:
    """`torch.optim.Adam` with its defaults."""

    how = "torch.optim.Adam"

    def __init__(self, module: nn.Module, clients: int, batches: Batches, lr: float, name: Arithmetic) -> None:
        self.batches, self.name = batches, name
        self.modules = _copies(module, clients, batches[0].x.device)
        self.optimisers = [torch.optim.Adam(each.parameters(), lr=lr) for each in self.modules]

    def __call__(self) -> None:
        for i, (module, optimiser) in enumerate(zip(self.modules, self.optimisers, strict=True)):
            for batch in self.batches:
                learn(module, optimiser, batch.x[i], batch.y[i], self.name)


class Fairest:
    """The fastest of the variants, as tried on one client."""

    def __init__(self, module: nn.Module, clients: int, batches: Batches, lr: float, name: Arithmetic) -> None:
        device = batches[0].x.device
        with tuned_convolutions():
            trials = {variant: variant.make(module, 1, batches, lr, name) for variant in variants(module, device)}
            for trial in trials.values():
                trial()
            times = {variant: min(clocked(trial, device) for _ in range(3)) for variant, trial in trials.items()}
            best = min(times, key=times.__getitem__)
            del trials
            self.trained = best.make(module, clients, batches, lr, name)
        self.modules, self.how = self.trained.modules, best.words(device)

    def __call__(self) -> None:
        self.trained()


class Variant(NamedTuple):
    """A way to train one client after another."""

    format: torch.memory_format
    threads: int

    def make(self, module: nn.Module, clients: int, batches: Batches, lr: float, name: Arithmetic) -> Fused | Captured:
        kind = Captured if batches[0].x.is_cuda else Fused
        return kind(self, module, clients, batches, lr, name)

    def words(self, device: torch.device) -> str:
        told = ["fused Adam"]
        told += ["CUDA graphs"] if device.type == "cuda" else [f"threads: {self.threads}"]
        return ", ".join([*told, *(["channels last"] if self.format == torch.channels_last else [])])


def variants(module: nn.Module, device: torch.device) -> list[Variant]:
    """Those that may be the fastest here."""
    images = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
    formats = [torch.contiguous_format, torch.channels_last] if images else [torch.contiguous_format]
    threads = {torch.get_num_threads(), 1} if device.type == "cpu" else {torch.get_num_threads()}
    return [Variant(*each) for each in product(formats, sorted(threads, reverse=True))]


class Fused:
    """Fused Adam on a CPU."""

    def __init__(
        self, how: Variant, module: nn.Module, clients: int, batches: Batches, lr: float, name: Arithmetic
    ) -> None:
        self.batches, self.how, self.name = batches, how, name
        self.modules = _copies(module, clients, batches[0].x.device, how.format)
        self.optimisers = [torch.optim.Adam(each.parameters(), lr=lr, fused=True) for each in self.modules]
        self.inputs = [_formatted(batch.x, how.format) for batch in batches]

    def __call__(self) -> None:
        with machine.threads(self.how.threads):
            for i, (module, optimiser) in enumerate(zip(self.modules, self.optimisers, strict=True)):
                for x, batch in zip(self.inputs, self.batches, strict=True):
                    learn(module, optimiser, x[i], batch.y[i], self.name)


class Captured:
    """Fused Adam on a GPU, one client's whole step as a CUDA graph: forward, backward and update in one launch."""

    def __init__(
        self, how: Variant, module: nn.Module, clients: int, batches: Batches, lr: float, name: Arithmetic
    ) -> None:
        self.batches, device = batches, batches[0].x.device
        self.modules = _copies(module, clients, device, how.format)
        self.inputs = [_formatted(batch.x, how.format) for batch in batches]
        self.x, self.y = self.inputs[0][0].clone(), batches[0].y[0].clone()
        # Graphs that are replayed in the order of their capture may share what they compute in.
        pool = torch.cuda.graph_pool_handle()
        # Kept beside the graphs, which write into their moments.
        self.optimisers = [torch.optim.Adam(e.parameters(), lr=lr, fused=True, capturable=True) for e in self.modules]
        self.graphs = [self._captured(*each, name, pool) for each in zip(self.modules, self.optimisers, strict=True)]

    def __call__(self) -> None:
        for i, graph in enumerate(self.graphs):
            for x, batch in zip(self.inputs, self.batches, strict=True):
                self.x.copy_(x[i])
                self.y.copy_(batch.y[i])
                graph.replay()

    def _captured(
        self, module: nn.Module, optimiser: torch.optim.Optimizer, name: Arithmetic, pool: Any
    ) -> torch.cuda.CUDAGraph:
        def step() -> None:
            learn(module, optimiser, self.x, self.y, name)

        start = [tensor.clone() for tensor in module.state_dict().values()]
        _warmed_up(step)
        graph = torch.cuda.CUDAGraph()
        optimiser.zero_grad(set_to_none=True)  # so that each replay writes gradients and adds to none
        with torch.cuda.graph(graph, pool=pool):
            step()
        with torch.no_grad():  # back to the start, in place
            for tensor, value in zip(module.state_dict().values(), start, strict=True):
                tensor.copy_(value)
            for moments in optimiser.state.values():
                for tensor in moments.values():
                    tensor.zero_()
        return graph


def learn(module: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor, name: Arithmetic) -> None:
    """One step on one batch: x (b, ...), y (b,)."""
    optimiser.zero_grad(set_to_none=True)
    with torch.autocast(x.device.type, torch.bfloat16, enabled=name == "bf16"):
        loss = F.cross_entropy(module(x), y)
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


@contextmanager
def tuned_convolutions() -> Iterator[None]:
    """Inside, cuDNN tries its algorithms and takes the fastest; what is captured here keeps it."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _copies(
    module: nn.Module, clients: int, device: torch.device, format: torch.memory_format = torch.contiguous_format
) -> list[nn.Module]:
    module = copy.deepcopy(module).to(device).train()
    for parameter in module.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=format)
    return [copy.deepcopy(module) for _ in range(clients)]


def _formatted(x: Tensor, format: torch.memory_format) -> Tensor:
    """x (k, b, ...), each client's part in this memory format."""
    if format != torch.channels_last:
        return x
    return x.flatten(0, 1).contiguous(memory_format=format).view(x.shape)


def _warmed_up(step: Callable[[], None]) -> None:
    """On a stream of its own, as capturing asks for."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
