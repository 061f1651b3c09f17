"""`compare --tune`: every method's own learning rate is chosen on validation data, of the same grid for all.

A method says which setting its rate is (`Method.rate`). The grid are factors on the rate it has, or rates; every point
is a run for each seed, all of a method's are trained side by side where they may be, and the runs of the best point are
the comparison's. Nothing is run twice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from ..base.settings import ConfigError
from ..engines import start
from ..evidence.comparison import flat_settings
from ..evidence.grid import Rates, Trial
from ..runs import options
from ..runs.folder import RunError, replace_file
from . import tune as grids
from .plan import Cell, Point, Stack, seeds_together
from .run import Run
from .supply import Supply

FACTORS = ("x0.1", "x0.3", "x1", "x3", "x10")
"""What each method's own rate is multiplied with, unless rates or other factors are given."""
FILE = "tuned.json"
Wanted = bool | Sequence[str | float]
"""Whether to tune, by these factors, or the rates (0.01) and factors (x3) to try."""
Tuned = Mapping[str, Rates]
"""{method: the rates that were tried for it}; empty where none were."""


@dataclass(frozen=True)
class Rated(Point):
    """A run that tries a rate of its method: the word it was given by, and the rate that it would have had."""

    word: str
    own: float

    @property
    def comparison(self) -> Path:
        return self.path.parent.parent


# ---- before anything runs ----


def grid_of(tune: Wanted) -> list[str | float]:
    """The rates and factors to try; empty where nothing is tuned."""
    if isinstance(tune, bool):
        return list(FACTORS) if tune else []
    if isinstance(tune, str) or not tune:
        raise ConfigError(f"Rates to try are a list, such as [0.001, 0.01] or ['x0.3', 'x1', 'x3']; {tune!r} is none.")
    for each in tune:
        _parsed(each)
    return list(dict.fromkeys(tune))


def _parsed(each: str | float) -> tuple[float, bool]:
    """A number, and whether it is a factor."""
    text = str(each).strip()
    factor = text.startswith("x")
    try:
        value = float(text.removeprefix("x"))
    except ValueError:
        value = -1.0
    if isinstance(each, bool) or not 0 < value < float("inf"):
        raise ConfigError(
            "A rate to try is a number above 0 such as 0.01, or a factor on a method's own such as x0.3; "
            f"{each!r} is neither."
        )
    return value, factor


def rated(cells: Sequence[Cell], grid: Sequence[str | float]) -> list[Cell]:
    """The cells of a comparison, each with every rate of the grid in place of its method's own; without a grid as they
    are."""
    return [point for cell in cells for point in _points(cell, grid)] if grid else list(cells)


def _points(cell: Cell, grid: Sequence[str | float]) -> list[Rated]:
    config, points = cell.config, dict[str, Rated]()
    settings, names = flat_settings(config.model_dump(mode="json")), type(config.built_method()).rate
    if not names:
        raise ConfigError(
            f"{config.method} has no learning rate to tune (its class says rate = ()): leave it out, or do not tune."
        )
    own: Any = settings.get(names[0])
    if not _is_number(own) or own <= 0:
        told = "is no setting of it" if names[0] not in settings else f"is {own!r}, which is no number above 0"
        raise ConfigError(f"{config.method} says that its learning rate is {names[0]}, but that {told}.")
    for each in grid:
        number, factor = _parsed(each)
        ratio = number if factor else number / own
        rate = _rounded(own * number) if factor else number
        others = {name: _rounded(settings[name] * ratio) for name in names[1:] if _is_number(settings.get(name))}
        values = {names[0]: rate, **others}
        changed = start.configured(options.laid_over(config.model_dump(mode="json"), values))
        label, method = options.label(values), config.method.replace(":", ".")
        path = cell.path.parent / method / f"{label},seed={config.seed}"
        name = f"{config.method}, {label}, seed {config.seed}"
        points.setdefault(label, Rated(name, changed, path, values, str(each), own))
    return list(points.values())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rounded(value: float) -> float:
    """Without the dust of a product: 0.3 * 0.05 is 0.015."""
    return float(f"{value:.6g}")


def stacks(cells: Sequence[Cell], supply: Supply) -> list[Stack]:
    """The cells in stacks, every one of them tried. Of small models a method's seeds and rates are trained together; of
    others the rates that share their data, as in a grid."""
    if not any(isinstance(cell, Rated) for cell in cells):
        return seeds_together(cells, supply)
    found: list[Stack] = []
    for _, members in groupby(cells, key=lambda cell: cell.path.parent):
        own = list(members)
        together = seeds_together(own, supply, grids.refuse_without_validation)
        pending = [stack for stack in together if not all(cell.complete for cell in stack)]
        alone = [cell for stack in pending if len(stack) == 1 for cell in stack if isinstance(cell, Point)]
        found += [stack for stack in together if stack not in pending or len(stack) > 1]
        found += grids.stacks(alone, supply)
    return found


# ---- choosing ----


def chosen(cells: Sequence[Cell]) -> tuple[list[Run], dict[str, Rates]]:
    """The comparison's runs, and what was tried for each method: of rated cells, the runs of the best rates."""
    points = [cell for cell in cells if isinstance(cell, Rated)]
    if not points:
        return [Run(cell.path) for cell in cells], {}
    tuned: dict[str, Rates] = {}
    for method in dict.fromkeys(point.config.method for point in points):
        own = [point for point in points if point.config.method == method]
        words = dict.fromkeys(point.word for point in own)
        trials = [grids.trial([point for point in own if point.word == word], word) for word in words]
        tuned[method] = _rates(method, trials, own[0].own)
    _write(points[0].comparison, tuned)
    return _runs(tuned), tuned


def _rates(method: str, trials: Sequence[Trial], own: float) -> Rates:
    setting = next(iter(trials[0].values))
    rates = Rates({setting: [trial.values[setting] for trial in trials]}, trials, method, own)
    try:
        rates.best  # noqa: B018
    except ConfigError as error:
        raise ConfigError(f"{method}: {error}") from None
    return rates


def _runs(tuned: Tuned) -> list[Run]:
    return [Run(run.path) for rates in tuned.values() for run in rates.best.runs]


def _write(folder: Path, tuned: Tuned) -> None:
    def told(trial: Trial) -> dict[str, Any]:
        places = [run.path.relative_to(folder).as_posix() for run in trial.runs]
        return {
            "name": trial.name,
            "values": trial.values,
            "runs": places,
            "validation": trial.validation,
            "round": trial.round,
            "clients": [None if math.isnan(score) else score for score in trial.clients],
        }

    table = {method: {"own": r.own, "trials": [told(trial) for trial in r.trials]} for method, r in tuned.items()}
    replace_file(folder / FILE, (json.dumps(table, indent=1) + "\n").encode())


def read(folder: Path) -> tuple[list[Run], dict[str, Rates]] | None:
    """What was chosen in a folder; None where nothing was tuned in it."""
    if not (folder / FILE).exists():
        return None
    tuned: dict[str, Rates] = {}
    try:
        for method, each in json.loads((folder / FILE).read_text(encoding="utf-8")).items():
            tuned[method] = _rates(method, [_read(folder, found) for found in each["trials"]], each["own"])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise RunError(f"{folder / FILE} is damaged ({error!r}); the command that tuned writes it again.") from None
    return _runs(tuned), tuned


def _read(folder: Path, found: Mapping[str, Any]) -> Trial:
    runs = [Run(folder / place) for place in found["runs"]]
    clients = tuple(math.nan if score is None else float(score) for score in found.get("clients", ()))
    return Trial(found["name"], found["values"], runs, found["validation"], found["round"], clients)
