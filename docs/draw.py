"""Draws the two pictures of docs/architecture.md from the code: python docs/draw.py

The storeys are read from the source, with the names and the order that tests/test_storeys.py holds it to. The round is
what a small simulation was seen to do: which functions of the method it called, and in which order.
"""

from __future__ import annotations

import ast
import inspect
import sys
import tempfile
from collections import Counter
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import fedkin
from fedkin.methods.fedamp import FedAMP

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from test_storeys import DOORS, SOURCE, STOREYS, imported, modules, storey  # noqa: E402

PICTURES = {name: ROOT / "docs" / "images" / f"{name}.svg" for name in ("storeys", "round")}
SERVER, SITE = ("begin", "download", "update", "welcome"), ("enlist", "train", "models")
"""Which of a method's functions run where; the rest of it is settings."""

STYLE = """
text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,Helvetica,Arial,sans-serif;fill:#1f2933}
.mono{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.name{font-size:14px;font-weight:600}.soft{fill:#5b6673}.small{font-size:11px}.middle{text-anchor:middle}
.back{fill:#fff;stroke:#e3e7ec}.line{stroke:#e3e7ec;fill:none}.flow{stroke:#5b6673;fill:none}
.tip{fill:#5b6673}.server{fill:#0b5c8f}.site{fill:#00664a}.box{fill:#fff;stroke-width:1.5}
.box.server{fill:#fff;stroke:#0b5c8f}.box.site{fill:#fff;stroke:#00664a}
.frame{fill:none;stroke:#a9b3be;stroke-dasharray:5 4}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.soft{fill:#9aa6b2}.back{fill:#0d1117;stroke:#30363d}
.line{stroke:#30363d}.flow{stroke:#9aa6b2}.tip{fill:#9aa6b2}.server{fill:#6cb6ff}.site{fill:#4cc38a}
.box.server{fill:#0d1117;stroke:#6cb6ff}.box.site{fill:#0d1117;stroke:#4cc38a}.frame{stroke:#57606a}}
""".replace("\n", "")


