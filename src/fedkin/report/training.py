"""What is told of how methods were trained: by what, at which rates that were tried, and why one is below training
alone. In sentences and as a table, for pages and for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..evidence.below_alone import Below
from ..evidence.findings import Findings
from ..evidence.grid import Rates, Trial, at_the_edge
from ..evidence.spent import APART, Spent
from . import html
from .html import escaped
from .words import difference_text, listed, metric_name, p_text, score_text

Conditions = Mapping[str, Findings]
"""What was found under each condition; of one comparison, under an empty name."""
CHOSEN = (
    "Each method’s learning rate was chosen on validation data, by its headline model’s mean score around the round "
    "that is taken, mean over seeds: of those that are not worse than the best by more than a standard error of the "
    "difference, the nearest to the method’s own. Test data had no say."
)


def trained_sentences(conditions: Conditions) -> list[str]:
    """Which methods were trained by what; once where that is the same throughout, nothing where all trained alike."""
    told = {name: _by_words(found.trained_with) for name, found in conditions.items() if found.trained_with}
    return _once({name: f"Trained with: {words}." for name, words in told.items()}, conditions)


def _once(told: Mapping[str, str], conditions: Conditions) -> list[str]:
    """What is told under each condition; once where that is the same throughout."""
    if len(set(told.values())) == 1 and len(told) == len(conditions):
        return [next(iter(told.values()))]
    return [f"{_named(name)}{sentence}" for name, sentence in told.items()]


def spent_sentences(conditions: Conditions) -> list[str]:
    """What methods spent; nothing where runs do not say it."""
    return _once({name: _spent(found.spent) for name, found in conditions.items() if found.spent}, conditions)


def _spent(spent: Mapping[str, Spent]) -> str:
    gradients = _by_words({method: amount_text(each.gradients) for method, each in spent.items()})
    asked = _by_words({method: amount_text(each.passes) for method, each in spent.items() if each.passes})
    text = f"Gradients a client and round: {gradients}."
    return f"{text} Samples that models were asked about besides, without a gradient: {asked}." if asked else text


def amount_text(value: float) -> str:
    """Gradients or samples a client and round, which may be a mean: 24, 10.5, 1,536."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def unequal_sentences(conditions: Conditions) -> list[str]:
    """Where methods that were to spend the same did not, each with its part of the budget."""
    return _once({name: _unequal(found.spent) for name, found in conditions.items() if found.unequal}, conditions)


def _unequal(spent: Mapping[str, Spent]) -> str:
    factors = {method: each.factor for method, each in spent.items() if each.factor is not None}
    if len(factors) < len(spent):
        theirs = [f"{method} {amount_text(each.gradients)}" for method, each in spent.items()]
        return f"Methods did not spend the same number of gradients a client and round: {listed(theirs, len(theirs))}."
    kept = [method for method, factor in factors.items() if abs(factor - 1) <= APART]
    others = [
        f"{method} {factor:.3g} times that ({amount_text(spent[method].gradients)})"
        for method, factor in factors.items()
        if method not in kept
    ]
    budgets = {amount_text(each.budget) for each in spent.values() if each.budget is not None}
    budget = f"{' or '.join(sorted(budgets))} gradients a client and round"
    text = f"The budget is {budget}, which not all methods keep to: {listed(others, len(others))}"
    return f"{text}; {listed(kept, len(kept))} did." if kept else f"{text}."


def _by_words(trained: Mapping[str, str]) -> str:
    by_words: dict[str, list[str]] = {}
    for method, words in trained.items():
        by_words.setdefault(words, []).append(method)
    return "; ".join(f"{words} ({', '.join(names)})" for words, names in by_words.items())


def edge_sentences(conditions: Conditions) -> list[str]:
    """Where a chosen rate lies at the grid's edge."""
    return [
        f"{_named(name)}{sentence}"
        for name, found in conditions.items()
        for sentence in at_the_edge(found.tuned.values())
    ]


def below_sentences(conditions: Conditions) -> list[str]:
    """Which methods are below training alone, and why, as far as the records show it."""
    return [
        f"{_named(name)}{_below(below, found.metric)}"
        for name, found in conditions.items()
        for below in found.below_alone
    ]


def _named(condition: str) -> str:
    return f"{condition}: " if condition else ""


Tried = tuple[str, Findings, Rates, list[Trial | None]]
"""A condition, what was found under it, and a method's rates in the order of the words by which they were asked for."""


def rate_table(conditions: Conditions) -> tuple[list[str], list[Tried]]:
    """The words by which rates were asked for, and a line for each condition and method."""
    everyone = [(name, found, rates) for name, found in conditions.items() for rates in found.tuned.values()]
    words = list(dict.fromkeys(trial.name for *_, rates in everyone for trial in rates.trials))
    lines = []
    for name, found, rates in everyone:
        by_word = {trial.name: trial for trial in rates.trials}
        lines.append((name, found, rates, [by_word.get(word) for word in words]))
    return words, lines


