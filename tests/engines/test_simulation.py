"""The engine: who takes part, what is scored and carried forward, what happens when messages or trainings fail."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from helpers import (
    BASE,
    DEVICE,
    Watched,
    accuracy,
    batches,
    close,
    module_at,
    normed,
    ready,
    same,
    same_record,
    simulate,
    toy,
    trained,
    vector_of,
    watched,
)
from torch import Tensor, nn

import fedkin
from fedkin import Method
from fedkin.base.round import Round
from fedkin.base.state import State
from fedkin.engines.simulation import Diverged, Interrupted, MethodError
from fedkin.engines.start import prepare
from fedkin.methods import UnknownMethod
from fedkin.runs.config import merge
from fedkin.runs.folder import Writer
from fedkin.studies.run import Run
from fedkin.training.cohort import Cohort

METHODS = (
    *("separate", "fedavg", "fedprox", "groups", "fedamp", "heurfedamp", "scaffold", "apfl"),
    *("perfedavg", "pfedme", "sfl", "pfedhn", "panacea", "panacea_gn"),
)
EIGHT = (11, 9, 8, 7, 6, 5, 5, 4)
GROUPS = (0, 1, 0, 1, 0, 1, 0, 1)
HARSH = {"sample": 0.7, "lost": 0.3, "dropped": 0.2}
"""Everything that can happen to a client in a round."""


def eight() -> Any:
    return toy(EIGHT, GROUPS)


def scores(run: Watched, k: int) -> dict[str, dict[str, float]]:
    """Scores of a round by model and client's name."""
    models = run.lines[k]["models"]
    return {name: dict(zip(run.problem.names, m["clients"], strict=True)) for name, m in models.items()}


def same_states(first: Watched, second: Watched, tolerance: float = 0.0) -> None:
    """Server and memory agree after every round."""
    for k in first.servers:
        for a, b in ((first.servers[k], second.servers[k]), (first.memories[k], second.memories[k])):
            assert list(a) == list(b)
            for (name, x), (_, y) in zip(a.items(), b.items(), strict=True):
                fine = same(x, y) if tolerance == 0 else close(x.double(), y.double(), tolerance)
                assert fine, f"{name} after round {k}"


# ---- what does not matter ----


@pytest.mark.parametrize("method", METHODS)
def test_the_order_in_which_clients_are_given_does_not_matter(tmp_path: Path, method: str) -> None:
    federation = eight()
    shuffled = list(federation.clients)
    random.Random(1).shuffle(shuffled)
    assert [c.name for c in shuffled] != list(federation.names)
    runs = [
        simulate(tmp_path, replace(federation, clients=tuple(clients)), method=method, participation=HARSH)
        for clients in (federation.clients, shuffled)
    ]
    same_states(*runs)
    for k in range(1, 5):
        assert scores(runs[0], k) == scores(runs[1], k)


@pytest.mark.parametrize("method", METHODS)
def test_how_many_clients_are_trained_at_once_does_not_matter(tmp_path: Path, method: str) -> None:
    whole = simulate(tmp_path, eight(), method=method, participation=HARSH)
    for chunk in (1, 3):
        same_states(whole, simulate(tmp_path, eight(), method=method, participation=HARSH, chunk=chunk), 1e-9)


