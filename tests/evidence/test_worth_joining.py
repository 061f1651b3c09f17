"""Was it worth joining? Runs are made by hand here: what silos answered is set, and what has to follow is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedkin
from fedkin.cli import terminal
from fedkin.cli.terminal import show_joining
from fedkin.errors import FedkinError
from fedkin.evidence.estimates import Estimate
from fedkin.evidence.findings import Findings
from fedkin.evidence.outputs import Outputs
from fedkin.evidence.records import Line, Summary
from fedkin.evidence.telling import Telling
from fedkin.evidence.verdicts import Joining, JoiningError, Silo
from fedkin.evidence.worth_joining import Scorecard
from fedkin.report.verdicts import joining_sentence, joining_told, joining_words
from fedkin.report.words import gain_text

HEADLINE = {"separate": "personal", "fedavg": "global"} | dict.fromkeys(["fedamp", "heurfedamp", "groups"], "cloud")


@dataclass
class Made:
    """What is read of a run. right: {client: for each test sample whether the answer is right}."""

    method: str
    right: dict[str, Sequence[bool]]
    seed: int = 0
    validation: dict[str, float | None] | None = None
    metric: str = "accuracy"
    kept: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    path: Path = Path("made")
    recorded: Sequence[int] = ()
    rows: dict[str, Sequence[int]] | None = None
    subjects: dict[str, Sequence[int]] | None = None
    beside: dict[str, dict[str, Sequence[bool]]] = field(default_factory=dict)
    """{name: {client: for each test sample whether what needs no federation is right}}."""
    summed_up: dict[str, Any] = field(default_factory=dict)

    @property
    def summary(self) -> Summary:
        about = {
            "method": self.method, "seed": self.seed, "data": "made", "split": "natural", "metric": self.metric,
            "higher_is_better": self.metric != "log_loss", "clients": list(self.right), "groups": None,
            "headline": HEADLINE[self.method], "models": {HEADLINE[self.method]: {"bmta": 0.5, "bmta_round": 1}},
            "rounds": 1,
        }  # fmt: skip
        return Summary.read(about | self.summed_up)

    @property
    def config(self) -> dict[str, Any]:
        return self.settings

    @property
    def rounds(self) -> list[Line]:
        validation = None
        if self.validation is not None:
            validation = {"mean": 0.0, "clients": [self.validation.get(client) for client in self.right]}
        scores = [float(np.mean(right)) if right else None for right in self.right.values()]
        closing = {HEADLINE[self.method]: {"clients": scores, "validation": validation}}
        line = {"round": 1, "models": {HEADLINE[self.method]: {"clients": scores, "validation": None}}}
        return [Line.read(line), Line.read({"round": 2, "final": True, "models": closing})]

    def collaboration(self, round: int | None = None) -> None:
        return None

    def outputs(self, client: str | None = None) -> Outputs | None:
        if not self.kept:
            return None
        parts = [answers(right) for right in self.right.values()]
        outputs, y = torch.cat([o for o, _ in parts]), torch.cat([y for _, y in parts])
        model = HEADLINE[self.method]
        counts, handed = tuple(len(y) for _, y in parts), (model,) * len(parts)
        models, rows = {"chosen": outputs, model: outputs}, None
        if self.rows is not None:
            rows = torch.tensor([row for own in self.rows.values() for row in own])
        beside = {name: torch.cat([answers(right)[0] for right in own.values()]) for name, own in self.beside.items()}
        whose = None
        if self.subjects is not None:
            whose = torch.tensor([each for own in self.subjects.values() for each in own])
        found = Outputs(
            tuple(self.right), counts, handed, models, y, "classification", rows=rows, subjects=whose, beside=beside
        )
        return found if client is None else found.of(client)


def answers(right: Sequence[bool]) -> tuple[Tensor, Tensor]:
    """(n, 2) outputs and (n,) targets, of class 0 and 1 in turn."""
    y = torch.arange(len(right)) % 2
    given = torch.where(torch.tensor(right, dtype=torch.bool), y, 1 - y)
    return 2.0 * torch.nn.functional.one_hot(given, 2).float(), y


def first(good: int, n: int) -> list[bool]:
    """The first `good` of n samples right."""
    return [True] * good + [False] * (n - good)


def worth_joining(runs: Sequence[Any], metric: str | None = None) -> Joining:
    return Findings(runs).worth_joining(metric)


def best_joint(runs: Sequence[Any]) -> tuple[str, str]:
    return Findings(runs).best_joint


def scorecard(runs: Sequence[Any]) -> Scorecard:
    found = Findings(runs).scorecard
    assert found is not None
    return found


ALONE = {"north": first(10, 40), "south": first(30, 40), "east": first(20, 31), "west": first(38, 40)}
JOINED = {"north": first(35, 40), "south": first(31, 40), "east": first(20, 31), "west": first(10, 40)}


def test_each_silo_has_its_answer() -> None:
    found = worth_joining([Made("separate", ALONE), Made("fedamp", JOINED)])
    verdicts = {silo.client: silo.verdict for silo in found.silos}
    assert verdicts == {
        "east": "cannot tell: its 31 test samples show no difference",
        "north": "yes",
        "south": "cannot tell: with 40 test samples the difference could be chance",
        "west": "no, better alone",
    }
    north = next(silo for silo in found.silos if silo.client == "north")
    assert (north.alone.value, north.personal.value, north.gain.value) == (0.25, 0.875, 0.625)
    assert north.alone.low < 0.25 < north.alone.high
    assert (north.samples, north.handed, north.common) == (40, "cloud", None)
    assert (found.method, found.metric, found.chosen_by) == ("fedamp", "accuracy", "the only joint method")
    said = "Joining with fedamp helped north, harmed west, and for east and south it cannot be told."
    assert found.sentence == said


def test_the_answers_make_a_frame_and_have_a_mean() -> None:
    validation = dict.fromkeys(ALONE, 0.5), dict.fromkeys(ALONE, 0.6)
    runs = [Made("separate", ALONE), Made("fedavg", ALONE, 0, validation[0]), Made("fedamp", JOINED, 0, validation[1])]
    found = worth_joining(runs)  # type: ignore[arg-type]
    frame = found.frame()
    assert list(frame.index) == ["east", "north", "south", "west"]
    north, gain = frame.loc["north"], next(silo.gain for silo in found.silos if silo.client == "north")
    assert north.to_dict() == {
        "test samples": 40, "alone": 0.25, "global": 0.25, "joined": 0.875, "gain": 0.625, "low": gain.low,
        "high": gain.high, "p": pytest.approx(4 * gain.p), "verdict": "yes", "handed out": "cloud",
    }  # fmt: skip
    assert found.together.value == pytest.approx((0 + 25 + 1 - 28) / (31 + 3 * 40)), "each by its test samples"
    assert worth_joining(runs[::2]).frame()["global"].isna().all()  # type: ignore[arg-type]


def test_silos_together_are_surer_than_each_alone() -> None:
    """The interval of a mean of independent estimates: n equal ones are known sqrt(n) times as well."""
    one = Estimate(0.06, -0.02, 0.16)
    silos = [Silo(f"s{i}", 25, one, None, one, one, "cloud") for i in range(16)]
    found = Joining("accuracy", True, "fedamp", "", (0,), tuple(silos))
    assert found.together == pytest.approx((0.06, 0.06 - 0.08 / 4, 0.06 + 0.10 / 4))
    assert joining_sentence(found) == (
        "On average joining with fedamp gains a silo 6.0 points of accuracy (+4.0 to +8.5), each counted by its test "
        "samples; for no single one of the 16 are the test data enough to tell."
    )
    wide = Estimate(0.06, -0.10, 0.20)
    few = tuple(Silo(f"s{i}", 9, wide, None, wide, wide, "cloud") for i in range(2))
    said = joining_sentence(Joining("accuracy", True, "fedamp", "", (0,), few))
    mean = "The mean gain, each silo counted by its test samples, is +6.0 points (−5.3 to +15.9)."
    assert said == f"Whether joining with fedamp helped cannot be told for any of the 2 silos. {mean}"


def test_a_silo_with_three_samples_does_not_outvote_one_with_three_hundred() -> None:
    large, small = Estimate(0.1, 0.05, 0.15), Estimate(-0.9, -1.0, 0.5)
    silos = [
        Silo("large", 300, large, None, large, large, "cloud"),
        Silo("small", 3, small, None, small, small, "cloud"),
    ]
    mean = Joining("accuracy", True, "fedamp", "", (0,), tuple(silos)).together
    assert mean.value == pytest.approx((300 * 0.1 - 3 * 0.9) / 303) and mean.low > 0
    unknown = Silo("single", 1, small, None, small, Estimate(-1.0), "cloud")
    assert Joining("accuracy", True, "fedamp", "", (0,), (*silos, unknown)).together == mean, "without an interval"


def test_what_is_sure_but_next_to_nothing_is_no_reason_to_stay_alone() -> None:
    score, loss = Estimate(0.8, 0.78, 0.82), Estimate(-0.0001, -0.00015, -0.00005)
    tiny = Silo("a", 1700, score, None, Estimate(0.7999), loss, "cloud", p=1e-6)
    assert (tiny.answer, tiny.verdict.partition(": ")[2]) == (
        "cannot tell",
        "the difference is less than a thousandth of the score",
    )
    small = Silo("b", 1700, score, None, Estimate(0.798), Estimate(-0.002, -0.003, -0.001), "cloud", p=1e-6)
    assert small.answer == "no"


def test_few_test_samples_get_no_verdict_whatever_they_show() -> None:
    alone, joined = {"a": first(0, 9), "b": first(0, 40)}, {"a": first(9, 9), "b": first(40, 40)}
    small, large = worth_joining([Made("separate", alone), Made("fedamp", joined)]).silos
    assert small.gain.low > 0 and np.isnan(small.p)
    assert small.verdict == "cannot tell: 9 test samples are too few for a verdict"
    assert large.verdict == "yes"


# ---- what a silo has with nothing ----


def with_nothing(linear: int, majority: int = 0) -> Joining:
    """A silo of forty, of which 10 are right alone, 35 joined, and so many by its own line and its own labels."""
    beside = {"linear": {"a": first(linear, 40)}, "majority": {"a": first(majority, 40)}}
    runs = [Made("separate", {"a": first(10, 40)}, beside=beside), Made("fedamp", {"a": first(35, 40)}, beside=beside)]
    return worth_joining(runs)


def test_a_yes_needs_a_model_that_beats_what_the_silo_has_with_nothing() -> None:
    (yes,) = with_nothing(34, 20).silos
    assert (yes.answer, yes.verdict, yes.no_worse) == ("yes", "yes", ())
    assert yes.beside == {"linear": 0.85, "majority": 0.5}
    for linear, majority, said in (
        (35, 20, "a linear model of its own scores 0.875, which is no worse"),
        (38, 36, "a linear model of its own scores 0.95, which is no worse"),
        (30, 35, "the most frequent of its own labels scores 0.875, which is no worse"),
        (36, 39, "the most frequent of its own labels scores 0.975, which is no worse"),
    ):
        found = with_nothing(linear, majority)
        (held,) = found.silos
        assert (held.answer, held.surely) == ("cannot tell", "yes")
        assert held.verdict == f"cannot tell: {said}"
        assert found.sentence == "Whether joining with fedamp helped cannot be told at a."
        assert found.frame()["verdict"].tolist() == [held.verdict]
        assert found.frame()[["majority", "linear"]].to_numpy().tolist() == [[majority / 40, linear / 40]]


def test_what_a_silo_has_with_nothing_makes_no_answer_out_of_chance_or_harm() -> None:
    beside = {"linear": {client: first(len(right), len(right)) for client, right in ALONE.items()}}
    plain = worth_joining([Made("separate", ALONE), Made("fedamp", JOINED)])
    found = worth_joining([Made("separate", ALONE, beside=beside), Made("fedamp", JOINED, beside=beside)])
    for before, after in zip(plain.silos, found.silos, strict=True):
        if before.answer == "yes":
            assert after.held_back == "linear" and after.answer == "cannot tell"
        else:
            assert after.verdict == before.verdict, "better alone is better alone, and chance is chance"
        assert after.gain == before.gain and after.p == before.p


def test_it_is_told_in_the_metric_that_is_asked_for() -> None:
    """By accuracy the linear model is behind; by log loss, as it is less sure where it is wrong, it is ahead."""
    y = torch.arange(40) % 2
    right = torch.tensor([True] * 29 + [False] * 11)
    signs = torch.where(right, 1.0, -1.0) * (2 * y - 1)
    modest = torch.stack([-0.6 * signs, 0.6 * signs], 1)
    runs = [Made("separate", {"a": first(5, 40)}), Made("fedamp", {"a": first(30, 40)})]
    for run in runs:
        made = run.outputs()
        assert made is not None
        run.outputs = lambda client=None, made=made: Outputs(**{**vars(made), "beside": {"linear": modest}})  # type: ignore[method-assign]
    (by_accuracy,), (by_loss,) = (worth_joining(runs, metric).silos for metric in ("accuracy", "log_loss"))
    assert by_accuracy.answer == "yes" and by_accuracy.beside["linear"] == 29 / 40
    assert by_loss.surely == "yes" and by_loss.held_back == "linear"
    assert by_loss.beside["linear"] < by_loss.personal.value


def test_runs_that_kept_no_answers_of_it_have_their_summaries() -> None:
    """In the runs' own metric; in another one nothing is known, and nothing is held back."""
    old = {"untrained": {"name": "majority", "clients": [0.9]}}
    runs = [Made("separate", {"a": first(10, 40)}, summed_up=old), Made("fedamp", {"a": first(35, 40)}, summed_up=old)]
    (silo,) = worth_joining(runs).silos
    assert silo.beside == {"majority": 0.9} and silo.held_back == "majority"
    (other,) = worth_joining(runs, "balanced_accuracy").silos
    assert other.beside == {} and other.answer == "yes"


