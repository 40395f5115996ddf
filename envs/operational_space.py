"""Operational-space control at 500 Hz, number for number what robosuite 1.5 computes, in a third of the time.

An action sets a goal 20 times a second; in between, 25 times per action, the controller turns the error into
joint torques. robosuite spends most of a step there: in by-name look-ups, ``np.cross`` and ``np.linalg.pinv``
(or, with numba, in the ten seconds of compilation before the first step). :class:`ArmTorques` evaluates the
same expressions in the same order on the same BLAS and LAPACK routines, so the simulation goes through the
same states to the last bit; robosuite itself still sets the goals.

Source: Khatib, "A unified approach for motion and force control of robot manipulators: the operational space
formulation" (1987), in the form of ``robosuite.controllers.parts.arm.osc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np

_NULLSPACE_STIFFNESS = 10
_NULLSPACE_DAMPING = np.sqrt(_NULLSPACE_STIFFNESS) * 2  # critically damped


def torques_of(robots: list[Any]) -> list[ArmTorques] | None:
    """One :class:`ArmTorques` per arm, or ``None`` if some part of these robosuite robots moves another way.

    Covered: fixed bases under robosuite's basic composite controller, arms by operational-space control
    without interpolation, grippers (whose command does not change between two actions).
    """
    from robosuite.controllers.composite.composite_controller import CompositeController
    from robosuite.controllers.parts.arm.osc import OperationalSpaceController
    from robosuite.controllers.parts.gripper.simple_grip import SimpleGripController

    arms = []
    for robot in robots:
        if type(robot.composite_controller) is not CompositeController or not robot.lite_physics:
            return None
        for name, controller in robot.composite_controller.part_controllers.items():
            if not robot.enabled(name):
                return None
            if type(controller) is SimpleGripController and controller.interpolator is None:
                continue
            if type(controller) is not OperationalSpaceController:
                return None
            if controller.interpolator_pos is not None or controller.interpolator_ori is not None:
                return None
            arm = ArmTorques(controller, robot._ref_actuators_indexes_dict[name])
            if not arm.base_is_fixed:
                return None
            arms.append(arm)
    return arms


class ArmTorques:
    """The torques of one arm towards the goal that its robosuite ``controller`` holds.

    ``actuators`` are the indices of the arm's motors in ``data.ctrl``. Call :meth:`take_goal` whenever the
    controller has set a new one, then :meth:`apply` between ``mj_step1`` and ``mj_step2`` of each substep.
    """

    def __init__(self, controller: Any, actuators: list[int]) -> None:
        self._controller = controller
        self._model: mujoco.MjModel = controller.sim.model._model
        self._data: mujoco.MjData = controller.sim.data._data
        self._site = self._model.site(controller.ref_name).id
        self._base = self._model.site(f"{controller.naming_prefix}{controller.part_name}_center").id
        self._qpos, self._qvel = _indices(controller.qpos_index), _indices(controller.qvel_index)
        self._actuators = _indices(actuators)
        self._low, self._high = self._model.actuator_ctrlrange[self._actuators].T.copy()
        # Two arrays of their own: a matrix-vector product sums in another order on a matrix that does not begin
        # at a multiple of 16 bytes, as a view into a larger one may.
        self._linear = np.zeros((3, self._model.nv))
        self._angular = np.zeros((3, self._model.nv))
        self._arm_jacobian = np.zeros((6, controller.joint_dim))
        self._identity = np.eye(controller.joint_dim)

    @property
    def base_is_fixed(self) -> bool:
        """Whether the arm stands on something that never moves, so that the goal is constant in the world."""
        return self._model.body_weldid[self._model.site_bodyid[self._base]] == 0

    def take_goal(self) -> None:
        """Read goal and gains from the controller, in the world's frame."""
        osc = self._controller
        position, orientation = osc.goal_pos, osc.goal_ori
        if osc.input_ref_frame == "base":
            position = osc.origin_pos + np.dot(osc.origin_ori, position)
            orientation = np.dot(osc.origin_ori, orientation)
        self._goal_position: list[float] = position.tolist()
        self._goal_columns: list[list[float]] = orientation.T.tolist()
        self._stiffness: list[float] = osc.kp.tolist()
        self._damping: list[float] = osc.kd.tolist()

    def apply(self, mass: np.ndarray) -> None:
        """Write the torques into ``data.ctrl``. ``mass`` is the full mass matrix [nv, nv] of this substep."""
        data, linear, angular = self._data, self._linear, self._angular
        J = self._arm_jacobian  # noqa: N806 - the literature's J
        mujoco.mj_jacSite(self._model, data, linear, angular, self._site)
        J[:3], J[3:] = linear[:, self._qvel], angular[:, self._qvel]
        velocity = np.dot(linear, data.qvel).tolist() + np.dot(angular, data.qvel).tolist()
        error = self._error()
        wish = [e * k - v * d for e, k, v, d in zip(error, self._stiffness, velocity, self._damping, strict=True)]
        arm_mass = mass[:, self._qvel][self._qvel].copy().T  # columns first, as robosuite's; it is symmetric
        inverse_mass = np.linalg.inv(arm_mass)

        full = _pseudo_inverse(np.dot(np.dot(J, inverse_mass), J.T))
        if self._controller.uncoupling:
            separate = np.empty((2, 3, 3))
            for half, rows in zip(separate, (J[:3], J[3:]), strict=True):
                np.dot(np.dot(rows, inverse_mass), rows.T, out=half)
            position, rotation = _pseudo_inverse(separate)
            wrench = np.empty(6)
            np.dot(position, np.array(wish[:3]), out=wrench[:3])
            np.dot(rotation.copy(), np.array(wish[3:]), out=wrench[3:])  # copied to begin at 16 bytes, see above
        else:
            wrench = np.dot(full, np.array(wish))
        torques = np.dot(J.T, wrench) + data.qfrc_bias[self._qvel]

        # What the task leaves free pulls towards the posture of the reset.
        nullspace = self._identity - np.dot(np.dot(inverse_mass, J.T).dot(full), J)
        away = self._controller.initial_joint - data.qpos[self._qpos]
        posture = np.dot(arm_mass, _NULLSPACE_STIFFNESS * away - _NULLSPACE_DAMPING * data.qvel[self._qvel])
        torques += np.dot(nullspace.T, posture)
        data.ctrl[self._actuators] = np.minimum(np.maximum(torques, self._low), self._high)

    def _error(self) -> list[float]:
        """Goal minus present pose: metres, then half the sum of the columns' cross products (about radians)."""
        x, y, z = self._data.site_xpos[self._site].tolist()
        r = self._data.site_xmat[self._site].tolist()
        (ax, ay, az), (bx, by, bz), (cx, cy, cz) = self._goal_columns
        goal = self._goal_position
        return [
            goal[0] - x,
            goal[1] - y,
            goal[2] - z,
            0.5 * ((r[3] * az - r[6] * ay) + (r[4] * bz - r[7] * by) + (r[5] * cz - r[8] * cy)),
            0.5 * ((r[6] * ax - r[0] * az) + (r[7] * bx - r[1] * bz) + (r[8] * cx - r[2] * cz)),
            0.5 * ((r[0] * ay - r[3] * ax) + (r[1] * by - r[4] * bx) + (r[2] * cy - r[5] * cx)),
        ]


def _indices(numbers: Sequence[int]) -> slice | list[int]:
    """Numbers that follow each other as a slice, which numpy reads several times faster."""
    first, count = numbers[0], len(numbers)
    return slice(first, first + count) if list(numbers) == list(range(first, first + count)) else list(numbers)


def _pseudo_inverse(matrices: np.ndarray) -> np.ndarray:
    """``np.linalg.pinv`` of one matrix or of a stack, to the last bit, at half the cost."""
    u, singular, vt = np.linalg.svd(matrices, full_matrices=False)
    for largest, *_, smallest in singular.reshape(-1, singular.shape[-1]).tolist():
        if not smallest > 1e-15 * largest:
            return np.linalg.pinv(matrices)  # which drops the vanishing directions
    return np.matmul(vt.swapaxes(-1, -2), (1 / singular)[..., None] * u.swapaxes(-1, -2))
