"""An exported model gives `predict`'s numbers without fedkin, says what it wants to be fed, and is written whole."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections import OrderedDict
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import torch
from helpers import ROOT
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import fedkin
from fedkin.base.weights import Layout
from fedkin.data.preprocessing import Category, Number, Pixels, Scaled, TablePreprocessing
from fedkin.errors import FedkinError
from fedkin.runs import export
from fedkin.runs.saved_model import Prediction, Saved
from fedkin.training import models
from fedkin.training.execution import Mixture

GREY = Pixels((1, 28, 28), 255.0, (0.13,), (0.3,))
COLOUR = Pixels((3, 32, 32), 255.0, (0.5, 0.48, 0.44), (0.27, 0.26, 0.28))
TABLE = TablePreprocessing(
    (
        Number("age", mean=54.1, scale=9.3, fill=55.0, indicator=True),
        Category("sex", categories=("f", "m")),
        Number("chol", missing=(0.0,), mean=240.0, scale=40.0, fill=230.0),
        Category("pain", categories=("none", "typical", "other")),
    )
)
"""age, chol, age missing, two of sex, three of pain: eight inputs."""
KINDS: dict[str, tuple[str, tuple[int, ...], int, str, Any]] = {
    "mlp": ("mlp", (64,), 10, "classification", None),
    "logistic-table": ("logistic", (8,), 2, "classification", TABLE),
    "cnn-pixels": ("cnn", (1, 28, 28), 10, "classification", GREY),
    "resnet18-pixels": ("resnet18", (3, 32, 32), 5, "classification", COLOUR),
    "mlp-scaled": ("mlp", (6,), 6, "regression", Scaled((6,), (-0.3,), (1.7,))),
    "gru": ("gru", (9, 2), 3, "regression", None),
}


def given(path: Path, module: nn.Module, name: str, kind: str = "classification", **told: Any) -> Path:
    """A model file as a run would write it."""
    inputs, outputs = told.pop("inputs"), told.pop("outputs")
    about = {
        "client": "north",
        "method": "fedamp",
        "chosen": "cloud",
        "predictor": None,
        "model": {"name": name, "settings": {}},
        "task": {"kind": kind, "inputs": list(inputs), "outputs": outputs},
        "classes": [f"class {k}" for k in range(outputs)] if kind == "classification" else [],
        **told,
    }
    layout = Layout.of(module)
    tensors = {n: t.clone() for n, t in layout.tensors(layout.row(module)).items()}
    save_file(tensors, path, {"fedkin": json.dumps(about)})
    return path


def lively(module: nn.Module, x: Tensor) -> nn.Module:
    """The module with running statistics of its own, so that those matter, in evaluation mode."""
    with torch.no_grad():
        for _ in range(3):
            module.train()(x)
    return module.eval()


def some_rows(prepared: Any, inputs: tuple[int, ...], n: int) -> Any:
    """What a person has: a frame, pixels, or an array."""
    rng = np.random.default_rng(7)
    if isinstance(prepared, TablePreprocessing):
        ages = np.where(rng.random(n) < 0.3, np.nan, rng.integers(20, 80, n))
        pick = rng.integers(0, 3, n)
        chol = np.where(rng.random(n) < 0.3, 0.0, rng.normal(240, 40, n))
        return pd.DataFrame(
            {"pain": np.array(["none", "odd", "other"])[pick], "chol": chol, "age": ages, "sex": ["m"] * n}
        )
    if isinstance(prepared, Pixels):
        return rng.integers(0, 256, (n, *inputs), dtype=np.uint8)
    return rng.normal(size=(n, *inputs)).astype(np.float32)


@pytest.fixture(scope="module", params=list(KINDS))
def model(request, tmp_path_factory) -> Saved:
    name, inputs, outputs, kind, prepared = KINDS[request.param]
    torch.manual_seed(1)
    module = lively(models.build(name, inputs, outputs, {}), torch.randn(16, *inputs))
    path = given(
        tmp_path_factory.mktemp("model") / "north.safetensors",
        module,
        name,
        kind,
        inputs=inputs,
        outputs=outputs,
        preprocessing=None if prepared is None else prepared.to_json(),
        target={"mean": 12.0, "scale": 3.0} if kind == "regression" else None,
    )
    return Saved.load(path)


@pytest.fixture(scope="module")
def onnx_file(model, tmp_path_factory) -> Path:
    return model.export(tmp_path_factory.mktemp("exported") / "north.onnx")


def small(path: Path) -> Saved:
    torch.manual_seed(0)
    module = models.build("logistic", (4,), 3, {})
    return Saved.load(given(path / "small.safetensors", module, "logistic", inputs=(4,), outputs=3))


def answers(found: Prediction) -> np.ndarray:
    shown = found.probabilities if found.values is None else found.values
    return shown if shown.ndim == 2 else shown[:, None]


def refused(call: Any, *arguments: Any) -> str:
    with pytest.raises(FedkinError) as caught:
        call(*arguments)
    sentence = str(caught.value)
    assert sentence[-1] == "." and "\n" not in sentence, sentence
    return sentence


# ---- every architecture ----


def test_onnx_gives_the_numbers_of_predict(model, onnx_file):
    session = onnxruntime.InferenceSession(onnx_file)
    regression = model.task.kind == "regression"
    assert [i.name for i in session.get_inputs()] == ["inputs"]
    assert [o.name for o in session.get_outputs()] == ["values" if regression else "probabilities"]
    for n in (1, 2, 33):
        rows = some_rows(model.preprocessing, model.task.inputs, n)
        expected = answers(model.predict(rows))
        (found,) = session.run(None, {"inputs": _fed(model, rows, session)})
        assert found.shape == (n, model.task.outputs)
        assert np.allclose(found, expected, rtol=1e-4, atol=1e-6)


def _fed(model: Saved, rows: Any, session: Any) -> np.ndarray:
    """Rows as someone would feed them who knows nothing but the ONNX file."""
    kind = {"tensor(float)": np.float32, "tensor(double)": np.float64}[session.get_inputs()[0].type]
    told = session.get_modelmeta().custom_metadata_map
    if "columns" not in told:
        return np.asarray(rows).astype(kind)
    columns = []
    for column in json.loads(told["columns"]):
        cells = rows[column["name"]].replace(column["missing"], np.nan)
        if "categories" in column:
            cells = [column["categories"].index(c) if c in column["categories"] else np.nan for c in cells]
        columns.append(np.asarray(cells, dtype=kind))
    return np.stack(columns, axis=1)


def test_a_reloaded_state_dict_gives_the_numbers_of_predict(model, tmp_path):
    path = model.export(tmp_path / "north.safetensors", "state_dict")
    told = json.loads(path.with_suffix(".json").read_text())
    network = models.FACTORIES[told["architecture"]["name"]](
        tuple(told["architecture"]["inputs"]), told["architecture"]["outputs"], **told["architecture"]["settings"]
    )
    network.load_state_dict(load_file(path), strict=True)
    rows = some_rows(model.preprocessing, model.task.inputs, 9)
    x = model.read(rows) if model.preprocessing is None else model.preprocessing.module()(model.read(rows))
    with torch.no_grad():
        outputs = network.eval()(x)
    regression = told["task"] == "regression"
    expected = told["target"]["mean"] + told["target"]["scale"] * outputs if regression else outputs.softmax(1)
    assert np.allclose(expected, answers(model.predict(rows)), rtol=1e-6, atol=1e-7)
    assert told["classes"] == list(model.classes)
    assert (told["client"], told["method"], told["chosen"]) == ("north", "fedamp", "cloud")


# ---- what is in the file ----


def test_the_onnx_file_says_what_to_feed_it(tmp_path):
    torch.manual_seed(0)
    module = models.build("logistic", (8,), 2, {})
    path = given(
        tmp_path / "north.safetensors",
        module,
        "logistic",
        inputs=(8,),
        outputs=2,
        classes=["well", "ill"],
        preprocessing=TABLE.to_json(),
    )
    found = onnx.load(Saved.load(path).export(tmp_path / "north.onnx"))
    told = {p.key: json.loads(p.value) for p in found.metadata_props}
    assert told["classes"] == ["well", "ill"]
    assert told["columns"] == [
        {"name": "age", "missing": []},
        {"name": "sex", "missing": [], "categories": ["f", "m"]},
        {"name": "chol", "missing": [0.0]},
        {"name": "pain", "missing": [], "categories": ["none", "typical", "other"]},
    ]
    assert told["fedkin"]["client"] == "north"
    assert told["fedkin"]["preprocessing"] == json.loads(json.dumps(TABLE.to_json()))
    (entry,) = found.graph.input
    assert entry.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE
    first, second = entry.type.tensor_type.shape.dim
    assert (first.dim_param, second.dim_value) == ("batch", 4)


def test_an_exported_file_tells_nothing_of_the_machine_it_came_from(onnx_file):
    content = onnx_file.read_bytes()
    for trace in (str(Path(fedkin.__file__).parent), sys.prefix, "stack_trace", ".py", str(onnx_file.parent)):
        assert trace.encode() not in content, trace


def test_counters_are_in_the_state_dict(tmp_path):
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    path = given(tmp_path / "north.safetensors", module, "mine:model", inputs=(4,), outputs=3)
    exported = Saved.load(path, model=module).export(tmp_path / "out.safetensors", "state_dict")
    assert load_file(exported)["1.num_batches_tracked"].dtype == torch.int64
    again = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    again.load_state_dict(load_file(exported), strict=True)


class Tied(nn.Module):
    """Two layers that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.b(torch.relu(self.a(x)))))


