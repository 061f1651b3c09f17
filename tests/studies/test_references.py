"""Rows without federated learning, against numpy and plain loops."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import SHARED, ready, toy, trained
from torch import Tensor

from fedkin.base.task import Task
from fedkin.data import windows
from fedkin.data.federation import Client, Federation, Seasons
from fedkin.engines import start
from fedkin.engines.simulation import Interrupted, Listener
from fedkin.evidence.references import Reference, rows
from fedkin.studies import compare, references
from fedkin.studies.references import NoReference

SERIES = ["climatology", "persistence", "least_squares", "autoregression", "pooled_least_squares"]
PERIOD, OBSERVED, OUTPUTS = 7, 4, 3


def series(*, sizes=(40, 30, 25), missing: float = 0.0, features: int = 1) -> Federation:
    """Clients with noisy cycles of their own, cut to windows of 4 + 3 steps; some targets missing, as NaN."""
    members = []
    for i, n in enumerate(sizes):
        rng = np.random.default_rng(i)
        steps = np.arange(n + OBSERVED + OUTPUTS + 11)
        values = np.sin(2 * np.pi * steps / PERIOD + i) * (i + 1) + 0.3 * rng.normal(size=len(steps)) + i
        whole = windows.cut(torch.tensor(values), torch.arange(n + 12), OBSERVED + OUTPUTS)
        x, y = whole[:, :OBSERVED], whole[:, OBSERVED:].clone()
        if features > 1:
            known = torch.tensor(rng.normal(size=(n + 12, OBSERVED + OUTPUTS, features - 1)))
            past = torch.cat([x, torch.zeros(n + 12, OUTPUTS)], 1)
            x = torch.cat([past[..., None], known], 2)
        y[torch.tensor(rng.random(y.shape) < missing)] = torch.nan
        order = torch.tensor(rng.permutation(n + 12))
        train, test = order[:n], order[n:]
        seasons = Seasons(PERIOD, (train + OBSERVED) % PERIOD, (test + OBSERVED) % PERIOD)
        members.append(Client(f"s{i}", (x[train], y[train]), (x[test], y[test]), seasons=seasons))
    task = Task.regression(tuple(members[0].train[0].shape[1:]), OUTPUTS)
    if missing:
        from fedkin.base.task import LOSSES, METRICS

        task = replace(task, loss=LOSSES["masked_mse"], metric=METRICS["masked_mse"])
    return Federation("cycles", tuple(members), task, split="random")


def scores(federation: Federation, name: str, **settings) -> list[float]:
    (found,) = references.compute(ready(federation, method="separate", **settings), [name])
    assert found.clients == tuple(c.name for c in federation.clients)
    return list(found.scores)


def mse(predicted: np.ndarray, y: Tensor) -> float:
    return float(np.nanmean(np.square(predicted - y.numpy())))


def fitted(A: np.ndarray, y: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Least squares by numpy, a column at a time, where the target is known."""
    columns = [np.linalg.lstsq(A[~np.isnan(b)], b[~np.isnan(b)], rcond=None)[0] for b in y.T]
    return B @ np.stack(columns, 1)


def with_one(x: np.ndarray) -> np.ndarray:
    return np.hstack([x.reshape(len(x), -1), np.ones((len(x), 1))])


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_climatology_is_a_mean_of_the_season(missing):
    federation = series(missing=missing)
    found = scores(federation, "climatology")
    for client, score in zip(federation.clients, found, strict=True):
        sums: dict[int, list[float]] = {}
        for first, row in zip(client.seasons.train.tolist(), client.train[1].tolist(), strict=True):
            for k, value in enumerate(row):
                if value == value:
                    sums.setdefault((first + k) % PERIOD, []).append(value)
        means = {season: np.mean(values) for season, values in sums.items()}
        predicted = [[means[(first + k) % PERIOD] for k in range(OUTPUTS)] for first in client.seasons.test.tolist()]
        assert score == pytest.approx(mse(np.array(predicted), client.test[1]))


