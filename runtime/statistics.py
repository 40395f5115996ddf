"""Intervals: a rate or a mean never stands alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Estimate:
    """A mean over ``n`` episodes with a 95 % interval."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def reach(self) -> tuple[float, float]:
        """How far below and above the mean the interval reaches, at least 0: the bars of a picture."""
        return max(self.mean - self.low, 0.0), max(self.high - self.mean, 0.0)

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def rate(successes: Sequence[bool]) -> Estimate | None:
    """A success rate with its Wilson score interval; ``None`` for no episodes."""
    return bounded_mean([float(bool(success)) for success in successes])


def bounded_mean(values: Sequence[float]) -> Estimate | None:
    """A mean of numbers in [0, 1] with its Wilson score interval; ``None`` for no values.

    No law on [0, 1] has a larger variance than a coin of the same mean, so the interval is wide enough for any; unlike
    a bootstrap it does not claim certainty where a few values are equal.
    """
    n = len(values)
    if n == 0:
        return None
    p, z = float(np.mean(values)), 1.959964
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Estimate(p, max(float(centre - half), 0.0), min(float(centre + half), 1.0), n)


def mean(values: Sequence[float], resamples: int = 2000) -> Estimate | None:
    """A mean with its percentile bootstrap interval; ``None`` for no values. The same values, the same interval."""
    if len(values) == 0:
        return None
    array = np.asarray(values, float)
    draws = np.random.default_rng(0).integers(len(array), size=(resamples, len(array)))
    low, high = np.quantile(array[draws].mean(axis=1), [0.025, 0.975])
    return Estimate(float(array.mean()), float(low), float(high), len(array))


def paired_difference(ours: np.ndarray, theirs: np.ndarray, resamples: int = 2000) -> Estimate:
    """The mean of ``ours - theirs`` [runs, episodes] with its bootstrap interval.

    The same column is the same episode, the same row the same training run. Both runs and episodes are drawn anew, so
    that a difference must hold for other trainings as for other episodes.
    """
    difference = np.atleast_2d(np.asarray(ours, float) - np.asarray(theirs, float))
    draw = np.random.default_rng(0)
    runs, episodes = difference.shape
    means = [
        difference[draw.integers(runs, size=runs)][:, draw.integers(episodes, size=episodes)].mean()
        for _ in range(resamples)
    ]
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(float(difference.mean()), float(low), float(high), episodes)
