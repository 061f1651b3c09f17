"""One file from one host: a broken download is resumed, and what arrives lies in NAME.part until its checksum is right.

The part outlives a cut line, Ctrl-C and a full disk, and the next attempt asks for the rest of it; should it turn out
to be part of something else, its checksum tells, and it is thrown away.
"""

from __future__ import annotations

import errno
import http.client
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from pathlib import Path
from urllib import error as urlerror
from urllib import request as urlrequest
from urllib.parse import urlsplit

from ..version import __version__
from . import files
from .catalogue import File
from .files import DataError

CHUNK = 1 << 18
FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
"""No room: on the disk, under a file-size limit, in a quota."""
BUSY = {408, 425, 429, 500, 502, 503, 504}
"""Answers that may be another one soon."""


@dataclass(frozen=True)
class Patience:
    """How long a silent server is waited for, and the pauses before each further attempt that gets no further, in s."""

    timeout: float = 30.0
    pauses: tuple[float, ...] = (1.0, 4.0, 15.0)


@dataclass(frozen=True)
class Listener:
    """Who wants to know: how many bytes of a file are here, and what happens, in sentences."""

    on_bytes: Callable[[File, int], None] = lambda file, here: None
    on_note: Callable[[str], None] = lambda sentence: None


class Trouble(Exception):
    """Why a host did not deliver, to be read after its name; if it is `passing`, asking again may help."""

    def __init__(self, why: str, passing: bool = False):
        super().__init__(why)
        self.passing = passing


@dataclass
class Transfer:
    """A file on its way from one host into `part`.

    `tag` is the host's mark of the version that it is sending; `foreign`: the part began before this transfer did, so
    it may be part of something else.
    """

    url: str
    file: File
    part: Path
    listener: Listener
    patience: Patience
    tag: str = ""
    foreign: bool = True

    def run(self) -> None:
        """A whole and right file, in as many attempts as it takes and patience allows."""
        here = f", of which {_size(self.part):,} are here" if _size(self.part) else ""
        self.note(f"{amount(self.file)} from {host(self.url)}{here}.")
        while True:
            self.complete()
            wrong = files.fault(self.part, self.file)
            if wrong is None:
                return
            self.part.unlink()
            if not self.foreign:
                raise Trouble(f"sent something else, which was deleted: it is {wrong}")
            self.note(f"the part that was here belongs to something else (the whole is {wrong}); starting over.")

    def complete(self) -> None:
        """All bytes, whatever they are. An attempt that got further than any before restores the patience."""
        furthest, pauses = _size(self.part), iter(self.patience.pauses)
        while True:
            try:
                return self.attempt()
            except Trouble as trouble:
                if _size(self.part) > furthest:
                    furthest, pauses = _size(self.part), iter(self.patience.pauses)
                pause = next(pauses, None) if trouble.passing else None
                if pause is None:
                    raise
                self.note(f"{host(self.url)} {trouble}; asking again in {pause:g} s.")
                time.sleep(pause)

    def attempt(self) -> None:
        """One request for what is still to come."""
        have, right = _size(self.part), self.file.bytes
        if have and have == right:
            return  # whole, but not yet looked at: we were ended in between
        with _open(self.url, have, self.tag, self.patience.timeout) as answer:
            expected = answer.total if right is None else right
            if answer.total not in (None, expected):
                raise Trouble(f"has another {self.file.name}, of {answer.total:,} bytes instead of {expected:,}")
            self.tag = answer.tag
            self.foreign &= answer.begins > 0
            here = answer.begins
            with written(self.part), self.part.open("ab" if here else "wb") as target:
                while chunk := answer.read(CHUNK if expected is None else min(CHUNK, expected - here)):
                    here += len(chunk)
                    target.write(chunk)
                    self.listener.on_bytes(self.file, here)
        if expected is not None and here < expected:
            raise Trouble(f"broke off after {here:,} of {expected:,} bytes", passing=True)

    def note(self, sentence: str) -> None:
        self.listener.on_note(f"{self.file.name}: {sentence}")


@dataclass(frozen=True)
class _Answer:
    """A stream, with the byte of the file at which it begins, the whole file's size, and the server's mark (ETag)."""

    stream: BufferedReader | BytesIO | http.client.HTTPResponse
    begins: int
    total: int | None
    tag: str = ""

    def read(self, most: int) -> bytes:
        """What has arrived, once something has; nothing at the end, or if nothing is asked for."""
        try:
            return self.stream.read1(most) if most else b""
        except (OSError, http.client.HTTPException) as error:
            raise _trouble(error) from None


