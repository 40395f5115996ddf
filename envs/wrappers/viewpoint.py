"""A camera that does not stand where it stood when the demonstrations were recorded."""

from __future__ import annotations

from typing import Any

import gymnasium
import mujoco
import numpy as np

from .perturbation import ScenePerturbation, require


class Viewpoint(ScenePerturbation):
    """``ENV+viewpoint:metres=0.05,degrees=5`` moves and turns the agent's cameras, anew in each episode.

    A camera is shifted by exactly ``metres`` in a random direction and turned by exactly ``degrees`` about a random
    axis through itself, both uniform on the sphere and fixed for the episode. Several cameras get the same
    displacement in their own frame. It reaches the cameras of the observation that stand in the world; one that a
    robot carries (``robot0_eye_in_hand``) would end up inside the hand, and moves only when ``camera`` names it.

    Raises ``ValueError`` for ``metres`` outside 0 to 10, ``degrees`` outside 0 to 180, a ``camera`` that is not in
    the observation, a world without pictures, and one where every camera is carried.
    """

    def __init__(self, env: gymnasium.Env, metres: float = 0.05, degrees: float = 5.0, camera: str = "") -> None:
        require("viewpoint", "metres", metres, 0, 10, "m")
        require("viewpoint", "degrees", degrees, 0, 180, "degrees")
        super().__init__(env, metres=metres, degrees=degrees, camera=camera)
        world: Any = env.unwrapped
        model, known = world.model, [part.frame for part in world.interface.observation["pixels"]]
        if camera and camera not in known:
            raise ValueError(f"viewpoint: camera={camera!r} is not in the observation, which shows {known}")
        standing = [name for name in known if model.body_weldid[model.camera(name).bodyid[0]] == 0]
        self._cameras = [camera] if camera else standing
        if not self._cameras:
            raise ValueError(
                f"viewpoint: every camera is carried by the robot; say which one to move: camera={known[0]}"
            )
        self._metres, self._radians = metres, np.deg2rad(degrees)
        self._begin()
        self._join()

    def _begin(self) -> None:
        self._shift = self._metres * _direction(self.stream)
        turn = np.empty(4)
        mujoco.mju_axisAngle2Quat(turn, _direction(self.stream), self._radians)
        rotation = np.empty(9)
        mujoco.mju_quat2Mat(rotation, turn)
        self._turn = rotation.reshape(3, 3)

    def _edit(
        self, model: mujoco.MjModel, data: mujoco.MjData, camera: mujoco.MjvCamera, scene: mujoco.MjvScene
    ) -> None:
        if camera.type != mujoco.mjtCamera.mjCAMERA_FIXED or model.camera(camera.fixedcamid).name not in self._cameras:
            return
        for eye in scene.camera:  # two, which MuJoCo averages into one picture
            frame = np.stack([np.cross(eye.forward, eye.up), eye.up, eye.forward], axis=1)  # columns: right, up, ahead
            eye.pos += frame @ self._shift
            turned = frame @ self._turn
            eye.up, eye.forward = turned[:, 1], turned[:, 2]


def _direction(stream: np.random.Generator) -> np.ndarray:
    """A unit vector [3], uniform on the sphere."""
    vector = stream.standard_normal(3)
    return vector / np.linalg.norm(vector)
