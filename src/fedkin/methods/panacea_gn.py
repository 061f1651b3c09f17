"""Panacea-GN (graph-relational federated learning, ICLR 2024 submission 3052): Panacea without its graph generator."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..maths.hypernetworks import Generator, GraphHypernetwork, Normalisation
from ._hypernetwork import Hypernetworked
from ._method import Local, Problem


class PanaceaGN(Hypernetworked):
    """Panacea without its generator: a graph hypernetwork at the server writes each client's weights from who is
    related to whom. Needs a graph.

    Models: `generated` theta = M(E(h, A)), and `personal`, what local training makes of it. E is a graph convolutional
    network over the embeddings h of all clients, M an MLP; h, E and M are trained on what clients make of theta. E lets
    little through but the smoothest modes of the graph, which is what withstands liars and serves newcomers: no
    residual connections, unless asked for (`skip`).
    """

    uses_graph = True
    training = frozenset()

    embedding: Annotated[int, Field(ge=1, description="length of a client's embedding")] = 100
    layers: Annotated[int, Field(ge=1, description="graph convolutions")] = 3
    normalisation: Annotated[
        Normalisation, Field(description="symmetric: D^-1/2 (A + I) D^-1/2; mean: D^-1 (A + I)")
    ] = "symmetric"
    skip: Annotated[bool, Field(description="add a graph layer's input to its output, where both are as wide")] = False

    def network(self, embedding: int, outputs: int) -> GraphHypernetwork:
        return GraphHypernetwork(
            embedding,
            self.hidden,
            self.layers,
            outputs,
            normalisation=self.normalisation,
            skip=self.skip,
            generator=self.generates(),
        )

    def generates(self) -> Generator | None:
        """The kind of graph generator that is trained beside."""
        return None

    def length(self, clients: int) -> int:
        return self.embedding

    def check(self, problem: Problem, local: Local) -> None:
        if problem.graph is None:
            raise ValueError(
                "Panacea needs to know who is related to whom, and this federation has no graph: use --graph inferred, "
                "--graph groups where groups are known, or give the federation a graph (--graph FILE)."
            )
        super().check(problem, local)
