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

FINAL = 1e-2
"""An action whose time is below this is final; exact zero would fail by rounding."""


class Schedule(Protocol):
    """What the sampler and the loss need of a schedule."""

    @property
    def horizon(self) -> int:
        """Actions a chunk."""

    @property
    def steps(self) -> int:
        """Evaluations of the network a plan."""

    def taus(self, delay: int = 0) -> Tensor:
        """Times [steps + 1, horizon] before, between and after the steps, with ``delay`` given actions."""

    def training_tau(self, rho: Tensor, delay: Tensor) -> Tensor:
        """Times [B, horizon] at the global progress ``rho`` [B] in (0, 1], with ``delay`` [B] given actions."""


@dataclass(frozen=True)
class ConstantSchedule:
    """Every action has the same time, so all become final with the last step. ``horizon`` and ``steps`` >= 1."""

    horizon: int
    steps: int

    def __post_init__(self) -> None:
        for argument in ("horizon", "steps"):
            if getattr(self, argument) < 1:
                raise ValueError(f"{argument}={getattr(self, argument)}, expected at least 1")

    def taus(self, delay: int = 0) -> Tensor:
        """Equal steps from 1 to 0 for the actions from ``delay`` on. Raises ``ValueError`` outside [0, horizon)."""
        if not 0 <= delay < self.horizon:
            raise ValueError(f"delay={delay}, expected 0 <= delay < horizon={self.horizon}")
        table = torch.linspace(1.0, 0.0, self.steps + 1)[:, None].repeat(1, self.horizon)
        table[:, :delay] = 0.0
        return table

    def training_tau(self, rho: Tensor, delay: Tensor) -> Tensor:
        """``rho`` for every action but the given ones, which have time 0."""
        index = torch.arange(self.horizon, device=rho.device)
        return rho[:, None] * (index >= delay[:, None])


def ready_after(taus: Tensor, delay: int = 0) -> list[range]:
    """Which actions become final with each step of a table [steps + 1, horizon]: always the next few in a row."""
    counts = [delay, *((row < FINAL).sum().item() for row in taus[1:])]
    return [range(int(a), int(b)) for a, b in pairwise(counts)]
