"""Table tennis with a Franka Panda: return balls that a machine serves over the net.

The kind of task on which "FASTER: Rethinking Real-Time Flow VLAs" (arXiv 2603.19199) measures what reaction time is
worth: nothing is known of a serve before the ball leaves, and 0.6 s later it is there. The arm is robosuite's model of
the Panda with the limits of the real one; the ball obeys :mod:`.ball_flight`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from gymnasium import spaces

from ..filmed import Filmed
from ..interface import Component, Interface
from .ball_flight import RADIUS, Ball, Surface, aim

CONTROL_HZ = 30  # the paper's robot: a tick of 33.3 ms
SUBSTEPS = 16  # physics steps in one control tick
TICK_S = 1 / CONTROL_HZ
STEP_S = TICK_S / SUBSTEPS  # 2.08 ms

# World frame: the origin is on the floor below the net; x points from the robot to the machine, y to the robot's left,
# z up. Table and net by the Laws of Table Tennis (ITTF), 2.01 and 2.02.
LENGTH, WIDTH, HEIGHT = 2.74, 1.525, 0.76  # m
NET_HEIGHT, NET_OVERHANG = 0.1525, 0.1525  # m, above the table and beyond its sides
# 2.01.03: a ball dropped from 30 cm comes back to about 23 cm; here, against the air too, to 23.7. Friction and rubber
# are within what the literature on table tennis robots measures (0.25; restitution of a paddle 0.78 to 0.9).
TABLE = Surface(restitution=0.92, friction=0.25)
RUBBER = Surface(restitution=0.81, friction=0.8)

MUZZLE = np.array([1.75, 0.0, 1.08])  # m, where the ball waits
SERVE_TICKS = (6, 23)  # how long it waits
BOUNCE_X, BOUNCE_Y = (-1.0, -0.5), (-0.4, 0.4)  # m, where a serve meets the table
BOUNCE_S = (0.34, 0.46)  # and how long after it left
TOPSPIN, SIDESPIN = (-120.0, 120.0), (-60.0, 60.0)  # rad/s; negative topspin is backspin
NET_MARGIN = 0.02  # m, by which a serve clears the net
REACH_Y, REACH_Z = (-0.42, 0.36), (0.90, 1.25)  # m, the window in which it crosses the plane HIT_X

CONTACT, OVER_NET, ON_TABLE = 0.25, 0.5, 1.0  # the score of a return by how far it comes
BEHIND = -2.6  # m, a ball that is there is lost
RALLY_S = 3.0  # after the serve the rally is over, whatever the ball does

# Where the arm stands and how its joints are at the start. Stance and posture were searched for together: a stroke
# at 1 m/s along the table takes half of the joints' speed limits here, and more than all of them with the table in
# front of the arm.
BASE = (-1.80, 0.36, 1.15)  # m
HOME = np.array([-1.203, 0.936, -0.219, -1.709, 0.446, 1.738, -1.013])  # rad
MAX_SPEED = np.array([2.175] * 4 + [2.61] * 3)  # rad/s, as MAX_TORQUE from Franka's data sheet of the arm
MAX_TORQUE = np.array([87.0] * 4 + [12.0] * 3)  # N·m
SERVO = np.array([150.0, 150.0, 90.0, 90.0, 25.0, 18.0, 8.0])  # N·m per rad/s of velocity error
HANDLE = 0.105  # m, from the flange to the edge of the blade
BLADE_RADIUS, BLADE_HALF = 0.08, 0.007  # m, the blade is a disc; half its thickness

# How the expert plays.
HIT_X = -1.52  # m, the plane behind the table in which it meets the ball
RETURN_TO, RETURN_S = np.array([0.85, 0.0, HEIGHT + RADIUS]), 0.66  # m, s: where the ball is to land, and when
TURN_COST = 0.02  # m, of turning the paddle in the stroke, beside moving it
SERVO_LAG_S = 0.015  # about how far the joints run behind the commanded velocity
SETTLE_S = 0.05  # before the hit, from when on the last millimetres are not chased any more
FOLLOW_S = 0.08  # after the hit, until when the stroke goes on
HOMING = 3.0  # 1/s, of the pursuit of HOME

_LEVEL = HEIGHT + RADIUS  # m, of a ball that touches the table
_TOUCH = RADIUS + BLADE_HALF  # m, from the middle of the blade to a ball that touches it
_UP = np.array([0.0, 0.0, 1.0])
_WAITING = Ball(MUZZLE, np.zeros(3), np.zeros(3))
_FASTEST_BLADE = 8.0  # m/s, more than the joints can do together

_SCENE = f"""
<mujoco model="table_tennis">
  <compiler angle="radian"/>
  <option timestep="{STEP_S!r}" integrator="implicitfast"/>
  <visual>
    <headlight ambient=".35 .35 .35" diffuse=".35 .35 .35" specular="0 0 0"/>
    <map znear=".02"/>
  </visual>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1=".93 .95 .97" rgb2=".70 .78 .86" width="64" height="64"/>
    <texture name="floor" type="2d" builtin="checker" rgb1=".56 .33 .27" rgb2=".53 .31 .25" width="128" height="128"/>
    <material name="floor" texture="floor" texrepeat="12 12" specular="0" reflectance="0"/>
    <material name="table" rgba=".05 .24 .42 1" specular=".1"/>
    <material name="line" rgba=".95 .95 .95 1" specular="0"/>
    <material name="steel" rgba=".30 .33 .37 1" specular=".3" shininess=".4"/>
    <material name="net" rgba=".92 .94 .96 .35" specular="0"/>
    <material name="ball" rgba="1 .50 .05 1" specular=".3" emission=".25"/>
    <material name="red" rgba=".78 .08 .10 1" specular=".1"/>
    <material name="black" rgba=".08 .08 .09 1" specular=".1"/>
    <material name="wood" rgba=".76 .58 .36 1" specular=".1"/>
  </asset>
  <default>
    <geom contype="0" conaffinity="0"/>
    <default class="solid"><geom contype="0" conaffinity="1"/></default>
  </default>
  <worldbody>
    <light directional="true" dir=".3 .5 -.8" diffuse=".5 .5 .5" specular=".3 .3 .3"/>
    <camera name="view" pos="-2.9 -2.6 2.1" xyaxes=".687 -.726 0 .24 .227 .944" fovy="45"/>
    <camera name="eye" pos="-2.1 -1.0 1.65" xyaxes=".625 -.781 0 .291 .232 .928" fovy="65"/>
    <geom name="floor" type="plane" size="5 5 .1" material="floor"/>
    <geom name="table" class="solid" type="box" pos="0 0 {HEIGHT - 0.0125}" size="{LENGTH / 2} {WIDTH / 2} .0125"
          material="table"/>
    <geom type="box" pos="0 {WIDTH / 2 - 0.01} {HEIGHT}" size="{LENGTH / 2} .01 .001" material="line"/>
    <geom type="box" pos="0 {0.01 - WIDTH / 2} {HEIGHT}" size="{LENGTH / 2} .01 .001" material="line"/>
    <geom type="box" pos="{LENGTH / 2 - 0.01} 0 {HEIGHT}" size=".01 {WIDTH / 2} .001" material="line"/>
    <geom type="box" pos="{0.01 - LENGTH / 2} 0 {HEIGHT}" size=".01 {WIDTH / 2} .001" material="line"/>
    <geom type="box" pos="0 0 {HEIGHT}" size="{LENGTH / 2} .0015 .001" material="line"/>
    <geom type="box" pos="-.9 .55 .37" size=".03 .03 .37" material="steel"/>
    <geom type="box" pos="-.9 -.55 .37" size=".03 .03 .37" material="steel"/>
    <geom type="box" pos=".9 .55 .37" size=".03 .03 .37" material="steel"/>
    <geom type="box" pos=".9 -.55 .37" size=".03 .03 .37" material="steel"/>
    <geom name="net" type="box" pos="0 0 {HEIGHT + NET_HEIGHT / 2}"
          size=".002 {WIDTH / 2 + NET_OVERHANG} {NET_HEIGHT / 2}" material="net"/>
    <geom type="box" pos="0 0 {HEIGHT + NET_HEIGHT - 0.006}" size=".003 {WIDTH / 2 + NET_OVERHANG} .006"
          material="line"/>
    <geom type="cylinder" pos="0 {WIDTH / 2 + NET_OVERHANG} {HEIGHT + NET_HEIGHT / 2 - 0.02}" size=".01 .095"
          material="steel"/>
    <geom type="cylinder" pos="0 {-WIDTH / 2 - NET_OVERHANG} {HEIGHT + NET_HEIGHT / 2 - 0.02}" size=".01 .095"
          material="steel"/>
    <geom name="bracket" class="solid" type="box" pos="{BASE[0] - 0.06} {BASE[1] + 0.05} {BASE[2] - 0.015}"
          size=".12 .12 .015" material="steel"/>
    <geom name="column" class="solid" type="cylinder" pos="{BASE[0] - 0.12} {BASE[1] + 0.11} {BASE[2] / 2 - 0.015}"
          size=".05 {BASE[2] / 2 - 0.015}" material="steel"/>
    <geom type="cylinder" pos="{MUZZLE[0] + 0.18} 0 .45" size=".03 .45" material="steel"/>
    <geom type="box" pos="{MUZZLE[0] + 0.18} 0 {MUZZLE[2] - 0.02}" size=".13 .11 .16" rgba=".85 .86 .88 1"/>
    <geom type="cylinder" fromto="{MUZZLE[0] + 0.06} 0 {MUZZLE[2]} {MUZZLE[0] - 0.015} 0 {MUZZLE[2]}" size=".035"
          material="black"/>
    <body name="ball" mocap="true"><geom type="sphere" size="{RADIUS}" material="ball"/></body>
  </worldbody>