def rates_section(conditions: Conditions) -> str:
    """For a page: every rate that was tried, with its validation score; nothing where none was tuned."""
    words, lines = rate_table(conditions)
    if not lines:
        return ""
    rows, named = [], any(conditions)
    for name, found, rates, trials in lines:
        cells = [html.text_cell(rates.method)] if named else []
        cells += [html.text_cell(rates.setting), html.cell(f"{rates.rate:g}", rates.rate)]
        cells += [_tried(trial, rates, found.metric) for trial in trials]
        rows.append(html.row(name if named else rates.method, cells))
    texts = ("method", "rate") if named else ("rate",)
    more = "".join(map(html.text_head, texts))
    more += "".join(f'<th data-sort="number">{escaped(text)}</th>' for text in ("chosen", *words))
    table = html.table(html.head(["condition" if named else "method"], more), rows, "rates")
    return html.section("What was tuned", escaped(CHOSEN), table + _listed(edge_sentences(conditions), "caveats"))


def _listed(sentences: Sequence[str], kind: str) -> str:
    items = "".join(f"<li>{escaped(sentence)}</li>" for sentence in sentences)
    return f'<ul class="{kind}">{items}</ul>' if items else ""


def _tried(trial: Trial | None, rates: Rates, metric: str) -> str:
    if trial is None:
        return "<td>–</td>"
    score = "diverged" if trial.validation is None else score_text(trial.validation, metric)
    score = f"<b>{escaped(score)}</b>" if trial is rates.best else escaped(score)
    return f'<td data-value="{trial.validation!r}">{score}<small>{trial.values[rates.setting]:g}</small></td>'


# ---- below training alone ----


def _below(below: Below, metric: str) -> str:
    gap = difference_text(below.gap, metric)
    head = f"{below.row.name} is {gap} worse than training alone (p {_p(below.p)}, after Holm)"
    reasons = _reasons(below, metric)
    return f"{head}: {'; '.join(reasons)}." if reasons else f"{head}; why is not seen in the records."


def _p(p: float) -> str:
    text = p_text(p)
    return text if text.startswith("<") else f"= {text}"


def _reasons(below: Below, metric: str) -> list[str]:
    told = []
    if below.other is not None:
        told.append(_better_model(below.row.model, below.other.model, score_text(below.other.score, metric)))
    if below.elsewhere is not None:
        share, oracle = below.elsewhere
        score = score_text(oracle.score, metric)
        told.append(f"{100 * share:.0f} % of its weight goes to other groups, and staying inside one's own is {score}")
    if below.trained is not None:
        told.append(f"it was trained with {below.trained[0]}, training alone with {below.trained[1]}")
    if below.rate is not None:
        told.append(f"its rate, {below.rate.setting} = {below.rate.rate:g}, lies at the edge of what was tried")
    if below.rise is not None:
        rise, rounds = below.rise
        gained = difference_text(rise, metric)
        told.append(
            f"it was still improving, by {gained} of validation {metric_name(metric)} in the last {rounds} rounds, so "
            "more rounds may narrow the gap"
        )
    if below.loss is not None:
        first, last, alone = below.loss
        told.append(
            f"its training loss is still high: {last:.3g} at the end, {first:.3g} in the first round, alone {alone:.3g}"
        )
    if below.diverged:
        told.append(f"training was not finite {below.diverged} times")
    return told


def _better_model(own: str, other: str, score: str) -> str:
    if own == "global":
        return f"it is one model for all, and clients differ: what each makes of it, {other}, comes to {score}"
    if other == "global":
        return f"what clients make of its global model is worse than that model, which comes to {score}"
    return f"its other model, {other}, comes to {score}"


def below_list(conditions: Conditions) -> str:
    """For a page: the methods below training alone, a line each."""
    told = below_sentences(conditions)
    return f'<p class="note">Below training alone:</p>{_listed(told, "note")}' if told else ""


def spent_list(conditions: Conditions) -> str:
    """For a page: what methods spent, and where that was not the same though it was to be."""
    return _listed(spent_sentences(conditions), "note") + _listed(unequal_sentences(conditions), "caveats")


def trained_section(conditions: Conditions) -> str:
    """For a page whose tables have no column for it: by what methods were trained where that differs, what they spent,
    and which are below training alone."""
    body = _listed(trained_sentences(conditions), "note") + spent_list(conditions) + below_list(conditions)
    return html.section("How methods were trained", "", body) if body else ""
