"""A method that is watched as it runs: what it is asked, what it answers, and what it touches that is not its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..base.round import Round
from ..base.state import Memory, Message, Server, State, Upload
from ..base.wording import first_line
from ..methods._method import Method
from ..methods._problem import Problem
from ..training.cohort import Cohort
from ..training.evaluation import PREDICTORS, Model, Predictor

TOLERANCE = 1e-9
"""By which two ways to the same number may differ in float64, relative to the larger of one and the number."""


@dataclass
class Watch:
    """What is seen of a method in a run."""

    strict: bool = False
    """Whether each answer is looked at by itself, which asks for some of them twice."""
    told: dict[str, str] = field(default_factory=dict)
    """Sentences on what was broken, the first of each kind."""
    asked: str = "the run"
    """The function that was asked last, and when."""
    asking_now: bool = False
    """Whether it is being asked."""
    inside: bool = False
    """Whether that is `train` or `models`."""
    looked: set[str] = field(default_factory=set)
    """Settings that those two have looked at."""
    rows: dict[tuple[int, str, str], State] = field(default_factory=dict)
    """What each model was: by round, client and model."""
    remembered: Callable[[], Memory] = State
    """What clients remember now."""
    before: tuple[Server, Memory] | None = None
    """Server and memory before newcomers came."""
    shared: frozenset[str] = frozenset()
    """Of the last message."""
    names: list[str] = field(default_factory=list)
    """Of the models, as they were in the first round."""

    def tell(self, kind: str, sentence: str) -> None:
        self.told.setdefault(kind, sentence)

    @contextmanager
    def asking(self, function: str, round: Round, inside: bool = False) -> Iterator[None]:
        self.asked, self.asking_now, self.inside = f"`{function}` in round {round.number}", True, inside
        try:
            yield
            self.asking_now = False
        finally:
            self.inside = False


def watched(method: Method, watch: Watch) -> Method:
    """The same method with the same settings, seen by a watch."""
    kind: Any = type(method)

    class Watched(kind):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            if watch.inside and name in kind.model_fields:
                watch.looked.add(name)
            return super().__getattribute__(name)

        def begin(self, problem: Problem, round: Round) -> Server:
            with watch.asking("begin", round), _untouched(problem, watch, "begin"):
                server: Server = super().begin(problem, round)
            if watch.strict:
                _rows(server, len(problem), watch, "begin")
            return server

        def enlist(self, problem: Problem, clients: Tensor, round: Round) -> Memory:
            with watch.asking("enlist", round), _untouched(problem, watch, "enlist"):
                memory: Memory = super().enlist(problem, clients, round)
            if watch.strict:
                _remembers(kind, memory, watch)
                _in_another_order(
                    lambda few: super(Watched, self).enlist(problem, few, round), clients, memory, watch, "enlist"
                )
            return memory

        def download(self, problem: Problem, server: Server, clients: Tensor, round: Round) -> Message:
            was = copied(server) if watch.strict else server
            with watch.asking("download", round), _untouched(problem, watch, "download"):
                message: Message = super().download(problem, server, clients, round)
            watch.shared = message.shared
            if watch.strict:
                for name in _changed(was, server):
                    watch.tell(
                        "download writes",
                        f"`download` writes into the server's {name!r}; only `update` and `welcome` may.",
                    )
                _in_another_order(
                    lambda few: super(Watched, self).download(problem, server, few, round),
                    *(clients, message, watch, "download"),
                )
            return message

        def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> tuple[Upload, Memory]:
            with _guarded(message, memory, watch, "train") as (given, own), watch.asking("train", round, True):
                upload, remembered = super().train(cohort, given, own, round)
            if watch.strict:
                _memory(remembered, memory, watch)
            return upload, remembered

        def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
            with _guarded(message, memory, watch, "models") as (given, own), watch.asking("models", round, True):
                models: dict[str, Model] = super().models(cohort, given, own, round)
            if watch.strict:
                _models(kind, models, cohort, watch)
            for name, model in models.items():
                rows = model.rows if isinstance(model, Predictor) else State(w=model)
                for i, client in enumerate(cohort.names):
                    watch.rows[round.number, client, name] = copied(rows.take(slice(i, i + 1)))
            return models

        def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
            if not watch.strict:
                with watch.asking("update", round):
                    return super().update(problem, server, clients, upload, round)  # type: ignore[no-any-return]
            again, flipped = copied(server), copied(upload.take(torch.arange(len(clients)).flip(0)))
            sent = copied(upload)
            with watch.asking("update", round), _untouched(problem, watch, "update"):
                after: Server = super().update(problem, server, clients, sent, round)
            _rows(after, len(problem), watch, "update")
            _not_adopted(after, sent, watch)
            with _telling(watch, "update, order", "`update` fails where uploads come in another order"):
                other = super().update(problem, again, clients.flip(0), flipped, round)
                for name, far in differences(after, other):
                    watch.tell(
                        "update, order",
                        f"`update` makes another {name!r} ({far}) of the same uploads in another order; row i of "
                        "`upload` is of client `clients[i]`.",
                    )
            return after

        def welcome(self, problem: Problem, server: Server, round: Round) -> Server:
            watch.before = copied(server), copied(watch.remembered())
            with watch.asking("welcome", round), _untouched(problem, watch, "welcome"):
                after: Server = super().welcome(problem, server, round)
            if watch.strict:
                _rows(after, len(problem), watch, "welcome")
            return after

    Watched.__name__, Watched.__qualname__, Watched.__module__ = kind.__name__, kind.__qualname__, kind.__module__
    if "training" in vars(kind):  # which is not inherited
        Watched.training = vars(kind)["training"]
    seen = method.model_copy()
    object.__setattr__(seen, "__class__", Watched)
    return seen


# ---- states ----


def copied(state: State) -> State:
    return state.replace(**{name: tensor.clone() for name, tensor in state.items()})


def differences(a: State, b: State, tolerance: float = TOLERANCE) -> Iterator[tuple[str, str]]:
    """The names under which two states differ, and how, in words."""
    ours, theirs = dict(a.items()), dict(b.items())
    for name in dict.fromkeys([*ours, *theirs]):
        if name not in ours or name not in theirs:
            yield name, "which is missing in one of the two"
        elif said := difference(ours[name], theirs[name], tolerance):
            yield name, said


def difference(x: Tensor, y: Tensor, tolerance: float = TOLERANCE) -> str | None:
    """How two tensors differ, in words; None where they agree. Where both are not finite, they do."""
    if x.shape != y.shape:
        return f"of shape {tuple(x.shape)} here and {tuple(y.shape)} there"
    if torch.equal(x, y) or not x.numel():
        return None
    x, y = x.double().nan_to_num(), y.double().nan_to_num()
    far = (x - y).abs()
    return f"by {float(far.max()):.1g}" if bool((far > tolerance * y.abs().clamp(min=1)).any()) else None


def _changed(a: State, b: State) -> list[str]:
    return [name for name, _ in differences(a, b, 0.0)]


# ---- what is looked at in each answer ----


@contextmanager
def _telling(watch: Watch, kind: str, where: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        watch.tell(kind, f"{where}: {type(error).__name__}: {first_line(error)}.")


@contextmanager
def _untouched(problem: Problem, watch: Watch, function: str) -> Iterator[None]:
    """What everyone may know stays as it is."""
    if not watch.strict:
        yield
        return
    given = {"initial": problem.initial, "samples": problem.samples, "groups": problem.groups, "graph": problem.graph}
    was = {name: tensor.clone() for name, tensor in given.items() if tensor is not None}
    yield
    for name, tensor in was.items():
        if not torch.equal(tensor, getattr(problem, name)):
            watch.tell(
                f"problem.{name}",
                f"`{function}` writes into problem.{name}, which is everyone's: what begins there should be a copy, "
                f"`problem.{name}.clone()`.",
            )


@contextmanager
def _guarded(message: Message, memory: Memory, watch: Watch, function: str) -> Iterator[tuple[Message, Memory]]:
    """Message and memory between rows that are nobody's; it is told if these, or what all share, are written to."""
    if not watch.strict:
        yield message, memory
        return
    guards: list[tuple[str, str, Tensor, Tensor]] = []

    def fenced(state: State, word: str) -> State:
        inner = {}
        for name, tensor in state.items():
            if word == "message" and name in watch.shared:
                whole = tensor[0].clone()
                inner[name], guard = whole.expand(tensor.shape), whole
            else:
                whole = torch.cat([tensor[-1:], tensor, tensor[:1]])
                inner[name], guard = whole[1:-1], whole[:: len(whole) - 1]
            guards.append((word, name, guard, guard.clone()))
        return State(**inner)

    yield fenced(message, "message"), fenced(memory, "memory")
    for word, name, guard, was in guards:
        if not torch.equal(guard, was):
            watch.tell(
                f"{function} writes",
                f"`{function}` writes into the {word}'s {name!r} outside its own rows; it should work on a copy.",
            )


