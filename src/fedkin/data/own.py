"""A user's own data set by name: 'package.module:name', a function that makes it or the thing itself."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from typing import Any

from ..base import given
from ..base.wording import give_again
from ..errors import FedkinError
from .federation import Federation
from .source import Source

DEFAULTS: dict[str, Any] = {"data": {"split": "natural"}}


class OwnDataError(FedkinError):
    """A user's own data set cannot be had; the sentence says why."""


def defaults(reference: str) -> dict[str, Any]:
    """The `DEFAULTS` of its module, as ours have them; without, its samples' own owners are the clients."""
    module, _ = _found(reference)
    return dict(getattr(module, "DEFAULTS", DEFAULTS))


def may_be_a_table(reference: str) -> bool:
    """Whether the federation may be of a table whose statistics are open; of a function nobody knows before it made
    one."""
    _, found = _found(reference)
    return found.statistics == "auto" if isinstance(found, Federation) else not isinstance(found, Source)


def make(reference: str, settings: Mapping[str, Any]) -> Source | Federation:
    """What the name stands for; a function is given those settings that it takes by name, such as seed or clients."""
    _, found = _found(reference)
    if callable(found) and not isinstance(found, Source | Federation):
        takes = inspect.signature(found).parameters.values()
        known = {key: value for key, value in settings.items() if value is not None}
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in takes):
            known = {p.name: known[p.name] for p in takes if p.name in known}
        found = found(**known)
    if not isinstance(found, Source | Federation):
        raise OwnDataError(
            f"The data set {reference!r} should be, or a function that gives, a fedkin.Federation or a "
            f"fedkin.data.Source; it is a {type(found).__name__}."
        )
    return found


def _found(reference: str) -> tuple[Any, Any]:
    name, _, attribute = reference.partition(":")
    known = given.recalled(reference)
    if known is not None:
        return sys.modules.get(name), known
    try:
        module = importlib.import_module(name)
        return module, getattr(module, attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise OwnDataError(
            f"The data set {reference!r} could not be imported: {error}. {give_again('federation')}"
        ) from error
