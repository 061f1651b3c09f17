"""The papers' claims: the file is sound, its numbers stand where it says, and rules say what the papers' tables say."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from helpers import ROOT

from fedkin.errors import FedkinError
from fedkin.papers.claims import IMAGES, WORDS, Answer, Claim, Comparison, Lookup, Word, answered, claims, parsed

CLAIMS = {claim.id: claim for claim in claims()}


def nothing(table: str, row: str, column: str) -> None:
    """No cell is reached."""


# ---- the file ----


def test_there_are_55_with_ids_of_their_own_in_the_papers_order() -> None:
    assert [claim.number for claim in claims()] == list(range(1, 56))
    assert len(CLAIMS) == 55
    assert {claim.paper for claim in claims()} == {"fedamp", "panacea", "review"}


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: claim.id)
def test_every_claim_has_an_answer_and_every_place_it_names_is_there(claim: Claim) -> None:
    answer = answered(claim, nothing)
    assert answer.word in WORDS and answer.because.endswith(".")
    assert claim.claim.endswith(".") and not claim.source.endswith(".")
    assert all((ROOT / place).is_file() for place in answer.where)
    assert answer.where or answer.word == "not reached yet"


@pytest.mark.parametrize("claim", [c for c in claims() if c.answer and c.answer.where], ids=lambda claim: claim.id)
def test_the_numbers_of_an_answer_stand_in_what_it_names(claim: Claim) -> None:
    """As they are printed there: a page that is measured anew calls for a new sentence here."""
    assert claim.answer is not None
    texts = [(ROOT / place).read_text(encoding="utf-8") for place in claim.answer.where]
    pages = " ".join(text.partition("\n## The papers’ claims")[0] for text in texts)  # which repeat this very answer
    pages = re.sub(r"(?<=\d)_(?=\d)", ",", pages)
    numbers = re.findall(r"\d[\d,]*\.\d+|\d+,\d{3}", claim.answer.because)
    missing = [number for number in numbers if not re.search(rf"(?<![\d.]){re.escape(number)}(?![\d])", pages)]
    assert missing == []


# ---- rules, on what the papers printed ----

FEDAMP_ROWS = ("separate", "fedavg", "fedprox", "fedavg-ft", "fedprox-ft", "scaffold", "apfl", "fedamp", "heurfedamp")
PANACEA_ROWS = ("fedavg", "fedavg-ft", "perfedavg", "pfedme", "sfl", "pfedhn", "panacea-gn", "panacea")
GRAPHS = ("fl60", "compcars", "tpt48", "metr_la", "pems_bay")
PRINTED: dict[str, list[tuple[float, ...]]] = {
    "fedamp-table1": [
        (99.27, 81.66, 54.41, 9.82),
        (99.31, 91.94, 74.38, 49.59),
        (98.81, 90.19, 73.14, 46.50),
        (98.98, 90.17, 70.53, 35.07),
        (98.72, 89.02, 69.49, 40.77),
        (98.89, 89.04, 72.51, 43.06),
        (98.93, 91.03, 73.95, 49.02),
        (99.22, 92.05, 74.07, 45.68),
        (99.28, 91.80, 74.07, 45.88),
    ],
    "fedamp-table2": [
        (98.73, 97.67, 99.15, 92.67),
        (98.39, 77.88, 19.44, 2.70),
        (97.15, 83.80, 48.81, 2.81),
        (99.66, 98.07, 99.24, 95.00),
        (99.63, 98.00, 99.27, 94.36),
        (99.34, 94.58, 98.75, 2.04),
        (98.24, 97.44, 98.90, 52.11),
        (99.53, 97.95, 99.27, 94.87),
        (99.38, 98.17, 99.26, 94.74),
    ],
    "fedamp-table3": [
        (86.30, 86.73, 61.78, 39.99),
        (81.82, 79.50, 72.27, 35.21),
        (81.46, 78.71, 70.55, 37.31),
        (91.79, 89.73, 78.93, 49.00),
        (94.10, 87.51, 77.31, 50.24),
        (98.50, 40.20, 77.98, 21.29),
        (85.05, 84.08, 59.07, 16.45),
        (97.59, 90.97, 81.22, 53.04),
        (97.36, 91.37, 81.47, 53.27),
    ],
    "panacea-table1": [
        (97.9, 88.2, 2.6, 112.4, 33.5),
        (100.0, 90.0, 2.6, 20.0, 13.2),
        (87.7, 66.0, 2.6, 289.5, 63.7),
        (100.0, 72.2, 2.5, 315.8, 75.7),
        (73.3, 77.0, 2.9, 73.2, 36.4),
        (100.0, 85.7, 2.2, 3.2, 3.6),
        (100.0, 89.1, 2.5, 3.2, 1.2),
        (100.0, 88.2, 2.6, 1.0, 0.4),
    ],
    "panacea-table2": [
        (99.2, 86.8, 2.8, 109.7, 30.7),
        (100.0, 71.2, 2.8, 19.7, 12.3),
        (80.8, 66.4, 2.8, 274.8, 59.4),
        (42.5, 72.0, 3.5, 305.3, 98.5),
        (62.5, 77.5, 3.3, 70.8, 33.7),
        (82.5, 86.4, 2.5, 3.2, 3.0),
        (100.0, 87.9, 2.6, 3.1, 1.2),
        (100.0, 87.8, 2.8, 1.0, 0.4),
    ],
}


def printed(table: str, row: str, column: str) -> float | None:
    if table not in PRINTED:
        return None
    rows, columns = (FEDAMP_ROWS, IMAGES) if table.startswith("fedamp") else (PANACEA_ROWS, GRAPHS)
    return PRINTED[table][rows.index(row)][columns.index(column)]


IN_PART = {"iid-tuned-lose", "pathological-separate-higher", "heuristic-better", "separate-lower-bound"}
"""Where the papers' own tables say otherwise, in part."""
FIGURES = {"dirty-emnist", "dirty-others", "dropped-three", "dropped-cifar", "attack-ahead"}
"""Of which no numbers were printed."""


