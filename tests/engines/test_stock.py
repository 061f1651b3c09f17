"""What runs train on: targets as their loss wants them, survival with whole silos as batches, and tables that are
prepared by what silos share, or by a silo that is alone."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import DEVICE, at
from torch import Tensor

import fedkin
from fedkin.base.settings import ConfigError
from fedkin.base.task import Task
from fedkin.data.federation import Federation, FederationError
from fedkin.data.ranges import without_ranges
from fedkin.data.table import TableError
from fedkin.engines import stock
from fedkin.engines.simulation import Interrupted
from fedkin.engines.start import prepare
from fedkin.runs.config import resolve
from fedkin.training.choose import choose

SEEN: list[Tensor] = []


def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss of one's own, which remembers what it was given."""
    if not torch._C._functorch.is_batchedtensor(targets):  # type: ignore[attr-defined]
        SEEN.append(targets.detach().cpu())
    return (outputs.flatten() - targets.flatten()).abs()


def pinball(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of targets that are wider than outputs: an amount, and how much it counts."""
    return (targets[:, 1] * (outputs[:, 0] - targets[:, 0]).abs()).mean()


pinball.lower_is_better = True  # type: ignore[attr-defined]


# Targets of a loss of one's own


def amounts(path: Path) -> Path:
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["clinic", "age", "cost"])
        writer.writerows([f"c{i % 2}", round(rng.normal(50, 9), 2), cost] for i, cost in enumerate(COSTS))
    return path


COSTS = [0, 1234.5, 3, *np.random.default_rng(1).integers(0, 90_000, 57).tolist()]
TABLE = {"client": "clinic", "target": "cost", "task": "regression"}


def targets_seen(**settings: Any) -> set[float]:
    SEEN.clear()
    ready = prepare(method="separate", device="cpu", execution="one-by-one", rounds=1, **settings)
    ready.cohort.fit(ready.problem.initial.expand(len(ready.problem), -1).clone(), at(1))
    return set(torch.cat(SEEN).tolist())


@pytest.mark.parametrize("read", ["by name", "as an object"])
def test_a_loss_of_ones_own_gets_targets_as_they_are(tmp_path: Path, read: str) -> None:
    """To the last digit: 0 is 0, which a loss may ask for. Losses of ours have them scaled, as before."""
    path = amounts(tmp_path / "costs.csv")
    given: dict[str, Any] = {"data": str(path), "table": TABLE}
    if read == "as an object":
        given = {"federation": Federation.from_table(path, **TABLE)}
    found = targets_seen(loss=absolute, precision="float64", **given)
    assert found <= set(map(float, COSTS))
    ready = prepare(method="separate", loss=absolute, metric=None, **given)
    assert (ready.problem.task.target_mean, ready.problem.task.target_scale) == (0, 1)
    ours = prepare(method="separate", **given)
    assert float(ours.cohort.train.y.abs().max()) < 5
    assert ours.problem.task.target_scale > 1000


def test_unless_that_is_asked_for(tmp_path: Path) -> None:
    path = amounts(tmp_path / "costs.csv")
    scaled = {**TABLE, "scale_target": "standard"}
    assert max(map(abs, targets_seen(loss=absolute, data=str(path), table=scaled))) < 5
    plain = prepare(method="separate", data=str(path), table={**TABLE, "scale_target": "none"})
    assert float(plain.cohort.train.y.max()) > 1000


def test_predictions_with_a_loss_of_ones_own_are_in_the_targets_units(tmp_path: Path) -> None:
    path = amounts(tmp_path / "costs.csv")
    run = fedkin.run(data=str(path), table=TABLE, loss=absolute, method="separate", rounds=1, out=tmp_path / "run")
    model = run.saved("c0")
    assert (model.task.target_mean, model.task.target_scale) == (0, 1)


def wide() -> Federation:
    rng = np.random.default_rng(2)
    silos = {name: (rng.normal(size=(40, 3)), rng.random((40, 2))) for name in "ab"}
    return Federation.from_arrays(silos, Task.regression((3,), 1))


def test_targets_may_be_wider_than_outputs(tmp_path: Path) -> None:
    found = fedkin.compare(
        methods=["separate", "fedavg"],
        federation=wide(),
        loss=pinball,
        metric=pinball,
        rounds=2,
        out=tmp_path / "runs",
    )
    assert all(np.isfinite(row.last) for row in found.rows())
    assert found.worth_joining().metric.endswith("pinball"), "their own metric can tell, and none of ours"
    assert found.findings.scorecard is None
    assert found.report().exists()


@pytest.mark.parametrize(("given", "name"), [({"metric": pinball}, "mse"), ({"loss": pinball}, "mse")])
def test_what_compares_them_one_by_one_is_refused_then(given: dict[str, Any], name: str) -> None:
    """(n, 1) less (n, 2) would silently be something."""
    with pytest.raises(
        ConfigError, match=f"{name} compares outputs with targets one by one, and here there are 1 and 2"
    ):
        prepare(federation=wide(), method="separate", **given)


# Rare classes


def rare(share: float, classes: int = 2) -> Federation:
    """Two silos of 200 rows, of which this share is not of class 0."""
    silos = {}
    for i, name in enumerate("ab"):
        rng = np.random.default_rng(i)
        y = np.zeros(200, dtype=int)
        y[: round(200 * share)] = 1 + np.arange(round(200 * share)) % (classes - 1)
        silos[name] = (rng.normal(size=(200, 3)), y)
    return Federation.from_arrays(silos)


def of_accuracy(ready: Any) -> list[str]:
    return [told for told in ready.warnings if "accuracy" in told]


def test_an_accuracy_that_the_most_frequent_class_has_is_told() -> None:
    """With 3 % positives all methods had 97 %, and seemed good."""
    assert of_accuracy(prepare(federation=rare(0.03), method="separate")) == [
        "Of all rows 97 % are of the class '0': a model that always says so has this accuracy, and has learned "
        "nothing. --metric auc (learning.metric = 'auc') tells whether the other is seen."
    ]
    (several,) = of_accuracy(prepare(federation=rare(0.1, classes=4), method="separate"))
    assert several.startswith("Of all rows 90 % are of the class '0'")
    assert several.endswith("--metric balanced_accuracy (learning.metric = 'balanced_accuracy') counts all alike.")


@pytest.mark.parametrize("metric", ["auc", "balanced_accuracy", "log_loss"])
def test_nothing_is_told_of_another_metric_or_of_classes_that_are_not_rare(metric: str) -> None:
    assert of_accuracy(prepare(federation=rare(0.03), method="separate", learning={"metric": metric})) == []
    assert of_accuracy(prepare(federation=rare(0.15), method="separate")) == []


def test_it_stands_in_the_summary_and_on_the_page(tmp_path: Path) -> None:
    results = fedkin.compare(methods=["separate", "fedavg"], federation=rare(0.03), rounds=1, out=tmp_path / "runs")
    assert all("Of all rows 97 %" in " ".join(run.summary.notes) for run in results.runs)
    assert results.report().read_text().count("Of all rows 97 %") == 1


# Survival


def lives(sizes: tuple[int, ...] = (40, 31, 22), events: float = 0.5, silent: str = "") -> Federation:
    silos = {}
    for i, n in enumerate(sizes):
        rng = np.random.default_rng(i)
        x, name = rng.normal(size=(n, 4)), f"s{i}"
        y = np.stack([rng.integers(1, 30, n) * np.exp(-x[:, 0]), rng.random(n) < events * (name != silent)], 1)
        silos[name] = (x, y)
    return Federation.from_arrays(silos, "survival", test_fraction=0.3)


@pytest.mark.parametrize("method", ["fedavg", "fedamp", "apfl", "perfedavg", "scaffold"])
def test_side_by_side_and_one_by_one_silos_of_any_size_train_alike(method: str, tmp_path: Path) -> None:
    found = []
    for execution in ("stacked", "one-by-one"):
        settings = {"execution": execution, "precision": "float64", "device": DEVICE.type, "rounds": 3}
        run = fedkin.run(federation=lives(), method=method, out=tmp_path / execution, **settings)
        assert run.config["execution"] == execution
        tensors, _ = run.model("s0")
        found.append(torch.cat([t.flatten() for t in tensors.values()]))
    torch.testing.assert_close(*found, rtol=1e-7, atol=1e-9)


def test_silos_of_any_size_are_padded_and_that_changes_nothing() -> None:
    settings = {"execution": "stacked", "precision": "float64", "device": DEVICE.type}
    ready = prepare(federation=lives(), method="fedavg", **settings)
    W = ready.problem.initial.expand(3, -1) + torch.linspace(0, 1, 5, dtype=torch.float64, device=DEVICE)
    assert ready.execution.pads
    padded = ready.cohort.fit(W, at(1))
    ready.execution.pads = False
    torch.testing.assert_close(padded, ready.cohort.fit(W, at(1)), rtol=1e-9, atol=1e-12)


def test_a_model_is_tried_on_patients_who_had_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one all gradients are nothing, and any way to stack would seem right."""
    tried = list[Tensor]()

    def watched(*given: Any) -> Any:
        tried.append(given[4])
        return choose(*given)

    monkeypatch.setattr(stock, "choose", watched)
    prepare(federation=lives((60, 50, 40), events=0.2, silent="s0"), method="fedavg")
    assert [int(y[:, 1].sum()) for y in tried] == [4]


def test_a_batch_is_the_whole_silo_unless_something_else_is_said(tmp_path: Path) -> None:
    ready = prepare(federation=lives(), method="fedavg")
    assert {len(set(batch.counts) & set(ready.cohort.samples)) for batch in ready.cohort.batches(at(1))} == {3}
    assert not [told for told in ready.warnings if "batch" in told]
    table = {"client": "h", "time": "days", "event": "died"}
    named = resolve({"data": str(tmp_path / "x.csv"), "table": table})
    assert named.local == ready.config.local
    assert named.model.name == ready.config.model.name == "logistic"
    smaller = resolve({"data": str(tmp_path / "x.csv"), "table": table, "local": {"batch_size": 64}, "model": "mlp"})
    assert (smaller.local.batch_size, smaller.model.name) == (64, "mlp")


def test_small_batches_and_silos_without_events_are_told() -> None:
    ready = prepare(federation=lives(silent="s1"), method="fedavg", local={"batch_size": 8})
    told = " ".join(ready.warnings)
    assert "1 of 3 clients have no event to learn from: s1." in told
    assert "With local.batch_size = 8 a batch of 's0' has" in told


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"learning": {"loss": "mse"}}, "The loss 'mse' is not for survival; take cox"),
        ({"learning": {"metric": "rmse"}}, "is for regression, but this task is survival"),
        ({"local": {"class_weights": "balanced"}}, "class_weights are for classification"),
    ],
)
def test_what_is_not_for_survival_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        prepare(federation=lives(), method="fedavg", **given)


