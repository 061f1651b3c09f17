"""Parts that are given, by a column, by files or by frames: they are what is trained, chosen by and tested on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedkin.data.federation import Client, Federation, FederationError
from fedkin.data.table import TableError
from fedkin.engines import start
from fedkin.runs import options

PARTS = ("train", "validation", "test")


def rows(n: int = 120) -> pd.DataFrame:
    """Two silos, the row's number as input, and a fold: in every ten rows of a silo seven, one and two."""
    number = np.arange(n)
    fold = np.array(["train"] * 7 + ["validation"] + ["test"] * 2)[number // 2 % 10]
    return pd.DataFrame(
        {
            "who": np.where(number % 2, "north", "south"),
            "row": number.astype(float),
            "ill": number // 4 % 2,
            "fold": fold,
        }
    )


def federation(frame: Any, **more: Any) -> Federation:
    return Federation.from_table(frame, "who", "ill", scale="none", **more)


def dealt(client: Client) -> dict[str, list[int]]:
    pairs = (client.train, client.validation, client.test)
    return {part: sorted(pair[0][:, 0].int().tolist()) for part, pair in zip(PARTS, pairs, strict=True) if pair}


def said(frame: pd.DataFrame) -> dict[str, dict[str, list[int]]]:
    """What the column says."""
    return {
        who: {part: sorted(own.loc[own["fold"] == part, "row"].astype(int)) for part in PARTS}
        for who, own in frame.groupby("who")
    }


WORDS = [
    {},
    {"train": "Training", "validation": "val", "test": "TEST"},
    {"validation": "valid"},
    {"validation": "dev", "test": "testing"},
]


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_column_fixes_the_parts_whatever_the_seed(words, seed):
    frame = rows()
    found = federation(frame.assign(fold=frame["fold"].replace(words)), fold="fold", seed=seed)
    assert {c.name: dealt(c) for c in found.clients} == said(frame)
    assert all(c.preprocessing.inputs == ("row",) for c in found.clients), "the fold is no input"


def test_what_nobody_says_is_drawn_by_lot_from_the_training_rows():
    frame = rows()
    found = federation(frame.assign(fold=frame["fold"].replace({"validation": "train"})), fold="fold")
    for client in found.clients:
        assert dealt(client)["test"] == said(frame)[client.name]["test"]
        assert len(dealt(client)["validation"]) == 5
    found = federation(frame.assign(fold=frame["fold"].replace({"test": "train"})), fold="fold")
    for client in found.clients:
        assert dealt(client)["validation"] == said(frame)[client.name]["validation"]
        assert len(dealt(client)["test"]) == 14


@pytest.mark.parametrize(
    ("change", "more", "sentence", "kind"),
    [
        (
            lambda f: f.assign(fold=f["fold"].where(f["row"] != 6, "holdout")),
            {"fold": "fold"},
            r"row 6 .*: the fold, column 'fold', is 'holdout'. It has to be train, validation \(or val, valid, dev\)",
            TableError,
        ),
        (
            lambda f: f.assign(fold=f.index % 5),
            {"fold": "fold"},
            "the fold, column 'fold', is '0'. It has to be train",
            TableError,
        ),
        (
            lambda f: f.assign(fold=f["fold"].where(f["row"] != 6)),
            {"fold": "fold"},
            "row 6 .*the fold, column 'fold', is missing",
            TableError,
        ),
        (
            lambda f: f[(f["who"] == "north") | (f["fold"] != "test")],
            {"fold": "fold"},
            "'south' has 42 for training and 0 for testing",
            FederationError,
        ),
        (
            lambda f: f[(f["who"] == "north") | (f["fold"] != "train")],
            {"fold": "fold"},
            "'south' has 0 for training and 12 for testing",
            FederationError,
        ),
        (
            lambda f: f,
            {"fold": "fold", "test": rows()},
            "or table.fold = 'fold' does: leave one of them out",
            TableError,
        ),
        (lambda f: f, {"fold": "folds"}, "no column 'folds', which table.fold names. Did you mean 'fold'", TableError),
    ],
)
def test_folds_that_cannot_be_used_are_refused(change, more, sentence, kind):
    with pytest.raises(kind, match=sentence):
        federation(change(rows()), **more)


def test_a_silo_without_validation_rows_where_others_have_some_is_told():
    frame = rows()
    notes = federation(frame[(frame["who"] == "north") | (frame["fold"] != "validation")], fold="fold").notes
    assert "Validation rows are given, but none of south." in notes


def test_a_small_validation_part_and_one_that_lacks_a_class_are_told_unless_there_is_to_be_none():
    frame = rows(40)
    assert any(
        "too few to choose a model by: north (2), south (2)" in note for note in federation(frame, fold="fold").notes
    )
    assert any("too few to choose" in note for note in federation(frame.drop(columns="fold")).notes)
    assert not any("alidation rows" in note for note in federation(frame.drop(columns="fold"), validation=0.0).notes)
    large = rows(400).assign(ill=lambda f: np.where((f["fold"] == "validation") & (f["who"] == "north"), 0, f["ill"]))
    assert any("lack a class: north (1)" in note for note in federation(large, fold="fold").notes)
    assert not any("alidation" in note for note in federation(rows(400), fold="fold").notes)


# ---- frames and files ----


def test_validation_and_test_frames_are_what_they_are_called():
    frame = rows()
    train, validation, test = (frame[frame["fold"] == part].drop(columns="fold") for part in PARTS)
    found = federation(train, validation=validation, test=test)
    assert {c.name: dealt(c) for c in found.clients} == said(frame)


@pytest.mark.parametrize("stem", ["validation", "val", "valid", "dev"])
def test_validation_files_are_validation_data(stem, tmp_path):
    frame = rows()
    for (who, part), own in frame.groupby(["who", "fold"]):
        (tmp_path / who).mkdir(exist_ok=True)
        name = stem if part == "validation" else part
        own[["row", "ill"]].to_csv(tmp_path / who / f"{name}.csv", index=False)
    found = Federation.from_folder(tmp_path, "ill", scale="none")
    assert {c.name: dealt(c) for c in found.clients} == said(frame)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("stem", ["validation", "val"])
def test_validation_arrays_are_validation_data(stem, packed, tmp_path):
    frame = rows()
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for (who, part), own in frame.groupby(["who", "fold"]):
        suffix = {"train": "", "test": "_test", "validation": f"_{stem}"}[part]
        arrays.setdefault(who, {}).update({f"x{suffix}": own[["row"]].to_numpy(), f"y{suffix}": own["ill"].to_numpy()})
    for who, own in arrays.items():
        (tmp_path / who).mkdir()
        if packed:
            np.savez(tmp_path / who / "data.npz", **own)
        for name, array in () if packed else own.items():
            np.save(tmp_path / who / f"{name}.npy", array)
    found = Federation.from_folder(tmp_path).with_validation(0.5, 0)
    assert {c.name: dealt(c) for c in found.clients} == said(frame)


def test_six_arrays_are_for_training_testing_and_validation():
    frame = rows()
    parts = {part: (own[["row"]].to_numpy(), own["ill"].to_numpy()) for part, own in frame.groupby("fold")}
    (client,) = Federation.from_arrays({"a": (*parts["train"], *parts["test"], *parts["validation"])}).clients
    assert dealt(client) == {part: sorted(x[:, 0].astype(int)) for part, (x, _) in parts.items()} | {}


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (["north/train.csv", "north/validation/a.csv"], "But it holds train.csv, validation"),
        (["north/train.csv", "north/holdout.csv"], "But it holds holdout.csv, train.csv"),
        (["north/train.csv", "north/val.csv", "north/dev.csv"], "But it holds dev.csv, train.csv, val.csv"),
        (
            ["train.csv", "validation.csv", "test.csv"],
            "test.csv, train.csv, validation.csv, which are parts and not clients",
        ),
    ],
)
def test_no_file_is_passed_over_without_a_word(files, sentence, tmp_path: Path):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True, parents=True)
        rows().drop(columns=["who", "fold"]).to_csv(tmp_path / file, index=False)
    with pytest.raises(TableError, match=sentence):
        Federation.from_folder(tmp_path, "ill")


