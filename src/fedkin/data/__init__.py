"""Data sets by name, tables, folders and arrays, and how they are dealt to clients."""

from .by_name import (
    POOLED,
    SPLITS,
    NoSettings,
    UnknownData,
    defaults,
    description,
    digest,
    is_path,
    is_table,
    load,
    located,
    may_be_prepared,
    names,
    settings_of,
    short,
    source,
    splits,
)
from .source import Source

__all__ = [
    "POOLED",
    "SPLITS",
    "NoSettings",
    "Source",
    "UnknownData",
    "defaults",
    "description",
    "digest",
    "is_path",
    "is_table",
    "load",
    "located",
    "may_be_prepared",
    "names",
    "settings_of",
    "short",
    "source",
    "splits",
]
