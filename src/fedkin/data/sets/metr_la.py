"""METR-LA: speeds at 207 loop detectors on the motorways of Los Angeles, March to June 2012 (Jagadish et al., 2014).

34,272 steps of five minutes; 8.1 % of the readings are missing, as zeros. The graph is DCRNN's (Li et al., 2018): a
Gaussian kernel of road distances, cut off below 0.1; directed there, here the larger weight of both directions.
"""

from __future__ import annotations

from .. import roads, traffic
from ..federation import Federation
from ..files import need

START = "2012-03-01 00:00"
DEFAULTS, SPLITS, Settings = traffic.DEFAULTS, traffic.SPLITS, traffic.Settings


def federate(
    *, split: str, settings: traffic.Settings, seed: int, clients: int | None, verify: bool = True
) -> Federation:
    return traffic.federate(load(verify), split, settings, seed, clients)


def load(verify: bool = True) -> roads.Roads:
    """All readings of all sensors, and their graph."""
    speeds, graph, *_ = need("metr_la", verify).values()
    return roads.read("metr_la", speeds, graph, START)
