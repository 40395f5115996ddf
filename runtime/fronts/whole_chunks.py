"""For dialects that know neither parts nor episodes: whole chunks, in an episode that the server makes up.

A client of such a dialect acts in the server's own episode; each time it begins anew the seed is one higher, so that
its noise is another and still reproducible.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from ...agents.agent import ActionPart
from ..frame_codec import WireError
from ..inference import Dropped, Final, Job


@dataclass
class Chunk:
    """A finished plan: its actions from tick 0 on, what they came with, and how long it took."""

    actions: Any = ()
    extras: dict[str, np.ndarray] = field(default_factory=dict)
    infer_ms: float = 0.0


class WholeChunks:
    """Collects the parts of several jobs and calls ``done`` once with all chunks, or with the first error.

    ``on_part`` is told of each part as it comes. Both are called on the agent's lane.
    """

    def __init__(
        self,
        done: Callable[[list[Chunk] | WireError], None],
        on_part: Callable[[ActionPart], None] | None = None,
    ):
        self._done, self._on_part = done, on_part
        self._lock = threading.Lock()
        self._parts: dict[Job, list[ActionPart]] = {}
        self._chunks: dict[Job, Chunk] = {}
        self._over = False

    def expect(self, jobs: list[Job]) -> None:
        """These plans will come, in this order."""
        self._parts = {job: [] for job in jobs}

    def part(self, job: Job, part: ActionPart) -> None:
        """Keep a part."""
        self._parts[job].append(part)
        if self._on_part:
            self._on_part(part)

    def end(self, job: Job, ending: Final | Dropped | WireError) -> None:
        """Put a chunk together; a reset that goes well is not worth a word."""
        if job.kind == "reset" and isinstance(ending, Final):
            return
        if isinstance(ending, Dropped):
            ending = WireError("BUSY", f"this request was {ending.reason}")
        with self._lock:
            if self._over:
                return
            if isinstance(ending, Final):
                self._chunks[job] = _assemble(job, self._parts[job], ending)
            self._over = isinstance(ending, WireError) or len(self._chunks) == len(self._parts)
            if not self._over:
                return
        self._done(ending if isinstance(ending, WireError) else [self._chunks[job] for job in self._parts])


def _assemble(job: Job, parts: list[ActionPart], ending: Final) -> Chunk:
    committed = job.call.committed
    extras: dict[str, Any] = {}
    for part in parts:
        extras.update(part.extras)
    pieces = [part.actions for part in parts if len(part.actions)]
    if isinstance(job.session.episode.action_space, spaces.Box):
        arrays = [np.asarray(piece) for piece in pieces]
        if len(committed) and arrays:
            arrays.insert(0, np.asarray(committed, arrays[0].dtype))
        return Chunk(np.concatenate(arrays) if arrays else np.empty(0), extras, ending.infer_ms)
    return Chunk([*committed, *(action for piece in pieces for action in piece)], extras, ending.infer_ms)


def fit_observation(space: spaces.Space, given: Mapping[str, Any], instruction: str | None) -> Any:
    """What a stranger sends as a member of the observation space: keys it needs, in the dtypes it has.

    Numbers are cast within their kind (float64 to float32), a picture with its channels first is turned where the
    space has them last, and the instruction goes where the space has one. Further keys are left out. Raises
    ``WireError`` (BAD_SCHEMA) that names the key, what was expected and what came.
    """
    if not isinstance(space, spaces.Dict):
        if len(given) != 1:
            raise WireError("BAD_SCHEMA", f"the agent takes one array, got the keys {sorted(map(str, given))}")
        return _fit(space, next(iter(given.values())), "the observation")
    fitted: dict[str, Any] = {}
    for key, part in space.spaces.items():
        if isinstance(part, spaces.Text) and instruction is not None and key not in given:
            fitted[key] = instruction
        elif key not in given:
            raise WireError("BAD_SCHEMA", f"observation {key!r} is missing, got the keys {sorted(map(str, given))}")
        elif isinstance(part, spaces.Dict):
            if not isinstance(given[key], Mapping):
                raise WireError("BAD_SCHEMA", f"observation {key!r} is no map, expected {sorted(part.spaces)}")
            fitted[key] = fit_observation(part, given[key], None)
        else:
            fitted[key] = _fit(part, given[key], f"observation {key!r}")
    return fitted


def _fit(space: spaces.Space, value: Any, name: str) -> Any:
    if isinstance(space, spaces.Box):
        array = np.asarray(value)
        if array.ndim == 3 and array.shape != space.shape and (*array.shape[1:], array.shape[0]) == space.shape:
            array = np.ascontiguousarray(array.transpose(1, 2, 0))
        if array.dtype.kind not in "biuf" or not np.can_cast(array.dtype, space.dtype, "same_kind"):
            raise WireError("BAD_SCHEMA", f"{name}: got {array.dtype}, expected {np.dtype(space.dtype)}")
        if array.shape != space.shape:
            raise WireError("BAD_SCHEMA", f"{name}: got shape {list(array.shape)}, expected {list(space.shape)}")
        return array.astype(space.dtype, copy=False)
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    if not space.contains(value):
        raise WireError("BAD_SCHEMA", f"{name}: got {str(value)[:80]!r}, expected a member of {space}")
    return value
