"""Put a peg into a hole that is not quite where it seems: a small world in which feeling finds what seeing misses.

The second task behind the study of "FAVLA: A Force-Adaptive Fast-Slow VLA model for Contact-Rich Robotic Manipulation"
(arXiv 2602.23648), reduced to one peg: vision is wrong by more than the hole forgives, and what is left is a wrist that
feels on which side the peg stands on the edge. Rough pressing jams, or trips the guard.
"""

from __future__ import annotations

from collections.abc import Callable
from math import cos, hypot, isfinite, pi, sin, sqrt, tan
from typing import Any

import mujoco
import numpy as np
from gymnasium import spaces

from ..dynamic.filmed import Filmed
from ..interface import Component, Interface
from .wrist import STEP_S, WINDOW, WRENCH, Wrist, substeps

CONTROL_HZ = 30
LIMIT_TICKS = 240  # 8 s
MAX_DELTA = 0.003  # m per tick, along each axis

PEG_RADIUS, PEG_ROUNDING = 0.004, 0.0003  # m
HOLE_RADIUS, CHAMFER = 0.0044, 0.001  # m
FACETS = 8  # of the hole; those of the peg's edge stand between them
DEPTH = 0.015  # m, that the peg is to go in
STIFFNESS, DAMPING = 800.0, 20.0  # N/m and N·s/m of the position servos
TILT_STIFFNESS, TILT_DAMPING = 1.0, 0.008  # N·m/rad and N·m·s/rad of the peg about its tip
WRIST_HEIGHT = 0.04  # m above the tip
FRICTION = 0.25
STOP_N = 20.0
TOUCHES_N = 0.5

OFFSET = 0.003  # m, how far the hole may be from its nominal place
SEEN_WITHIN = 0.0015  # m, the standard deviation, per axis, of where it seems to be
START = ((-0.008, -0.008, 0.025), (0.008, 0.008, 0.04))  # m, corners of where the tip may start

_HALF, _BOTTOM = 0.03, 0.022  # m, half the side of the fixture and its height


def _wall() -> str:
    """The fixture's geoms: for each facet of the hole its wall, its chamfer and what lies around, flush with z = 0."""
    mouth, side = HOLE_RADIUS + CHAMFER, tan(pi / FACETS)
    thin = 0.0004  # half the thickness of a chamfer
    geoms = []
    for facet in range(FACETS):
        angle = 2 * pi * facet / FACETS

        def box(x: float, y: float, z: float, half: tuple[float, float, float], tilt: float = 0.0, touched_by: int = 1, a: float = angle):
            place = x * cos(a) - y * sin(a), x * sin(a) + y * cos(a), z
            numbers = [" ".join(f"{value:.9g}" for value in row) for row in (place, half, (np.rad2deg(a), tilt, 0))]
            geoms.append('<geom type="box" pos="{}" size="{}" euler="{}" conaffinity="{}"/>'.format(*numbers, touched_by))

        deep = (_BOTTOM - CHAMFER) / 2
        box(HOLE_RADIUS + 0.003, 0, -CHAMFER - deep, (0.003, (HOLE_RADIUS + 0.006) * side, deep))
        inwards = HOLE_RADIUS + CHAMFER / 2 + thin / sqrt(2)
        box(inwards, 0, -CHAMFER / 2 - thin / sqrt(2), (CHAMFER / sqrt(2), mouth * side, thin), -45, 3)
        # Around the hole four long boxes, none upon another, and four that fill the corners between them and it.
        if facet % 2 == 0:
            reach = (_HALF + mouth) / 2
            box(mouth + (_HALF - mouth) / 2, reach - mouth, -CHAMFER / 2, ((_HALF - mouth) / 2, reach, CHAMFER / 2))
        else:
            box(mouth + 0.0015, 0, -CHAMFER / 2, (0.0015, mouth * side, CHAMFER / 2))
    return "".join(geoms)


