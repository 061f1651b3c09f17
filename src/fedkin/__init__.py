"""fedkin: personalised federated learning for silos.

import fedkin
results = fedkin.compare(methods=["separate", "fedavg", "fedamp"], data={"name": "digits", "split": "relabelled"})
results.report()
"""

__version__ = "0.1.0"

from . import _spinning  # before torch is loaded
from .api import Results, compare, resume, run
from .cohort import Cohort, Predictor
from .data import load
from .engines.simulation import Listener
from .errors import FedkinError
from .federation import Client, Federation, Problem
from .levels import Levels, vary
from .method import Method
from .runs import Run
from .saved import Prediction, Saved
from .state import State
from .task import Task
from .tuning import Tuned, tune

assert _spinning
__all__ = [
    "Client",
    "Cohort",
    "Federation",
    "FedkinError",
    "Levels",
    "Listener",
    "Method",
    "Prediction",
    "Predictor",
    "Problem",
    "Results",
    "Run",
    "Saved",
    "State",
    "Task",
    "Tuned",
    "compare",
    "load",
    "resume",
    "run",
    "tune",
    "vary",
]
