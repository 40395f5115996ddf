"""A camera that does not stand where it stood when the demonstrations were recorded."""

from __future__ import annotations

import gymnasium
import mujoco
import numpy as np

from .perturbation import ScenePerturbation, require


class Viewpoint(ScenePerturbation):
    """``ENV+viewpoint:metres=0.05,degrees=5`` moves and turns every camera, anew in each episode.

    The camera is shifted by exactly ``metres`` in a random direction and turned by exactly ``degrees`` about a
    random axis through itself, both uniform on the sphere and fixed for the episode. All cameras of a world get the
    same displacement in their own frame, as if each mount had been bumped alike.

    Raises ``ValueError`` for ``metres`` outside 0 to 10 or ``degrees`` outside 0 to 180, and for a world without
    pictures.
    """

    def __init__(self, env: gymnasium.Env, metres: float = 0.05, degrees: float = 5.0) -> None:
        require("viewpoint", "metres", metres, 0, 10, "m")
        require("viewpoint", "degrees", degrees, 0, 180, "degrees")
        super().__init__(env, metres=metres, degrees=degrees)
        self._metres, self._radians = metres, np.deg2rad(degrees)
        self._begin()

    def _begin(self) -> None:
        self._shift = self._metres * _direction(self.stream)
        turn = np.empty(4)
        mujoco.mju_axisAngle2Quat(turn, _direction(self.stream), self._radians)
        rotation = np.empty(9)
        mujoco.mju_quat2Mat(rotation, turn)
        self._turn = rotation.reshape(3, 3)

    def _edit(self, model: mujoco.MjModel, data: mujoco.MjData, scene: mujoco.MjvScene) -> None:
        for camera in scene.camera:  # two eyes, which MuJoCo averages into one picture
            right = np.cross(camera.forward, camera.up)
            frame = np.stack([right, camera.up, camera.forward], axis=1)  # columns: the camera's axes in the world
            camera.pos += frame @ self._shift
            turned = frame @ self._turn
            camera.up, camera.forward = turned[:, 1], turned[:, 2]


def _direction(stream: np.random.Generator) -> np.ndarray:
    """A unit vector [3], uniform on the sphere."""
    vector = stream.standard_normal(3)
    return vector / np.linalg.norm(vector)
