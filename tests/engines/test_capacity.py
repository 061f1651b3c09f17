"""How many clients train at a time: what one needs is seen, memory that runs out is answered, and nothing grows."""

from __future__ import annotations

import ctypes
import gc
import json
import math
import multiprocessing
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from helpers import BASE, DEVICE, ON_CPU, Watched, at, normed, ready, same, simulate, toy, watched
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import fedkin
from fedkin.base import machine, spinning
from fedkin.base.state import State
from fedkin.base.task import Task
from fedkin.cli import terminal
from fedkin.data.federation import Client, Federation
from fedkin.engines import capacity, handing
from fedkin.engines.assembly import Assembly
from fedkin.engines.capacity import OutOfMemory, Room
from fedkin.engines.lockstep import run_together
from fedkin.engines.requests import RanOut, within_memory
from fedkin.engines.simulation import Listener, Simulation
from fedkin.engines.start import prepare, start
from fedkin.runs.checkpoint import Checkpoint
from fedkin.runs.config import merge
from fedkin.runs.folder import Writer
from fedkin.training import evaluation
from fedkin.training.execution import Batch

T = TypeVar("T")
EIGHT = (11, 9, 8, 7, 6, 5, 5, 4)
GROUPS = (0, 1, 0, 1, 0, 1, 0, 1)
METHODS = (
    *("separate", "fedavg", "fedprox", "groups", "fedamp", "heurfedamp", "scaffold", "apfl"),
    *("perfedavg", "pfedme", "sfl", "pfedhn", "panacea", "panacea_gn"),
)


def eight() -> Federation:
    return toy(EIGHT, GROUPS)


# ---- chunks ----


@pytest.mark.parametrize(
    ("clients", "at_once", "expected"),
    [(8, 8, [8]), (8, 9, [8]), (8, 7, [4, 4]), (8, 3, [3, 3, 2]), (10, 4, [4, 3, 3]), (3, 1, [1] * 3), (0, 3, [])],
)
def test_chunks_are_as_equal_as_can_be(clients: int, at_once: int, expected: list[int]) -> None:
    left, chunks = list(range(clients)), []
    while left:
        chunks.append(Room(at_once, "").first(left))
        left = left[len(chunks[-1]) :]
    assert [len(chunk) for chunk in chunks] == expected
    assert [client for chunk in chunks for client in chunk] == list(range(clients))


# ---- memory that runs out ----


class Narrow:
    """Lets the gradients of a run fail as torch does, when more than so many clients are stacked."""

    def __init__(self, assembly: Assembly, most: int, after: int = 0) -> None:
        self.inner, self.most, self.after = assembly.execution.grad, most, after
        self.tried: list[int] = []
        assembly.execution.grad = self  # type: ignore[method-assign]

    def __call__(self, W: Tensor, batch: Batch, *more: Any, **settings: Any) -> Any:
        self.tried.append(len(batch))
        if len(batch) > self.most and len(self.tried) > self.after:
            torch.empty(1 << 50)
        return self.inner(W, batch, *more, **settings)


def assert_same_runs(first: Watched, second: Watched) -> None:
    for k in first.servers:
        for a, b in ((first.servers[k], second.servers[k]), (first.memories[k], second.memories[k])):
            assert list(a) == list(b)
            for name, tensor in a.items():
                assert same(tensor, dict(b.items())[name]), f"{name} after round {k}"
    for k, line in first.lines.items():
        assert line["models"] == second.lines[k]["models"] and line["train_loss"] == second.lines[k]["train_loss"]


