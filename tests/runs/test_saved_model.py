"""A saved model loads into the network it came from and answers as the run did; no file can make it do more."""

from __future__ import annotations

import io
import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from helpers import BASE, SHARED, normed, simulate, toy
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import fedkin
from fedkin.data.preprocessing import Category, Number, Pixels, TablePreprocessing
from fedkin.errors import FedkinError
from fedkin.runs import saved_model
from fedkin.runs.export import prediction_file
from fedkin.runs.saved_model import Complete, Prediction, Saved, SavedError
from fedkin.training import evaluation, models

NAMES = ("calm", "ill", "dying")


def network(seed: int = 0, inputs: tuple[int, ...] = (4,), outputs: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return models.build("mlp", inputs, outputs, {"hidden": [5]})


def write(path: Path, tensors: dict[str, Tensor] | None = None, **told: Any) -> Path:
    """A model file as a run would write it; `told` is laid over what it says of itself, None takes a key out."""
    about: dict[str, Any] = {
        "client": "north",
        "method": "fedamp",
        "chosen": "cloud",
        "predictor": None,
        "model": {"name": "mlp", "settings": {"hidden": [5]}},
        "task": {"kind": "classification", "inputs": [4], "outputs": 3},
        "classes": [],
    }
    about = {key: value for key, value in (about | told).items() if value is not None}
    save_file(tensors or network().state_dict(), path, {"fedkin": json.dumps(about)})
    return path


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "north.safetensors"


def rows(n: int = 7, seed: int = 1) -> Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))


def answer(path: Path, **arguments: Any) -> str:
    with pytest.raises(FedkinError) as caught:
        Saved.load(path, **arguments)
    sentence = str(caught.value)
    assert sentence[-1] in ".?" and "\n" not in sentence, sentence
    return sentence


# ---- what is loaded ----


def test_a_model_file_says_what_it_is(file):
    model = Saved.load(write(file, classes=list(NAMES)))
    assert (model.client, model.method, model.chosen, model.classes) == ("north", "fedamp", "cloud", NAMES)
    assert (model.task.kind, model.task.inputs, model.task.outputs) == ("classification", (4,), 3)
    assert model.preprocessing is None
    assert "north" in repr(model)


def test_probabilities_are_the_softmax_of_the_networks_outputs(file):
    x = rows()
    with torch.no_grad():
        outputs = network().eval()(x)
    found = Saved.load(write(file, classes=list(NAMES))).predict(x)
    shares = torch.exp(outputs) / torch.exp(outputs).sum(1, keepdim=True)
    assert np.allclose(found.probabilities, shares, rtol=1e-6)
    assert list(found.labels) == [NAMES[k] for k in outputs.argmax(1)]
    assert len(found) == 7


def test_classes_without_names_are_numbers(file):
    found = Saved.load(write(file)).predict(rows())
    assert found.labels.dtype.kind == "i"
    assert set(found.labels) <= {0, 1, 2}
    assert list(found.frame().columns) == ["prediction", "probability_0", "probability_1", "probability_2"]


def test_loading_draws_no_random_numbers(file):
    write(file)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    Saved.load(file)
    assert torch.equal(torch.rand(3), expected)


def test_the_network_is_in_evaluation_mode_with_the_clients_statistics(file):
    torch.manual_seed(0)
    module = normed((4,), 3)
    for _ in range(3):
        module(rows(20, seed=3) * 5 + 2)
    tensors = {n: t for n, t in module.state_dict().items() if t.is_floating_point()}
    model = Saved.load(write(file, tensors, model={"name": "helpers:normed"}), model=normed)
    assert not any(part.training for part in model.module.modules())
    x = rows()
    with torch.no_grad():
        expected = module.eval()(x).softmax(1)
    assert torch.allclose(torch.tensor(model.predict(x).probabilities), expected, rtol=1e-6)
    assert int(model.network[1].num_batches_tracked) == 0, "not saved, so the fresh module's"
    again = model.predict(x)
    assert np.array_equal(again.probabilities, model.predict(x).probabilities), "asking changes nothing"


def test_a_run_in_double_precision_stays_so(file):
    module = network().double()
    model = Saved.load(write(file, module.state_dict()))
    x = rows().double()
    with torch.no_grad():
        expected = module(x).softmax(1).numpy()
    found = model.predict(x.numpy()).probabilities
    assert found.dtype == np.float64
    assert np.allclose(found, expected, rtol=1e-14)


