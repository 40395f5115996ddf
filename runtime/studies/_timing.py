"""Ways to act while thinking, and when the actions of each arrive under a latency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...models.spec import parse_spec
from ..executor import Execution
from ..latency import LatencyModel, profile
from ..reaction import arrivals_s, min_execution_horizon

CHUNK, TICK_S = 24, 1 / 30  # actions a plan of the networks here, and the control period of the worlds
FREE = 4  # ticks between plans where thinking takes no time


@dataclass(frozen=True)
class Method:
    """A way to act: which network, how it is sampled, and how executed."""

    name: str
    network: str
    mode: str
    sampling: str
    ensemble: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options of its sampling."""
        return dict(parse_spec(f"flow:{self.sampling}").options)


class Timing(NamedTuple):
    """Ticks: ``delay`` until a plan's first action is here, ``horizon`` between two plans; and its arrivals in s."""

    delay: int
    horizon: int
    arrivals_s: list[float]


def timing(method: Method, latency: LatencyModel) -> Timing:
    """When a method's actions arrive under a latency, and the shortest horizon at which none comes too late."""
    from ...models.flow.schedules import make_schedule, ready_after

    options = method.options
    schedule = make_schedule(options["schedule"], CHUNK, options["steps"], options.get("alpha", 0.6))
    if latency.name == "zero":
        return Timing(0, FREE, arrivals_s(latency, ready_after(schedule.taus())))
    first_s = arrivals_s(latency, ready_after(schedule.taus()))[0]
    delay = math.ceil(first_s / TICK_S - 1e-9)
    arrivals = arrivals_s(latency, ready_after(schedule.taus(delay), delay))
    horizon = min_execution_horizon(arrivals, TICK_S)
    if horizon is None:
        raise ValueError(f"{method.name} under {latency.name}: chunks of {CHUNK} are over before they arrive")
    return Timing(delay, max(horizon, delay), arrivals)


def execution_of(method: Method, name: str) -> Execution:
    """How a method is executed under a latency profile: as its own arrivals allow."""
    delay, horizon, _ = timing(method, profile(name))
    return Execution(
        mode=method.mode,  # type: ignore[arg-type]
        horizon=horizon,
        delay=delay if method.mode == "prefix" else None,
        ensemble=method.ensemble,
    )
