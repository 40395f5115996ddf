"""The Blicket test on a table: an arm puts the objects on the machine, which costs time and may fail.

The physical scene to ``blicket.py``, where the game and its sources stand. What a test is worth is then told against
what it costs: the seconds of the arm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import atan2, ceil, cos, hypot, pi, sin, sqrt, tan
from typing import Any, NamedTuple

import gymnasium
import mujoco
import numpy as np

from ..offscreen import Offscreen
from .blicket import Blicket
from .inquiry import FILM

TICK_S = 0.02  # of the arm's controller
STEP_S = 0.005  # of the physics
SUBSTEPS = round(TICK_S / STEP_S)

# What the arm may do, and what it does.
MAX_SPEED, MAX_ACCELERATION = 0.9, 5.0  # m/s and m/s², of the hand sideways
SINK_SPEED, SINK_ACCELERATION = 0.45, 5.0  # the same up and down
TURN_SPEED, TURN_ACCELERATION = 4.0, 25.0  # rad/s and rad/s²
GRIP_S, OPEN_S = 0.16, 0.12  # s, for the fingers to close and to open
SETTLE_S = 1.0  # the longest wait for what still moves
STILL, UNTURNED = 0.01, 0.1  # m/s and rad/s, below which an object has come to rest
TRAVEL = 0.115  # m, height of the fingertips' middle when the hand travels
REACH_X, REACH_Y = 0.36, 0.28  # m, from the middle of the table
OPEN, SHUT, LAX = 0.034, -0.02, 0.028  # m, from the middle of the hand: where the fingers are commanded to
FINGER_STIFFNESS, FINGER_DAMPING = 300.0, 7.0  # N/m and N·s/m: about 12 N on each side of an object
LOWEST = 0.015  # m above what lies below, of the fingertips' middle
SET_DOWN = 0.001  # m above the ground, where the fingers open
BY_HAND_S = 20.0  # s, that it takes a person to put an object back that the arm cannot get hold of

PLATE = (0.0, 0.09)  # m, its middle
PLATE_HALF = (0.145, 0.085, 0.006)  # m
PITCH_X, PITCH_Y = 0.068, 0.084  # m, between places on the plate
HOME_Y, HOME_PITCH = -0.13, 0.08  # m, of the row of objects, and between them
JITTER, TWIST = 0.006, 0.35  # m and rad, by which an object is beside its home and turned, at most
AT_PLACE = 0.025  # m, from its place, within which an object is left where it is

FILM_TICKS, HOLD = 10, 8  # the arm's ticks from one picture of the film to the next, and pictures of each result

_FINGERS = ("left", "right")


class Solid(NamedTuple):
    """An object: a ``box`` with half its sides, or a ``cylinder`` with radius and half its height, in m; RGB."""

    kind: str
    half: tuple[float, ...]
    colour: tuple[float, float, float]

    @property
    def height(self) -> float:
        """Half of it, as it stands at first (m)."""
        return self.half[-1]

    def reach(self, turn: np.ndarray, direction: np.ndarray) -> float:
        """How far it extends from its middle along a unit vector [3], turned by the matrix ``turn`` [3, 3] (m)."""
        along = np.abs(direction @ turn)
        if self.kind == "box":
            return float(along @ self.half)
        axis = min(1.0, along[2])
        return float(self.half[1] * axis + self.half[0] * sqrt(1 - axis * axis))


SOLIDS = (
    Solid("box", (0.020, 0.020, 0.020), (0.85, 0.20, 0.18)),
    Solid("cylinder", (0.020, 0.020), (0.15, 0.40, 0.80)),
    Solid("box", (0.022, 0.016, 0.026), (0.95, 0.75, 0.15)),
    Solid("cylinder", (0.022, 0.016), (0.20, 0.62, 0.30)),
    Solid("box", (0.016, 0.016, 0.028), (0.55, 0.28, 0.70)),
    Solid("box", (0.022, 0.022, 0.014), (0.95, 0.50, 0.12)),
    Solid("cylinder", (0.016, 0.028), (0.15, 0.70, 0.75)),
    Solid("box", (0.017, 0.017, 0.017), (0.95, 0.55, 0.70)),
)
"""The objects by number, all about 4 cm."""

_SIDES = np.linspace(-pi / 2, pi / 2, 17)[1:]  # rad, angles at which an object may be taken


def _objects(count: int) -> str:
    return "".join(
        f'<body name="object {k}"><freejoint/>'
        f'<geom class="object" type="{solid.kind}" size="{" ".join(map(str, solid.half))}"'
        f' rgba="{" ".join(map(str, solid.colour))} 1"/></body>'
        for k, solid in enumerate(SOLIDS[:count])
    )


def _finger(name: str, side: int) -> str:
    """A finger that slides away from the hand's middle; four balls grip, so that a cylinder centres itself."""
    balls = "".join(
        f'<geom class="ball" pos="{x} {side * 0.006} {z}"/>' for x in (-0.008, 0.008) for z in (-0.007, 0.007)
    )
    return f"""
      <body name="{name}" gravcomp="1">
        <joint name="{name}" type="slide" axis="0 {side} 0" range="0 .036" limited="true"/>
        <geom class="seen" type="box" size=".012 .004 .030" pos="0 {side * 0.010} .018" mass=".04" material="dark"/>
        <geom class="seen" type="box" size=".013 .003 .012" pos="0 {side * 0.003} 0" mass=".01" material="rubber"/>
        {balls}
      </body>"""


