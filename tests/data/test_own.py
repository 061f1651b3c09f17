"""A user's own data set, by its name in Python: given the settings it takes, dealt as ours are, or refused."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch

from fedkin import data
from fedkin.data import UnknownData
from fedkin.data.federation import Federation
from fedkin.data.own import OwnDataError
from fedkin.data.source import Source
from fedkin.engines import start
from fedkin.runs.config import resolve


@pytest.fixture
def module(monkeypatch) -> types.ModuleType:
    made = types.ModuleType("my_data")
    monkeypatch.setitem(sys.modules, "my_data", made)
    return made


def pool(owners: Any = None, **more: Any) -> Source:
    x = torch.arange(40.0)[:, None]
    return Source("mine", x, torch.arange(40) % 2, classes=2, clients=4, owners=owners, **more)


def arrays(seed: int, n: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)).astype(np.float32), np.arange(n) % 3


def test_a_users_own_function_is_given_the_settings_it_takes(module):
    def make(seed: int, clients: int = 5) -> Federation:
        return Federation.from_arrays({f"{seed}-{i}": arrays(i) for i in range(clients)})

    module.make = make  # type: ignore[attr-defined]
    assert sorted(data.load("my_data:make", seed=7, clients=2).names) == ["7-0", "7-1"]
    assert len(data.load("my_data:make", seed=7)) == 5
    module.everything = lambda **given: make(given["seed"], len(given))  # type: ignore[attr-defined]
    assert len(data.load("my_data:everything", test_fraction=0.5)) == 3
    assert start.prepare(data="my_data:make", rounds=1, seed=7).federation.names[0].startswith("7-")


def test_a_users_own_source_is_dealt_as_ours_are(module):
    module.source = pool()  # type: ignore[attr-defined]
    module.owned = lambda: pool(np.array(["ann", "bob"] * 20))  # type: ignore[attr-defined]
    assert len(data.load("my_data:source", "iid")) == 4
    assert len(data.load("my_data:source", "iid", clients=2)) == 2
    assert set(data.load("my_data:owned").names) == {"ann", "bob"}
    with pytest.raises(UnknownData, match="no natural split"):
        data.load("my_data:source")
    module.DEFAULTS = {"rounds": 7, "data": {"split": "iid"}}  # type: ignore[attr-defined]
    assert resolve({"data": "my_data:source"}).rounds == 7
    assert len(data.load("my_data:source")) == 4


def test_a_natural_split_numbers_samples_as_their_owner_has_them_and_dealing_does_not(module):
    owners = np.array(["a", "b", "c", "b"] * 10)
    module.samples = pool(owners)
    for seed in (0, 1):
        for client in data.load(f"{module.__name__}:samples", "natural", seed=seed).clients:
            own = module.samples.x[torch.from_numpy(owners == client.name)]
            assert client.test_rows is not None and torch.equal(own[client.test_rows], client.test[0])
    for client in data.load(f"{module.__name__}:samples", "iid").clients:
        assert client.test_rows is None  # silo-00 of another seed has other samples


def test_what_is_no_data_set_is_refused(module):
    module.number = 3  # type: ignore[attr-defined]
    module.source = pool()  # type: ignore[attr-defined]
    module.federation = Federation.from_arrays({"a": arrays(0)})  # type: ignore[attr-defined]
    with pytest.raises(OwnDataError, match="'my_data:nothing' could not be imported"):
        data.load("my_data:nothing")
    with pytest.raises(OwnDataError, match="could not be imported: No module named 'no_such_data'"):
        resolve({"data": "no_such_data:x"})
    with pytest.raises(OwnDataError, match=r"a fedkin\.Federation or a fedkin\.data\.Source; it is a int"):
        data.load("my_data:number")
    with pytest.raises(UnknownData, match="has clients of its own"):
        data.load("my_data:federation", "iid")
