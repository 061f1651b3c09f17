"""Relation graphs: every form gives the same graph whatever its order, what cannot be one is refused with a sentence,
and federations take any of them."""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import TensorDataset

from fedkin.base.task import Task
from fedkin.data import graphs
from fedkin.data.federation import Client, Federation
from fedkin.data.graphs import GraphError

NAMES = ["north", "south", "east", "west"]
EDGES = [("north", "south", 0.5), ("south", "east", 2.0), ("west", "north", 1.0)]
MATRIX = np.array([[0, 0.5, 0, 1], [0.5, 0, 2, 0], [0, 2, 0, 0], [1, 0, 0, 0]])
"""EDGES, in the order of NAMES."""


def weights(found: tuple[Tensor, tuple[str, ...]], names: list[str]) -> dict[tuple[str, str], float]:
    """{(name, name): weight} of every edge, both directions."""
    graph, _ = found
    return {(names[i], names[j]): float(graph[i, j]) for i, j in graph.nonzero().tolist()}


EXPECTED = {pair: w for a, b, w in EDGES for pair in ((a, b), (b, a))}


def sentence(caught: pytest.ExceptionInfo[GraphError]) -> str:
    said = str(caught.value)
    assert re.search(r"[.?]$", said), said
    return said


# ---- forms ----


def in_networkx(edges: list[tuple[str, str, float]]) -> nx.Graph:
    graph = nx.Graph()
    graph.add_weighted_edges_from(edges)
    return graph


def in_file(name: str, write: Callable[[Path], Any]) -> Callable[[Path], Path]:
    def written(folder: Path) -> Path:
        write(folder / name)
        return folder / name

    return written


SHUFFLED = ["west", "east", "north", "south"]
ORDER = [NAMES.index(name) for name in SHUFFLED]
FRAME = pd.DataFrame(MATRIX[ORDER][:, ORDER], SHUFFLED, SHUFFLED)
SORTED = [NAMES.index(name) for name in sorted(NAMES)]
TABLE = pd.DataFrame(EDGES, columns=["source", "target", "weight"])

