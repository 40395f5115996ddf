"""Maps the repository root to the package `palaestra`; everything else is in pyproject.toml.

The package list is found, not written down, so a new folder ships without an edit here. An editable
install maps `palaestra` through a folder of symbolic links (`.link/palaestra`), because the import hook
that setuptools would use instead cannot be followed by type checkers and editors.
"""

import os
import sys
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
FLOORS = ("envs", "agents", "models", "runtime", "assets")


def _link_tree() -> str:
    """Make `.link/palaestra` with one symbolic link per floor and root module; returns `.link`."""
    package = ROOT / ".link" / "palaestra"
    package.mkdir(parents=True, exist_ok=True)
    for old in package.iterdir():
        old.unlink()
    for name in (*FLOORS, "__init__.py", "__main__.py", "py.typed"):
        os.symlink(ROOT / name, package / name)
    return ".link"


packages = ["palaestra"] + [
    f"palaestra.{name}" for floor in FLOORS for name in [floor, *(f"{floor}.{sub}" for sub in find_packages(floor))]
]
editable = "editable_wheel" in sys.argv
setup(
    packages=packages,
    package_dir={"": _link_tree()} if editable else {"palaestra": "."},
    package_data={"palaestra": ["py.typed"], "palaestra.assets": ["**/*"]},
    include_package_data=False,
    exclude_package_data={"": ["*.pyc"]},
    script_name="setup.py",
)
