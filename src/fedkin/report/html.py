"""What every page is made of: its frame with plotly.js inside, sections, tables and cells.

Whatever comes from a run is escaped (`escaped`), and the page's content security policy allows only the scripts written
here, by their hashes: a client's name cannot become code even if an escape were forgotten.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Protocol

import numpy as np

from ..evidence.estimates import Estimate
from .style import STYLE
from .writing import whole

# Draws what `embed` put into the page, the hidden panels when they are first shown, and sorts tables by their headings.
SCRIPT = """
'use strict';
const config = {responsive: true, displaylogo: false, modeBarButtons: [['toImage', 'resetScale2d']]};
function draw(box) {
  if (box.dataset.drawn) return;
  box.dataset.drawn = 'yes';
  const figure = JSON.parse(document.getElementById(box.dataset.figure).textContent);
  const touch = matchMedia('(pointer: coarse)').matches;
  if (touch) figure.layout.dragmode = false;  // a finger scrolls the page
  if ('square' in box.dataset) figure.layout.height = Math.min(figure.layout.height, box.clientWidth + 170);
  Plotly.newPlot(box, figure.data, figure.layout, {...config, displayModeBar: touch ? false : 'hover'});
}
document.querySelectorAll('.figure').forEach(box => { if (!box.closest('[hidden]')) draw(box); });
function show(panel) {
  panel.parentElement.querySelectorAll(':scope > .panel').forEach(other => { other.hidden = other !== panel; });
  panel.querySelectorAll('.figure').forEach(draw);
}
document.querySelectorAll('select[data-panels]').forEach(choice => choice.addEventListener('change', () => {
  show(document.getElementById(choice.value));
}));
document.querySelectorAll('button[data-panel]').forEach(button => button.addEventListener('click', () => {
  [...button.parentElement.children].forEach(other => { other.ariaPressed = String(other === button); });
  show(document.getElementById(button.dataset.panel));
}));
document.querySelectorAll('th[data-sort]').forEach(head => head.addEventListener('click', () => {
  const body = head.closest('table').tBodies[0], index = head.cellIndex, text = head.dataset.sort === 'text';
  const down = head.dataset.order !== 'down';
  head.dataset.order = down ? 'down' : 'up';
  const key = row => text ? row.cells[index].textContent : Number(row.cells[index].dataset.value ?? 'NaN');
  const compare = (a, b) => text ? a.localeCompare(b, 'en', {numeric: true})
    : Number.isNaN(a) ? 1 : Number.isNaN(b) ? -1 : a - b;
  [...body.rows].sort((a, b) => (down ? 1 : -1) * compare(key(a), key(b))).forEach(row => body.append(row));
}));
"""


class Figure(Protocol):
    """A figure of plotly."""

    def to_json(self) -> str: ...


def write(path: Path, title: str, chips: Iterable[str], sections: Iterable[str]) -> Path:
    """Writes a page and returns its path; a page that was there before stays if that fails."""
    with whole(path) as new:
        new.write_bytes(_framed(title, chips, "\n".join(sections)).encode())
    return path


def _framed(title: str, chips: Iterable[str], body: str) -> str:
    from plotly.offline import get_plotlyjs  # when a page is made: `figures` has said what to do where there is none

    plotly = get_plotlyjs()
    allowed = " ".join(f"'sha256-{_digest(script)}'" for script in (plotly, SCRIPT))
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
    listed = "".join(f"<li>{escaped(chip)}</li>" for chip in chips)
    return f"""<!doctype html>
<html lang="en-GB">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escaped(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header><p class="eyebrow">fedkin report</p><h1>{escaped(title)}</h1><ul class="chips">{listed}</ul></header>
<main>
<noscript><section>The figures need JavaScript; the tables and the words do without.</section></noscript>
{body}
</main>
<footer>Made by fedkin. This file holds everything it shows and loads nothing from the network.</footer>
<script>{plotly}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def embed(name: str, figure: Figure, square: bool = False) -> str:
    """HTML for a page with plotly.js and SCRIPT: the place of the figure, and its data in a block that never runs."""
    # Only "<" could end the block early; escaped within JSON it is the same text.
    data = figure.to_json().replace("<", "\\u003c")
    shape = " data-square" if square else ""
    return (
        f'<div class="figure" data-figure="data-{name}"{shape}></div>\n'
        f'<script type="application/json" id="data-{name}">{data}</script>'
    )


def section(heading: str, about: str, body: str) -> str:
    return f'<section><h2>{heading}</h2><p class="about">{about}</p>{body}</section>'


def switch(name: str, shown: Mapping[str, str]) -> str:
    """{label: HTML}, one shown at a time, the first at first; a button each."""
    buttons, panels = "", ""
    for number, (label, body) in enumerate(shown.items()):
        place = escaped(f"panel-{name}-{number}")
        buttons += (
            f'<button data-panel="{place}" aria-pressed="{"false" if number else "true"}">{escaped(label)}</button>'
        )
        panels += f'<div class="panel" id="{place}"{" hidden" if number else ""}>{body}</div>'
    return f'<p class="switch">{buttons}</p>{panels}'


def fold(heading: str, body: str) -> str:
    return f"<details><summary>{escaped(heading)}</summary>{body}</details>"


def table(head: str, lines: Iterable[str], kind: str = "") -> str:
    return f'<div class="scroll"><table class="{kind}">{head}<tbody>{"".join(lines)}</tbody></table></div>'


def head(heads: Sequence[str], more: str = "") -> str:
    cells = [f'<th data-sort="{"number" if i else "text"}">{escaped(head)}</th>' for i, head in enumerate(heads)]
    return f"<thead><tr>{''.join(cells)}{more}</tr></thead>"


def row(name: object, cells: Iterable[str], kind: str | None = None, colour: str | None = None) -> str:
    """A line of a table: what it is about, with a dot in its colour, and its cells."""
    marked = "" if kind is None else f' class="{kind}"'
    return f"<tr{marked}><th>{'' if colour is None else dot(colour)}{escaped(name)}</th>{''.join(cells)}</tr>"


def lines(table: Iterable[Sequence[object]]) -> list[str]:
    return [row(first, [f"<td>{escaped(value)}</td>" for value in rest]) for first, *rest in table]


def cell(text: str, value: float | None) -> str:
    return f"<td>{escaped(text)}</td>" if value is None else f'<td data-value="{float(value)!r}">{escaped(text)}</td>'


def text_cell(text: str) -> str:
    """Words in a table of numbers: on the left, and broken where they are long."""
    return f'<td class="text">{escaped(text)}</td>'


def text_head(text: str) -> str:
    return f'<th data-sort="text" class="text">{escaped(text)}</th>'


def interval_cell(text: str, estimate: Estimate | None) -> str:
    """An estimate's text with its interval in small print; a dash where there is none."""
    if estimate is None or np.isnan(estimate.value):
        return "<td>–</td>"
    value, _, interval = text.partition(" (")
    shown = f"<small>({escaped(interval)}</small>" if interval else ""
    return f'<td data-value="{estimate.value!r}">{escaped(value)}{shown}</td>'


def dot(colour: str) -> str:
    return f'<i class="dot" style="background:{colour}"></i>'


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def escaped(value: object) -> str:
    return escape(str(value))