FORMS: dict[str, Callable[[Path], Any]] = {
    "edges": lambda _: EDGES,
    "edges the other way round": lambda _: [(b, a, w) for a, b, w in reversed(EDGES)],
    "edges in both directions": lambda _: [*EDGES, *((b, a, w) for a, b, w in EDGES)],
    "edges as lists": lambda _: [list(edge) for edge in EDGES],
    "adjacency": lambda _: {"south": {"north": 0.5, "east": 2}, "north": {"west": 1}, "west": {}},
    "networkx": lambda _: in_networkx(EDGES),
    "networkx, both directions": lambda _: in_networkx(EDGES).to_directed(),
    "frame": lambda _: FRAME,
    "frame with rows in another order": lambda _: FRAME.loc[NAMES],
    "edges.csv": in_file("edges.csv", lambda p: TABLE.to_csv(p, index=False)),
    "edges.tsv": in_file("edges.tsv", lambda p: TABLE.to_csv(p, index=False, sep="\t")),
    "edges with semicolons": in_file("edges.csv", lambda p: TABLE.to_csv(p, index=False, sep=";")),
    "edges without header": in_file("edges.csv", lambda p: TABLE.to_csv(p, index=False, header=False)),
    "matrix.csv": in_file("matrix.csv", FRAME.to_csv),
    "matrix.csv with rows in another order": in_file("matrix.csv", FRAME.loc[NAMES].to_csv),
    "matrix.npy": in_file("matrix.npy", lambda p: np.save(p, MATRIX[SORTED][:, SORTED])),
    "matrix.npz": in_file("matrix.npz", lambda p: np.savez(p, MATRIX[SORTED][:, SORTED])),
    "npz with names": in_file("named.npz", lambda p: np.savez(p, graph=FRAME.to_numpy(), names=np.array(SHUFFLED))),
    "graphml": in_file("graph.graphml", lambda p: nx.write_graphml(in_networkx(EDGES), p)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_edges_whatever_order_is_asked_for(form, tmp_path):
    given_graph = FORMS[form](tmp_path)
    for names in itertools.permutations(NAMES):
        found = graphs.of(given_graph, list(names))
        assert weights(found, list(names)) == EXPECTED
        assert not any("symmetric" in said for said in found[1])


@pytest.mark.parametrize(
    "matrix",
    [MATRIX, MATRIX.tolist(), torch.tensor(MATRIX), MATRIX.astype(np.float32), scipy.sparse.csr_matrix(MATRIX)],
)
def test_a_matrix_is_in_the_order_of_the_names_asked_for_unless_it_has_labels(matrix):
    assert weights(graphs.of(matrix, NAMES), NAMES) == EXPECTED
    assert weights(graphs.from_matrix(matrix, SHUFFLED, labels=NAMES), SHUFFLED) == EXPECTED


def test_whole_numbers_and_truths_become_weights():
    for kind in (bool, np.uint8, np.int64):
        graph, _ = graphs.of((MATRIX > 0).astype(kind), NAMES)
        assert graph.is_floating_point()
        assert torch.equal(graph, torch.tensor(MATRIX > 0).float())


def test_an_edge_without_weight_weighs_one(tmp_path):
    edges = tmp_path / "edges.csv"
    edges.write_text("from,to\nnorth,south\n")
    for form in ([("north", "south")], edges, nx.Graph([("north", "south")])):
        if isinstance(form, nx.Graph):
            form.add_nodes_from(NAMES)
        assert weights(graphs.of(form, NAMES), NAMES) == {("north", "south"): 1, ("south", "north"): 1}


def test_nodes_may_carry_the_clients_names_as_an_attribute(tmp_path):
    for attribute in ("name", "label"):
        graph = nx.relabel_nodes(in_networkx(EDGES), {name: f"n{i}" for i, name in enumerate(NAMES)})
        nx.set_node_attributes(graph, {f"n{i}": name for i, name in enumerate(NAMES)}, attribute)
        nx.write_graphml(graph, tmp_path / "graph.graphml")
        assert weights(graphs.read(tmp_path / "graph.graphml", NAMES), NAMES) == EXPECTED


def test_numbers_as_nodes_are_names():
    found = graphs.of(nx.path_graph(3), ["2", "0", "1"])
    assert weights(found, ["2", "0", "1"]) == {("0", "1"): 1, ("1", "0"): 1, ("1", "2"): 1, ("2", "1"): 1}


def test_names_are_counted_as_a_person_does():
    assert graphs.in_order(["b", "silo-10", "silo-2", "a", "silo-02b"]) == ["a", "b", "silo-2", "silo-02b", "silo-10"]
    assert graphs.in_order(["10", "9", "a1", "a"]) == ["9", "10", "a", "a1"]


# ---- what is told ----


def test_a_file_without_names_says_in_which_order_it_was_read(tmp_path):
    np.save(tmp_path / "g.npy", np.zeros((4, 4)))
    _, told = graphs.read(tmp_path / "g.npy", NAMES)
    assert "g.npy names no clients" in told[0] and "east, north, south, west" in told[0]


def test_what_is_not_symmetric_takes_the_larger_with_a_word():
    matrix = MATRIX.copy()
    matrix[0, 1], matrix[2, 1] = 0.25, 3.0
    graph, told = graphs.checked(matrix, NAMES)
    assert torch.equal(graph, graph.T)
    assert float(graph[0, 1]) == 0.5 and float(graph[1, 2]) == 3.0
    assert len(told) == 1 and "not symmetric: 2 pairs" in told[0]
    directed, told = graphs.of(nx.DiGraph([("north", "south"), ("south", "east"), ("east", "west")]), NAMES)
    assert torch.equal(directed, directed.T) and int(directed.sum()) == 6
    assert "3 pairs" in told[0]


def test_rounding_is_no_asymmetry():
    matrix = torch.rand(5, 5, dtype=torch.float64)
    matrix = (matrix + matrix.T).fill_diagonal_(0)
    graph, told = graphs.checked(matrix * (1 + 1e-9 * torch.rand(5, 5, dtype=torch.float64)), list("abcde"))
    assert torch.equal(graph, graph.T) and told == ()


def test_edges_to_oneself_are_left_out_with_a_word():
    graph, told = graphs.checked(MATRIX + np.diag([1, 0, 1, 0]), NAMES)
    assert not graph.diagonal().any()
    assert len(told) == 1 and "2 clients had an edge to themselves" in told[0]
    given_matrix = torch.ones(2, 2)
    graphs.checked(given_matrix, ["a", "b"])
    assert given_matrix.diagonal().all(), "what was given is left as it is"


def test_clients_without_an_edge_are_named():
    _, told = graphs.of([("north", "south")], NAMES)
    assert told == ("2 of 4 clients have no edge in the graph: east, west.",)
    _, told = graphs.of([], ["a", "b"])
    assert "2 of 2 clients have no edge" in told[0]


def test_an_edge_may_be_listed_twice_but_not_with_two_weights():
    assert weights(graphs.of([("north", "south", 2)] * 2, NAMES), NAMES) == {
        ("north", "south"): 2,
        ("south", "north"): 2,
    }
    with pytest.raises(GraphError) as caught:
        graphs.of([("north", "south", 2), ("north", "south", 3)], NAMES)
    assert "Edge 1 (the first is 0)" in sentence(caught) and "weight 3 in place of 2" in sentence(caught)
    graph, told = graphs.of([("north", "south", 2), ("south", "north", 3)], NAMES)
    assert float(graph[0, 1]) == float(graph[1, 0]) == 3 and "1 pair of clients" in told[0]


# ---- what is refused ----


def no_number(value: float) -> np.ndarray:
    matrix = MATRIX.copy()
    matrix[0, 3] = matrix[3, 0] = value
    return matrix


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (MATRIX[:3, :3], r"4 clients is a matrix of shape \(4, 4\).*shape \(3, 3\)"),
        (MATRIX[:, :2], r"shape \(4, 2\)"),
        (np.zeros(4), r"shape \(4,\)"),
        (np.zeros((4, 4, 4)), r"shape \(4, 4, 4\)"),
        (no_number(-1), "row of 'north' and the column of 'west' is -1"),
        (no_number(math.nan), "'west' is nan"),
        (no_number(math.inf), "'west' is inf"),
        (MATRIX.astype(complex), "complex"),
        (MATRIX.astype(str), "is not a graph"),
        (MATRIX.astype(object), "is not a graph"),
        (object(), "This object is not a graph"),
        (7, r"shape \(\)"),
        ([[0, 1], [1]], "is not a graph"),
        ([("north", "nroth")], "Edge 0.*'nroth' in the graph is no client. Did you mean 'north'"),
        ([("north",)], r"Edge 0 .* is \('north',\); an edge is \(client, client\)"),
        ([("north", "south", 1, 1)], "an edge is"),
        ([("north", "south"), "west"], "Edge 1 .* is 'west'; an edge is"),
        ([("north", "south", "strong")], "the weight 'strong' is not a number"),
        ([("north", "south", None)], "the weight None is not a number"),
        ([("north", "south", -2)], "the weight -2 should be a finite number"),
        ([("north", "south", math.nan)], "the weight nan should be"),
        ({"north": ["south"]}, "edges of 'north' should be {name: weight}"),
        ({"north": {"sout": 1}}, "'sout' in the graph is no client. Did you mean 'south'"),
        (nx.path_graph(4), "'0' in the graph is no client. Clients are east, north"),
        (nx.Graph([("north", "south"), ("east", "norh")]), "'norh' in the graph is no client. Did you mean 'north'"),
        (nx.Graph([("north", "south"), ("east", "north")]), "no node for 1 client: west"),
        (nx.Graph([("a", "b")]), "no client"),
        (FRAME.drop(columns="west"), "same names for its columns and its rows"),
        (FRAME.drop(columns="west", index="west"), "no row for 1 client: west"),
        (FRAME.rename(columns={"west": "wets"}, index={"west": "wets"}), "'wets' .* Did you mean 'west'"),
    ],
)
def test_what_is_no_graph_of_the_clients_is_refused_with_the_place_and_the_reason(bad, said):
    with pytest.raises(GraphError) as caught:
        graphs.of(bad, NAMES)
    assert re.search(said, sentence(caught)), caught.value


