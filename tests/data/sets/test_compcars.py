"""CompCars as users bring it: 30 clients by viewpoint and year, their graphs, and what is wrong with a file is said."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin import data
from fedkin.data.federation import FederationError
from fedkin.data.files import DataError
from fedkin.data.sets import compcars
from fedkin.runs.config import resolve
from fedkin.training import models

CHAIN, YEARS = ["F", "FS", "S", "RS", "R"], range(2009, 2015)
NUMBERS = {"F": 1, "R": 2, "S": 3, "FS": 4, "RS": 5}
"""As the original numbers viewpoints."""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    (tmp_path / "compcars").mkdir()
    return tmp_path / "compcars"


def cars(n: int = 10) -> dict[str, np.ndarray]:
    """n cars a client, and some that belong to none: of 2008, of other types, of an uncertain viewpoint."""
    rows = [(1 + k % 4, NUMBERS[v], y) for v in CHAIN for y in YEARS for k in range(n)]
    rows += [(1, 1, 2008), (1, 1, 2015), (5, 1, 2010), (0, 1, 2010), (2, -1, 2010)]
    kind, view, year = np.array(rows).T
    rng = np.random.default_rng(0)
    x = rng.normal(size=(len(rows), 512)).astype(np.float32)
    x[:, 0], x[:, 1], x[:, 2] = kind, view, year
    order = rng.permutation(len(rows))
    return {"x": x[order], "type": kind[order], "viewpoint": view[order], "year": year[order]}


def write(folder: Path, **changes: Any) -> None:
    arrays = cars() | changes
    np.savez(folder / "features.npz", **{name: array for name, array in arrays.items() if array is not None})


# ---- the graph ----


@pytest.mark.parametrize(("kind", "edges"), [("literal", 315), ("both", 89), ("grid", 49)])
def test_related_are_who_the_paper_says(folder: Path, kind: str, edges: int) -> None:
    write(folder)
    federation = data.load("compcars", settings={"graph": kind})
    found = 0
    for (i, a), (j, b) in itertools.combinations(enumerate(federation.names), 2):
        (va, ya), (vb, yb) = a.split("-"), b.split("-")
        views, years = abs(CHAIN.index(va) - CHAIN.index(vb)), abs(int(ya) - int(yb))
        expected = {"literal": views <= 1 or years <= 1, "both": views <= 1 and years <= 1, "grid": views + years == 1}
        assert federation.graph[i, j].item() == federation.graph[j, i].item() == float(expected[kind])
        found += expected[kind]
    assert found == edges
    assert not federation.graph.diagonal().any()


# ---- features ----


def test_a_client_has_the_cars_of_its_viewpoint_and_year(folder: Path) -> None:
    write(folder)
    federation = data.load("compcars")
    assert set(federation.names) == {f"{v}-{y}" for v in CHAIN for y in YEARS}
    assert federation.task.class_names == ("MPV", "SUV", "sedan", "hatchback")
    for client in federation.clients:
        view, year = client.name.split("-")
        assert (len(client.train[1]), len(client.test[1])) == (8, 2)
        x, y = (torch.cat(parts) for parts in zip(client.train, client.test, strict=True))
        assert len({tuple(row.tolist()) for row in x}) == 10
        assert (x[:, 0] == y + 1).all() and (x[:, 1] == NUMBERS[view]).all() and (x[:, 2] == int(year)).all()
        own = [row for row in cars()["x"] if (row[1], row[2]) == (NUMBERS[view], int(year)) and 1 <= row[0] <= 4]
        for number, row in zip(client.test_rows.tolist(), client.test[0], strict=True):
            assert np.array_equal(own[number], row.numpy())


def test_lots_depend_on_seed_and_client(folder: Path) -> None:
    write(folder)
    parts = [[c.test_rows.tolist() for c in data.load("compcars", seed=seed).clients] for seed in (0, 0, 1)]
    assert parts[0] == parts[1] != parts[2]
    assert len({tuple(rows) for rows in parts[0]}) > 1


def test_the_default_model_is_the_small_one_on_features() -> None:
    chosen = resolve({"data": "compcars"}).model
    network = models.build(chosen.name, (512,), 4, chosen.settings)
    assert sum(p.numel() for p in network.parameters()) == 33_092


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no years": ({"year": None}, "no array `year`; its arrays are x, type, viewpoint"),
    "images": ({"x": np.zeros((305, 3, 8, 8))}, "not a row of finite features"),
    "whole numbers": ({"x": np.zeros((305, 512), int)}, "not a row of finite features"),
    "gaps": ({"x": cars()["x"] * np.nan}, "not a row of finite features"),
    "fewer types": ({"type": cars()["type"][:9]}, "`type` that is not 305 whole numbers"),
    "years with fractions": ({"year": cars()["year"] / 2}, "`year` that is not 305 whole numbers"),
    "nobody of one kind": ({"viewpoint": np.ones(305, int)}, "has 0 samples of client FS-2009"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_features_that_cannot_be_are_named(folder: Path, fault: str) -> None:
    changes, sentence = FAULTS[fault]
    write(folder, **changes)
    with pytest.raises(DataError, match=sentence) as raised:
        data.load("compcars")
    assert str(raised.value).startswith(str(folder / "features.npz"))


def test_what_is_missing_is_asked_for(folder: Path) -> None:
    with pytest.raises(DataError, match="features.npz is missing. Its authors give it to those who sign"):
        data.load("compcars")
    write(folder)
    with pytest.raises(FederationError, match="has 30 clients: leave out data.clients = 5"):
        data.load("compcars", clients=5)


# ---- photographs ----


def photographs(folder: Path, n: int = 5) -> None:
    """The original's folders: each photograph is of one colour, which tells type, viewpoint and year."""
    image = pytest.importorskip("PIL.Image")
    root = folder / "data"
    (root / "misc").mkdir(parents=True)
    lines = ["model_id maximum_speed displacement door_number seat_number type"]
    lines += [f"{model} 200 1.8 5 5 {kind}" for model, kind in zip(range(11, 17), (1, 2, 3, 4, 7, 0), strict=True)]
    (root / "misc" / "attributes.txt").write_text("\r\n".join(lines) + "\r\n")
    for k, (view, year) in itertools.product(range(n), itertools.product([*NUMBERS.values(), -1], [2008, *YEARS])):
        model = 11 + k % 6
        colour = (10 * (model - 10), 20 * view + 30, year - 2000)
        place = Path("7") / str(model) / str(year)
        for part in ("image", "label"):
            (root / part / place).mkdir(parents=True, exist_ok=True)
        image.new("RGB", (90, 60), colour).save(root / "image" / place / f"v{view}-{k}.jpg", quality=100)
        (root / "label" / place / f"v{view}-{k}.txt").write_text(f"{view}\n1\n1 1 80 50\n")


