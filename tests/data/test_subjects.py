"""Patients with several visits: never on both sides, never an input; and who was not named is noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.data.federation import Client, Federation, FederationError
from fedkin.data.table import TableError
from fedkin.engines import start
from fedkin.runs import options


def visits(counts: list[int], seed: int = 0, silos: int = 2) -> pd.DataFrame:
    """Patients in silos by turns, with so many visits each, in any order; the input is the row's number."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(len(counts)), counts)
    frame = pd.DataFrame({"who": [f"silo-{p % silos}" for p in patient], "patient": [f"P{p:03d}" for p in patient]})
    frame["ill"] = np.where(rng.random(len(frame)) < 0.3 + 0.4 * (patient % 3 == 0), "yes", "no")
    frame.loc[[0, len(frame) - 1], "ill"] = ["yes", "no"]
    return frame.sample(frac=1, random_state=seed, ignore_index=True).assign(
        row=lambda f: np.arange(len(f), dtype=float)
    )


def federation(frame: Any, **more: Any) -> Federation:
    return Federation.from_table(frame, "who", "ill", scale="none", **more)


def sides(client: Client, patients: np.ndarray) -> list[set[str]]:
    """The patients of each part, told by the numbers of their rows."""
    pairs = [pair for pair in (client.train, client.validation, client.test) if pair is not None]
    return [set(patients[x[:, -1].long().numpy()].tolist()) for x, _ in pairs]


def apart(client: Client, patients: np.ndarray) -> bool:
    found = sides(client, patients)
    return sum(map(len, found)) == len(set().union(*found))


COUNTS = st.lists(st.integers(1, 7), min_size=8, max_size=30)


@given(COUNTS, st.integers(0, 4), st.sampled_from([0.1, 0.25, 0.6]), st.sampled_from([0.0, 0.1, 0.4]))
@settings(max_examples=40, deadline=None)
def test_no_patient_is_on_both_sides_of_any_split(counts, seed, test_fraction, validation):
    frame = visits(counts, seed)
    patients = frame["patient"].to_numpy()
    shares = {"test_fraction": test_fraction, "seed": seed}
    table = federation(frame, group="patient", validation=validation, **shares)
    arrays = {
        who: {"x": own[["row"]].to_numpy(), "y": (own["ill"] == "yes").to_numpy().astype(int), "group": own["patient"]}
        for who, own in frame.groupby("who")
    }
    cut = Federation.from_arrays(arrays, **shares).with_validation(validation, seed)
    for found in (table, cut):
        assert all(apart(client, patients) for client in found.clients)
        rows = [pair[0][:, -1] for c in found.clients for pair in (c.train, c.validation, c.test) if pair is not None]
        assert sorted(row for own in rows for row in own.tolist()) == list(range(len(frame))), "and no row is lost"


def test_without_a_group_visits_leak_which_is_what_the_note_is_about():
    frame = visits([4] * 40)
    found = federation(frame, ignore="patient")
    assert not any(apart(client, frame["patient"].to_numpy()) for client in found.clients)
    (note,) = [note for note in found.notes if "subject" in note]
    assert note == (
        "Column 'patient' is left out and has 40 different values in 160 rows. If it names whose a row is, such as the "
        "patient, one subject's rows are trained and tested on: --group patient (table.group = 'patient') keeps them "
        "together."
    )


def test_a_group_is_no_input_and_a_client_knows_whose_its_test_rows_are():
    frame = visits([4] * 40)
    found = [federation(frame, group="patient", seed=seed) for seed in (0, 1)]
    (inputs,) = {c.preprocessing.inputs for each in found for c in each.clients}
    assert inputs == ("row",)
    numbers: dict[str, set[int]] = {}
    for client in (client for each in found for client in each.clients):
        assert client.test_subjects is not None
        for row, subject in zip(client.test[0][:, -1].tolist(), client.test_subjects.tolist(), strict=True):
            numbers.setdefault(frame["patient"][int(row)], set()).add(subject)
    assert all(len(own) == 1 for own in numbers.values()), "one number, whatever the seed"
    assert len({subject for own in numbers.values() for subject in own}) == len(numbers)
    assert all(c.test_subjects is None for c in federation(frame, ignore="patient").clients)