def _rows(state: State, count: int, watch: Watch, function: str) -> None:
    for name, tensor in state.items():
        if name not in state.shared and (tensor.ndim == 0 or len(tensor) != count):
            watch.tell(
                f"rows, {function}",
                f"`{function}` gives the server {name!r} of shape {tuple(tensor.shape)}; its first dimension should be "
                f"the {count} clients, or, if it is the same for all, it belongs into State({{{name!r}: …}}).",
            )


def _remembers(kind: type[Method], memory: Memory, watch: Watch) -> None:
    if kind.remembers is not None and kind.remembers not in memory:
        watch.tell(
            "remembers",
            f"`remembers` is {kind.remembers!r}, but `enlist` gives clients {_list(memory)} to remember: it should "
            "name one of these.",
        )


def _memory(after: Memory, before: Memory, watch: Watch) -> None:
    """Clients remember tensors of the same names, shapes and kinds for ever."""
    forms = [{name: (tuple(t.shape[1:]), t.dtype) for name, t in state.items()} for state in (before, after)]
    for name in dict.fromkeys([*forms[0], *forms[1]]):
        was, now = (form.get(name) for form in forms)
        if was != now:
            said = [_form(form) for form in (was, now)]
            watch.tell(
                "memory",
                f"`train` gives clients a memory {name!r} {said[1]}, which was {said[0]}: names, shapes and kinds of "
                "numbers should stay those that `enlist` began with.",
            )


