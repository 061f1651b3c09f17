"""Settings of the built-in methods by data set, from the files beside this one: `fedamp.toml` is of methods/fedamp.py.

A file has up to three tables, named as the hooks of `Method` that read them: `suited` and `native` by data set, where
`any` is for those that have no entry, and `paper` by data set and split, where `any` lies below every entry. A method
that extends another has the other's values, too; what its own file says is laid over them. `preset.toml` is of all
methods. It is data: nothing of fedkin is needed to read it.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

METHODS = f"{__name__.partition('.')[0]}.methods."
"""What the names of modules begin with in which built-in methods are."""


def suited(method: type, data: str) -> dict[str, Any]:
    """What the data set calls for, whatever the budget: tables `local` and `settings`."""
    return _laid(_told(method, "suited", data))


def native(method: type, data: str) -> dict[str, Any]:
    """The method's own local training and settings (tables `local` and `settings`)."""
    return _laid(_told(method, "native", data))


def paper(method: type, data: str, split: str) -> dict[str, Any]:
    """The settings that were published for a data set and split; empty where there are none."""
    places = [(where, which) for where in ("any", data) for which in ("any", split)]
    return _laid([table.get(where, {}).get(which, {}) for table in _files(method, "paper") for where, which in places])


def preset() -> dict[str, Any]:
    """The rest of a configuration (rounds, table `data`) in the papers' setting, whatever the method."""
    return _laid([read("preset")])


def _told(method: type, hook: str, data: str) -> list[dict[str, Any]]:
    return [table.get(data, table.get("any", {})) for table in _files(method, hook)]


def _files(method: type, hook: str) -> list[dict[str, Any]]:
    """What the files say of a method and of those it extends, the most general first."""
    built_in = [each.__module__ for each in reversed(method.__mro__) if each.__module__.startswith(METHODS)]
    return [read(module.removeprefix(METHODS).lstrip("_")).get(hook, {}) for module in built_in]


@cache
def read(name: str) -> dict[str, Any]:
    """A file by its name; empty where there is none."""
    file = resources.files(__package__) / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _laid(tables: list[dict[str, Any]]) -> dict[str, Any]:
    """Tables laid over each other; a new one, so that what was read stays as it is."""
    result: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            under = result.get(key)
            result[key] = {**(under if isinstance(under, dict) else {}), **value} if isinstance(value, dict) else value
    return result
