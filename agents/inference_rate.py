"""How often a multi-rate agent plans within a slow cycle: evenly, at random, by what it feels, or by what it foresees.

The subject of "FAVLA: A Force-Adaptive Fast-Slow VLA model for Contact-Rich Robotic Manipulation" (arXiv 2602.23648),
whose adaptive frequency is :class:`Fami`; the others are what it has to be compared with at as many calls.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Foresight = Callable[[np.ndarray], np.ndarray]
"""Actions [n, D] to the wrenches [n, 6] that they would lead to: a world's ``foresee``."""


class Cycle(NamedTuple):
    """What is known when a slow cycle begins: its ``number`` in the episode, a ``phase`` in [0, 1) that the episode
    drew, the forecast ``y_hat`` in [0, 1], the present ``force_n``, a source of chance, and the actions [n, D] that
    would follow if nothing were planned anew."""

    number: int
    phase: float
    y_hat: float
    force_n: float
    draw: np.random.Generator
    going_on: np.ndarray


class Rate(ABC):
    """Decides the number of calls in a cycle; ``most`` is the largest it ever says."""

    most: int

    @abstractmethod
    def calls(self, cycle: Cycle) -> int:
        """How many calls, 1 to ``most``."""


def call_ticks(calls: int, period: int) -> tuple[int, ...]:
    """The ticks of a cycle of ``period`` ticks at which ``calls`` plans are made: evenly spaced, the first at 0.

    Raises ``ValueError`` for fewer than one or more than one a tick.
    """
    if not 1 <= calls <= period:
        raise ValueError(f"calls={calls}, expected 1 to {period}, one for each tick of the slow cycle")
    return tuple(i * period // calls for i in range(calls))


def quantized(y: float, most: int) -> int:
    """The paper's rule: ``max(1, ceil(y most))`` for a forecast in [0, 1]."""
    return max(1, math.ceil(min(max(y, 0.0), 1.0) * most))


class Fami(Rate):
    """Adaptive: as many calls as the forecast of the force's variance asks for, up to ``most``."""

    def __init__(self, most: int) -> None:
        self.most = _at_least_one("most", most)

    def calls(self, cycle: Cycle) -> int:
        """``max(1, ceil(y_hat most))``."""
        return quantized(cycle.y_hat, self.most)


class Static(Rate):
    """The same number in every cycle. Where it is not whole, cycles alternate, and the episode's phase says which one
    begins: over many episodes the mean is right however short they are."""

    def __init__(self, calls: float) -> None:
        if not 1 <= calls < math.inf:
            raise ValueError(f"calls={calls}, expected a number of at least 1")
        self.mean = float(calls)
        self.most = math.ceil(calls)

    def calls(self, cycle: Cycle) -> int:
        """The next of a sequence that is as even as can be."""
        return self._until(cycle.number + 1, cycle.phase) - self._until(cycle.number, cycle.phase)

    def _until(self, number: int, phase: float) -> int:
        """How many calls come before a cycle: the whole part of number * mean + phase, which a sum would round up."""
        whole, part = divmod(number * self.mean, 1.0)
        return int(whole) + (part >= 1.0 - phase)


class Random(Rate):
    """``most`` calls or one, by chance, so that the mean is ``calls``."""

    def __init__(self, calls: float, most: int) -> None:
        self.most = _at_least_one("most", most)
        if not 1 <= calls <= most:
            raise ValueError(f"calls={calls}, expected a mean from 1 to most={most}")
        self._share = (calls - 1) / (most - 1) if most > 1 else 0.0

    def calls(self, cycle: Cycle) -> int:
        """Drawn."""
        return self.most if cycle.draw.random() < self._share else 1


class Threshold(Rate):
    """Reactive, once a cycle: ``most`` calls where more than ``force_n`` is felt when it begins, else one."""

    def __init__(self, force_n: float, most: int) -> None:
        self.most = _at_least_one("most", most)
        if not force_n >= 0:
            raise ValueError(f"force_n={force_n}, expected a force of 0 N or more")
        self._force_n = force_n

    def calls(self, cycle: Cycle) -> int:
        """By what is felt now."""
        return self.most if cycle.force_n > self._force_n else 1


class Oracle(Rate):
    """Told the future: the forecast is replaced by what would be felt if the robot went on as it does.

    ``label`` is how forecasts were labelled (``window``, ``weights``, ``sigma``, see ``models.favla.variance``).
    """

    def __init__(self, most: int, foresee: Foresight, label: dict[str, Any]) -> None:
        self.most = _at_least_one("most", most)
        self._foresee, self._label = foresee, label

    def calls(self, cycle: Cycle) -> int:
        """As :class:`Fami`, from the variance that is coming."""
        felt = self._foresee(cycle.going_on)
        deviation = math.sqrt(float(felt.var(axis=0) @ np.asarray(self._label["weights"])))
        return quantized(math.tanh(deviation / self._label["sigma"]), self.most)


def _at_least_one(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r}, expected a whole number of at least 1")
    return value
