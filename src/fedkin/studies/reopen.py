"""What was run before, from its folder: `fedkin.open("runs/mine")`. Nothing is run, and nothing that a folder names is
imported."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from ..base.settings import validated
from ..evidence import comparison
from ..evidence.comparison import flat_settings
from ..runs import options
from ..runs.config import Config, read_toml
from ..runs.folder import RunError
from . import rates
from .compare import Results
from .cross import Crossed, Crossing
from .plan import Point
from .rates import Tuned as Chosen
from .run import Run
from .study_file import FILE, Study, is_ours, taken_apart
from .supply import Supply
from .tune import Plan, Tuned, named, trial
from .vary import Level, Levels

Opened = Run | Results | Levels | Crossed | Tuned


def open(path: Path | str) -> Opened:
    """What a folder holds: a run, a comparison (`Results`), or a study over levels, combinations or a grid.

    Runs that are not finished are left out, with a warning.
    """
    folder = Path(path)
    if (folder / "config.toml").exists():
        return Run(folder)
    file = folder / FILE
    study = taken_apart(read_toml(file), str(file))[0] if file.exists() and is_ours(file) else Study()
    if study.vary:
        return Levels(list(_levels(folder, study)), folder)
    if study.cross:
        return Crossed(study.cross, list(_crossings(folder, study)), folder)
    return _grid(folder, study, file) if study.grid else Results(*_compared(folder, study.methods))


def finished(folder: Path) -> tuple[list[Run], list[Path]]:
    """The finished runs in a folder, by name, and the folders of those that are not."""
    inside = sorted(p.parent for p in folder.glob("*/config.toml")) if folder.is_dir() else []
    runs = [Run(p) for p in inside if (p / "summary.json").exists()]
    if not runs:
        deeper = sorted(p.parent.parent.name for p in folder.glob("*/*/config.toml"))
        hint = f" Folders of runs in it: {', '.join(dict.fromkeys(deeper))}." if deeper else ""
        raise RunError(f"{folder} is neither a run folder nor a folder of finished runs.{hint}")
    return runs, [p for p in inside if not (p / "summary.json").exists()]


def _compared(folder: Path, methods: Sequence[str]) -> tuple[list[Run], Path, Chosen]:
    """The runs of a comparison, in the order of its methods, its folder, and the rates that were tried."""
    chosen = rates.read(folder)
    if chosen is not None:
        return chosen[0], folder, chosen[1]
    runs, unfinished = finished(folder)
    for each in unfinished:
        warnings.warn(f"{each} is not finished and is left out; `fedkin resume {each}` goes on with it.", stacklevel=4)
    known = {name: i for i, name in enumerate(methods)}
    runs.sort(key=lambda run: (known.get(run.summary.method, len(known)), run.summary.method, run.summary.seed))
    try:
        comparison.by_method(runs)
    except ValueError as error:  # they cannot stand side by side
        raise RunError(str(error)) from None
    return runs, folder, {}


def _levels(folder: Path, study: Study) -> Iterator[Level]:
    done: list[tuple[list[Run], Path, Chosen]] = []
    for name, values in study.vary.items():
        for value in values:
            place = folder / options.label({name: value}, full=True)
            same = (each for each in done if flat_settings(each[0][0].config).get(name) == value)
            found = _compared(place, study.methods) if place.is_dir() else next(same, None)
            if found is None:
                raise RunError(f"{place} is not there yet; `fedkin study {folder / FILE}` goes on with the study.")
            done.append(found)
            yield Level(name, value, *found)


def _crossings(folder: Path, study: Study) -> Iterator[Crossing]:
    for each in product(*study.cross.values()):
        values = dict(zip(study.cross, each, strict=True))
        yield Crossing(values, *_compared(folder / options.label(values, full=True), study.methods))


def _grid(folder: Path, study: Study, file: Path) -> Tuned:
    points: list[Point] = []
    for name, values in named(study.grid):
        if not (folder / name / "config.toml").exists():
            raise RunError(f"{folder / name} is not there yet; `fedkin study {file}` goes on with the grid.")
        config = validated(Config, Run(folder / name).config, "")
        points.append(Point(name, config, folder / name, values))
    nothing: dict[str, Any] = {}
    plan = Plan(study.grid, points, [], folder, nothing, nothing, Supply(nothing))
    return Tuned(study.grid, [trial([point]) for point in points], plan)
