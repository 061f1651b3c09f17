"""The part of a page that answers silos: a table, a picture, and the numbers to remember."""

from __future__ import annotations

import numpy as np

from ..evidence.findings import Findings
from ..evidence.verdicts import Joining
from . import figures, html
from .html import escaped
from .verdicts import joining_sentence, joining_words, verdict_text, with_nothing
from .words import difference_text, estimate_text, gain_text, score_text


def section(findings: Findings) -> str:
    """For each silo what it has with nothing, alone, global and personal with intervals, the gain and the answer;
    nothing where there is none."""
    found = findings.joined
    if found is None:
        return ""
    metric, plain = found.metric, any(silo.common for silo in found.silos)
    several = len({silo.handed for silo in found.silos}) > 1  # else the heading names the one model
    own = [found.method, "handed out"] if several else [f"{found.method}:{found.silos[0].handed}"]
    whose = any(silo.subjects for silo in found.silos)
    heads = ["silo", "test samples", *(["subjects"] if whose else []), *found.baselines]
    heads += ["alone", *(["global"] if plain else []), *own, "gain"]
    lines = []
    for silo in found.silos:
        scores = [silo.alone, *([silo.common] if plain else []), silo.personal]
        cells = [html.cell(f"{silo.samples:,}", silo.samples)]
        cells += [html.cell(f"{silo.subjects or silo.samples:,}", silo.subjects or silo.samples)] if whose else []
        cells += [
            html.cell(score_text(silo.beside.get(name), metric), silo.beside.get(name)) for name in found.baselines
        ]
        cells += [html.interval_cell(estimate_text(score, metric), score) for score in scores]
        cells += [f'<td class="handed">{escaped(silo.handed)}</td>'] if several else []
        cells.append(html.interval_cell(gain_text(silo.gain, metric), silo.gain))
        mark = {"yes": "good", "no": "bad", "cannot tell": "unclear"}[silo.answer]
        cells.append(f'<td><span class="verdict {mark}">{escaped(verdict_text(silo, metric))}</span></td>')
        lines.append(html.row(silo.client, cells))
    table = html.table(html.head(heads, '<th data-sort="text" class="words">worth joining?</th>'), lines, "joining")
    picture = html.embed("joining", figures.joining(found)) if len(found.silos) <= figures.MOST_SILOS else ""
    told = " ".join([joining_sentence(found), *with_nothing(found, findings)])
    about = f"<b>{escaped(told)}</b> {escaped(joining_words(found))}"
    return html.section("Was it worth joining?", about, picture + table)


def tiles(found: Joining) -> list[tuple[str, str, str]]:
    """What joining came to by the models handed out, as the section on joining has it."""
    gain = found.together.value
    tiles = []
    if not np.isnan(gain):
        label = "Gained by joining" if gain >= 0 else "Lost by joining"
        tiles.append((label, difference_text(gain, found.metric), f"{found.method}, mean of the models handed out"))
    answers = [silo.answer for silo in found.silos]
    helped, harmed, unclear = (answers.count(answer) for answer in ("yes", "no", "cannot tell"))
    return [*tiles, ("Silos helped", f"{helped} of {len(answers)}", f"harmed: {harmed}, cannot tell: {unclear}")]
