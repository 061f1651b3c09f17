"""The papers' networks: their sizes, their equations, and that vmap can stack every one of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedkin.training import models
from fedkin.training.models import ModelError

Shape = tuple[int, ...]


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# The sizes the papers give


@pytest.mark.parametrize(("classes", "expected"), [(10, 1_663_370), (62, 1_690_046)])
def test_the_cnn_has_the_size_of_mcmahans(classes: int, expected: int) -> None:
    assert size(models.cnn((1, 28, 28), classes)) == expected


def test_the_cnn_pads_before_pooling() -> None:
    """Trap T20: without padding the hidden layer would read 4 x 4 x 64 and the model would have 582,026 parameters."""
    network = models.cnn((1, 28, 28), 10)
    assert network.get_submodule("hidden").in_features == 7 * 7 * 64
    assert size(network) != 582_026


@pytest.mark.parametrize(("stem", "expected"), [("cifar", 11_220_132), ("imagenet", 11_227_812)])
def test_resnet18_has_the_size_of_hes(stem: Any, expected: int) -> None:
    assert size(models.resnet18((3, 32, 32), 100, stem)) == expected


@pytest.mark.parametrize(("features", "hidden", "expected"), [(2, 100, 62_501), (2, 32, 6_945), (1, 100, 61_901)])
def test_the_gru_has_the_size_of_cnfgnns(features: int, hidden: int, expected: int) -> None:
    assert size(models.gru((24, features), 12, hidden)) == expected


def test_the_small_models_have_the_sizes_of_panaceas() -> None:
    assert size(models.mlp((64,), 10)) == 64 * 64 + 64 + 64 * 10 + 10
    assert size(models.mlp((2,), 2, (16, 16))) == 354
    assert size(models.mlp((6,), 6, [32, 32])) == 1_478
    assert size(models.logistic((8, 8), 10)) == 650


# What the networks compute


def test_the_mlp_is_relu_between_linear_layers() -> None:
    network = models.mlp((2, 3), 4, (5,)).double()
    W, b, V, c = network.parameters()
    x = torch.randn(7, 2, 3, dtype=torch.float64)
    assert torch.allclose(network(x), (x.reshape(7, 6) @ W.T + b).clamp(min=0) @ V.T + c, atol=1e-12)


def test_the_cnn_is_convolution_relu_and_pooling_twice() -> None:
    network = models.cnn((2, 8, 8), 3).double()
    w = dict(network.named_parameters())
    x = torch.randn(4, 2, 8, 8, dtype=torch.float64)
    y = F.max_pool2d(F.conv2d(x, w["conv1.weight"], w["conv1.bias"], padding=2).relu(), 2)
    y = F.max_pool2d(F.conv2d(y, w["conv2.weight"], w["conv2.bias"], padding=2).relu(), 2)
    y = F.linear(y.reshape(4, -1), w["hidden.weight"], w["hidden.bias"]).relu()
    assert torch.allclose(network(x), F.linear(y, w["head.weight"], w["head.bias"]), atol=1e-12)


@pytest.mark.parametrize("inputs", [(1, 4, 4), (3, 30, 17)])
def test_the_cnn_takes_any_image_that_survives_two_poolings(inputs: Shape) -> None:
    models.check(models.cnn(inputs, 5), inputs, 5)


@pytest.mark.parametrize(
    ("stem", "side", "expected"),
    [
        ("cifar", 32, [32, 16, 8, 4]),
        ("cifar", 64, [64, 32, 16, 8]),
        ("imagenet", 32, [8, 4, 2, 1]),
        ("imagenet", 64, [16, 8, 4, 2]),
    ],
)
def test_the_stages_of_resnet18_halve_the_sides_and_double_the_channels(
    stem: Any, side: int, expected: list[int]
) -> None:
    network = models.resnet18((3, side, side), 100, stem).eval()
    seen: list[Shape] = []
    for stage in range(1, 5):
        part = network.get_submodule(f"stage{stage}")
        part.register_forward_hook(lambda _m, _x, y: seen.append(tuple(y.shape)))
    with torch.no_grad():
        assert network(torch.zeros(1, 3, side, side)).shape == (1, 100)
    assert seen == [(1, 64 * 2**k, s, s) for k, s in enumerate(expected)]


def test_resnet18_has_no_bias_in_front_of_a_batchnorm() -> None:
    convolutions = [m for m in models.resnet18((3, 32, 32), 100).modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 20
    assert all(c.bias is None for c in convolutions)


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_resnet18_is_hes_residual_network(stem: Any) -> None:
    """Restated from the paper with functions, over the model's own weights and batch statistics."""
    network = models.resnet18((3, 16, 16), 5, stem).double().train()
    w = dict(network.named_parameters())
    for key in w:
        if "norm" in key:  # ones and zeros at the start would hide a norm in the wrong place
            nn.init.uniform_(w[key], 0.5, 1.5)
    x = torch.randn(4, 3, 16, 16, dtype=torch.float64)

    def layer(x: Tensor, conv: str, norm: str, stride: int) -> Tensor:
        y = F.conv2d(x, w[f"{conv}.weight"], stride=stride, padding=w[f"{conv}.weight"].shape[-1] // 2)
        return F.batch_norm(y, None, None, w[f"{norm}.weight"], w[f"{norm}.bias"], training=True)

    y = layer(x, "conv", "norm", 1 if stem == "cifar" else 2).relu()
    y = y if stem == "cifar" else F.max_pool2d(y, 3, stride=2, padding=1)
    for stage in range(1, 5):
        for block in range(2):
            at, stride = f"stage{stage}.{block}.", 2 if stage > 1 and block == 0 else 1
            residual = layer(y, f"{at}conv1", f"{at}norm1", stride).relu()
            residual = layer(residual, f"{at}conv2", f"{at}norm2", 1)
            shortcut = layer(y, f"{at}shortcut.conv", f"{at}shortcut.norm", stride) if stride == 2 else y
            y = (shortcut + residual).relu()
    assert torch.allclose(network(x), F.linear(y.mean((2, 3)), w["head.weight"], w["head.bias"]), atol=1e-9)


def test_resnet18_starts_with_kaimings_variance() -> None:
    for module in models.resnet18((3, 32, 32), 100).modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 30_000:
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.03)


