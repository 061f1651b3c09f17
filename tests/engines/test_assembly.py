"""What a run is told before it starts: what is not wrong but may surprise."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import ready

from fedkin.engines.start import prepare


def told(**settings: Any) -> list[str]:
    return [sentence for sentence in ready(preset="paper", **settings).warnings if "paper" in sentence]


ROUNDS = "preset = 'paper': the papers do not say how many rounds they had; here it is 100."


def test_the_papers_preset_says_what_the_papers_do_not() -> None:
    (few,) = told(method="fedamp", rounds=3)
    assert few.startswith("preset = 'paper': fedamp has no values that were published for toy (")
    assert told(method="fedamp", rounds=100)[0] == ROUNDS
    assert told(method="fedavg", rounds=3) == [], "who has no settings lacks none"


@pytest.mark.parametrize("method", ["fedamp", "separate"])
def test_everything_ends_well_without_a_validation_part(tmp_path: Any, method: str) -> None:
    """All data are trained on, the headline model is handed out, and there is no score of validation data."""
    import fedkin

    run = fedkin.run(method=method, data="digits", preset="paper", rounds=1, out=tmp_path / method)
    assert sum(run.summary.samples or ()) == 20 * 40 and run.summary.preset == run.config["preset"] == "paper"
    assert all(model.validated is None for model in run.summary.models.values())
    assert {run.model(name)[1]["chosen"] for name in run.summary.clients} == {run.summary.headline}
    assert ROUNDS in prepare(method=method, data="digits", preset="paper").warnings
