"""What a trained world-action model knows, read off its weights on episodes that it was not trained on."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..registry import make_env

EPISODES, FIRST_SEED = 200, 3_000_000  # far from the seeds of demonstrations and of evaluation
WINDOWS = 256
EXECUTED = 6  # actions of a chunk that count, as many as are executed
LAYOUTS = 2500  # of which a fifth are kept apart to measure a probe on
RIDGE = (1e-2, 1e-1, 1.0, 10.0)  # penalties to choose from, of features of unit variance


def read(path: Path, env_id: str) -> dict[str, Any]:
    """Numbers of the checkpoint ``path`` in a world like PixelReach: floats, and ``action_error`` a list by window.

    ``action_error``: the mean squared error of a sampled chunk's first actions, in the units of the action, against the
    expert's. ``foreseen_db``, ``mean_db`` and ``still_db``: how far imagined frames, the mean of all that may be
    imagined, and the present frame in their place, are from what came (PSNR); not there for a model that foresees
    nothing. ``probe_m`` and ``pixels_m``: how far off a linear
    map of what the present frame leaves to the actions, and of its latents alone, is about where things are.
    """
    import torch

    from ...models.checkpoint import load
    from ...models.data.demonstrations import collect
    from ...models.flow.schedules import ConstantSchedule
    from ...models.wam.train import TRAINER, WamRecipe

    torch.set_num_threads(1)
    checkpoint = load(path)
    weights = {n.removeprefix("policy."): t for n, t in checkpoint.tensors.items() if n.startswith("policy.")}
    policy = TRAINER.read(checkpoint.config, weights)
    env = make_env(env_id)
    held_out = collect(env, range(FIRST_SEED, FIRST_SEED + EPISODES))
    recipe = replace(WamRecipe(), batch=WINDOWS)
    batch = next(TRAINER.windows(held_out, policy, recipe, np.random.default_rng(0)))
    seen, config = batch["observation"], policy.config
    found: dict[str, Any] = {}
    with torch.inference_mode():
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(WINDOWS, config.horizon, config.action_size, generator=generator)
        *_, last = policy.stream(policy.encode(seen), noise, ConstantSchedule(config.horizon, 10))
        error = (last.actions - batch["actions"])[:, :EXECUTED].square().mean(-1)
        counted = batch["valid"][:, :EXECUTED]
        found["action_error"] = ((error * counted).sum(1) / counted.sum(1)).tolist()
        if config.video_weight and config.control == "future":
            came, shown = batch["future"][config.picture], batch["future_valid"]
            found["foreseen_db"] = _psnr(policy.imagine(seen, 10), came, shown)
            found["mean_db"] = _psnr(policy.imagine(seen, 1), came, shown)  # one step from noise gives the mean
            found["still_db"] = _psnr(seen[config.picture][:, None].expand_as(came), came, shown)
        found |= _probe(policy, env)
    env.close()
    return found


def _psnr(frames: Any, came: Any, shown: Any) -> float:
    error = ((frames.float() - came.float()) / 255).square().mean((-1, -2, -3))[shown].mean()
    return -10 * math.log10(float(error))


def _probe(policy: Any, env: Any) -> dict[str, float]:
    """Where agent and disc are, told from one frame by ridge regression."""
    import torch

    from ...models.text_encoder import embed

    frames, places, said = [], [], []
    for seed in range(FIRST_SEED, FIRST_SEED + LAYOUTS):
        observation, _ = env.reset(seed=seed)
        frames.append(observation["pixels"])
        places.append([c for place in env.unwrapped.places.values() for c in place])
        said.append(observation["instruction"])
    pictures, truth = torch.from_numpy(np.stack(frames)), np.array(places)
    latents = policy.latent(pictures)
    context = policy.velocity.context(latents, policy.condition(None, torch.from_numpy(embed(said))))
    assert context.present is not None
    left = context.present.values[-1].transpose(1, 2).flatten(1)  # of the last layer, what actions attend to
    return {"probe_m": _told(left.numpy(), truth), "pixels_m": _told(latents.flatten(1).numpy(), truth)}


def _told(features: np.ndarray, truth: np.ndarray) -> float:
    """The mean distance, in m, of a linear guess of places from where they are, on layouts that were not fitted."""
    features = (features - features.mean(0)) / (features.std(0) + 1e-6)
    features = np.concatenate([features, np.ones((len(features), 1))], axis=1).astype(np.float64)
    apart, chosen = len(features) // 5, len(features) // 10
    fit, choose, judge = (slice(0, -apart - chosen), slice(-apart - chosen, -apart), slice(-apart, None))
    gram = features[fit].T @ features[fit]
    against = features[fit].T @ truth[fit]
    size = len(features[fit])
    maps = [np.linalg.solve(gram + penalty * size / 100 * np.eye(len(gram)), against) for penalty in RIDGE]
    best = min(maps, key=lambda one: _off(features[choose] @ one, truth[choose]))
    return _off(features[judge] @ best, truth[judge])


def _off(guess: np.ndarray, truth: np.ndarray) -> float:
    return float(np.linalg.norm((guess - truth).reshape(len(truth), -1, 2), axis=-1).mean())