def test_it_is_averaged_over_seeds_as_the_other_values_are() -> None:
    runs = []
    for seed, linear in enumerate((30, 38)):
        beside = {"linear": {"a": first(linear, 40)}}
        runs += [Made("separate", {"a": first(10, 40)}, seed, beside=beside)]
        runs += [Made("fedamp", {"a": first(35, 40)}, seed, beside=beside)]
    (silo,) = worth_joining(runs).silos
    assert silo.beside["linear"] == pytest.approx(34 / 40) and silo.answer == "yes"


def test_a_silo_without_such_an_answer_is_not_held_back() -> None:
    unknown = torch.full((40, 2), torch.nan)
    runs = [Made("separate", {"a": first(10, 40)}), Made("fedamp", {"a": first(35, 40)})]
    for run in runs:
        made = run.outputs()
        assert made is not None
        run.outputs = lambda client=None, made=made: Outputs(**{**vars(made), "beside": {"linear": unknown}})  # type: ignore[method-assign]
    (silo,) = worth_joining(runs).silos
    assert (silo.beside, silo.answer) == ({}, "yes")


# ---- what a verdict stands on ----


def test_two_positives_among_two_hundred_are_two() -> None:
    """Ranked at the bottom alone and at the top joined: as sure as two can be, and no verdict."""
    y = torch.zeros(200, dtype=torch.int64)
    y[:2] = 1
    low, high = torch.linspace(-1, 1, 200), torch.linspace(1, -1, 200)
    runs = [Made("separate", {"a": first(1, 200)}), Made("fedamp", {"a": first(1, 200)})]
    for run, odds in zip(runs, (low, high), strict=True):
        made = run.outputs()
        assert made is not None
        models = dict.fromkeys(made.models, torch.stack([-odds, odds], 1))
        run.outputs = lambda client=None, made=made, models=models: Outputs(  # type: ignore[method-assign]
            **{**vars(made), "models": models, "targets": y}
        )
    (silo,) = worth_joining(runs, "auc").silos
    assert silo.gain.low > 0.4 and silo.samples == 200
    assert silo.verdict == "cannot tell: 2 test samples of the rarer class are too few for a verdict"
    (balanced,) = worth_joining(runs, "balanced_accuracy").silos
    assert "2 test samples of the rarer class are too few" in balanced.verdict
    assert worth_joining(runs, "log_loss").silos[0].telling.words == "200 test samples"


