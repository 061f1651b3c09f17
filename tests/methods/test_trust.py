"""Trust in others: a client without kin keeps to itself, and one with kin does not notice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import DEVICE, close, ready, simulate, toy

import fedkin
from fedkin.base.state import State
from fedkin.data.federation import Federation
from fedkin.methods import _trust

BOTH = ("fedamp", "heurfedamp")
WORLD = {"name": "digits", "split": "mixed", "clients": 11, "agreeing": 6, "relabelled": 4, "lone": 1}


def last(method: str, folder: Path, **settings: object) -> tuple[torch.Tensor, torch.Tensor]:
    """(seeds, clients) closing scores of the headline model, and each client's weight on others at the end."""
    results = fedkin.compare(
        {"data": WORLD, "rounds": 10, "local": {"lr": 0.01}, **settings}, methods=[method], seeds=2, out=folder
    )
    scores = [run.rounds[-1].models[run.summary.headline].clients for run in results.runs]
    xi = [1 - torch.as_tensor(run.collaboration()).diagonal() for run in results.runs if method != "separate"]
    return torch.tensor(scores), torch.stack(xi) if xi else torch.empty(0)


@pytest.mark.parametrize("method", BOTH)
def test_a_silo_that_resembles_nobody_is_not_ruined(tmp_path: Path, method: str) -> None:
    """Before, its weight on others was 0.9, as attention to strangers is flat, and it ended at 20 to 40 %."""
    alone, _ = last("separate", tmp_path / "alone")
    joined, weight = last(method, tmp_path / method)
    assert (weight[:, 10] < 0.1).all(), "the loner keeps to itself"
    assert (weight[:, :10] > 0.3).all(), "and the others do not"
    assert joined[:, 10].mean() > alone[:, 10].mean() - 0.06
    assert joined[:, :10].mean() > alone[:, :10].mean() + 0.05


def test_trust_is_full_where_others_know_most_of_it_and_none_where_they_know_nothing() -> None:
    own = torch.ones(6, dtype=torch.float64)
    others = torch.tensor([-1.0, 0.0, 0.6, 0.8, 0.96, 1.0], dtype=torch.float64)
    trust = _trust.trust(others, own)
    assert (trust[:3] == 0).all() and (trust[4:] == 1).all() and 0.1 < trust[3] < 0.4


@pytest.mark.parametrize("own", [-0.9, -0.1, 0.0, 0.01, 0.1])
def test_others_who_know_nothing_are_not_trusted_however_little_one_knows_oneself(own: float) -> None:
    """A loner that learns slowly knew as little as the strangers did: it was mixed with them, and knew even less."""
    others = torch.tensor([-0.9, -0.1, 0.0, 0.01])
    assert (_trust.trust(others, torch.full((4,), own)) == 0).all()


def test_what_others_sent_is_found_again_in_what_a_client_got() -> None:
    """z from u = (1 - tau) w + tau z, by the trust that z itself would have."""
    assembly = ready(toy((9, 8, 7, 6)), method="fedamp")
    source = torch.Generator().manual_seed(3)
    size = assembly.problem.layout.size
    w, z = (torch.randn(4, size, generator=source, dtype=torch.float64).to(DEVICE) for _ in range(2))
    tau = torch.tensor([1.0, 0.5, _trust.LEAST, 0.0], dtype=torch.float64, device=DEVICE)
    u, full = w + tau[:, None] * (z - w), torch.ones_like(tau)
    heeded, sent = _trust.heeded(assembly.cohort, State(u=u, tau=tau, trust=full), State(personal=w, alone=w))
    _, direct = _trust.heeded(assembly.cohort, State(u=z, tau=full, trust=full), State(personal=w, alone=w))
    assert close(sent["trust"][:3], direct["trust"][:3], 1e-8)
    assert sent["trust"][3] == 1 and torch.equal(heeded[3], u[3]), "nobody is in it: nothing is known against them"
    assert close(heeded[:3], (w + sent["trust"][:, None] * (u - w))[:3]), "no further than they are trusted"


