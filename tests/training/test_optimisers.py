"""SGD and Adam over rows are torch's, a client at a time, also when clients stand still."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from helpers import DEVICE
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor, nn

from fedkin.training import optimisers
from fedkin.training.optimisers import Local, Optimiser, Proximal

SGD = [
    {"lr": 0.1},
    {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.05, "momentum": 0.9, "nesterov": True},
    {"lr": 0.1, "weight_decay": 0.03},
    {"lr": 0.02, "momentum": 0.7, "nesterov": True, "weight_decay": 0.1},
]
ADAM = [
    {"lr": 1e-2},
    {"lr": 1e-2, "weight_decay": 0.05},
    {"lr": 3e-2, "betas": (0.5, 0.9), "eps": 1e-4, "weight_decay": 0.01},
]
SETTINGS = [Local(optimiser="sgd", **s) for s in SGD] + [Local(optimiser="adam", **s) for s in ADAM]


def words(local: Local) -> str:
    return "-".join(f"{k}={v}" for k, v in local.model_dump(exclude_defaults=True).items()) or "adam"


every = pytest.mark.parametrize("local", SETTINGS, ids=words)


def torchs(local: Local, w: nn.Parameter) -> torch.optim.Optimizer:
    """The optimiser that torch's own users would take for one client."""
    if local.optimiser == "adam":
        return torch.optim.Adam(
            [w], local.lr, betas=local.betas, eps=local.eps, weight_decay=local.weight_decay, foreach=False
        )
    momentum, nesterov = local.momentum, local.nesterov
    return torch.optim.SGD([w], local.lr, momentum, nesterov=nesterov, weight_decay=local.weight_decay, foreach=False)


def start(m: int, d: int, dtype: torch.dtype = torch.float64) -> Tensor:
    W = torch.randn(m, d, generator=torch.Generator().manual_seed(m * 100 + d), dtype=torch.float64)
    return W.to(DEVICE, dtype)


def gradient(w: Tensor, i: int, step: int) -> Tensor:
    """A gradient that depends on the weights, the client and the step."""
    return torch.sin(w * (i + 1)) + math.cos(step) * w.abs().sqrt() - 0.3 * (i - 1)


def gradients(W: Tensor, k: int, d: int, step: int) -> Tensor:
    return torch.stack([gradient(W[i, :d], i, step) for i in range(k)])


def by_torch(
    local: Local, W: Tensor, steps: list[int], rates: list[float] | None = None, near: Proximal | None = None
) -> Tensor:
    """Rows after `steps[i]` steps of client i, each with a parameter and a torch optimiser of its own.

    near: each step is followed by the minimiser of ||w - z||^2 / (2 rate) + ||w - u||^2 / (2 beta), z where it ended.
    """
    rows = []
    for i, count in enumerate(steps):
        w, lr = nn.Parameter(W[i].clone()), local.lr if rates is None else rates[i]
        optimiser = torchs(local.model_copy(update={"lr": lr}), w)
        for step in range(count):
            w.grad = gradient(w.detach(), i, step)
            if local.clip:
                nn.utils.clip_grad_norm_([w], local.clip)
            optimiser.step()
            if near is not None:
                u, beta = near.anchor[i, : len(w)], near.beta[i].item()
                w.data = (w.data / lr + u / beta) / (1 / lr + 1 / beta)
        rows.append(w.detach())
    return torch.stack(rows)


def by_rows(
    local: Local, W: Tensor, steps: list[int], rates: list[float] | None = None, near: Proximal | None = None
) -> Tensor:
    """The same over rows; clients have to be sorted by falling number of steps."""
    W, d = W.clone(), W.shape[1]
    optimiser = Optimiser(local, W, d)
    lr = local.lr if rates is None else torch.tensor(rates, dtype=torch.float64, device=DEVICE)[:, None]
    for step in range(max(steps)):
        k = sum(count > step for count in steps)
        optimiser.step(W, gradients(W, k, d, step), lr, near)
    return W


