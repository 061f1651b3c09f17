"""The moment between rounds: what a run tells to others while it goes on. A file or a pipe of JSON lines, TensorBoard,
or a tracker of one's own.

A sink cannot harm a run: one that fails is named in a sentence and left out from then on.
"""

from __future__ import annotations

import errno
import json
import math
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from ..base.wording import did_you_mean, first_line
from ..errors import FedkinError
from ..evidence.records import Line, Summary
from .folder import plain


class Sink:
    """Hears of one run; what is not overridden is not listened to.

    A run that is resumed starts again, with the round after its last checkpoint. Lines are those of known clients;
    newcomers are in the summary.
    """

    def start(self, config: Mapping[str, Any], clients: tuple[str, ...]) -> None:
        """Before the first round: the settings, as in config.toml, and the names in the order of a line's vectors."""

    def round(self, line: Line) -> None:
        """After each round and the closing exchange, when the line is in rounds.jsonl."""

    def end(self, summary: Summary | None) -> None:
        """After the last round; None where the run stopped early."""


class Missed(Exception):
    """A sink could not pass something on and goes on all the same; the sentence is told once."""


class Audience:
    """The sinks of one run. None of them can stop it, and each that was told of a start is told of one end. They are
    told what stands in the files, where a score that is not a number is null."""

    def __init__(self, sinks: Sequence[Sink], warn: Callable[[str], None]) -> None:
        self.sinks, self.warn = list(sinks), warn
        self.reproved: set[int] = set()
        """Those that missed something, by their place in memory."""
        self.listening = False

    def start(self, config: Mapping[str, Any], clients: tuple[str, ...]) -> None:
        self.listening = True
        self._tell(lambda sink: sink.start(config, clients))

    def round(self, line: Line) -> None:
        written = Line.read(plain(line))
        self._tell(lambda sink: sink.round(written))

    def end(self, summary: Summary | None) -> None:
        if self.listening:
            self.listening = False
            written = None if summary is None else Summary.read(plain(summary))
            self._tell(lambda sink: sink.end(written))

    def _tell(self, event: Callable[[Sink], None]) -> None:
        for sink in list(self.sinks):
            try:
                event(sink)
            except Missed as missed:
                if id(sink) not in self.reproved:
                    self.reproved.add(id(sink))
                    self.warn(str(missed))
            except Exception as error:
                self.sinks = [each for each in self.sinks if each is not sink]
                said = f"{type(error).__name__}: {first_line(error)}"
                self.warn(f"The sink {type(sink).__name__} failed and is told no more; the run goes on ({said}).")


# ---- JSON lines ----


class JsonLines(Sink):
    """A JSON object a line, with "event": start, round or end; written at once, behind what the file holds.

    A named pipe is never waited for: what nobody reads is left out, and who comes late or anew is told of the start
    first. `run`: a name that stands in every line, where several runs share a file.
    """

    def __init__(self, path: Path | str, run: str | None = None) -> None:
        self.path, self.name = Path(path), {} if run is None else {"run": run}
        if self.path.is_dir():
            raise FedkinError(f"{path} is a folder; JSON lines go into a file or a named pipe.")
        self.channel: Channel | None = None
        self.opening, self.greeted = b"", 0

    def start(self, config: Mapping[str, Any], clients: tuple[str, ...]) -> None:
        self.channel = Channel.of(self.path)
        self.opening, self.greeted = self._line("start", config=config, clients=clients), 0
        self._send(b"")

    def round(self, line: Line) -> None:
        self._send(self._line("round", **line))

    def end(self, summary: Summary | None) -> None:
        try:
            self._send(self._line("end", summary=summary))
            if self.channel:
                self.channel.drain()
        finally:
            self.channel = None

    def _line(self, event: str, **values: Any) -> bytes:
        return (json.dumps(plain({"event": event, **self.name, **values}), allow_nan=False) + "\n").encode()

    def _send(self, line: bytes) -> None:
        channel = self.channel
        assert channel is not None, "a sink is told of the start first"
        heard = channel.connect()
        if heard and self.greeted != channel.reader:
            heard = channel.send(self.opening)
            self.greeted = channel.reader if heard else 0
        if not heard or (line and not channel.send(line)):
            raise Missed(f"Nobody reads {self.path}, or not fast enough: what happens meanwhile is left out there.")