@contextmanager
def _open(url: str, have: int, tag: str, timeout: float) -> Iterator[_Answer]:
    """What is found at an address, from byte `have` on if the server can do that, else from the beginning."""
    answer = _local(url) if url.startswith("file:") else _ask(url, have, tag, timeout)
    with answer.stream:
        yield answer


def _ask(url: str, have: int, tag: str, timeout: float) -> _Answer:
    """A request for a file from byte `have` on; If-Range keeps two versions of it from being glued together."""
    request = urlrequest.Request(url, headers={"User-Agent": f"Mozilla/5.0 (compatible; fedkin/{__version__})"})
    if have:
        request.add_header("Range", f"bytes={have}-")
        if tag:
            request.add_header("If-Range", tag)
    try:
        response = _opener().open(request, timeout=timeout)
    except urlerror.HTTPError as error:
        with error:
            if have and error.code == 416:  # nothing from there on: either this is all of it, or a part of another file
                if error.headers.get("Content-Range") == f"bytes */{have}":
                    return _Answer(BytesIO(), have, have, tag)
                return _ask(url, 0, "", timeout)
            said = " ".join(f"{error.code} {error.reason}".split())
        passing = error.code in BUSY
        raise Trouble(f"answers {said}" if passing else f"does not give it ({said})", passing) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _trouble(error) from None
    mark = response.headers.get("ETag", "")
    tag = "" if mark.startswith("W/") else mark  # a weak mark may be shared by files that differ in bytes
    if response.status == 206:
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if span is None or int(span[1]) != have:
            response.close()
            if have:
                return _ask(url, 0, "", timeout)
            raise Trouble("sends another part of the file than the one that was asked for")
        return _Answer(response, have, None if span[2] == "*" else int(span[2]), tag)
    length = response.headers.get("Content-Length", "")
    return _Answer(response, 0, int(length) if length.isdecimal() else None, tag)


def _local(url: str) -> _Answer:
    """A file of a mirror that is a folder; copied from its beginning."""
    path = Path(urlrequest.url2pathname(urlsplit(url).path))
    try:
        return _Answer(path.open("rb"), 0, path.stat().st_size)
    except OSError as error:
        raise Trouble(f"does not give it ({error.strerror})") from None


def _opener() -> urlrequest.OpenerDirector:
    """Only http and https, also after a redirection; proxies as the environment says."""
    opener = urlrequest.OpenerDirector()
    for handler in (
        urlrequest.ProxyHandler(),
        urlrequest.HTTPHandler(),
        urlrequest.HTTPSHandler(),
        urlrequest.HTTPRedirectHandler(),
        urlrequest.HTTPDefaultErrorHandler(),
        urlrequest.HTTPErrorProcessor(),
        urlrequest.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _trouble(error: Exception) -> Trouble:
    """What the network said, for people. What looks like no network at all is not tried again: it would take long."""
    cause = error.reason if isinstance(error, urlerror.URLError) and isinstance(error.reason, Exception) else error
    if isinstance(cause, TimeoutError):
        return Trouble("is silent for too long", passing=True)
    if isinstance(cause, socket.gaierror):
        return Trouble("cannot be found by its name (is there a network?)")
    if isinstance(cause, ConnectionRefusedError):
        return Trouble("refuses the connection")
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Trouble(f"has a certificate that is not trusted here ({cause.verify_message})")
    if isinstance(cause, OSError) and cause.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return Trouble("cannot be reached from here (no route)")
    if isinstance(cause, (ConnectionError, http.client.HTTPException, ssl.SSLError)):
        return Trouble("broke the connection", passing=True)
    return Trouble(f"cannot be asked ({getattr(cause, 'strerror', None) or cause})")


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Inside, what the disk refuses becomes a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DataError(
                f"There is no room for {path} ({error.strerror}). What has arrived is kept: make room, and the same "
                "command goes on from there."
            ) from None
        raise DataError(f"{path} cannot be written ({error.strerror}).") from None


def host(url: str) -> str:
    """What to call the other side: a server by its name and port, a folder by its address."""
    return urlsplit(url).netloc or url.rsplit("/", 2)[0]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def amount(file: File) -> str:
    return "a file of unknown size" if file.bytes is None else f"{file.bytes:,} bytes"
