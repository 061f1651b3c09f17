"""TPT-48: 48 states, six months from six, from the real files: what windows hold, and that nothing leaks."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import SHARED

import fedkin
from fedkin import data
from fedkin.base.settings import ConfigError
from fedkin.data.federation import Client, FederationError
from fedkin.data.files import DataError
from fedkin.data.sets import tpt48
from fedkin.engines.start import prepare
from fedkin.runs.config import resolve
from fedkin.training import models

FOLDER = SHARED


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    if not (FOLDER / "tpt48").is_dir():
        pytest.skip("the data sets' files are not beside this repository, in ../shared/data")
    monkeypatch.setenv("FEDKIN_DATA", str(FOLDER))


@pytest.fixture
def altered(monkeypatch):
    """The temperatures as a function changes them."""
    real = tpt48.read_temperatures

    def alter(change):
        def read(path: Path):
            states, found = real(path)
            change(states, found)
            return states, found

        monkeypatch.setattr(tpt48, "read_temperatures", read)

    return alter


def table() -> dict[str, np.ndarray]:
    with (FOLDER / "tpt48" / "tpt48_2008_2019.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {state: np.array([float(row[state]) for row in rows]) for state in rows[0] if len(state) == 2}


def numbered(states: list[str], found: np.ndarray) -> None:
    """Every temperature is the number of its month, so that windows tell what they hold."""
    found[:] = np.arange(144)[:, None]


def months(pair: tuple[torch.Tensor, torch.Tensor], task) -> list[list[int]]:
    """Which months each window observes and asks for, of `numbered` temperatures."""
    both = torch.cat(pair, 1).double() * task.target_scale + task.target_mean
    return both.round().long().tolist()


# ---- who has what ----


@pytest.mark.parametrize(("windows", "train", "test"), [(133, 106, 27), (125, 100, 25)])
def test_random_parts_hold_a_fifth_each(windows, train, test, altered):
    altered(numbered)
    federation = data.load("tpt48", settings={"windows": windows})
    assert len(federation) == 48
    for client in federation.clients:
        assert (client.samples, len(client.test[1])) == (train, test)
        assert client.validation is None
        starts = [window[0] for part in (client.train, client.test) for window in months(part, federation.task)]
        assert sorted(starts) == list(range(windows))  # each window once
        assert [window[0] for window in months(client.test, federation.task)] == client.test_rows.tolist()
        for window in months(client.train, federation.task):
            assert window == list(range(window[0], window[0] + 12))
    assert len({tuple(c.test_rows.tolist()) for c in federation.clients}) == 48
    assert "overlap" in federation.notes[0]
    assert "chronological" in federation.notes[0]


def test_chronological_parts_ask_for_later_months(altered):
    altered(numbered)
    federation = data.load("tpt48", "chronological")
    assert federation.notes == ()
    for client in federation.clients[:3]:
        assert client.validation is not None
        train, held, test = (months(p, federation.task) for p in (client.train, client.validation, client.test))
        assert (len(train), len(held), len(test)) == (89, 10, 24)
        touched = {month for window in train for month in window}
        assert touched == set(range(100))
        tested = {month for window in test for month in window[6:]}
        assert tested == set(range(115, 144))
        validated = {month for window in held for month in window[6:]}
        assert validated == set(range(100, 115))
        assert not touched & (validated | tested)
        assert max(month for window in held for month in window) < 115
        assert client.test_rows.tolist() == [window[0] for window in test]
    short = data.load("tpt48", "chronological", settings={"windows": 125})
    assert {(c.samples, len(c.test[1])) for c in short.clients} == {(89, 16)}


def test_the_seed_draws_random_parts_and_no_chronological_ones():
    def tests(split: str, seed: int) -> list[list[int]]:
        return [client.test_rows.tolist() for client in data.load("tpt48", split, seed=seed).clients]

    assert tests("random", 0) == tests("random", 0) != tests("random", 1)
    assert tests("chronological", 0) == tests("chronological", 1)


def test_seasons_are_the_calendar_months_of_the_targets(altered):
    altered(numbered)
    federation = data.load("tpt48", seed=2).with_validation(0.1, 2)
    for client in federation.clients[:5]:
        assert client.seasons is not None
        assert client.seasons.period == 12
        for part, found in ((client.train, client.seasons.train), (client.test, client.seasons.test)):
            assert found.tolist() == [window[6] % 12 for window in months(part, federation.task)]
    assert len(client.seasons.train) == client.samples == 95


# ---- temperatures ----


def test_numbers_are_the_tables_in_fahrenheit():
    federation, real = data.load("tpt48", seed=4), table()
    assert sorted(federation.names) == sorted(real)
    values = np.concatenate([*real.values()])
    assert (values.min(), values.max()) == (-2.7, 89.2)
    assert (round(values.mean(), 2), round(values.std(), 2)) == (52.90, 17.75)
    task = federation.task
    for client in federation.clients:
        for start, x, y in zip(client.test_rows.tolist(), *client.test, strict=True):
            both = torch.cat([x, y]).double() * task.target_scale + task.target_mean
            np.testing.assert_allclose(both, real[client.name][start : start + 12], atol=1e-4)


@pytest.mark.parametrize("split", ["random", "chronological"])
def test_minmax_is_of_training_windows(split):
    federation = data.load("tpt48", split)
    parts = [p for c in federation.clients for p in (c.train, c.validation) if p is not None]
    seen = torch.cat([torch.cat(pair, 1).flatten() for pair in parts])
    assert (float(seen.min()), float(seen.max())) == (0, 1)
    real = np.stack([*table().values()])
    months = real if split == "random" else real[:, :115]
    assert federation.task.target_mean == pytest.approx(months.min())
    assert federation.task.target_scale == pytest.approx(np.ptp(months))


@pytest.mark.parametrize("scaling", ["minmax", "zscore", "hundred"])
@pytest.mark.parametrize("split", ["random", "chronological"])
def test_what_only_test_windows_hold_has_no_say_in_scaling(split, scaling, altered):
    asked = {"split": split, "seed": 6, "settings": {"scaling": scaling}}
    before = data.load("tpt48", **asked)
    starts = {c.name: set(c.test_rows.tolist()) for c in before.clients}

    def far_away(states: list[str], found: np.ndarray) -> None:
        """Wherever no training or validation window looks, all is otherwise."""
        for i, state in enumerate(states):
            last = 114 if split == "chronological" else max(set(range(133)) - starts[state]) + 11
            found[last + 1 :, i] += 500

    altered(far_away)
    after = data.load("tpt48", **asked)
    assert any(not torch.equal(a.test[1], b.test[1]) for a, b in zip(before.clients, after.clients, strict=True))
    for a, b in zip(before.clients, after.clients, strict=True):
        assert torch.equal(a.train[0], b.train[0])
        assert torch.equal(a.train[1], b.train[1])
        assert a.preprocessing == b.preprocessing


def test_other_scalings():
    assert (data.load("tpt48", settings={"scaling": "hundred"}).task.target_scale) == 100
    federation = data.load("tpt48", "chronological", settings={"scaling": "zscore"})
    early = np.stack([*table().values()])[:, :115]
    assert federation.task.target_mean == pytest.approx(early.mean())
    assert federation.task.target_scale == pytest.approx(early.std())


# ---- the graph ----


def test_states_that_share_a_border_are_related():
    federation = data.load("tpt48")
    graph, place = federation.graph, {name: i for i, name in enumerate(federation.names)}
    assert torch.equal(graph, graph.T)
    assert not graph.diagonal().any()
    assert graph.sum() == 2 * 105
    assert graph.unique().tolist() == [0, 1]

    def neighbours(state: str) -> set[str]:
        return {federation.names[j] for j in graph[place[state]].nonzero().flatten().tolist()}

    assert neighbours("ME") == {"NH"}
    assert neighbours("FL") == {"AL", "GA"}
    assert neighbours("AZ") == {"CA", "NV", "UT", "NM"}  # and not Colorado, which it meets in a point
    assert len(neighbours("MO")) == len(neighbours("TN")) == 8
    reached, new = {"WA"}, {"WA"}
    while new:
        new = set().union(*map(neighbours, new)) - reached
        reached |= new
    assert len(reached) == 48


# ---- a run ----


def test_errors_are_of_scaled_numbers_and_predictions_in_fahrenheit(tmp_path):
    run = fedkin.run({"method": "separate", "data": "tpt48", "rounds": 12}, out=tmp_path / "run")
    assert run.summary["metric"] == "mse"
    client = next(c for c in data.load("tpt48").clients if c.name == "TX")
    real = table()["TX"]
    observed = np.stack([real[s : s + 6] for s in client.test_rows.tolist()])
    asked = np.stack([real[s + 6 : s + 12] for s in client.test_rows.tolist()])
    predicted = run.predict("TX", observed).values
    assert np.abs(predicted - asked).mean() < 15
    scaled = np.square((predicted - asked) / 91.9).mean()
    score = run.rounds[-1]["models"]["personal"]["clients"][run.summary["clients"].index("TX")]
    assert scaled == pytest.approx(score, rel=1e-4)
    told = run.outputs("TX").metrics()["TX"]["personal"]["mse"].value
    assert told == pytest.approx(score, rel=1e-5)


def test_the_model_and_defaults():
    config = resolve({"data": "tpt48"})
    assert (config.rounds, config.data.split, config.local.optimiser, config.local.lr) == (150, "random", "adam", 3e-3)
    assert config.data.settings == {"windows": 133, "scaling": "minmax"}
    network = models.build(config.model.name, (6,), 6, config.model.settings)
    assert sum(p.numel() for p in network.parameters()) == 1478
    assert prepare({"data": "tpt48", "method": "fedavg"}).cohort.samples == (95,) * 48
    assert prepare({"data": {"name": "tpt48", "split": "chronological"}, "method": "fedavg"}).cohort.samples[0] == 89


# ---- what is refused ----


def test_numbers_of_clients_and_windows_that_cannot_be():
    with pytest.raises(FederationError, match=r"48 clients, the states: leave out data\.clients = 10"):
        data.load("tpt48", clients=10)
    assert len(data.load("tpt48", clients=48)) == 48
    with pytest.raises(ConfigError, match=r"data\.settings\.windows = 134 cannot be"):
        resolve({"data": {"name": "tpt48", "settings": {"windows": 134}}})
    with pytest.raises(FederationError, match="Take more than 109"):
        data.load("tpt48", "chronological", settings={"windows": 109})
    assert len(data.load("tpt48", "chronological", settings={"windows": 110}).clients[0].test[1]) == 1


@pytest.mark.parametrize(
    ("file", "change", "sentence"),
    [
        ("tpt48_2008_2019.csv", lambda text: text[: len(text) // 2], "144 months"),
        ("tpt48_2008_2019.csv", lambda text: "", "is empty"),
        ("tpt48_2008_2019.csv", lambda text: text.replace("43.0", "warm", 1), "no temperature"),
        ("tpt48_2008_2019.csv", lambda text: text.replace("43.0", "nan", 1), "no temperature"),
        ("tpt48_2008_2019.csv", lambda text: text.replace(",43.0", "", 1), "line 2 has 49 cells"),
        ("state_adjacency.csv", lambda text: text.replace("AL,FL", "AL,XX"), "line 2 .* 'AL,XX'"),
        ("state_adjacency.csv", lambda text: text.replace("AL,GA", "AL,AL"), "line 3"),
    ],
)
def test_damaged_files(file, change, sentence, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    (tmp_path / "tpt48").mkdir()
    for name in ("tpt48_2008_2019.csv", "state_adjacency.csv"):
        text = (FOLDER / "tpt48" / name).read_text()
        (tmp_path / "tpt48" / name).write_text(change(text) if name == file else text)
    with pytest.raises(DataError, match=file):
        data.load("tpt48")
    with pytest.raises(DataError, match=sentence):
        data.load("tpt48", verify=False)


def test_a_client_keeps_its_seasons_through_copies():
    client: Client = data.load("tpt48").clients[0]
    assert replace(client, group=1).seasons is client.seasons