# The GRU


def copied(cell: models.GRUCell) -> nn.GRU:
    """torch's GRU with the weights of our cell."""
    hidden, features = cell.state.in_features, cell.input.in_features
    theirs = nn.GRU(features, hidden, batch_first=True, dtype=torch.float64)
    names = {"weight_ih_l0": "input.weight", "weight_hh_l0": "state.weight"}
    names |= {"bias_ih_l0": "input.bias", "bias_hh_l0": "state.bias"}
    theirs.load_state_dict({their: cell.get_parameter(our) for their, our in names.items()})
    return theirs


def test_the_cell_is_torchs_gru() -> None:
    cell = models.GRUCell(3, 7).double()
    x, h = torch.randn(4, 9, 3, dtype=torch.float64), torch.randn(4, 7, dtype=torch.float64)
    expected, _ = copied(cell)(x, h[None])
    for t in range(9):
        h = cell(x[:, t], h)
        assert torch.allclose(h, expected[:, t], rtol=0, atol=1e-12)


def test_the_cell_starts_like_torchs_gru() -> None:
    """Uniform up to 1 / sqrt(hidden) for all four tensors, whatever the number of features."""
    for parameter in models.GRUCell(2, 100).parameters():
        assert 0.09 < parameter.abs().max().item() <= 0.1


