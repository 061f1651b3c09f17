"""A configuration is complete, says what is wrong with it, and survives being written down."""

from __future__ import annotations

import copy
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from fedkin import FedkinError, methods
from fedkin.base.settings import ConfigError
from fedkin.data.federation import Federation
from fedkin.runs.config import Config, merge, read_toml, resolve, to_toml
from fedkin.runs.options import nested

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.booleans()
VALUES = st.recursive(NUMBERS | TEXT, lambda inner: st.lists(inner, max_size=3), max_leaves=5)
TABLES = st.recursive(
    st.dictionaries(TEXT, VALUES, max_size=4), lambda inner: st.dictionaries(TEXT, VALUES | inner, max_size=3)
)


def without_empty_tables(table: dict[str, Any]) -> dict[str, Any]:
    cleaned = {k: without_empty_tables(v) if isinstance(v, dict) else v for k, v in table.items()}
    return {k: v for k, v in cleaned.items() if v != {}}


# ---- on paper ----


@given(TABLES)
def test_what_is_written_as_toml_reads_back_the_same(table):
    assert without_empty_tables(tomllib.loads(to_toml(table))) == without_empty_tables(table)


def test_what_has_no_value_is_left_out_of_the_file():
    assert tomllib.loads(to_toml({"a": None, "b": 1, "t": {"c": None}})) == {"b": 1, "t": {}}


def test_a_value_that_toml_has_no_word_for_is_refused():
    with pytest.raises(ConfigError, match="Path"):
        to_toml({"a": Path("x")})


@pytest.mark.parametrize("method", methods.names())
def test_a_resolved_configuration_resolves_to_itself(method):
    config = resolve({"method": method, "local": {"class_weights": [1.0] * 10}, "data": {"split": "relabelled"}})
    assert resolve(tomllib.loads(to_toml(config.model_dump(mode="json")))) == config


def test_values_by_client_survive_the_file_whatever_the_clients_are_called():
    beta = {"St. Mary's": 1.0, 'a "quoted" name': 2.0, "line\nbreak\x7f": 3.0, "été": 4.0}
    config = resolve({"settings": {"beta": beta}})
    assert resolve(tomllib.loads(to_toml(config.model_dump(mode="json")))).settings["beta"] == beta


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"rounds = ", "is not valid TOML"),
        (b"rounds = 3\nrounds = 4", "is not valid TOML"),
        (b"\xff\xfe\x00", "is not valid TOML"),
    ],
)
def test_a_file_that_is_not_toml_is_named(tmp_path, content, said):
    path = tmp_path / "own.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"own\.toml {said}"):
        read_toml(path)


