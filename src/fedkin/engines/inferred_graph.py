"""A graph for federations that bring none: who attends to whom once the clients have trained together for a while.

Panacea's paper leaves this to future work. Before the run proper, on the same data, FedAMP or HeurFedAMP runs for a few
rounds; its collaboration xi, made mutual and cut to each client's closest kin, is the graph.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from .. import methods
from ..data import graphs
from ..runs.folder import Writer
from .assembly import Assembly
from .simulation import Interrupted, Listener, Simulation

Attentions = dict[str, Tensor]
"""Attention by the configuration of the run that told it: methods and points of a grid share it. For runs that were all
given the same Python objects, of which a configuration says no more than their names."""


def graph(ready: Assembly, listener: Listener | None = None, known: Attentions | None = None) -> Tensor:
    """(m, m) edges of weight 1 between those who attend to each other most; rows as in `ready.problem`."""
    return graphs.from_collaboration(attention(ready, listener, known), ready.config.graph.top, ready.problem.known)


def attention(ready: Assembly, listener: Listener | None = None, known: Attentions | None = None) -> Tensor:
    """(m, m) xi after `graph.infer_rounds` rounds of `graph.infer_by`, on the data and with the local training of this
    run. A newcomer's row comes from its own exchanges with the trained, who know nothing of it.

    What is in `known` is not worked out again, and what is worked out is put there.
    """
    known = {} if known is None else known
    first = _before(ready)
    key = first.config.model_dump_json()
    if key not in known:
        with TemporaryDirectory(prefix="fedkin-") as folder:
            simulation = Simulation(first, Writer(Path(folder)), _overheard(listener))
            try:
                simulation.run()
            except Interrupted:
                raise Interrupted("Stopped while the graph was being inferred, before round 1.") from None
        known[key] = simulation.server.state.xi
    return known[key]


def _before(ready: Assembly) -> Assembly:
    """The run that tells: the same clients, data, start and seeds; another method, fewer rounds and no graph."""
    wanted = ready.config.graph
    method = methods.find(wanted.infer_by)()
    config = ready.config.model_copy(
        update={
            "method": wanted.infer_by,
            "settings": method.model_dump(mode="json"),
            "rounds": wanted.infer_rounds,
            "graph": type(wanted)(source="none"),
            "on_divergence": "continue",  # whose training diverges is heard no more; the run itself decides about it
        }
    )
    return replace(
        ready,
        config=config,
        method=method,
        problem=replace(ready.problem, rounds=config.rounds, graph=None),
    )


def _overheard(listener: Listener | None) -> Listener:
    """Warnings are passed on, and whether to stop is asked; rounds are not counted."""
    if listener is None:
        return Listener()
    told = listener.on_warning
    return Listener(
        on_warning=lambda sentence: told(f"While the graph was inferred: {sentence}"),
        stop=listener.stop,
    )
