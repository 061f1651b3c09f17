"""Preparing rows: statistics that merge, the same numbers as scikit-learn's, and files that give them back."""

from __future__ import annotations

import io
import json
from functools import reduce

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedkin.data.preprocessing import (
    Category,
    Number,
    Pixels,
    PreprocessingError,
    Scaled,
    Statistics,
    TablePreprocessing,
    TableSettings,
    fitted,
    from_json,
)
from fedkin.data.table import TableError, read

SETTINGS = TableSettings()
NUMBERS = st.floats(-1e6, 1e6, allow_nan=False) | st.just(np.nan)
SILOS = st.lists(
    hnp.arrays(np.float64, st.tuples(st.integers(0, 7), st.just(2)), elements=NUMBERS), min_size=1, max_size=5
)


# ---- statistics ----


@given(SILOS)
def test_merged_statistics_are_those_of_the_pooled_rows(silos):
    merged = reduce(Statistics.merge, map(Statistics.of, silos))
    pooled = np.concatenate(silos)
    for k, column in enumerate(pooled.T):
        known = column[~np.isnan(column)]
        assert merged.count[k] == len(known)
        if len(known):
            size = np.abs(known).max()
            assert merged.mean[k] == pytest.approx(known.mean(), rel=1e-9, abs=1e-9 * size + 1e-300)
            # Below the smallest normal number there are fewer digits to agree in.
            slack = max(1e-8 * size**2, np.finfo(np.float64).tiny)
            assert merged.m2[k] == pytest.approx(((known - known.mean()) ** 2).sum(), rel=1e-8, abs=slack)


@given(SILOS, st.randoms())
def test_neither_the_order_nor_the_grouping_of_silos_matters(silos, random):
    one_by_one = reduce(Statistics.merge, map(Statistics.of, silos))
    parts = [Statistics.of(silo) for silo in silos]
    while len(parts) > 1:
        random.shuffle(parts)
        parts.append(parts.pop().merge(parts.pop()))
    np.testing.assert_array_equal(parts[0].count, one_by_one.count)
    np.testing.assert_allclose(parts[0].mean, one_by_one.mean, rtol=1e-9, atol=1e-3)
    np.testing.assert_allclose(parts[0].m2, one_by_one.m2, rtol=1e-8, atol=1e-2)


def test_large_offsets_do_not_eat_the_deviation():
    """The sum of squares less the square of the sum would give nonsense here."""
    rows = 1e9 + np.random.default_rng(0).normal(size=(300, 1))
    merged = reduce(Statistics.merge, [Statistics.of(part) for part in np.split(rows, 3)])
    assert merged.deviation[0] == pytest.approx(rows.std(), rel=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9 / 3, -7e-9])
def test_a_constant_or_empty_column_is_divided_by_one(value):
    parts = [Statistics.of(np.full((n, 1), value)) for n in (3, 7, 11)]
    assert reduce(Statistics.merge, parts).deviation.tolist() == [1]
    assert Statistics.of(np.full((4, 1), np.nan)).deviation.tolist() == [1]


def test_a_silo_shares_counts_means_and_deviations_and_nothing_else():
    assert set(vars(Statistics.of(np.zeros((5, 2))))) == {"count", "mean", "m2"}
    assert all(v.shape == (2,) for v in vars(Statistics.of(np.zeros((5, 2)))).values())


# ---- inputs ----


def rows(n: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.normal(50, 9, n),
            "chol": np.where(rng.random(n) < 0.3, np.nan, rng.normal(240, 50, n)),
            "cp": rng.choice([1, 2, 3, 4], n),
            "town": rng.choice(["Bern", "Ulm", None], n),
        }
    )


def prepared(frame: pd.DataFrame, settings: TableSettings = SETTINGS, **more: list[float]) -> TablePreprocessing:
    columns = [
        Number("age"),
        Number("chol", indicator=True),
        Category("cp", categories=("1", "2", "3", "4")),
        Category("town", categories=("Bern", "Ulm")),
    ]
    return fitted(columns, Statistics.of(frame[["age", "chol"]].to_numpy()), settings, **more)


