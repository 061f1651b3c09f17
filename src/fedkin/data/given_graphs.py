"""Relation graphs as people have them: what a graph is, every form and file that one is read from, and what is refused.

A graph is (m, m): symmetric, no weight negative, zeros on the diagonal. People give it by the names of the clients; its
rows stand in the order of the names that are asked for, whatever order it was given in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from xml.parsers import expat

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..base.files import read_arrays
from ..base.wording import did_you_mean, first_line
from ..errors import FedkinError
from . import cells, table

SUFFIXES = (".csv", ".tsv", ".npy", ".npz", ".graphml")
ROUNDING = 1e-6
"""Two directions of an edge that differ by less than this share of the larger are equal."""

Given = tuple[Tensor, tuple[str, ...]]
"""A graph, and what may surprise in it, in sentences."""


class GraphError(FedkinError):
    """A graph cannot be used; the sentence says where, why, and what would be right."""


def checked(matrix: Any, names: Sequence[str]) -> Given:
    """A matrix (m, m) as a graph of these clients, in their order.

    The diagonal is left out and the larger of two directions is taken for both, each with a word; what has another
    size, is not finite or is negative is refused.
    """
    graph, m = numbers(matrix), len(names)
    if graph.shape != (m, m):
        raise GraphError(
            f"A graph of {m} clients is a matrix of shape ({m}, {m}), a row and a column for each; this one has shape "
            f"{tuple(graph.shape)}."
        )
    _refuse(~torch.isfinite(graph) | (graph < 0), graph, names)
    told = []
    loops = int(graph.diagonal().count_nonzero())
    if loops:
        told.append(f"{_count(loops, 'client')} had an edge to themselves in the graph; such edges are left out.")
    graph = graph.clone().fill_diagonal_(0)
    both = torch.maximum(graph, graph.T)
    unequal = int(((graph - graph.T).abs() > ROUNDING * both).sum()) // 2
    if unequal:
        told.append(
            f"The graph was not symmetric: {_count(unequal, 'pair')} of clients had another weight in one direction "
            "than in the other; the larger is taken for both."
        )
    return both, tuple(told)


def of(given: Any, names: Sequence[str]) -> Given:
    """The graph of these clients from whatever a person has: a file's path, a matrix in the order of `names`, a
    frame with names, a list of edges, {name: {name: weight}}, or a networkx graph."""
    if isinstance(given, str | Path):
        return read(given, names)
    if any(kind.__module__.startswith("networkx.") for kind in type(given).__mro__):
        return from_networkx(given, names)
    if isinstance(given, Mapping):
        return from_edges(_listed(given), names)
    if hasattr(given, "columns") and hasattr(given, "index") and hasattr(given, "to_numpy"):
        return _from_frame(given, names)
    edges = isinstance(given, list | tuple) and (not given or any(_names_a_client(item) for item in given))
    return from_edges(given, names) if edges else from_matrix(given, names)


# ---- forms ----


def from_matrix(matrix: Any, names: Sequence[str], labels: Sequence[object] | None = None) -> Given:
    """From a matrix whose rows and columns are called `labels`, by default in the order of `names`."""
    if labels is None:
        return checked(matrix, names)
    own = _labels(labels, names, "row")
    graph, told = checked(matrix, own)
    at = [own.index(name) for name in names]
    return graph[at][:, at], told


def from_edges(edges: Iterable[Any], names: Sequence[str], *, directed: bool = False) -> Given:
    """From pairs (name, name) or triples (name, name, weight); a pair weighs 1.

    An edge holds in both directions, unless the other one is listed with a weight of its own; or, if `directed`, as
    listed.
    """
    return _from_edges([(f"Edge {i} (the first is 0)", edge) for i, edge in enumerate(edges)], names, directed)


def from_networkx(graph: Any, names: Sequence[str]) -> Given:
    """From a networkx graph with a node for each client, named as it is; weights are its edges' `weight`, else 1.

    Nodes called otherwise may carry the client's name as an attribute `name` or `label`, as files of other programs do.
    """
    called = {node: str(node) for node in graph.nodes}
    if not set(called.values()) & set(names):
        for attribute in ("name", "label"):
            own = {node: str(data[attribute]) for node, data in graph.nodes(data=True) if attribute in data}
            if len(own) == len(called) and set(own.values()) & set(names):
                called = own
                break
    _labels(list(called.values()), names, "node")
    edges = [(called[a], called[b], weight) for a, b, weight in graph.edges(data="weight", default=1)]
    return from_edges(edges, names, directed=graph.is_directed())


def _from_frame(frame: Any, names: Sequence[str]) -> Given:
    """From a pandas frame whose rows and columns are named."""
    columns, rows = [str(c) for c in frame.columns], [str(r) for r in frame.index]
    if sorted(columns) != sorted(rows):
        raise GraphError(
            "A graph as a frame has the same names for its columns and its rows (its index); this one has not. A list "
            "of edges is given as rows: list(frame.itertuples(index=False))."
        )
    at = [rows.index(column) for column in columns]
    return from_matrix(frame.to_numpy()[at], names, columns)


def _from_edges(edges: Sequence[tuple[str, Any]], names: Sequence[str], directed: bool = False) -> Given:
    """From edges, each with the place where a person finds it."""
    number = {name: i for i, name in enumerate(names)}
    listed: dict[tuple[int, int], float] = {}
    for place, edge in edges:
        if not isinstance(edge, tuple | list) or len(edge) not in (2, 3):
            raise GraphError(f"{place} is {edge!r}; an edge is (client, client) or (client, client, weight).")
        for name in edge[:2]:
            if str(name) not in number:
                _refuse_stranger(str(name), names, f"{place}: ")
        ends = number[str(edge[0])], number[str(edge[1])]
        weight = _weight(edge[2], place) if len(edge) == 3 else 1.0
        if listed.setdefault(ends, weight) != weight:
            raise GraphError(
                f"{place}: the edge from {edge[0]!r} to {edge[1]!r} is there a second time, with the weight {weight:g} "
                f"in place of {listed[ends]:g}. List it once."
            )
    matrix = torch.zeros(len(names), len(names), dtype=torch.float64)
    for (i, j), weight in listed.items():
        matrix[i, j] = weight
        if not directed and (j, i) not in listed:
            matrix[j, i] = weight
    graph, told = checked(matrix, names)
    return graph, (*told, *_isolated(graph, names))


def _isolated(graph: Tensor, names: Sequence[str]) -> list[str]:
    alone = [name for name, edges in zip(names, graph.count_nonzero(1).tolist(), strict=True) if not edges]
    if not alone:
        return []
    some = ", ".join(alone[:5]) + (" and more" if len(alone) > 5 else "")
    return [f"{len(alone)} of {_count(len(names), 'client')} have no edge in the graph: {some}."]


def _listed(adjacency: Mapping[Any, Any]) -> list[tuple[Any, Any, Any]]:
    for name, others in adjacency.items():
        if not isinstance(others, Mapping):
            raise GraphError(f"The edges of {name!r} should be {{name: weight}}, but are a {type(others).__name__}.")
    return [(a, b, weight) for a, others in adjacency.items() for b, weight in others.items()]


def _names_a_client(item: Any) -> bool:
    """Whether it is an edge, not a row of a matrix."""
    return isinstance(item, tuple | list) and len(item) > 0 and isinstance(item[0], str)


# ---- files ----


def read(path: Path | str, names: Sequence[str]) -> Given:
    """From a file: .csv or .tsv (a list of edges, or a matrix with names), .npy or .npz (a matrix), .graphml."""
    path = Path(path).expanduser()
    readers = {".csv": _text, ".tsv": _text, ".npy": _arrays, ".npz": _arrays, ".graphml": _graphml}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise GraphError(f"{path} is not a graph: {', '.join(SUFFIXES)} files are read.")
    if path.is_dir():
        raise GraphError(f"{path} is a folder, not a graph.")
    try:
        return reader(path, names)
    except FileNotFoundError:
        raise GraphError(f"There is no file {path}.") from None
    except GraphError as error:
        said = str(error)
        raise GraphError(said if said.startswith(path.name) else f"{path.name}: {said}") from None
    except table.TableError as error:
        raise GraphError(str(error)) from None
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error.strerror or error}.") from None


def in_order(names: Iterable[str]) -> list[str]:
    """Names as a person counts: silo-2 before silo-10. The order of a matrix in a file that names nobody."""

    def counted(name: str) -> tuple[list[tuple[bool, int, str]], str]:
        parts = [(part[:1].isdigit(), part.lstrip("0")) for part in re.findall(r"[0-9]+|[^0-9]+", name)]
        return [(not number, len(text) if number else 0, text) for number, text in parts], name

    return sorted(names, key=counted)


def _text(path: Path, names: Sequence[str]) -> Given:
    """A list of edges in two or three columns, with or without a header; or a matrix with names in its header and in
    its first column."""
    records = [(line, [cell.strip() for cell in row]) for line, row in table.records(path)]
    (_, header), *rows = records
    for line, row in records:
        if len(row) != len(header):
            raise GraphError(
                f"{path.name}, line {line} has {_count(len(row), 'cell')}, but the first line has {len(header)}."
            )
    if len(header) > 3 or sorted(header[1:]) == sorted(row[0] for _, row in rows):
        return _text_matrix(path, header[1:], rows, names)
    if len(header) < 2:
        raise GraphError(f"{path.name} has one column; an edge needs two, or three with its weight.")
    if set(header[:2]) <= set(names) and (len(header) == 2 or cells.number(header[2]) is not None):
        rows = records  # there is no header: the first line is an edge
    return _from_edges([(f"{path.name}, line {line}", row) for line, row in rows], names)


def _text_matrix(path: Path, header: list[str], rows: list[tuple[int, list[str]]], names: Sequence[str]) -> Given:
    labels = [row[0] for _, row in rows]
    if sorted(labels) != sorted(header):
        raise GraphError(
            f"{path.name} has more than three columns and so should be a matrix, with the same names in its first line "
            "as in its first column; these are not the same. A list of edges has two columns, or three with weights."
        )
    at = {name: i for i, name in enumerate(labels)}
    weights = [[_weight(cell, f"{path.name}, line {line}") for cell in row[1:]] for line, row in rows]
    return from_matrix(np.array(weights)[[at[name] for name in header]], names, header)


def _arrays(path: Path, names: Sequence[str]) -> Given:
    """One array; or, of several, `graph`, and perhaps `names`."""
    try:
        found = read_arrays(path)
    except ValueError as error:
        _refuse_damaged(path, error)
    labels = found.pop("names", None)
    if "graph" not in found and len(found) != 1:
        held = ", ".join(found) or "none"
        raise GraphError(f"{path.name} should hold an array `graph`, and perhaps `names`; its arrays are: {held}.")
    matrix = found.get("graph", next(iter(found.values())))
    if labels is None:
        return _without_names(path, matrix, names)
    if labels.ndim != 1:
        raise GraphError(f"{path.name}: `names` should be a list of names, but has shape {labels.shape}.")
    return from_matrix(matrix, names, labels.tolist())


def _without_names(path: Path, matrix: Any, names: Sequence[str]) -> Given:
    order = in_order(names)
    try:
        graph, told = from_matrix(matrix, names, order)
    except GraphError as error:
        raise GraphError(
            f"{error} Its rows should stand in the order of the clients' names: {_shown(order)}. An .npz may have an "
            "array `names` with an order of its own."
        ) from None
    said = f"{path.name} names no clients: its rows were taken in the order of their names, {_shown(order)}."
    return graph, (said, *told)


def _graphml(path: Path, names: Sequence[str]) -> Given:
    from networkx import parse_graphml

    content = path.read_bytes()
    _refuse_entities(path, content)
    try:
        graph = parse_graphml(content)
    except Exception as error:  # networkx lets through whatever a missing id or a wrong type comes to
        _refuse_damaged(path, error)
    return from_networkx(graph, names)


def _refuse_entities(path: Path, content: bytes) -> None:
    """A document type can define entities that grow beyond memory when they are read; GraphML has no use for one."""

    def refuse(*_: Any) -> NoReturn:
        raise GraphError(f"{path.name} declares a document type (<!DOCTYPE>), which GraphML has no use for. Remove it.")

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(content, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        if isinstance(error, GraphError):
            raise
        _refuse_damaged(path, error)


# ---- what was wrong, in words ----


def numbers(matrix: Any) -> Tensor:
    """Numbers as a tensor; floating-point numbers keep their precision."""
    matrix = matrix.toarray() if hasattr(matrix, "toarray") else matrix
    try:
        found = matrix.detach().cpu() if isinstance(matrix, Tensor) else torch.as_tensor(_array(matrix))
    except (TypeError, ValueError):
        raise GraphError(
            f"This {type(matrix).__name__} is not a graph. Give a matrix of numbers, a list of edges "
            "(client, client, weight), {client: {client: weight}}, a networkx graph, or the path of a file."
        ) from None
    if found.is_complex():
        raise GraphError("The weights of a graph are real numbers, not complex ones.")
    return found if found.is_floating_point() else found.float()


def _array(matrix: Any) -> NDArray[Any]:
    array = np.asarray(matrix)
    if array.dtype.kind not in "biufc":
        raise TypeError
    return np.array(array, dtype=np.float64) if array.dtype.kind in "iu" else array


def _refuse(wrong: Tensor, graph: Tensor, names: Sequence[str]) -> None:
    if wrong.any():
        i, j = wrong.nonzero()[0].tolist()
        raise GraphError(
            f"The graph's weight in the row of {names[i]!r} and the column of {names[j]!r} is {graph[i, j]:g}; it "
            "should be a finite number, 0 or more, and 0 where there is no edge."
        )


def _labels(labels: Sequence[object], names: Sequence[str], what: str) -> list[str]:
    """Labels as texts; they have to be the clients' names, each once."""
    own = [str(label) for label in labels]
    for label in own:
        if label not in names:
            _refuse_stranger(label, names)
        if own.count(label) > 1:
            raise GraphError(f"The graph has more than one {what} named {label!r}.")
    missing = [name for name in names if name not in own]
    if missing:
        raise GraphError(f"The graph has no {what} for {_count(len(missing), 'client')}: {_shown(missing)}.")
    return own


def _refuse_stranger(name: str, names: Sequence[str], place: str = "") -> NoReturn:
    near = did_you_mean(name, names, 0.6)
    raise GraphError(f"{place}{name!r} in the graph is no client. {near}Clients are {_shown(in_order(names))}.")


def _weight(value: Any, place: str) -> float:
    try:
        weight = float(value)
    except (TypeError, ValueError):
        raise GraphError(f"{place}: the weight {value!r} is not a number.") from None
    if not math.isfinite(weight) or weight < 0:
        raise GraphError(f"{place}: the weight {value!r} should be a finite number, 0 or more.")
    return weight


def _refuse_damaged(path: Path, error: Exception) -> NoReturn:
    why = first_line(error)
    raise GraphError(f"{path.name} is not a whole {path.suffix.lower()} file of a graph ({why}).") from None


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