def test_shared_weights_are_exported_under_both_names(tmp_path):
    torch.manual_seed(0)
    saved = Saved.load(given(tmp_path / "t.safetensors", Tied(), "mine:Tied", inputs=(4,), outputs=3), model=Tied)
    again = Tied()
    again.load_state_dict(load_file(saved.export(tmp_path / "out.safetensors", "state_dict")), strict=True)
    x = torch.randn(5, 4)
    with torch.no_grad():
        assert np.allclose(again(x).softmax(1), saved.predict(x).probabilities, rtol=1e-6)


def test_double_precision_stays_in_both_formats(tmp_path):
    module = models.build("logistic", (4,), 3, {}).double()
    saved = Saved.load(given(tmp_path / "d.safetensors", module, "logistic", inputs=(4,), outputs=3))
    x = np.random.default_rng(0).normal(size=(6, 4))
    session = onnxruntime.InferenceSession(saved.export(tmp_path / "d.onnx"))
    (found,) = session.run(None, {"inputs": x})
    assert found.dtype == np.float64
    assert np.allclose(found, saved.predict(x).probabilities, rtol=1e-12)
    tensors = load_file(saved.export(tmp_path / "out.safetensors", "state_dict"))
    assert {t.dtype for t in tensors.values()} == {torch.float64}


