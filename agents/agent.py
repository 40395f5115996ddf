"""The contract of everything that acts: a policy, a bandit, a rule finder, a remote server.

To add an agent, derive from :class:`Agent` (plans chunks) or :class:`StepAgent` (one action at a time);
``agents/scripted.py`` is the example to read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import Space

from ..envs.interface import Interface

Observation = Any
"""A member of the environment's observation space, usually a dict of arrays."""
Action = Any
"""A member of the action space; an array [D] for a Box."""
Memory = Any
"""Whatever an episode changes in an agent: caches, a belief, a noise source. Owned by the episode."""
Context = Any
"""What a slow ``encode`` hands to the fast ``plan`` of a multi-rate agent."""


@dataclass(frozen=True)
class Episode:
    """What an agent may know before the first observation.

    ``seed`` is the episode's own: an agent's noise comes from it. ``interface`` is the environment's card or
    ``None``. ``options`` carries settings of this run that only some agents read.
    """

    seed: int
    env_id: str
    observation_space: Space
    action_space: Space
    interface: Interface | None = None
    control_hz: float | None = None
    instruction: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def generator(self) -> np.random.Generator:
        """A new generator of the agent's own chance, from the seed.

        Not ``default_rng(seed)``: that is how a Gymnasium world makes its own, and an agent with the same numbers in
        hand would foresee what the world hides.
        """
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(2,)))


@dataclass(frozen=True)
class Call:
    """One request to plan.

    ``observation`` was captured at ``tick``. ``committed`` are the actions [d, D] that run anyway before this
    plan takes effect, at ticks ``tick .. tick+d-1``. ``need`` is how many ticks after them will be executed;
    0 leaves it to the agent. ``context`` is the newest finished result of ``encode``, else ``None``.
    """

    observation: Observation
    context: Context = None
    tick: int = 0
    committed: Sequence[Action] = ()
    need: int = 0


@dataclass(frozen=True)
class ActionPart:
    """Some actions of a plan, as soon as they are final.

    ``actions[j]`` is for the tick ``start + j`` counted from the tick of the observation (ticks at which the
    robot had to hold do not count); an array [k, D] for a Box, a list of members otherwise, and empty when
    nothing became final. ``encodes`` and ``evaluations``
    count the network work since the last part. ``replan_in`` (ticks from the observation) says when the
    agent wants to look again; a plan without evaluations and actions leaves the running one as it is. ``extras`` are
    small arrays: ``log_prob``, ``p_success``, ``cache_bytes``, ``imagined``.
    """

    start: int = 0
    actions: Sequence[Action] | np.ndarray = ()
    encodes: int = 0
    evaluations: int = 0
    replan_in: int | None = None
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Transition:
    """One step as the agent saw it. ``reward`` is a number; ``terminated`` and ``truncated`` as in Gymnasium."""

    observation: Observation
    action: Action
    reward: float
    next_observation: Observation
    terminated: bool
    truncated: bool


class Agent(ABC):
    """Acts in many episodes at once; whatever an episode changes lives in its memory.

    ``interface`` is the card that the agent was made for; ``None`` means unchecked, and every result row says
    so. ``encode_every`` is the number of ticks between slow passes; 0 means that ``plan`` encodes by itself. Each new
    context is followed by a plan at once; those in between come when ``replan_in`` says.
    ``max_delay`` is the longest prefix of committed actions that it can continue; ``None``: any, or it does not care.
    ``imagines`` says which picture of the observation its plans foresee, by key (nested ones joined by a slash), and at
    how many ticks after it; the pictures are in ``ActionPart.extras``: ``imagined``, uint8 [T, H, W, C], and the ticks
    ``imagined_in`` [T]. ``None``: none.
    ``privileged`` agents read the simulator's state: they are marked in tables and refused by a server.
    """

    interface: Interface | None = None
    encode_every: int = 0
    max_delay: int | None = None
    imagines: tuple[str, tuple[int, ...]] | None = None
    privileged: bool = False

    @property
    def learns(self) -> bool:
        """Whether ``learn`` does anything; such an agent needs a world that waits for it."""
        return type(self).learn is not Agent.learn

    def reset(self, episode: Episode) -> Memory:
        """Begin an episode; returns its memory. The default has none."""
        return None

    def encode(self, memory: Memory, observation: Observation) -> Context:
        """The slow pass of a multi-rate agent (``encode_every`` > 0), run on a lane of its own."""
        raise TypeError(f"{type(self).__name__} sets encode_every={self.encode_every} but does not define encode()")

    @abstractmethod
    def plan(self, memory: Memory, call: Call) -> Iterator[ActionPart]:
        """Yield the plan part by part, near actions first, once after **every** network evaluation.

        A part without actions says that an evaluation is done and nothing became final. Whoever reads counts
        the cost, streams, pre-empts between two parts, and may stop early; so do work only when asked.
        """

    def plan_many(self, jobs: Sequence[tuple[Memory, Call]]) -> Iterator[tuple[int, ActionPart]]:
        """Plan for several episodes; yields ``(index of the job, part)``. Override to batch the network."""
        for index, (memory, call) in enumerate(jobs):
            for part in self.plan(memory, call):
                yield index, part

    def learn(self, memory: Memory, transition: Transition) -> None:  # noqa: B027 - most agents do not learn
        """Learn within the episode from one step. What it changes lives in ``memory`` and ends with it."""


class StepAgent(Agent):
    """An agent that decides one action at a time: write ``act``."""

    @abstractmethod
    def act(self, memory: Memory, observation: Observation) -> Action:
        """The action for this observation, a member of the action space."""

    def plan(self, memory: Memory, call: Call) -> Iterator[ActionPart]:
        """One part with one action, at the first tick that is not committed."""
        action = self.act(memory, call.observation)
        actions = action[None] if isinstance(action, np.ndarray) else [action]
        yield ActionPart(start=len(call.committed), actions=actions, evaluations=1)