def test_mixed_outputs_are_alpha_of_the_own_and_the_rest_of_the_global_model(file):
    v, w, alpha = network(1), network(2), torch.tensor(0.3)
    tensors = {f"v.{n}": t for n, t in v.state_dict().items()} | {f"w.{n}": t for n, t in w.state_dict().items()}
    model = Saved.load(write(file, tensors | {"alpha": alpha}, predictor="mixed_outputs"))
    x = rows()
    with torch.no_grad():
        expected = (0.3 * v(x) + 0.7 * w(x)).softmax(1)
    assert np.allclose(model.predict(x).probabilities, expected, rtol=1e-5)


def test_every_predictor_of_a_method_can_be_loaded():
    assert set(saved_model.NETWORKS) == set(evaluation.PREDICTORS)


def test_a_regression_answers_in_the_targets_own_units(file):
    module = network(outputs=1)
    told = {"kind": "regression", "inputs": [4], "outputs": 1}
    model = Saved.load(write(file, module.state_dict(), task=told, target={"mean": 100.0, "scale": 20.0}))
    x = rows()
    with torch.no_grad():
        expected = 100 + 20 * module(x)[:, 0]
    found = model.predict(x)
    assert found.labels is None and found.probabilities is None
    assert np.allclose(found.values, expected, rtol=1e-6)
    assert list(found.frame().columns) == ["prediction"]


def test_a_regression_without_units_answers_what_the_network_does(file):
    module = network(outputs=2)
    model = Saved.load(
        write(file, module.state_dict(), task={"kind": "regression", "inputs": [4], "outputs": 2}, target=None)
    )
    x = rows()
    with torch.no_grad():
        assert np.allclose(model.predict(x).values, module(x), rtol=1e-6)
    assert list(model.predict(x).frame().columns) == ["prediction_0", "prediction_1"]


def test_pixels_are_prepared_as_in_training(file):
    pixels = Pixels((1, 2, 2), 255.0, (0.5,), (0.25,))
    module = network(inputs=(1, 2, 2))
    told = {"kind": "classification", "inputs": [1, 2, 2], "outputs": 3}
    model = Saved.load(write(file, module.state_dict(), task=told, preprocessing=pixels.to_json()))
    grey = np.random.default_rng(0).integers(0, 256, (6, 2, 2), dtype=np.uint8)
    with torch.no_grad():
        expected = module((torch.tensor(grey).float()[:, None] / 255 - 0.5) / 0.25).softmax(1)
    assert np.allclose(model.predict(grey).probabilities, expected, rtol=1e-5)


def test_the_complete_module_gives_what_predict_gives(file):
    model = Saved.load(write(file))
    assert isinstance(model.module, Complete)
    with torch.no_grad():
        assert np.array_equal(model.module(rows()).numpy(), model.predict(rows()).probabilities)


def test_one_row_and_many_get_the_same_answers(file, monkeypatch):
    model = Saved.load(write(file))
    x = rows(10_001)
    many = model.predict(x)
    assert many.probabilities.shape == (10_001, 3)
    for i in (0, 4095, 4096, 10_000):
        one = model.predict(x[i])  # without the dimension of rows
        assert np.allclose(one.probabilities[0], many.probabilities[i], rtol=1e-6)
        assert one.labels[0] == many.labels[i]
    seen = []
    forward = model.network.forward
    monkeypatch.setattr(model.network, "forward", lambda x: seen.append(len(x)) or forward(x))
    model.predict(x)
    assert max(seen) <= 4096 and sum(seen) == 10_001


def test_integers_and_lists_are_numbers_too(file):
    model = Saved.load(write(file))
    whole = [[1, 2, 3, 4], [0, 0, 1, 1]]
    expected = model.predict(torch.tensor(whole).float()).probabilities
    for given in (whole, np.array(whole), np.array(whole, dtype=np.uint8), torch.tensor(whole)):
        assert np.array_equal(model.predict(given).probabilities, expected)


