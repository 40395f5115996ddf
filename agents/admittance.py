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
from dataclasses import dataclass
from math import isfinite

import numpy as np
from gymnasium import Space, spaces

from .agent import Action, Episode, Observation, StepAgent

TOUCH_N = 0.5  # more than a tool that hangs free ever reads, its own acceleration included
NEWEST = 3  # samples of force that count, 15 ms at 200 Hz: more of them would be calmer, and older
_ASKED = re.compile(r"press with (\d+(?:\.\d+)?) N\b")


@dataclass
class _Stroke:
    """What an episode remembers: the duration of a tick (s), the limit of the action (m); force to press with (N);
    whether the table was found, and how fast the set point moves along z (m/s)."""

    tick_s: float
    limit_m: np.ndarray
    asked_n: float = 0.0
    found: bool = False
    speed: float = 0.0


class Admittance(StepAgent):
    """Comes down until it feels something, then presses with the force that the instruction asks for and wipes.

    For ``palaestra/GuardedWipe-v0`` and worlds like it: an action of two deltas (m, along x and upwards), ``agent_pos``
    that begins with the tool's x, and a tared ``wrench`` whose third number is the force along z that the arm exerts
    on the tool (a tool that presses reads negative). It looks at nothing else, so a picture cannot mislead it.

    Options (``admittance:approach=0.06``):

    - ``approach``, the speed in m/s at which it comes down, and at most goes down again where contact was lost. It
      trades time for force, as what is not seen is hit with it; in ``GuardedWipe-v0``, over 100 seeds, 0.02, 0.06 and
      0.12 m/s take APPROACH_TABLE.
    - ``damping`` (N·s/m) and ``mass`` (kg) of the virtual body. The less damping, the closer the tool follows a bump;
      the default keeps ``1 - k T / D`` above zero, where nothing overshoots, even against a rigid table, which leaves
      the 1200 N/m of the servo. Mass calms a noisy sensor; ours has no noise.
    - ``stroke``, the speed of wiping in m/s. The error of the force while the table rises at a speed ``u`` is ``D u``.
    - ``end``, the x in m behind which it lifts the tool off.

    Raises ``ValueError`` for options out of range and, at reset, for a world with other actions or observations; at
    the first tick, for an instruction that does not say the force.
    """

    def __init__(
        self,
        approach: float = 0.06,
        damping: float = 50.0,
        mass: float = 0.0,
        stroke: float = 0.036,
        end: float = 0.065,
    ) -> None:
        for name, value, least, most, unit in (
            ("approach", approach, 0.001, 1.0, "m/s"),
            ("damping", damping, 1.0, 1e4, "N·s/m"),
            ("mass", mass, 0.0, 1e3, "kg"),
            ("stroke", stroke, 0.001, 1.0, "m/s"),
            ("end", end, -10.0, 10.0, "m"),
        ):
            if not (isfinite(value) and least <= value <= most):
                raise ValueError(f"{name}={value}, expected {least:g} to {most:g} {unit}")
        self.approach, self.damping, self.mass, self.stroke, self.end = approach, damping, mass, stroke, end

    def reset(self, episode: Episode) -> _Stroke:
        """The memory begins above a table that is not found yet."""
        space = episode.action_space
        if not (isinstance(space, spaces.Box) and space.shape == (2,) and _offers(episode.observation_space)):
            raise ValueError(
                f"{episode.env_id} has the action space {space} and the observation space {episode.observation_space}; "
                f"admittance needs two deltas, along x and z, and agent_pos, wrench [n, 6] and instruction, as "
                f"palaestra/GuardedWipe-v0 has them"
            )
        if not episode.control_hz:
            raise ValueError(f"{episode.env_id} has no control rate, and admittance moves at speeds in m/s")
        return _Stroke(1.0 / episode.control_hz, space.high)

    def act(self, memory: _Stroke, observation: Observation) -> Action:
        """How far the set point goes in this tick, along x and z (m)."""
        memory.asked_n = memory.asked_n or asked_force(observation["instruction"])
        pressed_n = -float(observation["wrench"][-NEWEST:, 2].mean())
        touching = pressed_n > TOUCH_N
        memory.found |= touching
        along = 0.0
        if observation["agent_pos"][0] > self.end:
            memory.speed = self.approach
        elif memory.found:
            along = self.stroke if touching else 0.0
            memory.speed = max(self._yield(memory, pressed_n - memory.asked_n), -self.approach)
        else:
            memory.speed = -self.approach
        step = np.array([along, memory.speed]) * memory.tick_s
        return np.clip(step, -memory.limit_m, memory.limit_m).astype(np.float32)

    def _yield(self, memory: _Stroke, excess_n: float) -> float:
        """The speed of the virtual body after a tick of this force, m/s upwards; the step is implicit, so that no mass
        is too small for it."""
        return (self.mass * memory.speed + memory.tick_s * excess_n) / (self.mass + memory.tick_s * self.damping)


def asked_force(instruction: str) -> float:
    """The force in N that an instruction asks for. Raises ``ValueError`` where it says none."""
    found = _ASKED.search(instruction)
    if not found or not float(found[1]):
        raise ValueError(f"instruction={instruction!r} asks for no force, expected words such as 'press with 5 N'")
    return float(found[1])


def _offers(space: Space) -> bool:
    if not isinstance(space, spaces.Dict) or not {"agent_pos", "wrench", "instruction"} <= set(space.spaces):
        return False
    shape = space["wrench"].shape
    return shape is not None and shape[1:] == (6,)
