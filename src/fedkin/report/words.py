"""Reports on runs: one HTML page that works offline, figures for a paper, and what was found in plain words.

The core runs without plotly and matplotlib: they are imported when a report is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..evidence import comparison, progress, references
from ..evidence.comparison import Row, Run
from ..evidence.estimates import Estimate
from ..evidence.findings import Findings
from ..evidence.trained_with import prepared_with
from ..maths import statistics
from ..runs import options

# Okabe and Ito's colours, then Tol's muted ones: told apart by colour-blind readers. `separate` is always grey.
PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
    "#332288", "#882255", "#999933", "#44AA99", "#AA4499", "#661100",
)  # fmt: skip
GREY = "#7A828C"
ANSWERS = {"yes": "#009E73", "no": "#D55E00", "cannot tell": "#9AA4AF"}
# Fewer points than this get no box: quartiles of five clients say nothing.
BOX_FROM = 8
# Client names on the axes of the heat map stay legible up to here.
NAMED_UP_TO = 40
OTHERS = (
    "Those left alone at one level are not all who were at a lower one, so that from level to level their line may "
    "move with who they are, and not with what befell them; the line of all clients is of the same ones throughout."
)
"""What a reader of levels at which clients are hit has to know."""


RANKS = ("auc", "c_index")
"""Metrics that are shares of pairs, which people read with three digits and not in per cent."""


def colours(found: Findings) -> dict[str, str]:
    """One colour a method, whatever the order of the runs; after twelve they repeat."""
    members = found.members
    joining = [method for method in sorted(members) if members[method][0].summary.method != comparison.ALONE]
    return dict.fromkeys(members, GREY) | {m: PALETTE[i % len(PALETTE)] for i, m in enumerate(joining)}


def is_share(metric: str) -> bool:
    """Whether the metric is a fraction that people read in per cent."""
    return metric.rpartition(":")[2].endswith("accuracy")


def metric_name(metric: str) -> str:
    """The metric in words: `mse` is an abbreviation, `package.module:pinball_loss` somebody's own."""
    name = metric.rpartition(":")[2].replace("_", " ")
    if metric == "c_index":
        return "C-index"
    return name.upper() if len(name) <= 4 and name.isalpha() else name


def score_text(value: float | None, metric: str) -> str:
    """A score as it is printed: 92.1 %, an AUC of 0.873, an error of 0.002410, or a dash."""
    if value is None or np.isnan(value):
        return "–"
    if is_share(metric):
        return f"{100 * value:.1f} %"
    return f"{value:.3f}" if metric in RANKS else _digits(value, 4)


def _digits(value: float, digits: int, sign: str = "") -> str:
    """So many leading digits, zeros among them: from 0.001 down three, then powers of ten."""
    if abs(value) >= 10**digits - 0.5:
        return f"{value:{sign},.0f}"
    if 0 < abs(value) < 1e-4:
        return f"{value:{sign}.2e}".replace("e-0", "e-")
    return f"{value:{sign}#.{3 if abs(value) < 1e-3 else digits}g}".rstrip(".") if value else "0"


def estimate_text(estimate: Estimate | None, metric: str) -> str:
    """A score and its interval: 84.2 % (75–90), 0.873 (0.71–0.96)."""
    if estimate is None or np.isnan(estimate.value):
        return "–"
    low, high = (_end(end, metric) for end in estimate[1:])
    return f"{score_text(estimate.value, metric)} ({low}–{high})" if low else score_text(estimate.value, metric)


def gain_text(gain: Estimate, metric: str) -> str:
    """A gain and its interval, in points where the metric is a share: +6.1 (−0.3 to +12.5)."""
    if np.isnan(gain.value):
        return "–"
    value, low, high = (signed_text(number, metric) for number in gain)
    return f"{value} ({low} to {high})" if low and any(gain) else value


def _end(value: float, metric: str) -> str:
    if np.isnan(value):
        return ""
    return f"{100 * value:.0f}" if is_share(metric) else f"{value:.2f}" if metric in RANKS else _digits(value, 3)


def signed_text(value: float, metric: str) -> str:
    """A difference of scores with its sign, in points where the metric is a share; nothing where it is unknown."""
    if np.isnan(value):
        return ""
    value = 0.0 if abs(value) < 1e-12 else value  # neither +0.0 nor −0.0
    sign = "+" if value else ""
    if is_share(metric):
        text = f"{100 * value:{sign}.1f}"
    else:
        text = f"{value:{sign}.3f}" if metric in RANKS else _digits(value, 3, sign)
    return text.replace("-", "−")


