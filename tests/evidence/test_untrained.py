"""Rows that need no federation: against counts and means by hand, and beside scikit-learn."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import toy
from made_runs import make
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedkin
from fedkin.base.task import METRICS, Metric, Task, loss_named
from fedkin.data.federation import Federation
from fedkin.evidence.comparison import Run
from fedkin.evidence.findings import Findings
from fedkin.evidence.references import rows
from fedkin.evidence.untrained import PENALTIES, Own, answers, scored
from fedkin.maths import linear

SETTINGS = {"rounds": 1, "model": {"name": "mlp", "settings": {"hidden": [4]}}}


def own(federation: Federation) -> list[Own]:
    return [Own(client.train, client.test) for client in federation.clients]


def scores(federation: Federation, metric: Metric, name: str = "majority") -> list[float | None]:
    task = replace(federation.task, metric=metric)
    return list(scored(task, answers(task, own(federation)), own(federation))[name].clients)


def test_the_most_frequent_class_is_counted_by_hand() -> None:
    federation = toy((30, 12, 5), tests=25)
    for client, score in zip(federation.clients, scores(federation, METRICS["accuracy"]), strict=True):
        often = Counter(client.train[1].tolist())
        answer = min(often, key=lambda c: (-often[c], c))
        assert score == pytest.approx(np.mean([y == answer for y in client.test[1].tolist()]))
    assert scores(federation, METRICS["auc"]) == [0.5] * 3, "who says the same of everybody tells nobody apart"
    for client, loss in zip(federation.clients, scores(federation, METRICS["log_loss"]), strict=True):
        count = np.bincount(client.train[1], minlength=3) + 1
        assert loss == pytest.approx(-np.log(count / count.sum())[client.test[1]].mean())


def test_the_mean_target_is_scored_in_its_own_units() -> None:
    y, tested = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([3.0, 5.0])
    task = replace(Task.regression((2,), 1), metric=METRICS["rmse"].in_units(10.0))
    x = torch.zeros(3, 2)
    clients = [Own((x, y), (x[:2], tested)), Own((x[:0], y[:0]), (x[:2], tested))]
    found = scored(task, answers(task, clients), clients)
    assert found["mean"].clients[0] == pytest.approx(10 * np.sqrt((0 + 4) / 2))
    assert np.isnan(found["mean"].clients[1]), "without training data there is nothing to say"  # type: ignore[arg-type]
    assert found["linear"].clients[0] == found["mean"].clients[0], "inputs that are all alike say nothing"


def test_a_function_that_does_not_take_it_makes_no_row() -> None:
    def refuses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("all answers are the same")

    task = replace(toy().task, metric=Metric("mine:refuses", refuses, True, False))
    assert scored(task, answers(task, own(toy())), own(toy())) == {}


# ---- the linear model ----


def table(
    n: int, classes: int, seed: int = 0, tests: int = 200
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows with numbers in different units, and a category as inputs of 0 and 1."""
    rng = np.random.default_rng(seed)
    x = np.concatenate(
        [rng.normal(size=(n + tests, 3)) * [1, 100, 0.01] + [0, 50, 3], np.eye(3)[rng.integers(0, 3, n + tests)]], 1
    )
    rule = rng.normal(size=(6, classes))
    y = ((x - x.mean(0)) / x.std(0) @ rule + rng.normal(size=(n + tests, classes))).argmax(1)
    return x[:n], y[:n], x[n:], y[n:]


@pytest.mark.parametrize("classes", [2, 4])
def test_it_is_scikit_learns_logistic_regression_of_the_silos_own_scaled_rows(classes: int) -> None:
    x, y, asked, _ = table(80, classes)
    task = Task.classification((6,), classes)
    sample = Own((torch.tensor(x), torch.tensor(y)), (torch.tensor(asked), torch.zeros(200, dtype=torch.int64)))
    theirs = make_pipeline(StandardScaler(), LogisticRegression(C=1 / 3, tol=1e-12, max_iter=10_000)).fit(x, y)
    assert np.allclose(answers(task, [sample])["linear"][0], theirs.predict_log_proba(asked), atol=1e-4)


