"""Sinks hear of a run in its order, whatever becomes of it, and whatever becomes of them the run is the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import BASE, toy

import fedkin
from fedkin import FedkinError, JsonLines, Listener, Run, Sink, TensorBoard
from fedkin.engines.simulation import Diverged, Interrupted
from fedkin.evidence.records import Line, ModelScores
from fedkin.runs import sinks
from fedkin.runs.sinks import Audience, Channel, Missed, Named

SETTINGS: dict[str, Any] = {**BASE, "method": "fedamp", "data": {"validation": 0.2}}
UNTIMED = {"seconds", "peak_bytes"}


class Ears(Sink):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.config: Any = None
        self.clients: Any = None
        self.lines: list[Line] = []
        self.summary: Any = None

    def start(self, config: Any, clients: tuple[str, ...]) -> None:
        self.config, self.clients = config, clients
        self.heard.append("start")

    def round(self, line: Line) -> None:
        self.lines.append(line)
        self.heard.append(line.round)

    def end(self, summary: Any) -> None:
        self.summary = summary
        self.heard.append("end" if summary is not None else "stopped")


def go(path: Path, *given: Sink, **more: Any) -> Run:
    return fedkin.run(SETTINGS, federation=toy(), out=path, sinks=given, **more)


def after(rounds: int) -> Callable[[], bool]:
    asked = iter([False] * (rounds - 1))
    return lambda: next(asked, True)


def scores(run: Run) -> list[dict[str, Any]]:
    """The lines of a run, less what a clock says."""
    return [{key: value for key, value in line.items() if key not in UNTIMED} for line in run.rounds]


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---- what is heard ----


def test_a_sink_hears_the_start_every_round_and_the_end(tmp_path: Path) -> None:
    ears = Ears()
    run = go(tmp_path / "run", ears)
    assert ears.heard == ["start", 1, 2, 3, 4, "end"], "three rounds and the closing exchange"
    assert {k: v for k, v in ears.config.items() if not isinstance(v, dict) and v is not None} == {
        k: v for k, v in run.config.items() if not isinstance(v, dict)
    }
    assert ears.clients == run.summary.clients == ("a", "b", "c", "d")
    assert [dict(line) for line in ears.lines] == [dict(line) for line in run.rounds]
    assert dict(ears.summary) == dict(run.summary)


def test_a_line_and_the_summary_are_on_disk_when_they_are_told(tmp_path: Path) -> None:
    class Looks(Sink):
        found: list[int] = []

        def round(self, line: Line) -> None:
            self.found.append(len(Run(tmp_path / "run").rounds))

        def end(self, summary: Any) -> None:
            self.found.append(Run(tmp_path / "run").complete)

    go(tmp_path / "run", Looks())
    assert Looks.found == [1, 2, 3, 4, True]


def test_who_stops_early_is_told_so_and_who_resumes_starts_again(tmp_path: Path) -> None:
    first, second = Ears(), Ears()
    with pytest.raises(Interrupted):
        go(tmp_path / "run", first, listener=Listener(stop=after(2)))
    assert first.heard == ["start", 1, 2, "stopped"]
    run = fedkin.resume(tmp_path / "run", federation=toy(), sinks=[second])
    assert second.heard == ["start", 3, 4, "end"]
    assert fedkin.resume(tmp_path / "run", federation=toy(), sinks=[first]).complete
    assert first.heard == ["start", 1, 2, "stopped"], "nothing was run"
    assert scores(run) == scores(go(tmp_path / "whole"))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_run_that_breaks_off_has_stopped_early(tmp_path: Path, error: type[BaseException]) -> None:
    ears = Ears()

    def on_round(line: Line) -> None:
        if line.round == 2:
            raise error

    with pytest.raises(error):
        go(tmp_path / "run", ears, listener=Listener(on_round=on_round))
    assert ears.heard == ["start", 1, "stopped"]


def test_a_run_that_breaks_off_in_training_or_diverges_has_stopped_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ears = Ears()
    with pytest.raises(Diverged):
        go(tmp_path / "diverged", ears, method="fedavg", local={"optimiser": "sgd", "lr": 1e300}, on_divergence="stop")
    assert ears.heard[0] == "start" and ears.heard[-1] == "stopped"

    def refuse(*given: Any) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr("fedkin.methods.fedamp.FedAMP.train", refuse)
    ears = Ears()
    with pytest.raises(RuntimeError):
        go(tmp_path / "broken", ears)
    assert ears.heard == ["start", "stopped"]


# ---- a sink that fails ----


class Fails(Ears):
    def __init__(self, at: Any, error: Exception) -> None:
        super().__init__()
        self.at, self.error = at, error

    def start(self, config: Any, clients: tuple[str, ...]) -> None:
        super().start(config, clients)
        self._perhaps("start")

    def round(self, line: Line) -> None:
        super().round(line)
        self._perhaps(line.round)

    def end(self, summary: Any) -> None:
        super().end(summary)
        self._perhaps("end")

    def _perhaps(self, event: Any) -> None:
        if event == self.at:
            raise self.error


@pytest.mark.parametrize("at", ["start", 2, "end"])
def test_a_sink_that_fails_is_named_once_and_left_out(tmp_path: Path, at: Any) -> None:
    bad, good, told = Fails(at, OSError("the disk is full")), Ears(), list[str]()
    run = go(tmp_path / "run", bad, good, listener=Listener(on_warning=told.append))
    everything = ["start", 1, 2, 3, 4, "end"]
    assert bad.heard == everything[: everything.index(at) + 1]
    assert good.heard == everything
    assert [s for s in told if "sink" in s] == [
        "The sink Fails failed and is told no more; the run goes on (OSError: the disk is full)."
    ]
    assert scores(run) == scores(go(tmp_path / "without"))


def test_what_is_missed_is_told_once_and_the_sink_stays() -> None:
    class Misses(Ears):
        def round(self, line: Line) -> None:
            super().round(line)
            raise Missed("Nobody is there.")

    told: list[str] = []
    sink = Misses()
    audience = Audience([sink], told.append)
    audience.end(None)
    assert sink.heard == [], "it was told of no start"
    audience.start({}, ())
    for number in (1, 2):
        audience.round(Line(round=number))
    audience.end(None)
    audience.end(None)
    assert sink.heard == ["start", 1, 2, "stopped"] and told == ["Nobody is there."]


# ---- several runs ----


@pytest.mark.parametrize("jobs", [1, 2])
def test_runs_side_by_side_have_each_its_own_sinks(tmp_path: Path, jobs: int) -> None:
    """Seeds train as one stack, or in processes of their own."""
    ears: dict[str, Ears] = {}

    def own(name: str) -> list[Sink]:
        ears[name] = Ears()
        return [ears[name]]

    given: dict[str, Any] = {"methods": ["fedavg", "fedamp"], "seeds": 3, "out": tmp_path / "runs", "jobs": jobs}
    settings = {k: v for k, v in SETTINGS.items() if k != "method"}
    results = fedkin.compare(settings, federation=toy(), sinks=own, **given)
    assert sorted(ears) == sorted(run.path.name for run in results.runs)
    for run in results.runs:
        heard = ears[run.path.name]
        assert heard.heard == ["start", 1, 2, 3, 4, "end"]
        assert (heard.config["method"], heard.config["seed"]) == (run.summary.method, run.summary.seed)
        assert [dict(line) for line in heard.lines] == [dict(line) for line in run.rounds]
        assert dict(heard.summary) == dict(run.summary)
    ears.clear()
    fedkin.compare(settings, federation=toy(), sinks=own, **given)
    assert ears == {}, "all were complete"


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_comparison_that_stops_tells_every_sink_that_it_has(tmp_path: Path, jobs: int) -> None:
    ears = {f"fedavg-seed{seed}": Ears() for seed in range(2)}
    with pytest.raises(Interrupted):
        fedkin.compare(
            {**SETTINGS, "rounds": 200, "method": "fedavg"},
            methods=["fedavg"],
            federation=toy(),
            seeds=2,
            jobs=jobs,
            out=tmp_path / "runs",
            sinks=lambda name: [ears[name]],
            listener=Listener(stop=lambda: any(len(each.heard) > 2 for each in ears.values())),
        )
    begun = [each.heard for each in ears.values() if each.heard]
    assert begun
    for heard in begun:
        assert heard[0] == "start" and heard[-1] == "stopped" and heard.count("stopped") == 1


# ---- JSON lines ----


def test_json_lines_are_what_the_run_wrote(tmp_path: Path) -> None:
    path = tmp_path / "new" / "live.jsonl"
    run = go(tmp_path / "run", JsonLines(path))
    start, *rounds, end = events(path)
    assert start["event"] == "start" and start["clients"] == list(run.summary.clients)
    assert start["config"]["method"] == "fedamp" and "run" not in start
    assert rounds == [{"event": "round", **line} for line in run.rounds]
    assert end == {"event": "end", "summary": dict(run.summary)}


def test_json_lines_are_flushed_and_go_on_behind_what_is_there(tmp_path: Path) -> None:
    path, sink = tmp_path / "live.jsonl", JsonLines(tmp_path / "live.jsonl")
    sink.start({}, ("a",))
    assert [e["event"] for e in events(path)] == ["start"]
    sink.round(Line(round=1, train_loss=float("nan"), models={"m": ModelScores(mean=None, clients=(None,))}))
    assert events(path)[1]["train_loss"] is None
    sink.end(None)
    assert events(path)[2] == {"event": "end", "summary": None}
    sink.start({}, ("a",))
    assert [e["event"] for e in events(path)] == ["start", "round", "end", "start"]


def pipe(folder: Path) -> Path:
    path = folder / "pipe"
    os.mkfifo(path)
    return path


def test_a_pipe_that_nobody_reads_does_not_hold_up_a_run(tmp_path: Path) -> None:
    told: list[str] = []
    run = go(tmp_path / "run", JsonLines(pipe(tmp_path)), listener=Listener(on_warning=told.append))
    assert len([s for s in told if s.startswith("Nobody reads")]) == 1
    assert scores(run) == scores(go(tmp_path / "without"))


def test_who_comes_late_or_anew_to_a_pipe_is_told_of_the_start_first(tmp_path: Path) -> None:
    path = pipe(tmp_path)
    sink = JsonLines(path, "mine")
    with pytest.raises(Missed):
        sink.start({"rounds": 9}, ("a",))
    for number in (1, 4):
        with pytest.raises(Missed):
            sink.round(Line(round=number))
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        sink.round(Line(round=number + 1))
        sink.round(Line(round=number + 2))
        found = [json.loads(line) for line in os.read(reader, 1 << 16).splitlines()]
        assert [(e["event"], e.get("round"), e["run"]) for e in found] == [
            ("start", None, "mine"),
            ("round", number + 1, "mine"),
            ("round", number + 2, "mine"),
        ]
        os.close(reader)


def test_a_reader_of_a_pipe_sees_all_of_a_run_and_its_end(tmp_path: Path) -> None:
    path = pipe(tmp_path)
    read = subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE, text=True)

    held = os.open(path, os.O_WRONLY)  # waits until somebody reads
    sink = JsonLines(path)
    channel = Named([f"jsonl:{path}"]).channels[0]
    assert channel.connect()
    os.close(held)
    go(tmp_path / "run", sink)
    del channel  # the command is over
    found = [json.loads(line) for line in read.communicate(timeout=20)[0].splitlines()]
    assert [e["event"] for e in found] == ["start", *["round"] * 4, "end"]


def test_a_reader_that_is_slow_gets_whole_lines(tmp_path: Path) -> None:
    """Lines that are longer than what a pipe holds go out in pieces; what does not fit meanwhile is left out."""
    path = pipe(tmp_path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    one, two = JsonLines(path, "one"), JsonLines(path, "two")
    one.start({}, ("a",))
    two.start({}, ("a",))
    long = Line(round=1, participants=("x" * 100_000,))
    one.round(long)  # a part of it
    with pytest.raises(Missed, match="not fast enough"):
        two.round(Line(round=2))
    text = os.read(reader, 1 << 20)
    two.round(Line(round=3))
    os.set_blocking(reader, True)
    done = threading.Thread(target=lambda: (one.end(None), two.end(None)))
    done.start()
    while piece := os.read(reader, 1 << 16):
        text += piece
    done.join()
    found = [json.loads(line) for line in text.splitlines()]
    assert [(e["run"], e["event"], e.get("round")) for e in found] == [
        ("one", "start", None),
        ("two", "start", None),
        ("one", "round", 1),
        ("two", "round", 3),
        ("one", "end", None),
        ("two", "end", None),
    ]


def test_the_end_waits_a_moment_for_a_slow_reader_and_no_longer(tmp_path: Path) -> None:
    path = pipe(tmp_path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    sink = JsonLines(path)
    sink.start({"long": "x" * 100_000}, ())
    began = time.monotonic()
    with pytest.raises(Missed):
        sink.end(None)
    assert time.monotonic() - began < 5
    os.close(reader)


def test_a_reader_that_leaves_kills_no_run_even_where_the_signal_would(tmp_path: Path) -> None:
    path = pipe(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys\n"
        "from fedkin import JsonLines\n"
        "from fedkin.evidence.records import Line\n"
        "from fedkin.runs.sinks import Missed\n"
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        "reader = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)\n"
        "sink = JsonLines(sys.argv[1])\n"
        "sink.start({}, ())\n"
        "os.close(reader)\n"
        "try:\n"
        "    sink.round(Line(round=1))\n"
        "except Missed:\n"
        "    print('alive', signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL, signal.sigpending())\n"
    )
    done = subprocess.run([sys.executable, str(script), str(path)], capture_output=True, text=True, check=False)
    assert done.stdout == "alive True set()\n", (done.returncode, done.stderr)
    assert signal.SIGPIPE not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_reader_that_leaves_within_a_run_is_told_of_once(tmp_path: Path) -> None:
    path, told = pipe(tmp_path), list[str]()
    readers = [os.open(path, os.O_RDONLY | os.O_NONBLOCK)]

    def on_round(line: Line) -> None:
        if line.round == 2:
            os.close(readers.pop())

    run = go(tmp_path / "run", JsonLines(path), listener=Listener(on_round=on_round, on_warning=told.append))
    assert run.complete and len([s for s in told if s.startswith("Nobody reads")]) == 1


# ---- TensorBoard ----


def curves(folder: Path) -> dict[str, dict[int, float]]:
    """What TensorBoard reads in a folder: tag, step, value."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: {e.step: e.value for e in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def wanted(run: Run) -> dict[str, dict[int, float]]:
    """The same, from rounds.jsonl alone, as TensorBoard keeps it: in single precision."""
    values: dict[str, dict[int, Any]] = {}
    for line in map(json.loads, (run.path / "rounds.jsonl").read_text().splitlines()):
        flat = {"train_loss": line["train_loss"], "seconds": line["seconds"]}
        flat |= {"bytes/down": line["bytes_down"], "bytes/up": line["bytes_up"]}
        for name, model in line["models"].items():
            flat[f"test/{name}"] = model["mean"]
            flat[f"validation/{name}"] = model["validation"]["mean"]
            flat[f"validation_loss/{name}"] = model["validation"]["loss"]
        for tag, value in flat.items():
            if value is not None:
                values.setdefault(tag, {})[line["round"]] = float(np.float32(value))
    return values


