"""METR-LA: windows of sensors' speeds against plain loops, and nothing of the future in what is trained on (T21)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import SHARED

import fedkin
from fedkin import data
from fedkin.base.settings import ConfigError
from fedkin.data.federation import Federation
from fedkin.data.files import DataError
from fedkin.evidence.findings import Findings
from fedkin.runs.config import resolve
from fedkin.training import models

real = pytest.mark.skipif(
    not (SHARED / "metr-la").is_dir(), reason="the data sets' files are not beside this repository, in ../shared/data"
)
STEPS, IDS = 240, ("773869", "767541", "767542")


def speeds(seed: int = 0) -> np.ndarray:
    """(240, 3) with gaps of zeros; the last fifth is much faster, so that whoever looks there shows."""
    rng = np.random.default_rng(seed)
    speed = rng.uniform(20, 60, (STEPS, len(IDS))).round(2)
    speed[rng.random(speed.shape) < 0.1] = 0
    speed[round(0.8 * STEPS) :] *= 1.5
    return speed


@pytest.fixture
def toy(tmp_path, monkeypatch) -> Path:
    """A folder with three made-up sensors in the form of the real files."""
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    (tmp_path / "metr-la").mkdir()
    write(tmp_path, speeds())
    return tmp_path


def write(folder: Path, speed: np.ndarray) -> None:
    values, codes = np.unique(speed.T, return_inverse=True)
    np.savez(
        folder / "metr-la" / "metr-la.npz",
        values=values,
        codes=codes.reshape(speed.T.shape).astype(np.uint16),
        sensor_ids=np.array(IDS),
        start=np.array("2012-03-01T00:00:00"),
        step_minutes=np.array(5),
    )
    adjacency = np.array([[1, 0.5, 0], [0.25, 1, 0], [0, 0.75, 1]], dtype=np.float32)
    np.savez(folder / "metr-la" / "adjacency.npz", adjacency=adjacency, sensor_ids=np.array(IDS))
    (folder / "metr-la" / "sensor_locations.csv").write_text("index,sensor_id,latitude,longitude\n")


def load(split: str | None = None, clients: int | None = None, seed: int = 0, **settings: Any) -> Federation:
    return data.load("metr_la", split, clients=clients, seed=seed, verify=False, settings=settings)


def named(federation: Federation) -> dict[str, fedkin.federation.Client]:
    return {client.name: client for client in federation.clients}


def at(client: fedkin.federation.Client, window: int, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = getattr(client, part)
    return x[window], y[window]


# ---- what a sample is ----


@pytest.mark.parametrize(
    ("scaling", "masked", "teacher"), list(itertools.product(("minmax", "zscore"), *[(True, False)] * 2))
)
def test_samples_are_what_a_plain_loop_cuts(toy: Path, scaling: str, masked: bool, teacher: bool) -> None:
    """Chronological: 168 steps to train on, 24 to choose by, 48 to test on."""
    speed, found = speeds(), named(load(scaling=scaling, masked=masked, teacher_forcing=teacher))
    seen = speed[: 168 - 12]  # the last window that is trained on observes steps 144 to 155
    low, scale = (seen.min(), seen.max() - seen.min()) if scaling == "minmax" else (seen.mean(), seen.std())
    for i, name in enumerate(IDS):
        for part, first, stop in (("train", 0, 168), ("validation", 168, 192), ("test", 192, 240)):
            starts = [s for s in range(STEPS) if first <= s + 12 and s + 24 <= stop]
            x, y = getattr(found[name], part)
            assert x.shape == (len(starts), 24, 2) and y.shape == (len(starts), 12)
            for window, start in enumerate(starts):
                for step in range(24):
                    truth = (speed[start + step, i] - low) / scale
                    shown = truth if step < 12 or teacher else 0
                    assert x[window, step, 0].item() == pytest.approx(shown, abs=1e-6)
                    assert x[window, step, 1].item() == pytest.approx((start + step) % 288 / 288, abs=1e-6)
                    if step >= 12:
                        gap = masked and speed[start + step, i] == 0
                        assert y[window, step - 12].item() == pytest.approx(
                            np.nan if gap else truth, abs=1e-6, nan_ok=True
                        )
        assert found[name].test_rows.tolist() == list(range(180, 217))


def test_time_of_day_may_be_left_out(toy: Path) -> None:
    both, one = load(), load(time_of_day=False)
    assert one.task.inputs == (24, 1)
    for a, b in zip(both.clients, one.clients, strict=True):
        assert torch.equal(a.train[0][..., :1], b.train[0])
        assert torch.equal(a.train[1].nan_to_num(9), b.train[1].nan_to_num(9))


def test_a_random_split_deals_all_windows_and_says_that_it_leaks(toy: Path) -> None:
    federation = load("random")
    told = " ".join(federation.notes)
    assert "shares most of its steps with training windows" in told
    for client in federation.clients:
        assert (len(client.train[1]), len(client.test[1]), client.validation) == (217 - 43, 43, None)
        # Windows are told apart by what they observe: together they are all, none is on both sides.
        rows = torch.cat([client.train[0], client.test[0]])
        everything = {tuple(row[:12, 0].tolist()) for row in rows}
        assert len(everything) == 217
    parts = [client.test_rows.tolist() for client in federation.clients]
    assert parts[0] != parts[1], "every client draws its own lots"
    again, other = load("random"), load("random", seed=1)
    assert parts == [client.test_rows.tolist() for client in again.clients]
    assert parts != [client.test_rows.tolist() for client in other.clients]
    assert not any("Random" in note for note in load().notes)


def test_strides_keep_every_so_many_th_window(toy: Path) -> None:
    whole, thin = load(), load(stride=5, test_stride=3)
    for a, b in zip(whole.clients, thin.clients, strict=True):
        assert torch.equal(a.train[0][::5], b.train[0])
        assert torch.equal(a.test[0][::3], b.test[0]) and torch.equal(a.validation[0][::3], b.validation[0])
        assert torch.equal(a.test_rows[::3], b.test_rows)


def test_the_first_sensors_and_the_first_steps_can_be_taken(toy: Path) -> None:
    few = load(clients=2, steps=130)
    assert set(few.names) == set(IDS[:2])
    assert named(few)[IDS[0]].samples == 91 - 23
    first = named(few)[IDS[0]].train[0][0, :12, 0] * few.task.target_scale + few.task.target_mean
    assert first.numpy() == pytest.approx(speeds()[:12, 0], abs=1e-4)
    assert few.graph.shape == (2, 2)


def test_the_graph_has_the_larger_weight_of_both_directions_and_no_loops(toy: Path) -> None:
    federation = load()
    expected = {frozenset(IDS[:2]): 0.5, frozenset(IDS[1:]): 0.75, frozenset((IDS[0], IDS[2])): 0.0}
    for (i, a), (j, b) in itertools.product(enumerate(federation.names), repeat=2):
        assert federation.graph[i, j].item() == (0 if a == b else expected[frozenset((a, b))])
    assert not federation.notes, "it is symmetrised before anybody could be surprised"


# ---- nothing of the future (trap T21) ----


def test_no_training_window_holds_a_step_that_is_predicted_later(toy: Path) -> None:
    """Every reading is made another number, so a window's targets tell which steps it holds."""
    marked = np.arange(1, STEPS * 3 + 1, dtype=float).reshape(STEPS, 3)
    write(toy, marked)
    federation = load()
    mean, scale = federation.task.target_mean, federation.task.target_scale

    def steps(values: torch.Tensor) -> set[int]:
        return set(
            ((values.double() * scale + mean).round().long().flatten() - 1).div(3, rounding_mode="floor").tolist()
        )

    for client in federation.clients:
        trained = steps(client.train[0][:, :12, 0]) | steps(client.train[1])
        chosen, tested = steps(client.validation[1]), steps(client.test[1])
        assert not trained & (chosen | tested) and not chosen & tested
        assert not (chosen | steps(client.validation[0][:, :12, 0])) & tested
        assert trained == set(range(168)) and chosen == set(range(168, 192)) and tested == set(range(192, 240))


