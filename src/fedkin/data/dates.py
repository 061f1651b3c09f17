"""Dates as people write them, as a number: days since 1970-01-01, with the time of day as a fraction."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection

TIME = r"(?:[T ](?P<hour>\d\d?):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,]\d+)?)?\s*(?:Z|[+-]\d\d:?\d\d)?)?"
FORMS = {
    "year-month-day": rf"(?P<year>\d{{4}})(?P<s>[-./])(?P<month>\d\d?)(?P=s)(?P<day>\d\d?){TIME}",
    "day.month.year": rf"(?P<day>\d\d?)\.(?P<month>\d\d?)\.(?P<year>\d{{4}}){TIME}",
    "day/month/year": rf"(?P<day>\d\d?)(?P<s>[-/])(?P<month>\d\d?)(?P=s)(?P<year>\d{{4}}){TIME}",
    "month/day/year": rf"(?P<month>\d\d?)(?P<s>[-/])(?P<day>\d\d?)(?P=s)(?P<year>\d{{4}}){TIME}",
}
"""How a date may be written; a time of day may follow. It is taken as it is written, whatever zone is behind it."""
PATTERNS = {form: re.compile(pattern) for form, pattern in FORMS.items()}
FIRST = datetime.date(1970, 1, 1).toordinal()


def days(text: str, form: str) -> float | None:
    """The days since 1970-01-01 of a text in this form, or None where it is no date."""
    found = PATTERNS[form].fullmatch(text)
    if found is None:
        return None
    try:
        day = datetime.date(int(found["year"]), int(found["month"]), int(found["day"])).toordinal() - FIRST
        time = datetime.time(int(found["hour"] or 0), int(found["minute"] or 0), int(found["second"] or 0))
    except ValueError:
        return None
    return day + (3600 * time.hour + 60 * time.minute + time.second) / 86400


def forms(texts: Collection[str]) -> list[str]:
    """The forms in which all of these texts are dates; two, where day and month cannot be told apart."""
    return [form for form in FORMS if texts and all(days(text, form) is not None for text in texts)]
