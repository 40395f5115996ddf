"""The contract of a robot: a few methods in front of a driver, and a card that says what its numbers mean."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import Space

from ...agents.agent import Action, Observation
from ...envs.interface import Interface


class RobotStopped(RuntimeError):
    """The emergency stop is latched: nothing moves until a person has released it."""


class RobotLost(RuntimeError):
    """The robot does not answer, or what it says is too old."""


@dataclass(frozen=True)
class Reading:
    """What a robot saw, and when.

    ``time_s`` is the moment of capture on this host's ``time.perf_counter()``; a driver with a clock of its own
    converts. What follows is for robots that can judge a task (a simulated one, a scale under the table):
    ``episode_return`` is the reward since ``home``, ``over`` is true once the task has ended, and ``info`` has our
    usual keys (``success``, ``score``, ``metrics``, the newest ``event``).
    """

    observation: Observation
    time_s: float = field(default_factory=time.perf_counter)
    episode_return: float = 0.0
    over: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


class Robot(ABC):
    """A robot at the control rate of its card, ``interface.control_hz``.

    Called by one thread at a time, except ``emergency_stop``. Every method returns or raises within a fraction of
    a tick (``home`` apart); what the hardware does goes on afterwards. A driver that fails raises ``RobotLost``.
    ``simulated`` says that nothing real moves, so that nobody has to step back first.
    """

    simulated: bool = False
    interface: Interface
    observation_space: Space
    action_space: Space

    @abstractmethod
    def observe(self) -> Reading:
        """The newest reading; looking changes nothing."""

    @abstractmethod
    def command(self, action: Action) -> None:
        """Do ``action``, a member of the action space, from now on and until told otherwise."""

    @abstractmethod
    def hold(self) -> None:
        """Stop as smoothly as the hardware can, and stay there with the motors on."""

    @abstractmethod
    def emergency_stop(self) -> None:
        """Stop as fast as the hardware can. Callable at any time, from any thread, more than once."""

    def home(self, seed: int | None = None) -> None:
        """Go to where episodes begin and return once there. ``seed`` draws the start of a simulated world."""
        self.hold()

    def picture(self) -> np.ndarray | None:
        """What a person would see now, uint8 [H, W, 3]; ``None`` from a robot that nobody films."""
        return None

    def close(self) -> None:  # noqa: B027 - not every driver holds something open
        """Let go of the hardware; it is held first. Safe to call twice."""
