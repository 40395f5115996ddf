"""Intercept a ball that is kicked aside in mid-flight: a small world in which reaction time decides.

The task behind the latency study of "FASTER: Rethinking Real-Time Flow VLAs" (arXiv 2603.19199), which plays
table tennis on a robot: nothing can be known about the kick before it happens, and every tick that a policy
needs to answer it is missing at the end. This file is also the example to read before adding a world: the
constants, the scene, the environment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

import mujoco
import numpy as np
from gymnasium import spaces

from ..filmed import Filmed
from ..interface import Component, Interface

CONTROL_HZ = 30
SUBSTEPS = 8  # physics steps in one control tick
STEP_S = 1 / (CONTROL_HZ * SUBSTEPS)  # 4.17 ms
GRAVITY = 9.81  # m/s²

MAX_SPEED = 1.5  # m/s, of each slide
HOME = (0.0, 1.0)  # m, the paddle's y and z at the start, in the middle of its plane x = 0
REACH = 1.0  # m, from home to the ends of each slide

BALL_KG = 0.05
HAND = (2.0, 0.0, 1.0)  # m, where the ball is held before launch
AIM = 0.25  # m, the launch aims at a point of the plane up to this far from home, along y and along z
LAUNCH_TICKS = (6, 23)  # how long the ball is held
FLIGHT_S = (0.8, 1.1)  # from launch to the plane
KICK_AT = (0.25, 0.5)  # share of the flight that has passed when the kick comes
KICK = (0.2, 0.45)  # m, how far the kick moves the point where the ball will cross the plane

FULL, HALF = 0.08, 0.16  # m, the miss distances below which the score is 1 and 0.5
# 1/s, of the expert's pursuit. Together with AIM and the servos' lag it sets how fast skill is lost with delay (see
# Difficulty below): a stiffer pursuit swings at smaller delays.
GAIN = 4.6

# The bodies of paddle and ball stand at the origin, so that qpos reads in world coordinates:
# qpos = (paddle y, paddle z, ball x, ball y, ball z). Nothing collides: the score is a distance in the plane.
_MJCF = f"""
<mujoco model="ball_intercept">
  <option timestep="{STEP_S!r}" gravity="0 0 {-GRAVITY}"><flag contact="disable"/></option>
  <visual>
    <headlight ambient=".35 .35 .35" diffuse=".35 .35 .35" specular="0 0 0"/>
  </visual>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1=".93 .95 .97" rgb2=".70 .78 .86" width="64" height="64"/>
    <texture name="floor" type="2d" builtin="checker" rgb1=".80 .82 .84" rgb2=".72 .75 .78" width="128" height="128"/>
    <material name="floor" texture="floor" texrepeat="8 8" specular="0" reflectance="0"/>
    <material name="steel" rgba=".42 .47 .53 1" specular=".4" shininess=".4"/>
    <material name="paddle" rgba=".12 .38 .72 1" specular=".5" shininess=".5"/>
    <material name="ball" rgba=".95 .45 .10 1" specular=".7" shininess=".7"/>
  </asset>
  <worldbody>
    <light directional="true" dir=".5 .5 -.8" diffuse=".5 .5 .5" specular=".3 .3 .3"/>
    <camera name="view" pos="-2.2 -3.5 2.2" xyaxes=".763 -.647 0 .159 .188 .969" fovy="40"/>
    <camera name="eye" pos="-1.9 0 1.7" xyaxes="0 -1 0 .17 0 .985" fovy="60"/>
    <geom name="floor" type="plane" size="4 4 .1" material="floor"/>
    <geom name="plane" type="box" pos="0 0 1" size=".001 1.1 1" rgba=".3 .55 .9 .1"/>
    <geom name="rail" type="capsule" fromto="-.02 -1.1 .03 -.02 1.1 .03" size=".03" material="steel"/>
    <geom name="stand" type="capsule" fromto="2 0 0 2 0 .93" size=".015" material="steel"/>
    <geom name="hand" type="cylinder" fromto="2 0 .93 2 0 .95" size=".06" material="steel"/>
    <body name="carriage" gravcomp="1">
      <joint name="paddle_y" type="slide" axis="0 1 0" range="{HOME[0] - REACH} {HOME[0] + REACH}" limited="true"/>
      <geom type="box" pos="-.02 0 .05" size=".04 .08 .05" mass=".6" material="steel"/>
      <body name="paddle" gravcomp="1">
        <joint name="paddle_z" type="slide" axis="0 0 1" range="{HOME[1] - REACH} {HOME[1] + REACH}" limited="true"/>
        <geom type="cylinder" size="{FULL} .012" euler="0 90 0" mass=".3" material="paddle"/>
        <geom type="capsule" fromto="-.02 0 0 -.02 0 -1.9" size=".012" mass=".1" material="steel"/>
      </body>
    </body>
    <body name="ball">
      <joint name="ball_x" type="slide" axis="1 0 0"/>
      <joint name="ball_y" type="slide" axis="0 1 0"/>
      <joint name="ball_z" type="slide" axis="0 0 1"/>
      <geom type="sphere" size=".05" mass="{BALL_KG}" material="ball"/>
    </body>
  </worldbody>
  <actuator>
    <velocity joint="paddle_y" kv="40" ctrlrange="{-MAX_SPEED} {MAX_SPEED}" ctrllimited="true"/>
    <velocity joint="paddle_z" kv="16" ctrlrange="{-MAX_SPEED} {MAX_SPEED}" ctrllimited="true"/>
  </actuator>
