"""Labels made wrong on purpose: exactly as many as asked for, nested over levels, never in test data."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedkin
from fedkin import Client, Federation, Task, data
from fedkin.base.task import LOSSES
from fedkin.data.corrupt import chosen, corrupt
from fedkin.data.federation import FederationError
from fedkin.engines import start

KINDS = ("dirty", "random", "flip")


def crowd(m: int = 10, n: int = 50, classes: int = 4, groups: int | None = None, held: int = 0) -> Federation:
    """Clients with labels 0, 1, 2, …, and validation data of their own if asked for."""

    def part(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(size, 3, generator=torch.Generator().manual_seed(size)), torch.arange(size) % classes

    clients = [
        Client(f"c{i}", part(n), part(8), part(held) if held else None, group=None if groups is None else i % groups)
        for i in range(m)
    ]
    return Federation("crowd", tuple(clients), Task.classification((3,), classes))


def wrong(before: Federation, after: Federation) -> dict[str, torch.Tensor]:
    """For each client which of its training labels are no longer what they were."""
    return {a.name: a.train[1] != b.train[1] for a, b in zip(after.clients, before.clients, strict=True)}


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 23), st.integers(1, 60), st.floats(0, 1), st.floats(0, 1), st.integers(0, 5))
def test_dirty_labels_are_as_many_as_asked_for_and_all_of_another_class(m, n, clients, labels, seed):
    before = crowd(m, n)
    after = corrupt(before, labels=labels, clients=clients, seed=seed)
    hit = {name: int(lies.sum()) for name, lies in wrong(before, after).items() if lies.any()}
    share = int(clients * m + 1e-9)
    count = int(labels * n + 0.5)
    assert sorted(hit.values()) == ([count] * share if count else [])
    assert len(hit) <= sum(c.corrupted for c in after.clients) <= share
    assert all(0 <= int(c.train[1].min()) <= int(c.train[1].max()) < 4 for c in after.clients)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_and_test_data_stay_as_they_are(kind):
    before = crowd(held=10)
    after = corrupt(before, labels=1.0, clients=1.0, kind=kind)
    for a, b in zip(after.clients, before.clients, strict=True):
        assert torch.equal(a.train[0], b.train[0])
        assert all(map(torch.equal, a.test, b.test))
        assert a.corrupted
        assert not torch.equal(a.validation[1], b.validation[1])


@pytest.mark.parametrize("kind", KINDS)
def test_higher_levels_contain_the_lower_ones(kind):
    before = crowd(20, 40)
    low, high = (corrupt(before, labels=level, clients=level, kind=kind) for level in (0.2, 0.6))
    lies, more = wrong(before, low), wrong(before, high)
    for name in lies:
        assert bool((lies[name] <= more[name]).all()), "a label that was a lie stays one"
    for a, b in zip(low.clients, high.clients, strict=True):
        assert torch.equal(a.train[1][lies[a.name]], b.train[1][lies[a.name]]), "and the same one"


def test_two_of_five_clients_in_every_group():
    federation = data.load("digits", "practical")
    hit = chosen(federation, 0.4, seed=3)
    assert len(hit) == 8
    groups = {c.name: c.group for c in federation.clients}
    counts = [sum(groups[n] == g for n in hit) for g in range(5)]
    assert sorted(counts) == [1, 1, 2, 2, 2], "as even as eight over five groups can be"
    wide = crowd(100, 5, groups=5)
    names = {c.name: c.group for c in wide.clients}
    assert [sum(names[n] == g for n in chosen(wide, 0.4, 0)) for g in range(5)] == [8] * 5


def test_the_lot_depends_on_seed_and_name_and_on_nothing_else():
    small, large = crowd(10), crowd(10, n=70)
    assert chosen(small, 0.5, 1) == chosen(large, 0.5, 1)
    assert chosen(small, 0.5, 1) != chosen(small, 0.5, 2)
    # A client's lies do not change when others leave.
    fewer = Federation("crowd", small.clients[:4], small.task)
    both = [corrupt(f, labels=0.5, clients=1.0) for f in (small, fewer)]
    one, other = ({c.name: c.train[1] for c in f.clients} for f in both)
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_flipped_labels_are_mirrored_and_random_ones_spread_over_all_classes():
    before = crowd(1, 4000)
    flipped = corrupt(before, labels=1.0, clients=1.0, kind="flip").clients[0].train[1]
    assert torch.equal(flipped, 3 - before.clients[0].train[1])
    drawn = corrupt(before, labels=1.0, clients=1.0, kind="random").clients[0].train[1]
    table = torch.zeros(4, 4).index_put((before.clients[0].train[1], drawn), torch.ones(4000), accumulate=True)
    assert bool(((table - 250).abs() < 5 * 250**0.5).all()), "whatever the label was, each class is as likely"
    dirty = corrupt(before, labels=1.0, clients=1.0, kind="dirty").clients[0].train[1]
    table = torch.zeros(4, 4).index_put((before.clients[0].train[1], dirty), torch.ones(4000), accumulate=True)
    assert bool((table.diagonal() == 0).all())
    assert bool(((table + 333 * torch.eye(4) - 333).abs() < 5 * 333**0.5).all())


def test_targets_of_a_regression_are_exchanged_drawn_or_mirrored():
    y = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    client = Client("a", (torch.zeros(6, 1), y), (torch.zeros(1, 1), y[:1]))
    before = Federation("numbers", (client,), Task.regression((1,), 1))
    told = {kind: corrupt(before, labels=1.0, clients=1.0, kind=kind).clients[0].train[1] for kind in KINDS}
    assert sorted(told["dirty"].tolist()) == y.tolist()
    assert not bool((told["dirty"] == y).any())
    assert set(told["random"].tolist()) <= set(y.tolist())
    assert torch.allclose(told["flip"], 2 * y.mean() - y)


def test_missing_targets_stay_missing_and_spoil_no_others():
    y = torch.tensor([1.0, torch.nan, 4.0, 7.0])
    client = Client("a", (torch.zeros(4, 1), y), (torch.zeros(1, 1), y[:1]))
    task = replace(Task.regression((1,), 1), loss=LOSSES["masked_mse"])
    told = corrupt(Federation("gaps", (client,), task), labels=1.0, clients=1.0, kind="flip").clients[0].train[1]
    assert told.nan_to_num(-1).tolist() == [7, -1, 4, 1]


def test_one_class_cannot_become_another():
    only = Federation("one", crowd(1, 6, classes=1).clients, Task.classification((3,), 1))
    assert torch.equal(corrupt(only, labels=1.0, clients=1.0).clients[0].train[1], torch.zeros(6, dtype=torch.int64))


def test_a_run_trains_on_dirty_labels_and_is_scored_on_clean_ones():
    clean, dirty = (
        start.prepare(corruption={"labels": level, "clients": 1.0}, data={"clients": 5}).federation
        for level in (0.0, 0.6)
    )
    for a, b in zip(clean.clients, dirty.clients, strict=True):
        changed = torch.cat([a.train[1] != b.train[1], a.validation[1] != b.validation[1]])
        assert float(changed.double().mean()) == pytest.approx(0.6, abs=0.02)
        assert torch.equal(a.test[1], b.test[1])
    assert not any(c.corrupted for c in clean.clients)


def test_the_silent_tell_no_lies_and_are_marked():
    before = crowd()
    after = corrupt(before, labels=1.0, clients=0.4, kind="silent")
    assert not any(lies.any() for lies in wrong(before, after).values())
    assert [c.name for c in after.clients if c.silent] == [c.name for c in after.clients if c.corrupted]
    assert {c.name for c in after.clients if c.silent} == set(chosen(before, 0.4, 0))
    assert not any(c.silent for c in corrupt(before, labels=0.0, clients=0.4, kind="silent").clients)


def test_the_silent_are_scored_but_never_train(tmp_path):
    settings = {"corruption": {"labels": 1.0, "clients": 0.4, "kind": "silent"}, "rounds": 2, "model": "logistic"}
    run = fedkin.run(settings, method="fedavg", federation=crowd(), out=tmp_path / "run", participation={"sample": 0.2})
    quiet = set(chosen(crowd(), 0.4, 0))
    assert set(run.summary["corrupted"]) == quiet
    for line in run.rounds:
        assert not quiet & set(line["participants"])
        assert None not in line["models"]["global"]["clients"]


def test_somebody_has_to_train():
    with pytest.raises(FederationError, match="nobody would train"):
        corrupt(crowd(), labels=1.0, clients=1.0, kind="silent")
