"""HeurFedAMP (Huang et al., AAAI 2021): FedAMP with the cosine of models in place of their distance."""

from __future__ import annotations

from typing import Any

from ..maths import collaboration as co
from ._method import Local, Problem, Tensor
from .fedamp import SPLITS, FedAMP

# sigma by data set: (practical, iid, pathological); preprint, tables 2-4.
SIGMA = {"mnist": (25, 25, 25), "fmnist": (100, 50, 100), "emnist": (50, 50, 50), "cifar100": (10, 10, 10)}


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

    @classmethod
    def paper(cls, data: str, split: str) -> dict[str, Any]:
        values = super().paper(data, split)
        return {**values, "sigma": SIGMA[data][SPLITS.index(split)]} if values else {}
