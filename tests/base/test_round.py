"""The random numbers of a round: by seed, name, round and purpose, the same for ever, and refused without a seed."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from helpers import at

from fedkin.base.round import Round


def draws(round: Round, purpose: str = "cut", name: str = "north") -> list[float]:
    return torch.rand(5, generator=round.rng(purpose, name), dtype=torch.float64).tolist()


def test_numbers_are_those_of_the_contracts_first_edition() -> None:
    """What rng(purpose, name) had in round 2 of seed 1, at commit d2247a0: a change here changes every result."""
    assert at(2, seed=1).rng("cut", "north").initial_seed() == 3_336_102_312_014_360_821
    assert at(2, seed=1).rng("cut").initial_seed() == 996_040_004_358_292_505


def test_numbers_depend_on_seed_name_round_and_purpose() -> None:
    now = at(2, seed=1)
    others = [
        draws(at(2, seed=0)),
        draws(at(3, seed=1)),
        draws(at(-2, seed=1)),
        draws(now, purpose="mix"),
        draws(now, name="south"),
        draws(now, name=""),
        draws(now, purpose="north", name="cut"),
        draws(at(1, seed=2)),
    ]
    assert all(a != b for a, b in combinations([draws(now), *others], 2))


def test_numbers_do_not_depend_on_how_many_rounds_there_are_nor_on_what_was_drawn_before() -> None:
    now = at(2, of=10, seed=1)
    first = {name: draws(now, name=name) for name in ("a", "b", "c")}
    torch.rand(7)
    draws(now, purpose="mix")
    longer = at(2, of=80, seed=1)
    assert {name: draws(longer, name=name) for name in ("c", "a", "b")} == first


def test_numbers_leave_torchs_own_alone() -> None:
    before = torch.get_rng_state()
    draws(at(1, seed=0))
    assert torch.equal(torch.get_rng_state(), before)


def test_where_rows_may_be_of_several_seeds_a_round_has_no_numbers_and_says_who_has() -> None:
    with pytest.raises(RuntimeError, match=r"several seeds: cohort\.rng\(purpose\) gives a generator for each row\.$"):
        at(1).rng("cut", "north")


def test_a_round_is_not_compared_with_a_number() -> None:
    """A method of the first edition would take it for one, and never be told yes."""
    assert Round(2, 3) == Round(2, 3) != Round(2, 4)
    with pytest.raises(TypeError, match="ask for round.number == 2"):
        assert Round(2, 3) == 2
    with pytest.raises(TypeError):
        assert Round(2, 3) > 1  # type: ignore[operator]
