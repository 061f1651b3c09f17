"""Survival from arrays, tables and folders: what times and events may be, and that parts have their share of events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.base.task import Task
from fedkin.data.corrupt import corrupt
from fedkin.data.federation import Federation, FederationError
from fedkin.data.parts import stratified_part
from fedkin.data.table import TableError


def columns(n: int = 40, silos: int = 2, **more: list[Any]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "hospital": [f"h{i % silos}" for i in range(n)],
        "age": rng.normal(60, 10, n).round(1).tolist(),
        "sex": rng.choice(["m", "f"], n).tolist(),
        "days": rng.integers(1, 900, n).tolist(),
        "died": (rng.random(n) < 0.3).astype(int).tolist(),
    } | more


def federation(given: dict[str, Any] | None = None, **more: Any) -> Federation:
    named = {"client": "hospital", "time": "days", "event": "died"} | more
    return Federation.from_table(given or columns(), **named)


def everyone(found: Federation) -> torch.Tensor:
    """(n, 2) all targets, sorted."""
    y = torch.cat([pair[1] for c in found.clients for pair in (c.train, c.test, c.validation) if pair])
    return torch.tensor(sorted(y.tolist()))


def test_a_table_with_times_and_events_is_survival() -> None:
    table = columns()
    found = federation(table)
    assert (found.task.kind, found.task.outputs) == ("survival", 1)
    assert everyone(found).tolist() == sorted(map(list, zip(table["days"], table["died"], strict=True)))
    inputs = found.clients[0].preprocessing.inputs  # type: ignore[union-attr]
    assert not [name for name in inputs if "days" in name or "died" in name]
    assert federation(task="survival").task == found.task


@pytest.mark.parametrize(
    ("events", "more"),
    [
        ([True, False] * 20, {}),
        (["yes", "no"] * 20, {}),
        (["TRUE", "FALSE"] * 20, {}),
        ([1.0, 0.0] * 20, {}),
        (["dead", "alive"] * 20, {"event_value": "dead"}),
        ([2, 1] * 20, {"event_value": 2}),
        ([2, 1, 2, 0] * 10, {"event_value": "2"}),
    ],
)
def test_events_may_be_said_in_several_ways(events: list[Any], more: dict[str, Any]) -> None:
    table = columns(died=events)
    found = everyone(federation(table, **more))
    assert found.tolist() == sorted([float(t), float(i % 2 == 0)] for i, t in enumerate(table["days"]))


@pytest.mark.parametrize(
    ("given", "more", "sentence"),
    [
        (
            {"died": ["dead", "alive"] * 20},
            {},
            "is 'dead'. It should be 1 or 0, true or false, yes or no; or say which",
        ),
        ({"died": [1, 2] * 20}, {}, "--event-value 2"),
        ({"died": [1, 0] * 20}, {"event_value": "dead"}, "'dead' occurs in no row"),
        ({"died": [0] * 40}, {}, "was seen in no row of any silo"),
        ({"died": [None, *[1, 0] * 19, 1]}, {}, "the event, column 'died', is missing"),
        ({"days": [0, *range(1, 40)]}, {}, "row 0 .*: the time, column 'days', is 0. Times are numbers above 0"),
        ({"days": [3, -2, *range(1, 39)]}, {}, "row 1 .*: the time, column 'days', is -2"),
        ({"days": ["soon", *range(1, 40)]}, {}, "the time, column 'days', is 'soon'"),
        ({"days": [None, *range(1, 40)]}, {}, "the time, column 'days', is missing"),
        ({}, {"event": None}, r"with event = … \(--event\)"),
        ({}, {"time": None, "event": None, "task": "survival"}, r"time = … \(--time\) and event = … \(--event\)"),
        ({}, {"target": "age"}, "in place of a target"),
        ({}, {"time": "day"}, "no column 'day', which table.time names. Did you mean 'days'"),
        ({}, {"event": "days"}, "cannot be both"),
        ({}, {"ignore": ["days"]}, "is the time and cannot be in table.ignore"),
        ({}, {"task": "regression", "target": "age"}, "are for survival, but table.task = 'regression'"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TableError, match=sentence):
        federation(columns(**given), **more)


def test_a_folder_of_tables_and_one_of_arrays(tmp_path: Path) -> None:
    table = columns()
    whole = federation(table)
    rows = list(zip(*[table[c] for c in ("age", "sex", "days", "died")], strict=True))
    (tmp_path / "tables").mkdir()
    (tmp_path / "arrays").mkdir()
    for silo in ("h0", "h1"):
        own = [row for row, owner in zip(rows, table["hospital"], strict=True) if owner == silo]
        text = "age,sex,days,died\n" + "\n".join(",".join(map(str, row)) for row in own)
        (tmp_path / "tables" / f"{silo}.csv").write_text(text)
        y = np.array([row[2:] for row in own], dtype=np.float64)
        np.savez(tmp_path / "arrays" / f"{silo}.npz", x=np.array([[row[0]] for row in own]), y=y)
    found = Federation.from_folder(tmp_path / "tables", time="days", event="died")
    for one, other in zip(found.clients, whole.clients, strict=True):
        assert torch.equal(one.train[1], other.train[1])
        torch.testing.assert_close(one.train[0], other.train[0])
    arrays = Federation.from_folder(tmp_path / "arrays", task="survival")
    assert arrays.task.kind == "survival"
    assert everyone(arrays).tolist() == everyone(whole).tolist()


def test_arrays_may_have_times_and_events_beside_each_other_or_apart() -> None:
    rng = np.random.default_rng(1)
    x, time, event = rng.normal(size=(30, 3)), rng.exponential(size=30), rng.random(30) < 0.4
    one = Federation.from_arrays({"a": (x, np.stack([time, event], 1))}, "survival")
    other = Federation.from_arrays({"a": (x, (time, event))}, "survival")
    told = Federation.from_arrays({"a": (x, (time, event))}, Task.survival((3,)))
    for found in (other, told):
        assert found.task.kind == "survival"
        assert torch.equal(found.clients[0].train[1], one.clients[0].train[1])
    parts = Federation.from_arrays(
        {"a": (x[:20], (time[:20], event[:20]), x[20:], (time[20:], event[20:]))}, "survival"
    )
    assert parts.clients[0].test[1].shape == (10, 2)


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        (np.ones(8), "two numbers a sample, time and event; these have shape"),
        (np.ones((8, 3)), "two numbers a sample"),
        (np.array([[0.0, 1.0]] * 8), "numbers above 0"),
        (np.array([[np.nan, 1.0]] * 8), "numbers above 0"),
        (np.array([[1.0, 2.0]] * 8), "an event is 1 where it was seen, and 0"),
    ],
)
def test_arrays_that_are_no_times_and_events_are_refused(y: Any, sentence: str) -> None:
    with pytest.raises(FederationError, match=sentence):
        Federation.from_arrays({"a": (np.zeros((8, 2)), y)}, "survival")


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 80), st.floats(0, 1), st.sampled_from([0.1, 0.25, 0.5]), st.integers(0, 10**6))
def test_every_part_has_its_share_of_events(n: int, share: float, held_share: float, seed: int) -> None:
    events = (torch.rand(n, generator=torch.Generator().manual_seed(seed)) < share).float()
    for purpose in ("test part", "validation part"):
        rest, held = stratified_part(events, None, held_share, seed, "a", purpose)
        assert sorted([*rest.tolist(), *held.tolist()]) == list(range(n))
        assert abs(float(events[held].sum()) - float(events.sum()) * len(held) / n) <= 1


@pytest.mark.parametrize("kind", ["dirty", "random", "flip"])
def test_lies_about_times_are_times(kind: Any) -> None:
    """A federation refuses others. Mirrored, who was first is last."""
    honest = federation(validation=0.0)
    found = corrupt(honest, labels=1.0, clients=1.0, kind=kind)
    for before, after in zip(honest.clients, found.clients, strict=True):
        assert not torch.equal(before.train[1], after.train[1])
        assert torch.equal(before.test[1], after.test[1])
        if kind == "flip":
            (time, event), (mirrored, same) = (y.T for y in (before.train[1], after.train[1]))
            assert torch.equal(time + mirrored, (time.min() + time.max()).expand(len(time)))
            assert torch.equal(event, same)
