"""The noise schedule of the video: a shift towards noise, the grid of the sampler, and the weight of the loss.

Time t runs from 1 (noise) to 0 (clean), as for actions. A shift above 1 spends more of training and sampling near the
noise, where large pictures are decided (Esser et al., "Scaling Rectified Flow Transformers for High-Resolution Image
Synthesis", Section 5.3.2). ``diffusers`` has the same in ``FlowMatchEulerDiscreteScheduler(shift=...)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_LEAST = math.exp(-0.5)  # of the bell below, reached at both ends of the time


@dataclass(frozen=True)
class ShiftedFlow:
    """A schedule with ``shift`` > 0 (1: none), whose loss weight has mean 1 over a grid of ``train_steps`` times."""

    shift: float = 1.0
    train_steps: int = 1000

    def __post_init__(self) -> None:
        if not 0 < self.shift < math.inf:
            raise ValueError(f"shift={self.shift}, expected a number above 0; 1 shifts nothing")
        if self.train_steps < 1:
            raise ValueError(f"train_steps={self.train_steps}, expected at least 1")

    def phi(self, u: Tensor) -> Tensor:
        """``u`` in [0, 1] to the shifted time, ``s u / (1 + (s - 1) u)``."""
        return self.shift * u / (1 + (self.shift - 1) * u)

    def grid(self, steps: int) -> Tensor:
        """Times [steps + 1] from 1 to 0, in float64, of an Euler sampler with ``steps`` >= 1 steps."""
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"steps={steps}, expected a whole number of at least 1")
        return self.phi(torch.linspace(1, 0, steps + 1, dtype=torch.float64))

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        """Times [size] to train on: the shift of uniform ones."""
        return self.phi(torch.rand(size, generator=generator))

    def weight(self, t: Tensor) -> Tensor:
        """The weight of the loss at times ``t``: a bell around the middle, 0 at both ends and 1 in the mean."""
        return (_bell(t) - _LEAST) / self._mean

    @cached_property
    def _mean(self) -> float:
        times = self.phi(torch.arange(1, self.train_steps + 1, dtype=torch.float64) / self.train_steps)
        return float((_bell(times) - _LEAST).mean())


def _bell(t: Tensor) -> Tensor:
    return torch.exp(-2 * (t - 0.5) ** 2)
