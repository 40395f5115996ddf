"""Wipe a table of unknown height with a given force, and never hit it: a small world in which feeling decides.

The task behind the study of "FAVLA: A Force-Adaptive Fast-Slow VLA model for Contact-Rich Robotic Manipulation"
(arXiv 2602.23648), reduced to one plane: a camera shows roughly where the table is, the wrist tells when it is reached.
A plan that is carried out blindly presses on for as long as it lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, isfinite, sin
from string import printable
from typing import Any

import mujoco
import numpy as np
from gymnasium import spaces

from ..filmed import Filmed
from ..interface import Component, Interface
from .wrist import STEP_S, WINDOW, WRENCH, Wrist, ramps, substeps

CONTROL_HZ = 30
TICK_S = 1 / CONTROL_HZ
LIMIT_TICKS = 300

MAX_DELTA = 0.004  # m per tick, of each slide
TOOL_RADIUS = 0.02  # m
STIFFNESS, DAMPING = 1200.0, 40.0  # N/m and N·s/m of the position servos
TOOL_KG = 0.1
START = (-0.07, 0.08)  # m, x and z of the tool's lowest point
STRIP = (-0.06, 0.06)  # m, what is to be wiped along x
END = 0.065  # m, where the stroke is over
CELLS = 24  # of the strip

HEIGHT = 0.03  # m, the table's middle is up to this far above or below zero
SLOPE = np.deg2rad(5.0)
BUMP = (0.001, 0.006)  # m above the table
BUMP_RADIUS = 0.06
BUMP_AT = (-0.03, 0.04)  # m along the table
FRICTION = (0.2, 0.5)
SEEMS = 0.01  # m, how far off the camera may show the table

PRESS_N = (5, 8)  # what an instruction may ask for
TOLERANCE_N = 2.0
WIPES_N = 1.0  # a cell is wiped under at least this force
TOUCHES_N = 0.5
PEAK_N, STOP_N = 15.0, 25.0  # of a success, and of the guard

# The expert.
APPROACH, CREEP = 0.06, 0.02  # m/s, far from where the table seems to be and near it
NEAR = 0.005  # m, where near begins
YIELD = 0.014  # m/s per N: the set point moves this fast for each newton too much
YIELD_LIMITS = (-0.06, 0.08)  # m/s
STROKE = 0.001  # m per tick along x while in contact

PICTURE = 16  # pixels a side, of 12.5 mm along x and 10 mm along z
_PIXEL = (0.0125, 0.01)
_LEFT_TOP = (-0.1, 0.1)

_WIDTH = (STRIP[1] - STRIP[0]) / CELLS
_DIRT = "".join(
    f'<geom class="shown" name="dirt{cell}" type="box" size="{_WIDTH / 2} .015 .0004" '
    f'pos="{STRIP[0] + (cell + 0.5) * _WIDTH} 0 .0002" rgba=".25 .2 .2 1"/>'
    for cell in range(CELLS)
)

# The table is one body, so that the third sensor feels all that touches it. qpos = (x, z) of the tool's lowest point.
_MJCF = f"""
<mujoco model="guarded_wipe">
  <option timestep="0.001" cone="elliptic"/>
  <visual>
    <headlight ambient=".4 .4 .4" diffuse=".3 .3 .3" specular="0 0 0"/>
  </visual>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1=".93 .95 .97" rgb2=".70 .78 .86" width="64" height="64"/>
    <texture name="floor" type="2d" builtin="checker" rgb1=".80 .82 .84" rgb2=".72 .75 .78" width="128" height="128"/>
    <material name="floor" texture="floor" texrepeat="20 20" specular="0" reflectance="0"/>
    <material name="steel" rgba=".42 .47 .53 1" specular=".4" shininess=".4"/>
    <material name="wood" rgba=".72 .55 .36 1" specular=".1" shininess=".2"/>
    <material name="sponge" rgba=".98 .78 .15 1" specular=".1" shininess=".1"/>
  </asset>
  <default>
    <default class="touching"><geom solref="-314 -16" solimp=".9 .9 .001" condim="3"/></default>
    <default class="shown"><geom contype="0" conaffinity="0" mass="0"/></default>
  </default>
  <worldbody>
    <light directional="true" dir=".3 .6 -.8" diffuse=".5 .5 .5" specular=".3 .3 .3"/>
    <camera name="view" pos=".06 -.52 .17" xyaxes="1 .12 0 -.03 .25 .968" fovy="34"/>
    <camera name="eye" pos="0 -.4 .03" xyaxes="1 0 0 0 0 1" fovy="28"/>
    <geom class="shown" name="floor" type="plane" pos="0 0 -.15" size="2 2 .1" material="floor"/>
    <geom class="shown" type="capsule" fromto="-.16 0 .26 .16 0 .26" size=".008" material="steel"/>
    <geom class="shown" type="capsule" fromto="-.16 0 -.15 -.16 0 .26" size=".008" material="steel"/>
    <geom class="shown" type="capsule" fromto=".16 0 -.15 .16 0 .26" size=".008" material="steel"/>
    <body name="table">
      <site name="table" group="4"/>
      <geom class="touching" name="top" type="box" size=".14 .07 .01" pos="0 0 -.01" mass=".001" material="wood"/>
      <geom class="touching" name="bump" type="cylinder" size="{BUMP_RADIUS} .05" euler="90 0 0" mass=".001"
            rgba=".62 .45 .28 1"/>
      {_DIRT}
    </body>
    <body name="sledge" gravcomp="1">
      <joint name="x" type="slide" axis="1 0 0"/>
      <geom class="shown" type="box" pos="0 0 .26" size=".025 .02 .014" mass=".1" material="steel"/>
      <body name="rod" gravcomp="1">
        <joint name="z" type="slide" axis="0 0 1"/>
        <geom type="box" pos="0 0 .11" size=".012 .012 .01" mass=".4" contype="0" conaffinity="0" material="steel"/>
        <geom class="shown" type="capsule" fromto="0 0 .12 0 0 .3" size=".006" material="steel"/>
        <body name="tool">
          <site name="wrist" pos="0 0 .1" group="4"/>
          <geom class="shown" type="capsule" fromto="0 0 .03 0 0 .1" size=".008" material="steel"/>
          <geom class="touching" name="tool" type="sphere" pos="0 0 {TOOL_RADIUS}" size="{TOOL_RADIUS}"
                mass="{TOOL_KG}" material="sponge"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <intvelocity joint="x" kp="{STIFFNESS}" kv="{DAMPING}" actrange="-.12 .12"/>
    <intvelocity joint="z" kp="{STIFFNESS}" kv="{DAMPING}" actrange="-.12 .12"/>
  </actuator>
  <sensor>
    <force site="wrist"/>
    <torque site="wrist"/>
    <force site="table"/>
  </sensor>
