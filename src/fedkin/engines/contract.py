"""What a method has to keep to, held where its results come in."""

from __future__ import annotations

from torch import Tensor

from ..base.state import State
from ..errors import FedkinError
from ..training.evaluation import Model


class MethodError(FedkinError):
    """A method broke its contract; the sentence says where."""


def check_rows(method: str, state: State, count: int, where: str) -> None:
    for name, tensor in state.items():
        if name not in state.shared and (tensor.ndim == 0 or len(tensor) != count):
            raise MethodError(
                f"Method {method!r}, {where}: tensor {name!r} has shape {tuple(tensor.shape)}; "
                f"its first dimension should be the {count} clients."
            )


def check_model(method: str, name: str, model: Model, count: int, size: int) -> None:
    if isinstance(model, Tensor) and tuple(model.shape) != (count, size):
        raise MethodError(
            f"Method {method!r}: model {name!r} has shape {tuple(model.shape)}; it should be "
            f"({count}, {size}): a row of weights for each client."
        )
