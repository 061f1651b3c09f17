"""Scores and gains over several seeds, where it is known which patient a test sample is.

Every seed draws its test part from the same patients of a silo. What a seed adds is the patients whom the others did
not test; one who is tested in several seeds counts once. So patients are taken to be independent, not tests:

| metric | of a score | of a gain |
|---|---|---|
| accuracy | Wilson, of as many as the patients are worth | Bonett and Price, by patient |
| balanced accuracy | the same of each recall, put together | the same of each class, put together |
| AUC | Newcombe, of as many as the patients are worth | bootstrap over patients, class by class |
| C-index | the same, of events against those comparable with them | bootstrap over patients, of all their pairs |
| log loss, RMSE, MAE, MSE | bootstrap over patients | the same, both models on one draw |

A draw of the bootstrap takes patients with replacement. Every seed's metric is then of its test samples, each as often
as its patient was drawn, and the mean is over the seeds in which it is defined. Percentiles are moved outwards to what
patients' own differences say, with Student's t. If u is a patient's share in the mean over seeds, patients are worth
1 / sum of u² (Kish): their number, if all are tested equally often. Intervals speak of the models of these seeds, as
that of one seed speaks of its model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..base.task import against_the_rest, classes_in
from ..maths import statistics
from . import by_subject, concordance, estimates
from .by_subject import MADE_UP, Places, Values, effective, worth
from .estimates import Array, Estimate, Gain, gain_over_seeds, over_seeds, within
from .resampling import Test, bootstrap

if TYPE_CHECKING:
    from .outputs import Outputs


def same_patients(seeds: Sequence[Outputs]) -> bool:
    """Whether a silo's test samples have numbers in all seeds, and a number means one patient: has one target."""
    rows = [each.rows for each in seeds if each.rows is not None]
    if len(rows) < len(seeds):
        return False
    targets = torch.cat([each.target_mean + each.target_scale * each.targets.double() for each in seeds])
    _, first, place = np.unique(torch.cat(rows).numpy(), return_index=True, return_inverse=True)
    # Seeds scale targets by their own training data, in single precision.
    close = 1e-5 * float(targets.nan_to_num().abs().max()) if len(targets) else 0.0
    return torch.allclose(targets[first][place], targets, rtol=0, atol=close, equal_nan=True)


def estimate(metric: str, seeds: Sequence[Outputs], model: str) -> Estimate:
    """A model's score on a silo's patients; of one seed, or without numbers of patients, as `estimates` has it, unless
    patients have several samples."""
    tests = _tests(metric, [(each.models[model],) for each in seeds], seeds)
    if tests is None:
        return over_seeds([_of_one(metric, each, model) for each in seeds])
    return _estimate(tests)


def _of_one(metric: str, seed: Outputs, model: str) -> Estimate:
    tests = _clustered(metric, (seed.models[model],), seed)
    return _estimate(tests) if tests else estimates.estimate(seed.metric(metric), seed.models[model], seed.targets)


def _estimate(tests: Sequence[Test]) -> Estimate:
    metric, value = tests[0].metric.name, float(np.mean([test.scores[0] for test in tests]))
    if metric == "accuracy":
        return Estimate(value, *_wilson(tests)[1:])
    if metric == "balanced_accuracy":
        classes = list(_by_class(tests))
        interval = statistics.mover([_wilson(own) for own in classes])
        if tests[0].rows is not None:
            interval = _in_several([_right(own) for own in classes], value, interval)
        return _holding(value, *interval)
    if metric == "auc":
        return _holding(value, *_newcombe(tests))
    if metric == "c_index":
        return _holding(value, *_of_concordance(tests))
    low, high = bootstrap(tests, np.ones(1))(0.95)
    return Estimate(value, max(low, 0.0), high)


def gain(metric: str, before: Sequence[Outputs], after: Sequence[Outputs], model: str) -> Estimate:
    """How much better `after` is than `before` on the same patients, seed by seed; positive is better."""
    pairs = list(zip(before, after, strict=True))
    tests = _tests(metric, [(a.models[model], b.models[model]) for a, b in pairs], after)
    if tests is None:
        return gain_over_seeds([_gain_of_one(metric, a, b, model) for a, b in pairs])
    return _gain(tests)


def _gain_of_one(metric: str, before: Outputs, after: Outputs, model: str) -> Estimate:
    answers = before.models[model], after.models[model]
    tests = _clustered(metric, answers, after)
    return _gain(tests) if tests else estimates.gain(after.metric(metric), *answers, after.targets)