def test_patients_count_and_not_their_visits() -> None:
    alone, joined = {"a": first(4, 40), "b": first(4, 40)}, {"a": first(36, 40), "b": first(36, 40)}
    whose = {"a": [i // 5 for i in range(40)], "b": [i // 2 for i in range(40)]}
    runs = [Made("separate", alone, subjects=whose), Made("fedamp", joined, subjects=whose)]
    few, enough = worth_joining(runs).silos
    assert (few.samples, few.subjects, enough.subjects) == (40, 8, 20)
    assert few.verdict == "cannot tell: 8 test subjects are too few for a verdict"
    assert enough.answer == "yes"
    by_row = worth_joining([Made("separate", alone), Made("fedamp", joined)])
    for silo, plain in zip((few, enough), by_row.silos, strict=True):
        assert silo.gain.value == plain.gain.value and plain.subjects is None
        assert silo.gain.high - silo.gain.low > plain.gain.high - plain.gain.low
        assert silo.personal.high - silo.personal.low > plain.personal.high - plain.personal.low
        assert silo.gain.p >= plain.gain.p
    words = joining_words(worth_joining(runs))
    assert "Fewer than 10 test subjects get no verdict." in words and "Intervals are by subject" in words
    assert worth_joining(runs).frame()["test subjects"].tolist() == [8, 20]
    assert scorecard(runs).silos["b"]["accuracy"] == enough.personal


def test_the_mean_gain_counts_what_tells_something() -> None:
    """By AUC two positives among three hundred do not outvote thirty among sixty."""
    sure, wild = Estimate(0.1, 0.05, 0.15), Estimate(-0.5, -0.9, 0.2)
    silos = (
        Silo("few", 300, wild, None, wild, wild, "cloud", told_by=Telling(2.0, 2)),
        Silo("many", 60, sure, None, sure, sure, "cloud", told_by=Telling(58.0, 30)),
    )
    mean = Joining("auc", True, "fedamp", "", (0,), silos).together
    assert mean.value == pytest.approx((2 * -0.5 + 58 * 0.1) / 60) and mean.low > 0


# ---- no difference ----


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "auc", "log_loss"])
def test_models_that_answer_alike_are_told_to_do_so(metric: str) -> None:
    found = worth_joining([Made("separate", ALONE), Made("fedamp", ALONE)], metric)
    for silo in found.silos:
        assert silo.gain.value == 0 and silo.p == 1
        assert silo.verdict == f"cannot tell: its {silo.samples} test samples show no difference"
        if metric == "log_loss":
            assert tuple(silo.gain) == (0, 0, 0) and gain_text(silo.gain, metric) == "0"
    if metric == "log_loss":
        assert joining_sentence(found) == (
            "Whether joining with fedamp helped cannot be told for any of the 4 silos. On no silo’s test samples is "
            "there any difference."
        )


