"""Methods that keep their contract pass; each way to break it is told by its own sentence."""

from __future__ import annotations

import random
import re
import sys
from typing import Any, ClassVar

import pytest
import torch
from helpers import ROOT, cpu_only
from pydantic import PrivateAttr
from torch import Tensor

import fedkin
from fedkin import methods
from fedkin.base import streams
from fedkin.method import Cohort, Memory, Message, Method, Model, Problem, Round, Server, State, Upload
from fedkin.testing import ContractError, check, problems

pytestmark = cpu_only

SMALL: dict[str, dict[str, Any]] = {
    "panacea": {"hidden": 6, "embedding": 3},
    "panacea_gn": {"hidden": 6, "embedding": 3},
    "pfedhn": {"hidden": 6},
}
"""Hypernetworks, which are large by default."""


@pytest.mark.parametrize("method", methods.names())
def test_every_method_of_ours_keeps_its_contract(method: str) -> None:
    check(method, SMALL.get(method))


@pytest.mark.parametrize("method", ["own_method:HalfWay", "ditto:Ditto", "fedrep:FedRep"])
def test_the_examples_of_own_methods_keep_it(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])
    check(method)


def test_the_examples_are_short() -> None:
    for name, kind, most in (("ditto", "Ditto", 25), ("fedrep", "FedRep", 35)):
        text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
        own = text[text.index(f"class {kind}") : text.index("if __name__")]
        assert len([line for line in own.splitlines() if line.strip()]) <= most


# ---- methods that do not ----


class Half(Method):
    """Half way to the mean, and a part of the last row that a client remembers."""

    headline = "cloud"
    remembers = "personal"
    training: ClassVar[frozenset[str] | None] = frozenset({"share"})

    share: float = 0.25
    way: float = 0.5

    def begin(self, problem: Problem, round: Round) -> Server:
        return State(W=problem.initial.repeat(len(problem), 1))

    def download(self, problem: Problem, server: Server, clients: Tensor, round: Round) -> Message:
        return State({"mean": server.W.mean(0)}, u=(1 - self.way) * server.W[clients] + self.way * server.W.mean(0))

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> tuple[Upload, Memory]:
        W = cohort.fit((1 - self.share) * message.u + self.share * memory.personal, round)
        return State(W=W), State(personal=W)

    def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
        return {"cloud": message.u, "personal": memory.personal}

    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        server.W[clients] = upload.W
        return server

    def welcome(self, problem: Problem, server: Server, round: Round) -> Server:
        new = len(problem) - problem.known
        return State(W=torch.cat([server.W, server.W.mean(0).repeat(new, 1)]))


class LooksAtOthers(Half):
    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> Any:
        upload, memory = super().train(cohort, message, memory, round)
        return State(W=upload.W + 0.1 * upload.W.mean(0)), memory


class ByPlace(Half):
    def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
        return super().models(cohort, message, memory, round) | {"placed": memory.personal * _places(cohort)}


def _places(cohort: Cohort) -> Tensor:
    return torch.arange(len(cohort), dtype=torch.float64)[:, None]


class DrawsFromTorch(Half):
    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> Any:
        return super().train(cohort, message.replace(u=message.u + 0.1 * torch.randn(1)), memory, round)


class DrawsFromPython(Half):
    def begin(self, problem: Problem, round: Round) -> Server:
        return State(W=super().begin(problem, round).W * random.random())


class DrawsByTheSeed(Half):
    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> Any:
        upload, memory = super().train(cohort, message, memory, round)
        own = [streams.generator(cohort.seed, name, round.number, "noise") for name in cohort.names]
        noise = torch.stack([torch.randn(upload.W.shape[1], generator=g, dtype=torch.float64) for g in own])
        return State(W=upload.W + 0.1 * noise), memory


class DrawsByTheRound(Half):
    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> Any:
        torch.randn(1, generator=round.rng("noise"))
        return super().train(cohort, message, memory, round)


class Adopts(Half):
    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        if len(clients) == len(problem) and clients[0] == 0:
            return State(W=upload.W)
        return super().update(problem, server, clients, upload, round)


class WritesIntoTheStart(Half):
    def download(self, problem: Problem, server: Server, clients: Tensor, round: Round) -> Message:
        problem.initial.mul_(0.5)
        return super().download(problem, server, clients, round)


class WritesIntoTheServer(Half):
    def download(self, problem: Problem, server: Server, clients: Tensor, round: Round) -> Message:
        message = super().download(problem, server, clients, round)
        server.W.mul_(0.9)
        return message


class WritesIntoWhatAllShare(Half):
    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> Any:
        message.mean[0].mul_(2)
        return super().train(cohort, message, memory, round)


class NoSuchHeadline(Half):
    headline = "clod"


