"""Digits dealt to clients: nobody gets another's sample, and the same seed deals the same cards."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedkin import data
from fedkin.data import UnknownData, by_name, load
from fedkin.data.federation import Client, Federation
from fedkin.data.source import Source
from fedkin.errors import FedkinError
from fedkin.runs.config import resolve

SPLITS = ["iid", "pathological", "practical", "dirichlet", "relabelled"]
RAW = load_digits()


def key(row: torch.Tensor) -> tuple[int, ...]:
    """A picture as its 64 pixel values of 0 to 16, as scikit-learn has them."""
    return tuple(((row * 0.38 + 0.3) * 16).round().int().tolist())


POOL = Counter(tuple(row) for row in RAW.data.astype(int).tolist())
DIGIT = {tuple(row): int(digit) for row, digit in zip(RAW.data.astype(int).tolist(), RAW.target, strict=True)}


def pictures(client: Client) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    return [key(x) for x in client.train[0]], [key(x) for x in client.test[0]]


def fingerprint(federation: Federation) -> dict[str, tuple[object, object]]:
    return {c.name: (pictures(c), (c.train[1].tolist(), c.test[1].tolist())) for c in federation.clients}


def group(client: Client) -> int:
    assert client.group is not None
    return client.group


@pytest.mark.parametrize("split", SPLITS)
def test_no_sample_is_given_out_twice_and_every_one_is_of_the_data_set(split):
    dealt = Counter(k for c in load("digits", split).clients for part in pictures(c) for k in part)
    # Two digits of the data set could be the same picture; then it may be dealt as often as it occurs.
    assert all(count <= POOL[k] for k, count in dealt.items())
    if split in ("iid", "pathological", "dirichlet"):
        assert dealt == POOL, "these splits use every sample"


@pytest.mark.parametrize("split", SPLITS)
def test_a_label_is_the_digit_or_the_groups_own_word_for_it(split):
    for client in load("digits", split).clients:
        shift = 2 * group(client) if split == "relabelled" else 0
        for part, labels in zip(pictures(client), (client.train[1], client.test[1]), strict=True):
            assert labels.tolist() == [(DIGIT[k] + shift) % 10 for k in part]


@pytest.mark.parametrize("split", ["practical", "relabelled"])
def test_groups_have_60_to_20_training_and_25_test_samples_a_client(split):
    federation = load("digits", split)
    assert Counter(group(c) for c in federation.clients) == dict.fromkeys(range(5), 4)
    for client in federation.clients:
        assert (client.samples, len(client.test[1])) == (60 - 10 * group(client), 25)
        digits = [DIGIT[k] for k in pictures(client)[0]]
        own = sum(d in (2 * group(client), 2 * group(client) + 1) for d in digits)
        assert own == round(0.8 * client.samples), "four fifths are of the group's two digits"


def test_each_group_moves_its_labels_by_the_shift_that_was_asked_for():
    for shift in (2, 3):
        for client in load("digits", "relabelled", shift=shift).clients:
            digits = [DIGIT[k] for k in pictures(client)[0]]
            assert client.train[1].tolist() == [(d + shift * group(client)) % 10 for d in digits]


@pytest.mark.parametrize("split", SPLITS)
def test_the_same_seed_deals_the_same_and_another_seed_does_not(split):
    first = fingerprint(load("digits", split, seed=3))
    assert fingerprint(load("digits", split, seed=3)) == first
    assert fingerprint(load("digits", split, seed=4)) != first


@pytest.mark.parametrize("split", SPLITS)
def test_ten_clients_are_as_possible_as_twenty(split):
    assert len(load("digits", split)) == 20
    federation = load("digits", split, clients=10)
    assert sorted(federation.names) == [f"silo-{i:02d}" for i in range(10)]
    assert (federation.name, federation.split, federation.task.outputs) == ("digits", split, 10)


def test_pathological_clients_have_two_digits_unless_told_otherwise():
    for count in (2, 3):
        for client in load("digits", "pathological", classes_per_client=count).clients:
            assert len(set(client.train[1].tolist())) == count


def test_a_smaller_alpha_skews_more():
    def largest_share(alpha: float) -> float:
        clients = load("digits", "dirichlet", alpha=alpha).clients
        return sum(float(torch.bincount(c.train[1]).max()) / c.samples for c in clients) / len(clients)

    assert largest_share(0.2) > largest_share(100) + 0.2


def test_independent_clients_have_equal_parts():
    sizes = [c.samples + len(c.test[1]) for c in load("digits", "iid", clients=7).clients]
    assert sum(sizes) == 1797
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("split", ["practical", "relabelled"])
def test_seven_clients_cannot_be_dealt_to_five_groups(split):
    with pytest.raises(UnknownData, match=r"7 clients cannot be dealt to them equally\. Take a multiple of 5\."):
        load("digits", split, clients=7)


def test_digits_do_not_say_who_wrote_them():
    with pytest.raises(UnknownData, match="has no natural split"):
        load("digits", "natural")


def test_more_clients_than_the_data_can_serve_are_refused_with_a_sentence():
    with pytest.raises(FedkinError, match="Ask for fewer clients"):
        load("digits", "practical", clients=100)
    with pytest.raises(FedkinError, match="too few for 2000 clients"):
        load("digits", "iid", clients=2000)


def test_an_unknown_data_set_or_split_is_answered_with_the_nearest():
    with pytest.raises(UnknownData, match="There is no data set 'digit'. Did you mean 'digits'?"):
        load("digit")
    with pytest.raises(UnknownData, match="There is no split 'practicl'. Did you mean 'practical'?"):
        load("digits", "practicl")
    with pytest.raises(UnknownData, match="Known are"):
        data.defaults("zzzz")


def test_pixels_have_about_mean_zero_and_deviation_one():
    x = torch.cat([c.train[0] for c in load("digits", "iid").clients])
    assert abs(float(x.mean())) < 0.05
    assert abs(float(x.std()) - 1) < 0.05


def test_owners_are_of_the_one_pool_even_where_there_is_a_test_pool(monkeypatch):
    pool = torch.arange(20, dtype=torch.float32)[:, None]
    elsewhere = Source(
        "mine", pool, torch.arange(20) % 2, classes=2, clients=2, x_test=-pool[:3], y_test=torch.arange(3) % 2,
        owners=np.array(["a"] * 12 + ["b"] * 8),
    )  # fmt: skip
    monkeypatch.setattr(by_name.own, "make", lambda name, settings: elsewhere)
    federation = load("mine:load", "natural")
    for client in federation.clients:
        own = torch.cat([client.train[0], client.test[0]]).flatten().sort().values
        assert own.tolist() == (list(range(12)) if client.name == "a" else list(range(12, 20)))


@pytest.mark.parametrize(
    ("split", "settings", "told"),
    [
        ("iid", {"lone": 5}, ["data.lone = 5 has no effect with the split 'iid': it is for mixed."]),
        (
            "dirichlet",
            {"alpha": 0.1, "shift": 3},
            ["data.shift = 3 has no effect with the split 'dirichlet': it is for relabelled and mixed."],
        ),
        ("relabelled", {"shift": 3, "dominating": 0.7}, []),
        ("mixed", {"lone": 5}, []),
        ("iid", {}, []),
    ],
)
def test_a_setting_of_another_split_is_not_ignored_without_a_word(split, settings, told):
    assert list(data.load("digits", split, **settings).notes) == told


# ---- what a refusal suggests would do ----


def test_a_dirichlet_split_that_cannot_be_had_can_with_what_its_refusal_suggests():
    with pytest.raises(FedkinError, match=r"a smaller data\.clients or a smaller data\.least"):
        load("digits", "dirichlet", clients=40, alpha=0.1)
    found = load("digits", "dirichlet", clients=40, alpha=0.1, least=1)
    assert len(found) == 40 and min(client.samples for client in found.clients) < 8
    assert resolve({"data": {"least": 3}}).data.least == 3


def test_a_practical_split_whose_classes_are_drawn_follows_the_data():
    even, drawn = (load("digits", "practical", clients=20, classes=kind) for kind in ("uniform", "drawn"))
    for counts in ([torch.bincount(c.train[1], minlength=10) for c in f.clients] for f in (even, drawn)):
        assert all(int(count.sum()) for count in counts)
    assert [c.samples for c in even.clients] == [c.samples for c in drawn.clients], "as many, of other classes"
    assert any(
        not torch.equal(a.train[1].bincount(minlength=10), b.train[1].bincount(minlength=10))
        for a, b in zip(even.clients, drawn.clients, strict=True)
    )
    with pytest.raises(FedkinError, match="data.classes = 'drawn' is for the practical and relabelled splits"):
        load("digits", "iid", classes="drawn")
