"""A robot as a Gymnasium environment, so that whatever runs in a simulator runs on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from ...agents.agent import Action, Observation
from ..clock import Wall
from .robot import Reading, Robot, RobotStopped
from .watchdog import INTERVENTIONS, Watchdog


class RobotEnv(gymnasium.Env):
    """A robot under guard as an environment: ``step`` commands, waits for the end of the tick, and observes.

    ``reset`` sends the robot home and then calls ``operator()``, which returns once a person is ready (the default
    waits for nobody). Ticks are absolute deadlines on ``clock``. An executor on the wall clock puts its own there, so
    that both count from one origin; otherwise they count from the first step, and anew from a step that comes more
    than half a tick late, because a caller that thinks between steps still means a whole tick by each. Reward, end and
    ``info`` come from the readings; ``info["metrics"]`` also counts the watchdog's interventions of this episode. An
    episode is truncated after the card's ``episode_ticks``, where it has them. The robot is held once it is over.

    Raises what the robot raises: ``RobotStopped``, ``RobotLost``.
    """

    metadata = {"render_modes": []}

    def __init__(self, robot: Watchdog, operator: Callable[[], None] | None = None):
        self.robot = robot
        self.interface = robot.interface
        self.observation_space, self.action_space = robot.observation_space, robot.action_space
        self.clock = self._own_clock = Wall()
        self._operator = operator
        self._tick_s = 1.0 / (robot.interface.control_hz or 1.0)
        self._tick = 0
        self._counted_from: int | None = 0  # the tick at time zero of the clock
        self._before = robot.interventions.copy()
        self._told = Reading(None)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Home the robot and wait for the operator; ``options`` are not used."""
        super().reset(seed=seed)
        self.robot.hold()
        self.robot.home(seed)
        if self._operator:
            self._operator()
        self._tick, self._counted_from = 0, None
        self._before = self.robot.interventions.copy()
        self._told = reading = self.robot.observe()
        return reading.observation, dict(reading.info)

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Command ``action`` and return what is seen when its tick is over."""
        if self.clock is not self._own_clock:
            self._counted_from = 0
        elif self._counted_from is None or self._passed_s() < self.clock.now_s() - self._tick_s / 2:
            self.clock.start()
            self._counted_from = self._tick
        self.robot.command(action)
        self._tick += 1
        self.clock.wait_until(self._passed_s())
        if self.stopped:
            raise RobotStopped(f"the emergency stop came during the tick ({self.stopped})")
        before, self._told = self._told, self.robot.observe()
        reading, info = self._told, dict(self._told.info)
        if info.get("event") == before.info.get("event"):
            info.pop("event", None)
        counts = {f"robot_{kind}": float(self.robot.interventions[kind] - self._before[kind]) for kind in INTERVENTIONS}
        info["metrics"] = {**info.get("metrics", {}), **counts}
        truncated = self._tick >= (self.interface.episode_ticks or self._tick + 1) and not reading.over
        if reading.over or truncated:
            self.robot.hold()
        reward = reading.episode_return - before.episode_return
        return reading.observation, reward, reading.over, truncated, info

    def _passed_s(self) -> float:
        """The time of the present tick on the clock."""
        return (self._tick - (self._counted_from or 0)) * self._tick_s

    @property
    def stopped(self) -> str | None:
        """Why the emergency stop is latched, if it is; `run` keeps a stopped robot as it is."""
        return self.robot.stopped

    def close(self) -> None:
        """Hold the robot and let go of it."""
        self.robot.close()


def as_env(robot: Robot, operator: Callable[[], None] | None = None) -> RobotEnv:
    """The robot as an environment; one without a :class:`Watchdog` gets one with its defaults and no limits."""
    return RobotEnv(robot if isinstance(robot, Watchdog) else Watchdog(robot), operator)
