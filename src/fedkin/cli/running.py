"""Running: `fedkin demo | run | compare | resume | report`, and what there is: `methods | settings | doctor`."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from click import Context
from rich.table import Table
from typer.core import TyperCommand

from .. import methods
from ..engines import start
from ..engines.simulation import Interrupted, Listener
from ..errors import FedkinError
from ..evidence import comparison
from ..evidence.records import Line
from ..runs import options
from ..runs.config import Config, merge, read_toml
from ..runs.sinks import Named, Sinks
from ..studies import compare as comparing
from ..studies import demo as demonstration
from ..studies import reopen
from ..studies import run as one
from ..studies import study as studying
from ..studies.compare import Results
from ..studies.cross import Crossed, cross
from ..studies.rates import grid_of, read
from ..studies.run import Run
from ..studies.study import Found, default_folder
from ..studies.study_file import FILE, KINDS, Study, is_ours, taken_apart
from ..studies.tune import Tuned
from ..studies.vary import Levels, vary
from .app import FREE, Jobs, Native, Out, SinkWords, Words, app, paragraphs, table_of
from .terminal import (
    bar,
    err,
    interruptible,
    listening,
    out,
    show_comparison,
    show_crossed,
    show_levels,
    show_run,
    show_tuned,
    warn,
)


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
    results = _compare(dict(demonstration.SETTINGS), list(demonstration.METHODS), seeds, folder)
    where = results.report(
        title="Silos that find their kin: handwritten digits, each group with its own labels",
        notes=["Under label skew alone the picture is another: see docs/when-collaboration-pays.md."],
    )
    show_comparison(results)
    kin = [r.summary.collaboration for r in results.runs if r.summary.method == "fedamp"]
    least = min(each.within_group for each in kin if each and each.within_group is not None)
    out.print(f"\nFedAMP was not told the groups; at least {least:.1%} of its attention went to the right one.")
    out.print(f"Report: [bold]{where.resolve()}[/]  (open it in a browser)")
    out.print(
        "Where groups do not disagree, broad collaboration pays instead: docs/when-collaboration-pays.md, or\n"
        "  fedkin compare --data digits --split practical "
        "--methods separate,fedavg,fedprox,fedamp,heurfedamp,scaffold,apfl,groups --seeds 5"
    )


@app.command(context_settings=FREE)
def run(words: Words = None, folder: Out = None, native: Native = False, sink: SinkWords = None) -> None:
    """Run one method: `fedkin run --method fedamp --data digits --split relabelled --rounds 10`.

    Settings are written `key=value`, `--key value` or `--key=value`;
    they are laid over those of the configuration file, if one is given.
    `fedkin settings` lists them all, `fedkin methods NAME` those of a method.
    Your own table: `--data patients.csv --client hospital --target disease`,
    and `--group patient` where a patient has several rows.
    """
    sinks = Named(sink or [])
    ready = start.prepare(_budgeted(options.parse(words or []), native))
    path = folder or start.free_folder(ready.config)
    with listening(ready.config.rounds, path) as listener:
        start.start(ready, path, one.heard_by(listener, sinks(path.name)))
    show_run(Run(path))


class _Tunable(TyperCommand):
    """A command whose --tune may stand alone."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        something_else = re.compile(r"|-.*|.*=.*|.*\.toml")
        following = [*args[1:], ""]
        pairs = zip(args, following, strict=True)
        spelt = ["--tune=true" if a == "--tune" and something_else.fullmatch(b) else a for a, b in pairs]
        return super().parse_args(ctx, spelt)


