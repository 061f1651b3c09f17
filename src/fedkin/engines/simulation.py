"""Rounds in one process: a server, and one site with all clients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import torch

from ..base import machine, mapped_rows
from ..base.state import State
from ..evidence.records import Execution, Line
from ..runs.checkpoint import Checkpoint
from ..runs.folder import RunError, Writer
from ..runs.sinks import Audience, Sink
from . import capacity
from .assembly import Assembly
from .capacity import Room
from .contract import MethodError
from .exchange import News, Parcel
from .recorder import Recorder
from .requests import Requests, advance
from .server import Diverged, Ended, Server
from .site import Site
from .summary import Outcome, summarise

__all__ = ["Diverged", "Interrupted", "Listener", "MethodError", "Simulation"]


class Interrupted(Exception):
    """The run was asked to stop; everything up to the last whole round is saved."""


@dataclass
class Listener:
    """What a run tells while it goes on; the default says nothing. Sinks cannot stop it, whatever becomes of them."""

    on_start: Callable[[Assembly], None] = lambda assembly: None
    on_round: Callable[[Line], None] = lambda record: None
    on_warning: Callable[[str], None] = lambda sentence: None
    stop: Callable[[], bool] = lambda: False
    sinks: tuple[Sink, ...] = ()


def server_of(
    assembly: Assembly,
    writer: Writer,
    tell: Callable[[str], None] = lambda sentence: None,
    on_round: Callable[[Line], None] = lambda line: None,
    shelf: mapped_rows.Shelf | None = None,
) -> Server:
    """The server of a run: it takes nothing of an assembly that is of the clients' data."""
    known, config, method = assembly.known_problem(), assembly.config, assembly.method
    direction = 1 if known.task.metric.higher_is_better else -1
    recorder = Recorder(writer, len(known), direction, method.headline)
    silent = frozenset(i for i, client in enumerate(assembly.federation.clients) if client.silent)
    return Server(config, method, assembly.problem, known, silent, recorder, tell, on_round, shelf)


BEFORE = "as before it was resumed"


class Simulation:
    """One run of one method in this process."""

    def __init__(self, assembly: Assembly, writer: Writer, listener: Listener | None = None) -> None:
        self.a, self.writer, self.config = assembly, writer, assembly.config
        self.listener = listener or Listener()
        self.audience = Audience(self.listener.sinks, lambda sentence: self.listener.on_warning(sentence))
        self.shelf = mapped_rows.shelf_for(self.config.weights, writer.path, assembly.device)
        self.server = server_of(
            assembly,
            writer,
            lambda sentence: self.listener.on_warning(sentence),
            self._heard,
            self.shelf,
        )
        self.recorder = self.server.recorder
        self.site = Site(
            assembly,
            range(len(assembly.problem)),
            writer,
            lambda sentence: self.listener.on_warning(sentence),
            self.shelf,
        )
        self.reason = assembly.reason
        """Why clients are stacked, or run one by one."""
        self.threads = capacity.threads(assembly)
        """CPU threads, and why."""
        self.peak = machine.Watermark(assembly.device)

    @property
    def beside(self) -> int:
        """Runs that share the time and the memory of this process."""
        return self.site.capacity.beside

    @beside.setter
    def beside(self, runs: int) -> None:
        self.site.capacity.beside = runs

    # ---- a run ----

    def run(self, checkpoint: Checkpoint | None = None) -> None:
        """From the start, or from a checkpoint; ends with a summary on disk."""
        self.take_up(checkpoint)
        with machine.threads(self.threads[0]), closing(self.rounds(checkpoint)) as rounds:
            request = advance(rounds)
            while request is not None:
                reply, request = [request.answer()], None  # no longer held: it has copies of rows
                request = advance(rounds, reply)

    def take_up(self, checkpoint: Checkpoint | None) -> None:
        """What a resumed run does not decide again, so that it goes on bit for bit."""
        if checkpoint is not None and (before := checkpoint.states.get("at_once")):
            self.reason = BEFORE
            if not self.config.chunk:
                self.site.capacity.room = Room(int(before.clients), BEFORE) if before.clients else None
            if not self.config.threads:
                self.threads = int(before.threads), BEFORE

    def rounds(self, checkpoint: Checkpoint | None = None) -> Requests[None]:
        """The run, told what each training came to. However it ends, and be it that nobody goes on with it, the sinks
        are told."""
        try:
            yield from self._rounds(checkpoint)
        finally:
            self.audience.end(None)

    def _rounds(self, checkpoint: Checkpoint | None) -> Requests[None]:
        """Parcels of the server are answered by the site."""
        self.server.meet(self.site.hello())
        if checkpoint is None:
            self.server.begin()
            self.site.enlist()
        else:
            self._restore(checkpoint)
        self.audience.start(self.config.model_dump(mode="json"), self.a.known_problem().names)
        exchanges = self.server.exchanges()
        passing = next(exchanges, None)
        while passing is not None:
            reply = None
            if isinstance(passing, Parcel):
                reply = yield from self.site.answer(passing)
            elif isinstance(passing, News):
                self.site.hear(passing)
            else:
                self._between(passing)
            passing = None  # a parcel is as large as all weights
            try:
                passing = exchanges.send(reply)
            except StopIteration:
                break
            finally:
                del reply
        self._end()

    def _heard(self, line: Line) -> None:
        self.listener.on_round(line)
        self.audience.round(line)

    def _between(self, ended: Ended) -> None:
        """After a round: what there is is saved now and then, and the run may be stopped."""
        if ended.round >= 0:
            self.recorder.save(lambda: self.checkpoint(ended.round), self.config, ended.last, self.beside)
        if self.listener.stop():
            self.recorder.save(lambda: self.checkpoint(ended.round), self.config, True, self.beside)
            left = ", before its closing exchange" if ended.last else ""
            raise Interrupted(f"Stopped after round {ended.round} of {self.config.rounds}{left}; everything is saved.")

    def _end(self) -> None:
        server = self.server
        kept = tuple(name for name in server.models if name in self.site.memory)
        execution, peak = self._how(), self.peak.bytes()
        came = Outcome(
            server.last, server.models, kept, server.novel, peak, execution, server.withheld, server.untrained
        )
        summary = summarise(self.writer.path, self.a, came)
        self.writer.summary(summary)
        self.audience.end(summary)

    def _how(self) -> Execution:
        """How clients were run, for the summary: each choice with its reason."""
        at_once = self.site.capacity.room or Room(len(self.a.problem), "nobody has trained")
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

    # ---- checkpoints ----

    def checkpoint(self, round: int) -> Checkpoint:
        room = self.site.capacity.room
        at_once = {"clients": torch.tensor(room.clients if room else 0), "threads": torch.tensor(self.threads[0])}
        return Checkpoint(round, {**self.server.states(), **self.site.states(), "at_once": State(at_once)})

    def _restore(self, checkpoint: Checkpoint) -> None:
        try:
            self.server.restore(checkpoint.round, checkpoint.states, self._kept)
            self.site.restore(checkpoint.states, self._kept)
        except KeyError as lacking:
            raise RunError(
                f"The checkpoint in {self.writer.path} is of another version of fedkin, which did not keep {lacking}; "
                "remove it to start from round 1."
            ) from None

    def _kept(self, state: State) -> State:
        """A copy of what lies in a checkpoint: where a tensor begins in a file, torch may round its numbers otherwise
        than where it was made."""
        return self.shelf.keep(state) if self.shelf is not None else state.to(self.a.device, copy=True)
