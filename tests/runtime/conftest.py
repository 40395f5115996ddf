"""Lets the tests of serving, and the processes that they start, import the agents that stand beside them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))
