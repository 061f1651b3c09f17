"""What a method is: a frozen, typed configuration and functions of explicit state.

A round: every client that can be reached gets its `download`; those that take part `train`; `models` is called on that
message and the memory after training, and its rows are scored; `update` takes the uploads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from .. import papers
from ..base.round import Round
from ..base.state import Memory, Message, Server, State, Upload
from ..training.cohort import Cohort
from ..training.evaluation import Model
from ..training.optimisers import Local, Proximal
from ._problem import Problem

__all__ = [
    "Cohort",
    "Local",
    "Memory",
    "Message",
    "Method",
    "Model",
    "Problem",
    "Proximal",
    "Round",
    "Server",
    "State",
    "Tensor",
    "Upload",
]


class Method(BaseModel, ABC):
    """Base of all methods; the fields of a subclass are its settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    headline: ClassVar[str]
    """The model whose score stands for the method."""
    local: ClassVar[dict[str, Any]] = {}
    """Local training that the method presupposes, where it differs from the data set's."""
    remembers: ClassVar[str | None] = None
    """The model that clients remember between rounds, by its name in Memory; before the first it is the common start.
    What they remember beside is for `enlist` to add. Called `finetuned`, it is made of a download alone: who did not
    train in the last round makes it anew of the closing one."""
    alone: ClassVar[bool] = False
    """Whether clients exchange nothing: then each prepares its table by itself, too, unless told otherwise."""
    newcomer_rounds: ClassVar[int] = 0
    """Exchanges in which newcomers find their place before they get their model."""
    newcomers_change: ClassVar[frozenset[str]] = frozenset()
    """Tensors of the server, by name, that newcomers change for those who were there: a mean over all clients, such as
    SCAFFOLD's c. Everything else of theirs stays bit for bit."""
    uses_graph: ClassVar[bool] = False
    """Whether the method looks at `problem.graph`: then one is drawn or inferred where that is asked for."""
    training: ClassVar[frozenset[str] | None] = None
    """The settings that `train` and `models` look at; None: all of them. Values of the others can be tuned in one
    stack. Not inherited: a subclass may train in another way, and says it anew."""
    rate: ClassVar[tuple[str, ...]] = ("local.lr",)
    """The setting that is the method's learning rate, by its full name, for `compare --tune`; further ones that are
    numbers keep their ratio to it. None at all: it has no rate to tune."""

    @abstractmethod
    def begin(self, problem: Problem, round: Round) -> Server:
        """The server's state before round 1."""

    def enlist(self, problem: Problem, clients: Tensor, round: Round) -> Memory:
        """What these clients remember at the start: the model named by `remembers`; by default nothing."""
        return State(**{self.remembers: problem.initial.repeat(len(clients), 1)}) if self.remembers else State()

    @abstractmethod
    def download(self, problem: Problem, server: Server, clients: Tensor, round: Round) -> Message:
        """What the server sends to these clients."""

    @abstractmethod
    def train(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> tuple[Upload, Memory]:
        """What clients do with it: what they send back and what they remember."""

    @abstractmethod
    def models(self, cohort: Cohort, message: Message, memory: Memory, round: Round) -> dict[str, Model]:
        """Every model the method owns, by name; rows (m, D) or a Predictor."""

    @abstractmethod
    def update(self, problem: Problem, server: Server, clients: Tensor, upload: Upload, round: Round) -> Server:
        """The server's state after these clients' uploads. Owns `server` and may write into it."""

    def welcome(self, problem: Problem, server: Server, round: Round) -> Server:
        """The server's state with newcomers: rows from problem.known on."""
        return server

    @property
    def uncounted(self) -> int:
        """Exchanges before round 1 that are neither scored nor counted (separate pre-training)."""
        return 0

    def check(self, problem: Problem, local: Local) -> None:
        """Raises ValueError with a sentence if this method cannot work on this problem with this local training."""

    def trained_with(self, local: Local) -> str:
        """The optimiser and its rate, `Adam 0.001`, by which tables tell methods apart that train in different ways."""
        return local.words

    # ---- settings by data set ----
    # Those of built-in methods stand in papers/*.toml; a class that extends one has them, unless it says otherwise.

    @classmethod
    def suited(cls, data: str) -> dict[str, Any]:
        """What the data set calls for, whatever the budget: tables `local` and `settings`."""
        return papers.suited(cls, data)

    @classmethod
    def native(cls, data: str) -> dict[str, Any]:
        """The method's own local training and settings (tables `local` and `settings`) in place of the data set's, with
        which all methods spend the same number of gradients."""
        return papers.native(cls, data)

    @classmethod
    def paper(cls, data: str, split: str) -> dict[str, Any]:
        """The settings of the method's paper for a data set and split, where it gives any."""
        return papers.paper(cls, data, split)
