"""The papers' networks: mlp, logistic, cnn, resnet18, gru.

Each is a factory of `inputs`, the shape of one sample, and `outputs`, the number of classes or of predicted values.
The modules are written so that `torch.func.vmap` can stack them, their last layer is called `head`, and their starting
weights come from torch's global random numbers alone.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from ..base.wording import first_line, give_again, nearest
from ..errors import FedkinError


class ModelError(FedkinError):
    """A model that cannot be found, built or fed, as a sentence."""


def mlp(inputs: tuple[int, ...], outputs: int, hidden: Sequence[int] = (64,)) -> nn.Module:
    """Fully connected layers with ReLU: (b, *inputs) -> (b, outputs)."""
    widths = [math.prod(inputs), *hidden]
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    for i, (a, b) in enumerate(pairwise(widths), 1):
        layers |= {f"hidden{i}": nn.Linear(a, b), f"relu{i}": nn.ReLU()}
    return _chain(**layers, head=nn.Linear(widths[-1], outputs))


def logistic(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """One linear layer: (b, *inputs) -> (b, outputs)."""
    return mlp(inputs, outputs, hidden=())


def cnn(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """The CNN of McMahan et al. (2017): (b, channels, height, width) -> (b, outputs).

    Padding keeps the sides before each pooling, so 28 x 28 images reach the hidden layer as 7 x 7 x 64.
    """
    channels, height, width = _image(inputs, "cnn", smallest=4)
    return _chain(
        conv1=nn.Conv2d(channels, 32, 5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, 5, padding=2),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        hidden=nn.Linear(64 * (height // 4) * (width // 4), 512),
        relu3=nn.ReLU(),
        head=nn.Linear(512, outputs),
    )


def resnet18(inputs: tuple[int, ...], outputs: int, stem: Literal["cifar", "imagenet"] = "cifar") -> nn.Module:
    """ResNet-18 of He et al. (2016): (b, channels, height, width) -> (b, outputs).

    The `imagenet` stem quarters the sides before the first stage (7 x 7 convolution of stride 2, max-pooling); the
    `cifar` stem keeps them (3 x 3 convolution of stride 1, no pooling).
    """
    channels, _, _ = _image(inputs, "resnet18", smallest=1)
    if stem not in ("cifar", "imagenet"):
        raise ModelError(f"The model resnet18 has no stem {stem!r}; it has 'cifar' and 'imagenet'.")
    imagenet = stem == "imagenet"
    network = _chain(
        conv=_conv(channels, 64, 7, stride=2) if imagenet else _conv(channels, 64, 3),
        norm=nn.BatchNorm2d(64),
        relu=nn.ReLU(),
        pool=nn.MaxPool2d(3, stride=2, padding=1) if imagenet else nn.Identity(),
        stage1=nn.Sequential(BasicBlock(64, 64), BasicBlock(64, 64)),
        stage2=nn.Sequential(BasicBlock(64, 128, stride=2), BasicBlock(128, 128)),
        stage3=nn.Sequential(BasicBlock(128, 256, stride=2), BasicBlock(256, 256)),
        stage4=nn.Sequential(BasicBlock(256, 512, stride=2), BasicBlock(512, 512)),
        mean=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        head=nn.Linear(512, outputs),
    )
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut: (b, a, h, w) -> (b, c, h / stride, w / stride), rounded up."""

    def __init__(self, a: int, c: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(a, c, 3, stride), nn.BatchNorm2d(c)
        self.conv2, self.norm2 = _conv(c, c, 3), nn.BatchNorm2d(c)
        same = a == c and stride == 1
        self.shortcut = nn.Identity() if same else _chain(conv=_conv(a, c, 1, stride), norm=nn.BatchNorm2d(c))

    def forward(self, x: Tensor) -> Tensor:
        residual = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(residual + self.shortcut(x))


def gru(inputs: tuple[int, ...], outputs: int, hidden: int = 100, teacher: bool = False) -> nn.Module:
    """GRU encoder-decoder as in CNFGNN (Meng et al. 2021): (b, observed + outputs, features) -> (b, outputs).

    `inputs` is (observed + outputs, features): the window and, after it, the steps to predict. See `EncoderDecoder` for
    what is read of the latter. `teacher`: the decoder is told the truth of earlier steps, in testing too, so that every
    error is of one step ahead; for comparison with tables that were made so.
    """
    if len(inputs) != 2 or inputs[0] <= outputs or inputs[1] < 1:
        raise ModelError(
            f"The model gru takes samples of shape (observed steps + {outputs} predicted steps, features), but one "
            f"sample has shape {inputs}; twelve observed steps of two features would be {(12 + outputs, 2)}."
        )
    return EncoderDecoder(inputs[1], outputs, hidden, teacher)


class EncoderDecoder(nn.Module):
    """Reads x[:, :-outputs] with one GRU cell and predicts the first feature of x[:, -outputs:] with another.

    Decoder step 0 reads the last observed step, x[:, -outputs - 1]. Step k > 0 reads the model's own output of step
    k - 1 together with that same step's further features, x[:, -outputs + k - 1, 1:] (such as the time of day, known
    ahead). The first feature of x[:, -outputs:] and all of x[:, -1] have no effect and may be zeros. With a `teacher`,
    step k > 0 reads the true x[:, -outputs + k - 1] in place of the model's own output, and the last step alone has no
    effect.
    """

    def __init__(self, features: int, outputs: int, hidden: int, teacher: bool = False) -> None:
        super().__init__()
        self.outputs, self.hidden, self.teacher = outputs, hidden, teacher
        self.encoder = GRUCell(features, hidden)
        self.decoder = GRUCell(features, hidden)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        past, future = x[:, : -self.outputs], x[:, -self.outputs :]
        h = x.new_zeros(x.shape[0], self.hidden)
        for step in past.unbind(1):
            h = self.encoder(step, h)
        read, predicted = past[:, -1], []
        for step in future.unbind(1):
            h = self.decoder(read, h)
            predicted.append(self.head(h))
            read = step if self.teacher else torch.cat((predicted[-1], step[:, 1:]), 1)
        return torch.cat(predicted, 1)


class GRUCell(nn.Module):
    """One step of `nn.GRU`, which vmap cannot stack: x (b, features), h (b, hidden) -> (b, hidden).

    `input` and `state` hold nn.GRU's weight_ih and weight_hh: gates in the order reset, update, new.
    """

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.input = nn.Linear(features, 3 * hidden)
        self.state = nn.Linear(hidden, 3 * hidden)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)  # nn.GRU's; nn.Linear would look at `features`

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        xr, xz, xn = self.input(x).chunk(3, -1)
        hr, hz, hn = self.state(h).chunk(3, -1)
        r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
        n = torch.tanh(xn + r * hn)
        return (1 - z) * n + z * h


