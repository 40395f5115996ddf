"""The clocks under the one executor: who waits for whom.

===========  ==================================  ==============================================
clock        while the agent thinks              thinking time
===========  ==================================  ==============================================
lockstep     the world waits                     none
virtual      the world goes on                   from a :class:`~.latency.LatencyModel` (data)
===========  ==================================  ==============================================

A clock that follows real time derives from the same class: it overrides ``wait_until`` and measures
``thinking_s`` instead of looking it up.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from ..agents.agent import ActionPart
from .latency import LatencyModel


class Clock(ABC):
    """Says when work that begins now is done. Times are seconds since the reset of the episode."""

    name: str
    profile: str | None = None
    waits_for_agent: bool = False

    @abstractmethod
    def thinking_s(self, encodes: int, evaluations: int, sends: bool) -> float:
        """How long the agent's last piece of work took on this clock."""

    def wait_until(self, time_s: float) -> None:  # noqa: B027 - simulated time does not pass by itself
        """Return once the clock shows ``time_s``; simulated clocks return at once."""


class Lockstep(Clock):
    """The world waits for the agent: what most benchmarks measure."""

    name = "lockstep"
    waits_for_agent = True

    def thinking_s(self, encodes: int, evaluations: int, sends: bool) -> float:
        """Nothing: no simulated time passes."""
        return 0.0


class Virtual(Clock):
    """The world goes on while the agent thinks; deterministic, machine independent, faster than real time."""

    name = "virtual"

    def __init__(self, latency: LatencyModel):
        self.latency = latency
        self.profile = latency.name

    def thinking_s(self, encodes: int, evaluations: int, sends: bool) -> float:
        """What the latency model says."""
        return self.latency.seconds(encodes, evaluations, sends)


class Pending:
    """A plan under way: its parts become visible when the clock reaches their arrival.

    ``ttfa_s`` is the time to the first action on the clock, ``compute_s`` the real time that the work took.
    """

    def __init__(self, clock: Clock, tick: int, start_s: float):
        self._clock = clock
        self.tick = tick
        self.finish_s = self.start_s = start_s
        self.ttfa_s: float | None = None
        self.first_actions_s: float | None = None
        self.compute_s = 0.0
        self.evaluations = 0
        self.encodes = 0
        self.actions = 0
        self.replan_in: int | None = None
        self._began = time.perf_counter()
        self._parts: list[tuple[float, ActionPart]] = []
        self._next = 0

    def push(self, part: ActionPart) -> None:
        """Take in the next part of the plan and stamp its arrival."""
        sends = len(part.actions) > 0
        self.finish_s += self._clock.thinking_s(part.encodes, part.evaluations, sends)
        self.encodes += part.encodes
        self.evaluations += part.evaluations
        self.compute_s = time.perf_counter() - self._began
        if part.replan_in is not None:
            self.replan_in = part.replan_in
        if sends:
            self.actions += len(part.actions)
            self._parts.append((self.finish_s, part))
            if self.ttfa_s is None:
                self.ttfa_s = self.finish_s - self.start_s
                self.first_actions_s = self.compute_s

    @property
    def open(self) -> bool:
        """Whether parts are still on their way."""
        return self._next < len(self._parts)

    def arrived(self, now_s: float) -> list[ActionPart]:
        """The parts that arrived by ``now_s`` and were not handed out before."""
        first = self._next
        while self._next < len(self._parts) and self._parts[self._next][0] <= now_s:
            self._next += 1
        return [part for _, part in self._parts[first : self._next]]

    def finished(self, now_s: float) -> bool:
        """Whether the agent is done with this plan and free for the next one."""
        return not self.open and self.finish_s <= now_s
