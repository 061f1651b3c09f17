"""The command line. Each file adds its commands to `app`."""

from __future__ import annotations

import sys
from pathlib import Path

from ..engines.simulation import Diverged, Interrupted
from ..errors import FedkinError
from . import after as after
from . import bench as bench
from . import data as data
from . import papers as papers
from . import running as running
from . import tuning as tuning
from .app import app
from .terminal import err


def main() -> None:
    """What the `fedkin` command calls: sentences instead of tracebacks, exit code 2 for what the user got wrong."""
    sys.path.insert(0, str(Path.cwd()))  # a user's own models and methods live where the command is typed
    try:
        app()
    except FedkinError as error:
        err.print(f"fedkin: {error}", style="red", highlight=False, soft_wrap=True, markup=False)
        sys.exit(2)
    except Diverged as error:
        err.print(f"fedkin: {error}", style="red", highlight=False, soft_wrap=True, markup=False)
        sys.exit(1)
    except Interrupted as error:
        err.print(str(error), highlight=False, soft_wrap=True, markup=False)
        sys.exit(130)
