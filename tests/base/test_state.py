"""Named tensors with the client first: taking, writing back, joining, and what travels."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers import DEVICE
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.base.state import Memory, Message, Server, State, Upload


def example(m: int = 4) -> State:
    """A matrix, a vector and a count a client, and one tensor for all."""
    W, n = torch.arange(3.0 * m, device=DEVICE).view(m, 3), torch.arange(m, device=DEVICE)
    return State({"c": torch.tensor([7.0, 8.0], device=DEVICE)}, W=W, a=n / 10, n=n)


def same(a: State, b: State) -> bool:
    return a.shared == b.shared and list(a) == list(b) and all(torch.equal(t, getattr(b, n)) for n, t in a.items())


subsets = st.lists(st.integers(0, 3), unique=True)


def test_tensors_are_read_by_name() -> None:
    state = example()
    assert state.W.shape == (4, 3)
    assert "W" in state and "c" in state and "x" not in state
    assert sorted(state) == ["W", "a", "c", "n"]
    assert state.shared == {"c"}


def test_a_missing_tensor_is_answered_with_those_there_are() -> None:
    with pytest.raises(AttributeError, match=r"no tensor 'V'; it has W, a, n, c\."):
        _ = example().V
    with pytest.raises(AttributeError, match="it has nothing"):
        _ = State().W


def test_only_an_empty_state_is_false() -> None:
    assert not State()
    assert State(W=torch.zeros(0, 3))
    assert State({"c": torch.zeros(1)})


def test_the_four_words_are_one_class() -> None:
    assert {Server, Message, Upload, Memory} == {State}


def test_its_text_shows_shapes_and_marks_what_is_shared() -> None:
    assert repr(example()) == "State(W(4, 3), a(4,), n(4,), *c(2,))"


@settings(deadline=None, max_examples=50)
@given(subsets)
def test_taking_gives_each_client_its_own_rows_and_all_the_shared_ones(clients: list[int]) -> None:
    state = example()
    part = state.take(torch.tensor(clients, dtype=torch.int64, device=DEVICE))
    assert part.shared == state.shared
    assert torch.equal(part.c, state.c)
    for at, i in enumerate(clients):
        assert torch.equal(part.W[at], state.W[i]) and part.n[at] == i
    assert len(part.W) == len(clients)


@settings(deadline=None, max_examples=50)
@given(subsets)
def test_what_was_taken_is_a_copy(clients: list[int]) -> None:
    state = example()
    state.take(torch.tensor(clients, dtype=torch.int64, device=DEVICE)).W.fill_(-1)
    assert same(state, example())


@settings(deadline=None, max_examples=50)
@given(subsets)
def test_putting_back_what_was_taken_changes_nothing(clients: list[int]) -> None:
    state, chosen = example(), torch.tensor(clients, dtype=torch.int64, device=DEVICE)
    state.put(chosen, state.take(chosen))
    assert same(state, example())


@settings(deadline=None, max_examples=50)
@given(subsets)
def test_putting_writes_those_clients_and_no_others(clients: list[int]) -> None:
    state, chosen = example(), torch.tensor(clients, dtype=torch.int64, device=DEVICE)
    c, W = torch.tensor([1.0, 2.0], device=DEVICE), torch.full((len(clients), 3), -1.0, device=DEVICE)
    new = State({"c": c}, W=W, a=chosen * 2.0, n=chosen * 3)
    state.put(chosen, new)
    others = [i for i in range(4) if i not in clients]
    assert same(state.take(chosen), new)
    assert torch.equal(state.W[others], example().W[others])
    assert torch.equal(state.n[others], example().n[others])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_joining_consecutive_parts_gives_the_whole(lengths: list[int]) -> None:
    whole = example(sum(lengths))
    parts = [whole.take(p) for p in torch.arange(sum(lengths)).split(lengths)]
    assert same(State.join(parts), whole)


def test_replacing_keeps_what_is_shared_and_leaves_the_old_state_alone() -> None:
    state = example()
    zeros = torch.zeros(2, device=DEVICE)
    new = state.replace(c=zeros, W=torch.zeros(4, 3), V=torch.ones(4, 1))
    assert new.shared == {"c"} and list(new) == ["W", "a", "n", "V", "c"]
    assert torch.equal(new.c, zeros) and torch.equal(new.a, state.a)
    assert same(state, example())


def test_for_clients_every_tensor_has_the_client_first_and_shared_ones_take_no_more_memory() -> None:
    seen = example().for_clients(4)
    assert not seen.shared
    assert seen.c.shape == (4, 2) and seen.c.stride(0) == 0
    assert torch.equal(seen.c[3], example().c)
    assert seen.W.shape == (4, 3)


def test_a_client_is_finite_when_all_its_own_numbers_are() -> None:
    state = State(
        {"c": torch.tensor(torch.nan)},
        W=torch.tensor([[1.0, 2.0], [torch.inf, 0.0], [0.0, 0.0], [1.0, 1.0]]),
        a=torch.tensor([0.0, 0.0, torch.nan, 0.0]),
        n=torch.arange(4),
        buffers=torch.zeros(4, 0),
    ).to(DEVICE)
    assert state.finite(4).tolist() == [True, False, False, True]
    assert State().finite(2).tolist() == [True, True]
    assert state.take(torch.arange(0)).finite(0).tolist() == []


def test_a_client_receives_its_own_row_and_everything_shared() -> None:
    """Three and one floats of four bytes, a whole number of eight, and two shared floats."""
    assert example(4).bytes_per_client() == 3 * 4 + 4 + 8 + 2 * 4
    assert example(9).bytes_per_client() == example(1).bytes_per_client()
    assert State(W=torch.zeros(2, 5, dtype=torch.float64)).bytes_per_client() == 40
    assert State().bytes_per_client() == 0


def test_moving_keeps_names_and_what_is_shared() -> None:
    there = example().to(torch.device("cpu"))
    assert all(not tensor.is_cuda for _, tensor in there.items())
    assert same(there.to(DEVICE), example())


def test_a_deep_copy_is_independent() -> None:
    state = example()
    twin = copy.deepcopy(state)
    assert same(twin, state)
    twin.W.zero_()
    assert same(state, example())
