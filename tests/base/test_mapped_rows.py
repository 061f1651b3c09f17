"""Rows in files: real safetensors, mapped; damage is told in sentences; and a run on them is the same run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from helpers import cpu_only, simulate, toy, watched
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedkin
from fedkin.base import mapped_rows
from fedkin.base.mapped_rows import Shelf, StorageError
from fedkin.base.settings import ConfigError
from fedkin.data.federation import Federation
from fedkin.engines.simulation import Interrupted, advance
from fedkin.maths.collaboration import cosine_distances, mix, softmax_of_others, squared_distances, with_self
from fedkin.runs.checkpoint import Checkpoint
from fedkin.studies.run import Run

pytestmark = cpu_only


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def file_behind(tensor: Tensor) -> str:
    """The file whose mapping a tensor's memory is part of, as the kernel tells; empty for plain memory."""
    at = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, inode, *path = line.split(maxsplit=5)
        start, end = (int(x, 16) for x in span.split("-"))
        if start <= at < end:
            return path[0] if inode != "0" else ""
    raise AssertionError("memory that is not mapped")


def on_a_shelf(tensor: Tensor, folder: Path) -> bool:
    """Whether it lies in a file of this folder that has no name any more."""
    file = file_behind(tensor)
    return file.startswith(f"{folder}/") and file.endswith("(deleted)")


# ---- files ----


def test_a_new_file_is_zeros_and_any_reader_sees_what_is_written_into_its_tensors(tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    rows = mapped_rows.create(path, {"flag": ((3,), torch.bool), "W": ((4, 7), torch.float32), "n": ((), torch.int64)})
    assert {name: (tuple(t.shape), t.dtype) for name, t in rows.items()} == {
        "flag": ((3,), torch.bool),
        "W": ((4, 7), torch.float32),
        "n": ((), torch.int64),
    }
    assert not any(t.any() for t in rows.values())
    assert [p.name for p in tmp_path.iterdir()] == ["rows.safetensors"]
    rows["W"].copy_(random(4, 7))
    rows["W"][2, 3] = torch.nan
    rows["flag"][1] = True
    rows["n"].fill_(-5)
    read = safetensors.torch.load_file(path)
    assert set(read) == set(rows)
    for name, tensor in rows.items():
        assert torch.equal(read[name].nan_to_num(nan=1e9), tensor.nan_to_num(nan=1e9)), name


def test_numbers_lie_where_a_processor_likes_them_and_have_their_place_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    rows = mapped_rows.create(
        path, {"odd": ((3,), torch.int8), "W": ((99, 99), torch.float64), "h": ((3,), torch.float16)}
    )
    assert rows["W"].data_ptr() % 64 == 0
    assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in rows.values())
    assert path.stat().st_blocks * 512 >= path.stat().st_size, "a full disk must show before anything is written"


@pytest.mark.parametrize("dtype", list(mapped_rows.DTYPES.values()), ids=list(mapped_rows.DTYPES))
def test_what_safetensors_writes_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "theirs.safetensors"
    W = (10 * random(3, 5)).to(dtype)
    tensors = {"W": W, "odd": torch.ones(3, dtype=torch.uint8), "none": torch.zeros(0, 4, dtype=dtype), "one": W[0, 0]}
    safetensors.torch.save_file({n: t.clone() for n, t in tensors.items()}, path, {"who": "they"})
    read, metadata = mapped_rows.read(path)
    assert metadata == {"who": "they"}
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype and torch.equal(read[name], tensor)


def test_only_a_file_opened_for_writing_changes(tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    mapped_rows.create(path, {"W": ((2, 3), torch.float64)})["W"].fill_(1)
    before = path.read_bytes()
    private = mapped_rows.open_rows(path)["W"]
    private.add_(1)
    assert private.unique().tolist() == [2] and path.read_bytes() == before
    mapped_rows.open_rows(path, writable=True)["W"].add_(1)
    assert path.read_bytes() != before and safetensors.torch.load_file(path)["W"].unique().tolist() == [2]


def test_a_tensor_outlives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    W = mapped_rows.create(path, {"W": ((2, 3), torch.float64)})["W"]
    path.unlink()
    W.fill_(3)
    assert W.sum() == 18


def written(path: Path, entries: Any, data: bytes) -> Path:
    head = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)
    return path