def test_a_file_that_is_not_there_or_is_a_folder_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"There is no configuration file .*absent\.toml"):
        read_toml(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_toml(tmp_path)


# ---- what is not said ----


def test_a_data_set_brings_its_own_rounds_model_and_local_training():
    config = resolve({"data": {"name": "digits"}})
    assert (config.rounds, config.model.settings, config.local.batch_size) == (30, {"hidden": [64]}, 16)


def test_what_the_user_says_wins_over_the_method_and_the_method_over_the_data_set():
    def local(method: str, **said: Any) -> tuple[Any, ...]:
        found = resolve({"method": method, "local": said}).local
        return found.optimiser, found.lr, found.epochs

    assert local("fedavg") == ("adam", 0.01, 5)
    assert local("scaffold") == ("sgd", 0.05, 5)
    assert local("scaffold", lr=0.2) == ("sgd", 0.2, 5)


def test_another_model_does_not_inherit_the_settings_of_the_data_sets_model():
    assert resolve({"model": {"name": "logistic"}}).model.settings == {}
    assert resolve({"model": {"settings": {"hidden": [3]}}}).model.settings == {"hidden": [3]}


def test_one_seed_gives_all_three_and_each_can_be_given_apart():
    assert resolve({"seed": 7}).seeds == (7, 7, 7)
    assert resolve({"seed": 7, "init_seed": 1}).seeds == (7, 1, 7)
    assert resolve({"split_seed": 0, "training_seed": 2, "seed": 7}).seeds == (0, 7, 2)


def test_the_papers_preset_gives_its_values_where_it_has_any_and_defaults_elsewhere():
    def settings(name: str, split: str = "practical", **said: Any) -> tuple[Any, Any]:
        data = {"name": name, "given": name != "digits", "split": split}
        found = resolve({"preset": "paper", "data": data, "settings": said}).settings
        return found["sigma"], found["weight_on_others"]

    assert settings("mnist") == (100, 0.95)
    assert settings("emnist", "iid") == (10, 0.984)
    assert settings("mnist", sigma=7.0) == (7.0, 0.95)
    assert settings("digits") == settings("mnist", "dirichlet") == settings("somebody's own") == ("auto", "attention")


PAPERS = ("mnist", "fmnist", "emnist", "cifar100")


@pytest.mark.parametrize("name", [*PAPERS, "digits", "heart", "fl60"])
@pytest.mark.parametrize("method", ["fedamp", "heurfedamp", "fedavg", "separate", "pfedme"])
def test_the_papers_preset_is_the_papers_setting_on_every_data_set(method, name):
    """Huang et al. train on all that is not for testing, name no augmentation, and start, in the preprint, each client
    from separate training; they do not say how many rounds there were."""
    config = resolve({"preset": "paper", "method": method, "data": name})
    assert (config.data.validation, config.data.augment, config.rounds) == (0.0, False, 100)
    assert config.settings.get("init", "pretrained") == "pretrained"
    if name in PAPERS:  # section 4.1 of the preprint
        assert (config.local.epochs, config.local.batch_size) == (10, 100)
        assert (config.local.optimiser, config.local.lr) == ("adam", 1e-3)
    ours = resolve({"method": method, "data": name})
    assert (ours.data.validation, ours.data.augment) == (0.1, name == "cifar100")
    assert ours.settings.get("init", "common") == "common"


def test_what_the_user_says_wins_over_the_papers_preset():
    said = {
        "rounds": 20,
        "data": {"name": "cifar100", "validation": 0.2, "augment": True},
        "settings": {"init": "common"},
    }
    config = resolve({"preset": "paper", **said})
    assert (config.rounds, config.data.validation, config.data.augment) == (20, 0.2, True)
    assert (config.settings["init"], config.settings["sigma"]) == ("common", 1e6)
    assert resolve(config.model_dump(mode="json")) == config


def test_a_configuration_cannot_be_changed_afterwards():
    with pytest.raises(ValidationError):
        Config().rounds = 3  # type: ignore[misc]


@given(TABLES, TABLES)
def test_laying_one_table_over_another_keeps_both_as_they_were_and_lets_the_upper_win(below, above):
    before = copy.deepcopy((below, above))
    merged = merge(below, above)
    assert (below, above) == before
    assert set(merged) == set(below) | set(above)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        assert merged[key] == (merge(below[key], value) if both else value)


# ---- what is wrong ----


@pytest.mark.parametrize(
    ("raw", "wrong", "right"),
    [
        ({"rouns": 3}, "rouns", "rounds"),
        ({"local": {"batchsize": 3}}, "local.batchsize", "local.batch_size"),
        ({"local": {"learning_rate": 3}}, "local.learning_rate", None),
        ({"data": {"splt": "iid"}}, "data.splt", "data.split"),
        ({"model": {"nam": "mlp"}}, "model.nam", "model.name"),
        ({"participation": {"drop": 0.1}}, "participation.drop", "participation.dropped"),
        ({"settings": {"sgima": 1}}, "settings.sgima", "settings.sigma"),
    ],
)
def test_an_unknown_setting_is_answered_with_its_place_and_the_nearest_right_one(raw, wrong, right):
    with pytest.raises(ConfigError) as caught:
        resolve(raw)
    assert f"There is no setting {wrong!r}" in str(caught.value)
    if right:
        assert f"Did you mean {right!r}?" in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "place", "reason"),
    [
        ({"rounds": 0}, "rounds = 0", "greater than or equal to 1"),
        ({"rounds": "many"}, "rounds = 'many'", "integer"),
        ({"seed": -1}, "seed = -1", "greater than or equal to 0"),
        ({"local": {"lr": 0}}, "local.lr = 0", "greater than 0"),
        (
            {"local": {"class_weights": "some"}},
            "local.class_weights = 'some'",
            "it has to be 'none', 'balanced' or a list.",
        ),
        ({"local": {"betas": [0.9]}}, "local.betas = [0.9]", "required"),
        ({"participation": {"lost": 1}}, "participation.lost = 1", "less than 1"),
        ({"data": {"clients": 0}}, "data.clients = 0", "greater than or equal to 1"),
        ({"data": {"split": "practicl"}}, "data.split = 'practicl'", "Did you mean 'practical'?"),
        ({"settings": {"sigma": "wide"}}, "settings.sigma = 'wide'", "it has to be 'auto' or a number."),
        ({"settings": {"beta": -1}}, "settings.beta = -1", "greater than 0"),
        ({"local": "adam"}, "local is a table of settings (epochs, batch_size", "not 'adam'"),
        ({"settings": 3}, "settings is a table of settings", "not 3"),
        ({"model": {"settings": [64]}}, "model.settings is a table of settings", "not [64]"),
    ],
)
def test_a_wrong_value_is_refused_with_the_place_the_value_and_the_reason(raw, place, reason):
    with pytest.raises(ConfigError) as caught:
        resolve(raw)
    sentence = str(caught.value)
    assert place in sentence
    assert reason in sentence
    assert "\n" not in sentence


