"""Put a peg into a hole that is not quite where it seems: a small world in which feeling finds what seeing misses.

The second task behind the study of "FAVLA: A Force-Adaptive Fast-Slow VLA model for Contact-Rich Robotic Manipulation"
(arXiv 2602.23648), reduced to one peg: vision is wrong by more than the hole forgives, and what is left is a wrist that
feels on which side the peg stands on the edge. Rough pressing jams, or trips the guard.
"""

from __future__ import annotations

from math import cos, hypot, pi, sin, sqrt, tan
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

# Of the expert. First it comes down to where the hole seems to be:
HOMING = 0.15  # a tick, of the way left sideways
SINKING, TOUCHDOWN = 0.08, 0.0004  # a tick, of the way left downwards, and m per tick at its end
NEAR, HOVER = 0.001, 0.004  # m above the fixture: where it expects to touch, and where it waits until it is above
ABOVE = (0.0005, 0.0025)  # m sideways, where it waits not at all and fully
# Then it presses and searches:
PRESS_N, GIVE = 3.0, 0.2  # GIVE is the share of the error of a force that it corrects in a tick
SEARCH = 0.0004  # m per tick
PITCH, FAR = 0.0015, 0.006  # m, between the turns of the spiral, and where the spiral ends
LEVEL, LEANING = 0.0006, 0.0018  # m, from the peg's axis to the centre of pressure: on a plane, and at an edge
# Then it goes in:
DROP = 0.0005  # m below the fixture's top
INSERT, FIRM_N, COMPLY = 0.0007, 6.0, 0.3  # m per tick when free, the force at which it waits, and as GIVE, sideways

_HALF, _BOTTOM = 0.03, 0.022  # m, half the side of the fixture and its height


def _wall() -> str:
    """The fixture's geoms: for each facet of the hole its wall, its chamfer and what lies around, flush with z = 0."""
    mouth, side = HOLE_RADIUS + CHAMFER, tan(pi / FACETS)
    thin = 0.0004  # half the thickness of a chamfer
    geoms = []
    for facet in range(FACETS):
        angle = 2 * pi * facet / FACETS

        def box(
            x: float,
            y: float,
            z: float,
            half: tuple[float, float, float],
            tilt: float = 0.0,
            touched_by: int = 1,
            a: float = angle,
        ):
            place = x * cos(a) - y * sin(a), x * sin(a) + y * cos(a), z
            numbers = [" ".join(f"{value:.9g}" for value in row) for row in (place, half, (np.rad2deg(a), tilt, 0))]
            geoms.append(
                '<geom type="box" pos="{}" size="{}" euler="{}" conaffinity="{}"/>'.format(*numbers, touched_by)
            )

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


def _half_block(name: str, front: bool) -> str:
    """One half of the block that is seen around the hole: its section, turned about the hole's axis."""
    section = [
        (HOLE_RADIUS, -_BOTTOM),
        (HOLE_RADIUS, -CHAMFER),
        (HOLE_RADIUS + CHAMFER, 0),
        (_HALF, 0),
        (_HALF, -_BOTTOM),
    ]
    corners, turns = len(section), 32
    angles = np.linspace(-pi, 0, turns + 1) if front else np.linspace(0, pi, turns + 1)
    vertices = [(r * cos(a), r * sin(a), z) for a in angles for r, z in section]
    faces = []
    for turn in range(turns):
        for k in range(corners):
            here, there = turn * corners + k, turn * corners + (k + 1) % corners
            faces += [(here, there, here + corners), (there, there + corners, here + corners)]
    last = turns * corners
    for k in range(1, corners - 1):
        faces += [(0, k + 1, k), (last, last + k, last + k + 1)]
    numbers = [" ".join(f"{value:.6g}" for row in rows for value in row) for rows in (vertices, faces)]
    return '<mesh name="{}" vertex="{}" face="{}" inertia="shell"/>'.format(name, *numbers)


