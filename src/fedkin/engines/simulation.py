"""Rounds in one process: download, train, score, update; with dropped clients, lost uploads and newcomers."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from .. import machine, streams
from ..assembly import Assembly
from ..cohort import Cohort, Model, Predictor
from ..errors import FedkinError
from ..federation import Problem
from ..method import Method
from ..optimisers import Optimiser
from ..runs import Checkpoint, Writer
from ..state import Memory, Message, State, Upload
from ..summary import summarise
from .participation import Attendance
from .scores import Scores

SMALL = 1 << 21
"""Weights of all clients together up to which one CPU thread is faster than two (measured: the digits' MLP)."""


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
    on_round: Callable[[dict[str, Any]], None] = lambda record: None
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

    def answer(self) -> Reply:
        return self.method.train(self.cohort, self.message, self.memory, self.round)


Reply = tuple[Upload, Memory]
T = TypeVar("T")
Requests = Generator[Request, Reply, T]
"""What trains: it yields requests, is sent their replies, and returns a T. Who answers may answer several at once."""


def advance(rounds: Requests[None], reply: Reply | None = None) -> Request | None:
    """The next training that is asked for, after the reply to the last one; None when the run has ended."""
    try:
        return next(rounds) if reply is None else rounds.send(reply)
    except StopIteration:
        return None


class Simulation:
    """One run of one method in this process."""

    def __init__(self, assembly: Assembly, writer: Writer, listener: Listener | None = None) -> None:
        self.a, self.writer = assembly, writer
        self.listener = listener or Listener()
        self.config, self.method = assembly.config, assembly.method
        self.problem = assembly.known_problem()
        self.seed = self.config.seeds[2]
        self.scores = Scores(assembly)
        silent = frozenset(i for i, client in enumerate(assembly.federation.clients) if client.silent)
        self.attendance = Attendance(self.config.participation, self.problem.names, self.seed, silent)
        self.best: tuple[int, float] | None = None
        self.saved_at, self.save_cost = time.monotonic(), 0.0
        self.idle = 0.0
        """Seconds of this round in which other runs of the process had their turn."""
        self.beside = 1
        """Runs that share the time of this process."""
        self.held: dict[int, Memory] = {}
        """Memories as of the last upload that arrived, of clients whose latest upload was lost."""

    # ---- a run ----

    def run(self, checkpoint: Checkpoint | None = None) -> None:
        """From the start, or from a checkpoint; ends with a summary on disk."""
        with machine.threads(self.threads):
            rounds = self.rounds(checkpoint)
            request = advance(rounds)
            while request is not None:
                request = advance(rounds, request.answer())

    @property
    def threads(self) -> int:
        return self.config.threads or self._threads_that_pay()

    def _threads_that_pay(self) -> int:
        """One for small models: sharing them among threads costs more than it brings, on a busy machine far more."""
        numbers = len(self.problem) * self.problem.layout.size
        return 1 if numbers < SMALL else torch.get_num_threads()

    def rounds(self, checkpoint: Checkpoint | None = None) -> Requests[None]:
        """The run, told what each training came to."""
        everyone = list(range(len(self.problem)))
        if checkpoint is None:
            begin = streams.rng(self.seed, 0)
            self.server = self.method.begin(self.problem, begin)
            self.memory = self._enlisted(self.problem, torch.tensor(everyone, device=self.a.device))
            first = 1 - self.method.uncounted
        else:
            self._restore(checkpoint)
            first = checkpoint.round + 1
        for round in range(first, self.config.rounds + 1):
            yield from self._round(round)
            self._save(round, last=round == self.config.rounds)
            if self.listener.stop():
                self._save(round, last=True)
                raise Interrupted(f"Stopped after round {round} of {self.config.rounds}; everything is saved.")
        closing = self._closing(self.config.rounds + 1)
        novel = (yield from self._newcomers()) if self.a.problem.known < len(self.a.problem) else None
        self.writer.summary(summarise(self.writer.path, self.a, closing, novel, machine.peak_bytes(self.a.device)))

    def _round(self, round: int) -> Requests[None]:
        started, self.idle = time.perf_counter(), 0.0
        reached = self.attendance.reached(round)
        clients = self.attendance.sampled(reached, round)
        rng = streams.rng(self.seed, round)
        xi = self.server.xi.clone() if "xi" in self.server else None
        message = self._download(self.problem, reached, round)
        upload, loss, good = State(), None, list[bool]()
        if clients:
            upload, loss, good = yield from self._train(clients, message.take(_places(clients, reached)), round)
        diverged = [c for c, fine in zip(clients, good, strict=True) if not fine]
        if round >= 1:
            scored = reached if self.config.participation.score == "all" else clients
            if self.scores.test:  # before the first scores there is nothing to carry forward
                scored = [c for c in scored if c not in diverged]
            self._score(scored, message.take(_places(scored, reached)), round)
        arrived = [i for i, c in enumerate(clients) if good[i] and not (upload and self.attendance.loses(c, round))]
        self._acknowledge(clients, arrived)
        if arrived and upload:
            chosen = torch.tensor(arrived, device=self.a.device)
            numbers = torch.tensor(clients, device=self.a.device)[chosen]
            self.server = self.method.update(self.problem, self.server, numbers, upload.take(chosen), round, rng)
        if round >= 1:
            self._record(
                round,
                xi,
                seconds=time.perf_counter() - started - self.idle,
                bytes_down=len(reached) * message.bytes_per_client(),
                bytes_up=len(clients) * upload.bytes_per_client(),
                participants=[self.problem.names[c] for c in clients],
                train_loss=loss,
                diverged=[self.problem.names[c] for c in diverged],
            )

    # ---- the parts of a round ----

    def _enlisted(self, problem: Problem, clients: Tensor) -> Memory:
        memory = self.method.enlist(problem, clients, streams.rng(self.seed, 0))
        if self.config.local.persist_optimiser:
            rows = problem.initial.expand(len(clients), -1)
            kept = Optimiser.fresh(self.config.local, rows, problem.layout.parameters)
            memory = memory.replace(**{f"optimiser.{n}": t for n, t in kept.items()})
        return memory

    def _download(self, problem: Problem, clients: list[int], round: int) -> Message:
        numbers = torch.tensor(clients, device=self.a.device)
        message = self.method.download(problem, self.server, numbers, round, streams.rng(self.seed, round))
        self._check_rows(message, len(clients), "download")
        return message

    def _train(
        self, clients: list[int], message: Message, round: int, epochs: int = 1
    ) -> Requests[tuple[Upload, float | None, list[bool]]]:
        """Local training of these clients, in chunks; what is not finite is refused, and the memory stays.

        `epochs` multiplies the usual number (newcomers).
        """
        parts: list[tuple[Upload, Memory]] = []
        losses = []
        before = self.memory.take(torch.tensor(clients, device=self.a.device))
        for i, client in enumerate(clients):
            if client in self.held:  # its last upload was lost: it starts where the server left it
                before.put(torch.tensor([i], device=self.a.device), self.held[client])
        for chunk in self._chunks(range(len(clients))):
            places = torch.tensor(chunk, device=self.a.device)
            cohort = self.a.cohort.take([clients[i] for i in chunk])
            if epochs > 1:
                more = {"epochs": cohort.local.epochs * epochs, "steps": cohort.local.steps * epochs}
                cohort.local = cohort.local.model_copy(update=more)
            cohort.carried, own = _without_optimiser(before.take(places))
            part = message.take(places).for_clients(len(chunk))
            upload, memory = yield Request(self.method, cohort, part, own, round)
            memory = _with_optimiser(memory, cohort.carried)
            self._check_rows(upload, len(chunk), "train (upload)")
            self._check_rows(memory, len(chunk), "train (memory)")
            parts.append((upload, memory))
            loss = cohort.mean_loss()
            losses.append(torch.zeros(len(chunk)) if loss is None else loss.cpu())
        upload, memory = State.join([p[0] for p in parts]), State.join([p[1] for p in parts])
        loss_of = torch.cat(losses)
        good = (upload.finite(len(clients)) & memory.finite(len(clients)) & torch.isfinite(loss_of)).tolist()
        for client, fine in zip(clients, good, strict=True):
            if not fine:
                self._diverged(client, round)
        self.trained_from = before
        kept = [i for i, g in enumerate(good) if g]
        if not kept:
            return upload, None, good
        self.memory.put(torch.tensor([clients[i] for i in kept], device=self.a.device), memory.take(torch.tensor(kept)))
        return upload, float(loss_of[kept].mean()), good

    def _diverged(self, client: int, round: int) -> None:
        name = self.a.problem.names[client]
        sentence = f"Round {round}: the training of client {name!r} diverged (its loss or weights are not finite)"
        if self.config.on_divergence == "stop":
            raise Diverged(
                f"{sentence}. The run stops, as configured; rounds before this one are kept. A smaller local.lr or "
                "local.clip = 1.0 usually helps."
            )
        self.listener.on_warning(f"{sentence}; its upload is left out and its last finite model stays.")

    def _acknowledge(self, clients: list[int], arrived: list[int]) -> None:
        """Remembers, for each client whose upload did not arrive, where the server believes it to be."""
        for i, client in enumerate(clients):
            if i in arrived:
                self.held.pop(client, None)
            elif client not in self.held:
                self.held[client] = self.trained_from.take(torch.tensor([i], device=self.a.device))

    def _score(self, clients: list[int], message: Message, round: int) -> dict[str, Model]:
        """Scores every model the method owns; returns the models of these clients."""
        parts: list[dict[str, Model]] = []
        for chunk in self._chunks(range(len(clients))):
            numbers = [clients[i] for i in chunk]
            own = _without_optimiser(self.memory.take(torch.tensor(numbers, device=self.a.device)))[1]
            part = message.take(torch.tensor(chunk, device=self.a.device)).for_clients(len(chunk))
            models = self.method.models(self.a.cohort.take(numbers), part, own, round)
            for name, model in models.items():
                self._check_model(name, model, len(chunk))
                self.scores.add(name, numbers, model)
            parts.append(models)
        return _joined(parts)

    def _chunks(self, numbers: Sequence[int]) -> Iterator[list[int]]:
        size = self.config.chunk or self._clients_at_once()
        for at in range(0, len(numbers), size):
            yield list(numbers[at : at + size])

    def _clients_at_once(self) -> int:
        """As many clients as training needs half of the free memory for: about twelve rows of weights each."""
        row = 12 * self.problem.layout.size * self.problem.initial.element_size()
        return max(1, machine.free_bytes(self.a.device) // 2 // max(1, row))

    # ---- what is written ----

    def _record(self, round: int, xi: Tensor | None, **facts: Any) -> dict[str, Any]:
        self.scores.fill(len(self.problem))
        record: dict[str, Any] = {"round": round, **facts, "models": self.scores.table(0, len(self.problem))}
        self.writer.line(record)
        score = record["models"][self.method.headline]["mean"]
        better = self.best is None or (score - self.best[1]) * self.scores.direction > 0
        if xi is not None:
            self._keep_xi(round, xi, better)
        if better:
            self.best = (round, score)
        self.listener.on_round(record)
        return record

    def _keep_xi(self, round: int, xi: Tensor, better: bool) -> None:
        """Every round for up to 200 clients, every tenth beyond; the best and the last always."""
        every = 1 if len(self.problem) <= 200 else 10
        if round % every == 0 or better or round > self.config.rounds:
            self.writer.collaboration(round, xi)
        if better and self.best and self.best[0] % every:
            self.writer.forget_collaboration(self.best[0])

    def _closing(self, round: int) -> dict[str, Model]:
        """A download without training: scores the final aggregate and saves the model each client should use."""
        started = time.perf_counter()
        everyone = list(range(len(self.problem)))
        message = self._download(self.problem, everyone, round)
        models = self._score(everyone, message, round)
        xi = self.server.xi if "xi" in self.server else None
        facts = {"bytes_down": len(everyone) * message.bytes_per_client(), "bytes_up": 0, "participants": []}
        self._record(
            round, xi, seconds=time.perf_counter() - started, **facts, train_loss=None, diverged=[], final=True
        )
        self.scores.hand_out(self.writer, everyone, models)
        return models

    # ---- newcomers ----

    def _newcomers(self) -> Requests[dict[str, Any]]:
        """Newcomers find their place: `newcomer_rounds` exchanges with the server, then a closing one in which they
        download and train. Known clients keep the weights they had. All methods give newcomers the same
        number of local epochs in all."""
        known = self.a.problem.known
        self.problem = self.a.problem
        newcomers = list(range(known, len(self.problem)))
        numbers = torch.tensor(newcomers, device=self.a.device)
        begin = streams.rng(self.seed, 0)  # what is drawn for a newcomer is what it would have had from the beginning
        self.server = self.method.welcome(self.problem, self.server, begin)
        own = self._enlisted(self.problem, numbers)
        self.memory = State.join([self.memory, own])
        first = self.config.rounds + 2
        exchanges = min(self.method.newcomer_rounds, self.config.participation.novel_exchanges)
        for round in range(first, first + exchanges):
            message = self._download(self.problem, newcomers, round)
            upload, _, good = yield from self._train(newcomers, message, round)
            arrived = torch.tensor([i for i, g in enumerate(good) if g], dtype=torch.int64, device=self.a.device)
            if len(arrived):
                self._score([newcomers[i] for i in arrived.tolist()], message.take(arrived), round)
                rng = streams.rng(self.seed, round)
                self.server = self.method.update(
                    self.problem, self.server, numbers[arrived], upload.take(arrived), round, rng
                )
            self._record_novel(round, known)
        last = first + exchanges
        message = self._download(self.problem, newcomers, last)
        epochs = 1 + self.config.participation.novel_exchanges - exchanges
        yield from self._train(newcomers, message, last, epochs)
        models = self._score(newcomers, message, last)
        record = self._record_novel(last, known)
        self.scores.hand_out(self.writer, newcomers, models)
        return {"clients": list(self.problem.names[known:]), "models": record["models"]}

    def _record_novel(self, round: int, known: int) -> dict[str, Any]:
        record = {"round": round, "novel": True, "models": self.scores.table(known, len(self.problem))}
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
        states = {
            "server": self.server,
            "memory": self.memory,
            "held": held,
            "test": State(**self.scores.test),
            "validation": State(**self.scores.validation),
            "best": best,
        }
        return Checkpoint(round, states)

    def _restore(self, checkpoint: Checkpoint) -> None:
        states = checkpoint.states
        self.server, self.memory = states["server"].to(self.a.device), states["memory"].to(self.a.device)
        self.scores.test, self.scores.validation = dict(states["test"].items()), dict(states["validation"].items())
        held = states["held"]
        if held:
            rows = State(**{n: t for n, t in held.items() if n != "held.clients"}).to(self.a.device)
            for i, client in enumerate(dict(held.items())["held.clients"].tolist()):
                self.held[client] = rows.take(torch.tensor([i], device=self.a.device))
        if states["best"]:
            at, score = states["best"].best.tolist()
            self.best = (int(at), score)

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


def _places(clients: list[int], among: list[int]) -> Tensor:
    at = {c: i for i, c in enumerate(among)}
    return torch.tensor([at[c] for c in clients], dtype=torch.int64)


def _joined(parts: list[dict[str, Model]]) -> dict[str, Model]:
    if not parts:
        return {}
    joined: dict[str, Model] = {}
    for name, first in parts[0].items():
        if isinstance(first, Predictor):
            joined[name] = replace(first, rows=State.join([p[name].rows for p in parts]))  # type: ignore[union-attr]
        else:
            joined[name] = torch.cat([p[name] for p in parts]) if len(parts) > 1 else first  # type: ignore[misc]
    return joined


def _without_optimiser(memory: Memory) -> tuple[State | None, Memory]:
    """The optimiser's state that a client carries from round to round, and what the method itself remembers."""
    own = {n: t for n, t in memory.items() if not n.startswith("optimiser.")}
    kept = {n.removeprefix("optimiser."): t for n, t in memory.items() if n.startswith("optimiser.")}
    return (State(**kept) if kept else None), State(**own)


def _with_optimiser(memory: Memory, kept: State | None) -> Memory:
    return memory.replace(**{f"optimiser.{n}": t for n, t in kept.items()}) if kept is not None else memory
