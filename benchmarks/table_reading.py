"""How long a large table takes from a CSV file to a federation: `python benchmarks/table_reading.py [ROWS]`.

The table is made up: twelve silos, eight columns of numbers of which three have gaps, a category with gaps, and a
target of two classes. Reading includes everything before training: cells, splits, statistics, inputs.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedkin.data.federation import Federation


def write(path: Path, rows: int, seed: int = 0) -> None:
    """A CSV of `rows` rows and ten columns, besides the silo's."""
    import pyarrow as pa
    from pyarrow import csv

    rng = np.random.default_rng(seed)
    columns: dict[str, pa.Array] = {"silo": pa.array(rng.choice([f"clinic-{i:02d}" for i in range(12)], rows))}
    for i in range(8):
        values = rng.normal(50, 10, rows).round(3) if i % 2 else rng.integers(0, 200, rows).astype(np.float64)
        columns[f"number_{i}"] = pa.array(values, mask=rng.random(rows) < 0.05 if i < 3 else None)
    words = rng.choice(["none", "mild", "strong", "worst"], rows)
    columns["pain"] = pa.array(words, mask=rng.random(rows) < 0.1)
    columns["ill"] = pa.array(rng.choice(["no", "yes"], rows))
    csv.write_csv(pa.table(columns), path)


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "patients.csv"
        write(path, rows)
        started, spent = time.perf_counter(), time.process_time()
        federation = Federation.from_table(path, "silo", "ill")
        seconds, spent = time.perf_counter() - started, time.process_time() - spent
        size = path.stat().st_size / 1e6
    trained = sum(client.samples for client in federation.clients)
    print(f"{rows:,} rows, {size:.0f} MB, to a federation of {len(federation)} silos with {trained:,} training rows:")
    print(f"{seconds:.1f} s ({spent:.1f} s of CPU time) on {os.cpu_count()} cores, Python {platform.python_version()}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
