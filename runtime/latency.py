"""Latency as data: how long an agent's work takes on hardware that is not here.

With a :class:`LatencyModel` the virtual clock replays "pi0.5 on an RTX 4060" on a laptop, the same way every
time. The shipped profiles stand in ``assets/latency_profiles.json``.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..models.spec import nearest

_KEYS = ("encode_ms", "evaluation_ms", "part_ms")


@dataclass(frozen=True)
class LatencyModel:
    """Time per slow encode, per network evaluation, and per part that carries actions (its sending), in ms.

    Of an agent that encodes by itself the encode comes before each plan; of a multi-rate one it runs beside acting.

    Raises ``ValueError`` for a time that is negative or not a number.
    """

    name: str
    encode_ms: float = 0.0
    evaluation_ms: float = 0.0
    part_ms: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        for key in _KEYS:
            value = getattr(self, key)
            if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
                raise ValueError(f"latency profile {self.name!r}: {key}={value!r}, expected milliseconds >= 0")

    def seconds(self, encodes: int, evaluations: int, sends: int) -> float:
        """How long this much work takes, in seconds."""
        return (encodes * self.encode_ms + evaluations * self.evaluation_ms + sends * self.part_ms) / 1000.0


def profiles() -> dict[str, LatencyModel]:
    """The shipped profiles by name."""
    return _read(files("palaestra.assets").joinpath("latency_profiles.json").read_text(encoding="utf-8"), "shipped")


def profile(text: str) -> LatencyModel:
    """A shipped profile by name, a JSON file of profiles as ``FILE.json#NAME``, or ``encode_ms=20,evaluation_ms=5``.

    Raises ``ValueError`` with the nearest names for an unknown one.
    """
    if "=" in text:
        return _inline(text)
    if ".json" in text:
        path, _, name = text.partition("#")
        try:
            known = _read(Path(path).read_text(encoding="utf-8"), path)
        except OSError as error:
            raise ValueError(f"profile={text!r}: the file cannot be read ({error.strerror})") from error
        name = name or next(iter(known), "")
    else:
        known, name = profiles(), text
    if name not in known:
        raise ValueError(f"profile={text!r} is not known; {nearest(name, known)}")
    return known[name]


def _inline(text: str) -> LatencyModel:
    values: dict[str, Any] = {}
    for pair in text.split(","):
        key, _, value = pair.partition("=")
        if key not in _KEYS:
            raise ValueError(f"profile={text!r}: unknown key {key!r}, expected {', '.join(_KEYS)}")
        try:
            values[key] = float(value)
        except ValueError:
            raise ValueError(f"profile={text!r}: {key}={value!r} is not a number of milliseconds") from None
    return LatencyModel(text, **values)


def _read(text: str, where: str) -> dict[str, LatencyModel]:
    try:
        return {name: LatencyModel(name, **entry) for name, entry in json.loads(text).items()}
    except (json.JSONDecodeError, TypeError, AttributeError) as error:
        raise ValueError(f"{where} is not a file of latency profiles: {error}") from error
