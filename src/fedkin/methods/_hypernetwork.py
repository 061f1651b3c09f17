"""What pFedHN and Panacea share: a hypernetwork at the server writes every client's weights, and learns from what
clients make of them."""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from typing import Annotated, Literal, cast

import torch
from pydantic import Field
from torch import nn
from torch.func import functional_call

from ..base import machine
from ..base.weights import Layout
from ..maths import collaboration as co
from ..maths.hypernetworks import Written, drawn, scale
from ..training.optimisers import Optimiser
from ._method import Cohort, Local, Memory, Message, Method, Model, Problem, Round, Server, State, Tensor, Upload


class Hypernetworked(Method):
    """theta = h(embeddings; psi), a row a client. Down theta_i, up what local training makes of it, theta~_i.

    The hypernetwork writes the first columns of a row, parameters only; those behind stay with the client, in the last
    columns of its `personal` row: BatchNorm's statistics, and whatever else `written` leaves out.
    """

    headline = "generated"
    remembers = "personal"
    # Clients train as everyone's do; what has to be found is the hypernetwork's rate, and its embeddings' beside it.
    rate = ("settings.server_lr", "settings.embedding_lr")

    hidden: Annotated[int, Field(ge=1, description="width of the hypernetwork's layers")] = 100
    train_embeddings: Annotated[bool, Field(description="train them; false: leave them as they were drawn")] = True
    scaled: Annotated[
        bool, Field(description="start with weights as wide as the initial model's, tensor by tensor")
    ] = True
    # One step of SGD is far too slow for the rounds there are: benchmarks/baseline_rates.py.
    server_optimiser: Annotated[Literal["sgd", "adam"], Field(description="of the hypernetwork")] = "adam"
    server_lr: Annotated[float, Field(gt=0, description="learning rate of the hypernetwork")] = 1e-3
    server_momentum: Annotated[float, Field(ge=0, lt=1, description="for sgd")] = 0.9
    server_weight_decay: Annotated[float, Field(ge=0, description="of the hypernetwork, and of embeddings")] = 0.0
    server_clip: Annotated[float, Field(ge=0, description="largest norm of the whole gradient; 0 is no limit")] = 0.0
    server_steps: Annotated[int, Field(ge=1, description="K_s: the hypernetwork's steps a round")] = 5
    embedding_lr: Annotated[
        Literal["same"] | Annotated[float, Field(gt=0)], Field(description="of the embeddings; same: server_lr")
    ] = "same"

    # ---- what differs ----

    @abstractmethod
    def network(self, embedding: int, outputs: int) -> nn.Module:
        """The hypernetwork, from embeddings of this length to that many weights; with a last layer `head`."""

    @abstractmethod
    def length(self, clients: int) -> int:
        """Of an embedding."""

    def written(self, layout: Layout) -> int:
        """How many columns of a row the hypernetwork writes."""
        return layout.parameters

    def beside(self, logits: Tensor, graph: Tensor) -> Tensor:
        """What is minimised beside the distance to the clients' models, where the hypernetwork has a generator."""
        raise NotImplementedError

    def check(self, problem: Problem, local: Local) -> None:
        outputs = self.written(problem.layout)
        size = _outline(self, self.length(problem.known), outputs)[1].size
        # The weights, their gradient before and after it is one row, and the optimiser's state.
        copies = 3 + (2 if self.server_optimiser == "adam" else int(self.server_momentum > 0))
        takes, device = size * problem.initial.element_size() * copies, problem.initial.device
        free = machine.free_bytes(device)
        if takes > free:
            raise ValueError(
                f"The hypernetwork does not fit: to write {outputs:,} weights it has {size:,} parameters, which with "
                f"gradient and optimiser take {takes / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB are free "
                f"({device.type}). Take {' or '.join(self._smaller())}."
            )

    def _smaller(self) -> list[str]:
        """What makes a hypernetwork smaller."""
        return ["a smaller model", f"a smaller settings.hidden (now {self.hidden})"]

    def trained_with(self, local: Local) -> str:
        rule = self._rule.model_copy(update={"lr": self.server_lr})
        return f"{local.words}, hypernetwork {rule.words}"

    # ---- the server ----

    def begin(self, problem: Problem, round: Round) -> Server:
        outputs, initial = self.written(problem.layout), problem.initial
        h = self._embeddings(problem.names, self.length(len(problem)), round, initial)
        network = drawn(lambda: self.network(h.shape[1], outputs), round.rng("hypernetwork")).to(initial)
        offset = torch.zeros_like(initial[:outputs])
        if self.scaled:
            with torch.no_grad():
                theta, _ = cast(Written, network(h, self._graph(problem)))
            sizes = [f.stop - f.start for f in problem.layout.fields if f.stop <= outputs]
            offset = scale(cast(nn.Linear, network.head), theta, initial[:outputs], sizes)
        psi = Layout.of(network).row(network)[None]
        server = State({"psi": psi, "offset": offset, **self._fresh("psi", psi)}, embeddings=h)
        return server.replace(**self._fresh("embeddings", h)) if self.train_embeddings else server

    @staticmethod
    def _embeddings(names: tuple[str, ...], length: int, round: Round, like: Tensor) -> Tensor:
        """(m, e) from N(0, 1), each client's row by its name."""
        rows = [torch.randn(length, generator=round.rng("embedding", name), dtype=like.dtype) for name in names]
        return torch.stack(rows).to(like.device)

    def download(self, problem: Problem, server: Server, clients: Tensor, round: Round) -> Message:
        known = problem.known
        graph = self._graph(problem)
        theta = self._theta(server, server.embeddings[:known], None if graph is None else graph[:known, :known])
        if bool((clients < known).all()):
            return State(generated=theta[clients])
        rows = self._served(server, known, graph, theta)
        return State(**{model: torch.cat([theta, own])[clients] for model, own in rows.items()})

    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        """K_s steps of gradient descent on sum_S ||theta~_i - theta_i(psi)||^2 / (2 |S|) + `beside`, theta~ fixed."""
        rates = {
            "psi": self.server_lr,
            "embeddings": self.server_lr if self.embedding_lr == "same" else self.embedding_lr,
        }
        for _ in range(self.server_steps):
            gradient = self._gradient(problem, server, clients, upload.theta)
            if not self.train_embeddings:
                del gradient["embeddings"]
            if self.server_clip:
                norm = torch.stack([torch.linalg.vector_norm(G) for G in gradient.values()]).norm()
                factor = (self.server_clip / (norm + 1e-6)).clamp(max=1.0)
                gradient = {name: G * factor for name, G in gradient.items()}
            # Momentum and weight decay move every client's embedding, whether it took part or not, as in pFedHN's code.
            for name, G in gradient.items():
                W, state = _tensors(server, name)
                Optimiser(self._rule, W, W.shape[1], state).step(W, G, rates[name])
        return server

    def _gradient(self, problem: Problem, server: Server, clients: Tensor, wanted: Tensor) -> dict[str, Tensor]:
        """Of psi (1, P) and of the embeddings (m, e): the vector-Jacobian product of theta with (theta - theta~) / |S|,
        and the gradient of `beside`. Both papers print theta~ - theta, which leads away from theta~ (trap T6)."""
        graph, h = self._graph(problem), server.embeddings.detach().requires_grad_()
        network, psi = self._outlined(server)
        psi = {name: part.detach().requires_grad_() for name, part in psi.items()}
        theta, logits = cast(Written, functional_call(network, psi, (h, graph)))
        theta = (theta + server.offset)[clients]
        outputs, cotangents = [theta], [(theta.detach() - wanted) / len(clients)]
        if logits is not None and graph is not None:
            outputs.append(self.beside(logits, graph))
            cotangents.append(torch.ones_like(outputs[-1]))
        *parts, of_h = torch.autograd.grad(outputs, [*psi.values(), h], cotangents)
        return {"psi": torch.cat([G.reshape(1, -1) for G in parts], dim=1), "embeddings": of_h}

    @torch.no_grad()
    def _theta(self, server: Server, h: Tensor, graph: Tensor | None) -> Tensor:
        """(m, n) the weights written for these embeddings on this graph."""
        network, psi = self._outlined(server)
        theta, _ = cast(Written, functional_call(network, psi, (h, graph)))
        return theta + server.offset

    def _outlined(self, server: Server) -> tuple[nn.Module, dict[str, Tensor]]:
        """The hypernetwork without numbers, and its numbers by name: views of psi."""
        network, layout = _outline(self, server.embeddings.shape[1], len(server.offset))
        return network, layout.tensors(server.psi[0])

    def _graph(self, problem: Problem) -> Tensor | None:
        """(m, m) what the hypernetwork sees of the graph: all of it, or nothing."""
        seen = problem.graph if self.uses_graph else None
        return None if seen is None else seen.to(problem.initial)

    @property
    def _rule(self) -> Local:
        return Local(
            optimiser=self.server_optimiser, momentum=self.server_momentum, weight_decay=self.server_weight_decay
        )

    def _fresh(self, name: str, W: Tensor) -> dict[str, Tensor]:
        """The server's optimiser's state for rows W, by the names under which the server keeps it."""
        return {f"{name}.{n}": t for n, t in Optimiser.fresh(self._rule, W, W.shape[1]).items()}

    # ---- the clients ----

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> tuple[Upload, Memory]:
        W = cohort.fit(_completed(message.generated, memory), round)
        return State(theta=W[:, : message.generated.shape[1]]), State(personal=W)

    def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
        generated = {model: _completed(theta, memory) for model, theta in message.items()}
        return {**generated, "personal": memory.personal}

    # ---- newcomers ----

    def welcome(self, problem: Problem, server: Server, round: Round) -> Server:
        """Newcomers bring the embeddings that were drawn for them, and have not moved yet."""
        h = self._embeddings(problem.names[problem.known :], server.embeddings.shape[1], round, problem.initial)
        rows = {"embeddings": h, **(self._fresh("embeddings", h) if self.train_embeddings else {})}
        before = dict(server.items())
        return server.replace(**{name: torch.cat([before[name], own]) for name, own in rows.items()})

    def _served(self, server: Server, known: int, graph: Tensor | None, theta: Tensor) -> dict[str, Tensor]:
        """(new, n) what newcomers get, by model: weights written for the embedding as drawn, for the mean of their
        neighbours' and for zero; and on a graph the mean of what was written for their neighbours, theta (known, n)."""
        h, kin = server.embeddings, _kin(known, len(server.embeddings) - known, graph, theta)
        starts = {"generated": h[known:], "generated-mean": co.mix(kin, h[:known])}
        starts["generated-zero"] = torch.zeros_like(h[known:])
        served = {
            model: self._theta(server, torch.cat([h[:known], own]), graph)[known:] for model, own in starts.items()
        }
        return served if graph is None else {**served, "neighbours": co.mix(kin, theta)}


@lru_cache(maxsize=16)
def _outline(method: Hypernetworked, embedding: int, outputs: int) -> tuple[nn.Module, Layout]:
    """A method's hypernetwork without numbers, and where they lie in psi; the same one for every round."""
    with torch.device("meta"):
        network = method.network(embedding, outputs)
    return network, Layout.of(network)


def _completed(theta: Tensor, memory: Memory) -> Tensor:
    """(m, D) whole rows: what was written, then what stays with the client."""
    return torch.cat([theta, memory.personal[:, theta.shape[1] :]], dim=1)


def _kin(known: int, new: int, graph: Tensor | None, like: Tensor) -> Tensor:
    """(new, known) how much a newcomer takes of each known client: rows sum to one, and are even for one without a
    known neighbour, and where there is no graph."""
    A = like.new_zeros(new, known) if graph is None else graph[known:, :known]
    A = torch.where(A.sum(1, keepdim=True) > 0, A, 1.0)
    return A / A.sum(1, keepdim=True)


def _tensors(server: Server, name: str) -> tuple[Tensor, State]:
    """Rows that the server trains, and its optimiser's state for them."""
    tensors, prefix = dict(server.items()), f"{name}."
    return tensors[name], State(**{n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
