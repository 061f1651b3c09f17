"""Who takes part, and with what data; and what of that everyone may know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..base import streams
from ..base.settings import validated
from ..base.task import Task
from ..errors import FedkinError
from . import graphs
from .parts import stratified_part, too_small
from .preprocessing import Preprocessing, TablePreprocessing, TableSettings

Pair = tuple[Tensor, Tensor]


class FederationError(FedkinError):
    """The data cannot make a federation; the sentence says what is wrong, at which client, and what would be right."""


@dataclass(frozen=True)
class Seasons:
    """Where in its cycle a sample's first target lies, 0 to period - 1; its further targets follow one by one.

    `train` (n,) and `test` (n_test,), in the order of the samples.
    """

    period: int
    train: Tensor
    test: Tensor


@dataclass(frozen=True, eq=False)
class AsRead:
    """A silo's samples as they were read from a table, and how it prepares them by itself: for training, testing and
    validation, the numbers as they were read and the inputs that were made of them by the statistics of all silos."""

    raw: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    preprocessing: Preprocessing


@dataclass(frozen=True)
class Client:
    """One silo: its own training, validation and test samples. `group` is known to the experimenter alone."""

    name: str
    train: Pair
    test: Pair
    validation: Pair | None = None
    group: int | None = None
    corrupted: bool = False
    """Whether labels of its training data were made wrong on purpose, or it stays silent on purpose."""
    silent: bool = False
    """Whether it is served and scored, but never trains: an attacker whose gradient is nothing."""
    preprocessing: Preprocessing | None = None
    """How its samples were prepared, to be applied again at prediction."""
    test_rows: Tensor | None = None
    """(n_test,) the numbers of its test samples among all of its own, the same whatever the seed: who was tested. None
    where that has no meaning, as samples are dealt to clients by the seed."""
    subjects: Tensor | None = None
    """(n,) the number of the subject, such as the patient, that each training sample is of: a validation part cut from
    them keeps a subject's together, and has its share of every class. None: it is cut by lot alone."""
    test_subjects: Tensor | None = None
    """(n_test,) the number of the subject that each test sample is of, the same whatever the seed: intervals are by
    subject. None: each is its own."""
    weight: Tensor | None = None
    """(n,) how much each training sample counts in the training loss; None: all alike."""
    seasons: Seasons | None = None
    """Of windows cut from a series that has a cycle, such as the year: what climatology is about."""
    as_read: AsRead | None = None
    """Of a table that is prepared by the statistics of all silos, and where silos train alone by each its own."""

    def by_itself(self) -> Client:
        """Prepared by its own statistics, where that is open; inputs that somebody changed since stay what they are."""
        found, pairs = self.as_read, (self.train, self.test, self.validation)
        if found is None or not all(pair and pair[0] is x for pair, x in zip(pairs, found.inputs, strict=True)):
            return self
        module = found.preprocessing.module()
        train, test, validation = ((module(x), pair[1]) for x, pair in zip(found.raw, pairs, strict=True) if pair)
        return replace(self, train=train, test=test, validation=validation, preprocessing=found.preprocessing)

    @property
    def samples(self) -> int:
        """n_i: training samples, the validation part not counted."""
        return len(self.train[1])

    def __repr__(self) -> str:
        """Without data: what is printed ends up in logs."""
        return f"Client({self.name!r}, {self.samples} training and {len(self.test[1])} test samples)"


