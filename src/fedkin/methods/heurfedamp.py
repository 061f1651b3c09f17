"""HeurFedAMP (Huang et al., AAAI 2021): FedAMP with the cosine of models in place of their distance."""

from __future__ import annotations

from ..maths import collaboration as co
from ._method import Local, Problem, Tensor
from .fedamp import FedAMP


class HeurFedAMP(FedAMP):
    """FedAMP for deep networks: attention exp(sigma cos(w_i, w_j)), on raw weights.

    Models: `cloud` u_i, and `personal` w_i.
    """

    training = FedAMP.training

    def check(self, problem: Problem, local: Local) -> None:
        if self.mode == "theory" or self.attention != "negative_exponential":
            raise ValueError("HeurFedAMP looks at cosines: theory mode and functions of the distance are FedAMP's.")
        super().check(problem, local)

    def logits(self, problem: Problem, W: Tensor, among: Tensor | None) -> Tensor:
        origin = problem.initial[: problem.layout.parameters] if self.similarity == "updates" else None
        distances = co.cosine_distances(*self.looked_at(problem, W), origin, among)
        return co.cosine_logits(distances, None if self.sigma == "auto" else self.sigma)