class NoSuchMemory(Half):
    remembers = "own"

    def enlist(self, problem: Problem, clients: Tensor, round: Round) -> Memory:
        return State(personal=problem.initial.repeat(len(clients), 1))


class RemembersMore(Half):
    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> Any:
        upload, memory = super().train(cohort, message, memory, round)
        return upload, memory.replace(last=message.u)


class RemembersLess(Half):
    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> Any:
        upload, _ = super().train(cohort, message, memory, round)
        return upload, State(personal=upload.W[:, :1])


class OtherModelsLater(Half):
    def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
        found = super().models(cohort, message, memory, round)
        return found if round.number < 2 else {"cloud": found["cloud"]}


class ShortRows(Half):
    def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
        return {"cloud": message.u[:, 1:]}


class KeepsToItself(Half):
    _rounds: int = PrivateAttr(0)

    def download(self, problem: Problem, server: Server, clients: Tensor, round: Round) -> Message:
        scale = 1 + self._rounds / 10
        return State({"mean": server.W.mean(0)}, u=server.W[clients] * scale)

    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        self._rounds = round.number
        return super().update(problem, server, clients, upload, round)


class ClientsKeepToThemselves(Half):
    _last: dict[str, Tensor] = PrivateAttr(default_factory=dict)

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> Any:
        upload, memory = super().train(cohort, message, memory, round)
        last = [self._last.get(name, torch.zeros_like(upload.W[0])) for name in cohort.names]
        self._last.update(zip(cohort.names, upload.W.clone(), strict=True))
        return State(W=upload.W + 0.1 * torch.stack(last)), memory


class TellsItself(Half):
    """What clients know comes to the server through the method."""

    _told: dict[str, Tensor] = PrivateAttr(default_factory=dict)

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> Any:
        upload, memory = super().train(cohort, message, memory, round)
        self._told.update(zip(cohort.names, upload.W.abs().sum(1), strict=True))
        return upload, memory

    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        told = [self._told.get(problem.names[i], torch.tensor(1.0)) for i in clients.tolist()]
        server.W[clients] = upload.W / torch.stack(told).view(-1, 1)
        return server


class LooksAtWhatItDoesNotName(Half):
    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> Any:
        return super().train(cohort, message.replace(u=message.u * self.way), memory, round)

    training = frozenset({"share"})


class NamesNoSetting(Half):
    training = frozenset({"share", "shares"})


class FirstRows(Half):
    def download(self, problem: Problem, server: Server, clients: Tensor, round: Round) -> Message:
        return super().download(problem, server, torch.arange(len(clients)), round)


class FirstRowsUpdated(Half):
    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        server.W[: len(clients)] = upload.W
        return server


class EveryoneUploads(Half):
    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        server.W.copy_(upload.W[torch.argsort(clients)])
        return server


class LosesRows(Half):
    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        return State(W=super().update(problem, server, clients, upload, round).W, extra=torch.ones(3))


class NewcomersMoveOthers(Half):
    def welcome(self, problem: Problem, server: Server, round: Round) -> Server:
        return State(W=super().welcome(problem, server, round).W * 0.9)


class MayBeMoved(NewcomersMoveOthers):
    newcomers_change = frozenset({"W"})


class NoPlaceForNewcomers(Half):
    def welcome(self, problem: Problem, server: Server, round: Round) -> Server:
        return server


class OneWayOnly(Half):
    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> Any:
        upload, memory = super().train(cohort, message, memory, round)
        return State(W=upload.W * (1 + (cohort.execution.name == "stacked"))), memory


class Explodes(Half):
    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> Any:
        upload, memory = super().train(cohort, message, memory, round)
        return State(W=upload.W * float("nan")), memory


class Raises(Half):
    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> Any:
        raise ValueError("nothing will come of nothing")


class OnlyManyAtOnce(Half):
    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> Any:
        assert len(cohort) > 1, "alone"
        return super().train(cohort, message, memory, round)


