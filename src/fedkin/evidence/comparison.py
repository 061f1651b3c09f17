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
from .records import Line, Novel, Summary

ALONE = "separate"
ORACLE = "groups"
"""Told the groups: an upper bound, not a contender."""
# Settings in which two runs may differ and still be the same method tried twice.
INCIDENTAL = {"out", "path", "folder", "device", "execution", "data_folder"}


class Run(Protocol):
    """What is read of a run; `fedkin.runs.Run` is one."""

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
class Spread:
    """A mean over clients, then over seeds; the deviations as in a `Row`, over clients and over seeds apart."""

    mean: float
    std_clients: float
    std_seeds: float | None


@dataclass(frozen=True)
class Served:
    """What a `method:model` gave to newcomers, beside what known clients had at the closing exchange.

    `known` is None for a way of serving that newcomers alone are given. counts: newcomers in each seed.
    """

    method: str
    model: str
    headline: bool
    known: Spread | None
    newcomers: Spread
    counts: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.method}:{self.model}"

    @property
    def difference(self) -> float:
        """Newcomers less known clients; NaN where no known client has that model."""
        return self.newcomers.mean - self.known.mean if self.known else float("nan")


@dataclass(frozen=True)
class Curve:
    """Mean over clients by round, each (rounds,): the mean over seeds, and the lowest and highest seed."""

    rounds: NDArray[np.int64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def rows(runs: Sequence[Run]) -> list[Row]:
    """The table: headline models first, the best mean at the top, then the methods' other models likewise."""
    table = [_row(method, model, members) for method, members in by_method(runs).items() for model in _models(members)]
    higher = higher_is_better(runs)
    return sorted(table, key=lambda row: (not row.headline, -row.bmta if higher else row.bmta))


def _row(method: str, model: str, members: Sequence[Run]) -> Row:
    higher = higher_is_better(members)
    tables = [scores(run, model) for run in members]
    best = [statistics.best_mean(table, higher) for table in tables]
    clients = [table[index] for table, (index, _) in zip(tables, best, strict=True)]
    means = np.array([mean for _, mean in best])
    chosen = [_validated(run, model) for run in members]
    known = [value for value in chosen if value is not None]
    return Row(
        method=method,
        model=model,
        headline=model == members[0].summary.headline,
        bmta=float(means.mean()),
        worst=float(np.mean([np.nanmin(c) if higher else np.nanmax(c) for c in clients])),
        std_clients=float(np.mean([np.nanstd(c) for c in clients])),
        std_seeds=float(means.std(ddof=1)) if len(means) > 1 else None,
        last=float(np.mean([statistics.last(table) for table in tables])),
        last10=float(np.mean([statistics.last10(table) for table in tables])),
        validated=float(np.mean(known)) if len(known) == len(chosen) else None,
        seeds=tuple(run.summary.seed for run in members),
    )


def _validated(run: Run, model: str) -> float | None:
    lines = _lines(run, model)
    held = [part.clients for line in lines if (part := line.models[model].validation) is not None]
    if len(held) == len(lines):
        value = statistics.validated(scores(run, model), np.array(held, dtype=np.float64), higher_is_better([run]))
        if value is not None:
            return value
    return run.summary.models[model].validated


def tests(runs: Sequence[Run], reference: str | None = None) -> list[Pair]:
    """Wilcoxon's test for every pair of headline rows, the better mean first; Holm over all pairs returned.

    With a reference (`method` or `method:model`) only the pairs with it, and then it comes first. A pair of scores
    is a client of a seed that both methods were run with; two methods without such a seed are not tested.
    """
    table = [row for row in rows(runs) if row.headline]
    pairs = list(combinations(table, 2))
    if reference is not None:
        chosen = find_row(table, reference)
        pairs = [(chosen, row) for row in table if row is not chosen]
    members = by_method(runs)
    found: list[tuple[str, str, tuple[int, ...], Comparison]] = []
    for first, second in pairs:
        matched = list(_matched(members[first.method], first.model, members[second.method], second.model))
        if matched:
            a, b = (np.concatenate([vectors[side] for _, vectors in matched]) for side in (0, 1))
            result = statistics.wilcoxon(a, b, higher_is_better(runs))
            found.append((first.name, second.name, tuple(seed for seed, _ in matched), result))
    two_sided = statistics.holm([result.two_sided for *_, result in found])
    greater = statistics.holm([result.greater for *_, result in found])
    return [Pair(*pair, float(p), float(g)) for pair, p, g in zip(found, two_sided, greater, strict=True)]


def find_row(table: Sequence[Row], reference: str) -> Row:
    """The row called `method:model`, or the first one of the method."""
    for row in table:
        if reference in (row.name, row.method):
            return row
    known = ", ".join(row.name for row in table)
    raise ValueError(f"There is no row {reference!r} to compare with; there are {known}.")


def _matched(
    a: Sequence[Run], model_a: str, b: Sequence[Run], model_b: str
) -> Iterator[tuple[int, tuple[NDArray[np.float64], NDArray[np.float64]]]]:
    """For each seed of both: the scores of the clients of both, in one order."""
    others = {run.summary.seed: run for run in b}
    for run in a:
        other = others.get(run.summary.seed)
        if other is not None:
            first, second = at_best(run, model_a), at_best(other, model_b)
            names = [name for name in first if name in second]
            if names:
                vectors = np.array([first[n] for n in names]), np.array([second[n] for n in names])
                yield run.summary.seed, vectors


def worse_than_alone(runs: Sequence[Run]) -> dict[str, list[tuple[str, float, float]]]:
    """For each headline row but `separate`: the clients for whom joining was worse, as (client, alone, joined).

    Means over the seeds that the method shares with `separate`. Without `separate` among the runs, or a shared seed,
    there is nothing to say and the row is absent.
    """
    higher = higher_is_better(runs)
    worse: dict[str, list[tuple[str, float, float]]] = {}
    for row, (alone, joined) in joining(runs).items():
        gains = {name: round((joined[name] - alone[name]) * (1 if higher else -1), 6) for name in joined}
        worse[row] = [(name, alone[name], joined[name]) for name in joined if gains[name] < 0]
    return worse


def newcomers(runs: Sequence[Run]) -> list[Served]:
    """What newcomers got from each `method:model`: the method that serves them best first, its headline model on top.

    Seeds without newcomers are left out. A way of serving that newcomers alone are given has no known clients.
    """
    sign = -1 if higher_is_better(runs) else 1
    served: list[list[Served]] = []
    for method, members in by_method(runs).items():
        held = [(run, run.summary.novel) for run in members if run.summary.novel]
        own = [_served(method, model, held) for model in (held[0][1].models if held else ())]
        served.append(sorted(own, key=lambda each: (not each.headline, _rank(each, sign))))
    served.sort(key=lambda own: _rank(own[0], sign) if own else np.inf)
    return [each for own in served for each in own]


def _served(method: str, model: str, held: Sequence[tuple[Run, Novel]]) -> Served:
    runs, tables = [run for run, _ in held], [novel.models[model].clients for _, novel in held]
    known = all(model in run.summary.models for run in runs)
    return Served(
        method=method,
        model=model,
        headline=model == runs[0].summary.headline,
        known=_spread([scores(run, model)[-1] for run in runs]) if known else None,
        newcomers=_spread([np.array(table, dtype=np.float64) for table in tables]),
        counts=tuple(len(table) for table in tables),
    )


def _spread(clients: Sequence[NDArray[np.float64]]) -> Spread:
    """clients: for each seed its clients' scores; a seed in which none has one is left out."""
    scored = [each for each in clients if not np.isnan(each).all()]
    if not scored:
        return Spread(float("nan"), float("nan"), None)
    means = np.array([np.nanmean(each) for each in scored])
    return Spread(
        mean=float(means.mean()),
        std_clients=float(np.mean([np.nanstd(each) for each in scored])),
        std_seeds=float(means.std(ddof=1)) if len(means) > 1 else None,
    )


def _rank(served: Served, sign: int) -> float:
    mean = served.newcomers.mean
    return np.inf if np.isnan(mean) else sign * mean


def sides(runs: Sequence[Run]) -> tuple[str, str] | None:
    """What to call clients that were left alone and those that were hit; None where nobody was."""
    kinds = {run.config["corruption"]["kind"] for run in runs if run.summary.corrupted}
    return None if not kinds else ("clean", "hit") if "dirty" in kinds else ("benign", "attacked")


def joining(runs: Sequence[Run]) -> dict[str, tuple[dict[str, float], dict[str, float]]]:
    """For each headline row but `separate`: {client: alone} and {client: joined}, means over the shared seeds."""
    table, members = [row for row in rows(runs) if row.headline], by_method(runs)
    lonely = next((row for row in table if members[row.method][0].summary.method == ALONE), None)
    result: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    for row in table:
        if lonely is None or members[row.method][0].summary.method == ALONE:
            continue
        shared = set(row.seeds) & set(lonely.seeds)
        alone = client_scores([r for r in members[lonely.method] if r.summary.seed in shared], lonely.model)
        joined = client_scores([r for r in members[row.method] if r.summary.seed in shared], row.model)
        names = [name for name in joined if name in alone]
        if names:
            result[row.name] = {name: alone[name] for name in names}, {name: joined[name] for name in names}
    return result


def client_scores(members: Sequence[Run], model: str) -> dict[str, float]:
    """{client: mean over the seeds of its score at the run's best round}; clients without a score are left out."""
    values: dict[str, list[float]] = {}
    for run in members:
        for name, value in at_best(run, model).items():
            if not np.isnan(value):
                values.setdefault(name, []).append(value)
    return {name: float(np.mean(each)) for name, each in values.items()}


def at_best(run: Run, model: str) -> dict[str, float]:
    """{client: score} at the run's own best round."""
    table = scores(run, model)
    index, _ = statistics.best_mean(table, higher_is_better([run]))
    return dict(zip(run.summary.clients, table[index].tolist(), strict=True))


def curve(members: Sequence[Run], model: str) -> Curve:
    """The mean over clients by round; over the rounds that all seeds have."""
    by_round: list[dict[int, float]] = []
    for run in members:
        means = statistics.client_means(scores(run, model)).tolist()
        by_round.append(dict(zip(round_numbers(run, model), means, strict=True)))
    rounds = sorted(set.intersection(*(set(each) for each in by_round)))
    values = np.array([[each[k] for k in rounds] for each in by_round]).reshape(len(members), -1)
    return Curve(np.array(rounds, dtype=np.int64), values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def scores(run: Run, model: str) -> NDArray[np.float64]:
    """(rounds, clients) on test data, the closing exchange included and lines about newcomers left out."""
    table = np.array([line.models[model].clients for line in _lines(run, model)], dtype=np.float64)
    if not table.size:
        raise ValueError(f"The run in {run.path} has no finished round with scores of the model {model!r}.")
    return table


def round_numbers(run: Run, model: str) -> list[int]:
    """The rounds that `scores` is about."""
    return [line.round for line in _lines(run, model)]


def _lines(run: Run, model: str) -> list[Line]:
    return [line for line in run.rounds if not line.novel and model in line.models]


def _models(members: Sequence[Run]) -> list[str]:
    return [model for model in members[0].summary.models if all(model in run.summary.models for run in members)]


def higher_is_better(runs: Sequence[Run]) -> bool:
    return runs[0].summary.higher_is_better


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
    return [key for key in keys if "seed" not in _leaf(key) and _leaf(key) not in INCIDENTAL]


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
