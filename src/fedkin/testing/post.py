"""A server, and sites that it reaches by letters alone: everything that passes between them is bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from ..base.state import State
from ..engines.assembly import Assembly
from ..engines.exchange import News, Parcel, Reply, from_bytes, joined_hellos, joined_replies, to_bytes
from ..engines.requests import Requests
from ..engines.server import Ended
from ..engines.simulation import server_of
from ..engines.site import Site
from ..runs.checkpoint import Checkpoint
from ..runs.folder import Writer

Side = Literal["server", "sites", "both"]


def by_post(
    assembly: Assembly,
    folder: Path,
    sites: Sequence[Sequence[int]],
    *,
    again_after: int | None = None,
    side: Side = "both",
    apart: Callable[[], Assembly] | None = None,
) -> Post:
    """A whole run by letters. sites: the numbers of the clients that each has.

    After round `again_after` one side, or both, comes up anew from what it has saved. With `apart`, which makes the
    same assembly again, each site and who comes up anew has one of its own: no two share a method.
    """
    post = Post(assembly, folder, sites, apart)
    post.run(again_after, side)
    return post


def one_each(assembly: Assembly) -> list[list[int]]:
    """A site for each client."""
    return [[i] for i in range(len(assembly.problem))]


class Post:
    """A server, and sites that it reaches by letters alone. Either side may be taken down and put up again between
    rounds from what it has saved."""

    def __init__(
        self,
        assembly: Assembly,
        folder: Path,
        sites: Sequence[Sequence[int]],
        apart: Callable[[], Assembly] | None = None,
    ) -> None:
        self.a, self.folder, self.assembled = assembly, folder, apart or (lambda: assembly)
        self.letters = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.writer = Writer.create(folder / "server", assembly.config)
        self.server = server_of(assembly, self.writer)
        self.sites = [self._site(i, clients) for i, clients in enumerate(sites)]

    def _site(self, i: int, clients: Sequence[int]) -> Site:
        path = self.folder / f"site-{i}"
        return Site(self.assembled(), clients, Writer(path) if path.exists() else Writer.create(path, self.a.config))

    def by_post(self, what: Any) -> Any:
        """What comes out of a letter."""
        self.letters += 1
        return from_bytes(to_bytes(what), self.a.device)

    def run(self, again_after: int | None = None, side: Side = "both") -> None:
        self._meet()
        self.server.begin()
        for site in self.sites:
            site.enlist()
        self._go_on(again_after, side)

    def _meet(self) -> None:
        self.server.meet(joined_hellos([self.by_post(site.hello()) for site in self.sites]))

    def _go_on(self, again_after: int | None, side: Side) -> None:
        exchanges = self.server.exchanges()
        passing = next(exchanges, None)
        while passing is not None:
            reply = None
            if isinstance(passing, Parcel):
                reply = self._answers(passing)
            elif isinstance(passing, News):
                for site in self.sites:
                    site.hear(self.by_post(passing))
            elif isinstance(passing, Ended) and passing.round == again_after:
                self._again(passing.round, side)
                self._go_on(None, side)
                return
            try:
                passing = exchanges.send(reply)
            except StopIteration:
                break

    def _answers(self, parcel: Parcel) -> Reply:
        replies = []
        for site in self.sites:
            part = parcel.of(site.everyone)
            if part.clients:
                replies.append(self.by_post(_answered(site, self.by_post(part))))
        return joined_replies(replies, parcel)

    def _again(self, round: int, side: Side) -> None:
        """One of the two comes up anew, from a file."""

        def filed(states: dict[str, State], name: str) -> dict[str, State]:
            path = self.folder / f"{name}.safetensors"
            Checkpoint(round, states).save(path, self.a.config)
            return Checkpoint.load(path, self.a.config).states

        def kept(state: State) -> State:
            return state.to(self.a.device, copy=True)

        if side in ("server", "both"):
            states = filed(self.server.states(), "server")
            self.server = server_of(self.assembled(), self.writer)
            self._meet()
            self.server.restore(round, states, kept)
        if side in ("sites", "both"):
            for i, site in enumerate(self.sites):
                states = filed(site.states(), f"site-{i}")
                self.sites[i] = self._site(i, site.everyone)
                self.sites[i].restore(states, kept)


def _answered(site: Site, parcel: Parcel) -> Reply:
    """What a site says, each training answered by itself."""
    work: Requests[Reply] = site.answer(parcel)
    try:
        request = next(work)
        while True:
            request = work.send([request.answer()])
    except StopIteration as end:
        reply: Reply = end.value
        return reply