def test_of_numbers_it_is_a_ridge_regression_and_nothing_but_rows_left_out_chooses_how_strong() -> None:
    rng = np.random.default_rng(1)
    x, weights = rng.normal(size=(90, 5)), rng.normal(size=5)
    y = x @ weights + 0.5 * rng.normal(size=90)
    task = Task.regression((5,), 1)
    missing = torch.tensor(np.r_[y[:40], np.full(5, np.nan)])  # which have no say
    part = Own(
        (torch.tensor(np.concatenate([x[:40], x[40:45]])), missing), (torch.tensor(x[45:]), torch.tensor(y[45:]))
    )
    scaler = StandardScaler().fit(x[:40])
    theirs = RidgeCV(alphas=PENALTIES).fit(scaler.transform(x[:40]), y[:40])
    found = answers(task, [part])["linear"][0]
    assert np.allclose(found[:, 0], theirs.predict(scaler.transform(x[45:])), atol=1e-8)
    exact = Own((torch.tensor(x[:40]), torch.tensor(x[:40] @ weights)), part.test)
    assert np.allclose(answers(task, [exact])["linear"][0][:, 0], x[45:] @ weights, atol=0.02), (
        "where there is no noise"
    )


def test_of_times_it_is_coxs_model_and_ranks_those_at_risk() -> None:
    rng = np.random.default_rng(2)
    x = torch.tensor(rng.normal(size=(160, 3)))
    lived = torch.tensor(np.stack([rng.exponential(np.exp(-2 * x[:, 0].numpy())) + 0.01, rng.random(160) < 0.7], 1))
    task, part = Task.survival((3,)), Own((x[:60], lived[:60]), (x[60:], lived[60:]))
    found = answers(task, [part])
    assert list(found) == ["linear"], "there is no mean of risks"
    score = scored(task, found, [part])["linear"].clients[0]
    assert score is not None and 0.75 < score < 1
    nobody = lived[:60].clone()
    nobody[:, 1] = 0
    still = Own((x[:60], nobody), part.test)
    assert scored(task, answers(task, [still]), [still])["linear"].clients == (0.5,), "without an event all are alike"


def test_awkward_silos_have_an_answer_too() -> None:
    """One class only, a class that the training rows lack, one row, fewer rows than inputs, columns all alike."""
    x, y, asked, _ = table(60, 3)
    task = Task.classification((6,), 3)
    cases = {"one class": y[:] * 0 + 2, "lacks one": np.where(y == 1, 0, y), "one row": y[:1], "few rows": y[:4]}
    for name, labels in cases.items():
        rows = torch.tensor(x[: len(labels)])
        part = Own((rows, torch.tensor(labels)), (torch.tensor(asked), torch.zeros(200, dtype=torch.int64)))
        found = answers(task, [part])["linear"][0]
        assert found.isfinite().all() and torch.allclose(found.exp().sum(1), torch.ones(200).double()), name
        if name in ("one class", "one row"):
            assert (found.argmax(1) == labels[0]).all()
        if name == "lacks one":
            assert found[:, 1].exp().numpy() == pytest.approx(np.full(200, 1 / 63)), "each class counted once more"
    alike = Own((torch.full((9, 6), 3.0), torch.arange(9) % 3), (torch.tensor(asked), torch.zeros(200).long()))
    assert torch.allclose(answers(task, [alike])["linear"][0].exp(), torch.full((200, 3), 1 / 3).double())


def test_units_do_not_matter_and_neither_do_test_rows() -> None:
    x, y, asked, _ = table(50, 2)
    task = Task.classification((6,), 2)

    def odds(rows: np.ndarray, tested: np.ndarray) -> torch.Tensor:
        part = Own((torch.tensor(rows), torch.tensor(y)), (torch.tensor(tested), torch.zeros(len(tested)).long()))
        return answers(task, [part])["linear"][0]

    units = np.array([1000, 0.001, 5, 1, 1, 1]), np.array([3, 0, -7, 0, 0, 0])
    assert torch.allclose(odds(x, asked), odds(x * units[0] + units[1], asked * units[0] + units[1]), atol=1e-6)
    assert torch.equal(odds(x, asked)[:10], odds(x, asked[:10]))


def test_weights_of_rows_count() -> None:
    x, y, asked, _ = table(50, 2)
    task = Task.classification((6,), 2)
    times = torch.tensor(np.random.default_rng(0).integers(1, 4, 50))
    part = Own((torch.tensor(x), torch.tensor(y)), (torch.tensor(asked), torch.zeros(200).long()))
    plain, weighted = (answers(task, [part._replace(weight=w)])["linear"][0] for w in (None, times.double()))
    assert not torch.allclose(plain, weighted)
    assert torch.equal(plain, answers(task, [part._replace(weight=torch.full((50,), 7.0))])["linear"][0])


