"""Who helps whom: distances that keep their digits, weights that sum to one, and models mixed exactly."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers import DEVICE, ON_CPU
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedkin.base.machine import free_bytes
from fedkin.maths import collaboration
from fedkin.maths.attention import FUNCTIONS, MCP, SCAD, Attention, NegativeExponential, TamedSquareRoot
from fedkin.maths.collaboration import (
    SAME,
    automatic_weight_on_others,
    cosine_distances,
    cosine_logits,
    gaussian_logits,
    median_of_pairs,
    mix,
    narrowed,
    objective,
    only_nearest,
    softmax_of_others,
    squared_distances,
    theory_weights,
    with_self,
)

CNN = 1_663_370
"""Parameters of the papers' CNN."""

steady = settings(deadline=None, derandomize=True, database=None)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).to(DEVICE)


def close(actual: Tensor, expected: Any, rtol: float = 1e-12, atol: float = 0.0) -> None:
    expected = torch.as_tensor(expected, dtype=actual.dtype, device=actual.device).expand_as(actual)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


@pytest.fixture(scope="module")
def kindred() -> Tensor:
    """Twenty float32 models of the papers' CNN's size, a millionth of their length apart."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(CNN, generator=generator)
    W = torch.rand(20, CNN, generator=generator)
    return W.sub_(0.5).mul_(1e-6 * 12**0.5).add_(1).mul_(base).to(DEVICE)


def pairs_to_check() -> list[tuple[int, int]]:
    return [*itertools.product([0], range(1, 20)), (3, 17), (18, 19), (7, 8)]


# Distances


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("m", "d"), [(1, 5), (2, 1), (7, 40)])
def test_distances_are_those_of_the_differences(m: int, d: int, dtype: torch.dtype) -> None:
    W = random(m, d, dtype=dtype)
    distances, norms = squared_distances(W)
    assert distances.dtype == norms.dtype == torch.float64
    close(distances, cdist(W.double().cpu(), W.double().cpu(), "sqeuclidean"), atol=1e-12)
    close(norms, W.double().square().sum(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cosine_distances_are_one_less_the_cosine(dtype: torch.dtype) -> None:
    W = random(7, 40, dtype=dtype) * torch.arange(1, 8, device=DEVICE)[:, None]
    distances = cosine_distances(W)
    assert distances.dtype == torch.float64
    close(distances, cdist(W.double().cpu(), W.double().cpu(), "cosine"), atol=1e-12)


def test_distances_are_symmetric_never_negative_and_zero_to_oneself() -> None:
    W = random(9, 30)
    for distances in (squared_distances(W)[0], cosine_distances(W)):
        assert torch.equal(distances, distances.T)
        assert (distances >= 0).all()
        assert (distances.diagonal() == 0).all()


def test_models_that_almost_agree_keep_their_distances(kindred: Tensor) -> None:
    """Trap T14: an uncentred Gram matrix would keep four digits of these in float64 and none in float32."""
    distances, norms = squared_distances(kindred)
    assert 1e-12 < distances[0, 1].item() / norms[0].item() < 4e-12
    for i, j in pairs_to_check():
        direct = (kindred[i].double() - kindred[j].double()).square().sum().item()
        assert distances[i, j].item() == pytest.approx(direct, rel=1e-8, abs=0)


def test_models_that_almost_agree_keep_their_angles(kindred: Tensor) -> None:
    distances = cosine_distances(kindred)
    for i, j in pairs_to_check()[::4]:
        x, y = kindred[i].double(), kindred[j].double()
        direct = (x / x.norm() - y / y.norm()).square().sum().item() / 2
        assert distances[i, j].item() == pytest.approx(direct, rel=1e-8, abs=0)


def test_equal_models_are_recognised_as_equal() -> None:
    """Trap T27: naively 1 - cos of these is -4e-5 in float32, and a negative sigma inverts attention."""
    W = random(CNN, dtype=torch.float32).expand(20, -1)
    distances, norms = squared_distances(W)
    cosines = cosine_distances(W)
    assert (distances >= 0).all()
    assert (cosines >= 0).all()
    assert 0 <= median_of_pairs(distances) < SAME * norms.mean().item()
    assert 0 <= median_of_pairs(cosines) < SAME
    uniform = (torch.ones(20, 20, dtype=torch.float64) - torch.eye(20)) / 19
    close(softmax_of_others(gaussian_logits(distances, norms, None)), uniform)
    close(softmax_of_others(cosine_logits(cosines, None)), uniform)


@pytest.mark.parametrize("seed", range(3))
def test_no_distance_between_models_that_agree_up_to_rounding_is_negative(seed: int) -> None:
    """Three groups of four: large differences between them make the rounding within them visible."""
    groups = random(3, 200, seed=seed).repeat(4, 1)
    W = groups + 1e-15 * random(12, 200, seed=seed + 10)
    assert (squared_distances(W)[0] >= 0).all()
    assert (cosine_distances(W * torch.linspace(0.1, 3, 12, device=DEVICE)[:, None]) >= 0).all()


def test_models_that_differ_by_rounding_are_taken_for_equal() -> None:
    """Attention stays uniform rather than sort clients by their last bits."""
    base = random(1000, dtype=torch.float32)
    W = torch.where(random(20, 1000, seed=1) > 0, base, torch.nextafter(base, torch.full_like(base, torch.inf)))
    distances, norms = squared_distances(W)
    cosines = cosine_distances(W)
    assert 0 < median_of_pairs(distances) < SAME * norms.mean().item()
    assert 0 < median_of_pairs(cosines) < SAME
    assert gaussian_logits(distances, norms, None).count_nonzero() == 0
    assert cosine_logits(cosines, None).count_nonzero() == 0


def test_models_a_hair_apart_are_not_taken_for_equal() -> None:
    W = random(1000, dtype=torch.float64) + 1e-4 * random(20, 1000, seed=1)
    distances, norms = squared_distances(W)
    assert median_of_pairs(distances) > SAME * norms.mean().item()
    assert median_of_pairs(cosine_distances(W)) > SAME


def test_angles_do_not_see_lengths() -> None:
    W = random(30) * torch.tensor([[1.0], [1e-3], [2.0], [1e4]], device=DEVICE)
    assert cosine_distances(W).max().item() < 1e-15
    close(cosine_distances(torch.stack([W[0], -W[1]]))[0, 1], 2.0)
    close(cosine_distances(torch.eye(2, dtype=torch.float64))[0, 1], 1.0)


def test_a_model_of_zeros_has_no_direction() -> None:
    W = random(4, 6)
    W[1] = W[2] = 0
    distances = cosine_distances(W)
    close(distances[[1, 2], [0, 3]], [0.5, 0.5])
    assert distances[1, 2] == 0


def test_angles_may_be_taken_from_an_origin() -> None:
    """Of the updates w_i - origin; the origin itself has no direction."""
    W, origin = random(5, 23), random(23, seed=1)
    moved = (W - origin).cpu().numpy()
    close(cosine_distances(W, origin=origin), cdist(moved, moved, "cosine"), atol=1e-12)
    assert cosine_distances(W, origin=W[2])[2, 0].item() == pytest.approx(0.5)


@pytest.mark.parametrize("chosen", [[0], [4, 2, 19], list(range(1, 23, 2))])
def test_distances_may_look_at_some_columns_only(chosen: list[int]) -> None:
    W, origin, columns = random(5, 23), random(23, seed=1), torch.tensor(chosen)
    part = W[:, columns]
    distances, norms = squared_distances(W, columns)
    close(distances, cdist(part.cpu(), part.cpu(), "sqeuclidean"), atol=1e-12)
    close(norms, part.square().sum(1))
    close(cosine_distances(W, columns), cosine_distances(part), atol=1e-14)
    close(cosine_distances(W, columns, origin), cosine_distances(part - origin[columns]), atol=1e-14)


@pytest.mark.parametrize("block", [1, 5, 14, 15, 35, 114, 115, 116])
def test_the_size_of_a_block_does_not_matter(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    W, origin, xi = random(5, 23), random(23, seed=1), random(5, 5, seed=2)
    columns = torch.arange(22, 0, -2)

    def everything() -> list[Tensor]:
        return [
            *squared_distances(W),
            *squared_distances(W, columns),
            cosine_distances(W),
            cosine_distances(W, columns),
            cosine_distances(W, columns, origin),
            mix(xi, W),
        ]

    at_once = everything()
    monkeypatch.setattr(collaboration, "BLOCK" if ON_CPU else "GPU_BLOCK", block)
    for in_blocks, expected in zip(everything(), at_once, strict=True):
        close(in_blocks, expected, atol=1e-13)


def test_the_median_is_over_pairs_of_different_clients() -> None:
    distances = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 7.0], [2.0, 7.0, 0.0]], dtype=torch.float64)
    assert median_of_pairs(distances) == 2
    assert median_of_pairs(distances[:2, :2]) == 1
    assert median_of_pairs(distances[:1, :1]) == 0
    many = squared_distances(random(8, 3))[0]
    assert median_of_pairs(many) == pytest.approx(np.median(many.cpu().numpy()[np.triu_indices(8, 1)]), rel=1e-14)


# Attention over the others


@steady
@given(st.integers(2, 8), st.floats(0.01, 100), st.integers(0, 2**31))
def test_attention_is_a_distribution_over_the_others(m: int, scale: float, seed: int) -> None:
    logits = scale * random(m, m, seed=seed)
    others = softmax_of_others(logits)
    assert (others >= 0).all()
    assert (others.diagonal() == 0).all()
    close(others.sum(1), 1.0)
    kernel = (logits - logits.max()).exp().fill_diagonal_(0)
    if scale <= 10:
        close(others, kernel / kernel.sum(1, keepdim=True), rtol=1e-10)


def test_attention_survives_where_every_kernel_is_zero() -> None:
    """Trap T14: exp(-||.||^2 / (2 sigma)) vanishes for all others at once, and 0 / 0 is no weight."""
    distances = torch.full((4, 4), 1e7, dtype=torch.float64, device=DEVICE)
    distances[0, 1] -= 2 * np.log(3)
    sigma = 1.0
    assert ((-distances / (2 * sigma)).exp() == 0).all()
    others = softmax_of_others(gaussian_logits(distances, torch.ones(4), sigma))
    close(others[0], [0, 3 / 5, 1 / 5, 1 / 5], rtol=1e-8)
    close(others[1], [1 / 3, 0, 1 / 3, 1 / 3])


def test_the_logits_themselves_are_left_alone() -> None:
    logits = random(4, 4)
    before = logits.clone()
    softmax_of_others(logits)
    assert torch.equal(logits, before)


def test_a_client_alone_keeps_its_model() -> None:
    W = random(1, 5)
    others = softmax_of_others(gaussian_logits(*squared_distances(W), None))
    assert others.tolist() == [[0.0]]
    tau = automatic_weight_on_others(others)
    assert tau.tolist() == [0.0]
    assert torch.equal(mix(with_self(others, tau), W), W)
    assert torch.equal(mix(with_self(others, 0.95), W), W)
    assert softmax_of_others(cosine_logits(cosine_distances(W), None)).tolist() == [[0.0]]


def test_a_client_without_kin_keeps_its_model() -> None:
    """MCP's slope is zero beyond its reach, so the logarithms of a distant client are all -inf."""
    distances = torch.tensor([[0.0, 1.0, 99.0], [1.0, 0.0, 99.0], [99.0, 99.0, 0.0]], dtype=torch.float64)
    others = softmax_of_others(MCP(1.0, 2.0).log_slope(distances / 2))
    assert others.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert automatic_weight_on_others(others).tolist() == [0.5, 0.5, 0.0]
    assert with_self(others, 0.75).tolist() == [[0.25, 0.75, 0], [0.75, 0.25, 0], [0, 0, 1]]


