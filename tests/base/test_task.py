"""Losses and metrics: what torch computes, found by name, with a sentence where there is none."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch import Tensor, nn

from fedkin.base.task import (
    LOSSES,
    METRICS,
    Task,
    class_weights,
    cross_entropy,
    loss_named,
    metric_named,
    metrics_for,
    reference_of,
)


def logits(b: int = 6, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(b, classes, dtype=torch.float64, generator=generator)
    return outputs.to(DEVICE), torch.randint(0, classes, (b,), generator=generator).to(DEVICE)


def largest_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().max()


def errors(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().mean(1)


errors.lower_is_better = True  # type: ignore[attr-defined]

SOMETHING = 3


class Family:
    """A place for functions, as users have them."""

    @staticmethod
    def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).abs().mean(1)


def test_cross_entropy_is_torchs() -> None:
    outputs, y = logits()
    loss = LOSSES["cross_entropy"]
    torch.testing.assert_close(loss(outputs, y, None), nn.CrossEntropyLoss()(outputs, y))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0.01, 100), min_size=3, max_size=3))
def test_class_weights_weigh_as_torchs_do(weights: list[float]) -> None:
    outputs, y = logits()
    w = torch.tensor(weights, dtype=torch.float64, device=DEVICE)
    found = LOSSES["cross_entropy"](outputs, y, w[y])
    torch.testing.assert_close(found, nn.CrossEntropyLoss(weight=w)(outputs, y), rtol=1e-12, atol=1e-12)


def test_the_squared_error_is_torchs() -> None:
    outputs, targets = torch.randn(5, 4), torch.randn(5, 4)
    torch.testing.assert_close(LOSSES["mse"](outputs, targets, None), nn.MSELoss()(outputs, targets))


def test_one_predicted_number_may_be_compared_with_a_plain_list_of_targets() -> None:
    """(b, 1) - (b,) would silently be a (b, b) table of differences."""
    outputs, targets = torch.randn(5, 1), torch.randn(5)
    torch.testing.assert_close(LOSSES["mse"](outputs, targets, None), nn.MSELoss()(outputs[:, 0], targets))
    torch.testing.assert_close(METRICS["mse"].function(outputs, targets), (outputs[:, 0] - targets).square())


def test_a_sample_of_weight_zero_does_not_count() -> None:
    outputs, y = logits()
    weight = torch.tensor([1.0, 1, 1, 1, 0, 0], dtype=torch.float64, device=DEVICE)
    loss = LOSSES["cross_entropy"]
    torch.testing.assert_close(loss(outputs, y, weight), loss(outputs[:4], y[:4], None))


def test_a_batch_without_weight_has_no_loss_and_no_nan() -> None:
    outputs, y = logits()
    assert LOSSES["cross_entropy"](outputs, y, torch.zeros(6, dtype=torch.float64, device=DEVICE)) == 0


def test_accuracy_is_the_share_of_right_answers() -> None:
    outputs = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
    assert METRICS["accuracy"].function(outputs, torch.tensor([1, 0, 0, 1])).tolist() == [1.0, 1.0, 0.0, 0.0]


def test_accuracy_rises_and_error_falls() -> None:
    rising = {name for name, metric in METRICS.items() if metric.higher_is_better}
    assert rising == {"accuracy", "balanced_accuracy", "auc", "c_index"}


# Against scikit-learn


def score(name: str, outputs: Tensor, targets: Tensor) -> float:
    return float(METRICS[name](outputs, targets).double().mean())


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3)), min_size=2, max_size=30))
def test_the_auc_of_two_classes_is_scikit_learns_with_ties(samples: list[tuple[int, int]]) -> None:
    y, odds = torch.tensor([y for y, _ in samples]), torch.tensor([float(z) for _, z in samples])
    found = score("auc", torch.stack([torch.zeros_like(odds), odds], 1), y)
    if len(set(y.tolist())) < 2:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(sk.roc_auc_score(y, odds), abs=1e-12)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(*[st.integers(0, 3)] * 5), min_size=1, max_size=25))
def test_metrics_of_several_classes_are_scikit_learns(samples: list[tuple[int, ...]]) -> None:
    """Of four classes, of which a client may have fewer: the mean is over those it has."""
    y = torch.tensor([label for label, *_ in samples])
    outputs = torch.tensor([list(row) for _, *row in samples], dtype=torch.float64)
    probability, present = outputs.softmax(1).numpy(), sorted(set(y.tolist()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of predicted classes that are not among the targets
        assert score("balanced_accuracy", outputs, y) == pytest.approx(sk.balanced_accuracy_score(y, outputs.argmax(1)))
    assert score("log_loss", outputs, y) == pytest.approx(sk.log_loss(y, probability, labels=range(4)))
    if len(present) > 1:
        rounded = probability.round(9)  # equal probabilities may differ in the last bit
        each = [sk.roc_auc_score(y == c, rounded[:, c]) for c in present]
        assert score("auc", outputs, y) == pytest.approx(np.mean(each), abs=1e-12)


def test_sure_answers_are_still_ranked() -> None:
    """Probabilities of 1 - 1e-20 and 1 - 1e-30 are one number in floating point; the order is kept all the same."""
    outputs = torch.tensor([[0.0, 60.0], [0.0, 50.0], [0.0, 55.0], [0.0, 45.0]])
    assert score("auc", outputs, torch.tensor([1, 0, 1, 0])) == 1.0
    assert score("auc", torch.cat([outputs, torch.zeros(4, 1)], 1), torch.tensor([1, 0, 1, 0])) > 0.9


def test_an_auc_of_answers_that_are_no_numbers_is_none() -> None:
    outputs = torch.tensor([[0.0, 1.0], [0.0, torch.nan], [0.0, -1.0]])
    assert np.isnan(score("auc", outputs, torch.tensor([1, 0, 0])))
    assert np.isnan(score("auc", outputs, torch.tensor([1, 1, 0])))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=1, max_size=20))
def test_errors_are_scikit_learns(samples: list[tuple[float, float]]) -> None:
    table = torch.tensor(samples, dtype=torch.float64)
    outputs, y = table[:, :1], table[:, 1]
    assert score("mse", outputs, y) == pytest.approx(sk.mean_squared_error(y, outputs))
    assert score("rmse", outputs, y) == pytest.approx(sk.root_mean_squared_error(y, outputs))
    assert score("mae", outputs, y) == pytest.approx(sk.mean_absolute_error(y, outputs))


@pytest.mark.parametrize("name", ["rmse", "mae", "mse"])
def test_errors_of_scaled_targets_are_told_in_the_targets_own_units(name: str) -> None:
    outputs, y = torch.randn(20, 1, dtype=torch.float64), torch.randn(20, dtype=torch.float64)
    own = METRICS[name](300 + 40 * outputs, 300 + 40 * y).mean()
    assert float(METRICS[name].in_units(40.0)(outputs, y).mean()) == pytest.approx(float(own))


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "auc", "log_loss"])
def test_classes_have_no_units(name: str) -> None:
    outputs, y = logits()
    assert METRICS[name].in_units(40.0)(outputs, y).tolist() == METRICS[name](outputs, y).tolist()


# Missing targets

GAPS = st.lists(
    st.lists(st.tuples(st.floats(-9, 9), st.none() | st.floats(-9, 9)), min_size=3, max_size=3), min_size=1, max_size=8
)


def with_gaps(samples: list[list[tuple[float, float | None]]]) -> tuple[Tensor, Tensor, list[float]]:
    """Outputs, targets with NaN for None, and the errors of those that are known."""
    outputs = torch.tensor([[z for z, _ in row] for row in samples], dtype=torch.float64)
    targets = torch.tensor([[torch.nan if y is None else y for _, y in row] for row in samples], dtype=torch.float64)
    return outputs, targets, [z - y for row in samples for z, y in row if y is not None]


@settings(deadline=None, max_examples=100)
@given(GAPS)
def test_missing_targets_are_left_out_of_loss_and_scores(samples: list[list[tuple[float, float | None]]]) -> None:
    outputs, targets, errors = with_gaps(samples)
    loss = LOSSES["masked_mse"](outputs, targets, None)
    if not errors:
        assert float(loss) == 0
        assert all(np.isnan(score(f"masked_{name}", outputs, targets)) for name in ("mse", "rmse", "mae"))
        return
    square = sum(e * e for e in errors) / len(errors)
    assert float(loss) == pytest.approx(square)
    assert score("masked_mse", outputs, targets) == pytest.approx(square)
    assert score("masked_rmse", outputs, targets) == pytest.approx(square**0.5)
    assert score("masked_mae", outputs, targets) == pytest.approx(sum(map(abs, errors)) / len(errors))


@settings(deadline=None, max_examples=50)
@given(GAPS)
def test_a_missing_target_pulls_nowhere(samples: list[list[tuple[float, float | None]]]) -> None:
    outputs, targets, errors = with_gaps(samples)
    outputs.requires_grad_()
    (slope,) = torch.autograd.grad(LOSSES["masked_mse"](outputs, targets, None), outputs)
    expected = [[0 if y is None else 2 * (z - y) / len(errors) for z, y in row] for row in samples]
    torch.testing.assert_close(slope, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("name", ["rmse", "mae", "mse"])
def test_where_nothing_is_missing_masked_errors_are_the_plain_ones(name: str) -> None:
    outputs, y = torch.randn(20, 3), torch.randn(20, 3)
    assert score(f"masked_{name}", outputs, y) == pytest.approx(score(name, outputs, y), rel=1e-6)
    assert METRICS[f"masked_{name}"].degree == METRICS[name].degree


def test_single_precision_does_not_blur_a_masked_score() -> None:
    """A number of known targets that is no float32 would move the seventh digit."""
    targets = torch.full((3, 3), torch.nan, dtype=torch.float64)
    targets[0] = targets[1, 0] = 0
    assert score("masked_mse", torch.ones(3, 3, dtype=torch.float64), targets) == pytest.approx(1, abs=1e-15)


def test_what_diverged_is_not_hidden() -> None:
    outputs = torch.tensor([[torch.inf, 1.0]])
    assert not np.isfinite(score("masked_mse", outputs, torch.zeros(1, 2)))
    assert np.isfinite(score("masked_mse", outputs, torch.tensor([[torch.nan, 0.0]])))


def test_metrics_of_gaps_are_for_targets_with_gaps() -> None:
    assert list(metrics_for("regression")) == ["rmse", "mae", "mse"]
    assert list(metrics_for("regression", masked=True)) == ["masked_rmse", "masked_mae", "masked_mse"]
    assert [name for name, loss in LOSSES.items() if loss.masks] == ["masked_mse"]


# Finding them


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_found_by_name(name: str) -> None:
    assert loss_named(name) is LOSSES[name]
    assert loss_named(name).per_sample == (name not in ("masked_mse", "cox"))


@pytest.mark.parametrize("name", METRICS)
def test_metrics_are_found_by_name(name: str) -> None:
    assert metric_named(name) is METRICS[name]


def test_an_unknown_loss_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no loss 'cross-entropy'; did you mean 'cross_entropy'\? known are"):
        loss_named("cross-entropy")
    with pytest.raises(ValueError, match=r"no loss 'zzz'; known are cross_entropy, mse, masked_mse, cox, or your own"):
        loss_named("zzz")


def test_an_unknown_metric_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"no metric 'acuracy'; did you mean 'accuracy'\? known are accuracy, balanced_acc"
    ):
        metric_named("acuracy")
    with pytest.raises(
        ValueError, match=r"no metric 'rms'; did you mean 'rmse'\? known are rmse, mae, mse, or your own"
    ):
        metric_named("rms", "regression")


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "auc", "log_loss"])
def test_a_metric_of_classes_is_refused_for_a_regression(name: str) -> None:
    said = rf"metric '{name}' is for classification, but this task is regression; for that there are rmse, mae, mse, or"
    with pytest.raises(ValueError, match=said):
        metric_named(name, "regression")


@pytest.mark.parametrize("name", ["rmse", "mae", "mse"])
def test_a_metric_of_numbers_is_refused_for_classes(name: str) -> None:
    with pytest.raises(ValueError, match=rf"'{name}' is for regression, .* accuracy, balanced_accuracy, auc, log_loss"):
        metric_named(name, "classification")


def test_a_users_loss_is_a_function_or_its_address() -> None:
    loss = loss_named(largest_error)
    assert not loss.per_sample and loss.name == f"{__name__}:largest_error"
    a, b = torch.zeros(3, 2), torch.tensor([[1.0, 2.0]] * 3)
    assert loss(a, b, None) == 2
    assert loss_named("torch.nn.functional:l1_loss")(a, b, None) == 1.5


def test_a_users_loss_may_give_a_value_a_sample() -> None:
    loss = loss_named(errors)
    a, b = torch.zeros(2, 2), torch.tensor([[1.0, 1.0], [3.0, 3.0]])
    assert loss(a, b, None) == 2
    assert loss(a, b, torch.tensor([3.0, 1.0])) == 1.5


def test_a_loss_of_the_whole_batch_cannot_weigh_classes() -> None:
    with pytest.raises(
        ValueError, match=r"Weights of classes or samples need a loss that gives a value a sample; .*largest_error"
    ):
        loss_named(largest_error)(torch.zeros(3, 2), torch.ones(3, 2), torch.ones(3))


def test_a_users_metric_says_itself_whether_less_is_better() -> None:
    assert metric_named(largest_error).higher_is_better
    assert not metric_named(errors).higher_is_better
    assert not metric_named(errors).per_sample
    assert metric_named("torch.nn.functional:l1_loss").name == "torch.nn.functional:l1_loss"


@pytest.mark.parametrize("reference", ["no_such_module:f", "math:no_such_function", ":f", "math:"])
def test_what_cannot_be_imported_is_named(reference: str) -> None:
    with pytest.raises(ValueError, match=f"The loss {reference!r} could not be imported"):
        loss_named(reference)
    with pytest.raises(ValueError, match=f"The metric {reference!r} could not be imported"):
        metric_named(reference)


def test_what_is_not_a_function_is_refused() -> None:
    with pytest.raises(ValueError, match=r"The loss 'math:pi' is not a function of outputs and targets\."):
        loss_named("math:pi")


@pytest.mark.parametrize("function", [largest_error, Family.absolute], ids=["function", "of a class"])
def test_a_function_is_found_again_by_its_address(function: object) -> None:
    assert loss_named(reference_of(function)).function is function


# Tasks


def test_classification_is_learned_by_cross_entropy_and_scored_by_accuracy() -> None:
    task = Task.classification((1, 8, 8), 10, ("zero", "one"))
    assert (task.kind, task.inputs, task.outputs, task.class_names) == (
        "classification",
        (1, 8, 8),
        10,
        ("zero", "one"),
    )
    assert task.loss.name == "cross_entropy" and task.metric.name == "accuracy"


def test_regression_is_learned_and_scored_by_the_squared_error() -> None:
    task = Task.regression((24, 2), 12)
    assert (task.kind, task.inputs, task.outputs) == ("regression", (24, 2), 12)
    assert task.loss.name == "mse" and task.metric.name == "mse"


# Balanced weights


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_balanced_weights_give_every_class_present_the_same_say(labels: list[int]) -> None:
    y = torch.tensor(labels)
    weights = class_weights(y, 5)
    say = torch.bincount(y, minlength=5) * weights
    present = torch.bincount(y, minlength=5) > 0
    torch.testing.assert_close(
        say[present], torch.full_like(say[present], len(labels) / int(present.sum())), rtol=1e-12, atol=0
    )
    assert not weights[~present].any()
    assert weights[y].sum().item() == pytest.approx(len(labels), rel=1e-12)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="a GPU has no need of it")
@pytest.mark.parametrize("classes", [2, 5, 7, 10, 15, 20])
@pytest.mark.parametrize("count", [8192, 8191, 4099])
def test_cross_entropy_of_few_classes_has_torchs_bits(count: int, classes: int) -> None:
    source = torch.Generator().manual_seed(count + classes)
    outputs = (3 * torch.randn(count, classes, generator=source)).requires_grad_()
    targets = torch.randint(classes, (count,), generator=source)
    slopes = torch.randn(count, generator=source)
    own, torchs = cross_entropy(outputs, targets), F.cross_entropy(outputs, targets, reduction="none")
    assert torch.equal(own, torchs)
    assert torch.equal(*(torch.autograd.grad(losses, outputs, slopes)[0] for losses in (own, torchs)))


def test_cross_entropy_of_few_classes_can_be_derived_twice() -> None:
    source = torch.Generator().manual_seed(1)
    outputs = torch.randn(4096, 3, generator=source).requires_grad_()
    targets = torch.randint(3, (4096,), generator=source)

    def curvature(losses: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(losses.sum(), outputs, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), outputs)[0]

    torchs = F.cross_entropy(outputs, targets, reduction="none")
    torch.testing.assert_close(curvature(cross_entropy(outputs, targets)), curvature(torchs))


def test_cross_entropy_of_few_classes_takes_shares_of_classes_too() -> None:
    source = torch.Generator().manual_seed(1)
    outputs = torch.randn(4096, 3, generator=source).to(DEVICE)
    shares = torch.rand(4096, 3, generator=source).to(DEVICE)
    assert torch.equal(cross_entropy(outputs, shares), F.cross_entropy(outputs, shares, reduction="none"))