@pytest.mark.parametrize("optimiser", [{}, {"optimiser": "adam", "persist_optimiser": True}], ids=["", "persistent"])
@pytest.mark.parametrize("method", METHODS)
def test_chunks_that_memory_is_too_small_for_are_halved_and_trained_again_from_where_they_stood(
    tmp_path: Path, method: str, optimiser: dict[str, Any]
) -> None:
    """It runs out in the middle of training, after some steps of eight and of four."""
    if optimiser and method in ("apfl", "scaffold"):
        pytest.skip("this method has optimisers of its own")
    settings = {"method": method, "participation": {"lost": 0.3}, "local": optimiser}
    expected = simulate(tmp_path, eight(), **settings, chunk=2)
    run = watched(tmp_path, eight(), **settings)
    narrow = Narrow(run.a, most=2, after=2)
    run.run()
    assert_same_runs(run, expected)
    assert max(narrow.tried) == 8 and {2} <= set(narrow.tried)
    told = [w for w in run.warnings if "Memory ran out" in w]
    assert told == [
        "Memory ran out with 8 clients at a time; from here on there are 4.",
        "Memory ran out with 4 clients at a time; from here on there are 2.",
    ]
    assert fedkin.Run(run.writer.path).summary["execution"]["clients_at_once"] == 2
    assert "ran out" in fedkin.Run(run.writer.path).summary["execution"]["clients_at_once_reason"]


def test_one_client_that_memory_is_too_small_for_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    assembly = ready(eight(), method="fedamp")
    Narrow(assembly, most=0)
    with pytest.raises(OutOfMemory) as error:
        start(assembly, tmp_path / "run")
    said = str(error.value)
    for words in ("client 'a'", "can't allocate memory", "local.batch_size (now 4)", "'float64'", f"'{DEVICE.type}'"):
        assert words in said
    assert said.count("\n") == 0 and not (tmp_path / "run").exists()


def test_what_ran_out_holds_on_to_nothing() -> None:
    """An exception keeps the frames it came through, and all that was made there."""
    before = _tensors()

    def compute() -> None:
        large = torch.ones(1 << 20)
        if large.sum():
            torch.empty(1 << 50)

    reply = within_memory(compute)
    assert isinstance(reply, RanOut) and "allocate" in reply.said and "\n" not in reply.said
    gc.disable()
    assert _tensors()[1] - before[1] < 1 << 20
    gc.enable()


def test_memory_may_run_out_while_models_are_scored(tmp_path: Path) -> None:
    """Per-FedAvg adapts its models before they are scored, with gradients."""
    settings: dict[str, Any] = {"method": "perfedavg", "local": {"epochs": 1}, "rounds": 1}
    expected = simulate(tmp_path, eight(), **settings, chunk=4)
    run = watched(tmp_path, eight(), **settings)
    inner = run.method.models

    def models(cohort: Any, *rest: Any) -> Any:
        if len(cohort) > 4:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return inner(cohort, *rest)

    object.__setattr__(run.method, "models", models)
    run.run()
    assert run.lines[1]["models"] == expected.lines[1]["models"]
    assert len(run.warnings) == 1


def test_memory_may_run_out_while_models_are_handed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = simulate(tmp_path, eight(), method="fedamp", rounds=1)
    run = watched(tmp_path, eight(), method="fedamp", rounds=1)
    inner = handing.all_outputs

    def outputs(execution: Any, samples: Any, model: Any) -> Any:
        if len(samples) > 4:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return inner(execution, samples, model)

    monkeypatch.setattr(handing, "all_outputs", outputs)
    run.run()
    first, second = fedkin.Run(expected.writer.path), fedkin.Run(run.writer.path)
    assert [f.name for f in sorted(second.path.rglob("*"))] == [f.name for f in sorted(first.path.rglob("*"))]
    answers, again = first.outputs(), second.outputs()
    assert answers is not None and again is not None and answers.clients == again.clients
    for name, own in answers.models.items():
        torch.testing.assert_close(again.models[name], own, rtol=1e-6, atol=1e-6)


def test_all_are_scored_so_memory_has_to_be_plenty_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = watched(tmp_path, eight(), method="fedavg", participation={"sample": 0.25})
    asked: list[int] = []
    monkeypatch.setattr(capacity, "plenty", lambda assembly, clients: asked.append(clients) or True)
    run.run()
    assert asked == [8]


