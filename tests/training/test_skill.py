"""How much a model knows of a client's own samples, against oracles in plain loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers import DEVICE, ready, toy
from torch import Tensor, nn

from fedkin.base.task import Task
from fedkin.data.federation import Client, Federation
from fedkin.engines.assembly import Assembly
from fedkin.methods import _trust
from fedkin.training import skill
from fedkin.training.evaluation import all_outputs


def rows(a: Assembly, seed: int) -> Tensor:
    noise = torch.randn(len(a.problem), a.problem.layout.size, generator=torch.Generator().manual_seed(seed))
    return a.problem.initial + 0.5 * noise.to(a.problem.initial)


def lines(factors: list[float], sizes: list[int], loss: Any = None, origin: float = 0.0) -> tuple[Assembly, Tensor]:
    """Clients whose targets are 2 x_0 and x_1 (from an origin), and a row for each: the right linear model times a
    factor."""
    source = torch.Generator().manual_seed(8)

    def client(i: int) -> Client:
        x = torch.randn(sizes[i] + 2, 4, generator=source, dtype=torch.float64)
        y = torch.stack([2 * x[:, 0], x[:, 1]], 1) + origin
        return Client(f"c{i}", (x[:-2], y[:-2]), (x[-2:], y[-2:]))

    members = tuple(client(i) for i in range(len(sizes)))
    model = nn.Linear(4, 2, bias=False)
    given = Federation("lines", members, Task.regression((4,), 2))
    a = ready(given, method="fedavg", model=model, loss=loss, data={"validation": 0.0})
    right = torch.tensor([2.0, 0, 0, 0, 0, 1, 0, 0], dtype=torch.float64)
    return a, (torch.tensor(factors, dtype=torch.float64)[:, None] * right).to(a.problem.initial)


# ---- classes ----


def above_what_is_frequent(outputs: Tensor, y: Tensor, classes: int) -> float:
    """By hand: the mean probability of a sample's own class less that of any sample's, at the best of the degrees of
    sureness; one for who is always right."""
    n = len(y)
    best = 1 - sum(((y == c).sum().item() / n) ** 2 for c in range(classes))

    def at(sharpness: float) -> float:
        p = (sharpness * outputs.double()).softmax(1)
        right = sum(p[j, y[j]].item() for j in range(n)) / n
        any_pair = sum(p[j, y[k]].item() for j in range(n) for k in range(n)) / n**2
        return (right - any_pair) / best

    return max(at(sharpness) for sharpness in (1, 3, 10, 30))


@pytest.mark.parametrize("way", ["stacked", "one-by-one"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_of_classes_it_is_what_is_known_beyond_what_is_frequent(way: str, precision: str) -> None:
    a = ready(toy((30, 9, 4, 17, 2)), method="fedavg", precision=precision, execution=way)
    models, train = [rows(a, 1), rows(a, 2)], a.cohort.train
    found = skill.skills(a.execution, train, models, a.problem.task)
    close = 1e-10 if precision == "float64" else 1e-5 if DEVICE.type == "cpu" else 1e-3  # TF32
    for model, own in zip(models, found, strict=True):
        for i, outputs in enumerate(all_outputs(a.execution, train, model)):
            y = train.y[train.starts[i] : train.starts[i] + len(outputs)].cpu()
            if len(set(y.tolist())) > 1:
                assert own[i].item() == pytest.approx(above_what_is_frequent(outputs, y, 3), abs=close)
            else:
                assert own[i] == 0, "of one class alone nothing is to be known"


def test_a_mean_of_models_that_is_less_sure_knows_as_much_as_one_that_is_sure() -> None:
    """After a first round of ten epochs a mean of kin's networks is right as often as they are, at low probabilities:
    it seemed to know half of it, two of five clients of practical EMNIST kept to themselves, and ended lower."""
    a = ready(toy((60, 40)), method="fedavg", model={"name": "logistic", "settings": {}})
    sure = rows(a, 1) * 20
    unsure, known = skill.skills(a.execution, a.cohort.train, [0.05 * sure, sure], a.problem.task)
    assert (unsure > 0.95 * known - 0.02).all() and (known > 0.02).any()


@pytest.mark.parametrize("frequent", [0.5, 0.9])
def test_who_always_says_what_is_frequent_knows_nothing(frequent: float) -> None:
    """Any stranger knew 0.76 of a silo with 12 % positives: the most frequent class, that is."""
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = (x[:, 0] > x[:, 0].quantile(frequent)).long()
    a = ready(
        Federation("toy", (Client("a", (x, y), (x, y)),), Task.classification((2,), 2)),
        method="fedavg",
        model={"name": "logistic", "settings": {}},
    )
    at = x[:, 0].quantile(frequent).item()
    knows = [-1e3, 0.0, 1e3, 0.0, 1e3 * at, -1e3 * at]
    says, contrary = [0.0, 0.0, 0.0, 0.0, 9.0, 0.0], [-value for value in knows]
    given = [torch.tensor([row]).to(a.problem.initial) for row in (says, contrary, knows)]
    said, other, known = skill.skills(a.execution, a.cohort.train, given, a.problem.task)[:, 0]
    assert abs(said) < 1e-12 and other < -0.5 and known > 0.97


def test_who_tells_a_rare_class_and_misnames_the_frequent_one_has_skill_and_is_seldom_right() -> None:
    """A silo of 64 zeros and 6 nines put 0.88 on others who hold no zeros, and was right in 4 % where alone in all."""
    x = torch.randn(70, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64).abs() + 1
    y = torch.zeros(70, dtype=torch.int64)
    y[:6], x[:6] = 2, -x[:6]
    a = ready(
        Federation("toy", (Client("a", (x, y), (x, y)),), Task.classification((1,), 3)),
        method="fedavg",
        model={"name": "logistic", "settings": {}},
        data={"validation": 0.0},
    )
    misnames, knows = [0.0, 9.0, -9.0, 0, 0, 0], [9.0, 0.0, -9.0, 0, 0, 0]
    models = [torch.tensor([row]).to(a.problem.initial) for row in (misnames, knows)]
    skilled, right = skill.known(a.execution, a.cohort.train, models, a.problem.task)
    assert skilled[0, 0] > 0.4 and right[0, 0] < 0.1
    assert skilled[1, 0] > 0.9 and right[1, 0] == 1
    assert _trust.trust(right[:1, 0], right[1:, 0])[0] == 0


# ---- numbers ----


ALL = math.log(1 / skill.LEAST)
"""What is known of numbers by who knows all."""


def test_of_numbers_it_is_the_loss_beside_that_of_ones_own_outputs_dealt_to_the_wrong_samples() -> None:
    """The oracle: own outputs y beside every target, E(y_j - y_i)^2 over all pairs, in float64."""
    factors = [1.0, 0.5, 0.0, -1.0, 1.0]
    a, W = lines(factors, [400, 400, 300, 300, 1])
    own = lines([1.0] * 5, [400, 400, 300, 300, 1])[1]
    found, known = skill.skills(a.execution, a.cohort.train, [W, own], a.problem.task)
    assert (known[:4] == ALL).all()
    for i, (f, client) in enumerate(zip(factors[:4], a.federation.clients, strict=False)):
        y = client.train[1]
        right, wrong = ((f - 1) * y).square().mean(), (y[:, None] - y[None]).square().mean()
        assert found[i].item() == pytest.approx(math.log(wrong / max(right.item(), 1e-3 * wrong)), abs=0.08)
    assert found[0] == ALL and found[3] < 0
    assert found[4] == known[4] == 0, "of one sample there are no wrong pairs"


def test_the_mean_of_two_strangers_does_not_know_nearly_as_much_as_either() -> None:
    """It explains two thirds of what can be explained of either's data, and passed for kin: loners found each other."""
    a, own = lines([1.0], [300])
    noisy = Federation("noisy", (noise(a.federation.clients[0], 0.3),), a.problem.task)
    b = ready(noisy, method="fedavg", model=nn.Linear(4, 2, bias=False), data={"validation": 0.0})
    stranger = own[:, [2, 3, 0, 1, 6, 7, 4, 5]]  # of the two inputs that mean nothing here
    mean, known = skill.skills(b.execution, b.cohort.train, [(own + stranger) / 2, own], b.problem.task)
    assert 0 < mean[0] < 0.5 * known[0]
    assert _trust.trust(mean, known)[0] == 0


