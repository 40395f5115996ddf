"""Scripted experts for robosuite tasks: from the simulator's state to a good action, at every tick anew.

Each expert is a function of the present state, with no phase or clock of its own, so that it goes on sensibly
from wherever noise, a takeover or another agent has left the arm. What it decides by (poses of hand and
objects, the width of the grip) is in the observation too, so that a policy can learn it. They were written
for the Panda at 20 Hz; ``tests/benchmarks/bench_robosuite.py --experts`` measures them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import mujoco
import numpy as np

if TYPE_CHECKING:
    from .robosuite_arm import RobosuiteArm

_DOWN = np.array([0.0, 0.0, -1.0])
_METRES = 0.05  # what an action of 1 moves the goal by
_RADIANS = 0.5
_OPEN, _CLOSE = -1.0, 1.0


def expert_for(arm: RobosuiteArm) -> Callable[[], np.ndarray]:
    """The expert of an environment: call it for its action, a float32 array in [-1, 1], in the present state.

    Raises ``ValueError`` for a task without an expert, and for a controller or a hand that it does not know.
    """
    if arm.task not in EXPERTS:
        raise ValueError(f"task={arm.task!r} has no scripted expert; there is one for {', '.join(EXPERTS)}")
    kinds = tuple((part.name, part.mode) for part in arm.interface.action)
    if kinds != (("position", "delta"), ("rotation", "delta"), ("gripper", "absolute")):
        raise ValueError(
            f"the expert for {arm.task} moves one hand by position and rotation deltas, but this controller takes "
            f"{', '.join(f'{mode} {name}' for name, mode in kinds)}; leave controller=None"
        )
    hand = type(arm.robosuite.robots[0].gripper[arm.robosuite.robots[0].arms[0]]).__name__
    if hand != "PandaGripper":
        raise ValueError(f"the expert for {arm.task} knows the Panda's hand, but this robot has a {hand}")
    decide = EXPERTS[arm.task]
    return lambda: decide(_Scene(arm))


class _Scene:
    """What the experts ask about the world, and how the hand is told to move. Metres, radians, world frame."""

    def __init__(self, arm: RobosuiteArm) -> None:
        self.model, self.data = arm.model, arm.data
        self.task = arm.robosuite
        robot = self.task.robots[0]
        site = robot.eef_site_id[robot.arms[0]]
        self.hand = self.data.site_xpos[site].copy()
        self.rotation = self.data.site_xmat[site].reshape(3, 3).copy()
        fingers = self.data.qpos[robot._ref_gripper_joint_pos_indexes[robot.arms[0]]]
        self.width = float(np.abs(fingers).sum())
        self.base = robot.part_controllers[robot.arms[0]].origin_ori

    def body(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Position and rotation matrix of a body."""
        body = self.data.body(name)
        return body.xpos.copy(), body.xmat.reshape(3, 3).copy()

    def grip(self, direction: np.ndarray, symmetry: float) -> np.ndarray:
        """The horizontal finger axis nearest to the present one, of those that stand ``symmetry`` rad apart."""
        now = np.arctan2(self.rotation[1, 0], self.rotation[0, 0])  # the Panda's fingers move along x of the hand
        angle = np.arctan2(direction[1], direction[0])
        angle += symmetry * round((now - angle) / symmetry)
        return np.array([np.cos(angle), np.sin(angle), 0.0])

    def level(self) -> np.ndarray:
        """The rotation that points the hand down and leaves its heading."""
        return self.turn(self.grip(self.rotation[:, 0], np.pi))

    def turn(self, fingers: np.ndarray, pointing: np.ndarray = _DOWN) -> np.ndarray:
        """The rotation, as axis times angle, to a finger axis and a direction that the hand points in."""
        goal = np.stack([fingers, np.cross(pointing, fingers), pointing], axis=1)
        quaternion, vector = np.empty(4), np.empty(3)
        mujoco.mju_mat2Quat(quaternion, (goal @ self.rotation.T).ravel())
        mujoco.mju_quat2Vel(vector, quaternion, 1.0)
        return vector

    def move(self, target: np.ndarray, turn: np.ndarray, gripper: float, gain: float = 2.0) -> np.ndarray:
        """One action towards a hand position and by a rotation, slower the nearer."""
        position = gain * (self.base.T @ (target - self.hand)) / _METRES
        rotation = gain * (self.base.T @ turn) / _RADIANS
        return np.clip(np.concatenate([position, rotation, [gripper]]), -1, 1).astype(np.float32)


def _funnel(scene: _Scene, target: np.ndarray, turn: np.ndarray, height: float, slack: float = 0.008) -> np.ndarray:
    """``target``, raised by up to ``height`` while the hand is beside it or turned wrongly."""
    aside = float(np.linalg.norm((target - scene.hand)[:2]))
    wrong = max(0.0, aside - slack) + 0.05 * max(0.0, float(np.linalg.norm(turn)) - 0.15)
    return target + np.array([0, 0, min(height, 3 * wrong)])