def entry(shape: Any = (2, 3), offsets: Any = (0, 24), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


DAMAGED: dict[str, tuple[Any, str]] = {
    "no JSON": (b"{" * 9, "its head is not JSON"),
    "no text": (b"\xff" * 16, "its head is not JSON"),
    "nested beyond reason": (b"[" * 200_000, "its head is not JSON"),
    "a list": ([1], "not a table"),
    "metadata of numbers": ({"__metadata__": {"a": 1}, "W": entry()}, "not a table of texts"),
    "an unknown type": ({"W": entry(dtype="F8_E4M3")}, "'W' is of type 'F8_E4M3'; known are F64, F32"),
    "no type": ({"W": entry(dtype=7)}, "tensor 'W' is not a type, a shape and a place"),
    "no entry": ({"W": "F32"}, "tensor 'W' is not a type"),
    "one offset": ({"W": entry(offsets=[0])}, "tensor 'W' is not a type"),
    "a shape of fractions": ({"W": entry(shape=[2, 3.0])}, "tensor 'W' is not a type"),
    "a negative shape": ({"W": entry(shape=[-2, -3])}, "tensor 'W' is not a type"),
    "true as a size": ({"W": entry(shape=[True, 6])}, "tensor 'W' is not a type"),
    "a shape that does not fit": ({"W": entry(shape=[2, 4])}, "'W' of shape [2, 4] does not fit the bytes 0 to 24"),
    "sizes beyond reason": ({"W": entry(), "V": entry([0, 2**62, 4], (24, 24))}, "does not fit"),
    "backwards": ({"W": entry(offsets=[24, 0])}, "does not fit"),
    "a tensor behind the end": ({"W": entry([4, 3], (0, 48))}, "cut short: tensor 'W' ends 24 bytes behind"),
    "two in one place": ({"V": entry([6]), "W": entry()}, "does not fit"),
    "a hole": ({"W": entry([5], (4, 24))}, "does not fit"),
    "bytes to spare": ({"W": entry([5], (0, 20))}, "4 bytes that belong to no tensor"),
}


@pytest.mark.parametrize("case", DAMAGED)
@pytest.mark.parametrize("writable", [False, True])
def test_damage_is_told_in_a_sentence(tmp_path: Path, case: str, writable: bool) -> None:
    entries, said = DAMAGED[case]
    path = written(tmp_path / "damaged.safetensors", entries, bytes(24))
    with pytest.raises(StorageError) as refused:
        mapped_rows.open_rows(path, writable=writable)
    assert said in str(refused.value) and str(path) in str(refused.value)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    mapped_rows.create(path, {"W": ((2, 3), torch.float32), "n": ((2,), torch.int64)})
    whole = path.read_bytes()
    mapped_rows.open_rows(path)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(StorageError):
            mapped_rows.open_rows(path)
    with pytest.raises(StorageError, match="cannot be opened: No such file"):
        mapped_rows.open_rows(tmp_path / "none.safetensors")


@settings(deadline=None, derandomize=True, database=None, max_examples=400)
@given(st.data())
def test_no_change_of_a_byte_leads_out_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever stands in the head: a sentence, or tensors that lie within the file and can be read to the end."""
    path = tmp_path_factory.getbasetemp() / "changed.safetensors"
    mapped_rows.create(path, {"W": ((2, 3), torch.float32), "n": ((2,), torch.int64)})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 41))] = data.draw(
            st.sampled_from(b'0123456789{}[]",: FI\0\xff')
        )
    path.write_bytes(content)
    try:
        tensors = mapped_rows.open_rows(path)
    except StorageError:
        return
    assert sum(t.nbytes for t in tensors.values()) <= len(content)
    for tensor in tensors.values():
        tensor.double().sum()


def test_a_file_that_the_disk_has_no_room_for_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"rows\.safetensors cannot be made \([\d.]+ GB\): "):
        mapped_rows.create(tmp_path / "rows.safetensors", {"W": ((1 << 20, 1 << 30), torch.float64)})
    with pytest.raises(StorageError, match="There is no room for"):
        Shelf(tmp_path).empty((1 << 20, 1 << 30), torch.float64)
    assert list(tmp_path.iterdir()) == []


# ---- attention and mixing on mapped rows ----


def test_models_in_a_file_are_compared_and_mixed_as_in_memory(tmp_path: Path) -> None:
    W, xi = random(70, 9001), with_self(softmax_of_others(3 * random(70, 70, dtype=torch.float64)), 0.8)
    rows = mapped_rows.create(tmp_path / "W.safetensors", {"W": (W.shape, W.dtype), "U": (W.shape, W.dtype)})
    rows["W"].copy_(W)
    for mapped in (rows["W"], mapped_rows.open_rows(tmp_path / "W.safetensors")["W"]):
        for found, expected in zip(squared_distances(mapped), squared_distances(W), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)
        torch.testing.assert_close(cosine_distances(mapped), cosine_distances(W), rtol=1e-13, atol=0)
        torch.testing.assert_close(mix(xi, mapped), mix(xi, W))
    assert mix(xi, rows["W"], out=rows["U"]) is rows["U"]
    mix(xi, rows["W"], out=rows["W"])
    read = safetensors.torch.load_file(tmp_path / "W.safetensors")
    for name in ("U", "W"):
        torch.testing.assert_close(read[name].double(), xi @ W.double(), rtol=0, atol=2e-6)


FEW_ANONYMOUS = """
import resource, sys
from pathlib import Path
import torch
from fedkin.base import mapped_rows as storage
from fedkin.maths.collaboration import cosine_distances, mix, softmax_of_others, squared_distances, with_self

torch.set_num_threads(1)
m, d = 64, 500_000
rows = storage.create(Path(sys.argv[1]), {name: ((m, d), torch.float32) for name in ("W", "U")})
W, U = rows["W"], rows["U"]
for i in range(m):
    W[i].normal_(generator=torch.Generator().manual_seed(i)).add_(i // 16)
small = torch.randn(m, 100)
mix(torch.eye(m), small), squared_distances(small), cosine_distances(small)  # what libraries take for themselves
taken = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) * 1024
limit = taken + W.nbytes // 2
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    W.clone()
except RuntimeError:
    print("limited")
distances, _ = squared_distances(W)
cosine_distances(W, origin=W[0])
xi = with_self(softmax_of_others(-distances / distances.mean()), 0.9)
mix(xi, W, out=U)
mix(xi, W, out=W)
some = torch.arange(0, m, 7)
squared_distances(W, torch.arange(0, d, 2), some)
print("equal" if torch.equal(U, W) else "not equal", float(distances[0, 1] < distances[0, 63]))
"""


def test_anonymous_memory_does_not_grow_with_models_in_files(tmp_path: Path) -> None:
    """128 MB of models, and as much again for the result, with 64 MB that are not a file's: the kernel sees to it."""
    said = subprocess.run(
        [sys.executable, "-c", FEW_ANONYMOUS, str(tmp_path / "W.safetensors")],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )
    assert said.stdout.split() == ["limited", "equal", "1.0"], said.stderr


# ---- a shelf ----


def test_on_a_shelf_large_copies_lie_in_files_and_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shelf, "LEAST", 800)
    row, W = random(50), random(6, 50)
    index = torch.tensor([3, -1, 0, 3, 2, 1])

    def made() -> list[Tensor]:
        return [
            row.repeat(6, 1),
            W.clone(),
            torch.zeros_like(W),
            W.new_zeros(6, 50),
            torch.cat([W, W[:2]]),
            W[index],
            mix(torch.eye(6), W),
        ]

    expected = made()
    with Shelf(tmp_path):
        found = made()
        small = [row.clone(), W[index[:3]], W[:, index], torch.cat([W, W], dim=1), W.repeat(2, 1), W[2:], W * 2]
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)
        assert on_a_shelf(a, tmp_path) and not file_behind(b)
    assert not any(file_behind(tensor) for tensor in small)
    assert not file_behind(W.clone()), "only while it is in force"
    assert list(tmp_path.iterdir()) == [], "no name is left, whatever happens to the process"


