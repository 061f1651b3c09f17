"""What a run wrote down, as types: the lines of rounds.jsonl, and summary.json.

A record is read by its attributes, so that a misspelt name is found before anything runs. It is a mapping as well, and
as such what stands in the file: `run.summary["models"]["cloud"]["validated"]`. What an older version did not write has
a default; what a newer one wrote besides is kept aside in `others`, and written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Self

TABLES = {"clients", "models"}
"""What is never null in a file that is whole."""
Score = float | None
"""A score; None (or NaN, until it is written) where there is none."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Record(Mapping[str, Any]):
    """Named values that stand in a JSON file under their names, in their order."""

    others: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What stands beside them in the file, and this version does not know."""

    @classmethod
    def read(cls, found: object) -> Self:
        """The record that JSON holds. Raises ValueError, which says in half a sentence why there is none."""
        if not isinstance(found, Mapping):
            raise ValueError(f"it is not a {cls.__name__.lower()}")
        known = {each.name: each for each in fields(cls) if each.name != "others"}
        for name, each in known.items():
            needed = each.default is MISSING and each.default_factory is MISSING
            empty = name in found and found[name] is None and name in TABLES
            if needed and (name not in found or empty):
                raise ValueError(f"it is not a {cls.__name__.lower()}: there is no {name!r}")
        values = {name: _typed(each, found[name]) for name, each in known.items() if name in found}
        return cls(**values, others={name: value for name, value in found.items() if name not in known})

    def written(self) -> list[str]:
        """The names of the values that stand in the file."""
        return [each.name for each in fields(self) if each.name != "others"]

    def __getitem__(self, name: str) -> Any:
        return _plain(getattr(self, name) if name in self.written() else self.others[name])

    def __iter__(self) -> Iterator[str]:
        return iter([*self.written(), *self.others])

    def __len__(self) -> int:
        return len(self.written()) + len(self.others)


def _typed(about: Field[Any], value: Any) -> Any:
    """What JSON holds, as the type of a record's field; null stays None."""
    read: Callable[[Any], Any] | None = about.metadata.get("read")
    if read is not None and value is not None:
        return read(value)
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """As JSON has it: tables and lists."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


def _as(kind: type[Record]) -> dict[str, Any]:
    return {"read": kind.read}


def _each_as(kind: type[Record]) -> dict[str, Any]:
    def read(found: object) -> dict[str, Record]:
        if not isinstance(found, Mapping):
            raise ValueError("its models are not a table")
        return {name: kind.read(each) for name, each in found.items()}

    return {"read": read}


# ---- rounds.jsonl ----


@dataclass(frozen=True, eq=False, kw_only=True)
class Validation(Record):
    """Scores on validation data. clients: (m,) in the order of the clients; `loss` is the mean over all samples."""

    mean: Score
    clients: tuple[Score, ...]
    loss: Score = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelScores(Record):
    """What a model scored in a round. clients: (m,) on test data, in the order of the clients.

    `mean` and `std` are over those that have a score; without validation data `validation` is None.
    """

    mean: Score = None
    std: Score = None
    clients: tuple[Score, ...]
    validation: Validation | None = field(default=None, metadata=_as(Validation))


@dataclass(frozen=True, eq=False, kw_only=True)
class Line(Record):
    """A round. `final` is the closing exchange; a line about newcomers (`novel`) has their scores alone.

    `participants` trained, in the closing exchange for themselves alone; `diverged` are those of them whose training
    was not finite. `gradients`: of mini-batches, of all clients; `passes`: samples that clients
    asked models about while they trained, without a gradient. `peak_bytes` is known on a GPU alone.
    """

    round: int
    seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    participants: tuple[str, ...] = ()
    gradients: int = 0
    passes: int = 0
    train_loss: float | None = None
    diverged: tuple[str, ...] = ()
    peak_bytes: int | None = None
    final: bool = False
    novel: bool = False
    models: Mapping[str, ModelScores] = field(default_factory=dict, metadata=_each_as(ModelScores))

    def written(self) -> list[str]:
        if self.novel:
            return ["round", "novel", "models"]
        absent = {"novel": True, "final": not self.final, "peak_bytes": self.peak_bytes is None}
        return [name for name in super().written() if not absent.get(name)]


# ---- summary.json ----


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelSummary(Record):
    """What a model came to: the best mean over clients on test data and its round (`std`: the deviation over clients
    there), the closing mean, that of the last ten, and the mean at the round that validation data chose."""

    bmta: float
    bmta_round: int
    last: Score = None
    last10: Score = None
    validated: Score = None
    validated_round: int | None = None
    std: Score = None
    improving: bool | None = None
    """Whether its validation loss was still falling at the end; None where that cannot be told."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Collaboration(Record):
    """How much of xi stays within the known groups, and how well the groups read off it agree with them."""

    within_group: float | None
    adjusted_rand: float
    round: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Novel(Record):
    """Newcomers, and what each model scored at them in the end."""

    clients: tuple[str, ...]
    models: Mapping[str, ModelScores] = field(metadata=_each_as(ModelScores))


@dataclass(frozen=True, eq=False, kw_only=True)
class Untrained(Record):
    """What needs no federation: the most frequent class (`majority`) or the mean target (`mean`) of each client's own
    training data, or its own `linear` model. clients: (m,) on test data, in the order of the clients."""

    name: str
    clients: tuple[Score, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Execution(Record):
    """How clients were run: each choice with its reason."""

    way: str
    reason: str | None = None
    precision: str | None = None
    weights: str | None = None
    trouble: str | None = None
    clients_at_once: int | None = None
    clients_at_once_reason: str | None = None
    threads: int | None = None
    threads_reason: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Summary(Record):
    """What a run came to. Fractions, not per cent; clients, groups and samples in the order of the rows."""

    method: str
    data: str
    split: str
    seed: int
    rounds: int
    preset: str = "ours"
    clients: tuple[str, ...]
    groups: tuple[int, ...] | None = None
    samples: tuple[int, ...] | None = None
    corrupted: tuple[str, ...] = ()
    metric: str
    higher_is_better: bool = True
    headline: str
    models: Mapping[str, ModelSummary] = field(metadata=_each_as(ModelSummary))
    kept: tuple[str, ...] = ()
    """The models that clients remember from round to round, and do not train when they take no part."""
    collaboration: Collaboration | None = field(default=None, metadata=_as(Collaboration))
    novel: Novel | None = field(default=None, metadata=_as(Novel))
    untrained: Untrained | None = field(default=None, metadata=_as(Untrained))
    linear: Untrained | None = field(default=None, metadata=_as(Untrained))
    notes: tuple[str, ...] = ()
    """What was told of the data before the run."""
    ended: str | None = None
    """Why after so many rounds: `rounds`, as told, or `validation`, as that showed no further gain."""
    diverged: tuple[str, ...] = ()
    """Clients whose training was not finite, or exploded, in some round."""
    withheld: tuple[str, ...] = ()
    """Clients that were handed no model, as all of the method's had exploded there."""
    bytes_down: int | None = None
    bytes_up: int | None = None
    gradients: int | None = None
    passes: int | None = None
    seconds: float | None = None
    peak_bytes: int | None = None
    parameters: int | None = None
    execution: Execution | None = field(default=None, metadata=_as(Execution))
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None
    device: str | None = None
