"""Runs that end when they are done, that are made longer, that are handed what validation chose, and that explode."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import ready, simulate, toy

import fedkin
from fedkin.data.federation import Client, Federation
from fedkin.engines import recorder, start
from fedkin.engines.simulation import Interrupted, Listener
from fedkin.evidence import progress
from fedkin.evidence.records import Line, ModelScores, Validation
from fedkin.maths import statistics
from fedkin.methods import names
from fedkin.runs.folder import RunError

AUTO = {"rounds": 300, "patience": 6, "local": {"epochs": 2, "batch_size": 8, "lr": 0.03}, "data": {"validation": 0.2}}


def noisy(rows: int = 40) -> Federation:
    """Silos with two numbers of which one tells the class, mostly; there is little to learn, and that fast."""
    clients = []
    for i in range(4):
        source = torch.Generator().manual_seed(i)
        x = torch.randn(rows + 20, 2, generator=source, dtype=torch.float64)
        y = (x[:, 0] + 0.7 * torch.randn(rows + 20, generator=source, dtype=torch.float64) > 0).long()
        clients.append(Client(f"silo-{i}", (x[:rows], y[:rows]), (x[rows:], y[rows:])))
    return Federation("noisy", tuple(clients), fedkin.Task.classification((2,), 2))


def lines(losses: list[float], scores: list[list[float]] | None = None) -> list[Line]:
    """Rounds of one model, `m`, with these validation losses, and these validation scores of clients."""
    held = scores or [[0.5, 0.5]] * len(losses)
    return [
        Line(
            round=k + 1,
            models={"m": ModelScores(clients=(0.0,), validation=Validation(mean=0.0, clients=tuple(s), loss=loss))},
        )
        for k, (loss, s) in enumerate(zip(losses, held, strict=True))
    ]


# ---- when it is done ----


def test_a_run_ends_when_no_models_validation_loss_has_gained_for_a_while(tmp_path: Path) -> None:
    run = simulate(tmp_path, noisy(), method="fedavg", **AUTO)
    found = fedkin.Run(run.writer.path)
    told, last = found.rounds, found.summary.rounds
    assert 6 < last < 300 and found.summary.ended == "validation"
    assert told[-1].final and told[-1].round == last + 1
    assert progress.exhausted(told[:last], 6) and not progress.exhausted(told[: last - 1], 6)
    assert all(m.improving is False for m in found.summary.models.values())


def test_without_validation_data_nobody_knows_and_all_rounds_are_run(tmp_path: Path) -> None:
    run = simulate(tmp_path, method="separate", rounds=9, patience=2, data={"validation": 0.0})
    assert fedkin.Run(run.writer.path).summary.rounds == 9
    assert fedkin.Run(run.writer.path).summary.ended == "rounds"


def test_a_gain_is_more_than_rounding_and_other_models_gains_count() -> None:
    falling = [1.0, 0.9, 0.8999, 0.8998, 0.8997]
    assert progress.exhausted(lines(falling), 3) and not progress.exhausted(lines(falling), 4)
    other = [replace(line, models={**line.models, "n": line.models["m"]}) for line in lines(falling)]
    better = Validation(mean=0.0, clients=(0.5,), loss=0.1)
    other[-1] = replace(other[-1], models={**other[-1].models, "n": ModelScores(clients=(0.0,), validation=better)})
    assert not progress.exhausted(other, 3)


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        ([1 / k for k in range(1, 21)], True),
        ([0.5] * 20, False),
        ([1 / k for k in range(1, 11)] + [0.1 + 0.01 * k for k in range(10)], False),
        ([1.0, 0.5], None),
    ],
)
def test_a_run_that_was_still_improving_says_so(losses: list[float], told: bool | None) -> None:
    assert progress.still_improving(lines(losses), "m") is told


def test_the_round_that_is_taken() -> None:
    """With patience the latest whose loss is as good as the lowest; else the last, unless an earlier one is better at
    nearly everybody."""
    assert progress.chosen(lines([3, 1, 2]), "m", True, patience=5) == 1
    assert progress.chosen(lines([3, 1, 1.04, 2]), "m", True, patience=5) == 2
    assert progress.chosen(lines([3, 1, 1.04, 2]), "m", False, patience=5) == 1, "a higher loss is a larger error"
    assert progress.chosen(lines([3, 1, 1.008, 2]), "m", False, patience=5) == 2
    luck = [[0.5, 0.5, 0.5, 0.5], [0.9, 0.5, 0.4, 0.5], [0.5, 0.5, 0.5, 0.5]]
    assert progress.chosen(lines([3, 1, 2], luck), "m", True, patience=0) == 2
    clear = [[0.5, 0.5, 0.5, 0.5], [0.9, 0.8, 0.9, 0.85], [0.5, 0.5, 0.5, 0.5]]
    assert progress.chosen(lines([1, 2, 3], clear), "m", True, patience=0) == 1
    assert progress.chosen(lines([1, 2, 3], clear), "m", False, patience=0) == 2
    nobody = [replace(line, models={"m": ModelScores(clients=(0.0,))}) for line in lines([1, 2, 3])]
    assert progress.chosen(nobody, "m", True, patience=5) == 2


@pytest.mark.parametrize("stop_at", [3, 9])
def test_a_run_that_ends_by_validation_is_resumed_like_any(tmp_path: Path, stop_at: int) -> None:
    (tmp_path / "whole").mkdir()
    whole = simulate(tmp_path / "whole", noisy(), method="fedamp", **AUTO).writer.path
    cut = tmp_path / "cut"
    heard: list[int] = []
    listener = Listener(on_round=lambda line: heard.append(line.round), stop=lambda: len(heard) == stop_at)
    assembly = ready(noisy(), method="fedamp", **AUTO)
    with pytest.raises(Interrupted):
        start.start(assembly, cut, listener)
    simulation, checkpoint = start.reopened(ready(noisy(), method="fedamp", **AUTO), cut)
    simulation.run(checkpoint)
    first, second = (fedkin.Run(path) for path in (whole, cut))
    assert [line.models for line in first.rounds] == [line.models for line in second.rounds]
    for client in first.summary.clients:
        assert all(map(torch.equal, *(run.model(client)[0].values() for run in (first, second))))


# ---- what is handed out ----


@pytest.mark.parametrize("method", [name for name in names() if name not in ("panacea", "panacea_gn", "sfl")])
def test_clients_are_handed_the_models_of_the_round_that_was_chosen(tmp_path: Path, method: str) -> None:
    """Models that overfit: the last ones are worse, and were handed out."""
    settings = {**AUTO, "model": {"name": "mlp", "settings": {"hidden": [16]}}, "patience": 8}
    clients = tuple(replace(client, group=i // 2) for i, client in enumerate(noisy(24).clients))
    federation = replace(noisy(24), clients=clients)
    run = fedkin.Run(simulate(tmp_path, federation, method=method, **settings).writer.path)
    outputs = run.outputs()
    assert outputs is not None
    for name, summary in run.summary.models.items():
        at = next(line for line in run.rounds if line.round == summary.validated_round)
        losses = [line.models[name].validation.loss for line in run.rounds]
        assert at.models[name].validation.loss <= 1.05 * min(losses)
        for i, client in enumerate(run.summary.clients):
            own = outputs.of(client)
            accuracy = (own.models[name].argmax(1) == own.targets).double().mean().item()
            assert accuracy == pytest.approx(at.models[name].clients[i]), f"{name} of {client}"


@pytest.mark.parametrize("patience", [8, 0])
def test_who_listens_to_whom_is_kept_and_told_of_the_chosen_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: int
) -> None:
    """Of so many clients that not every round's is kept, of a run whose best test round is another one."""
    monkeypatch.setattr(recorder, "MOST_XI", 3)
    clients = tuple(replace(client, group=i // 2) for i, client in enumerate(noisy(24).clients))
    federation = replace(noisy(24), clients=clients)
    hidden = {"name": "mlp", "settings": {"hidden": [16]}}
    for seed in range(12):
        settings = AUTO | {"model": hidden, "patience": patience, "seed": seed}
        if not patience:  # a model that is ever surer of itself is soon clearly worse by its log loss
            settings |= {"rounds": 25, "learning": {"metric": "log_loss"}}
        run = fedkin.Run(simulate(tmp_path, federation, method="fedamp", **settings).writer.path)
        cloud, told = run.summary.models["cloud"], run.summary.collaboration
        assert told is not None and told.round == cloud.validated_round
        assert set(run.recorded) == {k for k in range(1, run.summary.rounds + 1) if k % 10 == 0} | {
            *run.recorded[-1:],
            *candidates(run, patience),
        }
        xi = run.collaboration()
        assert xi is not None and run.collaboration(told.round) is not None
        assert (xi == run.collaboration(told.round)).all()
        assert told.within_group == statistics.within_group_share(xi, run.summary.groups or ())
        if cloud.validated_round not in (cloud.bmta_round, run.summary.rounds + 1) and cloud.validated_round % 10:
            return
    pytest.fail("in none of these runs was the chosen round another one than the best, the last and the tenths")


def candidates(run: fedkin.Run, patience: int) -> set[int]:
    """The one round besides the last that validation data may choose: by the loss, or by the mean score."""
    held = [line.models["cloud"].validation for line in run.rounds]
    if patience:
        return {run.summary.models["cloud"].validated_round or 0}
    means = [each.mean for each in held if each is not None and each.mean is not None]
    return {run.rounds[min(range(len(means)), key=lambda k: means[k])].round}


# ---- longer ----


@pytest.mark.parametrize("method", ["fedamp", "scaffold", "fedavg"])
def test_a_finished_run_made_longer_is_what_a_longer_run_would_have_been(tmp_path: Path, method: str) -> None:
    settings = {"method": method, "data": {"name": "digits"}, "participation": {"sample": 0.5}}
    short = fedkin.run(settings, rounds=3, out=tmp_path / "short")
    longer = fedkin.resume(short.path, rounds=5)
    whole = fedkin.run(settings, rounds=5, out=tmp_path / "whole")
    assert longer.summary.rounds == 5 and longer.config["rounds"] == 5
    assert [line.models for line in longer.rounds] == [line.models for line in whole.rounds]
    assert fedkin.resume(short.path, rounds=5).summary == longer.summary, "nothing is left to do"
    with pytest.raises(RunError, match="has 5 rounds; with --rounds 4 it would lose"):
        fedkin.resume(short.path, rounds=4)


def test_where_a_schedule_makes_it_another_run_that_is_said(tmp_path: Path) -> None:
    heard: list[str] = []
    local = {"schedule": "cosine"}
    run = fedkin.run({"method": "separate", "data": {"name": "digits"}, "local": local}, rounds=2, out=tmp_path / "run")
    fedkin.resume(run.path, rounds=4, listener=Listener(on_warning=heard.append))
    assert any("not what a run of 4 rounds would be" in each and "'cosine'" in each for each in heard)


def test_in_a_comparison_all_methods_run_as_long_as_the_longest(tmp_path: Path) -> None:
    settings = {**AUTO, "data": {"validation": 0.2, "name": "noisy"}, "patience": 4}
    results = fedkin.compare(
        settings, methods=["separate", "fedavg", "scaffold"], seeds=2, federation=noisy(), out=tmp_path / "all"
    )
    lengths = {run.summary.rounds for run in results.runs}
    assert len(lengths) == 1
    alone = [
        fedkin.run(settings, method=method, seed=seed, federation=noisy(), out=tmp_path / f"{method}{seed}")
        for method in ("separate", "fedavg", "scaffold")
        for seed in (0, 1)
    ]
    assert max(run.summary.rounds for run in alone) == lengths.pop()
    for run in alone:
        beside = next(
            r for r in results.runs if (r.summary.method, r.summary.seed) == (run.summary.method, run.summary.seed)
        )
        pairs = zip(run.rounds[:-1], beside.rounds, strict=False)
        assert all(a.models == b.models for a, b in pairs), "the same run, only longer"
    again = fedkin.compare(
        settings, methods=["separate", "fedavg", "scaffold"], seeds=2, federation=noisy(), out=tmp_path / "all"
    )
    assert [run.summary for run in again.runs] == [run.summary for run in results.runs]


@pytest.mark.parametrize(
    ("said", "rounds", "patience"),
    [({"rounds": "auto"}, 300, 20), ({"rounds": 7}, 7, 0), ({"rounds": "auto", "patience": 5}, 300, 5)],
)
def test_auto_is_a_cap_and_a_patience_and_a_number_is_meant(
    said: dict[str, object], rounds: int, patience: int
) -> None:
    config = start.prepare({"data": {"name": "digits"}, "method": "separate", **said}).config
    assert (config.rounds, config.patience) == (rounds, patience)


# ---- explosions ----


def amounts(scale: float = 1.0) -> Federation:
    clients = []
    for i in range(3):
        source = torch.Generator().manual_seed(i)
        x = torch.randn(60, 3, generator=source)
        y = x.sum(1, keepdim=True) * scale
        clients.append(Client(f"silo-{i}", (x[:40], y[:40]), (x[40:], y[40:])))
    return Federation("amounts", tuple(clients), fedkin.Task.regression((3,), 1))


@pytest.mark.parametrize("method", ["separate", "fedavg", "fedamp"])
def test_a_loss_that_explodes_is_divergence_though_it_is_finite(tmp_path: Path, method: str) -> None:
    """A rate just beyond what SGD bears: an RMSE of 1.9e17 was finite, and stood in a table."""
    local = {"optimiser": "sgd", "lr": 1.1, "batch_size": 40, "epochs": 4}
    settings = {"model": {"name": "logistic", "settings": {}}, "precision": "float32", "rounds": 12, "local": local}
    run = simulate(tmp_path, amounts(), method=method, settings={}, **settings)
    found = fedkin.Run(run.writer.path)
    assert set(found.summary.diverged) == {"silo-0", "silo-1", "silo-2"}
    assert any("diverged (its loss is" in each and "untrained model has" in each for each in run.warnings)
    scores = [s for line in found.rounds for m in line.models.values() for s in m.clients]
    assert max(scores) < 1e4, "what exploded is not kept"
    for client in found.summary.clients:
        if client not in found.summary.withheld:
            assert all(tensor.abs().max() < 1e3 for tensor in found.model(client)[0].values())


def test_large_targets_are_no_explosion(tmp_path: Path) -> None:
    """What is large is told by what the untrained model has."""
    run = simulate(tmp_path, amounts(1e6), method="separate", precision="float32", rounds=3)
    assert not fedkin.Run(run.writer.path).summary.diverged and not run.warnings


def test_a_model_that_exploded_is_handed_to_nobody(tmp_path: Path) -> None:
    """A method whose server breaks what clients have learned."""

    class Breaking(fedkin.Method):
        headline = "broken"

        def begin(self, problem, round):
            return fedkin.State({"w": problem.initial})

        def download(self, problem, server, clients, round):
            return fedkin.State({"w": server.w * 1e6})

        def train(self, cohort, message, memory, round):
            return fedkin.State(w=message.w), fedkin.State(mine=cohort.fit(message.w * 1e-6, round))

        def enlist(self, problem, clients, round):
            return fedkin.State(mine=problem.initial.repeat(len(clients), 1))

        def models(self, cohort, message, memory, round):
            return {"broken": message.w, "mine": memory.mine}

        def update(self, problem, server, clients, upload, round):
            return server

    assembly = replace(ready(amounts(), method="fedavg", precision="float32", rounds=2), method=Breaking())
    heard: list[str] = []
    start.start(assembly, tmp_path / "run", Listener(on_warning=heard.append))
    run = fedkin.Run(tmp_path / "run")
    assert {run.model(client)[1]["chosen"] for client in run.summary.clients} == {"mine"}
    assert json.loads((run.path / "summary.json").read_text())["withheld"] == []


def test_toy_runs_do_not_diverge(tmp_path: Path) -> None:
    assert not simulate(tmp_path, toy(), method="fedavg").warnings