def _edge() -> str:
    """The peg's geoms at its tip: spheres around a flat end."""
    radius = PEG_RADIUS - PEG_ROUNDING
    angles = [2 * pi * (k + 0.5) / FACETS for k in range(FACETS)]
    return "".join(
        f'<geom type="sphere" pos="{radius * cos(a):.9g} {radius * sin(a):.9g} {PEG_ROUNDING}" size="{PEG_ROUNDING}"/>'
        for a in angles
    )


# The tip stands at the origin when all joints are at zero, and the nominal hole too, so that positions are those of the
# tip in the world and qpos = (x, y, z, tilt about x, tilt about y). The peg tilts about its tip, as a remote centre
# compliance lets it: friction at the tip then does not tilt it. It touches with the spheres around its flat end and
# with its shaft. All that it may touch is one body, for the third sensor.
_MJCF = f"""
<mujoco model="peg_insert">
  <compiler eulerseq="zyx"/>
  <option timestep="{STEP_S}"/>
  <default>
    <geom contype="0" conaffinity="0" mass="0"/>
    <intvelocity kp="{STIFFNESS}" kv="{DAMPING}"/>
    <default class="fixture">
      <geom group="3" solref=".003 1" solimp=".95 .99 .0002" friction="{FRICTION}"/>
    </default>
    <default class="peg">
      <geom group="3" contype="1" solref=".003 1" solimp=".95 .99 .0002" friction="{FRICTION}"/>
      <joint type="hinge" stiffness="{TILT_STIFFNESS}" damping="{TILT_DAMPING}"/>
    </default>
  </default>
  <worldbody>
    <body name="fixture" mocap="true" childclass="fixture">
      <site name="fixture"/>
      {_wall()}
    </body>
    <body name="bridge" gravcomp="1">
      <joint name="x" type="slide" axis="1 0 0"/>
      <geom type="box" size=".01 .01 .005" pos="0 0 .2" mass=".05"/>
      <body name="carriage" gravcomp="1">
        <joint name="y" type="slide" axis="0 1 0"/>
        <geom type="box" size=".01 .01 .005" pos="0 0 .2" mass=".05"/>
        <body name="quill" gravcomp="1">
          <joint name="z" type="slide" axis="0 0 1"/>
          <geom type="cylinder" size=".012 .02" pos="0 0 .06" mass=".05"/>
          <body name="tool" gravcomp="1">
            <site name="wrist" pos="0 0 {WRIST_HEIGHT}"/>
            <geom type="cylinder" size=".01 .003" pos="0 0 .037" mass=".02"/>
            <body name="peg" gravcomp="1" childclass="peg">
              <joint name="tilt_x" axis="1 0 0"/>
              <joint name="tilt_y" axis="0 1 0"/>
              <geom type="capsule" fromto="0 0 {PEG_RADIUS + 0.0002} 0 0 .034" size="{PEG_RADIUS}" mass=".05" contype="2"/>
              {_edge()}
            </body>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <intvelocity joint="x" actrange="-.02 .02"/>
    <intvelocity joint="y" actrange="-.02 .02"/>
    <intvelocity joint="z" actrange="-.04 .05"/>
  </actuator>
  <sensor>
    <force site="wrist"/>
    <torque site="wrist"/>
    <force site="fixture"/>
  </sensor>
</mujoco>
"""