@dataclass(frozen=True)
class Federation:
    """Clients, sorted once by (-samples, name), so that those still training at a step are a prefix of the rows."""

    name: str
    clients: tuple[Client, ...]
    task: Task
    graph: Tensor | None = None
    """(m, m) relation graph in the order of `clients`: symmetric, not negative, zeros on the diagonal; or None."""
    split: str = "natural"
    notes: tuple[str, ...] = ()
    """What is not wrong but may surprise, in sentences; told before a run."""
    statistics: Literal["auto", "shared", "own"] | None = None
    """Of a table, by which means and deviations it is prepared, as `table.statistics` says; auto: it is yet open, and
    `clients` are prepared by those of all silos. None: it is no table."""
    split_seed: int | None = None
    """The seed by which it was drawn what clients are tested on; None where that was given."""

    @property
    def suited(self) -> dict[str, Any]:
        """Settings that suit it unless told otherwise: those of a table, where it comes from one, and of survival."""
        from . import events, from_tables

        tabular = any(isinstance(client.preprocessing, TablePreprocessing) for client in self.clients)
        found = {key: value for key, value in from_tables.DEFAULTS.items() if key != "data"} if tabular else {}
        found |= {} if self.statistics is None else {"table": {"statistics": self.statistics}}
        return found | (events.DEFAULTS if self.task.kind == "survival" else {})

    def __post_init__(self) -> None:
        if not self.clients:
            raise FederationError("A federation needs at least one client; none was given.")
        names = [c.name for c in self.clients]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise FederationError(f"Clients must have different names; {', '.join(twice)} occurs more than once.")
        for client in self.clients:
            _check(client, self.task)
        if self.graph is not None:
            graph, told = graphs.checked(self.graph, names)
            object.__setattr__(self, "graph", graph)
            object.__setattr__(self, "notes", (*self.notes, *told))
        order = sorted(range(len(names)), key=lambda i: (-self.clients[i].samples, names[i]))
        if order != list(range(len(names))):
            object.__setattr__(self, "clients", tuple(self.clients[i] for i in order))
            if self.graph is not None:
                object.__setattr__(self, "graph", self.graph[order][:, order])

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        task = self.task
        return f"Federation({self.name!r}, {len(self)} clients, {task.kind}, {task.inputs} -> {task.outputs})"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.clients)

    @property
    def groups(self) -> Tensor | None:
        """(m,) known groups, or None where any client's is unknown."""
        known = [c.group for c in self.clients]
        return None if any(g is None for g in known) else torch.tensor(known)

    @staticmethod
    def from_arrays(
        clients: Mapping[str, Sequence[object] | Mapping[str, object]],
        task: Task | Literal["classification", "regression", "survival"] | None = None,
        *,
        test_fraction: float = 0.25,
        groups: Mapping[str, int] | None = None,
        graph: Any = None,
        name: str = "arrays",
        seed: int = 0,
    ) -> Federation:
        """A federation from arrays: {name: (x, y)} or {name: (x_train, y_train, x_test, y_test)}.

        Or by name: {name: {"x": x, "y": y, "x_test": …, "y_test": …, "x_validation": …, "y_validation": …}}, and with
        these, of each training sample, `group`, the subject whose samples stay together, and `weight` in the loss.
        With (x, y) a share of each client's samples, `test_fraction`, is set aside for testing. Without a task, whole
        numbers as targets mean classification, anything else regression; say task="regression" for counts. With
        task="survival" y is (n, 2), time and event (1: seen, 0: censored), or a tuple of the two. Inputs become
        floating-point numbers; where they have to stay whole (numbers of words), build `Client`s. `graph`: see
        `with_graph`; a matrix without names is in the order of `clients`.
        """
        from . import from_arrays

        found = from_arrays.from_arrays(clients, task, test_fraction, groups, name, seed)
        return found if graph is None else found.with_graph(graph, order=list(clients))

    @staticmethod
    def from_datasets(
        clients: Mapping[str, object],
        task: Task | Literal["classification", "regression", "survival"] | None = None,
        **more: Any,
    ) -> Federation:
        """A federation from torch datasets: {name: dataset} or {name: (training set, test set)}; see `from_arrays`.

        A dataset has a length and gives (x, y); it is read once, so transforms that draw by lot draw once.
        """
        from . import from_arrays

        return Federation.from_arrays(from_arrays.of_datasets(clients), task, **{"name": "datasets", **more})

    @staticmethod
    def from_table(
        table: Any,
        client: str,
        target: str | None = None,
        *,
        test: Any = None,
        test_fraction: float = 0.25,
        validation: Any = 0.1,
        seed: int = 0,
        name: str | None = None,
        graph: Any = None,
        **settings: Any,
    ) -> Federation:
        """A federation from a table: a pandas or polars frame, or the path of a CSV, TSV or Parquet file.

        A client for each value of the column `client`. Test rows are those of the table `test`, or a share of each
        client's; `validation` is a table or a share, likewise. Further settings are those of `fedkin settings` under
        `table`: `group="patient"`, `categorical=["sex"]`, `missing=["?"]`, `statistics="own"`; with `time="days",
        event="died"` in place of a target it is survival. `graph`: see `with_graph`; a matrix without names is in the
        order of the clients' names.
        """
        from . import from_tables

        chosen = _table_settings(client=client, target=target, **settings)
        parts = {"test": test, "test_fraction": test_fraction, "validation": validation}
        found = from_tables.from_table(table, chosen, **parts, seed=seed, name=name)
        return found if graph is None else found._with_graph_by_name(graph)

    @staticmethod
    def from_folder(
        path: Path | str,
        target: str | None = None,
        *,
        test_fraction: float = 0.25,
        validation: float = 0.1,
        seed: int = 0,
        name: str | None = None,
        graph: Any = None,
        **settings: Any,
    ) -> Federation:
        """A federation from a folder with a file or a sub-folder for each client, named after it.

        `north.csv` (or .tsv, .parquet), `north/train.csv` with `north/test.csv`, `north.npz`, or `north/x.npy` with
        `north/y.npy`. For tables name the `target`; further settings, and `graph`, as for `from_table`.
        """
        from . import from_tables

        chosen = _table_settings(target=target, **settings)
        parts = {"test_fraction": test_fraction, "validation": validation}
        found = from_tables.from_folder(path, chosen, **parts, seed=seed, name=name)
        return found if graph is None else found._with_graph_by_name(graph)

    def prepared(self, statistics: str) -> Federation:
        """With the statistics of all silos (`shared`), or each silo's `own`, where that is open; else as it is."""
        if self.statistics != "auto":
            return self
        each = [client.by_itself() if statistics == "own" else client for client in self.clients]
        clients = tuple(replace(client, as_read=None) for client in each)
        return replace(self, clients=clients, statistics="own" if statistics == "own" else "shared")

    def with_graph(self, graph: Any, order: Sequence[str] | None = None) -> Federation:
        """The same clients with another relation graph, or, with None, without one.

        A matrix (its rows in `order`, by default that of `names`), a list of edges (client, client, weight),
        {client: {client: weight}}, a networkx graph, a pandas frame with names, or the path of a .csv, .tsv, .npy, .npz
        or .graphml file. What is not symmetric is made so, with a note.
        """

        if graph is None:
            return replace(self, graph=None)
        names = list(self.names if order is None else order)
        found, told = graphs.of(graph, names)
        sorted_, _ = graphs.from_matrix(found, self.names, labels=names)
        return replace(self, graph=sorted_, notes=(*self.notes, *told))

    def _with_graph_by_name(self, graph: Any) -> Federation:
        """Nobody knows the order of rows before tables are read: that of names is the one to agree on."""

        return self.with_graph(graph, order=graphs.in_order(self.names))

    def with_validation(self, share: float, seed: int) -> Federation:
        """Sets aside round(share * n) training samples of each client, at least one if n >= 5, else none.

        A client that brought validation data of its own keeps it.
        """
        if share == 0:
            return self
        clients = []
        for client in self.clients:
            if client.validation is not None:
                clients.append(client)
                continue
            x, y = client.train
            strata = self.task.strata(y)
            if client.subjects is None and strata is None:
                rest, held = validation_part(len(y), share, seed, client.name)
            else:
                labels = y if self.task.kind == "classification" else strata
                rest, held = stratified_part(labels, client.subjects, share, seed, client.name, "validation part")
            seasons = client.seasons and replace(client.seasons, train=client.seasons.train[rest])
            subjects, weight = (None if own is None else own[rest] for own in (client.subjects, client.weight))
            kept = replace(client, train=(x[rest], y[rest]), validation=(x[held], y[held]))
            clients.append(replace(kept, seasons=seasons, subjects=subjects, weight=weight))
        return replace(self, clients=tuple(clients), notes=(*self.notes, *self._too_small(clients)))

    def _too_small(self, clients: Sequence[Client]) -> list[str]:
        """Notes on what was cut for validation from data of one's own."""
        own = {c.name: c for c in clients if c.subjects is not None and c.validation is not None}
        held = {name: c.validation[1].numpy() for name, c in own.items() if c.validation is not None}
        known = {name: c.train[1].numpy() for name, c in own.items()}
        return too_small(held, known if self.task.kind == "classification" else None)

    def without(self, names: Sequence[str]) -> tuple[Federation, Federation]:
        """Two federations: the clients not named (with the induced graph), and all, the named ones appended last."""
        held = set(names)
        keep = [i for i, n in enumerate(self.names) if n not in held]
        rest = [i for i, n in enumerate(self.names) if n in held]
        if not keep:
            raise FederationError("Every client would be held out as a newcomer; at least one has to train.")
        order = keep + rest
        known = replace(
            self,
            clients=tuple(self.clients[i] for i in keep),
            graph=None if self.graph is None else self.graph[keep][:, keep],
        )
        everyone = replace(known)
        object.__setattr__(everyone, "clients", tuple(self.clients[i] for i in order))
        object.__setattr__(everyone, "graph", None if self.graph is None else self.graph[order][:, order])
        return known, everyone