def test_labels_follow_the_outputs_where_rounding_makes_probabilities_equal(file):
    linear = {"head.weight": torch.zeros(3, 4), "head.bias": torch.tensor([0.01, 0.010000001, -1.0])}
    found = Saved.load(write(file, linear, model={"name": "logistic"})).predict(rows(2))
    assert found.probabilities[0, 0] == found.probabilities[0, 1]
    assert list(found.labels) == [1, 1]


# ---- ones own networks ----


@pytest.mark.parametrize("own", [normed, "helpers:normed", normed((4,), 3)])
def test_an_own_network_is_given_again(file, own):
    torch.manual_seed(3)
    module = normed((4,), 3).eval()
    tensors = {n: t for n, t in module.state_dict().items() if t.is_floating_point()}
    write(file, tensors, model={"name": "somewhere.else:normed"})
    with torch.no_grad():
        expected = module(rows()).softmax(1)
    assert np.allclose(Saved.load(file, model=own).predict(rows()).probabilities, expected, rtol=1e-5)


def test_a_module_that_was_given_is_not_changed(file):
    mine = network(9)
    before = {n: t.clone() for n, t in mine.state_dict().items()}
    Saved.load(write(file), model=mine)
    assert all(torch.equal(t, before[n]) for n, t in mine.state_dict().items())
    assert mine.training


def test_the_factory_gets_the_recorded_settings(file):
    def factory(inputs: tuple[int, ...], outputs: int, wide: int) -> nn.Module:
        return models.build("mlp", inputs, outputs, {"hidden": [wide]})

    write(file, model={"name": "mine:factory", "settings": {"wide": 5}})
    assert Saved.load(file, model=factory).predict(rows()).probabilities.shape == (7, 3)


def test_a_file_cannot_make_us_import_anything(file, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "trap.py").write_text("from pathlib import Path\nPath('sprung').touch()\ndef factory(): pass\n")
    monkeypatch.chdir(tmp_path)
    for name in ("trap:factory", "os:system", "fedkin.training.models:mlp"):
        write(file, model={"name": name, "settings": {"command": "touch sprung"}})
        sentence = answer(file)
        assert repr(name) in sentence and "model=" in sentence and "--model package.module:factory" in sentence
    assert "trap" not in sys.modules
    assert not (tmp_path / "sprung").exists()


# ---- refusals ----


def test_a_file_that_is_missing_or_a_folder(tmp_path):
    assert "There is no model file" in answer(tmp_path / "absent.safetensors")
    assert "There is no model file" in answer(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_truncated_file(file, keep):
    write(file)
    file.write_bytes(file.read_bytes()[:keep])
    assert "it is damaged, cut short or something else" in answer(file)


def test_a_file_of_something_else(file):
    file.write_text("patients, diagnoses\n" * 10)
    assert "cannot be read as safetensors" in answer(file)
    file.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    assert "cannot be read as safetensors" in answer(file)


def test_safetensors_of_someone_else(file):
    save_file(network().state_dict(), file)
    assert "is no model that fedkin saved" in answer(file)


@pytest.mark.parametrize("text", ["{", "", "[" * 100_000, "[1, 2]", '"fedamp"'])
def test_metadata_that_is_no_json_object(file, text):
    save_file(network().state_dict(), file, {"fedkin": text})
    assert "the file is damaged" in answer(file)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"version": 2}, "was written by a newer fedkin (its metadata has version 2, this one reads 1)"),
        ({"client": None}, "wrong at 'client': field required"),
        ({"task": {"kind": "dreams", "inputs": [4], "outputs": 3}}, "wrong at 'task.kind'"),
        ({"task": {"kind": "classification", "inputs": [-4], "outputs": 3}}, "wrong at 'task.inputs.0'"),
        ({"task": {"kind": "classification", "inputs": "many", "outputs": 3}}, "wrong at 'task.inputs'"),
        ({"model": "mlp"}, "wrong at 'model'"),
        ({"target": {"mean": "high"}}, "wrong at 'target.mean'"),
        ({"classes": ["well", "ill"]}, "names 2 classes, but its model has 3 outputs"),
        ({"predictor": "oracle"}, "needs the predictor 'oracle', which this fedkin does not have"),
        ({"model": {"name": "mlpp"}}, "There is no model 'mlpp' (perhaps 'mlp' is meant)"),
        ({"model": {"name": "mlp", "settings": {"hiden": [5]}}}, "perhaps 'hidden' is meant"),
        ({"preprocessing": {"kind": "magic"}}, "There is no preprocessing of kind 'magic'"),
        ({"preprocessing": {"kind": "pixels"}}, "The preprocessing of this model cannot be read"),
        ({"preprocessing": {"kind": "pixels", "shape": 4, "divide": 1, "mean": [0], "std": [1]}}, "cannot be read"),
        ({"preprocessing": Pixels((7,), 1.0, (0.0,), (1.0,)).to_json()}, "does not fit its model"),
        ({"preprocessing": {"kind": "pixels", "shape": [4], "divide": "a", "mean": [0], "std": [1]}}, "does not fit"),
    ],
)
def test_metadata_that_cannot_be(file, told, words):
    assert words in answer(write(file, **told))


