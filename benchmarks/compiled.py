"""What the kernels of `_triton.py` compile to for an H100 or H200, without one: registers, memory, and fetching ahead.

    python benchmarks/compiled.py             a table
    python benchmarks/compiled.py --json      a line of JSON for each kernel

Whether a loop fetches its next pieces of memory while it computes (`ahead`) or waits for them (`waits`) depends on what
Triton's compiler can see of an address; the numbers are the same. What spills goes through memory. Triton's version
decides, too: run this with the one that is used.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.pop("TRITON_INTERPRET", None)  # which would take the place of the compiler

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fedkin.gpu import triton_kernels

HALF, FULL, BYTE = "*bf16", "*fp32", "*u8"
PADS = {"stride_h": 1, "stride_w": 1, "pad_h": 1, "pad_w": 1, "dilation_h": 1, "dilation_w": 1}
ONE = {"dilation_h": 1, "dilation_w": 1}


class Case(NamedTuple):
    """A kernel with what is passed to it: the types of its tensors, and what the compiler knows of its numbers."""

    name: str
    kernel: str
    tensors: dict[str, str]
    known: dict[str, Any]
    multiples: str = ""
    """Numbers that are multiples of 16; all others may be anything."""
    warps: int = 4
    stages: int = 3


def cases() -> Iterator[Case]:
    for kind, bk in ((HALF, 64), (FULL, 32)):
        for width in (64, 128):
            about = f"{kind[1:]}, {width} channels"
            cut = {"PRECISION": "tf32", "BM": 128, "BN": width, "BK": bk}
            whole = {"bias": None, "C": width, "BIASED": False, "WHOLE": True, **ONE, **cut}
            yield Case(f"convolve, {about}", "convolve", dict.fromkeys("xwy", kind), whole, "O K")
            back = {"STRIDE_H": 1, "STRIDE_W": 1, "EVEN": True, **ONE, **cut}
            yield Case(f"convolve_back, {about}", "convolve_back", dict.fromkeys(("dy", "w", "dx"), kind), back, "C O")
            parts = {"PARTS": kind == FULL, "HALF": True, "BEYOND": False, "WHOLE": True, "PRECISION": "tf32"}
            sides = {"C": width, "OW": 16, "OHW": 256, "BO": width, "BN": 64, "BK": bk}
            tensors = {"x": kind, "dy": kind, "dw": FULL}
            known = {**PADS, **parts, **sides}
            yield Case(
                f"convolve_weights, {about}", "convolve_weights", tensors, known, "O K per_split dw_client dw_split"
            )
    places = {"H": 28, "W": 28, "C": 1, "OW": 28, "OHW": 784, "K": 25, "S": 5, "WIDTH": 32, "BP": 64, "BW": 32}
    moves = dict.fromkeys(("STRIDE_H", "STRIDE_W", "DILATION_H", "DILATION_W"), 1)
    yield Case("patches", "patches", dict.fromkeys("xy", HALF), {**places, **moves})
    yield Case("rounded", "rounded", {"x": FULL, "y": HALF}, {"BLOCK": 2048}, "n x_row")
    yield Case("turned", "turned", {"x": FULL, "y": HALF}, {"BR": 64, "BC": 64}, "rows columns x_client y_client")
    pooled = {"P": 2, "BV": 32, "BC": 32}
    yield Case("pool", "pool", {"x": HALF, "y": HALF, "where": BYTE}, pooled, "C")
    yield Case("pool_back", "pool_back", {"dy": HALF, "where": BYTE, "dx": HALF}, pooled, "C")
    share, relu = {"BP": 32, "BC": 64}, {"RELU": True}
    yield Case("moments", "moments", {"x": HALF, "mean": FULL, "spread": FULL}, share, "C per_split")
    factors = {"factor": FULL, "summand": FULL}
    tensors = {**dict.fromkeys(("x", "other", "y"), HALF), **factors}
    yield Case("scaled", "scaled", tensors, {"ADDED": True, **relu, **share}, "C")
    sums = dict.fromkeys(("mean", "sum_dy", "sum_dyx"), FULL)
    yield Case("slopes", "slopes", {**dict.fromkeys(("x", "dy", "y"), HALF), **sums}, {**relu, **share}, "C per_split")
    tensors = dict.fromkeys(("x", "dy", "y", "dx", "dother"), HALF) | dict.fromkeys(("of_dy", "of_x", "summand"), FULL)
    yield Case("scaled_back", "scaled_back", tensors, {"ADDED": True, **relu, **share}, "C")
    rows = dict.fromkeys(("W", "G", "first", "second", "anchor", "size", "root", "pull"), FULL)
    steps = "w_row g_row first_row second_row anchor_row"
    for exact in (True, False):
        known = {"ANCHORED": True, "EXACT": exact, "DECAYED": False, "BLOCK": 1024}
        yield Case(f"adam, {'exact' if exact else 'gradient'}", "adam", rows, known, steps)
    gram = {"scale": None, "mean": None, "UNIT": 4, "SCALED": False, "SINGLE": True, "HALF": True, "BM": 128, "BK": 64}
    yield Case("gram", "gram", dict.fromkeys(("W", "out", "squares"), FULL), gram, "M per_split", 8)
    mixed = {"UNIT": 4, "SINGLE": True, "BM": 128, "BN": 64, "BK": 128}
    yield Case("mix", "mix", {"xi": HALF, "W": FULL, "U": FULL}, mixed, "R M", 8)


FLOATS = ("share1", "keep2", "share2", "eps", "decay")


def compiled(case: Case) -> dict[str, Any]:
    kernel = getattr(triton_kernels, case.kernel)
    types = {n: case.tensors.get(n, "fp32" if n in FLOATS else "i32") for n in kernel.arg_names}
    types |= dict.fromkeys(case.known, "constexpr")
    values = {(kernel.arg_names.index(n),): value for n, value in case.known.items()}
    even = {*case.tensors, *case.multiples.split()} - set(case.known)
    attributes = {(kernel.arg_names.index(n),): [["tt.divisibility", 16]] for n in even}
    source = ASTSource(fn=kernel, signature=types, constexprs=values, attrs=attributes)
    options = {"num_warps": case.warps, "num_stages": case.stages}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    middle = made.asm["ttgir"]
    loop = middle.partition("scf.for")[2]
    return {
        "kernel": case.name,
        **usage(made.asm["cubin"]),
        "shared_bytes": made.metadata.shared,
        "products": middle.count("warp_group_dot ") + middle.count("tt.dot "),
        "ahead": middle.count("async_copy_global_to_local"),
        "waits": loop.count("tt.load"),
    }


def usage(cubin: bytes) -> dict[str, int]:
    """Registers of a thread, and bytes of it that do not fit in them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        told = subprocess.run([tool, "-res-usage", file], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    assert found is not None, told
    return {"registers": int(found[1]), "spilled_bytes": int(found[2])}


def main() -> None:
    for i, case in enumerate(cases()):
        row = compiled(case)
        if "--json" in sys.argv:
            print(json.dumps(row))
            continue
        if i == 0:
            print(f"{'Triton ' + triton.__version__:34}" + "".join(f"{head:>14}" for head in list(row)[1:]))
        print(f"{row['kernel']:34}" + "".join(f"{value:>14,}" for value in list(row.values())[1:]), flush=True)


if __name__ == "__main__":
    main()
