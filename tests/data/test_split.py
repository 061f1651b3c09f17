"""What each split promises: nothing lost, nothing twice, exact proportions, and sentences when it cannot be done."""

import re
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from sklearn.datasets import load_digits

from fedkin.data.split import Group, Share, SplitError, dirichlet, iid, natural, pathological, practical, relabel

MNIST_TRAIN = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
MNIST_TEST = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))

seeds = st.integers(0, 2**32 - 1)
fractions = st.floats(0.01, 0.99)
quick = settings(max_examples=60, deadline=None)


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def pool(counts: Sequence[int], seed: int = 0) -> np.ndarray:
    """Labels in mixed order: counts[c] samples of class c."""
    return generator(seed).permutation(np.repeat(np.arange(len(counts)), counts))


def gather(shares: list[Share]) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of all clients' training and test samples."""
    return np.concatenate([share.train for share in shares]), np.concatenate([share.test for share in shares])


def counts_of(labels: np.ndarray, parts: list[np.ndarray], classes: int) -> np.ndarray:
    """(parts, classes): how many samples of each class every part has."""
    return np.array([np.bincount(labels[part], minlength=classes) for part in parts])


def assert_all_used_once(shares: list[Share], samples: int, test_samples: int | None = None) -> None:
    train, test = gather(shares)
    if test_samples is None:
        assert sorted([*train, *test]) == list(range(samples))
    else:
        assert sorted(train) == list(range(samples))
        assert sorted(test) == list(range(test_samples))


def assert_none_twice(shares: list[Share], one_pool: bool) -> None:
    train, test = gather(shares)
    for numbers in [np.concatenate([train, test])] if one_pool else [train, test]:
        assert len(np.unique(numbers)) == len(numbers)


def assert_cut(shares: list[Share], fraction: float, keep: int = 1) -> None:
    """Each client's test part is round(fraction * n), at least 1; `keep` samples stay for training."""
    for share in shares:
        n = len(share.train) + len(share.test)
        assert len(share.test) == min(max(round(fraction * n), 1), n - keep)


def same(a: list[Share], b: list[Share]) -> bool:
    return all(
        np.array_equal(x.train, y.train) and np.array_equal(x.test, y.test) and x.group == y.group
        for x, y in zip(a, b, strict=True)
    )


# iid -----------------------------------------------------------------------------------------------------------------


@quick
@given(n=st.integers(2, 300), clients=st.integers(1, 40), fraction=fractions, seed=seeds)
def test_iid_from_one_pool(n: int, clients: int, fraction: float, seed: int) -> None:
    assume(n >= 2 * clients)
    shares = iid(np.arange(n) % 3, clients, generator(seed), test_fraction=fraction)
    assert len(shares) == clients
    assert_all_used_once(shares, n)
    assert_cut(shares, fraction)
    sizes = [len(share.train) + len(share.test) for share in shares]
    assert max(sizes) - min(sizes) <= 1


@quick
@given(n=st.integers(1, 300), tests=st.integers(1, 300), clients=st.integers(1, 40), seed=seeds)
def test_iid_from_two_pools(n: int, tests: int, clients: int, seed: int) -> None:
    assume(min(n, tests) >= clients)
    shares = iid(np.zeros(n, int), clients, generator(seed), test_labels=np.zeros(tests, int))
    assert_all_used_once(shares, n, tests)
    for sizes in ([len(share.train) for share in shares], [len(share.test) for share in shares]):
        assert max(sizes) - min(sizes) <= 1


def test_iid_mixes_the_classes() -> None:
    labels = np.repeat(np.arange(10), 1000)
    counts = counts_of(labels, [share.train for share in iid(labels, 10, generator(0))], 10)
    assert counts.min() > 45 and counts.max() < 110  # 75 expected, standard deviation about 8


# pathological --------------------------------------------------------------------------------------------------------


