"""Tests that may be made next, and what can be seen of each without knowing which game is played."""

from __future__ import annotations

import numpy as np

from .information_gain import entropy_bits
from .inquirer import Belief

CANDIDATES = 32
FEATURES = ("predicted", "chance_of_yes", "entropy_bits", "distance", "novelty", "progress", "told")
"""What is seen of a candidate, all from 0 to 1.

What the own hypothesis predicts; the probability of a yes and the entropy of the answer; the share of traits in which
it differs from the last example, and from the most similar test so far; the share of tests made; and whether one was
told to think in opposites.
"""


def draw(belief: Belief, chosen: int | None = None) -> np.ndarray:
    """The numbers of :data:`CANDIDATES` tests, half of them predicted by the hypothesis where that is possible.

    ``chosen`` takes the place of one of its kind, so that nothing but what is seen of it tells which one it is.
    """
    predicted = belief.game.truth[belief.best]
    halves = [belief.some_of(wanted, CANDIDATES // 2) for wanted in (predicted, ~predicted)]
    numbers = np.concatenate(halves)
    if chosen is not None and chosen not in numbers:
        alike = np.flatnonzero(predicted[numbers] == predicted[chosen])
        numbers[belief.generator.choice(alike if len(alike) else len(numbers))] = chosen
    return numbers


def see(belief: Belief, numbers: np.ndarray, told: bool) -> np.ndarray:
    """What is seen of the tests with these numbers, float32 [K, 7]; see :data:`FEATURES`."""
    game = belief.game
    traits = game.traits[:, numbers]
    chance = belief.chance_of_yes(numbers)
    past = np.stack(belief.traits, axis=1)
    seen = np.empty((len(numbers), len(FEATURES)), np.float32)
    seen[:, 0] = game.truth[belief.best, numbers]
    seen[:, 1] = chance
    seen[:, 2] = entropy_bits(chance)
    seen[:, 3] = (traits != belief.example[:, None]).mean(axis=0)
    seen[:, 4] = (traits[:, :, None] != past[:, None, :]).mean(axis=0).min(axis=1)
    seen[:, 5] = belief.progress
    seen[:, 6] = told
    return seen
