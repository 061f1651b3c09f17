"""`compare`: methods side by side over seeds, and what may be said of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from ..engines.simulation import Listener
from ..engines.start import Network, Settings, Silos, configured, understood
from ..evidence.comparison import Pair, Row
from ..evidence.findings import Findings
from ..evidence.references import Reference, rows
from ..evidence.verdicts import Joining
from ..methods import Named
from ..runs.config import merge
from ..runs.sinks import Sinks
from . import rates, references
from .carry_out import carry_out, refuse_jobs
from .plan import Cell, Listeners, compared, for_each, named, of_one_split
from .rates import Tuned, Wanted
from .run import Run, heard_by
from .study_file import keep
from .supply import Supply


@dataclass(frozen=True)
class Results:
    """Runs of several methods and seeds, side by side. `tuned`: the rates that were tried, if any were, of which these
    are the best runs."""

    runs: list[Run]
    path: Path
    tuned: Tuned = field(default_factory=dict)

    @cached_property
    def findings(self) -> Findings:
        """What may be said of the runs; each statistic is worked out once."""
        return Findings(self.runs, self.tuned)

    def rows(self) -> list[Row]:
        """The table: a row for each `method:model`."""
        return list(self.findings.rows)

    def tests(self, reference: str | None = None) -> list[Pair]:
        """Wilcoxon's signed-rank test between headline models, corrected by Holm."""
        return list(self.findings.tests(reference))

    def worse_than_alone(self) -> dict[str, list[tuple[str, float, float]]]:
        """For each headline, the clients for whom joining was worse than alone: (name, alone, joined)."""
        return dict(self.findings.worse_than_alone)

    def worth_joining(self, metric: str | None = None) -> Joining:
        """For each silo: alone, with one global model, with its own from joining, and whether that was worth it.

        In the runs' metric, or another that fits the task (`metric="auc"`).
        """
        return self.findings.worth_joining(metric)

    def references(self) -> list[Reference]:
        """What was scored without federated learning, where that was asked for; `evidence.references.rows` of it."""
        return [each for each in references.read(self.path) if each.metric == self.findings.metric]

    def frame(self) -> Any:
        """The table as a pandas frame."""
        import pandas as pd

        return pd.DataFrame([vars(row) | {"row": row.name} for row in self.rows()]).set_index("row")

    def report(self, path: Path | str | None = None, title: str | None = None, notes: Sequence[str] = ()) -> Path:
        """Writes the HTML report, by default beside the runs."""
        from ..report import write_report

        target = Path(path) if path is not None else self.path / "report.html"
        without = rows(self.references())
        return write_report(self.findings, target, title, {"notes": list(notes), "references": without})

    def figures(self, folder: Path | str | None = None, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
        """Writes the figures for print."""
        from ..report import write_figures

        return write_figures(self.findings, Path(folder) if folder is not None else self.path / "figures", formats)


def compare(
    config: Settings | Path | str | None = None,
    *,
    methods: Sequence[Named],
    seeds: int | Sequence[int] = 1,
    federation: Silos | None = None,
    model: Network | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    metric: Callable[[Tensor, Tensor], Tensor] | None = None,
    references: Sequence[str] = (),
    tune: Wanted = False,
    out: Path | str = "runs/comparison",
    jobs: int = 1,
    listener: Listener | Callable[[str, int], Listener] | None = None,
    sinks: Sinks | None = None,
    **settings: Any,
) -> Results:
    """Runs methods x seeds under the same settings and compares them.

    Runs that are already complete in `out` with the same settings are kept, unfinished ones are resumed: the same call
    again goes on where the last one ended. `seeds`: how many, from the configuration's `seed` on, or which.

    A method's own settings go to those methods that have them. A table `methods.NAME` in the configuration is laid over
    it for that method alone. `references` are rows without federated learning (`fedkin.studies.references`). `tune`:
    each method's learning rate is chosen on validation data, of x0.1, x0.3, x1, x3 and x10 its own, or of the rates and
    factors given (`[0.001, 0.01]`, `["x1", "x3"]`); the best runs are compared. `jobs`: how many runs go on at a time,
    in processes of their own; the numbers are the same. `listener`: one that hears of all runs, or a function that
    gives each its own by the method and the seed. `sinks`: a function of a run's name, such as 'fedamp-seed0', that
    gives it sinks of its own.
    """
    folder, given = Path(out), {"model": model, "loss": loss, "metric": metric}
    raw, objects = understood(config, settings, federation=federation, **given)
    names, raw = named(methods, raw)
    objects = of_one_split(objects, seeds)
    refuse_jobs(jobs)
    supply = Supply(objects)
    grid = rates.grid_of(tune)
    cells = rates.rated(compared(raw, names, seeds, folder, objects), grid)
    stacks = rates.stacks(cells, supply)
    yardsticks = Yardsticks(raw, references, dict.fromkeys(cell.config.seed for cell in cells), objects, supply)
    study = {"methods": names, "seeds": seeds, "references": list(references), "tune": grid}
    keep(folder, raw, study, objects)
    heard = for_each(listener)
    told: Listeners | None = None
    if heard is not None:
        told = partial(_of_a_cell, heard)
    if sinks is not None:
        told = partial(_with_sinks, sinks, told)
    carry_out(stacks, supply, objects, told, jobs=jobs, spare_diverged=bool(grid))
    yardsticks.write(folder, heard)
    runs, tuned = rates.chosen(cells)
    return Results(runs, folder, tuned)


def _of_a_cell(listener: Callable[[str, int], Listener], cell: Cell) -> Listener:
    return listener(cell.of_seeds, cell.config.seed)


def _with_sinks(sinks: Sinks, listeners: Listeners | None, cell: Cell) -> Listener:
    told = listeners(cell) if listeners else None
    if cell.complete and cell.upto is None:  # it is counted, and not run
        return told or Listener()
    return heard_by(told, sinks(cell.path.relative_to(cell.comparison).as_posix()))


class Yardsticks:
    """Rows without federated learning beside a comparison's runs; that they can be made is tried before any run."""

    def __init__(
        self, raw: Settings, names: Sequence[str], seeds: Iterable[int], objects: Settings, supply: Supply
    ) -> None:
        common = {key: value for key, value in raw.items() if key not in ("methods", "settings")}
        common |= {"graph": {"source": "none"}}
        self.supply, self.seeds = supply, list(seeds) if names else []
        # What silos do together is made of data that are prepared together, the rest as a silo alone would.
        kinds = {"separate": [n for n in names if n not in references.TOGETHER]}
        kinds["fedavg"] = [n for n in names if n in references.TOGETHER]
        self.configs = {
            seed: [
                (configured(merge(common, {"method": method, "seed": seed}), **objects), each)
                for method, each in kinds.items()
                if each
            ]
            for seed in self.seeds
        }
        for config, each in self.configs[self.seeds[0]] if names else ():
            references.check(supply.assembled(config), each)

    def write(self, folder: Path, listener: Callable[[str, int], Listener] | None) -> None:
        for seed, configs in self.configs.items():
            told = listener("references", seed) if listener else None
            for config, names in configs:
                references.beside(folder, self.supply.assembled(config), names, told)