def test_what_runs_share_is_fitted_once_and_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, asked, _ = table(50, 2)
    task = Task.classification((6,), 2)
    part = Own((torch.tensor(x), torch.tensor(y)), (torch.tensor(asked), torch.zeros(200).long()))
    count = Counter[str]()
    fit = linear.logistic
    monkeypatch.setattr(linear, "logistic", lambda *rows: count.update(["fits"]) or fit(*rows))
    first, again = (answers(task, [part])["linear"][0] for _ in range(2))
    assert first is again and count["fits"] == 1
    others = [
        part._replace(weight=torch.linspace(1, 2, 50)),
        part._replace(train=(part.train[0], 1 - part.train[1])),
        part._replace(train=(part.train[0] + 1.0, part.train[1])),
        part._replace(test=(part.test[0][:10], part.test[1][:10])),
    ]
    for fits, other in enumerate(others, 2):
        assert len(answers(task, [other])["linear"][0]) == len(other.test[1])
        assert count["fits"] == fits
    rows = weakref.ref(part.train[0])
    del part, others, other
    gc.collect()
    assert rows() is None, "it is not kept for that"


@pytest.mark.parametrize(
    ("task", "there"),
    [
        (Task.classification((20,), 3), True),
        (Task.classification((1, 8, 8), 3), False),
        (Task.classification((257,), 3), False),
        (Task.regression((4,), 1), True),
        (Task.regression((4,), 6), False),
        (Task.survival((4,)), True),
        (replace(Task.regression((4,), 1), loss=loss_named(torch.nn.functional.mse_loss)), True),
        (
            replace(
                Task.regression((4,), 1),
                loss=loss_named(torch.nn.functional.poisson_nll_loss),
                metric=Metric("mine:deviance", torch.nn.functional.poisson_nll_loss, False, False),
            ),
            False,
        ),
    ],
)
def test_it_is_for_flat_inputs_and_outputs_that_mean_something_to_us(task: Task, there: bool) -> None:
    x = torch.randn(12, *task.inputs, generator=torch.Generator().manual_seed(0))
    y = torch.arange(12) % 3 if task.kind == "classification" else torch.rand(12, task.outputs)
    if task.kind == "survival":
        y = torch.stack([torch.rand(12) + 0.1, torch.ones(12)], 1)
    assert ("linear" in answers(task, [Own((x, y), (x, y))])) == there


def test_targets_wider_than_outputs_are_nothing_to_a_line() -> None:
    x, y = torch.randn(9, 2, generator=torch.Generator().manual_seed(0)), torch.rand(9, 2)
    assert answers(Task.regression((2,), 1), [Own((x, y), (x, y))]) == {}


# ---- beside a comparison ----


def test_every_comparison_has_the_row_and_it_is_no_contender(tmp_path: Path) -> None:
    federation = toy((30, 20, 10), tests=25)
    asked = {"methods": ["separate", "fedavg"], "seeds": 2, "federation": federation, "out": tmp_path, **SETTINGS}
    results = fedkin.compare(**asked)  # type: ignore[arg-type]
    reopened = Findings([fedkin.Run(run.path) for run in results.runs])
    found = {row.name: row for row in rows(reopened.untrained)}
    assert set(found) == {"majority", "linear"}
    held = [federation.with_validation(0.1, seed) for seed in (0, 1)]
    for name, row in found.items():
        assert row.seeds == (0, 1)
        assert row.mean == pytest.approx(np.mean([scores(each, METRICS["accuracy"], name) for each in held]))
    for run in results.runs:
        kept = run.outputs()
        assert kept is not None and set(kept.beside) == {"majority", "linear"}
        right = (kept.beside["linear"].argmax(1) == kept.targets).double().split(list(kept.counts))
        assert run.summary.linear is not None
        assert [float(own.mean()) for own in right] == pytest.approx(run.summary.linear.clients)
    assert {each.method for each in reopened.rows} == {"separate", "fedavg"}
    assert reopened.best_joint[0] == "fedavg" and len(reopened.tests()) == 1


def test_runs_of_an_older_version_have_no_such_row(tmp_path: Path) -> None:
    old: Run = make(tmp_path / "run")
    assert Findings([old]).untrained == []
    old.change(untrained={"name": "majority", "clients": [0.5] * 10})
    assert [each.name for each in Findings([old]).untrained] == ["majority"], "of before there was a linear one"
