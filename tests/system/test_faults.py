"""Kill a run at any moment: it goes on where it was, and ends as if nothing had happened, bit for bit."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from fedkin import cli, resume
from fedkin.engines.simulation import Interrupted, Listener
from fedkin.engines.start import prepare
from fedkin.engines.start import start as carry_out
from fedkin.runs import options
from fedkin.runs.checkpoint import Checkpoint
from fedkin.runs.config import read_toml, to_toml
from fedkin.studies.run import Run

LONG = 400
"""Rounds of a few milliseconds: on a fast machine sixty are over before a process can be killed four times."""
SMALL = ["--clients", "5", "--epochs", "1", "--split", "relabelled"]
UNRELIABLE = ["participation.lost=0.3", "participation.dropped=0.2", "participation.sample=0.7"]
# Differ from run to run, or as others work on the source.
INCIDENTAL = {"seconds", "peak_bytes", "commit"}
MACHINE = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


STARTED: list[subprocess.Popen[str]] = []


def start(*words: str | Path) -> subprocess.Popen[str]:
    """`fedkin …` as a process of its own."""
    command = [sys.executable, "-m", "fedkin", *map(str, words)]
    process = subprocess.Popen(command, env=MACHINE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    STARTED.append(process)
    return process


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """A test that fails half-way leaves no process behind."""
    yield
    while STARTED:
        STARTED.pop().kill()


def undisturbed(path: Path, *words: str) -> Path:
    """The same run without any accident, in this process."""
    carry_out(prepare(options.parse(words)), path)
    return path


def lines(path: Path) -> int:
    file = path / "rounds.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Until something has happened; it must before the process ends, and within a minute."""
    until = time.monotonic() + 60
    while not happened():
        assert process.poll() is None, f"it ended too early:\n{process.communicate()[1]}"
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.005)


def tensors(path: Path) -> tuple[dict[str, tuple[str, tuple[int, ...], bytes]], dict[str, Any]]:
    """What is in a safetensors file, to the bit; its own order of keys is not the same each time."""
    with safe_open(path, "np") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = {key: json.loads(value) if value[:1] == "{" else value for key, value in file.metadata().items()}
    return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in found.items()}, metadata


def contents(path: Path) -> dict[str, Any]:
    """Everything in a run folder, without what may differ between two runs of the same."""
    found: dict[str, Any] = {}
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        name = str(file.relative_to(path))
        if name == "rounds.jsonl":
            records = [json.loads(line) for line in file.read_text().splitlines()]
            found[name] = [{k: v for k, v in r.items() if k not in INCIDENTAL} for r in records]
        elif name == "summary.json":
            found[name] = {k: v for k, v in json.loads(file.read_text()).items() if k not in INCIDENTAL}
            for reason in ("reason", "clients_at_once_reason", "threads_reason"):  # a resumed run does not decide again
                del found[name]["execution"][reason]
        else:
            found[name] = tensors(file) if file.suffix == ".safetensors" else file.read_bytes()
    return found


def assert_same(run: Path, other: Path) -> None:
    a, b = contents(run), contents(other)
    assert set(a) == set(b), "the same files, and nothing half written left over"
    assert {"summary.json", "rounds.jsonl", "checkpoint/state.safetensors"} <= set(a)
    for name in b:
        assert a[name] == b[name], name


