"""Statistics against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import adjusted_rand_score

from fedkin.maths import statistics


def upper_tail(z: float) -> float:
    return math.erfc(z / math.sqrt(2)) / 2


def blocks(sizes: list[int], within: float, across: float) -> tuple[np.ndarray, np.ndarray]:
    """xi with these off-diagonal weights before its rows are made to sum to 0.8, and the groups."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    xi = np.where(groups[:, None] == groups[None, :], within, across).astype(float)
    np.fill_diagonal(xi, 0)
    return 0.8 * xi / xi.sum(axis=1, keepdims=True) + 0.2 * np.eye(len(groups)), groups


def test_best_mean_is_the_earliest_round_with_the_best_mean_over_clients() -> None:
    scores = [[0.5, 0.7], [0.9, 0.9], [1.0, 0.8], [0.0, 0.2]]
    assert statistics.best_mean(scores, higher=True) == pytest.approx((1, 0.9))
    assert statistics.best_mean(scores, higher=False) == pytest.approx((3, 0.1))


def test_a_client_without_test_data_and_a_diverged_round_do_not_decide_the_best_round() -> None:
    scores = [[0.5, np.nan], [0.7, np.nan], [np.nan, np.nan], [-np.inf, 0.9]]
    assert statistics.best_mean(scores) == pytest.approx((1, 0.7))
    assert statistics.best_mean([[np.inf, 1.0], [2.0, 3.0]], higher=False) == pytest.approx((1, 2.5))
    with pytest.raises(ValueError, match="no finite value"):
        statistics.best_mean([[np.nan]])
    with pytest.raises(ValueError, match="rounds by clients"):
        statistics.best_mean([0.5, 0.6])


def test_last_is_the_last_round_and_last10_the_mean_of_ten_rounds() -> None:
    scores = np.arange(24.0).reshape(12, 2)  # means 0.5, 2.5, ..., 22.5
    assert statistics.last(scores) == 22.5
    assert statistics.last10(scores) == np.mean(np.arange(4.5, 23, 2))
    assert statistics.last10(scores[:3]) == 2.5


def test_validated_takes_the_test_mean_of_the_round_that_validation_prefers() -> None:
    test = [[0.9, 0.9], [0.8, 0.7], [0.6, 0.6]]
    validation = [[np.nan, 0.5], [np.nan, 0.9], [np.nan, 0.1]]
    assert statistics.validated(test, validation, higher=True) == pytest.approx(0.75)
    assert statistics.validated(test, validation, higher=False) == pytest.approx(0.6)
    assert statistics.validated(test, None) is None
    assert statistics.validated(test, np.full((3, 2), np.nan)) is None
    with pytest.raises(ValueError, match="3 rounds of test scores but 1"):
        statistics.validated(test, [[0.5, 0.5]])


@pytest.mark.parametrize("higher", [True, False])
def test_t17_a_round_chosen_on_test_data_never_looks_worse_than_one_chosen_on_validation_data(higher: bool) -> None:
    rng = np.random.default_rng(0)
    gaps = []
    for _ in range(50):
        test, validation = rng.uniform(size=(2, 20, 6))
        honest = statistics.validated(test, validation, higher)
        assert honest is not None
        gaps.append((statistics.best_mean(test, higher)[1] - honest) * (1 if higher else -1))
    assert min(gaps) >= 0
    assert max(gaps) > 0.1


def test_wilcoxon_by_hand() -> None:
    """d = 1, 2, 3, 4, -5 and 0 points. Pratt ranks the zero first and drops it: 2 + 3 + 4 + 5 against 6."""
    b = np.full(6, 0.5)
    a = b + np.array([0.01, 0.02, 0.03, 0.04, -0.05, 0.0])
    result = statistics.wilcoxon(a, b)
    pratt = (14 - 10) / math.sqrt(22.5)  # mean (6*7 - 1*2)/4, variance (6*7*13 - 1*2*3)/24
    wilcox = (10 - 7.5) / math.sqrt(13.75)  # mean 5*6/4, variance 5*6*11/24
    assert (result.pairs, result.wins, result.ties, result.losses) == (6, 4, 1, 1)
    assert result.median == pytest.approx(0.015)
    assert result.greater == pytest.approx(upper_tail(pratt))
    assert result.two_sided == pytest.approx(2 * upper_tail(pratt))
    assert result.wilcox_greater == pytest.approx(upper_tail(wilcox))
    assert result.wilcox_two_sided == pytest.approx(2 * upper_tail(wilcox))


