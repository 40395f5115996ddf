"""Feels its way with a virtual mass and damper: the classical answer to contact, without a network.

An admittance controller turns force into motion (Hogan, "Impedance control: An approach to manipulation", 1985; Seraji,
"Adaptive admittance control", 1994). Along the direction of pressing the set point moves as a body of mass ``M`` in a
liquid of damping ``D`` would, if it were pushed by what the force is too much::

    M dv/dt + D v = F - F*

Against what yields as a spring of stiffness ``k`` the force then goes to ``F*`` with the poles of ``M s^2 + D s + k``;
without mass that is one pole, and of an error ``1 - k T / D`` is left after each tick of duration ``T``.
"""

from __future__ import annotations

import re
from math import cos, hypot, isfinite, pi, sin

import numpy as np
from gymnasium import Space, spaces

from .agent import Action, Episode, Observation, StepAgent

TOUCH_N = 0.5  # more than a tool that hangs free ever reads, its own acceleration included
NEWEST = 3  # samples of force that count, 15 ms at 200 Hz: more of them would be calmer, and older

# To wipe.
LIFT_OFF = 0.065  # m along x, behind which there is nothing to wipe
_ASKED = re.compile(r"press with (\d+(?:\.\d+)?) N\b")

# To insert.
ALIGN = 0.25  # of the way to the believed hole, per tick: the servo lags behind by about one
NEAR = 0.005  # m above the surface, from where it comes down at a third of the speed: what is hit here is hard
SEARCH_N, INSERT_N = 3.0, 5.0  # to slide over a surface, and to go down a hole against its friction
PITCH = 0.001  # m between two turns of the spiral, less than the play of hole and chamfer together
DROP = 0.0005  # m below the surface, where the hole has been found


class Admittance(StepAgent):
    """Comes down until it feels something, presses with a given force, and lets itself be led by what it feels.

    It wipes (``palaestra/GuardedWipe-v0``) or inserts (``palaestra/PegInsert-v0``), and reads the observation alone:
    the position of the tool, the ``wrench``, the instruction, and where a hole is believed to be; never a picture.

    - With an action of two deltas (m, along x and upwards) it presses with the force that the instruction asks for and
      moves along x. The force is that of the whole contact, friction included, as the world counts it: controlled by
      its vertical part alone, a slope with friction is pressed with 11 N where 8 are asked for.
    - With three deltas it comes down where the hole seems to be, searches along an Archimedean spiral, and gives way
      sideways once it has dropped in.

    The ``wrench`` is tared and what the arm exerts on the tool: a tool that presses downwards reads a negative third
    number.

    Options (``admittance:approach=0.06``):

    - ``approach``, the speed in m/s at which it comes down, and at most goes down again where contact was lost. What
      is not seen is hit with it, so it trades time for force: in ``GuardedWipe-v0``, where 5 or 8 N are asked for, an
      episode takes 7.9, 5.2 and 4.6 s with 0.02, 0.06 and 0.12 m/s, and its peak is 7.1, 7.3 and 8.1 N on average.
    - ``damping`` (N·s/m) and ``mass`` (kg) of the virtual body. The less damping, the closer the tool follows a bump;
      the default keeps ``1 - k T / D`` above zero, where nothing overshoots, even against a rigid table, which leaves
      the 1200 N/m of the servo. Mass calms a noisy sensor; ours has no noise.
    - ``slide``, the speed in m/s along the surface: by default 0.036 to wipe and 0.015 to search. The error of the
      force while the surface rises at a speed ``u`` is ``D u``.

    Raises ``ValueError`` for options out of range and, at reset, for a world with other actions or observations; at
    the first tick, for an instruction to wipe that does not say the force.
    """

    def __init__(
        self, approach: float = 0.06, damping: float = 50.0, mass: float = 0.0, slide: float | None = None
    ) -> None:
        for name, value, least, most, unit in (
            ("approach", approach, 0.001, 1.0, "m/s"),
            ("damping", damping, 1.0, 1e4, "N·s/m"),
            ("mass", mass, 0.0, 1e3, "kg"),
            ("slide", slide, 0.001, 1.0, "m/s"),
        ):
            if value is None and name == "slide":
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
            if not (number and least <= value <= most):  # type: ignore[operator]
                raise ValueError(f"{name}={value!r}, expected {least:g} to {most:g} {unit}")
        self.approach, self.damping, self.mass, self.slide = approach, damping, mass, slide

    def reset(self, episode: Episode) -> _Wiping | _Inserting:
        """The memory is the task, before anything is touched."""
        seen, action = episode.observation_space, episode.action_space
        if not episode.control_hz:
            raise ValueError(f"{episode.env_id} has no control rate, and admittance moves at speeds in m/s")
        if isinstance(action, spaces.Box):
            body = _Body(self.damping, self.mass, 1.0 / episode.control_hz)
            if action.shape == (2,) and _offers(seen, "agent_pos", "instruction"):
                return _Wiping(body, self.approach, 0.036 if self.slide is None else self.slide, action)
            if action.shape == (3,) and _offers(seen, "agent_pos", "environment_state"):
                return _Inserting(body, self.approach, 0.015 if self.slide is None else self.slide, action)
        raise ValueError(
            f"{episode.env_id} has the action space {action} and the observation space {seen}; admittance needs a "
            f"wrench [n, 6] and agent_pos, with two deltas and an instruction (palaestra/GuardedWipe-v0) or with three "
            f"and the place of a hole in environment_state (palaestra/PegInsert-v0)"
        )

    def act(self, memory: _Wiping | _Inserting, observation: Observation) -> Action:
        """How far the set point goes in this tick (m)."""
        force = observation["wrench"][-NEWEST:, :3].mean(axis=0, dtype=float)
        step = np.array(memory.velocity(observation, force)) * memory.body.tick_s
        return np.clip(step, memory.action.low, memory.action.high).astype(memory.action.dtype)


