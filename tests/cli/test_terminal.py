"""Tables in the terminal: every column has a value of its own here, and it stands under its own heading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_runs import make

pytest.importorskip("rich")

from rich.table import Table
from rich.text import Text

from fedkin.cli import terminal
from fedkin.evidence import grid
from fedkin.evidence.comparison import Pair, Row
from fedkin.evidence.estimates import Estimate
from fedkin.evidence.findings import Findings
from fedkin.evidence.grid import Trial
from fedkin.evidence.levels import Level, LevelRow, Levels, Sides, Span
from fedkin.evidence.newcomers import Served, Spread
from fedkin.evidence.records import Summary
from fedkin.evidence.references import Reference
from fedkin.evidence.verdicts import Joining, Silo
from fedkin.maths.statistics import Comparison


@dataclass
class Screen:
    """Keeps what is printed."""

    width: int = 120
    printed: list[Any] = field(default_factory=list)

    def print(self, what: Any, **options: Any) -> None:
        self.printed.append(what)

    @property
    def tables(self) -> list[Table]:
        return [each for each in self.printed if isinstance(each, Table)]

    @property
    def text(self) -> str:
        return "\n".join(each for each in self.printed if isinstance(each, str))


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    shown = Screen()
    monkeypatch.setattr(terminal, "out", shown)
    return shown


def lines(table: Table) -> dict[str, list[tuple[str, str]]]:
    """{first cell: (heading, cell) of all the others}, without markup, each line of a heading after the other."""
    heads = [str(column.header).replace("\n", " ") for column in table.columns]
    cells = zip(
        *([Text.from_markup(str(cell)).plain for cell in column.cells] for column in table.columns), strict=True
    )
    return {first: list(zip(heads[1:], rest, strict=True)) for first, *rest in cells}


def bold(table: Table) -> list[str]:
    """The lines whose name is set in bold."""
    return [Text.from_markup(str(cell)).plain for cell in table.columns[0].cells if str(cell).startswith("[bold]")]


# ---- a comparison ----

CLOUD = Row("fedamp", "cloud", True, 0.89, 0.91, 0.62, 0.073, 0.014, 0.88, 0.85, 0.89, (0, 1, 2))
GLOBAL = Row("fedavg", "global", True, 0.79, 0.81, 0.52, 0.063, 0.024, 0.78, 0.75, 0.79, (0, 1, 2))
PERSONAL = Row("fedamp", "personal", False, 0.69, 0.71, 0.42, 0.053, None, 0.68, 0.65, 0.69, (0, 1, 2))
TESTED = Pair("fedamp:cloud", "fedavg:global", (0, 1, 2), Comparison(30, 0.1, 20, 1, 9, 0.2, 0.3, 0.4, 0.5), 0.042)
NEW = Spread(0.41, 0.032, 0.023)
SERVED = [
    Served("fedamp", "cloud", True, Spread(0.74, 0.051, 0.017), NEW, (2, 2, 2)),
    Served("fedamp", "generated-mean", False, None, Spread(0.39, 0.028, None), (2, 2, 2)),
]


def compared(folder: Path, **known: Any) -> Findings:
    """What was found of a run, as if it were this."""
    found = Findings([make(folder / "run")])
    nothing = {"newcomers": [], "joined": None, "joining": {}, "below_alone": []}
    found.__dict__.update({"rows": [CLOUD, GLOBAL, PERSONAL]} | nothing | known)
    found._tests[None] = [TESTED]
    return found


def results(found: Findings, references: list[Reference] | None = None) -> Any:
    return SimpleNamespace(findings=found, runs=found.runs, references=lambda: references or [])


def test_every_column_of_a_comparison_stands_under_its_heading(tmp_path: Path, screen: Screen) -> None:
    terminal.show_comparison(results(compared(tmp_path)))
    (table,) = screen.tables
    shown = lines(table)
    assert shown["fedamp:cloud"] == [
        ("mean", "89.0 %"),
        ("worst client", "62.0 %"),
        ("± clients", "7.3 %"),
        ("± seeds", "1.4 %"),
        ("last", "88.0 %"),
        ("best test", "91.0 %"),
        ("p", ""),
    ]
    assert dict(shown["fedavg:global"])["p"] == "0.042", "after Holm, two-sided, against the best headline"
    assert dict(shown["fedamp:personal"]) == {
        "mean": "69.0 %", "worst client": "42.0 %", "± clients": "5.3 %", "± seeds": "–", "last": "68.0 %",
        "best test": "71.0 %", "p": "",
    }  # fmt: skip
    assert list(shown) == ["fedamp:cloud", "fedavg:global", "fedamp:personal"]
    assert bold(table) == ["fedamp:cloud", "fedavg:global"]
    title = "Mean test accuracy in the round chosen on validation data (higher is better), 3 seeds"
    assert str(table.title) == title
    assert "In this table against fedamp:cloud." in screen.text and "p: Wilcoxon’s" in screen.text
    assert "flatters some rows more than others" in screen.text and "alike" not in screen.text


def test_names_are_no_markup(tmp_path: Path, screen: Screen) -> None:
    odd = "fedamp (model=[red])"
    found = compared(tmp_path, rows=[replace(CLOUD, method=odd), GLOBAL, replace(PERSONAL, method=odd)])
    terminal.show_comparison(results(found))
    assert list(lines(screen.tables[0])) == [f"{odd}:cloud", "fedavg:global", f"{odd}:personal"]


def test_every_column_of_rows_without_learning_stands_under_its_heading(tmp_path: Path, screen: Screen) -> None:
    each = Reference("pooled", 0, "accuracy", True, ("a", "b"), (0.7, 0.9), (0.5, 0.8), "", "")
    other = replace(each, seed=1, scores=(0.6, 0.9), last=(0.4, 0.8))
    terminal.show_references(results(compared(tmp_path), [each, other]))
    (table,) = screen.tables
    assert lines(table) == {
        "pooled": [
            ("mean", "77.5 %"),  # of 80 and 75
            ("worst client", "65.0 %"),  # of 70 and 60
            ("± clients", "12.5 %"),  # of 10 and 15
            ("± seeds", "3.5 %"),  # 5 / sqrt(2)
            ("last", "62.5 %"),  # of 65 and 60
        ]
    }


def test_every_column_of_newcomers_stands_under_its_heading(tmp_path: Path, screen: Screen) -> None:
    found = compared(tmp_path, newcomers=SERVED)
    found.runs[0].change(seed=7, novel={"clients": ["x", "y"], "models": {}})  # type: ignore[attr-defined]
    terminal.show_newcomers(found)
    (table,) = screen.tables
    spreads = ["± clients", "± seeds"]
    heads = ["known clients", *spreads, "newcomers", *spreads, "difference"]
    cells = ["74.0 %", "5.1 %", "1.7 %", "41.0 %", "3.2 %", "2.3 %", "−33.0"]
    assert lines(table)["fedamp:cloud"] == list(zip(heads, cells, strict=True))
    only = ["–", "–", "–", "39.0 %", "2.8 %", "–", "–"]
    assert lines(table)["fedamp:generated-mean"] == list(zip(heads, only, strict=True))
    assert bold(table) == ["fedamp:cloud"]
    assert screen.text == "Held out of training, 2 clients (seed 7): x, y."


# ---- was it worth joining? ----

NORTH = Silo("north", 41, Estimate(0.6, 0.52, 0.69), Estimate(0.7, 0.63, 0.78), Estimate(0.8, 0.72, 0.87),
             Estimate(0.2, 0.11, 0.29), "cloud", p=0.01)  # fmt: skip
SOUTH = Silo("south", 1234, Estimate(0.5, 0.41, 0.58), None, Estimate(0.4, 0.33, 0.47), Estimate(-0.1, -0.18, -0.02),
             "personal", p=0.02)  # fmt: skip


HANDED = (
    "That is of the models handed out at the end, silos counted by their test samples; which method does best is of "
    "the headline models, every silo counted alike."
)


def answers(*silos: Silo) -> Joining:
    return Joining("accuracy", True, "fedamp", "the only joint method", (0,), silos)


def test_every_column_of_joining_stands_under_its_heading(tmp_path: Path, screen: Screen) -> None:
    terminal.show_joining(compared(tmp_path, joined=answers(NORTH, SOUTH)))
    (table,) = screen.tables
    assert lines(table) == {
        "north": [
            ("test samples", "41"),
            ("alone", "60.0 (52–69)"),
            ("global", "70.0 (63–78)"),
            ("fedamp", "80.0 (72–87)"),
            ("gain", "+20.0 (+11.0 to +29.0)"),
            ("worth joining?", "yes"),
        ],
        "south": [
            ("test samples", "1,234"),
            ("alone", "50.0 (41–58)"),
            ("global", "–"),
            ("fedamp", "40.0 (33–47)"),
            ("gain", "−10.0 (−18.0 to −2.0)"),
            ("worth joining?", "no, better alone"),
        ],
    }
    assert str(table.title) == "Was it worth joining? Test accuracy in %"
    mean = "The mean gain, each silo counted by its test samples, is −9.0 points (−16.8 to −1.3)."
    assert screen.text.endswith(f"Joining with fedamp helped north and harmed south. {mean}\n{HANDED}")


def test_without_a_global_model_and_on_a_narrow_terminal_columns_keep_their_headings(
    tmp_path: Path, screen: Screen
) -> None:
    screen.width = 64
    terminal.show_joining(compared(tmp_path, joined=answers(replace(NORTH, common=None))))
    assert lines(screen.tables[0])["north"] == [
        ("test samples", "41"),
        ("alone", "60.0"),
        ("fedamp", "80.0"),
        ("gain", "+20.0 (+11.0 to +29.0)"),
        ("worth joining?", "yes"),
    ]


def test_what_silos_have_with_nothing_stands_beside_where_there_is_room(tmp_path: Path, screen: Screen) -> None:
    screen.width = 120
    north = replace(NORTH, beside={"linear": 0.83, "majority": 0.4}, no_worse=("linear",), subjects=17)
    south = replace(SOUTH, beside={"majority": 0.45})
    terminal.show_joining(compared(tmp_path, joined=answers(north, south)))
    cells = lines(screen.tables[0])
    assert cells["north"][:4] == [
        ("test samples", "41"),
        ("test subjects", "17"),
        ("majority", "40.0"),
        ("linear", "83.0"),
    ]
    assert cells["north"][-1] == ("worth joining?", "cannot tell: linear is no worse")
    assert cells["south"][1:4] == [("test subjects", "1,234"), ("majority", "45.0"), ("linear", "–")]
    assert "At north joining is better for sure than the network alone, but a linear model of its own" in screen.text
    screen.width = 100
    terminal.show_joining(compared(tmp_path / "narrow", joined=answers(north, south)))
    assert [cell for head, cell in lines(screen.tables[1])["north"] if head in ("linear", "alone")] == ["83.0", "60.0"]
    screen.width = 70
    terminal.show_joining(compared(tmp_path / "narrower", joined=answers(north, south)))
    assert [head for head, _ in lines(screen.tables[2])["north"]] == [
        "test samples", "alone", "global", "fedamp", "gain", "worth joining?",
    ]  # fmt: skip
    assert lines(screen.tables[2])["north"][-1][1] == "cannot tell"


# ---- one run ----


def test_every_column_of_a_run_stands_under_its_heading(screen: Screen) -> None:
    summary = Summary.read(
        {
            "method": "fedamp", "data": "digits", "split": "iid", "seed": 0, "rounds": 12, "clients": ["a"],
            "metric": "accuracy", "headline": "cloud", "collaboration":
                {"within_group": 0.987, "adjusted_rand": 0.65, "round": 4},
            "models": {
                "cloud": {"bmta": 0.91, "bmta_round": 7, "last": 0.88, "last10": 0.85, "validated": 0.89, "std": 0.073},
                "personal": {"bmta": 0.71, "bmta_round": 13, "last": 0.68, "last10": 0.65, "validated": None,
                             "std": 0.053},
            },
        }
    )  # fmt: skip
    terminal.show_run(SimpleNamespace(summary=summary, path=Path("runs/mine"), config={}))  # type: ignore[arg-type]
    (table,) = screen.tables
    heads = ["validated", "last", "best test", "its round", "± clients there"]
    assert lines(table) == {
        "cloud": list(zip(heads, ["89.0 %", "88.0 %", "91.0 %", "7", "7.3 %"], strict=True)),
        "personal": list(zip(heads, ["–", "68.0 %", "71.0 %", "final", "5.3 %"], strict=True)),
    }
    assert bold(table) == ["cloud"]
    assert "98.7% of the attention; groups read off xi agree with adjusted Rand index 0.65." in screen.text
    assert "Run: [bold]runs/mine[/]" in screen.text


# ---- a grid ----


class Grid(grid.Tuned):
    def at_the_edge(self) -> list[str]:
        return ["local.lr may grow."]


def test_every_column_of_a_grid_stands_under_its_heading(tmp_path: Path, screen: Screen) -> None:
    run = make(tmp_path / "run", rounds=12)
    model = {"bmta": 0.91, "bmta_round": 7, "last": 0.88, "last10": 0.85, "validated": 0.83, "std": 0.1}
    run.change(models={"cloud": model})
    points = [
        ({"local.lr": 0.01, "settings.sigma": "auto"}, 0.72, 5),
        ({"local.lr": 0.1, "settings.sigma": 4}, 0.76, 13),
    ]
    trials = [Trial(f"point {i}", values, [run], score, at) for i, (values, score, at) in enumerate(points)]
    trials.append(Trial("point 2", {"local.lr": 1.0, "settings.sigma": 9}, [run], None, None))
    chosen = {"local.lr": [0.01, 0.1, 1.0], "settings.sigma": ["auto", 4, 9]}
    terminal.show_tuned(Grid(chosen, trials))  # type: ignore[arg-type]
    (table,) = screen.tables
    heads = ["settings.sigma", "validation", "round", "test"]
    assert str(table.columns[0].header) == "local.lr"
    assert lines(table) == {
        "0.01": list(zip(heads, ["auto", "72.0 %", "5", ""], strict=True)),
        "0.1": list(zip(heads, ["4", "76.0 %", "final", "83.0 %"], strict=True)),
        "1.0": list(zip(heads, ["9", "–", "diverged", ""], strict=True)),
    }
    assert [row.style for row in table.rows] == [None, "bold", None]
    assert "local.lr may grow." in screen.text


# ---- levels ----


def numbers() -> Iterator[Span]:
    """Means that are all different, with ends that are no one's mean."""
    for i in range(1, 60):
        yield Span(i / 100 + 0.1, i / 100 + 0.002, i / 100 + 0.104)


