"""How FAVLA policies are trained: the recipes of the shipped checkpoints. ``palaestra train favla ENV`` does it.

What the slow pass sees is drawn up to a slow period, and the time that it takes, before what the expert sees: acting,
it is that old. The label of the forecast is that of the demonstrations at that earlier tick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.demonstrations import Demonstrations
from ..flow.imitation import Recipe, Trainer, fit
from .config import FavlaConfig
from .policy import FavlaPolicy
from .variance import FRESH, variance_label

_OF_THE_NETWORK = ("fixed_gate", "slow_every", "late", "label_window", "variance_weight")
EMA = 0.3  # the share of the newest tick in the label's moving average


@dataclass(frozen=True)
class FavlaRecipe(Recipe):
    """How to train a FAVLA policy.

    A chunk is longer than a slow period, so that it lasts until the next context is there. ``fusion``, ``fixed_gate``,
    ``slow_every``, ``late``, ``label_window`` and ``variance_weight`` are those of :class:`FavlaConfig`.
    """

    demonstrations: int = 300
    steps: int = 1500
    batch: int = 64
    lr: float = 3e-3
    horizon: int = 24
    noise: float = 0.1
    max_delay: int = 6
    execute: int = 24
    fusion: str = "gated"
    fixed_gate: float | None = None
    slow_every: int = 16
    late: int = 8
    label_window: int = 24
    variance_weight: float = 0.1


_WIPE = FavlaRecipe()
_RECIPES = {"palaestra/GuardedWipe-v0": {"": _WIPE}, "palaestra/PegInsert-v0": {"": _WIPE}}


def _read(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> FavlaPolicy:
    return FavlaPolicy.from_tensors(FavlaConfig.from_json(config), tensors)


def _make(env: Any, good: Demonstrations, recipe: FavlaRecipe, generator: torch.Generator) -> FavlaPolicy:
    seen = good.observations
    found = fit(env, good, recipe)
    config = FavlaConfig(
        **found | {"normalization": {"wrench": "mean_std"} | dict(recipe.normalization) | found["normalization"]},
        wrench=seen["wrench"].shape[1:],  # type: ignore[arg-type]  # which checks it
        text=seen["instruction"].shape[1] if "instruction" in seen else 0,
        fusion=recipe.fusion,  # type: ignore[arg-type]
        **{name: getattr(recipe, name) for name in _OF_THE_NETWORK},
    )
    policy = FavlaPolicy(config, generator)
    policy.fit_normalization(
        {key: torch.from_numpy(seen[key]) for key in config.features}, torch.from_numpy(good.actions)
    )
    return policy


def _windows(
    good: Demonstrations, policy: FavlaPolicy, recipe: FavlaRecipe, generator: np.random.Generator
) -> Iterator[dict[str, Any]]:
    config = policy.config
    label, _, _ = variance_label(good.observations["wrench"], good.lengths, config.label_window, EMA)
    labels = torch.from_numpy(label)
    for batch in good.batches(config.horizon, recipe.batch, generator, stale=config.slow_every - 1 + config.late):
        batch["label"] = labels[batch.pop("slow_tick")]
        yield batch


def _notes(good: Demonstrations, policy: FavlaPolicy) -> dict[str, Any]:
    """The label's scale, and how far the force is from tick to tick: three standard deviations are an event."""
    wrench, config = good.observations["wrench"], policy.config
    label, weights, sigma = variance_label(wrench, good.lengths, config.label_window, EMA)
    force = wrench[:, -FRESH:, :3].mean(1)
    within = np.delete(np.arange(1, len(force)), np.cumsum(good.lengths)[:-1] - 1)  # not from one episode to the next
    jumps = np.linalg.norm(force[within] - force[within - 1], axis=1)
    return {
        "label": {
            "window": config.label_window,
            "ema": EMA,
            "weights": weights.tolist(),
            "sigma": sigma,
            "mean": float(label.mean()),
        },
        "event_n": 3 * float(np.sqrt((jumps**2).mean())),
    }


TRAINER = Trainer(
    "favla", FavlaRecipe(), _RECIPES, _read, _make, _windows, _notes, needs=("agent_pos", "wrench"), expert_success=0.95
)