def test_tensorboard_shows_what_rounds_jsonl_has(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = go(tmp_path / "run", TensorBoard(tmp_path / "board"))
    found = curves(tmp_path / "board")
    assert found == wanted(run)
    assert {"test/cloud", "validation/cloud", "validation_loss/cloud", "train_loss", "bytes/up"} <= set(found)


def test_tensorboard_shows_rounds_that_are_run_again_once(tmp_path: Path) -> None:
    """A run that was killed had told more than its last checkpoint has."""
    pytest.importorskip("tensorboard")
    board = TensorBoard(tmp_path / "board")
    with pytest.raises(Interrupted):
        go(tmp_path / "run", board, listener=Listener(stop=after(2)))
    for number, value in ((3, 0.1), (4, 0.2)):  # a tail of lines that nothing was saved of
        board.round(Line(round=number, models={"cloud": ModelScores(mean=value, clients=())}))
    board.end(None)
    run = fedkin.resume(tmp_path / "run", federation=toy(), sinks=[TensorBoard(tmp_path / "board")])
    assert curves(tmp_path / "board") == wanted(run)


def test_a_missing_tensorboard_is_told_with_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(FedkinError, match=r"pip install 'fedkin\[tensorboard\]'"):
        TensorBoard(tmp_path / "board")


def test_what_is_not_known_is_no_point_of_a_curve() -> None:
    line = Line(round=1, train_loss=float("nan"), models={"m": ModelScores(mean=None, clients=(None,))})
    assert sinks.scalars(line) == {"bytes/down": 0, "bytes/up": 0, "seconds": 0.0}


# ---- by their names ----


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("json:live", "no sink 'json'. Did you mean 'jsonl'?"),
        ("live.jsonl", "no sink"),
        ("jsonl:", "does not say where to"),
        ("jsonl", "does not say where to"),
        ("jsonl:-", "a file or a named pipe"),
        ("jsonl:/", "is a folder"),
        (f"tensorboard:{__file__}", "takes a folder"),
    ],
)
def test_a_sink_that_cannot_be_is_refused_before_anything_is_run(word: str, said: str) -> None:
    with pytest.raises(FedkinError, match=said.replace("?", r"\?")):
        Named([word])


