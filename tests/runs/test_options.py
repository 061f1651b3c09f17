"""Settings typed at the command line: every spelling means the same, and nothing is guessed."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from fedkin import methods
from fedkin.base.settings import ConfigError
from fedkin.methods import UnknownMethod
from fedkin.runs.config import resolve
from fedkin.runs.options import SHORT, meaning, parse, paths


@pytest.mark.parametrize(
    "words",
    [
        ["--local.batch_size", "8"],
        ["--local.batch_size=8"],
        ["local.batch_size=8"],
        ["--batch_size", "8"],
        ["--batch-size", "8"],
        ["--batch-size=8"],
        ["batch-size=8"],
        ["--local.batch-size", "8"],
    ],
)
def test_every_spelling_of_a_setting_means_the_same(words):
    assert parse(words) == {"local": {"batch_size": 8}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("1e-4", 1e-4),
        ("inf", float("inf")),
        ("true", True),
        ("[64, 32]", [64, 32]),
        ('{"silo-00" = 2.0}', {"silo-00": 2.0}),
        ('"10"', "10"),
        ("fedamp", "fedamp"),
        ("package.module:a=b", "package.module:a=b"),
        ("", ""),
    ],
)
def test_a_value_is_read_as_toml_where_it_is_toml_and_else_is_a_word(text, value):
    assert parse([f"loss={text}"]) == {"learning": {"loss": value}}
    assert parse(["--loss", text]) == {"learning": {"loss": value}}


def test_the_data_set_and_the_model_go_by_the_name_of_their_table():
    words = ["--data", "digits", "--model", "mlp", "--model.settings.hidden", "[8]"]
    assert parse(words) == {"data": {"name": "digits"}, "model": {"name": "mlp", "settings": {"hidden": [8]}}}


@pytest.mark.parametrize("method", methods.names())
def test_every_setting_can_be_given_by_its_full_name(method):
    for path in paths([method]):
        value: object = method if path == "method" else 1
        table = parse(["--method", method, f"{path}={value}"])
        value = {"table.ignore": ["1"], "table.categorical": ["1"], "table.missing": [1], "local.betas": [1]}.get(
            path, value
        )
        *tables, leaf = path.split(".")
        for name in tables:
            table = table[name]
        assert table[leaf] == value


@pytest.mark.parametrize("method", methods.names())
def test_a_last_name_means_the_one_setting_that_ends_so_or_is_refused(method):
    known = paths([method])
    for leaf in {path.rpartition(".")[2] for path in known} - {"method", "settings", *SHORT}:
        meant = [path for path in known if path.rpartition(".")[2] == leaf]
        if len(meant) == 1 or leaf in known:
            full = leaf if leaf in known else meant[0]
            assert parse(["--method", method, f"{leaf}=1"]) == parse(["--method", method, f"{full}=1"])
        else:
            with pytest.raises(ConfigError) as caught:
                parse(["--method", method, f"{leaf}=1"])
            assert all(path in str(caught.value) for path in meant)


def test_a_name_that_could_be_two_settings_is_refused_with_both():
    with pytest.raises(ConfigError, match=r"'alpha' could be data\.alpha or settings\.alpha; write it in full"):
        parse(["--method", "apfl", "--alpha", "0.3"])
    assert parse(["--method", "fedavg", "--alpha", "0.3"])["data"] == {"alpha": 0.3}


def test_the_last_of_two_values_counts():
    assert parse(["rounds=3", "--rounds", "4"]) == {"rounds": 4}


def test_settings_win_over_the_file_wherever_they_stand(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('method = "scaffold"\nrounds = 9\n[local]\nlr = 0.3\n')
    for words in ([str(file), "rounds=2"], ["rounds=2", str(file)]):
        assert parse(words) == {"method": "scaffold", "rounds": 2, "local": {"lr": 0.3}}


def test_the_methods_own_settings_are_those_of_the_method_that_is_run(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('method = "fedprox"\n')
    assert parse([str(file), "--mu", "0.5"])["settings"] == {"mu": 0.5}
    for said in ("fedprox", '"fedprox"'):
        assert parse(["--mu", "0.5", "--method", said])["settings"] == {"mu": 0.5}
    assert parse(["--sigma", "3"])["settings"] == {"sigma": 3}, "fedamp is what is run unless told otherwise"
    with pytest.raises(ConfigError, match="'sigma' is a setting of fedamp, heurfedamp, not"):
        parse([str(file), "--sigma", "3"])


def test_a_comparison_knows_the_settings_of_all_its_methods_and_of_each_alone():
    assert parse(["--mu", "0.5", "--sigma", "3"], several=["fedprox", "fedamp"])["settings"] == {"mu": 0.5, "sigma": 3}
    assert parse(["methods.fedamp.settings.sigma=3"], several=["fedamp"])["methods"] == {
        "fedamp": {"settings": {"sigma": 3}}
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rounds"], "The option --rounds needs a value: --rounds VALUE."),
        (["--rounds", "--seed", "3"], "The option --rounds needs a value"),
        (["fedamp"], "'fedamp' is neither a configuration file (.toml) nor a setting (key=value)."),
        (["-r", "3"], "'-r' is neither a configuration file"),
        (["--methd", "fedamp"], "There is no setting 'methd'. Did you mean 'method'?"),
        (["--batchsize", "3"], "Did you mean 'batch_size'?"),
        (["--local.batchsize", "3"], "Did you mean 'local.batch_size'?"),
        (["--local", "3"], "'local' is a table; its settings are local.epochs, local.batch_size"),
        (["absent.toml"], "There is no configuration file absent.toml."),
    ],
)
def test_what_cannot_be_understood_is_answered_with_what_would_be(words, said):
    with pytest.raises(ConfigError) as caught:
        parse(words)
    assert said in str(caught.value)


def test_a_setting_like_no_other_is_answered_with_each_known_one_once():
    with pytest.raises(ConfigError) as caught:
        parse(["--qqqq", "3"])
    listed = str(caught.value).partition("Known are ")[2].rstrip(".").split(", ")
    assert listed == paths(["fedamp"])


def test_an_unknown_method_is_answered_before_its_settings_are():
    with pytest.raises(UnknownMethod, match="Did you mean 'fedprox'"):
        parse(["--method", "fedprocks", "--mu", "3"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("admitted", ["admitted"]),
        ("admitted,patient_id", ["admitted", "patient_id"]),
        ("admitted, patient id,", ["admitted", "patient id"]),
        ('["admitted", "patient_id"]', ["admitted", "patient_id"]),
        ('"last, first"', ["last, first"]),
        ('"a","b"', ["a", "b"]),
        ("2019,true", ["2019", "true"]),
        ("", []),
    ],
)
@pytest.mark.parametrize("setting", ["ignore", "categorical"])
def test_a_list_of_names_may_be_words_with_commas(setting, text, value):
    for words in ([f"--{setting}", text], [f"--table.{setting}={text}"]):
        assert parse(words) == {"table": {setting: value}}
    assert getattr(resolve(parse([f"--{setting}", text])).table, setting) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NA,-", ["NA", "-"]),
        ("-", ["-"]),
        ("-9", [-9]),
        ("?,NA,-9,0.5", ["?", "NA", -9, 0.5]),
        ('"-9",NA', ["-9", "NA"]),
        ("nan,inf,true,2020-01-01", ["nan", "inf", "true", "2020-01-01"]),
        ('["NA", -9]', ["NA", -9]),
    ],
)
def test_numbers_among_what_means_missing_are_numbers_and_the_rest_are_words(text, value):
    found = parse(["--missing", text])["table"]["missing"]
    assert found == value
    assert [isinstance(each, str) for each in found] == [isinstance(each, str) for each in value]
    assert resolve(parse(["--missing", text])).table.missing == value


def test_a_setting_that_is_a_word_or_a_list_is_a_list_where_there_is_a_comma():
    assert parse(["--class-weights", "balanced"]) == {"local": {"class_weights": "balanced"}}
    assert parse(["--class-weights", "1,2.5"]) == {"local": {"class_weights": [1, 2.5]}}
    assert parse(["--betas", "0.5,0.9"]) == {"local": {"betas": [0.5, 0.9]}}
    assert parse(["--loss", "a,b"]) == {"learning": {"loss": "a,b"}}, "no list"
    assert parse(["--missing-in", "{chol = [0]}"]) == {"table": {"missing_in": {"chol": [0]}}}


def test_a_number_that_toml_writes_otherwise_is_still_a_number():
    assert resolve(parse(["--lr", ".5", "--seed", "07"])).local.lr == 0.5


@pytest.mark.parametrize(
    ("description", "told"),
    [
        ("mean or median", "mean or median"),
        ("what it becomes", "what it becomes (mean, median)"),
        ("the mean", "the mean (mean, median)"),
        ("medians, and meaningless", "medians, and meaningless (mean, median)"),
        ("", "mean, median"),
    ],
)
def test_the_words_that_a_setting_may_be_are_told_once(description, told):
    class Filled(BaseModel):
        fill: Annotated[Literal["mean", "median"] | list[float], Field(description=description)] = "mean"

    assert meaning(Filled.model_fields["fill"]) == told


# ---- what a sentence tells someone to type can be typed ----


def last_names() -> list[str]:
    """Every last name that two settings share, whatever the methods."""
    full = dict.fromkeys(path for method in methods.names() for path in paths([method]))
    last = [path.rpartition(".")[2] for path in full]
    return sorted({name for name in last if last.count(name) > 1 and name not in SHORT and name not in full})


@pytest.mark.parametrize("name", last_names())
def test_an_ambiguous_name_is_answered_with_full_names_that_can_be_typed(name):
    assert last_names() >= ["alpha", "name", "top"]
    with pytest.raises(ConfigError) as caught:
        parse([f"--{name}", "1"], several=methods.names())
    options = re.findall(r"--[\w.]+", str(caught.value))
    assert len(options) > 1
    for option in options:
        table, setting = option[2:].rsplit(".", 1)
        assert parse([option, "1"], several=methods.names()) == {table: {setting: 1}}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["patients.csv"], "'patients.csv' is neither a configuration file (.toml) nor a setting (key=value); a table"),
        (["patients.csv"], "is named by --data patients.csv."),
        (["--methods", "fedamp,fedavg"], "`fedkin compare --methods fedamp,fedavg` runs several methods"),
        (["--seeds", "3"], "`fedkin compare --seeds 3` runs several seeds"),
    ],
)
def test_what_belongs_elsewhere_is_told_where(words, says):
    with pytest.raises(ConfigError) as caught:
        parse(words)
    assert says in str(caught.value)