@pytest.mark.parametrize("fill", ["mean", "median"])
@pytest.mark.parametrize("scale", ["standard", "none"])
def test_inputs_are_scikit_learns(fill, scale):
    train, new = rows(80), rows(50, seed=1)
    numeric = ["age", "chol"]
    medians = np.nanmedian(train[numeric], axis=0).tolist()
    found = prepared(train, TableSettings(fill=fill, scale=scale), **({"medians": medians} if fill == "median" else {}))
    filled = SimpleImputer(strategy=fill).fit(train[numeric]).transform(new[numeric])
    scaler = StandardScaler().fit(train[numeric])  # leaves gaps out of its means and deviations
    expected = np.hstack(
        [
            scaler.transform(pd.DataFrame(filled, columns=numeric)) if scale == "standard" else filled,
            MissingIndicator(features="all").fit_transform(new[["chol"]]),
            OneHotEncoder(categories=[[1, 2, 3, 4]], sparse_output=False).fit_transform(new[["cp"]]),
            OneHotEncoder(categories=[["Bern", "Ulm"]], handle_unknown="ignore", sparse_output=False).fit_transform(
                new[["town"]].fillna("nowhere")
            ),
        ]
    )
    inputs = found.module()(found.read(new))
    assert inputs.dtype == torch.float32
    np.testing.assert_allclose(inputs.numpy(), expected, rtol=1e-6, atol=1e-6)
    assert found.inputs == ("age", "chol", "chol missing", *(f"cp={i}" for i in (1, 2, 3, 4)), "town=Bern", "town=Ulm")


def test_columns_may_come_in_any_order_and_others_are_passed_over():
    frame = rows(20)
    found = prepared(frame)
    mixed = frame[["town", "chol", "cp", "age"]].assign(target="?", when=pd.Timestamp("2020-01-01"))
    torch.testing.assert_close(found.read(mixed), found.read(frame), rtol=0, atol=0, equal_nan=True)


def test_raw_numbers_are_numbers_as_they_are_and_categories_by_their_place():
    found = prepared(rows(20)).read([{"age": 63, "chol": None, "cp": "4.0", "town": "Ulm"}])
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, torch.tensor([[63.0, np.nan, 3.0, 1.0]]).double(), equal_nan=True)


def test_an_unknown_category_is_no_category_and_told():
    found = prepared(rows(20))
    new = read({"age": [50, 50], "chol": [200, 200], "cp": [9, 1], "town": ["Rome", None]})
    inputs = found.module()(found.read(new))
    assert inputs[0, 3:].tolist() == [0] * 6
    assert inputs[1, 3:].tolist() == [1, 0, 0, 0, 0, 0]
    assert [note.partition(" did")[0] for note in found.notes(new)] == ["Column 'cp': '9'", "Column 'town': 'Rome'"]
    assert found.notes(rows(5)) == []


@pytest.mark.parametrize("kinds", [(Number,), (Category,), (Number, Category)])
def test_numbers_alone_and_categories_alone_are_inputs_too(kinds):
    columns = [Number("a", mean=1.0, scale=2.0), Category("b", categories=("x", "y"))]
    found = TablePreprocessing(tuple(c for c in columns if isinstance(c, kinds)))
    inputs = found.module()(found.read({"a": [5], "b": ["y"]}))
    assert inputs.tolist() == [[2.0] * (Number in kinds) + [0.0, 1.0] * (Category in kinds)]
    assert inputs.shape[1] == len(found.inputs)


def test_a_declared_mark_is_missing_at_prediction_too():
    found = TablePreprocessing(
        (Number("chol", missing=(0.0, "?"), indicator=True, mean=200.0, scale=10.0, fill=200.0),)
    )
    for cells in (["0", "?", "210"], [0.0, None, 210]):
        assert found.module()(found.read({"chol": cells})).tolist() == [[0, 1], [0, 1], [1, 0]]


def test_a_missing_column_is_refused_with_the_nearest_name():
    found = prepared(rows(20))
    with pytest.raises(PreprocessingError, match=r"no column 'chol' \(is it 'Chol'\?\), which the model reads"):
        found.read(rows(3).rename(columns={"chol": "Chol"}))


