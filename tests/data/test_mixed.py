"""The mixed world: who agrees with whom is what the groups say, and every sample is dealt once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkin.data import load
from fedkin.data.mixed import Kinds, conventions, deal
from fedkin.data.source import Source
from fedkin.data.split import SplitError


def pool(classes: int, samples: int, test: int = 0) -> Source:
    """Sample i of class i mod classes, whose only input is its number; some in an official test pool."""
    x, y = torch.arange(samples + test, dtype=torch.float32)[:, None], torch.arange(samples + test) % classes
    held = {"x_test": x[samples:], "y_test": y[samples:]} if test else {}
    return Source("made", x[:samples], y[:samples], classes=classes, clients=10, **held)


def dealt(source: Source, clients: int, kinds: Kinds, seed: int = 0, shift: int = 2):
    return deal(source, clients, kinds, np.random.default_rng(seed), shift=shift, dominating=0.8, test_fraction=0.25)


def test_the_world_of_23_silos_is_12_that_agree_8_in_two_groups_and_3_loners():
    federation = load("digits", "mixed", clients=23)
    assert [c.group for c in federation.clients] == [0] * 12 + [1] * 4 + [2] * 4 + [3, 4, 5]
    assert all(len(c.train[1]) == 40 and len(c.test[1]) == 25 for c in federation.clients)


@pytest.mark.parametrize(
    ("parts", "clients", "expected"),
    [((12, 8, 3), 23, (12, 8, 3)), ((12, 8, 3), 20, (10, 7, 3)), ((1, 0, 0), 7, (7, 0, 0)), ((0, 1, 1), 5, (0, 3, 2))],
)
def test_parts_need_not_add_up_to_anything(parts, clients, expected):
    assert Kinds(*parts).of(clients) == expected


def test_a_world_of_nobody_is_refused():
    with pytest.raises(SplitError, match="some kind"):
        Kinds(0, 0, 0).of(5)


@pytest.mark.parametrize("test", [0, 400])
def test_no_sample_is_dealt_twice_and_clients_are_of_one_size(test):
    source = pool(10, 1000, test)
    shares, _ = dealt(source, 13, Kinds(6, 4, 3))
    assert len({(len(s.train), len(s.test)) for s in shares}) == 1
    own = np.concatenate([s.train for s in shares])
    tested = np.concatenate([s.test for s in shares])
    assert len(set(own)) == len(own) and len(set(tested)) == len(tested)
    assert test or not set(own) & set(tested)


def test_those_who_agree_have_other_classes_in_plenty_and_the_rest_all_of_them():
    source = pool(9, 3000)
    shares, _ = dealt(source, 12, Kinds(6, 3, 3))
    plenty = [np.bincount(source.y.numpy()[s.train], minlength=9) for s in shares]
    for i, counts in enumerate(plenty[:6]):
        third = slice(3 * (i // 2), 3 * (i // 2) + 3)
        assert counts[third].sum() == round(0.8 * counts.sum())
    assert all(counts.max() < 0.3 * counts.sum() for counts in plenty[6:])


def test_labels_mean_the_same_inside_a_group_and_little_across():
    source = pool(10, 2000)
    shares, names = dealt(source, 23, Kinds(12, 8, 3))
    for a, own in zip(shares, names, strict=True):
        assert sorted(own) == list(range(10)), "a label for every class"
        for b, other in zip(shares, names, strict=True):
            alike = (own == other).sum()
            assert alike == 10 if a.group == b.group else alike <= 2
    assert names[0].tolist() == list(range(10)), "those who agree use the data set's own labels"
    assert names[12].tolist() == [(c + 2) % 10 for c in range(10)]


def test_labels_of_clients_are_the_renamed_digits():
    """The same digits in two worlds that differ in nothing but the shift."""
    a, b = (load("digits", "mixed", clients=23, shift=shift) for shift in (2, 3))
    for one, other in zip(a.clients, b.clients, strict=True):
        assert torch.equal(one.train[0], other.train[0])
        apart = (other.train[1] - one.train[1]) % 10
        if one.group in (0, 1, 2):
            assert set(apart.tolist()) == {one.group}


def test_the_same_seed_deals_the_same_world():
    first, again, other = (load("digits", "mixed", seed=seed) for seed in (1, 1, 2))
    labels = [[c.train[1].tolist() for c in each.clients] for each in (first, again, other)]
    assert labels[0] == labels[1] != labels[2]


def test_too_few_classes_for_loners_are_told():
    with pytest.raises(SplitError, match="too few for 3 loners"):
        conventions(2, 0, 3, 1, np.random.default_rng(0))


def test_a_shift_that_changes_nothing_is_told():
    with pytest.raises(SplitError, match="the same labels"):
        conventions(10, 2, 0, 5, np.random.default_rng(0))
