"""The attention-inducing functions: Definition 1 of the FedAMP paper, and where each of them is convex."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedkin.maths.attention import FUNCTIONS, MCP, SCAD, Attention, NegativeExponential, TamedSquareRoot
from fedkin.maths.collaboration import theory_weights

steady = settings(deadline=None, derandomize=True, database=None)
positive = st.floats(0.1, 10)
attentions = st.one_of(
    positive.map(NegativeExponential),
    positive.map(TamedSquareRoot),
    st.builds(MCP, height=positive, gamma=positive),
    st.builds(SCAD, height=positive, a=st.floats(2.1, 10)),
)
distances = st.floats(0, 200)


def tensor(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device=DEVICE)


def grid(top: float, points: int = 20_001) -> Tensor:
    """From 0 to just above `top`, meeting none of the knots that sit at round numbers."""
    return torch.linspace(0, top * (1 + math.pi * 1e-4), points, dtype=torch.float64, device=DEVICE)


def derivative(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    at = at.clone().requires_grad_()
    return torch.autograd.grad(function(at).sum(), at)[0]


def curvature(attention: Attention, t: Tensor) -> Tensor:
    """A' + 2 t A'': the curvature of x -> A(c ||x||^2) along x, over 2 c."""
    return attention.slope(t) + 2 * t * derivative(attention.slope, t)


# Definition 1


def test_the_paper_and_two_penalties_give_four_functions() -> None:
    assert set(FUNCTIONS) == {"negative_exponential", "tamed_square_root", "mcp", "scad"}
    assert set(FUNCTIONS.values()) == {NegativeExponential, TamedSquareRoot, MCP, SCAD}


@steady
@given(attentions)
def test_models_that_agree_cost_nothing(attention: Attention) -> None:
    assert attention.value(tensor(0.0)).item() == 0


@steady
@given(attentions, distances, distances)
def test_attention_functions_never_fall(attention: Attention, s: float, t: float) -> None:
    low, high = attention.value(tensor(min(s, t), max(s, t))).tolist()
    assert high >= low - 1e-12 * abs(low)
    assert attention.slope(tensor(s)).item() >= 0


@pytest.mark.parametrize("attention", [NegativeExponential(2.0), TamedSquareRoot(2.0)])
def test_two_of_the_functions_always_rise(attention: Attention) -> None:
    t = grid(40)
    assert (attention.value(t).diff() > 0).all()
    assert (attention.slope(t) > 0).all()


@steady
@given(attentions, distances, distances, st.floats(0, 1))
def test_attention_functions_are_concave(attention: Attention, s: float, t: float, share: float) -> None:
    between, left, right = attention.value(tensor(share * s + (1 - share) * t, s, t)).tolist()
    chord = share * left + (1 - share) * right
    assert between >= chord - 1e-12 * (1 + abs(chord))
    near, far = attention.slope(tensor(min(s, t), max(s, t))).tolist()
    assert far <= near


@pytest.mark.parametrize("attention", [NegativeExponential(), TamedSquareRoot(), MCP(), SCAD()])
def test_no_attention_function_is_linear(attention: Attention) -> None:
    near, far = attention.slope(tensor(0.0, 10.0)).tolist()
    assert far < near


@steady
@given(attentions, distances)
def test_the_slope_is_the_derivative(attention: Attention, t: float) -> None:
    step = 1e-5
    at = tensor(t + step)
    slope = attention.slope(at).item()
    assert derivative(attention.value, at).item() == pytest.approx(slope, rel=1e-9, abs=1e-12)
    # Second derivatives jump at the knots, and a finite difference across one of them is no derivative.
    assume(all(abs(at.item() - knot) > 2 * step for knot in knots(attention)))
    difference = (attention.value(at + step) - attention.value(at - step)).item() / (2 * step)
    assert difference == pytest.approx(slope, abs=1e-6)


