"""The methods. A file a method: `methods/fedamp.py` is method `fedamp`; a user's own is 'package.module:Class'."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from typing import Any

from ..base import given
from ..base.wording import did_you_mean, give_again
from ..errors import FedkinError
from ._method import Method

Named = str | type[Method] | Method
"""A method by its name, its class, or an object of it."""


class UnknownMethod(FedkinError):
    """There is no such method; the sentence names the nearest."""


def names() -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))


def name_of(method: Named) -> tuple[str, dict[str, Any]]:
    """The name of a method that may be given as a class or an object of it, and the settings that the object has."""
    if isinstance(method, str):
        return method, {}
    if isinstance(method, Method):
        return name_of(type(method))[0], method.model_dump(mode="json", exclude_unset=True)
    if not (inspect.isclass(method) and issubclass(method, Method)):
        raise UnknownMethod(
            "A method is a name such as 'fedamp', a subclass of fedkin.Method, or an object of one; "
            f"{method!r} is none of these."
        )
    short = method.__module__.rpartition(".")[2]
    if method.__module__ == f"{__name__}.{short}" and short in names() and find(short) is method:
        return short, {}
    return given.remembered(_whole(method, method.__qualname__)), {}


def find(name: str) -> type[Method]:
    """The class of a method by its name, or by 'package.module:Class'."""
    if ":" in name:
        found = given.recalled(name)
        return _own(name) if found is None else found
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
        raise UnknownMethod(
            f"The method {reference!r} could not be imported: {error}. {give_again('method')}"
        ) from error
    if not (inspect.isclass(found) and issubclass(found, Method)):
        raise UnknownMethod(f"{reference!r} is not a method: it should be a subclass of fedkin.Method.")
    return _whole(found, reference)


def _whole(method: type[Method], label: str) -> type[Method]:
    lacking = sorted(getattr(method, "__abstractmethods__", ()))
    if lacking:
        raise UnknownMethod(f"The method {label!r} is not whole: it has no {', '.join(lacking)}.")
    for name in ("begin", "enlist", "download", "update", "welcome"):
        if "rng" in inspect.signature(getattr(method, name)).parameters:
            raise UnknownMethod(
                f"The method {label!r} is of the contract's first edition: its `{name}` takes `rng`. Leave that out, "
                "and end the arguments of begin, enlist, download, train, models, update and welcome with `round`: "
                "what was `round` is `round.number`, and what was `rng(purpose, name)` is `round.rng(purpose, name)`."
            )
    return method


def at_hand(name: str) -> type[Method] | None:
    """The class of a method, if nothing of somebody else's has to be imported for it."""
    module = name.partition(":")[0]
    return find(name) if ":" not in name or given.recalled(name) or module in sys.modules else None
