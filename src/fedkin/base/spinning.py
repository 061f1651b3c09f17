"""How long CPU threads wait for each other by spinning: set before torch is loaded, which reads it once.

Threads that wait for each other 50 times a step spin, as going to sleep and waking up takes longer than what they wait
for. By default they spin for milliseconds: where other programs keep the cores busy, each then waits for a thread that
cannot run because of it (benchmarks/threads.py measures it).
"""

from __future__ import annotations

import os
import sys

SET = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
"""Where a user has set one of these, it stays."""

SPINS = "3000"

if "torch" not in sys.modules and not any(name in os.environ for name in SET):
    os.environ["GOMP_SPINCOUNT"] = SPINS

BOUNDED = any(name in os.environ for name in SET) and os.environ.get("OMP_WAIT_POLICY", "").upper() != "ACTIVE"
"""Whether threads are known to spin for a short time only, or as long as the user wants."""