@pytest.mark.parametrize("scaling", ["minmax", "zscore"])
def test_later_readings_change_nothing_that_is_trained_on(toy: Path, scaling: str) -> None:
    before = load(scaling=scaling)
    for step in (168, 191, 192, 239):
        speed = speeds()
        speed[step:] = 500 - speed[step:]
        write(toy, speed)
        after = load(scaling=scaling)
        assert (after.task.target_mean, after.task.target_scale) == (before.task.target_mean, before.task.target_scale)
        for a, b in zip(before.clients, after.clients, strict=True):
            assert a.preprocessing == b.preprocessing
            assert all(torch.equal(p.nan_to_num(9), q.nan_to_num(9)) for p, q in zip(a.train, b.train, strict=True))
            assert not torch.equal(a.test[1].nan_to_num(9), b.test[1].nan_to_num(9)), "the test itself did change"
    speed = speeds()
    speed[155] *= 3  # the last step that is observed in training
    write(toy, speed)
    assert load(scaling=scaling).task.target_scale != before.task.target_scale


def test_a_random_split_is_scaled_by_what_its_training_windows_observe(toy: Path) -> None:
    speed = speeds()
    speed[-1] = 900.0  # only ever predicted
    write(toy, speed)
    seen = [
        speed[start : start + 12, IDS.index(client.name)].max()
        for client in load("random").clients
        for start in range(217)
        if start not in client.test_rows
    ]
    assert load("random").task.target_scale == max(seen)