def test_climatology_of_a_season_without_data_is_the_overall_mean():
    client = series().clients[0]
    here = client.seasons.train == 2
    some = replace(
        client,
        train=(client.train[0][here], client.train[1][here]),
        seasons=replace(client.seasons, train=client.seasons.train[here]),
    )
    (predicted,) = references.climatology([some], OUTPUTS)
    assert here.any()
    for first, row in zip(client.seasons.test.tolist(), predicted, strict=True):
        for k, value in enumerate(row.tolist()):
            unseen = (first + k) % PERIOD not in (2, 3, 4)
            if unseen:
                assert value == pytest.approx(float(some.train[1].mean()))


def test_persistence_repeats_the_last_observed_value():
    for federation in (series(), series(features=3)):
        found = scores(federation, "persistence", model={"name": "mlp"})
        for client, score in zip(federation.clients, found, strict=True):
            x = client.test[0].numpy()
            last = x[:, 3] if x.ndim == 2 else x[:, 3, 0]
            assert score == pytest.approx(mse(np.repeat(last[:, None], OUTPUTS, 1), client.test[1]))


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_least_squares_of_each_client(missing):
    federation = series(missing=missing)
    for client, score in zip(federation.clients, scores(federation, "least_squares"), strict=True):
        (x, y), (x_test, y_test) = client.train, client.test
        predicted = fitted(with_one(x.numpy()), y.numpy(), with_one(x_test.numpy()))
        assert score == pytest.approx(mse(predicted, y_test), rel=1e-9)


def test_least_squares_with_fewer_samples_than_inputs_or_the_same_input_twice():
    federation = series(sizes=(3, 30))
    doubled = tuple(
        replace(c, train=(c.train[0].repeat(1, 2), c.train[1]), test=(c.test[0].repeat(1, 2), c.test[1]))
        for c in federation.clients
    )
    twice = Federation("cycles", doubled, Task.regression((2 * OBSERVED,), OUTPUTS), split="random")
    one, other = (scores(f, "least_squares") for f in (federation, twice))
    assert np.isfinite(one).all()
    assert other[0] == pytest.approx(one[0], rel=1e-9)  # the client with enough: the same function


def test_autoregression_reads_the_past_and_what_is_known_ahead():
    federation = series(features=3, missing=0.2)
    for client, score in zip(federation.clients, scores(federation, "autoregression"), strict=True):

        def columns(x: Tensor) -> np.ndarray:
            a = x.numpy()
            return with_one(np.hstack([a[:, :OBSERVED, 0], a[:, OBSERVED, 1:]]))

        predicted = fitted(columns(client.train[0]), client.train[1].numpy(), columns(client.test[0]))
        assert score == pytest.approx(mse(predicted, client.test[1]), rel=1e-9)
    plain = series()
    assert scores(plain, "autoregression") == pytest.approx(scores(plain, "least_squares"))


def test_pooled_least_squares_is_one_function_for_all():
    federation = series()
    x, y = (np.concatenate([c.train[i].numpy() for c in federation.clients]) for i in (0, 1))
    for client, score in zip(federation.clients, scores(federation, "pooled_least_squares"), strict=True):
        predicted = fitted(with_one(x), y, with_one(client.test[0].numpy()))
        assert score == pytest.approx(mse(predicted, client.test[1]), rel=1e-9)


def test_silent_clients_teach_no_pooled_regression():
    first, *others = series().clients
    told = references.pooled_least_squares([replace(first, silent=True), *others], OUTPUTS)
    expected = references.pooled_least_squares(others, OUTPUTS)
    assert len(told[0]) == len(first.test[1])
    assert all(torch.allclose(a, b) for a, b in zip(told[1:], expected, strict=True))
    assert not torch.allclose(told[1], references.pooled_least_squares([first, *others], OUTPUTS)[1])


def test_validation_samples_teach_nothing():
    federation = series()
    held = federation.with_validation(0.2, 0)
    for name in SERIES[:1] + SERIES[2:]:
        assert scores(held, name, data={"validation": 0.2}) == scores(federation, name, data={"validation": 0.2})
        assert scores(held, name) != scores(federation, name)


def test_test_targets_are_only_scored():
    federation = series()
    moved = tuple(replace(c, test=(c.test[0], c.test[1] + 100)) for c in federation.clients)
    for name in SERIES:
        one = references.PREDICTED[name](federation.clients, OUTPUTS)
        other = references.PREDICTED[name](moved, OUTPUTS)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# ---- one model of everyone's data ----


