"""Runs side by side: the table, the paired tests, and for whom joining was worse than staying alone.

Runs are of one comparison if data, split and metric are the same. A row is `method:model`. Everything that is said of
it stands on the round that validation data choose for each run, and where there are none on the closing exchange: test
data choose nothing. What the papers report, the best round of the test data, is a number beside it (`bmta`). Means over
seeds go by the client's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..maths import statistics
from ..maths.statistics import Comparison
from . import progress
from .outputs import Outputs
from .records import Line, Summary

ALONE = "separate"
ORACLE = "groups"
"""Told the groups: an upper bound, not a contender."""
FEWEST_PAIRS = 6
"""Clients from which on Wilcoxon's test can tell: six wins of six have p = 0.03, five of five 0.06."""
INCIDENTAL = {"device", "execution", "chunk", "weights", "threads", "data.verify"}
"""Settings of where and how a run is computed, not of what: two runs that differ in these alone are one method, tried
twice. (`precision` is not among them: it changes numbers by more than rounding.)"""


class Run(Protocol):
    """What is read of a run; `fedkin.Run` is one."""

    @property
    def path(self) -> Path: ...
    @property
    def summary(self) -> Summary: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def rounds(self) -> Sequence[Line]: ...
    @property
    def recorded(self) -> Sequence[int]: ...
    @property
    def graph(self) -> NDArray[Any] | None: ...
    def collaboration(self, round: int | None = None) -> NDArray[Any] | None: ...
    def outputs(self, client: str | None = None) -> Outputs | None: ...


Members = Mapping[str, Sequence[Run]]
"""{method: its runs by seed}, as `by_method` gives it."""
Name = tuple[str, str]
"""A method and one of its models."""


@dataclass(frozen=True)
class Row:
    """A line of the table; scores are means over seeds, fractions where the metric is one.

    score: the mean over clients at the chosen round, as all that follows but `bmta`, the mean at the best test round.
    std_clients: over clients there (of all of them, so ddof 0), then the mean over seeds.
    std_seeds: of the means over seeds (a sample, so ddof 1); None for a single seed.
    validated: the score, if validation data chose the round of every seed; else None, and `score` is the last.
    """

    method: str
    model: str
    headline: bool
    score: float
    bmta: float
    worst: float
    std_clients: float
    std_seeds: float | None
    last: float
    last10: float
    validated: float | None
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.method}:{self.model}"


@dataclass(frozen=True)
class Pair:
    """Two rows tested over clients, each client's scores averaged over the seeds that both rows have.

    `p` is two-sided and after Holm, over all pairs of headline rows that can be tested; it is the only one that is told
    of a pair. None where the clients are too few to tell: of five, even five wins could be chance.
    """

    first: str
    second: str
    seeds: tuple[int, ...]
    result: Comparison
    p: float | None