def test_labels_have_to_be_different():
    with pytest.raises(GraphError, match="more than one row named 'north'"):
        graphs.from_matrix(np.zeros((4, 4)), NAMES, labels=["north", "north", "east", "west"])


BOMB = """<?xml version="1.0"?>
<!DOCTYPE lolz [<!ENTITY a "ha"> <!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"> <!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="undirected"><node id="&c;"/></graph>
</graphml>
"""
OUTSIDE = BOMB.replace('[<!ENTITY a "ha">', '[<!ENTITY a SYSTEM "file:///etc/passwd">')


def savez(**arrays: Any) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def saved(array: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=True)
    return content.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("g.txt", b"a,b", "is not a graph: .csv"),
        ("g.csv", b"", "g.csv is empty"),
        ("g.csv", b"source,target\n", "header but no rows"),
        ("g.csv", b"source\nnorth\n", "one column; an edge needs two"),
        ("g.csv", b"source,target\nnorth,south\nnorth,suoth\n", "g.csv, line 3: 'suoth' .* Did you mean 'south'"),
        ("g.csv", b"source,target\nnorth,south\nnorth\n", "line 3 has 1 cell, but the first line has 2"),
        ("g.csv", b"source,target,weight\nnorth,south,much\n", "line 2: the weight 'much' is not a number"),
        ("g.csv", b"source,target,weight\nnorth,south,\n", "line 2: the weight '' is not a number"),
        ("g.csv", b"source,target,weight\nnorth,south,-1\n", "line 2: the weight '-1' should be"),
        ("g.csv", b"a,b,c,d\nnorth,south,1,2\n", "more than three columns and so should be a matrix"),
        ("g.csv", b",north,south\nnorth,0,1\nsouth,1,0\n", "g.csv: The graph has no row for 2 clients: east, west"),
        ("g.csv", b",north,south\nnorth,0,x\nsouth,1,0\n", "line 2: the weight 'x'"),
        ("g.csv", b"source,target\n\xff\xfe,south\n", "line 2: .* in the graph is no client"),
        ("g.csv", b'source,target\n"north,south\n', "quotation mark is never closed"),
        ("g.npy", b"", "g.npy is not a whole .npy file"),
        ("g.npy", b"not numbers", "g.npy is not a whole .npy file"),
        ("g.npy", saved(np.zeros((4, 4)))[:-8], "g.npy is not a whole .npy file"),
        ("g.npy", saved(np.array([{"a": 1}], dtype=object)), "it holds Python objects"),
        ("g.npy", saved(np.zeros((3, 3))), "in the order of the clients' names: east, north, south, west"),
        ("g.npz", b"PK", "g.npz is not a whole .npz file"),
        ("g.npz", savez(graph=MATRIX)[:100], "g.npz is not a whole .npz file"),
        ("g.npz", savez(graph=MATRIX)[:-30], "g.npz is not a whole .npz file"),
        ("g.npz", savez(x=MATRIX, y=MATRIX), "should hold an array `graph`.*: x, y"),
        ("g.npz", savez(names=np.array(NAMES)), "should hold an array `graph`.*: none"),
        ("g.npz", savez(graph=MATRIX, names=np.array([NAMES])), "`names` should be a list"),
        ("g.npz", savez(graph=MATRIX, names=np.array([*NAMES[:3], "wast"])), "'wast' .* Did you mean 'west'"),
        ("g.npz", savez(graph=MATRIX, names=np.array(NAMES[:3])), "no row for 1 client: west"),
        ("g.graphml", b"", "g.graphml is not a whole .graphml file"),
        ("g.graphml", b"<graphml>", "g.graphml is not a whole .graphml file"),
        ("g.graphml", b"<html></html>", "g.graphml is not a whole .graphml file"),
        ("g.graphml", BOMB.encode(), "declares a document type"),
        ("g.graphml", BOMB.encode("utf-16"), "declares a document type"),
        ("g.graphml", OUTSIDE.encode(), "declares a document type"),
        ("g.graphml", BOMB.replace("1.0", '1.0" encoding="no-such').encode(), "g.graphml"),
    ],
)
def test_a_file_that_is_no_graph_of_the_clients_is_refused_with_its_name(name, content, said, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(GraphError) as caught:
        graphs.read(tmp_path / name, NAMES)
    assert name in sentence(caught)
    assert re.search(said, str(caught.value)), caught.value


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path):
    with pytest.raises(GraphError, match=r"There is no file .*missing.csv"):
        graphs.read(tmp_path / "missing.csv", NAMES)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(GraphError, match="is a folder"):
        graphs.read(tmp_path / "folder.csv", NAMES)


