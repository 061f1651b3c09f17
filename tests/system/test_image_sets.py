"""The FedAMP papers' data sets, from the real files: who gets what, and that it is what the papers say."""

from __future__ import annotations

import csv
import gzip
import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from helpers import SHARED, at

import fedkin
from fedkin import data
from fedkin.data import by_name
from fedkin.data.federation import Client, Federation
from fedkin.data.source import Source
from fedkin.engines.start import prepare
from fedkin.runs.config import resolve
from fedkin.studies.run import Run
from fedkin.training import models

FOLDER = SHARED
NAMES = ["mnist", "fmnist", "emnist", "cifar100"]
BALANCED = ["mnist", "fmnist", "cifar100"]
Dealer = Callable[..., Federation]

# Huang et al. (AAAI 2021), practical split: (clients, training samples of each) in the order of the clients.
SIZES = {
    "mnist": [(20, 500), (20, 400), (20, 300), (20, 200), (20, 100)],
    "fmnist": [(20, 600), (20, 500), (20, 400), (20, 300), (20, 200)],
    "emnist": [(10, 1000), (26, 700), (26, 400)],
    "cifar100": [(20, 500), (20, 400), (20, 300), (20, 200), (20, 100)],
}
TOTALS = {
    "mnist": (30_000, 10_000),
    "fmnist": (40_000, 10_000),
    "emnist": (38_600, 6_200),
    "cifar100": (30_000, 10_000),
}
CLASSES = {"mnist": 10, "fmnist": 10, "emnist": 62, "cifar100": 100}


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    if not FOLDER.is_dir():
        pytest.skip("the data sets' files are not beside this repository, in ../shared/data")
    monkeypatch.setenv("FEDKIN_DATA", str(FOLDER))


@pytest.fixture
def numbered(monkeypatch) -> Dealer:
    """`data.load` with the images replaced by their numbers: the training pool's from 0, then the test pool's."""
    real = data.source

    def source(name: str, verify: bool = True) -> Source:
        given = real(name, verify)
        n = len(given.y)
        tests = torch.arange(n, n + len(given.y_test))
        return replace(given, x=torch.arange(n)[:, None], x_test=tests[:, None], preprocessing=None)

    def load(*arguments: object, **settings: object) -> Federation:
        with monkeypatch.context() as patch:
            patch.setattr(by_name, "source", source)
            return data.load(*arguments, **settings)

    return load


