"""fedkin: personalised federated learning for silos.

import fedkin
results = fedkin.compare(methods=["separate", "fedavg", "fedamp"], data={"name": "digits", "split": "relabelled"})
results.report()
"""

from .base import spinning  # before torch is loaded
from .base.state import State
from .base.task import Task
from .data import load
from .data.federation import Client, Federation
from .engines.simulation import Listener
from .errors import FedkinError
from .methods._method import Method
from .methods._problem import Problem
from .runs.saved_model import Prediction, Saved
from .runs.sinks import JsonLines, Sink, TensorBoard
from .studies.compare import Results, compare
from .studies.cross import Crossed, cross
from .studies.reopen import open as open  # not in __all__: `import *` would hide Python's own
from .studies.run import Run, resume, run
from .studies.study import study
from .studies.tune import Tuned, tune
from .studies.vary import Levels, vary
from .training.cohort import Cohort
from .training.evaluation import Predictor
from .version import __version__

assert spinning
__all__ = [
    "Client",
    "Cohort",
    "Crossed",
    "Federation",
    "FedkinError",
    "JsonLines",
    "Levels",
    "Listener",
    "Method",
    "Prediction",
    "Predictor",
    "Problem",
    "Results",
    "Run",
    "Saved",
    "Sink",
    "State",
    "Task",
    "TensorBoard",
    "Tuned",
    "__version__",
    "compare",
    "cross",
    "load",
    "resume",
    "run",
    "study",
    "tune",
    "vary",
]