# The tip stands at the origin when all joints are at zero, and the nominal hole too, so that positions are those of the
# tip in the world and qpos = (x, y, z, tilt about x, tilt about y). The peg tilts about its tip, as a remote centre
# compliance lets it: friction at the tip then does not tilt it. What touches is not what is seen: on one side the
# facets of the hole, in one body for the third sensor, on the other a ring of spheres around the peg's flat end and,
# against the chamfers alone, its shaft. Fewer pairs than that let it lean into a wall, more cost time.
_MJCF = f"""
<mujoco model="peg_insert">
  <compiler eulerseq="zyx"/>
  <option timestep="{STEP_S}"/>
  <statistic center="0 0 0" extent=".1"/>
  <visual>
    <headlight ambient=".4 .4 .4" diffuse=".3 .3 .3" specular="0 0 0"/>
    <map znear=".05" zfar="50"/>
  </visual>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1=".93 .95 .97" rgb2=".70 .78 .86" width="64" height="64"/>
    <texture name="bench" type="2d" builtin="checker" rgb1=".80 .82 .84" rgb2=".72 .75 .78" width="128" height="128"/>
    <material name="bench" texture="bench" texrepeat="100 100" specular="0" reflectance="0"/>
    <material name="block" rgba=".30 .36 .44 1" specular=".3" shininess=".3"/>
    <material name="glass" rgba=".62 .78 .90 .30" specular=".6" shininess=".8"/>
    <material name="steel" rgba=".70 .73 .77 1" specular=".6" shininess=".6"/>
    <material name="dark" rgba=".20 .22 .26 1" specular=".3" shininess=".3"/>
    <material name="sensor" rgba=".12 .38 .72 1" specular=".5" shininess=".5"/>
    <material name="peg" rgba=".95 .62 .18 1" specular=".7" shininess=".7"/>
    {_half_block("back", front=False)}
    {_half_block("front", front=True)}
  </asset>
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
    <default class="seen"><geom group="0" contype="0" conaffinity="0"/></default>
  </default>
  <worldbody>
    <light directional="true" dir=".3 .6 -.8" diffuse=".5 .5 .5" specular=".3 .3 .3"/>
    <camera name="view" pos=".045 -.135 .075" xyaxes=".949 .316 0 -.140 .421 .896" fovy="33"/>
    <camera name="eye" pos="0 -.075 .075" xyaxes="1 0 0 0 .707 .707" fovy="30"/>
    <geom type="plane" pos="0 0 -{_BOTTOM + 0.0005}" size="1 1 .1" material="bench"/>
    <body name="fixture" mocap="true" childclass="fixture">
      <site name="fixture" rgba="0 0 0 0"/>
      {_wall()}
      <geom class="seen" type="mesh" mesh="back" material="block"/>
      <geom class="seen" type="mesh" mesh="front" material="glass"/>
    </body>
    <body name="seems" mocap="true">
      <geom type="box" size=".006 .0002 .0002" rgba=".85 .12 .15 1"/>
      <geom type="box" size=".0002 .006 .0002" rgba=".85 .12 .15 1"/>
    </body>
    <body name="bridge" gravcomp="1">
      <joint name="x" type="slide" axis="1 0 0"/>
      <geom type="box" size=".02 .02 .008" pos="0 0 .12" mass=".05" material="dark"/>
      <body name="carriage" gravcomp="1">
        <joint name="y" type="slide" axis="0 1 0"/>
        <geom type="box" size=".016 .016 .008" pos="0 0 .12" mass=".05" material="dark"/>
        <body name="quill" gravcomp="1">
          <joint name="z" type="slide" axis="0 0 1"/>
          <geom type="cylinder" size=".011 .03" pos="0 0 {WRIST_HEIGHT + 0.03}" mass=".05" material="steel"/>
          <body name="tool" gravcomp="1">
            <site name="wrist" pos="0 0 {WRIST_HEIGHT}" rgba="0 0 0 0"/>
            <geom type="cylinder" size=".012 .0025" pos="0 0 {WRIST_HEIGHT - 0.0025}" mass=".015" material="sensor"/>
            <geom type="cylinder" size=".007 .003" pos="0 0 {WRIST_HEIGHT - 0.008}" mass=".005" material="dark"/>
            <body name="peg" gravcomp="1" childclass="peg">
              <joint name="tilt_x" axis="1 0 0"/>
              <joint name="tilt_y" axis="0 1 0"/>
              <geom type="capsule" fromto="0 0 {PEG_RADIUS + 0.0002} 0 0 .03" size="{PEG_RADIUS}" mass=".05" contype="2"/>
              {_edge()}
              <geom class="seen" type="cylinder" fromto="0 0 0 0 0 .03" size="{PEG_RADIUS}" material="peg"/>
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
        self.data.mocap_pos[:, :2] = hole, self._seems
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

    def expert(self) -> Callable[[], np.ndarray]:
        """The demonstrator: goes to where the hole seems to be, presses lightly, feels for the hole and yields into it.

        Returns a function without arguments that gives an action, float32 [3]. It is a function of the present
        observation alone, without a clock or a memory: what phase it is in and where on its spiral, it tells from where
        the peg is. So it is right after any action, and a policy without memory can learn it.
        """

        def insert() -> np.ndarray:
            felt = self._wrist.window[-4:].mean(axis=0)
            return _feel_in(self.data.qpos[:3], self._seems, felt).astype(np.float32)

        return insert

    def foresee(self, actions: np.ndarray) -> np.ndarray:
        """What the wrist would feel, mean per tick [n, 6], if these actions [n, 3] were executed now; changes nothing.

        Privileged: for schedulers that are told the future, to see what a prediction of it is worth. It knows of no end
        of the episode.
        """
        deltas = np.asarray(actions, np.float64)
        if deltas.ndim != 2 or deltas.shape[1] != 3 or not np.isfinite(deltas).all():
            raise ValueError(f"actions of shape {deltas.shape}, expected [n, 3] finite distances in m")
        steps = [substeps(self._tick + k, CONTROL_HZ) for k in range(len(deltas))]
        return self._wrist.foresee(deltas.clip(-MAX_DELTA, MAX_DELTA) * CONTROL_HZ, steps)

    def _observation(self) -> dict[str, Any]:
        state = np.concatenate([self.data.qpos[:3], self.data.qvel[:3]], dtype=np.float32)
        observation = {
            "agent_pos": state,
            "environment_state": self._seems.astype(np.float32),
            "wrench": self._wrist.window.astype(np.float32),
            "instruction": self.instruction,
        }
        return self._seen(observation)


def _feel_in(tip: np.ndarray, seems: np.ndarray, felt: np.ndarray) -> np.ndarray:
    """The expert's action [3] (m) for a peg whose tip [3] (m) is here, given where the hole seems to be, [2] (m).

    ``felt`` [6] is the mean of the newest samples of the wrist. All phases pass into each other by where the tip is.
    """
    force, height = felt[:3], tip[2]
    pressed_n = -force[2]
    set_point = tip[:2] + force[:2] / STIFFNESS  # where the servos pull to, which friction keeps the peg from
    away = set_point - seems
    distance = hypot(*away)
    action = np.empty(3)

    if height > NEAR:
        waits = min(max((distance - ABOVE[0]) / (ABOVE[1] - ABOVE[0]), 0.0), 1.0)
        action[:2] = -HOMING * away
        action[2] = -SINKING * (height - NEAR - HOVER * waits) - TOUCHDOWN * (waits < 1)
    elif height > -DROP:
        # Where the load is carried. Over the hole's edge that is on one side, and the hole is on the other.
        centre = np.array([felt[4] + WRIST_HEIGHT * force[0], -felt[3] + WRIST_HEIGHT * force[1]]) / max(pressed_n, 1.0)
        from_axis = hypot(*centre)
        leaning = min(max((from_axis - LEVEL) / (LEANING - LEVEL), 0.0), 1.0)
        downhill = -centre / max(from_axis, 1e-9)
        # On a plane an Archimedean spiral, whose angle is the direction of the set point from where it began.
        outwards = away / max(distance, 1e-9)
        growth = PITCH / (2 * pi)
        spiral = growth * outwards + distance * np.array([-outwards[1], outwards[0]])
        way = leaning * downhill + (1 - leaning) * spiral / hypot(growth, distance)
        action[:2] = SEARCH * min(max(pressed_n / PRESS_N, 0.0), 1.0) * way
        action[2] = max(GIVE * (pressed_n - PRESS_N) / STIFFNESS, -TOUCHDOWN)
        if distance > FAR and leaning < 0.5:
            action[2] = TOUCHDOWN * 2.5  # it has missed it: up, and again from the middle
    else:
        action[:2] = -COMPLY * force[:2] / STIFFNESS
        action[2] = -INSERT * min(max(1 - pressed_n / FIRM_N, -1.0), 1.0)
    return action.clip(-MAX_DELTA, MAX_DELTA)
