"""What was given in Python is known by a name in this process, and it is known whether others could import it."""

from __future__ import annotations

from functools import partial

import pytest

from fedkin.base import given


def function() -> None:
    """One that any process can import."""


class Outer:
    class Inner:
        """Not to be had by one name of its module."""


def inside() -> None: ...


def made() -> object:
    def inside() -> None: ...

    return inside


@pytest.mark.parametrize(
    ("thing", "name", "only_here"),
    [
        (function, "function", False),
        (Outer, "Outer", False),
        (Outer.Inner, "Outer.Inner", True),
        (made(), "inside", True),
        (lambda: None, "lambda", True),
    ],
    ids=["function", "class", "class in a class", "function in a function", "lambda"],
)
def test_a_thing_is_given_back_by_its_name(thing, name, only_here):
    found = given.remembered(thing)
    assert found == f"{__name__}:{name}"
    assert given.recalled(found) is thing
    assert given.only_here(found) == only_here


def test_the_last_of_one_name_has_it():
    first, second = made(), made()
    name = given.remembered(first)
    assert given.remembered(second) == name
    assert given.recalled(name) is second


def test_an_object_goes_by_its_class_and_what_was_never_given_is_not_here_alone():
    assert given.remembered(partial(function)) == "functools:partial"
    assert given.recalled("nowhere:nothing") is None
    assert not given.only_here("nowhere:nothing")