def test_a_loner_trains_as_if_it_were_alone_and_does_not_drift_towards_strangers() -> None:
    """What the server keeps mixing in, to let it look, would in a hundred rounds be nearly half."""
    assembly = ready(toy((9, 8, 7, 6)), method="fedamp")
    source = torch.Generator().manual_seed(3)
    w = 9 * torch.randn(4, assembly.problem.layout.size, generator=source, dtype=torch.float64).to(DEVICE)
    told = torch.full((4,), _trust.LEAST, dtype=torch.float64, device=DEVICE)
    for label in range(3):  # strangers who call everything by one name, with all their might
        z = torch.zeros_like(w)
        z[:, assembly.problem.layout.size - 3 + label] = 1e3
        message = State(u=w + told[:, None] * (z - w), tau=told, trust=torch.zeros_like(told))
        heeded, sent = _trust.heeded(assembly.cohort, message, State(personal=w, alone=w))
        alone = sent["trust"] == 0
        assert torch.equal(heeded[alone], w[alone])
    assert alone.any()


def test_the_cloud_model_that_is_scored_is_the_one_that_is_heeded(tmp_path: Path) -> None:
    """Who trained in a round began there; who did not, as all in the closing exchange, would: what strangers sent in
    the last download is not handed to a client that would have stepped back from it."""
    run = simulate(tmp_path, toy((9, 8, 7, 6)), method="fedamp", rounds=6, participation={"sample": 0.5})
    stepped_back, idle = 0, 0
    for k in range(2, 8):
        clients, message = run.sent[k]
        took_part = run.took_part(k)
        memory = run.memories[min(k, 6)]
        expected, _ = _trust.heeded(run.a.cohort.take(clients), message, memory)
        for i in clients:
            if i in took_part:
                expected[i] = memory.heeded[i]
            else:
                idle += 1
        assert torch.equal(run.rows(k, "cloud"), expected)
        stepped_back += int((run.rows(k, "cloud") != message.u).any(1).sum())
    assert idle >= 10 and stepped_back


@pytest.mark.parametrize("weight", [0.5, "attention"])
def test_where_the_weight_is_given_nobody_is_asked(tmp_path: Path, weight: object) -> None:
    run = simulate(tmp_path, method="fedamp", settings={"weight_on_others": weight})
    assert (run.server.state.trust == 1).all()
    size = run.problem.layout.size * 8 * len(run.problem)
    assert run.lines[2]["bytes_up"] == run.lines[2]["bytes_down"] == size


def test_what_a_client_sends_for_it_is_a_number(tmp_path: Path) -> None:
    run = simulate(tmp_path, method="fedamp")
    assert run.lines[2]["bytes_up"] == (run.problem.layout.size + 1) * 8 * len(run.problem)


@pytest.mark.parametrize("method", BOTH)
def test_a_newcomer_without_kin_keeps_to_itself_and_one_with_kin_does_not(tmp_path: Path, method: str) -> None:
    """Eleven silos of which three come later; by the seed the loner is among them."""
    federation = fedkin.load(**WORLD, validation=0.1)
    settings = {"rounds": 6, "participation": {"novel": 0.3}, "local": {"lr": 0.01, "epochs": 10, "batch_size": 20}}
    settings |= {"model": {"name": "mlp", "settings": {"hidden": [64]}}, "precision": "float32"}
    for seed in range(40):
        names = ready(federation, method=method, seed=seed, **settings).problem.names[8:]
        if "silo-10" in names:
            break
    run = simulate(tmp_path, federation, method=method, seed=seed, **settings)
    alone = simulate(tmp_path, federation, method="separate", seed=seed, **settings)
    weight = dict(zip(names, (1 - run.server.state.xi.diagonal())[8:].tolist(), strict=True))
    trust = dict(zip(names, run.server.state.trust[8:].tolist(), strict=True))
    assert trust.pop("silo-10") == 0 and weight.pop("silo-10") <= _trust.LEAST
    assert min(trust.values()) >= _trust.STRANGERS and min(weight.values()) > 10 * _trust.LEAST
    at = names.index("silo-10")
    scores = [
        next(iter(fedkin.Run(each.writer.path).summary.novel.models.values())).clients[at] for each in (run, alone)
    ]
    assert scores[0] > scores[1] - 0.05


# ---- other tasks, slow learners ----


def regression(rules: list[float], target: float | None = None) -> fedkin.Federation:
    """Clients whose answer is `rule` times the sum of the inputs, and noise; `target`: the last one's, a constant."""
    clients = []
    for i, rule in enumerate(rules):
        source = torch.Generator().manual_seed(i)
        x = torch.randn(140, 5, generator=source)
        y = rule * x.sum(1, keepdim=True) / 5**0.5 + 0.2 * torch.randn(140, 1, generator=source)
        if target is not None and i == len(rules) - 1:
            y = torch.full_like(y, target)
        clients.append(fedkin.Client(f"silo-{i}", (x[:40], y[:40]), (x[40:], y[40:])))
    return fedkin.Federation("made up", tuple(clients), fedkin.Task.regression((5,), 1))


