"""How flow policies are trained: the recipes of the shipped checkpoints. ``palaestra train flow ENV`` does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..data.demonstrations import Demonstrations
from .config import FlowConfig
from .imitation import Recipe, Trainer, fit
from .policy import FlowPolicy


@dataclass(frozen=True)
class FlowRecipe(Recipe):
    """How to train a flow policy; ``backbone`` is that of :class:`FlowConfig`."""

    backbone: str = "transformer"


_FAST = FlowRecipe(
    demonstrations=2000,
    steps=4000,
    batch=256,
    horizon=24,
    max_delay=12,
    sampling_steps=10,
    backbone="mlp",
    width=256,
    schedule="has",
    mix=0.5,
    alpha=0.8,
)
_CONSTANT: dict[str, Any] = {"schedule": "constant", "mix": 0.0}
_TRANSFORMER: dict[str, Any] = {"backbone": "transformer", "width": 64, "batch": 128}

_RECIPES = {
    "palaestra/BallIntercept-v0": {
        "": _FAST,
        "constant": replace(_FAST, **_CONSTANT),
        "transformer": replace(_FAST, **_TRANSFORMER),
        "transformer-constant": replace(_FAST, **_TRANSFORMER, **_CONSTANT),
    },
    "palaestra/DetourIntercept-v0": {"": _FAST, "constant": replace(_FAST, **_CONSTANT)},
    "palaestra/TableTennis-v0": {
        "": replace(_FAST, demonstrations=1000),
        "constant": replace(_FAST, demonstrations=1000, **_CONSTANT),
    },
    "palaestra/robosuite.Lift-v0": {"": FlowRecipe(demonstrations=1000)},
    "palaestra/robosuite.Door-v0": {"": FlowRecipe(demonstrations=500, steps=2500)},
}


def _read(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> FlowPolicy:
    return FlowPolicy.from_tensors(FlowConfig.from_json(config), tensors)


def _make(env: Any, good: Demonstrations, recipe: FlowRecipe, generator: torch.Generator) -> FlowPolicy:
    config = FlowConfig(**fit(env, good, recipe), backbone=recipe.backbone)  # type: ignore[arg-type]  # which checks it
    policy = FlowPolicy(config, generator)
    seen = {key: torch.from_numpy(good.observations[key]) for key in config.state}
    policy.fit_normalization(seen, torch.from_numpy(good.actions))
    return policy


TRAINER = Trainer(
    "flow",
    FlowRecipe(),
    _RECIPES,
    _read,
    _make,
    lambda good, policy, recipe, generator: good.batches(policy.config.horizon, recipe.batch, generator),
)
