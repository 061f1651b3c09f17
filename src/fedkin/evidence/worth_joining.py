"""Was it worth joining? For each silo what it would have had alone, with one global model, and with the model that it
was handed; what the difference is on the same test samples, and whether these are enough to tell.

Compared are the models that silos are handed, of the closing exchange or of the round that validation data chose, not
those of a best round: nothing here is picked on test data. Of twenty silos for whom joining changes nothing, one would
be told otherwise if each were tested at 95 %: so a yes or no needs its p-value to hold after Holm's correction over the
silos, while intervals are each silo's own. A metric of the user's own is told from what the runs kept of it
(`own_metric`), and never exchanged for another.

With several seeds a silo's values are averaged. Seeds share the silo's patients: where it is known
which patient a test sample is, intervals are by patient, and the more patients the seeds test together the narrower
(`repeated_samples`); where it is not, as samples are dealt to silos by the seed, both ends are averaged and intervals
are not narrowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..base.task import METRICS
from ..errors import FedkinError
from ..maths import statistics
from . import comparison, own_metric, progress, repeated_samples
from .comparison import ALONE, ORACLE, Members, Run
from .estimates import Estimate, score
from .outputs import CHOSEN, Outputs
from .records import Line, ModelScores
from .telling import several, telling
from .untrained import LINEAR
from .verdicts import Joining, JoiningError, Silo

GLOBAL = ("fedavg", "global")
NAN = float("nan")
UNDEFINED = {"c_index": "no two test samples can be compared"}
"""Why there is no score, by metric, where it is not that all samples are of one class."""
CHOSEN_BY = "of the joint methods the one whose handed-out models have the best mean validation score"


class NotKept(JoiningError):
    """There is no answer in the user's own metric, of which the runs kept nothing."""


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
    measure = _measure(members[method][0], [*first, *then], metric)
    clients = _order(members[method], then)
    known = not measure.own and _patients_known([*first, *then, *plain], clients)
    with_nothing = _with_nothing(members, measure, joint, seeds)
    silos = []
    for client in clients:
        before, after, common = (_at(client, each, known) for each in (first, then, plain))
        if len(before) != len(after) or not all(map(_same_samples, before, after)):
            raise JoiningError(f"{lonely} and {method} were not tested on the same samples at {client!r}.")
        common = [outputs for outputs in common if GLOBAL[1] in outputs.models and measure.told(outputs)]
        personal, beside = measure.estimate(after, CHOSEN), with_nothing.get(client, {})
        silos.append(
            Silo(
                client=client,
                samples=_tested(after),
                alone=measure.estimate(before, CHOSEN),
                common=measure.estimate(common, GLOBAL[1]) if common else None,
                personal=personal,
                gain=measure.gain(before, after),
                handed=" or ".join(sorted({outputs.handed[0] for outputs in after})),
                subjects=_subjects(after),
                undefined=_undefined(measure),
                told_by=telling(measure.name, after),
                beside=beside,
                no_worse=_no_worse(beside, personal.value, 1 if measure.higher_is_better else -1),
                ahead=_ahead(measure, before, after),
            )
        )
    by_patient = known and len(seeds) > 1
    return Joining(
        measure.name,
        measure.higher_is_better,
        method,
        chosen_by,
        seeds,
        tuple(_tested_together(silos)),
        by_patient,
        same_samples=by_patient and all(len({_numbers(seed, client) for seed in then}) == 1 for client in clients),
    )


def _numbers(seed: Outputs, client: str) -> frozenset[int]:
    """Which of its samples a silo was tested on; none, where it was a newcomer."""
    rows = seed.of(client).rows if client in seed.clients else None
    return frozenset() if rows is None else frozenset(rows.tolist())


