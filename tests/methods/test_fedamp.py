"""FedAMP and HeurFedAMP: against the preprint's equations written as plain loops, and in their limits."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from helpers import DEVICE, ROOT, Watched, at, close, module_at, normed, ready, same, simulate, toy, trained
from torch import Tensor

from fedkin.base import streams
from fedkin.base.round import Round
from fedkin.base.settings import ConfigError
from fedkin.base.state import State
from fedkin.engines.assembly import Assembly
from fedkin.maths.attention import named
from fedkin.methods.fedamp import FedAMP
from fedkin.methods.heurfedamp import HeurFedAMP

BOTH = ("fedamp", "heurfedamp")
NAMES = ("a", "b", "c", "d")


def test_who_knows_the_paper_finds_its_equations_on_a_few_screens() -> None:
    assert len((ROOT / "src/fedkin/methods/fedamp.py").read_text().splitlines()) <= 120


# ---- the preprint in plain loops ----


def attention(method: str, W: list[Tensor], sigma: float | None) -> list[list[float]]:
    """Equations (8) and (9), normalised over the others: [i][j], zeros on the diagonal.

    exp(sigma cos) is written exp(-sigma (1 - cos)): the same once normalised, and it does not overflow.
    """
    m = len(W)

    def apart(i: int, j: int) -> float:
        if method == "fedamp":
            return float((W[i] - W[j]).square().sum())
        return 1 - float(W[i] @ W[j] / (W[i].norm() * W[j].norm()))

    def normalised(sigma: float) -> list[list[float]]:
        weights = []
        for i in range(m):
            row = [0.0] * m
            for j in range(m):
                if j != i:
                    row[j] = math.exp(-apart(i, j) / (2 * sigma) if method == "fedamp" else -sigma * apart(i, j))
            weights.append([value / sum(row) for value in row])
        return weights

    if sigma is not None:
        return normalised(sigma)
    median = statistics.median(apart(i, j) for i in range(m) for j in range(i))
    wide = normalised(0.05 * median if method == "fedamp" else 10 / median)
    kin = sorted(sum(wide[i][j] * apart(i, j) for j in range(m)) for i in range(m))[(m - 1) // 2]
    narrow = min(1.0, max(0.3, kin / (0.01 * median)))
    return normalised(0.05 * median * narrow if method == "fedamp" else 10 / (median * narrow))


def narrowed(row: list[float], top: int) -> list[float]:
    """What is left of a client's attention if all but its `top` nearest are forgotten."""
    kept = sorted(row, reverse=True)[:top]
    return [value / sum(kept) if value >= kept[-1] else 0.0 for value in row]


def mixing(
    method: str,
    W: list[Tensor],
    sigma: float | None,
    tau: list[float] | None,
    top: int = 0,
    trust: list[float] | None = None,
) -> list[list[float]]:
    """xi by equation (11): the others get tau_i, the client itself 1 - tau_i; automatic, as far as it trusts them."""
    others = [narrowed(row, top) if top else row for row in attention(method, W, sigma)]
    xi = []
    for i, row in enumerate(others):
        if tau is None:
            kin = math.exp(-sum(p * math.log(p) for p in row if p > 0))
            share = (1 - 1 / (1 + kin)) * (max(trust[i], 1 / 256) if trust else 1.0)
        else:
            share = tau[i]
        xi.append([1 - share if j == i else share * p for j, p in enumerate(row)])
    return xi


