"""The command line: `fedkin demo | run | compare | resume | report | methods | doctor`."""

from __future__ import annotations

import inspect
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from . import __version__, api, comparison, methods, options
from .assembly import Assembly
from .engines.simulation import Diverged, Interrupted, Listener, MethodError
from .errors import FedkinError
from .runs import Run

app = typer.Typer(
    help="Personalised federated learning for silos: each ends with a model of its own, trained with its kin.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)


def _console(stderr: bool = False) -> Console:
    """On a terminal as wide as that; elsewhere lines are not broken, and tables have room."""
    if (sys.stderr if stderr else sys.stdout).isatty():
        return Console(stderr=stderr)
    return Console(stderr=stderr, soft_wrap=True, width=int(os.environ.get("COLUMNS", "120")))


out = _console()
err = _console(stderr=True)

FREE = {"allow_extra_args": True, "ignore_unknown_options": True}
Words = Annotated[list[str] | None, typer.Argument(metavar="[CONFIG.toml] [SETTINGS]…", hidden=True)]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write to.", show_default=False)]
DEMO = ("separate", "fedavg", "fedamp", "heurfedamp", "groups")


# ---- commands ----


@app.command()
def demo(
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions, each with its own split and start.")] = 3,
    folder: Annotated[Path, typer.Option("--out", help="Folder to write to.")] = Path("runs/demo"),
) -> None:
    """Twenty silos with handwritten digits find their kin: five methods compared, a report at the end."""
    out.print(
        "[bold]Twenty silos, five groups that label the same digits differently.[/] Nobody is told the groups.\n"
        "One global model must fail here; a silo alone has too little data. Who finds its kin?\n"
    )
    results = _compare({"data": {"name": "digits", "split": "relabelled"}}, list(DEMO), seeds, folder)
    where = results.report(
        title="Silos that find their kin: handwritten digits, each group with its own labels",
        notes=["Under label skew alone the picture is another: see docs/when-collaboration-pays.md."],
    )
    _show(results)
    kin = [r.summary["collaboration"]["within_group"] for r in results.runs if r.summary["method"] == "fedamp"]
    out.print(f"\nFedAMP was not told the groups; at least {min(kin):.1%} of its attention went to the right one.")
    out.print(f"Report: [bold]{where.resolve()}[/]  (open it in a browser)")
    out.print(
        "Where groups do not disagree, broad collaboration pays instead: docs/when-collaboration-pays.md, or\n"
        "  fedkin compare --data digits --split practical "
        "--methods separate,fedavg,fedprox,fedamp,heurfedamp,scaffold,apfl,groups --seeds 5"
    )


@app.command(context_settings=FREE)
def run(words: Words = None, folder: Out = None) -> None:
    """Run one method: `fedkin run --method fedamp --data digits --split relabelled --rounds 10`.

    Settings are written `key=value`, `--key value` or `--key=value`;
    they are laid over those of the configuration file, if one is given.
    The config.toml that a run leaves lists them all, and
    `fedkin methods NAME` explains those of a method.
    """
    ready = api.prepare(options.parse(words or []))
    path = folder or api.free_folder(ready.config)
    with _listening(ready.config.rounds, path) as listener:
        finished = api.start(ready, path, listener)
    _show_run(finished)


@app.command(context_settings=FREE)
def compare(
    chosen: Annotated[str, typer.Option("--methods", help="Methods, separated by commas.")],
    words: Words = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="The first seed, 0 by default.", show_default=False)] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder to write to.")] = Path("runs/comparison"),
    figures: Annotated[str, typer.Option(help="Also write figures: png, pdf or both, with a comma.")] = "",
) -> None:
    """Compare methods over seeds: a table, tests, and a report. The same command again goes on where it ended.

    Settings are written as for `fedkin run` and hold for all methods;
    `methods.NAME.settings.key=value` is for one.
    """
    formats = _formats(figures)
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    raw = options.parse(words or [], several=names)
    results = _compare(raw if seed is None else raw | {"seed": seed}, names, seeds, folder)
    where = results.report()
    _show(results)
    if formats:
        for path in results.figures(formats=formats):
            out.print(f"Figure: {path}")
    out.print(f"\nReport: [bold]{where.resolve()}[/]")


