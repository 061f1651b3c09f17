"""Rounds in one process: download, train, score, update; with dropped clients, lost uploads and newcomers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..base import machine, mapped_rows
from ..base.round import Round
from ..base.state import Memory, Message, State, Upload
from ..base.wording import first_line
from ..errors import FedkinError
from ..evidence.progress import exhausted
from ..evidence.records import Execution, Line, Novel
from ..evidence.untrained import Answers
from ..methods._method import Method
from ..methods._problem import Problem
from ..runs.checkpoint import Checkpoint
from ..runs.folder import Writer, read_lines
from ..training.cohort import Cohort
from ..training.evaluation import Model
from ..training.optimisers import Optimiser
from . import capacity, explosion
from .assembly import Assembly
from .capacity import OutOfMemory, Room
from .keeping import Keeper
from .participation import Attendance
from .scores import HandOut, Scores
from .summary import Outcome, summarise


class Interrupted(Exception):
    """The run was asked to stop; everything up to the last whole round is saved."""


class Diverged(RuntimeError):
    """A client's training is no longer finite, and the run was told to stop then."""


class MethodError(FedkinError):
    """A method broke its contract; the sentence says where."""


@dataclass
class Listener:
    """What a run tells while it goes on; the default says nothing."""

    on_start: Callable[[Assembly], None] = lambda assembly: None
    on_round: Callable[[Line], None] = lambda record: None
    on_warning: Callable[[str], None] = lambda sentence: None
    stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True, repr=False)
class Request:
    """A training that a run asks for: the arguments of `Method.train`. The cohort keeps losses and optimiser."""

    method: Method
    cohort: Cohort
    message: Message
    memory: Memory
    round: int
    of: int

    def answer(self) -> Reply:
        moment = Round(self.round, self.of)
        return within_memory(lambda: self.method.train(self.cohort, self.message, self.memory, moment))


@dataclass(frozen=True)
class RanOut:
    """There was not memory enough for a training: the allocator's words. Nothing has changed by it."""

    said: str


Reply = tuple[Upload, Memory] | RanOut
T = TypeVar("T")
Requests = Generator[Request, list[Reply], T]
"""What trains: it yields requests, is sent their replies, and returns a T. Who answers may answer several at once. A
reply comes in a list, out of which it is taken: nobody else holds on to it while the next clients train."""


def within_memory(compute: Callable[[], T]) -> T | RanOut:
    """The result; or, where memory runs out, that it did. Not as an exception, which would hold on to what was made."""
    try:
        return compute()
    except Exception as error:
        if not machine.ran_out(error):
            raise
        return RanOut(first_line(error))


def advance(rounds: Requests[None], reply: list[Reply] | None = None) -> Request | None:
    """The next training that is asked for, after the reply to the last one; None when the run has ended."""
    try:
        return next(rounds) if reply is None else rounds.send(reply)
    except StopIteration:
        return None


@dataclass(frozen=True, repr=False)
class Mail:
    """A download, and for each client that it was sent to the row of it."""

    message: Message
    rows: dict[int, int]
    device: torch.device

    def to(self, clients: list[int]) -> Message:
        """What some of them got: a copy, as a method may write into it."""
        rows = torch.tensor([self.rows[c] for c in clients], device=self.device)
        return self.message.take(rows).for_clients(len(clients))

    @property
    def bytes(self) -> int:
        return len(self.rows) * self.message.bytes_per_client()


BEFORE = "as before it was resumed"
MOST_XI = 200
"""Clients up to which xi is kept of every round."""