@every
def test_each_row_moves_as_torchs_optimiser_moves_one_parameter(local: Local) -> None:
    W = start(4, 7)
    torch.testing.assert_close(by_rows(local, W, [60] * 4), by_torch(local, W, [60] * 4), rtol=1e-12, atol=1e-12)


@every
def test_single_precision_is_close_to_torchs(local: Local) -> None:
    W = start(3, 7, torch.float32)
    torch.testing.assert_close(by_rows(local, W, [20] * 3), by_torch(local, W, [20] * 3), rtol=1e-4, atol=1e-5)


LONG_ROWS = [Local(optimiser="adam", **s) for s in (*ADAM, {"lr": 1e-2, "clip": 0.5})]


@pytest.mark.parametrize("local", LONG_ROWS, ids=words)
def test_long_rows_move_as_torchs_optimiser_moves_them(local: Local) -> None:
    W, steps = start(3, optimisers.LONG + 5, torch.float32), [6, 4, 1]
    torch.testing.assert_close(by_rows(local, W, steps), by_torch(local, W, steps), rtol=1e-4, atol=1e-5)


def test_a_long_row_has_the_same_bits_alone_with_others_and_with_a_rate_of_its_own() -> None:
    local, d = Local(optimiser="adam", lr=1e-2), optimisers.LONG
    W = start(3, d, torch.float32)
    together = by_rows(local, W, [3, 3, 3])
    column = torch.tensor([[1e-2], [5e-3], [1e-2]], dtype=torch.float64, device=DEVICE)
    rows, optimiser = W.clone(), Optimiser(local, W, d)
    for step in range(3):
        optimiser.step(rows, gradients(rows, 3, d, step), column)
    assert torch.equal(rows[0], together[0]) and torch.equal(rows[2], together[2])
    assert not torch.equal(rows[1], together[1])
    assert torch.equal(by_rows(local, W[:1], [3])[0], together[0])
    optimiser.step(rows, gradients(rows, 3, d, 3), 1)  # a rate may be a whole number


