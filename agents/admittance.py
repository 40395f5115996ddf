"""Feels its way with a virtual mass and damper: the classical answer to contact, without a network.

An admittance controller turns force into motion (Hogan, "Impedance control: An approach to manipulation", 1985; Seraji,
"Adaptive admittance control", 1994). Along the direction of pressing the set point moves as a body of mass ``M`` in a
liquid of damping ``D`` would, if it were pushed by what the force is too much::

    M dv/dt + D v = F - F*

Against something that yields as a spring of stiffness ``k`` the force then goes to ``F*`` with the poles of
``M s^2 + D s + k``; without mass that is one pole, at ``-k / D``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite

import numpy as np
from gymnasium import spaces

from .agent import Action, Episode, Observation, StepAgent

TOUCH_N = 0.5  # a force that a tool which hangs free never shows, its own acceleration included
NEWEST = 3  # samples of force that count: 15 ms at 200 Hz. More of them are calmer, and older.
_ASKED = re.compile(r"press with (\d+(?:\.\d+)?) N\b")


@dataclass
class _Motion:
    """What an episode remembers: force to press with (N), duration of a tick (s), the limit of the action (m), and
    whether the table was found and how fast the set point moves along z (m/s)."""

    asked_n: float
    tick_s: float
    limit_m: float
    found: bool = False
    speed: float = 0.0


class Admittance(StepAgent):
    """Comes down until it feels something, then presses with the force that the instruction asks for and wipes.

    For ``palaestra/GuardedWipe-v0`` and worlds like it: an action of two deltas (m, along x and upwards), ``agent_pos``
    that begins with the tool's x, and a tared ``wrench`` whose third number is the force along z that the arm exerts
    on the tool (pressing is negative). It looks at nothing else; the picture of the table is not used.

    Options (``admittance:approach=0.06``): ``approach``, the speed in m/s at which it comes down. What is hit is hit
    with it: the force goes on rising for the two ticks or so until it was felt and the set point has turned, so it
    trades time for peak force. ``damping`` (N·s/m) and ``mass`` (kg) of the virtual body: a small damping follows a bump
    closely, but below ``k`` times the delay of the loop it swings (here 811 N/m and 45 ms: 40 N·s/m). ``stroke``, the
    speed of wiping in m/s. ``end``, the x in m at which it lifts the tool off.

    Raises ``ValueError`` for options out of range and, at reset, for a world with other actions or observations, or
    whose instruction does not say the force.
    """

    def __init__(
        self,
        approach: float = 0.06,
        damping: float = 100.0,
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

    def reset(self, episode: Episode) -> _Motion:
        """Read from the episode what is to be done."""
        seen, action = episode.observation_space, episode.action_space
        fits = (
            isinstance(seen, spaces.Dict)
            and {"agent_pos", "wrench", "instruction"} <= set(seen.spaces)
            and seen["wrench"].shape is not None
            and seen["wrench"].shape[1:] == (6,)
            and isinstance(action, spaces.Box)
            and action.shape == (2,)
        )
        if not fits or not isinstance(action, spaces.Box):
            raise ValueError(
                f"{episode.env_id} has the actions {action} and the observation {seen}; admittance needs two deltas, "
                f"along x and z, and agent_pos, wrench [n, 6] and instruction: palaestra/GuardedWipe-v0 has them"
            )
        if not episode.control_hz:
            raise ValueError(f"{episode.env_id} has no control rate, and admittance moves at speeds in m/s")
        return _Motion(0.0, 1.0 / episode.control_hz, float(action.high.min()))

    def act(self, memory: _Motion, observation: Observation) -> Action:
        """One step of the set point, along x and z (m)."""
        memory.asked_n = memory.asked_n or asked_force(observation["instruction"])
        pressed_n = -float(observation["wrench"][-NEWEST:, 2].mean())
        touching = pressed_n > TOUCH_N
        along = 0.0
        if observation["agent_pos"][0] > self.end:
            memory.speed = self.approach
        elif memory.found or touching:
            memory.found = True
            along = self.stroke if touching else 0.0
            memory.speed = self.respond(memory.speed, pressed_n - memory.asked_n, memory.tick_s)
            memory.speed = max(memory.speed, -self.approach)  # down a step it goes no faster than at first
        else:
            memory.speed = -self.approach
        step = np.array([along, memory.speed]) * memory.tick_s
        return np.clip(step, -memory.limit_m, memory.limit_m).astype(np.float32)

    def respond(self, speed: float, excess_n: float, tick_s: float) -> float:
        """The speed of the virtual body one tick later, m/s upwards, under ``F - F*``; an implicit step, never unstable
        by itself."""
        return (self.mass * speed + tick_s * excess_n) / (self.mass + tick_s * self.damping)


def asked_force(instruction: str) -> float:
    """The force in N that an instruction asks for. Raises ``ValueError`` where it says none."""
    found = _ASKED.search(instruction)
    if not found or not float(found[1]):
        raise ValueError(f"instruction={instruction!r} asks for no force, expected words such as 'press with 5 N'")
    return float(found[1])