@pytest.mark.parametrize("model", [None, normed], ids=["mlp", "batchnorm"])
@pytest.mark.parametrize("method", METHODS)
def test_stacked_or_one_by_one_gives_the_same(tmp_path: Path, method: str, model: Any) -> None:
    runs = [simulate(tmp_path, eight(), model=model, method=method, execution=way) for way in ("stacked", "one-by-one")]
    assert [run.a.execution.name for run in runs] == ["stacked", "one-by-one"]
    same_states(*runs, 1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_and_another_seed_another(tmp_path: Path, method: str) -> None:
    first, again, other = (
        simulate(tmp_path, eight(), method=method, participation=HARSH, rounds=2, seed=seed) for seed in (3, 3, 4)
    )
    same_states(first, again)
    kept = [run.memories[2] or run.servers[2] for run in (first, other)]
    name = next(iter(kept[0]))
    a, b = (dict(state.items())[name] for state in kept)
    assert not torch.equal(a, b)


def test_the_three_seeds_are_for_start_training_and_split(tmp_path: Path) -> None:
    base, start, training = (
        watched(tmp_path, eight(), method="fedavg", **seeds) for seeds in ({}, {"init_seed": 9}, {"training_seed": 9})
    )
    assert not torch.equal(base.problem.initial, start.problem.initial)
    assert torch.equal(base.problem.initial, training.problem.initial)
    orders = [batches(run.a, 0, 1)[0][0] for run in (base, start, training)]
    assert torch.equal(orders[0], orders[1]) and not torch.equal(orders[0], orders[2])


def test_all_methods_of_a_comparison_start_from_the_same_weights() -> None:
    rows = {tuple(ready(eight(), method=method).problem.initial.tolist()) for method in METHODS}
    assert len(rows) == 1


# ---- who is reached, who trains, who is scored ----


@pytest.mark.parametrize(("share", "reached"), [(0.1, 9), (0.3, 7), (0.5, 5)])
def test_dropped_clients_neither_train_nor_download_and_keep_their_scores(
    tmp_path: Path, share: float, reached: int
) -> None:
    ten = toy((9, 8, 8, 7, 7, 6, 6, 5, 5, 4))
    run = simulate(tmp_path, ten, method="fedamp", participation={"dropped": share}, rounds=5)
    seen: set[int] = set()
    initial = [accuracy(run.a, i, run.problem.initial) for i in range(10)]
    row = 8 * (run.problem.layout.size + 1)  # and how far others are trusted; down also how much they count
    for k in range(1, 6):
        present = run.took_part(k)
        assert len(present) == reached and run.sent[k][0] == run.scored[k][0] == present
        assert run.lines[k]["bytes_down"] == reached * (row + 8) and run.lines[k]["bytes_up"] == reached * row
        seen |= set(present)
        for name, models in run.lines[k]["models"].items():
            for i in set(range(10)) - set(present):
                before = run.lines[k - 1]["models"][name]["clients"][i] if k > 1 else initial[i]
                assert models["clients"][i] == (before if i in seen else initial[i])
            for at, i in enumerate(present):
                assert models["clients"][i] == accuracy(run.a, i, run.rows(k, name)[at])
        for i in set(range(10)) - set(present):
            before = run.servers[k - 1].W[i] if k > 1 else run.problem.initial
            assert torch.equal(run.servers[k].W[i], before), "its stale row stays"
    absent = [tuple(sorted(set(range(10)) - set(run.took_part(k)))) for k in range(1, 6)]
    assert len(set(absent)) > 1, "others are dropped in other rounds"


@pytest.mark.parametrize(("sizes", "share"), [((7,), 0.5), ((7, 5), 0.9)])
def test_however_many_are_dropped_somebody_is_reached(tmp_path: Path, sizes: tuple[int, ...], share: float) -> None:
    run = simulate(tmp_path, toy(sizes), method="fedavg", participation={"dropped": share})
    assert [len(run.lines[k]["participants"]) for k in (1, 2, 3)] == [1, 1, 1]


@pytest.mark.parametrize(("share", "count"), [(1.0, 8), (0.5, 4), (0.3, 2), (0.01, 1)])
def test_the_sampled_share_trains_and_everyone_is_scored(tmp_path: Path, share: float, count: int) -> None:
    """All clients count in the mean, not only those that took part (trap T13)."""
    run = simulate(tmp_path, eight(), method="fedavg", participation={"sample": share})
    for k in (1, 2, 3):
        assert len(run.lines[k]["participants"]) == count
        w = run.servers[k - 1].w if k > 1 else run.problem.initial
        expected = [accuracy(run.a, i, w) for i in range(8)]
        table = run.lines[k]["models"]["global"]
        assert table["clients"] == expected
        assert table["mean"] == pytest.approx(statistics.mean(expected))
        assert table["std"] == pytest.approx(statistics.pstdev(expected))
    if count == 1:
        assert len({run.lines[k]["participants"][0] for k in (1, 2, 3)}) > 1


def test_scoring_participants_only_leaves_the_scores_of_the_others(tmp_path: Path) -> None:
    run = simulate(tmp_path, eight(), method="fedavg", participation={"sample": 0.5, "score": "participants"})
    last = [accuracy(run.a, i, run.problem.initial) for i in range(8)]
    for k in (1, 2, 3):
        w = run.servers[k - 1].w if k > 1 else run.problem.initial
        for i in run.took_part(k):
            last[i] = accuracy(run.a, i, w)
        assert run.lines[k]["models"]["global"]["clients"] == last
    w = run.servers[3].w
    assert run.lines[4]["models"]["global"]["clients"] == [accuracy(run.a, i, w) for i in range(8)]


# ---- what a round scores ----


def test_a_round_scores_what_its_download_brought_and_the_closing_one_the_final_aggregate(tmp_path: Path) -> None:
    """FedAvg's global model of round k is w^(k-1); line K + 1 has w^K, and nobody trains in it."""
    run = simulate(tmp_path, eight(), method="fedavg")
    received = {1: run.problem.initial, 2: run.servers[1].w, 3: run.servers[2].w, 4: run.servers[3].w}
    for k, w in received.items():
        expected = [accuracy(run.a, i, w) for i in range(8)]
        assert run.lines[k]["models"]["global"]["clients"] == expected
    closing = run.lines[4]
    assert closing["final"] is True and closing["participants"] == [] and closing["bytes_up"] == 0
    assert closing["bytes_down"] == 8 * 8 * run.problem.layout.size and closing["train_loss"] is None
    assert not any(run.lines[k].get("final") for k in (1, 2, 3))
    assert Run(run.writer.path).summary["rounds"] == 3


@pytest.mark.parametrize("method", METHODS)
def test_models_that_clients_keep_repeat_the_last_round_in_the_closing_line(tmp_path: Path, method: str) -> None:
    run = simulate(tmp_path, eight(), method=method)
    remembered = set(run.memory) & {"personal", "finetuned"}
    for name, table in run.lines[4]["models"].items():
        if name in remembered:
            assert table == run.lines[3]["models"][name]
        assert torch.equal(run.rows(4, name), run.rows(3, name)) == (name in remembered)
    for name, rows in run.memories[3].items():
        assert torch.equal(rows, dict(run.memory.items())[name])


ANEW = ("fedavg", "fedprox", "groups")
"""Methods whose clients fine-tune what they were sent."""


@pytest.mark.parametrize("participation", [{"sample": 0.4}, {"dropped": 0.4}, HARSH])
@pytest.mark.parametrize("method", ANEW)
def test_in_the_end_everyone_has_finetuned_the_last_download(
    tmp_path: Path, method: str, participation: dict[str, float]
) -> None:
    """Who did not train in the last round does so at the closing exchange, and sends nothing; nothing else changes."""
    run = simulate(tmp_path, eight(), method=method, participation=participation)
    server = run.servers[3]
    received = server.models[run.problem.groups] if method == "groups" else server.w.expand(8, -1)
    behind = [i for i in range(8) if i not in run.took_part(3)]
    assert behind and run.took_part(4) == behind
    stream = "finetune" if method == "fedprox" else "train"
    for i in range(8):
        before = run.memories[3].finetuned[i]
        expected = trained(run.a, i, received[i], 4, stream=stream) if i in behind else before
        assert close(run.memories[4].finetuned[i], expected) and close(run.rows(4, "finetuned")[i], expected)
        assert run.lines[4]["models"]["finetuned"]["clients"][i] == accuracy(run.a, i, expected)
    assert all(torch.equal(tensor, dict(run.servers[3].items())[name]) for name, tensor in run.servers[4].items())
    passes = 2 if method == "fedprox" else 1
    spent = sum(passes * 2 * -(-EIGHT[i] // 4) for i in behind)  # two epochs in batches of four
    assert (run.lines[4]["gradients"], run.lines[4]["bytes_up"]) == (spent, 0)
    assert Run(run.writer.path).summary["gradients"] == sum(line["gradients"] for line in run.lines.values())


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ANEW])
def test_in_the_end_nobody_trains_whose_model_goes_on_from_its_own_past(tmp_path: Path, method: str) -> None:
    run = simulate(tmp_path, eight(), method=method, participation={"sample": 0.4})
    assert run.took_part(4) == [] and run.lines[4]["gradients"] == 0


def test_a_client_whose_last_training_diverged_has_finetuned_the_last_download_in_the_end(tmp_path: Path) -> None:
    poison = Poison()
    run = watched(tmp_path, with_one_of_its_own("c"), loss=poison, method="fedavg")
    run.listener.on_round = lambda record: setattr(poison, "armed", record["round"] == 2)
    run.run()
    assert run.lines[3]["diverged"] == ["c"] == run.lines[4]["participants"]
    at = run.problem.names.index("c")
    assert close(run.memories[4].finetuned[at], trained(run.a, at, run.servers[3].w, 4))


def test_silent_clients_do_not_train_in_the_end_either(tmp_path: Path) -> None:
    run = simulate(tmp_path, eight(), method="fedavg", corruption={"kind": "silent", "labels": 1.0, "clients": 0.5})
    assert len(run.took_part(3)) == 4 and run.took_part(4) == []


@pytest.mark.parametrize("kept", [False, True])
def test_a_run_that_stopped_before_its_closing_exchange_closes_as_if_nothing_had_been(
    tmp_path: Path, kept: bool
) -> None:
    settings = {"method": "fedavg", "participation": HARSH, "local": {"persist_optimiser": kept}}
    whole = simulate(tmp_path, eight(), **settings)
    part = watched(tmp_path, eight(), **settings)
    part.listener.stop = lambda: len(part.lines) == 3
    with pytest.raises(Interrupted, match="Stopped after round 3 of 3, before its closing exchange"):
        part.run()
    done = fedkin.resume(part.writer.path, federation=eight())
    assert whole.lines[4]["participants"] and len(done.rounds) == 4
    for line, expected in zip(done.rounds, whole.lines.values(), strict=True):
        assert same_record(line, expected)
    for name in whole.problem.names:
        first, second = (path / "models" / f"{name}.safetensors" for path in (done.path, whole.writer.path))
        assert first.read_bytes() == second.read_bytes()


def test_the_collaboration_recorded_in_a_round_is_the_one_that_made_its_cloud_models(tmp_path: Path) -> None:
    run = simulate(tmp_path, eight(), method="fedamp", settings={"weight_on_others": "attention"})
    on_disk = Run(run.writer.path)
    assert on_disk.recorded == [1, 2, 3, 4]
    for k in (2, 3, 4):
        xi = torch.from_numpy(on_disk.collaboration(k)).double()
        assert close(xi, run.servers[k - 1].xi, 1e-6)
        assert close(run.rows(k, "cloud"), run.servers[k - 1].xi @ run.servers[k - 1].W, 1e-12)


@pytest.mark.parametrize(("groups", "told"), [([0, 0, 1, 1], True), ([0, 1, 2, 3], False)])
def test_attention_is_held_against_groups_unless_each_client_is_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], groups: list[int], told: bool
) -> None:
    run = fedkin.run({**BASE, "method": "fedamp"}, federation=toy(groups=groups), out=tmp_path / "run")
    assert (run.summary["collaboration"] is not None) == told
    pytest.importorskip("rich")
    from fedkin.cli.terminal import show_run

    show_run(run)
    assert ("Within the known groups" in capsys.readouterr().out) == told


