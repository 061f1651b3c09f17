"""What the runs of a study are made of: data are read once for each split seed, and a run is assembled once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..base import machine
from ..base.machine import chosen_device
from ..data.federation import Federation
from ..engines.assembly import Assembly, assemble
from ..engines.inferred_graph import Attentions
from ..engines.start import given
from ..engines.stock import Stock, data_key, federation_bytes, key, load_federation, stocked
from ..runs.config import Config

SHARE = 1 / 4
"""Of the free memory, what may be kept for runs to come."""


class Supply:
    """Assembles runs, which share their data and their model where they can.

    Where data are so large that those of all runs would take too much memory, those that were asked for least recently
    are given up, and read again when they are needed.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self.objects = given(**objects)
        self.attentions: Attentions = {}
        """What was seen of who attends to whom, for graphs that are inferred."""
        self._read: dict[str, Federation] = {}
        self._ways: dict[str, str | None] = {}
        """Of data that were read, the federation's `statistics`: whether methods may prepare them in different ways."""
        self._stocks: dict[str, tuple[Stock, dict[str, Assembly]]] = {}
        self._free = {"cpu": machine.free_bytes(torch.device("cpu"))}
        """Bytes on each kind of device, as they were before anything was kept there."""

    def assembled(self, config: Config) -> Assembly:
        """A run, ready to start."""
        stock, ready = self._stocked(config)
        name = config.model_dump_json()
        if name not in ready:
            ready[name] = assemble(config, self.objects, stock)
        return ready[name]

    def release(self, config: Config) -> None:
        """A run that has ended leaves its stock to others, and the device's memory to all."""
        stock, ready = self._stocks.get(key(config, self._ways.get(data_key(config), "auto")), (None, {}))
        ready.pop(config.model_dump_json(), None)
        if stock is not None and stock.tried:
            stock.choice.execution.forget()

    def clear(self) -> None:
        """Keeps nothing any more."""
        self._read.clear()
        self._stocks.clear()

    def _stocked(self, config: Config) -> tuple[Stock, dict[str, Assembly]]:
        federation, data = None, data_key(config)
        if data not in self._ways:
            federation = self._federation(config)
            self._ways[data] = federation.statistics
        name = key(config, self._ways[data])
        found = self._stocks.pop(name, None)
        if found is None:
            device = chosen_device(config.device)
            self._free.setdefault(device.type, machine.free_bytes(device))
            found = stocked(config, self.objects, federation or self._federation(config)), {}
        self._stocks[name] = found  # the last is the one asked for last
        self._give_up()
        return found

    def _federation(self, config: Config) -> Federation:
        if self.objects.federation is not None:
            return self.objects.federation
        name = data_key(config)
        found = self._read.pop(name, None) or load_federation(config)
        self._read[name] = found
        return found

    def _give_up(self) -> None:
        """Lets go of what was asked for least recently, until what is kept takes no more than its share."""
        while self._too_much():
            if len(self._stocks) > 1:
                self._stocks.pop(next(iter(self._stocks)))
            elif self._read:
                self._read.pop(next(iter(self._read)))
            else:  # what is asked for now has to be
                break

    def _too_much(self) -> bool:
        taken = dict.fromkeys(self._free, 0)
        for stock, _ in self._stocks.values():
            taken[stock.device.type] += stock.samples_bytes
            taken["cpu"] += stock.federation_bytes
        taken["cpu"] += sum(map(federation_bytes, self._read.values()))
        return any(taken[kind] > SHARE * free for kind, free in self._free.items())
