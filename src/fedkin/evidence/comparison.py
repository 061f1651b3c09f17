"""Runs side by side: the table, the paired tests, and for whom joining was worse than staying alone.

Runs are of one comparison if data, split and metric are the same. A row is `method:model`; scores of a client are
taken at the run's own best round, and means over seeds go by the client's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..maths import statistics
from ..maths.statistics import Comparison
from .outputs import Outputs
from .records import Line, Summary

ALONE = "separate"
ORACLE = "groups"
"""Told the groups: an upper bound, not a contender."""
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

    std_clients: over clients at the best round (of all of them, so ddof 0), then the mean over seeds.
    std_seeds: of the best means over seeds (a sample, so ddof 1); None for a single seed.
    """

    method: str
    model: str
    headline: bool
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
    """Two rows tested over (seed, client). `p` is two-sided, `p_greater` for `first` being better; both after Holm."""

    first: str
    second: str
    seeds: tuple[int, ...]
    result: Comparison
    p: float
    p_greater: float


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
    left out; `best` is the row of it with the best mean over clients, and `mean` that mean."""

    run: Run
    model: str
    rounds: tuple[int, ...]
    table: NDArray[np.float64]
    best: int
    mean: float

    @property
    def seed(self) -> int:
        return self.run.summary.seed

    @property
    def at_best(self) -> dict[str, float]:
        """{client: score} at the run's own best round."""
        return dict(zip(self.run.summary.clients, self.table[self.best].tolist(), strict=True))

    @property
    def validated(self) -> float | None:
        """The mean at the round that validation data choose; None without them."""
        lines = _lines(self.run, self.model)
        held = [part.clients for line in lines if (part := line.models[self.model].validation) is not None]
        if len(held) == len(lines):
            table = np.array(held, dtype=np.float64)
            value = statistics.validated(self.table, table, self.run.summary.higher_is_better)
            if value is not None:
                return value
        return self.run.summary.models[self.model].validated


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
    return Scored(run, model, tuple(line.round for line in lines), table, best, mean)


def _lines(run: Run, model: str) -> list[Line]:
    return [line for line in run.rounds if not line.novel and model in line.models]


def rows(found: Mapping[Name, Sequence[Scored]], higher: bool) -> list[Row]:
    """The table: headline models first, the best mean at the top, then the methods' other models likewise."""
    table = [_row(*name, seeds) for name, seeds in found.items()]
    return sorted(table, key=lambda row: (not row.headline, -row.bmta if higher else row.bmta))


def _row(method: str, model: str, seeds: Sequence[Scored]) -> Row:
    first = seeds[0].run.summary
    clients = [seed.table[seed.best] for seed in seeds]
    means = np.array([seed.mean for seed in seeds])
    chosen = [seed.validated for seed in seeds]
    known = [value for value in chosen if value is not None]
    return Row(
        method=method,
        model=model,
        headline=model == first.headline,
        bmta=float(means.mean()),
        worst=float(np.mean([np.nanmin(c) if first.higher_is_better else np.nanmax(c) for c in clients])),
        std_clients=float(np.mean([np.nanstd(c) for c in clients])),
        std_seeds=float(means.std(ddof=1)) if len(means) > 1 else None,
        last=float(np.mean([statistics.last(seed.table) for seed in seeds])),
        last10=float(np.mean([statistics.last10(seed.table) for seed in seeds])),
        validated=float(np.mean(known)) if len(known) == len(chosen) else None,
        seeds=tuple(seed.seed for seed in seeds),
    )


def tests(table: Sequence[Row], found: Mapping[Name, Sequence[Scored]], reference: str | None = None) -> list[Pair]:
    """Wilcoxon's test for every pair of headline rows, the better mean first; Holm over all pairs returned.

    With a reference (`method` or `method:model`) only the pairs with it, and then it comes first. A pair of scores
    is a client of a seed that both methods were run with; two methods without such a seed are not tested.
    """
    headlines = [row for row in table if row.headline]
    pairs = list(combinations(headlines, 2))
    if reference is not None:
        chosen = find_row(headlines, reference)
        pairs = [(chosen, row) for row in headlines if row is not chosen]
    tested: list[tuple[str, str, tuple[int, ...], Comparison]] = []
    for first, second in pairs:
        own = found[first.method, first.model]
        matched = list(_matched(own, found[second.method, second.model]))
        if matched:
            a, b = (np.concatenate([vectors[side] for _, vectors in matched]) for side in (0, 1))
            result = statistics.wilcoxon(a, b, own[0].run.summary.higher_is_better)
            tested.append((first.name, second.name, tuple(seed for seed, _ in matched), result))
    two_sided = statistics.holm([result.two_sided for *_, result in tested])
    greater = statistics.holm([result.greater for *_, result in tested])
    return [Pair(*pair, float(p), float(g)) for pair, p, g in zip(tested, two_sided, greater, strict=True)]


def find_row(table: Sequence[Row], reference: str) -> Row:
    """The row called `method:model`, or the first one of the method."""
    for row in table:
        if reference in (row.name, row.method):
            return row
    known = ", ".join(row.name for row in table)
    raise ValueError(f"There is no row {reference!r} to compare with; there are {known}.")


def _matched(
    a: Sequence[Scored], b: Sequence[Scored]
) -> Iterator[tuple[int, tuple[NDArray[np.float64], NDArray[np.float64]]]]:
    """For each seed of both: the scores of the clients of both, in one order."""
    others = {each.seed: each for each in b}
    for each in a:
        if each.seed in others:
            first, second = each.at_best, others[each.seed].at_best
            names = [name for name in first if name in second]
            if names:
                yield each.seed, (np.array([first[n] for n in names]), np.array([second[n] for n in names]))


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
    """{client: mean over the seeds of its score at the run's best round}; clients without a score are left out."""
    values: dict[str, list[float]] = {}
    for seed in seeds:
        for name, value in seed.at_best.items():
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