def test_cox_is_for_survival_alone() -> None:
    with pytest.raises(ConfigError, match="The loss 'cox' is not for classification"):
        prepare(method="fedavg", data="digits", learning={"loss": "cox"})


def test_without_events_to_test_on_nobody_has_a_c_index() -> None:
    with pytest.raises(FederationError, match="nobody would have a C-index"):
        prepare(federation=lives(events=0.0), method="fedavg")


# Alone is alone


def silos(others: float = 1.0, rows: int = 60, law: float = 1.0) -> pd.DataFrame:
    """Three silos of one law; the numbers of b and c are this many times as large."""
    rng, parts = np.random.default_rng(7), []
    for name in "abc":
        x = rng.normal(6, 1, rows)
        answers = np.where(law * (x - 6) + 0.5 * rng.normal(size=rows) > 0, "yes", "no")
        frame = pd.DataFrame({"silo": name, "glucose": x * (1 if name == "a" else others), "y": answers})
        parts.append(frame.assign(age=rng.normal(60, 9, rows).round(1)))
    return pd.concat(parts, ignore_index=True)


READ: dict[str, Any] = {
    "from a file": lambda frame, path: {
        "data": str((frame.to_csv(path, index=False), path)[1]),
        "table": {"client": "silo", "target": "y"},
    },
    "as an object": lambda frame, path: {"federation": Federation.from_table(frame, "silo", "y")},
    "by a function of the seed": lambda frame, path: {
        "federation": lambda seed: Federation.from_table(frame, "silo", "y", seed=seed)
    },
}
QUICK: dict[str, Any] = {"rounds": 3, "model": {"name": "logistic"}, "local": {"epochs": 1}}