SLOW = {"precision": "float32", "rounds": 20, "local": {"epochs": 1, "batch_size": 10, "lr": 0.005}}


@pytest.mark.parametrize("method", BOTH)
@pytest.mark.parametrize(
    ("lone", "target"),
    [
        (-1.0, None),  # what the others know is wrong
        (0.0, None),  # there is nothing to know
        (1.0, 3.0),  # the answer is always the same
    ],
)
def test_a_number_to_be_told_and_a_loner_that_learns_slowly(
    tmp_path: Path, method: str, lone: float, target: float | None
) -> None:
    """While it knew no more than the strangers did it was mixed with them, and so it never came to know more."""
    federation = regression([1.0] * 6 + [lone], target)
    run, alone = (simulate(tmp_path, federation, method=name, **SLOW) for name in (method, "separate"))
    weight = 1 - run.server.state.xi.diagonal()
    assert weight[6] <= _trust.LEAST
    assert (weight[:6] > 0.3).all()
    losses = [torch.tensor(next(iter(each.lines[20]["models"].values()))["clients"]) for each in (run, alone)]
    assert losses[0][6] < 1.1 * losses[1][6] + 0.01
    assert losses[0][:6].mean() < losses[1][:6].mean()


@pytest.mark.parametrize("method", BOTH)
def test_loners_who_tell_numbers_do_not_find_each_other(tmp_path: Path, method: str) -> None:
    """Eight directions, orthogonal to each other: a mean of two models has explained half of either's targets, and so
    pairs of loners stayed together and lost up to three quarters."""
    source = torch.Generator().manual_seed(31)
    directions = torch.linalg.qr(torch.randn(12, 12, generator=source)).Q
    clients = []
    for i in range(12):
        x = torch.randn(160, 12, generator=source)
        y = x @ directions[max(0, i - 3), :, None] + 0.4 * torch.randn(160, 1, generator=source)
        clients.append(fedkin.Client(f"silo-{i:02}", (x[:60], y[:60]), (x[60:], y[60:])))
    federation = fedkin.Federation("made up", tuple(clients), fedkin.Task.regression((12,), 1))
    settings = {"precision": "float32", "rounds": 40, "local": {"epochs": 2, "batch_size": 16, "lr": 0.003}}
    settings |= {"model": {"name": "mlp", "settings": {"hidden": [32]}}, "data": {"validation": 0.1}}
    run, alone = (simulate(tmp_path, federation, method=name, **settings) for name in (method, "separate"))
    weight = 1 - run.server.state.xi.diagonal()
    assert (weight[4:] < 0.05).all() and (weight[:4] > 0.3).all()
    losses = [torch.tensor(next(iter(each.lines[40]["models"].values()))["clients"]) for each in (run, alone)]
    assert (losses[0][4:] < 1.2 * losses[1][4:]).all()
    assert losses[0][:4].mean() < 0.9 * losses[1][:4].mean()


def rare(directions: list[list[float]], frequent: float = 0.8) -> fedkin.Federation:
    """Clients that have to tell a rare class by a direction of their own in six features, of which five say nothing."""
    clients = []
    for i, direction in enumerate(directions):
        source = torch.Generator().manual_seed(i)
        x = torch.randn(260, 6, generator=source)
        at = x @ torch.tensor(direction)
        y = (at > at.quantile(frequent)).long()
        clients.append(fedkin.Client(f"silo-{i}", (x[:160], y[:160]), (x[160:], y[160:])))
    return fedkin.Federation("made up", tuple(clients), fedkin.Task.classification((6,), 2))


@pytest.mark.parametrize("method", BOTH)
def test_strangers_who_know_what_is_frequent_are_strangers(tmp_path: Path, method: str) -> None:
    """Who always said "no" was right for four of five, and so any stranger was trusted."""
    kin, others = [1.0, 0, 0, 0, 0, 0], [[-1.0, 0, 0, 0, 0, 0], [0, 1.0, 0, 0, 0, 0], [0, 0, 0, 1.0, 0, 0]]
    settings = {"precision": "float32", "rounds": 25, "local": {"epochs": 2, "batch_size": 20, "lr": 0.005}}
    settings |= {"data": {"validation": 0.1}}
    federation = rare([kin] * 5 + others)
    run, alone = (simulate(tmp_path, federation, method=name, **settings) for name in (method, "separate"))
    weight = 1 - run.server.state.xi.diagonal()
    assert (weight[5:] <= _trust.LEAST).all() and (weight[:5] > 0.2).all() and weight[:5].median() > 0.5
    scores = [torch.tensor(next(iter(each.lines[25]["models"].values()))["clients"]) for each in (run, alone)]
    assert (scores[0][5:] > scores[1][5:] - 0.03).all()
    assert scores[0][:5].mean() > scores[1][:5].mean() - 0.01


