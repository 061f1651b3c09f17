"""Recordings of a step, with a stand-in for CUDA's graphs that runs the step again; test_cuda.py has the real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import toy, watched
from torch import Tensor

from fedkin.gpu import cuda_graphs
from fedkin.gpu.cuda_graphs import Player

D, SIZE = 3, 4
"""Weights that are trained, and all numbers of a row."""


@dataclass
class Stage:
    """What was run as it is, recorded and played; and what a recording shall fail with."""

    direct: int = 0
    recorded: int = 0
    played: int = 0
    error: RuntimeError | None = None
    recording: Graph | None = None


class Graph:
    def __init__(self) -> None:
        self.again: Callable[[], None] = lambda: None

    def replay(self) -> None:
        self.again()


def step(W: Tensor, x: Tensor, y: Tensor, weight: Tensor | None, G: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    weights = torch.ones_like(y) if weight is None else weight
    G.copy_(W[:, :D] + (weights * y).sum(1, keepdim=True) * x.sum((1, 2))[:, None])
    return G, W.sum(1) + x.sum((1, 2)), W[:, D:] + 1


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage()

    @contextmanager
    def graph(of: Graph, pool: Any) -> Iterator[None]:
        if stage.error is not None:
            raise stage.error
        stage.recording = of
        yield
        stage.recording = None

    fake = SimpleNamespace(CUDAGraph=Graph, graph=graph, graph_pool_handle=lambda: (0, 1), empty_cache=lambda: None)
    monkeypatch.setattr(cuda_graphs, "torch", SimpleNamespace(cuda=fake))
    return stage


def player(stage: Stage) -> Player:
    def staged(*given: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        found = step(*given)
        if stage.recording is None:
            stage.direct += 1
        else:
            stage.recorded += 1

            def again() -> None:
                stage.played += 1
                for fixed, new in zip(found, step(*given), strict=True):
                    if fixed is not None and new is not None:
                        fixed.copy_(new)

            for tensor in (*found, *given[1:]):  # a recording computes nothing
                if tensor is not None:
                    tensor.fill_(torch.nan)
            stage.recording.again = again
        return found

    return Player(staged, D)


def batch(k: int, size: int, seed: int, weighted: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
    source = torch.Generator().manual_seed(seed)
    x, y = torch.randn(k, size, 2, generator=source), torch.randn(k, size, generator=source)
    return x, y, torch.rand(k, size, generator=source) if weighted else None


def rows(k: int, seed: int = 9) -> Tensor:
    return torch.randn(k, SIZE, generator=torch.Generator().manual_seed(seed))


def check(found: tuple[Tensor, Tensor, Tensor | None], W: Tensor, given: tuple[Tensor, Tensor, Tensor | None]) -> None:
    for own, expected in zip(found, step(W, *given, W.new_empty(len(W), D)), strict=True):
        assert own is not None and expected is not None
        torch.testing.assert_close(own, expected)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_second_batch_of_a_shape_is_recorded_and_from_then_on_played(stage: Stage, weighted: bool) -> None:
    own = player(stage)
    for turn in range(4):
        W, G = own.workspace(rows(5, turn))
        given = batch(5, 6, turn, weighted)
        found = own(W, *given, G)
        check(found, rows(5, turn), given)
        assert found[0].data_ptr() == G.data_ptr()
    assert (stage.direct, stage.recorded, stage.played) == (1, 1, 3)


def test_every_shape_has_a_recording_of_its_own(stage: Stage) -> None:
    own = player(stage)
    W, G = own.workspace(rows(5))
    for turn in range(3):
        for k, size, weighted in ((5, 6, False), (5, 4, False), (3, 6, False), (5, 6, True)):
            given = batch(k, size, turn, weighted)
            check(own(W[:k], *given, G[:k]), rows(5)[:k], given)
    assert (stage.direct, stage.recorded, stage.played) == (4, 4, 8)


def test_rows_that_lie_elsewhere_are_copied_in_and_keep_their_gradients(stage: Stage) -> None:
    own = player(stage)
    kept = []
    for turn in range(3):
        W, given = rows(4, turn), batch(4, 5, turn)
        kept.append((own(W, *given, None), W, given))
    for found, W, given in kept:
        check(found, W, given)
    out = torch.empty(4, D)
    given = batch(4, 5, 7)
    found = own(rows(4, 7), *given, out)
    assert found[0].data_ptr() == out.data_ptr()
    check(found, rows(4, 7), given)
    assert (stage.direct, stage.recorded, stage.played) == (1, 1, 3)


def test_a_larger_workspace_is_recorded_anew_and_a_smaller_one_lies_in_the_same_memory(stage: Stage) -> None:
    own = player(stage)

    def train(k: int) -> int:
        for turn in range(3):
            W, G = own.workspace(rows(k))
            given = batch(k, 5, turn)
            check(own(W, *given, G), rows(k), given)
        return W.data_ptr()

    first = train(4)
    assert train(2) == first
    train(6)
    train(4)
    assert stage.recorded == 4, "4, 2, 6, and 4 once more, as its memory is gone"


def test_no_more_shapes_are_recorded_than_are_worth_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "MOST", 2)
    own = player(stage)
    W, G = own.workspace(rows(3))
    for turn in range(3):
        for size in (2, 3, 4, 5):
            given = batch(3, size, turn)
            check(own(W, *given, G), rows(3), given)
    assert stage.recorded == 2 and stage.played == 4 and stage.direct == 8


def test_what_cannot_be_recorded_is_run_as_it_is_and_the_reason_is_kept(stage: Stage) -> None:
    own = player(stage)
    stage.error = RuntimeError("operation not permitted when stream is capturing\nmore")
    W, G = own.workspace(rows(3))
    for turn in range(3):
        given = batch(3, 5, turn)
        check(own(W, *given, G), rows(3), given)
    assert stage.direct == 3 and own.trouble is not None
    assert "(operation not permitted when stream is capturing)" in own.trouble


def test_memory_that_runs_out_in_a_recording_is_told_to_the_caller(stage: Stage) -> None:
    own = player(stage)
    stage.error = torch.cuda.OutOfMemoryError("CUDA out of memory")
    W, G = own.workspace(rows(3))
    own(W, *batch(3, 5, 0), G)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        own(W, *batch(3, 5, 1), G)
    assert own.trouble is None, "with fewer clients it may succeed"


def test_what_is_forgotten_is_recorded_anew(stage: Stage) -> None:
    own = player(stage)
    for _ in range(2):
        for turn in range(2):
            W, G = own.workspace(rows(3))
            given = batch(3, 5, turn)
            check(own(W, *given, G), rows(3), given)
        own.forget()
        assert not own.recordings and not own.places
    assert stage.recorded == 2


def test_a_run_tells_once_what_is_slower_than_it_might_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = watched(tmp_path, toy(), method="fedavg", rounds=3)
    monkeypatch.setattr(type(run.a.execution), "trouble", "It was not recorded.")
    told: list[str] = []
    run.listener.on_warning = told.append
    run.run()
    assert told == ["It was not recorded."]