def test_future_speeds_are_shown_to_a_teacher_only(toy: Path) -> None:
    for client in load().clients:
        assert not client.train[0][:, 12:, 0].any() and not client.test[0][:, 12:, 0].any()
    taught = load(teacher_forcing=True)
    assert "told the true speed" in " ".join(taught.notes)
    x, y = taught.clients[0].test
    known = ~y.isnan()
    assert torch.equal(x[:, 12:, 0][known], y[known])


@pytest.mark.parametrize("told", [True, False])
def test_a_teacher_of_one_side_alone_is_refused(told: bool) -> None:
    both = {
        "data": {"name": "metr_la", "settings": {"teacher_forcing": True}},
        "model": {"settings": {"teacher": True}},
    }
    assert resolve(both).model.settings == {"hidden": 32, "teacher": True}
    half = {"data": both["data"]} if told else {"data": "metr_la", "model": both["model"]}
    with pytest.raises(
        ConfigError, match=rf"teacher_forcing = {str(told).lower()} goes with model.settings.teacher = "
    ):
        resolve(half)


# ---- task, model, run ----


def test_the_task_leaves_gaps_out_unless_told_otherwise(toy: Path) -> None:
    task = load().task
    assert (task.loss.name, task.metric.name, task.outputs) == ("masked_mse", "masked_mse", 12)
    task = load(masked=False).task
    assert (task.loss.name, task.metric.name) == ("mse", "mse")
    assert task.units == (0.0, 1.0), "errors are of scaled speeds, as the papers tell them"


@pytest.mark.parametrize(("hidden", "count"), [(32, 6_945), (100, 62_501)])
def test_the_model_has_the_papers_size(hidden: int, count: int) -> None:
    network = models.build("gru", (24, 2), 12, {"hidden": hidden})
    assert sum(p.numel() for p in network.parameters()) == count
    assert resolve({"data": "metr_la"}).model.settings == {"hidden": 32}


def test_a_run_scores_what_is_known_and_says_whether_joining_paid(toy: Path, tmp_path: Path) -> None:
    """A client whose test targets are all missing has no score; gaps break nothing on the way to the tables."""
    speed = speeds()
    speed[192:, 1] = 0
    write(toy, speed)
    settings = {
        "rounds": 2,
        "device": "cpu",
        "data": {"name": "metr_la", "verify": False, "settings": {"stride": 7}},
        "model": {"settings": {"hidden": 4}},
        "local": {"steps": 2, "batch_size": 8},
    }
    runs = []
    for method in ("separate", "fedavg"):
        for seed in (0, 1):
            runs.append(fedkin.run(settings, method=method, seed=seed, out=tmp_path / f"{method}-{seed}"))
    outputs = runs[0].outputs()
    assert outputs.fitting == ("masked_rmse", "masked_mae", "masked_mse")
    for client in IDS:
        own = outputs.of(client)
        model, y = own.models["chosen"].double(), own.targets.double()
        known = ~y.isnan()
        truth = float((model - y)[known].square().mean()) if known.any() else np.nan
        found = own.metrics()[client]["chosen"]
        assert found["masked_mse"].value == pytest.approx(truth, nan_ok=True)
        assert found["masked_rmse"].value == pytest.approx(truth**0.5, nan_ok=True)
        if known.any():
            assert 0 <= found["masked_mse"].low <= truth <= found["masked_mse"].high
            assert found["masked_rmse"].low == pytest.approx(found["masked_mse"].low ** 0.5)
    found = Findings(runs)
    answer = found.worth_joining()
    assert answer.metric == "masked_mse" and answer.by_patient
    silos = {silo.client: silo for silo in answer.silos}
    assert np.isnan(silos[IDS[1]].gain.value) and silos[IDS[1]].answer == "cannot tell"
    assert all(silos[name].gain.low <= silos[name].gain.value <= silos[name].gain.high for name in (IDS[0], IDS[2]))
    assert found.scorecard is not None and set(found.scorecard.silos[IDS[0]]) == set(outputs.fitting)
    assert np.isfinite(runs[0].summary["models"]["personal"]["last"])


