"""Metrics of samples that are drawn several times, against copies of these samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkin.base.task import METRICS
from fedkin.evidence.resampling import weighted

CLASSES = ("auc", "log_loss")


@pytest.mark.parametrize("name", ["auc", "log_loss", "rmse", "mae", "mse"])
@pytest.mark.parametrize("outputs", [2, 3])
def test_a_weight_is_a_number_of_copies(name: str, outputs: int) -> None:
    rng = np.random.default_rng(outputs)
    for _ in range(20):
        n = int(rng.integers(4, 12))
        y = torch.as_tensor(rng.integers(0, outputs, n)) if name in CLASSES else torch.as_tensor(rng.normal(size=n))
        answers = torch.as_tensor(rng.integers(-2, 3, (n, outputs if name in CLASSES else 1))).double()  # with ties
        if len(set(y.tolist())) < 2:
            continue
        metric = METRICS[name].in_units(3.0)
        times = rng.integers(0, 4, size=(30, n)).astype(float)
        for row, value in zip(times, weighted(metric, answers, y)(times), strict=True):
            drawn = torch.repeat_interleave(torch.arange(n), torch.as_tensor(row).long())
            expected = metric(answers[drawn], y[drawn]).mean() if len(drawn) else torch.tensor(torch.nan)
            assert value == pytest.approx(float(expected), nan_ok=True)


def test_a_class_that_was_not_drawn_leaves_the_seed_out_of_that_draw() -> None:
    y, answers = torch.tensor([0, 1, 1]), torch.tensor([[1.0, 0], [0, 1], [2, 0]])
    values = weighted(METRICS["auc"], answers, y)(np.array([[1.0, 1, 0], [0, 2, 1], [0, 0, 0], [1, 1, 3]]))
    assert values.tolist() == pytest.approx([1, np.nan, np.nan, 0.25], nan_ok=True)