def test_the_gaussian_kernel_is_the_exponential_attention() -> None:
    """Trap T3: with t half the squared distance, A'(t) is proportional to exp(-||.||^2 / (2 sigma))."""
    distances, norms = squared_distances(random(6, 4))
    logits = gaussian_logits(distances, norms, 3.0)
    close(logits.exp(), np.exp(-distances.cpu().numpy() / 6))
    close(softmax_of_others(logits), softmax_of_others(NegativeExponential(3.0).log_slope(distances / 2)))
    xi = theory_weights(distances, NegativeExponential(3.0), alpha=0.1).fill_diagonal_(0)
    close(softmax_of_others(logits), xi / xi.sum(1, keepdim=True))


def test_the_cosine_kernel_is_the_exponential_of_the_cosine() -> None:
    W = random(6, 4)
    cosines = 1 - cdist(W.cpu(), W.cpu(), "cosine")
    kernel = np.exp(3.0 * cosines) * (1 - np.eye(6))
    close(softmax_of_others(cosine_logits(cosine_distances(W), 3.0)), kernel / kernel.sum(1, keepdims=True), atol=1e-13)


@steady
@given(st.floats(1e-3, 1e3))
def test_the_automatic_sigma_does_not_see_the_scale_of_the_models(scale: float) -> None:
    W = random(6, 4)
    automatic = softmax_of_others(gaussian_logits(*squared_distances(scale * W), None))
    distances, norms = squared_distances(W)
    close(automatic, softmax_of_others(gaussian_logits(distances, norms, 0.05 * median_of_pairs(distances))), rtol=1e-9)
    cosines = cosine_distances(W)
    close(cosine_logits(cosine_distances(scale * W), None), -10 * cosines / median_of_pairs(cosines), atol=1e-10)