# ---- a real run ----


@pytest.mark.parametrize(
    "settings",
    [{"method": "fedavg"}, {"method": "fedamp"}, {"method": "apfl", "settings": {"mix": "outputs"}}],
    ids=lambda s: s["method"],
)
def test_models_of_a_run_give_their_numbers_elsewhere(tmp_path, settings):
    run = fedkin.run(rounds=2, data={"clients": 5}, local={"epochs": 1}, out=tmp_path / "run", **settings)
    pixels = np.random.default_rng(0).integers(0, 17, (20, 64)).astype(np.float32)
    told = []
    for client in run.modelled[:2]:
        expected = run.predict(client, pixels).probabilities
        session = onnxruntime.InferenceSession(run.export(client, tmp_path / f"{client}.onnx"))
        (found,) = session.run(None, {"inputs": pixels})
        assert np.allclose(found, expected, rtol=1e-4, atol=1e-7)
        path = run.export(client, tmp_path / f"{client}.safetensors", "state_dict")
        told.append(json.loads(path.with_suffix(".json").read_text()))
        network = models.build("mlp", (64,), 10, told[-1]["architecture"]["settings"])
        if told[-1]["architecture"]["predictor"] == "mixed_outputs":
            network = Mixture(network)
        network.load_state_dict(load_file(path), strict=True)
        with torch.no_grad():
            again = network((torch.tensor(pixels) / 16 - 0.3) / 0.38).softmax(1)
        assert np.allclose(again, expected, rtol=1e-4, atol=1e-7)
    if settings["method"] == "apfl":
        assert any(t["architecture"]["predictor"] for t in told), "a mixture of outputs was among them"


# ---- what the documentation says ----


def documented(word: str) -> str:
    """The Python block of the documentation that has this word."""
    text = (ROOT / "docs" / "after-training.md").read_text()
    (block,) = [b.partition("```")[0] for b in text.split("```python\n")[1:] if word in b.partition("```")[0]]
    return block