@cache
def raw(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels, the training pool's and then the test pool's, read in the plainest way."""
    if name == "cifar100":
        stored = [np.load(FOLDER / "cifar100" / f"{part}.npz") for part in (*(f"train-{i}" for i in range(5)), "test")]
        x = np.concatenate([decoded(part["delta"]) for part in stored])
        return x, np.concatenate([part["fine"] for part in stored]).astype(int)
    place = {"mnist": "mnist/%s", "fmnist": "fashion-mnist/%s", "emnist": "emnist/emnist-byclass-subset-%s"}[name]
    parts = ("train", "test") if name == "emnist" else ("train", "t10k")
    files = [gzip.decompress((FOLDER / (place % p + "-images-idx3-ubyte.gz")).read_bytes())[16:] for p in parts]
    labels = [gzip.decompress((FOLDER / (place % p + "-labels-idx1-ubyte.gz")).read_bytes())[8:] for p in parts]
    x = np.frombuffer(b"".join(files), np.uint8).reshape(-1, 1, 28, 28)
    return x, np.frombuffer(b"".join(labels), np.uint8).astype(int)


def decoded(delta: np.ndarray) -> np.ndarray:
    """Red less green, green, blue less green, each the difference from the pixel to the left: sums modulo 256."""
    red, green, blue = np.moveaxis(delta.cumsum(-1, dtype=np.uint16), 1, 0)
    return (np.stack([red + green, green, blue + green], 1) % 256).astype(np.uint8)


@cache
def superclass() -> dict[int, int]:
    with (FOLDER / "cifar100" / "labels.csv").open() as stream:
        return {int(row["fine"]): int(row["coarse"]) for row in csv.DictReader(stream)}


def training(name: str) -> int:
    """The size of the training pool."""
    return {"mnist": 60_000, "fmnist": 60_000, "emnist": 54_948, "cifar100": 50_000}[name]


def number(client: Client) -> int:
    return int(client.name.removeprefix("silo-"))


def ids(client: Client) -> tuple[np.ndarray, np.ndarray]:
    return client.train[0][:, 0].numpy(), client.test[0][:, 0].numpy()


def dominates(name: str, client: int, label: int) -> bool:
    """Whether a class is one of those of a client's group, as the paper has it."""
    if name == "emnist":
        return np.searchsorted([10, 36], label, "right") == np.searchsorted([10, 36], client, "right")
    if name == "cifar100":
        return superclass()[label] == client // 5
    return label // 2 == client // 20


# ---- practical ----


@pytest.mark.parametrize("name", NAMES)
def test_four_fifths_of_every_clients_samples_are_of_its_groups_classes(name, numbered):
    federation, (_, y) = numbered(name), raw(name)
    sizes = [size for clients, size in SIZES[name] for _ in range(clients)]
    assert sorted(map(number, federation.clients)) == list(range(len(sizes)))
    for client in federation.clients:
        i, (train, test) = number(client), ids(client)
        assert (len(train), len(test)) == (sizes[i], 100)
        for part, labels in ((train, client.train[1]), (test, client.test[1])):
            assert (y[part] == labels.numpy()).all()
            assert 5 * sum(dominates(name, i, label) for label in y[part]) == 4 * len(part)
    total = sum(c.samples for c in federation.clients), sum(len(c.test[1]) for c in federation.clients)
    assert total == TOTALS[name]


@pytest.mark.parametrize("name", NAMES)
def test_groups_are_those_who_share_dominating_classes(name, numbered):
    federation = numbered(name)
    for a in federation.clients:
        for b in federation.clients[:: len(federation) // 20]:
            shared = all(dominates(name, number(a), c) == dominates(name, number(b), c) for c in range(CLASSES[name]))
            assert (a.group == b.group) == shared


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_sample_belongs_to_two_clients_or_to_training_and_test(name, seed, numbered):
    """Also where a test pool is used up to the last image, as those of Fashion-MNIST and CIFAR-100 are."""
    federation = numbered(name, seed=seed)
    parts = [part for client in federation.clients for part in ids(client)]
    dealt = np.concatenate(parts)
    assert len(np.unique(dealt)) == len(dealt) == sum(TOTALS[name])
    train = np.concatenate(parts[::2])
    assert train.max() < training(name), "nobody trains with an official test image"
    tests = np.concatenate(parts[1::2])
    if name in ("fmnist", "cifar100"):
        assert sorted(tests) == list(range(training(name), training(name) + 10_000))
    elif name == "emnist":
        assert tests.min() >= training(name)


def test_the_digits_that_mnist_has_too_few_test_images_of_are_filled_from_unused_training_images(numbered):
    lacking = {0: 20, 4: 18, 5: 108, 6: 42, 8: 26}
    _, y = raw("mnist")
    official = np.bincount(y[60_000:])
    assert {c: 1000 - n for c, n in enumerate(official) if n < 1000} == lacking
    tests = np.concatenate([ids(c)[1] for c in numbered("mnist").clients])
    moved = Counter(y[tests[tests < 60_000]].tolist())
    assert set(moved) == set(lacking)
    assert all(moved[c] <= lacking[c] for c in lacking)
    again = np.concatenate([ids(c)[1] for c in numbered("mnist", seed=1).clients])
    assert set(tests[tests < 60_000]) != set(again[again < 60_000]), "by lot"


@pytest.mark.parametrize("split", ["iid", "pathological", "dirichlet"])
def test_and_stay_where_they_are_in_all_other_splits(split, numbered):
    for client in numbered("mnist", split).clients:
        train, test = ids(client)
        assert train.max() < 60_000 <= test.min()


@pytest.mark.parametrize("name", BALANCED)
def test_inside_both_parts_of_a_clients_samples_classes_are_as_equal_as_can_be(name, numbered):
    for client in numbered(name).clients:
        mine = np.array([dominates(name, number(client), c) for c in range(CLASSES[name])])
        for labels in (client.train[1], client.test[1]):
            counts = np.bincount(labels, minlength=CLASSES[name])
            assert max(np.ptp(counts[mine]), np.ptp(counts[~mine])) <= 1


def test_letters_are_drawn_as_often_as_the_data_has_them(numbered):
    """A draw that is uniform over letters would differ by 0.2 from what is expected here."""
    federation, (_, y) = numbered("emnist"), raw("emnist")
    stock = np.bincount(y[: training("emnist")], minlength=62)
    for letters, clients in ((range(10, 36), range(10, 36)), (range(36, 62), range(36, 62))):
        drawn = sum(np.bincount(c.train[1], minlength=62) for c in federation.clients if number(c) in clients)
        share, expected = (n[list(letters)] / n[list(letters)].sum() for n in (drawn, stock))
        assert np.abs(share - expected).sum() / 2 < 0.04


# ---- the other splits ----


@pytest.mark.parametrize("name", NAMES)
def test_pathological_clients_have_exactly_two_classes_and_every_sample_has_a_client(name, numbered):
    federation, (_, y) = numbered(name, "pathological"), raw(name)
    assert len(federation) == (62 if name == "emnist" else 100)
    for client in federation.clients:
        train, test = ids(client)
        assert len(set(y[train])) == 2
        assert set(y[test]) == set(y[train])
    dealt = np.concatenate([part for client in federation.clients for part in ids(client)])
    assert sorted(dealt) == list(range(len(y)))


@pytest.mark.parametrize("name", NAMES)
def test_independent_clients_have_equal_parts_of_everything(name, numbered):
    federation, (_, y) = numbered(name, "iid"), raw(name)
    parts = [ids(client) for client in federation.clients]
    sizes = {"mnist": (600, 100), "fmnist": (600, 100), "emnist": (886, 195), "cifar100": (500, 100)}[name]
    for train, test in parts:
        assert 0 <= len(train) - sizes[0] <= 1
        assert 0 <= len(test) - sizes[1] <= 1
    assert sorted(np.concatenate([p for both in parts for p in both])) == list(range(len(y)))


@pytest.mark.parametrize("name", NAMES)
def test_relabelled_groups_have_words_of_their_own(name, numbered):
    federation, (_, y) = numbered(name, "relabelled"), raw(name)
    for client in federation.clients:
        for part, labels in zip(ids(client), (client.train[1], client.test[1]), strict=True):
            assert (labels.numpy() == (y[part] + 2 * client.group) % CLASSES[name]).all()
    assert federation.task.class_names == (), "a number means another thing in every group"


@pytest.mark.parametrize("name", NAMES)
def test_dirichlet_uses_every_sample_once(name, numbered):
    federation = numbered(name, "dirichlet", alpha=0.5)
    dealt = np.concatenate([part for client in federation.clients for part in ids(client)])
    assert sorted(dealt) == list(range(len(raw(name)[1])))


@pytest.mark.parametrize(("name", "clients", "sizes"), [
    ("mnist", 20, [4] * 5),
    ("fmnist", 5, [1] * 5),
    ("emnist", 31, [5, 13, 13]),
    ("cifar100", 20, [1] * 20),
])  # fmt: skip
def test_groups_keep_their_proportions_where_there_are_fewer_clients(name, clients, sizes, numbered):
    groups = Counter(c.group for c in numbered(name, clients=clients).clients)
    assert [groups[g] for g in range(len(sizes))] == sizes


def test_a_number_of_clients_that_groups_cannot_share_is_refused_with_those_that_they_can():
    with pytest.raises(data.UnknownData, match="3 groups of 10, 26 and 26 clients; 60 clients .* a multiple of 31"):
        data.load("emnist", clients=60)
    with pytest.raises(data.UnknownData, match="5 groups of 20 clients; 99 clients .* a multiple of 5"):
        data.load("mnist", clients=99)


def test_the_same_seed_deals_the_same_and_another_seed_does_not(numbered):
    def dealt(seed: int) -> list[list[int]]:
        return [p.tolist() for c in numbered("mnist", seed=seed).clients for p in ids(c)]

    assert dealt(3) == dealt(3) != dealt(4)


# ---- what the models see ----


@pytest.mark.parametrize("name", NAMES)
def test_clients_hold_the_images_of_their_numbers_as_the_preprocessing_prepares_them(name, numbered):
    federation, numbers, (x, _) = data.load(name), numbered(name), raw(name)
    mean, std = (np.array(v)[:, None, None] for v in statistics(name))
    for client, twin in list(zip(federation.clients, numbers.clients, strict=True))[::9]:
        assert client.name == twin.name
        for (images, _), part in zip((client.train, client.test), ids(twin), strict=True):
            assert images.dtype == torch.float32
            assert np.abs(images.numpy() - (x[part] / 255 - mean) / std).max() < 1e-5
        again = client.preprocessing.module()(client.preprocessing.read(x[ids(twin)[1]]))
        assert torch.equal(again, client.test[0]), "at prediction as in training"


def statistics(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The usual means and deviations, as they are printed everywhere."""
    return {
        "mnist": ((0.1307,), (0.3081,)),
        "fmnist": ((0.2860,), (0.3530,)),
        "emnist": ((0.1736,), (0.3317,)),
        "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    }[name]


@pytest.mark.parametrize("name", NAMES)
def test_pixels_are_scaled_by_the_mean_and_deviation_of_the_training_images(name):
    source = data.source(name)
    x = raw(name)[0][: training(name)]
    assert np.array_equal(source.x.numpy(), x)
    exact = 2e-3 if name == "emnist" else 1e-4  # the usual numbers of EMNIST are those of the whole
    levels = np.arange(256) / 255
    for channel in range(x.shape[1]):
        share = np.bincount(x[:, channel].ravel(), minlength=256) / x[:, channel].size
        mean = share @ levels
        std = np.sqrt(share @ (levels - mean) ** 2)
        assert abs(mean - source.preprocessing.mean[channel]) < exact
        assert abs(std - source.preprocessing.std[channel]) < exact


@pytest.mark.parametrize("name", NAMES)
def test_no_picture_is_dealt_more_often_than_the_data_set_has_it(name):
    """The pixels themselves: some sets hold a picture twice, which may then be dealt twice."""
    federation = data.load(name)
    mean, std = (torch.tensor(v)[:, None, None] for v in statistics(name))

    def prints(x: np.ndarray) -> list[bytes]:
        return [hashlib.blake2b(image.tobytes(), digest_size=12).digest() for image in x]

    def pixels(x: torch.Tensor) -> np.ndarray:
        return ((x * std + mean) * 255).round().to(torch.uint8).numpy()

    pool = Counter(prints(raw(name)[0]))
    dealt = Counter(p for c in federation.clients for x, _ in (c.train, c.test) for p in prints(pixels(x)))
    assert dealt.total() == sum(TOTALS[name])
    assert all(count <= pool[p] for p, count in dealt.items())


def test_classes_have_names():
    names = {name: data.load(name, "iid", clients=100).task.class_names for name in NAMES}
    assert {n: len(names[n]) for n in NAMES} == CLASSES
    assert names["mnist"] == tuple("0123456789")
    assert (names["fmnist"][0], names["fmnist"][9]) == ("T-shirt/top", "Ankle boot")
    with (FOLDER / "emnist" / "mapping.txt").open() as stream:
        assert names["emnist"] == tuple(chr(int(line.split()[1])) for line in stream)
    assert (names["cifar100"][0], names["cifar100"][19], names["cifar100"][99]) == ("apple", "cattle", "worm")


def test_the_first_images_of_cifar100_are_the_published_ones():
    source = data.source("cifar100")
    assert source.y[:5].tolist() == [19, 29, 0, 11, 1]
    assert [*source.x[0].flatten()[:3].tolist(), *source.x[0].flatten()[-3:].tolist()] == [255, 255, 255, 10, 59, 79]


@pytest.mark.parametrize(("name", "label"), [("mnist", 1), ("emnist", 1), ("emnist", 18), ("emnist", 47)])
def test_ones_and_the_letters_i_and_l_stand_upright(name, label):
    """The official EMNIST files hold them lying down."""
    source = data.source(name)
    ink = source.x[source.y == label, 0].double().mean(0)
    across, down = (torch.var(torch.arange(28.0).repeat_interleave((100 * ink.sum(d)).long())) for d in (0, 1))
    assert down > 1.5 * across


def test_emnist_says_that_it_is_a_subset_and_the_others_say_nothing():
    assert "54,948 + 12,133" in " ".join(data.load("emnist").notes)
    assert data.load("mnist").notes == ()


def test_files_are_read_once():
    assert data.source("fmnist") is data.source("fmnist")


# ---- what is run ----


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_the_papers(name):
    config = resolve({"data": name})
    local = config.local
    assert (config.rounds, local.epochs, local.batch_size, local.optimiser, local.lr) == (100, 10, 100, "adam", 1e-3)
    assert config.data.augment == (name == "cifar100")
    source = data.source(name)
    module = models.build(config.model.name, tuple(source.x.shape[1:]), source.classes, config.model.settings)
    parameters = {"mnist": 1_663_370, "fmnist": 1_663_370, "emnist": 1_690_046, "cifar100": 11_220_132}
    assert sum(p.numel() for p in module.parameters()) == parameters[name]


def test_another_model_on_cifar100_does_not_get_the_resnets_stem():
    assert resolve({"data": "cifar100", "model": "cnn"}).model.settings == {}


def test_a_run_on_fashion_mnist_can_be_prepared_and_draws_batches():
    assembly = prepare({"data": {"name": "fmnist", "clients": 5}, "method": "fedamp", "device": "cpu"})
    batch = next(iter(assembly.cohort.batches(at(1))))
    assert batch.x.shape == (5, 100, 1, 28, 28)
    assert assembly.federation.clients[0].preprocessing == data.source("fmnist").preprocessing


@pytest.mark.slow
def test_fashion_mnist_is_learned_from_the_command_line(tmp_path):
    words = ["run", "--method", "fedamp", "--data", "fmnist", "--clients", "5", "--epochs", "1", "--rounds", "2"]
    command = [sys.executable, "-m", "fedkin", *words, "--device", "cpu", "--out", str(tmp_path / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    scores = {name: model["mean"] for name, model in Run(tmp_path / "run").rounds[1]["models"].items()}
    assert scores["personal"] > 0.5, "a tenth is chance, four fifths of a client's samples are of two classes"


@pytest.mark.slow
def test_a_round_of_cifar100_goes_through_the_resnet_augmented(tmp_path):
    config = resolve({"data": "cifar100", "local": {"epochs": 1, "batch_size": 7}, "rounds": 1, "device": "cpu"})
    federation = data.load("cifar100")
    few = [
        replace(c, train=tuple(part[:15] for part in c.train), test=tuple(part[:5] for part in c.test))
        for c in federation.clients[:5]
    ]
    run = fedkin.run(config, federation=replace(federation, clients=tuple(few)), out=tmp_path / "run")
    assert np.isfinite(run.rounds[0]["train_loss"])
    assert config.data.augment
