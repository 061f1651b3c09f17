"""By which optimiser, at which rate, and on data scaled by whose statistics methods of one table were trained."""

from __future__ import annotations

from collections.abc import Mapping

from .. import methods
from ..errors import FedkinError
from ..training.optimisers import Local
from .comparison import Members, Run


def trained_with(members: Members) -> dict[str, str]:
    """{method: `Adam 0.001`}; empty where all were trained alike. A dash where a run does not say it."""
    found = {method: _words(runs[0]) for method, runs in members.items()}
    return found if len(set(found.values())) > 1 else {}


def prepared_with(members: Members) -> dict[str, list[str]]:
    """{statistics: methods} of a table's inputs, `own` before `shared`; empty where all methods have the same."""
    by: dict[str, list[str]] = {"own": [], "shared": []}
    for method, runs in members.items():
        config = runs[0].config
        said = config.get("table", {}).get("statistics")
        if said in by and ":" not in config.get("data", {}).get("name", ""):  # whether code made a table is not known
            by[said].append(method)
    return by if all(by.values()) else {}


def _words(run: Run) -> str:
    settings, local = run.config.get("settings", {}), run.config.get("local")
    if not isinstance(local, Mapping):
        return "–"
    try:
        trained = Local.model_validate(dict(local))
    except ValueError:  # written by another version
        return "–"
    try:
        method = methods.at_hand(run.summary.method)  # a folder that names code does not make us import it
        return method(**settings).trained_with(trained) if method else trained.words
    except (FedkinError, ValueError):  # a method of somebody's own, which is elsewhere now
        return trained.words
