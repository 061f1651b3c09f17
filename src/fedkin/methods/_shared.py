"""What several methods have alike: one model at the server for all, means by weights, and settings for each client."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field

from ..maths.collaboration import mix
from ._method import Local, Memory, Message, Method, Problem, Proximal, Round, Server, State, Tensor

Auto = Literal["auto"]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
EachPositive = Positive | dict[str, Positive]
EachShare = Share | dict[str, Share]
"""One number for all clients, or one for each by name."""
Form = Annotated[
    Literal["exact", "gradient"],
    Field(description="exact: the term's own step after each of the optimiser's; gradient: in them, as in the papers"),
]


class GlobalModel(Method):
    """A method whose server keeps one model w, from the common start on, and sends it to everyone."""

    def begin(self, problem: Problem, round: Round) -> Server:
        return State({"w": problem.initial.clone()})

    def download(self, problem: Problem, server: Server, clients: Tensor, round: Round) -> Message:
        return State({"w": server.w})


class StartOfEach(Method):
    """A method whose clients may start each at a row of its own; what they remember starts there, too."""

    init: Annotated[Literal["common", "independent", "pretrained"], Field(description="where clients start")] = "common"

    @property
    def uncounted(self) -> int:
        return int(self.init == "pretrained")

    def starts(self, problem: Problem, names: Sequence[str], round: Round) -> Tensor:
        """(m, D) a starting row for each of these clients; independent ones are drawn by name."""
        if self.init == "independent":
            return torch.stack([problem.fresh(round.rng("initial weights", name)) for name in names])
        return problem.initial.repeat(len(names), 1)

    def enlist(self, problem: Problem, clients: Tensor, round: Round) -> Memory:
        names = [problem.names[i] for i in clients.tolist()]
        return State(**{str(self.remembers): self.starts(problem, names, round)})


def weighted_mean(n: Tensor, W: Tensor) -> Tensor:
    """(D,) sum_i n_i w_i / sum_i n_i of the rows of W (m, D), with weights n (m,) such as their numbers of samples."""
    n = n.double()
    return mix((n / n.sum())[None], W)[0]


def per_client(setting: float | dict[str, float], names: Sequence[str], among: Tensor | None = None) -> Tensor:
    """(m,) the value of a setting for each client, or for some of them; in float64."""
    chosen = names if among is None else [names[i] for i in among.tolist()]
    values = [setting[name] for name in chosen] if isinstance(setting, dict) else [setting] * len(chosen)
    return torch.tensor(values, dtype=torch.float64)


def check_per_client(names: Sequence[str], *settings: str | float | dict[str, float]) -> None:
    """Raises ValueError if a setting has values for some of the clients only, or for others."""
    for setting in settings:
        unknown = [name for name in setting if name not in names] if isinstance(setting, dict) else []
        if unknown:
            raise ValueError(f"A value is given for {', '.join(unknown[:5])}, which is no client here.")
        missing = [name for name in names if isinstance(setting, dict) and name not in setting]
        if missing:
            raise ValueError(f"A value for each client was begun, but {', '.join(missing[:5])} has none.")


def held_near(anchor: Tensor, strength: float, form: Form) -> Proximal | None:
    """(strength / 2) ||w - anchor||^2, for clients with anchors (m, D); None where that is nothing."""
    if not strength:
        return None
    return Proximal(anchor, torch.full_like(anchor[:, :1], 1 / strength), form == "exact")


def check_proximal(form: Form, local: Local, rounds: int, beta: Callable[[Round], float], named: str = "beta") -> None:
    """Raises ValueError where SGD on the gradient of ||w - u||^2 / (2 beta_k) would diverge in a round k of the run."""
    if form == "exact" or local.optimiser != "sgd":
        return
    # Of a quadratic with curvature 1 / beta: heavy-ball momentum bears more than plain steps do, Nesterov's less.
    limit = 2 * (1 + local.momentum) / (1 + 2 * local.momentum * local.nesterov)
    every = [Round(k, rounds) for k in range(1, rounds + 1)]
    steps = [(local.lr_at(k.number, rounds), max(beta(k), sys.float_info.min)) for k in every]
    k = next((k for k, (rate, held) in enumerate(steps, 1) if rate / held > limit), None)
    if k is not None:
        rate, held = steps[k - 1]
        most = limit * local.lr / max(rate / held for rate, held in steps)
        raise ValueError(
            f'settings.proximal = "gradient" diverges under SGD where rate / beta > {limit:.3g}, first in round {k}: '
            f"the rate is {rate:g} and {named} is {held:g}, a ratio of {rate / held:g}. Take settings.proximal = "
            f'"exact", or a rate of at most {most:g}.'
        )