class Simulation:
    """One run of one method in this process."""

    def __init__(self, assembly: Assembly, writer: Writer, listener: Listener | None = None) -> None:
        self.a, self.writer = assembly, writer
        self.listener = listener or Listener()
        self.config, self.method = assembly.config, assembly.method
        self.problem = assembly.known_problem()
        self.seed = self.config.seeds[2]
        self.scores = Scores(assembly)
        self.keeper = Keeper(assembly) if self.config.patience else None
        silent = frozenset(i for i, client in enumerate(assembly.federation.clients) if client.silent)
        self.attendance = Attendance(self.config.participation, self.problem.names, self.seed, silent)
        self.best: tuple[int, float] | None = None
        self.saved_at, self.save_cost = time.monotonic(), 0.0
        self.idle = 0.0
        """Seconds of this round in which other runs of the process had their turn."""
        self.beside = 1
        """Runs that share the time of this process."""
        self.gradients = 0
        """Mini-batch gradients that clients took in this round, all together."""
        self.held: dict[int, Memory] = {}
        """Memories as of the last upload that arrived, of clients whose latest upload was lost."""
        self.trained_from: dict[int, Memory] = {}
        """Memories before this round's training, of clients whose upload will be lost."""
        self.reason = assembly.reason
        """Why clients are stacked, or run one by one."""
        self.trouble: str | None = None
        """Of the execution, as it was told."""
        self.last = 0
        """The latest round."""
        self.withheld: tuple[str, ...] = ()
        """Clients that are handed no model."""
        self.untrained: Answers = {}
        """What needs no federation answered on the test samples."""
        self.upto: int | None = None
        """Rounds that are run whatever validation data say, and no more: as many as others of a comparison have."""
        self.exploded: Tensor | None = None
        """(m,) losses beyond which a client's training has exploded; looked at before the first."""
        self.room = Room(self.config.chunk, "as configured") if self.config.chunk else None
        """How many clients are trained at a time; None until the first training shows what one takes."""
        self.threads = capacity.threads(assembly)
        """CPU threads, and why."""
        self.peak = machine.Watermark(assembly.device)
        self.shelf = mapped_rows.shelf_for(self.config.weights, writer.path, assembly.device)

    # ---- a run ----

    def run(self, checkpoint: Checkpoint | None = None) -> None:
        """From the start, or from a checkpoint; ends with a summary on disk."""
        self.take_up(checkpoint)
        with machine.threads(self.threads[0]):
            rounds = self.rounds(checkpoint)
            request = advance(rounds)
            while request is not None:
                reply, request = [request.answer()], None  # no longer held: it has copies of rows
                request = advance(rounds, reply)

    def take_up(self, checkpoint: Checkpoint | None) -> None:
        """What a resumed run does not decide again, so that it goes on bit for bit."""
        if checkpoint is not None and (before := checkpoint.states.get("at_once")):
            self.reason = BEFORE
            if not self.config.chunk:
                self.room = Room(int(before.clients), BEFORE) if before.clients else None
            if not self.config.threads:
                self.threads = int(before.threads), BEFORE

    def rounds(self, checkpoint: Checkpoint | None = None) -> Requests[None]:
        """The run, told what each training came to."""
        everyone = list(range(len(self.problem)))
        if checkpoint is None:
            begin = self._moment(0)
            clients = torch.tensor(everyone, device=self.a.device)
            self.server = self._at_the_server(lambda: self.method.begin(self.problem, begin))
            self.memory = self._at_the_server(lambda: self._enlisted(self.problem, clients))
            first = 1 - self.method.uncounted
        else:
            self._restore(checkpoint)
            first = checkpoint.round + 1
        self.last = first - 1
        while not self._done(self.last):
            self.last += 1
            yield from self._round(self.last)
            done = self._done(self.last)
            self._save(self.last, last=done)
            if self.listener.stop():
                self._save(self.last, last=True)
                left = ", before its closing exchange" if done else ""
                raise Interrupted(
                    f"Stopped after round {self.last} of {self.config.rounds}{left}; everything is saved."
                )
        closing = yield from self._closing(self.last + 1)
        novel = (yield from self._newcomers()) if self.a.problem.known < len(self.a.problem) else None
        kept = tuple(name for name in closing if name in self.memory)
        came = Outcome(self.last, closing, kept, novel, self.peak.bytes(), self._how(), self.withheld, self.untrained)
        self.writer.summary(summarise(self.writer.path, self.a, came))

    def _done(self, round: int) -> bool:
        """Whether that was the last round: as many as were told, or validation data show no further gain."""
        if round >= (self.upto or self.config.rounds):
            return True
        if self.upto or not self.config.patience or round < self.config.patience:
            return False
        return exhausted(read_lines(self.writer.path / "rounds.jsonl"), self.config.patience)

    def _how(self) -> Execution:
        """How clients were run, for the summary: each choice with its reason."""
        at_once = self.room or Room(len(self.a.problem), "nobody has trained")
        return Execution(
            way=self.a.execution.name,
            reason=self.reason,
            precision=self.config.precision,
            weights=self.config.weights,
            trouble=self.a.execution.trouble,
            clients_at_once=min(at_once.clients, len(self.a.problem)),
            clients_at_once_reason=at_once.reason,
            threads=self.threads[0],
            threads_reason=self.threads[1],
        )

    def _round(self, round: int) -> Requests[None]:
        started, self.idle, self.gradients = time.perf_counter(), 0.0, 0
        peak = machine.Watermark(self.a.device)
        reached = self.attendance.reached(round)
        clients = self.attendance.sampled(reached, round)
        lost = {c for c in clients if self.attendance.loses(c, round)}
        xi = self.server.xi.clone() if "xi" in self.server else None
        mail = self._mail(reached, round)
        upload, loss, good = State(), None, list[bool]()
        if clients:
            upload, loss, good = yield from self._train(clients, mail, round, lost=lost)
        diverged = [c for c, fine in zip(clients, good, strict=True) if not fine]
        if round >= 1:
            scored = reached if self.config.participation.score == "all" else clients
            if self.scores.test:  # before the first scores there is nothing to carry forward
                scored = [c for c in scored if c not in diverged]
            self._score(scored, mail, round)
        bytes_down, bytes_up = mail.bytes, len(clients) * upload.bytes_per_client()
        del mail  # dead once `update` starts, and as large as all weights
        arrived = [i for i, c in enumerate(clients) if good[i] and not (upload and c in lost)]
        self._acknowledge(clients, arrived)
        if arrived and upload:
            numbers = torch.tensor([clients[i] for i in arrived], device=self.a.device)
            if len(arrived) < len(clients):
                with self._shelved():
                    upload = upload.take(torch.tensor(arrived, device=self.a.device))
            self._update(numbers, upload, round)
        if round >= 1:
            self._record(
                round,
                xi,
                seconds=time.perf_counter() - started - self.idle,
                bytes_down=bytes_down,
                bytes_up=bytes_up,
                participants=tuple(self.problem.names[c] for c in clients),
                train_loss=loss,
                diverged=tuple(self.problem.names[c] for c in diverged),
                peak_bytes=peak.bytes() if self.a.device.type == "cuda" else None,
            )

    # ---- the parts of a round ----

    def _enlisted(self, problem: Problem, clients: Tensor) -> Memory:
        memory = self.method.enlist(problem, clients, self._moment(0))
        if self.config.local.persist_optimiser:
            rows = problem.initial.expand(len(clients), -1)
            kept = Optimiser.fresh(self.config.local, rows, problem.layout.parameters)
            memory = memory.replace(**{f"optimiser.{n}": t for n, t in kept.items()})
        return memory

    def _mail(self, clients: list[int], round: int) -> Mail:
        message = self._download(self.problem, clients, round)
        return Mail(message, {client: row for row, client in enumerate(clients)}, self.a.device)

    def _download(self, problem: Problem, clients: list[int], round: int) -> Message:
        numbers = torch.tensor(clients, device=self.a.device)
        now = self._moment(round)
        message = self._at_the_server(lambda: self.method.download(problem, self.server, numbers, now))
        self._check_rows(message, len(clients), "download")
        return message

    def _update(self, clients: Tensor, upload: Upload, round: int) -> None:
        now = self._moment(round)
        self.server = self._at_the_server(lambda: self.method.update(self.problem, self.server, clients, upload, now))

    def _moment(self, round: int) -> Round:
        return Round(round, self.config.rounds, self.seed)

    def _shelved(self) -> AbstractContextManager[object]:
        """Inside, what is made of all clients' rows lies where they are kept."""
        return self.shelf or nullcontext()

    def _at_the_server(self, compute: Callable[[], State]) -> State:
        with self._shelved():
            state = within_memory(compute)
        if isinstance(state, RanOut):
            on_disk = "weights = 'disk', " if self.a.device.type == "cpu" and self.shelf is None else ""
            raise OutOfMemory(
                f"Memory ran out for the weights of all {len(self.problem)} clients ({state.said}). Take {on_disk}"
                f"fewer clients, a smaller model, a precision that needs less (now {self.config.precision!r}), or a "
                f"device with more memory (now {self.a.device.type!r})."
            )
        return state

    def _train(
        self, clients: list[int], mail: Mail, round: int, *, epochs: int = 1, lost: set[int] | None = None
    ) -> Requests[tuple[Upload, float | None, list[bool]]]:
        """Local training of these clients, as many at a time as memory allows; what is not finite is refused, and the
        memory stays. What clients remember changes as they come to an end, a chunk at a time.

        `epochs` multiplies the usual number (newcomers). Of clients whose upload will be lost, the memory that they
        trained from is kept.
        """
        self.trained_from = {}
        upload, losses, good = State(), list[Tensor](), list[bool]()
        while len(good) < len(clients):
            chunk = self._next(clients, len(good), mail, round)
            request = self._request(chunk, mail, round, epochs)
            reply = (yield request).pop()
            if isinstance(reply, RanOut):
                del request
                self._fewer(chunk, reply)
                continue
            sent, memory = reply[0], _with_optimiser(reply[1], request.cohort.carried)
            self._check_rows(sent, len(chunk), "train (upload)")
            self._check_rows(memory, len(chunk), "train (memory)")
            mean, count = request.cohort.mean_loss(), request.cohort.loss_count
            self.gradients += 0 if count is None else int(count.sum())
            loss = torch.zeros(len(chunk)) if mean is None else mean.cpu()
            finite = sent.finite(len(chunk)) & memory.finite(len(chunk)) & torch.isfinite(loss)
            fine = (finite & (loss <= self._bounds[chunk])).tolist()
            if len(chunk) == len(clients):
                upload = sent
            else:
                with self._shelved():
                    upload = upload or sent.room_for(len(clients))
                upload.put(slice(len(good), len(good) + len(chunk)), sent)
            self._remember(chunk, fine, memory, lost or set())
            losses.append(loss)
            good += fine
            del request, reply, sent, memory  # not to be held while the next ones train
        self._tell_trouble()
        for client, fine_one, loss in zip(clients, good, torch.cat(losses).tolist(), strict=True):
            if not fine_one:
                self._diverged(client, round, loss)
        kept = torch.cat(losses)[good]
        return upload, float(kept.mean()) if len(kept) else None, good

    def _request(self, clients: list[int], mail: Mail, round: int, epochs: int = 1) -> Request:
        """The training of these clients, on copies of what they got and of what they remember."""
        cohort = replace(self.a.cohort.take(clients), now=Round(round, self.config.rounds))
        if epochs > 1:
            more = {"epochs": cohort.local.epochs * epochs, "steps": cohort.local.steps * epochs}
            cohort.local = cohort.local.model_copy(update=more)
        memory = self.memory.take(torch.tensor(clients, device=self.a.device))
        for i, client in enumerate(clients):
            if client in self.held:  # its last upload was lost: it starts where the server left it
                memory.put(slice(i, i + 1), self.held[client])
        cohort.carried, own = _without_optimiser(memory)
        return Request(self.method, cohort, mail.to(clients), own, round, self.config.rounds)

    def _remember(self, clients: list[int], fine: list[bool], memory: Memory, lost: set[int]) -> None:
        """Lets clients remember what their training left them with, if that is finite."""
        for client in lost.intersection(clients) - self.held.keys():
            self.trained_from[client] = self.memory.take(torch.tensor([client], device=self.a.device))
        kept = [i for i, good in enumerate(fine) if good]
        if kept:
            numbers = torch.tensor([clients[i] for i in kept], device=self.a.device)
            own = memory if len(kept) == len(clients) else memory.take(torch.tensor(kept, device=self.a.device))
            self.memory.put(numbers, own)

    # ---- how many at a time ----

    def _next(self, clients: list[int], done: int, mail: Mail, round: int) -> list[int]:
        """The clients to train next, of those that are left."""
        left = clients[done:]
        if self.room is None and len(clients) > 1:
            self.room = self._room(clients, mail, round)
            if self.room.short and self.room.clients < len(clients):
                self.listener.on_warning(
                    f"{self.room.clients} of {len(clients)} clients train at a time: {self.room.reason}."
                )
        return left if self.room is None else self.room.first(left)

    def _room(self, clients: list[int], mail: Mail, round: int) -> Room:
        """How many of these train at a time, decided before the first training of a run."""
        if capacity.plenty(self.a, len(self.a.problem) * self.beside):  # all are scored, whoever trains
            return Room(len(self.a.problem), "memory is plenty")

        def one_step(count: int) -> Upload:
            request = self._request(clients[:count], mail, round)
            request.cohort.local = request.cohort.local.model_copy(update={"steps": 1})
            moment = Round(round, self.config.rounds)
            return request.method.train(request.cohort, request.message, request.memory, moment)[0]

        return capacity.measured(self.a, len(clients), one_step, self.beside)

    def _fewer(self, clients: list[int], reply: RanOut) -> None:
        """Half as many from here on; nothing has changed, so these train again from where they stood."""
        self.a.execution.forget()
        machine.tidy(self.a.device)
        if len(clients) == 1:
            raise OutOfMemory(
                f"Memory ran out while client {self.a.problem.names[clients[0]]!r} was alone in it ({reply.said}). "
                f"Take a smaller local.batch_size (now {self.config.local.batch_size}), a smaller model, a precision "
                f"that needs less (now {self.config.precision!r}), or a device with more memory (now "
                f"{self.a.device.type!r})."
            )
        self.room = capacity.half_of(len(clients))
        self.listener.on_warning(
            f"Memory ran out with {len(clients)} clients at a time; from here on there are {self.room.clients}."
        )

    def _tell_trouble(self) -> None:
        """Once: what the execution cannot do as fast as it might."""
        if self.trouble != self.a.execution.trouble:
            self.trouble = self.a.execution.trouble
            self.listener.on_warning(str(self.trouble))

    @property
    def _bounds(self) -> Tensor:
        if self.exploded is None:
            self.exploded = explosion.bounds(self.a)
        return self.exploded

    def _diverged(self, client: int, round: int, loss: float) -> None:
        name, began = self.a.problem.names[client], float(self._bounds[client]) / explosion.BEYOND
        why = "its loss or weights are not finite"
        if began * explosion.BEYOND < loss < math.inf:
            why = f"its loss is {loss:.3g}, where the untrained model has {began:.3g}"
        sentence = f"Round {round}: the training of client {name!r} diverged ({why})"
        if self.config.on_divergence == "stop":
            raise Diverged(
                f"{sentence}. The run stops, as configured; rounds before this one are kept. A smaller local.lr or "
                "local.clip = 1.0 usually helps."
            )
        self.listener.on_warning(f"{sentence}; its upload is left out and its last sound model stays.")

    def _acknowledge(self, clients: list[int], arrived: list[int]) -> None:
        """Remembers, for each client whose upload did not arrive, where the server believes it to be."""
        for i, client in enumerate(clients):
            if i in arrived:
                self.held.pop(client, None)
            elif client not in self.held:  # it was lost, or it diverged and remembers what it did before
                own = torch.tensor([client], device=self.a.device)
                self.held[client] = self.trained_from[client] if client in self.trained_from else self.memory.take(own)

    def _score(self, clients: list[int], mail: Mail, round: int, hand_out: HandOut | None = None) -> list[str]:
        """Scores every model the method owns, as many clients at a time as train together, and hands them out if that
        is due; returns the models' names."""
        names: list[str] = []
        left = clients
        while left:
            chunk = (self.room or capacity.reckoned(self.a)).first(left)
            models = within_memory(partial(self._scored, chunk, mail, round, hand_out))
            if isinstance(models, RanOut):
                self._fewer(chunk, models)
                continue
            names, left = models, left[len(chunk) :]
        return names

    def _scored(self, clients: list[int], mail: Mail, round: int, hand_out: HandOut | None) -> list[str]:
        models = self._models(clients, mail, round)
        if hand_out is None or hand_out.scores is self.scores:
            self.scores.add(clients, models)
            if self.keeper is not None and clients[-1] < self.a.problem.known:
                self.keeper.add(clients, models)
        elif self.keeper is not None:  # what was chosen, which is not what it is now
            models = self.keeper.of(clients, models)
            hand_out.scores.add(clients, models)
        if hand_out is not None:
            hand_out.add(clients, models)
        return list(models)

    def _models(self, clients: list[int], mail: Mail, round: int) -> dict[str, Model]:
        """Every model the method owns, of these clients."""
        own = _without_optimiser(self.memory.take(torch.tensor(clients, device=self.a.device)))[1]
        moment = Round(round, self.config.rounds)
        cohort = replace(self.a.cohort.take(clients), now=moment)
        models = self.method.models(cohort, mail.to(clients), own, moment)
        for name, model in models.items():
            self._check_model(name, model, len(clients))
        return models

    # ---- what is written ----

    def _record(self, round: int, xi: Tensor | None, **facts: Any) -> None:
        self.scores.fill(len(self.problem))
        scored = self.scores.table(0, len(self.problem))
        record = Line(round=round, gradients=self.gradients, **facts, models=scored)
        self.writer.line(record)
        kept = None if self.keeper is None else self.keeper.settle(record)
        held = record.models[self.method.headline].validation
        score = None if held is None else held.mean
        better = score is not None and (self.best is None or (score - self.best[1]) * self.scores.direction > 0)
        better = better if kept is None else self.method.headline in kept
        if xi is not None:
            self._keep_xi(round, xi, better)
        if better and score is not None:
            self.best = (round, score)
        self.listener.on_round(record)

    def _keep_xi(self, round: int, xi: Tensor, better: bool) -> None:
        """Every round of so many clients, every tenth beyond; the last always, and the one that validation data would
        choose in its place so far."""
        every = 1 if len(self.problem) <= MOST_XI else 10
        if round % every == 0 or better or round > self.last:
            self.writer.collaboration(round, xi)
        if better and self.best and self.best[0] % every:
            self.writer.forget_collaboration(self.best[0])

    def _closing(self, round: int) -> Requests[list[str]]:
        """A download after the last round: scores the final aggregate and saves the model each client should use;
        returns the models' names. What clients fine-tune is of this download where it is not of the last round's."""
        started, self.idle, self.gradients = time.perf_counter(), 0.0, 0
        everyone = list(range(len(self.problem)))
        mail = self._mail(everyone, round)
        behind, loss, good = list[int](), None, list[bool]()
        lines = read_lines(self.writer.path / "rounds.jsonl")
        self.scores.ahead = self.scores.look_back(lines)
        if self.method.remembers == "finetuned":
            behind = self.attendance.behind(lines[-1])
        if behind:
            _, loss, good = yield from self._train(behind, mail, round)
        chosen = self.scores if self.keeper is None else Scores(self.a, ahead=self.scores.ahead)
        hand_out = HandOut(chosen, self.writer, self._bounds)
        names = self._score(everyone, mail, round, hand_out if self.keeper is None else None)
        self._record(
            round,
            self.server.xi if "xi" in self.server else None,
            seconds=time.perf_counter() - started - self.idle - hand_out.seconds,
            bytes_down=mail.bytes,
            participants=tuple(self.problem.names[c] for c in behind),
            train_loss=loss,
            diverged=tuple(self.problem.names[c] for c, fine in zip(behind, good, strict=True) if not fine),
            final=True,
        )
        if self.keeper is not None:
            self._score(everyone, mail, round, hand_out)
        hand_out.end()
        self.untrained = hand_out.beside
        self._withhold(hand_out)
        return names

    def _withhold(self, hand_out: HandOut) -> None:
        """Tells who is handed no model."""
        for client in hand_out.withheld:
            name = self.a.problem.names[client]
            self.withheld += (name,)
            self.listener.on_warning(f"Client {name!r} is handed no model: all that {self.config.method} has exploded.")

    # ---- newcomers ----

    def _newcomers(self) -> Requests[Novel]:
        """Newcomers find their place: `newcomer_rounds` exchanges with the server, then a closing one in which they
        download and train. Known clients keep the weights they had. All methods give newcomers the same
        number of local epochs in all."""
        known = self.a.problem.known
        self.problem = self.a.problem
        newcomers = list(range(known, len(self.problem)))
        numbers = torch.tensor(newcomers, device=self.a.device)
        begin = self._moment(0)  # what is drawn for a newcomer is what it would have had from the beginning
        self.server = self._at_the_server(lambda: self.method.welcome(self.problem, self.server, begin))
        self.memory = self._at_the_server(lambda: State.join([self.memory, self._enlisted(self.problem, numbers)]))
        first = self.last + 2
        exchanges = min(self.method.newcomer_rounds, self.config.participation.novel_exchanges)
        for round in range(first, first + exchanges):
            mail = self._mail(newcomers, round)
            upload, _, good = yield from self._train(newcomers, mail, round)
            arrived = torch.tensor([i for i, g in enumerate(good) if g], dtype=torch.int64, device=self.a.device)
            if len(arrived):
                self._score([newcomers[i] for i in arrived.tolist()], mail, round)
                with self._shelved():
                    upload = upload.take(arrived)
                self._update(numbers[arrived], upload, round)
            self._record_novel(round, known)
        last = first + exchanges
        mail = self._mail(newcomers, last)
        epochs = 1 + self.config.participation.novel_exchanges - exchanges
        yield from self._train(newcomers, mail, last, epochs=epochs)
        hand_out = HandOut(self.scores, self.writer, self._bounds)
        self._score(newcomers, mail, last, hand_out)
        self._withhold(hand_out)
        record = self._record_novel(last, known)
        return Novel(clients=self.problem.names[known:], models=record.models)

    def _record_novel(self, round: int, known: int) -> Line:
        record = Line(round=round, novel=True, models=self.scores.table(known, len(self.problem)))
        self.writer.line(record)
        return record

    # ---- checkpoints ----

    def _save(self, round: int, last: bool) -> None:
        """Every round, or at least every minute where that would cost more than a tenth of the time."""
        since = time.monotonic() - self.saved_at
        if round < 0 or (not last and since < min(60.0, 9 * self.save_cost * self.beside)):
            return
        started = time.monotonic()
        self.checkpoint(round).save(self.writer.checkpoint, self.config)
        self.saved_at = time.monotonic()
        self.save_cost = self.saved_at - started

    def checkpoint(self, round: int) -> Checkpoint:
        held = State()
        if self.held:
            rows = State.join(list(self.held.values()))
            held = rows.replace(**{"held.clients": torch.tensor(list(self.held))})
        best = State()
        if self.best:
            best = State({"best": torch.tensor(self.best, dtype=torch.float64)})
        at_once = self.room.clients if self.room else 0
        states = {
            "server": self.server,
            "memory": self.memory,
            "held": held,
            "test": State(**self.scores.test),
            "validation": State(**self.scores.validation),
            "losses": State(**self.scores.losses),
            "kept": self.keeper.state() if self.keeper is not None else State(),
            "best": best,
            "at_once": State({"clients": torch.tensor(at_once), "threads": torch.tensor(self.threads[0])}),
        }
        return Checkpoint(round, states)

    def _restore(self, checkpoint: Checkpoint) -> None:
        states = checkpoint.states
        self.server, self.memory = self._kept(states["server"]), self._kept(states["memory"])
        for book in ("test", "validation", "losses"):
            setattr(self.scores, book, dict(states[book].items()))
        if self.keeper is not None:
            self.keeper.restore(states["kept"])
        held = states["held"]
        if held:
            rows = State(**{n: t for n, t in held.items() if n != "held.clients"}).to(self.a.device)
            for i, client in enumerate(dict(held.items())["held.clients"].tolist()):
                self.held[client] = rows.take(torch.tensor([i], device=self.a.device))
        if states["best"]:
            at, score = states["best"].best.tolist()
            self.best = (int(at), score)

    def _kept(self, state: State) -> State:
        """A copy of what lies in a checkpoint: where a tensor begins in a file, torch may round its numbers otherwise
        than where it was made."""
        return self.shelf.keep(state) if self.shelf is not None else state.to(self.a.device, copy=True)

    # ---- a method's contract ----

    def _check_rows(self, state: State, count: int, where: str) -> None:
        for name, tensor in state.items():
            if name not in state.shared and (tensor.ndim == 0 or len(tensor) != count):
                raise MethodError(
                    f"Method {self.config.method!r}, {where}: tensor {name!r} has shape {tuple(tensor.shape)}; "
                    f"its first dimension should be the {count} clients."
                )

    def _check_model(self, name: str, model: Model, count: int) -> None:
        size = self.problem.layout.size
        if isinstance(model, Tensor) and tuple(model.shape) != (count, size):
            raise MethodError(
                f"Method {self.config.method!r}: model {name!r} has shape {tuple(model.shape)}; it should be "
                f"({count}, {size}): a row of weights for each client."
            )


def _without_optimiser(memory: Memory) -> tuple[State | None, Memory]:
    """The optimiser's state that a client carries from round to round, and what the method itself remembers."""
    own = {n: t for n, t in memory.items() if not n.startswith("optimiser.")}
    kept = {n.removeprefix("optimiser."): t for n, t in memory.items() if n.startswith("optimiser.")}
    return (State(**kept) if kept else None), State(**own)


def _with_optimiser(memory: Memory, kept: State | None) -> Memory:
    return memory.replace(**{f"optimiser.{n}": t for n, t in kept.items()}) if kept is not None else memory
