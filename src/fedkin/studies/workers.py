"""Several runs at a time, each in a process of its own: on the cores of a CPU, or on several GPUs.

A run has the number of threads that it would have alone, so it ends with the same numbers; with more jobs than cores
all of them are slower. What a run tells comes back to the process that asked for it, and so does the wish to stop.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from ..base import spinning
from ..base.wording import first_line
from ..engines.simulation import Diverged, Interrupted, Listener
from ..errors import FedkinError
from ..evidence.records import Line, Summary
from ..runs.sinks import Audience, Sink
from .plan import Cell, Listeners, Stack
from .supply import Supply

PATIENCE = 0.2
"""Seconds after which it is asked again whether to stop, and whether all workers are alive."""


class LostWorker(FedkinError):
    """A process that ran a part of a study is gone."""


def spread(stacks: Sequence[Stack], jobs: int) -> list[Stack]:
    """The stacks, the largest cut in two until there is one for every job; a run's numbers are the same in any."""
    spread = [list(stack) for stack in stacks]
    while len(spread) < jobs and max(map(len, spread)) > 1:
        largest = max(range(len(spread)), key=lambda i: len(spread[i]))
        half = (len(spread[largest]) + 1) // 2
        spread[largest : largest + 1] = [spread[largest][:half], spread[largest][half:]]
    return spread


def side_by_side(
    stacks: Sequence[Stack],
    objects: Mapping[str, Any],
    listener: Listeners | None,
    jobs: int,
    spare_diverged: bool,
) -> None:
    """Runs the stacks, so many at a time. The first error ends the study, after the others have saved their round."""
    context = multiprocessing.get_context("spawn")  # torch's threads and CUDA do not survive a fork
    following, told, stop = context.Value("i", 0), context.Queue(), context.Event()
    how = torch.get_num_threads(), spinning.BOUNDED, spare_diverged
    shared = (_packed((stacks, dict(objects))), how, following, told, stop)
    processes = [context.Process(target=_work, args=(n, *shared), daemon=True) for n in range(min(jobs, len(stacks)))]
    try:
        _begin(processes)
        _listen(stacks, processes, told, stop.set, listener)
    finally:
        for process in processes:
            if process.pid is not None:
                process.terminate()
                process.join()


def _begin(processes: Sequence[SpawnProcess]) -> None:
    """Starts them deaf to Ctrl-C, which reaches all processes: the first one decides."""
    main = threading.current_thread() is threading.main_thread()  # no other may set what a signal does
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        for process in processes:
            process.start()
    finally:
        if main:
            signal.signal(signal.SIGINT, before)


def _packed(objects: object) -> bytes:
    """For other processes: as bytes, not as memory that is shared, of which there may be little."""
    try:
        return pickle.dumps(objects)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise FedkinError(
            f"With several jobs every object has to reach another process, and one cannot ({first_line(error)}). "
            "Define functions and classes in a module that can be imported, or take jobs = 1."
        ) from None


def _listen(
    stacks: Sequence[Stack],
    processes: Sequence[SpawnProcess],
    told: Any,
    stop: Callable[[], None],
    listener: Listeners | None,
) -> None:
    """Passes on what the workers tell until all stacks are done."""
    heard: dict[Any, tuple[Listener, Audience]] = {}
    try:
        _pass_on(stacks, processes, told, stop, listener, heard)
    finally:  # what has not ended was in a worker that is lost, or is not heard to its end
        for _, audience in heard.values():
            audience.end(None)


