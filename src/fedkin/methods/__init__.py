"""The methods. A file a method: `methods/fedamp.py` is method `fedamp`; a user's own is 'package.module:Class'."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from ..base.wording import did_you_mean
from ..errors import FedkinError
from ._method import Method


class UnknownMethod(FedkinError):
    """There is no such method; the sentence names the nearest."""


def names() -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))


def find(name: str) -> type[Method]:
    """The class of a method by its name, or by 'package.module:Class'."""
    if ":" in name:
        return _own(name)
    if name not in names():
        hint = did_you_mean(name, names())
        raise UnknownMethod(f"There is no method {name!r}. {hint}Known are {', '.join(names())}.")
    module = importlib.import_module(f"{__name__}.{name}")
    for _, found in inspect.getmembers(module, inspect.isclass):
        if issubclass(found, Method) and found.__module__ == module.__name__:
            return found
    raise UnknownMethod(f"The file methods/{name}.py defines no method.")


def _own(reference: str) -> type[Method]:
    module, _, attribute = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownMethod(f"The method {reference!r} could not be imported: {error}.") from error
    if not (inspect.isclass(found) and issubclass(found, Method)):
        raise UnknownMethod(f"{reference!r} is not a method: it should be a subclass of fedkin.Method.")
    return found
