"""The latest complete round, replaced atomically: what a run goes on from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import save_file

from ..base import mapped_rows
from ..base.state import State
from .config import Config, to_toml
from .folder import RunError, replacing


@dataclass
class Checkpoint:
    """Everything needed to go on after a round: the states of server and clients, and the scores carried forward."""

    round: int
    states: dict[str, State] = field(default_factory=dict)

    def save(self, path: Path, config: Config) -> None:
        tensors = {f"{kind}/{n}": t.contiguous().cpu() for kind, s in self.states.items() for n, t in s.items()}
        shared = {kind: sorted(state.shared) for kind, state in self.states.items()}
        metadata = {"round": str(self.round), "shared": json.dumps(shared), "config": digest(config, LENGTH)}
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as new:
            save_file(tensors, new, metadata)

    @staticmethod
    def load(path: Path, config: Config) -> Checkpoint:
        try:
            tensors, metadata = mapped_rows.read(path)  # mapped: it may be larger than memory
            shared = json.loads(metadata["shared"])
            at = int(metadata["round"])
        except (mapped_rows.StorageError, KeyError, ValueError) as error:
            raise RunError(
                f"The checkpoint {path} cannot be read ({error}); remove it to start from round 1."
            ) from None
        if metadata.get("config") != digest(config, LENGTH):
            raise RunError(
                f"The checkpoint {path} belongs to another configuration than config.toml beside it, or is of another "
                "version of fedkin. Put the old one back, or start a new run in another folder."
            )
        states = {}
        for kind, names in shared.items():
            own = {n.partition("/")[2]: t for n, t in tensors.items() if n.partition("/")[0] == kind}
            once = {n: t for n, t in own.items() if n in names}
            states[kind] = State(once, **{n: t for n, t in own.items() if n not in names})
        return Checkpoint(at, states)


def digest(config: Config, apart: Set[str] = frozenset()) -> str:
    """Of the settings, some set apart."""
    return hashlib.sha256(to_toml(config.model_dump(mode="json", exclude=set(apart))).encode()).hexdigest()


LENGTH = frozenset({"rounds", "patience"})
"""Settings that a checkpoint does not depend on: a run may be made longer."""
