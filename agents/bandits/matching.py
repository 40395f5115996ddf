"""Bandits that match users with items: a belief that all of them share, and an action rule that is their own.

To add one, derive from :class:`MatchingAgent` and write ``match``; ``greedy.py`` is the example to read.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from gymnasium import spaces
from scipy.optimize import linear_sum_assignment

from ..agent import Episode, Observation, StepAgent, Transition
from .bilinear_ridge import BilinearRidge, outer_products


@dataclass(frozen=True)
class Catalogue:
    """The items on offer [N, d2], those with equal features as one kind.

    ``kinds`` [n, d2] are the features of each kind, ``squares`` their outer products, ``capacity`` [n] how many items
    are of it and ``copies`` which ones. ``shelf`` [N] is the kind of each item.
    """

    items: np.ndarray
    kinds: np.ndarray
    squares: np.ndarray
    capacity: np.ndarray
    copies: tuple[np.ndarray, ...]
    shelf: np.ndarray

    @classmethod
    def of(cls, items: np.ndarray) -> Catalogue:
        """The catalogue of items with these features."""
        kinds, first, shelf, capacity = np.unique(
            items, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(first)  # as they come, so that ties go to the first item
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        shelf = place[np.ravel(shelf)]
        copies = tuple(np.flatnonzero(shelf == k) for k in range(len(kinds)))
        kinds = kinds[order]
        return cls(items.copy(), kinds, outer_products(kinds), capacity[order], copies, shelf)

    def best_matching(self, values: np.ndarray) -> np.ndarray:
        """The kinds [M] that maximise the sum of ``values`` [M, n], no kind more often than there are items of it.

        Exact. Where everybody can have their favourite, no assignment has to be solved.
        """
        favourites = values.argmax(axis=1)
        if (np.bincount(favourites, minlength=len(self.kinds)) <= self.capacity).all():
            return favourites
        columns = np.repeat(np.arange(len(self.kinds)), np.minimum(self.capacity, len(values)))
        return columns[linear_sum_assignment(values[:, columns], maximize=True)[1]]

    def random_matching(self, users: int, generator: np.random.Generator) -> np.ndarray:
        """The kinds [M] of different items, uniform over all matchings."""
        return self.shelf[generator.choice(len(self.shelf), users, replace=False)]

    def hand_out(self, kinds: np.ndarray) -> np.ndarray:
        """Items [M] of these kinds, all different."""
        items = np.empty(len(kinds), np.int64)
        for kind in np.unique(kinds):
            takers = np.flatnonzero(kinds == kind)
            items[takers] = self.copies[kind][: len(takers)]
        return items


class Belief:
    """What a bandit knows in one episode: the estimator, who is there now, its chance, and how many rounds were played.

    ``horizon`` is how many rounds there will be, ``None`` if nobody knows. ``notes`` holds what an action rule keeps.
    """

    def __init__(self, d1: int, d2: int, lam: float, generator: np.random.Generator, horizon: int | None) -> None:
        self.ridge = BilinearRidge(d1, d2, lam)
        self.generator, self.horizon = generator, horizon
        self.rounds = 0
        self.users = np.zeros((0, d1))
        self.user_squares = np.zeros((0, d1 * d1))
        self.catalogue = Catalogue.of(np.zeros((1, d2)))
        self.notes: dict[str, Any] = {}

    def look(self, users: np.ndarray, items: np.ndarray) -> None:
        """Take in who is there. Raises ``ValueError`` for features that are no numbers and for too few items."""
        if np.array_equal(users, self.users) and np.array_equal(items, self.catalogue.items):
            return
        for name, rows in (("users", users), ("items", items)):
            if not np.isfinite(rows).all():
                raise ValueError(f"the features of the {name} hold {rows[~np.isfinite(rows)][0]}, expected numbers")
        if len(items) < len(users):
            raise ValueError(f"{len(users)} users and {len(items)} items: need at least as many items as users")
        self.users, self.user_squares = users.copy(), outer_products(users)
        self.catalogue = Catalogue.of(items)

    def rewards(self) -> np.ndarray:
        """The expected reward of each user with each kind of item, [M, n]."""
        return self.ridge.rewards(self.users, self.catalogue.kinds)

    def squared_widths(self) -> np.ndarray:
        """How little is known of it: the squared width of each, [M, n], in the units of one observation."""
        return self.ridge.squared_widths(self.user_squares, self.catalogue.squares)


class MatchingAgent(StepAgent):
    """Plays matchings and learns from the reward of each pair; derive and write ``match``.

    ``lam`` is the penalty of the ridge regression that it believes in. Raises ``ValueError`` for one that is not above
    0.
    """

    def __init__(self, lam: float = 1.0) -> None:
        self._lam = positive("lam", lam)

    @abstractmethod
    def match(self, belief: Belief) -> np.ndarray:
        """The kinds of item [M] to match the users with, no kind more often than there are items of it."""

    def reset(self, episode: Episode) -> Belief:
        """The memory is the belief. Raises ``ValueError`` for a world in which nothing is matched."""
        space = episode.observation_space
        parts = space.spaces if isinstance(space, spaces.Dict) else {}
        shapes = {key: part.shape for key, part in parts.items() if isinstance(part, spaces.Box)}
        if not all(len(shapes.get(key) or ()) == n for key, n in (("users", 2), ("items", 2), ("rewards", 1))):
            raise ValueError(
                f"{episode.env_id} does not send features of users and items and their rewards, as "
                "palaestra/MatchingBandit-v0 does"
            )
        horizon = episode.interface.episode_ticks if episode.interface else None
        return Belief(shapes["users"][1], shapes["items"][1], self._lam, episode.generator(), horizon)

    def act(self, memory: Belief, observation: Observation) -> np.ndarray:
        """The matching of this round: an item for each user, int64 [M]."""
        memory.look(np.asarray(observation["users"], float), np.asarray(observation["items"], float))
        return memory.catalogue.hand_out(self.match(memory))

    def learn(self, memory: Belief, transition: Transition) -> None:
        """Take in the reward of each pair, which the next observation tells."""
        rewards = np.asarray(transition.next_observation["rewards"], float)
        users, items = (np.asarray(transition.observation[key], float) for key in ("users", "items"))
        matching = np.asarray(transition.action)
        if rewards.shape != (len(users),):
            raise ValueError(f"{rewards.shape} rewards for {len(users)} users, expected one of each")
        memory.ridge.update(users, items[matching], rewards)
        memory.rounds += 1


def positive(name: str, value: Any) -> float:
    """``value`` as a number above 0. Raises ``ValueError`` naming the option otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 and isfinite(value)):
        raise ValueError(f"{name}={value!r}, expected a number above 0")
    return float(value)


def share(name: str, value: Any) -> float:
    """``value`` as a number from 0 to 1. Raises ``ValueError`` naming the option otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name}={value!r}, expected a number from 0 to 1")
    return float(value)