class PegInsert(Filmed):
    """Insert a peg."""

    metadata = {**Filmed.metadata, "render_fps": CONTROL_HZ}
    interface = Interface(
        control_hz=CONTROL_HZ,
        action=(Component("tool_target", 3, "position", "delta", frame="world", unit="m"),),
        observation={
            "agent_pos": (
                Component("tool_position", 3, "position", frame="world", unit="m"),
                Component("tool_velocity", 3, "velocity", frame="world", unit="m/s"),
            ),
            "environment_state": (Component("hole_position", 2, "position", frame="world", unit="m"),),
            "wrench": WRENCH,
            "instruction": (Component("instruction", 1, "text"),),
        },
        episode_ticks=LIMIT_TICKS,
    )
    instruction = "insert the peg"

    def __init__(self, pixels: int | None = None, render_mode: str | None = None) -> None:
        super().__init__(pixels, render_mode)
        self.action_space = spaces.Box(-MAX_DELTA, MAX_DELTA, (3,), np.float32)
        high = np.array([0.1, 0.1, 0.1, 3, 3, 3], np.float32)
        self._observe_with(
            {
                "agent_pos": spaces.Box(-high, high),
                "environment_state": spaces.Box(-0.1, 0.1, (2,), np.float32),
                "wrench": spaces.Box(-1000, 1000, (WINDOW, 6), np.float32),
                "instruction": spaces.Text(len(self.instruction), charset=frozenset(self.instruction)),
            }
        )
        self.model = mujoco.MjModel.from_xml_string(_MJCF)
        self.data = mujoco.MjData(self.model)
        self._wrist = Wrist(self.model, self.data)
        self._seems = np.zeros(2)  # m, where the hole is said to be
        self._tick, self._over = 0, True
        self._score = self._touching_n = 0.0
        self._touched = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Lift the peg and draw its place, the hole's and the error of vision from ``seed``; ``options`` are not used."""
        super().reset(seed=seed)
        draw = self.np_random
        angle, distance = draw.uniform(0, 2 * pi), OFFSET * sqrt(draw.random())
        hole = distance * np.array([cos(angle), sin(angle)])
        self._seems = hole + draw.normal(0, SEEN_WITHIN, 2)
        start = draw.uniform(*START)
        self._tick, self._over = 0, False
        self._score = self._touching_n = 0.0
        self._touched = 0

        mujoco.mj_resetData(self.model, self.data)
        self.data.mocap_pos[0, :2] = hole
        self.data.qpos[:3] = self.data.act[:] = start
        mujoco.mj_forward(self.model, self.data)
        self._wrist.begin()
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Move the set point by ``action`` within one tick."""
        if self._over:
            raise RuntimeError("no episode is running: call reset() first")
        delta = np.asarray(action, np.float64)
        if delta.shape != (3,) or not np.isfinite(delta).all():
            raise ValueError(f"action={action!r}, expected three finite distances in m: along x, y and z")
        self.data.ctrl[:] = delta.clip(-MAX_DELTA, MAX_DELTA) * CONTROL_HZ
        stopped = self._wrist.advance(substeps(self._tick, CONTROL_HZ), STOP_N)
        self._tick += 1

        touching_n = self._wrist.contact_n[self._wrist.contact_n > TOUCHES_N]
        self._touched += len(touching_n)
        self._touching_n += float(touching_n.sum())
        depth = -float(self.data.qpos[2])
        score = 0.0 if stopped else min(max(depth / DEPTH, 0.0), 1.0)
        reward, self._score = score - self._score, score
        success = score == 1.0
        terminated = success or stopped
        truncated = not terminated and self._tick >= LIMIT_TICKS
        info: dict[str, Any] = {"success": success}
        if terminated or truncated:
            self._over = True
            metrics = {
                "peak_force_n": self._wrist.peak_n,
                "contact_force_n": self._touching_n / max(self._touched, 1),
                "depth_mm": 1000 * max(depth, 0.0),
                "duration_s": self._tick / CONTROL_HZ,
            }
            info.update(score=score, metrics=metrics)
        return self._observation(), reward, terminated, truncated, info

    def _observation(self) -> dict[str, Any]:
        state = np.concatenate([self.data.qpos[:3], self.data.qvel[:3]], dtype=np.float32)
        observation = {
            "agent_pos": state,
            "environment_state": self._seems.astype(np.float32),
            "wrench": self._wrist.window.astype(np.float32),
            "instruction": self.instruction,
        }
        return self._seen(observation)