def noise(client: Client, size: float) -> Client:
    x, y = client.train
    source = torch.Generator().manual_seed(2)
    return Client(client.name, (x, y + size * torch.randn(y.shape, generator=source, dtype=y.dtype)), client.test)


def test_a_loss_that_can_be_negative_is_told_by_differences() -> None:
    """A likelihood may be: log(sigma) + ... has no ratio."""
    a, W = lines([0.9], [200], lambda outputs, targets: (outputs - targets).square().mean() - 0.5)
    own = lines([1.0], [200])[1]
    found, known = skill.skills(a.execution, a.cohort.train, [W, own], a.problem.task)
    assert 0 < found[0] < known[0] and known.isfinite().all()


def test_who_has_another_origin_does_not_know_it() -> None:
    """Dealt to the wrong samples, its own outputs were as far off: it passed for one who knows."""
    a, there = lines([1.0], [300], origin=5.0)
    linear = torch.linalg.lstsq(a.federation.clients[0].train[0], a.federation.clients[0].train[1]).solution
    own = linear.T.reshape(1, -1).to(there)
    (known,) = skill.skills(a.execution, a.cohort.train, [own], a.problem.task)
    others, _ = skill.skills(a.execution, a.cohort.train, [there * 2, own], a.problem.task)
    assert others[0] < known[0] + 0.05