</mujoco>
"""


@dataclass(frozen=True)
class Table:
    """What chance decides about an episode and nobody is told: ``height`` of the middle and ``seems`` (m, where the
    camera shows it), ``slope`` (rad, rising along x), ``bump`` (m, 0: none) at ``bump_at`` (m), ``friction``."""

    height: float
    seems: float
    slope: float
    bump: float
    bump_at: float
    friction: float


class GuardedWipe(Filmed):
    """Press a tool on a table whose height is not known and wipe a strip with the force that is asked for.

    ## Description
    A tool (a ball of 20 mm radius) hangs on two slides, along x and up along z, over a table that may stand 30 mm
    higher or lower, slope by 5 degrees and have a bump. It is to come down, press with 5 or 8 N as the instruction
    says, and move along the strip from x = -60 mm to 60 mm. Position servos (1200 N/m) follow a set point that the
    action moves; servo and table (2500 N/m) together are a spring of 811 N/m. Physics runs at 1 kHz.

    ## Action
    `Box(-0.004, 0.004, (2,), float32)`: how far the set point moves within one control tick of 1/30 s, at constant
    speed. The servos clip what lies outside.

    | # | action | min | max | unit |
    |---|---|---|---|---|
    | 0 | delta of the tool's set point along world x | -0.004 | 0.004 | m |
    | 1 | the same along z, upwards | -0.004 | 0.004 | m |

    ## Observation
    A `Dict`; positions in the world's frame, those of the tool at its lowest point.

    | key | # | observation | min | max | unit |
    |---|---|---|---|---|---|
    | agent_pos float32 [4] | 0-1 | x and z of the tool | -0.3 | 0.3 | m |
    | | 2-3 | its velocity | -3 | 3 | m/s |
    | wrench float32 [10, 6] | 0-2 | force that the arm exerts on the tool, at 200 Hz, newest last | -1000 | 1000 | N |
    | | 3-5 | its torque at the wrist | -1000 | 1000 | N·m |
    | pixels uint8 [16, 16, 3] | | a side view, 12.5 x 10 mm a pixel, top row first | 0 | 255 | |
    | instruction, text | | "wipe the table and press with 5 N", or 8 N | | | |

    The wrench is zero when the tool hangs free: its weight, which varies by 20 %, is taken off at the start. Pressing
    with 5 N reads -5 N along z. The picture is drawn (it needs no OpenGL) and shows the table as far off as 10 mm, the
    same all episode, and without its bump. The newest sample is up to 4 ms old.

    ## Reward
    The share of the strip that is newly wiped (under at least 1 N), less 0.002 times the error of the force relative
    to what is asked for (at most 2) at each tick of contact.

    ## Start
    The tool is at (x, z) = (-0.07, 0.08) m. Height within 30 mm, slope within 5 degrees, a bump of 1 to 6 mm in 7 of
    10 episodes at -30 to 40 mm, friction 0.2 to 0.5, mass of the tool 0.08 to 0.12 kg, all uniform from the seed.

    ## End
    `terminated` when the tool has passed x = 65 mm, or when the net contact force exceeded 25 N at any physics step,
    which is a failure. `truncated` after 300 ticks (10 s). `info["peak_force_n"]` is the largest contact force so far,
    at 1 kHz. The last `info` holds `success`: more than 90 % of the strip was wiped, the force was within 2 N in 80 %
    of the ticks with contact, and it never reached 15 N. Also `score`, the product of the two shares (0 when the guard
    stopped it), and `metrics`: `peak_force_n`, `force_rmse_n`, `coverage`, `in_band` and `duration_s`.

    ## Event
    The first touch: in its step `info["event"]` is `{"name": "touch", "time_s": t}`, seconds since reset.

    Args:
        flat: No slope and no bump.
        render_mode: `"rgb_array"` or `None`. `render` returns uint8 [480, 640, 3] at 30 frames per second.

    Raises:
        ValueError: for another `flat` or `render_mode`; from `step`, for an action that is not two finite numbers.
        RuntimeError: from `step`, when no episode is running.
    """

    metadata = {**Filmed.metadata, "render_fps": CONTROL_HZ}
    interface = Interface(
        control_hz=CONTROL_HZ,
        action=(Component("tool_target", 2, "position", "delta", frame="world", unit="m"),),
        observation={
            "agent_pos": (
                Component("tool_position", 2, "position", frame="world", unit="m"),
                Component("tool_velocity", 2, "velocity", frame="world", unit="m/s"),
            ),
            "wrench": WRENCH,
            "pixels": (Component("side", 1, "image", frame="side"),),
            "instruction": (Component("instruction", 1, "text"),),
        },
        episode_ticks=LIMIT_TICKS,
    )

    def __init__(self, flat: bool = False, render_mode: str | None = None) -> None:
        super().__init__(None, render_mode)
        if not isinstance(flat, bool):
            raise ValueError(f"flat={flat!r}, expected true or false")
        del self.scene_edits  # the picture is drawn here, so what changes a scene would change nothing
        self._flat = flat
        self.action_space = spaces.Box(-MAX_DELTA, MAX_DELTA, (2,), np.float32)
        self.observation_space = spaces.Dict(
            {
                "agent_pos": spaces.Box(
                    np.array([-0.3, -0.3, -3, -3], np.float32), np.array([0.3, 0.3, 3, 3], np.float32)
                ),
                "wrench": spaces.Box(-1000, 1000, (WINDOW, 6), np.float32),
                "pixels": spaces.Box(0, 255, (PICTURE, PICTURE, 3), np.uint8),
                "instruction": spaces.Text(64, charset=printable),
            }
        )
        self.model = mujoco.MjModel.from_xml_string(_MJCF)
        self.data = mujoco.MjData(self.model)
        self._wrist = Wrist(self.model, self.data)
        self._table = Table(0.0, 0.0, 0.0, 0.0, 0.0, 0.3)
        self._backdrop = np.zeros((PICTURE, PICTURE, 3))
        self._asked = PRESS_N[0]
        self._tick, self._over, self._touched = 0, True, False
        self._errors: list[float] = []
        self._wiped = np.zeros(CELLS, bool)
        self._dirt = [self.model.geom(f"dirt{cell}").id for cell in range(CELLS)]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Lift the tool and draw the table and the instruction from ``seed``; ``options`` are not used."""
        super().reset(seed=seed)
        draw = self.np_random
        height = draw.uniform(-HEIGHT, HEIGHT)
        seems = height + draw.uniform(-SEEMS, SEEMS)
        slope, bump, bump_at = draw.uniform(-SLOPE, SLOPE), draw.uniform(*BUMP), draw.uniform(*BUMP_AT)
        bumpy = draw.random() < 0.7 and not self._flat
        friction, tool_kg = draw.uniform(*FRICTION), TOOL_KG * draw.uniform(0.8, 1.2)
        self._asked = int(draw.choice(PRESS_N))
        self._table = Table(height, seems, slope * (not self._flat), bump * bumpy, bump_at, friction)
        self._tick, self._over, self._touched = 0, False, False
        self._errors.clear()
        self._wiped[:] = False
        self._arrange(tool_kg)
        self._wrist.begin()
        self._backdrop = self._draw_table()
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Move the set point by ``action`` within one tick."""
        self._check_running()
        delta = np.asarray(action, np.float64)
        if delta.shape != (2,) or not (isfinite(delta[0]) and isfinite(delta[1])):
            raise ValueError(f"action={action!r}, expected two finite distances in m: along x and along z")
        before = float(self.data.qpos[0])
        steps = substeps(self._tick, CONTROL_HZ)
        self.data.ctrl[:] = delta.clip(-MAX_DELTA, MAX_DELTA) / (steps * STEP_S)
        stopped = self._wrist.advance(steps, STOP_N)

        info: dict[str, Any] = {"success": False, "peak_force_n": self._wrist.peak_n}
        force = self._wrist.contact_n
        if not self._touched and force.max() > TOUCHES_N:
            self._touched = True
            info["event"] = {
                "name": "touch",
                "time_s": self._tick * TICK_S + STEP_S * int(np.argmax(force > TOUCHES_N)),
            }
        self._tick += 1
        reward = self._wipe(before, float(self.data.qpos[0]), float(force.mean()))
        terminated = stopped or bool(self.data.qpos[0] > END)
        truncated = not terminated and self._tick >= LIMIT_TICKS
        if terminated or truncated:
            self._over = True
            info.update(self._result(stopped))
        return self._observation(), reward, terminated, truncated, info

    def expert(self) -> Callable[[], np.ndarray]:
        """The demonstrator: comes down fast to where the table seems to be, then slowly, then keeps the force.

        Returns a function without arguments that reads the simulator's present state, so it is right after any action.
        It knows nothing that the observation does not tell, except that it sees more sharply: where the camera shows
        the table, wrong as that is.
        """

        def wipe() -> np.ndarray:
            x, z = self.data.qpos
            pressed_n = float(np.hypot(*self._wrist.window[-7:, [0, 2]].mean(axis=0)))  # over the last tick
            if pressed_n > TOUCHES_N:
                speed = min(max(YIELD * (pressed_n - self._asked), YIELD_LIMITS[0]), YIELD_LIMITS[1])
                return np.array([STROKE, speed * TICK_S], np.float32)
            gap = z - (self._table.seems + x * np.tan(self._table.slope))
            return np.array([0.0, -(APPROACH if gap > NEAR else CREEP) * TICK_S], np.float32)

        return wipe

    def foresee(self, actions: np.ndarray) -> np.ndarray:
        """What the wrist would feel, mean per tick [n, 6], if these actions [n, 2] were executed now; changes nothing.

        Privileged: for schedulers that are told the future, to see what a prediction of it is worth. It knows of no end
        of the episode.
        """
        self._check_running()
        return self._wrist.foresee(*ramps(actions, 2, MAX_DELTA, self._tick, CONTROL_HZ))

    def _check_running(self) -> None:
        if self._over:
            raise RuntimeError("no episode is running: call reset() first")

    def _arrange(self, tool_kg: float) -> None:
        table, model, data = self._table, self.model, self.data
        body, tool, bump = model.body("table").id, model.body("tool").id, model.geom("bump").id
        model.body_pos[body] = (0, 0, table.height)
        model.body_quat[body] = (cos(table.slope / 2), 0, -sin(table.slope / 2), 0)
        model.geom_pos[bump] = (table.bump_at, 0, table.bump - BUMP_RADIUS)
        model.geom_contype[bump] = model.geom_conaffinity[bump] = int(table.bump > 0)
        model.geom_rgba[bump, 3] = float(table.bump > 0)
        model.geom_rgba[self._dirt, 3] = 1.0
        model.geom_friction[:, 0] = table.friction
        model.body_inertia[tool] *= tool_kg / model.body_mass[tool]
        model.body_mass[tool] = tool_kg
        mujoco.mj_setConst(model, data)
        mujoco.mj_resetData(model, data)
        data.act[:] = START
        data.qpos[:] = START[0], START[1] - tool_kg * 9.81 / STIFFNESS  # the servo gives way under the tool's weight
        mujoco.mj_forward(model, data)

    def _wipe(self, before: float, after: float, force_n: float) -> float:
        """Book a tick of contact; returns its reward."""
        reward = 0.0
        if force_n > WIPES_N:
            low, high = (int(np.floor((x - STRIP[0]) / _WIDTH)) for x in sorted((before, after)))
            cells = slice(max(0, low), max(0, high + 1))
            reward += float((~self._wiped[cells]).sum()) / CELLS
            self._wiped[cells] = True
            self.model.geom_rgba[self._dirt, 3] = ~self._wiped
        if force_n > TOUCHES_N:
            self._errors.append(force_n - self._asked)
            reward -= 0.002 * min(abs(force_n - self._asked) / self._asked, 2.0)
        return reward

    def _result(self, stopped: bool) -> dict[str, Any]:
        errors = np.array(self._errors)
        coverage = float(self._wiped.mean())
        in_band = float((np.abs(errors) < TOLERANCE_N).mean()) if len(errors) else 0.0
        success = coverage > 0.9 and in_band >= 0.8 and self._wrist.peak_n < PEAK_N
        metrics = {
            "peak_force_n": self._wrist.peak_n,
            "force_rmse_n": float(np.sqrt((errors**2).mean())) if len(errors) else 0.0,
            "coverage": coverage,
            "in_band": in_band,
            "duration_s": self._tick * TICK_S,
        }
        return {"success": success, "score": 0.0 if stopped else coverage * in_band, "metrics": metrics}

    def _observation(self) -> dict[str, Any]:
        state = np.concatenate([self.data.qpos, self.data.qvel], dtype=np.float32)
        return {
            "agent_pos": state,
            "wrench": self._wrist.window.astype(np.float32),
            "pixels": self._picture(),
            "instruction": f"wipe the table and press with {self._asked} N",
        }

    # The picture: the share of each pixel that table and tool cover, with edges a pixel wide.

    def _draw_table(self) -> np.ndarray:
        surface = self._table.seems + _X * np.tan(self._table.slope)
        covered = np.clip((surface - _Z) / _PIXEL[1] + 0.5, 0, 1)[..., None]
        return (1 - covered) * np.array([235.0, 240, 245]) + covered * np.array([180.0, 135, 90])

    def _picture(self) -> np.ndarray:
        distance = np.hypot(_X - self.data.qpos[0], _Z - self.data.qpos[1] - TOOL_RADIUS)
        covered = np.clip((TOOL_RADIUS - distance) / _PIXEL[1] + 0.5, 0, 1)[..., None]
        return ((1 - covered) * self._backdrop + covered * np.array([40.0, 60, 160])).round().astype(np.uint8)


# World x and z of the middle of each pixel.
_X, _Z = np.meshgrid(
    _LEFT_TOP[0] + _PIXEL[0] * (np.arange(PICTURE) + 0.5), _LEFT_TOP[1] - _PIXEL[1] * (np.arange(PICTURE) + 0.5)
)