@pytest.mark.parametrize("read", READ)
def test_what_others_measure_changes_nothing_for_who_trains_alone(tmp_path: Path, read: str) -> None:
    """It did: a silo was scaled by the means and deviations of all, so that in another's units it was hurt."""
    models = []
    for others in (1.0, 18.0):
        given = READ[read](silos(others), tmp_path / f"{others}.csv")
        run = fedkin.run(method="separate", out=tmp_path / f"{others}", **QUICK, **given)
        assert run.config["table"]["statistics"] == "own"
        models.append(torch.cat([t.flatten() for t in run.model("a")[0].values()]))
    assert torch.equal(*models)


@pytest.mark.parametrize("read", READ)
def test_who_joins_is_prepared_by_what_silos_share(tmp_path: Path, read: str) -> None:
    given = READ[read](silos(18.0), tmp_path / "t.csv")
    shared = prepare(method="fedavg", **given)
    assert shared.config.table.statistics == "shared"
    assert len({without_ranges(c.preprocessing) for c in shared.federation.clients}) == 1
    own = prepare(method="separate", **given)
    assert len({without_ranges(c.preprocessing) for c in own.federation.clients}) == 3
    for ready in (shared, own):
        assert all(client.as_read is None for client in ready.federation.clients), "what is not needed is not kept"