def test_the_original_folders_are_read(folder: Path) -> None:
    photographs(folder)
    federation = data.load("compcars")
    assert federation.task.inputs == (3, 64, 64) and len(federation) == 30
    for client in federation.clients:
        view, year = client.name.split("-")
        x, y = (torch.cat(parts) for parts in zip(client.train, client.test, strict=True))
        assert sorted(y.tolist()) == [0, 1, 2, 3], "a type that is none of the four is left out"
        red, green, blue = ((x * 0.5 + 0.5) * 255).mean((2, 3)).T
        assert torch.allclose(red, 10.0 * (y + 1), atol=3)
        assert torch.allclose(green, torch.tensor(20.0 * NUMBERS[view] + 30), atol=3)
        assert torch.allclose(blue, torch.tensor(float(year) - 2000), atol=3)
    models.check(models.build("cnn", federation.task.inputs, 4, {}), federation.task.inputs, 4)


def test_features_are_preferred_to_photographs(folder: Path) -> None:
    photographs(folder)
    write(folder)
    assert data.load("compcars").task.inputs == (512,)


def test_damaged_folders_are_named(folder: Path) -> None:
    photographs(folder)
    label = folder / "data" / "label" / "7" / "11" / "2010" / "v1-0.txt"
    picture = folder / "data" / "image" / "7" / "11" / "2010" / "v1-0.jpg"
    attributes = folder / "data" / "misc" / "attributes.txt"
    for path, content, sentence in (
        (picture, b"\xff\xd8 no picture", "cannot be read as an image"),
        (label, b"9\n", "does not begin with a viewpoint from 1 to 5, or -1: '9'"),
        (label, b"", "does not begin with a viewpoint"),
        (attributes, b"model_id type\n11 3\n12\n", "line 3 is not a row of model_id, type: '12'"),
        (attributes, b"model_id type\n11 sedan\n", "line 2 is not a row"),
        (attributes, b"11 3\n", "does not begin with a line that names model_id and type"),
        (attributes, b"", "does not begin with a line that names model_id and type"),
    ):
        kept = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(DataError, match=sentence) as raised:
            data.load("compcars")
        assert str(raised.value).startswith(str(path))
        path.write_bytes(kept)
    label.unlink()
    with pytest.raises(DataError, match="which tells a photograph's viewpoint, cannot be read"):
        data.load("compcars")


def test_thirty_clients() -> None:
    assert len(compcars.CLIENTS) == 30
