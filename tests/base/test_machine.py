"""Memory: what is free, what was in use, and errors that say there was none."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import DEVICE
from torch.func import grad, vmap

from fedkin.base import machine

CPU = torch.device("cpu")
MIB = 1 << 20


def numbers(mib: int) -> torch.Tensor:
    return torch.ones(mib * MIB // 4)


def test_what_is_measured_is_the_most_that_new_tensors_have_at_a_time() -> None:
    old = numbers(8)
    with machine.measured(CPU) as used:
        a = numbers(2)
        b = a + old[: len(a)]  # 4
        del a
        c = b.view(2, -1)[0].exp()  # 3: a view is nothing new
        del b, c
        old.mul_(2.0)  # in place
        d = numbers(1)
    after = numbers(16)
    assert used() == 4 * MIB
    del d, after
    with machine.measured(CPU) as used:
        torch.add(old, 1.0, out=old)
    assert used() == 0


@pytest.mark.parametrize("stacked", [False, True])
def test_what_a_gradient_needs_is_seen_under_vmap_too(stacked: bool) -> None:
    """x w, its square root and the slopes: of each client two tensors of samples are saved at least."""
    w, x = torch.rand(4, 50, 400), torch.rand(4, 300, 50)

    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return ((x @ w).sqrt().exp()).sum()

    with machine.measured(CPU) as used:
        if stacked:
            vmap(grad(loss))(w, x)
        else:
            for i in range(4):
                grad(loss)(w[i], x[i])
    one = 300 * 400 * 4
    rows = 4 if stacked else 1
    assert 2 * rows * one <= used() <= 6 * rows * one


def test_a_look_at_memory_does_not_wait_for_torchs_compiler() -> None:
    code = "import sys, torch; from fedkin.base import machine\nwith machine.tensor_bytes(): torch.zeros(3)\n"
    asked = subprocess.run([sys.executable, "-c", code + "print('torch._dynamo' in sys.modules)"], capture_output=True)
    assert asked.stdout.strip() == b"False", asked


def test_on_a_gpu_several_watch_the_same_memory() -> None:
    if DEVICE.type != "cuda":
        pytest.skip("there is no GPU here, or it was not asked for")
    gc.collect()
    first = machine.Watermark(DEVICE)
    before = torch.cuda.memory_allocated(DEVICE)
    large = torch.ones(64 * MIB // 4, device=DEVICE)
    del large
    second = machine.Watermark(DEVICE)
    small = torch.ones(8 * MIB // 4, device=DEVICE)
    assert first.bytes() >= before + 64 * MIB
    assert before + 8 * MIB <= second.bytes() < before + 64 * MIB
    del small


PEAK = """
import torch
from fedkin.base import machine
cpu = torch.device("cpu")
mark = machine.Watermark(cpu)
before = mark.bytes()
large = torch.ones(before // 4 + (1 << 26))
del large
print(mark.bytes() - before, mark.bytes() == machine.peak_bytes(cpu))
"""


def test_on_a_cpu_the_peak_is_that_of_the_process() -> None:
    """A new one: what others took before would hide what this takes. Its peak begins with the size of its parent, which
    it takes and 256 MiB more."""
    said = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True).stdout.split()
    assert int(said[0]) > 200 * MIB and said[1] == "True"


def test_what_is_free_is_less_than_there_is() -> None:
    assert 16 * MIB < machine.free_bytes(CPU) < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("limit", "left"), [(str(1000 * MIB), 750 * MIB), ("max", sys.maxsize), ("100", 0)])
def test_a_container_has_its_own_limit(tmp_path: Path, limit: str, left: int) -> None:
    """Copies of files count as used there, and give way."""
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{300 * MIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 7\ninactive_file {50 * MIB}\nfile {200 * MIB}\n")
    assert machine._free_in_container(tmp_path) == left
    assert machine._free_in_container(tmp_path / "nowhere") == sys.maxsize


def test_torch_itself_says_when_memory_runs_out() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 50)
    assert machine.ran_out(error.value)
    assert machine.ran_out(MemoryError()) and machine.ran_out(torch.cuda.OutOfMemoryError("CUDA out of memory."))
    assert machine.ran_out(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    for other in (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("can't allocate memory")):
        assert not machine.ran_out(other)
