"""Who takes part: clients in a fixed order, parts that do not overlap, and sentences where data cannot be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedkin.base.task import LOSSES, Task
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


# ---- arrays ----


def arrays(n: int = 20, features: int = 2, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return rng.normal(size=(n, features)), np.arange(n) % classes


def test_whole_numbers_as_targets_mean_classes_and_other_numbers_regression():
    x, y = arrays()
    found = Federation.from_arrays({"a": (x, y), "b": (x, y + 2)})
    assert (found.task.kind, found.task.inputs, found.task.outputs) == ("classification", (2,), 5)
    found = Federation.from_arrays({"a": (x, y.astype(float))})
    assert (found.task.kind, found.task.outputs) == ("regression", 1)
    found = Federation.from_arrays({"a": (x, np.stack([y, y], 1) / 2)})
    assert (found.task.kind, found.task.outputs) == ("regression", 2)


def test_a_quarter_is_set_aside_for_testing_unless_test_data_are_given():
    x = np.arange(20.0)[:, None]
    found = Federation.from_arrays({"a": (x, np.arange(20) % 3)}).clients[0]
    assert len(inputs(found.test)) == 5
    assert sorted(inputs(found.test) + inputs(found.train)) == list(range(20))
    assert all(number % 3 == label for number, label in zip(inputs(found.test), found.test[1].tolist(), strict=True))
    given_test = Federation.from_arrays({"a": (x[:6], np.arange(6) % 3, x[6:], np.arange(14) % 3)}).clients[0]
    assert (inputs(given_test.train), inputs(given_test.test)) == (list(range(6)), list(range(6, 20)))


def test_which_samples_are_set_aside_depends_on_the_seed():
    x = np.arange(40.0)[:, None]
    tests = [
        inputs(Federation.from_arrays({"a": (x, np.arange(40) % 3)}, seed=seed).clients[0].test) for seed in (0, 0, 1)
    ]
    assert tests[0] == tests[1] != tests[2]


@pytest.mark.parametrize("kind", ["uint8", "int64", "float16", "float32", "float64", "bool"])
def test_inputs_of_any_kind_of_number_can_be_learnt_from(kind):
    x, y = arrays()
    found = Federation.from_arrays({"a": ((x > 0).astype(kind), y), "b": (x, y)})
    assert all(c.train[0].is_floating_point() and c.train[1].dtype == torch.int64 for c in found.clients)


def test_lists_and_tensors_are_arrays_too():
    x, y = arrays()
    plain = Federation.from_arrays({"a": (x, y)}).clients[0]
    for other in ((x.tolist(), y.tolist()), (torch.tensor(x, requires_grad=True), torch.tensor(y))):
        found = Federation.from_arrays({"a": other}).clients[0]
        assert torch.equal(found.train[0], plain.train[0].to(found.train[0].dtype))
        assert torch.equal(found.test[1], plain.test[1])


def test_known_groups_are_given_by_name():
    x, y = arrays()
    found = Federation.from_arrays({"a": (x, y), "b": (x[:8], y[:8])}, groups={"b": 4, "a": 2})
    assert found.groups is not None
    assert found.groups.tolist() == [2, 4]


# ---- sentences ----


def bad(x: Any, y: Any, *more: Any) -> dict[str, Sequence[object]]:
    good_x, good_y = arrays()
    return {"good": (good_x, good_y), "odd": (x, y, *more)}


X, Y = arrays()


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        ({}, "at least one client"),
        (bad(X, Y[:19]), "'odd' has 20 samples but 19 targets"),
        (bad(X[:0], Y[:0]), "'odd', training data: there is no sample"),
        (bad(X[:1], Y[:1]), "'odd' has one sample"),
        (bad(np.where(X > 1, np.nan, X), Y), "'odd', training data: there are NaN or infinite inputs"),
        (bad(X, Y, np.full((2, 2), np.inf), Y[:2]), "'odd', test data: there are NaN or infinite inputs"),
        (bad(X, -1 - Y), "'odd', training data: labels run from -3 to -1"),
        (bad(X, Y / 2), "'odd', training data: classes must be whole numbers"),
        (bad(X, np.stack([Y, Y], 1)), "classes must be whole numbers, one a sample"),
        (bad(X[:, :1], Y), r"a sample has shape (1,), the task expects (2,)"),
        (bad(X, Y, X), "'odd' has 3 arrays; give (x, y) or four"),
        (bad(X, ["red"] * 20), "'odd': give arrays of numbers"),
        (bad([[1, 2], [3]], [0, 1]), "'odd': give arrays of numbers"),
        (bad(3, 4), "'odd': give arrays of numbers"),
        (bad(X, Y, X[:0], Y[:0]), "'odd', test data: there is no sample; every client needs at least one"),
    ],
)
def test_data_that_cannot_be_used_are_refused_with_the_client_and_the_reason(clients, said):
    with pytest.raises(FederationError) as caught:
        Federation.from_arrays(clients)
    assert said in str(caught.value)
    assert str(caught.value).endswith(".")


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


def test_targets_of_a_regression_must_be_finite_numbers():
    with pytest.raises(FederationError, match="'b', training data: targets of a regression must be finite"):
        Federation.from_arrays({"a": (X, Y / 2), "b": (X, np.where(Y > 1, np.nan, Y / 2))})
    with pytest.raises(FederationError, match="'b', training data: targets of a regression"):
        Federation.from_arrays({"a": (X, Y / 2), "b": (X, Y)})


def test_labels_beyond_the_tasks_classes_are_refused():
    with pytest.raises(FederationError, match="labels run from 0 to 2, the task has classes 0 to 1"):
        Federation.from_arrays({"a": (X, Y)}, Task.classification((2,), 2))


def test_two_clients_cannot_have_one_name():
    with pytest.raises(FederationError, match="a occurs more than once"):
        Federation("numbers", (client("a", 3), client("b", 3), client("a", 4)), TASK)


@pytest.mark.parametrize("share", [-0.5, 0, 1, 1.5])
def test_the_part_for_testing_has_to_be_a_part(share):
    with pytest.raises(FederationError, match="has to lie between 0 and 1"):
        Federation.from_arrays({"a": (X, Y)}, test_fraction=share)


def test_a_group_of_nobody_is_refused():
    with pytest.raises(FederationError, match="`groups` names south"):
        Federation.from_arrays({"north": (X, Y)}, groups={"south": 1, "north": 0})


def test_what_is_printed_of_a_federation_shows_no_data():
    secret = np.full((6, 2), 12345.5, dtype=np.float32)
    federation = Federation.from_arrays({"ward": (secret, np.arange(6) % 2)})
    shown = f"{federation!r} {federation.clients[0]!r} {federation.clients}"
    assert "12345" not in shown
    assert "ward" in shown


def test_counts_are_a_regression_when_asked_for():
    counts = np.array([3, 9, 4, 1, 7, 2])
    federation = Federation.from_arrays({"ward": (np.zeros((6, 1)), counts)}, "regression")
    assert federation.task.kind == "regression"
    assert federation.clients[0].train[1].is_floating_point()


def test_a_client_with_one_sample_cannot_be_cut_in_two():
    with pytest.raises(FederationError, match="'ward' has one sample"):
        Federation.from_arrays({"ward": (np.zeros((1, 1)), np.array([0]))})


# ---- who was tested ----


def test_numbers_of_test_samples_name_the_same_sample_in_every_seed():
    x, y = numbered(40)
    for seed in range(4):
        (found,) = Federation.from_arrays({"a": (x, y)}, seed=seed).with_validation(0.2, seed).clients
        assert found.test_rows is not None
        assert found.test_rows.tolist() == inputs(found.test), "an input is its sample's number"


def test_given_test_samples_are_numbered_as_given():
    (found,) = Federation.from_arrays({"a": (*numbered(8), *numbered(5, 100))}).clients
    assert found.test_rows is not None and found.test_rows.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("rows", [[0, 1, 2], [0, 1, 2, 2], [0.0, 1.0, 2.0, 3.0], [[0, 1, 2, 3]]])
def test_numbers_that_cannot_tell_test_samples_apart_are_refused(rows):
    with pytest.raises(FederationError, match="'a': test_rows should be 4 different whole numbers"):
        Federation("numbers", (client("a", 3, test_rows=torch.tensor(rows)),), TASK)