def test_part(n: int, share: float, seed: int, client: str) -> tuple[Tensor, Tensor]:
    """Which of a client's n >= 2 samples to train on, and which to test on: round(share * n), at least one of each."""
    order = torch.randperm(n, generator=streams.generator(seed, client, 0, "test part"))
    held = min(max(1, round(share * n)), n - 1)
    return order[held:], order[:held]


def validation_part(n: int, share: float, seed: int, client: str) -> tuple[Tensor, Tensor]:
    """Which of a client's n training samples to train on, and which to keep: round(share * n), at least one if n >= 5,
    else none."""
    held = min(max(1, round(share * n)), n - 1) if n >= 5 and share else 0
    order = torch.randperm(n, generator=streams.generator(seed, client, 0, "validation part"))
    return order[held:].sort().values, order[:held].sort().values


def _table_settings(**settings: Any) -> TableSettings:
    """As in a configuration, with its sentences where something is wrong."""
    return validated(TableSettings, settings, "table")


def _check(client: Client, task: Task) -> None:
    """Raises a sentence if a client's data cannot be used for the task."""
    rows, tests = client.test_rows, len(client.test[1])
    if rows is not None and (rows.shape != (tests,) or rows.is_floating_point() or len(set(rows.tolist())) < tests):
        raise FederationError(
            f"Client {client.name!r}: test_rows should be {tests} different whole numbers, one for each test sample."
        )
    whose = client.test_subjects
    if whose is not None and (whose.shape != (tests,) or whose.is_floating_point()):
        raise FederationError(
            f"Client {client.name!r}: test_subjects should be {tests} whole numbers, one for each test sample."
        )
    for name, own in (("subjects", client.subjects), ("weight", client.weight)):
        if own is not None and own.shape != (client.samples,):
            raise FederationError(
                f"Client {client.name!r}: {name} should have one number for each of {client.samples} training samples."
            )
    if client.weight is not None and not bool((client.weight.isfinite() & (client.weight > 0)).all()):
        raise FederationError(f"Client {client.name!r}: the weights of samples have to be finite numbers above 0.")
    for part, pair in (("training", client.train), ("test", client.test), ("validation", client.validation)):
        if pair is None:
            continue
        x, y = pair
        where = f"Client {client.name!r}, {part} data"
        if len(x) != len(y):
            raise FederationError(f"{where}: {len(x)} samples but {len(y)} targets.")
        if len(y) == 0 and part != "validation":
            raise FederationError(f"{where}: there is no sample; every client needs at least one.")
        if tuple(x.shape[1:]) != task.inputs:
            raise FederationError(f"{where}: a sample has shape {tuple(x.shape[1:])}, the task expects {task.inputs}.")
        if x.is_floating_point() and not torch.isfinite(x).all():
            raise FederationError(f"{where}: there are NaN or infinite inputs; fill or remove them first.")
        if task.kind == "classification":
            if y.is_floating_point() or y.ndim != 1:
                raise FederationError(f"{where}: classes must be whole numbers, one a sample.")
            if len(y) and not 0 <= int(y.min()) <= int(y.max()) < task.outputs:
                raise FederationError(
                    f"{where}: labels run from {int(y.min())} to {int(y.max())}, "
                    f"the task has classes 0 to {task.outputs - 1}."
                )
        elif task.kind == "survival":
            _check_survival(y, where)
        elif not y.is_floating_point() or y.isinf().any() or (y.isnan().any() and not task.loss.masks):
            gaps = " (or NaN where missing, with the loss masked_mse)" if y.is_floating_point() else ""
            raise FederationError(f"{where}: targets of a regression must be finite floating-point numbers{gaps}.")


def _check_survival(y: Tensor, where: str) -> None:
    if not y.is_floating_point() or y.ndim != 2 or y.shape[1] != 2:
        raise FederationError(
            f"{where}: targets of survival are two numbers a sample, time and event; these have shape {tuple(y.shape)}."
        )
    if not torch.isfinite(y).all() or (y[:, 0] <= 0).any():
        raise FederationError(f"{where}: times until an event must be numbers above 0.")
    if ((y[:, 1] != 0) & (y[:, 1] != 1)).any():
        raise FederationError(f"{where}: an event is 1 where it was seen, and 0 where the watching ended before it.")