def test_on_a_shelf_mistakes_and_gradients_are_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shelf, "LEAST", 1)
    W = random(4, 3).requires_grad_()
    with Shelf(tmp_path):
        with pytest.raises((IndexError, RuntimeError)):
            W.detach()[torch.tensor([4])]
        torch.cat([W, W.clone()])[torch.tensor([0, 5])].sum().backward()
        assert torch.cat([torch.zeros(2, 2), torch.zeros(1, 2, dtype=torch.float64)]).dtype == torch.float64
    assert W.grad is not None and W.grad.tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0], [0, 0, 0]]


# ---- runs ----


def seven() -> Federation:
    return toy((9, 8, 7, 7, 6, 5, 4), groups=(0, 0, 0, 1, 1, 1, 0))


SETTINGS: dict[str, Any] = {
    "rounds": 4,
    "chunk": 2,
    "precision": "float32",
    "participation": {"lost": 0.3, "sample": 0.8, "novel": 0.2},
}


def same_runs(a: Path, b: Path) -> None:
    """All that was recorded, and every file of a model, bit by bit; times and the setting itself aside."""
    first, second = Run(a), Run(b)
    for x, y in zip(first.rounds, second.rounds, strict=True):
        assert {**x, "seconds": 0} == {**y, "seconds": 0}
    assert first.summary["models"] == second.summary["models"] and first.summary["novel"] == second.summary["novel"]
    for folder in ("models", "collaboration"):
        files = sorted(p.name for p in (a / folder).glob("*"))
        assert files == sorted(p.name for p in (b / folder).glob("*"))
        for name in files:
            assert (a / folder / name).read_bytes() == (b / folder / name).read_bytes(), name


