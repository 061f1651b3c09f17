"""What is done to the one matrix of weights beside training: attention, mixing, and writing it to disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ..base import machine
from ..base.state import State
from ..base.weights import Layout
from ..maths import collaboration
from ..runs.checkpoint import Checkpoint
from ..runs.config import Config
from .steps import cnn, mlp, resnet
from .timing import Peak, Plan, Row, alone, clocked, forget, interleaved

# ---- collaboration ----


def collaborations(plan: Plan) -> list[Row]:
    """Attention and mixing beside a plain copy of the weights: at full size, over clients, over parameters."""
    rows: list[Row] = []
    d = plan.sized(1_000, 200_000, Layout.of(resnet("cifar", 1).module()).size if plan.cuda else 1_000_000)
    m = plan.sized(4, 100, 100)
    rows += _compared("one size", m, d, plan)
    for clients in plan.sized((2,), (10, 100), (10, 30, 100, 300, 1000)):
        rows += _compared("clients", clients, plan.sized(100, 100_000, 1_000_000 if plan.cuda else 20_000), plan)
    for parameters in plan.sized((100,), (), (10_000, 100_000, 1_000_000)):
        rows += _compared("parameters", m, parameters, plan)
    if not plan.cuda and plan.size != "short":
        rows.append(_at_scale(*plan.sized((4, 1000), (1000, 1_700_000), (1000, 1_700_000)), plan))
    return rows


def _compared(along: str, m: int, d: int, plan: Plan) -> list[Row]:
    """Attention needs distances once and mixing once a round; the copy reads and writes each weight once."""
    plan.tell(f"attention and mixing of {m} clients with {d:,} parameters")
    forget(plan.device)
    source = torch.Generator(plan.device).manual_seed(0)
    W = torch.randn(m, d, device=plan.device, generator=source)
    U = torch.empty_like(W)
    xi = torch.softmax(torch.randn(m, m, device=plan.device, generator=source, dtype=torch.float64), 1)
    ways: dict[str, Callable[[], object]] = {
        "copy": lambda: U.copy_(W),
        "distances and mixing": lambda: (collaboration.squared_distances(W), collaboration.mix(xi, W, out=U)),
    }
    if along == "one size":
        ways |= {
            "distances": lambda: collaboration.squared_distances(W),
            "cosines": lambda: collaboration.cosine_distances(W),
            "mixing": lambda: collaboration.mix(xi, W, out=U),
        }
    timings = interleaved(ways, plan)
    copied = timings["copy"].median
    about = {"along": along, "clients": m, "parameters": d, "bytes": W.nbytes}
    return [
        {**about, "way": way, **timing.row(), "times_copy": timing.median / copied} for way, timing in timings.items()
    ]


def _at_scale(m: int, d: int, plan: Plan) -> Row:
    """Once, in a process of its own: what it takes beyond the weights and the result."""
    row: Row = {"along": "at scale", "clients": m, "parameters": d, "bytes": 4 * m * d, "way": "distances and mixing"}
    needed, free = 9 * m * d, machine.free_bytes(plan.device)
    if needed > free:
        return {**row, "skipped": f"it needs {needed / 2**30:.0f} GiB, and {free / 2**30:.0f} are free"}
    plan.tell(f"attention and mixing of {m} clients with {d:,} parameters, in a process of its own")
    return {**row, **alone(_memory_and_time, m, d)}


def _memory_and_time(m: int, d: int) -> Row:
    device = torch.device("cpu")
    collaboration.mix(torch.eye(2, dtype=torch.float64), torch.ones(2, 2))  # what torch loads at its first product
    collaboration.squared_distances(torch.ones(2, 2))
    peak = Peak(device)
    source = torch.Generator().manual_seed(0)
    W = torch.empty(m, d)
    for row in W:
        row.normal_(generator=source)
    kept: dict[str, Tensor] = {}

    def collaborate() -> None:
        distances, _ = collaboration.squared_distances(W)
        kept["U"] = collaboration.mix(torch.softmax(-distances / distances.mean(), 1), W)

    timing = interleaved({"copy": lambda: W.clone()}, Plan(device, "tiny"))["copy"]
    forget(device)
    seconds = clocked(collaborate, device)
    least = W.nbytes + kept["U"].nbytes
    found: Row = {"ms": 1e3 * seconds, "repeats": 1, "times_copy": seconds / timing.median, "peak_bytes": peak.bytes}
    return found if peak.bytes is None else {**found, "beyond": peak.bytes / least - 1}


# ---- checkpoints ----


def checkpoints(plan: Plan) -> list[Row]:
    """Saving and reading a checkpoint of FedAMP beside a plain write and read of the same bytes."""
    loads = plan.sized([mlp(3, hidden=4)], [mlp(20), cnn(10)], [mlp(20), cnn(100)])
    rows: list[Row] = []
    for load in loads:
        plan.tell(f"a checkpoint of {load.clients} clients with the {load.name}")
        with tempfile.TemporaryDirectory() as folder:
            for row in _of_a_checkpoint(_state(load.clients, _size(load.module()), plan.device), Path(folder), plan):
                rows.append({"workload": load.name, "clients": load.clients, **row})
    return rows


def _size(module: torch.nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.state_dict().values())


def _state(m: int, d: int, device: torch.device) -> Checkpoint:
    W = torch.randn(m, d, device=device)
    heard = torch.ones(m, dtype=torch.bool, device=device)
    server = State(W=W, heard=heard, xi=torch.eye(m, dtype=torch.float64, device=device))
    return Checkpoint(1, {"server": server, "memory": State(personal=W.clone())})


def _read(checkpoint: Checkpoint) -> None:
    """Every number once: safetensors reads what is looked at."""
    for state in checkpoint.states.values():
        for _, tensor in state.items():
            tensor.clone()


def _of_a_checkpoint(checkpoint: Checkpoint, folder: Path, plan: Plan) -> list[Row]:
    path, beside, config = folder / "checkpoint" / "state.safetensors", folder / "plain", Config()
    checkpoint.save(path, config)
    content = path.read_bytes()

    def write() -> None:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    write()
    ways: dict[str, Callable[[], object]] = {
        "save": lambda: checkpoint.save(path, config),
        "plain write": write,
        "load": lambda: _read(Checkpoint.load(path, config)),
        "plain read": beside.read_bytes,
    }
    timings = interleaved(ways, plan)
    plain = {"save": "plain write", "load": "plain read"}
    rows = []
    for way, timing in timings.items():
        row: Row = {"way": way, "bytes": len(content), **timing.row()}
        if way in plain:
            row["times_plain"] = timing.median / timings[plain[way]].median
        rows.append(row)
    return rows
