"""Demonstrations: what an expert would have done, in states that a little noise has led to.

:func:`collect` disturbs the executed action and records the expert's own (Laskey et al., "DART: Noise Injection for
Robust Imitation Learning"): the data then show how to come back, and cloning does not drift off them. The noise is an
Ornstein-Uhlenbeck process, because independent noise of the same size averages out within a few ticks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

FORMAT = "palaestra.demonstrations/1"
_SAVE_EVERY = 50  # episodes; an interrupted collection loses fewer than these


class DemonstrationError(ValueError):
    """Demonstrations that cannot be collected or read; the message says why and what to do."""


@dataclass(frozen=True)
class Demonstrations:
    """Episodes end to end: ``observations`` key -> [T, ...] and ``actions`` [T, D] over all ticks of all episodes.

    ``lengths`` [E] are the ticks of each episode, ``seeds`` [E] their seeds, ``success`` [E] whether each succeeded,
    and ``disturbed`` [E] whether its executed actions were noisy. ``actions`` are the expert's, never the noisy ones.
    """

    observations: Mapping[str, np.ndarray]
    actions: np.ndarray
    lengths: np.ndarray
    seeds: np.ndarray
    success: np.ndarray
    disturbed: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def undisturbed_success(self) -> float:
        """Success rate of the expert left alone; NaN when every episode was disturbed."""
        alone = self.success[~self.disturbed]
        return float(alone.mean()) if len(alone) else float("nan")

    def select(self, keep: np.ndarray) -> Demonstrations:
        """The episodes where ``keep`` [E] is true."""
        ticks = np.repeat(keep, self.lengths)
        return Demonstrations(
            {key: values[ticks] for key, values in self.observations.items()},
            self.actions[ticks],
            *(getattr(self, name)[keep] for name in ("lengths", "seeds", "success", "disturbed")),
        )

    def batches(self, horizon: int, size: int, generator: np.random.Generator) -> Iterator[dict[str, Any]]:
        """Endless random batches: ``observation`` key -> [size, ...], ``actions`` [size, horizon, D], ``valid`` [size, horizon].

        Every tick is equally likely. A window that runs over the end of its episode repeats the last action there, and
        ``valid`` is false.
        """
        ends = np.repeat(np.cumsum(self.lengths), self.lengths)
        observations = {key: torch.from_numpy(values) for key, values in self.observations.items()}
        actions = torch.from_numpy(self.actions)
        ahead = np.arange(horizon)
        while True:
            tick = generator.integers(len(ends), size=size)
            index = tick[:, None] + ahead
            last = ends[tick][:, None] - 1
            at = torch.from_numpy(tick)
            yield {
                "observation": {key: values[at] for key, values in observations.items()},
                "actions": actions[torch.from_numpy(np.minimum(index, last))],
                "valid": torch.from_numpy(index <= last),
            }

    def save(self, path: Path, meta: Mapping[str, Any]) -> None:
        """Write to one safetensors file, whole or not at all; ``meta`` says how they were made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        arrays = {f"observations/{key}": values for key, values in self.observations.items()}
        arrays |= {name: getattr(self, name) for name in ("actions", "lengths", "seeds", "success", "disturbed")}
        save_file(
            {k: np.ascontiguousarray(v) for k, v in arrays.items()},
            temporary,
            {"format": FORMAT, "meta": json.dumps(meta, sort_keys=True)},
        )
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: Path) -> tuple[Demonstrations, dict[str, Any]]:
        """Read what :meth:`save` wrote, and its ``meta``. Raises :class:`DemonstrationError` naming the file."""
        try:
            with safe_open(path, "numpy") as file:
                header = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            if header.get("format") != FORMAT:
                raise DemonstrationError(f"{path}: has format {header.get('format')!r}, expected {FORMAT!r}")
            prefix = "observations/"
            observations = {
                name.removeprefix(prefix): arrays.pop(name) for name in list(arrays) if name.startswith(prefix)
            }
            return cls(observations=observations, **arrays), json.loads(header["meta"])
        except (OSError, SafetensorError, TypeError, KeyError, json.JSONDecodeError) as error:
            raise DemonstrationError(f"{path}: not a demonstration file ({error}); delete it to collect anew") from None


def flatten(observation: Any) -> dict[str, np.ndarray]:
    """The arrays of an observation by key: nested keys are joined by a slash, a bare array is named "observation".

    Text and other things that are not arrays are left out.
    """
    if isinstance(observation, np.ndarray | np.number):
        return {"observation": np.asarray(observation)}
    found: dict[str, np.ndarray] = {}
    for key, value in observation.items():
        if isinstance(value, Mapping):
            found.update({f"{key}/{inner}": array for inner, array in flatten(value).items()})
        elif isinstance(value, np.ndarray | np.number):
            found[key] = np.asarray(value)
    return found