@every
def test_a_client_without_batches_stands_still_while_others_go_on(local: Local) -> None:
    W, steps = start(4, 5), [25, 11, 11, 1]
    torch.testing.assert_close(by_rows(local, W, steps), by_torch(local, W, steps), rtol=1e-12, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(steps=st.lists(st.integers(0, 6), min_size=1, max_size=5), which=st.sampled_from(SETTINGS))
def test_whatever_the_numbers_of_steps_rows_do_not_touch_each_other(steps: list[int], which: Local) -> None:
    steps = sorted(steps, reverse=True)
    W = start(len(steps), 3)
    if max(steps) == 0:
        return
    torch.testing.assert_close(by_rows(which, W, steps), by_torch(which, W, steps), rtol=1e-12, atol=1e-12)


@every
def test_with_a_kept_state_clients_of_different_pasts_each_follow_their_own_optimiser(local: Local) -> None:
    """Two rounds of 7, 4 and 1 steps: Adam's bias correction counts each client's own steps."""
    W0, rounds = start(3, 5), [7, 4, 1]
    W, state = W0.clone(), None
    taken = [0, 0, 0]
    for _ in range(2):
        optimiser = Optimiser(local, W, 5, state)
        for step in range(max(rounds)):
            k = sum(count > step for count in rounds)
            G = torch.stack([gradient(W[i], i, taken[i] + step) for i in range(k)])
            optimiser.step(W, G, local.lr)
        taken = [t + r for t, r in zip(taken, rounds, strict=True)]
        state = optimiser.state
    torch.testing.assert_close(W, by_torch(local, W0, taken), rtol=1e-12, atol=1e-12)


@every
def test_a_kept_state_can_be_taken_and_put_back_client_by_client(local: Local) -> None:
    """Client 1 misses a round: its state waits for it."""
    W0 = start(3, 5)
    W = W0.clone()
    optimiser = Optimiser(local, W, 5)
    optimiser.step(W, gradients(W, 3, 5, 0), local.lr)
    present = torch.tensor([0, 2], device=DEVICE)
    some, part = W[present], optimiser.state.take(present)
    away = Optimiser(local, some, 5, part)
    away.step(some, torch.stack([gradient(some[0], 0, 1), gradient(some[1], 2, 1)]), local.lr)
    W[present] = some
    optimiser.state.put(present, part if part else away.state)
    torch.testing.assert_close(W, by_torch(local, W0, [2, 1, 2]), rtol=1e-12, atol=1e-12)


@every
def test_a_fresh_optimiser_has_no_memory_of_the_last_round(local: Local) -> None:
    W = start(2, 5)
    again = Optimiser(local, W, 5)
    first, second = W.clone(), W.clone()
    again.step(first, gradients(first, 2, 5, 0), local.lr)
    Optimiser(local, W, 5).step(second, gradients(second, 2, 5, 0), local.lr)
    assert torch.equal(first, second)


@every
def test_what_is_not_a_parameter_is_not_moved(local: Local) -> None:
    W = start(3, 8)
    before = W.clone()
    optimiser = Optimiser(local, W, 5)
    for step in range(4):
        optimiser.step(W, gradients(W, 3, 5, step), local.lr)
    assert torch.equal(W[:, 5:], before[:, 5:])
    assert (W[:, :5] != before[:, :5]).any(1).all()
    assert all(t.shape[0] == 3 and t.shape[-1] in (1, 5) for _, t in optimiser.state.items())


def test_the_first_adam_step_has_the_size_of_the_learning_rate() -> None:
    """With bias correction, whatever the size of the gradient; without, it would be 0.3 of it."""
    W = torch.zeros(3, 2, dtype=torch.float64, device=DEVICE)
    G = torch.tensor([[1e-3, -1e3], [5.0, -5.0], [1.0, -0.1]], dtype=torch.float64, device=DEVICE)
    Optimiser(Local(lr=0.01), W, 2).step(W, G, 0.01)
    torch.testing.assert_close(W.cpu(), torch.tensor([[-0.01, 0.01]] * 3).double(), rtol=1e-4, atol=0)


def test_single_precision_adam_corrects_its_bias_in_double() -> None:
    """1 - 0.999 in float32 is off by 1e-5 of itself, and so would be the first step."""
    W = torch.zeros(1, 1, device=DEVICE)
    Optimiser(Local(lr=1.0, eps=1e-30), W, 1).step(W, torch.ones_like(W), 1.0)
    assert W.item() == pytest.approx(-1.0, abs=3e-7)


# The proximal step


def near(m: int, d: int, dtype: torch.dtype = torch.float64) -> Proximal:
    """Anchors with columns that are no parameters, and a beta for each client: from far below a rate to far above."""
    beta = torch.tensor([[3e-4], [0.02], [0.5], [40.0]][:m])
    return Proximal(start(m + 1, d + 3, dtype)[1:], beta.to(DEVICE, dtype))


CLIPPED = [Local(optimiser=kind, lr=0.1, clip=0.5) for kind in ("sgd", "adam")]
with_clipped = pytest.mark.parametrize("local", SETTINGS + CLIPPED, ids=words)


@with_clipped
def test_a_step_near_an_anchor_minimises_the_linearised_problem(local: Local) -> None:
    """<p, w> + ||w - w0||^2 / (2 rate) + ||w - u||^2 / (2 beta) has no slope there; -rate p is the optimiser's step."""
    W, extra = start(4, 7), near(4, 7)
    plain = by_torch(local, W, [1] * 4)
    p = (W - plain) / local.lr
    w = by_rows(local, W, [1] * 4, near=extra).requires_grad_()
    prox = ((w - extra.anchor[:, :7]).square() / (2 * extra.beta)).sum()
    ((p * w).sum() + (w - W).square().sum() / (2 * local.lr) + prox).backward()
    assert w.grad is not None
    assert (w.grad.abs() <= 1e-9 * (1 / local.lr + 1 / extra.beta)).all()
    assert ((w - plain).abs() > 1e-5).any(1).all()


@with_clipped
@pytest.mark.parametrize("rates", [None, [0.1, 0.02, 0.3, 1e-3]], ids=["one rate", "a rate a row"])
def test_steps_near_an_anchor_are_torchs_each_followed_by_the_closed_form(
    local: Local, rates: list[float] | None
) -> None:
    W, steps, extra = start(4, 7), [25, 11, 11, 1], near(4, 7)
    expected = by_torch(local, W, steps, rates, extra)
    torch.testing.assert_close(by_rows(local, W, steps, rates, extra), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("local", LONG_ROWS, ids=words)
def test_long_rows_are_held_near_their_anchors(local: Local) -> None:
    d, steps, rates = optimisers.LONG + 5, [6, 4, 1], [0.1, 0.02, 0.3]
    W, extra = start(3, d, torch.float32), near(3, d, torch.float32)
    expected = by_torch(local, W, steps, rates, extra)
    torch.testing.assert_close(by_rows(local, W, steps, rates, extra), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("local", "d"),
    [*((local, 7) for local in SETTINGS), (Local(lr=1e-2), optimisers.LONG)],
    ids=lambda x: words(x) if isinstance(x, Local) else str(x),
)
def test_the_shorter_the_leash_the_nearer_and_never_beyond(local: Local, d: int) -> None:
    """beta = 0 ends at the anchor and infinity where the optimiser does, bit for bit; between, on the way from one to
    the other: a gradient of the proximal term would overshoot as soon as rate / beta > 2."""
    W, u = start(2, d, torch.float32), start(3, d, torch.float32)[1:]
    free, before = by_rows(local, W, [1, 1]), torch.zeros(2, d, device=DEVICE)
    assert torch.equal(by_rows(local, W, [1, 1], near=Proximal(u, torch.zeros(2, 1, device=DEVICE))), u)
    for a in (1e9, 1e3, 3.0, 1.0, 0.1, 1e-3):
        beta = torch.full((2, 1), local.lr / a, device=DEVICE)
        w = by_rows(local, W, [1, 1], near=Proximal(u, beta))
        assert ((w >= torch.minimum(u, free) - 1e-6) & (w <= torch.maximum(u, free) + 1e-6)).all()
        assert ((w - u).abs() >= before - 1e-6).all()
        before = (w - u).abs()
    infinite = torch.full((2, 1), math.inf, device=DEVICE)
    assert torch.equal(by_rows(local, W, [1, 1], near=Proximal(u, infinite)), free)


@pytest.mark.parametrize("ratio", [2.5, 100.0, 1e6])
def test_sgd_reaches_the_proximal_minimum_at_rates_where_its_gradient_form_diverges(ratio: float) -> None:
    """F(w) = (w - c)^T H (w - c) / 2: the minimum of F(w) + ||w - u||^2 / (2 beta) is known."""
    H, c, u = torch.tensor([[0.1, 1.0, 5.0]]).double(), start(2, 3).cpu(), start(3, 3).cpu()[1:]
    beta, ends = torch.full((2, 1), 0.1 / ratio, dtype=torch.float64), {}
    for exact in (True, False):
        W = torch.zeros(2, 3, dtype=torch.float64)
        optimiser = Optimiser(Local(optimiser="sgd", lr=0.1), W, 3)
        for _ in range(60):
            optimiser.step(W, H * (W - c), 0.1, Proximal(u, beta, exact))
        ends[exact] = W
    torch.testing.assert_close(ends[True], (H * c + u / beta) / (H + 1 / beta), rtol=1e-9, atol=1e-9)
    assert not ((ends[False] - u).abs() < 1e3).any()


def wandered(beta: float, exact: bool) -> float:
    """How far a client, held to where its last round ended, gets in 50 rounds of gradients that are noise."""
    source, u = torch.Generator().manual_seed(0), torch.zeros(1, 500)
    for _ in range(50):
        W, near = u.clone(), Proximal(u, torch.full((1, 1), beta), exact)
        optimiser = Optimiser(Local(lr=0.01), W, 500)
        for _ in range(10):
            optimiser.step(W, W + torch.randn(1, 500, generator=source), 0.01, near)
        u = W
    return float(u.square().mean().sqrt())


def test_under_adam_a_short_leash_holds_and_the_gradient_of_one_does_not() -> None:
    """Adam makes steps of one size of any gradient, so that a smaller beta changes nothing: a random walk is left."""
    assert wandered(1e-4, exact=True) < 0.12 * wandered(1e-3, exact=True)
    assert wandered(1e-4, exact=False) > 0.9 * wandered(1e-3, exact=False)
    assert wandered(1e-4, exact=True) < 0.01 * wandered(1e-4, exact=False)


@every
def test_what_is_not_a_parameter_has_no_anchor(local: Local) -> None:
    W, extra = start(3, 8), near(3, 5)
    before = W.clone()
    Optimiser(local, W, 5).step(W, gradients(W, 2, 5, 0), local.lr, extra)
    assert torch.equal(W[:, 5:], before[:, 5:]) and torch.equal(W[2], before[2])
    assert (W[:2, :5] != before[:2, :5]).any(1).all()


# Clipping


@pytest.mark.parametrize("limit", [0.1, 1.5, 1e6])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_each_clients_gradient_is_clipped_by_its_own_norm(limit: float, optimiser: str) -> None:
    local = Local(optimiser=optimiser, lr=0.1, clip=limit, weight_decay=0.01)
    W = start(4, 6) * torch.tensor([[0.01], [1.0], [5.0], [30.0]], device=DEVICE)
    torch.testing.assert_close(
        by_rows(local, W, [15, 15, 8, 3]), by_torch(local, W, [15, 15, 8, 3]), rtol=1e-12, atol=1e-12
    )


def test_no_limit_is_no_clipping() -> None:
    W = torch.zeros(1, 2, device=DEVICE)
    Optimiser(Local(optimiser="sgd", clip=0.0), W, 2).step(W, torch.tensor([[3e8, 4e8]], device=DEVICE), 1.0)
    assert W.tolist() == [[-3e8, -4e8]]


# Learning rates


def test_a_constant_rate_stays() -> None:
    assert {Local(lr=0.3).lr_at(k, 50) for k in range(1, 51)} == {0.3}


@pytest.mark.parametrize("schedule", ["step", "cosine"])
def test_schedules_are_torchs_with_a_step_a_round(schedule: str) -> None:
    rounds = 50
    local = Local(optimiser="sgd", lr=0.2, schedule=schedule, schedule_every=15, schedule_factor=0.3)
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
    theirs = (
        torch.optim.lr_scheduler.StepLR(optimiser, 15, 0.3)
        if schedule == "step"
        else torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, rounds)
    )
    for k in range(1, rounds + 1):
        assert local.lr_at(k, rounds) == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-9)
        optimiser.step()
        theirs.step()


@pytest.mark.parametrize("schedule", ["constant", "step", "cosine"])
def test_rates_are_positive_never_rise_and_newcomers_have_the_last(schedule: str) -> None:
    local = Local(lr=0.2, schedule=schedule, schedule_every=3)
    rates = [local.lr_at(k, 10) for k in range(1, 11)]
    assert rates[0] == 0.2
    assert all(a >= b > 0 for a, b in pairwise(rates))
    assert local.lr_at(12, 10) == rates[-1]
    assert local.lr_at(1, 0) == 0.2


def test_the_rate_given_is_the_rate_taken() -> None:
    local = Local(optimiser="sgd", lr=0.5)
    W = torch.zeros(1, 1, device=DEVICE)
    Optimiser(local, W, 1).step(W, torch.ones_like(W), 0.125)
    assert W.item() == -0.125


# Settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"lr": 0.0},
        {"optimiser": "rmsprop"},
        {"momentum": 1.0},
        {"weight_decay": -0.1},
        {"schedule": "linear"},
        {"class_weights": "some"},
        {"learning_rate": 0.1},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Local(**wrong)


def test_settings_cannot_be_changed_on_the_way() -> None:
    with pytest.raises(ValidationError):
        Local().lr = 1.0  # type: ignore[misc]
