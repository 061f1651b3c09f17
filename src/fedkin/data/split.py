"""Who gets which samples: the ways to share out one data set over the clients of a federation.

Every split by class is first a table of counts, a row for each client and a column for each class; only then are
samples drawn to fill it. So a split is exact where it promises to be, no sample is used twice, and whether a split is
possible never depends on luck. `practical` and `pathological` are the splits of the FedAMP paper (Huang et al.,
AAAI 2021), the latter after McMahan et al. (AISTATS 2017).

Samples are named by their numbers in a pool. Without `test_labels`, training and test samples are disjoint parts of
one pool; with it, test numbers count in that second pool. All randomness comes from `rng`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import bmat, csr_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from ..errors import FedkinError

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]


class SplitError(FedkinError):
    """The data cannot be shared out as asked; the message says why, and what would be right."""


@dataclass(frozen=True, eq=False)
class Share:
    """One client's part of the data: the numbers of its training and test samples, ascending, and its known group."""

    train: Numbers
    test: Numbers
    group: int | None = None


@dataclass(frozen=True)
class Group:
    """Clients that draw most of their data from the same dominating classes; `train` and `test` samples per client.

    `dominating` is the share of these classes, where it is not the one that is said for all groups.
    """

    classes: tuple[int, ...]
    clients: int
    train: int
    test: int
    dominating: float | None = None

    def share(self, usual: float) -> float:
        return usual if self.dominating is None else self.dominating


def iid(
    labels: ArrayLike,
    clients: int,
    rng: Generator,
    *,
    test_labels: ArrayLike | None = None,
    test_fraction: float = 0.25,
) -> list[Share]:
    """Shuffle and cut into parts that are equal up to one sample. labels: (n,)."""
    # As if all samples were of one class, of which every client holds a shard.
    pools = _pools(np.zeros_like(labels), None if test_labels is None else np.zeros_like(test_labels))
    _check(pools, clients, test_fraction)
    return _fill(pools, np.ones((clients, 1), dtype=np.int64), test_fraction, rng)


def pathological(
    labels: ArrayLike,
    clients: int,
    rng: Generator,
    *,
    classes_per_client: int = 2,
    test_labels: ArrayLike | None = None,
    test_fraction: float = 0.25,
) -> list[Share]:
    """Cut each class into shards and give every client shards of exactly `classes_per_client` classes. labels: (n,).

    Shards lie inside classes and are as equal in size as that allows (least sum of squares); all samples are used.
    The test pool is cut by the same assignment. From one pool, each shard is cut and keeps a training sample.
    """
    pools = _pools(labels, test_labels)
    _check(pools, clients, test_fraction)
    shards = _shards(pools, clients, classes_per_client)
    return _fill(pools, _assign(shards, clients, rng), test_fraction, rng)


