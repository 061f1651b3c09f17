"""pFedHN (Shamsian et al., ICML 2021): a hypernetwork writes each client's weights from an embedding of the client."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from ..base.weights import Layout
from ..maths.hypernetworks import MLPHypernetwork
from ._hypernetwork import Hypernetworked
from ._method import Local, Problem


class PFedHN(Hypernetworked):
    """A hypernetwork at the server writes each client's weights from an embedding of the client, theta_i = h(v_i; phi).

    Models: `generated` theta_i, and `personal`, what local training makes of it; phi and v_i are trained towards that.
    With `personal_classifier` (pFedHN-PC) the last layer is not written: it stays with the client, who trains it.
    """

    training = frozenset()

    embedding: Annotated[
        Literal["auto"] | Annotated[int, Field(ge=1)], Field(description="length; auto: floor(1 + clients / 4)")
    ] = "auto"
    layers: Annotated[int, Field(ge=0, description="hidden layers behind the first")] = 3
    personal_classifier: Annotated[bool, Field(description="leave the last layer to the client")] = False
    scaled: Annotated[
        bool, Field(description="start with weights as wide as the initial model's, tensor by tensor")
    ] = False
    server_clip: Annotated[float, Field(ge=0, description="largest norm of the whole gradient; 0 is no limit")] = 50.0

    def network(self, embedding: int, outputs: int) -> nn.Module:
        return MLPHypernetwork(embedding, self.hidden, self.layers, outputs)

    def length(self, clients: int) -> int:
        return 1 + clients // 4 if self.embedding == "auto" else self.embedding

    def written(self, layout: Layout) -> int:
        head = layout.columns("head") if self.personal_classifier else None
        return layout.parameters if head is None else int(head[0])

    def check(self, problem: Problem, local: Local) -> None:
        if self.written(problem.layout) == 0:
            raise ValueError(
                "The model has one layer, so with settings.personal_classifier = true the hypernetwork would have "
                "nothing to write. Take a model with more layers, or set it to false."
            )
        super().check(problem, local)

    def _smaller(self) -> list[str]:
        own = "settings.personal_classifier = true, which leaves out the last layer"
        return [*super()._smaller(), *([] if self.personal_classifier else [own])]
