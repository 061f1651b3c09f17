"""The typed configuration: what a run is, complete and resolved."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .. import data, methods, papers
from ..base.settings import ConfigError, unknown_key, validated
from ..data import events
from ..data.preprocessing import TableSettings
from ..methods._method import Method
from ..training.optimisers import Local


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Part = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Data(_Strict):
    """Which data, and how it is dealt to clients."""

    name: Annotated[
        str,
        Field(
            description="data set; a table (.csv, .tsv, .parquet); a folder of one a client; or 'package.module:name'"
        ),
    ] = "digits"
    given: Annotated[bool, Field(description="the federation was given as a Python object, not by name")] = False
    split: Literal[
        "iid", "pathological", "practical", "dirichlet", "natural", "relabelled", "mixed", "random", "chronological"
    ] = "practical"
    clients: Annotated[
        int | None, Field(ge=1, description="number of clients; the data set's usual one if not given")
    ] = None
    validation: Annotated[Share, Field(description="share of each client's training data kept for validation")] = 0.1
    alpha: Annotated[float, Field(gt=0, description="dirichlet: the smaller, the more skewed")] = 0.3
    least: Annotated[int, Field(ge=1, description="dirichlet: training samples that every client has")] = 8
    classes_per_client: Annotated[int, Field(ge=1, description="pathological")] = 2
    dominating: Annotated[float, Field(gt=0, lt=1, description="practical: share of the dominating classes")] = 0.8
    classes: Annotated[
        Literal["default", "uniform", "drawn"],
        Field(
            description="practical: uniform deals every class alike, also where they are of different size (emnist); "
            "drawn: as often as by lot"
        ),
    ] = "default"
    shift: Annotated[int, Field(description="relabelled, mixed: group g's label is (y + shift g) mod classes")] = 2
    agreeing: Annotated[Part, Field(description="mixed: part of the clients whose labels mean the same")] = 12
    relabelled: Annotated[Part, Field(description="mixed: part in two groups with other labels")] = 8
    lone: Annotated[Part, Field(description="mixed: part of clients that agree with nobody")] = 3
    test_fraction: Annotated[float, Field(gt=0, lt=1, description="where there is no official test part")] = 0.25
    augment: Annotated[bool, Field(description="random crop and flip of training images")] = False
    verify: Annotated[bool, Field(description="hold a data set's files against their checksums")] = True
    settings: Annotated[dict[str, Any], Field(description="the data set's own: see `fedkin data describe fl60`")] = {}
    digest: Annotated[str | None, Field(description="of your own files, recorded when they are first read")] = None


class Corruption(_Strict):
    """Labels made wrong on purpose: how much of that does a method stand?"""

    labels: Annotated[float, Field(ge=0, le=1, description="share of a hit client's training labels made wrong")] = 0.0
    clients: Annotated[float, Field(ge=0, le=1, description="share of clients that are hit")] = 0.4
    kind: Annotated[
        Literal["dirty", "random", "flip", "silent"],
        Field(
            description="dirty: another class by lot; random: any class by lot; flip: the class mirrored "
            "(y -> C - 1 - y); silent: no lies, but the client never trains"
        ),
    ] = "dirty"


class Graph(_Strict):
    """Who is related to whom, for the methods that look at it (panacea, sfl)."""

    source: Annotated[
        str,
        Field(
            description="given (the federation's own, else drawn by its known groups), none, empty, complete, "
            "permuted, groups, inferred; or a file: .csv, .tsv, .npy, .npz, .graphml"
        ),
    ] = "given"
    inside: Annotated[float, Field(ge=0, le=1, description="groups: chance of an edge inside a group")] = 0.6
    across: Annotated[float, Field(ge=0, le=1, description="groups: chance of an edge between groups")] = 0.05
    infer_by: Annotated[Literal["heurfedamp", "fedamp"], Field(description="inferred: whose attention tells")] = (
        "heurfedamp"
    )
    infer_rounds: Annotated[int, Field(ge=1, description="inferred: rounds before attention is looked at")] = 10
    top: Annotated[int, Field(ge=1, description="inferred: others that a client keeps at most")] = 9


class Model(_Strict):
    """The network: one of ours by name, or 'package.module:factory'."""

    name: Annotated[str, Field(description="mlp, logistic, cnn, resnet18, gru, or 'package.module:factory'")] = "mlp"
    settings: Annotated[dict[str, Any], Field(description="the model's own, such as hidden for mlp")] = {}


class Learning(_Strict):
    """Loss and metric, by name or 'package.module:function'; by default what the data set's task has."""

    loss: Annotated[str, Field(description="cross_entropy; mse, masked_mse; cox; or your own")] = "default"
    metric: Annotated[
        str,
        Field(
            description="accuracy, balanced_accuracy, auc, log_loss; mse, rmse, mae, also as masked_mse and so on; "
            "c_index; or your own"
        ),
    ] = "default"
    lower_is_better: Annotated[bool, Field(description="of a metric of your own: the lower, the better")] = False


