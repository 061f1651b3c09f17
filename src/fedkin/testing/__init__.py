"""Whether a method keeps its contract, seen on a small federation: `fedkin.testing.check(MyMethod)`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import methods
from ..errors import FedkinError
from . import checks
from .post import Post, by_post, one_each
from .trials import Trials

__all__ = ["ContractError", "Post", "by_post", "check", "one_each", "problems"]


class ContractError(FedkinError):
    """A method breaks its contract: a line for each break."""


def check(method: methods.Named, settings: Mapping[str, Any] | None = None, **others: Any) -> None:
    """Raises ContractError with a sentence for each way in which a method breaks its contract; takes seconds.

    method: a name, 'package.module:Class', a class or an object. settings: the method's; others: those of a run, as in
    `fedkin.run`: check(Mine, local={"optimiser": "sgd"}).
    """
    told = problems(method, settings, **others)
    if told:
        name = method if isinstance(method, str) else methods.name_of(method)[0]
        raise ContractError("\n".join([f"The method {name!r} breaks its contract:", *(f"- {each}" for each in told)]))


def problems(method: methods.Named, settings: Mapping[str, Any] | None = None, **others: Any) -> list[str]:
    """The sentences of `check`; none where the method keeps its contract."""
    try:
        name, own = methods.name_of(method)
        methods.find(name)
    except methods.UnknownMethod as error:
        return [str(error)]
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # many small files, for seconds
    with tempfile.TemporaryDirectory(prefix="fedkin-check-", dir=in_memory) as folder:
        return checks.found(Trials(name, {**own, **(settings or {})}, others, Path(folder)))