@pytest.mark.parametrize("features", [1, 2, 3])
def test_the_decoder_feeds_back_its_output_with_the_known_features_of_that_step(features: int) -> None:
    """Restated with torch's GRU, a step at a time as CNFGNN's decoder does."""
    network = models.gru((9, features), 4, hidden=6).double()
    assert isinstance(network, models.EncoderDecoder)
    x = torch.randn(5, 9, features, dtype=torch.float64)
    _, state = copied(network.encoder)(x[:, :5])
    decoder, read, expected = copied(network.decoder), x[:, 4:5], []
    for k in range(4):
        out, state = decoder(read, state)
        expected.append(network.head(out[:, 0]))
        read = torch.cat((expected[-1], x[:, 5 + k, 1:]), 1)[:, None]
    assert torch.allclose(network(x), torch.cat(expected, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_the_future_is_never_read(training: bool) -> None:
    """Trap T21: what is to be predicted may be anything, even NaN, in training and in evaluation alike."""
    network = models.gru((10, 2), 4, hidden=5).train(training)
    x = torch.randn(3, 10, 2)
    poisoned = x.clone()
    poisoned[:, 6:, 0] = torch.nan
    poisoned[:, -1] = torch.nan
    assert torch.equal(network(x), network(poisoned))


def test_each_output_reads_the_known_features_of_earlier_steps_only() -> None:
    """Output k depends on the time of day of the future steps 0 to k - 1, and on every observed step."""
    network = models.gru((10, 2), 4, hidden=5).double()
    x = torch.randn(3, 10, 2, dtype=torch.float64, requires_grad=True)
    for k in range(4):
        (slope,) = torch.autograd.grad(network(x)[:, k].sum(), x)
        assert slope[:, :6].abs().min() > 0
        assert torch.equal(slope[:, 6:, 1].abs().amin(0) > 0, torch.arange(4) < k)


def test_a_teacher_tells_the_truth_of_earlier_steps() -> None:
    """Trap T21, on purpose: output k reads the true steps before k, in training and in evaluation; never step k."""
    network = models.gru((10, 2), 4, hidden=5, teacher=True).double().eval()
    x = torch.randn(3, 10, 2, dtype=torch.float64, requires_grad=True)
    for k in range(4):
        (slope,) = torch.autograd.grad(network(x)[:, k].sum(), x)
        for feature in range(2):
            assert torch.equal(slope[:, 6:, feature].abs().amin(0) > 0, torch.arange(4) < k)


def test_without_a_teacher_the_truth_has_no_slope() -> None:
    network = models.gru((10, 2), 4, hidden=5).double()
    x = torch.randn(3, 10, 2, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(network(x).sum(), x)
    assert not slope[:, 6:, 0].any()
    assert slope[:, 6:9, 1].any()


def test_a_teacher_who_repeats_the_models_own_answers_changes_nothing() -> None:
    torch.manual_seed(3)
    alone = models.gru((10, 2), 4, hidden=5).double()
    taught = models.gru((10, 2), 4, hidden=5, teacher=True).double()
    taught.load_state_dict(alone.state_dict())
    x = torch.randn(3, 10, 2, dtype=torch.float64)
    told = x.clone()
    told[:, 6:, 0] = alone(x).detach()
    assert torch.allclose(taught(told), alone(x), rtol=0, atol=1e-12)
    assert not torch.allclose(taught(x), alone(x), rtol=0, atol=1e-3)


def test_the_gru_refuses_a_window_without_observed_steps() -> None:
    network = models.gru((10, 2), 4)
    with pytest.raises(ModelError, match=r"cannot read two samples of shape \(4, 2\)"):
        models.check(network, (4, 2), 4)
    for inputs in [(4, 2), (10,), (10, 2, 1)]:
        with pytest.raises(ModelError, match=r"observed steps \+ 4 predicted steps.*would be \(16, 2\)"):
            models.gru(inputs, 4)


# Stacking

STACKED: list[tuple[str, Shape, dict[str, object]]] = [
    ("mlp", (8, 8), {}),
    ("logistic", (5,), {}),
    ("cnn", (1, 8, 8), {}),
    ("resnet18", (3, 8, 8), {"stem": "cifar"}),
    ("resnet18", (3, 16, 16), {"stem": "imagenet"}),
    ("gru", (7, 2), {"hidden": 4}),
    ("gru", (7, 1), {"hidden": 4}),
    ("gru", (7, 2), {"hidden": 4, "teacher": True}),
]


@pytest.mark.parametrize(("name", "inputs", "settings"), STACKED)
def test_every_model_can_be_stacked(name: str, inputs: Shape, settings: dict[str, object]) -> None:
    """Forward pass, gradient and new buffers under vmap are those of separate modules."""
    torch.manual_seed(0)
    separate = [models.build(name, inputs, 3, settings).double() for _ in range(2)]
    x = torch.randn(2, 4, *inputs, dtype=torch.float64)
    target = torch.randn(2, 4, 3, dtype=torch.float64)
    parameters, buffers = stack_module_state(separate)

    def forward(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        b = {key: value.clone() for key, value in b.items()}  # BatchNorm writes into what it is given
        return functional_call(separate[0], (p, b), (x,)), b

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, t: Tensor) -> Tensor:
        return (forward(p, b, x)[0] - t).square().mean()

    outputs, moved = vmap(forward)(parameters, buffers, x)
    slopes = vmap(grad(loss))(parameters, buffers, x, target)
    for i, module in enumerate(separate):
        expected = module(x[i])
        assert torch.allclose(outputs[i], expected, rtol=1e-9, atol=1e-10)
        (expected - target[i]).square().mean().backward()
        for key, parameter in module.named_parameters():
            assert parameter.grad is not None
            assert torch.allclose(slopes[key][i], parameter.grad, rtol=1e-7, atol=1e-9), key
        for key, buffer in module.named_buffers():
            assert torch.allclose(moved[key][i], buffer, rtol=1e-9, atol=1e-10), key


@pytest.mark.parametrize(("name", "inputs", "settings"), STACKED)
def test_every_model_starts_from_torchs_random_numbers_and_ends_in_its_head(
    name: str, inputs: Shape, settings: dict[str, object]
) -> None:
    torch.manual_seed(1)
    first = models.build(name, inputs, 3, settings)
    other = models.build(name, inputs, 3, settings)
    torch.manual_seed(1)
    again = models.build(name, inputs, 3, settings)
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))
    assert [key for key, _ in first.named_parameters()][-1] == "head.bias"
    models.check(first, inputs, 3)


# Building by name


class Own(nn.Module):
    """A user's class that takes everything."""

    def __init__(self, inputs: Shape, outputs: int, *, width: int = 2) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs[0], outputs)
        self.width = width


