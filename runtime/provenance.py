"""What made a result: code, libraries and machine, and one way to write plain data down.

Every stored episode carries :func:`provenance`; :func:`config_hash` finds the run to resume; both are JSON as
:func:`to_json` writes it, so that the same data always gives the same text.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any

import numpy as np

_ROOT = Path(__file__).resolve().parent.parent
_LIBRARIES = ("gymnasium", "mujoco", "robosuite", "torch", "numpy", "scipy", "peft")
_GIT_TIMEOUT_S = 5.0


def provenance(modules: Iterable[str] = ()) -> dict[str, Any]:
    """What a result of this process depends on, besides its configuration; plain JSON data, without the time.

    ``palaestra`` is the package version; ``commit`` and ``dirty`` (anything uncommitted) describe the checkout
    that the code runs from, and are ``None`` for an installed package or where git does not answer. Then
    ``python``, ``machine`` (platform, cpu, cores that this process may use) and ``libraries`` with their versions;
    ``modules`` names further import packages, such as the one that brought an environment. Cached; a call takes
    microseconds after the first.
    """
    record = copy.deepcopy(_of_this_process())
    for module in modules:
        record["libraries"].update(_distribution_of(module))
    return record


@lru_cache(maxsize=1)
def _of_this_process() -> dict[str, Any]:
    commit, dirty = _checkout(_ROOT)
    return {
        "palaestra": _version("palaestra"),
        "commit": commit,
        "dirty": dirty,
        "python": platform.python_version(),
        "machine": {"platform": platform.platform(), "cpu": _cpu(), "cores": _cores()},
        "libraries": {name: version for name in _LIBRARIES if (version := _version(name)) is not None},
    }


@lru_cache(maxsize=64)
def _distribution_of(module: str) -> dict[str, str]:
    """Distributions that an import name comes from, with their versions; the metadata is read, nothing imported."""
    top = module.partition(".")[0]
    names = set(importlib.metadata.packages_distributions().get(top, ()))
    return {name: version for name in sorted(names) if (version := _version(name)) is not None}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _checkout(root: Path) -> tuple[str | None, bool | None]:
    """Commit of the checkout at ``root`` and whether it has uncommitted changes.

    Only where ``root`` is the top of it: a package installed below somebody's project must not report theirs.
    """
    if not (root / ".git").exists():
        return None, None
    commit = _git(root, "rev-parse", "HEAD")
    status = _git(root, "status", "--porcelain") if commit else None
    return (commit or "").strip() or None, None if status is None else bool(status.strip())


def _git(root: Path, *arguments: str) -> str | None:
    # A hook runs with GIT_DIR of its own repository; no optional locks, because others may be at work in this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def config_hash(config: Mapping[str, Any]) -> str:
    """SHA-256 (64 hex digits) of a configuration: the same for the same data, whatever the order of its keys.

    Raises ``TypeError`` as :func:`to_json` does.
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"config is a {type(config).__name__}, expected a mapping from names to values")
    return hashlib.sha256(to_json(config).encode()).hexdigest()


def to_json(data: Any) -> str:
    """Canonical JSON: sorted keys, no spaces, ASCII.

    Takes what JSON knows and what a configuration or a measurement is made of: tuples, numpy numbers and arrays,
    paths, enumerations, dataclasses. NaN and infinities, which JSON does not know, become ``{"$float": "nan"}``;
    :func:`from_json` reads them back. Raises ``TypeError`` naming the place of anything else.
    """
    return json.dumps(_plain(data, "data"), sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_json(text: str | bytes) -> Any:
    """Read what :func:`to_json` wrote; tuples and arrays come back as lists. Raises ``ValueError`` for other text."""
    return json.loads(text, object_hook=_read_float)


def _plain(value: Any, place: str) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value, place)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (np.generic, np.ndarray)):
        return _plain(value.tolist(), place)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value), place)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{place} has the key {key!r}, expected text; JSON has no other keys")
        return {key: _plain(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{place}[{index}]") for index, item in enumerate(value)]
    raise TypeError(f"{place} is a {type(value).__name__}, expected numbers, text, lists and mappings of them")


def _read_float(mapping: dict[str, Any]) -> Any:
    if mapping.keys() == {"$float"} and mapping["$float"] in ("nan", "inf", "-inf"):
        return float(mapping["$float"])
    return mapping
