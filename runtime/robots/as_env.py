"""A robot as a Gymnasium environment, so that whatever runs in a simulator runs on it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np

from ...agents.agent import Action, Observation
from ...models.spec import Spec
from ..clock import Wall
from ..registry import load
from .robot import Reading, Robot, RobotStopped
from .watchdog import INTERVENTIONS, Watchdog


class RobotEnv(gymnasium.Env):
    """A robot under guard as an environment: ``step`` commands, waits for the end of the tick, and observes.

    ``reset`` sends the robot home and then calls ``operator()``, which returns once a person is ready (the default
    waits for nobody). Ticks are absolute deadlines on ``clock``. An executor on the wall clock puts its own there, so
    that both count from one origin; otherwise they count from the first step, and anew from a step that comes more
    than half a tick late, because a caller that thinks between steps still means a whole tick by each. Reward, end and
    ``info`` come from the readings; ``info["metrics"]`` also counts the watchdog's interventions of this episode. An
    episode is truncated after the card's ``episode_ticks``, where it has them. The robot is held once it is over, and
    at once where a step is interrupted (Ctrl-C) or fails. ``render`` gives the robot's picture, where it has one.

    Raises what the robot raises: ``RobotStopped``, ``RobotLost``.
    """

    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def __init__(self, robot: Watchdog, operator: Callable[[], None] | None = None):
        self.robot = robot
        self.interface = robot.interface
        self.observation_space, self.action_space = robot.observation_space, robot.action_space
        self.metadata = {**self.metadata, "render_fps": robot.interface.control_hz}
        self.clock = self._own_clock = Wall()
        self.operator = operator
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
        if self.operator:
            self.operator()
        self._tick, self._counted_from = 0, None
        self._before = self.robot.interventions.copy()
        self._told = reading = self.robot.observe()
        return reading.observation, dict(reading.info)

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Command ``action`` and return what is seen when its tick is over."""
        try:
            return self._step(action)
        except BaseException:
            with suppress(Exception):  # what ended the step is the news
                self.robot.hold()
            raise

    def _step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
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
        """Why the emergency stop is latched, if it is."""
        return self.robot.stopped

    @property
    def irreplaceable(self) -> bool:
        """Whether a failure is no reason to make this robot anew: it is real, or it was stopped and stays so."""
        return not self.robot.simulated or self.stopped is not None

    def render(self) -> np.ndarray | None:
        """A picture for a person, uint8 [H, W, 3], or ``None`` where the robot has none."""
        return self.robot.picture()

    def close(self) -> None:
        """Hold the robot and let go of it."""
        self.robot.close()


def as_env(robot: Robot, operator: Callable[[], None] | None = None) -> RobotEnv:
    """The robot as an environment; one without a :class:`Watchdog` gets one with its defaults and no limits."""
    return RobotEnv(robot if isinstance(robot, Watchdog) else Watchdog(robot), operator)


def named_robot(spec: Spec, render: bool = False) -> RobotEnv:
    """The robot that a name stands for, under a watchdog, as an environment.

    ``robot:MODULE:NAME`` calls ``NAME`` of a module with the options of the spec: a :class:`Robot` class, or a function
    that returns one or the environment of one (where it sets limits). Raises ``ValueError`` for anything else.
    """
    make = load(spec.name.partition(":")[2])
    try:
        made = make(**spec.options)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"robot {str(spec)!r} cannot be made, {type(error).__name__}: {error}") from error
    if not isinstance(made, (Robot, RobotEnv)):
        raise ValueError(
            f"robot {str(spec)!r} is a {type(made).__name__}, expected a palaestra.runtime.robots.robot.Robot or what "
            f"as_env() makes of one; runtime/robots/example_arm.py shows how"
        )
    env = made if isinstance(made, RobotEnv) else as_env(made)
    if render and type(env.robot.robot).picture is Robot.picture:
        env.close()
        raise ValueError(f"robot {str(spec)!r} has no picture() to film; leave the video out")
    return env
