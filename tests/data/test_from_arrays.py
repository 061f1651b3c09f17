"""Federations from arrays and datasets: the task that is guessed, the part for testing, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from fedkin.base.task import Task
from fedkin.data.federation import Federation, FederationError


def numbered(n: int, start: int = 0) -> tuple[Tensor, Tensor]:
    """Samples that can be told apart: the input is the sample's number."""
    x = torch.arange(start, start + n, dtype=torch.float32)[:, None]
    return x, x[:, 0].long() % 3


def inputs(part: tuple[Tensor, Tensor] | None) -> list[int]:
    return [] if part is None else part[0].flatten().int().tolist()


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


def test_targets_of_a_regression_must_be_finite_numbers():
    with pytest.raises(FederationError, match="'b', training data: targets of a regression must be finite"):
        Federation.from_arrays({"a": (X, Y / 2), "b": (X, np.where(Y > 1, np.nan, Y / 2))})
    with pytest.raises(FederationError, match="'b', training data: targets of a regression"):
        Federation.from_arrays({"a": (X, Y / 2), "b": (X, Y)})


def test_labels_beyond_the_tasks_classes_are_refused():
    with pytest.raises(FederationError, match="labels run from 0 to 2, the task has classes 0 to 1"):
        Federation.from_arrays({"a": (X, Y)}, Task.classification((2,), 2))


@pytest.mark.parametrize("share", [-0.5, 0, 1, 1.5])
def test_the_part_for_testing_has_to_be_a_part(share):
    with pytest.raises(FederationError, match="has to lie between 0 and 1"):
        Federation.from_arrays({"a": (X, Y)}, test_fraction=share)


def test_a_group_of_nobody_is_refused():
    with pytest.raises(FederationError, match="`groups` names south"):
        Federation.from_arrays({"north": (X, Y)}, groups={"south": 1, "north": 0})


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


# ---- torch datasets ----


class Squares(Dataset):
    def __init__(self, n: int, item: Callable[[int], Any] = lambda i: (torch.tensor([float(i)]), i % 2)) -> None:
        self.n, self.item, self.asked = n, item, 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        self.asked += 1
        return self.item(i)


def test_datasets_give_the_federation_of_their_samples():
    x, y = torch.arange(8.0)[:, None], torch.arange(8) % 2
    own = Squares(8)
    expected = Federation.from_arrays({"a": (x, y), "b": (x, y), "c": (x[:6], y[:6], x[6:], y[6:])}, seed=2)
    pair = (Subset(Squares(8), range(6)), Subset(Squares(8), range(6, 8)))
    found = Federation.from_datasets({"a": TensorDataset(x, y), "b": own, "c": pair}, seed=2)
    assert own.asked == 8
    assert found.task == expected.task
    for one, other in zip(found.clients, expected.clients, strict=True):
        for a, b in zip((*one.train, *one.test), (*other.train, *other.test), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter([])


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        (Squares(3, lambda i: torch.zeros(2)), "Client 'a', dataset Squares: sample 0 is not a pair"),
        (
            Squares(3, lambda i: (torch.zeros(2 + i // 2), 0)),
            r"sample 2 has the shapes \(3,\) and \(\), the first has \(2,\)",
        ),
        (Squares(3, lambda i: ("text", 0)), "sample 0 holds a str, which is no number or array"),
        (Squares(0), "it has no samples"),
        (Stream(), "it has no length"),
        ((Squares(3), Squares(3), Squares(3)), "has 3 datasets; give one, or training and test"),
        (3, "it has no length"),
    ],
)
def test_datasets_that_cannot_be_used_are_refused(dataset, sentence):
    with pytest.raises(FederationError, match=sentence):
        Federation.from_datasets({"a": dataset})