def practical(
    labels: ArrayLike,
    groups: Sequence[Group],
    rng: Generator,
    *,
    test_labels: ArrayLike | None = None,
    dominating: float = 0.8,
    balanced: bool = True,
) -> list[Share]:
    """Groups of clients that share dominating classes, in the order of `groups`. labels: (n,).

    Of a client's n samples exactly round(dominating * n) are of its group's classes and the rest of all others, unless
    its group says another share.
    balanced: inside both parts the counts per class differ by at most one; otherwise samples are drawn uniformly
    from those classes, so that class frequencies follow the data. Nothing is drawn twice, over all clients.
    """
    pools = _pools(labels, test_labels)
    _check_groups(groups, pools.classes, dominating)
    members = [number for number, group in enumerate(groups) for _ in range(group.clients)]
    home = np.array([np.isin(pools.classes, groups[g].classes) for g in members])  # (m, C)
    train, test = np.array([(groups[g].train, groups[g].test) for g in members]).T
    share = np.array([groups[g].share(dominating) for g in members])

    def table(home: Mask, sizes: Numbers, stock: Numbers, place: str) -> Numbers:
        own = np.rint(np.tile(share, len(sizes) // len(share)) * sizes).astype(np.int64)
        parts, amounts = np.concatenate([home, ~home]), np.concatenate([own, sizes - own])
        dealt = _deal(parts, amounts, stock, rng, balanced, pools.classes, place)
        return dealt[: len(home)] + dealt[len(home) :]

    if pools.test is None:
        both = table(np.tile(home, (2, 1)), np.concatenate([train, test]), pools.stock, "pool")
        return pools.shares(both[: len(home)], both[len(home) :], rng, members)
    train_table = table(home, train, pools.stock, "training pool")
    return pools.shares(train_table, table(home, test, pools.test_stock, "test pool"), rng, members)


def dirichlet(
    labels: ArrayLike,
    clients: int,
    rng: Generator,
    *,
    alpha: float = 0.3,
    test_labels: ArrayLike | None = None,
    test_fraction: float = 0.25,
    least: int = 8,
) -> list[Share]:
    """Share out every class in proportions drawn from Dir(alpha) over clients; all samples are used. labels: (n,).

    Drawn again, up to a thousand times, until each client has `least` training samples and a test sample.
    """
    pools = _pools(labels, test_labels)
    _check(pools, clients, test_fraction, least)
    _require(0 < alpha < np.inf, f"alpha is {alpha}, but has to be a finite number above 0; 0.1 to 1 is usual.")
    for _ in range(1000):
        edges = np.cumsum(rng.dirichlet(np.full(clients, alpha), len(pools.classes)), axis=1)
        held, tested = _portions(edges, pools.stock), _portions(edges, pools.test_stock)
        if not held.any(axis=1).all():
            continue
        train, test = _cut(held, test_fraction, rng) if pools.test is None else (held, tested)
        if train.sum(axis=1).min() >= least and test.any(axis=1).all():
            return pools.shares(train, test, rng)
    raise SplitError(
        f"A thousand draws from Dir({alpha}) gave no split in which each of {clients} clients has {least} training "
        "samples and a test sample. Choose a larger data.alpha, a smaller data.clients or a smaller data.least."
    )


def natural(
    owners: Iterable[object],
    rng: Generator,
    *,
    test_owners: Iterable[object] | None = None,
    test_fraction: float = 0.25,
) -> tuple[list[str], list[Share]]:
    """A client for each owner: their names, sorted, and their shares. owners: (n,), whose each sample is.

    From one pool every owner of two samples or more gets a test sample. Test parts may be empty, training parts not.
    """
    names, pool = np.unique(_names(owners, "owners"), return_inverse=True)
    _require(0 < test_fraction < 1, f"test_fraction is {test_fraction}, but has to lie between 0 and 1, both excluded.")
    mine = _by_owner(pool, len(names))
    if test_owners is None:
        _, sizes = _cut(np.bincount(pool)[:, None], test_fraction, rng)
        mixed = [rng.permutation(own) for own in mine]
        shares = [Share(np.sort(own[size:]), np.sort(own[:size])) for own, size in zip(mixed, sizes[:, 0], strict=True)]
        return names.tolist(), shares
    tested = _names(test_owners, "test_owners")
    strangers = np.setdiff1d(tested, names)
    _require(
        not len(strangers), f"Owners {_list(strangers)} have test but no training samples. Leave their samples out."
    )
    test_parts = _by_owner(np.searchsorted(names, tested), len(names))
    return names.tolist(), [Share(*parts) for parts in zip(mine, test_parts, strict=True)]


def relabel(labels: ArrayLike, groups_of_samples: ArrayLike, classes: int, shift: int = 2) -> Numbers:
    """Give each group a task of its own: (y + shift * g) mod classes. labels, groups_of_samples: (n,)."""
    y, g = _integers(labels, "labels"), _integers(groups_of_samples, "groups_of_samples")
    _require(len(y) == len(g), f"There are {len(y)} labels but {len(g)} group numbers; give one for each label.")
    low, high = y.min(), y.max()
    _require(low >= 0 and high < classes, f"Labels run from {low} to {high}, but must lie in 0 to {classes - 1}.")
    return (y + shift * g) % classes


# From tables of counts to samples ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pools:
    """The samples to share out. classes: (C,), those that occur; train, test: the place of each label among them."""

    classes: Numbers
    train: Numbers
    test: Numbers | None  # None: test samples are taken from the one pool

    @property
    def stock(self) -> Numbers:
        return np.bincount(self.train, minlength=len(self.classes))

    @property
    def test_stock(self) -> Numbers:
        return self.stock if self.test is None else np.bincount(self.test, minlength=len(self.classes))

    def shares(self, train: Numbers, test: Numbers, rng: Generator, groups: Sequence[int | None] = ()) -> list[Share]:
        """Draw as many samples of each class as the tables train and test, (m, C), ask for."""
        m = len(train)
        if self.test is None:
            drawn = _draw(self.train, np.concatenate([train, test]), rng)
        else:
            drawn = _draw(self.train, train, rng) + _draw(self.test, test, rng)
        return [Share(*parts) for parts in zip(drawn[:m], drawn[m:], groups or [None] * m, strict=True)]


def _draw(pool: Numbers, table: Numbers, rng: Generator) -> list[Numbers]:
    """For each row i the numbers of table[i, c] samples of class c, ascending, without replacement over all rows."""
    owner = np.full(len(pool), len(table))  # the row after the last stands for nobody
    for c, column in enumerate(table.T):
        samples = rng.permutation(np.flatnonzero(pool == c))
        owner[samples[: column.sum()]] = np.repeat(np.arange(len(table)), column)
    return _by_owner(owner, len(table))


def _by_owner(owner: Numbers, owners: int) -> list[Numbers]:
    """The numbers, ascending, of the samples of each of the owners 0, 1, ..."""
    ends = np.cumsum(np.bincount(owner, minlength=owners))[:owners]
    return np.split(np.argsort(owner, kind="stable"), ends)[:owners]


def _cut(held: Numbers, fraction: float, rng: Generator, keep: int = 0) -> tuple[Numbers, Numbers]:
    """Cut a table of counts (m, C) into training and test: round(fraction * n) of each row are for testing, at least 1.

    `keep` samples of each class, and one in all, stay for training. Each count is its class's proportional part,
    rounded up or down by systematic sampling in whole numbers, so that rows are exact.
    """
    n, room = held.sum(axis=1, keepdims=True), np.maximum(held - keep, 0)
    total = room.sum(axis=1, keepdims=True)
    size = np.minimum(np.maximum(np.rint(fraction * n).astype(np.int64), 1), np.minimum(total, n - 1))
    ends = (np.cumsum(room, axis=1) * size + rng.integers(total)) // total
    test = np.diff(ends, axis=1, prepend=0)
    return held - test, test


def _portions(edges: NDArray[np.float64], stock: Numbers) -> Numbers:
    """Cut every class at the cumulated proportions edges (C, m): counts (m, C)."""
    ends = np.rint(edges * stock[:, None]).astype(np.int64)  # the last edge is nearly one, so all of stock
    return np.diff(ends, axis=1, prepend=0).T


def _fill(pools: _Pools, holds: Numbers, test_fraction: float, rng: Generator) -> list[Share]:
    """Divide every class evenly among those who hold it. holds: (m, C), 0 or 1."""

    def even(stock: Numbers) -> Numbers:
        table = np.zeros_like(holds)
        for c, n in enumerate(stock):
            (holders,) = holds[:, c].nonzero()
            table[holders, c] = n // len(holders) + (rng.permutation(len(holders)) < n % len(holders))
        return table

    held = even(pools.stock)
    both = _cut(held, test_fraction, rng, keep=1) if pools.test is None else (held, even(pools.test_stock))
    return pools.shares(*both, rng)


# Practical: a transport problem --------------------------------------------------------------------------------------


def _deal(
    parts: Mask, amounts: Numbers, stock: Numbers, rng: Generator, balanced: bool, classes: Numbers, place: str
) -> Numbers:
    """How many samples of each class every part takes: (P, C), with row sums `amounts`, column sums at most `stock`.

    parts: (P, C), the classes that a part may take; its first half are the dominating parts, which are dealt first.
    """
    least = parts * (amounts // np.maximum(parts.sum(axis=1), 1) if balanced else 0 * amounts)[:, None]
    most = least + parts if balanced else parts * (stock + amounts[:, None])  # the latter never binds
    short, left = amounts - least.sum(axis=1), stock - least.sum(axis=0)
    dealt, tight = np.zeros_like(least), left < 0
    if not tight.any():
        half = len(parts) // 2
        for p in [*rng.permutation(half), *half + rng.permutation(half)]:
            # An urn with one ball a class gives a random set of classes; with a ball a sample, a uniform draw.
            urn = np.minimum(left, most[p] - least[p])
            dealt[p] = rng.multivariate_hypergeometric(urn, min(short[p], urn.sum()))
            left -= dealt[p]
            short[p] -= dealt[p].sum()
        moved, tight = _augment(short, most - least - dealt, dealt, left)
        dealt += moved
    if tight.any():
        needed = np.maximum(least[:, tight].sum(axis=1), amounts - most[:, ~tight].sum(axis=1)).sum()
        other = ", or set data.classes = 'drawn', where counts per class may differ" if balanced else ""
        raise SplitError(
            f"Too few samples of class {_list(classes[tight])} in the {place}: there are {stock[tight].sum()}, but the "
            f"groups need at least {needed}. Ask for fewer clients or fewer samples per client{other}."
        )
    return least + dealt


def _augment(short: Numbers, room: Numbers, dealt: Numbers, left: Numbers) -> tuple[Numbers, Mask]:
    """Complete a deal by a maximum flow through what it leaves open; a deal that is complete stays as it is.

    Where a set is used up exactly, the last parts find only classes they may not take, though others could exchange.
    The flow runs source -> parts -> classes -> sink, and back along what was dealt. Returns the changes (P, C) and, if
    parts stay short, the classes (C,) of the minimum cut: those that are used up and that the short parts need.
    """
    (P, C), corner = room.shape, csr_matrix((1, 1), dtype=np.int32)
    blocks = [
        [corner, short[None, :], None, None],
        [None, None, room, None],
        [None, dealt.T, None, left[:, None]],
        [None, None, None, corner],
    ]
    graph = bmat(blocks, format="csr", dtype=np.int32)
    flow = maximum_flow(graph, 0, P + C + 1)
    moved: Numbers = flow.flow[1 : P + 1, P + 1 : P + C + 1].toarray().astype(np.int64)
    open_ = graph - flow.flow
    open_.eliminate_zeros()
    reached = breadth_first_order(open_, 0, return_predecessors=False)
    return moved, np.isin(np.arange(P + 1, P + C + 1), reached)


# Pathological: shards ------------------------------------------------------------------------------------------------


def _shards(pools: _Pools, clients: int, classes_per_client: int) -> Numbers:
    """Into how many shards each class is cut, (C,), so that the sum of their squared sizes is least."""
    stock, classes, wanted = pools.stock, len(pools.classes), clients * classes_per_client
    _require(
        1 <= classes_per_client <= classes,
        f"classes_per_client is {classes_per_client}, but has to lie in 1 to {classes}, the number of classes.",
    )
    # From one pool a shard needs a sample to train with and one that may become a test sample.
    possible = np.minimum(clients, stock // 2 if pools.test is None else np.minimum(stock, pools.test_stock))
    scarce = int(np.argmin(possible))
    _require(
        possible[scarce] > 0,
        f"Class {pools.classes[scarce]} has too few samples for one shard with training and test samples. "
        "Leave it out, or add samples.",
    )
    _require(
        classes <= wanted <= possible.sum(),
        f"{clients} clients with {classes_per_client} classes each hold {wanted} shards, but to use all samples of "
        f"these {classes} classes there have to be {classes} to {possible.sum()}. Change one of the two numbers.",
    )

    def squares(cuts: Numbers) -> Numbers:
        size: Numbers = stock // cuts
        return stock * (2 * size + 1) - cuts * size * (size + 1)

    cuts = np.ones_like(stock)
    for _ in range(wanted - classes):  # greedy is optimal, as squares is convex in cuts
        gain = np.where(cuts < possible, squares(cuts) - squares(cuts + 1), -1)
        cuts[np.argmax(gain)] += 1
    return cuts


def _assign(shards: Numbers, clients: int, rng: Generator) -> Numbers:
    """Who holds a shard of which class: 0 or 1, (m, C), with column sums `shards`, none above m, and equal row sums."""
    dealt = rng.permutation(np.repeat(np.arange(len(shards)), shards)).reshape(clients, -1)
    holds = np.zeros((clients, len(shards)), dtype=np.int64)
    np.add.at(holds, (np.arange(clients)[:, None], dealt), 1)
    # Client i has class a twice. Some client j has none of it, as there are at most m shards of it, and j has a class b
    # that i lacks, or else one twice itself. So every swap leaves fewer shards in surplus.
    while (holds > 1).any():
        i, a = rng.choice(np.argwhere(holds > 1))
        j = rng.choice(np.flatnonzero(holds[:, a] == 0))
        lacking = (holds[j] > 0) & (holds[i] == 0)
        b = rng.choice(np.flatnonzero(lacking if lacking.any() else holds[j] > 1))
        holds[[i, j], a] += [-1, 1]
        holds[[i, j], b] += [1, -1]
    return holds


# Checks --------------------------------------------------------------------------------------------------------------


def _require(fulfilled: bool | np.bool_, sentence: str) -> None:
    if not fulfilled:
        raise SplitError(sentence)


def _list(items: NDArray[Any]) -> str:
    return ", ".join(map(str, items[:8])) + (f" and {len(items) - 8} more" if len(items) > 8 else "")


def _integers(values: ArrayLike, name: str) -> Numbers:
    array = np.asarray(values)
    _require(
        array.ndim == 1 and array.dtype.kind in "iu" and array.size > 0,
        f"`{name}` has shape {array.shape} and type {array.dtype}, but has to be a non-empty 1-d array of integers.",
    )
    return array.astype(np.int64)


def _pools(labels: ArrayLike, test_labels: ArrayLike | None) -> _Pools:
    train = _integers(labels, "labels")
    test = train if test_labels is None else _integers(test_labels, "test_labels")
    classes = np.union1d(train, test)
    places = np.searchsorted(classes, train), np.searchsorted(classes, test)
    return _Pools(classes, places[0], None if test_labels is None else places[1])


def _names(owners: Iterable[object], name: str) -> NDArray[np.str_]:
    owners = list(owners)
    nobody = next((number for number, owner in enumerate(owners) if owner is None or owner != owner), None)
    _require(nobody is None, f"Every sample needs an owner, but in `{name}` sample {nobody} has none. Leave it out.")
    _require(bool(owners), f"`{name}` is empty, but has to name the owner of every sample.")
    return np.array([str(owner) for owner in owners])


def _check(pools: _Pools, clients: int, test_fraction: float, least: int = 1) -> None:
    _require(clients >= 1, f"clients is {clients}, but a split needs at least one client.")
    _require(0 < test_fraction < 1, f"test_fraction is {test_fraction}, but has to lie between 0 and 1, both excluded.")
    _require(least >= 1, f"`least` is {least}, but every client needs at least one training sample.")
    all_told = least + (pools.test is None)
    for what, have, each in (("", len(pools.train), all_told), ("test ", pools.test_stock.sum(), 1)):
        _require(
            have >= clients * each,
            f"{have} {what}samples are too few for {clients} clients, each of which needs at least {each}. "
            f"Ask for at most {have // each} clients.",
        )


def _check_groups(groups: Sequence[Group], classes: Numbers, dominating: float) -> None:
    _require(len(groups) > 0, "`groups` is empty, but a practical split needs at least one group.")
    _require(0 < dominating <= 1, f"dominating is {dominating}, but has to be above 0 and at most 1; 0.8 is usual.")
    for number, group in enumerate(groups):
        least, named, who = min(group.clients, group.train, group.test), set(group.classes), f"Group {number}"
        missing = sorted(named - set(classes.tolist()))
        _require(least >= 1, f"{who} has clients, train or test {least}, but each has to be at least 1.")
        _require(len(named) == len(group.classes), f"{who} names a class twice in {group.classes}; name each once.")
        _require(len(named) > 0, f"{who} names no classes, but its clients need at least one dominating class.")
        _require(not missing, f"{who} names the classes {missing}, but the labels contain only {_list(classes)}.")
        _require(
            group.share(dominating) == 1 or len(named) < len(classes),
            f"{who} names all classes, so that none is left for its other samples. Name fewer, or pass dominating=1.",
        )
