"""Lets the tests of worlds import what stands beside them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))