def test_what_a_chunk_sent_is_not_held_while_the_next_trains(tmp_path: Path) -> None:
    run = watched(tmp_path, eight(), method="fedamp", chunk=2, rounds=2)
    inner, sent, held = run.method.train, list[Any](), list[int]()

    def train(*arguments: Any) -> Any:
        gc.collect()
        held.append(sum(each() is not None for each in sent))
        upload, memory = inner(*arguments)
        sent.append(weakref.ref(upload.W))
        return upload, memory

    object.__setattr__(run.method, "train", train)
    run.run()
    assert held == [0] * 8


@pytest.mark.parametrize("where", ["begin", "enlist", "download", "update", "welcome"])
def test_memory_that_runs_out_at_the_server_is_a_sentence(tmp_path: Path, where: str) -> None:
    run = watched(tmp_path, method="fedamp", participation={"novel": 0.25} if where == "welcome" else {})

    def fails(*arguments: Any) -> Any:
        return torch.empty(1 << 50)

    object.__setattr__(run.method, where, fails)
    with pytest.raises(OutOfMemory, match="for the weights of all [43] clients"):
        run.run()


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    run = watched(tmp_path, method="fedamp")

    def fails(*arguments: Any) -> Any:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    object.__setattr__(run.method, "train", fails)
    with pytest.raises(RuntimeError, match="mat1"):
        run.run()


def test_a_resumed_run_keeps_to_the_numbers_it_had(tmp_path: Path) -> None:
    run = watched(tmp_path, eight(), method="fedavg", rounds=4)
    Narrow(run.a, most=3)
    run.threads = 3, "as another machine would have it"
    run.listener.stop = lambda: len(run.lines) == 2
    with pytest.raises(Exception, match="Stopped after round 2"):
        run.run()
    again = Watched(ready(eight(), method="fedavg", rounds=4), Writer(run.writer.path))
    checkpoint = Checkpoint.load(run.writer.checkpoint, again.config)
    narrow = Narrow(again.a, most=3)
    again.run(checkpoint)
    assert max(narrow.tried) == 2 and not again.warnings
    assert again.threads == (3, "as before it was resumed")


def test_runs_side_by_side_are_fewer_where_memory_runs_out(tmp_path: Path) -> None:
    """Six runs of four clients in one stack; ten rows are too many."""
    rates = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06)

    def runs(folder: str) -> list[Watched]:
        made = [ready(method="fedamp", local={"lr": lr, "persist_optimiser": True}) for lr in rates]
        return [Watched(a, Writer.create(tmp_path / folder / str(i), a.config)) for i, a in enumerate(made)]

    alone, together = runs("alone"), runs("together")
    for run in alone:
        run.run()
    narrow = Narrow(together[0].a, most=10)
    for run in together[1:]:
        run.a.execution.grad = narrow  # type: ignore[method-assign]
    run_together(together, [None] * len(together))
    for one, other in zip(alone, together, strict=True):
        assert_same_runs(one, other)
    assert [rows for rows in narrow.tried if rows > 10] == [24, 12, 12], "later rounds do not try again"


# ---- what one client needs ----


