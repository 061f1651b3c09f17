"""`study`: a whole study from one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..engines.simulation import Listener
from ..engines.start import Network, Settings, Silos, table
from ..runs.config import merge
from .compare import Results, compare
from .cross import Crossed, cross
from .plan import for_each
from .study_file import FILE, Study, is_ours, taken_apart
from .tune import Tuned, tune
from .vary import Levels, vary

Found = Results | Levels | Crossed | Tuned


def study(
    file: Path | str | Settings,
    *,
    federation: Silos | None = None,
    model: Network | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
    out: Path | str | None = None,
    jobs: int | None = None,
    listener: Listener | Callable[[str], Listener] | None = None,
    **settings: Any,
) -> Found:
    """Runs a study as a TOML file (or a table) describes it: a comparison, or one over levels, combinations or a grid.

    `settings` are laid over those of the file; `out` and `jobs` come before the file's own. What is already complete is
    kept: the same call goes on where the last one ended. `listener` hears of all runs, or is a function of a run's
    name.
    """
    place = str(file) if isinstance(file, Path | str) else "The table"
    plan, raw = taken_apart(table(file), place)
    raw = merge(raw, settings)
    folder = out or plan.out or default_folder(file)
    objects: dict[str, Any] = {"federation": federation, "model": model, "loss": loss, "metric": metric}
    common: dict[str, Any] = {**objects, "out": folder, "jobs": jobs or plan.jobs}
    return _carried_out(plan, raw, common, for_each(listener))


def _carried_out(
    plan: Study, raw: Mapping[str, Any], common: Mapping[str, Any], listener: Callable[[str], Listener] | None
) -> Found:
    if plan.grid:
        one = merge(raw, {"method": plan.methods[0]}) if plan.methods else dict(raw)
        return tune(one, grid=plan.grid, listener=listener, **common)
    runs: dict[str, Any] = {"methods": plan.methods, "seeds": plan.seeds, "tune": plan.tune, **common}
    if plan.vary or plan.cross:
        told = None if listener is None else lambda level, method, seed: listener(f"{level}: {method}, seed {seed}")
        if plan.vary:
            return vary(raw, levels=plan.vary, listener=told, **runs)
        return cross(raw, over=plan.cross, listener=told, **runs)
    tell = None if listener is None else lambda method, seed: listener(f"{method}, seed {seed}")
    return compare(raw, references=plan.references, listener=tell, **runs)


def default_folder(file: Path | str | Settings) -> Path:
    """runs/ and the file's name; of a study.toml that fedkin left beside its runs, the folder it lies in."""
    path = Path(file) if isinstance(file, Path | str) else Path("study")
    return path.parent if path.name == FILE and is_ours(path) else Path("runs") / path.stem
