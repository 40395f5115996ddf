"""How to add a robot: this file, with your driver in place of ``_Motors``.

1. The card. Say what every number means: the representation, frame and unit of each component of the action, and
   those of each key of the observation. The agent's card is compared with it before the first step.
2. The two spaces, of the same sizes. What the driver accepts stands there; what the *setup* allows (a table, a
   person nearby) goes into :class:`~.watchdog.Limits`.
3. ``observe``, ``command``, ``hold``, ``emergency_stop``, each a line or two in front of the driver. None may wait
   for the arm: a driver that blocks gets a thread of its own that keeps the newest reading. A driver that fails
   raises ``RobotLost``.
4. ``home`` where the arm can go to its start by itself, and ``close``.
5. A function like :func:`make`. From where it can be imported, as ``lab.arm`` say,
   ``palaestra drive robot:lab.arm:make --connect tcp://HOST:5600`` drives the arm with an agent that is served, and
   ``palaestra run robot:lab.arm:make AGENT --clock wall --mode async`` with one in process.

The arm here lives in memory, so this file runs as it is: three joints that follow velocity commands with a lag, and a
spring to press against.
"""

from __future__ import annotations

import time

import numpy as np
from gymnasium import spaces

from ...envs.interface import Component, Interface
from .as_env import RobotEnv, as_env
from .robot import Reading, Robot
from .watchdog import Limits, Watchdog

JOINTS = 3
MAX_SPEED = 3.0  # rad/s


class ExampleArm(Robot):
    """Three joints in memory, commanded by velocity at 50 Hz; beyond 2.5 rad the first one presses a spring.

    Action: ``Box(-3, 3, (3,), float32)``, joint velocities in rad/s. Observation: ``agent_pos`` float32 [6], positions
    in rad and velocities in rad/s; ``wrench`` float32 [1, 6], of which the first number is the spring's force in N.
    """

    interface = Interface(
        control_hz=50.0,
        action=(Component("joint_velocity", JOINTS, "velocity", "absolute", frame="joint", unit="rad/s"),),
        observation={
            "agent_pos": (
                Component("joint_position", JOINTS, "position", frame="joint", unit="rad"),
                Component("joint_speed", JOINTS, "velocity", frame="joint", unit="rad/s"),
            ),
            "wrench": (
                Component("contact", 3, "force", frame="tool", unit="N"),
                Component("torque", 3, "torque", frame="tool", unit="N·m"),
            ),
        },
    )
    action_space = spaces.Box(-MAX_SPEED, MAX_SPEED, (JOINTS,), np.float32)
    observation_space = spaces.Dict(
        {
            "agent_pos": spaces.Box(-np.inf, np.inf, (2 * JOINTS,), np.float32),
            "wrench": spaces.Box(-np.inf, np.inf, (1, 6), np.float32),
        }
    )

    def __init__(self) -> None:
        self._motors = _Motors()

    def observe(self) -> Reading:
        """Encoders and force sensor, read now."""
        position, velocity, force_n = self._motors.read()
        wrench = np.zeros((1, 6), np.float32)
        wrench[0, 0] = force_n
        return Reading({"agent_pos": np.concatenate([position, velocity], dtype=np.float32), "wrench": wrench})

    def command(self, action: np.ndarray) -> None:
        """Run the joints at these velocities."""
        self._motors.run(action)

    def hold(self) -> None:
        """Run to a standstill; this controller needs no other stop."""
        self._motors.run(np.zeros(JOINTS))

    def emergency_stop(self) -> None:
        """Close the brakes."""
        self._motors.brake()

    def home(self, seed: int | None = None) -> None:
        """All joints to zero. A real arm takes its time here."""
        self._motors = _Motors()


def make() -> RobotEnv:
    """The arm as an environment. On a real one, ``operator=lambda: input("Scene ready? ")`` waits for a person."""
    limits = Limits("joint_velocity", "joint_position", low=-2.0, high=2.0, speed=1.0, force="contact", force_n=20.0)
    return as_env(Watchdog(ExampleArm(), [limits]), operator=None)


class _Motors:
    """In place of a driver: first-order velocity servos, computed when somebody looks."""

    LAG_S, SPRING_AT, SPRING_N = 0.02, 2.5, 100.0  # s, rad, N/rad

    def __init__(self) -> None:
        self._position, self._velocity, self._target = (np.zeros(JOINTS) for _ in range(3))
        self._then_s = time.perf_counter()

    def read(self) -> tuple[np.ndarray, np.ndarray, float]:
        now_s = time.perf_counter()
        passed_s, self._then_s = now_s - self._then_s, now_s
        late = np.exp(-passed_s / self.LAG_S)  # the share of the lag that is left, in closed form
        self._position = (
            self._position + self._target * passed_s + (self._velocity - self._target) * self.LAG_S * (1 - late)
        )
        self._velocity = self._target + (self._velocity - self._target) * late
        return self._position, self._velocity, self.SPRING_N * max(self._position[0] - self.SPRING_AT, 0.0)

    def run(self, velocity: np.ndarray) -> None:
        self.read()
        self._target = np.asarray(velocity, float)

    def brake(self) -> None:
        self.read()
        self._velocity, self._target = np.zeros(JOINTS), np.zeros(JOINTS)