def _chain(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def _conv(a: int, c: int, size: int, stride: int = 1) -> nn.Conv2d:
    # A bias in front of a BatchNorm has no effect, but its gradient of pure rounding would be blown up by Adam.
    return nn.Conv2d(a, c, size, stride, padding=size // 2, bias=False)


def _image(inputs: tuple[int, ...], model: str, smallest: int) -> tuple[int, int, int]:
    shape = f"The model {model} takes images of shape (channels, height, width), but one sample has shape {inputs}"
    if len(inputs) == 2:
        raise ModelError(f"{shape}; {(1, *inputs)} would be right: add a dimension of one channel to the data.")
    if len(inputs) != 3:
        raise ModelError(f"{shape}; a grey image of 28 x 28 pixels would be (1, 28, 28).")
    if min(inputs[1:]) < smallest:
        raise ModelError(f"{shape}; height and width must be at least {smallest}, and the channels come first.")
    return inputs[0], inputs[1], inputs[2]


FACTORIES: dict[str, Callable[..., nn.Module]] = {f.__name__: f for f in (cnn, gru, logistic, mlp, resnet18)}


def names() -> list[str]:
    """The models that `build` knows by name."""
    return list(FACTORIES)


def build(
    name: str | Callable[..., nn.Module], inputs: tuple[int, ...], outputs: int, settings: Mapping[str, object]
) -> nn.Module:
    """A new model from one of `names()`, from 'package.module:factory', or from a function or class.

    The factory gets the settings, and `inputs` and `outputs` as keywords if it takes them.
    """
    label = repr(name) if isinstance(name, str) else getattr(name, "__qualname__", type(name).__name__)
    factory = _find(name) if isinstance(name, str) else name
    if isinstance(factory, nn.Module) or not callable(factory):
        raise ModelError(f"The model {label} must be a function or class that builds a module, not {_a(factory)}.")
    try:
        module: object = factory(**_arguments(factory, label, {"inputs": inputs, "outputs": outputs}, settings))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"The model {label} could not be built for samples of shape {inputs} and {outputs} outputs with the "
            f"settings {dict(settings)} ({_cause(error)})."
        ) from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"The model {label} must build a torch.nn.Module, not {_a(module)}.")
    return module