@pytest.mark.parametrize(("apart", "narrow"), [(1.0, 1.0), (0.1, 1.0), (0.07, 0.51), (1e-3, 0.3), (0.0, 0.3)])
def test_where_groups_are_clear_attention_narrows(apart: float, narrow: float) -> None:
    """Twelve clients, four groups at the corners of a simplex, of three members each in other directions."""
    W = torch.cat([torch.eye(4).repeat_interleave(3, 0), apart * torch.eye(12)], 1).double().to(DEVICE)
    distances, norms = squared_distances(W)
    median = median_of_pairs(distances)
    assert median == pytest.approx(2 + 2 * apart**2)
    assert narrowed(distances, median) == pytest.approx(narrow, rel=0.01)
    close(gaussian_logits(distances, norms, None), -distances / (0.1 * median * narrow), rtol=0.02, atol=1e-12)


# The weight on others


def blocks(*sizes: int) -> Tensor:
    """Uniform attention within groups of these sizes, none between."""
    groups = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return softmax_of_others(torch.where(groups[:, None] == groups, 0.0, -torch.inf).double().to(DEVICE))


@pytest.mark.parametrize("kin", [1, 2, 4, 19, 99])
def test_the_automatic_weight_counts_the_kin(kin: int) -> None:
    close(automatic_weight_on_others(blocks(kin + 1, kin + 1)), 1 - 1 / (kin + 1))