def _near(scene: _Scene, point: np.ndarray, aside: float, along: float) -> bool:
    """Whether the grip surrounds a point: within ``aside`` of it horizontally and ``along`` vertically."""
    away = scene.hand - point
    return bool(np.hypot(away[0], away[1]) < aside and abs(away[2]) < along)


def _lift(scene: _Scene) -> np.ndarray:
    """Over the cube, down, close, up. The closing fingers turn the cube; so the hand keeps its heading.

    A heading that follows the cube's would jump where two of its sides are equally far, and a policy that is to
    imitate it would have to learn the jump.
    """
    cube, _ = scene.body("cube_main")
    turn = scene.level()
    if _near(scene, cube, 0.03, 0.02) and 0.036 < scene.width < 0.064:  # 40 to 44 mm, or held by its edges
        return scene.move(scene.hand + [0, 0, 0.1], turn, _CLOSE)
    if _near(scene, cube, 0.015, 0.015):
        return scene.move(cube, turn, _CLOSE)
    return scene.move(_funnel(scene, cube, turn, 0.08), turn, _OPEN)


def _stack(scene: _Scene) -> np.ndarray:
    """Take the red cube, up, over the green one, down, open."""
    red, rotation = scene.body("cubeA_main")
    green, _ = scene.body("cubeB_main")
    apart = green - red
    aside, lift = float(np.linalg.norm(apart[:2])), -apart[2] - 0.045  # they are 40 and 50 mm high
    if aside < 0.02 and lift < 0.004:  # it stands there: let go without pulling, then clear off
        return scene.move(scene.hand + [0, 0, 0.05 * (scene.width > 0.05)], scene.level(), _OPEN)
    if _near(scene, red, 0.03, 0.02) and 0.034 < scene.width < 0.046:
        high = green[2] + 0.045 + min(0.03, 3 * max(0.0, aside - 0.01))
        free = np.clip((lift + 0.015) / 0.02, 0, 1)  # up first, then across
        return scene.move(scene.hand + [*(free * apart[:2]), high - red[2]], scene.level(), _CLOSE)
    # Of the two ways to hold a cube take the one whose fingers do not come between the cubes.
    side = min(rotation[:, 0], rotation[:, 1], key=lambda side: abs(float(side[:2] @ apart[:2])))
    turn = scene.turn(scene.grip(side, np.pi))
    if _near(scene, red, 0.015, 0.015):
        return scene.move(red, turn, _CLOSE)
    return scene.move(_funnel(scene, red, turn, 0.08), turn, _OPEN)


def _door(scene: _Scene) -> np.ndarray:
    """Open fingers around the lever from above and in front, push it down, pull."""
    latch, _ = scene.body("Door_latch")
    _, door = scene.body("Door_door")
    along, pull = door[:, 0], -door[:, 1]  # from the latch to the tip of its lever, and how the door opens
    angle, opening = (float(scene.data.joint(f"Door_{name}").qpos[0]) for name in ("latch_joint", "hinge"))
    # The hand is wider than its fingers reach, so it leans back from the door to surround the lever.
    lean = 0.8
    pointing = np.cos(lean) * _DOWN - np.sin(lean) * pull
    fingers = np.cos(lean) * pull + np.sin(lean) * _DOWN
    fingers = fingers if fingers @ scene.rotation[:, 0] > 0 else -fingers
    turn = scene.turn(fingers, pointing)

    def lever(at: float) -> np.ndarray:
        """The place to hold the lever, near its tip, when it is turned down by ``at`` radians."""
        return latch + 0.1 * pull + 0.12 * (np.cos(at) * along + np.sin(at) * _DOWN)

    away = scene.hand - lever(angle)
    before, across, beside = -float(away @ pointing), float(away @ fingers), float(away @ along)
    turned = angle > 0.3 or opening > 0.03  # by the hand: left alone it springs back
    if before > 0.04 or abs(beside) > 0.07 or abs(across) > (0.08 if turned else 0.02):
        wrong = max(0.0, float(np.hypot(across, beside)) - 0.01) + 0.05 * max(0.0, float(np.linalg.norm(turn)) - 0.15)
        return scene.move(lever(angle) - min(0.09, 3 * wrong) * pointing, turn, _OPEN)
    if angle < 1.2 and opening < 0.03:  # the bolt is free from about 1.15 rad
        return scene.move(lever(angle + 0.4), turn, _OPEN)
    return scene.move(scene.hand + 0.025 * pull, turn, _OPEN)  # hooked behind the lever; nowhere else to push


