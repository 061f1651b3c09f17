"""The benchmark: its opponents train as fedkin does, its numbers say what they are said to, its page is its JSON."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import DEVICE, ON_CPU, ROOT, at, normed, script
from torch import nn

import fedkin
from fedkin import bench
from fedkin.bench import opponents, rounds, steps, timing
from fedkin.bench.opponents import Fairest, Plain, variants
from fedkin.engines.start import prepare
from fedkin.training import models
from fedkin.training.cohort import Cohort

BENCHMARKS = ROOT / "benchmarks"
CPU = torch.device("cpu")
TINY = bench.Plan(DEVICE, "tiny")
NEEDED = {"command", "size", "machine", "versions", "commit", "date", "load_average"}


# ---- the opponents ----


def modules() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(3)
    return {
        "mlp": (models.mlp((6,), 3, hidden=(5,)), (6,)),
        "batch statistics": (normed((6,), 3), (6,)),
        "cnn": (models.cnn((1, 8, 8), 3), (1, 8, 8)),
    }


@pytest.mark.parametrize("way", ["stacked", "one-by-one"])
@pytest.mark.parametrize("name", modules())
def test_opponents_train_as_fedkin_does(name: str, way: str) -> None:
    """In float64, so that what differs is the mathematics and not the order of sums."""
    module, inputs = modules()[name]
    load = replace(steps.mlp(4, 5, steps=3), inputs=inputs, classes=3)
    ready = prepare(
        {
            "method": "separate",
            "precision": "float64",
            "device": DEVICE.type,
            "execution": way,
            "data": {"validation": 0.0},
            "local": {"steps": 3, "batch_size": 5, "lr": steps.LR},
        },
        federation=load.federation(),
        model=module,
    )
    assert ready.execution.name == way
    start = ready.problem.initial.repeat(4, 1)
    ours = ready.cohort.fit(start, at(1))
    assert (ours - start).abs().max() > steps.LR  # it did train
    given = (copy.deepcopy(module).double(), 4, list(ready.cohort.batches(at(1))), steps.LR, "float32")
    for opponent in (Plain(*given), Fairest(*given), *(way.make(*given) for way in variants(module, DEVICE))):
        opponent()
        rows = torch.stack([ready.cohort.layout.row(each) for each in opponent.modules])
        torch.testing.assert_close(rows, ours, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("load", [steps.mlp(3, 4, 8, steps=3, few_steps=3), steps.cnn(2, 3, steps=2)])
def test_ways_that_are_compared_come_to_the_same_weights(load: steps.Workload) -> None:
    ways = steps.Ways(load, DEVICE, "float32")
    start = ways.ready.problem.initial.expand(load.clients, -1)
    expected = ways.ready.cohort.fit(start, at(1)) - start  # with the workload's own number of steps
    for name in bench.WAYS:
        way = ways.made(name)
        assert way.steps == load.steps
        way.call()
        moved = way.rows() - start
        # Adam's first steps are as long for a gradient of pure rounding as for any other: so by norm, not each.
        assert (moved - expected).norm() < 0.02 * expected.norm(), name


def test_clients_and_steps_that_are_counted_up() -> None:
    """Two of eight clients with one of four steps: a call is worth a quarter of a step of all."""
    ways = steps.Ways(steps.mlp(8, 4, 8, steps=4, few=2, few_steps=1), DEVICE, "float32")
    assert {name: ways.made(name).steps for name in ("plain", "fairest", "one-by-one")} == dict.fromkeys(
        ("plain", "fairest", "one-by-one"), 0.25
    )
    assert ways.made("default").steps == ways.made("vmap").steps == 4
    assert len(ways.made("plain").rows()) == 2


# ---- times, bounds, memory ----


def test_ways_take_turns_after_a_warm_up() -> None:
    heard: list[str] = []
    found = timing.interleaved({"a": lambda: heard.append("a"), "b": lambda: heard.append("b")}, TINY)
    assert heard == ["a", "b"] * 3
    assert [len(found[name].seconds) for name in "ab"] == [2, 2]


def test_a_time_is_the_median_of_what_the_clock_said() -> None:
    row = timing.Timing((0.004, 0.002, 0.010, 0.006, 0.008), first=1.0).row(calls=2)
    assert row == pytest.approx({"ms": 3, "ms_low": 2, "ms_high": 4, "repeats": 5, "first_seconds": 1.0})
    assert timing.clocked(lambda: time.sleep(0.02), CPU) == pytest.approx(0.02, abs=0.2)
    assert timing.clocked(lambda: time.sleep(0.02), CPU) >= 0.02


def test_arithmetic_of_a_step_is_that_of_its_layers() -> None:
    """A linear layer (a to b) takes 2ab forward, 2ab for its weights' gradient and, but for the first, 2ab for its
    input's; a convolution the same for each place of its output."""
    b = 7
    first, second = 64 * 16, 16 * 10
    load = steps.mlp(1, b, 16)
    assert steps.flop_of_a_step(load.module(), load) == 2 * b * (2 * first + 3 * second)
    conv1, conv2 = 28 * 28 * 32 * 25, 14 * 14 * 64 * 32 * 25
    hidden, head = 64 * 49 * 512, 512 * 62
    load = steps.cnn(1, b)
    assert steps.flop_of_a_step(load.module(), load) == 2 * b * (2 * conv1 + 3 * (conv2 + hidden + head))


