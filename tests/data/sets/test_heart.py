"""The four heart-disease hospitals, from the real files: what they hold, and the same federation from one CSV."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import SHARED

import fedkin
from fedkin import data
from fedkin.data import from_tables
from fedkin.data.federation import Client, Federation
from fedkin.data.files import DataError
from fedkin.data.preprocessing import TableSettings
from fedkin.data.sets import heart
from fedkin.data.table import TableError
from fedkin.engines import start
from fedkin.runs.config import resolve

FOLDER = SHARED
# UCI's `Index` and heart-disease.names: rows, rows with disease (num > 0), missing cells.
HOSPITALS = {
    "cleveland": ("cleveland", 303, 139, 6),
    "hungary": ("hungarian", 294, 106, 782),
    "switzerland": ("switzerland", 123, 115, 273),
    "va": ("va", 200, 149, 698),
}
COLUMNS = "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal".split()  # noqa: SIM905
SETTINGS: dict[str, Any] = {
    "categorical": ["cp", "restecg", "slope", "thal"],
    "missing_in": {"chol": [0], "trestbps": [0]},
}


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    if not (FOLDER / "heart-disease").is_dir():
        pytest.skip("the data sets' files are not beside this repository, in ../shared/data")
    monkeypatch.setenv("FEDKIN_DATA", str(FOLDER))


def frame() -> pd.DataFrame:
    """The files as pandas reads them."""
    parts = []
    for hospital, (stem, *_) in HOSPITALS.items():
        path = FOLDER / "heart-disease" / f"processed.{stem}.data"
        part = pd.read_csv(path, header=None, names=[*COLUMNS, "num"], na_values="?")
        parts.append(part.assign(hospital=hospital))
    return pd.concat(parts, ignore_index=True)


def all_parts(client: Client) -> list[tuple[torch.Tensor, torch.Tensor]]:
    assert client.validation is not None
    return [client.train, client.validation, client.test]


def same(one: Federation, other: Federation) -> None:
    assert one.names == other.names
    assert one.task == other.task
    assert one.notes == other.notes
    for a, b in zip(one.clients, other.clients, strict=True):
        assert a.preprocessing == b.preprocessing
        for (x, y), (u, v) in zip(all_parts(a), all_parts(b), strict=True):
            torch.testing.assert_close(x, u, rtol=0, atol=0)
            torch.testing.assert_close(y, v, rtol=0, atol=0)


def test_the_table_is_what_pandas_reads_and_1759_cells_are_missing():
    table, expected = heart.table(), frame()
    assert list(table.columns) == ["hospital", *COLUMNS, "disease"]
    assert table["hospital"] == expected["hospital"].tolist()
    assert table["disease"] == np.where(expected["num"] > 0, "yes", "no").tolist()
    missing: Counter[str] = Counter()
    for column in COLUMNS:
        found = np.array([np.nan if cell is None else cell for cell in table[column]])
        np.testing.assert_array_equal(found, expected[column])
        missing.update(np.array(table["hospital"])[np.isnan(found)].tolist())
    assert missing == {hospital: gaps for hospital, (*_, gaps) in HOSPITALS.items()}
    assert missing.total() == 1759


def test_every_patient_is_dealt_to_its_hospital_once_with_the_right_diagnosis():
    federation = data.load("heart")
    assert federation.split == "natural"
    assert federation.task.class_names == ("no", "yes")
    for client in federation.clients:
        _, rows, ill, _ = HOSPITALS[client.name]
        assert sum(len(y) for _, y in all_parts(client)) == rows
        assert sum(int(y.sum()) for _, y in all_parts(client)) == ill
        again = client.preprocessing.module()(client.preprocessing.read(frame()[frame()["hospital"] == client.name]))
        dealt = torch.cat([x for x, _ in all_parts(client)])
        assert sorted(map(tuple, again.tolist())) == sorted(map(tuple, dealt.tolist()))


def test_the_inputs_are_nine_numbers_their_gaps_and_four_columns_of_categories():
    (inputs,) = {c.preprocessing.inputs for c in data.load("heart").clients}
    assert [name for name in inputs if name in COLUMNS] == sorted(set(COLUMNS) - set(SETTINGS["categorical"]))
    assert {name.partition("=")[0] for name in inputs if "=" in name} == set(SETTINGS["categorical"])
    assert {"chol missing", "trestbps missing", "ca missing"} <= set(inputs)
    assert "age missing" not in inputs


def test_cholesterol_is_missing_in_switzerland_and_that_is_told():
    assert data.load("heart").notes == ("Column 'chol' is empty in all training rows of switzerland.",)
    (note,) = data.load("heart", table=TableSettings(**{**heart.DEFAULTS["table"], "missing_in": {}})).notes
    assert note == (
        "Column 'chol' is 0 in all training rows of switzerland, and varies elsewhere. "
        "If 0 means missing there, declare it: --missing-in '{chol = [0]}' (table.missing_in = {chol = [0]})."
    )


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_one_file_with_a_client_column_gives_the_same_federation_tensor_for_tensor(suffix, tmp_path):
    path = from_tables.export("heart", tmp_path / f"heart{suffix}")
    found = Federation.from_table(path, "hospital", "disease", seed=3, **SETTINGS)
    same(found, data.load("heart", seed=3))


def test_the_same_in_one_configuration(tmp_path):
    path = from_tables.export("heart", tmp_path / "heart.csv")
    built_in = start.prepare(data="heart", seed=2)
    table = {"client": "hospital", "target": "disease", **SETTINGS}
    own = start.prepare(data=str(path), seed=2, table=table)
    same(own.federation, built_in.federation)
    assert own.config.table == built_in.config.table
    assert own.config.local == built_in.config.local
    assert own.config.model == built_in.config.model


def test_the_four_files_as_a_folder_of_one_table_a_client_give_it_too(tmp_path):
    whole = frame().assign(disease=lambda t: np.where(t["num"] > 0, "yes", "no")).drop(columns="num")
    for hospital, rows in whole.groupby("hospital"):
        rows.drop(columns="hospital").to_csv(tmp_path / f"{hospital}.csv", index=False)
    same(Federation.from_folder(tmp_path, "disease", **SETTINGS), data.load("heart"))


def test_a_users_settings_win():
    config = resolve({"data": "heart", "table": {"statistics": "own", "categorical": ["cp"]}})
    assert config.table.statistics == "own"
    assert config.table.categorical == ["cp"]
    assert config.table.target == "disease"
    assert len({c.preprocessing for c in data.load("heart", table=config.table).clients}) == 4


def test_a_short_run_is_better_than_guessing(tmp_path):
    run = fedkin.run(data="heart", method="fedamp", rounds=3, out=tmp_path / "run")
    share = np.mean([max(ill, rows - ill) / rows for _, rows, ill, _ in HOSPITALS.values()])
    assert run.summary["models"]["cloud"]["bmta"] > share


def test_damaged_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    (tmp_path / "heart-disease").mkdir()
    for file in (FOLDER / "heart-disease").iterdir():
        (tmp_path / "heart-disease" / file.name).write_bytes(file.read_bytes())
    va = tmp_path / "heart-disease" / "processed.va.data"
    for damage in (
        "63,1,4\n",
        va.read_text() + "63,1,4,140,260,0,1,112,1,3,2,?,?,?\n",
        "63,1,4,x,260,0,1,112,1,3,2,?,?,2\n",
    ):
        va.write_text(damage)
        with pytest.raises(DataError, match=r"processed\.va\.data"):
            data.load("heart")
        with pytest.raises(DataError, match=r"processed\.va\.data, line \d+ is not a row of 13 numbers and `num`"):
            data.load("heart", verify=False)


def test_only_tables_are_exported_and_only_as_tables(tmp_path):
    with pytest.raises(TableError, match=r"written to a \.csv, \.tsv, \.parquet file, not to heart\.xlsx"):
        from_tables.export("heart", tmp_path / "heart.xlsx")
    with pytest.raises(TableError, match="Data set 'digits' is not a table"):
        from_tables.export("digits", tmp_path / "digits.csv")
    with pytest.raises(data.UnknownData, match="There is no data set 'hearts'. Did you mean 'heart'"):
        from_tables.export("hearts", tmp_path / "heart.csv")
    assert not list(tmp_path.iterdir())


def test_a_table_is_no_pool_of_samples():
    with pytest.raises(data.UnknownData, match="'heart' is a table, not a pool of samples"):
        data.source("heart")