def test_the_documented_lines_ask_an_onnx_model_without_fedkin(tmp_path, monkeypatch):
    table = TablePreprocessing((*TABLE.columns[:1], TABLE.columns[2], TABLE.columns[1]))
    torch.manual_seed(0)
    told = {"inputs": (5,), "outputs": 2, "classes": ["well", "ill"], "preprocessing": table.to_json()}
    saved = Saved.load(given(tmp_path / "n.safetensors", models.build("logistic", (5,), 2, {}), "logistic", **told))
    monkeypatch.chdir(tmp_path)
    saved.export("north.onnx")
    lines = documented("onnxruntime.InferenceSession")
    assert "fedkin" not in lines and "torch" not in lines
    here: dict[str, Any] = {}
    exec(lines, here)
    expected = saved.predict([here["patient"]])
    assert np.allclose(here["answers"], expected.probabilities, rtol=1e-5)


def test_the_documented_lines_take_cells_as_a_csv_file_has_them(tmp_path, monkeypatch):
    """Numbers or their texts, gaps and codes: what `predict` makes of a file, the lines make of its cells."""
    age = Number("age", missing=(0.0,), indicator=True, mean=50.0, scale=10.0, fill=50.0)
    table = TablePreprocessing((age, Category("cp", categories=("1", "2", "01", "true"))))
    torch.manual_seed(0)
    told = {"inputs": (6,), "outputs": 2, "classes": ["well", "ill"], "preprocessing": table.to_json()}
    saved = Saved.load(given(tmp_path / "n.safetensors", models.build("logistic", (6,), 2, {}), "logistic", **told))
    monkeypatch.chdir(tmp_path)
    saved.export("north.onnx")
    rows = [("63", "1"), ("0", "2"), ("", "01"), ("41.5", "TRUE"), ("70", "9"), ("0.0", "1.0")]
    (tmp_path / "new.csv").write_text("age,cp\n" + "".join(f"{age},{cp}\n" for age, cp in rows))
    expected = saved.predict(tmp_path / "new.csv").probabilities
    lines, _, rest = documented("onnxruntime.InferenceSession").partition("patient = ")
    for (age, cp), answer in zip(rows, expected, strict=True):
        for patient in ({"age": age, "cp": cp}, {"age": float(age) if age else None, "cp": cp}):
            here: dict[str, Any] = {"patient": patient}
            exec(lines + rest.partition("\n")[2], here)
            assert np.allclose(here["answers"][0], answer, rtol=1e-5)
    here = {"patient": {"age": 63, "cp": 1}}
    exec(lines + rest.partition("\n")[2], here)
    assert np.allclose(here["answers"][0], expected[0], rtol=1e-5)


def test_the_documented_lines_ask_a_regression_too(tmp_path, monkeypatch):
    torch.manual_seed(0)
    table = TablePreprocessing((*TABLE.columns[:1], TABLE.columns[2], TABLE.columns[1]))
    told = {"kind": "regression", "inputs": (5,), "outputs": 1, "preprocessing": table.to_json()}
    told |= {"target": {"mean": 100.0, "scale": 20.0}}
    saved = Saved.load(given(tmp_path / "n.safetensors", models.build("logistic", (5,), 1, {}), "logistic", **told))
    monkeypatch.chdir(tmp_path)
    saved.export("north.onnx")
    here: dict[str, Any] = {}
    exec(documented("onnxruntime.InferenceSession"), here)
    assert np.allclose(here["answers"], saved.predict([here["patient"]]).values, rtol=1e-5)


def asked(path: Path, patient: Any) -> dict[str, Any]:
    """What the documented lines come to for a row, where the exported files lie and fedkin is not at hand."""
    lines, _, rest = documented("load_state_dict").partition("patient = ")
    assert "fedkin" not in lines + rest
    here: dict[str, Any] = {"patient": patient}
    exec(lines + rest.partition("\n")[2], here)
    return here


