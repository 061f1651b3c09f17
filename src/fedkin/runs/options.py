"""Settings from the command line: `key=value`, `--key value` or `--key=value`, by their full or their last name."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .. import methods
from ..base.settings import ConfigError, unknown_key
from ..data.table import SUFFIXES
from .config import Config, merge, read_toml

SHORT = {"data": "data.name", "model": "model.name", "clients": "data.clients", "graph": "graph.source"}
"""Names that stand for another; `--data digits` is data.name."""


def parse(words: Sequence[str], several: Iterable[str] = ()) -> dict[str, Any]:
    """A table of settings from a configuration file and settings, in any order; settings win.

    `several`: the methods of a comparison, whose settings may be named too.
    """
    files, pairs = _sorted_out(list(words))
    raw: dict[str, Any] = {}
    for file in files:
        raw = merge(raw, read_toml(file))
    given = {key: parsed(text) for key, text in pairs}
    chosen = list(several) or [str(given.get("method", raw.get("method", Config().method)))]
    known = _settings(chosen)
    for key, text in pairs:
        if key in ("methods", "seeds") and not several:
            raise ConfigError(f"`fedkin compare --{key} {text}` runs several {key}; here there is one: --{key[:-1]}.")
        name = full_name(key, list(known))
        raw = merge(raw, nested(name, _meant(text, known[name].annotation if name in known else Any)))
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
                hint = f"; a table is named by --data {word}" if word.lower().endswith(SUFFIXES) else ""
                raise ConfigError(f"{word!r} is neither a configuration file (.toml) nor a setting (key=value){hint}.")
            files.append(Path(word))
            continue
        pairs.append((key.lstrip("-").replace("-", "_"), value))
    return files, pairs


def paths(chosen: Iterable[str]) -> list[str]:
    """Every setting's full name, those of the chosen methods included."""
    return list(_settings(chosen))


def _settings(chosen: Iterable[str]) -> dict[str, FieldInfo]:
    """What is known of every setting, by its full name; of two methods' settings of one name, what the first says."""
    found = dict(described(Config))
    for name in chosen:
        for field, info in methods.find(name).model_fields.items():
            found.setdefault(f"settings.{field}", info)
    return found


