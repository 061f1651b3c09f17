"""PEMS-BAY as users bring it: every form gives the same federation, and what is wrong with a file is said."""

from __future__ import annotations

import os
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin import data
from fedkin.data import roads
from fedkin.data.files import DataError
from fedkin.data.sets import pems_bay

IDS = ["400001", "400017", "400030", "400040"]
DIRECTED = np.array(
    [[1, 0.4, 0, 0], [0.2, 1, 0.9, 0], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=np.float32
)  # the last sensor is isolated
GRAPH = np.array([[0, 0.4, 0, 0], [0.4, 0, 0.9, 0], [0, 0.9, 0, 0], [0, 0, 0, 0]], dtype=np.float32)


def speeds() -> np.ndarray:
    rng = np.random.default_rng(1)
    speed = rng.uniform(30, 80, (150, 4)).round(1)
    speed[rng.random(speed.shape) < 0.05] = 0
    return speed.astype(np.float32)


TIMES = np.datetime64("2017-01-01T00:00") + 5 * np.arange(150).astype("timedelta64[m]")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    monkeypatch.delitem(sys.modules, "h5py", raising=False)
    (tmp_path / "pems-bay").mkdir()
    return tmp_path / "pems-bay"


def write_speeds(folder: Path, **changes: Any) -> None:
    arrays = {"speed": speeds(), "ids": np.array(IDS), "times": TIMES} | changes
    np.savez(folder / "pems-bay.npz", **{name: array for name, array in arrays.items() if array is not None})


def write_graph(folder: Path, **changes: Any) -> None:
    arrays = {"adjacency": DIRECTED, "ids": np.array(IDS)} | changes
    np.savez(folder / "adjacency.npz", **{name: array for name, array in arrays.items() if array is not None})


def load(**settings: Any):
    return data.load("pems_bay", settings=settings)


# ---- the forms ----


def test_arrays_become_a_federation_like_metr_las(folder: Path) -> None:
    write_speeds(folder)
    write_graph(folder)
    federation = load()
    assert set(federation.names) == set(IDS) and federation.task.inputs == (24, 2)
    order = [IDS.index(name) for name in federation.names]
    assert np.array_equal(federation.graph.numpy(), GRAPH[np.ix_(order, order)])
    assert federation.notes == ("pems-bay.npz has 4 sensors and 150 steps; PEMS-BAY as published has 325 and 52,116.",)
    first = next(client for client in federation.clients if client.name == IDS[0])
    scale, low = first.preprocessing.scale[0], first.preprocessing.mean[0]
    assert torch.allclose(first.train[0][7, :12, 0] * scale + low, torch.from_numpy(speeds()[7:19, 0]), atol=1e-4)
    assert first.train[0][7, 3, 1].item() == pytest.approx(10 * 5 / 1440)


def test_as_many_as_published_need_no_word(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(pems_bay, "SENSORS", 4)
    monkeypatch.setattr(pems_bay, "STEPS", 150)
    write_speeds(folder)
    write_graph(folder)
    assert load().notes == ()


def test_coded_speeds_are_the_same_speeds(folder: Path) -> None:
    write_graph(folder)
    write_speeds(folder)
    plain = pems_bay.load()
    values, codes = np.unique(speeds().T, return_inverse=True)
    write_speeds(folder, speed=None, values=values, codes=codes.reshape(4, 150).astype(np.uint16))
    assert np.array_equal(pems_bay.load().speed, plain.speed)


def test_a_missing_reading_may_be_nan(folder: Path) -> None:
    write_graph(folder)
    speed = speeds()
    write_speeds(folder, speed=np.where(speed == 0, np.nan, speed))
    assert np.array_equal(pems_bay.load().speed, speed.astype(float))


def test_a_clock_that_is_put_forward_is_seen_in_the_times(folder: Path) -> None:
    """In the night to 12 March 2017 there is no hour from two to three: steps alone would be an hour late after it."""
    write_graph(folder)
    times = TIMES.copy()
    times[24:] += np.timedelta64(60, "m")
    write_speeds(folder, times=times)
    assert pems_bay.load().time_of_day[[23, 24]].tolist() == pytest.approx([115 / 1440, 180 / 1440])
    write_speeds(folder, times=None)
    found = pems_bay.load()
    assert found.time_of_day[[23, 24]].tolist() == pytest.approx([115 / 1440, 120 / 1440])
    assert "has no `times`: the time of day is counted from 2017-01-01 00:00" in found.notes[0]


def test_a_graph_of_more_sensors_in_another_order_is_put_in_order(folder: Path) -> None:
    write_speeds(folder)
    order = [3, 1, 0, 2]
    larger = np.zeros((5, 5), dtype=np.float32)
    larger[:4, :4] = DIRECTED[np.ix_(order, order)]
    larger[4] = 1
    write_graph(folder, adjacency=larger, ids=np.array([IDS[i] for i in order] + ["999"]))
    assert np.array_equal(pems_bay.load().graph, GRAPH)


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8"])
def test_dcrnns_pickle_is_read_without_running_it(folder: Path, protocol: int, kind: str) -> None:
    write_speeds(folder)
    content = [IDS, {name: i for i, name in enumerate(IDS)}, DIRECTED.astype(kind)]
    (folder / "adj_mx_bay.pkl").write_bytes(pickle.dumps(content, protocol))
    assert np.array_equal(pems_bay.load().graph, GRAPH)


def python2(thing: Any) -> bytes:
    """As Python 2 pickled it: text as byte strings, arrays by numpy.core."""
    if isinstance(thing, np.ndarray):
        name = thing.dtype.str[1:].encode()
        head = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR(K\x01(" + b"".join(
            b"K" + bytes([n]) for n in thing.shape
        )
        kind = (
            b"tcnumpy\ndtype\n(U"
            + bytes([len(name)])
            + name
            + b"K\x00K\x01tR(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        )
        body = thing.tobytes()
        return head + kind + b"\x89T" + len(body).to_bytes(4, "little") + body + b"tb"
    if isinstance(thing, list):
        return b"](" + b"".join(map(python2, thing)) + b"e"
    if isinstance(thing, dict):
        return b"}(" + b"".join(python2(k) + python2(v) for k, v in thing.items()) + b"u"
    if isinstance(thing, str):
        return b"U" + bytes([len(thing)]) + thing.encode()
    return b"K" + bytes([thing])


def test_the_pickle_that_python_2_wrote_is_read(folder: Path) -> None:
    write_speeds(folder)
    content = b"\x80\x02" + python2([IDS, {name: i for i, name in enumerate(IDS)}, DIRECTED]) + b"."
    assert np.array_equal(pickle.loads(content, encoding="latin1")[2], DIRECTED), "our imitation is right"
    (folder / "adj_mx_bay.pkl").write_bytes(content)
    assert np.array_equal(pems_bay.load().graph, GRAPH)


class Evil:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def test_nothing_in_a_pickle_is_run(folder: Path, tmp_path: Path) -> None:
    write_speeds(folder)
    for content in ([IDS, {}, Evil(f"touch {tmp_path / 'evil'}")], Evil(f"touch {tmp_path / 'evil'}")):
        (folder / "adj_mx_bay.pkl").write_bytes(pickle.dumps(content, 2))
        with pytest.raises(DataError, match=r"adj_mx_bay.pkl asks for (posix|nt).system, .* nothing of it was run"):
            load()
        assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("head", ["", "from,to,cost\n"])
def test_road_distances_become_dcrnns_kernel(folder: Path, head: str) -> None:
    write_speeds(folder)
    ways = {
        (0, 0): 0.0,
        (1, 1): 0.0,
        (2, 2): 0.0,
        (3, 3): 0.0,
        (0, 1): 800.0,
        (1, 0): 650.0,
        (1, 2): 90.5,
        (0, 2): 5000.0,
    }
    lines = [f"{IDS[i]},{IDS[j]},{cost}" for (i, j), cost in ways.items()] + ["1,400001,7", "400001,1,9"]
    (folder / "distances_bay_2017.csv").write_text(head + "\n".join(lines) + "\n")
    deviation = np.std(list(ways.values()))
    expected = np.zeros((4, 4))
    for (i, j), cost in ways.items():
        weight = np.exp(-((cost / deviation) ** 2))
        if i != j and weight >= 0.1:
            expected[i, j] = expected[j, i] = max(weight, expected[i, j])
    assert expected[0, 2] == 0 and np.count_nonzero(expected) == 4
    assert np.allclose(pems_bay.load().graph, expected, atol=1e-7)


# ---- HDF ----


class Hdf(dict[str, Any]):
    """As much of h5py's groups as is used: a mapping, and arrays behind [()]."""

    def __enter__(self) -> Hdf:
        return self

    def __exit__(self, *error: object) -> None: ...


class Dataset:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __getitem__(self, key: object) -> np.ndarray:
        assert key == ()
        return self.array


def hdf(monkeypatch, folder: Path, groups: dict[str, dict[str, np.ndarray]]) -> None:
    (folder / "pems-bay.h5").write_bytes(b"\x89HDF")
    whole = Hdf({name: Hdf({k: Dataset(v) for k, v in group.items()}) for name, group in groups.items()})
    module = types.ModuleType("h5py")
    module.File = lambda path, mode: whole  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "h5py", module)


TABLE = {
    "block0_values": speeds().astype(np.float64),
    "block0_items": np.array(IDS, dtype=np.int64),
    "axis0": np.array(IDS, dtype=np.int64),
    "axis1": TIMES.astype("datetime64[ns]").astype(np.int64),
}


@pytest.mark.parametrize("items", [np.array(IDS, dtype=np.int64), np.array(IDS, dtype="S6")], ids=["numbers", "text"])
def test_pandas_hdf_files_are_the_same_data(folder: Path, monkeypatch, items: np.ndarray) -> None:
    write_graph(folder)
    write_speeds(folder)
    arrays = pems_bay.load()
    (folder / "pems-bay.npz").unlink()
    hdf(monkeypatch, folder, {"speed": TABLE | {"block0_items": items}})
    found = pems_bay.load()
    assert found.sensors == arrays.sensors and np.array_equal(found.speed, arrays.speed)
    assert np.array_equal(found.time_of_day, arrays.time_of_day) and np.array_equal(found.graph, arrays.graph)


def test_an_hdf_file_that_is_something_else_is_named(folder: Path, monkeypatch) -> None:
    write_graph(folder)
    hdf(monkeypatch, folder, {})
    with pytest.raises(DataError, match=r"pems-bay.h5 holds 0 pandas tables"):
        load()
    hdf(monkeypatch, folder, {"df": {"block0_values": speeds()}})
    with pytest.raises(DataError, match=r"pems-bay.h5 lacks 'block0_items'"):
        load()


def test_without_h5py_it_is_said_how_to_make_arrays(folder: Path, monkeypatch) -> None:
    """And the lines that are given are right: they run here, with a reader in place of pandas' own."""
    write_graph(folder)
    (folder / "pems-bay.h5").write_bytes(b"\x89HDF")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match="pip install h5py") as raised:
        load()
    lines = str(raised.value).split("installed:\n")[1]
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(speeds(), index=pandas.DatetimeIndex(TIMES), columns=[int(name) for name in IDS])
    monkeypatch.setattr(pandas, "read_hdf", lambda path: {str(folder / "pems-bay.h5"): frame}[path])
    exec("\n".join(line.removeprefix("  ") for line in lines.splitlines()), {})
    found = pems_bay.load()
    assert found.sensors == tuple(IDS) and np.array_equal(found.speed, speeds().astype(float))
    assert found.time_of_day[30] == pytest.approx(150 / 1440)


# ---- what is wrong is said ----

SPEEDS: dict[str, tuple[dict[str, Any], str]] = {
    "no speeds": ({"speed": None}, r"no array `speed` of steps by sensors; its arrays are ids, times"),
    "no ids": ({"ids": None}, "no array `ids` that names the sensors"),
    "a table of ids": ({"ids": np.array([IDS])}, "no array `ids`"),
    "a sensor twice": ({"ids": np.array([*IDS[:3], IDS[0]])}, "names sensor 400001 more than once"),
    "the other way round": ({"speed": speeds().T}, r"shape \(4, 150\).*should be \(steps, 4\). Transpose it"),
    "other sensors": ({"speed": speeds()[:, :3]}, r"shape \(150, 3\); with 4 sensors"),
    "a cube": ({"speed": speeds()[None]}, r"shape \(1, 150, 4\)"),
    "words": ({"speed": speeds().astype(str)}, "not of numbers"),
    "a negative speed": ({"speed": speeds() - 90}, r"the speed -\d.* at step 0, sensor number 0"),
    "an infinite speed": ({"speed": speeds() + np.where(np.arange(150) == 7, np.inf, 0)[:, None]}, "inf at step 7"),
    "times of others": ({"times": TIMES[:9]}, "`times` that are not 150 dates"),
    "times as numbers": ({"times": np.arange(150)}, "`times` that are not 150 dates"),
    "a start that is none": ({"times": None, "start": np.array("noon")}, "`start` that is no date: noon"),
    "codes out of place": (
        {"speed": None, "values": np.arange(3.0), "codes": np.full((4, 150), 3)},
        "`codes` that are no places in `values`",
    ),
    "codes with fractions": ({"speed": None, "values": np.arange(3.0), "codes": np.zeros((4, 9))}, "no places"),
}


@pytest.mark.parametrize("fault", SPEEDS)
def test_speeds_that_cannot_be_are_named(folder: Path, fault: str) -> None:
    changes, sentence = SPEEDS[fault]
    write_graph(folder)
    write_speeds(folder, **changes)
    with pytest.raises(DataError, match=sentence) as raised:
        load()
    assert str(raised.value).startswith(str(folder / "pems-bay.npz"))


GRAPHS: dict[str, tuple[dict[str, Any], str]] = {
    "no adjacency": ({"adjacency": None}, "no array `adjacency`; its arrays are ids"),
    "too small": ({"adjacency": DIRECTED[:3, :3]}, r"shape \(3, 3\); of 4 sensors it should be \(4, 4\)"),
    "negative": ({"adjacency": -DIRECTED}, "negative or not finite"),
    "not a number": ({"adjacency": DIRECTED * np.nan}, "negative or not finite"),
    "of others": ({"ids": np.array(["1", "2", *IDS[2:]])}, "lacks 2 of the 4 sensors that have speeds, such as 400001"),
}


@pytest.mark.parametrize("fault", GRAPHS)
def test_graphs_that_cannot_be_are_named(folder: Path, fault: str) -> None:
    changes, sentence = GRAPHS[fault]
    write_speeds(folder)
    write_graph(folder, **changes)
    with pytest.raises(DataError, match=sentence) as raised:
        load()
    assert str(raised.value).startswith(str(folder / "adjacency.npz"))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("adj_mx_bay.pkl", pickle.dumps([IDS, {}]), "is not DCRNN's list"),
        ("adj_mx_bay.pkl", pickle.dumps([IDS, {}, DIRECTED.astype(int)], 4), "is not DCRNN's list"),
        ("adj_mx_bay.pkl", b"hello", "cannot be read"),
        (
            "distances_bay_2017.csv",
            b"from,to,cost\n400001,400017\n",
            r"line 2 is not two sensors and a distance: '400001,4",
        ),
        ("distances_bay_2017.csv", b"400001,400017,5\n400001,400017,-5\n", "line 2 is not two sensors and a distance"),
        ("distances_bay_2017.csv", b"1,2,5\n", "no way between any two of the sensors"),
        ("adjacency.npz", b"PK\x03\x04", "cannot be read as arrays"),
    ],
)
def test_files_that_are_something_else_are_named(folder: Path, name: str, content: bytes, sentence: str) -> None:
    write_speeds(folder)
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=sentence) as raised:
        load()
    assert str(raised.value).startswith(str(folder / name))


def test_what_is_missing_is_asked_for(folder: Path) -> None:
    write_speeds(folder)
    with pytest.raises(DataError, match=r"adjacency.npz is missing. github.com/liyaguang/DCRNN"):
        load()


def test_equal_distances_have_a_kernel_all_the_same() -> None:
    assert roads.kernel(np.full((2, 2), 3.0)).tolist() == [[0, 0], [0, 0]]
