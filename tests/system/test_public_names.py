"""What users import stays where it is, however the house is rebuilt behind it."""

from __future__ import annotations

import importlib

import pytest

STAY = {
    "fedkin": (
        "Client Cohort Federation FedkinError JsonLines Levels Listener Method Prediction Predictor Problem Results "
        "Run Saved Sink State Task TensorBoard Tuned __version__ compare load resume run tune vary"
    ),
    "fedkin.method": "Cohort Local Memory Message Method Model Problem Proximal Round Server State Tensor Upload",
    "fedkin.task": (
        "Kind LOSSES Loss METRICS Metric NARROW ROOTS SampleLoss Task absolute_error against_the_rest auc "
        "balanced_accuracy class_weights classes_in correct cross_entropy known_errors log_odds loss_named "
        "masked_absolute_error masked_mean_squared_error masked_root_mean_squared_error masked_squared_error "
        "metric_named metrics_for reference_of root_mean_squared_error squared_error told_apart"
    ),
    "fedkin.data": (
        "NoSettings POOLED SPLITS Source UnknownData defaults description digest is_path is_table load located names "
        "settings_of short source splits"
    ),
    "fedkin.data.graphs": (
        "EARTH Given GraphError ROUNDING SUFFIXES checked complete empty from_collaboration from_coordinates "
        "from_distances from_edges from_matrix from_networkx in_order of of_groups permuted read"
    ),
    "fedkin.data.source": "Files Source remembering",
}
"""What each offered before the modules were laid into storeys (commit 6176844)."""
WHOLE = ["fedkin", "fedkin.method", "fedkin.task", "fedkin.data"]
"""Those that say themselves what they offer."""


@pytest.mark.parametrize("module", STAY)
def test_every_name_is_still_there(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in STAY[module].split() if not hasattr(found, name)] == []


@pytest.mark.parametrize("module", WHOLE)
def test_what_a_module_says_it_offers_it_has_and_nothing_was_left_out(module: str) -> None:
    found = importlib.import_module(module)
    assert set(STAY[module].split()) <= set(found.__all__)
    assert all(hasattr(found, name) for name in found.__all__)


@pytest.mark.parametrize(
    ("door", "room"), [("fedkin.method", "fedkin.methods._method"), ("fedkin.task", "fedkin.base.task")]
)
def test_a_door_leads_to_the_room_itself_and_not_to_a_copy(door: str, room: str) -> None:
    outside, inside = importlib.import_module(door), importlib.import_module(room)
    assert all(getattr(outside, name) is getattr(inside, name) for name in outside.__all__)


def test_a_source_by_its_name_is_a_function_though_a_module_is_called_so_too() -> None:
    assert callable(importlib.import_module("fedkin.data").source)