def _gain(tests: Sequence[Test]) -> Estimate:
    metric = tests[0].metric
    change = np.array([-1.0, 1.0]) * (1 if metric.higher_is_better else -1)
    value = float(np.mean([change @ test.scores for test in tests]))
    if metric.name in ("accuracy", "balanced_accuracy"):
        classes = [list(tests)] if metric.name == "accuracy" else list(_by_class(tests))

        def put_together(level: float) -> tuple[float, float]:
            interval = statistics.mover([_bonett_price(own, level) for own in classes])
            if tests[0].rows is not None:
                interval = _in_several([_differences(own) for own in classes], value, interval)
            return _holding(value, *interval)[1:]

        return Gain.of(value, put_together)
    drawn = bootstrap(tests, change)
    if metric.name == "auc":
        low, high = drawn(0.95)
        if low == high:  # all patients changed alike, or none did: that shows no spread, but is not certain
            drawn = partial(_newcombe_difference, tests)
        return Gain.of(value, lambda level: within(-1.0, drawn(level), 1.0))
    if metric.name == "c_index":
        low, high = drawn(0.95)
        if low == high != 0:
            drawn = partial(_concordance_difference, tests)
        return Gain.of(value, lambda level: concordance.within(*drawn(level)))
    return Gain.of(value, drawn)


def _tests(metric: str, answers: Sequence[tuple[Tensor, ...]], seeds: Sequence[Outputs]) -> list[Test] | None:
    """The seeds in which the metric is defined; None where these are not several seeds of known patients."""
    rows = [each.rows for each in seeds if each.rows is not None]
    if len(rows) < len(seeds):
        return None
    places = _places([own.numpy() for own in rows])
    named = [each.subjects for each in seeds if each.subjects is not None]
    subjects = _places([own.numpy() for own in named]) if len(named) == len(seeds) else places
    if _alone(subjects, places):
        subjects = places
    everyone = zip(seeds, answers, subjects, places, strict=True)
    tests = [
        Test(each.metric(metric), models, each.targets, own, None if subjects is places else at)
        for each, models, own, at in everyone
    ]
    defined = [test for test in tests if not np.isnan(test.scores).any()]
    return defined if len(defined) > 1 and all(np.isfinite(test.scores).all() for test in defined) else None


def _clustered(metric: str, answers: tuple[Tensor, ...], seed: Outputs) -> list[Test]:
    """One seed's test of patients who have several samples; none where they have not, or it is not known."""
    if seed.subjects is None:
        return []
    (subjects,) = _places([seed.subjects.numpy()])
    rows = np.arange(len(subjects))
    if _alone([subjects], [rows]):
        return []
    test = Test(seed.metric(metric), answers, seed.targets, subjects, rows)
    return [test] if np.isfinite(test.scores).all() else []


def _places(numbers: Sequence[Places]) -> list[Places]:
    """Numbers, seed by seed, as places among all that occur."""
    _, place = np.unique(np.concatenate(numbers), return_inverse=True)
    return np.split(place, np.cumsum([len(each) for each in numbers])[:-1])


def _alone(subjects: Sequence[Places], rows: Sequence[Places]) -> bool:
    """Whether every subject has one sample."""
    return len(np.unique(np.concatenate(subjects))) == len(np.unique(np.concatenate(rows)))


def _by_class(tests: Sequence[Test]) -> Iterator[list[Test]]:
    """For each class the tests that have samples of it, cut down to these."""
    for c in classes_in(torch.cat([test.targets for test in tests])):
        yield [test.of_class(c) for test in tests if (test.targets == c).any()]


def _holding(value: float, low: float, high: float) -> Estimate:
    """Where a seed lacks a class, the value is not quite the mean over classes that the interval is of."""
    return Estimate(value, min(low, value), max(high, value))


# ---- patients with several samples ----


def _values(tests: Sequence[Test], values: Sequence[Array]) -> Values:
    rows = [test.patients if test.rows is None else test.rows for test in tests]
    return Values(values, rows, [test.patients for test in tests])


def _right(tests: Sequence[Test]) -> Values:
    return _values(tests, [test.right() for test in tests])


def _differences(tests: Sequence[Test]) -> Values:
    return _values(tests, [test.right(1) - test.right(0) for test in tests])


def _in_several(classes: Sequence[Values], value: float, interval: tuple[float, float]) -> tuple[float, float]:
    """The interval of a mean over classes, stretched as patients have samples in several of them."""
    return by_subject.stretched(value, interval, by_subject.inflation(classes))