def wide(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """A model that makes much of its inputs, and has few weights."""
    return nn.Sequential(
        nn.Unflatten(1, (4, 1)), nn.Linear(1, 4000), nn.Tanh(), nn.Linear(4000, 1), nn.Flatten(), nn.Linear(4, outputs)
    )


def needs(monkeypatch: pytest.MonkeyPatch, run: Simulation, free: int) -> Room:
    """The room of a run that begins with so much free memory; it stops before its first training."""
    monkeypatch.setattr("fedkin.base.machine.free_bytes", lambda device: free)
    rounds = run.rounds()
    next(rounds)
    rounds.close()
    assert run.site.capacity.room is not None
    return run.site.capacity.room


@pytest.mark.parametrize("way", ["stacked", "one-by-one"])
def test_activations_count_where_clients_are_stacked(tmp_path: Path, monkeypatch: Any, way: str) -> None:
    """Four samples of 4 x 4,000 numbers, at least twice, in float64; the weights are 8,000 numbers."""
    run = watched(tmp_path, eight(), model=wide, method="fedavg", execution=way)
    found = needs(monkeypatch, run, 64 << 20).clients
    activations, rows = 2 * 4 * 4 * 4000 * 8, 8_000 * 8
    available = capacity.SHARE[DEVICE.type] * (64 << 20)
    if way == "stacked":
        assert found <= available / activations
        assert found >= available / (12 * activations)
    else:
        assert available / (12 * rows * capacity.UNSEEN["cpu"]) <= found <= available / (2 * rows)


def test_one_by_one_does_not_take_memory_that_brings_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    def found(way: str, enough: int) -> Room:
        monkeypatch.setattr("fedkin.engines.capacity.ENOUGH", enough)
        run = watched(tmp_path, eight(), model=wide, method="fedavg", execution=way)
        took = needs(monkeypatch, run, 64 << 20)
        assert bool(run.warnings) == (took.short and took.clients < 8)
        return took

    assert found("stacked", 1 << 20) == found("stacked", 1 << 40)
    assert found("one-by-one", 1 << 40).clients > 4 * found("one-by-one", 1 << 20).clients
    assert "nothing" in found("one-by-one", 1 << 20).reason


def test_adam_needs_more_rows_than_sgd_and_a_larger_batch_more_than_a_small_one(
    tmp_path: Path, monkeypatch: Any
) -> None:
    def found(**local: Any) -> int:
        run = watched(
            tmp_path, toy((64,) * 8), model={"name": "mlp", "settings": {"hidden": [400]}}, method="fedavg", local=local
        )
        return needs(monkeypatch, run, 40 << 20).clients

    sgd, adam = found(optimiser="sgd", batch_size=4), found(optimiser="adam", batch_size=4)
    assert adam < sgd and found(optimiser="sgd", batch_size=64) < sgd


def test_what_is_kept_of_all_clients_is_set_aside(monkeypatch: Any) -> None:
    """Uploads stay until the round ends, however few train at a time."""
    assembly = ready(eight(), method="fedavg")
    row = State(W=torch.zeros(2, 1 << 18))
    monkeypatch.setattr("fedkin.base.machine.free_bytes", lambda device: 64 << 20)

    def train(count: int) -> State:
        torch.zeros(count, 1 << 18, device=DEVICE)
        return row

    rooms = [capacity.measured(assembly, clients, train).clients for clients in (2, 32, 64, 1000)]
    assert rooms == sorted(rooms, reverse=True) and rooms[0] > rooms[1] > rooms[2] == rooms[3] == 1


def test_runs_side_by_side_share_the_memory(monkeypatch: Any) -> None:
    assembly = ready(eight(), method="fedavg")
    monkeypatch.setattr("fedkin.base.machine.free_bytes", lambda device: 256 << 20)

    def train(count: int) -> State:
        torch.zeros(count, 1 << 18, device=DEVICE)
        return State()

    alone, beside = (capacity.measured(assembly, 8, train, runs).clients for runs in (1, 4))
    assert beside == pytest.approx(alone / 4, abs=1)


def test_a_look_that_fails_does_not_fail_the_run(monkeypatch: Any) -> None:
    assembly = ready(eight(), method="fedavg")
    monkeypatch.setattr("fedkin.base.machine.free_bytes", lambda device: 1 << 20)
    row = assembly.problem.layout.size * 8

    def fails(count: int) -> State:
        raise ValueError("not with so few")

    def ran_out(count: int) -> State:
        return State(W=torch.empty(1 << 50))

    assert capacity.measured(assembly, 8, fails).clients == int(capacity.SHARE[DEVICE.type] * (1 << 20) // (12 * row))
    assert capacity.measured(assembly, 8, ran_out).clients == 1


@pytest.mark.parametrize("method", METHODS)
def test_looking_changes_nothing(tmp_path: Path, monkeypatch: Any, method: str) -> None:
    """Whatever the method: the run is the one that has memory in plenty, but for the number of clients at a time."""
    settings: dict[str, Any] = {"method": method, "participation": {"lost": 0.3}, "rounds": 2}
    expected = simulate(tmp_path, eight(), model=normed, **settings, chunk=4)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    looked = []
    real = capacity.measured

    def four(assembly: Assembly, clients: int, train: Callable[[int], State], beside: int = 1) -> Room:
        found = real(assembly, clients, train, beside)
        looked.append(found)
        return replace(found, clients=4, short=True)

    monkeypatch.setattr("fedkin.engines.capacity.measured", four)
    monkeypatch.setattr("fedkin.engines.capacity.plenty", lambda assembly, clients: False)
    run = simulate(tmp_path, eight(), model=normed, **settings)
    assert_same_runs(run, expected)
    assert torch.equal(before, torch.get_rng_state())
    assert len(looked) == 1 and looked[0].reason.startswith("one takes ")
    assert [w for w in run.warnings if "train at a time" in w] == [
        f"4 of 8 clients train at a time: {looked[0].reason}."
    ]


def test_the_numbers_and_their_reasons_are_in_the_summary(tmp_path: Path) -> None:
    run = fedkin.Run(simulate(tmp_path, eight(), method="fedavg").writer.path)
    how = run.summary["execution"]
    assert how == {
        "way": "stacked",
        "reason": "as configured",
        "precision": "float64",
        "weights": "memory",
        "trouble": None,
        "clients_at_once": 8,
        "clients_at_once_reason": "memory is plenty",
        "threads": 1,
        "threads_reason": how["threads_reason"],
    }
    assert "small" in how["threads_reason"]
    chunked = fedkin.Run(simulate(tmp_path, eight(), method="fedavg", chunk=3, threads=2).writer.path).summary
    assert chunked["execution"]["clients_at_once"] == 3
    assert chunked["execution"]["clients_at_once_reason"] == "as configured"
    assert (chunked["execution"]["threads"], chunked["execution"]["threads_reason"]) == (2, "as configured")


@pytest.mark.skipif(DEVICE.type != "cpu", reason="it is about the memory of the process")
@pytest.mark.parametrize(
    ("name", "way", "batch"), [("cnn", "stacked", 50), ("cnn", "one-by-one", 50), ("resnet18", "one-by-one", 8)]
)
def test_what_is_seen_on_a_cpu_bounds_what_the_process_grows_by(name: str, way: str, batch: int) -> None:
    """Four clients, by what one and two were seen to need."""
    seen, grown, W = apart(seen_and_grown, name, way, batch)
    expected = (seen[0] + 3 * (seen[1] - seen[0])) * capacity.UNSEEN["cpu"]
    assert 2 * W < grown <= 1.25 * expected
    assert expected <= 4 * grown


def seen_and_grown(name: str, way: str, batch: int) -> tuple[list[int], int, int]:
    """Bytes that one and two clients were seen to need, those by which the process grew with four, and of weights."""
    shape = (1, 28, 28) if name == "cnn" else (3, 32, 32)
    assembly = images(4, batch, shape, execution=way, model={"name": name}, local={"batch_size": batch, "steps": 1})
    W = assembly.problem.initial.repeat(4, 1)

    def train(count: int) -> None:
        rows = State(u=W[:count], personal=W[:count])
        assembly.method.train(assembly.cohort.take(range(count)), rows, rows, at(1))

    _, grown = growth(lambda: train(4))
    seen = []
    for count in (1, 2):
        with machine.measured(DEVICE) as used:
            train(count)
        seen.append(used())
    return seen, grown, W.nbytes


def growth(compute: Callable[[], T]) -> tuple[T, int]:
    """The result, and by how much the process was larger at most; VmHWM, its largest size, can be reset."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was used before and kept by the allocator would not count
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    result = compute()
    return result, _status("VmHWM") - before


def apart(function: Callable[..., T], *arguments: Any) -> T:
    """In a process of its own: what others have used and given back would not count as growth."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("Linux alone tells")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def images(clients: int, samples: int, shape: tuple[int, ...], **settings: Any) -> Assembly:
    source = torch.Generator().manual_seed(3)

    def client(i: int) -> Client:
        x = torch.randn(samples + 2, *shape, generator=source)
        y = torch.randint(10, (samples + 2,), generator=source)
        return Client(f"c{i:04}", (x[:samples], y[:samples]), (x[samples:], y[samples:]))

    federation = Federation("images", tuple(map(client, range(clients))), Task.classification(shape, 10))
    base = {"method": "fedamp", "rounds": 1, "device": DEVICE.type, "data": {"validation": 0.0}}
    return prepare(merge(base, settings), federation=federation)


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) * 1024


# ---- nothing grows ----


def _tensors() -> tuple[int, int]:
    """How many tensors live, and their bytes; those that share memory count once."""
    gc.collect()
    storages = {}
    count = 0
    for thing in gc.get_objects():
        # Those without memory are left over from an export to ONNX by another test.
        if issubclass(type(thing), Tensor) and not isinstance(thing, FakeTensor) and thing.layout == torch.strided:
            count += 1
            storages[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    return count, sum(storages.values())


@pytest.mark.parametrize("method", ["fedamp", "panacea", "scaffold"])
def test_nothing_grows_from_round_to_round(tmp_path: Path, method: str) -> None:
    seen: dict[int, tuple[int, int]] = {}
    early, late = range(5, 11), range(30, 36)

    def on_round(record: dict[str, Any]) -> None:
        if record["round"] in (*early, *late):
            evaluation._parts.cache_clear()  # which keeps a few at most, but not yet in round 5
            seen[record["round"]] = _tensors()

    settings = merge(BASE, {"method": method, "rounds": 35, "participation": {"sample": 0.7, "lost": 0.3}})
    fedkin.run(settings, federation=eight(), out=tmp_path / "run", listener=Listener(on_round=on_round))
    # Which clients' memories are held back changes by lot, so the largest of six rounds each.
    # On a GPU a number of clients that was not there before is recorded, in tensors of its own (replay.MOST of them).
    for kind, slack in ((0, 8), (1, 4096)) if ON_CPU else ((0, 100), (1, 1 << 20)):
        assert max(seen[k][kind] for k in late) <= max(seen[k][kind] for k in early) + slack


@pytest.mark.slow
@pytest.mark.skipif(DEVICE.type != "cpu", reason="it is about the memory of the process")
@pytest.mark.parametrize("method", ["fedamp", "panacea"])
def test_the_process_does_not_grow_from_round_to_round(tmp_path: Path, method: str) -> None:
    sizes = apart(sizes_of_the_process, method, tmp_path / "run")
    assert sizes[40] - sizes[10] < 1 << 20, "less than the weights of all clients are, of which nothing is kept"


def sizes_of_the_process(method: str, path: Path) -> dict[int, int]:
    """Bytes, by round."""
    sizes: dict[int, int] = {}

    def on_round(record: dict[str, Any]) -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        sizes[record["round"]] = _status("VmRSS")

    model = {"name": "mlp", "settings": {"hidden": [2000]}}
    settings = merge(BASE, {"method": method, "rounds": 40, "model": model, "local": {"epochs": 1}})
    fedkin.run(settings, federation=eight(), out=path, listener=Listener(on_round=on_round))
    return sizes


# ---- many clients ----


@pytest.mark.slow
@pytest.mark.skipif(DEVICE.type != "cpu", reason="it is about the memory of the process")
@pytest.mark.parametrize(("method", "bound"), [("separate", 2.0), ("fedavg", 3.0), ("fedamp", 7.0)])
def test_a_run_takes_few_times_the_weights_of_all_clients(tmp_path: Path, method: str, bound: float) -> None:
    """What is kept: of FedAMP the server's rows, the three that clients remember (their model, and for trust in others
    what their own training changed, and the cloud model as it was heeded), the download and the uploads; of FedAvg two
    of these, of Separate one. Two clients train at a time, so what training takes is little."""
    assert apart(times_the_weights, method, tmp_path / "run") < bound


def times_the_weights(method: str, path: Path) -> float:
    model = {"name": "mlp", "settings": {"hidden": [2000, 500]}}
    settings = {"method": method, "model": model, "chunk": 2, "local": {"epochs": 1, "batch_size": 10}}
    assembly = images(64, 10, (1, 28, 28), execution="one-by-one", **settings)
    return growth(lambda: start(assembly, path))[1] / (64 * assembly.problem.layout.size * 4)


# ---- threads ----


def wide_federation(weights: int) -> Assembly:
    """Eight clients with so many weights together, or a few more."""
    assembly = ready(eight(), model={"name": "mlp", "settings": {"hidden": [math.ceil(weights / 64)]}}, method="fedavg")
    assert weights <= len(assembly.problem) * assembly.problem.layout.size < 1.5 * weights
    return assembly


def test_threads_by_the_number_of_weights_and_all_for_convolutions(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    monkeypatch.setattr(spinning, "BOUNDED", True)
    small = ready(eight(), method="fedavg")
    assert capacity.threads(small)[0] == 1
    assert [capacity.threads(wide_federation(n * capacity.EACH))[0] for n in (1, 2, 4, 16)] == [1, 2, 4, 6]
    convolutions = images(1, 4, (1, 28, 28), model={"name": "cnn"})
    assert convolutions.problem.layout.size < capacity.SMALL and capacity.threads(convolutions)[0] == 6
    assert capacity.threads(ready(eight(), method="fedavg", threads=3)) == (3, "as configured")


def test_threads_that_spin_are_for_large_models_alone(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    monkeypatch.setattr(spinning, "BOUNDED", False)
    assert capacity.threads(wide_federation(4 * capacity.EACH))[0] == 1
    assert capacity.threads(wide_federation(capacity.SMALL))[0] == 6
    assert capacity.threads(images(1, 4, (1, 28, 28), model={"name": "cnn"}))[0] == 6


def test_a_run_has_the_threads_of_the_rule_and_gives_them_back(tmp_path: Path) -> None:
    before, seen = torch.get_num_threads(), []
    run = watched(tmp_path, method="fedavg", threads=2)
    run.listener.on_round = lambda record: seen.append(torch.get_num_threads())
    run.run()
    assert set(seen) == {2} and torch.get_num_threads() == before


@pytest.mark.skipif(DEVICE.type != "cpu", reason="threads are of a CPU")
def test_threads_and_what_is_unusual_are_told_at_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for count, words in ((0, "1 thread"), (3, "3 threads")):
        with terminal.listening(3, tmp_path) as listener:
            listener.on_start(ready(eight(), method="fedavg", threads=count))
        assert f"; {words}; precision float64. Writing to" in " ".join(capsys.readouterr().err.split())
    with terminal.listening(3, tmp_path) as listener:
        listener.on_start(ready(eight(), method="fedavg", precision="float32", chunk=3, weights="disk"))
    told = " ".join(capsys.readouterr().err.split())
    assert "; 1 thread; 3 clients at a time; weights on disk. Writing to" in told


# ---- peaks ----


def test_the_peak_of_a_run_is_in_its_summary_and_on_a_gpu_that_of_each_round(tmp_path: Path) -> None:
    run = simulate(tmp_path, eight(), method="fedavg")
    summary = json.loads((run.writer.path / "summary.json").read_text())
    if DEVICE.type == "cuda":
        peaks = [line["peak_bytes"] for line in run.lines.values() if "final" not in line]
        assert 0 < max(peaks) <= summary["peak_bytes"]
    else:
        assert all("peak_bytes" not in line for line in run.lines.values())
        assert summary["peak_bytes"] <= machine.peak_bytes(DEVICE)
