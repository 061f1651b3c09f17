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
STRANGERS = 0.1
"""Trust below this is none."""
NOTHING = 0.02
"""Skill that counts for none: who is right a little more often than a guess may be so by chance."""
LEAST = 1 / 256
"""Of the weight on others that the server keeps where there is no trust. The client trains as if it were none (little
by little it would become like strangers, all the same), and sees by it when others have come near."""


def trust(others: Tensor, own: Tensor) -> Tensor:
    """(m,) from the skill of the others' models and of one's own, min(1, (others / own) / ENOUGH) ** STEEPNESS.

    Measured with digits: of what their own model knows, others know 0 to 0.3 for clients without kin, 0.5 to 1 for
    those with kin, and as much for a client who has kin and 40 % wrong labels. Others who know nothing are not trusted,
    however little one knows oneself.
    """
    share = (others - NOTHING).clamp(min=0) / (own - NOTHING).clamp(min=NOTHING)
    found = (share / ENOUGH).clamp(max=1).pow(STEEPNESS)
    return torch.where(found < STRANGERS, 0.0, found)


def heeded(cohort: Cohort, message: Message, memory: Memory) -> tuple[Tensor, dict[str, Tensor]]:
    """(m, D) the cloud model as far as it is trusted, and what a client sends for it: its `trust` (m,) in the others.

    From u = (1 - tau) w + tau z and the client's own w, which it remembers. Who trusts less than the server believed,
    and mixed by, goes back towards w at once. Where nobody asks, as no tau was sent, u is what it is.
    """
    u, w = message.u, memory.personal
    if "tau" not in message:
        return u, {}
    tau, told = message.tau, message.trust
    mixed = tau > 0
    z = torch.where(mixed[:, None], w + (u - w) / torch.where(mixed, tau, 1.0)[:, None], w)
    others, own = skills(cohort.execution, cohort.train, [z, w], cohort.task)
    found = torch.where(mixed, trust(others, own).to(u), told)
    kept = torch.where(mixed, (found / told.clamp(min=LEAST)).clamp(max=1), 1.0)[:, None]
    return torch.where(kept == 1, u, w + kept * (u - w)), {"trust": found}