def test_a_loss_is_asked_where_clients_train_and_of_no_more_samples_than_it_can_take() -> None:
    """A loss of one's own may hold tensors, and may look at every pair of a batch."""
    weights, seen = torch.tensor([1.0, 3.0], device=DEVICE, dtype=torch.float64), list[int]()

    def own(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(len(outputs))
        return ((outputs - targets).square() * weights).mean()

    a, W = lines([0.5], [9000], own)
    (found,) = skill.skills(a.execution, a.cohort.train, [W], a.problem.task)
    assert 0.3 < found[0] < ALL and max(seen) <= skill.MOST


# ---- both ----


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_it_is_most_for_who_knows_all_and_nothing_for_who_says_the_same_of_everything(kind: str) -> None:
    """A linear model of the inputs' own columns; one that is constant; and one that says the contrary."""
    source = torch.Generator().manual_seed(1)
    x = torch.randn(40, 3, generator=source, dtype=torch.float64)
    y = x.argmax(1) if kind == "classification" else x.clone()
    task = Task.classification((3,), 3) if kind == "classification" else Task.regression((3,), 3)
    made = Federation("toy", (Client("a", (x, y), (x, y)),), task)
    a = ready(made, method="fedavg", model={"name": "logistic", "settings": {}}, data={"validation": 0.0})
    eye = torch.cat([torch.eye(3, dtype=torch.float64).flatten(), torch.zeros(3, dtype=torch.float64)]).to(DEVICE)
    scale = 1e3 if kind == "classification" else 1.0
    says_nothing, contrary, knows = (
        skill.skills(a.execution, a.cohort.train, [(factor * eye)[None]], a.problem.task)[0, 0]
        for factor in (0.0, -scale, scale)
    )
    assert knows.item() == pytest.approx(1 if kind == "classification" else ALL, abs=1e-2)
    assert says_nothing.item() == pytest.approx(0, abs=1e-12)
    assert contrary.item() < -0.2


def test_what_is_not_finite_knows_nothing() -> None:
    a = ready(toy(), method="fedavg")
    broken = rows(a, 1)
    broken[2] = torch.nan
    found = skill.skills(a.execution, a.cohort.train, [broken], a.problem.task)[0]
    assert found[2] == 0 and found.isfinite().all()


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_client_with_many_samples_is_asked_about_some_the_same_whoever_is_beside_it(kind: str) -> None:
    """As one would be asked who had those alone."""
    if kind == "classification":
        a = ready(toy((2000, 700, 30)), method="fedavg")
        W = rows(a, 1)
    else:
        a, W = lines([0.5, 0.7, 0.9], [2000, 700, 30])
    together = skill.skills(a.execution, a.cohort.train, [W], a.problem.task)[0]
    for i in range(3):
        alone = skill.skills(a.execution, a.cohort.train.take([i]), [W[i : i + 1]], a.problem.task)[0]
        assert together[i].item() == pytest.approx(alone[0].item(), abs=1e-9)


# ---- times until an event ----


def test_of_survival_it_is_how_patients_are_ordered_beyond_chance() -> None:
    """Somers' D: 1 for who orders all pairs rightly, -1 for the reverse, and nothing for one risk for all; however many
    patients there are, and whatever the scale of the risks."""
    source = torch.Generator().manual_seed(3)
    members = []
    for i, n in enumerate((400, 60, 12)):
        x = torch.randn(n, 4, generator=source, dtype=torch.float64)
        y = torch.stack([torch.exp(-x[:, 0]), (torch.arange(n) % 2 == 0).double()], 1)
        members.append(Client(f"c{i}", (x, y), (x[:4], y[:4])))
    given = Federation("lives", tuple(members), Task.survival((4,)))
    a = ready(given, method="fedavg", model=nn.Linear(4, 1, bias=False), data={"validation": 0.0})
    right = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64).expand(3, 4).to(a.problem.initial)
    found = skill.skills(a.execution, a.cohort.train, [right, 0.01 * right, -right, 0 * right], a.problem.task)
    expected = torch.tensor([1.0, 1.0, -1.0, 0.0], dtype=torch.float64)[:, None].expand(4, 3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_of_survival_nobody_knows_anything_of_patients_without_an_event() -> None:
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.stack([x[:, 0].exp(), torch.zeros(9, dtype=torch.float64)], 1)
    test = x[:4], torch.tensor([[1.0, 1], [2, 0], [3, 0], [4, 0]], dtype=torch.float64)
    a = ready(Federation("lives", (Client("a", (x, y), test),), Task.survival((4,))), method="fedavg")
    assert skill.skills(a.execution, a.cohort.train, [rows(a, 1), rows(a, 2)], a.problem.task).tolist() == [[0], [0]]
