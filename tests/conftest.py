"""For all tests: the helpers at hand, and one thread."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)  # products this small wait longer for a second core than they gain from it