@pytest.mark.slow
@pytest.mark.parametrize("method", BOTH)
def test_groups_that_are_clear_stay_apart_in_a_long_run(tmp_path: Path, method: str) -> None:
    """Two relabelled groups became one from round 120 on, and their silos fell from 92 to 40 %."""
    data = {"name": "digits", "split": "mixed", "clients": 23, "agreeing": 12, "relabelled": 8, "lone": 3}
    run = fedkin.run({"data": data, "rounds": 220, "seed": 1}, method=method, out=tmp_path / "run")
    scores = torch.tensor(run.rounds[-1].models["cloud"].clients)
    assert scores[12:20].mean() > 0.85 and scores[:12].mean() > 0.85
    xi = torch.as_tensor(run.collaboration(220))
    assert xi[12:16, 16:20].sum() < 0.01 and (1 - xi.diagonal()[20:] < 0.01).all()


@pytest.mark.parametrize("method", ["fedamp", "heurfedamp"])
def test_a_silo_whose_hazards_are_reversed_keeps_to_itself(tmp_path: Path, method: str) -> None:
    """Cox's regression at five silos, of which one has the opposite effects."""
    rng, effects = np.random.default_rng(0), np.array([1.0, -0.8, 0.5, 0.0])
    silos = {}
    for name in ("a", "b", "c", "d", "odd"):
        x = rng.normal(size=(150, 4))
        hazard = np.exp(x @ effects * (-1 if name == "odd" else 1))
        time, end = rng.exponential(size=150) / hazard, rng.exponential(size=150)
        silos[name] = (x, (np.minimum(time, end) + 1e-3, time <= end))
    federation = Federation.from_arrays(silos, "survival")
    found = fedkin.run(federation=federation, method=method, rounds=15, out=tmp_path / method)
    alone = fedkin.run(federation=federation, method="separate", rounds=15, out=tmp_path / "alone")
    odd = found.summary.clients.index("odd")
    assert found.rounds[-1].models["cloud"].clients[odd] > alone.rounds[-1].models["personal"].clients[odd] - 0.02
    xi = found.collaboration()
    others = [i for i in range(5) if i != odd]
    assert xi[odd, others].sum() < 0.01
    assert xi[others, odd].max() < 0.02
    assert np.mean([xi[i, [j for j in others if j != i]].sum() for i in others]) > 0.2


def test_what_is_looked_at_to_know_whom_to_trust_is_counted(tmp_path: Path) -> None:
    """Three models on at most 256 samples of training and of validation data, in every round of those who ask."""
    assembly = ready(toy((300, 9, 7)), method="fedamp", data={"validation": 0.2})
    cohort, w = assembly.cohort, assembly.problem.initial.expand(3, -1).clone()
    ones = torch.ones(3, dtype=w.dtype, device=DEVICE)
    _trust.heeded(cohort, State(u=w, tau=ones, trust=ones), State(personal=w, alone=w))
    counts = [3 * (min(n, 256) + held) for n, held in zip(cohort.samples, cohort.validation.counts, strict=True)]
    assert cohort.samples[0] < 256 and sum(cohort.validation.counts) > 0
    assert cohort.ledger.passes is not None and cohort.ledger.passes.tolist() == counts
    many = ready(toy((400, 9)), method="fedamp").cohort
    _trust.heeded(many, State(u=w[:2], tau=ones[:2], trust=ones[:2]), State(personal=w[:2], alone=w[:2]))
    assert many.ledger.passes is not None and many.ledger.passes.tolist() == [3 * 256, 3 * 9]
    for weight, asks in (("auto", True), ("attention", False)):
        run = simulate(tmp_path, toy((9, 8, 7)), method="fedamp", settings={"weight_on_others": weight})
        assert [line["passes"] > 0 for line in run.lines.values()] == [asks] * 3 + [False]