class Participation(_Strict):
    """Who takes part in a round."""

    sample: Annotated[float, Field(gt=0, le=1, description="share of the reachable clients that train")] = 1.0
    dropped: Annotated[Share, Field(description="share of clients that cannot be reached in a round")] = 0.0
    lost: Annotated[Share, Field(description="chance that a trained client's upload never arrives")] = 0.0
    score: Annotated[Literal["all", "participants"], Field(description="who is scored in a round")] = "all"
    novel: Annotated[Share, Field(description="share of clients held out as newcomers after training")] = 0.0
    novel_exchanges: Annotated[int, Field(ge=0, description="local trainings a newcomer gets, less one")] = 3


class Config(_Strict):
    """One run of one method."""

    method: Annotated[str, Field(description="`fedkin methods` lists them; or 'package.module:Class'")] = "fedamp"
    rounds: Annotated[
        int,
        Field(ge=1, description="exchanges between server and clients; auto: until validation data show no gain"),
    ] = 100
    patience: Annotated[
        int,
        Field(ge=0, description="rounds without a better validation loss after which a run ends; 0: it does not"),
    ] = 0
    seed: Annotated[int, Field(ge=0, description="of the split, the start and the training")] = 0
    split_seed: Annotated[int | None, Field(ge=0, description="by default seed")] = None
    init_seed: Annotated[int | None, Field(ge=0, description="by default seed")] = None
    training_seed: Annotated[int | None, Field(ge=0, description="by default seed")] = None
    budget: Annotated[
        Literal["equal", "native"],
        Field(description="equal: the data set's local training for all methods; native: each method's own"),
    ] = "equal"
    preset: Annotated[
        Literal["ours", "paper"],
        Field(description="paper: the FedAMP papers' setting, and the method's published values (docs/papers.md)"),
    ] = "ours"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    execution: Literal["auto", "stacked", "one-by-one"] = "auto"
    chunk: Annotated[
        int, Field(ge=0, le=1_000_000, description="clients trained at once; 0: as many as memory allows")
    ] = 0
    weights: Annotated[
        Literal["memory", "disk"],
        Field(description="where all clients' weights are kept; disk: in mapped files, if they exceed memory"),
    ] = "memory"
    threads: Annotated[
        int, Field(ge=0, le=1024, description="CPU threads; 0: few where models are small, else torch's")
    ] = 0
    precision: Annotated[
        Literal["float32", "float32-strict", "bf16", "float64"],
        Field(description="float32: a GPU multiplies in TF32; float32-strict: it does not; bf16: products in bfloat16"),
    ] = "float32"
    on_divergence: Annotated[
        Literal["continue", "stop"], Field(description="when a client's training is no longer finite")
    ] = "continue"
    settings: Annotated[dict[str, Any], Field(description="the method's own")] = {}
    data: Data = Data()
    table: TableSettings = TableSettings()
    corruption: Corruption = Corruption()
    graph: Graph = Graph()
    model: Model = Model()
    learning: Learning = Learning()
    local: Local = Local()
    participation: Participation = Participation()

    def built_method(self) -> Method:
        return validated(methods.find(self.method), self.settings, "settings")

    @property
    def seeds(self) -> tuple[int, int, int]:
        """The split, init and training seeds."""
        given = (self.split_seed, self.init_seed, self.training_seed)
        return tuple(self.seed if s is None else s for s in given)  # type: ignore[return-value]


