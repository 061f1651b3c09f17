"""FedAMP (Huang et al., AAAI 2021): attentive message passing between clients whose models are alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field

from ..maths import collaboration as co
from ..maths.attention import FUNCTIONS, Attention
from ._method import (
    Cohort,
    Local,
    Memory,
    Message,
    Method,
    Model,
    Problem,
    Proximal,
    Rng,
    Server,
    State,
    Tensor,
    Upload,
)

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


class FedAMP(Method):
    """Each client gets a cloud model of its own, u_i = sum_j xi_ij w_j, in which similar models weigh more.

    Models: `cloud` u_i, and `personal` w_i, what local training near u_i makes of it.
    """

    headline = "cloud"
    newcomer_rounds = 3
    training = frozenset({"beta", "beta_decay", "beta_every", "init_from", "mode", "alpha", "strength"})

    sigma: Annotated[Literal["auto"] | Positive, Field(description="width of attention; auto: from the models")] = (
        "auto"
    )
    weight_on_others: Annotated[
        Literal["auto"] | Share | dict[str, Share],
        Field(description="tau in the preprint; one number, one a client by name, or auto"),
    ] = "auto"
    beta: Annotated[
        Positive | dict[str, Positive],
        Field(description="step of the proximal term ||w - u||^2 / (2 beta); one number or one a client"),
    ] = 1e4
    beta_decay: Annotated[float, Field(gt=0, le=1, description="factor by which beta falls")] = 0.1
    beta_every: Annotated[int, Field(ge=1, description="rounds between decays of beta")] = 30
    top: Annotated[int, Field(ge=0, description="others that a client attends to, the nearest; 0: all")] = 0
    similarity: Annotated[
        Literal["all", "head", "updates"] | list[str], Field(description="weights that attention looks at, or layers")
    ] = "all"
    init: Annotated[Literal["common", "independent", "pretrained"], Field(description="where clients start")] = "common"
    init_from: Annotated[Literal["cloud", "local"], Field(description="where a round's training starts")] = "cloud"
    mode: Annotated[Literal["practice", "theory"], Field(description="theory: Algorithm 1, step alpha")] = "practice"
    attention: Annotated[
        Literal["negative_exponential", "tamed_square_root", "mcp", "scad"],
        Field(description="function A of distances"),
    ] = "negative_exponential"
    height: Annotated[float, Field(gt=0, description="of mcp and scad")] = 1.0
    gamma: Annotated[float, Field(gt=0, description="of mcp")] = 2.0
    a: Annotated[float, Field(gt=2, description="of scad")] = 3.7
    alpha: Annotated[Literal["auto"] | Positive, Field(description="theory: step; auto is lambda / sqrt(K)")] = "auto"
    strength: Annotated[float, Field(gt=0, description="theory: lambda of equation (1)")] = 1.0

    @property
    def uncounted(self) -> int:
        return int(self.init == "pretrained")

    def check(self, problem: Problem, local: Local) -> None:
        if self.sigma == "auto" and (self.mode == "theory" or self.attention == "tamed_square_root"):
            raise ValueError("An automatic sigma is for practice mode with negative_exponential; give sigma a number.")
        if self.top and self.mode == "theory":
            raise ValueError(
                "Attention to the top nearest only is for practice mode; theory mode steps along them all."
            )
        for setting in (self.weight_on_others, self.beta):
            missing = [n for n in problem.names if isinstance(setting, dict) and n not in setting]
            if missing:
                raise ValueError(f"A value for each client was begun, but {', '.join(missing[:5])} has none.")
        if isinstance(self.similarity, list):
            problem.layout.columns(self.similarity)

    # ---- the server ----

    def begin(self, problem: Problem, rng: Rng) -> Server:
        m = len(problem)
        W = problem.initial.repeat(m, 1)
        if self.init == "independent":
            W = torch.stack([problem.fresh(rng("initial weights", name)) for name in problem.names])
        heard = torch.full((m,), self.init == "independent")
        return State(W=W, heard=heard, xi=self.xi(problem, W, heard))

    def xi(self, problem: Problem, W: Tensor, heard: Tensor) -> Tensor:
        """(m, m) collaboration; clients never heard from take no part in it and keep the model they have."""
        if len(W) > 1 and bool(heard.all()):
            return self.collaborate(problem, W)
        xi = torch.eye(len(W), dtype=torch.float64, device=W.device)
        among = heard.nonzero().squeeze(1)
        if len(among) > 1:
            xi[among[:, None], among] = self.collaborate(problem, W, among)
        return xi

    def collaborate(self, problem: Problem, W: Tensor, among: Tensor | None = None) -> Tensor:
        """xi among clients that were heard from: equation (5) in theory, (7)-(11) of the preprint in practice."""
        if self.mode == "theory":
            distances, _ = co.squared_distances(*self.looked_at(problem, W), among)
            return co.theory_weights(distances, self._function(), self._alpha(problem.rounds))
        others = co.softmax_of_others(co.only_nearest(self.logits(problem, W, among), self.top))
        if self.weight_on_others == "auto":
            return co.with_self(others, co.automatic_weight_on_others(others))
        names = problem.names if among is None else [problem.names[i] for i in among.tolist()]
        tau = _per_client(self.weight_on_others, names)
        return co.with_self(others, torch.tensor(tau, dtype=others.dtype, device=others.device))

    def logits(self, problem: Problem, W: Tensor, among: Tensor | None) -> Tensor:
        distances, norms = co.squared_distances(*self.looked_at(problem, W), among)
        if self.attention == "negative_exponential":
            return co.gaussian_logits(distances, norms, None if self.sigma == "auto" else self.sigma)
        return self._function().log_slope(distances / 2)

    def looked_at(self, problem: Problem, W: Tensor) -> tuple[Tensor, Tensor | None]:
        """The weights and columns that attention compares: never buffers (trap T12)."""
        layers = "all" if self.similarity == "updates" else self.similarity  # distances of updates are those of weights
        return W[:, : problem.layout.parameters], problem.layout.columns(layers)

    def _function(self) -> Attention:
        settings = {"sigma": self.sigma, "height": self.height, "gamma": self.gamma, "a": self.a}
        kind = FUNCTIONS[self.attention]
        return kind(**{name: settings[name] for name in kind.__dataclass_fields__})  # type: ignore[arg-type]

    def download(self, problem: Problem, server: Server, clients: Tensor, round: int, rng: Rng) -> Message:
        return State(u=co.mix(server.xi[clients], server.W))

    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: int, rng: Rng) -> Server:
        server.W[clients] = upload.W
        server.heard[clients] = True
        if problem.known < len(problem):
            return server.replace(xi=self._introduced(problem, server))
        return server.replace(xi=self.xi(problem, server.W, server.heard))

    # ---- the clients ----

    def enlist(self, problem: Problem, clients: Tensor, rng: Rng) -> Memory:
        return State(personal=problem.initial.repeat(len(clients), 1))

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: int) -> tuple[Upload, Memory]:
        u, beta = message.u, self._beta(cohort, round).to(message.u)
        if round < 1:  # pre-training alone, before the first exchange
            W = cohort.fit(u, round)
        else:
            start = u if self.init_from == "cloud" else memory.personal
            W = cohort.fit(start, round, extra=Proximal(u, beta))
        return State(W=W), State(personal=W)

    def models(self, cohort: Cohort, message: Message, memory: Memory, round: int) -> dict[str, Model]:
        return {"cloud": message.u, "personal": memory.personal}

    def _alpha(self, rounds: int) -> float:
        return self.strength / rounds**0.5 if self.alpha == "auto" else self.alpha

    def _beta(self, cohort: Cohort, round: int) -> Tensor:
        """(m, 1) beta_k of each client."""
        if self.mode == "theory":
            return torch.full((len(cohort), 1), self._alpha(cohort.rounds) / self.strength, dtype=torch.float64)
        decay = self.beta_decay ** ((min(round, cohort.rounds) - 1) // self.beta_every)
        return torch.tensor(_per_client(self.beta, cohort.names), dtype=torch.float64)[:, None] * decay

    # ---- newcomers ----

    def welcome(self, problem: Problem, server: Server, rng: Rng) -> Server:
        """Newcomers start from the mean of the known models."""
        known, new = problem.known, len(problem) - problem.known
        W = torch.cat([server.W, server.W[self._hosts(problem, server)].mean(0).repeat(new, 1)])
        xi = torch.eye(len(problem), dtype=torch.float64, device=W.device)
        xi[:known, :known] = server.xi
        return State(W=W, xi=xi, heard=torch.cat([server.heard, server.heard.new_zeros(new)]))

    def _introduced(self, problem: Problem, server: Server) -> Tensor:
        """Newcomers find their kin among the known clients, by the cosine of w - mean(known); found by measurement:
        treated as members at once, they attend to each other."""
        w, columns = self.looked_at(problem, server.W)
        hosts = self._hosts(problem, server)
        distances = co.cosine_distances(w, columns, origin=w[hosts].mean(0))
        for i in range(problem.known, len(problem)):
            if server.heard[i]:
                among = torch.cat([hosts, hosts.new_tensor([i])])
                logits = co.cosine_logits(distances[among][:, among], None)
                others = co.softmax_of_others(co.only_nearest(logits, self.top))
                server.xi[i, among] = co.with_self(others, co.automatic_weight_on_others(others))[-1]
        return server.xi

    @staticmethod
    def _hosts(problem: Problem, server: Server) -> Tensor:
        """The known clients that were heard from; all of them if none was."""
        heard = server.heard[: problem.known]
        return (heard if heard.any() else ~heard).nonzero().squeeze(1)


def _per_client(setting: float | dict[str, float], names: Sequence[str]) -> list[float]:
    return [setting[n] for n in names] if isinstance(setting, dict) else [setting] * len(names)