@pytest.mark.parametrize("method", METHODS)
def test_what_travels_is_counted_in_models_a_client(tmp_path: Path, method: str) -> None:
    """Everyone who is reached downloads, to be scored; those sampled upload, also in vain."""
    run = simulate(tmp_path, eight(), method=method, participation={"sample": 0.5, "lost": 0.5, "dropped": 0.25})
    models = {"separate": (0, 0), "scaffold": (2, 2), "sfl": (2, 1)}.get(method, (1, 1))
    down, up = (number * 8 * run.problem.layout.size for number in models)
    if method in ("fedamp", "heurfedamp"):  # and how much others count and are trusted; back, how far they are
        down, up = down + 16, up + 8
    for k in (1, 2, 3):
        assert run.lines[k]["bytes_down"] == 6 * down and run.lines[k]["bytes_up"] == 3 * up
    summary = Run(run.writer.path).summary
    assert summary["bytes_down"] == (3 * 6 + 8) * down and summary["bytes_up"] == 3 * 3 * up


@pytest.mark.parametrize(("seed", "handed"), [(0, {"global"}), (1, {"global", "personal"})])
def test_a_client_is_handed_the_model_that_is_best_on_its_validation_data(
    tmp_path: Path, seed: int, handed: set[str]
) -> None:
    """On its own, with which those of all in the round before count as much as ten of its own where they are clear;
    with fewer than five there are only these; at a tie it is the headline."""
    federation = toy((40, 40, 40, 40, 40, 20))
    settings: dict[str, Any] = {"data": {"validation": 0.2}, "local": {"lr": 0.3}, "rounds": 5, "seed": seed}
    run = simulate(tmp_path, federation, method="scaffold", **settings)
    assert [n >= 5 for n in run.a.cohort.validation.counts] == [True] * 5 + [False]
    before, gains = (
        [a - b for a, b in zip(*(line[n]["validation"]["clients"] for n in ("global", "personal")), strict=True)]
        for line in (run.lines[5]["models"], run.lines[6]["models"])
    )
    counts, chosen = run.a.cohort.validation.counts, set()
    mean = sum(n * gain for n, gain in zip(counts, before, strict=True)) / sum(counts)
    spread = sum((n * (gain - mean)) ** 2 for n, gain in zip(counts, before, strict=True)) * 6 / 5
    everyone = mean if abs(mean) > 2 * spread**0.5 / sum(counts) else 0.0
    for i, name in enumerate(run.problem.names):
        tensors, about = Run(run.writer.path).model(name)
        ahead = (counts[i] * gains[i] + 10 * everyone) / (counts[i] + 10) if counts[i] >= 5 else everyone
        best = "global" if ahead > 0 else "personal"
        assert about["chosen"] == best and about["client"] == name
        row = torch.cat([tensors[f.name].reshape(-1) for f in run.problem.layout.fields])
        assert torch.equal(row, run.rows(6, best)[i].cpu())
        chosen.add(best)
    assert chosen == handed