def everyone(federation: Federation) -> Federation:
    x, y = (torch.cat([c.train[i] for c in federation.clients]) for i in (0, 1))
    return Federation("one", (Client("everyone", (x, y), federation.clients[0].test),), federation.task)


def test_pooled_is_plain_training_on_all_samples():
    federation = toy()
    assembly = ready(federation, method="separate", rounds=4)
    (found,) = references.compute(assembly, ["pooled"])
    alone = ready(everyone(federation), method="separate", rounds=4)
    w, by_round = alone.problem.initial, []
    for round in range(1, 5):
        w = trained(alone, 0, w, round)
        module = alone.execution.training
        torch.nn.utils.vector_to_parameters(w.clone(), module.parameters())
        with torch.no_grad():
            tests = [(c.test[0].to(w.device), c.test[1].to(w.device)) for c in federation.clients]
            right = [float((module(x).argmax(1) == y).double().mean()) for x, y in tests]
        by_round.append(right)
    assert found.scores == found.last == pytest.approx(by_round[-1]), "without validation data it is the last round"
    assert found.note == "4 rounds of 16 mini-batches, scored after the last"
    assert (found.metric, found.higher_is_better, found.seed) == ("accuracy", True, 0)


def test_the_round_of_the_pooled_model_is_chosen_by_validation_data_and_never_by_test_data():
    federation = series(sizes=(60, 50, 45))
    asked = {"method": "separate", "rounds": 30, "local": {"lr": 0.1}, "data": {"validation": 0.2}}
    (found,) = references.compute(ready(federation, **asked), ["pooled"])
    upside_down = tuple(replace(c, test=(c.test[0], -c.test[1])) for c in federation.clients)
    (turned,) = references.compute(ready(replace(federation, clients=upside_down), **asked), ["pooled"])
    assert found.note == turned.note and "scored after" in found.note


def test_the_pooled_model_ends_by_validation_data_as_the_methods_do():
    """It overfits here: the losses of its own rounds, with the same rule, say when it ends and which round is taken."""
    federation = series(sizes=(30, 25, 20))
    asked = {"method": "separate", "local": {"lr": 0.1, "epochs": 4}, "data": {"validation": 0.3}}
    heard: list[int] = []
    auto = ready(federation, **asked, rounds=300, patience=8)
    (found,) = references.compute(auto, ["pooled"], Listener(on_round=lambda line: heard.append(line.round)))
    assert 8 < len(heard) < 300 and found.note.startswith(f"{len(heard)} rounds of ")
    taken = int(found.note.split("scored after round ")[1].split(",")[0])
    (short,) = references.compute(ready(federation, **asked, rounds=taken), ["pooled"])
    assert found.scores == pytest.approx(short.last), "the same training, up to that round"
    assert taken < len(heard), "there is something to choose"
    assert np.mean(found.scores) != pytest.approx(np.mean(found.last))


def test_newcomers_and_silent_clients_teach_nothing():
    federation = toy((13, 9, 6, 4, 4))
    assembly = ready(federation, method="separate", participation={"novel": 0.2})
    (found,) = references.compute(assembly, ["pooled"])
    assert len(found.clients) == 4
    known = set(found.clients)
    few = replace(federation, clients=tuple(c for c in federation.clients if c.name in known))
    (same,) = references.compute(ready(few, method="separate"), ["pooled"])
    assert found.scores == same.scores
    quiet = tuple(replace(c, silent=c.name == "b") for c in toy().clients)
    (found,) = references.compute(ready(replace(toy(), clients=quiet), method="separate"), ["pooled"])
    assert "3 rounds of 12 mini-batches" in found.note  # of 13 + 6 + 4 samples, in batches of four, twice


def test_class_weights_of_the_pool():
    plain, balanced = (
        references.compute(ready(toy(), method="separate", local={"class_weights": w}), ["pooled"])[0].last
        for w in ("none", "balanced")
    )
    assert plain != balanced