AUTO = {"rounds": 300, "patience": 20}
"""What rounds = "auto" stands for: at most so many, by which schedules go, and how long to wait for a gain."""

NAMED = ("data", "model")
"""Tables for which a name may stand."""


def resolve(raw: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> Config:
    """A complete configuration from what the user said.

    What is not said comes from the method where it presupposes something, then from the data set, then from here.
    `given`: what suits a federation that was given as an object.
    """
    raw = _how_long({k: {"name": v} if k in NAMED and isinstance(v, str) else v for k, v in raw.items()})
    _refuse_unknown(raw, Config, "")
    shape = validated(Config, {k: v for k, v in raw.items() if k != "settings"}, "")
    method, made = methods.find(shape.method), (given or {}).get("table", {}).get("statistics")
    layers: list[Mapping[str, Any]] = []
    if not shape.data.given:
        _refuse_table_settings(shape)
        layers.append(data.defaults(shape.data.name))
        if shape.table.survival:
            layers = [{**layers[0], **events.DEFAULTS}]
    elif given:
        layers.append(given)
    layers.append({"local": method.local})
    layers.append(method.suited(shape.data.name))
    if shape.budget == "native":
        layers.append(method.native(shape.data.name))
    if shape.preset == "paper":
        layers += [papers.preset(), {"settings": method.paper(shape.data.name, shape.data.split)}]
    merged: dict[str, Any] = {}
    for layer in [*map(_how_long, layers), raw]:
        merged = merge(merged, layer)
    if "name" in raw.get("model", {}):
        merged["model"] = raw["model"]  # another model does not take the data set's model's settings
    try:
        merged["settings"] = validated(method, merged.get("settings", {}), "settings").model_dump(mode="json")
    except ConfigError as error:
        raise ConfigError(f"Method {shape.method!r}: {error}") from None
    if not shape.data.given:
        kind = data.settings_of(shape.data.name)
        given = merged.get("data", {}).get("settings", {})
        chosen = validated(kind, given, "data.settings").model_dump(mode="json") if kind else given
        merged = merge(merged, {"data": {"name": data.located(shape.data.name), "settings": chosen}})
    config = validated(Config, merged, "")
    _refuse_half_a_teacher(config)
    table = config.table.model_copy(update={"statistics": _statistics(config, method.alone, made)})
    return config.model_copy(update={"table": table})


def _statistics(config: Config, alone: bool, made: str | None) -> str:
    """What `auto` comes to, recorded so that a run that goes on does not decide again: shared, and each silo's own
    where it trains alone. For alone is alone: with others' means and deviations a silo is told something of their data,
    and may be harmed by their units. `made`: how a federation was prepared that was given as an object."""
    said = config.table.statistics
    if said == "auto" and made in ("shared", "own"):
        return made
    possible = made == "auto" if config.data.given else data.may_be_prepared(config.data.name)
    return ("own" if alone and possible else "shared") if said == "auto" else said


def _how_long(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    """rounds = "auto" in numbers; and who says a number of rounds, and no patience, means all of them."""
    rounds = layer.get("rounds")
    if rounds == "auto":
        return {**layer, "rounds": AUTO["rounds"], "patience": layer.get("patience", AUTO["patience"])}
    return layer if rounds is None else {"patience": 0, **layer}


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables laid over tables; a value above wins. A name beside a table, as in data = "digits", is that table's."""
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        if key in NAMED and isinstance(value, str) and isinstance(under, Mapping):
            value = {"name": value}
        elif key in NAMED and isinstance(value, Mapping) and isinstance(under, str):
            under = {"name": under}
        both = isinstance(value, Mapping) and isinstance(under, Mapping)
        result[key] = merge(under or {}, value) if both else value
    return result


# ---- what was wrong, in words ----


def _refuse_unknown(raw: Mapping[str, Any], model: type[BaseModel], where: str) -> None:
    fields = model.model_fields
    for key, value in raw.items():
        if key not in fields:
            full = [] if where else _paths_ending_in(key, raw)
            if full:
                raise ConfigError(f"There is no setting {key!r} here. Its full name is {' or '.join(map(repr, full))}.")
            raise ConfigError(unknown_key(f"{where}{key}", [f"{where}{f}" for f in fields]))
        inner = fields[key].annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            if not isinstance(value, Mapping):
                raise ConfigError(
                    f"{where}{key} is a table of settings ({', '.join(inner.model_fields)}), not {value!r}."
                )
            _refuse_unknown(value, inner, f"{where}{key}.")
        elif key == "settings" and not isinstance(value, Mapping):
            raise ConfigError(f"{where}{key} is a table of settings, not {value!r}.")


def _refuse_table_settings(config: Config) -> None:
    """Who names a table's columns means a table, not a data set that has none."""
    given = [f"table.{role}" for role in config.table.roles]
    name = config.data.name
    if given and (name in data.names() or ":" in name) and not data.is_table(name):
        raise ConfigError(
            f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} for tables, but data.name = {name!r} is none: "
            "say which with --data patients.csv."
        )


def _refuse_half_a_teacher(config: Config) -> None:
    """Data that hold the truth of the steps to predict are for a model that is meant to be told it, and the reverse."""
    told = config.data.settings.get("teacher_forcing")
    if told is not None and told != bool(config.model.settings.get("teacher", False)):
        raise ConfigError(
            f"data.settings.teacher_forcing = {str(told).lower()} goes with model.settings.teacher = "
            f"{str(told).lower()}: with the one alone, a model would read answers or zeros in their place."
        )


def _paths_ending_in(key: str, raw: Mapping[str, Any]) -> list[str]:
    """Where a setting lies that was given by its last name."""
    tables = {name: info.annotation for name, info in Config.model_fields.items()}
    found = [
        f"{name}.{key}"
        for name, inner in tables.items()
        if isinstance(inner, type) and issubclass(inner, BaseModel) and key in inner.model_fields
    ]
    method = raw.get("method", Config().method)
    known = isinstance(method, str) and (":" in method or method in methods.names())
    return [*found, f"settings.{key}"] if known and key in methods.find(method).model_fields else found


# ---- TOML ----


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"There is no configuration file {path}.") from None
    except OSError as error:
        raise ConfigError(f"The configuration file {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None


def to_toml(values: Mapping[str, Any], place: str = "") -> str:
    """Values as TOML: first the plain settings, then the tables; what is None is left out."""
    plain = {k: v for k, v in values.items() if v is not None and not isinstance(v, Mapping)}
    tables = {k: v for k, v in values.items() if isinstance(v, Mapping)}
    lines = [f"{_key(k)} = {_value(v)}" for k, v in plain.items()]
    text = "\n".join(lines) + ("\n" if lines else "")
    for key, table in tables.items():
        if table:
            inner = f"{place}.{_key(key)}" if place else _key(key)
            text += f"\n[{inner}]\n{to_toml(table, inner)}"
    return text


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _value(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON's escapes are TOML's
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    raise ConfigError(f"A value of type {type(value).__name__} cannot be written to a configuration file: {value!r}.")
