"""A module for many clients at once, layer by layer: the samples of all clients lie side by side in one batch, and a
layer with weights uses a row of weights for each client.

`Plan.of` reads a module's forward pass (torch.fx). What has no weights runs as it is, on all samples: right where it
treats samples one by one, which `choosing.choose` tries with numbers. What has weights must be a layer known here.
Everything else is left to vmap, which can do more and does it more slowly.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from ..gpu import launching, layer_kernels


class Unknown(Exception):
    """A module that cannot be read layer by layer, and why: a sentence's end."""


@dataclass(frozen=True, repr=False)
class Rows:
    """The named tensors of k clients, (k, *shape) each, and where their gradients belong."""

    tensors: Mapping[str, Tensor]
    clients: int
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    """What layers wrote into `gradients` by themselves, in place of handing it to autograd."""

    def __getitem__(self, name: str) -> Tensor | None:
        return self.tensors.get(name)

    def sink(self, name: str) -> layer_kernels.Sink | None:
        """Where a layer has to write this gradient, if it is asked to."""
        gradient = self.gradients.get(name)
        return None if gradient is None else layer_kernels.Sink(gradient, name, self.written)

    def apart(self, x: Tensor) -> Tensor:
        """(k b, ...) samples side by side as (k, b, ...)."""
        return x.view(self.clients, -1, *x.shape[1:])


Rule = Callable[..., Tensor]
"""(layer, rows, the layer's name, x (k b, ...)) -> (k b, ...)"""


def linear(layer: nn.Linear, rows: Rows, name: str, x: Tensor) -> Tensor:
    """(k b, ..., inputs) -> (k b, ..., outputs): a batched product, a client a batch."""
    weight, bias = rows[f"{name}.weight"], rows[f"{name}.bias"]
    assert weight is not None
    samples = x.reshape(rows.clients, -1, x.shape[-1])
    if torch.is_autocast_enabled(x.device.type):  # a norm before it may have left float32
        samples = samples.to(torch.get_autocast_dtype(x.device.type))
    sinks = rows.sink(f"{name}.weight"), rows.sink(f"{name}.bias")
    y: Tensor = layer_kernels.call(layer_kernels.Linear, samples, weight, bias, *sinks)
    return y.reshape(*x.shape[:-1], -1)


def convolution(layer: nn.Conv2d, rows: Rows, name: str, x: Tensor) -> Tensor:
    """(k b, C, H, W) -> (k b, C', H', W')."""
    weight, bias = rows[f"{name}.weight"], rows[f"{name}.bias"]
    assert weight is not None
    if launching.usable(x) and layer_kernels.convolves(layer):
        sinks, moves = (rows.sink(f"{name}.weight"), rows.sink(f"{name}.bias")), (layer.stride, layer.padding)
        y: Tensor = layer_kernels.call(layer_kernels.Convolution, x, weight, bias, *sinks, (*moves, layer.dilation))
        return y
    # A client's images lie together, so each convolution reads and writes one piece of memory.
    each = [
        F.conv2d(own, weight[i], None if bias is None else bias[i], layer.stride, layer.padding, layer.dilation)
        for i, own in enumerate(x.chunk(rows.clients))
    ]
    return torch.cat(each)


