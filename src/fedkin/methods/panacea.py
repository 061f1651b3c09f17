"""Panacea (graph-relational federated learning, ICLR 2024 submission 3052): a hypernetwork that knows who is related to
whom, and is held to it by a graph generator."""

from __future__ import annotations

from typing import Annotated, Literal, cast

import torch
from pydantic import Field
from torch.func import functional_call

from ..maths.hypernetworks import Generator, Written, generator_loss
from ._method import Problem, Server, Tensor
from .panacea_gn import PanaceaGN


class Panacea(PanaceaGN):
    """A graph hypernetwork at the server writes each client's weights from who is related to whom, and a generator has
    to draw the graph again from what the encoder made of it. Needs a graph.

    Panacea-GN, theta = M(E(h, A)), with lambda_d L_d added to what the server descends on: the cross-entropy between
    the graph and edges with chance sigma(z^_u . z^_v). The paper contradicts itself on what z^ is; by default it comes
    from an MLP of its own, z^ = D(z). Models: `generated` theta_i, and `personal`, what local training makes of it.
    """

    training = frozenset()

    generator: Annotated[
        Generator, Field(description="what z^ is: own, by an MLP of its own; identity, z; shared, from M's trunk")
    ] = "own"
    generator_weight: Annotated[float, Field(ge=0, description="lambda_d; 0 is panacea_gn")] = 0.1
    balance: Annotated[
        Literal["none", "grda"], Field(description="grda: edges and pairs without weigh the same in all")
    ] = "none"

    def generates(self) -> Generator | None:
        return self.generator if self.generator_weight else None

    def beside(self, logits: Tensor, graph: Tensor) -> Tensor:
        """lambda_d L_d."""
        return self.generator_weight * generator_loss(logits, graph, balanced=self.balance == "grda")

    @torch.no_grad()
    def edges(self, problem: Problem, server: Server) -> Tensor:
        """(m, m) what the generator makes of each pair of clients, as logits: how well it draws the graph again."""
        network, psi = self._outlined(server)
        _, logits = cast(Written, functional_call(network, psi, (server.embeddings, self._graph(problem))))
        if logits is None:
            raise ValueError("Without a generator (generator_weight = 0) nothing is made of pairs of clients.")
        return logits
