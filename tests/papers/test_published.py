"""The papers' tables as files: what was printed, the order of the queue, and what is refused."""

from __future__ import annotations

import pytest

from fedkin.base.settings import ConfigError
from fedkin.papers import published
from fedkin.papers.claims import TABLES
from fedkin.papers.published import Job

from .test_claims import FEDAMP_ROWS, GRAPHS, IMAGES, PANACEA_ROWS, PRINTED

CELLS = [
    (name, row.replace("_", "-"), column, value)
    for name, values in PRINTED.items()
    for rows, columns in [(FEDAMP_ROWS, IMAGES) if name.startswith("fedamp") else (PANACEA_ROWS, GRAPHS)]
    for row, line in zip(rows, values, strict=True)
    for column, value in zip(columns, line, strict=True)
]


@pytest.mark.parametrize(("name", "row", "column", "value"), CELLS)
def test_the_published_values_are_those_that_were_printed(name: str, row: str, column: str, value: float) -> None:
    """Typed twice, from the papers: there for the rules of claims, here for the tables."""
    assert published.table(name).rows[row].published[column] == value


@pytest.mark.parametrize("name", published.names())
def test_a_table_says_where_it_comes_from_and_what_it_leaves_open(name: str) -> None:
    whole = published.table(name)
    assert whole.title and whole.source and whole.open
    assert all(said.endswith((".", "?")) for said in whole.open)
    assert {row.run for row in whole.rows.values()} == set(whole.runs), "every run is looked at by a row"
    for row in whole.rows.values():
        assert set(row.published) <= set(whole.columns)


@pytest.mark.parametrize("name", TABLES)
def test_what_claims_speak_of_is_there(name: str) -> None:
    whole = published.table(name)
    rule_columns = set(TABLES[name]) - {column for column in TABLES[name] if column.startswith("compcars-")}
    assert rule_columns <= set(whole.columns)


# ---- the queue ----


def test_the_queue_has_every_run_of_every_table_once() -> None:
    every = published.jobs()
    assert len(set(every)) == len(every)
    for name in published.names():
        whole = published.table(name)
        wanted = {(c, r) for c, about in whole.columns.items() if not about.unavailable for r in whole.runs}
        assert {(job.column, job.run) for job in every if job.table == name} == wanted


def test_the_most_telling_come_first() -> None:
    every = published.jobs()
    practical = every[:27]
    assert {job.table for job in practical} == {"fedamp-table3"}
    assert {job.column for job in practical} == {"mnist", "fmnist", "emnist"} and {job.seed for job in practical} == {0}
    float32 = every[27:30]
    assert {job.precision for job in float32} == {"float32"} and len({job.run for job in float32}) == 3
    assert [job.column for job in every[30:34]] == ["cifar100"] * 4
    order = list(dict.fromkeys((job.table, job.seed > 0) for job in every))
    for earlier, later in (
        (("fedamp-table2", False), ("fedamp-table1", False)),
        (("fedamp-table1", False), ("fedamp-dirty", False)),
        (("fedamp-dirty", False), ("fedamp-dropped", False)),
        (("fedamp-dropped", False), ("fedamp-table3", True)),
        (("fedamp-table3", True), ("fedamp-table3-tuned", False)),
        (("fedamp-table3-tuned", False), ("fedamp-cifar100", False)),
    ):
        assert order.index(earlier) < order.index(later)


def test_only_takes_columns_runs_and_both() -> None:
    def chosen(only: str) -> set[tuple[str, str]]:
        return {(job.column, job.run) for job in published.jobs("fedamp-table3", only=only)}

    assert {column for column, _ in chosen("emnist")} == {"emnist"}
    assert {run for _, run in chosen("fedamp")} == {"fedamp"} and len(chosen("fedamp")) == 4
    assert chosen("emnist/fedamp, mnist/apfl") == {("emnist", "fedamp"), ("mnist", "apfl")}


def test_seeds_are_as_the_queue_says_or_as_many_as_are_asked_for() -> None:
    assert {job.seed for job in published.jobs("fedamp-table3", only="mnist/fedamp")} == {0, 1, 2}
    assert {job.seed for job in published.jobs("fedamp-table3", seeds=1, only="mnist/fedamp")} == {0}
    assert {job.seed for job in published.jobs("fedamp-table3", seeds=5, only="mnist/fedamp")} == {0, 1, 2, 3, 4}


def test_a_small_scale_has_its_columns_alone() -> None:
    small = published.jobs("fedamp-table3", 1, small=True)
    assert {job.column for job in small} == {"mnist", "fmnist", "emnist"}
    assert {job.precision for job in small} == {None} and len(small) == 27


def test_the_tuned_table_has_the_grid_that_compare_tune_has() -> None:
    from fedkin.studies.rates import FACTORS

    for run in published.table("fedamp-table3-tuned").runs.values():
        assert [f"x{factor:g}" for factor in run.factors] == list(FACTORS)


def test_names_of_files_are_told_apart() -> None:
    names = [(job.table, job.name) for job in published.jobs(seeds=2)]
    assert len(set(names)) == len(names)
    assert Job("t", "mnist", "fedamp", 2, 0.3).name == "mnist-fedamp-rate0.3-seed2"
    assert Job("t", "mnist", "fedamp", 0, None, "float32").name == "mnist-fedamp-seed0-float32"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: published.table("fedamp-table4"), "There is no table 'fedamp-table4'. Did you mean 'fedamp-table"),
        (lambda: published.jobs("fedamp-table3", only="svhn"), "--only: there is no 'svhn'. Known are apfl, cifar100"),
        (lambda: published.jobs(only="mnist/kin"), "--only: there is no 'kin'"),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(call, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError) as error:
        call()
    assert said in str(error.value)