def batch_norm(
    layer: nn.modules.batchnorm._BatchNorm,
    rows: Rows,
    name: str,
    x: Tensor,
    other: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """Each client has statistics of its own batch; its running ones, in `rows`, move as in nn.BatchNorm.

    What often follows can be done at once: adding `other` (a shortcut), and then the relu.
    """
    mean, var = rows[f"{name}.running_mean"], rows[f"{name}.running_var"]
    weight, bias = rows[f"{name}.weight"], rows[f"{name}.bias"]
    own, y = layer.training or mean is None or var is None, x
    count = x[:, 0].numel() // rows.clients
    if layer.training and count == 1:  # as torch says it
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}")
    if launching.usable(x) and own and x.ndim == 4:
        y, batch_mean, batch_var = layer_kernels.call(
            layer_kernels.BatchNorm, x, weight, bias, rows.clients, layer.eps, other, relu
        )
    else:
        axes = [1, *range(3, x.ndim + 1)]  # samples and places of (k, b, C, ...)
        spread = rows.apart(x if x.dtype == torch.float64 else x.float())
        if own:
            batch_var, batch_mean = torch.var_mean(spread, axes, correction=0)
        else:
            assert mean is not None and var is not None
            batch_mean, batch_var = mean, var
        scale = (batch_var + layer.eps).rsqrt()
        scale = scale if weight is None else scale * weight
        shift = -batch_mean * scale if bias is None else bias - batch_mean * scale
        columns = (len(scale), 1, -1, *[1] * (x.ndim - 2))
        y = (spread * scale.view(columns) + shift.view(columns)).flatten(0, 1).to(x.dtype)
        y = y if other is None else y + other
        y = torch.relu(y) if relu else y
    if layer.training and mean is not None and var is not None and layer.momentum is not None:
        with torch.no_grad():
            mean.lerp_(batch_mean.to(mean.dtype), layer.momentum)
            var.lerp_(batch_var.to(var.dtype) * (count / (count - 1)), layer.momentum)
    return y


def _affine(y: Tensor, rows: Rows, name: str, trailing: int) -> Tensor:
    """A factor and a summand for each client, shaped like one sample's last dimensions, or one a channel."""
    weight, bias = rows[f"{name}.weight"], rows[f"{name}.bias"]
    spread = rows.apart(y)
    for tensor, operation in ((weight, torch.mul), (bias, torch.add)):
        if tensor is not None:
            lead = spread.ndim - tensor.ndim - trailing
            spread = operation(spread, tensor.reshape(len(tensor), *[1] * lead, *tensor.shape[1:], *[1] * trailing))
    return spread.flatten(0, 1)


def layer_norm(layer: nn.LayerNorm, rows: Rows, name: str, x: Tensor) -> Tensor:
    return _affine(F.layer_norm(x, layer.normalized_shape, eps=layer.eps), rows, name, 0)


def group_norm(layer: nn.GroupNorm, rows: Rows, name: str, x: Tensor) -> Tensor:
    return _affine(F.group_norm(x, layer.num_groups, eps=layer.eps), rows, name, x.ndim - 2)


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.Conv2d: convolution,
    nn.BatchNorm1d: batch_norm,
    nn.BatchNorm2d: batch_norm,
    nn.LayerNorm: layer_norm,
    nn.GroupNorm: group_norm,
}


