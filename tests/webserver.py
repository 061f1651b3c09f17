"""A real web server on this machine that can be told to misbehave, and a made-up data set for it to serve."""

from __future__ import annotations

import hashlib
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fedkin.data.catalogue import DataSet, File, Form


@dataclass
class Site:
    """What a server has and does.

    `cuts`: after how many bytes it breaks off, and `statuses`: with which codes it answers, one for each request in
    turn; `stalls`: how many requests it never answers; `holds`: after how many bytes it falls silent; `shift`: how much
    too early the ranges begin that it sends.
    """

    content: dict[str, bytes] = field(default_factory=dict)
    url: str = ""
    ranges: bool = True
    tags: bool = True
    weak: bool = False
    lengths: bool = True
    statuses: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    redirects: dict[str, str] = field(default_factory=dict)
    stalls: int = 0
    shift: int = 0
    holds: int = 0
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    def asked(self) -> list[str]:
        return [path for path, _ in self.requests]

    def ranges_asked(self) -> list[str | None]:
        return [headers.get("Range") for _, headers in self.requests]


def _handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.close_connection = True
            site.requests.append((self.path, dict(self.headers)))
            if site.stalls:
                site.stalls -= 1
                site.closing.wait(20)
                return
            status = site.statuses.pop(0) if site.statuses else 200
            if status != 200:
                self.send_error(status)
            elif self.path in site.redirects:
                self.send_response(302)
                self.send_header("Location", site.redirects[self.path])
                self.end_headers()
            elif self.path not in site.content:
                self.send_error(404)
            else:
                self.answer(site.content[self.path])

        def answer(self, body: bytes) -> None:
            tag = '"' + hashlib.md5(body).hexdigest() + '"'
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            same = self.headers.get("If-Range") in (None, tag)
            start = int(asked[1]) if asked and site.ranges and same else 0
            if start >= len(body) > 0:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            start -= min(start, site.shift)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            if site.tags:
                self.send_header("ETag", f"W/{tag}" if site.weak else tag)
            if site.lengths:
                self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            end = start + site.cuts.pop(0) if site.cuts else len(body)
            if site.holds:
                self.wfile.write(body[start : site.holds])
                site.closing.wait(20)
            self.wfile.write(body[start:end])

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients that go away in the middle are what these tests are about."""


@contextmanager
def serving(content: dict[str, bytes] | None = None, **settings: object) -> Iterator[Site]:
    """A site on a free port of this machine."""
    site = Site(dict(content or {}), **settings)  # type: ignore[arg-type]
    server = _Server(("127.0.0.1", 0), _handler(site))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield site
    finally:
        site.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


BODIES = {"one.bin": random.Random(1).randbytes(100_000), "two.bin": b"two\n" * 25}


def file(name: str, *urls: str, body: bytes | None = None) -> File:
    """A file of the made-up data set, as a catalogue has it."""
    body = BODIES[name] if body is None else body
    return File(name, len(body), hashlib.sha256(body).hexdigest(), urls=urls)


def made_up(*hosts: str) -> DataSet:
    """A data set of two files that every host has."""
    forms = (Form("all of it", tuple(file(name, *(f"{h}/pub/{name}" for h in hosts)) for name in BODIES)),)
    return DataSet("Made up", "two files", "toys", "none", "nobody", forms)


PUBLIC = {f"/pub/{name}": body for name, body in BODIES.items()}
MIRRORED = {f"/mirror/toys/{name}": body for name, body in BODIES.items()}
