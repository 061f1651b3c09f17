"""A client's model for use elsewhere: its state_dict as safetensors, or the complete model as ONNX.

Everything is made and checked in memory first; then all files are written, or none.
"""

from __future__ import annotations

import csv
import inspect
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from ..base.files import write
from ..data.preprocessing import Category, Number, Pixels, Scaled, TablePreprocessing
from ..data.ranges import without_ranges
from ..training.execution import Mixture
from .saved_model import Prediction, Saved, SavedError

FORMATS = {"onnx": ".onnx", "state_dict": ".safetensors"}
OUTPUTS = {"classification": "probabilities", "regression": "values", "survival": "log_risk"}
"""What comes out of an ONNX model."""
ANSWERS = {
    "classification": "softmax of the outputs: a probability for each of `classes`, or class 0, 1, ... where they have "
    "no names",
    "regression": "target.mean + target.scale * outputs: the predicted values",
    "survival": "target.mean + target.scale * outputs: the log risk, 0 for the median training patient",
}
"""How a network's outputs are read."""
AGREEMENT = 1e-5
"""Relative difference between ONNX and `predict` from which on an export is refused."""
ROWS = 5
"""Rows that an exported model is tried on."""


def export(saved: Saved, path: Path, format: str) -> Path:
    """Writes one model in a format of FORMATS; a state_dict has a JSON beside it that says what it is."""
    if path.suffix != suffix_of(format):
        raise SavedError(f"The file of an exported {format} ends in {suffix_of(format)}; {path} does not.")
    if format == "onnx":
        write_new({path: onnx_model(saved)})
    else:
        told = json.dumps(description(saved) | for_torch_alone(saved), indent=2).encode()
        write_new({path: state_dict(saved), path.with_suffix(".json"): told})
    return path


def suffix_of(format: str) -> str:
    if format not in FORMATS:
        raise SavedError(f"A model can be exported as {' or '.join(FORMATS)}, not as {format!r}.")
    return FORMATS[format]


def description(saved: Saved) -> dict[str, Any]:
    """What someone without fedkin has to know of a model."""
    about, prepared = saved.about, saved.preprocessing
    prepared = without_ranges(prepared) if isinstance(prepared, TablePreprocessing) else prepared
    return {
        "client": about.client,
        "method": about.method,
        "chosen": about.chosen,
        "architecture": {
            **about.model.model_dump(mode="json"),
            "inputs": list(about.task.inputs),
            "outputs": about.task.outputs,
            "predictor": about.predictor,
        },
        "precision": str(saved.dtype).removeprefix("torch."),
        "task": about.task.kind,
        "classes": list(about.classes),
        "target": {"mean": saved.task.target_mean, "scale": saved.task.target_scale},
        "preprocessing": None if prepared is None else prepared.to_json(),
    }


def state_dict(saved: Saved) -> bytes:
    """The network's complete state_dict, counters too, as safetensors; tensors that are shared are written twice."""
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in saved.network.state_dict().items()}
    return safetensors.torch.save(tensors)


# ---- with torch alone ----


def for_torch_alone(saved: Saved) -> dict[str, Any]:
    """What someone without fedkin has to know to feed a network and to read its outputs."""
    two = " Two networks v and w of these layers: alpha v(x) + (1 - alpha) w(x)." if saved.about.predictor else ""
    return {
        "reads": _reads(saved) + two,
        "inputs": _inputs(saved.preprocessing) if isinstance(saved.preprocessing, TablePreprocessing) else None,
        "answers": ANSWERS[saved.task.kind],
        "layers": _layers(saved.network.v if isinstance(saved.network, Mixture) else saved.network),
    }