def _nut_round(scene: _Scene) -> np.ndarray:
    """Take the nut by its handle, up, turn the handle towards the robot, over the peg, down."""
    nut, rotation = scene.body("RoundNut_main")
    peg, _ = scene.body("peg2")
    handle = nut + 0.074 * rotation[:, 0]
    apart = (peg - nut)[:2]
    aside = float(np.linalg.norm(apart))
    if _near(scene, handle, 0.03, 0.02) and 0.025 < scene.width < 0.04:  # the handle is 32 mm wide
        spin = _spins(rotation, scene.rotation[:, 0])[0]
        turn = scene.turn(scene.grip(_around(scene.rotation[:, 0], np.clip(spin, -0.5, 0.5)), 2 * np.pi))
        lever = scene.hand[:2] - nut[:2]
        swing = _around(np.array([*lever, 0.0]), np.clip(spin, -0.3, 0.3))[:2] - lever
        if aside < (0.006 if nut[2] > 0.955 else 0.02):  # over the peg, or on it already
            return scene.move(scene.hand + [*apart, -0.1], scene.level(), _CLOSE, gain=0.7)
        free = np.clip((nut[2] - 0.965) / 0.02, 0, 1)  # up first, then across; the peg ends at 0.95
        return scene.move(scene.hand + [*(free * apart + swing), 1.0 - nut[2]], turn, _CLOSE, gain=0.7)
    sides = (rotation[:, 1], -rotation[:, 1])
    side = min(sides, key=lambda side: _spins(rotation, side)[1] + 0.3 * float(side @ scene.rotation[:, 0] < 0))
    turn = scene.turn(scene.grip(side, 2 * np.pi))
    target = handle + [0, 0, 0.004]  # the fingertips reach 12 mm further
    if _near(scene, target, 0.012, 0.012) and np.linalg.norm(turn) < 0.2:
        return scene.move(target, turn, _CLOSE)
    return scene.move(_funnel(scene, target, turn, 0.08), turn, _OPEN)


def _spins(nut: np.ndarray, fingers: np.ndarray) -> tuple[float, float]:
    """How far to spin a held nut until its handle no longer points away from the robot, and what that costs.

    The arm does not reach beyond the peg. Its wrist turns from 2 rad clockwise to 3.5 rad counterclockwise of
    its pose at the start, in which the finger axis is y.
    """
    heading = float(np.arctan2(nut[1, 0], nut[0, 0]))
    wrist = float(np.arctan2(fingers[1], fingers[0])) - np.pi / 2
    wrist = (wrist + 2.3) % (2 * np.pi) - 2.3
    goals = (heading,) if abs(heading) > 2.4 else (2.5, -2.5)

    def cost(spin: float) -> float:
        return abs(spin) + abs(wrist + spin - 0.8) + 10 * max(0.0, abs(wrist + spin - 0.8) - 2.6)

    spin = min((goal - heading for goal in goals), key=cost)
    return spin, cost(spin) + abs(wrist)


def _around(vector: np.ndarray, angle: float) -> np.ndarray:
    """A vector turned about the vertical."""
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.array([cosine * vector[0] - sine * vector[1], sine * vector[0] + cosine * vector[1], 0.0])


def _can(scene: _Scene) -> np.ndarray:
    """Take the can, over the rim of the bins, down, open."""
    can, _ = scene.body("Can_main")
    floor = scene.task.target_bin_placements[scene.task.object_to_id["can"]]
    rim = floor[2] + 0.2
    apart = (floor - can)[:2] - [0.03, 0.03]  # short of the middle, which is almost out of reach
    aside = float(np.linalg.norm(apart))
    if aside < 0.07 and can[2] < floor[2] + 0.13:  # in its bin and low: let it go, then clear off
        return scene.move(scene.hand + [0, 0, 0.1 * (scene.width > 0.06)], scene.level(), _OPEN)
    if _near(scene, can, 0.03, 0.03) and 0.04 < scene.width < 0.055:  # the can is 50 mm wide
        if aside < (0.03 if can[2] > rim - 0.02 else 0.07):
            return scene.move(scene.hand + [0, 0, -0.1], scene.level(), _CLOSE)
        free = np.clip((can[2] - rim + 0.03) / 0.02, 0, 1)  # up first, then across
        return scene.move(scene.hand + [*(free * apart), rim - can[2]], scene.level(), _CLOSE)
    if _near(scene, can, 0.012, 0.02):
        return scene.move(can, scene.level(), _CLOSE)
    return scene.move(_funnel(scene, can, scene.level(), 0.1), scene.level(), _OPEN)


EXPERTS: dict[str, Callable[[_Scene], np.ndarray]] = {
    "Lift": _lift,
    "Stack": _stack,
    "Door": _door,
    "NutAssemblyRound": _nut_round,
    "PickPlaceCan": _can,
}
"""Task to expert: a function from the scene to an action."""
