"""Who takes part: clients in a fixed order, parts that do not overlap, and sentences where data cannot be used."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedkin.base.task import LOSSES, Task
from fedkin.data.corrupt import corrupt
from fedkin.data.federation import Client, Federation, FederationError

TASK = Task.classification((1,), 3)


def numbered(n: int, start: int = 0) -> tuple[Tensor, Tensor]:
    """Samples that can be told apart: the input is the sample's number."""
    x = torch.arange(start, start + n, dtype=torch.float32)[:, None]
    return x, x[:, 0].long() % 3


def client(name: str, n: int, **more: Any) -> Client:
    return Client(name, numbered(n), numbered(4, 1000), **more)


def federation(sizes: dict[str, int], **more: Any) -> Federation:
    return Federation("numbers", tuple(client(name, n) for name, n in sizes.items()), TASK, **more)


def inputs(part: tuple[Tensor, Tensor] | None) -> list[int]:
    return [] if part is None else part[0].flatten().int().tolist()


# ---- the order of rows ----


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 6), min_size=1, max_size=8), st.randoms())
def test_clients_stand_by_falling_samples_then_by_name_whatever_order_they_came_in(sizes, random):
    order = list(sizes.items())
    random.shuffle(order)
    found = federation(dict(order))
    assert [(-c.samples, c.name) for c in found.clients] == sorted((-n, name) for name, n in sizes.items())


def test_the_relation_graph_and_the_groups_follow_their_clients():
    names, sizes = ["a", "b", "c"], [2, 5, 3]
    graph = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]])
    members = tuple(client(n, k, group=g) for n, k, g in zip(names, sizes, [7, 8, 9], strict=True))
    found = Federation("numbers", members, TASK, graph=graph)
    assert found.names == ("b", "c", "a")
    assert found.groups is not None
    assert found.groups.tolist() == [8, 9, 7]
    assert found.graph is not None
    assert found.graph.tolist() == [[0, 3, 1], [3, 0, 2], [1, 2, 0]]


def test_groups_are_known_for_all_or_for_none():
    found = Federation("numbers", (client("a", 2, group=1), client("b", 2)), TASK)
    assert found.groups is None


# ---- validation ----


@given(st.integers(1, 60), st.integers(0, 3))
def test_a_tenth_of_the_training_samples_is_kept_for_validation_and_none_below_five(n, seed):
    (found,) = federation({"a": n}).with_validation(0.1, seed).clients
    held, rest = inputs(found.validation), inputs(found.train)
    assert len(held) == (max(1, round(n / 10)) if n >= 5 else 0)
    assert sorted(held + rest) == list(range(n)), "disjoint, and nothing is lost"
    assert inputs(found.test) == [1000, 1001, 1002, 1003]


def test_which_samples_are_kept_depends_on_the_seed_and_the_clients_name_alone():
    def held(seed: int, *names: str) -> list[int]:
        clients = federation(dict.fromkeys(names, 40)).with_validation(0.1, seed).clients
        return next(inputs(c.validation) for c in clients if c.name == "a")

    assert held(0, "a") == held(0, "b", "a", "c")
    assert held(0, "a") != held(1, "a")


def test_rows_are_sorted_by_what_is_left_for_training():
    # 15 keep 2 back (13 left), 14 keep 1 back (13 left): then the name decides.
    found = federation({"b": 15, "a": 14}).with_validation(0.1, 0)
    assert [(c.name, c.samples) for c in found.clients] == [("a", 13), ("b", 13)]


def test_no_share_keeps_nothing_and_a_clients_own_validation_data_stay():
    assert federation({"a": 40}).with_validation(0.0, 0).clients[0].validation is None
    own = Federation("numbers", (client("a", 40, validation=numbered(3, 500)), client("b", 40)), TASK)
    a, b = sorted(own.with_validation(0.1, 0).clients, key=lambda c: c.name)
    assert (inputs(a.validation), a.samples) == ([500, 501, 502], 40)
    assert (len(inputs(b.validation)), b.samples) == (4, 36)


# ---- newcomers ----


def test_those_held_out_come_after_all_others_who_keep_their_rows():
    graph = torch.arange(25.0).view(5, 5).triu(1)
    graph = graph + graph.T
    whole = federation({"a": 5, "b": 4, "c": 3, "d": 2, "e": 1}, graph=graph)
    known, everyone = whole.without(["d", "a"])
    assert known.names == ("b", "c", "e")
    assert everyone.names == ("b", "c", "e", "a", "d")
    assert known.graph is not None
    assert everyone.graph is not None
    order = [1, 2, 4, 0, 3]
    assert torch.equal(everyone.graph, graph[order][:, order])
    assert torch.equal(known.graph, everyone.graph[:3, :3])


