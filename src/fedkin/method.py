"""Everything that a method of one's own needs, by one import: see `fedkin.methods._method`."""

from .methods import _method
from .methods._method import *  # noqa: F403

__all__ = []
__all__ += _method.__all__