def check(module: nn.Module, inputs: tuple[int, ...], outputs: int) -> None:
    """Feeds two samples of zeros and raises ModelError unless the output has shape (2, outputs)."""
    like = next(module.parameters(), torch.zeros(()))
    x = torch.zeros(2, *inputs, dtype=like.dtype, device=like.device)
    training = [part for part in module.modules() if part.training]
    try:
        with torch.no_grad():
            y: object = module.eval()(x)
    except Exception as error:
        raise ModelError(f"The model cannot read two samples of shape {inputs} ({_cause(error)}).") from error
    finally:
        for part in training:
            part.training = True
    if not isinstance(y, Tensor) or y.shape != (2, outputs):
        got = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else _a(y)
        raise ModelError(f"The model must turn two samples of shape {inputs} into shape {(2, outputs)}, not {got}.")


def _find(name: str) -> object:
    path, colon, attribute = name.partition(":")
    if not colon:
        if name not in FACTORIES:
            known = f"there are {', '.join(FACTORIES)}, or your own as 'package.module:factory'"
            raise ModelError(f"There is no model {name!r}{_perhaps(name, FACTORIES)}; {known}.")
        return FACTORIES[name]
    try:
        module = importlib.import_module(path)
    except Exception as error:
        where = "it must be installed or on Python's path"
        raise ModelError(f"The model {name!r} could not be imported ({_cause(error)}); {where}.") from error
    if not hasattr(module, attribute):
        near = _perhaps(attribute, dir(module))
        again = "" if near else f" {give_again('model')}"
        raise ModelError(f"The module {path!r} has no {attribute!r}{near}.{again}")
    return getattr(module, attribute)


def _arguments(
    factory: Callable[..., object], label: str, shape: Mapping[str, object], settings: Mapping[str, object]
) -> dict[str, object]:
    """The keywords to call a factory with: all settings, and those of `shape` that it takes."""
    parameters = inspect.signature(factory).parameters.values()
    anything = any(p.kind == p.VAR_KEYWORD for p in parameters)
    takes = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    own = {key: p for key, p in takes.items() if key not in shape}
    for key in settings:
        if key in shape:
            raise ModelError(f"The model {label} gets {key!r} from the data; it cannot be a setting.")
        if key not in own and not anything:
            known = f"it takes {', '.join(own)}" if own else "it takes none"
            raise ModelError(f"The model {label} has no setting {key!r}{_perhaps(key, own)}; {known}.")
    missing = [key for key, p in own.items() if p.default is p.empty and key not in settings]
    if missing:
        raise ModelError(f"The model {label} cannot be built without the setting {' and '.join(missing)}.")
    return {key: value for key, value in shape.items() if key in takes or anything} | dict(settings)


def _perhaps(wrong: str, right: Iterable[str]) -> str:
    near = nearest(wrong, right, 0.6)
    return f" (perhaps {near!r} is meant)" if near else ""


def _a(thing: object) -> str:
    return f"an object of type {type(thing).__name__}"


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
