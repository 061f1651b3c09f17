"""`vary`: methods over levels of a setting (dirty labels, dropped clients, attackers), one setting at a time.

Every level is an ordinary comparison in a folder of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..base.settings import ConfigError
from ..engines.simulation import Listener
from ..engines.start import Network, Settings, Silos, understood
from ..evidence import levels as evidence
from ..methods import Named
from ..runs import options
from ..runs.config import Config
from .conditions import Condition, Several, refuse_fixed, run_all, run_of
from .plan import Cell, compared, named, of_one_split
from .rates import Wanted, grid_of, rated
from .study_file import keep


@dataclass(frozen=True)
class Level(Condition, evidence.Level):
    """A comparison with one setting at one value, in a folder of its own."""


@dataclass(frozen=True)
class Levels(evidence.Levels, Several):
    """Comparisons at several levels of one or more settings."""

    levels: list[Level]
    path: Path

    def write_page(self, path: Path) -> Path:
        from ..report.levels import write_page

        return write_page(self, path)

    def figures(self, folder: Path | str | None = None, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
        """Writes the pictures for print."""
        from ..report.levels import write_figures

        return write_figures(self, Path(folder) if folder is not None else self.path / "figures", formats)


def vary(
    config: Settings | Config | Path | str | None = None,
    *,
    levels: Mapping[str, Sequence[Any]],
    methods: Sequence[Named],
    seeds: int | Sequence[int] = 1,
    federation: Silos | None = None,
    model: Network | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
    tune: Wanted = False,
    out: Path | str = "runs/levels",
    jobs: int = 1,
    listener: Listener | Callable[[str, str, int], Listener] | None = None,
    **settings: Any,
) -> Levels:
    """Compares methods at each level of each setting, the other settings as they are.

    `levels`: `{"corruption.labels": [0, 0.2, 0.4], "participation.dropped": [0, 0.3]}`. What is already complete in
    `out` is kept, as in `compare`. Levels that come to the same settings are run once. `listener` hears of all
    runs, or is a function of the level, the method and the seed; `jobs` is as for `compare`.
    `tune` chooses each method's learning rate at each level, as in `compare`.
    """
    folder, given = Path(out), {"model": model, "loss": loss, "metric": metric}
    raw, objects = understood(config, settings, federation=federation, **given)
    names, raw = named(methods, raw)
    objects = of_one_split(objects, seeds)
    chosen = options.by_full_name(levels, names)
    if not chosen:
        raise ConfigError("There is no setting to vary: name one and its levels, such as corruption.labels=0,0.2,0.4.")
    refuse_fixed(chosen)
    grid = grid_of(tune)
    planned: list[tuple[str, Any, list[Cell]]] = []
    places: list[Path] = []
    for name, values in chosen.items():
        for value in values:
            place = folder / options.label({name: value}, full=True)
            cells = rated(compared(options.laid_over(raw, {name: value}), names, seeds, place, objects), grid)
            if place in places:
                raise ConfigError(f"Two levels would lie in one folder, {place}; take shorter values.")
            places.append(place)
            same = (earlier for *_, earlier in planned if [c.config for c in earlier] == [c.config for c in cells])
            planned.append((name, value, next(same, cells)))
    study = {"methods": names, "seeds": seeds, "vary": chosen, "tune": grid}
    run_all([cells for *_, cells in planned], objects, listener, jobs, lambda: keep(folder, raw, study, objects))
    return Levels([Level(name, value, *run_of(cells)) for name, value, cells in planned], folder)