def test_a_setting_that_only_another_method_has_is_refused_with_the_methods_name():
    with pytest.raises(ConfigError, match=r"Method 'fedavg': There is no setting 'settings\.sigma'"):
        resolve({"method": "fedavg", "settings": {"sigma": 1}})


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"method": "fedampp"}, "There is no method 'fedampp'. Did you mean 'fedamp'?"),
        ({"data": {"name": "digit"}}, "There is no data set 'digit'. Did you mean 'digits'?"),
        ({"method": "nowhere_at_all:Method"}, "'nowhere_at_all:Method' could not be imported"),
        ({"method": "pathlib:Path"}, "should be a subclass of fedkin.Method"),
    ],
)
def test_an_unknown_method_or_data_set_is_answered_with_the_nearest(raw, said):
    with pytest.raises(FedkinError) as caught:
        resolve(raw)
    assert said in str(caught.value)


# ---- a truth is no number ----


def numbers_only(model: type[BaseModel], place: str = "") -> list[str]:
    """Settings that are numbers, and no truths."""
    found = []
    for name, info in model.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found += numbers_only(inner, f"{place}{name}.")
        elif re.search(r"\b(int|float)\b", str(inner)) and not re.search(r"\bbool\b", str(inner)):
            found.append(f"{place}{name}")
    return found


@pytest.mark.parametrize("name", [name for name in numbers_only(Config) if "missing" not in name])
def test_a_truth_is_refused_where_a_number_is_meant(name):
    for value in (True, False):
        with pytest.raises(ConfigError, match=rf"^{re.escape(name)} = {str(value).lower()} cannot be: "):
            resolve(nested(name, value))


@pytest.mark.parametrize("method", methods.names())
def test_a_truth_is_refused_for_every_number_of_a_method(method):
    for name in numbers_only(methods.find(method)):
        with pytest.raises(ConfigError, match=rf"settings\.{name} = true cannot be: "):
            resolve({"method": method, "settings": {name: True}})


def test_a_truth_is_refused_in_a_list_of_numbers_and_stays_where_it_is_meant():
    with pytest.raises(ConfigError, match="local.betas"):
        resolve({"local": {"betas": [True, 0.9]}})
    assert resolve({"local": {"nesterov": True, "momentum": 0.9}}).local.nesterov is True
    assert resolve({"model": {"name": "gru", "settings": {"teacher": True}}}).model.settings == {"teacher": True}


# ---- statistics ----


class Hermit(methods.find("separate")):  # type: ignore[misc]
    """Trains alone, in its own way."""


class Gossip(methods.find("separate")):  # type: ignore[misc]
    """Was alone, and tells others now."""

    alone = False


@pytest.mark.parametrize(
    ("method", "comes_to"),
    [("separate", "own"), ("fedavg", "shared"), ("fedamp", "shared"), ("Hermit", "own"), ("Gossip", "shared")],
)
def test_who_trains_alone_prepares_a_table_by_itself_and_that_is_recorded(method, comes_to):
    method = f"{__name__}:{method}" if method[0].isupper() else method
    for said in ({}, {"statistics": "auto"}):
        config = resolve({"data": "patients.csv", "method": method, "table": {"client": "c", "target": "t", **said}})
        assert config.table.statistics == comes_to
        written = tomllib.loads(to_toml(config.model_dump(mode="json")))
        assert written["table"]["statistics"] == comes_to and resolve(written) == config
    for said in ("shared", "own"):
        config = resolve({"data": "patients.csv", "method": method, "table": {"statistics": said}})
        assert config.table.statistics == said, "what was said holds for all"


def made():
    return MADE


MADE = Federation.from_arrays({"a": ([[0.0], [1.0]] * 4, [0, 1] * 4)})


def test_data_that_are_no_table_have_nothing_to_decide(tmp_path):
    (tmp_path / "arrays" / "north").mkdir(parents=True)
    (tmp_path / "arrays" / "north" / "x.npy").touch()
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "north.csv").touch()

    def alone(data):
        return resolve({"data": data, "method": "separate"}).table.statistics

    assert [alone(data) for data in ("digits", "fl60", str(tmp_path / "arrays"))] == ["shared"] * 3
    assert [alone(data) for data in ("heart", str(tmp_path / "tables"), f"{__name__}:made")] == ["own"] * 3
    assert alone(f"{__name__}:MADE") == "shared"