@dataclass(frozen=True)
class Curve:
    """Mean over clients by round, each (rounds,): the mean over seeds, and the lowest and highest seed."""

    rounds: NDArray[np.int64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """A model of one run. table: (rounds, clients) on test data, the closing exchange included, lines about newcomers
    left out; `best` is the row of it with the best mean over clients, and `mean` that mean; `chosen` is the row that
    validation data choose, and without them the last: `validated` says which."""

    run: Run
    model: str
    rounds: tuple[int, ...]
    table: NDArray[np.float64]
    best: int
    mean: float
    chosen: int
    validated: bool

    @property
    def seed(self) -> int:
        return self.run.summary.seed

    @property
    def score(self) -> float:
        """The mean over clients at the chosen round."""
        return float(statistics.client_means(self.table[[self.chosen]])[0])

    @property
    def at_chosen(self) -> dict[str, float]:
        """{client: score} at the run's chosen round."""
        return dict(zip(self.run.summary.clients, self.table[self.chosen].tolist(), strict=True))


def scored(members: Members) -> dict[Name, list[Scored]]:
    """{(method, model): that model of each seed}, of the models that all seeds have."""
    return {
        (method, model): [_scored(run, model) for run in runs]
        for method, runs in members.items()
        for model in runs[0].summary.models
        if all(model in run.summary.models for run in runs)
    }


def _scored(run: Run, model: str) -> Scored:
    lines = _lines(run, model)
    table = np.array([line.models[model].clients for line in lines], dtype=np.float64)
    if not table.size:
        raise ValueError(f"The run in {run.path} has no finished round with scores of the model {model!r}.")
    best, mean = statistics.best_mean(table, run.summary.higher_is_better)
    known = all(line.models[model].validation is not None for line in lines)
    at = progress.chosen(lines, model, run.summary.higher_is_better, run.config.get("patience", 0))
    return Scored(run, model, tuple(line.round for line in lines), table, best, mean, at, known)


def round_taken(run: Run) -> int:
    """The round that everything said of the headline model stands on."""
    name, summary = run.summary.headline, run.summary
    lines = _lines(run, name)
    return lines[progress.chosen(lines, name, summary.higher_is_better, run.config.get("patience", 0))].round


def _lines(run: Run, model: str) -> list[Line]:
    return [line for line in run.rounds if not line.novel and model in line.models]


def rows(found: Mapping[Name, Sequence[Scored]], higher: bool) -> list[Row]:
    """The table: headline models first, the best score at the top, then the methods' other models likewise; of equals
    the first by name, so that the order of the runs does not matter."""
    table = [_row(*name, seeds) for name, seeds in found.items()]

    def place(row: Row) -> tuple[bool, float, str]:
        score = -row.score if higher else row.score
        return not row.headline, score if np.isfinite(score) else np.inf, row.name

    return sorted(table, key=place)


def _row(method: str, model: str, seeds: Sequence[Scored]) -> Row:
    first = seeds[0].run.summary
    clients = [seed.table[seed.chosen] for seed in seeds]
    means = np.array([seed.score for seed in seeds])
    return Row(
        method=method,
        model=model,
        headline=model == first.headline,
        score=float(means.mean()),
        bmta=float(np.mean([seed.mean for seed in seeds])),
        worst=_worst(clients, first.higher_is_better),
        std_clients=_deviation(clients),
        std_seeds=float(means.std(ddof=1)) if len(means) > 1 else None,
        last=float(np.mean([statistics.last(seed.table) for seed in seeds])),
        last10=float(np.mean([statistics.last10(seed.table) for seed in seeds])),
        validated=float(means.mean()) if all(seed.validated for seed in seeds) else None,
        seeds=tuple(seed.seed for seed in seeds),
    )


def _worst(seeds: Sequence[NDArray[np.float64]], higher: bool) -> float:
    """The worst client of each seed, then the mean; NaN where none has a score."""
    known = [each[~np.isnan(each)] for each in seeds]
    return float(np.mean([(each.min() if higher else each.max()) if len(each) else np.nan for each in known]))


def _deviation(seeds: Sequence[NDArray[np.float64]]) -> float:
    """Over the clients of each seed, then the mean; NaN where none has a score."""
    known = [each[~np.isnan(each)] for each in seeds]
    return float(np.mean([each.std() if len(each) else np.nan for each in known]))


def at_best(row: Row, seeds: Sequence[Scored]) -> Row:
    """The row as the papers tell it: everything at the best round of the test data."""
    clients, means = [seed.table[seed.best] for seed in seeds], np.array([seed.mean for seed in seeds])
    higher = seeds[0].run.summary.higher_is_better
    return replace(
        row,
        score=row.bmta,
        worst=_worst(clients, higher),
        std_clients=_deviation(clients),
        std_seeds=float(means.std(ddof=1)) if len(means) > 1 else None,
    )


def tests(table: Sequence[Row], found: Mapping[Name, Sequence[Scored]], reference: str | None = None) -> list[Pair]:
    """Wilcoxon's test for every pair of headline rows, the better score first; Holm over all of them.

    A pair of scores is a client's, averaged over the seeds that both methods were run with: seeds of a client are no
    further clients. Two methods without such a seed are not tested. With a reference (`method` or `method:model`) only
    the pairs with it are given, and then it comes first; the p-values are the same, of the same family.
    """
    headlines = [row for row in table if row.headline]
    chosen = None if reference is None else find_row(headlines, reference)
    tested: list[tuple[str, str, tuple[int, ...], Comparison]] = []
    for one, other in combinations(headlines, 2):
        first, second = (other, one) if other is chosen else (one, other)
        own = found[first.method, first.model]
        seeds, a, b = _matched(own, found[second.method, second.model])
        if len(a):
            result = statistics.wilcoxon(a, b, own[0].run.summary.higher_is_better)
            tested.append((first.name, second.name, seeds, result))
    enough = [i for i, (*_, result) in enumerate(tested) if result.pairs >= FEWEST_PAIRS]
    corrected = dict(zip(enough, statistics.holm([tested[i][3].two_sided for i in enough]).tolist(), strict=True))
    pairs = [Pair(*pair, corrected.get(i)) for i, pair in enumerate(tested)]
    return [pair for pair in pairs if chosen is None or pair.first == chosen.name]


def find_row(table: Sequence[Row], reference: str) -> Row:
    """The row called `method:model`, or the first one of the method."""
    for row in table:
        if reference in (row.name, row.method):
            return row
    known = ", ".join(row.name for row in table)
    raise ValueError(f"There is no row {reference!r} to compare with; there are {known}.")


def _matched(
    a: Sequence[Scored], b: Sequence[Scored]
) -> tuple[tuple[int, ...], NDArray[np.float64], NDArray[np.float64]]:
    """The seeds of both, and (clients,) of each the mean over the seeds in which the client has a score of both."""
    others, seeds = {each.seed: each for each in b}, []
    found: dict[str, list[tuple[float, float]]] = {}
    for each in a:
        if each.seed in others:
            first, second = each.at_chosen, others[each.seed].at_chosen
            shared = [(n, (first[n], second[n])) for n in first if n in second]
            known = [(n, pair) for n, pair in shared if not np.isnan(pair).any()]
            seeds += [each.seed] if known else []
            for name, pair in known:
                found.setdefault(name, []).append(pair)
    means = np.array([np.mean(pairs, axis=0) for pairs in found.values()]).reshape(-1, 2)
    return tuple(seeds), means[:, 0], means[:, 1]


Both = dict[str, tuple[dict[str, float], dict[str, float]]]
"""For a row {client: alone} and {client: joined}."""


def joining(table: Sequence[Row], found: Mapping[Name, Sequence[Scored]]) -> Both:
    """For each headline row but `separate`: {client: alone} and {client: joined}, means over the shared seeds."""
    headlines = {row: found[row.method, row.model] for row in table if row.headline}
    lonely = next((seeds for seeds in headlines.values() if seeds[0].run.summary.method == ALONE), None)
    result: Both = {}
    for row, seeds in headlines.items():
        if lonely is None or seeds[0].run.summary.method == ALONE:
            continue
        shared = set(row.seeds) & {each.seed for each in lonely}
        alone, joined = (client_scores([each for each in side if each.seed in shared]) for side in (lonely, seeds))
        names = [name for name in joined if name in alone]
        if names:
            result[row.name] = {name: alone[name] for name in names}, {name: joined[name] for name in names}
    return result


def worse_than_alone(both: Both, higher: bool) -> dict[str, list[tuple[str, float, float]]]:
    """For each headline row but `separate`: the clients for whom joining was worse, as (client, alone, joined).

    Means over the seeds that the method shares with `separate`. Without `separate` among the runs, or a shared seed,
    there is nothing to say and the row is absent.
    """
    worse: dict[str, list[tuple[str, float, float]]] = {}
    for row, (alone, joined) in both.items():
        gains = {name: round((joined[name] - alone[name]) * (1 if higher else -1), 6) for name in joined}
        worse[row] = [(name, alone[name], joined[name]) for name in joined if gains[name] < 0]
    return worse


def sides(runs: Sequence[Run]) -> tuple[str, str] | None:
    """What to call clients that were left alone and those that were hit; None where nobody was."""
    kinds = {run.config["corruption"]["kind"] for run in runs if run.summary.corrupted}
    return None if not kinds else ("clean", "hit") if "dirty" in kinds else ("benign", "attacked")


def client_scores(seeds: Sequence[Scored]) -> dict[str, float]:
    """{client: mean over the seeds of its score at the run's chosen round}; clients without a score are left out."""
    values: dict[str, list[float]] = {}
    for seed in seeds:
        for name, value in seed.at_chosen.items():
            if not np.isnan(value):
                values.setdefault(name, []).append(value)
    return {name: float(np.mean(each)) for name, each in values.items()}


def curve(seeds: Sequence[Scored]) -> Curve:
    """The mean over clients by round; over the rounds that all seeds have."""
    by_round: list[dict[int, float]] = []
    for seed in seeds:
        by_round.append(dict(zip(seed.rounds, statistics.client_means(seed.table).tolist(), strict=True)))
    rounds = sorted(set.intersection(*(set(each) for each in by_round)))
    values = np.array([[each[k] for k in rounds] for each in by_round]).reshape(len(seeds), -1)
    return Curve(np.array(rounds, dtype=np.int64), values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def by_method(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """{method: its runs by seed}, in the order given.

    Two runs of a method with one seed differ in their settings; they are then told apart by those: `fedamp (sigma=10)`.
    """
    if not runs:
        raise ValueError("There is no run to report on.")
    settings = sorted({f"{_data(r)}, {r.summary.split}, {r.summary.metric}" for r in runs})
    if len(settings) > 1:
        raise ValueError(
            "Only runs with the same data, split and metric can be compared, and these differ "
            f"({'; '.join(settings)}). Make a report for each."
        )
    found: dict[str, list[Run]] = {}
    for run, label in zip(runs, _labels(runs), strict=True):
        found.setdefault(label, []).append(run)
    for label, members in found.items():
        members.sort(key=lambda run: run.summary.seed)
        for one, other in pairwise(members):
            if one.summary.seed == other.summary.seed:
                raise ValueError(
                    f"{one.path} and {other.path} are both {label} with seed {one.summary.seed} and the same "
                    "settings. Leave one of them out."
                )
    return found


def _data(run: Run) -> str:
    """The data's name; of a user's own file with the beginning of its digest, as two files may have one name."""
    digest = flat_settings(run.config).get("data.digest")
    return f"{run.summary.data} ({digest[:8]})" if digest else run.summary.data


def _labels(runs: Sequence[Run]) -> list[str]:
    labels = [run.summary.method for run in runs]
    for method in dict.fromkeys(labels):
        members = [i for i, label in enumerate(labels) if label == method]
        if len({runs[i].summary.seed for i in members}) == len(members):
            continue
        keys = variations([runs[i] for i in members])
        for i in members if keys else []:
            settings = flat_settings(runs[i].config)
            labels[i] = f"{method} ({', '.join(f'{_leaf(key)}={settings.get(key)}' for key in keys)})"
    return labels


def variations(runs: Sequence[Run]) -> list[str]:
    """The settings in which these runs differ, apart from seeds, places and machines."""
    keys = differing([flat_settings(run.config) for run in runs])
    return [key for key in keys if "seed" not in _leaf(key) and key not in INCIDENTAL]


def _leaf(key: str) -> str:
    return key.rpartition(".")[2]


def flat_settings(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{'method.sigma': 10, …} of nested tables."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flat_settings(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that do not have the same value in all of these."""
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if len({repr(each.get(key)) for each in settings}) > 1]


def client_order(clients: Sequence[str], groups: Sequence[int] | NDArray[np.int64] | None) -> list[int]:
    """Indices of the clients by group, then by name, where silo-2 comes before silo-10."""

    def key(i: int) -> tuple[int, list[tuple[int, int, str]]]:
        parts = re.split(r"(\d+)", clients[i])
        natural = [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]
        return (0 if groups is None else int(groups[i])), natural

    return sorted(range(len(clients)), key=key)
