"""Tables of settings held against their types: what is wrong is refused in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from ..errors import FedkinError
from .wording import did_you_mean

Kind = TypeVar("Kind", bound=BaseModel)


class ConfigError(FedkinError):
    """A setting is wrong; the sentence says where, why, and what would be right."""


def unknown_key(key: str, known: Iterable[str], also: Iterable[str] = ()) -> str:
    """The sentence; `also` are further names that would be understood."""
    known = list(known)
    if not known:
        return f"There is no setting {key!r}, nor any other here."
    hint = did_you_mean(key, [*known, *also], 0.5).rstrip() or f"Known are {', '.join(known)}."
    return f"There is no setting {key!r}. {hint}"


def validated(model: type[Kind], values: Mapping[str, Any], where: str) -> Kind:
    """The settings of a table by the name of `where`, checked."""
    prefix = f"{where}." if where else ""
    for key in values:
        if key not in model.model_fields:
            raise ConfigError(unknown_key(f"{prefix}{key}", [f"{prefix}{f}" for f in model.model_fields]))
    _refuse_truths(model, values, prefix)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_sentence(error, prefix)) from None


def _refuse_truths(model: type[BaseModel], values: Mapping[str, Any], prefix: str) -> None:
    """Python counts true as 1, and pydantic goes by that; who says it where a number is meant means something else."""
    for key, value in values.items():
        kind = model.model_fields[key].annotation if key in model.model_fields else None
        if isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, Mapping):
            _refuse_truths(kind, value, f"{prefix}{key}.")
            continue
        kinds = set(_kinds(kind))
        several = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(each, bool) for each in several) and kinds & {int, float} and bool not in kinds:
            told = str(value).lower() if isinstance(value, bool) else repr(value)
            what = "a whole number" if float not in kinds else "a number"
            raise ConfigError(f"{prefix}{key} = {told} cannot be: it is {what}, not a yes or no.")


def _kinds(annotation: Any) -> Iterable[Any]:
    """The plain types of which an annotation is made."""
    inner = get_args(annotation)
    if not inner:
        yield annotation
    for each in inner:
        yield from _kinds(each) if not isinstance(each, str | int | float) else ()


def _sentence(error: ValidationError, prefix: str) -> str:
    """The first fault as a sentence; alternatives of one setting are joined."""
    faults = error.errors()
    first = faults[0]
    path = [str(p) for p in first["loc"]]
    keys = []
    for part in path:  # pydantic appends the branch of a union to the place: drop it
        if part[:1].islower() and part.isidentifier() and part not in ("float", "int", "str", "bool", "list", "dict"):
            keys.append(part)
        else:
            break
    place = prefix + ".".join(keys)
    same = [f for f in faults if [str(p) for p in f["loc"]][: len(keys)] == keys]
    given = first.get("input")
    sentence = f"{place} = {given!r} cannot be: {_reasons(same)}."
    options = first.get("ctx", {}).get("expected", "") if first["type"] == "literal_error" else ""
    words = [w.strip().strip("'") for w in options.replace(" or ", ",").split(",") if w.strip()]
    return f"{sentence} {did_you_mean(str(given), words, 0.5)}".rstrip()


def _reasons(faults: Sequence[Mapping[str, Any]]) -> str:
    """What is wrong; where a setting may be of several kinds, what it may be."""
    kinds = list(dict.fromkeys(_kind(fault) for fault in faults))
    if len(kinds) > 1 and all(kinds):
        return f"it has to be {', '.join(map(str, kinds[:-1]))} or {kinds[-1]}"
    return " or ".join(dict.fromkeys(map(_reason, faults)))


def _kind(fault: Mapping[str, Any]) -> str | None:
    """What was expected, where it is a matter of kind."""
    if fault["type"] == "literal_error":
        return str(fault["ctx"]["expected"]).replace(" or ", ", ")
    return KINDS.get(str(fault["type"]).partition("_")[0]) if fault["type"].endswith(("_type", "_parsing")) else None


KINDS = {"float": "a number", "int": "a whole number", "dict": "a table", "list": "a list", "string": "a word"}


def _reason(fault: Mapping[str, Any]) -> str:
    message = str(fault["msg"])
    return message[0].lower() + message[1:].removesuffix(".")