@pytest.mark.parametrize(
    ("groups", "published"),
    [
        ([20] * 5, 0.95),  # practical MNIST and FMNIST
        ([10, 26, 26], 0.9),  # practical EMNIST, the smallest group
        ([5] * 20, 0.8),  # practical CIFAR-100
        ([100], 0.99),  # IID
        ([62], 0.984),  # IID EMNIST
        ([2] * 50, 0.5),  # pathological
    ],
)
def test_the_automatic_weight_is_the_papers_for_the_papers_groups(groups: list[int], published: float) -> None:
    """The preprint's tables, with tau = 1 - 1 / (N + 1) for N similar clients."""
    smallest = automatic_weight_on_others(blocks(*groups)).min().item()
    assert round(smallest, 3) == published


def test_the_preprints_weight_for_iid_emnist_is_misprinted() -> None:
    """Trap T4: 0.084 would put eleven times less on 61 equal clients than their number asks for; 0.984 fits."""
    by_rule = 1 - 1 / 62
    assert round(by_rule, 3) == 0.984
    assert by_rule / 0.084 > 11


def test_the_automatic_weight_lies_between_one_and_all_others() -> None:
    others = softmax_of_others(3 * random(9, 9))
    tau = automatic_weight_on_others(others)
    assert (tau > 0.5).all()
    assert (tau < 1 - 1 / 9).all()


