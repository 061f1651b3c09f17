"""Data files from the network: a broken download is resumed, and only what has the right checksum is put in place.

A file arrives as NAME.part beside its place. The part outlives a cut line, Ctrl-C and a full disk, and the next attempt
asks for the rest of it; should it turn out to be part of something else, its checksum tells, and it is thrown away.
"""

from __future__ import annotations

import errno
import http.client
import os
import re
import shlex
import socket
import ssl
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader, BytesIO
from pathlib import Path, PurePosixPath
from urllib import error as urlerror
from urllib import request as urlrequest
from urllib.parse import quote, urlsplit

from ..version import __version__
from . import files
from .catalogue import DataSet, File, Form
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


class Unobtainable(Exception):
    """No host delivered a file: a sentence for each that was asked."""

    def __init__(self, sentences: list[str]):
        super().__init__(*sentences)
        self.sentences = sentences


def fetch(
    name: str, *, mirror: str | None = None, listener: Listener | None = None, patience: Patience | None = None
) -> list[Path]:
    """Download every file of a data set that is missing or damaged; the files that are new.

    `mirror` (default: $FEDKIN_MIRROR) takes the place of the public hosts: the address of a server, or of a folder
    (`file://`), that is laid out like the data folder.
    """
    data, base = files.find(name), _address(mirror or os.environ.get("FEDKIN_MIRROR", ""))
    fetching = _Fetching(files.place(name), data, base, listener or Listener(), patience or Patience())
    if any(not fetching.wanted(form) for form in data.forms):
        return []
    if data.bring and not base:
        files.need(name)  # says what to bring, and where to
    first = files.begun(name)
    refusals: list[str] = []
    for form in sorted(data.forms, key=lambda form: form != first):
        try:
            return fetching.form(form)
        except Unobtainable as nobody:
            refusals += nobody.sentences
    raise DataError(_by_hand(name, fetching, refusals))


@dataclass
class _Fetching:
    """One data set on its way to folder `where`. Hosts that have failed are asked last."""

    where: Path
    data: DataSet
    mirror: str
    listener: Listener
    patience: Patience
    failed: set[str] = field(default_factory=set)

    def wanted(self, form: Form) -> list[File]:
        """The files that are missing or damaged."""
        return [file for file in form.files if files.fault(self.where / file.name, file)]

    def urls(self, file: File) -> list[str]:
        if self.mirror:
            return [f"{self.mirror}/{self.data.directory}/{quote(file.name)}"]
        return sorted(file.urls, key=lambda url: _host(url) in self.failed)

    def form(self, form: Form) -> list[Path]:
        """Bring a whole form here; a mirror has the single files, also where the public hosts have an archive."""
        wanted = self.wanted(form)
        with _written(self.where):
            self.where.mkdir(parents=True, exist_ok=True)
        if form.archive is None or self.mirror:
            for file in wanted:
                self.download(file)
        else:
            archive = self.where / form.archive.name
            ours = files.fault(archive, form.archive) is not None
            if ours:
                self.download(form.archive)
            for file in wanted:
                self.listener.on_note(f"{file.name}: unpacking it from {archive.name}.")
                _unpack(archive, file, self.where)
            if ours:  # one that somebody put there stays
                archive.unlink()
        return [self.where / file.name for file in wanted]

    def download(self, file: File) -> None:
        """Bring one file here from the first host that has it."""
        part = self.where / f"{file.name}.part"
        sentences: list[str] = []
        for url in self.urls(file):
            for sentence in sentences[-1:]:
                self.listener.on_note(sentence)
            try:
                _Transfer(url, file, part, self.listener, self.patience).run()
            except Trouble as trouble:
                self.failed.add(_host(url))
                sentences.append(f"{file.name}: {_host(url)} {trouble}.")
            else:
                with _written(self.where / file.name):
                    part.replace(self.where / file.name)
                return
        raise Unobtainable(sentences)


@dataclass
class _Transfer:
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
        self.note(f"{_amount(self.file)} from {_host(self.url)}{here}.")
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
                self.note(f"{_host(self.url)} {trouble}; asking again in {pause:g} s.")
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
            with _written(self.part), self.part.open("ab" if here else "wb") as target:
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


