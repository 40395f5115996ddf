"""Noise on the measured numbers of an observation: what a real encoder or tracker would add."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from .perturbation import Perturbation, require


class SensorNoise(Perturbation):
    """``ENV+sensor_noise:std=0.02`` adds independent Gaussian noise to the numbers that the agent measures.

    ``std`` is absolute, in the unit of each number (m, rad, m/s, N): a sensor does not know what is typical for a
    task. ``key`` limits it to one key of a Dict observation, and the perturbation may be given once per sensor:
    ``ENV+sensor_noise:std=0.01,key=agent_pos+sensor_noise:std=2,key=wrench``. Without a key it reaches all float
    vectors (1-D). Windows of samples, such as ``wrench``, it reaches only by name, and then a sample that is seen
    in two windows gets new noise in the second.

    Left alone is what the interface card calls neither a quantity nor a unit (a flag, a phase). The sensor
    saturates at the bounds of the observation space. Quaternions are disturbed like other numbers and not
    normalised again.

    Raises ``ValueError`` for a ``std`` that is not a number from 0 to 1000, an unknown key, or an observation
    without such numbers.
    """

    def __init__(self, env: gymnasium.Env, std: float = 0.01, key: str = "") -> None:
        require("sensor_noise", "std", std, 0, 1000, "in the unit of the observation")
        super().__init__(env, std=std, key=key)
        space = env.observation_space
        if key and not (isinstance(space, spaces.Dict) and key in space.spaces):
            known = sorted(space.spaces) if isinstance(space, spaces.Dict) else "one without keys"
            raise ValueError(f"sensor_noise: key={key!r} is not in the observation, which is {known}")
        boxes: dict[str, Any] = dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}
        card = getattr(env.unwrapped, "interface", None)
        self._noise: dict[str, tuple[spaces.Box, np.ndarray]] = {}
        for name, box in boxes.items():
            is_float = isinstance(box, spaces.Box) and np.issubdtype(box.dtype, np.floating)
            if is_float and (name == key or (not key and len(box.shape) == 1)):
                self._noise[name] = box, std * _measured(card, name, box.shape[-1])
        if not self._noise:
            of = f"the key {key!r}" if key else "the observation"
            raise ValueError(f"sensor_noise: {of} holds no float numbers to add noise to; the space is {space}")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The first observation is measured like all others."""
        observation, info = super().reset(seed=seed, options=options)
        return self._measure(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step of the world; reward, end and info are the true ones."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._measure(observation), reward, terminated, truncated, info

    def _measure(self, observation: Any) -> Any:
        if "" in self._noise:
            return self._noisy("", observation)
        return {**observation, **{key: self._noisy(key, observation[key]) for key in self._noise}}

    def _noisy(self, key: str, value: np.ndarray) -> np.ndarray:
        box, std = self._noise[key]
        noisy = value + std * self.stream.standard_normal(value.shape)
        return np.clip(noisy, box.low, box.high).astype(value.dtype)


def _measured(card: Any, key: str, size: int) -> np.ndarray:
    """1 for each number that is a measured quantity by the card, 0 for flags; all 1 without a card."""
    components = card.observation.get(key, ()) if card is not None else ()
    if sum(c.size for c in components) != size:
        return np.ones(size)
    return np.concatenate([np.full(c.size, float(c.quantity != "other" or c.unit != "")) for c in components])