@pytest.mark.parametrize("claim", [c for c in claims() if c.rule and c.id not in FIGURES], ids=lambda claim: claim.id)
def test_on_the_papers_own_tables_their_claims_hold(claim: Claim) -> None:
    answer = answered(replace(claim, answer=None), printed)
    assert answer.word == ("holds in part" if claim.id in IN_PART else "holds"), answer.because


def test_figures_have_no_printed_numbers() -> None:
    for id in FIGURES:
        assert answered(CLAIMS[id], printed) == answered(CLAIMS[id], nothing)


# ---- rules, on what was made up ----


def of(cells: dict[str, float]) -> Lookup:
    """Cells as 'row column', whatever the table."""
    return lambda table, row, column: cells.get(f"{row} {column}")


CLAIM = Claim(1, "made-up", "fedamp", "FedAMP is above FedAvg.", "here")
ABOVE = Comparison("fedamp-table3", ("fedamp",), ("mnist", "emnist"), above=("fedavg",))


@pytest.mark.parametrize(
    ("cells", "word", "because"),
    [
        (
            {"fedamp mnist": 90.0, "fedavg mnist": 80.0, "fedamp emnist": 70.0, "fedavg emnist": 60.0},
            "holds",
            "So it is on mnist (fedamp 90.00, fedavg 80.00), emnist (fedamp 70.00, fedavg 60.00).",
        ),
        (
            {"fedamp mnist": 90.0, "fedavg mnist": 80.0, "fedamp emnist": 60.0, "fedavg emnist": 60.0},
            "holds in part",
            "So it is on mnist (fedamp 90.00, fedavg 80.00); not on emnist (fedamp 60.00, fedavg 60.00).",
        ),
        (
            {"fedamp mnist": 70.0, "fedavg mnist": 80.0, "fedamp emnist": 50.0, "fedavg emnist": 60.0},
            "does not hold",
            "Not on mnist (fedamp 70.00, fedavg 80.00), emnist (fedamp 50.00, fedavg 60.00).",
        ),
        (
            {"fedamp mnist": 90.0, "fedavg mnist": 80.0, "fedamp emnist": 70.0},
            "holds in part",
            "So it is on mnist (fedamp 90.00, fedavg 80.00); not reached: emnist.",
        ),
        (
            {"fedamp mnist": 70.0, "fedavg mnist": 80.0},
            "does not hold",
            "Not on mnist (fedamp 70.00, fedavg 80.00); not reached: emnist.",
        ),
        ({"fedamp mnist": 90.0}, "not reached yet", "No cell of the tables that would tell is reached."),
    ],
)
def test_what_is_said_of_cells(cells: dict[str, float], word: str, because: str) -> None:
    answer = answered(replace(CLAIM, rule=(ABOVE,)), of(cells))
    assert (answer.word, answer.because) == (word, because)


