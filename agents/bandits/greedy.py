"""Matching bandits that explore by chance or not at all."""

from __future__ import annotations

import numpy as np

from .matching import Belief, MatchingAgent, share


class Greedy(MatchingAgent):
    """Always the matching that looks best."""

    def match(self, belief: Belief) -> np.ndarray:
        """The best one by the expected rewards."""
        return belief.catalogue.best_matching(belief.rewards())


class EpsilonGreedy(Greedy):
    """Now and then a random matching, else the one that looks best.

    Random with probability ``epsilon``, from 0 to 1. Raises ``ValueError`` for another one.
    """

    def __init__(self, epsilon: float = 0.1, lam: float = 1.0) -> None:
        super().__init__(lam)
        self._epsilon = share("epsilon", epsilon)

    def match(self, belief: Belief) -> np.ndarray:
        """Either of the two."""
        if belief.generator.random() < self._epsilon:
            return belief.catalogue.random_matching(len(belief.users), belief.generator)
        return super().match(belief)


class ExploreThenCommit(Greedy):
    """Random matchings at first, then always the one that looks best.

    The first ``explore`` rounds are random. Raises ``ValueError`` for what is no number of rounds.
    """

    def __init__(self, explore: int = 100, lam: float = 1.0) -> None:
        super().__init__(lam)
        if type(explore) is not int or explore < 0:
            raise ValueError(f"explore={explore!r}, expected a number of rounds, 0 or more")
        self._explore = explore

    def match(self, belief: Belief) -> np.ndarray:
        """Random at first."""
        if belief.rounds < self._explore:
            return belief.catalogue.random_matching(len(belief.users), belief.generator)
        return super().match(belief)


class RandomMatching(MatchingAgent):
    """Any matching, all equally likely."""

    def match(self, belief: Belief) -> np.ndarray:
        """Any."""
        return belief.catalogue.random_matching(len(belief.users), belief.generator)