def test_tensors_that_are_not_the_models(file):
    tensors = network().state_dict()
    assert "has no tensor 'head.bias', which the model needs" in answer(
        write(file, {n: t for n, t in tensors.items() if n != "head.bias"})
    )
    assert "has a tensor 'extra', which the model lacks" in answer(write(file, tensors | {"extra": torch.zeros(2)}))
    assert "'head.bias' has the shape (4,) in" in answer(write(file, tensors | {"head.bias": torch.zeros(4)}))
    assert "they are of torch.int64" in answer(write(file, {n: t.long() for n, t in tensors.items()}))
    assert "of one floating-point type" in answer(write(file, tensors | {"head.bias": torch.zeros(3).double()}))
    deep = {"name": "mlp", "settings": {"hidden": [5, 5, 5]}}
    assert "has no tensor 'hidden2.weight', 'hidden2.bias', 'hidden3.weight' and 1 more" in answer(
        write(file, model=deep)
    )


def test_a_given_network_that_does_not_fit(file):
    write(file, model={"name": "mine:model"})
    assert "is the model the one that was trained?" in answer(file, model=normed)
    assert "could not be imported" in answer(file, model="no_such_module:model")
    assert "must build a torch.nn.Module" in answer(file, model=lambda: 3)


def test_a_network_that_reads_other_samples(file):
    write(file, task={"kind": "classification", "inputs": [5], "outputs": 3}, model={"name": "mine:model"})
    assert "The model cannot read two samples of shape (5,)" in answer(file, model=network())


def refused(model: Saved, given: Any) -> str:
    with pytest.raises(FedkinError) as caught:
        model.predict(given)
    return str(caught.value)


def test_rows_that_the_model_cannot_read(file):
    model = Saved.load(write(file))
    assert "rows of shape (4), not an array of shape (7, 5)" in refused(model, torch.zeros(7, 5))
    assert "not an array of shape ()" in refused(model, 3.0)
    assert "There is no row to predict" in refused(model, np.zeros((0, 4)))
    x = rows()
    x[2, 1] = torch.nan
    assert "Row 3 has NaN or infinite inputs" in refused(model, x)
    assert "must be an array of numbers" in refused(model, [["a", "b", "c", "d"]])
    assert "must be an array of numbers" in refused(model, [[1, 2, 3, 4], [1, 2]])
    assert "complex" in refused(model, np.zeros((2, 4), dtype=complex))


def test_an_answer_that_is_not_finite_names_its_row(file):
    model = Saved.load(write(file))
    x = rows().double()
    x[4] = 1e200
    assert "answer to row 5 is not a finite number" in refused(model, x)


def test_pixels_that_are_no_numbers(file):
    told = {"kind": "classification", "inputs": [4], "outputs": 3}
    model = Saved.load(write(file, task=told, preprocessing=Pixels((4,), 1.0, (0.0,), (1.0,)).to_json()))
    assert "cannot be read" in refused(model, [["a", "b", "c", "d"]])
    assert "are needed, not an array of (2, 5)" in refused(model, np.zeros((2, 5)))


# ---- tables ----

TABLE = TablePreprocessing(
    (
        Number("age", mean=50.0, scale=10.0, fill=54.0, indicator=True),
        Category("sex", categories=("f", "m")),
        Number("chol", missing=(0.0,), mean=240.0, scale=40.0, fill=230.0),
    )
)
"""Its inputs: age, chol, age missing, sex=f, sex=m."""