def test_sinks_of_one_run_and_of_several(tmp_path: Path) -> None:
    file, board = tmp_path / "live.jsonl", tmp_path / "board"
    words = [f"jsonl:{file}", f"tensorboard:{board}"]
    one = Named(words)("mine")
    assert isinstance(one[0], JsonLines) and isinstance(one[1], TensorBoard)
    assert (one[0].path, one[0].name, one[1].folder) == (file, {}, board)
    several = Named(words, several=True)
    two = several("fedamp-seed0")
    assert isinstance(two[0], JsonLines) and isinstance(two[1], TensorBoard)
    assert (two[0].name, two[1].folder) == ({"run": "fedamp-seed0"}, board / "fedamp-seed0")
    assert Channel.of(file) is several.channels[0]
    assert not file.exists() and not board.exists(), "nothing is written before a run starts"


def test_the_command_line_has_them(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    small = ["--data", "digits", "--clients", "5", "--rounds", "2", "--steps", "1"]
    told = ["--sink", "jsonl:live.jsonl", "--sink", "tensorboard:board"]

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "fedkin", *words]
        return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)

    done = command("run", "--method", "fedavg", *small, "--out", "run", *told)
    assert done.returncode == 0, done.stderr
    assert [e["event"] for e in events(tmp_path / "live.jsonl")] == ["start", "round", "round", "round", "end"]
    done = command("resume", "run", "--rounds", "3", *told)
    assert done.returncode == 0, done.stderr
    assert [e.get("round") for e in events(tmp_path / "live.jsonl")[5:]] == [None, 3, 4, None]
    assert curves(tmp_path / "board")["seconds"] == wanted(Run(tmp_path / "run"))["seconds"]
    done = command("compare", "--methods", "fedavg", "--seeds", "2", *small, "--out", "runs", *told)
    assert done.returncode == 0, done.stderr
    names = {"fedavg-seed0", "fedavg-seed1"}
    assert {e["run"] for e in events(tmp_path / "live.jsonl")[9:]} == names
    assert {each.name for each in (tmp_path / "board").iterdir() if each.is_dir()} == names
    done = command("compare", "--methods", "fedavg", "--vary", "lr=0.1,0.2", *small, "--out", "more", *told)
    assert done.returncode == 2 and "--sink is for one comparison" in done.stderr
    done = command("run", *small, "--out", "none", "--sink", "tensorbord:x")
    assert done.returncode == 2 and "Did you mean 'tensorboard'?" in done.stderr and not (tmp_path / "none").exists()
