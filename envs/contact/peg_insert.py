"""Put a peg into a hole that is not quite where it seems: a small world in which feeling finds what seeing misses.

The second task behind the study of "FAVLA: A Force-Adaptive Fast-Slow VLA model for Contact-Rich Robotic Manipulation"
(arXiv 2602.23648), reduced to one peg: vision is wrong by more than the hole forgives, and what is left is a wrist that
feels on which side the peg stands on the edge. Rough pressing jams, or trips the guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import cos, hypot, pi, sin, sqrt, tan
from typing import Any

import mujoco
import numpy as np
from gymnasium import spaces

from ..filmed import Filmed
from ..interface import Component, Interface
from .wrist import STEP_S, WINDOW, WRENCH, Wrist, ramps, substeps

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
_EDGE, _SHAFT = 1, 2  # the peg's parts, as bits of what may touch what


def _wall() -> str:
    """The fixture's geoms: for each facet of the hole its wall, its chamfer and what lies around, flush with z = 0."""
    mouth, side, deep = HOLE_RADIUS + CHAMFER, tan(pi / FACETS), (_BOTTOM - CHAMFER) / 2
    thin = 0.0004  # half the thickness of a chamfer
    middle, sunk = HOLE_RADIUS + CHAMFER / 2, thin / sqrt(2)
    long, reach = (_HALF - mouth) / 2, (_HALF + mouth) / 2
    geoms = []
    for facet in range(FACETS):
        angle = 2 * pi * facet / FACETS
        geoms += [
            _box(angle, (HOLE_RADIUS + 0.003, 0, -CHAMFER - deep), (0.003, (HOLE_RADIUS + 0.006) * side, deep)),
            _box(
                angle,
                (middle + sunk, 0, -CHAMFER / 2 - sunk),
                (CHAMFER / sqrt(2), mouth * side, thin),
                tilt=-45,
                touched_by=_EDGE | _SHAFT,
            ),
            # Around the hole four long boxes, none upon another, and four that fill the corners between them and it.
            _box(angle, (mouth + long, reach - mouth, -CHAMFER / 2), (long, reach, CHAMFER / 2))
            if facet % 2 == 0
            else _box(angle, (mouth + 0.0015, 0, -CHAMFER / 2), (0.0015, mouth * side, CHAMFER / 2)),
        ]
    return "".join(geoms)


def _box(
    angle: float,
    place: tuple[float, float, float],
    half: tuple[float, float, float],
    tilt: float = 0.0,
    touched_by: int = _EDGE,
) -> str:
    """A box turned about the hole's axis by ``angle`` (rad), tilted by ``tilt`` (deg); ``place`` and ``half`` in m."""
    x, y, z = place
    turned = x * cos(angle) - y * sin(angle), x * sin(angle) + y * cos(angle), z
    numbers = [_numbers(row) for row in (turned, half, (np.rad2deg(angle), tilt, 0))]
    return '<geom type="box" pos="{}" size="{}" euler="{}" conaffinity="{}"/>'.format(*numbers, touched_by)


def _numbers(values: Iterable[float]) -> str:
    return " ".join(f"{value:.9g}" for value in values)


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
    vertex, face = (_numbers(value for row in rows for value in row) for rows in (vertices, faces))
    return f'<mesh name="{name}" vertex="{vertex}" face="{face}"/>'


