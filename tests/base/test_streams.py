"""Random numbers by name: known for ever, and independent of everything but seed, name, round and purpose."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedkin.base import streams

parts = st.lists(
    st.one_of(st.integers(-(10**9), 10**9), st.text(st.characters(min_codepoint=32, codec="utf-8"), max_size=8))
)


def test_numbers_are_the_same_for_ever() -> None:
    """In every process, Python and machine; a change here changes every result ever produced: it must be meant."""
    assert streams.number(0, "silo-00", 1, "batches/train") == 8_423_211_683_765_425_729
    assert streams.number("split", 42) == 7_626_314_931_908_914_783


@settings(deadline=None)
@given(parts)
def test_a_number_has_63_bits_and_is_repeatable(words: list[int | str]) -> None:
    assert 0 <= streams.number(*words) < 2**63
    assert streams.number(*words) == streams.number(*words)


@settings(deadline=None)
@given(parts, parts)
def test_different_words_give_different_numbers(a: list[int | str], b: list[int | str]) -> None:
    assert (streams.number(*a) == streams.number(*b)) == (a == b)


def test_words_do_not_run_into_each_other_and_text_is_not_a_number() -> None:
    found = [streams.number(*p) for p in (("a", "b"), ("ab",), ("ab", ""), ("", "ab"), (1, 2), (12,), ("1", "2"))]
    assert len(set(found)) == len(found)


def test_streams_leave_torchs_global_numbers_alone() -> None:
    before = torch.get_rng_state()
    torch.rand(3, generator=streams.generator(1, "a"))
    streams.numpy_generator(1, "a").random()
    assert torch.equal(torch.get_rng_state(), before)


def test_numpys_streams_are_named_too() -> None:
    assert streams.numpy_generator(1, "a").random() == streams.numpy_generator(1, "a").random()
    assert streams.numpy_generator(1, "a").random() != streams.numpy_generator(1, "b").random()


@pytest.mark.parametrize("purpose", ["drop", "sample"])
def test_chance_is_uniform_over_clients_and_over_rounds(purpose: str) -> None:
    clients = np.array([streams.chance(0, f"silo-{i:04d}", 1, purpose) for i in range(3000)])
    rounds = np.array([streams.chance(0, "silo-0000", k, purpose) for k in range(3000)])
    for found in (clients, rounds):
        assert found.min() >= 0 and found.max() < 1
        assert stats.kstest(found, "uniform").pvalue > 0.01
    assert abs(np.corrcoef(clients[:-1], clients[1:])[0, 1]) < 0.06
    assert abs(np.corrcoef(clients, rounds)[0, 1]) < 0.06


def test_chances_of_two_purposes_are_independent() -> None:
    drop = [streams.chance(0, f"silo-{i}", 1, "drop") for i in range(3000)]
    lose = [streams.chance(0, f"silo-{i}", 1, "lose") for i in range(3000)]
    assert abs(np.corrcoef(drop, lose)[0, 1]) < 0.06
