"""The server: who takes part, what is sent, what arrived and what becomes of it. It sees no data.

It knows sites through what passes (`exchange`): it yields parcels, is sent replies, and has news of what became of
them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..base import machine, mapped_rows
from ..base.round import Round
from ..base.state import Message, State, Upload
from ..evidence.progress import exhausted
from ..evidence.records import Line, ModelScores, Novel
from ..methods._method import Method
from ..methods._problem import Problem
from ..runs.config import Config
from ..runs.folder import read_lines
from . import capacity, explosion
from .contract import check_rows
from .exchange import Hello, News, Parcel, Reply
from .keeping import Chooser
from .participation import Attendance
from .recorder import Recorder
from .scores import Scores


class Diverged(RuntimeError):
    """A client's training is no longer finite, and the run was told to stop then."""


@dataclass(frozen=True)
class Ended:
    """A moment between rounds: the number of the one that has ended, and whether it was the last."""

    round: int
    last: bool


Exchanges = Generator[Parcel | News | Ended, Reply | None, None]
"""A run as the server sees it: a parcel is answered by a reply; news and what has ended are only told."""


class Server:
    """A run of one method at the server."""

    def __init__(
        self,
        config: Config,
        method: Method,
        problem: Problem,
        known: Problem,
        silent: frozenset[int],
        recorder: Recorder,
        tell: Callable[[str], None] = lambda sentence: None,
        on_round: Callable[[Line], None] = lambda line: None,
        shelf: mapped_rows.Shelf | None = None,
    ) -> None:
        self.config, self.method, self.whole, self.problem = config, method, problem, known
        self.recorder, self.tell, self.on_round, self.shelf = recorder, tell, on_round, shelf
        self.seed, self.device = config.seeds[2], problem.initial.device
        self.attendance = Attendance(config.participation, known.names, self.seed, silent)
        self.state: State = State()
        self.held: dict[int, int] = {}
        """Of each client the round of its last upload that is held here."""
        self.chooser = Chooser(problem.task.metric.higher_is_better) if config.patience else None
        self.last = 0
        """The latest round."""
        self.upto: int | None = None
        """Rounds that are run whatever validation data say, and no more: as many as others of a comparison have."""
        self.idle = 0.0
        """Seconds of this round in which other runs of the process had their turn."""
        self.models: list[str] = []
        """Their names, as the closing exchange has them."""
        self.withheld: tuple[str, ...] = ()
        """Clients that are handed no model."""
        self.untrained: dict[str, tuple[float, ...]] = {}
        """What needs no federation scores at each known client, by name."""
        self.novel: Novel | None = None
        self.ahead: dict[str, float] = {}
        """By how much each model is ahead of the headline over all clients: what is known when the last are sent."""

    def meet(self, hello: Hello) -> None:
        """Every client says what has to be known of it."""
        self.scores = Scores(self.whole, hello.validation)
        self.telling, self.initial = hello.telling, hello.initial
        self.bounds = explosion.bounds(hello.losses)
        """(m,) losses beyond which a client's training has exploded."""

    def begin(self) -> None:
        self.state = self._for_all(lambda: self.method.begin(self.problem, self._round(0)))
        self.last = -self.method.uncounted

    # ---- a run ----

    def exchanges(self) -> Exchanges:
        """Round by round to the end, the closing exchange, and newcomers."""
        while not self.done(self.last):
            self.last += 1
            yield from self._exchange(self.last)
            yield Ended(self.last, self.done(self.last))
        yield from self._closing(self.last + 1)
        if self.whole.known < len(self.whole):
            yield from self._newcomers()

    def done(self, round: int) -> bool:
        """Whether that was the last round: as many as were told, or validation data show no further gain."""
        if round >= (self.upto or self.config.rounds):
            return True
        if self.upto or not self.config.patience or round < self.config.patience:
            return False
        return exhausted(read_lines(self.recorder.writer.path / "rounds.jsonl"), self.config.patience)

    def _exchange(self, round: int) -> Exchanges:
        started, self.idle = time.perf_counter(), 0.0
        peak = machine.Watermark(self.device)
        reached = self.attendance.reached(round)
        clients = self.attendance.sampled(reached, round)
        xi = self.state.xi.clone() if "xi" in self.state else None
        scored = reached if self.config.participation.score == "all" else clients
        # Before the first scores there is nothing to carry forward: then who diverged is scored, too.
        parcel = self._parcel(round, reached, clients, scored if round >= 1 else [], spare=bool(self.scores.test))
        reply = yield from _answered(parcel)
        bytes_down, bytes_up = parcel.bytes, len(clients) * reply.upload.bytes_per_client()
        del parcel  # dead once `update` starts, and as large as all weights
        loss, diverged = self._looked_at(reply, round)
        arrived = [i for i, c in enumerate(clients) if reply.good[i] and not self._loses(c, reply.upload, round)]
        self.held |= {clients[i]: round for i in arrived}
        self.scores.add(reply.scored, reply.found)
        gradients, passes = reply.gradients, reply.passes
        self._update(clients, arrived, reply, round)
        del reply
        keep = set[str]()
        if round >= 1:
            keep = self._record(
                Line(
                    round=round,
                    seconds=time.perf_counter() - started - self.idle,
                    bytes_down=bytes_down,
                    bytes_up=bytes_up,
                    participants=self._names(clients),
                    train_loss=loss,
                    diverged=self._names(diverged),
                    gradients=gradients,
                    passes=passes,
                    peak_bytes=peak.bytes() if self.device.type == "cuda" else None,
                    models=self._table(),
                ),
                xi,
            )
        yield News(dict(self.held), tuple(sorted(keep)))

    def _loses(self, client: int, upload: Upload, round: int) -> bool:
        return bool(upload) and self.attendance.loses(client, round)

    def _closing(self, round: int) -> Exchanges:
        """A download after the last round: scores the final aggregate, and each client is handed the model it should
        use. What clients fine-tune is of this download where it is not of the last round's."""
        started, self.idle = time.perf_counter(), 0.0
        everyone = list(range(len(self.problem)))
        lines = read_lines(self.recorder.writer.path / "rounds.jsonl")
        self.ahead = self.scores.look_back(lines, self.method.headline, self.config.patience, self.telling)
        behind = self.attendance.behind(lines[-1]) if self.method.remembers == "finetuned" else []
        parcel = self._parcel(round, everyone, behind, everyone, sent=False, save=self.chooser is None, spare=False)
        reply = yield from _answered(parcel)
        loss, diverged = self._looked_at(reply, round)
        self.scores.add(reply.scored, reply.found)
        self.models = list(reply.found["test"])
        keep = self._record(
            Line(
                round=round,
                seconds=time.perf_counter() - started - self.idle - reply.aside,
                bytes_down=parcel.bytes,
                participants=self._names(behind),
                train_loss=loss,
                diverged=self._names(diverged),
                gradients=reply.gradients,
                passes=reply.passes,
                final=True,
                models=self._table(),
            ),
            self.state.xi if "xi" in self.state else None,
        )
        if self.chooser is not None:  # what is handed out is known only now
            yield News(dict(self.held), tuple(sorted(keep)))
            reply = yield from _answered(replace(parcel, train=[], save=True, chosen=True))
        if reply.handed is not None:
            self._handed(reply)

    def _handed(self, reply: Reply) -> None:
        assert reply.handed is not None
        for name in self._names(reply.handed.withheld):
            self.withheld += (name,)
            self.tell(f"Client {name!r} is handed no model: all that {self.config.method} has exploded.")
        self.untrained |= reply.handed.untrained

    # ---- newcomers ----

    def _newcomers(self) -> Exchanges:
        """Newcomers find their place: `newcomer_rounds` exchanges with the server, then a closing one in which they
        download and train. Known clients keep the weights they had. All methods give newcomers the same
        number of local epochs in all."""
        known = self.whole.known
        self.problem = self.whole
        newcomers = list(range(known, len(self.problem)))
        # What is drawn for a newcomer is what it would have had from the beginning.
        self.state = self._for_all(lambda: self.method.welcome(self.problem, self.state, self._round(0)))
        first = self.last + 2
        exchanges = min(self.method.newcomer_rounds, self.config.participation.novel_exchanges)
        for round in range(first, first + exchanges):
            parcel = self._parcel(round, newcomers, newcomers, newcomers, spare=True)
            reply = yield from _answered(parcel)
            del parcel
            self._looked_at(reply, round)
            arrived = [i for i, good in enumerate(reply.good) if good]
            self.scores.add(reply.scored, reply.found)
            self.held |= {newcomers[i]: round for i in arrived}
            self._update(newcomers, arrived, reply, round)
            self._record_novel(round)
            yield News(dict(self.held))
        last = first + exchanges
        epochs = 1 + self.config.participation.novel_exchanges - exchanges
        reply = yield from _answered(
            self._parcel(last, newcomers, newcomers, newcomers, sent=False, epochs=epochs, save=True, spare=False)
        )
        self._looked_at(reply, last)
        self.scores.add(reply.scored, reply.found)
        self._handed(reply)
        record = self._record_novel(last)
        self.novel = Novel(clients=self.problem.names[known:], models=record.models)

    def _record_novel(self, round: int) -> Line:
        record = Line(round=round, novel=True, models=self.scores.table(self.whole.known, len(self.whole)))
        self.recorder.writer.line(record)
        return record

    # ---- the parts of an exchange ----

    def _round(self, number: int) -> Round:
        return Round(number, self.config.rounds, self.seed)

    def _parcel(
        self,
        round: int,
        clients: list[int],
        train: list[int],
        score: list[int],
        *,
        spare: bool,
        sent: bool = True,
        epochs: int = 1,
        save: bool = False,
    ) -> Parcel:
        numbers = torch.tensor(clients, device=self.device)
        message: Message = self._for_all(
            lambda: self.method.download(self.problem, self.state, numbers, self._round(round))
        )
        check_rows(self.config.method, message, len(clients), "download")
        bounds = tuple(self.bounds[clients].tolist())
        now = Round(round, self.config.rounds)
        return Parcel(now, message, clients, train, score, epochs, sent, spare, bounds, save, ahead=self.ahead)

    def _looked_at(self, reply: Reply, round: int) -> tuple[float | None, list[int]]:
        """The mean training loss of those whose training came to a sound end, and who diverged; which is told."""
        diverged = [c for c, fine in zip(reply.train, reply.good, strict=True) if not fine]
        for client, fine, loss in zip(reply.train, reply.good, reply.losses.tolist(), strict=True):
            if not fine:
                self._diverged(client, round, loss)
        kept = reply.losses[torch.tensor(reply.good, dtype=torch.bool)]
        return float(kept.mean()) if len(kept) else None, diverged

    def _diverged(self, client: int, round: int, loss: float) -> None:
        name, began = self.whole.names[client], float(self.bounds[client]) / explosion.BEYOND
        why = "its loss or weights are not finite"
        if began * explosion.BEYOND < loss < math.inf:
            why = f"its loss is {loss:.3g}, where the untrained model has {began:.3g}"
        sentence = f"Round {round}: the training of client {name!r} diverged ({why})"
        if self.config.on_divergence == "stop":
            raise Diverged(
                f"{sentence}. The run stops, as configured; rounds before this one are kept. A smaller local.lr or "
                "local.clip = 1.0 usually helps."
            )
        self.tell(f"{sentence}; its upload is left out and its last sound model stays.")

    def _update(self, clients: list[int], arrived: list[int], reply: Reply, round: int) -> None:
        if not arrived or not reply.upload:
            return
        upload = reply.upload
        if len(arrived) < len(clients):
            upload = self._for_all(lambda: reply.upload.take(torch.tensor(arrived, device=self.device)))
        numbers = torch.tensor([clients[i] for i in arrived], device=self.device)
        self.state = self._for_all(
            lambda: self.method.update(self.problem, self.state, numbers, upload, self._round(round))
        )

    def _record(self, line: Line, xi: Tensor | None) -> set[str]:
        """Writes a round down; returns the models of which it is the one to keep."""
        keep = None if self.chooser is None else self.chooser.settle(line)
        self.recorder.line(line, xi, keep, self.last)
        self.on_round(line)
        return keep or set()

    def _table(self) -> dict[str, ModelScores]:
        self.scores.fill(len(self.problem), self.initial)
        return self.scores.table(0, len(self.problem))

    def _names(self, clients: list[int]) -> tuple[str, ...]:
        return tuple(self.whole.names[c] for c in clients)

    def _for_all(self, compute: Callable[[], State]) -> State:
        return capacity.for_all(compute, self.config, self.problem, self.shelf)

    # ---- checkpoints ----

    def states(self) -> dict[str, State]:
        held = State()
        if self.held:
            held = State(clients=torch.tensor(list(self.held)), rounds=torch.tensor(list(self.held.values())))
        best = self.recorder.best
        lowest = {} if self.chooser is None else self.chooser.lowest
        return {
            "server": self.state,
            "held": held,
            **{book: State(**vectors) for book, vectors in self.scores.books.items()},
            "lowest": State({name: torch.tensor([loss], dtype=torch.float64) for name, loss in lowest.items()}),
            "best": State({"best": torch.tensor(best, dtype=torch.float64)}) if best else State(),
        }

    def restore(self, round: int, states: dict[str, State], kept: Callable[[State], State]) -> None:
        """`kept` puts rows where they are kept."""
        self.last, self.state = round, kept(states["server"])
        if states["held"]:
            told = states["held"]
            self.held = dict(zip(told.clients.tolist(), told.rounds.tolist(), strict=True))
        for book in self.scores.books:
            self.scores.books[book] = dict(states[book].items())
        if self.chooser is not None:
            self.chooser.lowest = {name: float(loss) for name, loss in states["lowest"].items()}
        if states["best"]:
            at, score = states["best"].best.tolist()
            self.recorder.best = (int(at), score)


def _answered(parcel: Parcel) -> Generator[Parcel | News | Ended, Reply | None, Reply]:
    reply = yield parcel
    assert reply is not None, "a parcel is answered by a reply"
    return reply
