"""Scores and gains over several seeds that know which patient a test sample is.

Every seed draws a test part anew from the same patients of a silo. What a seed adds is the patients whom the others did
not test; one who is tested in several seeds counts once. So it is patients that are independent, not tests:

| metric | of a score | of a gain |
|---|---|---|
| accuracy | Wilson, n = what the patients are worth | Bonett and Price, by patient |
| balanced accuracy | the same of each recall, put together | the same of each class, put together |
| AUC | Newcombe, likewise | bootstrap over patients, class by class |
| log loss, RMSE, MAE, MSE | bootstrap over patients | the same, both models on one draw |

A draw of the bootstrap takes patients with replacement; every seed's metric is of its test samples, each as often as
its patient was drawn, and the mean is over those seeds in which it is defined. Patients are worth 1 / Σ u² of them
(Kish), where u is the share of a patient in the mean over seeds. Intervals speak of the models of these seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import estimates, statistics
from .estimates import Estimate, over_seeds
from .task import Metric, against_the_rest, classes_in, correct, log_odds, one_against_the_rest

Array = NDArray[np.float64]
Places = NDArray[np.int64]
BY_CLASS = ("balanced_accuracy", "auc")
"""Metrics for which patients are drawn class by class."""


class Test(NamedTuple):
    """A seed's test of a silo: the metric in that seed's units, targets (n, ...), and the patients' numbers (n,), the
    same in every seed; None where they are not known."""

    metric: Metric
    targets: Tensor
    rows: Tensor | None


def known(tests: Sequence[Test]) -> bool:
    """Whether patients have numbers in all of these seeds, and one number has one target: else it is not one patient."""
    if any(test.rows is None for test in tests):
        return False
    _, place = np.unique(_joined(tests), axis=0, return_inverse=True)
    target = np.concatenate([_in_units(test) for test in tests])
    lowest, highest = np.full(place.max() + 1, np.inf), np.full(place.max() + 1, -np.inf)
    np.minimum.at(lowest, place, target)
    np.maximum.at(highest, place, target)
    return bool(np.allclose(lowest, highest, rtol=1e-4, atol=1e-4 * float(np.abs(target).max())))
