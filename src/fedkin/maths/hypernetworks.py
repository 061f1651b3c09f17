"""Networks that write the weights of other networks: one at the server, for all clients, fed with an embedding of each.

Both kinds are plain modules, called as `network(embeddings, graph)`, and give (theta, logits): theta (m, n), a row of
weights for each client, and (m, m) what the graph generator makes of each pair of clients, None where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

Normalisation = Literal["symmetric", "mean"]
Generator = Literal["own", "identity", "shared"]
Written = tuple[Tensor, Tensor | None]

SMALL = 0.01
"""Root mean square of the offsets written to tensors that are constant in the initial model, such as BatchNorm's."""


class MLPHypernetwork(nn.Module):
    """That of pFedHN, each client's weights from its own embedding: a linear layer, `layers` times ReLU and another,
    and a linear head for each tensor.

    The heads are the rows of one linear layer: they have the same fan-in, so they start as if each were drawn alone.
    """

    def __init__(self, embedding: int, hidden: int, layers: int, outputs: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(embedding, hidden))
        for _ in range(layers):
            self.trunk.extend([nn.ReLU(), nn.Linear(hidden, hidden)])
        self.head = nn.Linear(hidden, outputs)

    def forward(self, embeddings: Tensor, graph: Tensor | None) -> Written:
        return self.head(self.trunk(embeddings)), None


class GraphHypernetwork(nn.Module):
    """That of Panacea: z = E(h, A), graph convolutions over all clients, then theta = M(z), an MLP of each client's z,
    and the generator's logits z^ z^T, with z^ = D(z), z itself (`identity`), or M's last hidden layer (`shared`)."""

    def __init__(
        self,
        embedding: int,
        hidden: int,
        layers: int,
        outputs: int,
        *,
        normalisation: Normalisation = "symmetric",
        skip: bool = False,
        generator: Generator | None = None,
    ) -> None:
        from torch_geometric.nn.dense import DenseGCNConv  # takes seconds to import

        super().__init__()
        self.normalisation, self.skip, self.kind = normalisation, skip, generator
        widths = [embedding] + [hidden] * layers
        self.encoder = nn.ModuleList(DenseGCNConv(a, b) for a, b in pairwise(widths))
        self.trunk = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, outputs)
        if generator == "own":  # drawn last, so that all else starts as it would without
            self.generator = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))

    def forward(self, embeddings: Tensor, graph: Tensor) -> Written:
        z = self.encode(embeddings, graph)
        inner = self.trunk(z)
        theta = self.head(inner)
        if self.kind is None:
            return theta, None
        seen = self.generator(z) if self.kind == "own" else z if self.kind == "identity" else inner
        return theta, seen @ seen.T

    def encode(self, z: Tensor, graph: Tensor) -> Tensor:
        """ReLU between the layers, none behind the last. The layers add the self loops: D^-1/2 (A + I) D^-1/2."""
        loops = self.normalisation == "symmetric"
        A = graph if loops else neighbour_mean(graph)
        for at, layer in enumerate(self.encoder):
            moved = layer(z, A, add_loop=loops)[0]
            if at < len(self.encoder) - 1:
                moved = moved.relu()
            z = z + moved if self.skip and z.shape == moved.shape else moved
        return z


def neighbour_mean(graph: Tensor) -> Tensor:
    """D^-1 (A + I), which takes means over neighbours and oneself. As its rows sum to one, a layer's own normalisation
    leaves it as it is."""
    A = graph + torch.eye(len(graph), dtype=graph.dtype, device=graph.device)
    return A / A.sum(1, keepdim=True)


def generator_loss(logits: Tensor, graph: Tensor, *, balanced: bool = False) -> Tensor:
    """L_d: the mean over all ordered pairs u != v of the cross-entropy between an edge, A_uv > 0, and sigma(logit_uv).

    balanced: half the weight to edges, half to pairs without, however few these are (as GRDA has it).
    """
    edges = (graph > 0).to(logits)
    pairs = 1 - torch.eye(len(graph), dtype=logits.dtype, device=logits.device)
    kinds = [edges * pairs, (1 - edges) * pairs] if balanced else [pairs]
    weight = sum((kind / kind.sum().clamp(min=1) for kind in kinds), torch.zeros_like(pairs)) / len(kinds)
    return nn.functional.binary_cross_entropy_with_logits(logits, edges, weight, reduction="sum")


# ---- the start ----


def drawn(build: Callable[[], nn.Module], generator: torch.Generator) -> nn.Module:
    """A module whose initial weights come from this generator alone."""
    with torch.random.fork_rng([]):
        torch.manual_seed(generator.initial_seed())
        return build()


@torch.no_grad()
def scale(head: nn.Linear, theta: Tensor, initial: Tensor, sizes: Iterable[int]) -> Tensor:
    """Scales the rows of `head`, which wrote theta (m, n), so that each tensor starts as wide as in `initial` (n,): the
    same standard deviation, over its entries and all clients. `sizes`: how many columns each tensor has.

    Returns (n,) what to add to theta: zero, but for tensors that are constant in `initial` (BatchNorm's, or of a single
    number), which have no width to start with: `initial` itself, and the head writes small offsets to it.
    """
    offset, stop = torch.zeros_like(initial), 0
    for size in sizes:
        at = slice(stop, stop := stop + size)
        wanted, written = initial[at].std(correction=0), theta[:, at].std(correction=0)
        if (initial[at] == initial[at][0]).all():
            offset[at] = initial[at]
            wanted, written = wanted.new_tensor(SMALL), theta[:, at].square().mean().sqrt()
        head.weight[at] *= wanted / written
        head.bias[at] *= wanted / written
    return offset
