"""Words for what went wrong: the name that was probably meant, and an error in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], least: float = 0.4) -> str | None:
    """The known name that is most like a word, whatever its case; None where none is like it by at least that much."""
    folded = {each.casefold(): each for each in known}
    near = difflib.get_close_matches(word.casefold(), folded, 1, least)
    return folded[near[0]] if near else None


def did_you_mean(word: str, known: Iterable[str], least: float = 0.4) -> str:
    """'Did you mean …? ', to stand before another sentence, or nothing."""
    near = nearest(word, known, least)
    return f"Did you mean {near!r}? " if near else ""


def give_again(argument: str) -> str:
    """What to do about a name that cannot be imported: what was given in Python may have none that can."""
    return (
        f"If it was given as a Python object, give it again, as in fedkin.resume(path, {argument}=…), or define it in "
        "a module."
    )


def first_line(error: object, most: int = 160) -> str:
    """What an error says first, in at most so many characters and without a full stop; its kind if it says nothing."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".") or str(error).strip()
    return line if len(line) <= most else f"{line[: most - 4]} ..."
