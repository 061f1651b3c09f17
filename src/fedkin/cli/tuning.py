"""`fedkin tune`: a grid over settings, chosen on validation data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..engines.simulation import Interrupted, Listener
from ..evidence.records import Line
from ..runs import options
from ..studies import tune as tuning
from .app import FREE, Jobs, Words, app
from .terminal import bar, err, interruptible, out, show_tuned, warn


@app.command(context_settings=FREE)
def tune(
    words: Words = None,
    grid: Annotated[
        list[str] | None, typer.Option(help="A setting and its values, key=a,b,c; may be given several times.")
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder to write to.")] = Path("runs/tune"),
    jobs: Jobs = 1,
) -> None:
    """Try a grid of settings and choose on validation data: `fedkin tune --grid lr=0.001,0.01 --grid sigma=auto,10`.

    Other settings are written as for `fedkin run`; a table `grid` in the configuration file does as well.
    The same command again goes on where it ended, also with more values. best.toml is the configuration of the best.
    """
    raw = options.parse(words or [])
    plan = tuning.plan(raw, options.chosen("--grid", grid or []), folder, {})
    err.print(_announcement(plan, jobs), highlight=False)
    tuned = _carried_out(plan, jobs)
    where = tuned.report()
    show_tuned(tuned)
    out.print(f"Use it: fedkin run {folder / 'best.toml'}   Report: [bold]{where.resolve()}[/]", soft_wrap=True)


def _announcement(plan: tuning.Plan, jobs: int) -> str:
    sizes = [count for count in (sum(not p.complete for p in stack) for stack in plan.stacks) if count]
    done = len(plan.points) - sum(sizes)
    told = f"{len(plan.points)} points of the grid"
    if done:
        told += f", {done} of them complete already"
    if not sizes:
        return f"{told}."
    order = "one after another" if jobs == 1 else f"up to {jobs} at a time"
    several = f"{len(sizes)} stacks ({', '.join(map(str, sizes))} points), {order}"
    return f"{told}; {sum(sizes)} are trained in {'one stack' if len(sizes) == 1 else several}."


def _carried_out(plan: tuning.Plan, jobs: int) -> tuning.Tuned:
    with interruptible() as stop, bar() as progress:
        rounds = sum(point.config.rounds + 1 for point in plan.points)
        task = progress.add_task("tuning", total=rounds, note="") if progress else None
        begun, warned, heard = set[str](), set[str](), set[str]()

        def listener(name: str) -> Listener:
            def on_round(record: Line) -> None:
                begun.add(name)
                if progress and task is not None:
                    progress.update(task, advance=1, note=f"round {record.round}")
                elif record.final:
                    err.print(f"{name}: done", highlight=False)

            def on_warning(sentence: str) -> None:
                if name not in begun:  # what is worth knowing of the data, which all points have in common
                    if sentence not in heard:
                        heard.add(sentence)
                        warn(f"{name}: {sentence}")
                    return
                if name not in warned:  # a learning rate that is too large diverges in every round
                    warn(f"{name}: {sentence}")
                warned.add(name)

            return Listener(on_round=on_round, on_warning=on_warning, stop=stop)

        try:
            return tuning.tried_out(plan, listener, jobs)
        except Interrupted as error:
            raise Interrupted(f"{error} The same command goes on from there.") from None