@pytest.mark.parametrize("chunk", [1, 2, 0])
@pytest.mark.parametrize("patience", [0, 3])
def test_what_clients_are_handed_does_not_depend_on_how_many_are_worked_on_at_a_time(
    tmp_path: Path, chunk: int, patience: int
) -> None:
    """What the others have seen of a model counts: all of it, not that of those who came before."""
    federation = toy((40, 40, 40, 40, 20, 20))
    more: dict[str, Any] = {"data": {"validation": 0.2}, "local": {"lr": 0.3}, "rounds": 6, "patience": patience}
    runs = [simulate(tmp_path, federation, method="fedavg", chunk=n, **more) for n in (chunk, 6)]
    handed = [[Run(run.writer.path).model(name)[1]["chosen"] for name in run.problem.names] for run in runs]
    assert handed[0] == handed[1]
    one, other = (Run(run.writer.path).outputs() for run in runs)
    assert one is not None and other is not None and close(one.models["chosen"], other.models["chosen"], 1e-6)


# ---- lost uploads ----


def test_a_lost_upload_leaves_the_servers_row_and_the_client_starts_again_from_what_arrived(tmp_path: Path) -> None:
    """FedAMP from the client's own model: what it starts from is its last upload that the server has."""
    settings = {"init_from": "local", "beta": 0.5, "weight_on_others": "attention"}
    run = simulate(tmp_path, method="fedamp", settings=settings, participation={"lost": 0.5}, rounds=6)
    acknowledged = run.problem.initial.repeat(4, 1)
    twice = 0
    for k in range(1, 7):
        u = run.rows(k, "cloud")
        for i in range(4):
            expected = trained(run.a, i, acknowledged[i], k, near=(u[i], 0.5))
            assert close(run.memories[k].personal[i], expected), "the client itself has what it trained"
            if i not in run.lost[k]:
                acknowledged[i] = expected
            elif k > 1 and i in run.lost[k - 1]:
                twice += 1
        assert close(run.servers[k].W, acknowledged)
    assert twice, "the test needs a client that lost two uploads in a row"


def test_a_round_in_which_nothing_arrives_leaves_the_server_as_it_was(tmp_path: Path) -> None:
    run = watched(tmp_path, method="fedavg", participation={"lost": 0.9}, rounds=12)
    run.run()
    silent = [k for k in range(2, 13) if len(run.lost[k]) == 4]
    assert silent and all(torch.equal(run.servers[k].w, run.servers[k - 1].w) for k in silent)
    assert any(not torch.equal(run.servers[k].w, run.servers[k - 1].w) for k in range(2, 13))