def difference_text(value: float, metric: str) -> str:
    """A difference of scores as it is printed, without sign: 8.9 points, 0.001."""
    if is_share(metric):
        return f"{100 * abs(value):.1f} points"
    return f"{abs(value):.3f}" if metric in RANKS else _digits(abs(value), 3)


def p_text(p: float) -> str:
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}" if p < 0.01 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def p_cell(p: float | None) -> str:
    """A p-value in a table, where there may be none."""
    return "too few" if p is None else p_text(p)


def named(values: Mapping[str, Any]) -> str:
    """A condition by its settings' last names: split = iid, lr = 0.01."""
    return ", ".join(f"{name.rpartition('.')[2]} = {options.word(value)}" for name, value in values.items())


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _equals(p: float) -> str:
    return p_text(p) if p < 1e-4 else f"= {p_text(p)}"


def finding(found: Findings, reference: str | None = None) -> list[str]:
    """What was found, in sentences; the first is the headline. The reference is the one of `Findings.tests`.

    Whether joining was worth it is left to `joining_sentence` where that has an answer.
    """
    everyone = found.headlines
    table = contenders(found)
    sentences = [_alone_sentence(found, table[0])] if len(table) == 1 else [_lead(found, table, reference)]
    sentences += _joining_sentence(found, table) if found.joined is None else []
    for row in everyone:
        if row not in table:
            score = score_text(row.score, found.metric)
            sentences.append(f"{row.method} was told the groups; it is no contender but the mark to reach: {score}.")
    return sentences


def contenders(found: Findings) -> list[Row]:
    """The headline rows without those that were told the groups."""
    return [row for row in found.headlines if row.method != comparison.ORACLE] or found.headlines


def chosen_round(found: Findings) -> str:
    """Of which round the scores of a table are, in words."""
    if all(row.validated is not None for row in found.rows):
        return "in the round chosen on validation data"
    return "in the last round"


def tests_told(found: Findings) -> str:
    """What the p-values of a table are; nothing where there is nothing to test."""
    pairs = found.tests()
    if not pairs:
        return ""
    told = [pair for pair in pairs if pair.p is not None]
    few = sorted({pair.result.pairs for pair in pairs if pair.p is None})
    text = ""
    if told:
        text = (
            "p: Wilcoxon’s signed-rank test over clients, each client’s scores averaged over the shared seeds first; "
            f"two-sided, after Holm’s correction over {plural(len(told), 'pair')} of headline models."
        )
    if few:
        counts = " or ".join(map(str, few))
        text += f" {counts} clients are too few for a test, which needs {comparison.FEWEST_PAIRS}."
    return text.strip()


def _alone_sentence(found: Findings, row: Row) -> str:
    runs, metric, count = found.runs, found.metric, len(found.runs[0].summary.clients)
    best = f"{metric_name(metric)} of {score_text(row.score, metric)}"
    text = f"{row.method} reaches a mean test {best} over {plural(count, 'client')} {chosen_round(found)}"
    if len(runs) == 1:
        own, rounds = found.seeds(row)[0], runs[0].summary.rounds
        k = own.rounds[own.chosen]
        if own.validated:
            text += f", {k} of {rounds}" if k <= rounds else f", which is after the last of {plural(rounds, 'round')}"
    else:
        text += f", the mean of {len(runs)} seeds"
    return f"{text}; the worst client has {score_text(row.worst, metric)}."


def _lead(found: Findings, table: Sequence[Row], reference: str | None) -> str:
    first, second = table[0], table[1]
    metric = found.metric
    best, next_best = score_text(first.score, metric), score_text(second.score, metric)
    of = f"a mean test {metric_name(metric)} of {best} {chosen_round(found)}"
    if best == next_best:
        return f"{called(first.method)} and {second.method} are level at {of}."
    if not np.isfinite(second.score):
        return f"{called(first.method)} does best: {of}; {second.method} has no finite score there."
    side = "above" if found.higher_is_better else "below"
    gap = difference_text(first.score - second.score, metric)
    if gap == difference_text(0.0, metric):  # 82.5 and 82.4 may be 0.01 apart
        gap = "less than 0.1 points" if is_share(metric) else "less than 0.001"
    text = f"{called(first.method)} does best: {of}, {gap} {side} {second.method} ({next_best})"
    for pair in found.tests(reference):
        if {pair.first, pair.second} == {first.name, second.name}:
            wins, losses = pair.result.wins, pair.result.losses
            wins, losses = (wins, losses) if pair.first == first.name else (losses, wins)
            if pair.p is None:
                return f"{text}; whether that is more than chance, {plural(pair.result.pairs, 'client')} cannot tell."
            if pair.p >= 0.05:
                return f"{text}, which over clients could be chance (p {_equals(pair.p)})."
            if losses > wins:
                return f"{text}, though more clients fare better with {second.method} ({losses} against {wins})."
            return f"{text}, more than chance over clients explains (p {_equals(pair.p)})."
    return f"{text}."


