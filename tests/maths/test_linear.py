"""Linear models to their optimum: beside scikit-learn, by their gradients, and where inputs are awkward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from fedkin.base import survival
from fedkin.maths import linear

Array = np.ndarray


def rows(n: int = 60, d: int = 7, seed: int = 0) -> tuple[Array, np.random.Generator]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng


def awkward(kind: str) -> tuple[Array, np.random.Generator]:
    x, rng = rows(30, 6)
    if kind == "collinear":
        code = np.eye(4)[rng.integers(0, 4, 30)]  # every row is of one kind: they add up to the constant
        return np.concatenate([x, code, x[:, :1]], axis=1), rng
    if kind == "constant":
        return np.concatenate([x, np.full((30, 2), 3.0), np.zeros((30, 1))], axis=1), rng
    if kind == "wide":
        return rng.normal(size=(12, 40)), rng
    if kind == "separable":
        return np.linspace(-1, 1, 30)[:, None] * 50, rng
    return np.zeros((30, 0)), rng


AWKWARD = ["collinear", "constant", "wide", "separable", "none"]


# ---- numbers ----


@pytest.mark.parametrize("penalty", [0.01, 1.0, 30.0])
def test_ridge_is_scikit_learns(penalty: float) -> None:
    x, rng = rows()
    y = x @ rng.normal(size=7) + 3 + rng.normal(size=60)
    weight = rng.uniform(0.5, 2, 60)
    found = linear.ridge(x, y, weight, penalty)
    theirs = Ridge(alpha=penalty, solver="cholesky").fit(x, y, sample_weight=weight)
    assert found == pytest.approx(np.r_[theirs.intercept_, theirs.coef_])


def test_the_penalty_is_the_one_that_errs_least_on_rows_that_are_left_out() -> None:
    for seed, noise in ((0, 0.05), (1, 1.0), (2, 5.0)):
        x, rng = rows(25, 8, seed)
        y = x @ rng.normal(size=8) + noise * rng.normal(size=25)
        weight, penalties = rng.uniform(0.5, 2, 25), (0.01, 1.0, 10.0, 100.0)
        errors = []
        for penalty in penalties:
            fits = [linear.ridge(*(part[np.arange(25) != i] for part in (x, y, weight)), penalty) for i in range(25)]
            errors.append(sum(weight[i] * (y[i] - b[0] - x[i] @ b[1:]) ** 2 for i, b in enumerate(fits)))
        assert linear.left_out(x, y, weight, penalties) == penalties[int(np.argmin(errors))]


# ---- classes ----


@pytest.mark.parametrize("penalty", [0.1, 3.0])
def test_two_classes_are_scikit_learns(penalty: float) -> None:
    x, rng = rows()
    y = x[:, 0] + rng.normal(size=60) > 0.3
    weight = rng.uniform(0.5, 2, 60)
    found = linear.logistic(x, y, weight, penalty)
    theirs = LogisticRegression(C=1 / penalty, tol=1e-12, max_iter=10_000).fit(x, y, sample_weight=weight)
    assert found == pytest.approx(np.r_[theirs.intercept_, theirs.coef_[0]], abs=1e-5)


def test_several_classes_are_scikit_learns() -> None:
    x, rng = rows(90)
    y = (x @ rng.normal(size=(7, 4)) + rng.normal(size=(90, 4))).argmax(1)
    found = linear.multinomial(x, y, 4, np.ones(90), 2.0)
    theirs = LogisticRegression(C=0.5, tol=1e-12, max_iter=10_000).fit(x, y)
    assert np.allclose(found[1:].T, theirs.coef_, atol=1e-5)
    assert found[0] - found[0].mean() == pytest.approx(theirs.intercept_ - theirs.intercept_.mean(), abs=1e-5)


def gradient(loss, found: Array) -> Array:
    b = torch.tensor(found, requires_grad=True)
    loss(b).backward()
    assert b.grad is not None
    return b.grad.numpy()


@pytest.mark.parametrize("kind", AWKWARD)
def test_at_the_optimum_there_is_no_slope_whatever_the_inputs(kind: str) -> None:
    """By torch's own gradients of the losses that networks are trained by."""
    x, rng = awkward(kind)
    n = len(x)
    inputs, weight = torch.tensor(x), torch.tensor(rng.uniform(0.5, 2, n))
    two, three = rng.permutation(np.arange(n) % 2), rng.permutation(np.arange(n) % 3)
    if kind == "separable":
        two, three = (x[:, 0] > 0).astype(np.int64), np.digitize(x[:, 0], [-20, 20])
    numbers = rng.normal(size=n)
    lived = torch.tensor(np.stack([np.round(rng.exponential(size=n), 1) + 0.1, rng.random(n) < 0.6], 1))  # with ties

    def with_penalty(value, weights):
        return value + 0.5 * 3.0 * weights.square().sum()

    def outputs(b):
        return b[0] + inputs @ b[1:]

    entropy = torch.nn.functional.cross_entropy
    binary = torch.nn.functional.binary_cross_entropy_with_logits
    cases = [
        (
            linear.logistic(x, two == 1, weight.numpy(), 3.0),
            lambda b: with_penalty(binary(outputs(b), torch.tensor(two).double(), weight, reduction="sum"), b[1:]),
        ),
        (
            linear.multinomial(x, three, 3, weight.numpy(), 3.0),
            lambda b: with_penalty(
                (weight * entropy(outputs(b), torch.tensor(three), reduction="none")).sum(), b[1:]
            ),
        ),
        (
            linear.ridge(x, numbers, weight.numpy(), 3.0),
            lambda b: with_penalty(0.5 * (weight * (outputs(b) - torch.tensor(numbers)).square()).sum(), b[1:]),
        ),
        (
            linear.cox(x, lived.numpy(), weight.numpy(), 3.0),
            lambda b: with_penalty(weight.sum() * survival.cox((inputs @ b)[:, None], lived, weight), b),
        ),
    ]  # fmt: skip
    for found, loss in cases:
        assert np.isfinite(found).all()
        assert np.abs(gradient(loss, found)).max(initial=0) < 1e-5


def test_what_is_constant_has_no_weight_and_what_is_alike_shares_it() -> None:
    x, rng = awkward("constant")
    found = linear.logistic(x - x.mean(0), rng.random(30) < 0.5, np.ones(30), 1.0)
    assert found[-3:] == pytest.approx(np.zeros(3))
    x, rng = awkward("collinear")
    found = linear.logistic(x, rng.random(30) < 0.5, np.ones(30), 1.0)
    assert found[1] == pytest.approx(found[-1])


# ---- times ----


def test_a_weight_is_a_number_of_copies_in_coxs_model() -> None:
    x, rng = rows(20, 3)
    lived = np.stack([rng.exponential(size=20) + 0.1, (rng.random(20) < 0.6).astype(float)], 1)
    times = rng.integers(1, 4, 20)
    copies = np.repeat(np.arange(20), times)
    once = linear.cox(x, lived, times.astype(float), 1.0)
    assert once == pytest.approx(linear.cox(x[copies], lived[copies], np.ones(len(copies)), 1.0), abs=1e-8)


def test_without_an_event_nobody_is_at_a_higher_risk() -> None:
    x, rng = rows(20, 3)
    lived = np.stack([rng.exponential(size=20) + 0.1, np.zeros(20)], 1)
    assert not linear.cox(x, lived, np.ones(20), 1.0).any()