# ---- many silos ----


def test_of_twenty_silos_one_that_stands_out_by_chance_is_told_so() -> None:
    """Eight of forty gained and one lost: at 95 % that is a gain, of twenty silos one such is to be expected."""
    alone = {f"s{i:02d}": first(20, 40) for i in range(20)}
    joined = dict(alone) | {"s07": [False] + [True] * 27 + [False] * 12}
    (one,) = (
        silo for silo in worth_joining([Made("separate", alone), Made("fedamp", joined)]).silos if silo.gain.value
    )
    assert one.gain.low > 0 and 0.05 / 20 < one.gain.p < 0.05
    assert (one.answer, one.p) == ("cannot tell", pytest.approx(20 * one.gain.p))
    assert one.verdict == "cannot tell: as several silos are tested, it could be chance"
    by_itself = worth_joining([Made("separate", {"s07": alone["s07"]}), Made("fedamp", {"s07": joined["s07"]})])
    assert by_itself.silos[0].answer == "yes"


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "auc", "log_loss"])
def test_a_p_value_is_the_level_at_which_the_interval_just_leaves_out_nothing(metric: str) -> None:
    for runs in ([Made("separate", ALONE), Made("fedamp", JOINED)], two_seeds(20)):
        for silo in worth_joining(runs, metric).silos:
            gain = silo.gain
            assert (gain.p < 0.05) == (gain.low > 0 or gain.high < 0)
            if 1e-8 < gain.p < 1:
                wide, narrow = (gain.interval(1 - gain.p * factor) for factor in (0.99, 1.01))  # type: ignore[attr-defined]
                assert wide[0] <= 0 <= wide[1] and (narrow[0] > 0 or narrow[1] < 0)


