"""Clients whose models are not their own yet, at a server that keeps W, xi, trust and who was heard from: FedAMP's."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..maths import collaboration as co
from . import _trust
from ._method import Problem, Server, State, Tensor


def among_heard(heard: Tensor, W: Tensor, weights: Callable[[Tensor | None], Tensor]) -> Tensor:
    """(m, m) xi by `weights` among those that were heard from (None: all were); the others keep the model they have."""
    if len(W) > 1 and bool(heard.all()):
        return weights(None)
    xi = torch.eye(len(W), dtype=torch.float64, device=W.device)
    among = heard.nonzero().squeeze(1)
    if len(among) > 1:
        xi[among[:, None], among] = weights(among)
    return xi


def welcomed(problem: Problem, server: Server) -> Server:
    """Newcomers get the mean of the known models, and as long as nothing was heard of them their own is the start."""
    known, new, hosts = problem.known, len(problem) - problem.known, _hosts(problem, server)
    W = torch.cat([server.W, problem.initial.repeat(new, 1)])
    xi = torch.zeros(len(problem), len(problem), dtype=torch.float64, device=W.device)
    xi[:known, :known] = server.xi
    xi[known:, hosts] = 1 / len(hosts)
    heard, trust = server.heard.new_zeros(new), server.trust.new_ones(new)
    return State(W=W, xi=xi, heard=torch.cat([server.heard, heard]), trust=torch.cat([server.trust, trust]))


def introduced(problem: Problem, server: Server, w: Tensor, columns: Tensor | None, top: int) -> Server:
    """Newcomers find their kin among the known clients, by the cosine of w - mean(known) in these columns; found by
    measurement: treated as members at once, they attend to each other."""
    hosts, trust = _hosts(problem, server), server.trust.clamp(min=_trust.LEAST)
    distances = co.cosine_distances(w, columns, origin=w[hosts].mean(0))
    for i in range(problem.known, len(problem)):
        if server.heard[i]:
            server.xi[i] = 0
            among = torch.cat([hosts, hosts.new_tensor([i])])
            logits = co.cosine_logits(distances[among][:, among], None)
            others = co.softmax_of_others(co.only_nearest(logits, top))
            server.xi[i, among] = co.with_self(others, co.automatic_weight_on_others(others) * trust[i])[-1]
    return server


def _hosts(problem: Problem, server: Server) -> Tensor:
    """The known clients that were heard from; all of them if none was."""
    heard = server.heard[: problem.known]
    return (heard if heard.any() else ~heard).nonzero().squeeze(1)
