"""Compiling kernels ahead: each once, side by side, and what goes wrong is told by name and stops nothing."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from helpers import DEVICE
from torch import Tensor, nn

from fedkin.base.task import LOSSES
from fedkin.base.weights import Layout
from fedkin.gpu import launching, layer_kernels
from fedkin.training.execution import Batch, Layered


class Kernel:
    """As `launch` and `rehearse` see one of Triton's: started, or warmed up to something that `run` starts."""

    def __init__(self, name: str, error: Exception | None = None, seconds: float = 0.0) -> None:
        self.__name__, self.error, self.seconds = name, error, seconds
        self.started, self.loaded = 0, 0
        self.arg_names: list[str] = []
        self.do_not_specialize: list[str] = []
        self.warmed: list[tuple[float, float, tuple[Any, ...], dict[str, Any]]] = []

    def __getitem__(self, grid: object) -> Any:
        def start(*given: Any, **further: Any) -> None:
            self.started += 1

        return start

    def warmup(self, *given: Any, grid: object, **further: Any) -> Kernel:
        began = time.perf_counter()
        time.sleep(self.seconds)
        self.warmed.append((began, time.perf_counter(), given, further))
        if self.error is not None:
            raise self.error
        return self

    @property
    def run(self) -> None:
        self.loaded += 1


def tensor(*shape: int) -> Tensor:
    return torch.zeros(*shape, device=DEVICE)


def test_outside_of_a_rehearsal_kernels_are_started() -> None:
    kernel = Kernel("convolve")
    launching.launch(kernel, (1,), tensor(3), BLOCK=16)
    assert kernel.started == 1 and not kernel.warmed


def test_each_kind_of_start_is_compiled_once_and_made_ready() -> None:
    first, second = Kernel("convolve"), Kernel("turned")

    def step() -> None:
        for _ in range(2):
            launching.launch(first, (4,), tensor(100), 7, BLOCK=16)
            launching.launch(first, (4,), tensor(200), 9, BLOCK=16)  # no other kind: neither is one, nor a 16th
            launching.launch(first, (4,), tensor(100), 16, BLOCK=16)
            launching.launch(first, (4,), tensor(100)[1:], 7, BLOCK=16)
            launching.launch(first, (4,), tensor(100), 7, BLOCK=32)
        launching.launch(second, (1,), tensor(5).bool())

    done = launching.rehearse(step)
    assert done == launching.Rehearsed(5) and done.trouble is None
    assert (first.started, first.loaded, len(first.warmed)) == (0, 4, 4)
    assert (second.started, second.loaded, len(second.warmed)) == (0, 1, 1)
    launching.launch(second, (1,), tensor(5))
    assert second.started == 1, "it is over"


def test_numbers_that_a_kernel_is_not_compiled_for_make_no_other_kernel() -> None:
    kernel = Kernel("convolve")
    kernel.arg_names, kernel.do_not_specialize = ["x", "height", "n"], ["height"]

    def step() -> None:
        for height in (1, 7, 16):
            launching.launch(kernel, (1,), tensor(3), height, 5)
        launching.launch(kernel, (1,), tensor(3), 1 << 40, 5)
        launching.launch(kernel, (1,), tensor(3), 7, 16)

    assert launching.rehearse(step).compiled == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("beyond", [0, 1, 3])
def test_what_stands_in_for_a_tensor_is_of_its_kind_and_small(dtype: torch.dtype, beyond: int) -> None:
    """Triton compiles other kernels for memory that does not begin at a 16th byte."""
    own = torch.zeros(10_000, dtype=dtype, device=DEVICE)[beyond:]
    other = launching._stand_in(own)
    assert launching._kind(other) == launching._kind(own)
    assert other.device == own.device and other.untyped_storage().nbytes() < 64
    assert launching._stand_in(7) == 7 and launching._stand_in(None) is None


def test_a_kernels_first_variant_comes_before_the_others_and_kernels_side_by_side() -> None:
    slow, other = Kernel("convolve", seconds=0.1), Kernel("turned", seconds=0.1)

    def step() -> None:
        for block in (16, 32, 64):
            launching.launch(slow, (1,), tensor(3), BLOCK=block)
            launching.launch(other, (1,), tensor(3), BLOCK=block)

    assert launching.rehearse(step).compiled == 6
    for kernel in (slow, other):
        (_, ended, _, further), *later = sorted(kernel.warmed, key=lambda warmed: warmed[0])
        assert further == {"BLOCK": 16} and min(began for began, *_ in later) >= ended
    assert other.warmed[0][0] < slow.warmed[0][1]


