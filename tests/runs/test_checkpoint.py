"""Checkpoints come back bit for bit, and those of another run or damaged ones are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedkin.base.state import State
from fedkin.runs.checkpoint import Checkpoint
from fedkin.runs.config import resolve
from fedkin.runs.folder import RunError

CONFIG = resolve({"rounds": 3, "data": {"clients": 5}, "local": {"epochs": 1}})


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


# ---- checkpoints ----


def full_checkpoint() -> Checkpoint:
    odd = torch.tensor([1.0, float("nan"), -0.0, float("inf"), 1e-42])
    return Checkpoint(
        7,
        {
            "server": State({"w": odd, "k": torch.tensor([3], dtype=torch.int64)}, xi=torch.rand(2, 2).double()),
            "memory": State(personal=torch.randn(2, 6)[:, ::2], heard=torch.tensor([True, False])),
            "held": State(),
        },
    )


def test_a_checkpoint_comes_back_bit_for_bit(tmp_path):
    path, before = tmp_path / "checkpoint" / "state.safetensors", full_checkpoint()
    before.save(path, CONFIG)
    after = Checkpoint.load(path, CONFIG)
    assert after.round == 7
    assert set(after.states) == set(before.states)
    for kind, state in before.states.items():
        found = dict(after.states[kind].items())
        assert after.states[kind].shared == state.shared
        assert set(found) == set(state)
        for name, tensor in state.items():
            assert found[name].dtype == tensor.dtype
            assert found[name].shape == tensor.shape
            assert bits(found[name]) == bits(tensor)
    assert [p.name for p in path.parent.iterdir()] == [path.name], "nothing else is left behind"


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path):
    path = tmp_path / "checkpoint" / "state.safetensors"
    full_checkpoint().save(path, CONFIG)
    with pytest.raises(RunError, match="belongs to another configuration"):
        Checkpoint.load(path, CONFIG.model_copy(update={"seed": 4}))
    assert Checkpoint.load(path, CONFIG.model_copy(update={"rounds": 4})).round == full_checkpoint().round, "longer"


def test_a_damaged_checkpoint_is_refused_with_a_sentence_and_never_half_read(tmp_path):
    path = tmp_path / "checkpoint" / "state.safetensors"
    full_checkpoint().save(path, CONFIG)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    damaged = [b"", whole[:4], whole[: header // 2], whole[:-1], b"\0" * len(whole), whole[::-1], whole + b"more"]
    damaged.append(whole[:header].replace(b"__metadata__", b"__metabata__") + whole[header:])
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(RunError, match=r"cannot be read .*remove it to start from round 1"):
            Checkpoint.load(path, CONFIG)
