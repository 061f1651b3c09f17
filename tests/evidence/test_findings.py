"""Each statistic of a comparison is worked out once, however many pages, tables and sentences speak of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import BASE, toy
from torch import Tensor

import fedkin
from fedkin.cli.terminal import show_comparison
from fedkin.evidence import comparison, estimates, findings, repeated_samples, worth_joining
from fedkin.evidence.findings import Findings
from fedkin.evidence.outputs import Outputs
from fedkin.maths import statistics
from fedkin.runs.config import merge

METHODS = ["separate", "fedavg", "fedamp"]
TASK: dict[str, Any] = merge(BASE, {"rounds": 2, "data": {"validation": 0.3}, "participation": {"novel": 0.25}})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods in three seeds, in log loss, whose intervals are bootstrapped."""
    path = tmp_path_factory.mktemp("compared") / "runs"
    settings = merge(TASK, {"learning": {"metric": "log_loss"}})
    fedkin.compare(settings, methods=METHODS, seeds=3, federation=toy((30, 26, 20, 14)), out=path)
    return path


def results(folder: Path) -> fedkin.Results:
    return fedkin.Results([fedkin.Run(folder / f"{method}-seed{s}") for method in METHODS for s in range(3)], folder)


def key(value: Any) -> Any:
    """What a call was about: numbers by their bytes, what was tested by its answers, all else as it is printed."""
    if isinstance(value, np.ndarray | Tensor):
        return np.asarray(value).tobytes()
    if isinstance(value, Outputs):
        return value.clients, value.models["chosen"].numpy().tobytes(), value.targets.numpy().tobytes()
    return tuple(map(key, value)) if isinstance(value, list | tuple) else repr(value)


def counted(monkeypatch: pytest.MonkeyPatch, *functions: tuple[Any, str]) -> dict[str, Counter[Any]]:
    """By `module.function`, how often it is called with the same arguments."""
    found: dict[str, Counter[Any]] = {}
    for module, name in functions:
        calls = found[f"{module.__name__.rpartition('.')[2]}.{name}"] = Counter()
        monkeypatch.setattr(module, name, _counting(getattr(module, name), calls))
    return found


def _counting(function: Callable[..., Any], calls: Counter[Any]) -> Callable[..., Any]:
    def called(*arguments: Any, **named: Any) -> Any:
        calls[key([*arguments, *named.items()])] += 1
        return function(*arguments, **named)

    return called


WORK = [
    (comparison, "by_method"),
    (comparison, "scored"),
    (comparison, "rows"),
    (comparison, "tests"),
    (comparison, "joining"),
    (comparison, "worse_than_alone"),
    (comparison, "client_scores"),
    (comparison, "curve"),
    (findings, "newcomers"),
    (worth_joining, "best_joint"),
    (worth_joining, "worth_joining"),
    (worth_joining, "scorecard"),
    (repeated_samples, "estimate"),
    (repeated_samples, "gain"),
    (estimates, "estimate"),
    (estimates, "gain"),
    (statistics, "resampled"),
    (statistics, "wilcoxon"),
    (statistics, "best_mean"),
]


def test_a_report_its_figures_and_the_terminal_work_everything_out_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = results(folder)
    calls = counted(monkeypatch, *WORK)
    compared.report()
    show_comparison(compared)
    compared.figures(formats=["png"])
    compared.rows(), compared.tests(), compared.worth_joining(), compared.worse_than_alone(), compared.frame()
    total = {name: sum(each.values()) for name, each in calls.items()}
    for name in ("by_method", "scored", "rows", "tests", "joining", "worse_than_alone"):
        assert total.pop(f"comparison.{name}") == 1, name
    for name in ("best_joint", "worth_joining", "scorecard"):
        assert total.pop(f"worth_joining.{name}") == 1, name
    metrics = 4  # accuracy, balanced accuracy, AUC, log loss
    tested = 3 * 3  # of four silos, in each of three seeds one is a newcomer
    assert total == {
        "findings.newcomers": 1,
        "comparison.curve": 5,  # a row of the table each
        "comparison.client_scores": 5 + 2 * 2,  # and over shared seeds alone and joined, of two joint methods
        "statistics.best_mean": 15,  # a model of a run each
        "statistics.wilcoxon": 3,  # a pair of methods each
        "repeated_samples.gain": 4 * 2,  # a silo each: joined, and a line of its own, over alone
        "repeated_samples.estimate": 4 * 2 + 4 * metrics,  # alone, global; of the models handed out every metric
        "estimates.gain": tested * 2,  # the same of each seed, as it is not known which sample is which
        "estimates.estimate": tested * (2 + metrics),
        "statistics.resampled": tested * (3 + 2),  # log loss: alone, global, handed out, and the gains
    }
    for name in ("comparison.curve", "statistics.best_mean", "statistics.wilcoxon", "estimates.gain"):
        assert set(calls[name].values()) == {1}, f"{name} is asked the same twice"
    assert "Was it worth joining?" in capsys.readouterr().out


def test_other_questions_are_answered_beside_the_first(folder: Path) -> None:
    found = Findings(results(folder).runs)
    assert found.tests() is found.tests()
    against = found.tests("fedavg")
    assert len(against) == 2 and {pair.first for pair in against} == {"fedavg:global"} and against is not found.tests()
    assert found.worth_joining() is found.joined is found.worth_joining("log_loss")
    assert found.worth_joining("auc").metric == "auc"
    assert Findings.of(found) is found and Findings.of(found.runs).rows == found.rows


def test_the_scorecard_says_of_the_runs_metric_what_silos_were_told(folder: Path) -> None:
    found = Findings(results(folder).runs)
    assert found.joined is not None and found.scorecard is not None
    apart = worth_joining.scorecard(found.members, found.best_joint)
    assert found.scorecard == apart, "worked out anew it is the same"


def test_what_is_handed_out_is_a_list_of_its_own(folder: Path) -> None:
    compared = results(folder)
    compared.rows().clear()
    compared.tests().clear()
    assert len(compared.rows()) == 5 and len(compared.tests()) == 3