def called(method: str) -> str:
    """A method at the beginning of a sentence."""
    return "Training alone" if method == comparison.ALONE else method


def _joining_sentence(found: Findings, table: Sequence[Row]) -> list[str]:
    """How many clients the best joint method serves worse than training alone, in the chosen rounds."""
    metric, both, worse = found.metric, found.joining, found.worse_than_alone
    row = next((row for row in table if row.name in both), None)
    if row is None:
        return []
    alone, together = both[row.name]
    before, after = float(np.mean(list(alone.values()))), float(np.mean(list(together.values())))
    count, losers = len(together), len(worse[row.name])
    change = f"from {score_text(before, metric)} alone to {score_text(after, metric)} with {row.method}"
    if losers == 0:
        return [f"Joining took the mean {change}; none of the {count} clients did better alone."]
    return [f"Joining took the mean {change}; {losers} of {count} clients did better alone."]


def caveats(found: Findings) -> list[str]:
    """What a reader has to know before trusting the comparison, in sentences."""
    members = found.members
    seeds = {method: [run.summary.seed for run in each] for method, each in members.items()}
    notes = []
    if len({tuple(each) for each in seeds.values()}) > 1:
        theirs = "; ".join(f"{method}: {', '.join(map(str, each))}" for method, each in seeds.items())
        notes.append(
            f"The methods were not run with the same seeds ({theirs}). Their means are over different seeds; tests and "
            "the comparison client by client use only seeds that both sides have."
        )
    if max(map(len, seeds.values())) == 1:
        notes.append(
            "There is one seed only, so how results vary from run to run is unknown: repeat with three or more."
        )
    lengths = {method: sorted({run.summary.rounds for run in each}) for method, each in members.items()}
    if len({length for each in lengths.values() for length in each}) > 1:
        theirs = "; ".join(f"{method}: {', '.join(map(str, each))}" for method, each in lengths.items())
        notes.append(f"The runs had different numbers of rounds ({theirs}).")
    for method, each in members.items():
        changed = comparison.variations(each)
        if changed:
            notes.append(f"The seeds of {method} differ in other settings as well: {', '.join(changed)}.")
    if any(pair.p is not None and pair.result.pairs < 10 for pair in found.tests()):
        notes.append("Some tests have fewer than ten clients; the normal approximation is rough there.")
    own, shared = prepared_with(members).values() or ([], [])
    if own:
        notes.append(
            f"Inputs are scaled by each silo's own means and deviations under {listed(own)}, as it is alone there, "
            f"and by those of all silos together under {listed(shared)}."
        )
    notes += unbeaten(found)
    of_data = dict.fromkeys(note for run in found.runs for note in run.summary.notes)
    return [*notes, *ends(found), *list(of_data)[:MOST_NOTES]]


def unbeaten(found: Findings) -> list[str]:
    """What needs no federation and is as good as any model of any method, in sentences; silos count as they do in the
    table of methods."""
    sign, methods = 1 if found.higher_is_better else -1, {row.method for row in contenders(found)}
    scores = [sign * row.score for row in found.rows if row.method in methods and np.isfinite(row.score)]
    return [
        f"Without any federation, {row.name} ({row.note}) has a mean test {metric_name(found.metric)} of "
        f"{score_text(row.mean, found.metric)}, every silo counted alike, which no method here beats."
        for row in references.rows(found.untrained)
        if sign * row.mean >= max(scores, default=-np.inf)
    ]