def _reads(saved: Saved) -> str:
    """What the network's rows are, in a sentence."""
    shape = f"(rows, {', '.join(map(str, saved.task.inputs))})"
    if isinstance(saved.preprocessing, TablePreprocessing):
        return (
            f"{shape} numbers, one for each of `inputs` in their order. A number is `fill` where it is missing, then "
            "(x - mean) / scale; `missing` is 1 where the number is and else 0; a category is 1 where the cell is that "
            "one and else 0."
        )
    if isinstance(saved.preprocessing, Pixels):
        return f"{shape} numbers: (pixels / divide - mean) / std, by channel, as `preprocessing` has them."
    if isinstance(saved.preprocessing, Scaled):
        return f"{shape} numbers: (x - mean) / scale along the last axis, as `preprocessing` has them."
    return f"{shape} numbers, prepared as they were for training."


def _inputs(table: TablePreprocessing) -> list[dict[str, Any]]:
    """The network's inputs in their order: the column that each is made of, and how."""
    numbers = [c for c in table.columns if isinstance(c, Number)]
    told: list[dict[str, Any]] = [
        {"column": c.name, "kind": "number", "missing": list(c.missing), "fill": c.fill, "mean": c.mean}
        | {"scale": c.scale}
        | ({"dates": c.dates} if c.dates else {})
        for c in numbers
    ]
    told += [{"column": c.name, "kind": "missing", "missing": list(c.missing)} for c in numbers if c.indicator]
    told += [
        {"column": c.name, "kind": "category", "missing": list(c.missing), "category": name}
        for c in table.columns
        if isinstance(c, Category)
        for name in c.categories
    ]
    return [{"name": name, **each} for name, each in zip(table.inputs, told, strict=True)]


def _layers(network: nn.Module) -> list[dict[str, Any]] | None:
    """A chain of torch's own layers, each with its name and the arguments it is made with; None of anything else."""
    if type(network) is not nn.Sequential:
        return None
    told: list[dict[str, Any]] = [
        {"name": name, "layer": type(layer).__name__, "arguments": _arguments(layer)}
        for name, layer in network.named_children()
    ]
    if not all(getattr(nn, each["layer"], None) is type(layer) for each, layer in zip(told, network, strict=True)):
        return None
    try:  # a layer whose arguments are not among its attributes would come out as another
        made = [getattr(nn, each["layer"])(**each["arguments"]) for each in json.loads(json.dumps(told))]
    except (TypeError, ValueError):
        return None
    return told if list(map(repr, made)) == list(map(repr, network)) else None


def _arguments(layer: nn.Module) -> dict[str, Any]:
    """What a layer was made with, where that is not the default; a parameter such as `bias` stands for a yes."""
    found = {}
    for name, wanted in inspect.signature(type(layer)).parameters.items():
        value = getattr(layer, name, wanted.default)
        value = value is not None if name == "bias" else value
        if value is not wanted.default and value != wanted.default:
            found[name] = value
    return found


# ---- ONNX ----


def onnx_model(saved: Saved) -> bytes:
    """The complete model: `inputs` (batch, ...) raw numbers -> `probabilities` (batch, classes), `values`, `log_risk`.

    It is checked, and, where onnxruntime is installed, compared with `predict`.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError:
        raise SavedError("ONNX needs packages that are not installed: `pip install 'fedkin[onnx]'`.") from None
    rows = saved.example(ROWS)
    try:
        with quiet():
            program = torch.onnx.export(
                saved.module,
                (rows,),
                dynamo=True,
                verbose=False,
                input_names=["inputs"],
                output_names=[OUTPUTS[saved.task.kind]],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
            assert program is not None
            model = program.model_proto
            _strip(model)
            onnx.helper.set_model_props(model, {key: json.dumps(told) for key, told in properties(saved).items()})
            onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # of torch.export, onnxscript, onnx_ir and onnx: any of many
        raise SavedError(
            f"The model of {saved.client!r} cannot be written as ONNX ({_first_line(error)}); "
            "`state_dict` is another format."
        ) from error
    content: bytes = model.SerializeToString()
    _compare(saved, content, rows)
    return content


def properties(saved: Saved) -> dict[str, Any]:
    """The metadata of an ONNX model: `classes`, a table's `columns` in the order of the inputs, and all as `fedkin`."""
    told: dict[str, Any] = {"fedkin": description(saved), "classes": list(saved.classes)}
    if isinstance(saved.preprocessing, TablePreprocessing):
        told["columns"] = [
            {"name": c.name, "missing": list(c.missing)}
            | ({"categories": list(c.categories)} if isinstance(c, Category) else {"dates": c.dates} if c.dates else {})
            for c in saved.preprocessing.columns
        ]
    return told


