"""Demonstrations: what an expert would have done, in states that a little noise has led to.

:func:`collect` disturbs the executed action and records the expert's own (Laskey et al., "DART: Noise Injection for
Robust Imitation Learning"): the data then show how to come back, and cloning does not drift off them. The noise is an
Ornstein-Uhlenbeck process, because independent noise of the same size averages out within a few ticks.

For policies that continue a committed prefix, some episodes also have *lags*: for a few ticks the world executes what
the expert said that many ticks ago, which is what a robot does while its next plan is being made. A window that begins
in a lag has the rest of it as its prefix. Taking the expert's own next actions for a prefix instead, as training-time
chunking does, tells the policy what the expert will see in that time: it learns to believe its own plan more than its
eyes, and runs after things that it only imagined.
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
TEXT_BYTES = 64  # of an instruction
_BY_TICK = ("actions", "executed", "lagging")
_BY_EPISODE = ("lengths", "seeds", "success", "disturbed")
_LAG_STARTS = 0.1  # a tick, in an episode with lags
_SAVE_EVERY = 50  # episodes; an interrupted collection loses fewer than these


class DemonstrationError(ValueError):
    """Demonstrations that cannot be collected or read; the message says why and what to do."""


@dataclass(frozen=True)
class Demonstrations:
    """Episodes end to end: ``observations`` key -> [T, ...] and ``actions`` [T, D] over all ticks of all episodes.

    ``actions`` are what the expert said, ``executed`` [T, D] what was done, and ``lagging`` [T] whether that was
    something the expert had said before. ``lengths`` [E] are the ticks of each episode, ``seeds`` [E] their seeds,
    ``success`` [E] whether each succeeded, and ``disturbed`` [E] whether what was done differs from what was said.
    """

    observations: Mapping[str, np.ndarray]
    actions: np.ndarray
    executed: np.ndarray
    lagging: np.ndarray
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
            *(getattr(self, name)[ticks] for name in _BY_TICK),
            *(getattr(self, name)[keep] for name in _BY_EPISODE),
        )

    def batches(
        self,
        horizon: int,
        size: int,
        generator: np.random.Generator,
        *,
        stale: int = 0,
        ahead: Sequence[int] = (),
    ) -> Iterator[dict[str, Any]]:
        """Endless random batches of windows, every tick equally likely.

        ``observation`` is key -> [size, ...], ``actions`` [size, horizon, D], ``valid`` [size, horizon] and, if there
        are lags at all, ``delay`` [size]. A window that begins in a lag has what was executed for its first ``delay``
        actions, the rest of the lag; all others are the expert's. ``valid`` ends where a further lag begins, after
        whose first tick the expert's actions answer to something else than its actions before, and where the episode
        ends; from there on the last action is repeated. With ``stale``, ``slow`` is like ``observation``, up to so many
        ticks earlier (within the episode) and at tick ``slow_tick`` [size]: what a slow pass had seen. ``future`` holds
        the pictures [size, n, ...] of the n ticks ``ahead``, and ``future_valid`` [size, n] is false beyond the end.
        """
        ticks = np.arange(len(self.actions))
        ends = np.repeat(np.cumsum(self.lengths), self.lengths)
        starts = ends - np.repeat(self.lengths, self.lengths)

        def first(where: np.ndarray) -> np.ndarray:
            """For each tick the first from it on that is marked, or the end of its episode."""
            return np.minimum.accumulate(np.where(where, ticks, ends)[::-1])[::-1]

        lag_over, lag_next = first(~self.lagging), np.append(first(self.lagging), len(ticks))
        observations = {key: torch.from_numpy(values) for key, values in self.observations.items()}
        following = np.arange(horizon)
        pictures = [key for key, values in self.observations.items() if values.ndim == 4]
        while True:
            tick = generator.integers(len(ticks), size=size)
            index = tick[:, None] + following
            free = lag_over[tick]
            stop = np.minimum(ends[tick], lag_next[free] + 1)
            at = np.minimum(index, stop[:, None] - 1)
            given = at < free[:, None]
            batch: dict[str, Any] = {
                "observation": {key: values[torch.from_numpy(tick)] for key, values in observations.items()},
                "actions": torch.from_numpy(np.where(given[..., None], self.executed[at], self.actions[at])),
                "valid": torch.from_numpy(index < stop[:, None]),
            }
            if stale:
                then = np.maximum(starts[tick], tick - generator.integers(0, stale + 1, size))
                batch["slow"] = {key: values[torch.from_numpy(then)] for key, values in observations.items()}
                batch["slow_tick"] = torch.from_numpy(then)
            if len(ahead):
                then = tick[:, None] + np.asarray(ahead)
                places = torch.from_numpy(np.minimum(then, ends[tick][:, None] - 1))
                batch["future"] = {key: observations[key][places] for key in pictures}
                batch["future_valid"] = torch.from_numpy(then < ends[tick][:, None])
            if self.lagging.any():
                batch["delay"] = torch.from_numpy(free - tick)
            yield batch

    def save(self, path: Path, meta: Mapping[str, Any]) -> None:
        """Write to one safetensors file, whole or not at all; ``meta`` says how they were made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        arrays = {f"observations/{key}": values for key, values in self.observations.items()}
        arrays |= {name: getattr(self, name) for name in (*_BY_TICK, *_BY_EPISODE)}
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

    Text becomes its bytes, uint8 [64]: UTF-8, cut or filled up with zeros. Other things are left out.
    """
    if isinstance(observation, np.ndarray | np.number):
        return {"observation": np.asarray(observation)}
    found: dict[str, np.ndarray] = {}
    for key, value in observation.items():
        if isinstance(value, Mapping):
            found.update({f"{key}/{inner}": array for inner, array in flatten(value).items()})
        elif isinstance(value, np.ndarray | np.number):
            found[key] = np.asarray(value)
        elif isinstance(value, str):
            found[key] = np.frombuffer(value.encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0"), np.uint8)
    return found


def collect(
    env: Any,
    seeds: Sequence[int],
    *,
    noise: float = 0.15,
    correlation: float = 0.7,
    lag: int = 0,
    undisturbed: float = 0.2,
    path: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Demonstrations:
    """Record one episode a seed of ``env`` (a Gymnasium environment with ``env.unwrapped.expert()`` and a Box action).

    The executed action is the expert's plus Ornstein-Uhlenbeck noise, clipped into the space. ``noise`` is its
    standard deviation as a share of half the action's range, ``correlation`` in [0, 1) that from tick to tick. In half
    of these episodes there are lags of up to ``lag`` ticks (0: none). ``undisturbed`` is the share of episodes without
    any of it. All of this is drawn from the seed, so an episode is the same whichever others are collected. With
    ``path`` the episodes are kept in that file, and those already there are not collected again. ``progress(done,
    total)`` is called after every episode.

    Raises :class:`DemonstrationError` for an environment without an expert or with another kind of action, and for a
    file at ``path`` that was collected differently.
    """
    for argument, value, good in (
        ("noise", noise, noise >= 0),
        ("correlation", correlation, 0 <= correlation < 1),
        ("lag", lag, lag >= 0),
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

    disturbance = _Disturbance((high - low) / 2 * noise, correlation, lag, undisturbed)
    meta = {"env": world, "noise": noise, "correlation": correlation, "lag": lag, "undisturbed": undisturbed}
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
        parts.append(_episode(env, seed, disturbance))
        if path is not None and (number % _SAVE_EVERY == 0 or number == len(missing)):
            parts = [_join(parts)]
            parts[0].save(path, meta)
        if progress is not None:
            progress(len(done) + number, len(done) + len(missing))
    return _join(parts)


@dataclass(frozen=True)
class _Disturbance:
    scale: np.ndarray
    correlation: float
    lag: int
    undisturbed: float


def _episode(env: Any, seed: int, how: _Disturbance) -> Demonstrations:
    # A stream of its own: the environment makes default_rng(seed) for itself.
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    quiet = bool(generator.random() < how.undisturbed)
    lags = bool(generator.random() < 0.5) and how.lag > 0 and not quiet
    scale = how.scale * (not quiet)
    observation, _ = env.reset(seed=seed)
    expert = env.unwrapped.expert()
    space = env.action_space
    instruction = getattr(env.unwrapped, "instruction", None)  # of a world that does not say it in its observations
    told = flatten({"instruction": instruction}) if isinstance(instruction, str) else {}
    seen: list[dict[str, np.ndarray]] = []
    said: list[np.ndarray] = []
    executed: list[np.ndarray] = []
    lagging: list[bool] = []
    offset = generator.standard_normal(scale.shape)
    behind = left = 0  # how old the executed actions are, and for how many ticks more
    success, ended = False, False
    while not ended:
        seen.append({key: np.array(value) for key, value in (told | flatten(observation)).items()})
        said.append(np.asarray(expert(), dtype=space.dtype))
        if lags and not any(lagging[-1:]) and generator.random() < _LAG_STARTS:  # two lags never touch
            behind = left = int(generator.integers(1, how.lag + 1))
        base = said[max(0, len(said) - 1 - behind)] if left else said[-1]
        executed.append(np.clip(base + scale * offset, space.low, space.high).astype(space.dtype))
        lagging.append(left > 0)
        left = max(0, left - 1)
        noise = generator.standard_normal(scale.shape)
        offset = how.correlation * offset + np.sqrt(1 - how.correlation**2) * noise
        observation, _, terminated, truncated, info = env.step(executed[-1])
        success = success or bool(info.get("success", info.get("is_success", False)))
        ended = terminated or truncated
    disturbed = any(lagging) or bool(np.any(scale > 0))
    return Demonstrations(
        {key: np.stack([tick[key] for tick in seen]) for key in seen[0]},
        np.stack(said),
        np.stack(executed),
        np.array(lagging),
        *(np.array([value]) for value in (len(said), seed, success, disturbed)),
    )


def _join(parts: Sequence[Demonstrations]) -> Demonstrations:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        raise DemonstrationError("seeds is empty; ask for at least one episode")
    return Demonstrations(
        {key: np.concatenate([p.observations[key] for p in parts]) for key in parts[0].observations},
        *(np.concatenate([getattr(p, name) for p in parts]) for name in (*_BY_TICK, *_BY_EPISODE)),
    )
