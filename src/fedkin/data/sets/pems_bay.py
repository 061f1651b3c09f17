"""PEMS-BAY: speeds at 325 road sensors of the Bay Area, January to June 2017 (Li et al., DCRNN, 2018); brought by you.

Speeds from `pems-bay.npz` (arrays `speed` (steps, sensors), `ids`, and `times` if you have them) or from DCRNN's
`pems-bay.h5`; the graph from `adjacency.npz` (`adjacency`, `ids`), DCRNN's `adj_mx_bay.pkl`, or its road distances,
`distances_bay_2017.csv`. Samples are those of METR-LA.
"""

from __future__ import annotations

from dataclasses import replace

from .. import roads, traffic
from ..federation import Federation
from ..files import need

SENSORS, STEPS, START = 325, 52_116, "2017-01-01 00:00"
DEFAULTS, SPLITS, Settings = traffic.DEFAULTS, traffic.SPLITS, traffic.Settings


def federate(
    *, split: str, settings: traffic.Settings, seed: int, clients: int | None, verify: bool = True
) -> Federation:
    return traffic.federate(load(verify), split, settings, seed, clients)


def load(verify: bool = True) -> roads.Roads:
    """All readings of all sensors, and their graph; with a note where they are not as many as were published."""
    speeds, graph = need("pems_bay", verify).values()
    found = roads.read("pems_bay", speeds, graph, START)
    steps, sensors = found.speed.shape
    if (steps, sensors) == (STEPS, SENSORS):
        return found
    told = f"{speeds.name} has {sensors} sensors and {steps:,} steps; PEMS-BAY as published has 325 and 52,116."
    return replace(found, notes=(*found.notes, told))