</mujoco>
"""


@dataclass(frozen=True)
class Throw:
    """What chance decides about an episode.

    ``hold_ticks`` until launch, then ``flight_s`` from the hand to the plane, toward the point ``aim`` [2] (y and z in
    m). The kick comes when the share ``kick_at`` of the flight has passed and moves that point by ``aside`` [2] (m).
    """

    hold_ticks: int
    flight_s: float
    kick_at: float
    aim: np.ndarray
    aside: np.ndarray


class BallIntercept(Filmed):
    """Bring a paddle to where a ball will cross its plane, although the ball is kicked on its way.

    ## Description
    A hand holds a ball 2 m in front of the plane x = 0, in which a paddle runs on two slides (x points to the
    hand, y to the left, z up). After a random wait the ball flies toward a random point of the plane. A
    quarter to half of the way through, a sudden kick moves that point by 0.2 to 0.45 m in a random direction.
    The paddle's slides follow velocity commands with a time constant of 0.025 s.

    ## Action
    `Box(-1.5, 1.5, (2,), float32)`, held for one control tick of 1/30 s. The servos clip what lies outside.

    | # | action | min | max | unit |
    |---|---|---|---|---|
    | 0 | absolute velocity of the paddle along world y | -1.5 | 1.5 | m/s |
    | 1 | absolute velocity of the paddle along world z | -1.5 | 1.5 | m/s |

    ## Observation
    `Dict` of `agent_pos` float32 [4], `environment_state` float32 [7] and, with `pixels=S`, `pixels` uint8
    [S, S, 3] (RGB, top row first) from a camera behind the paddle. World frame; the bounds are never reached.

    | key | # | observation | min | max | unit |
    |---|---|---|---|---|---|
    | agent_pos | 0 | paddle y | -1.2 | 1.2 | m |
    | | 1 | paddle z | -0.2 | 2.2 | m |
    | | 2-3 | velocity of the paddle along y, z | -3 | 3 | m/s |
    | environment_state | 0 | ball x | -0.2 | 2.2 | m |
    | | 1 | ball y | -1.2 | 1.2 | m |
    | | 2 | ball z | 0 | 4 | m |
    | | 3-5 | velocity of the ball along x, y, z | -10 | 10 | m/s |
    | | 6 | launched: 1 from the moment of launch, else 0 | 0 | 1 | |

    ## Reward
    0 until the ball crosses the plane, then the score: 1 if it passes within 0.08 m of the paddle's centre (its
    rim), 0.5 within 0.16 m, else 0. So the return is the score. `info["success"]` is true at the end of an
    episode with score 1; the last `info` also holds `score` and `metrics = {"miss_m": ...}`.

    ## Start
    The paddle rests at (y, z) = (0, 1) m, the ball in the hand at (2, 0, 1) m. Launch after 6 to 23 ticks; aim
    uniform within 0.25 m of (0, 1) along y and z; flight 0.8 to 1.1 s; all uniform from the seed.

    ## End
    `terminated` when the ball reaches the plane, after 30 to 56 ticks. The last tick ends at that moment and
    may be shorter than the others. Never `truncated`.

    ## Difficulty
    The expert scores 1.00 in lockstep. With every action applied d ticks late it scores (200 episodes each):

    | d | 0-3 | 4 | 6 | 8 | 10 | 12 |
    |---|---|---|---|---|---|---|
    | score | 1.00 | 0.80 | 0.41 | 0.28 | 0.20 | 0.14 |

    ## Event
    The kick: in the step during which it happens `info["event"]` is `{"name": "kick", "time_s": t}`, t being
    the simulation time since reset. It falls on a physics step (1/240 s), not on a tick.

    Args:
        pixels: Side S of the square camera image in the observation, 8 to 960; `None` for no image. Only
            images (and `render`) need OpenGL.
        render_mode: `"rgb_array"` or `None`. `render` returns uint8 [480, 640, 3] at 30 frames per second.

    Raises:
        ValueError: for another `pixels` or `render_mode`; from `step`, for an action that is not two finite
            numbers.
        RuntimeError: from `step`, when no episode is running.
    """

    metadata = {**Filmed.metadata, "render_fps": CONTROL_HZ}
    interface = Interface(
        control_hz=CONTROL_HZ,
        action=(Component("paddle_velocity", 2, "velocity", "absolute", frame="world", unit="m/s"),),
        observation={
            "agent_pos": (
                Component("paddle_position", 2, "position", frame="world", unit="m"),
                Component("paddle_velocity", 2, "velocity", frame="world", unit="m/s"),
            ),
            "environment_state": (
                Component("ball_position", 3, "position", frame="world", unit="m"),
                Component("ball_velocity", 3, "velocity", frame="world", unit="m/s"),
                Component("launched", 1),
            ),
        },
        episode_ticks=LAUNCH_TICKS[1] + int(np.ceil(FLIGHT_S[1] * CONTROL_HZ)),
    )

    def __init__(self, pixels: int | None = None, render_mode: str | None = None) -> None:
        super().__init__(pixels, render_mode)

        self.action_space = spaces.Box(-MAX_SPEED, MAX_SPEED, (2,), np.float32)
        keys: dict[str, spaces.Space] = {
            "agent_pos": _box([-1.2, -0.2, -3, -3], [1.2, 2.2, 3, 3]),
            "environment_state": _box([-0.2, -1.2, 0, -10, -10, -10, 0], [2.2, 1.2, 4, 10, 10, 10, 1]),
        }
        self._observe_with(keys)

        self.model = self._scene().compile()
        self.data = mujoco.MjData(self.model)
        # The plan of the episode, in physics steps since reset.
        self._now = self._launch = self._kick = self._crossing = 0
        self._launch_velocity = np.zeros(3)
        self._kick_velocity = np.zeros(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Put ball and paddle back and draw launch, flight and kick from ``seed``; ``options`` are not used."""
        super().reset(seed=seed)
        throw = self._throw(self.np_random)
        flight = round(throw.flight_s / STEP_S)
        self._launch = SUBSTEPS * throw.hold_ticks
        self._kick = self._launch + round(throw.kick_at * flight)
        self._crossing = self._launch + flight
        self._now = 0

        flight_s = flight * STEP_S
        target = np.array([0.0, *throw.aim])
        self._launch_velocity = (target - HAND + [0, 0, _fall(flight_s)]) / flight_s
        self._kick_velocity = throw.aside / ((self._crossing - self._kick) * STEP_S)

        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = (*self._home, *HAND)
        self.data.qfrc_applied[4] = BALL_KG * GRAVITY  # the hand carries the ball
        mujoco.mj_forward(self.model, self.data)
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Hold the velocity command ``action`` for one tick, or until the ball crosses the plane."""
        if self._now >= self._crossing:
            raise RuntimeError("no episode is running: call reset() first")
        command = np.asarray(action, np.float64)
        if command.shape != (2,) or not (isfinite(command[0]) and isfinite(command[1])):
            raise ValueError(f"action={action!r}, expected two finite velocities in m/s: paddle y and z")
        self.data.ctrl[:] = command

        info: dict[str, Any] = {"success": False}
        tick_end = min(self._now + SUBSTEPS, self._crossing)
        if self._now == self._launch:
            self.data.qfrc_applied[4] = 0
            self.data.qvel[2:] = self._launch_velocity
        if self._now < self._kick <= tick_end:
            self._advance(self._kick)
            self.data.qvel[3:] += self._kick_velocity
            info["event"] = {"name": "kick", "time_s": self._kick * STEP_S}
        self._advance(tick_end)

        terminated = tick_end == self._crossing
        reward = 0.0
        if terminated:
            miss_m = float(np.hypot(*(self.data.qpos[3:] - self.data.qpos[:2])))
            reward = 1.0 if miss_m < FULL else 0.5 if miss_m < HALF else 0.0
            info.update(success=reward == 1.0, score=reward, metrics={"miss_m": miss_m})
        return self._observation(), reward, terminated, False, info

    def expert(self) -> Callable[[], np.ndarray]:
        """The demonstrator: pursues the point where the ball will cross the plane, and home until the launch.

        Returns a function without arguments that reads the simulator's present state, so it is right after
        any action, and gives an action, float32 [2]: proportional to the error, clipped to the space.
        """

        def pursue() -> np.ndarray:
            command = GAIN * (self._goal() - self.data.qpos[:2])
            return command.clip(-MAX_SPEED, MAX_SPEED).astype(np.float32)

        return pursue

    # What a world with another scene or other throws replaces.
    _home = HOME

    def _scene(self) -> mujoco.MjSpec:
        """The scene, not yet compiled."""
        return mujoco.MjSpec.from_string(_MJCF)

    def _throw(self, draw: np.random.Generator) -> Throw:
        """Draw an episode."""
        flight_s = draw.uniform(*FLIGHT_S)
        hold_ticks = int(draw.integers(*LAUNCH_TICKS, endpoint=True))
        kick_at = draw.uniform(*KICK_AT)
        aim = HOME + draw.uniform(-AIM, AIM, 2)
        angle = draw.uniform(0, 2 * np.pi)
        aside = draw.uniform(*KICK) * np.array([np.cos(angle), np.sin(angle)])
        return Throw(hold_ticks, flight_s, kick_at, aim, aside)

    @property
    def _launched(self) -> bool:
        return self._now > self._launch

    def _goal(self) -> np.ndarray:
        """Where the paddle is wanted, y and z in m: where the ball will cross the plane, or home until the launch."""
        if not self._launched:
            return np.array(self._home)
        ball, velocity = self.data.qpos[2:], self.data.qvel[2:]
        left_s = -ball[0] / velocity[0]
        goal = ball[1:] + velocity[1:] * left_s
        goal[1] -= _fall(left_s)
        return goal

    def _advance(self, step: int) -> None:
        """Run the physics to ``step``, counted from reset, in one call."""
        if step > self._now:
            mujoco.mj_step(self.model, self.data, nstep=step - self._now)
            self._now = step

    def _observation(self) -> dict[str, np.ndarray]:
        state = np.empty(11, np.float32)
        position, velocity = self.data.qpos, self.data.qvel
        state[:2] = position[:2]
        state[2:4] = velocity[:2]
        state[4:7] = position[2:]
        state[7:10] = velocity[2:]
        state[10] = self._launched
        observation = {"agent_pos": state[:4], "environment_state": state[4:]}
        return self._seen(observation)


def _fall(time_s: float) -> float:
    """How far a ball falls, in m. MuJoCo's Euler step moves by the new velocity: t (t + step), where physics has t²."""
    return GRAVITY * time_s * (time_s + STEP_S) / 2


def _box(low: list[float], high: list[float]) -> spaces.Box:
    return spaces.Box(np.array(low, np.float32), np.array(high, np.float32), dtype=np.float32)
