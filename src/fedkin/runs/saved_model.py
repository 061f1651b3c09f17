"""A client's model after training: loaded again, with all it needs to read new rows and to answer in words."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ..base.files import read_arrays
from ..base.task import Task
from ..base.weights import Layout
from ..data import preprocessing
from ..data import table as reading
from ..data.columns import at_most
from ..data.preprocessing import Number, Pixels, Preprocessing, TablePreprocessing
from ..data.ranges import outside
from ..errors import FedkinError
from ..training import models
from ..training.execution import Mixture
from .carried import carried
from .config import Model

VERSION = 1
"""Of what the metadata may say; a file without a version is of the first."""
NETWORKS: dict[str, Callable[[nn.Module], nn.Module]] = {"mixed_outputs": Mixture}
"""A predictor's function (cohort.PREDICTORS) as a module around the network, with the names of the saved tensors."""
NUMBERS_A_BATCH = 2**18
"""Input numbers that are predicted at once: activations of a few hundred images, or thousands of a table's rows."""

Network = Callable[..., nn.Module] | nn.Module | str
"""A function or class that builds a module, a module, or 'package.module:factory'."""


class SavedError(FedkinError):
    """A saved model cannot be loaded or used as asked; the sentence says why and what would be right."""


# ---- the file ----


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True)


class TaskTold(_Told):
    kind: Literal["classification", "regression", "survival"]
    inputs: tuple[Annotated[int, Field(ge=1)], ...]
    outputs: Annotated[int, Field(ge=1)]


class Target(_Told):
    """Of a regression: y = mean + scale * output. Of survival mean is less the median log risk of the silo's training
    patients, so that this one's is 0."""

    mean: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    scale: Annotated[float, Field(allow_inf_nan=False)] = 1.0


class About(_Told):
    """What a model's file says of itself, under the metadata key `fedkin`. It is read, never run."""

    client: str
    method: str
    chosen: str
    predictor: str | None = None
    model: Model
    task: TaskTold
    classes: tuple[str, ...] = ()
    preprocessing: dict[str, Any] | None = None
    target: Target | None = None


def read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The named tensors of a model's file, and what it says of them."""
    if not path.is_file():
        raise SavedError(f"There is no model file {path}.")
    try:
        with safe_open(path, "pt") as file:
            told = (file.metadata() or {}).get("fedkin")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise SavedError(
            f"{path} cannot be read as safetensors ({error}): it is damaged, cut short or something else. "
            "Copy it again from the run's folder models/."
        ) from None
    if told is None:
        raise SavedError(f"{path} is no model that fedkin saved: it has no metadata named 'fedkin'.")
    try:
        about = json.loads(told)
    except (ValueError, RecursionError) as error:
        raise SavedError(f"What {path} says of itself is not JSON ({error}); the file is damaged.") from None
    if not isinstance(about, dict):
        raise SavedError(f"What {path} says of itself is not a JSON object; the file is damaged.")
    return tensors, about


def _understood(about: Mapping[str, Any], path: Path) -> About:
    version = about.get("version", VERSION)
    if version != VERSION:
        raise SavedError(
            f"{path} was written by a newer fedkin (its metadata has version {version!r}, this one reads {VERSION}); "
            "update fedkin to read it."
        )
    try:
        told = About.model_validate(about)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise SavedError(f"What {path} says of itself is wrong at {where!r}: {first['msg'].lower()}.") from None
    if told.classes and len(told.classes) != told.task.outputs:
        raise SavedError(f"{path} names {len(told.classes)} classes, but its model has {told.task.outputs} outputs.")
    if told.predictor is not None and told.predictor not in NETWORKS:
        raise SavedError(f"{path} needs the predictor {told.predictor!r}, which this fedkin does not have; update it.")
    return told


# ---- the model ----


