"""What every model of a run answered on its clients' test samples at the closing exchange, so that any metric can be
made of it afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..base.task import Kind, Metric, metric_named, metrics_for
from ..errors import FedkinError
from . import repeated_samples
from .estimates import Estimate
from .own_metric import OwnMetric

CHOSEN = "chosen"
"""The name under which each client's handed-out model is found beside the method's models."""
GLOBAL = "global"
"""The name of a model that is the same for all."""
MOST_BYTES = 64 << 20
"""Beyond this only the headline's answers and those of the handed-out models are kept."""


@dataclass(frozen=True, repr=False)
class Outputs:
    """Test outputs of several clients, one after the other: client i has the next counts[i] rows.

    models: {name: (N, ...)}, the handed-out models together under `chosen`; targets: (N, ...), as the models saw them.
    handed: for each client which of the method's models it was handed. rows: (N,) which of its own samples a client was
    tested on, the same number in every seed (`Client.test_rows`), if that is known. subjects: (N,) whose sample it is,
    such as the patient's, by a number that means the same in every seed, where a subject may have several.
    """

    clients: tuple[str, ...]
    counts: tuple[int, ...]
    handed: tuple[str, ...]
    models: Mapping[str, Tensor]
    targets: Tensor
    kind: Kind
    target_mean: float = 0.0
    target_scale: float = 1.0
    class_names: tuple[str, ...] = ()
    rows: Tensor | None = None
    subjects: Tensor | None = None
    beside: Mapping[str, Tensor] = field(default_factory=dict)
    """{name: (N, ...)} what needs no federation answered: `majority` or `mean`, and `linear`; NaN where it has no
    answer."""
    own: OwnMetric | None = None
    """Of runs whose metric is a function of the user's: what it was of these answers."""

    def __repr__(self) -> str:
        return f"Outputs({len(self.clients)} clients, {len(self.targets)} test samples, of {', '.join(self.models)})"

    def of(self, client: str) -> Outputs:
        """Those of one client."""
        if client not in self.clients:
            have = ", ".join(self.clients[:8]) + (", …" if len(self.clients) > 8 else "")
            raise FedkinError(f"There are no test outputs of a client {client!r}; clients are {have}.")
        i = self.clients.index(client)
        start = sum(self.counts[:i])
        rows = slice(start, start + self.counts[i])
        return replace(
            self,
            clients=(client,),
            counts=(self.counts[i],),
            handed=(self.handed[i],),
            models={name: outputs[rows] for name, outputs in self.models.items()},
            beside={name: outputs[rows] for name, outputs in self.beside.items()},
            targets=self.targets[rows],
            rows=None if self.rows is None else self.rows[rows],
            subjects=None if self.subjects is None else self.subjects[rows],
            own=None if self.own is None else self.own.of(i),
        )

    @property
    def fitting(self) -> tuple[str, ...]:
        """The names of the metrics that fit the task; where targets are missing, of those that leave them out. None
        where targets are wider than outputs, so that only a user's own knows how to compare them."""
        if self.kind == "regression" and any(_width(each) != _width(self.targets) for each in self.models.values()):
            return ()
        return tuple(metrics_for(self.kind, masked=bool(self.targets.isnan().any())))

    def metric(self, name: str) -> Metric:
        """A metric of ours by its name, in the target's own units."""
        if ":" in name:
            raise FedkinError(f"{name} is a metric of your own, which is not made of saved outputs; take one of ours.")
        try:
            return metric_named(name, self.kind).in_units(self.target_scale)
        except ValueError as error:
            raise FedkinError(str(error)) from None

    def metrics(self) -> dict[str, dict[str, dict[str, Estimate]]]:
        """{client: {model: {metric: value with its 95 % interval}}} for every metric that fits the task."""
        found: dict[str, dict[str, dict[str, Estimate]]] = {}
        for client in self.clients:
            own = self.of(client)
            found[client] = {
                model: {metric: repeated_samples.estimate(metric, [own], model) for metric in self.fitting}
                for model in own.models
            }
        return found

    # ---- as a file ----

    def to_file(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Named tensors, and what they are."""
        about = {
            "clients": list(self.clients),
            "counts": list(self.counts),
            "chosen": list(self.handed),
            "kind": self.kind,
            "target": {"mean": self.target_mean, "scale": self.target_scale},
            "classes": list(self.class_names),
        }
        whose = {"rows": self.rows, "subjects": self.subjects}
        rows = {name: numbers for name, numbers in whose.items() if numbers is not None}
        if self.own is not None:
            about["own"] = {"metric": self.own.name, "higher_is_better": self.own.higher_is_better}
            rows |= {f"own/{name}": values.contiguous() for name, values in self.own.values.items()}
        rows |= {f"beside/{name}": answers for name, answers in self.beside.items()}
        return {"targets": self.targets} | rows | {f"models/{name}": t for name, t in self.models.items()}, about

    @staticmethod
    def from_file(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> Outputs:
        """What `to_file` gave; where `chosen` was not written it is put together."""
        models, beside = (
            {name.removeprefix(part): t for name, t in tensors.items() if name.startswith(part)}
            for part in ("models/", "beside/")
        )
        counts, handed = tuple(about["counts"]), tuple(about["chosen"])
        return Outputs(
            clients=tuple(about["clients"]),
            counts=counts,
            handed=handed,
            models={CHOSEN: models[CHOSEN] if CHOSEN in models else joined(models, counts, handed)} | models,
            targets=tensors["targets"],
            kind=about["kind"],
            target_mean=about["target"]["mean"],
            target_scale=about["target"]["scale"],
            class_names=tuple(about["classes"]),
            rows=tensors.get("rows"),
            subjects=tensors.get("subjects"),
            beside=beside,
            own=_own(tensors, about.get("own")),
        )


def _width(values: Tensor) -> int:
    return values[0].numel() if len(values) else 1


def _own(tensors: Mapping[str, Tensor], about: Mapping[str, Any] | None) -> OwnMetric | None:
    values = {name.removeprefix("own/"): t for name, t in tensors.items() if name.startswith("own/")}
    return OwnMetric(about["metric"], about["higher_is_better"], values) if about and values else None


def joined(models: Mapping[str, Tensor], counts: tuple[int, ...], handed: tuple[str, ...]) -> Tensor:
    """(N, ...) of each client the rows of the model that it was handed."""
    starts = [sum(counts[:i]) for i in range(len(counts))]
    parts = [models[name][start : start + n] for name, start, n in zip(handed, starts, counts, strict=True)]
    return torch.cat(parts)