def _compare(saved: Saved, content: bytes, rows: Tensor) -> None:
    """Raises unless onnxruntime, where there is one, gives `predict`'s numbers."""
    try:
        import onnxruntime
    except ImportError:
        return
    for batch in (rows, rows[:1]):
        try:
            with quiet():
                session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
                (found,) = session.run(None, {"inputs": batch.numpy()})
        except Exception as error:  # onnxruntime's own, which share no ancestor
            raise SavedError(
                f"onnxruntime cannot run the model of {saved.client!r} ({_first_line(error)}), so it was not written; "
                "`state_dict` is another format."
            ) from error
        with torch.no_grad():
            outputs = saved.module.outputs(batch)
            expected = saved.module.answers(outputs)
        # Rounding in large outputs is rounding in probabilities.
        scale = max(float(expected.abs().max()), float(outputs.abs().max()))
        difference = float(np.abs(found - expected.numpy()).max())
        if not difference <= AGREEMENT * scale:
            raise SavedError(
                f"The model of {saved.client!r} as ONNX does not give the numbers of `predict` (they differ by "
                f"{difference:.2g}), so it was not written; `state_dict` is another format."
            )


def _strip(part: Any) -> None:
    """Takes out, at any depth, what the exporter notes: names of this machine's folders and lines of source."""
    for field, value in part.ListFields():
        if field.name in ("metadata_props", "doc_string"):
            part.ClearField(field.name)
        elif field.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                _strip(inner)


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, exporters keep their remarks to themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _first_line(error: Exception) -> str:
    cause = error.__cause__ or error  # torch's exporter wraps what went wrong in advice on itself
    first = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    return f"{type(cause).__name__}: {first}"[:300]


# ---- predictions ----


def prediction_file(prediction: Prediction, kind: str) -> bytes:
    """A prediction as .csv or .parquet: `row`, counted from 1, what was carried over, then its columns."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    columns = {"row": np.arange(1, len(prediction) + 1), **prediction.beside(), **prediction.columns()}
    table, sink = pa.table(columns), io.BytesIO()
    if kind == ".parquet":
        pa.parquet.write_table(table, sink)
        return sink.getvalue()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    try:  # Arrow quotes all words or none
        pa.csv.write_csv(table, sink, pa.csv.WriteOptions(include_header=False, quoting_style="none"))
    except pa.ArrowInvalid:
        writer.writerows(zip(*(_texts(column) for column in table.columns), strict=True))
        return text.getvalue().encode()
    return text.getvalue().encode() + sink.getvalue()


def _texts(column: Any) -> list[str | None]:
    """Cells as Arrow writes them to a CSV file."""
    found: list[str | None] = column.cast("string").to_pylist()
    return found


# ---- files ----


def refuse_existing(paths: list[Path]) -> None:
    for path in paths:
        if path.exists():
            raise SavedError(f"{path} exists already; choose another place with --out, or remove it.")


def write_new(files: Mapping[Path, bytes]) -> None:
    """Writes files that must not exist yet: to neighbours, to the disk, then renamed; all of them or none."""
    refuse_existing(list(files))
    try:
        for path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
        write(files)
    except OSError as error:
        for path in files:
            with suppress(OSError):
                path.unlink()
        at = error.filename.removesuffix(".new") if isinstance(error.filename, str) else next(iter(files))
        raise SavedError(f"{at} cannot be written: {error.strerror or error}. Nothing was left there.") from None
