"""Windows are cut where they should be: against plain loops."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.data import windows

SMALL = st.integers(1, 5)


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(0, 30), SMALL, SMALL)
def test_a_window_belongs_where_all_that_it_predicts_lies(first: int, more: int, observed: int, outputs: int) -> None:
    stop, expected = first + more, []
    for start in range(stop):
        predicted = range(start + observed, start + observed + outputs)
        if all(first <= step < stop for step in predicted):
            expected.append(start)
    assert windows.starts(first, stop, observed, outputs).tolist() == expected


def test_a_series_of_t_steps_has_t_less_23_windows_of_24() -> None:
    assert len(windows.starts(0, 34_272, 12, 12)) == 34_249
    assert len(windows.starts(0, 52_116, 12, 12)) == 52_093
    assert len(windows.starts(0, 144, 6, 6)) == 133


@settings(deadline=None)
@given(st.integers(5, 20), st.integers(1, 5), st.sampled_from([(), (2,), (2, 3)]), st.data())
def test_windows_are_slices(steps: int, length: int, inner: tuple[int, ...], data: st.DataObject) -> None:
    series = torch.randn(steps, *inner)
    at = data.draw(st.lists(st.integers(0, steps - length), max_size=6))
    found = windows.cut(series, torch.tensor(at, dtype=torch.int64), length)
    assert found.shape == (len(at), length, *inner)
    for window, start in zip(found, at, strict=True):
        assert torch.equal(window, series[start : start + length])


def test_a_window_is_a_copy() -> None:
    series = torch.arange(6.0)
    windows.cut(series, torch.tensor([0, 1]), 3)[:] = -1
    assert series.tolist() == [0, 1, 2, 3, 4, 5]


@given(st.integers(5, 20), st.integers(1, 5), st.data())
def test_touched_steps_lie_in_a_window(steps: int, length: int, data: st.DataObject) -> None:
    at = data.draw(st.lists(st.integers(0, steps - length), max_size=4))
    inside = {step for start in at for step in range(start, start + length)}
    found = windows.touched(steps, torch.tensor(at, dtype=torch.int64), length)
    assert found.tolist() == [step in inside for step in range(steps)]


def test_observed_steps_are_found_in_either_layout() -> None:
    whole = torch.randn(5, 9, 2)
    assert torch.equal(windows.observed(whole, 4), whole[:, :5, 0])
    assert torch.equal(windows.observed(whole[:, :5, 0], 4), whole[:, :5, 0])