def judged(comparison: Comparison, cells: dict[str, float], **more: int) -> str:
    return answered(replace(CLAIM, rule=(comparison,), **more), of(cells)).word


def test_above_is_by_more_than_what_is_asked_and_less_where_errors_are_counted() -> None:
    one = replace(ABOVE, columns=("mnist",), by=0.1)
    assert judged(one, {"fedamp mnist": 1.2, "fedavg mnist": 1.1}) == "does not hold"
    assert judged(one, {"fedamp mnist": 1.21, "fedavg mnist": 1.1}) == "holds"
    assert judged(replace(one, by=-0.1), {"fedamp mnist": 1.05, "fedavg mnist": 1.1}) == "holds"
    errors = Comparison("panacea-table1", ("panacea",), ("tpt48",), above=("fedavg",))
    assert judged(errors, {"panacea tpt48": 2.0, "fedavg tpt48": 2.6}) == "holds"
    assert judged(errors, {"panacea tpt48": 2.6, "fedavg tpt48": 2.0}) == "does not hold"


def test_level_least_and_most_include_their_bounds() -> None:
    level = Comparison("fedamp-table1", ("fedamp",), ("mnist",), level=("fedavg",), within=1.0)
    assert judged(level, {"fedamp mnist": 90.0, "fedavg mnist": 91.0}) == "holds"
    assert judged(level, {"fedamp mnist": 92.1, "fedavg mnist": 91.0}) == "does not hold"
    bounds = Comparison("fedamp-table1", ("fedamp",), ("mnist",), least=93.0, most=97.0)
    for value, word in ((92.9, "does not hold"), (93.0, "holds"), (97.0, "holds"), (97.1, "does not hold")):
        assert judged(bounds, {"fedamp mnist": value}) == word


def test_one_of_several_rows_may_do_and_some_columns_may_be_enough() -> None:
    rows = replace(ABOVE, rows=("fedamp", "heurfedamp"), columns=("mnist",))
    cells = {"fedamp mnist": 70.0, "heurfedamp mnist": 90.0, "fedavg mnist": 80.0}
    assert judged(rows, cells) == "does not hold"
    assert judged(replace(rows, any=True), cells) == "holds"
    cells = {"fedamp mnist": 90.0, "fedavg mnist": 80.0, "fedamp emnist": 50.0, "fedavg emnist": 60.0}
    assert (judged(ABOVE, cells), judged(ABOVE, cells, enough=1)) == ("holds in part", "holds")


def test_an_answer_stands_until_a_cell_is_reached() -> None:
    claim = CLAIMS["separate-lower-bound"]
    assert claim.rule and claim.answer
    alone = answered(claim, nothing)
    assert (alone.word, alone.where) == (claim.answer.word, claim.answer.where)
    assert alone.because == f"{claim.answer.because} No cell of the tables that would tell is reached."
    open = replace(CLAIM, rule=(ABOVE,), answer=Answer("not reached yet", "Nobody looked."))
    assert answered(open, of(BETTER)).because == answered(replace(open, answer=None), of(BETTER)).because
    blocked = parsed(FILE.replace("not reached yet", "cannot be tested here").replace("[]", '["README.md"]'))[0]
    assert answered(blocked, nothing).word == "cannot be tested here"


BETTER = {"fedamp mnist": 90.0, "fedavg mnist": 80.0, "fedamp emnist": 70.0, "fedavg emnist": 60.0}
WORSE = {"fedamp mnist": 70.0, "fedavg mnist": 80.0, "fedamp emnist": 50.0, "fedavg emnist": 60.0}