def open_ended(**everything: object) -> nn.Module:
    module = nn.Identity()
    module.everything = everything  # type: ignore[assignment]
    return module


def failing(outputs: int) -> nn.Module:
    raise RuntimeError(f"no {outputs} today\nand a long story")


NOT_A_FACTORY = 3


def test_names_are_those_that_build() -> None:
    assert models.names() == ["cnn", "gru", "logistic", "mlp", "resnet18"]


def test_settings_reach_the_factory() -> None:
    assert size(models.build("mlp", (2,), 2, {"hidden": [16, 16]})) == 354


@pytest.mark.parametrize("name", [f"{__name__}:Own", Own, functools.partial(Own)])
def test_a_users_class_gets_shapes_and_settings(name: str | Callable[..., nn.Module]) -> None:
    module = models.build(name, (5,), 3, {"width": 7})
    assert isinstance(module, Own)
    assert module.width == 7
    assert module.layer.weight.shape == (3, 5)


def test_a_factory_that_takes_no_shapes_gets_settings_only() -> None:
    module = models.build("torch.nn:Linear", (5,), 3, {"in_features": 4, "out_features": 2})
    assert isinstance(module, nn.Linear)
    assert module.weight.shape == (2, 4)


def test_a_factory_that_takes_anything_gets_everything() -> None:
    module = models.build(open_ended, (5,), 3, {"depth": 1})
    assert module.everything == {"inputs": (5,), "outputs": 3, "depth": 1}


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("cnm", {}, r"no model 'cnm' \(perhaps 'cnn' is meant\); there are cnn, gru.*'package.module:factory'\."),
        ("transformer", {}, r"no model 'transformer'; there are cnn"),
        ("no_such_package.here:Net", {}, r"could not be imported \(ModuleNotFoundError: No module named"),
        (":Net", {}, r"':Net' could not be imported"),
        ("torch.nn:Liner", {}, r"module 'torch.nn' has no 'Liner' \(perhaps 'Linear' is meant\)"),
        ("torch.nn:", {}, r"module 'torch.nn' has no ''"),
        (f"{__name__}:NOT_A_FACTORY", {}, r"must be a function or class that builds a module, not .* type int"),
        (nn.Linear(1, 1), {}, r"model Linear must be a function or class that builds a module, not .* type Linear"),
        ("fractions:Fraction", {}, r"must build a torch.nn.Module, not an object of type Fraction"),
        (failing, {}, r"failing could not be built for samples of shape \(5,\) and 3 outputs .* today\)\.$"),
        ("mlp", {"hiden": [3]}, r"'mlp' has no setting 'hiden' \(perhaps 'hidden' is meant\); it takes hidden\."),
        ("logistic", {"hidden": [3]}, r"'logistic' has no setting 'hidden'; it takes none\."),
        ("mlp", {"hidden": 64}, r"'mlp' could not be built .* \{'hidden': 64\} \(TypeError"),
        ("mlp", {"outputs": 4}, r"gets 'outputs' from the data"),
        ("torch.nn:Linear", {"in_features": 5}, r"cannot be built without the setting out_features\."),
        ("cnn", {}, r"images of shape \(channels, height, width\), but one sample has shape \(5,\)"),
    ],
)
def test_what_cannot_be_built_is_said_in_a_sentence(name: Any, settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        models.build(name, (5,), 3, settings)


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_a_missing_channel_dimension_is_explained(name: str) -> None:
    with pytest.raises(ModelError, match=r"has shape \(28, 28\); \(1, 28, 28\) would be right"):
        models.build(name, (28, 28), 10, {})


def test_an_image_too_small_and_an_unknown_stem_are_refused() -> None:
    with pytest.raises(ModelError, match=r"has shape \(28, 28, 1\); .* at least 4, and the channels come first"):
        models.cnn((28, 28, 1), 10)
    with pytest.raises(ModelError, match=r"no stem 'cifar10'; it has 'cifar' and 'imagenet'"):
        models.build("resnet18", (3, 32, 32), 10, {"stem": "cifar10"})


# Checking that a model fits the data


def test_check_names_the_shapes() -> None:
    with pytest.raises(ModelError, match=r"cannot read two samples of shape \(6,\) \(RuntimeError: mat1"):
        models.check(nn.Linear(5, 3), (6,), 3)
    with pytest.raises(ModelError, match=r"shape \(5,\) into shape \(2, 4\), not shape \(2, 3\)\."):
        models.check(nn.Linear(5, 3), (5,), 4)
    with pytest.raises(ModelError, match=r"into shape \(2, 5\), not an object of type tuple\."):
        models.check(nn.GRU(5, 5), (5,), 5)
    models.check(nn.Flatten(), (2, 3), 6)


def test_check_leaves_the_model_as_it_was() -> None:
    network = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Dropout()).double().train()
    network[1].eval()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    models.check(network, (5,), 3)
    assert [part.training for part in network] == [True, False, True]
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    with pytest.raises(ModelError):
        models.check(network, (6,), 3)
    assert network.training
