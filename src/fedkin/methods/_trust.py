"""Whether others know anything of a client's own data: what keeps a client without kin from being mixed with strangers.

Attention only says who is nearest. Where nobody is near it is flat, its entropy is high, and the automatic weight on
others would be large; mixing then makes strangers look alike. So each client asks how much what it gets of the others,
z, knows of its own training data beside what its own model w knows, and sends the answer, one number.
"""

from __future__ import annotations

import torch

from ..training.evaluation import skills
from ._method import Cohort, Memory, Message, Tensor

ENOUGH = 0.6
"""Others who know this part of what one's own model knows, of the data it was trained on, are trusted in full."""
STEEPNESS = 3
LEAST = 1 / 256
"""What remains of the weight on others: so little does no harm, and lets a client see whether others have come near."""
NOTHING = 0.05
"""Skill that counts for nothing: before anyone has learned anything, there is nothing to lose either."""


def trust(others: Tensor, own: Tensor) -> Tensor:
    """(m,) from the skill of the others' models and of one's own, min(1, (others / own) / ENOUGH) ** STEEPNESS.

    Measured with digits: of what their own model knows, others know 0 to 0.3 for clients without kin, 0.5 to 1 for
    those with kin, and as much for a client who has kin and 40 % wrong labels.
    """
    share = (others.clamp(min=0) + NOTHING) / (own.clamp(min=0) + NOTHING)
    return (share / ENOUGH).clamp(max=1).pow(STEEPNESS).clamp(min=LEAST)


def in_others(cohort: Cohort, message: Message, memory: Memory) -> dict[str, Tensor]:
    """`trust` (m,) in the others, from u = (1 - tau) w + tau z and the client's own w, which it remembers.

    Where nobody asks for it no tau was sent, and there is none.
    """
    if "tau" not in message:
        return {}
    u, w, tau = message.u, memory.personal, message.tau[:, None]
    z = torch.where(tau > 0, w + (u - w) / torch.where(tau > 0, tau, 1.0), w)
    others, own = skills(cohort.execution, cohort.train, [z, w], cohort.task)
    return {"trust": trust(others, own).to(u)}