@app.command(context_settings=FREE, cls=_Tunable)
def compare(
    chosen: Annotated[str, typer.Option("--methods", help="Methods, separated by commas.")],
    words: Words = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="The first seed, 0 by default.", show_default=False)] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder to write to.")] = Path("runs/comparison"),
    figures: Annotated[str, typer.Option(help="Also write figures: png, pdf or both, with a comma.")] = "",
    native: Native = False,
    references: Annotated[
        str,
        typer.Option(
            help="Rows without federated learning: climatology, persistence, least_squares, autoregression, "
            "pooled_least_squares, pooled; separated by commas."
        ),
    ] = "",
    wanted: Annotated[
        list[str] | None, typer.Option("--vary", help="A setting and its levels, key=a,b,c; several times if need be.")
    ] = None,
    crossed: Annotated[
        list[str] | None,
        typer.Option("--cross", help="A setting and its values, key=a,b,c; of several, every combination is run."),
    ] = None,
    tune: Annotated[
        str,
        typer.Option(
            metavar="[RATES]",
            help="Choose each method's learning rate on validation data: of x0.1, x0.3, x1, x3 and x10 its own, or of "
            "the rates (0.01) and factors (x3) given, separated by commas.",
            show_default=False,
        ),
    ] = "",
    jobs: Jobs = 1,
    sink: SinkWords = None,
) -> None:
    """Compare methods over seeds: a table, tests, and a report. The same command again goes on where it ended.

    Settings are written as for `fedkin run` (`fedkin settings` lists them)
    and hold for all methods;
    `methods.NAME.settings.key=value` is for one. With `--vary corruption.labels=0,0.2,0.4`
    they are compared at every level of a setting, in one picture;
    with `--cross data.split=iid,practical --cross local.lr=0.001,0.01` under every combination.
    With `--tune` every method has the same grid on its own learning rate.
    """
    formats = _formats(figures)
    names, without = ([name.strip() for name in text.split(",") if name.strip()] for text in (chosen, references))
    if wanted and crossed:
        raise FedkinError("--vary takes one setting at a time, and --cross every combination: leave one of them out.")
    if (wanted or crossed) and without:
        raise FedkinError(
            f"--references are rows of one table, and {'--vary' if wanted else '--cross'} makes several: leave one out."
        )
    if (wanted or crossed) and sink:
        raise FedkinError(
            f"--sink is for one comparison, and {'--vary' if wanted else '--cross'} makes several: leave one out."
        )
    sinks = Named(sink or [], several=True)
    if crossed and formats:
        raise FedkinError("--figures are of one comparison or of levels; for combinations there is the report.")
    raw = _budgeted(options.parse(words or [], several=names), native)
    raw = raw if seed is None else raw | {"seed": seed}
    grid = grid_of(tune == "true" or ([each.strip() for each in tune.split(",")] if tune else False))
    if wanted or crossed:
        kind, option, texts = (vary, "--vary", wanted) if wanted else (cross, "--cross", crossed)
        chosen_values = options.chosen(option, texts or [])
        combinations = sum if wanted else math.prod
        total = combinations(map(len, chosen_values.values())) * len(dict.fromkeys(names)) * seeds * max(1, len(grid))
        with _progress(total) as told:
            over = {"levels" if wanted else "over": chosen_values}
            common: dict[str, Any] = {"methods": names, "seeds": seeds, "out": folder, "jobs": jobs, **over}
            common["tune"] = grid or False
            found = kind(raw, listener=lambda level, method, s: told(f"{level}: {method}, seed {s}"), **common)
        _show(found, formats)
        return
    _show(_compare(raw, names, seeds, folder, without, jobs, grid, sinks), formats)


@app.command(context_settings=FREE)
def study(
    file: Annotated[Path, typer.Argument(help="A TOML file with a table \\[study].")],
    words: Words = None,
    folder: Out = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time; the file's own by default.")] = None,
) -> None:
    r"""Run a whole study from one file: a comparison, or one over levels, combinations or a grid.

    Its table \[study] has methods, seeds, and vary, cross or grid if need be; everything else in it are settings, as
    for `fedkin run`, over which those given here are laid. `fedkin compare` leaves such a file, study.toml, beside its
    runs. The same command again goes on where it ended.
    """
    plan, raw = taken_apart(read_toml(file), str(file))
    raw = merge(raw, options.parse(words or [], several=plan.methods or [str(raw.get("method", Config().method))]))
    with _progress(_runs(plan)) as told:
        given: dict[str, Any] = {"out": folder or plan.out or default_folder(file), "jobs": jobs}
        found = studying.study({**raw, "study": plan.model_dump(mode="json")}, listener=told, **given)
    _show(found, [])


