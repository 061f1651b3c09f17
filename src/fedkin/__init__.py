"""fedkin: personalised federated learning for silos.

import fedkin
results = fedkin.compare(methods=["separate", "fedavg", "fedamp"], data={"name": "digits", "split": "relabelled"})
results.report()
"""

__version__ = "0.1.0"

from .api import Results, compare, resume, run
from .cohort import Cohort, Predictor
from .data import load
from .engines.simulation import Listener
from .errors import FedkinError
from .federation import Client, Federation, Problem
from .method import Method
from .runs import Run
from .state import State
from .task import Task

__all__ = [
    "Client",
    "Cohort",
    "Federation",
    "FedkinError",
    "Listener",
    "Method",
    "Predictor",
    "Problem",
    "Results",
    "Run",
    "State",
    "Task",
    "compare",
    "load",
    "resume",
    "run",
]
