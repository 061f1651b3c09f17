"""One run: `run`, `resume`, and the object that users hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..engines import start
from ..engines.simulation import Listener
from ..engines.start import Network, Settings, Silos
from ..evidence.findings import Findings
from ..methods import Named
from ..runs.config import Config
from ..runs.folder import RunError, RunFolder
from ..runs.saved_model import Network as Own
from ..runs.saved_model import Prediction, Saved, read_file
from ..runs.sinks import Sink


class Run(RunFolder):
    """A run folder to read and to use: `.summary`, `.rounds`, `.config`, `.collaboration()`, `.frame()`,
    `.saved(client)`, `.predict(client, rows)`, `.plot_rounds()`."""

    def model(self, client: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A client's saved model: named tensors, and what they are."""
        return read_file(self.model_file(client))

    def saved(self, client: str, model: Own | None = None) -> Saved:
        """A client's saved model, ready to use; a network of your own has to be given again as `model`."""
        return Saved.load(self.model_file(client), model)

    def predict(self, client: str, rows: Any, model: Own | None = None) -> Prediction:
        """What a client's model says of new rows: an array, a frame, or the file of one."""
        return self.saved(client, model).predict(rows)

    def export(self, client: str, path: Path | str, format: str = "onnx", model: Own | None = None) -> Path:
        """Writes a client's model for use elsewhere: `onnx` (complete) or `state_dict`."""
        return self.saved(client, model).export(path, format)

    def frame(self) -> Any:
        """A pandas frame with a row for each round, model and client."""
        try:
            import pandas as pd
        except ImportError:
            raise RunError("A frame needs pandas: `pip install pandas`.") from None
        rows = [
            {"round": line.round, "model": name, "client": client, "score": score}
            for line in self.rounds
            if not line.novel
            for name, scores in line.models.items()
            for client, score in zip(self.summary.clients, scores.clients, strict=True)
        ]
        return pd.DataFrame(rows)

    def plot_rounds(self) -> Any:
        """A plotly figure: the metric over rounds."""
        from ..report import figures

        return figures.curves(Findings([self]))

    def plot_collaboration(self) -> Any:
        """A plotly figure: xi as a heat map."""
        from ..report import figures

        return figures.collaboration(self)

    def plot_clients(self) -> Any:
        """A plotly figure: the distribution over clients."""
        from ..report import figures

        return figures.distribution(Findings([self]))


def run(
    config: Settings | Config | Path | str | None = None,
    *,
    federation: Silos | None = None,
    model: Network | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
    out: Path | str | None = None,
    listener: Listener | None = None,
    sinks: Sequence[Sink] = (),
    **settings: Any,
) -> Run:
    """Runs one method and returns its run folder.

    `config`: a TOML file or a table; `settings` are laid over it (`method="fedamp"`, `rounds=10`,
    `data={"split": "iid"}`). `federation`, `model`, `loss` and `metric` may be given as Python objects: a federation
    as itself, a function that makes it, or {client: (x, y)}; and `method` as a class, or as an object of one. `sinks`
    are told of the start, every round and the end, and cannot harm the run.
    """
    ready = start.prepare(config, federation=federation, model=model, loss=loss, metric=metric, **settings)
    path = Path(out) if out is not None else start.free_folder(ready.config)
    start.start(ready, path, heard_by(listener, sinks))
    return Run(path)


def resume(
    path: Path | str,
    *,
    rounds: int | None = None,
    method: Named | None = None,
    federation: Silos | None = None,
    model: Network | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
    listener: Listener | None = None,
    sinks: Sequence[Sink] = (),
) -> Run:
    """Goes on with an unfinished run from its last checkpoint; a finished one is returned as it is.

    `rounds`: so many in all, which makes a finished run longer. Python objects that the run was started with have to be
    given again; a class or function, if it cannot be imported by the name that the run has for it.
    """
    run, listener = Run(path), heard_by(listener, sinks)
    if run.complete and rounds is None:
        return run
    found = start.again(run.config, method, federation)  # before anything that the run names is looked for
    longer = None if rounds is None else start.lengthened(run, rounds)
    if run.complete and longer is None:
        return run
    ready = start.assembled(longer or run.resolved(), federation=found, model=model, loss=loss, metric=metric)
    if longer is not None:
        start.lengthen(run, longer, listener)
    simulation, checkpoint = start.reopened(ready, run.path, listener)
    simulation.server.upto = rounds
    simulation.run(checkpoint)
    return Run(path)


def heard_by(listener: Listener | None, sinks: Sequence[Sink]) -> Listener:
    """A listener with sinks beside those that it has."""
    listener = listener or Listener()
    return replace(listener, sinks=(*listener.sinks, *sinks))