def clinic(file: Path) -> tuple[Saved, nn.Module]:
    module = network(inputs=(5,), outputs=2)
    told = {"kind": "classification", "inputs": [5], "outputs": 2}
    given = {"task": told, "classes": ["well", "ill"], "preprocessing": TABLE.to_json()}
    return Saved.load(write(file, module.state_dict(), **given)), module


PREPARED = [[1.0, 1.0, 0.0, 0.0, 1.0], [0.4, -0.25, 1.0, 1.0, 0.0], [-1.0, 0.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "frame", "dict"])
def test_a_table_is_prepared_as_its_rows_were_in_training(file, tmp_path, kind):
    """Columns in another order and one too many, a gap, a declared gap, and a category that is new."""
    frame = pd.DataFrame(
        {"ward": ["a", "b", "c"], "chol": [280.0, 0.0, 240.0], "age": [60.0, None, 40.0], "sex": ["m", "f", "x"]}
    )
    given: Any = {"frame": frame, "dict": frame.to_dict("list")}.get(kind, tmp_path / f"new.{kind}")
    if kind == "parquet":
        frame.to_parquet(given)
    elif isinstance(given, Path):
        frame.to_csv(given, sep="\t" if kind == "tsv" else ",", index=False)
    model, module = clinic(file)
    found = model.predict(given)
    with torch.no_grad():
        outputs = module(torch.tensor(PREPARED))
    assert np.allclose(found.probabilities, outputs.softmax(1), rtol=1e-5)
    assert list(found.labels) == [("well", "ill")[k] for k in outputs.argmax(1)]
    assert list(found.frame().columns) == ["ward", "prediction", "probability_well", "probability_ill"]
    assert list(found.frame()["ward"]) == ["a", "b", "c"]
    assert len(found.notes) == 1 and "'x' did not occur in any training row" in found.notes[0]


def identified() -> pd.DataFrame:
    """Rows as a clinic has them: who it is, when, what became of it, and beside these what the model reads."""
    return pd.DataFrame(
        {
            "id": ["0007", "12", "Smith, J."],
            "age": [60.0, 50.0, 40.0],
            "case": [2**53 + 1, 2, 3],
            "sex": ["m", "f", "f"],
            "admitted": pd.to_datetime(["2024-01-02", "2024-01-03", None]),
            "chol": [280.0, 200.0, 240.0],
            "prediction": ["his", "hers", None],
        },
        index=[30, 10, 20],
    )


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "frame", "dict", "rows", "arrow"])
def test_columns_that_the_model_does_not_read_stay_beside_its_answers(file, tmp_path, kind):
    """Identifiers are what they were: a code of digits keeps its zeros, a large number its last digit."""
    frame = identified()
    given: Any = {"frame": frame, "dict": frame.to_dict("list"), "rows": frame.to_dict("records")}
    given |= {"arrow": pa.Table.from_pandas(frame, preserve_index=False)}
    given = given.get(kind, tmp_path / f"new.{kind}")
    if kind == "parquet":
        frame.to_parquet(given)
    elif isinstance(given, Path):
        frame.to_csv(given, sep="\t" if kind == "tsv" else ",", index=False)
    model, _ = clinic(file)
    found = model.predict(given).frame()
    answers = ["prediction", "probability_well", "probability_ill"]
    assert list(found.columns) == ["id", "case", "admitted", "prediction (given)", *answers]
    assert list(found["id"]) == ["0007", "12", "Smith, J."]
    assert [str(case) for case in found["case"]] == [str(2**53 + 1), "2", "3"]
    assert [str(day)[:10] for day in found["admitted"][:2]] == ["2024-01-02", "2024-01-03"]
    assert list(found["prediction (given)"][:2]) == ["his", "hers"]
    plain = model.predict(frame[["age", "sex", "chol"]])
    assert np.array_equal(found[answers[1:]], plain.probabilities), "in the order of the rows"
    assert list(found.index) == ([30, 10, 20] if kind == "frame" else [0, 1, 2])


