"""Trainings that a site asks for, and who answers them: alone, or several runs' in one stack."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from ..base import machine
from ..base.round import Round
from ..base.state import Memory, Message, Upload
from ..base.wording import first_line
from ..methods._method import Method
from ..training.cohort import Cohort

T = TypeVar("T")


@dataclass(frozen=True)
class RanOut:
    """There was not memory enough: the allocator's words. Nothing has changed by it."""

    said: str


Trained = tuple[Upload, Memory] | RanOut
Requests = Generator["Request", list[Trained], T]
"""What trains: it yields requests, is sent what they came to, and returns a T. Who answers may answer several at once.
An answer comes in a list, out of which it is taken: nobody else holds on to it while the next clients train."""


@dataclass(frozen=True, repr=False)
class Request:
    """A training that a site asks for: the arguments of `Method.train`. What it costs goes into the cohort's ledger."""

    method: Method
    cohort: Cohort
    message: Message
    memory: Memory
    round: Round

    def answer(self) -> Trained:
        return within_memory(lambda: self.method.train(self.cohort, self.message, self.memory, self.round))


def within_memory(compute: Callable[[], T]) -> T | RanOut:
    """The result; or, where memory runs out, that it did. Not as an exception, which would hold on to what was made."""
    try:
        return compute()
    except Exception as error:
        if not machine.ran_out(error):
            raise
        return RanOut(first_line(error))


def advance(rounds: Requests[None], reply: list[Trained] | None = None) -> Request | None:
    """The next training that is asked for, after the reply to the last one; None when the run has ended."""
    try:
        return next(rounds) if reply is None else rounds.send(reply)
    except StopIteration:
        return None
