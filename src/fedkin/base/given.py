"""Functions and classes that were given in Python where a configuration has a name: here they are known by it.

A configuration is text, and so is a run folder. What was given is called 'package.module:name' there, which another
process may be able to import, or not: what was defined in a notebook, or inside a function, exists here alone.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

_GIVEN: dict[str, Any] = {}


def remembered(thing: Any) -> str:
    """The name of a function or class, by which `recalled` gives it back; the last one given has it."""
    place = getattr(thing, "__module__", None) or type(thing).__module__
    words = getattr(thing, "__qualname__", type(thing).__qualname__)
    name = f"{place}:{words.rpartition('<locals>.')[2].strip('<>')}"
    _GIVEN[name] = thing
    return name


def recalled(name: str) -> Any | None:
    """What was given by this name, if anything was."""
    return _GIVEN.get(name)


def only_here(name: str) -> bool:
    """Whether no other process could import what was given by this name."""
    place, _, attribute = name.partition(":")
    if name not in _GIVEN:
        return False
    if place == "__main__" and not Path(getattr(sys.modules["__main__"], "__file__", "")).is_file():
        return True  # a notebook, or a prompt
    try:
        return getattr(importlib.import_module(place), attribute, None) is not _GIVEN[name]
    except ImportError:
        return True
