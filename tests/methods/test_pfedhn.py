"""pFedHN against the authors' steps: an nn.Embedding, torch's SGD and clipping; and its personal-classifier variant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import DEVICE, at, close, copied, normed, ready, simulate, toy, trained
from torch import Tensor, nn

from fedkin.base.settings import ConfigError
from fedkin.base.state import Server, State
from fedkin.engines.assembly import Assembly
from fedkin.maths.hypernetworks import MLPHypernetwork
from fedkin.methods.pfedhn import PFedHN
from fedkin.runs.config import resolve

SIX = (13, 9, 8, 6, 5, 4)
PUBLISHED: dict[str, Any] = {"server_optimiser": "sgd", "server_steps": 1, "server_weight_decay": 1e-3}
SMALL: dict[str, Any] = {"hidden": 16, "embedding": 5, **PUBLISHED, "server_lr": 0.05}


def begun(a: Assembly) -> Server:
    return a.method.begin(a.known_problem(), at(0, seed=a.config.seeds[2]))


def written(a: Assembly, server: Server, clients: Tensor | None = None) -> Tensor:
    problem = a.known_problem()
    clients = torch.arange(len(problem), device=DEVICE) if clients is None else clients
    return a.method.download(problem, server, clients, at(1, seed=0)).generated


def updated(a: Assembly, server: Server, wanted: Tensor, clients: Tensor) -> Server:
    return a.method.update(a.known_problem(), copied(server), clients, State(theta=wanted), at(1, seed=0))


class Oracle:
    """The authors' server: gradients by `torch.autograd.grad(weights, parameters, grad_outputs=delta_theta)`."""

    def __init__(self, settings: PFedHN, server: Server) -> None:
        self.s = settings
        m, e = server.embeddings.shape
        self.network = MLPHypernetwork(e, settings.hidden, settings.layers, len(server.offset)).to(server.psi)
        nn.utils.vector_to_parameters(server.psi[0].clone(), self.network.parameters())
        self.embeddings = nn.Embedding(m, e, dtype=torch.float64, device=DEVICE)
        self.embeddings.weight.data = server.embeddings.clone()
        rate = settings.server_lr if settings.embedding_lr == "same" else settings.embedding_lr
        groups = [{"params": self.network.parameters()}, {"params": self.embeddings.parameters(), "lr": rate}]
        decay = settings.server_weight_decay
        self.optimiser: torch.optim.Optimizer
        if settings.server_optimiser == "adam":
            self.optimiser = torch.optim.Adam(groups, settings.server_lr, weight_decay=decay)
        else:
            self.optimiser = torch.optim.SGD(groups, settings.server_lr, settings.server_momentum, weight_decay=decay)

    def theta(self, i: int) -> Tensor:
        return self.network(self.embeddings(torch.tensor([i], device=DEVICE)), None)[0][0]

    def step(self, answers: dict[int, Tensor]) -> None:
        """A mean of the clients' gradients, then the step."""
        parameters = [*self.network.parameters(), *self.embeddings.parameters()]
        for _ in range(self.s.server_steps):
            self.optimiser.zero_grad()
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            for i, answer in answers.items():
                theta = self.theta(i)
                delta = theta.detach() - answer  # old minus new
                for p, g in zip(parameters, torch.autograd.grad(theta, parameters, delta), strict=True):
                    p.grad += g / len(answers)
            if self.s.server_clip:
                nn.utils.clip_grad_norm_(parameters, self.s.server_clip)
            self.optimiser.step()


VARIANTS: dict[str, dict[str, Any]] = {
    "as published": {},
    "clipped": {"server_clip": 0.1},
    "not clipped": {"server_clip": 0.0},
    "two steps": {"server_steps": 2, "server_weight_decay": 0.05},
    "adam": {"server_optimiser": "adam", "server_lr": 0.01, "server_steps": 3, "server_clip": 1.0},
    "embeddings at their own rate": {"embedding_lr": 0.5},
    "one layer": {"layers": 0},
}