def by_hand(
    assembly: Assembly,
    method: str,
    *,
    sigma: float | None = None,
    tau: list[float] | None = None,
    beta: list[float],
    decay: float = 0.1,
    every: int = 30,
    start: str = "cloud",
    top: int = 0,
    form: str = "exact",
) -> dict[int, dict[str, Tensor]]:
    """All rounds and the closing exchange, one client at a time: what xi, u as it is heeded, and w are in each."""
    m, initial = len(assembly.problem), assembly.problem.initial
    W, V = [initial.clone() for _ in range(m)], [initial.clone() for _ in range(m)]
    history, alone, trust = {}, [[float(i == j) for j in range(m)] for i in range(m)], [1.0] * m
    for k in range(1, assembly.config.rounds + 2):
        xi = alone if k == 1 else mixing(method, W, sigma, tau, top, trust)
        told = [max(t, 1 / 256) for t in trust]
        if k > 1:
            trust, own = map(list, zip(*(trusted(assembly, i, W, V, xi[i]) for i in range(m)), strict=True))
        U = [sum((xi[i][j] * W[j] for j in range(m)), torch.zeros_like(initial)) for i in range(m)]
        heeded = U
        if tau is None:  # who trusts less than was thought goes back towards its own model at once
            heeded = [W[i] + min(1.0, trust[i] / told[i]) * (U[i] - W[i]) for i in range(m)]
            if k > 1:  # and who trusts nobody to what it knows best
                heeded = [heeded[i] if trust[i] else own[i] for i in range(m)]
        if k <= assembly.config.rounds:
            at = [b * decay ** ((k - 1) // every) for b in beta]
            begun = [W[i] if start == "local" else heeded[i] for i in range(m)]
            W = [_near(assembly, i, begun[i], heeded[i], at[i], k, form) for i in range(m)]
            V = [V[i] + W[i] - begun[i] for i in range(m)]
        each = {"cloud": torch.stack(heeded), "personal": torch.stack(W)}
        history[k] = {"xi": torch.tensor(xi, dtype=torch.float64), **each}
    return history


def trusted(assembly: Assembly, i: int, W: list[Tensor], V: list[Tensor], row: list[float]) -> tuple[float, Tensor]:
    """How far client i trusts the others, and which model of its own knows most: what their models, in the mixture that
    it gets, know of its training data beside 0.7 of what that knows (there are no validation data)."""
    others = sum((row[j] * W[j] for j in range(len(W)) if j != i), torch.zeros_like(W[i])) / (1 - row[i])
    x, y = assembly.federation.clients[i].train
    frequent = [(y == c).double().mean().item() for c in range(3)]
    known, right = [], []
    for model in (others, V[i], W[i]):
        outputs, degrees = module_at(assembly, model).eval()(x.to(model)), []
        for sharpness in (1, 3, 10, 30):
            p = torch.softmax(sharpness * outputs, 1).cpu()
            above = [p[j, y[j]].item() - sum(f * p[j, c].item() for c, f in enumerate(frequent)) for j in range(len(y))]
            degrees.append(sum(above) / len(y) / (1 - sum(f * f for f in frequent)))
        known.append(max(degrees))
        right.append((outputs.argmax(1).cpu() == y).double().mean().item())
    own = 1 if known[1] > known[2] else 2
    trust = 1.0
    for each in (known, right):
        share = max(0.0, each[0] - 0.02) / max(0.02, 0.7 * each[own] - 0.02)
        trust = min(trust, (share / 0.95) ** 8)
    return (trust if trust >= 0.1 else 0.0), V[i] if known[1] > known[2] else W[i]


def _near(a: Assembly, i: int, start: Tensor, u: Tensor, beta: float, k: int, form: str) -> Tensor:
    if form == "exact":
        return trained(a, i, start, k, near=(u, beta))
    return trained(a, i, start, k, penalty=lambda w: (w - u).square().sum() / (2 * beta))


def follows(run: Watched, history: dict[int, dict[str, Tensor]]) -> None:
    for k, expected in history.items():
        assert close(run.rows(k, "cloud"), expected["cloud"]), f"cloud models of round {k}"
        assert close(run.rows(k, "personal"), expected["personal"]), f"personal models of round {k}"
        assert close(run.servers[k].W, expected["personal"]), f"the server's W after round {k}"
        if k > 1:
            assert close(run.servers[k - 1].xi, expected["xi"]), f"xi of round {k}"


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fixed": (
        {"sigma": 0.7, "weight_on_others": 0.6, "beta": 0.4},
        {"sigma": 0.7, "tau": [0.6] * 4, "beta": [0.4] * 4},
    ),
    "automatic": ({"beta": 0.4}, {"beta": [0.4] * 4}),
    "a client's own": (
        {
            "weight_on_others": dict(zip(NAMES, (0.2, 0.4, 0.6, 0.8), strict=True)),
            "beta": dict(zip(NAMES, (0.1, 1.0, 0.3, 9.0), strict=True)),
        },
        {"tau": [0.2, 0.4, 0.6, 0.8], "beta": [0.1, 1.0, 0.3, 9.0]},
    ),
    "beta falls": ({"beta": 2.0, "beta_decay": 0.05, "beta_every": 2}, {"beta": [2.0] * 4, "decay": 0.05, "every": 2}),
    "the two nearest": ({"top": 2, "beta": 0.4}, {"top": 2, "beta": [0.4] * 4}),
    "the nearest alone": (
        {"top": 1, "sigma": 0.7, "weight_on_others": 0.6, "beta": 0.4},
        {"top": 1, "sigma": 0.7, "tau": [0.6] * 4, "beta": [0.4] * 4},
    ),
    "the gradient": ({"beta": 0.4, "proximal": "gradient"}, {"beta": [0.4] * 4, "form": "gradient"}),
    "the gradient, beta falls": (
        {"beta": 2.0, "beta_decay": 0.05, "beta_every": 2, "proximal": "gradient"},
        {"beta": [2.0] * 4, "decay": 0.05, "every": 2, "form": "gradient"},
    ),
    "from the client's own model": ({"init_from": "local", "beta": 0.4}, {"start": "local", "beta": [0.4] * 4}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", BOTH)
def test_every_round_is_the_preprints_equations(tmp_path: Path, method: str, case: str) -> None:
    """Cloud models, personal models and xi. The papers' form: autograd on loss + ||w - u||^2 / (2 beta), torch's Adam;
    the exact one: torch's Adam on the loss, each step followed by the proximal term's minimiser in closed form."""
    settings, plain = CASES[case]
    run = simulate(tmp_path, method=method, settings=settings)
    follows(run, by_hand(run.a, method, **plain))


# ---- trap T1: the proximal term pulls ----


class Recorder:
    """A cohort that does not train but notes what it was asked to do."""

    def __init__(self, names: tuple[str, ...], parameters: int) -> None:
        self.names = names
        self.layout = SimpleNamespace(parameters=parameters)

    def __len__(self) -> int:
        return len(self.names)

    def fit(self, W: Tensor, round: Round, *, extra: Any = None) -> Tensor:
        self.start, self.extra = W, extra
        return W + 1


@pytest.mark.parametrize("form", ["exact", "gradient"])
@pytest.mark.parametrize("round", [1, 30, 31, 60, 61, 90, 91, 121, 150])
def test_the_proximal_gradient_is_w_minus_u_over_beta_and_beta_falls_tenfold_every_thirty_rounds(
    round: int, form: Literal["exact", "gradient"]
) -> None:
    u, w = torch.randn(4, 9, dtype=torch.float64), torch.randn(4, 7, dtype=torch.float64)
    cohort = Recorder(NAMES, 7)
    FedAMP(proximal=form).train(cohort, State(u=u), State(personal=u), at(round, of=200))  # type: ignore[arg-type]
    beta = 1e4 * 0.1 ** math.floor((round - 1) / 30)
    assert cohort.extra.exact == (form == "exact")
    assert torch.allclose(cohort.extra.share(0.3), torch.full((4, 1), 0.3 / (0.3 + beta)).double(), rtol=1e-6, atol=0)
    for k in (4, 2):
        assert torch.allclose(cohort.extra(w[:k], k), (w - u[:, :7])[:k] / beta, rtol=1e-12, atol=0)


def test_after_the_last_round_beta_stays_where_it_is() -> None:
    u, w = torch.zeros(1, 3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64)
    cohort = Recorder(("a",), 3)
    FedAMP().train(cohort, State(u=u), State(personal=u), at(33, of=30))  # type: ignore[arg-type]
    assert torch.allclose(cohort.extra(w, 1), w / 1e4)


@pytest.mark.parametrize("method", BOTH)
def test_joining_changes_what_a_client_learns_from_the_second_round_on(tmp_path: Path, method: str) -> None:
    """With a common start the first round is training alone; in two public codes all the others are too."""
    together = simulate(tmp_path, method=method, settings={"weight_on_others": "attention"})
    alone = simulate(tmp_path, method="separate")
    assert close(together.rows(1, "personal"), alone.rows(1, "personal"), 1e-3)
    apart = (together.rows(2, "personal") - alone.rows(2, "personal")).norm(dim=1)
    assert (apart > 1e-2).all()


# ---- trap T5: where training starts ----


def test_training_starts_at_the_cloud_model_unless_told_otherwise() -> None:
    u, own = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    cohort = Recorder(("a", "b"), 3)
    for method, start in ((FedAMP(), u), (FedAMP(init_from="local"), own)):
        method.train(cohort, State(u=u), State(personal=own), at(2))  # type: ignore[arg-type]
        assert torch.equal(cohort.start, start)


def test_starting_at_ones_own_model_is_another_method(tmp_path: Path) -> None:
    """With the papers' beta of 1e4 it is hardly more than training alone."""
    model = {"name": "logistic", "settings": {}}  # without dead units, which Adam would pull at full speed
    alone = simulate(tmp_path, method="separate", model=model).rows(3, "personal")
    local = simulate(tmp_path, method="fedamp", model=model, settings={"init_from": "local"}).rows(3, "personal")
    cloud = simulate(tmp_path, method="fedamp", model=model).rows(3, "personal")
    assert (local - alone).norm() < 0.02 * (cloud - alone).norm()


# ---- traps T2 and T4: tau ----


@pytest.mark.parametrize("method", BOTH)
def test_tau_is_the_weight_of_the_others(tmp_path: Path, method: str) -> None:
    xi = simulate(tmp_path, method=method, settings={"weight_on_others": 0.3}).servers[3].xi
    assert close(xi.diagonal(), torch.full((4,), 0.7, dtype=torch.float64), 1e-15)
    assert close(xi.sum(1), torch.ones(4, dtype=torch.float64), 1e-15)


# ---- trap T12: running statistics ----


@pytest.mark.parametrize("method", BOTH)
def test_running_statistics_do_not_enter_attention(method: str) -> None:
    """Clients with the same parameters are all alike, however different their BatchNorm statistics are."""
    assembly = ready(model=normed, method=method, settings={"sigma": 1.0, "weight_on_others": 0.6})
    problem, d = assembly.problem, assembly.problem.layout.parameters
    W = problem.initial.repeat(4, 1)
    assert W.shape[1] > d
    noise = torch.randn(W[:, d:].shape, generator=torch.Generator().manual_seed(0), dtype=W.dtype)
    W[:, d:] += 100 * noise.to(W.device)
    xi = assembly.method.xi(problem, W, torch.ones(4, dtype=torch.bool))  # type: ignore[attr-defined]
    assert close(xi, torch.full((4, 4), 0.2, dtype=torch.float64) + 0.2 * torch.eye(4, dtype=torch.float64), 1e-12)
    W[0, :d] += 1
    moved = assembly.method.xi(problem, W, torch.ones(4, dtype=torch.bool))  # type: ignore[attr-defined]
    assert moved[1, 0] < moved[1, 2] - 1e-3


def test_running_statistics_are_mixed_like_the_rest_and_are_not_pulled(tmp_path: Path) -> None:
    settings = {"beta": 1e-3, "weight_on_others": "attention"}
    run = simulate(tmp_path, model=normed, method="fedamp", settings=settings)
    d = run.problem.layout.parameters
    for k in (2, 3):
        expected = run.servers[k - 1].xi @ run.servers[k - 1].W
        assert close(run.rows(k, "cloud"), expected, 1e-12)
        assert (run.rows(k, "personal") - expected)[:, d:].abs().max() > 0.1


# ---- clients never heard from ----


@pytest.mark.parametrize("method", BOTH)
def test_clients_never_heard_from_take_no_part(tmp_path: Path, method: str) -> None:
    run = simulate(tmp_path, toy((9, 8, 7, 6, 5, 5, 4, 4)), method=method, rounds=4, participation={"sample": 0.25})
    met: set[str] = set()
    for k in range(1, 5):
        met |= set(run.lines[k]["participants"])
        server = run.servers[k]
        heard = [name in met for name in run.problem.names]
        assert server.heard.tolist() == heard
        for i in range(8):
            if heard[i]:
                assert all((server.xi[i, j] > 0) == heard[j] for j in range(8) if len(met) > 1)
            else:
                unit = torch.zeros_like(server.xi[i])
                unit[i] = 1
                assert torch.equal(server.xi[i], unit)
                assert not any(server.xi[j, i] for j in range(8) if j != i)
                assert torch.equal(server.W[i], run.problem.initial)
    assert 2 < len(met) < 8, "the test needs some who were never sampled"


def test_clients_never_heard_from_do_not_blur_the_attention_of_the_others(tmp_path: Path) -> None:
    """xi among those heard from is what it would be in a federation of these alone."""
    run = simulate(tmp_path, toy((9, 8, 7, 6, 5, 5)), method="fedamp", rounds=1, participation={"sample": 0.5})
    server = run.servers[1]
    among = server.heard.nonzero().squeeze(1)
    expected = mixing("fedamp", list(server.W[among]), None, None)
    assert close(server.xi[among][:, among], torch.tensor(expected, dtype=torch.float64))


# ---- the nearest only ----


@pytest.mark.parametrize("method", BOTH)
def test_each_client_attends_to_its_nearest_and_to_nobody_else(tmp_path: Path, method: str) -> None:
    ten = toy((9, 8, 8, 7, 7, 6, 6, 5, 5, 4), groups=[0, 1] * 5)
    run = simulate(tmp_path, ten, method=method, settings={"top": 3}, rounds=4, participation={"sample": 0.6})
    for k in range(1, 5):
        xi, heard = run.servers[k].xi, run.servers[k].heard
        assert close(xi.sum(1), torch.ones(10, dtype=torch.float64), 1e-12)
        expected = torch.where(heard, 1 + min(3, int(heard.sum()) - 1), 1)
        assert torch.equal(xi.count_nonzero(1).cpu(), expected), "itself and three others that were heard from"
        assert not xi[heard][:, ~heard].any()


@pytest.mark.parametrize("method", BOTH)
@pytest.mark.parametrize("top", [3, 4, 99])
def test_attention_to_as_many_as_there_are_is_attention_to_all(tmp_path: Path, method: str, top: int) -> None:
    everyone, nearest = (simulate(tmp_path, method=method, settings={"top": t}) for t in (0, top))
    assert same(nearest.servers[3].W, everyone.servers[3].W)


@pytest.mark.parametrize("method", BOTH)
def test_clients_that_all_agree_choose_the_same_kin_every_time(tmp_path: Path, method: str) -> None:
    """Ties go to the first: a result must not depend on how a machine sorts."""
    problem = ready(toy((4,) * 6)).problem
    kind = FedAMP if method == "fedamp" else HeurFedAMP
    xi = kind(top=2).xi(problem, problem.initial.repeat(6, 1), torch.ones(6, dtype=torch.bool, device=DEVICE))
    assert [row.nonzero().squeeze(1).tolist() for row in xi] == [
        [0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 3], [0, 1, 4], [0, 1, 5]
    ]  # fmt: skip
    assert close(xi[xi > 0], torch.full((18,), 1 / 3, dtype=torch.float64))


@pytest.mark.parametrize("method", BOTH)
def test_newcomers_attend_to_their_nearest_too(tmp_path: Path, method: str) -> None:
    run = simulate(
        tmp_path,
        toy((9, 8, 7, 6, 6, 5, 5, 4)),
        method=method,
        participation={"novel": 0.25},
        settings={"top": 1, "weight_on_others": "attention"},
    )
    xi, W, known = run.server.state.xi, run.server.state.W, run.problem.known
    assert known == 6
    moved = W - W[:known].mean(0)
    for i in (6, 7):
        cosine = [float(moved[i] @ moved[j] / (moved[i].norm() * moved[j].norm())) for j in range(known)]
        nearest = cosine.index(max(cosine))
        assert xi[i].nonzero().squeeze(1).tolist() == [nearest, i]
        assert close(xi[i, [nearest, i]], torch.full((2,), 0.5, dtype=torch.float64))


# ---- limits ----


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("method", BOTH)
def test_without_weight_on_others_and_without_pull_it_is_training_alone_bit_for_bit(
    tmp_path: Path, method: str, precision: str
) -> None:
    settings = {"weight_on_others": 0.0, "beta": 1e300}
    together = simulate(tmp_path, method=method, settings=settings, rounds=4, precision=precision)
    alone = simulate(tmp_path, method="separate", rounds=4, precision=precision)
    for k in range(1, 6):
        assert same(together.rows(k, "personal"), alone.rows(k, "personal"))
    assert together.lines[4]["models"]["personal"] == alone.lines[4]["models"]["personal"]


@pytest.mark.parametrize(("method", "sigma"), [("fedamp", 1e30), ("heurfedamp", 1e-300)])
def test_attention_without_contrast_is_fedavg_with_equal_weights(tmp_path: Path, method: str, sigma: float) -> None:
    equal = toy((8, 8, 8, 8, 8))
    settings = {"sigma": sigma, "weight_on_others": 0.8, "beta": 1e300}
    run = simulate(tmp_path, equal, method=method, settings=settings)
    average = simulate(tmp_path, equal, method="fedavg")
    for k in range(2, 5):
        cloud = run.rows(k, "cloud")
        assert close(cloud, run.servers[k - 1].W.mean(0).expand_as(cloud), 1e-12)
        assert close(cloud, average.rows(k, "global"), 1e-9)


@pytest.mark.parametrize("method", BOTH)
@pytest.mark.parametrize("init", ["common", "independent", "pretrained"])
def test_a_single_client_trains_near_its_own_model(tmp_path: Path, method: str, init: str) -> None:
    run = simulate(tmp_path, toy((7,)), method=method, settings={"init": init})
    for k in (2, 3):
        assert torch.equal(run.rows(k, "cloud"), run.rows(k - 1, "personal"))
    assert run.server.state.xi.tolist() == [[1.0]]


# ---- where clients start ----


def test_independent_starts_differ_from_each_other_and_are_heard_from_at_once(tmp_path: Path) -> None:
    settings = {"init": "independent", "sigma": 5.0, "weight_on_others": 0.5, "beta": 0.4}
    run = simulate(tmp_path, method="fedamp", settings=settings, rounds=1)
    names, initial = run.problem.names, run.problem.initial
    first = run.method.begin(run.problem, at(0, seed=0))
    assert names == NAMES
    assert len({tuple(row) for row in first.W.tolist()} | {tuple(initial.tolist())}) == 5
    xi = torch.tensor(mixing("fedamp", list(first.W), 5.0, [0.5] * 4), dtype=torch.float64, device=DEVICE)
    assert close(first.xi, xi)
    cloud = run.rows(1, "cloud")
    assert not any(torch.equal(cloud[i], cloud[j]) for i in range(4) for j in range(i))
    expected = [trained(run.a, i, u, 1, near=(u, 0.4)) for i, u in enumerate(cloud)]
    assert close(run.rows(1, "personal"), torch.stack(expected))


def test_pretraining_is_one_exchange_alone_that_is_neither_scored_nor_counted(tmp_path: Path) -> None:
    settings = {"init": "pretrained", "sigma": 0.7, "weight_on_others": 0.6, "beta": 0.4}
    run = simulate(tmp_path, method="fedamp", settings=settings)
    assert list(run.lines) == [1, 2, 3, 4]
    W0 = [trained(run.a, i, run.problem.initial, 0) for i in range(4)]
    assert close(run.servers[0].W, torch.stack(W0))
    xi = torch.tensor(mixing("fedamp", W0, 0.7, [0.6] * 4), dtype=torch.float64, device=DEVICE)
    assert close(run.rows(1, "cloud"), xi @ torch.stack(W0))
    row = run.problem.layout.size * 8
    assert run.lines[1]["bytes_up"] == run.lines[1]["bytes_down"] == 4 * row


def test_everyone_takes_part_in_pretraining_even_if_few_are_sampled(tmp_path: Path) -> None:
    settings = {"init": "pretrained"}
    run = simulate(tmp_path, method="fedamp", settings=settings, rounds=1, participation={"sample": 0.25})
    assert run.servers[0].heard.all() and len(run.lines[1]["participants"]) == 1


@pytest.mark.parametrize("participation", [{"dropped": 0.5}, {"lost": 0.9}])
def test_pretraining_happens_before_anyone_can_be_dropped_or_an_upload_lost(
    tmp_path: Path, participation: dict[str, float]
) -> None:
    run = simulate(tmp_path, method="fedamp", settings={"init": "pretrained"}, rounds=1, participation=participation)
    expected = torch.stack([trained(run.a, i, run.problem.initial, 0) for i in range(4)])
    assert run.servers[0].heard.all() and close(run.servers[0].W, expected) and run.holds[0] == {}


@pytest.mark.parametrize("method", BOTH)
def test_with_independent_starts_a_client_that_goes_on_from_its_own_model_starts_at_its_own_row(
    tmp_path: Path, method: str
) -> None:
    """The AAAI text draws w_i^0 for each client: that, and not the common start, is what it remembers."""
    settings = {"init": "independent", "init_from": "local", "beta": 1e12}
    half, local = {"sample": 0.5}, {"optimiser": "sgd"}
    run = simulate(tmp_path, method=method, settings=settings, rounds=1, participation=half, local=local)
    own = [run.problem.fresh(streams.generator(0, name, 0, "initial weights")) for name in NAMES]
    assert len({tuple(row.tolist()) for row in own}) == 4
    for i in range(4):
        expected = trained(run.a, i, own[i], 1) if i in run.took_part(1) else own[i]
        assert close(run.rows(1, "personal")[i], expected)


# ---- theory mode ----


@pytest.mark.parametrize(
    "settings",
    [
        {"sigma": 2.0},
        {"sigma": 0.5, "attention": "tamed_square_root"},
        {"sigma": 1.0, "attention": "mcp", "height": 0.3, "gamma": 4.0},
        {"sigma": 1.0, "attention": "scad", "height": 0.3},
    ],
)
def test_in_theory_mode_the_server_takes_a_gradient_step_and_rows_of_xi_sum_to_one(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    alpha = 0.1
    given = {"mode": "theory", "alpha": alpha, "strength": 0.5, **settings}
    run = simulate(tmp_path, method="fedamp", settings=given)
    for k in (1, 2, 3):
        W, xi = run.servers[k].W.clone().requires_grad_(), run.servers[k].xi
        assert close(xi.sum(1), torch.ones(4, dtype=torch.float64), 1e-12)
        assert close(xi, xi.T, 1e-12)
        function = named(given.get("attention", "negative_exponential"), dict(run.method))
        total = sum(function.value((W[i] - W[j]).square().sum() / 2) for i in range(4) for j in range(i))
        (slope,) = torch.autograd.grad(total, W)
        assert close(run.rows(k + 1, "cloud"), (W - alpha * slope).detach(), 1e-10)
    u = run.rows(2, "cloud")
    assert close(run.rows(2, "personal")[0], trained(run.a, 0, u[0], 2, near=(u[0], alpha / 0.5)))


def test_the_theorems_step_is_lambda_over_the_root_of_the_rounds(tmp_path: Path) -> None:
    given = {"mode": "theory", "sigma": 2.0, "strength": 0.5}
    auto = simulate(tmp_path, method="fedamp", settings=given, rounds=4)
    explicit = simulate(tmp_path, method="fedamp", settings={**given, "alpha": 0.25}, rounds=4)
    assert same(auto.servers[4].W, explicit.servers[4].W)
    assert auto.servers[4].xi[0, 1] > 0


# ---- where attention looks ----


def test_attention_can_look_at_the_head_at_named_layers_or_at_updates(tmp_path: Path) -> None:
    W = simulate(tmp_path, method="fedamp").servers[3].W
    problem = ready().problem
    heard = torch.ones(4, dtype=torch.bool)
    size = 4 * 5 + 5
    parts: dict[str, tuple[Any, Tensor]] = {
        "head": ("head", W[:, size:]),
        "the head by name": (["head"], W[:, size:]),
        "one tensor": (["hidden1.bias"], W[:, 20:25]),
        "two layers": (["hidden1", "head"], W),
        "updates": ("updates", W - problem.initial),
    }
    for method, kind in (("fedamp", FedAMP), ("heurfedamp", HeurFedAMP)):
        seen = []
        for name, (similarity, looked_at) in parts.items():
            xi = kind(similarity=similarity).xi(problem, W, heard)
            expected = torch.tensor(mixing(method, list(looked_at), None, None), dtype=torch.float64)
            assert close(xi, expected, 1e-8), f"{method}, {name}"
            seen.append(xi)
        assert not close(seen[0], seen[2], 1e-3) and not close(seen[0], seen[3], 1e-3)


# ---- what cannot be ----


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"similarity": ["convolution"]}, "no layer 'convolution'"),
        ({"weight_on_others": {"a": 0.5}}, "b, c, d"),
        ({"beta": {"a": 1.0, "b": 1.0, "c": 1.0}}, "d has none"),
        ({"mode": "theory"}, "give sigma a number"),
        ({"attention": "tamed_square_root"}, "give sigma a number"),
        ({"weight_on_others": 1.2}, "settings.weight_on_others"),
        ({"weight_on_others": dict.fromkeys(NAMES, 1.2)}, "settings.weight_on_others"),
        ({"beta": dict.fromkeys(NAMES, 0.0)}, "settings.beta"),
        ({"sigma": 0.0}, "settings.sigma"),
        ({"top": -1}, "settings.top"),
        ({"top": 2, "mode": "theory", "sigma": 1.0}, "is for practice mode"),
    ],
)
def test_settings_that_cannot_be_are_answered_with_a_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ready(method="fedamp", settings=settings)