def test_the_documented_lines_ask_a_state_dict_as_they_stand(tmp_path, monkeypatch):
    table = TablePreprocessing((*TABLE.columns[:1], TABLE.columns[2], TABLE.columns[1]))
    torch.manual_seed(0)
    told = {"inputs": (5,), "outputs": 2, "classes": ["well", "ill"], "preprocessing": table.to_json()}
    saved = Saved.load(given(tmp_path / "n.safetensors", models.build("logistic", (5,), 2, {}), "logistic", **told))
    monkeypatch.chdir(tmp_path)
    saved.export("handover/north.safetensors", "state_dict")
    here: dict[str, Any] = {}
    exec(documented("load_state_dict"), here)
    assert np.allclose(here["answers"], saved.predict([here["patient"]]).probabilities, rtol=1e-6)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_with_torch_alone_a_state_dict_gives_the_numbers_of_predict(tmp_path, monkeypatch, kind, precision):
    """Columns in any order, gaps however they are marked, categories as numbers and as texts: each cell as a CSV file
    has it. Categories that stand before numbers are what someone who goes by the columns gets wrong."""
    pain = Category("pain", missing=("?",), categories=("1", "2", "01", "true"))
    age = Number("age", missing=(0.0, "?"), indicator=True, mean=50.0, scale=10.0, fill=47.0)
    weight = Number("weight", mean=80.0, scale=12.5, fill=80.0)
    table = TablePreprocessing((pain, age, Category("sex", categories=("f", "m")), weight))
    torch.manual_seed(3)
    inputs, outputs = (len(table.inputs),), 2 if kind == "classification" else 1
    module = models.build("mlp", inputs, outputs, {"hidden": [7]}).to(precision)
    told: dict[str, Any] = {"inputs": inputs, "outputs": outputs, "preprocessing": table.to_json()}
    told |= {"model": {"name": "mlp", "settings": {"hidden": [7]}}, "target": {"mean": 100.0, "scale": 20.0}}
    saved = Saved.load(given(tmp_path / "n.safetensors", module, "mlp", kind, **told))
    monkeypatch.chdir(tmp_path)
    saved.export("handover/north.safetensors", "state_dict")
    cells = [("1", "63", "m", "80"), ("2", "0", "f", ""), ("01", "?", "", "95.5"), ("TRUE", "", "x", "1e2")]
    cells += [("9", "41.5", "m", "70"), ("1.0", "0.0", "f", "60"), ("?", "70", "m", "81")]
    header = "pain,age,sex,weight\n"
    (tmp_path / "new.csv").write_text(header + "".join(",".join(row) + "\n" for row in cells))
    expected = answers(saved.predict(tmp_path / "new.csv"))
    for row, answer in zip(cells, expected, strict=True):
        found = asked(tmp_path, dict(zip(("pain", "age", "sex", "weight"), row, strict=True)))["answers"]
        assert np.allclose(found[0], answer, rtol=1e-12 if precision == torch.float64 else 1e-6)
    assert np.ptp(expected[:, 0]) > 0.01, "the rows differ, so that a wrong order would show"


def test_a_state_dict_lists_its_inputs_in_their_order(tmp_path):
    saved = table_model(tmp_path)
    told = json.loads(saved.export(tmp_path / "out.safetensors", "state_dict").with_suffix(".json").read_text())
    number = {"missing": [], "fill": 55.0, "mean": 54.1, "scale": 9.3}
    assert told["inputs"] == [
        {"name": "age", "column": "age", "kind": "number", **number},
        {"name": "chol", "column": "chol", "kind": "number", "missing": [0.0], "fill": 230, "mean": 240, "scale": 40},
        {"name": "age missing", "column": "age", "kind": "missing", "missing": []},
        {"name": "sex=f", "column": "sex", "kind": "category", "missing": [], "category": "f"},
        {"name": "sex=m", "column": "sex", "kind": "category", "missing": [], "category": "m"},
        *(
            {"name": f"pain={c}", "column": "pain", "kind": "category", "missing": [], "category": c}
            for c in ("none", "typical", "other")
        ),
    ]
    assert [each["name"] for each in told["inputs"]] == list(TABLE.inputs)


def table_model(folder: Path) -> Saved:
    torch.manual_seed(0)
    told: dict[str, Any] = {"inputs": (8,), "outputs": 2, "classes": ["well", "ill"], "preprocessing": TABLE.to_json()}
    return Saved.load(given(folder / "n.safetensors", models.build("logistic", (8,), 2, {}), "logistic", **told))


def chain(told: dict[str, Any]) -> nn.Module:
    """The network as its JSON says, and no more than torch."""
    layers = [(each["name"], getattr(nn, each["layer"])(**each["arguments"])) for each in told["layers"]]
    return nn.Sequential(OrderedDict(layers))


def test_a_chain_of_layers_is_told_and_anything_else_is_not(model, tmp_path):
    path = model.export(tmp_path / "north.safetensors", "state_dict")
    told = json.loads(path.with_suffix(".json").read_text())
    if told["architecture"]["name"] in ("resnet18", "gru"):
        assert told["layers"] is None
        return
    network = chain(told)
    network.load_state_dict(load_file(path), strict=True)
    x = torch.randn(4, *model.task.inputs)
    with torch.no_grad():
        assert torch.equal(network.eval()(x), model.network(x))


