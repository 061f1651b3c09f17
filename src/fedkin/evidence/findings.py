"""What may be said of a set of runs, each statistic worked out when it is first asked for, and once.

The table, the tests, the answers to silos: the page, the terminal, the figures and the sentences all read them here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from . import comparison, worth_joining
from .below_alone import Below, below_alone
from .comparison import Both, Curve, Name, Pair, Row, Run, Scored
from .grid import Rates
from .newcomers import Served, newcomers
from .older import Older, older
from .references import Reference
from .spent import Spent, spent, unequal
from .trained_with import trained_with
from .untrained import beside
from .verdicts import Joining, JoiningError
from .worth_joining import Best, NotKept, Scorecard


class Findings:
    """Runs side by side, and what they come to."""

    def __init__(self, runs: Sequence[Run], tuned: Mapping[str, Rates] | None = None) -> None:
        self.runs = list(runs)
        self.tuned = dict(tuned or {})
        """{method: the rates that were tried for it}, where these are the runs of the best."""
        self._tests: dict[str | None, list[Pair]] = {}
        self._worth: dict[str, Joining] = {}
        self._curves: dict[Row, Curve] = {}
        self._clients: dict[Row, dict[str, float]] = {}

    def __repr__(self) -> str:
        return f"Findings({len(self.runs)} runs)"

    @staticmethod
    def of(runs: Sequence[Run] | Findings) -> Findings:
        return runs if isinstance(runs, Findings) else Findings(runs)

    @property
    def metric(self) -> str:
        return self.runs[0].summary.metric

    @property
    def higher_is_better(self) -> bool:
        return self.runs[0].summary.higher_is_better

    @cached_property
    def members(self) -> dict[str, list[Run]]:
        """{method: its runs by seed}; raises ValueError where runs cannot stand side by side."""
        return comparison.by_method(self.runs)

    # ---- the table ----

    @cached_property
    def _scored(self) -> dict[Name, list[Scored]]:
        return comparison.scored(self.members)

    @cached_property
    def rows(self) -> list[Row]:
        """A row for each `method:model`: headline models first, the best score at the top."""
        return comparison.rows(self._scored, self.higher_is_better)

    @property
    def headlines(self) -> list[Row]:
        return [row for row in self.rows if row.headline]

    def seeds(self, row: Row) -> list[Scored]:
        """What a row is the mean of."""
        return self._scored[row.method, row.model]

    def clients(self, row: Row) -> dict[str, float]:
        """{client: its score in the chosen round, mean over seeds}; clients without a score are left out."""
        if row not in self._clients:
            self._clients[row] = comparison.client_scores(self.seeds(row))
        return self._clients[row]

    def curve(self, row: Row) -> Curve:
        """The mean over clients by round."""
        if row not in self._curves:
            self._curves[row] = comparison.curve(self.seeds(row))
        return self._curves[row]

    def tests(self, reference: str | None = None) -> list[Pair]:
        """Wilcoxon's test between headline rows, with a reference those with it; corrected by Holm
        over all of them."""
        if reference not in self._tests:
            self._tests[reference] = comparison.tests(self.rows, self._scored, reference)
        return self._tests[reference]

    @cached_property
    def older(self) -> list[Older]:
        """Rows of models that some clients had trained in an earlier round when they were scored."""
        return older(self._scored) if any(run.summary.kept for run in self.runs) else []

    @cached_property
    def newcomers(self) -> list[Served]:
        """What newcomers got from each `method:model`; empty where there were none."""
        held = any(run.summary.novel for run in self.runs)
        return newcomers(self.members, self._scored, self.higher_is_better) if held else []

    @cached_property
    def untrained(self) -> list[Reference]:
        """What needs no federation: the most frequent class, or the mean, of each silo's own data, and its own linear
        model, by seed."""
        return beside(self.runs)

    @cached_property
    def trained_with(self) -> dict[str, str]:
        """{method: `Adam 0.001`}, its optimiser and rate; empty where all methods were trained alike."""
        return trained_with(self.members)

    @cached_property
    def spent(self) -> dict[str, Spent]:
        """{method: its gradients, and samples asked about without one, a client and round}; without those whose runs do
        not say it."""
        return spent(self.members)

    @cached_property
    def unequal(self) -> bool:
        """Whether methods that were to spend the same number of gradients did not."""
        return unequal(self.members, self.spent)

    # ---- joined, or alone ----

    @cached_property
    def below_alone(self) -> list[Below]:
        """The methods that came out below training alone by more than chance explains, and what is seen of why."""
        trained = self.trained_with
        return below_alone(self.rows, self.tests(), self.members, self.tuned, trained, self.higher_is_better)

    @cached_property
    def joining(self) -> Both:
        """For each headline row but `separate`: {client: alone} and {client: joined} in the chosen rounds."""
        return comparison.joining(self.rows, self._scored)

    @cached_property
    def worse_than_alone(self) -> dict[str, list[tuple[str, float, float]]]:
        """For each headline row but `separate`: (client, alone, joined) where joining was worse."""
        return comparison.worse_than_alone(self.joining, self.higher_is_better)

    @cached_property
    def best_joint(self) -> Best:
        """The joint method that silos are told of; raises JoiningError where there is none."""
        return worth_joining.best_joint(self.members)

    def worth_joining(self, metric: str | None = None) -> Joining:
        """Whether it was worth joining, silo by silo, in the runs' metric or another that fits; raises JoiningError
        where that cannot be said of these runs."""
        chosen = metric or self.metric
        if chosen not in self._worth:
            worth_joining.left_alone(self.members)  # what is missing is said before outputs are read
            self._worth[chosen] = worth_joining.worth_joining(self.members, self.best_joint, chosen)
        return self._worth[chosen]

    @cached_property
    def joined(self) -> Joining | None:
        """Whether it was worth joining, in the runs' metric; None where that cannot be said of these runs."""
        try:
            return self.worth_joining()
        except JoiningError:
            return None

    @cached_property
    def untold(self) -> str | None:
        """Why it is not told whether joining was worth it in the user's own metric; None where it is, or where another
        metric would be of no help."""
        try:
            self.worth_joining()
        except NotKept as error:
            return str(error)
        except JoiningError:
            pass
        return None

    @cached_property
    def scorecard(self) -> Scorecard | None:
        """Every metric that fits, of the models handed out by the best joint method, or by the only one; None where
        runs kept no outputs."""
        try:
            best = self.best_joint if len(self.members) > 1 else (next(iter(self.members)), "")
            return worth_joining.scorecard(self.members, best, self.joined)
        except JoiningError:
            return None