def _with_nothing(
    members: Members, measure: _Measure, joint: Mapping[int, Outputs], seeds: Sequence[int]
) -> dict[str, dict[str, float]]:
    """{client: {name: mean over seeds}} of what silos have with nothing, in the metric asked for.

    From the answers that runs kept; of older runs, and in a metric of the user's own, what their summaries have, which
    is in the runs' metric. Where the loss is the user's own as well, nobody knows what outputs mean, and a mean of
    targets is no answer.
    """
    found: dict[str, dict[str, list[float]]] = {}

    def add(client: str, name: str, value: float | None) -> None:
        if value is not None and np.isfinite(value):
            found.setdefault(client, {}).setdefault(name, []).append(value)

    summaries = {run.summary.seed: run for runs in members.values() for run in runs if _summed_up(run, measure)}
    for seed in seeds:
        outputs = joint[seed]
        if outputs.beside and not measure.own:
            metric = outputs.metric(measure.name)
            for client in outputs.clients:
                own = outputs.of(client)
                for name, answers in own.beside.items():
                    add(client, name, NAN if answers.isnan().any() else score(metric, answers, own.targets))
        elif seed in summaries:
            summary = summaries[seed].summary
            for record in (summary.untrained, summary.linear):
                for client, value in zip(summary.clients, record.clients, strict=True) if record else ():
                    add(client, record.name if record else "", value)
    return {client: {name: float(np.mean(each)) for name, each in own.items()} for client, own in found.items()}


def _ahead(measure: _Measure, before: Sequence[Outputs], after: Sequence[Outputs]) -> Estimate | None:
    """How much better a silo's linear model is than the network alone; None where it is not known what it answered."""
    answers = [outputs.beside.get(LINEAR) for outputs in after]
    if measure.own or any(each is None or each.isnan().any() for each in answers):
        return None
    line = [replace(o, models={CHOSEN: each}) for o, each in zip(after, answers, strict=True) if each is not None]
    return measure.gain(before, line)


def _summed_up(run: Run, measure: _Measure) -> bool:
    """Whether the run's summary says what silos have with nothing, in this metric."""
    loss = str(run.config.get("learning", {}).get("loss", ""))
    there = run.summary.untrained is not None or run.summary.linear is not None
    return there and run.summary.metric == measure.name and not (measure.own and ":" in loss)


def _no_worse(beside: Mapping[str, float], joined: float, sign: int) -> tuple[str, ...]:
    """What scores as well as the joined model, or better; the best first."""
    level = 1e-12 * max(1.0, abs(joined)) if np.isfinite(joined) else 0.0
    names = [name for name, value in beside.items() if sign * (value - joined) >= -level]
    return tuple(sorted(names, key=lambda name: -sign * beside[name]))


def _subjects(seeds: Sequence[Outputs]) -> int | None:
    """Different subjects, where some have several samples."""
    return round(telling("", seeds).count) if any(map(several, seeds)) else None


def _tested_together(silos: Sequence[Silo]) -> list[Silo]:
    """With p-values after Holm's correction over those that can have a verdict."""
    able = [silo.client for silo in silos if silo.large_enough]
    own = {silo.client: silo.gain.p for silo in silos if silo.large_enough}
    corrected = dict(zip(able, statistics.holm(list(own.values())).tolist(), strict=True))
    return [replace(silo, p=corrected.get(silo.client, float("nan"))) for silo in silos]


@dataclass(frozen=True)
class _Measure:
    """A metric, one of ours or (`own`) a function of the user's, of which runs kept what it said."""

    name: str
    higher_is_better: bool
    own: bool

    def told(self, outputs: Outputs) -> bool:
        return not self.own or (outputs.own is not None and outputs.own.name == self.name)

    def estimate(self, seeds: Sequence[Outputs], model: str) -> Estimate:
        if not self.own:
            return repeated_samples.estimate(self.name, seeds, model)
        return own_metric.estimate(_kept(seeds), model)

    def gain(self, before: Sequence[Outputs], after: Sequence[Outputs]) -> Estimate:
        if not self.own:
            return repeated_samples.gain(self.name, before, after, CHOSEN)
        return own_metric.gain(_kept(before), _kept(after), CHOSEN)