class _Body:
    """The virtual mass and damper, and its speed upwards (m/s)."""

    def __init__(self, damping: float, mass: float, tick_s: float) -> None:
        self.damping, self.mass, self.tick_s = damping, mass, tick_s
        self.speed = 0.0

    def push(self, excess_n: float, slowest: float) -> float:
        """Its speed after a tick under ``F - F*``, and at least ``slowest``. The step is implicit: no mass is too small
        for it."""
        speed = (self.mass * self.speed + self.tick_s * excess_n) / (self.mass + self.tick_s * self.damping)
        self.speed = max(speed, slowest)
        return self.speed


class _Wiping:
    """Down to the table, then along it under the force that is asked for."""

    def __init__(self, body: _Body, approach: float, slide: float, action: spaces.Box) -> None:
        self.body, self.approach, self.slide, self.action = body, approach, slide, action
        self.asked_n = 0.0
        self.found = False

    def velocity(self, observation: Observation, force: np.ndarray) -> tuple[float, float]:
        self.asked_n = self.asked_n or asked_force(observation["instruction"])
        pressed_n = hypot(force[0], force[2]) if force[2] < 0 else -float(force[2])
        touching = pressed_n > TOUCH_N
        self.found |= touching
        if observation["agent_pos"][0] > LIFT_OFF:
            return 0.0, self.approach
        if not self.found:
            self.body.speed = -self.approach
            return 0.0, self.body.speed
        return self.slide * touching, self.body.push(pressed_n - self.asked_n, -self.approach)


class _Inserting:
    """Down to the surface, along the spiral until it drops in, then down and wherever it is pushed sideways."""

    def __init__(self, body: _Body, approach: float, slide: float, action: spaces.Box) -> None:
        self.body, self.approach, self.slide, self.action = body, approach, slide, action
        self.surface: float | None = None  # m, its height once it was touched
        self.within = False
        self._turned = 0.0  # rad, along the spiral
        self._ahead = (0.0, 0.0)  # m, from where the spiral begins

    def velocity(self, observation: Observation, force: np.ndarray) -> tuple[float, float, float]:
        x, y, z = map(float, observation["agent_pos"][:3])
        pressed_n = -float(force[2])
        if self.surface is None and pressed_n > TOUCH_N:
            self.surface = z
        if self.surface is None:
            hole, per_s = observation["environment_state"], ALIGN / self.body.tick_s
            speed = self.approach if z > NEAR else self.approach / 3
            return per_s * (float(hole[0]) - x), per_s * (float(hole[1]) - y), -speed
        self.within |= z < self.surface - DROP
        if self.within:
            sideways = -force[:2] / self.body.damping
            return float(sideways[0]), float(sideways[1]), self.body.push(pressed_n - INSERT_N, -self.approach / 3)
        return *self._spiral(), self.body.push(pressed_n - SEARCH_N, -self.approach / 3)

    def _spiral(self) -> tuple[float, float]:
        """The velocity to the next point of the spiral: ``slide`` m/s along it, and at most a radian a tick."""
        tick_s, radius = self.body.tick_s, PITCH * self._turned / (2 * pi)
        self._turned += min(self.slide * tick_s / max(radius, 1e-9), 1.0)
        radius, before = PITCH * self._turned / (2 * pi), self._ahead
        self._ahead = radius * cos(self._turned), radius * sin(self._turned)
        return (self._ahead[0] - before[0]) / tick_s, (self._ahead[1] - before[1]) / tick_s


def asked_force(instruction: str) -> float:
    """The force in N that an instruction asks for. Raises ``ValueError`` where it says none."""
    found = _ASKED.search(instruction)
    if not found or not float(found[1]):
        raise ValueError(f"instruction={instruction!r} asks for no force, expected words such as 'press with 5 N'")
    return float(found[1])


def _offers(space: Space, *keys: str) -> bool:
    """Whether an observation holds a window of one wrench, and these keys."""
    if not isinstance(space, spaces.Dict) or not {"wrench", *keys} <= set(space.spaces):
        return False
    shape = space["wrench"].shape
    return shape is not None and len(shape) == 2 and shape[1] == 6