def test_the_mean_gain_leaves_out_silos_that_have_none() -> None:
    known, none = Estimate(0.5, 0.4, 0.6), Estimate(np.nan)
    silos = [Silo(str(i), 9, known, None, known, gain, "cloud") for i, gain in enumerate((known, none))]
    assert Joining("auc", True, "fedamp", "", (0,), tuple(silos)).together.value == 0.5
    assert np.isnan(Joining("auc", True, "fedamp", "", (0,), tuple(silos[1:])).together.value)


def sentence(*gains: tuple[float, float]) -> str:
    known = Estimate(0.5, 0.4, 0.6)
    silos = [
        Silo(NAMES[i], 40, known, None, known, Estimate(sum(gain) / 2, *gain), "cloud", p=0.01)
        for i, gain in enumerate(gains)
    ]
    return Joining("accuracy", True, "fedamp", "", (0,), tuple(silos)).sentence


NAMES = ("north", "east", "south", "west", "centre", "coast")


def test_the_sentence_names_the_method_and_the_silos() -> None:
    yes, no, unclear = (0.1, 0.2), (-0.2, -0.1), (-0.1, 0.1)
    few = "and for south and west it cannot be told."
    assert sentence(yes, yes, unclear, unclear) == f"Joining with fedamp helped north and east, harmed none, {few}"
    assert sentence(no, yes, unclear, unclear) == f"Joining with fedamp helped east, harmed north, {few}"
    assert sentence(no, unclear) == "Joining with fedamp helped none, harmed north, and for east it cannot be told."
    assert sentence(yes, no, no) == "Joining with fedamp helped north and harmed east and south."
    assert sentence(yes, *[no] * 5) == "Joining with fedamp helped north and harmed 5 of 6 silos."
    assert sentence(yes, yes) == "Joining with fedamp helped all 2 silos."
    assert sentence(no, no) == "Joining with fedamp harmed all 2 silos."
    assert sentence(yes) == "Joining with fedamp helped north."
    assert sentence(unclear, (np.nan, np.nan)) == (
        "Whether joining with fedamp helped cannot be told for any of the 2 silos."
    )


def test_an_interval_that_ends_at_nothing_is_no_yes() -> None:
    assert "cannot be told" in sentence((0.0, 0.2)) and "cannot be told" in sentence((-0.2, 0.0))


def test_errors_that_fall_are_a_gain() -> None:
    found = worth_joining([Made("separate", ALONE), Made("fedamp", JOINED)], metric="log_loss")
    gains = {silo.client: silo.gain for silo in found.silos}
    assert gains["north"].low > 0 > gains["west"].high
    north = next(silo for silo in found.silos if silo.client == "north")
    assert north.gain.value == pytest.approx(north.alone.value - north.personal.value)
    assert not found.higher_is_better


def test_a_users_own_metric_is_neither_imported_nor_exchanged_for_another(capsys) -> None:
    runs = [Made("separate", ALONE, metric="os:system"), Made("fedamp", JOINED, metric="os:system")]
    why = "cannot be told in os:system, a metric of your own: these runs did not keep what it says of their models"
    with pytest.raises(JoiningError, match=why):
        worth_joining(runs)
    with pytest.raises(JoiningError, match=why):
        worth_joining(runs, "os:system")
    found = Findings(runs)
    assert found.joined is None
    (said,) = joining_told(found)
    assert why in said and "Run them again, or ask for accuracy or" in said
    show_joining(found)
    assert "helped" not in capsys.readouterr().out
    assert worth_joining(runs, "auc").metric == "auc"
    with pytest.raises(FedkinError, match="'rmse' is for regression"):
        worth_joining(runs, "rmse")
    with pytest.raises(FedkinError, match="a metric of your own"):
        worth_joining(runs, "os:remove")


def test_the_plain_global_model_stands_beside() -> None:
    third = {client: first(5, len(right)) for client, right in ALONE.items()}
    for joint in ("fedamp", "heurfedamp"):
        found = worth_joining([Made("separate", ALONE), Made("fedavg", third, validation={}), Made(joint, JOINED)])
        assert [silo.common.value for silo in found.silos if silo.common] == [5 / 31, 5 / 40, 5 / 40, 5 / 40]


# ---- which method ----


def test_the_method_is_chosen_by_validation_and_never_by_test_scores() -> None:
    perfect = {client: [True] * len(right) for client, right in ALONE.items()}
    runs = [
        Made("separate", ALONE, validation=dict.fromkeys(ALONE, 0.99)),
        Made("fedavg", perfect, validation=dict.fromkeys(ALONE, 0.6)),
        Made("fedamp", JOINED, validation={"north": 0.5, "south": None, "east": 0.9, "west": None}),
        Made("groups", perfect, validation=dict.fromkeys(ALONE, 1.0)),  # was told the groups: no contender
    ]
    why = "of the joint methods the one whose handed-out models have the best mean validation score"
    for order in permutations(runs):
        assert best_joint(order) == ("fedamp", why)
    assert worth_joining(runs).method == "fedamp"
    worse = [Made(run.method, run.right, validation=run.validation, metric="log_loss") for run in runs]
    assert best_joint(worse)[0] == "fedavg"  # lower is better