def test_the_weight_multiplies_the_others() -> None:
    """Trap T2: u_i = (1 - tau) w_i + tau z_i (preprint, equation 11), not the other way round (its equation 7)."""
    W, tau = random(20, 8), 0.95
    others = softmax_of_others(gaussian_logits(*squared_distances(W), 3.0))
    xi = with_self(others, tau)
    close(xi.diagonal(), 1 - tau)
    close(mix(xi, W), (1 - tau) * W + tau * others @ W)


def test_the_weight_may_differ_from_client_to_client() -> None:
    tau = torch.tensor([0.0, 0.5, 0.9, 1.0], dtype=torch.float64, device=DEVICE)
    xi = with_self(softmax_of_others(random(4, 4)), tau)
    close(xi.diagonal(), 1 - tau)
    assert xi[0].tolist() == [1, 0, 0, 0]


@steady
@given(st.integers(1, 8), st.floats(0, 1), st.integers(0, 2**31), st.sampled_from([torch.float32, torch.float64]))
def test_weights_in_practice_are_non_negative_and_sum_to_one(m: int, tau: float, seed: int, dtype: torch.dtype) -> None:
    others = softmax_of_others(3 * random(m, m, seed=seed, dtype=dtype))
    for weight in (tau, automatic_weight_on_others(others)):
        xi = with_self(others, weight)
        assert (xi >= 0).all()
        close(xi.sum(1), 1.0, rtol=1e-6 if dtype == torch.float32 else 1e-14)


# Theory mode

attentions: list[Attention] = [NegativeExponential(4.0), TamedSquareRoot(1.0), MCP(0.2, 20.0), SCAD(0.5, 3.7)]


@pytest.mark.parametrize("c", [0.5, 1.0])
@pytest.mark.parametrize("attention", attentions)
def test_theory_weights_are_equation_5_and_sum_to_one(attention: Attention, c: float) -> None:
    W, alpha = random(6, 4), 0.03
    xi = theory_weights(squared_distances(W)[0], attention, alpha, c)
    for i, j in itertools.permutations(range(6), 2):
        t = c * (W[i] - W[j]).square().sum()
        assert xi[i, j].item() == pytest.approx(2 * c * alpha * attention.slope(t).item(), rel=1e-12)
    close(xi.sum(1), 1.0)
    assert torch.equal(xi, xi.T)


@pytest.mark.parametrize("c", [0.5, 1.0])
@pytest.mark.parametrize("attention", attentions)
def test_theory_weights_are_non_negative_up_to_the_bound_on_alpha(attention: Attention, c: float) -> None:
    """xi_ii >= 0 iff 2 c alpha sum A'(t_ij) <= 1; for equal models the sufficient bound is the exact one."""
    distances = squared_distances(random(6, 4))[0]
    slopes = attention.slope(c * distances).fill_diagonal_(0).sum(1)
    bound = 1 / (2 * c * slopes.max().item())
    assert (theory_weights(distances, attention, 0.999 * bound, c) >= 0).all()
    assert theory_weights(distances, attention, 1.001 * bound, c).min() < 0

    sufficient = 1 / (2 * c * 5 * attention.slope(torch.zeros(1)).item())
    assert sufficient <= bound * (1 + 1e-6)
    assert (theory_weights(distances, attention, 0.999 * sufficient, c) >= 0).all()
    assert theory_weights(torch.zeros(6, 6), attention, 1.001 * sufficient, c).min() < 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_objective_counts_each_pair_once(name: str) -> None:
    W, attention = random(5, 3), FUNCTIONS[name]()
    for c in (0.5, 1.0):
        pairs = [attention.value(c * (W[i] - W[j]).square().sum()).item() for i in range(5) for j in range(i)]
        assert objective(W, attention, c).item() == pytest.approx(sum(pairs), rel=1e-12)