@pytest.mark.parametrize("method", ["fedamp", "fedavg", "scaffold", "heurfedamp", "apfl", "groups", "pfedhn"])
def test_a_run_on_disk_is_the_run_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr(Shelf, "LEAST", 1)
    memory = simulate(tmp_path, seven(), method=method, **SETTINGS)
    disk = simulate(tmp_path, seven(), method=method, weights="disk", **SETTINGS)
    same_runs(memory.writer.path, disk.writer.path)
    for state, other in ((memory.server.state, disk.server.state), (memory.memory, disk.memory)):
        for name, tensor in state.items():
            assert torch.equal(tensor, dict(other.items())[name]), name
    kept = [*dict(disk.memory.items()).values(), *([disk.server.state.W] if method == "fedamp" else [])]
    assert all(on_a_shelf(tensor, disk.writer.path) for tensor in kept), "or this test would prove nothing"
    assert {p.name for p in disk.writer.path.iterdir()} == {p.name for p in memory.writer.path.iterdir()}


@pytest.mark.parametrize("method", ["fedamp", "fedavg", "scaffold"])
def test_a_run_on_disk_is_resumed_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr(Shelf, "LEAST", 1)
    whole = simulate(tmp_path, seven(), method=method, weights="disk", **SETTINGS)
    part = watched(tmp_path, seven(), method=method, weights="disk", **SETTINGS)
    part.listener.stop = lambda: 2 in part.lines
    with pytest.raises(Interrupted):
        part.run()
    checkpoint = part.writer.checkpoint.read_bytes()
    kept = safetensors.torch.load(checkpoint)
    assert torch.equal(kept[f"memory/{next(iter(part.memory))}"], dict(part.memory.items())[next(iter(part.memory))])
    done = fedkin.resume(whole.writer.path.with_name("run-1"), federation=seven())
    same_runs(whole.writer.path, done.path)


def test_rows_of_a_resumed_run_do_not_lie_in_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written over them would stay in memory."""
    monkeypatch.setattr(Shelf, "LEAST", 1)
    run = watched(tmp_path, method="fedamp", weights="disk")
    first = advance(run.rounds())
    assert first is not None and on_a_shelf(run.server.state.W, run.writer.path), "from the beginning"
    run = simulate(tmp_path, method="fedamp", weights="disk")
    advance(run.rounds(Checkpoint.load(run.writer.checkpoint, run.config)))
    assert on_a_shelf(run.server.state.W, run.writer.path) and on_a_shelf(run.memory.personal, run.writer.path)


def test_weights_on_disk_are_for_the_cpu(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="weights = 'disk' is for device = 'cpu'"):
        mapped_rows.shelf_for("disk", tmp_path, torch.device("cuda"))
    assert mapped_rows.shelf_for("memory", tmp_path, torch.device("cuda")) is None
    with pytest.raises(ConfigError, match=r"weights = 'disc' cannot be.*Did you mean 'disk'"):
        simulate(tmp_path, weights="disc")


LARGE_RUN = """
import resource, sys
from pathlib import Path
import torch
from fedkin.engines.start import prepare
from fedkin.engines.simulation import Simulation
from fedkin.data.federation import Client, Federation
from fedkin.runs.folder import Writer
from fedkin.task import Task

torch.set_num_threads(1)
clients = []
for i in range(150):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(i))
    y = (x[:, 0] > 0).long()
    clients.append(Client(f"{i}", (x[:4], y[:4]), (x[4:], y[4:])))
federation = Federation("many", tuple(clients), Task.classification((4,), 2))
settings = {"method": "fedamp", "device": "cpu", "weights": sys.argv[2], "chunk": 2, "rounds": 2, "threads": 1,
            "model": {"name": "mlp", "settings": {"hidden": [60_000]}}, "local": {"epochs": 1, "batch_size": 4}}
assembly = prepare(settings, federation=federation)
taken = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (taken + 300_000_000,) * 2)
Simulation(assembly, Writer.create(Path(sys.argv[1]), assembly.config)).run()
"""


@pytest.mark.slow
def test_a_run_whose_weights_exceed_its_memory(tmp_path: Path) -> None:
    """252 MB of models at the server, as many with the clients, on their way down and on their way up, in 300 MB."""

    def ended(weights: str) -> int:
        arguments = [sys.executable, "-c", LARGE_RUN, str(tmp_path / weights), weights]
        return subprocess.run(arguments, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode

    assert ended("memory") != 0, "the limit is not in force, so this test would prove nothing"
    assert ended("disk") == 0
    assert Run(tmp_path / "disk").complete
