"""A MuJoCo world that can be seen: camera images in the observation, and ``render``, made when they are asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces

from .interface import Component, Interface
from .offscreen import Offscreen, SceneEdit


class Filmed(gymnasium.Env[dict[str, Any], np.ndarray]):
    """Derive, call ``super().__init__``, make ``model`` and ``data``, and ``close`` will release the renderers.

    The scene has a camera ``eye``, whose square image of side ``pixels`` (8 to 960) is the observation's key
    ``pixels``, and a camera ``view``, which ``render`` shows. A world that draws its observation itself deletes
    ``scene_edits``: perturbations of the scene are then refused, as they would change nothing. Raises ``ValueError``
    for another ``pixels`` or ``render_mode``.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    interface: Interface
    model: mujoco.MjModel
    data: mujoco.MjData

    def __init__(self, pixels: int | None, render_mode: str | None) -> None:
        if pixels is not None and not (isinstance(pixels, int) and 8 <= pixels <= 960):
            raise ValueError(f"pixels={pixels!r}, expected the side of the image from 8 to 960, or None for no image")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode={render_mode!r}, expected 'rgb_array' or None")
        self.render_mode = render_mode
        self.scene_edits: list[SceneEdit] = []  # how a perturbation around this world changes what is drawn
        self._pixels = pixels
        self._offscreen: dict[tuple[int, int], Offscreen] = {}

    def render(self) -> np.ndarray | None:
        """The scene from its camera "view", uint8 [480, 640, 3]; ``None`` with a warning without ``render_mode``."""
        if self.render_mode is None:
            gymnasium.logger.warn('render() draws nothing: make the environment with render_mode="rgb_array"')
            return None
        return self._image("view", 640, 480)

    def close(self) -> None:
        """Release the renderers, if any were made."""
        while self._offscreen:
            self._offscreen.popitem()[1].close()

    def _observe_with(self, keys: dict[str, spaces.Space]) -> None:
        """Set the observation space to ``keys``, with the image where there is one, which also joins the card."""
        if self._pixels:
            keys = {**keys, "pixels": spaces.Box(0, 255, (self._pixels, self._pixels, 3), np.uint8)}
            image = {"pixels": (Component("eye", 1, "image", frame="eye"),)}
            self.interface = replace(self.interface, observation={**self.interface.observation, **image})
        self.observation_space = spaces.Dict(keys)

    def _seen(self, observation: dict[str, Any]) -> dict[str, Any]:
        """The observation with its image."""
        if self._pixels:
            observation["pixels"] = self._image("eye", self._pixels, self._pixels)
        return observation

    def _pose(self) -> None:
        """Bring what is drawn up to date: mj_step leaves the poses one physics step behind qpos."""
        mujoco.mj_kinematics(self.model, self.data)

    def _image(self, camera: str, width: int, height: int) -> np.ndarray:
        size = width, height
        if size not in self._offscreen:
            self._offscreen[size] = Offscreen(self.model, *size, edits=getattr(self, "scene_edits", ()))
        self._pose()
        return self._offscreen[size].render(self.data, camera=camera)