# Mixing


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixing_nobody_leaves_every_bit(dtype: torch.dtype) -> None:
    W = random(20, 5000, dtype=dtype)
    assert torch.equal(mix(torch.eye(20, dtype=torch.float64, device=DEVICE), W), W)


@pytest.mark.parametrize("block", [1, 20, 999, 1 << 21])
def test_mixing_is_a_matrix_product(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collaboration, "BLOCK" if ON_CPU else "GPU_BLOCK", block)
    W, xi = random(7, 503, dtype=torch.float32), with_self(softmax_of_others(random(7, 7)), 0.8)
    mixed = mix(xi, W)
    assert mixed.dtype == W.dtype
    close(mixed.double(), xi @ W.double(), rtol=0, atol=2e-6)


def test_mixing_reads_w_and_leaves_it() -> None:
    W, xi = random(4, 10), random(4, 4, seed=1)
    before = W.clone()
    mix(xi, W)
    assert torch.equal(W, before)


@pytest.mark.parametrize("block", [1, 45, 1 << 21])
def test_mixing_in_place_is_mixing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collaboration, "BLOCK" if ON_CPU else "GPU_BLOCK", block)
    W, xi = random(4, 101, dtype=torch.float32), softmax_of_others(random(4, 4, seed=1))
    expected = mix(xi, W)
    assert mix(xi, W, out=W) is W
    assert torch.equal(W, expected)


def test_there_may_be_fewer_cloud_models_than_clients() -> None:
    W, xi = random(6, 11), random(2, 6, seed=1)
    close(mix(xi, W), xi @ W, atol=1e-13)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_broken_model_spoils_those_that_give_it_no_weight(broken: float) -> None:
    """Trap T25: 0 x NaN is NaN, so such rows are left out before mixing, not weighted with zero."""
    W = random(4, 6)
    W[2, 3] = broken
    xi = torch.eye(4, dtype=torch.float64, device=DEVICE)
    assert mix(xi, W)[:, 3].isnan()[[0, 1, 3]].all()
    sound = W.isfinite().all(1)
    assert torch.equal(mix(xi[sound][:, sound], W[sound]), W[sound])


# Sparse attention


def nearest_by_hand(logits: Tensor, top: int) -> list[list[float]]:
    """Softmax over the `top` largest others, one client at a time; of equal ones the first."""
    m, weights = len(logits), []
    for i in range(m):
        others = sorted((j for j in range(m) if j != i), key=lambda j: (-logits[i, j].item(), j))[: top or m]
        kernel = {j: np.exp(logits[i, j].item() - logits[i, others[0]].item()) for j in others}
        weights.append([kernel[j] / sum(kernel.values()) if j in kernel else 0.0 for j in range(m)])
    return weights


@steady
@given(st.integers(2, 9), st.integers(0, 10), st.integers(0, 2**31), st.booleans())
def test_attention_to_the_nearest_is_softmax_over_these_alone(m: int, top: int, seed: int, tied: bool) -> None:
    logits = 3 * random(m, m, seed=seed)
    if tied:
        logits = logits.round()
    before = logits.clone()
    others = softmax_of_others(only_nearest(logits, top))
    assert torch.equal(logits, before)
    close(others, nearest_by_hand(logits, top), atol=1e-14)
    assert (others.count_nonzero(1) == min(top or m, m - 1)).all()
    tau = automatic_weight_on_others(others)
    close(with_self(others, tau).sum(1), 1.0)
    assert (tau <= 1 - 1 / (1 + min(top or m, m - 1)) + 1e-12).all()


def test_clients_beyond_reach_are_not_among_the_nearest() -> None:
    """MCP gives nothing to distant clients, also where fewer than `top` are near."""
    distances = torch.tensor(
        [[0.0, 1.0, 99.0, 99.0], [1.0, 0.0, 99.0, 99.0], [99.0, 99.0, 0.0, 99.0], [99.0] * 3 + [0.0]]
    )
    others = softmax_of_others(only_nearest(MCP(1.0, 2.0).log_slope(distances.double().to(DEVICE) / 2), 2))
    assert others.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