def _unpack(archive: Path, file: File, where: Path) -> None:
    """One file out of a zip: to the place that the catalogue gives it, whatever path the archive may claim.

    It may not be larger than it should be or, where that is not known, than the archive: what is stored there is
    compressed already. (zipfile itself stops at the size that the archive states.)
    """
    part = where / f"{file.name}.part"
    try:
        with zipfile.ZipFile(archive) as packed:
            members = [m for m in packed.infolist() if PurePosixPath(m.filename).name == file.name]
            if len(members) != 1:
                raise DataError(f"{archive} holds {len(members)} files named {file.name}, not one.")
            limit = archive.stat().st_size if file.bytes is None else file.bytes
            if members[0].file_size > limit:
                raise DataError(
                    f"{file.name} in {archive} would be {members[0].file_size:,} bytes large, more than "
                    f"{limit:,}; nothing was unpacked from it."
                )
            with packed.open(members[0]) as stream, _written(part), part.open("wb") as target:
                while chunk := stream.read(CHUNK):
                    target.write(chunk)
        wrong = files.fault(part, file)
        if wrong:
            raise DataError(f"{file.name} in {archive} is {wrong}.")
        with _written(where / file.name):
            part.replace(where / file.name)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}.") from None
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _written(path: Path) -> Iterator[None]:
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


def _address(mirror: str) -> str:
    """A mirror's address without the last slash, or a sentence about what is wrong with it."""
    if not mirror:
        return ""
    try:
        parts = urlsplit(mirror)
    except ValueError as error:
        raise DataError(f"The mirror {mirror!r} is not an address ({error}).") from None
    if parts.scheme not in ("http", "https", "file"):
        example = Path(mirror).absolute().as_uri() if "://" not in mirror else "https://data.hospital.example/fedkin"
        raise DataError(
            f"The mirror {mirror!r} is not an address that begins with http://, https:// or file://, such as {example}."
        )
    if parts.username or parts.password:
        raise DataError("A mirror's address with a user name or a password in it is not supported.")
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        raise DataError(f"A mirror that is a folder has three slashes: file:///{parts.netloc}{parts.path}.")
    if parts.scheme != "file" and not parts.hostname:
        raise DataError(f"The mirror {mirror!r} names no server.")
    if parts.query or parts.fragment:
        raise DataError(f"The mirror {mirror!r} has more than a path: leave out what follows '?' or '#'.")
    return mirror.rstrip("/")


def _by_hand(name: str, fetching: _Fetching, refusals: list[str]) -> str:
    """Why a data set could not be fetched, and how to bring it here in another way."""
    where, check = shlex.quote(str(fetching.where)), f"  fedkin data check {name}"
    public = next((form for form in fetching.data.forms if _published(form)), None)
    if public is None:
        listed = ", ".join(file.name for file in fetching.data.forms[0].files)
        todo = [f"No public address is known for its files. Put {listed} into {where}; then", check]
    else:
        downloads = [public.archive] if public.archive else fetching.wanted(public)
        others = dict.fromkeys(url.rsplit("/", 1)[0] + "/" for file in downloads for url in file.urls[1:])
        todo = [
            "On a machine with a network, download",
            *(f"  curl -L -O {file.urls[0]}  # {_amount(file)}" for file in downloads),
            *(f"  # also at {other}" for other in others),
            f"and put what came into {where}; then",
            f"  fedkin data fetch {name}  # unpacks it" if public.archive else check,
        ]
    return "\n".join(
        [
            f"Data set {name!r} could not be fetched.",
            *(f"  {sentence}" for sentence in dict.fromkeys(refusals)),
            *todo,
            "Or name a server or a folder that is laid out like the data folder:",
            f"  fedkin data fetch {name} --mirror https://… or file:///…",
        ]
    )


def _published(form: Form) -> bool:
    """Whether everybody can download it."""
    return all(file.urls for file in ([form.archive] if form.archive else form.files))


def _host(url: str) -> str:
    """What to call the other side: a server by its name and port, a folder by its address."""
    return urlsplit(url).netloc or url.rsplit("/", 2)[0]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _amount(file: File) -> str:
    return "a file of unknown size" if file.bytes is None else f"{file.bytes:,} bytes"
