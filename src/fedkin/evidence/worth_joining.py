"""Was it worth joining? For each silo what it would have had alone, with one global model, and with the model that it
was handed; what the difference is on the same test samples, and whether these are enough to tell.

Compared are the models of the closing exchange, which silos are handed, not those of a best round: nothing here is
picked on test data. With several seeds a silo's values are averaged. Seeds share the silo's patients: where it is known
which patient a test sample is, intervals are by patient, and the more patients the seeds test together the narrower
(`repeated_samples`); where it is not, as samples are dealt to silos by the seed, both ends are averaged and intervals
are not narrowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from ..base.task import METRICS, Metric
from ..errors import FedkinError
from . import comparison, repeated_samples
from .comparison import ALONE, ORACLE, Members, Run
from .estimates import Estimate
from .outputs import CHOSEN, Outputs
from .records import ModelScores

GLOBAL = ("fedavg", "global")


class JoiningError(FedkinError):
    """There is no answer; the sentence says what is missing."""


@dataclass(frozen=True)
class Silo:
    """One silo's answer. Scores are in the metric's own direction; a positive gain is for the better always."""

    client: str
    samples: int
    """Different test samples in all seeds; where they have no numbers, the mean over seeds."""
    alone: Estimate
    common: Estimate | None
    """The plain global model's, where `fedavg` is among the runs."""
    personal: Estimate
    gain: Estimate
    """Of personal over alone, on the same samples."""
    handed: str
    """Which of the method's models it was handed."""

    @property
    def answer(self) -> Literal["yes", "no", "cannot tell"]:
        if self.gain.low > 0:
            return "yes"
        return "no" if self.gain.high < 0 else "cannot tell"

    @property
    def verdict(self) -> str:
        if self.answer != "cannot tell":
            return "yes" if self.answer == "yes" else "no, better alone"
        if not self.samples:
            return "cannot tell: there are no test samples"
        if np.isnan(self.gain.value):
            return "cannot tell: all test samples are of one class"
        return f"cannot tell: {self.samples:,} test sample{' is' if self.samples == 1 else 's are'} too few"


@dataclass(frozen=True)
class Joining:
    """The answers of all silos, for the best joint method."""

    metric: str
    higher_is_better: bool
    method: str
    chosen_by: str
    """Why this method, in words."""
    seeds: tuple[int, ...]
    silos: tuple[Silo, ...]
    by_patient: bool = False
    """Whether there are several seeds, and it is known which of a silo's samples each tested."""

    @property
    def together(self) -> Estimate:
        """The mean gain over the silos that have one. Their test samples are not the same, so errors add as squares."""
        known = np.array([silo.gain for silo in self.silos if not np.isnan(silo.gain.value)]).reshape(-1, 3)
        if not len(known):
            return Estimate(float("nan"))
        value, low, high = known.T
        mean, below, above = value.mean(), np.square(value - low).sum(), np.square(high - value).sum()
        return Estimate(float(mean), *(float(mean + side / len(known)) for side in (-np.sqrt(below), np.sqrt(above))))

    def frame(self) -> Any:
        """A pandas frame with a row for each silo."""
        try:
            import pandas as pd
        except ImportError:
            raise JoiningError("A frame needs pandas: `pip install pandas`.") from None
        rows = [
            {
                "silo": silo.client,
                "test samples": silo.samples,
                "alone": silo.alone.value,
                "global": silo.common.value if silo.common else float("nan"),
                "joined": silo.personal.value,
                "gain": silo.gain.value,
                "low": silo.gain.low,
                "high": silo.gain.high,
                "verdict": silo.verdict,
                "handed out": silo.handed,
            }
            for silo in self.silos
        ]
        return pd.DataFrame(rows).set_index("silo")

    @property
    def sentence(self) -> str:
        """Joining helped 2 of 4 silos, harmed none, and for 2 the test data are too few to tell."""
        answers, count = [silo.answer for silo in self.silos], len(self.silos)
        helped, harmed, unclear = (answers.count(answer) for answer in ("yes", "no", "cannot tell"))
        if helped == count:
            return f"Joining helped all {count} silos."
        if unclear == count:
            return f"Whether joining helped cannot be told for any of the {count} silos: their test data are too few."
        text = f"Joining helped {helped or 'none'} of {count} silos, harmed {harmed or 'none'}"
        return f"{text}, and for {unclear} the test data are too few to tell." if unclear else f"{text}."


