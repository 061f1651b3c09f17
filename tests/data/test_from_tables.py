"""Federations from tables: fitted on training rows alone, the same from every form, and sentences for what is wrong."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

import fedkin
from fedkin.base.settings import ConfigError
from fedkin.base.task import Task
from fedkin.data import UnknownData, from_tables, preprocessing
from fedkin.data.federation import Client, Federation, FederationError
from fedkin.data.preprocessing import Number, TablePreprocessing
from fedkin.data.ranges import without_ranges
from fedkin.data.table import TableError
from fedkin.engines import start
from fedkin.errors import FedkinError
from fedkin.evidence import comparison
from fedkin.runs import options
from fedkin.runs.config import merge, resolve
from fedkin.studies import run

SIZES = {"north": 40, "south": 30, "west": 21}


def patients(seed: int = 0) -> pd.DataFrame:
    """Three clinics; gaps in numbers and in categories; whole numbers, fractions, truths and texts."""
    rng = np.random.default_rng(seed)
    clinic = np.repeat(list(SIZES), list(SIZES.values()))
    n = len(clinic)
    place = np.unique(clinic, return_inverse=True)[1]
    age = rng.integers(20, 90, n) + 10 * place
    return pd.DataFrame(
        {
            "clinic": clinic,
            "age": age,
            "chol": np.where(rng.random(n) < 0.2, np.nan, rng.normal(200, 40, n).round(1)),
            "smokes": rng.random(n) < 0.5,
            "pain": rng.choice(["none", "mild", "strong", None], n, p=[0.4, 0.3, 0.2, 0.1]),
            "ill": np.where(age + rng.normal(0, 10, n) > 60, "yes", "no"),
        }
    ).sample(frac=1, random_state=seed, ignore_index=True)


FRAME = patients()


def federation(frame: Any = FRAME, **more: Any) -> Federation:
    return Federation.from_table(frame, "clinic", "ill", **more)


def same(one: Federation, other: Federation) -> None:
    assert one.names == other.names
    assert one.task == other.task
    assert one.notes == other.notes
    for a, b in zip(one.clients, other.clients, strict=True):
        assert a.preprocessing == b.preprocessing
        assert a.validation is not None
        assert b.validation is not None
        for x, y in zip((*a.train, *a.test, *a.validation), (*b.train, *b.test, *b.validation), strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0)


def numbered(n: int = 24, **columns: Any) -> pd.DataFrame:
    """A table whose input is the row's number, of clients a and b in turn."""
    frame = {"who": ["a", "b"] * (n // 2), "row": np.arange(n, dtype=float), "y": [0, 0, 1, 1] * (n // 4)}
    return pd.DataFrame(frame).assign(**columns)


def of_numbers(frame: Any, **more: Any) -> Federation:
    return Federation.from_table(frame, "who", "y", **{"scale": "none", **more})


def parts(client: Client) -> list[list[int]]:
    assert client.validation is not None
    return [x[:, 0].int().tolist() for x, _ in (client.train, client.validation, client.test)]


# ---- the split ----


@given(st.integers(0, 5), st.sampled_from([0.1, 0.25, 0.5, 0.9]), st.sampled_from([0.0, 0.1, 0.4]))
@settings(max_examples=20, deadline=None)
def test_every_row_is_a_training_validation_or_test_row_of_its_client_once(seed, test_fraction, validation):
    found = of_numbers(numbered(), seed=seed, test_fraction=test_fraction, validation=validation)
    for client in found.clients:
        train, held, test = parts(client)
        assert sorted(train + held + test) == list(range("ab".index(client.name), 24, 2))
        assert len(test) == min(round(12 * test_fraction), 11)
        rest = 12 - len(test)
        assert len(held) == (max(1, round(validation * rest)) if validation and rest >= 5 else 0)


def test_whatever_the_share_a_client_keeps_a_row_to_train_on_and_one_to_test_on():
    for share in (0.01, 0.99):
        found = of_numbers(numbered(4), test_fraction=share, validation=0.9)
        assert [[len(rows) for rows in parts(c)] for c in found.clients] == [[1, 0, 1], [1, 0, 1]]


@pytest.mark.parametrize("validation", [0.1, 0.3])
def test_rows_are_split_as_arrays_are(validation):
    frame = numbered()
    found = of_numbers(frame, seed=3, validation=validation)
    arrays = {who: (own[["row"]].to_numpy(), own["y"].to_numpy()) for who, own in frame.groupby("who")}
    expected = Federation.from_arrays(arrays, seed=3).with_validation(validation, 3)
    assert [parts(c) for c in found.clients] == [parts(c) for c in expected.clients]


def test_the_rows_kept_for_validation_are_not_cut_again_by_a_run():
    for share in (0.0, 0.2):
        given = of_numbers(numbered(), validation=share)
        ready = start.prepare(federation=given, method="separate", rounds=1, data={"validation": 0.5})
        assert [parts(c) for c in ready.federation.clients] == [parts(c) for c in given.clients]


def test_numbers_of_test_rows_name_the_same_patient_in_every_seed():
    """A column of numbers, left as they are, says which patient a row is."""
    frame = FRAME.assign(patient=np.arange(len(FRAME)) * 7.5)
    own = {clinic: rows["patient"].tolist() for clinic, rows in frame.groupby("clinic")}
    tested = {clinic: set() for clinic in own}
    for seed in range(3):
        for client in federation(frame, seed=seed, scale="none").clients:
            place = client.preprocessing.inputs.index("patient")
            assert [own[client.name][row] for row in client.test_rows] == client.test[0][:, place].tolist()
            tested[client.name] |= set(client.test_rows.tolist())
    assert all(len(rows) > SIZES[clinic] // 4 + 1 for clinic, rows in tested.items()), "seeds test different patients"


def test_given_test_rows_have_the_same_numbers_in_every_seed():
    train, test = FRAME.iloc[:60], FRAME.iloc[60:]
    first, second = (federation(train, test=test, seed=seed).clients for seed in (0, 1))
    for one, other in zip(first, second, strict=True):
        assert one.name == other.name and torch.equal(one.test_rows, other.test_rows)
        assert torch.equal(one.test[1], other.test[1])


def test_given_test_rows_are_the_test_rows():
    frame = numbered()
    found = of_numbers(frame[:16], test=frame[16:])
    assert sorted(row for c in found.clients for row in parts(c)[2]) == list(range(16, 24))
    assert sorted(row for c in found.clients for p in parts(c)[:2] for row in p) == list(range(16))


# ---- what is fitted ----


def wild(frame: pd.DataFrame, found: Federation) -> pd.DataFrame:
    """The same table with other values in all rows that are not training rows."""
    keys = found_rows(frame, found)
    rest = ~frame.index.isin(keys)
    changed = frame.copy()
    changed["age"] = changed["age"].astype(float)
    changed.loc[rest, "age"] = np.where(np.arange(rest.sum()) % 2, 1e6, np.nan)  # gaps where training has none
    changed.loc[rest, "chol"] = -777.5
    changed.loc[rest, "pain"] = "unheard of"
    return changed


def found_rows(frame: pd.DataFrame, found: Federation) -> list[int]:
    """The numbers of the training rows, told by another federation of the same table whose input is the number."""
    told = Federation.from_table(
        frame[["clinic", "ill"]].assign(row=frame.index), "clinic", "ill", scale="none", validation=0.2, seed=5
    )
    assert [c.samples for c in told.clients] == [c.samples for c in found.clients]
    return [row for client in told.clients for row in parts(client)[0]]


@pytest.mark.parametrize("statistics", ["shared", "own"])
def test_validation_and_test_rows_do_not_influence_what_is_fitted(statistics):
    before = federation(statistics=statistics, validation=0.2, seed=5)
    after = federation(wild(FRAME, before), statistics=statistics, validation=0.2, seed=5)
    for one, other in zip(before.clients, after.clients, strict=True):
        assert one.preprocessing == other.preprocessing
        torch.testing.assert_close(one.train[0], other.train[0], rtol=0, atol=0)
        assert not torch.equal(one.test[0], other.test[0])


@pytest.mark.parametrize("statistics", ["shared", "own"])
@pytest.mark.parametrize("fill", ["mean", "median"])
def test_means_and_deviations_are_scikit_learns_of_the_training_rows(statistics, fill):
    if (statistics, fill) == ("shared", "median"):
        return
    found = federation(statistics=statistics, fill=fill, validation=0.2, seed=5)
    everyone = FRAME.loc[found_rows(FRAME, found)]
    for client in found.clients:
        mine = everyone if statistics == "shared" else everyone[everyone["clinic"] == client.name]
        scaler = StandardScaler().fit(mine[["age", "chol"]])
        fitted = {c.name: c for c in client.preprocessing.columns if isinstance(c, Number)}
        for k, column in enumerate(["age", "chol"]):
            assert fitted[column].mean == pytest.approx(scaler.mean_[k], rel=1e-12)
            assert fitted[column].scale == pytest.approx(scaler.scale_[k], rel=1e-12)
            assert fitted[column].fill == pytest.approx(getattr(mine[column], fill)(), rel=1e-12)
    assert len({without_ranges(c.preprocessing) for c in found.clients}) == (1 if statistics == "shared" else 3)


def test_training_inputs_are_what_the_saved_preprocessing_gives_again():
    found = federation(statistics="own")
    for client in found.clients:
        mine = FRAME[FRAME["clinic"] == client.name]
        again = client.preprocessing.module()(client.preprocessing.read(mine))
        dealt = torch.cat([client.train[0], client.validation[0], client.test[0]])
        assert sorted(map(tuple, again.tolist())) == sorted(map(tuple, dealt.tolist()))


def test_inputs_line_up_over_silos_even_where_a_category_or_a_gap_is_one_silos_own():
    frame = FRAME.copy()
    frame.loc[frame["clinic"] != "west", "chol"] = frame["chol"].fillna(200)
    frame.loc[(frame["clinic"] == "north") & (frame["pain"] == "none"), "pain"] = "northern"
    found = federation(frame, statistics="own")
    assert len({c.preprocessing.inputs for c in found.clients}) == 1
    (inputs,) = {c.preprocessing.inputs for c in found.clients}
    assert {"chol missing", "pain=northern", "smokes=true", "smokes=false"} <= set(inputs)
    assert "age missing" not in inputs
    assert found.task.inputs == (len(inputs),)
    assert [note for note in found.notes if "olumn" in note] == []


def test_no_indicators_if_not_wanted():
    (inputs,) = {c.preprocessing.inputs for c in federation(indicators=False).clients}
    assert not [name for name in inputs if name.endswith(" missing")]


def test_an_empty_column_of_a_silo_with_own_statistics_becomes_zero():
    frame = FRAME.copy()
    frame.loc[frame["clinic"] == "west", "chol"] = np.nan
    for fill in ("mean", "median"):
        (west,) = [c for c in federation(frame, statistics="own", fill=fill).clients if c.name == "west"]
        at = west.preprocessing.inputs.index("chol")
        assert west.train[0][:, at].tolist() == [0] * west.samples


# ---- the same from every form ----


FORMS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "polars": lambda frame, _: pl.from_pandas(frame),
    "columns": lambda frame, _: frame.to_dict("list"),
    "rows": lambda frame, _: frame.to_dict("records"),
    "csv": lambda frame, folder: _written(frame, folder / "t.csv", "to_csv", index=False),
    "tsv": lambda frame, folder: _written(frame, folder / "t.tsv", "to_csv", index=False, sep="\t"),
    "parquet": lambda frame, folder: _written(frame, folder / "t.parquet", "to_parquet"),
    "csv of polars": lambda frame, folder: _polars(frame, folder / "t.csv"),
    "columns turned round": lambda frame, _: frame[frame.columns[::-1]],
    "columns turned round, csv": lambda frame, folder: _written(
        frame[frame.columns[::-1]], folder / "t.csv", "to_csv", index=False
    ),
}


def _written(frame: pd.DataFrame, path: Path, how: str, **more: Any) -> Path:
    getattr(frame, how)(path, **more)
    return path


def _polars(frame: pd.DataFrame, path: Path) -> Path:
    pl.from_pandas(frame).write_csv(path)
    return path


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", ["ill", "smokes", "age"])
def test_every_form_of_a_table_gives_the_same_federation(form, target, tmp_path):
    before = Federation.from_table(FRAME, "clinic", target)
    same(Federation.from_table(FORMS[form](FRAME, tmp_path), "clinic", target), before)


def test_a_folder_of_one_file_a_client_gives_the_federation_of_the_one_table(tmp_path):
    for number, (clinic, own) in enumerate(FRAME.groupby("clinic")):
        own = own.drop(columns="clinic")
        if number:
            own.to_csv(tmp_path / f"{clinic}.csv", index=False)
        else:
            own.to_parquet(tmp_path / f"{clinic}.parquet")
    (tmp_path / "README.txt").write_text("about")
    same(Federation.from_folder(tmp_path, "ill"), federation())


def test_a_folder_of_one_sub_folder_a_client_keeps_training_and_test_rows_apart(tmp_path):
    train, test = FRAME[:70], FRAME[70:]
    for clinic in SIZES:
        (tmp_path / clinic).mkdir()
        for stem, part in (("train", train), ("test", test)):
            own = part[part["clinic"] == clinic].drop(columns="clinic")
            own.to_csv(tmp_path / clinic / f"{stem}.csv", index=False)
    same(Federation.from_folder(tmp_path, "ill"), federation(train, test=test))


# ---- what is learned ----


@pytest.mark.parametrize(
    ("values", "task", "names"),
    [
        ([0, 1], "auto", ("0", "1")),
        ([10, 9], "auto", ("9", "10")),
        (["10", "9"], "auto", ("9", "10")),
        ([0.0, 2.0], "auto", ("0", "2")),
        ([True, False], "auto", ("false", "true")),
        (["b", "B"], "auto", ("B", "b")),
        (list(range(20)), "auto", tuple(map(str, range(20)))),
        ([0.5, 1.5], "classification", ("0.5", "1.5")),
        (list(range(30)), "classification", tuple(map(str, range(30)))),
    ],
)
def test_classes_are_sorted_and_keep_their_names(values, task, names):
    frame = numbered(120, y=(values * 120)[:120])
    found = of_numbers(frame, task=task)
    assert found.task.kind == "classification"
    assert found.task.class_names == names
    assert found.task.outputs == len(names)
    for client in found.clients:
        for x, y in (client.train, client.test, client.validation):
            labels = frame["y"].iloc[x[:, 0].int().tolist()].tolist()
            assert [names[i] for i in y.tolist()] == [
                str(v).lower() if v is True or v is False else _plain(v) for v in labels
            ]


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize(("values", "task"), [([0.5, 1.5], "auto"), (list(range(21)), "auto"), ([0, 1], "regression")])
def test_numbers_that_are_no_classes_are_scaled_by_all_silos_training_rows(values, task):
    frame = numbered(120, y=(values * 120)[:120])
    for statistics in ("shared", "own"):
        found = of_numbers(frame, task=task, statistics=statistics)
        assert found.task.kind == "regression"
        assert found.task.metric.name == "rmse"
        train = np.concatenate([frame["y"].iloc[parts(c)[0]] for c in found.clients]).astype(float)
        assert found.task.target_mean == pytest.approx(train.mean())
        assert found.task.target_scale == pytest.approx(train.std())
        for client in found.clients:
            x, y = client.test
            again = found.task.target_mean + found.task.target_scale * y.double()
            np.testing.assert_allclose(again, frame["y"].iloc[x[:, 0].int().tolist()].to_numpy(), atol=1e-4)


# ---- what is refused ----


def cell(frame: pd.DataFrame, row: int, column: str, value: Any) -> pd.DataFrame:
    changed = frame.astype({column: object})
    changed.loc[row, column] = value
    return changed


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "no such client column": (
        lambda: FRAME,
        {"client": "Clinc"},
        "no column 'Clinc', which table.client names. Did you mean 'clinic'?",
    ),
    "no such target": (
        lambda: FRAME,
        {"target": "outcome"},
        "no column 'outcome', which table.target names. The columns are clinic, age",
    ),
    "no such ignored column": (
        lambda: FRAME,
        {"ignore": ["agee"]},
        "'agee', which table.ignore names. Did you mean 'age'",
    ),
    "no such category": (
        lambda: FRAME,
        {"categorical": ["Pain"]},
        "'Pain', which table.categorical names. Did you mean 'pain'",
    ),
    "no such column with marks": (
        lambda: FRAME,
        {"missing_in": {"cholesterol": [0]}},
        "'cholesterol', which table.missing_in names",
    ),
    "no client column": (
        lambda: FRAME,
        {"client": None},
        "Which column of the table names the silo\\? .*--client.* clinic, age, chol",
    ),
    "no target": (
        lambda: FRAME,
        {"target": None},
        "Which column of the table is to be predicted\\? .*--target.* clinic, age",
    ),
    "the target ignored": (lambda: FRAME, {"ignore": ["ill"]}, "'ill' is the target and cannot be in table.ignore"),
    "the client ignored": (
        lambda: FRAME,
        {"ignore": ["clinic"]},
        "'clinic' is the client and cannot be in table.ignore",
    ),
    "client and target in one": (
        lambda: FRAME,
        {"target": "clinic"},
        "'clinic' cannot be both the client and the target",
    ),
    "everything ignored": (
        lambda: FRAME,
        {"ignore": ["age", "chol", "smokes", "pain"]},
        "no column left to learn from",
    ),
    "rows without client": (
        lambda: cell(cell(FRAME, 3, "clinic", None), 7, "clinic", ""),
        {},
        r"row 3 \(the first is 0\): the client, column 'clinic', is missing, and in 1 more rows",
    ),
    "rows without target": (
        lambda: cell(FRAME, 3, "ill", None),
        {},
        "row 3 .*: the target, column 'ill', is missing. Fill it in",
    ),
    "the target is a mark": (lambda: FRAME, {"missing": ["no"]}, "the target, column 'ill', is missing, and in"),
    "a client of one row": (
        lambda: cell(FRAME, 3, "clinic", "east"),
        {},
        "at least one row for training and one for testing: 'east' has 1 in all",
    ),
    "no test rows for a client": (
        lambda: FRAME,
        {"test": FRAME[FRAME["clinic"] != "west"]},
        "'west' has 21 for training and 0 for testing",
    ),
    "no training rows for a client": (
        lambda: FRAME[FRAME["clinic"] != "west"],
        {"test": FRAME},
        "'west' has 0 for training and 21 for testing",
    ),
    "test rows without a column": (
        lambda: FRAME,
        {"test": FRAME.drop(columns="chol")},
        "the test table has no column 'chol', which the table has",
    ),
    "a column with one value": (
        lambda: FRAME.assign(site=7),
        {},
        r"Column 'site' is 7 in all silos; --ignore site \(table.ignore = .'site'.\) leaves it out",
    ),
    "a column with one text": (lambda: FRAME.assign(site="x"), {}, "Column 'site' is x in all silos"),
    "an empty column": (lambda: FRAME.assign(site=None), {}, "Column 'site' is empty in all silos"),
    "a column of gaps and one value": (
        lambda: FRAME.assign(site=[5.0, None] * 45 + [5.0]),
        {"indicators": False},
        "Column 'site' is 5 in all silos",
    ),
    "one class": (lambda: FRAME.assign(ill="no"), {}, "The target 'ill' is no in all rows of all silos"),
    "one number to predict": (lambda: FRAME.assign(ill=1.5), {}, "The target 'ill' is 1.5 in all rows"),
    "too many classes": (
        lambda: FRAME.assign(ill=[f"p{i}" for i in range(91)]),
        {},
        "91 different values in 91 rows, too many for classes",
    ),
    "mixed labels": (
        lambda: cell(FRAME, 5, "ill", 1),
        {},
        r"mixes types: it is '.*' in the table, row 0 .*, and 1.0 in the table, row 5",
    ),
    "texts to regress": (
        lambda: FRAME,
        {"task": "regression"},
        "is '(yes|no)', but table.task = 'regression' needs numbers",
    ),
    "nan as a label": (
        lambda: cell(FRAME, 5, "ill", "nan"),
        {},
        "row 5 .*column 'ill' is 'nan'. If that means missing",
    ),
    "text among numbers": (
        lambda: cell(cell(FRAME, 5, "age", "?"), 6, "age", "old"),
        {},
        r"row 5 .*column 'age' is '\?' where most cells are numbers \(2 such cells: '\?', 'old'\).*"
        r'table.missing = \["\?", "old"\].*'
        r"table.categorical = \['age'\]",
    ),
    "nan as a word": (lambda: cell(FRAME, 5, "age", "nan"), {}, "column 'age' is 'nan' where most cells are numbers"),
    "inf as a word": (lambda: cell(FRAME, 5, "age", "-inf"), {}, "column 'age' is '-inf' where most cells are numbers"),
    "infinity": (
        lambda: cell(FRAME, 5, "chol", math.inf).astype({"chol": float}),
        {},
        "row 5 .*column 'chol' is infinite",
    ),
    "infinity among categories": (
        lambda: cell(FRAME, 5, "chol", math.inf),
        {"categorical": ["chol"]},
        "column 'chol' is infinite",
    ),
    "a word nan among categories": (lambda: cell(FRAME, 5, "pain", "NaN"), {}, "row 5 .*column 'pain' is 'NaN'"),
    "free text": (
        lambda: FRAME.assign(name=[f"patient {i}" for i in range(91)]),
        {},
        "'name' has 91 different texts in 91 rows, such as 'patient 0'",
    ),
    "what may be thousands": (
        lambda: FRAME.assign(dose=[f"{i + 1},500" for i in range(91)]),
        {},
        "'dose' has 91 different texts .* write them with a point",
    ),
    "several columns that say nothing": (
        lambda: FRAME.assign(site=7, day=pd.Timestamp("2020-01-01"), none=None),
        {},
        r"3 columns are empty or have one value in all silos: 'day' \(2020-01-01T00:00:00\), 'none' \(empty\), 'site' "
        r"\(7\)\. --ignore day,none,site \(table.ignore = \['day', 'none', 'site'\]\) leaves them out",
    ),
    "a client of one row with a name like another's": (
        lambda: cell(FRAME, 3, "clinic", "Nroth"),
        {},
        r"'Nroth' has 1 in all.* 'Nroth' \(1 row\) looks like 'north' \((39|40) rows\): the same silo\?$",
    ),
    "durations": (
        lambda: FRAME.assign(stay=pd.to_timedelta(np.arange(91), unit="D")),
        {},
        r"'stay' holds values of type .*table.ignore = \['stay'\]",
    ),
    "days that may be months": (
        lambda: FRAME.assign(day=[f"0{1 + i % 9}/0{1 + i // 9 % 9}/2024" for i in range(91)]),
        {},
        r"'day' holds dates such as '01/01/2024', in which day and month cannot be told apart.*03-31.*--ignore day",
    ),
    "numbers too large": (
        lambda: FRAME.assign(big=np.linspace(-1e300, 1e300, 91)),
        {},
        "'big' has numbers that are too large to square",
    ),
    "shared medians": (lambda: FRAME, {"fill": "median"}, "table.fill = 'median' needs table.statistics = 'own'"),
    "an unknown setting": (
        lambda: FRAME,
        {"categorial": ["age"]},
        "There is no setting 'table.categorial'. Did you mean 'table.categorical'?",
    ),
    "a wrong setting": (lambda: FRAME, {"scale": "robust"}, "table.scale = 'robust' cannot be"),
    "no test part": (lambda: FRAME, {"test_fraction": 0}, "test_fraction is 0, but has to lie between 0 and 1"),
    "all for validation": (
        lambda: FRAME,
        {"validation": 1.0},
        "validation is 1.0, but has to be at least 0 and below 1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_refused_with_its_place_and_what_to_do(case):
    frame, more, sentence = REFUSED[case]
    given = {"client": "clinic", "target": "ill", **more}
    with pytest.raises(FedkinError, match=sentence):
        Federation.from_table(frame(), given.pop("client"), given.pop("target"), **given)


def test_more_than_a_thousand_classes_are_refused():
    frame = pd.DataFrame({"who": ["a", "b"] * 1100, "x": range(2200), "y": [f"c{i % 1001}" for i in range(2200)]})
    with pytest.raises(TableError, match="has 1001 different values in 2200 rows, too many for classes"):
        Federation.from_table(frame, "who", "y")


def test_all_words_among_numbers_are_told_with_an_advice_that_needs_to_be_followed_once(tmp_path):
    """Following the advice as it is written, as an option or as a setting, gives a federation."""
    frame = FRAME
    for row, word in enumerate(["NA", "-", "NA", "n/a", "nan", "?"]):
        frame = cell(frame, row, "age", word)
    frame = cell(cell(frame, 7, "age", "unknown"), 8, "age", -9)
    with pytest.raises(TableError) as caught:
        federation(frame, missing=["unknown", -9])
    assert "(6 such cells: 'NA', '-', 'n/a', 'nan', '?'). If they mean missing, declare them: " in str(caught.value)
    told = re.search(r'(--missing) "(.*)" \((table\.missing = .*?)\);', str(caught.value))
    assert told
    option, setting = options.parse([told[1], told[2]]), tomllib.loads(told[3])
    assert option == setting == {"table": {"missing": ["unknown", -9, "NA", "-", "n/a", "nan", "?"]}}
    federation(frame, **setting["table"])


def test_of_many_different_words_among_numbers_five_are_told():
    frame = FRAME
    for row in range(8):
        frame = cell(frame, row, "age", f"w{row}")
    with pytest.raises(TableError, match=r"8 such cells: 'w0', 'w1', 'w2', 'w3', 'w4' and 3 more\)"):
        federation(frame)


def test_words_that_an_option_would_cut_or_a_shell_would_change_are_advised_as_a_setting():
    for word in ("3,5", 'a "b"', "$x"):
        with pytest.raises(TableError) as caught:
            federation(cell(FRAME, 5, "age", word))
        assert "--missing" not in str(caught.value)
        setting = re.search(r"table\.missing = \[.*?\](?=;)", str(caught.value))
        assert setting
        assert tomllib.loads(setting[0]) == {"table": {"missing": [word]}}


@pytest.mark.parametrize(
    "form", ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%d.%m.%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", None]
)
def test_dates_become_days_and_that_is_told(form, tmp_path):
    """The oracle is pandas: days since 1970-01-01."""
    days = pd.date_range("2023-11-20 06:00", periods=91)
    frame = numbered(88, day=days[:88] if form is None else days[:88].strftime(form)).drop(columns="row")
    frame.to_csv(tmp_path / "t.csv", index=False)
    since = (days - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
    if form is not None and "H" not in form:
        since = np.floor(since)
    for table in (frame, tmp_path / "t.csv"):
        found = of_numbers(table)
        (inputs,) = {c.preprocessing.inputs for c in found.clients}
        assert inputs == ("day",)
        seen = sorted(
            x for c in found.clients for pair in (c.train, c.validation, c.test) for x in pair[0][:, 0].tolist()
        )
        np.testing.assert_allclose(seen, np.asarray(since[:88]), atol=1e-3)
        (note,) = [note for note in found.notes if "ates" in note]
        assert note.startswith("Dates are inputs as days since 1970-01-01: 'day' (")
        assert note.endswith(". --ignore day (table.ignore = ['day']) leaves them out.")


def test_a_date_is_read_at_prediction_as_it_was_in_training():
    """3/4/2024 alone may be April or March; the training rows said which."""
    days = pd.date_range("2023-11-20", periods=88)
    found = of_numbers(numbered(88, day=days.strftime("%m/%d/%Y")).drop(columns="row"))
    prepared = preprocessing.from_json(json.loads(json.dumps(found.clients[0].preprocessing.to_json())))
    april = (pd.Timestamp("2024-03-04") - pd.Timestamp("1970-01-01")).days
    assert prepared.read({"day": ["3/4/2024"]}).tolist() == [[april]]
    with pytest.raises(TableError, match=r"column 'day' is '2024-03-04', but it was a column of dates in training"):
        prepared.read({"day": ["2024-03-04"]})


def test_years_of_two_digits_are_not_guessed():
    days = pd.date_range("2023-11-20", periods=91).strftime("%m/%d/%y")
    with pytest.raises(TableError, match=r"If they are dates, write all of them as 2024-03-31"):
        federation(FRAME.assign(day=days))


@pytest.mark.parametrize("form", ["10.0.3.{}", "1-2-{:05d}", "patient {}"])
def test_other_texts_are_not_taken_for_dates(form):
    with pytest.raises(TableError, match="write them with a point"):
        federation(FRAME.assign(day=[form.format(i) for i in range(91)]))


def test_decimal_commas_are_numbers_and_that_is_told(tmp_path):
    plain = FRAME.assign(dose=np.arange(91) / 4)
    plain.to_csv(tmp_path / "points.csv", index=False)
    text = (tmp_path / "points.csv").read_text().replace(",", ";").replace(".", ",")
    (tmp_path / "commas.csv").write_text(text)
    points, commas = (federation(tmp_path / f"{name}.csv", name="t") for name in ("points", "commas"))
    same(points, replace(commas, notes=points.notes))
    assert set(commas.notes) - set(points.notes) == {
        "commas.csv: cells are parted by semicolons, as the header's are.",
        "Numbers are written with decimal commas, '3,5' for 3.5, in 'chol', 'dose'.",
    }


def test_text_is_refused_with_the_line_of_the_file(tmp_path):
    cell(FRAME, 5, "age", "old").to_csv(tmp_path / "patients.csv", index=False)
    with pytest.raises(TableError, match=r"^patients\.csv, line 7: column 'age' is 'old'"):
        federation(tmp_path / "patients.csv")


def test_what_is_refused_in_a_column_does_not_matter_where_it_is_ignored():
    frame = FRAME.assign(day=pd.Timestamp("2020-01-01"), site=7, name=[f"patient {i}" for i in range(91)])
    same(federation(frame, ignore=["day", "site", "name"]), federation())


@pytest.mark.parametrize(
    ("change", "more"),
    [
        (lambda frame: cell(frame, 5, "age", "?"), {"missing": ["?"]}),
        (lambda frame: cell(frame, 5, "age", "nan"), {"missing": ["nan"]}),
        (lambda frame: cell(frame, 5, "age", -1), {"missing_in": {"age": [-1]}}),
        (lambda frame: cell(frame, 5, "age", -1), {"missing_in": {"age": ["-1"]}}),
    ],
)
def test_a_declared_mark_is_a_gap(change, more):
    with_gap = federation(cell(FRAME, 5, "age", None))
    marked = federation(change(FRAME), **more)
    for one, other in zip(with_gap.clients, marked.clients, strict=True):
        torch.testing.assert_close(one.train[0], other.train[0], rtol=0, atol=0)
        torch.testing.assert_close(one.test[0], other.test[0], rtol=0, atol=0)


def test_texts_that_are_half_numbers_are_categories():
    frame = FRAME.assign(code=["1", "a"] * 45 + ["b"])
    (inputs,) = {c.preprocessing.inputs for c in federation(frame).clients}
    assert {"code=1", "code=a"} <= set(inputs)


def test_one_value_and_gaps_say_something():
    (inputs,) = {c.preprocessing.inputs for c in federation(FRAME.assign(site=[5.0, None] * 45 + [5.0])).clients}
    assert {"site", "site missing"} <= set(inputs)


# ---- weights ----


def test_a_column_of_weights_is_no_input_and_goes_with_its_rows_into_training():
    frame = numbered(48, w=1 + np.arange(48) / 10)
    found = of_numbers(frame, weight="w")
    assert all(c.preprocessing.inputs == ("row",) for c in found.clients)
    ready = start.prepare(federation=found, method="separate", rounds=1)
    train = ready.cohort.train
    torch.testing.assert_close(train.weight, 1 + train.x[:, 0] / 10)
    arrays = {
        who: {"x": own[["row"]].to_numpy(), "y": own["y"].to_numpy(), "weight": own["w"].to_numpy()}
        for who, own in frame.groupby("who")
    }
    for client in Federation.from_arrays(arrays).with_validation(0.2, 0).clients:
        torch.testing.assert_close(client.weight, 1 + client.train[0][:, 0].float() / 10)
    assert start.prepare(federation=of_numbers(frame), method="separate", rounds=1).cohort.train.weight is None


def test_rows_that_weigh_next_to_nothing_teach_nothing(tmp_path):
    """Half of the rows have a wrong label and no weight: the model learns the others."""
    x = np.linspace(-1, 1, 200)
    wrong = np.arange(200) // 2 % 2 == 0
    y = np.where((x > 0) != wrong, "yes", "no")
    frame = pd.DataFrame({"who": ["a", "b"] * 100, "x": x, "y": y, "w": np.where(wrong, 1e-9, 1.0)})
    settings = {"method": "separate", "rounds": 20, "model": {"name": "logistic"}, "local": {"lr": 0.1}}
    run.run(federation=Federation.from_table(frame, "who", "y", weight="w"), out=tmp_path / "w", **settings)
    found = run.Run(tmp_path / "w").predict("a", {"x": [-0.9, 0.9]})
    assert list(found.labels) == ["no", "yes"]


@pytest.mark.parametrize(
    ("value", "shown"), [(-1.0, "-1.0"), (0.0, "0.0"), (None, "missing"), ("heavy", "'heavy'"), (math.nan, "missing")]
)
def test_a_weight_that_is_no_number_above_0_is_refused_with_its_row(value, shown):
    frame = numbered(24, w=[2.0] * 9 + [value] + [2.0] * 14)
    with pytest.raises(
        TableError, match=rf"row 9 .*: the weight, column 'w', is {shown}; it has to be a number above 0"
    ):
        of_numbers(frame, weight="w")
    if isinstance(value, float):
        with pytest.raises(FederationError, match="'a': the weights of samples have to be finite numbers above 0"):
            Federation.from_arrays({"a": {"x": np.zeros((8, 1)), "y": np.arange(8) % 2, "weight": np.full(8, value)}})


# ---- what is only told ----


def told(frame: pd.DataFrame, **more: Any) -> str:
    """The notes, but for those on small validation parts."""
    return "\n".join(note for note in federation(frame, **more).notes if "alidation rows" not in note)


def test_a_column_that_is_0_in_one_silo_alone_may_be_missing_there():
    frame = FRAME.assign(chol=FRAME["chol"].where(FRAME["clinic"] != "west", 0.0))
    assert told(frame) == (
        "Column 'chol' is 0 in all training rows of west, and varies elsewhere. "
        "If 0 means missing there, declare it: --missing-in '{chol = [0]}' (table.missing_in = {chol = [0]})."
    )
    assert told(frame, missing_in={"chol": [0]}) == "Column 'chol' is empty in all training rows of west."
    beside = told(frame, missing_in={"age": [-1, "?"]})
    assert "--missing-in '{age = [-1, \"?\"], chol = [0]}'" in beside, "what was declared before would be gone"


def test_a_column_with_another_value_in_all_rows_of_silos_is_told_without_advice():
    frame = FRAME.assign(pain=FRAME["pain"].where(FRAME["clinic"] == "west", "none"))
    assert told(frame) == "Column 'pain' is none in all training rows of north, south, and varies elsewhere."
    frame = FRAME.assign(chol=FRAME["chol"].where(FRAME["clinic"] != "west", 5.0))
    assert told(frame) == "Column 'chol' is 5 in all training rows of west, and varies elsewhere."


def clinics(**sizes: int) -> pd.DataFrame:
    """A table of clients with these numbers of rows, in which nothing else is worth a note."""
    who = [name for name, rows in sizes.items() for _ in range(rows)]
    return pd.DataFrame({"who": who, "x": np.arange(len(who)) + 0.5, "y": np.arange(len(who)) % 2})


def test_a_small_client_with_a_name_like_anothers_is_told():
    found = of_numbers(clinics(North=120, South=100, Nroth=11, east=12, EAST=2), validation=0.0)
    assert set(found.notes) == {
        "'EAST' (2 rows) looks like 'east' (12 rows): the same silo?",
        "'Nroth' (11 rows) looks like 'North' (120 rows): the same silo?",
    }


def test_a_client_with_too_few_rows_and_a_name_like_anothers_is_told_however_small_all_are():
    with pytest.raises(FederationError, match=r"'Nroth' \(1 row\) looks like 'North' \(8 rows\): the same silo\?$"):
        of_numbers(clinics(North=8, South=7, Nroth=1))


@pytest.mark.parametrize(
    "sizes", [{"North": 120, "Nroth": 12}, {"North": 120, "west": 4}, {"silo_1": 120, "silo_2": 4}, {"only": 4}]
)
def test_clients_that_are_not_small_or_not_alike_or_numbered_are_not_told(sizes):
    assert not [note for note in of_numbers(clinics(**sizes)).notes if "looks like" in note]


def test_a_client_with_one_class_and_a_single_client_can_be_used():
    frame = FRAME.assign(ill=FRAME["ill"].where(FRAME["clinic"] != "west", "yes"))
    assert told(frame) == ""
    assert told(FRAME[FRAME["clinic"] == "north"]) == ""


def test_categories_of_validation_and_test_rows_alone_are_told_and_count_as_none():
    before = federation(validation=0.2, seed=5)
    frame = wild(FRAME, before)
    notes = told(frame, validation=0.2, seed=5)
    assert notes == "Column 'pain': 'unheard of' did not occur in any training row and counts as no category."


def test_notes_of_one_kind_are_one_sentence_with_what_can_be_typed():
    names = [f"c{i}" for i in range(8)] + ["white cells"]
    zeros = {name: np.where(FRAME["clinic"] == "west", 0.0, np.arange(91)) for name in names}
    (note,) = told(FRAME.assign(**zeros)).splitlines()
    assert note.startswith(
        "9 columns are 0 in all training rows of a silo, though they vary elsewhere: c0 (west), c1 (west), c2 (west), "
        "c3 (west), c4 (west) and 4 more. If 0 means missing there, declare it: --missing-in '"
    )
    typed = re.search(r"--missing-in '(.*?)' \(", note)
    assert typed
    raw = options.parse(["--missing-in", typed[1]])
    assert raw == {"table": {"missing_in": {name: [0] for name in names}}}
    again = told(FRAME.assign(**zeros), **raw["table"])
    assert "If 0 means" not in again and "9 columns are empty in all training rows of a silo" in again


def test_rare_flags_of_0_and_1_are_one_sentence_without_advice_on_gaps():
    rng = np.random.default_rng(0)
    flags = {
        f"code_{i:02d}": np.where(FRAME["clinic"] == "west", 0, rng.random(91) < 0.5).astype(int) for i in range(30)
    }
    (note,) = told(FRAME.assign(**flags)).splitlines()
    assert note == (
        "30 columns of 0 and 1 or of categories are always the same in all training rows of a silo, though they vary "
        "elsewhere: code_00 (west), code_01 (west), code_02 (west), code_03 (west), code_04 (west) and 25 more."
    )


# ---- by path, in a configuration ----


@pytest.fixture
def csv(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    FRAME.to_csv(tmp_path / "patients.csv", index=False)
    return tmp_path / "patients.csv"


SETTINGS: dict[str, Any] = {"data": "patients.csv", "table": {"client": "clinic", "target": "ill"}}


def test_a_path_in_a_configuration_becomes_absolute_and_its_defaults_are_a_tables(csv):
    config = resolve(SETTINGS)
    assert config.data.name == str(csv)
    assert config.data.split == "natural"
    assert config.model.settings == {"hidden": [32]}
    assert resolve(config.model_dump(mode="json")) == config


def test_a_configuration_gives_the_federation_of_the_table(csv):
    parts = {"validation": 0.2, "test_fraction": 0.5}
    ready = start.prepare(SETTINGS, method="fedavg", rounds=1, seed=3, data=parts)
    same(ready.federation, federation(seed=3, name="patients", **parts))
    alone = start.prepare(SETTINGS, method="separate", rounds=1, seed=3, data=parts)
    same(alone.federation, federation(seed=3, name="patients", statistics="own", **parts))


def test_settings_laid_over_a_name_keep_the_name(csv):
    for first, second in (("patients.csv", {"validation": 0.2}), ({"validation": 0.2}, "patients.csv")):
        config = resolve(merge({"data": first}, {"data": second}))
        assert (config.data.name, config.data.validation) == (str(csv), 0.2)


def test_a_run_on_a_changed_file_is_refused_and_a_new_one_is_not_taken_for_the_same(csv):
    first = start.prepare(SETTINGS, method="separate").config
    assert first.data.digest is not None
    assert start.prepare(first).config == first
    cell(FRAME, 5, "age", 33).to_csv(csv, index=False)
    with pytest.raises(TableError, match=r"patients\.csv is not the file this run began with.*without data\.digest"):
        start.prepare(first)
    assert start.prepare(SETTINGS, method="separate").config.data.digest != first.data.digest


def test_a_folders_digest_is_of_all_its_files_and_their_names(tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("a,y\n1,0\n2,1\n3,1\n")
    first = from_tables.digest_of(tmp_path)
    assert from_tables.digest_of(tmp_path) == first
    (tmp_path / "b.csv").rename(tmp_path / "c.csv")
    second = from_tables.digest_of(tmp_path)
    (tmp_path / "c.csv").write_text("a,y\n1,1\n")
    assert len({first, second, from_tables.digest_of(tmp_path)}) == 3


def test_runs_are_named_after_the_file_and_two_files_of_one_name_are_not_compared(csv, tmp_path):
    quick = {"rounds": 1, "method": "separate", "local": {"epochs": 1}}
    one = run.run(SETTINGS, **quick)
    assert one.path.name == "patients-natural-separate-seed0"
    assert one.summary["data"] == "patients"
    (tmp_path / "later").mkdir()
    cell(FRAME, 5, "age", 33).to_csv(tmp_path / "later" / "patients.csv", index=False)
    other = run.run(SETTINGS, **quick, seed=1, data={"name": "later/patients.csv"})
    with pytest.raises(ValueError, match=r"these differ \(patients \([0-9a-f]{8}\), natural.*; patients \("):
        comparison.by_method([one, other])
    assert comparison.by_method([one])


def test_a_table_has_clients_of_its_own(csv):
    with pytest.raises(UnknownData, match=r"patients has clients of its own: leave out data\.split = 'iid'"):
        start.prepare(SETTINGS, data={"split": "iid"})
    with pytest.raises(UnknownData, match=r"patients has clients of its own: leave out data\.clients = 3"):
        start.prepare(SETTINGS, data={"clients": 3})


def test_names_of_data_sets_come_before_folders_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert resolve({"data": "digits"}).data.name == "digits"
    (tmp_path / "clinics").mkdir()
    assert resolve({"data": "clinics"}).data.name == str(tmp_path / "clinics")
    with pytest.raises(TableError, match=r"There is no file .*gone\.csv"):
        start.prepare({"data": "gone.csv", "table": SETTINGS["table"]})
    with pytest.raises(TableError, match=r"not a table: \.csv"):
        (tmp_path / "sheet.xlsx").touch()
        start.prepare({"data": "sheet.xlsx"})
    with pytest.raises(UnknownData, match="There is no data set 'clinix'"):
        resolve({"data": "clinix"})


def test_the_settings_of_a_table_are_checked_as_all_settings_are(csv):
    with pytest.raises(ConfigError, match=r"There is no setting 'table\.clients'"):
        resolve({"data": "patients.csv", "table": {"clients": "clinic"}})


@pytest.mark.parametrize("setting", ["ignore", "categorical"])
def test_one_name_is_a_list_of_one(setting):
    same(federation(**{setting: "age"}), federation(**{setting: ["age"]}))


def test_one_mark_is_a_list_of_one():
    for mark in ("?", -9):
        frame = cell(FRAME, 5, "age", mark)
        same(federation(frame, missing=mark), federation(frame, missing=[mark]))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"client": "clinic", "target": "ill"}, "table.client and table.target are for tables"),
        ({"client": "clinic"}, "table.client is for tables"),
        ({"target": "ill"}, "table.target is for tables"),
        ({"group": "patient"}, "table.group is for tables"),
    ],
)
def test_columns_of_a_data_set_that_is_no_table_are_refused(table, said):
    sentence = f"{said}, but data.name = 'digits' is none: say which with --data patients.csv."
    for raw in ({}, {"data": "digits"}):
        with pytest.raises(ConfigError) as caught:
            resolve({**raw, "table": table})
        assert str(caught.value) == sentence


def test_columns_of_tables_may_be_named(csv):
    for name in ("patients.csv", "heart"):
        assert resolve({"data": name, "table": {"target": "ill"}}).table.target == "ill"
    assert resolve({"data": "heart"}).table.client == "hospital"


def test_preprocessing_and_task_tell_everything_a_prediction_needs():
    found = federation()
    assert isinstance(found.clients[0].preprocessing, TablePreprocessing)
    assert isinstance(found.task, Task)
    assert found.task.class_names == ("no", "yes")


# ---- what may surprise ----


def measured(units: dict[str, float], names: dict[str, tuple[str, str]] | None = None) -> pd.DataFrame:
    """Silos of fifty rows with a glucose in their own unit, and answers in their own spelling."""
    source, parts = np.random.default_rng(0), []
    for silo, unit in units.items():
        x = source.normal(6, 1, 50)
        no, yes = (names or {}).get(silo, ("no", "yes"))
        answers = np.where(x + source.normal(size=50) > 6, yes, no)
        parts.append(pd.DataFrame({"silo": silo, "glucose": x * unit, "age": source.normal(60, 9, 50), "y": answers}))
    return pd.concat(parts)


def test_a_column_in_another_unit_in_one_silo_is_told() -> None:
    """It made every silo's shared scaling wrong: alone they had 56 % in place of 80, and no word was said."""
    chosen = preprocessing.TableSettings(client="silo", target="y")
    notes = from_tables.from_table(measured({"de": 1.0, "fr": 1.0, "us": 18.0}), chosen).notes
    assert sum("'glucose'" in note and "in us" in note and "--statistics own" in note for note in notes) == 1
    assert not any(
        "deviation" in note for note in from_tables.from_table(measured({"de": 1, "fr": 1.5, "us": 1}), chosen).notes
    )


def test_classes_that_differ_in_capitals_alone_are_told() -> None:
    table = measured({"a": 1, "b": 1}, {"b": ("No ", "Yes")})
    notes = from_tables.from_table(table, preprocessing.TableSettings(client="silo", target="y")).notes
    assert any("'Yes', 'yes'" in note or "'yes', 'Yes'" in note for note in notes if "capitals" in note)


def test_what_was_told_of_the_data_stands_on_the_page(tmp_path: Path) -> None:
    """A page that people circulate showed 100 % without the note that a patient's rows were on both sides."""
    measured({"de": 1.0, "fr": 1.0, "us": 18.0}).to_csv(tmp_path / "t.csv", index=False)
    config = {"data": {"name": str(tmp_path / "t.csv")}, "table": {"client": "silo", "target": "y"}, "rounds": 2}
    results = fedkin.compare(config, methods=["separate", "fedavg"], out=tmp_path / "runs")
    assert any("glucose" in note for note in results.runs[0].summary.notes)
    assert "has a deviation of" in results.report().read_text()
