"""summary.json: what a run came to, in a stable form that other programs read. Fractions, not per cent."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .. import data
from ..base.machine import device_name
from ..evidence.progress import chosen, still_improving
from ..evidence.records import Collaboration, Execution, ModelSummary, Novel, Summary, Untrained
from ..evidence.untrained import LINEAR
from ..maths import statistics
from ..runs.folder import read_lines
from .assembly import Assembly


@dataclass(frozen=True)
class Outcome:
    """What a run knows of itself at its end."""

    rounds: int
    models: Sequence[str]
    """The names of its models."""
    kept: tuple[str, ...]
    """Those of them that clients remember."""
    novel: Novel | None
    peak_bytes: int
    execution: Execution
    withheld: tuple[str, ...]
    beside: Mapping[str, tuple[float, ...]]
    """What needs no federation scores at each client, by name."""


def summarise(path: Path, a: Assembly, came: Outcome) -> Summary:
    """The summary of a run from its rounds.jsonl and the last xi."""
    lines = [line for line in read_lines(path / "rounds.jsonl") if not line.novel]
    problem, config, metric = a.known_problem(), a.config, a.problem.task.metric
    higher = metric.higher_is_better
    models, rounds = {}, {}
    for name in came.models:
        test = np.array([line.models[name].clients for line in lines], dtype=np.float64)
        known = all(line.models[name].validation is not None for line in lines)
        taken = chosen(lines, name, higher, config.patience)
        rounds[name] = lines[taken].round
        at, best = statistics.best_mean(test, higher)
        models[name] = ModelSummary(
            bmta=best,
            bmta_round=lines[at].round,
            last=statistics.last(test),
            last10=statistics.last10(test),
            validated=float(statistics.client_means(test)[taken]) if known else None,
            validated_round=lines[taken].round if known else None,
            std=float(np.nanstd(test[at])),
            improving=still_improving(lines, name),
        )
    beside = {name: Untrained(name=name, clients=each) for name, each in came.beside.items()}
    return Summary(
        method=config.method,
        data=data.short(config.data.name),
        split=config.data.split,
        seed=config.seed,
        rounds=came.rounds,
        preset=config.preset,
        clients=problem.names,
        groups=None if problem.groups is None else tuple(problem.groups.tolist()),
        samples=tuple(problem.samples.tolist()),
        corrupted=tuple(c.name for c in a.federation.clients if c.corrupted),
        metric=metric.name,
        higher_is_better=higher,
        headline=a.method.headline,
        models=models,
        kept=came.kept,
        collaboration=_collaboration(path, a, rounds[a.method.headline]),
        novel=came.novel,
        untrained=next((own for name, own in beside.items() if name != LINEAR), None),
        linear=beside.get(LINEAR),
        notes=a.federation.notes,
        ended="rounds" if came.rounds == config.rounds or not config.patience else "validation",
        diverged=tuple(dict.fromkeys(name for line in lines for name in line.diverged)),
        withheld=came.withheld,
        bytes_down=sum(line.bytes_down for line in lines),
        bytes_up=sum(line.bytes_up for line in lines),
        gradients=sum(line.gradients for line in lines),
        passes=sum(line.passes for line in lines),
        seconds=sum(line.seconds for line in lines),
        peak_bytes=came.peak_bytes,
        parameters=problem.layout.parameters,
        execution=came.execution,
        versions=versions(),
        commit=commit(),
        device=device_name(a.device),
    )


def _collaboration(path: Path, a: Assembly, taken: int) -> Collaboration | None:
    """How much of xi stays within the known groups, and how well the groups read off it agree, at the round that was
    taken.

    None where every client is a group of its own, as there is nothing to agree with.
    """
    groups = a.known_problem().groups
    recorded = sorted((path / "collaboration").glob("round-*.npy"))
    if groups is None or not recorded or len(set(groups.tolist())) == len(groups):
        return None
    at = min(recorded, key=lambda f: abs(int(f.stem.removeprefix("round-")) - taken))
    xi = np.load(at, allow_pickle=False)
    known = groups.tolist()
    return Collaboration(
        within_group=statistics.within_group_share(xi, known),
        adjusted_rand=statistics.adjusted_rand(statistics.kin(xi), known),
        round=int(at.stem.removeprefix("round-")),
    )


def versions() -> dict[str, str]:
    from ..version import __version__

    return {
        "fedkin": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
    }


def commit() -> str | None:
    """The commit of the source tree this runs from, with a '+' if files differ from it; None when installed."""
    source = Path(__file__).resolve().parent
    try:
        asked = subprocess.run(
            ["git", "-C", str(source), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    inside = "site-packages" not in source.parts
    return asked.stdout.strip() or None if asked.returncode == 0 and inside else None
