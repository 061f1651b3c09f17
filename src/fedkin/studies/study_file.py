"""A whole study as one file: study.toml, written beside the runs, from which `fedkin study` repeats it.

A table `study` says what is run: `methods` and `seeds`; one of `vary`, `cross` and `grid`, if any; `tune`,
`references`, `jobs` and `out`. Everything else in the file are the settings of the runs, as in any configuration.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from .. import data
from ..base import given
from ..base.settings import ConfigError, validated
from ..engines.assembly import located
from ..evidence.comparison import flat_settings
from ..runs.config import Graph, read_toml, to_toml
from ..runs.folder import RunError, replace_file

FILE = "study.toml"
KINDS = ("vary", "cross", "grid")
HEADER = f"# Written by fedkin beside the runs of a study, and repeats it: fedkin study {FILE}\n\n"


class Study(BaseModel):
    """What a study runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    methods: Annotated[list[str], Field(description="the methods to compare; for a grid, the one")] = []
    seeds: Annotated[
        Annotated[int, Field(ge=1, strict=True)] | list[Annotated[int, Field(ge=0, strict=True)]],
        Field(description="how many, from the settings' `seed` on, or which"),
    ] = 1
    vary: Annotated[dict[str, Any], Field(description="settings and their levels, one setting at a time")] = {}
    cross: Annotated[dict[str, Any], Field(description="settings and their values, every combination")] = {}
    grid: Annotated[dict[str, Any], Field(description="settings and values of which validation data choose")] = {}
    tune: Annotated[
        bool | list[str | float],
        Field(description="choose each method's learning rate on validation data; a list: of these rates or factors"),
    ] = False
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
    if several == ["grid"] and study.tune:
        raise ConfigError("study.grid is tuned already: study.tune is for comparisons, leave one of them out.")
    if not study.methods and several != ["grid"]:
        raise ConfigError("study.methods is empty: name the methods to compare, such as ['separate', 'fedamp'].")
    for kind in several:
        for name, values in getattr(study, kind).items():
            if not isinstance(values, list) or not values:
                raise ConfigError(
                    f"study.{kind}: {name} needs a list of values, such as [0.1, 0.2]; {values!r} is none."
                )
    if several == ["grid"] and "seeds" in study.model_fields_set and study.seeds != 1:
        raise ConfigError("study.seeds are for comparisons; a grid is tried with one seed, `seed` above.")
    if several == ["grid"] and len(study.methods) > 1:
        raise ConfigError("study.grid is tried for one method: name one in study.methods, or none and `method` above.")
    return study, {key: value for key, value in table.items() if key != "study"}


def keep(folder: Path, raw: Mapping[str, Any], study: Mapping[str, Any], objects: Mapping[str, Any]) -> None:
    """Writes a study beside its runs, unless a file of that name was written by somebody else, or the study was given
    Python objects, which no file can hold."""
    path = folder / FILE
    if path.exists() and not is_ours(path):
        return
    said = {key: value for key, value in study.items() if value not in ([], {}, ())}
    try:
        if any(each is not None for each in objects.values()) or _only_here(raw, study):
            raise ConfigError("Python objects were given.")
        text = HEADER + to_toml(_from_anywhere({**raw, "study": _listed(said)}))
    except ConfigError:  # there is something in it that no file can hold
        path.unlink(missing_ok=True)  # one of an earlier study would tell of others
        return
    if path.exists():
        there, here = read_toml(path), tomllib.loads(text)
        if _kind(there) != _kind(here):
            raise RunError(
                f"{folder} holds a study of another kind, {_kind(there)}, not {_kind(here)}; choose another folder "
                "with --out, or remove it."
            )
        if _covers(there, here):  # a part of it is looked at again
            return
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode())


def _only_here(raw: Mapping[str, Any], study: Mapping[str, Any]) -> bool:
    """Whether a method or the data set was given as what no other process can import."""
    named = raw.get("data", "")
    names = [
        *study.get("methods", ()),
        raw.get("method", ""),
        named.get("name", "") if isinstance(named, Mapping) else named,
    ]
    return any(given.only_here(str(name)) for name in names)


def _kind(table: Mapping[str, Any]) -> str:
    words = {"vary": "levels of settings", "cross": "combinations of settings", "grid": "a grid"}
    study = table.get("study", {})
    kind = next((word for kind, word in words.items() if kind in study), "a comparison")
    return f"{kind} with rates tuned" if "tune" in study else kind


def _covers(there: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Whether a study has all runs of another, under the same settings."""
    settings = [{key: value for key, value in each.items() if key != "study"} for each in (there, here)]
    if settings[0] != settings[1]:
        return False
    for key, value in here["study"].items():
        own = there["study"].get(key, 1 if key == "seeds" else [])
        first = there.get("seed", 0)
        if key == "seeds":
            own, value = ([*range(first, first + n)] if isinstance(n, int) else n for n in (own, value))
        if isinstance(value, Mapping):
            if any(v not in own.get(name, []) for name, values in value.items() for v in values):
                return False
        elif any(each not in own for each in value):
            return False
    return True


def is_ours(path: Path) -> bool:
    """Whether a study's file was left by a study, beside its runs."""
    try:
        return path.read_text(encoding="utf-8").startswith(HEADER.partition("\n")[0])
    except (OSError, UnicodeDecodeError):
        return False


def _listed(value: Any) -> Any:
    """With lists in place of ranges and the like."""
    if isinstance(value, Mapping):
        return {key: _listed(each) for key, each in value.items()}
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _from_anywhere(table: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Settings with absolute paths, so that they can be read from anywhere: of data, and of graphs."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{place}.{key}"
        if isinstance(value, Mapping):
            found[key] = _from_anywhere(value, name)
        elif value is None:
            raise ConfigError(f"{name[1:]} is None, which TOML does not have.")
        elif name.endswith((".data", ".data.name")):
            found[key] = [_data(v) for v in value] if isinstance(value, list) else _data(value)
        elif name.endswith((".graph", ".graph.source")):
            found[key] = [_graph(v) for v in value] if isinstance(value, list) else _graph(value)
        else:
            found[key] = value
    return found


def _data(name: Any) -> Any:
    return data.located(name) if isinstance(name, str) else name


def _graph(source: Any) -> Any:
    return located(Graph(source=source)).source if isinstance(source, str) else source