MODELS = [("fedamp", "cloud", True), ("fedavg", "global", True), ("fedamp", "own", False)]


def level_rows(hit: bool) -> tuple[list[LevelRow], dict[tuple[str, float, str, str], str]]:
    """Two methods at two levels, one with a further model; and what each number is printed as."""
    means, rows, texts = numbers(), [], {}
    for value in (0, 0.4):
        for *model, headline in MODELS:
            moments = {}
            for moment in ("chosen", "best", "last"):
                sides = {side: next(means) for side in ("all", "clean", "hit")}
                for side, span in sides.items():
                    texts[":".join(model), value, moment, side] = f"{100 * span.mean:.1f}"
                struck = sides["hit"] if hit and value else None
                moments[moment] = Sides(sides["all"], sides["clean"] if hit else None, struck)
            rows.append(LevelRow("corruption.labels", value, *model, headline, **moments, validated=0.99, seeds=(0,)))
    return rows, texts


def levels(folder: Path, hit: bool) -> tuple[Levels, dict[tuple[str, float, str, str], str]]:
    run = make(folder / "run", settings='[corruption]\nkind = "flip"')
    if hit:
        run.change(corrupted=["silo-00"])
    found = Levels([Level("corruption.labels", value, [run]) for value in (0, 0.4)])
    found.__dict__["_rows"], texts = level_rows(hit)
    return found, texts