def _independent(tests: Sequence[Test], values: Sequence[Array], made_up: float = 0.0) -> float:
    """How many independent samples would say as much of the mean of values."""
    if tests[0].rows is None:
        return worth([test.patients for test in tests])
    return effective(_values(tests, values), made_up)


# ---- what counts answers ----


def _wilson(tests: Sequence[Test]) -> tuple[float, float, float]:
    right = [test.right() for test in tests]
    value, count = float(np.mean([own.mean() for own in right])), _independent(tests, right, MADE_UP)
    return value, *statistics.accuracy_interval(value * count, count)


def _bonett_price(tests: Sequence[Test], level: float) -> tuple[float, float, float]:
    found = _differences(tests)
    if tests[0].rows is None:
        return found.mean, *statistics.clustered_interval(found.values, found.subjects, level)
    count = effective(found)
    gained, lost = (float(np.mean([(sign * own > 0).mean() for own in found.values])) for sign in (1, -1))
    return found.mean, *statistics.paired_interval(gained * count, lost * count, count, level)


def _newcombe(tests: Sequence[Test], model: int = 0, level: float = 0.95) -> tuple[float, float]:
    found: dict[int, list[tuple[float, Test, Array, Test, Array]]] = {}
    for test in tests:
        for c, own, rest in against_the_rest(test.answers[model], test.targets):
            mine = (test.targets == c).numpy()
            sides = _of(test, mine), own.numpy(), _of(test, ~mine), rest.numpy()
            found.setdefault(c, []).append((float(own.mean()), *sides))
    bounds = []
    for parts in found.values():
        values, positives, above, negatives, below = zip(*parts, strict=True)
        counts = _independent(positives, above), _independent(negatives, below)
        bounds.append(statistics.auc_interval(float(np.mean(values)), *counts, level))
    low, high = np.mean(bounds, axis=0).tolist()
    if tests[0].rows is None:
        return low, high
    classes = [_placed(tests, model, c) for c in classes_in(torch.cat([test.targets for test in tests]))]
    value = float(np.mean([test.scores[model] for test in tests]))
    return within(0.0, _in_several(classes, value, (low, high)), 1.0)


def _of(test: Test, some: NDArray[np.bool_]) -> Test:
    """The patients of some samples."""
    return test._replace(patients=test.patients[some], rows=None if test.rows is None else test.rows[some])


def _placed(tests: Sequence[Test], model: int, c: int) -> Values:
    """What varies as the AUC does, of the samples of a class."""
    with_it = [test for test in tests if (test.targets == c).any()]
    placed = [estimates.placements(test.answers[model], test.targets) for test in with_it]
    own = [(test.targets == c).numpy() for test in with_it]
    return _values(
        [_of(test, mine) for test, mine in zip(with_it, own, strict=True)],
        [each[mine] for each, mine in zip(placed, own, strict=True)],
    )


def _newcombe_difference(tests: Sequence[Test], level: float) -> tuple[float, float]:
    """Of two AUCs as if on different patients, which is the more cautious (Zou and Donner 2008)."""
    (before, low_before, high_before), (after, low, high) = (
        (float(np.mean([test.scores[model] for test in tests])), *_newcombe(tests, model, level)) for model in (0, 1)
    )
    value = after - before
    return value - float(np.hypot(after - low, high_before - before)), value + float(
        np.hypot(high - after, before - low_before)
    )


def _of_concordance(tests: Sequence[Test], model: int = 0, level: float = 0.95) -> tuple[float, float]:
    """Newcombe's interval: events are worth as many as their patients are, and those comparable with them rise with the
    patients of all seeds."""
    told, others = zip(*(concordance.sizes(test.targets) for test in tests), strict=True)
    rows = _values(tests, []).rows
    events = worth([own[these] for own, these in zip(rows, told, strict=True)])
    more = worth(rows) / np.mean([len(test.patients) for test in tests])
    value = float(np.mean([test.scores[model] for test in tests]))
    alike = 1.0
    if tests[0].rows is not None:  # what a patient's samples say alike they say once
        parts = [concordance.contributions(test.answers[model], test.targets) for test in tests]
        alike = effective(_values(tests, parts)) / worth(rows)
    return statistics.auc_interval(value, events * alike, float(np.mean(others) * more * alike), level)


def _concordance_difference(tests: Sequence[Test], level: float) -> tuple[float, float]:
    """Of two C-indices as if on different patients."""
    before, after = np.mean([test.scores for test in tests], axis=0).tolist()
    return concordance.apart(before, _of_concordance(tests, 0, level), after, _of_concordance(tests, 1, level))