def _runs(plan: Study) -> int:
    """How many runs a study has."""
    seeds = plan.seeds if isinstance(plan.seeds, int) else len(plan.seeds)
    if plan.grid:
        return math.prod(map(len, plan.grid.values()))
    levels = sum(map(len, plan.vary.values())) if plan.vary else math.prod(map(len, plan.cross.values()))
    rates = max(1, len(grid_of(plan.tune)))
    return (levels * len(dict.fromkeys(plan.methods)) * rates + bool(plan.references)) * seeds


def _show(found: Found, formats: Sequence[str]) -> None:
    """What came of a study, in the terminal and as a page."""
    if isinstance(found, Levels):
        show_levels(found)
    elif isinstance(found, Crossed):
        show_crossed(found)
    elif isinstance(found, Tuned):
        show_tuned(found)
    else:
        show_comparison(found)
    out.print()
    _write(found, None, formats)


def _write(found: Found, target: Path | None, formats: Sequence[str]) -> None:
    """The page of a study, and its figures where there are some."""
    where = found.report(target)
    if formats and isinstance(found, Results | Levels):
        for path in found.figures(where.parent / "figures", formats):
            out.print(f"Figure: {path}")
    out.print(f"Report: [bold]{where.resolve()}[/]")


@app.command()
def resume(
    path: Annotated[Path, typer.Argument(help="A run folder.")],
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds in all: makes a finished run longer.", show_default=False)
    ] = None,
    sink: SinkWords = None,
) -> None:
    """Go on with a run that was interrupted, from its last checkpoint; with --rounds, with one that has ended."""
    found, sinks = Run(path), Named(sink or [])
    if found.complete and (rounds is None or start.lengthened(found, rounds) is None):
        show_run(found)
        out.print(
            f"The run in {path} is complete; there is nothing to resume. Longer: `fedkin resume {path} --rounds N`."
        )
        return
    with listening(rounds or found.resolved().rounds, path) as listener:
        finished = one.resume(path, rounds=rounds, listener=listener, sinks=sinks(path.name))
    show_run(finished)


@app.command()
def report(
    paths: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")],
    target: Annotated[Path | None, typer.Option("--out", help="The HTML file to write.", show_default=False)] = None,
    figures: Annotated[str, typer.Option(help="Also write figures: png, pdf or both, with a comma.")] = "",
) -> None:
    """Write the report of a run, or of several side by side."""
    formats = _formats(figures)
    if len(paths) == 1 and _is_of_several(paths[0]):
        found = reopen.open(paths[0])
        assert not isinstance(found, Run)
        _write(found, target, formats)
        return
    for path in filter(_is_of_several, paths):
        raise FedkinError(f"{path} holds a study over several settings; its report is its own: `fedkin report {path}`.")
    chosen = [read(path) or (_runs_in(path), {}) for path in paths]
    runs = [run for own, _ in chosen for run in own]
    place = runs[0].path if len(runs) == 1 else paths[0] if len(paths) == 1 else Path()
    results = Results(runs, place, chosen[0][1] if len(paths) == 1 else {})
    try:
        comparison.by_method(runs)
    except ValueError as error:  # they cannot stand side by side
        raise FedkinError(str(error)) from None
    _write(results, target or place / "report.html", formats)


@app.command("methods")
def methods_(name: Annotated[str | None, typer.Argument(help="A method, to see its settings.")] = None) -> None:
    """List the methods, or the settings of one."""
    if name is None:
        table = Table("method", "headline", "in a sentence", title="Methods", title_justify="left")
        for each in methods.names():
            kind = methods.find(each)
            table.add_row(each, kind.headline, paragraphs(inspect.getdoc(kind) or "").split("\n\n")[0])
        out.print(table)
        out.print("The settings of one: `fedkin methods fedamp`. Your own: `--method package.module:Class`.")
        return
    kind = methods.find(name)
    out.print(f"[bold]{name}[/]: {paragraphs(inspect.getdoc(kind) or '')}\n", highlight=False)
    table = table_of((f"settings.{field}", info) for field, info in kind.model_fields.items())
    out.print(table if kind.model_fields else "It has no settings of its own.")
    if kind.local:
        out.print("Local training unless told otherwise: " + ", ".join(f"{k} = {v}" for k, v in kind.local.items()))