@pytest.mark.parametrize("sample", [1.0, 0.5, 0.1], ids=["everyone", "half", "one"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_round_is_the_authors_step(tmp_path: Path, variant: str, sample: float) -> None:
    settings = {**SMALL, **VARIANTS[variant]}
    run = simulate(tmp_path, toy(SIX), method="pfedhn", settings=settings, participation={"sample": sample}, rounds=4)
    method = run.a.method
    assert isinstance(method, PFedHN)
    oracle = Oracle(method, begun(run.a))
    for k in range(1, 5):
        theta = torch.stack([oracle.theta(i).detach() for i in range(6)])
        assert close(run.rows(k, "generated"), theta), f"written in round {k}"
        clients = run.took_part(k)
        assert len(clients) == max(1, round(6 * sample))
        answers = {i: trained(run.a, i, theta[i], k) for i in clients}
        assert all(close(run.rows(k, "personal")[i], row) for i, row in answers.items())
        oracle.step(answers)
        psi = nn.utils.parameters_to_vector(oracle.network.parameters())
        assert close(run.servers[k].psi[0], psi.detach()), f"the hypernetwork after round {k}"
        assert close(run.servers[k].embeddings, oracle.embeddings.weight.detach()), f"embeddings after round {k}"


def test_a_step_brings_the_written_weights_nearer_and_the_printed_sign_takes_them_away() -> None:
    """Trap T6."""
    plain = {"server_lr": 1e-4, "server_momentum": 0.0, "server_weight_decay": 0.0}
    a = ready(toy(SIX), method="pfedhn", settings={**SMALL, **plain})
    before, clients = begun(a), torch.arange(6, device=DEVICE)
    wanted = written(a, before) + 0.1
    after = updated(a, before, wanted, clients)
    printed = before.replace(psi=2 * before.psi - after.psi, embeddings=2 * before.embeddings - after.embeddings)
    apart = [float((written(a, server) - wanted).norm()) for server in (after, before, printed)]
    assert apart[0] < apart[1] < apart[2]


def test_weight_decay_and_momentum_move_the_embeddings_of_those_who_stayed_away() -> None:
    a = ready(toy(SIX), method="pfedhn", settings={**SMALL, "server_weight_decay": 0.1, "server_momentum": 0.5})
    begin = begun(a)
    v, lr = begin.embeddings[1:], 0.05
    first = updated(a, begin, written(a, begin)[:1] + 1, torch.tensor([0], device=DEVICE))
    assert close(first.embeddings[1:], v * (1 - lr * 0.1), 1e-12)
    second = updated(a, first, written(a, first)[:1] + 1, torch.tensor([0], device=DEVICE))
    momentum = 0.5 * 0.1 * v + 0.1 * first.embeddings[1:]
    assert close(second.embeddings[1:], first.embeddings[1:] - lr * momentum, 1e-12)


@pytest.mark.parametrize(("clients", "length"), [(3, 1), (4, 2), (6, 2), (8, 3)])
def test_embeddings_are_a_quarter_as_long_as_there_are_clients(clients: int, length: int) -> None:
    """floor(1 + m / 4): 13 for the authors' 50 clients."""
    a = ready(toy(tuple(range(4 + clients, 4, -1))), method="pfedhn")
    assert begun(a).embeddings.shape == (clients, length)
    assert PFedHN().length(50) == 13


def test_weights_start_as_the_hypernetwork_writes_them_unless_they_are_to_be_scaled() -> None:
    plain, scaled = (ready(toy(SIX), method="pfedhn", settings={**SMALL, "scaled": on}) for on in (False, True))
    assert not begun(plain).offset.any()
    layout, initial = plain.problem.layout, plain.problem.initial
    rows = [layout.tensors(written(a, begun(a))) for a in (plain, scaled)]
    for name, part in layout.tensors(initial).items():
        width = float(part.std(correction=0))
        assert abs(float(rows[1][name].std(correction=0)) / width - 1) < 1e-6
        assert abs(float(rows[0][name].std(correction=0)) / width - 1) > 0.01


# ---- the personal classifier ----


@pytest.mark.parametrize("model", [None, normed], ids=["mlp", "batchnorm"])
def test_a_personal_classifier_never_leaves_its_client(tmp_path: Path, model: Any) -> None:
    """pFedHN-PC: neither written, nor sent; the client trains it on, from the initial model's."""
    settings = {**SMALL, "personal_classifier": True}
    run = simulate(tmp_path, toy(SIX), model=model, method="pfedhn", settings=settings, participation={"sample": 0.5})
    layout = run.problem.layout
    head = layout.columns("head")
    assert head is not None
    n, kept = int(head[0]), slice(int(head[0]), layout.size)
    assert head.tolist() == list(range(n, layout.parameters))
    own = run.problem.initial[kept].repeat(6, 1)
    for k in (1, 2, 3):
        assert run.sent[k][1].generated.shape == (6, n) and len(run.server.state.offset) == n
        assert run.lines[k]["bytes_down"] == 6 * n * 8 and run.lines[k]["bytes_up"] == 3 * n * 8
        after = run.memories[k].personal[:, kept]
        assert [not torch.equal(after[i], own[i]) for i in range(6)] == [i in run.took_part(k) for i in range(6)]
        own = after.clone()
        assert torch.equal(run.rows(k, "generated")[:, kept], own)
        assert torch.equal(run.rows(k, "generated")[:, :n], run.sent[k][1].generated)
    if model is None:
        for i in run.took_part(1):
            start = torch.cat([run.sent[1][1].generated[i], run.problem.initial[kept]])
            assert close(run.memories[1].personal[i], trained(run.a, i, start, 1)), "all of the model is trained"


def test_a_model_that_is_all_classifier_leaves_nothing_to_write() -> None:
    with pytest.raises(ConfigError, match="nothing to write"):
        ready(toy(), model={"name": "logistic"}, method="pfedhn", settings={"personal_classifier": True})


def test_what_does_not_fit_is_told_what_would_make_it_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkin.base.machine.free_bytes", lambda device: 1000)
    with pytest.raises(
        ConfigError, match=r"does not fit: to write 43 weights .* or settings\.personal_classifier = true"
    ):
        ready(toy(), method="pfedhn")
    with pytest.raises(ConfigError, match=r"settings\.hidden \(now 100\)\.$"):
        ready(toy(), method="pfedhn", settings={"personal_classifier": True})


def test_what_does_not_fit_is_refused_before_a_model_that_large_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying whether it can be stacked takes many copies of the model: the system would end the process before."""
    monkeypatch.setattr("fedkin.base.machine.free_bytes", lambda device: 1000)
    monkeypatch.setattr("fedkin.engines.stock.choose", lambda *_, **__: pytest.fail("the model was tried"))
    with pytest.raises(ConfigError, match="does not fit"):
        ready(toy(), method="pfedhn")


# ---- newcomers, and settings ----


def test_newcomers_get_what_is_written_for_their_own_for_a_mean_and_for_no_embedding(tmp_path: Path) -> None:
    """It looks at no graph, even where there is one: the mean is over all."""
    path = torch.diag(torch.ones(5), 1)
    federation = replace(toy(SIX), graph=path + path.T)
    run = simulate(tmp_path, federation, method="pfedhn", settings=SMALL, participation={"novel": 0.34})
    server, network = run.server.state, MLPHypernetwork(5, 16, 3, len(run.server.state.offset)).to(run.server.state.psi)
    nn.utils.vector_to_parameters(server.psi[0], network.parameters())
    drawn = [
        torch.randn(5, generator=at(0, seed=0).rng("embedding", n), dtype=torch.float64) for n in run.problem.names[4:]
    ]
    starts = {
        "generated": torch.stack(drawn).to(DEVICE),
        "generated-mean": run.servers[4].embeddings.mean(0).expand(2, -1),
        "generated-zero": torch.zeros(2, 5, dtype=torch.float64, device=DEVICE),
    }
    assert set(run.lines[5]["models"]) == {"personal", *starts}
    for name, start in starts.items():
        assert close(run.rows(5, name), network(start, None)[0].detach()), name


def test_native_is_as_published_on_every_data_set() -> None:
    for data in ("fl60", "tpt48", "digits"):
        config = resolve({"method": "pfedhn", "data": data, "budget": "native"})
        local, server = config.local, config.settings
        assert (local.optimiser, local.lr, local.momentum, local.weight_decay) == ("sgd", 5e-3, 0.9, 5e-5)
        assert (local.batch_size, local.steps, local.clip) == (64, 50, 50.0)
        assert (server["server_optimiser"], server["server_lr"], server["server_momentum"]) == ("sgd", 1e-2, 0.9)
        assert (server["server_weight_decay"], server["server_clip"], server["server_steps"]) == (1e-3, 50.0, 1)
    equal = resolve({"method": "pfedhn", "data": "tpt48"}).settings
    assert (equal["server_optimiser"], equal["server_weight_decay"]) == ("adam", 0.0)
