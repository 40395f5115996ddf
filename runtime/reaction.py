"""How soon an agent reacts to an event: closed forms, and the probe that measures it.

Source: "FASTER: Rethinking Real-Time Flow VLAs" (arXiv 2603.19199), Table 1. An event falls at a uniformly
random moment, is seen by the next observation that a plan is made from, and is answered by the first action of
that plan; the reaction time is therefore uniform between the time to the first action and that time plus the
interval between two plans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .action_buffer import Planned
from .latency import LatencyModel


@dataclass(frozen=True)
class ReactionTime:
    """A uniform distribution of reaction times between ``low_s`` and ``high_s`` seconds."""

    low_s: float
    high_s: float

    @property
    def mean_s(self) -> float:
        """The expected reaction time in seconds."""
        return (self.low_s + self.high_s) / 2

    def probability_faster(self, other: ReactionTime) -> float:
        """The chance that a draw from this distribution is below a draw from ``other``."""
        points = 10_001
        total = 0.0
        for k in range(points):
            x = self.low_s + (self.high_s - self.low_s) * (k + 0.5) / points
            total += min(max((other.high_s - x) / (other.high_s - other.low_s), 0.0), 1.0)
        return total / points


def reaction_time(mode: str, first_action_s: float, horizon: int, tick_s: float, delay: int = 0) -> ReactionTime:
    """The closed form for an agent whose first action is ready ``first_action_s`` after its observation.

    ``mode`` is ``sync``, ``async`` or ``prefix``; ``horizon`` is the number of ticks executed per plan and
    ``tick_s`` the control period. Actions start at tick edges, so the time to the first action counts rounded
    up to whole ticks; with a fine control grid this is the published table to the letter. For an agent that
    streams, ``first_action_s`` is the time to its first part. ``delay`` is the number of committed ticks in mode
    ``prefix``: a plan never takes effect before they are over. Raises ``ValueError`` for an unknown mode.
    """
    first = max(math.ceil(first_action_s / tick_s - 1e-9), delay) * tick_s
    execution = horizon * tick_s
    if mode == "sync":
        return ReactionTime(first, 2 * first + execution)
    if mode in ("async", "prefix"):
        return ReactionTime(first, first + execution)
    raise ValueError(f"mode={mode!r} has no closed form; expected sync, async or prefix")


def arrivals_s(latency: LatencyModel, ready: Sequence[Sequence[int]]) -> list[float]:
    """When each action of a plan arrives, in seconds after its observation.

    ``ready`` are the actions that become final with each evaluation of the network, as
    ``models.flow.schedules.ready_after`` gives them.
    """
    times: list[float] = []
    sends = 0
    for evaluations, actions in enumerate(ready, 1):
        sends += len(actions) > 0
        times += [latency.seconds(1, evaluations, sends)] * len(actions)
    return times


def min_execution_horizon(arrivals_s: Sequence[float], tick_s: float) -> int | None:
    """The fewest ticks between two plans: the smallest s of which the s-th action arrives within s ticks.

    ``arrivals_s`` are the arrivals of the actions that were not given, in order. ``None`` where no s will do, because
    the chunk is over before its actions arrive (arXiv 2603.19199, Table 2).
    """
    return next((s for s, time_s in enumerate(arrivals_s, 1) if time_s <= s * tick_s + 1e-9), None)


class ReactionProbe:
    """Collects reaction times: from an event in the world to the first action planned on what came after it."""

    def __init__(self, tick_s: float):
        self._tick_s = tick_s
        self._open: list[float] = []
        self.reactions_s: list[float] = []

    def event(self, time_s: float) -> None:
        """The world did something to react to at ``time_s`` after the reset."""
        self._open.append(time_s)

    def executed(self, tick: int, planned: Planned) -> None:
        """``planned`` begins to run at ``tick``; closes every event that its observation could show."""
        if not self._open:
            return
        observed_s = planned.observed_tick * self._tick_s + 1e-9
        self.reactions_s += [tick * self._tick_s - event for event in self._open if event <= observed_s]
        self._open = [event for event in self._open if event > observed_s]