@pytest.mark.parametrize("method", ["separate", "scaffold"])
def test_stacked_and_one_by_one_agree_on_gaps(toy: Path, tmp_path: Path, method: str) -> None:
    """Batches of unequal size, of which some have no known target at all."""
    speed = speeds()
    speed[:100, 2] = 0
    write(toy, speed)
    settings = {
        "method": method,
        "rounds": 2,
        "device": "cpu",
        "precision": "float64",
        "data": {"name": "metr_la", "verify": False, "split": "random", "settings": {"stride": 9}},
        "model": {"settings": {"hidden": 3}},
        "local": {"steps": 0, "epochs": 1, "batch_size": 3, "optimiser": "sgd", "lr": 0.1},
    }
    found = []
    for way in ("stacked", "one-by-one"):
        run = fedkin.run(settings, execution=way, out=tmp_path / way)
        found.append([line["models"][run.summary["headline"]]["clients"] for line in run.rounds])
    assert found[0] == [pytest.approx(row, rel=1e-6) for row in found[1]]
    assert np.isfinite(np.array(found, dtype=float)).all()


# ---- what cannot be ----


def test_impossible_wishes_are_answered(toy: Path) -> None:
    with pytest.raises(DataError, match=r"metr_la has 3 sensors, so data.clients = 4 cannot be"):
        load(clients=4)
    with pytest.raises(DataError, match=r"metr_la has 240 steps, so data.settings.steps = 241 cannot be"):
        load(steps=241)
    for split, least in (("chronological", 120), ("random", 25)):
        assert load(split, steps=least).clients
        with pytest.raises(
            DataError, match=rf"steps are too few: the {split} .* data.settings.steps = {least} at least"
        ):
            load(split, steps=least - 10)
    with pytest.raises(fedkin.FedkinError, match="'chronological' or 'random', not 'practical'"):
        load("practical")
    with pytest.raises(ConfigError, match=r"data.settings.scaling = 'min'"):
        resolve({"data": {"name": "metr_la", "settings": {"scaling": "min"}}})


# ---- the real files ----


@pytest.fixture(scope="module")
def roads():
    from fedkin.data.sets import metr_la

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDKIN_DATA", str(SHARED))
        yield metr_la.load()


@real
def test_the_readings_are_the_published_ones(roads) -> None:
    assert roads.speed.shape == (34_272, 207)
    assert (round(roads.speed.mean(), 3), round(roads.speed.std(), 3)) == (53.719, 20.261)
    assert round(100 * (roads.speed == 0).mean(), 2) == 8.11
    assert roads.sensors[:3] == ("773869", "767541", "767542")
    assert roads.time_of_day[:3].tolist() == [0, 5 / 1440, 10 / 1440] and roads.time_of_day[288] == 0
    assert not roads.notes


@real
def test_the_graph_is_the_published_one(roads) -> None:
    with np.load(SHARED / "metr-la" / "adjacency.npz") as stored:
        directed = stored["adjacency"]
    edges = {frozenset((i, j)) for i, j in zip(*np.nonzero(directed), strict=True) if i != j}
    assert (roads.graph > 0).sum() == 2 * len(edges) == 2626
    assert (roads.graph.sum(0) == 0).sum() == 1, "one sensor is isolated"
    for i, j in map(sorted, list(edges)[:50]):
        assert roads.graph[i, j] == roads.graph[j, i] == max(directed[i, j], directed[j, i])


@real
def test_two_sensors_of_the_real_data(monkeypatch) -> None:
    monkeypatch.setenv("FEDKIN_DATA", str(SHARED))
    federation = data.load("metr_la", clients=2)
    assert {c.name: (c.samples, len(c.validation[1]), len(c.test[1])) for c in federation.clients} == dict.fromkeys(
        ("773869", "767541"), (23_990 - 23, 3_428 - 11, 6_854 - 11)
    )
    assert federation.clients[0].preprocessing.scale == (70.0, 1.0)
    assert len(data.load("metr_la", "random", clients=1).clients[0].train[1]) == 34_249 - round(0.2 * 34_249)


@real
@pytest.mark.slow
def test_all_sensors_load_in_reasonable_time_and_room(monkeypatch) -> None:
    import resource
    import time

    monkeypatch.setenv("FEDKIN_DATA", str(SHARED))
    begin = time.perf_counter()
    federation = data.load("metr_la")
    assert len(federation) == 207
    assert time.perf_counter() - begin < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 6e6  # kB