def test_arrays_know_whose_their_test_samples_are_too():
    arrays = {"x": np.arange(40.0)[:, None], "y": np.arange(40) // 4 % 2, "group": [f"P{i // 4}" for i in range(40)]}
    (client,) = Federation.from_arrays({"a": arrays}).clients
    assert client.test_subjects is not None
    assert client.test_subjects.tolist() == [int(x) // 4 for x in client.test[0][:, 0].tolist()]
    (plain,) = Federation.from_arrays({"a": {"x": arrays["x"], "y": arrays["y"]}}).clients
    assert plain.test_subjects is None
    with pytest.raises(FederationError, match=r"test_subjects should be \d+ whole numbers"):
        Federation("f", (replace(client, test_subjects=torch.arange(3)),), Federation.from_arrays({"a": arrays}).task)


def test_a_group_of_all_different_values_changes_nothing():
    frame = visits([1] * 60)
    one, other = federation(frame, group="patient"), federation(frame, ignore="patient")
    for a, b in zip(one.clients, other.clients, strict=True):
        assert a.train[0].tolist() == b.train[0].tolist() and a.test[0].tolist() == b.test[0].tolist()


@pytest.mark.parametrize(
    ("column", "values", "noticed"),
    [
        ("patient_id", lambda i: 1000 + i // 4, True),
        ("SubjectID", lambda i: f"s{i // 4}", True),
        ("household", lambda i: i // 2, True),
        ("code", lambda i: f"K-{i // 4:04d}", True),
        ("ward", lambda i: ["a", "b", "c"][i // 4 % 3], False),
        ("patient_id", lambda i: i, False),
        ("patient_age", lambda i: i // 4, False),
        ("covid", lambda i: i // 4, False),
    ],
)
def test_an_identifier_among_the_inputs_is_noticed_if_it_repeats(column, values, noticed):
    frame = visits([1] * 160).drop(columns="patient")
    notes = federation(frame.assign(**{column: [values(i) for i in range(160)]})).notes
    assert any("looks like an identifier" in note and f"--group {column} " in note for note in notes) == noticed


@pytest.mark.parametrize(
    ("values", "noticed"),
    [
        (lambda i: f"P{i // 3}", True),
        (lambda i: i // 3, True),
        (lambda i: ["ward a", "ward b"][i % 2], False),
        (lambda i: i // 3 + 0.5, False),
        (lambda i: f"2024-01-{1 + i // 9 % 28:02d}", False),
        (lambda i: [i // 3], False),
        (lambda i: None, False),
    ],
)
def test_of_what_is_left_out_only_what_may_name_a_subject_is_noticed(values, noticed, tmp_path):
    frame = visits([1] * 159).drop(columns="patient").assign(extra=[values(i) for i in range(159)])
    assert any("'extra' is left out" in note for note in federation(frame, ignore="extra").notes) == noticed


def test_the_same_number_in_two_silos_is_told_and_another_subject():
    frame = visits([3] * 40).assign(patient=lambda f: f["patient"].str[1:].astype(int) // 2)
    notes = federation(frame, group="patient").notes
    assert any(note.startswith("20 values of the group 'patient' occur in several silos") for note in notes)


@pytest.mark.parametrize(
    ("change", "more", "said", "kind"),
    [
        (
            lambda f: f,
            {"group": "patent"},
            r"no column 'patent', which table.group names. Did you mean 'patient'",
            TableError,
        ),
        (lambda f: f, {"group": "ill"}, "Column 'ill' cannot be both the target and the group", TableError),
        (lambda f: f, {"group": "patient", "ignore": "patient"}, "'patient' is the group and cannot be in", TableError),
        (
            lambda f: f.assign(patient=f["patient"].where(f.index != 7)),
            {"group": "patient"},
            "row 7 .*the group, column 'patient', is missing",
            TableError,
        ),
        (
            lambda f: f.assign(patient="one"),
            {"group": "patient"},
            "'silo-0' has 80 in all of one patient",
            FederationError,
        ),
    ],
)
def test_groups_that_cannot_be_used_are_refused(change, more, said, kind):
    with pytest.raises(kind, match=said):
        federation(change(visits([4] * 40)), **more)


def test_a_patient_on_both_sides_of_given_parts_is_refused_with_the_row(tmp_path):
    frame = visits([4] * 40)
    train, test = frame[:120], frame[120:]
    with pytest.raises(
        TableError,
        match=r"the test table, row \d+ .*: patient 'P\d+' of silo-0 is there for testing, .* other rows for training",
    ):
        federation(train, test=test, group="patient")
    whole = frame["patient"] < "P030"
    found = federation(frame[whole], test=frame[~whole], group="patient")
    assert all(apart(client, frame["patient"].to_numpy()) for client in found.clients)


def test_a_group_is_an_option_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    frame = visits([4] * 40)
    frame.to_csv(tmp_path / "visits.csv", index=False)
    words = ["--data", str(tmp_path / "visits.csv"), "--client", "who", "--target", "ill", "--group", "patient"]
    ready = start.prepare(options.parse([*words, "--scale", "none", "--method", "separate", "--rounds", "1"]))
    assert all(apart(client, frame["patient"].to_numpy()) for client in ready.federation.clients)
    assert all(client.test_subjects is not None for client in ready.federation.clients)


@pytest.mark.parametrize(
    ("group", "said"),
    [
        (np.arange(5), "'group' should have one entry for each of 8 samples"),
        ([None] * 8, "'group' should name the subject of each sample"),
        ([[1]] * 8, "'group' should name the subject of each sample"),
        (np.zeros(8), "'a' has samples of one subject only"),
    ],
)
def test_groups_of_arrays_that_cannot_be_used_are_refused(group, said):
    with pytest.raises(FederationError, match=said):
        Federation.from_arrays({"a": {"x": np.zeros((8, 1)), "y": np.arange(8) % 2, "group": group}})
