"""Whoever asks questions until it knows the rule: a belief over hypotheses, and a choice of the next test.

To add an agent, derive from :class:`Inquirer` and write ``choose``; ``information_gain.py`` is the example to read.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from ...envs.decision.inquiry import ANNOUNCE, TEST
from ..agent import Action, Episode, Observation, StepAgent
from .game import Game, game_of


class Belief:
    """What an agent knows in one episode of a game.

    ``weights`` [H] are the probabilities of the hypotheses after the answers so far, of which each may be wrong with
    probability ``error``. ``best`` is the one that it would announce: the likeliest when it was taken up, which is
    when ``patience`` answers had spoken against the one before. ``asked`` bool [C] are the tests made, ``traits`` [F]
    those of each test seen, in order, ``example`` the traits of the last that was answered with yes (of the first one
    of all, until there is one). ``limit`` tests can be made; ``generator`` is its chance.
    """

    def __init__(
        self, game: Game, generator: np.random.Generator, error: float = 0.001, patience: int = 1, limit: int = 45
    ) -> None:
        self.game, self.generator, self.limit = game, generator, limit
        self._yes, self._no = np.log1p(-error), np.log(error)
        self._patience, self._doubts = patience, 0
        self._log = game.log_prior.copy()
        self.asked = np.zeros(len(game.tests), bool)
        self.traits: list[np.ndarray] = []
        self.example = np.zeros(len(game.traits), bool)
        self.weights = np.exp(self._log) / np.exp(self._log).sum()
        self.best = int(self._log.argmax())

    def learn(self, test: np.ndarray, answer: bool) -> None:
        """Take in the answer to a test."""
        game, n = self.game, self.game.find(test)
        predicted = game.foretell(test[None])[:, 0] if n is None else game.truth[:, n]
        traits = game.describe(test[None])[:, 0] if n is None else game.traits[:, n]
        self._log += np.where(predicted == answer, self._yes, self._no)
        weights = np.exp(self._log - self._log.max())
        self.weights = weights / weights.sum()
        self._doubts += predicted[self.best] != answer
        if self._doubts >= self._patience or not self.traits:  # the first example is what a hypothesis is made from
            self.best, self._doubts = int(self._log.argmax()), 0
        if n is not None:
            self.asked[n] = True
        if answer or not self.traits:
            self.example = traits
        self.traits.append(traits)

    @property
    def open(self) -> np.ndarray:
        """The tests that were not made yet, bool [C]; all of them once all were made."""
        return np.ones_like(self.asked) if self.asked.all() else ~self.asked

    @property
    def progress(self) -> float:
        """The share of the tests that was made."""
        return (len(self.traits) - 1) / self.limit

    def chance_of_yes(self, numbers: np.ndarray) -> np.ndarray:
        """The probability that each of the tests with these ``numbers`` is answered with yes, as hypotheses have it."""
        likely = np.flatnonzero(self.weights > 1e-9)
        return np.clip(self.weights[likely] @ self.game.truth[np.ix_(likely, numbers)], 0.0, 1.0)

    def any_of(self, wanted: np.ndarray) -> int:
        """The number of a random one of the tests that are ``wanted`` bool [C], open if there is such a one.

        Where none at all is wanted, of the open ones.
        """
        return int(self.some_of(wanted, 1)[0])

    def some_of(self, wanted: np.ndarray, count: int) -> np.ndarray:
        """The numbers of ``count`` of them; one may occur again where there are not as many."""
        for among in (wanted & self.open, wanted, self.open):
            if among.any():
                break
        numbers = np.flatnonzero(among)
        return self.generator.choice(numbers, count, replace=len(numbers) < count)


class Inquirer(StepAgent):
    """Announces the likeliest hypothesis at each turn, and tests what ``choose`` says.

    ``error`` in (0, 0.5) is how often it thinks an answer to be wrong: a single contradiction then tells against a
    hypothesis by a factor of ``error``, and does not end it. It gives up the hypothesis that it announces once
    ``patience`` answers have spoken against it. Raises ``ValueError`` for what is out of range.
    """

    def __init__(self, error: float = 0.001, patience: int = 1) -> None:
        if isinstance(error, bool) or not isinstance(error, int | float) or not 0 < error < 0.5:
            raise ValueError(f"error={error!r}, expected how often an answer is wrong, above 0 and below 0.5")
        if type(patience) is not int or patience < 1:
            raise ValueError(f"patience={patience!r}, expected 1 or more answers against a hypothesis")
        self._error, self._patience = float(error), patience

    @abstractmethod
    def choose(self, belief: Belief) -> int:
        """The number of the test to make now, of ``belief.game.tests``."""

    def reset(self, episode: Episode) -> Belief:
        """The memory is the belief. Raises ``ValueError`` for a world in which no questions are asked."""
        game = game_of(episode)
        limit = int(episode.observation_space["tests"].n) - 1  # type: ignore[index]
        return Belief(game, episode.generator(), self._error, self._patience, limit)

    def act(self, memory: Belief, observation: Observation) -> Action:
        """An announcement or a test, as the turn asks."""
        game = memory.game
        action: dict[str, Any] = {"kind": TEST, game.key: game.tests[0], "announcement": ""}
        if observation["turn"] == ANNOUNCE:
            if not observation["refused"]:  # an answer that was learned from already
                memory.learn(observation[game.key], bool(observation["feedback"]))
            return {**action, "kind": ANNOUNCE, "announcement": game.announcements[memory.best]}
        return {**action, game.key: game.tests[self.choose(memory)]}