def knots(attention: Attention) -> list[float]:
    """Where the pieces of A meet."""
    if isinstance(attention, TamedSquareRoot):
        return [attention.sigma**2]
    if isinstance(attention, MCP):
        return [attention.gamma * attention.height]
    if isinstance(attention, SCAD):
        return [attention.height, attention.a * attention.height]
    return []


@pytest.mark.parametrize(
    ("attention", "slope_at_zero"),
    [
        (NegativeExponential(4.0), 1 / 4.0),
        (TamedSquareRoot(0.5), 1 / (2 * 0.5)),
        (MCP(0.2, 20.0), 0.2),
        (SCAD(0.5, 3.7), 0.5),
    ],
)
def test_attention_between_equal_models_is_finite(attention: Attention, slope_at_zero: float) -> None:
    assert attention.slope(tensor(0.0)).item() == pytest.approx(slope_at_zero, rel=1e-15)
    assert attention.slope(tensor(1e-12)).item() == pytest.approx(slope_at_zero, rel=1e-9)
    step = 1e-6
    assert attention.value(tensor(step)).item() / step == pytest.approx(slope_at_zero, rel=1e-5)


@steady
@given(attentions)
def test_values_and_slopes_are_continuous_at_the_knots(attention: Attention) -> None:
    for knot in knots(attention):
        around = tensor(knot * (1 - 1e-9), knot * (1 + 1e-9))
        for function in (attention.value, attention.slope):
            before, after = function(around).tolist()
            assert after == pytest.approx(before, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("attention", "t", "expected"),
    [
        (NegativeExponential(2.0), 2.0, 1 - math.exp(-1)),
        (NegativeExponential(2.0), 1e9, 1.0),
        (TamedSquareRoot(2.0), 1.0, 0.25),
        (TamedSquareRoot(2.0), 9.0, 2.0),
        (MCP(0.5, 4.0), 1.0, 0.5 - 1 / 8),
        (MCP(0.5, 4.0), 1e9, 4.0 * 0.5**2 / 2),
        (SCAD(2.0, 3.0), 1.0, 2.0),
        (SCAD(2.0, 3.0), 4.0, (2 * 3 * 2 * 4 - 16 - 4) / 4),
        (SCAD(2.0, 3.0), 1e9, 2.0**2 * (3 + 1) / 2),
    ],
)
def test_the_functions_take_the_values_of_their_formulae(attention: Attention, t: float, expected: float) -> None:
    assert attention.value(tensor(t)).item() == pytest.approx(expected, rel=1e-14)


# Normalising without underflow


@steady
@given(attentions, st.floats(0, 1))
def test_the_logarithm_of_the_slope_is_the_slopes_logarithm(attention: Attention, t: float) -> None:
    assert attention.log_slope(tensor(t)).exp().item() == pytest.approx(attention.slope(tensor(t)).item(), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_clients_keep_a_finite_logarithm(dtype: torch.dtype) -> None:
    """Trap T14: the kernel itself is zero there, for every client alike."""
    far = torch.tensor([1e6], dtype=dtype, device=DEVICE)
    assert NegativeExponential(2.0).slope(far).item() == 0
    assert NegativeExponential(2.0).log_slope(far).item() == pytest.approx(-5e5 - math.log(2), rel=1e-7)
    assert NegativeExponential(2.0).log_slope(far).dtype == dtype


# Curvature


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        (NegativeExponential(4.0), 1 / 4.0),
        (TamedSquareRoot(0.5), 1.0),
        (MCP(0.2, 20.0), 2 * 0.2),
        (SCAD(0.5, 3.7), 2 * 3.7 * 0.5 / 2.7),
    ],
)
def test_the_lipschitz_constants_are_those_of_the_table(attention: Attention, expected: float) -> None:
    assert attention.lipschitz == pytest.approx(expected, rel=1e-14)


@steady
@given(attentions)
def test_no_curvature_exceeds_the_lipschitz_constant_and_some_reach_it(attention: Attention) -> None:
    t = grid(max(knots(attention), default=10.0))
    largest = torch.maximum(attention.slope(t).abs(), curvature(attention, t).abs()).max().item()
    assert largest == pytest.approx(attention.lipschitz, rel=2e-3)
    assert largest <= attention.lipschitz * (1 + 1e-9)