def test_wilcoxon_speaks_for_a_also_where_lower_is_better() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.uniform(size=(2, 30))
    assert statistics.wilcoxon(a, b, higher=False) == statistics.wilcoxon(b, a, higher=True)
    lower = statistics.wilcoxon([0.1] * 12, [0.2] * 12, higher=False)
    assert (lower.wins, lower.losses, lower.median) == pytest.approx((12, 0, 0.1))
    assert lower.greater < 0.001


def test_t18_accuracies_that_are_multiples_of_one_per_cent_keep_their_ties() -> None:
    points = np.random.default_rng(2).integers(60, 100, (2, 60))
    a, b = points / 100
    raw, rounded = np.unique(np.abs(a - b)), np.unique(np.abs(np.round(a - b, 6)))
    assert len(rounded) == len(np.unique(np.abs(points[0] - points[1]))) < len(raw)
    # In whole points every difference is exact, so this is the truth that fractions have to reproduce.
    exact = statistics.wilcoxon(points[0], points[1])
    result = statistics.wilcoxon(a, b)
    assert (result.greater, result.wilcox_greater) == (exact.greater, exact.wilcox_greater)
    assert statistics.wilcoxon(a, b, decimals=17).greater != exact.greater


def test_wilcoxon_of_equal_scores_is_one() -> None:
    scores = np.linspace(0.1, 0.9, 10)
    result = statistics.wilcoxon(scores, scores + 1e-9)
    assert (result.wins, result.ties, result.losses) == (0, 10, 0)
    assert {result.greater, result.two_sided, result.wilcox_greater, result.wilcox_two_sided} == {1.0}


def test_wilcoxon_leaves_out_pairs_with_a_missing_score() -> None:
    assert statistics.wilcoxon([0.3, np.nan, 0.5], [0.2, 0.4, np.nan]).pairs == 1
    assert statistics.wilcoxon([np.inf, np.inf, 0.5], [0.2, np.inf, 0.6], higher=False).losses == 1
    with pytest.raises(ValueError, match="no pair"):
        statistics.wilcoxon([np.nan], [0.4])
    with pytest.raises(ValueError, match="vectors of one length"):
        statistics.wilcoxon([0.1, 0.2], [0.1])


def test_holm_by_hand() -> None:
    # Sorted: 0.005 * 4, 0.01 * 3, 0.03 * 2, and 0.04 * 1, which may not fall below the one before.
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.7, 0.8]) == pytest.approx([1.0, 1.0])
    assert len(statistics.holm([])) == 0


def test_holm_keeps_the_order_of_p_values_and_never_lowers_them() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        p = rng.uniform(size=8) ** 3
        adjusted = statistics.holm(p)
        assert (np.diff(adjusted[np.argsort(p)]) >= 0).all()
        assert (adjusted >= p).all()
        assert (adjusted <= np.minimum(8 * p, 1)).all()


def test_intervals_by_hand() -> None:
    assert statistics.interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5))
    assert statistics.interval([0.9]) is None
    assert statistics.accuracy_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert statistics.accuracy_interval(0, 5)[0] == 0.0
    assert statistics.accuracy_interval(5, 5)[1] == 1.0
    with pytest.raises(ValueError, match="correct = 3 and n = 2"):
        statistics.accuracy_interval(3, 2)


def test_within_group_share_leaves_the_diagonal_out() -> None:
    xi = np.array([[0.5, 0.4, 0.1], [0.3, 0.6, 0.1], [0.2, 0.2, 0.6]])
    assert statistics.within_group_share(xi, [0, 0, 1]) == pytest.approx(0.7 / 1.3)
    assert statistics.within_group_share(xi, [5, 5, 5]) == pytest.approx(1.0)
    assert statistics.within_group_share(np.eye(3), [0, 0, 1]) is None
    assert statistics.within_group_share(xi, [0, 1, 2]) is None, "each is a group of its own"
    with pytest.raises(ValueError, match="3 clients but there are 2"):
        statistics.within_group_share(xi, [0, 1])