Best = tuple[str, str]
"""The joint method that is looked at, and why this one, in words."""


def left_alone(members: Members) -> str:
    """The method under which silos train alone."""
    for label, runs in members.items():
        if runs[0].summary.method == ALONE:
            return label
    raise JoiningError(f"Whether joining was worth it is seen beside training alone: add the method {ALONE!r}.")


def worth_joining(members: Members, best: Best, metric: str | None = None) -> Joining:
    """For each silo, whether the best joint method's model beats its own. `metric`: the runs' own, or any that fits."""
    lonely, (method, chosen_by) = left_alone(members), best
    alone, joint = _by_seed(members[lonely]), _by_seed(members[method])
    seeds = tuple(sorted(set(alone) & set(joint)))
    if not seeds:
        raise JoiningError(f"{method} and {lonely} have no seed in common, so their silos cannot be compared.")
    plain = [outputs for seed, outputs in _by_seed(members.get(GLOBAL[0], [])).items() if seed in seeds]
    first, then = [alone[seed] for seed in seeds], [joint[seed] for seed in seeds]
    measure = _metric(members[method][0], then[0], metric)
    clients = _order(members[method], then)
    known = _patients_known([*first, *then, *plain], clients)
    silos = []
    for client in clients:
        before, after, common = (_at(client, each, known) for each in (first, then, plain))
        if len(before) != len(after) or not all(map(_same_samples, before, after)):
            raise JoiningError(f"{lonely} and {method} were not tested on the same samples at {client!r}.")
        common = [outputs for outputs in common if GLOBAL[1] in outputs.models]
        silos.append(
            Silo(
                client=client,
                samples=_tested(after),
                alone=repeated_samples.estimate(measure.name, before, CHOSEN),
                common=repeated_samples.estimate(measure.name, common, GLOBAL[1]) if common else None,
                personal=repeated_samples.estimate(measure.name, after, CHOSEN),
                gain=repeated_samples.gain(measure.name, before, after, CHOSEN),
                handed=" or ".join(sorted({outputs.handed[0] for outputs in after})),
            )
        )
    by_patient = known and len(seeds) > 1
    return Joining(measure.name, measure.higher_is_better, method, chosen_by, seeds, tuple(silos), by_patient)


@dataclass(frozen=True)
class Scorecard:
    """Every metric that fits the task, of the models that silos are handed: {client: {metric: estimate}}."""

    method: str
    chosen_by: str
    seeds: tuple[int, ...]
    silos: dict[str, dict[str, Estimate]]


def scorecard(members: Members, best: Best, answered: Joining | None = None) -> Scorecard:
    """All metrics of the best joint method's handed-out models. `answered`: what silos were told already of the same
    models, which is not worked out again."""
    method, chosen_by = best
    found = _by_seed(members[method])
    seeds = list(found.values())
    clients = _order(members[method], seeds)
    known = _patients_known(seeds, clients)
    done: dict[str, dict[str, Estimate]] = {}
    alike = (method, tuple(found), known and len(found) > 1)
    if answered and (answered.method, answered.seeds, answered.by_patient) == alike:
        done = {silo.client: {answered.metric: silo.personal} for silo in answered.silos}
    silos = {}
    for client in clients:
        own, told = _at(client, seeds, known), done.get(client, {})
        silos[client] = {
            name: told[name] if name in told else repeated_samples.estimate(name, own, CHOSEN)
            for name in seeds[0].fitting
        }
    return Scorecard(method, chosen_by, tuple(found), silos)


