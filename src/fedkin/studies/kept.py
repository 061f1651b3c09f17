"""A whole study as one file: study.toml, written beside the runs, from which `fedkin study` repeats it.

A table `study` says what is run: `methods` and `seeds`; one of `vary`, `cross` and `grid`, if any; `references`; `jobs`
and `out`. Everything else in the file are the settings of the runs, as in any configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from .. import data
from ..base.settings import ConfigError, validated
from ..engines.assembly import located
from ..evidence.comparison import flat_settings
from ..runs.config import NAMED, Graph, merge, to_toml
from ..runs.folder import replace_file

FILE = "study.toml"
KINDS = ("vary", "cross", "grid")


class Study(BaseModel):
    """What a study runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    methods: Annotated[list[str], Field(description="the methods to compare; for a grid, the one")] = []
    seeds: Annotated[
        Annotated[int, Field(ge=1)] | list[int], Field(description="how many, from the settings' `seed` on, or which")
    ] = 1
    vary: Annotated[dict[str, Any], Field(description="settings and their levels, one setting at a time")] = {}
    cross: Annotated[dict[str, Any], Field(description="settings and their values, every combination")] = {}
    grid: Annotated[dict[str, Any], Field(description="settings and values of which validation data choose")] = {}
    references: Annotated[list[str], Field(description="rows without federated learning")] = []
    jobs: Annotated[int, Field(ge=1, description="runs at a time, in processes of their own")] = 1
    out: Annotated[str | None, Field(description="the folder to write to; by default runs/ and the file's name")] = None


def taken_apart(table: Mapping[str, Any], where: str) -> tuple[Study, dict[str, Any]]:
    """What is run, and the settings of the runs; settings of a grid and the like by their full names."""
    if not isinstance(table.get("study"), Mapping):
        raise ConfigError(
            f"{where} has no table [study] that says what to run, such as methods = ['separate', 'fedamp'] and "
            "seeds = 3. A file without one is the configuration of a single run: `fedkin run`."
        )
    said = {
        key: flat_settings(v) if key in KINDS and isinstance(v, Mapping) else v for key, v in table["study"].items()
    }
    study = validated(Study, said, "study")
    several = [kind for kind in KINDS if getattr(study, kind)]
    if len(several) > 1:
        raise ConfigError(f"study.{several[0]} and study.{several[1]} are two studies: make a file for each.")
    if several and study.references:
        raise ConfigError(
            f"study.references are rows of one table, and study.{several[0]} makes several: leave one out."
        )
    if not study.methods and several != ["grid"]:
        raise ConfigError("study.methods is empty: name the methods to compare, such as ['separate', 'fedamp'].")
    if several == ["grid"] and len(study.methods) > 1:
        raise ConfigError("study.grid is tried for one method: name one in study.methods, or none and `method` above.")
    return study, {key: value for key, value in table.items() if key != "study"}


def _from_anywhere(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with absolute paths, so that they can be read from anywhere."""
    found = {key: {"name": v} if key in NAMED and isinstance(v, str) else v for key, v in raw.items()}
    if isinstance(found.get("data"), Mapping) and "name" in found["data"]:
        found = merge(found, {"data": {"name": data.located(str(found["data"]["name"]))}})
    if isinstance(found.get("graph"), Mapping) and "source" in found["graph"]:
        found = merge(found, {"graph": {"source": located(Graph(source=found["graph"]["source"])).source}})
    return found


def keep(folder: Path, raw: Mapping[str, Any], study: Mapping[str, Any], objects: Mapping[str, Any]) -> None:
    """Writes a study beside its runs, unless it was given Python objects, which no file can hold."""
    if any(each is not None for each in objects.values()):
        return
    told = {key: {f: list(v) for f, v in value.items()} if key in KINDS else value for key, value in study.items()}
    try:
        text = to_toml(
            {**_from_anywhere(raw), "study": {key: value for key, value in told.items() if value not in ([], {}, ())}}
        )
    except ConfigError:  # a setting in a form that only Python has
        return
    content = f"# Repeats this study: fedkin study {FILE}\n\n{text}".encode()
    if not (folder / FILE).exists() or (folder / FILE).read_bytes() != content:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / FILE, content)