class Complete(nn.Module):
    """From rows as `Saved.read` gives them to probabilities (n, classes), or values (n, outputs) in their own units; of
    survival log risks (n, 1), beside the median training patient's."""

    def __init__(self, prepare: nn.Module, network: nn.Module, task: Task, dtype: torch.dtype) -> None:
        super().__init__()
        self.prepare, self.network, self.task, self.dtype = prepare, network, task, dtype

    def outputs(self, rows: Tensor) -> Tensor:
        """(n, outputs) of the network itself."""
        outputs: Tensor = self.network(self.prepare(rows).to(self.dtype))
        return outputs

    def answers(self, outputs: Tensor) -> Tensor:
        if self.task.kind == "classification":
            return outputs.softmax(1)
        return self.task.target_mean + self.task.target_scale * outputs

    def forward(self, rows: Tensor) -> Tensor:
        return self.answers(self.outputs(rows))


@dataclass(frozen=True, eq=False)
class Prediction:
    """Of n rows: `labels` (n,) and `probabilities` (n, classes), or, of a regression, `values` (n,) or (n, outputs); of
    survival `values` (n,) are log risks and `risks` (n,) say how many times the hazard of the silo's median training
    patient is theirs.

    A label is the class's name where it is known, else its number; `classes` has them in the order of the columns.
    `notes`: what may surprise in the rows, in sentences. `carried`: the table's columns that the model does not read,
    as Arrow has them, and `index`, if it was a pandas frame, its own: every answer stands beside whom it is about.
    """

    classes: NDArray[Any] | None = None
    labels: NDArray[Any] | None = None
    probabilities: NDArray[Any] | None = None
    values: NDArray[Any] | None = None
    risks: NDArray[Any] | None = None
    notes: tuple[str, ...] = ()
    carried: Mapping[str, Any] = field(default_factory=dict)
    index: Any = None

    def __len__(self) -> int:
        return len(next(iter(self.columns().values())))

    def columns(self) -> dict[str, NDArray[Any]]:
        """`prediction`, then a column `probability_CLASS` for each class; several values are numbered from 0. Of
        survival `log_risk` and `risk`."""
        if self.values is not None and self.risks is not None:
            return {"log_risk": self.values, "risk": self.risks}
        if self.values is not None and self.values.ndim == 1:
            return {"prediction": self.values}
        if self.values is not None:
            return {f"prediction_{k}": column for k, column in enumerate(self.values.T)}
        assert self.classes is not None and self.labels is not None and self.probabilities is not None
        shares = {f"probability_{c}": p for c, p in zip(self.classes, self.probabilities.T, strict=True)}
        return {"prediction": self.labels, **shares}

    def beside(self) -> dict[str, Any]:
        """What was carried over, with ' (given)' behind a name that the answers have, too."""
        ours = {"row", *self.columns()}
        return {f"{name} (given)" if name in ours else name: column for name, column in self.carried.items()}

    def frame(self) -> Any:
        """A pandas frame with a row for each row: what was carried over, then `columns`."""
        try:
            import pandas as pd
        except ImportError:
            raise SavedError("A frame needs pandas: `pip install pandas`.") from None
        kept = {name: column.to_pandas().array for name, column in self.beside().items()}
        return pd.DataFrame({**kept, **self.columns()}, self.index)