def test_columns_of_any_kind_stay_as_texts(file):
    """A cell that no table of ours could hold is carried over as it prints."""
    given = {"age": [60, 50], "sex": ["m", "f"], "chol": [280, 200], "scan": [{"a": 1}, (2, "b")], "mixed": [1, "b"]}
    given |= {"drugs": [["a"], ["b", "c"]], "ward": pd.Categorical(["u", None])}
    for rows_ in (given, pd.DataFrame(given)):
        found = clinic(file)[0].predict(rows_)
        frame = found.frame()
        assert list(frame["scan"]) == ["{'a': 1}", "(2, 'b')"]
        assert list(frame["mixed"]) == ["1", "b"]
        assert list(frame["drugs"]) == ["['a']", "['b', 'c']"]
        written = io.BytesIO(prediction_file(found, ".csv"))
        assert list(pd.read_csv(written, dtype=str)["ward"].fillna("")) == ["u", ""]


def test_a_table_that_lacks_a_column(file, tmp_path):
    (tmp_path / "new.csv").write_text("Age,sex,chol\n60,m,280\n")
    assert "has no column 'age' (is it 'Age'?), which the model reads" in refused(clinic(file)[0], tmp_path / "new.csv")
    (tmp_path / "new.csv").write_text("chol,weight\n280,90\n")
    sentence = refused(clinic(file)[0], tmp_path / "new.csv")
    assert "new.csv has no columns 'age' and 'sex', which the model reads; its columns are chol, weight." in sentence
    assert "The model needs age, sex, chol" in sentence
    assert "a column of empty cells will do" in sentence
    assert "the table of rows has no column 'sex'" in refused(clinic(file)[0], {"age": [60], "chol": [280]})
    (tmp_path / "new.csv").write_text("age,sex,chol\n,,280\n")
    assert len(clinic(file)[0].predict(tmp_path / "new.csv")) == 1, "what the sentence says would do, does"


# ---- far from what was trained on ----


def ranged(file: Path, **told: Any) -> Saved:
    age = Number("age", mean=50.0, scale=10.0, fill=54.0, low=29.0, high=77.0)
    table = TablePreprocessing((age, Number("beats", low=60.0, high=60.0), Number("chol", mean=240.0, scale=40.0)))
    told = {"kind": "classification", "inputs": [3], "outputs": 2}
    return Saved.load(
        write(file, network(inputs=(3,), outputs=2).state_dict(), task=told, preprocessing=table.to_json())
    )


def test_numbers_far_outside_the_training_rows_are_told_in_a_sentence_for_each_column(file):
    model = ranged(file)
    within = {"age": [29, 77, 101, 5, None, 50, 51], "beats": [60] * 7, "chol": [1e6] * 7}
    assert model.predict(within).notes == (), "half of the range beyond is not far; of chol nothing is known"
    (note,) = model.predict({"age": [63, 630, 4, 50], "beats": [60] * 4, "chol": [1] * 4}).notes
    assert note.startswith(
        "Column 'age': 2 of 4 rows lie far outside the training rows, which had 29 to 77, such as 630"
    )
    assert "row 1 (the first is 0)" in note
    (note,) = model.predict({"age": [50], "beats": [75], "chol": [1]}).notes
    assert note.startswith("Column 'beats': 1 of 1 rows lies far outside the training rows, which had 60 alone")


def test_many_numbers_a_little_outside_are_told_and_a_few_are_not(file):
    """Another unit may lie near: all of a column a little below what training had is no accident."""
    model = ranged(file)
    common = {"beats": [60] * 6, "chol": [1] * 6}
    assert model.predict({"age": [25, 26, 40, 50, 60, 70], **common}).notes == ()
    (note,) = model.predict({"age": [25, 26, 27, 25, 26, 70], **common}).notes
    assert note.startswith("Column 'age': 5 of 6 rows lie outside the training rows, which had 29 to 77, such as 25 in")
    assert model.predict({"age": [25], "beats": [60], "chol": [1]}).notes == (), "one row is not many"


