"""What every perturbation shares: randomness of its own, so that the world's stays untouched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any
from zlib import crc32

import gymnasium
import mujoco
import numpy as np
from gymnasium.utils import RecordConstructorArgs


class Perturbation(gymnasium.Wrapper, RecordConstructorArgs, ABC):
    """A wrapper that changes what is seen of an episode, drawn from the episode's seed.

    ``stream`` is the perturbation's own generator. It starts from the seed and the name of the class (and from how
    many of the same name stand below), so the world inside draws exactly what it draws without the wrapper:
    the same seed makes the matched pair. ``settings`` are recorded in ``env.spec``.
    """

    def __init__(self, env: gymnasium.Env, **settings: Any) -> None:
        RecordConstructorArgs.__init__(self, **settings)
        gymnasium.Wrapper.__init__(self, env)
        below, same = env, 0
        while isinstance(below, gymnasium.Wrapper):
            same += type(below) is type(self)
            below = below.env
        self._name_key = crc32(f"{type(self).__name__}#{same}".encode())
        self.stream = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of the world inside; without a seed the stream continues, as the world's does."""
        if seed is not None:
            self.stream = np.random.default_rng([seed, self._name_key])
        self._begin()
        return self.env.reset(seed=seed, options=options)

    def _begin(self) -> None:
        """Draw what stays the same for an episode. Called before the world makes its first observation."""


class ScenePerturbation(Perturbation):
    """A perturbation of the pictures of a MuJoCo world that draws through ``envs.offscreen``.

    It joins the world's ``scene_edits``, so it acts on every picture, the video too, and on nothing
    else. Raises ``ValueError`` when there are no pictures to change.
    """

    def __init__(self, env: gymnasium.Env, **settings: Any) -> None:
        super().__init__(env, **settings)
        name, world = type(self).__name__.lower(), env.unwrapped
        space = env.observation_space
        if not (isinstance(space, gymnasium.spaces.Dict) and "pixels" in space.spaces):
            raise ValueError(
                f"{name} changes camera images, but the observation of {_id(env)} has none: "
                "make it with pixels=64, for example, or leave the perturbation out"
            )
        if not isinstance(getattr(world, "scene_edits", None), list):
            raise ValueError(
                f"{name} needs a world that draws through palaestra's offscreen renderer (one with a list "
                f"scene_edits), but {_id(env)} draws by itself; leave the perturbation out"
            )

    def _join(self) -> None:
        """Take a place in the world's ``scene_edits``; the last line of a constructor, once nothing can be refused."""
        self.unwrapped.scene_edits.append(self._edit)  # type: ignore[attr-defined]

    @abstractmethod
    def _edit(
        self, model: mujoco.MjModel, data: mujoco.MjData, camera: mujoco.MjvCamera, scene: mujoco.MjvScene
    ) -> None:
        """Change the scene that is about to be drawn; see ``envs.offscreen.SceneEdit``."""


def require(perturbation: str, argument: str, value: Any, low: float, high: float, unit: str) -> None:
    """Raise ``ValueError`` with a sentence unless ``value`` is a number in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"{perturbation}: {argument}={value!r}, expected {low:g} to {high:g} {unit}".rstrip())


def _id(env: gymnasium.Env) -> str:
    return env.spec.id if env.spec else type(env.unwrapped).__name__