@app.command("settings")
def settings_() -> None:
    """List every setting of a run, with its default and its meaning."""
    out.print(table_of(options.described(Config)))
    out.print(
        "A last name is enough where it is the only one: --lr 0.01 is local.lr. The data set and the method may have "
        "other defaults; config.toml in a run folder has them all. A method's own: `fedkin methods fedamp`; those of a "
        "data set: `fedkin data describe fl60`.",
        highlight=False,
    )


@app.command()
def doctor() -> None:
    """Check this machine: versions, device, and whether a small run works."""
    from .doctor import diagnose

    table = Table("what", "state", "")
    healthy = True
    for check in diagnose():
        healthy &= check.fine
        table.add_row(check.what, check.state, "[green]fine[/]" if check.fine else "[red]look here[/]")
    out.print(table)
    if not healthy:
        raise typer.Exit(1)


# ---- comparing ----


def _budgeted(raw: dict[str, Any], native: bool) -> dict[str, Any]:
    return raw | {"budget": "native"} if native else raw


def _compare(
    raw: dict[str, Any],
    names: list[str],
    seeds: int,
    folder: Path,
    without: Sequence[str] = (),
    jobs: int = 1,
    grid: Sequence[str | float] = (),
    sinks: Sinks | None = None,
) -> Results:
    with _progress((len(dict.fromkeys(names)) * max(1, len(grid)) + bool(without)) * seeds) as told:
        return comparing.compare(
            raw,
            methods=names,
            seeds=seeds,
            references=without,
            tune=grid or False,
            out=folder,
            jobs=jobs,
            listener=lambda method, seed: told(f"{method}, seed {seed}"),
            sinks=sinks,
        )


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], Listener]]:
    """Listeners for so many runs, which show how far they are: a bar on a terminal, elsewhere a line a run."""
    with interruptible() as stop, bar() as progress:
        task = progress.add_task("comparing", total=total, note="") if progress else None
        done, heard = 0, set[str]()

        def told(label: str) -> Listener:
            nonlocal done
            if progress and task is not None:
                progress.update(task, completed=done, note=label)
            else:  # after all were run, some go on to where the longest ended
                count = f"[{done + 1}/{total}] " if done < total else ""
                err.print(f"{count}{label}", highlight=False, markup=False)
            done = min(done + 1, total)

            def on_round(record: Line) -> None:
                if progress and task is not None:
                    progress.update(task, note=f"{label}, round {record.round}")

            def on_warning(sentence: str) -> None:
                if sentence not in heard:  # methods and seeds have much in common
                    heard.add(sentence)
                    warn(f"{label}: {sentence}")

            return Listener(on_round=on_round, on_warning=on_warning, stop=stop)

        try:
            yield told
        except Interrupted as error:
            raise Interrupted(f"{error} The same command goes on from there.") from None
        if progress and task is not None:
            progress.update(task, completed=total, note="done")


def _is_of_several(path: Path) -> bool:
    """Whether a folder holds a study over levels, combinations or a grid, whose page is its own."""
    file = path / FILE
    return file.exists() and is_ours(file) and any(kind in read_toml(file).get("study", {}) for kind in KINDS)


def _runs_in(path: Path) -> list[Run]:
    if (path / "config.toml").exists():
        return [Run(path)]
    runs, unfinished = reopen.finished(path)
    for each in unfinished:
        err.print(f"{each} is not finished and is left out; `fedkin resume {each}` goes on with it.")
    return runs


def _formats(text: str) -> list[str]:
    formats = [f.strip().lower() for f in text.split(",") if f.strip()]
    for each in formats:
        if each not in ("png", "pdf"):
            raise FedkinError(f"Figures can be written as png or pdf, not as {each!r}.")
    return formats