def sparse_attention(m: int, top: int) -> Tensor:
    others = softmax_of_others(only_nearest(random(m, m, seed=3), top))
    return with_self(others, automatic_weight_on_others(others))


class RowsThatAreSummed(TorchFunctionMode):
    """Counts the weights that enter sparse sums."""

    weights = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.embedding_bag:
            self.weights = len(args[0])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("block", [1, 7000, 1 << 21])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 2e-6), (torch.float64, 1e-14)])
def test_sparse_mixing_is_mixing_without_the_zeros(
    block: int, dtype: torch.dtype, atol: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collaboration, "BLOCK" if ON_CPU else "GPU_BLOCK", block)
    W, xi = random(120, 333, dtype=dtype), sparse_attention(120, 10)
    xi[5] = 0
    with RowsThatAreSummed() as summed:
        mixed = mix(xi, W)
    assert summed.weights == 119 * 11, "the sparse way was not taken, so this test would prove nothing"
    assert mixed.dtype == dtype and mixed.shape == W.shape
    close(mixed.double(), xi @ W.double(), rtol=0, atol=atol)
    assert (mixed[5] == 0).all()
    close(mix(xi[[7, 3]], W).double(), xi[[7, 3]] @ W.double(), rtol=0, atol=atol)
    assert torch.equal(mix(torch.eye(120, device=DEVICE), W), W)
    assert mix(xi, W, out=W) is W
    assert torch.equal(W, mixed)


def test_a_broken_model_spoils_nobody_who_does_not_attend_to_it() -> None:
    W, xi = random(100, 9), sparse_attention(100, 3)
    W[17] = torch.nan
    assert torch.equal(mix(xi, W).isnan().any(1), xi[:, 17] != 0)


# Some rows only


@pytest.mark.parametrize("rows", [[0], [5, 2], [1, 3, 4, 6]])
@pytest.mark.parametrize("block", [1, 14, 1 << 21])
def test_distances_may_be_between_some_rows_only(rows: list[int], block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collaboration, "BLOCK" if ON_CPU else "GPU_BLOCK", block)
    W, origin, among, columns = random(7, 23), random(23, seed=1), torch.tensor(rows), torch.arange(22, 0, -3)
    W[0] = torch.nan if 0 not in rows else 1.0  # what is not asked for does not matter
    among = among.to(DEVICE)
    for chosen in (None, columns):
        for found, expected in zip(
            squared_distances(W, chosen, among), squared_distances(W[among], chosen), strict=True
        ):
            close(found, expected, atol=1e-13)
        found, expected = cosine_distances(W, chosen, origin, among), cosine_distances(W[among], chosen, origin)
        close(found, expected, atol=1e-13)


def test_angles_from_an_origin_keep_the_digits_of_float64() -> None:
    W, origin = random(5, 2000, dtype=torch.float32), random(2000, seed=1, dtype=torch.float32)
    moved = (W.double() - origin.double()).cpu()
    close(cosine_distances(W, origin=origin), cdist(moved, moved, "cosine"), atol=1e-13)


# More clients than rows of a Gram matrix that are made at a time


@pytest.mark.parametrize("m", [63, 64, 65, 130])
def test_the_other_half_of_a_gram_matrix_is_its_mirror(m: int) -> None:
    W = random(m, 40)
    distances, norms = squared_distances(W)
    close(distances, cdist(W.cpu(), W.cpu(), "sqeuclidean"), atol=1e-12)
    close(norms, W.square().sum(1))
    close(cosine_distances(W), cdist(W.cpu(), W.cpu(), "cosine"), atol=1e-12)
    assert torch.equal(distances, distances.T)


# Memory