def test_with_nobody_held_out_both_federations_are_the_whole_one():
    whole = federation({"a": 5, "b": 4})
    known, everyone = whole.without([])
    assert known.names == everyone.names == whole.names


def test_somebody_has_to_be_left():
    with pytest.raises(FederationError, match="at least one has to train"):
        federation({"a": 5}).without(["a"])


# ---- sentences ----


def test_targets_may_be_missing_only_where_the_loss_leaves_them_out():
    plain = Task.regression((1,), 2)
    masked = replace(plain, loss=LOSSES["masked_mse"])
    x, y = torch.zeros(3, 1), torch.tensor([[1.0, torch.nan], [torch.nan] * 2, [0.0, 2.0]])
    whole = Client("a", (x, y.nan_to_num()), (x, y.nan_to_num()))
    for gappy in (replace(whole, train=(x, y)), replace(whole, test=(x, y)), replace(whole, validation=(x, y))):
        assert Federation("gaps", (gappy,), masked).clients
        with pytest.raises(FederationError, match=r"must be finite .*NaN where missing, with the loss masked_mse"):
            Federation("gaps", (gappy,), plain)
    endless = replace(whole, train=(x, y.nan_to_num(torch.inf)))
    for task in (plain, masked):
        with pytest.raises(FederationError, match="'a', training data: targets of a regression must be finite"):
            Federation("gaps", (endless,), task)


def test_two_clients_cannot_have_one_name():
    with pytest.raises(FederationError, match="a occurs more than once"):
        Federation("numbers", (client("a", 3), client("b", 3), client("a", 4)), TASK)


def test_what_is_printed_of_a_federation_shows_no_data():
    secret = np.full((6, 2), 12345.5, dtype=np.float32)
    federation = Federation.from_arrays({"ward": (secret, np.arange(6) % 2)})
    shown = f"{federation!r} {federation.clients[0]!r} {federation.clients}"
    assert "12345" not in shown
    assert "ward" in shown


@pytest.mark.parametrize("rows", [[0, 1, 2], [0, 1, 2, 2], [0.0, 1.0, 2.0, 3.0], [[0, 1, 2, 3]]])
def test_numbers_that_cannot_tell_test_samples_apart_are_refused(rows):
    with pytest.raises(FederationError, match="'a': test_rows should be 4 different whole numbers"):
        Federation("numbers", (client("a", 3, test_rows=torch.tensor(rows)),), TASK)


# ---- by the statistics of all, or each silo by its own ----


def table(other_unit: float = 1.0) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"silo": ["a", "b", "c"] * 40, "x": rng.normal(5, 2, 120), "y": ["no", "yes"] * 60})
    frame.loc[::7, "x"] = np.nan
    frame.loc[frame["silo"] == "c", "x"] *= other_unit
    return frame


@pytest.mark.parametrize("statistics", ["shared", "own"])
def test_what_is_open_comes_to_what_could_have_been_said(statistics: str):
    """Bit for bit, whichever is asked for; and asked again it stays."""
    open_, said = (Federation.from_table(table(9), "silo", "y", **more) for more in ({}, {"statistics": statistics}))
    found = open_.prepared(statistics)
    assert (open_.statistics, found.statistics, said.statistics) == ("auto", statistics, statistics)
    for one, other in zip(found.clients, said.clients, strict=True):
        assert one.preprocessing == other.preprocessing and one.as_read is other.as_read is None
        for a, b in zip(
            (*one.train, *one.test, *one.validation), (*other.train, *other.test, *other.validation), strict=True
        ):
            assert torch.equal(a, b)
    for again in ("shared", "own"):
        assert found.prepared(again) is found and said.prepared(again) is said


def test_what_is_open_stays_so_through_graphs_and_other_processes():
    found = Federation.from_table(table(9), "silo", "y")
    expected = found.prepared("own").clients[0].train[0]
    graph = found.with_graph([("a", "b", 1.0)])
    sent = pickle.loads(pickle.dumps({"federation": found}))["federation"]
    for each in (graph, sent, corrupt(found, labels=0.5, clients=1.0)):
        assert torch.equal(each.prepared("own").clients[0].train[0], expected)
    assert graph.prepared("own").graph is not None


def test_inputs_that_somebody_changed_stay_what_they_are():
    found = Federation.from_table(table(9), "silo", "y")
    first, *others = found.clients
    changed = replace(first, train=(first.train[0] + 1, first.train[1]))
    own = replace(found, clients=(changed, *others)).prepared("own")
    assert torch.equal(own.clients[0].train[0], changed.train[0])
    assert own.clients[0].preprocessing == first.preprocessing
    assert not torch.equal(own.clients[1].train[0], others[0].train[0])


def test_arrays_have_nothing_that_is_open():
    found = Federation.from_arrays({"a": (np.zeros((8, 1)), [0, 1] * 4)})
    assert found.statistics is None and found.prepared("own") is found
