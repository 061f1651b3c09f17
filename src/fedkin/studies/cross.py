"""`cross`: methods under every combination of several settings.

Every combination is an ordinary comparison in a folder of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor

from ..base.settings import ConfigError
from ..engines.simulation import Listener
from ..engines.start import Network, Settings, Silos, understood
from ..evidence import crossed as evidence
from ..methods import Named
from ..runs import options
from ..runs.config import Config
from .conditions import Condition, Several, refuse_fixed, run_all, run_of
from .plan import Cell, compared, named, of_one_split
from .rates import Wanted, grid_of, rated
from .study_file import keep


@dataclass(frozen=True)
class Crossing(Condition, evidence.Crossing):
    """A comparison under one combination, in a folder of its own."""


@dataclass(frozen=True)
class Crossed(evidence.Crossed, Several):
    """Comparisons under every combination of the values of several settings."""

    crossings: list[Crossing]
    path: Path

    def write_page(self, path: Path) -> Path:
        from ..report.crossed import write_page

        return write_page(self, path)


def cross(
    config: Settings | Config | Path | str | None = None,
    *,
    over: Mapping[str, Sequence[Any]],
    methods: Sequence[Named],
    seeds: int | Sequence[int] = 1,
    federation: Silos | None = None,
    model: Network | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
    tune: Wanted = False,
    out: Path | str = "runs/crossed",
    jobs: int = 1,
    listener: Listener | Callable[[str, str, int], Listener] | None = None,
    **settings: Any,
) -> Crossed:
    """Compares methods under every combination of the values of several settings.

    `over`: `{"data.split": ["iid", "practical"], "local.lr": [0.001, 0.01]}` are four comparisons. What is
    complete in `out` is kept, as in `compare`. `listener` hears of all runs, or is a function of the
    combination, the method and the seed.
    `tune` chooses each method's learning rate at each combination, as in `compare`.
    """
    folder, given = Path(out), {"model": model, "loss": loss, "metric": metric}
    raw, objects = understood(config, settings, federation=federation, **given)
    names, raw = named(methods, raw)
    objects = of_one_split(objects, seeds)
    chosen = options.by_full_name(over, names)
    if not chosen:
        raise ConfigError(
            "There is nothing to cross: name settings and their values, such as data.split=iid,practical."
        )
    refuse_fixed(chosen)
    grid = grid_of(tune)
    planned: list[tuple[dict[str, Any], list[Cell]]] = []
    for values in (dict(zip(chosen, each, strict=True)) for each in product(*chosen.values())):
        place = folder / options.label(values, full=True)
        if any(place == cells[0].comparison for _, cells in planned):
            raise ConfigError(f"Two combinations would lie in one folder, {place}; take shorter values.")
        cells = compared(options.laid_over(raw, values), names, seeds, place, objects)
        planned.append((values, rated(cells, grid)))
    study = {"methods": names, "seeds": seeds, "cross": chosen, "tune": grid}
    run_all([cells for _, cells in planned], objects, listener, jobs, lambda: keep(folder, raw, study, objects))
    found = [Crossing(values, *run_of(cells)) for values, cells in planned]
    return Crossed(chosen, found, folder)
