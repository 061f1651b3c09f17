"""A site: one or more clients with their data. What happens at a client in a round happens here, and nowhere else.

It knows the server through what passes (`exchange`): a parcel down, a reply up, and news of what became of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..base import mapped_rows
from ..base.round import Round
from ..base.state import Memory, State, Upload
from ..runs.folder import Writer
from ..training.evaluation import Model
from ..training.optimisers import Optimiser
from . import capacity, explosion
from .assembly import Assembly
from .capacity import Capacity
from .contract import check_model, check_rows
from .exchange import Handed, Hello, News, Parcel, Reply
from .handing import HandOut
from .keeping import Keeper
from .requests import RanOut, Request, Requests, within_memory
from .scores import BOOKS, Found, joined, scored

Tell = Callable[[str], None]


class Site:
    """Some clients of a problem, by their numbers, and what they remember."""

    def __init__(
        self,
        assembly: Assembly,
        clients: Sequence[int],
        writer: Writer,
        tell: Tell = lambda sentence: None,
        shelf: mapped_rows.Shelf | None = None,
    ) -> None:
        self.a, self.writer, self.tell, self.shelf = assembly, writer, tell, shelf
        self.config, self.method = assembly.config, assembly.method
        self.clients = [c for c in clients if c < assembly.problem.known]
        """Those that have been enlisted; newcomers follow."""
        self.everyone = list(clients)
        part = self.config.participation
        self.careful = part.lost > 0
        """Whether uploads may get lost: then clients keep what they remembered before the last that arrived."""
        self.unseen = part.dropped > 0 or part.score != "all"
        """Whether some clients may not be scored in a round."""
        self.memory: Memory = State()
        self.optimiser: State | None = None
        """The state that optimisers are in, a row a client, where it is kept from round to round."""
        self.before: dict[int, tuple[int, Memory, State | None]] = {}
        """Of clients whose last upload may be lost: the round of it, and what they remembered before."""
        self.keeper: Keeper | None = None
        if self.config.patience:
            self.keeper = Keeper(self.clients, assembly.problem.initial)
        self.capacity = Capacity(assembly, tell)
        self.trouble: str | None = None
        """Of the execution, as it was told."""

    # ---- before the first round ----

    def hello(self) -> Hello:
        """What the server has to know of these clients, newcomers included."""
        a, everyone = self.a, self.everyone
        held = a.cohort.validation
        initial: Found = {}
        if self.unseen:
            rows = {"initial": a.problem.initial.expand(len(self.clients), -1)}
            known = scored(a, self.clients, rows) if self.clients else {}
            nothing = torch.full((len(everyone),), torch.nan, dtype=torch.float64)
            initial = {book: {"initial": nothing.clone()} for book in BOOKS}
            for book, models in known.items():  # of newcomers there is nothing to carry forward
                initial[book]["initial"][: len(self.clients)] = models["initial"].double()
        return Hello(
            clients=everyone,
            validation=torch.tensor([held.counts[c] for c in everyone]),
            telling=torch.tensor([a.problem.task.telling(held.targets(c)) for c in everyone], dtype=torch.float64),
            losses=explosion.at_first(a, everyone),
            initial=initial,
        )

    def enlist(self, newcomers: bool = False) -> None:
        """Clients begin to remember: those who are known, or newcomers beside them."""
        problem = self.a.problem if newcomers else self.a.known_problem()
        clients = [c for c in self.everyone if (c >= self.a.problem.known) == newcomers]
        numbers = torch.tensor(clients, device=self.a.device, dtype=torch.long)
        now = Round(0, self.config.rounds, self.config.seeds[2])
        memory = self._for_all(lambda: self.method.enlist(problem, numbers, now))
        if newcomers:
            memory = self._for_all(lambda: State.join([self.memory, memory]))
        self.memory = memory
        if self.config.local.persist_optimiser:
            rows = problem.initial.expand(len(clients), -1)
            fresh = self._for_all(lambda: Optimiser.fresh(self.config.local, rows, problem.layout.parameters))
            self.optimiser = fresh if self.optimiser is None else State.join([self.optimiser, fresh])
        self.clients = self.clients + clients if newcomers else clients

    # ---- an exchange ----

    def answer(self, parcel: Parcel) -> Requests[Reply]:
        """What clients do with what they got: train, score every model that the method owns, and save the one to use
        if that is due."""
        self._at_home(parcel)
        upload, losses, good, gradients, passes = State(), torch.zeros(0), list[bool](), 0, 0
        if parcel.train:
            upload, losses, good, gradients, passes = yield from self._train(parcel)
        diverged = {c for c, fine in zip(parcel.train, good, strict=True) if not fine}
        clients = [c for c in parcel.score if not (parcel.spare and c in diverged)]
        hand_out = HandOut(self.a, self.writer, self._bounds(parcel), parcel.ahead) if parcel.save else None
        found = self._score(clients, parcel, hand_out)
        handed = None
        if hand_out is not None:
            closing = not clients or clients[-1] < self.a.problem.known
            handed = Handed(hand_out.withheld, hand_out.clients, hand_out.end() if closing else {})
        return Reply(
            train=list(parcel.train),
            upload=upload,
            losses=losses,
            good=good,
            scored=clients,
            found=found,
            gradients=gradients,
            passes=passes,
            aside=0.0 if hand_out is None else hand_out.seconds,
            handed=handed,
        )

    def hear(self, news: News) -> None:
        """What became of the last exchange."""
        for client, (round, *_) in list(self.before.items()):
            if news.held.get(client, round - 1) >= round:
                del self.before[client]
        if self.keeper is not None:
            self.keeper.keep(news.keep)

    def _bounds(self, parcel: Parcel) -> Tensor:
        """(m,) losses beyond which a client's model has exploded."""
        bounds = torch.full((len(self.a.problem),), torch.inf, dtype=torch.float64)
        bounds[parcel.clients] = torch.tensor(parcel.bounds, dtype=torch.float64)
        return bounds

    def _at_home(self, parcel: Parcel) -> None:
        """Newcomers begin to remember with the first parcel they get."""
        new = set(parcel.clients) - set(self.clients)
        if new and new <= set(self.everyone) and min(new) >= self.a.problem.known:
            self.enlist(newcomers=True)
        elif new:
            raise ValueError(f"A parcel for client {min(new)}, which is not at this site.")

    # ---- training ----

    def _train(self, parcel: Parcel) -> Requests[tuple[Upload, Tensor, list[bool], int, int]]:
        """Local training, as many clients at a time as memory allows; what is not finite is refused, and the memory
        stays. What clients remember changes as they come to an end, a chunk at a time."""
        clients, name = parcel.train, self.config.method
        upload, losses, good, bounds = State(), list[Tensor](), list[bool](), self._bounds(parcel)
        gradients = passes = 0
        while len(good) < len(clients):
            chunk = self.capacity.next(clients, len(good), partial(self._one_step, parcel))
            request = self._request(chunk, parcel)
            reply = (yield request).pop()
            if isinstance(reply, RanOut):
                del request
                self.capacity.fewer(chunk, reply.said)
                continue
            (sent, memory), ledger = reply, request.cohort.ledger
            check_rows(name, sent, len(chunk), "train (upload)")
            check_rows(name, memory, len(chunk), "train (memory)")
            mean = ledger.mean_loss()
            gradients += 0 if ledger.gradients is None else int(ledger.gradients.sum())
            passes += 0 if ledger.passes is None else int(ledger.passes.sum())
            loss = torch.zeros(len(chunk)) if mean is None else mean.cpu()
            finite = sent.finite(len(chunk)) & memory.finite(len(chunk)) & torch.isfinite(loss)
            if ledger.optimiser is not None:
                finite &= ledger.optimiser.finite(len(chunk))
            fine = (finite & (loss <= bounds[chunk])).tolist()
            if len(chunk) == len(clients):
                upload = sent
            else:
                upload = upload or self._for_all(partial(sent.room_for, len(clients)))
                upload.put(slice(len(good), len(good) + len(chunk)), sent)
            self._remember(chunk, fine, memory, ledger.optimiser, parcel)
            losses.append(loss)
            good += fine
            del request, reply, sent, memory, ledger  # not to be held while the next ones train
        self._tell_trouble()
        return upload, torch.cat(losses), good, gradients, passes

    def _request(self, clients: list[int], parcel: Parcel) -> Request:
        """The training of these clients, on copies of what they got and of what they remember."""
        now = Round(parcel.round.number, parcel.round.of)
        cohort = replace(self.a.cohort.take(clients), now=now)
        if parcel.epochs > 1:
            local = cohort.local
            more = {"epochs": local.epochs * parcel.epochs, "steps": local.steps * parcel.epochs}
            cohort.local = local.model_copy(update=more)
        places = self._places(clients)
        memory = self.memory.take(places)
        optimiser = None if self.optimiser is None else self.optimiser.take(places)
        for i, client in enumerate(clients):
            if client in self.before:  # its last upload was lost: it starts where the server left it
                _, own, kept = self.before[client]
                memory.put(slice(i, i + 1), own)
                if optimiser is not None and kept is not None:
                    optimiser.put(slice(i, i + 1), kept)
        cohort.ledger.optimiser = optimiser
        return Request(self.method, cohort, parcel.rows(clients), memory, now)

    def _remember(
        self, clients: list[int], fine: list[bool], memory: Memory, optimiser: State | None, parcel: Parcel
    ) -> None:
        """Lets clients remember what their training left them with, if that is finite."""
        kept = [i for i, good in enumerate(fine) if good]
        if self.careful and parcel.sent:
            for client in (clients[i] for i in kept):
                place = self._places([client])
                kept_state = None if self.optimiser is None else self.optimiser.take(place)
                _, start, state = self.before.get(client, (0, self.memory.take(place), kept_state))
                self.before[client] = (parcel.round.number, start, state)
        if kept:
            places, whole = self._places([clients[i] for i in kept]), len(kept) == len(clients)
            rows = torch.tensor(kept, device=self.a.device)
            self.memory.put(places, memory if whole else memory.take(rows))
            if self.optimiser is not None and optimiser is not None:
                self.optimiser.put(places, optimiser if whole else optimiser.take(rows))

    def _one_step(self, parcel: Parcel, clients: list[int]) -> Upload:
        """What these clients would send after one step, to see what that takes."""
        request = self._request(clients, parcel)
        request.cohort.local = request.cohort.local.model_copy(update={"steps": 1})
        return request.method.train(request.cohort, request.message, request.memory, request.round)[0]

    def _places(self, clients: Sequence[int]) -> Tensor:
        """The rows of these clients in what is remembered here."""
        if self.clients == list(range(len(self.clients))):
            return torch.tensor(list(clients), device=self.a.device, dtype=torch.long)
        return torch.tensor([self.clients.index(c) for c in clients], device=self.a.device, dtype=torch.long)

    def _tell_trouble(self) -> None:
        """Once: what the execution cannot do as fast as it might."""
        if self.trouble != self.a.execution.trouble:
            self.trouble = self.a.execution.trouble
            self.tell(str(self.trouble))

    def _for_all(self, compute: Callable[[], State]) -> State:
        return capacity.for_all(compute, self.config, self.a.problem, self.shelf)

    # ---- scoring ----

    def _score(self, clients: list[int], parcel: Parcel, hand_out: HandOut | None) -> Found:
        """Scores every model the method owns, as many clients at a time as train together, and hands them out if that
        is due."""
        parts: list[Found] = []
        left = clients
        while left:
            chunk = (self.capacity.room or capacity.reckoned(self.a)).first(left)
            found = within_memory(partial(self._scored, chunk, parcel, hand_out))
            if isinstance(found, RanOut):
                self.capacity.fewer(chunk, found.said)
                continue
            parts.append(found)
            left = left[len(chunk) :]
        return joined(parts)

    def _scored(self, clients: list[int], parcel: Parcel, hand_out: HandOut | None) -> Found:
        models = self._models(clients, parcel)
        if parcel.chosen and self.keeper is not None:
            models = self.keeper.of(clients, models)
        found = scored(self.a, clients, models)
        if self.keeper is not None and not parcel.chosen and clients[-1] < self.a.problem.known:
            self.keeper.add(clients, models)
        if hand_out is not None:
            hand_out.add(clients, models, found)
        return found

    def _models(self, clients: list[int], parcel: Parcel) -> dict[str, Model]:
        """Every model the method owns, of these clients."""
        now = Round(parcel.round.number, parcel.round.of)
        cohort = replace(self.a.cohort.take(clients), now=now)
        models = self.method.models(cohort, parcel.rows(clients), self.memory.take(self._places(clients)), now)
        for name, model in models.items():
            check_model(self.config.method, name, model, len(clients), self.a.problem.layout.size)
        return models

    # ---- checkpoints ----

    def states(self) -> dict[str, State]:
        """Everything that clients remember."""
        before = State()
        if self.before:
            rounds, rows, kept = zip(*self.before.values(), strict=True)
            told = {"clients": torch.tensor(list(self.before)), "rounds": torch.tensor(rounds)}
            own = {f"memory/{n}": t for n, t in State.join(list(rows)).items()}
            states = [each for each in kept if each is not None]
            own |= {f"optimiser/{n}": t for n, t in State.join(states).items()} if states else {}
            before = State(**own, **told)
        return {
            "memory": self.memory,
            "optimiser": self.optimiser or State(),
            "before": before,
            "kept": State() if self.keeper is None else self.keeper.state(self.unseen),
        }

    def restore(self, states: dict[str, State], kept: Callable[[State], State]) -> None:
        """`kept` puts rows where they are kept."""
        self.memory, self.optimiser = kept(states["memory"]), kept(states["optimiser"]) or None
        before = dict(states["before"].items())
        for i, client in enumerate(before["clients"].tolist() if before else ()):
            row = torch.tensor([i], device=self.a.device)
            parts = [
                State(**{n.removeprefix(part): t for n, t in before.items() if n.startswith(part)}).to(self.a.device)
                for part in ("memory/", "optimiser/")
            ]
            own, optimiser = (state.take(row) if state else None for state in parts)
            self.before[client] = (int(before["rounds"][i]), own or State(), optimiser)
        if self.keeper is not None:
            self.keeper.restore(states["kept"])