@dataclass(frozen=True, repr=False, eq=False)
class Saved:
    """A client's model, ready to use, on the CPU and in evaluation mode.

    `network` has the client's weights; `module` is complete, from raw numbers to probabilities or values.
    """

    about: About
    task: Task
    preprocessing: Preprocessing | None
    network: nn.Module
    dtype: torch.dtype

    @staticmethod
    def load(path: Path | str, model: Network | None = None) -> Saved:
        """Loads a file CLIENT.safetensors of a run's folder models/.

        No file can make us run code: a network of a user's own is never imported because the file names it, but has to
        be given as `model`. A factory gets `inputs`, `outputs` and the settings that the file records.
        """
        path = Path(path)
        tensors, raw = read_file(path)
        about = _understood(raw, path)
        told, target = about.task, about.target or Target()
        if told.kind == "classification":
            task = Task.classification(told.inputs, told.outputs, about.classes)
        else:
            survival = told.kind == "survival"
            task = Task.survival(told.inputs) if survival else Task.regression(told.inputs, told.outputs)
            task = replace(task, outputs=told.outputs, target_mean=target.mean, target_scale=target.scale)
        dtype = _kind_of_number(tensors, path)
        network = _built(about, model).to(dtype)
        _fill(network, tensors, path)
        models.check(network, task.inputs, task.outputs)
        prepare = None if about.preprocessing is None else preprocessing.from_json(about.preprocessing)
        loaded = Saved(about, task, prepare, network, dtype)
        try:
            with torch.no_grad():
                loaded.module(loaded.example(2))
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise SavedError(f"The preprocessing saved in {path} does not fit its model ({error}).") from None
        return loaded

    def __repr__(self) -> str:
        return f"Saved({self.client!r}, {self.chosen} of {self.method}, {self.about.model.name})"

    @property
    def client(self) -> str:
        return self.about.client

    @property
    def method(self) -> str:
        return self.about.method

    @property
    def chosen(self) -> str:
        """Which of the method's models this is."""
        return self.about.chosen

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes' names, in the order of the outputs; empty where they have none."""
        return self.about.classes

    @cached_property
    def module(self) -> Complete:
        prepare = nn.Identity() if self.preprocessing is None else self.preprocessing.module()
        return Complete(prepare, self.network, self.task, self.dtype).eval()

    def example(self, n: int) -> Tensor:
        """(n, ...) raw numbers such as `module` reads, by lot; of a table's rows the last has nothing but gaps."""
        lots = torch.Generator().manual_seed(0)
        if isinstance(self.preprocessing, Pixels):
            return torch.rand(n, *self.preprocessing.shape, generator=lots) * self.preprocessing.divide
        if isinstance(self.preprocessing, TablePreprocessing):
            x = torch.randn(n, len(self.preprocessing.columns), generator=lots, dtype=torch.float64)
            for i, column in enumerate(self.preprocessing.columns):
                if isinstance(column, Number):
                    x[:, i] = column.mean + column.scale * x[:, i]
                else:
                    x[:, i] = torch.randint(max(1, len(column.categories)), (n,), generator=lots)
            x[-1] = torch.nan
            return x
        return torch.randn(n, *self.task.inputs, generator=lots, dtype=self.dtype)

    def read(self, rows: Any) -> Tensor:
        """(n, ...) raw numbers of what a person has: a table in any form, or an array; or the file of one."""
        if isinstance(self.preprocessing, TablePreprocessing):
            return self.preprocessing.read(rows)
        if isinstance(rows, str | Path):
            rows = _loaded(Path(rows))
        if self.preprocessing is None:
            return _array(rows, self.task.inputs)
        try:
            return self.preprocessing.read(rows)
        except FedkinError:
            raise
        except (TypeError, ValueError) as error:
            raise SavedError(f"The rows cannot be read ({error}).") from None

    def predict(self, rows: Any) -> Prediction:
        """Answers for new rows, prepared as those were that the model was trained on; in batches, so many will do."""
        beside: dict[str, Any] = {}
        if isinstance(self.preprocessing, TablePreprocessing):
            table = reading.read(rows, "the table of rows")  # once, for numbers and notes
            x = self.preprocessing.read(table)
            told = outside(self.preprocessing, table), self.preprocessing.notes(table)
            beside["notes"] = tuple(note for kind in told for note in at_most(kind))
            beside["carried"] = carried(rows, table, [column.name for column in self.preprocessing.columns])
            beside["index"] = rows.index if hasattr(rows, "iloc") else None
        else:
            x = self.read(rows)
        if not len(x):
            raise SavedError("There is no row to predict.")
        size = min(max(NUMBERS_A_BATCH // prod(self.task.inputs), 16), 4096)
        with torch.no_grad():
            outputs = torch.cat([self.module.outputs(part) for part in torch.split(x, size)])
            answers = self.module.answers(outputs)
        bad = (~torch.isfinite(answers)).any(1).nonzero()
        if len(bad):
            raise SavedError(
                f"The model's answer to row {int(bad[0]) + 1} is not a finite number; are its inputs of the size that "
                "the model was trained on?"
            )
        if self.task.kind != "classification":
            values = (answers.squeeze(1) if answers.shape[1] == 1 else answers).numpy()
            risks = np.exp(values) if self.task.kind == "survival" else None
            return Prediction(values=values, risks=risks, **beside)
        classes = np.array(self.classes) if self.classes else np.arange(self.task.outputs)
        # From the outputs, as in training: rounding may make two probabilities equal.
        return Prediction(classes, classes[outputs.argmax(1).numpy()], answers.numpy(), **beside)

    def export(self, path: Path | str, format: str = "onnx") -> Path:
        """Writes the model for use elsewhere: `onnx` (complete) or `state_dict` (the network's tensors)."""
        from .export import export

        return export(self, Path(path), format)


def _built(about: About, model: Network | None) -> nn.Module:
    """A fresh module of the file's architecture, or the one that was given."""
    if model is None and ":" in about.model.name:
        raise SavedError(
            f"The model of {about.client!r} is a network of your own, {about.model.name!r}, and no file is trusted to "
            "say what is imported: give it with `model=` in Python, or with `--model package.module:factory` on the "
            "command line."
        )
    told = about.task
    with torch.random.fork_rng([]):
        if isinstance(model, nn.Module):
            network = copy.deepcopy(model)
        else:
            network = models.build(model or about.model.name, told.inputs, told.outputs, about.model.settings)
    return network if about.predictor is None else NETWORKS[about.predictor](network)


def _fill(network: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copies the tensors into the network; they must be all that it has, integer counters aside: those stay fresh."""
    fields = {field.name: field for field in Layout.of(network).fields}
    own = dict(network.named_parameters()) | dict(network.named_buffers())
    why = "is the model the one that was trained?"
    missing, strange = [n for n in fields if n not in tensors], [n for n in tensors if n not in fields]
    if missing:
        raise SavedError(f"{path} has no tensor {_listed(missing)}, which the model needs; {why}")
    if strange:
        raise SavedError(f"{path} has a tensor {_listed(strange)}, which the model lacks; {why}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            if tuple(tensor.shape) != fields[name].shape:
                shapes = f"the shape {tuple(tensor.shape)} in {path}, but {fields[name].shape} in the model"
                raise SavedError(f"The tensor {name!r} has {shapes}; {why}")
            own[name].copy_(tensor)


def _kind_of_number(tensors: Mapping[str, Tensor], path: Path) -> torch.dtype:
    """The one floating-point type of all tensors."""
    kinds = {tensor.dtype for tensor in tensors.values()}
    if len(kinds) != 1 or not next(iter(kinds)).is_floating_point:
        found = ", ".join(sorted(map(str, kinds))) or "none"
        raise SavedError(f"The tensors of {path} should all be of one floating-point type; they are of {found}.")
    return kinds.pop()


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# ---- rows ----


def _loaded(path: Path) -> NDArray[Any]:
    """The array of a .npy, or x of a .npz; never a pickle."""
    if not path.is_file():
        raise SavedError(f"There is no file {path} with rows to predict.")
    if path.suffix.lower() not in (".npy", ".npz"):
        raise SavedError(
            f"This model was trained on arrays, so its rows are read from a .npy or a .npz, not from {path}."
        )
    try:
        found = read_arrays(path)
    except (OSError, ValueError) as error:
        raise SavedError(f"{path} cannot be read as an array of numbers ({error}).") from None
    if list(found) == [""]:
        return found[""]
    if "x" not in found:
        have = ", ".join(found) or "none"
        raise SavedError(f"{path} has no array named x, which holds the rows to predict; its arrays are {have}.")
    return found["x"]


def _array(rows: Any, shape: tuple[int, ...]) -> Tensor:
    """(n, *shape) finite numbers, of one sample or of several."""
    try:
        x = rows.detach().cpu() if isinstance(rows, Tensor) else torch.as_tensor(np.asarray(rows))
    except (TypeError, ValueError):
        raise SavedError(f"The rows must be an array of numbers of shape (rows, {_sizes(shape)}).") from None
    if tuple(x.shape) == shape:
        x = x[None]
    if tuple(x.shape[1:]) != shape:
        raise SavedError(f"The model reads rows of shape ({_sizes(shape)}), not an array of shape {tuple(x.shape)}.")
    if x.is_complex():
        raise SavedError("The rows are complex numbers; the model reads real ones.")
    bad = (~torch.isfinite(x)).flatten(1).any(1).nonzero()
    if len(bad):
        raise SavedError(f"Row {int(bad[0]) + 1} has NaN or infinite inputs; fill or remove them first.")
    return x


def _sizes(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
