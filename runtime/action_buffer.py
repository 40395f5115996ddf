"""The queue between a plan and the robot, keyed by absolute control tick."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Planned(NamedTuple):
    """An action with the tick of the observation that it was planned on."""

    action: Any
    observed_tick: int


class ActionBuffer:
    """Actions by tick; each is executed at most once and never out of order.

    A part whose observation is older than the newest accepted one is ignored, as is what lies in the past or in
    the committed prefix of the plan under way. Everything else replaces what was there, or, with ``ensemble`` = m,
    joins it: an executed action is then the mean of all plans for its tick with weights exp(-m i), i = 0 for the
    oldest plan (temporal ensembling; Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost
    Hardware", with m = 0.01). A negative m favours the newest. Actions are then arrays.
    """

    def __init__(self, ensemble: float | None = None) -> None:
        self._ensemble = ensemble
        self._planned: dict[int, Planned] = {}
        self._plans: dict[int, list[Any]] = {}  # with an ensemble: the actions of each tick, oldest first
        self._next_tick = 0
        self._pinned_until = 0
        self._newest_observed = -1
        self.ignored = 0

    def put(self, tick: int, actions: Sequence[Any], observed_tick: int) -> None:
        """Store ``actions`` for ``tick, tick+1, ...``; what may not be stored is counted in ``ignored``."""
        if observed_tick < self._newest_observed:
            self.ignored += len(actions)
            return
        self._newest_observed = observed_tick
        first = max(self._next_tick, self._pinned_until)
        for offset, action in enumerate(actions):
            if tick + offset < first:
                self.ignored += 1
            else:
                self._planned[tick + offset] = Planned(self._joined(tick + offset, action), observed_tick)

    def __contains__(self, tick: int) -> bool:
        return tick in self._planned

    def pop(self, tick: int) -> Planned | None:
        """The action of this tick, or ``None`` where the buffer has run dry. Ticks must not go back."""
        self._next_tick = tick + 1
        self._plans.pop(tick, None)
        return self._planned.pop(tick, None)

    def commit(self, tick: int, delay: int) -> list[Any]:
        """Pin up to ``delay`` actions from ``tick`` on and return them: they run whatever is planned now."""
        prefix = []
        for pinned in range(tick, tick + delay):
            planned = self._planned.get(pinned)
            if planned is None:
                break
            prefix.append(planned.action)
        self._pinned_until = tick + len(prefix)
        return prefix

    def clear(self) -> None:
        """Forget what is not yet executed."""
        self._planned.clear()
        self._plans.clear()
        self._pinned_until = 0

    def end(self) -> int:
        """The first tick without an action after the run that begins at the next tick."""
        tick = self._next_tick
        while tick in self._planned:
            tick += 1
        return tick

    def _joined(self, tick: int, action: Any) -> Any:
        if self._ensemble is None:
            return action
        plans = self._plans.setdefault(tick, [])
        plans.append(action)
        exponents = -self._ensemble * np.arange(len(plans))
        weights = np.exp(exponents - exponents.max())  # the largest is one, however strong the preference
        mean = np.tensordot(weights / weights.sum(), np.stack(plans), axes=1)
        return mean.astype(np.asarray(action).dtype)


class DelayEstimator:
    """How many ticks pass until a plan's first new action is here: the 95th percentile.

    ``observe`` takes latencies in seconds; ``ticks`` is 0 before the first one. There is no margin on top: it would put
    off every new plan, and where one does come later than expected, the old one goes on until it is there.
    """

    def __init__(self, tick_s: float, window: int = 100):
        self._tick_s = tick_s
        self._seen: deque[float] = deque(maxlen=window)
        self.ticks = 0

    def observe(self, latency_s: float) -> None:
        """Add a measured latency."""
        self._seen.append(latency_s)
        ordered = sorted(self._seen)
        worst = ordered[min(len(ordered) - 1, math.ceil(0.95 * len(ordered)) - 1)]
        # a latency of exactly n ticks must not become n+1 through rounding
        self.ticks = math.ceil(worst / self._tick_s - 1e-9)
