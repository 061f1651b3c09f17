"""FedAvg inside the known groups: the upper bound that methods which are not told the groups should approach."""

from __future__ import annotations

import torch

from ._method import Cohort, Local, Memory, Message, Method, Model, Problem, Round, Server, State, Tensor, Upload
from ._shared import weighted_mean


class Groups(Method):
    """One model a known group, averaged as in FedAvg.

    Models: `cloud` (the group's) and `finetuned`.
    """

    headline = "cloud"
    remembers = "finetuned"
    training = frozenset()

    def check(self, problem: Problem, local: Local) -> None:
        if problem.groups is None:
            raise ValueError(
                "Method 'groups' averages inside known groups, and this federation has none: "
                "use the practical, relabelled or mixed split, or give each client its group."
            )

    def begin(self, problem: Problem, round: Round) -> Server:
        count = int(_groups(problem).max()) + 1
        return State({"models": problem.initial.repeat(count, 1)}, xi=self._xi(problem))

    def _xi(self, problem: Problem) -> Tensor:
        """(m, m) the weights that full participation of the known gives: n_j over the group's sum.

        A newcomer to a group that nobody knew keeps to itself.
        """
        groups, known = _groups(problem), problem.known
        xi = torch.zeros(len(problem), len(problem), dtype=torch.float64, device=groups.device)
        xi[:, :known] = (groups[:, None] == groups[:known]) * problem.samples[:known].double()
        strangers = xi.sum(1) == 0
        xi[strangers, strangers] = 1.0
        return xi / xi.sum(1, keepdim=True)

    def download(self, problem: Problem, server: Server, clients: Tensor, round: Round) -> Message:
        return State(u=server.models[_groups(problem)[clients]])

    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> tuple[Upload, Memory]:
        W = cohort.fit(message.u, round)
        return State(W=W), State(finetuned=W)

    def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
        return {"cloud": message.u, "finetuned": memory.finetuned}

    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        groups, n = _groups(problem)[clients], problem.samples[clients]
        for group in torch.unique(groups).tolist():
            inside = groups == group
            server.models[group] = weighted_mean(n[inside], upload.W[inside])
        return server

    def welcome(self, problem: Problem, server: Server, round: Round) -> Server:
        strangers = int(_groups(problem).max()) + 1 - len(server.models)
        models = torch.cat([server.models, problem.initial.repeat(max(0, strangers), 1)])
        return State({"models": models}, xi=self._xi(problem))


def _groups(problem: Problem) -> Tensor:
    assert problem.groups is not None, "check() has made sure of it"
    return problem.groups
