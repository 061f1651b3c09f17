"""FL-60: the released file, its generator for any number of domains, and the formula as printed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import SHARED
from scipy import stats

import fedkin
from fedkin import data
from fedkin.base.settings import ConfigError
from fedkin.data.federation import Federation
from fedkin.data.files import DataError
from fedkin.data.preprocessing import from_json
from fedkin.data.sets import fl60
from fedkin.runs.config import resolve
from fedkin.training import models

FOLDER = SHARED


@pytest.fixture
def folder(monkeypatch):
    if not (FOLDER / "dg").is_dir():
        pytest.skip("the data sets' files are not beside this repository, in ../shared/data")
    monkeypatch.setenv("FEDKIN_DATA", str(FOLDER))


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """Generated domains need no file."""
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    return tmp_path


def raw(federation: Federation, part: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each client's points in the coordinates of the file."""
    points = []
    for client in federation.clients:
        x, y = getattr(client, part)
        mean, scale = (torch.tensor(getattr(client.preprocessing, k)) for k in ("mean", "scale"))
        points.append((x * scale + mean, y))
    return points


# ---- the released file ----


def test_the_released_file_is_dealt_by_domain(folder):
    federation = data.load("fl60")
    assert federation.names == tuple(f"domain-{i:02d}" for i in range(60))
    assert (federation.split, federation.notes) == ("natural", ())
    with np.load(FOLDER / "dg" / "dg60.npz", allow_pickle=False) as file:
        points, label, domain = file["data"], file["label"], file["domain"]
    for i, (client, train, test) in enumerate(
        zip(federation.clients, raw(federation, "train"), raw(federation, "test"), strict=True)
    ):
        assert (len(train[1]), len(test[1])) == (80, 20)
        own, labels = points[domain == i], label[domain == i]
        assert client.test_rows is not None
        np.testing.assert_allclose(test[0], own[client.test_rows], atol=1e-5)
        assert test[1].tolist() == labels[client.test_rows].tolist()
        both = np.concatenate([train[0], test[0]])
        np.testing.assert_allclose(np.sort(both, 0), np.sort(own, 0), atol=1e-5)
        assert int(train[1].sum() + test[1].sum()) == 50


def test_the_graph_is_the_released_one(folder):
    graph = data.load("fl60").graph
    degrees = graph.sum(1)
    assert graph.dtype == torch.float32
    assert torch.equal(graph, graph.T)
    assert not graph.diagonal().any()
    assert graph.sum() == 2 * 545
    assert (degrees.min(), degrees.max()) == (13, 27)
    assert float(degrees.mean()) == pytest.approx(18.2, abs=0.05)
    with np.load(FOLDER / "dg" / "dg60.npz", allow_pickle=False) as file:
        assert np.array_equal(graph.numpy(), file["adjacency"])
        close = np.cos(file["angle"][:, None] - file["angle"]) >= 0.2
    assert not (graph.numpy() * ~close).any()


def test_the_printed_graph_is_drawn_for_the_released_points(folder):
    one, other = data.load("fl60"), data.load("fl60", settings={"graph": "paper"})
    assert torch.equal(one.clients[7].train[0], other.clients[7].train[0])
    with np.load(FOLDER / "dg" / "dg60.npz", allow_pickle=False) as file:
        chance = (1 + np.cos(file["angle"][:, None] - file["angle"])) / 2
    graph, upper = other.graph.numpy(), np.triu_indices(60, 1)
    p = chance[upper]
    assert abs(graph[upper].sum() - p.sum()) < 4 * math.sqrt((p * (1 - p)).sum())
    assert np.corrcoef(graph[upper], p)[0, 1] > 0.5