def test_without_validation_data_it_is_the_first_by_name_and_that_is_said() -> None:
    for lacking in (None, {}, dict.fromkeys(ALONE, None)):
        runs = [Made("separate", ALONE), Made("fedamp", JOINED, validation=lacking), Made("fedavg", ALONE)]
        runs.append(Made("groups", JOINED, validation=lacking))
        for order in permutations(runs):
            why = "the first joint method by name, as there is no validation data to choose by"
            assert best_joint(order) == ("fedamp", why)


def test_of_equals_it_is_the_first_by_name_and_never_one_that_was_told_the_groups() -> None:
    level = {"validation": dict.fromkeys(ALONE, 0.5)}
    runs = [Made(method, JOINED, **level) for method in ("groups", "heurfedamp", "fedavg", "separate")]  # type: ignore[arg-type]
    for order in permutations(runs):
        method, why = best_joint(order)
        assert method == "fedavg" and why.endswith("; of equals the first by name")
    with pytest.raises(JoiningError, match="Nobody joined: .* but groups, which was told the groups"):
        best_joint([runs[0], runs[3]])


def test_methods_are_chosen_over_the_seeds_that_all_of_them_have() -> None:
    """FedAvg is the better in the seed of both; a further one, easy for everybody, says nothing."""
    runs = [Made("fedavg", ALONE, 0, dict.fromkeys(ALONE, 0.6)), Made("fedamp", ALONE, 0, dict.fromkeys(ALONE, 0.5))]
    easy = Made("fedamp", ALONE, 1, dict.fromkeys(ALONE, 0.9))
    assert best_joint([*runs, easy])[0] == "fedavg"


def test_the_mean_is_over_seeds_too() -> None:
    def runs(method: str, *means: float) -> list[Made]:
        return [Made(method, ALONE, seed, dict.fromkeys(ALONE, mean)) for seed, mean in enumerate(means)]

    assert best_joint([*runs("fedavg", 0.9, 0.1), *runs("fedamp", 0.6, 0.6)])[0] == "fedamp"


# ---- seeds ----


def test_seeds_are_averaged_silo_by_silo_and_do_not_narrow_intervals() -> None:
    once = worth_joining([Made("separate", ALONE), Made("fedamp", JOINED)])
    runs = [
        Made(method, right, seed) for method, right in (("separate", ALONE), ("fedamp", JOINED)) for seed in range(5)
    ]
    for silo, same in zip(worth_joining(runs).silos, once.silos, strict=True):
        assert silo.personal == pytest.approx(same.personal)
        assert silo.gain == pytest.approx(same.gain)
    other = {client: first(40, 40) if client == "north" else right for client, right in JOINED.items()}
    both = worth_joining([*runs[:2], Made("fedamp", JOINED, 0), Made("fedamp", other, 1)])
    north = next(silo for silo in both.silos if silo.client == "north")
    assert north.personal.value == pytest.approx((0.875 + 1) / 2)
    assert north.gain.value == pytest.approx((0.625 + 0.75) / 2)


def test_only_shared_seeds_count_and_order_of_clients_does_not() -> None:
    turned = dict(reversed(JOINED.items()))
    found = worth_joining([Made("separate", ALONE), Made("fedamp", turned), Made("fedamp", ALONE, 1)])
    assert found.silos == worth_joining([Made("separate", ALONE), Made("fedamp", JOINED)]).silos
    assert found.seeds == (0,)
    with pytest.raises(JoiningError, match="fedamp and separate have no seed in common"):
        worth_joining([Made("separate", ALONE, 3), Made("fedamp", JOINED)])


# ---- seeds that know their patients ----


def two_seeds(gap: int = 40, **more: Any) -> list[Made]:
    """Both methods with two seeds; the second's patients are numbered from `gap` on."""
    runs = []
    for method, right in (("separate", ALONE), ("fedamp", JOINED)):
        for seed in range(2):
            numbers = {client: range(seed * gap, seed * gap + len(own)) for client, own in right.items()}
            runs.append(Made(method, right, seed, rows=numbers, **more))
    return runs


def test_new_patients_narrow_intervals_and_the_same_ones_do_not() -> None:
    once = worth_joining([Made("separate", ALONE), Made("fedamp", JOINED)])
    same, new = worth_joining(two_seeds(0)), worth_joining(two_seeds(40))
    assert same.by_patient and new.by_patient and not once.by_patient
    for one, two, four in zip(once.silos, same.silos, new.silos, strict=True):
        assert (two.samples, four.samples) == (one.samples, 2 * one.samples)
        for part in ("alone", "personal", "gain"):
            single, again, more = (getattr(silo, part) for silo in (one, two, four))
            assert again == pytest.approx(single)
            assert more.value == pytest.approx(single.value)
            # As if there were twice as many: by the root of 2, and by 2 where all that varies is who is made up.
            assert 0.5 <= (more.high - more.low) / (single.high - single.low) <= 0.75
    half = worth_joining(two_seeds(20)).silos[1]
    assert half.samples == 60 and half.gain.low > same.silos[1].gain.low