@pytest.mark.parametrize("statistics", ["shared", "own"])
def test_what_was_said_of_statistics_holds_for_who_trains_alone_too(tmp_path: Path, statistics: str) -> None:
    frame = silos(18.0)
    frame.to_csv(tmp_path / "t.csv", index=False)
    said = {"table": {"client": "silo", "target": "y", "statistics": statistics}}
    made = Federation.from_table(frame, "silo", "y", statistics=statistics)
    asked = {"federation": Federation.from_table(frame, "silo", "y"), "table": {"statistics": statistics}}
    for given in ({"data": str(tmp_path / "t.csv"), **said}, {"federation": made}, asked):
        both = [prepare(method=method, **given) for method in ("separate", "fedavg")]
        assert {ready.config.table.statistics for ready in both} == {statistics}, "and is recorded"
        assert torch.equal(*(ready.cohort.train.x for ready in both))
    other = "own" if statistics == "shared" else "shared"
    with pytest.raises(FederationError, match=f"'{other}', but the federation was made with statistics='{statistics}'"):
        prepare(method="fedavg", federation=made, table={"statistics": other})


def test_alone_in_another_unit_is_as_good_as_alone_in_ones_own(tmp_path: Path) -> None:
    """80 % became 56 %, which flattered joining."""
    results = fedkin.compare(
        methods=["separate", "fedavg"], federation=Federation.from_table(silos(18.0, 240), "silo", "y"), out=tmp_path
    )
    told = results.worth_joining()
    assert [silo.client for silo in told.silos] == ["a", "b", "c"], "and both were tested on the same samples"
    assert min(silo.alone.value for silo in told.silos) > 0.75
    assert min(silo.personal.value for silo in told.silos) < 0.7, "in its units a is lost among the others"


def test_amounts_are_scaled_alike_whoever_trains(tmp_path: Path) -> None:
    frame = silos(18.0).assign(cost=lambda f: 100 * f["age"] + 7 * f["glucose"])
    found = fedkin.compare(
        methods=["separate", "fedavg"],
        federation=Federation.from_table(frame, "silo", "cost", ignore="y"),
        out=tmp_path / "runs",
        **QUICK,
    )
    assert len(found.worth_joining().silos) == 3
    tasks = [run.saved("a").task for run in found.runs]
    assert tasks[0].target_mean == tasks[1].target_mean and tasks[0].target_scale == tasks[1].target_scale


def test_a_model_that_was_trained_alone_carries_its_own_preparation(tmp_path: Path) -> None:
    frame = silos(18.0)
    found = fedkin.compare(
        methods=["separate", "fedavg"], federation=Federation.from_table(frame, "silo", "y"), out=tmp_path, **QUICK
    )
    alone, joined = found.runs
    means = {
        (run.summary.method, name): run.saved(name).preprocessing.columns[1].mean
        for run in (alone, joined)
        for name in "ab"
    }
    assert means["separate", "a"] == pytest.approx(6, abs=0.5) and means["separate", "b"] == pytest.approx(108, abs=5)
    assert means["fedavg", "a"] == means["fedavg", "b"]
    assert len(alone.predict("b", frame[frame["silo"] == "b"].drop(columns=["silo", "y"])).labels) == 60


def test_a_run_goes_on_with_what_it_began_with(tmp_path: Path) -> None:
    """A run of before, whose configuration says shared, is not prepared anew."""
    federation = Federation.from_table(silos(18.0), "silo", "y")
    calls = iter([False, True])
    with pytest.raises(Interrupted):
        fedkin.run(
            method="separate",
            federation=federation,
            table={"statistics": "shared"},
            out=tmp_path / "run",
            listener=fedkin.Listener(stop=lambda: next(calls, True)),
            **QUICK,
        )
    run = fedkin.resume(tmp_path / "run", federation=federation)
    whole = fedkin.run(
        method="separate", federation=federation, table={"statistics": "shared"}, out=tmp_path / "whole", **QUICK
    )
    assert run.config["table"]["statistics"] == "shared"
    assert all(torch.equal(one, whole.model("a")[0][name]) for name, one in run.model("a")[0].items())


def test_medians_are_of_single_silos_which_suits_who_trains_alone(tmp_path: Path) -> None:
    silos().to_csv(tmp_path / "t.csv", index=False)
    given = {"data": str(tmp_path / "t.csv"), "table": {"client": "silo", "target": "y", "fill": "median"}}
    assert prepare(method="separate", **given).config.table.statistics == "own"
    with pytest.raises(TableError, match=r"'median' needs table\.statistics = 'own' \(--statistics own\)"):
        prepare(method="fedavg", **given)
    both = {"table": {**given["table"], "statistics": "own"}}
    assert prepare(method="fedavg", **{**given, **both}).config.table.statistics == "own"


def test_newcomers_who_train_alone_are_prepared_by_themselves(tmp_path: Path) -> None:
    federation = Federation.from_table(silos(18.0), "silo", "y")
    run = fedkin.run(
        method="separate", federation=federation, participation={"novel": 0.34}, out=tmp_path / "run", **QUICK
    )
    own = federation.prepared("own")
    for client in own.clients:
        assert run.saved(client.name).preprocessing == client.preprocessing
