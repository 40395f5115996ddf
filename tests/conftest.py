"""Keeps the tests out of the user's data, and pytest from importing the repository root as a test package."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

os.environ.setdefault("OMP_NUM_THREADS", "1")


class _RootIsNoTestPackage:
    """The root `__init__.py` is the package itself: collected as a package it would be imported a second time."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        if path == ROOT:
            return pytest.Dir.from_parent(parent, path=path)
        return None


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_RootIsNoTestPackage())


@pytest.fixture(autouse=True)
def _own_data(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a store and a data folder of its own."""
    folder = tmp_path_factory.mktemp("data")
    monkeypatch.setenv("PALAESTRA_DB", f"sqlite:///{folder / 'palaestra.db'}")
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