@pytest.mark.parametrize("method", ["fedamp", "scaffold", "apfl", "perfedavg", "pfedme", "sfl", "pfedhn", "panacea"])
def test_an_interrupted_run_goes_on_as_if_nothing_had_been(tmp_path: Path, method: str) -> None:
    """Also where uploads were lost just before: what the server acknowledged is saved too."""
    settings = {"method": method, "participation": {"lost": 0.5, "sample": 0.7}, "rounds": 6}
    whole = simulate(tmp_path, eight(), **settings)
    part = watched(tmp_path, eight(), **settings)
    part.listener.stop = lambda: len(part.lines) == 3
    with pytest.raises(Interrupted, match="Stopped after round 3 of 6"):
        part.run()
    assert part.holds[3], "the test needs a client ahead of the server"
    done = fedkin.resume(part.writer.path, federation=eight())
    for line, expected in zip(done.rounds, whole.lines.values(), strict=True):
        assert same_record(line, expected)


# ---- trainings that diverge ----


class Poison:
    """A loss that is not a number for batches with the last class, once it is armed."""

    def __init__(self) -> None:
        self.armed = False

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(outputs, targets)
        last = outputs.shape[1] - 1
        return torch.where((targets == last).any(), torch.nan, loss) if self.armed else loss


def with_one_of_its_own(client: str) -> Any:
    """The eight, of whom one alone has samples of a fourth class."""
    federation = eight()
    members = []
    for member in federation.clients:
        x, y = member.train
        own = torch.full_like(y, 3) if member.name == client else y
        members.append(replace(member, train=(x, own)))
    return replace(federation, clients=tuple(members), task=replace(federation.task, outputs=4))


@pytest.mark.parametrize("execution", ["stacked", "one-by-one"])
@pytest.mark.parametrize("method", METHODS)
def test_a_training_that_diverges_is_named_and_left_out_and_the_others_go_on(
    tmp_path: Path, method: str, execution: str
) -> None:
    """0 x NaN is NaN: a row that is not finite would spoil every cloud model (trap T25)."""
    poison = Poison()
    run = watched(tmp_path, with_one_of_its_own("c"), loss=poison, method=method, execution=execution)
    run.listener.on_round = lambda record: setattr(poison, "armed", record["round"] == 1)
    run.run()
    at = run.problem.names.index("c")
    assert len(run.warnings) == 1 and run.warnings[0].startswith("Round 2: the training of client 'c' diverged")
    assert [run.lines[k]["diverged"] for k in (1, 2, 3)] == [[], ["c"], []]
    assert "its last sound model stays" in run.warnings[0]
    for state in [*run.servers.values(), *run.memories.values()]:
        assert all(torch.isfinite(t).all() for _, t in state.items())
    for name, after in run.memories[2].items():
        before = dict(run.memories[1].items())[name]
        assert torch.equal(after[at], before[at]), "its memory is rolled back"
        assert not torch.equal(after[at - 1], before[at - 1])
    if "W" in run.servers[2]:
        assert torch.equal(run.servers[2].W[at], run.servers[1].W[at])
    for name, table in run.lines[2]["models"].items():
        assert table["clients"][at] == run.lines[1]["models"][name]["clients"][at], "its scores are carried forward"
    assert at not in run.scored[2][0] and at in run.scored[3][0]
    assert "c" in run.lines[2]["participants"]
    assert math.isfinite(run.lines[2]["train_loss"])
    for name, after in run.memories[3].items():
        assert not torch.equal(after[at], dict(run.memories[2].items())[name][at]), "later it trains again"


def test_fedavg_averages_those_whose_training_stayed_finite(tmp_path: Path) -> None:
    poison = Poison()
    run = watched(tmp_path, with_one_of_its_own("c"), loss=poison, method="fedavg")
    run.listener.on_round = lambda record: setattr(poison, "armed", True)
    run.run()
    others = [i for i, name in enumerate(run.problem.names) if name != "c"]
    n = torch.tensor([float(EIGHT[i]) for i in others], dtype=torch.float64, device=DEVICE)
    for k in (2, 3):
        expected = (n[:, None] * run.memories[k].finetuned[others]).sum(0) / n.sum()
        assert close(run.servers[k].w, expected, 1e-12)
    assert len(run.warnings) == 3, "of rounds 2 and 3, and of the closing exchange"


def test_a_run_told_to_stop_at_a_divergence_keeps_the_rounds_before_and_can_be_resumed(tmp_path: Path) -> None:
    poison = Poison()
    run = watched(tmp_path, with_one_of_its_own("c"), loss=poison, method="fedamp", on_divergence="stop", rounds=4)
    run.listener.on_round = lambda record: setattr(poison, "armed", record["round"] == 2)
    with pytest.raises(Diverged, match=r"Round 3: the training of client 'c' diverged.*smaller local\.lr"):
        run.run()
    assert list(run.lines) == [1, 2] and not Run(run.writer.path).complete
    poison.armed = False
    done = fedkin.resume(run.writer.path, federation=with_one_of_its_own("c"), loss=poison)
    calm = simulate(tmp_path, with_one_of_its_own("c"), loss=poison, method="fedamp", rounds=4, on_divergence="stop")
    assert [line["models"] for line in done.rounds] == [line["models"] for line in calm.lines.values()]