def _scene(count: int) -> str:
    """The scene with so many objects. The joints of the arm read the middle of the fingertips in world coordinates."""
    x, y, z = PLATE_HALF
    return f"""
<mujoco model="blicket_machine">
  <option timestep="{STEP_S}" integrator="implicitfast" cone="elliptic" impratio="5" tolerance="1e-6">
    <flag multiccd="enable"/>
  </option>
  <statistic center="0 0 .1" extent=".8"/>
  <visual>
    <headlight ambient=".38 .38 .38" diffuse=".28 .28 .28" specular="0 0 0"/>
    <map znear=".05" zfar="30"/>
  </visual>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1=".93 .95 .97" rgb2=".72 .80 .88" width="64" height="64"/>
    <material name="floor" rgba=".80 .82 .84 1" specular="0"/>
    <material name="table" rgba=".78 .71 .60 1" specular=".1"/>
    <material name="plate" rgba=".90 .91 .93 1" specular=".3" shininess=".4"/>
    <material name="case" rgba=".25 .30 .38 1" specular=".3" shininess=".3"/>
    <material name="steel" rgba=".66 .69 .73 1" specular=".5" shininess=".5"/>
    <material name="dark" rgba=".22 .24 .28 1" specular=".3" shininess=".3"/>
    <material name="rubber" rgba=".10 .10 .11 1" specular="0"/>
    <material name="lamp" rgba=".3 .3 .3 1" specular=".5" shininess=".6"/>
    <material name="glow" rgba="1 .9 .3 0"/>
  </asset>
  <default>
    <geom friction=".8 .005 .0001" solref=".01 1" condim="3"/>
    <default class="object"><geom density="700"/></default>
    <default class="ground"><geom contype="0"/></default>
    <default class="ball"><geom type="sphere" size=".006" mass=".001" contype="0" friction="1.4" group="3"/></default>
    <default class="seen"><geom contype="0" conaffinity="0" mass="0"/></default>
    <default class="slide"><joint type="slide"/><intvelocity kp="4000" kv="130"/></default>
  </default>
  <worldbody>
    <light directional="true" dir=".3 .5 -.9" diffuse=".5 .5 .5" specular=".2 .2 .2"/>
    <camera name="view" pos="0 -.86 .56" xyaxes="1 0 0 0 .47 .883" fovy="37"/>
    <geom name="table" class="ground" type="plane" solref=".02 1" size=".48 .42 .1" material="table"/>
    <geom name="plate" class="ground" type="box" pos="{PLATE[0]} {PLATE[1]} {z}" size="{x} {y} {z}" material="plate"/>
    <geom class="seen" type="box" pos="0 {PLATE[1]} .003" size="{x + 0.008} {y + 0.008} .003" material="case"/>
    <geom class="ground" type="box" pos="{x + 0.065} {PLATE[1]} .014" size=".055 .055 .014" material="case"/>
    <geom class="seen" type="cylinder" pos="{x + 0.065} {PLATE[1]} .031" size=".042 .005" material="steel"/>
    <geom class="ground" type="sphere" pos="{x + 0.065} {PLATE[1]} .032" size=".036" material="lamp"/>
    <geom class="seen" type="sphere" pos="{x + 0.065} {PLATE[1]} .05" size=".058" material="glow"/>
    <geom class="seen" type="box" pos="0 .36 .30" size=".46 .02 .02" material="steel"/>
    <geom class="seen" type="box" pos="-.44 .36 .14" size=".02 .02 .14" material="steel"/>
    <geom class="seen" type="box" pos=".44 .36 .14" size=".02 .02 .14" material="steel"/>
    {_objects(count)}
    <body name="carriage" gravcomp="1">
      <joint name="x" class="slide" axis="1 0 0"/>
      <geom class="seen" type="box" size=".04 .035 .035" pos="0 .36 .315" mass=".3" material="dark"/>
      <body name="boom" gravcomp="1">
        <joint name="y" class="slide" axis="0 1 0"/>
        <geom class="seen" type="box" size=".018 .34 .014" pos="0 .32 .365" mass=".4" material="steel"/>
        <geom class="seen" type="box" size=".028 .028 .03" pos="0 0 .365" mass=".1" material="dark"/>
        <body name="quill" gravcomp="1">
          <joint name="z" class="slide" axis="0 0 1"/>
          <geom class="seen" type="cylinder" size=".010 .17" pos="0 0 .26" mass=".2" material="steel"/>
          <body name="hand" gravcomp="1">
            <joint name="turn" type="hinge" axis="0 0 1" armature=".002"/>
            <geom class="seen" type="cylinder" size=".022 .012" pos="0 0 .085" mass=".1" material="dark"/>
            <geom class="seen" type="box" size=".016 .052 .012" pos="0 0 .062" mass=".1" material="case"/>
            {_finger("left", 1)}
            {_finger("right", -1)}
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <intvelocity joint="x" class="slide" actrange="{-REACH_X} {REACH_X}"/>
    <intvelocity joint="y" class="slide" actrange="{-REACH_Y} {REACH_Y}"/>
    <intvelocity joint="z" class="slide" actrange="0 .2" forcerange="-40 40"/>
    <intvelocity joint="turn" actrange="-4 4" kp="8" kv=".3"/>
    <position joint="left" kp="{FINGER_STIFFNESS}" kv="{FINGER_DAMPING}"/>
    <position joint="right" kp="{FINGER_STIFFNESS}" kv="{FINGER_DAMPING}"/>
  </actuator>
</mujoco>
"""