def _form(form: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "that is not there" if form is None else f"of {form[0]} numbers a client in {str(form[1])[6:]}"


def _models(kind: type[Method], models: dict[str, Model], cohort: Cohort, watch: Watch) -> None:
    headline = getattr(kind, "headline", None)
    if headline not in models:
        watch.tell(
            "headline",
            f"The headline is {headline!r}, but `models` gives {_list(models)}: it should be one of these.",
        )
    watch.names = watch.names or list(models)
    asked = [name for name in models if watch.before is None or name in watch.names]  # newcomers may have further ones
    if asked != watch.names:
        watch.tell(
            "names",
            f"`models` gives {_list(models)} where it gave {_list(watch.names)} before: it should give the same models "
            "in the same order in every round.",
        )
    for name, model in models.items():
        if not isinstance(model, Predictor):
            wanted = (len(cohort), cohort.layout.size)
            if tuple(model.shape) != wanted:
                watch.tell(
                    "shapes",
                    f"`models` gives {name!r} of shape {tuple(model.shape)}; it should be {wanted}: a row of all "
                    "weights for each client of the cohort.",
                )
        elif model.function not in PREDICTORS:
            watch.tell(
                "predictor",
                f"`models` gives {name!r} with the function {model.function!r}; there are {_list(PREDICTORS)}.",
            )


def _not_adopted(server: Server, upload: Upload, watch: Watch) -> None:
    """Writes into an upload that `update` has had."""
    was = copied(server)
    for _, tensor in upload.items():
        tensor.fill_(1 if tensor.dtype == torch.bool else 77)
    for name in _changed(was, server):
        watch.tell(
            "adopted",
            f"`update` keeps an upload's own tensor as the server's {name!r}, and who writes into the upload later "
            "changes the server: it should copy, as `server.W[clients] = upload.W` does.",
        )


def _in_another_order(
    ask: Callable[[Tensor], State], clients: Tensor, given: State, watch: Watch, function: str
) -> None:
    """Half of the clients, the last first: each gets what it got."""
    few = torch.arange(len(clients), device=clients.device).flip(0)[: len(clients) // 2 + 1]
    kind = f"{function}, order"
    with _telling(watch, kind, f"`{function}` fails when it is asked for fewer clients, in another order"):
        for name, far in differences(given.take(few), ask(clients[few])):
            watch.tell(
                kind,
                f"`{function}` gives a client another {name!r} ({far}) when fewer clients are asked for, in another "
                "order; row i should be that of client `clients[i]`, whoever else is asked for.",
            )


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
