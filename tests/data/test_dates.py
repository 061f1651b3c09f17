"""Dates as people write them: the calendar's days, and only where day and month can be told apart."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkin.data import dates

WRITTEN = {
    "year-month-day": ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d"),
    "day.month.year": ("%d.%m.%Y",),
    "day/month/year": ("%d/%m/%Y", "%d-%m-%Y"),
    "month/day/year": ("%m/%d/%Y", "%m-%d-%Y"),
}
MOMENTS = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1))


@given(MOMENTS, st.sampled_from(sorted(WRITTEN)), st.sampled_from(["", " %H:%M", "T%H:%M:%S"]))
def test_a_date_is_the_days_since_1970_and_its_time_a_fraction(moment, form, time):
    kept = {"": ("hour", "minute", "second"), " %H:%M": ("second",), "T%H:%M:%S": ()}[time]
    moment = moment.replace(microsecond=0, **dict.fromkeys(kept, 0))
    expected = (moment - datetime.datetime(1970, 1, 1)).total_seconds() / 86400
    for written in WRITTEN[form]:
        assert dates.days(moment.strftime(written + time), form) == pytest.approx(expected, abs=1e-9)


@given(st.lists(MOMENTS, min_size=1, max_size=20), st.sampled_from(sorted(WRITTEN)))
def test_the_form_that_was_written_is_among_those_found_and_alone_if_a_day_is_above_12(moments, form):
    for written in WRITTEN[form]:
        found = dates.forms({moment.strftime(written) for moment in moments})
        assert form in found
        if any(moment.day > 12 for moment in moments):
            assert found == [form]


@pytest.mark.parametrize(
    "text", ["2024-02-30", "31.04.2023", "2024-13-01", "1.2.3", "10.0.3.7", "3/31/24", "2024", "", "x"]
)
def test_what_is_no_day_is_no_date(text):
    assert dates.forms({text}) == []