def own_layers() -> nn.Module:
    parts = [nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6, eps=0.1), nn.LeakyReLU(0.3), nn.Dropout(0.4)]
    return nn.Sequential(*parts, nn.Linear(6, 3))


class Doubled(nn.Linear):
    """A layer of one's own, of which torch knows nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_ones_own_chain_of_torchs_layers_is_told_with_all_its_arguments(tmp_path):
    torch.manual_seed(0)
    module = lively(own_layers(), torch.randn(16, 4))
    saved = Saved.load(given(tmp_path / "o.safetensors", module, "mine:own", inputs=(4,), outputs=3), model=own_layers)
    path = saved.export(tmp_path / "out.safetensors", "state_dict")
    network = chain(json.loads(path.with_suffix(".json").read_text()))
    network.load_state_dict(load_file(path), strict=True)
    x = torch.randn(5, 4)
    with torch.no_grad():
        assert np.allclose(network.eval()(x).softmax(1), saved.predict(x).probabilities, rtol=1e-6)


def test_a_chain_with_a_layer_of_ones_own_is_not_told_as_torchs(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(Doubled(4, 3))
    saved = Saved.load(given(tmp_path / "o.safetensors", module, "mine:own", inputs=(4,), outputs=3), model=module)
    path = saved.export(tmp_path / "out.safetensors", "state_dict")
    assert json.loads(path.with_suffix(".json").read_text())["layers"] is None


# ---- refusals, and nothing half-written ----


class Moody(nn.Module):
    """What it does depends on what it reads: nothing that a graph could hold."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) if float(x.sum()) > 0 else self.head(-x)


def test_a_model_that_no_graph_can_hold(tmp_path):
    saved = Saved.load(given(tmp_path / "m.safetensors", Moody(), "mine:Moody", inputs=(4,), outputs=3), model=Moody)
    sentence = refused(saved.export, tmp_path / "m.onnx")
    assert "The model of 'north' cannot be written as ONNX" in sentence and "state_dict" in sentence
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]
    saved.export(tmp_path / "out.safetensors", "state_dict")


