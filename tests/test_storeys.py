"""The house: storeys that import only from those below them in the list, and tests that lie as the source does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import ROOT

SOURCE = ROOT / "src" / "fedkin"
STOREYS = [
    ("errors", "version"),
    ("base",),
    ("gpu",),
    ("maths",),
    ("training",),
    ("papers",),
    ("methods",),
    ("data",),
    ("evidence",),
    ("runs",),
    ("engines",),
    ("report",),
    ("studies",),
    ("testing",),
    ("bench",),
    ("cli",),
]
"""From the ground up. A line belongs into the first that has everything it needs."""
DOORS = {"__init__", "__main__", "method", "task"}
"""What users import and start: names of inner rooms at the places where they have always been."""
LARGEST = 450
"""Lines of a module; more are two rooms."""
EXEMPT = {"gpu/triton_kernels", "gpu/layer_kernels", "engines/simulation"}
ELSEWHERE = {"claims", "system"}
"""Tests of what no single module does: the papers' claims, and the whole program."""


def storey(module: str) -> int:
    """The number of the storey that a module such as 'maths.attention' lies in."""
    top = module.partition(".")[0]
    found = [i for i, names in enumerate(STOREYS) if top in names]
    assert found, f"{module} lies in no storey: put it into one of {[name for names in STOREYS for name in names]}."
    return found[0]


def imported(text: str, module: str, packages: set[str]) -> Iterator[str]:
    """The modules of fedkin that a module imports: anywhere, in functions and under TYPE_CHECKING too."""
    inside = module.split(".") if module in packages else module.split(".")[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (a.name.partition(".")[2] for a in node.names if a.name.partition(".")[0] == "fedkin")
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = inside[: len(inside) - node.level + 1]
            elif (node.module or "").partition(".")[0] == "fedkin":
                base = []
            else:
                continue
            path = (node.module or "").removeprefix("fedkin").strip(".") if not node.level else node.module or ""
            base = [*base, *(path.split(".") if path else [])]
            yield from (".".join([*base, *([] if base else [a.name])]) for a in node.names)


def modules() -> dict[str, Path]:
    paths = sorted(SOURCE.rglob("*.py"))
    return {".".join(p.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): p for p in paths}


def wrong(text: str, module: str) -> list[str]:
    """Imports of a module that point up; what the package itself offers (`from fedkin import Run`) is up, too."""
    packages = {name for name, path in modules().items() if path.name == "__init__.py"}
    told = []
    for target in imported(text, module, packages):
        door = target.partition(".")[0] in DOORS or target == "" or target.partition(".")[0] not in _tops()
        if door or storey(target) > storey(module):
            told.append(f"{module} imports {target or 'fedkin'}, which lies above it")
    return told


def _tops() -> set[str]:
    return {name.partition(".")[0] for name in modules()}


@pytest.mark.parametrize("module", [name for name in modules() if name not in DOORS])
def test_a_module_imports_only_from_its_own_storey_and_those_before_it(module: str) -> None:
    assert wrong(modules()[module].read_text(encoding="utf-8"), module) == []


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("from ..studies.run import Run", "runs.folder"),
        ("def f():\n    from ..runs import config", "maths.attention"),
        ("if TYPE_CHECKING:\n    from ..engines.simulation import Listener", "evidence.levels"),
        ("import fedkin.cli.terminal", "bench.rounds"),
        ("from fedkin.report import words", "methods._method"),
        ("from .. import data", "training.cohort"),
        ("from fedkin import Run", "studies.compare"),
        ("from ..method import Method", "methods.fedavg"),
        ("from ...engines import start", "data.sets.digits"),
    ],
)
def test_a_wrong_import_is_seen_wherever_it_stands(line: str, module: str) -> None:
    assert len(wrong(line, module)) == 1
    assert wrong("from ..errors import FedkinError\nfrom ..base import streams", "studies.run") == []


@pytest.mark.parametrize("name", ["base", "base.spinning"])
def test_what_is_loaded_before_torch_does_not_load_it(name: str) -> None:
    found = [n for n in ast.walk(ast.parse(modules()[name].read_text())) if isinstance(n, ast.Import | ast.ImportFrom)]
    told = {a.name if isinstance(n, ast.Import) else str(n.module) for n in found for a in n.names}
    assert told <= {"__future__", "os", "sys"}


def test_no_room_is_too_large() -> None:
    sizes = {
        p.relative_to(SOURCE).with_suffix("").as_posix(): len(p.read_text().splitlines()) for p in modules().values()
    }
    assert {name: size for name, size in sizes.items() if size > LARGEST and name not in EXEMPT} == {}


def test_every_test_lies_where_the_module_lies_that_it_is_about() -> None:
    tests = ROOT / "tests"
    astray = []
    for path in sorted(tests.rglob("test_*.py")):
        place = path.relative_to(tests)
        if place.parts[0] in ELSEWHERE or path == Path(__file__):
            continue
        name = path.stem.removeprefix("test_")
        folder = SOURCE.joinpath(*place.parts[:-1])
        if not any((folder / each).exists() for each in (f"{name}.py", f"_{name}.py")) and name != place.parent.name:
            astray.append(f"{place}: there is no module {'/'.join(place.parts[:-1])}/{name}.py")
    assert astray == []