def round_rule(found: Findings) -> str:
    """By which rule validation data chose the round of each run, in half a sentence."""
    patient = {bool(run.config.get("patience")) for run in found.runs}
    share = 100 * progress.within(found.higher_is_better)
    by_loss = f"the latest whose validation loss is within {share:g} % of the lowest"
    by_score = "the last, or an earlier one where they clearly say so"
    if patient == {True, False}:
        return f"where runs end by validation data, {by_loss}, else {by_score}"
    return by_loss if patient == {True} else by_score


MOST_NOTES = 12
"""On the data, that a page shows; the run's folder has all."""


def ends(found: Findings) -> list[str]:
    """What runs ended with: whether they were done, and what diverged, in sentences."""
    told, members = [], found.members
    improving: dict[str, str] = {}
    for method, each in members.items():
        flagged = [run for run in each if run.summary.models[run.summary.headline].improving]
        if 2 * len(flagged) > len(each):  # of eight seeds one looks so by chance
            improving[method] = method if len(each) == 1 else f"{method} (in {len(flagged)} of {len(each)} seeds)"
    if improving:
        patient = any(run.config.get("patience") for each in members.values() for run in each)
        rounds = sorted({max(run.summary.rounds for run in members[method]) for method in improving})
        told.append(
            f"{listed(list(improving.values()))} {'was' if len(improving) == 1 else 'were'} still improving on "
            f"validation data at the end, after {' or '.join(map(str, rounds))} rounds: with more, what is said here "
            f"may change (`fedkin resume RUN --rounds {2 * rounds[-1]}`{'' if patient else ', or rounds = auto'})."
        )
    for method, each in members.items():
        diverged = list(dict.fromkeys(name for run in each for name in run.summary.diverged))
        if diverged:
            told.append(
                f"With {method} training diverged at {listed(diverged, 4)}: what it came to was left out, and an "
                "earlier model stayed. A smaller local.lr or local.clip = 1.0 usually helps."
            )
        withheld = list(dict.fromkeys(name for run in each for name in run.summary.withheld))
        if withheld:
            told.append(f"{method} has no model for {listed(withheld, 4)}: all that it had there has exploded.")
    return told


def listed(names: Sequence[str], most: int = 8) -> str:
    shown = list(names[:most]) if len(names) > most else list(names[:-1])
    last = f"{len(names) - most} others" if len(names) > most else names[-1]
    return f"{', '.join(shown)} and {last}" if shown else last


def older_models(found: Findings) -> list[str]:
    """How many scores are of models that their clients had trained in an earlier round, in sentences."""
    told = []
    for each in found.older:
        text = f"{each.method}:{each.model}: {each.older} of {each.scores} scores of rounds 1 to {each.rounds} are of "
        text += "models trained in an earlier round, or not yet"
        if each.older_at_the_end:
            text += f"; at the end {each.older_at_the_end} of {each.scores_at_the_end}"
        told.append(f"{text}.{UNLIKE_THE_PAPER.get(found.members[each.method][0].summary.method, '')}")
    return told


UNLIKE_THE_PAPER = {
    "pfedme": " In its paper all clients train in every round and those sampled are averaged; here only these train."
}
"""What a method does otherwise where not everyone takes part."""


def xi_groups(run: Run, xi: NDArray[Any]) -> tuple[NDArray[np.int64], bool]:
    """(m,) labels to order clients by, and whether they are known: the federation's groups, or those read off xi."""
    groups = run.summary.groups
    return (statistics.kin(xi), False) if groups is None else (np.asarray(groups, dtype=np.int64), True)


def recorded_xi(run: Run, limit: int) -> dict[int, NDArray[np.float32]]:
    """{round: xi (m, m)} of about `limit` recorded rounds, evenly spread; the first, the chosen and the last
    included."""
    recorded = sorted(run.recorded)
    spread = {recorded[i] for i in np.linspace(0, len(recorded) - 1, limit).round().astype(int)} if recorded else set()
    taken = comparison.round_taken(run)
    found: dict[int, NDArray[np.float32]] = {}
    for k in [k for k in recorded if k in spread or k == taken]:
        xi = run.collaboration(k)
        if xi is not None:
            found[k] = checked_xi(run, xi)
    return found


def checked_xi(run: Run, xi: NDArray[Any]) -> NDArray[np.float32]:
    m = len(run.summary.clients)
    if xi.shape != (m, m):
        raise ValueError(f"A collaboration matrix in {run.path} has shape {xi.shape}, but the run has {m} clients.")
    return np.asarray(xi, dtype=np.float32)