def test_kin_finds_blocks_and_sees_none_in_uniform_attention() -> None:
    xi, groups = blocks([3, 4, 5], within=1.0, across=0.2)
    noise = np.random.default_rng(4).uniform(0.9, 1.1, xi.shape)
    for found in (statistics.kin(xi), statistics.kin((xi * noise).astype(np.float32))):
        assert found.tolist() == groups.tolist()
        assert statistics.adjusted_rand(found, groups) == 1.0
    uniform, _ = blocks([12], within=1.0, across=1.0)
    assert statistics.kin(uniform.astype(np.float32)).tolist() == list(range(12))
    assert statistics.adjusted_rand(statistics.kin(uniform), groups) == 0.0
    assert statistics.kin(np.eye(4)).tolist() == [0, 1, 2, 3]
    assert statistics.kin([[1.0]]).tolist() == [0]


def test_kinship_is_mutual() -> None:
    xi = np.array([[0.2, 0.6, 0.1, 0.1], [0.1, 0.2, 0.6, 0.1], [0.1, 0.6, 0.2, 0.1], [0.8 / 3] * 3 + [0.2]])
    assert statistics.kin(xi).tolist() == [0, 1, 1, 2]


def test_adjusted_rand_is_the_one_of_scikit_learn() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        a, b = rng.integers(0, 4, (2, 15))
        assert statistics.adjusted_rand(a, b) == pytest.approx(adjusted_rand_score(a, b))
    assert statistics.adjusted_rand([0, 0, 1, 1], [7, 7, 3, 3]) == 1.0
    assert statistics.adjusted_rand([0, 1, 2], [2, 1, 0]) == 1.0
    with pytest.raises(ValueError, match="3 and of 2"):
        statistics.adjusted_rand([0, 1, 2], [0, 1])


# ---- intervals of scores and of differences ----


def test_the_auc_interval_is_where_newcombes_equation_holds() -> None:
    """Each end lies z of its own standard errors (Hanley and McNeil's) from the AUC."""
    auc, positives, negatives = 0.8, 12, 20
    for end in statistics.auc_interval(auc, positives, negatives):
        spread = (positives + negatives) / 2 - 1
        variance = end * (1 - end) * (1 + spread * (1 - end) / (2 - end) + spread * end / (1 + end))
        assert abs(end - auc) == pytest.approx(1.959964 * math.sqrt(variance / (positives * negatives)), rel=1e-5)


@pytest.mark.parametrize("auc", [0.0, 0.01, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 28), (28, 3), (500, 1000)])
def test_an_auc_interval_holds_the_auc_is_never_certain_and_stays_within_its_range(auc, sizes) -> None:
    low, high = statistics.auc_interval(auc, *sizes)
    assert 0 <= low <= auc <= high <= 1
    assert high - low > 0.001
    flipped = statistics.auc_interval(1 - auc, *sizes)
    assert (low, high) == pytest.approx((1 - flipped[1], 1 - flipped[0]), abs=1e-9)


def test_mover_adds_deviations_in_squares() -> None:
    low, high = statistics.mover([(0.5, 0.2, 0.6), (0.9, 0.5, 1.0)])
    assert (low, high) == pytest.approx((0.7 - math.hypot(0.3, 0.4) / 2, 0.7 + math.hypot(0.1, 0.1) / 2))


def test_one_class_only_has_wilsons_interval() -> None:
    assert statistics.balanced_interval([7], [9]) == pytest.approx(statistics.accuracy_interval(7, 9))


def test_bonett_and_prices_interval_by_hand() -> None:
    """b = 5, c = 1 of 18: six and two of twenty with the two made up."""
    half = 1.959964 * math.sqrt((0.3 + 0.1 - 0.2**2) / 20)
    assert statistics.paired_interval(5, 1, 18) == pytest.approx((0.2 - half, 0.2 + half), rel=1e-5)
    assert statistics.paired_interval(1, 5, 18) == pytest.approx((-0.2 - half, -0.2 + half), rel=1e-5)


