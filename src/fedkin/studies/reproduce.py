"""`fedkin reproduce`: the runs behind the papers' tables, those that are missing, in the order of the queue.

    python -m fedkin.studies.reproduce fedamp-table3 --minutes 9      the same without the command line's libraries

A run that time cuts short is kept in its folder and goes on in the next call on the same machine; of a finished one a
small result file stays, and its folder is deleted.
"""

from __future__ import annotations

import argparse
import errno
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..base.machine import chosen_device
from ..base.settings import ConfigError
from ..data.files import DataError
from ..engines import start
from ..engines.simulation import Diverged, Interrupted, Listener
from ..engines.summary import commit
from ..errors import FedkinError
from ..papers import published
from ..papers.published import Job
from ..runs.config import Config, merge
from ..runs.folder import RunError
from .plan import Cell
from .rates import rated
from .reproduced import Reproduced, markdown, mean_score, result, write
from .run import Run

RESULTS = Path("results")
FOLDERS = Path("runs/reproduce")
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """What to run: `table` None for all of the queue. `rounds` or a small scale make it another experiment."""

    table: str | None = None
    only: str = ""
    seeds: int | None = None
    rounds: int | None = None
    minutes: float | None = None
    scale: Literal["paper", "small"] = "paper"
    out: Path | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    commit: str | None = None

    @property
    def jobs(self) -> list[Job]:
        small = self.scale == "small"
        return published.jobs(self.table, 1 if small and not self.seeds else self.seeds, self.only, small)

    @property
    def other(self) -> str:
        """What makes it another experiment, in a file's name; nothing where it is the table's own."""
        small = ["small"] if self.scale == "small" else []
        return "-".join([*small, *([f"{self.rounds}-rounds"] if self.rounds else [])])

    @property
    def results(self) -> Path:
        """Other experiments never lie among those of the tables."""
        return self.out or (FOLDERS / "results" / self.other if self.other else RESULTS)

    def headed(self, name: str) -> list[str]:
        """What stands above the table."""
        whole, said = published.table(name), []
        if self.scale == "small" and whole.small:
            said.append(whole.small.said)
        if self.rounds:
            said.append(f"{self.rounds} rounds")
        return [f"**Not the paper's experiment**: {', '.join(said)}."] if said else []


def config_of(job: Job, wanted: Wanted) -> Config:
    """The table's settings, the column's, the run's, then what was asked for; the later wins."""
    whole = published.table(job.table)
    behind = whole.runs[job.run]
    layers = [whole.settings, whole.columns[job.column].settings, behind.settings, behind.by_column.get(job.column, {})]
    if wanted.scale == "small" and whole.small:
        layers += [whole.small.settings, whole.small.by_column.get(job.column, {})]
    if wanted.rounds:
        layers.append({"rounds": wanted.rounds})
    on_gpu = chosen_device(wanted.device).type == "cuda"
    precision = job.precision or (whole.precision if on_gpu else "float32")
    layers.append({"method": behind.method, "seed": job.seed, "device": wanted.device, "precision": precision})
    raw: dict[str, Any] = {}
    for layer in layers:
        raw = merge(raw, layer)
    config = start.configured(raw)
    if job.factor is None:
        return config
    return rated([Cell(job.name, config, Path(job.name))], [f"x{job.factor:g}"])[0].config


def reproduce(wanted: Wanted, tell: Tell = lambda said: None, stop: Callable[[], bool] = lambda: False) -> Reproduced:
    """Runs what is missing, as far as time goes and until it is asked to stop, and returns what there is."""
    ends = float("inf") if wanted.minutes is None else time.monotonic() + 60 * wanted.minutes
    jobs, left_out = wanted.jobs, published.left_out(wanted.table, wanted.only, wanted.scale == "small")
    if not jobs:
        raise ConfigError(" ".join(["There is nothing to run.", *left_out]))
    for said in left_out:
        tell(said)
    before = Reproduced(wanted.results, tell)
    _ = before.results  # what is damaged is told before anything is run
    missing, absent, failed = [job for job in jobs if not before.has(job)], set[str](), False
    tell(f"{len(jobs) - len(missing)} of {len(jobs)} runs are there, {len(missing)} are missing.")

    def over() -> bool:
        return stop() or time.monotonic() > ends

    for folder in (wanted.results, FOLDERS / "unfinished") if missing else ():
        _make(folder)
    for place, job in enumerate(missing, 1):
        if stop() or time.monotonic() >= ends:
            why = "Stopped" if stop() else "The time is over"
            tell(f"{why}; {len(missing) - place + 1} runs are left. The same command goes on.")
            break
        if job.column in absent:
            continue
        about = f"[{place}/{len(missing)}] {job.table}, {job.name}"
        try:
            _carry_out(job, wanted, over, lambda said, about=about: tell(f"{about}: {said}"))  # type: ignore[misc]
        except Interrupted as said:
            tell(f"{about}: {said} The same command goes on with it.")
            break
        except DataError as error:
            absent.add(job.column)
            tell(f"{about}: {error} Its column is left out.")
        except (FedkinError, Diverged) as error:
            failed = True
            tell(f"{about}: {error} It is left out.")
    found = Reproduced(wanted.results, lambda said: None)
    if (absent or failed) and not any(found.has(job) for job in wanted.jobs):
        raise RunError("None of these runs could be done: the sentences above say why.")
    return found