@given(st.binary(max_size=200), st.sampled_from(graphs.SUFFIXES))
def test_no_content_whatsoever_ends_in_a_traceback(tmp_path_factory, content, suffix):
    path = tmp_path_factory.mktemp("any") / f"g{suffix}"
    path.write_bytes(content)
    try:
        graph, _ = graphs.read(path, NAMES)
    except GraphError as error:
        assert path.name in str(error)
    else:
        assert torch.equal(graph, graph.T)


# ---- federations ----


def client(name: str, n: int) -> Client:
    x = torch.zeros(n, 1)
    return Client(name, (x, torch.zeros(n).long()), (x[:1], torch.zeros(1).long()))


SIZES = dict(zip(NAMES, (2, 5, 3, 4), strict=True))


def edges_of(federation: Federation) -> dict[tuple[str, str], float]:
    assert federation.graph is not None
    return weights((federation.graph, ()), list(federation.names))


def test_a_federation_checks_its_graph_and_tells_what_was_mended():
    members = tuple(client(name, n) for name, n in SIZES.items())
    task = Task.classification((1,), 2)
    found = Federation("f", members, task, graph=torch.tensor(np.triu(MATRIX) + np.eye(4)))
    assert edges_of(found) == EXPECTED
    assert len(found.notes) == 2
    again = found.with_validation(0.5, 0)
    assert again.notes == found.notes, "mended once, told once"
    assert edges_of(again) == EXPECTED
    with pytest.raises(GraphError, match="is -1"):
        Federation("f", members, task, graph=-torch.ones(4, 4))
    with pytest.raises(GraphError, match=r"shape \(3, 3\)"):
        Federation("f", members, task, graph=torch.zeros(3, 3))


