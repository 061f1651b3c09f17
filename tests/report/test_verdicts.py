"""What silos are told of joining where something stands in the way of a yes, sentence by sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_runs import Folder, make

from fedkin.evidence.estimates import Estimate
from fedkin.evidence.findings import Findings
from fedkin.evidence.telling import Telling
from fedkin.evidence.verdicts import Joining, Silo
from fedkin.report.verdicts import joining_sentence, joining_words, verdict_text, with_nothing
from fedkin.report.words import unbeaten

YES = Estimate(0.10, 0.05, 0.15)


def silo(name: str, beside: dict[str, float], *, joined: float = 0.8, higher: bool = True, **more: Any) -> Silo:
    """One that gains a tenth for sure."""
    sign = 1 if higher else -1
    no_worse = tuple(
        sorted((each for each in beside if sign * (beside[each] - joined) >= 0), key=lambda each: -sign * beside[each])
    )
    alone, personal = Estimate(joined - sign * 0.1, 0.6, 0.8), Estimate(joined, 0.7, 0.9)
    return Silo(name, 100, alone, None, personal, YES, "cloud", p=1e-4, beside=beside, no_worse=no_worse, **more)


def joining(*silos: Silo, metric: str = "accuracy", higher: bool = True) -> Joining:
    return Joining(metric, higher, "fedamp", "the only joint method", (0,), silos)


def findings(folder: Path, model: str = "mlp", linear: list[float] | None = None) -> Findings:
    run: Folder = make(folder / "run", "separate", settings=f'[model]\nname = "{model}"\n')
    if linear is not None:
        run.change(linear={"name": "linear", "clients": linear})
    return Findings([run])


def test_what_stands_in_the_way_of_a_yes_is_named(tmp_path: Path) -> None:
    found = joining(silo("north", {"linear": 0.81, "majority": 0.5}), silo("east", {"linear": 0.75, "majority": 0.5}))
    assert verdict_text(found.silos[0], "accuracy") == (
        "cannot tell: a linear model of its own scores 81.0 %, which is no worse"
    )
    assert verdict_text(found.silos[1], "accuracy") == "yes"
    assert found.sentence == "Joining with fedamp helped east, harmed none, and for north it cannot be told."
    first, second = with_nothing(found, findings(tmp_path))
    assert first == (
        "At north joining is better for sure than the network alone, but a linear model of its own is no worse, so "
        "that is no yes."
    )
    assert second == (
        "A linear model of each silo’s own has a mean accuracy of 78.0 %, the network alone 70.0 %, joining 80.0 %, "
        "each silo counted by its test samples: the network alone is no good yardstick here. Try --model logistic, "
        "alone and joined."
    )
    assert "A yes needs a joined model that also beats what the silo has with nothing: “majority” and “linear”." in (
        joining_words(found)
    )
    assert "What silos have with nothing is not known of these runs in this metric, so a yes is beyond training" in (
        joining_words(joining(silo("east", {})))
    )


def test_several_silos_have_several_reasons(tmp_path: Path) -> None:
    found = joining(silo("north", {"linear": 0.81}), silo("east", {"majority": 0.9, "linear": 0.6}))
    (first,) = with_nothing(found, findings(tmp_path))[:1]
    assert first.startswith(
        "At north and east joining is better for sure than the network alone, but a linear model of "
    )
    assert (
        "a linear model of their own or the most frequent of their own labels is no worse, so that is no yes." in first
    )
    said = joining_sentence(found)
    assert said.startswith("On average joining with fedamp gains a silo 10.0 points of accuracy (")
    assert said.endswith("for no single one of the 2 can a yes or no be told."), "the test data are enough to tell"


def test_a_linear_yardstick_is_told_to_be_trained_otherwise(tmp_path: Path) -> None:
    found = joining(silo("north", {"linear": 0.85}, joined=0.9))
    (said,) = with_nothing(found, findings(tmp_path, "logistic"))
    assert "is no good yardstick here. It is linear as well: try another local.lr" in said and "--model" not in said


@pytest.mark.parametrize(
    ("ahead", "told"),
    [(Estimate(0.02, 0.01, 0.03), True), (Estimate(0.02, -0.01, 0.05), False), (Estimate(-0.02, -0.03, -0.01), False)],
)
def test_a_network_is_called_no_yardstick_only_where_a_line_is_clearly_better(
    tmp_path: Path, ahead: Estimate, told: bool
) -> None:
    found = joining(*(silo(name, {"linear": 0.7 + ahead.value}, ahead=ahead) for name in ("north", "east")))
    assert bool(with_nothing(found, findings(tmp_path))) == told


def test_where_answers_were_not_kept_the_line_has_to_leave_the_interval_of_the_network(tmp_path: Path) -> None:
    inside, outside = (joining(silo("north", {"linear": score}, joined=0.9)) for score in (0.79, 0.81))
    inside, outside = (joining(replace(each.silos[0], alone=Estimate(0.7, 0.6, 0.8))) for each in (inside, outside))
    assert not with_nothing(inside, findings(tmp_path / "in"))
    assert with_nothing(outside, findings(tmp_path / "out"))


def test_a_network_that_is_better_than_a_line_is_a_yardstick(tmp_path: Path) -> None:
    assert with_nothing(joining(silo("north", {"linear": 0.69, "majority": 0.5})), findings(tmp_path)) == []
    assert with_nothing(joining(silo("north", {})), findings(tmp_path / "more")) == []


def test_errors_are_better_where_they_are_lower(tmp_path: Path) -> None:
    high = silo("north", {"linear": 0.95, "mean": 1.4}, higher=False)
    assert with_nothing(joining(high, metric="rmse", higher=False), findings(tmp_path)) == []
    assert high.answer == "yes"
    low = silo("north", {"linear": 0.75, "mean": 0.7}, higher=False, ahead=Estimate(0.15, 0.1, 0.2))
    assert verdict_text(low, "rmse") == "cannot tell: the mean of its own targets scores 0.7000, which is no worse"
    first, second = with_nothing(joining(low, metric="rmse", higher=False), findings(tmp_path / "more"))
    assert "the mean of its own targets is no worse" in first
    assert "has a mean RMSE of 0.7500, the network alone 0.9000, joining 0.8000, each silo counted by its" in second


def test_silos_count_by_what_tells_something(tmp_path: Path) -> None:
    rare = Telling(12.0, 12, 10, "test sample of the rarer class", "test samples of the rarer class")
    found = joining(silo("north", {}, told_by=rare), silo("east", {}, told_by=rare), metric="auc")
    assert "each silo counted by its test samples of the rarer class, is +0.100" in joining_sentence(found)
    assert "Fewer than 10 test samples of the rarer class get no verdict." in joining_words(found)


@pytest.mark.parametrize(("linear", "told"), [([0.99] * 10, True), ([0.1] * 10, False), (None, False)])
def test_what_no_method_beats_is_told(tmp_path: Path, linear: list[float] | None, told: bool) -> None:
    said = unbeaten(findings(tmp_path, linear=linear))
    assert bool(said) == told
    if told:
        assert said == [
            "Without any federation, linear (each silo’s own linear model with a ridge penalty, of its own training "
            "rows and nothing else) has a mean test accuracy of 99.0 %, every silo counted alike, which no method "
            "here beats."
        ]