GRADIENT = {"proximal": "gradient"}
SGD = {"optimiser": "sgd", "lr": 0.05}


@pytest.mark.parametrize(
    ("settings", "local", "words"),
    [
        ({}, {}, r"first in round 181: the rate is 0\.05 and beta is 0\.01, a ratio of 5\. .*at most 0\.002\."),
        ({"beta": 0.02}, {}, r"first in round 1: the rate is 0\.05 and beta is 0\.02, a ratio of 2\.5\. "),
        ({"beta": {**dict.fromkeys(NAMES, 1e9), "c": 0.02}}, {}, r"first in round 1: .* beta is 0\.02"),
        ({"beta_every": 10, "beta": 1.0}, {}, r"first in round 21: the rate is 0\.05 and beta is 0\.01"),
        (
            {},
            {"lr": 0.3, "schedule": "step", "schedule_every": 100},
            r"first in round 181: the rate is 0\.03 and beta is 0\.01, a ratio of 3\. .*at most 0\.2\.",
        ),
        (
            {"mode": "theory", "sigma": 1.0, "alpha": 0.01, "strength": 2.0},
            {},
            r"round 1: .* beta is 0\.005, a ratio of 10",
        ),
        (
            {"mode": "theory", "sigma": 1.0},
            {"lr": 0.2},
            r"round 1: .* beta is 0\.0666667, a ratio of 3\..* at most 0\.133",
        ),
    ],
)
def test_a_gradient_that_would_diverge_under_sgd_is_refused_with_the_round(
    settings: dict[str, Any], local: dict[str, Any], words: str
) -> None:
    """225 rounds: beta falls from 1e4 to 1e-3 in the 211th."""
    with pytest.raises(ConfigError, match=words):
        ready(method="fedamp", settings={**GRADIENT, **settings}, local={**SGD, **local}, rounds=225)
    ready(method="fedamp", settings=settings, local={**SGD, **local}, rounds=225)
    ready(method="fedamp", settings={**GRADIENT, **settings}, local={"lr": 0.05}, rounds=225)


def test_a_gradient_that_does_not_diverge_is_not_refused() -> None:
    ready(method="fedamp", settings=GRADIENT, local=SGD, rounds=180)
    ready(method="heurfedamp", settings=GRADIENT, local=SGD, rounds=180)
    with pytest.raises(ConfigError, match="round 181"):
        ready(method="heurfedamp", settings=GRADIENT, local=SGD, rounds=181)
    ready(method="fedamp", settings={**GRADIENT, "beta_decay": 1.0}, local=SGD, rounds=1000)
    ready(method="fedamp", settings={**GRADIENT, "beta": 0.025, "beta_decay": 1.0}, local=SGD)


@pytest.mark.parametrize("settings", [{"mode": "theory", "sigma": 1.0}, {"attention": "mcp"}])
def test_heurfedamp_does_not_pretend_to_what_only_fedamp_has(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="HeurFedAMP looks at cosines"):
        ready(method="heurfedamp", settings=settings)