class Channel:
    """A file, or a named pipe whose reader may come late, be slow and go away. Sinks of one path share it: a line that
    a pipe took half of is ended before the next."""

    known: ClassVar[WeakValueDictionary[Path, Channel]] = WeakValueDictionary()

    def __init__(self, path: Path) -> None:
        self.path, self.fd, self.pipe = path, -1, False
        self.rest = b""
        """Of a line that the pipe had no room for."""
        self.reader = 0
        """How many there were; that of a file is the first."""

    @classmethod
    def of(cls, path: Path) -> Channel:
        return cls.known.setdefault(path.absolute(), cls(path))

    def connect(self) -> bool:
        """Whether there is somebody to write to, or a file."""
        if self.fd < 0:
            self.pipe = self.path.is_fifo()
            if not self.pipe:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            how = os.O_NONBLOCK if self.pipe else os.O_APPEND | os.O_CREAT
            try:
                self.fd = os.open(self.path, os.O_WRONLY | how, 0o666)
            except OSError as error:
                if self.pipe and error.errno == errno.ENXIO:  # nobody reads
                    return False
                raise
            self.reader += 1
        return True

    def send(self, line: bytes) -> bool:
        """Whether the line went out, or is going to."""
        if self._write_rest():
            before, self.rest = len(line), line
            if self._write_rest() or (self.fd >= 0 and len(self.rest) < before):
                return True
            self.rest = b""
        return False

    def _write_rest(self) -> bool:
        """Writes as much as there is room for; whether that was all."""
        try:
            with _deaf_to_sigpipe(self.pipe):
                while self.rest:
                    self.rest = self.rest[os.write(self.fd, self.rest) :]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            self.close()
            return False
        return True

    def drain(self, seconds: float = 0.5) -> None:
        """Gives a reader a moment for the rest of a line."""
        until = time.monotonic() + seconds
        while self.fd >= 0 and not self._write_rest() and (left := until - time.monotonic()) > 0:
            if self.fd >= 0:
                select.select([], [self.fd], [], left)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self.rest = -1, b""

    def __del__(self) -> None:
        self.close()


@contextmanager
def _deaf_to_sigpipe(pipe: bool) -> Iterator[None]:
    """Inside, a reader that has gone is an error and no signal, also where a program has undone what Python does. Of
    this thread alone, and from any thread."""
    if not pipe:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        yield
    finally:
        if signal.SIGPIPE not in before:
            if signal.SIGPIPE in signal.sigpending():
                signal.sigwait({signal.SIGPIPE})
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- TensorBoard ----


class TensorBoard(Sink):
    """Curves for TensorBoard: of each model the mean over clients on test and on validation data and its validation
    loss, the training loss, bytes and seconds. A resumed run goes on in the same folder."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if find_spec("tensorboard") is None:
            raise FedkinError("TensorBoard is not installed: `pip install 'fedkin[tensorboard]'`.")
        if self.folder.exists() and not self.folder.is_dir():
            raise FedkinError(f"{folder} is a file; TensorBoard takes a folder.")
        self.writer: Any = None

    def start(self, config: Mapping[str, Any], clients: tuple[str, ...]) -> None:
        self.writer = None

    def round(self, line: Line) -> None:
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # What a run had told beyond its last checkpoint is told again, and shown once.
            self.writer = SummaryWriter(str(self.folder), purge_step=line.round)
        for tag, value in scalars(line).items():
            self.writer.add_scalar(tag, value, line.round)
        self.writer.flush()

    def end(self, summary: Summary | None) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None


def scalars(line: Line) -> dict[str, float]:
    """What a line says in single numbers, by name; what is not known is not there."""
    found: dict[str, float | None] = {}
    for name, scores in line.models.items():
        found[f"test/{name}"] = scores.mean
        if scores.validation is not None:
            found[f"validation/{name}"] = scores.validation.mean
            found[f"validation_loss/{name}"] = scores.validation.loss
    found["train_loss"] = line.train_loss
    found |= {"bytes/down": line.bytes_down, "bytes/up": line.bytes_up, "seconds": line.seconds}
    return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}


# ---- by their names ----

Sinks = Callable[[str], Sequence[Sink]]
"""Of a run's name."""


class Named:
    """Sinks as they are written, `jsonl:PATH` and `tensorboard:FOLDER`, for every run of a command; refused at once if
    one cannot be. Of several runs each has its name in its lines, and a folder of its own."""

    def __init__(self, words: Sequence[str], several: bool = False) -> None:
        self.pairs, self.several = [_apart(word) for word in words], several
        self.channels = [Channel.of(Path(place)) for kind, place in self.pairs if kind == "jsonl"]
        """Held as long as runs are to come, so that who reads a pipe sees one end."""
        self("")

    def __call__(self, run: str) -> list[Sink]:
        return [self._made(kind, place, run) for kind, place in self.pairs]

    def _made(self, kind: str, place: str, run: str) -> Sink:
        if kind == "jsonl":
            return JsonLines(place, run if self.several else None)
        return TensorBoard(Path(place) / run if self.several else place)


def _apart(word: str) -> tuple[str, str]:
    kind, colon, place = word.partition(":")
    known = ("jsonl", "tensorboard")
    if kind not in known:
        raise FedkinError(
            f"There is no sink {kind!r}. {did_you_mean(kind, known)}It is written jsonl:PATH or tensorboard:FOLDER."
        )
    if not colon or place in ("", "-"):
        what = "FOLDER" if kind == "tensorboard" else "PATH, a file or a named pipe"
        raise FedkinError(f"--sink {word} does not say where to: {kind}:{what}.")
    return kind, place