@pytest.mark.parametrize("method", METHODS)
def test_if_every_training_diverges_clients_keep_the_initial_model(tmp_path: Path, method: str) -> None:
    poison = Poison()
    federation = eight()
    alike = tuple(replace(c, train=(c.train[0], torch.full_like(c.train[1], 2))) for c in federation.clients)
    run = watched(tmp_path, replace(federation, clients=alike), loss=poison, method=method)
    poison.armed = True
    run.run()
    assert len(run.warnings) == (4 if method in ANEW else 3) * 8
    initial = [accuracy(run.a, i, run.problem.initial) for i in range(8)]
    for k in (1, 2, 3, 4):
        # What a hypernetwork writes starts elsewhere.
        tables = [table for name, table in run.lines[k]["models"].items() if name != "generated"]
        assert tables and all(table["clients"] == initial for table in tables)
        assert run.lines[k]["train_loss"] is None


def test_a_learning_rate_that_is_far_too_large_is_answered_with_names(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match=r"Round 1: the training of client '[a-h]' diverged"):
        simulate(tmp_path, eight(), method="fedavg", local={"optimiser": "sgd", "lr": 1e300}, on_divergence="stop")


# ---- the optimiser's state ----


@pytest.mark.parametrize("keep", [True, False])
def test_the_optimisers_state_lasts_as_long_as_it_is_told_to(tmp_path: Path, keep: bool) -> None:
    run = simulate(tmp_path, method="separate", local={"persist_optimiser": keep})
    for i in range(4):
        module = module_at(run.a, run.problem.initial)
        optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
        for k in (1, 2, 3):
            if not keep:
                optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
            for x, y in batches(run.a, i, k):
                optimiser.zero_grad()
                nn.functional.cross_entropy(module(x), y).backward()
                optimiser.step()
            assert close(run.rows(k, "personal")[i], vector_of(module))


def test_momentum_that_is_kept_is_rolled_back_with_a_lost_upload(tmp_path: Path) -> None:
    local = {"optimiser": "sgd", "lr": 0.05, "momentum": 0.9, "persist_optimiser": True}
    run = simulate(tmp_path, method="fedavg", local=local, participation={"lost": 0.5}, rounds=5)
    kept = [torch.zeros_like(run.problem.initial) for _ in range(4)]
    for k in range(1, 6):
        w0 = run.servers[k - 1].w if k > 1 else run.problem.initial
        for i in range(4):
            module = module_at(run.a, w0)
            velocity = kept[i]
            for x, y in batches(run.a, i, k):
                module.zero_grad()
                nn.functional.cross_entropy(module(x), y).backward()
                velocity = 0.9 * velocity + torch.cat([p.grad.reshape(-1) for p in module.parameters()])
                w = vector_of(module) - 0.05 * velocity
                nn.utils.vector_to_parameters(w, module.parameters())
            assert close(run.memories[k].finetuned[i], vector_of(module))
            if i not in run.lost[k]:
                kept[i] = velocity
    assert sum(map(len, run.lost.values())) > 3


# ---- newcomers ----

NOVEL = {"novel": 0.25}


def with_newcomers(folder: Path, **settings: Any) -> Watched:
    return simulate(folder, eight(), **settings)


@pytest.mark.parametrize("method", METHODS)
def test_newcomers_change_nothing_for_those_who_were_there(tmp_path: Path, method: str) -> None:
    run = with_newcomers(tmp_path, method=method, participation={"novel": 0.25, "lost": 0.3})
    (server, memory), known = run.before, run.a.problem.known
    assert known == 6 and len(run.problem) == 8
    for name, old in server.items():
        new = dict(run.server.state.items())[name]
        if method == "scaffold" and name == "c":
            assert close(new, old * 6 / 8, 1e-15)
        elif name in server.shared:
            assert torch.equal(new[: len(old)], old)
        elif name == "xi":
            assert torch.equal(new[:known, :known], old) and not new[:known, known:].any()
            assert close(new.sum(1), torch.ones(8, dtype=torch.float64), 1e-12)
        else:
            assert torch.equal(new[:known], old)
    for name, old in memory.items():
        new = dict(run.memory.items())[name]
        assert len(new) == 8 and torch.equal(new[:known], old)
    known_lines = [line for line in run.lines.values() if not line.get("novel")]
    assert [line["round"] for line in known_lines] == [1, 2, 3, 4]
    assert all(len(table["clients"]) == 6 for line in known_lines for table in line["models"].values())


@pytest.mark.parametrize("method", METHODS)
def test_newcomers_are_unknown_while_the_others_train(tmp_path: Path, method: str) -> None:
    """The known clients end as they would in a federation without them."""
    run = with_newcomers(tmp_path, method=method, participation=NOVEL)
    rest = eight().without(run.problem.names[6:])[0]
    alone = simulate(tmp_path, rest, method=method)
    for k in (1, 2, 3, 4):
        assert scores(alone, k) == {
            name: dict(zip(run.problem.names[:6], table["clients"], strict=True))
            for name, table in run.lines[k]["models"].items()
        }


@pytest.mark.parametrize("exchanges", [3, 1, 0])
def test_newcomers_of_all_methods_train_equally_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: int
) -> None:
    original = Cohort.batches
    counted: Counter[tuple[str, str]] = Counter()

    def counting(self: Cohort, round: Round, **options: Any) -> Iterator[Any]:
        if round.number > 4 and options.get("stream", "train") in ("train", "finetune"):
            for name in self.names:
                counted[name, options.get("stream", "train")] += options.get("epochs") or self.local.epochs
        return original(self, round, **options)

    monkeypatch.setattr(Cohort, "batches", counting)
    for method in METHODS:
        counted.clear()
        run = with_newcomers(tmp_path, method=method, participation={**NOVEL, "novel_exchanges": exchanges})
        newcomers = set(run.problem.names[6:])
        assert {name for name, _ in counted} == newcomers
        assert set(counted.values()) == {BASE["local"]["epochs"] * (1 + exchanges)}, method


