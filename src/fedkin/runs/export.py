"""A client's model for use elsewhere: its state_dict as safetensors, or the complete model as ONNX.

Everything is made and checked in memory first; then all files are written, or none.
"""

from __future__ import annotations

import csv
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
from torch import Tensor

from ..base.files import write
from ..data.preprocessing import Category, TablePreprocessing
from .saved_model import Prediction, Saved, SavedError

FORMATS = {"onnx": ".onnx", "state_dict": ".safetensors"}
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
        told = json.dumps(description(saved), indent=2).encode()
        write_new({path: state_dict(saved), path.with_suffix(".json"): told})
    return path


def suffix_of(format: str) -> str:
    if format not in FORMATS:
        raise SavedError(f"A model can be exported as {' or '.join(FORMATS)}, not as {format!r}.")
    return FORMATS[format]


def description(saved: Saved) -> dict[str, Any]:
    """What someone without fedkin has to know of a model."""
    about = saved.about
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
        "preprocessing": None if saved.preprocessing is None else saved.preprocessing.to_json(),
    }


def state_dict(saved: Saved) -> bytes:
    """The network's complete state_dict, counters too, as safetensors; tensors that are shared are written twice."""
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in saved.network.state_dict().items()}
    return safetensors.torch.save(tensors)


# ---- ONNX ----


def onnx_model(saved: Saved) -> bytes:
    """The complete model: `inputs` (batch, ...) raw numbers -> `probabilities` (batch, classes) or `values`.

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
                output_names=["probabilities" if saved.task.kind == "classification" else "values"],
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
            | ({"categories": list(c.categories)} if isinstance(c, Category) else {})
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
    """A prediction as .csv or .parquet: `row`, counted from 1, then its columns."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    columns = {"row": np.arange(1, len(prediction) + 1), **prediction.columns()}
    table, sink = pa.table(columns), io.BytesIO()
    if kind == ".parquet":
        pa.parquet.write_table(table, sink)
        return sink.getvalue()
    header = io.StringIO()
    csv.writer(header, lineterminator="\n").writerow(columns)
    # Arrow quotes all words or none, and the header always.
    quotes = "needed" if '"' in header.getvalue() else "none"
    pa.csv.write_csv(table, sink, pa.csv.WriteOptions(include_header=False, quoting_style=quotes))
    return header.getvalue().encode() + sink.getvalue()


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