def test_arrays_of_an_unknown_part_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 1)), y=[0, 1, 0, 1], x_vall=np.zeros((2, 1)))
    with pytest.raises(TableError, match="a.npz has an array 'x_vall'; known are x, y, x_test"):
        Federation.from_folder(tmp_path)
    with pytest.raises(FederationError, match="'a' has an array 'x_val'. Known are x, y, .*x_validation"):
        Federation.from_arrays({"a": {"x": np.zeros((4, 1)), "y": [0, 1, 0, 1], "x_val": np.zeros((2, 1))}})
    with pytest.raises(FederationError, match="'a' has no array 'y_test'"):
        Federation.from_arrays({"a": {"x": np.zeros((4, 1)), "y": [0, 1, 0, 1], "x_test": np.zeros((2, 1))}})


def test_a_fold_is_an_option_on_the_command_line(tmp_path: Path):
    frame = rows()
    frame.to_csv(tmp_path / "rows.csv", index=False)
    words = ["--data", str(tmp_path / "rows.csv"), "--client", "who", "--target", "ill", "--fold", "fold"]
    ready = start.prepare(options.parse([*words, "--scale", "none", "--method", "separate", "--rounds", "1"]))
    assert {c.name: dealt(c) for c in ready.federation.clients} == said(frame)


def test_tables_are_split_with_their_share_of_every_class():
    """A tenth of the rows is ill: in every part of every silo about a tenth is, and never none."""
    frame = rows(400).drop(columns="fold").assign(ill=lambda f: np.where(f["row"] // 2 % 10 == 0, "yes", "no"))
    for seed in range(5):
        for client in federation(frame, seed=seed).clients:
            ill = [int((pair[1] == 1).sum()) for pair in (client.train, client.validation, client.test)]
            assert ill == [13, 2, 5] or ill == [14, 1, 5]


def test_shares_of_parts_that_are_given_are_not_ignored_without_a_word():
    given = federation(rows(400), fold="fold", test_fraction=0.5, validation=0.2).notes
    assert [note for note in given if "effect" in note] == [
        "data.test_fraction = 0.5 has no effect: the rows to test on are given.",
        "data.validation = 0.2 has no effect: the validation rows are given.",
    ]
    assert not [note for note in federation(rows(400), fold="fold").notes if "effect" in note]


def test_columns_that_are_named_of_arrays_are_refused(tmp_path: Path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 1)), y=[0, 1, 0, 1])
    with pytest.raises(TableError, match=r"table.group names a column of a table, and .* holds arrays"):
        Federation.from_folder(tmp_path, group="patient")