</mujoco>
"""


class TableTennis(Filmed):
    """Return a served table tennis ball over the net, with a paddle in the hand of a Panda arm.

    ## Description
    A machine beyond the far end of a table serves one ball, after a random wait, over the net to the robot's half.
    Place, speed and spin vary. The ball bounces there and reaches the robot's end of the table 0.45 to 0.8 s
    after it left the machine; the arm is to hit it back onto the machine's half. Ball, table and net have the
    sizes of the Laws of Table Tennis. The ball flies with drag and lift and bounces with friction
    (:mod:`.ball_flight`), from the table and from both sides of the paddle; the edge of the paddle and the links of the
    arm do not stop it, and its 2.7 g do not move the arm. The paddle and the links stop at the table and at the stand.

    ## Action
    `Box(float32, (7,))`: joint velocities, held for one control tick of 1/30 s. The servos clip what lies outside,
    carry the weight of the arm, and follow with a lag of about 15 ms and the real arm's torques, 87 and 12 N·m.
    Joint velocities because the stroke is one: a smooth function of the ball and the posture, without an inverse
    kinematics in between whose null space a policy would neither see nor command.

    | # | action | min | max | unit |
    |---|---|---|---|---|
    | 0-3 | absolute velocity of joints 1 to 4 | -2.175 | 2.175 | rad/s |
    | 4-6 | absolute velocity of joints 5 to 7 | -2.61 | 2.61 | rad/s |

    ## Observation
    `Dict` of `agent_pos` float32 [23], `environment_state` float32 [10] and, with `pixels=S`, `pixels` uint8
    [S, S, 3] (RGB, top row first) from a camera behind the arm, on its right. World frame: the origin is on the floor
    below the net, x points to the machine, y to the robot's left, z up. The bounds are never reached.

    | key | # | observation | min | max | unit |
    |---|---|---|---|---|---|
    | agent_pos | 0-6 | joint positions | -4 | 4 | rad |
    | | 7-13 | joint velocities | -10 | 10 | rad/s |
    | | 14-16 | centre of the paddle's blade | -4 | 4 | m |
    | | 17-19 | unit normal of its red side | -1.1 | 1.1 | |
    | | 20-22 | velocity of its centre | -10 | 10 | m/s |
    | environment_state | 0-2 | position of the ball | -15 | 15 | m |
    | | 3-5 | velocity of the ball | -30 | 30 | m/s |
    | | 6-8 | spin of the ball | -2000 | 2000 | rad/s |
    | | 9 | served: 1 from the moment when the ball leaves, else 0 | 0 | 1 | |

    ## Reward
    0 until the rally is over, then the score, so the return is the score:

    | score | the ball |
    |---|---|
    | 0 | was not hit, or was hit before it bounced |
    | 0.25 | was hit, and ended in the net, on the robot's half or beside the table |
    | 0.5 | was hit and crossed the plane of the net, above it or outside of its posts |
    | 1 | did so, and its next bounce is on the machine's half |

    `info["success"]` is true at the end of an episode with score 1; the last `info` also holds `score` and
    `metrics = {"contact": 0 or 1, "over_net": 0 or 1}`.

    ## Start
    The arm rests at HOME, the blade 0.3 m behind the table's end; the ball is in the machine's muzzle. It leaves after
    0.2 to 0.77 s, on any physics step, and lands 0.34 to 0.46 s later on a point of the robot's half 0.5 to 1 m from
    the net and up to 0.4 m from the centre line, with topspin or backspin up to 120 and sidespin up to 60 rad/s; all
    uniform from the seed. Serves that touch the net or leave the arm's reach are drawn again.

    ## End
    `terminated` when the rally is over: the ball lands on the machine's half, touches the net, bounces twice on the
    robot's half, is hit before it bounced, reaches the floor or is 0.8 m behind the robot's base; at the latest 3 s
    after the serve. With the expert after 41 to 64 ticks. Never `truncated`.

    ## Difficulty
    The expert returns 0.995 of the serves in lockstep. Reaction time decides: with every action applied d ticks late,
    or with the arm idle for the first r ticks after the serve, it scores (200 episodes each, standard error 0.035 in
    the middle):

    | d | 0-1 | 2 | 3 | 4 | 5 | 6 | 8 |
    |---|---|---|---|---|---|---|---|
    | score | 1.00 | 0.98 | 0.77 | 0.37 | 0.23 | 0.14 | 0.08 |

    | r | 0-4 | 6 | 8 | 10 | 12 | 14 | 18 |
    |---|---|---|---|---|---|---|---|
    | score | 1.00 | 0.96 | 0.90 | 0.78 | 0.62 | 0.44 | 0.13 |

    ## Event
    The serve: in the step during which the ball leaves, `info["event"]` is `{"name": "serve", "time_s": t}`, t being
    the simulation time since reset. It falls on a physics step (1/480 s), not on a tick.

    Args:
        pixels: Side S of the square camera image in the observation, 8 to 960; `None` for no image. Only
            images (and `render`) need OpenGL.
        render_mode: `"rgb_array"` or `None`. `render` returns uint8 [480, 640, 3] at 30 frames per second.

    Raises:
        ValueError: for another `pixels` or `render_mode`; from `step`, for an action that is not seven finite
            numbers.
        RuntimeError: from `step`, when no episode is running.
    """

    metadata = {**Filmed.metadata, "render_fps": CONTROL_HZ}
    interface = Interface(
        control_hz=CONTROL_HZ,
        action=(Component("joint_velocity", 7, "velocity", "absolute", frame="joint", unit="rad/s"),),
        observation={
            "agent_pos": (
                Component("joint_position", 7, "position", frame="joint", unit="rad"),
                Component("joint_velocity", 7, "velocity", frame="joint", unit="rad/s"),
                Component("paddle_position", 3, "position", frame="world", unit="m"),
                Component("paddle_normal", 3, "other", frame="world"),
                Component("paddle_velocity", 3, "velocity", frame="world", unit="m/s"),
            ),
            "environment_state": (
                Component("ball_position", 3, "position", frame="world", unit="m"),
                Component("ball_velocity", 3, "velocity", frame="world", unit="m/s"),
                Component("ball_spin", 3, "velocity", frame="world", unit="rad/s"),
                Component("served", 1),
            ),
        },
        episode_ticks=SERVE_TICKS[1] + int(RALLY_S * CONTROL_HZ),
    )

    def __init__(self, pixels: int | None = None, render_mode: str | None = None) -> None:
        super().__init__(pixels, render_mode)

        self.action_space = _box(-MAX_SPEED, MAX_SPEED)
        arm = np.repeat([4, 10, 4, 1.1, 10], [7, 7, 3, 3, 3])
        ball = np.repeat([15, 30, 2000, 1], [3, 3, 3, 1])
        keys: dict[str, spaces.Space] = {
            "agent_pos": _box(-arm, arm),
            "environment_state": _box(np.append(-ball[:-1], 0), ball),
        }
        self._observe_with(keys)

        self.model = copy(_compile())
        self.data = mujoco.MjData(self.model)
        self._blade = self.model.site("blade").id
        self._postures = mujoco.MjData(self.model)  # where the expert tries out postures
        self._now = self._serve = 0  # physics steps since reset
        self._ball = self._served_ball = _WAITING
        self._bounced = self._touched = self._over_net = False
        self._score: float | None = 0.0  # None while a rally is on
        self._stroke: _Stroke | None = None  # the expert's; the ball's flight decides it, so it holds to the end

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Put the arm back and draw a serve and its moment from ``seed``; ``options`` are not used."""
        super().reset(seed=seed)
        draw = self.np_random
        self._serve = int(draw.integers(SUBSTEPS * SERVE_TICKS[0], SUBSTEPS * SERVE_TICKS[1], endpoint=True))
        self._served_ball = _draw_serve(draw)
        self._now = 0
        self._ball = _WAITING
        self._bounced = self._touched = self._over_net = False
        self._score = None
        self._stroke = None

        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = HOME
        mujoco.mj_forward(self.model, self.data)
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Hold the joint velocity command ``action`` for one tick, or until the rally is over."""
        if self._score is not None:
            raise RuntimeError("no episode is running: call reset() first")
        command = np.asarray(action, np.float64)
        if command.shape != (7,) or not np.isfinite(command).all():
            raise ValueError(f"action={action!r}, expected seven finite joint velocities in rad/s")
        self.data.ctrl[:] = command

        info: dict[str, Any] = {"success": False}
        tick_end = self._now + SUBSTEPS
        if self._now < self._serve <= tick_end:
            self._advance(self._serve)
            self._ball = self._served_ball
            info["event"] = {"name": "serve", "time_s": self._serve * STEP_S}
        self._advance(tick_end)
        if self._score is None and self._now >= self._serve + RALLY_S / STEP_S:
            self._end()

        reward = 0.0
        if self._score is not None:
            reward = self._score
            metrics = {"contact": float(self._touched), "over_net": float(self._over_net)}
            info.update(success=reward == 1.0, score=reward, metrics=metrics)
        return self._observation(), reward, self._score is not None, False, info

    def expert(self) -> Callable[[], np.ndarray]:
        """The demonstrator: meets the ball behind the table, and sends it to the middle of the other half.

        Returns a function without arguments that reads the simulator's present state, so it is right after any action,
        and gives an action, float32 [7], inside the space. It predicts the ball with the laws that move it, inverts the
        law of impact for the paddle's normal and speed, finds joint positions and velocities for that moment, and
        moves there on the smoothest path from where the arm is now; before the serve and after the hit, to HOME.
        """

        def play() -> np.ndarray:
            stroke = self._plan_stroke() if self._served else None
            left_s = stroke.time_s - self._now * STEP_S if stroke else 0.0
            if stroke is None or left_s < -FOLLOW_S:
                command = HOMING * (HOME - self.data.qpos)
            else:
                command = stroke.command(self.data.qpos, self.data.qvel, left_s)
            return command.clip(-MAX_SPEED, MAX_SPEED).astype(np.float32)

        return play

    @property
    def _served(self) -> bool:
        return self._now >= self._serve

    def _advance(self, step: int) -> None:
        """Run arm and ball to ``step``, counted from reset, or to the end of the rally."""
        while self._now < step and self._score is None:
            steps = step - self._now
            served = self._served
            apart = self._ball.position - self.data.site_xpos[self._blade]
            closing = (float(np.linalg.norm(self._ball.velocity)) + _FASTEST_BLADE) * steps * STEP_S
            if not served or np.linalg.norm(apart) > BLADE_RADIUS + _TOUCH + closing:
                self._move_arm(steps)
                if served:
                    self._fly(steps * STEP_S)
            else:
                self._step_beside_blade()

    def _move_arm(self, steps: int) -> None:
        mujoco.mj_step(self.model, self.data, nstep=steps)
        mujoco.mj_kinematics(self.model, self.data)  # mj_step leaves the poses one physics step behind qpos
        self._now += steps

    def _step_beside_blade(self) -> None:
        """One physics step in which ball and blade may meet: at most once, and at its own moment."""
        blade, normal = self._blade_pose()
        before = self._ball.position - blade
        self._move_arm(1)
        blade, normal_after = self._blade_pose()
        after = self._ball.fly(STEP_S).position - blade
        side = 1.0 if before @ normal > 0 else -1.0  # the red one or the black one
        gap, gap_after = side * (before @ normal) - _TOUCH, side * (after @ normal_after) - _TOUCH
        meets = gap > 0 >= gap_after
        share = gap / (gap - gap_after) if meets else 1.0
        self._fly(share * STEP_S)
        if meets and self._score is None:
            place = before + share * (after - before)
            place -= (place @ normal_after) * normal_after
            if place @ place <= BLADE_RADIUS**2:
                self._hit(side * normal_after, place)
            self._fly((1 - share) * STEP_S)

    def _hit(self, normal: np.ndarray, place: np.ndarray) -> None:
        """The ball meets the blade at ``place``, from its centre; before the ball has bounced that ends the rally."""
        move, turn = self._jacobian(self.data)
        velocity = move @ self.data.qvel + np.cross(turn @ self.data.qvel, place)
        self._ball = self._ball.bounce(normal, RUBBER, velocity)
        if self._bounced:
            self._touched = True
        else:
            self._end()

    def _fly(self, time_s: float) -> None:
        """Move the ball on, off the table and past the net, until something ends the rally."""
        while time_s > 0 and self._score is None:
            level = _LEVEL if self._ball.position[2] >= _LEVEL else RADIUS  # what is below: the table, or the floor
            fall_s = self._ball.time_to(2, level, time_s)
            net_s = self._ball.time_to(0, 0.0, time_s)
            if fall_s is not None and (net_s is None or fall_s < net_s):
                self._ball = self._ball.fly(fall_s).at(2, level)
                self._come_down(level)
                time_s -= fall_s
            elif net_s is not None:
                self._ball = self._ball.fly(net_s).at(0, 0.0)
                self._meet_net()
                time_s -= net_s
            else:
                self._ball = self._ball.fly(time_s)
                break
        if self._ball.position[0] < BEHIND:
            self._end()

    def _come_down(self, level: float) -> None:
        """The ball has fallen to the level of the floor, or of the table, where it bounces if the table is there."""
        x, y, _ = self._ball.position
        if level == RADIUS:
            self._end()
        elif abs(x) <= LENGTH / 2 and abs(y) <= WIDTH / 2:
            self._ball = self._ball.bounce(_UP, TABLE)
            if self._bounced:
                self._end(on_table=self._touched and x > 0)
            self._bounced = True

    def _meet_net(self) -> None:
        """The ball is in the plane of the net, which ends the rally if the net is there."""
        _, y, z = self._ball.position
        beside = abs(y) > WIDTH / 2 + NET_OVERHANG + RADIUS
        if beside or not HEIGHT - RADIUS < z < HEIGHT + NET_HEIGHT + RADIUS:
            self._over_net = self._touched and bool(self._ball.velocity[0] > 0) and bool(z > HEIGHT)
        else:
            self._end()

    def _end(self, on_table: bool = False) -> None:
        """The rally is over; what has happened decides the score."""
        if self._score is None:
            self._score = ON_TABLE if on_table else OVER_NET if self._over_net else CONTACT if self._touched else 0.0

    def _blade_pose(self) -> tuple[np.ndarray, np.ndarray]:
        """The centre of the paddle's disc, and the unit normal of its red side; world frame."""
        return self.data.site_xpos[self._blade].copy(), self.data.site_xmat[self._blade, ::3].copy()

    def _jacobian(self, data: mujoco.MjData) -> tuple[np.ndarray, np.ndarray]:
        """What a unit of joint velocity does to the paddle: velocity [3, 7] of its centre, and turning [3, 7]."""
        move, turn = np.empty((3, 7)), np.empty((3, 7))
        mujoco.mj_comPos(self.model, data)
        mujoco.mj_jacSite(self.model, data, move, turn, self._blade)
        return move, turn

    def _observation(self) -> dict[str, np.ndarray]:
        move, _ = self._jacobian(self.data)
        speeds, ball = self.data.qvel, self._ball
        arm = np.concatenate([self.data.qpos, speeds, *self._blade_pose(), move @ speeds], dtype=np.float32)
        world = np.concatenate([ball.position, ball.velocity, ball.spin, [self._served]], dtype=np.float32)
        observation = {"agent_pos": arm, "environment_state": world}
        return self._seen(observation)

    def _pose(self) -> None:
        self.data.mocap_pos[0] = self._ball.position
        super()._pose()

    def _plan_stroke(self) -> _Stroke | None:
        """The stroke that returns the ball as it flies now; ``None`` when it is too late."""
        if self._stroke is None and not self._touched:
            ball, wait_s = self._ball, 0.0
            if not self._bounced:
                ball, wait_s = _rebound(ball)
            cross_s = ball.time_to(0, HIT_X, 1.0)
            if cross_s is not None:
                ball = ball.fly(cross_s)
                normal, speed = _return(ball)
                joints = self._posture(ball.position - _TOUCH * normal, normal)
                speeds = self._speeds(joints, speed * normal)
                self._stroke = _Stroke(self._now * STEP_S + wait_s + cross_s, joints, speeds)
        return self._stroke

    def _posture(self, place: np.ndarray, normal: np.ndarray) -> np.ndarray:
        """Joint positions [7] with the blade's centre at ``place`` and its red side facing along ``normal``.

        Newton's method for these five numbers; the two that the arm has left over keep it near HOME.
        """
        low, high = self.model.jnt_range.T
        joints = HOME
        for _ in range(12):
            move, turn = self._jacobian_at(joints)
            facing = self._postures.site_xmat[self._blade, ::3]
            error = np.concatenate([place - self._postures.site_xpos[self._blade], np.cross(facing, normal)])
            task = np.concatenate([move, turn - np.outer(facing, facing @ turn)])
            home = HOME - joints
            joints = joints + home + task.T @ np.linalg.solve(task @ task.T + 1e-5 * np.eye(6), error - task @ home)
            joints = joints.clip(low, high)
        return joints

    def _speeds(self, joints: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Joint velocities [7] that move the blade's centre with ``velocity``, or as fast as the joints allow.

        The smallest in units of the limits, with a price on turning the blade while it hits.
        """
        move, turn = self._jacobian_at(joints)
        task = np.concatenate([move, TURN_COST * turn]) * MAX_SPEED
        wish = np.concatenate([velocity, np.zeros(3)])
        shares = task.T @ np.linalg.solve(task @ task.T + 1e-6 * np.eye(6), wish)
        return MAX_SPEED * shares / max(1.0, np.abs(shares).max())

    def _jacobian_at(self, joints: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._postures.qpos[:] = joints
        mujoco.mj_kinematics(self.model, self._postures)
        return self._jacobian(self._postures)


@dataclass(frozen=True)
class _Stroke:
    """Where the joints are to be at ``time_s`` since reset, in rad, and how fast, in rad/s."""

    time_s: float
    joints: np.ndarray
    speeds: np.ndarray

    def command(self, joints: np.ndarray, speeds: np.ndarray, left_s: float) -> np.ndarray:
        """The joint velocities for this tick, ``left_s`` before the stroke: the way to it, a servo lag ahead.

        The way is the cubic from here and now to the stroke. It has the least mean square acceleration, so whoever
        plans it anew further on finds the rest of the same one, and there is nothing to remember between ticks. Close
        to the hit and after it the goal runs ahead on the line of the stroke; the cubic would chase the last
        millimetres at any speed.
        """
        span_s = max(left_s, SETTLE_S)
        goal = self.joints + self.speeds * (span_s - left_s)

        def way(at_s: float) -> np.ndarray:
            if at_s >= span_s:
                return goal + self.speeds * (at_s - span_s)
            s = at_s / span_s
            bend = (1 - s) * speeds - s * self.speeds
            return joints + s * s * (3 - 2 * s) * (goal - joints) + span_s * s * (1 - s) * bend

        return (way(SERVO_LAG_S + TICK_S) - way(SERVO_LAG_S)) / TICK_S


def _return(ball: Ball) -> tuple[np.ndarray, float]:
    """The blade's unit normal and its speed along it, in m/s, that send ``ball`` on its way to RETURN_TO.

    Inverts the law of impact by fixed-point iteration: normal and speed of approach follow from the wanted change of
    velocity less what friction does to it. Around that, the flight is aimed with the spin that the impact leaves.
    """
    friction, spin = np.zeros(3), ball.spin
    for _ in range(3):
        wanted = aim(ball.position, spin, RETURN_TO, RETURN_S).velocity
        for _ in range(12):
            change = wanted - ball.velocity - friction
            impulse = float(np.linalg.norm(change))
            normal = change / impulse
            speed = impulse / (1 + RUBBER.restitution) + float(ball.velocity @ normal)
            after = ball.bounce(normal, RUBBER, speed * normal)
            friction = after.velocity - ball.velocity - impulse * normal
        spin = after.spin
    return normal, speed


def _draw_serve(draw: np.random.Generator) -> Ball:
    """A ball at the muzzle that clears the net, bounces on the robot's half and comes within the arm's reach."""
    while True:
        # A ball that flies to -x and turns about -y moves backward at its lowest point: that is topspin.
        spin = np.array([0.0, -draw.uniform(*TOPSPIN), draw.uniform(*SIDESPIN)])
        place = np.array([draw.uniform(*BOUNCE_X), draw.uniform(*BOUNCE_Y), _LEVEL])
        ball = aim(MUZZLE, spin, place, draw.uniform(*BOUNCE_S))
        net_s = ball.time_to(0, 0.0, 1.0)
        if net_s is None or ball.fly(net_s).position[2] < HEIGHT + NET_HEIGHT + RADIUS + NET_MARGIN:
            continue
        after, _ = _rebound(ball)
        cross_s = after.time_to(0, HIT_X, 1.0)
        if cross_s is None:
            continue
        _, y, z = after.fly(cross_s).position
        if REACH_Y[0] < y < REACH_Y[1] and REACH_Z[0] < z < REACH_Z[1]:
            return ball


def _rebound(ball: Ball) -> tuple[Ball, float]:
    """The ball right after it has come down on the table, and when that is, in s from now."""
    fall_s = ball.time_to(2, _LEVEL, RALLY_S)
    assert fall_s is not None, f"{ball} does not come down"
    return ball.fly(fall_s).at(2, _LEVEL).bounce(_UP, TABLE), fall_s


@lru_cache(maxsize=1)
def _compile() -> mujoco.MjModel:
    """The scene with the arm and its paddle. It takes half a second, so environments copy it; never change it."""
    robosuite = importlib.util.find_spec("robosuite")  # where its files are; importing it takes seconds
    assert robosuite is not None and robosuite.origin is not None, "robosuite is a dependency of this package"
    arm = mujoco.MjSpec.from_file(str(Path(robosuite.origin).parent / "models/assets/robots/panda/robot.xml"))
    for geom in arm.geoms:
        if geom.contype:  # the coarse shapes, which are not drawn; they meet the table and not each other
            geom.conaffinity, geom.group = 0, 3

    hand, centre = arm.body("right_hand"), HANDLE + BLADE_RADIUS
    cylinder, box = mujoco.mjtGeom.mjGEOM_CYLINDER, mujoco.mjtGeom.mjGEOM_BOX
    part: dict[str, Any] = {"contype": 1, "conaffinity": 0, "group": 1}
    hand.add_geom(type=cylinder, fromto=[0, 0, 0, 0, 0, 0.025], size=[0.032, 0, 0], mass=0.1, material="steel", **part)
    handle = [0.011, 0.014, HANDLE / 2]
    hand.add_geom(type=box, pos=[0, 0, HANDLE / 2 + 0.01], size=handle, mass=0.08, material="wood", **part)
    for side, material in ((1, "red"), (-1, "black")):
        ends = [0, 0, centre, side * BLADE_HALF, 0, centre]
        hand.add_geom(type=cylinder, fromto=ends, size=[BLADE_RADIUS, 0, 0], mass=0.045, material=material, **part)
    hand.add_site(name="blade", pos=[0, 0, centre])  # its x axis is the normal of the red side

    scene = mujoco.MjSpec.from_string(_SCENE)  # in radians, as the arm: MuJoCo 3.3 reads both by the scene's unit
    scene.attach(arm, prefix="", frame=scene.worldbody.add_frame(pos=BASE))
    for body in scene.bodies:
        body.gravcomp = 1
    for servo, joint, speed, torque, gain in zip(
        scene.actuators, scene.joints, MAX_SPEED, MAX_TORQUE, SERVO, strict=True
    ):
        servo.gainprm[0], servo.biasprm[2] = gain, -gain
        servo.biastype = mujoco.mjtBias.mjBIAS_AFFINE
        servo.ctrlrange, servo.ctrllimited = [-speed, speed], True
        # The motors carry the weight too: the limit is on the sum.
        joint.actgravcomp, joint.actfrclimited, joint.actfrcrange = True, True, [-torque, torque]
    return scene.compile()


def _box(low: np.ndarray, high: np.ndarray) -> spaces.Box:
    return spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
