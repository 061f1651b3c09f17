"""Which rows are set aside: the share asked for, every class on both sides, a subject on one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.base import streams
from fedkin.data.parts import stratified_part, too_small

LABELS = st.lists(st.integers(0, 3), min_size=2, max_size=60)
SHARES = st.sampled_from([0.05, 0.1, 0.25, 0.5, 0.9])
PURPOSES = st.sampled_from(["test part", "validation part"])


@given(LABELS, SHARES, st.integers(0, 9), PURPOSES)
@settings(deadline=None)
def test_the_share_is_set_aside_and_every_class_is_in_proportion_and_on_both_sides_if_there_is_room(
    labels, share, seed, purpose
):
    rest, held = stratified_part(np.array(labels), None, share, seed, "north", purpose)
    n = len(labels)
    assert sorted([*rest.tolist(), *held.tolist()]) == list(range(n))
    if purpose == "validation part" and n < 5:
        assert len(held) == 0
        return
    assert len(held) == min(max(1, round(share * n)), n - 1)
    classes, kept, aside = Counter(labels), Counter(labels[i] for i in rest), Counter(labels[i] for i in held)
    several = {c for c, count in classes.items() if count > 1}
    if len(held) >= len(several):
        assert several <= set(aside)
    if len(rest) >= len(classes):
        assert several <= set(kept)
    if len(held) >= len(several) and len(rest) >= len(classes):
        away = {c: abs(aside[c] - len(held) * count / n) for c, count in classes.items()}
        assert max(away.values()) <= len(classes), "in proportion, but for whole numbers and one on each side"


def test_classes_are_in_proportion_where_numbers_allow_it():
    labels = np.repeat([0, 1, 2], [60, 36, 4])
    rest, held = stratified_part(labels, None, 0.25, 3, "north")
    assert np.bincount(labels[held]).tolist() == [15, 9, 1]
    assert np.bincount(labels[rest]).tolist() == [45, 27, 3]


def test_what_is_left_over_after_proportions_goes_to_any_class_alike():
    """Of five and five rows three are tested: two of one class, by lot."""
    more = [int((stratified_part(np.arange(10) % 2, None, 0.3, seed, "north")[1] % 2).sum()) for seed in range(400)]
    assert set(more) == {1, 2}
    assert abs(more.count(2) - 200) < 60, "six standard deviations"


def test_a_class_of_one_row_is_trained_on():
    for seed in range(20):
        rest, _ = stratified_part(np.array([0] * 11 + [1]), None, 0.5, seed, "north")
        assert 11 in rest.tolist()


@given(st.integers(2, 40), SHARES, st.integers(0, 5))
@settings(deadline=None)
def test_without_classes_the_lot_is_as_it_always_was(n, share, seed):
    """The first so many of a permutation from the seed and the client's name."""
    order = torch.randperm(n, generator=streams.generator(seed, "north", 0, "test part"))
    count = min(max(1, round(share * n)), n - 1)
    rest, held = stratified_part(np.zeros(n), None, share, seed, "north")
    assert (rest.tolist(), held.tolist()) == (order[count:].tolist(), order[:count].tolist())


def test_the_lot_depends_on_the_seed_and_on_the_clients_name_alone():
    labels = np.arange(60) % 3
    first, again, other, elsewhere = (
        stratified_part(labels, None, 0.25, seed, client)[1].tolist()
        for seed, client in ((0, "a"), (0, "a"), (1, "a"), (0, "b"))
    )
    assert first == again and first != other and first != elsewhere


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 6)), min_size=2, max_size=25),
    SHARES,
    st.integers(0, 5),
    PURPOSES,
)
@settings(deadline=None)
def test_a_subjects_rows_are_on_one_side_and_the_share_is_of_subjects(visits, share, seed, purpose):
    groups = np.repeat(np.arange(len(visits)), [count for _, count in visits])
    labels = np.repeat([label for label, _ in visits], [count for _, count in visits])
    lot = np.random.default_rng(seed).permutation(len(groups))
    rest, held = stratified_part(labels[lot], groups[lot], share, seed, "north", purpose)
    sides = [set(groups[lot][side.numpy()].tolist()) for side in (rest, held)]
    assert not sides[0] & sides[1]
    assert len(rest) + len(held) == len(groups)
    if purpose == "test part" or len(visits) >= 5:
        assert len(sides[1]) == min(max(1, round(share * len(visits))), len(visits) - 1)
        several = {c for c in (0, 1) if sum(label == c for label, _ in visits) > 1}
        if min(map(len, sides)) >= 2:
            assert all(several <= {visits[subject][0] for subject in side} for side in sides)


def test_subjects_are_dealt_whatever_the_order_of_their_rows():
    groups = np.repeat([f"p{i}" for i in range(20)], 3)
    lot = np.random.default_rng(0).permutation(60)
    one, other = (
        set(order[stratified_part(None, order, 0.25, 1, "north")[1].numpy()].tolist())
        for order in (groups, groups[lot])
    )
    assert one == other and len(one) == 5


def test_validation_parts_that_nothing_can_be_chosen_by_are_told():
    yes_no = np.array(["no", "yes"])
    held = {"north": yes_no[[0, 0, 1, 0, 1]], "south": yes_no[[0, 1]], "west": yes_no[[0] * 6]}
    known = dict.fromkeys(held, yes_no)
    few, lacking = too_small(held, known)
    assert few.startswith("Fewer than 5 validation rows, too few to choose a model by: south (2). ")
    assert lacking.startswith("The validation rows lack a class: west (yes).")
    assert too_small({"north": held["north"]}, known) == []
    assert too_small({"west": held["west"]}, None) == []