def collect(
    env: Any,
    seeds: Sequence[int],
    *,
    noise: float = 0.15,
    correlation: float = 0.7,
    undisturbed: float = 0.2,
    path: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Demonstrations:
    """Record one episode a seed of ``env`` (a Gymnasium environment with ``env.unwrapped.expert()`` and a Box action).

    The executed action is the expert's plus Ornstein-Uhlenbeck noise, clipped into the space. ``noise`` is its
    standard deviation as a share of half the action's range, ``correlation`` in [0, 1) that from tick to tick, and
    ``undisturbed`` the share of episodes without any (drawn from the seed, like the noise, so that an episode is the
    same whichever others are collected). With ``path`` the episodes are kept in that file, and those already there are
    not collected again. ``progress(done, total)`` is called after every episode.

    Raises :class:`DemonstrationError` for an environment without an expert or with another kind of action, and for a
    file at ``path`` that was collected differently.
    """
    for argument, value, good in (
        ("noise", noise, noise >= 0),
        ("correlation", correlation, 0 <= correlation < 1),
        ("undisturbed", undisturbed, 0 <= undisturbed <= 1),
    ):
        if not good:
            raise ValueError(f"{argument}={value} is out of range; see collect() for the ranges")
    world = env.spec.id if env.spec else type(env.unwrapped).__name__
    if not hasattr(env.unwrapped, "expert"):
        raise DemonstrationError(f"{world} has no expert() to learn from; choose an environment that offers one")
    space = env.action_space
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if (
        low is None
        or high is None
        or space.shape is None
        or len(space.shape) != 1
        or not np.isfinite([low, high]).all()
    ):
        raise DemonstrationError(f"{world} has actions {space}, expected a bounded Box of one dimension")

    meta = {"env": world, "noise": noise, "correlation": correlation, "undisturbed": undisturbed}
    parts: list[Demonstrations] = []
    if path is not None and path.exists():
        kept, its_meta = Demonstrations.load(path)
        if its_meta != meta:
            raise DemonstrationError(
                f"{path} was collected with {its_meta}, asked for {meta}; delete it, or choose another folder"
            )
        parts = [kept.select(np.isin(kept.seeds, np.asarray(seeds)))]
    done = {int(seed) for part in parts for seed in part.seeds}
    missing = [seed for seed in seeds if seed not in done]
    for number, seed in enumerate(missing, 1):
        parts.append(_episode(env, seed, (high - low) / 2 * noise, correlation, undisturbed))
        if path is not None and (number % _SAVE_EVERY == 0 or number == len(missing)):
            parts = [_join(parts)]
            parts[0].save(path, meta)
        if progress is not None:
            progress(len(done) + number, len(done) + len(missing))
    return _join(parts)


def _episode(env: Any, seed: int, scale: np.ndarray, correlation: float, undisturbed: float) -> Demonstrations:
    # A stream of its own: the environment makes default_rng(seed) for itself.
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    disturbed = bool(generator.random() >= undisturbed) and bool(np.any(scale > 0))
    observation, _ = env.reset(seed=seed)
    expert = env.unwrapped.expert()
    space = env.action_space
    seen: list[dict[str, np.ndarray]] = []
    actions: list[np.ndarray] = []
    offset = generator.standard_normal(scale.shape)
    success, ended = False, False
    while not ended:
        action = np.asarray(expert(), dtype=space.dtype)
        seen.append({key: np.array(value) for key, value in flatten(observation).items()})
        actions.append(action)
        executed = action
        if disturbed:
            executed = np.clip(action + scale * offset, space.low, space.high).astype(space.dtype)
            offset = correlation * offset + np.sqrt(1 - correlation**2) * generator.standard_normal(scale.shape)
        observation, _, terminated, truncated, info = env.step(executed)
        success = success or bool(info.get("success", info.get("is_success", False)))
        ended = terminated or truncated
    return Demonstrations(
        {key: np.stack([tick[key] for tick in seen]) for key in seen[0]},
        np.stack(actions),
        *(np.array([value]) for value in (len(actions), seed, success, disturbed)),
    )


def _join(parts: Sequence[Demonstrations]) -> Demonstrations:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        raise DemonstrationError("seeds is empty; ask for at least one episode")
    return Demonstrations(
        {key: np.concatenate([p.observations[key] for p in parts]) for key in parts[0].observations},
        *(
            np.concatenate([getattr(p, name) for p in parts])
            for name in ("actions", "lengths", "seeds", "success", "disturbed")
        ),
    )
