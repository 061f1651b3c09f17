"""What a method has to keep to, a short function for each: it yields a sentence for what is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from ..base.wording import first_line
from ..engines.assembly import Assembly
from ..errors import FedkinError
from .post import Side, one_each
from .trials import Failed, Seen, Trials
from .watching import Watch

Check = Callable[[Trials], Iterator[str]]

TROUBLES = {
    "With lost uploads (participation.lost = 0.5)": {"lost": 0.5},
    "With sampled clients (participation.sample = 0.5)": {"sample": 0.5},
    "With dropped clients (participation.dropped = 0.4)": {"dropped": 0.4},
    "With newcomers (participation.novel = 0.25)": {"novel": 0.25},
}


def found(trials: Trials) -> list[str]:
    """A sentence for each thing that is broken. What cannot be compared, as runs differ already where nothing is
    changed, or fail, is not."""
    try:
        trials.prepared(Watch())
    except FedkinError as error:
        return [f"The method cannot be made, or does not take the small federation: {first_line(error)}"]
    if failed := list(_asked(trials, everyone_takes_part)):
        return list(dict.fromkeys([*trials.told.values(), *failed]))
    for how in TROUBLES:
        if some := list(_asked(trials, partial(trouble, how=how))):
            trials.participation = {}
            failed += some
    told = [*trials.told.values(), *failed, *_asked(trials, settings), *_asked(trials, newcomers)]
    if same_again := list(_asked(trials, random_numbers)):
        return list(dict.fromkeys(told + same_again))
    for check in (stacked, seeds, resumed):
        told += _asked(trials, check)
    rows = list(_asked(trials, chunks))
    if not rows:  # sites are chunks, too
        rows = [*_asked(trials, sites), *_asked(trials, anew)]
    return list(dict.fromkeys(told + rows))


def _asked(trials: Trials, check: Check) -> Iterator[str]:
    """What a check says; if it fails itself, that."""
    try:
        yield from check(trials)
    except Failed as failed:
        if failed.inside or not trials.told:  # else it follows from what is told already
            yield str(failed)
    except Exception as error:
        name = getattr(check, "__name__", "a check").replace("_", " ")
        yield f"The check of {name} fails with {type(error).__name__}: {first_line(error)}."


# ---- a run by itself ----


def everyone_takes_part(trials: Trials) -> Iterator[str]:
    run = trials.run("With all clients in every round", strict=True, rounds=2)
    for round, client in run.diverged[:1]:
        yield (
            f"The training of client {client!r} diverged in round {round} on a small and easy federation: losses and "
            "weights should stay finite (local={'lr': …} gives another rate)."
        )


def trouble(trials: Trials, how: str) -> Iterator[str]:
    """Lost uploads, sampled and dropped clients, newcomers: the run comes to its end."""
    trials.once(how, lambda: trials.run(how, strict=True, rounds=3, participation=TROUBLES[how]))
    yield from ()


def settings(trials: Trials) -> Iterator[str]:
    """`train` and `models` look at the settings that are declared."""
    kind = trials.kind
    declared = vars(kind).get("training")
    if declared is None:
        return
    strangers = sorted(set(declared) - set(kind.model_fields))
    if strangers:
        yield f"`training` names {strangers[0]!r}, which is no setting: they are {', '.join(kind.model_fields)}."
    how = "With lost uploads (participation.lost = 0.5)"
    run = trials.known.get(how)
    looked = run.watch.looked if isinstance(run, Seen) else set[str]()
    for name in sorted(looked - set(declared)):
        yield (
            f"`train` or `models` looks at the setting {name!r}, which `training` does not name: values of it would be "
            "tuned in one stack and trained alike. Name it there."
        )


def newcomers(trials: Trials) -> Iterator[str]:
    """Of those who were there, server and memory stay bit for bit."""
    run = trials.known.get("With newcomers (participation.novel = 0.25)")
    if not isinstance(run, Seen) or run.watch.before is None:
        return
    (server, memory), known, after = run.watch.before, run.known, dict(run.server.items())
    for name, old in server.items():
        if name in trials.kind.newcomers_change:
            continue
        new = after.get(name)
        if new is None or not _as_before(name, old, new, known, name in server.shared):
            yield (
                f"Newcomers change the server's {name!r} for clients that were there: `welcome` should add rows from "
                "problem.known on, and `update` write into rows `clients` alone (or name it in `newcomers_change`)."
            )
    for name, old in memory.items():
        now = torch.cat([dict(run.memory[client].items())[name] for client in run.names[:known]])
        if not torch.equal(old, now):
            yield f"Newcomers change what clients that were there remember as {name!r}; it should stay as it was."


def _as_before(name: str, old: Tensor, new: Tensor, known: int, shared: bool) -> bool:
    if name == "xi" and not shared:  # the weight that the known give to newcomers is none
        return torch.equal(new[:known, :known], old) and not bool(new[:known, known:].any())
    part = new[: len(old)] if old.ndim else new
    return torch.equal(part if shared else new[:known], old)


# ---- a run and another ----


def _same(one: Seen, other: Seen, how: str, should: str, tolerance: float = 1e-9) -> Iterator[str]:
    said = one.unlike(other, tolerance)
    if said:
        yield f"{how} {said}: {should}."


def random_numbers(trials: Trials) -> Iterator[str]:
    again = trials.run("Run again", global_seed=1, participation=trials.participation)
    should = "random numbers should come from `round.rng` at the server and from `cohort.rng` where clients train"
    yield from _same(trials.reference(), again, "When torch, numpy and random are seeded otherwise", should, 0.0)


def chunks(trials: Trials) -> Iterator[str]:
    for chunk in (1, 2):
        how = f"With chunk = {chunk}"
        run = trials.run(how, chunk=chunk, participation=trials.participation)
        should = "a row of `train` and `models` should depend on that row's data, message and memory alone"
        told = list(_same(trials.reference(), run, how, should))
        yield from told
        if told:
            return


def stacked(trials: Trials) -> Iterator[str]:
    how = "With execution = 'one-by-one'"
    run = trials.run(how, execution="one-by-one", participation=trials.participation)
    should = "gradients should come from `cohort.fit` and `cohort.grad`, which give the same in both ways"
    yield from _same(trials.reference(), run, how, should)


def sites(trials: Trials) -> Iterator[str]:
    should = "all that server and clients know of each other should be in message, upload and memory"
    for how, split in (("With one site, by letters,", _one), ("With a site for each client", one_each)):
        yield from _same(trials.reference(), trials.posted(how, split), how, should)


def anew(trials: Trials) -> Iterator[str]:
    should = "what has to last from round to round should be in the server's state or in memory, not in the method"
    ways: dict[Side, str] = {"server": "the server comes", "sites": "the sites come"}
    for side, words in ways.items():
        how = f"When {words} up anew after round 2"
        yield from _same(trials.reference(), trials.posted(how, _three, side), how, should)


def resumed(trials: Trials) -> Iterator[str]:
    how = "When a run is stopped after round 2 and resumed"
    run = trials.resumed(how, after=2)
    should = "what has to last from round to round should be in the server's state or in memory, bit for bit"
    yield from _same(run, trials.reference(), how, should, 0.0)


def seeds(trials: Trials) -> Iterator[str]:
    """Several seeds in one stack are each what they are alone."""
    how, both = "With two seeds in one stack", (0, 1)
    should = "rows may belong to runs of several seeds: random numbers are `cohort.rng`'s, batches `cohort.batches`'"
    for seed, run in zip(both, trials.together(how, both), strict=True):
        yield from _same(trials.run(f"With seed = {seed}", seed=seed), run, how, should)


def _one(assembly: Assembly) -> list[list[int]]:
    return [list(range(len(assembly.problem)))]


def _three(assembly: Assembly) -> list[list[int]]:
    """Three sites, whose clients do not follow each other."""
    everyone = list(range(len(assembly.problem)))
    return [everyone[i::3] for i in range(3)]
