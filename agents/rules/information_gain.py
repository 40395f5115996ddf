"""The two ends of the scale: the test that tells most, and any test."""

from __future__ import annotations

import numpy as np
from scipy.special import entr

from .inquirer import Belief, Inquirer

_SAMPLED = 2_000_000  # probabilities computed for one choice, at most: of all tests once few hypotheses are left


def entropy_bits(probability: np.ndarray) -> np.ndarray:
    """The entropy of yes or no in bits, 0 to 1, for probabilities of yes in [0, 1]."""
    p = np.asarray(probability, float)
    return (entr(p) + entr(1 - p)) / np.log(2)


class InformationGain(Inquirer):
    """Makes the test whose answer it can foresee least: the one with the largest expected information gain.

    Where answers are not wrong, a hypothesis decides the answer, and the gain is the entropy of the answer, at most 1
    bit; 0 when all agree. The upper reference of a study: it knows the hypotheses, weighs them rightly and has no
    bias.
    """

    def choose(self, belief: Belief) -> int:
        """The test with the largest gain; of equals any."""
        tests = np.flatnonzero(belief.open)
        most = max(64, _SAMPLED // int((belief.weights > 1e-9).sum()))
        if len(tests) > most:
            tests = belief.generator.choice(tests, most, replace=False)
        gain = entropy_bits(belief.chance_of_yes(tests))
        return int(belief.generator.choice(tests[gain >= gain.max() - 1e-6]))


class RandomTest(Inquirer):
    """Makes any test that was not made yet, and believes as the others do."""

    def choose(self, belief: Belief) -> int:
        """Any."""
        return belief.any_of(belief.open)
