"""Agents without a network: ``random``, ``zero``, ``hold`` and the privileged ``expert``.

This is the file to read before writing an agent: :class:`Random` keeps a noise source in its memory,
:class:`Zero` keeps nothing, and each is a dozen lines.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from ..envs.interface import Interface
from .agent import Action, Episode, Memory, Observation, StepAgent
from .holding import zero_action


class Random(StepAgent):
    """Samples the action space uniformly, from the seed of the episode."""

    def reset(self, episode: Episode) -> Callable[[], Action]:
        """The memory is a sampler of its own, so that episodes do not share a random stream."""
        space = episode.action_space
        seed = int(np.random.default_rng(episode.seed).integers(2**31))
        if not isinstance(space, spaces.Box):
            own = deepcopy(space)  # sampling must not move the random stream of the environment's own space
            own.seed(seed)
            return own.sample
        generator = np.random.default_rng(seed)
        bounded = np.isfinite(space.low) & np.isfinite(space.high)
        low, high = np.where(bounded, space.low, -1.0), np.where(bounded, space.high, 1.0)
        return lambda: np.clip(generator.uniform(low, high), space.low, space.high).astype(space.dtype)

    def act(self, memory: Callable[[], Action], observation: Observation) -> Action:
        """A fresh sample."""
        return memory()


class Zero(StepAgent):
    """Always the zero action (clipped into the space)."""

    def reset(self, episode: Episode) -> Action:
        """The memory is the action."""
        return zero_action(episode.action_space)

    def act(self, memory: Action, observation: Observation) -> Action:
        """The same zeros again."""
        return memory


@dataclass(frozen=True)
class _Station:
    """Where a holding robot stays: its constant action, and which numbers of it to read from the first look."""

    space: Space
    interface: Interface | None
    action: list[Any]


class Hold(StepAgent):
    """Stays where the episode began.

    Velocities and deltas are zero, an absolute target repeats the value that the first observation shows under
    the same component name, and the gripper stays open.
    """

    def reset(self, episode: Episode) -> _Station:
        """The memory remembers the place once the first observation has shown it."""
        return _Station(episode.action_space, episode.interface, [])

    def act(self, memory: _Station, observation: Observation) -> Action:
        """The holding action, worked out at the first tick."""
        if not memory.action:
            memory.action.append(self._station(memory, observation))
        return memory.action[0]

    def _station(self, memory: _Station, observation: Observation) -> Action:
        action = zero_action(memory.space)
        if memory.interface is None or not isinstance(memory.space, spaces.Box):
            return action
        seen: dict[tuple[str, int], np.ndarray] = {}
        for key, components in memory.interface.observation.items():
            start = 0
            for component in components if key in observation else ():
                seen[component.name, component.size] = np.ravel(observation[key])[start : start + component.size]
                start += component.size
        start = 0
        for component in memory.interface.action:
            stop = start + component.size
            if component.quantity == "gripper":
                action[start:stop] = component.open
            elif component.mode == "absolute" and component.quantity in ("position", "orientation"):
                action[start:stop] = seen.get((component.name, component.size), action[start:stop])
            start = stop
        return np.clip(action, memory.space.low, memory.space.high)


class Expert(StepAgent):
    """The environment's own scripted expert, which reads the simulator's state.

    The runtime hands over ``env.unwrapped.expert`` in ``episode.options["expert"]``. Marked in every table and
    refused by a server. Raises ``ValueError`` where the environment has no expert.
    """

    privileged = True

    def reset(self, episode: Episode) -> Memory:
        """The memory is the expert of this very episode."""
        make = episode.options.get("expert")
        if make is None:
            raise ValueError(f"{episode.env_id} has no scripted expert; it offers no method expert()")
        return make()

    def act(self, memory: Callable[[], Action], observation: Observation) -> Action:
        """The expert looks at the simulator, not at the observation."""
        return memory()