def test_one_seed_is_the_same_with_numbers_and_without() -> None:
    bare = [Made("separate", ALONE), Made("fedamp", JOINED)]
    for metric in ("accuracy", "balanced_accuracy", "auc", "log_loss"):
        assert worth_joining(two_seeds()[::2], metric) == worth_joining(bare, metric)


def test_where_numbers_are_not_patients_seeds_are_averaged() -> None:
    """Without numbers in one run, or with a number that has two targets, as if samples were dealt by the seed."""
    bare = two_seeds()
    for run in bare:
        run.rows = None
    expected = worth_joining(bare)
    partly = two_seeds()
    partly[3].rows = None
    for runs in (partly, two_seeds(1)):  # moved by one, a patient of class 0 is one of class 1
        assert worth_joining(runs) == expected
        assert scorecard(runs).silos == scorecard(bare).silos


def test_other_patients_in_the_same_seed_are_not_the_same_samples() -> None:
    runs = two_seeds()
    runs[2].rows = {client: [row + 100 for row in own] for client, own in (runs[2].rows or {}).items()}
    with pytest.raises(JoiningError, match="separate and fedamp were not tested on the same samples at 'east'"):
        worth_joining(runs)


def test_the_scorecard_is_by_patient_too() -> None:
    runs = two_seeds(20)
    for metric in ("accuracy", "auc", "log_loss"):
        for silo in worth_joining(runs, metric).silos:
            assert scorecard(runs).silos[silo.client][metric] == silo.personal


def test_the_words_say_how_seeds_were_put_together() -> None:
    said = joining_words(worth_joining(two_seeds(20)))  # 3 × (40 + 20) + (31 + 20)
    assert "2 seeds, which together test 231 of the silos’ samples; one tested in several seeds counts once." in said
    assert "these share the silo’s data, so the intervals are not narrowed" in joining_words(
        worth_joining([Made(m, r, seed) for m, r in (("separate", ALONE), ("fedamp", JOINED)) for seed in (0, 1)])
    )
    assert "seeds" not in joining_words(worth_joining([Made("separate", ALONE), Made("fedamp", JOINED)]))


def test_the_words_say_where_all_seeds_test_the_same_samples() -> None:
    """As a column of folds has it: three seeds looked like three samples of the patients."""
    said = joining_words(worth_joining(two_seeds(0)))
    assert (
        "Values are means over 2 seeds, all of which test the same 151 of the silos’ samples: what is said over seeds "
        "says nothing of other test samples."
    ) in said  # 3 × 40 + 31
    assert "together" not in said
    assert "all of which" not in joining_words(worth_joining(two_seeds(1)))


# ---- what cannot be answered ----


def test_what_is_missing_is_said() -> None:
    with pytest.raises(JoiningError, match="add the method 'separate'"):
        worth_joining([Made("fedamp", JOINED)])
    with pytest.raises(JoiningError, match="Nobody joined"):
        worth_joining([Made("separate", ALONE)])
    with pytest.raises(JoiningError, match="kept no outputs of its models; run it again"):
        worth_joining([Made("separate", ALONE, kept=False), Made("fedamp", JOINED)])
    shorter = {client: right[1:] for client, right in JOINED.items()}
    with pytest.raises(JoiningError, match="separate and fedamp were not tested on the same samples at 'east'"):
        worth_joining([Made("separate", ALONE), Made("fedamp", shorter)])


def test_no_samples_and_one_class_are_told_apart() -> None:
    alone, joined = {"none": [], "one": [True], "some": first(3, 4)}, {"none": [], "one": [False], "some": first(3, 4)}
    runs = [Made("separate", alone), Made("fedamp", joined)]
    assert [silo.verdict for silo in worth_joining(runs, "auc").silos] == [
        "cannot tell: there are no test samples",
        "cannot tell: all test samples are of one class",
        "cannot tell: 2 test samples of the rarer class are too few for a verdict",
    ]


# ---- all metrics ----


def test_the_scorecard_has_every_metric_of_the_best_joint_method() -> None:
    found = scorecard([Made("separate", ALONE), Made("fedamp", JOINED), Made("fedamp", JOINED, 1)])
    assert (found.method, found.seeds) == ("fedamp", (0, 1))
    assert list(found.silos["north"]) == ["accuracy", "balanced_accuracy", "auc", "log_loss"]
    assert (
        found.silos["north"]["accuracy"]
        == worth_joining([Made("separate", ALONE), Made("fedamp", JOINED)]).silos[1].personal
    )
    assert scorecard([Made("separate", ALONE)]).method == "separate"


# ---- in the terminal ----