@st.composite
def shardings(draw: st.DrawFn) -> tuple[list[int], int, int]:
    """(class counts, clients, classes per client) that can be cut from one pool."""
    counts = draw(st.lists(st.integers(2, 60), min_size=1, max_size=6))
    clients, each = draw(st.integers(1, 15)), draw(st.integers(1, len(counts)))
    assume(len(counts) <= clients * each <= sum(min(clients, n // 2) for n in counts))
    return counts, clients, each


@settings(quick, max_examples=150)
@given(sharding=shardings(), fraction=fractions, seed=seeds)
def test_pathological_from_one_pool(sharding: tuple[list[int], int, int], fraction: float, seed: int) -> None:
    counts, clients, each = sharding
    labels = pool(counts, seed)
    shares = pathological(labels, clients, generator(seed), classes_per_client=each, test_fraction=fraction)
    assert len(shares) == clients
    assert_all_used_once(shares, len(labels))
    assert_cut(shares, fraction, keep=each)
    for share in shares:
        classes = set(labels[share.train])
        assert len(classes) == each
        assert set(labels[share.test]) <= classes


@settings(quick, max_examples=150)
@given(sharding=shardings(), extra=st.integers(0, 30), seed=seeds)
def test_pathological_from_two_pools(sharding: tuple[list[int], int, int], extra: int, seed: int) -> None:
    counts, clients, each = sharding
    tests = [n // 2 + extra for n in counts]
    labels, test_labels = pool(counts, seed), pool(tests, seed + 1)
    assume(clients * each <= sum(min(clients, n, t) for n, t in zip(counts, tests, strict=True)))
    shares = pathological(labels, clients, generator(seed), classes_per_client=each, test_labels=test_labels)
    assert_all_used_once(shares, len(labels), len(test_labels))
    for share in shares:
        assert len(set(labels[share.train])) == each
        assert set(labels[share.train]) == set(test_labels[share.test])
    for table in (
        counts_of(labels, [share.train for share in shares], len(counts)),
        counts_of(test_labels, [share.test for share in shares], len(counts)),
    ):
        for column in table.T:
            shards = column[column > 0]
            assert shards.max() - shards.min() <= 1


def squares(n: int, shards: int) -> int:
    """The least sum of squares of `shards` whole numbers that add up to n."""
    return sum((n // shards + (i < n % shards)) ** 2 for i in range(shards))


@settings(quick, max_examples=40)
@given(counts=st.lists(st.integers(6, 60), min_size=2, max_size=4), clients=st.integers(2, 6), seed=seeds)
def test_pathological_shards_are_as_equal_as_classes_allow(counts: list[int], clients: int, seed: int) -> None:
    assume(2 * clients >= len(counts))
    labels = pool(counts, seed)
    shares = pathological(labels, clients, generator(seed), test_labels=np.tile(labels, 6))
    table = counts_of(labels, [share.train for share in shares], len(counts))
    cuts = product(range(1, clients + 1), repeat=len(counts))
    best = min(sum(squares(n, k) for n, k in zip(counts, cut, strict=True)) for cut in cuts if sum(cut) == 2 * clients)
    assert (table**2).sum() == best


@pytest.mark.parametrize("seed", range(5))
def test_pathological_shards_of_mnist_do_not_straddle_classes(seed: int) -> None:
    """T22: cutting the sorted labels into 200 equal shards leaves clients with three or four classes."""
    labels, test_labels = pool(MNIST_TRAIN), pool(MNIST_TEST)
    shares = pathological(labels, 100, generator(seed), test_labels=test_labels)
    assert_all_used_once(shares, len(labels), len(test_labels))
    table = counts_of(labels, [share.train for share in shares], 10)
    assert ((table > 0).sum(axis=1) == 2).all()
    assert (counts_of(test_labels, [share.test for share in shares], 10) > 0).sum(axis=1).tolist() == [2] * 100
    shards = table[table > 0]
    assert len(shards) == 200
    assert shards.min() >= 290 and shards.max() <= 312  # 300 on average; classes hold 5,421 to 6,742


def test_pathological_repairs_where_rejection_is_hopeless() -> None:
    """Every client has to hold all classes: one assignment in more than 10^100 is right."""
    labels = pool([100] * 8)
    for share in pathological(labels, 25, generator(3), classes_per_client=8):
        assert set(labels[share.train]) == set(range(8))


def test_pathological_pairs_of_classes_are_mixed() -> None:
    labels = pool([400] * 10)
    pairs = {tuple(sorted(set(labels[share.train]))) for share in pathological(labels, 100, generator(0))}
    assert len(pairs) > 30  # of 45


# practical -----------------------------------------------------------------------------------------------------------


@st.composite
def federations(draw: st.DrawFn) -> tuple[int, list[Group]]:
    """(number of classes, groups), whose classes may overlap."""
    classes = draw(st.integers(2, 7))
    some = st.sets(st.integers(0, classes - 1), min_size=1, max_size=classes - 1).map(lambda s: tuple(sorted(s)))
    group = st.builds(Group, some, st.integers(1, 5), st.integers(1, 40), st.integers(1, 15))
    return classes, draw(st.lists(group, min_size=1, max_size=4))


def parts_of(classes: int, groups: list[Group], sizes: Sequence[str], dominating: float) -> list[tuple[list[int], int]]:
    """What a split has to deal: (classes to choose from, number of samples) for each part of each client."""
    parts = []
    for group, size in product(groups, sizes):
        n = getattr(group, size)
        others = [c for c in range(classes) if c not in group.classes]
        own = round(dominating * n)
        parts += [(list(group.classes), own), (others, n - own)] * group.clients
    return parts


def exact_stock(
    classes: int, parts: list[tuple[list[int], int]], balanced: bool, rng: np.random.Generator
) -> np.ndarray:
    """Class counts that one particular deal uses up to the last sample."""
    stock = np.zeros(classes, int)
    for choice, n in parts:
        if balanced:
            stock[choice] += n // len(choice)
            stock[rng.choice(choice, n % len(choice), replace=False)] += 1
        else:
            stock += np.bincount(rng.choice(choice, n, p=rng.dirichlet(np.full(len(choice), 0.3))), minlength=classes)
    return stock


def assert_practical(
    shares: list[Share], groups: list[Group], labels: np.ndarray, tests: np.ndarray, dominating: float, balanced: bool
) -> None:
    classes = int(max(labels.max(), tests.max())) + 1
    members = [number for number, group in enumerate(groups) for _ in range(group.clients)]
    assert [share.group for share in shares] == members
    for share in shares:
        group = groups[share.group or 0]
        own = list(group.classes)
        for numbers, n, y in ((share.train, group.train, labels), (share.test, group.test, tests)):
            counts = np.bincount(y[numbers], minlength=classes)
            assert counts.sum() == n
            assert counts[own].sum() == round(dominating * n)
            if balanced:
                for part in (counts[own], np.delete(counts, own)):
                    assert part.max() - part.min() <= 1


dominances = st.sampled_from([0.5, 0.73, 0.8, 0.95])


@settings(quick, max_examples=150)
@given(federation=federations(), dominating=dominances, balanced=st.booleans(), seed=seeds)
def test_practical_uses_one_pool_up_exactly(
    federation: tuple[int, list[Group]], dominating: float, balanced: bool, seed: int
) -> None:
    """T23: wherever a deal exists, one is found, even if it leaves nothing over."""
    classes, groups = federation
    parts = parts_of(classes, groups, ("train", "test"), dominating)
    stock = exact_stock(classes, parts, balanced, generator(seed))
    assume(stock.all())
    labels = pool(stock, seed)
    shares = practical(labels, groups, generator(seed + 1), dominating=dominating, balanced=balanced)
    assert_practical(shares, groups, labels, labels, dominating, balanced)
    assert_all_used_once(shares, len(labels))


@settings(quick, max_examples=150)
@given(federation=federations(), dominating=dominances, balanced=st.booleans(), seed=seeds)
def test_practical_uses_two_pools_up_exactly(
    federation: tuple[int, list[Group]], dominating: float, balanced: bool, seed: int
) -> None:
    classes, groups = federation
    stock, test_stock = (
        exact_stock(classes, parts_of(classes, groups, (size,), dominating), balanced, generator(seed))
        for size in ("train", "test")
    )
    assume((stock + test_stock).all())
    labels, tests = pool(stock, seed), pool(test_stock, seed)
    shares = practical(labels, groups, generator(seed), test_labels=tests, dominating=dominating, balanced=balanced)
    assert_practical(shares, groups, labels, tests, dominating, balanced)
    assert_all_used_once(shares, len(labels), len(tests))


def transport(parts: list[tuple[list[int], int]], classes: int, balanced: bool) -> dict[str, object]:
    """Linear programming's view of a deal (its corners are whole numbers): what each part takes of each class."""
    bounds = []
    for choice, n in parts:
        low, high = (n // len(choice), -(-n // len(choice))) if balanced else (0, n)
        bounds += [(low, high) if c in choice else (0, 0) for c in range(classes)]
    return {
        "A_eq": np.kron(np.eye(len(parts)), np.ones(classes)),
        "b_eq": [n for _, n in parts],
        "bounds": bounds,
    }


@settings(quick, max_examples=150)
@given(federation=federations(), balanced=st.booleans(), seed=seeds, change=st.integers(-3, 3))
def test_practical_succeeds_if_and_only_if_a_deal_exists(
    federation: tuple[int, list[Group]], balanced: bool, seed: int, change: int
) -> None:
    classes, groups = federation
    parts = parts_of(classes, groups, ("train", "test"), 0.8)
    rng = generator(seed)
    stock = exact_stock(classes, parts, balanced, rng)
    stock = np.maximum(stock + change + rng.integers(-3, 4, classes), 1)
    labels = pool(stock, seed)
    program = transport(parts, classes, balanced)
    per_class = np.kron(np.ones(len(parts)), np.eye(classes))
    if linprog(np.zeros(per_class.shape[1]), A_ub=per_class, b_ub=stock, **program).status == 0:
        shares = practical(labels, groups, rng, balanced=balanced)
        assert_practical(shares, groups, labels, labels, 0.8, balanced)
        assert_none_twice(shares, one_pool=True)
        return
    with pytest.raises(SplitError) as refusal:
        practical(labels, groups, rng, balanced=balanced)
    found = re.search(r"class ([\d, ]+) in the pool: there are (\d+), but .* at least (\d+)", str(refusal.value))
    assert found, str(refusal.value)
    named, there, needed = [int(c) for c in found[1].split(",")], int(found[2]), int(found[3])
    assert there == stock[named].sum() < needed
    assert needed == round(linprog(per_class[named].sum(axis=0), **program).fun)


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_practical_on_fmnist_uses_up_the_test_set(seed: int, balanced: bool) -> None:
    """T23: 1,000 test images of each class are needed, and there are 1,000."""
    groups = [Group(pair, 20, n, 100) for pair, n in zip(PAIRS, (600, 500, 400, 300, 200), strict=True)]
    labels, tests = pool([6000] * 10), pool([1000] * 10)
    shares = practical(labels, groups, generator(seed), test_labels=tests, balanced=balanced)
    assert_practical(shares, groups, labels, tests, 0.8, balanced)
    assert_none_twice(shares, one_pool=False)
    assert sorted(gather(shares)[1]) == list(range(10_000))


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_practical_on_cifar100_uses_up_the_test_set(seed: int, balanced: bool) -> None:
    """T23: 100 test images of each class are needed, and there are 100."""
    superclasses = [tuple(range(5 * g, 5 * g + 5)) for g in range(20)]
    groups = [Group(fine, 5, 500 - 100 * (g // 4), 100) for g, fine in enumerate(superclasses)]
    labels, tests = pool([500] * 100), pool([100] * 100)
    shares = practical(labels, groups, generator(seed), test_labels=tests, balanced=balanced)
    assert_practical(shares, groups, labels, tests, 0.8, balanced)
    assert_none_twice(shares, one_pool=False)
    assert sorted(gather(shares)[1]) == list(range(10_000))


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_practical_on_digits_from_one_pool(seed: int, balanced: bool) -> None:
    labels = load_digits().target
    groups = [Group(pair, 4, n, 25) for pair, n in zip(PAIRS, (60, 50, 40, 30, 20), strict=True)]
    shares = practical(labels, groups, generator(seed), balanced=balanced)
    assert_practical(shares, groups, labels, labels, 0.8, balanced)
    assert_none_twice(shares, one_pool=True)


def test_practical_on_mnist_says_which_test_classes_are_too_small() -> None:
    groups = [Group(pair, 20, 100, 100) for pair in PAIRS]
    with pytest.raises(SplitError, match=r"class 5, 6 in the test pool: there are 1850, .* at least 1920"):
        practical(pool(MNIST_TRAIN), groups, generator(0), test_labels=pool(MNIST_TEST))
    practical(pool(MNIST_TRAIN), groups, generator(0), test_labels=pool(MNIST_TEST), balanced=False)


def test_practical_unbalanced_follows_the_frequencies_of_the_data() -> None:
    labels = pool([9000, 3000, 6000, 2000])
    shares = practical(labels, [Group((0, 1), 20, 100, 10), Group((2, 3), 20, 100, 10)], generator(0), balanced=False)
    table = counts_of(labels, [share.train for share in shares[:20]], 4).sum(axis=0)
    assert table[0] == pytest.approx(1200, abs=60)  # three quarters of 80 x 20
    assert table[2] == pytest.approx(300, abs=30)


def test_practical_balanced_deals_remainders_evenly_at_random() -> None:
    """With samples to spare, no class is preferred: 25 samples over 10 classes leave five classes with one more."""
    labels = pool([4000] * 20)
    groups = [Group(tuple(range(10)), 400, 25, 1)]
    table = counts_of(labels, [s.train for s in practical(labels, groups, generator(0), dominating=1)], 20)[:, :10]
    assert table.sum(axis=0) == pytest.approx(np.full(10, 1000), abs=50)  # standard deviation 10
    assert len({tuple(row) for row in table}) > 150  # of 252 ways


def test_practical_with_all_samples_dominating() -> None:
    labels = pool([50, 50, 50])
    shares = practical(labels, [Group((0, 1, 2), 2, 30, 9), Group((1,), 1, 10, 5)], generator(0), dominating=1)
    assert set(labels[shares[2].train]) == {1}
    assert counts_of(labels, [shares[0].train], 3).tolist() == [[10, 10, 10]]


def test_classes_may_be_any_integers() -> None:
    names = np.array([-7, 4, 1000])
    labels = names[pool([100, 100, 100])]
    (share,) = practical(labels, [Group((-7,), 1, 50, 10)], generator(0))
    assert (labels[share.train] == -7).sum() == 40
    with pytest.raises(SplitError, match="class -7 in the pool: there are 100, but the groups need at least 120"):
        practical(labels, [Group((-7,), 1, 100, 50)], generator(0))


# dirichlet -----------------------------------------------------------------------------------------------------------


@quick
@given(
    counts=st.lists(st.integers(30, 120), min_size=2, max_size=6),
    clients=st.integers(1, 5),
    alpha=st.floats(0.2, 100),
    fraction=st.floats(0.01, 0.5),
    one_pool=st.booleans(),
    seed=seeds,
)
def test_dirichlet(counts: list[int], clients: int, alpha: float, fraction: float, one_pool: bool, seed: int) -> None:
    labels = pool(counts, seed)
    tests = None if one_pool else pool([n // 2 for n in counts], seed)
    shares = dirichlet(
        labels, clients, generator(seed), alpha=alpha, test_labels=tests, test_fraction=fraction, least=3
    )
    assert len(shares) == clients
    assert_all_used_once(shares, len(labels), None if tests is None else len(tests))
    assert min(len(share.train) for share in shares) >= 3
    assert min(len(share.test) for share in shares) >= 1
    if one_pool:
        assert_cut(shares, fraction)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_dirichlet_proportions_have_the_variance_of_the_distribution(alpha: float) -> None:
    m, C, n = 10, 300, 1000
    labels = np.repeat(np.arange(C), n)
    shares = dirichlet(labels, m, generator(0), alpha=alpha, test_labels=labels)
    proportions = counts_of(labels, [share.train for share in shares], C) / n
    assert proportions.var() == pytest.approx((m - 1) / (m**2 * (m * alpha + 1)), rel=0.15)


def test_dirichlet_cuts_the_test_pool_in_the_same_proportions() -> None:
    labels, tests = pool([600] * 10), pool([100] * 10)
    shares = dirichlet(labels, 8, generator(1), test_labels=tests)
    train = counts_of(labels, [share.train for share in shares], 10) / 600
    test = counts_of(tests, [share.test for share in shares], 10) / 100
    assert np.abs(train - test).max() <= 0.012  # both are rounded to whole samples


def test_test_parts_of_one_pool_have_their_clients_proportions() -> None:
    labels = pool([600] * 10)
    for share in dirichlet(labels, 8, generator(1), alpha=0.2):
        train, test = counts_of(labels, [share.train, share.test], 10)
        assert np.abs(test - (train + test) * len(share.test) / (len(share.train) + len(share.test))).max() < 1


def test_no_class_is_preferred_for_the_test_part() -> None:
    """One test sample for a client with two samples of each of five classes: any class, equally often."""
    labels = np.repeat(np.arange(5), 2)
    drawn = [labels[dirichlet(labels, 1, generator(s), test_fraction=0.1, least=1)[0].test[0]] for s in range(500)]
    assert np.bincount(drawn) == pytest.approx(np.full(5, 100), abs=40)  # standard deviation 9


# natural -------------------------------------------------------------------------------------------------------------

owner_lists = st.lists(st.sampled_from(["ward", "clinic", "10", "2", "Zürich", "a"]), min_size=1, max_size=80)


@quick
@given(owners=owner_lists, fraction=fractions, seed=seeds)
def test_natural_from_one_pool(owners: list[str], fraction: float, seed: int) -> None:
    names, shares = natural(owners, generator(seed), test_fraction=fraction)
    assert names == sorted(set(owners))
    assert_all_used_once(shares, len(owners))
    assert_cut(shares, fraction)
    for name, share in zip(names, shares, strict=True):
        assert {owners[i] for i in [*share.train, *share.test]} == {name}
        assert len(share.train) >= 1
        assert len(share.test) >= 1 or owners.count(name) == 1


@quick
@given(owners=owner_lists, tests=owner_lists, seed=seeds)
def test_natural_from_two_pools(owners: list[str], tests: list[str], seed: int) -> None:
    if set(tests) <= set(owners):
        names, shares = natural(owners, generator(seed), test_owners=tests)
        assert_all_used_once(shares, len(owners), len(tests))
        for name, share in zip(names, shares, strict=True):
            assert {owners[i] for i in share.train} == {name}
            assert {tests[i] for i in share.test} <= {name}
    else:
        with pytest.raises(SplitError, match=min(set(tests) - set(owners))):
            natural(owners, generator(seed), test_owners=tests)


def test_natural_takes_numbers_and_arrays_as_owners() -> None:
    names, shares = natural(np.array([7, 7, 12, 12, 12]), generator(0))
    assert names == ["12", "7"]
    assert sorted(map(int, [*shares[0].train, *shares[0].test])) == [2, 3, 4]


# relabel -------------------------------------------------------------------------------------------------------------


def test_relabel_shifts_by_group() -> None:
    assert relabel([0, 1, 9, 9, 5], [0, 1, 1, 4, 2], 10).tolist() == [0, 3, 1, 7, 9]
    assert relabel([0, 1, 2], [1, 1, 1], 3, shift=1).tolist() == [1, 2, 0]


# All -----------------------------------------------------------------------------------------------------------------

LABELS = pool([60] * 6)
TESTS = pool([30] * 6)
GROUPS = [Group((0, 1), 3, 17, 7), Group((2, 3, 4), 2, 23, 6)]
SPLITS = {
    "iid": lambda rng, tests: iid(LABELS, 7, rng, test_labels=tests),
    "pathological": lambda rng, tests: pathological(LABELS, 7, rng, test_labels=tests),
    "practical": lambda rng, tests: practical(LABELS, GROUPS, rng, test_labels=tests),
    "practical unbalanced": lambda rng, tests: practical(LABELS, GROUPS, rng, test_labels=tests, balanced=False),
    "dirichlet": lambda rng, tests: dirichlet(LABELS, 7, rng, test_labels=tests, least=2),
    "natural": lambda rng, _: natural(LABELS, rng)[1],
}


@pytest.mark.parametrize("tests", [None, TESTS], ids=["one pool", "two pools"])
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_the_split_depends_on_the_generator_alone(split, tests) -> None:  # type: ignore[no-untyped-def]
    np.random.seed(0)  # noqa: NPY002
    first = split(generator(5), tests)
    np.random.seed(1)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    assert same(first, split(generator(5), tests))
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    assert not same(first, split(generator(6), tests))


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_numbers_are_ascending_64_bit_integers(split) -> None:  # type: ignore[no-untyped-def]
    for share in split(generator(0), None):
        for numbers in (share.train, share.test):
            assert numbers.dtype == np.int64
            assert (np.diff(numbers) > 0).all()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda r: iid([], 1, r), r"`labels` has shape \(0,\)"),
        (lambda r: iid([0.5, 1.5], 1, r), "type float64, but has to be a non-empty 1-d array of integers"),
        (lambda r: iid([[0, 1]], 1, r), r"shape \(1, 2\)"),
        (lambda r: iid([0, 1, 2], 1, r, test_labels=[[1]]), "`test_labels` has shape"),
        (lambda r: iid([0, 1, 2], 0, r), "clients is 0, but a split needs at least one"),
        (lambda r: iid([0, 1, 2], 2, r), "3 samples are too few for 2 clients, .* at least 2.* at most 1 clients"),
        (lambda r: iid([0, 1, 2], 4, r, test_labels=[0] * 9), "3 samples are too few for 4 clients"),
        (lambda r: iid([0, 1, 2], 3, r, test_labels=[0]), "1 test samples are too few for 3 clients"),
        (lambda r: iid([0, 1, 2], 1, r, test_fraction=0), "test_fraction is 0, but has to lie between 0 and 1"),
        (lambda r: iid([0, 1, 2], 1, r, test_fraction=1.0), "test_fraction is 1.0"),
        (lambda r: pathological(LABELS, 7, r, classes_per_client=7), "classes_per_client is 7, .* 1 to 6"),
        (lambda r: pathological(LABELS, 7, r, classes_per_client=0), "classes_per_client is 0"),
        (lambda r: pathological(LABELS, 2, r), "2 clients with 2 classes each hold 4 shards, .* 6 to 12"),
        (lambda r: pathological(pool([9, 9, 1]), 3, r), "Class 2 has too few samples for one shard"),
        (lambda r: pathological(pool([9, 9]), 3, r, test_labels=[1, 1, 1]), "Class 0 has too few samples"),
        (lambda r: pathological(pool([99, 4]), 4, r), "hold 8 shards, .* 2 to 6"),
        (lambda r: practical(LABELS, [], r), "`groups` is empty"),
        (lambda r: practical(LABELS, GROUPS, r, dominating=0), "dominating is 0, .* above 0 and at most 1"),
        (lambda r: practical(LABELS, GROUPS, r, dominating=1.5), "dominating is 1.5"),
        (lambda r: practical(LABELS, [*GROUPS, Group((5,), 1, 1, 0)], r), "Group 2 has clients, train or test 0"),
        (lambda r: practical(LABELS, [Group((), 1, 1, 1)], r), "Group 0 names no classes"),
        (lambda r: practical(LABELS, [Group((1, 1), 1, 1, 1)], r), r"names a class twice in \(1, 1\)"),
        (lambda r: practical(LABELS, [Group((1, 6), 1, 1, 1)], r), r"\[6\], but the labels contain only 0, 1, 2"),
        (lambda r: practical(LABELS, [Group(tuple(range(6)), 1, 9, 9)], r), "names all classes.*dominating=1"),
        (lambda r: practical(LABELS, [Group((3,), 9, 9, 9)], r), "class 3 in the pool: there are 60, .*least 126"),
        (lambda r: dirichlet(LABELS, 4, r, alpha=0), "alpha is 0, but has to be a finite number above 0"),
        (lambda r: dirichlet(LABELS, 4, r, alpha=float("nan")), "alpha is nan"),
        (lambda r: dirichlet(LABELS, 4, r, alpha=float("inf")), "alpha is inf"),
        (lambda r: dirichlet(LABELS, 4, r, least=0), "`least` is 0"),
        (lambda r: dirichlet(LABELS, 41, r), "360 samples are too few for 41 clients, .* 9.* at most 40 clients"),
        (
            lambda r: dirichlet(LABELS, 40, r),
            "A thousand draws .* larger data.alpha, a smaller data.clients or a smaller data.least",
        ),
        (lambda r: dirichlet(LABELS, 9, r, alpha=1e-9), "A thousand draws"),
        (lambda r: natural([], r), "`owners` is empty"),
        (lambda r: natural(["a", None], r), "in `owners` sample 1 has none"),
        (lambda r: natural(["a", float("nan")], r), "sample 1 has none"),
        (lambda r: natural(["a", "a"], r, test_fraction=2), "test_fraction is 2"),
        (lambda r: natural(["a"], r, test_owners=["b", "a"]), "Owners b have test but no training samples"),
        (lambda r: relabel([0, 1], [0], 10), "2 labels but 1 group numbers"),
        (lambda r: relabel([0, 10], [0, 1], 10), "from 0 to 10, but must lie in 0 to 9"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence(call, sentence: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SplitError, match=sentence) as refusal:
        call(generator(0))
    assert str(refusal.value).endswith(".")
