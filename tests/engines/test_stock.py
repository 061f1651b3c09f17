"""What runs train on: targets as their loss wants them, and survival, with whole silos as batches."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import DEVICE
from torch import Tensor

import fedkin
from fedkin.base.settings import ConfigError
from fedkin.base.task import Task
from fedkin.data.federation import Federation, FederationError
from fedkin.engines import stock
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
    ready.cohort.fit(ready.problem.initial.expand(len(ready.problem), -1).clone(), 1)
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
    padded = ready.cohort.fit(W, 1)
    ready.execution.pads = False
    torch.testing.assert_close(padded, ready.cohort.fit(W, 1), rtol=1e-9, atol=1e-12)


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
    assert {len(set(batch.counts) & set(ready.cohort.samples)) for batch in ready.cohort.batches(1)} == {3}
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
