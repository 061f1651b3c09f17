"""Road sensors' speeds and graphs as people have them: arrays, pandas' HDF files, DCRNN's pickles, road distances.

`read` gives one thing whatever the form, or a sentence about what is wrong with a file.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.wording import first_line
from . import pickles
from .cells import number
from .files import DataError, arrays

STEP_MINUTES = 5
CUT_OFF = 0.1
"""Weights of the Gaussian kernel below this are no edges (DCRNN)."""
CONVERT = """
  import numpy, pandas
  table = pandas.read_hdf({path!r})
  numpy.savez_compressed({target!r}, speed=table.to_numpy("float32"), ids=table.columns.to_numpy().astype("U"),
                         times=table.index.to_numpy("datetime64[s]"))"""


@dataclass(frozen=True, eq=False)
class Roads:
    """What sensors measured: speed (T, m) in miles an hour, 0 where a reading is missing; time_of_day (T,) from 0 to 1;
    graph (m, m), symmetric and without a diagonal."""

    name: str
    sensors: tuple[str, ...]
    speed: NDArray[np.float64]
    time_of_day: NDArray[np.float64]
    graph: NDArray[np.float32]
    notes: tuple[str, ...] = ()

    def first(self, steps: int, clients: int | None) -> Roads:
        """The first steps, and the first sensors in the order of the file; 0 and None: all."""
        if clients is not None and not 1 <= clients <= len(self.sensors):
            raise DataError(f"{self.name} has {len(self.sensors)} sensors, so data.clients = {clients} cannot be.")
        if steps > len(self.speed):
            raise DataError(f"{self.name} has {len(self.speed):,} steps, so data.settings.steps = {steps} cannot be.")
        t, m = steps or len(self.speed), clients or len(self.sensors)
        return replace(
            self,
            sensors=self.sensors[:m],
            speed=self.speed[:t, :m],
            time_of_day=self.time_of_day[:t],
            graph=self.graph[:m, :m],
        )


def read(name: str, speeds: Path, graph: Path, start: str) -> Roads:
    """Sensors from a file of speeds (.npz or .h5) and one of their graph (.npz, .pkl or .csv of distances).

    `start`: the time of the first step, where the file does not say.
    """
    found = _from_hdf(speeds) if speeds.suffix == ".h5" else arrays(speeds)
    sensors = _sensors(found, speeds)
    speed = _speed(found, speeds, len(sensors))
    time_of_day, notes = _time_of_day(found, speeds, len(speed), start)
    return Roads(name, sensors, speed, time_of_day, symmetric(_graph(graph, sensors)), notes)


def symmetric(adjacency: NDArray[Any]) -> NDArray[np.float32]:
    """(m, m) the larger weight of both directions, without the diagonal: a sensor is not its own neighbour."""
    graph: NDArray[np.float32] = np.maximum(adjacency, adjacency.T).astype(np.float32)
    np.fill_diagonal(graph, 0)
    return graph


def kernel(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """exp(-(d / s)²) of distances (m, m), infinite where there is no way; s is the deviation of the finite ones, and
    what is below 0.1 is 0."""
    deviation = distance[np.isfinite(distance)].std() or 1.0
    weight: NDArray[np.float64] = np.exp(-np.square(distance / deviation))
    return np.where(weight < CUT_OFF, 0.0, weight)


# ---- speeds ----


def _from_hdf(path: Path) -> dict[str, NDArray[Any]]:
    """The one table of numbers in an HDF file as pandas writes it; its pickled parts are not looked at."""
    try:
        h5py = importlib.import_module("h5py")
    except ImportError:
        lines = CONVERT.format(path=str(path), target=str(path.with_suffix(".npz")))
        raise DataError(
            f"{path} is an HDF file, and h5py, which reads it, is not installed: `pip install h5py`; or turn it into "
            f"arrays once, where pandas and tables are installed:{lines}"
        ) from None
    try:
        with h5py.File(path, "r") as file:
            tables = [group for group in file.values() if hasattr(group, "keys") and "block0_values" in group]
            if len(tables) != 1:
                raise DataError(f"{path} holds {len(tables)} pandas tables of numbers, not one.")
            found = {"speed": tables[0]["block0_values"][()], "ids": tables[0]["block0_items"][()]}
            times = np.asarray(tables[0]["axis1"][()])
    except OSError as error:
        raise DataError(f"{path} cannot be read as an HDF file ({first_line(error)}).") from None
    except KeyError as error:
        raise DataError(f"{path} lacks {error}, which a table of pandas has.") from None
    return found | ({"times": times.astype("datetime64[ns]")} if times.dtype.kind == "i" else {})


def _sensors(found: Mapping[str, NDArray[Any]], path: Path) -> tuple[str, ...]:
    given = found.get("ids", found.get("sensor_ids"))
    if given is None or given.ndim != 1:
        raise DataError(f"{path} has no array `ids` that names the sensors, one for each column of `speed`.")
    names = tuple(pickles.text(each) for each in given.tolist())
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{path} names sensor {twice[0]} more than once in `ids`.")
    return names


def _speed(found: Mapping[str, NDArray[Any]], path: Path, sensors: int) -> NDArray[np.float64]:
    """(T, sensors) from `speed`, or from `codes` (sensors, T), which point into `values`; NaN is a missing reading."""
    speed = found.get("speed")
    if speed is None and {"values", "codes"} <= set(found):
        values, codes = found["values"], found["codes"]
        if codes.dtype.kind not in "iu" or not codes.size or values.ndim != 1 or codes.max() >= len(values):
            raise DataError(f"{path} has `codes` that are no places in `values`.")
        speed = values[codes].T
    if speed is None:
        listed = ", ".join(found) or "none"
        raise DataError(f"{path} has no array `speed` of steps by sensors; its arrays are {listed}.")
    if speed.dtype.kind not in "fiu":
        raise DataError(f"{path} has a `speed` of type {speed.dtype}, not of numbers.")
    if speed.ndim != 2 or speed.shape[1] != sensors:
        turned = " Transpose it." if speed.ndim == 2 and speed.shape[0] == sensors else ""
        raise DataError(
            f"{path} has a `speed` of shape {speed.shape}; with {sensors} sensors in `ids` it should be "
            f"(steps, {sensors}).{turned}"
        )
    speed = np.nan_to_num(speed.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
    wrong = np.argwhere((speed < 0) | np.isinf(speed))
    if len(wrong):
        t, i = wrong[0]
        raise DataError(f"{path} has the speed {speed[t, i]} at step {t}, sensor number {i}; a speed is 0 or more.")
    return speed


def _time_of_day(
    found: Mapping[str, NDArray[Any]], path: Path, steps: int, start: str
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """(T,) from 0 to 1, from `times`, or counted from `start` in steps of `step_minutes`."""
    if "times" in found:
        times = found["times"]
        if times.shape != (steps,) or times.dtype.kind != "M":
            raise DataError(f"{path} has `times` that are not {steps:,} dates, one for each step of `speed`.")
        return _fraction(times), ()
    told = f"{path.name} has no `times`: the time of day is counted from {start}, in steps of five minutes."
    step = int(found.get("step_minutes", np.array(STEP_MINUTES)))
    try:
        first = np.datetime64(str(found.get("start", start)), "m")
    except ValueError:
        raise DataError(f"{path} has a `start` that is no date: {found['start']!s}.") from None
    return _fraction(first + np.arange(steps) * np.timedelta64(step, "m")), () if "start" in found else (told,)


def _fraction(times: NDArray[np.datetime64]) -> NDArray[np.float64]:
    fraction: NDArray[np.float64] = (times - times.astype("datetime64[D]")) / np.timedelta64(1, "D")
    return fraction


# ---- graphs ----


def _graph(path: Path, sensors: Sequence[str]) -> NDArray[Any]:
    """(m, m) weights of directed edges in the order of these sensors."""
    if path.suffix == ".csv":
        return kernel(_distances(path, sensors))
    if path.suffix == ".pkl":
        names, adjacency = _pickled(path)
    else:
        found = arrays(path)
        if "adjacency" not in found:
            raise DataError(f"{path} has no array `adjacency`; its arrays are {', '.join(found) or 'none'}.")
        adjacency = found["adjacency"]
        names = _sensors(found, path) if {"ids", "sensor_ids"} & set(found) else tuple(sensors)
    m = len(names)
    if adjacency.shape != (m, m) or adjacency.dtype.kind not in "fiub":
        raise DataError(f"{path} has an adjacency of shape {adjacency.shape}; of {m} sensors it should be ({m}, {m}).")
    if not np.isfinite(adjacency).all() or (adjacency < 0).any():
        raise DataError(f"{path} has weights that are negative or not finite; 0 means that there is no edge.")
    place = {name: i for i, name in enumerate(names)}
    lacking = [name for name in sensors if name not in place]
    if lacking:
        raise DataError(
            f"{path} lacks {len(lacking)} of the {len(sensors)} sensors that have speeds, such as {lacking[0]}: it is "
            "the graph of others."
        )
    at = [place[name] for name in sensors]
    chosen: NDArray[Any] = adjacency[np.ix_(at, at)]
    return chosen


def _pickled(path: Path) -> tuple[tuple[str, ...], NDArray[Any]]:
    """DCRNN's pickle: a list of sensor ids, {id: place}, and the matrix."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    found = pickles.load(content, path)
    if isinstance(found, list | tuple) and len(found) == 3 and isinstance(found[0], list):
        matrix = found[2].values if isinstance(found[2], pickles.Array) else None
        if matrix is not None:
            return tuple(pickles.text(name) for name in found[0]), matrix
    raise DataError(f"{path} is not DCRNN's list of sensor ids, their places, and a matrix of floating-point numbers.")


def _distances(path: Path, sensors: Sequence[str]) -> NDArray[np.float64]:
    """(m, m) road distances from a table of from, to and distance, with or without a first line of names; infinite
    where it says none. Ways of other sensors are passed over."""
    place = {name: i for i, name in enumerate(sensors)}
    distance = np.full((len(sensors), len(sensors)), np.inf)
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            rows = list(csv.reader(file))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    for line, row in enumerate(rows, 1):
        cost = number(row[2]) if len(row) == 3 else None
        if row and (cost is None or not 0 <= cost < np.inf) and line > 1:
            raise DataError(f"{path}, line {line} is not two sensors and a distance: {','.join(row)[:60]!r}.")
        if cost is not None and row[0] in place and row[1] in place:
            distance[place[row[0]], place[row[1]]] = cost
    if not np.isfinite(distance[~np.eye(len(sensors), dtype=bool)]).any():
        raise DataError(f"{path} has no way between any two of the sensors that have speeds: it is of others.")
    return distance
