"""Panacea's linear theory (its Theorems 3.1 to 3.3 and Lemma 3.1), as functions of float64 matrices.

The weights of n clients are the *columns* of Theta = W V G: W (d, k) is the hypernetwork, V (k, n) the clients'
embeddings, and G (n, n) what L layers of aggregation over the graph do. Without a graph G = I: that is pFedHN. Attacked
clients send no gradient, so whatever is learnt is learnt from the others' columns. `attacked` is a mask (n,).

docs/panacea-theory.md says what the theorems mean and where the paper had to be mended.
"""

from __future__ import annotations

import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor


def printed_aggregation(A: Tensor, layers: int = 1) -> Tensor:
    """G = G~^L as the paper prints it, G~ = D^-1 (A + I) with D the row sums: rows sum to one. A: (n, n), no loops."""
    closed = A.double() + torch.eye(len(A), dtype=torch.float64)
    G: Tensor = torch.linalg.matrix_power(closed / closed.sum(1, keepdim=True), layers)
    return G


def aggregation(A: Tensor, layers: int = 1) -> Tensor:
    """G = (G~^T)^L, with which column i of V G is the mean over client i and its neighbours: columns sum to one.

    V stands to the left of G, so this is what the paper means; what it prints is the transpose.
    """
    return printed_aggregation(A, layers).T


def best_fit(target: Tensor, G: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Theorem 3.1: W (d, k) and V (k, n) that minimise ||target - W V G||^2 for an invertible G. target: (d, n).

    With target = P S Q^T: W = P_k and V = S_k Q_k^T G^-1; what remains is the sum of s_j^2 over j > k.
    """
    P, S, Qt = torch.linalg.svd(target, full_matrices=False)
    return P[:, :k], torch.linalg.solve(G, S[:k, None] * Qt[:k], left=False)


def learnt(V0: Tensor, target: Tensor, G: Tensor, attacked: Tensor) -> Tensor:
    """Theorem 3.3: where gradient descent from V0 ends, V0 + (T_u - V0 G_u) G_u^+, u = those not attacked.

    V0, target T: (..., k, n), with W* T what clients ask for; its attacked columns are not looked at. W = W*, of rank
    k, stays fixed.
    """
    G_u = G[:, ~attacked]
    inverse: Tensor = torch.linalg.pinv(G_u)
    return V0 + (target[..., ~attacked] - V0 @ G_u) @ inverse


def unseen(G: Tensor, attacked: Tensor) -> Tensor:
    """M = (I - G_u G_u^+) G_a (n, m): what the others' columns do not tell about the attacked clients'."""
    G_u, G_a = G[:, ~attacked], G[:, attacked]
    U: Tensor = torch.linalg.svd(G_u, full_matrices=False).U[:, : torch.linalg.matrix_rank(G_u)]
    return G_a - U @ (U.T @ G_a)


def risk_factor(G: Tensor, attacked: Tensor) -> float:
    """r(G, m) = ||M||^2, of Lemma 3.1: between 0 and m if columns of G sum to one."""
    return unseen(G, attacked).square().sum().item()


def expected_risk(G: Tensor, attacked: Tensor, d: int, k: int, R: Tensor | None = None) -> float:
    """E ||Theta^ - Theta*||^2 / n = (d k / n) (||M||^2 + ||R M||^2), for Theta* = W* V* G.

    W* (d, k) and V0 are i.i.d. N(0, 1); V* = Z R with such a Z, so R^T R is the covariance of its columns. Without R
    they are independent, and this is the paper's (2 d k / n) r(G, m); with G = I its 2 d k m / n for pFedHN.
    """
    M = unseen(G, attacked)
    asked = M if R is None else R @ M
    return d * k / len(G) * (M.square().sum() + asked.square().sum()).item()


def consistent(A: Tensor) -> Tensor:
    """R (c, n) marks the c components of a graph: V* = Z R, equal within each, are the solutions of V* G = V*."""
    c, labels = connected_components(A.numpy() != 0, directed=False)
    return torch.nn.functional.one_hot(torch.as_tensor(labels).long(), int(c)).T.double()


def drawn_risks(
    G: Tensor, attacked: Tensor, d: int, k: int, draws: int, rng: torch.Generator, R: Tensor | None = None
) -> Tensor:
    """(draws,) ||Theta^ - Theta*||^2 / n of new W*, V*, V0, as in `expected_risk`, each learnt to the end."""
    n = len(G)
    R = torch.eye(n, dtype=G.dtype) if R is None else R
    W, Z, V0 = (torch.randn(draws, *shape, generator=rng, dtype=G.dtype) for shape in ((d, k), (k, len(R)), (k, n)))
    target = Z @ R @ G
    return (W @ (learnt(V0, target, G, attacked) @ G - target)).square().sum((1, 2)) / n
