"""The scheduling claim without learning: a script presses on a table of unknown height, and decides at its calls alone.

The agent runs through the executor like any other; its slow pass does nothing but begin a cycle. Approach at 6 cm/s
until something is felt, then hold 5 N by integral control, then lift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from ...agents.agent import ActionPart, Agent, Call, Episode
from ...agents.inference_rate import Cycle, Rate, call_ticks
from ...envs.contact.guarded_wipe import TICK_S, GuardedWipe
from ..executor import Executor

PERIOD = 16  # ticks of a slow cycle
CYCLES = 6  # of an episode: approach and hold in five, lift in the last
HOLD_N, APPROACH = 5.0, 0.06  # N, m/s
GAIN, LIMITS = 0.004, (-0.03, 0.08)  # m/s per N, m/s


class Pressed(NamedTuple):
    """One episode: the largest contact force (N), calls a slow cycle, and the mean error in the cycle before the lift
    (N)."""

    peak_n: float
    calls: float
    error_n: float


class Forecast(Rate):
    """Told whether the force will change in this cycle if the robot goes on as it does: then ``most`` calls."""

    def __init__(self, most: int, foresee: Callable[[np.ndarray], np.ndarray]) -> None:
        self.most, self._foresee = most, foresee

    def calls(self, cycle: Cycle) -> int:
        """By the deviation of the force to come."""
        return self.most if self._foresee(cycle.going_on)[:, 2].std() > 0.3 else 1


@dataclass
class _Memory:
    rate: Rate
    draw: np.random.Generator
    context: Any = None
    number: int = -1
    began: int = 0
    due: tuple[int, ...] = ()
    speed: float = -APPROACH


class Pressing(Agent):
    """The script, with a rate of its own for each episode."""

    encode_every = PERIOD

    def __init__(self, rate: Callable[[], Rate]):
        self._rate = rate

    def reset(self, episode: Episode) -> _Memory:
        """Nothing is known yet."""
        return _Memory(self._rate(), np.random.default_rng(np.random.SeedSequence(episode.seed, spawn_key=(2,))))

    def encode(self, memory: _Memory, observation: Any) -> object:
        """A new cycle."""
        return object()

    def plan(self, memory: _Memory, call: Call) -> Iterator[ActionPart]:
        """One speed for the rest of the cycle, from what is felt now."""
        felt_n = -float(call.observation["wrench"][-7:, 2].mean())
        if call.context is not memory.context:
            memory.context, memory.began = call.context, call.tick
            memory.number += 1
            going_on = np.array([[0.0, memory.speed * TICK_S]] * PERIOD)
            cycle = Cycle(memory.number, 0.0, 0.0, felt_n, memory.draw, going_on)
            memory.due = call_ticks(memory.rate.calls(cycle), PERIOD)
        elapsed = call.tick - memory.began
        if memory.number == CYCLES - 1:
            memory.speed = 0.12
        else:
            memory.speed = -APPROACH if felt_n < 0.5 else float(np.clip(GAIN * (felt_n - HOLD_N), *LIMITS))
        later = [tick - elapsed for tick in memory.due if tick > elapsed]
        actions = np.tile(np.array([0.0, memory.speed * TICK_S], np.float32), (PERIOD, 1))
        yield ActionPart(0, actions, evaluations=1, replan_in=later[0] if later else None)


class _Press(gymnasium.Wrapper):
    """A flat table for a fixed time."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self._tick = 0
        self._errors: list[float] = []
        return super().reset(**options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, _, info = super().step(action)
        self._tick += 1
        if (CYCLES - 2) * PERIOD <= self._tick < (CYCLES - 1) * PERIOD:
            self._errors.append(abs(-float(observation["wrench"][-7:, 2].mean()) - HOLD_N))
        error_n = float(np.mean(self._errors)) if self._errors else HOLD_N
        info["metrics"] = {"peak_force_n": info["peak_force_n"], "error_n": error_n}
        return observation, float(reward), terminated, self._tick >= CYCLES * PERIOD, info


def press(rate: Callable[[GuardedWipe], Rate], seeds: range) -> list[Pressed]:
    """One episode a seed, with the rate that ``rate`` makes for the world."""
    world = GuardedWipe(flat=True)
    executor = Executor(Pressing(lambda: rate(world)))
    found = []
    for seed in seeds:
        env = _Press(world)
        episode = Episode(seed, "pressing", env.observation_space, env.action_space, world.interface, 1 / TICK_S)
        (outcome,) = executor.run([(env, episode)])
        if outcome.failed:
            raise RuntimeError(f"pressing with seed {seed}: {outcome.reason}")
        peak_n, error_n = outcome.metrics["peak_force_n"], outcome.metrics["error_n"]
        found.append(Pressed(peak_n, outcome.costs["plans"] / outcome.costs["encodes"], error_n))
    return found