def test_the_most_negative_curvature_of_the_exponential_lies_at_one_and_a_half_sigma() -> None:
    t = grid(20.0)
    lowest, where = curvature(NegativeExponential(4.0), t).min(0)
    assert lowest.item() == pytest.approx(-2 * math.exp(-1.5) / 4.0, rel=1e-6)
    assert t[where].item() == pytest.approx(1.5 * 4.0, abs=2e-3)


@steady
@given(attentions, st.sampled_from([0.5, 1.0]), st.integers(0, 2**31))
def test_gradients_move_no_faster_than_the_lipschitz_constant(attention: Attention, c: float, seed: int) -> None:
    """||grad h(x) - grad h(y)|| <= 2 c lipschitz ||x - y|| for h(x) = A(c ||x||^2)."""
    x, y = 3 * torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(DEVICE)

    def h(x: Tensor) -> Tensor:
        return attention.value(c * x.square().sum())

    change = (derivative(h, x) - derivative(h, y)).norm().item()
    assert change <= 2 * c * attention.lipschitz * (x - y).norm().item() * (1 + 1e-9)


@pytest.mark.parametrize(
    ("attention", "radius"),
    [
        (NegativeExponential(1.0), math.sqrt(1 / 2)),
        (MCP(1.0, 2.0), math.sqrt(2 / 3)),
        (SCAD(1.0, 3.7), math.sqrt(3.7 / 3)),
        (TamedSquareRoot(1.0), None),
    ],
)
def test_only_the_tamed_square_root_is_convex(attention: Attention, radius: float | None) -> None:
    """The first radius where r -> A(r^2) bends downwards: 0.707, 0.816, 1.111, none."""
    r = grid(4.0, 40_001)[1:]
    bend = derivative(lambda r: 2 * r * attention.slope(r.square()), r)
    downwards = r[bend < -1e-9]
    if radius is None:
        assert not len(downwards)
    else:
        assert downwards[0].item() == pytest.approx(radius, abs=3e-4)


@steady
@given(positive, st.floats(0, 30))
def test_the_tamed_square_root_of_the_squared_distance_is_hubers_function(sigma: float, r: float) -> None:
    huber = F.huber_loss(tensor(r), tensor(0.0), delta=sigma).item() / sigma
    assert TamedSquareRoot(sigma).value(tensor(r).square()).item() == pytest.approx(huber, rel=1e-12, abs=1e-300)


# Trap T11: MCP and SCAD are penalties of the squared distance


@pytest.mark.parametrize("attention", [MCP(0.2, 20.0), SCAD(0.5, 3.7)])
def test_the_same_penalty_of_the_distance_would_attract_without_limit(attention: Attention) -> None:
    """Of the root, as statisticians apply it, p'(sqrt t) / (2 sqrt t) grows beyond all bounds as models meet."""
    t = tensor(1e-16)
    of_the_root = derivative(lambda t: attention.value(t.sqrt()), t).item()
    assert of_the_root > 1e6
    assert attention.slope(t).item() == attention.slope(tensor(0.0)).item() < 1


@steady
@given(positive, positive, st.floats(2.1, 10))
def test_distant_clients_do_not_help_each_other_at_all(height: float, gamma: float, a: float) -> None:
    """Hard groups: xi is exactly zero from t = gamma x height (MCP) or a x height (SCAD) on, and only from there."""
    for attention, reach in ((MCP(height, gamma), gamma * height), (SCAD(height, a), a * height)):
        squared = tensor(0.0, 0.99 * reach, 1.0000001 * reach, 1e6 * reach)
        for c in (0.5, 1.0):
            pairs = torch.zeros(4, 4, dtype=torch.float64, device=DEVICE)
            pairs[0], pairs[:, 0] = squared / c, squared / c
            xi = theory_weights(pairs, attention, alpha=0.1, c=c)
            assert xi[0, 1] > 0
            assert xi[0, 2] == xi[0, 3] == 0
