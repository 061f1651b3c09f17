"""The name that was meant, and an error in one line."""

from __future__ import annotations

import pytest

from fedkin.base.wording import did_you_mean, first_line, nearest


def test_the_nearest_name_disregards_capitals() -> None:
    assert nearest("Hospitl", ["age", "hospital"]) == "hospital"
    assert did_you_mean("HOSPITL", ["age", "Hospital"], 0.6) == "Did you mean 'Hospital'? "
    assert nearest("zzz", ["age"]) is None
    assert did_you_mean("zzz", ["age"]) == ""


def test_how_much_alike_a_name_has_to_be_is_up_to_who_asks() -> None:
    assert nearest("lab", ["labels"], 0.6) == "labels"
    assert nearest("lab", ["labels"], 0.9) is None


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("It broke.\nAnd here is where."), "It broke"),
        (ValueError("\n\n  at last  "), "at last"),
        (MemoryError(), "MemoryError"),
        (ValueError("word " * 100), ("word " * 32)[:156] + " ..."),
        (ValueError("x" * 200), "x" * 156 + " ..."),
        (ValueError("..."), "..."),
    ],
)
def test_an_error_is_told_in_one_line_of_bounded_length(error: Exception, line: str) -> None:
    assert first_line(error) == line
    assert len(first_line(error)) <= 160