def _pass_on(
    stacks: Sequence[Stack],
    processes: Sequence[SpawnProcess],
    told: Any,
    stop: Callable[[], None],
    listener: Listeners | None,
    heard: dict[Any, tuple[Listener, Audience]],
) -> None:
    cells = {cell.path: cell for stack in stacks for cell in stack}
    left, errors, unbegun = set(range(len(stacks))), list[BaseException](), False
    while left:
        if any(each.stop() for each, _ in heard.values()):
            stop()
        try:
            number, path, event, what = told.get(timeout=PATIENCE)
        except queue.Empty:
            if not any(process.is_alive() for process in processes) and told.empty():
                break
            if any(process.exitcode not in (None, 0) for process in processes):
                stop()  # the others save their round
            continue
        if event == "begun" and listener:
            own = listener(cells[path])
            heard[path] = own, Audience(own.sinks, own.on_warning)
        elif event in ("start", "round", "end", "warning") and path in heard:
            _tell(*heard[path], event, what)
        elif event in ("done", "failed", "left"):
            left.discard(number)
            unbegun |= event == "left"
            if event == "failed":
                errors.append(what)
                stop()
    errors.sort(key=lambda error: isinstance(error, Interrupted))  # the cause before its effects
    if errors and not (left and isinstance(errors[0], Interrupted)):
        raise errors[0]
    if left:
        raise LostWorker(_lost({process.exitcode for process in processes} - {0, None}))
    if unbegun:
        raise Interrupted("Stopped before all runs were begun; everything is saved.")


def _tell(listener: Listener, audience: Audience, event: str, what: Any) -> None:
    if event == "warning":
        listener.on_warning(what)
    elif event == "start":
        audience.start(*what)
    elif event == "end":
        audience.end(what)
    else:
        listener.on_round(what)
        audience.round(what)


def _lost(codes: set[int | None]) -> str:
    """What may have become of workers that ended with these codes."""
    guess = (
        "in a script of your own, what starts several jobs belongs below `if __name__ == '__main__':`"
        if codes == {1}
        else "it may have been short of memory: take fewer jobs"
    )
    listed = ", ".join(map(str, sorted(codes, key=str)))
    return (
        f"A process that ran a part of the study ended before its work was done (exit code {listed}); {guess}. What "
        "was saved stays, and the same command goes on."
    )


def _work(
    worker: int,
    packed: bytes,
    how: tuple[int, bool, bool],
    following: Any,
    told: Any,
    stop: Any,
) -> None:
    """A worker: takes stack after stack until none is left, or it is asked to stop."""
    from .carry_out import run_stack

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where the one that began was not the main thread
    _take_a_gpu(worker)
    # By these a run decides how many threads it has; they have to be what they are where it would run alone.
    threads, spinning.BOUNDED, spare_diverged = how
    torch.set_num_threads(threads)
    stacks, objects = pickle.loads(packed)  # of our own process, through a pipe
    supply = Supply(objects)
    while (number := _next(following)) < len(stacks):
        if stop.is_set():
            told.put((number, None, "left", None))
            continue
        try:
            run_stack(stacks[number], supply, partial(_listener, number, told, stop), spare_diverged)
        except (FedkinError, Interrupted, Diverged) as error:
            told.put((number, None, "failed", _portable(error)))
        except Exception as error:
            said = f"{type(error).__name__}: {first_line(error)}"
            told.put((number, None, "failed", RuntimeError(f"{stacks[number][0].name}: {said}")))
        else:
            told.put((number, None, "done", None))
    told.close()
    told.join_thread()


def _next(following: Any) -> int:
    with following.get_lock():
        number: int = following.value
        following.value += 1
    return number


class Afar(Sink):
    """Sends what a run tells to the process that asked for it: there are its sinks."""

    def __init__(self, send: Callable[[str, object], None]) -> None:
        self.send = send

    def start(self, config: Mapping[str, Any], clients: tuple[str, ...]) -> None:
        self.send("start", (config, clients))

    def round(self, line: Line) -> None:
        self.send("round", line)

    def end(self, summary: Summary | None) -> None:
        self.send("end", summary)


def _listener(number: int, told: Any, stop: Any, cell: Cell) -> Listener:
    """What a run tells, sent to the process that asked for it."""

    def send(event: str, what: object) -> None:
        told.put((number, cell.path, event, what))

    send("begun", None)
    return Listener(on_warning=partial(send, "warning"), stop=stop.is_set, sinks=(Afar(send),))


def _portable(error: Exception) -> Exception:
    """An error that another process can read: of its own kind, or with its words."""
    try:
        return error if isinstance(pickle.loads(pickle.dumps(error)), type(error)) else FedkinError(str(error))
    except Exception:  # an error of a user's own method that asks for more than a sentence
        return FedkinError(str(error))


def _take_a_gpu(worker: int) -> None:
    """Where there are several GPUs, workers take turns with them; before CUDA is begun here."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    if len(names) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = names[worker % len(names)]