def picture(width: float, height: float, title: str, parts: list[str]) -> str:
    """A whole SVG on a ground of its own, legible on a light and on a dark page."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img"><title>{escape(title)}</title><style>{STYLE}</style>'
    )
    ground = f'<rect class="back" x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="12"/>'
    return "\n".join([head, ground, *parts, "</svg>", ""])


def text(x: float, y: float, said: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(said)}</text>'


def rect(x: float, y: float, width: float, height: float, kind: str, more: str = 'rx="8"') -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{kind}" {more}/>'


def path(steps: str, kind: str) -> str:
    return f'<path d="{steps}" class="{kind}"/>'


# ---- the storeys ----

CHARACTER = 7.25
"""The width of a character of 12 px that is as wide as all others."""
WORDS, WORDS_END, MATRIX, PITCH, MARGIN = 158, 660, 698, 23, 24
WIDTH, HEAD, ROW = 1064, 56, 18


def said_of(names: tuple[str, ...]) -> str:
    """What a storey says of itself, in one line: the first sentence of its folder, or what comes before its colon."""
    if len(names) > 1:
        return "What has no folder: the one kind of error, and the version"
    told = ast.get_docstring(ast.parse((SOURCE / names[0] / "__init__.py").read_text(encoding="utf-8"))) or ""
    first = told.split("\n\n")[0].replace("\n", " ").split(". ")[0].rstrip(".")
    return (first if len(first) <= 84 else first.split(":")[0]).replace("`", "")


def rooms(names: tuple[str, ...]) -> list[tuple[str, list[str]]]:
    """The modules of a storey: ("", those in its folder), then those of each folder inside it."""
    found: dict[str, list[str]] = {"": []}
    for module in modules():
        top, *inner = module.split(".")
        if top in names and inner and modules()[module].name != "__init__.py":
            found.setdefault("/".join(inner[:-1]), []).append(inner[-1])
    return [(folder, sorted(own, key=lambda n: n.lstrip("_"))) for folder, own in found.items() if own]


Words = list[tuple[float, str, str]]
"""A line: (x, word, class) of each."""


def laid(words: list[tuple[str, str]]) -> list[Words]:
    """Words and their classes in lines that fit."""
    lines, x = list[Words](), float(WORDS_END)
    for i, (word, kind) in enumerate(words):
        wide = CHARACTER * len(word)
        if i == 0 or x + wide > WORDS_END:
            x = float(WORDS)
            lines.append([])
        lines[-1].append((x, word, kind))
        x += wide + 15
    return lines


def lines_of(names: tuple[str, ...]) -> list[Words]:
    """The modules of a storey; those of a folder inside it begin a line."""
    lines = list[Words]()
    for folder, own in rooms(names):
        lines += laid([*([(f"{folder}/", "mono soft")] if folder else []), *((each, "mono") for each in own)])
    return lines


def imports() -> Counter[tuple[int, int]]:
    """How many modules of a storey import from which one before it."""
    packages = {name for name, place in modules().items() if place.name == "__init__.py"}
    tops = {name for names in STOREYS for name in names}
    found: Counter[tuple[int, int]] = Counter()
    for module, place in modules().items():
        if module not in DOORS and module:
            targets = imported(place.read_text(encoding="utf-8"), module, packages)
            found.update({(storey(module), storey(t)) for t in targets if t.partition(".")[0] in tops})
    return found


def row(y: float, name: str, said: str, lines: list[Words]) -> list[str]:
    words = [(x, y + 24 + ROW * k, word, kind) for k, line in enumerate(lines, 1) for x, word, kind in line]
    return [
        path(f"M{MARGIN} {y:g}H{WIDTH - MARGIN}", "line"),
        text(MARGIN, y + 23, name, "name"),
        text(WORDS, y + 23, said, "soft"),
        *(text(*each) for each in words),
    ]


def storeys() -> str:
    """The folders from the ground up, what lies in each, and who imports from whom: nothing points up."""
    counts, parts, y = imports(), list[str](), HEAD
    parts += [
        text(MARGIN, 34, "src/fedkin", "name mono"),
        text(WORDS, 34, "a storey imports only from itself and from those below it", "soft"),
        text(MATRIX - 8, 34, "how many of its modules import from there", "soft"),
    ]
    doors = ["fedkin", *(f"fedkin.{name}" for name in sorted(DOORS) if not name.startswith("_")), "python -m fedkin"]
    said = "What users import and start: names of inner rooms, which stay where they are"
    parts += row(y, "doors", said, laid([(door, "mono") for door in doors]))
    y += 38 + ROW
    middles = {}
    for i in reversed(range(len(STOREYS))):
        names, lines = STOREYS[i], lines_of(STOREYS[i])
        height = 38 + ROW * len(lines)
        middles[i] = y + height / 2
        parts += row(y, ", ".join(names), said_of(names), lines)
        y += height
    strongest = max(n for (a, b), n in counts.items() if a != b)
    top = max(middles)
    for i, names in enumerate(STOREYS):
        x = MATRIX + PITCH * i
        if i < top:
            parts.append(path(f"M{x} {middles[top] - 10:g}V{middles[i] - 12:g}", "line"))
        parts.append(text(x - 8, middles[i] + 4, ", ".join(names), "small server"))
    for (a, b), n in sorted(counts.items()):
        if a != b:
            x, middle = MATRIX + PITCH * b, middles[a]
            shade = f'rx="4" fill-opacity="{0.1 + 0.3 * n / strongest:.2f}"'
            parts.append(rect(x - 10, middle - 10, 20, 20, "back", 'rx="4" stroke-width="0"'))
            parts.append(rect(x - 10, middle - 10, 20, 20, "server", shade))
            parts.append(text(x, middle + 4, str(n), "small middle"))
    return picture(WIDTH, y + 8, "The storeys of fedkin, from the ground up", parts)


# ---- a round ----

Calls = list[str]


class Recorded(FedAMP):
    """FedAMP, which uses all that a method has, and a note of each call."""


CALLS: Calls = []


def _noting(name: str) -> Any:
    def call(self: FedAMP, *args: Any, **more: Any) -> Any:
        CALLS.append(name)
        return getattr(FedAMP, name)(self, *args, **more)

    return call


for _name in (*SERVER, *SITE):
    setattr(Recorded, _name, _noting(_name))


def seen() -> dict[str, Calls]:
    """What a simulation of two rounds with newcomers calls: before round 1, in each round, after the last, and for
    newcomers."""
    CALLS.clear()
    ends: list[int] = []
    lots = torch.Generator().manual_seed(0)
    clients = {name: (torch.randn(12, 3, generator=lots).numpy(), torch.arange(12).numpy() % 2) for name in "abcde"}
    with tempfile.TemporaryDirectory() as folder:
        fedkin.run(
            method=f"{__name__}:Recorded",
            federation=fedkin.Federation.from_arrays(clients),
            rounds=2,
            device="cpu",
            model="logistic",
            participation={"novel": 0.4},
            listener=fedkin.Listener(on_round=lambda record: ends.append(len(CALLS))),
            out=Path(folder) / "run",
        )
    begins = CALLS.index("download")
    first, second, closing = (CALLS[a:b] for a, b in pairwise([begins, *ends]))
    if first != second:
        raise RuntimeError(f"Two rounds are not alike: {first} and {second}.")
    return {"before": CALLS[:begins], "round": first, "after": closing, "newcomers": CALLS[ends[-1] :]}


def folded(calls: Calls, part: Calls) -> tuple[Calls, int, int]:
    """The calls with a repeated part in them told once, where it begins, and how often it is there."""
    at = next((i for i in range(len(calls)) if calls[i : i + len(part)] == part), len(calls))
    times = 0
    while calls[at + times * len(part) : at + (times + 1) * len(part)] == part:
        times += 1
    return calls[: at + len(part) * bool(times)] + calls[at + len(part) * times :], at, times


WIDE, TALL, STEP, LEFT, BETWEEN = 100, 46, 122, 86, 76
RETURNS = {"dict[str, Model]": "{name: Model}"}
"""Where what a function returns is shorter in words."""


def returned(name: str) -> str:
    said = str(inspect.signature(getattr(fedkin.Method, name)).return_annotation)
    return RETURNS.get(said, said.removeprefix("tuple[").rstrip("]"))


def passed(one: str, other: str) -> str:
    """What goes from the server to a site, or back, between two calls; nothing where each is at home."""
    if one == "download" and other in SITE:
        return returned(one)
    return "Upload, scores" if one in SITE and other == "update" else ""


def at_columns(calls: Calls) -> list[int]:
    """Each call to the right of the one before; or, where nothing passes between server and site, below it."""
    columns, taken = list[int](), set[str]()
    for i, name in enumerate(calls):
        lane = "server" if name in SERVER else "site"
        beside = not i or lane in taken or bool(passed(calls[i - 1], name))
        taken = {lane} if beside else {*taken, lane}
        columns.append((columns[-1] + beside) if i else 0)
    return columns


def place(column: int, name: str, top: float) -> tuple[float, float]:
    return LEFT + STEP * column, top + (0 if name in SERVER else TALL + BETWEEN)


def box(column: int, name: str, top: float) -> list[str]:
    x, y = place(column, name, top)
    where = "server" if name in SERVER else "site"
    return [
        rect(x, y, WIDE, TALL, f"box {where}"),
        text(x + WIDE / 2, y + 20, name, f"mono middle {where}"),
        text(x + WIDE / 2, y + 36, returned(name), "small soft middle"),
    ]


def arrow(column: int, one: str, other: str, top: float) -> list[str]:
    """From a box to the next: to the right, or down or up and then to the right, with what passes between the two."""
    (x, y), (to, goal) = place(column, one, top), place(column + 1, other, top)
    tip = path(f"M{to - 1:g} {goal + TALL / 2:g}l-8 -4v8z", "tip")
    if y == goal:
        return [path(f"M{x + WIDE:g} {y + TALL / 2:g}H{to - 8:g}", "flow"), tip]
    start, middle = y + TALL if goal > y else y, top + TALL + BETWEEN / 2
    turn = path(f"M{x + WIDE / 2:g} {start:g}V{goal + TALL / 2:g}H{to - 8:g}", "flow")
    return [turn, tip, text(x + WIDE / 2 + 8, middle + 4, passed(one, other), "small soft")]


def strip(first: int, calls: Calls, top: float) -> list[str]:
    """A row of calls from a column on."""
    columns = [first + column for column in at_columns(calls)]
    parts = [each for column, name in zip(columns, calls, strict=True) for each in box(column, name, top)]
    for column, (one, other) in zip(columns, pairwise(calls), strict=False):
        if passed(one, other) or (one in SERVER) == (other in SERVER):
            parts += arrow(column, one, other, top)
    return parts


def lanes(top: float) -> list[str]:
    return [
        text(MARGIN, top + 28, "server", "name server"),
        text(MARGIN, top + TALL + BETWEEN + 28, "site", "name site"),
    ]


def frame(column: int, count: int, top: float, said: str) -> list[str]:
    """A dashed frame around calls that are repeated, with the way back from the last to the first."""
    edge = (STEP - WIDE) / 2
    x, wide = LEFT + STEP * column - edge, STEP * count
    first, last, over = x + STEP / 2, x + wide - STEP / 2, top - 22
    return [
        rect(x, top - 46, wide, 2 * TALL + BETWEEN + 46 + edge, "frame", 'rx="10"'),
        path(f"M{last:g} {top:g}V{over:g}H{first:g}V{top - 8:g}", "flow"),
        path(f"M{first:g} {top - 1:g}l-4 -8h8z", "tip"),
        text((first + last) / 2, over - 7, said, "small soft middle"),
    ]


def a_round() -> str:
    """The functions of a method in the order in which a simulation calls them, at the server and at a site."""
    calls = seen()
    newcomers, at, times = folded(calls["newcomers"], calls["round"])
    upper = 104.0
    lower = upper + 2 * TALL + BETWEEN + 118
    begins = at_columns(calls["before"])[-1] + 1
    ends = begins + len(calls["round"])
    parts = lanes(upper) + lanes(lower)
    for phase, column, title in (
        ("before", 0, "at first"),
        ("round", begins, "rounds 1 to K"),
        ("after", ends, "after round K"),
    ):
        parts += strip(column, calls[phase], upper)
        parts.append(text(LEFT + STEP * column, 40, title, "name"))
    parts += frame(begins, len(calls["round"]), upper, "the next round")
    parts.append(text(LEFT, lower - 64, "newcomers, where some join after the last round", "name"))
    parts += strip(0, newcomers, lower)
    if times:
        parts += frame(at_columns(newcomers)[at], len(calls["round"]), lower, f"newcomer_rounds (FedAMP: {times})")
    last = max(ends + at_columns(calls["after"])[-1], at_columns(newcomers)[-1])
    bottom = lower + 2 * TALL + BETWEEN + 42
    said = "A box is a function of Method with what it returns; time runs from left to right. Memory stays at its site."
    parts.append(text(MARGIN, bottom, said, "soft"))
    width = LEFT + STEP * last + WIDE + MARGIN
    return picture(width, bottom + 22, "A round of fedkin: what server and site call, in order", parts)


def drawn() -> dict[str, str]:
    return {"storeys": storeys(), "round": a_round()}


if __name__ == "__main__":
    for name, content in drawn().items():
        PICTURES[name].write_text(content, encoding="utf-8")
        print(PICTURES[name].relative_to(ROOT))