@pytest.mark.parametrize("method", METHODS)
def test_newcomers_get_scores_a_model_and_a_place_in_the_summary(tmp_path: Path, method: str) -> None:
    run = with_newcomers(tmp_path, method=method, participation=NOVEL)
    exchanges = 3 if method in ("fedamp", "heurfedamp") else 0
    lines = [line for line in run.lines.values() if line.get("novel")]
    assert [line["round"] for line in lines] == list(range(5, 6 + exchanges))
    novel = Run(run.writer.path).summary["novel"]
    assert novel["clients"] == list(run.problem.names[6:]) and novel["models"] == lines[-1]["models"]
    for table in novel["models"].values():
        assert len(table["clients"]) == 2 and all(0 <= score <= 1 for score in table["clients"])
    for name in run.problem.names:
        assert Run(run.writer.path).model(name)[1]["client"] == name


def test_fedavgs_newcomers_get_the_global_model_and_tune_it(tmp_path: Path) -> None:
    run = with_newcomers(tmp_path, method="fedavg", participation={**NOVEL, "novel_exchanges": 0})
    w = run.before[0].w
    for at, i in enumerate((6, 7)):
        assert torch.equal(run.rows(5, "global")[at], w)
        assert close(run.rows(5, "finetuned")[at], trained(run.a, i, w, 5))


def kin_by_hand(W: list[Tensor], hosts: list[int], newcomer: int) -> list[float]:
    """A newcomer's row of xi: cosines of w - mean(hosts), sigma 10 / median, automatic tau."""
    origin = torch.stack([W[i] for i in hosts]).mean(0)
    among = [*hosts, newcomer]

    def apart(i: int, j: int) -> float:
        a, b = W[i] - origin, W[j] - origin
        return 1 - float(a @ b / (a.norm() * b.norm()))

    sigma = 10 / statistics.median(apart(i, j) for at, i in enumerate(among) for j in among[:at])
    weight = [math.exp(-sigma * apart(newcomer, j)) for j in hosts]
    share = [value / sum(weight) for value in weight]
    effective = math.exp(-sum(p * math.log(p) for p in share if p > 0))
    tau = 1 - 1 / (1 + effective)
    row = [0.0] * len(W)
    for j, p in zip(hosts, share, strict=True):
        row[j] = tau * p
    row[newcomer] = 1 - tau
    return row


@pytest.mark.parametrize("method", ["fedamp", "heurfedamp"])
@pytest.mark.parametrize("sample", [1.0, 0.2])
def test_fedamps_newcomers_look_for_kin_among_the_known_that_were_heard_from(
    tmp_path: Path, method: str, sample: float
) -> None:
    """They start from the mean of these; each other, and those never heard from, they do not see."""
    participation = {**NOVEL, "sample": sample}
    settings = {"beta": 0.5, "weight_on_others": "attention"}
    run = with_newcomers(tmp_path, method=method, settings=settings, participation=participation)
    server = run.before[0]
    hosts = server.heard.nonzero().squeeze(1).tolist()
    assert len(hosts) == 6 if sample == 1 else 2 <= len(hosts) < 6
    W = [*server.W, *server.W[hosts].mean(0).repeat(2, 1)]
    U = {i: W[i] for i in (6, 7)}
    for k in (5, 6, 7):
        for at, i in enumerate((6, 7)):
            assert close(run.rows(k, "cloud")[at], U[i])
            W[i] = trained(run.a, i, U[i], k, near=(U[i], 0.5))
        for i in (6, 7):
            U[i] = sum(share * w for share, w in zip(kin_by_hand(W, hosts, i), W, strict=True))
    for at, i in enumerate((6, 7)):
        assert close(run.server.state.xi[i], torch.tensor(kin_by_hand(W, hosts, i), dtype=torch.float64))
        assert close(run.rows(8, "cloud")[at], U[i])
    assert torch.equal(run.server.state.W[:6], server.W), "the closing exchange sends nothing back"


def test_a_newcomer_whose_training_diverges_does_not_stand_in_the_way_of_the_next(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"participation": NOVEL, "settings": {"weight_on_others": "attention"}}
    first, second = ready(eight(), method="fedamp", **settings).problem.names[6:]
    poison = Poison()
    run = watched(tmp_path, with_one_of_its_own(first), loss=poison, method="fedamp", **settings)
    run.listener.on_round = lambda record: setattr(poison, "armed", record.get("final", False))
    run.run()
    assert run.problem.names[6:] == (first, second)
    assert [w.split(" diverged")[0] for w in run.warnings] == [
        f"Round {k}: the training of client {first!r}" for k in (5, 6, 7, 8)
    ]
    for k in (5, 6, 7, 8):
        clients, models = run.scored[k]
        assert clients == ([7] if k < 8 else [6, 7])
        u = run.sent[k][1].u[1]
        assert torch.equal(models["cloud"][-1], u)  # type: ignore[index]
        assert run.lines[k]["models"]["cloud"]["clients"][1] == accuracy(run.a, 7, u)
    assert not torch.equal(run.sent[7][1].u[0], run.sent[7][1].u[1])
    assert torch.isfinite(run.server.state.W).all() and run.server.state.heard.tolist() == [True] * 6 + [False, True]