@app.command()
def resume(path: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Go on with a run that was interrupted, from its last checkpoint."""
    found = Run(path)
    if found.complete:
        _show_run(found)
        out.print(f"The run in {path} is complete; there is nothing to resume.")
        return
    with _listening(found.resolved().rounds, path) as listener:
        finished = api.resume(path, listener=listener)
    _show_run(finished)


@app.command()
def report(
    paths: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")],
    target: Annotated[Path | None, typer.Option("--out", help="The HTML file to write.", show_default=False)] = None,
    figures: Annotated[str, typer.Option(help="Also write figures: png, pdf or both, with a comma.")] = "",
) -> None:
    """Write the report of a run, or of several side by side."""
    formats = _formats(figures)
    runs = [Run(p) for path in paths for p in _run_folders(path)]
    place = runs[0].path if len(runs) == 1 else paths[0] if len(paths) == 1 else Path()
    results = api.Results(runs, place)
    try:
        comparison.by_method(runs)
    except ValueError as error:  # they cannot stand side by side
        raise FedkinError(str(error)) from None
    where = results.report(target or place / "report.html")
    if formats:
        for path in results.figures(where.parent / "figures", formats):
            out.print(f"Figure: {path}")
    out.print(f"Report: [bold]{where.resolve()}[/]")


@app.command("methods")
def methods_(name: Annotated[str | None, typer.Argument(help="A method, to see its settings.")] = None) -> None:
    """List the methods, or the settings of one."""
    if name is None:
        table = Table("method", "headline", "in a sentence", title="Methods", title_justify="left")
        for each in methods.names():
            kind = methods.find(each)
            table.add_row(each, kind.headline, _sentence(kind))
        out.print(table)
        out.print("Settings of one: `fedkin methods fedamp`. Your own: --method package.module:Class")
        return
    kind = methods.find(name)
    out.print(f"[bold]{name}[/]: {inspect.getdoc(kind) or ''}\n", highlight=False)
    table = Table(Column("setting", no_wrap=True), Column("default", overflow="fold"), "meaning")
    for field, info in kind.model_fields.items():
        table.add_row(f"settings.{field}", json.dumps(info.default), info.description or "")
    out.print(table if kind.model_fields else "It has no settings of its own.")
    if kind.local:
        out.print("Local training unless told otherwise: " + ", ".join(f"{k} = {v}" for k, v in kind.local.items()))


@app.command()
def doctor() -> None:
    """Check this machine: versions, device, and whether a small run works."""
    from .diagnosis import diagnose

    table = Table("what", "state", "")
    healthy = True
    for check in diagnose():
        healthy &= check.fine
        table.add_row(check.what, check.state, "[green]fine[/]" if check.fine else "[red]look here[/]")
    out.print(table)
    if not healthy:
        raise typer.Exit(1)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show:
        out.print(f"fedkin {__version__}")
        raise typer.Exit


# ---- comparing ----


def _compare(raw: dict[str, Any], names: list[str], seeds: int, folder: Path) -> api.Results:
    total = len(dict.fromkeys(names)) * seeds
    with _interruptible() as stop, _bar() as progress:
        task = progress.add_task("comparing", total=total, note="") if progress else None
        done = 0

        def listener(method: str, seed: int) -> Listener:
            nonlocal done
            label = f"{method}, seed {seed}"
            if progress and task is not None:
                progress.update(task, completed=done, note=label)
            else:
                err.print(f"[{done + 1}/{total}] {label}", highlight=False)
            done += 1

            def on_round(record: dict[str, Any]) -> None:
                if progress and task is not None:
                    progress.update(task, note=f"{label}, round {record['round']}")

            def on_warning(sentence: str) -> None:
                err.print(f"{label}: {sentence}", highlight=False)

            return Listener(on_round=on_round, on_warning=on_warning, stop=stop)

        try:
            results = api.compare(raw, methods=names, seeds=seeds, out=folder, listener=listener)
        except Interrupted as error:
            raise Interrupted(f"{error} The same command goes on from there.") from None
        if progress and task is not None:
            progress.update(task, completed=total, note="done")
    return results


def _show(results: api.Results) -> None:
    """The table in the terminal; the same rows as in the report."""
    from .report import finding, is_share, p_text, score_text

    rows = results.rows()
    metric = results.runs[0].summary["metric"]
    reference = next((r for r in rows if r.headline), rows[0])
    pairs = {p: t for t in results.tests() for p in ((t.first, t.second), (t.second, t.first))}
    count = len(reference.seeds)
    title = f"Best mean test {metric} over the rounds, {count} seed{'s' if count > 1 else ''}"
    table = Table(Column("method:model", no_wrap=True), title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    for head in ("mean", "worst\nclient", "±\nclients", "±\nseeds", "last", "validated", "p"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        test = pairs.get((reference.name, row.name))
        table.add_row(
            f"[bold]{row.name}[/]" if row.headline else row.name,
            *(score_text(v, metric) for v in (row.bmta, row.worst, row.std_clients, row.std_seeds)),
            *(score_text(v, metric) for v in (row.last, row.validated)),
            p_text(test.p) if test else "",
        )
    out.print(table)
    out.print(
        "Headline models first (bold). The best round is picked on test data, which flatters every row alike; "
        "`validated` is picked on validation data. p: Wilcoxon's signed-rank test over clients against "
        f"{reference.name}, two-sided, with Holm's correction.",
        style="dim",
        highlight=False,
    )
    for sentence in finding(results.runs):
        out.print(sentence, highlight=False)
    worse = results.worse_than_alone()
    for name, clients in worse.items():
        if clients:
            share = is_share(metric)
            listed = ", ".join(f"{c} {(b - a) * 100:+.1f}" if share else c for c, a, b in clients[:8])
            more = f" and {len(clients) - 8} more" if len(clients) > 8 else ""
            unit = " (points)" if share else ""
            out.print(f"Worse off with {name} than alone{unit}: {listed}{more}.", highlight=False)


def _show_run(finished: Run) -> None:
    from .report import score_text

    summary = finished.summary
    table = Table("model", "best mean", "round", "last", "validated", "± clients")
    for name, m in summary["models"].items():
        label = f"[bold]{name}[/]" if name == summary["headline"] else name
        scores = [score_text(m[k], summary["metric"]) for k in ("bmta", "last", "validated", "std")]
        at = str(m["bmta_round"]) if m["bmta_round"] <= summary["rounds"] else "final"
        table.add_row(label, scores[0], at, *scores[1:])
    out.print(table)
    kin = summary["collaboration"]
    if kin and kin["within_group"] is not None:
        out.print(
            f"Within the known groups: {kin['within_group']:.1%} of the attention; "
            f"groups read off xi agree with adjusted Rand index {kin['adjusted_rand']:.2f}.",
            highlight=False,
        )
    if summary["novel"]:
        for name, m in summary["novel"]["models"].items():
            out.print(f"Newcomers, {name}: {score_text(m['mean'], summary['metric'])}", highlight=False)
    out.print(f"Run: [bold]{finished.path}[/]   Report: fedkin report {finished.path}", soft_wrap=True)


def _run_folders(path: Path) -> list[Path]:
    if (path / "config.toml").exists():
        return [path]
    inside = sorted(p.parent for p in path.glob("*/config.toml")) if path.is_dir() else []
    finished = [p for p in inside if (p / "summary.json").exists()]
    if not finished:
        raise FedkinError(f"{path} is neither a run folder nor a folder of finished runs.")
    for unfinished in sorted(set(inside) - set(finished)):
        err.print(f"{unfinished} is not finished and is left out; `fedkin resume {unfinished}` goes on with it.")
    return finished


def _formats(text: str) -> list[str]:
    formats = [f.strip().lower() for f in text.split(",") if f.strip()]
    for each in formats:
        if each not in ("png", "pdf"):
            raise FedkinError(f"Figures can be written as png or pdf, not as {each!r}.")
    return formats


def _sentence(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


# ---- progress and interruption ----


@contextmanager
def _bar() -> Iterator[Progress | None]:
    """A progress bar on a terminal, None elsewhere."""
    if not err.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=err, transient=True) as progress:
        yield progress


@contextmanager
def _listening(rounds: int, path: Path) -> Iterator[Listener]:
    """A listener that shows the rounds: a bar on a terminal, plain lines elsewhere (about forty of them)."""
    with _interruptible() as stop, _bar() as progress:
        task = progress.add_task("rounds", total=rounds, note="") if progress else None
        every = max(1, rounds // 40)

        def on_start(ready: Assembly) -> None:
            a = ready
            err.print(
                f"{a.config.method} on {a.config.data.name} ({a.config.data.split}), {a.problem.known} clients, "
                f"{a.problem.layout.parameters:,} parameters, {a.device.type}; {a.execution.name}: {a.reason}. "
                f"Writing to {path}.",
                highlight=False,
            )

        def on_round(record: dict[str, Any]) -> None:
            note = "  ".join(f"{name} {m['mean']:.4f}" for name, m in record["models"].items())
            if progress and task is not None:
                progress.update(task, completed=min(record["round"], rounds), note=note)
            elif record["round"] % every == 0 or record.get("final"):
                what = "final" if record.get("final") else f"round {record['round']}/{rounds}"
                err.print(f"{what}  {note}  {record['seconds']:.2f} s", highlight=False)

        try:
            yield Listener(on_start, on_round, lambda sentence: err.print(sentence, style="yellow"), stop)
        except Interrupted as error:
            raise Interrupted(f"{error} Go on with `fedkin resume {path}`.") from None


@contextmanager
def _interruptible() -> Iterator[Any]:
    """Inside, the first Ctrl-C asks to stop after the round; a second one stops at once."""
    asked = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:  # said here, as typer turns a KeyboardInterrupt into a silent exit code 130
            err.print("Stopped at once. The last checkpoint stays: `fedkin resume` goes on from it.")
            raise KeyboardInterrupt
        asked = True
        err.print("\nStopping after this round and saving; once more stops at once (the last checkpoint stays).")

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def main() -> None:
    """What the `fedkin` command calls: sentences instead of tracebacks, exit code 2 for what the user got wrong."""
    sys.path.insert(0, str(Path.cwd()))  # a user's own models and methods live where the command is typed
    try:
        app()
    except FedkinError as error:
        err.print(f"fedkin: {error}", style="red", highlight=False, soft_wrap=True, markup=False)
        sys.exit(2)
    except (Diverged, MethodError) as error:
        err.print(f"fedkin: {error}", style="red", highlight=False, soft_wrap=True, markup=False)
        sys.exit(1)
    except Interrupted as error:
        err.print(str(error), highlight=False, soft_wrap=True, markup=False)
        sys.exit(130)
