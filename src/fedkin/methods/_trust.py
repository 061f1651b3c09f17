"""Whether others know anything of a client's own data: what keeps a client without kin from being mixed with strangers.

Attention only says who is nearest. Where nobody is near it is flat, its entropy is high, and the automatic weight on
others would be large; mixing then makes strangers look alike. So each client asks how much what it gets of the others,
z, knows of its own data beside what it knows itself, and sends the answer, one number.

What it knows itself is not its model w alone, which starts near z in every round and, where steps are small, stays
there: it also keeps v, the sum of what its own training changed, which would be w had it never listened to anyone.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from ..training.skill import MOST, known
from ._method import Cohort, Memory, Message, Round, State, Tensor
from ._shared import Auto, EachShare

Weight = Annotated[
    Auto | Literal["attention"] | EachShare,
    Field(description="tau; a number, one a client, attention: by its entropy, auto: that times trust in others"),
]

ENOUGH, STEEPNESS, STRANGERS = 0.95, 8, 0.1
"""Others who know this part of what one knows oneself are trusted in full; how fast trust falls below it; and trust
below which there is none."""
NOTHING = 0.02
"""Skill that counts for none: who is right a little more often than a guess may be so by chance."""
HOLDS, GUESS = 0.7, 5
"""Of what a model knows of the data that it was trained on, the part that holds for other data: a guess, which counts
as much as so many samples of validation data, by which one knows."""
LEAST = 1 / 256
"""Of the weight on others that the server keeps where there is no trust. The client trains as if it were none (little
by little it would become like strangers, all the same), and sees by it when others have come near."""


def trust(others: Tensor, own: Tensor) -> Tensor:
    """(m,) from the skill of the others' models and of one's own, min(1, (others / own) / ENOUGH) ** STEEPNESS.

    Others who know nothing are not trusted, however little one knows oneself.
    """
    share = (others - NOTHING).clamp(min=0) / (own - NOTHING).clamp(min=NOTHING)
    found = (share / ENOUGH).clamp(max=1).pow(STEEPNESS)
    return torch.where(found < STRANGERS, 0.0, found)


def heeded(cohort: Cohort, message: Message, memory: Memory) -> tuple[Tensor, dict[str, Tensor]]:
    """(m, D) the cloud model as far as it is trusted, and what a client sends for it: its `trust` (m,) in the others.

    From u = (1 - tau) w + tau z and the client's own w, which it remembers. Who trusts less than the server believed,
    and mixed by, goes back towards w at once; who trusts nobody to w or v, whichever knows more. Where nobody asks, as
    no tau was sent, u is what it is.
    """
    u, w = message.u, memory.personal
    if "tau" not in message:
        return u, {}
    tau, told, v = message.tau, message.trust, memory.alone
    mixed = tau > 0
    z = torch.where(mixed[:, None], w + (u - w) / torch.where(mixed, tau, 1.0)[:, None], w)
    found, alone = _found(cohort, z, v, w)
    found = torch.where(mixed, found.to(u), told)
    kept = torch.where(mixed, (found / told.clamp(min=LEAST)).clamp(max=1), 1.0)[:, None]
    mine = torch.where((mixed & alone & (found == 0))[:, None], v, w)
    return torch.where(kept == 1, u, mine + kept * (u - mine)), {"trust": found}


def _found(cohort: Cohort, z: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """(m,) trust in the others by what their models know of the client's data, of which they saw nothing, and by how
    often they are right there, whichever is less; and whether the client's own model, beside which that is seen, is v.
    """
    for part in (cohort.train, cohort.validation):
        cohort.ledger.looked(tuple(min(n, MOST) for n in part.counts), models=3)
    trained, held = (
        [each.to(z.device) for each in known(cohort.execution, part, [z, v, w], cohort.task)]
        for part in (cohort.train, cohort.validation)
    )
    alone = trained[0][1] > trained[0][2]
    n = torch.tensor(_telling(cohort), dtype=torch.float64, device=z.device).T
    both = []
    for on_train, on_held, count in zip(trained, held, n, strict=True):
        ours, ours_held = (torch.where(alone, each[1], each[2]) for each in (on_train, on_held))
        both.append(trust(on_train[0], (count * ours_held + GUESS * HOLDS * ours) / (count + GUESS)))
    return torch.minimum(*both), alone


def _telling(cohort: Cohort) -> list[tuple[int, int]]:
    """For each client how many validation samples say something of a model's skill, and of how often it is right: of a
    single class nothing is to be known."""
    told = []
    for i in range(len(cohort.validation)):
        targets = cohort.validation.targets(i)
        count = cohort.task.telling(targets)
        single = cohort.task.kind == "classification" and len(targets) > 0 and bool((targets == targets[0]).all())
        told.append((0 if single else count, count))
    return told


def asked(mode: str, weight: object) -> bool:
    """Whether clients are asked how far they trust the others."""
    return mode == "practice" and weight == "auto"


def enlisted(memory: Memory, mode: str, weight: object) -> Memory:
    """What clients remember at the start, where they will be asked: v, which begins where they do, and in which round
    they last heeded a cloud model, and which, as yet none."""
    if not asked(mode, weight):
        return memory
    own = memory.personal
    never = torch.full_like(own[:, 0], -1, dtype=torch.long)
    return memory.replace(alone=own.clone(), heeded=own.clone(), heeded_in=never)


def remembered(memory: Memory, u: Tensor, start: Tensor, W: Tensor, round: Round) -> Memory:
    """Their models; v, the sum of what their own training changed; and the cloud model u as they heeded it."""
    if "alone" not in memory:
        return State(personal=W)
    now = torch.full_like(memory.heeded_in, round.number)
    return State(personal=W, alone=memory.alone + (W - start), heeded=u, heeded_in=now)


def cloud(cohort: Cohort, message: Message, memory: Memory, round: Round) -> Tensor:
    """(m, D) the cloud model as far as it is trusted: what a client that trained in this round began at, and what one
    that did not, as in the closing exchange, would begin at. Where nobody asks, u is what it is."""
    if "tau" not in message:
        return message.u
    trained = memory.heeded_in == round.number
    if trained.all():
        return memory.heeded
    return torch.where(trained[:, None], memory.heeded, heeded(cohort, message, memory)[0])