def test_newcomers_find_their_group_and_are_better_off_than_alone(tmp_path: Path) -> None:
    """Digits whose labels differ by group: after three exchanges newcomers attend to their own kin."""
    means = {}
    for method in ("fedamp", "heurfedamp", "separate"):
        data = {"name": "digits", "split": "relabelled"}
        assembly = prepare(method=method, rounds=12, device=DEVICE.type, data=data, participation=NOVEL)
        run = Watched(assembly, Writer.create(tmp_path / method, assembly.config))
        run.run()
        known, groups = run.a.problem.known, run.a.problem.groups
        assert known == 15 and groups is not None
        novel = Run(run.writer.path).summary["novel"]["models"]
        means[method] = {name: table["mean"] for name, table in novel.items()}
        if method != "separate":
            for i in range(known, len(groups)):
                others = run.server.state.xi[i, :known]
                assert others[groups[:known] == groups[i]].sum() / others.sum() > 0.8
    for method in ("fedamp", "heurfedamp"):
        assert means[method]["cloud"] > means["separate"]["personal"] + 0.02
        assert means[method]["personal"] > means["separate"]["personal"] - 0.01


def test_a_newcomer_to_a_group_that_nobody_knew_starts_from_the_initial_model(tmp_path: Path) -> None:
    federation = toy((9, 8, 7, 6), (0, 0, 0, 0))
    stranger = ready(federation, method="groups", participation=NOVEL).problem.names[-1]
    members = tuple(replace(c, group=1 if c.name == stranger else 0) for c in federation.clients)
    run = simulate(tmp_path, replace(federation, clients=members), method="groups", participation=NOVEL)
    assert torch.equal(run.sent[5][1].u[0], run.problem.initial)
    assert run.server.state.xi[3].tolist() == [0.0, 0.0, 0.0, 1.0]


# ---- a method of one's own ----


class Halfway(Method):
    """Clients go half of the way that the mean of all asks for."""

    headline: ClassVar[str] = "mine"
    wrong: str = "nothing"

    def begin(self, problem: Any, round: Round) -> State:
        return State({"w": problem.initial.clone()}, xi=torch.eye(len(problem)))

    def enlist(self, problem: Any, clients: Tensor, round: Round) -> State:
        return State(mine=problem.initial.repeat(len(clients), 1))

    def download(self, problem: Any, server: State, clients: Tensor, round: Round) -> State:
        return State(extra=torch.zeros(1)) if self.wrong == "download" else State({"w": server.w})

    def train(self, cohort: Cohort, message: State, memory: State, round: Round) -> tuple[State, State]:
        mine = cohort.fit((memory.mine + message.w) / 2, round)
        upload = mine[:-1] if self.wrong == "upload" else mine
        return State(W=upload), State(mine=mine[0] if self.wrong == "memory" else mine)

    def models(self, cohort: Cohort, message: State, memory: State, round: Round) -> dict[str, Any]:
        return {"mine": memory.mine[:, :-1] if self.wrong == "model" else memory.mine}

    def update(self, problem: Any, server: State, clients: Tensor, upload: State, round: Round) -> State:
        server.xi.mul_(0.5)  # the server is the method's own: it may write into it
        return server.replace(w=upload.W.mean(0))


OWN = f"{__name__}:Halfway"


def test_a_method_of_ones_own_runs_by_its_reference(tmp_path: Path) -> None:
    run = simulate(tmp_path, method=OWN, participation=NOVEL)
    w, mine = run.problem.initial, [run.problem.initial] * 3
    for k in (1, 2, 3):
        mine = [trained(run.a, i, (mine[i] + w) / 2, k) for i in range(3)]
        w = torch.stack(mine).mean(0)
        assert close(run.servers[k].w, w)
    on_disk = Run(run.writer.path)
    assert on_disk.summary["headline"] == "mine" and on_disk.config["method"] == OWN
    assert [float(on_disk.collaboration(k)[0, 0]) for k in (1, 2, 3, 4)] == [1, 0.5, 0.25, 0.125]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("download", r"download: tensor 'extra' has shape \(1,\); its first dimension should be the 4 clients"),
        ("upload", r"train \(upload\): tensor 'W' has shape \(3, 43\); its first dimension should be the 4 clients"),
        ("memory", r"train \(memory\): tensor 'mine' has shape \(43,\); its first dimension should be the 4 clients"),
        ("model", r"model 'mine' has shape \(4, 42\); it should be \(4, 43\): a row of weights for each client"),
    ],
)
def test_a_method_that_returns_a_wrong_shape_is_told_where(tmp_path: Path, wrong: str, words: str) -> None:
    with pytest.raises(MethodError, match=words):
        simulate(tmp_path, method=OWN, settings={"wrong": wrong})


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("fedamq", "There is no method 'fedamq'. Did you mean 'fedamp'"),
        (f"{__name__}:Nobody", "could not be imported"),
        (f"{__name__}:Poison", "should be a subclass of fedkin.Method"),
    ],
)
def test_a_method_that_is_not_there_is_answered_with_a_sentence(method: str, words: str) -> None:
    with pytest.raises(UnknownMethod, match=words):
        ready(method=method)


def test_settings_reach_the_method() -> None:
    assert ready(**merge({"method": "fedprox"}, {"settings": {"mu": 0.5}})).method.mu == 0.5  # type: ignore[attr-defined]
