"""Things in the picture that have nothing to do with the task."""

from __future__ import annotations

from math import pi

import gymnasium
import mujoco
import numpy as np

from .perturbation import ScenePerturbation, require

_SHAPES = (mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_ELLIPSOID)
_TRIES = 50


class Distractor(ScenePerturbation):
    """``ENV+distractor:count=3,size=0.08`` lays coloured objects about, anew in each episode.

    Each of ``count`` spheres, boxes and ellipsoids lies where a random point of the picture of the episode's first
    camera shows something immovable (a table, the floor, a pane), so that it is in view and does not float.
    ``size`` is its diameter as a share of the picture's height. The objects exist in pictures only: nothing
    collides with them, and the physics does not know of them.

    Raises ``ValueError`` for ``count`` that is not a whole number from 1 to 100, ``size`` outside 0.005 to 0.5,
    and for a world without pictures.
    """

    def __init__(self, env: gymnasium.Env, count: int = 3, size: float = 0.08) -> None:
        require("distractor", "count", count, 1, 100, "objects")
        if int(count) != count:
            raise ValueError(f"distractor: count={count!r}, expected a whole number of objects")
        require("distractor", "size", size, 0.005, 0.5, "of the picture's height")
        super().__init__(env, count=count, size=size)
        self._count, self._size = int(count), size
        self._objects: list[tuple] | None = None
        self._join()

    def _begin(self) -> None:
        self._objects = None  # they are placed when the camera of the new episode is known

    def _edit(
        self, model: mujoco.MjModel, data: mujoco.MjData, camera: mujoco.MjvCamera, scene: mujoco.MjvScene
    ) -> None:
        if self._objects is None:
            self._objects = [self._place(model, data, scene.camera[0]) for _ in range(self._count)]
        for shape, half_sizes, position, rotation, colour in self._objects:
            if scene.ngeom == scene.maxgeom:
                return
            geom = scene.geoms[scene.ngeom]
            mujoco.mjv_initGeom(geom, shape, half_sizes, position, rotation, colour)
            geom.category = mujoco.mjtCatBit.mjCAT_DECOR
            scene.ngeom += 1

    def _place(self, model: mujoco.MjModel, data: mujoco.MjData, camera: mujoco.MjvGLCamera) -> tuple:
        """One object: shape, half sizes [3] in m, position [3], rotation [9] and colour [4]."""
        draw = self.stream
        slope = (camera.frustum_top - camera.frustum_bottom) / camera.frustum_near  # picture height at 1 m
        position, forward, up = (np.asarray(v, np.float64) for v in (camera.pos, camera.forward, camera.up))
        right = np.cross(forward, up)
        geom = np.empty(1, np.int32)
        for _ in range(_TRIES):
            across, upward = draw.uniform(-0.45, 0.45, 2) * slope
            ray = forward + across * right + upward * up
            depth = mujoco.mj_ray(model, data, position, ray, None, 1, -1, geom)
            # Only what is welded to the world, or the objects would hang in the air once the robot moves on.
            if depth > 0 and model.body_weldid[model.geom_bodyid[geom[0]]] == 0:
                break
        else:
            depth = float(np.linalg.norm(model.stat.center - position))  # only sky in view: let it float there
        radius = self._size * slope * depth / 2
        point = position + depth * ray - radius * ray / np.linalg.norm(ray)
        angle = draw.uniform(0, 2 * pi)
        rotation = np.array([np.cos(angle), -np.sin(angle), 0, np.sin(angle), np.cos(angle), 0, 0, 0, 1])
        colour = np.append(draw.uniform(0.1, 1.0, 3), 1.0).astype(np.float32)
        return _SHAPES[draw.integers(len(_SHAPES))], radius * draw.uniform(0.6, 1.0, 3), point, rotation, colour
