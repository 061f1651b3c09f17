"""The pictures and the paths in the documentation are those of the code."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from helpers import ROOT, cpu_only

STALE = "docs/images/{}.svg is not what the code is now: `python docs/draw.py` draws it anew."
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("src", "tests", "benchmarks", "docs", "examples")


@pytest.fixture(scope="module")
def draw() -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs"))
    return importlib.import_module("draw")


def words(picture: str) -> list[str]:
    return [e.text or "" for e in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]


# ---- pictures ----


def test_the_storeys_are_drawn_as_they_are(draw: ModuleType) -> None:
    drawn = draw.storeys()
    assert draw.PICTURES["storeys"].read_text(encoding="utf-8") == drawn, STALE.format("storeys")


def test_every_module_and_every_folder_of_the_source_is_in_the_picture(draw: ModuleType) -> None:
    found = set(words(draw.storeys()))
    source = ROOT / "src" / "fedkin"
    inside = [p for p in source.rglob("*.py") if p.parent != source and p.name != "__init__.py"]
    assert len(inside) > 100
    assert [p for p in inside if p.stem not in found] == []
    folders = [p.parent.relative_to(source) for p in source.rglob("__init__.py") if p.parent != source]
    assert [f for f in folders if f.name not in found and f"{f.name}/" not in found] == []


@cpu_only
def test_a_round_is_drawn_as_a_simulation_goes(draw: ModuleType) -> None:
    drawn = draw.a_round()
    assert draw.PICTURES["round"].read_text(encoding="utf-8") == drawn, STALE.format("round")


@cpu_only
def test_a_simulation_calls_a_methods_functions_in_the_order_that_the_pages_tell(draw: ModuleType) -> None:
    seen = draw.seen()
    assert seen["before"] == ["begin", "enlist"]
    assert seen["round"] == ["download", "train", "models", "update"]
    assert seen["after"] == ["download", "models"], "a download without training"
    exchanges = draw.FedAMP.newcomer_rounds * seen["round"] + ["download", "train", "models"]
    assert seen["newcomers"] == ["welcome", "download", "enlist", *exchanges[1:]], "with the first parcel they get"


@cpu_only
def test_another_order_of_calls_is_another_picture(draw: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = draw.seen()
    monkeypatch.setattr(draw, "seen", lambda: {**seen, "round": ["download", "models", "train", "update"]})
    assert draw.PICTURES["round"].read_text(encoding="utf-8") != draw.a_round()


# ---- paths ----


def named(page: Path) -> list[str]:
    """The paths that a page names, from the repository's root or from src/fedkin; its links, from where it lies."""
    text = page.read_text(encoding="utf-8")
    code = [each for span in re.findall(r"`([^`\n]+)`", text) for each in re.split(r"[\s,]+", span)]
    inner = [each for each in code if re.fullmatch(r"[\w/*]+(\.py|/)", each)]
    whole = re.findall(rf"(?<![\w/.-])(?:{'|'.join(FOLDERS)})/[\w/*.-]+", text)
    links = [link.partition("#")[0] for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text)]
    here = page.parent.relative_to(ROOT)
    return [p.rstrip(".") for p in {*inner, *whole}] + [(here / link).as_posix() for link in links if link]


def exists(path: str) -> bool:
    """NAME, or x, stands for any name: there has to be one at least."""
    pattern = re.sub(r"\b(?:[A-Z]{3,}|x)(?=\.py\b)", "*", path)
    return any((root / pattern).exists() or any(root.glob(pattern)) for root in (ROOT, ROOT / "src" / "fedkin"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    astray = sorted({path for path in named(page) if not exists(path)})
    assert astray == [], f"{page.relative_to(ROOT)} names what is not there"


def test_a_path_that_does_not_exist_is_seen(tmp_path: Path) -> None:
    assert all(map(exists, ["src/fedkin/methods/NAME.py", "methods/x.py", "docs/architecture.md", "cli/"]))
    assert not any(map(exists, ["src/fedkin/collaboration.py", "method/NAME.py", "kernels.py", "tests/nowhere/"]))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_name_of_the_package_that_a_page_tells_is_there(page: Path) -> None:
    for name in sorted(set(re.findall(r"\bfedkin(?:\.\w+)+", page.read_text(encoding="utf-8")))):
        assert pkgutil.resolve_name(name) is not None


def test_every_page_of_the_documentation_can_be_reached_from_the_readme() -> None:
    reached, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        reached.add(page)
        links = [(ROOT / path).resolve() for path in named(page) if path.endswith(".md")]
        left += [link for link in links if link not in reached and link.exists()]
    assert [page.name for page in PAGES if page not in reached] == []