# The tip stands at the origin when all joints are at zero, and the nominal hole too, so that positions are those of the
# tip in the world and qpos = (x, y, z, tilt about x, tilt about y). The peg tilts about its tip, as a remote centre
# compliance lets it: friction at the tip then does not tilt it. What touches is not what is seen: on one side the
# facets of the hole, in one body for the third sensor, on the other a ring of spheres around the peg's flat end and,
# against the chamfers alone, its shaft: a shaft that might touch the walls too costs a fifth more time in the hole.
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
    <material name="bench" texture="bench" texrepeat="40 40" specular="0" reflectance="0"/>
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
    <geom contype="0" conaffinity="0" mass="0" solref=".003 1" solimp=".95 .99 .0002" friction="{FRICTION}"/>
    <intvelocity kp="{STIFFNESS}" kv="{DAMPING}"/>
    <default class="fixture"><geom group="3"/></default>
    <default class="peg">
      <geom group="3" contype="{_EDGE}"/>
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
              <geom type="capsule" fromto="0 0 {PEG_RADIUS + 0.0002} 0 0 .03" size="{PEG_RADIUS}" mass=".05"
                    contype="{_SHAFT}"/>
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
    """Put a peg into a hole that forgives less than vision is wrong by.

    ## Description
    A peg of 4 mm radius, 30 mm long, hangs on three slides over a block with a hole of 4.4 mm radius and a chamfer of
    1 mm. The hole is up to 3 mm from its nominal place, and vision is wrong about it by about 1.5 mm along x and along
    y, the same all episode. The peg's end is flat: more than about 2 mm beside the hole it stands on the block, and the
    wrist feels on which side. Position servos (800 N/m) follow a set point that the action moves; in the tool a remote
    centre compliance lets the peg tilt about its tip (1 N·m/rad). Physics runs at 1 kHz, with friction 0.25.

    The world's frame has its origin at the nominal place of the hole, on top of the block, with z up.

    ## Action
    `Box(-0.003, 0.003, (3,), float32)`: how far the set point moves within one control tick of 1/30 s, at constant
    speed. What lies outside is clipped, and the set point stays within 20 mm sideways and -40 to 50 mm in height.

    | # | action | min | max | unit |
    |---|---|---|---|---|
    | 0-2 | delta of the peg's set point along world x, y, z | -0.003 | 0.003 | m |

    ## Observation
    A `Dict`. The bounds of what is measured are never reached.

    | key | # | observation | min | max | unit |
    |---|---|---|---|---|---|
    | agent_pos float32 [6] | 0-2 | x, y, z of the peg's tip, as the slides measure it | -0.1 | 0.1 | m |
    | | 3-5 | its velocity | -3 | 3 | m/s |
    | environment_state float32 [2] | 0-1 | x and y of where the hole seems to be | -0.1 | 0.1 | m |
    | wrench float32 [10, 6] | 0-2 | force that the arm exerts on the tool, at 200 Hz, newest last | -1000 | 1000 | N |
    | | 3-5 | its torque at the wrist, 40 mm above the tip | -1000 | 1000 | N·m |
    | instruction, text | | "insert the peg" | | | |
    | pixels uint8 [S, S, 3], with `pixels=S` | | from a camera in front of the block, top row first | 0 | 255 | |

    The wrench is zero when the peg hangs free. Pressing with 5 N reads -5 N along z. Its newest sample is up to 4 ms
    old. A picture shows the hole where it is, 0.9 mm a pixel at S = 64, and where it seems to be as a red cross.

    ## Reward
    The change of the score, so the return is the score: the share of 15 mm that the peg has gone in, 0 when the guard
    stopped it.

    ## Start
    The peg hangs at rest, its tip within 8 mm of the origin along x and along y and 25 to 40 mm above the block; hole
    uniform in a disc of 3 mm around the origin; the error of vision normal with a standard deviation of 1.5 mm per
    axis; all from the seed.

    ## End
    `terminated` when the peg is 15 mm in at the end of a tick, which is the success, or when the net contact force has
    exceeded 20 N at any physics step, which is a failure. `truncated` after 240 ticks (8 s). `info["peak_force_n"]` is
    the largest contact force so far, at 1 kHz. The last `info` holds `score` and `metrics`: `peak_force_n`,
    `contact_force_n` (the mean while they touch with more than 0.5 N), `depth_mm` and `duration_s`.

    ## Event
    The first touch: in its step `info["event"]` is `{"name": "touch", "time_s": t}`, seconds since reset.

    ## Difficulty
    The expert always succeeds, within 1.8 s on average. With every action applied d ticks late (200 episodes each):

    | d | 0 | 2 | 4 | 6 | 8 | 10 | 12 | 16 |
    |---|---|---|---|---|---|---|---|---|
    | success | 1.00 | 1.00 | 1.00 | 1.00 | 0.96 | 0.23 | 0.07 | 0.02 |
    | mean peak force (N) | 2.9 | 3.4 | 3.6 | 4.6 | 7.7 | 12.1 | 15.6 | 20.5 |

    Without what the wrist tells it, it succeeds in 0.63 of the episodes, and the guard ends the others.

    Args:
        pixels: Side S of the square camera image in the observation, 8 to 960; `None` for no image. Only
            images (and `render`) need OpenGL.
        render_mode: `"rgb_array"` or `None`. `render` returns uint8 [480, 640, 3] at 30 frames per second.

    Raises:
        ValueError: for another `pixels` or `render_mode`; from `step`, for an action that is not three finite
            numbers, and from `foresee` for such actions.
        RuntimeError: from `step` and `foresee`, when no episode is running.
    """

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
        """Lift the peg; draw its place, the hole's and the error of vision from ``seed``. ``options`` are not used."""
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
        self._check_running()
        delta = np.asarray(action, np.float64)
        if delta.shape != (3,) or not np.isfinite(delta).all():
            raise ValueError(f"action={action!r}, expected three finite distances in m: along x, y and z")
        steps = substeps(self._tick, CONTROL_HZ)
        self.data.ctrl[:] = delta.clip(-MAX_DELTA, MAX_DELTA) / (steps * STEP_S)
        stopped = self._wrist.advance(steps, STOP_N)

        info: dict[str, Any] = {"peak_force_n": self._wrist.peak_n}
        contact_n = self._wrist.contact_n
        touching = contact_n > TOUCHES_N
        if touching.any():
            if not self._touched:
                info["event"] = {"name": "touch", "time_s": (self._tick / CONTROL_HZ) + STEP_S * int(touching.argmax())}
            self._touched += int(touching.sum())
            self._touching_n += float(contact_n[touching].sum())
        self._tick += 1
        depth = -float(self.data.qpos[2])
        score = 0.0 if stopped else min(max(depth / DEPTH, 0.0), 1.0)
        reward, self._score = score - self._score, score
        info["success"] = success = score == 1.0
        terminated = success or stopped
        truncated = not terminated and self._tick >= LIMIT_TICKS
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
        self._check_running()
        return self._wrist.foresee(*ramps(actions, 3, MAX_DELTA, self._tick, CONTROL_HZ))

    def _check_running(self) -> None:
        if self._over:
            raise RuntimeError("no episode is running: call reset() first")

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
