"""SFL (Chen et al., IJCAI 2022): the server spreads the clients' models along a given graph, or one that it learns."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch.nn import functional as F

from ..maths.collaboration import mix, squared_distances
from ..training.optimisers import Extra
from ._method import Cohort, Local, Memory, Message, Method, Model, Problem, Round, Server, State, Tensor, Upload
from ._shared import Form, check_proximal, held_near

# SFL*, the learned graph: the values of the authors' code.
DIMENSIONS, SHARPNESS, NEIGHBOURS, STEPS, RATE, SHARE = 40, 3.0, 30, 10, 0.01, 0.05


class SFL(Method):
    """The server spreads the clients' models over a graph; clients train from the mean of what comes of it, held near
    that mean and near their own. Needs a graph.

    u_i = sum_j xi_ij v_j with xi = alpha A^p + (1 - alpha) I: p steps over the graph A, which has self loops and rows
    that sum to one. Clients train from the mean g of all u_i, held near both g and u_i. (`proximal` is for squared
    distances; others are held by gradients.)

    Models: `cloud` u_i, `global` g, and `personal` v_i, the client's own after training. Clients that did not train
    enter the next spreading with their last u_i. With `learned` (SFL*) a twentieth of A gives way to a graph learned
    from the distances between models; as published, that one relates models that are far apart. The given graph enters
    anew every round, as in the authors' code: mixed over and over, it would be forgotten after some dozens of rounds.
    """

    headline = "cloud"
    remembers = "personal"
    uses_graph = True
    training = frozenset({"strength", "regulariser", "proximal"})

    power: Annotated[int, Field(ge=1, description="p: steps over the graph")] = 3
    alpha: Annotated[float, Field(ge=0, le=1, description="share of what comes over the graph")] = 1.0
    strength: Annotated[float, Field(ge=0, description="lambda: how near to u_i and to g clients are held")] = 0.3
    regulariser: Annotated[
        Literal["squared", "norm", "none"],
        Field(description="lambda / 2 times squared distances, lambda times distances, or none, as the code has it"),
    ] = "squared"
    proximal: Form = "exact"
    learned: Annotated[bool, Field(description="SFL*: learn the graph while training")] = False

    def check(self, problem: Problem, local: Local) -> None:
        if problem.graph is None:
            raise ValueError(
                "SFL spreads models over a graph of the clients, and this federation has none: draw one by known "
                "groups (--graph groups), infer it (--graph inferred), or give a file (--graph relations.csv)."
            )
        if self.regulariser == "squared" and self.strength:
            beta = 1 / (2 * self.strength)
            check_proximal(self.proximal, local, problem.rounds, lambda k: beta, "1 / (2 strength)")

    # ---- the server ----

    def begin(self, problem: Problem, round: Round) -> Server:
        start = problem.initial
        shared, rows = {"g": start.clone()}, {"U": start.repeat(len(problem), 1), "xi": self._xi(_looped(problem))}
        if self.learned:
            layers, embeddings = _learner(problem, round)
            shared, rows = {**shared, **layers}, {**rows, **embeddings}
        return State(shared, **rows)

    def _xi(self, A: Tensor) -> Tensor:
        far: Tensor = torch.linalg.matrix_power(A, self.power)
        return self.alpha * far + (1 - self.alpha) * torch.eye(len(A)).to(A)

    def download(self, problem: Problem, server: Server, clients: Tensor, round: Round) -> Message:
        return State({"g": server.g}, u=server.U[clients])

    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        V = server.U
        V[clients] = upload.V
        if self.learned:
            distances, _ = squared_distances(V[:, : problem.layout.parameters])
            server = fitted(server, distances.sqrt())
            A = (1 - SHARE) * _looped(problem) + SHARE * strongest(relations(server))
            server = server.replace(xi=self._xi(A))
        U = mix(server.xi, V)
        return server.replace(U=U, g=U.mean(0))

    def welcome(self, problem: Problem, server: Server, round: Round) -> Server:
        """A newcomer gets the mean of its known neighbours' models, by the weights of its edges; without any, g."""
        m, known = len(problem), problem.known
        edges = _graph(problem)[known:, :known]
        edges = rows_to_one(torch.where(edges.sum(1, keepdim=True) > 0, edges, 1.0))
        xi = torch.cat([F.pad(server.xi, (0, m - known)), F.pad(edges, (0, m - known))])
        return server.replace(U=torch.cat([server.U, mix(edges, server.U)]), xi=xi)

    # ---- the clients ----

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> tuple[Upload, Memory]:
        V = cohort.fit(message.g, round, extra=self._held(message.u, message.g))
        return State(V=V), State(personal=V)

    def _held(self, u: Tensor, g: Tensor) -> Extra | None:
        """In the authors' code this comes from detached copies, so that its gradient is zero (trap T1)."""
        if self.regulariser == "none":
            return None
        if self.regulariser == "squared":  # two anchors are one, their mean, that pulls twice as much
            return held_near((u + g) / 2, 2 * self.strength, self.proximal)

        def towards(anchor: Tensor, w: Tensor, k: int) -> Tensor:
            apart = w - anchor[:k, : w.shape[1]]
            length: Tensor = torch.linalg.vector_norm(apart, dim=1, keepdim=True)
            return apart / length.clamp(min=torch.finfo(apart.dtype).tiny)

        return lambda w, k: self.strength * (towards(u, w, k) + towards(g, w, k))

    def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
        return {"cloud": message.u, "global": message.g, "personal": memory.personal}