def described(model: type[BaseModel], prefix: str = "") -> Iterable[tuple[str, FieldInfo]]:
    """Every setting's full name, and what is known of it."""
    for name, info in model.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from described(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info


def meaning(info: FieldInfo) -> str:
    """What a setting does, and the words it may be unless that says them all."""
    words, told = list(dict.fromkeys(_words(info.annotation))), info.description or ""
    if all(re.search(rf"\b{re.escape(word)}\b", told) for word in words):
        return told
    return f"{told} ({', '.join(words)})" if told else ", ".join(words)


def _words(annotation: Any) -> Iterable[str]:
    """The words among what a setting may be."""
    if get_origin(annotation) is Literal:
        yield from (word for word in get_args(annotation) if isinstance(word, str))
    else:
        for inner in get_args(annotation):
            yield from _words(inner)


def full_name(key: str, known: list[str]) -> str:
    """The one of the known settings that is meant by its full or its last name."""
    key = SHORT.get(key, key)
    if key in known or key.startswith(("model.settings.", "data.settings.", "methods.")):
        return key
    ends = [path for path in known if path.rpartition(".")[2] == key]
    if len(ends) == 1:
        return ends[0]
    if ends:
        typed = " or ".join(f"--{path} VALUE" for path in ends)
        raise ConfigError(f"The setting {key!r} could be {' or '.join(ends)}; write it in full: {typed}.")
    inside = [path for path in known if path.startswith(f"{key}.")]
    if inside:
        raise ConfigError(f"{key!r} is a table; its settings are {', '.join(inside)}.")
    bare = key.removeprefix("settings.")
    others = [name for name in methods.names() if bare in methods.find(name).model_fields]
    if others:
        raise ConfigError(f"{bare!r} is a setting of {', '.join(others)}, not of the method chosen here.")
    raise ConfigError(unknown_key(key, known, [*SHORT, *(path.rpartition(".")[2] for path in known)]))


def parsed(text: str) -> Any:
    """A TOML value where it is one, else a word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _meant(text: str, annotation: Any) -> Any:
    """The value of a setting of this type: a TOML value, a word or, where it may be a list, words with commas."""
    value = parsed(text)
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kind = next((kind for kind in kinds if get_origin(kind) in (list, tuple)), None)
    if kind is None or isinstance(value, list | dict) or (len(kinds) > 1 and "," not in text):
        return value
    if isinstance(value, str) and value != text:
        return [value]  # in quotes, and so one word whatever is in it
    words = [word.strip() for word in text.split(",")]
    return [_member(word, numbers=get_args(kind) != (str,)) for word in words if word]


def _member(text: str, numbers: bool) -> Any:
    """A number where the list may hold some, else a word: a column may be called 2019, and a gap nan."""
    value = parsed(text)
    if isinstance(value, str):
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if numbers and number else text


def nested(path: str, value: Any) -> dict[str, Any]:
    """{'local': {'lr': value}} of 'local.lr'."""
    head, _, rest = path.partition(".")
    return {head: nested(rest, value)} if rest else {head: value}


def chosen(option: str, words: Iterable[str]) -> dict[str, list[Any]]:
    """Settings and their values from the command line: {'sigma': ['auto', 10]} of ['sigma=auto,10']."""
    found: dict[str, list[Any]] = {}
    for each in words:
        name, equals, text = each.partition("=")
        key, listed = name.strip().lstrip("-").replace("-", "_"), parsed(f"[{text}]")
        if not equals or not text.strip():
            raise ConfigError(f"{option} {each} does not say which values to take: write {option} key=a,b,c.")
        if key in found:
            raise ConfigError(f"{option} {key}=… is given twice; list all its values once.")
        found[key] = listed if isinstance(listed, list) else [parsed(word.strip()) for word in text.split(",")]
    return found


def by_full_name(wanted: Mapping[str, Any], methods: Iterable[str]) -> dict[str, list[Any]]:
    """Settings by their full names, each with the values it is to have, one after another; the methods' are known."""
    if not isinstance(wanted, Mapping):
        raise ConfigError(f"Settings and their values are a table, such as {{'local.lr': [0.1, 0.2]}}, not {wanted!r}.")
    known, found = paths(methods), dict[str, list[Any]]()
    for key, values in wanted.items():
        name = full_name(key, known)
        if name in found:
            raise ConfigError(f"The values of {name} are given twice; give them once.")
        if not isinstance(values, list | tuple) or not values:
            raise ConfigError(f"{name} needs a list of values to take, such as {key}=a,b,c; {values!r} is none.")
        twice = [value for i, value in enumerate(values) if value in values[:i]]
        if twice:
            raise ConfigError(f"{name} is to have the value {word(twice[0])} twice; say it once.")
        found[name] = list(values)
    return found


def laid_over(raw: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A table of settings with some, by their full names, laid over it."""
    table = {k: {"name": v} if k in ("data", "model") and isinstance(v, str) else v for k, v in raw.items()}
    for name, value in values.items():
        table = merge(table, nested(name, value))
    return table


def word(value: Any) -> str:
    """A value as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def label(values: Mapping[str, Any], full: bool = False) -> str:
    """'lr=0.001,sigma=auto': a folder's name; settings by their last names, where these tell them apart, or in full."""
    last = [name.rpartition(".")[2] for name in values]
    names = list(values) if full or len(set(last)) < len(last) else last
    short = ["-".join(map(word, v)) if isinstance(v, list | tuple) else word(v) for v in values.values()]
    text = ",".join(f"{name}={value}" for name, value in zip(names, short, strict=True))
    return re.sub(r"[^\w.=,+-]+", "-", text)[:120].strip("-.")
