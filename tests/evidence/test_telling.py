"""How many samples tell something of a silo, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkin.base.task import METRICS
from fedkin.evidence import estimates
from fedkin.evidence.outputs import Outputs
from fedkin.evidence.telling import FEWEST_EVENTS, FEWEST_SAMPLES, telling


def seed(y: torch.Tensor, rows: list[int] | None = None, subjects: list[int] | None = None) -> Outputs:
    kind = "classification" if y.ndim == 1 and not y.is_floating_point() else "survival"
    answers = {"chosen": torch.zeros(len(y), 2 if kind == "classification" else 1)}
    numbers, whose = (None if own is None else torch.tensor(own) for own in (rows, subjects))
    return Outputs(("a",), (len(y),), ("m",), answers, y, kind, rows=numbers, subjects=whose)  # type: ignore[arg-type]


def labels(*sizes: int) -> torch.Tensor:
    return torch.tensor(np.repeat(np.arange(len(sizes)), sizes))


@pytest.mark.parametrize(
    ("sizes", "enough", "words"),
    [
        ((198, 2), False, "2 test samples of the rarer class"),
        ((191, 9), False, "9 test samples of the rarer class"),
        ((190, 10), True, "10 test samples of the rarer class"),
        ((7, 7), True, "7 test samples of the rarer class"),
        ((5, 5), False, "5 test samples of the rarer class"),
        ((30, 30, 30, 30, 2), False, "2 test samples of the rarest class"),
        ((4, 4, 4, 4, 4), True, "4 test samples of the rarest class"),
        ((30, 1), False, "1 test sample of the rarer class"),
        ((30,), True, "30 test samples of the rarer class"),
    ],
)
def test_of_ranks_and_recalls_the_rarer_class_counts(sizes: tuple[int, ...], enough: bool, words: str) -> None:
    for metric in ("auc", "balanced_accuracy"):
        found = telling(metric, [seed(labels(*sizes))])
        assert (found.enough, found.words, found.fewest) == (enough, words, FEWEST_SAMPLES)
        assert min(sizes) <= found.count <= sum(sizes), "no less than the rarest class, no more than all"
    assert telling("accuracy", [seed(labels(*sizes))]).count == sum(sizes)


def test_of_a_c_index_events_count_that_can_be_compared() -> None:
    lived = torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0], [4.0, 1.0]])  # the last outlived everybody
    found = telling("c_index", [seed(lived)])
    assert (found.count, found.fewest, found.enough, found.words) == (2, FEWEST_EVENTS, False, "2 test events")


def test_a_sample_that_several_seeds_test_counts_once_and_without_numbers_it_is_the_mean() -> None:
    first, second = labels(20, 8), labels(20, 8)
    numbered = [seed(first, list(range(28))), seed(second, list(range(4, 32)))]
    assert telling("accuracy", numbered).count == 32
    assert telling("auc", numbered).least == 12
    assert telling("accuracy", [seed(first), seed(labels(20, 12))]).count == 30


def test_subjects_count_where_they_have_several_samples() -> None:
    whose = [i // 4 for i in range(28)]
    assert telling("accuracy", [seed(labels(20, 8), list(range(28)), whose)]).words == "7 test subjects"
    found = telling("auc", [seed(labels(20, 8), list(range(28)), whose)])
    assert found.words == "2 test subjects of the rarer class" and not found.enough
    alone = telling("accuracy", [seed(labels(20, 8), list(range(28)), list(range(28)))])
    assert alone.words == "28 test samples"


def test_with_two_positives_verdicts_are_false_too_often_and_with_ten_they_are_not() -> None:
    """A model that says the same of all, and one that draws lots: neither ranks better than the other. All of it:
    benchmarks/fewest.py."""
    rng, times = np.random.default_rng(0), 300

    def told_apart(positives: int) -> float:
        y = labels(100, positives)
        count = 0
        for _ in range(times):
            odds = torch.tensor(rng.normal(size=len(y)))
            drawn = torch.stack([-odds, odds], 1)
            gain = estimates.gain(METRICS["auc"], torch.zeros_like(drawn), drawn, y)
            count += bool(gain.low > 0 or gain.high < 0)
        return count / times

    assert told_apart(2) > 0.1
    assert told_apart(FEWEST_SAMPLES) < 0.08