def test_every_level_where_nobody_is_hit_stands_under_its_heading(tmp_path: Path, screen: Screen) -> None:
    found, texts = levels(tmp_path, hit=False)
    terminal.show_levels(found)  # type: ignore[arg-type]
    (table,) = screen.tables
    assert str(table.columns[0].header) == "all clients"
    assert lines(table) == {
        name: [
            (head, f"{texts[name, value, 'chosen', 'all']} ({texts[name, value, 'last', 'all']})")
            for head, value in (("0", 0), ("0.4", 0.4))
        ]
        for name in ("fedamp:cloud", "fedavg:global", "fedamp:own")
    }
    assert bold(table) == ["fedamp:cloud", "fedavg:global"]
    title = "Mean test accuracy in % over corruption.labels, chosen round (in brackets: last round)"
    assert screen.text == title


def test_every_level_where_clients_are_hit_stands_under_its_heading(tmp_path: Path, screen: Screen) -> None:
    found, texts = levels(tmp_path, hit=True)
    terminal.show_levels(found)  # type: ignore[arg-type]
    sides = {"all clients": "all", "benign clients": "clean", "attacked clients": "hit"}
    assert [str(table.columns[0].header) for table in screen.tables] == list(sides)
    for table, side in zip(screen.tables, sides.values(), strict=True):
        shown = {
            name: [
                (head, f"{texts[name, value, 'last', side]} ({texts[name, value, 'chosen', side]})")
                for head, value in (("0", 0), ("0.4", 0.4))
            ]
            for name in ("fedamp:cloud", "fedavg:global")
        }
        if side == "hit":  # nobody, at the first level
            shown = {name: [("0", "–"), cells[1]] for name, cells in shown.items()}
        assert lines(table) == shown
    assert "last round (in brackets: chosen round)" in screen.text and "Headline models; the" in screen.text


def test_levels_on_a_narrow_terminal_show_the_first_number_alone(tmp_path: Path, screen: Screen) -> None:
    screen.width = 80
    found, texts = levels(tmp_path, hit=True)
    terminal.show_levels(found)  # type: ignore[arg-type]
    cell = lines(screen.tables[1])["fedavg:global"][1]
    assert cell == ("0.4", texts["fedavg:global", 0.4, "last", "clean"])
    assert "brackets" not in screen.text