def test_a_run_tells_of_new_rows_and_not_of_those_it_was_trained_on(tmp_path):
    """Each silo goes by its own training rows; the file that it keeps knows their range, and no exported one does."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"silo": np.repeat(["n", "s"], 60), "age": rng.uniform(20, 90, 120), "y": np.tile(["a", "b"], 60)}
    )
    frame.loc[frame["silo"] == "n", "age"] /= 2
    run = fedkin.run(
        federation=fedkin.Federation.from_table(frame, "silo", "y"), method="fedavg", rounds=1, out=tmp_path / "run"
    )
    assert run.predict("s", frame[frame["silo"] == "s"]).notes == ()
    (note,) = run.predict("n", frame[frame["silo"] == "s"]).notes
    assert "Column 'age'" in note
    column = run.saved("n").preprocessing.columns[0]
    own = frame.loc[frame["silo"] == "n", "age"]
    assert own.min() <= column.low < column.high <= own.max()
    path = run.export("n", tmp_path / "n.safetensors", "state_dict")
    assert str(column.high) not in path.with_suffix(".json").read_text()


def test_many_columns_far_outside_are_not_a_flood(file):
    columns = tuple(Number(f"c{i:02}", low=0.0, high=1.0) for i in range(40))
    told = {"kind": "classification", "inputs": [40], "outputs": 2}
    table = TablePreprocessing(columns)
    tensors = network(inputs=(40,), outputs=2).state_dict()
    model = Saved.load(write(file, tensors, task=told, preprocessing=table.to_json()))
    rows_ = {c.name: [9.0, 0.5] for c in columns} | {"c39": [9.0, 8.0]}
    notes = model.predict(rows_).notes
    assert len(notes) < 10 and "more notes of this kind" in notes[-1]
    assert "'c39': 2 of 2" in notes[0], "the column with most of them is not among those left out"


def test_a_table_without_rows(file, tmp_path):
    (tmp_path / "new.csv").write_text("age,sex,chol\n")
    assert refused(clinic(file)[0], tmp_path / "new.csv").endswith(".")


def test_an_array_is_no_table(file, tmp_path):
    np.save(tmp_path / "new.npy", np.zeros((2, 3)))
    model, _ = clinic(file)
    assert ".csv, .tsv, .parquet" in refused(model, tmp_path / "new.npy")
    assert "is not a table" in refused(model, np.zeros((2, 3)))
    assert "absent.csv" in refused(model, tmp_path / "absent.csv")


# ---- files of rows ----


def test_arrays_come_from_npy_and_npz(file, tmp_path):
    model, x = Saved.load(write(file)), rows().numpy()
    np.save(tmp_path / "new.npy", x)
    np.savez(tmp_path / "new.npz", x=x, y=np.zeros(7))
    expected = model.predict(x).probabilities
    assert np.array_equal(model.predict(tmp_path / "new.npy").probabilities, expected)
    assert np.array_equal(model.predict(str(tmp_path / "new.npz")).probabilities, expected)


def test_files_of_rows_that_cannot_be_read(file, tmp_path):
    model = Saved.load(write(file))
    assert "There is no file" in refused(model, tmp_path / "absent.npy")
    (tmp_path / "new.csv").write_text("a,b,c,d\n1,2,3,4\n")
    assert "rows are read from a .npy or a .npz, not from" in refused(model, tmp_path / "new.csv")
    np.save(tmp_path / "new.npy", rows().numpy())
    (tmp_path / "cut.npy").write_bytes((tmp_path / "new.npy").read_bytes()[:-9])
    assert "cannot be read as an array of numbers" in refused(model, tmp_path / "cut.npy")
    (tmp_path / "empty.npy").write_bytes(b"")
    assert "cannot be read as an array of numbers" in refused(model, tmp_path / "empty.npy")
    np.savez_compressed(tmp_path / "new.npz", features=rows())
    assert "has no array named x" in refused(model, tmp_path / "new.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "new.npz").read_bytes()[:60])
    assert "cannot be read as an array of numbers" in refused(model, tmp_path / "cut.npz")


def test_a_pickle_is_never_opened(file, tmp_path):
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    np.save(tmp_path / "trap.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "trap.npz", x=np.array([Trap()], dtype=object))
    model = Saved.load(write(file))
    for name in ("trap.npy", "trap.npz"):
        assert "cannot be read as an array of numbers" in refused(model, tmp_path / name)
    assert not (tmp_path / "sprung").exists()


# ---- the run's own evaluation ----

RUNS = [
    {"method": "fedavg"},
    {"method": "fedamp"},
    {"method": "apfl", "settings": {"mix": "outputs"}},
    {"method": "apfl"},
]


@pytest.mark.parametrize("settings", RUNS, ids=lambda s: "-".join([s["method"], *s.get("settings", {}).values()]))
def test_predictions_score_as_the_run_did(tmp_path, settings):
    run = fedkin.run(rounds=2, data={"clients": 5}, local={"epochs": 2}, out=tmp_path / "run", **settings)
    federation = fedkin.load("digits", "practical", clients=5, seed=0)
    last = [line for line in run.rounds if line.get("final")][-1]
    assert run.modelled == sorted(federation.names)
    for client in federation.clients:
        model = run.saved(client.name)
        x, y = client.test
        pixels = ((x * 0.38 + 0.3) * 16).round()
        found = run.predict(client.name, pixels)
        numbers = np.array([model.classes.index(label) if model.classes else label for label in found.labels])
        told = last["models"][model.chosen]["clients"][run.summary["clients"].index(client.name)]
        assert np.mean(numbers == y.numpy()) == pytest.approx(told, abs=1e-12)
        assert np.allclose(found.probabilities.sum(1), 1, atol=1e-5)


def test_predictions_are_those_of_the_rows_that_were_scored(tmp_path):
    """In float64, with running statistics and against the plain module: the numbers themselves."""
    watched = simulate(tmp_path, toy(), model=normed, method="fedamp", local=BASE["local"] | {"batch_size": 5})
    run = fedkin.Run(watched.writer.path)
    closing = max(watched.scored)
    for i, name in enumerate(watched.problem.names):
        model = run.saved(name, model=normed)
        assert model.dtype == torch.float64
        x = watched.a.federation.clients[i].test[0]
        row = watched.rows(closing, model.chosen)[i]
        module = watched.problem.layout.load(normed((4,), 3).double(), row).eval()
        with torch.no_grad():
            assert np.allclose(run.predict(name, x, model=normed).probabilities, module(x).softmax(1), rtol=1e-12)


HEART = SHARED / "heart-disease"
FINDINGS = "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal"


def test_predictions_from_a_hospitals_own_table_score_as_the_run_did(tmp_path, monkeypatch):
    """From the raw file, gaps and all: a test sample is found again by what its row becomes."""
    if not HEART.is_dir():
        pytest.skip("the data sets' files are not beside this repository, in ../shared/data")
    monkeypatch.setenv("FEDKIN_DATA", str(HEART.parent))
    run = fedkin.run(method="fedamp", data={"name": "heart", "split": "natural"}, rounds=2, out=tmp_path / "run")
    federation = fedkin.load("heart", "natural", seed=0, table=run.resolved().table)
    last = [line for line in run.rounds if line.get("final")][-1]
    for client in federation.clients:
        stem = {"hungary": "hungarian"}.get(client.name, client.name)
        raw = pd.read_csv(HEART / f"processed.{stem}.data", header=None, na_values="?")
        raw.columns = pd.Index([*FINDINGS.split(), "num"])
        raw.to_csv(tmp_path / "new.csv", index=False)
        model = run.saved(client.name)
        said = model.predict(tmp_path / "new.csv").labels
        prepared = model.preprocessing.module()(model.read(tmp_path / "new.csv"))
        found = {x.numpy().tobytes(): label for x, label in zip(prepared, said, strict=True)}
        right = [found[x.numpy().tobytes()] == model.classes[y] for x, y in zip(*client.test, strict=True)]
        told = last["models"][model.chosen]["clients"][run.summary["clients"].index(client.name)]
        assert np.mean(right) == pytest.approx(told, abs=1e-12)


def test_a_runs_model_is_refused_or_read_like_any_other(tmp_path):
    run = fedkin.run(method="separate", rounds=1, data={"clients": 5}, local={"epochs": 1}, out=tmp_path / "run")
    tensors, about = run.model("silo-00")
    assert set(tensors) == set(load_file(run.model_file("silo-00")))
    assert about["client"] == "silo-00"
    with pytest.raises(FedkinError, match=r"There is no model of a client 'silo-99' in .*Clients are silo-"):
        run.predict("silo-99", np.zeros((1, 64)))
    run.model_file("silo-01").write_bytes(b"no model")
    with pytest.raises(SavedError, match="damaged"):
        run.model("silo-01")


def test_a_frame_has_a_row_for_each_row():
    shares = np.array([[0.25, 0.75], [0.5, 0.5]])
    found = Prediction(np.array(["well", "ill"]), np.array(["ill", "well"]), shares)
    assert found.frame().to_dict("list") == {
        "prediction": ["ill", "well"],
        "probability_well": [0.25, 0.5],
        "probability_ill": [0.75, 0.5],
    }