def _graph(problem: Problem) -> Tensor:
    assert problem.graph is not None, "check() has made sure of it"
    return problem.graph.double()


def _looped(problem: Problem) -> Tensor:
    """A: the graph with self loops, its rows made to sum to one."""
    graph = _graph(problem)
    return rows_to_one(graph + torch.eye(len(graph)).to(graph))


def rows_to_one(A: Tensor) -> Tensor:
    """Each row divided by its sum."""
    return A / A.sum(1, keepdim=True)


# ---- SFL*: the learned graph ----

LAYERS = {"weight1": (DIMENSIONS,) * 2, "bias1": (DIMENSIONS,), "weight2": (DIMENSIONS,) * 2, "bias2": (DIMENSIONS,)}
EMBEDDINGS = ("embedding1", "embedding2")


def _learner(problem: Problem, round: Round) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Two linear layers, and two embeddings of each client by its name; drawn as torch does by default."""
    source, to = round.rng("learned graph"), problem.initial.device
    layers = {
        name: ((2 * torch.rand(shape, generator=source, dtype=torch.float64) - 1) / DIMENSIONS**0.5).to(to)
        for name, shape in LAYERS.items()
    }
    embeddings = {}
    for name in EMBEDDINGS:
        streams = [round.rng(name, client) for client in problem.names]
        drawn = [torch.randn(DIMENSIONS, generator=stream, dtype=torch.float64) for stream in streams]
        embeddings[name] = torch.stack(drawn).to(to)
    return layers, embeddings


def relations(server: Server) -> Tensor:
    """(m, m) relu(tanh(3 a)) of the antisymmetric a = x y^T - y x^T, x and y from the embeddings: one way a pair."""
    x = torch.tanh(SHARPNESS * F.linear(server.embedding1, server.weight1, server.bias1))
    y = torch.tanh(SHARPNESS * F.linear(server.embedding2, server.weight2, server.bias2))
    return torch.relu(torch.tanh(SHARPNESS * (x @ y.T - y @ x.T)))


def fitted(server: Server, distances: Tensor) -> Server:
    """A few steps that bring the relations nearer to the distances (m, m), both with rows of length one."""
    target = F.normalize(distances)
    for _ in range(STEPS):
        weights = {name: getattr(server, name).detach().requires_grad_() for name in (*LAYERS, *EMBEDDINGS)}
        with torch.enable_grad():
            loss = F.mse_loss(F.normalize(relations(server.replace(**weights))), target)
        slopes = torch.autograd.grad(loss, list(weights.values()))
        moved = {n: (w - RATE * slope).detach() for (n, w), slope in zip(weights.items(), slopes, strict=True)}
        server = server.replace(**moved)
    return server


def strongest(adjacency: Tensor) -> Tensor:
    """Each row's largest entries alone, made to sum to one; a client that has none keeps to itself."""
    values, places = adjacency.topk(min(NEIGHBOURS, len(adjacency)), dim=1)
    kept = torch.zeros_like(adjacency).scatter_(1, places, values)
    alone = torch.diag((kept.sum(1) == 0).to(kept))
    return rows_to_one(kept + alone)
