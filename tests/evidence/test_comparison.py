"""Which runs are one method, tried twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import Folder, make

from fedkin.evidence.comparison import INCIDENTAL, by_method, flat_settings, variations
from fedkin.runs.config import Config

FIELDS = flat_settings(Config().model_dump(mode="json"))


def test_settings_that_do_not_matter_exist() -> None:
    assert set(FIELDS) >= INCIDENTAL


def set_to(run: Folder, setting: str, value: object) -> Folder:
    """The run as if its configuration said so."""
    run.config = run.config | {setting: value}
    return run


@pytest.mark.parametrize("setting", sorted(INCIDENTAL))
def test_where_and_how_a_run_is_computed_does_not_make_it_another_method(tmp_path: Path, setting: str) -> None:
    one, other = (set_to(make(tmp_path / name), setting, name) for name in ("a", "b"))
    assert variations([one, other]) == []
    with pytest.raises(ValueError, match="both fedamp with seed 0 and the same settings. Leave one of them out"):
        by_method([one, other])


@pytest.mark.parametrize("setting", ["precision", "local.lr", "settings.weights", "rounds"])
def test_what_changes_the_numbers_does(tmp_path: Path, setting: str) -> None:
    one, other = (set_to(make(tmp_path / name), setting, name) for name in ("a", "b"))
    leaf = setting.rpartition(".")[2]
    assert list(by_method([one, other])) == [f"fedamp ({leaf}=a)", f"fedamp ({leaf}=b)"]
