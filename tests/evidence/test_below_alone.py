"""A method below training alone is told with what the records show of why, and with nothing that they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import GROUPS, Folder, make

from fedkin.evidence.below_alone import Below
from fedkin.evidence.findings import Findings
from fedkin.evidence.grid import Rates, Trial
from fedkin.report.training import below_sentences

ROUNDS, CLIENTS = 20, len(GROUPS)


def flat(level: float) -> list[list[float]]:
    """(rounds and the closing exchange, clients) around a level, without a trend."""
    return [[level + 0.01 * ((i + k) % 3 - 1) for i in range(CLIENTS)] for k in range(ROUNDS + 1)]


def rising(level: float) -> list[list[float]]:
    return [[level + 0.01 * (i % 3) + 0.01 * k for i in range(CLIENTS)] for k in range(ROUNDS + 1)]


def run(folder: Path, method: str, vectors: dict[str, Any], settings: str = "") -> Folder:
    """A run with these scores, on test as on validation data, and a training loss that fell to nothing."""
    made = make(folder / method, method, rounds=ROUNDS, vectors=vectors, settings=settings)
    path = made.path / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["train_loss"] = 2.0 * 0.7 ** line["round"]
        for scores in line["models"].values():
            if scores["validation"]:
                scores["validation"] = {"mean": float(np.mean(scores["clients"])), "clients": scores["clients"]}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made


def change(made: Folder, **values: Any) -> Folder:
    """The run as if every round had said this too; a function is given the round."""
    path = made.path / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line |= {name: value(line["round"]) if callable(value) else value for name, value in values.items()}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made


def below(*runs: Folder, tuned: dict[str, Rates] | None = None) -> tuple[list[Below], str]:
    found = Findings(runs, tuned)
    return found.below_alone, " ".join(below_sentences({"": found}))


def alone(folder: Path, **more: Any) -> Folder:
    return run(folder, "separate", {"personal": flat(0.8)}, **more)


def test_where_nothing_is_seen_that_is_said(tmp_path: Path) -> None:
    found, said = below(alone(tmp_path), run(tmp_path, "fedamp", {"cloud": flat(0.7), "personal": flat(0.7)}))
    assert [each.row.name for each in found] == ["fedamp:cloud"]
    assert found[0].gap == pytest.approx(0.1, abs=0.01)
    assert "fedamp:cloud is 10.0 points worse than training alone" in said
    assert said.endswith("; why is not seen in the records.")


def test_a_method_above_or_within_chance_is_not_told(tmp_path: Path) -> None:
    mixed = [[0.79 + 0.04 * (-1) ** i for i in range(CLIENTS)]] * (ROUNDS + 1)  # worse by a hair, for half of them
    for number, scores in enumerate((flat(0.9), mixed)):
        folder = tmp_path / str(number)
        found, said = below(alone(folder), run(folder, "fedamp", {"cloud": scores, "personal": flat(0.5)}))
        assert (found, said) == ([], "")


def test_without_training_alone_nothing_is_below_it(tmp_path: Path) -> None:
    one, two = {"cloud": flat(0.7), "personal": flat(0.7)}, {"global": flat(0.3), "finetuned": flat(0.3)}
    assert below(run(tmp_path, "fedamp", one), run(tmp_path, "fedavg", two)) == ([], "")


@pytest.mark.parametrize(("finetuned", "told"), [(0.85, True), (0.76, True), (0.73, False)])
def test_one_model_for_clients_that_differ_is_seen_by_what_they_make_of_it(
    tmp_path: Path, finetuned: float, told: bool
) -> None:
    one = run(tmp_path, "fedavg", {"global": flat(0.7), "finetuned": flat(finetuned)})
    found, said = below(alone(tmp_path), one)
    assert (found[0].other is not None) == told
    assert ("it is one model for all, and clients differ: what each makes of it, finetuned, comes to" in said) == told


def test_a_method_that_was_still_improving_is_seen(tmp_path: Path) -> None:
    one = run(tmp_path, "fedamp", {"cloud": rising(0.3), "personal": flat(0.3)})
    found, said = below(alone(tmp_path), one)
    assert found[0].rise == (pytest.approx(0.04), 5), "five rounds of twenty and the closing one, 0.01 each"
    assert "it was still improving, by 4.0 points of validation accuracy in the last 5 rounds" in said


def test_what_more_rounds_do_not_cure_is_not_put_down_to_too_few(tmp_path: Path) -> None:
    levels = 0.65 - 0.6 * 0.9 ** np.arange(ROUNDS + 1)  # seven points are to come, and twenty are missing
    slowing = (levels[:, None] + 0.01 * (np.arange(CLIENTS) % 3)).tolist()
    found, said = below(alone(tmp_path), run(tmp_path, "fedamp", {"cloud": slowing, "personal": flat(0.3)}))
    assert 0.2 < found[0].gap < 0.35 and found[0].rise is None, "it will end at 0.66, and alone is 0.8"
    assert "improving" not in said


def test_what_improves_no_faster_than_training_alone_does_not_catch_up(tmp_path: Path) -> None:
    both = run(tmp_path, "separate", {"personal": rising(0.6)})
    found, said = below(both, run(tmp_path, "fedamp", {"cloud": rising(0.5), "personal": flat(0.3)}))
    assert found[0].rise is None and "improving" not in said


def test_noise_is_no_improvement(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).normal(0, 0.03, (ROUNDS + 1, 1))
    scores = (0.5 + noise + 0.001 * np.arange(ROUNDS + 1)[:, None] + np.zeros(CLIENTS)).tolist()
    found, _ = below(alone(tmp_path), run(tmp_path, "fedamp", {"cloud": scores, "personal": flat(0.3)}))
    assert found[0].rise is None


LOCAL = '[local]\noptimiser = "{}"\nlr = {}\n'


def tried(one: Folder, scores: list[float], rates: list[float]) -> dict[str, Rates]:
    trials = [
        Trial(f"{rate:g}", {"local.lr": rate}, [one], score, 1) for rate, score in zip(rates, scores, strict=True)
    ]
    return {"fedamp": Rates({"local.lr": rates}, trials, "fedamp", 0.1)}


@pytest.mark.parametrize(
    ("own", "chosen", "told"),
    [
        (("sgd", 0.1), False, True),
        (("sgd", 0.1), True, True),
        (("adam", 0.1), False, True),
        (("adam", 0.1), True, False),  # each has its own rate, as it was chosen
        (("adam", 0.01), False, False),
    ],
)
def test_another_optimiser_or_a_rate_that_nobody_chose_is_told(
    tmp_path: Path, own: tuple[str, float], chosen: bool, told: bool
) -> None:
    scores = {"cloud": flat(0.7), "personal": flat(0.7)}
    one = run(tmp_path, "fedamp", scores, LOCAL.format(*own))
    rates = tried(one, [0.1, 0.2, 0.1], [0.01, 0.1, 1.0]) if chosen else None
    found, said = below(alone(tmp_path, settings=LOCAL.format("adam", 0.01)), one, tuned=rates)
    assert (found[0].trained is not None) == told
    assert ("training alone with Adam 0.01" in said) == told


def test_a_rate_at_the_edge_is_told(tmp_path: Path) -> None:
    one = run(tmp_path, "fedamp", {"cloud": flat(0.7), "personal": flat(0.7)})
    for scores, told in (([0.1, 0.2, 0.3], True), ([0.1, 0.3, 0.2], False)):
        found, said = below(alone(tmp_path / str(told)), one, tuned=tried(one, scores, [0.01, 0.1, 1.0]))
        assert (found[0].rate is not None) == told
        assert ("local.lr = 1, lies at the edge of what was tried" in said) == told


def test_a_training_loss_that_is_still_high_is_told(tmp_path: Path) -> None:
    one = run(tmp_path, "fedamp", {"cloud": flat(0.7), "personal": flat(0.7)})
    found, said = below(alone(tmp_path), change(one, train_loss=lambda k: 2.3 if k == 1 else 2.0))
    assert found[0].loss is not None
    assert found[0].loss[:2] == pytest.approx((2.3, 2.0))
    assert "its training loss is still high: 2 at the end, 2.3 in the first round, alone 0." in said


def test_a_loss_that_one_model_for_all_cannot_but_have_is_no_further_reason(tmp_path: Path) -> None:
    one = run(tmp_path, "fedavg", {"global": flat(0.4), "finetuned": flat(0.8)})
    found, _ = below(alone(tmp_path), change(one, train_loss=2.0))
    assert found[0].other is not None and found[0].loss is None


def test_weight_on_other_groups_is_told_where_the_groups_are_worth_keeping_to(tmp_path: Path) -> None:
    one = run(tmp_path, "fedamp", {"cloud": flat(0.7), "personal": flat(0.7)})
    one.change(collaboration={"within_group": 0.2, "adjusted_rand": 0.1, "round": 3})
    oracle = run(tmp_path, "fedavg", {"global": flat(0.9), "finetuned": flat(0.9)})
    oracle.change(method="groups")
    _, said = below(alone(tmp_path), one, oracle)
    assert "80 % of its weight goes to other groups, and staying inside one's own is 90.1 %" in said
    _, said = below(alone(tmp_path / "without"), one)
    assert "other groups" not in said


def test_training_that_was_not_finite_is_counted(tmp_path: Path) -> None:
    one = run(tmp_path, "fedamp", {"cloud": flat(0.7), "personal": flat(0.7)})
    _, said = below(alone(tmp_path), change(one, diverged=lambda k: ["silo-00", "silo-01"] if k < 3 else []))
    assert "training was not finite 4 times" in said
