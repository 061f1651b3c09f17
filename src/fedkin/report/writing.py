"""Files of a report: whole or not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..base import files
from ..errors import FedkinError


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """As `base.files.replacing`, in a folder that is made where it is missing; a sentence where that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing(path) as new:
            yield new
    except OSError as error:
        raise FedkinError(
            f"{path} cannot be written: {error.strerror or error}. What stood there before is as it was; make room, or "
            "choose another place."
        ) from None