def test_text_in_a_column_of_numbers_is_refused_at_prediction():
    with pytest.raises(TableError, match="column 'age' is 'old', but it was a column of numbers in training"):
        prepared(rows(20)).read(rows(3).assign(age="old"))


# ---- files ----

MARKS = st.lists(st.text(max_size=3) | st.floats(allow_nan=False, allow_infinity=False), max_size=2).map(tuple)
FINITE = st.floats(-1e9, 1e9)
COLUMNS = st.one_of(
    st.builds(Number, st.just(""), MARKS, st.booleans(), FINITE, st.floats(1e-6, 1e6), FINITE),
    st.builds(
        Category, st.just(""), MARKS, st.lists(st.text(max_size=4), min_size=1, max_size=4, unique=True).map(tuple)
    ),
)


@given(st.lists(COLUMNS, min_size=1, max_size=5), st.integers(0, 2**31))
def test_what_was_saved_is_read_back_exactly(columns, seed):
    named = tuple(type(c)(**{**vars(c), "name": f"c{i}"}) for i, c in enumerate(columns))
    before = TablePreprocessing(named)
    after = from_json(json.loads(json.dumps(before.to_json())))
    assert after == before
    raw = torch.randint(0, 5, (6, len(named)), generator=torch.Generator().manual_seed(seed)).double()
    raw[raw == 4] = torch.nan
    torch.testing.assert_close(after.module()(raw), before.module()(raw), rtol=0, atol=0)


def test_pixels_are_read_back():
    pixels = Pixels((1, 2, 2), 255, (0.1,), (0.3,))
    assert from_json(json.loads(json.dumps(pixels.to_json()))) == pixels


@pytest.mark.parametrize(("mean", "scale"), [((5.0,), (2.0,)), ((1.0, -2.0), (0.5, 4.0))])
def test_scaled_numbers(mean, scale):
    scaled = Scaled((3, 2), mean, scale)
    assert from_json(json.loads(json.dumps(scaled.to_json()))) == scaled
    raw = np.random.default_rng(0).normal(size=(4, 3, 2))
    expected = (raw - np.array(mean)) / np.array(scale)
    found = scaled.module()(scaled.read(raw))
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(scaled.module()(scaled.read(raw[0])), expected[:1], rtol=1e-6)
    with pytest.raises(PreprocessingError, match=r"shape \(3, 2\) are needed"):
        scaled.read(raw[:, :2])
    with pytest.raises(PreprocessingError, match="NaN or infinite numbers"):
        scaled.read(np.full((3, 2), np.nan))


@pytest.mark.parametrize(
    ("saved", "sentence"),
    [
        ({"kind": "words"}, "no preprocessing of kind 'words'; the file is of a newer fedkin"),
        ({}, "cannot be read"),
        ({"kind": "table"}, "cannot be read"),
        ({"kind": "table", "columns": [{"kind": "number", "colour": 3}]}, "cannot be read"),
        ({"kind": "table", "columns": [3]}, "cannot be read"),
    ],
)
def test_a_damaged_or_newer_file_is_refused(saved, sentence):
    with pytest.raises(PreprocessingError, match=sentence):
        from_json(saved)


@pytest.mark.parametrize("few", [None, Number, Category])
def test_the_module_gives_the_same_under_onnxruntime(few, recwarn):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    found = prepared(rows(40))
    if few:
        found = TablePreprocessing(tuple(c for c in found.columns if isinstance(c, few)))
    raw = found.read(rows(30, seed=2))
    buffer = io.BytesIO()
    program = torch.onnx.export(
        found.module(), (raw,), dynamo=True, dynamic_shapes=({0: torch.export.Dim("n")},), verbose=False
    )
    program.save(buffer)
    session = onnxruntime.InferenceSession(buffer.getvalue())
    for part in (raw, raw[:7]):
        (given,) = session.run(None, {session.get_inputs()[0].name: part.numpy()})
        np.testing.assert_allclose(given, found.module()(part).numpy(), rtol=1e-6, atol=1e-6)