def test_the_bound_is_arithmetic_or_memory_whichever_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = steps.Ways(steps.mlp(3, 4, 8, steps=1), DEVICE, "float32")
    moved = 3 * 4 * 10 * (64 * 8 + 8 + 8 * 10 + 10)
    flop = 3 * steps.flop_of_a_step(ways.module, ways.workload)
    for speed, width, bound in ((1e15, 1e3, moved / 1e3), (1e3, 1e15, flop / 1e3)):
        monkeypatch.setattr(steps, "flop_per_second", lambda *_, speed=speed: speed)
        monkeypatch.setattr(steps, "bytes_per_second", lambda *_, width=width: width)
        assert steps.lower_bound(ways, TINY) == pytest.approx(bound)


def test_ratios_and_shares_are_of_the_times_beside_them() -> None:
    rows = steps.compared(steps.mlp(3, 4, 8, steps=2), TINY, "float32")
    assert [row["way"] for row in rows] == list(bench.WAYS)
    by = {row["way"]: row for row in rows}
    for row in rows:
        assert row["times_plain"] == pytest.approx(by["plain"]["ms"] / row["ms"])
        assert row["times_fairest"] == pytest.approx(by["fairest"]["ms"] / row["ms"])
        assert row["share_of_bound"] == pytest.approx(row["bound_ms"] / row["ms"])
        assert row["ms_per_client"] == pytest.approx(row["ms"] / 3)
        assert row["images_per_second"] == pytest.approx(1e3 * 12 / row["ms"])
        assert row["ms_low"] <= row["ms"] <= row["ms_high"]


def test_a_way_that_breaks_is_told_and_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such kernel\nand a long trace")

    monkeypatch.setattr(steps.Ways, "_opponent", broken)
    rows = steps.compared(steps.mlp(2, 4, 8, steps=1), TINY, "float32")
    assert [row.get("skipped") for row in rows] == ["failed (RuntimeError: no such kernel)"] * 2 + [None] * 3
    assert all("times_plain" not in row for row in rows)
    assert (
        bench.skipped(rows)[0] == "digits MLP, float32, plain torch, 2 clients: failed (RuntimeError: no such kernel)."
    )


def taken(count: int) -> tuple[int, int | None]:
    peak = timing.Peak(CPU)
    torch.ones(count)
    return os.getpid(), peak.bytes


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells a process's peak")
def test_memory_of_a_process_of_its_own() -> None:
    pid, peak = timing.alone(taken, 50_000_000)
    assert pid != os.getpid()
    assert peak is not None and 195e6 < peak < 260e6  # the system counts by and large


SWITCHES = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)


def switched() -> list[str]:
    return [switch.fp32_precision for switch in SWITCHES]


def test_precision_is_put_back() -> None:
    before = switched()
    with timing.plain_torch("tf32"):
        assert switched() == ["tf32"] * 3
    with timing.plain_torch("float32"):
        assert switched() == ["ieee"] * 3
    assert switched() == before


