"""Settings from the command line: `key=value`, `--key value` or `--key=value`, by their full or their last name."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from . import methods
from .config import Config, ConfigError, merge, read_toml, unknown_key

SHORT = {"data": "data.name", "model": "model.name", "clients": "data.clients"}
"""Names that stand for another; `--data digits` is data.name."""


def parse(words: Sequence[str], several: Iterable[str] = ()) -> dict[str, Any]:
    """A table of settings from a configuration file and settings, in any order; settings win.

    `several`: the methods of a comparison, whose settings may be named too.
    """
    files, pairs = _sorted_out(list(words))
    raw: dict[str, Any] = {}
    for file in files:
        raw = merge(raw, read_toml(file))
    given = {key: _value(text) for key, text in pairs}
    chosen = list(several) or [str(given.get("method", raw.get("method", Config().method)))]
    known = paths(chosen)
    for key, text in pairs:
        raw = merge(raw, _nested(_full(key, known), _value(text)))
    return raw


def _sorted_out(words: list[str]) -> tuple[list[Path], list[tuple[str, str]]]:
    files: list[Path] = []
    pairs: list[tuple[str, str]] = []
    while words:
        word = words.pop(0)
        key, equals, value = word.partition("=")
        if word.startswith("--") and not equals:
            if not words or words[0].startswith("--"):
                raise ConfigError(f"The option {word} needs a value: {word} VALUE.")
            key, value = word, words.pop(0)
        elif not equals:
            if not word.endswith(".toml"):
                raise ConfigError(f"{word!r} is neither a configuration file (.toml) nor a setting (key=value).")
            files.append(Path(word))
            continue
        pairs.append((key.lstrip("-").replace("-", "_"), value))
    return files, pairs


def paths(chosen: Iterable[str]) -> list[str]:
    """Every setting's full name, those of the chosen methods included."""
    found = [path for path, _ in described(Config)]
    for name in chosen:
        found += [f"settings.{field}" for field in methods.find(name).model_fields]
    return list(dict.fromkeys(found))


def described(model: type[BaseModel], prefix: str = "") -> Iterable[tuple[str, FieldInfo]]:
    """Every setting's full name, and what is known of it."""
    for name, info in model.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from described(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info


def meaning(info: FieldInfo) -> str:
    """What a setting does, and the words it may be."""
    words = ", ".join(map(str, dict.fromkeys(_words(info.annotation))))
    return ": ".join(part for part in (info.description, words) if part)


def _words(annotation: Any) -> Iterable[str]:
    """The words among what a setting may be."""
    if get_origin(annotation) is Literal:
        yield from (word for word in get_args(annotation) if isinstance(word, str))
    else:
        for inner in get_args(annotation):
            yield from _words(inner)


def _full(key: str, known: list[str]) -> str:
    key = SHORT.get(key, key)
    if key in known or key.startswith(("model.settings.", "methods.")):
        return key
    ends = [path for path in known if path.rpartition(".")[2] == key]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise ConfigError(f"The setting {key!r} could be {' or '.join(ends)}; write it in full.")
    inside = [path for path in known if path.startswith(f"{key}.")]
    if inside:
        raise ConfigError(f"{key!r} is a table; its settings are {', '.join(inside)}.")
    bare = key.removeprefix("settings.")
    others = [name for name in methods.names() if bare in methods.find(name).model_fields]
    if others:
        raise ConfigError(f"{bare!r} is a setting of {', '.join(others)}, not of the method chosen here.")
    raise ConfigError(unknown_key(key, known, [*SHORT, *(path.rpartition(".")[2] for path in known)]))


def _value(text: str) -> Any:
    """A TOML value where it is one, else a word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _nested(path: str, value: Any) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    return {head: _nested(rest, value)} if rest else {head: value}