def test_four_samples_gained_of_thirty_are_not_enough_and_eight_are() -> None:
    assert statistics.paired_interval(4, 0, 30)[0] < 0 < statistics.paired_interval(8, 0, 30)[0]


@pytest.mark.parametrize(("gained", "lost", "n"), [(0, 0, 1), (1, 0, 1), (3, 0, 3), (0, 50, 50), (100, 0, 100)])
def test_a_paired_interval_holds_the_difference_and_stays_within_its_range(gained: int, lost: int, n: int) -> None:
    low, high = statistics.paired_interval(gained, lost, n)
    assert -1 <= low <= (gained - lost) / n <= high <= 1


def test_resampling_is_by_stratum_with_the_same_rows_for_all_columns() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(5, 1, (40, 1)), rng.normal(-2, 3, (10, 1))
    draws = statistics.resampled([np.hstack([first, first + 7]), np.hstack([second, second])])
    assert draws.shape == (2000, 2)
    assert draws[:, 1] - draws[:, 0] == pytest.approx(7)  # row by row
    assert draws[:, 0].mean() == pytest.approx(first.mean() + second.mean(), abs=0.1)
    assert draws[:, 0].var() == pytest.approx(first.var() / 40 + second.var() / 10, rel=0.1)
    assert (draws == statistics.resampled([np.hstack([first, first + 7]), np.hstack([second, second])])).all()


def test_many_draws_at_once_or_few_are_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).normal(size=(50, 1))
    whole = statistics.resampled([values])
    monkeypatch.setattr(statistics, "DRAWN_AT_ONCE", 333)
    assert statistics.resampled([values]).std() == pytest.approx(whole.std(), rel=0.1)


@pytest.mark.parametrize("n", [3, 8, 40])
def test_bootstrap_percentiles_are_about_students_interval(n: int) -> None:
    values = np.random.default_rng(2).normal(size=n)
    found = statistics.percentiles(statistics.resampled([values[:, None]])[:, 0], [values])
    students = statistics.interval(values)
    assert students is not None
    assert np.diff(found) == pytest.approx(np.diff(students), rel=0.15)


def test_a_single_sample_has_no_interval_and_equal_ones_no_spread() -> None:
    one, same = np.array([2.0]), np.full(5, 2.0)
    assert np.isnan(statistics.percentiles(statistics.resampled([one[:, None]])[:, 0], [one])).all()
    assert statistics.percentiles(statistics.resampled([same[:, None]])[:, 0], [same]) == (2.0, 2.0)


# ---- p-values from intervals ----


@pytest.mark.parametrize("z", [0.0, 0.3, -1.0, 1.95, 1.97, -3.0, 5.0])
def test_a_p_value_is_read_off_an_interval(z: float) -> None:
    """Of a normal estimate z standard errors from nothing it is twice the tail."""

    def interval(level: float) -> tuple[float, float]:
        half = stats.norm.ppf(0.5 + level / 2)
        return z - half, z + half

    found = statistics.p_value(interval)
    assert found == pytest.approx(2 * stats.norm.sf(abs(z)), rel=1e-6, abs=1e-9)
    assert (found < 0.05) == (abs(z) > 1.96)


def test_an_interval_that_is_not_known_or_a_point_has_its_p_value() -> None:
    assert np.isnan(statistics.p_value(lambda level: (np.nan, np.nan)))
    assert statistics.p_value(lambda level: (0.0, 0.0)) == 1.0
    assert statistics.p_value(lambda level: (0.2, 0.2)) == statistics.SURE


def test_a_weighted_mean_is_as_sure_as_its_parts_allow() -> None:
    parts = [(0.1, 0.0, 0.2), (0.5, 0.1, 0.7), (-0.2, -0.3, 0.1)]
    assert statistics.mover(parts, [7.0] * 3) == pytest.approx(statistics.mover(parts))
    assert statistics.mover(parts, [1.0, 0.0, 0.0]) == pytest.approx((0.0, 0.2))
    low, high = statistics.mover(parts[:2], [3.0, 1.0])
    assert low == pytest.approx(0.2 - np.hypot(3 * 0.1, 0.4) / 4) and high == pytest.approx(
        0.2 + np.hypot(3 * 0.1, 0.2) / 4
    )