def test_coordinates_are_standardised_by_the_training_parts_alone(folder, monkeypatch):
    federation = data.load("fl60", seed=3)
    train = torch.cat([c.train[0] for c in federation.clients]).double()
    torch.testing.assert_close(train.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(train.std(0, correction=0), torch.ones(2, dtype=torch.float64), atol=1e-6, rtol=0)
    real = fl60.read

    def moved(path: Path) -> fl60.Domains:
        """The file with every test point of this seed carried far away."""
        domains = real(path)
        for i, client in enumerate(federation.clients):
            domains.x[i, client.test_rows] += 1000
        return domains

    monkeypatch.setattr(fl60, "read", moved)
    for client, other in zip(federation.clients, data.load("fl60", seed=3).clients, strict=True):
        assert torch.equal(client.train[0], other.train[0])
        assert not torch.equal(client.test[0], other.test[0])


def test_the_split_depends_on_the_seed_and_the_name(folder):
    one, again, other = (data.load("fl60", seed=seed) for seed in (0, 0, 1))
    rows = [[set(c.test_rows.tolist()) for c in f.clients] for f in (one, again, other)]
    assert rows[0] == rows[1] != rows[2]
    assert len({tuple(sorted(own)) for own in rows[0]}) > 50


def test_separate_is_right_everywhere(folder, tmp_path):
    run = fedkin.run({"method": "separate", "data": "fl60", "rounds": 5}, out=tmp_path / "run")
    assert run.summary["models"]["personal"]["last"] == 1.0
    assert len(run.predict("domain-03", np.zeros((4, 2)))) == 4


def test_another_file_is_refused(folder, tmp_path, monkeypatch):
    content = (FOLDER / "dg" / "dg60.npz").read_bytes()
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    (tmp_path / "dg").mkdir()
    place = tmp_path / "dg" / "dg60.npz"
    with pytest.raises(DataError, match=r"dg60\.npz is missing"):
        data.load("fl60")
    place.write_bytes(content[:5000])
    with pytest.raises(DataError, match="truncated"):
        data.load("fl60")
    with pytest.raises(DataError, match="is not the file of fl60"):
        data.load("fl60", verify=False)
    with np.load(FOLDER / "dg" / "dg60.npz", allow_pickle=False) as file:
        arrays = dict(file)
    np.savez(place, **{k: v for k, v in arrays.items() if k != "angle"})
    with pytest.raises(DataError, match="is not the file of fl60"):
        data.load("fl60", verify=False)
    np.savez(place, **(arrays | {"domain": np.zeros(6000, dtype=np.uint8)}))
    with pytest.raises(DataError, match="100 points in each of 60"):
        data.load("fl60", verify=False)
    np.savez(place, **(arrays | {"angle": np.array([object()] * 60)}))  # pickled inside
    with pytest.raises(DataError, match="is not the file of fl60"):
        data.load("fl60", verify=False)
    np.savez(place, **arrays)
    assert data.load("fl60", verify=False).graph.sum() == 2 * 545


# ---- drawn by the released rule ----


def test_points_lie_as_the_rule_says():
    domains = fl60.generate(200, 100, seed=5)
    radius = 1 + 6 * domains.angle / (2 * np.pi)
    centre = radius[:, None] * np.stack([np.cos(domains.angle), np.sin(domains.angle)], 1)
    sign = np.where(domains.y == 0, 1, -1)[..., None]
    scatter = domains.x - sign * centre[:, None]
    norm = np.linalg.norm(scatter, axis=2).ravel()
    assert norm.max() <= 1
    # N(0, I) given a norm of at most 1: its square is exponential, cut off.
    inside = 1 - math.exp(-0.5)
    assert stats.kstest(norm**2, lambda t: (1 - np.exp(-t / 2)) / inside).pvalue > 0.001
    turn = np.arctan2(scatter[..., 1], scatter[..., 0]).ravel()
    assert stats.kstest(turn, stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 0.001
    assert stats.kstest(domains.angle, stats.uniform(0, 2 * np.pi).cdf).pvalue > 0.001
    assert (domains.y.sum(1) == 50).all()


def test_the_generator_makes_what_was_released(folder):
    released, drawn = fl60.read(FOLDER / "dg" / "dg60.npz"), fl60.generate(60, 100, seed=0)
    assert stats.ks_2samp(released.angle, drawn.angle).pvalue > 0.01
    assert (drawn.x.shape, drawn.y.tolist()) == (released.x.shape, released.y.tolist())
    again = fl60.Domains(released.x, released.y, released.angle)
    degrees = [fl60.drawn_graph(again.angle, seed).sum(1).mean() for seed in range(20)]
    assert min(degrees) < released.graph.sum(1).mean() < max(degrees)


def test_edges_have_the_released_chance():
    angle = np.array([0.0, 0.3, 1.0, 1.36, 1.38, 3.0])
    drawn = np.mean([fl60.drawn_graph(angle, seed) for seed in range(2000)], 0)
    cosine = np.cos(angle[:, None] - angle)
    expected = np.where(cosine >= 0.2, cosine, 0) * (1 - np.eye(6))
    np.testing.assert_allclose(drawn, expected, atol=4 * 0.5 / math.sqrt(2000))
    assert cosine[0, 3] > 0.2 > cosine[0, 4]
    assert drawn[0, 3] > 0 == drawn[0, 4]
    assert np.array_equal(drawn, drawn.T)


@pytest.mark.parametrize("clients", [1, 30, 480])
def test_any_number_of_domains_is_generated_and_said_so(nowhere, clients):
    federation = data.load("fl60", clients=clients)
    assert len(federation) == clients
    assert federation.graph.shape == (clients, clients)
    assert torch.equal(federation.graph, federation.graph.T)
    assert not federation.graph.diagonal().any()
    assert {(c.samples, len(c.test[1])) for c in federation.clients} == {(80, 20)}
    assert f"these {clients} of 100 were drawn" in federation.notes[0]
    assert federation.names[0] in ("domain-00", "domain-000")
    assert all(client.test_rows is None for client in federation.clients)


def test_generated_domains_depend_on_the_seed_and_their_number(nowhere):
    def points(**asked) -> torch.Tensor:
        federation = data.load("fl60", settings={"variant": "generated"}, **asked)
        assert federation.notes == ()
        return torch.stack([torch.cat([x, held]).sort(0).values for (x, _), (held, _) in
                            zip(raw(federation, "train"), raw(federation, "test"), strict=True)])  # fmt: skip

    one = points(seed=1)
    assert torch.equal(one, points(seed=1))
    assert not torch.isclose(one, points(seed=2)).any(1).all()
    torch.testing.assert_close(points(seed=1, clients=12), one[:12], atol=1e-4, rtol=0)  # a smaller one is a part


def test_points_can_be_fewer_or_more(nowhere):
    federation = data.load("fl60", clients=4, settings={"points": 40})
    assert {(c.samples, len(c.test[1])) for c in federation.clients} == {(32, 8)}
    assert "these 4 of 40" in federation.notes[0]
    with pytest.raises(ConfigError, match=r"data\.settings\.points = 31 cannot be"):
        resolve({"data": {"name": "fl60", "settings": {"points": 31}}})


# ---- drawn as printed ----


def test_as_printed_nothing_can_be_right_about_more_than_69_percent():
    domains = fl60.generate(400, 1000, seed=0, printed=True)
    a, b = np.cos(domains.angle), np.sin(domains.angle)
    assert (np.abs(b) <= np.abs(a) + 1e-12).all()  # where omega = arcsin(b / a) exists
    length = np.arcsin(np.clip(b / a, -1, 1)) / np.pi
    mean = length[:, None] * np.stack([a, b], 1)
    for label, sign in ((0, 1), (1, -1)):
        centred = (domains.x - sign * mean[:, None])[domains.y == label]
        np.testing.assert_allclose(centred.mean(0), 0, atol=0.01)
        np.testing.assert_allclose(np.cov(centred.T), np.eye(2), atol=0.01)
    bayes = stats.norm.cdf(np.abs(length))
    assert bayes.max() <= 0.6915
    right = ((domains.x @ mean[..., None])[..., 0] > 0) == (domains.y == 0)  # the best rule there is
    assert right.mean() == pytest.approx(bayes.mean(), abs=0.005)
    assert right.mean(1).max() <= 0.6915 + 4 * math.sqrt(0.25 / 1000)


def test_the_printed_variant_can_be_had(nowhere):
    federation = data.load("fl60", settings={"variant": "paper", "graph": "paper"})
    assert len(federation) == 60
    assert federation.notes == ()
    assert float(federation.graph.sum()) / 2 > 700  # half of all 1,770 pairs, or so


# ---- the configuration ----


def test_defaults(folder):
    config = resolve({"data": "fl60"})
    assert (config.rounds, config.data.split, config.local.optimiser) == (150, "natural", "sgd")
    assert (config.local.lr, config.local.momentum, config.local.epochs, config.local.batch_size) == (0.05, 0.9, 4, 32)
    network = models.build(config.model.name, (2,), 2, config.model.settings)
    assert sum(p.numel() for p in network.parameters()) == 354
    assert config.data.settings == {"variant": "released", "graph": "released", "points": 100}


def test_other_splits_and_settings_are_refused(folder):
    with pytest.raises(data.UnknownData, match="'natural', not 'random'"):
        data.load("fl60", "random")
    with pytest.raises(ConfigError, match=r"data\.settings\.grap'.*Did you mean 'data\.settings\.graph'"):
        resolve({"data": {"name": "fl60", "settings": {"grap": "paper"}}})


def test_what_prepares_the_points_is_kept_with_the_models(folder):
    client = data.load("fl60").clients[0]
    again = from_json(client.preprocessing.to_json())
    assert again == client.preprocessing
    with np.load(FOLDER / "dg" / "dg60.npz", allow_pickle=False) as file:
        points = file["data"][file["domain"] == 0]
    prepared = again.module()(again.read(points))
    assert torch.equal(prepared[client.test_rows], client.test[0])
