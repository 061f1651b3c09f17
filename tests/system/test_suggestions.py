"""What a sentence tells someone to set, to type or to call exists: every message in the source is read and held against
the configuration, the command line and Python's names."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import click
import pytest
import typer
from helpers import ROOT

import fedkin
from fedkin import methods
from fedkin.cli import app
from fedkin.data import names, settings_of
from fedkin.runs import options
from fedkin.studies.study_file import Study

SOURCE = ROOT / "src" / "fedkin"
STYLES = {"style.py", "html.py"}
OTHERWISE = {
    *("speed", "ids", "times", "start", "adjacency", "codes", "num"),  # arrays and columns of files that people bring
    *("state_dict", "exported", "validated"),  # a format, a folder, a column of a table
    *("key",),  # stands for any setting
}
"""Words in backquotes, or before an equals sign, that are no settings, and are not meant to be."""
FILES = re.compile(r"\.(toml|csv|tsv|npy|npz|parquet|safetensors|json|jsonl|html|py|md|new|svg)\b")
TABLES = "data|table|corruption|graph|model|learning|local|participation|study|settings"


def sentences() -> Iterator[tuple[str, str]]:
    """(where, words) of all that may be said: every text in the source with a space in it that is no docstring. What an
    f-string fills in is an ellipsis. The report's style sheet has names of its own."""
    for path in sorted(SOURCE.rglob("*.py")):
        for words in spoken(ast.parse(path.read_text())) if path.name not in STYLES else ():
            if " " in words and not re.search("<| class=|import ", words):  # neither HTML nor lines of Python
                yield str(path.relative_to(SOURCE)), words


def spoken(node: ast.AST) -> Iterator[str]:
    """The texts of a statement, each whole."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        for part in node.values:
            yield from spoken(part.value) if isinstance(part, ast.FormattedValue) else ()
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):  # a docstring
                yield from spoken(child)


@cache
def settings() -> frozenset[str]:
    """Every setting by its full name: of runs, of all methods and data sets, and of studies."""
    found = set(options.paths(methods.names())) | {f"study.{name}" for name in Study.model_fields}
    for name in names():
        kind = settings_of(name)
        found |= {f"data.settings.{field}" for field in kind.model_fields} if kind else set()
    tables = {path.rpartition(".")[0] for path in found}
    return frozenset(found | tables - {""} | {"model.settings.teacher", "model.settings.hidden"})


def commands(group: click.Group, place: str = "fedkin") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield f"{place} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{place} {name}")


@cache
def command_line() -> dict[str, click.Command]:
    for module in ("running", "after", "data", "tuning", "bench"):
        importlib.import_module(f"fedkin.cli.{module}")
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    return dict(commands(group))


@cache
def typed() -> frozenset[str]:
    """Every option, of whatever command; and every setting as an option, by its full and its last name."""
    own = {text for command in command_line().values() for p in command.params for text in p.opts}
    named = {*settings(), *options.SHORT, *(path.rpartition(".")[2] for path in settings())}
    return frozenset(option.replace("-", "_") for option in own | {f"--{name}" for name in named} | {"--version"})


@cache
def arguments() -> frozenset[str]:
    """What Python's users write: keywords of public functions, and attributes of public classes."""
    found: set[str] = set()
    for name in fedkin.__all__:
        thing: Any = getattr(fedkin, name)
        callables = [thing, *(member for _, member in inspect.getmembers(thing, callable))] if callable(thing) else []
        for each in callables:
            try:
                found |= set(inspect.signature(each).parameters)
            except (TypeError, ValueError):
                continue
        found |= {member for member in dir(thing) if not member.startswith("_")}
    return frozenset(found | set(fedkin.__all__))


def wrong(words: str) -> Iterator[str]:
    """What a text suggests that does not exist."""
    for option in re.findall(r"(?<![\w-])--[a-z][\w.-]*[a-z]", words):
        if option.replace("-", "_") not in typed():
            yield option
    for found in re.finditer(rf"(?<![\w./])(?:{TABLES})(?:\.[a-z_]+)+\b", words):
        name = found.group()
        if not FILES.search(name) and name not in settings():
            yield name
    for quoted in re.findall(r"`([^`…]+)`", words):
        unknown = re.fullmatch(r"[a-z_]+", quoted) and not known(quoted)
        if unknown or (quoted.startswith("fedkin ") and not quoted.startswith(tuple(command_line()))):
            yield quoted
    for name in re.findall(r"(?<![\w.\[{'-])([a-z_]+)=(?=[\w'\"\[(])", words):
        if not known(name):
            yield f"{name}="
    for called in re.findall(r"\bfedkin\.([A-Za-z_.]+)\(", words):
        thing: Any = fedkin
        for part in called.split("."):
            thing = getattr(thing, part, None)
        if thing is None:
            yield f"fedkin.{called}"


def known(name: str) -> bool:
    last = {path.rpartition(".")[2] for path in settings()}
    return name in OTHERWISE or name in arguments() or name in last or name in settings() or name in options.SHORT


SAID = list(sentences())


def test_there_is_something_to_read():
    assert len(SAID) > 500
    assert any("--out" in words for _, words in SAID) and any("table.missing" in words for _, words in SAID)


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        ("Choose a smaller `least_of_all`.", ["least_of_all"]),
        ("Ask for evenness=False.", ["evenness="]),
        (
            "Set local.rate, or --learning-rate 3; `fedkin rerun` goes on.",
            ["--learning-rate", "local.rate", "fedkin rerun"],
        ),
        ("Set local.lr, --lr 0.1 or --batch-size 3; see config.toml and `fedkin resume RUN`, fedkin.run(…).", []),
        ("fedkin.repeat(path) does it.", ["fedkin.repeat"]),
    ],
)
def test_a_suggestion_that_does_not_exist_would_be_found(words, suggested):
    assert list(wrong(words)) == suggested


def test_everything_that_a_message_suggests_exists():
    found = {f"{where}: {name!r} in {words!r}" for where, words in SAID for name in wrong(words)}
    assert not found, "\n".join(sorted(found))