@pytest.mark.parametrize(("name", "meaning"), [("tf32", "tf32"), ("float32", "ieee")])
def test_only_opponents_are_helped_to_their_precision(name: Any, meaning: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """fedkin gets what its users give it: `precision`, and a torch as it found it."""
    before, seen = switched(), {}

    def watched(of: str, own: Any) -> Any:
        def call(*given: Any, **further: Any) -> Any:
            seen.setdefault(of, []).append(switched())
            return own(*given, **further)

        return call

    monkeypatch.setattr(Plain, "__call__", watched("opponents", Plain.__call__))
    monkeypatch.setattr(opponents, "learn", watched("opponents", opponents.learn))
    monkeypatch.setattr(Cohort, "fit", watched("fedkin", Cohort.fit))
    rows = steps.compared(steps.mlp(2, 4, 8, steps=1), TINY, name)
    rounds._tried("digits", rounds.DIGITS, 1, DEVICE, name)
    assert len(seen["opponents"]) > 3 and all(each == [meaning] * 3 for each in seen["opponents"])
    assert len(seen["fedkin"]) > 3 and all(each == before for each in seen["fedkin"])
    precision = timing.setting(name, DEVICE)
    assert [row["set"] for row in rows] == [f"fp32_precision = '{meaning}'"] * 2 + [f"precision = '{precision}'"] * 3


# ---- sections ----


@pytest.mark.parametrize("section", bench.SECTIONS)
def test_every_section_runs(section: str) -> None:
    found = bench.measured(section, TINY, "a test")
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert set(found["origin"]) == NEEDED
    assert not [row for row in found["rows"] if str(row.get("skipped", "")).startswith("failed")]
    rows = [row for row in found["rows"] if "skipped" not in row]
    for row in rows:
        measured = [v for k, v in row.items() if k.startswith(("ms", "seconds", "flop_per", "bytes_per", "peak"))]
        assert measured and min(measured) > 0, row
    heads, lines = bench.table(section, found["rows"])
    assert len(lines) == len(rows)
    assert rows or (section == "demo" and not ON_CPU)
    assert all(len(line) == len(heads) for line in lines)


def test_rounds_are_those_of_a_run(tmp_path: Path) -> None:
    settings = {**rounds.DIGITS, "seed": 3}
    found = rounds.carried_out(settings, 3, DEVICE)
    assert len(found.seconds) == 3 and min(found.seconds) > 0
    assert found.later == found.seconds[1:]
    run = fedkin.run(settings, rounds=3, device=DEVICE.type, out=tmp_path / "run")
    for model, scores in found.scores.items():
        assert scores == pytest.approx(
            [line["models"][model]["mean"] for line in run.rounds[:3]], abs=0 if ON_CPU else 0.05
        )


# ---- words ----


def test_numbers_in_words() -> None:
    row = {"workload": "w", "way": "default", "ms": 1440.2, "ms_low": 1400.0, "ms_high": 1500.4, "times_plain": 12.345}
    heads, (line,) = bench.table("step", [row, {"workload": "w", "way": "vmap", "skipped": "out of memory"}])
    assert dict(zip(heads, line, strict=True)) == {
        "model": "w",
        "way": "fedkin's choice",
        "ms, all clients": "1,440 (1,400–1,500)",
        "to plain": "12.3 ×",
    }


def test_sections_by_name() -> None:
    assert bench.chosen("") == list(bench.SECTIONS)
    assert bench.chosen("round, step") == ["step", "round"]
    with pytest.raises(fedkin.FedkinError, match=r"no section 'steps' to measure. Did you mean 'step'\?"):
        bench.chosen("steps")


# ---- the command, the script, the page ----


def test_the_command(command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "speed.json"
    assert (
        command("bench", "--tiny", "--device", "cpu", "--sections", "ceilings,step,checkpoint", "--json", target) == 0
    )
    told = capsys.readouterr().out
    found = bench.record.read(target)
    assert list(found) == ["ceilings", "step", "checkpoint"]
    assert all(set(section["origin"]) == NEEDED for section in found.values())
    for section, content in found.items():
        shown = [cell for line in bench.table(section, content["rows"])[1] for cell in line]
        assert shown and all(word in told for cell in shown for word in cell.split())
    assert [path.name for path in tmp_path.iterdir()] == ["speed.json"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--sections", "stpe"], "There is no section 'stpe' to measure. Did you mean 'step'?"),
        (["--device", "gpu"], "--device gpu cannot be: there are auto, cpu and cuda."),
        (["--json", "nowhere/speed.json"], "nowhere is not there."),
        (["--json", ""], "is a folder: name a file"),
        (["--json", "/"], "is a folder: name a file"),
    ],
)
def test_what_the_command_refuses(
    command: Any,
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "measured", lambda *_: pytest.fail("it has begun to measure"))
    assert command("bench", "--tiny", *words) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_no_other_file_is_overwritten_and_what_cannot_be_written_is_told_first(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "measured", lambda *_: pytest.fail("it has begun to measure"))
    (tmp_path / "mine.json").write_text("[1, 2]")
    assert command("bench", "--tiny", "--json", tmp_path / "mine.json") == 2
    assert "does not hold measurements" in capsys.readouterr().err
    assert (tmp_path / "mine.json").read_text() == "[1, 2]"
    assert command("bench", "--tiny", "--json", "/proc/speed.json") == 2
    assert "cannot be written" in capsys.readouterr().err


def test_what_was_measured_before_it_is_stopped_is_kept(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(plan: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setitem(bench.SECTIONS, "step", stopped)
    words = ("bench", "--tiny", "--device", "cpu", "--sections", "ceilings,step", "--json", tmp_path / "speed.json")
    assert command(*words) == 2
    assert "What was measured so far is in" in " ".join(capsys.readouterr().err.split())
    assert list(bench.record.read(tmp_path / "speed.json")) == ["ceilings"]


BLOCKED = """
import runpy, sys
for name in ("plotly", "pandas", "matplotlib", "rich", "typer", "pyarrow"):
    sys.modules[name] = None
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_the_script_needs_nothing_that_draws_and_keeps_other_sections(tmp_path: Path) -> None:
    """A GPU machine has no plotly, pandas, matplotlib, rich or typer."""
    target = tmp_path / "speed.json"
    bench.record.write(target, {"demo": {"rows": [1]}, "round": {"rows": [2]}})
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            BLOCKED,
            str(BENCHMARKS / "speed.py"),
            *("--size", "tiny", "--sections", "ceilings,round", "--out", str(target), "--commit", "abc"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = bench.record.read(target)
    assert list(found) == ["ceilings", "round", "demo"]
    assert found["demo"] == {"rows": [1]} and found["round"]["origin"]["commit"] == "abc"
    assert "s a round" in done.stdout


def a_run(source: str, precision: str, *seconds: float) -> dict[str, Any]:
    about = {"wall_seconds": 9.0, "clients": 2, "way": "stacked", "last": 0.5, "trouble": None}
    return {"source": source, "precision": precision, "seconds": list(seconds), **about}


def test_rounds_of_two_sources_are_held_against_each_other_without_their_first() -> None:
    page = script("emnist_rounds")
    runs = [
        a_run("old", "bf16", 9, 9, 1.0, 1.2),
        a_run("new", "bf16", 9, 9, 1.1, 1.1),
        a_run("old", "bf16", 9, 9, 1, 1),
    ]
    runs += [a_run("new", "float32", 9, 9, 3.3, 3.3), {"source": "old", "precision": "float32", "failed": "no GPU"}]
    rows = page.summed_up(runs, 2, {"old": "a", "new": "b"})
    assert [(r["source"], r["commit"], r["precision"], r["seconds"]) for r in rows] == [
        ("old", "a", "bf16", 1.0),
        ("new", "b", "bf16", 1.1),
        ("new", "b", "float32", 3.3),
    ]
    assert rows[0]["medians"] == [1.1, 1.0] and rows[0]["processes"] == 2
    assert rows[1]["times_old"] == pytest.approx(1.1) and rows[2]["times_bf16"] == pytest.approx(3.0)
    assert list(page.judged(rows)) == [
        "bf16, new to old: 1.100 times, NOT within 1.05.",
        "float32 to bf16, both new: 3.000 times, NOT within 2.5.",
    ]


def test_rounds_are_those_of_whole_runs_in_processes_of_their_own(tmp_path: Path) -> None:
    target, source = tmp_path / "rounds.json", str(Path(fedkin.__file__).parents[1])
    words = ["--old", source, "--new", source, "--commits", "a,b", "--precisions", "float32", "--clients", "5"]
    words += ["--data", "digits/relabelled", "--rounds", "2", "--warm-up", "1", "--turns", "1", "--device", DEVICE.type]
    command = [sys.executable, "-c", BLOCKED, str(BENCHMARKS / "emnist_rounds.py"), *words, "--out", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": source})
    assert done.returncode == 0, done.stderr
    section = bench.record.read(target)["emnist-rounds"]
    assert set(section["origin"]) == NEEDED and section["origin"]["commit"] == "b"
    assert [(row["source"], row["rounds"], row["clients"]) for row in section["rows"]] == [("old", 1, 5), ("new", 1, 5)]
    assert all(len(run["seconds"]) == 2 and min(run["seconds"]) > 0 for run in section["runs"])
    assert section["settings"]["data"] == {"name": "digits", "split": "relabelled", "clients": 5}


def test_what_is_no_file_of_measurements_is_told(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    assert bench.record.read(path) == {}
    path.write_text("[1, 2]", encoding="utf-8")
    with pytest.raises(fedkin.FedkinError, match="does not hold measurements"):
        bench.record.read(path)
    with pytest.raises(fedkin.FedkinError, match="cannot be written"):
        bench.record.write(tmp_path / "no" / "speed.json", {})


def test_the_page_is_its_json() -> None:
    page = script("performance_page")
    text, found = page.PAGE.read_text(encoding="utf-8"), page.results()
    assert found["cpu"], "benchmarks/results/speed-cpu.json is missing"
    assert page.rewritten(text, found) == text, "python benchmarks/performance_page.py makes it anew"
    for device, sections in found.items():
        for name, (_, values_of) in page.FIGURES.items():
            values = values_of(sections[name]["rows"]) if name in sections else []
            picture = page.PICTURES / f"{name}-{device}.svg"
            assert picture.exists() == bool(values)
            if values:
                assert page.digest(values) in picture.read_text(encoding="utf-8"), f"{picture} shows other numbers"
                assert f"performance/{picture.name}" in text


def test_the_page_changes_with_its_json() -> None:
    page = script("performance_page")
    text, found = page.PAGE.read_text(encoding="utf-8"), page.results()
    cpu = copy.deepcopy(found["cpu"])
    cpu["demo"]["rows"][0]["seconds"] = 4321.0
    changed = page.rewritten(text, {**found, "cpu": cpu})
    assert "| 4321 |" in changed and "| 4,320 |" in changed  # at a glance, and in its table
    assert "Not measured on a GPU yet" in page.rewritten(text, {**found, "cuda": {}})


def test_the_page_tells_of_rounds_that_users_start_once_they_are_measured() -> None:
    page, rounds_of = script("performance_page"), script("emnist_rounds")
    text, found = page.PAGE.read_text(encoding="utf-8"), page.results()
    runs = [a_run(source, "bf16", 9, 0.312) for source in ("old", "new")]
    runs += [a_run("old", "float32", 9, 1.19), a_run("new", "float32", 9, 0.689)]
    section = {"origin": found["cpu"]["demo"]["origin"], "seconds": 200.0, "runs": runs}
    section |= {"rows": rounds_of.summed_up(runs, 1, {"old": "6176844", "new": "abc"})}
    section |= {"settings": {"data": {"name": "emnist", "split": "practical"}, "rounds": 12}}
    cuda = {name: each for name, each in found["cuda"].items() if name != "emnist-rounds"}
    assert "A round as a user starts it" not in page.rewritten(text, {**found, "cuda": cuda})
    changed = page.rewritten(text, {**found, "cuda": {**cuda, "emnist-rounds": section}})
    assert "### A round as a user starts it" in changed and "practical EMNIST, 12 rounds" in changed
    assert "| float32 | 6176844 | 1 | 1.190 (1.190–1.190) | 9.00 |  | 3.81 × | 50.00 % |" in changed
    assert "| float32 | abc | 1 | 0.689 (0.689–0.689) | 9.00 | 0.58 × | 2.21 × | 50.00 % |" in changed
    assert "| float32 at most 2.5 × bf16 | 0.69 (float32), 0.31 (bf16): 2.21 × |" in changed