def _kept(seeds: Sequence[Outputs]) -> list[tuple[own_metric.OwnMetric, int]]:
    return [(outputs.own, _subjects([outputs]) or outputs.counts[0]) for outputs in seeds if outputs.own is not None]


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
    if not seeds[0].fitting:
        raise JoiningError("Targets are wider than outputs here, so no metric of ours fits.")
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
    """The method other than `separate` whose handed-out models have the best mean validation score at the closing
    exchange, over the seeds that all of them have, and why it.

    One that was told the groups is no contender. Test data and the order of the runs have no say: of equals, and
    without validation data, it is the first by name.
    """
    known = {label: each[0].summary.method for label, each in members.items()}
    joint = sorted(label for label, method in known.items() if method not in (ALONE, ORACLE))
    if not joint:
        told = f" but {ORACLE}, which was told the groups" if ORACLE in known.values() else ""
        raise JoiningError(f"Nobody joined: there is no method but training alone among the runs{told}.")
    if len(joint) == 1:
        return joint[0], "the only joint method"
    scores = {label: _validation(members[label]) for label in joint}
    shared = set.intersection(*(set(each) for each in scores.values()))
    if not shared or any(each[seed] is None for each in scores.values() for seed in shared):
        return joint[0], "the first joint method by name, as there is no validation data to choose by"
    sign = 1 if members[joint[0]][0].summary.higher_is_better else -1
    means = {label: sign * float(np.mean([each[seed] for seed in shared])) for label, each in scores.items()}
    best = max(joint, key=lambda label: means[label])
    first = sum(mean == means[best] for mean in means.values()) > 1
    return best, f"{CHOSEN_BY}; of equals the first by name" if first else CHOSEN_BY


def _validation(members: Sequence[Run]) -> dict[int, float | None]:
    """{seed: the mean over clients of the handed-out models' validation scores}; None without any."""
    means: dict[int, float | None] = {}
    for run, (seed, outputs) in zip(members, _by_seed(members).items(), strict=True):
        lines = [line for line in run.rounds if not line.novel]
        found = []
        for i, model in enumerate(outputs.handed):
            taken = _handed(run, lines, model)
            validation = taken.validation if taken else None
            score = validation.clients[i] if validation else None
            if score is not None and np.isfinite(score):
                found.append(score)
        means[seed] = float(np.mean(found)) if found else None
    return means


def _handed(run: Run, lines: Sequence[Line], model: str) -> ModelScores | None:
    """The scores of the round that a model was handed out from: the closing one, or the one that was chosen where runs
    end by validation data."""
    known = [line for line in lines if model in line.models]
    if not known or not known[-1].final:
        return None
    patience = run.config.get("patience", 0)
    at = progress.chosen(known, model, run.summary.higher_is_better, patience) if patience else -1
    return known[at].models[model]


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


def _undefined(measure: _Measure) -> str:
    if measure.own:
        return f"{measure.name} is not defined on its test samples"
    return UNDEFINED.get(measure.name, Silo.undefined)


def _measure(run: Run, seeds: Sequence[Outputs], name: str | None) -> _Measure:
    """The metric asked for, or the runs' own; one of the user's where all runs kept what it said."""
    wanted = name or run.summary.metric
    if wanted in METRICS:
        found = seeds[0].metric(wanted)
        return _Measure(found.name, found.higher_is_better, own=False)
    if wanted != run.summary.metric:
        raise JoiningError(str(_refusal(seeds[0], wanted)))
    measure = _Measure(wanted, run.summary.higher_is_better, own=True)
    if not all(map(measure.told, seeds)):
        raise NotKept(
            f"Whether joining was worth it cannot be told in {wanted}, a metric of your own: these runs did not keep "
            f"what it says of their models. Run them again{_others(seeds[0].fitting)}."
        )
    return measure


def _others(fitting: Sequence[str]) -> str:
    return f", or ask for {' or '.join(fitting)} by name: worth_joining({fitting[0]!r})" if fitting else ""


def _refusal(outputs: Outputs, name: str) -> str:
    try:
        outputs.metric(name)
    except FedkinError as error:
        return str(error)
    return f"There is no metric {name!r}."


def _order(members: Sequence[Run], seeds: Sequence[Outputs]) -> list[str]:
    """Every silo that was no newcomer in some seed, by group, then by name."""
    groups: dict[str, int] = {}
    for run in reversed(members):
        groups |= zip(run.summary.clients, run.summary.groups or (), strict=False)
    names = list(dict.fromkeys(name for outputs in seeds for name in outputs.clients))
    known = [groups[name] for name in names] if set(names) <= set(groups) else None
    return [names[i] for i in comparison.client_order(names, known)]
