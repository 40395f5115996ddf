"""Sampling schedules: which time each action of a chunk has after each step of the sampler.

Time runs from 1 (noise) to 0 (clean). A schedule is a value; ``taus(delay)`` is a table [steps + 1, horizon] whose
column i is the path of action i, and whose first ``delay`` columns are 0: those actions are given.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

FINAL = 1e-4
"""An action whose time is below this is final; exact zero would fail by rounding."""


MOST = 10_000
"""Steps and actions that anybody could want."""


class Schedule(Protocol):
    """What the sampler and the loss need of a schedule."""

    @property
    def horizon(self) -> int:
        """Actions a chunk."""

    @property
    def steps(self) -> int:
        """Evaluations of the network a plan."""

    def taus(self, delay: int = 0) -> Tensor:
        """Times [steps + 1, horizon] before, between and after the steps, with ``delay`` given actions.

        Raises ``ValueError`` for a ``delay`` outside [0, horizon).
        """

    def training_tau(self, rho: Tensor, delay: Tensor) -> Tensor:
        """Times [B, horizon] at the global progress ``rho`` [B] in (0, 1], with ``delay`` [B] given actions."""


@dataclass(frozen=True)
class ConstantSchedule:
    """Every action has the same time, so all become final with the last step. ``horizon`` and ``steps`` >= 1."""

    horizon: int
    steps: int

    def __post_init__(self) -> None:
        _at_least_one(horizon=self.horizon, steps=self.steps)

    def taus(self, delay: int = 0) -> Tensor:
        """Equal steps from 1 to 0 for the actions from ``delay`` on."""
        return _table(self, delay)

    def training_tau(self, rho: Tensor, delay: Tensor) -> Tensor:
        """``rho`` for every action but the given ones, which have time 0."""
        return rho[:, None] * _free(self.horizon, delay)


@dataclass(frozen=True)
class HorizonAwareSchedule:
    """Near actions reach time 0 before far ones: the first one after a single step.

    Action i hits 0 at the global progress ``u_i = (1 - j ** alpha) * first_hit``, j in [0, 1] being its place among
    the actions that are not given, and runs linearly from 1 to 0 until then ("FASTER: Rethinking Real-Time Flow VLAs",
    arXiv 2603.19199, Eqs. 5-8). ``alpha`` in (0, 1]: 1 spaces the hits evenly, less leaves most actions almost the
    constant schedule. ``first_hit`` in [0, 1) is u of the first action, default ``(steps - 1) / steps``; at 0 the
    schedule is the constant one.
    """

    horizon: int
    steps: int
    alpha: float = 0.6
    first_hit: float | None = None

    def __post_init__(self) -> None:
        _at_least_one(horizon=self.horizon, steps=self.steps)
        if isinstance(self.alpha, str | bool) or not 0 < self.alpha <= 1:
            raise ValueError(f"alpha={self.alpha}, expected 0 < alpha <= 1")
        if self.first_hit is not None and not 0 <= self.first_hit < 1:
            raise ValueError(
                f"first_hit={self.first_hit}, expected 0 <= first_hit < 1, or None for (steps - 1) / steps"
            )

    def hit_times(self, delay: Tensor) -> Tensor:
        """The global progress [B, horizon] at which each action is final; ``delay`` [B] actions are given."""
        first = (self.steps - 1) / self.steps if self.first_hit is None else self.first_hit
        index = torch.arange(self.horizon, device=delay.device, dtype=torch.float64)
        last = (self.horizon - 1 - delay).clamp(min=1)
        place = ((index - delay[:, None]) / last[:, None]).clamp(0, 1)
        return (1 - place**self.alpha) * first

    def taus(self, delay: int = 0) -> Tensor:
        """The paths of the actions from ``delay`` on; their sum of steps is -1 each, whenever it is taken."""
        return _table(self, delay)

    def training_tau(self, rho: Tensor, delay: Tensor) -> Tensor:
        """Where each action is at the global progress ``rho``; 0 for given and for finished actions."""
        hits = self.hit_times(delay)
        tau = ((rho[:, None].double() - hits) / (1 - hits)).clamp(0, 1)
        return tau.to(rho.dtype) * _free(self.horizon, delay)


SCHEDULES = ("constant", "has")
"""The names of the schedules on cards and in options."""


def make_schedule(name: str, horizon: int, steps: int, alpha: float = 0.6) -> Schedule:
    """A schedule by name; ``alpha`` is read by ``has`` alone. Raises ``ValueError`` for an unknown name."""
    match name:
        case "constant":
            return ConstantSchedule(horizon, steps)
        case "has":
            return HorizonAwareSchedule(horizon, steps, alpha)
    raise ValueError(f"schedule={name!r} is not known; choose one of {', '.join(SCHEDULES)}")


def ready_after(taus: Tensor, delay: int = 0) -> list[range]:
    """Which actions become final with each step of a table [steps + 1, horizon]: always the next few in a row."""
    counts = [delay, *((row < FINAL).sum().item() for row in taus[1:])]
    return [range(int(a), int(b)) for a, b in pairwise(counts)]


def _table(schedule: Schedule, delay: int) -> Tensor:
    if not 0 <= delay < schedule.horizon:
        raise ValueError(f"delay={delay}, expected 0 <= delay < horizon={schedule.horizon}")
    progress = torch.linspace(1.0, 0.0, schedule.steps + 1)
    table = schedule.training_tau(progress, torch.full_like(progress, delay, dtype=torch.long))
    return torch.where(table < FINAL, 0.0, table)  # what is final moves no more


def _free(horizon: int, delay: Tensor) -> Tensor:
    return torch.arange(horizon, device=delay.device) >= delay[:, None]


def _at_least_one(**arguments: int) -> None:
    for argument, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
            raise ValueError(f"{argument}={value}, expected a whole number, at least 1 and at most {MOST}")