class Arrangement(NamedTuple):
    """What came of arranging the objects: which are on the plate, in how many seconds, and how many were dropped."""

    on_plate: frozenset[int]
    seconds: float
    dropped: int


class Workbench:
    """A table with the machine's plate, ``n_objects`` objects (2 to 8), and an arm that puts objects on the plate.

    The arm is a gantry with four axes and a hand of two fingers, which holds by friction alone. Its script sees where
    the objects lie before it begins to move one, and feels whether it has lifted it; while it carries it does not look.
    ``slip`` in [0, 1) is the probability, for each carry, that the fingers give way on the way. ``watch`` is called
    after every tick of 0.02 s. Distances are in m, the origin is in the middle of the table, z points up.

    Raises ``ValueError`` for another ``n_objects`` or ``slip``.
    """

    def __init__(self, n_objects: int, slip: float = 0.0, watch: Callable[[], None] | None = None) -> None:
        if type(n_objects) is not int or not 2 <= n_objects <= len(SOLIDS):
            raise ValueError(f"n_objects={n_objects!r}, expected 2 to {len(SOLIDS)} objects on the table")
        if isinstance(slip, bool) or not isinstance(slip, int | float) or not 0 <= slip < 1:
            raise ValueError(f"slip={slip!r}, expected the probability that a carry fails, in [0, 1)")
        self.model = model = mujoco.MjModel.from_xml_string(_scene(n_objects))
        self.data = mujoco.MjData(model)
        self.count, self.slip, self.watch = n_objects, slip, watch
        bodies = [model.body(f"object {k}") for k in range(n_objects)]
        self._body = np.array([body.id for body in bodies])
        self._free = [int(model.jnt_qposadr[body.jntadr[0]]) for body in bodies]
        self._moves = [int(model.jnt_dofadr[body.jntadr[0]]) for body in bodies]
        # Without it a cylinder that lies on its side would roll on; in the air it does nothing to speak of.
        for dof in self._moves:
            model.dof_damping[dof + 3 : dof + 6] = 1e-4
        owner = np.full(model.nbody, -1)
        owner[self._body] = np.arange(n_objects)
        self._owner = owner[model.geom_bodyid]  # of each geom, the object that it belongs to, or -1
        self._plate = model.geom("plate").id
        self._finger = np.full(model.ngeom, -1)  # of each geom, the finger that it belongs to, or -1
        for n, name in enumerate(_FINGERS):
            self._finger[model.geom_bodyid == model.body(name).id] = n
        self._axes = [int(model.joint(name).qposadr[0]) for name in ("x", "y", "z", "turn")]
        self._lamp, self._glow = model.material("lamp").id, model.material("glow").id
        self._draw = np.random.default_rng(0)
        self._ticks = self._dropped = 0
        self.light(False)

    def reset(self, draw: np.random.Generator) -> None:
        """Put all objects at their homes, not quite straight, and the arm at rest; ``draw`` also decides on slips."""
        mujoco.mj_resetData(self.model, self.data)
        self._draw, self._ticks, self._dropped = draw, 0, 0
        for k in range(self.count):
            self._stand(k, draw.uniform(-JITTER, JITTER, 2), draw.uniform(-TWIST, TWIST))
        rest = (0.0, 0.0, TRAVEL, 0.0)
        self.data.qpos[self._axes] = self.data.act[:] = rest
        self.data.qpos[self._axes[3] + 1 : self._axes[3] + 3] = OPEN
        self.data.ctrl[4:] = OPEN
        self.light(False)
        mujoco.mj_forward(self.model, self.data)

    def light(self, on: bool) -> None:
        """Switch the machine's lamp."""
        model = self.model
        model.mat_rgba[self._lamp] = (1.0, 0.85, 0.25, 1) if on else (0.28, 0.27, 0.26, 1)
        model.mat_emission[self._lamp] = 1.0 if on else 0.0
        model.mat_rgba[self._glow, 3] = 0.35 if on else 0.0
        model.mat_emission[self._glow] = 1.0 if on else 0.0

    def on_plate(self) -> frozenset[int]:
        """The objects that touch the plate, by MuJoCo's contacts."""
        pairs = self.data.contact.geom
        touching = pairs[(pairs == self._plate).any(axis=1)]
        return frozenset(self._owner[touching].max(axis=1).tolist()) if len(touching) else frozenset()

    def position(self, k: int) -> np.ndarray:
        """The middle of an object, [3]."""
        return self.data.qpos[self._free[k] : self._free[k] + 3].copy()

    def home(self, k: int) -> tuple[float, float]:
        """Where an object stands that is not on the plate: x and y."""
        return (k - (self.count - 1) / 2) * HOME_PITCH, HOME_Y

    def place(self, k: int) -> tuple[float, float]:
        """Where an object stands on the plate: x and y."""
        column, row = divmod(k, 2)
        return PLATE[0] + (column - (ceil(self.count / 2) - 1) / 2) * PITCH_X, PLATE[1] + (row - 0.5) * PITCH_Y

    def arrange(self, wanted: frozenset[int]) -> Arrangement:
        """Have the arm put the ``wanted`` objects on the plate and the others home, moving only what is elsewhere."""
        started, dropped = self._ticks, self._dropped
        by_hand_s = 0.0
        for k in self._order(wanted):
            goal = self.place(k) if k in wanted else self.home(k)
            if not self._carry(k, goal):
                by_hand_s += BY_HAND_S * self._put_home(k)
                if k in wanted:
                    self._carry(k, goal)
        for _ in range(ceil(SETTLE_S / TICK_S)):
            if self._is_still():
                break
            self._tick()
        seconds = (self._ticks - started) * TICK_S + by_hand_s
        return Arrangement(self.on_plate(), seconds, self._dropped - dropped)

    def seen_at(self, data: mujoco.MjData, width: int, height: int) -> list[tuple[float, float]]:
        """Where in a picture from the camera "view" the middles of the objects are: column and row in pixels."""
        camera = self.model.camera("view").id
        offset = (data.xpos[self._body] - data.cam_xpos[camera]) @ data.cam_xmat[camera].reshape(3, 3)
        focal = height / 2 / tan(np.deg2rad(self.model.cam_fovy[camera]) / 2)
        return [(width / 2 - focal * x / z, height / 2 + focal * y / z) for x, y, z in offset.tolist()]

    # --- the script ---

    def _order(self, wanted: frozenset[int]) -> list[int]:
        """What has to be moved: first what lies where it should not, then by turns from the plate and onto it."""
        there = self.on_plate()
        stray, off, onto = [], [], []
        for k in range(self.count):
            here = self.position(k)[:2]
            at_home, at_place = (np.hypot(*(here - spot)) < AT_PLACE for spot in (self.home(k), self.place(k)))
            if at_place and k in there:
                off += [k] * (k not in wanted)
            elif at_home and k not in there:
                onto += [k] * (k in wanted)
            else:
                stray.append(k)
        both = min(len(off), len(onto))
        return stray + [k for pair in zip(off, onto, strict=False) for k in pair] + off[both:] + onto[both:]

    def _carry(self, k: int, goal: tuple[float, float]) -> bool:
        """Take an object and set it down at ``goal``. False if it could not be taken, with two tries."""
        if not (self._take(k) or self._take(k)):
            return False
        data = self.data
        hangs = data.act[2] - self._underside(k)  # of the object below the fingertips' middle
        ground = 2 * PLATE_HALF[2] if _is_over_plate(goal) else 0.0
        steps = [*self._sideways(*goal, 0.0)]
        lets_go = int(self._draw.uniform(0.1, 0.9) * len(steps)) if self._draw.random() < self.slip else -1
        for n, velocity in enumerate(steps):
            if n == lets_go:
                data.ctrl[4:] = LAX
                self._dropped += 1
            self._tick(velocity)
        self._arrive()
        self._run(self._updown(ground + SET_DOWN + hangs))
        self._arrive()
        self._open()
        self._run(self._updown(TRAVEL))
        return True

    def _take(self, k: int) -> bool:
        """Get hold of an object and lift it; whether both fingers touch it when it is up."""
        self._open()
        grip = self._grip(k)
        if grip is None:
            return False
        x, y, _ = self.position(k)
        height, turn = grip
        self._run(self._updown(TRAVEL))
        self._run(self._sideways(x, y, turn))
        self._arrive()
        self._run(self._updown(height))
        self._arrive()
        self.data.ctrl[4:] = SHUT
        self._run(GRIP_S)
        self._run(self._updown(TRAVEL))
        return self._holds(k)

    def _grip(self, k: int) -> tuple[float, float] | None:
        """Height of the fingertips and turn of the hand at which to take an object; ``None`` if that cannot be done."""
        solid, (x, y, z) = SOLIDS[k], self.position(k)
        if abs(x) > REACH_X or abs(y) > REACH_Y:
            return None
        turn = self.data.xmat[self._body[k]].reshape(3, 3)
        faces = [atan2(-turn[0, axis], turn[1, axis]) for axis in range(3) if hypot(*turn[:2, axis]) > 0.5]
        others = np.array([self.position(other)[:2] for other in range(self.count) if other != k])
        best, choice = 1.0, None
        for angle in [*faces, *_SIDES]:
            angle = (angle + pi / 2) % pi - pi / 2
            across = np.array([-sin(angle), cos(angle), 0.0])
            width = solid.reach(turn, across)
            fingers = np.array([[x, y]]) + np.outer([-0.044, 0.044], across[:2])
            crowded = (np.hypot(*(fingers[:, None] - others).transpose(2, 0, 1)) < 0.034).any()
            cost = width + 0.002 * abs(angle) + 0.02 * crowded
            if width < OPEN - 0.003 and cost < best:
                best, choice = cost, angle
        return None if choice is None else (max(z, self._underside(k) + LOWEST), choice)

    def _underside(self, k: int) -> float:
        """Height of an object's lowest point."""
        turn = self.data.xmat[self._body[k]].reshape(3, 3)
        return float(self.data.xpos[self._body[k], 2] - SOLIDS[k].reach(turn, np.array([0.0, 0.0, 1.0])))

    def _holds(self, k: int) -> bool:
        pairs = self.data.contact.geom
        touching = pairs[(self._owner[pairs] == k).any(axis=1)]
        return len(set(self._finger[touching].max(axis=1).tolist()) - {-1}) == len(_FINGERS)

    def _put_home(self, k: int) -> int:
        """A person puts an object back where it was at first, and what lies there too; how many those were."""
        moved, waiting = set(), [k]
        while waiting:
            one = waiting.pop()
            moved.add(one)
            self._stand(one)
            near = (o for o in range(self.count) if np.hypot(*(self.position(o)[:2] - self.home(one))) < 0.05)
            waiting += [other for other in near if other not in moved and other not in waiting]
        mujoco.mj_forward(self.model, self.data)
        return len(moved)

    def _stand(self, k: int, beside: Any = (0.0, 0.0), turned: float = 0.0) -> None:
        """Stand an object at its home."""
        at, dof = self._free[k], self._moves[k]
        x, y = np.add(self.home(k), beside)
        self.data.qpos[at : at + 7] = (x, y, SOLIDS[k].height, cos(turned / 2), 0, 0, sin(turned / 2))
        self.data.qvel[dof : dof + 6] = 0

    # --- motion ---

    def _sideways(self, x: float, y: float, turn: float) -> Iterator[np.ndarray]:
        """Velocity commands that bring hand to x, y and turn, a straight line with least jerk."""
        from_x, from_y, _, from_turn = self.data.act
        delta = np.array([x - from_x, y - from_y, 0.0, turn - from_turn])
        duration = max(
            _duration(hypot(*delta[:2]), MAX_SPEED, MAX_ACCELERATION),
            _duration(abs(delta[3]), TURN_SPEED, TURN_ACCELERATION),
        )
        return _smoothly(delta, duration)

    def _updown(self, z: float) -> Iterator[np.ndarray]:
        """Velocity commands that bring the hand to a height."""
        delta = np.array([0.0, 0.0, z - self.data.act[2], 0.0])
        return _smoothly(delta, _duration(abs(delta[2]), SINK_SPEED, SINK_ACCELERATION))

    def _run(self, commands: Iterator[np.ndarray] | float) -> None:
        """Follow velocity commands, or wait for so many seconds."""
        if isinstance(commands, float):
            commands = (np.zeros(4) for _ in range(round(commands / TICK_S)))
        for velocity in commands:
            self._tick(velocity)

    def _arrive(self) -> None:
        """Wait until the hand is where it is commanded to be, or for 0.3 s if it cannot."""
        for _ in range(15):
            error = self.data.qpos[self._axes] - self.data.act
            if np.abs(error[:3]).max() < 0.001 and abs(error[3]) < 0.02:
                break
            self._tick()

    def _open(self) -> None:
        if self.data.ctrl[4] != OPEN:
            self.data.ctrl[4:] = OPEN
            self._run(OPEN_S)

    def _is_still(self) -> bool:
        speed = np.array([self.data.qvel[dof : dof + 6] for dof in self._moves])
        return bool(np.abs(speed[:, :3]).max() < STILL and np.abs(speed[:, 3:]).max() < UNTURNED)

    def _tick(self, velocity: np.ndarray | float = 0.0) -> None:
        self.data.ctrl[:4] = velocity
        mujoco.mj_step(self.model, self.data, nstep=SUBSTEPS)
        self._ticks += 1
        if self.watch:
            self.watch()