def test_weights_of_samples_count_in_the_pool():
    heavy = tuple(replace(c, weight=torch.where(c.train[1] == 0, 9.0, 1.0)) for c in toy().clients)
    plain, weighted = (
        references.compute(ready(federation, method="separate"), ["pooled"])[0].last
        for federation in (toy(), replace(toy(), clients=heavy))
    )
    assert plain != weighted


def test_pooled_can_be_stopped_and_says_when_it_diverged():
    assembly = ready(method="separate")
    with pytest.raises(Interrupted, match="round 1 of the pooled model"):
        references.compute(assembly, ["pooled"], Listener(stop=lambda: True))
    wild = ready(series(), method="separate", local={"lr": 1e200, "optimiser": "sgd"})
    with pytest.raises(NoReference, match="no longer finite"):
        references.compute(wild, ["pooled"])


# ---- what does not fit ----


def test_what_does_not_fit_is_refused_with_a_sentence():
    with pytest.raises(NoReference, match="no reference 'polled'. Did you mean 'pooled'"):
        references.compute(ready(), ["polled"])
    for name in SERIES:
        with pytest.raises(NoReference, match="predicts numbers"):
            references.compute(ready(), [name])
    no_series = replace(series(), split="natural")
    for name in ("persistence", "autoregression"):
        with pytest.raises(NoReference, match="series in time, and the clients of cycles"):
            references.compute(ready(no_series), [name])
    seasonless = tuple(replace(c, seasons=None) for c in series().clients)
    with pytest.raises(NoReference, match="cycles does not say"):
        references.compute(ready(replace(series(), clients=seasonless)), ["climatology"])


# ---- beside a comparison ----


def reference(name: str, seed: int, scores: tuple[float, ...], higher: bool = False) -> Reference:
    return Reference(name, seed, "mse", higher, ("a", "b"), scores, scores, "", "x")


def test_rows_are_means_over_clients_then_seeds():
    found = [reference("one", 0, (1.0, 3.0)), reference("one", 1, (5.0, 5.0)), reference("two", 0, (1.0, 1.0))]
    best, other = rows(found)
    assert (best.name, best.mean, best.std_seeds) == ("two", 1.0, None)
    assert (other.mean, other.worst, other.std_clients, other.seeds) == (3.5, 4.0, 0.5, (0, 1))
    assert other.std_seeds == pytest.approx(np.std([2, 5], ddof=1))
    higher = rows([replace(each, higher_is_better=True) for each in found])
    assert [row.name for row in higher] == ["one", "two"]
    assert higher[0].worst == 3.0
    assert rows([]) == []


SETTINGS = {"rounds": 2, "model": {"name": "mlp", "settings": {"hidden": [4]}}, "data": {"validation": 0.0}}


def test_a_comparison_keeps_its_references(tmp_path, monkeypatch):
    asked = {"methods": ["fedavg"], "seeds": 2, "federation": series(), "out": tmp_path, **SETTINGS}
    results = compare.compare(references=["climatology", "pooled"], **asked)
    found = results.references()
    assert [(each.name, each.seed) for each in found] == [
        ("climatology", 0), ("pooled", 0), ("climatology", 1), ("pooled", 1),
    ]  # fmt: skip
    assert found[0].scores == pytest.approx(scores(series(), "climatology"))
    told = json.loads((tmp_path / "references.json").read_text())["references"]
    assert told[0]["scores"] == list(found[0].scores)
    monkeypatch.setattr(references, "_pooled", None)  # what is there is not made again
    again = compare.compare(references=["pooled", "persistence"], **asked)
    assert {each.name for each in again.references()} == {"climatology", "pooled", "persistence"}
    assert compare.compare(**asked).references() == again.references()
    pytest.importorskip("plotly")
    page = again.report().read_text()
    assert "For comparison, without federated learning" in page
    assert "<th>persistence</th>" in page
    assert "2 rounds of" in page