def fedkin(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    """The command in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["fedkin", *map(str, words)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


# ---- killed from outside ----


def killed_and_resumed(folder: Path, rounds: int, *words: str) -> None:
    words = ("--rounds", str(rounds), *SMALL, *words)
    process = start("run", "--out", folder / "run", *words)
    try:
        wait_for(lambda: lines(folder / "run") >= 3, process)
        time.sleep(random.uniform(0, 0.1))
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert 3 <= lines(folder / "run") <= rounds, "in the middle of the run"
    assert not (folder / "run" / "summary.json").exists()
    resumed = start("resume", folder / "run")
    _, said = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, said
    assert f"round {rounds}/{rounds}" in said
    assert "round 1/" not in said, "it does not begin again"
    assert_same(folder / "run", undisturbed(folder / "whole", *words))


def test_a_killed_run_resumed_in_a_new_process_ends_as_if_it_had_never_been_killed(tmp_path):
    killed_and_resumed(tmp_path, LONG, "--method", "fedamp")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("scaffold", UNRELIABLE),
        ("apfl", []),
        ("apfl", ["--mix", "outputs", *UNRELIABLE]),
        ("fedavg", ["--persist-optimiser", "true"]),
        ("separate", UNRELIABLE),
        ("fedamp", [*UNRELIABLE, "--participation.score", "participants"]),
        ("heurfedamp", ["--participation.novel", "0.4"]),
        ("fedprox", ["--execution", "one-by-one"]),
        ("groups", ["--chunk", "2"]),
        ("panacea", UNRELIABLE),
        ("panacea", ["--graph", "inferred", "--graph.infer_rounds", "3", "--participation.novel", "0.4"]),
        ("panacea", ["--server-optimiser", "adam", "--server-steps", "2"]),
        ("pfedhn", ["--personal-classifier", "true", *UNRELIABLE]),
        ("sfl", ["--learned", "true"]),
        ("perfedavg", UNRELIABLE),
        ("pfedme", UNRELIABLE),
    ],
)
def test_whatever_the_method_and_however_unreliable_its_clients_a_killed_run_loses_nothing(tmp_path, method, more):
    killed_and_resumed(tmp_path, LONG, "--method", method, *more)


@pytest.mark.slow
def test_a_run_killed_again_and_again_still_ends_the_same(tmp_path):
    words = ("--rounds", str(LONG), *SMALL, "--method", "scaffold", *UNRELIABLE)
    process = start("run", "--out", tmp_path / "run", *words)
    for _ in range(4):
        before = lines(tmp_path / "run")
        wait_for(lambda n=before: lines(tmp_path / "run") >= n + 3 or lines(tmp_path / "run") < n, process)
        time.sleep(random.uniform(0, 0.1))
        process.kill()
        process.communicate()
        process = start("resume", tmp_path / "run")
    assert process.communicate(timeout=120)[0]
    assert process.returncode == 0
    assert_same(tmp_path / "run", undisturbed(tmp_path / "whole", *words))


# ---- killed at the worst moments ----

DRIVER = """
import os, signal, sys
from fedkin import cli
from fedkin.runs import checkpoint, folder as runs

moment, count = sys.argv[1], int(sys.argv[2])
sys.argv[1:3] = []
seen = 0

def die(now=True):
    global seen
    seen += now
    if now and seen == count:
        os.kill(os.getpid(), signal.SIGKILL)

replace, save_file, line, model = os.replace, checkpoint.save_file, runs.Writer.line, runs.Writer.model

def before_the_rename(source, target):
    die(str(target).endswith("state.safetensors"))
    replace(source, target)

def during_the_write(tensors, path, metadata):
    save_file(tensors, path, metadata)
    if str(path).endswith("state.safetensors.new"):
        if seen + 1 == count:
            os.truncate(path, os.path.getsize(path) // 2)
        die()

def half_a_line(self, record):
    if seen + 1 == count:
        size = os.path.getsize(self.path / "rounds.jsonl")
        line(self, record)
        os.truncate(self.path / "rounds.jsonl", (size + os.path.getsize(self.path / "rounds.jsonl")) // 2)
    else:
        line(self, record)
    die()

def before_the_checkpoint(self, record):
    line(self, record)
    die()

def before_a_model(self, *rest):
    die()
    model(self, *rest)

if moment == "rename":
    os.replace = before_the_rename
elif moment == "write":
    checkpoint.save_file = during_the_write
elif moment == "line":
    runs.Writer.line = half_a_line
elif moment == "record":
    runs.Writer.line = before_the_checkpoint
elif moment == "model":
    runs.Writer.model = before_a_model
elif moment == "summary":
    runs.Writer.summary = lambda self, summary: die()
cli.main()
"""

ROUNDS = 6
NOVEL = ["--participation.novel", "0.4"]


def dies(folder: Path, moment: str, count: int, *words: str) -> Path:
    """A run that kills itself at a moment of its own, for the count-th time it comes."""
    driver = folder / "driver.py"
    driver.write_text(DRIVER)
    command = [sys.executable, driver, moment, str(count), "run", "--out", folder / "run", *words]
    process = subprocess.run(command, env=MACHINE, capture_output=True, text=True, timeout=120)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert not (folder / "run" / "summary.json").exists()
    return folder / "run"


@pytest.fixture(scope="module")
def wholes(tmp_path_factory) -> Iterator[Callable[..., Path]]:
    """Undisturbed runs by their words, each made once."""
    folder, made = tmp_path_factory.mktemp("wholes"), dict[tuple[str, ...], Path]()

    def whole(*words: str) -> Path:
        if words not in made:
            made[words] = undisturbed(folder / str(len(made)), *words)
        return made[words]

    yield whole


# The moment, for the how-manieth time, and how many whole lines there are then if that is certain: checkpoints are
# written after the first and the last round, and between them as often as they are cheap.
MOMENTS = {
    "between the write of a checkpoint and its rename": ("rename", 2, None),
    "in the middle of writing a checkpoint": ("write", 2, None),
    "in the middle of writing the very first checkpoint": ("write", 1, 1),
    "in the middle of a line": ("line", 4, 3),
    "between a line and its checkpoint": ("record", 4, 4),
    "after the closing line": ("record", ROUNDS + 1, ROUNDS + 1),
    "while clients' models are written": ("model", 3, ROUNDS),
    "just before the summary": ("summary", 1, ROUNDS + 1),
}
UNMARKED = {"between the write of a checkpoint and its rename", "in the middle of a line", "just before the summary"}


@pytest.mark.parametrize("moment", [m if m in UNMARKED else pytest.param(m, marks=pytest.mark.slow) for m in MOMENTS])
def test_a_run_survives_being_killed(tmp_path, wholes, moment, monkeypatch):
    where, count, written = MOMENTS[moment]
    words = ("--rounds", str(ROUNDS), *SMALL)
    run = dies(tmp_path, where, count, *words)
    assert lines(run) == (written or lines(run))
    if where in ("rename", "write"):
        unfinished = run / "checkpoint" / "state.safetensors.new"
        assert unfinished.exists(), "what it was writing is still there"
        assert (run / "checkpoint" / "state.safetensors").exists() == (count > 1)
    if where == "line":
        assert not (run / "rounds.jsonl").read_bytes().endswith(b"\n")
    assert fedkin(monkeypatch, "resume", run) == 0
    assert_same(run, wholes(*words))


@pytest.mark.slow
@pytest.mark.parametrize("at", [ROUNDS + 2, ROUNDS + 4])
def test_a_run_survives_being_killed_while_newcomers_find_their_place(tmp_path, wholes, at, monkeypatch):
    words = ("--rounds", str(ROUNDS), *SMALL, *NOVEL)
    run = dies(tmp_path, "line", at, *words)
    assert fedkin(monkeypatch, "resume", run) == 0
    assert Run(run).summary["novel"]["clients"]
    assert_same(run, wholes(*words))


@pytest.mark.parametrize("method", ["scaffold", "apfl", "fedamp"])
def test_after_whichever_round_a_run_is_stopped_it_ends_the_same_though_uploads_were_lost(tmp_path, wholes, method):
    words = ("--rounds", str(ROUNDS), *SMALL, "--method", method, *UNRELIABLE)
    lost = []
    for round in range(1, ROUNDS):
        run = stopped(tmp_path / f"after-{round}", round, *words)
        lost.append("before/clients" in tensors(run / "checkpoint" / "state.safetensors")[0])
        resume(run)
        assert_same(run, wholes(*words))
    assert any(lost), "clients who wait for word that their upload arrived are saved too"


def test_a_run_with_newcomers_goes_on_as_if_it_had_never_been_stopped(tmp_path, wholes):
    words = ("--rounds", str(ROUNDS), "--clients", "20", "--epochs", "1", "--participation.novel", "0.25")
    run = stopped(tmp_path / "run", 3, *words)
    resume(run)
    whole = wholes(*words)
    assert_same(run, whole)
    assert len(Run(run).summary["novel"]["clients"]) == 5
    assert [r["round"] for r in Run(run).rounds if r.get("novel")] == [8, 9, 10, 11]


# ---- Ctrl-C ----


def test_ctrl_c_ends_after_saving_and_resume_completes_to_the_same_result(tmp_path, monkeypatch):
    words = ("--rounds", str(LONG), *SMALL)
    process = start("run", "--out", tmp_path / "run", *words)
    wait_for(lambda: lines(tmp_path / "run") >= 2, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    written = lines(tmp_path / "run")
    assert 2 <= written < LONG
    assert f"Stopped after round {written} of {LONG}; everything is saved." in said
    assert f"fedkin resume {tmp_path / 'run'}" in said
    assert "Traceback" not in said
    assert int(tensors(tmp_path / "run" / "checkpoint" / "state.safetensors")[1]["round"]) == written
    assert fedkin(monkeypatch, "resume", tmp_path / "run") == 0
    assert_same(tmp_path / "run", undisturbed(tmp_path / "whole", *words))


def test_where_checkpoints_are_dear_they_are_rare_but_stopping_always_saves(tmp_path, monkeypatch):
    """A checkpoint of 0.6 seconds is due every five and a half; these rounds take far less."""
    save, saved = Checkpoint.save, list[int]()

    def dear(self: Checkpoint, *rest: Any) -> None:
        saved.append(self.round)
        time.sleep(0.6)
        save(self, *rest)

    monkeypatch.setattr(Checkpoint, "save", dear)
    run = stopped(tmp_path / "run", 3, "--rounds", str(ROUNDS), *SMALL)
    assert saved == [1, 3]
    assert lines(run) == 3
    resume(run)
    assert saved == [1, 3, 4, ROUNDS], "what it costs is found out anew"


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    """A round of a hundred thousand passes takes many minutes: whoever waits for its end fails."""
    process = start("run", "--out", tmp_path / "run", "--clients", "5", "--epochs", "100000", "--rounds", "2")
    assert process.stderr is not None
    assert "Writing to" in process.stderr.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    while "once more stops at once" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "Stopped at once." in said
    assert "Traceback" not in said
    assert lines(tmp_path / "run") == 0


@pytest.mark.slow
def test_ctrl_c_in_a_comparison_stops_it_and_the_same_command_goes_on(tmp_path):
    words = [
        "compare",
        "--methods",
        "separate,fedavg",
        "--seeds",
        "2",
        "--rounds",
        str(LONG),
        *SMALL,
        "--out",
        tmp_path / "c",
    ]
    process = start(*words)
    wait_for(lambda: lines(tmp_path / "c" / "fedavg-seed0") >= 2, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "The same command goes on from there." in said
    first = tmp_path / "c" / "separate-seed1" / "summary.json"
    before = first.stat().st_mtime_ns
    again = start(*words)
    table, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    assert "fedavg:finetuned" in table
    assert first.stat().st_mtime_ns == before
    whole = undisturbed(tmp_path / "whole", "--method", "fedavg", "--rounds", str(LONG), *SMALL)
    assert_same(tmp_path / "c" / "fedavg-seed0", whole)


# ---- what cannot be resumed ----


def stopped(path: Path, after: int, *words: str) -> Path:
    """A run that was asked to stop after so many rounds."""
    heard: list[int] = []
    listener = Listener(on_round=lambda r: heard.append(r["round"]), stop=lambda: len(heard) >= after)
    with pytest.raises(Interrupted):
        carry_out(prepare(options.parse(words)), path, listener)
    return path


@pytest.fixture(scope="module")
def half_way(tmp_path_factory) -> Path:
    """An unfinished run; tests take a copy."""
    return stopped(tmp_path_factory.mktemp("stopped") / "run", 2, "--rounds", "4", *SMALL)


def one_line(said: str) -> str:
    assert said.startswith("fedkin: ")
    assert said.count("\n") == 1, said
    assert said.endswith((".\n", "?\n"))
    return said


def snapshot(path: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p.relative_to(path)): (p.stat().st_mtime_ns, p.read_bytes()) for p in path.rglob("*") if p.is_file()}


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "a truncated checkpoint": ("checkpoint/state.safetensors", lambda b: b[: len(b) // 2], "cannot be read"),
    "an empty checkpoint": ("checkpoint/state.safetensors", lambda b: b"", "cannot be read"),
    "a checkpoint of nonsense": ("checkpoint/state.safetensors", lambda b: b"\xff" * len(b), "cannot be read"),
    "lines that end before the checkpoint": ("rounds.jsonl", lambda b: b[: len(b) // 3], "end with round 0"),
    "an invalid configuration": ("config.toml", lambda b: b + b"rounds = ", "is not valid TOML"),
    "a configuration with a typing error": ("config.toml", lambda b: b.replace(b"lr =", b"lrr ="), "'local.lr'"),
    "a configuration with another rate": ("config.toml", lambda b: b.replace(b"\nlr = 0.01", b"\nlr = 0.1"), "another"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_told_in_one_sentence_and_left_as_it_is(tmp_path, half_way, damage, monkeypatch, capsys):
    run = shutil.copytree(half_way, tmp_path / "run")
    name, change, said = DAMAGES[damage]
    (run / name).write_bytes(change((run / name).read_bytes()))
    before = snapshot(run)
    assert fedkin(monkeypatch, "resume", run) == 2
    assert said in one_line(capsys.readouterr().err)
    assert snapshot(run) == before


def test_a_checkpoint_of_another_run_is_refused(tmp_path, half_way, monkeypatch, capsys):
    run = shutil.copytree(half_way, tmp_path / "run")
    config = read_toml(run / "config.toml")
    (run / "config.toml").write_text(to_toml({**config, "seed": 1}))
    assert fedkin(monkeypatch, "resume", run) == 2
    assert "belongs to another configuration" in one_line(capsys.readouterr().err)


def test_without_its_checkpoint_a_run_begins_again_and_ends_the_same(tmp_path, half_way, monkeypatch):
    run = shutil.copytree(half_way, tmp_path / "run")
    shutil.rmtree(run / "checkpoint")
    assert fedkin(monkeypatch, "resume", run) == 0
    assert_same(run, undisturbed(tmp_path / "whole", "--rounds", "4", *SMALL))


@pytest.mark.parametrize("content", [b"", b'{"method": ', b"\xff\xfe", b"[]"])
def test_a_damaged_summary_is_told_in_one_line(tmp_path, half_way, content, monkeypatch, capsys):
    run = shutil.copytree(half_way, tmp_path / "run")
    (run / "summary.json").write_bytes(content)
    for command in ("resume", "report"):
        assert fedkin(monkeypatch, command, run) == 2
        assert "summary.json is damaged" in one_line(capsys.readouterr().err)


def test_resuming_a_finished_run_says_so_and_changes_nothing(tmp_path, monkeypatch, capsys):
    run = undisturbed(tmp_path / "run", "--rounds", "2", *SMALL)
    before = snapshot(run)
    assert fedkin(monkeypatch, "resume", run) == 0
    assert "is complete; there is nothing to resume" in capsys.readouterr().out
    assert snapshot(run) == before
    assert resume(run).summary == Run(run).summary
    assert snapshot(run) == before


def test_what_is_no_run_cannot_be_resumed(tmp_path, monkeypatch, capsys):
    assert fedkin(monkeypatch, "resume", tmp_path) == 2
    assert "is not a run folder: it has no config.toml" in one_line(capsys.readouterr().err)


# ---- what goes wrong in training ----


def test_clients_whose_training_explodes_do_not_spoil_the_run(tmp_path, monkeypatch, capsys):
    words = ["--optimiser", "sgd", "--lr", "1e30", "--beta", "1e38", "--rounds", "2", *SMALL]
    assert fedkin(monkeypatch, "run", *words, "--out", tmp_path / "run") == 0
    said = capsys.readouterr()
    assert "diverged" in said.err
    assert "Traceback" not in said.err
    assert fedkin(monkeypatch, "run", *words, "--on-divergence", "stop", "--out", tmp_path / "stopped") == 1
    sentence = one_line(capsys.readouterr().err.splitlines(keepends=True)[-1])
    assert "A smaller local.lr or local.clip = 1.0 usually helps." in sentence


def limited(largest: int, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """The command on a machine where no file can grow beyond so many bytes."""
    driver = "import resource, sys; from fedkin import cli; size = int(sys.argv.pop(1))\n"
    driver += "resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)); cli.main()"
    command = [sys.executable, "-c", driver, str(largest), *map(str, words)]
    return subprocess.run(command, env=MACHINE, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("largest", "said"),
    [
        (100_000, "state.safetensors cannot be written"),
        (3_000, "state.safetensors cannot be written"),
        (1_650, "round-0001.npy cannot be written: File too large"),
    ],
)
def test_without_space_left_a_run_says_so_and_goes_on_when_there_is_some(tmp_path, wholes, largest, said):
    words = ["--rounds", "3", "--epochs", "1"]
    process = limited(largest, "run", "--out", tmp_path / "run", *words)
    assert process.returncode == 2, process.stderr
    assert said in process.stderr
    assert "Traceback" not in process.stderr
    assert not [p for p in (tmp_path / "run").rglob("*") if p.name.endswith(".new") or p.name.startswith(".tmp")]
    resume(tmp_path / "run")
    assert_same(tmp_path / "run", wholes(*words))


def test_where_nothing_at_all_can_be_written_no_folder_is_left(tmp_path):
    process = limited(100, "run", "--out", tmp_path / "run", "--rounds", "1")
    assert process.returncode == 2
    assert "config.toml cannot be written: File too large; choose another folder" in process.stderr
    assert not (tmp_path / "run").exists()