ARRAYS = {name: (np.arange(4.0 * n)[:, None], np.arange(4 * n) % 2) for name, n in SIZES.items()}


@pytest.mark.parametrize("form", [MATRIX, EDGES, in_networkx(EDGES), FRAME])
def test_federations_from_arrays_take_a_graph_by_the_order_given_or_by_names(form):
    found = Federation.from_arrays(ARRAYS, graph=form)
    assert found.names != tuple(NAMES)
    assert edges_of(found) == EXPECTED
    datasets = {name: TensorDataset(torch.zeros(4 * n, 1), torch.zeros(4 * n).long()) for name, n in SIZES.items()}
    assert edges_of(Federation.from_datasets(datasets, graph=form)) == EXPECTED


def test_federations_from_tables_and_folders_take_a_graph(tmp_path):
    rows = [{"who": name, "age": i, "ill": i % 2} for name, n in SIZES.items() for i in range(4 * n)]
    table = pd.DataFrame(rows)
    np.save(tmp_path / "g.npy", MATRIX[SORTED][:, SORTED])
    (tmp_path / "silos").mkdir()
    for name, part in table.groupby("who"):
        part.drop(columns="who").to_csv(tmp_path / "silos" / f"{name}.csv", index=False)
    for form in (EDGES, tmp_path / "g.npy", MATRIX[SORTED][:, SORTED]):
        assert edges_of(Federation.from_table(table, "who", "ill", graph=form)) == EXPECTED
        assert edges_of(Federation.from_folder(tmp_path / "silos", "ill", graph=form)) == EXPECTED


def test_with_graph_exchanges_the_graph_and_nothing_else():
    plain = Federation.from_arrays(ARRAYS)
    found = plain.with_graph(EDGES)
    assert plain.graph is None
    assert edges_of(found) == EXPECTED
    assert (found.names, found.task) == (plain.names, plain.task)
    assert edges_of(plain.with_graph(found.graph)) == EXPECTED, "a matrix is in the order of the names"
    assert found.with_graph(None).graph is None
    with pytest.raises(GraphError, match="'nort' in the graph is no client. Did you mean 'north'"):
        plain.with_graph(MATRIX, order=["nort", *NAMES[1:]])
    assert plain.with_graph([("north", "south")]).notes == ("2 of 4 clients have no edge in the graph: west, east.",)