def costs(others: float) -> pd.DataFrame:
    """Three silos; a's numbers stay as they are, those of the others are this many times as large."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"silo": ["a", "b", "c"] * 40, "x": rng.normal(6, 1, 120)})
    frame["cost"] = 3 * frame["x"] + rng.normal(size=120)
    frame.loc[::5, "x"] = np.nan
    return frame.assign(x=frame["x"] * np.where(frame["silo"] == "a", 1, others))


def test_of_a_table_what_is_pooled_is_prepared_together_and_what_is_a_silos_own_by_itself(tmp_path):
    names, found = ["least_squares", "pooled_least_squares", "pooled"], {}
    for others, said in ((1.0, {}), (18.0, {}), (18.0, {"statistics": "shared"})):
        federation = Federation.from_table(costs(others), "silo", "cost", **said)
        out = tmp_path / f"{others}{len(said)}"
        results = compare.compare(references=names, methods=["fedavg"], federation=federation, out=out, rounds=2)
        found[others, bool(said)] = {
            each.name: dict(zip(each.clients, each.scores, strict=True)) for each in results.references()
        }
    alone = [each["least_squares"]["a"] for each in found.values()]
    assert alone[0] == alone[1] != alone[2], "whatever others measure in, unless statistics are said to be shared"
    for name in names[1:]:
        assert found[18.0, False][name] == found[18.0, True][name]


def test_a_row_of_other_settings_is_made_again(tmp_path):
    for seed in (0, 1):
        references.beside(tmp_path, ready(series(), method="separate", seed=seed), ["pooled", "persistence"])
    first = references.read(tmp_path)
    references.beside(tmp_path, ready(series(), method="separate", rounds=1), ["pooled"])
    found = {(each.name, each.seed): each for each in references.read(tmp_path)}
    assert len(found) == len(first) == 4
    assert "1 rounds" in found["pooled", 0].note
    assert found["pooled", 1] in first


def test_a_reference_that_does_not_fit_is_refused_before_any_run(tmp_path):
    with pytest.raises(NoReference):
        compare.compare(
            references=["climatology"], methods=["fedavg"], federation=toy(), out=tmp_path / "c", **SETTINGS
        )
    assert not (tmp_path / "c").exists()


def test_without_references_there_is_what_needs_no_training(tmp_path):
    results = compare.compare(methods=["fedavg"], federation=toy(), out=tmp_path, **SETTINGS)
    assert results.references() == []
    assert not (tmp_path / "references.json").exists()
    pytest.importorskip("plotly")
    page = results.report().read_text()
    assert "<th>majority</th>" in page and "pooled" not in page


@pytest.mark.parametrize("text", ["", "[]", '{"references": [{"name": "pooled"}]}', '{"references": 3}'])
def test_a_damaged_file_is_told(tmp_path, text):
    (tmp_path / "references.json").write_text(text)
    with pytest.raises(NoReference, match=r"references\.json cannot be read"):
        references.read(tmp_path)


def test_the_command(command, tmp_path, capsys):
    pytest.importorskip("plotly")
    words = ["compare", "--data", "digits", "--methods", "fedavg", "--rounds", "1", "--out", tmp_path / "c"]
    assert command(*words, "--references", "pooled") == 0
    said = capsys.readouterr().out
    assert "For comparison, without federated learning" in said
    assert "pooled" in said
    assert command(*words, "--references", "climatology") == 2
    assert "predicts numbers" in capsys.readouterr().err
    assert command(*words, "--references", "pooled", "--vary", "local.lr=0.1,0.2") == 2
    assert "--vary" in capsys.readouterr().err


# ---- what is known of real data ----

FOLDER = SHARED


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("random", {"climatology": 1.31, "least_squares": 2.66, "pooled_least_squares": 6.2}),
        ("chronological", {"climatology": 1.58, "least_squares": 2.33, "pooled_least_squares": 6.6}),
    ],
)
def test_tpt48_has_the_known_yardsticks(split, expected, monkeypatch):
    if not (FOLDER / "tpt48").is_dir():
        pytest.skip("the data sets' files are not beside this repository, in ../shared/data")
    monkeypatch.setenv("FEDKIN_DATA", str(FOLDER))
    found = []
    for seed in range(3):
        assembly = start.prepare({"method": "separate", "data": {"name": "tpt48", "split": split}, "seed": seed})
        found += references.compute(assembly, [*expected])
    for row in rows(found):
        assert 1000 * row.mean == pytest.approx(expected[row.name], rel=0.05)
        assert 0.5 < 1000 * row.std_clients < 2.5