def best_joint(members: Members) -> Best:
    """The method other than `separate` whose handed-out models have the best mean validation score, and why it.

    One that was told the groups is no contender. Test data have no say: without validation data it is the first.
    """
    joint = [label for label, each in members.items() if each[0].summary.method != ALONE]
    joint = [label for label in joint if members[label][0].summary.method != ORACLE] or joint
    if not joint:
        raise JoiningError("Nobody joined: there is no method but training alone among the runs.")
    if len(joint) == 1:
        return joint[0], "the only joint method"
    scores = {label: list(_validation(members[label])) for label in joint}
    if any(not each or None in each for each in scores.values()):
        return joint[0], "the first joint method, as there is no validation data to choose by"
    sign = 1 if members[joint[0]][0].summary.higher_is_better else -1
    best = max(joint, key=lambda label: sign * float(np.mean([s for s in scores[label] if s is not None])))
    return best, "of the joint methods the one with the best mean validation score"


def _validation(members: Sequence[Run]) -> Iterator[float | None]:
    """For each run the mean over clients of the handed-out models' closing validation scores."""
    for run, outputs in zip(members, _by_seed(members).values(), strict=True):
        closing: Mapping[str, ModelScores] = next((line.models for line in run.rounds if line.final), {})
        found = []
        for i, model in enumerate(outputs.handed):
            validation = closing[model].validation if model in closing else None
            score = validation.clients[i] if validation else None
            if score is not None:
                found.append(score)
        yield float(np.mean(found)) if found else None


def _by_seed(members: Sequence[Run]) -> dict[int, Outputs]:
    found = {}
    for run in members:
        outputs = run.outputs()
        if outputs is None:
            raise JoiningError(f"The run in {run.path} kept no outputs of its models; run it again to compare silos.")
        found[run.summary.seed] = outputs
    return found


def _patients_known(seeds: Sequence[Outputs], clients: Sequence[str]) -> bool:
    return all(repeated_samples.same_patients(_at(client, seeds, known=True)) for client in clients)


def _at(client: str, seeds: Sequence[Outputs], known: bool) -> list[Outputs]:
    """A silo's outputs in each seed in which it was no newcomer; without the numbers of its patients where those do not
    tell them apart."""
    own = [outputs.of(client) for outputs in seeds if client in outputs.clients]
    return own if known else [replace(outputs, rows=None) for outputs in own]


def _same_samples(first: Outputs, second: Outputs) -> bool:
    if first.rows is not None and second.rows is not None and not torch.equal(first.rows, second.rows):
        return False
    # A missing target is NaN, which equals nothing; none is infinite.
    return torch.equal(first.targets.nan_to_num(torch.inf), second.targets.nan_to_num(torch.inf))


def _tested(seeds: Sequence[Outputs]) -> int:
    """Different test samples; where they have no numbers, the mean over seeds."""
    rows = [outputs.rows for outputs in seeds if outputs.rows is not None]
    return len(set(torch.cat(rows).tolist())) if rows else round(np.mean([outputs.counts[0] for outputs in seeds]))


def _metric(run: Run, outputs: Outputs, name: str | None) -> Metric:
    """The metric asked for, or the runs' own; where that is a user's function, the task's first."""
    own = run.summary.metric
    return outputs.metric(name or (own if own in METRICS else outputs.fitting[0]))


def _order(members: Sequence[Run], seeds: Sequence[Outputs]) -> list[str]:
    """Every silo that was no newcomer in some seed, by group, then by name."""
    groups: dict[str, int] = {}
    for run in reversed(members):
        groups |= zip(run.summary.clients, run.summary.groups or (), strict=False)
    names = list(dict.fromkeys(name for outputs in seeds for name in outputs.clients))
    known = [groups[name] for name in names] if set(names) <= set(groups) else None
    return [names[i] for i in comparison.client_order(names, known)]
