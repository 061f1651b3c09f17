"""Separate: every client trains alone. The yardstick: joining should beat this."""

from __future__ import annotations

from ._method import Cohort, Memory, Message, Method, Model, Problem, Round, Server, State, Tensor, Upload


class Separate(Method):
    """Every client trains on its own data, from the common start, and tells nobody."""

    headline = "personal"
    remembers = "personal"
    alone = True
    training = frozenset()

    def begin(self, problem: Problem, round: Round) -> Server:
        return State()

    def download(self, problem: Problem, server: Server, clients: Tensor, round: Round) -> Message:
        return State()

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> tuple[Upload, Memory]:
        return State(), State(personal=cohort.fit(memory.personal, round))

    def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
        return {"personal": memory.personal}

    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        return server
