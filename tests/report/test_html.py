"""The rooms of the report: no one reaches into another's private names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fedkin import report
from fedkin.report import html

ROOMS = sorted(Path(report.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.stem)
def test_private_names_stay_in_their_room(room: Path) -> None:
    others = {each.stem for each in ROOMS}
    reached = []
    for node in ast.walk(ast.parse(room.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in others:
            reached += [f"{node.value.id}.{node.attr}"] if node.attr.startswith("_") else []
        elif isinstance(node, ast.ImportFrom) and node.level:
            reached += [each.name for each in node.names if each.name.startswith("_")]
    assert reached == []


def test_a_line_of_a_table_escapes_what_it_is_about_and_sorts_by_its_numbers() -> None:
    assert html.row("a<b", [html.cell("1 %", 0.01), html.cell("&", None)]) == (
        '<tr><th>a&lt;b</th><td data-value="0.01">1 %</td><td>&amp;</td></tr>'
    )
    assert html.row("x", [], "best", "#fff") == (
        '<tr class="best"><th><i class="dot" style="background:#fff"></i>x</th></tr>'
    )
    assert html.lines([["k", "<v>", 2]]) == ["<tr><th>k</th><td>&lt;v&gt;</td><td>2</td></tr>"]
