"""Data sets from the network: which files are wanted, whom to ask for them, and what to do where nobody delivers.

Only what has the right checksum is put in place; how one file gets here is in `download`.
"""

from __future__ import annotations

import os
import shlex
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlsplit

from . import files
from .catalogue import DataSet, File, Form
from .download import CHUNK, Listener, Patience, Transfer, Trouble, amount, host, written
from .files import DataError

__all__ = ["Listener", "Patience", "Unobtainable", "fetch"]


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
        return sorted(file.urls, key=lambda url: host(url) in self.failed)

    def form(self, form: Form) -> list[Path]:
        """Bring a whole form here; a mirror has the single files, also where the public hosts have an archive."""
        wanted = self.wanted(form)
        with written(self.where):
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
                Transfer(url, file, part, self.listener, self.patience).run()
            except Trouble as trouble:
                self.failed.add(host(url))
                sentences.append(f"{file.name}: {host(url)} {trouble}.")
            else:
                with written(self.where / file.name):
                    part.replace(self.where / file.name)
                return
        raise Unobtainable(sentences)


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
            with packed.open(members[0]) as stream, written(part), part.open("wb") as target:
                while chunk := stream.read(CHUNK):
                    target.write(chunk)
        wrong = files.fault(part, file)
        if wrong:
            raise DataError(f"{file.name} in {archive} is {wrong}.")
        with written(where / file.name):
            part.replace(where / file.name)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}.") from None
    finally:
        part.unlink(missing_ok=True)


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
            *(f"  curl -L -O {file.urls[0]}  # {amount(file)}" for file in downloads),
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
