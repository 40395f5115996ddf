"""Training a flow policy from an environment's expert: collect, fit, keep. ``palaestra train flow ENV`` calls :func:`train`.

The same seed, options and library versions on the same kind of machine give the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..backend import Backend
from ..normalization import Kind

EXPERT_SUCCESS = 0.9
"""What the expert must reach undisturbed; below it, demonstrations teach failure."""

_SAMPLES = 64  # demonstrations kept in the checkpoint, for methods that calibrate


@dataclass(frozen=True)
class Recipe:
    """How to train. Numbers of demonstrations are episodes; ``seed`` decides everything that chance decides.

    ``noise`` is that of :func:`collect`. ``horizon``, ``max_delay``, ``width``, ``depth``, ``heads`` are those of
    :class:`FlowConfig`; ``execute`` and ``sampling_steps`` go on the card as the agent's defaults. ``state`` limits the
    observation keys (default: every vector of floats).
    """

    demonstrations: int = 1000
    steps: int = 5000
    batch: int = 128
    seed: int = 0
    noise: float = 0.15
    horizon: int = 16
    max_delay: int = 8
    execute: int = 8
    sampling_steps: int = 10
    width: int = 96
    depth: int = 3
    heads: int = 4
    decay: float = 0.998
    state: tuple[str, ...] | None = None
    normalization: Mapping[str, Kind] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for argument in ("demonstrations", "steps", "batch", "sampling_steps", "execute"):
            if getattr(self, argument) < 1:
                raise ValueError(f"{argument}={getattr(self, argument)}, expected at least 1")
        if self.execute > self.horizon:
            raise ValueError(f"execute={self.execute} exceeds horizon={self.horizon}")


@dataclass(frozen=True)
class Progress:
    """Where training is: ``phase`` ("demonstrations" or "training"), ``done`` of ``total``, the latest ``losses``."""

    phase: str
    done: int
    total: int
    losses: Mapping[str, float] = field(default_factory=dict)


RECIPES: dict[str, Recipe] = {}
"""Environment id to the recipe of the checkpoint that ships for it."""


def train(
    env: Any,
    recipe: Recipe,
    out: Path,
    *,
    backend: Backend | None = None,
    start: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    card: Mapping[str, Any] | None = None,
) -> Path:
    """Collect demonstrations of ``env``'s expert, train a policy, write a checkpoint; returns the path of its weights."""
    raise NotImplementedError