class Nearly(nn.Module):
    """What a wrong exporter would make of a module: its inputs are off by a little."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, rows: Tensor) -> Tensor:
        return self.module(1.0003 * rows)


def test_an_export_that_gives_other_numbers_is_refused(tmp_path, monkeypatch):
    saved, real = small(tmp_path), torch.onnx.export
    monkeypatch.setattr(torch.onnx, "export", lambda module, *rest, **more: real(Nearly(module), *rest, **more))
    assert "does not give the numbers of `predict`" in refused(saved.export, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_an_export_that_does_not_run_is_refused(tmp_path, monkeypatch):
    def broken(*content: Any, **more: Any) -> None:
        raise RuntimeError("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED\nand more")

    monkeypatch.setattr(onnxruntime, "InferenceSession", broken)
    sentence = refused(small(tmp_path).export, tmp_path / "out.onnx")
    assert "onnxruntime cannot run the model of 'north' (RuntimeError: [ONNXRuntimeError] : 9" in sentence
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_without_the_packages_there_is_a_sentence(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert "`pip install 'fedkin[onnx]'`" in refused(small(tmp_path).export, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()
    small(tmp_path).export(tmp_path / "out.safetensors", "state_dict")


def test_without_onnxruntime_the_model_is_written_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    onnx.checker.check_model(str(small(tmp_path).export(tmp_path / "out.onnx")))


def test_formats_and_names_that_do_not_fit(tmp_path):
    saved = small(tmp_path)
    assert "exported as onnx or state_dict, not as 'pickle'" in refused(saved.export, tmp_path / "out.pkl", "pickle")
    assert "ends in .onnx" in refused(saved.export, tmp_path / "out.safetensors", "onnx")
    assert "ends in .safetensors" in refused(saved.export, tmp_path / "out", "state_dict")


@pytest.mark.parametrize("taken", ["out.safetensors", "out.json"])
def test_nothing_is_written_over(tmp_path, taken):
    saved = small(tmp_path)
    (tmp_path / taken).write_text("precious")
    assert f"{taken} exists already" in refused(saved.export, tmp_path / "out.safetensors", "state_dict")
    assert (tmp_path / taken).read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_disk_that_is_full_leaves_nothing(tmp_path, monkeypatch):
    saved = small(tmp_path)
    flushed = []

    def full(number: int) -> None:
        flushed.append(number)
        if len(flushed) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedkin.base.files.os.fsync", full)
    sentence = refused(saved.export, tmp_path / "here" / "out.safetensors", "state_dict")
    assert "out.json cannot be written: No space left on device" in sentence
    assert not list((tmp_path / "here").iterdir())


def test_a_place_that_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    sentence = refused(small(tmp_path).export, tmp_path / "file" / "out.safetensors", "state_dict")
    assert "cannot be written" in sentence


def test_exporting_is_quiet_and_leaves_things_as_they_were(tmp_path, capfd, caplog):
    logging.disable(logging.NOTSET)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        small(tmp_path).export(tmp_path / "out.onnx")
    printed = capfd.readouterr()
    remarks = [record for record in caplog.records if record.levelno >= logging.INFO]
    assert (printed.out, printed.err, remarks, told) == ("", "", [], [])
    assert logging.root.manager.disable == logging.NOTSET


# ---- predictions as files ----


def test_predictions_as_csv_and_parquet_hold_the_same(tmp_path):
    shares = np.array([[0.1, 0.9], [0.75, 0.25]], dtype=np.float32)
    found = Prediction(np.array(["well", "ill, or so"]), np.array(["ill, or so", "well"]), shares)
    for kind, read in ((".csv", pd.read_csv), (".parquet", pd.read_parquet)):
        (tmp_path / f"out{kind}").write_bytes(export.prediction_file(found, kind))
        frame = read(tmp_path / f"out{kind}")
        assert list(frame["row"]) == [1, 2]
        assert list(frame["prediction"]) == ["ill, or so", "well"]
        assert np.array_equal(frame[["probability_well", "probability_ill, or so"]].astype(np.float32), shares)


def test_csv_is_as_plain_as_it_can_be():
    found = Prediction(values=np.array([1.5, -2.0]))
    assert export.prediction_file(found, ".csv") == b"row,prediction\n1,1.5\n2,-2\n"
    named = Prediction(np.array(["well"]), np.array(["well"]), np.array([[1.0]]))
    assert export.prediction_file(named, ".csv") == b"row,prediction,probability_well\n1,well,1\n"


def test_a_column_of_dates_says_so_in_both_exports(tmp_path):
    table = TablePreprocessing((Number("admitted", mean=19000.0, scale=300.0, fill=19000.0, dates="day.month.year"),))
    torch.manual_seed(0)
    told = {"inputs": (1,), "outputs": 2, "classes": ["well", "ill"], "preprocessing": table.to_json()}
    saved = Saved.load(given(tmp_path / "n.safetensors", models.build("logistic", (1,), 2, {}), "logistic", **told))
    days = (date(2024, 3, 31) - date(1970, 1, 1)).days
    expected = saved.predict({"admitted": ["31.3.2024"]}).probabilities
    about = json.loads(saved.export(tmp_path / "o.safetensors", "state_dict").with_suffix(".json").read_text())
    (entry,) = about["inputs"]
    assert entry["dates"] == "day.month.year"
    with torch.no_grad():
        found = saved.network(torch.tensor([[(days - entry["mean"]) / entry["scale"]]])).softmax(1)
    assert np.allclose(found, expected, rtol=1e-6)
    session = onnxruntime.InferenceSession(saved.export(tmp_path / "n.onnx"))
    assert json.loads(session.get_modelmeta().custom_metadata_map["columns"])[0]["dates"] == "day.month.year"
    assert np.allclose(session.run(None, {"inputs": np.array([[float(days)]])})[0], expected, rtol=1e-5)


def test_days_far_outside_are_told_as_dates(tmp_path):
    low, high = ((date(year, 1, 1) - date(1970, 1, 1)).days for year in (2020, 2021))
    table = TablePreprocessing((Number("admitted", dates="year-month-day", low=float(low), high=float(high)),))
    told = {"inputs": (1,), "outputs": 2, "classes": ["well", "ill"], "preprocessing": table.to_json()}
    saved = Saved.load(given(tmp_path / "n.safetensors", models.build("logistic", (1,), 2, {}), "logistic", **told))
    (note,) = saved.predict({"admitted": ["2024-03-31"]}).notes
    assert "had 2020-01-01 to 2021-01-01, such as 2024-03-31 in the table of rows" in note and note.endswith(".")
