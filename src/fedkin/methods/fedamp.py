"""FedAMP (Huang et al., AAAI 2021): attentive message passing between clients whose models are alike."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from ..maths import collaboration as co
from ..maths.attention import Kind, named
from ..training.optimisers import Proximal
from . import _newcomers, _shared, _theory, _trust
from ._method import Cohort, Local, Memory, Message, Model, Problem, Round, Server, State, Tensor, Upload
from ._shared import Auto, EachPositive, Positive, StartOfEach, check_per_client, per_client


class FedAMP(StartOfEach):
    """Each client gets a cloud model of its own, u_i = sum_j xi_ij w_j, in which similar models weigh more.

    Models: `cloud` u_i, and `personal` w_i, what local training near u_i makes of it.
    """

    headline = "cloud"
    remembers = "personal"
    newcomer_rounds = 3
    training = frozenset({"beta", "beta_decay", "beta_every", "proximal", "init_from", "mode", "alpha", "strength"})

    sigma: Annotated[Auto | Positive, Field(description="width of attention; auto: from the models")] = "auto"
    weight_on_others: _trust.Weight = "auto"
    beta: Annotated[EachPositive, Field(description="of the proximal term ||w - u||^2 / (2 beta); or one each")] = 1e4
    beta_decay: Annotated[float, Field(gt=0, le=1, description="factor by which beta falls")] = 0.1
    beta_every: Annotated[int, Field(ge=1, description="rounds between decays of beta")] = 30
    proximal: _shared.Form = "exact"
    top: Annotated[int, Field(ge=0, description="others that a client attends to, the nearest; 0: all")] = 0
    similarity: Annotated[
        Literal["all", "head", "updates"] | list[str], Field(description="weights that attention looks at, or layers")
    ] = "all"
    init_from: Annotated[Literal["cloud", "local"], Field(description="where a round's training starts")] = "cloud"
    mode: Annotated[Literal["practice", "theory"], Field(description="theory: Algorithm 1, step alpha")] = "practice"
    attention: Annotated[Kind, Field(description="function A of distances")] = "negative_exponential"
    height: Annotated[float, Field(gt=0, description="of mcp and scad")] = 1.0
    gamma: Annotated[float, Field(gt=0, description="of mcp")] = 2.0
    a: Annotated[float, Field(gt=2, description="of scad")] = 3.7
    alpha: Annotated[Auto | Positive, Field(description="theory: step; auto is lambda / sqrt(K)")] = "auto"
    strength: Annotated[float, Field(gt=0, description="theory: lambda of equation (1)")] = 1.0

    def check(self, problem: Problem, local: Local) -> None:
        _theory.check(self.mode, self.attention, self.sigma, self.top)
        check_per_client(problem.names, self.weight_on_others, self.beta)
        _shared.check_proximal(self.proximal, local, problem.rounds, lambda k: float(self._beta(problem, k).min()))
        self.looked_at(problem, problem.initial[None])  # refuses layers that the model does not have

    def begin(self, problem: Problem, round: Round) -> Server:
        W, heard = self.starts(problem, problem.names, round), torch.full((len(problem),), self.init == "independent")
        return State(W=W, heard=heard, trust=torch.ones_like(W[:, 0]), xi=self.xi(problem, W, heard))

    def enlist(self, problem: Problem, clients: Tensor, round: Round) -> Memory:
        return _trust.enlisted(super().enlist(problem, clients, round), self.mode, self.weight_on_others)

    def welcome(self, problem: Problem, server: Server, round: Round) -> Server:
        return _newcomers.welcomed(problem, server)

    def download(self, problem: Problem, server: Server, clients: Tensor, round: Round) -> Message:
        u, asked = co.mix(server.xi[clients], server.W), _trust.asked(self.mode, self.weight_on_others)
        told = {"tau": 1 - server.xi[clients, clients].to(u), "trust": server.trust[clients]} if asked else {}
        return State(u=u, **told)

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> tuple[Upload, Memory]:
        """Towards the minimum of F_i(w) + ||w - u_i||^2 / (2 beta_k); before round 1 of F_i alone."""
        (u, trust), beta = _trust.heeded(cohort, message, memory), self._beta(cohort, round).to(message.u)
        start = memory.personal if self.init_from == "local" and round.number >= 1 else u
        W = cohort.fit(start, round, extra=Proximal(u, beta, self.proximal == "exact") if round.number >= 1 else None)
        return State(W=W, **trust), _trust.remembered(memory, u, start, W, round)

    def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
        return {"cloud": _trust.cloud(cohort, message, memory, round), "personal": memory.personal}

    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        server.W[clients], server.heard[clients] = upload.W, True
        if "trust" in upload:
            server.trust[clients] = upload.trust
        if problem.known < len(problem):
            return _newcomers.introduced(problem, server, *self.looked_at(problem, server.W), self.top)
        return server.replace(xi=self.xi(problem, server.W, server.heard, server.trust))

    def xi(self, problem: Problem, W: Tensor, heard: Tensor, trust: Tensor | None = None) -> Tensor:
        """(m, m) collaboration; clients never heard from take no part in it and keep the model they have."""
        told = torch.ones_like(W[:, 0]) if trust is None else trust
        return _newcomers.among_heard(heard, W, lambda among: self.collaborate(problem, W, told, among))

    def collaborate(self, problem: Problem, W: Tensor, trust: Tensor, among: Tensor | None = None) -> Tensor:
        """xi among clients that were heard from: equation (5) in theory, (7)-(11) of the preprint in practice."""
        if self.mode == "theory":  # xi_ij = alpha A'(||w_i - w_j||^2 / 2)
            distances, _ = co.squared_distances(*self.looked_at(problem, W), among)
            return _theory.xi(distances, named(self.attention, dict(self)), self.alpha, self.strength, problem.rounds)
        others = co.softmax_of_others(co.only_nearest(self.logits(problem, W, among), self.top))
        if isinstance(self.weight_on_others, str):
            trusted = (trust if among is None else trust[among]).clamp(min=_trust.LEAST)
            return co.with_self(others, co.automatic_weight_on_others(others) * trusted)
        return co.with_self(others, per_client(self.weight_on_others, problem.names, among))

    def logits(self, problem: Problem, W: Tensor, among: Tensor | None) -> Tensor:
        """(m, m) log A'(||w_i - w_j||^2 / 2): -||w_i - w_j||^2 / (2 sigma), equation (9), but for a constant."""
        distances, norms = co.squared_distances(*self.looked_at(problem, W), among)
        if self.attention == "negative_exponential":
            return co.gaussian_logits(distances, norms, None if self.sigma == "auto" else self.sigma)
        return named(self.attention, dict(self)).log_slope(distances / 2)

    def looked_at(self, problem: Problem, W: Tensor) -> tuple[Tensor, Tensor | None]:
        """The weights and columns that attention compares: never buffers (trap T12)."""
        layers = "all" if self.similarity == "updates" else self.similarity  # distances of updates are those of weights
        return W[:, : problem.layout.parameters], problem.layout.columns(layers)

    def _beta(self, of: Cohort | Problem, round: Round) -> Tensor:
        """(m, 1) beta_k of each client."""
        if self.mode == "theory":
            return per_client(_theory.beta(self.alpha, self.strength, round.of), of.names)[:, None]
        decay = self.beta_decay ** ((min(round.number, round.of) - 1) // self.beta_every)
        return per_client(self.beta, of.names)[:, None] * decay