PEAK = """
import sys
import torch
from fedkin.maths.collaboration import gaussian_logits, mix, softmax_of_others, squared_distances, with_self

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024

def attend(W, out):
    others = softmax_of_others(gaussian_logits(*squared_distances(W), None))
    return mix(with_self(others, 0.9), W, out)

torch.set_num_threads(1)
m, d, in_place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "in place"
attend(torch.randn(m, 20_000), None)  # what libraries take for themselves
before = peak()
W = torch.empty(m, d)
for row in W:
    row.normal_()
result = attend(W, W if in_place else None)
print((peak() - before) / (W.nbytes * (1 if in_place else 2)))
"""


def share_of_memory(m: int, d: int, way: str) -> float:
    """The most memory that attention and mixing ever had, in parts of W and its result (in place: of W alone)."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    arguments = [sys.executable, "-c", PEAK, str(m), str(d), way]
    return float(subprocess.run(arguments, check=True, capture_output=True, text=True, env=environment).stdout)


@pytest.mark.skipif(not (ON_CPU and sys.platform == "linux"), reason="reads what Linux tells of a process")
@pytest.mark.parametrize("way", ["into a result", "in place"])
def test_attention_and_mixing_take_at_most_a_tenth_of_memory_beyond_the_models(way: str) -> None:
    assert 0.8 < share_of_memory(100, 600_000, way) <= 1.1


@pytest.mark.slow
@pytest.mark.skipif(not (ON_CPU and sys.platform == "linux"), reason="reads what Linux tells of a process")
@pytest.mark.skipif(free_bytes(torch.device("cpu")) < 10 << 30, reason="needs 10 GiB of free memory")
def test_a_thousand_cnns_are_mixed_in_place() -> None:
    assert 0.9 < share_of_memory(1000, CNN, "in place") <= 1.1


# Trap T26: TF32 and bfloat16 would round W even for xi = I


def legacy() -> None:
    torch.set_float32_matmul_precision("medium")


def older_switch() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True


def newer_switches() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def everything_at_once() -> None:
    torch.backends.fp32_precision = "tf32"


def precisions() -> tuple[str, str]:
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision


@pytest.fixture(params=[legacy, older_switch, newer_switches, everything_at_once])
def coarse(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """A way in which a program may have asked torch for less than float32; undone afterwards."""
    before, generic = precisions(), torch.backends.fp32_precision
    yield request.param
    torch.backends.fp32_precision = generic
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = before


class PrecisionOfProducts(TorchFunctionMode):
    """Notes what is in force at every float32 matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.mm) and args[0].dtype == torch.float32:
            self.seen.append(precisions())
        return func(*args, **(kwargs or {}))


def test_models_are_compared_and_mixed_in_full_precision(coarse: Callable[[], None]) -> None:
    W, xi = random(20, 4000, dtype=torch.float32), softmax_of_others(random(20, 20))

    def everything() -> list[Tensor]:
        return [mix(xi, W), mix(torch.eye(20, device=DEVICE), W), *squared_distances(W), cosine_distances(W)]

    expected = everything()
    coarse()
    asked = precisions()
    assert "tf32" in asked
    with PrecisionOfProducts() as products:
        actual = everything()
    for x, y in zip(actual, expected, strict=True):
        assert torch.equal(x, y)
    assert len(products.seen) >= 2
    assert set(products.seen) == {("ieee", "ieee")}
    assert precisions() == asked, "what the program asked for holds again afterwards"


def test_an_error_while_mixing_does_not_change_the_precision() -> None:
    before = precisions()
    with pytest.raises(RuntimeError):
        mix(torch.eye(3), random(4, 5, dtype=torch.float32))
    assert precisions() == before


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_mixing_on_a_gpu_leaves_every_bit_under_tf32(coarse: Callable[[], None]) -> None:
    W = random(100, 50_000, dtype=torch.float32).cuda()
    xi = torch.eye(100, dtype=torch.float64).cuda()
    exact, _ = squared_distances(W)
    coarse()
    assert not torch.equal(xi.float() @ W, W), "TF32 is not in force, so this test would prove nothing"
    assert torch.equal(mix(xi, W), W)
    assert torch.equal(squared_distances(W)[0], exact)