class _Shot(NamedTuple):
    """What a picture of the film shows: where everything was, whether the lamp was lit, and the words below."""

    qpos: np.ndarray
    lit: bool
    words: tuple[str, str]


class BlicketMachine(Blicket):
    """The Blicket test with an arm that puts the objects on the machine: a test costs time and may fail.

    ## Description
    The game of `palaestra/Blicket-v0`, with the same hidden machines and the same first sets from the same seeds. Here
    the objects (boxes and cylinders of about 4 cm) stand in a row on a table before the machine, a plate of 29 cm by
    17 cm with a lamp. A gantry with a hand of two fingers, which hold by friction, carries those to the plate that the
    test asks for and takes others away; what already is where it should be stays. The rule is applied to the objects
    that touch the plate when the arm has done (MuJoCo's contacts), so the answer to a test that failed is the right one
    to another test. Which objects those were, the player is not told.

    With `slip` the fingers give way on some of the carries, at a random moment. The arm does not notice it before the
    next test; then it goes to fetch what lies astray. When it cannot get hold of an object in two tries, a person puts
    it back in its row, at 20 s.

    Physics runs at 200 Hz. The hand moves at up to 0.9 m/s and 5 m/s² sideways, 0.45 m/s up and down.

    ## Action
    That of `palaestra/Blicket-v0`: one step is one turn of the game, however long the arm takes. A `Dict` of `kind`,
    `objects` and `announcement`, or one line of text.

    ## Observation
    | key | observation |
    |---|---|
    | turn, `Discrete(2)` | what is asked for: 0 an announcement, 1 a test |
    | tests, `Discrete(tests + 1)` | how many were made |
    | objects, `MultiBinary(n_objects)` | the objects that the last test asked for, at first those of the example |
    | feedback, `Discrete(2)` | 1: the lamp was lit |
    | refused, `Discrete(2)` | 1: the last answer did not fit the turn, and the turn is asked again |
    | message, text | the same in words |

    ## Reward
    0, and at the end 1 if any announcement named both the blickets and the rule. That is also the score and
    `info["success"]`. `info["robot_s"]` are the seconds of the arm so far. `metrics` are those of
    `palaestra/Blicket-v0` and these:

    | metric | |
    |---|---|
    | robot_s | simulated seconds of the arm and of helping hands in all tests |
    | robot_s_to_solve | those before the first right announcement; left out if there was none |
    | failed_tests | tests with other objects on the plate than were asked for |
    | dropped | how often the fingers gave way during tests |

    ## Start
    As in `palaestra/Blicket-v0`; the objects stand up to 6 mm beside their homes along x and y, and turned by up to
    0.35 rad. Then the arm arranges the example, which counts in no metric, and may drop an object as in a test.

    ## End
    `terminated` after the announcement that follows the last test.

    ## Difficulty
    Moving an object takes 2.9 s; without slips none of 2000 went wrong. What slips do to a player that asks what tells
    most (the agent `information_gain`, which expects a wrong answer now and then), with 15 tests, 60 episodes each:

    | slip | 0 | 0.1 | 0.3 | 0.6 |
    |---|---|---|---|---|
    | share of failed tests | 0 | 0.06 | 0.20 | 0.36 |
    | success | 1.00 | 0.97 | 0.97 | 0.83 |
    | mean robot_s_to_solve, where solved | 20 | 22 | 26 | 44 |

    Args:
        n_objects: 2 to 8.
        n_blickets: 2 or 3, at most `n_objects`.
        rule: `"disjunctive"`, `"conjunctive"`, `"xor"`, or `"any"` of them.
        slip: Probability, for each carry, that the fingers give way, in [0, 1).
        noise: Probability that the lamp shows the opposite, in [0, 1).
        tests: How many tests are made, 1 to 1000.
        actions: `"structured"` or `"text"`.
        render_mode: `"rgb_array"` or `None`. `render` returns the table as it is, uint8 [480, 640, 3], and `footage`
            the pictures of what happened in the last step, for a film at 20 frames per second, four times as fast as
            the arm is.

    Raises:
        ValueError: for an argument outside these ranges; from `step`, for an action that is none of the space.
        EpisodeError: from `step`, when a turn was asked 11 times.
        RuntimeError: from `step`, when no episode is running.
    """

    metadata = {**Blicket.metadata, "render_fps": 20}

    def __init__(
        self,
        n_objects: int = 4,
        n_blickets: int = 2,
        rule: str = "any",
        slip: float = 0.0,
        noise: float = 0.0,
        tests: int = 45,
        actions: str = "structured",
        render_mode: str | None = None,
    ) -> None:
        self._bench = Workbench(n_objects, slip, self._film if render_mode else None)
        super().__init__(n_objects, n_blickets, rule, noise, tests, actions, render_mode)
        self._lit = False
        self._robot_s: list[float] = [0.0]  # in all tests so far, before each announcement
        self._failed = self._dropped = 0
        self._shots: list[_Shot] = []
        self._words = ("", "")
        self._filmed = 0
        self._offscreen: Offscreen | None = None
        self._shown: mujoco.MjData | None = None  # pictures of the past are not to touch the present

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Hide a machine, set the table and arrange an example, all from ``seed``; ``options`` are not used."""
        self._shots.clear()
        observation, info = super().reset(seed=seed)
        self._show()
        return observation, info

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Announce, or have the arm arrange a test, as the turn asks."""
        self._shots.clear()
        result = super().step(action)
        self._show()
        return result

    def render(self) -> np.ndarray | None:
        """The table as it is, uint8 [480, 640, 3]; ``None`` with a warning without ``render_mode``."""
        if self.render_mode is None:
            gymnasium.logger.warn('render() draws nothing: make the environment with render_mode="rgb_array"')
            return None
        return self._picture(_Shot(self._bench.data.qpos, self._lit, self._words))

    def footage(self) -> Iterator[np.ndarray]:
        """What happened in the last step (or at reset), picture by picture, up to where ``render`` stands."""
        yield from map(self._picture, list(self._shots))

    def close(self) -> None:
        """Release the renderer, if one was made."""
        if self._offscreen:
            self._offscreen.close()
            self._offscreen = None

    # --- the game ---

    def _begin(self, seed: int | None) -> tuple[np.ndarray, bool]:
        # The table has a random source of its own, so that the game draws as on paper: one seed, one hidden machine.
        self._bench.reset(self.np_random.spawn(1)[0])
        self._words = ("", "")
        begun = super()._begin(seed)
        self._robot_s, self._failed, self._dropped = [0.0], 0, 0
        return begun

    def _examine(self, test: np.ndarray) -> bool:
        self._lit, self._words = False, (f"{self._verb}: {self._write(test)}", "")
        self._bench.light(False)
        self._lit = super()._examine(test)
        self._bench.light(self._lit)
        self._words = (self._words[0], self._answers[self._lit])
        return self._lit

    def _place(self, objects: frozenset[int]) -> frozenset[int]:
        done = self._bench.arrange(objects)
        self._robot_s.append(self._robot_s[-1] + done.seconds)
        self._failed += done.on_plate != objects
        self._dropped += done.dropped
        return done.on_plate

    def _measures(self) -> dict[str, float]:
        measures = super()._measures()
        measures["robot_s"] = self._robot_s[-1]
        if (solved := self._log.solved_after) is not None:
            measures["robot_s_to_solve"] = self._robot_s[solved]
        return measures | {"failed_tests": float(self._failed), "dropped": float(self._dropped)}

    def _info(self) -> dict[str, Any]:
        return {**super()._info(), "robot_s": self._robot_s[-1]}

    # --- the film ---

    def _film(self) -> None:
        """Keep what the film shows of the arm, every few ticks."""
        self._filmed += 1
        if self._filmed % FILM_TICKS == 0:
            self._shots.append(_Shot(self._bench.data.qpos.copy(), self._lit, self._words))

    def _show(self) -> None:
        """Let the film stand still while one reads."""
        if self.render_mode and self._transcript:
            text, answer = self._transcript[-1]
            if answer is None:
                self._words = (f"Announce: {text}", "")
            self._shots += [_Shot(self._bench.data.qpos.copy(), self._lit, self._words)] * HOLD

    def _picture(self, shot: _Shot) -> np.ndarray:
        from PIL import Image, ImageDraw, ImageFont

        model = self._bench.model
        if self._offscreen is None:
            self._offscreen = Offscreen(model, FILM[1], FILM[0])
        if self._shown is None:
            self._shown = mujoco.MjData(model)
            mujoco.mj_forward(model, self._shown)
        self._shown.qpos[:] = shot.qpos
        mujoco.mj_kinematics(model, self._shown)
        self._bench.light(shot.lit)
        picture = Image.fromarray(self._offscreen.render(self._shown, "view"))
        self._bench.light(self._lit)
        draw, small, large = ImageDraw.Draw(picture), ImageFont.load_default(13), ImageFont.load_default(18)
        for k, point in enumerate(self._bench.seen_at(self._shown, *FILM[1::-1])):
            draw.text(point, str(k), (255, 255, 255), small, anchor="mm", stroke_width=1, stroke_fill=(40, 40, 40))
        draw.rectangle((0, FILM[0] - 36, FILM[1], FILM[0]), (24, 26, 30))
        draw.text((14, FILM[0] - 18), shot.words[0][:62], (235, 235, 235), large, anchor="lm")
        colour = (255, 215, 90) if shot.lit else (150, 150, 155)
        draw.text((FILM[1] - 14, FILM[0] - 18), shot.words[1], colour, large, anchor="rm")
        return np.asarray(picture)


def _is_over_plate(point: tuple[float, float]) -> bool:
    return all(abs(p - q) < half for p, q, half in zip(point, PLATE, PLATE_HALF, strict=False))


def _duration(distance: float, speed: float, acceleration: float) -> float:
    """How long a motion of least jerk takes within a top speed and acceleration (s)."""
    return max(1.875 * distance / speed, sqrt(5.7735 * distance / acceleration))


def _smoothly(delta: np.ndarray, duration: float) -> Iterator[np.ndarray]:
    """The velocities, tick by tick, of a motion of least jerk over ``delta``: 10 s³ - 15 s⁴ + 6 s⁵ of it.

    Source: Flash and Hogan, "The coordination of arm movements" (1985).
    """
    ticks = ceil(duration / TICK_S - 1e-9)
    share = np.linspace(0, 1, ticks + 1) if ticks else np.zeros(1)
    for step in np.diff(share**3 * (10 - 15 * share + 6 * share**2)):
        yield delta * (step / TICK_S)
