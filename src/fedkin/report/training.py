"""What is told of how methods were trained: by what, at which rates that were tried, and why one is below training
alone. In sentences and as a table, for pages and for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..evidence.below_alone import Below
from ..evidence.findings import Findings
from ..evidence.grid import Rates, Trial
from . import html
from .html import escaped
from .words import difference_text, metric_name, p_text, score_text

Conditions = Mapping[str, Findings]
"""What was found under each condition; of one comparison, under an empty name."""
CHOSEN = (
    "Each method’s learning rate was chosen on validation data: the best mean over the rounds of its headline model, "
    "mean over seeds; of equals the first. Test data had no say."
)


def trained_sentence(trained: Mapping[str, str]) -> str:
    """Which methods were trained by what; nothing where all were trained alike."""
    by_words: dict[str, list[str]] = {}
    for method, words in trained.items():
        by_words.setdefault(words, []).append(method)
    listed = "; ".join(f"{words} ({', '.join(names)})" for words, names in by_words.items())
    return f"Trained with: {listed}." if listed else ""


def edges(tuned: Mapping[str, Rates]) -> list[str]:
    """Where a chosen rate lies at the grid's edge, in sentences."""
    return [sentence for rates in tuned.values() if (sentence := rates.at_the_edge())]


def rate_table(tuned: Mapping[str, Rates], metric: str) -> tuple[list[str], list[tuple[Rates, list[Trial | None]]]]:
    """The words by which rates were asked for, and for each method its trials in that order."""
    words = list(dict.fromkeys(trial.name for rates in tuned.values() for trial in rates.trials))
    lines = []
    for rates in tuned.values():
        by_word = {trial.name: trial for trial in rates.trials}
        lines.append((rates, [by_word.get(word) for word in words]))
    return words, lines


def rates_section(conditions: Conditions) -> str:
    """For a page: every rate that was tried, with its validation score; nothing where none was tuned."""
    tuned = {name: found for name, found in conditions.items() if found.tuned}
    if not tuned:
        return ""
    rows, named, told = [], any(tuned), list[str]()
    words = list(dict.fromkeys(w for found in tuned.values() for w in rate_table(found.tuned, found.metric)[0]))
    for name, found in tuned.items():
        heads, lines = rate_table(found.tuned, found.metric)
        for rates, trials in lines:
            by_word = dict(zip(heads, trials, strict=True))
            cells = [f"<td>{escaped(rates.method)}</td>"] if named else []
            cells += [f"<td>{escaped(rates.setting)}</td>", html.cell(f"{rates.rate:g}", rates.rate)]
            cells += [_tried(by_word.get(word), rates, found.metric) for word in words]
            rows.append(html.row(name if named else rates.method, cells))
        told += [f"{name}: {sentence}" if named else sentence for sentence in edges(found.tuned)]
    texts = ["rate", *([] if not named else ["method"])][::-1]
    more = "".join(f'<th data-sort="text">{escaped(text)}</th>' for text in texts)
    more += "".join(f'<th data-sort="number">{escaped(text)}</th>' for text in ("chosen", *words))
    table = html.table(html.head(["condition" if named else "method"], more), rows)
    listed = "".join(f"<li>{escaped(sentence)}</li>" for sentence in told)
    warned = f'<ul class="caveats">{listed}</ul>' if listed else ""
    return html.section("What was tuned", escaped(CHOSEN), table + warned)


def _tried(trial: Trial | None, rates: Rates, metric: str) -> str:
    if trial is None:
        return "<td>–</td>"
    score = "diverged" if trial.validation is None else score_text(trial.validation, metric)
    score = f"<b>{escaped(score)}</b>" if trial is rates.best else escaped(score)
    return f'<td data-value="{trial.validation!r}">{score}<small>{trial.values[rates.setting]:g}</small></td>'


# ---- below training alone ----


def below_sentence(below: Below, metric: str) -> str:
    """That a method is below training alone, and why, as far as the records show it."""
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
        one = "it is one model for all, and clients differ: " if below.row.model == "global" else ""
        comes = score_text(below.other.bmta, metric)
        told.append(f"{one}its {below.other.model} model, trained on by each client, comes to {comes}")
    if below.elsewhere is not None:
        share, oracle = below.elsewhere
        score = score_text(oracle.bmta, metric)
        told.append(f"{share:.0%} of its weight goes to clients of other groups, and staying inside them is {score}")
    if below.trained is not None:
        told.append(f"it was trained with {below.trained[0]}, training alone with {below.trained[1]}")
    if below.rate is not None:
        told.append(f"its rate, {below.rate.setting} = {below.rate.rate:g}, lies at the edge of what was tried")
    if below.rise is not None:
        rise, rounds = below.rise
        gained = difference_text(rise, metric)
        told.append(f"it was still improving: {gained} of validation {metric_name(metric)} in the last {rounds} rounds")
    if below.loss is not None:
        first, last, alone = below.loss
        told.append(
            f"it had learned little: of a training loss of {first:.3g} in the first round {last:.3g} is left, alone "
            f"{alone:.3g}"
        )
    if below.diverged:
        told.append(f"training was not finite {below.diverged} times")
    return told


def below_list(found: Findings) -> str:
    """For a page: the methods below training alone, a line each."""
    lines: Sequence[str] = [below_sentence(below, found.metric) for below in found.below_alone]
    listed = "".join(f"<li>{escaped(line)}</li>" for line in lines)
    return f'<p class="note">Below training alone:</p><ul class="note">{listed}</ul>' if listed else ""