@pytest.mark.parametrize("first", [True, False])
def test_a_kernel_that_cannot_be_compiled_is_named_with_the_reason(first: bool) -> None:
    good = Kernel("turned")
    bad = Kernel("convolve", RuntimeError("PassManager::run failed\nand a long trace"))

    def step() -> None:
        for kernel in (bad, good) if first else (good, bad):
            launching.launch(kernel, (1,), tensor(3), BLOCK=16)
        launching.launch(bad, (1,), tensor(3), BLOCK=32)

    done = launching.rehearse(step)
    assert done.compiled == 1 and done.refused == ("convolve: PassManager::run failed",) * 2
    assert done.trouble == (
        "Some kernels are compiled when they are needed, not ahead (2 of 3 failed: convolve: PassManager::run failed)."
    )


class Unloadable(Kernel):
    @property
    def run(self) -> None:
        raise RuntimeError("out of resource: shared memory")


def test_a_kernel_that_cannot_be_loaded_is_named_too() -> None:
    kernel = Unloadable("gram")
    done = launching.rehearse(lambda: launching.launch(kernel, (1,), tensor(3)))
    assert done == launching.Rehearsed(0, ("gram: out of resource: shared memory",))


def test_a_step_that_fails_in_a_rehearsal_is_told_and_what_it_came_by_is_compiled() -> None:
    kernel = Kernel("convolve")

    def step() -> None:
        launching.launch(kernel, (1,), tensor(3))
        raise ValueError("Expected more than 1 value per channel.")

    done = launching.rehearse(step)
    assert done == launching.Rehearsed(1, broken_off="Expected more than 1 value per channel")
    assert done.trouble == (
        "Some kernels are compiled when they are needed, not ahead (the step was broken off: Expected more than 1 "
        "value per channel)."
    )
    launching.launch(kernel, (1,), tensor(3))
    assert kernel.started == 1, "it is over all the same"


def test_who_interrupts_a_rehearsal_interrupts_it() -> None:
    def step() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launching.rehearse(step)
    kernel = Kernel("convolve")
    launching.launch(kernel, (1,), tensor(3))
    assert kernel.started == 1


def test_one_rehearsal_at_a_time() -> None:
    done = launching.rehearse(lambda: launching.rehearse(lambda: None))
    assert done.broken_off == "A rehearsal is going on already, and there can be one at a time"
    assert launching.rehearse(lambda: None) == launching.Rehearsed(0)


def test_kernels_of_a_backward_pass_are_noted_whichever_thread_starts_them() -> None:
    kernel = Kernel("convolve_back")

    def step() -> None:
        thread = threading.Thread(target=launching.launch, args=(kernel, (1,), tensor(3)))
        thread.start()
        thread.join()

    assert launching.rehearse(step).compiled == 1 and not kernel.started


def test_an_execution_tells_what_its_rehearsals_came_to_and_computes_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = nn.Sequential(nn.Linear(4, 3))
    layout = Layout.of(module)
    run = Layered(module, layout, LOSSES["cross_entropy"], DEVICE)
    W = layout.row(module).to(DEVICE).repeat(2, 1)
    batch = Batch(torch.randn(2, 5, 4).to(DEVICE), torch.randint(3, (2, 5)).to(DEVICE), [5, 5])
    expected = run.grad(W, batch)[0]
    assert run.trouble is None
    own = layer_kernels.call

    def linear(*given: Any) -> Any:
        if launching._going_on is not None:
            raise RuntimeError("no such thing")
        return own(*given)

    monkeypatch.setattr(layer_kernels, "call", linear)
    monkeypatch.setattr(Layered, "_rehearses", lambda self, W, x: launching._going_on is None)
    other = Layered(module, layout, LOSSES["cross_entropy"], DEVICE)
    for _ in range(3):
        torch.testing.assert_close(other.grad(W, batch)[0], expected)
    assert len(other.rehearsals) == 3 if other.player is None else other.rehearsals
    assert other.trouble == (
        "Some kernels are compiled when they are needed, not ahead (the step was broken off: no such thing)."
    )
    if other.player is not None:
        other.player.trouble = "It was not recorded."
        assert other.trouble.startswith("It was not recorded. Some kernels are")