def test_the_terminal_shows_a_table_for_few_silos_and_a_sentence_for_many(capsys, monkeypatch) -> None:
    monkeypatch.setattr(terminal.out, "_width", 120)
    show_joining(Findings([Made("separate", ALONE), Made("fedamp", JOINED)]))  # type: ignore[list-item]
    said = capsys.readouterr().out
    assert "Was it worth joining? Test accuracy in %" in said
    north = next(line for line in said.splitlines() if "north" in line)
    assert " ".join(north.split()) == "north 40 25.0 (14–40) 87.5 (74–95) +62.5 (+43.3 to +75.8) yes"
    assert "Joining with fedamp helped north, harmed west, and for east and south it cannot be told." in said
    small = {"coast": first(2, 6), "north": first(20, 40)}
    show_joining(Findings([Made("separate", small), Made("fedamp", small)]))  # type: ignore[list-item]
    assert "cannot tell: only 6 test samples" in capsys.readouterr().out
    many = {f"silo-{i}": first(20, 40) for i in range(31)}
    show_joining(Findings([Made("separate", many), Made("fedamp", many)]))  # type: ignore[list-item]
    said = capsys.readouterr().out
    assert said.startswith("Whether joining with fedamp helped cannot be told for any of the 31 silos")
    show_joining(Findings([Made("separate", ALONE, kept=False), Made("fedamp", JOINED)]))  # type: ignore[list-item]
    assert capsys.readouterr().out == ""


# ---- from beginning to end ----


def test_a_comparison_on_digits_answers_for_each_silo(tmp_path: Path) -> None:
    settings = {"rounds": 3, "data": {"clients": 5}, "local": {"epochs": 1}}
    results = fedkin.compare(settings, methods=["separate", "fedavg", "fedamp"], out=tmp_path)
    found = results.worth_joining()
    assert len(found.silos) == 5 and found.method in ("fedavg", "fedamp")
    runs = {run.summary["method"]: run for run in results.runs}
    for silo in found.silos:
        place = runs["separate"].summary["clients"].index(silo.client)
        assert silo.alone.value == pytest.approx(runs["separate"].scores("personal")[-1][place])
        assert silo.common is not None
        assert silo.common.value == pytest.approx(runs["fedavg"].scores("global")[-1][place])
        assert silo.personal.value == pytest.approx(runs[found.method].scores(silo.handed)[-1][place])
        assert silo.gain.value == pytest.approx(silo.personal.value - silo.alone.value)
        assert silo.gain.low <= silo.gain.value <= silo.gain.high
    assert results.worth_joining("balanced_accuracy").metric == "balanced_accuracy"


def test_a_table_of_visits_is_judged_by_patient_from_its_reading_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    lines = ["clinic,patient,age,marker,ill"]
    for clinic in ("north", "south"):
        for patient in range(40):
            age, marker = rng.normal(size=2)
            ill = "yes" if age + rng.normal(0, 0.7) > 0 else "no"
            lines += [
                f"{clinic},{clinic}{patient},{age + 0.1 * rng.normal():.3f},{marker + 0.1 * rng.normal():.3f},{ill}"
                for _ in range(4)
            ]
    (tmp_path / "visits.csv").write_text("\n".join(lines) + "\n")
    settings = {"rounds": 2, "data": {"name": str(tmp_path / "visits.csv")}}
    methods = ["separate", "fedavg"]
    tables = {"clinic": {"group": "patient"}, "plain": {"ignore": ["patient"]}}
    found = {
        name: fedkin.compare(
            settings | {"table": {"client": "clinic", "target": "ill"} | more},
            methods=methods,
            seeds=2,
            out=tmp_path / name,
        )
        for name, more in tables.items()
    }
    joining = found["clinic"].worth_joining()
    for silo in joining.silos:
        assert silo.subjects is not None and silo.samples == 4 * silo.subjects
        assert set(silo.beside) == {"majority", "linear"}
    assert all(silo.subjects is None for silo in found["plain"].worth_joining().silos)
    for run in found["clinic"].runs:
        outputs = run.outputs("north")
        assert outputs is not None and outputs.subjects is not None
        bare = replace(outputs, subjects=None).metrics()["north"]["chosen"]
        for name, score in run.metrics()["north"]["chosen"].items():
            assert score.value == bare[name].value
            assert score.high - score.low > 1.3 * (bare[name].high - bare[name].low), name
    assert not any("Intervals" in note for run in found["clinic"].runs for note in run.summary.notes)


def test_seeds_of_a_table_know_their_patients_and_those_of_dealt_data_do_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["clinic,age,ill"]
    for clinic, n in (("north", 40), ("south", 30)):
        age = rng.integers(20, 90, n)
        lines += [f"{clinic},{a},{'yes' if a + rng.normal(0, 20) > 55 else 'no'}" for a in age]
    (tmp_path / "patients.csv").write_text("\n".join(lines) + "\n")
    settings = {"rounds": 1, "data": {"name": str(tmp_path / "patients.csv")}}
    table = {"table": {"client": "clinic", "target": "ill"}}
    methods, seeds = ["separate", "fedavg"], [0, 1, 2]
    results = fedkin.compare(settings | table, methods=methods, seeds=seeds, out=tmp_path / "table")
    found = results.worth_joining()
    assert found.by_patient and found.seeds == (0, 1, 2)
    for silo, most in zip(found.silos, (40, 30), strict=True):
        assert round(most / 4) < silo.samples <= 3 * round(most / 4)
    dealt = {"rounds": 1, "data": {"name": "digits", "clients": 5}, "local": {"epochs": 1}}
    found = fedkin.compare(dealt, methods=methods, seeds=seeds, out=tmp_path / "digits").worth_joining()
    assert not found.by_patient