@pytest.mark.parametrize(
    ("cells", "said", "word"),
    [
        (BETTER, "does not hold", "holds in part"),
        (BETTER, "holds in part", "holds in part"),
        (BETTER, "holds", "holds"),
        (BETTER, "cannot be tested here", "holds"),
        (WORSE, "does not hold", "does not hold"),
        (WORSE, "holds", "holds in part"),
    ],
)
def test_cells_that_are_reached_do_not_silence_what_was_found_elsewhere(
    cells: dict[str, float], said: Word, word: Word
) -> None:
    by_rule = replace(CLAIM, rule=(ABOVE,))
    both = replace(by_rule, answer=Answer(said, "On digits it was otherwise.", ("docs/tuned.md",)))
    answer, alone = answered(both, of(cells)), answered(by_rule, of(cells))
    assert answer.word == word
    if said != "cannot be tested here":
        assert answer.because == f"{alone.because} On digits it was otherwise." and answer.where == ("docs/tuned.md",)


def test_alone_is_no_lower_bound_where_an_own_model_is_below_it() -> None:
    """In the paper's Table 3 SCAFFOLD and APFL are far below training alone on CIFAR-100, and on FMNIST."""
    told = answered(replace(CLAIMS["separate-lower-bound"], answer=None), printed).because
    assert "fmnist (scaffold 40.20, separate 86.73)" in told and "cifar100 (apfl 16.45, separate 39.99)" in told


# ---- files that are wrong ----

FILE = """
[[claim]]
id = "one"
paper = "fedamp"
claim = "One."
source = "A 7"
answer = "not reached yet"
because = "Nobody looked."
where = []
"""
RULE = """
[[claim]]
id = "two"
paper = "fedamp"
claim = "Two."
source = "A 7"
rule = { table = "fedamp-table1", column = "mnist", row = "fedamp", above = ["fedavg"], by = 1.0 }
"""


def test_a_sound_file_is_read() -> None:
    one, two = parsed(FILE + RULE)
    assert one.answer is not None and one.answer.word == "not reached yet" and not one.rule
    assert two.rule == (Comparison("fedamp-table1", ("fedamp",), ("mnist",), above=("fedavg",), by=1.0),)
    assert two.number == 2 and two.answer is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[claim]\n", "is not TOML"),
        ('title = "claims"\n' + FILE, "tables [[claim]] and nothing else"),
        (FILE + FILE, "Two claims have the id 'one'"),
        (FILE.replace('id = "one"\n', ""), "Claim 1 (without an id) needs 'id', a text."),
        (FILE.replace('"A 7"', "7"), "needs 'source', a text"),
        (FILE.replace('"fedamp"', '"fedavg"'), "has the paper 'fedavg'; known are fedamp, panacea, review"),
        (FILE.replace('"not reached yet"', '"maybe"'), "has the answer 'maybe'; known are"),
        (FILE.replace('"not reached yet"', '"holds"'), "'where' has to list the pages"),
        (FILE.replace('because = "Nobody looked."\n', ""), "does not say because of what"),
        (FILE.replace('answer = "not reached yet"\n', ""), "has neither a rule nor an answer"),
        (RULE + 'because = "So."\n', "says why or where, and gives no answer"),
        (RULE + "enough = 2\n", "says that 2 columns are enough, and its rule has 1"),
        (RULE + "wrong = 2\n", "has the key 'wrong'"),
        (RULE.replace("by =", "buy ="), "has the key 'buy'; known are"),
        (RULE.replace("table1", "table9"), "has the table 'fedamp-table9'"),
        (RULE.replace('row = "fedamp"', 'row = "fedamq"'), "has the row 'fedamq'"),
        (RULE.replace('"mnist"', '"metr_la"'), "of fedamp-table1, has the column 'metr_la'"),
        (RULE.replace('column = "mnist", ', ""), "needs table, row and column"),
        (RULE.replace('row = "fedamp"', "row = []"), "names no row or no column"),
        (RULE.replace("by = 1.0", "least = 1.0"), "needs one of above, level, or least and most; it has above, least"),
        (RULE.replace("by = 1.0", "within = 1.0"), "'by' goes with above, 'within' with level"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text: str, said: str) -> None:
    with pytest.raises(FedkinError) as error:
        parsed(text)
    assert said in str(error.value)