def _known(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"
    if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.momentum is None:
        return False
    return type(layer) in RULES


def _weightless(layer: nn.Module) -> bool:
    return next(layer.parameters(), next(layer.buffers(), None)) is None


class _Layer(nn.Module):
    """Stands in a module's place and computes with the rows that its plan was given."""

    def __init__(self, layer: nn.Module, name: str, plan: Plan, **further: Any) -> None:
        super().__init__()
        rule = RULES[type(layer)]
        self.compute: Callable[..., Tensor] = lambda *x: rule(layer, plan.rows, name, *x, **further)

    def forward(self, *x: Tensor) -> Tensor:
        return self.compute(*x)


class _ReluPool(nn.Module):
    """nn.ReLU and then nn.MaxPool2d over squares that do not overlap, in one look at the data."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        if launching.usable(x) and x.ndim == 4:
            y: Tensor = layer_kernels.call(layer_kernels.ReluPool, x, self.size)
            return y
        return F.max_pool2d(torch.relu(x), self.size)


def _is_relu(node: Any, layers: Mapping[str, nn.Module], users: int | None = 1) -> bool:
    """Whether a step is a relu that writes nothing in place, for so many further steps."""
    if not isinstance(node, fx.Node) or users not in (None, len(node.users)):
        return False
    if node.op == "call_module":
        layer = layers.get(str(node.target))
        return type(layer) is nn.ReLU and not layer.inplace
    return node.op == "call_function" and node.target is torch.relu


def _what_follows(norm: fx.Node, layers: Mapping[str, nn.Module]) -> list[fx.Node] | None:
    """The steps after a BatchNorm that can be done with it: a relu, or a sum of two tensors and then a relu."""
    steps, node = list[fx.Node](), norm
    while len(node.users) == 1:
        (node,) = node.users
        steps.append(node)
        if _is_relu(node, layers, users=None):
            return steps
        sums = node.op == "call_function" and node.target in (operator.add, torch.add) and not node.kwargs
        two = sums and len(node.args) == 2 and all(isinstance(own, fx.Node) for own in node.args)
        if len(steps) > 1 or not two or node.args[0] is node.args[1]:
            return None
    return None


def _square(pool: nn.Module | None) -> int | None:
    """The side of the squares that a pooling takes the largest of, if these are squares side by side, and so small that
    a byte can say which of its pixels is the largest, or none."""
    if type(pool) is not nn.MaxPool2d or pool.return_indices or pool.ceil_mode:
        return None
    size, stride = (side if isinstance(side, tuple) else (side, side) for side in (pool.kernel_size, pool.stride))
    plain = pool.padding in (0, (0, 0)) and pool.dilation in (1, (1, 1))
    return size[0] if size[0] == size[1] < 16 and size == stride and plain else None


class Plan:
    """A module's forward pass in which every layer with weights has a row of weights for each client."""

    rows: Rows

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        called = [str(node.target) for node in graph.nodes if node.op == "call_module"]
        self.repeated = {name for name in called if called.count(name) > 1}
        """Layers called more than once: their gradients add up."""
        layers = {name: module.get_submodule(name) for name in called}
        stand_ins = {n: _Layer(own, n, self) if type(own) in RULES else own for n, own in layers.items()}
        for i, node in enumerate(list(graph.nodes)):
            if node.op != "call_module":
                continue
            layer, label = layers.get(str(node.target)), f"together_{i}"
            side = _square(layer)
            if side is not None and _is_relu(relu := node.args[0], layers):
                stand_ins[label] = _ReluPool(side)
                node.target, node.args = label, relu.args[:1]
                graph.erase_node(relu)
            elif isinstance(layer, nn.BatchNorm2d) and (after := _what_follows(node, layers)) is not None:
                stand_ins[label] = _Layer(layer, str(node.target), self, relu=True)
                with graph.inserting_before(after[-1]):
                    added = [other for step in after[:-1] for other in step.args if other is not node]
                    together = graph.call_module(label, (node.args[0], *added))
                after[-1].replace_all_uses_with(together)
                for step in (*reversed(after), node):
                    graph.erase_node(step)
        self.forward = fx.GraphModule(stand_ins, graph)

    def called_once(self, name: str) -> bool:
        """Whether the layer of this weight is."""
        return name.rpartition(".")[0] not in self.repeated

    @staticmethod
    def of(module: nn.Module) -> Plan:
        """Raises Unknown where the module has a layer or a use of weights that is not known here."""
        try:
            graph = fx.Tracer().trace(module)
        except Exception as error:  # a forward pass that looks at numbers can fail in any way
            raise Unknown("its forward pass cannot be read layer by layer") from error
        for node in graph.nodes:
            if node.op == "get_attr":
                raise Unknown(f"it uses {node.target} outside of a layer")
            if node.op == "call_module":
                layer = module.get_submodule(str(node.target))
                if node.kwargs:
                    raise Unknown(f"it calls {node.target} with named arguments")
                if not _known(layer) and not _weightless(layer):
                    raise Unknown(f"it has a layer of type {type(layer).__name__}")
        if sum(node.op == "placeholder" for node in graph.nodes) != 1:
            raise Unknown("it takes more than one argument")
        return Plan(module, graph)

    def __call__(self, rows: Rows, x: Tensor) -> Tensor:
        """x (k, b, ...) -> (k, b, ...): what each client's module makes of its samples."""
        self.rows = rows
        try:
            return rows.apart(self.forward(x.flatten(0, 1)))
        finally:
            del self.rows
