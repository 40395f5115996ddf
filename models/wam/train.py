"""How world-action models are trained: the recipes of the shipped checkpoints. ``palaestra train wam ENV`` does it.

Video and actions are learned together, from demonstrations; the instruction is read as a real sentence embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import text_encoder
from ..data.demonstrations import DemonstrationError, Demonstrations, flatten
from ..flow.imitation import Loaded, Recipe, Trainer, fit
from .config import WamConfig
from .policy import WamPolicy


@dataclass(frozen=True)
class WamRecipe(Recipe):
    """How to train a world-action model.

    ``variant``, ``control``, ``video_weight``, ``future``, ``hidden``, ``discount``, ``patch``, ``latent``,
    ``head_dim`` and ``video_width`` are those of :class:`WamConfig`. The instruction is read as the embedding of
    ``models.text_encoder``. Without ``actions``, only the video is learned, as if nobody had written down what was
    done; other recipes can start from such a checkpoint.
    """

    demonstrations: int = 2000
    steps: int = 2500
    batch: int = 64
    lr: float = 2e-3
    horizon: int = 12
    max_delay: int = 4
    execute: int = 6
    width: int = 48
    variant: str = "fast"
    control: str = "future"
    video_weight: float = 1.0
    future: tuple[int, ...] = (6, 12)
    hidden: int = 64
    discount: float = 1.0
    patch: int = 5
    latent: int = 16
    head_dim: int = 16
    video_width: int = 64
    actions: bool = True


_DONE = ("actions", "valid", "delay")  # of a batch, what tells of actions
_OF_THE_NETWORK = (
    *(
        "variant",
        "control",
        "video_weight",
        "future",
        "hidden",
        "discount",
        "patch",
        "latent",
        "head_dim",
        "video_width",
    ),
)


def _variants(recipe: WamRecipe) -> dict[str, WamRecipe]:
    """The fast variant, which ships, and those that imagine first."""
    return {"": recipe, **{name: replace(recipe, variant=name) for name in ("joint", "idm")}}


_RECIPES = {
    "palaestra/PixelReach-v0": _variants(WamRecipe()),
    # Strong disturbances, because a paddle that is where it should be does not show where that is; and far actions,
    # which are answers to disturbances to come, count less.
    "palaestra/PixelIntercept-v0": _variants(
        WamRecipe(
            noise=0.4,
            batch=128,
            lr=3e-3,
            horizon=32,
            discount=0.85,
            max_delay=6,
            sampling_steps=10,
            schedule="has",
            mix=0.5,
            alpha=0.8,
            depth=2,
            hidden=128,
            latent=32,
            video_weight=0.5,
            future=(8,),
        )
    ),
    # Made for one picture of 64 pixels from the wrist; a step with patches of 8 takes three times as long. A hand that
    # does not look pushes the cube about: executing 6 actions of a plan instead of 3, it lifts 85 of 100 and not all.
    "palaestra/robosuite.Lift-v0": {
        "": WamRecipe(
            demonstrations=600,
            steps=3500,
            execute=3,
            video_weight=0.3,
            future=(8,),
            patch=16,
            latent=32,
            state=("agent_pos",),
        )
    },
}


def text_of(row: np.ndarray) -> str:
    """The text of its bytes, uint8 filled up with zeros."""
    return row.tobytes().rstrip(b"\0").decode(errors="replace")


def texts(good: Demonstrations) -> list[str]:
    """The different instructions of demonstrations, in order."""
    if "instruction" not in good.observations:
        return []
    return [text_of(row) for row in np.unique(good.observations["instruction"], axis=0)]


def _read(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> WamPolicy:
    return WamPolicy.from_tensors(WamConfig.from_json(config), tensors)


def _make(env: Any, good: Demonstrations, recipe: WamRecipe, generator: torch.Generator) -> WamPolicy:
    found = fit(env, good, recipe)
    config = WamConfig(
        **found,
        picture=next(iter(found["pictures"])),
        text=text_encoder.SIZE if texts(good) else 0,
        **{name: getattr(recipe, name) for name in _OF_THE_NETWORK},
    )
    policy = WamPolicy(config, generator)
    policy.fit_latent(torch.from_numpy(good.observations[config.picture][:2000]))
    seen = {key: torch.from_numpy(good.observations[key]) for key in config.state}
    policy.fit_normalization(seen, torch.from_numpy(good.actions))
    return policy


def _windows(
    good: Demonstrations, policy: WamPolicy, recipe: WamRecipe, generator: np.random.Generator
) -> Iterator[dict[str, Any]]:
    config = policy.config
    if config.text:
        said, rows = np.unique(good.observations["instruction"], axis=0, return_inverse=True)
        vectors = text_encoder.embed([text_of(row) for row in said])
        good = replace(good, observations={**good.observations, "instruction": vectors[rows.ravel()]})
    for batch in good.batches(config.horizon, recipe.batch, generator, ahead=config.future):
        yield batch if recipe.actions else {key: value for key, value in batch.items() if key not in _DONE}


def _notes(good: Demonstrations, policy: WamPolicy) -> dict[str, Any]:
    """The instructions that were learned, with their embeddings: who says one of these needs no encoder."""
    said = texts(good)
    return {"instructions": dict(zip(said, text_encoder.embed(said).tolist(), strict=True))} if said else {}


def _start(loaded: Loaded[WamPolicy], new: Callable[[], WamPolicy]) -> WamPolicy:
    """Of a checkpoint that knows only video, its video expert; any other is trained on as it is."""
    if loaded.card.get("recipe", {}).get("actions", True):
        return loaded.policy
    policy = new()
    policy.load_video(loaded.policy.state_dict())
    return policy


def _check(env: Any) -> None:
    """There must be a picture, and where there is an instruction, what turns it into numbers."""
    sample = flatten(env.observation_space.sample())
    if not any(value.ndim == 3 and value.dtype == np.uint8 for value in sample.values()):
        raise DemonstrationError(f"the environment sends no picture, and wam needs one; it has {sorted(sample)}")
    if "instruction" in sample or getattr(env.unwrapped, "instruction", None):
        try:
            text_encoder.embed(["ready"])
        except text_encoder.TextEncoderMissing as error:
            raise DemonstrationError(str(error)) from None


TRAINER = Trainer("wam", WamRecipe(), _RECIPES, _read, _make, _windows, _notes, _start, _check)