def _make(folder: Path) -> None:
    """So that what cannot be written is told before hours are spent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, "it may not be written to")
    except OSError as error:
        why = "there is a file of that name" if isinstance(error, FileExistsError) else error.strerror
        raise RunError(f"The folder {folder} cannot be made: {why}. Choose another with --out.") from None


def _carry_out(job: Job, wanted: Wanted, over: Callable[[], bool], tell: Tell) -> None:
    config = config_of(job, wanted)
    folder = FOLDERS / "unfinished" / (wanted.other or "paper") / job.table / job.name
    listener = Listener(on_round=_progress(config, tell), stop=over)
    run = _finished(folder, config, listener, tell)
    origin = {
        "command": command(job, wanted),
        "method": config.method,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {run.summary.device}",
        "precision": config.precision,
        "versions": dict(run.summary.versions),
        "commit": wanted.commit or run.summary.commit or commit(),
        "settings": config.model_dump(mode="json", exclude_defaults=True),
    }
    made = result(job, run, origin)
    path = write(wanted.results, job, made)
    shutil.rmtree(folder)
    tell(f"{mean_score(job, made)}; {run.summary.seconds:.0f} s, in {path}.")


def _finished(folder: Path, config: Config, listener: Listener, tell: Tell) -> Run:
    """The run, from its start or from where time ran out; one that cannot be taken up is run anew."""
    ready = start.assembled(config)
    try:
        start.refuse_other_settings(folder, ready.config)
        if (folder / "config.toml").exists() and Run(folder).complete:  # and its result was not written any more
            return Run(folder)
        simulation, checkpoint = start.opened(ready, folder, listener)
        if checkpoint:
            tell(f"goes on after round {checkpoint.round}.")
    except RunError:
        tell("what was kept of it has other settings or is damaged, and it is run anew.")
        shutil.rmtree(folder)
        simulation, checkpoint = start.opened(ready, folder, listener)
    simulation.run(checkpoint)
    return Run(folder)


def _progress(config: Config, tell: Tell) -> Callable[[Any], None]:
    """A line now and then: after the first round, and every half minute."""
    said = [time.monotonic() - 20.0]

    def on_round(line: Any) -> None:
        if time.monotonic() - said[0] > 30.0 and line.round > 0:
            said[0] = time.monotonic()
            tell(f"round {line.round} of {config.rounds}.")

    return on_round


def command(job: Job, wanted: Wanted) -> str:
    """What runs this cell again, where its result is not there."""
    words = ["fedkin reproduce", job.table, "--only", f"{job.column}/{job.run}"]
    words += ["--seeds", str(job.seed + 1)] if job.seed else []
    words += ["--scale", "small"] if wanted.scale == "small" else []
    return " ".join([*words, *(["--rounds", str(wanted.rounds)] if wanted.rounds else [])])


def told(wanted: Wanted, found: Reproduced) -> str:
    """The tables that were asked for, ours beside theirs."""
    parts = []
    for name in [wanted.table] if wanted.table else published.names():
        whole = published.table(name)
        columns = whole.small.columns if wanted.scale == "small" and whole.small else None
        if found.done(name)[0] or wanted.table:
            head = [f"## {whole.title}", whole.source + ".", *wanted.headed(name)]
            text = "Ours **in bold**, in brackets the paper's value and the difference; – was not run yet."
            parts += ["\n\n".join([*head, text, markdown(found, name, columns)])]
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="fedkin.studies.reproduce", description=__doc__, formatter_class=Raw)
    parser.add_argument("table", nargs="?", help=f"all if none is named: {', '.join(published.names())}")
    parser.add_argument("--only", default="", help="columns, runs, or both as column/run, with commas between")
    parser.add_argument("--seeds", type=int, help="so many for each cell; as the queue says if not given")
    parser.add_argument("--rounds", type=int, help="another number of rounds, which is another experiment")
    parser.add_argument("--minutes", type=float, help="after which a run is put aside, to go on next time")
    parser.add_argument("--scale", choices=["paper", "small"], default="paper")
    parser.add_argument("--out", type=Path, help="folder of the result files")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--commit", help="where the source tree comes without its history")
    wanted = Wanted(**vars(parser.parse_args(arguments)))
    try:
        found = reproduce(wanted, lambda said: print(said, file=sys.stderr, flush=True))
        print(told(wanted, found))
    except FedkinError as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit("Stopped. What was done is kept: the same command goes on.") from None


Raw = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    main()