BROKEN: list[tuple[type[Method], str]] = [
    (LooksAtOthers, r"With chunk = 1 the model 'cloud' .* a row of `train` and `models` should depend on that row's"),
    (ByPlace, r"With chunk = 1 the model 'placed' of client 'c' in round 1 differs"),
    (DrawsFromTorch, r"When torch, numpy and random are seeded otherwise .* in round 1 differs .*`cohort.rng`"),
    (DrawsFromPython, r"When torch, numpy and random are seeded otherwise .* in round 1 differs .*`round.rng`"),
    (DrawsByTheSeed, r"With two seeds in one stack the model 'cloud' .* random numbers are `cohort.rng`'s"),
    (DrawsByTheRound, r"`train` in round 1 fails with RuntimeError: In `train` and `models` rows may belong to runs"),
    (Adopts, r"`update` keeps an upload's own tensor as the server's 'W'"),
    (WritesIntoTheStart, r"`download` writes into problem.initial, which is everyone's"),
    (WritesIntoTheServer, r"`download` writes into the server's 'W'; only `update` and `welcome` may"),
    (WritesIntoWhatAllShare, r"`train` writes into the message's 'mean' outside its own rows"),
    (NoSuchHeadline, r"The headline is 'clod', but `models` gives 'cloud', 'personal'"),
    (NoSuchMemory, r"`remembers` is 'own', but `enlist` gives clients 'personal' to remember"),
    (RemembersMore, r"`train` gives clients a memory 'last' of \(43,\) numbers .* which was that is not there"),
    (RemembersLess, r"`train` gives clients a memory 'personal' of \(1,\) numbers a client in float64"),
    (OtherModelsLater, r"`models` gives 'cloud' where it gave 'cloud', 'personal' before"),
    (ShortRows, r"model 'cloud' has shape \(8, 42\); it should be \(8, 43\)"),
    (KeepsToItself, r"When a run is stopped after round 2 and resumed the model 'cloud' .* in round 3 differs"),
    (KeepsToItself, r"When the server comes up anew after round 2 the model 'cloud'"),
    (ClientsKeepToThemselves, r"When the sites come up anew after round 2 .* not in the method"),
    (TellsItself, r"With one site, by letters, .* differs .* should be in message, upload and memory"),
    (LooksAtWhatItDoesNotName, r"`train` or `models` looks at the setting 'way', which `training` does not name"),
    (NamesNoSetting, r"`training` names 'shares', which is no setting: they are share, way"),
    (FirstRows, r"`download` gives a client another 'u' .* when fewer clients are asked for, in another order"),
    (FirstRowsUpdated, r"`update` makes another 'W' .* of the same uploads in another order"),
    (EveryoneUploads, r"With lost uploads \(participation.lost = 0.5\): `update` in round \d fails with RuntimeError"),
    (LosesRows, r"`update` gives the server 'extra' of shape \(3,\); its first dimension should be the 8 clients"),
    (NewcomersMoveOthers, r"Newcomers change the server's 'W' for clients that were there: `welcome` should add rows"),
    (
        NoPlaceForNewcomers,
        r"With newcomers \(participation.novel = 0.25\): `download` in round \d fails",
    ),
    (OneWayOnly, r"With execution = 'one-by-one' the model 'cloud' .* should come from `cohort.fit`"),
    (Explodes, r"The training of client 'a' diverged in round 1"),
    (
        Raises,
        r"With all clients .*: `train` in round 1 fails with ValueError: nothing will come of nothing\.",
    ),
    (OnlyManyAtOnce, r"With chunk = 1: `train` in round 1 fails with AssertionError: alone"),
]


@pytest.mark.parametrize(
    ("method", "sentence"), BROKEN, ids=[f"{kind.__name__}-{i}" for i, (kind, _) in enumerate(BROKEN)]
)
def test_what_is_broken_is_told_in_a_sentence(method: type[Method], sentence: str) -> None:
    told = problems(method)
    assert any(re.search(sentence, each) for each in told), told
    assert all(each[0].isupper() or each[0] == "`" for each in told) and all("\n" not in each for each in told)


@pytest.mark.parametrize("method", [Half, MayBeMoved])
def test_what_they_are_made_of_keeps_the_contract(method: type[Method]) -> None:
    assert problems(method) == []


def test_one_cause_that_makes_every_run_another_is_told_once() -> None:
    assert len(problems(DrawsFromPython)) == len(problems(Raises)) == 1


def test_a_class_an_object_and_settings() -> None:
    assert problems(Half(way=1.0)) == []
    assert problems(Half, {"way": 0.0}, local={"optimiser": "sgd", "momentum": 0.9}) == []
    assert "weg" in problems(Half, {"weg": 0.0})[0]


def test_what_is_no_method_or_not_whole_is_told_too() -> None:
    class Unfinished(Method):
        headline = "cloud"

    assert "is not whole: it has no begin, download, models, train, update" in problems(Unfinished)[0]
    assert "There is no method 'fedavgg'" in problems("fedavgg")[0]


def test_check_raises_one_error_with_a_line_for_each() -> None:
    with pytest.raises(
        ContractError, match=r"NoSuchHeadline' breaks its contract:\n- The headline is 'clod'"
    ) as caught:
        check(NoSuchHeadline)
    assert isinstance(caught.value, fedkin.FedkinError)
    check(Half)


def test_random_numbers_of_the_caller_go_on_as_if_nothing_had_been() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    check(Half)
    assert torch.equal(torch.rand(3), expected)
