"""Which scores are of models that a client trained in an earlier round: where few take part, most of those between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .comparison import Name, Run, Scored


@dataclass(frozen=True)
class Older:
    """Of a row, over all seeds: how many scores of rounds 1 to `rounds` are of models that their clients did not train
    in that round, and how many of the closing exchange are of models of before the last round."""

    method: str
    model: str
    rounds: int
    older: int
    scores: int
    older_at_the_end: int
    scores_at_the_end: int


def older(found: Mapping[Name, Sequence[Scored]]) -> list[Older]:
    """Of models that clients remember, by row; those with none of that age are left out."""
    told = []
    for (method, model), seeds in found.items():
        runs = [each.run for each in seeds if model in each.run.summary.kept]
        if runs:
            counts = [_counted(run, model) for run in runs]
            told.append(Older(method, model, max(r.summary.rounds for r in runs), *map(sum, zip(*counts, strict=True))))
    return [each for each in told if each.older or each.older_at_the_end]


def _counted(run: Run, model: str) -> tuple[int, int, int, int]:
    """Older scores and all, of the rounds and of the closing exchange."""
    found, trained = [0, 0, 0, 0], set[str]()
    for line in run.rounds:
        if line.novel:
            continue
        now = set(line.participants) - set(line.diverged)
        trained = trained | now if line.final else now  # what was trained in the last round is still the latest
        scores = line.models[model].clients
        scored = [name for name, score in zip(run.summary.clients, scores, strict=True) if score is not None]
        at = 2 if line.final else 0
        found[at] += sum(name not in trained for name in scored)
        found[at + 1] += len(scored)
    return found[0], found[1], found[2], found[3]
